/* move.c: large spans that move by changing page tables. See span.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/atomic.h"
#include "core/options.h"
#include "os/os.h"
#include "page/huge.h"
#include "page/span.h"

/* A move that the kernel refused: it may have unmapped the destination before it looked at its limits.
 * What cannot be covered again stays out of use for good, and inaccessible. */
static void span_abandon(struct slice* s) {
    bool fenced = (s->flags & SLICE_FENCED) != 0; /* which is covered anyway */
    if (fenced || huge_cover((void*)slice_address(s), (size_t)s->span_slices << SLICE_SHIFT, true))
        span_free(s);
}

WEIR_FN bool span_may_move(size_t slices) {
    return slices <= UINT32_MAX / 4 && !region_commit_strict && !os_memory_is_limited() &&
           span_is_plausible(slices) && load_relaxed(&span_totals.moved) < core_options.map_count_max;
}

/* Pages keep what was said of them where they come from. */
static bool span_is_open(const struct slice* s) {
    span_lock();
    bool open = huge_ahead.open && s->region == 0 && huge_is_ahead(slice_index(s), s->span_slices);
    os_lock_give(&page_lock);
    return open;
}

WEIR_FN struct slice* span_move_to(struct slice* s, struct slice* to, size_t bytes) {
    bool open = span_is_open(s);
    if (!os_move((void*)slice_address(s), (void*)slice_address(to), align_up(bytes, os_page_bytes()))) {
        span_abandon(to);
        return NULL;
    }
    if (open) (void)os_advise_huge((void*)slice_address(to), align_up(bytes, os_page_bytes()), OS_HUGE_NEVER);
    span_lock();
    to->flags |= SLICE_MOVED;
    /* The old place is covered afresh: the kernel leaves it empty, emulators do not always. */
    uint64_t more = (s->flags & SLICE_MOVED) == 0 ? 2 : 1;
    store_relaxed(&span_totals.moved, span_totals.moved + more);
    s->flags |= SLICE_MOVED;
    os_lock_give(&page_lock);
    span_free(s);
    return to;
}

WEIR_FN struct slice* span_move(struct slice* s, size_t slices, size_t bytes) {
    bool zeroed;
    struct slice* to = span_may_move(slices) ? span_alloc(slices, 1, &zeroed) : NULL;
    return to == NULL ? NULL : span_move_to(s, to, bytes);
}
