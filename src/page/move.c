/* move.c: large spans that move by changing page tables. See span.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

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

/* Where the mapping ends that starts with slice `at`: a chain in `back`, of the first slices of mappings.
 * What a block grew by since it moved has no end there. */
static uint32_t piece_end(const struct slice* s, uint32_t at, uint32_t count) {
    uint32_t end = (s->flags & SLICE_MOVED) != 0 ? s[at].back : 0;
    return end == 0 || end > count ? count : end;
}

WEIR_FN uint32_t span_pieces(const struct slice* s) {
    if ((s->flags & SLICE_MOVED) == 0) return 0;
    uint32_t pieces = 0;
    for (uint32_t at = 0; at < s->span_slices && s[at].back != 0; at = s[at].back) pieces++;
    return pieces;
}

WEIR_FN bool span_may_move(const struct slice* s, size_t slices) {
    return slices <= UINT32_MAX / 4 && !region_commit_strict && !os_memory_is_limited() &&
           span_is_plausible(slices) && os_may_move() &&
           load_relaxed(&span_totals.moved) + span_pieces(s) < core_options.map_count_max;
}

/* Pages keep what was said of them where they come from. */
static bool span_is_open(const struct slice* s) {
    span_lock();
    bool open = huge_ahead.open && s->region == 0 && huge_is_ahead(slice_index(s), s->span_slices);
    os_lock_give(&page_lock);
    return open;
}

/* After a refusal: what is there already goes back. Of several mappings in a piece, as where the program gave
 * advice for a part of it, the kernel may have moved some (Linux 6.17). What did not move reads as zero
 * there. */
static void piece_back(char* from, const char* there, size_t bytes) {
    enum { step = 1024 };
    uint64_t words[step / sizeof(uint64_t)];
    for (size_t at = 0; at < bytes; at += step) {
        struct os_range piece = {(void*)(there + at), step};
        if (os_peek(&piece, 1, words) != step) continue; /* nothing is mapped there */
        uint64_t any = 0;
        for (size_t i = 0; i < step / sizeof(uint64_t); i++) any |= words[i];
        if (any != 0) memcpy(from + at, words, step);
    }
}

/* The first `count` slices, mapping by mapping, to where all reads as zero: the kernel moves one at a time
 * (before Linux 6.17). False: nothing moved. */
static bool pieces_move(const struct slice* s, const struct slice* to, uint32_t count) {
    for (uint32_t start = 0, end; start < count; start = end) {
        end = piece_end(s, start, count);
        char* from = (char*)slice_address(s) + ((size_t)start << SLICE_SHIFT);
        char* there = (char*)slice_address(to) + ((size_t)start << SLICE_SHIFT);
        size_t bytes = (size_t)(end - start) << SLICE_SHIFT;
        if (os_move(from, there, bytes)) continue;
        piece_back(from, there, bytes);
        if (start == 0) return false;
        /* The pieces before are there already. Where covering is refused as well, there were too many
         * mappings, for which a move is refused before it unmaps anything. */
        (void)huge_cover(there, bytes, true);
        memcpy(there, from, bytes);
    }
    return true;
}

/* Under the page lock: where the mappings end, in a span that `count` slices of s moved to; and s is one that
 * moved, if it was none. */
static void pieces_note(struct slice* s, struct slice* to, uint32_t count) {
    uint32_t at = 0;
    while (at < count) at = to[at].back = piece_end(s, at, count);
    if (at < to->span_slices) to[at].back = 0;
    if ((s->flags & SLICE_MOVED) == 0) s->back = 0;
    s->flags |= SLICE_MOVED;
    to->flags |= SLICE_MOVED;
    store_relaxed(&span_totals.moved, span_totals.moved + span_pieces(to));
    /* The last slice came with all its pages: none is known to be clean any more. */
    if (count == to->span_slices && (to->flags & SLICE_FENCED) == 0)
        store_relaxed(&slice_pages(to)->state, (uint64_t)0);
}

WEIR_FN struct slice* span_move_to(struct slice* s, struct slice* to, size_t bytes) {
    bool open = span_is_open(s);
    bool fenced = (s->flags & SLICE_FENCED) != 0;
    uint32_t count = (uint32_t)((bytes + SLICE_BYTES - 1) >> SLICE_SHIFT);
    size_t content = align_up(bytes, fenced ? os_page_bytes() : SLICE_BYTES);
    /* What lies behind a fenced block in its last slice is inaccessible: another mapping. */
    bool moved = fenced ? os_move((void*)slice_address(s), (void*)slice_address(to), content)
                        : pieces_move(s, to, count);
    if (!moved) {
        span_abandon(to);
        return NULL;
    }
    if (open) (void)os_advise_huge((void*)slice_address(to), content, OS_HUGE_NEVER);
    span_lock();
    pieces_note(s, to, count);
    os_lock_give(&page_lock);
    span_free(s); /* the old place is covered afresh: the kernel leaves it empty, emulators do not always */
    return to;
}

WEIR_FN struct slice* span_move(struct slice* s, size_t slices, size_t room, size_t bytes) {
    bool zeroed;
    struct slice* to = span_may_move(s, slices + room) ? span_alloc(slices + room, 1, &zeroed) : NULL;
    if (to == NULL && room != 0 && span_may_move(s, slices)) to = span_alloc(slices, 1, &zeroed);
    if (to == NULL) return NULL;
    /* What a dirty span has there goes: it would where pages come, and the room is not to be resident. */
    if (!zeroed && !os_purge((void*)slice_address(to), (size_t)to->span_slices << SLICE_SHIFT)) {
        span_free(to);
        return NULL;
    }
    return span_move_to(s, to, bytes);
}
