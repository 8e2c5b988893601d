/* slab.h: one slab: its blocks, the list checks, and who owns it.
 *
 * Internal to the heap layer. It deliberately knows nothing of bins: which slab a heap allocates from is
 * refill.c's business.
 *
 *   remote word   63        62        61     60      59 .. 40  39 .. 36, 35 .. 20    19 .. 16, 15 .. 0
 *               [ UNOWNED | DOUBTED | BITS | AHEAD |  count  | tag and granule + 1 | tag and granule + 1 ]
 *                                                             of the last block      of the first; 0: none
 *
 * By the last block, the one that came when there was none, the list is joined to the owner's without being
 * followed: each of its links leads to a line that another processor wrote last.
 *
 * Ownership. A slab is owned (owner word set, UNOWNED clear) or not. Only its owner sets UNOWNED, by a
 * release that publishes the whole record; whoever clears it by compare-and-swap, with acquire, is the
 * new owner. So a thread that sleeps for good never keeps a full slab from being used again.
 *
 * A block is in one of four states: in use; on the slab's list `free`, where frees put it; sorted, on the
 * list of the OS page where it starts; or unbuilt, because a page that it touches is a hole. The countdown
 * `until` makes the owner look at the slab now and then: see exposure.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_SLAB_H
#define WEIR_HEAP_SLAB_H

#include "core/options.h"
#include "heap/heap.h"
#include "tag/tag.h"

#define REMOTE_UNOWNED (1ull << 63)
#define REMOTE_DOUBTED (1ull << 62) /* a block of the list may be on it twice: see remote_mark */
#define REMOTE_BITS (1ull << 61)    /* owned, active: others note what they free in bits: remote_bits.h */
/* A visitor left blocks in `ahead`: with those that wait, so many are back. Others may set it too late, and
 * it may be set where none are. */
#define REMOTE_AHEAD (1ull << 60)
#define REMOTE_KEPT (REMOTE_BITS | REMOTE_AHEAD) /* by who takes the list */
#define REMOTE_ONE (1ull << 40)
#define REMOTE_LAST_SHIFT 20
#define REMOTE_FIRST ((1ull << REMOTE_LAST_SHIFT) - 1)
#define REMOTE_TAG_SHIFT 16
static_assert((SLAB_SLICES << SLICE_SHIFT) / GRANULE < 1 << REMOTE_TAG_SHIFT,
              "any granule of a slab, and none");
/* A count that has one of these is more than any slab has: some were freed twice. No more are added, so that
 * it stays what it is, and the owner reports it. */
#define REMOTE_OVER (0xfull << 56)

WEIR_INLINE const struct size_class* slab_class(const struct slice* s) {
    return &size_classes[s->size_class];
}
WEIR_INLINE uint32_t remote_count(uint64_t word) { return (uint32_t)(word >> 40 & 0xfffff); }
/* Anybody: blocks that are back besides those that wait, though they count as in use: a visitor sorted them.
 */
WEIR_INLINE uint32_t remote_ahead(const struct slice* s, uint64_t word) {
    return weir_likely((word & REMOTE_AHEAD) == 0) ? 0 : load_relaxed(&slice_pages(s)->ahead);
}
/* Whether remote_mark was here. */
WEIR_INLINE bool remote_is_marked(const block_t* p) { return p->seal == ~(uint64_t)(uintptr_t)tag_clear(p); }
/* Owners do not follow all lists that come in: what would tell a double free has to be seen when a block is
 * given. A block that is on its way to a remote list says so in its first word, until the program that gets
 * it next writes there. One that says so already may be freed for the second time: returns REMOTE_DOUBTED,
 * which goes into the remote word, and its owner follows the list. Not with checks=full, whose own word it
 * is. */
