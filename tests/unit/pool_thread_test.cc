// pool_thread_test.cc: pools among threads: exchange, flush and gc at any moment, threads that end, fork, and
// words in TLS. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "pools.h"
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <mutex>
#include <thread>

WEIR_POOL_DECLARE(unit_words, 200, 0, 0);
WEIR_POOL_DECLARE_TYPED(unit_typed, uint64_t, WEIR_POOL_ZERO);

namespace {

void in_threads(unsigned count, const std::function<void(unsigned)>& body) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < count; i++)
        threads.emplace_back([&, i] {
            body(i);
            unit_detach();
        });
    for (auto& t : threads) t.join();
}

// Objects on their way from one thread to another.
struct Channel {
    std::mutex mutex;
    std::vector<Objects::Object> waiting;
    void put(Objects::Object o) {
        std::lock_guard<std::mutex> held(mutex);
        waiting.push_back(o);
    }
    bool get(Objects::Object& o) {
        std::lock_guard<std::mutex> held(mutex);
        if (waiting.empty()) return false;
        o = waiting.back();
        waiting.pop_back();
        return true;
    }
};

TEST(PoolThreads, RandomLoadWithFlushAndGcConserves) {
    for (size_t size : {64u, 16384u, 262144u})
        EXPECT_FINE(in_child([=] {
            weir_pool* pool = weir_pool_create("load", size, 0, 0);
            weir_pool* other = weir_pool_create("other", size, 0, 0);
            Channel channel;
            in_threads(4, [&](unsigned number) {
                Random random(number + size);
                Objects mine(number % 2 == 0 ? pool : other, size);
                Objects from_pool(pool, size);
                for (unsigned i = 0; i < unit_rounds(size > 100000 ? 20000 : 100000); i++) {
                    size_t what = random.below(100);
                    if (what < 45 && mine.all.size() < (size > 100000 ? 30 : 300)) {
                        mine.alloc();
                    } else if (what < 80 && !mine.all.empty()) {
                        mine.free(random.below(mine.all.size()));
                    } else if (what < 90 && number % 2 == 0 && !mine.all.empty()) {
                        channel.put(mine.all.back());
                        mine.all.pop_back();
                    } else if (what < 99) {
                        Objects::Object o;
                        if (!channel.get(o)) continue;
                        from_pool.all.push_back(o);
                        from_pool.free(0);
                    } else if (what == 99 && random.below(10) == 0) {
                        weir_pool_flush(pool);
                    } else if (random.below(40) == 0) {
                        random.below(2) == 0 ? weir_pool_gc() : static_cast<void>(unit_pool_tick());
                    } else if (random.below(40) == 0) {
                        unit_detach(); // as weir_thread_idle
                    } else {
                        weir_pool_stats s = stats(pool); // what moves meanwhile may be anything
                        EXPECT_LE(s.held, 4 * 2 * s.magazine);
                    }
                }
                mine.free_all();
            });
            Objects rest(pool, size);
            rest.all = channel.waiting;
            rest.free_all();
            expect_conserved(pool, 0);
            expect_conserved(other, 0);
            weir_pool_flush(pool);
            EXPECT_EQ(stats(pool).allocated, 0u);
            EXPECT_EQ(weir_pool_destroy(pool), 0);
            EXPECT_EQ(weir_pool_destroy(other), 0);
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

TEST(PoolThreads, ProducerToConsumer) {
    for (size_t size : {1024u, 262144u})
        EXPECT_FINE(in_child([=] {
            weir_pool* pool = weir_pool_create("through", size, 0, 0);
            Channel channel;
            std::atomic<unsigned> left{unit_rounds(size > 100000 ? 20000 : 200000)};
            unsigned all = left;
            in_threads(2, [&](unsigned number) {
                Objects mine(pool, size);
                if (number == 0) {
                    for (unsigned i = 0; i < all; i++) {
                        mine.alloc();
                        channel.put(mine.all.back());
                        mine.all.pop_back();
                    }
                    return;
                }
                while (left != 0) {
                    Objects::Object o;
                    if (!channel.get(o)) continue;
                    mine.all.push_back(o);
                    mine.free(0);
                    left--;
                }
            });
            expect_conserved(pool, 0);
            EXPECT_EQ(weir_pool_destroy(pool), 0);
        }));
}

TEST(PoolThreads, WhatAThreadCachedServesOthersWhenItEnds) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("left", 1024, 0, 0);
        in_threads(1, [&](unsigned) {
            Objects mine(pool, 1024);
            for (unsigned i = 0; i < 100; i++) mine.alloc();
            mine.free_all();
            EXPECT_GT(stats(pool).held, 0u);
        });
        weir_pool_stats s = stats(pool);
        EXPECT_EQ(s.held, 0u);
        EXPECT_GE(s.shared, 100u);
        Objects mine(pool, 1024);
        for (unsigned i = 0; i < 100; i++) mine.alloc(WEIR_POOL_ALLOC_CACHED);
        mine.free_all();
        expect_conserved(pool, 0);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

// A thread finds all that another one shared, wherever in the tier it lies, before the first look and after
// some, which make takes look at less of the tier.
TEST(PoolThreads, AllThatWasSharedIsFound) {
    EXPECT_FINE(in_child([] {
        for (unsigned looks : {0u, 3u}) {
            weir_pool* pool = weir_pool_create("found", 262144, 0, 0);
            EXPECT_EQ(weir_pool_reserve(pool, 300), 0);
            for (unsigned i = 0; i < looks; i++) unit_pool_tick();
            in_threads(1, [&](unsigned) {
                Objects objects(pool, 262144);
                for (unsigned i = 0; i < 300; i++) objects.alloc(WEIR_POOL_ALLOC_CACHED);
                EXPECT_EQ(stats(pool).shared, 0u);
                objects.free_all();
            });
            EXPECT_EQ(weir_pool_destroy(pool), 0);
        }
    }));
}

// Threads that come one after the other, each with nothing in the tier, put on top of what is there.
TEST(PoolThreads, ThreadsPutOnTopOfWhatOthersPut) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("top", 262144, 0, 0);
        Objects objects(pool, 262144);
        for (unsigned i = 0; i < 450; i++) objects.alloc();
        for (unsigned part = 0; part < 3; part++)
            in_threads(1, [&](unsigned) {
                for (unsigned i = 0; i < 150; i++) objects.free(objects.all.size() - 1);
            });
        EXPECT_GE(stats(pool).shared, 450u);
        expect_conserved(pool, 0);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

// Objects go from one thread to another and back by the tier, few at a time: those that a burst left below
// them are not needed, and go.
TEST(PoolThreads, AHandoffLeavesAloneWhatItDoesNotNeed) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("handed", 262144, 0, 0);
        Objects objects(pool, 262144);
        std::atomic<unsigned> filled{0};
        std::atomic<unsigned> freed{0};
        std::thread consumer([&] {
            for (unsigned turn = 1; turn <= 3000; turn++) {
                while (filled != turn) std::this_thread::yield();
                objects.free_all();
                freed = turn;
            }
        });
        for (unsigned turn = 1; turn <= 3000; turn++) {
            for (unsigned i = 0; i < (turn == 1 ? 300u : 10u); i++) objects.alloc();
            filled = turn;
            while (freed != turn) std::this_thread::yield();
            if (turn % 100 == 0) unit_pool_tick();
        }
        EXPECT_LT(stats(pool).allocated, 50u);
        consumer.join();
        expect_conserved(pool, 0);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

// A thread's own cache empties at its next slow call, whatever pool that is for.
TEST(PoolThreads, FlushReachesAThreadAtItsNextSlowCall) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("flushed", 1024, 0, 0);
        weir_pool* other = weir_pool_create("other", 300, 0, 0);
        std::atomic<int> step{0};
        std::thread thread([&] {
            Objects mine(pool, 1024);
            for (unsigned i = 0; i < 100; i++) mine.alloc();
            mine.free_all();
            step = 1;
            while (step != 2) std::this_thread::yield();
            weir_pool_free(other, weir_pool_alloc(other));
            step = 3;
            while (step != 4) std::this_thread::yield();
            unit_detach();
        });
        while (step != 1) std::this_thread::yield();
        weir_pool_flush(pool);
        weir_pool_stats s = stats(pool);
        EXPECT_EQ(s.shared, 0u);
        EXPECT_GT(s.held, 0u);
        EXPECT_LE(s.held, 2 * s.magazine);
        step = 2;
        while (step != 3) std::this_thread::yield();
        EXPECT_EQ(stats(pool).allocated, 0u);
        step = 4;
        thread.join();
        EXPECT_EQ(weir_pool_destroy(pool), 0);
        EXPECT_EQ(weir_pool_destroy(other), 0);
    }));
}

