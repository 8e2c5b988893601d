/* bench.c: see bench.h.
 *
 * Who may call it: the programs of this folder. It deliberately uses nothing of libc that may allocate: no
 * stdio streams, no qsort.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "bench.h"

#include "weir/weir.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MIB 1048576.0

/* ---- results */
static char result_buffer[1 << 16];
static size_t result_length;

static void result_add(const char* name, const char* value) {
    size_t room = sizeof result_buffer - result_length;
    int n = snprintf(result_buffer + result_length, room, "%s %s\n", name, value);
    if (n < 0 || (size_t)n >= room) give_up("too many results");
    result_length += (size_t)n;
}

static void text_out(int fd, const char* text, size_t length) {
    while (length) {
        ssize_t n = write(fd, text, length);
        if (n <= 0) _exit(4);
        text += n, length -= (size_t)n;
    }
}

void result_text(const char* name, const char* value) { result_add(name, value); }

void result_count(const char* name, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    result_add(name, text);
}

void result_real(const char* name, double value) {
    char text[40];
    snprintf(text, sizeof text, "%.5f", value);
    result_add(name, text);
}

void result_mib(const char* name, uint64_t bytes) {
    char text[40];
    snprintf(text, sizeof text, "%.2f", (double)bytes / MIB);
    result_add(name, text);
}

void result_series(const char* name, const double* values, size_t count) {
    static char text[1 << 14];
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; i < count; i++) {
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%.1f", i ? " " : "", values[i]);
        if (length >= sizeof text) give_up("too long a series");
    }
    result_add(name, text);
}

void result_flush(void) {
    text_out(1, result_buffer, result_length);
    result_length = 0;
}

_Noreturn void give_up(const char* why) {
    text_out(2, why, strlen(why));
    text_out(2, "\n", 1);
    _exit(3);
}

/* ---- options */
static _Noreturn void options_refuse(const struct option_row* rows) {
    char line[256];
    for (; rows->name; rows++) {
        int n = snprintf(line, sizeof line, "  --%-14s %s\n", rows->name, rows->help);
        text_out(2, line, (size_t)n);
    }
    _exit(2);
}

static uint64_t bytes_of(const char* text, char** end) {
    double value = strtod(text, end);
    static const char units[] = "kmgt";
    const char* unit = **end ? strchr(units, **end | 0x20) : NULL;
    if (unit) (*end)++, value *= pow(1024, (double)(unit - units + 1));
    return (uint64_t)value;
}

static bool option_set(const struct option_row* row, const char* text) {
    char* end = NULL;
    switch (row->kind) {
    case OPTION_TEXT:
        *(const char**)row->value = text;
        return true;
    case OPTION_REAL:
        *(double*)row->value = strtod(text, &end);
        break;
    case OPTION_COUNT:
        *(uint64_t*)row->value = strtoull(text, &end, 10);
        break;
    case OPTION_BYTES:
        *(uint64_t*)row->value = bytes_of(text, &end);
        break;
    case OPTION_CHOICE:
        for (unsigned i = 0; row->choices[i]; i++) {
            if (strcmp(text, row->choices[i]) == 0) {
                *(unsigned*)row->value = i;
                return true;
            }
        }
        return false;
    }
    return end != text && *end == 0;
}

void options_read(int argc, char** argv, const struct option_row* rows) {
    for (int i = 1; i < argc; i += 2) {
        const struct option_row* row = rows;
        while (row->name && (strncmp(argv[i], "--", 2) != 0 || strcmp(argv[i] + 2, row->name) != 0)) row++;
        if (!row->name || i + 1 == argc || !option_set(row, argv[i + 1])) options_refuse(rows);
    }
}

/* ---- sequence: splitmix64 (Steele, Lea, Flood 2014) */
uint64_t sequence_next(struct sequence* s) {
    uint64_t z = s->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct sequence sequence_of(uint64_t seed, uint64_t stream) {
    struct sequence s = {seed * 0x2545f4914f6cdd1du + stream};
    s.state = sequence_next(&s);
    return s;
}

double sequence_unit(struct sequence* s) { return (double)(sequence_next(s) >> 11) * 0x1p-53; }

const char* const size_laws[] = {"log", "uniform", NULL};

size_t size_draw(struct sequence* s, enum size_law law, size_t low, size_t high) {
    double unit = sequence_unit(s), from = (double)low, to = (double)high;
    double size = law == SIZE_LOG ? from * exp(unit * log(to / from)) : from + unit * (to - from);
    size_t bytes = (size_t)size;
    return bytes < low ? low : bytes >= high ? high - 1 : bytes;
}

/* ---- memory outside malloc */
_Atomic uint64_t memory_own;

static size_t page_up(size_t bytes) { return (bytes + page_bytes() - 1) & ~(page_bytes() - 1); }

void* memory_map(size_t bytes) {
    bytes = page_up(bytes);
    void* at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) give_up("no memory for records");
    madvise(at, bytes, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < bytes; i += page_bytes()) ((volatile unsigned char*)at)[i] = 0;
    memory_own += bytes;
    return at;
}

