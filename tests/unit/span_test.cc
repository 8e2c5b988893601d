// span_test.cc: page/span.h, case by case: which span serves, how it grows and moves, and what is known of
// its pages. Called by ctest; each test starts the page layer in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "spans.h"

namespace {

TEST(Span, MergesWithItsFreeNeighbours) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        for (unsigned order = 0; order < 6; order++) {
            bool zeroed;
            struct slice* all = span_alloc(30, 1, &zeroed);
            span_free(all);
            struct slice* s[3];
            for (struct slice*& one : s) one = span_alloc(10, 1, &zeroed);
            EXPECT_EQ(s[0], all);
            static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                                  {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
            for (unsigned i : orders[order]) span_free(s[i]);
            EXPECT_TRUE(span_check());
            EXPECT_EQ(all->kind, SLICE_FREE);
            EXPECT_EQ(all->span_slices, 30u);
        }
    }));
}

TEST(Span, LargeAlignmentsHoldAndLeaveTheGapFree) {
    EXPECT_FINE(in_child([] {
        region_start(4 * GIB);
        for (size_t align = 1; align <= 4096; align *= 4) {
            bool zeroed;
            struct slice* one = span_alloc(1, 1, &zeroed);
            struct slice* s = span_alloc(3, align, &zeroed);
            ASSERT_NE(s, nullptr) << align;
            EXPECT_EQ(slice_address(s) % bytes_of(align), 0u);
            EXPECT_EQ(span_totals.live, bytes_of(4));
            EXPECT_TRUE(span_check());
            span_free(s);
            span_free(one);
        }
        bool zeroed;
        EXPECT_EQ(span_alloc(1, size_t{UINT32_MAX}, &zeroed), nullptr);
    }));
}

TEST(Span, ImpossibleSizesAreRefused) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        EXPECT_EQ(span_alloc(size_t{UINT32_MAX} + 1, 1, &zeroed), nullptr);
        EXPECT_EQ(span_alloc(SIZE_MAX >> SLICE_SHIFT, 1, &zeroed), nullptr);
        EXPECT_EQ(span_alloc(UINT32_MAX / 4, 1, &zeroed), nullptr); // 64 TiB
        struct slice* s = span_alloc(1, 1, &zeroed);
        EXPECT_FALSE(span_resize(s, SIZE_MAX >> SLICE_SHIFT));
        EXPECT_EQ(span_move(s, SIZE_MAX >> SLICE_SHIFT, 0, 1), nullptr);
        EXPECT_EQ(s->span_slices, 1u);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, PurgeGivesMemoryBackAndItReadsAsZero) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        bool zeroed;
        EXPECT_FALSE(span_purge(UINT64_MAX));
        struct slice* s = span_alloc(512, 1, &zeroed);
        EXPECT_TRUE(zeroed);
        memset(address(s), 1, bytes_of(512));
        uint64_t full, after, peak;
        os_resident(&full, &peak);
        span_free(s);
        EXPECT_EQ(span_totals.dirty, bytes_of(512));
        s = span_alloc(512, 1, &zeroed);
        EXPECT_FALSE(zeroed);
        EXPECT_EQ(address(s)[77], 1);
        span_free(s);
        EXPECT_TRUE(span_purge(UINT64_MAX));
        os_resident(&after, &peak);
        EXPECT_EQ(span_totals.dirty, 0u);
        EXPECT_EQ(span_totals.purged, bytes_of(512));
        EXPECT_LE(after + bytes_of(512) * 9 / 10, full);
        s = span_alloc(512, 1, &zeroed);
        EXPECT_TRUE(zeroed);
        EXPECT_TRUE(is_zero(address(s), bytes_of(512)));
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, DirtyMemoryIsBounded) {
    EXPECT_FINE(in_child([] {
        core_options.dirty_max = 4 * MIB;
        region_start(GIB);
        bool zeroed;
        std::vector<struct slice*> all;
        for (int i = 0; i < 200; i++) all.push_back(span_alloc(16, 1, &zeroed));
        for (struct slice* s : all) {
            memset(address(s), 1, bytes_of(16));
            span_free(s);
            EXPECT_LE(span_totals.dirty, 4 * MIB);
        }
        EXPECT_GE(span_totals.purged, 190 * MIB);
        EXPECT_TRUE(span_check());
    }));
}

