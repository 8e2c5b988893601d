/* malloc-size.h: the alignment that malloc promises: that of the most demanding type, at least two words.
 *
 * Who may include it: the tests of glibc's source package. It deliberately knows the platform's rule and not
 * one allocator's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_MALLOC_SIZE_H
#define SHIM_MALLOC_SIZE_H

#include <stddef.h>

#define MALLOC_ALIGNMENT                                                                                     \
    (_Alignof(max_align_t) > 2 * sizeof(size_t) ? _Alignof(max_align_t) : 2 * sizeof(size_t))
#define MALLOC_ALIGN_MASK (MALLOC_ALIGNMENT - 1)

#endif
