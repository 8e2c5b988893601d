// release_growth_test.cc: what goes back where the heap grows: old holes, and where much was freed others
// too, when the heaps are looked at for that, and when no more. Called by ctest; each test starts the heap in
// a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include <algorithm>
#include <atomic>

namespace {

// A heap that grows gives as much back of what it did not need, and no more.
// Absent: sanitizers let no helper be
TEST_UNSANITIZED(Release, GrowthReturnsNoMoreThanItTook) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":release_floor=0:hugepages=never"); // else the helper is there from 8 MiB on
        unit_attach();
        Blocks blocks;
        while (blocks.all.size() < 40000) blocks.alloc(1024);
        for (size_t i = blocks.all.size(); i-- != 0;)
            if (i % 80 != 0) blocks.free(i);
        unit_collect();
        for (const Block& b : blocks.all) {
            uint64_t* state = &slice_pages(unit_slice(b.p))->state;
            __atomic_fetch_or(state, static_cast<uint64_t>(hole_dirty(*state)) << PAGES_OLD_SHIFT,
                              __ATOMIC_RELAXED);
        }
        release_poke();
        filled(12 << 20);
        for (int i = 0; i < 5000 && purged() == 0; i++) usleep(1000);
        os_lock_take(&release_lock);
        EXPECT_GE(purged(), uint64_t{8} << 20);
        EXPECT_LE(purged(), (uint64_t{12} << 20) + SLICE_BYTES); // it counts by slice
        os_lock_give(&release_lock);
    }));
}

std::atomic<unsigned> growth_looks;
std::atomic<bool> growth_finds;
std::atomic<uint64_t> growth_most;

bool growth_counted(uint64_t bytes) {
    growth_most = std::max(growth_most.load(), bytes);
    growth_looks++;
    return growth_finds;
}

// The heap grows by 8 MiB or somewhat more, which the helper has seen when this returns. `acts`: it looks, or
// returns something.
void helper_sees_growth(bool acts) {
    const unsigned looks = growth_looks;
    const uint64_t gone = purged();
    filled(9 << 20);
    for (int i = 0; i < (acts ? 20000 : 200) && growth_looks == looks && purged() == gone; i++) usleep(1000);
    for (uint64_t before = UINT64_MAX; before != growth_looks + purged();) { // and what comes right after it
        before = growth_looks + purged();
        usleep(20000);
        os_lock_take(&release_lock); // not in the middle of a pass
        os_lock_give(&release_lock);
    }
}

// 1 KiB each; at least one of each slab stays, and the rest becomes holes.
void holes_of_blocks(Blocks& blocks, size_t count) {
    while (blocks.all.size() < count) blocks.alloc(1024);
    for (size_t i = blocks.all.size(); i-- != 0;)
        if (i % 60 != 0) blocks.free(i);
    unit_collect();
    release_growth_hook = growth_counted;
    release_poke();
}

// Where a heap grows of which much was freed, and not looked at since, it is looked at; not again before it
// has grown much where little is found, and at each step as long as much is. Absent: sanitizers let no helper
// be
TEST_UNSANITIZED(Release, GrowthLooksWhereMuchWasFreed) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":release_floor=0:hugepages=never");
        unit_attach();
        Blocks blocks;
        holes_of_blocks(blocks, 24000); // 21 MiB
        helper_sees_growth(false);
        EXPECT_EQ(growth_looks, 0u); // nothing is owed
        store_relaxed(&release_owed, uint64_t{64} << 20);
        helper_sees_growth(true);
        EXPECT_EQ(growth_looks, 1u);
        store_relaxed(&release_owed, uint64_t{256} << 20);
        helper_sees_growth(false);
        EXPECT_EQ(growth_looks, 1u); // it grew by 9 MiB, and waits for 16 or more
        EXPECT_EQ(purged(), 0u);     // not old, and nothing says that there is much
        growth_finds = true;
        helper_sees_growth(false); // as long as what is in use was little
        helper_sees_growth(true);
        EXPECT_EQ(growth_looks, 2u);
        EXPECT_GE(purged(), uint64_t{8} << 20);
        for (int i = 0; i < 3; i++) helper_sees_growth(true);
        const unsigned looks = growth_looks;
        EXPECT_GE(looks, 3u); // what was known went; then it looked, though nothing more was owed
        EXPECT_GE(purged(), uint64_t{20} << 20);
        growth_finds = false;
        helper_sees_growth(true);
        helper_sees_growth(false);
        EXPECT_EQ(growth_looks, looks + 1);
        store_relaxed(&release_owed, uint64_t{1024} << 20);
        filled(40 << 20);
        for (int i = 0; i < 20000 && growth_looks == looks + 1; i++) usleep(1000);
        EXPECT_EQ(growth_looks, looks + 2);
        EXPECT_LE(growth_most, uint64_t{16} << 20); // so that a look does not last
    }));
}

// A block that grows where it is makes the heap grow as a new one does.
TEST_UNSANITIZED(Release, GrowthIsAlsoThatOfABlockInItsPlace) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":release_floor=0:hugepages=never");
        unit_attach();
        Blocks blocks;
        holes_of_blocks(blocks, 24000);
        helper_sees_growth(false); // nothing is owed; and it sleeps
        store_relaxed(&release_owed, uint64_t{64} << 20);
        bool zeroed;
        struct slice* s;
        do s = span_alloc(16, 1, &zeroed);
        while (slice_index(s) + s->span_slices != regions[0].frontier);
        s->kind = SLICE_LARGE;
        hole_show(s, 0);
        const unsigned looks = growth_looks;
        EXPECT_TRUE(span_resize(s, 16 + 160));
        for (int i = 0; i < 20000 && growth_looks == looks; i++) usleep(1000);
        EXPECT_EQ(growth_looks, looks + 1);
    }));
}

// What came back at once was needed: no more of it goes.
TEST_UNSANITIZED(Release, GrowthTakesNoMoreOfWhatComesBack) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":release_floor=0:hugepages=never");
        unit_attach();
        Blocks blocks;
        holes_of_blocks(blocks, 64000); // 58 MiB
        growth_finds = true;
        store_relaxed(&release_owed, uint64_t{64} << 20);
        helper_sees_growth(true);
        const uint64_t gone = purged();
        EXPECT_GE(gone, uint64_t{8} << 20);
        EXPECT_LE(gone, uint64_t{10} << 20);
        release_refaulted(gone / 4); // what is needed again of the rest is no fault
        helper_sees_growth(true);
        const uint64_t more = purged();
        EXPECT_GE(more - gone, uint64_t{8} << 20);
        release_refaulted(more / 4 * 3);
        helper_sees_growth(false);
        EXPECT_EQ(purged(), more);
        EXPECT_EQ(growth_looks, 1u);
    }));
}

} // namespace
