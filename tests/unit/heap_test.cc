// heap_test.cc: the heap layer in one thread: blocks, slabs, resizing, counting, list checks. Called by
// ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "workers.h"
#include <cstdlib>
#include <map>
#include <memory>
#include <set>

namespace {

TEST(Heap, ServesEverySizeOnce) {
    EXPECT_FINE(in_child([] {
        Blocks blocks;
        for (size_t size = 0; size <= 2100; size++) ASSERT_TRUE(blocks.alloc(size));
        for (size_t size = 2100; size <= 140000; size += 613) ASSERT_TRUE(blocks.alloc(size));
        for (size_t size : {size_t{1} << 20, size_t{9} << 20, size_t{65536}, size_t{65537}})
            ASSERT_TRUE(blocks.alloc(size));
        EXPECT_GE(unit_check_slabs(), 0);
        blocks.free_all();
        EXPECT_GE(unit_check_slabs(), 0);
        expect_nothing_left();
    }));
}

TEST(Heap, UsableIsTheClassOrTheLastPage) {
    EXPECT_FINE(in_child([] {
        for (size_t size = 1; size <= SLAB_MAX; size += size < 1100 ? 1 : 251) {
            void* p = unit_alloc(size);
            EXPECT_EQ(unit_usable(p), size_classes[class_of(size)].bytes);
            unit_free(p);
        }
        for (size_t size = SLAB_MAX + 1; size <= CHUNK_MAX; size += 1511) {
            void* p = unit_alloc(size);
            EXPECT_EQ(unit_in_chunk(p), !tag_is_on()) << size;
            EXPECT_EQ(unit_usable(p),
                      tag_is_on() ? align_up(size, os_page_bytes()) : size_classes[class_of(size)].bytes);
            unit_free(p);
        }
        for (size_t size = CHUNK_MAX + 1; size < 3000000; size += 77777) {
            void* p = unit_alloc(size);
            EXPECT_EQ(unit_usable(p), align_up(size, os_page_bytes()));
            unit_free(p);
        }
        void* p = unit_alloc(0);
        EXPECT_EQ(unit_usable(p), 16u);
        unit_free(p);
        EXPECT_EQ(unit_usable(nullptr), 0u);
        unit_free(nullptr);
        expect_nothing_left();
    }));
}

TEST(Heap, ZeroSizedBlocksAreDistinct) {
    EXPECT_FINE(in_child([] {
        std::set<void*> all;
        for (int i = 0; i < 1000; i++) all.insert(unit_alloc(0));
        EXPECT_EQ(all.size(), 1000u);
        EXPECT_EQ(all.count(nullptr), 0u);
    }));
}

TEST(Heap, RefusesTheImpossible) {
    EXPECT_FINE(in_child([] {
        for (size_t size :
             {SIZE_MAX, SIZE_MAX - 15, size_t{PTRDIFF_MAX}, size_t{PTRDIFF_MAX} + 1, size_t{1} << 60}) {
            EXPECT_EQ(unit_alloc(size), nullptr);
            EXPECT_EQ(unit_alloc_aligned(size, 64), nullptr);
        }
        EXPECT_EQ(unit_alloc_aligned(1, size_t{1} << 63), nullptr);
        EXPECT_EQ(unit_alloc_aligned(1, size_t{1} << 62), nullptr);
        EXPECT_EQ(unit_alloc_aligned(1, size_t{1} << 48), nullptr);
        void* p = unit_alloc(100);
        memset(p, 3, 100);
        EXPECT_EQ(unit_realloc(p, SIZE_MAX), nullptr);
        EXPECT_EQ(unit_realloc(p, PTRDIFF_MAX), nullptr);
        EXPECT_EQ(static_cast<char*>(p)[99], 3);
        unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Heap, ServesEveryAlignment) {
    EXPECT_FINE(in_child([] {
        Blocks blocks;
        for (size_t align = 1; align <= size_t{32} << 20; align *= 2)
            for (size_t size : {size_t{0}, size_t{1}, size_t{17}, align / 2, align, align + 1, size_t{5000},
                                size_t{65536}, size_t{65537}, size_t{200000}}) {
                if (size > size_t{4} << 20) continue;
                ASSERT_TRUE(blocks.alloc_aligned(size, align)) << size << " at " << align;
            }
        EXPECT_GE(unit_check_slabs(), 0);
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Heap, SizesMatchTheirBlocksAlone) {
    EXPECT_FINE(in_child([] {
        for (unsigned c = 0; c < CLASS_COUNT; c++) {
            size_t bytes = size_classes[c].bytes;
            size_t smaller = c == 0 ? 0 : size_classes[c - 1].bytes;
            EXPECT_TRUE(unit_size_matches(bytes, bytes, 1));
            EXPECT_TRUE(unit_size_matches(bytes, smaller + 1, 1));
            EXPECT_FALSE(unit_size_matches(bytes, bytes + 1, 1));
            // Above 2 KiB one of the next two classes may have served, where slabs have both.
            auto serves = [](size_t size) { return size > 2048 && size <= SLAB_MAX - SLAB_MAX / 8; };
            EXPECT_EQ(c != 0 && unit_size_matches(bytes, smaller, 1), serves(smaller)) << bytes;
            size_t below = c < 2 ? 0 : size_classes[c - 2].bytes;
            EXPECT_EQ(below != 0 && unit_size_matches(bytes, below, 1), serves(below)) << bytes;
            EXPECT_FALSE(c > 2 && unit_size_matches(bytes, size_classes[c - 3].bytes, 1)) << bytes;
        }
        EXPECT_TRUE(unit_size_matches(16, 0, 1));
        EXPECT_TRUE(unit_size_matches(4096, 100, 4096));
        EXPECT_FALSE(unit_size_matches(4096, 100, 2048));
        size_t page = os_page_bytes();
        EXPECT_TRUE(unit_size_matches(100 * page, 100 * page, 1));
        EXPECT_TRUE(unit_size_matches(100 * page, 99 * page + 1, 1));
        EXPECT_FALSE(unit_size_matches(100 * page, 99 * page, 1));
        EXPECT_FALSE(unit_size_matches(100 * page, 100 * page + 1, 1));
    }));
}

void random_run(uint64_t seed, unsigned steps) {
    Random random(seed);
    Blocks blocks;
    for (unsigned i = 0; i < steps && !::testing::Test::HasFailure(); i++) {
        size_t what = random.below(100);
        size_t target = i / 512 % 2 == 0 ? 1500 : 100; // so that it grows and shrinks
        if (blocks.all.empty() || (what < 50 && blocks.all.size() < target)) {
            size_t size = some_size(random);
            bool got = what < 5    ? blocks.alloc_aligned(size, size_t{1} << random.below(18))
                       : what < 10 ? blocks.alloc_zeroable(size)
                                   : blocks.alloc(size);
            ASSERT_TRUE(got);
        } else if (what < 85) {
            blocks.free(random.below(blocks.all.size()));
        } else if (what < 99) {
            ASSERT_TRUE(blocks.realloc(random.below(blocks.all.size()), 1 + some_size(random)));
        } else if (random.below(4) == 0) {
            unit_collect();
        }
        if (i % 64 == 0) {
            EXPECT_TRUE(span_check());
            EXPECT_GE(unit_check_slabs(), 0);
            struct unit_figures f;
            unit_census(&f);
            EXPECT_EQ(f.live_bytes, blocks.usable());
            EXPECT_EQ(f.live_blocks, blocks.all.size());
        }
    }
    blocks.free_all();
    EXPECT_GE(unit_check_slabs(), 0);
    expect_nothing_left();
}

TEST(Heap, AgreesWithTheModel) {
    for (uint64_t seed = 1; seed <= 3; seed++)
        EXPECT_FINE(in_child([&] { random_run(seed, unit_rounds(20000)); }));
}

TEST(Heap, AgreesWithTheModelInSmallRegions) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "reserve=4m:dirty_max=256k", 1);
        random_run(5, unit_rounds(10000));
    }));
}

TEST(Heap, AgreesWithTheModelUnderStrictAccounting) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "dirty_max=256k", 1);
        unit_attach();
        region_commit_strict = true;
        random_run(6, unit_rounds(10000));
    }));
}

