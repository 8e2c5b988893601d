// tag_test.cc: tag/tag.h: what tags do where the processor has them, and that nothing is tagged where it has
// none. Called by ctest.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <cstring>

extern "C" {
#include "tag/tag.h"
}

namespace {

#ifdef __aarch64__

constexpr size_t kPages = 4;

// Tagged memory, in a thread that compares tags.
class Tags : public ::testing::Test {
  protected:
    void SetUp() override {
        ASSERT_TRUE(os_tags_exist()); // under an emulator with all that it knows
        before_ = os_tags_mode();
        bytes_ = kPages * os_page_bytes();
        ASSERT_TRUE(os_tags_set(OS_TAGS_SYNC));
        p_ = static_cast<char*>(os_reserve(bytes_, os_page_bytes()));
        ASSERT_NE(p_, nullptr);
        ASSERT_TRUE(os_commit_as(p_, bytes_, os_tags_memory()));
    }
    void TearDown() override {
        if (p_ == nullptr) return;
        os_tags_set(before_);
        os_unmap(p_, bytes_);
    }
    static void* WithTag(const void* p, unsigned tag) {
        return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(tag_clear(p)) | uintptr_t{tag}
                                                                                       << ARCH_TAG_SHIFT);
    }
    unsigned TagAt(size_t offset) { return tag_of(tag_read(p_ + offset)); }

    char* p_ = nullptr;
    size_t bytes_ = 0;
    uint32_t before_ = 0;
};

TEST_F(Tags, MemoryStartsWithTagZero) {
    for (size_t i = 0; i < bytes_; i += TAG_GRANULE) ASSERT_EQ(TagAt(i), 0u);
}

TEST_F(Tags, ARangeGetsTheTagAndNothingBesideItDoes) {
    for (size_t bytes = TAG_GRANULE; bytes < 3000; bytes += bytes < 600 ? 16 : 208) {
        for (size_t start : {size_t{16}, size_t{64}, size_t{1008}}) {
            tag_set(WithTag(p_, 0), bytes_);
            tag_set(WithTag(p_ + start, 9), bytes);
            for (size_t i = 0; i < bytes_; i += TAG_GRANULE)
                ASSERT_EQ(TagAt(i), i >= start && i < start + bytes ? 9u : 0u) << bytes << " at " << i;
        }
    }
}

TEST_F(Tags, ARangeIsZeroedAndNothingBesideItIs) {
    for (size_t bytes = TAG_GRANULE; bytes < 3000; bytes += bytes < 600 ? 16 : 208) {
        tag_set(p_, bytes_);
        memset(p_, 0x5a, bytes_);
        tag_set_zero(WithTag(p_ + 48, 5), bytes);
        for (size_t i = 0; i < bytes_; i += TAG_GRANULE) {
            bool inside = i >= 48 && i < 48 + bytes;
            ASSERT_EQ(TagAt(i), inside ? 5u : 0u);
            const char* at = static_cast<char*>(tag_read(p_ + i));
            for (size_t j = 0; j < TAG_GRANULE; j++) ASSERT_EQ(at[j], inside ? 0 : 0x5a);
        }
    }
}

TEST_F(Tags, TheNextTagIsOfTheSameParityAndAnother) {
    unsigned seen = 0;
    void* p = WithTag(p_, 2);
    for (int i = 0; i < 4000; i++) {
        void* next = tag_choose(p, TAG_NOT_EVEN);
        ASSERT_NE(tag_of(next), tag_of(p));
        ASSERT_EQ(tag_of(next) & 1, 0u);
        ASSERT_NE(tag_of(next), 0u);
        ASSERT_EQ(tag_clear(next), tag_clear(p));
        seen |= 1u << tag_of(next);
        p = next;
    }
    EXPECT_EQ(seen, 0x5554u);
    seen = 0;
    for (int i = 0; i < 4000; i++) {
        void* next = tag_choose(p, TAG_NOT_ODD);
        ASSERT_NE(tag_of(next), tag_of(p));
        ASSERT_EQ(tag_of(next) & 1, 1u);
        seen |= 1u << tag_of(next);
        p = next;
    }
    EXPECT_EQ(seen, 0xaaaau);
}