WEIR_INLINE uint64_t remote_mark(block_t* p) {
    if (weir_unlikely(remote_is_marked(p))) return REMOTE_DOUBTED;
    p->seal = ~(uint64_t)(uintptr_t)tag_clear(p);
    return 0;
}
/* Whether others noted blocks in bits; `word`: the remote word, read with acquire. */
WEIR_INLINE bool slab_has_noted(const struct slice* s, uint64_t word) {
    if ((word & REMOTE_BITS) == 0) return false;
    const struct slice_bits* b = slice_bits(s);
    return (load_relaxed(&b->noted) | load_relaxed(&b->noted_far)) != 0;
}
/* Whether blocks that others freed wait, on the list or noted; what comes in now may be missed. */
WEIR_INLINE bool slab_has_remote(const struct slice* s) {
    uint64_t word = load_acquire(&s->remote); /* acquire: region_bits */
    return remote_count(word) != 0 || slab_has_noted(s, word);
}
/* With the tag, which the block may have changed while its place on the list stayed the same. */
WEIR_INLINE uint64_t remote_first_word(const struct slice* s, const block_t* p) {
    uint64_t granule = ((uintptr_t)tag_clear(p) - slice_address(s)) / GRANULE + 1;
    return granule | (uint64_t)tag_of(p) << REMOTE_TAG_SHIFT;
}
WEIR_INLINE block_t* remote_first(const struct slice* s, uint64_t word) {
    uint64_t granule = word & ((1ull << REMOTE_TAG_SHIFT) - 1);
    if (granule == 0) return NULL;
    return tag_with(slice_address(s) + (granule - 1) * GRANULE, (unsigned)(word >> REMOTE_TAG_SHIFT) & 15);
}
WEIR_INLINE block_t* remote_last(const struct slice* s, uint64_t word) {
    return remote_first(s, word >> REMOTE_LAST_SHIFT);
}
/* The remote word once a list of `count` blocks is before what waits; of its first and last one,
 * remote_first_word. */
WEIR_INLINE uint64_t remote_joined(uint64_t word, uint64_t first, uint64_t last, uint64_t count) {
    uint64_t none = (word & REMOTE_FIRST) == 0 ? last << REMOTE_LAST_SHIFT : 0;
    return (word & ~REMOTE_FIRST) + count * REMOTE_ONE + (first | none);
}

/* The block that the remote word starts with, as seen from one whose own word is `own`; NULL: none. */
WEIR_INLINE block_t* remote_beside(const block_t* p, uint64_t own, uint64_t word) {
    const uint64_t granules = (1ull << REMOTE_TAG_SHIFT) - 1;
    if ((word & granules) == 0) return NULL;
    uintptr_t at = (uintptr_t)tag_clear(p) + ((word & granules) - (own & granules)) * GRANULE;
    return tag_with(at, (unsigned)(word >> REMOTE_TAG_SHIFT) & 15);
}

/* The word of the three counts, for those who look without being the owner: `until` counts down in it by
 * itself, all else changes in one store. With COUNTS_DIRECT in `rest` the other bits of that are all blocks
 * in use: see direct.h. */
WEIR_INLINE uint32_t counts_until(uint64_t counts) { return (uint32_t)counts; }
#define COUNTS_DIRECT 0x8000u
WEIR_INLINE bool counts_direct(uint64_t counts) { return (counts >> 32 & COUNTS_DIRECT) != 0; }
WEIR_INLINE uint32_t counts_used(uint64_t counts) {
    uint32_t rest = (uint32_t)(counts >> 32 & 0xffff);
    return (rest & COUNTS_DIRECT) != 0 ? rest & ~COUNTS_DIRECT : (uint32_t)counts + rest;
}
WEIR_INLINE uint32_t counts_built(uint64_t counts) { return (uint32_t)(counts >> 48); }
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the order of the fields in `counts`");

/* What a slab's `listed` says: which list of its owner it is on; ACTIVE: on none, but visitors may sort it as
 * if it were. Owners touch a slab for which it is not 0 under their lock, but for the fast path's pushes. */
enum { LISTED_NOT, LISTED_AVAILABLE, LISTED_SCARCE, LISTED_ACTIVE };
/* Blocks that a slab with these counts has free. */
WEIR_INLINE uint32_t counts_free(uint64_t counts) { return counts_built(counts) - counts_used(counts); }
/* Few free blocks, and no room for more. */
WEIR_INLINE bool slab_is_scarce(const struct slice* s) {
    uint64_t counts = load_relaxed(&s->counts); /* relaxed: for its owner, or under its lock */
    const struct size_class* k = slab_class(s);
    return counts_built(counts) == k->capacity && counts_free(counts) < class_enough(k);
}

