// records_test.cc: what is recorded of slices inside long free spans goes back, too (span_drop_records), and
// the spans serve as before. Called by ctest; each test starts the page layer, or the heap, in a child of its
// own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include "spans.h"
#include <algorithm>
#include <atomic>
#include <thread>

namespace {

// Resident pages of an array, of what lies in [from, to).
template <class Record>
size_t resident(const Record* from, const Record* to) {
    const size_t page = os_page_bytes();
    uintptr_t start = align_down(reinterpret_cast<uintptr_t>(from), page);
    uintptr_t end = align_up(reinterpret_cast<uintptr_t>(to), page);
    std::vector<unsigned char> there((end - start) / page);
    EXPECT_EQ(mincore(reinterpret_cast<void*>(start), end - start, there.data()), 0);
    size_t count = 0;
    for (unsigned char one : there) count += one & 1u;
    return count;
}
// Those of the records of spans [first, last], of both arrays.
size_t resident_records(const struct slice* first, const struct slice* last) {
    return resident(first, last + 1) + resident(slice_pages(first), slice_pages(last) + 1);
}
size_t pages_of_records(size_t slices) {
    return slices * (sizeof(struct slice) + sizeof(struct slice_pages)) / os_page_bytes();
}

// A slice of its own each, with a record of its own that says something of its pages.
std::vector<struct slice*> slices_of_slabs(size_t count) {
    std::vector<struct slice*> all;
    for (size_t i = 0; i < count; i++) {
        bool fresh;
        struct slice* s = span_alloc_slab(1, true, &fresh);
        if (s == nullptr) break;
        s->kind = SLICE_SLAB;
        s->counts = s->remote = UINT64_MAX;
        slice_pages(s)->head[0] = slice_pages(s)->used[0] = 1;
        (void)hole_take(s, hole_all());
        hole_add(s, hole_all()); // dirty
        all.push_back(s);
    }
    EXPECT_EQ(all.size(), count);
    return all;
}
void free_all(const std::vector<struct slice*>& all) {
    for (struct slice* s : all) span_free_paged(s);
}
void purge() {
    hole_pass_start(); // what is free is not marked any more
    while (hole_pass_next() != nullptr) continue;
    span_purge(UINT64_MAX);
}

// All of it, however many passes that takes.
void drop_all() {
    while (span_drop_records()) continue;
}

TEST(Records, OfLongFreeSpansGoAndComeAgain) {
    EXPECT_FINE(in_child([] {
        region_start(4 * GIB);
        core_options.dirty_max = 4 * GIB;
        constexpr size_t count = 20000; // more than go under one hold of the lock
        for (unsigned round = 0; round < 3; round++) {
            std::vector<struct slice*> all = slices_of_slabs(count);
            struct slice *first = all.front(), *last = all.back();
            EXPECT_EQ(last - first, static_cast<ptrdiff_t>(count - 1)) << round;
            EXPECT_GE(resident_records(first, last), pages_of_records(count)) << round;
            struct slice* kept = all[12345];
            all.erase(all.begin() + 12345);
            free_all(all);
            drop_all(); // dirty: each slice's word says something
            EXPECT_GE(resident_records(first, last), pages_of_records(count)) << round;
            EXPECT_EQ(first->bare, 0u);
            purge();
            EXPECT_FALSE(span_drop_records());
            // The ends of two spans, and the pages around the one between them.
            EXPECT_LE(resident_records(first, last), 16u) << round;
            EXPECT_EQ(first->bare, 12345u);
            EXPECT_EQ(kept->counts, UINT64_MAX);
            EXPECT_EQ(slice_pages(kept)->used[0], 1u);
            uint64_t calls = load_relaxed(&os_call_counts[OS_PURGE]);
            EXPECT_FALSE(span_drop_records()); // nothing is left
            EXPECT_EQ(load_relaxed(&os_call_counts[OS_PURGE]), calls);
            span_free_paged(kept);
            purge();
            EXPECT_EQ(first->span_slices, count);
            EXPECT_EQ(first->bare, count - 12346); // of what lay behind it
            drop_all();
            EXPECT_EQ(first->bare, count);
            EXPECT_LE(resident_records(first, last), 20u) << round; // some pages of zeroes: one a piece
            EXPECT_TRUE(span_check()) << round;                     // looks at them all
        }
        bool zeroed;
        struct slice* s = span_alloc(15000, 1, &zeroed);
        EXPECT_TRUE(zeroed);
        EXPECT_EQ(s->region, 0u);
        publish(s);
        EXPECT_TRUE(span_resize(s, 100));
        EXPECT_TRUE(span_check());
        span_free(s);
        EXPECT_TRUE(span_check());
    }));
}

// What goes on at its start changes nothing of what is done.
TEST(Records, ASpanThatIsCutOrGrowsAtItsStartIsDoneStill) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        std::vector<struct slice*> all = slices_of_slabs(3000);
        // The last one's record ends a page.
        while ((slice_index(all.back()) + 1) * sizeof(struct slice) % os_page_bytes() != 0)
            all.push_back(slices_of_slabs(1)[0]);
        const size_t count = all.size();
        free_all(all);
        purge();
        drop_all();
        EXPECT_TRUE(span_check());
        uint64_t calls = load_relaxed(&os_call_counts[OS_PURGE]);
        bool zeroed;
        struct slice* cut = span_alloc(100, 1, &zeroed);
        ASSERT_EQ(cut, all[0]);
        EXPECT_EQ(all[100]->bare, count - 100);
        EXPECT_TRUE(span_check());
        drop_all();
        EXPECT_EQ(load_relaxed(&os_call_counts[OS_PURGE]), calls);
        struct slice* aligned = span_alloc(16, 512, &zeroed); // from its middle
        EXPECT_EQ(all[100]->span_slices, aligned - all[100]);
        EXPECT_EQ(all[100]->bare, 0u); // its end is another one
        EXPECT_EQ(aligned[16].bare, aligned[16].span_slices);
        span_free(cut);
        purge();
        EXPECT_EQ(all[0]->span_slices, aligned - all[0]);
        span_free(aligned);
        purge();
        EXPECT_EQ(all[0]->span_slices, count);
        EXPECT_EQ(all[0]->bare, count - static_cast<size_t>(aligned + 16 - all[0]));
        drop_all();
        EXPECT_EQ(all[0]->bare, count);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Records, OfShortFreeSpansStay) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        std::vector<struct slice*> all = slices_of_slabs(65), ends = {all.front(), all.back()};
        free_all({all.begin() + 1, all.end() - 1});
        purge();
        size_t before = resident_records(ends[0], ends[1]);
        drop_all();
        EXPECT_EQ(resident_records(ends[0], ends[1]), before);
    }));
}

