// direct_test.cc: heap/direct.h: what a thread frees is what it is given next; what that costs nobody: the
// last block that comes back is seen, bins do not stay long, and some lists still turn over.
// Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "holes.h"
#include "workers.h"
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace {

constexpr size_t small = 64;
constexpr unsigned frees_a_turn = 1024;

void start(const char* options) {
    setenv("WEIR_OPTIONS", options, 1);
    unit_attach();
}
struct slice* slab_of_small() { return unit_active(class_of(small)); }
unsigned capacity() { return size_classes[class_of(small)].capacity; }

// Each frees what it took at once, so often.
void come_and_go(unsigned times) {
    for (unsigned i = 0; i < times; i++) unit_free(unit_alloc(small));
}

TEST(Direct, WhatWasFreedLastIsGivenOutFirst) {
    EXPECT_FINE(in_child([] {
        start("check_first=0");
        std::vector<void*> all;
        for (unsigned i = 0; i < 100; i++) all.push_back(unit_alloc(small));
        EXPECT_TRUE(unit_is_direct(slab_of_small()));
        for (unsigned i = 0; i < 100; i += 2) unit_free(all[i]);
        for (unsigned i = 100; i > 0; i -= 2) EXPECT_EQ(unit_alloc(small), all[i - 2]) << i;
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// What lives for a moment leaves no gaps between what lives on.
TEST(Direct, WhatLivesOnLiesSideBySide) {
    for (const char* reuse : {"soon", "late"})
        EXPECT_FINE(in_child([=] {
            start((std::string("check_first=0:check_every=1000000:reuse=") + reuse).c_str());
            unsigned apart = 0;
            uintptr_t before = reinterpret_cast<uintptr_t>(unit_alloc(small));
            for (unsigned i = 0; i < 500; i++) {
                come_and_go(2);
                uintptr_t p = reinterpret_cast<uintptr_t>(unit_alloc(small));
                apart += p != before + small;
                before = p;
            }
            EXPECT_EQ(apart == 0, strcmp(reuse, "soon") == 0) << apart;
        }));
}

TEST(Direct, NotWhereEachBlockOrListIsLookedAt) {
    for (const char* options : {"check_first=1000", "check_first=0:check_every=1", "check_first=0:reuse=late",
                                "check_first=0:checks=full", "check_first=0:guard_rate=1000000"})
        EXPECT_FINE(in_child([=] {
            start(options);
            std::vector<void*> all;
            for (unsigned i = 0; i < 100; i++) all.push_back(unit_alloc(small));
            for (void* p : all) {
                EXPECT_FALSE(unit_is_direct(slab_of_small())) << options;
                unit_free(p);
            }
            come_and_go(1000);
            EXPECT_FALSE(unit_is_direct(slab_of_small())) << options;
        }));
}

// Of many classes, of each a slab: all that can be seen is that the last block came back.
TEST(Direct, TheLastBlockThatComesBackIsSeen) {
    for (unsigned late : {0u, 1u, 7u, 300u})
        EXPECT_FINE(in_child([=] {
            start("check_first=0:check_every=1000000:release=off");
            constexpr unsigned classes = 40;
            constexpr unsigned each = 60;
            std::vector<void*> all[classes];
            for (unsigned c = 0; c < classes; c++)
                for (unsigned i = 0; i < each; i++) all[c].push_back(unit_alloc((c + 20) * GRANULE));
            Random random(1);
            for (unsigned i = 0; i < late * classes; i++) { // lets the looks come at other times
                std::vector<void*>& blocks = all[i % classes];
                void*& p = blocks[random.below(each)];
                unit_free(p);
                p = unit_alloc((i % classes + 20) * GRANULE);
            }
            for (std::vector<void*>& blocks : all)
                for (void* p : blocks) unit_free(p);
            struct unit_figures after;
            unit_census(&after);
            EXPECT_EQ(after.live_blocks, 0u);
            uint64_t resident = after.cached_bytes; // of built blocks
            EXPECT_LE(resident, unit_kept_bytes_max() + classes * 4096)
                << late; // a page each may be overlooked
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

// Most blocks of many classes are freed by their owner, the last ones by another thread or after one of
// those.
TEST_UNEMULATED(Direct, WhatNearlyAllCameBackOfKeepsNoMemory) {
    for (bool owner_ends : {false, true})
        EXPECT_FINE(in_child([=] {
            windows_are_endless(":check_first=0:check_every=1000000");
            unit_attach();
            constexpr unsigned classes = 30;
            Worker owner;
            std::vector<void*> all[classes];
            auto frees = [&](size_t from, size_t to) {
                for (std::vector<void*>& blocks : all)
                    for (size_t i = from * blocks.size() / 100; i < to * blocks.size() / 100; i++)
                        unit_free(blocks[i]);
            };
            owner.does([&] {
                for (unsigned c = 0; c < classes; c++)
                    for (size_t bytes = 0; bytes < SLICE_BYTES - 2048; bytes += (c + 33) * GRANULE)
                        all[c].push_back(unit_alloc((c + 33) * GRANULE));
                frees(0, 97);
            });
            frees(97, owner_ends ? 99 : 100);
            if (owner_ends) owner.does([&] { frees(99, 100); });
            unit_visit(true);
            struct unit_figures after;
            unit_census(&after);
            EXPECT_LE(after.live_bytes + after.cached_bytes, classes * SLICE_BYTES / 2) << owner_ends;
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

// All but two blocks of each class are freed, by their owner: the others' pages are for all to have.
TEST_UNEMULATED(Direct, WhatIsLeftOfASlabKeepsOnePage) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":check_first=0:check_every=1000000");
        unit_attach();
        constexpr unsigned classes = 30;
        Worker owner;
        owner.does([] {
            for (unsigned c = 0; c < classes; c++) {
                std::vector<void*> all;
                for (size_t bytes = 0; bytes < SLICE_BYTES - 2048; bytes += (c + 33) * GRANULE)
                    all.push_back(unit_alloc((c + 33) * GRANULE));
                for (unsigned i = 0;
                     i < 1000 && unit_active(class_of((c + 33) * GRANULE))->until != all.size() - 1; i++) {
                    unit_free(all[0]); // a look has just been
                    all[0] = unit_alloc((c + 33) * GRANULE);
                }
                for (size_t i = 2; i < all.size(); i++) unit_free(all[i]);
            }
        });
        unit_visit(true);
        struct unit_figures after;
        unit_census(&after);
        EXPECT_LE(after.live_bytes + after.cached_bytes, classes * SLICE_BYTES / 2);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// A few live on, of several classes whose slabs were full once, and one comes and goes: no look each time.
TEST_UNEMULATED(Direct, FewLiveBlocksMakeNoLooks) {
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000");
        for (unsigned c = 0; c < 4; c++) {
            std::vector<void*> all;
            for (unsigned i = 0; i < 60; i++) all.push_back(unit_alloc(1024 - c * GRANULE));
            for (unsigned i = 1; i < 60; i++) unit_free(all[i]);
        }
        unsigned direct = 0;
        for (unsigned c = 0; c < 4; c++) {
            for (unsigned i = 0; i < 100; i++) unit_free(unit_alloc(1024 - c * GRANULE));
            const struct slice* s = unit_active(class_of(1024 - c * GRANULE));
            direct += unit_is_direct(s);
            EXPECT_TRUE(!unit_is_direct(s) || s->until > 1000) << c;
        }
        EXPECT_EQ(direct, 1u); // so much may be kept
        EXPECT_LE(unit_kept_bytes(), unit_kept_bytes_max());
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// Rounds of a thread that takes some 400 KiB of all small classes and frees all of it. Returns the most that
// was kept.
size_t take_and_free_all(unsigned rounds) {
    size_t most = 0;
    for (unsigned round = 0; round < rounds; round++) {
        std::vector<void*> all;
        for (unsigned i = 0; i < 25; i++)
            for (size_t size = 32; size <= 1024; size += 32) all.push_back(unit_alloc(size));
        for (void* p : all) unit_free(p);
        most = std::max(most, unit_kept_bytes());
    }
    return most;
}

// It keeps that, after some rounds: no slab is closed and opened for each class and round.
TEST_UNEMULATED(Direct, WhatIsFreedAllAgainAndAgainIsKept) {
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000:release=off");
        EXPECT_LE(take_and_free_all(2), unit_kept_bytes_max());
        size_t most = take_and_free_all(50);
        EXPECT_GT(most, 5 * unit_kept_bytes_max());
        EXPECT_LE(most, unit_kept_bytes_wide());
        uint64_t before = unit_slow_calls();
        take_and_free_all(50);
        EXPECT_LE(unit_slow_calls() - before, 50u); // 32 in each round at least, else
        EXPECT_GE(unit_check_slabs(), 0);
        unit_collect();
        EXPECT_EQ(unit_kept_bytes(), 0u);
    }));
}

// Not for good, and no more than is allowed.
TEST_UNEMULATED(Direct, WhatIsKeptSoIsBounded) {
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000:release=off:thread_kept_max=64k");
        EXPECT_LE(take_and_free_all(50), unit_kept_bytes_max());
    }));
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000:release=off");
        take_and_free_all(50);
        std::vector<std::vector<void*>> all(SMALL_MAX / GRANULE);
        for (unsigned i = 0; i < 100; i++) // more than fits
            for (size_t size = 32; size <= 1024; size += 32) all[size / 32].push_back(unit_alloc(size));
        for (const auto& of_class : all)
            for (void* p : of_class) unit_free(p);
        EXPECT_LE(unit_kept_bytes(), unit_kept_bytes_wide());
        // Many lists later, of classes that are not closed meanwhile:
        std::vector<void*> lives;
        uint64_t before = unit_slow_calls();
        while (unit_slow_calls() < before + 5 * 1024) lives.push_back(unit_alloc(1024));
        for (void* p : lives) unit_free(p);
        EXPECT_LE(take_and_free_all(1), unit_kept_bytes_max());
        EXPECT_GE(unit_check_slabs(), 0);
    }));
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000:release=off");
        std::vector<std::unique_ptr<Worker>> many;
        for (unsigned i = 0; i < 9; i++) {
            many.push_back(std::make_unique<Worker>());
            many.back()->does([] { unit_free(unit_alloc(small)); });
        }
        EXPECT_LE(take_and_free_all(50), unit_kept_bytes_max());
    }));
}

// Other threads see what lies in the bin.
TEST(Direct, OthersCountIt) {
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000");
        struct unit_figures before, seen;
        unit_census(&before);
        Worker owner;
        std::vector<void*> all;
        owner.does([&] {
            for (unsigned i = 0; i < 500; i++) all.push_back(unit_alloc(small));
            for (unsigned i = 100; i < 500; i++) unit_free(all[i]);
        });
        unit_census(&seen);
        EXPECT_EQ(seen.class_live[class_of(small)], 100u);
        EXPECT_EQ(seen.alloc_calls - before.alloc_calls, 500u);
    }));
}