WEIR_INLINE bool slab_is_kept(const struct slice* s) { return (s->flags & SLICE_KEPT) != 0; }
/* Owner. Relaxed: a visitor may move the other counts meanwhile, of which this is a part. */
WEIR_INLINE size_t slab_built_bytes(const struct slice* s) {
    return (size_t)load_relaxed(&s->built) * slab_class(s)->bytes;
}
/* So much may be built in active slabs that are kept without use. */
WEIR_INLINE size_t heap_kept_max(const struct heap* h) {
    size_t most = core_options.thread_kept_max;
    if (h->kept_widely == 0 || most < KEPT_BYTES_MAX || heaps_are_many()) return KEPT_BYTES_MAX;
    return most < KEPT_BYTES_WIDE ? most : KEPT_BYTES_WIDE;
}
/* Whether it may be kept besides those that are. */
WEIR_INLINE bool heap_may_keep(const struct heap* h, const struct slice* s) {
    return h->kept_bytes + slab_built_bytes(s) <= heap_kept_max(h);
}
/* Owner: blocks in use, the bin's among them. */
WEIR_INLINE uint32_t slab_used(const struct slice* s) { return counts_used(s->counts); }
/* Owner: blocks on `free`. */
WEIR_INLINE uint32_t slab_unsorted(const struct slice* s) {
    return s->built - slab_used(s) - slice_pages(s)->sorted;
}
/* Owner: that many blocks are in use, and the owner looks again after `frees` frees. */
WEIR_INLINE void slab_count(struct slice* s, uint32_t used, uint32_t frees, uint32_t built) {
    uint32_t until = used < frees ? used : frees;
    /* Release: with it the slab may be stolen, by a thread that then looks at the rest of the record. */
    store_release(&s->counts, until | (uint64_t)(used - until) << 32 | (uint64_t)built << 48);
}
/* The same of a direct slab. */
WEIR_INLINE void slab_count_direct(struct slice* s, uint32_t used, uint32_t frees) {
    store_release(&s->counts, frees | (uint64_t)(used | COUNTS_DIRECT) << 32 | (uint64_t)s->built << 48);
}
/* Change them while the owner may count down: its lock is the caller's, or it is the caller. */
WEIR_INLINE void slab_counts_move(struct slice* s, int32_t rest, int32_t built) {
    uint64_t counts = load_relaxed(&s->counts); /* relaxed: the compare below decides */
    uint64_t moved;
    do {
        moved = (uint64_t)(uint16_t)((int32_t)(counts >> 32 & 0xffff) + rest) << 32;
        moved |= (uint64_t)(uint16_t)((int32_t)counts_built(counts) + built) << 48;
        moved |= counts_until(counts);
    } while (!cas_acq_rel(&s->counts, &counts, moved));
}
WEIR_INLINE void slab_set_built(struct slice* s, uint32_t built) {
    struct heap* h = owner_heap(load_relaxed(&s->owner));
    if (h != NULL) add_relaxed(&h->slab_bytes, ((uint64_t)built - s->built) * slab_class(s)->bytes);
    store_relaxed(&s->counts, (s->counts & 0xffffffffffffull) | (uint64_t)built << 48);
}
/* The same as slab_count, with the countdown as it was as far as it can be. */
WEIR_INLINE void slab_recount_used(struct slice* s, uint32_t used) {
    uint32_t left = s->until;
    slab_count(s, used, left, s->built);
}

/* In a process that was made by fork, once: a signal handler may have forked between the two steps of a free,
 * which leaves its child a list that is one block longer than the counts say. If this one is, the counts
 * learn of it. */
WEIR_VAR_DECL bool slab_forked;
WEIR_FN WEIR_COLD uint32_t slab_recount_list(struct slice* s, const block_t* first, uint32_t count);
WEIR_INLINE uint32_t slab_list_count(struct slice* s, const block_t* first, uint32_t count) {
    return weir_likely(!slab_forked) ? count : slab_recount_list(s, first, count);
}

/* A new slab of class c for heap h, all of whose pages are holes; NULL: no memory. */
WEIR_FN struct slice* slab_make(struct heap* h, unsigned c);
/* Give the slab's memory back to the page layer. No block of it is in use; it is on no list. */
WEIR_FN void slab_release(struct slice* s);
/* Build the blocks of the lowest hole and of those right behind it, `pages` at most, or where the first one
 * holds none as a whole the one that reaches into it; of dirty holes before clean ones, and of clean ones
 * only if `clean`. Returns the first, linked, *count their number (0: none). They count as built and, until
 * they are put somewhere, as on `free`. */
WEIR_FN block_t* slab_build(struct slice* s, bool clean, uint32_t pages, uint32_t* count);
/* The list of the page with the fewest free blocks; NULL: none is sorted. They count as on `free`. After one
 * or several of these, slab_taken. */
WEIR_FN block_t* slab_take_sorted(struct slice* s, uint32_t* count);
WEIR_FN void slab_taken(struct slice* s);
/* Owner, with no thread that could steal the slab: sort what is on `free`, and make holes of the pages that
 * no block touches any more. False: reported, blocks lost. */
WEIR_FN bool slab_sort(struct slice* s, const char* call);
/* Anybody, with the lock of the heap that lists the slab: sort what others freed, and what its owner did, who
 * may go on meanwhile; make holes. False: something is wrong with a list, which is left for the owner to
 * report. */
