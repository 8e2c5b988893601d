/* cases.c: one function for each way to misuse a heap, and the line that must follow.
 *
 * misuse.c runs one of them in a process of its own. A case first prints the line that it expects
 * (`expect_line`), since only it knows the pointer, then does the wrong thing. It does not know what the
 * allocator's answer was.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "misuse.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define NEIGHBOURS 64

typedef const struct misuse_case* self_t;

/* Where pointers pass so that the compiler cannot see the misuse coming. */
static void* volatile hidden;
static void* hide(void* p) {
    hidden = p;
    return hidden;
}

static void expect_line(self_t self, const void* p, size_t size) {
    char what[80];
    size_t n = 0;
    if (self->what == NULL) {
        char digits[24];
        unsigned count = 0;
        do digits[count++] = (char)('0' + size % 10);
        while ((size /= 10) != 0);
        memcpy(what, "size ", 5);
        for (n = 5; count > 0; n++) what[n] = digits[--count];
        strcpy(what + n, " does not belong to the block");
    }
    misuse_print(STDOUT_FILENO, "expect weir: %s: %s 0x%zx in %s; see docs/errors/%s.md\n", self->code,
                 self->what != NULL ? self->what : what, (size_t)(uintptr_t)p, self->call, self->code);
}

/* The wrong pointer goes to the call that the case names. */
static void call_with(self_t self, void* p) {
    expect_line(self, p, 0);
    if (strcmp(self->call, "free") == 0)
        free(p);
    else if (strcmp(self->call, "realloc") == 0)
        hidden = realloc(p, 100);
    else if (strcmp(self->call, "malloc_usable_size") == 0)
        (void)malloc_usable_size(p);
    else if (strcmp(self->call, "operator delete") == 0)
        cxx_delete(p);
    else if (strcmp(self->call, "free_sized") == 0)
        misuse_free_sized(p, self->size);
    else if (strcmp(self->call, "free_aligned_sized") == 0)
        misuse_free_aligned_sized(p, 16, self->size);
    else
        abort();
}

/* A block amid live neighbours of its size, so that whatever is beside it is a block as well. */
static char* blocks[NEIGHBOURS];
static char* block_amid(size_t size) {
    for (unsigned i = 0; i < NEIGHBOURS; i++) {
        blocks[i] = malloc(size);
        memset(blocks[i], 0x11, size);
    }
    return hide(blocks[NEIGHBOURS / 2]);
}

static void run_stack(self_t self) {
    char local[64] __attribute__((aligned(16)));
    call_with(self, hide(local + self->offset));
}

static _Alignas(16) char global[64];
static void run_global(self_t self) { call_with(self, hide(global + self->offset)); }
static void run_code(self_t self) { call_with(self, (void*)((uintptr_t)&run_global & ~(uintptr_t)15)); }
static void run_wild(self_t self) { call_with(self, (void*)(uintptr_t)self->offset); }

static void run_interior(self_t self) {
    char* p = self->size < MIB ? block_amid(self->size) : malloc(self->size);
    call_with(self, hide(p + self->offset));
}
static void run_before(self_t self) { call_with(self, hide(block_amid(self->size) - self->offset)); }

static void run_double(self_t self) {
    char* p = self->size < MIB ? block_amid(self->size) : malloc(self->size);
    p[0] = 1;
    free(hide(p));
    call_with(self, hide(p));
}

/* A block whose class has no other: it lies beside blocks of other classes. */
static char* block_alone(size_t size) {
    hidden = malloc(size / 2 + 600);
    char* p = malloc(size);
    hidden = malloc(size * 2);
    return p;
}
static void run_alone_interior(self_t self) { call_with(self, hide(block_alone(self->size) + self->offset)); }

static void run_alone_double(self_t self) {
    char* p = block_alone(self->size);
    free(hide(p));
    call_with(self, hide(p));
}

