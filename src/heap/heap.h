/* heap.h: the thread heap: what one thread allocates from and frees to without asking anybody.
 *
 * The api layer calls it. Each thread's `weir_thread_word` points to its heap, or to `heap_empty`, whose
 * bins are empty and whose slabs are none, so that a thread without a heap takes the slow path by
 * itself. It deliberately knows nothing of sharing policies (a slab carries an opaque domain) and of
 * how the address space is kept.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_HEAP_H
#define WEIR_HEAP_HEAP_H

#include "arch/arch.h"
#include "base/atomic.h"
#include "base/compiler.h"
#include "heap/arena.h"
#include "heap/class.h"
#include "os/lock.h"
#include "page/region.h"
#include "page/slice.h"

enum { OUTBOX_SLOTS = 8, OUTBOX_BLOCKS = 32, OUTBOX_BYTES = 16384 };
enum {
    KEPT_BYTES_MAX = 65536,
    KEPT_BYTES_WIDE = 524288,
    CLOSED_BYTES_MAX = 2097152,
    KEPT_WORDS = (SLAB_CLASSES + 63) / 64
};
enum { EXPOSED_SLOTS = 64 };
enum { SPARE_SLOTS = 8, SPARE_SLICES_MAX = 16, SPARE_SLICES_SUM = 32 };

/* A free block. The link sits in its second word: what a program writes most often through a dangling
 * pointer, the first word, then steers nothing. Links alias whatever the program stores. */
typedef struct block {
    uint64_t seal; /* checks=full: proof that the block is free and untouched; else: see remote_mark */
    struct block* next;
} __attribute__((may_alias)) block_t;

/* The first block of a list, in a bin or in a slab's record, where it has another type. */
typedef block_t* __attribute__((may_alias)) list_head_t;

/* The blocks a thread allocates from, per class: a list that lies inside one slab.
 * Invariant: head == NULL, or head - base < bytes of the slab. An unused bin has base == SLICE_BYTES,
 * so that the test `head - base < SLICE_BYTES` fails for NULL as for every pointer outside the slab. */
struct bin {
    block_t* head;
    uintptr_t base;
};

/* Blocks of one slab of another heap, on their way there. Sync: GATE_OUTBOX, but for the slab and `lone`,
 * which visitors let be. */
struct outbox {
    struct slice* slab;
    block_t* first;
    block_t* last;
    uint32_t count; /* relaxed atomic, for who looks from outside; 0: the two before mean nothing */
    bool doubted;   /* see remote_mark */
    uint16_t lone;  /* the slab that the last block was of that went alone: the low bits of its number */
};

/* Blocks of a medium class that wait for the thread's next allocations, freed ones and those that came along
 * with one: a ring, of which the youngest is given out first and the oldest goes back first.
 *
 *   ring   | . | . | oldest | ... | youngest | . |
 *                    ^ from                     ^ to
 *
 * A place is the distance in bytes of an entry from where a ring in front of the first one would be, so that
 * it says all that finds it, and none is 0; its low byte goes round. One entry is always free. */
enum { KEPT_RING = 32, KEPT_PLACE_BYTES = sizeof(void*), KEPT_RING_BYTES = 256 };
static_assert(KEPT_RING * KEPT_PLACE_BYTES == KEPT_RING_BYTES, "a ring is as long as a byte can tell");
/* One for each class that slabs have, and one for a block of any longer class. */
enum { KEPT_LONG = LONG_CLASS, KEPT_RINGS };
/* The first one of the last octave of those. */
enum { LONGER_CLASS = LONG_CLASS - 8 };
struct kept_medium {
    union {
        struct {
            /* Sync: GATE_MEDIUM; relaxed atomics, for the census. 0 before the first block. */
            uint32_t from, to;
        };
        uint64_t ends; /* both at once */
    };
    uint32_t limit; /* of `to`, while so many may wait; 0: not known yet; Sync: as `from` */
    uint32_t bytes; /* of one; set with `limit`; of the long one, with each that comes */
};
struct kept_ring {
    void* blocks[KEPT_RING];
    uint16_t* known[KEPT_RING]; /* what is known of each: see BLOCK_CLASS */
};

