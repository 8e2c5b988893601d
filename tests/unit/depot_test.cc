// depot_test.cc: medium blocks that threads leave for each other: who leaves some, who gets them, that none
// is lost or had twice, and that none stays where nobody needs it. Called by ctest; each test starts the heap
// in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "arenas.h"
#include <chrono>
#include <mutex>
#include <thread>

namespace {

constexpr unsigned together = 7;    // of a small class; see DEPOT_BLOCKS
constexpr unsigned own_places = 16; // see DEPOT_OWN
constexpr size_t size = 4000;
unsigned class_m() { return class_of(size) - SMALL_CLASSES; }

void start(const char* options) {
    setenv("WEIR_OPTIONS", options, 1);
    unit_attach();
}

uint64_t depot_blocks() {
    uint64_t count = 0;
    for (unsigned m = 0; m <= class_of(SLAB_MAX) - SMALL_CLASSES; m++) count += unit_depot_count(m);
    return count;
}

TEST(Depot, WhatIsLeftIsTakenOnce) {
    EXPECT_FINE(in_child([] {
        int blocks[3 * together];
        void* left[3 * together];
        for (unsigned i = 0; i < 3 * together; i++) left[i] = &blocks[i];
        EXPECT_TRUE(unit_depot_put(3, left, together, false));
        EXPECT_TRUE(unit_depot_put(3, left + together, 2, false));
        EXPECT_FALSE(unit_depot_put(3, left + 2 * together, together, false)); // there are two places
        EXPECT_EQ(unit_depot_count(3), together + 2u);
        EXPECT_EQ(unit_depot_count(4), 0u);
        void* taken[together];
        EXPECT_EQ(unit_depot_take(4, taken), 0u);
        ASSERT_EQ(unit_depot_take(3, taken), together);
        EXPECT_TRUE(std::equal(left, left + together, taken));
        EXPECT_TRUE(unit_depot_put(3, left + 2 * together, 3, false));
        EXPECT_TRUE(unit_depot_put(3, left + 2 * together + 3, together - 3, false)); // in the same place
        ASSERT_EQ(unit_depot_take(3, taken), together);
        EXPECT_TRUE(std::equal(left + 2 * together, left + 3 * together, taken));
        ASSERT_EQ(unit_depot_take(3, taken), 2u);
        EXPECT_TRUE(std::equal(left + together, left + together + 2, taken));
        EXPECT_EQ(unit_depot_take(3, taken), 0u);
        EXPECT_EQ(unit_depot_count(3), 0u);
    }));
}

// What a thread left for itself is in the way of nobody. What it left last it has first.
TEST(Depot, OnesOwnHavePlacesOfTheirOwn) {
    EXPECT_FINE(in_child([] {
        static int blocks[(own_places + 1) * together];
        std::vector<void*> left;
        for (int& b : blocks) left.push_back(&b);
        void* const* more = &left[own_places * together];
        void* taken[together];
        for (unsigned round = 0; round < 3; round++) {
            for (unsigned i = 0; i < own_places; i++)
                EXPECT_TRUE(unit_depot_put(3, &left[i * together], together, true));
            EXPECT_FALSE(unit_depot_put(3, more, together, true));
            EXPECT_TRUE(unit_depot_put(3, more, together, false));
            EXPECT_EQ(unit_depot_count(3), (own_places + 1) * together);
            for (unsigned i = own_places; i-- != 0;) {
                ASSERT_EQ(unit_depot_take(3, taken), together);
                EXPECT_TRUE(std::equal(taken, taken + together, left.begin() + i * together));
                if (i != own_places / 2) continue;
                EXPECT_TRUE(unit_depot_put(3, more, together, true));
                ASSERT_EQ(unit_depot_take(3, taken), together);
                EXPECT_EQ(taken[0], *more);
            }
            ASSERT_EQ(unit_depot_take(3, taken), together);
            EXPECT_EQ(taken[0], *more); // others' last
            EXPECT_EQ(unit_depot_take(3, taken), 0u);
            EXPECT_EQ(unit_depot_count(3), 0u);
        }
    }));
}

TEST(Depot, GoesByBytes) {
    for (unsigned m = 0; m < UNIT_MEDIUM_CLASSES; m++) {
        size_t fit = class_bytes(m) > SLAB_MAX ? 0 : 131072 / class_bytes(m);
        EXPECT_EQ(unit_depot_count_of(m), std::min<size_t>(fit, together)) << class_bytes(m);
    }
}

// Each of so many tokens goes from one of two threads to one of two others, once. Nobody waits, so that they
// meet.
TEST(Depot, ThreadsLoseNoneAndGetNoneTwice) {
    EXPECT_FINE(in_child([] {
        constexpr unsigned most = 2800000;
        const unsigned each = unit_rounds(most) / together * together;
        static std::atomic<unsigned char> seen[2 * most];
        std::atomic<unsigned> given{0}, put{0}, taken{0}, bad{0};
        // Where many others run, each full and each empty depot waits for all of them.
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        std::vector<std::thread> all;
        for (unsigned t = 0; t < 2; t++) {
            all.emplace_back([&, t] {
                unsigned i = 0;
                for (; i < each && (i < each / 100 || std::chrono::steady_clock::now() < until);
                     i += together) {
                    void* tokens[together];
                    for (unsigned j = 0; j < together; j++)
                        tokens[j] = reinterpret_cast<void*>(uintptr_t{t} * each + i + j);
                    for (unsigned n = 1; !unit_depot_put(5, tokens, together, t == 0); n++)
                        if (n % 1024 == 0) std::this_thread::yield();
                }
                put += i;
                given++;
            });
            all.emplace_back([&] {
                unsigned mine = 0;
                for (unsigned n = 1; given != 2 || unit_depot_count(5) != 0; n++) {
                    void* tokens[together];
                    unsigned count = unit_depot_take(5, tokens);
                    for (unsigned j = 0; j < count; j++)
                        bad += seen[reinterpret_cast<uintptr_t>(tokens[j])]++;
                    mine += count;
                    if (count == 0 && n % 1024 == 0) std::this_thread::yield();
                }
                taken += mine;
            });
        }
        for (std::thread& t : all) t.join();
        EXPECT_EQ(bad.load(), 0u);
        EXPECT_EQ(taken.load(), put.load());
    }));
}

// What is there when a thread has freed `count` blocks that the caller took, or some more: all that it has.
void have_freed_by_another(unsigned count) {
    std::vector<void*> all;
    while (all.size() < count || unit_kept_count(class_m()) != 0) all.push_back(unit_alloc(size));
    std::thread([&] {
        unit_attach();
        for (void* p : all) unit_free(p);
        unit_detach();
    }).join();
}

TEST(Depot, WhoFreesWhatOthersTakeLeavesThemSome) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        void* stays = unit_alloc(size);
        have_freed_by_another(40);
        struct unit_figures f;
        unit_census(&f);
        EXPECT_EQ(f.live_blocks, 1u);
        EXPECT_EQ(unit_depot_count(class_m()), tag_is_on() ? 0u : 2 * together);
        if (!tag_is_on()) {
            EXPECT_GE(f.cached_bytes, 2 * together * unit_usable(stays));
            std::vector<void*> taken;
            for (unsigned i = 0; i < 2 * together; i++) {
                taken.push_back(unit_alloc(size));
                memset(taken.back(), 1, size);
                EXPECT_EQ(unit_kept_count(class_m()), together - 1 - i % together);
            }
            EXPECT_EQ(unit_depot_count(class_m()), 0u);
            unit_census(&f);
            EXPECT_EQ(f.live_blocks, 1 + 2 * together);
            std::sort(taken.begin(), taken.end());
            EXPECT_EQ(std::unique(taken.begin(), taken.end()), taken.end());
            for (void* p : taken) unit_free(p); // fewer than it has out
            EXPECT_EQ(depot_blocks(), 0u);
        }
        unit_free(stays);
        unit_collect();
        expect_nothing_left();
    }));
}