// What is free between spans that stay serves no longer one: where that is much, growth gives as much of it
// back.
TEST(Span, GrowthPaysWithShortSpans) {
    for (unsigned mib : {12u, 40u})
        for (bool release : {true, false})
            EXPECT_FINE(in_child([=] {
                core_options.release = release;
                region_start(GIB);
                bool zeroed;
                std::vector<struct slice*> all;
                for (unsigned i = 0; i < 2 * mib * 16; i++) all.push_back(span_alloc(1, 1, &zeroed));
                for (size_t i = 0; i < all.size(); i += 2) span_free(all[i]); // of each two neighbours one
                const uint64_t dirty = span_totals.dirty;
                EXPECT_EQ(dirty, bytes_of(mib * 16));
                const bool pays = release && mib > 16;
                struct slice* chunk = span_alloc(16, 1, &zeroed);
                EXPECT_EQ(span_totals.dirty, dirty - (pays ? bytes_of(16) : 0));
                struct slice* block = span_alloc(1000, 1, &zeroed); // no more than some at a time
                EXPECT_EQ(span_totals.dirty, dirty - (pays ? bytes_of(16 + 64) : 0));
                for (unsigned i = 0; i < 100; i++) span_alloc(16, 1, &zeroed); // and not all
                EXPECT_GE(span_totals.dirty, std::min<uint64_t>(dirty, 16 << 20));
                EXPECT_LE(span_totals.dirty, pays ? span_totals.live / 4 + bytes_of(16) : dirty);
                // Those that are long enough for a chunk are none.
                span_free(block);
                span_free(chunk);
                const uint64_t before = span_totals.dirty;
                span_alloc(2000, 1, &zeroed);
                EXPECT_GE(span_totals.dirty, before - bytes_of(64));
                EXPECT_TRUE(span_check());
            }));
}

TEST(Span, StrictAccountingUnchargesWhatIsPurged) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        region_commit_strict = true;
        bool zeroed;
        struct slice* s = span_alloc(64, 1, &zeroed);
        memset(address(s), 1, bytes_of(64));
        span_free(s);
        EXPECT_TRUE(span_purge(UINT64_MAX));
        EXPECT_EQ(s->state, SPAN_UNCOMMITTED);
        EXPECT_FALSE(is_readable(address(s)));
        struct slice* part = span_alloc(10, 1, &zeroed);
        EXPECT_TRUE(zeroed);
        EXPECT_TRUE(is_zero(address(part), bytes_of(10)));
        EXPECT_FALSE(is_readable(address(part) + bytes_of(10)));
        EXPECT_TRUE(span_resize(part, 20));
        EXPECT_TRUE(is_zero(address(part), bytes_of(20)));
        EXPECT_EQ(span_move(part, 30, 0, bytes_of(20)), nullptr);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, LockedMemoryStaysDirtyAndEndsTheAttempt) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        struct slice* s = span_alloc(2, 1, &zeroed);
        address(s)[0] = 1;
        if (mlock(address(s), 4096) != 0) return;
        span_free(s);
        if (span_purge(UINT64_MAX)) return; // a sanitizer's mlock does nothing
        EXPECT_EQ(span_totals.dirty, bytes_of(2));
        EXPECT_EQ(span_totals.purged, 0u);
        EXPECT_TRUE(span_check());
        s = span_alloc(2, 1, &zeroed);
        EXPECT_FALSE(zeroed);
        span_free(s);
    }));
}

