// release_test.cc: when free memory goes back: windows, what they let go and keep, their length, who ends
// them; spans, the pages behind large blocks, regions. Called by ctest; each test starts the heap in a child
// of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

namespace {

constexpr uint64_t ms = 1000000;
constexpr uint64_t span = 2 << 20; // of a block that no thread keeps for its next one

// Windows of a millisecond that end when the test says so: in a sandbox there is no helper, and of the
// calls that might end a window every 64th alone looks at the clock. The test counts them.
class Windows {
  public:
    explicit Windows(const char* more = "", uint64_t most_ms = 1) {
        std::string all =
            "release_delay=1:release_window=1:release_floor=0:thread_free_max=1g:release_delay_max=";
        all += std::to_string(most_ms) + more;
        setenv("WEIR_OPTIONS", all.c_str(), 1);
        unit_attach();
        os_sandbox_announced();
    }
    void poke() {
        calls += is_alone() ? 1 : 0;
        release_poke();
    }
    // A large block.
    void free(void* p) {
        calls += is_alone() ? 1 : 0;
        unit_free(p);
    }
    bool is_alone() const { return load_relaxed(&release_state) == RELEASE_ALONE; }
    uint64_t length() const { return load_relaxed(&release_totals.window_ns); }
    void sleep() const { usleep(static_cast<useconds_t>(length() / 1000 + 300)); }
    // What allocates or frees small blocks: each refill is such a call.
    template <class Work>
    void while_counting(Work work) {
        struct unit_figures before, after;
        unit_census(&before);
        work();
        unit_census(&after);
        calls += is_alone() ? static_cast<unsigned>(after.slow_calls - before.slow_calls) : 0;
    }
    // Ends one window, if anything is free.
    void end() {
        if (!is_alone()) poke(); // begins one
        sleep();
        do poke();
        while (is_alone() && calls % 64 != 0);
    }