// A slice that was marked before it became free is on the list of marked ones still, behind which others are;
// the worst are those whose record begins on one page and ends on the next.
TEST(Records, OfMarkedSlicesStay) {
    EXPECT_FINE(in_child([] {
        region_start(4 * GIB);
        core_options.dirty_max = 4 * GIB;
        std::vector<struct slice*> all = slices_of_slabs(4000);
        struct slice *first = all.front(), *last = all[3998], *used = all.back();
        hole_pass_start();
        while (hole_pass_next() != nullptr) continue;
        hole_mark(used);
        std::vector<struct slice*> marked;
        for (size_t i = 100; i < 3900; i++) {
            uintptr_t at = reinterpret_cast<uintptr_t>(slice_pages(all[i]));
            bool parted = at / os_page_bytes() != (at + sizeof(struct slice_pages) - 1) / os_page_bytes();
            if (i % 1000 == 500 || (parted && i % 400 < 43)) marked.push_back(all[i]);
        }
        EXPECT_GE(marked.size(), os_page_bytes() > 4096 ? 4u : 6u);
        for (struct slice* s : marked) hole_mark(s);
        all.pop_back();
        free_all(all);
        span_purge(UINT64_MAX);
        EXPECT_EQ(first->span_slices, 3999u);
        size_t before = resident_records(first, last);
        drop_all();
        EXPECT_LT(resident_records(first, last), before / 3);
        for (const struct slice* s : marked) EXPECT_EQ(slice_pages(s)->marked, 1u);
        hole_pass_start();
        EXPECT_EQ(hole_pass_next(), used);
        EXPECT_EQ(hole_pass_next(), nullptr);
        drop_all();
        EXPECT_TRUE(span_check());
    }));
}

