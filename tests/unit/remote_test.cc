// remote_test.cc: blocks that other threads free: they come home, or go to who has a use for them; owners
// that sleep, slabs without one. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "at_step.h"
#include "holes.h"
#include "workers.h"
extern "C" {
#include "page/huge.h"
}
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

namespace {

TEST(Remote, FreesOfAnothersBlocksComeHome) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker owner;
        std::vector<void*> all;
        for (size_t size : {16u, 48u, 1000u, 5000u, 60000u, 100000u}) {
            owner.does([&] { all = many(500, size); });
            for (void* p : all) unit_free(p);
            unit_collect();
            owner.does([] { unit_collect(); }); // what waits in its bins counts as live otherwise
            EXPECT_GE(unit_check_slabs(), 0);
            EXPECT_EQ(census().live_blocks, 0u) << size;
            // The owner goes on with what came back.
            owner.does([&] {
                std::vector<void*> again = many(500, size);
                EXPECT_EQ(std::set<void*>(again.begin(), again.end()).size(), 500u);
                for (void* p : again) unit_free(p);
            });
        }
        const uint64_t remote_frees = census().remote_frees;
        EXPECT_GT(remote_frees, 400u);
        owner.end();
        EXPECT_EQ(census().remote_frees, remote_frees); // its heap's among them
        expect_nothing_left();
    }));
}

TEST(Remote, OwnerTakesInWhatOthersFreed) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker owner;
        std::vector<void*> all;
        owner.does([&] { all = many(100, 64); });
        struct slice* s = unit_slice(all[0]);
        unit_free(all[0]);
        const uint32_t alone = tag_is_on() ? 0 : 1; // nothing says that more of the slab come
        EXPECT_EQ(unit_remote_count(s), alone);
        for (size_t i = 1; i < 33; i++) unit_free(all[i]); // an outbox's worth
        EXPECT_EQ(unit_remote_count(s), 32 + alone);
        EXPECT_FALSE(unit_is_mine(s));
        uint32_t used = unit_used(s);
        owner.does([&] { unit_free(all[40]); }); // nudged: the free looks
        EXPECT_EQ(unit_remote_count(s), 0u);
        EXPECT_EQ(unit_used(s), used - 33 - alone);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// What others freed is joined to the owner's own list as it is, however long: none of its links but the last
// one is looked at, each of which would be another processor's line.
TEST(Remote, WhatOthersFreedIsJoinedToTheOwnersListUnread) {
    for (unsigned count : {1u, 2u, 20u, 60u}) // alone, and more than an outbox's worth
        EXPECT_FINE(in_child([=] {
            windows_are_endless(":check_first=0:check_every=1000000");
            unit_attach();
            if (tag_is_on()) return; // there they are followed
            Worker owner;
            std::vector<void*> all;
            owner.does([&] {
                all = many(100, 64);
                for (unsigned i = 90; i < 95; i++) unit_free(all[i]);
                unit_collect(); // what its bins hold becomes its slabs' lists
            });
            struct slice* s = unit_slice(all[0]);
            ASSERT_EQ(unit_slice(all[99]), s);
            ASSERT_NE(s->free, nullptr);
            for (unsigned i = 0; i < count; i++) unit_free(all[i]);
            unit_collect();
            ASSERT_EQ(unit_remote_count(s), count);
            EXPECT_GE(unit_check_slabs(), 0);
            uint32_t used = unit_used(s);
            uint64_t* link = static_cast<uint64_t*>(all[count / 2]) + 1; // in the middle of the list
            uint64_t unread = *link;
            if (count > 2) *link = 16;
            owner.does([&] {
                unit_free(all[98]);
                unit_free(all[99]);
            });
            if (count > 2) *link = unread;
            EXPECT_EQ(unit_remote_count(s), 0u);
            EXPECT_EQ(unit_used(s), used - count - 2);
            EXPECT_GE(unit_check_slabs(), 0);
            owner.does([&] { // all of them are given out again, once
                std::set<void*> again;
                for (unsigned i = 0; i < 2000; i++) EXPECT_TRUE(again.insert(unit_alloc(64)).second);
                for (unsigned i = 0; i < count; i++) EXPECT_EQ(again.count(all[i]), 1u) << i;
            });
        }));
}

