/* entry.c: calls the allocator's entry points and checks their contracts around each call.
 *
 * Workers call it. It knows the standard's and glibc's contracts, not the allocator behind them; what is
 * called when is worker.c's business.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "entry.h"
#include "cxx.h"
#include "shadow.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ThreadSanitizer says that an empty block has one usable byte, and reports a write to it. */
#if defined(__SANITIZE_THREAD__)
#    define UNDER_TSAN 1
#elif defined(__has_feature)
#    if __has_feature(thread_sanitizer)
#        define UNDER_TSAN 1
#    endif
#endif
#ifndef UNDER_TSAN
#    define UNDER_TSAN 0
#endif

/* C23; absent from many a C library. Weak for a linked allocator, dlsym for a preloaded one, since a
 * linker may settle a weak reference to nothing for good. */
extern void free_sized(void* p, size_t size) __attribute__((weak));
extern void free_aligned_sized(void* p, size_t align, size_t size) __attribute__((weak));
static void (*free_sized_found)(void*, size_t);
static void (*free_aligned_sized_found)(void*, size_t, size_t);
static size_t page_bytes;

void entry_init(void) {
    void* symbol;
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    free_sized_found = free_sized;
    free_aligned_sized_found = free_aligned_sized;
    if (free_sized_found == NULL && (symbol = dlsym(RTLD_DEFAULT, "free_sized")) != NULL)
        memcpy(&free_sized_found, &symbol, sizeof symbol);
    if (free_aligned_sized_found == NULL && (symbol = dlsym(RTLD_DEFAULT, "free_aligned_sized")) != NULL)
        memcpy(&free_aligned_sized_found, &symbol, sizeof symbol);
}

static const char* const call_names[] = {
#define X(name) #name,
    MODEL_CALLS(X)
#undef X
};

static inline void call_begin(struct worker* w, enum model_call call) {
    w->call = call_names[call];
    w->calls[call]++;
    w->ops++;
}

/* Out of memory: an answer where the configuration says so, else a failure. */
__attribute__((noinline)) static int nomem(struct worker* w, size_t size, size_t align, int error) {
    if (model_config.nomem_ok && error == ENOMEM) {
        w->nomem++;
        return 0;
    }
    model_fail("no memory: %s of %zu bytes (alignment %zu) expected a block, found NULL with error %d (%s)",
               w->call, size, align, error, strerror(error));
}

static unsigned align_pick(uint64_t r) {
    unsigned low = (unsigned)(r & 1023);
    if (low < 800) return 3 + (unsigned)pick(r << 10, 7);  /* 8 to 512 */
    if (low < 1016) return 9 + (unsigned)pick(r << 10, 4); /* to a page */
    if (low < 1023) return 13 + (unsigned)pick(r << 10, 5);
    return 18 + (unsigned)pick(r << 10, 5); /* to 4 MiB */
}

static inline void alloc_check(struct worker* w, const struct block* b) {
    size_t align = (size_t)1 << b->align_log2;
    if (__builtin_expect(((uintptr_t)b->ptr & (align - 1)) != 0, 0))
        model_fail("alignment: %s of %zu bytes gave %p, expected a multiple of %zu", w->call, b->size,
                   (void*)b->ptr, align);
}

static inline size_t usable_checked(struct worker* w, const unsigned char* p, size_t size) {
    call_begin(w, CALL_malloc_usable_size);
    size_t usable = malloc_usable_size((void*)(uintptr_t)p);
    if (__builtin_expect(usable < size, 0))
        model_fail("usable size: block %p of %zu bytes: expected at least that, found %zu", (const void*)p,
                   size, usable);
    return usable;
}

/* The block is made: enter it into the shadow and give it its content. */
static inline void block_adopt(struct worker* w, struct block* b, uint64_t r) {
    const char* call = w->call;
    alloc_check(w, b);
    b->filled = (r & 7) == 0 && (b->size > 0 || !UNDER_TSAN) ? usable_checked(w, b->ptr, b->size) : b->size;
    w->call = call;
    shadow_claim(b->ptr, b->filled, call);
    b->id = w->next_id;
    w->next_id += model_config.threads;
    block_fill(b);
    w->live_bytes += b->size;
    w->blocks_made++;
}

static inline unsigned log2_floor(size_t x) { return 63 - (unsigned)__builtin_clzll(x); }

