// exposure_test.cc: what a thread that stops for good keeps from others: a bounded amount, whatever it freed
// and in whatever order; and slabs that their last givers take while the owner sorts. Called by ctest; each
// test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include <algorithm>
#include <memory>
#include <pthread.h>
#include <sched.h>
#include <sys/time.h>
#include <vector>

namespace {

enum Order { AT_RANDOM, IN_ORDER, BACKWARDS, BY_SLAB_TURNS };

// A thread that allocates, frees all but some, and then does nothing more until told to end.
class Stopped {
  public:
    Stopped(const std::vector<size_t>& sizes, size_t bytes, Order order, unsigned keep_one_in)
        : thread([=] {
              run(sizes, bytes, order, keep_one_in);
              stopped = true;
              while (!over.load()) usleep(1000);
              for (const Block& b : kept) {
                  EXPECT_TRUE(block_intact(b, b.usable));
                  unit_free(b.p);
              }
              unit_detach();
          }) {
        while (!stopped.load()) usleep(1000);
    }
    ~Stopped() {
        over = true;
        thread.join();
    }
    std::vector<Block> kept;
    std::set<uintptr_t> ever; // pages that its blocks touched

  private:
    void run(const std::vector<size_t>& sizes, size_t bytes, Order order, unsigned keep_one_in) {
        std::vector<Block> all;
        for (size_t i = 0; bytes > 0; i++) {
            size_t size = sizes[i % sizes.size()];
            Block b = {static_cast<unsigned char*>(unit_alloc(size)), size, 0, static_cast<unsigned char>(i)};
            ASSERT_NE(b.p, nullptr);
            b.usable = unit_usable(b.p);
            block_fill(b);
            add_pages(ever, b.p, b.usable);
            all.push_back(b);
            bytes -= std::min(bytes, b.usable);
        }
        Random random(keep_one_in);
        auto lower = [](const Block& a, const Block& b) { return a.p < b.p; };
        std::sort(all.begin(), all.end(), lower);
        if (order == AT_RANDOM)
            for (size_t i = all.size(); i > 1; i--) std::swap(all[i - 1], all[random.below(i)]);
        if (order == BACKWARDS) std::reverse(all.begin(), all.end());
        if (order == BY_SLAB_TURNS) // one block of each slab, and round again
            std::sort(all.begin(), all.end(), [](const Block& a, const Block& b) {
                uintptr_t x = reinterpret_cast<uintptr_t>(a.p), y = reinterpret_cast<uintptr_t>(b.p);
                if (x % SLICE_BYTES != y % SLICE_BYTES) return x % SLICE_BYTES < y % SLICE_BYTES;
                return x < y;
            });
        for (const Block& b : all) {
            if (random.below(keep_one_in) == 0)
                kept.push_back(b);
            else
                unit_free(b.p);
        }
    }
    std::atomic<bool> stopped{false};
    std::atomic<bool> over{false};
    std::thread thread;
};

size_t resident_bytes(const std::set<uintptr_t>& pages, const std::set<uintptr_t>& without) {
    size_t count = 0;
    for (uintptr_t page : pages) count += without.count(page) == 0 && is_resident(page);
    return count << page_shift;
}

void expect_bounded(const std::vector<size_t>& sizes, Order order, unsigned keep_one_in) {
    EXPECT_FINE(in_child([&] {
        windows_are_endless();
        unit_attach();
        size_t slabs = unit_optimized ? 2000 : 400;
        Stopped thread(sizes, slabs * SLICE_BYTES, order, keep_one_in);
        unit_visit(true); // as before a pass
        release_all();
        std::set<uintptr_t> touched;
        for (const Block& b : thread.kept) {
            EXPECT_TRUE(block_intact(b, b.usable));
            add_pages(touched, b.p, b.usable);
        }
        EXPECT_GE(unit_check_slabs(), 0);
        size_t bound = (256 << 10) + sizes.size() * os_page_bytes();
        EXPECT_EQ(resident_bytes(touched, {}), touched.size() << page_shift);
        EXPECT_LE(resident_bytes(thread.ever, touched), bound)
            << "order " << order << ", one in " << keep_one_in << ", " << sizes[0];
        EXPECT_FALSE(release_all());
        if (getenv("EXPOSURE_SAYS") != nullptr)
            printf("order %d, one in %u, %zu of %zu bytes: %zu KiB\n", order, keep_one_in, sizes.size(),
                   sizes[0], resident_bytes(thread.ever, touched) >> 10);
    }));
}

[[maybe_unused]] void expect_bounded_in_all_orders(const std::vector<size_t>& sizes) {
    for (Order order : {AT_RANDOM, IN_ORDER, BACKWARDS, BY_SLAB_TURNS})
        for (unsigned keep_one_in : {2u, 20u, 100u})
            if (keep_one_in == 20 || (!unit_sanitized && (keep_one_in == 100 || order == AT_RANDOM)))
                expect_bounded(sizes, order, keep_one_in);
}

// Absent where mincore is the emulator's.
TEST_UNEMULATED(Exposure, IsBoundedFor64Bytes) { expect_bounded_in_all_orders({64}); }
TEST_UNEMULATED(Exposure, IsBoundedFor1000Bytes) { expect_bounded_in_all_orders({1000}); }
TEST_UNEMULATED(Exposure, IsBoundedFor5000Bytes) { expect_bounded_in_all_orders({5000}); }
TEST_UNEMULATED(Exposure, IsBoundedFor40000Bytes) { expect_bounded_in_all_orders({40000}); }
TEST_UNEMULATED(Exposure, IsBoundedForAMix) {
    expect_bounded_in_all_orders({100, 1000, 48, 3000, 20000, 240, 64, 512});
}

// A heap that has just grown goes in no circle: of each page a block stays, and these are freed at the end,
// page after page, but for one in each slab.
void expect_bounded_after_growth(size_t size, unsigned slabs) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless();
        std::atomic<bool> stopped{false}, over{false};
        std::vector<Block> kept;
        std::set<uintptr_t> ever, touched;
        std::thread thread([&] {
            unit_attach();
            std::vector<Block> all, of_pages;
            for (size_t had = 0; had < slabs * size_t{SLICE_BYTES}; had += all.back().usable) {
                Block b = {static_cast<unsigned char*>(unit_alloc(size)), size, 0, 1};
                b.usable = unit_usable(b.p);
                block_fill(b);
                add_pages(ever, b.p, b.usable);
                all.push_back(b);
            }
            for (const Block& b : all) {
                if (of_pages.empty() || page_of(of_pages.back().p) != page_of(b.p))
                    of_pages.push_back(b);
                else
                    unit_free(b.p);
            }
            for (const Block& b : of_pages) {
                if (kept.empty() || unit_slice(kept.back().p) != unit_slice(b.p))
                    kept.push_back(b);
                else
                    unit_free(b.p);
            }
            stopped = true;
            while (!over.load()) usleep(1000);
            unit_detach();
        });
        while (!stopped.load()) usleep(1000);
        unit_visit(true); // as before a pass
        release_all();
        for (const Block& b : kept) add_pages(touched, b.p, b.usable);
        EXPECT_LE(resident_bytes(ever, touched), 256u << 10) << size << " bytes, " << slabs << " slabs";
        EXPECT_GE(unit_check_slabs(), 0);
        if (getenv("EXPOSURE_SAYS") != nullptr)
            printf("%zu bytes, %u slabs: %zu KiB\n", size, slabs, resident_bytes(ever, touched) >> 10);
        over = true;
        thread.join();
    }));
}