  private:
    unsigned calls = 0;
};

uint64_t dirty() { return load_relaxed(&span_totals.dirty); }
// One that is no chunk's.
void* filled_span(size_t bytes) {
    void* p = unit_alloc_aligned(bytes, os_page_bytes());
    memset(p, 1, bytes);
    return p;
}
std::vector<void*> filled_many(size_t count, size_t bytes) {
    std::vector<void*> all;
    for (size_t i = 0; i < count; i++) all.push_back(filled(bytes));
    return all;
}

TEST(Release, WhatAWindowDidNotNeedGoesAndNoMore) {
    EXPECT_FINE(in_child([] {
        Windows windows;
        std::vector<void*> all = filled_many(16, span);
        windows.end();
        for (void* p : all) windows.free(p);
        EXPECT_EQ(dirty(), 16 * span);
        windows.end(); // since before anything was free
        EXPECT_EQ(dirty(), 16 * span);
        EXPECT_EQ(purged(), 0u);
        for (int window = 0; window < 3; window++) { // four of them are needed, in turns
            for (int turn = 0; turn < 3; turn++) {
                std::vector<void*> needed = filled_many(4, span);
                EXPECT_EQ(dirty(), window == 0 ? 12 * span : 0u);
                for (void* p : needed) windows.free(p);
            }
            windows.end();
            EXPECT_EQ(dirty(), 4 * span) << window;
            EXPECT_EQ(purged(), 12 * span) << window;
        }
        EXPECT_EQ(load_relaxed(&release_totals.refaulted), 0u);
        windows.end(); // in which nothing is needed
        EXPECT_EQ(dirty(), 0u);
        EXPECT_EQ(purged(), 16 * span);
        EXPECT_TRUE(span_check());
        filled(span);
        EXPECT_EQ(load_relaxed(&release_totals.refaulted), span);
    }));
}

TEST(Release, HolesGoWhenTheyWereThereForAWindow) {
    EXPECT_FINE(in_child([] {
        Windows windows;
        Blocks blocks;
        for (unsigned i = 0; i < size_classes[class_of(64)].capacity; i++) blocks.alloc(64);
        struct slice* slab = unit_slice(blocks.all[0].p);
        auto empty = [&](unsigned from, unsigned to) {
            for (size_t i = blocks.all.size(); i-- > 0;) {
                uintptr_t page = page_of(blocks.all[i].p) - (slice_address(slab) >> page_shift);
                if (page >= from && page < to) blocks.free(i);
            }
            unit_collect();
        };
        if (page_shift != 12) return;
        empty(0, 4);
        windows.end();
        EXPECT_EQ(hole_clean(state_of(slab)), 0u); // they came during it
        EXPECT_EQ(load_relaxed(&hole_pending), 4u << 12);
        empty(4, 8);
        windows.end();
        EXPECT_EQ(hole_clean(state_of(slab)), 0x000fu);
        EXPECT_EQ(load_relaxed(&hole_pending), 4u << 12);
        EXPECT_EQ(purged(), 4u << 12);
        windows.while_counting([&] { // a dirty one is used again
            for (unsigned i = 0; i < 64; i++) blocks.alloc(64);
        });
        EXPECT_EQ(load_relaxed(&release_totals.refaulted), 0u);
        windows.end();
        EXPECT_EQ(purged(), 7u << 12);
        EXPECT_EQ(load_relaxed(&hole_pending), 0u);
        expect_holes_exact(blocks, !unit_emulated);
    }));
}

// A hole that is taken and given back within a window was needed: it starts anew.
TEST(Release, HolesThatWereNeededStay) {
    EXPECT_FINE(in_child([] {
        Windows windows;
        Blocks blocks;
        for (unsigned i = 0; i < 64; i++) blocks.alloc(1024);
        struct slice* slab = unit_slice(blocks.all[0].p);
        for (unsigned i = 0; i < 4; i++) {
            while (blocks.all.size() > 32) blocks.free(blocks.all.size() - 1);
            unit_collect();
            EXPECT_EQ(__builtin_popcount(hole_of(state_of(slab))), 8);
            windows.end();
            windows.while_counting([&] {
                while (blocks.all.size() < 64) blocks.alloc(1024);
            });
        }
        EXPECT_EQ(purged(), 0u);
    }));
}

TEST(Release, WindowsGrowWhenMemoryIsNeededAgainAndShrinkLater) {
    EXPECT_FINE(in_child([] {
        Windows windows("", 6);
        void* keeps = filled(span);
        // Something is free at each end, so that there is something to look at.
        auto end = [&] {
            windows.free(keeps);
            windows.end();
            keeps = filled(span);
        };
        void* p = filled(3 << 20);
        const uint64_t lengths[] = {1 * ms, 1 * ms, 1 * ms, 2 * ms, 2 * ms, 2 * ms, 2 * ms,
                                    4 * ms, 4 * ms, 4 * ms, 4 * ms, 6 * ms, 6 * ms};
        for (uint64_t length : lengths) {
            uint64_t before = load_relaxed(&release_totals.refaulted);
            windows.free(p);
            end();
            end();
            EXPECT_EQ(load_relaxed(&release_totals.refaulted), before);
            EXPECT_GE(purged(), before + (3 << 20));
            p = filled(3 << 20);
            EXPECT_EQ(load_relaxed(&release_totals.refaulted), before + (3 << 20));
            end();
            EXPECT_EQ(windows.length(), length);
        }
        for (int calm = 0; calm < 31; calm++) end();
        EXPECT_EQ(windows.length(), 6 * ms);
        for (int calm = 0; calm < 32; calm++) end();
        EXPECT_EQ(windows.length(), 3 * ms);
        for (int calm = 0; calm < 64; calm++) end();
        EXPECT_EQ(windows.length(), 1 * ms);
        EXPECT_TRUE(span_check());
    }));
}

// What comes back later than in the window after next was rightly away.
TEST(Release, WhatComesBackLateChangesNoWindow) {
    EXPECT_FINE(in_child([] {
        Windows windows("", 100);
        void* keeps = filled(span);
        auto end = [&] {
            windows.free(keeps);
            windows.end();
            keeps = filled(span);
        };
        void* p = filled(8 << 20);
        for (int i = 0; i < 6; i++) {
            windows.free(p);
            for (int window = 0; window < 6; window++) end();
            EXPECT_GE(purged(), uint64_t{8} << 20);
            p = filled(8 << 20);
            end();
            EXPECT_EQ(windows.length(), 1 * ms);
        }
        EXPECT_GE(load_relaxed(&release_totals.refaulted), uint64_t{48} << 20);
    }));
}

TEST(Release, ALittleThatComesBackChangesNoWindow) {
    EXPECT_FINE(in_child([] {
        Windows windows(":release_delay=64:release_window=64", 100);
        for (int i = 0; i < 6; i++) {
            void* p = filled_span(200000); // 49 pages: 30 us, less than one part in 2048 of a window
            windows.free(p);
            windows.end();
            windows.end();
            EXPECT_EQ(dirty(), 0u);
        }
        EXPECT_GE(load_relaxed(&release_totals.refaulted), 5u * 196608);
        EXPECT_EQ(windows.length(), 64 * ms);
    }));
}

// The same is much where the process does little else.
TEST(Release, ALittleThatComesBackToAProcessThatWorksLittleMakesWindowsLonger) {
    EXPECT_FINE(in_child([] {
        Windows windows(":release_delay=16:release_window=16", 100);
        for (int i = 0; i < 8; i++) {
            windows.free(filled_span(200000));
            windows.end();
            windows.end();
        }
        EXPECT_GE(windows.length(), 32 * ms);
    }));
}

// Where there is no helper, and before a window ends: half of what is too much goes.
TEST(Release, AloneDirtyHolesHaveABound) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":release_floor=0");
        unit_attach();
        os_sandbox_announced();
        Blocks blocks;
        for (unsigned i = 0; i < 80000; i++) blocks.alloc(1024);
        for (size_t i = blocks.all.size(); i-- != 0;)
            if (i % 64 != 0) blocks.free(i);
        unit_collect();
        release_poke();
        release_poke();
        EXPECT_EQ(load_relaxed(&release_state), RELEASE_ALONE);
        uint64_t most = 0; // what it was, less what went
        for (const Block& b : blocks.all) most += __builtin_popcount(hole_dirty(state_of(unit_slice(b.p))));
        EXPECT_LE(most << page_shift, uint64_t{49} << 20);
        EXPECT_GE(purged(), uint64_t{20} << 20);
        EXPECT_TRUE(contents_right(blocks));
    }));
}