/* The aligned entry points, by turns; each with its own rules for what alignments are allowed. */
static int alloc_aligned(struct worker* w, struct block* b, size_t size, uint64_t r) {
    unsigned log2 = align_pick(r >> 20);
    size_t align = (size_t)1 << log2;
    void* p = NULL;
    int error = 0;
    switch (r & 7) {
    case 0:
    case 1:
        call_begin(w, CALL_aligned_alloc);
        size = (size + align - 1) & ~(align - 1);
        p = aligned_alloc(align, size);
        b->aligned = 2;
        break;
    case 2:
    case 3:
        call_begin(w, CALL_memalign);
        p = memalign(align, size);
        b->aligned = 3;
        break;
    case 4:
    case 5:
    case 6:
        call_begin(w, CALL_posix_memalign);
        error = posix_memalign(&p, align, size);
        if (error != 0) p = NULL;
        b->aligned = 3;
        break;
    default:
        b->aligned = 3;
        log2 = log2_floor(page_bytes);
        if (((r >> 3) & 1) == 0 || !model_config.pvalloc) {
            call_begin(w, CALL_valloc);
            p = valloc(size);
        } else {
            call_begin(w, CALL_pvalloc);
            p = pvalloc(size);
            size = (size + page_bytes - 1) & ~(page_bytes - 1);
        }
    }
    if (p == NULL) return nomem(w, size, align, error != 0 ? error : errno);
    b->ptr = p;
    b->size = size;
    b->kind = KIND_MALLOC;
    b->align_log2 = (uint8_t)log2;
    return 1;
}

static int alloc_new(struct worker* w, struct block* b, size_t size, uint64_t r) {
    unsigned variant = (unsigned)(r & (CXX_ARRAY | CXX_NOTHROW)), log2 = 4;
    if (((r >> 2) & 7) == 0) {
        variant |= CXX_ALIGNED;
        log2 = align_pick(r >> 20);
    }
    call_begin(w, CALL_operator_new);
    b->ptr = cxx_new(variant, size, (size_t)1 << log2);
    if (b->ptr == NULL) return nomem(w, size, (size_t)1 << log2, ENOMEM);
    b->size = size;
    b->kind = (variant & CXX_ARRAY) != 0 ? KIND_NEW_ARRAY : KIND_NEW;
    b->aligned = (variant & CXX_ALIGNED) != 0;
    b->align_log2 = (uint8_t)((variant & CXX_ALIGNED) != 0 ? log2 : log2_floor(model_config.align_min));
    return 1;
}

static int alloc_zeroed(struct worker* w, struct block* b, size_t size, uint64_t r) {
    size_t count = 1 + (size_t)(r & 15);
    call_begin(w, CALL_calloc);
    if (size % count != 0) count = 1;
    b->ptr = calloc(count, size / count);
    if (b->ptr == NULL) return nomem(w, size, model_config.align_min, errno);
    block_verify_zero(b->ptr, size, size <= 1u << 20 && ((r >> 4) & 15) == 0);
    return 1;
}

int entry_alloc(struct worker* w, struct block* b, size_t size, uint64_t r) {
    unsigned choice = (unsigned)(r & 255);
    uint64_t detail = r >> 8;
    b->size = size;
    b->kind = KIND_MALLOC;
    b->aligned = 0;
    b->align_log2 = (uint8_t)log2_floor(model_config.align_min);
    if (choice < 152) {
        call_begin(w, CALL_malloc);
        b->ptr = malloc(size);
    } else if (choice < 184) {
        if (!alloc_zeroed(w, b, size, detail)) return 0;
    } else if (choice < 232) {
        if (!alloc_new(w, b, size, detail)) return 0;
    } else if (choice < 240) {
        call_begin(w, CALL_realloc);
        b->ptr = realloc(NULL, size);
    } else if (choice < 244) {
        call_begin(w, CALL_reallocarray);
        b->ptr = reallocarray(NULL, 1, size);
    } else {
        if (!alloc_aligned(w, b, size, detail)) return 0;
    }
    if (__builtin_expect(b->ptr == NULL, 0)) return nomem(w, size, model_config.align_min, errno);
    block_adopt(w, b, r >> 40);
    return 1;
}

static inline void free_new(struct worker* w, struct block* b, uint64_t r) {
    unsigned variant = b->kind == KIND_NEW_ARRAY ? CXX_ARRAY : 0;
    unsigned form = (unsigned)(r & 7);
    if (b->aligned) variant |= CXX_ALIGNED;
    variant |= form < 4 ? CXX_SIZED : form == 4 ? CXX_NOTHROW : 0;
    call_begin(w, CALL_operator_delete);
    cxx_delete(variant, b->ptr, b->size, (size_t)1 << b->align_log2);
}