TEST(Heap, AgreesWithTheModelInFullMode) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_CHECKS", "full", 1);
        random_run(7, unit_rounds(10000));
        EXPECT_EQ(core_options.checks, 1u);
    }));
}

TEST(Heap, AgreesWithTheModelWhenEveryListIsWalked) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "check_first=0:check_every=1", 1);
        random_run(8, unit_rounds(10000));
    }));
}

TEST(Heap, ResizesInPlaceWhereItFits) {
    EXPECT_FINE(in_child([] {
        void* p = unit_alloc(100); // 112 usable
        EXPECT_EQ(unit_realloc(p, 112), p);
        EXPECT_EQ(unit_realloc(p, 56), p);
        void* smaller = unit_realloc(p, 55); // more than half would lie idle
        EXPECT_NE(smaller, p);
        EXPECT_EQ(unit_usable(smaller), 64u);
        unit_free(smaller);
        char* large = static_cast<char*>(unit_alloc_aligned(100000, 4096)); // not in a chunk
        memset(large, 5, 100000);
        EXPECT_EQ(unit_realloc(large, size_t{3} << 20), large); // at the frontier
        EXPECT_EQ(unit_usable(large), size_t{3} << 20);
        EXPECT_TRUE(is_zero(large + (2 << 20), 1 << 20));
        EXPECT_EQ(unit_realloc(large, 1700000), large); // more than half stays
        EXPECT_EQ(unit_usable(large), align_up(1700000, os_page_bytes()));
        EXPECT_EQ(unit_realloc(large, 700000), large); // no chunk has so long a block
        EXPECT_EQ(unit_usable(large), align_up(700000, os_page_bytes()));
        EXPECT_EQ(large[99999], 5);
        EXPECT_TRUE(span_check());
        unit_free(large);
        expect_nothing_left();
    }));
}

