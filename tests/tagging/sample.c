/* sample.c: random programs with tagging on, each with one misuse or none at a random point, and a model that
 * knows whether it must be reported.
 *
 *   sample programs FIRST COUNT    runs the programs of so many seeds; a line each:
 *                                  `VERDICT KIND OUTCOME SEED ...`
 *   sample one SEED                that program alone, in this process
 *   sample rates COUNT             how many of COUNT stale and wild pointers have the tag of their memory
 *                                  after all: lines `even|odd|wild TRIALS MISSED`
 *
 * VERDICT: must (be reported), never (may), even, odd, wild (some of them), void (no misuse came about);
 * OUTCOME: caught, silent, strange.
 *
 * sample.py calls it, with an allocator preloaded. The model knows who has which bytes, how often the place
 * of a freed block was freed since, and of the allocator: that a slab's blocks lie side by side, that blocks
 * above 64 KiB have no tag but pages beside them that may not be touched. It does not look at tags.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "tags.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum {
    SLOTS = 200,
    STALE = 32,
    CALLS_BEFORE = 1500,
    CALLS_BETWEEN = 300,
    CALLS_LATER = 4000,
    SMALL_MAX = 1024,       /* slabs alone */
    TAGGED_MAX = 64 * 1024, /* larger blocks have no tags */
    FENCE_BYTES = 4096,
    LIMIT_S = 60,
};
enum verdict { MUST, NEVER, EVEN, ODD, WILD, VOID };
static const char* const verdict_names[] = {"must", "never", "even", "odd", "wild", "void"};

/* Shared between a program and its parent. Sync: the parent reads when the child is dead. */
static struct shared {
    volatile int verdict;
    volatile int begun;  /* the misuse comes next */
    volatile int access; /* it is an access: the report has its address */
    volatile uintptr_t at;
}* shared;

struct slot {
    unsigned char* p;
    size_t size, usable;
    unsigned char fill;
};
/* A pointer that was freed. `freed`: how often blocks at its place were freed since. */
struct stale {
    unsigned char* p;
    size_t usable;
    unsigned freed;
    int is_live; /* the place is somebody's again */
};

static struct slot slots[SLOTS];
static struct stale stale[STALE]; /* [0]: the one that is waited with */
static unsigned stale_next;
static uint64_t random_state;
static size_t scale, spread;
static int is_threaded;
static volatile unsigned char sink;

static uint64_t next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545f4914f6cdd1dull;
}
static size_t below(size_t n) { return (size_t)((next() >> 32) * n >> 32); }

static size_t size_next(void) {
    switch (below(40)) {
    case 0:
        return 1 + below(TAGGED_MAX);
    case 1:
        return TAGGED_MAX + 1 + below(8 * TAGGED_MAX);
    case 2:
        return 1025 + below(8000);
    default:
        return 1 + scale * (1 + below(spread)) - below(16);
    }
}

/* ---- the model */

static int overlap(const unsigned char* p, size_t usable, const struct stale* s) {
    return address_of(p) < address_of(s->p) + s->usable && address_of(s->p) < address_of(p) + usable;
}
static void model_taken(const struct slot* slot) {
    for (unsigned i = 0; i < STALE; i++)
        if (stale[i].p != NULL && overlap(slot->p, slot->usable, &stale[i])) stale[i].is_live = 1;
}
static struct stale* model_freed(const struct slot* slot) {
    for (unsigned i = 0; i < STALE; i++)
        if (stale[i].p != NULL && overlap(slot->p, slot->usable, &stale[i])) {
            stale[i].is_live = 0;
            stale[i].freed++;
        }
    struct stale* s = &stale[1 + stale_next++ % (STALE - 1)];
    *s = (struct stale){slot->p, slot->usable, 0, 0};
    return s;
}
/* Whether use of a stale pointer must be noticed. Above 64 KiB it need not. */
static enum verdict model_verdict(const struct stale* s) {
    if (s->usable > TAGGED_MAX) return VOID;
    if (s->freed == 0) return MUST;
    return tag_of(s->p) % 2 == 0 ? EVEN : ODD;
}

/* ---- sound work */

static void fail(const char* what) {
    say("broken: %s\n", what);
    _exit(9);
}

