/* weir/wire.h: the records through which a process on weir and the `weir` tool talk.
 *
 *     header | slots, one per process ............. | rows of pools, in chunks of 16 ...............
 *      64 B    slot_count * sizeof(weir_wire_slot)    pool_count * sizeof(weir_wire_pool)
 *
 * The tool creates a file of that size, fills in the header and names it in the environment variable
 * WEIR_WIRE. Every process that loads the library maps the file shared and claims one slot with an atomic
 * increment of `slots_claimed`; a child of fork claims its own. A process with object pools claims chunks of
 * rows in the same way. A process writes what it claimed alone; the tool only reads. A process that finds no
 * slot free runs on and counts itself in `slots_refused`; pools that find no row are counted in their
 * process's slot. Byte order and alignment are the machine's: both sides run on one host. It deliberately
 * knows nothing of the heap.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_WIRE_H
#define WEIR_WIRE_H

#include <stdint.h>

#define WEIR_WIRE_MAGIC 0x3152495745524957ull /* "WIREWIR1" in memory order */
#define WEIR_WIRE_VERSION 1u
#define WEIR_WIRE_SLOT_COUNT_MAX 65536u
#define WEIR_WIRE_EXE_BYTES 256u
#define WEIR_WIRE_POOL_COUNT_MAX 65536u
#define WEIR_WIRE_POOL_CHUNK 16u
#define WEIR_WIRE_POOL_NAME_BYTES 32u

/* Sync: everything but the three counters is written by the tool before the first process starts. */
struct weir_wire_header {
    uint64_t magic;               /* WEIR_WIRE_MAGIC */
    uint32_t version;             /* WEIR_WIRE_VERSION */
    uint32_t slot_count;          /* number of slots behind the header */
    uint32_t slot_bytes;          /* sizeof(struct weir_wire_slot) */
    uint32_t slots_claimed;       /* atomic, relaxed: the next slot's index */
    uint32_t slots_refused;       /* atomic, relaxed: processes that found no slot */
    uint32_t pool_count;          /* number of rows behind the slots, a multiple of a chunk; 0: no section */
    uint32_t pool_bytes;          /* sizeof(struct weir_wire_pool) */
    uint32_t pool_chunks_claimed; /* atomic, relaxed: the next chunk's index; above the last: none was free */
    uint32_t reserved[6];
};

/* What a process has shown so far. The order is that of time. */
enum weir_wire_state {
    WEIR_WIRE_EMPTY = 0,   /* claimed by nobody */
    WEIR_WIRE_LOADED = 1,  /* the library is mapped and its constructor ran; no call came yet */
    WEIR_WIRE_REACHED = 2, /* a call of the malloc family came from outside the library */
    WEIR_WIRE_FORKED = 3,  /* child of fork that inherited a reached heap and has not exec'ed or ended */
    WEIR_WIRE_ENDED = 4    /* exit ran the destructors; the figures are final */
};

/* Figures are refreshed on the slow path, at most every 5 to 50 ms, and at exit; a process that is
 * killed leaves its last ones. Bytes unless the name says otherwise.
 * Sync: written by its process alone; `state` with release, so that a reader that acquires it sees the
 * identity fields; figures relaxed. */
struct weir_wire_slot {
    uint32_t state; /* enum weir_wire_state, atomic */
    int32_t pid;
    int32_t parent_pid;
    uint32_t threads_max; /* thread heaps in use at once, at most */
    uint64_t start_ns;    /* CLOCK_MONOTONIC at claim */
    uint64_t end_ns;      /* CLOCK_MONOTONIC at exit; 0 while it runs */
    uint64_t live_bytes;
    uint64_t live_peak_bytes; /* largest live_bytes seen at a refresh */
    uint64_t cached_bytes;
    uint64_t dirty_bytes;
    uint64_t metadata_bytes;
    uint64_t resident_bytes;      /* VmRSS at the last refresh */
    uint64_t resident_peak_bytes; /* VmHWM at the last refresh */
    uint64_t committed_bytes;
    uint64_t alloc_calls;
    uint64_t free_calls;
    uint64_t remote_frees;
    uint64_t slow_calls;
    uint64_t sys_calls; /* all system calls that the library made */
    uint64_t sys_purge;
    uint64_t purged_bytes;
    uint64_t misuse_reports;
    uint64_t refaulted_bytes; /* this and the next four: as in struct weir_stats */
    uint64_t scanned_bytes;
    uint64_t release_calls;
    uint64_t release_window_ns;
    uint64_t hole_bytes;
    uint64_t refreshed_ns;   /* CLOCK_MONOTONIC at the last refresh */
    uint64_t pools_made;     /* object pools ever made, a parent's before the fork included */
    uint64_t pools_left_out; /* of those that there are now: without a row */
    uint32_t pools;          /* that there are now */
    uint32_t
        pools_turn; /* odd while the process changes its rows; release, pairs with the reader's acquire */
    uint64_t reserved[3];
    char exe[WEIR_WIRE_EXE_BYTES]; /* target of /proc/self/exe, NUL-terminated, cut if longer */
};

/* One object pool: what struct weir_pool_stats of weir/pool.h says, under the same names.
 * Sync: as a slot; `pools_turn` of the process's slot tells which figures are of one moment. */
struct weir_wire_pool {
    uint32_t slot;   /* index of its process's slot, plus 1; 0: no pool */
    uint32_t flags;  /* WEIR_POOL_EXACT ... */
    uint64_t number; /* in the order of making, unique in the process */
    uint64_t object_bytes;
    uint64_t block_bytes;
    uint64_t users;
    uint64_t storage;
    uint64_t allocated;
    uint64_t used;
    uint64_t held;
    uint64_t cached;
    uint64_t shared;
    uint64_t needed;
    uint64_t magazine;
    uint64_t limit;
    uint64_t failed;
    uint64_t seen_ns; /* CLOCK_MONOTONIC: the look in which it was last there */
    uint64_t reserved[4];
    char name[WEIR_WIRE_POOL_NAME_BYTES]; /* NUL-terminated */
};

#if defined(__cplusplus)
static_assert(sizeof(struct weir_wire_pool) == 192, "a row's size is part of the wire format");
static_assert(sizeof(struct weir_wire_header) == 64, "the header is one cache line");
static_assert(sizeof(struct weir_wire_slot) == 512, "a slot's size is part of the wire format");
#else
_Static_assert(sizeof(struct weir_wire_pool) == 192, "a row's size is part of the wire format");
_Static_assert(sizeof(struct weir_wire_header) == 64, "the header is one cache line");
_Static_assert(sizeof(struct weir_wire_slot) == 512, "a slot's size is part of the wire format");
#endif
#endif
