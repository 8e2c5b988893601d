/* weir/wire.h: the records through which a process on weir and the `weir` tool talk.
 *
 * The tool creates a file of `sizeof(struct weir_wire_header) + slot_count * sizeof(struct
 * weir_wire_slot)` bytes, fills in the header and names it in the environment variable WEIR_WIRE. Every
 * process that loads the library maps the file shared and claims one slot with an atomic increment of
 * `slots_claimed`; a child of fork claims its own. A process writes its slot alone; the tool only reads.
 * A process that finds no slot free runs on and counts itself in `slots_refused`. Byte order and
 * alignment are the machine's: both sides run on one host. It deliberately knows nothing of the heap.
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

/* Sync: everything but the two counters is written by the tool before the first process starts. */
struct weir_wire_header {
    uint64_t magic;         /* WEIR_WIRE_MAGIC */
    uint32_t version;       /* WEIR_WIRE_VERSION */
    uint32_t slot_count;    /* number of slots behind the header */
    uint32_t slot_bytes;    /* sizeof(struct weir_wire_slot) */
    uint32_t slots_claimed; /* atomic, relaxed: the next slot's index */
    uint32_t slots_refused; /* atomic, relaxed: processes that found no slot */
    uint32_t reserved[9];
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
    uint64_t reserved[7];
    char exe[WEIR_WIRE_EXE_BYTES]; /* target of /proc/self/exe, NUL-terminated, cut if longer */
};

#if defined(__cplusplus)
static_assert(sizeof(struct weir_wire_header) == 64, "the header is one cache line");
static_assert(sizeof(struct weir_wire_slot) == 512, "a slot's size is part of the wire format");
#else
_Static_assert(sizeof(struct weir_wire_header) == 64, "the header is one cache line");
_Static_assert(sizeof(struct weir_wire_slot) == 512, "a slot's size is part of the wire format");
#endif
#endif
