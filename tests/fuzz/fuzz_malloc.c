/* fuzz_malloc.c: a libFuzzer target that reads its input as a stream of calls of malloc and its kin, on
 * three threads that take turns, and checks each answer against a small model.
 *
 * run.sh builds and runs it, with the allocator linked in front of libc. It knows the contracts of the
 * calls and nothing of the allocator. One call at a time is under way, so that an input always means the
 * same calls.
 *
 *   input: thread and opcode | slot | size code | size code | argument      (5 bytes a call)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern void free_sized(void* p, size_t size) __attribute__((weak));
extern void free_aligned_sized(void* p, size_t align, size_t size) __attribute__((weak));

enum { SLOTS = 64, THREADS = 3, CALL_BYTES = 5, CALLS_MAX = 4000 };
#define LIVE_MAX ((size_t)256 << 20)

struct slot {
    unsigned char* p;
    size_t size;
    uint8_t tag;
    size_t align; /* from aligned_alloc; 0: from malloc and its like; 1: free only, no sized free fits */
};

/* Sync: handed from thread to thread by the semaphores; one thread has it at a time. */
static struct slot slots[SLOTS];
static size_t live;
static uint8_t next_tag;

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "fuzz_malloc: expected " #condition ": " __VA_ARGS__);                           \
            fputc('\n', stderr);                                                                             \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* Up to 512 bytes at each end of a block take part. */
static size_t edge(size_t size) { return size < 512 ? size : 512; }

static void content_check(const unsigned char* p, size_t size, size_t kept, uint8_t tag) {
    for (size_t i = 0; i < edge(size) && i < kept; i++)
        CHECK(p[i] == (uint8_t)(tag + i), "block %p of %zu at byte %zu: %u", (const void*)p, size, i, p[i]);
    for (size_t i = size - edge(size); i < kept && kept <= size; i++)
        CHECK(p[i] == (uint8_t)(tag + i), "block %p of %zu at byte %zu: %u", (const void*)p, size, i, p[i]);
}

static void slot_adopt(struct slot* s, unsigned char* p, size_t size, size_t align) {
    CHECK(p != NULL, "a block of %zu bytes", size);
    CHECK(((uintptr_t)p & (align < 16 ? 15 : align - 1)) == 0, "%p aligned to %zu", (void*)p, align);
    size_t usable = malloc_usable_size(p);
    CHECK(usable >= size, "usable size %zu of %zu", usable, size);
    for (unsigned i = 0; i < SLOTS; i++) {
        const struct slot* o = &slots[i];
        CHECK(o->p == NULL || o == s || p + usable <= o->p || o->p + (o->size > 0 ? o->size : 1) <= p,
              "%p of %zu overlaps %p of %zu", (void*)p, usable, (void*)o->p, o->size);
    }
    s->p = p;
    s->size = size;
    s->tag = next_tag++;
    live += size;
    for (size_t i = 0; i < edge(size); i++) p[i] = (uint8_t)(s->tag + i);
    for (size_t i = size - edge(size); i < size; i++) p[i] = (uint8_t)(s->tag + i);
}

static void slot_free(struct slot* s, uint8_t how) {
    if (s->p == NULL) return;
    content_check(s->p, s->size, s->size, s->tag);
    live -= s->size;
    errno = 77;
    if (s->align == 0 && (how & 1) != 0 && free_sized != NULL)
        free_sized(s->p, s->size);
    else if (s->align > 1 && (how & 1) != 0 && free_aligned_sized != NULL)
        free_aligned_sized(s->p, s->align, s->size);
    else
        free(s->p);
    CHECK(errno == 77, "errno is %d after free", errno);
    *s = (struct slot){0};
}

static void slot_realloc(struct slot* s, size_t size) {
    if (size == 0) size = 1;
    size_t old = s->size, kept = old < size ? old : size;
    unsigned char* p = realloc(s->p, size);
    CHECK(p != NULL, "realloc to %zu", size);
    if (s->p != NULL) content_check(p, old, kept, s->tag);
    live -= old;
    *s = (struct slot){0};
    slot_adopt(s, p, size, 16);
}