// While visitors sort what others freed, the owner goes on, with looks all the time.
TEST_UNEMULATED(Direct, VisitorsLoseNoCount) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":check_first=0:check_every=1000000");
        unit_attach();
        constexpr unsigned live = 20;
        std::atomic<bool> stop{false};
        std::atomic<void*> passed[8] = {};
        std::thread owner([&] {
            Blocks others;
            grows(others);
            std::vector<void*> all;
            for (unsigned i = 0; i < 900; i++) all.push_back(unit_alloc(small));
            for (unsigned i = live; i < 900; i++) unit_free(all[i]);
            for (unsigned i = 0; i < unit_rounds(1000000); i++) {
                void*& p = all[i % live];
                unit_free(i % 64 == 0 ? passed[i / 64 % 8].exchange(p) : p);
                p = unit_alloc(small);
            }
            stop = true;
        });
        while (!stop) {
            for (std::atomic<void*>& p : passed) unit_free(p.exchange(nullptr));
            unit_visit(true);
        }
        owner.join();
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// A block that comes and goes makes no memory go and come.
TEST(Direct, ALoneBlockKeepsItsSlab) {
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000");
        come_and_go(10);
        struct unit_figures before, after;
        unit_census(&before);
        come_and_go(100000);
        unit_census(&after);
        EXPECT_TRUE(unit_is_direct(slab_of_small()));
        EXPECT_EQ(after.slow_calls, before.slow_calls);
        EXPECT_EQ(after.alloc_calls, before.alloc_calls + 100000);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// As long as most of a slab is in the bin, nobody can return its pages: not for ever. Where pushes are
// published.
TEST_UNEMULATED(Direct, ABinThatStaysLongIsGivenUp) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":check_first=0:check_every=1000000");
        unit_attach();
        Blocks others;
        grows(others);
        std::vector<void*> all;
        for (unsigned i = 0; i < capacity(); i++) all.push_back(unit_alloc(small));
        const struct slice* s = slab_of_small();
        Random random(1);
        for (size_t i = all.size() - 1; i > 100; i--) std::swap(all[i], all[100 + random.below(i - 99)]);
        constexpr unsigned live = 100;
        for (unsigned i = live; i < all.size(); i++) unit_free(all[i]);
        come_and_go(live * 60);
        EXPECT_TRUE(unit_is_direct(s));
        EXPECT_EQ(s->built, capacity());
        come_and_go(live * 140);
        EXPECT_LT(s->built, capacity() / 2); // pages without blocks are holes
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// So many frees count as one list that was not walked; one in check_every is.
TEST(Direct, SomeListsTurnOver) {
    for (unsigned every : {2u, 5u})
        EXPECT_FINE(in_child([=] {
            start(("check_first=0:check_every=" + std::to_string(every)).c_str());
            std::vector<void*> all;
            for (unsigned i = 0; i < 200; i++) all.push_back(unit_alloc(small));
            unsigned turned = 0;
            bool direct = true;
            const unsigned rounds = 40 * frees_a_turn;
            for (unsigned i = 0; i < rounds; i++) {
                come_and_go(1);
                if (unit_is_direct(slab_of_small()) == direct) continue;
                direct = !direct;
                turned += direct;
            }
            EXPECT_GE(turned, 40 / every - 1);
            EXPECT_LE(turned, 40 / (every - 1) + 1);
        }));
}