// However few are done at its end, its last record stays: who comes behind it finds its start by that.
TEST(Records, TheLastOneStays) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        const size_t shared = os_page_bytes() / sizeof(struct slice_bits); // of those that are done, at most
        for (size_t done : {shared - 1, shared, shared + 1, 2 * shared}) {
            std::vector<struct slice*> all = slices_of_slabs(1 + std::max<size_t>(done, 64));
            while ((slice_index(all.back()) + 1) * sizeof(struct slice) % os_page_bytes() != 0)
                all.push_back(slices_of_slabs(1)[0]);
            struct slice *last = all.back(), *wall = slices_of_slabs(1)[0];
            struct slice* kept = *(all.end() - 1 - static_cast<ptrdiff_t>(done));
            all.erase(std::find(all.begin(), all.end(), kept));
            free_all(all);
            purge();
            kept[1].bare = done; // as where it is cut off a longer one
            span_free_paged(kept);
            purge();
            ASSERT_EQ(all[0]->span_slices, static_cast<size_t>(wall - all[0])) << done;
            EXPECT_EQ(all[0]->bare, done);
            drop_all();
            EXPECT_EQ(all[0]->bare, all[0]->span_slices) << done;
            EXPECT_EQ(last->kind, SLICE_FREE_END) << done;
            EXPECT_TRUE(span_check()) << done;
            span_free_paged(wall);
            purge();
        }
    }));
}

// Where they say which region they are of, nothing goes before the region does.
TEST(Records, OfOtherRegionsStay) {
    EXPECT_FINE(in_child([] {
        region_start(uint64_t{1} << REGION_GRANULE_SHIFT);
        bool zeroed;
        struct slice* holds = span_alloc(200, 1, &zeroed); // keeps the region
        ASSERT_NE(holds->region, 0u);
        std::vector<struct slice*> all;
        for (unsigned i = 0; i < 400; i++) all.push_back(span_alloc(1, 1, &zeroed));
        struct slice *first = all[100], *last = all[300];
        ASSERT_EQ(last - first, 200);
        ASSERT_EQ(first->region, holds->region);
        for (size_t i = 100; i <= 300; i++) span_free(all[i]);
        span_purge(UINT64_MAX);
        uint64_t calls = load_relaxed(&os_call_counts[OS_PURGE]);
        EXPECT_FALSE(span_drop_records());
        EXPECT_EQ(load_relaxed(&os_call_counts[OS_PURGE]), calls);
        for (const struct slice* s = first; s <= last; s++) EXPECT_EQ(s->region, holds->region);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Records, OfMemoryThatIsNotChargedGo) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        region_commit_strict = true;
        core_options.dirty_max = GIB;
        std::vector<struct slice*> all = slices_of_slabs(2000);
        free_all(all);
        purge();
        EXPECT_EQ(all[0]->state, SPAN_UNCOMMITTED);
        drop_all();
        EXPECT_LE(resident_records(all.front(), all.back()), 8u);
        EXPECT_TRUE(span_check());
    }));
}

// And are looked at again the next time.
TEST(Records, ThatTheKernelKeepsAreNotCountedAsGone) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        std::vector<struct slice*> all = slices_of_slabs(2000);
        free_all(all);
        purge();
        os_fault_hook = [](enum os_call call) { return call == OS_PURGE; };
        EXPECT_FALSE(span_drop_records());
        os_fault_hook = nullptr;
        EXPECT_EQ(all[0]->bare, 0u);
        EXPECT_GE(resident_records(all.front(), all.back()), pages_of_records(2000) - 1);
        drop_all();
        EXPECT_EQ(all[0]->bare, 2000u);
    }));
}

// Who waits for the lock has waited for one piece: the rest is for another pass.
std::atomic<bool> waiter_comes, waiter_has;
TEST_UNSANITIZED(Records, AThreadThatWaitsEndsThePass) {
    EXPECT_FINE(in_child([] {
        region_start(16 * GIB);
        core_options.dirty_max = 16 * GIB;
        std::vector<struct slice*> all = slices_of_slabs(60000);
        free_all(all);
        purge();
        // More than one pass does, also where nobody waits.
        EXPECT_TRUE(span_drop_records());
        uint64_t done = all[0]->bare;
        EXPECT_GT(done, 10000u);
        EXPECT_LT(done, 60000u);
        os_fault_hook = [](enum os_call call) {
            if (call != OS_PURGE || waiter_comes) return false;
            waiter_comes = true; // while the piece is being purged, under the lock
            usleep(50000);
            return false;
        };
        std::thread waiter([] {
            while (!waiter_comes) sched_yield();
            span_lock();
            waiter_has = true;
            os_lock_give(&page_lock);
        });
        EXPECT_TRUE(span_drop_records());
        waiter.join();
        os_fault_hook = nullptr;
        EXPECT_TRUE(waiter_has);
        EXPECT_GT(all[0]->bare, done);
        EXPECT_LT(all[0]->bare - done, 5000u);
        drop_all();
        EXPECT_EQ(all[0]->bare, 60000u);
    }));
}

