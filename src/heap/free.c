/* free.c: freeing off the fast path: other heaps' blocks, large blocks, and what is no block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "core/report.h"
#include "heap/available.h"
#include "heap/direct.h"
#include "heap/exposure.h"
#include "heap/free.h"
#include "heap/full.h"
#include "heap/guard.h"
#include "heap/heap.h"
#include "heap/history.h"
#include "heap/large.h"
#include "heap/medium.h"
#include "heap/orphan.h"
#include "heap/refill.h"
#include "heap/remote_bits.h"
#include "heap/slab.h"
#include "heap/tag_fault.h"
#include "heap/tagged.h"
#include "heap/visit.h"
#include "os/os.h"
#include "page/release.h"
#include "tag/tag.h"

WEIR_FN void block_misuse(const struct slice* s, const void* p, const char* call) {
    /* Inside a span no record says what it belongs to: look for the span's first slice. */
    uint32_t first = regions[s->region].first;
    while (load_relaxed(&s->kind) == SLICE_NONE && slice_index(s) > first) s--;
    uint8_t kind = load_relaxed(&s->kind);
    if (kind == SLICE_FREE || kind == SLICE_FREE_END || kind == SLICE_SPARE)
        core_report("double-free", REPORT_FREED, p, call);
    else
        core_report("invalid-free", REPORT_INTERIOR, p, call);
}

/* Whether the thread has taken blocks of the slab's class, so that it can use what comes back. */
static bool heap_uses(const struct heap* h, const struct slice* s) {
    unsigned c = s->size_class;
    return h->active[c] != NULL || (h->opened[c / 64] >> c % 64 & 1) != 0;
}

/* A block of a class that the thread never took any of, which goes alone; and the slab, if nobody owns it, to
 * whoever wants it. */
static void slab_free_lone(struct slice* s, block_t* p, uint64_t doubt) {
    size_t bytes = slab_class(s)->bytes;
    uint32_t waiting;
    if (slab_give_remote(s, p, p, 1, doubt, &waiting))
        orphan_give(s);
    else if (waiting != 0)
        visit_owed(&heap_empty, waiting * bytes);
}

/* The same of a thread that ends, or that never allocated: it gets no heap for this. */
static WEIR_NOINLINE void slab_free_heapless(struct slice* s, block_t* p, uint64_t doubt) {
    heap_want(s);
    slab_free_lone(s, p, doubt);
    release_poke(); /* another thread's slab may have gone */
}

/* `all` blocks wait in a slab that somebody owns; the last one came from the caller, who may have no heap. */
static WEIR_NOINLINE void slab_gave(struct slice* s, uint32_t all) {
    if (heap_self() == &heap_empty) heap_want(s);
    size_t bytes = slab_class(s)->bytes; /* whatever the slab is by now: it is but a measure */
    uint32_t waiting = slab_given(s, all);
    if (waiting != 0) visit_owed(heap_self(), waiting * bytes);
    release_poke(); /* the slab may have gone */
}

/* The same of a slab that nobody owns. */
static WEIR_NOINLINE void slab_left_gave(struct slice* s, uint32_t all) {
    struct heap* h = heap_self();
    size_t bytes = slab_class(s)->bytes;
    if (h != &heap_empty) heap_enter(h);
    if (all % GIVEN_STEP == 0) visit_owed(h, GIVEN_STEP * bytes);
    if (slab_left_given(s, all)) orphan_give(s);
    if (h != &heap_empty) heap_leave(h);
    release_poke();
}

/* Whether the outbox's list is as it was made. If not, a block of it was freed again meanwhile, as by its
 * owner, or written to. */
static bool outbox_is_whole(const struct outbox* o) {
    const block_t* p = o->first;
    for (uint32_t left = o->count; left > 1; left--) {
        if (p == NULL || !slab_holds_block(o->slab, p)) return false;
        p = p->next;
    }
    return p == o->last;
}

/* The outbox's blocks go to their slab. If nobody owns it, the heap adopts it where it uses the class. That
 * it may own it itself by now makes no difference: it is nudged like any other owner. */
static WEIR_NOINLINE void outbox_send(struct heap* h, struct outbox* o) {
    struct slice* s = o->slab;
    uint32_t count = o->count;
    if (!outbox_is_whole(o)) o->doubted = true;
    o->count = 0;
    o->slab = NULL;
    const size_t bytes = slab_class(s)->bytes;
    const uint64_t doubt = o->doubted ? REMOTE_DOUBTED : 0;
    const bool uses = heap_uses(h, s);
    uint32_t waiting = count;
    const bool mine = uses ? slab_push_remote(s, o->first, o->last, count, doubt)
                           : slab_give_remote(s, o->first, o->last, count, doubt, &waiting);
    if (mine && uses) {
        heap_adopt(h, s);
        return;
    }
    if (waiting != 0) visit_owed(h, waiting * bytes);
    if (mine) orphan_give(s);
}