// What a list would have shown when it turned over, the bin shows, when its turn has come, as nothing or
// little is in use any more and the slab is about to give its memory back.
TEST(Direct, WhatWasFreedTwiceIsFoundWhenAllIsBack) {
    for (unsigned which : {0u, 30u}) {
        unsigned found = 0;
        for (unsigned turns = 0; turns < 8; turns++) {
            Ended ended = in_child([=] {
                start("check_first=0:check_every=8");
                come_and_go(100 +
                            turns * frees_a_turn); // that slab is kept; a full one besides would be too much
                std::vector<void*> all;
                for (unsigned i = 0; i < SLICE_BYTES / 1024; i++) all.push_back(unit_alloc(1024));
                if (!unit_is_direct(unit_slice(all[0]))) return;
                unit_free(all[which]);
                for (void* p : all) unit_free(p);
            });
            if (ended.fine()) continue;
            found++;
            EXPECT_TRUE(ended.aborted()) << which;
            EXPECT_EQ(ended.printed.find("weir: double-free: already freed 0x"), 0u) << ended.printed;
        }
        EXPECT_GT(found, 0u) << which; // in its turn
    }
}

// Where few of its blocks are in use and no more may be kept, what is in the bin becomes the slab's list: it
// is not followed then, but for its turn, and the counts are right all the same.
TEST(Direct, ABinThatGoesBackIsNotFollowed) {
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000");
        come_and_go(100); // as above
        std::vector<void*> all;
        for (unsigned i = 0; i < SLICE_BYTES / 1024; i++) all.push_back(unit_alloc(1024));
        struct slice* s = unit_slice(all[0]);
        ASSERT_TRUE(unit_is_direct(s));
        size_t freed = 0;
        unit_free(all[freed++]);
        uintptr_t& link = static_cast<uintptr_t*>(all[0])[1];
        uintptr_t was = link;
        link = 1; // who follows it reports that
        while (freed != all.size() && unit_is_direct(s)) unit_free(all[freed++]);
        EXPECT_LT(freed, all.size());
        link = was;
        EXPECT_EQ(unit_used(s), all.size() - freed);
        EXPECT_GE(unit_check_slabs(), 0);
        while (freed != all.size()) unit_free(all[freed++]);
        EXPECT_GE(unit_check_slabs(), 0);
        expect_nothing_left();
    }));
}