WEIR_FN bool slab_sort_as_visitor(struct slice* s);
/* Owner, of a slab that is listed with its heap's lock: what visitors did becomes part of its list and
 * counts. */
WEIR_FN WEIR_COLD void slab_settle_visited(struct slice* s);
WEIR_INLINE void slab_settle(struct slice* s) {
    const struct slice_pages* r = slice_pages(s);
    if (weir_unlikely((r->taken | r->ahead) != 0)) slab_settle_visited(s);
}
/* Make holes of all pages of a slab none of whose blocks is in use. Returns the bytes of those that were
 * none. */
WEIR_FN size_t slab_close(struct slice* s);
/* Whether a slab of the class counts frees to its next hole. Where one fills a page, or the slab has several
 * slices, each free may do. */
WEIR_INLINE bool class_counts_frees(const struct size_class* k) {
    return k->slices == 1 && k->bytes <= 1u << page_shift;
}
/* A lower bound of the frees after which a page without blocks may appear. */
WEIR_FN uint32_t slab_frees_to_hole(const struct slice_pages* r);
/* Whether p is where a block of the slab starts. */
WEIR_FN bool slab_holds_block(const struct slice* s, const void* p);
/* Walk a list that must have `count` blocks of the slab and then end. Returns the last one, or NULL
 * after a report. count > 0. */
WEIR_FN block_t* slab_walk(const struct slice* s, block_t* first, uint32_t count, const char* call);
/* Now and then: how many lists are walked, by what the heap has in slabs. */
WEIR_FN void walks_learn(struct heap* h);
/* One list in how many is walked once the thread's first ones were. */
WEIR_INLINE uint32_t walk_every(const struct heap* h) { return core_options.check_every << h->walk_halvings; }
/* Whether the next list that turns over is walked. */
WEIR_INLINE bool walk_is_due(const struct heap* h) {
    return h->turn < core_options.check_first || h->turns_unchecked + 1 >= walk_every(h);
}
/* Anybody: so many blocks that others freed wait, on the remote list or noted in bits; about. */
WEIR_FN uint32_t slab_waiting(const struct slice* s);
/* Owner: take in what other threads freed. A list that nothing speaks against is not followed: it is checked
 * with the slab's own, when that one's turn has come. */
WEIR_FN void slab_collect(struct slice* s, const char* call);
/* The same, whatever speaks for it. */
WEIR_FN void slab_collect_doubted(struct slice* s, const char* call);
/* Owner: give up a slab that is on no heap's list, where fewer than `enough` blocks wait, at most as many as
 * given_enough says. False: as many came in, it is still the caller's. */
WEIR_FN bool slab_disown(struct slice* s, uint32_t enough);
/* Once blocks are handed over, or a slab is given up, it may be released, and a region other than the primary
 * one with it: being announced as a visitor keeps its records mapped. */
struct records {
    struct region* region; /* NULL: the primary one */
    uint32_t held;
};
WEIR_INLINE struct records records_hold(const struct slice* s) {
    struct region* r = s->region == 0 ? NULL : &regions[s->region];
    return (struct records){r, weir_unlikely(r != NULL) ? region_hold(r) : 0};
}
WEIR_INLINE void records_let(struct records r) {
    if (weir_unlikely(r.region != NULL)) region_let(r.region, r.held);
}
/* Hand `count` linked blocks to the slab's owner. True: nobody owned it, and the caller does now. False:
 * the slab may be gone when the call returns. `doubt`: REMOTE_DOUBTED or 0. */
WEIR_FN bool slab_push_remote(struct slice* s, block_t* first, block_t* last, uint32_t count, uint64_t doubt);
/* Hand linked blocks to a slab that the caller has no use for. One that nobody owns stays so until enough
 * blocks wait there, or all have come back: then it is the caller's (true). *waiting: so many blocks more
 * wait than anybody was told of. `doubt`: as above. */
WEIR_FN bool slab_give_remote(struct slice* s, block_t* first, block_t* last, uint32_t count, uint64_t doubt,
                              uint32_t* waiting);
/* Others are told of every so many blocks that wait, and of those that are enough: of an owned slab, and of
 * few that are built, such a part. */
enum { GIVEN_STEP = 16, GIVEN_PART = 4 };
/* So many blocks of an unowned slab with these counts wait until somebody is told. */
WEIR_INLINE uint32_t given_enough(const struct size_class* k, uint64_t counts) {
    const uint32_t part = counts_built(counts) / GIVEN_PART;
    return part >= class_enough(k) ? class_enough(k) : part != 0 ? part : 1;
}
/* Whether the last `count` of `all` blocks that wait bring them to `enough`. */
WEIR_INLINE bool given_passes(uint32_t all, uint32_t count, uint32_t enough) {
    return all >= enough && all - count < enough;
}
/* What slab_give_remote mostly comes to, for a slab in the primary region: somebody owns it. False: nothing
 * was done. *told: slab_given is to be called with that; 0: nothing more to do. */