void memory_unmap(void* at, size_t bytes) {
    bytes = page_up(bytes);
    munmap(at, bytes);
    memory_own -= bytes;
}

/* ---- blocks */
const char* const touches[] = {"full", "first", NULL};

static uint64_t pattern_at(uint32_t seed, size_t word) { return ((uint64_t)seed << 32 | 0x5eed) + word; }

struct block block_make(size_t bytes, uint32_t seed, enum touch touch) {
    struct block b = {malloc(bytes), (uint32_t)bytes, seed};
    if (!b.at) give_up("malloc returned NULL");
    if (touch == TOUCH_FIRST && bytes > 8) bytes = 8;
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t value = pattern_at(seed, i);
        __builtin_memcpy(b.at + 8 * i, &value, 8);
    }
    for (size_t i = 8 * words; i < bytes; i++) b.at[i] = (unsigned char)(seed + i);
    return b;
}

void block_free(struct block* b) {
    free(b->at);
    b->at = NULL;
}

bool block_holds(const struct block* b) {
    size_t words = b->bytes / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t value;
        __builtin_memcpy(&value, b->at + 8 * i, 8);
        if (value != pattern_at(b->seed, i)) return false;
    }
    for (size_t i = 8 * words; i < b->bytes; i++) {
        if (b->at[i] != (unsigned char)(b->seed + i)) return false;
    }
    return true;
}

/* ---- pages: a set of page numbers, by open addressing; 0 is free, for page 0 is never mapped */
uint64_t page_bytes(void) {
    static uint64_t bytes;
    if (!bytes) bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    return bytes;
}

uint64_t pages_bound(const struct block* blocks, size_t count) {
    uint64_t pages = 0;
    for (size_t i = 0; i < count; i++) pages += blocks[i].at ? blocks[i].bytes / page_bytes() + 2 : 0;
    return pages;
}

void page_set_open(struct page_set* set, uint64_t pages_max) {
    set->slot_count = 4096;
    while (set->slot_count < 2 * pages_max) set->slot_count *= 2;
    set->slots = memory_map(set->slot_count * sizeof *set->slots);
    set->pages = 0;
}

static void page_set_put(struct page_set* set, uint64_t page) {
    size_t at = (page * 0x9e3779b97f4a7c15u >> 20) & (set->slot_count - 1);
    while (set->slots[at] && set->slots[at] != page) at = (at + 1) & (set->slot_count - 1);
    set->pages += !set->slots[at];
    set->slots[at] = page;
}

void page_set_add(struct page_set* set, const struct block* blocks, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!blocks[i].at) continue;
        uint64_t first = (uintptr_t)blocks[i].at / page_bytes();
        uint64_t last = ((uintptr_t)blocks[i].at + blocks[i].bytes - 1) / page_bytes();
        for (uint64_t page = first; page <= last; page++) page_set_put(set, page);
    }
}

void page_set_close(struct page_set* set) { memory_unmap(set->slots, set->slot_count * sizeof *set->slots); }

/* ---- measuring */
static double clock_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double now_s(void) { return clock_s(CLOCK_MONOTONIC); }
double now_cpu_s(void) { return clock_s(CLOCK_PROCESS_CPUTIME_ID); }
double own_cpu_s(void) { return clock_s(CLOCK_THREAD_CPUTIME_ID); }

void rest_s(double seconds) {
    if (seconds <= 0) return;
    struct timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    while (nanosleep(&t, &t) != 0) {
    }
}

static size_t file_read(const char* path, char* text, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) give_up(path);
    size_t length = 0;
    for (ssize_t n = 1; n > 0 && length + 1 < room; length += (size_t)n) {
        n = read(fd, text + length, room - 1 - length);
        if (n < 0) give_up(path);
    }
    close(fd);
    text[length] = 0;
    return length;
}

static uint64_t rollup_bytes(const char* text, const char* field) {
    const char* at = strstr(text, field);
    return at ? strtoull(at + strlen(field), NULL, 10) * 1024 : 0;
}

/* The kernel walks the page tables for smaps_rollup: exact, unlike the counters of status and statm. */
struct resident resident_now(void) {
    static char text[8192];
    file_read("/proc/self/smaps_rollup", text, sizeof text);
    uint64_t all = rollup_bytes(text, "Pss_Anon:") + rollup_bytes(text, "Pss_Shmem:"), own = memory_own;
    if (all < own) give_up("less is resident than the records alone");
    return (struct resident){all - own, rollup_bytes(text, "LazyFree:"),
                             rollup_bytes(text, "AnonHugePages:")};
}

uint64_t resident_all(void) {
    static char text[8192];
    file_read("/proc/self/smaps_rollup", text, sizeof text);
    return rollup_bytes(text, "Rss:");
}

struct usage usage_now(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (struct usage){(uint64_t)r.ru_minflt,
                          (double)r.ru_utime.tv_sec + (double)r.ru_utime.tv_usec * 1e-6,
                          (double)r.ru_stime.tv_sec + (double)r.ru_stime.tv_usec * 1e-6};
}

