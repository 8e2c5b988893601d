/* medium.h: blocks of more than SMALL_MAX bytes whose class the thread has few of: from chunks that threads
 * share (heap/arena.h), by way of a few kept blocks per class. Classes of which it has more get slabs, which
 * are faster in bulk.
 *
 * Internal to the heap layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_MEDIUM_H
#define WEIR_HEAP_MEDIUM_H

#include "heap/full.h"
#include "heap/heap.h"

/* Up to this size a class of which a thread has many gets slabs: from two blocks to a page on a slab's pages
 * wait for one class, and its holes cost more than runs. */
enum { MEDIUM_DENSE_MAX = 2048 };

/* The ring in which blocks of medium class m wait, and the row of kept_medium with its ends. */
WEIR_INLINE unsigned medium_ring(unsigned m) { return m < KEPT_LONG ? m : KEPT_LONG; }
/* So many may wait there, by octave: where heaps are many, fewer of large ones, as each takes the room of
 * many small; else half of those of more than 32 KiB of which the thread had several; of long ones one in
 * all. Another thread that starts or ends may change it at any time: whoever relies on it reads it once. */
WEIR_INLINE unsigned medium_kept_count_max(const struct heap* h, unsigned row) {
    enum { all = KEPT_RING - 1, several = 8 };
    static const uint8_t by_octave[][2] = {{all, 8}, {all, 16}, {all, 12}, {all, 8},
                                           {all, 6}, {1, 1},    {1, 1}};
    static_assert(sizeof by_octave / sizeof by_octave[0] == KEPT_LONG / 8 + 1, "each octave has a row");
    const bool threads = heaps_are_many();
    const unsigned i = row - LONGER_CLASS;
    const unsigned many = i < KEPT_LONG - LONGER_CLASS && !threads ? h->medium_many[i] : 0;
    if (many >= several) return many / 2 < all ? many / 2 : all;
    return by_octave[row / 8][threads];
}
WEIR_INLINE size_t medium_bytes(unsigned m) { return size_classes[SMALL_CLASSES + m].bytes; }
/* The place so many entries further on, or back. */
WEIR_INLINE uintptr_t kept_place_plus(uintptr_t place, int entries) {
    return arch_low_byte_plus(place, (int8_t)(entries * KEPT_PLACE_BYTES));
}
WEIR_INLINE unsigned medium_kept_count(const struct kept_medium* k) {
    return (load_relaxed(&k->to) - load_relaxed(&k->from)) % KEPT_RING_BYTES / KEPT_PLACE_BYTES;
}
/* The ring's ends. By bytes from the first one of all: what compilers make of it is short. */
WEIR_INLINE struct kept_medium* medium_ends(struct heap* h, unsigned row) {
    return (struct kept_medium*)(void*)((char*)h->kept_medium + row * sizeof(struct kept_medium));
}
/* The block in a place, and what is known of it. */
WEIR_INLINE void** medium_kept_at(struct heap* h, uintptr_t place) {
    return (void**)(void*)((char*)h->kept_rings + place - sizeof(struct kept_ring));
}
WEIR_INLINE uint16_t** medium_known_at(struct heap* h, uintptr_t place) {
    static_assert(offsetof(struct kept_ring, known) == KEPT_RING_BYTES, "the low byte says which of either");
    return (uint16_t**)(void*)((char*)h->kept_rings + place - KEPT_RING_BYTES);
}
/* The place of the youngest block, where there is one. */
WEIR_INLINE uintptr_t medium_youngest(struct heap* h, unsigned row) {
    return kept_place_plus(h->kept_medium[row].to, -1);
}
/* How many blocks of class m are kept, where the youngest of them, which is the next, was freed; else none: a
 * fresh one may be memory for nothing to who asks for less. */
WEIR_INLINE unsigned medium_freed_count(struct heap* h, unsigned m) {
    unsigned count = medium_kept_count(medium_ends(h, m));
    if (count == 0) return 0;
    /* Relaxed: a visitor may have taken it, which medium_unkeep finds. */
    return (load_relaxed(*medium_known_at(h, medium_youngest(h, m))) & BLOCK_FRESH) != 0 ? 0 : count;
}
/* Bytes of all kept blocks. */
WEIR_INLINE ptrdiff_t medium_kept_bytes(const struct heap* h) {
    return h->kept_medium_max - load_relaxed(&h->kept_medium_room);
}