TEST(Span, ResizesInPlaceWhereTheNeighbourIsFree) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        struct slice* s = span_alloc(4, 1, &zeroed);
        EXPECT_TRUE(span_resize(s, 4));
        EXPECT_TRUE(span_resize(s, 100)); // at the frontier
        publish(s);
        EXPECT_EQ(regions[0].live, 100u);
        struct slice* wall = span_alloc(1, 1, &zeroed);
        EXPECT_FALSE(span_resize(s, 101));
        EXPECT_TRUE(span_resize(s, 50));
        EXPECT_EQ(span_totals.dirty, bytes_of(50));
        EXPECT_TRUE(span_resize(s, 80));
        EXPECT_TRUE(span_check());
        EXPECT_EQ((s + 80)->kind, SLICE_FREE);
        EXPECT_EQ((s + 80)->span_slices, 20u);
        EXPECT_FALSE(span_resize(s, 101));
        EXPECT_TRUE(span_resize(s, 100));
        span_free(wall);
        span_free(s);
        EXPECT_TRUE(span_check());
    }));
}

// What is free at the frontier is too small: the block lies on it and goes on behind.
TEST(Span, GrowsTheFreeEndByWhatIsLacking) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        struct slice* s = span_alloc(4, 1, &zeroed);
        publish(s);
        struct slice* end = span_alloc(3, 1, &zeroed);
        publish(end);
        memset(address(end), 0x5a, bytes_of(3));
        span_free(end);
        uint32_t frontier = regions[0].frontier;
        EXPECT_EQ(span_alloc(5, 1, &zeroed), end);
        EXPECT_FALSE(zeroed);
        EXPECT_EQ(regions[0].frontier, frontier + 2);
        EXPECT_EQ(span_totals.dirty, 0u);
        EXPECT_EQ(hole_clean(slice_pages(end)->state), hole_all()); // of its last slice
        EXPECT_TRUE(span_check());
        publish(end);
        memset(address(end), 0x5a, bytes_of(5));
        span_free(end);
        EXPECT_TRUE(span_resize(s, 12)); // the same behind a block that grows
        EXPECT_EQ(regions[0].frontier, frontier + 5);
        EXPECT_EQ(span_totals.dirty, 0u);
        publish(s);
        span_free(s);
        // An aligned one does not.
        EXPECT_NE(span_alloc(16, 16, &zeroed), nullptr);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, OfAGrownEndEachPageIsKnown) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        bool ahead;
        // Pages 0 and 1 were purged, the others are as they were used.
        struct slice* s = span_alloc_slab(2, true, &ahead);
        EXPECT_FALSE(ahead);
        for (unsigned i = 0; i < 2; i++) {
            s[i].kind = i == 0 ? SLICE_SLAB : SLICE_SLAB_REST;
            slice_pages(s + i)->state = hole_all() | 3ull << PAGES_CLEAN_SHIFT | 3ull << PAGES_OLD_SHIFT;
        }
        span_free_paged(s);
        EXPECT_EQ(span_alloc_slab(4, true, &ahead), s);
        EXPECT_FALSE(ahead);
        uint64_t old = hole_all() | 3ull << PAGES_CLEAN_SHIFT | 3ull << PAGES_OLD_SHIFT;
        uint64_t fresh = hole_all() | static_cast<uint64_t>(hole_all()) << PAGES_CLEAN_SHIFT;
        for (unsigned i = 0; i < 4; i++) EXPECT_EQ(slice_pages(s + i)->state, i < 2 ? old : fresh);
        // And of a block: what was purged is in use again.
        for (unsigned i = 0; i < 4; i++) s[i].kind = i == 0 ? SLICE_SLAB : SLICE_SLAB_REST;
        slice_pages(s + 3)->state = old;
        span_free_paged(s);
        uint64_t refaulted = load_relaxed(&release_totals.refaulted);
        EXPECT_EQ(span_alloc(6, 1, &zeroed), s);
        EXPECT_FALSE(zeroed);
        EXPECT_EQ(load_relaxed(&release_totals.refaulted), refaulted + (6u << page_shift));
        EXPECT_EQ(slice_pages(s)->state, fresh & ~PAGES_ALL);
        for (unsigned i = 1; i < 6; i++) EXPECT_EQ(slice_pages(s + i)->state, 0u);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Span, OfFreeSpansThatFitTheSmallestServes) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        struct slice* s[4];
        struct slice* wall[4];
        static const size_t slices[4] = {38, 33, 34, 39}; // one list
        for (unsigned i = 0; i < 4; i++) {
            s[i] = span_alloc(slices[i], 1, &zeroed);
            wall[i] = span_alloc(1, 1, &zeroed);
            publish(s[i]);
        }
        for (struct slice* one : s) span_free(one);
        EXPECT_EQ(span_alloc(33, 1, &zeroed), s[1]);
        EXPECT_EQ(span_alloc(33, 1, &zeroed), s[2]);
        EXPECT_EQ(span_alloc(20, 1, &zeroed), s[0]);
        EXPECT_TRUE(span_check());
        for (struct slice* one : wall) span_free(one);
    }));
}

