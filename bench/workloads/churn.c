/* churn.c: blocks that a thread takes and frees itself: lifetimes LIFO, FIFO and random for each band of
 * sizes, requests that free all they took, and sizes that drift over a long run.
 *
 * Who may call it: main.c, by the table at the end. It deliberately knows nothing of other threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "workload.h"

enum lifetime { LIFO, FIFO, RANDOM };

/* ---- churn: `live` blocks of each thread, `variant` says which goes first */
static const struct load* churned;
static struct sizes churn_sizes;

static void churn_lifo(struct block* blocks, uint64_t work, uint64_t state) {
    uint32_t live = churned->live, depth = 0, seed = 0;
    while (work) {
        /* Up to one depth and down to another, as calls go. */
        for (uint32_t top = choice(&state, live) + 1; depth < top && work; work--, seed++)
            block_take(&blocks[depth++], churn_sizes.bytes[seed % SIZES], seed);
        for (uint32_t bottom = choice(&state, live); depth > bottom;) block_drop(&blocks[--depth]);
    }
}

static void churn_others(struct block* blocks, uint64_t work, uint64_t state) {
    uint32_t live = churned->live, next = 0;
    uint32_t shift =
        0; /* lest what takes a block's place has its size, where `live` is a multiple of SIZES */
    for (uint32_t seed = 0; work; work--, seed++) {
        struct block* b = &blocks[next];
        if (churned->variant == RANDOM)
            b = &blocks[choice(&state, live)];
        else if (++next == live)
            next = 0, shift++;
        if (b->at) block_drop(b);
        block_take(b, churn_sizes.bytes[(seed + shift) % SIZES], seed);
    }
}

static struct block* churn_blocks;

static void churn_job(size_t number) {
    struct block* blocks = churn_blocks + number * churned->live;
    uint64_t work = churned->work / churned->threads + 1, state = 0x5eed + number;
    if (churned->variant == LIFO)
        churn_lifo(blocks, work, state);
    else
        churn_others(blocks, work, state);
    blocks_drop(blocks, churned->live);
}

static void churn(const struct load* load) {
    churned = load;
    sizes_draw(&churn_sizes, load, 1);
    churn_blocks = memory_map(load->threads * load->live * sizeof(struct block));
    load_on_threads(load, churn_job);
    /* At first each block had the size of the one whose place it took. */
    if (load->variant == FIFO) result_count("revision", 2);
}

/* ---- aligned: blocks at multiples of 16 to 512, as programs take for vectors and for lines of the cache */
static void aligned(const struct load* load) {
    enum { LOW_SHIFT = 4, SHIFTS = 6 };
    struct block* blocks = memory_map(load->live * sizeof *blocks);
    sizes_draw(&churn_sizes, load, 25);
    uint64_t state = 29;
    load_begin();
    for (uint32_t work = 0; work < load->work; work++) {
        struct block* b = &blocks[choice(&state, load->live)];
        if (b->at) block_drop(b);
        void* at;
        size_t alignment = (size_t)1 << (LOW_SHIFT + work % SHIFTS);
        *b = (struct block){NULL, churn_sizes.bytes[work % SIZES], work};
        if (posix_memalign(&at, alignment, b->bytes) != 0) give_up("posix_memalign failed");
        if ((uintptr_t)at % alignment != 0) give_up("posix_memalign aligned otherwise");
        b->at = at;
        words_put(b, 0);
    }
    blocks_drop(blocks, load->live);
    load_end();
}

/* ---- batch: a server's requests or a game's frames. Each takes up to `live` blocks, and all of them are
 * freed in another order before the next one comes. */
static void batch(const struct load* load) {
    enum { STRIDE = 7 }; /* `live` is no multiple of it, so that each block has its turn */
    struct block* blocks = memory_map(load->live * sizeof *blocks);
    sizes_draw(&churn_sizes, load, 21);
    uint64_t state = 23;
    uint32_t seed = 0;
    load_begin();
    for (uint64_t work = load->work; work;) {
        uint32_t count = load->live / 2 + choice(&state, load->live / 2);
        for (uint32_t i = 0; i < count && work; i++, work--, seed++)
            block_take(&blocks[i], churn_sizes.bytes[seed % SIZES], seed);
        for (uint32_t i = 0; i < load->live; i++) {
            struct block* b = &blocks[(uint64_t)i * STRIDE % load->live];
            if (b->at) block_drop(b);
        }
    }
    load_end();
    memory_unmap(blocks, load->live * sizeof *blocks);
}

/* ---- drift: a long run in phases. In each, most of what is left from before is freed here and there, and
 * blocks of the next sizes take as much memory again, `live` bytes in all. The work is enough for all phases:
 * the first ones, whose blocks are the smallest, take the most. */
enum drift_end { ALL_FREED, ONE_OF_64_STAYS };
enum { DRIFT_PHASES = 24, DRIFT_SLOTS_MAX = 1 << 19 };

