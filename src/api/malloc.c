/* malloc.c: the malloc family: errno and the rules of glibc around the heap.
 *
 * The symbols are exported unversioned, so that they take the place of libc's. Each is thread-safe;
 * none is async-signal-safe, as malloc never is. It deliberately knows nothing of slabs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "api/malloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/options.h"
#include "core/report.h"
#include "heap/heap.h"
#include "os/os.h"

static WEIR_COLD void* fail(int error) {
    errno = error;
    return NULL;
}

WEIR_AT_LINE WEIR_EXPORT void* malloc(size_t size) {
    size_t last = size - 1;
    if (weir_unlikely(last >= SMALL_MAX)) return heap_alloc_above(size);
    void* p = heap_alloc_fast(last);
    if (weir_unlikely(p == NULL)) return heap_alloc_slow(size);
    return p;
}

WEIR_AT_LINE WEIR_EXPORT void free(void* p) { heap_free(p, "free"); }
WEIR_EXPORT void cfree(void* p) { heap_free(p, "cfree"); }

static WEIR_NOINLINE void* calloc_slow(size_t size) {
    bool zeroed;
    void* p = heap_alloc_zeroable(size, &zeroed);
    if (p == NULL) return fail(ENOMEM);
    if (!zeroed) heap_clear(p, size);
    return p;
}

WEIR_EXPORT void* calloc(size_t count, size_t size) {
    size_t bytes;
    if (weir_unlikely(__builtin_mul_overflow(count, size, &bytes))) return fail(ENOMEM);
    size_t last = bytes - 1;
    if (weir_unlikely(last >= SMALL_MAX)) return calloc_slow(bytes);
    void* p = heap_alloc_fast(last);
    if (weir_unlikely(p == NULL)) return calloc_slow(bytes);
    return memset(p, 0, bytes);
}

WEIR_EXPORT void* realloc(void* p, size_t size) {
    if (p == NULL) return malloc(size);
    if (size == 0) {
        heap_free(p, "realloc");
        return NULL;
    }
    void* to = heap_realloc(p, size, "realloc");
    return weir_likely(to != NULL) ? to : fail(ENOMEM);
}

WEIR_EXPORT void* reallocarray(void* p, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return fail(ENOMEM);
    return realloc(p, bytes);
}

static void* aligned(size_t align, size_t size) {
    void* p = size > PTRDIFF_MAX ? NULL : heap_alloc_aligned(size, align);
    return p != NULL ? p : fail(ENOMEM);
}

/* As C17 and glibc since 2.38 have it: an alignment that is no power of two is refused. */
WEIR_EXPORT void* aligned_alloc(size_t align, size_t size) {
    return is_power_of_two(align) ? aligned(align, size) : fail(EINVAL);
}

/* As glibc has it: an odd alignment is rounded up to a power of two. */
WEIR_EXPORT void* memalign(size_t align, size_t size) {
    if (align > SIZE_MAX / 2 + 1) return fail(EINVAL);
    if (align <= GRANULE) return malloc(size);
    return aligned((size_t)1 << (bit_high(align - 1) + 1), size);
}

WEIR_EXPORT int posix_memalign(void** out, size_t align, size_t size) {
    if (!is_power_of_two(align) || align % sizeof(void*) != 0) return EINVAL;
    void* p = aligned(align, size); /* errno too, which POSIX leaves open: glibc's callers look at it */
    if (p == NULL) return ENOMEM;
    *out = p;
    return 0;
}

WEIR_EXPORT void* valloc(size_t size) { return aligned(os_page_bytes(), size); }

WEIR_EXPORT void* pvalloc(size_t size) {
    size_t page = os_page_bytes();
    if (size > PTRDIFF_MAX - page) return fail(ENOMEM);
    return aligned(page, size == 0 ? page : align_up(size, page));
}

WEIR_EXPORT size_t malloc_usable_size(void* p) { return heap_usable(p, "malloc_usable_size"); }

/* C23. A block that realloc left where it was may be larger than its size's class: half is enough. */
static void free_checked(void* p, size_t size, size_t align, const char* call) {
    if (p != NULL && core_options.trust_size == 0) {
        size_t usable = heap_usable(p, call);
        if (usable == 0) return;
        if (!heap_size_matches(usable, size, align) && (size > usable || size < usable / 2)) {
            core_report_size(p, size, call);
            return;
        }
    }
    heap_free(p, call);
}

WEIR_EXPORT void free_sized(void* p, size_t size) { free_checked(p, size, 1, "free_sized"); }
WEIR_EXPORT void free_aligned_sized(void* p, size_t align, size_t size) {
    free_checked(p, size, align, "free_aligned_sized");
}

/* Names that programs of other times and libc's own parts call. */
WEIR_ALIAS(__libc_malloc, malloc);
WEIR_ALIAS(__libc_free, free);
WEIR_ALIAS(__libc_calloc, calloc);
WEIR_ALIAS(__libc_realloc, realloc);
WEIR_ALIAS(__libc_reallocarray, reallocarray);
WEIR_ALIAS(__libc_memalign, memalign);
WEIR_ALIAS(__libc_valloc, valloc);
WEIR_ALIAS(__libc_pvalloc, pvalloc);
WEIR_ALIAS(__posix_memalign, posix_memalign);

/* glibc's hooks, which it ignores since 2.34: old programs still link to them. */
WEIR_EXPORT void* (*volatile __malloc_hook)(size_t, const void*);
WEIR_EXPORT void* (*volatile __realloc_hook)(void*, size_t, const void*);
WEIR_EXPORT void* (*volatile __memalign_hook)(size_t, size_t, const void*);
WEIR_EXPORT void (*volatile __free_hook)(void*, const void*);
WEIR_EXPORT void (*volatile __malloc_initialize_hook)(void);
WEIR_EXPORT void (*volatile __after_morecore_hook)(void);
