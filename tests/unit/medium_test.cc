// medium_test.cc: blocks from 1 KiB on that chunks have: kept ones, which classes come from chunks, figures,
// misuse, threads that end, forks. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "arenas.h"
#include <functional>
#include <future>
#include <mutex>
#include <sys/time.h>

namespace {

unsigned medium_of(size_t size) { return class_of(size) - SMALL_CLASSES; }

void start(const char* options) {
    setenv("WEIR_OPTIONS", options, 1);
    unit_attach();
}

// ---- Kept blocks.

// A block grows into what is free behind it, and its class with it; one that has a neighbour moves.
TEST(Medium, ReallocGrowsWhereTheBlockLies) {
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

TEST(Medium, AFreedBlockIsTheNextOneOfItsClass) {
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

TEST(Medium, TheYoungestIsGivenOutFirstAndTheOldestGoesBackFirst) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        std::vector<void*> held; // so that there is room for a whole ring of each class
        for (unsigned i = 0; i < 24; i++) held.push_back(unit_alloc(65536));
        for (unsigned m = 0; m < chunk_classes(); m += 4) {
            unsigned most = unit_kept_count_max(m);
            std::vector<void*> all;
            for (unsigned i = 0; i < most + 1; i++) all.push_back(unit_alloc(class_bytes(m)));
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
TEST(Medium, TheRingHasAsManyPlacesAsMayWait) {
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

// It is a part of what the thread has of such blocks.
TEST(Medium, WhoHasMoreKeepsMore) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        unit_free(unit_alloc(4096));
        size_t least = unit_kept_medium_max();
        EXPECT_GE(least, 65536u);
        std::vector<void*> all;
        for (unsigned i = 0; i < 200; i++) all.push_back(unit_alloc(16384));
        for (unsigned i = 0; i < 8; i++, all.pop_back()) unit_free(all.back());
        EXPECT_GE(unit_kept_medium_max(), least + 192 * 16384 / 6);
        for (; !all.empty(); all.pop_back()) unit_free(all.back());
        EXPECT_LE(unit_kept_medium_max(), least + 65536 / 4); // what it keeps still counts as taken
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

// One that does so again and again keeps it, where that is allowed: no lock is taken for each block.
TEST(Medium, WhoGivesAllBackAgainAndAgainKeepsIt) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        take_and_give_back(3);
        EXPECT_LT(unit_kept_medium_max(), 300000u);
        take_and_give_back(10);
        EXPECT_EQ(unit_kept_medium_max(), core_options.thread_kept_max);
        uint64_t before = unit_slow_calls();
        take_and_give_back(10);
        uint64_t slow = unit_slow_calls() - before;
        EXPECT_TRUE(slow < 10u * 40 || tag_is_on()) << slow;
        EXPECT_TRUE(unit_arena_check());
        expect_nothing_left();
    }));
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535:thread_kept_max=64k");
        take_and_give_back(20);
        EXPECT_EQ(unit_kept_medium_max(), 65536u);
    }));
}

// A few blocks that come and go, or a part of what is there, are no reason.
TEST(Medium, WhoGivesAPartBackKeepsAPart) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        std::vector<void*> held;
        for (unsigned i = 0; i < 60; i++) held.push_back(unit_alloc(3000));
        take_and_give_back(20);
        EXPECT_LT(unit_kept_medium_max(), 500000u);
        for (void* p : held) unit_free(p);
    }));
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        for (unsigned round = 0; round < 200; round++) {
            std::vector<void*> all;
            for (unsigned i = 0; i < 3; i++) all.push_back(unit_alloc(10000));
            for (unsigned i = 0; i < 17; i++) all.push_back(unit_alloc(2500)); // a ring has place for 16
            for (void* p : all) unit_free(p);
        }
        EXPECT_LT(unit_kept_medium_max(), 131072u);
    }));
}

