/* waves.c: servers whose live memory comes in waves: what is resident at the troughs, and how many pages are
 * pinned.
 *
 *     waves [--shape day|fragment] [--threads 16] [--waves 6] [--peak 512m] [--trough 64m] [--survive 0.01]
 * ...
 *
 * day: each thread's live bytes follow a sine between trough and peak; what dies is drawn at random, and
 * meanwhile blocks are replaced (lifetimes are random). fragment: each wave allocates `peak` bytes and frees
 * them in random order but for a part of the small blocks, which stay until the end. After each wave the
 * threads block and the main thread rests for a second and measures. With --rotate 1 a thread takes its
 * neighbour's blocks over at each trough, so that half of all frees come from elsewhere. The calls of each
 * thread are the same for every allocator. Prints "NAME VALUE" lines; series have one value for each trough.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bench.h"

#include <math.h>
#include <unistd.h>

#define WAVES_MAX 64u
#define SMALL_LOW 16u
#define SMALL_HIGH 1024u
#define MEDIUM_HIGH 131072u

enum shape { SHAPE_DAY, SHAPE_FRAGMENT };
static const char* const shapes[] = {"day", "fragment", NULL};

static uint64_t thread_count = 16, wave_count = 6, peak_bytes = 512u << 20, trough_bytes = 64u << 20,
                rotate = 1, seed = 1;
static double survive = 0.01, small_share = 0, replace = 2, idle_s = 1, scale = 1;
static unsigned shape = SHAPE_DAY;
static const char* expected;

static const struct option_row rows[] = {
    {"shape", OPTION_CHOICE, &shape, "day or fragment (day)", shapes},
    {"threads", OPTION_COUNT, &thread_count, "number of threads (16)", NULL},
    {"waves", OPTION_COUNT, &wave_count, "number of waves (6)", NULL},
    {"peak", OPTION_BYTES, &peak_bytes, "live bytes at the height of a wave (512m)", NULL},
    {"trough", OPTION_BYTES, &trough_bytes, "day: live bytes between waves (64m)", NULL},
    {"replace", OPTION_REAL, &replace, "day: blocks replaced for each that the wave adds or takes (2)", NULL},
    {"survive", OPTION_REAL, &survive, "fragment: part of the small blocks that survives its wave (0.01)",
     NULL},
    {"small", OPTION_REAL, &small_share, "part of the blocks under 1 KiB (day: 0.95, fragment: 0.995)", NULL},
    {"rotate", OPTION_COUNT, &rotate, "1: blocks change hands at the troughs (1)", NULL},
    {"idle", OPTION_REAL, &idle_s, "seconds of rest at a trough (1)", NULL},
    {"seed", OPTION_COUNT, &seed, "of the sequence (1)", NULL},
    {"scale", OPTION_REAL, &scale, "factor of peak and trough (1)", NULL},
    {"expect", OPTION_TEXT, &expected, "file in which malloc must lie, or system", NULL},
    {NULL, OPTION_COUNT, NULL, NULL, NULL},
};

/* Blocks, in no order: a hole is filled with the last. Sync: written by one thread during a job. */
static struct lot {
    struct block *blocks, *kept; /* kept: survivors */
    size_t count, kept_count, room, kept_room;
    uint64_t bytes, kept_bytes;
    struct sequence sequence; /* stays with the blocks, whoever has them */
} lots[CREW_MAX];
static size_t turn; /* waves so far */

static struct lot* lot_of(size_t number) { return &lots[(number + (rotate ? turn : 0)) % thread_count]; }

static struct block make(struct lot* lot) {
    bool is_small = sequence_unit(&lot->sequence) < small_share;
    size_t bytes = size_draw(&lot->sequence, SIZE_LOG, is_small ? SMALL_LOW : SMALL_HIGH,
                             is_small ? SMALL_HIGH : MEDIUM_HIGH);
    return block_make(bytes, (uint32_t)sequence_next(&lot->sequence), TOUCH_FULL);
}

static void lot_put(struct lot* lot) {
    if (lot->count == lot->room) give_up("more blocks than records");
    lot->blocks[lot->count] = make(lot);
    lot->bytes += lot->blocks[lot->count++].bytes;
}

static struct block lot_take(struct lot* lot) {
    size_t at = sequence_next(&lot->sequence) % lot->count;
    struct block b = lot->blocks[at];
    lot->blocks[at] = lot->blocks[--lot->count];
    lot->bytes -= b.bytes;
    return b;
}

static void lot_drop(struct lot* lot) {
    struct block b = lot_take(lot);
    block_free(&b);
}

/* One half of a wave, in steps of an equal number of bytes. */
static void lot_move(struct lot* lot, uint64_t from, uint64_t to) {
    enum { STEPS = 64 };
    double owed = 0;
    for (unsigned step = 1; step <= STEPS; step++) {
        double part = (1 - cos(3.14159265358979 * step / STEPS)) / 2;
        uint64_t target = (uint64_t)((double)from + ((double)to - (double)from) * part);
        while (to > from ? lot->bytes < target : lot->bytes > target && lot->count) {
            if (to > from) {
                lot_put(lot);
            } else {
                lot_drop(lot);
            }
            for (owed += replace; owed >= 1 && lot->count; owed--) {
                lot_drop(lot);
                lot_put(lot);
            }
        }
    }
}