// Without a helper every 64th call looks at the clock.
TEST(Release, AloneEvery64thCallLooksAtTheClock) {
    EXPECT_FINE(in_child([] {
        Windows windows("", 1);
        unit_free(filled(span)); // rouses; nobody is to be had
        ASSERT_TRUE(windows.is_alone());
        EXPECT_EQ(release_dirty_max(), 32u << 20);
        windows.sleep();
        for (int i = 0; i < 63; i++) release_poke();
        EXPECT_EQ(load_relaxed(&span_totals.dirty_low), 0u); // no window has ended
        release_poke();
        EXPECT_EQ(load_relaxed(&span_totals.dirty_low), dirty());
        EXPECT_EQ(purged(), 0u);
        windows.sleep();
        for (int i = 0; i < 63; i++) release_poke();
        EXPECT_EQ(purged(), 0u);
        release_poke();
        EXPECT_EQ(purged(), span);
    }));
    EXPECT_FINE(in_child([] { // and not before the window is over
        setenv("WEIR_OPTIONS",
               "release_delay=3600000:release_window=3600000:release_delay_max=3600000:release_floor=0", 1);
        unit_attach();
        os_sandbox_announced();
        unit_free(filled(span));
        for (int i = 0; i < 1000; i++) release_poke();
        EXPECT_EQ(load_relaxed(&span_totals.dirty_low), 0u);
        EXPECT_EQ(purged(), 0u);
    }));
}

