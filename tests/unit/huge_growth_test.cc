// huge_growth_test.cc: a dense heap that grows is huge from the first touch (page/huge.h): where it is, where
// it is not, that what is resident is known, and that what goes comes back by small pages. Called by ctest;
// each test starts the heap in a child of its own, whose windows do not end by themselves.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include "huge_pages.h"
extern "C" {
#include "page/huge.h"
}

namespace {

constexpr size_t block_bytes = 1024;

// How long the machine takes for a huge page is not asked: the outcome does not depend on it.
void start(const char* options = "") {
    huge_slow_ns = UINT64_MAX;
    windows_are_endless(options);
    unit_attach();
}

// A heap of blocks, all written to.
class Grown {
  public:
    explicit Grown(size_t mib, const char* options = "") {
        start(options);
        grow(mib);
    }
    void grow(size_t mib) {
        for (size_t i = 0; i < mib * MIB / block_bytes; i++) {
            void* p = unit_alloc(block_bytes);
            if (p == nullptr) return;
            memset(p, 1, block_bytes);
            blocks.push_back(p);
        }
    }
    // Frees all blocks on every second page of what was allocated last.
    void thin(size_t mib) {
        std::vector<void*> stay(blocks.begin(), blocks.end() - static_cast<long>(mib * MIB / block_bytes));
        for (size_t i = stay.size(); i < blocks.size(); i++) {
            if (page_of(blocks[i]) % 2 == 0)
                unit_free(blocks[i]);
            else
                stay.push_back(blocks[i]);
        }
        blocks = stay;
        unit_collect();
    }
    std::vector<void*> blocks;
};

std::vector<unsigned char> resident_in(uintptr_t from, uintptr_t to) {
    std::vector<unsigned char> there((to - from) >> page_shift);
    if (!there.empty()) {
        EXPECT_TRUE(os_resident_pages(reinterpret_cast<void*>(from), to - from, there.data()));
    }
    return there;
}
size_t resident_pages(uintptr_t from, uintptr_t to) {
    std::vector<unsigned char> there = resident_in(from, to);
    return static_cast<size_t>(
        std::count_if(there.begin(), there.end(), [](unsigned char c) { return c & 1; }));
}
uintptr_t slice_start(uint32_t index) { return regions[0].base + (uintptr_t{index} << SLICE_SHIFT); }
uintptr_t heap_start() { return slice_start(regions[0].first); }
uintptr_t heap_end() { return slice_start(regions[0].frontier); }

void seal() {
    os_lock_take(&page_lock);
    huge_seal();
    os_lock_give(&page_lock);
}

// Pages that are resident though they are clean holes, or those of clean spans, which nobody would give back.
size_t resident_unknown() {
    std::vector<unsigned char> there = resident_in(heap_start(), heap_end());
    size_t unknown = 0;
    for (uint32_t i = regions[0].first; i < regions[0].frontier; i++) {
        const struct slice* s = region_slices(&regions[0]) + i;
        if (s->kind == SLICE_FREE && s->state == SPAN_CLEAN)
            unknown += resident_pages(slice_start(i), slice_start(i + s->span_slices));
        if (!slice_kind_is_paged(s->kind) && !slice_kind_is_rest(s->kind)) continue;
        uint64_t state = slice_pages(s)->state;
        for (uint32_t page = 0; page < slice_page_count(); page++)
            if ((hole_of(state) & hole_clean(state)) >> page & 1)
                unknown += there[(i - regions[0].first) * slice_page_count() + page] & 1;
    }
    return unknown;
}

// What holds on every kernel: nothing is opened where there are no huge pages.
void expect_none_without() {
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        EXPECT_EQ(huge_totals.opened, 0u);
    }));
}

TEST_NATIVE(HugeGrowth, ADenseHeapGrowsByHugePages) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(7);
        EXPECT_EQ(huge_totals.opened, 0u); // a small heap does not
        heap.grow(33);
        EXPECT_GE(huge_totals.opened, 12u);
        EXPECT_GE(huge_ahead.end, regions[0].frontier);
        EXPECT_LT(huge_ahead.end, regions[0].frontier + 32);
        const void* last = heap.blocks.back();
        EXPECT_TRUE(has_flag(last, " hg"));
        // One mapping again: the kernel's own thread fills nothing.
        seal();
        EXPECT_FALSE(has_flag(last, " hg"));
        EXPECT_TRUE(has_flag(last, " nh"));
        for (void* p : heap.blocks) EXPECT_EQ(*static_cast<char*>(p), 1);
        EXPECT_TRUE(span_check());
    }));
}

// So many bytes of written blocks; the heap has grown past them by less than one.
void fill(size_t bytes, size_t block) {
    for (size_t at = 0; at < bytes; at += block) memset(unit_alloc(block), 1, block);
}