// A thread that collects blocks of a slab, and then owns it, frees others of it as an owner does.
TEST(Remote, WhoCameToOwnASlabCollectsItsBlocksNoMore) {
    EXPECT_FINE(in_child([] {
        constexpr size_t size = 1000;
        windows_are_endless("");
        unit_attach();
        if (tag_is_on()) return; // these go another way
        Worker owner, third;
        std::vector<void*> all;
        owner.does([&] { all = many(20, size); });
        struct slice* s = unit_slice(all[0]);
        ASSERT_EQ(unit_slice(all[19]), s);
        std::vector<void*> mine = many(size_classes[class_of(size)].capacity, size); // all of a slab
        unit_free(all[0]);                                                           // goes alone
        unit_free(all[1]);                                                           // is collected
        EXPECT_EQ(unit_remote_count(s), 1u);
        owner.end();
        while (!unit_is_mine(s) && mine.size() < 200) mine.push_back(unit_alloc(size));
        ASSERT_TRUE(unit_is_mine(s));
        third.does([&] { unit_free(all[2]); });
        EXPECT_GT(unit_remote_count(s), 0u);
        unit_free(all[3]); // nudged
        EXPECT_EQ(unit_remote_count(s), 0u);
        for (unsigned i = 4; i < 20; i++) unit_free(all[i]);
        for (void* p : mine) unit_free(p);
        third.end();
        unit_collect();
        expect_nothing_left();
    }));
}