// Nor is it so for good.
TEST(Medium, WhoGaveAllBackOnceKeepsAPartAgain) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535:thread_kept_max=64m");
        take_and_give_back(13);
        EXPECT_EQ(unit_kept_medium_max(), 64u << 20);
        uint64_t before = unit_slow_calls();
        std::vector<void*> all;
        while (unit_slow_calls() < before + 5 * 1024) all.push_back(unit_alloc(3000));
        for (unsigned i = 0; i < 40; i++, all.pop_back()) unit_free(all.back());
        EXPECT_LT(unit_kept_medium_max(), 10u << 20);
        for (void* p : all) unit_free(p);
        expect_nothing_left();
    }));
    // A few blocks that miss their ring and overflow it are no ebb of all that is kept.
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        if (tag_is_on()) return; // what is kept goes by way of the arena
        take_and_give_back(13);
        EXPECT_EQ(unit_kept_medium_max(), core_options.thread_kept_max);
        uint64_t before = unit_slow_calls();
        while (unit_slow_calls() < before + 8 * 1024) {
            std::vector<void*> all;
            for (unsigned i = 0; i < 60; i++) all.push_back(unit_alloc(2500));
            for (void* p : all) unit_free(p);
        }
        EXPECT_LT(unit_kept_medium_max(), core_options.thread_kept_max);
        EXPECT_TRUE(unit_arena_check());
    }));
    // malloc_trim forgets it at once.
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        take_and_give_back(13);
        EXPECT_EQ(unit_kept_medium_max(), core_options.thread_kept_max);
        unit_collect();
        take_and_give_back(1);
        EXPECT_LT(unit_kept_medium_max(), 300000u);
    }));
}

// What sleeping threads keep pins chunks: where they are many each keeps less.
TEST(Medium, ManyHeapsKeepLessEach) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        auto kept_max = [] {
            std::vector<void*> all;
            for (unsigned i = 0; i < 700; i++) all.push_back(unit_alloc(16384));
            for (unsigned i = 0; i < 20; i++, all.pop_back()) unit_free(all.back()); // more than a ring has
            size_t most = unit_kept_medium_max();
            for (void* p : all) unit_free(p);
            return most;
        };
        EXPECT_EQ(kept_max(), core_options.thread_kept_max);
        std::promise<void> enough;
        std::shared_future<void> over = enough.get_future().share();
        std::vector<std::thread> others;
        std::atomic<unsigned> ready{0};
        auto more_until = [&](unsigned count) {
            while (others.size() < count)
                others.emplace_back([&] {
                    unit_free(unit_alloc(100));
                    ready++;
                    over.wait();
                    unit_detach();
                });
            while (ready != count) sched_yield();
        };
        more_until(7); // and this one
        EXPECT_EQ(kept_max(), core_options.thread_kept_max);
        more_until(8);
        EXPECT_EQ(kept_max(), 524288u);
        take_and_give_back(20);
        EXPECT_LT(unit_kept_medium_max(), 300000u);
        core_options.thread_kept_max = 262144;
        EXPECT_EQ(kept_max(), 262144u);
        enough.set_value();
        for (std::thread& t : others) t.join();
        expect_nothing_left();
    }));
}