static void slot_taken(struct slot* slot, unsigned char* p, size_t size) {
    if (p == NULL) fail("no memory");
    slot->p = p;
    slot->size = size;
    slot->usable = malloc_usable_size(p);
    slot->fill = (unsigned char)next();
    size_t touched = slot->usable < 4096 ? slot->usable : size;
    memset(p, slot->fill, touched < 4096 ? touched : 4096);
    p[size - 1] = p[slot->usable - 1] = slot->fill;
    model_taken(slot);
}
static void slot_fill(struct slot* slot) {
    size_t size = size_next();
    unsigned char* p;
    switch (below(8)) {
    case 0:
        p = calloc(1, size);
        for (size_t i = 0; p != NULL && i < size; i += 1 + i / 64)
            if (p[i] != 0) fail("calloc: not zero");
        break;
    case 1:
        p = memalign((size_t)16 << below(5), size);
        break;
    default:
        p = malloc(size);
    }
    slot_taken(slot, p, size);
}
static void slot_check(const struct slot* slot) {
    for (size_t i = 0; i < slot->size && i < 4096; i += 1 + i / 16)
        if (slot->p[i] != slot->fill) fail("contents changed");
    if (slot->p[slot->size - 1] != slot->fill) fail("the last byte changed");
}

static void* thread_free(void* p) {
    free(p);
    return NULL;
}
static struct stale* slot_free(struct slot* slot) {
    slot_check(slot);
    struct stale* s = model_freed(slot);
    pthread_t thread;
    if (is_threaded && below(64) == 0 && pthread_create(&thread, NULL, thread_free, slot->p) == 0)
        pthread_join(thread, NULL);
    else
        free(slot->p);
    slot->p = NULL;
    return s;
}
/* The stale pointer, or NULL where it stayed. */
static struct stale* slot_resize(struct slot* slot) {
    struct slot old = *slot;
    size_t size = size_next(), same = size < old.size ? size : old.size;
    slot_check(slot);
    unsigned char* p = realloc(slot->p, size);
    if (p == NULL) fail("no memory");
    for (size_t i = 0; i < same && i < 4096; i += 1 + i / 16)
        if (p[i] != old.fill) fail("realloc: contents lost");
    struct stale* s = p != old.p ? model_freed(&old) : NULL;
    slot_taken(slot, p, size);
    return s;
}
static void work(size_t calls) {
    for (size_t i = 0; i < calls; i++) {
        struct slot* slot = &slots[below(SLOTS)];
        if (slot->p == NULL)
            slot_fill(slot);
        else if (below(8) == 0)
            (void)slot_resize(slot);
        else
            (void)slot_free(slot);
    }
}

/* ---- misuse */

static void begin(enum verdict verdict, const volatile void* at, int access) {
    shared->verdict = verdict;
    shared->at = address_of(at);
    shared->access = access;
    shared->begun = 1;
    if (verdict == VOID) _exit(0);
}
static void touch(volatile unsigned char* at) {
    if (below(2) == 0)
        sink = *at;
    else
        *at = 1;
}
static struct slot* slot_any(size_t usable_max) {
    for (;;) {
        struct slot* slot = &slots[below(SLOTS)];
        if (slot->p == NULL) slot_fill(slot);
        if (slot->usable <= usable_max) return slot;
        (void)slot_free(slot);
    }
}
/* How far past an end of the block an access must be noticed for sure. */
static size_t reach(const struct slot* slot) {
    return slot->usable <= SMALL_MAX ? slot->usable : slot->usable <= TAGGED_MAX ? 16 : FENCE_BYTES;
}