static void drift(const struct load* load) {
    struct sequence s = sequence_of(7, load->low);
    size_t room = load->live / load->low * 2;
    if (room > DRIFT_SLOTS_MAX) room = DRIFT_SLOTS_MAX;
    struct block* blocks = memory_map(room * sizeof *blocks);
    size_t count = 0, bytes = 0;
    uint64_t work = load->work, phases = 0;
    uint32_t seed = 0;
    load_begin();
    for (unsigned phase = 0; work; phase = (phase + 1) % DRIFT_PHASES, phases++) {
        size_t left = 0;
        for (size_t i = 0; i < count; i++) {
            if (sequence_next(&s) % 8) {
                bytes -= blocks[i].bytes;
                block_drop(&blocks[i]);
            } else {
                blocks[left++] = blocks[i];
            }
        }
        count = left;
        /* Sizes go up through the band and start again. */
        size_t low = load->low + (load->high - load->low) * phase / DRIFT_PHASES, high = low + low / 4 + 16;
        for (; work && bytes < load->live && count < room; work--, seed++) {
            struct block* b = &blocks[count++];
            block_take(b, size_draw(&s, SIZE_UNIFORM, low, high), seed);
            bytes += b->bytes;
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (load->variant == ALL_FREED || i % 64) block_drop(&blocks[i]);
    }
    load_end();
    result_count("phases", phases);
    memory_unmap(blocks, room * sizeof *blocks);
}

#define KIB 1024u
#define MIB (1024u * KIB)
#define BAND(name, low, high, work, live)                                                                    \
    {"churn/lifo/" name,                                                                                     \
     "local blocks, last in first out",                                                                      \
     churn,                                                                                                  \
     {low, high, work, live, LIFO, 0},                                                                       \
     {1},                                                                                                    \
     CHECKED,                                                                                                \
     TOLD},                                                                                                  \
        {"churn/fifo/" name,                                                                                 \
         "local blocks, first in first out",                                                                 \
         churn,                                                                                              \
         {low, high, work, live, FIFO, 0},                                                                   \
         {1},                                                                                                \
         CHECKED,                                                                                            \
         TOLD},                                                                                              \
    {                                                                                                        \
        "churn/random/" name, "local blocks, random lifetimes", churn, {low, high, work, live, RANDOM, 0},   \
            {1}, CHECKED, TOLD                                                                               \
    }

const struct workload workloads_churn[] = {
    BAND("tiny", 16, 65, 6000000, 8192),
    BAND("small", 64, KIB + 1, 4000000, 8192),
    BAND("medium", KIB, 32 * KIB + 1, 800000, 2048),
    BAND("large", 32 * KIB, 512 * KIB + 1, 12000, 128),
    BAND("huge", 512 * KIB, 4 * MIB + 1, 800, 16),
    {"churn/mixed",
     "threads with blocks of their own, all sizes of a program",
     churn,
     {16, 32 * KIB + 1, 2000000, 1024, RANDOM, 0},
     {1, 2, 4, 8, 64},
     CHECKED,
     TOLD},
    {"churn/objects",
     "threads with objects of their own, of the larger small sizes, random lifetimes",
     churn,
     {512, KIB + 1, 4000000, 4000, RANDOM, 0},
     {1, 2, 8},
     CHECKED,
     TOLD},
    {"heap/small",
     "a heap of 100 MiB and more of small blocks, random lifetimes",
     churn,
     {16, KIB + 1, 3000000, 500000, RANDOM, 0},
     {1},
     CHECKED,
     TOLD},
    {"heap/medium",
     "the same of 200 MiB and more of medium blocks",
     churn,
     {KIB, 32 * KIB + 1, 400000, 24000, RANDOM, 0},
     {1},
     CHECKED,
     TOLD},
    {"batch/small",
     "requests: each takes small blocks, all are freed before the next",
     batch,
     {16, KIB + 1, 6000000, 1000, 0, 0},
     {1},
     CHECKED,
     TOLD},
    {"batch/mixed",
     "requests: each takes blocks of all sizes of a program, all are freed before the next",
     batch,
     {16, 32 * KIB + 1, 1500000, 400, 0, 0},
     {1},
     CHECKED,
     TOLD},
    {"batch/buffers",
     "requests: each takes buffers of 64 KB, all are freed before the next",
     batch,
     {64 * KIB, 64 * KIB + 1, 400000, 64, 0, 0},
     {1},
     CHECKED,
     TOLD},
    {"churn/aligned",
     "small blocks at multiples of 16 to 512, random lifetimes",
     aligned,
     {16, KIB + 1, 3000000, 4000, 0, 0},
     {1},
     CHECKED,
     TOLD},
    {"drift/small",
     "small sizes drift through their band; all is freed",
     drift,
     {64, 2 * KIB, 1600000, 32 * MIB, ALL_FREED, 0},
     {1},
     CHECKED,
     TOLD},
    {"drift/large",
     "large sizes drift through their band; all is freed",
     drift,
     {4 * KIB, 512 * KIB, 40000, 64 * MIB, ALL_FREED, 0},
     {1},
     CHECKED,
     TOLD},
    {"drift/holes",
     "sizes drift through their band; one block of 64 stays",
     drift,
     {64, 8 * KIB, 1000000, 48 * MIB, ONE_OF_64_STAYS, 0},
     {1},
     CHECKED,
     TOLD},
    {"drift/small/long",
     "a long run whose small sizes drift, ten times through their band; all is freed",
     drift,
     {64, 2 * KIB, 16000000, 32 * MIB, ALL_FREED, 0},
     {1},
     CHECKED,
     TOLD},
    {"drift/holes/long",
     "a long run whose sizes drift, ten times through their band; one block of 64 stays",
     drift,
     {64, 8 * KIB, 10000000, 48 * MIB, ONE_OF_64_STAYS, 0},
     {1},
     CHECKED,
     TOLD},
    {0},
};