void entry_free(struct worker* w, struct block* b, uint64_t r) {
    int sentinel = 1 + (int)(r & 63);
    w->call = "the check before free";
    block_verify(b);
    shadow_release(b->ptr, b->filled, "free");
    r >>= 6;
    errno = sentinel;
    if (b->kind != KIND_MALLOC) {
        free_new(w, b, r);
    } else if (b->aligned == 0 && (r & 7) == 0 && free_sized_found != NULL) {
        call_begin(w, CALL_free_sized);
        free_sized_found(b->ptr, b->size);
    } else if (b->aligned == 2 && (r & 3) == 0 && free_aligned_sized_found != NULL) {
        call_begin(w, CALL_free_aligned_sized);
        free_aligned_sized_found(b->ptr, (size_t)1 << b->align_log2, b->size);
    } else {
        call_begin(w, CALL_free);
        free(b->ptr);
    }
    if (__builtin_expect(errno != sentinel, 0))
        model_fail("errno: %s of a block of %zu bytes: expected errno to stay %d, found %d", w->call, b->size,
                   sentinel, errno);
    w->live_bytes -= b->size;
    w->blocks_freed++;
    b->ptr = NULL;
}

void entry_realloc(struct worker* w, struct block* b, size_t size, uint64_t r) {
    unsigned char* p;
    w->call = "the check before realloc";
    block_verify(b);
    shadow_release(b->ptr, b->filled, "realloc");
    if ((r & 7) == 0) {
        size_t count = 1 + (size_t)((r >> 3) & 3);
        call_begin(w, CALL_reallocarray);
        if (size % count != 0) count = 1;
        p = reallocarray(b->ptr, count, size / count);
    } else {
        call_begin(w, CALL_realloc);
        p = realloc(b->ptr, size);
    }
    if (p == NULL && size == 0) { /* as glibc has it, this was a free */
        w->live_bytes -= b->size;
        w->blocks_freed++;
        b->ptr = NULL;
        return;
    }
    if (p == NULL) {
        nomem(w, size, model_config.align_min, errno);
        shadow_claim(b->ptr, b->filled, w->call);
        block_verify(b);
        return;
    }
    /* What was asked for survives; the rest of the usable size does so only while the block is. */
    size_t kept = b->size < size ? b->size : size;
    if (b->filled > b->size && size >= b->filled) kept = b->filled;
    block_verify_at(b, p, kept);
    w->live_bytes -= b->size;
    w->blocks_freed++;
    b->ptr = p;
    b->size = size;
    b->aligned = 0;
    b->align_log2 = (uint8_t)log2_floor(model_config.align_min);
    block_adopt(w, b, r >> 5);
}

void entry_usable(struct worker* w, struct block* b) {
    block_verify(b);
    size_t usable = usable_checked(w, b->ptr, b->size);
    if (usable < b->filled)
        model_fail("usable size: block %p of %zu bytes: expected at least %zu as before, found %zu",
                   (void*)b->ptr, b->size, b->filled, usable);
}

void entry_refused(struct worker* w, struct block* b, uint64_t r) {
    volatile size_t huge =
        (r & 8) != 0 ? SIZE_MAX - (size_t)(r >> 40) : (size_t)PTRDIFF_MAX + 1 + (size_t)(r >> 40);
    volatile size_t many = (size_t)1 << 33, bad_align = 24;
    void* p = NULL;
    int error = 0;
    call_begin(w, CALL_refused);
    errno = 0;
    switch (r & 7) {
    case 0:
        p = malloc(huge);
        break;
    case 1:
        p = calloc(many, many + 8);
        break;
    case 2:
        p = reallocarray(NULL, many, many);
        break;
    case 3:
        p = aligned_alloc(4096, huge & ~(size_t)4095);
        break;
    case 4:
        error = posix_memalign(&p, 64, huge);
        break;
    case 5:
        error = posix_memalign(&p, bad_align, 100) == EINVAL ? ENOMEM : 1;
        break;
    case 6:
        p = cxx_new(CXX_NOTHROW, huge, 0), errno = ENOMEM;
        break;
    default:
        p = b->ptr != NULL && b->kind == KIND_MALLOC ? realloc(b->ptr, huge) : malloc(huge);
    }
    if (error == 0) error = errno;
    if (p != NULL || error != ENOMEM)
        model_fail("refused: case %u of size %zu: expected NULL and ENOMEM, found %p and %d",
                   (unsigned)(r & 7), huge, p, error);
    if (b->ptr != NULL) block_verify(b);
}

void entry_trim(struct worker* w) {
    call_begin(w, CALL_malloc_trim);
    malloc_trim(0);
}