// What the thread keeps of other classes goes before the arena takes pages that have no memory.
TEST(Medium, WhatIsKeptGoesBeforeMoreMemory) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        if (tag_is_on()) return; // a block gets its tag in the arena
        std::vector<void*> all;
        for (unsigned i = 0; i < 800; i++) all.push_back(unit_alloc(3000 + i % 40 * 700));
        for (unsigned i = 0; i < 60; i++) unit_free(all[i]), all[i] = nullptr;
        ASSERT_GT(unit_kept_medium_bytes(), 65536u);
        void* larger = unit_alloc(65536);
        EXPECT_EQ(unit_kept_medium_bytes(), 0u);
        EXPECT_TRUE(unit_arena_check());
        unit_free(larger);
        for (void* p : all) unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Medium, KeptBlocksStayWithinTheBound) {
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

TEST(Medium, AKeptBlockServesAlignmentsThatItHas) {
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

TEST(Medium, ABlockOfTheNextClassServesWhereNoneIsKept) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        for (unsigned m = 0; m + 1 < chunk_classes(); m++) {
            bool serves = class_bytes(m) > 2048 && class_bytes(m) < SLAB_MAX;
            void* next = unit_alloc(class_bytes(m + 1));
            ASSERT_TRUE(unit_in_chunk(next));
            unit_free(next);
            void* p = unit_alloc(class_bytes(m));
            if (class_bytes(m) < SLAB_MAX) { // what is kept of longer ones goes before more memory
                EXPECT_EQ(bare(p) == bare(next), serves) << class_bytes(m);
            }
            size_t usable = unit_usable(p);
            EXPECT_EQ(usable, class_bytes(serves ? m + 1 : m));
            EXPECT_TRUE(unit_size_matches(usable, class_bytes(m), 1));
            void* own = unit_alloc(class_bytes(m)); // none is kept of either
            EXPECT_EQ(unit_usable(own), class_bytes(m));
            unit_free(p); // it is one of its own class again
            EXPECT_EQ(bare(unit_kept_block(serves ? m + 1 : m)), bare(p));
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

TEST(Medium, EverySizeAndAlignmentMatchesItsSizedFree) {
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

// ---- Chunks or slabs.

TEST(Medium, AClassWithManyBlocksGetsSlabs) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=5");
        std::vector<void*> all;
        for (unsigned i = 0; i < 8; i++) {
            all.push_back(unit_alloc(1500));
            EXPECT_EQ(unit_in_chunk(all[i]), i < 5) << i;
        }
        void* other = unit_alloc(5000);
        EXPECT_TRUE(unit_in_chunk(other)); // each class by itself
        unit_free(other);
        for (void* p : all) unit_free(p);
        void* kept = unit_alloc(1500);
        EXPECT_EQ(bare(kept), bare(all[4])); // kept, whatever the class is
        all[4] = kept;
        while (unit_kept_count(medium_of(1500)) != 0) all.push_back(unit_alloc(1500));
        void* p = unit_alloc(1500);
        EXPECT_FALSE(unit_in_chunk(p)); // it has a slab
        for (; all.size() > 8; all.pop_back()) unit_free(all.back());
        unit_free(p);
        unit_free(all[4]);
        unit_collect(); // and now none
        unit_free(unit_alloc(1500));
        EXPECT_TRUE(unit_in_chunk(p = unit_alloc(1500)));
        unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Medium, BlocksOfHalfAPageAndMoreStayInChunks) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=5");
        Blocks blocks;
        for (unsigned i = 0; i < 100; i++) blocks.alloc(i % 2 == 0 ? 2048 : 2049);
        for (const Block& b : blocks.all)
            EXPECT_EQ(unit_in_chunk(b.p), b.size > 2048 || &b - blocks.all.data() < 10);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// Blocks that others free count until they have aged.
TEST(Medium, AClassReturnsToChunks) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=5");
        void* all[8];
        for (void*& p : all) p = unit_alloc(1500);
        std::thread([&] {
            for (void* p : all) unit_free(p);
            unit_detach();
        }).join();
        unit_collect();
        void* p = unit_alloc(1500);
        EXPECT_FALSE(unit_in_chunk(p));
        unit_free(p);
        // Blocks of small classes, a refill every now and then.
        std::vector<void*> small;
        struct unit_figures before, now;
        unit_census(&before);
        do {
            for (unsigned i = 0; i < 1000; i++) small.push_back(unit_alloc(1000));
            for (void* q : small) unit_free(q);
            small.clear();
            unit_census(&now);
        } while (now.slow_calls < before.slow_calls + 3 * 1024);
        p = unit_alloc(1500);
        EXPECT_TRUE(unit_in_chunk(p));
        unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Medium, SparseMaxOfZeroMeansSlabs) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=0");
        Blocks blocks;
        for (unsigned m = 0; m < chunk_classes(); m++) blocks.alloc(class_bytes(m));
        for (const Block& b : blocks.all) EXPECT_FALSE(unit_in_chunk(b.p));
        EXPECT_EQ(used_blocks(), 0u);
        blocks.free_all();
        EXPECT_EQ(unit_kept_medium_bytes(), 0u);
        expect_nothing_left();
    }));
}