// Blocks of slabs in turn go alone, each at once; of a slab that comes twice in a row together.
TEST(Remote, WhatComesSinglyGoesAlone) {
    EXPECT_FINE(in_child([] {
        constexpr size_t size = 1000, slots = 8; // of outboxes, which slabs have by their numbers
        unit_attach();
        Worker owner;
        std::map<struct slice*, std::vector<void*>> slabs;
        owner.does([&] {
            for (void* p : many(10 * slots * SLICE_BYTES / size, size)) slabs[unit_slice(p)].push_back(p);
        });
        struct slice* s = slabs.begin()->first;
        std::vector<void*> some = slabs.begin()->second;
        ASSERT_EQ(slabs.count(s + slots), 1u);
        struct slice* t = s + slots;
        std::vector<void*> others = slabs[t];
        owner.does([&] { // full slabs are nobody's
            unit_free(some.back());
            unit_free(others.back());
        });
        for (unsigned i = 0; i < 4; i++) {
            unit_free(some[i]);
            unit_free(others[i]);
            EXPECT_EQ(unit_remote_count(s), i + 1);
            EXPECT_EQ(unit_remote_count(t), i + 1);
        }
        for (unsigned i = 4; i < 7; i++) unit_free(some[i]);
        EXPECT_EQ(unit_remote_count(s), 5u);
        unit_collect();
        EXPECT_EQ(unit_remote_count(s), 7u);
        for (unsigned i = 7; i < 23; i++) { // 16 KiB and more go
            EXPECT_EQ(unit_remote_count(s), 7u) << i;
            unit_free(some[i]);
        }
        unit_free(some[23]);
        EXPECT_EQ(unit_remote_count(s), 24u);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// Of what waits in a slab that somebody owns the release pass is told in time: the owner may sleep.
TEST(Remote, AQuarterOfWhatIsBuiltIsTold) {
    EXPECT_FINE(in_child([] {
        constexpr size_t size = 2000;
        windows_are_endless(":sparse_max=0");
        unit_attach(); // before there are threads, which are to compare tags
        unit_detach();
        if (tag_is_on()) return; // blocks go by way of the heap's lists
        Worker owner;
        std::vector<void*> all;
        owner.does([&] { all = many(21, size); });
        struct slice* s = unit_slice(all[0]);
        ASSERT_EQ(unit_slice(all[20]), s);
        const uint32_t part = s->built / 4;
        ASSERT_GT(part, size_classes[class_of(size)].enough); // which is not what counts here
        ASSERT_LT(part, 16u);
        const uint64_t before = unit_release_owed();
        for (uint32_t i = 0; i < part; i++) { // by a thread that has no heap
            EXPECT_EQ(unit_release_owed(), before) << i;
            unit_free(all[i]);
        }
        EXPECT_EQ(unit_release_owed(), before + part * size_classes[class_of(size)].bytes);
    }));
}

// Partly used slabs of an owner that never runs again: when others free the rest, the slabs go.
TEST(Remote, EmptiedSlabsOfASleeperAreReleased) {
    for (size_t size : {64u, 1000u, 9000u})
        EXPECT_FINE(in_child([&] {
            windows_are_endless(
                ":dirty_max=1m:sparse_max=0"); // what a visitor found is released at its next visit
            unit_attach();
            Worker sleeper;
            const size_t slabs = size > 1000 ? 100 : 300; // beside what an emulator needs for itself
            const struct size_class& k = size_classes[class_of(size)];
            const size_t slab_bytes = size_t{k.slices} << SLICE_SHIFT;
            std::vector<void*> rest;
            sleeper.does([&] {
                std::vector<void*> all = many(slabs * k.capacity, size);
                for (size_t i = 0; i < all.size(); i++) {
                    if (i % k.capacity == 3)
                        unit_free(all[i]); // now each slab is the sleeper's own again, and listed
                    else
                        rest.push_back(all[i]);
                }
            });
            uint64_t live_before = span_totals.live;
            uint64_t resident_before, resident, peak;
            os_resident(&resident_before, &peak);
            EXPECT_GE(live_before, slabs * slab_bytes);
            for (void* p : rest) unit_free(p);
            unit_collect(); // outboxes
            os_resident(&resident, &peak);
            struct unit_figures f = census();
            EXPECT_EQ(f.live_blocks, 0u);
            EXPECT_LE(f.slabs, 1u);
            EXPECT_LE(span_totals.live, f.meta_bytes + slab_bytes);
            EXPECT_LE(span_totals.dirty, 1 * MIB);
            EXPECT_TRUE(unit_sanitized || resident <= resident_before - slabs * slab_bytes * 3 / 4);
            EXPECT_TRUE(span_check());
            EXPECT_GE(unit_check_slabs(), 0);
            sleeper.does([&] { // wakes after all, with its lists in order
                for (void* p : many(1000, size)) unit_free(p);
            });
            sleeper.end();
            expect_nothing_left();
        }));
}

// Full slabs have no owner: whoever frees into one first takes it over, whoever made it.
TEST(Remote, FullSlabsAreTakenOverByTheirFirstFreer) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker sleeper;
        std::vector<void*> all;
        const struct size_class& k = size_classes[class_of(256)];
        sleeper.does([&] { all = many(k.capacity * 4 + 1, 256); });
        struct slice* s = unit_slice(all[0]);
        EXPECT_TRUE(unit_is_unowned(s));
        EXPECT_EQ(s->owner, nullptr);
        unit_free(unit_alloc(256)); // a thread that has a use for it
        unit_free(all[0]);
        EXPECT_FALSE(unit_is_unowned(s));
        EXPECT_TRUE(unit_is_mine(s));
        EXPECT_EQ(unit_remote_count(s), 0u);
        EXPECT_EQ(unit_used(s), s->built - 1u);
        for (unsigned i = 1; i < class_enough(&k); i++) unit_free(all[i]);
        unsigned inside = 0;
        for (void* p : many(k.capacity, 256)) inside += unit_slice(p) == s;
        EXPECT_EQ(inside, class_enough(&k)); // the adopted slab serves its new owner
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// `frees` are by a thread that never took a block of the class; `attached`: but of others.
void nobody_needs(bool attached) {
    windows_are_endless(":release_floor=1g"); // no visitor comes by itself
    unit_attach();
    const struct size_class& k = size_classes[class_of(256)];
    const unsigned enough = class_enough(&k);
    std::vector<void*> all = many(k.capacity * 2 + 1, 256);
    struct slice* s = unit_slice(all[0]);
    struct slice* t = unit_slice(all[k.capacity]);
    Worker other;
    unsigned freed = 0;
    auto frees = [&](unsigned count) {
        other.does([&, count] {
            if (attached && freed == 0) unit_free(unit_alloc(64));
            for (unsigned i = 0; i < count; i++) unit_free(all[freed++]);
            // The last one of a slab does not wait there.
            if (attached && freed % k.capacity != 0) unit_outboxes_send();
        });
    };
    frees(enough - 1);
    EXPECT_TRUE(unit_is_unowned(s));
    EXPECT_FALSE(unit_is_orphan(s));
    EXPECT_EQ(unit_remote_count(s), enough - 1);
    frees(1); // enough: whoever needs a list finds it
    EXPECT_TRUE(unit_is_unowned(s));
    EXPECT_TRUE(unit_is_orphan(s));
    EXPECT_EQ(unit_remote_count(s), enough);
    EXPECT_EQ(census().remote_frees, enough);
    EXPECT_GE(unit_check_slabs(), 0);
    frees(k.capacity - enough - 1);
    EXPECT_EQ(unit_remote_count(s), k.capacity - 1);
    frees(1); // the last one: it waits as it is
    EXPECT_EQ(unit_used(s), 0u);
    EXPECT_EQ(unit_remote_count(s), 0u);
    EXPECT_TRUE(unit_is_unowned(s));
    EXPECT_TRUE(unit_is_drained(s));
    EXPECT_GE(unit_check_slabs(), 0);
    EXPECT_TRUE(unit_is_unowned(t));
    frees(enough);
    EXPECT_TRUE(unit_is_orphan(t));
    EXPECT_FALSE(unit_is_drained(t));
    std::vector<void*> more = many(k.capacity - 1 + k.capacity, 256); // the first one that came goes first
    unsigned inside = 0;
    for (void* p : more) inside += unit_slice(p) == s;
    EXPECT_EQ(inside, k.capacity);
    EXPECT_FALSE(unit_is_drained(s));
    EXPECT_TRUE(unit_is_orphan(t));
    for (void* p : many(enough, 256)) {
        EXPECT_EQ(unit_slice(p), t);
        more.push_back(p);
    }
    EXPECT_EQ(census().remote_frees, freed);
    frees(k.capacity - enough);
    other.end();
    EXPECT_GE(unit_check_slabs(), 0);
    unit_free(all.back());
    for (void* p : more) unit_free(p);
    expect_nothing_left();
}

TEST(Remote, WhatComesBackByAThreadWithoutAHeapWaitsForOthers) {
    EXPECT_FINE(in_child([] { nobody_needs(false); }));
}
TEST(Remote, WhatComesBackByAThreadThatHasNoUseForItWaitsForOthers) {
    EXPECT_FINE(in_child([] { nobody_needs(true); }));
}

// The blocks of a slab, which is nobody's once one more is taken, the last one here. No visitor comes by
// itself.
std::vector<void*> fill_one(const struct size_class& k) {
    windows_are_endless(":release_floor=1g");
    unit_attach();
    return many(k.capacity + 1, k.bytes);
}

// Threads that free one block of a slab each: none waits that makes them enough, or all.
TEST(Remote, EnoughOfASlabThatIsNobodysWaitInNoOutbox) {
    EXPECT_FINE(in_child([] {
        const struct size_class& k = size_classes[class_of(1000)];
        std::vector<void*> all = fill_one(k);
        struct slice* s = unit_slice(all[0]);
        for (unsigned i = 0; i < k.capacity; i++) {
            Worker other;
            other.does([&] {
                unit_free(unit_alloc(64));
                unit_free(all[i]);
                EXPECT_EQ(unit_is_orphan(s), i + 1 >= class_enough(&k)) << i;
                EXPECT_EQ(unit_is_drained(s), i + 1 == k.capacity) << i;
            });
            other.end();
        }
        unit_free(all.back());
        expect_nothing_left();
    }));
}

// A thread that has a heap, and no use for the class, sends one alone and then several at a time; but the
// last one of a slab takes those with it that wait.
TEST(Remote, ToASlabThatIsNobodysGoSeveralAtATime) {
    EXPECT_FINE(in_child([] {
        const struct size_class& k = size_classes[class_of(256)];
        std::vector<void*> all = fill_one(k);
        struct slice* s = unit_slice(all[0]);
        Worker other;
        other.does([&] {
            unit_free(unit_alloc(64));
            for (unsigned i = 0; i < 20; i++) unit_free(all[i]);
            EXPECT_EQ(unit_remote_count(s), 1u);
            EXPECT_EQ(unit_used(s), k.capacity);
            unit_outboxes_send();
            EXPECT_EQ(unit_remote_count(s), 20u);
            EXPECT_FALSE(unit_is_orphan(s));
            const unsigned enough = class_enough(&k);
            for (unsigned i = 20; i + 1 < enough; i++) unit_free(all[i]);
            EXPECT_EQ(unit_remote_count(s), 20u);
            unit_free(all[enough - 1]); // what an orphan is to have
            EXPECT_EQ(unit_remote_count(s), enough);
            EXPECT_TRUE(unit_is_orphan(s));
            for (unsigned i = enough; i + 1u < k.capacity; i++) unit_free(all[i]);
            EXPECT_LT(unit_remote_count(s), k.capacity - 1u);
            EXPECT_FALSE(unit_is_drained(s));
            unit_free(all[k.capacity - 1u]);
            EXPECT_TRUE(unit_is_drained(s));
        });
        other.end();
        EXPECT_GE(unit_check_slabs(), 0);
        unit_free(all.back());
        expect_nothing_left();
    }));
}

TEST(Remote, WhatWaitsAtNobodysSlabIsSortedByVisitors) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        const struct size_class& k = size_classes[class_of(512)];
        std::vector<void*> all = many(k.capacity * 2 + 1, 512);
        struct slice* s = unit_slice(all[0]);
        Worker other;
        other.does([&] {
            for (unsigned i = 0; i < 9; i++) unit_free(all[i]); // the first page's, and one more
        });
        EXPECT_TRUE(unit_is_unowned(s));
        EXPECT_EQ(unit_remote_count(s), 9u);
        unit_visit(true);
        EXPECT_EQ(unit_remote_count(s), 0u);
        EXPECT_TRUE(unit_is_unowned(s));
        EXPECT_TRUE(unit_is_orphan(s));
        EXPECT_EQ(s->built, k.capacity - 8u); // its first page is a hole
        EXPECT_GE(unit_check_slabs(), 0);
        other.end();
        for (size_t i = 9; i < all.size(); i++) unit_free(all[i]);
        expect_nothing_left();
    }));
}

