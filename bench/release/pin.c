/* pin.c: threads whose live blocks pin garbage: how much of the garbage goes back to the kernel, how soon, at
 * what cost.
 *
 *     pin [--threads 16] [--live 256m] [--short 1g] [--churn 10g] [--sizes log|uniform] [--freer own|other]
 * ...
 *
 * Each thread churns short-lived blocks in a small window, then allocates its live blocks and its short-lived
 * ones in random alternation (the peak), frees the short-lived ones and blocks for good. The main thread
 * measures; it calls nothing of the allocator. Prints "NAME VALUE" lines; memory in MiB, time in seconds. The
 * sequence of calls of each thread is the same for every allocator. `limit` is what physics allows: the OS
 * pages that live blocks touch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bench.h"

#include <unistd.h>

#define SIZE_LOW 16u
#define SIZE_HIGH 131072u
#define IDLE_SAMPLES_MAX 1200u

enum freer { FREER_OWN, FREER_OTHER };
enum order { ORDER_FIFO, ORDER_LIFO, ORDER_RANDOM };
enum when { WHEN_FILL, WHEN_START, WHEN_CHURN };
static const char* const freers[] = {"own", "other", NULL};
static const char* const orders[] = {"fifo", "lifo", "random", NULL};
static const char* const whens[] = {"fill", "start", "churn", NULL};

static uint64_t thread_count = 16, live_bytes = 256u << 20, short_bytes = 1u << 30, churn_bytes = 10ull << 30;
static uint64_t window_blocks = 64, seed = 1;
static double scale = 1, idle_s = 3;
static unsigned sizes = SIZE_LOG, touch = TOUCH_FULL, freer = FREER_OWN, order = ORDER_FIFO, when = WHEN_FILL;
static const char* expected;

static const struct option_row rows[] = {
    {"threads", OPTION_COUNT, &thread_count, "number of threads (16)", NULL},
    {"live", OPTION_BYTES, &live_bytes, "bytes that stay live, all threads together (256m)", NULL},
    {"short", OPTION_BYTES, &short_bytes, "short-lived bytes at the peak (1g)", NULL},
    {"churn", OPTION_BYTES, &churn_bytes, "bytes churned before (10g)", NULL},
    {"window", OPTION_COUNT, &window_blocks, "blocks that a thread holds while it churns (64)", NULL},
    {"sizes", OPTION_CHOICE, &sizes, "log or uniform, from 16 bytes to 128 KiB, exclusive (log)", size_laws},
    {"touch", OPTION_CHOICE, &touch, "short-lived blocks are written: full or first (full)", touches},
    {"freer", OPTION_CHOICE, &freer, "short-lived blocks are freed by: own thread or other (own)", freers},
    {"order", OPTION_CHOICE, &order, "in the order fifo, lifo or random (fifo)", orders},
    {"when", OPTION_CHOICE, &when,
     "live blocks come among the short-lived of the peak (fill), or among as many before the churn (start)",
     whens},
    {"idle", OPTION_REAL, &idle_s, "seconds of idling (3)", NULL},
    {"seed", OPTION_COUNT, &seed, "of the sequence (1)", NULL},
    {"scale", OPTION_REAL, &scale, "factor of live, short and churn (1)", NULL},
    {"expect", OPTION_TEXT, &expected, "file in which malloc must lie, or system", NULL},
    {NULL, OPTION_COUNT, NULL, NULL, NULL},
};

/* One thread's blocks. Sync: written by one thread during a job. */
struct lot {
    struct block *live, *fleeting, *window;
    size_t live_count, fleeting_count, room;
    uint64_t live_requested, fleeting_requested;
    struct sequence sequence;
};
static struct lot lots[CREW_MAX];

static size_t draw(struct lot* lot) { return size_draw(&lot->sequence, sizes, SIZE_LOW, SIZE_HIGH); }

static struct block make(struct lot* lot, enum touch how) {
    size_t bytes = draw(lot);
    return block_make(bytes, (uint32_t)sequence_next(&lot->sequence), how);
}

