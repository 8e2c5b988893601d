/* bare.c: the allocator and nothing else: pairs of malloc and free of one size, and the start of a process.
 *
 * Who may call it: main.c, by the table at the end. It deliberately writes one byte of a block at most.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "workload.h"

#include <sched.h>

/* A thread that moves between processors would count the move. */
static void processor_keep(void) {
    cpu_set_t set;
    int processor = sched_getcpu();
    CPU_ZERO(&set);
    if (processor >= 0) CPU_SET((unsigned)processor, &set);
    if (processor < 0 || sched_setaffinity(0, sizeof set, &set) != 0) give_up("cannot stay on one processor");
}

static void pair(const struct load* load) {
    processor_keep();
    load_begin();
    for (uint64_t work = load->work; work; work--) {
        volatile unsigned char* block = malloc(load->low);
        if (!block) give_up("malloc returned NULL");
        block[0] = 1;
        free((void*)block);
    }
    load_end();
}

/* A process that does next to nothing. */
static void start_one(const struct load* load) {
    (void)load;
    struct block b[2];
    for (uint32_t i = 0; i < 2; i++) block_take(&b[i], 100, i);
    blocks_drop(b, 2);
}

/* Many of them, one after the other. */
static void start_many(const struct load* load) {
    struct block b;
    block_take(&b, 100, 0);
    load_begin();
    for (uint64_t work = load->work; work; work--) process_again("start/one");
    load_end();
    block_drop(&b);
}

#define PAIR(name, bytes, work)                                                                              \
    {"pair/" name, "malloc and free at once, on one processor",                                              \
     pair,         {bytes, bytes + 1, work, 1, 0, 0},                                                        \
     {1},          UNCHECKED,                                                                                \
     TOLD}

const struct workload workloads_bare[] = {
    PAIR("16", 16, 20000000),
    PAIR("64", 64, 20000000),
    PAIR("256", 256, 20000000),
    PAIR("1k", 1024, 20000000),
    PAIR("8k", 8192, 10000000),
    PAIR("64k", 65536, 10000000),
    PAIR("1m", 1048576, 2000000),
    {"start/one",
     "one process that does next to nothing",
     start_one,
     {100, 101, 1, 2, 0, 0},
     {1},
     CHECKED,
     WHOLE},
    {"start/many",
     "processes that do next to nothing, one after the other",
     start_many,
     {100, 101, 200, 1, 0, 0},
     {1},
     CHECKED,
     TOLD},
    {0},
};