static void do_none(void) {
    begin(NEVER, NULL, 0);
    work(CALLS_BEFORE);
}
static void do_within(void) {
    struct slot* slot = slot_any(SIZE_MAX);
    begin(NEVER, slot->p, 1);
    for (size_t i = slot->size; i < slot->usable; i += 1 + i / 16) slot->p[i] = 1;
    work(10);
}
static void do_overflow(void) {
    struct slot* slot = slot_any(SIZE_MAX);
    unsigned char* at = slot->p + slot->usable + below(reach(slot));
    begin(MUST, at, 1);
    touch(at);
}
static void do_underflow(void) {
    struct slot* slot = slot_any(SIZE_MAX);
    unsigned char* at = slot->p - 1 - below(reach(slot));
    begin(MUST, at, 1);
    touch(at);
}
static void do_overflow_run(void) {
    struct slot* slot = slot_any(SIZE_MAX);
    begin(MUST, slot->p + slot->usable, 1);
    for (volatile unsigned char *p = slot->p, *end = p + slot->usable + 1; p < end; p++) *p = 1;
}
static void do_freed(void) {
    struct stale* s = slot_free(slot_any(TAGGED_MAX));
    unsigned char* at = s->p + below(s->usable);
    begin(model_verdict(s), at, 1);
    touch(at);
}
static void do_freed_realloc(void) {
    struct stale* s;
    do s = slot_resize(slot_any(TAGGED_MAX));
    while (s == NULL);
    unsigned char* at = s->p + below(s->usable);
    begin(model_verdict(s), at, 1);
    touch(at);
}
static struct stale* stale_any(void) {
    stale[0] = stale[1 + below(STALE - 1)];
    if (stale[0].p == NULL) begin(VOID, NULL, 0);
    work(below(2) == 0 ? below(CALLS_BETWEEN) : below(CALLS_LATER));
    return &stale[0];
}
static void do_stale(void) {
    struct stale* s = stale_any();
    unsigned char* at = s->p + below(s->usable);
    begin(model_verdict(s), at, 1);
    touch(at);
}
static void do_stale_free(void) {
    struct stale* s = stale_any();
    begin(model_verdict(s), s->p, 0);
    free(hide(s->p));
}
static void do_stale_realloc(void) {
    struct stale* s = stale_any();
    begin(model_verdict(s), s->p, 0);
    (void)hide(realloc(hide(s->p), size_next()));
}
static void do_stale_usable(void) {
    struct stale* s = stale_any();
    begin(model_verdict(s), s->p, 0);
    sink = (unsigned char)malloc_usable_size(hide(s->p));
}
static void do_double_free(void) {
    struct stale* s = slot_free(slot_any(SIZE_MAX));
    begin(MUST, s->p, 0);
    free(hide(s->p));
}
static unsigned char* other_tag(const struct slot* slot) {
    uintptr_t change = (uintptr_t)(1 + below(15)) << 56;
    return hide((void*)((uintptr_t)slot->p ^ change));
}
static void do_wrong_tag(void) {
    struct slot* slot = slot_any(TAGGED_MAX);
    unsigned char* at = other_tag(slot) + below(slot->usable);
    begin(MUST, at, 1);
    touch(at);
}
static void do_wrong_tag_free(void) {
    struct slot* slot = slot_any(TAGGED_MAX);
    unsigned char* p = other_tag(slot);
    begin(MUST, p, 0);
    free(p);
}
static void do_untagged(void) {
    struct slot* slot = slot_any(TAGGED_MAX);
    unsigned char* at = (unsigned char*)address_of(slot->p) + below(slot->usable);
    begin(MUST, at, 1);
    touch(hide(at));
}
/* From one block into another, anywhere. */
static void do_wild(void) {
    struct slot* one = slot_any(SMALL_MAX);
    struct slot* two = slot_any(SMALL_MAX);
    if (one == two) begin(VOID, NULL, 0);
    uintptr_t tag = (uintptr_t)one->p & ~(uintptr_t)0 << 56;
    unsigned char* at = hide((void*)(tag | (address_of(two->p) + below(two->usable))));
    begin(WILD, at, 1);
    touch(at);
}

static const struct {
    const char* name;
    void (*run)(void);
} kinds[] = {
    {"none", do_none},
    {"within-block", do_within},
    {"overflow", do_overflow},
    {"underflow", do_underflow},
    {"overflow-run", do_overflow_run},
    {"freed", do_freed},
    {"freed-by-realloc", do_freed_realloc},
    {"stale", do_stale},
    {"stale-free", do_stale_free},
    {"stale-realloc", do_stale_realloc},
    {"stale-usable-size", do_stale_usable},
    {"double-free", do_double_free},
    {"wrong-tag", do_wrong_tag},
    {"wrong-tag-free", do_wrong_tag_free},
    {"untagged", do_untagged},
    {"wild", do_wild},
};
enum { kind_count = sizeof kinds / sizeof kinds[0] };

/* ---- programs */

__attribute__((noreturn)) static void program_run(uint64_t seed) {
    alarm(LIMIT_S);
    random_state = (seed + 1) * 0x9e3779b97f4a7c15ull | 1;
    for (unsigned i = 0; i < 8; i++) next();
    scale = (size_t)16 << below(4);
    spread = (size_t)1 << below(5);
    is_threaded = below(4) == 0;
    work(1 + below(CALLS_BEFORE));
    kinds[seed % kind_count].run();
    (void)getppid(); /* where tags are compared late the kernel says here what it saw */
    _exit(0);
}

