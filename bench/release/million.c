/* million.c: many small frees that together empty much memory: how many system calls giving it back costs.
 *
 *     million [--count 1000000] [--size 100] [--order fifo|lifo|random] [--rest 1.5]
 *
 * Who may call it: anybody; run.py runs it under strace and counts the calls between two marks, which are
 * calls of getpgid with numbers that no process has. Prints "NAME VALUE" lines.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bench.h"

#include <unistd.h>

enum order { ORDER_FIFO, ORDER_LIFO, ORDER_RANDOM };
static const char* const orders[] = {"fifo", "lifo", "random", NULL};

static uint64_t count = 1000000, size = 100, seed = 1;
static double rest = 1.5, scale = 1;
static unsigned order = ORDER_FIFO;
static const char* expected;

static const struct option_row rows[] = {
    {"count", OPTION_COUNT, &count, "number of blocks (1000000)", NULL},
    {"size", OPTION_BYTES, &size, "bytes of each (100)", NULL},
    {"order", OPTION_CHOICE, &order, "of the frees: fifo, lifo or random (fifo)", orders},
    {"rest", OPTION_REAL, &rest, "seconds of rest after the last free (1.5)", NULL},
    {"seed", OPTION_COUNT, &seed, "of the sequence (1)", NULL},
    {"scale", OPTION_REAL, &scale, "factor of count (1)", NULL},
    {"expect", OPTION_TEXT, &expected, "file in which malloc must lie, or system", NULL},
    {NULL, OPTION_COUNT, NULL, NULL, NULL},
};

static void blocks_shuffle(struct block* blocks) {
    struct sequence sequence = sequence_of(seed, 0);
    for (uint64_t i = count; i > 1; i--) {
        uint64_t other = sequence_next(&sequence) % i;
        struct block b = blocks[i - 1];
        blocks[i - 1] = blocks[other], blocks[other] = b;
    }
}

int main(int argc, char** argv) {
    options_read(argc, argv, rows);
    count = (uint64_t)((double)count * scale);
    if (count < 1 || size < 1) give_up("out of range");
    allocator_prove(expected);
    struct block* blocks = memory_map(count * sizeof *blocks);
    for (uint64_t i = 0; i < count; i++) blocks[i] = block_make(size, (uint32_t)i, TOUCH_FULL);
    struct resident full = resident_now();
    if (order == ORDER_RANDOM) blocks_shuffle(blocks);
    struct weir_said said = weir_said_now();
    mark_begin();
    double start = now_s();
    for (uint64_t i = 0; i < count; i++) block_free(&blocks[order == ORDER_LIFO ? count - 1 - i : i]);
    result_real("free_s", now_s() - start);
    struct resident freed = resident_now();
    rest_s(rest);
    mark_end();
    result_mib("full_mib", full.bytes);
    result_mib("freed_mib", freed.bytes);
    result_mib("rested_mib", resident_now().bytes);
    weir_said_since(&said);
    result_flush();
    _exit(0);
}
