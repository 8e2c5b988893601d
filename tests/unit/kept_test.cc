// kept_test.cc: the medium blocks that a thread keeps go back by visitors while it sleeps, and are its own
// while it works. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "arenas.h"
#include <mutex>
#include <set>

namespace {

// What a thread keeps afterwards: a block of each class that there is room for.
void keep_some() {
    for (size_t size = 1100; size <= 4000; size += size / 8) unit_free(unit_alloc(size));
}

void start() {
    windows_are_endless();
    unit_attach();
}

TEST(Kept, ItGoesWhileTheThreadSleeps) {
    EXPECT_FINE(in_child([] {
        start();
        Owner owner;
        size_t bytes = 0;
        for (unsigned round = 0; round < 3; round++) {
            owner.does([&] {
                keep_some();
                bytes = unit_kept_medium_bytes();
                EXPECT_GT(bytes, 10000u);
            });
            uint64_t blocks = used_blocks();
            EXPECT_GT(blocks, 4u);
            unit_visit(false);
            EXPECT_EQ(used_blocks(), blocks); // it may be at work
            unit_visit(false);
            EXPECT_EQ(used_blocks(), 0u);
            EXPECT_TRUE(unit_arena_check());
            owner.does([&] {
                EXPECT_EQ(unit_kept_medium_bytes(), 0u);
                keep_some();
                EXPECT_EQ(unit_kept_medium_bytes(), bytes);
                EXPECT_EQ(unit_medium_out_bytes(), bytes);
            });
            unit_visit(true); // at once
            EXPECT_EQ(used_blocks(), 0u);
        }
        unit_visit(true); // and nothing more
        owner.does([] { EXPECT_EQ(unit_kept_medium_bytes(), 0u); });
        expect_nothing_left();
    }));
}

// Also what a thread kept that had no room for more.
TEST(Kept, ItGoesWhereThereWasNoRoomForMore) {
    EXPECT_FINE(in_child([] {
        start();
        core_options.thread_kept_max = 65536;
        Owner owner;
        owner.does([] {
            std::vector<void*> all;
            for (unsigned i = 0; i < 60; i++) all.push_back(unit_alloc(i % 2 == 0 ? 3000 : 5000));
            for (void* p : all) unit_free(p);
            EXPECT_GT(unit_kept_medium_bytes(), 65536u / 2);
            EXPECT_LE(unit_kept_medium_bytes(), 65536u);
        });
        unit_visit(true);
        EXPECT_EQ(used_blocks(), 0u);
        expect_nothing_left();
    }));
}

// Also from a ring whose places have gone round, wherever they begin.
TEST(Kept, ItGoesWhereverInItsRingItIs) {
    EXPECT_FINE(in_child([] {
        start();
        const unsigned m = class_of(3000) - SMALL_CLASSES;
        Owner owner;
        bool gone_round = false;
        for (unsigned round = 0; round < 12; round++) {
            owner.does([&] {
                std::vector<void*> all;
                for (unsigned i = 0; i < 200; i++) all.push_back(unit_alloc(3000));
                for (unsigned i = 0; i < 40 + 7 * round; i++) {
                    unit_free(all.back());
                    all.pop_back();
                    gone_round |= unit_kept_is_round(m);
                }
                EXPECT_GT(unit_kept_count(m), 2u);
                while (unit_kept_count(m) > 2) all.push_back(unit_alloc(3000));
                EXPECT_EQ(std::set<void*>(all.begin(), all.end()).size(), all.size());
                for (void* p : all) unit_free(p);
            });
            unit_visit(true);
            EXPECT_EQ(used_blocks(), 0u);
            EXPECT_TRUE(unit_arena_check());
        }
        EXPECT_TRUE(gone_round);
        expect_nothing_left();
    }));
}

TEST(Kept, PlacesGoRound) {
    for (uint64_t ring : {uint64_t{512}, uint64_t{49} * 512, uint64_t{0xffffff00}})
        for (unsigned from = 0; from < 32; from++)
            for (int more = -31; more < 32; more++)
                ASSERT_EQ(unit_kept_place_plus(ring + from * 8, more),
                          ring + (from + static_cast<unsigned>(more)) % 32 * 8);
}

// What a thread freed of another one's slab, and collects in an outbox, goes there.
TEST(Kept, WhatWaitsInOutboxesGoesWhileTheThreadSleeps) {
    EXPECT_FINE(in_child([] {
        start();
        const unsigned each = size_classes[class_of(256)].capacity;
        std::vector<void*> all;
        for (unsigned i = 0; i <= each; i++) all.push_back(unit_alloc(256));
        const struct slice* s = unit_slice(all[0]);
        ASSERT_TRUE(unit_is_unowned(s));
        const auto came = [&] { return each - unit_used(s) + unit_remote_count(s); };
        Owner owner;
        unsigned freed = 0;
        const auto frees = [&](unsigned count) {
            owner.does([&, count] {
                for (unsigned i = 0; i < count; i++) unit_free(all[freed++]);
            });
        };
        for (unsigned round = 0; round < 3; round++) {
            const uint64_t before = came();
            frees(5);
            EXPECT_LE(came(), before + 1);
            unit_visit(false);
            EXPECT_LE(came(), before + 1); // it may be at work
            frees(1);
            unit_visit(false); // and was
            EXPECT_LE(came(), before + 1);
            unit_visit(false);
            EXPECT_EQ(came(), freed);
            frees(4);
            EXPECT_LT(came(), freed);
            unit_visit(true); // at once
            EXPECT_EQ(came(), freed);
        }
        EXPECT_GE(unit_check_slabs(), 0);
        for (; freed < all.size(); freed++) unit_free(all[freed]);
        expect_nothing_left();
    }));
}

// With what is sent all blocks of a slab are back, and its owner has its heap's lock for long, as in a
// handler that waits for a thread which begins: nobody waits for that with the heaps' lock, without which
// none begins.
TEST(Kept, WhatWaitsInOutboxesWaitsForNoHeap) {
    EXPECT_FINE(in_child([] {
        start();
        std::vector<void*> all;
        struct slice* s = nullptr;
        while (s == nullptr || unit_slice(all.back()) == s) {
            all.push_back(unit_alloc(256));
            s = unit_slice(all[0]);
        }
        unit_free(all[0]); // adopted
        ASSERT_TRUE(unit_is_mine(s));
        Owner sender;
        sender.does([&] {
            for (unsigned i = 1; i < 5; i++) unit_free(all[i]);
        });
        for (size_t i = 5; unit_slice(all[i]) == s; i++) unit_free(all[i]);
        const uint32_t waits =
            unit_used(s); // the first one went alone, where memory has no tags, and was taken in
        ASSERT_GE(waits, 3u);
        ASSERT_EQ(unit_remote_count(s), 0u);
        os_lock_take(unit_heap_lock());
        std::thread visitor([] { unit_visit(true); });
        bool begins = false;
        for (unsigned i = 0; i < 200 && !begins; i++) {
            usleep(10000);
            if (unit_remote_count(s) != waits) continue;
            begins = os_lock_try(unit_heaps_lock());
        }
        EXPECT_TRUE(begins);
        if (begins) os_lock_give(unit_heaps_lock());
        os_lock_give(unit_heap_lock());
        visitor.join();
        unit_visit(true);
        EXPECT_FALSE(unit_is_mine(s)); // it went
        unit_free(all.back());
        expect_nothing_left();
    }));
}

// In a fork's child the call that was changing the lists of orphans went on, and has ended. A visitor that
// sends what makes a slab an orphan finds them whole.
TEST(Kept, WhatWaitsInOutboxesLeavesOrphansListed) {
    EXPECT_FINE(in_child([] {
        start();
        const size_class& k = size_classes[class_of(64)];
        const unsigned each = k.capacity;
        const unsigned enough = class_enough(&k); // of a page's blocks a part, so that no visitor sorts them
        std::vector<void*> all;
        for (unsigned i = 0; i <= 2 * each; i++) all.push_back(unit_alloc(64));
        std::thread([&] {
            for (unsigned i = 0; i < enough; i++) unit_free(all[i]);
        }).join();
        const struct slice* listed = unit_slice(all[0]);
        ASSERT_TRUE(unit_is_orphan(listed));
        Owner sender;
        sender.does([&] {
            for (unsigned i = 0; i < 5; i++) unit_free(all[each + i]);
        });
        std::thread([&] {
            for (unsigned i = 5; i < enough; i++) unit_free(all[each + i]);
        }).join();
        const struct slice* other = unit_slice(all[each]);
        ASSERT_FALSE(unit_is_orphan(other));
        unit_orphans_interrupted();
        unit_visit(true);
        EXPECT_TRUE(unit_is_orphan(other));
        EXPECT_TRUE(unit_is_orphan(listed));
        for (unsigned i = 0; i < all.size(); i++)
            if (i % each >= enough || i >= 2 * each) unit_free(all[i]);
        expect_nothing_left();
    }));
}

// Freeing a block, or taking one, is a use.
TEST(Kept, ItStaysWhileTheThreadWorks) {
    EXPECT_FINE(in_child([] {
        start();
        Owner owner;
        owner.does([] { keep_some(); });
        uint64_t blocks = used_blocks();
        for (unsigned round = 0; round < 10; round++) {
            unit_visit(false);
            owner.does([] {
                void* kept = unit_kept_block(class_of(1100) - SMALL_CLASSES);
                void* p = unit_alloc(1100);
                EXPECT_EQ(bare(p), bare(kept)); // also the first one after the visit
                unit_free(p);
            });
            EXPECT_EQ(used_blocks(), blocks);
        }
        unit_visit(false);
        owner.does([] { unit_free(unit_alloc(5000)); }); // another class
        unit_visit(false);
        EXPECT_EQ(used_blocks(), blocks + 1);
        unit_visit(false);
        EXPECT_EQ(used_blocks(), 0u);
        expect_nothing_left();
    }));
}

TEST(Kept, TheVisitorsOwnStays) {
    EXPECT_FINE(in_child([] {
        start();
        keep_some();
        uint64_t blocks = used_blocks();
        for (unsigned i = 0; i < 4; i++) unit_visit(i % 2 == 0);
        EXPECT_EQ(used_blocks(), blocks);
        expect_nothing_left();
    }));
}

// Stopped in the middle of a call, by a signal handler that sleeps, say.
TEST(Kept, ItStaysWhereTheThreadIsInTheMiddleOfACall) {
    EXPECT_FINE(in_child([] {
        start();
        Owner owner;
        owner.does([] {
            keep_some();
            unit_kept_enter();
        });
        uint64_t blocks = used_blocks();
        for (unsigned i = 0; i < 4; i++) unit_visit(i % 2 == 0);
        EXPECT_EQ(used_blocks(), blocks);
        owner.does([] { keep_some(); }); // a handler that ends while the call goes on
        for (unsigned i = 0; i < 4; i++) unit_visit(i % 2 == 0);
        EXPECT_EQ(used_blocks(), blocks);
        owner.does([] { unit_kept_leave(); });
        unit_visit(false);
        EXPECT_EQ(used_blocks(), 0u);
        expect_nothing_left();
    }));
}

// Without the kernel's barrier nobody knows what a thread is doing.
TEST(Kept, ItStaysWhereTheKernelRefuses) {
    for (bool at_once : {true, false})
        EXPECT_FINE(in_child([=] {
            start();
            Owner owner;
            owner.does([] { keep_some(); });
            uint64_t blocks = used_blocks();
            if (!at_once) unit_visit(false);
            os_fault_hook = [](enum os_call call) { return call == OS_OTHER; };
            if (!at_once) { // what was asked for before is
                unit_visit(false);
                EXPECT_EQ(used_blocks(), 0u);
                owner.does([] { keep_some(); });
            }
            for (unsigned i = 0; i < 4; i++) unit_visit(i % 2 == 0);
            EXPECT_EQ(used_blocks(), blocks);
            owner.does([=] {
                void* kept = unit_kept_block(class_of(1100) - SMALL_CLASSES);
                void* p = unit_alloc(1100);
                EXPECT_EQ(bare(p), bare(kept));
                unit_free(p);
            });
            os_fault_hook = nullptr;
            for (unsigned i = 0; i < 2; i++) unit_visit(false);
            EXPECT_EQ(used_blocks(), blocks); // a refusal is not asked for again
        }));
}

// A helper is to come, also where a thread needs nothing but what it keeps.
TEST(Kept, ItIsToldThatSomethingIsKept) {
    EXPECT_FINE(in_child([] {
        start();
        unit_collect();
        void* p = unit_alloc(3000);
        EXPECT_EQ(unit_release_owed(), 0u); // nothing is
        unit_free(p);
        EXPECT_GE(unit_release_owed(), 65536u);
        Owner owner;
        for (unsigned i = 0; i < 3; i++) {
            unit_visit(true);
            EXPECT_EQ(unit_release_owed(), 0u);
            owner.does([] { keep_some(); });
            EXPECT_GE(unit_release_owed(), 65536u);
        }
    }));
}

// A heap whose lock somebody has is passed by, and somebody comes again.
TEST(Kept, WhatCouldNotBeTakenIsOwed) {
    EXPECT_FINE(in_child([] {
        start();
        unit_collect();
        Owner owner;
        struct os_lock* lock = nullptr;
        owner.does([&] {
            keep_some();
            lock = unit_heap_lock();
        });
        os_lock_take(lock);
        std::thread([] { unit_visit(true); }).join();
        EXPECT_GT(used_blocks(), 4u);
        EXPECT_GE(unit_release_owed(), 65536u);
        os_lock_give(lock);
        unit_visit(true);
        EXPECT_EQ(used_blocks(), 0u);
        EXPECT_EQ(unit_release_owed(), 0u);
    }));
}

// Owners at work, each by itself, and visitors all the time.
TEST(Kept, OwnersAndVisitorsAtTheSameTime) {
    EXPECT_FINE(in_child([] {
        start();
        std::atomic<unsigned> done{0};
        enum { OWNERS = 3 };
        std::vector<std::thread> all;
        for (unsigned t = 0; t < OWNERS; t++)
            all.emplace_back([&, t] {
                unit_attach();
                Random random(t + 1);
                Blocks blocks;
                for (unsigned i = 0; i < unit_rounds(60000); i++) {
                    if (blocks.all.size() < 30 && random.below(2) == 0)
                        blocks.alloc(SMALL_MAX + 1 + random.below(random.below(8) == 0 ? 40000 : 6000));
                    else if (!blocks.all.empty())
                        blocks.free(random.below(blocks.all.size()));
                    if (random.below(500) == 0) usleep(100);
                }
                EXPECT_TRUE(contents_right(blocks));
                blocks.free_all();
                unit_collect();
                EXPECT_EQ(unit_medium_out_bytes(), 0u);
                unit_detach();
                done++;
            });
        for (unsigned v = 0; v < 2; v++)
            all.emplace_back([&, v] {
                for (unsigned i = v; done != OWNERS; i++) {
                    unit_visit(i % 4 == 0);
                    usleep(v * 50);
                }
            });
        for (std::thread& t : all) t.join();
        EXPECT_TRUE(unit_arena_check());
        expect_nothing_left();
    }));
}

// The child of a fork has what others kept, and its own, whatever a visitor was doing.
// Absent: an emulator that forks among threads may end by its own assertions
TEST_UNEMULATED(Kept, ForksMeanwhile) {
    EXPECT_FINE(in_child([] {
        start();
        std::atomic<bool> stop{false};
        std::thread visitor([&] {
            for (unsigned i = 0; !stop; i++) unit_visit(i % 2 == 0);
        });
        std::thread other([&] {
            unit_attach();
            while (!stop) keep_some();
            unit_detach();
        });
        Blocks blocks;
        Random random(7);
        for (unsigned round = 0; round < unit_rounds(200); round++) {
            while (blocks.all.size() < 60) blocks.alloc(SMALL_MAX + 1 + random.below(9000));
            while (blocks.all.size() > 30) blocks.free(random.below(blocks.all.size()));
            int status = forked([&] {
                EXPECT_TRUE(unit_arena_check() && contents_right(blocks));
                for (unsigned i = 0; i < 100; i++)
                    EXPECT_TRUE(blocks.alloc(SMALL_MAX + 1 + random.below(9000)));
                blocks.free_all();
                unit_visit(true);
                unit_collect();
                EXPECT_LE(used_blocks(), 65u); // what the other thread had in hand, and a visitor on its way
                EXPECT_TRUE(unit_arena_check());
            });
            ASSERT_EQ(status, 0);
        }
        stop = true;
        visitor.join();
        other.join();
        blocks.free_all();
        expect_nothing_left();
    }));
}

} // namespace