TEST_UNEMULATED(Exposure, IsBoundedAfterGrowth) {
    for (size_t size : {16u, 64u, 256u, 1008u, 4096u})
        for (unsigned slabs : {20u, 60u, 200u}) expect_bounded_after_growth(size, slabs);
}

// Off means that nobody looks, and nothing is detached before malloc_trim asks.
TEST(Exposure, IsNotBoundedWhereReleaseIsOff) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "release=off", 1);
        unit_attach();
        Stopped thread({1000}, 400 * SLICE_BYTES, AT_RANDOM, 20);
        EXPECT_LT(load_relaxed(&hole_pending), 2u << 20); // but for slabs that are free altogether
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// Blocks of one thread, part of which it frees while others free the rest of each slab: the last giver takes
// the slab from its owner's list, at the moment when the owner may be sorting it.
void givers_and_owner(size_t size, const char* options, bool purge) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless(options);
        unit_attach();
        constexpr unsigned givers = 2;
        const size_t count = std::max<size_t>(64, (size_t{4} << 20) / size / (unit_sanitized ? 4 : 1));
        std::vector<Block> parts[givers + 1];
        std::atomic<unsigned> round{0}, done{0};
        std::atomic<bool> over{false};
        std::vector<std::thread> threads;
        for (unsigned g = 0; g < givers; g++)
            threads.emplace_back([&, g] {
                unit_attach();
                for (unsigned seen = 0;;) {
                    while (round.load() == seen && !over.load()) usleep(50);
                    if (over.load()) break;
                    seen++;
                    for (const Block& b : parts[g]) {
                        if (!block_intact(b, b.usable)) ADD_FAILURE() << "a live block was changed";
                        unit_free(b.p);
                    }
                    unit_collect(); // sends what waits to be sent
                    done++;
                }
                unit_detach();
            });
        {
            std::unique_ptr<Purger> purger(purge ? new Purger : nullptr);
            Random random(size);
            for (unsigned r = 1; r <= unit_rounds(25); r++) {
                for (auto& part : parts) part.clear();
                for (size_t i = 0; i < count; i++) {
                    Block b = {static_cast<unsigned char*>(unit_alloc(size)), size, 0,
                               static_cast<unsigned char>(i)};
                    b.usable = unit_usable(b.p);
                    block_fill(b);
                    parts[random.below(givers + 1)].push_back(b);
                }
                round++;
                for (const Block& b : parts[givers]) {
                    if (!block_intact(b, b.usable)) ADD_FAILURE() << "a live block was changed";
                    unit_free(b.p);
                }
                while (done.load() != r * givers) usleep(50);
                ASSERT_GE(unit_check_slabs(), 0);
            }
        }
        over = true;
        for (std::thread& t : threads) t.join();
        expect_nothing_left();
    }));
}

