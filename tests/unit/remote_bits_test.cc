// remote_bits_test.cc: blocks of active slabs that others free, noted in bits: nobody writes to them, each
// comes home once, whatever the owner does meanwhile. Called by ctest; each test starts the heap in a child
// of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "at_step.h"
#include "holes.h"
#include "passed.h"
#include <atomic>
#include <cstring>
#include <functional>
#include <set>
#include <sys/resource.h>
#include <utility>

namespace {

constexpr unsigned looks = 8; // before the owner takes in what is noted

// Who frees for others: threads without a heap, with one that has no use for the class, and with one that
// has.
enum class Giver { heapless, attached, user };
constexpr Giver givers[] = {Giver::heapless, Giver::attached, Giver::user};
void gives(Giver giver, size_t size) {
    if (giver == Giver::heapless) return;
    unit_free(unit_alloc(giver == Giver::user ? size : size + 64));
}

TEST(RemoteBits, WhatOthersFreeIsNotWrittenTo) {
    for (Giver giver : givers)
        for (size_t size : {16u, 48u, 512u, 1000u})
            EXPECT_FINE(in_child([=] {
                enum { count = 20 };
                unit_attach();
                Worker other;
                other.does([=] { gives(giver, size); });
                std::vector<void*> all = passed(other, size, count + 1);
                struct slice* s = unit_active(class_of(size));
                ASSERT_TRUE(unit_takes_bits(s));
                std::vector<void*> some = last_of(all, count);
                const uint32_t used = unit_used(s);
                other.does([&] {
                    for (void* p : some) unit_free(p);
                });
                EXPECT_EQ(unit_bits_count(s), count + 0u);
                EXPECT_EQ(unit_remote_count(s), count + 0u); // none is on a list
                EXPECT_EQ(unit_used(s), used);
                const std::vector<char> as_it_was(size, 1);
                for (void* p : some) {
                    EXPECT_EQ(memcmp(p, as_it_was.data(), size), 0);
                    EXPECT_TRUE(unit_place_at(p).free);
                }
                EXPECT_FALSE(unit_place_at(last_of(all, count + 1)[0]).free);
                const uint64_t remote_frees = census().remote_frees; // those that wait among them
                EXPECT_GE(remote_frees, count + 0u);
                EXPECT_GE(unit_check_slabs(), 0);
                // They are what the thread is given next, each of them once.
                std::set<void*> again;
                for (size_t i = 0; i < 2000 && unit_bits_count(s) != 0; i++) again.insert(unit_alloc(size));
                for (void* p : some) again.erase(p);
                std::vector<void*> next;
                for (unsigned i = 0; i + 1 < count; i++) next.push_back(unit_alloc(size));
                const std::set<void*> distinct(next.begin(), next.end());
                EXPECT_EQ(distinct.size(), count - 1u);
                for (void* p : some) again.insert(p);
                for (void* p : next) EXPECT_EQ(again.count(p), 1u) << size;
                EXPECT_EQ(census().remote_frees, remote_frees);
                EXPECT_GE(unit_check_slabs(), 0);
            }));
}

// Of the slabs of the smallest blocks most bits lie in an array of their own.
TEST(RemoteBits, BlocksFarIntoASlabHaveThem) {
    for (bool ends : {false, true})
        EXPECT_FINE(in_child([=] {
            enum { size = 16, count = 3000 };
            unit_attach();
            Worker owner, other;
            std::vector<void*> all, some;
            struct slice* s = nullptr;
            owner.does([&] {
                all = passed(other, size, count);
                some = last_of(all, count);
                s = unit_active(class_of(size));
            });
            const auto frees = [&](size_t from, size_t to) {
                for (size_t i = from; i < to; i++) unit_free(some[i]);
            };
            other.does([&] { frees(count / 2, count); }); // none of the first ones
            EXPECT_EQ(unit_bits_count(s), count / 2 + 0u);
            EXPECT_GE(unit_check_slabs(), 0);
            other.does([&] { frees(0, count / 2); });
            EXPECT_EQ(unit_bits_count(s), count + 0u);
            EXPECT_GE(unit_check_slabs(), 0);
            owner.does([&] {
                if (ends) {
                    unit_collect();
                    EXPECT_EQ(census().live_blocks, all.size() - count);
                    return;
                }
                const std::vector<void*> next = many(count + 500, size);
                std::set<void*> distinct(next.begin(), next.end());
                EXPECT_EQ(distinct.size(), next.size());
                for (void* p : some) EXPECT_EQ(distinct.count(p), 1u);
            });
            EXPECT_EQ(unit_bits_count(s), 0u);
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

// However many others come between, and whatever the program wrote meanwhile: also by the owner, at whichever
// of its frees.
TEST(RemoteBits, ASecondFreeIsToldAtTheCall) {
    enum Who { another, owner, owner_at_last };
    for (Giver giver : givers)
        for (Who who : {another, owner, owner_at_last}) {
            Ended ended = in_child([=] {
                enum { size = 48, count = 80 };
                core_options.check_first = 0;
                core_options.check_every = 1u << 20;
                unit_attach();
                Worker other;
                other.does([=] { gives(giver, size); });
                std::vector<void*> some = last_of(passed(other, size, count + looks), count + looks);
                const auto frees_again = [&](void* p) {
                    memset(p, 7, size);
                    unit_free(p);
                    _exit(0);
                };
                other.does([&] {
                    for (unsigned i = 0; i < count; i++) unit_free(some[i]);
                    if (who == another) frees_again(some[0]);
                });
                if (who == owner) frees_again(some[0]);
                for (unsigned i = count; i < count + looks; i++) unit_free(some[i]);
                frees_again(some[count - 1]); // behind all others, once they are on its list
            });
            EXPECT_TRUE(ended.aborted()) << int(giver) << who;
            EXPECT_EQ(ended.printed.find("weir: double-free: already freed 0x"), 0u) << ended.printed;
        }
}

// Whoever notes the first block since the owner took them makes it look at each of its frees, and take them
// in some frees later.
TEST(RemoteBits, TheOwnerLooksAndThenTakesThem) {
    EXPECT_FINE(in_child([] {
        enum { size = 64, rounds = 3, each = looks + 3 };
        unit_attach();
        Worker other;
        std::vector<void*> some = last_of(passed(other, size, rounds * each), rounds * each);
        const struct slice* s = unit_active(class_of(size));
        for (unsigned round = 0; round < rounds; round++) {
            void** p = &some[round * each];
            other.does([&] {
                unit_free(p[0]);
                unit_free(p[1]);
            });
            const uint32_t used = unit_used(s);
            for (unsigned i = 0; i < looks; i++) {
                EXPECT_EQ(unit_bits_count(s), 2u);
                unit_free(p[2 + i]);
            }
            EXPECT_EQ(unit_bits_count(s), 2u);
            EXPECT_EQ(unit_used(s), used - looks);
            unit_free(p[2 + looks]);
            EXPECT_EQ(unit_bits_count(s), 0u);
            EXPECT_EQ(unit_used(s), used - looks - 3);
            EXPECT_GE(unit_check_slabs(), 0);
        }
    }));
}

// What is on its way to the remote list when bits begin comes home beside them.
TEST(RemoteBits, AListComesBesideThem) {
    EXPECT_FINE(in_child([] {
        enum { size = 64, count = 30 };
        unit_attach();
        Worker collects, other;
        std::vector<void*> all = many(count, size);
        struct slice* s = unit_slice(all[0]);
        collects.does([&] {
            unit_attach();
            for (unsigned i = 0; i < 4; i++)
                unit_free(all[i]); // the first one goes, three wait in its outbox
        });
        EXPECT_EQ(unit_remote_count(s), 1u);
        passed(other, size, 10);
        ASSERT_EQ(unit_active(class_of(size)), s);
        ASSERT_TRUE(unit_takes_bits(s));
        other.does([&] {
            for (unsigned i = 4; i < 9; i++) unit_free(all[i]);
        });
        EXPECT_EQ(unit_bits_count(s), 5u);
        collects.does([] { unit_collect(); });
        EXPECT_TRUE(unit_takes_bits(s));
        EXPECT_EQ(unit_bits_count(s), 5u);
        EXPECT_EQ(unit_remote_count(s), 8u);
        EXPECT_GE(unit_check_slabs(), 0);
        const uint32_t used = unit_used(s);
        unit_free(all[9]); // with a list a look at the bit is not enough
        EXPECT_EQ(unit_remote_count(s), 0u);
        EXPECT_EQ(unit_used(s), used - 9);
        EXPECT_TRUE(unit_takes_bits(s));
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// A program that goes on after the report has the block once.
TEST(RemoteBits, AfterAReportABlockComesHomeOnce) {
    Ended ended = in_child([] {
        enum { size = 64, count = 20 };
        core_options.on_error = 1;
        unit_attach();
        Worker other;
        std::vector<void*> some = last_of(passed(other, size, count), count);
        struct slice* s = unit_active(class_of(size));
        other.does([&] {
            for (void* p : some) unit_free(p);
            for (void* p : some) unit_free(p);
        });
        EXPECT_EQ(core_report_count, count + 0u);
        EXPECT_EQ(unit_bits_count(s), count + 0u);
        std::vector<void*> next = many(500, size);
        std::set<void*> distinct(next.begin(), next.end());
        EXPECT_EQ(distinct.size(), next.size());
        for (void* p : some) EXPECT_EQ(distinct.count(p), 1u);
        EXPECT_GE(unit_check_slabs(), 0);
        EXPECT_EQ(core_report_count, count + 0u);
    });
    EXPECT_TRUE(ended.fine()) << ended.printed;
}

// What is noted goes with the slab: no bit is set, or left, of one that is no active slab.
TEST(RemoteBits, ASlabThatLeavesItsPlaceTakesNone) {
    for (bool full : {false, true})
        EXPECT_FINE(in_child([=] {
            enum { size = 1000, count = 10 };
            unit_attach();
            Worker owner, other;
            std::vector<void*> all;
            struct slice* s = nullptr;
            owner.does([&] {
                all = passed(other, size, count + 1);
                s = unit_active(class_of(size));
            });
            ASSERT_TRUE(unit_takes_bits(s));
            if (!full) // else it takes what is noted before it goes
                other.does([&] {
                    for (void* p : last_of(all, count)) unit_free(p);
                });
            owner.does([&] {
                if (!full) {
                    EXPECT_EQ(unit_bits_count(s), count + 0u);
                    unit_collect();
                    return;
                }
                while (unit_active(class_of(size)) == s) all.push_back(unit_alloc(size));
            });
            EXPECT_FALSE(unit_takes_bits(s));
            EXPECT_GE(unit_check_slabs(), 0);
            void* last = full ? all[0] : last_of(all, count + 1)[0];
            EXPECT_TRUE(!full || unit_is_unowned(unit_slice(last)));
            other.does([&] { unit_free(last); });
            EXPECT_GE(unit_check_slabs(), 0);
            owner.end();
            for (size_t i = 0; i + (full ? 0 : count) < all.size(); i++)
                if (all[i] != last) unit_free(all[i]);
            other.end();
            unit_collect();
            expect_nothing_left();
        }));
}

// A full one that changes places with another: its owner took bits of it until then.
TEST(RemoteBits, AFullSlabThatIsExchangedTakesNone) {
    if (config_owner_publishes == 0) return; // visitors' slabs alone are exchanged
    EXPECT_FINE(in_child([] {
        enum { size = 256, slabs = 12 };
        windows_are_endless(":release_floor=1g:check_first=0:check_every=1000000:guard_rate=0");
        unit_attach();
        Worker other;
        const size_t each = size_classes[class_of(size)].capacity;
        const size_t some =
            class_enough(&size_classes[class_of(size)]); // fewer would have it pass the slab on
        const size_t enough = some + 2;
        std::vector<void*> all = many(slabs * each, size);
        // Full ones are nobody's: from now on most are the thread's, with a block to give.
        for (size_t i = 0; i + 2 < slabs; i++) unit_free(std::exchange(all[i * each + each / 2], nullptr));
        unsigned exchanged = 0;
        for (size_t i = 0; i + 2 < slabs; i++) {
            struct slice* s = unit_active(class_of(size));
            if (unit_slice(all[i * each]) == s) continue;
            std::vector<size_t> own;
            for (size_t k = 0; k < all.size() && own.size() < some; k++)
                if (all[k] != nullptr && unit_slice(all[k]) == s) own.push_back(k);
            if (own.size() < some) continue;
            other.does([&] {
                for (size_t k : own) unit_free(all[k]);
            });
            for (size_t k : own) all[k] = unit_alloc(size); // takes them in
            const bool bits = unit_takes_bits(s);
            while (unit_active(class_of(size)) == s &&
                   (unit_used(s) < each || unit_has_in_bin(class_of(size))))
                all.push_back(unit_alloc(size));
            for (size_t k = 0; k < enough; k++) unit_free(std::exchange(all[i * each + k], nullptr));
            const bool shared = unit_is_shared(s) && unit_active(class_of(size)) == s;
            all.push_back(unit_alloc(size));
            exchanged += bits && shared && unit_active(class_of(size)) != s;
            EXPECT_TRUE(unit_active(class_of(size)) == s || !unit_takes_bits(s));
            ASSERT_GE(unit_check_slabs(), 0) << i;
        }
        EXPECT_GT(exchanged, 3u);
    }));
}

// More of them than are in use: some were freed by their owner before.
TEST(RemoteBits, MoreThanAreInUseAreReported) {
    Ended ended = in_child([] {
        enum { size = 64, count = 110 };
        core_options.check_first = 0;
        core_options.check_every = 1u << 20;
        unit_attach();
        Worker other;
        std::vector<void*> some = last_of(passed(other, size, count), count);
        struct slice* s = unit_active(class_of(size));
        for (void* p : some) unit_free(p);
        if (unit_used(s) >= count || !unit_takes_bits(s)) _exit(1);
        other.does([&] {
            for (void* p : some) unit_free(p);
        });
        for (unsigned i = 0; i < 200; i++) unit_alloc(size);
        _exit(0);
    });
    EXPECT_TRUE(ended.aborted());
    EXPECT_EQ(ended.printed.find("weir: double-free: already freed 0x"), 0u) << ended.printed;
}

// Of one that is looked at visitors sort what is noted, beside a list or alone: its free pages become holes
// while its owner sleeps.
TEST(RemoteBits, VisitorsSortThem) {
    if (config_owner_publishes == 0) return; // no visitor comes to active slabs
    for (bool listed : {false, true})
        EXPECT_FINE(in_child([=] {
            enum { size = 512, count = 2000 };
            windows_are_endless(":thread_free_max=4k:release_floor=1g");
            unit_attach();
            Worker owner, other;
            std::vector<void*> all, rest;
            struct slice* s = nullptr;
            owner.does([&] {
                rest = many(count, size); // so much that others look at the heap
                all = passed(other, size, 65);
                s = unit_active(class_of(size));
            });
            ASSERT_TRUE(unit_takes_bits(s));
            ASSERT_TRUE(unit_is_shared(s));
            unsigned freed = 0, on_list = 0;
            other.does([&] {
                for (void* p : all) {
                    if (unit_slice(p) != s || p == all.back()) continue;
                    if (listed && freed % 8 == 0) {
                        unit_push_remote(p);
                        on_list++;
                    } else {
                        unit_free(p);
                    }
                    freed++;
                }
            });
            ASSERT_GT(freed, 32u);
            EXPECT_EQ(on_list != 0, listed);
            EXPECT_EQ(unit_bits_count(s), freed - on_list);
            EXPECT_EQ(unit_remote_count(s), freed);
            const uint64_t before = census().hole_bytes;
            unit_visit(true);
            EXPECT_EQ(unit_remote_count(s), 0u);
            EXPECT_TRUE(unit_takes_bits(s));
            EXPECT_GE(census().hole_bytes, before + (freed * size / os_page_bytes() - 2) * os_page_bytes());
            EXPECT_GE(unit_check_slabs(), 0);
            owner.does([&] { // wakes after all
                for (void* p : many(100, size)) unit_free(p);
                EXPECT_GE(unit_check_slabs(), 0);
            });
        }));
}

// Of every 16th block others are told: the owner may sleep.
TEST(RemoteBits, OthersAreToldOfSixteen) {
    EXPECT_FINE(in_child([] {
        enum { size = 64, count = 64, step = 16 };
        windows_are_endless();
        unit_attach();
        unit_detach(); // a thread without a heap tells at once
        Worker owner, other;
        std::vector<void*> some;
        owner.does([&] { some = last_of(passed(other, size, count), count); });
        uint64_t told = unit_release_owed();
        for (void* p : some) {
            unit_free(p);
            if (reinterpret_cast<uintptr_t>(p) % SLICE_BYTES / size % step == 0) told += step * size;
            EXPECT_EQ(unit_release_owed(), told);
        }
    }));
}

rlim_t address_space() {
    unsigned long pages = 0;
    FILE* f = fopen("/proc/self/statm", "r");
    EXPECT_EQ(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    return pages * os_page_bytes();
}

// Where no record may be relied on after the free, blocks are looked at, or lists have tags, there are none.
void expect_no_bits(size_t size, void (*first)() = [] {}) {
    Worker other;
    first();
    for (unsigned round = 0; round < 5; round++) {
        std::vector<void*> all = many(200, size);
        other.does([&] {
            for (size_t i = 1; i < all.size(); i++) unit_free(all[i]);
        });
        unit_free(all[0]);
        EXPECT_FALSE(unit_takes_bits(unit_active(class_of(size))));
        EXPECT_GE(unit_check_slabs(), 0);
    }
}
TEST(NoRemoteBits, WithTagsOrFullChecks) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":checks=full");
        unit_attach();
        expect_no_bits(64);
    }));
    EXPECT_FINE(in_child([] {
        unit_attach();
        if (tag_is_on()) expect_no_bits(64);
    }));
}
TEST(NoRemoteBits, BehindThePrimaryRegion) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":reserve=4m");
        unit_attach();
        while (unit_slice(many(1000, 64).back())->region == 0) continue;
        expect_no_bits(64);
    }));
}
TEST_UNEMULATED(NoRemoteBits, WhereTheyFindNoRoom) { // an emulator takes no such limit
    if (unit_sanitized) return;                      // whose own memory is more than that
    EXPECT_FINE(in_child([] {
        unit_attach();
        expect_no_bits(64, [] {
            const rlim_t all = address_space() + (rlim_t{1} << 30);
            const struct rlimit limit = {all, all};
            ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
        });
    }));
}