static void slot_calloc(struct slot* s, size_t size) {
    unsigned char* p = calloc(1, size);
    for (size_t i = 0; p != NULL && i < size && i < 65536; i++)
        CHECK(p[i] == 0, "calloc of %zu at %zu", size, i);
    slot_adopt(s, p, size, 16);
}

static void slot_aligned(struct slot* s, size_t size, uint8_t argument) {
    size_t align = (size_t)1 << (argument & 31) % 23;
    void* p = NULL;
    if ((argument & 32) != 0) {
        int error = posix_memalign(&p, align, size);
        CHECK(error == (align < sizeof(void*) ? EINVAL : 0), "posix_memalign(%zu, %zu) gave %d", align, size,
              error);
        if (error != 0) return;
        s->align = 1;
    } else if ((argument & 64) != 0) {
        p = memalign(align, size);
        s->align = 1;
    } else {
        p = aligned_alloc(align, size);
        s->align = align;
    }
    slot_adopt(s, p, size, align);
}

/* A size from two bytes: small ones are likely, up to 16 MiB is possible. */
static size_t size_decode(uint8_t a, uint8_t b) {
    unsigned shift = a >> 4;
    size_t size = ((size_t)(a & 15) << 8 | b) >> (shift < 4 ? 4 - shift : 0) << (shift > 4 ? shift - 4 : 0);
    return shift == 15 && (a & 15) == 15 ? (size_t)b << 16 : size;
}

static void call_run(const uint8_t* c) {
    struct slot* s = &slots[c[1] % SLOTS];
    size_t size = size_decode(c[2], c[3]);
    unsigned opcode = c[0] >> 4;
    if (opcode < 5) {
        slot_free(s, c[4]);
        return;
    }
    if (live + size > LIVE_MAX) return;
    if (opcode < 7) {
        if (s->align <= 1) slot_realloc(s, size);
        return;
    }
    slot_free(s, c[4]);
    if (opcode < 11)
        slot_adopt(s, malloc(size), size, 16);
    else if (opcode < 12)
        slot_calloc(s, size);
    else if (opcode < 14)
        slot_aligned(s, size, c[4]);
    else if (opcode == 14)
        for (unsigned i = 0; i < SLOTS; i++) slot_free(&slots[(c[1] + i) % SLOTS], c[4]);
    else if ((c[4] & 15) == 0)
        malloc_trim(0);
    else /* a row of equal blocks */
        for (unsigned i = 0; i < c[4] % SLOTS && size <= 65536; i++) {
            slot_free(&slots[i], 0);
            slot_adopt(&slots[i], malloc(size), size, 16);
        }
}

static struct helper {
    sem_t wanted, done;
    const uint8_t* call;
} helpers[THREADS];

static void* helper_main(void* arg) {
    struct helper* h = arg;
    for (;;) {
        while (sem_wait(&h->wanted) != 0) continue;
        call_run(h->call);
        sem_post(&h->done);
    }
    return NULL;
}

static void helpers_start(void) {
    for (unsigned i = 1; i < THREADS; i++) {
        pthread_t thread;
        sem_init(&helpers[i].wanted, 0, 0);
        sem_init(&helpers[i].done, 0, 0);
        if (pthread_create(&thread, NULL, helper_main, &helpers[i]) != 0) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static int started;
    if (!started) helpers_start();
    started = 1;
    for (unsigned calls = 0; size >= CALL_BYTES && calls < CALLS_MAX; calls++) {
        unsigned thread = data[0] % 16 % THREADS;
        if (thread == 0) {
            call_run(data);
        } else {
            helpers[thread].call = data;
            sem_post(&helpers[thread].wanted);
            while (sem_wait(&helpers[thread].done) != 0) continue;
        }
        data += CALL_BYTES;
        size -= CALL_BYTES;
    }
    for (unsigned i = 0; i < SLOTS; i++) slot_free(&slots[i], 0);
    CHECK(live == 0, "%zu bytes live at the end", live);
    return 0;
}
