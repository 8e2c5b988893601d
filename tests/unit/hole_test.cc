// hole_test.cc: OS pages inside live slabs: built, sorted, detached, purged and built again, for each size of
// page and each class; and what the owner and the purge are to each other. Called by ctest; each test starts
// the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "holes.h"
#include <algorithm>
#include <functional>
#include <vector>

namespace {

constexpr size_t page_bytes_max = 65536;

// Frees blocks as programs do: here and there, in a row, or nearly all.
void free_some(Blocks& blocks, Random& random) {
    size_t count = blocks.all.size();
    if (random.below(3) == 0)
        std::sort(blocks.all.begin(), blocks.all.end(),
                  [](const Block& a, const Block& b) { return a.p < b.p; });
    size_t stays = random.below(3) == 0 ? count / 64 : random.below(count);
    if (random.below(2) == 0) {
        while (blocks.all.size() > stays) blocks.free(random.below(blocks.all.size()));
    } else {
        size_t from = random.below(stays + 1);
        std::vector<Block> row;
        for (size_t i = from; i < from + count - stays; i++) row.push_back(blocks.all[i]);
        blocks.all.erase(blocks.all.begin() + static_cast<long>(from),
                         blocks.all.begin() + static_cast<long>(from + count - stays));
        for (const Block& b : row) {
            EXPECT_TRUE(block_intact(b, b.usable));
            unit_free(b.p);
        }
    }
}

// Rounds of allocating and freeing one class: a few slabs' worth of blocks. `pass`: memory may go back now.
void run_class(unsigned c, Random& random, unsigned rounds, bool exact, const std::function<void()>& pass) {
    static const uint64_t bounds[] = {0, 4096, 16384, 131072};
    const struct size_class& k = size_classes[c];
    Blocks blocks;
    for (unsigned round = 0; round < rounds; round++) {
        core_options.thread_free_max = bounds[random.below(4)];
        size_t most = std::min<size_t>(1 + random.below(3 * k.capacity), 2 * page_bytes_max / 16);
        while (blocks.all.size() < most)
            if (!blocks.alloc(k.bytes - random.below(15))) return;
        free_some(blocks, random);
        ASSERT_GE(unit_check_slabs(), 0) << k.bytes;
        if (random.below(2) == 0) {
            unit_collect();
            expect_holes_exact(blocks, false);
        }
        pass();
        ASSERT_TRUE(contents_right(blocks)) << k.bytes;
        ASSERT_GE(unit_check_slabs(), 0) << k.bytes;
    }
    unit_collect();
    pass();
    expect_holes_exact(blocks, exact);
    blocks.free_all();
}

void run_classes(uint32_t shift, const char* options, unsigned rounds) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless(options);
        start_with_pages(shift);
        bool exact = page_shift == static_cast<uint32_t>(bit_high(os_page_bytes())) && !unit_emulated;
        Random random(shift);
        for (unsigned c = 0; c < SLAB_CLASSES && !::testing::Test::HasFailure(); c++)
            run_class(c, random, unit_rounds(rounds), exact, [] {
                release_all();
                release_all(); // what the first was too early for
                EXPECT_EQ(load_relaxed(&hole_pending), 0u);
            });
        expect_nothing_left();
    }));
}

TEST(Holes, EveryClassOnPagesOf4KiB) { run_classes(12, "", 8); }
TEST(Holes, EveryClassOnPagesOf16KiB) { run_classes(14, "", 8); }
TEST(Holes, EveryClassOnPagesOf64KiB) { run_classes(16, "", 8); }
TEST(Holes, EveryClassWithChecksAtTheCall) { run_classes(12, ":checks=full", 4); }
TEST(Holes, EveryClassWithAllListsWalked) { run_classes(14, ":check_first=4294967295", 3); }

// The same with a purge under way at any moment.
void run_with_purger(uint32_t shift, const char* options) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless(options);
        start_with_pages(shift);
        Random random(shift + 100);
        {
            Purger purger;
            for (unsigned c = 0; c < SLAB_CLASSES && !::testing::Test::HasFailure(); c++)
                run_class(c, random, unit_rounds(5), false, [] {});
            for (unsigned i = 0; i < 5000 && purger.passes.load() < 4 && !::testing::Test::HasFailure();
                 i++) {
                run_class(i % SLAB_CLASSES, random, 1, false, [] {});
                usleep(200);
            }
            EXPECT_GT(purger.passes.load(), 3u);
        }
        expect_nothing_left();
    }));
}