static void job_day(size_t number) {
    struct lot* lot = lot_of(number);
    uint64_t peak = peak_bytes / thread_count, trough = trough_bytes / thread_count;
    lot_move(lot, lot->bytes, peak);
    lot_move(lot, peak, trough);
}

static void job_fragment(size_t number) {
    struct lot* lot = lot_of(number);
    while (lot->bytes < peak_bytes / thread_count) lot_put(lot);
    while (lot->count) {
        struct block b = lot_take(lot);
        if (b.bytes < SMALL_HIGH && sequence_unit(&lot->sequence) < survive) {
            if (lot->kept_count == lot->kept_room) give_up("more survivors than records");
            lot->kept[lot->kept_count++] = b;
            lot->kept_bytes += b.bytes;
        } else {
            block_free(&b);
        }
    }
}

static void lots_map(void) {
    for (size_t i = 0; i < thread_count; i++) {
        struct lot* lot = &lots[i];
        lot->room = peak_bytes / thread_count / 128 + 4096; /* the mean size is several times that */
        lot->kept_room =
            shape == SHAPE_FRAGMENT ? (size_t)((double)(lot->room * wave_count) * survive * 2) + 1024 : 1;
        lot->blocks = memory_map(lot->room * sizeof(struct block));
        lot->kept = memory_map(lot->kept_room * sizeof(struct block));
        lot->sequence = sequence_of(seed, i);
    }
}

static uint64_t limit_bytes(void) {
    struct page_set set;
    uint64_t bound = 0;
    for (size_t i = 0; i < thread_count; i++) {
        bound += pages_bound(lots[i].blocks, lots[i].count) + pages_bound(lots[i].kept, lots[i].kept_count);
    }
    page_set_open(&set, bound);
    for (size_t i = 0; i < thread_count; i++) {
        page_set_add(&set, lots[i].blocks, lots[i].count);
        page_set_add(&set, lots[i].kept, lots[i].kept_count);
    }
    page_set_close(&set);
    return set.pages * page_bytes();
}

static void contents_check(void) {
    for (size_t i = 0; i < thread_count; i++) {
        for (size_t k = 0; k < lots[i].count; k++) {
            if (!block_holds(&lots[i].blocks[k])) give_up("a live block lost its contents");
        }
        for (size_t k = 0; k < lots[i].kept_count; k++) {
            if (!block_holds(&lots[i].kept[k])) give_up("a surviving block lost its contents");
        }
    }
    result_text("contents", "right");
}

int main(int argc, char** argv) {
    static double lives[WAVES_MAX], limits[WAVES_MAX], ends[WAVES_MAX], rested[WAVES_MAX];
    options_read(argc, argv, rows);
    if (wave_count < 1 || wave_count > WAVES_MAX || scale <= 0) give_up("out of range");
    if (small_share <= 0) small_share = shape == SHAPE_DAY ? 0.95 : 0.995;
    peak_bytes = (uint64_t)((double)peak_bytes * scale),
    trough_bytes = (uint64_t)((double)trough_bytes * scale);
    allocator_prove(expected);
    lots_map();
    crew_open(thread_count);
    struct weir_said said = weir_said_now();
    double work_s = 0, work_cpu_s = 0, worst = -1e9, limit_sum = 0, rested_sum = 0, rest_cpu_s = 0;
    mark_begin();
    for (turn = 0; turn < wave_count; turn++) {
        double start = now_s(), cpu = now_cpu_s();
        crew_do(shape == SHAPE_DAY ? job_day : job_fragment);
        work_s += now_s() - start, work_cpu_s += now_cpu_s() - cpu;
        ends[turn] = (double)resident_now().bytes / 1048576.0;
        cpu = now_cpu_s();
        rest_s(idle_s);
        rest_cpu_s += now_cpu_s() - cpu;
        uint64_t bytes = resident_now().bytes, limit = limit_bytes(), live = 0;
        for (size_t i = 0; i < thread_count; i++) live += lots[i].bytes + lots[i].kept_bytes;
        lives[turn] = (double)live / 1048576.0, limits[turn] = (double)limit / 1048576.0;
        rested[turn] = (double)bytes / 1048576.0;
        limit_sum += limits[turn], rested_sum += rested[turn];
        if (over_limit_mib(bytes, limit) > worst) worst = over_limit_mib(bytes, limit);
    }
    mark_end();
    contents_check();
    result_real("work_s", work_s);
    result_real("work_cpu_s", work_cpu_s);
    result_real("rest_cpu_s", rest_cpu_s);
    result_count("faults", usage_now().minor_faults);
    result_real("live_last_mib", lives[wave_count - 1]);
    result_real("limit_mean_mib", limit_sum / (double)wave_count);
    result_real("limit_last_mib", limits[wave_count - 1]);
    result_real("end_last_mib", ends[wave_count - 1]);
    result_real("rested_mean_mib", rested_sum / (double)wave_count);
    result_real("rested_last_mib", rested[wave_count - 1]);
    result_real("rested_of_limit", rested_sum / limit_sum);
    result_real("worst_over_mib", worst);
    result_series("live_mib", lives, wave_count);
    result_series("limit_mib", limits, wave_count);
    result_series("end_mib", ends, wave_count);
    result_series("rested_mib", rested, wave_count);
    weir_said_since(&said);
    result_flush();
    _exit(0);
}
