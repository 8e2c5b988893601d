// parked_test.cc: heaps of threads that ended, which wait for the next thread. Called by ctest; each test
// starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "workers.h"
#include <atomic>
#include <cstdlib>
#include <functional>

namespace {

// Looks are the test's own.
void no_helper() { setenv("WEIR_OPTIONS", "release_floor=1g:hugepages=never", 1); }

// The heap of a thread that does that and ends.
struct heap* heap_of_thread(const std::function<void()>& body) {
    struct heap* h = nullptr;
    std::thread([&] {
        body();
        h = unit_self();
        unit_end();
    }).join();
    return h;
}

// What a thread leaves behind when it ends: some blocks in use, some free, of its slabs and of chunks.
struct heap* left_behind(std::vector<void*>* live, size_t count = 100) {
    return heap_of_thread([&] {
        for (size_t size : {32u, 200u, 1000u, 5000u}) {
            std::vector<void*> all = many(count, size);
            for (size_t i = 0; i < all.size(); i++) {
                if (i % 2 == 0)
                    live->push_back(all[i]);
                else
                    unit_free(all[i]);
            }
        }
    });
}

TEST(Parked, TheNextOneHasTheHeapOfOneThatEnded) {
    EXPECT_FINE(in_child([] {
        no_helper();
        unit_attach();
        std::vector<void*> live;
        struct heap* left = left_behind(&live);
        EXPECT_GT(unit_parked(), 0u);
        EXPECT_EQ(unit_heaps_live(), 1u);
        struct slice* s = unit_slice(live[0]);
        EXPECT_FALSE(unit_is_unowned(s));
        std::thread([&] {
            void* p = unit_alloc(32);
            EXPECT_EQ(unit_self(), left);
            EXPECT_EQ(unit_parked(), 0u);
            EXPECT_EQ(unit_slice(p), s);
            EXPECT_TRUE(unit_is_mine(s));
            unit_free(p);
            EXPECT_EQ(unit_heaps_live(), 2u);
            unit_end();
        }).join();
        for (void* p : live) unit_free(p);
        EXPECT_GE(unit_check_slabs(), 0);
        expect_nothing_left();
    }));
}

// Of several the next thread has the one where least is in use: what the last one left there others are about
// to free.
TEST(Parked, TheNextOneHasAHeapOfWhichMostIsFree) {
    EXPECT_FINE(in_child([] {
        no_helper();
        unit_attach();
        struct heap* full = nullptr;
        struct heap* other = nullptr;
        std::vector<void*> live;
        std::vector<void*> more;
        std::thread([&] {
            live = many(100, 1000);
            full = unit_self();
            other = left_behind(&more, 20);
            EXPECT_NE(other, full);
            unit_end(); // the last one
        }).join();
        EXPECT_EQ(unit_parked_count(), 2u);
        EXPECT_EQ(left_behind(&more, 80), other); // which is the last one now, with more in use
        for (void* p : live) unit_free(p);
        EXPECT_EQ(left_behind(&more, 20), full); // what was freed is back, but for what is on its way
        for (void* p : more) unit_free(p);
        expect_nothing_left();
    }));
}

// The heaps of threads that live at the same time, each of which leaves so many blocks in use.
void ended_together(const std::vector<size_t>& counts, std::vector<struct heap*>* heaps,
                    std::vector<std::vector<void*>>* live) {
    if (live->size() == counts.size()) return;
    std::thread([&] {
        live->push_back(many(counts[live->size()], 1000));
        heaps->push_back(unit_self());
        ended_together(counts, heaps, live);
        unit_end();
    }).join();
}

// What others free of heaps that wait is seen in time: of the last one at once, of the others by and by.
TEST(Parked, WhatOthersFreedIsSeenBeforeLong) {
    for (size_t drained = 0; drained < 8; drained++) {
        EXPECT_FINE(in_child([&] {
            no_helper();
            unit_attach();
            std::vector<struct heap*> heaps;
            std::vector<std::vector<void*>> live;
            std::vector<size_t> counts(8, 30); // of one slab each
            counts[drained] = 50;              // chosen last, if it were not asked
            ended_together(counts, &heaps, &live);
            EXPECT_EQ(unit_parked_count(), 8u);
            for (void* p : live[drained]) unit_free(p);
            live[drained].clear();
            size_t threads = 0;
            // Each takes the heap that has least in use, and leaves a bit more, so that another one is next.
            auto body = [&] {
                for (void* p : many(2 * (threads + 1), 1000)) live[0].push_back(p);
            };
            while (threads < 8 && heap_of_thread(body) != heaps[drained]) threads++;
            EXPECT_LT(threads, drained == 0 ? 1u : 8u) << drained;
            for (const std::vector<void*>& blocks : live)
                for (void* p : blocks) unit_free(p);
            expect_nothing_left();
        }));
    }
}

// Two heaps wait: one with so many bytes of each size in use, which `live` gets, and one where less is.
struct Waiting {
    struct heap* one = nullptr;
    struct heap* other = nullptr;
    std::vector<void*> live, more;
    Waiting(const std::vector<size_t>& sizes, size_t each) {
        std::thread([&] {
            for (size_t size : sizes)
                for (void* p : many(each / size, size)) live.push_back(p);
            one = unit_self();
            other = left_behind(&more, 20);
            unit_end();
        }).join();
        EXPECT_EQ(unit_parked_count(), 2u);
    }
    // The first block that is free of a slab tells whose that is.
    static void drop(std::vector<void*>* blocks, size_t at = 0) {
        unit_free((*blocks)[at]);
        blocks->erase(blocks->begin() + static_cast<long>(at));
    }
    void end() {
        for (void* p : live) unit_free(p);
        for (void* p : more) unit_free(p);
        expect_nothing_left();
    }
};

// The heap that a thread gets which does that before it allocates.
struct heap* heap_after(const std::function<void()>& first) {
    return heap_of_thread([&] {
        first();
        unit_free(unit_alloc(100));
    });
}

// A thread that begins by freeing what one that ended took has its heap.
TEST(Parked, WhoFreesABlockFirstHasTheHeapThatItIsOf) {
    EXPECT_FINE(in_child([] {
        no_helper();
        unit_attach();
        Waiting w({1000, 900, 800}, 20000);
        for (size_t i = 0; i < 3; i++) {
            EXPECT_EQ(heap_after([&] { w.drop(&w.live, i * 20); }), w.one);
            EXPECT_EQ(heap_after([&] { w.drop(&w.more, i * 10); }), w.other);
            EXPECT_EQ(heap_after([] {}), w.other); // who wants nothing has the one with least in use
        }
        w.end();
    }));
}

// That another thread wanted a heap counts for nothing, though it had the same stack, or wanted it before it
// was parked again; nor that the one who left it freed some more of it then.
TEST(Parked, WhatOthersWantedCountsForNothing) {
    EXPECT_FINE(in_child([] {
        no_helper();
        unit_attach();
        Waiting w({1000, 900, 800}, 20000);
        std::thread([&] { w.drop(&w.live); }).join(); // it takes nothing
        EXPECT_EQ(heap_after([] {}), w.other);
        EXPECT_EQ(heap_after([&] { w.drop(&w.live, 20); }), w.other); // the first one wants it still
        std::thread([&] {
            std::thread([&] { EXPECT_EQ(heap_after([] {}), w.other); }).join();
            w.drop(&w.more);
            unit_free(unit_alloc(100));
            EXPECT_EQ(unit_self(), w.other);
            std::thread([&] {
                unit_free(unit_alloc(100));
                EXPECT_EQ(unit_self(), w.one); // what is left
                unit_end();
                w.drop(&w.live, 40); // of the heap that was its own
            }).join();
            unit_end();
        }).join();
        EXPECT_EQ(heap_after([] {}), w.other);
        w.end();
    }));
}

// A heap that is in use for the most part would grow too large to be parked again.
TEST(Parked, AHeapThatIsLargeAndFullIsNotWanted) {
    EXPECT_FINE(in_child([] {
        no_helper();
        unit_attach();
        std::vector<size_t> sizes;
        for (size_t size = 16; size <= 1024; size += 16) sizes.push_back(size);
        for (size_t each : {12 * KIB, 24 * KIB}) {
            Waiting w(sizes, each); // in use: 0.7 and 1.5 MiB
            EXPECT_EQ(heap_after([&] { w.drop(&w.live); }) == w.one, each == 12 * KIB);
            w.end();
            unit_collect();
        }
    }));
}

// Another thread has the heap by the time that the one who wants it allocates.
TEST(Parked, AHeapThatIsWantedIsGivenOnce) {
    EXPECT_FINE(in_child([] {
        no_helper();
        unit_attach();
        std::vector<void*> live;
        struct heap* left = left_behind(&live);
        std::thread([&] {
            unit_free(live.back());
            live.pop_back();
            std::thread([&] {
                unit_free(unit_alloc(100));
                EXPECT_EQ(unit_self(), left);
                std::thread([&] {
                    unit_free(live.back()); // of a heap that does not wait any more
                    live.pop_back();
                    unit_free(unit_alloc(100));
                    EXPECT_NE(unit_self(), left);
                    unit_end();
                }).join();
                unit_end();
            }).join();
            unit_free(unit_alloc(100)); // both wait; whichever it gets is the thread's alone
            EXPECT_EQ(unit_parked_count(), 1u);
            EXPECT_EQ(unit_heaps_live(), 2u);
            unit_end();
        }).join();
        for (void* p : live) unit_free(p);
        expect_nothing_left();
    }));
}

// What a thread takes in a destructor that runs after its exit hook nobody takes from it again.
TEST(Parked, WhoAllocatesAfterItsEndGetsNoneThatWaits) {
    EXPECT_FINE(in_child([] {
        no_helper();
        unit_attach();
        std::thread([] {
            unit_free(unit_alloc(32));
            void* left = unit_self();
            unit_end();
            uint64_t waits = unit_parked();
            EXPECT_GT(waits, 0u);
            void* p = unit_alloc(32);
            EXPECT_NE(unit_self(), left);
            EXPECT_EQ(unit_parked(), waits);
            unit_free(p);
            unit_detach();
        }).join();
        unit_collect();
        expect_nothing_left();
    }));
}

// Free blocks in the bins of such a heap are no live ones, and are counted on no thread's account.
TEST(Parked, WhatWaitsForTheNextOneIsFree) {
    EXPECT_FINE(in_child([] {
        no_helper();
        unit_attach();
        std::vector<void*> live;
        left_behind(&live);
        EXPECT_EQ(census().live_blocks, live.size());
        EXPECT_EQ(unit_parked(), 0u); // all that it had is others' now
        EXPECT_TRUE(unit_is_unowned(unit_slice(live[0])));
        for (void* p : live) unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Parked, HeapsWithoutANextThreadAreEmptiedOut) {
    EXPECT_FINE(in_child([] {
        no_helper();
        unit_attach();
        std::vector<void*> live;
        left_behind(&live);
        struct slice* s = unit_slice(live[0]);
        unit_visit(false); // it had need since the last look
        EXPECT_FALSE(unit_is_unowned(s));
        unit_visit(false);
        EXPECT_TRUE(unit_is_unowned(s));
        EXPECT_EQ(unit_parked(), 0u);
        left_behind(&live);
        unit_visit(true);
        EXPECT_EQ(unit_parked(), 0u);
        left_behind(&live);
        unit_collect(); // as malloc_trim, and where memory is short
        EXPECT_EQ(unit_parked(), 0u);
        for (void* p : live) unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Parked, LargeHeapsAndManyDoNotWaitForTheNextOne) {
    EXPECT_FINE(in_child([] {
        no_helper();
        unit_attach();
        std::vector<void*> live;
        left_behind(&live, 2000);
        EXPECT_EQ(unit_parked(), 0u);
        std::atomic<unsigned> ready{0};
        std::vector<std::thread> all;
        for (unsigned t = 0; t < 100; t++)
            all.emplace_back([&] {
                unit_free(unit_alloc(100));
                ready++;
                while (ready != 100) usleep(100);
                unit_end();
            });
        for (std::thread& t : all) t.join();
        EXPECT_GT(unit_parked(), 0u);
        EXPECT_EQ(unit_heaps_live(), 1u);
        EXPECT_EQ(unit_parked_count(), 64u);
        for (void* p : live) unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Parked, NoHeapWaitsWhereNobodyComesBy) {
    for (const char* options : {"release=off", "checks=full"})
        EXPECT_FINE(in_child([&] {
            setenv("WEIR_OPTIONS", options, 1);
            unit_attach();
            std::vector<void*> live;
            left_behind(&live);
            EXPECT_EQ(unit_parked(), 0u);
            EXPECT_TRUE(unit_is_unowned(unit_slice(live[0])));
            for (void* p : live) unit_free(p);
        }));
}

// Threads begin and end while others free what they left, look at the heaps, and count.
TEST(Parked, ComeAndGoWhileHeapsAreLookedAt) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        std::atomic<bool> stop{false};
        std::thread visitor([&] {
            for (unsigned i = 0; !stop; i++) {
                unit_visit(i % 8 == 0);
                usleep(200);
            }
        });
        std::vector<std::thread> chains;
        for (unsigned t = 0; t < 3; t++)
            chains.emplace_back([&, t] {
                Random random(t + 1);
                Blocks blocks;
                for (unsigned i = 0; i < unit_rounds(60); i++)
                    std::thread([&] {
                        for (unsigned n = 0; n < 300; n++) {
                            if (blocks.all.size() < 100 || random.below(2) != 0)
                                blocks.alloc(some_size(random));
                            else
                                blocks.free(random.below(blocks.all.size()));
                        }
                        unit_end();
                    }).join();
                blocks.free_all();
                unit_end();
            });
        for (std::thread& t : chains) t.join();
        stop = true;
        visitor.join();
        EXPECT_EQ(census().live_blocks, 0u);
        expect_nothing_left();
    }));
}

} // namespace