TEST(Holes, ArePurgedByAnotherThreadMeanwhile4KiB) { run_with_purger(12, ""); }
TEST(Holes, ArePurgedByAnotherThreadMeanwhile16KiB) { run_with_purger(14, ""); }
TEST(Holes, ArePurgedByAnotherThreadMeanwhile64KiB) { run_with_purger(16, ""); }
TEST(Holes, ArePurgedMeanwhileWithChecksAtTheCall) { run_with_purger(12, ":checks=full"); }

// Blocks in a slab; where the heap has started, since with tags it may be one less.
uint32_t slab_capacity(size_t size) { return size_classes[class_of(size)].capacity; }

// Two slabs of 64-byte blocks; of the first one pages 1 to 14 are free and dirty holes.
struct Emptied {
    Blocks blocks;
    struct slice* slab;
    uint32_t mask = 0x7ffe;
    explicit Emptied(const char* options = "") {
        windows_are_endless(options);
        start_with_pages(12);
        for (unsigned i = 0; i < 2 * slab_capacity(64); i++) blocks.alloc(64);
        slab = unit_slice(blocks.all[0].p);
        empty();
    }
    void empty() {
        for (size_t i = blocks.all.size(); i-- > 0;)
            if (is_in(blocks.all[i].p)) blocks.free(i);
        unit_collect();
        EXPECT_EQ(hole_of(state_of(slab)), mask);
    }
    bool is_in(const void* p) const {
        uintptr_t page = page_of(p) - (slice_address(slab) >> page_shift);
        return page < 16 && (mask >> page & 1) != 0;
    }
    size_t count_in() const {
        return static_cast<size_t>(std::count_if(blocks.all.begin(), blocks.all.end(),
                                                 [this](const Block& b) { return is_in(b.p); }));
    }
};