TEST(Exposure, GiversTakeSlabsWhileTheOwnerSorts) {
    for (size_t size : {64u, 1000u, 4000u, 9000u, 30000u, 65536u}) {
        givers_and_owner(size, ":thread_free_max=0", false);
        givers_and_owner(size, ":thread_free_max=16k", true);
    }
}
TEST(Exposure, GiversTakeSlabsOfRegionsThatGoAway) {
    for (size_t size : {1000u, 9000u, 65536u}) givers_and_owner(size, ":thread_free_max=4k:reserve=4m", true);
}
TEST(Exposure, GiversTakeSlabsWithChecksAtTheCall) {
    for (size_t size : {100u, 4000u}) givers_and_owner(size, ":thread_free_max=0:checks=full", true);
}

// The last two blocks of a slab come back at the same moment, one to the owner, whose countdown ends with it,
// one by another thread: one of the two gives the slab back. A signal holds the owner up somewhere in its
// free until the other's is over.
std::atomic<unsigned> meet_go, meet_gone;

void meet_hold_up(int) {
    for (int i = 0; i < 1000 && meet_gone.load() != meet_go.load(); i++) sched_yield();
}

void meet_arm(Random& random) {
    struct itimerval once = {{0, 0}, {0, static_cast<suseconds_t>(1 + random.below(4))}};
    setitimer(ITIMER_REAL, &once, nullptr);
    for (size_t i = random.below(60000); i-- > 0;) __asm__ volatile("");
}

TEST(Exposure, TheLastTwoFreesOfASlabMeet) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":thread_free_max=0:sparse_max=0");
        unit_attach();
        constexpr size_t size = 16384; // goes home without a stay in an outbox
        const unsigned capacity = size_classes[class_of(size)].capacity;
        const unsigned rounds = unit_rounds(4000);
        std::atomic<void*> given{nullptr};
        sigset_t alarm_set;
        sigemptyset(&alarm_set);
        sigaddset(&alarm_set, SIGALRM);
        pthread_sigmask(SIG_BLOCK, &alarm_set, nullptr);
        std::thread giver([&] {
            unit_attach();
            for (unsigned round = 1; round <= rounds; round++) {
                while (meet_go.load() != round) sched_yield();
                unit_free(given.load());
                meet_gone = round;
            }
            unit_detach();
        });
        signal(SIGALRM, meet_hold_up);
        pthread_sigmask(SIG_UNBLOCK, &alarm_set, nullptr);
        Random random(1);
        for (unsigned round = 1; round <= rounds; round++) {
            std::vector<void*> of_slab;
            std::vector<void*> all(2 * capacity);
            for (unsigned i = 0; i < 2 * capacity; i++) all[i] = unit_alloc(size);
            struct slice* slab = unit_slice(all[capacity / 2]);
            for (unsigned i = 0; i < 2 * capacity; i++) {
                if (unit_slice(all[i]) == slab && of_slab.size() < 2)
                    of_slab.push_back(all[i]);
                else
                    unit_free(all[i]);
            }
            ASSERT_EQ(of_slab.size(), 2u);
            given = of_slab[0];
            meet_arm(random);
            meet_go = round;
            unit_free(of_slab[1]);
            while (meet_gone.load() != round) sched_yield();
        }
        giver.join();
        ASSERT_GE(unit_check_slabs(), 0);
        expect_nothing_left();
    }));
}