// Reserved addresses count against a limit: those for bits go with those for blocks, but for what the slices
// that are left may need.
TEST_UNEMULATED(RemoteBits, TheirRoomGoesWithTheRegions) {
    if (unit_sanitized) return; // whose own memory is more than that
    EXPECT_FINE(in_child([] {
        constexpr size_t step = size_t{64} << 20; // of blocks, for whose bits room is made at a time
        windows_are_endless(":thread_kept_max=0:release_floor=1g");
        unit_attach();
        Worker other;
        if (tag_is_on()) return;
        passed(other, 64, 10);
        ASSERT_TRUE(unit_takes_bits(unit_active(class_of(64))));
        EXPECT_GT(address_space(), rlim_t{1} << 33);
        void* before = unit_alloc(step);
        void* room = unit_alloc(step / 8);
        ASSERT_GT(unit_slice(room), unit_slice(before));
        span_trim();
        EXPECT_LT(address_space(), rlim_t{1} << 30);
        unit_free(room);
        unit_collect();
        passed(other, 128, 10);
        const struct slice* s = unit_active(class_of(128));
        EXPECT_GT(s, unit_slice(before));
        EXPECT_EQ(s->region, 0u);
        EXPECT_TRUE(unit_takes_bits(s));
    }));
}

// Each slab has its own, wherever it lies.
TEST(RemoteBits, ManySlabsHaveThem) {
    EXPECT_FINE(in_child([] {
        enum { size = 16, count = 500, slabs = 200 }; // more than one step of what has room
        unit_attach();
        Worker other;
        std::set<struct slice*> seen;
        std::vector<void*> all;
        for (unsigned i = 0; i < slabs; i++) {
            std::vector<void*> some = passed(other, size, count);
            struct slice* s = unit_active(class_of(size));
            seen.insert(s);
            other.does([&] {
                for (void* p : last_of(some, count)) unit_free(p);
            });
            EXPECT_EQ(unit_bits_count(s), tag_is_on() ? 0u : count + 0u);
            EXPECT_TRUE(tag_is_on() || unit_bits_far(s));
            all.insert(all.end(), some.begin(), some.end() - count);
            while (unit_active(class_of(size)) == s) all.push_back(unit_alloc(size));
        }
        EXPECT_EQ(seen.size(), slabs + 0u);
        EXPECT_GE(unit_check_slabs(), 0);
        EXPECT_EQ(std::set<void*>(all.begin(), all.end()).size(), all.size());
    }));
}