// What is in use has been looked at by then.
TEST_NATIVE(HugeGrowth, FromEightMiBOn) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        start();
        fill(7 * MIB + 512 * KIB, 640 * KIB);
        EXPECT_LT(span_totals.live, HUGE_GROWTH_MIN);
        EXPECT_EQ(huge_totals.opened, 0u);
        fill(4 * MIB, 4 * MIB); // no more than large blocks have shown
        EXPECT_GE(huge_totals.opened, 1u);
    }));
    EXPECT_FINE(in_child([] {
        start();
        std::vector<void*> gone;
        for (int i = 0; i < 6; i++) {
            gone.push_back(unit_alloc(576 * KIB));
            fill(640 * KIB, 640 * KIB);
        }
        for (void* p : gone) unit_free(p);
        // None fits where they were: the heap's end is well behind what is in use.
        while (span_totals.live + 704 * KIB < HUGE_GROWTH_MIN) fill(640 * KIB, 640 * KIB);
        EXPECT_GT(regions[0].frontier - regions[0].first, 10 * MIB / SLICE_BYTES);
        EXPECT_EQ(huge_totals.opened, 0u);
        fill(5 * MIB, 640 * KIB);
        EXPECT_GE(huge_totals.opened, 1u);
    }));
}

TEST_NATIVE(HugeGrowth, NotWhereItIsNotAskedFor) {
    for (const char* option : {":hugepages=never", ":hugepages=always", ":release=off"}) {
        EXPECT_FINE(in_child([&] {
            Grown heap(24, option);
            EXPECT_EQ(huge_totals.opened, 0u) << option;
        }));
    }
}

TEST_NATIVE(HugeGrowth, NotWhereBlocksAreHardlyTouched) {
    EXPECT_FINE(in_child([] { // one page of 64 each
        start();
        for (int i = 0; i < 128; i++) *static_cast<char*>(unit_alloc(256 * KIB)) = 1;
        EXPECT_EQ(huge_totals.opened, 0u);
    }));
    EXPECT_FINE(in_child([] { // the last slice of each is a hole but for a page
        start();
        for (int i = 0; i < 200; i++)
            memset(unit_alloc_aligned(68 * KIB, 4096), 1, 68 * KIB); // not in a chunk
        EXPECT_EQ(huge_totals.opened, 0u);
    }));
}

// However many slices a sample stands for, blocks as long as that are not seen at their starts alone.
TEST_NATIVE(HugeGrowth, NotWhereBlocksAreTouchedAtTheirStarts) {
    for (unsigned slices : {2u, 3u, 4u, 5u, 6u, 8u})
        EXPECT_FINE(in_child([=] {
            start();
            for (unsigned i = 0; i < 4000 / slices; i++)
                memset(unit_alloc_aligned(slices * SLICE_BYTES, 4096), 1, SLICE_BYTES);
            EXPECT_EQ(huge_totals.opened, 0u) << slices;
        }));
}

// Huge extents tell by what is in them: nothing is left to small pages but what came before the first.
TEST_NATIVE(HugeGrowth, AllTheWayWhereLargeBlocksAreWritten) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    for (size_t bytes : {16 * KIB, 256 * KIB, MIB}) {
        EXPECT_FINE(in_child([&] {
            start();
            for (size_t i = 0; i < 64 * MIB / bytes; i++) {
                auto* p = static_cast<char*>(unit_alloc(bytes));
                for (size_t at = 0; at < bytes; at += 4096) p[at + i % 4096] = 1; // a byte anywhere
            }
            EXPECT_GE(huge_totals.opened, 26u) << bytes; // of 28 behind the first 8 MiB
        }));
    }
}

// Zeros are what nobody knows of, and memory that the program keeps from itself.
TEST_NATIVE(HugeGrowth, NoLongerWhereNothingIsToBeRead) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    for (int keeps : {PROT_READ | PROT_WRITE, PROT_NONE}) {
        EXPECT_FINE(in_child([&] {
            Grown heap(24);
            uint64_t before = huge_totals.opened;
            for (int i = 0; i < 128; i++) {
                void* p = unit_alloc_aligned(256 * KIB, 4096);
                memset(p, keeps == PROT_NONE, 256 * KIB);
                ASSERT_EQ(mprotect(p, 256 * KIB, keeps), 0);
            }
            EXPECT_LE(huge_totals.opened, before + 9); // each is behind two small ones
        }));
    }
}

// The pages behind them are never written to.
TEST_NATIVE(HugeGrowth, NoLongerWhereBlocksFillTheirSlicesBadly) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        uint64_t before = huge_totals.opened;
        for (int i = 0; i < 200; i++) memset(unit_alloc_aligned(68 * KIB, 4096), 1, 68 * KIB);
        EXPECT_LE(huge_totals.opened, before + 4);
    }));
}