TEST(Span, MovesUpToTheBoundOfMappings) {
    EXPECT_FINE(in_child([] {
        core_options.map_count_max = 16;
        region_start(GIB);
        bool zeroed;
        std::vector<struct slice*> all;
        unsigned moved = 0;
        for (unsigned i = 0; i < 30; i++) {
            struct slice* s = span_alloc(16, 1, &zeroed);
            memset(address(s), static_cast<int>(i), bytes_of(16));
            struct slice* to = span_move(s, 32, 0, bytes_of(16));
            if (to != nullptr) {
                moved++;
                s = to;
            }
            EXPECT_EQ(address(s)[0], static_cast<char>(i));
            EXPECT_EQ(address(s)[bytes_of(16) - 1], static_cast<char>(i));
            all.push_back(s);
        }
        EXPECT_TRUE(moved == 16 || moved == 0); // emulators have no such call
        EXPECT_EQ(span_totals.moved, moved);
        for (struct slice* s : all) span_free(s);
        EXPECT_EQ(span_totals.moved, 0u);
        EXPECT_EQ(span_totals.live, 0u);
        EXPECT_TRUE(span_check());
        struct slice* again = span_alloc(16 * 30, 1, &zeroed);
        EXPECT_TRUE(!zeroed || is_zero(address(again), bytes_of(16 * 30)));
        memset(address(again), 1, bytes_of(16 * 30));
    }));
}

// A refused move may have unmapped its destination: it is covered again, or out of use.
TEST_UNEMULATED(Span, RefusedMovesLeaveNoHole) {
    static unsigned maps_until_fault;
    for (bool cover_too : {false, true})
        EXPECT_FINE(in_child([&] {
            region_start(GIB);
            bool zeroed;
            struct slice* s = span_alloc(16, 1, &zeroed);
            memset(address(s), 5, bytes_of(16));
            struct slice* room = span_alloc(64, 1, &zeroed);
            span_free(room);
            ASSERT_TRUE(os_may_move()); // found out once, with calls of its own
            maps_until_fault = cover_too ? 1 : 1000;
            os_fault_hook = [](enum os_call call) {
                return call == OS_REMAP || (call == OS_MAP && --maps_until_fault == 0);
            };
            EXPECT_EQ(span_move(s, 32, 0, bytes_of(16)), nullptr);
            os_fault_hook = nullptr;
            EXPECT_EQ(address(s)[0], 5);
            EXPECT_TRUE(span_check());
            EXPECT_EQ(span_totals.live, bytes_of(cover_too ? 16 + 32 : 16));
            EXPECT_EQ(span_totals.moved, 0u);
            struct slice* next = span_alloc(32, 1, &zeroed);
            EXPECT_EQ(next == room, !cover_too);
        }));
}