TEST(Release, AloneLessMayBeFreeAndAHelperIsTriedAgain) {
    EXPECT_FINE(in_child([] {
        Windows windows("", 1);
        EXPECT_GT(release_dirty_max(), uint64_t{1} << 30);
        std::vector<void*> all = filled_many(24, span);
        windows.free(all.back());
        all.pop_back();
        for (void* p : all) {
            windows.free(p);
            EXPECT_LE(dirty(), 32u << 20);
        }
        EXPECT_GT(purged(), 0u);
        for (int i = 0; i < 17; i++) {
            EXPECT_TRUE(windows.is_alone()) << i;
            windows.free(filled(span)); // so that there is something free
            windows.end();
        }
        EXPECT_EQ(load_relaxed(&release_state), uint32_t{RELEASE_ASLEEP});
        windows.free(filled(span));
        EXPECT_TRUE(windows.is_alone());
    }));
}

TEST(Release, TooLittleWakesNobody) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "release_floor=6m", 1);
        unit_attach();
        os_sandbox_announced();
        void* p = filled(span);
        unit_free(filled(span));
        EXPECT_EQ(load_relaxed(&release_state), uint32_t{RELEASE_ASLEEP});
        unit_free(p);
        EXPECT_EQ(load_relaxed(&release_state), uint32_t{RELEASE_ASLEEP});
        unit_free(filled(4 * span));
        EXPECT_EQ(load_relaxed(&release_state), uint32_t{RELEASE_ALONE});
    }));
}

TEST(Release, OffKeepsAllUntilAsked) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "release=off:release_delay=1:release_window=1:release_floor=0", 1);
        unit_attach();
        for (void* p : filled_many(32, span)) unit_free(p);
        usleep(5000);
        for (int i = 0; i < 300; i++) release_poke();
        EXPECT_EQ(load_relaxed(&release_state), uint32_t{RELEASE_OFF});
        EXPECT_FALSE(os_helper_runs());
        EXPECT_EQ(dirty(), 64u << 20);
        EXPECT_EQ(purged(), 0u);
        EXPECT_TRUE(release_all());
        EXPECT_EQ(dirty(), 0u);
        EXPECT_FALSE(release_all());
    }));
}

// Absent: sanitizers let no helper be
TEST_UNSANITIZED(Release, TheHelperReturnsWhatAnIdleProcessHas) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "release_delay=5:release_window=5", 1);
        unit_attach();
        Blocks blocks;
        for (unsigned i = 0; i < 4096; i++) blocks.alloc(1024);
        std::vector<void*> all = filled_many(8, 1 << 20);
        while (blocks.all.size() > 40) blocks.free(blocks.all.size() - 1);
        for (void* p : all) unit_free(p);
        unit_collect();
        release_poke();
        // Its end is waited for: when there is nothing left it goes.
        for (int i = 0; i < 1000 && (dirty() != 0 || os_helper_runs()); i++) usleep(5000);
        EXPECT_EQ(dirty(), 0u);
        EXPECT_EQ(load_relaxed(&hole_pending), 0u);
        EXPECT_FALSE(os_helper_runs());
        EXPECT_EQ(load_relaxed(&release_state), uint32_t{RELEASE_ASLEEP});
        EXPECT_TRUE(contents_right(blocks));
        EXPECT_FALSE(release_all());
        // And comes back.
        uint64_t before = purged();
        unit_free(filled(4 << 20));
        EXPECT_TRUE(os_helper_runs());
        // Counted at last: while pages go back they are dirty no more.
        for (int i = 0; i < 1000 && purged() - before < 4u << 20; i++) usleep(5000);
        EXPECT_EQ(purged() - before, 4u << 20);
        EXPECT_EQ(dirty(), 0u);
        // Told to end, it is gone when the call returns.
        unit_free(filled(4 << 20));
        release_helper_stop();
        EXPECT_FALSE(os_helper_runs());
        EXPECT_EQ(load_relaxed(&release_state), uint32_t{RELEASE_ASLEEP});
        // And stays away, whoever frees, until it is allowed again.
        unit_free(filled(4 << 20));
        EXPECT_FALSE(os_helper_runs());
        release_helper_allow();
        store_relaxed(&release_state, uint32_t{RELEASE_ASLEEP}); // which is tried again some windows later
        unit_free(filled(4 << 20));
        EXPECT_TRUE(os_helper_runs());
    }));
}

