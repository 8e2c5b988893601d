/* cxx.cpp: the C++ operators for cases.c and rates.c, which are C. Knows nothing of misuse.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "misuse.h"

#include <new>

void* cxx_new(size_t size) { return ::operator new(size); }
void cxx_delete(void* p) { ::operator delete(p); }
void cxx_delete_sized(void* p, size_t size) { ::operator delete(p, size); }
void* cxx_new_aligned(size_t size, size_t align) { return ::operator new(size, std::align_val_t{align}); }
void cxx_delete_sized_aligned(void* p, size_t size, size_t align) {
    ::operator delete(p, size, std::align_val_t{align});
}