TEST(Medium, FullChecksMeanSlabs) {
    EXPECT_FINE(in_child([] {
        start("release=off:checks=full");
        void* p = unit_alloc(3000);
        EXPECT_FALSE(unit_in_chunk(p));
        unit_free(p);
        EXPECT_EQ(unit_kept_block(medium_of(3000)), nullptr);
        expect_nothing_left();
    }));
}

// Chores of the slow path (here: sending home what others own) come whatever the order of its calls.
TEST(Medium, ChoresAreDoneAlsoWhereEverySecondSlowCallIsForAMediumBlock) {
    EXPECT_FINE(in_child([] {
        start("release=off:thread_kept_max=0");
        void* theirs[3];
        std::atomic<bool> ready{false}, done{false};
        std::thread owner([&] {
            for (void*& p : theirs) p = unit_alloc(500);
            ready = true;
            while (!done) usleep(100);
            unit_detach();
        });
        while (!ready) usleep(100);
        struct slice* slab = unit_slice(theirs[0]);
        if (!tag_is_on()) unit_free(theirs[2]); // goes alone, the others by way of an outbox
        for (bool odd : {false, true}) {
            unit_free(theirs[odd ? 1 : 0]);
            if (odd) unit_free(unit_alloc(2000));
            uint64_t sent = unit_remote_count(slab);
            for (unsigned i = 0; i < 32; i++) {
                unit_free(unit_alloc(2000));
                struct unit_figures before, after;
                unit_census(&before);
                do (void)unit_alloc(1024); // until one is a slow call
                while (unit_census(&after), after.slow_calls == before.slow_calls);
            }
            EXPECT_EQ(unit_remote_count(slab), sent + 1) << odd;
        }
        done = true;
        owner.join();
    }));
}

// ---- Misuse.

// What `misuse` of a live block of 3000 bytes says; the heap is sound afterwards.
void expect_report(const char* text, size_t offset, const std::function<void(char*)>& misuse) {
    static char* block; // the same place in parent and child: the child prints where it was
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    Ended ended = in_child([&] {
        start("release=off:on_error=report");
        std::vector<void*> others;
        for (size_t size : {2000u, 5000u, 9000u}) others.push_back(unit_alloc(size));
        block = static_cast<char*>(unit_alloc(3000));
        others.push_back(unit_alloc(4000));
        uintptr_t at = reinterpret_cast<uintptr_t>(block) + offset;
        EXPECT_EQ(write(ends[1], &at, sizeof at), static_cast<ssize_t>(sizeof at));
        misuse(block);
        EXPECT_TRUE(unit_arena_check());
        Blocks blocks;
        for (unsigned i = 0; i < 200; i++) blocks.alloc(1100 + i * 97);
        blocks.free_all();
        for (void* p : others) unit_free(p);
        EXPECT_TRUE(unit_arena_check());
    });
    uintptr_t at = 0;
    EXPECT_EQ(read(ends[0], &at, sizeof at), static_cast<ssize_t>(sizeof at));
    close(ends[0]);
    close(ends[1]);
    char expected[160];
    at = reinterpret_cast<uintptr_t>(tag_clear(reinterpret_cast<void*>(at)));
    snprintf(expected, sizeof expected, text, static_cast<size_t>(at));
    EXPECT_TRUE(ended.fine()) << ended.status;
    EXPECT_EQ(ended.printed, expected);
}

#define TWICE(call) "weir: double-free: already freed 0x%zx in " call "; see docs/errors/double-free.md\n"
#define INTERIOR(call)                                                                                       \
    "weir: invalid-free: not the start of a block 0x%zx in " call "; see docs/errors/invalid-free.md\n"

