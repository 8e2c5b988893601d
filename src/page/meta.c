/* meta.c: memory for weir's own records, see span.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/atomic.h"
#include "os/os.h"
#include "page/huge.h"
#include "page/release.h"
#include "page/span.h"

static char* meta_next; /* Sync: the page lock */

/* Not by memset: ThreadSanitizer in the program would take it for the calling thread's use of what others
 * had.
 */
static void meta_zero(uint64_t* p, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *p; i++) store_relaxed(&p[i], (uint64_t)0);
}

/* Under the page lock. What is never written to of records, as of a heap's, is to take no memory: pages that
 * others had go back, and so do those of a huge page. */
static WEIR_NOINLINE void meta_clear(void* p, size_t bytes) {
    void* split[2];
    unsigned splits = huge_breaks((struct os_range){p, bytes}, split);
    while (splits != 0) os_split_huge(split[--splits]);
    add_relaxed(&release_totals.calls, 1);
    if (os_purge(p, bytes))
        add_relaxed(&span_totals.purged, bytes);
    else
        meta_zero(p, bytes);
}

WEIR_FN void* span_meta_alloc(size_t bytes) {
    bytes = align_up(bytes, 64);
    span_lock();
    if (span_totals.meta_unused < bytes) {
        bool zeroed;
        size_t slices = align_up(bytes, SLICE_BYTES) >> SLICE_SHIFT;
        struct slice* s = span_alloc(slices, 1, &zeroed);
        char* p = s == NULL ? NULL : (char*)slice_address(s);
        bool sparse = s == NULL || (zeroed && !huge_is_ahead(slice_index(s), (uint32_t)slices));
        if (!sparse) meta_clear(p, slices << SLICE_SHIFT);
        span_totals.meta_unused = 0; /* first, here and below: a fork's child may find it half done */
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        meta_next = p;
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        span_totals.meta_unused = s == NULL ? 0 : slices << SLICE_SHIFT;
    }
    void* p = NULL;
    if (span_totals.meta_unused >= bytes) {
        p = meta_next;
        span_totals.meta_unused -= bytes;
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        meta_next += bytes;
    }
    os_lock_give(&page_lock);
    return p;
}