// Whatever else has the lock meanwhile.
TEST(PoolThreads, FlushAndGcEmptyTheOwnCacheAtOnce) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("own", 1024, 0, 0);
        for (unsigned i = 0; i < 100; i++)
            weir_pool_alloc(weir_pool_create("more", 64, 0, WEIR_POOL_NO_MERGE));
        std::atomic<bool> stop{false};
        std::vector<std::thread> others;
        for (unsigned i = 0; i < 3; i++)
            others.emplace_back([&] {
                while (!stop) {
                    weir_pool_gc();
                    if (unit_emulated) usleep(100); // where three of them may have the lock for minutes
                }
            });
        unsigned kept = 0;
        for (unsigned i = 0; i < unit_rounds(1000); i++) {
            Objects objects(pool, 1024);
            for (unsigned k = 0; k < 40; k++) objects.alloc();
            objects.free_all();
            i % 2 == 0 ? weir_pool_flush(pool) : weir_pool_gc();
            kept += stats(pool).held != 0;
        }
        stop = true;
        for (auto& t : others) t.join();
        EXPECT_EQ(kept, 0u);
    }));
}

// No object that was cached before a flush is in the shared tier after it, and after each thread's next slow
// call.
TEST(PoolThreads, AFlushThatMeetsMagazinesOnTheirWayGetsThem) {
    for (size_t size : {65536u, 262144u})
        EXPECT_FINE(in_child([=] {
            weir_pool* pool = weir_pool_create("racing", size, 0, 0);
            for (unsigned round = 0; round < unit_rounds(200); round++) {
                std::atomic<bool> stop{false};
                std::atomic<unsigned> running{0};
                std::vector<std::thread> threads;
                for (unsigned i = 0; i < 3; i++)
                    threads.emplace_back([&] {
                        running++;
                        Objects mine(pool, size);
                        while (!stop) {
                            while (mine.all.size() < 12) mine.alloc();
                            mine.free_all();
                        }
                        unit_detach();
                    });
                while (running != 3) std::this_thread::yield();
                for (unsigned i = 0; i < 5; i++) weir_pool_flush(pool);
                stop = true;
                for (auto& t : threads) t.join();
                weir_pool_flush(pool);
                expect_conserved(pool, 0);
                ASSERT_EQ(stats(pool).allocated, 0u);
            }
            EXPECT_EQ(weir_pool_destroy(pool), 0);
        }));
}