// Throws out at random, as a cache does: for `turns` blocks that are put in as many go, which `ender` frees a
// batch at a time. What is still to be freed stays in `out`.
void turn_over(std::vector<void*>& cache, size_t size, size_t turns, Worker& ender, std::vector<void*>& out) {
    enum { batch = 64 };
    Random random(1);
    for (size_t i = 0; i < turns; i++) {
        void*& slot = cache[random.below(static_cast<unsigned>(cache.size()))];
        out.push_back(slot);
        slot = unit_alloc(size);
        if (out.size() < batch) continue;
        ender.does([&] {
            for (void* p : out) unit_free(p);
        });
        out.clear();
    }
}

// A cache from which another thread throws out at random: the blocks that stay are strewn over no more slabs
// than they need.
TEST(Remote, WhatOthersFreeAtRandomIsUsedAgain) {
    for (size_t size : {64u, 512u, 1000u})
        EXPECT_FINE(in_child([=] {
            enum { live = 2 << 20, turns = 3 };
            unit_attach();
            Worker ender;
            std::vector<void*> cache = many(static_cast<unsigned>(live / size), size);
            std::vector<void*> out;
            turn_over(cache, size, turns * cache.size(), ender, out);
            EXPECT_LT(span_totals.live, live + live / 2);
            for (void* p : out) unit_free(p);
            for (void* p : cache) unit_free(p);
            ender.end();
            expect_nothing_left();
        }));
}

