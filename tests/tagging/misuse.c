/* misuse.c: a program that misuses one block in one way, with tagging on.
 *
 *   misuse --list    the cases: `NAME ENDS`; ENDS: what the report is made by: an access, a call, or none
 *   misuse CASE      do it; stdout: the line to expect on stderr, then `survived` if it came to that
 *
 * misuse.py calls it, with an allocator preloaded. It knows the form of the report, and of the allocator that
 * blocks are of 16 byte granules, that up to 64 KiB they have tags, and that larger ones lie between pages
 * that may not be touched. Exits with 3 where what it needs for a case did not come about.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "tags.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <weir/pool.h>

void* cxx_new(size_t size) __asm__("_Znwm");
void cxx_delete_sized(void* p, size_t size) __asm__("_ZdlPvm");

struct misuse {
    const char* name;
    const char* ends;
    void (*run)(const struct misuse* self);
    size_t size;      /* asked for */
    ptrdiff_t offset; /* bytes past the end, or before the start where negative; or into the block */
};
typedef const struct misuse* self_t;

enum { NEIGHBOURS = 64, NEIGHBOURS_SMALL = 2048, SMALL = 256, REUSE_MAX = 100000 };
static char* blocks[NEIGHBOURS_SMALL];
static volatile char sink;
static const char again[] = ", which was given out again";

/* ---- what must be reported */

static void expect_tags(const volatile char* at) {
    say("detail weir:   pointer has tag %u, memory has tag %u, at 0x%zx\n", tag_of(at), tag_at(at),
        (size_t)address_of(at));
}
/* `behind`: what follows the block's size. */
static void expect_block(const char* code, const char* what, const char* block, size_t usable,
                         const char* behind, const volatile char* at) {
    say("expect weir: %s: %s 0x%zx of %zu bytes%s; see docs/errors/%s.md\n", code, what,
        (size_t)address_of(block), usable, behind, code);
    expect_tags(at);
}
static void expect_access(const char* code, const char* what, char* block, const volatile char* at) {
    expect_block(code, what, block, malloc_usable_size(block), "", at);
}
/* An access so far away that nobody can know the block that was meant. */
static void expect_far(const volatile char* at) {
    say("expect weir: tag-\n");
    expect_tags(at);
}
static void expect_fence(const char* code, const char* what, const char* block, size_t usable) {
    say("expect weir: %s: %s 0x%zx of %zu bytes; see docs/errors/%s.md\n", code, what,
        (size_t)address_of(block), usable, code);
}
/* A call names the pointer as it was given, with its tag. */
static void expect_call(const char* code, const char* what, const char* p, const char* call) {
    say("expect weir: %s: %s 0x%zx in %s; see docs/errors/%s.md\n", code, what, (size_t)address_of(p), call,
        code);
}
/* Free, realloc and the like of a pointer that was the block's once. */
static void expect_stale(const char* p, const char* call) {
    expect_call("tag-mismatch", "the pointer's tag is not the block's", p, call);
}
static void expect_none(void) { say("expect\n"); }

static const char* wording(char* line, size_t bytes, const char* verb, size_t count, const char* where) {
    snprintf(line, bytes, "%s %zu bytes %s block", verb, count, where);
    return line;
}

/* ---- the blocks */

/* So many that 4096 bytes to either side of the one in the middle are blocks. */
static unsigned neighbours(size_t size) { return size <= SMALL ? NEIGHBOURS_SMALL : NEIGHBOURS; }

/* A block amid live neighbours of its size. */
static char* block_amid(size_t size) {
    for (unsigned i = 0; i < neighbours(size); i++) {
        blocks[i] = malloc(size);
        memset(blocks[i], 0x11, size);
    }
    return hide(blocks[neighbours(size) / 2]);
}

/* One of them that has another tag than the memory at `distance` from its start, and than the block beyond:
 * a report takes the nearest block with the pointer's tag for the one that was meant. */
static char* block_apart(size_t size, ptrdiff_t distance) {
    unsigned count = neighbours(size);
    ptrdiff_t usable = (ptrdiff_t)malloc_usable_size(block_amid(size));
    for (unsigned i = count * 3 / 8; i < count * 5 / 8; i++) {
        char* at = blocks[i] + distance;
        char* beyond = at + (distance < 0 ? -usable : usable);
        if (tag_of(blocks[i]) != tag_at(at) && tag_of(blocks[i]) != tag_at(beyond)) return hide(blocks[i]);
    }
    _exit(3);
}