static int report_fits(const char* text, int number) {
    char at[40];
    if (strncmp(text, "weir: ", 6) != 0) return 0;
    /* A second free whose old tag is the block's next one, by chance, leaves a list with a wrong tag in it:
     * whoever follows that finds it. */
    int by_chance = shared->verdict != MUST && strncmp(text, "weir: tag-", 10) == 0;
    if (!shared->access) return number == SIGABRT || (by_chance && number == SIGSEGV);
    snprintf(at, sizeof at, "at 0x%zx\n", (size_t)shared->at);
    /* A page that may not be touched has no tag to tell of; a late report no place. */
    return number == SIGSEGV && (strstr(text, at) != NULL || strstr(text, "pointer has tag") == NULL);
}

static void program_judge(uint64_t seed, int status, char* text) {
    const char* outcome = "strange";
    char* end = strstr(text, "qemu: uncaught");
    if (end != NULL) *end = '\0';
    if (WIFSIGNALED(status) && shared->begun && report_fits(text, WTERMSIG(status)))
        outcome = "caught";
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && text[0] == '\0')
        outcome = "silent";
    for (char* c = text; *c != '\0'; c++)
        if (*c == '\n') *c = '|';
    say("%s %s %s %llu %s %d %.200s\n", verdict_names[shared->verdict], kinds[seed % kind_count].name,
        outcome, (unsigned long long)seed, shared->begun ? "misused" : "sound", status, text);
}

static void program_start(uint64_t seed) {
    static char text[2048];
    int ends[2], status = 0;
    size_t n = 0;
    memset(shared, 0, sizeof *shared);
    shared->verdict = NEVER;
    if (pipe(ends) != 0) _exit(4);
    pid_t pid = fork();
    if (pid < 0) _exit(4);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        program_run(seed);
    }
    close(ends[1]);
    for (ssize_t got; n < sizeof text - 1 && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    close(ends[0]);
    text[n] = '\0';
    if (waitpid(pid, &status, 0) != pid) _exit(4);
    program_judge(seed, status, text);
}

/* ---- rates: by the tags themselves, so that many can be looked at */

enum { RATE_SLOTS = 512, RATE_CALLS = 24 };

static int rates_main(unsigned long trials) {
    static void* held[RATE_SLOTS];
    unsigned long count[3] = {0}, missed[3] = {0};
    random_state = 88172645463325252ull;
    for (unsigned i = 0; i < RATE_SLOTS; i++) held[i] = malloc(16 + below(4) * 16);
    for (unsigned long n = 0; n < trials; n++) {
        unsigned at = (unsigned)below(RATE_SLOTS), freed = 0;
        void* old = held[at];
        size_t size = malloc_usable_size(old);
        free(old);
        held[at] = NULL;
        /* Blocks of its size come and go until its place was freed again, and was perhaps given out once
         * more. */
        for (unsigned i = 0; i < RATE_CALLS || freed == 0; i++) {
            void* p = malloc(size);
            unsigned victim = (unsigned)below(8) == 0 ? at : (unsigned)below(RATE_SLOTS);
            if (address_of(p) == address_of(old) && below(4) != 0) {
                freed++;
                free(p);
                continue;
            }
            if (held[victim] != NULL) {
                freed += address_of(held[victim]) == address_of(old);
                free(held[victim]);
            }
            held[victim] = p;
        }
        unsigned parity = tag_of(old) % 2;
        count[parity]++;
        missed[parity] += tag_at(old) == tag_of(old);
        void *one = held[below(RATE_SLOTS)], *two = held[below(RATE_SLOTS)];
        if (one != NULL && two != NULL && one != two) {
            count[2]++;
            missed[2] += tag_of(one) == tag_of(two);
        }
        for (unsigned i = 0; i < RATE_SLOTS; i++)
            if (held[i] == NULL) held[i] = malloc(16 + below(4) * 16);
    }
    for (unsigned i = 0; i < 3; i++) say("%s %lu %lu\n", verdict_names[EVEN + i], count[i], missed[i]);
    return 0;
}

int main(int argc, char** argv) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    if (argc == 3 && strcmp(argv[1], "rates") == 0) return rates_main(strtoul(argv[2], NULL, 10));
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 4;
    if (argc == 3 && strcmp(argv[1], "one") == 0) program_run(strtoull(argv[2], NULL, 10));
    if (argc != 4 || strcmp(argv[1], "programs") != 0) return 2;
    uint64_t first = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10);
    for (uint64_t seed = first; seed < first + count; seed++) program_start(seed);
    return 0;
}
