// remote_twice_test.cc: blocks that are freed twice, one of the times at least by another thread than the one
// that took them. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include "passed.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

namespace {

// As many(), but nothing is written to them.
std::vector<void*> bare(unsigned count, size_t size) {
    std::vector<void*> all(count);
    for (void*& p : all) p = unit_alloc(size);
    return all;
}

// What is freed twice in a row is told at the call, also where the program wrote to it since: where it went
// alone, waits with others of its slab, or was the last one of those that went.
TEST(RemoteTwice, WhatIsFreedTwiceInARowIsToldAtTheCall) {
    for (unsigned before : {0u, 1u, 5u, 32u})
        for (bool written : {false, true}) {
            Ended ended = in_child([=] {
                unit_attach();
                std::vector<void*> all = many(50, 48);
                Worker other;
                other.does([&] {
                    unit_free(unit_alloc(64));
                    for (unsigned i = 0; i <= before; i++) unit_free(all[i]);
                    if (before == 32) unit_free(all[40]); // which waits
                    if (written) memset(all[before], 1, 48);
                    unit_free(all[before]);
                    _exit(0);
                });
            });
            EXPECT_TRUE(ended.aborted()) << before << written;
            EXPECT_EQ(ended.printed.find("weir: double-free: already freed 0x"), 0u) << ended.printed;
        }
}

// A block waits with others of its slab for more when its owner frees it: found once they have come.
TEST(RemoteTwice, WhatWaitsToBeSentItsOwnerMayNotFree) {
    for (unsigned at : {0u, 3u, 8u}) { // the first one goes alone; of these, the others wait
        Ended ended = in_child([=] {
            windows_are_endless(":check_first=0:check_every=1000000");
            unit_attach();
            std::vector<void*> all = many(100, 64);
            Worker other;
            other.does([&] {
                unit_free(unit_alloc(64));
                for (unsigned i = 0; i < 10; i++) unit_free(all[i]);
            });
            unit_free(all[50]);
            unit_free(all[at]);
            other.does([] { unit_collect(); });
            unit_free(all[51]);
            _exit(0);
        });
        EXPECT_EQ(ended.aborted(), at != 0) << at << ended.printed;
    }
}

// However often: what its slab's word counts does not run into what else it says.
TEST(RemoteTwice, WhatIsFreedMillionsOfTimesIsTold) {
    for (bool written : {false, true}) {
        Ended ended = in_child([=] {
            unit_attach();
            std::vector<void*> all = many(20, 48);
            std::thread([&] {
                for (unsigned i = 0; i < (1u << 21) + 5; i++) {
                    unit_free(all[i % 2]);
                    if (written) memset(all[i % 2], 1, sizeof(uint64_t));
                }
            }).join();
            unit_free(all[10]);
            _exit(0);
        });
        EXPECT_TRUE(ended.aborted()) << written;
        EXPECT_NE(ended.printed.find("weir: double-free: "), std::string::npos) << ended.printed;
    }
}

// A block was noted, and its slab given up, when it is freed again.
TEST(RemoteTwice, WhatWasNotedIsFoundOnTheList) {
    EXPECT_FINE(in_child([] {
        enum { size = 48 };
        unit_attach();
        if (tag_is_on()) return; // nothing is noted
        Worker owner, other;
        other.does([] { unit_free(unit_alloc(size)); });
        std::vector<void*> all;
        owner.does([&] { all = passed(other, size, 5); });
        struct slice* s = unit_slice(all.back());
        owner.does([&] { // but for what is in its bin all is in use
            while (unit_used(s) < size_classes[class_of(size)].capacity) unit_alloc(size);
        });
        other.does([&] { unit_free(all.back()); });
        ASSERT_EQ(unit_bits_count(s), 1u);
        owner.does([&] {
            while (unit_active(class_of(size)) == s) unit_alloc(size);
        });
        ASSERT_TRUE(unit_is_unowned(s));
        ASSERT_EQ(unit_remote_count(s), 1u);
        ASSERT_FALSE(unit_is_doubted(s));
        std::thread([&] { unit_free(all.back()); }).join();
        _exit(unit_is_doubted(s) ? 0 : 1); // before somebody reports it
    }));
}

// Its owner frees a block that another thread freed before: told at the call, wherever it is among those that
// came in. One that the program wrote to in between is found when the list's turn has come.
TEST(RemoteTwice, WhatAnotherThreadFreedItsOwnerMayNotFree) {
    for (bool written : {false, true})
        for (unsigned at : {0u, 1u, 31u, 50u, 59u}) {
            Ended ended = in_child([=] {
                windows_are_endless(written ? ":check_every=1" : ":check_first=0:check_every=1000000");
                unit_attach();
                std::vector<void*> all = many(100, 64);
                Worker other;
                other.does([&] {
                    unit_free(unit_alloc(64));
                    for (unsigned i = 0; i < 60; i++) unit_free(all[i]);
                    unit_collect();
                });
                if (written) memset(all[at], 1, sizeof(uint64_t));
                unit_free(all[at]);
                if (written) bare(2000, 64);
                _exit(0);
            });
            EXPECT_TRUE(ended.aborted()) << written << at;
            std::string what = written ? "weir: " : "weir: double-free: already freed 0x";
            EXPECT_EQ(ended.printed.find(what), 0u) << ended.printed;
        }
}

// The last block of a slab but one comes back twice, by a thread without a heap: the other one stays what it
// is, and the owner reports.
TEST(RemoteTwice, ASlabIsNotGoneForABlockThatCameBackTwice) {
    Ended ended = in_child([] {
        unit_attach();
        std::vector<void*> all = many(4 * size_classes[class_of(64)].capacity, 64);
        struct slice* s = unit_slice(all[0]);
        std::vector<void*> two;
        for (void* p : all) {
            if (unit_slice(p) != s) continue;
            if (two.size() < 2)
                two.push_back(p);
            else
                unit_free(p);
        }
        memset(two[0], 1, 64);
        std::thread([&] {
            unit_free(two[1]);
            unit_free(two[1]);
        }).join();
        for (unsigned i = 0; i < 64; i++)
            if (static_cast<char*>(two[0])[i] != 1) _exit(3);
        unit_collect();
        for (unsigned i = 0; i < 5000; i++)
            if (unit_alloc(64) == two[0]) _exit(4);
        _exit(0);
    });
    EXPECT_TRUE(ended.aborted()) << ended.printed;
    EXPECT_NE(ended.printed.find("weir: double-free"), std::string::npos) << ended.printed;
}

// Who frees for others: threads without a heap, with one that has no use for the class, and with one that
// has.
enum class Giver { heapless, attached, user };
void gives(Giver giver, size_t size) {
    if (giver == Giver::heapless) return;
    unit_free(unit_alloc(64));
    if (giver == Giver::user) unit_free(unit_alloc(size));
}
constexpr Giver givers[] = {Giver::heapless, Giver::attached, Giver::user};

// Of a slab with an owner, or of a full one without, a block is freed, 16 others, or as many as somebody
// claims the slab for, the first one again, and one more; `written`: the program wrote to it in between.
Ended freed_twice(Giver giver, bool full, bool written) {
    return in_child([=] {
        enum { size = 48 };
        core_options.check_first = 0;
        core_options.check_every = 1u << 20;
        unit_attach();
        const struct size_class& k = size_classes[class_of(size)];
        const unsigned between = full ? class_enough(&k) : 16;
        std::vector<void*> all = many(full ? k.capacity + 1 : between + 4, size);
        for (void* p : all) memset(p, 1, size);
        Worker other;
        other.does([&] {
            gives(giver, size);
            if (!full) unit_free(all[between + 2]); // goes alone
            for (unsigned i = 0; i <= between; i++) unit_free(all[i]);
            if (written) memset(all[0], 1, sizeof(uint64_t));
            unit_free(all[0]);
            if (giver != Giver::heapless) unit_collect();
            unit_free(all[between + 1]); // and one more, that is as it should be
            if (giver != Giver::heapless) unit_collect();
        });
        if (unit_is_doubted(unit_slice(all[0])) == written) _exit(1);
        bare(2 * k.capacity, size);
        _exit(0);
    });
}

// After such a report the program may go on: what else it frees of the slab comes home, and nothing more.
TEST(RemoteTwice, AfterAReportBlocksOfTheSlabComeHome) {
    for (bool taken : {false, true}) {
        Ended ended = in_child([=] {
            enum { size = 48, count = 33 };
            core_options.on_error = 1;
            core_options.check_first = 0;
            core_options.check_every = 1u << 20;
            unit_attach();
            std::vector<void*> all = many(count + 20, size);
            std::map<void*, std::vector<unsigned char>> again;
            Worker other;
            other.does([&] {
                unit_free(unit_alloc(64));
                unit_free(all[0]);
                unit_free(all[0]);
            });
            EXPECT_EQ(core_report_count, 1u);
            while (taken && again.count(all[0]) == 0) { // its owner has it again
                void* p = unit_alloc(size);
                memset(p, 7, size);
                again[p];
            }
            other.does([&] {
                for (unsigned i = 1; i < count; i++) unit_free(all[i]);
                unit_collect();
            });
            if (taken) {
                const unsigned char* p = static_cast<unsigned char*>(all[0]);
                EXPECT_EQ(std::count(p, p + size, 7), size);
            }
            std::set<void*> home;
            for (unsigned i = 0; i < 3000; i++) home.insert(unit_alloc(size));
            for (unsigned i = taken ? 1 : 0; i < count; i++) EXPECT_EQ(home.count(all[i]), 1u) << i;
            EXPECT_EQ(core_report_count, 1u);
        });
        EXPECT_TRUE(ended.fine()) << ended.printed;
    }
}

// Lists from others are not followed in general: but for those with a block that was free already.
TEST(RemoteTwice, WhatOthersFreeTwiceIsFoundInEachList) {
    for (Giver giver : givers)
        for (bool full : {false, true}) {
            if (full && giver == Giver::user) continue; // it adopts the slab, and frees as an owner does
            for (bool written : {false, true}) {
                Ended ended = freed_twice(giver, full, written);
                EXPECT_EQ(ended.aborted(), !written) << int(giver) << full << ended.printed;
                const char* what = "weir: double-free: already freed 0x";
                EXPECT_EQ(ended.printed.find(what), written ? std::string::npos : 0) << ended.printed;
            }
        }
}

// What nothing speaks against is followed when its turn has come.
TEST(RemoteTwice, ListsFromOthersAreFollowedInTurn) {
    for (unsigned every : {1u, 1u << 20}) {
        Ended ended = in_child([&] {
            core_options.check_first = 0;
            core_options.check_every = every;
            unit_attach();
            std::vector<void*> all = many(20, 48);
            Worker other;
            other.does([&] {
                for (unsigned i : {1, 2, 3}) unit_free(all[i]);
                memset(all[1], 1, 8);
                unit_free(all[1]);
            });
            EXPECT_FALSE(unit_is_doubted(unit_slice(all[1])));
            bare(200, 48);
            _exit(0);
        });
        EXPECT_EQ(ended.aborted(), every == 1) << every << ended.printed;
    }
}

// A program may leave a block's first word as it was: that is no double free, and no block is lost by it.
TEST(RemoteTwice, BlocksThatNobodyWroteToAreNotFreedTwice) {
    for (Giver giver : givers)
        EXPECT_FINE(in_child([=] {
            enum { count = 200, rounds = 20 };
            windows_are_endless(":reserve=4m:check_first=0");
            unit_attach();
            std::vector<void*> first; // behind the primary region others set no bits
            while (first.empty() || unit_slice(first.back())->region == 0) first.push_back(unit_alloc(64));
            Worker other;
            other.does([=] { gives(giver, 48); });
            bool doubted = false;
            for (unsigned round = 0; round < rounds; round++) {
                std::vector<void*> all = bare(count, 48);
                EXPECT_EQ(std::set<void*>(all.begin(), all.end()).size(), count + 0u);
                other.does([&] {
                    for (void* p : all) unit_free(p);
                    if (giver != Giver::heapless) unit_collect();
                });
                doubted |= unit_is_doubted(unit_slice(all[0]));
                EXPECT_GE(unit_check_slabs(), 0);
            }
            EXPECT_TRUE(doubted);
            for (void* p : first) unit_free(p);
            other.end();
            unit_collect();
            expect_nothing_left();
        }));
}

} // namespace
