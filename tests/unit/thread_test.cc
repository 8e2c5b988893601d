// thread_test.cc: the heap layer among threads: remote frees, owners that sleep or end, heaps and slabs
// used again. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "blocks.h"
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace {

// A thread that does what it is told, one thing after the other, and keeps its heap in between.
class Worker {
  public:
    Worker() : thread([this] { run(); }) {}
    ~Worker() { end(); }
    template <class Task>
    void does(Task task) {
        std::unique_lock<std::mutex> held(mutex);
        next = task;
        changed.notify_all();
        changed.wait(held, [&] { return next == nullptr; });
    }
    void end() {
        if (!thread.joinable()) return;
        {
            std::unique_lock<std::mutex> held(mutex);
            stop = true;
            changed.notify_all();
        }
        thread.join();
    }
    bool detaches = true;

  private:
    void run() {
        std::unique_lock<std::mutex> held(mutex);
        for (;;) {
            changed.wait(held, [&] { return stop || next != nullptr; });
            if (stop) break;
            next();
            next = nullptr;
            changed.notify_all();
        }
        if (detaches) unit_detach();
    }
    std::mutex mutex;
    std::condition_variable changed;
    std::function<void()> next;
    bool stop = false;
    std::thread thread;
};

std::vector<void*> many(size_t count, size_t size) {
    std::vector<void*> all;
    for (size_t i = 0; i < count; i++) {
        all.push_back(unit_alloc(size));
        memset(all.back(), static_cast<int>(i), size);
    }
    return all;
}

struct unit_figures census() {
    struct unit_figures f;
    unit_census(&f);
    return f;
}

TEST(Threads, FreesOfAnothersBlocksComeHome) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker owner;
        std::vector<void*> all;
        for (size_t size : {16u, 48u, 1000u, 5000u, 60000u, 100000u}) {
            owner.does([&] { all = many(500, size); });
            for (void* p : all) unit_free(p);
            unit_collect();
            owner.does([] { unit_collect(); }); // what waits in its bins counts as live otherwise
            EXPECT_GE(unit_check_slabs(), 0);
            EXPECT_EQ(census().live_blocks, 0u) << size;
            // The owner goes on with what came back.
            owner.does([&] {
                std::vector<void*> again = many(500, size);
                EXPECT_EQ(std::set<void*>(again.begin(), again.end()).size(), 500u);
                for (void* p : again) unit_free(p);
            });
        }
        EXPECT_GT(census().remote_frees, 400u);
        owner.end();
        expect_nothing_left();
    }));
}

TEST(Threads, OwnerTakesInWhatOthersFreed) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker owner;
        std::vector<void*> all;
        owner.does([&] { all = many(100, 64); });
        struct slice* s = unit_slice(all[0]);
        for (int i = 0; i < 32; i++) unit_free(all[static_cast<size_t>(i)]); // an outbox's worth
        EXPECT_EQ(unit_remote_count(s), 32u);
        EXPECT_FALSE(unit_is_mine(s));
        uint32_t used = unit_used(s);
        owner.does([&] { unit_free(all[40]); }); // nudged: the free looks
        EXPECT_EQ(unit_remote_count(s), 0u);
        EXPECT_EQ(unit_used(s), used - 33);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// Partly used slabs of an owner that never runs again: when others free the rest, the slabs go.
TEST(Threads, EmptiedSlabsOfASleeperAreReleased) {
    for (size_t size : {64u, 1000u, 9000u})
        EXPECT_FINE(in_child([&] {
            core_options.dirty_max = 1 * MIB;
            core_options.sparse_max = 0;
            unit_attach();
            Worker sleeper;
            const size_t slabs = 100;
            const struct size_class& k = size_classes[class_of(size)];
            const size_t slab_bytes = size_t{k.slices} << SLICE_SHIFT;
            std::vector<void*> rest;
            sleeper.does([&] {
                std::vector<void*> all = many(slabs * k.capacity, size);
                for (size_t i = 0; i < all.size(); i++) {
                    if (i % k.capacity == 3)
                        unit_free(all[i]); // now each slab is the sleeper's own again, and listed
                    else
                        rest.push_back(all[i]);
                }
            });
            uint64_t live_before = span_totals.live;
            uint64_t resident_before, resident, peak;
            os_resident(&resident_before, &peak);
            EXPECT_GE(live_before, slabs * slab_bytes);
            for (void* p : rest) unit_free(p);
            unit_collect(); // outboxes
            os_resident(&resident, &peak);
            struct unit_figures f = census();
            EXPECT_EQ(f.live_blocks, 0u);
            EXPECT_LE(f.slabs, 1u);
            EXPECT_LE(span_totals.live, f.meta_bytes + slab_bytes);
            EXPECT_LE(span_totals.dirty, 1 * MIB);
            EXPECT_TRUE(unit_sanitized || resident <= resident_before - slabs * slab_bytes * 3 / 4);
            EXPECT_TRUE(span_check());
            EXPECT_GE(unit_check_slabs(), 0);
            sleeper.does([&] { // wakes after all, with its lists in order
                for (void* p : many(1000, size)) unit_free(p);
            });
            sleeper.end();
            expect_nothing_left();
        }));
}

