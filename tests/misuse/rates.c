/* rates.c: random programs with one misuse at a random point, to measure how surely and how late an
 * allocator notices.
 *
 * misuse.c calls rates_main, rates.py reads what it prints: one line a round,
 * `OUTCOME LATENCY CODE`, with OUTCOME caught, silent, damaged (the program saw its own data change),
 * crashed, hung or void (the round had no misuse after all), and LATENCY in calls of malloc and free
 * between the misuse and the report. Each round is a child of its own; the count of calls lives in
 * shared memory. It knows no allocator, only the form of the report.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "misuse.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 400
#define CALLS_BEFORE 4000
#define CALLS_AFTER 20000
#define MIB ((size_t)1 << 20)

/* Shared between a round and its parent. Sync: the parent reads when the child is dead. */
struct shared {
    volatile uint64_t calls;
    volatile uint64_t misuse_at;
};

struct slot {
    unsigned char* p;
    size_t size;
    uint64_t tag;
    int sized; /* from operator new, hence for sized delete */
};

struct program {
    struct shared* shared;
    uint64_t random;
    struct slot slots[SLOTS];
    unsigned spread; /* how many sizes it uses: some programs use one, some hundreds */
    size_t scale;
};
static struct program prog;

static uint64_t next(void) {
    prog.random ^= prog.random << 13;
    prog.random ^= prog.random >> 7;
    prog.random ^= prog.random << 17;
    return prog.random * 0x2545f4914f6cdd1dull;
}
static size_t below(size_t n) { return (size_t)((next() >> 32) * n >> 32); }

static size_t size_next(void) { return 16 + prog.scale * (1 + below(prog.spread)); }

static void slot_fill(struct slot* s, size_t size, int sized) {
    s->p = sized ? cxx_new(size) : malloc(size);
    s->size = size;
    s->sized = sized;
    s->tag = next();
    memcpy(s->p, &s->tag, 8);
    memcpy(s->p + size - 8, &s->tag, 8);
    prog.shared->calls++;
}

static void slot_check(const struct slot* s) {
    if (memcmp(s->p, &s->tag, 8) != 0 || memcmp(s->p + s->size - 8, &s->tag, 8) != 0) _exit(3);
}

static void free_on(unsigned helper, void* p);
static int helpers_running;

static void slot_free(struct slot* s) {
    slot_check(s);
    if (helpers_running && !s->sized && (next() & 15) == 0)
        free_on(next() & 1, s->p); /* as programs do that hand blocks over */
    else if (s->sized)
        cxx_delete_sized(s->p, s->size);
    else
        free(s->p);
    s->p = NULL;
    prog.shared->calls++;
}

static void work(uint64_t calls) {
    for (uint64_t end = prog.shared->calls + calls; prog.shared->calls < end;) {
        struct slot* s = &prog.slots[below(SLOTS)];
        if (s->p != NULL)
            slot_free(s);
        else
            slot_fill(s, size_next(), (next() & 7) == 0);
    }
}

/* A live block of the program's own sizes, taken out of the program's hands. */
static struct slot take(void) {
    struct slot s;
    slot_fill(&s, size_next(), 0);
    return s;
}

static int handed_out_again(const unsigned char* p) {
    for (unsigned i = 0; i < SLOTS; i++)
        if (prog.slots[i].p == p) return 1;
    return 0;
}

/* Two threads that free what they are given. They are there from the start of a round: starting a thread
 * allocates, and would change what the misuse meets. */
static struct helper {
    sem_t wanted, done;
    void* p;
} helpers[2];

static void* helper_main(void* arg) {
    struct helper* h = arg;
    for (;;) {
        while (sem_wait(&h->wanted) != 0) continue;
        free(h->p);
        sem_post(&h->done);
    }
    return NULL;
}

static void helpers_start(void) {
    for (unsigned i = 0; i < 2; i++) {
        pthread_t thread;
        sem_init(&helpers[i].wanted, 0, 0);
        sem_init(&helpers[i].done, 0, 0);
        if (pthread_create(&thread, NULL, helper_main, &helpers[i]) != 0) _exit(4);
    }
    helpers_running = 1;
}

static void free_on(unsigned helper, void* p) {
    helpers[helper].p = p;
    sem_post(&helpers[helper].wanted);
    while (sem_wait(&helpers[helper].done) != 0) continue;
}

static void mark(void) { prog.shared->misuse_at = prog.shared->calls; }
static void* volatile sink;
static void* hide(void* p) {
    sink = p;
    return sink;
}