/* Live and short-lived blocks in random alternation, so that both run out at the same time. */
static void blocks_fill(struct lot* lot, uint64_t live, uint64_t fleeting) {
    uint64_t live_done = 0, fleeting_done = 0;
    while (live_done < live || fleeting_done < fleeting) {
        double live_left = live_done < live ? (double)(live - live_done) : 0;
        double fleeting_left = fleeting_done < fleeting ? (double)(fleeting - fleeting_done) : 0;
        bool is_live = sequence_unit(&lot->sequence) * (live_left + fleeting_left) < live_left;
        if (lot->live_count + lot->fleeting_count == lot->room) give_up("more blocks than records");
        struct block b = make(lot, is_live ? TOUCH_FULL : touch);
        if (is_live) {
            lot->live[lot->live_count++] = b, live_done += b.bytes;
        } else {
            lot->fleeting[lot->fleeting_count++] = b, fleeting_done += b.bytes;
        }
    }
    lot->live_requested += live_done;
    lot->fleeting_requested = fleeting_done;
}

static void blocks_free(struct lot* lot) {
    for (size_t i = 0; i < lot->fleeting_count; i++) {
        block_free(&lot->fleeting[order == ORDER_LIFO ? lot->fleeting_count - 1 - i : i]);
    }
    lot->fleeting_count = 0;
}

static void blocks_shuffle(struct lot* lot) {
    for (size_t i = lot->fleeting_count; i > 1; i--) {
        size_t other = sequence_next(&lot->sequence) % i;
        struct block b = lot->fleeting[i - 1];
        lot->fleeting[i - 1] = lot->fleeting[other], lot->fleeting[other] = b;
    }
}

/* Short-lived blocks through the window, with `live` bytes of live ones evenly among them. */
static void churn(struct lot* lot, uint64_t bytes, uint64_t live) {
    uint64_t live_done = 0;
    for (uint64_t done = 0; done < bytes;) {
        if ((double)live_done < (double)live * ((double)done / (double)bytes)) {
            if (lot->live_count == lot->room) give_up("more blocks than records");
            struct block b = make(lot, TOUCH_FULL);
            lot->live[lot->live_count++] = b, live_done += b.bytes;
        }
        struct block* b = &lot->window[sequence_next(&lot->sequence) % window_blocks];
        if (b->at) block_free(b);
        *b = make(lot, touch);
        done += b->bytes;
    }
    for (uint64_t i = 0; i < window_blocks; i++) {
        if (lot->window[i].at) block_free(&lot->window[i]);
    }
    lot->live_requested += live_done;
}

static void job_start(size_t i) {
    blocks_fill(&lots[i], live_bytes / thread_count, short_bytes / thread_count);
    blocks_free(&lots[i]);
}
static void job_churn(size_t i) {
    churn(&lots[i], churn_bytes / thread_count, when == WHEN_CHURN ? live_bytes / thread_count : 0);
}
static void job_fill(size_t i) {
    blocks_fill(&lots[i], when == WHEN_FILL ? live_bytes / thread_count : 0, short_bytes / thread_count);
}
static void job_shuffle(size_t i) { blocks_shuffle(&lots[i]); }
static void job_free(size_t i) { blocks_free(&lots[freer == FREER_OWN ? i : (i + 1) % thread_count]); }

static void lots_map(void) {
    for (size_t i = 0; i < thread_count; i++) {
        struct lot* lot = &lots[i];
        /* The mean size is 14.5 KB or more: this is several times what is needed. */
        lot->room = (live_bytes + short_bytes) / thread_count / 4096 + 4096;
        lot->live = memory_map(lot->room * sizeof(struct block));
        lot->fleeting = memory_map(lot->room * sizeof(struct block));
        lot->window = memory_map(window_blocks * sizeof(struct block));
        lot->sequence = sequence_of(seed, i);
    }
}

static uint64_t limit_pages(void) {
    struct page_set set;
    uint64_t bound = 0;
    for (size_t i = 0; i < thread_count; i++) bound += pages_bound(lots[i].live, lots[i].live_count);
    page_set_open(&set, bound);
    for (size_t i = 0; i < thread_count; i++) page_set_add(&set, lots[i].live, lots[i].live_count);
    page_set_close(&set);
    return set.pages;
}

