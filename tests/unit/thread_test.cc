// thread_test.cc: the heap layer among threads: heaps and slabs used again, threads that end, blocks that
// change hands at random. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "workers.h"
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <set>

namespace {

TEST(Threads, HeapsOfEndedThreadsServeOthers) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        for (int i = 0; i < 200; i++) {
            Worker one;
            one.does([] {
                std::vector<void*> all = many(100, 100);
                for (void* p : all) unit_free(p);
            });
            EXPECT_EQ(unit_heaps_live(), 2u);
        }
        EXPECT_EQ(unit_heaps_made(), 2u);
        EXPECT_EQ(unit_heaps_peak(), 2u);
        EXPECT_EQ(unit_heaps_live(), 1u);
        expect_nothing_left();
    }));
}
TEST(Threads, ThatEndUnannouncedAreFoundByTheSweep) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        for (int i = 0; i < 200; i++) {
            Worker one;
            one.detaches = false;
            one.does([] {
                std::vector<void*> all = many(100, 100);
                for (void* p : all) unit_free(p);
            });
        }
        EXPECT_LE(unit_heaps_made(), 40u);
        EXPECT_LE(unit_heaps_live(), unit_heaps_made());
        EXPECT_LE(census().slabs, 100u);
        // What waits in the bins of threads not found yet counts as live: here less than a page's worth each.
        EXPECT_LT(census().live_blocks, unit_heaps_made() * (4096u / 112u));
    }));
}

TEST(Threads, ManyAtOnceGetHeapsOfTheirOwn) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        constexpr size_t count = 64;
        std::vector<std::unique_ptr<Worker>> all;
        std::set<struct heap*> heaps;
        for (size_t i = 0; i < count; i++) {
            all.push_back(std::make_unique<Worker>());
            all.back()->does([&] {
                unit_alloc(10);
                heaps.insert(unit_self());
            });
        }
        EXPECT_EQ(heaps.size(), count);
        EXPECT_EQ(unit_heaps_live(), count + 1);
        all.clear();
        EXPECT_EQ(unit_heaps_live(), 1u);
        EXPECT_EQ(unit_heaps_peak(), count + 1);
        EXPECT_EQ(unit_heaps_made(), count + 1);
    }));
}

TEST(Threads, OrphansServeOthers) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker gone;
        std::vector<void*> kept;
        gone.does([&] {
            std::vector<void*> all = many(5000, 128);
            for (size_t i = 0; i < all.size(); i++) {
                if (i % 10 == 0)
                    kept.push_back(all[i]);
                else
                    unit_free(all[i]);
            }
        });
        gone.end();
        EXPECT_GE(unit_check_slabs(), 0);
        uint64_t live = span_totals.live;
        std::set<struct slice*> slabs;
        for (void* p : kept) slabs.insert(unit_slice(p));
        unsigned orphans = 0;
        for (struct slice* s : slabs) orphans += unit_is_orphan(s) && unit_is_unowned(s);
        EXPECT_EQ(orphans, slabs.size());
        std::vector<void*> mine = many(4000, 128);
        EXPECT_LE(span_totals.live, live + SLICE_BYTES);
        unsigned inside = 0;
        for (void* p : mine) inside += slabs.count(unit_slice(p)) != 0;
        EXPECT_GE(inside, 3900u);
        for (void* p : kept) unit_free(p);
        for (void* p : mine) unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Threads, OrphansThatOthersFreeIntoAreAdopted) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker gone;
        std::vector<void*> kept;
        gone.does([&] {
            std::vector<void*> all = many(3000, 200);
            for (size_t i = 0; i < all.size(); i++) {
                if (i % 7 == 0)
                    kept.push_back(all[i]);
                else
                    unit_free(all[i]);
            }
        });
        gone.end();
        struct slice* s = unit_slice(kept[0]);
        EXPECT_TRUE(unit_is_orphan(s));
        unit_free(unit_alloc(200)); // a thread that has a use for it, and takes another orphan
        for (void* p : kept)
            if (unit_is_orphan(unit_slice(p))) s = unit_slice(p);
        EXPECT_TRUE(unit_is_orphan(s));
        size_t first = 0;
        while (unit_slice(kept[first]) != s) first++;
        std::swap(kept[0], kept[first]);
        unit_free(kept[0]);
        EXPECT_FALSE(unit_is_orphan(s));
        EXPECT_TRUE(unit_is_mine(s));
        for (size_t i = 1; i < kept.size(); i++) unit_free(kept[i]);
        expect_nothing_left();
    }));
}

TEST(Threads, EndingWithBlocksInOutboxesLosesNone) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        std::vector<void*> mine = many(300, 40);
        Worker helper;
        helper.does([&] {
            unit_attach();
            for (size_t i = 0; i < 300; i += 20)
                unit_free(mine[i]); // the first alone, then too few to be sent
        });
        EXPECT_EQ(census().live_blocks, tag_is_on() ? 300u : 299u); // tagged ones never go alone
        helper.end();
        EXPECT_EQ(census().live_blocks, 285u);
        EXPECT_EQ(census().remote_frees, 15u);
        for (size_t i = 0; i < 300; i++)
            if (i % 20 != 0) unit_free(mine[i]);
        expect_nothing_left();
    }));
}

struct Box {
    std::mutex mutex;
    std::vector<Block> blocks;
};