static void write_freed(size_t offset, size_t width) {
    struct slot s = take();
    volatile unsigned char* p = s.p;
    free(hide(s.p));
    mark();
    if (width > s.size) width = s.size;
    if (offset + width > s.size) offset = s.size - width;
    for (size_t i = 0; i < width; i++) p[offset + i] ^= (unsigned char)(1 + below(255));
}

static void twice(size_t size) {
    unsigned char* p = malloc(size);
    p[0] = 1;
    free(hide(p));
    mark();
    free(hide(p));
}

static void delete_wrong(size_t size, size_t told) {
    unsigned char* p = cxx_new(size);
    mark();
    cxx_delete_sized(hide(p), told);
}

/* The misuses. Each returns 0 when the round came to nothing. */
static int do_none(void) { return mark(), 1; }
static int do_free_stack(void) {
    char local[256];
    mark();
    free(hide(local + below(200)));
    return 1;
}
static char global[256];
static int do_free_global(void) { return mark(), free(hide(global + below(200))), 1; }
static int do_free_wild(void) { return mark(), free((void*)(uintptr_t)(next() >> 17 | 1u << 20)), 1; }
static int do_free_interior(void) {
    struct slot s = take();
    mark();
    free(hide(s.p + 16 * (1 + below((s.size - 1) / 16))));
    return 1;
}
static int do_free_misaligned(void) {
    struct slot s = take();
    size_t offset = 1 + below(s.size - 1);
    if (offset % 16 == 0) offset++;
    mark();
    free(hide(s.p + offset));
    return 1;
}
static int do_free_interior_large(void) {
    unsigned char* p = malloc(MIB);
    mark();
    free(hide(p + 1 + below(MIB - 1)));
    return 1;
}
static int do_realloc_interior(void) {
    struct slot s = take();
    mark();
    sink = realloc(hide(s.p + 16 * (1 + below((s.size - 1) / 16))), size_next());
    return 1;
}
static int do_double_free(void) { return twice(size_next()), 1; }
static int do_double_free_later(void) {
    struct slot s = take();
    free(hide(s.p));
    work(1 + below(200));
    if (handed_out_again(s.p)) return 0;
    mark();
    free(hide(s.p));
    return 1;
}
static int do_double_free_remote_first(void) {
    struct slot s = take();
    free_on(0, hide(s.p));
    mark();
    free(hide(s.p));
    return 1;
}
static int do_double_free_remote_second(void) {
    struct slot s = take();
    free(hide(s.p));
    mark();
    free_on(0, hide(s.p));
    return 1;
}
static int do_double_free_two_threads(void) {
    struct slot s = take();
    free_on(0, hide(s.p));
    mark();
    free_on(1, hide(s.p));
    return 1;
}
static int do_double_free_large(void) { return twice(MIB + below(MIB)), 1; }
static int do_double_free_huge(void) { return twice(64 * MIB), 1; }
static int do_size_smaller(void) {
    size_t size = size_next() + 64;
    return delete_wrong(size, 1 + below(size / 2)), 1;
}
static int do_size_larger(void) {
    size_t size = size_next();
    return delete_wrong(size, 2 * size + 1 + below(4 * size)), 1;
}
static int do_size_small_as_large(void) { return delete_wrong(size_next(), MIB + below(MIB)), 1; }
static int do_size_large_as_small(void) { return delete_wrong(MIB + below(MIB), size_next()), 1; }
static int do_write_one_of_16(void) { return write_freed(below(16), 1), 1; }
static int do_write_first_word(void) { return write_freed(0, 8), 1; }
static int do_write_both_words(void) { return write_freed(0, 16), 1; }
static int do_write_all(void) { return write_freed(0, 4096), 1; }
static int do_write_second_word(void) { return write_freed(8, 8), 1; }
static int do_write_deep(void) { return write_freed(16 + below(1024), 1 + below(16)), 1; }

