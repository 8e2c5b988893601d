// arenas.h: what the tests of chunks share: sizes of their classes, what is in use, that nothing is left.
// Unit tests include it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_ARENAS_H
#define WEIR_TESTS_UNIT_ARENAS_H

#include "holes.h"
#include <sched.h>

inline size_t class_bytes(unsigned m) { return size_classes[SMALL_CLASSES + m].bytes; }
inline unsigned some_class(Random& random) {
    return static_cast<unsigned>(random.below(UNIT_MEDIUM_CLASSES));
}

// The longest blocks that come from chunks, and so many medium classes.
inline size_t chunk_block_max() { return tag_is_on() ? SLAB_MAX : CHUNK_MAX; }
inline unsigned chunk_classes() { return class_of(chunk_block_max()) - SMALL_CLASSES + 1; }

// Blocks of a chunk that has no others. Where memory is tagged one less: it ends with a unit that is none's.
inline size_t chunk_holds(size_t bytes) { return UNIT_CHUNK_BYTES / bytes - (tag_is_on() ? 1 : 0); }

inline uint64_t used_blocks() {
    uint64_t used = 0;
    for (unsigned m = 0; m < UNIT_MEDIUM_CLASSES; m++) used += unit_arena_used(m);
    return used;
}

inline unsigned chunk_count() {
    unsigned count = 0;
    span_visit(
        [](struct slice* s, void* context) {
            if (s->kind == SLICE_CHUNK) ++*static_cast<unsigned*>(context);
        },
        &count);
    return count;
}

inline void expect_no_chunk_left() {
    EXPECT_TRUE(unit_arena_check());
    unit_arena_trim();
    EXPECT_EQ(chunk_count(), 0u);
    EXPECT_EQ(unit_arena_idle_bytes(), 0u);
    expect_nothing_left();
}

// One processor, one arena: whatever happens, happens to the same one.
inline void stay_on_one_processor() {
    cpu_set_t all;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) cpu++;
    CPU_ZERO(&all);
    CPU_SET(cpu, &all);
    ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

#endif
