// pool_debug_test.cc: each way of debugging finds its fault, says what and where, and says nothing of a
// program without. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "pools.h"
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <functional>
#include <regex>
#include <thread>

namespace {

constexpr unsigned all_modes[] = {WEIR_POOL_POISON, WEIR_POOL_INTEGRITY,  WEIR_POOL_CALLER,
                                  WEIR_POOL_TAG,    WEIR_POOL_COLD_FIRST, WEIR_POOL_GUARD};

weir_pool* pool_of(unsigned flags, size_t size = 100) { return weir_pool_create("watched", size, 0, flags); }

// A report's text with every address and number of a thread replaced.
std::string plain(const Ended& ended) {
    std::string text = std::regex_replace(ended.printed, std::regex("0x[0-9a-f]+"), "0xP");
    return std::regex_replace(text, std::regex("thread [0-9]+"), "thread T");
}

void expect_report(const Ended& ended, const std::string& code, const std::string& what) {
    EXPECT_TRUE(ended.aborted());
    EXPECT_EQ(plain(ended), "weir: " + code + ": " + what + "; see docs/errors/" + code + ".md\n");
}

void use(weir_pool* pool, size_t size) {
    Objects objects(pool, size);
    Random random(5);
    for (unsigned i = 0; i < unit_rounds(3000); i++) {
        if (objects.all.size() < 50 && random.below(2) == 0)
            objects.alloc();
        else if (!objects.all.empty())
            objects.free(random.below(objects.all.size()));
    }
    EXPECT_EQ(stats(pool).used, objects.all.size());
    expect_conserved(pool, objects.all.size());
    objects.free_all();
}

TEST(PoolDebug, ARightProgramIsSaidNothingOf) {
    unsigned together = 0;
    for (unsigned mode : all_modes) together |= mode;
    for (unsigned flags : {all_modes[0], all_modes[1], all_modes[2], all_modes[3], all_modes[4], all_modes[5],
                           together, together & ~static_cast<unsigned>(WEIR_POOL_GUARD)})
        for (size_t size : {1u, 100u, 5000u})
            EXPECT_FINE(in_child([=] {
                weir_pool* pool = pool_of(flags, size);
                use(pool, size);
                std::thread([=] {
                    use(pool, size);
                    unit_detach();
                }).join();
                weir_pool_flush(pool);
                EXPECT_EQ(stats(pool).allocated, 0u);
                use(pool, size);
                EXPECT_EQ(weir_pool_destroy(pool), 0);
            }));
}

TEST(PoolDebug, PoisonFillsWhatComesAndGoes) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = pool_of(WEIR_POOL_POISON);
        auto* p = static_cast<unsigned char*>(weir_pool_alloc(pool));
        for (unsigned i = 0; i < 100; i++) EXPECT_EQ(p[i], 0x50);
        memset(p, 1, 100);
        weir_pool_free(pool, p);
        for (unsigned i = 0; i < 100; i++) EXPECT_EQ(p[i], 0xdd);
        EXPECT_EQ(weir_pool_alloc(pool), p);
        for (unsigned i = 0; i < 100; i++) EXPECT_EQ(p[i], 0x50);
    }));
}

TEST(PoolDebug, IntegrityFindsAWriteAfterFree) {
    for (unsigned offset : {0u, 37u, 99u})
        expect_report(in_child([=] {
                          weir_pool* pool = pool_of(WEIR_POOL_INTEGRITY);
                          auto* p = static_cast<unsigned char*>(weir_pool_alloc(pool));
                          weir_pool_free(pool, p);
                          p[offset] ^= 1;
                          weir_pool_alloc(pool);
                      }),
                      "pool-written",
                      "a freed object was written to, of pool watched 0xP at offset " +
                          std::to_string(offset) + " in weir_pool_alloc");
}

