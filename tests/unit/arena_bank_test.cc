// arena_bank_test.cc: arenas of several banks: how they fill and empty, and their records in the figures.
// Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "arenas.h"

namespace {

// The lowest chunk that has room serves, whatever bank it is in; what is empty goes, however many at once.
TEST(Arena, BanksFillAndEmpty) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":thread_kept_max=0");
        stay_on_one_processor();
        unit_attach();
        const unsigned m = class_of(chunk_block_max()) - SMALL_CLASSES;
        const size_t each = chunk_holds(class_bytes(m));
        const size_t chunks = 2 * UNIT_BANK_CHUNKS + 20;
        uint32_t home = 0;
        std::vector<void*> all;
        for (size_t i = 0; i < chunks * each; i++) all.push_back(unit_arena_alloc(&home, m, 1));
        EXPECT_EQ(chunk_count(), chunks);
        EXPECT_TRUE(unit_arena_check());
        Random random(3);
        const size_t inner = tag_is_on() ? each - 1 : each; // behind the last one is what is no block's
        for (unsigned round = 0; round < (tag_is_on() ? 2 : 20); round++) {
            std::vector<size_t> gone; // one of each chunk at most, so that none goes
            for (size_t chunk = 0; chunk < chunks; chunk++)
                if (random.below(2) == 0) gone.push_back(chunk * each + random.below(inner));
            for (size_t i : gone) unit_arena_free(all[i]);
            unit_arena_publish();
            EXPECT_TRUE(unit_arena_check());
            for (size_t i : gone) ASSERT_EQ(bare(unit_arena_alloc(&home, m, 1)), bare(all[i])) << round;
        }
        EXPECT_EQ(chunk_count(), chunks);
        // Smaller ones in the last bank, while the others are full, and in one before, once that has room.
        if (!tag_is_on()) {
            auto* last = static_cast<char*>(unit_arena_alloc(&home, 0, 1));
            unit_arena_free(all[each * UNIT_BANK_CHUNKS]);
            unit_arena_publish();
            all[each * UNIT_BANK_CHUNKS] = nullptr;
            auto* before = static_cast<char*>(unit_arena_alloc(&home, m - 1, 1));
            EXPECT_EQ(unit_slice(before), unit_slice(all[each * UNIT_BANK_CHUNKS + 1]));
            EXPECT_NE(unit_slice(last), unit_slice(before));
            EXPECT_TRUE(unit_arena_check());
            unit_arena_free(last);
            unit_arena_free(before);
            all[each * UNIT_BANK_CHUNKS] = unit_arena_alloc(&home, m, 1);
        }
        // Where all of it comes and goes it waits, so that all chunks become empty at once.
        for (unsigned round = 0; round < 400 && !tag_is_on(); round++) {
            for (void* p : all) unit_arena_free(p);
            if (unit_arena_idle_bytes() >= all.size() * class_bytes(m)) break;
            for (void*& p : all) p = unit_arena_alloc(&home, m, 1);
        }
        if (tag_is_on())
            for (void* p : all) unit_arena_free(p);
        else
            EXPECT_EQ(chunk_count(), chunks);
        const uint64_t purged = load_relaxed(&span_totals.purged);
        unit_arena_publish();
        EXPECT_LE(chunk_count(), 1u);
        // So do the records of those that went, in whole pages.
        const size_t least = tag_is_on() || os_page_bytes() > 4096 ? 0 : 2 * 4096;
        EXPECT_GE(load_relaxed(&span_totals.purged) - purged, (chunks - 1) * least);
        expect_no_chunk_left();
    }));
}

// What the figures have beside the regions'.
struct Beside {
    int64_t records, committed, reserved;
};
Beside beside_regions() {
    struct unit_figures f;
    unit_census(&f);
    auto bits = static_cast<int64_t>(region_bits_bytes());
    Beside b = {static_cast<int64_t>(f.record_bytes) - bits, static_cast<int64_t>(f.committed_bytes) - bits,
                static_cast<int64_t>(f.reserved_bytes)};
    for (uint32_t row = 0; row < region_count; row++) {
        const struct region* r = &regions[row];
        if (r->base == 0) continue;
        const uint64_t slices = r->frontier - r->first;
        b.records -= static_cast<int64_t>(align_up(slices << SLICE_RECORD_SHIFT, os_page_bytes()) +
                                          align_up(slices * sizeof(struct slice_pages), os_page_bytes()));
        b.committed -= static_cast<int64_t>((uint64_t{r->committed - r->first} << SLICE_SHIFT) +
                                            r->record_bytes - region_own_bytes(r->first) + r->pages_bytes);
        b.reserved -= static_cast<int64_t>(uint64_t{r->slices} << SLICE_SHIFT);
    }
    return b;
}

TEST(Arena, RecordsOfFurtherBanksAreInTheFigures) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":thread_kept_max=0");
        stay_on_one_processor();
        unit_attach();
        const unsigned m = class_of(chunk_block_max()) - SMALL_CLASSES;
        constexpr int64_t further = 10;
        constexpr int64_t record_least = 4096; // a chunk's takes more
        uint32_t home = 0;
        std::vector<void*> all;
        const size_t blocks = chunk_holds(class_bytes(m)) * (UNIT_BANK_CHUNKS + further);
        all.push_back(unit_arena_alloc(&home, m, 1));
        const Beside none = beside_regions();
        EXPECT_EQ(none.records, 0);
        EXPECT_EQ(none.committed, 0);
        EXPECT_EQ(none.reserved, 0);
        while (all.size() < blocks) all.push_back(unit_arena_alloc(&home, m, 1));
        const Beside some = beside_regions();
        EXPECT_GE(some.records, further * record_least);
        EXPECT_GE(some.committed, int64_t{UNIT_BANK_CHUNKS} * record_least);
        EXPECT_LE(some.records, some.committed / 2); // of what has no chunk nothing is there
        EXPECT_EQ(some.reserved, some.committed);
        for (void* p : all) unit_arena_free(p);
        unit_arena_trim();
        EXPECT_EQ(chunk_count(), 0u);
        const Beside left = beside_regions();
        EXPECT_EQ(left.committed, some.committed);
        EXPECT_GT(left.records, 0); // the bank's own
        EXPECT_LT(left.records, some.records - (further - 1) * record_least);
        expect_no_chunk_left();
    }));
}

} // namespace