TEST(PoolThreads, DestroyTakesWhatOtherThreadsCache) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("ended", 1024, 0, 0);
        std::atomic<int> step{0};
        std::thread thread([&] {
            Objects mine(pool, 1024);
            for (unsigned i = 0; i < 100; i++) mine.alloc();
            mine.free_all();
            step = 1;
            while (step != 2) std::this_thread::yield();
            weir_pool* next = weir_pool_create("next", 5000, 0, 0); // the same number
            Objects others(next, 5000);
            for (unsigned i = 0; i < 100; i++) others.alloc();
            others.free_all();
            expect_conserved(next, 0);
            EXPECT_EQ(weir_pool_destroy(next), 0);
            unit_detach();
        });
        while (step != 1) std::this_thread::yield();
        weir_pool* partner = weir_pool_create("partner", 1024, 0, 0);
        EXPECT_GT(stats(partner).cached, 0u);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
        EXPECT_EQ(stats(partner).allocated, stats(partner).shared);
        weir_pool_flush(partner);
        EXPECT_EQ(stats(partner).allocated, 0u);
        step = 2;
        thread.join();
    }));
}

// Records that serve pools of one size after the other, while somebody who has no memory empties them.
TEST(PoolThreads, RecordsThatServeOthersMayBeEmptiedMeanwhile) {
    EXPECT_FINE(in_child([] {
        weir_pool* poor = weir_pool_create("poor", size_t{1} << 46, 0, 0);
        std::atomic<bool> stop{false};
        std::thread emptier([&] {
            while (!stop) EXPECT_EQ(weir_pool_alloc(poor), nullptr);
            unit_detach();
        });
        in_threads(2, [](unsigned number) {
            for (unsigned i = 0; i < unit_rounds(1500); i++) {
                size_t size = 24 + (i * 2 + number) % 150 * 8;
                weir_pool* pool = weir_pool_create("one", size, 0, WEIR_POOL_EXACT);
                Objects objects(pool, size);
                for (unsigned k = 0; k < 300; k++) objects.alloc();
                objects.free_all();
                EXPECT_EQ(weir_pool_destroy(pool), 0);
            }
        });
        stop = true;
        emptier.join();
        weir_pool* last = weir_pool_create("last", 1000, 0, WEIR_POOL_EXACT);
        expect_conserved(last, 0);
        Objects objects(last, 1000);
        for (unsigned k = 0; k < 1000; k++) objects.alloc();
        expect_conserved(last, 1000);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

TEST(PoolThreads, LimitIsExactAmongThreads) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("limited", 64, 0, 0);
        EXPECT_EQ(weir_pool_limit(pool, 100), 0);
        std::atomic<int> out{0};
        std::atomic<int> most{0};
        in_threads(4, [&](unsigned number) {
            Random random(number);
            std::vector<void*> mine;
            for (unsigned i = 0; i < unit_rounds(100000); i++) {
                if (random.below(3) != 0) {
                    void* p = weir_pool_alloc(pool);
                    if (p == nullptr) continue;
                    int now = ++out;
                    int before = most;
                    while (now > before && !most.compare_exchange_weak(before, now)) {
                    }
                    mine.push_back(p);
                } else if (!mine.empty()) {
                    out--;
                    weir_pool_free(pool, mine.back());
                    mine.pop_back();
                }
            }
            for (void* p : mine) {
                out--;
                weir_pool_free(pool, p);
            }
        });
        EXPECT_EQ(most, 100);
        expect_conserved(pool, 0);
        EXPECT_GT(stats(pool).failed, 0u);
    }));
}