// The place was another's, who wrote to all of it.
TEST_UNEMULATED(Span, TheRoomOfWhatMovedIsNotResident) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        bool zeroed;
        struct slice* before = span_alloc(64, 1, &zeroed);
        struct slice* s = span_alloc(8, 1, &zeroed);
        memset(address(before), 1, bytes_of(64));
        memset(address(s), 2, bytes_of(8));
        span_free(before);
        struct slice* to = span_move(s, 16, 8, bytes_of(8));
        ASSERT_NE(to, nullptr);
        EXPECT_EQ(to, before);
        EXPECT_EQ(to->span_slices, 24u);
        EXPECT_EQ(address(to)[bytes_of(8) - 1], 2);
        for (size_t at = bytes_of(8); at < bytes_of(24); at += os_page_bytes()) {
            unsigned char there;
            ASSERT_TRUE(os_resident_pages(address(to) + at, os_page_bytes(), &there));
            ASSERT_EQ(there & 1, 0) << at;
        }
        span_free(to);
        EXPECT_TRUE(span_check());
    }));
}

// Each mapping moves by a call of its own. Where one of the later calls is refused, the first ones are there
// already: what is left is copied.
TEST_UNEMULATED(Span, PiecesThatMayNotMoveAreCopied) {
    static unsigned moves_until_fault;
    static bool covers_too;
    for (bool cover_too : {false, true})
        EXPECT_FINE(in_child([&] {
            region_start(GIB);
            bool zeroed;
            struct slice* s = span_alloc(8, 1, &zeroed);
            auto fill = [&](size_t from, size_t to) {
                for (size_t i = from; i < to; i++) memset(address(s) + bytes_of(i), int(i + 1), SLICE_BYTES);
            };
            fill(0, 8);
            for (size_t slices : {16u, 24u}) {
                s = span_move(s, slices, 0, bytes_of(slices - 8));
                ASSERT_NE(s, nullptr);
                EXPECT_EQ(span_pieces(s), slices / 8 - 1);
                EXPECT_EQ(span_totals.moved, slices / 8 - 1);
                fill(slices - 8, slices);
            }
            moves_until_fault = 2;
            covers_too = cover_too;
            os_fault_hook = [](enum os_call call) {
                if (call == OS_REMAP && moves_until_fault != 0) moves_until_fault--;
                return moves_until_fault == 0 && (call == OS_REMAP || (covers_too && call == OS_MAP));
            };
            s = span_move(s, 32, 0, bytes_of(24));
            os_fault_hook = nullptr;
            ASSERT_NE(s, nullptr);
            EXPECT_EQ(moves_until_fault, 0u);
            for (size_t i = 0; i < bytes_of(24); i++)
                ASSERT_EQ(address(s)[i], static_cast<char>(i / SLICE_BYTES + 1));
            span_free(s);
            EXPECT_EQ(span_totals.moved, 0u);
            EXPECT_EQ(span_totals.live, 0u);
            EXPECT_TRUE(span_check());
            s = span_alloc(100, 1, &zeroed);
            EXPECT_TRUE(!zeroed || is_zero(address(s), bytes_of(100)));
        }));
}