TEST(Heap, ResizesByMovingWithContentKept) {
    EXPECT_FINE(in_child([] {
        Blocks blocks;
        const size_t sizes[] = {1,       17,      1000,    1025,    5000,    40000,         65536,
                                65537,   100000,  1 << 20, 3 << 20, 9 << 20, (9 << 20) + 1, (20 << 20) + 1,
                                4 << 20, 1000000, 70000,   65536,   30000,   2000,          500,
                                3};
        for (int chain = 0; chain < 3; chain++) {
            ASSERT_TRUE(blocks.alloc(8));
            size_t mine = blocks.all.size() - 1;
            for (size_t size : sizes) {
                ASSERT_TRUE(blocks.alloc(size)); // stands in the way of growing in place
                ASSERT_TRUE(blocks.realloc(mine, size));
                ASSERT_TRUE(span_check());
            }
        }
        EXPECT_GT(blocks.moved, 30u);
        blocks.free_all();
        EXPECT_EQ(span_totals.moved, 0u);
        expect_nothing_left();
    }));
}

uint64_t usable_of_spans(const Blocks& blocks) {
    uint64_t bytes = 0;
    for (const Block& b : blocks.all)
        if (unit_is_large(unit_slice(b.p))) bytes += b.usable;
    return bytes;
}

