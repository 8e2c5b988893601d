/* release.h: memory that is mostly free, the least that may stay resident then, and time for an allocator to
 * get there without a call. The release_* programs include it, after contract.h. All of its own tables are
 * mapped, not allocated.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef CONTRACT_RELEASE_H
#define CONTRACT_RELEASE_H

#include "contract.h"
#include <pthread.h>

enum { RELEASE_BLOCKS_MAX = 1 << 20, NAP_US = 20000 };

/* Blocks that a program has, and those of them that it keeps. */
struct release_shape {
    struct {
        unsigned char* p; /* NULL: freed */
        uint32_t bytes;
    } block[RELEASE_BLOCKS_MAX];
    size_t count;
    uint64_t state; /* of contract_random */
    int owned;      /* by a thread that sleeps; atomic */
};

CONTRACT_UNUSED static struct release_shape* release_shape_new(uint64_t seed) {
    void* p = mmap(NULL, sizeof(struct release_shape), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(p != MAP_FAILED);
    struct release_shape* shape = (struct release_shape*)p;
    shape->state = seed;
    return shape;
}

/* The table's part that is not in use goes back, where mlockall made it resident. */
CONTRACT_UNUSED static void release_table_trim(struct release_shape* shape) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)&shape->block[shape->count] + page - 1) & ~(page - 1);
    uintptr_t to = (uintptr_t)&shape->count & ~(page - 1);
    EXPECT_EQ(madvise((void*)from, to - from, MADV_DONTNEED), 0);
}

/* `bytes` of blocks of `least` to `most` bytes, filled. */
CONTRACT_UNUSED static void release_grow(struct release_shape* shape, size_t bytes, size_t least,
                                         size_t most) {
    size_t had = 0;
    while (had < bytes && shape->count < RELEASE_BLOCKS_MAX) {
        size_t size = least + contract_random(&shape->state) % (most - least + 1);
        unsigned char* p = (unsigned char*)malloc(size);
        if (!EXPECT(p != NULL)) return;
        contract_fill(p, size, (unsigned)shape->count);
        shape->block[shape->count].p = p;
        shape->block[shape->count++].bytes = (uint32_t)size;
        had += size;
    }
}

/* All but one in `keep` are freed. */
CONTRACT_UNUSED static void release_free(struct release_shape* shape, unsigned keep) {
    for (size_t i = 0; i < shape->count; i++) {
        if (shape->block[i].p == NULL || contract_random(&shape->state) % keep == 0) continue;
        free(shape->block[i].p);
        shape->block[i].p = NULL;
    }
}

CONTRACT_UNUSED static void* release_owner(void* argument) {
    struct release_shape* shape = (struct release_shape*)argument;
    release_grow(shape, 96 << 20, 100, 200);
    for (size_t i = 0; i < shape->count; i += 40) {
        free(shape->block[i].p);
        shape->block[i].p = NULL;
    }
    __atomic_store_n(&shape->owned, 1, __ATOMIC_RELEASE);
    for (;;) pause();
    return NULL;
}

/* 96 MB of blocks of a thread that has freed a few of them and will do nothing any more. */
CONTRACT_UNUSED static struct release_shape* release_owner_sleeps(void) {
    struct release_shape* shape = release_shape_new(40);
    pthread_t thread;
    EXPECT_EQ(pthread_create(&thread, NULL, release_owner, shape), 0);
    while (__atomic_load_n(&shape->owned, __ATOMIC_ACQUIRE) == 0) usleep(1000);
    return shape;
}

CONTRACT_UNUSED static int release_holds(const struct release_shape* shape) {
    for (size_t i = 0; i < shape->count; i++)
        if (shape->block[i].p != NULL &&
            !contract_holds(shape->block[i].p, shape->block[i].bytes, (unsigned)i))
            return 0;
    return 1;
}

CONTRACT_UNUSED static void release_end(struct release_shape* shape) {
    EXPECT(release_holds(shape));
    for (size_t i = 0; i < shape->count; i++) free(shape->block[i].p);
    munmap(shape, sizeof *shape);
}

/* KiB of pages that the shapes' blocks touch. */
CONTRACT_UNUSED static long release_live_kib(struct release_shape* const* shapes, int count) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t low = UINTPTR_MAX;
    uintptr_t high = 0;
    long live = 0;
    for (int n = 0; n < count; n++)
        for (size_t i = 0; i < shapes[n]->count; i++) {
            uintptr_t p = (uintptr_t)shapes[n]->block[i].p;
            if (p == 0) continue;
            if (p < low) low = p;
            if (p + shapes[n]->block[i].bytes > high) high = p + shapes[n]->block[i].bytes;
        }
    if (high == 0) return 0;
    size_t pages = high / page - low / page + 1;
    unsigned char* touched = (unsigned char*)mmap(NULL, pages, PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!EXPECT(touched != MAP_FAILED)) return 0;
    for (int n = 0; n < count; n++)
        for (size_t i = 0; i < shapes[n]->count; i++) {
            uintptr_t p = (uintptr_t)shapes[n]->block[i].p;
            if (p == 0) continue;
            for (uintptr_t g = p / page; g <= (p + shapes[n]->block[i].bytes - 1) / page; g++) {
                live += touched[g - low / page] == 0 ? (long)page / 1024 : 0;
                touched[g - low / page] = 1;
            }
        }
    munmap(touched, pages);
    return live;
}

/* KiB of anonymous memory that is resident, but for what the tables take: 16 bytes for each block. */
CONTRACT_UNUSED static long release_resident_kib(struct release_shape* const* shapes, int count) {
    long tables = 0;
    for (int n = 0; n < count; n++) tables += (long)(shapes[n]->count * sizeof shapes[n]->block[0] / 1024);
    return contract_status_kib("RssAnon:") - tables;
}

/* A nap, of which there are 50 in a second. On a machine that is busy with other things a nap takes longer,
 * and so does all that the allocator does meanwhile: time is counted in naps. */
CONTRACT_UNUSED static void release_nap(void) { usleep(NAP_US); }

/* Whether what is resident comes down to the pages in use, 3 % and `more_kib`, within so many naps.
 * `between`, where there is one, is called in each. */
CONTRACT_UNUSED static int release_shrinks(struct release_shape* const* shapes, int count, long more_kib,
                                           int naps, void (*between)(void)) {
    long live = release_live_kib(shapes, count);
    long most = live + live * 3 / 100 + more_kib;
    long now = release_resident_kib(shapes, count);
    for (int i = 0; i < naps && now > most; i++) {
        release_nap();
        if (between != NULL) between();
        now = release_resident_kib(shapes, count);
    }
    if (now > most)
        contract_say(1, "resident %ld KiB, at most %ld KiB expected (%ld KiB are in use)\n", now, most, live);
    return now <= most;
}

/* Threads of the process, those that libc does not know of among them. Nothing is allocated for it. */
CONTRACT_UNUSED static int release_tasks(void) { return (int)contract_status_kib("Threads:"); }

CONTRACT_UNUSED static double release_cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
