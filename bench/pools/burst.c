/* burst.c: what memory stays when a burst is over and a small use goes on, and when nothing is used any more.
 *
 *     burst --variant NAME [--size 16k] [--threads 4] [--burst 512m] [--part 10] [--expect FILE]
 *
 * Who may call it: anybody; run.py does. The threads take objects and write them, and free all but the first
 * ones; with those they go on: each millisecond a few are freed and as many taken and written. One second
 * later the resident memory is held against what the threads have in use. Then they free all and block.
 * Prints "NAME VALUE" lines.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "variants.h"

#include <unistd.h>

enum { TURN_OBJECTS = 4 };

static const char* variant_name = "malloc";
static uint64_t thread_count = 4, burst_bytes = 512u << 20, part = 10;
static const char* expected;

static const struct option_row rows[] = {
    {"variant", OPTION_TEXT, &variant_name, "one of variants.h", NULL},
    {"size", OPTION_BYTES, &object_bytes, "of an object (64)", NULL},
    {"threads", OPTION_COUNT, &thread_count, "number of threads (4)", NULL},
    {"burst", OPTION_BYTES, &burst_bytes, "bytes of the burst, all threads together (512m)", NULL},
    {"part", OPTION_COUNT, &part, "one in so many objects is in use later (10)", NULL},
    {"expect", OPTION_TEXT, &expected, "file in which malloc must lie, or system", NULL},
    {NULL, OPTION_COUNT, NULL, NULL, NULL},
};

static const struct variant* variant;
static uint64_t each, kept; /* objects of a thread */
static unsigned char** held[CREW_MAX];
static atomic_bool stop;

static void take(size_t number, uint64_t i) {
    held[number][i] = variant->calls.get();
    if (held[number][i] == NULL) give_up("no object");
    memset(held[number][i], (int)(number + i), object_bytes);
}
static void give(size_t number, uint64_t i) {
    if (held[number][i][object_bytes - 1] != (unsigned char)(number + i))
        give_up("an object lost its contents");
    variant->calls.put(held[number][i]);
}

static void job_burst(size_t n) {
    for (uint64_t i = 0; i < each; i++) take(n, i);
}
static void job_free(size_t n) {
    for (uint64_t i = kept; i < each; i++) give(n, i);
}
static void job_steady(size_t n) {
    uint64_t count = kept < TURN_OBJECTS ? kept : TURN_OBJECTS;
    for (uint64_t turn = 0; !atomic_load(&stop); turn += count) {
        for (uint64_t i = 0; i < count; i++) give(n, (turn + i) % kept);
        for (uint64_t i = 0; i < count; i++) take(n, (turn + i) % kept);
        rest_s(0.001);
    }
}
static void job_end(size_t n) {
    for (uint64_t i = 0; i < kept; i++) give(n, i);
}

static uint64_t above(uint64_t before) {
    uint64_t now = resident_now().bytes;
    return now > before ? now - before : 0;
}

static void pool_says(void) {
    struct weir_pool_stats s = {.struct_size = sizeof s};
    if (variant->pool == NULL || weir_pool_stats_get(variant->pool, &s) != 0) return;
    result_mib("pool_needed_mib", s.needed * s.block_bytes);
    result_mib("pool_held_mib", s.held * s.block_bytes);
}

int main(int argc, char** argv) {
    options_read(argc, argv, rows);
    each = burst_bytes / (thread_count ? thread_count : 1) / object_bytes;
    kept = part ? each / part : 0;
    if (thread_count < 1 || thread_count > CREW_MAX || kept < 1) give_up("out of range");
    allocator_prove(expected);
    variant = variant_open(variant_name);
    for (uint64_t i = 0; i < thread_count; i++) held[i] = memory_map(each * sizeof *held[i]);
    crew_open(thread_count);
    uint64_t before = resident_now().bytes;
    crew_do(job_burst);
    uint64_t peak = above(before), needed = thread_count * kept * object_bytes;
    if (peak < thread_count * each * object_bytes) give_up("less is resident than was written");
    crew_do(job_free);
    crew_begin(job_steady);
    rest_s(1);
    atomic_store(&stop, true);
    crew_end();
    uint64_t late = above(before);
    pool_says();
    crew_do(job_end);
    rest_s(1);
    result_mib("peak_mib", peak);
    result_mib("needed_mib", needed);
    result_mib("after_1s_mib", late);
    result_real("after_1s_of_needed", (double)late / (double)needed);
    result_mib("idle_mib", above(before));
    result_flush();
    _exit(0);
}