TEST(PoolDebug, CallerNamesWhoAllocatedAndFreed) {
    Ended ended = in_child([] {
        weir_pool* pool = pool_of(WEIR_POOL_CALLER | WEIR_POOL_INTEGRITY);
        auto* p = static_cast<unsigned char*>(weir_pool_alloc(pool));
        std::thread([=] { weir_pool_free(pool, p); }).join();
        p[5]++;
        weir_pool_alloc(pool);
    });
    expect_report(
        ended, "pool-written",
        "a freed object was written to, of pool watched 0xP at offset 5 in weir_pool_alloc; allocated by 0xP "
        "in thread T, freed by 0xP in thread T");
    std::smatch threads;
    ASSERT_TRUE(std::regex_search(ended.printed, threads, std::regex("thread ([0-9]+), .* thread ([0-9]+)")));
    EXPECT_NE(threads[1], threads[2]);
}

TEST(PoolDebug, TagFindsAnOverrun) {
    for (unsigned beyond : {0u, 7u})
        expect_report(in_child([=] {
                          weir_pool* pool = pool_of(WEIR_POOL_TAG);
                          auto* p = static_cast<unsigned char*>(weir_pool_alloc(pool));
                          p[100 + beyond] ^= 0x80;
                          weir_pool_free(pool, p);
                      }),
                      "pool-overrun",
                      "written past its end, an object of pool watched 0xP in weir_pool_free");
}

// What a call drops was free, and is looked at as what is given out again.
TEST(PoolDebug, WhatIsDroppedIsLookedAt) {
    struct Drop {
        const char* call;
        void (*drop)(weir_pool*);
    };
    static const Drop drops[] = {{"weir_pool_flush", weir_pool_flush},
                                 {"weir_pool_gc", [](weir_pool*) { weir_pool_gc(); }},
                                 {"weir_pool_destroy", [](weir_pool* pool) { weir_pool_destroy(pool); }}};
    for (const Drop& drop : drops) {
        auto dropped = [&](unsigned flags, size_t offset) {
            return in_child([=] {
                weir_pool* pool = pool_of(flags);
                unsigned char* all[3];
                for (unsigned char*& p : all) p = static_cast<unsigned char*>(weir_pool_alloc(pool));
                for (unsigned char* p : all) weir_pool_free(pool, p);
                all[1][offset] ^= 1;
                drop.drop(pool);
            });
        };
        expect_report(dropped(WEIR_POOL_INTEGRITY, 99), "pool-written",
                      std::string("a freed object was written to, of pool watched 0xP at offset 99 in ") +
                          drop.call);
        expect_report(dropped(WEIR_POOL_TAG, 100), "pool-overrun",
                      std::string("written past its end, an object of pool watched 0xP in ") + drop.call);
    }
    Ended ended = in_child([] { // each is said, and all go
        ASSERT_TRUE(core_options_parse("on_error=report"));
        weir_pool* pool = pool_of(WEIR_POOL_INTEGRITY);
        unsigned char* all[3];
        for (unsigned char*& p : all) p = static_cast<unsigned char*>(weir_pool_alloc(pool));
        for (unsigned char* p : all) weir_pool_free(pool, p);
        for (unsigned char* p : all) p[1]++;
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    });
    EXPECT_TRUE(ended.fine());
    EXPECT_EQ(std::count(ended.printed.begin(), ended.printed.end(), '\n'), 3);
}

TEST(PoolDebug, ATagThatIsWrittenAfterTheFreeIsFound) {
    expect_report(in_child([] {
                      weir_pool* pool = pool_of(WEIR_POOL_TAG);
                      auto* p = static_cast<unsigned char*>(weir_pool_alloc(pool));
                      weir_pool_free(pool, p);
                      p[103] ^= 1;
                      weir_pool_alloc(pool);
                  }),
                  "pool-overrun", "written past its end, an object of pool watched 0xP in weir_pool_alloc");
}

