// medium_kept_test.cc: the medium blocks that a thread keeps for its next ones: which, how many bytes of
// them, what they serve, how they grow. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "arenas.h"
#include <algorithm>
#include <future>
#include <vector>

namespace {

unsigned medium_of(size_t size) { return class_of(size) - SMALL_CLASSES; }

void start(const char* options) {
    setenv("WEIR_OPTIONS", options, 1);
    unit_attach();
}

// A block grows into what is free behind it, and its class with it; one that has a neighbour moves.
TEST(MediumKept, ReallocGrowsWhereTheBlockLies) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        void* first = unit_alloc(3000);
        void* last = unit_alloc(3000);
        memset(first, 1, 3000);
        memset(last, 2, 3000);
        ASSERT_EQ(unit_slice(first), unit_slice(last));
        unsigned moved = 0;
        for (size_t size = 3200; size <= 40000; size += size / 8) {
            void* grown = unit_realloc(last, size);
            moved += grown != last;
            last = grown;
            EXPECT_GE(unit_usable(last), size);
            memset(last, 2, size);
            EXPECT_EQ(unit_arena_used(class_of(unit_usable(last)) - SMALL_CLASSES), 1u);
            EXPECT_TRUE(unit_arena_check());
        }
        if (tag_is_on()) { // the new part would have another tag
            EXPECT_GT(moved, 5u);
            return;
        }
        EXPECT_EQ(moved, 0u);
        void* other = unit_realloc(first, 4000);
        EXPECT_NE(other, first);
        EXPECT_EQ(memcmp(other, static_cast<char*>(other) + 1, 2999), 0);
        uint64_t out = unit_medium_out_bytes();
        EXPECT_EQ(out, unit_usable(last) + unit_usable(other) + 3072); // the first one is kept
        unit_free(last);
        unit_free(other);
        expect_no_live_blocks();
    }));
}

TEST(MediumKept, AFreedBlockIsTheNextOneOfItsClass) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        for (unsigned m = 0; m < chunk_classes(); m++) {
            void* p = unit_alloc(class_bytes(m));
            ASSERT_TRUE(unit_in_chunk(p));
            EXPECT_EQ(unit_usable(p), class_bytes(m));
            struct unit_figures before, after;
            unit_census(&before);
            EXPECT_EQ(before.live_blocks, 1u);
            EXPECT_EQ(before.live_bytes, class_bytes(m));
            unit_free(p);
            EXPECT_EQ(bare(unit_kept_block(m)), bare(p));
            unit_census(&after);
            EXPECT_EQ(after.live_blocks, 0u);
            EXPECT_GE(after.cached_bytes, class_bytes(m));
            void* again = unit_alloc(class_bytes(m) - 1);
            EXPECT_EQ(bare(again), bare(p));
            p = again;
            unit_census(&after);
            EXPECT_EQ(after.slow_calls, before.slow_calls); // no lock was needed
            EXPECT_EQ(after.alloc_calls, before.alloc_calls + 1);
            EXPECT_EQ(after.live_blocks, 1u);
            unit_free(p);
        }
        expect_nothing_left();
    }));
}

TEST(MediumKept, TheYoungestIsGivenOutFirstAndTheOldestGoesBackFirst) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        std::vector<void*> held; // so that there is room for a whole ring of each class
        for (unsigned i = 0; i < 80; i++) held.push_back(unit_alloc(65536));
        for (unsigned m = 0; m < chunk_classes(); m += 4) {
            unsigned most = unit_kept_count_max(m);
            std::vector<void*> all;
            for (unsigned i = 0; i < most + 1; i++) all.push_back(unit_alloc(class_bytes(m)));
            while (unit_kept_count(m) != 0) held.push_back(unit_alloc(class_bytes(m))); // what came along
            for (unsigned i = 0; i < most; i++) {
                EXPECT_EQ(unit_kept_count(m), i);
                unit_free(all[i]);
            }
            EXPECT_EQ(unit_kept_count(m), most);
            unit_free(all[most]); // half of them go
            EXPECT_EQ(unit_kept_count(m), most / 2 + 1);
            EXPECT_EQ(used_blocks(), held.size() + most / 2 + 1);
            for (unsigned i = 0; i < most / 2 + 1; i++) {
                void* again = unit_alloc(class_bytes(m));
                EXPECT_EQ(bare(again), bare(all[most - i])) << class_bytes(m);
                all[most - i] = again;
            }
            EXPECT_EQ(unit_kept_count(m), 0u);
            for (unsigned i = 0; i < most / 2 + 1; i++) unit_free(all[most - i]);
            unit_collect();
            EXPECT_EQ(unit_kept_count(m), 0u);
            EXPECT_EQ(unit_kept_medium_bytes(), 0u);
        }
        for (void* p : held) unit_free(p);
        expect_nothing_left();
    }));
}