std::atomic<unsigned> paused;
std::atomic<bool> helper_paused, goes_on_after_the_pause;

// In the middle of what it does, too, it ends when it is told to; no other thread is taken for it.
// Absent: sanitizers let no helper be
TEST_UNSANITIZED(Release, AHelperThatPausesEndsWhenItIsTold) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "release_delay=5:release_window=5", 1);
        unit_attach();
        EXPECT_FALSE(release_is_helper());
        release_look_hook = [](enum release_look) {
            helper_paused = release_is_helper();
            paused++;
            goes_on_after_the_pause = release_pause(60 * 1000 * ms, false);
            return false;
        };
        // No large block: with tags these leave nothing to return.
        for (void* p : filled_many(64, 64 << 10)) unit_free(p);
        unit_collect();
        release_poke();
        for (int i = 0; i < 1000 && paused == 0; i++) usleep(5000);
        ASSERT_EQ(paused, 1u);
        usleep(50000);
        auto start = std::chrono::steady_clock::now();
        release_helper_stop();
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
        EXPECT_FALSE(os_helper_runs());
        EXPECT_EQ(paused, 1u);
        EXPECT_TRUE(helper_paused);
        EXPECT_FALSE(goes_on_after_the_pause);
        EXPECT_FALSE(release_is_helper());
    }));
}

// Blocks so small a first region that there are others, which go away with slices of theirs still marked.
TEST(Release, RegionsGoAwayWithMarkedSlices) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":reserve=4m:thread_free_max=0");
        unit_attach();
        Blocks first;
        while (region_count < 2) first.alloc(1000);
        for (int round = 0; round < 4; round++) {
            Blocks blocks;
            for (unsigned i = 0; i < 4000; i++) ASSERT_TRUE(blocks.alloc(1000));
            Random random(static_cast<uint64_t>(round));
            while (blocks.all.size() > 100) blocks.free(random.below(blocks.all.size()));
            unit_collect();
            EXPECT_GE(load_relaxed(&hole_pending), 1u << 20);
            if (round % 2 == 1) release_all();
            uint32_t live = 0;
            for (uint32_t row = 1; row < region_count; row++) live += regions[row].live;
            EXPECT_GT(live, 0u);
            blocks.free_all();
            unit_collect();
            // Slabs of the first one keep some marks, too.
            for (size_t i = first.all.size(); i-- > 0 && i > 100;)
                if (random.below(8) == 0) first.free(i);
            unit_collect();
            release_all();
            EXPECT_TRUE(contents_right(first));
            EXPECT_GE(unit_check_slabs(), 0);
        }
        uint32_t in_use = 0;
        for (uint32_t row = 1; row < region_count; row++) in_use += regions[row].base != 0;
        EXPECT_LE(in_use, 1u); // the one with the last of `first`
        EXPECT_EQ(load_relaxed(&hole_pending), 0u);
        first.free_all();
        expect_nothing_left();
    }));
}

TEST(Release, RegionsComeAndGoWhileMemoryIsPurged) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":reserve=4m:thread_free_max=4k");
        unit_attach();
        std::unique_ptr<Purger> purger(new Purger);
        Random random(17);
        Blocks blocks;
        for (unsigned round = 0; round < unit_rounds(40); round++) {
            size_t most = random.below(3) == 0 ? 0 : random.below(8000);
            while (blocks.all.size() < most) ASSERT_TRUE(blocks.alloc(1 + random.below(3000)));
            while (blocks.all.size() > most) blocks.free(random.below(blocks.all.size()));
            if (round % 4 == 0) unit_collect();
            ASSERT_GE(unit_check_slabs(), 0);
        }
        purger.reset();
        EXPECT_GE(region_count, 2u);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// The pages behind a large block's end, in memory that was used before.