// What others freed is its list already.
TEST(Direct, ABinThatGoesBackJoinsItsSlabsList) {
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000");
        come_and_go(100);
        std::vector<void*> all;
        for (unsigned i = 0; i < SLICE_BYTES / 1024; i++) all.push_back(unit_alloc(1024));
        struct slice* s = unit_slice(all[0]);
        std::thread([&] {
            for (unsigned i = 0; i < 5; i++) unit_free(all[i]);
            unit_detach();
        }).join();
        size_t freed = 5;
        unit_free(all[freed++]);
        ASSERT_TRUE(unit_is_direct(s));
        EXPECT_EQ(unit_remote_count(s), 0u);
        while (freed != all.size() && unit_is_direct(s)) unit_free(all[freed++]);
        EXPECT_LT(freed, all.size());
        EXPECT_EQ(unit_used(s), all.size() - freed);
        EXPECT_GE(unit_check_slabs(), 0);
        while (freed != all.size()) unit_free(all[freed++]);
        expect_nothing_left();
    }));
}

// A fork may have come between the two steps of a malloc: a child does not know how many there are.
TEST(Direct, AForksChildFollowsABinThatGoesBack) {
    Ended ended = in_child([] {
        start("check_first=0:check_every=1000000");
        come_and_go(100);
        std::vector<void*> all;
        for (unsigned i = 0; i < SLICE_BYTES / 1024; i++) all.push_back(unit_alloc(1024));
        struct slice* s = unit_slice(all[0]);
        ASSERT_TRUE(unit_is_direct(s));
        int status = forked([&] {
            unit_free(all[0]);
            static_cast<uintptr_t*>(all[0])[1] = 1;
            for (size_t i = 1; i < all.size() && unit_is_direct(s); i++) unit_free(all[i]);
        });
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    });
    EXPECT_TRUE(ended.fine());
    EXPECT_EQ(ended.printed.find("weir: corrupt-list: "), 0u) << ended.printed;
}

