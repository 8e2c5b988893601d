/* broken.c: an allocator to preload that hands everything to the C library's, with one fault, for run.py
 * --self-test.
 *
 * FAULT_none has none. FAULT_partial leaves aligned_alloc to libc. FAULT_forgetful gives pages of a live
 * block back. FAULT_eager makes a system call for each free.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#if !defined(FAULT_partial)
#    define FAULT_partial 0
#endif
#if !defined(FAULT_forgetful)
#    define FAULT_forgetful 0
#endif
#if !defined(FAULT_eager)
#    define FAULT_eager 0
#endif

extern void* __libc_malloc(size_t bytes);
extern void __libc_free(void* block);
extern void* __libc_calloc(size_t count, size_t bytes);
extern void* __libc_realloc(void* block, size_t bytes);
extern void* __libc_memalign(size_t alignment, size_t bytes);
void* malloc(size_t bytes);
void free(void* block);
void* calloc(size_t count, size_t bytes);
void* realloc(void* block, size_t bytes);
void* aligned_alloc(size_t alignment, size_t bytes);

static atomic_uint calls;

void* malloc(size_t bytes) {
    static void* _Atomic last; /* the block of an earlier call, written by now */
    void* block = __libc_malloc(bytes);
    if (FAULT_forgetful && bytes > 65536 && atomic_fetch_add(&calls, 1) % 16 == 0) {
        uintptr_t page = ((uintptr_t)atomic_exchange(&last, block) + 4095) & ~(uintptr_t)4095;
        if (page) madvise((void*)page, 4096, MADV_DONTNEED);
    }
    return block;
}

void free(void* block) {
    if (FAULT_eager) madvise(NULL, 0, MADV_DONTNEED);
    if (!FAULT_forgetful)
        __libc_free(block); /* the page that is forgotten is to be a block's, not libc's own */
}

void* calloc(size_t count, size_t bytes) { return __libc_calloc(count, bytes); }
void* realloc(void* block, size_t bytes) { return __libc_realloc(block, bytes); }
#if !FAULT_partial
void* aligned_alloc(size_t alignment, size_t bytes) { return __libc_memalign(alignment, bytes); }
#endif