// Once a thread had an object of it, caches count: also where all came back by another thread, and nothing is
// cached.
TEST(PoolThreads, ALimitComesBeforeTheFirstObject) {
    EXPECT_FINE(in_child([] {
        for (bool ended : {true, false}) {
            weir_pool* pool = weir_pool_create("late", 64, 0, 0);
            void* p = weir_pool_alloc(pool);
            std::thread([=] {
                weir_pool_free(pool, p);
                if (ended) unit_detach();
            }).join();
            EXPECT_EQ(stats(pool).used, 0u);
            weir_pool_flush(pool);
            EXPECT_EQ(weir_pool_limit(pool, 1), EBUSY);
            EXPECT_EQ(stats(pool).limit, 0u);
        }
        weir_pool* pool = weir_pool_create("most", 64, 0, 0);
        EXPECT_EQ(weir_pool_limit(pool, SIZE_MAX), 0);
        void* p = weir_pool_alloc(pool);
        EXPECT_NE(p, nullptr);
        EXPECT_EQ(weir_pool_limit(pool, 1), EBUSY);
        weir_pool_free(pool, p);
    }));
}

// ---- Words in TLS.

TEST(PoolThreads, WordsInTlsServeAndEndWithTheirThread) {
    EXPECT_FINE(in_child([] {
        in_threads(4, [](unsigned) {
            std::vector<void*> all;
            for (unsigned i = 0; i < 1000; i++) all.push_back(WEIR_POOL_ALLOC(unit_words));
            std::sort(all.begin(), all.end());
            EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
            for (void* p : all) WEIR_POOL_FREE(unit_words, p);
            uint64_t* typed = WEIR_POOL_ALLOC(unit_typed);
            EXPECT_EQ(*typed, 0u);
            *typed = 17;
            WEIR_POOL_FREE(unit_typed, typed);
            EXPECT_EQ(*WEIR_POOL_ALLOC(unit_typed), 0u);
        });
        expect_conserved(WEIR_POOL(unit_words), 0);
        EXPECT_EQ(stats(WEIR_POOL(unit_words)).held, 0u);
        EXPECT_EQ(stats(WEIR_POOL(unit_typed)).used, 4u);
    }));
}

