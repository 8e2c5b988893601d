// text_test.cc: base/text.h. Called by ctest; knows nothing of other layers.
//
// SPDX-License-Identifier: Apache-2.0
extern "C" {
#include "base/text.h"
}
#include <gtest/gtest.h>
#include <string>

namespace {

std::string written(const text& t) { return std::string(t.data, t.length); }

TEST(Text, WritesNumbersInBothBases) {
    char buffer[64];
    text t = text_make(buffer, sizeof buffer);
    text_number(&t, 0);
    text_char(&t, ' ');
    text_number(&t, UINT64_MAX);
    text_char(&t, ' ');
    text_hex(&t, 0xdeadbeefu);
    EXPECT_EQ(written(t), "0 18446744073709551615 0xdeadbeef");
    EXPECT_FALSE(t.cut);
}

TEST(Text, CutsAtTheBuffersEndAndSaysSo) {
    char buffer[5] = {'x', 'x', 'x', 'x', 'x'};
    text t = text_make(buffer, 4);
    text_string(&t, "abcdef");
    EXPECT_EQ(written(t), "abcd");
    EXPECT_TRUE(t.cut);
    EXPECT_EQ(buffer[4], 'x');
}

TEST(Text, DistanceIsLevenshteins) {
    EXPECT_EQ(text_distance("reserv", 6, "reserve"), 1u);
    EXPECT_EQ(text_distance("kitten", 6, "sitting"), 3u);
    EXPECT_EQ(text_distance("same", 4, "same"), 0u);
    EXPECT_EQ(text_distance("", 0, "abc"), 3u);
    std::string longest(33, 'a');
    EXPECT_EQ(text_distance(longest.c_str(), longest.size(), "a"), SIZE_MAX);
}

TEST(Text, EqualNeedsTheWholeString) {
    EXPECT_TRUE(text_equal("abc=1", 3, "abc"));
    EXPECT_FALSE(text_equal("abc=1", 3, "abcd"));
    EXPECT_FALSE(text_equal("abc=1", 2, "abc"));
}

} // namespace
