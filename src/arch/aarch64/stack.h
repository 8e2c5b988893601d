/* stack.h (aarch64): the registers that a walk up the stack starts from. Included by arch.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_ARCH_AARCH64_STACK_H
#define WEIR_ARCH_AARCH64_STACK_H

#include "base/compiler.h"

/* By the numbers of the ABI's unwind tables. */
enum { ARCH_DWARF_FRAME = 29, ARCH_DWARF_STACK = 31, ARCH_DWARF_RETURN = 30 };

struct arch_registers {
    uintptr_t code;
    uintptr_t stack;
    uintptr_t frame;
};

#define ARCH_REGISTERS_TAKE(r)                                                                               \
    __asm__ volatile("adr %0, .\n\t"                                                                         \
                     "mov %1, sp\n\t"                                                                        \
                     "mov %2, x29"                                                                           \
                     : "=&r"((r).code), "=&r"((r).stack), "=&r"((r).frame))

/* Whether the instruction is one of the two by which a signal handler returns. The compiler's unwinder, which
 * knows them by their looks, takes the frame of a signal that came between them for another one's. */
WEIR_INLINE bool arch_ends_handler(uintptr_t code) {
    const uint32_t number = 0xd2801168; /* mov x8, #139 */
    const uint32_t call = 0xd4000001;   /* svc #0 */
    const uint32_t* at = (const uint32_t*)code;
    return (at[0] == number && at[1] == call) || (at[0] == call && at[-1] == number);
}

/* A return address without its signature: xpaclri, which processors without signatures pass over. */
WEIR_INLINE uintptr_t arch_return_plain(uintptr_t address) {
    register uintptr_t x30 __asm__("x30") = address;
    __asm__("hint #7" : "+r"(x30));
    return x30;
}

#endif
