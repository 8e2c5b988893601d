// records_test.cc: what is recorded of slices inside long free spans goes back, too (span_drop_records), and
// the spans serve as before. Called by ctest; each test starts the page layer, or the heap, in a child of its
// own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include "spans.h"

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
            span_drop_records(); // dirty: each slice's word says something
            EXPECT_GE(resident_records(first, last), pages_of_records(count)) << round;
            purge();
            EXPECT_TRUE(span_check()) << round;
            span_drop_records();
            // The ends of two spans, and the pages around the one between them.
            EXPECT_LE(resident_records(first, last), 12u) << round;
            EXPECT_EQ(first->bare, 12345u);
            EXPECT_EQ(kept->counts, UINT64_MAX);
            EXPECT_EQ(slice_pages(kept)->used[0], 1u);
            EXPECT_TRUE(span_check()) << round;
            uint64_t calls = load_relaxed(&os_call_counts[OS_PURGE]);
            span_drop_records(); // nothing is left
            EXPECT_EQ(load_relaxed(&os_call_counts[OS_PURGE]), calls);
            span_free_paged(kept);
            purge();
            EXPECT_EQ(first->span_slices, count);
            span_drop_records();
            EXPECT_LE(resident_records(first, last), 8u) << round;
            EXPECT_TRUE(span_check()) << round;
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

TEST(Records, OfShortFreeSpansStay) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        std::vector<struct slice*> all = slices_of_slabs(65), ends = {all.front(), all.back()};
        free_all({all.begin() + 1, all.end() - 1});
        purge();
        size_t before = resident_records(ends[0], ends[1]);
        span_drop_records();
        EXPECT_EQ(resident_records(ends[0], ends[1]), before);
    }));
}

// A slice that was marked before it became free is on the list of marked ones still, behind which others are.
TEST(Records, OfMarkedSlicesStay) {
    EXPECT_FINE(in_child([] {
        region_start(4 * GIB);
        core_options.dirty_max = 4 * GIB;
        std::vector<struct slice*> all = slices_of_slabs(4000);
        struct slice *first = all.front(), *last = all[3998], *used = all.back();
        hole_pass_start();
        while (hole_pass_next() != nullptr) continue;
        hole_mark(used);
        for (size_t i = 100; i < 3900; i += 400) hole_mark(all[i]);
        all.pop_back();
        free_all(all);
        span_purge(UINT64_MAX);
        EXPECT_EQ(first->span_slices, 3999u);
        size_t before = resident_records(first, last);
        span_drop_records();
        EXPECT_LT(resident_records(first, last), before / 4);
        for (size_t i = 100; i < 3900; i += 400) EXPECT_EQ(slice_pages(all[i])->marked, 1u) << i;
        hole_pass_start();
        EXPECT_EQ(hole_pass_next(), used);
        EXPECT_EQ(hole_pass_next(), nullptr);
        EXPECT_TRUE(span_check());
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
        uint64_t calls = load_relaxed(&os_call_counts[OS_OTHER]);
        span_drop_records();
        EXPECT_EQ(load_relaxed(&os_call_counts[OS_OTHER]), calls); // the kernel was asked about none
        for (const struct slice* s = first; s <= last; s++) EXPECT_EQ(s->region, holds->region);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Records, StayWhereTheKernelDoesNotSayWhichAreThere) {
    EXPECT_FINE(in_child([] {
        region_start(GIB);
        core_options.dirty_max = GIB;
        std::vector<struct slice*> all = slices_of_slabs(2000);
        free_all(all);
        purge();
        os_fault_hook = [](enum os_call call) { return call == OS_OTHER; };
        span_drop_records();
        os_fault_hook = nullptr;
        EXPECT_GE(resident_records(all.front(), all.back()), pages_of_records(2000) - 1);
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
            slice_bits(s)->looks = 1;
        struct unit_figures full, after;
        unit_census(&full);
        size_t before = resident_records(first, last);
        size_t bits_before = resident(slice_bits(first), slice_bits(first + 1200));
        blocks.free_all();
        unit_collect();
        EXPECT_TRUE(release_all());
        EXPECT_LT(resident_records(first, last), before / 2);
        EXPECT_LT(resident(slice_bits(first), slice_bits(first + 1200)), bits_before / 2);
        unit_census(&after);
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

} // namespace