/* Whether blocks wait, or a visitor takes them just now: only the owner puts some in. */
static bool outboxes_have_some(const struct heap* h) {
    for (unsigned i = 0; i < OUTBOX_SLOTS; i++)
        if (load_relaxed(&h->outbox[i].count) != 0) return true;
    return false;
}

WEIR_FN void outbox_flush_all(struct heap* h) {
    if (!outboxes_have_some(h)) return; /* and the gate stays as it is, which nobody is to come for */
    uint32_t inside = gate_enter_count(h, GATE_OUTBOX);
    for (unsigned i = 0; i < OUTBOX_SLOTS; i++)
        if (h->outbox[i].count != 0) outbox_send(h, &h->outbox[i]);
    gate_leave(&h->gates[GATE_OUTBOX], inside);
}

WEIR_FN void outboxes_take(struct heap* h, struct outbox* outboxes) {
    for (unsigned i = 0; i < OUTBOX_SLOTS; i++) {
        struct outbox* o = &h->outbox[i];
        outboxes[i] = (struct outbox){
            .slab = o->slab, .first = o->first, .last = o->last, .count = o->count, .doubted = o->doubted};
        store_relaxed(&o->count, 0u);
    }
}

WEIR_FN void outboxes_give(struct outbox* outboxes) {
    for (unsigned i = 0; i < OUTBOX_SLOTS; i++)
        if (outboxes[i].count != 0) outbox_send(&heap_empty, &outboxes[i]);
}

static struct outbox* outbox_of(struct heap* h, const struct slice* s) {
    return &h->outbox[((uintptr_t)s >> SLICE_RECORD_SHIFT) % OUTBOX_SLOTS];
}

/* Whether a block of another thread's slab goes alone: where the ones before were of ever other slabs, an
 * outbox would hold one at a time. Of a slab that comes again they are collected. */
static bool outbox_is_passed(struct heap* h, const struct slice* s) {
    struct outbox* o = outbox_of(h, s);
    uint16_t number = (uint16_t)((uintptr_t)s >> SLICE_RECORD_SHIFT);
    if (o->slab == s || o->lone == number) return false;
    o->lone = number;
    return true;
}

/* Whether what waits is to go at once, with so many more: then all blocks of the slab are back, or, of one
 * that nobody owns, enough of them. Relaxed: a guess. */
WEIR_INLINE bool outbox_is_due(const struct outbox* o, uint32_t more) {
    const struct slice* s = o->slab;
    const uint64_t word = load_relaxed(&s->remote);
    const uint64_t counts = load_relaxed(&s->counts);
    const uint32_t came = o->count + more;
    const uint32_t all = remote_count(word) + came;
    if (all + remote_ahead(s, word) >= counts_used(counts)) return true;
    return (word & REMOTE_UNOWNED) != 0 && given_passes(all, came, given_enough(slab_class(s), counts));
}

WEIR_INLINE void outbox_add(struct outbox* o, block_t* p) {
    if (remote_mark(p) != 0) o->doubted = true;
    p->next = o->first;
    o->first = p;
    o->count++;
}

/* Whether p is the first or the last one of what waits for its slab. The first one of a list that waits there
 * is nobody's, whoever takes the list in meanwhile; and the last one of the thread's own list. */
static bool outbox_finds(const struct outbox* o, const struct slice* s, const block_t* p) {
    if (o->slab == s && o->count != 0 && (p == o->first || p == o->last)) return true;
    return p == remote_first(s, load_relaxed(&s->remote));
}

static WEIR_NOINLINE void outbox_put(struct heap* h, struct slice* s, block_t* p, const char* call) {
    struct outbox* o = outbox_of(h, s);
    uint32_t inside = gate_enter_keep(h, GATE_OUTBOX);
    const bool twice = outbox_finds(o, s, p);
    if (!twice) {
        if (o->slab != s && o->count != 0) outbox_send(h, o);
        if (o->count == 0)
            *o = (struct outbox){
                .slab = s, .first = NULL, .last = p, .count = 0, .doubted = false, .lone = o->lone};
        outbox_add(o, p);
        if (o->count >= OUTBOX_BLOCKS || (size_t)o->count * slab_class(s)->bytes >= OUTBOX_BYTES ||
            outbox_is_due(o, 0))
            outbox_send(h, o);
    }
    gate_leave(&h->gates[GATE_OUTBOX], inside);
    if (twice) core_report("double-free", REPORT_FREED, p, call);
}

