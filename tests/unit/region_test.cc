// region_test.cc: page/region.h: the way from pointers to records, and regions under limits. Called by
// ctest; each test starts the page layer in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "address_space.h"
#include "layers.h"
#include "child.h"
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace {

constexpr uint64_t region_bytes = 64 * MIB;
constexpr size_t granule = size_t{1} << REGION_GRANULE_SHIFT;

const char* at(const struct region* r, uint32_t index) {
    return reinterpret_cast<const char*>(r->base) + (uintptr_t{index} << SLICE_SHIFT);
}

void expect_invariants() {
    for (uint32_t row = 0; row < region_count; row++) {
        const struct region* r = &regions[row];
        if (r->base == 0) continue;
        EXPECT_LE(r->first, r->frontier);
        EXPECT_LE(r->frontier, r->committed);
        EXPECT_LE(r->committed, r->slices);
        EXPECT_GE(r->record_bytes, size_t{r->frontier} << SLICE_RECORD_SHIFT);
        EXPECT_LE(r->record_bytes, size_t{r->first} << SLICE_SHIFT);
    }
    EXPECT_EQ(page_root.base, regions[0].base);
}

TEST(Region, NothingIsOursBeforeTheStart) {
    EXPECT_FINE(in_child([] {
        int local;
        EXPECT_EQ(slice_find(nullptr), nullptr);
        EXPECT_EQ(slice_find(&local), nullptr);
        EXPECT_EQ(slice_find(reinterpret_cast<void*>(UINTPTR_MAX)), nullptr);
        EXPECT_EQ(page_root.slices, 0u);
    }));
}

TEST(Region, PrimaryHoldsWhatWasWanted) {
    EXPECT_FINE(in_child([] {
        region_start(region_bytes);
        const struct region* r = &regions[0];
        ASSERT_NE(r->base, 0u);
        EXPECT_EQ(r->base % SLICE_BYTES, 0u);
        EXPECT_EQ(size_t{r->slices} << SLICE_SHIFT, region_bytes);
        EXPECT_EQ(region_count, 1u);
        EXPECT_EQ(r->frontier, r->first);
        EXPECT_GE(size_t{r->first} << SLICE_SHIFT, size_t{r->slices} << SLICE_RECORD_SHIFT);
        expect_invariants();
    }));
}

TEST(Region, WantedSizesAreRoundedUp) {
    EXPECT_FINE(in_child([] {
        region_start(1);
        EXPECT_EQ(size_t{regions[0].slices} << SLICE_SHIFT, granule);
    }));
}

// Absent: an emulator takes minutes for what fits here
TEST_UNEMULATED(Region, ImpossibleSizesAreHalvedUntilTheyFit) {
    EXPECT_FINE(in_child([] {
        region_start(uint64_t{1} << 60);
        EXPECT_NE(regions[0].base, 0u);
        expect_invariants();
    }));
}

TEST(Region, ChosenSizeIsLarge) {
    EXPECT_FINE(in_child([] {
        region_start(0);
        struct rlimit limit;
        getrlimit(RLIMIT_AS, &limit);
        EXPECT_TRUE(limit.rlim_cur != RLIM_INFINITY || size_t{regions[0].slices} << SLICE_SHIFT >= GIB);
        expect_invariants();
    }));
}

TEST(Region, FindsEverySliceBelowTheFrontierAndNoOther) {
    EXPECT_FINE(in_child([] {
        region_start(region_bytes);
        struct region* r = &regions[0];
        for (uint32_t count : {1u, 7u, 100u, 500u}) {
            ASSERT_TRUE(region_extend(r, count));
            for (uint32_t i = 0; i < r->slices; i++) {
                const struct slice* expected =
                    i < r->first || i >= r->frontier ? nullptr : region_slices(r) + i;
                ASSERT_EQ(slice_find(at(r, i)), expected) << i;
                ASSERT_EQ(slice_find(at(r, i) + 12345), expected) << i;
                ASSERT_EQ(slice_find(at(r, i) + SLICE_BYTES - 1), expected) << i;
            }
            expect_invariants();
        }
        EXPECT_EQ(slice_find(at(r, 0) - 1), nullptr);
        EXPECT_EQ(slice_find(at(r, r->slices)), nullptr);
        int local;
        EXPECT_EQ(slice_find(&local), nullptr);
        EXPECT_EQ(slice_find(nullptr), nullptr);
        EXPECT_EQ(slice_find(reinterpret_cast<void*>(UINTPTR_MAX)), nullptr);
        EXPECT_EQ(slice_find(reinterpret_cast<const void*>(&slice_find)), nullptr);
    }));
}

TEST(Region, ExtendedSlicesAreWritableAndZero) {
    EXPECT_FINE(in_child([] {
        region_start(region_bytes);
        struct region* r = &regions[0];
        ASSERT_TRUE(region_extend(r, 20));
        char* p = const_cast<char*>(at(r, r->first));
        EXPECT_TRUE(is_zero(p, 20 * SLICE_BYTES));
        memset(p, 1, 20 * SLICE_BYTES);
        EXPECT_EQ(slice_address(region_slices(r) + r->first), reinterpret_cast<uintptr_t>(p));
        EXPECT_EQ(slice_index(region_slices(r) + r->first), r->first);
        EXPECT_FALSE(is_readable(at(r, r->slices - 1)));
        EXPECT_FALSE(region_extend(r, r->slices - r->frontier + 1));
        ASSERT_TRUE(region_extend(r, r->slices - r->frontier));
        EXPECT_TRUE(is_readable(at(r, r->slices - 1) + SLICE_BYTES - 1));
        EXPECT_FALSE(region_extend(r, 1));
        expect_invariants();
    }));
}

// The fast path reads any record below page_root.slices.
TEST(Region, EveryPublishedRecordIsReadable) {
    EXPECT_FINE(in_child([] {
        region_start(4 * GIB);
        struct region* r = &regions[0];
        for (int i = 0; i < 20; i++) {
            ASSERT_TRUE(region_extend(r, 400));
            ASSERT_GE(page_root.slices, r->frontier);
            ASSERT_LE(page_root.slices, r->slices);
            ASSERT_TRUE(is_readable(region_slices(r) + page_root.slices - 1));
        }
    }));
}

TEST(Region, StrictAccountingCommitsNoMoreThanIsNeeded) {
    EXPECT_FINE(in_child([] {
        region_start(region_bytes);
        region_commit_strict = true;
        struct region* r = &regions[0];
        for (uint32_t count : {1u, 2u, 30u}) {
            ASSERT_TRUE(region_extend(r, count));
            EXPECT_EQ(r->committed, r->frontier);
            EXPECT_FALSE(is_readable(at(r, r->frontier)));
        }
        region_commit_strict = false;
        ASSERT_TRUE(region_extend(r, 1));
        EXPECT_GT(r->committed, r->frontier);
        expect_invariants();
    }));
}

TEST(Region, FurtherOnesAreFoundThroughTheMap) {
    EXPECT_FINE(in_child([] {
        region_start(granule);
        std::vector<struct region*> all;
        for (uint32_t i = 0; i < 40; i++) {
            struct region* r = region_add(100);
            ASSERT_NE(r, nullptr);
            all.push_back(r);
            EXPECT_EQ(r, &regions[i + 1]);
            EXPECT_EQ(r->base % granule, 0u);
            EXPECT_GE(r->slices - r->first, 100u);
            EXPECT_EQ(slice_find(at(r, r->first)), nullptr);
            ASSERT_TRUE(region_extend(r, 100));
            region_slices(r)[r->first].region = static_cast<uint16_t>(i + 1);
        }
        for (struct region* r : all) {
            EXPECT_EQ(slice_find(at(r, 0)), nullptr);
            EXPECT_EQ(slice_find(at(r, r->first)), region_slices(r) + r->first);
            EXPECT_EQ(slice_find(at(r, r->frontier) - 1), region_slices(r) + r->frontier - 1);
            EXPECT_EQ(slice_find(at(r, r->frontier)), nullptr);
            EXPECT_EQ(slice_address(region_slices(r) + r->first),
                      reinterpret_cast<uintptr_t>(at(r, r->first)));
        }
        expect_invariants();
    }));
}

TEST(Region, DroppedOnesAreForeignAndTheirRowsUsedAgain) {
    EXPECT_FINE(in_child([] {
        region_start(granule);
        struct region* first = region_add(10);
        struct region* second = region_add(10);
        ASSERT_TRUE(region_extend(first, 10) && region_extend(second, 10));
        const char* p = at(first, first->first);
        region_drop(first);
        EXPECT_EQ(first->base, 0u);
        EXPECT_EQ(slice_find(p), nullptr);
        EXPECT_FALSE(is_mapped(p));
        EXPECT_FALSE(region_extend(first, 1));
        EXPECT_NE(slice_find(at(second, second->first)), nullptr);
        EXPECT_EQ(region_add(10), first);
        EXPECT_EQ(region_count, 3u);
    }));
}

TEST(Region, LargeOnesGetWhatTheyNeedAndLittleMore) {
    EXPECT_FINE(in_child([] {
        region_start(granule);
        const uint32_t slices = 4096; // 256 MiB
        struct region* r = region_add(slices);
        ASSERT_NE(r, nullptr);
        EXPECT_TRUE(region_extend(r, slices));
        EXPECT_LE(size_t{r->slices} << SLICE_SHIFT, (size_t{slices} << SLICE_SHIFT) + 2 * granule);
    }));
}

// Sizes of 8 to 16 GiB whose own records, and those of the records' slices, just cross a slice's end.
TEST(Region, WhatLargeOnesNeedIncludesTheRecordsOfRecords) {
    EXPECT_FINE(in_child([] {
        region_start(granule);
        for (uint32_t slices : {142933u, 147015u, 247266u, 250086u, 1000000u}) {
            struct region* r = region_add(slices);
            ASSERT_NE(r, nullptr);
            EXPECT_GE(r->slices - r->first, slices);
            region_drop(r);
        }
    }));
}

// Bytes of [from, to) that may be written to. By mappings: an emulator's limits count what is its own.
size_t writable_bytes(uintptr_t from, uintptr_t to) {
    std::ifstream maps("/proc/self/maps");
    size_t bytes = 0;
    for (std::string line; std::getline(maps, line);) {
        unsigned long start = 0;
        unsigned long end = 0;
        char writable = 0;
        if (sscanf(line.c_str(), "%lx-%lx %*c%c", &start, &end, &writable) != 3 || writable != 'w') continue;
        if (start < to && end > from) bytes += std::min<size_t>(end, to) - std::max<size_t>(start, from);
    }
    return bytes;
}

// RLIMIT_DATA and strict overcommit count what may be written to.
TEST(Region, RecordsOfTheRecordsAreNotCharged) {
    EXPECT_FINE(in_child([] {
        region_start(0);
        const struct region* r = &regions[0];
        const uintptr_t heap = r->base + (uintptr_t{r->first} << SLICE_SHIFT);
        size_t bytes = writable_bytes(r->base, heap);
        EXPECT_GE(bytes, 8 * KIB);
        EXPECT_LE(bytes, 16 * KIB + 4 * os_page_bytes());
        EXPECT_EQ(static_cast<int>(region_slices(r)[0].kind), SLICE_NONE);
        EXPECT_EQ(static_cast<int>(region_slices(r)[r->first - 1].kind), SLICE_NONE);
        ASSERT_TRUE(region_extend(&regions[0], 1));
        region_slices(r)[r->first].kind = SLICE_META;
    }));
}

TEST(Region, TrimReturnsWhatWasNeverUsed) {
    EXPECT_FINE(in_child([] {
        region_start(region_bytes);
        struct region* r = &regions[0];
        ASSERT_TRUE(region_extend(r, 10));
        const char* last = at(r, r->slices - 1);
        EXPECT_TRUE(is_mapped(last));
        region_trim();
        EXPECT_FALSE(is_mapped(last));
        EXPECT_FALSE(is_mapped(at(r, r->frontier)));
        EXPECT_TRUE(is_readable(at(r, r->frontier) - 1));
        EXPECT_EQ(r->slices, r->frontier);
        EXPECT_FALSE(region_extend(r, 1));
        EXPECT_EQ(slice_find(at(r, r->frontier)), nullptr);
        EXPECT_NE(slice_find(at(r, r->frontier) - 1), nullptr);
        EXPECT_TRUE(is_readable(region_slices(r) + page_root.slices - 1));
        region_trim();
        expect_invariants();
    }));
}

// Absent: their shadow is larger than any limit
TEST_UNSANITIZED(Region, AddressSpaceLimitsAreRespected) {
    EXPECT_FINE(in_child([] {
        ASSERT_NE(mmap(nullptr, 200 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
                  MAP_FAILED);
        const size_t most = (address_space_used() / granule + 1) * granule + 256 * MIB;
        struct rlimit limit = {most, RLIM_INFINITY};
        if (setrlimit(RLIMIT_AS, &limit) != 0 || os_address_space_limit() != most) return;
        region_start(0);
        EXPECT_LE(size_t{regions[0].slices} << SLICE_SHIFT, most / 8);
        EXPECT_NE(regions[0].base, 0u);
        struct region* r = region_add(10);
        ASSERT_NE(r, nullptr);
        EXPECT_LE(size_t{r->slices} << SLICE_SHIFT, most / 64 + granule);
        EXPECT_EQ(region_add(8192), nullptr); // 512 MiB
        unsigned more = 0;
        while (region_add(100) != nullptr) more++;
        EXPECT_GE(more, 10u);
        expect_invariants();
    }));
}

enum os_call refused;
unsigned passes; // calls of that kind that still work

bool refuse(enum os_call call) { return call == refused && passes-- == 0; }

TEST(Region, RefusedStartLeavesNoneAndFurtherOnesServe) {
    EXPECT_FINE(in_child([] {
        os_fault_hook = [](enum os_call call) { return call == OS_MAP; };
        region_start(region_bytes);
        os_fault_hook = nullptr;
        EXPECT_EQ(regions[0].base, 0u);
        EXPECT_EQ(page_root.slices, 0u);
        struct region* r = region_add(10);
        ASSERT_NE(r, nullptr);
        EXPECT_EQ(r, &regions[1]);
        ASSERT_TRUE(region_extend(r, 10));
        EXPECT_NE(slice_find(at(r, r->first)), nullptr);
        region_trim();
    }));
}

TEST(Region, RefusedStepsChangeNothing) {
    EXPECT_FINE(in_child([] {
        region_start(4 * GIB);
        struct region* r = &regions[0];
        for (unsigned nth = 0; nth < 2; nth++) {
            struct region before = *r;
            refused = OS_PROTECT;
            passes = nth;
            os_fault_hook = refuse;
            bool done = region_extend(r, 3000);
            os_fault_hook = nullptr;
            EXPECT_FALSE(done) << nth; // one call for the records, one for the slices
            EXPECT_EQ(r->frontier, before.frontier);
            EXPECT_EQ(r->committed, before.committed);
            expect_invariants();
            ASSERT_TRUE(region_extend(r, 3000));
            expect_invariants();
        }
        for (enum os_call kind : {OS_MAP, OS_PROTECT}) {
            refused = kind;
            passes = 0;
            os_fault_hook = refuse;
            struct region* added = region_add(10);
            os_fault_hook = nullptr;
            EXPECT_TRUE(added == nullptr || added->slices >= 10);
            expect_invariants();
        }
        EXPECT_NE(region_add(10), nullptr);
    }));
}

} // namespace