TEST(Holes, DirtyOnesComeBackAsTheyAre) {
    EXPECT_FINE(in_child([] {
        Emptied e;
        uint64_t refaulted = load_relaxed(&release_totals.refaulted);
        for (unsigned i = 0; i < 14 * 64; i++) ASSERT_TRUE(e.blocks.alloc(64));
        EXPECT_EQ(e.count_in(), 14u * 64); // and no other slab is made
        EXPECT_EQ(load_relaxed(&release_totals.refaulted), refaulted);
        EXPECT_EQ(load_relaxed(&release_totals.calls), 0u);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

TEST(Holes, PurgedOnesComeBackAndAreCounted) {
    EXPECT_FINE(in_child([] {
        Emptied e;
        struct unit_figures f;
        unit_census(&f);
        EXPECT_EQ(f.hole_bytes, 14u << 12);
        EXPECT_EQ(load_relaxed(&hole_pending), 14u << 12);
        EXPECT_TRUE(release_all());
        EXPECT_EQ(hole_clean(state_of(e.slab)), e.mask);
        unit_census(&f);
        EXPECT_EQ(f.hole_bytes, 0u);
        EXPECT_EQ(load_relaxed(&span_totals.purged), 14u << 12);
        EXPECT_EQ(load_relaxed(&release_totals.calls), 1u);
        EXPECT_GE(load_relaxed(&release_totals.scanned), uint64_t{SLICE_BYTES});
        EXPECT_FALSE(release_all()); // and nothing the second time
        EXPECT_EQ(load_relaxed(&release_totals.calls), 1u);
        expect_holes_exact(e.blocks, !unit_emulated);
        for (unsigned i = 0; i < 14 * 64; i++) ASSERT_TRUE(e.blocks.alloc(64));
        EXPECT_EQ(e.count_in(), 14u * 64);
        EXPECT_EQ(load_relaxed(&release_totals.refaulted), 14u << 12);
        e.empty(); // once more
        EXPECT_TRUE(release_all());
        EXPECT_EQ(load_relaxed(&span_totals.purged), 28u << 12);
        e.blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Holes, BeingPurgedAreNotToBeHad) {
    EXPECT_FINE(in_child([] {
        Emptied e;
        Gate gate;
        gate.wait();
        EXPECT_EQ(hole_busy(state_of(e.slab)), e.mask);
        EXPECT_EQ(hole_dirty(state_of(e.slab)), 0u);
        EXPECT_EQ(hole_take(e.slab, hole_all()), 0u);
        for (unsigned i = 0; i < 1000; i++) ASSERT_TRUE(e.blocks.alloc(64)); // elsewhere, without a wait
        EXPECT_EQ(e.count_in(), 0u);
        EXPECT_GE(unit_check_slabs(), 0);
        EXPECT_TRUE(gate.join());
        EXPECT_TRUE(contents_right(e.blocks));
        EXPECT_EQ(hole_busy(state_of(e.slab)), 0u);
        EXPECT_EQ(hole_clean(state_of(e.slab)), e.mask);
        // Who found nothing in the slab may have left it: a free makes it somebody's again.
        for (size_t i = 0; i < e.blocks.all.size(); i++)
            if (unit_slice(e.blocks.all[i].p) == e.slab) {
                e.blocks.free(i);
                break;
            }
        for (unsigned i = 0; i < 3000; i++) ASSERT_TRUE(e.blocks.alloc(64));
        EXPECT_EQ(e.count_in(), 14u * 64);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// Two slabs with nothing else to give are not tried in turns until the purge is over.
TEST(Holes, OfTwoSlabsBeingPurgedAreNotWaitedFor) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        start_with_pages(12);
        Blocks blocks;
        const size_t per_slab = slab_capacity(64);
        for (size_t i = 0; i < 2 * per_slab; i++) ASSERT_TRUE(blocks.alloc(64));
        for (size_t i = blocks.all.size(); i-- > 0;)
            if (reinterpret_cast<uintptr_t>(blocks.all[i].p) % SLICE_BYTES >= 4096) blocks.free(i);
        unit_collect();
        ASSERT_EQ(blocks.all.size(), 2 * 64u);
        Gate gate;
        gate.wait();
        std::atomic<bool> through{false};
        std::thread late([&] {
            for (unsigned i = 0; i < 30 && !through.load(); i++) usleep(100000);
            gate.open();
        });
        for (unsigned i = 0; i < 64; i++) ASSERT_TRUE(blocks.alloc(64));
        EXPECT_FALSE(gate.is_open());
        through = true;
        late.join();
        EXPECT_TRUE(gate.join());
        EXPECT_GE(unit_check_slabs(), 0);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// Holes that come while their slab's others are being purged are seen by the next pass.
TEST(Holes, ThatComeDuringAPurgeAreNotForgotten) {
    EXPECT_FINE(in_child([] {
        Emptied e;
        Gate gate;
        gate.wait();
        for (size_t i = e.blocks.all.size(); i-- > 0;)
            if (unit_slice(e.blocks.all[i].p) == e.slab &&
                page_of(e.blocks.all[i].p) != slice_address(e.slab) >> page_shift)
                e.blocks.free(i);
        unit_collect();
        EXPECT_EQ(hole_of(state_of(e.slab)), 0xfffeu);
        EXPECT_TRUE(gate.join());
        EXPECT_EQ(hole_clean(state_of(e.slab)), e.mask);
        EXPECT_TRUE(release_all());
        EXPECT_EQ(hole_clean(state_of(e.slab)), 0xfffeu);
        EXPECT_EQ(load_relaxed(&hole_pending), 0u);
    }));
}

// A slab may not become another span while some of its pages are in the kernel's hands.
TEST(Holes, OfASlabThatEndsAreWaitedFor) {
    EXPECT_FINE(in_child([] {
        Emptied e;
        Gate gate;
        gate.wait();
        std::thread later([&] {
            usleep(20000);
            gate.open();
        });
        for (size_t i = e.blocks.all.size(); i-- > 0;)
            if (unit_slice(e.blocks.all[i].p) == e.slab) e.blocks.free(i);
        unit_collect();
        EXPECT_TRUE(gate.is_open());
        EXPECT_TRUE(gate.join());
        later.join();
        for (unsigned i = 0; i < 3000; i++) ASSERT_TRUE(e.blocks.alloc(100));
        release_all();
        EXPECT_TRUE(contents_right(e.blocks));
        EXPECT_TRUE(span_check());
    }));
}

TEST(Holes, StayWhatTheyAreWhenThePurgeIsRefused) {
    EXPECT_FINE(in_child([] {
        Emptied e;
        for (unsigned i = 0; i < 3; i++) {
            refuse_purges(~0ull);
            EXPECT_FALSE(release_all());
            EXPECT_EQ(hole_dirty(state_of(e.slab)), e.mask);
            EXPECT_EQ(hole_busy(state_of(e.slab)), 0u);
        }
        struct unit_figures f;
        unit_census(&f);
        EXPECT_EQ(f.hole_bytes, 14u << 12);
        os_fault_hook = nullptr;
        EXPECT_TRUE(release_all()) << "what was refused is never tried again";
        EXPECT_EQ(hole_clean(state_of(e.slab)), e.mask);
        EXPECT_EQ(load_relaxed(&span_totals.purged), 14u << 12);
    }));
    EXPECT_FINE(in_child([] { // and come back as such
        Emptied e;
        refuse_purges(~0ull);
        EXPECT_FALSE(release_all());
        for (unsigned i = 0; i < 14 * 64; i++) ASSERT_TRUE(e.blocks.alloc(64));
        EXPECT_EQ(e.count_in(), 14u * 64);
        EXPECT_EQ(load_relaxed(&release_totals.refaulted), 0u);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
    EXPECT_FINE(in_child([] { // and the gate's: refused while the owner works
        Emptied e;
        Gate gate(true);
        gate.wait();
        for (unsigned i = 0; i < 1000; i++) ASSERT_TRUE(e.blocks.alloc(64));
        gate.join();
        EXPECT_TRUE(contents_right(e.blocks));
        EXPECT_EQ(hole_busy(state_of(e.slab)), 0u);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// Many slabs, so that there are several batches, of which some calls are refused.
TEST(Holes, ArePurgedAsFarAsTheKernelLets) {
    for (uint64_t which : {uint64_t{1}, uint64_t{2}, uint64_t{0xc}, uint64_t{0x5555}})
        EXPECT_FINE(in_child([=] {
            windows_are_endless(":hugepages=never"); // else unbuilt pages are dirty holes, too
            start_with_pages(12);
            Blocks blocks;
            for (unsigned i = 0; i < 600 * slab_capacity(1024); i++) ASSERT_TRUE(blocks.alloc(1024));
            for (size_t i = blocks.all.size(); i-- > 0;)
                if ((page_of(blocks.all[i].p) & 1) != 0) blocks.free(i);
            unit_collect();
            uint64_t holes = load_relaxed(&hole_pending);
            EXPECT_EQ(holes, uint64_t{600} * 8 << 12);
            refuse_purges(which);
            release_all();
            os_fault_hook = nullptr;
            EXPECT_TRUE(contents_right(blocks));
            struct unit_figures f;
            unit_census(&f);
            EXPECT_EQ(load_relaxed(&span_totals.purged) + f.hole_bytes, holes);
            release_all();
            EXPECT_EQ(load_relaxed(&span_totals.purged), holes) << "the rest goes with the next pass";
            expect_holes_exact(blocks, !unit_emulated);
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

TEST(Holes, RandomPurgesAreRefused) {
    EXPECT_FINE(in_child([] {
        static Random random(4711);
        windows_are_endless();
        start_with_pages(12);
        os_fault_hook = [](enum os_call call) { return call == OS_PURGE && random.below(3) == 0; };
        Random mine(5);
        for (unsigned c = 0; c < SLAB_CLASSES && !::testing::Test::HasFailure(); c += 5)
            run_class(c, mine, unit_rounds(6), false, [] { release_all(); });
    }));
}

// Nor is anything else of the program's touched, whatever the records within a span hold.
TEST(Holes, OfOtherRegionsAreFoundByAForksChild) {
    EXPECT_FINE(in_child([] {
        Emptied e(":reserve=8m");
        const size_t bytes = 2 * MIB; // its slices but for the first and the last say nothing of their region
        std::vector<unsigned char*> large;
        for (unsigned i = 0; i < 20; i++) {
            large.push_back(static_cast<unsigned char*>(unit_alloc(bytes)));
            ASSERT_NE(large.back(), nullptr);
            memset(large.back(), 0xff, bytes);
        }
        ASSERT_GE(region_count, 2u);
        Gate gate;
        gate.wait();
        int status = forked([&] {
            os_fault_hook = nullptr;
            EXPECT_EQ(hole_busy(state_of(e.slab)), 0u);
            for (const unsigned char* p : large)
                EXPECT_EQ(std::count(p, p + bytes, 0xff), static_cast<long>(bytes));
            release_all();
        });
        EXPECT_EQ(status, 0);
        EXPECT_TRUE(gate.join());
    }));
}

// After a free, the page's memory may be the kernel's: what a child of fork finds must be the same.
TEST(Holes, SurviveAForkInTheMiddleOfAPurge) {
    EXPECT_FINE(in_child([] {
        Emptied e;
        Gate gate;
        gate.wait();
        int status = forked([&] {
            os_fault_hook = nullptr;
            EXPECT_EQ(hole_busy(state_of(e.slab)), 0u);
            EXPECT_TRUE(contents_right(e.blocks));
            for (unsigned i = 0; i < 2000; i++) EXPECT_TRUE(e.blocks.alloc(64));
            EXPECT_GE(unit_check_slabs(), 0);
            release_all();
            EXPECT_TRUE(contents_right(e.blocks));
        });
        EXPECT_EQ(status, 0);
        EXPECT_TRUE(gate.join());
        EXPECT_EQ(hole_clean(state_of(e.slab)), e.mask);
        EXPECT_TRUE(contents_right(e.blocks));
    }));
}

} // namespace