void mark_begin(void) { (void)getpgid(2000000001); }
void mark_end(void) { (void)getpgid(2000000002); }

double over_limit_mib(uint64_t resident, uint64_t limit) {
    return ((double)resident - 1.03 * (double)limit) / MIB - 6;
}

/* ---- threads */
static pthread_barrier_t crew_barrier;
static size_t crew_threads;
static void (*crew_job)(size_t number); /* Sync: written between two meetings, by the main thread */

static void* crew_run(void* number) {
    for (;;) {
        pthread_barrier_wait(&crew_barrier);
        crew_job((uintptr_t)number);
        pthread_barrier_wait(&crew_barrier);
    }
    return NULL;
}

void crew_open(size_t threads) {
    if (threads < 1 || threads > CREW_MAX) give_up("so many threads are not possible");
    crew_threads = threads;
    pthread_barrier_init(&crew_barrier, NULL, (unsigned)threads + 1);
    for (size_t i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, crew_run, (void*)(uintptr_t)i) != 0) give_up("no thread");
    }
}

void crew_begin(void (*job)(size_t number)) {
    crew_job = job;
    pthread_barrier_wait(&crew_barrier);
}

void crew_end(void) { pthread_barrier_wait(&crew_barrier); }

void crew_do(void (*job)(size_t number)) {
    crew_begin(job);
    crew_end();
}

void crew_do_timed(const char* name, void (*job)(size_t number)) {
    char key[64];
    struct usage before = usage_now();
    double cpu = now_cpu_s(), start = now_s();
    crew_do(job);
    snprintf(key, sizeof key, "%s_s", name);
    result_real(key, now_s() - start);
    snprintf(key, sizeof key, "%s_cpu_s", name);
    result_real(key, now_cpu_s() - cpu);
    snprintf(key, sizeof key, "%s_faults", name);
    result_count(key, usage_now().minor_faults - before.minor_faults);
}

/* ---- the allocator that serves */
static const char* served_by;            /* the file in which malloc lies */
static int (*trim)(size_t);              /* its malloc_trim, or NULL */
static int (*stats)(struct weir_stats*); /* weir's, or NULL */

static const char* file_of(void* address) {
    Dl_info info;
    return address && dladdr(address, &info) ? info.dli_fname : "";
}

static bool maps_show(const char* file) {
    static char text[1 << 18];
    file_read("/proc/self/maps", text, sizeof text);
    return strstr(text, file) != NULL;
}

void allocator_prove(const char* expected) {
    static char wanted[4096], found[4096];
    void* const entries[] = {(void*)malloc, (void*)free, (void*)calloc, (void*)realloc, (void*)aligned_alloc};
    served_by = file_of(entries[0]);
    if (!realpath(served_by, found) || !maps_show(found)) give_up("malloc's file is not mapped");
    for (size_t i = 1; i < sizeof entries / sizeof *entries; i++) {
        if (strcmp(file_of(entries[i]), served_by) != 0) give_up("the entry points lie in different files");
    }
    if (expected && strcmp(expected, "system") != 0) {
        if (!realpath(expected, wanted) || strcmp(wanted, found) != 0)
            give_up("malloc does not lie in the expected file");
    } else if (expected && strcmp(served_by, file_of((void*)mmap)) != 0) {
        give_up("malloc does not lie in the C library");
    }
    void* symbol = dlsym(RTLD_DEFAULT, "malloc_trim");
    if (strcmp(file_of(symbol), served_by) == 0) trim = (int (*)(size_t))symbol;
    symbol = dlsym(RTLD_DEFAULT, "weir_stats_get");
    if (strcmp(file_of(symbol), served_by) == 0) stats = (int (*)(struct weir_stats*))symbol;
    result_text("malloc_in", found);
}

bool lies_with_malloc(void* address) { return strcmp(file_of(address), served_by) == 0; }

int trim_now(void) { return trim ? trim(0) : -1; }

/* An older library refuses fields that it does not know: then without those of the release policy. */
struct weir_said weir_said_now(void) {
    struct weir_stats s = {.struct_size = sizeof s};
    if (!stats) return (struct weir_said){0};
    if (stats(&s) != 0) {
        s = (struct weir_stats){.struct_size = offsetof(struct weir_stats, refaulted_bytes)};
        if (stats(&s) != 0) return (struct weir_said){0};
    }
    uint64_t calls = s.sys_purge + s.sys_map + s.sys_protect + s.sys_remap;
    return (struct weir_said){true, calls, s.purged_bytes, s.refaulted_bytes, s.release_window_ns};
}

void weir_said_since(const struct weir_said* before) {
    struct weir_said now = weir_said_now();
    if (!now.known || !before->known) return;
    result_count("weir_calls", now.calls - before->calls);
    result_mib("weir_purged_mib", now.purged_bytes - before->purged_bytes);
    result_mib("weir_refaulted_mib", now.refaulted_bytes - before->refaulted_bytes);
    result_real("weir_window_ms", (double)now.window_ns * 1e-6);
}