// Absent: mincore is the emulator's
TEST_UNEMULATED(Release, PagesBehindALargeBlockGo) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        const size_t page = os_page_bytes();
        if (page > 16384) return;
        const size_t pages = SLICE_BYTES / page;
        unit_free(filled(4 << 20));
        // Two slices and a page; what is behind it is dirty.
        Blocks blocks;
        ASSERT_TRUE(blocks.alloc_aligned(2 * SLICE_BYTES + page, page));
        unsigned char* p = blocks.all[0].p;
        struct unit_figures f;
        unit_census(&f);
        EXPECT_EQ(f.hole_bytes, (pages - 1) * page);
        EXPECT_EQ(load_relaxed(&hole_pending), (pages - 1) * page);
        EXPECT_TRUE(release_all());
        unit_census(&f);
        EXPECT_EQ(f.hole_bytes, 0u);
        for (size_t i = 0; i < 3 * pages; i++) EXPECT_EQ(is_resident(page_of(p) + i), i <= 2 * pages) << i;
        // Up in place: part of the tail is the block's again.
        ASSERT_TRUE(blocks.realloc(0, 2 * SLICE_BYTES + 3 * page));
        EXPECT_EQ(blocks.all[0].p, p);
        EXPECT_EQ(blocks.moved, 0u);
        release_all();
        EXPECT_TRUE(contents_right(blocks));
        EXPECT_TRUE(is_resident(page_of(p) + 2 * pages + 2));
        EXPECT_FALSE(is_resident(page_of(p) + 2 * pages + 3));
        // Down within the slice, and by one.
        ASSERT_TRUE(blocks.realloc(0, 2 * SLICE_BYTES + 2 * page));
        EXPECT_TRUE(release_all());
        EXPECT_TRUE(contents_right(blocks));
        EXPECT_TRUE(is_resident(page_of(p) + 2 * pages + 1));
        EXPECT_FALSE(is_resident(page_of(p) + 2 * pages + 2));
        ASSERT_TRUE(blocks.realloc(0, SLICE_BYTES + page));
        EXPECT_TRUE(release_all());
        for (size_t i = 0; i < 3 * pages; i++) EXPECT_EQ(is_resident(page_of(p) + i), i <= pages) << i;
        // To the slice's end: no tail.
        ASSERT_TRUE(blocks.realloc(0, 2 * SLICE_BYTES));
        EXPECT_EQ(hole_of(state_of(unit_slice(p))), 0u);
        unit_census(&f);
        EXPECT_EQ(f.hole_bytes, 0u);
        EXPECT_TRUE(contents_right(blocks));
        blocks.free_all();
        expect_nothing_left();
    }));
}

// A block that was moved keeps its span's length while it shrinks: what it no longer needs goes all the same.
// Absent: mincore is the emulator's, and it cannot move
TEST_UNEMULATED(Release, PagesOfAMovedBlockThatShrinksGo) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        const size_t page = os_page_bytes();
        if (page > 16384) return;
        Blocks blocks;
        ASSERT_TRUE(blocks.alloc(20 * SLICE_BYTES));
        ASSERT_TRUE(blocks.alloc_aligned(3 * SLICE_BYTES, page)); // in the way of growing in place
        ASSERT_TRUE(blocks.realloc(0, 40 * SLICE_BYTES));
        unsigned char* p = blocks.all[0].p;
        ASSERT_NE(unit_slice(p)->flags & SLICE_MOVED, 0u);
        const size_t sizes[] = {39 * SLICE_BYTES + 1,    39 * SLICE_BYTES, 30 * SLICE_BYTES + page,
                                30 * SLICE_BYTES + 1,    35 * SLICE_BYTES, 40 * SLICE_BYTES - page,
                                30 * SLICE_BYTES - page, 25 * SLICE_BYTES};
        for (size_t size : sizes) {
            ASSERT_TRUE(blocks.realloc(0, size));
            ASSERT_EQ(blocks.all[0].p, p);
            EXPECT_EQ(unit_large_bytes(), blocks.usable());
            release_all();
            EXPECT_TRUE(span_check());
            EXPECT_TRUE(contents_right(blocks));
            for (size_t i = 0; i < 40 * SLICE_BYTES / page; i++)
                ASSERT_EQ(is_resident(page_of(p) + i), i * page < size) << size << " page " << i;
        }
        blocks.free_all();
        expect_nothing_left();
    }));
}