TEST(Depot, IsEmptiedByVisitorsAndWhoCollects) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        for (bool by_visit : {true, false}) {
            have_freed_by_another(40);
            if (!tag_is_on()) {
                EXPECT_EQ(depot_blocks(), 2 * together);
            }
            if (by_visit)
                unit_visit(false);
            else
                unit_collect();
            EXPECT_EQ(depot_blocks(), 0u);
            EXPECT_EQ(used_blocks(), 0u);
            EXPECT_TRUE(unit_arena_check());
        }
        unit_collect();
        expect_nothing_left();
    }));
}

// What the only thread with a heap left there would wait for nobody.
TEST(Depot, AThreadThatIsAloneLeavesNone) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        std::vector<void*> all;
        std::thread([&] {
            for (unsigned i = 0; i < 100; i++) all.push_back(unit_alloc(size));
            unit_detach();
        }).join();
        EXPECT_EQ(unit_heaps_live(), 1u);
        for (void* p : all) unit_free(p);
        EXPECT_EQ(depot_blocks(), 0u);
        unit_collect();
        expect_nothing_left();
    }));
}

// Of a thread whose use goes down and up again what its rings have no room for waits there, and is had again
// before memory is added.
TEST(Depot, AThreadWhoseUseSwingsLeavesSomeForItself) {
    EXPECT_FINE(in_child([] {
        start("release=off"); // no helper comes for it meanwhile
        if (tag_is_on()) return;
        constexpr unsigned live = 150;
        std::vector<void*> all;
        std::set<uintptr_t> pages;
        auto have = [&](unsigned count, size_t bytes) {
            for (unsigned i = 0; i < count; i++) {
                all.push_back(filled(bytes));
                auto at = reinterpret_cast<uintptr_t>(all.back());
                for (uintptr_t p = at >> page_shift; p <= (at + bytes - 1) >> page_shift; p++)
                    pages.insert(p);
            }
            std::sort(all.begin(), all.end());
            EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
            struct unit_figures f;
            unit_census(&f);
            EXPECT_EQ(f.live_blocks, count);
        };
        auto give = [&] {
            for (void* p : all) unit_free(p);
            all.clear();
            struct unit_figures f;
            unit_census(&f);
            EXPECT_EQ(f.live_blocks, 0u);
        };
        for (unsigned round = 0; round < 4; round++) {
            have(live, size);
            give();
        }
        EXPECT_GE(unit_depot_count(class_m()), live / 2);
        EXPECT_LE(unit_depot_count(class_m()), own_places * together);
        for (unsigned taken = 0; taken < 3; taken++) { // as visitors do: all places have room again
            unit_depot_empty();
            have(live, size);
            give();
            EXPECT_GE(unit_depot_count(class_m()), live / 2);
        }
        const size_t before = pages.size();
        have(live / 2, 2 * size); // what would need more memory gets that of what waits
        EXPECT_LT(unit_depot_count(class_m()), live / 2);
        EXPECT_LE(pages.size(), before + before / 16);
        EXPECT_TRUE(unit_arena_check());
        give();
        unit_collect();
        EXPECT_EQ(depot_blocks(), 0u);
        expect_nothing_left();
    }));
}