/* The next one of its class takes its place with the thread. */
static void run_alone_double_late(self_t self) {
    char* p = block_alone(self->size);
    char* other = malloc(self->size);
    free(hide(p));
    free(hide(other));
    call_with(self, hide(p));
}

static void run_alone_double_remote(self_t self) {
    char* p = block_alone(self->size);
    misuse_free_remote(hide(p));
    call_with(self, hide(p));
}

static void run_double_delete(self_t self) {
    char* p = cxx_new(self->size);
    cxx_delete(hide(p));
    call_with(self, hide(p));
}

static void run_double_after_frees(self_t self) {
    char* others[16];
    for (unsigned i = 0; i < 16; i++) others[i] = malloc(self->size);
    char* p = block_amid(self->size);
    free(hide(p));
    for (unsigned i = 0; i < 16; i++) free(hide(others[i]));
    call_with(self, hide(p));
}

static void run_double_after_allocs(self_t self) {
    char* p = block_amid(self->size);
    free(hide(p));
    for (unsigned i = 0; i < 200; i++) memset(hide(malloc(self->size * 2 + 16 + 8 * i)), 0x22, 16);
    call_with(self, hide(p));
}

static void run_double_remote_first(self_t self) {
    char* p = self->size < MIB ? block_amid(self->size) : malloc(self->size);
    misuse_free_remote(hide(p));
    call_with(self, hide(p));
}

static void* call_with_on_thread(void* arg) {
    void** pair = arg;
    call_with(pair[0], pair[1]);
    return NULL;
}

static void call_with_remote(self_t self, void* p) {
    pthread_t thread;
    void* pair[2] = {(void*)(uintptr_t)self, p};
    if (pthread_create(&thread, NULL, call_with_on_thread, pair) != 0) abort();
    pthread_join(thread, NULL);
}

static void run_double_remote_second(self_t self) {
    char* p = block_amid(self->size);
    free(hide(p));
    call_with_remote(self, hide(p));
}

static void run_double_two_threads(self_t self) {
    char* p = block_amid(self->size);
    misuse_free_remote(hide(p));
    call_with_remote(self, hide(p));
}

static void run_double_moved(self_t self) {
    char* p = block_amid(self->size);
    char* moved = realloc(hide(p), self->size * 20);
    if (moved == p) abort();
    call_with(self, hide(p));
}

/* size: what is asked for; offset: what delete is told. */
static void run_sized_delete(self_t self) {
    char* p = cxx_new(self->size);
    expect_line(self, p, self->offset);
    cxx_delete_sized(hide(p), self->offset);
}
static void run_sized_delete_aligned(self_t self) {
    char* p = cxx_new_aligned(self->size, 64);
    expect_line(self, p, self->offset);
    cxx_delete_sized_aligned(hide(p), self->offset, 64);
}
static void run_free_sized(self_t self) {
    char* p = malloc(self->size);
    expect_line(self, p, self->offset);
    misuse_free_sized(hide(p), self->offset);
}
static void run_free_aligned_sized(self_t self) {
    char* p = aligned_alloc(64, self->size);
    expect_line(self, p, self->offset);
    misuse_free_aligned_sized(hide(p), 64, self->offset);
}

/* Write `width` bytes at `offset` of a freed block of `size` bytes, then ask for such blocks.
 *
 * What the default mode owes depends on what the write can do: a link that now leads out of the block's
 * slab would steer a later malloc, and has to be noticed soon. The link is in one of the first two words;
 * a case with LATE_SOON overwrites both, or the upper bytes of the second, where weir has it. */
static void run_write(self_t self) {
    volatile char* p = block_amid(self->size);
    /* The list has more than the one block; a slab of which little is free would not be used again soon. */
    for (unsigned i = 0; i < NEIGHBOURS; i += 4)
        if (i != NEIGHBOURS / 2) free(hide(blocks[i]));
    free(hide((void*)(uintptr_t)p));
    expect_line(self, (void*)(uintptr_t)p, 0);
    for (size_t i = 0; i < self->width; i++) p[self->offset + i] ^= 0x41;
    for (unsigned i = 0; i < 1000; i++) hidden = malloc(self->size);
}

