/* workload.h: what the workloads have in common: their table, blocks whose content is checked, threads.
 *
 * Who may include it: the programs of this folder. Records lie outside malloc (bench.h). It deliberately
 * knows no allocator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include "bench.h"

#include <stdlib.h>

/* What a workload is to do: the same for each allocator, whatever the machine. */
struct load {
    size_t low, high; /* sizes: from, up to but without */
    uint64_t work;    /* operations of all threads together: malloc and free, or realloc, is one */
    uint32_t live;    /* blocks that each thread has at most, or what the workload's comment says */
    unsigned variant;
    unsigned threads;
};

struct workload {
    const char* name;
    const char* shape; /* of the field, for the table of rows */
    void (*run)(const struct load*);
    struct load load;
    unsigned char threads[6];            /* each is a row; 0 ends */
    enum { CHECKED, UNCHECKED } content; /* UNCHECKED: one block at a time, there is nothing to compare */
    enum { TOLD, WHOLE } time;           /* WHOLE: the time of the process */
};

/* One table for each file of workloads; a row without a name ends it. */
extern const struct workload workloads_churn[], workloads_shared[], workloads_shapes[], workloads_bare[];

/* callgrind counts what it does, by its name. */
__attribute__((noinline)) void load_run(const struct workload* w, const struct load* load);
/* What lies between is the time that is told. */
void load_begin(void);
void load_end(void);
/* So many operations it was, where that is not load.work, as it ends with a round or has more than that. */
void load_did(uint64_t operations);
/* The program again, as a process of its own: NAME --rest 0. */
void process_again(const char* name);

/* ---- blocks: both ends and a word of each page are written, one block of 64 as a whole */
enum { WORD = 8, PAGE = 4096, WHOLE_OF = 64 };

static inline uint64_t word_of(uint32_t seed, size_t at) { return (seed + 1) * 0x9e3779b97f4a7c15u + at; }

static inline void word_put(const struct block* b, size_t at) {
    uint64_t word = word_of(b->seed, at);
    __builtin_memcpy(b->at + at, &word, WORD);
}

static inline void word_check(const struct block* b, size_t at) {
    uint64_t word;
    __builtin_memcpy(&word, b->at + at, WORD);
    if (word != word_of(b->seed, at)) give_up("a block has lost its content");
}

static inline size_t word_step(const struct block* b) { return b->seed % WHOLE_OF ? PAGE : WORD; }

/* Bytes from `from` on; a block has at least a word. */
static inline void words_put(const struct block* b, size_t from) {
    for (size_t at = from, step = word_step(b); at + WORD <= b->bytes; at += step) word_put(b, at);
    word_put(b, (b->bytes - WORD) & ~(size_t)(WORD - 1));
}

static inline void words_check(const struct block* b) {
    for (size_t at = 0, step = word_step(b); at + WORD <= b->bytes; at += step) word_check(b, at);
    word_check(b, (b->bytes - WORD) & ~(size_t)(WORD - 1));
}

static inline void block_take(struct block* b, size_t bytes, uint32_t seed) {
    *b = (struct block){malloc(bytes), (uint32_t)bytes, seed};
    if (!b->at) give_up("malloc returned NULL");
    words_put(b, 0);
}

static inline void block_drop(struct block* b) {
    words_check(b);
    free(b->at);
    b->at = NULL;
}

/* All that are there. */
void blocks_drop(struct block* blocks, size_t count);

/* Sizes are drawn before the load begins, so that drawing costs the load nothing. */
enum { SIZES = 1 << 12 };
struct sizes {
    uint32_t bytes[SIZES];
};
void sizes_draw(struct sizes* sizes, const struct load* load, uint64_t seed);

/* A cheap sequence for choices within the load (xorshift64, G. Marsaglia 2003). */
static inline uint32_t choice(uint64_t* state, uint32_t count) {
    uint64_t x = *state;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    *state = x;
    return (uint32_t)((x >> 32) * count >> 32);
}

/* ---- threads: `job` on each of the load's threads, which stay blocked afterwards; one is the main thread */
void load_on_threads(const struct load* load, void (*job)(size_t number));

#endif
