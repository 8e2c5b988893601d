/* census.h: counting what the heap holds, by walking its records.
 *
 * Statistics call it; nothing on an allocation path does. Figures of other threads' slabs are read while
 * they change: each is right at some moment during the walk.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_CENSUS_H
#define WEIR_HEAP_CENSUS_H

#include "heap/heap.h"

struct census_class {
    uint64_t slabs;
    uint64_t live_blocks;
    uint64_t cached_blocks; /* built and free: on slab lists, in bins, on their way between threads */
};

struct census_heap {
    const struct heap* heap; /* whose slabs to count; the caller sets it */
    uint64_t slabs;
    uint64_t live_bytes;
    uint64_t cached_bytes;
};

struct census {
    uint64_t live_bytes;
    uint64_t live_blocks;
    uint64_t cached_bytes;
    uint64_t large_bytes; /* of live ones */
    uint64_t large_blocks;
    uint64_t hole_bytes;   /* of pages inside live slabs, and behind large blocks, that are to go back */
    uint64_t meta_bytes;   /* of spans for weir's own records but those of slices */
    uint64_t record_bytes; /* of slice records, to whole pages, and of chunks' that are in no span */
    uint64_t bare_bytes;   /* of records that were given back: record_bytes is without them */
    uint64_t reserved_bytes;
    uint64_t committed_bytes;
    uint64_t alloc_calls;
    uint64_t remote_frees;
    uint64_t slow_calls;
    uint64_t guarded_calls;
    uint64_t guarded_freed; /* blocks in slots that wait to be used again */
    struct census_class classes[CLASS_COUNT];
};

/* Figures that are read one after the other: where a block that is free goes from one place to the next
 * meanwhile, there may be some live ones more or fewer. */
WEIR_FN void census_take(struct census* out);
/* Count the slabs of out->heap only. */
WEIR_FN void census_take_heap(struct census_heap* out);

#endif