// Full slabs have no owner: whoever frees into one first takes it over, whoever made it.
TEST(Threads, FullSlabsAreTakenOverByTheirFirstFreer) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker sleeper;
        std::vector<void*> all;
        const struct size_class& k = size_classes[class_of(256)];
        sleeper.does([&] { all = many(k.capacity * 4 + 1, 256); });
        struct slice* s = unit_slice(all[0]);
        EXPECT_TRUE(unit_is_unowned(s));
        EXPECT_EQ(s->owner, nullptr);
        unit_free(unit_alloc(256)); // a thread that has a use for it
        unit_free(all[0]);
        EXPECT_FALSE(unit_is_unowned(s));
        EXPECT_TRUE(unit_is_mine(s));
        EXPECT_EQ(unit_remote_count(s), 0u);
        EXPECT_EQ(unit_used(s), s->built - 1u);
        for (unsigned i = 1; i < class_enough(&k); i++) unit_free(all[i]);
        unsigned inside = 0;
        for (void* p : many(k.capacity, 256)) inside += unit_slice(p) == s;
        EXPECT_EQ(inside, class_enough(&k)); // the adopted slab serves its new owner
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// `frees` are by a thread that never took a block of the class; `attached`: but of others.
void nobody_needs(bool attached) {
    unit_attach();
    const struct size_class& k = size_classes[class_of(256)];
    const unsigned enough = class_enough(&k);
    std::vector<void*> all = many(k.capacity * 2 + 1, 256);
    struct slice* s = unit_slice(all[0]);
    struct slice* t = unit_slice(all[k.capacity]);
    Worker other;
    unsigned freed = 0;
    auto frees = [&](unsigned count) {
        other.does([&, count] {
            if (attached && freed == 0) unit_free(unit_alloc(64));
            for (unsigned i = 0; i < count; i++) unit_free(all[freed++]);
        });
    };
    frees(enough - 1);
    EXPECT_TRUE(unit_is_unowned(s));
    EXPECT_FALSE(unit_is_orphan(s));
    EXPECT_EQ(unit_remote_count(s), enough - 1);
    frees(1); // enough: whoever needs a list finds it
    EXPECT_TRUE(unit_is_unowned(s));
    EXPECT_TRUE(unit_is_orphan(s));
    EXPECT_EQ(unit_remote_count(s), enough);
    EXPECT_EQ(census().remote_frees, enough);
    EXPECT_GE(unit_check_slabs(), 0);
    frees(k.capacity - enough - 1);
    EXPECT_EQ(unit_remote_count(s), k.capacity - 1);
    frees(1); // and the last one ends it
    EXPECT_NE(s->kind, SLICE_SLAB);
    EXPECT_TRUE(unit_is_unowned(t));
    frees(enough);
    EXPECT_TRUE(unit_is_orphan(t));
    std::vector<void*> more = many(k.capacity - 1 + enough, 256);
    unsigned inside = 0;
    for (void* p : more) inside += unit_slice(p) == t;
    EXPECT_EQ(inside, enough);
    EXPECT_EQ(census().remote_frees, freed);
    frees(k.capacity - enough);
    other.end();
    EXPECT_GE(unit_check_slabs(), 0);
    unit_free(all.back());
    for (void* p : more) unit_free(p);
    expect_nothing_left();
}

TEST(Threads, WhatComesBackByAThreadWithoutAHeapWaitsForOthers) {
    EXPECT_FINE(in_child([] { nobody_needs(false); }));
}
TEST(Threads, WhatComesBackByAThreadThatHasNoUseForItWaitsForOthers) {
    EXPECT_FINE(in_child([] { nobody_needs(true); }));
}

TEST(Threads, WhatWaitsAtNobodysSlabIsSortedByVisitors) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        const struct size_class& k = size_classes[class_of(512)];
        std::vector<void*> all = many(k.capacity * 2 + 1, 512);
        struct slice* s = unit_slice(all[0]);
        Worker other;
        other.does([&] {
            for (unsigned i = 0; i < 9; i++) unit_free(all[i]); // the first page's, and one more
        });
        EXPECT_TRUE(unit_is_unowned(s));
        EXPECT_EQ(unit_remote_count(s), 9u);
        unit_visit(true);
        EXPECT_EQ(unit_remote_count(s), 0u);
        EXPECT_TRUE(unit_is_unowned(s));
        EXPECT_TRUE(unit_is_orphan(s));
        EXPECT_EQ(s->built, k.capacity - 8u); // its first page is a hole
        EXPECT_GE(unit_check_slabs(), 0);
        other.end();
        for (size_t i = 9; i < all.size(); i++) unit_free(all[i]);
        expect_nothing_left();
    }));
}

