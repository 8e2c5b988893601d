/* arena.h: chunks in which blocks of all medium classes lie side by side.
 *
 * A class of which a thread has a few blocks only would keep the pages of a slab for them alone. Its blocks
 * come from here instead: runs of units in chunks of 1 MiB that all classes and threads share, coalesced
 * when they are freed. Everything that says where runs lie is beside the chunk, never in it. It deliberately
 * knows nothing of heaps but how many there are: which class comes from here is medium.c's business.
 *
 *   chunk   [ block ][ free run      ][ block    ][ block ][ free run ......... ]
 *   starts   1        1                1           1        1
 *   free     0        1             1  0           0        1                 1   (first and last unit)
 *
 * Where memory is tagged a free run has tag 0, and so has a chunk's last unit, which is nobody's. A block has
 * another one than its neighbours, and than the blocks before that had some of its memory.
 *
 * Invariants: no two free runs are neighbours. What a chunk holds follows from `starts`, and `free` at the
 * starts: they are right at every instruction, so that a fork's child can build all else anew from them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_ARENA_H
#define WEIR_HEAP_ARENA_H

#include "base/atomic.h"
#include "base/compiler.h"
#include "heap/class.h"
#include "os/lock.h"
#include "page/slice.h"
#include "tag/tag.h"

/* Every medium class is a multiple of a unit, and every medium block longer than a group of eight. */
enum { UNIT_SHIFT = 7, UNIT_BYTES = 1 << UNIT_SHIFT, GROUP_UNITS = 8 };
enum { CHUNK_SLICES = 16, CHUNK_UNITS = CHUNK_SLICES * SLICE_BYTES / UNIT_BYTES };
enum { MEDIUM_CLASSES = CLASS_COUNT - SMALL_CLASSES, ARENA_COUNT_MAX = 16 };
/* An arena has up to so many banks of so many chunks: 4 GiB. */
enum { ARENA_BANKS = 64, BANK_CHUNKS = 64 };
enum { LONG_CLASS = SLAB_CLASSES - SMALL_CLASSES }; /* the first medium class that slabs do not have */
static_assert(SMALL_MAX >= GROUP_UNITS * UNIT_BYTES, "a group is where one block starts, or ends, at most");

enum { CHUNK_WORDS = CHUNK_UNITS / 64, CHUNK_GROUPS = CHUNK_UNITS / GROUP_UNITS };
enum { GROUP_BYTES = GROUP_UNITS * UNIT_BYTES, SLICE_GROUPS = SLICE_BYTES / GROUP_BYTES };
/* Bytes of freed blocks that may wait on an arena's quick lists in any case: for each of its chunks, in all,
 * and where it would need more memory. Whether more may is seen after so many frees, or
 * more. */
enum { QUICK_CHUNK_BYTES = 32768, QUICK_BYTES = 262144, QUICK_BYTES_GROWS = 65536, QUICK_LOOK = 4096 };
enum { BINS_EXACT = 16, RUN_BINS = BINS_EXACT + 9 * 8 + 1 };
/* What is known of the block that starts in a group: its medium class + 1, which unit of the group it starts
 * at, whether it is free: kept by a thread for its next allocation, or on a quick list (both bits); whether
 * such a one is fresh, cut off a run and nobody's so far, so that it may have no memory; whether one in use
 * has grown by little; and whether it has a tag. One that has grown or has a tag is no block to who does not
 * look for these bits. 0: none starts there. */
enum {
    BLOCK_CLASS = 0x7f,
    BLOCK_UNIT_SHIFT = UNIT_SHIFT,
    BLOCK_UNIT = 7,
    BLOCK_KEPT = 0x400,
    BLOCK_QUICK = 0x800,
    BLOCK_FRESH = 0x1000,
    BLOCK_GROWN = 0x2000
};
enum { BLOCK_TAGGED = 0x8000 };
static_assert((int)MEDIUM_CLASSES < (int)BLOCK_CLASS, "a class has a number in it");

/* Of 64 units: where a block or a free run starts; first and last ones of free runs. */
struct unit_bits {
    uint64_t starts, free;
};
/* What lies in eight units, together, as it is used together. */
struct group {
    uint16_t length;        /* of the free run that starts here, in units */
    uint16_t next;          /* run of its list, first unit + 1; 0: none */
    uint16_t prev;          /* likewise */
    uint16_t start_of_last; /* first unit of the free run that ends here */
    uint16_t quick_next;    /* after the quick block that starts here, likewise */
};