// `forks`: among the handlers before a fork, when the thread has the page lock.
void large_block_waits(bool forks) {
    EXPECT_FINE(in_child(
        [=] {
            windows_are_endless();
            unit_attach();
            const size_t page = os_page_bytes();
            if (page > 16384) return;
            unit_free(filled(4 << 20));
            release_all();
            unit_free(
                filled_span(300000)); // as much is dirty as is used below: no purge of spans comes first
            Blocks blocks;
            blocks.alloc_aligned(4 * SLICE_BYTES + page, page);
            ASSERT_EQ(dirty(), 0u);
            Gate gate;
            gate.wait();
            std::thread later([&] {
                usleep(20000);
                gate.open();
            });
            if (forks) unit_fork_prepare();
            ASSERT_TRUE(blocks.realloc(0, 4 * SLICE_BYTES + 3 * page));
            EXPECT_TRUE(gate.is_open());
            if (forks) unit_fork_parent();
            EXPECT_TRUE(gate.join());
            later.join();
            EXPECT_TRUE(contents_right(blocks));
        },
        20));
}

TEST(Release, ALargeBlockWaitsForThePagesBehindItsEnd) { large_block_waits(false); }
TEST(Release, ALargeBlockWaitsAmongForkHandlers) { large_block_waits(true); }

void large_at_random(const char* options, bool refused) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless(options);
        unit_attach();
        static std::atomic<unsigned> calls;
        if (refused) os_fault_hook = [](enum os_call call) { return call == OS_PURGE && calls++ % 3 == 0; };
        std::unique_ptr<Purger> purger(new Purger);
        Blocks blocks;
        Random random(99);
        for (unsigned i = 0; i < unit_rounds(3000); i++) {
            size_t size = SLAB_MAX + 1 + random.below(random.below(20) == 0 ? 4 << 20 : 2 * CHUNK_MAX);
            size_t which = blocks.all.empty() ? 0 : random.below(blocks.all.size());
            if (blocks.all.size() < 20)
                ASSERT_TRUE(blocks.alloc(size));
            else if (random.below(3) != 0)
                ASSERT_TRUE(blocks.realloc(which, size));
            else
                blocks.free(which);
        }
        purger.reset();
        os_fault_hook = nullptr;
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Release, LargeBlocksAtRandom) { large_at_random("", false); }
TEST(Release, LargeBlocksAtRandomInSmallRegions) { large_at_random(":reserve=4m", false); }
TEST(Release, LargeBlocksAtRandomWithRefusals) { large_at_random("", true); }

// What the kernel does not take, as of a process that is locked in memory, keeps no helper awake: it is tried
// again with what is freed next.
// Absent: sanitizers let no helper be
TEST_UNSANITIZED(Release, NoHelperStaysForWhatIsRefused) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "release_delay=5:release_window=20:release_delay_max=20:release_floor=64k", 1);
        unit_attach();
        Blocks blocks;
        for (unsigned i = 0; i < 64 * 20; i++) blocks.alloc(1024);
        std::vector<void*> all = filled_many(3, span);
        os_fault_hook = [](enum os_call call) { return call == OS_PURGE; };
        for (size_t i = blocks.all.size(); i-- != 0;)
            if (i % 64 != 0) blocks.free(i);
        unit_collect();
        unit_free(all[0]);
        unit_free(all[1]);
        EXPECT_EQ(load_relaxed(&release_state), RELEASE_HELPER);
        for (int i = 0; i < 5000 && load_acquire(&release_state) != RELEASE_ASLEEP; i++) usleep(1000);
        EXPECT_EQ(load_relaxed(&release_state), RELEASE_ASLEEP);
        EXPECT_GE(dirty(), 2 * span);
        os_fault_hook = nullptr;
        unit_free(all[2]);
        for (int i = 0; i < 5000 && dirty() != 0; i++) usleep(1000);
        EXPECT_EQ(dirty(), 0u);
        release_helper_stop();
        release_helper_allow();
    }));
}