/* Whether the owner may use what it keeps: not once a visitor asked for it, or took it. */
enum { KEPT_OPEN, KEPT_ASKED, KEPT_TAKEN };
/* Of its outboxes, its medium blocks, and its large one: each goes when it was not used. */
enum { GATE_OUTBOX, GATE_MEDIUM, GATE_LARGE, GATES };
struct gate {
    uint32_t state;  /* KEPT_OPEN, or else: the owner opens it, under the lock. Sync: relaxed atomic; */
    uint32_t inside; /* 1: the owner is at what is kept: Sync: see gate_enter */
};

/* Of a class whose active slab is direct, since the owner last looked at it: see direct.h. Of other classes
 * only `taken` changes, and means nothing. */
struct direct {
    /* Sync: relaxed atomics, for the census. */
    uint32_t taken; /* blocks that malloc took from the bin */
    uint16_t frees; /* what the countdown began with */
    uint16_t count; /* blocks in the bin then */
    uint16_t longs; /* looks in a row that found a long bin */
    uint16_t unused[3];
};
static_assert(sizeof(struct direct) == sizeof(struct bin), "one lies as far from another as bins do");

/*  bins[c].head -> block -> block -> NULL          (counted as in use by their slab)
 *  active[c]    -> the slab those blocks lie in
 *  available[c] -> slab <-> slab ...               (owned, not active, with some free blocks or room)
 *  scarce[c]    -> slab <-> slab ...               (owned, not active, with few free blocks and no room)
 *  A full slab is on no list and has no owner: whoever frees into it first takes it over.
 *
 *  Sync: all of it belongs to the thread whose word points here, but for `available` and `scarce`
 *  (lock) and the registry fields. */
