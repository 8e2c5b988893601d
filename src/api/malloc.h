/* malloc.h: what the parts of the api layer share. Internal to it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_API_MALLOC_H
#define WEIR_API_MALLOC_H

#include <malloc.h>

#include "base/compiler.h"

/* A second exported name for a function of the same file; either may be a macro. */
#define WEIR_ALIAS(name, target) WEIR_ALIAS_EXPANDED(name, target)
#define WEIR_ALIAS_EXPANDED(name, target)                                                                    \
    WEIR_EXPORT __typeof__(target) name WEIR_COPY(target) __attribute__((alias(#target)))

/* The malloc family that libc's headers do not declare in C17. */
void cfree(void* p);
void free_sized(void* p, size_t size);
void free_aligned_sized(void* p, size_t align, size_t size);

#endif