// As of several mappings, since Linux 6.17: those before the one that is refused are there.
TEST_UNEMULATED(Span, WhatAMoveRefusedHalfWayTookComesBack) {
    static char *from, *there;
    static unsigned calls_until_fault;
    for (bool later : {false, true})
        EXPECT_FINE(in_child([&] {
            region_start(GIB);
            bool zeroed;
            struct slice* place = span_alloc(64, 1, &zeroed);
            struct slice* s = span_alloc(8, 1, &zeroed);
            struct slice* wall = span_alloc(1, 1, &zeroed);
            memset(address(s), 1, bytes_of(8));
            s = span_move(s, 16, 0, bytes_of(8)); // one piece and the rest
            ASSERT_NE(s, nullptr);
            for (size_t i = 0; i < bytes_of(16); i++) address(s)[i] = static_cast<char>(i / 4096 + 1);
            span_free(place);
            from = address(s) + bytes_of(later ? 8 : 0);
            there = address(place) + bytes_of(later ? 8 : 0);
            calls_until_fault = later ? 2 : 1;
            os_fault_hook = [](enum os_call call) {
                if (call != OS_REMAP || --calls_until_fault != 0) return false;
                int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
                EXPECT_EQ(mremap(from, bytes_of(5), bytes_of(5), flags, there), there);
                return true;
            };
            struct slice* to = span_move(s, 24, 0, bytes_of(16));
            os_fault_hook = nullptr;
            EXPECT_EQ(calls_until_fault, 0u);
            EXPECT_EQ(to, later ? place : nullptr);
            struct slice* now = later ? to : s;
            for (size_t i = 0; i < bytes_of(16); i++)
                ASSERT_EQ(address(now)[i], static_cast<char>(i / 4096 + 1)) << i;
            span_free(now);
            span_free(wall);
            EXPECT_EQ(span_totals.moved, 0u);
            EXPECT_TRUE(span_check());
        }));
}

TEST(Span, MetaMemoryIsZeroAndItsOwn) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        bool zeroed;
        struct slice* s = span_alloc(64, 1, &zeroed);
        memset(address(s), 0xff, bytes_of(64));
        span_free(s); // so that meta memory comes from dirty spans
        std::map<char*, size_t> all;
        Random random(5);
        for (unsigned i = 0; i < 300; i++) {
            size_t bytes = 1 + random.below(i % 50 == 0 ? 200000 : 3000);
            char* p = static_cast<char*>(span_meta_alloc(bytes));
            ASSERT_NE(p, nullptr);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
            ASSERT_TRUE(is_zero(p, bytes));
            memset(p, 1, bytes);
            all[p] = bytes;
        }
        for (auto i = all.begin(); std::next(i) != all.end(); ++i)
            EXPECT_LE(i->first + i->second, std::next(i)->first);
        EXPECT_TRUE(span_check());
    }));
}

// What is never written to of a record takes no memory, also where others had its pages.
TEST(Span, MetaMemoryIsResidentWhereItIsWritten) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        bool zeroed;
        struct slice* s = span_alloc(64, 1, &zeroed);
        memset(address(s), 0xff, bytes_of(64));
        span_free(s);
        constexpr size_t bytes = 8 * SLICE_BYTES;
        const size_t page = os_page_bytes();
        auto* p =
            static_cast<char*>(span_meta_alloc(bytes)); // from the start of a slice, as there was none before
        ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % page, 0u);
        p[page] = 1;
        std::vector<unsigned char> there(bytes / page);
        ASSERT_TRUE(os_resident_pages(p, bytes, there.data()));
        for (size_t i = 0; i < there.size(); i++) EXPECT_EQ(there[i] & 1, i == 1) << i;
    }));
}

TEST(Span, VisitsEverySpanOnce) {
    EXPECT_FINE(in_child([] {
        region_start(4 * MIB);
        bool zeroed;
        std::map<struct slice*, unsigned> expected;
        for (unsigned i = 1; i < 40; i++) {
            struct slice* s = span_alloc(i, 1, &zeroed);
            if (i % 3 == 0)
                span_free(s);
            else
                expected[s] = 0;
        }
        struct Seen {
            std::map<struct slice*, unsigned>* spans;
            uint64_t records;
            uint64_t slices;
        } seen = {&expected, 0, 0};
        span_visit(
            [](struct slice* s, void* context) {
                Seen* all = static_cast<Seen*>(context);
                all->slices += s->span_slices;
                if (s->kind != SLICE_FREE) (*all->spans)[s]++;
            },
            &seen);
        auto count = [](slice*, struct slice_pages*, void* all) { static_cast<Seen*>(all)->records++; };
        span_visit_records(count, &seen);
        uint64_t below = 0;
        for (uint32_t row = 0; row < region_count; row++) below += regions[row].frontier - regions[row].first;
        EXPECT_EQ(seen.slices, below);
        EXPECT_EQ(seen.records, below);
        EXPECT_EQ(expected.size(), 26u);
        for (const auto& [s, times] : expected) EXPECT_EQ(times, 1u);
    }));
}