struct heap {
    struct bin bins[SLAB_CLASSES];
    struct direct direct[SLAB_CLASSES];
    struct os_lock lock; /* of `available`, `scarce` and the links and `listed` of the slabs on them */
    void* owner_word;    /* what this heap's slabs carry: the heap, OWNER_FULL and OWNER_TAGGED added */
    uint64_t handed_out; /* blocks put into bins, ever; minus what is still there: blocks given out */
    uint64_t slow_calls;
    uint64_t remote_frees;       /* blocks that others freed, and its thread took in. Sync: as slow_calls */
    uint32_t turns_unchecked;    /* since the last list that was walked */
    uint32_t direct_frees;       /* into direct slabs; so many count as such a turn */
    uint64_t turn;               /* lists that turned over in its first time: see check_first */
    uint64_t told_blocks;        /* on the lists that were walked when others were told of them, */
    uint32_t tells_unchecked;    /* and such lists since the last one */
    uint32_t busy;               /* calls under way that change more than a fast path does; see heap_enter */
    bool set_aside;              /* by a fork in the middle of one: see heap_fork_child */
    uint8_t slabs_new;           /* that it took as it had no other, round and round: see slab_another */
    uint64_t opened[KEPT_WORDS]; /* bit c: had a slab of class c, under whatever thread */
    uint64_t passed[KEPT_WORDS]; /* bit c: others free what the thread takes of class c; */
    uint64_t left[KEPT_WORDS];   /* its active slab has what was too much for the bin; see class_learn */
    uint64_t kept[KEPT_WORDS];   /* bit c: the active slab of class c is SLICE_KEPT */
    size_t kept_bytes;           /* built in active slabs when their last block came back (SLICE_KEPT) */
    uint64_t settled_calls;      /* slow_calls when a slab's countdown last ended, */
    uint32_t settled_frees;      /* and how many ended since then */
    uint16_t reopened;           /* closed slabs opened again since the last sweep, or since they were many */
    uint16_t kept_widely;        /* sweeps till no more than KEPT_BYTES_MAX is kept again */
    uint32_t walk_halvings;      /* how often the part of lists is halved that is walked; see walks_learn */
    size_t closed_bytes;         /* of pages that became holes when active slabs were closed (SLICE_CLOSED) */
    /* Exposure: see exposure.h. The first three are relaxed atomics: others may steal a slab. */
    uint64_t slab_bytes; /* of the blocks that are built in the slabs that the heap owns */
    uint64_t slab_count;
    uint64_t exposed;  /* bytes on their lists that were charged */
    bool exposed_told; /* others were told of slabs that left exposed_slabs for them to sort */
    uint32_t exposed_next;
    uint32_t exposed_shift;      /* how far the bound for small blocks is raised, log2 */
    uint32_t exposed_blocks;     /* small blocks looked at since exposed_handed_out was read */
    uint64_t exposed_handed_out; /* handed_out then */
    /* Packing: see exposure_pack. A window begins when pack_met is 0: */
    uint32_t pack_met;        /* blocks on lists of sparse slabs */
    uint32_t pack_windows;    /* circles in a row, or windows since it stopped */
    uint64_t pack_handed_out; /* handed_out at its start */
    uint64_t pack_out;        /* blocks that came from pages' lists or resident holes */
    uint64_t pack_circle;     /* not packing: blocks given out for each 16 met when it stopped; or 0 */
    struct slice* spares[SPARE_SLOTS]; /* a ring of spans without use; see spare.h */
    /* Medium blocks: see medium.h. */
    struct gate gates[GATES];
    uint16_t medium_out[LONG_CLASS]; /* that this thread took from chunks and did not give back, halved
                                            now and then; Sync: GATE_MEDIUM */
    uint64_t medium_out_bytes;  /* likewise, of all classes, never halved; Sync: relaxed atomic, as well */
    uint64_t medium_most;       /* of that in the program's hands since medium_age, */
    uint64_t medium_least;      /* since there was that most, */
    uint64_t medium_swing;      /* and by how much it went down and up again; of before that, the half */
    uint32_t medium_longest;    /* of the blocks freed lately, in bytes, above SLAB_MAX; or 0 */
    uint64_t medium_freed;      /* the medium classes of the last eight that were kept, a byte each */
    ptrdiff_t kept_medium_room; /* what else may be kept, in bytes; Sync: GATE_MEDIUM */
    ptrdiff_t kept_medium_max;  /* what may be kept in all, as of the last slow call */
    uint32_t arena;             /* where the last one came from */
    uint8_t
        medium_many[LONG_CLASS - LONGER_CLASS]; /* the most of medium_out of such a class, halved likewise */
    uint8_t medium_hand;                        /* the class whose blocks go next, in turns */
    bool medium_zero;    /* the next one from there is to be zero, where memory is tagged; */
    void* medium_zeroed; /* and this one was */
    /* The large block that the thread freed last: see large.h. */
    struct slice* kept_large;  /* Sync: GATE_LARGE; relaxed atomic, for the census */
    size_t kept_large_bytes;   /* how large it is; LARGE_FENCED: see the next */
    size_t kept_fenced_bytes;  /* how large one that has fences is */
    bool kept_large_needed;    /* since the thread last looked */
    bool kept_large_owed;      /* Sync: relaxed atomic; release_owed knows that there is one */
    uint64_t kept_large_turns; /* Sync: relaxed; how often it was given out again */
    /* Sampling: see guard.h. */
    uint64_t guard_left; /* blocks that go to bins, and other allocations, to the next sampled one */
    uint64_t guard_due;  /* bit c: the next allocation that finds the bin of small class c empty is sampled */
    uint64_t guard_seed;
    uint32_t spare_turn;   /* of `spares`; here, and guard_inside below, for where kept_medium lies */
    uint32_t spare_slices; /* of all of them */
    size_t owed;           /* bytes given to other heaps' slabs that release_owed does not know of yet */
    /* Visitors: see visit.h. */
    struct slice* visited; /* whose lists one is changing; Sync: atomic, under the lock */
    struct slice* doubted; /* in whose lists one last found a fault; Sync: relaxed atomic */
    uint64_t visit_calls;  /* slow_calls at the last visit, and whether there were none since; */
    bool visit_idle;       /* Sync: relaxed atomics */
    bool guard_inside;     /* a guarded block is being made */
    void* above; /* what a higher layer keeps for the thread that has the heap; stays when heaps are swept */
    /* Registry; Sync: heaps_lock. */
    struct heap* registry_next;
    struct heap* spare_next;
    int parked_tid;        /* of the thread that parked it */
    uint32_t parked_bytes; /* what it adds to release_parked; 0: it is not parked; relaxed atomic */
    uint32_t parked_used;  /* parked_in_use when it was asked last, */
    uint32_t parked_asked; /* and which time that was, of all heaps */
    int wanted_by;         /* since then: the id of the first thread that wants it; relaxed atomic; 0: none */
    int tid;               /* relaxed atomic; 0: spare */
    uint32_t id;
    /* By class or slot, the largest last: of these a small thread writes few, and what is not written takes
     * no memory. */
    struct slice* active[SLAB_CLASSES];
    struct slice* available[SLAB_CLASSES];
    struct slice* scarce[SLAB_CLASSES];
    uint8_t short_turns[SLAB_CLASSES]; /* lists of a few blocks that turned over in a row */
    uint8_t grown[SLAB_CLASSES];       /* pages built in a row; less where lists serve instead */
    struct outbox outbox[OUTBOX_SLOTS];
    struct slice* exposed_slabs[EXPOSED_SLOTS]; /* a ring of those with a charge, or that had one */
    struct kept_medium kept_medium[KEPT_RINGS];
    struct kept_ring kept_rings[]; /* KEPT_RINGS; heap_empty has none */
};
static_assert(offsetof(struct heap, kept_medium) % sizeof(struct kept_medium) == 0,
              "one is in two lines of the cache: a pair of 8 KiB takes a tenth longer");