#define FOREIGN "invalid-free", "not a block of this heap"
#define INTERIOR "invalid-free", "not the start of a block"
#define TWICE "double-free", "already freed"
#define WRITTEN "corrupt-list", "a freed block was written to", "malloc"
#define SIZE "wrong-size", NULL

const struct misuse_case misuse_cases[] = {
    {"free-stack", run_stack, FOREIGN, "free", LATE_CALL, 0, 0, 0},
    {"free-stack-misaligned", run_stack, FOREIGN, "free", LATE_CALL, 0, 3, 0},
    {"free-global", run_global, FOREIGN, "free", LATE_CALL, 0, 0, 0},
    {"free-code", run_code, FOREIGN, "free", LATE_CALL, 0, 0, 0},
    {"free-wild-small", run_wild, FOREIGN, "free", LATE_CALL, 0, 0x10, 0},
    {"free-wild-user", run_wild, FOREIGN, "free", LATE_CALL, 0, 0x123456789ab0, 0},
    {"free-wild-kernel", run_wild, FOREIGN, "free", LATE_CALL, 0, 0xffffffff81000000, 0},
    {"free-wild-noncanonical", run_wild, FOREIGN, "free", LATE_CALL, 0, 0x4141414141414140, 0},
    {"realloc-stack", run_stack, FOREIGN, "realloc", LATE_CALL, 0, 0, 0},
    {"realloc-global", run_global, FOREIGN, "realloc", LATE_CALL, 0, 0, 0},
    {"realloc-wild", run_wild, FOREIGN, "realloc", LATE_CALL, 0, 0x123456789ab0, 0},
    {"usable-stack", run_stack, FOREIGN, "malloc_usable_size", LATE_CALL, 0, 0, 0},
    {"usable-wild", run_wild, FOREIGN, "malloc_usable_size", LATE_CALL, 0, 0x123456789ab0, 0},
    {"delete-stack", run_stack, FOREIGN, "operator delete", LATE_CALL, 0, 0, 0},
    {"delete-global", run_global, FOREIGN, "operator delete", LATE_CALL, 0, 0, 0},
    {"free_sized-stack", run_stack, FOREIGN, "free_sized", LATE_CALL, 64, 0, 0},
    {"free_aligned_sized-stack", run_stack, FOREIGN, "free_aligned_sized", LATE_CALL, 64, 0, 0},

    {"free-interior", run_interior, INTERIOR, "free", LATE_MAYBE, 64, 16, 0},
    {"free-misaligned", run_interior, INTERIOR, "free", LATE_MAYBE, 64, 8, 0},
    {"free-odd", run_interior, INTERIOR, "free", LATE_MAYBE, 64, 1, 0},
    {"free-past-end", run_interior, INTERIOR, "free", LATE_MAYBE, 40, 40, 0},
    {"free-last-byte", run_interior, INTERIOR, "free", LATE_MAYBE, 1000, 999, 0},
    {"free-before", run_before, INTERIOR, "free", LATE_MAYBE, 48, 16, 0},
    {"free-interior-large", run_interior, INTERIOR, "free", LATE_CALL, MIB, 4096, 0},
    {"free-interior-large-first-page", run_interior, INTERIOR, "free", LATE_CALL, MIB, 16, 0},
    {"free-interior-huge", run_interior, INTERIOR, "free", LATE_CALL, 64 * MIB, MIB, 0},
    {"realloc-interior", run_interior, INTERIOR, "realloc", LATE_MAYBE, 64, 16, 0},
    {"realloc-misaligned", run_interior, INTERIOR, "realloc", LATE_MAYBE, 64, 8, 0},
    {"realloc-interior-large", run_interior, INTERIOR, "realloc", LATE_CALL, MIB, 4096, 0},
    {"usable-interior", run_interior, INTERIOR, "malloc_usable_size", LATE_MAYBE, 64, 16, 0},
    {"delete-interior", run_interior, INTERIOR, "operator delete", LATE_MAYBE, 64, 16, 0},
    {"free_sized-interior", run_interior, INTERIOR, "free_sized", LATE_MAYBE, 64, 16, 0},

    {"free-interior-medium", run_alone_interior, INTERIOR, "free", LATE_CALL, 3000, 16, 0},
    {"free-interior-medium-unit", run_alone_interior, INTERIOR, "free", LATE_CALL, 30000, 4096, 0},
    {"realloc-interior-medium", run_alone_interior, INTERIOR, "realloc", LATE_CALL, 3000, 1024, 0},
    {"usable-interior-medium", run_alone_interior, INTERIOR, "malloc_usable_size", LATE_CALL, 3000, 1, 0},
    {"double-free-medium", run_alone_double, TWICE, "free", LATE_CALL, 3000, 0, 0},
    {"double-free-medium-32k", run_alone_double, TWICE, "free", LATE_CALL, 32768, 0, 0},
    {"double-free-medium-late", run_alone_double_late, TWICE, "free", LATE_CALL, 3000, 0, 0},
    {"double-free-medium-remote", run_alone_double_remote, TWICE, "free", LATE_CALL, 3000, 0, 0},
    {"double-realloc-medium", run_alone_double, TWICE, "realloc", LATE_CALL, 3000, 0, 0},
    {"double-usable-medium", run_alone_double, TWICE, "malloc_usable_size", LATE_CALL, 3000, 0, 0},
    {"double-free", run_double, TWICE, "free", LATE_SOON, 48, 0, 0},
    {"double-free-1k", run_double, TWICE, "free", LATE_SOON, 1000, 0, 0},
    {"double-free-32k", run_double, TWICE, "free", LATE_SOON, 32768, 0, 0},
    {"double-free-large", run_double, TWICE, "free", LATE_CALL, MIB, 0, 0},
    {"double-free-huge", run_double, TWICE, "free", LATE_CALL, 64 * MIB, 0, 0},
    {"double-free-after-frees", run_double_after_frees, TWICE, "free", LATE_SOON, 48, 0, 0},
    {"double-free-after-allocs", run_double_after_allocs, TWICE, "free", LATE_SOON, 48, 0, 0},
    {"double-free-remote-first", run_double_remote_first, TWICE, "free", LATE_SOON, 48, 0, 0},
    {"double-free-remote-second", run_double_remote_second, TWICE, "free", LATE_SOON, 48, 0, 0},
    {"double-free-two-threads", run_double_two_threads, TWICE, "free", LATE_SOON, 48, 0, 0},
    {"double-free-large-remote", run_double_remote_first, TWICE, "free", LATE_CALL, MIB, 0, 0},
    {"double-free-moved", run_double_moved, TWICE, "free", LATE_SOON, 48, 0, 0},
    {"double-realloc", run_double, TWICE, "realloc", LATE_MAYBE, 48, 0, 0},
    {"double-realloc-large", run_double, TWICE, "realloc", LATE_CALL, MIB, 0, 0},
    {"double-usable", run_double, TWICE, "malloc_usable_size", LATE_MAYBE, 48, 0, 0},
    {"double-delete", run_double_delete, TWICE, "operator delete", LATE_SOON, 48, 0, 0},
    {"double-free_sized", run_double, TWICE, "free_sized", LATE_SOON, 48, 0, 0},
    {"double-free_aligned_sized", run_double, TWICE, "free_aligned_sized", LATE_SOON, 48, 0, 0},

    {"size-smaller", run_sized_delete, SIZE, "operator delete", LATE_CALL, 200, 100, 0},
    {"size-larger", run_sized_delete, SIZE, "operator delete", LATE_CALL, 200, 400, 0},
    {"size-small-as-large", run_sized_delete, SIZE, "operator delete", LATE_CALL, 200, MIB, 0},
    {"size-large-as-small", run_sized_delete, SIZE, "operator delete", LATE_CALL, MIB, 200, 0},
    {"size-large-as-larger", run_sized_delete, SIZE, "operator delete", LATE_CALL, MIB, 4 * MIB, 0},
    {"size-absurd", run_sized_delete, SIZE, "operator delete", LATE_CALL, 200, SIZE_MAX, 0},
    {"size-aligned", run_sized_delete_aligned, SIZE, "operator delete", LATE_CALL, 192, 640, 0},
    {"free_sized-smaller", run_free_sized, SIZE, "free_sized", LATE_CALL, 200, 100, 0},
    {"free_sized-larger", run_free_sized, SIZE, "free_sized", LATE_CALL, 200, 400, 0},
    {"free_sized-small-as-large", run_free_sized, SIZE, "free_sized", LATE_CALL, 200, MIB, 0},
    {"free_sized-large-as-small", run_free_sized, SIZE, "free_sized", LATE_CALL, MIB, 200, 0},
    {"free_aligned_sized-larger", run_free_aligned_sized, SIZE, "free_aligned_sized", LATE_CALL, 192, 640, 0},

    {"write-1-at-0", run_write, WRITTEN, LATE_MAYBE, 64, 0, 1},
    {"write-2-at-0", run_write, WRITTEN, LATE_MAYBE, 64, 0, 2},
    {"write-4-at-0", run_write, WRITTEN, LATE_MAYBE, 64, 0, 4},
    {"write-8-at-0", run_write, WRITTEN, LATE_MAYBE, 64, 0, 8},
    {"write-1-at-7", run_write, WRITTEN, LATE_MAYBE, 64, 7, 1},
    {"write-1-at-8", run_write, WRITTEN, LATE_MAYBE, 64, 8, 1},
    {"write-2-at-8", run_write, WRITTEN, LATE_MAYBE, 64, 8, 2},
    {"write-4-at-8", run_write, WRITTEN, LATE_MAYBE, 64, 8, 4},
    {"write-8-at-8", run_write, WRITTEN, LATE_SOON, 64, 8, 8},
    {"write-1-at-15", run_write, WRITTEN, LATE_SOON, 64, 15, 1},
    {"write-2-at-14", run_write, WRITTEN, LATE_SOON, 64, 14, 2},
    {"write-16-at-0", run_write, WRITTEN, LATE_SOON, 64, 0, 16},
    {"write-64-at-0", run_write, WRITTEN, LATE_SOON, 64, 0, 64},
    {"write-8-at-16", run_write, WRITTEN, LATE_MAYBE, 64, 16, 8},
    {"write-4-at-40", run_write, WRITTEN, LATE_MAYBE, 64, 40, 4},
    {"write-1-at-63", run_write, WRITTEN, LATE_MAYBE, 64, 63, 1},
    {"write-8-at-8-of-16", run_write, WRITTEN, LATE_SOON, 16, 8, 8},
    {"write-16-at-0-of-1024", run_write, WRITTEN, LATE_SOON, 1024, 0, 16},
    {"write-64-at-512-of-1024", run_write, WRITTEN, LATE_MAYBE, 1024, 512, 64},
    {"write-1-at-1023-of-1024", run_write, WRITTEN, LATE_MAYBE, 1024, 1023, 1},
    {"write-16-at-0-of-2048", run_write, WRITTEN, LATE_MAYBE, 2048, 0, 16},
    {"write-16-at-0-of-8192", run_write, WRITTEN, LATE_MAYBE, 8192, 0, 16},
};
const unsigned misuse_case_count = sizeof misuse_cases / sizeof misuse_cases[0];