TEST(Depot, WhoWantsLittleKeptHasNone) {
    EXPECT_FINE(in_child([] {
        start("release=off:thread_kept_max=32k");
        have_freed_by_another(40);
        EXPECT_EQ(depot_blocks(), 0u);
        unit_collect();
        expect_nothing_left();
    }));
}

TEST(Depot, ABlockInItFreedAgainIsReported) {
    Ended ended = in_child([] {
        start("release=off");
        std::vector<void*> all;
        for (unsigned i = 0; i < 40; i++) all.push_back(unit_alloc(size));
        std::thread([&] {
            unit_attach();
            for (void* p : all) unit_free(p);
            unit_free(all[3]); // among the oldest that it kept
        }).join();
    });
    EXPECT_TRUE(ended.aborted());
    EXPECT_NE(ended.printed.find("double-free"), std::string::npos) << ended.printed;
}

TEST(Depot, AForksChildHasWhatWaitsThere) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        have_freed_by_another(40);
        int status = forked([] {
            for (unsigned i = 0; i < 3 * together; i++) memset(unit_alloc(size), 1, size);
            EXPECT_EQ(depot_blocks(), 0u);
            EXPECT_TRUE(unit_arena_check());
        });
        EXPECT_EQ(status, 0);
        if (!tag_is_on()) {
            EXPECT_EQ(depot_blocks(), 2 * together);
        }
        unit_collect();
        expect_nothing_left();
    }));
}

// One at a time, side by side in one place; what has none goes back at once.
TEST(Depot, AThreadWithoutAHeapLeavesThemToo) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        std::vector<void*> all;
        for (unsigned i = 0; i < 40; i++) all.push_back(unit_alloc(size));
        std::thread([&] {
            for (unsigned i = 0; i < 40; i++) {
                unit_free(all[i]);
                EXPECT_EQ(unit_depot_count(class_m()), tag_is_on() ? 0u : std::min(i + 1, 2 * together));
            }
            EXPECT_FALSE(unit_has_heap());
        }).join();
        struct unit_figures f;
        unit_census(&f);
        EXPECT_EQ(f.live_blocks, 0u);
        std::vector<void*> taken;
        for (unsigned i = 0; i < 2 * together; i++) taken.push_back(unit_alloc(size));
        EXPECT_EQ(depot_blocks(), 0u);
        std::sort(taken.begin(), taken.end());
        EXPECT_EQ(std::unique(taken.begin(), taken.end()), taken.end());
        for (void* p : taken) unit_free(p);
        unit_collect();
        expect_nothing_left();
    }));
}