TEST(Medium, AKeptBlockFreedAgainIsReported) {
    expect_report(TWICE("free"), 0, [](char* p) {
        unit_free(p);
        unit_free(p);
        EXPECT_EQ(bare(unit_alloc(3000)), bare(static_cast<void*>(p))); // and it is kept once
        EXPECT_NE(bare(unit_alloc(3000)), bare(static_cast<void*>(p)));
    });
}
TEST(Medium, EachOfSeveralKeptBlocksFreedAgainIsReported) {
    for (unsigned twice = 0; twice < 3; twice++)
        expect_report(TWICE("free"), 0, [=](char* p) {
            void* all[] = {p, unit_alloc(3000), unit_alloc(3000)};
            std::swap(all[0], all[twice]);
            for (void* q : all) unit_free(q);
            unit_free(p);
        });
}
TEST(Medium, ABlockInAFreeRunFreedAgainIsReported) {
    expect_report(TWICE("free"), 0, [](char* p) {
        core_options.thread_kept_max = 0;
        unit_free(p);
        unit_free(p);
    });
}
TEST(Medium, ABlockThatAnotherThreadFreedIsReported) {
    expect_report(TWICE("free"), 0, [](char* p) {
        std::atomic<int> step{0};
        std::thread other([&] {
            unit_attach();
            unit_free(p); // it keeps it
            step = 1;
            while (step != 2) usleep(100);
            unit_detach();
        });
        while (step != 1) usleep(100);
        unit_free(p);
        step = 2;
        other.join();
    });
}
TEST(Medium, ABlockThatAThreadFreedAndEndedIsReported) {
    expect_report(TWICE("free"), 0, [](char* p) {
        std::thread([&] {
            unit_free(p);
            unit_detach();
        }).join();
        unit_free(p);
    });
}
TEST(Medium, UsableSizeOfAFreeBlockIsReported) {
    expect_report(TWICE("malloc_usable_size"), 0, [](char* p) {
        unit_free(p);
        EXPECT_EQ(unit_usable(p), 0u);
    });
}
TEST(Medium, ReallocOfAFreeBlockIsReported) {
    expect_report(TWICE("realloc"), 0, [](char* p) {
        core_options.thread_kept_max = 0;
        unit_free(p);
        EXPECT_EQ(unit_realloc(p, 4000), nullptr);
    });
}
TEST(Medium, PointersIntoABlockAreReported) {
    for (size_t offset : {1u, 16u, 128u, 1024u, 2944u, 3071u}) {
        expect_report(INTERIOR("free"), offset, [=](char* p) {
            unit_free(p + offset);
            unit_free(p);
        });
        expect_report(INTERIOR("realloc"), offset, [=](char* p) {
            EXPECT_EQ(unit_realloc(p + offset, 100), nullptr);
            EXPECT_EQ(unit_usable(p), 3072u);
        });
        expect_report(INTERIOR("malloc_usable_size"), offset,
                      [=](char* p) { EXPECT_EQ(unit_usable(p + offset), 0u); });
    }
}
TEST(Medium, PointersIntoABlockAreReportedWhereOneOfTheClassIsKept) {
    for (size_t offset : {1u, 16u, 127u, 128u, 1024u, 2944u})
        expect_report(INTERIOR("free"), offset, [=](char* p) {
            unit_free(unit_alloc(3000));
            unit_free(p + offset);
            EXPECT_NE(bare(unit_kept_block(medium_of(3000))), bare(static_cast<void*>(p + offset)));
            EXPECT_EQ(unit_usable(p), 3072u);
        });
}
// The record of each slice of a chunk says where its blocks are.
TEST(Medium, BlocksOfEachSliceAreKept) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        std::vector<char*> all;
        for (size_t bytes = 0; bytes < UNIT_CHUNK_BYTES / 2; bytes += 3072)
            all.push_back(static_cast<char*>(unit_alloc(3000)));
        unit_free(unit_alloc(3000)); // the first one goes the slow way
        for (char*& p : all) {
            unit_free(p);
            EXPECT_EQ(bare(unit_kept_block(medium_of(3000))), bare(static_cast<void*>(p)));
            auto* again = static_cast<char*>(unit_alloc(3000));
            EXPECT_EQ(bare(again), bare(p));
            p = again; // where memory is tagged, with another tag
        }
        EXPECT_NE(unit_slice(all.front()), nullptr);
        EXPECT_EQ(unit_slice(all.front()), unit_slice(all.back()));
        for (char* p : all) unit_free(p);
        expect_nothing_left();
    }));
}
TEST(Medium, PointersIntoAFreeRunAreReported) {
    for (size_t offset : {0u, 16u, 128u, 1024u, 3000u})
        expect_report(TWICE("free"), offset, [=](char* p) {
            core_options.thread_kept_max = 0;
            unit_free(p);
            unit_free(p + offset);
        });
}

