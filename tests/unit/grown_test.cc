// grown_test.cc: heap/refill.c, heap/slab_pages.c: a class that goes on to new pages for long gets several at
// once; one that does not gets them page by page. Called by ctest; each test starts the heap in a child of
// its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include "workers.h"
#include <iterator>

namespace {

constexpr size_t sizes[] = {16, 64, 80, 144, 256, 528, 784, 1024, 1152, 1536, 2048};

size_t capacity(size_t bytes) { return size_classes[class_of(bytes)].capacity; }
// Blocks of the thread's slab that it has not taken yet.
size_t idle(size_t bytes, size_t taken) {
    return unit_active(class_of(bytes))->built - taken % capacity(bytes);
}
// What waits where pages come one at a time: one of them, and the block that reaches into the next.
size_t of_one_page(size_t bytes) { return os_page_bytes() / bytes + 2; }

// Blocks that lie side by side, so many at most.
void free_some(Blocks& blocks, Random& random, size_t most) {
    std::sort(blocks.all.begin(), blocks.all.end(), [](const Block& a, const Block& b) { return a.p < b.p; });
    auto from = blocks.all.begin() + random.below(static_cast<unsigned>(blocks.all.size()));
    auto to =
        from + std::min<ptrdiff_t>(1 + random.below(static_cast<unsigned>(most)), blocks.all.end() - from);
    for (auto b = from; b != to; ++b) {
        EXPECT_TRUE(block_intact(*b, b->usable)) << b->size;
        unit_free(b->p);
    }
    blocks.all.erase(from, to);
}

// What is not needed yet takes no memory, as long as a class has a slab or less.
TEST(Grown, TheFirstSlabIsBuiltPageByPage) {
    for (size_t bytes : sizes)
        EXPECT_FINE(in_child([=] {
            setenv("WEIR_OPTIONS", "sparse_max=0", 1);
            unit_attach();
            for (size_t i = 1; i < capacity(bytes); i++) {
                filled(bytes);
                ASSERT_LE(idle(bytes, i), of_one_page(bytes)) << bytes << " " << i;
            }
        }));
}

// And what is built beyond that is a 16th of what came before at the most.
TEST(Grown, LaterOnesBySeveralPages) {
    for (size_t bytes : sizes)
        EXPECT_FINE(in_child([=] {
            setenv("WEIR_OPTIONS", "sparse_max=0:guard_rate=0", 1);
            unit_attach();
            const size_t all = 12 * capacity(bytes);
            size_t most = 0;
            for (size_t i = 1; i <= all; i++) {
                filled(bytes);
                size_t now = i % capacity(bytes) == 0 ? 0 : idle(bytes, i);
                ASSERT_LE(now, i / 16 + of_one_page(bytes)) << bytes << " " << i;
                most = std::max(most, now);
            }
            EXPECT_GE(unit_check_slabs(), 0);
            const size_t at_once = std::min<size_t>(64 * bytes, 16384) / os_page_bytes();
            EXPECT_LE(most, std::max<size_t>(at_once * os_page_bytes() / bytes + 2, of_one_page(bytes)));
            if (at_once < 2) return;
            EXPECT_GE(most + 2, at_once * os_page_bytes() / bytes) << bytes;
            uint64_t before = unit_slow_calls();
            for (size_t i = 0; i < all; i++) filled(bytes);
            // Slabs end in the middle of such a step, and each takes a call or two itself.
            EXPECT_LE(unit_slow_calls() - before, all * bytes / os_page_bytes() / at_once * 3 / 2 + 12 * 2)
                << bytes;
        }));
}

// A class that lives on what comes back is not one that grows.
TEST(Grown, WhatComesBackEndsIt) {
    const bool several = os_page_bytes() <= 8192; // larger ones come one at a time
    for (const char* options : {"", ":check_first=0:check_every=1000000", ":thread_free_max=0"})
        EXPECT_FINE(in_child([=] {
            constexpr size_t bytes = 256;
            setenv("WEIR_OPTIONS", (std::string("guard_rate=0:reuse=late") + options).c_str(), 1);
            unit_attach();
            std::vector<void*> all;
            auto grow_by = [&](size_t count) {
                for (size_t i = 0; i < count; i++) all.push_back(unit_alloc(bytes));
            };
            auto most_at_once = [&] { // blocks that a call builds, while another slab is taken from
                size_t most = 0;
                for (size_t i = 0; i < capacity(bytes); i++) {
                    const struct slice* s = unit_active(class_of(bytes));
                    size_t before = s->built;
                    grow_by(1);
                    if (unit_active(class_of(bytes)) == s) most = std::max<size_t>(most, s->built - before);
                }
                return most;
            };
            grow_by(20 * capacity(bytes));
            EXPECT_EQ(most_at_once() > of_one_page(bytes), several);
            for (size_t i = 0; i < 20; i++) unit_free(all[i * capacity(bytes) | 1]); // full ones are nobody's
            for (size_t i = 0; i < 12 * 64; i += 64) {                               // a dozen lists
                for (size_t k = i; k < i + 64; k += 2) unit_free(all[k]);
                for (size_t k = i; k < i + 64; k += 2) all[k] = unit_alloc(bytes);
            }
            EXPECT_LE(most_at_once(), of_one_page(bytes)) << options;
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

// Requests that free all they took: what each builds is what it needs, not what all of them built together
// would make of it.
TEST(Grown, NotWhereAllIsFreedAgainAndAgain) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "guard_rate=0:check_first=0", 1);
        unit_attach();
        constexpr unsigned rounds = 300, count = 1000;
        Random random(5);
        size_t most = 0; // bytes built
        for (unsigned round = 0; round < rounds; round++) {
            std::vector<void*> all;
            for (unsigned i = 0; i < count; i++) all.push_back(unit_alloc(16 + random.below(1009)));
            size_t built = 0;
            for (unsigned c = 0; c < class_of(1024); c++)
                if (unit_active(c) != nullptr) built += unit_active(c)->built * size_classes[c].bytes;
            most = std::max(most, built);
            for (unsigned i = 0; i < count; i++) unit_free(all[i * 7 % count]);
        }
        // 1.9 times as much as is asked for, where it goes on and on.
        EXPECT_LE(most, count * 520 * 8 / 5 + class_of(1024) * (os_page_bytes() - 4096));
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// After all of it went a class begins anew.
TEST(Grown, BeginsAnewWhenAllIsFreed) {
    for (const char* options : {"check_first=0", "check_first=1000000", "check_first=0:reuse=late"})
        for (bool collects : {false, true})
            for (size_t bytes : {256u, 512u, 1024u})
                EXPECT_FINE(in_child([=] {
                    setenv("WEIR_OPTIONS", options, 1);
                    unit_attach();
                    std::vector<void*> all;
                    for (size_t i = 0; i < 20 * capacity(bytes); i++) all.push_back(unit_alloc(bytes));
                    for (void* p : all) unit_free(p);
                    if (collects) unit_collect();
                    const struct slice* s = unit_active(class_of(bytes));
                    size_t before = s == nullptr ? 0 : s->built;
                    for (size_t i = 0; i <= before; i++) unit_alloc(bytes);
                    s = unit_active(class_of(bytes));
                    EXPECT_LE(s->built, before + of_one_page(bytes)) << options << collects << bytes;
                }));
}

// Nor does what the thread did before malloc_trim tell what it does next.
TEST(Grown, BeginsAnewWhenAllIsCollected) {
    EXPECT_FINE(in_child([] {
        constexpr size_t bytes = 256;
        unit_attach();
        size_t most = 0;
        for (size_t i = 0; i < 20 * capacity(bytes); i++) unit_alloc(bytes);
        unit_collect();
        for (size_t i = 0; i < capacity(bytes) / 2; i++) {
            const struct slice* s = unit_active(class_of(bytes));
            size_t before = s == nullptr ? 0 : s->built;
            unit_alloc(bytes);
            if (unit_active(class_of(bytes)) == s) most = std::max<size_t>(most, s->built - before);
        }
        EXPECT_LE(most, of_one_page(bytes));
        EXPECT_GT(most, 0u);
    }));
}

// Where heaps are many, each has a page's worth.
TEST(Grown, NotWhereHeapsAreMany) {
    constexpr size_t bytes = 512;
    const bool several = os_page_bytes() <= 8192;
    for (unsigned heaps : {2u, 12u})
        EXPECT_FINE(in_child([=] {
            unit_attach();
            Crowd crowd = crowd_of(heaps);
            size_t most = 0;
            for (size_t i = 1; i < 10 * capacity(bytes); i++) {
                unit_alloc(bytes);
                if (i % capacity(bytes) != 0) most = std::max(most, idle(bytes, i));
            }
            EXPECT_EQ(most > of_one_page(bytes), several && heaps == 2);
        }));
}

// What is taken from the bin of a larger class counts as an allocation for those that are sampled.
TEST(Grown, LargerOnesAreSampled) {
    EXPECT_FINE(in_child([] {
        constexpr unsigned rate = 50, count = 4000;
        setenv("WEIR_OPTIONS", "sparse_max=0", 1);
        unit_attach();
        unit_guard_start(rate, 1024);
        for (unsigned i = 0; i < count; i++) unit_alloc(1536);
        EXPECT_GE(unit_guard_allocs(), count / rate / 2);
        EXPECT_LE(unit_guard_allocs(), count / rate * 2);
    }));
}

// Runs of free pages of all lengths between pages in use, for each class that slabs have and each size of
// page; blocks that reach from one to the next; the end of a slab, where no block lies.
TEST(Grown, PagesBetweenOthersAreBuiltOnce) {
    for (uint32_t shift : {12u, 14u, 16u})
        for (bool apart : {false, true}) // no block ends where the slab does
            EXPECT_FINE(in_child([=] {
                setenv("WEIR_OPTIONS",
                       apart ? "sparse_max=0:check_first=1000000" : "sparse_max=0:release=off", 1);
                start_with_pages(shift);
                classes_start(apart);
                Random random(shift);
                constexpr unsigned step =
                    unit_sanitized || unit_emulated ? 5 : 1; // a page's blocks among them
                for (unsigned c = step - 1; c < SLAB_CLASSES; c += step) {
                    const size_t bytes = size_classes[c].bytes;
                    const size_t slabs = 6;
                    Blocks blocks;
                    auto fill = [&] {
                        while (blocks.all.size() < slabs * capacity(bytes)) ASSERT_TRUE(blocks.alloc(bytes));
                    };
                    fill();
                    for (unsigned round = 0; round < 2; round++) {
                        for (unsigned gap = 0; gap < 12 && blocks.all.size() > 16; gap++)
                            free_some(blocks, random, 8 * os_page_bytes() / bytes + 8);
                        unit_collect();
                        ASSERT_GE(unit_check_slabs(), 0) << bytes << " " << round;
                        fill();
                        ASSERT_GE(unit_check_slabs(), 0) << bytes << " " << round;
                    }
                    blocks.free_all();
                }
            }));
}

// What is built is being given back by another thread: a page is one's or the other's.
TEST(Grown, WhilePagesGoBack) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":sparse_max=0");
        unit_attach();
        Purger purger;
        Random random(3);
        for (unsigned round = 0; round < unit_rounds(200) || purger.passes.load() < 4; round++) {
            ASSERT_LT(round, 20000u);
            Blocks blocks;
            const size_t bytes = sizes[3 + random.below(std::size(sizes) - 3)];
            for (unsigned i = 0; i < 400; i++) ASSERT_TRUE(blocks.alloc(bytes));
            blocks.free_all();
            unit_collect();
        }
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

} // namespace
