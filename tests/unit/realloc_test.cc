// realloc_test.cc: heap/alloc.c: what a block gets that has to move as it grows. Called by ctest; each test
// starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "address_space.h"
#include "arenas.h"
#include "child.h"
#include "glue.h"
#include "layers.h"
#include <cerrno>
#include <cstring>
#include <sys/resource.h>
#include <vector>
extern "C" {
#include "page/span.h"
#include "tag/tag.h"
}

namespace {

void start(const char* options) {
    setenv("WEIR_OPTIONS", options, 1);
    unit_attach();
}

// A block that cannot grow where it lies: what is behind it is taken.
char* hemmed_in(char* p) {
    for (unsigned i = 0; i < 4; i++) unit_alloc(1100);
    return p;
}
char* block(size_t size) {
    auto* p = static_cast<char*>(unit_alloc(size));
    memset(p, 0x5a, size);
    return hemmed_in(p);
}
char* moved(char* p, size_t size) {
    auto* q = static_cast<char*>(unit_realloc(p, size));
    EXPECT_NE(q, nullptr);
    EXPECT_NE(q, p);
    return hemmed_in(q);
}

bool holds(const char* p, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (p[i] != 0x5a) return false;
    return true;
}

// In whose class a block is for which `size` bytes were asked: that of its size, or so many above.
void expect_class(const char* p, size_t size, unsigned above) {
    const size_t usable = size_classes[class_of(size) + above].bytes;
    EXPECT_EQ(unit_usable(p), usable) << size;
    EXPECT_TRUE(unit_size_matches(usable, size, 1)) << size;
}

// A block grows twice, each time to another place. With `room` at the second time.
void expect_steps(const char* options, size_t before, size_t first, size_t second, bool room) {
    EXPECT_FINE(in_child([=] {
        start(options);
        char* p = block(before);
        p = moved(p, first);
        expect_class(p, first, 0); // it may be that it grows once
        p = moved(p, second);
        EXPECT_TRUE(holds(p, before));
        expect_class(p, second, room && !tag_is_on() ? 2 : 0);
        EXPECT_EQ(unit_realloc(p, unit_usable(p)), p); // the next step costs nothing
        EXPECT_TRUE(unit_arena_check());
        unit_free(p);
        EXPECT_TRUE(unit_arena_check());
    }));
}

TEST(Realloc, ABlockThatGrowsByLittleAgainGetsRoom) {
    for (size_t bytes : {2304u, 3072u, 4096u, 10240u, 20480u, 40960u}) {
        expect_steps("release=off", bytes, bytes + 1, size_classes[class_of(bytes + 1)].bytes + 1, true);
        const size_t step = bytes / 8;
        expect_steps("release=off", bytes, bytes + step, bytes + step + (bytes + step) / 8, true);
    }
}

TEST(Realloc, OneThatGrowsByMuchOrIsSmallGetsWhatItAsksFor) {
    for (size_t bytes : {2048u, 3072u, 4096u, 8192u}) {
        expect_steps("release=off", bytes, bytes + bytes / 8, bytes + bytes / 2 + 512, false);
        expect_steps("release=off", bytes, 2 * bytes, 4 * bytes, false);
    }
    for (size_t bytes : {64u, 512u, 1040u})
        expect_steps("release=off", bytes, bytes + bytes / 8, bytes + bytes / 2, false);
    expect_steps("release=off", 49152, 49153, 57345, false); // there are no two more
}

// Where an overflow is to be found, there is no more behind a block than there has to be.
TEST(Realloc, WhereAllIsCheckedThereIsNoRoom) {
    for (size_t bytes : {3072u, 20480u})
        expect_steps("release=off:checks=full", bytes, bytes + 1, bytes + bytes / 4 + 1, false);
}

// What others left of larger classes makes it no more than that.
TEST(Realloc, TheRoomIsNoMoreWhereLargerOnesAreKept) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        const size_t first = 4097;
        const size_t second = 4609;
        std::vector<void*> larger;
        for (unsigned above : {1u, 3u, 4u})
            larger.push_back(unit_alloc(size_classes[class_of(second) + above].bytes));
        char* p = moved(block(4096), first);
        for (void* one : larger) unit_free(one);
        expect_class(moved(p, second), second, 2);
    }));
}