// What is in the pages of huge extents tells.
TEST_NATIVE(HugeGrowth, NoLongerWhereBlocksAreHardlyTouched) {
    for (size_t bytes : {16 * KIB, 256 * KIB, 2 * MIB}) {
        EXPECT_FINE(in_child([&] {
            Grown heap(24);
            size_t touched = 64 * MIB / bytes;
            size_t before = resident_pages(heap_start(), heap_end());
            for (size_t i = 0; i < touched; i++) *static_cast<char*>(unit_alloc(bytes)) = 1;
            size_t after = resident_pages(heap_start(), heap_end());
            EXPECT_LE(after, before + touched + ((4 * MIB + 88 * MIB / 32) >> page_shift)) << bytes;
        }));
    }
}

// What is lost where blocks to come are unlike those that were looked at is bounded.
TEST_NATIVE(HugeGrowth, NotForLongWhereWhatComesIsUnlikeWhatWas) {
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        size_t before = resident_pages(heap_start(), heap_end());
        for (int i = 0; i < 12; i++) {
            heap.grow(10);
            auto* p = static_cast<char*>(unit_alloc(3 * MIB));
            for (size_t at = 0; at < 3; at++) p[at * MIB] = 1;
        }
        size_t after = resident_pages(heap_start(), heap_end());
        EXPECT_LE(after,
                  before + (130 * MIB >> page_shift)); // 120, and two extents and a 32th of what is in use
    }));
}

// What was just given out may not be written to yet: it is counted at a later look.
TEST_NATIVE(HugeGrowth, WhatIsWrittenALittleLaterIsNotLost) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        constexpr size_t heap_bytes = 96 * MIB, bytes = 8 * KIB, behind = 256 * KIB / bytes;
        start();
        std::vector<void*> blocks;
        for (size_t i = 0; i < heap_bytes / bytes + behind; i++) {
            if (i >= behind) memset(blocks[i - behind], 1, bytes);
            blocks.push_back(unit_alloc(bytes));
        }
        EXPECT_GE(huge_totals.opened, (heap_bytes - HUGE_GROWTH_MIN) / (2 * MIB) - 3);
    }));
}

// But it counts until then, since in a small heap that is much. Where the heap stands when such blocks come
// decides how much is lost: the mean of many.
TEST_NATIVE(HugeGrowth, WhatIsNotWrittenYetCountsInASmallHeap) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    constexpr size_t heaps = 40;
    auto* extra =
        static_cast<size_t*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (size_t i = 0; i < heaps; i++) {
        EXPECT_FINE(in_child([&] {
            Grown heap(9);
            for (size_t kib = 0; kib < i * 128; kib++) memset(unit_alloc(block_bytes), 1, block_bytes);
            size_t before = resident_pages(heap_start(), heap_end());
            for (int block = 0; block < 6; block++) *static_cast<char*>(unit_alloc(640 * KIB)) = 1;
            *extra += resident_pages(heap_start(), heap_end()) - before;
        }));
    }
    EXPECT_LE(*extra / heaps, 9 * MIB / 4 >> page_shift);
}

// Calls of the kernel that a look makes now. One that blocks holds nothing up: the program may have put a
// mapping of its own there.
unsigned calls_of_a_look() {
    static unsigned calls, held;
    calls = held = 0;
    os_fault_hook = [](enum os_call call) {
        calls += call == OS_OTHER;
        held += call == OS_OTHER && os_lock_is_mine(&page_lock);
        return false;
    };
    store_relaxed(&huge_learn_due, true);
    huge_learn();
    os_fault_hook = nullptr;
    EXPECT_EQ(held, 0u);
    EXPECT_FALSE(load_relaxed(&huge_learn_due));
    return calls;
}

// Some pages are copied by each call, and what was found written to is not looked at again.
TEST_NATIVE(HugeGrowth, LooksWithoutALock) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        for (int i = 0; i < 64; i++) memset(unit_alloc(256 * KIB), 1, 256 * KIB);
        calls_of_a_look();
        EXPECT_LE(calls_of_a_look(), 1u);
        os_lock_take(&page_lock);
        huge_forget_ahead(); // and what was found
        os_lock_give(&page_lock);
        unsigned all = calls_of_a_look();
        EXPECT_GE(all, 64u / 8); // what is in 64 slices, not only which pages there are
        EXPECT_LE(all, 16u);
    }));
}