/* Sync: the arena's lock; `blocks` is written as relaxed atomics and read, and its KEPT, FRESH and
 * GROWN bits written, without it by whoever has the block. */
struct chunk {
    struct slice* slice; /* record of the first slice */
    uintptr_t address;
    struct slice_pages* pages; /* of the first slice */
    struct arena* arena;
    struct bank* bank;
    uint16_t bank_index;            /* in its arena */
    uint16_t index;                 /* in its bank */
    uint32_t untouched;             /* pages from here on count as without memory, as a huge page is there
                                       from its first touch on: no block has touched them yet */
    uint32_t used;                  /* blocks */
    uint32_t idle_count;            /* bits in `idle` */
    uint16_t idle[CHUNK_SLICES];    /* per slice: pages that no block touches and that are no holes */
    uint16_t heads[RUN_BINS];       /* first unit + 1 of the first run of each list; 0: none */
    uint16_t quick[MEDIUM_CLASSES]; /* likewise of freed blocks that wait for their class's next */
    uint16_t blocks[CHUNK_GROUPS];  /* BLOCK_ bits */
    struct unit_bits bits[CHUNK_WORDS];
    struct group groups[CHUNK_GROUPS];
    uint8_t* formers; /* per unit, where memory is tagged: the last block's tag */
} __attribute__((aligned(64)));

/* Units of a chunk that blocks may have. Where memory is tagged the last one is no block's: what lies behind
 * may have any tag. */
WEIR_INLINE uint32_t chunk_end(void) { return tag_is_on() ? CHUNK_UNITS - 1 : CHUNK_UNITS; }

/* Once, before the first block. As many arenas as the process has processors, to a bound. */
WEIR_FN void arena_start(void);
/* The home of a thread that goes by the processor it runs on, as it found an arena in use when there were
 * more threads than arenas. */
enum { ARENA_BY_CPU = UINT32_MAX };
struct kept_block {
    void* block;
    uint16_t* known; /* what is known of it: see BLOCK_CLASS */
};
/* Blocks that come along with one, at most. */
enum { ARENA_MORE = 16 };
struct arena_more {
    unsigned most;  /* of them that may, where they wait for their class's next, fresh or not; */
    unsigned fresh; /* where they are cut off a free run, */
    bool resident;  /* and only off one that has memory */
    unsigned count; /* 0 before */
    struct kept_block blocks[ARENA_MORE];
};
/* A block of medium class m (class SMALL_CLASSES + m) whose address is a multiple of `align`, a power of two
 * of at most SLAB_MAX, and more of them, unless NULL. `home`: the arena to try first; another one from now on
 * if that is in use just now. NULL: no memory, no room, or the pages are being purged. */
WEIR_FN void* arena_alloc(uint32_t* home, unsigned m, size_t align, struct arena_more* more);
/* The same, but NULL where that takes pages that have no memory just now. */
WEIR_FN void* arena_alloc_resident(uint32_t* home, unsigned m, size_t align, struct arena_more* more);
/* The same as arena_alloc, and it reads as zero; where memory is tagged, which is as much work. */
WEIR_FN void* arena_alloc_zeroed(uint32_t* home, unsigned m, size_t align);
/* Make the block at p, in the chunk of first record s, one of the larger medium class m where it lies. False:
 * what is behind it is not free, or its pages are being purged. Where memory is not tagged. */
WEIR_FN bool arena_grow(struct slice* s, const void* p, unsigned m);
/* Free `count` blocks, kept or not. True: there is something for a pass. */
WEIR_FN bool arena_free(void* const* blocks, unsigned count);
/* The chunk that record s, which is one of a chunk's, is of. */
WEIR_INLINE struct chunk* chunk_of(const struct slice* s) {
    char* blocks = (char*)(load_acquire(&s->blocks) - (size_t)s->back * SLICE_GROUPS);
    return (struct chunk*)(void*)(blocks - offsetof(struct chunk, blocks));
}
/* Whether s, whose kind was SLICE_CHUNK a moment ago, is a chunk's first record; *k is the chunk then.
 * Whoever asks may free for the second time what nothing holds there any more, so the kind is read last: it
 * changes before the span goes and its word is another's (chunk_remove). */
