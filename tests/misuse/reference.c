/* reference.c: a slow and simple malloc that notices every misuse at the call and says so in weir's
 * words: the yardstick that shows that the tests can pass, and, with REFERENCE_BREAK=CODE, which leaves
 * one check out, that they can fail.
 *
 * For run.py and rates.py alone, by preload. It knows the form of the report; not how weir finds out.
 *
 *   side[(p - arena) / 16] = state of the block that starts at p: 0 none, else size class and FREED bit
 *   a freed block holds FILL in every byte; whoever gets it next checks that
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA_BYTES ((size_t)1 << 34)
#define FILL 0xd5
#define FILL_MAX 16384u
#define FREED 0x80u
#define CLASSES 35u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char* arena;
static unsigned char* side;
static size_t used;
/* Freed blocks by class, out of line: a write to a freed block steers nothing here. */
static uint32_t* freed[CLASSES];
static size_t freed_count[CLASSES];

static void report(const char* code, const char* what, const void* p, const char* call) {
    char line[320];
    const char* options = getenv("WEIR_OPTIONS");
    const char* leave_out = getenv("REFERENCE_BREAK");
    if (leave_out != NULL && strcmp(leave_out, code) == 0) return;
    int n = snprintf(line, sizeof line, "weir: %s: %s 0x%zx in %s; see docs/errors/%s.md\n", code, what,
                     (size_t)p, call, code);
    if (write(STDERR_FILENO, line, (size_t)n) != n) _exit(4);
    if (options == NULL || strstr(options, "on_error=report") == NULL) abort();
}

static void* map(size_t bytes) {
    void* p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) _exit(4);
    return p;
}

static unsigned class_of(size_t size) {
    unsigned class = 4;
    while (((size_t)1 << class) < size) class ++;
    return class;
}

static void* take(size_t size, size_t align, const char* call) {
    if (size > ARENA_BYTES / 4) return errno = ENOMEM, NULL;
    unsigned class = class_of(size > align ? size : align); /* a power of two is aligned to itself */
    pthread_mutex_lock(&lock);
    if (arena == NULL) {
        arena = map(2 * ARENA_BYTES);
        arena = (unsigned char*)(((uintptr_t)arena + ARENA_BYTES - 1) & ~(ARENA_BYTES - 1));
        side = map(ARENA_BYTES / 16);
        for (unsigned i = 0; i < CLASSES; i++) freed[i] = map((size_t)1 << 24);
    }
    size_t bytes = (size_t)1 << class;
    unsigned char* p;
    if (freed_count[class] > 0) {
        p = arena + 16 * (size_t)freed[class][--freed_count[class]];
        for (size_t i = 0; i < bytes && bytes <= FILL_MAX; i++) {
            if (p[i] == FILL) continue;
            report("corrupt-list", "a freed block was written to", p, call);
            break;
        }
    } else {
        used = (used + bytes - 1) & ~(bytes - 1);
        p = arena + used;
        used += bytes;
        if (used > ARENA_BYTES) _exit(4);
    }
    side[(size_t)(p - arena) / 16] = (unsigned char)class;
    pthread_mutex_unlock(&lock);
    return p;
}

/* The class of the live block at p; 0 after a report. Called with the lock held. */
static unsigned look(void* p, const char* call) {
    size_t offset = (size_t)((unsigned char*)p - arena);
    if (arena == NULL || offset >= used)
        return report("invalid-free", "not a block of this heap", p, call), 0;
    unsigned char state = offset % 16 == 0 ? side[offset / 16] : 0;
    if (state == 0) return report("invalid-free", "not the start of a block", p, call), 0;
    if ((state & FREED) != 0) return report("double-free", "already freed", p, call), 0;
    return state;
}

static void give(void* p, size_t size, int sized, const char* call) {
    int saved = errno;
    if (p == NULL) return;
    pthread_mutex_lock(&lock);
    unsigned class = look(p, call);
    if (class != 0 && sized && (size > ARENA_BYTES / 4 || class_of(size) != class)) {
        char what[80];
        snprintf(what, sizeof what, "size %zu does not belong to the block", size);
        report("wrong-size", what, p, call);
        class = 0;
    }
    if (class != 0) {
        size_t offset = (size_t)((unsigned char*)p - arena);
        side[offset / 16] |= FREED;
        if (((size_t)1 << class) <= FILL_MAX) memset(p, FILL, (size_t)1 << class);
        if (freed_count[class] < (1u << 22)) freed[class][freed_count[class]++] = (uint32_t)(offset / 16);
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
}

static size_t usable(void* p, const char* call) {
    pthread_mutex_lock(&lock);
    unsigned class = look(p, call);
    pthread_mutex_unlock(&lock);
    return class != 0 ? (size_t)1 << class : 0;
}

void* malloc(size_t size) { return take(size, 16, "malloc"); }
void free(void* p) { give(p, 0, 0, "free"); }
void* aligned_alloc(size_t align, size_t size) { return take(size, align, "aligned_alloc"); }
void* calloc(size_t count, size_t size) {
    void* p = take(count * size, 16, "calloc");
    return p != NULL ? memset(p, 0, count * size) : NULL;
}
size_t malloc_usable_size(void* p) { return p != NULL ? usable(p, "malloc_usable_size") : 0; }
void* realloc(void* old, size_t size) {
    if (old == NULL) return take(size, 16, "realloc");
    size_t old_size = usable(old, "realloc");
    if (old_size == 0) return NULL;
    void* p = take(size, 16, "realloc");
    if (p == NULL) return NULL;
    memcpy(p, old, size < old_size ? size : old_size);
    give(old, 0, 0, "realloc");
    return p;
}

/* Declared here: no C library of today has them in a header. */
void free_sized(void* p, size_t size);
void free_aligned_sized(void* p, size_t align, size_t size);
void free_sized(void* p, size_t size) { give(p, size, 1, "free_sized"); }
void free_aligned_sized(void* p, size_t align, size_t size) {
    give(p, size > align ? size : align, 1, "free_aligned_sized");
}

/* operator new(size_t), (size_t, align_val_t); operator delete(void*), (void*, size_t), (.., align_val_t) */
void* operator_new(size_t size) __asm__("_Znwm");
void* operator_new_aligned(size_t size, size_t align) __asm__("_ZnwmSt11align_val_t");
void operator_delete(void* p) __asm__("_ZdlPv");
void operator_delete_sized(void* p, size_t size) __asm__("_ZdlPvm");
void operator_delete_sized_aligned(void* p, size_t size, size_t align) __asm__("_ZdlPvmSt11align_val_t");
void* operator_new(size_t size) { return take(size, 16, "operator new"); }
void* operator_new_aligned(size_t size, size_t align) { return take(size, align, "operator new"); }
void operator_delete(void* p) { give(p, 0, 0, "operator delete"); }
void operator_delete_sized(void* p, size_t size) { give(p, size, 1, "operator delete"); }
void operator_delete_sized_aligned(void* p, size_t size, size_t align) {
    give(p, size > align ? size : align, 1, "operator delete");
}