TEST(PoolThreads, FunctionsAndWordsAreOneCache) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = WEIR_POOL(unit_words);
        void* a = weir_pool_alloc(pool);
        void* b = weir_pool_alloc(pool);
        weir_pool_free(pool, a);
        weir_pool_free(pool, b);
        void* again = WEIR_POOL_ALLOC(unit_words); // its first call moves what there is into the words
        EXPECT_EQ(bare(again), bare(b));
        b = again;
        again = weir_pool_alloc(pool);
        EXPECT_EQ(bare(again), bare(a));
        WEIR_POOL_FREE(unit_words, again);
        a = weir_pool_alloc(pool);
        EXPECT_EQ(bare(a), bare(again));
        weir_pool_free(pool, a);
        weir_pool_free(pool, b);
        expect_conserved(pool, 0);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
        void* c = WEIR_POOL_ALLOC(unit_words); // made again
        ASSERT_NE(c, nullptr);
        WEIR_POOL_FREE(unit_words, c);
        weir_pool_flush(pool);
        EXPECT_EQ(stats(pool).allocated, 0u);
    }));
}

TEST(PoolThreads, MacrosThatCall) {
    EXPECT_FINE(in_child([] {
        void* p = unit_calls_alloc();
        ASSERT_NE(p, nullptr);
        EXPECT_EQ(stats(unit_calls_pool()).used, 1u);
        unit_calls_free(p);
        EXPECT_EQ(weir_pool_destroy(unit_calls_pool()), 0);
    }));
}

// A thread whose end nobody sees has none in TLS: its words would be read after it.
TEST(PoolThreads, AThreadWhoseEndIsNotSeenHasNoWords) {
    EXPECT_FINE(in_child([] {
        unit_pool_thread_hook([] { return false; });
        std::thread([] {
            void* p = WEIR_POOL_ALLOC(unit_words);
            WEIR_POOL_FREE(unit_words, p);
            EXPECT_EQ(weir_pool_cache_unit_words.end, nullptr);
            EXPECT_EQ(WEIR_POOL_ALLOC(unit_words), p); // from the entry's own
            WEIR_POOL_FREE(unit_words, p);
        }).join(); // without a detach
        expect_conserved(WEIR_POOL(unit_words), 0);
    }));
}

// ---- Fork.

TEST(PoolFork, TheChildHasWhatOtherThreadsCached) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("forked", 1024, 0, 0);
        std::atomic<int> step{0};
        std::thread thread([&] {
            Objects mine(pool, 1024);
            for (unsigned i = 0; i < 100; i++) mine.alloc();
            void* words[50];
            for (void*& p : words) p = WEIR_POOL_ALLOC(unit_words);
            for (void* p : words) WEIR_POOL_FREE(unit_words, p);
            while (mine.all.size() > 10) mine.free(0);
            step = 1;
            while (step != 2) std::this_thread::yield();
            mine.free_all();
            unit_detach();
        });
        while (step != 1) std::this_thread::yield();
        void* own = weir_pool_alloc(pool);
        weir_pool_stats before = stats(pool);
        EXPECT_EQ(before.used, 11u);
        EXPECT_EQ(forked([&] {
                      EXPECT_TRUE(os_lock_try(unit_pools_lock()));
                      os_lock_give(unit_pools_lock());
                      // The words are the dead thread's, whose stack may be another's by now.
                      expect_conserved(pool, 11);
                      weir_pool_stats s = stats(pool);
                      EXPECT_EQ(s.allocated, before.allocated);
                      weir_pool_free(pool, own);
                      Objects mine(pool, 1024);
                      for (unsigned i = 0; i < before.cached; i++) mine.alloc(WEIR_POOL_ALLOC_CACHED);
                      mine.free_all();
                      expect_conserved(WEIR_POOL(unit_words), 0);
                      weir_pool_gc();
                      EXPECT_EQ(stats(pool).allocated, 10u); // the other thread's, which nobody can free
                      EXPECT_EQ(stats(WEIR_POOL(unit_words)).allocated, 0u);
                  }),
                  0);
        step = 2;
        thread.join();
        weir_pool_free(pool, own);
        expect_conserved(pool, 0);
    }));
}