// Every thread allocates, frees its own and others' blocks, passes some on, and some end meanwhile.
void exchange(uint64_t seed, unsigned steps) {
    constexpr unsigned threads = 4;
    constexpr unsigned lives = 3; // each thread is several, one after the other
    unit_attach();
    Box boxes[threads];
    for (unsigned life = 0; life < lives; life++) {
        std::vector<std::thread> all;
        for (unsigned t = 0; t < threads; t++)
            all.emplace_back([&, t, life] {
                Random random(seed * 100 + life * 10 + t);
                Blocks blocks;
                for (unsigned i = 0; i < steps; i++) {
                    size_t what = random.below(10);
                    if (blocks.all.empty() || (what < 5 && blocks.all.size() < 300)) {
                        EXPECT_TRUE(blocks.alloc(some_size(random)));
                    } else if (what < 7) {
                        blocks.free(random.below(blocks.all.size()));
                    } else if (what < 8) {
                        EXPECT_TRUE(blocks.realloc(random.below(blocks.all.size()), 1 + some_size(random)));
                    } else {
                        Box& box = boxes[random.below(threads)];
                        std::lock_guard<std::mutex> held(box.mutex);
                        if (what < 9 && box.blocks.size() < 200) {
                            box.blocks.push_back(blocks.take(random.below(blocks.all.size())));
                        } else if (!box.blocks.empty()) {
                            blocks.all.push_back(box.blocks.back());
                            box.blocks.pop_back();
                        }
                    }
                }
                if (t % 2 == 0) {
                    blocks.free_all();
                } else {
                    std::lock_guard<std::mutex> held(boxes[t].mutex);
                    for (const Block& b : blocks.all) boxes[t].blocks.push_back(b);
                }
                unit_detach();
            });
        for (std::thread& t : all) t.join();
        EXPECT_TRUE(span_check());
        EXPECT_GE(unit_check_slabs(), 0);
        uint64_t live = 0;
        uint64_t bytes = 0;
        for (Box& box : boxes)
            for (const Block& b : box.blocks) {
                live++;
                bytes += b.usable;
            }
        // The helper may be returning what threads left: figures that are read one after the other miss it.
        struct unit_figures f = census();
        for (unsigned i = 0; i < 500 && (f.live_blocks != live || f.live_bytes != bytes); i++) {
            usleep(10000);
            f = census();
        }
        EXPECT_EQ(f.live_blocks, live);
        EXPECT_EQ(f.live_bytes, bytes);
    }
    Blocks left;
    for (Box& box : boxes) left.all.insert(left.all.end(), box.blocks.begin(), box.blocks.end());
    left.free_all();
    EXPECT_GE(unit_check_slabs(), 0);
    EXPECT_LE(unit_heaps_made(), 5u);
    expect_nothing_left();
}

TEST(Threads, ExchangeBlocksAtRandom) {
    for (uint64_t seed = 1; seed <= 3; seed++)
        EXPECT_FINE(in_child([&] { exchange(seed, unit_rounds(15000)); }));
}

TEST(Threads, ExchangeBlocksAtRandomInFullMode) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_CHECKS", "full", 1);
        exchange(9, unit_rounds(8000));
    }));
}

TEST(Threads, ExchangeBlocksAtRandomWhilePurging) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "reserve=4m:dirty_max=128k:check_first=0:check_every=1", 1);
        exchange(17, unit_rounds(8000));
    }));
}

// One thread makes blocks, another frees them, for ever: memory in use stays bounded.
TEST(Threads, APipelineStaysSmall) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Box box;
        std::atomic<bool> done{false};
        const unsigned count = unit_rounds(200000);
        std::thread consumer([&] {
            std::vector<Block> taken;
            for (bool last = false; !last;) {
                last = done;
                {
                    std::lock_guard<std::mutex> held(box.mutex);
                    taken.swap(box.blocks);
                }
                for (const Block& b : taken) {
                    EXPECT_EQ(b.p[0], b.stamp);
                    unit_free(b.p);
                }
                taken.clear();
            }
            unit_detach();
        });
        for (unsigned i = 0; i < count;) {
            std::unique_lock<std::mutex> held(box.mutex);
            if (box.blocks.size() >= 1000) {
                held.unlock();
                std::this_thread::yield();
                continue;
            }
            size_t size = 16 + i % 20 * 16;
            unsigned char stamp = static_cast<unsigned char>(i++);
            unsigned char* p = static_cast<unsigned char*>(unit_alloc(size));
            p[0] = stamp;
            box.blocks.push_back({p, size, size, stamp});
        }
        done = true;
        consumer.join();
        EXPECT_LE(span_totals.live, 12 * MIB);
        EXPECT_EQ(census().live_blocks, 0u);
        expect_nothing_left();
    }));
}

TEST(Threads, AWalkOverTheHeapMayRunMeanwhile) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        std::atomic<bool> stop{false};
        std::vector<std::thread> all;
        for (uint64_t t = 0; t < 2; t++)
            all.emplace_back([&, t] {
                Random random(t + 5);
                Blocks blocks;
                while (!stop) {
                    while (blocks.all.size() < 200) blocks.alloc(some_size(random));
                    while (blocks.all.size() > 20) blocks.free(random.below(blocks.all.size()));
                }
                blocks.free_all();
                unit_detach();
            });
        for (unsigned i = 0; i < unit_rounds(300); i++) {
            struct unit_figures f = census();
            EXPECT_LE(f.live_bytes, GIB);
            EXPECT_LE(f.live_blocks, 1000000u);
        }
        stop = true;
        for (std::thread& t : all) t.join();
        EXPECT_EQ(census().live_blocks, 0u);
    }));
}

} // namespace