// What was found of slices behind says nothing of those that come.
TEST_NATIVE(HugeGrowth, NoLongerWhereBlocksAreHardlyTouchedBehindWrittenOnes) {
    EXPECT_FINE(in_child([] {
        start();
        for (int i = 0; i < 160; i++) memset(unit_alloc(256 * KIB), 1, 256 * KIB);
        size_t before = resident_pages(heap_start(), heap_end());
        for (int i = 0; i < 256; i++) *static_cast<char*>(unit_alloc(256 * KIB)) = 1;
        size_t after = resident_pages(heap_start(), heap_end());
        EXPECT_LE(after, before + 256 + ((4 * MIB + 104 * MIB / 32) >> page_shift));
    }));
}

// Blocks of 256 KiB, all of them written to.
std::vector<char*> blocks_written(int count) {
    std::vector<char*> blocks;
    for (int i = 0; i < count; i++) {
        blocks.push_back(static_cast<char*>(unit_alloc(256 * KIB)));
        memset(blocks.back(), 1, 256 * KIB);
    }
    return blocks;
}

// What was not is asked for again: it may be written to by then, and is lost until it is.
TEST_NATIVE(HugeGrowth, LooksAgainAtWhatWasNotWritten) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        start();
        blocks_written(160);
        std::vector<void*> blocks;
        for (int i = 0; i < 12; i++) blocks.push_back(unit_alloc(256 * KIB)); // in what is open
        calls_of_a_look();
        unsigned asked = calls_of_a_look();
        EXPECT_GE(asked, 3u);
        EXPECT_EQ(calls_of_a_look(), asked);
        for (void* p : blocks) memset(p, 1, 256 * KIB);
        calls_of_a_look();
        EXPECT_LE(calls_of_a_look(), asked - 2);
    }));
}

// Nor is anything known of what went back to the kernel meanwhile.
TEST_NATIVE(HugeGrowth, LooksAgainAtWhatWent) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        start();
        std::vector<char*> blocks = blocks_written(160);
        calls_of_a_look();
        EXPECT_LE(calls_of_a_look(), 1u);
        for (size_t i = blocks.size() - 14; i < blocks.size() - 4; i += 2) {
            unit_free(blocks[i]);
        }
        unit_collect();
        ASSERT_TRUE(release_all());
        for (int i = 0; i < 5; i++) unit_alloc(256 * KIB); // in the same places
        EXPECT_GE(calls_of_a_look(), 2u);
    }));
}

// What of the pages that a call is to copy cannot be read says nothing of the others: it alone is asked for
// again, each page by itself.
TEST_NATIVE(HugeGrowth, WhatIsNotToBeReadIsAskedForAlone) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        start();
        std::vector<char*> blocks = blocks_written(160);
        calls_of_a_look();
        unsigned others = calls_of_a_look();
        for (size_t i = blocks.size() - 16; i < blocks.size() - 4; i++) { // one slice in four
            uintptr_t slice = align_up(reinterpret_cast<uintptr_t>(blocks[i]), SLICE_BYTES);
            ASSERT_EQ(mprotect(reinterpret_cast<void*>(slice), SLICE_BYTES, PROT_NONE), 0);
        }
        os_lock_take(&page_lock);
        huge_forget_ahead(); // and what was found
        os_lock_give(&page_lock);
        unsigned all = calls_of_a_look();
        EXPECT_GE(all, 64u / 8 + 6);
        unsigned again = calls_of_a_look();
        EXPECT_GE(again, 10u + others);
        EXPECT_LE(again, 13u + others);
        EXPECT_EQ(calls_of_a_look(), again);
    }));
}

// Small blocks tell nothing of the large ones between them.
TEST_NATIVE(HugeGrowth, NoLongerWhereSomeBlocksAreHardlyTouched) {
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        size_t before = resident_pages(heap_start(), heap_end());
        for (int i = 0; i < 24; i++) {
            *static_cast<char*>(unit_alloc(MIB)) = 1;
            heap.grow(2);
        }
        size_t after = resident_pages(heap_start(), heap_end());
        EXPECT_LE(after, before + (54 * MIB >> page_shift));
    }));
}

// A block that is large beside the heap may never be used as a whole. Its first extent may be open.
TEST_NATIVE(HugeGrowth, NoneUnderABlockThatIsLargeBesideTheHeap) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    struct {
        size_t heap_mib, block_mib;
    } cases[] = {{20, 40}, {80, 10}};
    for (auto [heap_mib, block_mib] : cases) {
        EXPECT_FINE(in_child([&, heap_mib = heap_mib, block_mib = block_mib] {
            Grown heap(heap_mib);
            auto* p = static_cast<char*>(unit_alloc(block_mib * MIB));
            auto start = reinterpret_cast<uintptr_t>(p);
            for (size_t at = 4; at < block_mib; at++) p[at * MIB] = 1;
            EXPECT_EQ(resident_pages(start + 4 * MIB, start + block_mib * MIB), block_mib - 4);
        }));
    }
}