// A thread that a fork leaves behind between two magazines: what it had is lost to the child, and given to
// nobody twice.
TEST(PoolFork, WhatWasMovingIsNobodysInTheChild) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("moving", 1024, 0, 0);
        std::atomic<int> step{0};
        std::thread thread([&] {
            Objects mine(pool, 1024);
            for (unsigned i = 0; i < 100; i++) mine.alloc();
            mine.free_all();
            unit_pool_between(pool, true);
            step = 1;
            while (step != 2) std::this_thread::yield();
            unit_pool_between(pool, false);
            unit_detach();
        });
        while (step != 1) std::this_thread::yield();
        EXPECT_EQ(forked([&] {
                      Objects mine(pool, 1024);
                      for (unsigned i = 0; i < 200; i++) mine.alloc();
                      mine.free_all(); // none of them is another's too
                      weir_pool_stats s = stats(pool);
                      EXPECT_EQ(s.allocated, s.used + s.cached);
                  }),
                  0);
        step = 2;
        thread.join();
        expect_conserved(pool, 0);
    }));
}

// The child's threads start anew, some of them on the stacks of those that did not come along. (An emulator
// whose threads did not all come along ends itself.)
TEST_NATIVE(PoolFork, TheChildHasThreadsOfItsOwn) {
    EXPECT_FINE(in_child([] {
        std::atomic<int> step{0};
        std::thread thread([&] {
            void* words[50];
            for (void*& p : words) p = WEIR_POOL_ALLOC(unit_words);
            for (void* p : words) WEIR_POOL_FREE(unit_words, p);
            step = 1;
            while (step != 2) std::this_thread::yield();
            unit_detach();
        });
        while (step != 1) std::this_thread::yield();
        EXPECT_EQ(forked([] {
                      in_threads(4, [](unsigned) {
                          void* words[50];
                          for (void*& p : words) p = WEIR_POOL_ALLOC(unit_words);
                          for (void* p : words) WEIR_POOL_FREE(unit_words, p);
                      });
                      expect_conserved(WEIR_POOL(unit_words), 0);
                  }),
                  0);
        step = 2;
        thread.join();
    }));
}

// Threads at work while others fork: nothing deadlocks, and what the child counts adds up but for the
// magazines that were in other threads' hands. (An emulator's own locks do not survive that.)
TEST_UNEMULATED(PoolFork, InTheMiddleOfLoad) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("forked", 4096, 0, 0);
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < 3; i++)
            threads.emplace_back([&, i] {
                Random random(i);
                Objects mine(pool, 4096);
                while (!stop) {
                    if (mine.all.size() < 100 && random.below(2) == 0)
                        mine.alloc();
                    else if (!mine.all.empty())
                        mine.free(random.below(mine.all.size()));
                    if (random.below(300) == 0) weir_pool_gc();
                    if (random.below(1000) == 0) unit_detach();
                }
                mine.free_all();
                unit_detach();
            });
        for (unsigned i = 0; i < unit_rounds(100); i++) {
            Objects own(pool, 4096);
            own.alloc();
            EXPECT_EQ(forked([&] {
                          weir_pool_stats s = stats(pool);
                          uint64_t hands = 3 * 4 * s.magazine;
                          EXPECT_LE(s.used + s.cached, s.allocated + hands);
                          EXPECT_LE(s.allocated, s.used + s.cached + hands);
                          for (unsigned k = 0; k < 300; k++) own.alloc();
                          own.free_all();
                          weir_pool_gc();
                          EXPECT_EQ(stats(pool).shared, 0u);
                      }),
                      0);
            own.free_all();
        }
        stop = true;
        for (auto& t : threads) t.join();
        expect_conserved(pool, 0);
    }));
}

// A handler forks between two calls of the thread that it interrupts.
TEST(PoolFork, FromASignalHandler) {
    EXPECT_FINE(in_child([] {
        static weir_pool* pool = weir_pool_create("signal", 64, 0, 0);
        static int good = 0;
        signal(SIGUSR1, [](int) {
            good += forked([] {
                        void* all[300];
                        for (void*& p : all) p = weir_pool_alloc(pool);
                        for (void* p : all) weir_pool_free(pool, p);
                        weir_pool_gc();
                    }) == 0;
        });
        Objects mine(pool, 64);
        for (unsigned i = 0; i < 20; i++) {
            for (unsigned k = 0; k < i; k++) mine.alloc();
            raise(SIGUSR1);
            mine.free_all();
        }
        EXPECT_EQ(good, 20);
        expect_conserved(pool, 0);
    }));
}

} // namespace