// ---- Threads.

TEST(Medium, AThreadThatEndsGivesBackWhatItKept) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        void* mine = unit_alloc(3000);
        std::thread([] {
            for (unsigned m = 0; m < chunk_classes(); m++) unit_free(unit_alloc(class_bytes(m)));
            EXPECT_GT(unit_kept_medium_bytes(), 0u);
            unit_detach();
        }).join();
        EXPECT_EQ(used_blocks(), 1u);
        struct unit_figures f;
        unit_census(&f);
        EXPECT_EQ(f.live_blocks, 1u);
        EXPECT_EQ(f.cached_bytes, 0u);
        std::thread([] { // whoever has the ended thread's record now
            unit_attach();
            for (unsigned m = 0; m < UNIT_MEDIUM_CLASSES; m++) EXPECT_EQ(unit_kept_block(m), nullptr);
            EXPECT_EQ(unit_kept_medium_bytes(), 0u);
            unit_detach();
        })
            .join();
        unit_free(mine);
        expect_nothing_left();
    }));
}

TEST(Medium, NobodyElseFindsAKeptBlock) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        std::atomic<int> step{0};
        void* kept = nullptr;
        std::thread other([&] {
            kept = unit_alloc(3000);
            unit_free(kept);
            step = 1;
            while (step != 2) usleep(100);
            void* again = unit_alloc(3000);
            EXPECT_EQ(bare(again), bare(kept));
            unit_free(again);
            unit_detach();
        });
        while (step != 1) usleep(100);
        Blocks blocks;
        for (unsigned i = 0; i < 100; i++) blocks.alloc(2900 + i);
        for (const Block& b : blocks.all) EXPECT_NE(bare(static_cast<void*>(b.p)), bare(kept));
        unit_collect();
        EXPECT_TRUE(unit_in_chunk(kept));
        step = 2;
        other.join();
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Medium, AThreadWithoutAHeapFrees) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        void* p = unit_alloc(3000);
        std::thread([&] { unit_free(p); }).join();
        EXPECT_EQ(used_blocks(), 0u);
        expect_nothing_left();
    }));
}

struct Handed {
    std::mutex mutex;
    Block block = {nullptr, 0, 0, 0};
};

TEST(Medium, ThreadsFreeEachOthersBlocks) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":sparse_max=8");
        unit_attach();
        static Handed handed[64];
        std::atomic<unsigned> bad{0};
        {
            Purger purger;
            std::vector<std::thread> all;
            for (unsigned t = 0; t < 4; t++)
                all.emplace_back([&, t] {
                    Random random(t + 1);
                    struct unit_figures f;
                    for (unsigned i = 0; i < unit_rounds(20000); i++) {
                        size_t size = SMALL_MAX / 2 + random.below(size_t{1} << (11 + random.below(6)));
                        Block b = {static_cast<unsigned char*>(unit_alloc(size)), size, size,
                                   static_cast<unsigned char>(random.next())};
                        if (b.p == nullptr) bad++;
                        block_fill(b);
                        Handed& slot = handed[random.below(64)];
                        slot.mutex.lock();
                        std::swap(slot.block, b);
                        slot.mutex.unlock();
                        if (b.p == nullptr) continue;
                        if (!block_intact(b, b.usable)) bad++;
                        unit_free(b.p);
                        if (i % 1024 == 0 && t == 0) unit_census(&f);
                        if (i % 4096 == 0) unit_detach();
                    }
                    unit_detach();
                });
            for (std::thread& t : all) t.join();
        }
        EXPECT_EQ(bad.load(), 0u);
        EXPECT_GE(unit_check_slabs(), 0);
        for (Handed& h : handed) unit_free(h.block.p);
        expect_nothing_left();
    }));
}