/* Owner: take in what others freed of the slab; whether p, which it frees now, is among it. A block that is
 * says so in its first word, and so may another one (remote_mark): then the list is followed. A link that
 * leads out of the slab ends the look; whoever follows the whole list reports it. */
static bool slab_collect_finds(struct slice* s, const block_t* p, bool full, const char* call) {
    bool noted = remote_bits_have(s, p);
    if (full || !remote_is_marked(p)) {
        slab_collect(s, call);
        return noted;
    }
    uint32_t used = slab_used(s);
    slab_collect_doubted(s, call);
    uint32_t came = used - slab_used(s);
    for (const block_t* q = s->free; came != 0 && q != NULL && slab_holds_block(s, q); q = q->next, came--)
        if (q == p) return true;
    return noted;
}

/* Whether nobody owns the slab, and a block goes there by itself. Relaxed: only chooses between the ways, all
 * of which are right. */
static bool left_takes_one(struct heap* h, const struct slice* s) {
    if ((load_relaxed(&s->remote) & REMOTE_UNOWNED) == 0) return false;
    return heap_uses(h, s) || outbox_is_passed(h, s);
}

static void slab_free_from(struct heap* h, struct slice* s, block_t* p, bool full, const char* call) {
    if (owner_heap(load_relaxed(&s->owner)) == h) {
        /* The nudge goes first, and is gone before the look at what came in (seq_cst): blocks that come in
         * afterwards nudge again. */
        (void)__atomic_exchange_n(&s->owner, h->owner_word, __ATOMIC_SEQ_CST);
        bool direct = slab_is_direct(s);
        uint32_t count = direct ? direct_waiting(s) : 0;
        bool held = available_hold(h, s);
        bool twice = slab_collect_finds(s, p, full, call);
        /* A direct slab goes on to be; or else what is in its bin is not to lie there while frees go
         * elsewhere. */
        bool again = direct && count <= slab_used(s) && direct_may(h, s, slab_used(s) - count, count);
        if (again)
            direct_begin(h, s, slab_used(s), count);
        else if (held)
            exposure_advance(h, s);
        if (held) os_lock_give(&h->lock);
        if (direct && !again) {
            bin_return(h, s->size_class, call);
            exposure_arm_active(h, s, slab_used(s));
        }
        if (twice)
            core_report("double-free", REPORT_FREED, p, call);
        else
            slab_push(s, p);
    } else if (full || left_takes_one(h, s)) {
        size_t bytes = slab_class(s)->bytes;
        uint64_t doubt = full ? 0 : remote_mark(p);
        if (!heap_uses(h, s))
            slab_free_lone(s, p, doubt);
        else if (slab_push_remote(s, p, p, 1, doubt))
            heap_adopt(h, s);
        else
            visit_owed(h, bytes);
    } else {
        outbox_put(h, s, p, call);
    }
}

/* A block of a slab that is not the caller's, or of one that is with checks=full. */
static WEIR_NOINLINE void slab_free_slow(block_t* p, struct slice* s, const char* call) {
    struct heap* h = heap_self();
    bool full = full_is_on();
    bool left = (load_acquire(&s->remote) & REMOTE_UNOWNED) != 0; /* acquire: the counts */
    if ((full && full_is_free(p)) || (left && slab_has_none_out(s))) {
        core_report("double-free", REPORT_FREED, p, call);
        return;
    }
    if (full) full_seal(s, p);
    if (h == &heap_empty) {
        slab_free_heapless(s, p, full ? 0 : remote_mark(p));
        return;
    }
    heap_enter(h);
    slab_free_from(h, s, p, full, call);
    heap_leave(h);
    release_poke(); /* another thread's slab may have gone */
}

/* The caller's own slab, which would have been freed to on the fast path. */
static bool slab_is_own(const struct slice* s) {
    return load_relaxed(&s->owner) == (char*)heap_self() + OWNER_TAGGED;
}

static void slab_free_tagged(struct slice* s, block_t* p, const char* call) {
    tag_fault_resume();
    if (history_is_on()) history_note(HISTORY_FREE, p);
    block_t* tagged = tagged_free(s, p);
    if (slab_is_own(s))
        slab_push(s, tagged);
    else
        slab_free_slow(tagged, s, call);
}