// A block of so many MiB, of which the first byte of each page is written, or of each `step` bytes.
char* written_block(size_t mib, size_t step = 4096) {
    auto* p = static_cast<char*>(unit_alloc(mib * MIB));
    for (size_t at = 0; p != nullptr && at < mib * MIB; at += step) p[at] = 1;
    return p;
}

// Large blocks that are written to show what is to be thought of the next ones.
TEST_NATIVE(HugeGrowth, UnderBlocksAsLargeAsOnesThatWereWritten) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        start();
        written_block(9);
        EXPECT_EQ(huge_totals.opened, 0u); // nothing is known
        written_block(9);
        EXPECT_GE(huge_totals.opened, 4u); // 4 whole ones are in it
        uint64_t before = huge_totals.opened;
        written_block(17);
        EXPECT_GE(huge_totals.opened, before + 8);
    }));
}

// What is lost if a block is not like them is bounded: by what they were, and by 32 MiB.
TEST_NATIVE(HugeGrowth, NotUnderMoreThanBlocksHaveShown) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    struct {
        size_t shown_mib, bound_mib;
    } cases[] = {{9, 9}, {48, 32}};
    for (auto [shown_mib, bound_mib] : cases) {
        EXPECT_FINE(in_child([&, shown_mib = shown_mib, bound_mib = bound_mib] {
            start();
            written_block(shown_mib);
            char* p = written_block(80, MIB);
            auto from = reinterpret_cast<uintptr_t>(p);
            size_t resident = resident_pages(from, from + 80 * MIB);
            EXPECT_GE(resident, (bound_mib - 3) * MIB >> page_shift); // it was opened as far as that goes
            EXPECT_LE(resident, (bound_mib * MIB >> page_shift) + 80);
        }));
    }
}

// Once a block was not written to, they count no more.
TEST_NATIVE(HugeGrowth, NoLongerWhereALargeBlockWasHardlyTouched) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        start();
        size_t before = resident_pages(heap_start(), heap_end());
        for (int i = 0; i < 6; i++) {
            written_block(9);
            written_block(9, MIB);
        }
        size_t after = resident_pages(heap_start(), heap_end());
        size_t lost = 9; // the first one
        EXPECT_LE(after, before + ((6 * 9 + lost + 2) * MIB >> page_shift) + 5 * 9);
    }));
    EXPECT_FINE(in_child([] { // nor when what was lost is little beside the heap
        Grown heap(0);
        written_block(32);
        written_block(8, MIB);
        heap.grow(240);
        auto from = reinterpret_cast<uintptr_t>(written_block(64, MIB));
        EXPECT_EQ(resident_pages(from + 2 * MIB, from + 64 * MIB), 62u);
    }));
}

// Buffers that are freed before anybody looks say nothing against it, nor for it.
TEST_NATIVE(HugeGrowth, WhatIsFreeAgainSaysNothing) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        start();
        written_block(9);
        unit_free(written_block(16));
        uint64_t before = huge_totals.opened;
        written_block(17 + 16); // behind or instead of the free one
        EXPECT_GE(huge_totals.opened, before + 3);
    }));
    EXPECT_FINE(in_child([] {
        start();
        for (int i = 0; i < 96; i++) *static_cast<char*>(unit_alloc_aligned(256 * KIB, 4096)) = 1;
        for (size_t mib : {16, 17, 18}) unit_free(written_block(mib));
        EXPECT_EQ(huge_totals.opened, 0u);
    }));
}

// The kernel takes what it was told of pages along.
TEST_NATIVE(HugeGrowth, ABlockThatMovesIsOpenNoMore) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(40);
        unsigned moved = 0;
        for (int i = 0; i < 8; i++) {
            heap.grow(2);
            auto* p = static_cast<char*>(unit_alloc(MIB));
            memset(p, 1, MIB);
            bool open = has_flag(p, " hg");
            struct slice* to = span_move(unit_slice(p), 20, 0, MIB);
            if (to == nullptr) continue;
            auto* moved_to = reinterpret_cast<char*>(slice_address(to));
            EXPECT_FALSE(has_flag(moved_to, " hg"));
            EXPECT_EQ(moved_to[MIB - 1], 1);
            moved += open;
        }
        EXPECT_GT(moved, 0u);
    }));
}

TEST_NATIVE(HugeGrowth, NotBehindPagesThatWereFreed) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        uint64_t before = huge_totals.opened;
        EXPECT_GT(before, 0u);
        heap.thin(16);
        seal();
        // Of another class, and more than what was open.
        for (int i = 0; i < 1200; i++) memset(unit_alloc(2048), 1, 2048);
        EXPECT_EQ(huge_totals.opened, before);
    }));
}

