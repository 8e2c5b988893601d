/* cxx.h: the C++ operators new and delete, callable from C.
 *
 * entry.c calls them; cxx.cpp has them. Neither checks anything here.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MODEL_CXX_H
#define MODEL_CXX_H

#include <stddef.h>

/* Bits of `variant`. An operator delete is sized or nothrow, not both. */
#define CXX_ARRAY 1u
#define CXX_NOTHROW 2u
#define CXX_ALIGNED 4u
#define CXX_SIZED 8u

#ifdef __cplusplus
extern "C" {
#endif

/** NULL when the operator threw bad_alloc or, nothrow, returned NULL. */
void* cxx_new(unsigned variant, size_t size, size_t align);
void cxx_delete(unsigned variant, void* p, size_t size, size_t align);

#ifdef __cplusplus
}
#endif
#endif
