/* libc-pointer-arith.h: rounding of numbers and pointers to a power of two.
 *
 * Who may include it: the tests of glibc's source package. It deliberately checks no argument.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_LIBC_POINTER_ARITH_H
#define SHIM_LIBC_POINTER_ARITH_H

#include <stdint.h>

#define ALIGN_DOWN(number, size) ((number) & -((__typeof__(number))(size)))
#define ALIGN_UP(number, size) ALIGN_DOWN((number) + (size) - 1, size)
#define PTR_ALIGN_DOWN(pointer, size)                                                                        \
    ((__typeof__(pointer))ALIGN_DOWN((uintptr_t)(pointer), (uintptr_t)(size)))
#define PTR_ALIGN_UP(pointer, size) ((__typeof__(pointer))ALIGN_UP((uintptr_t)(pointer), (uintptr_t)(size)))
#define PTR_IS_ALIGNED(pointer, size) (((uintptr_t)(pointer) & ((uintptr_t)(size) - 1)) == 0)

#endif
