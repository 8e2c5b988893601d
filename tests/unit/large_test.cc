// large_test.cc: the large block that a thread keeps for its next one: who gets it, when it goes, what the
// figures say meanwhile. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "holes.h"
#include "workers.h"
#include <atomic>
#include <thread>
extern "C" {
#include "page/fence.h"
}

namespace {

constexpr size_t kept_most = 1 << 20;

uint64_t pages(size_t bytes) { return align_up(bytes, os_page_bytes()); }
uint64_t free_spans() { return load_relaxed(&span_totals.dirty); }

struct unit_figures figures() {
    struct unit_figures f;
    unit_census(&f);
    return f;
}

// Where memory is tagged large blocks have fences, and go to other spans: fence_test.cc.
void start() {
    windows_are_endless();
    unit_attach();
    fence_is_on = false;
}

unsigned char* filled(size_t bytes) {
    auto* p = static_cast<unsigned char*>(unit_alloc(bytes));
    memset(p, 0x5a, bytes);
    return p;
}

// A thread of its own that frees a large block, and sleeps until it is told to end.
class Sleeper {
  public:
    explicit Sleeper(size_t bytes)
        : thread([this, bytes] {
              unit_attach();
              unit_free(filled(bytes));
              state = 1;
              while (state != 2) usleep(200);
              unit_detach();
          }) {
        while (state != 1) usleep(200);
    }
    ~Sleeper() {
        state = 2;
        thread.join();
    }