WEIR_INLINE bool slab_give_owned(struct slice* s, block_t* p, uint64_t word_of_p, uint32_t* told) {
    uint64_t word = load_relaxed(&s->remote); /* relaxed: the compare below decides */
    do {
        if (weir_unlikely(((word | word_of_p) & (REMOTE_UNOWNED | REMOTE_DOUBTED | REMOTE_OVER)) != 0))
            return false;
        p->next = remote_beside(p, word_of_p, word);
        /* Release: publishes the link to slab_collect. */
    } while (!cas_acq_rel(&s->remote, &word, remote_joined(word, word_of_p, word_of_p, 1)));
    uint32_t all = remote_count(word) + 1;
    uint64_t counts = load_acquire(&s->counts); /* acquire: as in slab_give_remote */
    bool more = all == 1 || all % GIVEN_STEP == 0 || all == counts_built(counts) / GIVEN_PART ||
                all == counts_used(counts) || (word & REMOTE_AHEAD) != 0;
    *told = weir_unlikely(more) ? all : 0;
    return true;
}
/* The same where nobody owns the slab, and goes on not to. False: nothing was done; with this one there are
 * enough, or it is somebody's. *told: slab_left_given is to be called with that. */
WEIR_INLINE bool slab_give_left(struct slice* s, block_t* p, uint64_t word_of_p, uint32_t* told) {
    const struct size_class* k = slab_class(s);
    uint64_t word =
        load_acquire(&s->remote); /* acquire, here and below: the counts are the word's, or later */
    uint64_t counts;
    uint32_t all;
    do {
        uint64_t flags = (word | word_of_p) & (REMOTE_UNOWNED | REMOTE_DOUBTED | REMOTE_OVER);
        bool left = flags == REMOTE_UNOWNED;
        all = remote_count(word) + 1;
        counts = load_relaxed(&s->counts);
        if (weir_unlikely(!left || all == given_enough(k, counts))) return false;
        p->next = remote_beside(p, word_of_p, word);
        /* Release: publishes the link to slab_collect. */
    } while (!cas_acq_rel(&s->remote, &word, remote_joined(word, word_of_p, word_of_p, 1)));
    *told = weir_unlikely(all % GIVEN_STEP == 0 || all == counts_used(counts)) ? all : 0;
    return true;
}
/* Whether all blocks of a slab that nobody owns are back already: what is freed now was. */
WEIR_INLINE bool slab_has_none_out(const struct slice* s) {
    /* While a block is in use, it counts at any time: what is read may be old, and is right. */
    return counts_used(load_relaxed(&s->counts)) == 0;
}
/* Blocks wait in a slab: make its owner's next free of one of them look. */
WEIR_FN void slab_nudge(struct slice* s);
/* So many blocks waited in an owned slab when one was given to it: nudges the owner, releases the slab when
 * all are back, with what a visitor sorted. As *waiting of slab_give_remote. */
WEIR_FN uint32_t slab_given(struct slice* s, uint32_t all);
/* So many blocks waited in an unowned slab when one was given to it. True: all are back, and it is the
 * caller's. */
WEIR_FN bool slab_left_given(struct slice* s, uint32_t all);
/* Owner, whose word it does not carry any more: give it up with what waits on its remote list. True: all its
 * blocks do. */
WEIR_FN bool slab_leave(struct slice* s);
/* Take an unowned slab; false: somebody else did. */
WEIR_FN bool slab_claim(struct slice* s);
/* Owner, of a slab that no visitor may look at just now: whether its list has as many blocks as the counts
 * say. If not, that is reported, and the blocks are lost. Quicker than slab_walk: an address inside a block
 * passes. */
WEIR_FN bool slab_check_list(struct slice* s, const char* call);
/* The blocks on `free` are lost to the slab from now on: after a report that lets the program go on. */
WEIR_FN void slab_forget_free(struct slice* s);
/* All of the slab's built blocks count as in use: of a slab whose owner a fork left behind. */
WEIR_FN void slab_forget_all(struct slice* s);

/* Lists of slabs, linked through the records. */
WEIR_FN void slab_list_push(struct slice** head, struct slice* s);
WEIR_FN void slab_list_remove(struct slice** head, struct slice* s);

#endif
