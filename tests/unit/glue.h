/* glue.h: the heap layer's calls and a checker of its slabs, in terms that C++ can read.
 *
 * The unit tests call it. Each function does what the one of heap.h does whose name it carries.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_TESTS_UNIT_GLUE_H
#define WEIR_TESTS_UNIT_GLUE_H

#include "base/compiler.h"
#include "heap/class.h"
#include "page/slice.h"

struct heap;

void* unit_alloc(size_t size);
void unit_free(void* p);
void* unit_alloc_aligned(size_t size, size_t align);
void* unit_alloc_zeroable(size_t size, bool* zeroed);
void* unit_realloc(void* p, size_t size);
size_t unit_usable(const void* p);
bool unit_size_matches(size_t usable, size_t size, size_t align);

struct heap* unit_attach(void);
void unit_detach(void);
void unit_end(void); /* the calling thread ends: its heap may wait for another */
void unit_list_again(struct slice* s);
bool unit_lists(unsigned c); /* whether the thread has a slab of class c besides the active one */
uint64_t unit_parked(void);  /* bytes in heaps that do */
unsigned unit_parked_count(void);
uint64_t unit_large_bytes(void);     /* of live ones */
void unit_large_free(const void* p); /* whose kind was looked at */
bool unit_keeps_large(void);         /* the calling thread, for its next one */
void unit_collect(void);
/* What waits in the calling thread's outboxes goes to its slabs; the thread has a heap. */
void unit_outboxes_send(void);
void unit_medium_drop(void); /* what the thread keeps of medium blocks */
void unit_clear(void* p, size_t bytes);
void unit_visit(bool all);
bool unit_look(unsigned look); /* enum release_look */
bool unit_visit_for(uint64_t bytes);
void unit_visit_asked(void);
/* The calling thread's heap; NULL: it has none. */
struct heap* unit_self(void);
void unit_fork_prepare(void);
bool unit_fork_tries(bool patient); /* once */
bool unit_arenas_take(void);        /* their locks */
void unit_arenas_give(void);
bool unit_arena_is_mine(void); /* one of them is the calling thread's */
void unit_fork_parent(void);
void unit_fork_child(void);

/* The slab record of a small block, or the large block's. */
struct slice* unit_slice(const void* p);
/* The slab that the calling thread's heap allocates class c from. */
uint32_t unit_used(const struct slice* s); /* blocks in use, the owner's countdown and what it leaves out */
uint32_t unit_unsorted(const struct slice* s); /* blocks on its lists of which no page was told */
struct slice* unit_active(unsigned c);
bool unit_packs(void);                      // the calling thread's heap: see exposure_pack
bool unit_has_in_bin(unsigned c);           /* blocks that wait for its next allocations */
bool unit_is_direct(const struct slice* s); /* its owner's frees go to the bin */
bool unit_is_shared(const struct slice* s); /* active, and visitors may sort it */
/* Of the calling thread's heap: lists that turned over since one was walked; bytes that are charged to it. */
uint32_t unit_turns_unchecked(void);
uint64_t unit_exposed(void);
size_t unit_kept_bytes(void);
size_t unit_kept_bytes_max(void);
size_t unit_kept_bytes_wide(void); // where all was freed again and again
uint64_t unit_slow_calls(void);
uint64_t unit_remote_count(const struct slice* s); /* blocks that others freed: on its list and noted */
void unit_push_remote(void* p);                    /* of a slab that somebody owns: onto its list */
bool unit_takes_bits(const struct slice* s);       /* others set bits of it */
uint64_t unit_bits_count(const struct slice* s);
bool unit_bits_far(const struct slice* s);   /* some of those beyond the line that all slabs have are noted */
bool unit_has_remote(const struct slice* s); /* a look says that others freed blocks */
bool unit_is_unowned(const struct slice* s);
bool unit_is_doubted(const struct slice* s); /* what waits on the remote list is to be followed */
bool unit_is_mine(const struct slice* s);
bool unit_is_orphan(const struct slice* s);
void unit_orphans_interrupted(void);         /* a fork's child: the call that changed their lists may go on */
bool unit_is_drained(const struct slice* s); /* an orphan without a block in use; */
size_t unit_drained_bytes_max(void);         /* so much may such ones have */
bool unit_is_large(const struct slice* s);
struct os_lock* unit_heaps_lock(void);
struct os_lock* unit_heap_lock(void); /* of the calling thread's heap */
struct os_lock* unit_own_lock(void);
uint64_t unit_heaps_live(void);
uint64_t unit_heaps_made(void);
uint64_t unit_heaps_peak(void);
void unit_set_hooks(void (*attach)(bool first), void (*tick)(void));