TEST(Span, TrimReturnsTheFreeEndAndTheRestServes) {
    EXPECT_FINE(in_child([] {
        region_start(256 * MIB);
        bool zeroed;
        struct slice* keep = span_alloc(3, 1, &zeroed);
        struct slice* end = span_alloc(50, 1, &zeroed);
        const char* last = address(end);
        span_free(end);
        span_trim();
        EXPECT_FALSE(is_mapped(last));
        EXPECT_EQ(regions[0].frontier, regions[0].first + 3);
        EXPECT_EQ(slice_find(last), nullptr);
        EXPECT_EQ(span_totals.dirty, 0u);
        EXPECT_TRUE(span_check());
        struct slice* next = span_alloc(50, 1, &zeroed);
        ASSERT_NE(next, nullptr);
        EXPECT_EQ(next->region, 1);
        memset(address(next), 1, bytes_of(50));
        span_free(next);
        EXPECT_EQ(regions[1].base, 0u);
        span_free(keep);
        span_trim();
        EXPECT_TRUE(span_check());
        EXPECT_NE(span_alloc(2, 1, &zeroed), nullptr);
    }));
}

TEST(Span, RegionsGoBackWhenTheyAreFree) {
    EXPECT_FINE(in_child([] {
        region_start(4 * MIB);
        bool zeroed;
        for (int round = 0; round < 5; round++) {
            struct slice* a = span_alloc(100, 1, &zeroed);
            EXPECT_TRUE(zeroed);
            struct slice* b = span_alloc(100, 1, &zeroed);
            const char* p = address(a);
            memset(address(a), 1, bytes_of(100));
            memset(address(b), 1, bytes_of(100));
            EXPECT_TRUE(span_check());
            span_free(b);
            EXPECT_EQ(address(a)[bytes_of(100) - 1], 1);
            span_free(a);
            EXPECT_FALSE(is_mapped(p));
            EXPECT_TRUE(span_check());
        }
        EXPECT_EQ(region_count, 2u);
        EXPECT_EQ(span_totals.dirty, 0u);
    }));
}

struct slice* freed_meanwhile;

// The last block of a region goes while a part of it is being purged.
TEST(Span, ARegionThatIsFreeAfterAPurgeGoes) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        while (regions[0].slices - regions[0].frontier >= 20) span_alloc(20, 1, &zeroed);
        struct slice* s = span_alloc(20, 1, &zeroed);
        const uint16_t row = s->region;
        ASSERT_NE(row, 0);
        freed_meanwhile = span_alloc(20, 1, &zeroed);
        ASSERT_EQ(freed_meanwhile->region, row);
        span_free(s);
        os_fault_hook = [](enum os_call call) {
            if (call == OS_PURGE && freed_meanwhile != nullptr)
                span_free(std::exchange(freed_meanwhile, nullptr));
            return false;
        };
        EXPECT_TRUE(span_purge(UINT64_MAX));
        EXPECT_EQ(freed_meanwhile, nullptr);
        EXPECT_EQ(regions[row].base, 0u);
        EXPECT_TRUE(span_check());
    }));
}

// What the heap's end had free is gone: no less of it was free since the last window than there is now.
TEST(Span, WhatWasTrimmedIsNotTakenForUnneeded) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        bool zeroed;
        struct slice* kept = span_alloc(8, 1, &zeroed);
        span_free(span_alloc(40, 1, &zeroed));
        (void)span_window();
        EXPECT_EQ(span_totals.dirty_low, bytes_of(40));
        span_trim();
        EXPECT_EQ(span_totals.dirty, 0u);
        EXPECT_EQ(span_totals.dirty_low, 0u);
        span_free(kept);
    }));
}

} // namespace
