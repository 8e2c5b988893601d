// medium_along_test.cc: medium blocks that come along with one, for what its thread keeps: how many, of
// which, where the others go, and that nobody gets a fresh one who asked for less. Called by ctest; each test
// starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "arenas.h"
#include "at_step.h"
#include "workers.h"
#include <algorithm>
extern "C" {
#include "page/fence.h"
#include "page/release.h"
}

namespace {

unsigned medium_of(size_t size) { return class_of(size) - SMALL_CLASSES; }

void start(const char* options) {
    setenv("WEIR_OPTIONS", options, 1);
    unit_attach();
}

// Blocks that are in the program's hands at the same time are not the same.
void expect_distinct(std::vector<void*> all) {
    for (void*& p : all) p = bare(p);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

// What a thread takes of one size, and how often that takes the slow way.
struct Taken {
    std::vector<void*> all;
    uint64_t take(size_t count, size_t size) {
        uint64_t before = unit_slow_calls();
        for (size_t i = 0; i < count; i++) all.push_back(unit_alloc(size));
        return unit_slow_calls() - before;
    }
    void give(size_t count) {
        for (size_t i = 0; i < count; i++, all.pop_back()) unit_free(all.back());
    }
    void give_all() { give(all.size()); }
    // Takes blocks until none of the class is kept.
    void take_kept(unsigned m) {
        while (unit_kept_count(m) != 0) take(1, class_bytes(m));
    }
};

// Of those that wait in the arena some come along at a time, and so do some that are new, of a class of which
// there are more and more: no lock is taken for each block.
TEST(MediumAlong, SomeComeAlong) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        if (tag_is_on()) return; // each is taken by itself then
        Taken taken;
        EXPECT_GE(taken.take(8, 3000), 8u); // a part of what there is of the class, which is none
        EXPECT_LE(taken.take(100, 3000), 40u);
        EXPECT_LE(taken.take(400, 3000), 400u / 8);
        expect_distinct(taken.all);
        EXPECT_LE(unit_kept_medium_bytes(), 8u * 3072); // no more than so
        struct unit_figures figures;
        unit_census(&figures);
        EXPECT_EQ(figures.live_blocks, 508u);
        taken.give_all();
        EXPECT_LE(taken.take(60, 3000), 10u);
        expect_distinct(taken.all);
        EXPECT_TRUE(unit_arena_check());
        taken.give_all();
        expect_nothing_left();
    }));
}

// None do where there is no room for 32 KiB of them.
TEST(MediumAlong, NoneWhereLittleIsKept) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535:thread_kept_max=16k");
        Taken taken;
        for (unsigned i = 0; i < 100; i++) {
            taken.take(1, 3000);
            EXPECT_EQ(unit_kept_medium_bytes(), 0u) << i;
        }
        taken.give_all();
        expect_nothing_left();
    }));
}

// 32 KiB at a time, of large blocks as of small ones.
TEST(MediumAlong, ByBytes) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        if (tag_is_on()) return;
        for (auto [size, most] : {std::pair<size_t, unsigned>{12000, 2}, {16384, 2}, {3000, 8}, {18000, 0}}) {
            const unsigned m = medium_of(size);
            Taken taken;
            unsigned along = 0;
            for (unsigned i = 0; i < 200; i++) {
                taken.take(1, size);
                along = std::max(along, unit_kept_count(m));
            }
            EXPECT_EQ(along, most) << size;
            taken.give_all();
            unit_collect();
        }
        expect_nothing_left();
    }));
}

// Where use goes down and up again those that wait come along even if the thread has none of the class just
// then, and more of them at a time: 16, or 128 KiB.
TEST(MediumAlong, MoreWhereUseGoesDownAndUp) {
    for (bool swings : {false, true})
        EXPECT_FINE(in_child([=] {
            start("release=off:sparse_max=65535");
            if (tag_is_on()) return;
            stay_on_one_processor();
            for (auto [size, most] :
                 {std::pair<size_t, unsigned>{3000, 16}, {12000, 10}, {18000, 6}, {30000, 4}}) {
                Taken other, taken;
                other.take(1000, 9000); // so that 256 KiB may wait
                // Four times at least, and on until it is known, as it is forgotten now and then.
                const size_t steady_max = 3 << 20;
                for (unsigned i = 0; swings && (i < 4 || unit_kept_medium_max() <= steady_max); i++) {
                    ASSERT_LT(i, 8u);
                    taken.take(8000000 / size, size);
                    taken.give_all();
                }
                unit_medium_drop();
                unit_depot_empty();
                unit_arena_publish();
                taken.take(most + 1, size);
                taken.give_all();
                unit_medium_drop(); // all of them wait
                ASSERT_EQ(unit_medium_out(medium_of(size)), 0u);
                taken.take(1, size);
                EXPECT_EQ(unit_kept_count(medium_of(size)), swings ? most : 0u) << size;
                expect_distinct(taken.all);
                other.give_all();
                taken.give_all();
                unit_collect();
            }
            expect_nothing_left();
        }));
}

