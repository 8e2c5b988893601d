// huge_test.cc: which parts of the heap may be huge, which become so, and when they are broken up:
// page/huge.h against this machine's kernel and against one that refuses. Called by ctest; each test starts
// the heap in a child of its own, without a helper: the test ends the windows.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include "huge_pages.h"
#include <map>
#include <sys/mman.h>
#include <unistd.h>
extern "C" {
#include "page/huge.h"
}

namespace {

// A heap of 1 KiB blocks, four to a page of 4 KiB.
class Heap {
  public:
    explicit Heap(size_t mib, const char* options = "") {
        setenv("WEIR_OPTIONS", (std::string("release=off") + options).c_str(), 1);
        unit_attach();
        for (size_t i = 0; i < mib * 1024; i++) {
            void* p = unit_alloc(1024);
            EXPECT_NE(p, nullptr);
            if (p == nullptr) return;
            memset(p, 1, 1024);
            pages[page_of(p)].push_back(p);
        }
    }
    void windows(unsigned count) {
        for (unsigned i = 0; i < count; i++) {
            os_lock_take(&release_lock);
            huge_window(1000000000);
            os_lock_give(&release_lock);
        }
    }
    // Frees all that is on pages of the extent around `within`, of every second one, till `count` are free.
    struct slice* free_pages(uintptr_t within, unsigned count) {
        uintptr_t start = within & ~(2 * MIB / 4096 - 1);
        struct slice* last = nullptr;
        for (uintptr_t page = start; page < start + 512 && count != 0; page += 2) {
            auto found = pages.find(page);
            if (found == pages.end()) continue;
            last = unit_slice(found->second[0]);
            for (void* p : found->second) unit_free(p);
            pages.erase(found);
            count--;
        }
        EXPECT_EQ(count, 0u);
        unit_collect();
        return last;
    }
    // Frees all that is on the first half of the extent around `within`, whose first page is returned.
    uintptr_t free_half(uintptr_t within) {
        uintptr_t start = within & ~(2 * MIB / 4096 - 1);
        for (uintptr_t at = start; at < start + 256; at++) {
            for (void* p : pages[at]) unit_free(p);
            pages.erase(at);
        }
        return start;
    }
    uintptr_t middle() const { return std::next(pages.begin(), static_cast<long>(pages.size() / 2))->first; }
    std::map<uintptr_t, std::vector<void*>> pages;
};

bool keeps(const struct slice* s) {
    os_lock_take(&page_lock);
    bool kept = huge_keeps(s);
    os_lock_give(&page_lock);
    return kept;
}

// Makes huge what may be, and finds a page in the midst of it; 0: the machine had no huge page to give, which
// is then all that was made and is there.
uintptr_t some_huge(Heap& heap) {
    for (int i = 0; i < 100 && huge_due(); i++) heap.windows(1);
    EXPECT_FALSE(huge_due());
    for (auto page = heap.pages.find(heap.middle()); page != heap.pages.end(); page++)
        if (keeps(unit_slice(page->second[0]))) return page->first;
    EXPECT_GT(huge_totals.refused, 0u);
    EXPECT_EQ(mapping_of(heap.pages[heap.middle()][0]).huge_kib, huge_totals.made * 2048);
    return 0;
}

// A pass that lets everything stay, as one does with holes that are kept: they are not marked any more.
void pass_over() {
    os_lock_take(&page_lock);
    hole_pass_start();
    while (hole_pass_next() != nullptr) {
    }
    os_lock_give(&page_lock);
}

// What is right on every kernel, also where there are no huge pages or the system allows none: what was made
// is there, and the attempts come to an end.
void expect_no_more_than_there_is() {
    EXPECT_FINE(in_child([] {
        Heap heap(80);
        for (int i = 0; i < 100 && huge_due(); i++) heap.windows(1);
        EXPECT_FALSE(huge_due());
        EXPECT_EQ(mapping_of(heap.pages[heap.middle()][0]).huge_kib, huge_totals.made * 2048);
    }));
}

// Those that look at what the kernel has put under the heap are absent where an emulator or a sanitizer is in
// between.
TEST_NATIVE(HugeHeap, StartsWithoutButOnDemand) {
    if (!kernel_has_huge_pages()) return expect_no_more_than_there_is();
    for (const char* option : {":hugepages=auto", ":hugepages=never", ":hugepages=always"}) {
        EXPECT_FINE(in_child([&] {
            Heap heap(4, option);
            const void* block = heap.pages.begin()->second[0];
            bool always = core_options.hugepages == HUGE_ALWAYS;
            EXPECT_EQ(has_flag(block, " nh"), !always) << mapping_of(block).flags;
            EXPECT_EQ(has_flag(block, " hg"), always);
            // Records never.
            EXPECT_TRUE(has_flag(unit_slice(block), " nh"));
            EXPECT_TRUE(has_flag(slice_pages(unit_slice(block)), " nh"));
        }));
    }
}

// Also a small one, whose accessible part grows by less: with `always` the first touch finds whole ones.
TEST_NATIVE(HugeHeap, GrowsByWholeOnesWhereAllAreWanted) {
    EXPECT_FINE(in_child([] {
        Heap heap(12, ":hugepages=always");
        uintptr_t end = regions[0].base + (uintptr_t{regions[0].committed} << SLICE_SHIFT);
        EXPECT_EQ(end % (2 << 20), 0u);
        if (kernel_has_huge_pages()) {
            EXPECT_GE(mapping_of(heap.pages.begin()->second[0]).huge_kib, 8u * 1024);
        }
    }));
}

// A mapping that is put over a part of the heap is as the heap around it.
TEST_NATIVE(HugeHeap, WhatIsCoveredAfreshStaysAsItWas) {
    for (const char* option : {":hugepages=auto", ":hugepages=always"}) {
        EXPECT_FINE(in_child([&] {
            Heap heap(1, option);
            const char* flag = core_options.hugepages == HUGE_ALWAYS ? " hg" : " nh";
            bool expected =
                has_flag(heap.pages.begin()->second[0], flag); // false: a kernel without huge pages
            bool zeroed;
            struct slice* s = span_alloc(32, 1, &zeroed);
            struct slice* to = span_move(s, 64, 0, 32 << SLICE_SHIFT);
            ASSERT_NE(to, nullptr);
            EXPECT_EQ(has_flag(reinterpret_cast<void*>(slice_address(s)), flag), expected);
            EXPECT_EQ(has_flag(reinterpret_cast<void*>(slice_address(to)), flag), expected);
            void* p = reinterpret_cast<void*>(slice_address(to));
            span_free(to);
            EXPECT_EQ(has_flag(p, flag), expected);
            region_commit_strict = true;
            s = span_alloc(128, 1, &zeroed);
            p = reinterpret_cast<void*>(slice_address(s));
            span_free(s);
            EXPECT_TRUE(span_purge(UINT64_MAX));
            EXPECT_EQ(has_flag(p, flag), expected);
        }));
    }
}

TEST_NATIVE(HugeHeap, WhatIsFullForAWhileBecomesHuge) {
    if (!kernel_has_huge_pages()) return expect_no_more_than_there_is();
    EXPECT_FINE(in_child([] {
        Heap heap(80);
        const void* block = heap.pages[heap.middle()][0];
        EXPECT_TRUE(huge_due());
        heap.windows(4);
        EXPECT_EQ(huge_totals.made + huge_totals.refused, 0u); // not yet
        heap.windows(1);
        EXPECT_GT(huge_totals.made + huge_totals.refused, 0u);
        for (int i = 0; i < 100 && huge_due(); i++) heap.windows(1);
        EXPECT_FALSE(huge_due()); // nothing is left to do
        uint64_t all = huge_totals.made + huge_totals.refused;
        EXPECT_GE(all, 36u); // of 40, as the heap lies
        EXPECT_EQ(mapping_of(block).huge_kib, huge_totals.made * 2048);
        EXPECT_TRUE(has_flag(block, " nh")); // one mapping, and out of the kernel's hands
        for (auto& page : heap.pages)
            for (void* p : page.second) ASSERT_EQ(static_cast<char*>(p)[1000], 1);
    }));
}

TEST(HugeHeap, SmallAndNeverStaySmall) {
    for (const char* option : {":hugepages=never", ":hugepages=always", ""}) {
        EXPECT_FINE(in_child([&] {
            Heap heap(*option == '\0' ? 40 : 80, option);
            EXPECT_FALSE(huge_due());
            heap.windows(12);
            EXPECT_EQ(huge_totals.made + huge_totals.refused, 0u);
        }));
    }
}

TEST_NATIVE(HugeHeap, KeepsAFewHolesAndBreaksForMore) {
    if (!kernel_has_huge_pages()) return expect_no_more_than_there_is();
    EXPECT_FINE(in_child([] {
        Heap heap(80);
        uintptr_t page = some_huge(heap);
        if (page == 0) return;
        size_t before = mapping_of(heap.pages[page][0]).huge_kib;
        struct slice* s = heap.free_pages(page, 8);
        EXPECT_TRUE(keeps(s));
        pass_over();
        heap.windows(2);
        EXPECT_EQ(huge_totals.broken, 0u);
        EXPECT_EQ(mapping_of(region_slices(&regions[0])).huge_kib, 0u);
        s = heap.free_pages(page, 1);
        EXPECT_FALSE(keeps(s));
        EXPECT_EQ(huge_totals.broken, 1u);
        EXPECT_FALSE(keeps(s)); // and stays broken
        // All its holes go, those that were kept as well.
        EXPECT_TRUE(release_all());
        const void* block = heap.pages.rbegin()->second[0];
        EXPECT_EQ(mapping_of(block).huge_kib, before - 2048);
        uintptr_t start = page & ~uintptr_t{511};
        unsigned resident = 0;
        for (uintptr_t at = start; at < start + 512; at++)
            if (is_resident(at)) resident++;
        EXPECT_EQ(resident, 512u - 9);
        // It is full again, but was broken not long ago.
        for (int i = 0; i < 36; i++) memset(unit_alloc(1024), 1, 1024);
        heap.windows(20);
        EXPECT_EQ(mapping_of(block).huge_kib, before - 2048);
    }));
}

TEST_NATIVE(HugeHeap, AFreeSlabThatWentBackBreaksItsExtent) {
    if (!kernel_has_huge_pages()) return expect_no_more_than_there_is();
    EXPECT_FINE(in_child([] {
        Heap heap(80);
        uintptr_t page = some_huge(heap);
        if (page == 0) return;
        heap.free_half(page);
        unit_collect();
        span_purge(UINT64_MAX);
        heap.windows(1);
        EXPECT_EQ(huge_totals.broken, 1u);
    }));
}

TEST_NATIVE(HugeHeap, TrimTakesTheKeptHoles) {
    if (!kernel_has_huge_pages()) return expect_no_more_than_there_is();
    EXPECT_FINE(in_child([] {
        Heap heap(80);
        uintptr_t page = some_huge(heap);
        if (page == 0) return;
        release_all();
        EXPECT_TRUE(keeps(heap.free_pages(page, 5)));
        pass_over();
        uint64_t before = span_totals.purged;
        EXPECT_TRUE(release_all());
        EXPECT_EQ(span_totals.purged - before, 5u << page_shift);
    }));
}

// Half of an extent is a free span that goes: so does what was kept in the other half.
TEST_NATIVE(HugeHeap, WhatIsKeptGoesOnceAPartHasGone) {
    if (!kernel_has_huge_pages()) return expect_no_more_than_there_is();
    EXPECT_FINE(in_child([] {
        Heap heap(80);
        uintptr_t page = some_huge(heap);
        if (page == 0) return;
        release_all();
        const uintptr_t start = heap.free_half(page);
        EXPECT_TRUE(keeps(heap.free_pages(page, 5)));
        pass_over();
        hole_pending = 0;
        EXPECT_TRUE(span_purge(UINT64_MAX));
        EXPECT_EQ(huge_totals.broken, 1u);
        EXPECT_EQ(hole_pending, 5u << page_shift);
        EXPECT_TRUE(release_all());
        unsigned resident = 0;
        for (uintptr_t at = start; at < start + 512; at++)
            if (is_resident(at)) resident++;
        EXPECT_LE(resident, 256u - 5);
    }));
}

// A program has put a page of a file into every fourth extent: the kernel makes those before it huge, and
// refuses. What is huge is known to be, and what was kept for what is not goes.
TEST_NATIVE(HugeHeap, ARunThatIsRefusedHalfWay) {
    if (!kernel_has_huge_pages()) return expect_no_more_than_there_is();
    EXPECT_FINE(in_child([] {
        Heap heap(80);
        int file = memfd_create("page", MFD_CLOEXEC);
        ASSERT_EQ(ftruncate(file, 4096), 0);
        std::vector<uintptr_t> refused;
        for (uintptr_t at = (heap.pages.begin()->first / 2048 + 1) * 2048; heap.pages.count(at + 1600) != 0;
             at += 2048) {
            void* p = reinterpret_cast<void*>((at + 1600) << page_shift);
            ASSERT_EQ(mmap(p, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0), p);
            refused.push_back(at + 1600);
        }
        ASSERT_GE(refused.size(), 8u);
        for (uintptr_t at : refused) heap.free_pages(at, 2);
        pass_over();
        hole_pending = 0;
        for (int i = 0; i < 100 && huge_due(); i++) heap.windows(1);
        const size_t huge =
            mappings_of(heap.pages.begin()->second[0], heap.pages.rbegin()->second[0]).huge_kib / 2048;
        size_t known = 0;
        for (uintptr_t at = heap.pages.begin()->first & ~uintptr_t{511}; at < heap.pages.rbegin()->first;
             at += 512) {
            auto found = heap.pages.lower_bound(at);
            known += found->first < at + 512 && keeps(unit_slice(found->second[0])) ? 1 : 0;
        }
        EXPECT_EQ(known, huge);
        EXPECT_EQ(huge_totals.made, huge);
        if (huge == 0) return; // the machine had none to give, and is asked no more
        EXPECT_EQ(hole_pending, (2 * refused.size()) << page_shift);
    }));
}

TEST(HugeHeap, AKernelThatRefusesIsAskedNoMore) {
    EXPECT_FINE(in_child([] {
        Heap heap(160);
        os_fault_hook = [](enum os_call call) { return call == OS_OTHER; };
        for (int i = 0; i < 400 && huge_due(); i++) heap.windows(1);
        EXPECT_FALSE(huge_due());
        EXPECT_EQ(huge_totals.made, 0u);
        uint64_t calls = os_call_counts[OS_OTHER];
        heap.windows(20);
        EXPECT_EQ(os_call_counts[OS_OTHER], calls);
    }));
}

TEST(HugeHeap, RegionsWithoutAdviceServe) {
    EXPECT_FINE(in_child([] { // a kernel that was built without huge pages
        os_fault_hook = [](enum os_call call) { return call == OS_OTHER; };
        Heap heap(2, ":hugepages=always");
        EXPECT_GE(heap.pages.size(), 2u * 1024 * 1024 >> page_shift);
    }));
}

} // namespace
