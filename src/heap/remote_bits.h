/* remote_bits.h: blocks of an active slab that others free, as bits beside it.
 *
 *   remote word of the slab           REMOTE_BITS: others set bits
 *   beside it, a bit for each block   noted: some may be set     | 1 . . 1 . . | . . . . . . | ...
 *
 * Where others free most of what a thread takes of a class, a list through the blocks costs both of them: who
 * frees a block writes to its line, and waits for it with the atomic operation behind; the owner is led by
 * each link to a line that another processor wrote last. Here who frees sets one bit, which says too whether
 * it has been set before, and the owner, who takes all of them, writes the links itself.
 *
 * A bit is set while its block counts as in use, and the slab cannot go before somebody has taken the bit. So
 * what is done before is done to a slab that is there, and whoever has taken a bit holds the slab with it.
 * After it the record may be anything: who frees only looks once more whether bits are looked for still. If
 * not, it takes the bit back, whoever set it, and the block goes the other way.
 *
 *   who frees              the owner, or a visitor       the owner, to end it
 *   1 the bit is set       1 `noted` is cleared          1 BITS is cleared
 *   2 BITS is looked at    2 the bits are taken          2 the bits are taken
 *   3 `noted` is, and set
 *
 * All in one order (seq_cst): a bit that was not taken has a setter who sees that BITS, or `noted`, has gone.
 * `noted` is nobody's else: set beside a slab that came later it has one look for nothing. It lies with the
 * bits, so that the line of the slab's record stays in the caches of all who read it. The bits of the first
 * 384 blocks are in the same line; the others have an array and a `noted_far` of their own, which slabs
 * without so many blocks never touch.
 *
 * The owner, nudged, need not take in what is noted to see whether a block that it frees is: it looks at the
 * bit, some times, before it does.
 *
 * How many are set is not counted, which would be a second atomic operation: nobody has to know the moment in
 * which the last one comes, since an active slab is nobody's to release. In the primary region alone, where
 * no record goes away; not with tags, of which a list has those of its blocks, or with checks=full.
 *
 * Internal to the heap layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_REMOTE_BITS_H
#define WEIR_HEAP_REMOTE_BITS_H

#include "heap/slab.h"

/* Of so many blocks one tells others what waits. */
enum { NOTED_STEP = 16 };
/* So often the owner only looks whether what it frees is noted, before it takes in what is. */
enum { LOOKS_MAX = 8 };

WEIR_INLINE bool remote_bits_are_used(uint64_t word) { return (word & REMOTE_BITS) != 0; }

/* Owner, of an active slab: others are to set bits from now on, where that may be. */
WEIR_FN void remote_bits_begin_now(struct slice* s);
WEIR_INLINE void remote_bits_begin(struct slice* s) {
    /* Relaxed: the owner alone changes it. */
    if (!remote_bits_are_used(load_relaxed(&s->remote))) remote_bits_begin_now(s);
}
/* Owner, who is about to list the slab, or to give it up: what is noted goes to the remote list. */
WEIR_FN void remote_bits_end_now(struct slice* s);
WEIR_INLINE void remote_bits_end(struct slice* s) {
    if (weir_unlikely(remote_bits_are_used(load_relaxed(&s->remote)))) remote_bits_end_now(s);
}

/* What a free of another thread came to. */
enum noted {
    NOTED_NOT,   /* nothing was done: bits are not used */
    NOTED_TWICE, /* nothing was done: it waits already */
    NOTED_LATE,  /* remote_bits_late is to be called */
    NOTED_FIRST, /* done, and its owner is to be nudged */
    NOTED_DONE   /* done */
};
WEIR_INLINE enum noted remote_bits_note(struct slice* s, uint32_t block) {
    /* Acquire: region_bits. The next look decides. */
    if (!remote_bits_are_used(load_acquire(&s->remote))) return NOTED_NOT;
    struct slice_bits* b = slice_bits(s);
    bool near = block < SLICE_BITS_NEAR;
    uint64_t* word = slice_bits_word(s, block / 64);
    /* All addresses first: what follows the atomic operation waits for it. */
    uint32_t* noted = near ? &b->noted : &b->noted_far;
    weir_one_register(noted);
    uint64_t bit = 1ull << block % 64;
    if (weir_unlikely((__atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST) & bit) != 0)) return NOTED_TWICE;
    if (weir_unlikely(!remote_bits_are_used(load_seq_cst(&s->remote)))) return NOTED_LATE;
    if (weir_likely(load_seq_cst(noted) != 0)) return NOTED_DONE;
    /* An exchange: the look at the nudge comes after it (as in os_lock_give_waking). */
    (void)__atomic_exchange_n(noted, 1, __ATOMIC_SEQ_CST);
    return NOTED_FIRST;
}
/* The block's bit was set after BITS had ended. Takes it back, and returns the block of the slab that is
 * there by then, which goes to the remote list instead; NULL: somebody has taken it. */
WEIR_FN block_t* remote_bits_late(struct slice* s, uint32_t block);

/* Owner, or under the lock of the heap that lists the slab: the blocks whose bits are set, linked by address;
 * *count of them, the last one *last. They count as in use still. `all`: whatever `noted_far` says. */
WEIR_FN block_t* remote_bits_take(struct slice* s, bool all, block_t** last, uint32_t* count);
WEIR_INLINE bool remote_bit_is_set(const struct slice* s, uint32_t block) {
    return (load_seq_cst(slice_bits_word(s, block / 64)) >> block % 64 & 1) != 0;
}
/* Owner, of an active slab, who frees a block of it while others are noted: whether to look at its bit is all
 * that it does now. What is noted stays; so does the nudge, which has it look again. */
WEIR_INLINE bool remote_bits_look_suffices(struct slice* s) {
    uint64_t word = load_acquire(&s->remote); /* acquire: region_bits */
    if (!slab_has_noted(s, word) || remote_count(word) != 0) return false;
    struct slice_bits* b = slice_bits(s);
    uint32_t looks = load_relaxed(&b->looks) + 1; /* relaxed: a visitor may set it to 0 */
    if (looks > LOOKS_MAX) return false;
    store_relaxed(&b->looks, looks);
    return true;
}
/* Anybody: how many are set, about; whether a block's is. */
WEIR_FN uint32_t remote_bits_count(const struct slice* s);
WEIR_FN bool remote_bits_have(const struct slice* s, const void* p);
/* In the child of a fork: all blocks of the slab count as in use. look: who was setting a bit of an active
 * slab did not come along, so that the owner, who did, is to look for some. */
WEIR_FN void remote_bits_forget(struct slice* s);
WEIR_FN void remote_bits_look(struct slice* s);

#endif