// Of those that wait as many come along as have room, however few the thread has; of fresh ones, where it
// keeps some already, only such as have memory: the others would go before memory is added.
TEST(MediumAlong, WhatWaitsAndWhatIsFresh) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        if (tag_is_on()) return;
        stay_on_one_processor();
        const unsigned m = medium_of(3000);
        Taken other, taken;
        other.take(300, 9000); // so that more may wait
        taken.take(200, 3000);
        taken.give_all(); // some are kept, some wait
        taken.take_kept(m);
        ASSERT_LT(unit_medium_out(m) / 8, 7u);
        taken.take(1, 3000);
        EXPECT_EQ(unit_kept_count(m), 8u);
        other.give(16); // where something else is kept, too
        ASSERT_GT(unit_kept_medium_bytes(), 65536u);
        taken.take_kept(m);
        taken.take(1, 3000);
        EXPECT_EQ(unit_kept_count(m), 8u);
        taken.take(160, 3000);
        taken.take_kept(m);
        ASSERT_GE(unit_medium_out(m), 160u);
        // What goes back has memory, and no block of the class waits.
        for (unsigned kept : {5u, 16u}) {
            taken.give(40);
            unit_medium_drop();
            unit_arena_publish();
            other.give(kept);
            ASSERT_GT(unit_kept_medium_bytes(), 32768u);
            ASSERT_EQ(unit_kept_medium_bytes() > 65536, kept == 16);
            taken.take(1, 3000);
            EXPECT_EQ(unit_kept_count(m), 8u);
            taken.take_kept(m);
        }
        // What is free has no memory, but for the ends of runs on pages that others use: on larger ones two
        // ends are blocks enough.
        unit_collect();
        release_all();
        other.give(5);
        for (unsigned i = 0; i < 50 && page_shift == 12; i++) {
            ASSERT_GT(unit_kept_medium_bytes(), 32768u);
            taken.take(1, 3000);
            ASSERT_EQ(unit_kept_count(m), 0u);
        }
        unit_collect();
        release_all();
        taken.take(1, 3000);
        EXPECT_EQ(unit_kept_count(m), 8u);
        // So it is beside a long block, which is kept in any case.
        taken.take_kept(m);
        unit_free(unit_alloc(100000));
        ASSERT_GT(unit_kept_medium_bytes(), 65536u);
        taken.take(1, 3000);
        EXPECT_GT(unit_kept_count(m), 0u);
        other.give_all();
        taken.give_all();
        expect_nothing_left();
    }));
}

// Where there are more than its ring has room for, the others go back. So it is where it has more than its
// places, as threads became many.
TEST(MediumAlong, WhatHasNoRoomGoesBack) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        if (tag_is_on()) return;
        stay_on_one_processor();
        const unsigned m = medium_of(4096);
        const size_t align = 512;
        auto starts_right = [](void* p) { return reinterpret_cast<uintptr_t>(p) % align == 0; };
        Taken other, taken;
        other.take(300, 9000); // so that more may wait
        auto give_those = [&](bool right, unsigned count) {
            for (; count != 0; count--) {
                auto one = std::find_if(taken.all.begin(), taken.all.end(),
                                        [&](void* p) { return starts_right(p) == right; });
                ASSERT_NE(one, taken.all.end());
                std::swap(*one, taken.all.back());
                taken.give(1);
            }
        };
        std::vector<std::unique_ptr<Worker>> workers;
        for (unsigned round = 0; round < 2; round++) {
            while (taken.all.size() < 1200) {
                taken.take(1, 4096);
                other.take(taken.all.size() % 8 == 0, 1152); // so that some start right
            }
            unsigned full = 0;
            for (unsigned i = 0; i < 8; i++) {
                // What waits starts right, the youngest that is kept does not: those that come along find few
                // places in the ring.
                const unsigned most = unit_kept_count_max(m);
                taken.take_kept(m);
                give_those(true, most + 1);
                unsigned places = round == 0 ? i : 0;
                for (unsigned j = 0; j < most && unit_kept_count(m) < most - places; j++)
                    give_those(false, 1);
                if (round == 1 && i == 0)
                    for (unsigned j = 0; j < 8; j++) {
                        workers.push_back(std::make_unique<Worker>());
                        workers.back()->does([] { unit_free(unit_alloc(100)); });
                    }
                void* p = unit_alloc_aligned(4096, align);
                EXPECT_TRUE(starts_right(p));
                taken.all.push_back(p);
                full += unit_kept_count(m) == most;
                taken.give(8); // no more than there is room for
                EXPECT_LE(unit_kept_count(m), most);
            }
            EXPECT_GE(full, 5u); // those of the others that wait may have become runs
            taken.take(200, 4096);
            taken.give(100);
            taken.take(100, 4096);
            for (void* p : taken.all) memset(p, 0x5a, 4096);
            expect_distinct(taken.all);
            EXPECT_EQ(unit_arena_used(m), taken.all.size() + unit_kept_count(m));
        }
        taken.give_all();
        other.give_all();
        workers.clear();
        unit_collect();
        EXPECT_EQ(unit_arena_used(m), 0u);
        EXPECT_TRUE(unit_arena_check());
    }));
}