// Also after what is kept went, whoever has the heap: a ring has no more of them.
TEST(MediumKept, TheRingHasAsManyPlacesAsMayWait) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        const unsigned m = medium_of(3000);
        const unsigned most = unit_kept_count_max(m);
        auto keep_and_give_back = [&] {
            EXPECT_EQ(unit_kept_places(m), 0u); // none was freed yet
            for (unsigned i = 0; i < 5; i++) {
                std::vector<void*> all;
                for (unsigned j = 0; j < most; j++) all.push_back(unit_alloc(3000));
                for (void* p : all) unit_free(p);
                EXPECT_EQ(unit_kept_places(m), most);
                unit_collect();
                EXPECT_EQ(unit_kept_count(m), 0u);
                EXPECT_EQ(unit_kept_places(m), most);
            }
        };
        uint64_t made = 0;
        for (unsigned i = 0; i < 3; i++) {
            std::thread([&] {
                unit_attach();
                keep_and_give_back();
                unit_detach();
            }).join();
            if (i == 0) made = unit_heaps_made();
        }
        EXPECT_EQ(unit_heaps_made(), made); // the same one, each time
        expect_nothing_left();
    }));
}

// A buffer of 64 KiB is one of many, or a few are of all sizes: then the next one is of another.
TEST(MediumKept, HalfOfTheLongerOnesAreKeptWhereThereAreSeveral) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        for (size_t size : {36000u, 65536u}) {
            const unsigned m = medium_of(size);
            EXPECT_EQ(unit_kept_count_max(m), 1u);
            std::vector<void*> all(64);
            for (unsigned round = 0; round < 8; round++) {
                for (void*& p : all) p = unit_alloc(size);
                for (void* p : all) unit_free(p);
            }
            EXPECT_GT(unit_kept_count(m), 8u);
            for (unsigned i = 0; i < 8; i++) unit_kept_age();
            EXPECT_EQ(unit_kept_count_max(m), 1u);
            unit_collect();
            std::vector<void*> few(7);
            for (void*& p : few) p = unit_alloc(size);
            EXPECT_EQ(unit_kept_count_max(m), 1u);
            few.push_back(unit_alloc(size));
            EXPECT_EQ(unit_kept_count_max(m), 4u);
            for (void* p : few) unit_free(p);
            unit_collect();
        }
        expect_nothing_left();
    }));
}

// It is a part of what the thread has of such blocks.
TEST(MediumKept, WhoHasMoreKeepsMore) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        unit_free(unit_alloc(4096));
        size_t least = unit_kept_medium_max();
        EXPECT_GE(least, 65536u);
        std::vector<void*> all;
        for (unsigned i = 0; i < 200; i++) all.push_back(unit_alloc(16384));
        for (unsigned i = 0; i < 8; i++, all.pop_back()) unit_free(all.back());
        EXPECT_GE(unit_kept_medium_max(), least + 192 * 16384 / 4);
        for (; !all.empty(); all.pop_back()) unit_free(all.back());
        EXPECT_LE(unit_kept_medium_max(), least + 32 * 16384 / 4); // what it keeps still counts as taken
        expect_nothing_left();
    }));
}