// Slabs of blocks that others free, as `count` blocks of `size` bytes have them.
std::set<struct slice*> passed_slabs(Worker& ender, size_t count, size_t size, std::vector<void*>& all) {
    all = many(8, size);
    ender.does([&] {
        for (void* p : all) unit_free(p);
    });
    all = many(count, size);
    std::set<struct slice*> slabs;
    for (void* p : all) slabs.insert(unit_slice(p));
    return slabs;
}
unsigned given_up(const std::set<struct slice*>& slabs) {
    unsigned early = 0;
    for (struct slice* s : slabs)
        early += unit_is_unowned(s) && s->built < size_classes[s->size_class].capacity;
    return early;
}

// Among many threads, what others free is given up slab by slab, long before a slab is full, for whoever
// needs it when a quarter of it has come back.
TEST(Remote, OthersHaveWhatAProducerPassedOn) {
    EXPECT_FINE(in_child([] {
        enum { size = 512, from = 8192, batch = 200, a_slab = from / size };
        unit_attach();
        Crowd crowd = crowd_of(10);
        Worker ender, second;
        std::vector<void*> all;
        for (unsigned round = 0; round < 3; round++) {
            std::set<struct slice*> slabs = passed_slabs(ender, batch, size, all);
            EXPECT_EQ(given_up(slabs), batch / a_slab) << round;
            struct slice* s = unit_slice(all[0]);
            ASSERT_TRUE(unit_is_unowned(s));
            ASSERT_EQ(s->built, a_slab + 0u);
            unsigned back = 0;
            for (unsigned i = 0; i < batch; i++) {
                if (unit_slice(all[i]) != s) continue;
                back++;
                EXPECT_EQ(unit_remote_count(s), back - 1);
                EXPECT_FALSE(unit_is_orphan(s));
                ender.does([&] { unit_free(all[i]); });
                all[i] = nullptr;
                if (back == a_slab / 4) break;
            }
            EXPECT_TRUE(unit_is_orphan(s));
            second.does([&] {
                std::vector<void*> some = many(a_slab / 4, size);
                for (void* p : some) EXPECT_EQ(unit_slice(p), s);
                for (void* p : some) unit_free(p);
                struct slice* other =
                    unit_slice(all[batch / 2]); // a thread that uses the class has it at once
                EXPECT_TRUE(unit_is_unowned(other));
                unit_free(all[batch / 2]);
                EXPECT_TRUE(unit_is_mine(other));
                EXPECT_GE(unit_check_slabs(), 0);
                all[batch / 2] = nullptr;
                unit_collect();
            });
            for (void* p : all)
                if (p != nullptr) unit_free(p);
            unit_collect();
        }
        crowd.clear();
        second.end();
        ender.end();
        expect_nothing_left();
    }));
}

