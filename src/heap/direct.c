/* direct.c: see direct.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/direct.h"

#include "heap/exposure.h"
#include "heap/full.h"

/* A look comes after as many frees as blocks are in use, so that one meets the last block coming back; of a
 * slab that is kept, and has FEW in use, after FREES_MAX. A bin that was longer than LONG_BYTES for LONGS_MAX
 * looks is given up: what is in it others can return then. */
enum { FEW = 4, FREES_MAX = 4096, LONG_BYTES = 16384, LONGS_MAX = 128 };
/* So many frees count as a list that turned over unwalked. */
enum { FREES_A_TURN = 1024 };

/* From the record to the head of the bin of its class, in words. */
static ptrdiff_t bin_distance(const struct heap* h, const struct slice* s) {
    uintptr_t head = (uintptr_t)&h->bins[s->size_class].head;
    return (ptrdiff_t)(head - (uintptr_t)s) / (ptrdiff_t)sizeof(list_head_t);
}

static bool bin_is_near(const struct heap* h, const struct slice* s) {
    ptrdiff_t distance = bin_distance(h, s);
    return s->region == 0 && distance >= INT32_MIN && distance <= INT32_MAX;
}

/* Not where each block or each list is looked at, or what comes from bins is counted, or others free. */
WEIR_FN bool direct_fits(const struct heap* h, const struct slice* s) {
    unsigned c = s->size_class;
    if (c >= SMALL_CLASSES || core_options.reuse == REUSE_LATE || core_options.guard_rate != 0) return false;
    if (full_is_on() || tag_is_on()) return false;
    return !heap_is_passed(h, c) && bin_is_near(h, s);
}

/* Whether the slab is worth being kept, with few blocks in use, and may be besides those that are. */
static bool is_to_be_kept(const struct heap* h, const struct slice* s, uint32_t out) {
    return out < FEW && !slab_is_kept(s) && h->kept_bytes + slab_built_bytes(s) <= KEPT_BYTES_MAX;
}

/* `used` blocks are in use, `count` of them in the bin. Returns how many frees come before the next look. */
static uint32_t countdown_start(struct heap* h, const struct slice* s, uint32_t used, uint32_t count) {
    struct direct* d = &h->direct[s->size_class];
    uint32_t out = used - count;
    uint32_t frees = out < FEW && slab_is_kept(s) ? FREES_MAX : out;
    if (frees == 0) frees = 1;
    if (frees > FREES_MAX) frees = FREES_MAX;
    d->taken = 0;
    d->count = (uint16_t)count;
    store_relaxed(&d->frees, (uint16_t)frees);
    return frees;
}

WEIR_FN WEIR_NOINLINE void direct_begin(struct heap* h, struct slice* s, uint32_t used, uint32_t count) {
    weir_assert(slice_pages(s)->charged == 0);
    uint32_t frees = countdown_start(h, s, used, count);
    s->push_at = (int32_t)bin_distance(h, s);
    slab_count_direct(s, used, frees);
    exposure_list_active(h, s);
}

WEIR_FN WEIR_NOINLINE void direct_end_now(struct heap* h, struct slice* s) {
    store_relaxed(&h->handed_out, h->handed_out + direct_freed(s));
    s->push_at = PUSH_OWN;
    exposure_count_active(h, s, slab_used(s));
}

/* Blocks in the bin, now that the countdown has ended. What went into it by its size was not counted, so that
 * there may be more; what is in it twice was. */
static uint32_t count_of(const struct heap* h, const struct slice* s) {
    const struct direct* d = &h->direct[s->size_class];
    uint32_t came = (uint32_t)d->count + d->frees;
    uint32_t used = slab_used(s);
    uint32_t count = came > d->taken ? came - d->taken : 0;
    return count < used ? count : used;
}

WEIR_FN WEIR_NOINLINE bool direct_goes_on(struct heap* h, struct slice* s) {
    struct direct* d = &h->direct[s->size_class];
    uint32_t used = slab_used(s);
    uint32_t count = count_of(h, s);
    d->longs = (size_t)count * slab_class(s)->bytes > LONG_BYTES ? d->longs + 1 : 0;
    if ((used == count && !slab_is_kept(s)) || is_to_be_kept(h, s, used - count) || d->longs > LONGS_MAX)
        return false;
    if (h->direct_frees + d->frees >= FREES_A_TURN) return false;
    h->direct_frees += d->frees;
    store_relaxed(&h->handed_out, h->handed_out + d->frees);
    store_relaxed(&s->until, countdown_start(h, s, used, count));
    return true;
}

WEIR_FN enum direct_state direct_look(struct heap* h, const struct slice* s, uint32_t* count) {
    struct direct* d = &h->direct[s->size_class];
    h->direct_frees += d->frees;
    h->turns_unchecked += h->direct_frees / FREES_A_TURN;
    h->direct_frees %= FREES_A_TURN;
    *count = count_of(h, s);
    if (slab_used(s) == *count) return DIRECT_UNUSED;
    if (d->longs > LONGS_MAX) {
        d->longs = 0;
        return DIRECT_LONG;
    }
    return is_to_be_kept(h, s, slab_used(s) - *count) ? DIRECT_FEW : DIRECT_IN_USE;
}

WEIR_FN uint32_t direct_freed(const struct slice* s) {
    uint64_t counts = load_relaxed(&s->counts);
    const struct heap* h = owner_heap(load_relaxed(&s->owner));
    if (!counts_direct(counts) || h == NULL) return 0;
    uint32_t frees = load_relaxed(&h->direct[s->size_class].frees);
    return counts_until(counts) < frees ? frees - counts_until(counts) : 0;
}