static WEIR_NOINLINE void free_unkept(void* p, const char* call) {
    if (p == NULL) return;
    const void* address = tag_strip(p);
    struct slice* s = slice_find(address);
    if (weir_unlikely(s == NULL)) {
        if (guard_holds(p)) {
            guard_free(p, call);
            return;
        }
        if (os_loader_owns(p)) return;
        core_report("invalid-free", REPORT_FOREIGN, p, call);
        return;
    }
    s = slice_first(s);
    if (load_relaxed(&s->kind) == SLICE_CHUNK) {
        medium_free(p, s, call);
    } else if (load_relaxed(&s->kind) == SLICE_SLAB && slab_holds_block(s, address)) {
        if (weir_likely(!tag_is_on()))
            slab_free_slow(p, s, call);
        else if (tagged_fits(p, call))
            slab_free_tagged(s, p, call);
    } else if (load_relaxed(&s->kind) == SLICE_LARGE && slice_address(s) == (uintptr_t)address) {
        if (tagged_fits_large(p, call)) large_free(s, call);
    } else {
        block_misuse(s, p, call);
    }
}

/* Whether a block of slab s, which nobody owns or another thread does, goes there at once and alone. Relaxed:
 * slab_give_owned and slab_give_left decide. */
static bool slab_takes_lone(struct heap* h, const struct slice* s, bool left) {
    if (h == &heap_empty) return true;
    if (left) return !heap_uses(h, s) && outbox_is_passed(h, s);
    struct heap* owner = owner_heap(load_relaxed(&s->owner));
    bool waits = (load_relaxed(&s->remote) & (REMOTE_UNOWNED | REMOTE_DOUBTED)) == 0;
    return waits && owner != h && owner != NULL && outbox_is_passed(h, s);
}

/* A block was noted in its slab, for its owner or others to be told. */
static WEIR_NOINLINE void slab_noted(struct slice* s, uint32_t block, bool first) {
    if (heap_self() == &heap_empty) heap_want(s);
    if (first) slab_nudge(s);
    if (block % NOTED_STEP == 0) visit_owed(heap_self(), NOTED_STEP * (size_t)slab_class(s)->bytes);
    release_poke();
}

/* A bit was set when nobody may have looked for it any more: what it stands for goes to the remote list. */
static WEIR_NOINLINE void slab_free_late(struct slice* s, uint32_t block) {
    block_t* p = remote_bits_late(s, block);
    if (p == NULL) return;
    struct heap* h = heap_self();
    uint64_t doubt = remote_mark(p);
    if (h == &heap_empty) {
        slab_free_heapless(s, p, doubt);
        return;
    }
    heap_enter(h);
    slab_free_lone(s, p, doubt);
    heap_leave(h);
    release_poke();
}

/* A block of the caller's own slab, whose bit it was nudged to look at. */
WEIR_INLINE void slab_free_looked(struct slice* s, block_t* p, uint32_t block, const char* call) {
    if (weir_unlikely(remote_bit_is_set(s, block)))
        core_report("double-free", REPORT_FREED, p, call);
    else
        slab_push(s, p);
}

/* A block that was noted too late, or was noted already. */
static WEIR_NOINLINE void slab_free_misnoted(struct slice* s, block_t* p, uint32_t block, enum noted noted,
                                             const char* call) {
    if (noted == NOTED_LATE)
        slab_free_late(s, block);
    else
        core_report("double-free", REPORT_FREED, p, call);
}

/* A block that was to go to its slab's owner at once, which the slab has none of or is not to get it so. */
static WEIR_NOINLINE void slab_free_ungiven(block_t* p, struct slice* s, uint64_t word_of_p,
                                            const char* call) {
    if (heap_self() == &heap_empty) {
        slab_free_heapless(s, p, word_of_p & REMOTE_DOUBTED);
    } else {
        if ((word_of_p & REMOTE_DOUBTED) == 0) p->seal = 0; /* it is marked again there */
        slab_free_slow(p, s, call);
    }
}

/* A block of a slab in the primary region, at `offset` from its start, which is not the caller's and where
 * none is noted: to its owner, or to wait in the slab, at once and alone, or the slow way. Without tags. */
static WEIR_NOINLINE void slab_free_alone(block_t* p, struct slice* s, size_t offset, const char* call,
                                          struct heap* h) {
    const bool left = (load_acquire(&s->remote) & REMOTE_UNOWNED) != 0; /* acquire: the counts */
    if (full_is_on() || !slab_takes_lone(h, s, left) || (left && slab_has_none_out(s))) {
        slab_free_slow(p, s, call);
        return;
    }
    uint64_t word_of_p = (offset / GRANULE + 1) | remote_mark(p); /* remote_first_word */
    uint32_t told;
    bool given = left ? slab_give_left(s, p, word_of_p, &told) : slab_give_owned(s, p, word_of_p, &told);
    if (weir_unlikely(!given))
        slab_free_ungiven(p, s, word_of_p, call);
    else if (told != 0)
        (left ? slab_left_gave : slab_gave)(s, told);
}