// A cache from which another thread throws out at random: the blocks that stay are strewn over no more slabs
// than they need.
TEST(Threads, WhatOthersFreeAtRandomIsUsedAgain) {
    for (size_t size : {64u, 512u, 1000u})
        EXPECT_FINE(in_child([=] {
            enum { live = 2 << 20, batch = 64, turns = 3 };
            unit_attach();
            Worker ender;
            std::vector<void*> cache = many(static_cast<unsigned>(live / size), size);
            Random random(1);
            std::vector<void*> out;
            for (unsigned i = 0; i < turns * cache.size(); i++) {
                void*& slot = cache[random.below(static_cast<unsigned>(cache.size()))];
                out.push_back(slot);
                slot = unit_alloc(size);
                if (out.size() < batch) continue;
                ender.does([&] {
                    for (void* p : out) unit_free(p);
                });
                out.clear();
            }
            EXPECT_LT(span_totals.live, live + live / 2);
            for (void* p : out) unit_free(p);
            for (void* p : cache) unit_free(p);
            ender.end();
            expect_nothing_left();
        }));
}

// The last block of a slab but one comes back twice, by a thread without a heap: the other one stays what it
// is, and the owner reports.
TEST(Threads, ASlabIsNotGoneForABlockThatCameBackTwice) {
    Ended ended = in_child([] {
        unit_attach();
        std::vector<void*> all = many(4 * size_classes[class_of(64)].capacity, 64);
        struct slice* s = unit_slice(all[0]);
        std::vector<void*> two;
        for (void* p : all) {
            if (unit_slice(p) != s) continue;
            if (two.size() < 2)
                two.push_back(p);
            else
                unit_free(p);
        }
        memset(two[0], 1, 64);
        std::thread([&] {
            unit_free(two[1]);
            unit_free(two[1]);
        }).join();
        for (unsigned i = 0; i < 64; i++)
            if (static_cast<char*>(two[0])[i] != 1) _exit(3);
        unit_collect();
        for (unsigned i = 0; i < 5000; i++)
            if (unit_alloc(64) == two[0]) _exit(4);
        _exit(0);
    });
    EXPECT_TRUE(ended.aborted()) << ended.printed;
    EXPECT_NE(ended.printed.find("weir: double-free"), std::string::npos) << ended.printed;
}

// A thread that frees itself keeps its slab, also where others did before.
TEST(Threads, WhoFreesItselfKeepsItsSlab) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker ender;
        std::vector<void*> all = many(8, 128);
        ender.does([&] {
            for (void* p : all) unit_free(p);
        });
        all = many(40, 128); // those 8 among them
        for (void* p : all) unit_free(p);
        all = many(300, 128);
        std::set<struct slice*> slabs;
        for (void* p : all) slabs.insert(unit_slice(p));
        EXPECT_EQ(slabs.size(), 1u);
        for (void* p : all) unit_free(p);
        ender.end();
        expect_nothing_left();
    }));
}

// Among many threads, a bin gets a part of what others freed, and visitors see the rest.
TEST(Threads, ManyThreadsBinsAreShort) {
    EXPECT_FINE(in_child([] {
        enum { size = 64, count = 400, others = 10 };
        unit_attach();
        std::vector<std::unique_ptr<Worker>> crowd;
        for (unsigned few : {1u, 0u}) {
            for (unsigned i = 0; few == 0 && i < others; i++) {
                crowd.push_back(std::make_unique<Worker>());
                crowd.back()->does([] { unit_attach(); });
            }
            Worker maker, ender;
            std::vector<void*> all, again;
            maker.does([&] { all = many(count, size); });
            struct slice* s = unit_slice(all[0]);
            ender.does([&] {
                for (void* p : all) unit_free(p);
            });
            maker.does([&] { again = many(count / 2, size); }); // whatever the bin had, then what came back
            EXPECT_EQ(unit_used(s) == s->built, few == 1) << few;
            EXPECT_GE(unit_check_slabs(), 0);
            maker.does([&] {
                for (void* p : again) unit_free(p);
            });
        }
        crowd.clear();
        expect_nothing_left();
    }));
}

