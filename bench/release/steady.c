/* steady.c: a program that frees and allocates all its memory again in each period: what giving memory back
 * costs it.
 *
 *     steady [--threads 16] [--total 256m] [--period 0.1] [--rounds 30] [--empty 0.5] [--sizes log|uniform]
 * ...
 *
 * In each period the threads free all blocks, rest (--empty: the part of the rest that comes here), allocate
 * and write as much again, and rest until the period is over. Work is the time of the freeing and the
 * allocating. Prints "NAME VALUE" lines; the first round, which maps everything, counts nowhere, and
 * `settled_` leaves out the first half.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bench.h"

#include <stdio.h>
#include <unistd.h>

#define SIZE_LOW 16u
#define SIZE_HIGH 131072u
#define ROUNDS_MAX 1000u
#define WINDOW 64u

static uint64_t thread_count = 16, total_bytes = 256u << 20, rounds = 30, seed = 1, stepped,
                chunk_bytes = 100u << 20;
static double period_s = 0.1, empty = 0.5, scale = 1;
static unsigned sizes = SIZE_LOG, touch = TOUCH_FULL;
static const char* expected;

static const struct option_row rows[] = {
    {"threads", OPTION_COUNT, &thread_count, "number of threads (16)", NULL},
    {"total", OPTION_BYTES, &total_bytes, "bytes in use, all threads together (256m)", NULL},
    {"period", OPTION_REAL, &period_s, "seconds of a round; one that takes longer rests 20 ms (0.1)", NULL},
    {"rounds", OPTION_COUNT, &rounds, "number of rounds after the first (30)", NULL},
    {"empty", OPTION_REAL, &empty, "part of the rest in which the memory is free, 0 to 1 (0.5)", NULL},
    {"sizes", OPTION_CHOICE, &sizes, "log or uniform, from 16 bytes to 128 KiB, exclusive (log)", size_laws},
    {"touch", OPTION_CHOICE, &touch, "blocks are written: full or first (full)", touches},
    {"stepped", OPTION_COUNT, &stepped, "1: does what stdin says (0)", NULL},
    {"chunk", OPTION_BYTES, &chunk_bytes, "bytes that a step churns, all threads together (100m)", NULL},
    {"seed", OPTION_COUNT, &seed, "of the sequence (1)", NULL},
    {"scale", OPTION_REAL, &scale, "factor of total (1)", NULL},
    {"expect", OPTION_TEXT, &expected, "file in which malloc must lie, or system", NULL},
    {NULL, OPTION_COUNT, NULL, NULL, NULL},
};

/* One thread's blocks. Sync: written by its thread during a job. */
static struct lot {
    struct block* blocks;
    size_t count, room;
    struct sequence sequence;
    struct block window[WINDOW];
} lots[CREW_MAX];

static void job_free(size_t number) {
    struct lot* lot = &lots[number];
    for (size_t i = 0; i < lot->count; i++) block_free(&lot->blocks[i]);
    lot->count = 0;
}

static void job_allocate(size_t number) {
    struct lot* lot = &lots[number];
    uint64_t bytes = total_bytes / thread_count;
    for (uint64_t done = 0; done < bytes; done += lot->blocks[lot->count++].bytes) {
        if (lot->count == lot->room) give_up("more blocks than records");
        size_t size = size_draw(&lot->sequence, sizes, SIZE_LOW, SIZE_HIGH);
        lot->blocks[lot->count] = block_make(size, (uint32_t)sequence_next(&lot->sequence), touch);
    }
}

static void job_churn(size_t number) {
    struct lot* lot = &lots[number];
    for (uint64_t done = 0; done < chunk_bytes / thread_count;) {
        struct block* b = &lot->window[sequence_next(&lot->sequence) % WINDOW];
        if (b->at) block_free(b);
        size_t size = size_draw(&lot->sequence, sizes, SIZE_LOW, SIZE_HIGH);
        *b = block_make(size, (uint32_t)sequence_next(&lot->sequence), touch);
        done += size;
    }
}

/* Does it, and adds what it took. */
struct cost {
    double work_s, cpu_s;
};
static void work(struct cost* cost, void (*job)(size_t)) {
    double start = now_s(), cpu = now_cpu_s();
    crew_do(job);
    cost->work_s += now_s() - start;
    cost->cpu_s += now_cpu_s() - cpu;
}

static void steps_run(void) {
    for (char letter; read(0, &letter, 1) == 1;) {
        struct cost cost = {0};
        work(&cost, letter == 'f' ? job_free : letter == 'a' ? job_allocate : job_churn);
        char line[64];
        int length = snprintf(line, sizeof line, "%.9f %.9f\n", cost.work_s, now_cpu_s());
        if (write(1, line, (size_t)length) != length) give_up("nobody reads");
    }
}

static double median(double* values, size_t count) {
    for (size_t i = 1; i < count; i++) {
        for (size_t k = i; k && values[k - 1] > values[k]; k--) {
            double value = values[k];
            values[k] = values[k - 1], values[k - 1] = value;
        }
    }
    return count ? values[count / 2] : 0;
}

int main(int argc, char** argv) {
    static double works[ROUNDS_MAX];
    options_read(argc, argv, rows);
    if (rounds < 2 || rounds > ROUNDS_MAX || scale <= 0 || empty < 0 || empty > 1) give_up("out of range");
    total_bytes = (uint64_t)((double)total_bytes * scale);
    allocator_prove(expected);
    crew_open(thread_count);
    for (size_t i = 0; i < thread_count; i++) {
        lots[i].room = total_bytes / thread_count / 4096 + 4096;
        lots[i].blocks = memory_map(lots[i].room * sizeof(struct block));
        lots[i].sequence = sequence_of(seed, i);
    }
    if (stepped) {
        result_flush(); /* where malloc lies */
        steps_run();
        _exit(0);
    }
    crew_do(job_allocate);
    rest_s(period_s);
    struct cost all = {0}, settled = {0};
    struct usage before = usage_now();
    double cpu = now_cpu_s();
    struct weir_said said = weir_said_now();
    mark_begin();
    for (uint64_t round = 0; round < rounds; round++) {
        struct cost cost = {0};
        double start = now_s(), last = all.work_s / (double)(round ? round : 1);
        work(&cost, job_free);
        rest_s((period_s - last > 0.02 ? period_s - last : 0.02) * empty);
        work(&cost, job_allocate);
        works[round] = cost.work_s;
        all.work_s += cost.work_s, all.cpu_s += cost.cpu_s;
        if (round >= rounds / 2) settled.work_s += cost.work_s, settled.cpu_s += cost.cpu_s;
        double left = period_s - (now_s() - start);
        rest_s(left > 0.02 * (1 - empty) ? left : 0.02 * (1 - empty));
    }
    mark_end();
    struct usage after = usage_now();
    uint64_t resident = resident_now().bytes;
    result_real("work_s", all.work_s);
    result_real("work_cpu_s", all.cpu_s);
    result_real("cpu_s", now_cpu_s() - cpu); /* with what other threads of the allocator did meanwhile */
    result_count("faults", after.minor_faults - before.minor_faults);
    result_real("settled_work_s", settled.work_s);
    result_real("settled_cpu_s", settled.cpu_s);
    result_real("round_s", median(works, rounds));
    result_mib("resident_mib", resident);
    weir_said_since(&said);
    result_flush();
    _exit(0);
}