/* An aligned block that is not the first of its slab. */
static char* block_aligned(size_t size) {
    for (unsigned i = 0; i < NEIGHBOURS; i++) blocks[i] = memalign(256, size);
    for (unsigned i = 0; i < NEIGHBOURS; i++)
        if (address_of(blocks[i]) % 65536 >= 4096) return hide(blocks[i]);
    _exit(3);
}

/* Allocates until the place of a freed block is given out again. A slab of which little is free may wait, so
 * that more of its blocks go first; none beside the old one. */
static char* block_reused(const char* old, size_t size) {
    for (unsigned i = 0; i < neighbours(size); i += 4)
        if (i != neighbours(size) / 2) free(blocks[i]);
    for (unsigned i = 0; i < REUSE_MAX; i++) {
        char* p = malloc(size);
        if (address_of(p) == address_of(old)) return p;
    }
    _exit(3);
}

/* ---- accesses beside a block */

static void run_overflow(self_t self) {
    char line[80];
    size_t usable = malloc_usable_size(hide(malloc(self->size)));
    char* p = block_apart(self->size, (ptrdiff_t)usable + self->offset - 1);
    volatile char* at = p + usable + self->offset - 1;
    wording(line, sizeof line, "write", (size_t)self->offset - 1, "behind the end of");
    if ((size_t)self->offset > usable)
        expect_far(at);
    else
        expect_access("tag-overflow", line, p, at);
    *at = 1;
}
static void run_underflow(self_t self) {
    char line[80];
    char* p = block_apart(self->size, self->offset);
    volatile char* at = p + self->offset;
    wording(line, sizeof line, "read", (size_t)-self->offset, "before");
    if ((size_t)-self->offset > malloc_usable_size(p))
        expect_far(at);
    else
        expect_access("tag-underflow", line, p, at);
    sink = *at;
}
/* What nobody can catch: behind what was asked for, but in the last granule. */
static void run_within_granule(self_t self) {
    char* p = block_amid(self->size);
    expect_none();
    for (size_t i = self->size; i < (self->size + 15) / 16 * 16; i++) *(volatile char*)(p + i) = 1;
    free(p);
}
static void run_usable_edge(self_t self) {
    char* p = block_amid(self->size);
    size_t usable = malloc_usable_size(p);
    p[0] = p[usable - 1] = 1;
    volatile char* at = p + usable;
    expect_access("tag-overflow", "write 0 bytes behind the end of block", p, at);
    *at = 1;
}
static void run_memalign_overflow(self_t self) {
    char* p = block_aligned(self->size);
    size_t usable = malloc_usable_size(p);
    memset(p, 1, usable);
    volatile char* at = p + usable;
    if (tag_at(at) == tag_of(p)) _exit(3);
    expect_access("tag-overflow", "write 0 bytes behind the end of block", p, at);
    *at = 1;
}
static void run_memalign_underflow(self_t self) {
    char* p = block_aligned(self->size);
    memset(p, 1, self->size);
    volatile char* at = p - 1;
    if (tag_at(at) == tag_of(p)) _exit(3);
    expect_access("tag-underflow", "write 1 bytes before block", p, at);
    *at = 1;
}

/* ---- blocks above 64 KiB, between pages that may not be touched */

static void run_large_overflow(self_t self) {
    char line[80];
    char* p = hide(malloc(self->size));
    size_t usable = malloc_usable_size(p);
    memset(p, 1, usable);
    expect_fence("tag-overflow",
                 wording(line, sizeof line, "write", (size_t)self->offset - 1, "behind the end of"), p,
                 usable);
    *(volatile char*)(p + usable + self->offset - 1) = 1;
}
static void run_large_underflow(self_t self) {
    char line[80];
    char* p = hide(malloc(self->size));
    expect_fence("tag-underflow", wording(line, sizeof line, "read", (size_t)-self->offset, "before"), p,
                 malloc_usable_size(p));
    sink = *(volatile char*)(p + self->offset);
}