WEIR_INLINE bool arena_chunk_stays(const struct slice* s, struct chunk** k) {
    *k = chunk_of(s);
    return weir_likely(load_relaxed(&s->kind) == SLICE_CHUNK);
}
/* Where is written what is known of the block that starts at p, in a slice whose record has `blocks`, and its
 * medium class in *m; NULL: none starts there that is in use, has no tag, has not grown, and is none of the
 * long classes. One compare: whatever else is set makes the class too large. Takes no lock. */
WEIR_INLINE uint16_t* arena_block(uint16_t* blocks, const void* p, uint32_t* m) {
    enum { unit_bits = BLOCK_UNIT << BLOCK_UNIT_SHIFT };
    static_assert((int)BLOCK_UNIT_SHIFT == (int)UNIT_SHIFT, "where an address has its unit, too");
    uint32_t offset = (uint16_t)(uintptr_t)p;
    static_assert(SLICE_BYTES == UINT16_MAX + 1, "in the slice");
    if (weir_unlikely((offset & (UNIT_BYTES - 1)) != 0)) return NULL;
    uint16_t* block = &blocks[offset / GROUP_BYTES];
    if (block == NULL) __builtin_unreachable(); /* callers need not look again */
    *m = load_relaxed(block) - 1 - (offset & unit_bits);
    return weir_likely(*m < LONG_CLASS) ? block : NULL;
}
WEIR_INLINE unsigned block_class(uint32_t known) { return (known & BLOCK_CLASS) - 1; }
/* The same of the block that starts at p, in the chunk of first record s, whatever it is; p may carry a tag.
 * NULL: none does. */
WEIR_INLINE uint16_t* arena_block_any(const struct slice* s, const void* p) {
    struct chunk* k;
    if (!arena_chunk_stays(s, &k)) return NULL;
    uint32_t unit = (uint32_t)(((uintptr_t)p - k->address) >> UNIT_SHIFT); /* without the top byte */
    if (weir_unlikely(unit >= CHUNK_UNITS || ((uintptr_t)p & (UNIT_BYTES - 1)) != 0)) return NULL;
    uint16_t* block = &k->blocks[unit / GROUP_UNITS];
    uint32_t known = load_relaxed(block);
    return known != 0 && (known >> BLOCK_UNIT_SHIFT & BLOCK_UNIT) == unit % GROUP_UNITS ? block : NULL;
}
/* Give block p, which is in nobody's hands but the caller's, another tag. Returns p with that; NULL: it does
 * not carry the block's any more, since another thread freed it at the same instant. Where memory is tagged.
 */
WEIR_FN void* arena_retag(struct slice* s, void* p);
/* Whether p lies in a free run, or in a chunk that has just gone: for reports. */
WEIR_FN bool arena_is_free(const struct slice* s, const void* p);
/* Make holes of all free pages. */
WEIR_FN void arena_publish_all(void);
/* The same, and give empty chunks back. */
WEIR_FN void arena_trim_all(void);
/* Bytes of all chunks that are in no block, kept ones included. */
WEIR_FN uint64_t arena_free_bytes(void);
/* What waits becomes runs, and chunks without a block go, until `enough` bytes of free spans may be resident.
 */
WEIR_FN void arena_yield(uint64_t enough);

/* Statistics: blocks of medium class m, kept ones included; bytes of free pages that are no holes yet. */
WEIR_FN uint64_t arena_used(unsigned m);
WEIR_FN uint64_t arena_idle_bytes(void);
/* Mappings of chunks' records but those that are in spans, in bytes: all of them, and what is there of chunks
 * that have memory. */
struct arena_records {
    uint64_t mapped;
    uint64_t used;
};
WEIR_FN struct arena_records arena_records(void);

/* Whether the calling thread holds an arena's lock: it was interrupted, and a signal handler asks. */
WEIR_FN bool arena_is_mine(void);
/* In the child of a raw fork: the lock, maybe an arena's, was the helper's and is the caller's. */
WEIR_FN void arena_lock_left(struct os_lock* lock);
/* Before a fork, of a thread that has no arena's lock: take all of them. False: one is not to be had. */
WEIR_FN bool arenas_fork_take(void);
WEIR_FN void arenas_fork_give(void);
/* In the child of fork, the only thread. `complete`: after arenas_fork_take. */
WEIR_FN void arena_fork_child(bool complete);
/* There: the fork interrupted a call in an arena, whose lock the thread has. */
WEIR_FN bool arena_is_torn(void);
/* Walk all chunks and check every invariant; true when all hold. */
WEIR_FN bool arena_check(void);

#endif