TEST(Direct, ABinThatGoesBackIsFollowedInItsTurn) {
    Ended ended = in_child([] {
        start("check_first=0:check_every=8");
        come_and_go(100);
        std::vector<void*> all[2]; // of two classes, so that each has a slab
        for (unsigned c = 0; c < 2; c++)
            for (unsigned i = 0; i < SLICE_BYTES / 1024; i++)
                all[c].push_back(unit_alloc(1024 - c * GRANULE));
        for (unsigned i = 0; i < 100 && unit_turns_unchecked() != 6; i++) come_and_go(frees_a_turn);
        ASSERT_EQ(unit_turns_unchecked(), 6u);
        for (std::vector<void*>& blocks : all) {
            struct slice* s = unit_slice(blocks[0]);
            ASSERT_TRUE(unit_is_direct(s));
            unit_free(blocks[0]);
            static_cast<uintptr_t*>(blocks[0])[1] = 1;
            for (size_t i = 1; i < blocks.size() && unit_is_direct(s); i++) unit_free(blocks[i]);
            fputs("not followed. ", stderr);
        }
        _exit(0);
    });
    EXPECT_TRUE(ended.aborted());
    EXPECT_EQ(ended.printed.find("not followed. weir: corrupt-list: "), 0u) << ended.printed;
}