/* The last one of its thread stays, inaccessible; what is larger than 1 MiB is memory of nobody's. */
static void run_large_freed(self_t self) {
    char line[120];
    char* p = hide(malloc(self->size));
    size_t usable = malloc_usable_size(p);
    free(p);
    char* at = p + self->offset;
    snprintf(line, sizeof line, "write at byte %zu of freed block", (size_t)self->offset);
    if (self->size <= 1048576)
        expect_fence("tag-use-after-free", line, p, usable);
    else
        say("expect weir: tag-use-after-free: write at 0x%zx, where no block is any more; see "
            "docs/errors/tag-use-after-free.md\n",
            (size_t)address_of(at));
    *(volatile char*)at = 1;
}

static void expect_zero(const char* p, size_t from, size_t end) {
    for (size_t i = from; i < end; i++)
        if (p[i] != 0) say("byte %zu of calloc's block is not zero\n", i), _exit(3);
}
/* Where the program goes on, what it wrote is no part of a block that is to be zero. */
static void run_large_freed_zeroed(self_t self) {
    run_large_freed(self);
    expect_zero(calloc(1, self->size), 0, self->size);
}
static void run_large_shrunk_zeroed(self_t self) {
    size_t rest = (size_t)1 << 20;
    char* p = hide(malloc(self->size + rest));
    memset(p, 1, self->size + rest);
    p = hide(realloc(p, self->size));
    say("expect weir: tag-use-after-free\n");
    *(volatile char*)(p + self->size + self->offset) = 5;
    size_t bytes = rest / 4 * 3;
    expect_zero(calloc(1, bytes), 0, bytes);
}

/* ---- freed blocks */