enum { HEAP_BYTES = sizeof(struct heap) + KEPT_RINGS * sizeof(struct kept_ring) };

WEIR_VAR_DECL struct heap heap_empty;
WEIR_VAR_DECL struct os_lock heaps_lock;

/* Folded from heaps that ended, and from large blocks. Sync: relaxed atomics. */
struct heap_totals {
    uint64_t handed_out;
    uint64_t large_allocs;
    uint64_t large_frees;
    uint64_t remote_frees; /* that visitors took in, too; those that wait the slabs know */
    uint64_t slow_calls;
    uint64_t heaps_live;
    uint64_t heaps_peak;
    uint64_t heaps_made;
};
WEIR_VAR_DECL struct heap_totals heap_totals;

/* From so many heaps on, what each may hold for itself adds up to what counts. */
enum { HEAPS_MANY = 8 };
WEIR_INLINE bool heaps_are_many(void) { return load_relaxed(&heap_totals.heaps_live) > HEAPS_MANY; }

/* Whether others free what the thread takes of class c, as far as its last lists tell. */
WEIR_INLINE bool heap_is_passed(const struct heap* h, unsigned c) {
    return (h->passed[c / 64] >> c % 64 & 1) != 0;
}

/* Set by the api layer. Called by each thread that gets a heap, with no lock held. `first`: it is the
 * process's first one. */
WEIR_VAR_DECL void (*heap_attach_hook)(bool first);
/* Called by a thread that is about to give its heap away, with no lock held; it may still allocate and free.
 * Set when the first pool is made; Sync: relaxed. */
WEIR_VAR_DECL void (*heap_detach_hook)(void);
/* Called on the slow path now and then (at most once per refill). */
WEIR_VAR_DECL void (*heap_tick_hook)(void);
/* Called after a large block was taken, resized or given back, and after a long block's free that did not
 * find room in what the thread keeps; with no lock held, maybe by a thread that has no heap. */
WEIR_VAR_DECL void (*heap_long_hook)(void);

/* Bits beside the heap's address in a slab's owner word; each makes the fast path's compare fail.
 * FULL: checks=full, always. NUDGED: another thread has freed blocks of the slab; the owner is to take
 * them in at its next free. TAGGED: blocks carry tags, always. */
#define OWNER_FULL 1ul
#define OWNER_NUDGED 2ul
#define OWNER_TAGGED 4ul
WEIR_INLINE struct heap* owner_heap(const void* word) {
    return (struct heap*)((uintptr_t)word & ~(OWNER_FULL | OWNER_NUDGED | OWNER_TAGGED));
}

WEIR_INLINE struct heap* heap_self(void) { return arch_thread_word(); }