// As with a list: a thread that begins with what one that ended took has its heap.
TEST(RemoteBits, WhoNotesABlockFirstHasTheHeapThatItIsOf) {
    EXPECT_FINE(in_child([] {
        enum { size = 64 };
        setenv("WEIR_OPTIONS", "release_floor=1g:hugepages=never", 1); // no helper
        unit_attach();
        struct heap *one = nullptr, *two = nullptr;
        std::vector<void*> live;
        {
            Worker other;
            std::thread([&] {
                live = passed(other, size, 40);
                one = unit_self();
                EXPECT_TRUE(unit_takes_bits(unit_slice(live.back())));
                std::thread([&] {
                    unit_free(unit_alloc(size));
                    two = unit_self();
                    unit_end();
                }).join();
                unit_end();
            }).join();
        }
        const auto heap_after = [&](const std::function<void()>& frees) {
            struct heap* h = nullptr;
            std::thread([&] {
                frees();
                unit_free(unit_alloc(size));
                h = unit_self();
                unit_end();
            }).join();
            return h;
        };
        EXPECT_EQ(heap_after([] {}), two); // in which less is in use
        EXPECT_EQ(heap_after([&] {
                      unit_free(live.back());
                      EXPECT_EQ(unit_bits_count(unit_slice(live.back())), 1u);
                  }),
                  one);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// Threads that take and threads that free, some of which end, while others look: no block is in two hands.
TEST(RemoteBits, ManyTakeAndManyFree) {
    for (const char* options : {"", ":thread_free_max=4k", ":release=off"})
        EXPECT_FINE(in_child([=] {
            enum { slots = 512, takers = 2, givers = 3 };
            windows_are_endless(options);
            unit_attach();
            struct Stamp {
                std::atomic<uint32_t> in_use;
            };
            static std::atomic<Stamp*> places[slots];
            static std::atomic<uint64_t> to_free;
            static std::atomic<unsigned> twice, noting;
            const uint64_t count = unit_rounds(200000);
            to_free = count * takers;
            std::vector<std::thread> threads;
            for (unsigned t = 0; t < takers; t++)
                threads.emplace_back([=] {
                    uint64_t seed = t + 1;
                    for (uint64_t i = 0; i < count; i++) {
                        seed = seed * 6364136223846793005u + 1442695040888963407u;
                        const size_t size = 16 + (seed >> 33) % 8 * 64;
                        Stamp* p = static_cast<Stamp*>(unit_alloc(size));
                        memset(static_cast<void*>(p), 0, size);
                        if (p->in_use.exchange(1) != 0) twice++;
                        noting += unit_takes_bits(unit_slice(p));
                        for (unsigned at = seed >> 50;; at++) {
                            Stamp* none = nullptr;
                            if (places[at % slots].compare_exchange_strong(none, p)) break;
                        }
                        if (i % 64 == 63) { // one of its own
                            void* own = unit_alloc(size);
                            unit_free(own);
                        }
                    }
                    unit_detach();
                });
            std::atomic<bool> ends{false};
            for (unsigned t = 0; t < givers; t++)
                threads.emplace_back([t] {
                    for (unsigned at = t; to_free != 0; at++) {
                        Stamp* p = places[at % slots].exchange(nullptr);
                        if (p == nullptr) continue;
                        if (p->in_use.exchange(0) != 1) twice++;
                        unit_free(p);
                        to_free--;
                    }
                    unit_detach();
                });
            std::thread visitor([&] {
                while (!ends) {
                    unit_visit(true);
                    usleep(200);
                }
            });
            for (std::thread& t : threads) t.join();
            ends = true;
            visitor.join();
            EXPECT_EQ(twice, 0u);
            EXPECT_GT(noting, 0u);
            EXPECT_GE(unit_check_slabs(), 0);
            unit_collect();
            expect_nothing_left();
        }));
}

#if defined(__x86_64__)
// A thread that does what it is told, too by a handler between two instructions of a free.
class Owner {
  public:
    static inline unsigned steps; // since the last does_at: each compiler's code has its number

    static void does(const std::function<void()>& what) {
        const std::function<void()>* none = nullptr;
        while (!job.compare_exchange_weak(none, &what)) none = nullptr;
        while (job != nullptr) sched_yield();
    }
    // At that step of what the caller goes on with; 0: at none.
    static void does_at(unsigned step, const std::function<void()>& what) {
        steps = 0;
        at = step;
        then = what;
        stepping_start([](int, siginfo_t*, void* context) {
            if (++steps != at) return;
            does(then);
            stepping_ends(context);
        });
    }
    Owner()
        : thread([] {
              while (!ends) {
                  if (job == nullptr) {
                      sched_yield();
                      continue;
                  }
                  (*job.load())();
                  job = nullptr;
              }
              unit_detach();
          }) {}
    ~Owner() {
        ends = true;
        thread.join();
    }

  private:
    static inline std::atomic<const std::function<void()>*> job;
    static inline std::atomic<bool> ends;
    static inline unsigned at;
    static inline std::function<void()> then;
    std::thread thread;
};

// What the owner of a slab does while another thread frees a block of it.
enum class Act { takes, lists, gives_up, ends_and_begins, forks };
void owner_acts(Act act, size_t size, std::vector<void*>& more) {
    const struct slice* s = unit_active(class_of(size));
    switch (act) {
    case Act::takes:
        more = many(size < 64 ? 600 : 40, size);
        break;
    case Act::lists:
        unit_collect();
        break;
    case Act::gives_up:
        while (unit_active(class_of(size)) == s && more.size() < 200) more.push_back(unit_alloc(size));
        break;
    case Act::ends_and_begins:
        unit_detach();
        unit_attach();
        more = many(2, size);
        break;
    case Act::forks: // whose child has a bit that nobody is about to tell of
        Forker::child_goes_on([] { return unit_check_slabs() >= 0; });
        break;
    }
}

// No block is lost, or given out twice, whatever that is, and at whatever step. `first`: it is the first one
// that is noted.
struct OwnerActs {
    Act act;
    size_t size;
    bool first;
};
constexpr OwnerActs owners_acts[] = {
    {Act::takes, 1000, true},
    {Act::lists, 1000, true},
    {Act::gives_up, 1000, true},
    {Act::gives_up, 1000, false},
    {Act::ends_and_begins, 1000, true},
    {Act::forks, 1000, true},
    {Act::takes, 16, true},
    {Act::lists, 16, true}, // its bit is one of the far ones
};
TEST_NATIVE(RemoteBits, TheOwnerGoesOnAtEachStep) {
    for (const auto& [act, size, first] : owners_acts)
        EXPECT_FINE(in_child([act = act, size = size, first = first] {
            constexpr unsigned part = unit_ubsan ? 2 : 1; // few are behind it
            constexpr unsigned tries = 220 / part;
            const size_t count = size == 16 ? 500 : 4;
            windows_are_endless(":release=off");
            unit_attach();
            unsigned rounds = 0, noted = 0, before = 0, behind = 0;
            {
                Owner owner;
                unsigned last = 1; // the first time it does nothing, and the steps are counted
                for (unsigned step = 0; step <= last; step += 1 + last / tries) {
                    std::vector<void*> all, more;
                    Owner::does([&] {
                        Worker other;
                        all = passed(other, size, count);
                        noted += unit_takes_bits(unit_active(class_of(size)));
                    });
                    if (!first) {
                        unit_free(all.back());
                        all.pop_back();
                    }
                    Owner::does_at(step, [&] {
                        const bool set = unit_bits_count(unit_active(class_of(size))) == 1u + !first;
                        (set ? behind : before)++;
                        owner_acts(act, size, more);
                    });
                    unit_free(all.back());
                    stepping_stop();
                    if (step == 0) last = Owner::steps;
                    rounds++;
                    ASSERT_GE(unit_check_slabs(), 0) << int(act) << " " << step;
                    all.pop_back();
                    std::set<void*> distinct(all.begin(), all.end());
                    for (void* p : more) distinct.insert(p);
                    ASSERT_EQ(distinct.size(), all.size() + more.size());
                    for (void* p : distinct) unit_free(p);
                    unit_collect();
                    Owner::does([] { unit_collect(); });
                    ASSERT_EQ(census().live_blocks, 0u) << int(act) << " " << step;
                }
            }
            EXPECT_GT(noted, rounds / 2);
            EXPECT_GT(before, 10u / part);
            EXPECT_GT(behind, 2u / part);
            EXPECT_EQ(Forker::bad, 0u);
            unit_collect();
            expect_nothing_left();
        }));
}

// The other way round: another thread frees a block at each step of what the owner does.
TEST_NATIVE(RemoteBits, OthersFreeAtEachStepOfTheOwners) {
    for (Act act : {Act::takes, Act::lists, Act::gives_up})
        EXPECT_FINE(in_child([=] {
            enum { size = 1000, count = 6 };
            windows_are_endless(":release=off");
            unit_attach();
            unsigned left = 0, taken = 0;
            {
                Owner frees;
                const unsigned tries =
                    act == Act::gives_up ? 16 : 80 / stepping_apart; // which takes many steps
                unsigned last = 1; // the first time nobody comes, and the steps are counted
                for (unsigned step = 0; step <= last; step += 1 + last / tries) {
                    std::vector<void*> all, more;
                    more.reserve(400);
                    {
                        Worker other;
                        all = passed(other, size, count);
                    }
                    struct slice* s = unit_active(class_of(size));
                    const auto free_last = [&] {
                        unit_free(all.back());
                        all.pop_back();
                    };
                    Owner::does(free_last);
                    Owner::does(free_last);
                    // Behind it there is one to take, or all is in use.
                    while (act != Act::lists && unit_bits_count(s) != 0 && unit_has_in_bin(class_of(size)))
                        more.push_back(unit_alloc(size));
                    Owner::does_at(step, free_last);
                    if (act == Act::lists) unit_collect();
                    if (act == Act::takes) more.push_back(unit_alloc(size));
                    while (act == Act::gives_up && unit_active(class_of(size)) == s && more.size() < 200)
                        more.push_back(unit_alloc(size));
                    stepping_stop();
                    if (step == 0) last = Owner::steps;
                    ASSERT_GE(unit_check_slabs(), 0) << int(act) << " " << step;
                    (unit_bits_count(s) != 0 ? left : taken)++;
                    std::set<void*> distinct(all.begin(), all.end());
                    for (void* p : more) distinct.insert(p);
                    ASSERT_EQ(distinct.size(), all.size() + more.size()) << int(act) << " " << step;
                    for (void* p : distinct) unit_free(p);
                    unit_collect();
                    ASSERT_EQ(census().live_blocks, 0u) << int(act) << " " << step;
                }
            }
            EXPECT_GT(taken, 0u);
            EXPECT_EQ(left != 0, act == Act::takes); // else none is left behind
            unit_collect();
            expect_nothing_left();
        }));
}

size_t child_size;
bool child_checks; // not what its own call was changing
bool child_has_slabs() {
    for (unsigned i = 0; i < 200; i++) {
        void* p = unit_alloc(child_size);
        if (p == nullptr) return false;
        memset(p, 0x5a, child_size);
    }
    if (unit_has_remote(unit_active(class_of(child_size)))) return false; // nobody is left who frees
    return !child_checks || unit_check_slabs() >= 0;
}

// Who frees, or the owner who takes, is interrupted by a handler that forks.
TEST_NATIVE(RemoteBits, AForkAtEachStep) {
    for (bool owner_takes : {false, true})
        EXPECT_FINE(in_child([=] {
            enum { size = 256, count = 40 };
            windows_are_endless(":release=off");
            unit_attach();
            child_size = size;
            child_checks = !owner_takes;
            Forker::fine = child_has_slabs;
            Worker other;
            for (unsigned step = 1; step <= (owner_takes ? 800 : 200);
                 step += (owner_takes ? 9 : 3) * stepping_apart) {
                std::vector<void*> all = passed(other, size, count);
                std::vector<void*> some = last_of(all, count);
                other.does([&] {
                    for (void* p : some) {
                        if (!owner_takes && p == some.back()) Forker::start(step);
                        unit_free(p);
                    }
                    if (!owner_takes) stepping_stop();
                });
                if (owner_takes) Forker::start(step);
                std::vector<void*> next(30);
                for (void*& p : next) p = unit_alloc(size);
                if (owner_takes) stepping_stop();
                ASSERT_GE(unit_check_slabs(), 0) << step;
                for (size_t i = 0; i + count < all.size(); i++) unit_free(all[i]);
                for (void* p : next) unit_free(p);
            }
            EXPECT_GT(Forker::forks, 60u / stepping_apart);
            EXPECT_EQ(Forker::bad, 0u);
            other.end();
            unit_collect();
            expect_nothing_left();
        }));
}
#endif

} // namespace