TEST_NATIVE(HugeGrowth, WhatIsResidentIsKnown) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        // Slabs of many classes, a block on each: all their other pages came with it.
        for (size_t bytes = 1; bytes < 100; bytes++) *static_cast<char*>(unit_alloc(bytes * 80)) = 1;
        // And what lies in front of an aligned one.
        memset(unit_alloc_aligned(100 * KIB, 256 * KIB), 1, 100 * KIB);
        memset(unit_alloc_aligned(100 * KIB, 512 * KIB), 1, 100 * KIB);
        EXPECT_TRUE(huge_ahead.open);
        EXPECT_EQ(resident_unknown(), 0u);
        size_t before = resident_pages(heap_start(), heap_end());
        EXPECT_TRUE(release_all());
        size_t after = resident_pages(heap_start(), heap_end());
        EXPECT_LT(after, before);
        EXPECT_LT(after, (24u * MIB >> page_shift) + 700);
    }));
}

// A block that begins in a free span, of which it is known that its last page has gone, and ends in what is
// open.
TEST_NATIVE(HugeGrowth, WhatIsOpenBehindAFreeSpanIsNotKnownToBeClean) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        ASSERT_TRUE(huge_ahead.open);
        bool zeroed;
        struct slice* s;
        do s = span_alloc(4, 1, &zeroed);
        while (slice_index(s) + 4 != regions[0].frontier || huge_ahead.end - regions[0].frontier < 2);
        s->kind = SLICE_LARGE;
        slice_pages(s)->state = 0x8000u * ((1u << PAGES_CLEAN_SHIFT) + 1);
        span_free(s);
        struct slice* longer = span_alloc(6, 1, &zeroed);
        ASSERT_EQ(longer, s);
        EXPECT_EQ(slice_pages(s)->state, 0u);
    }));
}

// Records, as of heaps, are sparse: what of them is never written to takes no memory there either.
TEST_NATIVE(HugeGrowth, RecordsAreResidentWhereTheyAreWritten) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        EXPECT_TRUE(huge_ahead.open);
        constexpr size_t bytes = 60 * KIB; // one in each slice
        for (int i = 0; i < 40; i++) {
            auto* p = static_cast<char*>(span_meta_alloc(bytes));
            ASSERT_NE(p, nullptr);
            p[bytes / 2] = 1;
            auto at = reinterpret_cast<uintptr_t>(p);
            EXPECT_EQ(resident_pages(at & ~(SLICE_BYTES - 1), at + bytes), 1u) << i;
        }
    }));
}

TEST_NATIVE(HugeGrowth, WhatWentComesBackBySmallPages) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        heap.thin(8);
        EXPECT_TRUE(release_all());
        size_t before = resident_pages(heap_start(), heap_end());
        EXPECT_LT(before, (20u * MIB >> page_shift) + 700);
        for (int i = 0; i < 4; i++) memset(unit_alloc(block_bytes), 1, block_bytes);
        EXPECT_LT(resident_pages(heap_start(), heap_end()), before + 20);
        // Nor does the heap's end, which is open no more.
        EXPECT_EQ(huge_ahead.open, false);
    }));
}

// What is given back elsewhere closes nothing.
TEST_NATIVE(HugeGrowth, WhatGoesElsewhereLeavesTheEndOpen) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        ASSERT_EQ(huge_ahead.open, true);
        size_t before = resident_pages(heap_start(), heap_end());
        for (size_t i = 0; i < 4 * MIB / block_bytes; i++)
            if (page_of(heap.blocks[i]) % 2 == 0) unit_free(heap.blocks[i]);
        unit_collect();
        EXPECT_TRUE(release_all());
        EXPECT_LT(resident_pages(heap_start(), heap_end()), before - 400);
        EXPECT_EQ(huge_ahead.open, true);
        EXPECT_TRUE(span_check());
    }));
}

// What is given back closes the end if any of it is open, wherever it starts and ends.
TEST_NATIVE(HugeGrowth, WhatGoesClosesTheEndWhereAPartOfItIsOpen) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        const uint32_t from_slice = huge_ahead.from, end_slice = huge_ahead.end;
        const uintptr_t from = slice_start(from_slice), end = slice_start(end_slice);
        ASSERT_GE(end_slice, from_slice + 2);
        ASSERT_GT(from - heap_start(), 2 * SLICE_BYTES);
        auto is_open_after = [&](uintptr_t at, uintptr_t to) {
            os_lock_take(&page_lock);
            huge_ahead = {from_slice, end_slice, true};
            void* split[2];
            (void)huge_breaks({reinterpret_cast<void*>(at), to - at}, split);
            bool open = huge_ahead.open;
            os_lock_give(&page_lock);
            return open;
        };
        EXPECT_TRUE(is_open_after(from - 2 * SLICE_BYTES, from - SLICE_BYTES));
        EXPECT_TRUE(is_open_after(from - SLICE_BYTES, from));
        EXPECT_FALSE(is_open_after(from - SLICE_BYTES, from + SLICE_BYTES));
        EXPECT_FALSE(is_open_after(from - SLICE_BYTES, end));
        EXPECT_FALSE(is_open_after(from, from + SLICE_BYTES));
        EXPECT_FALSE(is_open_after(from + SLICE_BYTES, end));
        EXPECT_FALSE(is_open_after(end - SLICE_BYTES, end));
        EXPECT_FALSE(is_open_after(end - SLICE_BYTES, end + SLICE_BYTES));
        EXPECT_TRUE(is_open_after(end, end + SLICE_BYTES));
    }));
}