// Rounds in which a thread takes some 800 KiB of blocks of many classes and gives all of it back.
void take_and_give_back(unsigned rounds) {
    for (unsigned round = 0; round < rounds; round++) {
        std::vector<void*> all;
        for (unsigned i = 0; i < 120; i++) all.push_back(unit_alloc(2500 + i % 20 * 500));
        for (void* p : all) unit_free(p);
    }
}

// One whose use goes down and up again keeps what does, where that is allowed: no lock is taken for each
// block.
TEST(MediumKept, WhoGoesDownAndUpAgainKeepsIt) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        take_and_give_back(1); // and may be at its end
        EXPECT_LT(unit_kept_medium_max(), 300000u);
        take_and_give_back(2);
        EXPECT_GE(unit_kept_medium_max(), 850000u);
        uint64_t before = unit_slow_calls();
        take_and_give_back(10);
        uint64_t slow = unit_slow_calls() - before;
        EXPECT_TRUE(slow < 10u * 10 || tag_is_on()) << slow;
        EXPECT_TRUE(unit_arena_check());
        expect_nothing_left();
    }));
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535:thread_kept_max=64k");
        take_and_give_back(20);
        EXPECT_EQ(unit_kept_medium_max(), 65536u);
    }));
}

// Blocks that are in the program's hands at the same time are not the same.
void expect_distinct(std::vector<void*> all) {
    for (void*& p : all) p = bare(p);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

// Threads that have heaps, for as long as this lives.
class OtherHeaps {
  public:
    void more_until(unsigned count) {
        while (threads.size() < count)
            threads.emplace_back([this] {
                unit_free(unit_alloc(100));
                ready++;
                over.wait();
                unit_detach();
            });
        while (ready != count) sched_yield();
    }
    ~OtherHeaps() {
        enough.set_value();
        for (std::thread& t : threads) t.join();
    }

  private:
    std::promise<void> enough;
    std::shared_future<void> over = enough.get_future().share();
    std::vector<std::thread> threads;
    std::atomic<unsigned> ready{0};
};

// A ring that holds more than its places when threads become many gives back what is too much.
TEST(MediumKept, AFullRingShrinksWhereThreadsBecomeMany) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        const unsigned m = medium_of(3000);
        const unsigned most = unit_kept_count_max(m);
        std::vector<void*> all;
        auto take = [&](unsigned count) {
            while (all.size() < count) all.push_back(unit_alloc(3000));
        };
        auto give = [&] {
            unit_free(all.back());
            all.pop_back();
        };
        for (unsigned i = 0; i < 4; i++) {
            take(400);
            while (!all.empty()) give();
        }
        take(400);
        while (unit_kept_count(m) < most && all.size() > 3 * most) give();
        ASSERT_EQ(unit_kept_count(m), most);
        OtherHeaps others;
        others.more_until(8);
        const unsigned fewer = unit_kept_count_max(m);
        EXPECT_EQ(fewer, 16u);
        for (unsigned i = 0; i < 3 * most; i++) {
            give();
            EXPECT_LE(unit_kept_count(m), fewer);
            EXPECT_LE(unit_kept_count(m), unit_kept_places(m));
        }
        take(400);
        expect_distinct(all);
        while (!all.empty()) give();
        EXPECT_TRUE(unit_arena_check());
    }));
}

// Whether they are many may change at any instruction of a thread that frees.
TEST(MediumKept, ThreadsComeAndGoWhileUseGoesDownAndUp) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        OtherHeaps others;
        others.more_until(7);
        std::atomic<bool> done{false};
        std::thread ninth([&] {
            while (!done)
                std::thread([] {
                    unit_free(unit_alloc(100));
                    unit_detach();
                }).join();
            unit_detach();
        });
        for (unsigned round = 0; round < unit_rounds(4000); round++) {
            std::vector<void*> all;
            for (unsigned i = 0; i < 150; i++) all.push_back(unit_alloc(3000));
            expect_distinct(all);
            for (void* p : all) unit_free(p);
        }
        done = true;
        ninth.join();
        EXPECT_TRUE(unit_arena_check());
    }));
}