// A fresh block of a larger class serves none who asks for less: it may have no memory, as those have that a
// freed one saves.
TEST(MediumAlong, AFreshBlockServesItsClassAlone) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=65535");
        if (tag_is_on()) return;
        const unsigned m = medium_of(9216);
        Taken taken;
        taken.take(64, 9216);
        for (unsigned i = 0; i < 64 && unit_kept_count(m) < 2; i++) taken.take(1, 9216);
        ASSERT_GE(unit_kept_count(m), 2u);
        for (size_t size : {8192u, 7680u}) {
            taken.take(1, size);
            EXPECT_EQ(unit_usable(taken.all.back()), size);
        }
        void* freed = taken.all[0];
        unit_free(freed);
        taken.all[0] = unit_alloc(8192);
        EXPECT_EQ(taken.all[0], freed);
        taken.take_kept(m);
        taken.give(2); // a class that was fresh is one that was freed, from then on
        ASSERT_EQ(unit_kept_count(m), 2u);
        taken.take(1, 7680);
        EXPECT_EQ(unit_usable(taken.all.back()), 9216u);
        taken.give_all();
        expect_nothing_left();
    }));
}

// ---- Another thread's visit, and a fork, between any two instructions of a call with which some come along.
#if defined(__x86_64__)

// Blocks of a class, so that the next one takes some along.
struct Along : Taken {
    const size_t size;
    const unsigned m;
    explicit Along(size_t bytes) : size(bytes), m(medium_of(bytes)) { all.reserve(1024); }
    void prepare() {
        if (all.size() > 120) {
            give(60);
            unit_collect();
        }
        while (all.size() < 70) take(1, size);
        take_kept(m);
        unit_free(unit_alloc(5000)); // the gate is open
    }
    void check(unsigned step) {
        for (void* p : all) ASSERT_GE(unit_usable(p), size) << step; // of a free one that is reported
        expect_distinct(all);
        struct unit_figures f;
        unit_census(&f);
        ASSERT_EQ(f.live_blocks, all.size()) << step;
        ASSERT_TRUE(unit_arena_check()) << step;
    }
    void end() {
        give_all();
        unit_collect();
        EXPECT_EQ(unit_kept_medium_bytes(), 0u);
        EXPECT_EQ(unit_arena_used(m), 0u);
    }
};

// What comes is told of each `stride`th step (times stepping_apart) of a call with which some come along, one
// in each call.
template <class Comes>
void comes_at_steps(Along& along, unsigned stride) {
    enum { most = 1500 }; // instructions of a call
    along.prepare();
    along.take(1, along.size);
    EXPECT_NE(unit_kept_count(along.m), 0u); // where nothing comes between
    for (unsigned step = 1; step <= most; step += stride * stepping_apart) {
        along.prepare();
        Comes::start(step);
        void* p = unit_alloc(along.size);
        stepping_stop();
        Comes::wait();
        along.all.push_back(p);
        along.check(step);
    }
}

TEST_NATIVE(MediumAlong, AVisitAtEachStep) {
    for (size_t bytes : {3000u, 12000u})
        EXPECT_FINE(in_child([=] {
            windows_are_endless(":release=off:sparse_max=65535");
            unit_attach();
            fence_is_on = false;
            Along along(bytes);
            {
                Visitor visitor;
                comes_at_steps<Visitor>(along, 17);
                EXPECT_GT(Visitor::done, 10u);
                EXPECT_GT(Visitor::in_time, 0u);
            }
            along.end();
        }));
}

Along* forks_along;

// What the parent has is the child's, once each, and goes back; no more than came along, and the one that was
// taken, may be lost.
bool child_has_what_was() {
    Along& a = *forks_along;
    bool fine = unit_arena_check() && span_check();
    a.take(100, a.size);
    std::sort(a.all.begin(), a.all.end());
    fine = fine && std::adjacent_find(a.all.begin(), a.all.end()) == a.all.end();
    for (void* p : a.all) fine = fine && unit_usable(p) >= a.size;
    a.give_all();
    unit_collect();
    struct unit_figures f;
    unit_census(&f);
    return fine && f.live_blocks <= 9 && unit_arena_check();
}

TEST_NATIVE(MediumAlong, AForkAtEachStep) {
    for (size_t bytes : {3000u, 12000u})
        EXPECT_FINE(in_child([=] {
            windows_are_endless(":release=off:sparse_max=65535");
            unit_attach();
            Along along(bytes);
            forks_along = &along;
            Forker::fine = child_has_what_was;
            comes_at_steps<Forker>(along, 23);
            EXPECT_GT(Forker::forks, unit_ubsan ? 6u : 10u);
            EXPECT_EQ(Forker::bad, 0u);
            along.end();
        }));
}
#endif

} // namespace
