// fence_test.cc: large blocks between inaccessible pages: what the kernel says of each page, whatever happens
// to the block. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "holes.h"
#include <fstream>
extern "C" {
#include "page/fence.h"
}

namespace {

constexpr size_t kept_most = 1 << 20;

char* block(size_t bytes, size_t align = 1) {
    return static_cast<char*>(align == 1 ? unit_alloc(bytes) : unit_alloc_aligned(bytes, align));
}

bool is_fenced(const void* p) {
    const struct slice* s = unit_slice(p);
    return (s->flags & SLICE_FENCED) != 0 && s[-1].kind == SLICE_FENCE && s[-1].span_slices == 1;
}

// Nothing is to be had for a page at least on either side, and all of it between.
void expect_fences(char* p) {
    size_t page = os_page_bytes();
    size_t bytes = unit_usable(p);
    EXPECT_TRUE(is_fenced(p));
    for (char* at : {p - 1, p - page, p - SLICE_BYTES, p + bytes, p + bytes + page - 1})
        EXPECT_FALSE(is_readable(at)) << at - p << " of " << bytes;
    for (char* at : {p, p + page, p + bytes / 2, p + bytes - 1})
        EXPECT_TRUE(is_readable(at)) << at - p << " of " << bytes;
}

void expect_closed(char* p, size_t bytes) {
    for (size_t at = 0; at < bytes; at += os_page_bytes()) EXPECT_FALSE(is_readable(p + at)) << at;
}

size_t mappings() {
    std::ifstream maps("/proc/self/maps");
    return static_cast<size_t>(
        std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n'));
}

void start() {
    windows_are_endless();
    unit_attach();
    fence_start();
}

bool always(enum os_call) { return true; }

TEST(Fence, BlocksLieBetweenThem) {
    EXPECT_FINE(in_child([] {
        start();
        for (size_t bytes : {size_t{65537}, size_t{70000}, size_t{131072}, size_t{131072 - 4096},
                             size_t{196608 + 1}, size_t{5 << 20}})
            for (size_t align : {size_t{1}, size_t{65536}, size_t{1 << 18}, size_t{4 << 20}}) {
                char* p = block(bytes, align);
                ASSERT_NE(p, nullptr);
                EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
                memset(p, 0x5a, bytes);
                expect_fences(p);
                EXPECT_TRUE(span_check());
            }
        // A slab's block has none; nor a large one when they are off.
        EXPECT_TRUE(is_readable(block(100) - 1));
        fence_is_on = false;
        char* p = block(300000);
        EXPECT_EQ(unit_slice(p)->flags, 0);
        unit_free(p);
    }));
}

TEST(Fence, AFreedBlockIsOutOfReach) {
    EXPECT_FINE(in_child([] {
        start();
        for (size_t bytes : {size_t{70000}, kept_most - 100000, 3 * kept_most}) {
            char* p = block(bytes);
            memset(p, 1, bytes);
            unit_free(p);
            expect_closed(p, bytes);
            EXPECT_EQ(unit_large_bytes(), 0u);
            unit_collect();
            expect_closed(p, bytes);
            EXPECT_TRUE(span_check());
            // Its memory is the next one's, and nothing is left of what was there.
            bool zeroed = false;
            char* q = static_cast<char*>(unit_alloc_zeroable(bytes, &zeroed));
            EXPECT_TRUE(zeroed);
            EXPECT_TRUE(is_zero(q, bytes));
            expect_fences(q);
            unit_free(q);
            unit_collect();
        }
    }));
}

TEST(Fence, TheOneThatIsKeptIsClosedMeanwhile) {
    EXPECT_FINE(in_child([] {
        start();
        size_t page = os_page_bytes();
        char* p = block(150000);
        memset(p, 7, 150000);
        unit_free(p);
        EXPECT_TRUE(unit_keeps_large());
        expect_closed(p, 150000);
        // Another size in as many slices.
        for (size_t bytes : {size_t{150000}, 150000 - 2 * page, size_t{150000}, size_t{131072}}) {
            char* q = block(bytes);
            EXPECT_EQ(q, p);
            EXPECT_EQ(unit_usable(q), align_up(bytes, page));
            EXPECT_EQ(unit_large_bytes(), align_up(bytes, page));
            EXPECT_EQ(q[100], 7);
            expect_fences(q);
            EXPECT_TRUE(span_check());
            unit_free(q);
        }
        // No size is mistaken for one that is kept.
        for (size_t bytes : {SIZE_MAX, SIZE_MAX - page, SIZE_MAX - SLICE_BYTES, size_t{1} << 63})
            EXPECT_EQ(unit_alloc(bytes), nullptr);
        EXPECT_TRUE(unit_keeps_large());
        char* other = block(300000);
        EXPECT_NE(other, p);
        EXPECT_TRUE(unit_keeps_large());
        // The kernel will not open it: it goes, and another one comes.
        static unsigned refused = 0;
        os_fault_hook = [](enum os_call call) { return call == OS_PROTECT && refused++ == 0; };
        char* q = block(150000);
        os_fault_hook = nullptr;
        ASSERT_NE(q, nullptr);
        EXPECT_GT(refused, 1u);
        EXPECT_FALSE(unit_keeps_large());
        expect_fences(q);
        // Nor close it: it is not kept.
        os_fault_hook = [](enum os_call call) { return call == OS_PROTECT; };
        unit_free(q);
        os_fault_hook = nullptr;
        EXPECT_FALSE(unit_keeps_large());
        expect_closed(q, 150000);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Fence, TheyFollowTheBlocksEnd) {
    EXPECT_FINE(in_child([] {
        start();
        size_t page = os_page_bytes();
        char* p = block(300000);
        for (unsigned i = 0; i < 300000; i++) p[i] = static_cast<char>(i % 251);
        size_t before = 300000;
        for (size_t bytes : {300000 + page, size_t{5 * 65536}, size_t{700000}, 5 * 65536 - page,
                             size_t{200000}, size_t{65537}, size_t{400000}, size_t{66000}}) {
            char* q = static_cast<char*>(unit_realloc(p, bytes));
            EXPECT_EQ(q, p) << bytes;
            p = q;
            expect_fences(p);
            EXPECT_TRUE(span_check());
            EXPECT_EQ(unit_usable(p), align_up(bytes, page));
            for (unsigned i = 0; i < std::min(before, bytes); i++)
                ASSERT_EQ(p[i], static_cast<char>(i % 251)) << bytes;
            before = std::min(before, bytes);
        }
        // What lay behind a block that shrank is zero when it grows again.
        memset(p, 1, unit_usable(p));
        p = static_cast<char*>(unit_realloc(p, 400000));
        EXPECT_TRUE(is_zero(p + align_up(66000, page), 400000 - align_up(66000, page)));
        // Another one in the way: it moves.
        char* wall = block(100000);
        char* q = static_cast<char*>(unit_realloc(p, 3000000));
        EXPECT_NE(q, p);
        expect_fences(q);
        expect_closed(p, 400000);
        EXPECT_EQ(q[1000], 1);
        unit_free(q);
        unit_free(wall);
        unit_collect();
        EXPECT_TRUE(span_check());
    }));
}

TEST(Fence, AGrowthThatIsRefusedLeavesTheBlock) {
    EXPECT_FINE(in_child([] {
        start();
        char* p = block(300000);
        memset(p, 3, 300000);
        for (size_t bytes : {300000 + os_page_bytes(), size_t{600000}}) {
            uint64_t live = span_totals.live;
            os_fault_hook = [](enum os_call call) { return call == OS_PROTECT; };
            EXPECT_FALSE(fence_resize(unit_slice(p), align_up(300000, os_page_bytes()),
                                      align_up(bytes, os_page_bytes())));
            os_fault_hook = nullptr;
            EXPECT_EQ(span_totals.live, live);
        }
        os_fault_hook = always;
        EXPECT_FALSE(fence_resize(unit_slice(p), align_up(300000, os_page_bytes()), 100000));
        os_fault_hook = nullptr;
        EXPECT_TRUE(is_readable(p + 299999));
        EXPECT_EQ(p[299999], 3);
        EXPECT_TRUE(span_check());
    }));
}

// Pages of a moved block are others; it stays between fences, and its old place is out of reach.
TEST_UNEMULATED(Fence, BlocksMove) {
    EXPECT_FINE(in_child([] {
        start();
        char* p = block(4 << 20);
        char* wall = block(100000);
        for (unsigned i = 0; i < 4 << 20; i++) p[i] = static_cast<char>(i % 253);
        char* q = static_cast<char*>(unit_realloc(p, 9 << 20));
        ASSERT_NE(q, p);
        EXPECT_NE(unit_slice(q)->flags & SLICE_MOVED, 0);
        EXPECT_EQ(span_totals.moved, 1u);
        expect_fences(q);
        expect_closed(p, 4 << 20);
        for (unsigned i = 0; i < 4 << 20; i++) ASSERT_EQ(q[i], static_cast<char>(i % 253));
        EXPECT_TRUE(is_zero(q + (4 << 20), 5 << 20));
        // Smaller, by less than half: it keeps its slices.
        EXPECT_EQ(unit_realloc(q, 6 << 20), q);
        expect_fences(q);
        EXPECT_TRUE(span_check());
        char* r = static_cast<char*>(unit_realloc(q, 2 << 20));
        EXPECT_NE(r, q);
        expect_fences(r);
        EXPECT_EQ(r[1000], static_cast<char>(1000 % 253));
        unit_free(r);
        EXPECT_EQ(span_totals.moved, 0u);
        // A move that the kernel refuses, after it unmapped the destination or not.
        p = block(4 << 20);
        memset(p, 9, 4 << 20);
        os_fault_hook = [](enum os_call call) { return call == OS_REMAP; };
        EXPECT_EQ(fence_move(unit_slice(p), 9 << 20, 4 << 20), nullptr);
        os_fault_hook = nullptr;
        EXPECT_EQ(p[(4 << 20) - 1], 9);
        expect_fences(p);
        unit_free(p);
        unit_free(wall);
        EXPECT_TRUE(span_check());
    }));
}

// Each call refused, one after the other: the block comes, and goes, and nothing is lost but reach.
TEST(Fence, WhereTheyCannotBeHadTheBlockComes) {
    EXPECT_FINE(in_child([] {
        start();
        static unsigned left;
        static enum os_call kind;
        for (enum os_call call : {OS_PROTECT, OS_MAP, OS_PURGE})
            for (unsigned nth = 0; nth < 4; nth++) {
                kind = call;
                left = nth;
                os_fault_hook = [](enum os_call c) { return c == kind && left-- == 0; };
                char* p = block(3 * kept_most);
                os_fault_hook = nullptr;
                ASSERT_NE(p, nullptr) << call << " " << nth;
                memset(p, 1, 3 * kept_most);
                left = nth;
                os_fault_hook = [](enum os_call c) { return c == kind && left-- == 0; };
                unit_free(p);
                os_fault_hook = nullptr;
                EXPECT_TRUE(span_check()) << call << " " << nth;
                EXPECT_EQ(unit_large_bytes(), 0u);
            }
        // Neither closed nor opened nor emptied.
        char* p = block(3 * kept_most);
        memset(p, 1, 3 * kept_most);
        os_fault_hook = always;
        unit_free(p);
        os_fault_hook = nullptr;
        EXPECT_TRUE(span_check());
        char* q = block(3 * kept_most);
        ASSERT_NE(q, nullptr);
        EXPECT_NE(q, p);
        memset(q, 1, 3 * kept_most);
    }));
}

TEST_NATIVE(Fence, MappingsAreBounded) { // sanitizers have mappings of their own
    EXPECT_FINE(in_child([] {
        start();
        fence_most = 20;
        unit_free(block(2 * kept_most));
        unit_collect();
        size_t before = mappings();
        std::vector<char*> blocks;
        for (unsigned i = 0; i < 200; i++) blocks.push_back(block(70000));
        size_t fenced = static_cast<size_t>(std::count_if(blocks.begin(), blocks.end(), is_fenced));
        EXPECT_GE(fenced, 18u);
        EXPECT_LE(fenced, 20u);
        EXPECT_LE(mappings(), before + 2 * 20 + 2); // 2: what may become huge
        // Every other one goes.
        for (unsigned i = 0; i < 200; i += 2) unit_free(blocks[i]);
        unit_collect();
        EXPECT_LE(mappings(), before + 3 * 20);
        for (unsigned i = 1; i < 200; i += 2) unit_free(blocks[i]);
        unit_collect();
        EXPECT_LE(mappings(), before + 20);
        EXPECT_TRUE(span_check());
        fence_most = 1000;
        char* p = block(70000);
        expect_fences(p);
    }));
}

// Under strict accounting a fence is charged for no longer than its block lives.
TEST_UNEMULATED(Fence, StrictAccounting) {
    EXPECT_FINE(in_child([] {
        start();
        region_commit_strict = true;
        std::vector<char*> blocks;
        for (unsigned i = 0; i < 20; i++) {
            blocks.push_back(block(70000 + i * 30000));
            expect_fences(blocks.back());
        }
        for (char* p : blocks) unit_free(p);
        unit_collect();
        EXPECT_TRUE(span_check());
        EXPECT_GT(span_totals.uncommitted, 0u);
        for (char*& p : blocks) {
            p = block(100000);
            expect_fences(p);
        }
    }));
}

TEST(Fence, AForksChildHasThem) {
    EXPECT_FINE(in_child([] {
        start();
        char* p = block(200000);
        char* kept = block(300000);
        unit_free(kept);
        std::atomic<int> step{0};
        std::thread other([&] {
            unit_attach();
            unit_free(block(500000));
            step = 1;
            while (step != 2) usleep(200);
            unit_detach();
        });
        while (step != 1) usleep(200);
        EXPECT_EQ(forked([&] {
                      expect_fences(p);
                      EXPECT_EQ(block(300000), kept);
                      expect_fences(kept);
                      unit_free(kept);
                      unit_free(p);
                      unit_collect();
                      EXPECT_EQ(unit_large_bytes(), 0u);
                      EXPECT_TRUE(span_check());
                  }),
                  0);
        step = 2;
        other.join();
    }));
}

// Blocks of all kinds come, grow, shrink and go on several threads, while memory is given back and calls are
// refused.
TEST(Fence, AtRandom) {
    EXPECT_FINE(in_child([] {
        start();
        static std::atomic<unsigned> calls{0};
        os_fault_hook = [](enum os_call) { return ++calls % 13 == 0; };
        constexpr unsigned count = 3;
        std::vector<std::thread> threads;
        {
            Purger purger;
            for (unsigned t = 0; t < count; t++)
                threads.emplace_back([t] {
                    unit_attach();
                    Random random(t + 1);
                    struct Mine {
                        char* p = nullptr;
                        size_t bytes = 0;
                        char stamp = 0;
                    } mine[12];
                    for (unsigned n = 0; n < unit_rounds(4000); n++) {
                        Mine& m = mine[random.below(12)];
                        size_t bytes = 1000 + random.below(random.below(40) == 0 ? 3 << 20 : 300000);
                        if (m.p == nullptr || random.below(2) == 0) {
                            unit_free(m.p);
                            m.p = random.below(8) == 0 ? block(bytes, size_t{4096} << random.below(8))
                                                       : block(bytes);
                            m.bytes = m.p == nullptr ? 0 : bytes;
                            m.stamp = static_cast<char>(n);
                            if (m.p != nullptr) memset(m.p, m.stamp, bytes);
                        } else {
                            for (size_t at : {size_t{0}, m.bytes / 3, m.bytes - 1})
                                EXPECT_EQ(m.p[at], m.stamp);
                            char* q = static_cast<char*>(unit_realloc(m.p, bytes));
                            if (q == nullptr) continue;
                            for (size_t at : {size_t{0}, m.bytes / 3, m.bytes - 1})
                                EXPECT_TRUE(at >= bytes || q[at] == m.stamp);
                            memset(q, m.stamp, bytes);
                            m.p = q;
                            m.bytes = bytes;
                        }
                    }
                    for (Mine& m : mine) unit_free(m.p);
                    unit_detach();
                });
            for (std::thread& thread : threads) thread.join();
        }
        os_fault_hook = nullptr;
        EXPECT_TRUE(span_check());
        EXPECT_TRUE(unit_arena_check());
        EXPECT_EQ(unit_large_bytes(), 0u);
        expect_fences(block(100000));
    }));
}

// What a slab or a chunk held is wiped before anybody else has its memory, as far as it may be resident.
TEST(Fence, WhatLiesBesideContentsIsWiped) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        static size_t wiped;
        static const char* low;
        static const char* high;
        span_wipe_hook = [](void* p, size_t bytes) {
            EXPECT_GE(static_cast<char*>(p), low);
            EXPECT_LE(static_cast<char*>(p) + bytes, high);
            wiped += bytes;
        };
        bool zeroed;
        bool fresh;
        struct slice* s = span_alloc_slab(8, false, &fresh);
        low = reinterpret_cast<char*>(slice_address(s));
        high = low + 8 * SLICE_BYTES;
        span_mark_rest(s);
        s->kind = SLICE_SLAB;
        // Two pages of the second slice and all of the last one were used.
        EXPECT_EQ(hole_take(s + 1, 6), 6u);
        EXPECT_EQ(hole_take(s + 7, hole_all()), hole_all());
        span_free_paged(s);
        EXPECT_EQ(wiped, 2 * os_page_bytes() + SLICE_BYTES);
        wiped = 0;
        s = span_alloc(3, 1, &zeroed);
        s->kind = SLICE_LARGE;
        hole_show(s, 0);
        span_free(s);
        EXPECT_EQ(wiped, 0u);
    }));
}

} // namespace
