// bits_test.cc: the arithmetic of base/compiler.h and the operations of base/atomic.h. Called by ctest;
// knows nothing of other layers.
//
// SPDX-License-Identifier: Apache-2.0
extern "C" {
#include "base/atomic.h"
#include "base/compiler.h"
}
#include <gtest/gtest.h>

namespace {

TEST(Bits, AlignsUpAndDown) {
    for (uintptr_t power = 1; power <= 1u << 20; power *= 2) {
        EXPECT_EQ(align_up(0, power), 0u);
        EXPECT_EQ(align_up(1, power), power);
        EXPECT_EQ(align_up(power, power), power);
        EXPECT_EQ(align_up(power + 1, power), power == 1 ? 2 : 2 * power);
        EXPECT_EQ(align_down(power - 1, power), 0u);
        EXPECT_EQ(align_down(power, power), power);
        EXPECT_EQ(align_down(2 * power - 1, power), power == 1 ? 1 : power);
    }
}

TEST(Bits, KnowsPowersOfTwo) {
    EXPECT_FALSE(is_power_of_two(0));
    for (unsigned bit = 0; bit < 64; bit++) {
        EXPECT_TRUE(is_power_of_two(1ull << bit));
        if (bit > 1) {
            EXPECT_FALSE(is_power_of_two((1ull << bit) - 1));
            EXPECT_FALSE(is_power_of_two((1ull << bit) + 1));
        }
    }
}

TEST(Bits, FindsTheOuterBits) {
    for (unsigned bit = 0; bit < 64; bit++) {
        EXPECT_EQ(bit_high(1ull << bit), bit);
        EXPECT_EQ(bit_high((1ull << bit) | 1), bit);
        EXPECT_EQ(bit_low(1ull << bit), bit);
        EXPECT_EQ(bit_low((1ull << bit) | (1ull << 63)), bit);
    }
}

TEST(Atomic, CompareAndSwapTellsWhatItFound) {
    uint64_t word = 5;
    uint64_t expected = 4;
    EXPECT_FALSE(cas_acq_rel(&word, &expected, uint64_t{9}));
    EXPECT_EQ(expected, 5u);
    EXPECT_TRUE(cas_acq_rel(&word, &expected, uint64_t{9}));
    EXPECT_EQ(xchg_acquire(&word, uint64_t{3}), 9u);
    EXPECT_EQ(add_relaxed(&word, 4), 3u);
    EXPECT_EQ(sub_relaxed(&word, 2), 7u);
    EXPECT_EQ(load_acquire(&word), 5u);
    uint32_t count = 2;
    EXPECT_EQ(owner_decrement(&count), 1u);
    EXPECT_TRUE(owner_compare(&count, 1u));
}

} // namespace