// Threads that end while their slabs hold others' blocks: orphans, claimed and sorted.
TEST(Exposure, OrphansAreSortedByWhoeverHasThem) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":thread_free_max=8k");
        unit_attach();
        Purger purger;
        Blocks mine;
        Random random(3);
        for (unsigned round = 0; round < unit_rounds(60); round++) {
            std::vector<std::pair<void*, size_t>> left;
            std::thread([&] {
                Blocks blocks;
                for (unsigned i = 0; i < 3000; i++) blocks.alloc(1 + random.below(2000));
                while (blocks.all.size() > 300) blocks.free(random.below(blocks.all.size()));
                unit_detach();
                for (const Block& b : blocks.all) left.emplace_back(b.p, b.size);
            }).join();
            for (auto& block : left) mine.add(block.first, block.second);
            while (mine.all.size() > 2000) mine.free(random.below(mine.all.size()));
            for (unsigned i = 0; i < 200; i++) mine.alloc(1 + random.below(2000));
            ASSERT_GE(unit_check_slabs(), 0);
        }
        mine.free_all();
        unit_collect();
        expect_no_live_blocks();
    }));
}

// A double free into a slab from which nothing is allocated again: its list is walked when it is as long as
// what the slab has in use. Absent where owners sort their lists: they find it then.
TEST_NATIVE(Exposure, WhatOthersAreToldOfIsWalked) {
    enum { early = 1, late = 3 };
    for (const char* checks : {"", ":check_first=0:check_every=1", ":check_first=0:check_every=1000000"})
        for (unsigned quarters : {early, late}) {
            Ended ended = in_child([=] {
                windows_are_endless(checks);
                unit_attach();
                const unsigned capacity = size_classes[class_of(64)].capacity;
                std::vector<void*> all;
                while (all.size() < 8 * capacity) all.push_back(unit_alloc(64));
                for (unsigned i = 0; i < 8; i++)
                    unit_free(all[i * capacity + capacity - 1]); // all are its own
                unit_free(all[capacity]);
                for (unsigned i = 1; i < quarters * capacity / 4; i++) {
                    unit_free(all[capacity + i]);
                    if (i == 3) unit_free(all[capacity]);
                }
            });
            bool walked = quarters == late && strstr(checks, "1000000") == nullptr;
            EXPECT_EQ(ended.aborted(), walked) << checks << quarters << ended.printed;
            EXPECT_EQ(ended.printed.find("weir: double-free: already freed 0x"),
                      walked ? 0 : std::string::npos);
            if (!walked) {
                EXPECT_EQ(ended.printed, "");
            }
        }
}

// A program that confines itself when it has freed much: what others were to sort then, its threads sort
// themselves, and go on to keep little. Absent where nobody was to sort.
TEST_NATIVE(Exposure, IsBoundedWhereNobodyComesAnyMore) {
    for (size_t size : {64u, 1000u})
        EXPECT_FINE(in_child([=] {
            windows_are_endless();
            unit_attach();
            std::vector<void*> all;
            std::set<uintptr_t> ever, kept;
            while (all.size() < 8 * MIB / size) {
                all.push_back(unit_alloc(size));
                memset(all.back(), 1, size);
                add_pages(ever, all.back(), size);
            }
            Random random(size);
            for (size_t i = all.size(); i > 1; i--) std::swap(all[i - 1], all[random.below(i)]);
            size_t i = 0;
            for (; i < all.size() / 2; i++) unit_free(all[i]);
            os_sandbox_announced();
            release_helper_stop();
            for (; i < all.size() - 20; i++) unit_free(all[i]);
            for (; i < all.size(); i++) add_pages(kept, all[i], size);
            EXPECT_EQ(load_relaxed(&release_state), uint32_t{RELEASE_ALONE});
            release_all(); // without a visit: nobody visits one's own heap
            EXPECT_LE(resident_bytes(ever, kept), 256u << 10) << size;
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

} // namespace