TEST_F(Tags, ADistanceIsCountedWithoutTheTag) {
    auto at = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
    EXPECT_TRUE(arch_distance_within(at(WithTag(p_ + 65535, 7)) - at(p_), 65536));
    EXPECT_FALSE(arch_distance_within(at(WithTag(p_ + 65536, 7)) - at(p_), 65536));
    EXPECT_FALSE(arch_distance_within(at(WithTag(p_, 7)) - at(p_ + 1), 65536));
    EXPECT_FALSE(arch_distance_within(uintptr_t{0} - 65536, 65536));
}

TEST_F(Tags, PurgedMemoryHasTagZero) {
    tag_set(WithTag(p_, 3), bytes_);
    ASSERT_TRUE(os_purge(p_, bytes_));
    for (size_t i = 0; i < bytes_; i += TAG_GRANULE) ASSERT_EQ(TagAt(i), 0u);
}

TEST_F(Tags, AnAccessWithAWrongTagIsAFault) {
    tag_set(WithTag(p_, 3), bytes_);
    *static_cast<volatile char*>(WithTag(p_, 3)) = 1;
    Ended ended = in_child([&] { *static_cast<volatile char*>(WithTag(p_, 4)) = 1; });
    EXPECT_TRUE(WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGSEGV) << ended.status;
}

TEST(TagStart, WhereTheKernelHasNoChoiceAutoIsAsync) {
    constexpr unsigned both = OS_TAGS_SYNC | OS_TAGS_ASYNC;
    constexpr char refused[] = "weir: option 'tagging' has no effect: the kernel refuses to compare tags\n";
    auto start = [](unsigned wanted, unsigned refuses) {
        return in_child([=] {
            ASSERT_TRUE(os_tags_set(0)); // the tests may run with tags on
            core_options.tagging = wanted;
            os_tags_refused = refuses;
            bool on = tag_start() != 0;
            _exit(on ? 32 + static_cast<int>(os_tags_mode()) : 0);
        });
    };
    Ended whole = start(both, 0); // of which user mode of the emulator makes sync
    EXPECT_TRUE(whole.exited(32 + both) || whole.exited(32 + OS_TAGS_SYNC)) << whole.status;
    EXPECT_TRUE(start(both, 1u << both).exited(32 + OS_TAGS_ASYNC));
    EXPECT_TRUE(start(OS_TAGS_SYNC, 1u << both).exited(32 + OS_TAGS_SYNC));
    Ended none = start(OS_TAGS_SYNC, ~0u);
    EXPECT_TRUE(none.exited(0));
    EXPECT_EQ(none.printed, refused);
    EXPECT_EQ(start(both, ~0u).printed, refused);
}

#else

TEST(TagNull, WhatWouldNeedTagsEndsTheProcess) {
    alignas(16) static char memory[16];
    EXPECT_TRUE(in_child([] { tag_read(memory); }).trapped());
    EXPECT_TRUE(in_child([] { tag_choose(memory, 1); }).trapped());
    EXPECT_TRUE(in_child([] { tag_set(memory, 16); }).trapped());
    EXPECT_TRUE(in_child([] { tag_set_zero(memory, 16); }).trapped());
    EXPECT_EQ(tag_clear(memory), memory);
    EXPECT_EQ(tag_strip(memory), memory);
    EXPECT_EQ(tag_access(memory), memory);
}

TEST(TagNull, AskedForWhereThereIsNoneItIsSaid) {
    Ended ended = in_child([] {
        core_options.tagging = 1;
        EXPECT_EQ(tag_start(), 0u);
        EXPECT_FALSE(tag_is_on());
    });
    EXPECT_TRUE(ended.fine());
    EXPECT_EQ(ended.printed,
              "weir: option 'tagging' has no effect: this processor, kernel or build has no memory tags\n");
}

#endif

TEST(Tag, NothingIsTaggedUnlessAsked) {
    EXPECT_FINE(in_child([] {
        EXPECT_EQ(tag_start(), 0u);
        EXPECT_FALSE(tag_is_on());
    }));
}

} // namespace