TEST(PoolDebug, DestroyNamesWhoAllocatedWhatIsOut) {
    Ended ended = in_child([] {
        weir_pool* pool = pool_of(WEIR_POOL_CALLER);
        void* p = weir_pool_alloc(pool);
        void* other = weir_pool_alloc(weir_pool_create("other", 100, 0, WEIR_POOL_TAG));
        weir_pool_free(pool, weir_pool_alloc(pool));
        EXPECT_EQ(weir_pool_destroy(pool), EBUSY);
        weir_pool_free(pool, p);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
        EXPECT_NE(other, nullptr);
    });
    EXPECT_TRUE(ended.fine());
    EXPECT_EQ(
        plain(ended),
        "weir: pool-busy: pool watched has 1 objects in use in weir_pool_destroy; one of them allocated "
        "by 0xP in thread T; see docs/errors/pool-busy.md\n");
}

TEST(PoolDebug, EachModeFindsObjectsThatAreFreedTwiceOrElsewhere) {
    for (unsigned flags : all_modes) {
        expect_report(in_child([=] {
                          // A caller's addresses would stand in the line.
                          weir_pool* pool = pool_of(flags == WEIR_POOL_CALLER ? WEIR_POOL_TAG : flags);
                          void* p = weir_pool_alloc(pool);
                          weir_pool_free(pool, p);
                          weir_pool_free(pool, p);
                      }),
                      "pool-double-free", "already freed, an object of pool watched 0xP in weir_pool_free");
        expect_report(in_child([=] {
                          weir_pool* pool = pool_of(flags);
                          weir_pool* other = weir_pool_create("other", 100, 0, WEIR_POOL_TAG);
                          weir_pool_free(pool, weir_pool_alloc(other));
                      }),
                      "pool-wrong", "freed to another pool, an object of pool other 0xP in weir_pool_free");
        expect_report(in_child([=] {
                          weir_pool* pool = pool_of(flags);
                          auto* p = static_cast<char*>(weir_pool_alloc(pool));
                          weir_pool_free(pool, p + 16);
                      }),
                      "pool-foreign", "not an object of pool watched 0xP in weir_pool_free");
    }
}

TEST(PoolDebug, AReportThatGoesOnLosesNoCount) {
    Ended ended = in_child([] {
        ASSERT_TRUE(core_options_parse("on_error=report"));
        weir_pool* pool = pool_of(WEIR_POOL_TAG);
        auto* p = static_cast<unsigned char*>(weir_pool_alloc(pool));
        void* q = weir_pool_alloc(pool);
        p[100] ^= 1;
        weir_pool_free(pool, p); // stays out
        weir_pool_free(pool, q);
        weir_pool_free(pool, q); // counts once
        expect_conserved(pool, 1);
        p[100] ^= 1;
        weir_pool_free(pool, p);
        expect_conserved(pool, 0);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    });
    EXPECT_TRUE(ended.fine());
    EXPECT_NE(ended.printed.find("pool-overrun"), std::string::npos);
    EXPECT_NE(ended.printed.find("pool-double-free"), std::string::npos);
}

TEST(PoolDebug, AReserveWaitsInTheQueue) {
    for (unsigned flags : all_modes)
        EXPECT_FINE(in_child([=] {
            weir_pool* pool = pool_of(flags);
            EXPECT_EQ(weir_pool_reserve(pool, 20), 0);
            expect_conserved(pool, 0);
            EXPECT_EQ(stats(pool).held, 20u);
            std::vector<void*> objects;
            while (void* p = weir_pool_alloc_flags(pool, WEIR_POOL_ALLOC_CACHED)) objects.push_back(p);
            EXPECT_EQ(objects.size(), 20u);
            for (void* p : objects) weir_pool_free(pool, p);
            use(pool, 100);
            weir_pool_gc();
            EXPECT_EQ(stats(pool).held, 20u);
            weir_pool_flush(pool);
            EXPECT_EQ(stats(pool).held, 0u);
            EXPECT_EQ(weir_pool_destroy(pool), 0);
        }));
}