// Blocks need not fill what the heap grows by: three of four pages suffice.
TEST_NATIVE(HugeGrowth, WhereThreeOfFourPagesAreWritten) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    for (size_t written : {13u, 11u}) { // of 16
        EXPECT_FINE(in_child([&] {
            start();
            for (size_t i = 0; i < 40 * MIB / (64 * KIB); i++)
                memset(unit_alloc(64 * KIB), 1, written * 4096);
            if (written == 13)
                EXPECT_GE(huge_totals.opened, 4u); // what is lost has a bound of its own
            else
                EXPECT_LE(huge_totals.opened, 1u);
        }));
    }
}

TEST_NATIVE(HugeGrowth, WhatGoesInPartIsSplitFirst) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        uint64_t before = huge_pages_split();
        Grown heap(40);
        uint64_t opened = huge_totals.opened;
        heap.thin(16);
        EXPECT_TRUE(release_all());
        EXPECT_GE(huge_totals.broken, 6u);
        EXPECT_LE(huge_totals.broken, opened);
        if (resident_pages(heap_start(), heap_end()) < (40u * MIB >> page_shift)) {
            EXPECT_GT(huge_pages_split(), before);
        }
    }));
}

TEST_NATIVE(HugeGrowth, AHeapThatGrowsNoMoreKeepsNothingBehindIt) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        while (huge_ahead.end < regions[0].frontier + 4) heap.grow(1);
        uintptr_t end = slice_start(huge_ahead.end);
        *reinterpret_cast<volatile char*>(heap_end()) = 0; // as a neighbour in the same extent would
        EXPECT_GT(resident_pages(heap_end(), end), 0u);
        EXPECT_TRUE(huge_due());
        huge_settle();
        heap.grow(0);
        huge_settle();
        EXPECT_EQ(resident_pages(heap_end(), end), 0u);
        EXPECT_EQ(huge_ahead.end, 0u);
        EXPECT_FALSE(huge_due());
        heap.grow(8); // and goes on
        EXPECT_GT(huge_ahead.end, 0u);
        EXPECT_TRUE(span_check());
    }));
}

TEST_NATIVE(HugeGrowth, OpenMemoryReadsAsZero) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(40);
        uint64_t before = huge_totals.opened;
        for (int i = 0; i < 16; i++) {
            bool zeroed = false;
            auto* p = static_cast<char*>(unit_alloc_zeroable(700 * KIB, &zeroed));
            EXPECT_TRUE(zeroed);
            EXPECT_EQ(std::count(p, p + 700 * KIB, 0), static_cast<long>(700 * KIB));
            memset(p, 1, 700 * KIB);
        }
        EXPECT_GT(huge_totals.opened, before);
    }));
}

// Where they take long, few are asked for, and twice as few each time.
TEST_NATIVE(HugeGrowth, AKernelThatIsSlowIsAskedLess) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(0);
        huge_slow_ns = 0;
        heap.grow(64);
        EXPECT_EQ(huge_totals.opened, 1u);
        heap.grow(24); // 64 MiB of growth later:
        EXPECT_EQ(huge_totals.opened, 2u);
        huge_slow_ns = UINT64_MAX;
        heap.grow(104);
        EXPECT_EQ(huge_totals.opened, 2u);
        heap.grow(64); // 128 MiB later:
        EXPECT_GE(huge_totals.opened, 2u + 12);
        EXPECT_TRUE(span_check());
    }));
}

// Where they were quick for a while, each fourth opening is timed, which is enough to notice.
TEST_NATIVE(HugeGrowth, AKernelThatWasQuickIsTimedNowAndThen) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    auto* most = static_cast<uint64_t*>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(most, MAP_FAILED);
    for (size_t mib : {64, 66, 68, 70}) {
        EXPECT_FINE(in_child([&] {
            Grown heap(mib);
            huge_slow_ns = 0;
            uint64_t before = huge_totals.opened;
            heap.grow(32);
            EXPECT_GE(huge_totals.opened, before + 1);
            *most = std::max(*most, huge_totals.opened - before);
        }));
    }
    EXPECT_EQ(*most, 4u);
    munmap(most, 4096);
}

