/* direct.c: see direct.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/direct.h"

#include "heap/exposure.h"
#include "heap/full.h"

/* A look comes after 7/8 as many frees as blocks are in use, so that few are left unseen, and one
 * look meets the last block coming back. Where FEW are in use, looks would come too often: the slab is kept
 * with its bin, if it may be, and looks come after FREES_MAX; or goes on with looks after FEW, as long as no
 * more than FEW_BYTES lie in the bin, which may be overlooked. A bin that was longer than LONG_BYTES for
 * LONGS_MAX looks is given up. */
enum { FEW = 16, FREES_MAX = 4096, FEW_BYTES = 4096, LONG_BYTES = 16384, LONGS_MAX = 128 };
/* So many frees count as a list that turned over unwalked. */
enum { FREES_A_TURN = 1024 };

static bool is_short(const struct slice* s, uint32_t count) {
    return (size_t)count * slab_class(s)->bytes <= FEW_BYTES;
}

/* Not where each block or each list is looked at, or what comes from bins is counted, or others free. */
WEIR_FN bool direct_fits(const struct heap* h, const struct slice* s, uint32_t out, uint32_t count) {
    unsigned c = s->size_class;
    if (c >= SMALL_CLASSES || core_options.reuse == REUSE_LATE || core_options.guard_rate != 0) return false;
    if (full_is_on() || tag_is_on() || heap_is_passed(h, c) || s->region != 0) return false;
    return out >= FEW || slab_is_kept(s) || is_short(s, count);
}

/* `used` blocks are in use, `count` of them in the bin. Returns how many frees come before the next look. */
static uint32_t countdown_start(struct heap* h, const struct slice* s, uint32_t used, uint32_t count) {
    struct direct* d = &h->direct[s->size_class];
    uint32_t out = used - count;
    uint32_t frees = out < FEW ? (slab_is_kept(s) ? FREES_MAX : FEW) : out - out / 8;
    if (frees > FREES_MAX) frees = FREES_MAX;
    store_relaxed(&d->taken, 0u);
    store_relaxed(&d->count, (uint16_t)count);
    store_relaxed(&d->frees, (uint16_t)frees);
    return frees;
}

WEIR_FN WEIR_NOINLINE void direct_begin(struct heap* h, struct slice* s, uint32_t used, uint32_t count) {
    weir_assert(slice_pages(s)->charged == 0);
    uint32_t frees = countdown_start(h, s, used, count);
    s->push_at = (void**)&h->bins[s->size_class].head;
    slab_count_direct(s, used, frees);
    exposure_list_active(h, s);
}

WEIR_FN WEIR_NOINLINE void direct_end_now(struct heap* h, struct slice* s) {
    uint32_t frees = direct_freed(s);
    store_relaxed(&h->handed_out, h->handed_out + frees);
    h->direct_frees += frees;
    h->turns_unchecked += h->direct_frees / FREES_A_TURN;
    h->direct_frees %= FREES_A_TURN;
    s->push_at = &s->free;
    exposure_count_active(h, s, slab_used(s));
}

WEIR_FN uint32_t direct_waiting(const struct slice* s) {
    const struct heap* h = owner_heap(load_relaxed(&s->owner));
    if (h == NULL) return 0;
    const struct direct* d = &h->direct[s->size_class];
    uint32_t came = load_relaxed(&d->count) + direct_freed(s);
    uint32_t went = load_relaxed(&d->taken);
    uint32_t count = came > went ? came - went : 0;
    uint32_t used = counts_used(load_relaxed(&s->counts));
    return count < used ? count : used;
}

WEIR_FN WEIR_NOINLINE enum direct_state direct_look(struct heap* h, struct slice* s, uint32_t* count) {
    struct direct* d = &h->direct[s->size_class];
    /* Relaxed: without the lock, so that a visitor may just be taking off what others freed. */
    uint32_t used = counts_used(load_relaxed(&s->counts));
    uint32_t frees = d->frees;
    *count = direct_waiting(s);
    uint32_t out = used - *count;
    if (out < FEW && !slab_is_kept(s) && (out == 0 || heap_may_keep(h, s) || !is_short(s, *count)))
        return DIRECT_FEW;
    d->longs = (size_t)*count * slab_class(s)->bytes > LONG_BYTES ? d->longs + 1 : 0;
    if (d->longs > LONGS_MAX) {
        d->longs = 0;
        return DIRECT_LONG;
    }
    if (h->direct_frees + frees >= FREES_A_TURN) return out == 0 ? DIRECT_FEW : DIRECT_IN_USE;
    h->direct_frees += frees;
    store_relaxed(&s->until, countdown_start(h, s, used, *count));
    store_relaxed(&h->handed_out, h->handed_out + frees);
    return DIRECT_GOES_ON;
}

WEIR_FN uint32_t direct_freed(const struct slice* s) {
    uint64_t counts = load_relaxed(&s->counts);
    const struct heap* h = owner_heap(load_relaxed(&s->owner));
    if (!counts_direct(counts) || h == NULL) return 0;
    uint32_t frees = load_relaxed(&h->direct[s->size_class].frees);
    return counts_until(counts) < frees ? frees - counts_until(counts) : 0;
}