static void run_freed(self_t self) {
    char line[80];
    char* p = block_amid(self->size);
    size_t usable = malloc_usable_size(p);
    free(p);
    snprintf(line, sizeof line, "write at byte %zu of freed block", (size_t)self->offset);
    expect_block("tag-use-after-free", line, p, usable, "", p + self->offset);
    *(volatile char*)(p + self->offset) = 1;
}
static void run_freed_read(self_t self) {
    char line[80];
    char* p = block_amid(self->size);
    size_t usable = malloc_usable_size(p);
    free(p);
    snprintf(line, sizeof line, "read at byte %zu of freed block", (size_t)self->offset);
    expect_block("tag-use-after-free", line, p, usable, "", p + self->offset);
    sink = *(volatile char*)(p + self->offset);
}
/* A handler of the program that returns from the same fault three times: it is told once. */
static void handler_of_mine(int number, siginfo_t* info, void* context) {
    static int calls;
    (void)context;
    if (++calls == 3 || info->si_code == SEGV_MTEAERR) signal(number, SIG_DFL);
    if (info->si_code == SEGV_MTEAERR) raise(number);
}
static void run_freed_handled(self_t self) {
    struct sigaction action = {.sa_sigaction = handler_of_mine, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    if (self->size > 65536)
        run_large_freed(self);
    else
        run_freed(self);
}
/* A handler of another signal that reads a freed block, again and again, while the program works: told late,
 * it may be told anywhere, also where the handler returns. */
static char* volatile handler_block;
static volatile unsigned handler_calls;
static void handler_reads(int number) {
    (void)number;
    sink = *(volatile char*)handler_block;
    handler_calls++;
}
static void run_freed_in_handler(self_t self) {
    const struct itimerval often = {{0, 1000}, {0, 1000}};
    handler_block = block_amid(self->size);
    size_t usable = malloc_usable_size(handler_block);
    free(handler_block);
    expect_block("tag-use-after-free", "read at byte 0 of freed block", handler_block, usable, "",
                 handler_block);
    signal(SIGPROF, handler_reads);
    setitimer(ITIMER_PROF, &often, NULL);
    while (handler_calls < 300) {
        char* p = malloc(500);
        memset(p, 1, 500);
        free(p);
    }
    signal(SIGPROF, SIG_IGN);
}
static void* thread_free(void* p) {
    free(p);
    return NULL;
}
static void run_freed_remote(self_t self) {
    pthread_t thread;
    char* p = block_amid(self->size);
    size_t usable = malloc_usable_size(p);
    if (pthread_create(&thread, NULL, thread_free, p) != 0) _exit(4);
    pthread_join(thread, NULL);
    expect_block("tag-use-after-free", "write at byte 0 of freed block", p, usable, "", p);
    *(volatile char*)p = 1;
}
static void run_reused(self_t self) {
    char line[80];
    char* p = block_amid(self->size);
    free(p);
    char* other = block_reused(p, self->size);
    memset(other, 2, self->size);
    snprintf(line, sizeof line, "write at byte %zu of block", (size_t)self->offset);
    expect_block("tag-use-after-free", line, other, malloc_usable_size(other), again, p + self->offset);
    *(volatile char*)(p + self->offset) = 1;
}
static void run_double_free(self_t self) {
    char* p = block_amid(self->size);
    free(p);
    expect_call("double-free", "already freed", p, "free");
    free(p);
}
static void run_stale_free(self_t self) {
    char* p = block_amid(self->size);
    free(p);
    (void)block_reused(p, self->size);
    expect_stale(p, "free");
    free(p);
}
/* A pointer that lost its tag: cast to an integer of 56 bits, say. */
static void run_untagged_free(self_t self) {
    char* p = hide((void*)address_of(block_amid(self->size)));
    expect_stale(p, "free");
    free(p);
}
/* A pointer with something of the program's own in the half of the top byte that the processor does not
 * compare. */
static char* foreign_byte(const char* p) { return hide((void*)((uintptr_t)p ^ (uintptr_t)5 << 60)); }
static void run_foreign_free(self_t self) {
    char* p = foreign_byte(block_amid(self->size));
    *(volatile char*)p = 1; /* which is no mistake */
    expect_stale(p, "free");
    free(p);
}
static void run_foreign_usable(self_t self) {
    char* p = foreign_byte(block_amid(self->size));
    expect_stale(p, "malloc_usable_size");
    (void)malloc_usable_size(p);
}
/* Memory of a live block that the program gives back to the kernel itself: its tags go with it. */
static void run_given_back(self_t self) {
    char* p = hide(memalign(4096, self->size));
    memset(p, 1, self->size);
    size_t usable = malloc_usable_size(p);
    if (madvise((void*)address_of(p), self->size, MADV_DONTNEED) != 0) _exit(3);
    expect_block("tag-mismatch", "write at byte 5000 of block", p, usable, "", p + 5000);
    *(volatile char*)(p + 5000) = 1;
}
static void run_freed_usable(self_t self) {
    char* p = block_amid(self->size);
    free(p);
    expect_call("double-free", "already freed", p, "malloc_usable_size");
    (void)malloc_usable_size(p);
}
static void run_stale_usable(self_t self) {
    char* p = block_amid(self->size);
    free(p);
    (void)block_reused(p, self->size);
    expect_stale(p, "malloc_usable_size");
    (void)malloc_usable_size(p);
}
static void run_wrong_size(self_t self) {
    char what[80];
    char* p = hide(cxx_new(self->size));
    snprintf(what, sizeof what, "size %zu does not belong to the block", (size_t)self->offset);
    expect_call("wrong-size", what, p, "operator delete");
    cxx_delete_sized(p, (size_t)self->offset);
}

/* ---- realloc: to `offset` bytes */

static void run_realloc_moved(self_t self) {
    char* p = block_amid(self->size);
    size_t usable = malloc_usable_size(p);
    size_t same = self->size < (size_t)self->offset ? self->size : (size_t)self->offset;
    char* moved = hide(realloc(p, (size_t)self->offset));
    if (address_of(moved) == address_of(p)) _exit(3);
    for (size_t i = 0; i < same; i++)
        if (moved[i] != 0x11) _exit(3);
    memset(moved, 3, (size_t)self->offset);
    expect_block("tag-use-after-free", "read at byte 1 of freed block", p, usable, "", p + 1);
    sink = *(volatile char*)(p + 1);
}
/* It stays: the old pointer is the new one, and all of the block can be used through it. */
static void run_realloc_stays(self_t self) {
    char* p = block_amid(self->size);
    char* stayed = hide(realloc(p, (size_t)self->offset));
    if (stayed != p) _exit(3);
    memset(p, 4, malloc_usable_size(p));
    expect_none();
    free(stayed);
}
static void run_realloc_freed(self_t self) {
    char* p = block_amid(self->size);
    free(p);
    expect_call("double-free", "already freed", p, "realloc");
    (void)hide(realloc(p, (size_t)self->offset));
}
static void run_realloc_stale(self_t self) {
    char* p = block_amid(self->size);
    free(p);
    (void)block_reused(p, self->size);
    expect_stale(p, "realloc");
    (void)hide(realloc(p, (size_t)self->offset));
}

/* ---- pools */

static struct pool_calls {
    struct weir_pool* (*create)(const char* name, size_t size, size_t align, unsigned flags);
    void* (*alloc)(struct weir_pool* pool);
    void (*free)(struct weir_pool* pool, void* object);
} pools;

static void pools_find(void) {
    void* symbols[] = {dlsym(RTLD_DEFAULT, "weir_pool_create"), dlsym(RTLD_DEFAULT, "weir_pool_alloc"),
                       dlsym(RTLD_DEFAULT, "weir_pool_free")};
    memcpy(&pools.create, &symbols[0], sizeof(void*));
    memcpy(&pools.alloc, &symbols[1], sizeof(void*));
    memcpy(&pools.free, &symbols[2], sizeof(void*));
}
static struct weir_pool* pool_filled(size_t size) {
    pools_find();
    if (pools.create == NULL || pools.alloc == NULL || pools.free == NULL) _exit(3);
    struct weir_pool* pool = pools.create("misuse", size, 0, 0);
    for (unsigned i = 0; i < NEIGHBOURS; i++) {
        blocks[i] = pools.alloc(pool);
        memset(blocks[i], 0x11, size);
    }
    return pool;
}
static void run_pool_freed(self_t self) {
    char line[80];
    struct weir_pool* pool = pool_filled(self->size);
    char* p = hide(blocks[NEIGHBOURS / 2]);
    size_t usable = malloc_usable_size(p);
    pools.free(pool, p);
    snprintf(line, sizeof line, "write at byte %zu of block", (size_t)self->offset);
    expect_block("tag-use-after-free", line, p, usable, again, p + self->offset);
    *(volatile char*)(p + self->offset) = 1;
}
static void run_pool_reused(self_t self) {
    struct weir_pool* pool = pool_filled(self->size);
    char* p = hide(blocks[NEIGHBOURS / 2]);
    pools.free(pool, p);
    char* other = pools.alloc(pool);
    if (address_of(other) != address_of(p)) _exit(3);
    memset(other, 5, self->size);
    expect_block("tag-use-after-free", "write at byte 0 of block", other, malloc_usable_size(other), again,
                 p);
    *(volatile char*)p = 1;
}
static void run_pool_twice(self_t self) {
    struct weir_pool* pool = pool_filled(self->size);
    char* p = hide(blocks[NEIGHBOURS / 2]);
    pools.free(pool, p);
    expect_stale(p, "weir_pool_free");
    pools.free(pool, p);
}
static void run_pool_overflow(self_t self) {
    (void)pool_filled(self->size);
    char* p = hide(blocks[NEIGHBOURS / 2]);
    volatile char* at = p + malloc_usable_size(p);
    if (tag_at(at) == tag_of(p)) _exit(3);
    expect_access("tag-overflow", "write 0 bytes behind the end of block", p, at);
    *at = 1;
}

static const struct misuse cases[] = {
    {"overflow-1@16", "access", run_overflow, 16, 1},
    {"overflow-16@16", "access", run_overflow, 16, 16},
    {"overflow-4096@16", "access", run_overflow, 16, 4096},
    {"underflow-1@16", "access", run_underflow, 16, -1},
    {"underflow-16@16", "access", run_underflow, 16, -16},
    {"underflow-4096@16", "access", run_underflow, 16, -4096},
    {"overflow-1@112", "access", run_overflow, 112, 1},
    {"overflow-16@112", "access", run_overflow, 112, 16},
    {"overflow-4096@112", "access", run_overflow, 112, 4096},
    {"underflow-1@112", "access", run_underflow, 112, -1},
    {"underflow-16@112", "access", run_underflow, 112, -16},
    {"underflow-4096@112", "access", run_underflow, 112, -4096},
    {"overflow-1@1024", "access", run_overflow, 1024, 1},
    {"overflow-16@1024", "access", run_overflow, 1024, 16},
    {"overflow-4096@1024", "access", run_overflow, 1024, 4096},
    {"underflow-1@1024", "access", run_underflow, 1024, -1},
    {"underflow-16@1024", "access", run_underflow, 1024, -16},
    {"underflow-4096@1024", "access", run_underflow, 1024, -4096},
    {"overflow-1@5000", "access", run_overflow, 5000, 1},
    {"overflow-16@5000", "access", run_overflow, 5000, 16},
    {"overflow-4096@5000", "access", run_overflow, 5000, 4096},
    {"underflow-1@5000", "access", run_underflow, 5000, -1},
    {"underflow-16@5000", "access", run_underflow, 5000, -16},
    {"underflow-4096@5000", "access", run_underflow, 5000, -4096},
    {"overflow-1@20000", "access", run_overflow, 20000, 1},
    {"overflow-16@20000", "access", run_overflow, 20000, 16},
    {"overflow-4096@20000", "access", run_overflow, 20000, 4096},
    {"underflow-1@20000", "access", run_underflow, 20000, -1},
    {"underflow-16@20000", "access", run_underflow, 20000, -16},
    {"underflow-4096@20000", "access", run_underflow, 20000, -4096},
    {"overflow-1@100000", "access", run_large_overflow, 100000, 1},
    {"overflow-16@100000", "access", run_large_overflow, 100000, 16},
    {"overflow-4096@100000", "access", run_large_overflow, 100000, 4096},
    {"underflow-1@100000", "access", run_large_underflow, 100000, -1},
    {"underflow-16@100000", "access", run_large_underflow, 100000, -16},
    {"underflow-4096@100000", "access", run_large_underflow, 100000, -4096},
    {"overflow-1@3000000", "access", run_large_overflow, 3000000, 1},
    {"overflow-16@3000000", "access", run_large_overflow, 3000000, 16},
    {"overflow-4096@3000000", "access", run_large_overflow, 3000000, 4096},
    {"underflow-1@3000000", "access", run_large_underflow, 3000000, -1},
    {"underflow-16@3000000", "access", run_large_underflow, 3000000, -16},
    {"underflow-4096@3000000", "access", run_large_underflow, 3000000, -4096},
    {"freed-write@100000", "access", run_large_freed, 100000, 8},
    {"freed-write@3000000", "access", run_large_freed, 3000000, 8},
    {"freed-zeroed@3000000", "access", run_large_freed_zeroed, 3000000, 5000},
    {"shrunk-zeroed@2097152", "access", run_large_shrunk_zeroed, 2097152, 200000},
    {"within-granule@100", "none", run_within_granule, 100, 0},
    {"within-granule@5001", "none", run_within_granule, 5001, 0},
    {"usable-edge@100", "access", run_usable_edge, 100, 0},
    {"usable-edge@5000", "access", run_usable_edge, 5000, 0},
    {"memalign-overflow@100", "access", run_memalign_overflow, 100, 0},
    {"memalign-underflow@100", "access", run_memalign_underflow, 100, 0},
    {"memalign-overflow@600", "access", run_memalign_overflow, 600, 0},
    {"memalign-underflow@600", "access", run_memalign_underflow, 600, 0},
    {"memalign-overflow@3000", "access", run_memalign_overflow, 3000, 0},
    {"memalign-underflow@3000", "access", run_memalign_underflow, 3000, 0},
    {"double-free@100000", "call", run_double_free, 100000, 0},
    {"double-free@348160", "call", run_double_free, 348160, 0},
    {"double-free@3000000", "call", run_double_free, 3000000, 0},
    {"freed-write@16", "access", run_freed, 16, 0},
    {"freed-read@16", "access", run_freed_read, 16, 15},
    {"freed-in-handler@112", "access", run_freed_in_handler, 112, 0},
    {"freed-handled@16", "access", run_freed_handled, 16, 0},
    {"freed-handled@100000", "access", run_freed_handled, 100000, 0},
    {"freed-remote@16", "access", run_freed_remote, 16, 0},
    {"reused@16", "access", run_reused, 16, 8},
    {"double-free@16", "call", run_double_free, 16, 0},
    {"stale-free@16", "call", run_stale_free, 16, 0},
    {"untagged-free@16", "call", run_untagged_free, 16, 0},
    {"freed-write@112", "access", run_freed, 112, 0},
    {"freed-read@112", "access", run_freed_read, 112, 111},
    {"freed-remote@112", "access", run_freed_remote, 112, 0},
    {"reused@112", "access", run_reused, 112, 8},
    {"double-free@112", "call", run_double_free, 112, 0},
    {"stale-free@112", "call", run_stale_free, 112, 0},
    {"untagged-free@112", "call", run_untagged_free, 112, 0},
    {"freed-write@1024", "access", run_freed, 1024, 0},
    {"freed-read@1024", "access", run_freed_read, 1024, 1023},
    {"freed-remote@1024", "access", run_freed_remote, 1024, 0},
    {"reused@1024", "access", run_reused, 1024, 8},
    {"double-free@1024", "call", run_double_free, 1024, 0},
    {"stale-free@1024", "call", run_stale_free, 1024, 0},
    {"untagged-free@1024", "call", run_untagged_free, 1024, 0},
    {"freed-write@5000", "access", run_freed, 5000, 0},
    {"freed-read@5000", "access", run_freed_read, 5000, 4999},
    {"freed-remote@5000", "access", run_freed_remote, 5000, 0},
    {"reused@5000", "access", run_reused, 5000, 8},
    {"double-free@5000", "call", run_double_free, 5000, 0},
    {"stale-free@5000", "call", run_stale_free, 5000, 0},
    {"untagged-free@5000", "call", run_untagged_free, 5000, 0},
    {"given-back@16384", "access", run_given_back, 16384, 0},
    {"given-back@65536", "access", run_given_back, 65536, 0},
    {"foreign-free@112", "call", run_foreign_free, 112, 0},
    {"foreign-free@1024", "call", run_foreign_free, 1024, 0},
    {"foreign-free@5000", "call", run_foreign_free, 5000, 0},
    {"foreign-free@100000", "call", run_foreign_free, 100000, 0},
    {"foreign-usable@112", "call", run_foreign_usable, 112, 0},
    {"foreign-usable@100000", "call", run_foreign_usable, 100000, 0},
    {"freed-usable@112", "call", run_freed_usable, 112, 0},
    {"stale-usable@112", "call", run_stale_usable, 112, 0},
    {"wrong-size@112", "call", run_wrong_size, 112, 500},
    {"wrong-size@5000", "call", run_wrong_size, 5000, 16},
    {"realloc-grows@112", "access", run_realloc_moved, 112, 500},
    {"realloc-shrinks@1024", "access", run_realloc_moved, 1024, 100},
    {"realloc-moves@5000", "access", run_realloc_moved, 5000, 60000},
    {"realloc-to-large@1024", "access", run_realloc_moved, 1024, 200000},
    {"realloc-stays@100", "none", run_realloc_stays, 100, 110},
    {"realloc-stays@5000", "none", run_realloc_stays, 5000, 4990},
    {"realloc-freed@112", "call", run_realloc_freed, 112, 500},
    {"realloc-stale@112", "call", run_realloc_stale, 112, 500},
    {"pool-freed@64", "access", run_pool_freed, 64, 8},
    {"pool-reused@64", "access", run_pool_reused, 64, 0},
    {"pool-twice@64", "call", run_pool_twice, 64, 0},
    {"pool-overflow@64", "access", run_pool_overflow, 64, 0},
    {"pool-freed@1000", "access", run_pool_freed, 1000, 8},
    {"pool-reused@1000", "access", run_pool_reused, 1000, 0},
    {"pool-twice@1000", "call", run_pool_twice, 1000, 0},
    {"pool-overflow@1000", "access", run_pool_overflow, 1000, 0},
    {"pool-freed@3000", "access", run_pool_freed, 3000, 8},
    {"pool-reused@3000", "access", run_pool_reused, 3000, 0},
    {"pool-twice@3000", "call", run_pool_twice, 3000, 0},
    {"pool-overflow@3000", "access", run_pool_overflow, 3000, 0},
};

int main(int argc, char** argv) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(argv[1], "--list") == 0) say("%s %s\n", cases[i].name, cases[i].ends);
        if (strcmp(argv[1], cases[i].name) != 0) continue;
        cases[i].run(&cases[i]);
        (void)getppid(); /* the kernel says here what it saw when tags are compared late */
        say("survived\n");
    }
    return 0;
}
