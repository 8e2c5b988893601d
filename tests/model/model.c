/* model.c: the model test of a malloc: random streams of all entry points on many threads, checked
 * against an independent record of who holds which bytes and what they contain.
 *
 * Run it under any malloc, preloaded or linked: `model --help`. It knows the contracts of the entry
 * points and nothing of the allocator; its own memory comes from mmap.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "base.h"
#include "entry.h"
#include "mailbox.h"
#include "shadow.h"
#include "worker.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* The sanitizers' own allocators die on impossible requests unless told to answer as malloc does. */
const char* __asan_default_options(void);
const char* __asan_default_options(void) { return "allocator_may_return_null=1"; }
const char* __tsan_default_options(void);
const char* __tsan_default_options(void) { return "allocator_may_return_null=1"; }

static struct worker* workers;
static int ended_pipe[2];
static pthread_key_t exit_key;
static struct rng life_rng;

/* Allocate and free while the thread's other destructors run, and once more in the next round. */
static void thread_exit_hook(void* p) {
    unsigned char* block = p;
    if (block[0] != 0x5a && block[0] != 0x5b)
        model_fail("thread exit: expected 0x5a or 0x5b, found 0x%02x", block[0]);
    if (block[0] == 0x5a) {
        block = realloc(block, 700);
        if (block == NULL) return;
        block[0] = 0x5b;
        pthread_setspecific(exit_key, block);
        free(malloc(40));
        return;
    }
    free(block);
}

static void* thread_main(void* arg) {
    struct worker* w = arg;
    worker_self = w;
    unsigned char* p = malloc(24);
    if (p != NULL) p[0] = 0x5a;
    pthread_setspecific(exit_key, p);
    worker_run(w);
    ssize_t done = write(ended_pipe[1], &w->index, sizeof w->index);
    (void)done;
    return NULL;
}

static void thread_start(struct worker* w, pthread_t* thread, void* stack) {
    pthread_attr_t attr;
    unsigned mean = model_config.life_ops;
    w->life_ends_at = w->ops + mean / 2 + rng_below(&life_rng, mean + 1);
    pthread_attr_init(&attr);
    /* Our own stacks, so that an address-space limit cannot keep a successor from starting. */
    int error = pthread_attr_setstack(&attr, stack, model_config.stack_bytes);
    for (unsigned i = 0; i < 1000; i++) {
        error = error != 0 ? error : pthread_create(thread, &attr, thread_main, w);
        if ((error != EAGAIN && error != ENOMEM) || !model_config.nomem_ok || i == 999) break;
        error = 0; /* out of memory: the others will free some */
        usleep(10000);
    }
    pthread_attr_destroy(&attr);
    if (error != 0) model_fail("pthread_create: error %d (%s)", error, strerror(error));
}

static uint64_t progress_sum(void) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < model_config.threads; i++)
        sum += atomic_load_explicit(&workers[i].progress, memory_order_relaxed);
    return sum;
}

static void limit_set(int which, size_t* bytes) {
    struct rlimit limit = {*bytes, *bytes};
    if (*bytes != 0 && setrlimit((__rlimit_resource_t)which, &limit) != 0)
        model_fail("setrlimit: error %d (%s)", errno, strerror(errno));
    *bytes = 0;
}

static int limit_is_due(void) {
    return model_config.limit_as_after != 0 || model_config.limit_data_after != 0;
}

static void limit_lower(void) {
    if (!limit_is_due() || progress_sum() < model_config.ops / 4) return;
    limit_set(RLIMIT_AS, &model_config.limit_as_after);
    limit_set(RLIMIT_DATA, &model_config.limit_data_after);
}