// A block is known to have grown until it is freed.
TEST(Realloc, WhoGetsAFreedBlockDidNotGrowIt) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        char* p = moved(block(4096), 4097);
        unit_free(p);
        auto* again = static_cast<char*>(unit_alloc(4097));
        ASSERT_EQ(bare(again), bare(p));
        p = moved(again, 4609);
        expect_class(p, 4609, 0);
        unit_medium_drop();
        EXPECT_TRUE(unit_arena_check());
    }));
}

// Arrays that grow by an eighth in turns.
TEST(Realloc, ArraysThatGrowByLittleMoveSeldom) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        constexpr size_t most = 57344;
        std::vector<char*> arrays(8);
        for (char*& p : arrays) p = static_cast<char*>(unit_alloc(2048));
        unsigned steps = 0;
        unsigned moves = 0;
        for (size_t size = 2048; size + size / 8 <= most; size += size / 8) {
            for (char*& p : arrays) {
                auto* q = static_cast<char*>(unit_realloc(p, size + size / 8));
                ASSERT_NE(q, nullptr);
                moves += q != p ? 1 : 0;
                steps++;
                p = q;
            }
        }
        EXPECT_LE(moves * 2, steps); // without room nearly each
        for (char* p : arrays) unit_free(p);
        expect_nothing_left();
    }));
}

// What it would leave behind it is too short for the next one of the length that it had.
TEST(Realloc, ALargeBlockThatShrinksByMuchLeavesItsSpan) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        const size_t large = 1 << 20;
        for (size_t size : {large / 2 - 1, size_t{100000}, size_t{65537}, size_t{5000}}) {
            char* p = block(large);
            auto* q = static_cast<char*>(unit_realloc(p, size));
            EXPECT_NE(q, p) << size;
            EXPECT_TRUE(holds(q, size));
            expect_class(q, size, 0);
            EXPECT_EQ(unit_alloc(large), p) << size; // with its memory
            unit_free(p);
            unit_free(q);
        }
        for (size_t size : {large / 2, large / 2 + 1, large - 4096}) {
            char* p = block(large);
            EXPECT_EQ(unit_realloc(p, size), p) << size;
            EXPECT_TRUE(holds(p, size));
            unit_free(p);
        }
        EXPECT_TRUE(unit_arena_check());
    }));
}

// Filled and emptied again and again, live memory is what fits, and no more.
TEST(Realloc, BuffersThatShrinkToWhatTheyHoldTakeLittle) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        const unsigned count = 100;
        std::vector<void*> held(count);
        uint64_t seed = 1;
        size_t live = 0;
        for (unsigned i = 0; i < 20 * count; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const size_t at = (seed >> 33) % count;
            const size_t size = 5000 + (seed >> 40) % 400000;
            unit_free(held[at]);
            held[at] = unit_realloc(unit_alloc(1 << 20), size);
        }
        for (void* p : held) live += unit_usable(p);
        struct unit_figures f;
        unit_census(&f);
        EXPECT_LE(f.committed_bytes, 2 * live);
        for (void* p : held) unit_free(p);
    }));
}

// Absent: sanitizers' shadow is larger than any limit, and emulators keep none
TEST_NATIVE(Realloc, WithoutMemoryForMoreItGetsWhatItAsksFor) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        char* p = moved(block(32768), 36000);
        char* later = moved(block(32768), 36000);
        std::vector<void*> all;
        all.reserve(1 << 16);
        for (unsigned i = 0; i < 64; i++) all.push_back(unit_alloc(40000));
        span_trim();
        struct rlimit limit = {address_space_used(), RLIM_INFINITY};
        ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
        for (size_t size : {40000u, 4096u, 2048u})
            for (void* q; all.size() < all.capacity() && (q = unit_alloc(size)) != nullptr;) all.push_back(q);
        ASSERT_LT(all.size(), all.capacity());
        errno = 0;
        EXPECT_EQ(unit_realloc(p, 37000), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        EXPECT_EQ(unit_usable(p), 36864u);
        unit_free(all[7]);
        errno = 0;
        EXPECT_EQ(unit_realloc(p, 40000), all[7]);
        EXPECT_EQ(errno, 0);
        EXPECT_EQ(unit_usable(all[7]), 40960u);
        // That there was no memory takes nothing from what is known of a block.
        EXPECT_EQ(unit_realloc(later, 37000), nullptr);
        limit.rlim_cur = RLIM_INFINITY;
        ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
        expect_class(moved(later, 37000), 37000, 2);
    }));
}

} // namespace