/* `size` bytes for the calling thread, any size; NULL: no memory, and errno is ENOMEM: malloc ends with this
 * call. Elsewhere errno is the api layer's. */
WEIR_FN WEIR_NOINLINE void* heap_alloc_slow(size_t size);
/* The same where size is 0 or more than SMALL_MAX. */
WEIR_FN WEIR_NOINLINE void* heap_alloc_above(size_t size);
/* The same, aligned to `align`, a power of two. */
WEIR_FN void* heap_alloc_aligned(size_t size, size_t align);
/* As heap_alloc_slow; *zeroed tells whether the block reads as zero already. */
WEIR_FN void* heap_alloc_zeroable(size_t size, bool* zeroed);
/* Zero a block of so many bytes that is not. Of a long one pages go back where few are resident: who takes
 * such a block may use little of it. */
WEIR_FN WEIR_NOINLINE void heap_clear(void* p, size_t bytes);
/* Free what the fast path would not: foreign pointers, other heaps' blocks, large blocks, NULL. */
WEIR_FN WEIR_NOINLINE void heap_free_slow(void* p, const char* call);
/* The same where the slice that p lies in is known: s is its record, in the primary region; h is the caller's
 * heap. */
WEIR_FN WEIR_NOINLINE void heap_free_near(void* p, struct slice* s, const char* call, void* h);
/* Free what lies outside the primary region as the address stands, NULL or a block with a tag: `distance`
 * from the region's base, of which the records of so many slices may be read. heap.h alone calls it, with
 * what it has at hand; h is the caller's heap. */
WEIR_FN WEIR_NOINLINE void heap_free_tagged(void* p, void* h, uintptr_t distance, uintptr_t base,
                                            size_t slices, const char* call);
/* The countdown of the slab ended with block p: its last one came back to its owner, or it is time to look.
 */
WEIR_FN WEIR_NOINLINE void heap_free_last(block_t* p, struct slice* s);

/* The block's usable bytes; 0 after a report. NULL gives 0. */
WEIR_FN size_t heap_usable(const void* p, const char* call);
/* True when a block of `usable` bytes may have been asked for as `size` (and alignment `align`). */
WEIR_FN bool heap_size_matches(size_t usable, size_t size, size_t align);
/* Resize a live block in place or move it; NULL: no memory, the block is as it was. size > 0. */
WEIR_FN void* heap_realloc(void* p, size_t size, const char* call);

/* Read the options, if nobody has yet. */
WEIR_FN void heap_options_start(void);
/* Give the calling thread a heap; NULL: no memory. */
WEIR_FN struct heap* heap_attach(void);
/* The calling thread, which has none, frees a block of the slab of record s, or has just done so: if a heap
 * owns that which waits for the next thread, this one is to have it. */
WEIR_FN void heap_want(const struct slice* s);
/* Take the calling thread's heap away: before a long wait; or because the thread `ends`. Then signals stay
 * blocked, as libc would block them next: a thread that unblocks one takes what the process has pending, also
 * what the kernel is just waking another thread for. But for libc's own. */
WEIR_FN void heap_detach(const char* call, bool ends);
/* Empty out the heaps that wait for another thread; but for `all`, those that waited since the look before
 * the last. With no lock held. */
WEIR_FN void heaps_unpark(bool all);
/* Give back what the calling thread's heap caches: outboxes, remote frees, empty slabs. */
WEIR_FN void heap_collect(void);
/* Between these, lists and counts of the heap need not agree. A signal handler that forks in the middle
 * leaves its child a heap that is half changed, which the child sets aside; it is the thread's again when
 * the interrupted call goes on there and ends. Not for heap_empty. */
WEIR_FN WEIR_NOINLINE void heap_resume(struct heap* h);
WEIR_INLINE void heap_enter(struct heap* h) {
    h->busy++;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
WEIR_INLINE void heap_leave(struct heap* h) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    h->busy--;
    if (weir_unlikely(h->set_aside)) heap_resume(h);
}
/* Fork: take and give every lock below; in the child the other threads' heaps are emptied out. */
WEIR_FN void heap_fork_ready(void); /* first, without any lock */
/* False: not now; none was taken. Not `patient`: other threads' heaps and arenas may stay behind, since
 * whoever has one may sleep in a handler. */