// Of few threads each keeps its slab.
TEST(Remote, FewThreadsFillTheirSlabs) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker ender;
        std::vector<void*> all;
        EXPECT_EQ(given_up(passed_slabs(ender, 200, 512, all)), 0u);
    }));
}

// What is not built of slabs that were given up is addresses without use: only so many are.
TEST(Remote, SoManySlabsAreGivenUpEarly) {
    EXPECT_FINE(in_child([] {
        enum { size = 512, live = 24 << 20, most = 64 << 20 };
        unit_attach();
        Crowd crowd = crowd_of(10);
        Worker ender;
        std::vector<void*> cache;
        for (unsigned round = 0; round < 2; round++) {
            unsigned early = given_up(passed_slabs(ender, live / size, size, cache));
            EXPECT_GE(early, most / SLICE_BYTES * 3u / 4) << round; // none of the last round's counts
            EXPECT_LE(early, most / SLICE_BYTES + 0u);
            EXPECT_LT(span_totals.live, live + most + live / 8u);
            std::vector<void*> out;
            turn_over(cache, size, unit_rounds(cache.size()), ender, out);
            EXPECT_LT(span_totals.live, live + most + live / 8u);
            EXPECT_LT(census().cached_bytes, live / 6u);
            EXPECT_GE(unit_check_slabs(), 0);
            ender.does([&] {
                for (void* p : out) unit_free(p);
                for (void* p : cache) unit_free(p);
            });
            unit_collect();
            unit_visit(true);
        }
        crowd.clear();
        ender.end();
        expect_nothing_left();
    }));
}

// Where all that slabs have is resident, or addresses are limited, none is given up before it is full.
void expect_none_given_up() {
    unit_attach();
    Crowd crowd = crowd_of(10);
    Worker ender;
    std::vector<void*> all;
    EXPECT_EQ(given_up(passed_slabs(ender, 200, 512, all)), 0u);
}

TEST(Remote, WhereSlabsAreResidentTheyAreFilled) {
    EXPECT_FINE(in_child([] {
        core_options.hugepages = HUGE_ALWAYS;
        expect_none_given_up();
    }));
}

TEST_UNEMULATED(Remote, WhereMemoryIsLimitedSlabsAreFilled) { // an emulator takes no such limit
    EXPECT_FINE(in_child([] {
        struct rlimit limit;
        getrlimit(RLIMIT_DATA, &limit);
        limit.rlim_cur = 1ul << 62;
        ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
        expect_none_given_up();
    }));
}

