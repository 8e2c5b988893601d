/* broken.c: libc's malloc with one fault, chosen by BROKEN=name, at about every 20,000th call.
 *
 * For selfcheck.py alone, by preload: each fault is one that the model test must notice. It knows glibc's
 * __libc_ names, and nothing of the model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

static _Atomic unsigned calls;
static int in_child;
static __thread unsigned char* last;
static __thread size_t last_size;

/* Whether this call is the one that goes wrong, in the way `name`. */
static int faulty(const char* name, unsigned every) {
    const char* chosen = getenv("BROKEN");
    if (chosen == NULL || strcmp(chosen, name) != 0) return 0;
    return (atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1) % every == 0;
}

static void child_start(void) { in_child = 1; }
__attribute__((constructor)) static void broken_init(void) { pthread_atfork(NULL, NULL, child_start); }

void* malloc(size_t size) {
    if (size > PTRDIFF_MAX && faulty("refuse", 1)) return __libc_malloc(100);
    if (in_child && faulty("fork", 1)) return NULL;
    if (in_child && faulty("fork-hang", 1)) pause();
    if (faulty("hang", 20000)) pause();
    if (faulty("null", 20000)) return errno = ENOMEM, NULL;
    if (last != NULL && size <= last_size && faulty("overlap", 5000)) return last;
    if (last != NULL && last_size > 0 && faulty("content", 5000)) last[last_size / 2] ^= 4;
    unsigned char* p = __libc_malloc(size);
    last = p;
    last_size = size;
    return p;
}

void free(void* p) {
    int saved = errno;
    if (p == last) last = NULL;
    __libc_free(p);
    errno = faulty("errno", 20000) ? EIO : saved;
}

void* calloc(size_t count, size_t size) {
    unsigned char* p = __libc_calloc(count, size);
    if (p != NULL && count * size > 0 && faulty("zero", 2000)) p[count * size - 1] = 1;
    return p;
}

void* realloc(void* old, size_t size) {
    if (old == last) last = NULL;
    unsigned char* p = __libc_realloc(old, size);
    if (p != NULL && old != NULL && size > 0 && faulty("realloc", 2000)) p[0] ^= 1;
    return p;
}

void* memalign(size_t align, size_t size) {
    unsigned char* p = __libc_memalign(align, size + 16);
    return p != NULL && align > 16 && faulty("align", 1000) ? p + 16 : p;
}
void* aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
int posix_memalign(void** out, size_t align, size_t size) {
    if (align < sizeof(void*) || (align & (align - 1)) != 0) return faulty("einval", 1) ? 0 : EINVAL;
    void* p = memalign(align, size);
    if (p == NULL) return ENOMEM;
    *out = p;
    return 0;
}

size_t malloc_usable_size(void* p) {
    /* A chunk's size is the word before it; a word of it is the next chunk's. */
    size_t usable = (((size_t*)p)[-1] & ~(size_t)7) - ((((size_t*)p)[-1] & 2) != 0 ? 16 : 8);
    if (faulty("usable-small", 2000)) return 0;
    if (faulty("usable-large", 2000)) return usable + 64;
    return usable;
}