/* Nothing is called but the clock and the reading of one file. Prints the series and the figure after 1 s. */
static void idle(uint64_t limit) {
    static double series[IDLE_SAMPLES_MAX];
    struct resident at_1s = {0};
    double start = now_s(), cpu = now_cpu_s(), own_cpu = 0;
    size_t count = 0;
    while (count < IDLE_SAMPLES_MAX && 0.1 * (double)(count + 1) <= idle_s + 1e-9) {
        rest_s(start + 0.1 * (double)(count + 1) - now_s());
        double begun = now_s();
        struct resident r = resident_now();
        own_cpu += now_s() - begun;
        series[count++] = (double)r.bytes / 1048576.0;
        if (count <= 10) at_1s = r;
    }
    result_real("idle_cpu_s", now_cpu_s() - cpu - own_cpu > 0 ? now_cpu_s() - cpu - own_cpu : 0);
    result_mib("after_1s_mib", at_1s.bytes);
    result_mib("after_1s_lazy_mib", at_1s.lazy);
    result_real("after_1s_of_limit", (double)at_1s.bytes / (double)limit);
    result_real("after_1s_over_mib",
                over_limit_mib(at_1s.bytes, limit)); /* at most 0: what must be reached */
    if (count) result_real("after_all_mib", series[count - 1]);
    result_series("idle_mib", series, count);
}

static void trim(void) {
    struct resident before = resident_now();
    double start = now_s();
    int result = trim_now();
    if (result < 0) return;
    result_real("trim_s", now_s() - start);
    struct resident after = resident_now();
    result_count("trim_result", (uint64_t)result);
    result_mib("after_trim_mib", after.bytes);
    result_mib("trim_found_mib", before.bytes > after.bytes ? before.bytes - after.bytes : 0);
}

static void contents_check(void) {
    for (size_t i = 0; i < thread_count; i++) {
        for (size_t k = 0; k < lots[i].live_count; k++) {
            if (!block_holds(&lots[i].live[k])) give_up("a live block lost its contents");
        }
    }
    result_text("contents", "right");
}

int main(int argc, char** argv) {
    options_read(argc, argv, rows);
    if (thread_count < 1 || thread_count > CREW_MAX || window_blocks < 1 || scale <= 0 || idle_s < 0.1)
        give_up("out of range");
    live_bytes = (uint64_t)((double)live_bytes * scale),
    short_bytes = (uint64_t)((double)short_bytes * scale);
    churn_bytes = (uint64_t)((double)churn_bytes * scale);
    allocator_prove(expected);
    lots_map();
    crew_open(thread_count);
    result_mib("own_mib", memory_own);
    result_mib("start_mib", resident_now().bytes);
    if (when == WHEN_START) crew_do(job_start);
    mark_begin();
    crew_do_timed("churn", job_churn);
    struct resident churned = resident_now();
    crew_do_timed("fill", job_fill);
    struct resident peak = resident_now();
    uint64_t live = 0, fleeting = 0, limit = limit_pages() * page_bytes();
    for (size_t i = 0; i < thread_count; i++) {
        live += lots[i].live_requested, fleeting += lots[i].fleeting_requested;
    }
    struct weir_said said = weir_said_now();
    if (order == ORDER_RANDOM) crew_do(job_shuffle);
    crew_do_timed("free", job_free);
    struct resident freed = resident_now();
    result_mib("churned_mib", churned.bytes);
    result_mib("live_mib", live);
    result_mib("live_peak_mib", live + fleeting);
    result_mib("peak_mib", peak.bytes);
    result_real("peak_of_live", (double)peak.bytes / (double)(live + fleeting));
    result_mib("peak_huge_mib", peak.huge);
    result_mib("limit_mib", limit);
    result_mib("freed_mib", freed.bytes);
    idle(limit);
    mark_end();
    weir_said_since(&said);
    trim();
    contents_check();
    result_flush();
    _exit(0);
}