// A thread that frees itself keeps its slab, also where others did before.
TEST(Remote, WhoFreesItselfKeepsItsSlab) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Worker ender;
        std::vector<void*> all = many(8, 128);
        ender.does([&] {
            for (void* p : all) unit_free(p);
        });
        all = many(40, 128); // those 8 among them
        for (void* p : all) unit_free(p);
        all = many(300, 128);
        std::set<struct slice*> slabs;
        for (void* p : all) slabs.insert(unit_slice(p));
        EXPECT_EQ(slabs.size(), 1u);
        for (void* p : all) unit_free(p);
        ender.end();
        expect_nothing_left();
    }));
}

// Among many threads, a bin gets a part of what others freed, and visitors see the rest.
TEST(Remote, ManyThreadsBinsAreShort) {
    EXPECT_FINE(in_child([] {
        enum { size = 64, count = 400, others = 10 };
        unit_attach();
        Crowd crowd;
        for (unsigned few : {1u, 0u}) {
            if (few == 0) crowd = crowd_of(others);
            Worker maker, ender;
            std::vector<void*> all, again;
            maker.does([&] { all = many(count, size); });
            struct slice* s = unit_slice(all[0]);
            ender.does([&] {
                for (void* p : all) unit_free(p);
            });
            maker.does([&] { again = many(count / 2, size); }); // whatever the bin had, then what came back
            EXPECT_EQ(unit_used(s) == s->built, few == 1) << few;
            EXPECT_GE(unit_check_slabs(), 0);
            maker.does([&] {
                for (void* p : again) unit_free(p);
            });
        }
        crowd.clear();
        expect_nothing_left();
    }));
}

// A heap that is small has its active slabs for itself; where there are many, a smaller one is not.
TEST_NATIVE(Remote, ManySmallHeapsAreVisited) {
    EXPECT_FINE(in_child([] {
        enum { size = 256, bytes = 150 << 10, others = 20 };
        unit_attach();
        Crowd crowd;
        for (unsigned few : {1u, 0u}) {
            if (few == 0) crowd = crowd_of(others);
            std::vector<void*> all = many(bytes / size, size);
            for (size_t i = 0; i < all.size(); i += 2) unit_free(all[i]); // its slabs are its own again
            void* last = nullptr;
            for (size_t i = 0; i < 200; i += 2) last = all[i] = unit_alloc(size);
            for (size_t i = 200; i < all.size(); i += 2) all[i] = nullptr;
            EXPECT_EQ(unit_slice(last)->listed != 0, few == 0) << few << " " << int(unit_slice(last)->listed);
            for (void* p : all)
                if (p != nullptr) unit_free(p);
            unit_collect();
        }
        crowd.clear();
        expect_nothing_left();
    }));
}

// Producers and those that only free: no block is lost, none is given twice, and what all gave back is found
// by its producers, or goes.
TEST(Remote, ManyThatOnlyFree) {
    EXPECT_FINE(in_child([] {
        enum { makers = 2, enders = 3, rounds = 60, batch = 400 };
        unit_attach();
        struct Batch {
            std::atomic<unsigned> turn{0}; // even: it is to be filled, odd: emptied
            void* blocks[batch];
        };
        static Batch batches[8];
        static std::atomic<unsigned> made{0}, ended{0};
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < makers; t++)
            threads.emplace_back([t] {
                unit_attach();
                for (unsigned n; (n = made.fetch_add(1)) < rounds;) {
                    Batch& b = batches[n % 8];
                    while (b.turn.load(std::memory_order_acquire) != n / 8 * 2) std::this_thread::yield();
                    for (unsigned i = 0; i < batch; i++) {
                        size_t size = 16 + 48 * (i % 9) + 2048 * (i % 50 == 0);
                        b.blocks[i] = unit_alloc(size);
                        memset(b.blocks[i], static_cast<int>(t + 1), size);
                    }
                    b.turn.store(n / 8 * 2 + 1, std::memory_order_release);
                }
                unit_detach();
            });
        for (unsigned t = 0; t < enders; t++)
            threads.emplace_back([] {
                for (unsigned n; (n = ended.fetch_add(1)) < rounds;) {
                    Batch& b = batches[n % 8];
                    while (b.turn.load(std::memory_order_acquire) != n / 8 * 2 + 1) std::this_thread::yield();
                    for (unsigned i = 0; i < batch; i++) {
                        size_t size = 16 + 48 * (i % 9);
                        const unsigned char* p = static_cast<unsigned char*>(b.blocks[i]);
                        if (p[0] != p[size - 1] || p[0] == 0 || p[0] > makers) abort();
                        unit_free(b.blocks[i]);
                    }
                    b.turn.store(n / 8 * 2 + 2, std::memory_order_release);
                }
            });
        for (std::thread& t : threads) t.join();
        EXPECT_GE(unit_check_slabs(), 0);
        expect_nothing_left();
    }));
}