WEIR_FN bool heap_fork_prepare(bool patient);
WEIR_FN void heap_fork_parent(void);
WEIR_FN void heap_fork_child(void);

/* Of the same class as the bin. */
WEIR_INLINE struct direct* bin_direct(struct bin* b) {
    return (struct direct*)(void*)((char*)b + offsetof(struct heap, direct));
}

/* Pop a block of size last + 1 <= SMALL_MAX: the fast path. NULL: the bin is empty, or its list was
 * written to. A tag in the head makes no difference to the test. */
WEIR_INLINE void* heap_alloc_fast(size_t last) {
    struct bin* b = arch_thread_word_plus(last & ~(size_t)(GRANULE - 1));
    block_t* p = b->head;
    if (weir_unlikely(!arch_distance_within((uintptr_t)p - b->base, SLICE_BYTES))) return NULL;
    b->head = p->next;
    owner_increment(&bin_direct(b)->taken);
    return p;
}
static_assert(sizeof(struct bin) == GRANULE, "a small size, rounded down to a granule, is its bin's offset");
static_assert(offsetof(struct heap, bins) == 0, "the bins start the heap");

/* malloc. */
WEIR_INLINE void* heap_alloc(size_t size) {
    size_t last = size - 1; /* 0 wraps and goes the slow way */
    if (weir_unlikely(last >= SMALL_MAX)) return heap_alloc_slow(size);
    void* p = heap_alloc_fast(last);
    if (weir_unlikely(p == NULL)) return heap_alloc_slow(size);
    return p;
}

/* Put a block on its slab's list, or into the bin if the slab is direct; the slab belongs to the caller. */
WEIR_INLINE void slab_push(struct slice* s, block_t* p) {
    list_head_t* list = (list_head_t*)s->push_at;
    p->next = *list;
    /* A fork child may meet this list at any instruction: the link is written before the head. */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    owner_publish(list, p);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* and the count goes down after it */
    if (weir_unlikely(owner_decrement(&s->until) == 0)) heap_free_last(p, s);
}

/* Whether p, without a tag, lies in a slab of one slice that belongs to the calling thread; *found is its
 * record. `base_at`: the primary region's base; one that no pointer is near where the answer is to be no. */
WEIR_INLINE bool heap_owns(const void* p, const uintptr_t* base_at, struct slice** found) {
    void* h = heap_self();
    uintptr_t base = owner_peek(base_at);
    uintptr_t index = ((uintptr_t)p - base) >> SLICE_SHIFT;
    if (weir_unlikely(index >= owner_peek(&page_root.slices))) return false;
    *found = (struct slice*)base + index;
    return weir_likely(owner_compare(&(*found)->owner, h));
}

/* Put a block of size last + 1 <= SMALL_MAX back into the bin it came from, if the bin's slab holds it.
 * The bin's blocks count as in use, so no counter changes. A block with a tag is to get another one. */
WEIR_INLINE bool heap_free_to_bin(block_t* p, size_t last) {
    struct bin* b = arch_thread_word_plus(last & ~(size_t)(GRANULE - 1));
    if (weir_unlikely((uintptr_t)p - b->base >= SLICE_BYTES)) return false;
    p->next = b->head;
    b->head = p;
    return true;
}

/* free. `call` names the caller in reports. */
WEIR_INLINE void heap_free(void* p, const char* call) {
    void* h = heap_self();
    uintptr_t base = owner_peek(&page_root.base);
    uintptr_t distance = (uintptr_t)p - base;
    size_t slices = owner_peek(&page_root.slices);
    if (weir_unlikely(distance >> SLICE_SHIFT >= slices)) {
        if (ARCH_HAS_TAGS && p != NULL)
            heap_free_tagged(p, h, distance, base, slices, call);
        else
            heap_free_slow(p, call);
        return;
    }
    struct slice* s = (struct slice*)base + (distance >> SLICE_SHIFT);
    if (weir_unlikely(!owner_compare(&s->owner, h))) {
        heap_free_near(p, s, call, h);
        return;
    }
    slab_push(s, p);
}

#endif
