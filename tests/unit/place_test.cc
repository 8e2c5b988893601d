// place_test.cc: heap/place.h and heap/history.h: what lies at an address, and who had it. Called by ctest.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <thread>
#include <vector>

namespace {

enum { BLOCK, GAP, NONE };
uintptr_t at(const void* p) { return reinterpret_cast<uintptr_t>(bare(p)); }

// Each byte of the block, and none beside it.
void expect_block(void* p, size_t bytes, bool is_free) {
    char* c = static_cast<char*>(p);
    for (size_t i : {size_t(0), size_t(1), bytes / 2, bytes - 1}) {
        unit_place place = unit_place_at(c + i);
        EXPECT_EQ(place.kind, BLOCK) << i;
        EXPECT_EQ(place.start, at(p)) << i;
        EXPECT_EQ(place.bytes, bytes) << i;
        EXPECT_EQ(place.free, is_free) << bytes << " " << i;
    }
    unit_place before = unit_place_at(c - 1);
    unit_place behind = unit_place_at(c + bytes);
    EXPECT_NE(before.start, at(p));
    EXPECT_NE(behind.start, at(p));
    if (before.kind == BLOCK || before.kind == GAP) {
        EXPECT_EQ(before.start + before.bytes, at(p));
    }
}

TEST(Place, SmallBlocksLiveAndFreed) {
    EXPECT_FINE(in_child([] {
        for (size_t size : {16u, 48u, 112u, 1024u}) {
            std::vector<void*> p(300);
            for (void*& q : p) q = unit_alloc(size);
            for (void* q : p) expect_block(q, size, false);
            unit_place first = unit_place_at(p[0]);
            unit_place second = unit_place_at(static_cast<char*>(p[0]) + size);
            EXPECT_TRUE(first.slotted && second.slotted);
            EXPECT_EQ(second.slot, first.slot + 1);
            for (size_t i = 0; i < p.size(); i += 2) unit_free(p[i]);
            for (size_t i = 0; i < p.size(); i++) expect_block(p[i], size, i % 2 == 0);
            void* again = unit_alloc(size); // what is in the bin is free, but for this one
            expect_block(again, size, false);
            for (size_t i = 0; i < p.size(); i += 2) {
                EXPECT_EQ(unit_place_at(p[i]).free, bare(p[i]) != bare(again));
            }
            unit_free(again);
            expect_block(again, size, true);
            for (size_t i = 1; i < p.size(); i += 2) unit_free(p[i]);
        }
    }));
}

TEST(Place, BlocksThatWereSortedByPage) {
    EXPECT_FINE(in_child([] {
        core_options.thread_free_max = 0;
        std::vector<void*> p(6000);
        for (void*& q : p) q = unit_alloc(64);
        for (size_t i = 0; i < p.size(); i++)
            if (i % 40 != 0) unit_free(p[i]);
        for (size_t i = 0; i < p.size(); i++) EXPECT_EQ(unit_place_at(p[i]).free, i % 40 != 0) << i;
    }));
}

// One whose first page other blocks are on, and whose last one has become a hole.
TEST(Place, AFreedBlockThatReachesIntoAHoleIsFree) {
    for (size_t size : {112u, 1008u})
        EXPECT_FINE(in_child([=] {
            size_t page = os_page_bytes();
            std::vector<void*> p(65536 / size);
            for (void*& q : p) q = unit_alloc(size);
            auto is_to_go = [=](const void* q) {
                size_t offset = at(q) % 65536;
                return (offset + size - 1) / page >= 5 && offset / page <= 7;
            };
            unsigned gone = 0;
            for (void* q : p) gone += is_to_go(q);
            for (void* q : p)
                if (is_to_go(q)) unit_free(q);
            unit_collect();
            EXPECT_GE(gone, 3 * page / size);
            for (void* q : p) EXPECT_EQ(unit_place_at(q).free, is_to_go(q)) << at(q) % 65536;
        }));
}

TEST(Place, WhatWasNeverGivenOutIsFree) {
    EXPECT_FINE(in_child([] {
        char* p = static_cast<char*>(unit_alloc(64));
        unit_place last = unit_place_at(p + 60000);
        EXPECT_EQ(last.kind, BLOCK);
        EXPECT_TRUE(last.free);
        EXPECT_FALSE(unit_place_at(p).free);
        unit_free(p);
    }));
}

TEST(Place, BehindTheLastBlockOfASlabIsAGap) {
    EXPECT_FINE(in_child([] {
        char* p = static_cast<char*>(unit_alloc(48)); // 65536 is no multiple
        char* base = reinterpret_cast<char*>(at(p) & ~uintptr_t(65535));
        unit_place gap = unit_place_at(base + 65535);
        EXPECT_EQ(gap.kind, GAP);
        EXPECT_EQ(gap.start, at(base) + 65520);
        EXPECT_EQ(gap.bytes, 16u);
        EXPECT_EQ(unit_place_at(base + 65519).start, at(base) + 65520 - 48);
        unit_free(p);
    }));
}

TEST(Place, BlocksThatOthersFreed) {
    EXPECT_FINE(in_child([] {
        std::vector<void*> p(100);
        for (void*& q : p) q = unit_alloc(64);
        std::thread([&] {
            void* own = unit_alloc(64);
            unit_free(p[3]); // waits in the thread's outbox
            expect_block(p[3], 64, true);
            expect_block(p[4], 64, false);
            unit_free(own);
            unit_detach();
        }).join();
        expect_block(p[3], 64, true);
        expect_block(p[4], 64, false);
    }));
}

TEST(Place, MediumBlocks) {
    EXPECT_FINE(in_child([] {
        void* a = unit_alloc(3000);
        void* b = unit_alloc(20000);
        void* c = unit_alloc(3000);
        expect_block(a, unit_usable(a), false);
        expect_block(b, unit_usable(b), false);
        unit_free(b); // kept by the thread, then free
        EXPECT_TRUE(unit_place_at(static_cast<char*>(b) + 19999).free);
        unit_free(a);
        unit_free(c);
        EXPECT_TRUE(unit_place_at(a).free);
        EXPECT_TRUE(unit_place_at(static_cast<char*>(c) + 100).free);
    }));
}

TEST(Place, LargeBlocks) {
    EXPECT_FINE(in_child([] {
        char* p = static_cast<char*>(unit_alloc(600000));
        size_t usable = unit_usable(p);
        expect_block(p, usable, false);
        unit_place tail = unit_place_at(p + usable);
        EXPECT_EQ(tail.kind, GAP);
        EXPECT_EQ(tail.start, at(p) + usable);
        unit_free(p);
        unit_place gone = unit_place_at(p + 5000);
        EXPECT_TRUE(gone.free);
        char* q = static_cast<char*>(unit_alloc(8 << 20));
        expect_block(q, unit_usable(q), false);
        unit_free(q);
        EXPECT_EQ(unit_place_at(q + 100).kind, NONE);
    }));
}

TEST(Place, WhatIsNotTheHeaps) {
    EXPECT_FINE(in_child([] {
        unit_free(unit_alloc(10));
        int local;
        EXPECT_EQ(unit_place_at(&local).kind, -1);
        EXPECT_EQ(unit_place_at(nullptr).kind, -1);
        EXPECT_EQ(unit_place_at(reinterpret_cast<void*>(regions[0].base)).kind, -1); // records
    }));
}

TEST(History, KeepsTheLastCalls) {
    EXPECT_FINE(in_child([] {
        char block[10];
        int thread = 0;
        unit_history_start(4);
        EXPECT_EQ(unit_history_find(false, block, &thread), -1);
        unit_history_note(false, block);
        EXPECT_GT(unit_history_find(false, block, &thread), 0);
        EXPECT_EQ(thread, os_thread_id());
        EXPECT_EQ(unit_history_find(true, block, &thread), -1);
        EXPECT_EQ(unit_history_find(false, block + 1, &thread), -1);
        int other = 0;
        std::thread([&] {
            other = os_thread_id();
            unit_history_note(true, block);
        }).join();
        EXPECT_GT(unit_history_find(true, block, &thread), 0);
        EXPECT_EQ(thread, other);
        for (int i = 1; i < 4; i++) unit_history_note(false, block + i);
        EXPECT_EQ(unit_history_find(false, block, &thread), -1); // five calls ago
        EXPECT_GT(unit_history_find(true, block, &thread), 0);
    }));
}

TEST(History, IsBounded) {
    EXPECT_FINE(in_child([] {
        core_options.guard_frames = 32;
        unit_history_start(100);
        char* const block = reinterpret_cast<char*>(0x1000);
        std::vector<std::thread> all;
        for (int t = 0; t < 4; t++)
            all.emplace_back([=] {
                for (int i = 0; i < 2000; i++) unit_history_note((i & 1) != 0, block + t);
            });
        for (std::thread& t : all) t.join();
        int thread, known = 0;
        for (int t = 0; t < 4; t++) known += unit_history_find(true, block + t, &thread) > 0;
        EXPECT_GT(known, 0);
    }));
}

} // namespace
