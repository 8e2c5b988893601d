/* bench.h: what the programs of bench/release, bench/pools and bench/workloads share: options, sizes, records
 * outside malloc, proof, measuring.
 *
 * Who may include it: the programs of these folders. Nothing here calls malloc, neither while the heap is
 * measured nor before: records lie in mappings of their own, which are counted and taken off resident memory,
 * and files are read by plain system calls. It deliberately knows no allocator: which one serves is asked of
 * the loader.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BENCH_RELEASE_BENCH_H
#define BENCH_RELEASE_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- options: --NAME VALUE, one row each; choices end with NULL and give the index */
enum option_kind { OPTION_COUNT, OPTION_BYTES, OPTION_REAL, OPTION_TEXT, OPTION_CHOICE };
struct option_row {
    const char* name;
    enum option_kind kind;
    void* value; /* uint64_t, uint64_t, double, const char*, unsigned */
    const char* help;
    const char* const* choices;
};
/* Reads argv, which may only hold what the table has; otherwise prints the table and ends with status 2. */
void options_read(int argc, char** argv, const struct option_row* rows);

/* ---- a deterministic sequence: the same for each allocator */
struct sequence {
    uint64_t state;
};
struct sequence sequence_of(uint64_t seed, uint64_t stream);
uint64_t sequence_next(struct sequence* s);
double sequence_unit(struct sequence* s); /* [0, 1) */

enum size_law { SIZE_LOG, SIZE_UNIFORM };
extern const char* const size_laws[];
/* A size from `low` up to `high`, exclusive. */
size_t size_draw(struct sequence* s, enum size_law law, size_t low, size_t high);

/* ---- blocks and the program's records of them */
struct block {
    unsigned char* at;
    uint32_t bytes; /* as requested */
    uint32_t seed;  /* of the pattern */
};
/* Zeroed memory outside malloc, resident from the start, in 4 KiB pages; counted in memory_own. */
void* memory_map(size_t bytes);
void memory_unmap(void* at, size_t bytes);
extern _Atomic uint64_t memory_own;

enum touch { TOUCH_FULL, TOUCH_FIRST };
extern const char* const touches[];
/* malloc and write: all of it, or the first bytes. Ends the program if there is no memory. */
struct block block_make(size_t bytes, uint32_t seed, enum touch touch);
void block_free(struct block* b);
/* Is every byte of a block that was made with TOUCH_FULL as it was written? */
bool block_holds(const struct block* b);

/* OS pages that the blocks touch, [at, at + bytes), each page once; makes no call of the allocator. */
struct page_set {
    uint64_t* slots;
    size_t slot_count, pages;
};
void page_set_open(struct page_set* set, uint64_t pages_max);
void page_set_add(struct page_set* set, const struct block* blocks, size_t count);
void page_set_close(struct page_set* set);
/* At most so many pages are touched by the blocks. */
uint64_t pages_bound(const struct block* blocks, size_t count);
uint64_t page_bytes(void);
/* Is resident memory more than 1.03 of the limit and 6 MiB? By so many MiB; less than 0: no. */
double over_limit_mib(uint64_t resident, uint64_t limit);

/* ---- measuring */
double now_s(void);     /* monotonic */
double now_cpu_s(void); /* of all threads of the process */
double own_cpu_s(void); /* of the calling thread */
void rest_s(double seconds);

struct resident {
    uint64_t bytes; /* anonymous and shared memory, without the program's own records */
    uint64_t lazy;  /* of these: the kernel may take them (MADV_FREE) and has not yet */
    uint64_t huge;  /* of these: in huge pages */
};
struct resident resident_now(void);
/* Bytes that are resident of all that the process has mapped, also of files. */
uint64_t resident_all(void);

struct usage {
    uint64_t minor_faults;
    double user_s, system_s;
};
struct usage usage_now(void);

/* What weir says of itself, where weir serves; all zero and `known` false otherwise. */
struct weir_said {
    bool known;
    uint64_t calls; /* of mmap, munmap, mprotect, madvise, mremap */
    uint64_t purged_bytes, refaulted_bytes, window_ns;
};
struct weir_said weir_said_now(void);
/* Prints weir_calls, weir_purged_mib, weir_refaulted_mib, weir_window_ms; nothing where weir does not serve.
 */
void weir_said_since(const struct weir_said* before);

/* Between these two, run.py counts system calls under strace: calls of getpgid with numbers that no process
 * has. */
void mark_begin(void);
void mark_end(void);

/* malloc_trim(0) of the allocator that serves: its result, or -1 where it has none of its own. */
int trim_now(void);

/* ---- threads: they do a job, each with its number, and block until the next; the last job leaves them
 * blocked */
#define CREW_MAX 256u
void crew_open(size_t threads);
void crew_do(void (*job)(size_t number));
/* The same in two parts: the caller does something else meanwhile. */
void crew_begin(void (*job)(size_t number));
void crew_end(void);
/* The same, and prints NAME_s, NAME_cpu_s, NAME_faults. */
void crew_do_timed(const char* name, void (*job)(size_t number));

/* ---- proof and results */
/* Ends with status 3 unless malloc, free, calloc, realloc and aligned_alloc lie in `expected` (a file;
 * "system": the C library; NULL: anything) and /proc/self/maps shows that file. Prints which file it was. */
void allocator_prove(const char* expected);
/* After it: is the address in malloc's file? */
bool lies_with_malloc(void* address);
/* "NAME VALUE" lines on stdout, kept until result_flush. */
void result_text(const char* name, const char* value);
void result_count(const char* name, uint64_t value);
void result_real(const char* name, double value);
void result_mib(const char* name, uint64_t bytes);
void result_series(const char* name, const double* values, size_t count); /* one decimal each */
void result_flush(void);
_Noreturn void give_up(const char* why);

#endif