// What goes down and up is less than a quarter of what there is, or little.
TEST(MediumKept, WhoGivesAPartBackKeepsAPart) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        std::vector<void*> held;
        for (unsigned i = 0; i < 1000; i++) held.push_back(unit_alloc(3000));
        take_and_give_back(20);
        EXPECT_LT(unit_kept_medium_max(), 65536u + 4000000 / 4);
        for (void* p : held) unit_free(p);
    }));
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        for (unsigned round = 0; round < 200; round++) {
            std::vector<void*> all;
            for (unsigned i = 0; i < 3; i++) all.push_back(unit_alloc(10000));
            for (unsigned i = 0; i < 17; i++) all.push_back(unit_alloc(2500));
            for (void* p : all) unit_free(p);
        }
        EXPECT_LT(unit_kept_medium_max(), 65536u + 80000 + 80000 / 4);
    }));
}

// Nor is it so for good.
TEST(MediumKept, WhoWentDownAndUpOnceKeepsAPartAgain) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535:thread_kept_max=64m");
        take_and_give_back(13);
        EXPECT_GE(unit_kept_medium_max(), 850000u);
        uint64_t before = unit_slow_calls();
        std::vector<void*> all;
        while (unit_slow_calls() < before + 5 * 1024) all.push_back(unit_alloc(3000));
        for (unsigned i = 0; i < 40; i++, all.pop_back()) unit_free(all.back());
        EXPECT_LE(unit_kept_medium_max(), 3u << 20);
        for (void* p : all) unit_free(p);
        expect_nothing_left();
    }));
    // What goes down and up now counts, not what did.
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        if (tag_is_on()) return; // what is kept goes by way of the arena
        take_and_give_back(13);
        EXPECT_GE(unit_kept_medium_max(), 850000u);
        uint64_t before = unit_slow_calls();
        while (unit_slow_calls() < before + 8 * 1024) {
            std::vector<void*> all;
            for (unsigned i = 0; i < 60; i++) all.push_back(unit_alloc(2500));
            for (void* p : all) unit_free(p);
        }
        EXPECT_LT(unit_kept_medium_max(), 300000u);
        EXPECT_TRUE(unit_arena_check());
    }));
    // malloc_trim forgets it at once.
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        take_and_give_back(13);
        EXPECT_GE(unit_kept_medium_max(), 850000u);
        unit_collect();
        EXPECT_LT(unit_kept_medium_max(), 300000u);
        take_and_give_back(1);
        EXPECT_LT(unit_kept_medium_max(), 300000u);
    }));
}

// What sleeping threads keep pins chunks: where they are many each keeps less.
TEST(MediumKept, ManyHeapsKeepLessEach) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        enum { STEADY = 3 << 20 };
        // In fewer slow calls than after which it forgets what went down and up.
        auto take = [](unsigned count) {
            std::vector<void*> all;
            for (unsigned i = 0; i < count; i++) all.push_back(unit_alloc(65536));
            return all;
        };
        auto steady_max = [&] {
            unit_collect(); // it went neither down nor up
            std::vector<void*> all = take(200);
            for (unsigned i = 0; i < 3; i++, all.pop_back()) unit_free(all.back()); // a ring holds one
            size_t most = unit_kept_medium_max();
            for (void* p : all) unit_free(p);
            return most;
        };
        auto swing_max = [&] {
            unit_collect();
            for (unsigned round = 0; round < 2; round++)
                for (void* p : take(135)) unit_free(p);
            return unit_kept_medium_max();
        };
        const size_t bound = core_options.thread_kept_max;
        EXPECT_EQ(steady_max(), STEADY);
        EXPECT_EQ(swing_max(), bound);
        OtherHeaps others;
        others.more_until(7); // and this one
        EXPECT_EQ(steady_max(), STEADY);
        size_t share = swing_max();
        EXPECT_GE(share, bound / 8);
        EXPECT_LE(share, bound / 8 + STEADY);
        others.more_until(8);
        EXPECT_EQ(steady_max(), STEADY * 8u / 9);
        EXPECT_LE(swing_max(), STEADY * 8u / 9);
        take_and_give_back(20);
        EXPECT_LT(unit_kept_medium_max(), 300000u);
        others.more_until(63);
        EXPECT_EQ(steady_max(), 524288u); // no less
        core_options.thread_kept_max = 262144;
        EXPECT_EQ(steady_max(), 262144u);
    }));
}

