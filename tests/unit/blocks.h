// blocks.h: a shadow of live heap blocks: where, how large, and what was written. Heap tests include it.
//
// Every usable byte is written at birth and compared at death, so that blocks that overlap, or that the
// heap writes to, are found. Not for several threads at once.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_BLOCKS_H
#define WEIR_TESTS_UNIT_BLOCKS_H

#include "layers.h"
#include "child.h"
#include <cstring>
#include <vector>

struct Block {
    unsigned char* p;
    size_t size;   // as asked for
    size_t usable; // as the heap says
    unsigned char stamp;
};

inline void block_fill(const Block& b) { memset(b.p, b.stamp, b.usable); }
inline bool block_intact(const Block& b, size_t bytes) {
    return bytes == 0 || (b.p[0] == b.stamp && memcmp(b.p, b.p + 1, bytes - 1) == 0);
}

class Blocks {
  public:
    // False: the heap had no memory.
    bool add(void* p, size_t size, size_t align = GRANULE) {
        if (p == nullptr) return false;
        Block b = {static_cast<unsigned char*>(p), size, unit_usable(p), ++last};
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % GRANULE, 0u);
        EXPECT_GE(b.usable, size);
        EXPECT_TRUE(unit_size_matches(b.usable, size, align))
            << b.usable << " for " << size << " at " << align;
        block_fill(b);
        all.push_back(b);
        made++;
        return true;
    }
    bool alloc(size_t size) { return add(unit_alloc(size), size); }
    bool alloc_aligned(size_t size, size_t align) {
        return add(unit_alloc_aligned(size, align), size, align);
    }
    bool alloc_zeroable(size_t size) {
        bool zeroed;
        void* p = unit_alloc_zeroable(size, &zeroed);
        EXPECT_TRUE(p == nullptr || !zeroed || is_zero(p, size)) << size;
        return add(p, size);
    }
    // False: refused, and the block is as it was.
    bool realloc(size_t which, size_t size) {
        Block& b = all[which];
        EXPECT_TRUE(block_intact(b, b.usable));
        void* to = unit_realloc(b.p, size);
        if (to == nullptr) {
            EXPECT_EQ(unit_usable(b.p), b.usable);
            EXPECT_TRUE(block_intact(b, b.usable));
            return false;
        }
        if (to != b.p) moved++;
        b.p = static_cast<unsigned char*>(to);
        EXPECT_TRUE(block_intact(b, size < b.usable ? size : b.usable));
        b.size = size;
        b.usable = unit_usable(to);
        b.stamp = ++last;
        EXPECT_GE(b.usable, size);
        block_fill(b);
        return true;
    }
    void free(size_t which) {
        Block b = take(which);
        unit_free(b.p);
    }
    Block take(size_t which) {
        Block b = all[which];
        EXPECT_TRUE(block_intact(b, b.usable)) << b.size;
        all[which] = all.back();
        all.pop_back();
        return b;
    }
    void free_all() {
        while (!all.empty()) free(all.size() - 1);
    }
    uint64_t usable() const {
        uint64_t bytes = 0;
        for (const Block& b : all) bytes += b.usable;
        return bytes;
    }

    std::vector<Block> all;
    uint64_t made = 0;
    uint64_t moved = 0;

  private:
    unsigned char last = 0;
};

// Sizes as programs have them: mostly small, some of every class, a few large.
inline size_t some_size(Random& random) {
    switch (random.below(16)) {
    case 0:
        return 1 + random.below(size_t{700} << 10);
    case 1:
    case 2:
        return 1 + random.below(SLAB_MAX);
    case 3:
    case 4:
    case 5:
        return 1 + random.below(8192);
    default:
        return random.below(600);
    }
}

// So many slabs with a few free blocks, which are the caller's (full ones are nobody's), that its heap is
// looked at.
inline void grows(Blocks& blocks) {
    while (blocks.all.size() < 1000) blocks.alloc(500);
    for (unsigned i = 0; i < 100; i++) blocks.free(9 * i);
}

// No block is live; what the heap keeps may stay.
inline void expect_no_live_blocks() {
    EXPECT_GE(unit_check_slabs(), 0);
    struct unit_figures f;
    unit_census(&f);
    EXPECT_EQ(f.live_blocks, 0u);
}

// What is left when no block is live and the calling thread, the only one, has let go of its caches.
inline void expect_nothing_left() {
    unit_collect();
    struct unit_figures f;
    unit_census(&f);
    EXPECT_EQ(f.live_blocks, 0u);
    EXPECT_EQ(f.live_bytes, 0u);
    EXPECT_EQ(f.cached_bytes, 0u);
    EXPECT_EQ(f.slabs, 0u);
    EXPECT_EQ(unit_large_bytes(), 0u);
    EXPECT_EQ(span_totals.live, f.meta_bytes);
    EXPECT_TRUE(span_check());
    EXPECT_EQ(unit_check_slabs(), 0);
}

#endif
