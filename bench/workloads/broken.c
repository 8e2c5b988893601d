/* broken.c: allocators to preload that the workloads must find out, for check.py. FAULT_none has no fault,
 * FAULT_twice gives a block a second time while it is in use. Neither takes a block back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#if !defined(FAULT_twice)
#    define FAULT_twice 0
#endif

extern void* __libc_malloc(size_t bytes);
extern void* __libc_calloc(size_t count, size_t bytes);
extern void* __libc_memalign(size_t alignment, size_t bytes);
extern size_t malloc_usable_size(void* block);
void* malloc(size_t bytes);
void free(void* block);
void* calloc(size_t count, size_t bytes);
void* realloc(void* block, size_t bytes);
void* aligned_alloc(size_t alignment, size_t bytes);
int posix_memalign(void** to, size_t alignment, size_t bytes);

static atomic_uint calls;
static void* _Atomic last, *_Atomic before_last;

static void* given(void* block) {
    atomic_store(&before_last, atomic_exchange(&last, block));
    return block;
}

/* The last block that is not `but`, when its turn has come and it is fit; or NULL. Each third call has its
 * turn: where malloc and realloc alternate, each second would be the same one's. */
static void* again(const void* but, size_t alignment, size_t bytes) {
    void* before = atomic_load(&last);
    if (before == but) before = atomic_load(&before_last);
    if (!FAULT_twice || !before || atomic_fetch_add(&calls, 1) % 3 != 0) return NULL;
    return (size_t)before % alignment == 0 && malloc_usable_size(before) >= bytes ? before : NULL;
}

static void* take(const void* but, size_t bytes) {
    void* block = again(but, 1, bytes);
    return given(block ? block : __libc_malloc(bytes));
}

void* malloc(size_t bytes) { return take(NULL, bytes); }

void free(void* block) { (void)block; }

void* calloc(size_t count, size_t bytes) { return __libc_calloc(count, bytes); }

void* realloc(void* block, size_t bytes) {
    size_t before = block ? malloc_usable_size(block) : 0;
    void* moved = take(block, bytes);
    if (moved && block) memmove(moved, block, before < bytes ? before : bytes);
    return moved;
}

int posix_memalign(void** to, size_t alignment, size_t bytes) {
    void* block = again(NULL, alignment, bytes);
    *to = given(block ? block : __libc_memalign(alignment, bytes));
    return *to ? 0 : ENOMEM;
}

void* aligned_alloc(size_t alignment, size_t bytes) { return __libc_memalign(alignment, bytes); }