// What the thread keeps of other classes goes before the arena takes pages that have no memory: the oldest
// quarter of each ring, at least one, where more is kept than 64 KiB, the longest block, and a 32nd of what
// the thread has; below that nothing.
TEST(MediumKept, SomeOfWhatIsKeptGoesBeforeMoreMemory) {
    for (bool much : {false, true})
        EXPECT_FINE(in_child([=] {
            start("release=off:sparse_max=65535");
            if (tag_is_on()) return; // a block gets its tag in the arena
            stay_on_one_processor();
            std::vector<void*> all;
            for (unsigned i = 0; i < 800; i++) all.push_back(unit_alloc(3000 + i % 40 * 700));
            for (unsigned i = 0; i < 120; i++) {
                if (!much && i % 40 > 12) continue;
                unit_free(all[i]), all[i] = nullptr;
            }
            const size_t kept = unit_kept_medium_bytes();
            const size_t may_stay = 65536 + unit_medium_out_bytes() / 32;
            ASSERT_GT(kept, 65536u);
            ASSERT_EQ(kept > may_stay, much) << kept << " of " << may_stay;
            std::vector<unsigned> before;
            for (unsigned m = 0; m < UNIT_MEDIUM_CLASSES; m++) before.push_back(unit_kept_count(m));
            void* larger = unit_alloc(65536);
            for (unsigned m = 0; m < UNIT_MEDIUM_CLASSES; m++)
                EXPECT_EQ(unit_kept_count(m), much ? before[m] - (before[m] + 3) / 4 : before[m]) << m;
            EXPECT_TRUE(unit_arena_check());
            unit_free(larger);
            for (void* p : all) unit_free(p);
            expect_nothing_left();
        }));
}

// Who shows what is live looks where a long block's free sends something back, and not where it is kept.
TEST(MediumKept, LongBlocksThatGoBackAreTold) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        if (tag_is_on()) return; // long blocks are spans
        static std::atomic<unsigned> told;
        unit_long_hook([] { told++; });
        void* p = unit_alloc(100000);
        void* q = unit_alloc(200000);
        void* other = unit_alloc(100000);
        void* few = unit_alloc(3000);
        unit_free(p);
        EXPECT_EQ(told, 0u);
        unit_free(q); // takes p's place
        EXPECT_EQ(told, 1u);
        unit_free(few);
        EXPECT_EQ(told, 1u);
        std::thread([=] { unit_free(other); }).join(); // has no heap
        EXPECT_EQ(told, 2u);
        unit_long_hook(nullptr);
        expect_nothing_left();
    }));
}