/* Wait for a thread to end; returns its worker. Meanwhile watch that something moves. */
static unsigned thread_wait(void) {
    static uint64_t seen;
    static double seen_at;
    struct pollfd ready = {.fd = ended_pipe[0], .events = POLLIN};
    for (;;) {
        int n = poll(&ready, 1, limit_is_due() ? 10 : 1000);
        unsigned index;
        limit_lower();
        if (n > 0 && read(ended_pipe[0], &index, sizeof index) == (ssize_t)sizeof index) {
            seen_at = clock_seconds();
            return index;
        }
        uint64_t now = progress_sum();
        if (now != seen || seen_at <= 0) {
            seen = now;
            seen_at = clock_seconds();
        } else if (clock_seconds() - seen_at > model_config.stall_seconds) {
            for (unsigned i = 0; i < model_config.threads; i++)
                model_print(
                    STDERR_FILENO, "model: worker %u is in %s after %llu calls\n", i, workers[i].call,
                    (unsigned long long)atomic_load_explicit(&workers[i].progress, memory_order_relaxed));
            model_fail("stalled: no progress for %u seconds", model_config.stall_seconds);
        }
    }
}

static uint64_t threads_run(void) {
    const struct model_config* c = &model_config;
    size_t stride = c->stack_bytes + 65536;
    unsigned char* stacks = memory_map(stride * c->threads + 65536);
    pthread_t* threads = memory_map(c->threads * sizeof *threads);
    unsigned running = c->threads;
    uint64_t lives = 0;
    for (unsigned i = 0; i < c->threads; i++) {
        mprotect(stacks + stride * i, 65536, PROT_NONE); /* the guard of stack i */
        thread_start(&workers[i], &threads[i], stacks + stride * i + 65536);
    }
    while (running > 0) {
        unsigned i = thread_wait();
        pthread_join(threads[i], NULL);
        lives++;
        if (workers[i].ops < workers[i].quota)
            thread_start(&workers[i], &threads[i], stacks + stride * i + 65536);
        else
            running--;
    }
    return lives;
}

/* After the last thread: every block is still there and intact, and can be freed. */
static uint64_t drain_all(void) {
    struct block b;
    uint64_t made = 0, freed = 0;
    for (unsigned i = 0; i < mailbox_count(); i++) {
        if (!mailbox_take(i, &b)) continue;
        workers[0].live_bytes += b.size;
        worker_self = &workers[0];
        entry_free(&workers[0], &b, 0);
    }
    for (unsigned i = 0; i < model_config.threads; i++) {
        worker_self = &workers[i];
        worker_drain(&workers[i]);
        made += workers[i].blocks_made;
        freed += workers[i].blocks_freed;
    }
    worker_self = NULL;
    return made - freed;
}

static void calls_print(void) {
    static const char* const names[] = {
#define X(name) #name,
        MODEL_CALLS(X)
#undef X
    };
    model_print(STDOUT_FILENO, "calls:");
    for (unsigned call = 0; call < CALL_COUNT; call++) {
        uint64_t sum = 0;
        for (unsigned i = 0; i < model_config.threads; i++) sum += workers[i].calls[call];
        model_print(STDOUT_FILENO, " %s %llu", names[call], (unsigned long long)sum);
    }
    model_print(STDOUT_FILENO, "\n");
}

static void usage(int fd) {
    model_print(fd, "usage: model [options]\n"
                    "  --seed S           seed of all random decisions (1)\n"
                    "  --ops N            entry points to call (10000000)\n"
                    "  --threads T        concurrent threads (4)\n"
                    "  --mix M            small, mixed or large (small)\n"
                    "  --size-max B       largest request (by mix: 1024, 16m, 128m)\n"
                    "  --live-max B       bound of live bytes (by mix: 256m, 256m, 1g)\n"
                    "  --slots N          blocks that a worker may hold (by mix: 4096, 4096, 256)\n");
    model_print(fd, "  --forks F          forks, all threads together (0)\n"
                    "  --life N           mean calls of a thread before a successor replaces it (500000)\n"
                    "  --overlap O        full, sampled or off (full)\n"
                    "  --align-min A      alignment that every block must have (16)\n"
                    "  --limit-as-after B lower RLIMIT_AS to B after a quarter of the calls\n"
                    "  --limit-data-after B lower RLIMIT_DATA to B after a quarter of the calls\n"
                    "  --stack B          stack of a thread (1m)\n"
                    "  --stall N          seconds without progress that count as a hang (240)\n"
                    "  --nomem-ok         running out of memory is an answer, counted, not a failure\n"
                    "  --no-trim          leave malloc_trim out\n"
                    "  --no-pvalloc       leave pvalloc out, for allocators that leave it to libc\n"
                    "  --verbose          print how often each entry point was called\n"
                    "Sizes take the suffixes k, m and g.\n");
}

