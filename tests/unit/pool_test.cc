// pool_test.cc: one thread's view of pools: alloc and free, sharing, limits, figures, refused memory. Called
// by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "pools.h"
#include <thread>
#include <cerrno>
#include <set>
#include <utility>
#include <vector>

namespace {

TEST(Pool, GivesOutWritableDistinctAlignedObjects) {
    EXPECT_FINE(in_child([] {
        for (size_t size :
             {1u, 16u, 64u, 100u, 1000u, 1024u, 4096u, 16384u, 49152u, 65536u, 262144u, 2097152u})
            for (size_t align : {0u, 8u, 64u, 4096u, 131072u}) {
                weir_pool* pool = weir_pool_create("sizes", size, align, 0);
                ASSERT_NE(pool, nullptr);
                Objects objects(pool, size);
                for (unsigned i = 0; i < 70; i++) {
                    objects.alloc();
                    EXPECT_EQ(reinterpret_cast<uintptr_t>(objects.all.back().p) % (align == 0 ? 16 : align),
                              0u);
                }
                std::set<void*> distinct;
                for (const auto& o : objects.all) distinct.insert(o.p);
                EXPECT_EQ(distinct.size(), objects.all.size());
                expect_conserved(pool, 70);
                objects.free_all();
                expect_conserved(pool, 0);
                EXPECT_EQ(weir_pool_destroy(pool), 0);
            }
    }));
}

// Of two pools whose objects are as large, the one that asks for more than the other has it, whichever came
// first, while others of about the size come and go.
void expect_aligned_beside(size_t size, size_t align, bool plain_first, unsigned flags) {
    weir_pool* first = weir_pool_create("first", size, plain_first ? 0 : align, flags);
    std::vector<void*> all;
    for (unsigned i = 0; i < 40; i++) all.push_back(weir_pool_alloc(first));
    weir_pool* second = weir_pool_create("second", size, plain_first ? align : 0, flags);
    weir_pool* aligned = plain_first ? second : first;
    for (unsigned i = 0; i < 40; i += 2) weir_pool_free(first, all[i]);
    std::vector<void*> others;
    for (unsigned i = 0; i < 60; i++) {
        others.push_back(unit_alloc(size - size / 8));
        if (i % 3 == 0) unit_free(std::exchange(others[i / 2], nullptr));
        ASSERT_NE(weir_pool_alloc(plain_first ? first : second), nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(weir_pool_alloc(aligned)) % align, 0u) << size << " " << align;
    }
}
TEST(Pool, WhatIsSharedIsAlignedForEach) {
    for (bool plain_first : {true, false})
        for (unsigned flags : {0u, unsigned{WEIR_POOL_NO_CACHE}})
            for (size_t align : {64u, 256u, 4096u, 65536u, 131072u})
                EXPECT_FINE(in_child([&] {
                    for (size_t size :
                         {64u, 512u, 1024u, 1280u, 2048u, 4096u, 8192u, 32768u, 65536u, 131072u, 1048576u})
                        expect_aligned_beside(size, align, plain_first, flags);
                }));
}

TEST(Pool, RefusesWhatMakesNoSense) {
    EXPECT_FINE(in_child([] {
        errno = 0;
        EXPECT_EQ(weir_pool_create("nothing", 0, 0, 0), nullptr);
        EXPECT_EQ(errno, EINVAL);
        errno = 0;
        EXPECT_EQ(weir_pool_create("crooked", 64, 24, 0), nullptr);
        EXPECT_EQ(errno, EINVAL);
        errno = 0;
        EXPECT_EQ(weir_pool_create("huge", SIZE_MAX, 0, 0), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        errno = 0;
        EXPECT_EQ(weir_pool_create("unknown", 64, 0, 0x10u), nullptr);
        EXPECT_EQ(errno, EINVAL);
        weir_pool declared = {"declared", 64, 0, 0x80000000u, 0, nullptr};
        EXPECT_EQ(weir_pool_alloc(&declared), nullptr);
        EXPECT_EQ(weir_pool_limit(&declared, 1), EINVAL);
        EXPECT_EQ(weir_pool_reserve(&declared, 1), EINVAL);
        weir_pool* pool = weir_pool_create(nullptr, 64, 0, 0);
        ASSERT_NE(pool, nullptr);
        EXPECT_EQ(weir_pool_alloc_flags(pool, 0x10u), nullptr);
        EXPECT_EQ(stats(pool).failed, 1u);
        EXPECT_STREQ(stats(pool).name, "");
        weir_pool_stats none = {};
        EXPECT_EQ(weir_pool_stats_get(pool, &none), EINVAL);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

TEST(Pool, TheLastFreedComesBackFirst) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("lifo", 64, 0, 0);
        void* a = weir_pool_alloc(pool);
        void* b = weir_pool_alloc(pool);
        weir_pool_free(pool, a);
        weir_pool_free(pool, b);
        EXPECT_EQ(bare(weir_pool_alloc(pool)), bare(b));
        EXPECT_EQ(bare(weir_pool_alloc(pool)), bare(a));
    }));
}

TEST(Pool, LikeSizesShareMemoryUnlessTold) {
    EXPECT_FINE(in_child([] {
        weir_pool* a = weir_pool_create("a", 100, 0, 0);
        weir_pool* b = weir_pool_create("b", 112, 0, 0);
        weir_pool* exact = weir_pool_create("exact", 100, 0, WEIR_POOL_EXACT);
        weir_pool* exact_too = weir_pool_create("exact too", 100, 0, WEIR_POOL_EXACT);
        weir_pool* exact_other = weir_pool_create("exact other", 112, 0, WEIR_POOL_EXACT);
        weir_pool* alone = weir_pool_create("alone", 100, 0, WEIR_POOL_NO_MERGE);
        weir_pool* alone_too = weir_pool_create("alone too", 100, 0, WEIR_POOL_NO_MERGE);
        EXPECT_EQ(stats(a).storage, stats(b).storage);
        EXPECT_EQ(stats(a).users, 2u);
        EXPECT_EQ(stats(exact).storage, stats(exact_too).storage);
        std::set<uint64_t> storages;
        for (weir_pool* pool : {a, exact, exact_other, alone, alone_too})
            storages.insert(stats(pool).storage);
        EXPECT_EQ(storages.size(), 5u);
        // An object of one pool serves the other, and each knows its own.
        Objects objects(a, 100);
        for (unsigned i = 0; i < 1000; i++) objects.alloc();
        EXPECT_EQ(stats(a).used, 1000u);
        EXPECT_EQ(stats(b).used, 0u);
        uint64_t allocated = stats(a).allocated;
        objects.free_all();
        Objects others(b, 112);
        for (unsigned i = 0; i < 800; i++) others.alloc();
        EXPECT_EQ(stats(a).used, 0u);
        EXPECT_EQ(stats(b).used, 800u);
        EXPECT_LE(stats(b).allocated, allocated + stats(a).magazine); // one magazine's worth may stay with a
        weir_pool_stats s = stats(b);
        EXPECT_EQ(s.allocated, s.used + s.cached);
        others.free_all();
        for (weir_pool* pool : {a, b, exact, exact_too, exact_other, alone, alone_too})
            EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

// Of the address space that large alignments take nothing goes to those that did not ask for them.
TEST(Pool, LargeAlignmentsAreSharedByThoseAloneThatAskForThem) {
    EXPECT_FINE(in_child([] {
        for (size_t size : {65536u, 262144u}) {
            for (bool large_first : {true, false}) {
                weir_pool* first = weir_pool_create("first", size, large_first ? 2 * MIB : 0, 0);
                weir_pool* second = weir_pool_create("second", size, large_first ? 0 : 2 * MIB, 0);
                weir_pool* third = weir_pool_create("third", size, 2 * MIB, 0);
                weir_pool* large = large_first ? first : second;
                EXPECT_NE(stats(first).storage, stats(second).storage);
                EXPECT_EQ(stats(large).storage, stats(third).storage);
                for (unsigned i = 0; i < 20; i++)
                    EXPECT_EQ(reinterpret_cast<uintptr_t>(weir_pool_alloc(large)) % (2 * MIB), 0u);
            }
        }
    }));
}

TEST(Pool, ACacheIsBounded) {
    EXPECT_FINE(in_child([] {
        for (size_t size : {64u, 1024u, 16384u, 49152u, 262144u, 2097152u}) {
            weir_pool* pool = weir_pool_create("bounded", size, 0, 0);
            Objects objects(pool, 1);
            for (unsigned i = 0; i < 300; i++) objects.alloc();
            objects.free_all();
            weir_pool_stats s = stats(pool);
            EXPECT_TRUE(s.held * s.block_bytes <= 256 * KIB || s.held <= 2) << size << ": " << s.held;
            EXPECT_EQ(s.allocated, s.held + s.shared);
            EXPECT_EQ(weir_pool_destroy(pool), 0);
        }
    }));
}

TEST(Pool, ALimitIsExact) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("limited", 64, 0, 0);
        EXPECT_EQ(weir_pool_limit(pool, 10), 0);
        Objects objects(pool, 64);
        for (unsigned round = 0; round < 3; round++) {
            for (unsigned i = 0; i < 10; i++) objects.alloc();
            EXPECT_EQ(weir_pool_alloc(pool), nullptr);
            EXPECT_EQ(stats(pool).used, 10u);
            objects.free(3);
            objects.alloc();
            EXPECT_EQ(weir_pool_alloc(pool), nullptr);
            objects.free_all();
        }
        weir_pool_stats s = stats(pool);
        EXPECT_EQ(s.failed, 6u);
        EXPECT_EQ(s.limit, 10u);
        EXPECT_EQ(s.used, 0u);
        objects.alloc();
        EXPECT_EQ(weir_pool_limit(pool, 20), EBUSY);
        objects.free_all();
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

TEST(Pool, KeepsReadyWhatWasAskedFor) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("ready", 1024, 0, 0);
        EXPECT_EQ(weir_pool_reserve(pool, 500), 0);
        EXPECT_EQ(stats(pool).shared, 500u);
        for (unsigned i = 0; i < 20; i++) unit_pool_tick();
        weir_pool_gc();
        EXPECT_GE(stats(pool).shared, 500u);
        Objects objects(pool, 1024);
        for (unsigned i = 0; i < 500; i++) objects.alloc(WEIR_POOL_ALLOC_CACHED);
        EXPECT_EQ(weir_pool_alloc_flags(pool, WEIR_POOL_ALLOC_CACHED), nullptr);
        EXPECT_EQ(stats(pool).allocated, 500u);
        objects.free_all();
        weir_pool_flush(pool);
        EXPECT_EQ(stats(pool).allocated, 0u);
        EXPECT_EQ(weir_pool_reserve(pool, 1000000), ENOMEM); // more than there is room for
        EXPECT_EQ(weir_pool_reserve(pool, 0), 0);
        weir_pool_gc();
        EXPECT_EQ(stats(pool).allocated, 0u);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

// What was taken of it is there again, at work and when all came back, with and without a look.
TEST(Pool, AReserveThatWasUsedComesBack) {
    EXPECT_FINE(in_child([] {
        ASSERT_TRUE(core_options_parse("release=off"));
        weir_pool* pool = weir_pool_create("ready", 16384, 0, 0);
        EXPECT_EQ(weir_pool_reserve(pool, 1000), 0);
        for (unsigned i = 0; i < 200; i++) unit_pool_tick(); // it was not needed for long
        Objects objects(pool, 16384);
        for (unsigned i = 0; i < 1000; i++) objects.alloc(WEIR_POOL_ALLOC_CACHED);
        EXPECT_EQ(stats(pool).shared, 0u);
        objects.free_all();
        EXPECT_GE(stats(pool).cached, 1000u);
        unit_pool_tick();
        EXPECT_GE(stats(pool).cached, 1000u);
        for (unsigned i = 0; i < 1000; i++) objects.alloc();
        EXPECT_GE(stats(pool).shared, 1000 - 2 * unit_pool_tick_calls() * stats(pool).magazine);
        weir_pool_flush(pool);
        EXPECT_EQ(stats(pool).shared, 0u);
        for (unsigned i = 0; i < 17 * stats(pool).magazine; i++) objects.alloc();
        EXPECT_GE(stats(pool).shared, 1000 - unit_pool_tick_calls() * stats(pool).magazine);
        objects.free_all();
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

// As many slots as there are have room, wherever what is there already lies; two pools have the sum.
TEST(Pool, AReserveFillsTheTier) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("ready", 64, 0, 0);
        weir_pool* other = weir_pool_create("too", 64, 0, 0);
        uint64_t magazine = stats(pool).magazine;
        EXPECT_EQ(weir_pool_reserve(pool, 400 * magazine), 0);
        EXPECT_EQ(weir_pool_reserve(pool, 500 * magazine), 0);
        EXPECT_EQ(weir_pool_reserve(other, 524 * magazine), 0);
        EXPECT_EQ(stats(pool).shared, 1024 * magazine);
        EXPECT_EQ(weir_pool_reserve(other, 525 * magazine), ENOMEM);
        EXPECT_EQ(weir_pool_reserve(pool, 0), 0);
        EXPECT_EQ(weir_pool_destroy(other), 0);
        weir_pool_gc();
        EXPECT_EQ(stats(pool).shared, 0u);
    }));
}

TEST(Pool, AReserveIsForPoolsWithACacheOrAQueue) {
    EXPECT_FINE(in_child([] {
        weir_pool* uncached = weir_pool_create("uncached", 64, 0, WEIR_POOL_NO_CACHE);
        EXPECT_EQ(weir_pool_reserve(uncached, 10), ENOTSUP);
        weir_pool* limited = weir_pool_create("limited", 64, 0, 0);
        EXPECT_EQ(weir_pool_limit(limited, 5), 0);
        EXPECT_EQ(weir_pool_reserve(limited, 10), ENOTSUP);
        weir_pool* ready = weir_pool_create("ready", 64, 0, 0);
        EXPECT_EQ(weir_pool_reserve(ready, 10), 0);
        EXPECT_EQ(weir_pool_limit(ready, 5), EBUSY);
    }));
}

TEST(Pool, CachedAloneAndPastAllCaches) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("flags", 256, 0, 0);
        EXPECT_EQ(weir_pool_alloc_flags(pool, WEIR_POOL_ALLOC_CACHED), nullptr);
        EXPECT_EQ(stats(pool).failed, 1u);
        void* past = weir_pool_alloc_flags(pool, WEIR_POOL_ALLOC_NO_CACHE);
        ASSERT_NE(past, nullptr);
        EXPECT_EQ(stats(pool).allocated, 1u);
        EXPECT_EQ(stats(pool).held, 0u);
        weir_pool_free(pool, past);
        expect_conserved(pool, 0);
        void* again = weir_pool_alloc_flags(pool, WEIR_POOL_ALLOC_CACHED);
        EXPECT_EQ(bare(again), bare(past));
        weir_pool_free(pool, again);
        weir_pool* uncached = weir_pool_create("uncached", 256, 0, WEIR_POOL_NO_CACHE | WEIR_POOL_NO_MERGE);
        void* p = weir_pool_alloc(uncached);
        weir_pool_free(uncached, p);
        EXPECT_EQ(stats(uncached).allocated, 0u);
        EXPECT_EQ(weir_pool_destroy(uncached), 0);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

TEST(Pool, DestroyRefusesWhileObjectsAreInUse) {
    Ended ended = in_child([] {
        weir_pool* pool = weir_pool_create("busy", 64, 0, 0);
        Objects objects(pool, 64);
        for (unsigned i = 0; i < 200; i++) objects.alloc();
        while (objects.all.size() > 3) objects.free(0);
        EXPECT_EQ(weir_pool_destroy(pool), EBUSY);
        objects.alloc(); // it works as before
        objects.free_all();
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    });
    EXPECT_TRUE(ended.fine());
    EXPECT_EQ(ended.printed, "weir: pool-busy: pool busy has 3 objects in use in weir_pool_destroy; "
                             "see docs/errors/pool-busy.md\n");
}

TEST(Pool, DestroyGivesAllBack) {
    EXPECT_FINE(in_child([] {
        unit_figures before;
        unit_figures after;
        weir_pool* first = weir_pool_create("first", 5000, 0, WEIR_POOL_NO_MERGE);
        weir_pool_free(first, weir_pool_alloc(first));
        unit_census(&before);
        for (unsigned i = 0; i < 5000; i++) { // numbers and records are used again
            weir_pool* pool = weir_pool_create("again", 5000, 0, WEIR_POOL_NO_MERGE);
            ASSERT_NE(pool, nullptr);
            Objects objects(pool, 5000);
            for (unsigned k = 0; k < 60; k++) objects.alloc();
            objects.free_all();
            ASSERT_EQ(weir_pool_destroy(pool), 0);
        }
        unit_census(&after);
        EXPECT_LE(after.live_blocks, before.live_blocks + 2);
        EXPECT_LE(after.meta_bytes, before.meta_bytes + 64 * KIB);
        EXPECT_EQ(weir_pool_destroy(first), 0);
    }));
}

TEST(Pool, AsManyAsThereAreNumbers) {
    EXPECT_FINE(in_child([] {
        std::vector<weir_pool*> pools;
        for (unsigned i = 0; i < 4096; i++) pools.push_back(weir_pool_create("many", 64, 0, 0));
        EXPECT_NE(pools.back(), nullptr);
        errno = 0;
        EXPECT_EQ(weir_pool_create("one more", 64, 0, 0), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        for (weir_pool* pool : pools) weir_pool_free(pool, weir_pool_alloc(pool));
        EXPECT_EQ(stats(pools[0]).users, 4096u);
        for (weir_pool* pool : pools) EXPECT_EQ(weir_pool_destroy(pool), 0);
        EXPECT_NE(weir_pool_create("one more", 64, 0, 0), nullptr);
    }));
}

// Records of one size serve another, so that pools that come and go take no memory.
TEST(Pool, PoolsOfEverySizeThatComeAndGoTakeNoMore) {
    EXPECT_FINE(in_child([] {
        unit_figures before;
        unit_figures after;
        unit_census(&before);
        for (size_t size = 24; size < 80000; size += 40) {
            weir_pool* pool = weir_pool_create("one", size, 0, WEIR_POOL_EXACT);
            ASSERT_NE(pool, nullptr);
            EXPECT_EQ(stats(pool).needed, 0u);
            Objects objects(pool, size);
            for (unsigned i = 0; i < 10; i++) objects.alloc();
            EXPECT_EQ(stats(pool).object_bytes, size);
            EXPECT_EQ(stats(pool).users, 1u);
            objects.free_all();
            expect_conserved(pool, 0);
            ASSERT_EQ(weir_pool_destroy(pool), 0);
        }
        unit_census(&after);
        EXPECT_LE(after.meta_bytes, before.meta_bytes + 2 * MIB);
    }));
}

std::string names_after(uint64_t after) {
    std::string names;
    weir_pool_stats s = {};
    s.struct_size = sizeof s;
    s.number = after;
    while (weir_pool_stats_next(s.number, &s) == 0) names += s.name;
    return names;
}

TEST(Pool, FiguresOfAllByNumber) {
    EXPECT_FINE(in_child([] {
        weir_pool* a = weir_pool_create("a name that is longer than what is kept", 64, 0, 0);
        weir_pool* b = weir_pool_create("b", 200, 64, WEIR_POOL_ZERO);
        weir_pool_stats s = {};
        s.struct_size = sizeof s;
        EXPECT_EQ(weir_pool_stats_next(0, &s), 0);
        EXPECT_STREQ(s.name, "a name that is longer than what");
        EXPECT_EQ(s.number, 1u);
        EXPECT_EQ(weir_pool_stats_next(1, &s), 0);
        EXPECT_STREQ(s.name, "b");
        EXPECT_EQ(s.number, 2u);
        EXPECT_EQ(s.object_bytes, 200u);
        EXPECT_EQ(s.block_bytes, 256u);
        EXPECT_EQ(s.flags, WEIR_POOL_ZERO);
        EXPECT_EQ(weir_pool_stats_next(2, &s), ENOENT);
        weir_pool_destroy(a);
        EXPECT_EQ(names_after(0), "b");
        weir_pool_destroy(b);
        EXPECT_EQ(weir_pool_stats_next(0, &s), ENOENT);
    }));
}

// What ends between two calls is left out, and nothing else.
TEST(Pool, NoPoolIsPassedOverWhereOthersEnd) {
    EXPECT_FINE(in_child([] {
        std::vector<weir_pool*> pools;
        for (const char* name : {"a", "b", "c", "d", "e"}) pools.push_back(weir_pool_create(name, 64, 0, 0));
        weir_pool_stats s = {};
        s.struct_size = sizeof s;
        std::string names;
        while (weir_pool_stats_next(s.number, &s) == 0) {
            names += s.name;
            if (names == "ab") weir_pool_destroy(pools[0]);
            if (names != "abc") continue;
            weir_pool_destroy(pools[2]);
            weir_pool_destroy(pools[3]);
            weir_pool_create("f", 64, 0, 0); // in one of their records
        }
        EXPECT_EQ(names, "abcef");
        EXPECT_EQ(names_after(0), "bef");
        EXPECT_EQ(names_after(4), "ef");
        EXPECT_EQ(names_after(0), "bef");
    }));
}

TEST(Pool, AVisitGoesOnWhereOneStopped) {
    EXPECT_FINE(in_child([] {
        std::vector<weir_pool*> pools;
        for (const char* name : {"a", "b", "c", "d", "e"}) pools.push_back(weir_pool_create(name, 100, 0, 0));
        Objects objects(pools[2], 100);
        for (unsigned i = 0; i < 7; i++) objects.alloc();
        std::vector<unit_pool> rows(10);
        uint64_t made = 0;
        ASSERT_EQ(unit_pool_visit(0, rows.data(), 2, &made), 2);
        EXPECT_EQ(made, 5u);
        EXPECT_STREQ(rows[1].figures.name, "b");
        // What ends in between is left out, and nothing else; its id is the next one's.
        uint64_t last = rows[1].number;
        EXPECT_EQ(weir_pool_destroy(pools[0]), 0);
        EXPECT_EQ(weir_pool_destroy(pools[3]), 0);
        uint32_t id_of_a = rows[0].id;
        pools.push_back(weir_pool_create("f", 3000, 0, 0));
        pools.push_back(weir_pool_create("g", 100, 0, 0));
        ASSERT_EQ(unit_pool_visit(last, rows.data(), 10, &made), 4);
        EXPECT_EQ(made, 7u);
        std::string names;
        for (unsigned i = 0; i < 4; i++) names += rows[i].figures.name;
        EXPECT_EQ(names, "cefg");
        EXPECT_EQ(rows[3].id, id_of_a);
        EXPECT_EQ(rows[3].number, 7u);
        // All figures fit: those of one look at all, and those of the pool alone.
        EXPECT_EQ(rows[0].figures.used, 7u);
        EXPECT_EQ(rows[0].figures.users, 4u);
        for (unsigned i = 0; i < 4; i++) {
            weir_pool_stats s = {};
            s.struct_size = sizeof s;
            EXPECT_EQ(weir_pool_stats_next(rows[i].number - 1, &s), 0);
            EXPECT_EQ(memcmp(&s, &rows[i].figures, sizeof s), 0) << i;
        }
        EXPECT_EQ(rows[0].figures.allocated, 7 + rows[0].figures.cached);
    }));
}

TEST(Pool, FewerThanNoneInUseAreNone) {
    EXPECT_FINE(in_child([] {
        weir_pool* a = weir_pool_create("a", 100, 0, 0);
        weir_pool* b = weir_pool_create("b", 100, 0, 0);
        weir_pool_free(b, weir_pool_alloc(a)); // as a look finds them that comes between two threads' counts
        EXPECT_EQ(stats(a).used, 1u);
        EXPECT_EQ(stats(b).used, 0u);
    }));
}

TEST(Pool, FlushEmptiesTheTierAndTheOwnCache) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("flushed", 1024, 0, 0);
        weir_pool_flush(pool); // on empty
        Objects objects(pool, 1024);
        for (unsigned i = 0; i < 1000; i++) objects.alloc();
        while (objects.all.size() > 10) objects.free(0);
        EXPECT_GT(stats(pool).cached, 900u);
        weir_pool_flush(pool);
        expect_conserved(pool, 10);
        EXPECT_EQ(stats(pool).allocated, 10u);
        weir_pool_flush(pool); // again, on empty
        for (unsigned i = 0; i < 100; i++) objects.alloc();
        objects.free_all();
        weir_pool_gc();
        EXPECT_EQ(stats(pool).allocated, 0u);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

// A burst of large objects stays in the tier as one of small ones does, and serves the next.
TEST(Pool, ABurstOfAnySizeServesTheNext) {
    EXPECT_FINE(in_child([] {
        for (size_t size : {49152u, 262144u, 2097152u}) {
            weir_pool* pool = weir_pool_create("burst", size, 0, 0);
            Objects objects(pool, size);
            for (unsigned i = 0; i < 300; i++) objects.alloc();
            objects.free_all();
            weir_pool_stats s = stats(pool);
            EXPECT_GE(s.cached, 300u) << size;
            for (unsigned i = 0; i < 300; i++) objects.alloc(WEIR_POOL_ALLOC_CACHED);
            EXPECT_EQ(stats(pool).allocated, s.allocated) << size;
            objects.free_all();
            EXPECT_EQ(weir_pool_destroy(pool), 0);
        }
    }));
}

// Each by itself: a thread that freed six has one, or two of the smaller, and another one gets all the
// others.
TEST(Pool, LargeObjectsChangeHandsOneByOne) {
    for (size_t size : {size_t{128} * KIB, size_t{256} * KIB, 2 * MIB})
        EXPECT_FINE(in_child([=] {
            weir_pool* pool = weir_pool_create("large", size, 0, 0);
            Objects objects(pool, size);
            for (unsigned i = 0; i < 6; i++) objects.alloc();
            objects.free_all();
            weir_pool_stats s = stats(pool);
            EXPECT_EQ(s.magazine, 1u);
            EXPECT_EQ(s.held, size < MIB ? 2u : 1u);
            EXPECT_EQ(s.shared, 6 - s.held);
            std::thread([&] {
                Objects others(pool, size);
                for (unsigned i = 0; i < s.shared; i++) others.alloc(WEIR_POOL_ALLOC_CACHED);
                EXPECT_EQ(weir_pool_alloc_flags(pool, WEIR_POOL_ALLOC_CACHED), nullptr);
                expect_conserved(pool, s.shared);
                others.free_all();
                unit_detach();
            }).join();
            EXPECT_EQ(stats(pool).shared, s.shared);
            EXPECT_EQ(weir_pool_reserve(pool, 10), 0);
            EXPECT_EQ(stats(pool).shared, 10u);
            weir_pool_flush(pool);
            EXPECT_EQ(stats(pool).allocated, 0u);
            EXPECT_EQ(weir_pool_destroy(pool), 0);
        }));
}

// A tier that is full: what has no room goes to the heap, and nothing is lost.
TEST(Pool, WhatHasNoRoomGoesToTheHeap) {
    EXPECT_FINE(in_child([] {
        weir_pool* pool = weir_pool_create("many", 64, 0, 0);
        Objects objects(pool, 64);
        for (unsigned i = 0; i < 100000; i++) objects.alloc();
        objects.free_all();
        weir_pool_stats s = stats(pool);
        EXPECT_LT(s.allocated, 100000u);
        EXPECT_GT(s.shared, 1000u);
        expect_conserved(pool, 0);
        EXPECT_EQ(weir_pool_destroy(pool), 0);
    }));
}

// Each call of the kernel refused in turn: an object or NULL, and all counts right afterwards.
TEST(Pool, RefusedMemoryLosesNothing) {
    for (unsigned fail_at = 0; fail_at < 40; fail_at += unit_refused_step)
        EXPECT_FINE(in_child([=] {
            static unsigned calls;
            static unsigned at;
            calls = 0;
            at = fail_at;
            os_fault_hook = [](enum os_call) { return calls++ >= at; };
            weir_pool* pool = weir_pool_create("refused", 300000, 0, 0);
            weir_pool* small = weir_pool_create("refused too", 40, 0, 0);
            std::vector<void*> objects;
            std::vector<void*> smalls;
            for (unsigned i = 0; i < 200 && pool != nullptr; i++)
                if (void* p = weir_pool_alloc(pool)) objects.push_back(p);
            for (unsigned i = 0; i < 5000 && small != nullptr; i++)
                if (void* p = weir_pool_alloc(small)) smalls.push_back(p);
            if (pool != nullptr) {
                for (void* p : objects) memset(p, 1, 300000);
                EXPECT_EQ(stats(pool).failed, 200 - objects.size());
                expect_conserved(pool, objects.size());
                for (void* p : objects) weir_pool_free(pool, p);
                expect_conserved(pool, 0);
            }
            if (small != nullptr) {
                expect_conserved(small, smalls.size());
                for (void* p : smalls) weir_pool_free(small, p);
                expect_conserved(small, 0);
            }
            os_fault_hook = nullptr;
            if (pool != nullptr) {
                void* p = weir_pool_alloc(pool);
                EXPECT_NE(p, nullptr);
                weir_pool_free(pool, p);
                EXPECT_EQ(weir_pool_destroy(pool), 0);
            }
        }));
}

// After a burst, looks give back what is not needed: all but a tenth with the fourth, nothing of what is.
TEST(Pool, WhatABurstLeftGoesBack) {
    for (size_t size : {64u, 1024u, 16384u, 262144u})
        EXPECT_FINE(in_child([=] {
            ASSERT_TRUE(core_options_parse("release=off")); // nobody else looks
            weir_pool* pool = weir_pool_create("burst", size, 0, 0);
            Objects objects(pool, 1);
            unsigned burst = size > 100000 ? 400 : 20000;
            for (unsigned i = 0; i < burst; i++) objects.alloc();
            while (objects.all.size() > burst / 20) objects.free(objects.all.size() - 1);
            EXPECT_GE(stats(pool).needed, burst);
            unit_pool_tick();
            EXPECT_GE(stats(pool).needed, burst); // it was, in this turn
            for (unsigned i = 0; i < 3; i++) unit_pool_tick();
            weir_pool_stats s = stats(pool);
            EXPECT_LE(s.allocated, (s.used + s.held) * 11 / 10 + 1);
            expect_conserved(pool, burst / 20);
            for (unsigned i = 0; i < 6; i++) unit_pool_tick();
            s = stats(pool);
            EXPECT_LE(s.allocated, s.used + s.held + 1);
            // What comes and goes all the time stays, however often somebody looks.
            for (unsigned i = 0; i < 20; i++) {
                Objects more(pool, 1);
                for (unsigned k = 0; k < burst / 10; k++) more.alloc();
                more.free_all();
                unit_pool_tick();
            }
            uint64_t before = stats(pool).allocated;
            EXPECT_GT(stats(pool).shared, 0u);
            for (unsigned i = 0; i < 10; i++) {
                Objects more(pool, 1);
                for (unsigned k = 0; k < burst / 10; k++) more.alloc();
                more.free_all();
                unit_pool_tick();
                s = stats(pool);
                EXPECT_GE(s.needed + 2 * s.magazine, s.used + burst / 10);
            }
            EXPECT_EQ(stats(pool).allocated, before);
            objects.free_all();
            EXPECT_EQ(weir_pool_destroy(pool), 0);
        }));
}

// What other pools cache is memory too.
TEST(Pool, WhenMemoryIsShortOtherPoolsGiveBack) {
    EXPECT_FINE(in_child([] {
        weir_pool* rich = weir_pool_create("rich", 2 * MIB, 0, 0);
        Objects objects(rich, 1);
        for (unsigned i = 0; i < 20; i++) objects.alloc();
        objects.free_all();
        EXPECT_GT(stats(rich).shared, 10u);
        os_fault_hook = [](enum os_call) { return true; };
        weir_pool* poor = weir_pool_create("poor", MIB, 0, 0);
        ASSERT_NE(poor, nullptr);
        // The heap may have a few without asking.
        for (unsigned i = 0; i < 40 && stats(rich).shared != 0; i++)
            ASSERT_NE(weir_pool_alloc(poor), nullptr);
        EXPECT_EQ(stats(rich).shared, 0u);
        os_fault_hook = nullptr;
    }));
}

// What was asked to be ready is ready then, too.
TEST(Pool, AReserveStaysWhenMemoryIsShort) {
    EXPECT_FINE(in_child([] {
        weir_pool* rich = weir_pool_create("rich", 2 * MIB, 0, 0);
        EXPECT_EQ(weir_pool_reserve(rich, 10), 0);
        weir_pool* poor = weir_pool_create("poor", 64 * MIB, 0, 0);
        ASSERT_NE(poor, nullptr);
        os_fault_hook = [](enum os_call) { return true; };
        EXPECT_EQ(weir_pool_alloc(poor), nullptr);
        EXPECT_EQ(stats(rich).shared, 10u);
        os_fault_hook = nullptr;
    }));
}

} // namespace