TEST(Heap, ReallocIntoTheBlocksOwnNeighbourhoodIsCounted) {
    EXPECT_FINE(in_child([] {
        uint64_t live = span_totals.live;
        Blocks blocks;
        Random random(3);
        for (int i = 0; i < 20; i++) blocks.alloc(100000 + random.below(3000000));
        for (int i = 0; i < 300; i++) {
            ASSERT_TRUE(blocks.realloc(random.below(20), 70000 + random.below(4000000)));
            ASSERT_EQ(unit_large_bytes(), usable_of_spans(blocks));
            ASSERT_TRUE(span_check());
        }
        EXPECT_GT(span_totals.live, live);
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Heap, CountsWhatAModelCounts) {
    EXPECT_FINE(in_child([] {
        Random random(9);
        Blocks blocks;
        std::map<unsigned, uint64_t> per_class;
        struct unit_figures f;
        for (int i = 0; i < 5000; i++) {
            if (blocks.all.size() < 700 || random.below(2) == 0)
                ASSERT_TRUE(blocks.alloc(some_size(random)));
            else
                blocks.free(random.below(blocks.all.size()));
        }
        unit_census(&f);
        uint64_t large = usable_of_spans(blocks);
        for (const Block& b : blocks.all)
            if (!unit_is_large(unit_slice(b.p))) per_class[class_of(b.usable)]++;
        for (unsigned c = 0; c < CLASS_COUNT; c++) EXPECT_EQ(f.class_live[c], per_class[c]) << c;
        EXPECT_EQ(unit_large_bytes(), large);
        EXPECT_EQ(f.live_bytes, blocks.usable());
        EXPECT_EQ(f.live_blocks, blocks.all.size());
        EXPECT_EQ(f.alloc_calls, blocks.made);
        EXPECT_LT(f.remote_frees, blocks.made - blocks.all.size()); // full slabs are nobody's
        EXPECT_GT(f.slow_calls, 0u);
        EXPECT_LT(f.slow_calls, blocks.made);
        EXPECT_GE(f.meta_bytes, size_t{SLICE_BYTES});
        EXPECT_GE(f.committed_bytes, f.live_bytes + f.cached_bytes);
        EXPECT_GE(f.reserved_bytes, f.committed_bytes);
        EXPECT_EQ(static_cast<long>(f.slabs), unit_check_slabs());
        struct unit_heap_figures own;
        unit_census_heap(unit_self(), &own);
        EXPECT_LE(own.live_bytes, f.live_bytes - large); // full slabs belong to nobody
        EXPECT_LE(own.slabs, f.slabs);
        blocks.free_all();
        unit_census(&f);
        EXPECT_EQ(f.live_bytes, 0u);
        EXPECT_EQ(f.alloc_calls, blocks.made);
        expect_nothing_left();
    }));
}

// What is in another thread's bins counts as given out, and what a direct slab was given back may be counted
// twice: as much may be missing again later. A census does not wait for long for a thread that was stopped
// while it ended, which makes it wrong once in a while.
TEST(Heap, NoCountIsLostWhileThreadsEnd) {
    EXPECT_FINE(in_child([] {
        const uint64_t each = 30000;
        std::atomic<bool> done{false};
        unit_attach(); // before others run
        std::thread others([&] {
            for (int i = 0; i < (unit_emulated ? 60 : 300); i++)
                std::thread([&] {
                    for (uint64_t n = 0; n < each; n++) unit_free(unit_alloc(64));
                    unit_detach();
                }).join();
            done = true;
        });
        struct unit_figures f;
        unsigned lost = 0;
        for (uint64_t before = 0; !done; before = f.alloc_calls) {
            unit_census(&f);
            lost += f.alloc_calls + each / 2 < before;
        }
        EXPECT_LE(lost, 2u);
        others.join();
    }));
}

// `most`: of what is built in slabs that are kept.
void keep_only(const char* options, size_t most) {
    EXPECT_FINE(in_child([=] {
        setenv("WEIR_OPTIONS", options, 1);
        unit_attach();
        const size_t medium =
            65536 + size_classes[CLASS_COUNT - 1].bytes; // and a quarter of what is kept itself
        const size_t bound = most + SLAB_MAX + medium * 4 / 3;
        struct unit_figures f;
        for (int round = 0; round < 3; round++) {
            // Classes whose blocks are built one at a time, so that each free is of a slab's last block.
            for (unsigned c = class_of(4096); c < CLASS_COUNT; c++) {
                if (tag_is_on() && c >= SLAB_CLASSES)
                    break; // these are large blocks then, of which one is kept
                unit_free(unit_alloc(size_classes[c].bytes));
                EXPECT_LE(unit_kept_bytes(), bound);
                unit_census(&f);
                EXPECT_EQ(f.live_bytes, 0u);
                EXPECT_LE(f.cached_bytes, bound);
            }
            // All of a slab's first page, of every class.
            for (unsigned c = 0; c < SLAB_CLASSES; c++) {
                std::vector<void*> all;
                do all.push_back(unit_alloc(size_classes[c].bytes));
                while (unit_slice(all[0])->built > all.size());
                for (void* p : all) unit_free(p);
                EXPECT_LE(unit_kept_bytes(), bound);
                unit_census(&f);
                EXPECT_EQ(f.live_bytes, 0u);
                EXPECT_LE(f.cached_bytes, bound) << size_classes[c].bytes;
            }
        }
        EXPECT_GE(unit_check_slabs(), 0);
        unit_collect();
        EXPECT_EQ(unit_kept_bytes(), 0u);
        expect_nothing_left();
    }));
}

TEST(Heap, KeepsOnlySoMuchForNothing) {
    keep_only("thread_kept_max=64k", unit_kept_bytes_max());
    keep_only("", unit_kept_bytes_wide()); // its slabs are closed and opened often enough
}

TEST(Heap, ALoneBlockThatComesAndGoesMakesNoSystemCall) {
    EXPECT_FINE(in_child([] {
        for (size_t size : {16u, 512u, 1024u, 5000u, 60000u}) {
            unit_free(unit_alloc(size));
            uint64_t calls = 0;
            for (int kind = 0; kind < OS_CALL_COUNT; kind++) calls += os_call_counts[kind];
            for (int i = 0; i < 1000; i++) unit_free(unit_alloc(size));
            for (int kind = 0; kind < OS_CALL_COUNT; kind++) calls -= os_call_counts[kind];
            EXPECT_EQ(calls, 0u) << size;
        }
    }));
}

TEST(Heap, ALoneBlocksListGrowsAsLongAsThatIsKept) {
    EXPECT_FINE(in_child([] {
        for (size_t size : {256u, 512u, 1024u}) {
            size_t before = unit_kept_bytes();
            void* p = unit_alloc(size);
            struct slice* s = unit_slice(p);
            unit_free(p);
            for (int i = 0; i < 1000; i++) unit_free(unit_alloc(size));
            EXPECT_GE(s->built, 16u) << size;
            EXPECT_LE(s->built, 20u) << size;
            EXPECT_EQ(unit_kept_bytes() - before, s->built * size) << size;
        }
        const size_t bound = unit_kept_bytes_max() + os_page_bytes();
        for (size_t size = 16; size <= SMALL_MAX; size += 16) {
            for (int i = 0; i < 1000; i++) unit_free(unit_alloc(size));
            EXPECT_LE(unit_kept_bytes(), bound) << size;
        }
        EXPECT_GE(unit_check_slabs(), 0);
        unit_collect();
        EXPECT_EQ(unit_kept_bytes(), 0u);
        expect_nothing_left();
    }));
}

TEST(Heap, EmptiedSlabsGoBackAndFullestIsUsedFirst) {
    EXPECT_FINE(in_child([] {
        std::vector<void*> all;
        unit_attach(); // with tags, capacities are less
        const unsigned capacity = size_classes[class_of(256)].capacity;
        for (unsigned i = 0; i < capacity * 10; i++) all.push_back(unit_alloc(256));
        uint64_t full = span_totals.live;
        // One block stays in each of the first five slabs, all but a few in the others.
        std::vector<void*> sparse, dense;
        for (unsigned i = 0; i < all.size(); i++) {
            unsigned slab = i / capacity;
            if (i % capacity == 0)
                (slab < 5 ? sparse : dense).push_back(all[i]);
            else if (slab < 5 || i % capacity <= class_enough(&size_classes[class_of(256)]))
                unit_free(all[i]);
            else
                dense.push_back(all[i]);
        }
        EXPECT_EQ(unit_check_slabs(), 10);
        // New blocks come from the dense slabs while these have any.
        std::set<struct slice*> sparse_slabs;
        for (void* p : sparse) sparse_slabs.insert(unit_slice(p));
        std::vector<void*> fresh;
        unsigned from_sparse = 0;
        for (int i = 0; i < 4; i++) {
            fresh.push_back(unit_alloc(256));
            from_sparse += sparse_slabs.count(unit_slice(fresh.back()));
        }
        EXPECT_EQ(from_sparse, 0u);
        for (void* p : fresh) unit_free(p);
        for (void* p : sparse) unit_free(p);
        unit_collect(); // the thread keeps some spans, without their memory
        EXPECT_LE(span_totals.live, full - 4 * SLICE_BYTES);
        for (void* p : dense) unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Heap, ZeroableBlocksAreZeroWhenTheySaySo) {
    EXPECT_FINE(in_child([] {
        Blocks blocks;
        for (int i = 0; i < 60; i++) ASSERT_TRUE(blocks.alloc_zeroable(70000 * (1 + i % 7)));
        blocks.free_all();
        bool any = false;
        for (int i = 0; i < 60; i++) {
            bool zeroed;
            char* p = static_cast<char*>(unit_alloc_zeroable(1 << 20, &zeroed));
            EXPECT_TRUE(!zeroed || is_zero(p, 1 << 20));
            any |= zeroed;
            memset(p, 1, 1 << 20);
            if (i % 2 == 0) unit_free(p);
            if (i % 10 == 0) span_purge(UINT64_MAX);
        }
        EXPECT_TRUE(any);
        bool zeroed = true;
        unit_alloc_zeroable(100, &zeroed);
        EXPECT_FALSE(zeroed);
    }));
}

unsigned attached, attached_first, ticked;

TEST(Heap, CallsItsHooks) {
    EXPECT_FINE(in_child([] {
        unit_set_hooks(
            [](bool first) {
                attached++;
                attached_first += first ? 1 : 0;
            },
            [] { ticked++; });
        EXPECT_EQ(unit_self(), nullptr);
        unit_alloc(1);
        EXPECT_NE(unit_self(), nullptr);
        EXPECT_EQ(attached, 1u);
        EXPECT_EQ(ticked, 1u);
        for (int i = 0; i < 10000; i++) unit_alloc(100);
        EXPECT_EQ(attached, 1u);
        struct unit_figures f;
        unit_census(&f);
        EXPECT_EQ(ticked, f.slow_calls);
        EXPECT_EQ(attached_first, 1u);
        std::thread([] {
            unit_alloc(1);
            unit_detach();
        }).join();
        EXPECT_EQ(attached, 2u);
        EXPECT_EQ(attached_first, 1u); // the process's first thread alone
    }));
}

TEST(Heap, IsGivenUpAndTakenAgain) {
    EXPECT_FINE(in_child([] {
        unit_detach(); // without a heap: nothing
        void* p = unit_alloc(100);
        struct heap* first = unit_self();
        unit_detach();
        EXPECT_EQ(unit_self(), nullptr);
        unit_detach();
        unit_collect();
        EXPECT_EQ(unit_heaps_live(), 0u);
        unit_free(p);
        unit_free(unit_alloc(100)); // attaches again
        EXPECT_EQ(unit_self(), first);
        EXPECT_EQ(unit_heaps_made(), 1u);
        expect_nothing_left();
    }));
}

// Eight blocks of 512 bytes are built at a time: the ninth allocation turns the freed list over.
struct Turn {
    std::vector<void*> blocks;
    Turn() {
        for (int i = 0; i < 8; i++) blocks.push_back(unit_alloc(512));
    }
    void free_twice() {
        unit_free(blocks[0]);
        unit_free(blocks[1]);
        unit_free(blocks[0]);
        unit_alloc(512);
    }
};

constexpr char twice_freed[] = "weir: double-free: already freed 0x";

TEST(Heap, EarlyListsAreWalked) {
    Ended ended = in_child([] { Turn().free_twice(); });
    EXPECT_TRUE(ended.aborted());
    EXPECT_EQ(ended.printed.substr(0, sizeof twice_freed - 1), twice_freed);
    EXPECT_NE(ended.printed.find(" in malloc; see docs/errors/double-free.md\n"), std::string::npos);
}

// The first free is on the list of its page already when the second is sorted; others keep the page.
TEST(Heap, WhatIsSortedAndFreedAgainIsFound) {
    enum { count = 200, first_look = 8 };
    for (unsigned between : {0u, 3u, first_look - 1u}) {
        Ended ended = in_child([&] {
            std::vector<void*> blocks;
            for (int i = 0; i < count; i++) blocks.push_back(unit_alloc(64));
            unit_free(blocks[100]);
            for (unsigned i = 0; i < between; i++) unit_free(blocks[101 + i]);
            unit_detach();
            unit_free(blocks[100]);
            for (int i = 128; i < 192; i++) unit_free(blocks[i]); // so many that a page may be free
            unit_visit(true);
        });
        EXPECT_TRUE(ended.aborted()) << between;
        EXPECT_EQ(ended.printed.substr(0, sizeof twice_freed - 1), twice_freed) << between;
    }
}

TEST(Heap, AfterCheckFirstOneInCheckEveryIsWalked) {
    for (unsigned every : {1u, 2u, 3u})
        for (unsigned turns = 0; turns < 6; turns++) {
            Ended ended = in_child([&] {
                std::string options =
                    "reuse=late:on_error=report:check_first=1:check_every=" + std::to_string(every);
                setenv("WEIR_OPTIONS", options.c_str(), 1);
                Turn turn;
                for (unsigned i = 0; i < turns; i++) { // each a turn-over of one block
                    unit_free(turn.blocks[7]);
                    turn.blocks[7] = unit_alloc(512);
                }
                turn.free_twice();
            });
            EXPECT_TRUE(ended.fine()) << ended.printed;
            bool walked = turns < 1 || turns % every == 0;
            EXPECT_EQ(ended.printed != "", walked) << every << " " << turns;
        }
}

// check_first is the first heap's: each that comes later has half of it, and a 16th at least.
TEST(Heap, OfHeapsThatComeLaterFewerListsAreWalked) {
    EXPECT_FINE(in_child([] {
        enum { first = 32, turns = 7 };
        setenv("WEIR_OPTIONS",
               ("reuse=late:check_first=" + std::to_string(first) + ":check_every=1000000").c_str(), 1);
        unit_attach(); // the first heap
        std::vector<std::unique_ptr<Worker>> workers;
        for (unsigned i = 0; i < 10; i++) {
            workers.push_back(std::make_unique<Worker>());
            workers.back()->does([&] {
                Turn turn;
                for (unsigned j = 0; j < turns; j++) { // each a turn-over of one block
                    unit_free(turn.blocks[7]);
                    turn.blocks[7] = unit_alloc(512);
                }
                const unsigned walked = std::max(first >> (i + 1), first / 16);
                EXPECT_EQ(unit_turns_unchecked(), turns - std::min<unsigned>(turns, walked)) << i;
                for (void* p : turn.blocks) unit_free(p);
            });
        }
    }));
}

// In a heap of 16 MiB half as many, of 32 a quarter, of 64 and more an eighth; all where all are to be.
TEST(Heap, OfALargerHeapFewerListsAreWalked) {
    for (unsigned every : {1u, 4u})
        EXPECT_FINE(in_child([=] {
            std::string options = "reuse=late:release=off:check_first=0:check_every=" + std::to_string(every);
            setenv("WEIR_OPTIONS", options.c_str(), 1);
            std::vector<void*> all;
            const auto most_unwalked = [] { // over so many slow calls that the heap's size is looked at
                uint32_t most = 0;
                for (unsigned i = 0; i < 500; i++) {
                    void* filler[200]; // of several slabs, so that lists turn over
                    for (void*& p : filler) {
                        p = unit_alloc(1024);
                        most = std::max(most, unit_turns_unchecked());
                    }
                    for (void* p : filler) unit_free(p);
                }
                return most;
            };
            for (auto [mib, halvings] :
                 {std::pair<size_t, unsigned>{4, 0}, {12, 0}, {20, 1}, {40, 2}, {70, 3}, {150, 3}}) {
                while (all.size() < mib << 10) all.push_back(unit_alloc(1024));
                for (size_t i = 0; i < all.size(); i += 2) { // some of each slab, so that it is the heap's
                    unit_free(all[i]);
                    all[i] = nullptr;
                }
                const unsigned one_in = every == 1 ? 1 : every << halvings;
                const unsigned walked = most_unwalked() + 1;
                EXPECT_LE(walked, one_in) << mib;
                EXPECT_GT(walked, one_in / 2) << mib; // a slab that is drained counts too
                for (void*& p : all)
                    if (p == nullptr) p = unit_alloc(1024);
            }
            for (void* p : all) unit_free(p);
            all.clear();
            unit_collect();
            (void)most_unwalked();
            EXPECT_LE(most_unwalked() + 1, every); // it is known to be small again
        }));
}

TEST(Heap, AWriteThroughADanglingPointerNeverSteersAllocation) {
    // The link is overwritten, with an address elsewhere, a misaligned one in the slab, or nonsense.
    static char elsewhere[64];
    for (int kind = 0; kind < 3; kind++) {
        Ended ended = in_child([&] {
            setenv("WEIR_OPTIONS", "on_error=report:check_first=0:check_every=1000000", 1);
            std::vector<char*> all;
            for (int i = 0; i < 8; i++) all.push_back(static_cast<char*>(unit_alloc(512)));
            unit_free(all[2]);
            unit_free(all[1]);
            void* wrong = kind == 0   ? elsewhere
                          : kind == 1 ? nullptr
                                      : reinterpret_cast<void*>(0x4141414141414140);
            if (kind == 1) {
                memset(all[1], 0, 8); // the first word steers nothing
            } else {
                memcpy(all[1] + 8, &wrong, sizeof wrong);
            }
            for (int i = 0; i < 20; i++) {
                char* p = static_cast<char*>(unit_alloc(512));
                ASSERT_NE(p, elsewhere);
                ASSERT_NE(slice_find(p), nullptr);
                memset(p, 1, 512);
            }
            EXPECT_EQ(core_report_count != 0, kind != 1);
        });
        EXPECT_TRUE(ended.fine());
        EXPECT_EQ(ended.printed.find("weir: corrupt-list: a freed block was written to 0x") == 0, kind != 1)
            << ended.printed;
    }
}

struct Misuse {
    const char* name;
    void (*act)();
    const char* starts;
    const char* ends;
};

void act_foreign() {
    static char local[64];
    unit_alloc(1);
    unit_free(local + 16);
}
void act_interior() {
    char* p = static_cast<char*>(unit_alloc(40000));
    unit_free(p + 16);
}
void act_interior_large() {
    char* p = static_cast<char*>(unit_alloc(600000));
    unit_free(p + SLICE_BYTES * 2);
}
void act_interior_small_list() {
    char* p[4];
    for (char*& q : p) q = static_cast<char*>(unit_alloc(1024));
    unit_free(p[0] + 16);
    unit_alloc(1024); // the list turns over
}
void act_large_twice() {
    void* p = unit_alloc(600000);
    unit_free(p);
    unit_free(p);
}
void act_unkept_twice() {
    void* p = unit_alloc(4 << 20); // a large block that no thread keeps
    unit_free(p);
    unit_free(p);
}
void act_slab_gone() {
    void* p = unit_alloc(400);
    unit_free(p);
    unit_collect();
    unit_free(p);
}
void act_usable_freed_large() {
    void* p = unit_alloc(600000);
    unit_free(p);
    unit_usable(p);
}
void act_realloc_foreign() {
    static char local[64];
    unit_alloc(1);
    unit_realloc(local, 100);
}
void act_realloc_interior() {
    char* p = static_cast<char*>(unit_alloc(5000));
    unit_realloc(p + 16, 100);
}

TEST(Heap, ReportsMisuse) {
    static const Misuse all[] = {
        {"foreign", act_foreign, "weir: invalid-free: not a block of this heap 0x",
         " in free; see docs/errors/invalid-free.md\n"},
        {"interior", act_interior, "weir: invalid-free: not the start of a block 0x",
         " in free; see docs/errors/invalid-free.md\n"},
        {"interior large", act_interior_large, "weir: invalid-free: not the start of a block 0x",
         " in free; see docs/errors/invalid-free.md\n"},
        {"interior small", act_interior_small_list, "weir: invalid-free: not the start of a block 0x",
         " in malloc; see docs/errors/invalid-free.md\n"},
        {"unkept twice", act_unkept_twice, "weir: double-free: already freed 0x",
         " in free; see docs/errors/double-free.md\n"},
        {"large twice", act_large_twice, "weir: double-free: already freed 0x",
         " in free; see docs/errors/double-free.md\n"},
        {"slab gone", act_slab_gone, "weir: double-free: already freed 0x",
         " in free; see docs/errors/double-free.md\n"},
        {"usable of freed", act_usable_freed_large, "weir: double-free: already freed 0x",
         " in malloc_usable_size; see docs/errors/double-free.md\n"},
        {"realloc foreign", act_realloc_foreign, "weir: invalid-free: not a block of this heap 0x",
         " in realloc; see docs/errors/invalid-free.md\n"},
        {"realloc interior", act_realloc_interior, "weir: invalid-free: not the start of a block 0x",
         " in realloc; see docs/errors/invalid-free.md\n"},
    };
    for (const Misuse& m : all) {
        Ended ended = in_child(m.act);
        EXPECT_TRUE(ended.aborted()) << m.name;
        EXPECT_EQ(ended.printed.substr(0, strlen(m.starts)), m.starts) << m.name;
        size_t tail = ended.printed.find(" in ");
        ASSERT_NE(tail, std::string::npos) << m.name;
        EXPECT_EQ(ended.printed.substr(tail), m.ends) << m.name;
        Ended carried_on = in_child([&] {
            setenv("WEIR_ON_ERROR", "report", 1);
            m.act();
            EXPECT_EQ(core_report_count, 1u);
            EXPECT_TRUE(span_check());
            Blocks blocks;
            for (size_t size = 1; size < 100000; size += 331) ASSERT_TRUE(blocks.alloc(size));
            blocks.free_all();
            EXPECT_EQ(core_report_count, 1u);
        });
        EXPECT_TRUE(carried_on.fine()) << m.name << carried_on.printed;
    }
}

uint64_t calls_to_kernel() {
    uint64_t sum = 0;
    for (const uint64_t& count : os_call_counts) sum += load_relaxed(&count);
    return sum;
}

// There are addresses enough: another place would not get any either, and to look for one takes long.
// Absent: sanitizers' shadow is larger than any limit, and emulators keep none
TEST_NATIVE(Heap, MemoryThatIsRefusedIsNotSoughtElsewhere) {
    EXPECT_FINE(in_child([] {
        const size_t more = 16 << 20, size = 100000;
        unit_attach();
        unit_free(unit_alloc(size));
        unsigned long data = 0;
        FILE* file = fopen("/proc/self/statm", "r");
        ASSERT_EQ(fscanf(file, "%*u %*u %*u %*u %*u %lu", &data), 1);
        fclose(file);
        struct rlimit limit = {data * os_page_bytes() + more, RLIM_INFINITY};
        ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
        size_t held = 0;
        while (unit_alloc(size) != nullptr) held++;
        EXPECT_GE(held, more / 2 / size);
        const unsigned times = 100;
        const uint64_t before = calls_to_kernel();
        for (unsigned i = 0; i < times; i++) EXPECT_EQ(unit_alloc(size), nullptr);
        EXPECT_LE((calls_to_kernel() - before) / times, 12u);
        EXPECT_EQ(region_count, 1u);
    }));
}

} // namespace