TEST(Release, RefusedSpansStayDirtyAndAreTriedAgain) {
    EXPECT_FINE(in_child([] {
        Windows windows;
        std::vector<void*> all = filled_many(2, span);
        windows.end();
        for (void* p : all) windows.free(p);
        windows.end();
        refuse_purges(~0ull);
        for (int i = 0; i < 4; i++) {
            windows.end();
            EXPECT_EQ(dirty(), 4u << 20);
            EXPECT_EQ(purged(), 0u);
        }
        EXPECT_FALSE(release_all());
        EXPECT_TRUE(span_check());
        os_fault_hook = nullptr;
        windows.end();
        EXPECT_EQ(dirty(), 0u);
        EXPECT_EQ(purged(), 4u << 20);
    }));
}

// What is known of a slab's pages outlives it: those that went do not count as dirty, and do not go again.
TEST(Release, PagesOfASlabThatEndsStayClean) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        Blocks blocks;
        for (unsigned i = 0; i < 64 * 10; i++) blocks.alloc(1024);
        while (blocks.all.size() > 1) blocks.free(blocks.all.size() - 1);
        unit_collect();
        EXPECT_TRUE(release_all());
        EXPECT_EQ(dirty(), 0u);
        uint64_t before = purged();
        blocks.free_all(); // one page of the last slab is dirty
        unit_collect();
        EXPECT_EQ(dirty(), os_page_bytes());
        EXPECT_TRUE(release_all());
        EXPECT_EQ(purged() - before, os_page_bytes());
        expect_nothing_left();
    }));
}

// The next slab in such a place uses the pages first that are there, and no page is counted as brought back.
TEST(Release, TheNextSlabInThePlaceStartsWithThePagesThatAreThere) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        Blocks blocks;
        unit_free(unit_alloc(512)); // its class is no new one, which would start where nothing is resident
        unit_collect();
        for (unsigned i = 0; i < 64; i++) blocks.alloc(1024);
        const void* last = blocks.all.back().p;
        while (blocks.all.size() > 1) blocks.free(blocks.all.size() - 2);
        unit_collect();
        EXPECT_TRUE(release_all());
        blocks.free_all();
        unit_collect();
        uint64_t refaulted = load_relaxed(&release_totals.refaulted);
        blocks.alloc(512);
        EXPECT_EQ(page_of(blocks.all[0].p), page_of(last));
        EXPECT_EQ(load_relaxed(&release_totals.refaulted), refaulted);
        EXPECT_TRUE(span_check());
    }));
}

// The first slab of a class takes no memory that is resident, of which it would use a page or two.
TEST(Release, TheFirstSlabOfAClassStartsWhereNothingIsResident) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        unit_free(filled(4 << 20));
        unit_collect();
        uint64_t before = dirty();
        EXPECT_GE(before, 4u << 20);
        std::vector<void*> all;
        for (size_t size = 16; size <= 1024; size += 16) all.push_back(unit_alloc(size));
        EXPECT_EQ(dirty(), before);
        for (void* p : all) unit_free(p);
        unit_collect();
        // Those that come later have what there is.
        before = dirty();
        all.clear();
        for (size_t size = 16; size <= 1024; size += 16) all.push_back(unit_alloc(size));
        EXPECT_LT(dirty(), before);
        for (void* p : all) unit_free(p);
    }));
}

// A large block keeps what is known of its last pages, also when it is given out again with another size.
TEST(Release, PagesBehindALargeBlockStayClean) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        size_t page = os_page_bytes();
        for (size_t again : {size_t{0}, SLICE_BYTES + 2 * page}) {
            uint64_t before = purged();
            void* p =
                unit_alloc_aligned(SLICE_BYTES + page, page); // the last slice: one page, the others a tail
            memset(p, 1, SLICE_BYTES + page);
            EXPECT_FALSE(release_all()) << "a fresh tail was never there";
            unit_free(p);
            if (again != 0) {
                EXPECT_EQ(unit_alloc_aligned(again, page), p);
                EXPECT_FALSE(release_all()) << "nor is what is left of it";
                unit_free(p);
            }
            unit_collect();
            EXPECT_TRUE(release_all());
            EXPECT_EQ(purged() - before, again != 0 ? again : SLICE_BYTES + page);
            EXPECT_TRUE(span_check());
        }
        expect_nothing_left();
    }));
}

} // namespace
