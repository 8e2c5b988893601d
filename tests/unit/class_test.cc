// class_test.cc: heap/class.h: the table, for every size and every offset. Called by ctest.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"

namespace {

TEST(Class, OfEverySizeIsTheSmallestThatFits) {
    for (size_t size = 1; size <= SLAB_MAX; size++) {
        unsigned smallest = 0;
        while (size_classes[smallest].bytes < size) smallest++;
        ASSERT_EQ(class_of(size), smallest) << size;
    }
}

TEST(Class, StepsAre16BytesThenAtMostAnEighth) {
    EXPECT_EQ(size_classes[0].bytes, 16u);
    EXPECT_EQ(size_classes[SLAB_CLASSES - 1].bytes, static_cast<uint32_t>(SLAB_MAX));
    for (unsigned c = 1; c < SLAB_CLASSES; c++) {
        uint32_t before = size_classes[c - 1].bytes;
        uint32_t bytes = size_classes[c].bytes;
        EXPECT_EQ(bytes % GRANULE, 0u);
        EXPECT_GT(bytes, before);
        EXPECT_TRUE(bytes <= SMALL_MAX ? bytes - before == 16 : (bytes - before) * 8 <= before) << bytes;
    }
    EXPECT_EQ(size_classes[SMALL_CLASSES - 1].bytes, static_cast<uint32_t>(SMALL_MAX));
}

TEST(Class, SlabsAreWellUsedAndAddressable) {
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        const struct size_class& k = size_classes[c];
        size_t slab = size_t{k.slices} << SLICE_SHIFT;
        EXPECT_GE(k.capacity, 7u) << k.bytes;
        EXPECT_LE(size_t{k.capacity} * k.bytes, slab);
        EXPECT_GT((size_t{k.capacity} + 1) * k.bytes, slab);
        EXPECT_LE(slab, 512u * 1024);
        // The fast path knows slabs of one slice alone.
        EXPECT_TRUE(k.bytes > SMALL_MAX || k.slices == 1);
    }
}

// So many free blocks are worth a slab's turn: an eighth, 32 at most, and one where a slab has few.
TEST(Class, EnoughIsAnEighthOfASlab) {
    for (auto [bytes, enough] : {std::pair<size_t, unsigned>{16, 32},
                                 {32, 32},
                                 {128, 32},
                                 {256, 32},
                                 {512, 16},
                                 {1024, 8},
                                 {2048, 4},
                                 {4096, 2},
                                 {8192, 1},
                                 {65536, 1}})
        EXPECT_EQ(class_enough(&size_classes[class_of(bytes)]), enough) << bytes;
}

TEST(Class, BlockIndexIsExactForEveryOffset) {
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        const struct size_class& k = size_classes[c];
        uint32_t index = 0;
        size_t next = k.bytes;
        for (size_t offset = 0; offset < 512u * 1024; offset++) {
            if (offset == next) {
                index++;
                next += k.bytes;
            }
            if (class_block_index(&k, offset) != index) {
                FAIL() << k.bytes << " at " << offset;
            }
        }
    }
}

TEST(Class, BlocksStartAtMultiplesAlone) {
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        const struct size_class& k = size_classes[c];
        for (uintptr_t offset = 0; offset < 600u * 1024; offset++) {
            uint32_t block = 0;
            bool starts = offset % k.bytes == 0 && offset / k.bytes < k.capacity;
            if (class_finds_block(&k, offset, &block) != starts || (starts && block != offset / k.bytes))
                FAIL() << k.bytes << " at " << offset;
        }
        for (unsigned bit = 20; bit < 56; bit++)
            for (intptr_t beside = -4096; beside <= 4096; beside += 16) {
                uint32_t block;
                uintptr_t far = (uintptr_t{1} << bit) + static_cast<uintptr_t>(beside);
                EXPECT_FALSE(class_finds_block(&k, far, &block)) << k.bytes << " at " << far;
            }
        for (uintptr_t before = 1; before < 70000; before++) {
            uint32_t block;
            EXPECT_FALSE(class_finds_block(&k, -before, &block)) << k.bytes << " at -" << before;
        }
    }
}

TEST(Class, AlignedIsTheSmallestWhoseBlocksAllAre) {
    for (size_t align = 1; align <= SLAB_MAX; align *= 2)
        for (size_t size = 1; size <= SLAB_MAX; size += size < 2048 ? 1 : 97) {
            unsigned c = class_of_aligned(size, align);
            ASSERT_LT(c, static_cast<unsigned>(SLAB_CLASSES)) << size << " " << align;
            ASSERT_GE(size_classes[c].bytes, size);
            ASSERT_EQ(size_classes[c].bytes % align, 0u);
            for (unsigned smaller = 0; smaller < c; smaller++)
                ASSERT_FALSE(size_classes[smaller].bytes >= size && size_classes[smaller].bytes % align == 0)
                    << size << " " << align;
        }
}

} // namespace