// Once for each place, until a visitor has been there: else nobody would come for it.
TEST(Depot, WhatIsLeftIsTold) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        if (tag_is_on()) return;
        for (unsigned round = 0; round < 2; round++) {
            std::vector<void*> all;
            for (unsigned i = 0; i < 2 * together; i++) all.push_back(unit_alloc(size));
            uint64_t before = unit_release_owed();
            std::thread([&] {
                for (void* p : all) unit_free(p);
            }).join();
            EXPECT_EQ(depot_blocks(), 2 * together);
            EXPECT_EQ(unit_release_owed(), before + 2 * class_bytes(class_m()));
            unit_collect();
        }
    }));
}

struct Slot {
    std::mutex mutex;
    std::vector<Block> blocks;
};

// Two threads take and two free, of all sizes, while visitors come and forks are made.
TEST(Depot, PassedBlocksKeepTheirContent) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        static Slot slots[2];
        std::atomic<unsigned> takers{2};
        std::atomic<unsigned> bad{0};
        std::vector<std::thread> all;
        for (unsigned t = 0; t < 2; t++) {
            all.emplace_back([&, t] {
                Random random(t + 1);
                for (unsigned i = 0; i < unit_rounds(20000); i++) {
                    size_t bytes =
                        i / 256 % 2 == 0 ? size : SMALL_MAX + 1 + random.below(size_t{1} << (11 + i % 5));
                    Block b = {static_cast<unsigned char*>(unit_alloc(bytes)), bytes, bytes,
                               static_cast<unsigned char>(random.next())};
                    block_fill(b);
                    std::lock_guard<std::mutex> hold(slots[t].mutex);
                    slots[t].blocks.push_back(b);
                }
                takers--;
                unit_detach();
            });
            all.emplace_back([&, t] {
                for (bool more = true; more;) {
                    std::vector<Block> got;
                    more = takers != 0;
                    {
                        std::lock_guard<std::mutex> hold(slots[t].mutex);
                        got.swap(slots[t].blocks);
                        more |= !got.empty();
                    }
                    for (Block& b : got) {
                        bad += !block_intact(b, b.usable);
                        unit_free(b.p);
                    }
                    if (got.empty()) std::this_thread::yield();
                }
                unit_detach();
            });
        }
        for (unsigned i = 0; takers != 0; i++) {
            unit_visit(i % 2 == 0);
            if (!unit_sanitized && i % 16 == 0) {
                EXPECT_EQ(forked([] { EXPECT_TRUE(unit_arena_check()); }), 0);
            }
            usleep(1000);
        }
        for (std::thread& t : all) t.join();
        EXPECT_EQ(bad.load(), 0u);
        EXPECT_TRUE(unit_arena_check());
        unit_collect();
        expect_nothing_left();
    }));
}

// Threads whose use goes down and up, of all sizes, while visitors come and forks are made.
TEST(Depot, WhatSwingsKeepsItsContent) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        std::atomic<unsigned> swingers{3}, at_work{0}, bad{0}, left{0};
        std::vector<std::thread> all;
        for (unsigned t = 0; t < 3; t++)
            all.emplace_back([&, t] {
                Random random(t + 1);
                std::vector<Block> blocks;
                at_work++;
                for (unsigned i = 0; i < unit_rounds(60); i++) {
                    const size_t most = SMALL_MAX + 1 + random.below(size_t{1} << (12 + i % 4));
                    while (blocks.size() < 400) {
                        size_t bytes = SMALL_MAX + 1 + random.below(most);
                        blocks.push_back({static_cast<unsigned char*>(unit_alloc(bytes)), bytes, bytes,
                                          static_cast<unsigned char>(random.next())});
                        block_fill(blocks.back());
                    }
                    for (size_t stay = random.below(200); blocks.size() > stay; blocks.pop_back()) {
                        std::swap(blocks.back(), blocks[random.below(blocks.size())]);
                        bad += !block_intact(blocks.back(), blocks.back().usable);
                        unit_free(blocks.back().p);
                    }
                    left += depot_blocks() != 0;
                }
                for (Block& b : blocks) unit_free(b.p);
                swingers--;
                unit_detach();
            });
        for (unsigned i = 0; swingers != 0; i++) {
            unit_visit(i % 2 == 0);
            if (!unit_sanitized && at_work == 3 && i % 16 == 15) { // an emulator's fork minds new threads
                EXPECT_EQ(forked([] {
                              for (unsigned n = 0; n < 100; n++) memset(unit_alloc(size), 1, size);
                              EXPECT_TRUE(unit_arena_check());
                          }),
                          0);
            }
            usleep(1000);
        }
        for (std::thread& t : all) t.join();
        EXPECT_EQ(bad.load(), 0u);
        if (!tag_is_on()) {
            EXPECT_GT(left.load(), 0u);
        }
        EXPECT_TRUE(unit_arena_check());
        unit_collect();
        expect_nothing_left();
    }));
}

} // namespace
