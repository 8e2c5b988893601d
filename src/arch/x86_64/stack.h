/* stack.h (x86-64): the registers that a walk up the stack starts from. Included by arch.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_ARCH_X86_64_STACK_H
#define WEIR_ARCH_X86_64_STACK_H

#include "base/compiler.h"

/* By the numbers of the ABI's unwind tables. */
enum { ARCH_DWARF_FRAME = 6, ARCH_DWARF_STACK = 7, ARCH_DWARF_RETURN = 16 };

struct arch_registers {
    uintptr_t code;
    uintptr_t stack;
    uintptr_t frame;
};

#define ARCH_REGISTERS_TAKE(r)                                                                               \
    __asm__ volatile("leaq 0(%%rip), %0\n\t"                                                                 \
                     "movq %%rsp, %1\n\t"                                                                    \
                     "movq %%rbp, %2"                                                                        \
                     : "=&r"((r).code), "=&r"((r).stack), "=&r"((r).frame))

/* A return address without its signature. */
WEIR_INLINE uintptr_t arch_return_plain(uintptr_t address) { return address; }

WEIR_INLINE bool arch_ends_handler(uintptr_t code) {
    (void)code;
    return false;
}

#endif
