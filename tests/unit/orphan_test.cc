// orphan_test.cc: slabs that nobody owns and that wait for a thread that needs one. Called by ctest; each
// test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include "workers.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

// What is back as a whole stays for the next thread, up to a bound; the rest's memory goes, and all when it
// is asked for.
TEST(Orphan, OnlySoMuchWaitsInSlabsWithoutABlockInUse) {
    EXPECT_FINE(in_child([] {
        enum { more = 3, size = 256 };
        windows_are_endless(":release_floor=1g"); // no visitor comes by itself
        unit_attach();
        const struct size_class& k = size_classes[class_of(size)];
        const size_t most = unit_drained_bytes_max() / SLICE_BYTES;
        std::vector<void*> all = many((most + more) * k.capacity + 1, size);
        std::vector<struct slice*> slabs;
        for (size_t i = 0; i < most + more; i++) slabs.push_back(unit_slice(all[i * k.capacity]));
        Worker other;
        other.does([&] {
            for (size_t i = 0; i + 1 < all.size(); i++) unit_free(all[i]);
        });
        for (size_t i = 0; i < slabs.size(); i++) {
            EXPECT_EQ(unit_is_drained(slabs[i]), i < most) << i;
            EXPECT_EQ(slabs[i]->kind == SLICE_SLAB, i < most) << i;
        }
        EXPECT_EQ(unit_check_slabs(), (long)most + 1);
        unit_visit(true); // a visitor has them
        EXPECT_EQ(unit_check_slabs(), 1);
        for (size_t i = 0; i + 1 < all.size(); i++) all[i] = unit_alloc(size);
        other.does([&] {
            for (size_t i = 0; i + 1 < all.size(); i++) unit_free(all[i]);
        });
        EXPECT_GT(unit_check_slabs(), (long)most);
        other.end();
        unit_free(all.back());
        expect_nothing_left(); // and so has who is short of memory
    }));
}

// Who frees a block of such a slab once more is told at the call, and so is who freed one twice before the
// last.
TEST(Orphan, WhatIsFreedTwiceIsToldAtTheCall) {
    for (bool full : {false, true})
        for (bool attached : {false, true})
            for (bool whole : {false, true}) {
                Ended ended = in_child([=] {
                    enum { size = 256 };
                    core_options.check_first = 0;
                    core_options.check_every = 1u << 20;
                    if (full) setenv("WEIR_OPTIONS", "checks=full", 1);
                    unit_attach();
                    const uint32_t capacity = size_classes[class_of(size)].capacity;
                    std::vector<void*> all = many(capacity + 1, size);
                    Worker other;
                    other.does([&] {
                        if (attached) unit_free(unit_alloc(64));
                        for (uint32_t i = 0; i < capacity - !whole; i++) unit_free(all[i]);
                        // Not by what it says itself.
                        if (whole && !full && !tag_is_on()) memset(all[7], 0, 8);
                        unit_free(all[7]);
                    });
                    _exit(0);
                });
                EXPECT_TRUE(ended.aborted()) << full << attached << whole;
                EXPECT_NE(ended.printed.find("weir: double-free: already freed 0x"), std::string::npos)
                    << ended.printed;
                EXPECT_NE(ended.printed.find("in free"), std::string::npos) << ended.printed;
            }
}

// Where one is freed twice while another one is in use, a slab counts as whole that is not: who would give
// its memory back follows its list first.
TEST(Orphan, ASlabGoesWithItsListChecked) {
    for (bool by_visitor : {false, true}) {
        Ended ended = in_child([=] {
            enum { size = 256, in_use = 5, twice = 7 };
            windows_are_endless(":release_floor=1g:check_first=0:check_every=1000000");
            unit_attach();
            const size_t capacity = size_classes[class_of(size)].capacity;
            const size_t waiting = by_visitor ? 0 : unit_drained_bytes_max() / SLICE_BYTES * capacity;
            std::vector<void*> all = many(waiting + capacity + 1, size);
            Worker other;
            other.does([&] {
                for (size_t i = 0; i < waiting; i++) unit_free(all[i]);
                for (size_t i = 0; i < capacity; i++)
                    if (i != in_use) unit_free(all[waiting + i]);
                // What would have told it at the call; with tags who writes to it is told, too.
                if (!tag_is_on()) memset(all[waiting + twice], 0, 8);
                unit_free(all[waiting + twice]);
                if (by_visitor) unit_visit(true);
            });
            _exit(0);
        });
        EXPECT_TRUE(ended.aborted()) << by_visitor;
        EXPECT_NE(ended.printed.find("weir: double-free: already freed 0x"), std::string::npos)
            << ended.printed;
    }
}

// A slab is no prize while few of its blocks are back: who gave them out goes on with another one.
TEST(Orphan, TheActiveSlabOfWhichFewAreBackIsPassedOn) {
    EXPECT_FINE(in_child([] {
        enum { size = 256, rounds = 20 };
        windows_are_endless(":release_floor=1g");
        unit_attach();
        const struct size_class& k = size_classes[class_of(size)];
        const unsigned enough = class_enough(&k);
        Worker other;
        std::vector<void*> all = many(k.capacity, size);
        // That the class is one which others free the thread learns by what comes back.
        other.does([&] {
            for (unsigned i = 0; i < k.capacity / 2; i++) unit_free(all[i]);
        });
        for (unsigned i = 0; i < k.capacity / 2; i++) all[i] = unit_alloc(size);
        for (unsigned round = 0; round < rounds; round++) {
            struct slice* s = unit_active(class_of(size));
            while (unit_used(s) < k.capacity || unit_has_in_bin(class_of(size)))
                all.push_back(unit_alloc(size));
            std::vector<size_t> own;
            for (size_t i = 0; i < all.size() && own.size() < enough; i++)
                if (unit_slice(all[i]) == s) own.push_back(i);
            ASSERT_EQ(own.size(), enough);
            const unsigned back = round % 2 == 0 ? enough - 1 : enough;
            other.does([&] {
                for (unsigned i = 0; i < back; i++) unit_free(std::exchange(all[own[i]], nullptr));
            });
            all.push_back(unit_alloc(size));
            if (back == enough) {
                EXPECT_EQ(unit_active(class_of(size)), s) << round;
            } else {
                EXPECT_NE(unit_active(class_of(size)), s) << round;
                EXPECT_TRUE(unit_is_unowned(s)) << round;
                EXPECT_FALSE(unit_is_orphan(s)) << round;
                EXPECT_EQ(unit_remote_count(s), back) << round;
            }
            ASSERT_GE(unit_check_slabs(), 0) << round;
            all.erase(std::remove(all.begin(), all.end(), nullptr), all.end());
        }
        other.does([&] {
            for (void* p : all) unit_free(p);
        });
        other.end();
        expect_nothing_left();
    }));
}

} // namespace