// Of slabs whose blocks others freed, the bits beside them go as well; and statistics know.
TEST(Records, GoWithWhatAProcessGivesBack) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "thread_free_max=1g:dirty_max=1g:release_delay=3600000", 1);
        unit_attach();
        ASSERT_TRUE(region_bits_reach(regions[0].first + 1300));
        Blocks blocks;
        for (size_t i = 0; i < 80000; i++) ASSERT_TRUE(blocks.alloc(1000));
        const struct slice* first = region_slices(&regions[0]) + regions[0].first;
        const struct slice* last = region_slices(&regions[0]) + regions[0].frontier - 1;
        ASSERT_GE(last - first, 1200);
        for (const struct slice* s = first; s <= last && slice_index(s) < region_bits_end; s++)
            slice_bits(s)->looks = 1, slice_bits_far(s)->words[0] = 0;
        struct unit_figures full, after;
        unit_census(&full);
        size_t before = resident_records(first, last);
        size_t bits_before = resident(slice_bits(first), slice_bits(first + 1200));
        blocks.free_all();
        unit_collect();
        EXPECT_TRUE(release_all());
        EXPECT_LT(resident_records(first, last), before / 2);
        EXPECT_LT(resident(slice_bits(first), slice_bits(first + 1200)), bits_before / 2);
        EXPECT_LT(resident(slice_bits_far(first), slice_bits_far(first + 1200)), bits_before / 2);
        unit_census(&after);
        EXPECT_LT(after.record_bytes, full.record_bytes / 2); // most of it is that of bits
        EXPECT_LT(after.record_bytes, full.record_bytes - before * os_page_bytes() / 2);
        for (size_t i = 0; i < 80000; i++) ASSERT_TRUE(blocks.alloc(1000));
        EXPECT_TRUE(contents_right(blocks));
        EXPECT_GE(unit_check_slabs(), 0);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// Of the records themselves visitors read which are of slabs, so that they have a page of zeroes again.
TEST_UNSANITIZED(Records, GoWhileAProcessIsIdle) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "thread_free_max=1g:dirty_max=1g:release_delay=5:release_window=5", 1);
        unit_attach();
        Blocks blocks;
        for (size_t i = 0; i < 80000; i++) ASSERT_TRUE(blocks.alloc(1000));
        const struct slice* first = region_slices(&regions[0]) + regions[0].first;
        const struct slice* last = region_slices(&regions[0]) + regions[0].frontier - 1;
        size_t before = resident(slice_pages(first), slice_pages(last));
        EXPECT_GE(before, 1200 * sizeof(struct slice_pages) / os_page_bytes());
        blocks.free_all();
        unit_collect();
        release_poke();
        for (int i = 0; i < 2000 && os_helper_runs(); i++) usleep(5000);
        EXPECT_FALSE(os_helper_runs());
        EXPECT_LT(resident(slice_pages(first), slice_pages(last)), before / 2);
        expect_nothing_left();
    }));
}

// And goes on for as long as there are some.
TEST_NATIVE(Records, GoInSeveralPasses) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "dirty_max=1t:release_delay=5:release_window=5:pressure=no", 1);
        unit_attach();
        constexpr unsigned count = 10000;
        std::vector<void*> all;
        for (unsigned i = 0; i < count; i++) all.push_back(unit_alloc_aligned(1 << 20, os_page_bytes()));
        for (void* p : all) unit_free(p);
        unit_collect();
        release_poke();
        for (int i = 0; i < 2000 && os_helper_runs(); i++) usleep(5000);
        EXPECT_FALSE(os_helper_runs());
        size_t done = 0;
        const struct slice* end = region_slices(&regions[0]) + regions[0].frontier;
        for (const struct slice* s = region_slices(&regions[0]) + regions[0].first; s < end;
             s += s->span_slices) {
            if (s->kind != SLICE_FREE || s->span_slices < 64) continue;
            EXPECT_EQ(s->bare, s->span_slices);
            done += s->bare;
        }
        EXPECT_GE(done, count * 15u);
    }));
}

} // namespace