  private:
    std::atomic<int> state{0};
    std::thread thread;
};

TEST(Large, TheLastOneFreedIsGivenOutAgain) {
    EXPECT_FINE(in_child([] {
        start();
        for (size_t bytes : {size_t{600000}, size_t{655360}, kept_most}) {
            void* p = filled(bytes);
            uint64_t calls = figures().alloc_calls;
            unit_free(p);
            EXPECT_EQ(unit_large_bytes(), 0u);
            EXPECT_EQ(figures().live_blocks, 0u);
            EXPECT_GE(figures().cached_bytes, bytes);
            EXPECT_EQ(unit_alloc(bytes), p);
            EXPECT_EQ(unit_large_bytes(), pages(bytes));
            EXPECT_EQ(figures().live_blocks, 1u);
            EXPECT_EQ(figures().alloc_calls, calls + 1);
            // Another size in as many slices.
            unit_free(p);
            size_t less = bytes - os_page_bytes();
            EXPECT_EQ(unit_alloc(less), p);
            EXPECT_EQ(unit_usable(p), pages(less));
            EXPECT_EQ(unit_large_bytes(), pages(less));
            unit_free(p);
            // What a program had written is no zero.
            bool zeroed = true;
            auto* q = static_cast<unsigned char*>(unit_alloc_zeroable(less, &zeroed));
            EXPECT_EQ(q, p);
            EXPECT_FALSE(zeroed);
            unit_free(q);
        }
        unit_collect();
        EXPECT_EQ(figures().cached_bytes, 0u);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Large, OthersGoToTheFreeSpans) {
    EXPECT_FINE(in_child([] {
        start();
        void* first = filled(600000);
        void* second = filled(700000);
        void* third = filled(kept_most + 1);
        uint64_t before = free_spans();
        unit_free(first);
        EXPECT_EQ(free_spans(), before);
        unit_free(second); // in the first one's place
        EXPECT_EQ(free_spans(), before + pages(600000));
        unit_free(third);
        EXPECT_EQ(free_spans(), before + pages(600000) + pages(kept_most + 1));
        EXPECT_NE(unit_alloc(600000), second); // another number of slices
        EXPECT_EQ(unit_alloc(700000), second);
    }));
}

TEST(Large, WhatIsNotNeededForAWhileGoes) {
    EXPECT_FINE(in_child([] {
        start();
        void* needed = unit_alloc(600000);
        unit_free(needed);
        for (bool again : {true, false}) {
            // Slow calls by the thousand.
            for (unsigned n = 0; n < 40000; n++) {
                unit_free(unit_alloc(2000 + n % 30 * 1000));
                if (again && n % 100 == 0) unit_free(unit_alloc(600000));
            }
            EXPECT_EQ(unit_keeps_large(), again);
        }
        EXPECT_EQ(figures().live_blocks, 0u);
    }));
}

TEST(Large, ASleepersGoesToWhoeverLooks) {
    EXPECT_FINE(in_child([] {
        start();
        Sleeper sleeper(kept_most);
        EXPECT_GE(load_relaxed(&release_owed), kept_most); // somebody is to look
        uint64_t before = free_spans();
        unit_visit(false); // who has needed nothing since the last one
        unit_visit(false);
        EXPECT_EQ(free_spans(), before + kept_most);
        EXPECT_EQ(unit_large_bytes(), 0u);
        EXPECT_TRUE(span_check());
    }));
}

// A thread keeps a large block and a medium one, and goes on with blocks of so many bytes while others look;
// `ends` is what it looks at then.
void uses_one_of_two(size_t bytes, void (*ends)()) {
    start();
    Worker worker;
    worker.does([] {
        unit_attach();
        unit_free(filled(kept_most));
        unit_free(unit_alloc(8192));
    });
    for (int i = 0; i < 3; i++) {
        unit_visit(false);
        worker.does([bytes] { unit_free(unit_alloc(bytes)); });
    }
    worker.does(ends);
}

// Each goes when it was not used, whatever the thread does with the other.
TEST(Large, MediumBlocksInUseKeepNone) {
    EXPECT_FINE(in_child([] {
        uses_one_of_two(8192, [] {
            EXPECT_FALSE(unit_keeps_large());
            EXPECT_GT(unit_kept_medium_bytes(), 0u);
            EXPECT_GE(free_spans(), kept_most);
        });
    }));
}
TEST(Large, OneInUseKeepsNoMediumBlocks) {
    EXPECT_FINE(in_child([] {
        uses_one_of_two(kept_most, [] {
            EXPECT_TRUE(unit_keeps_large());
            EXPECT_EQ(unit_kept_medium_bytes(), 0u);
        });
    }));
}

// The one before is in the program's hands when somebody looks: the next one that is kept is told again.
TEST(Large, WhatIsKeptAfterALookIsToldToo) {
    EXPECT_FINE(in_child([] {
        start();
        unit_free(filled(kept_most));
        void* p = unit_alloc(kept_most);
        unit_visit(true);
        EXPECT_EQ(load_relaxed(&release_owed), 0u);
        unit_free(p);
        EXPECT_GE(load_relaxed(&release_owed), kept_most);
    }));
}

TEST(Large, AThreadsEndLeavesNone) {
    EXPECT_FINE(in_child([] {
        start();
        uint64_t before = free_spans();
        {
            Sleeper sleeper(kept_most);
        }
        EXPECT_GE(free_spans(), before + kept_most);
        EXPECT_EQ(figures().live_blocks, 0u);
    }));
}

TEST(Large, AForksChildHasWhatOtherThreadsKept) {
    EXPECT_FINE(in_child([] {
        start();
        Sleeper sleeper(kept_most);
        unit_free(filled(700000));
        EXPECT_EQ(forked([] {
                      EXPECT_EQ(unit_large_bytes(), 0u);
                      EXPECT_EQ(figures().live_blocks, 0u);
                      unit_collect();
                      EXPECT_GE(free_spans(), kept_most + pages(700000));
                      EXPECT_EQ(figures().cached_bytes, 0u);
                      EXPECT_TRUE(span_check());
                  }),
                  0);
    }));
}

// Owners keep and take, others look all the time: each block is one thread's, and none is lost.
TEST(Large, OwnersAndVisitorsAtWork) {
    EXPECT_FINE(in_child([] {
        start();
        constexpr unsigned owners = 3;
        const unsigned rounds = unit_sanitized || unit_emulated ? 3000 : 20000;
        std::atomic<unsigned> at_work{owners};
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < owners; t++)
            threads.emplace_back([&, t] {
                unit_attach();
                Random random(t);
                for (unsigned n = 0; n < rounds; n++) {
                    size_t bytes = 600000 + random.below(8) * 50000;
                    auto* p = static_cast<std::atomic<unsigned>*>(unit_alloc(bytes));
                    p[0] = p[10000] = t * rounds + n;
                    if (random.below(64) == 0) std::this_thread::yield();
                    EXPECT_EQ(p[0], t * rounds + n);
                    EXPECT_EQ(p[10000], t * rounds + n);
                    unit_free(p);
                }
                at_work--;
                while (at_work != 0) usleep(200); // no heap is another thread's meanwhile
                unit_detach();
            });
        while (at_work != 0) unit_visit(true);
        for (std::thread& t : threads) t.join();
        EXPECT_EQ(unit_large_bytes(), 0u);
        EXPECT_EQ(figures().live_blocks, 0u);
        unit_collect();
        EXPECT_TRUE(span_check());
    }));
}

// A block of which few pages are resident is zero without the others' becoming so: what lies together is
// zeroed, what is scattered goes.
TEST_UNEMULATED(Large, WhatIsNotResidentStaysSoWhenItIsCleared) {
    EXPECT_FINE(in_child([] {
        start();
        const size_t window = 4 << 20, page = os_page_bytes(),
                     bytes = 5 * window + page + 1000; // the rest is zeroed as it is
        if (page > 4096) return;
        struct {
            size_t first, step, count; // pages that are written
            bool stay, all;            // these; and all others come
        } windows[] = {{0, 1, 1024, true, true},
                       {100, 1, 400, true, false},
                       {3, 20, 50, false, false},
                       {7, 100, 10, true, false},
                       {0, 5, 200, true, true}};
        for (bool refused : {false, true}) {
            auto* p = static_cast<unsigned char*>(unit_alloc(bytes));
            ASSERT_NE(p, nullptr);
            ASSERT_TRUE(os_purge(p, align_up(bytes, page)));
            for (size_t w = 0; w < 5; w++)
                for (size_t i = 0; i < windows[w].count; i++)
                    p[w * window + (windows[w].first + i * windows[w].step) * page + i] = 1;
            p[bytes - 1] = 1;
            if (refused) os_fault_hook = [](enum os_call call) { return call == OS_PURGE; };
            unit_clear(p, bytes);
            os_fault_hook = nullptr;
            for (size_t w = 0; w < 5 && !refused; w++)
                for (size_t i = 0; i < window / page; i++) {
                    bool written = i >= windows[w].first && (i - windows[w].first) % windows[w].step == 0 &&
                                   (i - windows[w].first) / windows[w].step < windows[w].count;
                    ASSERT_EQ(is_resident(page_of(p + w * window) + i),
                              windows[w].all || (written && windows[w].stay))
                        << w << ": " << i;
                }
            EXPECT_TRUE(is_zero(p, bytes));
            unit_free(p);
        }
        expect_nothing_left();
    }));
}

// Who appends byte by byte asks for as many pages as there are, nearly always.
TEST(Large, AsManyPagesAgainTakeNoLock) {
    EXPECT_FINE(in_child(
        [] {
            start();
            Blocks blocks;
            ASSERT_TRUE(blocks.alloc(1 << 20));
            std::atomic<int> step{0};
            std::thread holder([&] {
                os_lock_take(&page_lock);
                step = 1;
                while (step != 2) usleep(100);
                os_lock_give(&page_lock);
            });
            while (step != 1) usleep(100);
            const void* p = blocks.all[0].p;
            for (size_t less : {1u, 100u, 0u, 1000u}) ASSERT_TRUE(blocks.realloc(0, (1 << 20) - less));
            step = 2;
            holder.join();
            EXPECT_EQ(blocks.all[0].p, p);
            EXPECT_TRUE(contents_right(blocks));
        },
        20));
}

// Neither can go on where it lies for long: they move seldom.
TEST_UNEMULATED(Large, TwoThatGrowInTurnsMoveSeldom) {
    EXPECT_FINE(in_child([] {
        start();
        Blocks blocks;
        ASSERT_TRUE(blocks.alloc(1 << 20));
        ASSERT_TRUE(blocks.alloc(1 << 20));
        uint64_t moves = os_call_counts[OS_REMAP];
        for (size_t size = 1 << 20; size <= 8 << 20; size += SLICE_BYTES) {
            ASSERT_TRUE(blocks.realloc(0, size));
            ASSERT_TRUE(blocks.realloc(1, size));
        }
        EXPECT_GE(os_call_counts[OS_REMAP] - moves, 2u);
        EXPECT_LE(os_call_counts[OS_REMAP] - moves, 50u); // each slice: 220
        EXPECT_TRUE(contents_right(blocks));
        blocks.free_all();
        EXPECT_EQ(span_totals.moved, 0u);
        expect_nothing_left();
    }));
}

// Two more blocks from 1 to 16 MiB by `factor`, in turns, so that each is in the other one's way. How often
// page tables were changed.
uint64_t moves_to_grow(Blocks& blocks, double factor) {
    const uint64_t moves = os_call_counts[OS_REMAP];
    const size_t first = blocks.all.size();
    for (size_t i : {first, first + 1}) EXPECT_TRUE(blocks.alloc(1 << 20)) << i;
    for (double size = factor * (1 << 20); size <= 16 << 20; size *= factor)
        for (size_t i : {first, first + 1}) EXPECT_TRUE(blocks.realloc(i, size_t(size)));
    EXPECT_TRUE(contents_right(blocks));
    return os_call_counts[OS_REMAP] - moves;
}

// It would be copied many times over.
TEST_UNEMULATED(Large, WhatGrowsByLittleMovesThereToo) {
    EXPECT_FINE(in_child([] {
        start();
        Blocks blocks;
        EXPECT_GE(moves_to_grow(blocks, 2), 4u);
        blocks.free_all();
        EXPECT_GE(moves_to_grow(blocks, 1.25), 4u);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// What such a block had as it was freed is worth as much copying, where it grows by much at once.
TEST_UNEMULATED(Large, WhatGrowsWhereOthersGrewBeforeIsCopied) {
    EXPECT_FINE(in_child([] {
        start();
        Blocks blocks;
        EXPECT_GE(moves_to_grow(blocks, 2), 4u);
        blocks.free_all();
        for (unsigned round = 0; round < 3; round++) {
            EXPECT_EQ(moves_to_grow(blocks, 2), 0u) << round;
            EXPECT_EQ(span_totals.moved, 0u);
            blocks.free_all();
        }
        EXPECT_EQ(moves_to_grow(blocks, 2), 0u);
        uint64_t moves = 0; // nothing is freed meanwhile; some of them find room where they lie
        for (unsigned more = 0; more < 4; more++) moves += moves_to_grow(blocks, 2);
        EXPECT_GE(moves, 4u);
        blocks.free_all();
        expect_nothing_left();
    }));
}

} // namespace
