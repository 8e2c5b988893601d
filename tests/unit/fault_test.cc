// fault_test.cc: the out-of-memory loop: a whole life of the heap, with its first, second, third ... call
// of the operating system refused, until one life sees no refusal; then lives with refusals at random.
// Called by ctest.
//
// Each life is a child of its own. Wherever the refusal falls, results are NULL or good, every invariant
// holds, nothing is lost once all is freed, and the same life succeeds afterwards without refusals.
//
// SPDX-License-Identifier: Apache-2.0
#include "blocks.h"
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>

namespace {

std::atomic<uint64_t> calls;     // of the operating system, so far
std::atomic<uint64_t> refusals;  // of these
std::atomic<uint64_t> refuse_at; // that one is refused, and so are the `refuse_more` after it
std::atomic<uint64_t> refuse_more;
std::atomic<uint64_t> chance; // of 2^32; seeded
std::atomic<uint64_t> chance_state;

bool refuse_nth(enum os_call) {
    uint64_t n = ++calls;
    bool yes = n >= refuse_at && n <= refuse_at + refuse_more;
    refusals += yes;
    return yes;
}

bool refuse_by_chance(enum os_call) {
    uint64_t n = (chance_state += 0x9e3779b97f4a7c15u);
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
    n = (n ^ n >> 27) * 0x94d049bb133111ebu;
    bool yes = (n >> 32) < chance;
    refusals += yes;
    return yes;
}

uint64_t not_given; // allocations that were refused

void free_half(Blocks& blocks, size_t from) {
    for (size_t i = blocks.all.size(); i-- > from;)
        if (i % 2 == 0) unit_free(blocks.take(i).p);
}

void sometimes(bool done) { not_given += !done; }

// One life: everything that asks the system for something, small enough to be run hundreds of times.
void life() {
    Blocks blocks;
    for (size_t size : {1u, 100u, 1024u, 5000u, 30000u, 65536u}) sometimes(blocks.alloc(size));
    for (int i = 0; i < 300; i++) sometimes(blocks.alloc(1000)); // several slabs
    for (size_t size : {70000u, 300000u, 1500000u}) sometimes(blocks.alloc(size));
    sometimes(blocks.alloc_aligned(100, 4096));
    sometimes(blocks.alloc_aligned(100000, 1 << 20));
    sometimes(blocks.alloc_zeroable(200000));
    EXPECT_TRUE(span_check());
    // Growing in place, by copy, by moving; shrinking.
    Blocks grown;
    sometimes(grown.alloc(50));
    for (size_t size : {2000u, 80000u, 1200000u, 3000000u, 6500000u, 9000000u, 4100000u, 100000u, 500u}) {
        sometimes(blocks.alloc(66000)); // in the way
        if (!grown.all.empty()) sometimes(grown.realloc(0, size));
        EXPECT_TRUE(span_check());
    }
    free_half(blocks, 0);
    span_purge(UINT64_MAX);
    EXPECT_TRUE(span_check());
    // Others allocate, free ours, and end.
    for (int t = 0; t < 3; t++) {
        std::thread([&] {
            Blocks own;
            for (int i = 0; i < 100; i++) sometimes(own.alloc(700));
            sometimes(own.alloc(400000));
            for (int i = 0; i < 40 && !blocks.all.empty(); i++)
                unit_free(blocks.take(blocks.all.size() - 1).p);
            free_half(own, 0);
            unit_detach();
            for (const Block& b : own.all) blocks.all.push_back(b);
        }).join();
    }
    EXPECT_TRUE(span_check());
    EXPECT_GE(unit_check_slabs(), 0);
    span_trim();
    for (int i = 0; i < 100; i++) sometimes(blocks.alloc(3000));
    sometimes(blocks.alloc(2000000));
    for (Blocks* all : {&grown, &blocks})
        while (!all->all.empty()) unit_free(all->take(all->all.size() - 1).p);
    unit_collect();
    span_purge(UINT64_MAX);
    EXPECT_TRUE(span_check());
    EXPECT_GE(unit_check_slabs(), 0);
}

// Also what threads freed that could get no heap.
void expect_all_back() {
    unit_collect();
    struct unit_figures f;
    unit_census(&f);
    EXPECT_EQ(f.live_blocks, 0u);
    EXPECT_EQ(f.slabs, 0u);
    EXPECT_EQ(unit_large_bytes(), 0u);
    EXPECT_EQ(span_totals.moved, 0u);
    EXPECT_TRUE(span_check());
}

void expect_no_span_lost() {
    struct unit_figures f;
    unit_census(&f);
    EXPECT_EQ(span_totals.live, f.meta_bytes);
}

void expect_a_good_life() {
    os_fault_hook = nullptr;
    not_given = 0;
    life();
    EXPECT_EQ(not_given, 0u);
    expect_all_back();
    expect_no_span_lost();
}

constexpr int saw_no_refusal = 42;

// Lives are short, but where an emulator keeps tags: fewer calls are refused there.
unsigned refused_step() {
    constexpr unsigned of_short_lives = 5;
    constexpr unsigned of_long_lives = 23;
    const bool tagged = getenv("WEIR_TAGGING") != nullptr;
    return tagged ? of_long_lives : std::min(unit_refused_step, of_short_lives);
}

// Runs lives with more and more calls before the refusal, until one sees none. Returns how many calls that
// is.
uint64_t refuse_each(const char* options, bool strict, uint64_t more) {
    unsigned lives = 0;
    for (uint64_t nth = 1;; nth += refused_step(), lives++) {
        Ended ended = in_child([&] {
            setenv("WEIR_OPTIONS", options, 1);
            refuse_at = nth;
            refuse_more = more;
            os_fault_hook = refuse_nth;
            if (strict) {
                unit_attach();
                region_commit_strict = true;
            }
            life();
            os_fault_hook = nullptr;
            EXPECT_TRUE(refusals != 0 || not_given == 0);
            expect_all_back();
            if (more == 0) expect_no_span_lost();
            if (refusals == 0) {
                fflush(stdout);
                _exit(::testing::Test::HasFailure() ? 1 : saw_no_refusal);
            }
            if (lives % 4 == 0) expect_a_good_life();
        });
        EXPECT_EQ(ended.printed, "");
        if (ended.exited(saw_no_refusal)) return nth;
        EXPECT_TRUE(ended.fine()) << "call " << nth << " refused, status " << ended.status;
        if (!ended.fine() || lives > 3000) return nth;
    }
}

TEST(Faults, EachCallRefusedOnce) { EXPECT_GE(refuse_each("reserve=1g:dirty_max=1m", false, 0), 40u); }
TEST(Faults, EachCallRefusedOnceInSmallRegions) {
    EXPECT_GE(refuse_each("reserve=4m:dirty_max=256k", false, 0), 40u);
}
TEST(Faults, EachCallRefusedOnceUnderStrictAccounting) {
    EXPECT_GE(refuse_each("reserve=256m:dirty_max=256k", true, 0), 40u);
}
TEST(Faults, EachCallRefusedOnceInFullMode) {
    EXPECT_GE(refuse_each("reserve=256m:dirty_max=1m:checks=full", false, 0), 40u);
}
TEST(Faults, EachCallAndTheNextSixRefused) {
    EXPECT_GE(refuse_each("reserve=64m:dirty_max=256k", false, 6), 40u);
}
TEST(Faults, EachCallAndAllAfterItRefused) {
    EXPECT_GE(refuse_each("reserve=64m:dirty_max=1m", false, UINT32_MAX), 40u);
}

void refuse_at_random(const char* options, bool strict, double probability) {
    for (uint64_t seed = 1; seed <= unit_rounds(25); seed++) {
        Ended ended = in_child([&] {
            setenv("WEIR_OPTIONS", options, 1);
            chance = static_cast<uint64_t>(probability * 4294967296.0);
            chance_state = seed << 32;
            os_fault_hook = refuse_by_chance;
            unit_attach();
            region_commit_strict = strict;
            life();
            os_fault_hook = nullptr;
            expect_all_back();
            os_fault_hook = refuse_by_chance;
            life();
            os_fault_hook = nullptr;
            expect_all_back();
            not_given = 0;
            life();
            EXPECT_EQ(not_given, 0u);
            expect_all_back();
        });
        EXPECT_TRUE(ended.fine()) << "seed " << seed << " status " << ended.status << ended.printed;
        EXPECT_EQ(ended.printed, "");
    }
}

TEST(Faults, AtRandomNowAndThen) { refuse_at_random("reserve=256m:dirty_max=512k", false, 0.02); }
TEST(Faults, AtRandomOften) { refuse_at_random("reserve=8m:dirty_max=256k", false, 0.3); }
TEST(Faults, AtRandomUnderStrictAccounting) { refuse_at_random("reserve=64m:dirty_max=256k", true, 0.1); }
TEST(Faults, AlmostAlways) { refuse_at_random("reserve=64m:dirty_max=256k", false, 0.9); }

} // namespace