/* Blocks in chunks: heap/arena.h and heap/medium.h. */
enum { UNIT_MEDIUM_CLASSES = CLASS_COUNT - SMALL_CLASSES, UNIT_CHUNK_BYTES = 1 << 20 };
enum { UNIT_BANK_CHUNKS = 64, UNIT_ARENA_CHUNKS = 64 * UNIT_BANK_CHUNKS };
enum { UNIT_SLAB_MEDIUM_CLASSES = SLAB_CLASSES - SMALL_CLASSES }; /* of them, those that slabs have too */
enum { UNIT_ARENA_BY_CPU = UINT32_MAX };
enum { UNIT_QUICK_CHUNK_BYTES = 32768, UNIT_QUICK_BYTES = 262144, UNIT_QUICK_LOOK = 4096 };
void* unit_arena_alloc(uint32_t* home, unsigned m, size_t align);
/* One, and up to `most` more as kept ones, UNIT_ARENA_MORE at most, into `all`. Returns how many. */
enum { UNIT_ARENA_MORE = 16 };
unsigned unit_arena_alloc_some(uint32_t* home, unsigned m, unsigned most, void** all);
bool unit_arena_free(void* p);
bool unit_arena_grow(void* p, unsigned m);
bool unit_arena_check(void);
void unit_arena_trim(void);
void* unit_arena_retag(void* p); /* its tag was looked at */
void unit_arena_publish(void);
void unit_arena_hold(const void* p, bool visits); /* the arena of block p, as a visitor or as who allocates */
void unit_arena_leave(const void* p);
const void* unit_arena_of(const void* p);
uint64_t unit_arena_used(unsigned m);
uint64_t unit_arena_idle_bytes(void);
/* NULL where that takes pages that have no memory just now. */
void* unit_arena_alloc_resident(uint32_t* home, unsigned m, size_t align);
uint64_t unit_release_owed(void);
bool unit_in_chunk(const void* p);
/* A hash of the blocks that a chunk's bits say are in it: where each starts, and of which class. Takes no
 * lock. */
uint64_t unit_chunk_blocks(const void* p);
/* What the calling thread keeps for its next allocation of a medium class, and what it has room to keep of
 * all. */
/* The youngest; NULL: none. */
void* unit_kept_block(unsigned m);
unsigned unit_kept_count(unsigned m);
void unit_kept_age(void); /* what the thread took goes as after many slow calls */
unsigned unit_kept_count_max(unsigned m);
/* Its blocks lie at the ring's end and go on at its start. The place so many entries from another one. */
bool unit_kept_is_round(unsigned m);
uint64_t unit_kept_place_plus(uint64_t place, int entries);
unsigned unit_kept_places(unsigned m); /* of which no slow free is needed to know */
size_t unit_kept_medium_max(void);
size_t unit_kept_medium_bytes(void);
unsigned unit_medium_out(unsigned m); /* of class m, halved now and then; all classes in bytes: */
uint64_t unit_medium_out_bytes(void); /* that it took from chunks and did not give back */
uint32_t unit_home_arena(void);
bool unit_has_heap(void);
/* heap_long_hook from now on. */
void unit_long_hook(void (*hook)(void));
/* Of a medium class, blocks that threads left for each other. */
bool unit_depot_put(unsigned m, void* const* blocks, unsigned count, bool own);
unsigned unit_depot_take(unsigned m, void** blocks);
void unit_depot_empty(void);
uint64_t unit_depot_count(unsigned m);
unsigned unit_depot_count_of(unsigned m);
/* The calling thread is in the middle of a call that uses what it keeps, or no more. */
void unit_kept_enter(void);
void unit_kept_leave(void);

/* What lies at an address: heap/place.h. kind -1: nothing of weir's. */
struct unit_place {
    int kind;
    uintptr_t start;
    size_t bytes;
    bool free, slotted;
    uint32_t slot;
};
struct unit_place unit_place_at(const void* p);
/* Kept calls: heap/history.h. The number of frames, -1: none is known. */
void unit_history_start(uint64_t calls);
void unit_history_note(bool is_free, const void* p);
int unit_history_find(bool is_free, const void* p, int* thread);

/* Guarded blocks: heap/guard.h. `slots`: 0: as the option has it. */
void unit_guard_start(uint64_t rate, uint64_t slots);
bool unit_guarded(const void* p);
uint64_t unit_guard_allocs(void);
uint64_t unit_guard_live_blocks(void);
uint64_t unit_guard_live_bytes(void);

struct unit_figures {
    uint64_t live_bytes, live_blocks, cached_bytes, hole_bytes, meta_bytes, record_bytes;
    uint64_t reserved_bytes, committed_bytes;
    uint64_t alloc_calls, remote_frees, slow_calls, guarded_calls, guarded_freed;
    uint64_t slabs;
    uint64_t class_live[CLASS_COUNT];
};
void unit_census(struct unit_figures* out);
struct unit_heap_figures {
    uint64_t slabs, live_bytes, cached_bytes;
};
void unit_census_heap(const struct heap* h, struct unit_heap_figures* out);

/* Check every slab against the invariants of slice.h: the records of its further slices, that its lists
 * hold distinct blocks of it, used + blocks on the lists == built <= capacity, and each page's counts and
 * bits against what the blocks say. Nobody may allocate or free meanwhile. Returns the number of slabs; -1:
 * one is wrong (said on stdout). */
long unit_check_slabs(void);
uint32_t unit_visitors(void); /* in all regions */

#endif
