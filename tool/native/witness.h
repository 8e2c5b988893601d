/* witness.h: the records through which the witness in a process and `weir compare` talk.
 *
 * The tool creates a file of `sizeof(struct witness_header) + slot_count * sizeof(struct witness_slot)`
 * bytes, fills in the header and names it in the environment variable WITNESS_FILE: no WEIR_ one, since
 * those have the library read its options. Every process image that loads the witness maps the file shared
 * and claims one slot with an atomic increment of `slots_claimed`. A process writes its slot alone; the tool
 * only reads, when the process has ended. Byte order and alignment are the machine's. The reader in Rust
 * (`compare/witness.rs`) has the same layout.
 * It deliberately knows nothing of allocators.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WITNESS_H
#define WITNESS_H

#include <stdint.h>

#define WITNESS_MAGIC 0x3153454e54495745ull /* "EWITNES1" in memory order */
#define WITNESS_VERSION 1u
#define WITNESS_EXE_BYTES 256u
#define WITNESS_CALLER_BYTES 128u
#define WITNESS_TARGET_BYTES 256u
#define WITNESS_CALLS 4u

/* Functions that are watched. A symbol's number is its bit in the masks below. The families end
 * separately: `new` may lead to a C++ library that in turn calls malloc. */
#define WITNESS_SYMBOLS(SYMBOL)                                                                              \
    SYMBOL(malloc, WITNESS_FAMILY_C)                                                                         \
    SYMBOL(calloc, WITNESS_FAMILY_C)                                                                         \
    SYMBOL(realloc, WITNESS_FAMILY_C)                                                                        \
    SYMBOL(posix_memalign, WITNESS_FAMILY_C)                                                                 \
    SYMBOL(aligned_alloc, WITNESS_FAMILY_C)                                                                  \
    SYMBOL(memalign, WITNESS_FAMILY_C)                                                                       \
    SYMBOL(_Znwm, WITNESS_FAMILY_NEW)                                                                        \
    SYMBOL(_Znam, WITNESS_FAMILY_NEW)                                                                        \
    SYMBOL(_ZnwmRKSt9nothrow_t, WITNESS_FAMILY_NEW)                                                          \
    SYMBOL(_ZnamRKSt9nothrow_t, WITNESS_FAMILY_NEW)                                                          \
    SYMBOL(_ZnwmSt11align_val_t, WITNESS_FAMILY_NEW)                                                         \
    SYMBOL(_ZnamSt11align_val_t, WITNESS_FAMILY_NEW)

enum witness_family { WITNESS_FAMILY_C = 0, WITNESS_FAMILY_NEW = 1, WITNESS_FAMILIES = 2 };

#define WITNESS_NUMBER(name, family) WITNESS_##name,
enum witness_symbol { WITNESS_SYMBOLS(WITNESS_NUMBER) WITNESS_SYMBOL_COUNT };
#undef WITNESS_NUMBER

enum witness_state {
    WITNESS_EMPTY = 0,   /* claimed by nobody */
    WITNESS_LOADED = 1,  /* the constructor ran; no call was seen yet */
    WITNESS_REACHED = 2, /* a call was seen */
    WITNESS_ENDED = 3    /* exit ran the destructors; the figures are filled in */
};

/* Sync: everything but the two counters is written by the tool before the first process starts. */
struct witness_header {
    uint64_t magic;         /* WITNESS_MAGIC */
    uint32_t version;       /* WITNESS_VERSION */
    uint32_t slot_count;    /* number of slots behind the header */
    uint32_t slot_bytes;    /* sizeof(struct witness_slot) */
    uint32_t slots_claimed; /* atomic, relaxed: the next slot's index */
    uint32_t slots_refused; /* atomic, relaxed: process images that found no slot */
    uint32_t reserved[9];
};

/* One object that serves calls. Paths are NUL-terminated, cut if longer. */
struct witness_call {
    uint32_t called;                   /* bit per symbol of which a call went there */
    uint32_t bound;                    /* bit per symbol that some object had bound there, called or not */
    char caller[WITNESS_CALLER_BYTES]; /* the object that made the first of those calls; empty: none was seen
                                        */
    char target[WITNESS_TARGET_BYTES]; /* the object that the code of the function lies in */
};

/* Sync: written by its process alone; `state` with release, so that a reader that acquires it sees what
 * was written before. */
struct witness_slot {
    uint32_t state; /* enum witness_state, atomic */
    int32_t pid;
    int32_t parent_pid;
    uint32_t call_count;          /* entries of `calls` in use */
    uint64_t start_ns;            /* CLOCK_MONOTONIC at claim */
    uint64_t end_ns;              /* CLOCK_MONOTONIC at exit */
    uint64_t resident_peak_bytes; /* VmHWM at exit */
    uint64_t resident_bytes;      /* VmRSS at exit */
    uint64_t minor_faults;
    uint64_t major_faults;
    uint32_t threads;   /* at exit */
    uint32_t watched;   /* pointers to functions that were watched; 0: no call could have been seen */
    uint32_t inherited; /* 1: child of fork; `calls` are its parent's */
    uint32_t reserved;
    uint64_t start_stack; /* where the image's argument count lies, as in /proc/PID/stat: its copies have the
                           * same */
    uint64_t reserved_too;
    char exe[WITNESS_EXE_BYTES]; /* target of /proc/self/exe */
    struct witness_call calls[WITNESS_CALLS];
    uint8_t padding[128];
};

_Static_assert(sizeof(struct witness_header) == 64, "the header is one cache line");
_Static_assert(sizeof(struct witness_slot) == 2048, "a slot's size is part of the format");
#endif