static uint64_t number(const char* name, const char* text) {
    char* end = NULL;
    errno = 0;
    unsigned long long value = text != NULL ? strtoull(text, &end, 0) : 0;
    unsigned shift = 0;
    if (text != NULL && end != text) shift = *end == 'k' ? 10 : *end == 'm' ? 20 : *end == 'g' ? 30 : 0;
    if (text == NULL || end == text || errno != 0 || (shift != 0 ? end[1] : *end) != '\0') {
        model_print(STDERR_FILENO, "model: %s wants a number, not '%s'\n", name, text != NULL ? text : "");
        _exit(2);
    }
    return (uint64_t)value << shift;
}

static int word(const char* name, const char* text, const char* const* words) {
    for (int i = 0; words[i] != NULL; i++)
        if (text != NULL && strcmp(text, words[i]) == 0) return i;
    model_print(STDERR_FILENO, "model: %s does not know '%s'\n", name, text != NULL ? text : "");
    _exit(2);
}

/* Returns how many arguments it used: 1 or 2; 0 for one it does not know. */
static int option(const char* name, const char* value) {
    static const char* const mixes[] = {"small", "mixed", "large", NULL};
    static const char* const overlaps[] = {"full", "sampled", "off", NULL};
    struct model_config* c = &model_config;
    if (strcmp(name, "--nomem-ok") == 0) return c->nomem_ok = 1;
    if (strcmp(name, "--no-trim") == 0) return c->trim = 0, 1;
    if (strcmp(name, "--no-pvalloc") == 0) return c->pvalloc = 0, 1;
    if (strcmp(name, "--verbose") == 0) return c->verbose = 1;
    if (strcmp(name, "--mix") == 0)
        c->mix = (enum model_mix)word(name, value, mixes);
    else if (strcmp(name, "--overlap") == 0)
        c->overlap = (enum model_overlap)word(name, value, overlaps);
    else if (strcmp(name, "--seed") == 0)
        c->seed = number(name, value);
    else if (strcmp(name, "--ops") == 0)
        c->ops = number(name, value);
    else if (strcmp(name, "--threads") == 0)
        c->threads = (unsigned)number(name, value);
    else if (strcmp(name, "--slots") == 0)
        c->slots = (unsigned)number(name, value);
    else if (strcmp(name, "--forks") == 0)
        c->forks = (unsigned)number(name, value);
    else if (strcmp(name, "--life") == 0)
        c->life_ops = (unsigned)number(name, value);
    else if (strcmp(name, "--size-max") == 0)
        c->size_max = number(name, value);
    else if (strcmp(name, "--live-max") == 0)
        c->live_max = number(name, value);
    else if (strcmp(name, "--align-min") == 0)
        c->align_min = number(name, value);
    else if (strcmp(name, "--limit-as-after") == 0)
        c->limit_as_after = number(name, value);
    else if (strcmp(name, "--limit-data-after") == 0)
        c->limit_data_after = number(name, value);
    else if (strcmp(name, "--stall") == 0)
        c->stall_seconds = (unsigned)number(name, value);
    else if (strcmp(name, "--stack") == 0)
        c->stack_bytes = number(name, value);
    else
        return 0;
    return 2;
}