/* Whether a block of one of the next two classes may serve `size`, more than SMALL_MAX, where the thread
 * keeps none of its own: what was freed has memory, where its own class takes the lock, and often a cut. From
 * two blocks to a page on, where every class has chunks; with checks=full none has. */
WEIR_INLINE bool medium_next_serves(size_t size) {
    enum { most = SLAB_MAX - SLAB_MAX / 8 }; /* the last class but two */
    return size > MEDIUM_DENSE_MAX && size <= most;
}

/* The owner is about to use what it keeps, until gate_leave, which gets *inside. False: a visitor has been
 * here; see medium_visit, with whose barrier this pairs: either it sees that the owner is inside, or the
 * owner that it has asked. What was there is put back: it says so already where a handler interrupts a call.
 */
WEIR_INLINE bool gate_enter(struct gate* g, uint32_t* inside) {
    *inside = g->inside; /* a handler leaves it as it was */
    store_relaxed(&g->inside, 1u);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (weir_likely(owner_compare(&g->state, KEPT_OPEN))) return true;
    store_relaxed(&g->inside, *inside);
    return false;
}
WEIR_INLINE void gate_leave(struct gate* g, uint32_t inside) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    store_release(&g->inside, inside); /* a visitor that sees it sees what is kept as it is */
}
/* As gate_enter, always: to keep blocks; the gate is open then. */
WEIR_FN WEIR_NOINLINE uint32_t gate_enter_keep(struct heap* h, unsigned gate);
/* The same to see to the counts, or to give back what is kept: where a visitor took all the gate stays as it
 * is, as none comes before the owner opens. */
WEIR_FN WEIR_NOINLINE uint32_t gate_enter_count(struct heap* h, unsigned gate);
WEIR_INLINE bool medium_enter(struct heap* h, uint32_t* inside) {
    return gate_enter(&h->gates[GATE_MEDIUM], inside);
}
WEIR_INLINE void medium_leave(struct heap* h, uint32_t inside) { gate_leave(&h->gates[GATE_MEDIUM], inside); }
/* The youngest block of a ring, for the program; NULL: there is none. At each instruction a fork's child
 * may go on with what is there: a block is in the ring, or the caller's. */
WEIR_INLINE void* medium_unkeep(struct heap* h, unsigned row) {
    struct kept_medium* k = medium_ends(h, row);
    uintptr_t to = k->to;
    uint32_t inside;
    if (weir_unlikely(owner_compare(&k->from, to) || !medium_enter(h, &inside))) return NULL;
    to = kept_place_plus(to, -1);
    void* p = *medium_kept_at(h, to);
    uint16_t* known = *medium_known_at(h, to); /* a handler leaves `to` as it was */
    store_relaxed(&k->to, (uint32_t)to);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    h->kept_medium_room += k->bytes;
    medium_leave(h, inside);
    owner_clear(known, BLOCK_KEPT | BLOCK_FRESH);
    owner_increment(&h->handed_out);
    if (p == NULL) __builtin_unreachable(); /* what is in a ring is a block: no caller looks again */
    return p;
}
/* The same of a class that slabs do not have. */
WEIR_INLINE void* medium_unkeep_long(struct heap* h, unsigned m) {
    return h->kept_medium[KEPT_LONG].bytes == medium_bytes(m) ? medium_unkeep(h, KEPT_LONG) : NULL;
}
/* The owner is inside, the ring, whose ends are k, has a place, and the block's bytes are taken off
 * kept_medium_room: p gets place `to`, which a handler leaves as it was. */
WEIR_INLINE void medium_keep(struct heap* h, struct kept_medium* k, uintptr_t to, void* p, uint16_t* known) {
    owner_set(known, BLOCK_KEPT);
    *medium_kept_at(h, to) = p;
    *medium_known_at(h, to) = known;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    /* Release: publishes the entry to the child of another thread's fork. */
    store_release(&k->to, (uint32_t)kept_place_plus(to, 1));
}
/* Free p, which lies in a chunk, for the calling thread, by whom a visitor has been. */
WEIR_FN void medium_free_asked(void* p, const char* call);
/* The same of a thread that is inside its gate, where kept_medium_room had not as many bytes as were taken
 * off it for p's ring, k. */
WEIR_FN void medium_free_crowded(void* p, const char* call, uint32_t inside, struct heap* h,
                                 const struct kept_medium* k);
