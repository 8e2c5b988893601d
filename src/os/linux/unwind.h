/* unwind.h (Linux): how the caller of a place in the code is found, read from the compiler's unwind tables.
 *
 * Internal to stack.c. It knows what functions do that keep their frame at a constant distance from the
 * stack pointer or the frame pointer; of all others it says that it does not know.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_OS_LINUX_UNWIND_H
#define WEIR_OS_LINUX_UNWIND_H

#include "base/compiler.h"

/*  CFA = base + cfa                  the stack pointer that the caller goes on with
 *  return address = [CFA - back]
 *  the caller's frame pointer = [CFA - frame], or unchanged where frame == 0 */
enum unwind_kind { UNWIND_UNKNOWN, UNWIND_STEP, UNWIND_END };
struct unwind_rule {
    enum unwind_kind kind;
    bool by_frame; /* base: the frame pointer; else the stack pointer */
    uint32_t cfa;
    uint32_t back;
    uint32_t frame;
};

/* `entry`: the table's entry (FDE) of the function that starts at `function`, which `code` lies in. Safe in
 * signal handlers. */
WEIR_FN struct unwind_rule unwind_rule_read(const void* entry, uintptr_t function, uintptr_t code);

#endif