TEST(PoolDebug, ColdFirstGivesOutTheOldest) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = pool_of(WEIR_POOL_COLD_FIRST);
        void* objects[10];
        for (void*& p : objects) p = weir_pool_alloc(pool);
        for (void* p : objects) weir_pool_free(pool, p);
        for (void* p : objects) EXPECT_EQ(bare(weir_pool_alloc(pool)), bare(p));
    }));
}

bool faults(const std::function<void()>& body) {
    Ended ended = in_child([&] {
        signal(SIGSEGV, [](int) { _exit(77); });
        signal(SIGBUS, [](int) { _exit(77); });
        body();
    });
    return ended.exited(77);
}

TEST_UNSANITIZED(PoolDebug, GuardFaultsAtUseAfterFreeAndPastTheEnd) {
    for (size_t size : {16u, 4096u, 10000u}) {
        auto use_with = [=](size_t offset, bool freed) {
            return faults([=] {
                weir_pool* pool = pool_of(WEIR_POOL_GUARD, size);
                auto* p = static_cast<volatile char*>(weir_pool_alloc(pool));
                p[0] = p[size - 1] = 1;
                if (freed) weir_pool_free(pool, const_cast<char*>(p));
                p[offset] = 1;
            });
        };
        EXPECT_FALSE(use_with(size - 1, false));
        EXPECT_TRUE(use_with(size, false));
        EXPECT_TRUE(use_with(0, true));
        EXPECT_TRUE(use_with(size - 1, true));
    }
}

// To the byte where the alignment allows it; what that leaves is looked at when the object is freed.
TEST_UNSANITIZED(PoolDebug, GuardFindsEachByteBehindAnObject) {
    for (size_t size = 96; size <= 112; size += 4)
        EXPECT_TRUE(faults([=] {
            weir_pool* pool = weir_pool_create("watched", size, size % 8 == 0 ? 8 : 4, WEIR_POOL_GUARD);
            auto* p = static_cast<volatile char*>(weir_pool_alloc(pool));
            p[size - 1] = 1;
            weir_pool_free(pool, const_cast<char*>(p));
            p = static_cast<volatile char*>(weir_pool_alloc(pool));
            p[size] = 1;
        })) << size;
    for (unsigned flags : {WEIR_POOL_GUARD, WEIR_POOL_GUARD | WEIR_POOL_TAG})
        for (size_t offset : {100u, 111u})
            expect_report(in_child([=] {
                              weir_pool* pool = pool_of(flags);
                              auto* p = static_cast<char*>(weir_pool_alloc(pool));
                              p[offset]++;
                              weir_pool_free(pool, p);
                          }),
                          "pool-overrun",
                          "written past its end, an object of pool watched 0xP in weir_pool_free");
    EXPECT_TRUE(faults([] { // more than a page
        weir_pool* pool = weir_pool_create("watched", 8192, 65536, WEIR_POOL_GUARD);
        auto* p = static_cast<volatile char*>(weir_pool_alloc(pool));
        if (reinterpret_cast<uintptr_t>(p) % 65536 == 0) p[8192] = 1;
    }));
}

// With half a million objects each is found as fast as among few.
TEST_UNSANITIZED(PoolDebug, ManyObjectsAreFoundFast) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = pool_of(WEIR_POOL_TAG, 24);
        auto pair_ns = [=](size_t count) {
            std::vector<void*> all(count);
            for (void*& p : all) p = weir_pool_alloc(pool);
            timespec begun;
            timespec ended;
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
            for (void* p : all) weir_pool_free(pool, p);
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
            return ((ended.tv_sec - begun.tv_sec) * 1e9 + (ended.tv_nsec - begun.tv_nsec)) / count;
        };
        double few = pair_ns(20000);
        EXPECT_LT(pair_ns(500000), 4 * few);
    }));
}

TEST(PoolDebug, GuardedObjectsComeBackZeroedAndRight) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = pool_of(WEIR_POOL_GUARD, 100);
        void* p = weir_pool_alloc(pool);
        memset(p, 7, 100);
        weir_pool_free(pool, p);
        void* q = weir_pool_alloc(pool);
        EXPECT_EQ(q, p);
        EXPECT_TRUE(is_zero(q, 100));
    }));
}