// A thread without a heap frees blocks of a slab that has an owner: the owner takes in the first one at its
// next free, the helper is told of each 16, and the last one ends the slab, wherever its owner may be.
TEST(Remote, AnOwnersBlocksComeBackByAThreadWithoutAHeap) {
    EXPECT_FINE(in_child([] {
        enum { size = 256, step = 16 };
        unit_attach();
        const struct size_class& k = size_classes[class_of(size)];
        std::vector<void*> all = many(k.capacity + 1, size);
        struct slice* s = unit_slice(all[0]);
        unit_free(all[0]);
        ASSERT_TRUE(unit_is_mine(s));
        Worker other;
        other.does([&] { unit_free(all[1]); });
        EXPECT_EQ(unit_remote_count(s), 1u);
        unit_free(all[2]); // nudged: the free looks
        EXPECT_EQ(unit_remote_count(s), 0u);
        uint64_t told = unit_release_owed();
        for (unsigned i = 1; i <= k.capacity - 3u; i++) {
            other.does([&] { unit_free(all[2 + i]); });
            if (i % step == 0) told += step * size;
            if (i == k.capacity - 3u) break;
            EXPECT_EQ(unit_release_owed(), told) << i;
            EXPECT_EQ(unit_remote_count(s), i);
        }
        EXPECT_NE(s->kind, SLICE_SLAB);
        other.end();
        unit_free(all.back());
        expect_nothing_left();
    }));
}

#if defined(__x86_64__)
// A handler that forks at one step of what the caller goes on with; the child goes on with it, too.
class ForkInAFree {
  public:
    static inline unsigned steps, at, held; // held: at so many forks a record was
    static inline bool is_child;

    static void start(unsigned step) {
        steps = 0;
        at = step;
        stepping_start([](int, siginfo_t*, void* context) {
            if (++steps != at) return;
            held += unit_visitors() != 0;
            is_child = Forker::child_goes_on(nullptr);
            if (is_child) stepping_ends(context);
        });
    }
};

// Who gives a block to a slab behind the primary region keeps the region there as long as that takes: in the
// child as well, and no longer.
TEST_NATIVE(Remote, ARegionIsHeldNoLongerWhereAHandlerForks) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":reserve=4m:release=off");
        unit_attach();
        Worker other;
        std::vector<void*> all;
        other.does([&] {
            for (unsigned behind = 0; behind < 300;) {
                const size_t before = all.size();
                for (uint32_t i = 0; i < size_classes[class_of(1000)].capacity; i++)
                    all.push_back(unit_alloc(1000));
                behind = unit_slice(all[before])->region == 0 ? 0 : behind + 1;
            }
        });
        for (unsigned step = 1; step <= 900; step += 3) {
            // One of each slab: of one that comes again they are collected.
            void*& p = all[all.size() - 1 - step / 3 * size_classes[class_of(1000)].capacity];
            ForkInAFree::start(step);
            unit_free(p);
            p = nullptr;
            stepping_stop();
            if (ForkInAFree::is_child) _exit(unit_visitors() == 0 ? 0 : 1);
            ASSERT_EQ(unit_visitors(), 0u) << step;
        }
        EXPECT_GT(ForkInAFree::held, 20u);
        EXPECT_EQ(Forker::bad, 0u);
        for (void* p : all) unit_free(p);
        other.end();
        unit_collect();
        expect_nothing_left();
    }));
}
#endif

} // namespace