TEST(MediumKept, KeptBlocksStayWithinTheBound) {
    for (size_t bound : {0u, 4096u, 65536u, 1u << 20})
        EXPECT_FINE(in_child([=] {
            start("release=off:sparse_max=65535");
            core_options.thread_kept_max = bound;
            Random random(bound + 1);
            Blocks blocks;
            for (unsigned i = 0; i < unit_rounds(4000); i++) {
                if (blocks.all.size() < 60 || random.below(2) == 0)
                    blocks.alloc(SMALL_MAX + 1 +
                                 random.below((random.below(8) == 0 ? chunk_block_max() : size_t{SLAB_MAX}) -
                                              SMALL_MAX));
                else
                    blocks.free(random.below(blocks.all.size()));
                size_t kept = 0, count = 0;
                for (unsigned m = 0; m < UNIT_MEDIUM_CLASSES; m++)
                    kept += unit_kept_count(m) * class_bytes(m), count += unit_kept_count(m);
                ASSERT_EQ(kept, unit_kept_medium_bytes());
                ASSERT_LE(kept, bound);
                for (unsigned m = 0; m < UNIT_MEDIUM_CLASSES; m++) { // what others may have is apart
                    size_t left = m <= class_of(SLAB_MAX) - SMALL_CLASSES ? unit_depot_count(m) : 0;
                    ASSERT_TRUE(left == 0 || bound >= 65536);
                    kept += left * class_bytes(m), count += left;
                }
                ASSERT_EQ(used_blocks(), blocks.all.size() + count);
                if (i % 64 != 0) continue;
                struct unit_figures f;
                unit_census(&f);
                EXPECT_EQ(f.live_blocks, blocks.all.size());
                EXPECT_EQ(f.live_bytes, blocks.usable());
                EXPECT_EQ(f.cached_bytes, kept);
                EXPECT_EQ(f.slabs, 0u);
                EXPECT_TRUE(unit_arena_check());
            }
            blocks.free_all();
            expect_nothing_left();
        }));
}

TEST(MediumKept, AKeptBlockServesAlignmentsThatItHas) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        char* at_page = static_cast<char*>(unit_alloc_aligned(8192, 4096));
        ASSERT_TRUE(unit_in_chunk(at_page));
        unit_free(at_page);
        char* again = static_cast<char*>(unit_alloc_aligned(8192, 4096));
        EXPECT_EQ(bare(again), bare(at_page));
        at_page = again;
        void* in_the_way = unit_alloc(1100);
        char* beside = static_cast<char*>(unit_alloc(8192));
        ASSERT_NE(reinterpret_cast<uintptr_t>(beside) % 8192, 0u);
        unit_free(beside);
        char* aligned = static_cast<char*>(unit_alloc_aligned(8192, 8192));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned) % 8192, 0u);
        EXPECT_EQ(bare(unit_kept_block(medium_of(8192))), bare(static_cast<void*>(beside)));
        again = static_cast<char*>(unit_alloc(8192));
        EXPECT_EQ(bare(again), bare(beside));
        beside = again;
        for (void* p : {static_cast<void*>(at_page), in_the_way, static_cast<void*>(beside),
                        static_cast<void*>(aligned)})
            unit_free(p);
        expect_nothing_left();
    }));
}

// So does one of the class after it, if it is not the only one, but none further on.
TEST(MediumKept, ABlockOfTheNextClassServesWhereNoneIsKept) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        const unsigned classes = chunk_classes();
        for (unsigned i = 0; i < 6 * (classes - 3); i++) {
            const unsigned m = i / 6, by = 1 + i % 3, kept = 1 + i / 3 % 2;
            void* next = unit_alloc(class_bytes(m + by));
            void* first_kept = kept == 1 ? nullptr : unit_alloc(class_bytes(m + by));
            ASSERT_TRUE(unit_in_chunk(next));
            unit_free(first_kept);
            unit_free(next);
            bool serves = class_bytes(m) > 2048 && class_bytes(m) <= SLAB_MAX - SLAB_MAX / 8 &&
                          by <= std::min(2u, unit_kept_count(m + by)); // fewer may fit
            void* p = unit_alloc(class_bytes(m));
            if (class_bytes(m) < SLAB_MAX) { // what is kept of longer ones goes before more memory
                EXPECT_EQ(bare(p) == bare(next), serves) << class_bytes(m);
            }
            size_t usable = unit_usable(p);
            EXPECT_EQ(usable, class_bytes(serves ? m + by : m));
            EXPECT_TRUE(unit_size_matches(usable, class_bytes(m), 1));
            if (kept == 2) unit_collect();          // the other one
            void* own = unit_alloc(class_bytes(m)); // none is kept of any of them
            EXPECT_EQ(unit_usable(own), class_bytes(m));
            unit_free(p); // it is one of its own class again
            EXPECT_EQ(bare(unit_kept_block(serves ? m + by : m)), bare(p));
            unit_free(own);
            void* first = unit_alloc(class_bytes(m)); // the class itself comes first
            EXPECT_EQ(bare(first), bare(own));        // the youngest
            EXPECT_EQ(unit_usable(first), class_bytes(m));
            unit_free(first);
            unit_collect();
            EXPECT_TRUE(unit_arena_check());
        }
        expect_no_live_blocks();
    }));
}