static void options_read(int argc, char** argv) {
    struct model_config* c = &model_config;
    *c = (struct model_config){.seed = 1,
                               .ops = 10000000,
                               .threads = 4,
                               .life_ops = 500000,
                               .align_min = 16,
                               .stack_bytes = 1u << 20,
                               .trim = 1,
                               .pvalloc = 1,
                               .stall_seconds = 240};
    for (int i = 1; i < argc;) {
        char name[64];
        const char* value = i + 1 < argc ? argv[i + 1] : NULL;
        const char* equals = strchr(argv[i], '=');
        size_t n = equals != NULL ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        if (strcmp(argv[i], "--help") == 0) {
            usage(STDOUT_FILENO);
            _exit(0);
        }
        if (n >= sizeof name) n = sizeof name - 1;
        memcpy(name, argv[i], n);
        name[n] = '\0';
        int used = option(name, equals != NULL ? equals + 1 : value);
        if (used == 0) {
            model_print(STDERR_FILENO, "model: unknown option '%s'\n", argv[i]);
            usage(STDERR_FILENO);
            _exit(2);
        }
        i += equals != NULL ? 1 : used;
    }
    static const size_t size_max[] = {1024, 16u << 20, 128u << 20},
                        live_max[] = {256u << 20, 256u << 20, 1u << 30};
    static const unsigned slots[] = {4096, 4096, 256};
    if (c->size_max == 0) c->size_max = size_max[c->mix];
    if (c->live_max == 0) c->live_max = live_max[c->mix];
    if (c->slots == 0) c->slots = slots[c->mix];
    if (c->size_max < 1024) c->size_max = 1024;
    if (c->threads == 0 || c->life_ops == 0 || c->align_min == 0 ||
        (c->align_min & (c->align_min - 1)) != 0) {
        model_print(STDERR_FILENO,
                    "model: --threads and --life want at least 1, --align-min a power of two\n");
        _exit(2);
    }
}

/* The kernel grows the main thread's stack on demand, which a lowered RLIMIT_AS forbids: have it early. */
__attribute__((noinline)) static void stack_touch(void) {
    volatile unsigned char room[65536];
    for (size_t i = 0; i < sizeof room; i += 1024) room[i] = 0;
}

int main(int argc, char** argv) {
    struct model_config* c = &model_config;
    options_read(argc, argv);
    stack_touch();
    double start = clock_seconds();
    rng_init(&life_rng, c->seed + 1000003);
    entry_init();
    shadow_init(32);
    mailbox_init(32 * c->threads);
    workers = memory_map(c->threads * sizeof *workers);
    for (unsigned i = 0; i < c->threads; i++)
        worker_init(&workers[i], i, c->ops / c->threads + (i < c->ops % c->threads),
                    c->forks / c->threads + (i < c->forks % c->threads));
    if (pipe(ended_pipe) != 0 || pthread_key_create(&exit_key, thread_exit_hook) != 0)
        model_fail("no pipe or no thread key");
    uint64_t lives = threads_run(), ops = 0, taken = 0, nomem = 0, forks = 0;
    for (unsigned i = 0; i < c->threads; i++) {
        ops += workers[i].ops;
        taken += workers[i].taken;
        nomem += workers[i].nomem;
        forks += workers[i].calls[CALL_fork];
    }
    if (limit_is_due()) model_fail("the run was too short to lower the limit in time");
    if (c->verbose) calls_print();
    double seconds = clock_seconds() - start;
    uint64_t lost = drain_all(), claimed = shadow_count();
    if (lost != 0 || claimed != 0)
        model_fail("lost: %llu blocks and %llu bytes are still recorded as live at the end, expected none",
                   (unsigned long long)lost, (unsigned long long)claimed * 8);
    model_print(
        STDOUT_FILENO,
        "ops: %llu  seed: %llu  threads: %u (%llu lives)  forks: %llu  handed over: %llu  no memory: %llu  "
        "unrecorded regions: %llu  time: %.2f s (%.2f M/s)  lost: %llu\n",
        (unsigned long long)ops, (unsigned long long)c->seed, c->threads, (unsigned long long)lives,
        (unsigned long long)forks, (unsigned long long)taken, (unsigned long long)nomem,
        (unsigned long long)shadow_missing(), seconds, (double)ops / seconds * 1e-6,
        (unsigned long long)lost);
    return 0;
}