static const struct {
    const char* name;
    int (*run)(void);
} kinds[] = {
    {"none", do_none},
    {"free-stack", do_free_stack},
    {"free-global", do_free_global},
    {"free-wild", do_free_wild},
    {"free-interior", do_free_interior},
    {"free-misaligned", do_free_misaligned},
    {"free-interior-large", do_free_interior_large},
    {"realloc-interior", do_realloc_interior},
    {"double-free", do_double_free},
    {"double-free-later", do_double_free_later},
    {"double-free-remote-first", do_double_free_remote_first},
    {"double-free-remote-second", do_double_free_remote_second},
    {"double-free-two-threads", do_double_free_two_threads},
    {"double-free-large", do_double_free_large},
    {"double-free-huge", do_double_free_huge},
    {"size-smaller", do_size_smaller},
    {"size-larger", do_size_larger},
    {"size-small-as-large", do_size_small_as_large},
    {"size-large-as-small", do_size_large_as_small},
    {"write-one-of-16", do_write_one_of_16},
    {"write-first-word", do_write_first_word},
    {"write-both-words", do_write_both_words},
    {"write-all", do_write_all},
    {"write-second-word", do_write_second_word},
    {"write-deep", do_write_deep},
};
enum { kind_count = sizeof kinds / sizeof kinds[0] };

__attribute__((noreturn)) static void round_run(unsigned kind, uint64_t seed) {
    alarm(20);
    prog.random = (seed + 1) * 0x9e3779b97f4a7c15ull | 1;
    for (unsigned i = 0; i < 8; i++) next();
    prog.spread = 1u << below(6);
    prog.scale = 16u << below(4);
    if (strstr(kinds[kind].name, "remote") != NULL || strstr(kinds[kind].name, "threads") != NULL)
        helpers_start();
    work(1 + below(CALLS_BEFORE));
    if (!kinds[kind].run()) _exit(5);
    work(CALLS_AFTER);
    for (unsigned i = 0; i < SLOTS; i++)
        if (prog.slots[i].p != NULL) slot_free(&prog.slots[i]);
    for (unsigned i = 0; i < SLOTS; i++) slot_fill(&prog.slots[i], size_next(), 0);
    _exit(0);
}

static void round_judge(const struct shared* shared, int status, char* text, size_t n) {
    unsigned long long latency = shared->calls - shared->misuse_at;
    text[n] = '\0';
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strncmp(text, "weir: ", 6) == 0) {
        char* code = text + 6;
        code[strcspn(code, ":\n")] = '\0';
        misuse_print(STDOUT_FILENO, "caught %llu %s\n", latency, code);
        return;
    }
    const char* outcome = "crashed";
    if (WIFSIGNALED(status))
        outcome = WTERMSIG(status) == SIGALRM ? "hung" : "crashed";
    else if (WIFEXITED(status))
        outcome = WEXITSTATUS(status) == 0   ? "silent"
                  : WEXITSTATUS(status) == 3 ? "damaged"
                  : WEXITSTATUS(status) == 5 ? "void"
                                             : "crashed";
    misuse_print(STDOUT_FILENO, "%s %llu %d\n", outcome, latency, status);
}

static void round_start(struct shared* shared, unsigned kind, uint64_t seed) {
    int ends[2], status = 0;
    char text[512];
    size_t n = 0;
    shared->calls = shared->misuse_at = 0;
    if (pipe(ends) != 0) _exit(4);
    pid_t pid = fork();
    if (pid < 0) _exit(4);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        prog.shared = shared;
        round_run(kind, seed);
    }
    close(ends[1]);
    for (ssize_t got; n < sizeof text - 1 && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    close(ends[0]);
    if (waitpid(pid, &status, 0) != pid) _exit(4);
    round_judge(shared, status, text, n);
}

int rates_main(int argc, char** argv) {
    uint64_t seed = 1, rounds = 10;
    unsigned kind = kind_count;
    for (int i = 0; i < argc; i++) {
        const char* value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--list") == 0) {
            for (unsigned k = 0; k < kind_count; k++) misuse_print(STDOUT_FILENO, "%s\n", kinds[k].name);
            return 0;
        }
        if (strcmp(argv[i], "--seed") == 0) seed = strtoull(value, NULL, 0);
        if (strcmp(argv[i], "--rounds") == 0) rounds = strtoull(value, NULL, 0);
        for (unsigned k = 0; strcmp(argv[i], "--kind") == 0 && k < kind_count; k++)
            if (strcmp(value, kinds[k].name) == 0) kind = k;
    }
    if (kind == kind_count) {
        misuse_print(STDERR_FILENO, "misuse rates: --kind wants one of `misuse rates --list`\n");
        return 2;
    }
    struct shared* shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 4;
    for (uint64_t i = 0; i < rounds; i++) round_start(shared, kind, seed * 1000003 + i * 101 + kind);
    return 0;
}