/* Free p, which lies in a slice of a chunk whose record has `blocks`, if it is a block whose ring, of the
 * caller's heap h, has a place. False as well where none of the class was kept yet: medium_free_own then sees
 * to what is to be known. Not for long ones. */
WEIR_INLINE bool medium_free_kept(struct heap* h, void* p, uint16_t* blocks, const char* call) {
    uint32_t m;
    uint16_t* block = arena_block(blocks, p, &m);
    if (weir_unlikely(block == NULL)) return false;
    /* The classes of the last eight, a byte each. Where they were one, which can be foreseen, the ring, where
     * the next allocation looks, need not wait until all is read that says which it is. */
    uint64_t before = h->medium_freed;
    uint64_t freed = before << 8 | m;
    if (weir_likely(freed == (freed << 8 | freed >> 56))) weir_guess(m, (uint32_t)(uint8_t)before);
    struct kept_medium* k = medium_ends(h, m);
    uintptr_t to = k->to;
    uint32_t inside;
    if (weir_unlikely(owner_compare(&k->limit, to))) return false; /* so it is in heap_empty */
    h->medium_freed = freed;
    if (weir_unlikely(!medium_enter(h, &inside))) {
        medium_free_asked(p, call); /* with what few registers are left */
        return true;
    }
    if (weir_unlikely((h->kept_medium_room -= k->bytes) < 0)) {
        medium_free_crowded(p, call, inside, h, k);
        return true;
    }
    medium_keep(h, k, to, p, block);
    medium_leave(h, inside);
    return true;
}
/* A block of class c >= SMALL_CLASSES at a multiple of `align`; NULL: it is for a slab to give. */
WEIR_FN void* medium_alloc(struct heap* h, unsigned c, size_t align);
/* The same where the thread keeps none that serves. */
WEIR_FN void* medium_alloc_shared(struct heap* h, unsigned c, size_t align);
/* The same where there is no memory for a slab: a chunk may have room all the same. */
WEIR_FN void* medium_alloc_last(struct heap* h, unsigned c, size_t align);
/* The same as heap_alloc_slow for a medium size, where memory is tagged. *zeroed: the block reads as zero. */
WEIR_FN void* medium_alloc_zeroable(size_t size, bool* zeroed);
/* Block p is in nobody's hands but the caller's: another tag. Returns p with that; NULL after a report. */
WEIR_FN void* medium_retag(struct slice* s, void* p, const char* call);
/* Free p, which lies in the chunk of record s, any of its, for the calling thread. */
WEIR_FN void medium_free(void* p, struct slice* s, const char* call);
/* Whether the block at p, in the chunk of first record s, or one that it was copied from, grew by little. */
WEIR_FN WEIR_NOINLINE bool medium_has_grown(const struct slice* s, const void* p);
/* Note that it did, or that it did not. The caller has the block. */
WEIR_FN WEIR_NOINLINE void medium_note_grown(const struct slice* s, const void* p, bool grew);
/* Whether the block at p, in the chunk of first record s, has become one for `size` bytes, more than it had
 * been for. */
WEIR_FN bool medium_grow(struct slice* s, const void* p, size_t size);
/* Usable bytes of the block at p; 0 after a report. */
WEIR_FN size_t medium_usable(const struct slice* s, const void* p, const char* call);
/* Free of the blocks that a heap keeps the oldest part of each size, rounded up; 1 part: all. The caller owns
 * it. */
WEIR_FN void medium_drop(struct heap* h, unsigned parts);
/* For who will soon take memory that nobody has: where more than `least` bytes of chunks are free, what the
 * heap keeps and what waits goes, so that chunks do, until free spans of `enough` bytes may be resident. The
 * caller owns it. */
WEIR_FN WEIR_NOINLINE void medium_yield(struct heap* h, uint64_t least, uint64_t enough);
/* Free the blocks that other threads' heaps keep: those that were not used since the last visit, or all. With
 * no lock held, and signals blocked. */
WEIR_FN void medium_visit(bool all);
/* In the child of a fork, whose parent's visitors are gone: for heaps of other threads, before they are
 * emptied. */
WEIR_FN void medium_fork_child(struct heap* h);
/* Now and then: a class of which the thread had many has to show it again. */
WEIR_FN void medium_age(struct heap* h);

#endif
