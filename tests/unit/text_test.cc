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

std::string quoted(const char* s) {
    char buffer[256];
    text t = text_make(buffer, sizeof buffer);
    text_quoted(&t, s);
    EXPECT_FALSE(t.cut);
    return written(t);
}

TEST(Text, QuotesAsJsonHasIt) {
    EXPECT_EQ(quoted(""), R"("")");
    EXPECT_EQ(quoted("a \"name\" with \\ and /"), R"("a \"name\" with \\ and /")");
    EXPECT_EQ(quoted("\n\t\x01\x1f\x7f"), R"("\u000a\u0009\u0001\u001f\u007f")");
    EXPECT_EQ(quoted("\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80"), "\"\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80\"");
    EXPECT_EQ(quoted("\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"),
              "\"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf\"");
}

TEST(Text, BytesThatAreNoUtf8AreReplacedOneByOne) {
    const std::string no = "\\ufffd";
    EXPECT_EQ(quoted("a\xffz"), "\"a" + no + "z\"");
    EXPECT_EQ(quoted("\x80\xbf"), "\"" + no + no + "\"");
    EXPECT_EQ(quoted("\xc3"), "\"" + no + "\"");          // cut in a sequence
    EXPECT_EQ(quoted("\xe2\x82"), "\"" + no + no + "\""); // the same
    EXPECT_EQ(quoted("\xe2\x82\""), "\"" + no + no + "\\\"\"");
    EXPECT_EQ(quoted("\xc0\xaf\xc1\xbf"), "\"" + no + no + no + no + "\""); // overlong
    EXPECT_EQ(quoted("\xe0\x9f\xbf"), "\"" + no + no + no + "\"");
    EXPECT_EQ(quoted("\xf0\x8f\xbf\xbf"), "\"" + no + no + no + no + "\"");
    EXPECT_EQ(quoted("\xed\xa0\x80"), "\"" + no + no + no + "\"");          // a surrogate
    EXPECT_EQ(quoted("\xf4\x90\x80\x80"), "\"" + no + no + no + no + "\""); // beyond U+10FFFF
    EXPECT_EQ(quoted("\xf5\xff"), "\"" + no + no + "\"");
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