/* Whether the outbox, where some wait, gets one more of its slab that is neither the last one nor one that
 * outbox_put has to look at. */
WEIR_INLINE bool outbox_has_room(const struct heap* h, const struct outbox* o, const block_t* p,
                                 size_t offset) {
    const struct slice* s = o->slab;
    if (o->count - 1 >= OUTBOX_BLOCKS - 2) return false; /* 0, too */
    uint64_t first = load_relaxed(&s->remote) & REMOTE_FIRST;
    if (remote_is_marked(p) || p == o->first || first == offset / GRANULE + 1) return false;
    if (owner_heap(load_relaxed(&s->owner)) == h) return false; /* by now */
    return (o->count + 1u) * slab_class(s)->bytes < OUTBOX_BYTES && !outbox_is_due(o, 1);
}

WEIR_INLINE bool outbox_joins(struct heap* h, struct outbox* o, block_t* p, size_t offset) {
    uint32_t inside;
    if (weir_unlikely(!gate_enter(&h->gates[GATE_OUTBOX], &inside))) return false;
    const bool joins = outbox_has_room(h, o, p, offset);
    if (joins) {
        heap_enter(h);
        outbox_add(o, p);
        heap_leave(h);
    }
    gate_leave(&h->gates[GATE_OUTBOX], inside);
    return joins;
}

/* The same where it may be one of several of its slab. */
static WEIR_NOINLINE void slab_free_unnoted(block_t* p, struct slice* s, size_t offset, const char* call,
                                            struct heap* h) {
    struct outbox* o = outbox_of(h, s);
    if (o->slab == s && outbox_joins(h, o, p, offset)) return;
    slab_free_alone(p, s, offset, call, h);
}

/* A block of a slab that is not the caller's, or that it is to look at: noted in the slab where notes are
 * taken. Without tags. All calls from here are the last thing that is done, so that there is no frame. */
WEIR_INLINE void slab_free_near(block_t* p, struct slice* s, size_t offset, uint32_t block, const char* call,
                                struct heap* h) {
    if (remote_bits_are_used(load_relaxed(&s->remote))) {
        enum noted noted = NOTED_NOT;
        if (owner_heap(load_relaxed(&s->owner)) != h) {
            noted = remote_bits_note(s, block);
        } else if (remote_bits_look_suffices(s)) {
            slab_free_looked(s, p, block, call);
            return;
        }
        if (weir_likely(noted >= NOTED_FIRST)) {
            if (noted == NOTED_FIRST || block % NOTED_STEP == 0) slab_noted(s, block, noted == NOTED_FIRST);
            return;
        }
        if (noted != NOTED_NOT) {
            slab_free_misnoted(s, p, block, noted, call);
            return;
        }
    }
    slab_free_unnoted(p, s, offset, call, h);
}

/* What lies in no chunk. */
static WEIR_NOINLINE void span_free_near(void* p, struct slice* s, const char* call, struct heap* h) {
    size_t offset = (uintptr_t)p & (SLICE_BYTES - 1);
    if (weir_unlikely(load_relaxed(&s->kind) == SLICE_SLAB_REST)) {
        offset += (size_t)s->back << SLICE_SHIFT;
        s -= s->back;
    }
    uint8_t kind = load_relaxed(&s->kind);
    if (kind == SLICE_LARGE && large_free_kept(s, p)) return;
    uint32_t block;
    if (kind == SLICE_SLAB && weir_likely(!tag_is_on()) && class_finds_block(slab_class(s), offset, &block))
        slab_free_near(p, s, offset, block, call, h);
    else
        free_unkept(p, call);
}

/* A larger block that the thread can keep goes without a frame. */
WEIR_AT_LINE WEIR_FN void heap_free_near(void* p, struct slice* s, const char* call, void* h) {
    uint16_t* blocks = load_acquire(&s->blocks);
    /* The kind is read last: see arena_chunk_stays. */
    if (weir_unlikely(!slice_kind_is_of_chunk(load_relaxed(&s->kind))))
        span_free_near(p, s, call, h);
    else if (!medium_free_kept(h, p, blocks, call))
        medium_free(p, s, call);
}

WEIR_FN void heap_free_slow(void* p, const char* call) {
    struct slice* s = slice_near(p);
    if (s != NULL)
        heap_free_near(p, s, call, heap_self());
    else
        free_unkept(p, call);
}