// The owner's next free takes in what others freed, and the slab goes on; where others free all, it does not
// begin.
TEST(Direct, WhatOthersFreeIsTakenIn) {
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000");
        std::vector<void*> all;
        for (unsigned i = 0; i < 200; i++) all.push_back(unit_alloc(small));
        struct slice* s = slab_of_small();
        EXPECT_TRUE(unit_is_direct(s));
        Worker other;
        other.does([&] {
            for (unsigned i = 0; i < 100; i++) unit_free(all[i]);
            unit_detach();
        });
        EXPECT_TRUE(unit_is_direct(s));
        EXPECT_GE(unit_check_slabs(), 0);
        unit_free(all[100]);
        EXPECT_TRUE(unit_is_direct(s));
        EXPECT_EQ(unit_remote_count(s), 0u);
        EXPECT_GE(unit_check_slabs(), 0);
        for (unsigned round = 0; round < 20; round++) {
            all.clear();
            for (unsigned i = 0; i < 500; i++) all.push_back(unit_alloc(small));
            other.does([&] {
                for (void* p : all) unit_free(p);
                unit_detach();
            });
        }
        unit_alloc(small);
        EXPECT_FALSE(unit_is_direct(slab_of_small()));
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// A visitor sorts what others freed of a slab that its owner goes on to use. Not where pushes are not
// published.
TEST_UNEMULATED(Direct, VisitorsComeToItToo) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":check_first=0:check_every=1000000");
        unit_attach();
        Worker owner;
        Blocks others;
        std::vector<void*> all;
        struct slice* s = nullptr;
        owner.does([&] {
            grows(others);
            for (unsigned i = 0; i < capacity(); i++) all.push_back(unit_alloc(small));
            s = slab_of_small();
        });
        for (unsigned i = 0; i < 300; i++) unit_free(all[i]);
        unit_visit(true);
        EXPECT_TRUE(unit_is_direct(s));
        EXPECT_EQ(unit_remote_count(s), 0u);
        EXPECT_LT(s->built, capacity()); // pages became holes
        EXPECT_GE(unit_check_slabs(), 0);
        owner.does([&] {
            for (unsigned i = 300; i < all.size(); i++) unit_free(all[i]);
            EXPECT_GE(unit_check_slabs(), 0);
        });
    }));
}

TEST(Direct, AForksChildGoesOn) {
    EXPECT_FINE(in_child([] {
        start("check_first=0:check_every=1000000");
        std::vector<void*> all;
        for (unsigned i = 0; i < 300; i++) all.push_back(unit_alloc(small));
        for (unsigned i = 0; i < 50; i++) unit_free(all[i]);
        unit_fork_prepare();
        EXPECT_FINE(in_child([&] {
            unit_fork_child();
            EXPECT_TRUE(unit_is_direct(slab_of_small()));
            EXPECT_EQ(unit_alloc(small), all[49]);
            for (unsigned i = 50; i < 300; i++) unit_free(all[i]);
            come_and_go(10000);
            EXPECT_GE(unit_check_slabs(), 0);
        }));
        unit_fork_parent();
        EXPECT_EQ(unit_alloc(small), all[49]);
    }));
}

// Counts hold whatever comes when.
TEST(Direct, RandomCallsKeepTheCounts) {
    for (const char* options : {"check_first=0:check_every=2", "check_first=0:check_every=1000000"})
        EXPECT_FINE(in_child([=] {
            start(options);
            Blocks blocks;
            Random random(7);
            struct unit_figures before, after;
            unit_census(&before);
            uint64_t calls = 0;
            for (unsigned i = 0; i < unit_rounds(200000); i++) {
                size_t most = 100 + 900 * (i / 5000 % 3);
                if (blocks.all.size() < most && random.below(2) == 0)
                    calls += blocks.alloc(1 + random.below(200));
                else if (!blocks.all.empty())
                    blocks.free(random.below(static_cast<unsigned>(blocks.all.size())));
                if (i % 500 == 0) {
                    ASSERT_GE(unit_check_slabs(), 0) << i;
                }
            }
            unit_census(&after);
            EXPECT_EQ(after.alloc_calls - before.alloc_calls, calls);
            EXPECT_EQ(after.live_blocks - before.live_blocks, blocks.all.size());
        }));
}

} // namespace