TEST(PoolDebug, TheOptionChoosesModesAndPools) {
    EXPECT_FINE(in_child([] {
        ASSERT_TRUE(core_options_parse("pool_debug=poison,tag,no_merge@buf*,conn"));
        unsigned both = WEIR_POOL_POISON | WEIR_POOL_TAG | WEIR_POOL_NO_MERGE;
        EXPECT_EQ(stats(weir_pool_create("buffers", 64, 0, 0)).flags, both);
        EXPECT_EQ(stats(weir_pool_create("conn", 64, 0, WEIR_POOL_ZERO)).flags, both | WEIR_POOL_ZERO);
        EXPECT_EQ(stats(weir_pool_create("connection", 64, 0, 0)).flags, 0u);
        EXPECT_EQ(stats(weir_pool_create("co", 64, 0, 0)).flags, 0u);
        ASSERT_TRUE(core_options_parse("pool_debug=no_cache"));
        EXPECT_EQ(stats(weir_pool_create("any", 64, 0, 0)).flags, WEIR_POOL_NO_CACHE);
    }));
    Ended ended = in_child([] {
        ASSERT_TRUE(core_options_parse("pool_debug=poisson,tag"));
        EXPECT_EQ(stats(weir_pool_create("one", 64, 0, 0)).flags, WEIR_POOL_TAG);
        weir_pool_create("two", 64, 0, 0);
    });
    EXPECT_TRUE(ended.fine());
    EXPECT_EQ(ended.printed,
              "weir: option 'pool_debug' does not know 'poisson'; it takes poison,integrity,caller,tag,"
              "cold_first,guard,no_cache,no_merge,fail=PERCENT@NAMES\n");
}

TEST(PoolDebug, FailuresComeByTheRate) {
    for (unsigned percent : {0u, 1u, 20u, 100u})
        EXPECT_FINE(in_child([=] {
            ASSERT_TRUE(core_options_parse(("pool_debug=fail=" + std::to_string(percent)).c_str()));
            weir_pool* pool = pool_of(0);
            unsigned failed = 0;
            for (unsigned i = 0; i < 10000; i++) {
                void* p = weir_pool_alloc(pool);
                failed += p == nullptr;
                weir_pool_free(pool, p);
                void* q = weir_pool_alloc_flags(pool, WEIR_POOL_ALLOC_NO_FAIL);
                ASSERT_NE(q, nullptr);
                weir_pool_free(pool, q);
            }
            EXPECT_NEAR(failed, percent * 100, percent == 0 || percent == 100 ? 0 : 30 + percent);
            EXPECT_EQ(stats(pool).failed, failed);
        }));
}

TEST(PoolDebug, RefusedMemoryLosesNothing) {
    for (unsigned flags : {WEIR_POOL_GUARD, WEIR_POOL_TAG | WEIR_POOL_INTEGRITY})
        for (unsigned fail_at = 0; fail_at < 20; fail_at++)
            EXPECT_FINE(in_child([=] {
                static unsigned calls;
                static unsigned at;
                calls = 0;
                at = fail_at;
                weir_pool* pool = pool_of(flags, 70000);
                os_fault_hook = [](enum os_call) { return calls++ >= at; };
                std::vector<void*> objects;
                for (unsigned i = 0; i < 50; i++)
                    if (void* p = weir_pool_alloc(pool)) objects.push_back(p);
                for (void* p : objects) memset(p, 1, 70000);
                expect_conserved(pool, objects.size());
                for (void* p : objects) weir_pool_free(pool, p);
                expect_conserved(pool, 0);
                os_fault_hook = nullptr;
                void* p = weir_pool_alloc(pool);
                EXPECT_NE(p, nullptr);
                weir_pool_free(pool, p);
                weir_pool_flush(pool);
                EXPECT_EQ(stats(pool).allocated, 0u);
            }));
}

} // namespace