// A heap that is small has its active slabs for itself; where there are many, a smaller one is not.
TEST_NATIVE(Threads, ManySmallHeapsAreVisited) {
    EXPECT_FINE(in_child([] {
        enum { size = 256, bytes = 150 << 10, others = 20 };
        unit_attach();
        std::vector<std::unique_ptr<Worker>> crowd;
        for (unsigned few : {1u, 0u}) {
            for (unsigned i = 0; few == 0 && i < others; i++) {
                crowd.push_back(std::make_unique<Worker>());
                crowd.back()->does([] { unit_attach(); });
            }
            std::vector<void*> all = many(bytes / size, size);
            for (size_t i = 0; i < all.size(); i += 2) unit_free(all[i]); // its slabs are its own again
            void* last = nullptr;
            for (size_t i = 0; i < 200; i += 2) last = all[i] = unit_alloc(size);
            for (size_t i = 200; i < all.size(); i += 2) all[i] = nullptr;
            EXPECT_EQ(unit_slice(last)->listed != 0, few == 0) << few << " " << int(unit_slice(last)->listed);
            for (void* p : all)
                if (p != nullptr) unit_free(p);
            unit_collect();
        }
        crowd.clear();
        expect_nothing_left();
    }));
}

// Producers and those that only free: no block is lost, none is given twice, and what all gave back is found
// by its producers, or goes.
TEST(Threads, ManyThatOnlyFree) {
    EXPECT_FINE(in_child([] {
        enum { makers = 2, enders = 3, rounds = 60, batch = 400 };
        unit_attach();
        struct Batch {
            std::atomic<unsigned> turn{0}; // even: it is to be filled, odd: emptied
            void* blocks[batch];
        };
        static Batch batches[8];
        static std::atomic<unsigned> made{0}, ended{0};
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < makers; t++)
            threads.emplace_back([t] {
                unit_attach();
                for (unsigned n; (n = made.fetch_add(1)) < rounds;) {
                    Batch& b = batches[n % 8];
                    while (b.turn.load(std::memory_order_acquire) != n / 8 * 2) std::this_thread::yield();
                    for (unsigned i = 0; i < batch; i++) {
                        size_t size = 16 + 48 * (i % 9) + 2048 * (i % 50 == 0);
                        b.blocks[i] = unit_alloc(size);
                        memset(b.blocks[i], static_cast<int>(t + 1), size);
                    }
                    b.turn.store(n / 8 * 2 + 1, std::memory_order_release);
                }
                unit_detach();
            });
        for (unsigned t = 0; t < enders; t++)
            threads.emplace_back([] {
                for (unsigned n; (n = ended.fetch_add(1)) < rounds;) {
                    Batch& b = batches[n % 8];
                    while (b.turn.load(std::memory_order_acquire) != n / 8 * 2 + 1) std::this_thread::yield();
                    for (unsigned i = 0; i < batch; i++) {
                        size_t size = 16 + 48 * (i % 9);
                        const unsigned char* p = static_cast<unsigned char*>(b.blocks[i]);
                        if (p[0] != p[size - 1] || p[0] == 0 || p[0] > makers) abort();
                        unit_free(b.blocks[i]);
                    }
                    b.turn.store(n / 8 * 2 + 2, std::memory_order_release);
                }
            });
        for (std::thread& t : threads) t.join();
        EXPECT_GE(unit_check_slabs(), 0);
        expect_nothing_left();
    }));
}

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

// Looks are the test's own.
void no_helper() { setenv("WEIR_OPTIONS", "release_floor=1g", 1); }

// What a thread leaves behind when it ends: some blocks in use, some free, of its slabs and of chunks.
struct heap* left_behind(std::vector<void*>* live, size_t count = 100) {
    struct heap* h = nullptr;
    std::thread([&] {
        for (size_t size : {32u, 200u, 1000u, 5000u}) {
            std::vector<void*> all = many(count, size);
            for (size_t i = 0; i < all.size(); i++) {
                if (i % 2 == 0)
                    live->push_back(all[i]);
                else
                    unit_free(all[i]);
            }
        }
        h = unit_self();
        unit_end();
    }).join();
    return h;
}

TEST(Threads, TheNextOneHasTheHeapOfOneThatEnded) {
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

// What a thread takes in a destructor that runs after its exit hook nobody takes from it again.
TEST(Threads, WhoAllocatesAfterItsEndGetsNoneThatWaits) {
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
TEST(Threads, WhatWaitsForTheNextOneIsFree) {
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

TEST(Threads, HeapsWithoutANextThreadAreEmptiedOut) {
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

TEST(Threads, LargeHeapsAndManyDoNotWaitForTheNextOne) {
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

TEST(Threads, NoHeapWaitsWhereNobodyComesBy) {
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
TEST(Threads, ComeAndGoWhileHeapsAreLookedAt) {
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
            for (size_t i = 0; i < 300; i += 20) unit_free(mine[i]); // too few to be sent
        });
        EXPECT_EQ(census().live_blocks, 300u);
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
        EXPECT_EQ(census().live_blocks, live);
        EXPECT_EQ(census().live_bytes, bytes);
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