// ---- Forks.

// The child has what other threads kept, free.
TEST(Medium, AForksChildHasWhatOthersKept) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        std::atomic<int> step{0};
        std::thread other([&] {
            for (size_t size : {2000u, 9000u, 30000u}) unit_free(unit_alloc(size));
            step = 1;
            while (step != 2) usleep(100);
            unit_detach();
        });
        while (step != 1) usleep(100);
        Blocks mine;
        mine.alloc(3000);
        unit_free(unit_alloc(5000));
        EXPECT_EQ(used_blocks(), 5u);
        int status = forked([&] {
            EXPECT_EQ(used_blocks(), 2u);
            struct unit_figures f;
            unit_census(&f);
            EXPECT_EQ(f.live_blocks, 1u);
            mine.free_all();
            expect_nothing_left();
        });
        EXPECT_EQ(status, 0);
        step = 2;
        other.join();
        mine.free_all();
        expect_nothing_left();
    }));
}

// A timer's handler forks wherever it finds the thread; parent and child go on with the call. Another thread
// keeps blocks in the same chunks.
// Absent: sanitizers do not bear it, and an emulator that forks among threads may end by its own assertions
TEST_NATIVE(Medium, AHandlerForksAndTheChildGoesOn) {
    static volatile sig_atomic_t forks, is_child;
    static volatile pid_t last_child;
    EXPECT_FINE(in_child([] {
        start("release=off");
        std::atomic<int> step{0};
        sigset_t set, before;
        sigemptyset(&set);
        sigaddset(&set, SIGALRM);
        pthread_sigmask(SIG_BLOCK, &set, &before);
        std::thread other([&] {
            for (size_t size = 1100; size < 20000; size += size / 8) unit_free(unit_alloc(size));
            step = 1;
            while (step != 2) usleep(100);
            unit_detach();
        });
        while (step != 1) usleep(100);
        core_options.thread_kept_max = 0; // each of this thread's calls goes to the chunks
        signal(SIGALRM, [](int) {
            unit_fork_prepare();
            pid_t pid = fork();
            if (pid == 0) {
                unit_fork_child();
                is_child = 1;
            } else {
                unit_fork_parent();
                last_child = pid;
            }
            forks = forks + 1;
        });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        Random random(11);
        Blocks blocks;
        blocks.all.reserve(64); // libc's malloc, which its fork would wait for, has nothing to do
        auto once = [&] {
            if (blocks.all.size() < 40 && random.below(2) == 0)
                blocks.alloc(SMALL_MAX + 1 + random.below(9000));
            else if (!blocks.all.empty())
                blocks.free(random.below(blocks.all.size()));
        };
        for (unsigned i = 0; i < unit_rounds(300) && !is_child; i++) {
            int had = forks;
            struct itimerval timer = {{0, 0}, {0, static_cast<long>(20 + random.below(400))}};
            setitimer(ITIMER_REAL, &timer, nullptr);
            while (forks == had) once();
            if (is_child) break;
            int status = -1;
            waitpid(last_child, &status, 0);
            ASSERT_EQ(status, 0) << i;
        }
        if (is_child) {
            signal(SIGALRM, SIG_DFL);
            alarm(60);
            for (unsigned i = 0; i < 300; i++) once();
            EXPECT_TRUE(unit_arena_check());
            blocks.free_all();
            EXPECT_TRUE(unit_arena_check());
            fflush(stdout);
            _exit(::testing::Test::HasFailure() ? 1 : 0);
        }
        EXPECT_EQ(forks, static_cast<int>(unit_rounds(300)));
        step = 2;
        other.join();
        blocks.free_all();
        expect_nothing_left();
    }));
}

} // namespace