// Where many would be opened at once, it is noticed at each step of 1, 2 and then 4, whose first is touched.
TEST_NATIVE(HugeGrowth, AKernelThatGetsSlowIsNoticedAtTheNextStep) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    struct {
        uint64_t quick, opened, touched;
    } cases[] = {{0, 1, 1}, {1, 3, 2}, {3, 7, 3}, {7, 11, 4}, {11, 15, 5}};
    for (auto& c : cases) {
        EXPECT_FINE(in_child([c] {
            start();
            written_block(32);
            static uint64_t last;
            last = c.quick;
            os_fault_hook = [](enum os_call) {
                if (huge_totals.opened >= last) huge_slow_ns = 0; // before the step's first touch
                return false;
            };
            uintptr_t from = heap_end();
            ASSERT_NE(unit_alloc(32 * MIB), nullptr);
            EXPECT_EQ(huge_totals.opened, c.opened);
            EXPECT_EQ(resident_pages(from, heap_end()), c.touched * (2 * MIB >> page_shift));
            EXPECT_TRUE(span_check());
        }));
    }
}

// Of very many only so many are touched, as nobody may use them.
TEST_NATIVE(HugeGrowth, FewOfManyAreTouched) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(0);
        ASSERT_NE(unit_alloc(2816 * MIB), nullptr); // in use, so that a 16th of it may be opened
        heap.grow(24);
        uint64_t before = huge_totals.opened;
        uintptr_t from = heap_end();
        ASSERT_NE(unit_alloc(160 * MIB), nullptr);
        uint64_t opened = huge_totals.opened - before;
        EXPECT_GE(opened, 79u);
        EXPECT_LE(resident_pages(from, heap_end()), 13 * (2 * MIB >> page_shift)); // 1, 2, 4, 8, 9, 9 ...
        EXPECT_TRUE(span_check());
    }));
}

// Address space that is given back is not asked for again.
TEST_NATIVE(HugeGrowth, NothingIsAheadOfAHeapThatWasCut) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    EXPECT_FINE(in_child([] {
        Grown heap(24);
        while (huge_ahead.end == regions[0].frontier) heap.grow(1);
        uintptr_t end = heap_end();
        span_trim();
        EXPECT_EQ(huge_ahead.end, 0u);
        void* other = mmap(reinterpret_cast<void*>(end), MIB, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        ASSERT_EQ(other, reinterpret_cast<void*>(end));
        memset(other, 7, MIB);
        huge_settle();
        huge_settle();
        EXPECT_EQ(std::count(static_cast<char*>(other), static_cast<char*>(other) + MIB, 7),
                  static_cast<long>(MIB));
    }));
}

TEST(HugeGrowth, AKernelThatRefusesServes) {
    EXPECT_FINE(in_child([] {
        start();
        os_fault_hook = [](enum os_call call) { return call == OS_OTHER; };
        for (int i = 0; i < 24 * 1024; i++) memset(unit_alloc(block_bytes), 1, block_bytes);
        EXPECT_EQ(huge_totals.opened, 0u);
        EXPECT_TRUE(span_check());
    }));
}

// What is huge from its first touch on is new memory still: what waits elsewhere goes first, as it does where
// pages are small.
TEST_NATIVE(HugeGrowth, WhatWaitsServesFirst) {
    if (!kernel_has_huge_pages()) return expect_none_without();
    auto* slices = static_cast<uint32_t*>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    const char* options[] = {"", ":hugepages=never"};
    for (unsigned i = 0; i < 2; i++) {
        EXPECT_FINE(in_child([&] {
            start(options[i]);
            Random random(7);
            std::vector<std::pair<void*, size_t>> blocks;
            size_t live = 0;
            for (size_t low = 4 * KIB; low < 400 * KIB; low += 20 * KIB) {
                std::vector<std::pair<void*, size_t>> left;
                for (auto& b : blocks) {
                    if (random.below(8) == 0) {
                        left.push_back(b);
                    } else {
                        unit_free(b.first);
                        live -= b.second;
                    }
                }
                for (blocks = left; live < 64 * MIB; live += blocks.back().second) {
                    size_t bytes = low + random.below(low / 4);
                    blocks.emplace_back(unit_alloc(bytes), bytes);
                    memset(blocks.back().first, 1, bytes);
                }
            }
            EXPECT_EQ(huge_totals.opened != 0, i == 0);
            slices[i] = regions[0].frontier - regions[0].first;
            EXPECT_TRUE(unit_arena_check());
        }));
    }
    EXPECT_LE(slices[0], slices[1] + 16); // a chunk
    munmap(slices, 4096);
}

} // namespace