TEST(MediumKept, EverySizeAndAlignmentMatchesItsSizedFree) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        Blocks blocks; // looks at alignment, usable size and the size that delete may name
        for (size_t size = SMALL_MAX + 1; size <= SLAB_MAX; size += 1 + size / 50) {
            blocks.alloc(size);
            for (size_t align = 32; align <= SLAB_MAX; align *= 4) blocks.alloc_aligned(size, align);
            blocks.alloc_zeroable(size);
            if (blocks.all.size() > 200)
                while (blocks.all.size() > 20) blocks.free(blocks.all.size() / 2);
        }
        for (unsigned i = 0; i < 300; i++)
            blocks.realloc(i % blocks.all.size(), SMALL_MAX + 1 + i * 211 % (SLAB_MAX - SMALL_MAX));
        for (const Block& b : blocks.all) EXPECT_TRUE(unit_in_chunk(b.p));
        blocks.free_all();
        expect_nothing_left();
    }));
}

// Where there may be no helper nobody comes for what a thread keeps: it is little, whatever goes down and up.
TEST(MediumKept, LittleWhereNobodyComesForIt) {
    for (bool alone : {false, true})
        EXPECT_FINE(in_child([=] {
            start(alone ? "release_floor=0:sparse_max=65535" : "release=off:sparse_max=65535");
            if (alone) os_helper_forbid(true);
            std::vector<void*> all;
            for (unsigned wave = 0; wave < 5; wave++) {
                for (unsigned i = 0; i < 2000; i++) all.push_back(unit_alloc(3000));
                for (; !all.empty(); all.pop_back()) unit_free(all.back());
            }
            EXPECT_EQ(release_state == RELEASE_ALONE, alone);
            EXPECT_TRUE(unit_kept_medium_max() > size_t{1} << 18 || alone || tag_is_on());
            EXPECT_TRUE(unit_kept_medium_max() <= size_t{1} << 18 || !alone) << unit_kept_medium_max();
            EXPECT_LE(unit_kept_medium_bytes(), unit_kept_medium_max());
            unit_collect();
        }));
}

// Blocks that wait for the next of their class, and those that the thread keeps, lie all over chunks of which
// nothing else is in use: slabs get that memory before any that nobody has had.
TEST(MediumKept, ChunksOfWhichNothingIsInUseServeSlabs) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        constexpr size_t live = size_t{32} << 20;
        constexpr size_t small = 512;
        uint64_t state = 8;
        std::vector<void*> blocks;
        for (unsigned cycle = 0; cycle < 4; cycle++) { // much comes and goes: much may wait
            for (size_t bytes = 0; bytes < live;) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                size_t size = 1100 + (state >> 40) % 6000;
                blocks.push_back(unit_alloc(size));
                ASSERT_NE(blocks.back(), nullptr);
                bytes += size;
            }
            for (size_t i = 0; i < blocks.size(); i++) std::swap(blocks[i], blocks[i * 7919 % blocks.size()]);
            for (void* p : blocks) unit_free(p);
            blocks.clear();
        }
        struct unit_figures before, after;
        unit_census(&before);
        EXPECT_EQ(before.live_blocks, 0u);
        for (size_t bytes = 0; bytes < live / 4 * 3; bytes += small) blocks.push_back(unit_alloc(small));
        unit_census(&after);
        EXPECT_LE(after.committed_bytes, before.committed_bytes + live / 8);
        EXPECT_TRUE(unit_arena_check());
        for (void* p : blocks) unit_free(p);
        expect_no_live_blocks();
    }));
}

} // namespace
