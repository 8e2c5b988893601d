// visit_test.cc: what a thread that sleeps holds is sorted by others: pages go back whoever freed their
// blocks, and an owner that works on meanwhile has all its blocks. Called by ctest; each test starts the heap
// in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "holes.h"
#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <sys/wait.h>

namespace {

// Which blocks an owner frees itself, before it sleeps.
enum Own { NONE, ONE_A_SLAB, ONE_A_PAGE, ONE_IN_THREE };

bool owner_frees(Own own, const Block& b, const Block* before, unsigned which) {
    auto address = [](const Block& block) { return reinterpret_cast<uintptr_t>(block.p); };
    if (own == ONE_A_SLAB)
        return before == nullptr || address(b) / SLICE_BYTES != address(*before) / SLICE_BYTES;
    if (own == ONE_A_PAGE) return before == nullptr || page_of(b.p) != page_of(before->p);
    return own == ONE_IN_THREE && which % 3 == 0;
}

// The owner allocates and frees some; then others free all but one block in 100 pages.
void owner_sleeps(size_t size, Own own, const char* options) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless(options);
        unit_attach();
        Owner owner;
        std::vector<Block> all, kept;
        std::set<uintptr_t> ever, touched;
        const size_t bytes = (unit_sanitized ? 100 : 400) * static_cast<size_t>(SLICE_BYTES);
        owner.does([&] {
            for (size_t had = 0; had < bytes;) {
                Block b = {static_cast<unsigned char*>(unit_alloc(size)), size, 0,
                           static_cast<unsigned char>(all.size())};
                b.usable = unit_usable(b.p);
                block_fill(b);
                add_pages(ever, b.p, b.usable);
                all.push_back(b);
                had += b.usable;
            }
            std::vector<Block> left;
            const Block* before = nullptr;
            for (size_t i = 0; i < all.size(); before = &all[i++]) {
                if (owner_frees(own, all[i], before, static_cast<unsigned>(i)))
                    unit_free(all[i].p);
                else
                    left.push_back(all[i]);
            }
            all.swap(left);
        });
        Random random(size + own);
        for (size_t i = all.size(); i > 1; i--) std::swap(all[i - 1], all[random.below(i)]);
        const size_t one_in = 100 * std::max<size_t>(1, (size_t{1} << page_shift) / size);
        for (size_t i = 0; i < all.size(); i++) {
            if (i % one_in == 0)
                kept.push_back(all[i]);
            else
                unit_free(all[i].p);
        }
        unit_collect(); // sends what waits to be sent
        unit_visit(true);
        release_all();
        for (const Block& b : kept) add_pages(touched, b.p, b.usable);
        size_t over = 0;
        for (uintptr_t page : ever) over += touched.count(page) == 0 && is_resident(page);
        EXPECT_LE(over << page_shift, 256u << 10) << size << " bytes, own " << own;
        EXPECT_GE(unit_check_slabs(), 0);
        for (const Block& b : kept) EXPECT_TRUE(block_intact(b, b.usable));
        // Awake again, the owner has all that was free.
        owner.does([&] {
            for (const Block& b : kept) unit_free(b.p);
            Blocks blocks;
            for (size_t i = 0; i < 3 * one_in; i++) blocks.alloc(size);
            EXPECT_TRUE(contents_right(blocks));
            blocks.free_all();
            unit_collect();
        });
        expect_no_live_blocks();
    }));
}

[[maybe_unused]] void owner_sleeps_in_all_ways(size_t size, const char* options) {
    for (Own own : {NONE, ONE_A_SLAB, ONE_A_PAGE, ONE_IN_THREE}) owner_sleeps(size, own, options);
}

// Absent where mincore is the emulator's.
TEST_UNEMULATED(Visit, FindsWhatOthersFreed) {
    for (size_t size : {64u, 1000u, 5000u}) owner_sleeps_in_all_ways(size, "");
}
// Where the owner counts every free: it was small, or nobody is to look.
TEST_UNEMULATED(Visit, FindsWhatTheOwnerCountsAsInUse) {
    owner_sleeps_in_all_ways(1000, ":thread_free_max=1g");
}
TEST_UNEMULATED(Visit, FindsItWithReleaseOff) { owner_sleeps_in_all_ways(64, ":release=off"); }
TEST_UNEMULATED(Visit, FindsItWithChecksAtTheCall) { owner_sleeps_in_all_ways(1000, ":checks=full"); }

// The owner frees some and sleeps, a visitor sorts what others freed, and these free the last three blocks of
// each slab, one after the other or of all slabs in turns: the slabs go back with no other visit.
void last_blocks_are_freed(bool in_turns, bool heapless) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless();
        unit_attach();
        Owner owner;
        constexpr size_t slabs = 200, capacity = SLICE_BYTES / 64;
        std::map<struct slice*, std::vector<void*>> all;
        owner.does([&] {
            for (size_t i = 0; i < slabs * capacity; i++) {
                void* p = unit_alloc(64);
                all[unit_slice(p)].push_back(p);
            }
            for (auto& [s, blocks] : all)
                for (size_t i = 0; i < capacity / 8 && blocks.size() > 3; i++) {
                    unit_free(blocks.back());
                    blocks.pop_back();
                }
        });
        for (auto& [s, blocks] : all)
            for (; blocks.size() > 3; blocks.pop_back()) unit_free(blocks.back());
        unit_collect();
        unit_visit(true);
        size_t ahead = 0;
        for (auto& [s, blocks] : all) ahead += slice_pages(s)->ahead != 0 ? 1 : 0;
        EXPECT_GE(ahead, slabs / 2);
        const uint64_t before = span_totals.live;
        const auto free_last = [&] {
            if (in_turns)
                for (size_t i = 0; i < 3; i++)
                    for (auto& [s, blocks] : all)
                        if (i < blocks.size()) unit_free(blocks[i]);
            if (!in_turns)
                for (auto& [s, blocks] : all)
                    for (void* p : blocks) unit_free(p);
        };
        if (heapless)
            std::thread(free_last).join();
        else
            free_last();
        unit_collect();
        EXPECT_LE(span_totals.live, before - ahead / 10 * 9 * SLICE_BYTES);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

TEST(Visit, SlabsGoWithTheLastBlocksThatComeAfterwards) {
    for (bool in_turns : {false, true})
        for (bool heapless : {false, true}) last_blocks_are_freed(in_turns, heapless);
}

// The owner has 12 MiB of blocks and sleeps; others free those for which `frees` holds.
std::vector<void*> owner_has(Owner& owner, const std::function<bool(size_t)>& frees) {
    std::vector<void*> all, kept;
    owner.does([&] {
        while (all.size() < 12000) all.push_back(unit_alloc(1000));
    });
    for (size_t i = 0; i < all.size(); i++) {
        if (frees(i))
            unit_free(all[i]);
        else
            kept.push_back(all[i]);
    }
    unit_collect(); // sends what waits to be sent
    return kept;
}

// For 1 MiB that the heap grew by a visitor makes 4 MiB of holes, and then goes on where it was.
// Absent: where no helper may be, as under sanitizers, what others free is sorted at once
TEST_UNSANITIZED(Visit, ForGrowthTakesWhatIsNeededOfMuch) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        Owner owner;
        std::vector<void*> kept = owner_has(owner, [](size_t i) { return i % 64 != 0; });
        const uint64_t mib = uint64_t{1} << 20;
        uint64_t before = load_relaxed(&hole_pending);
        for (int i = 0; i < 2; i++) {
            EXPECT_TRUE(unit_visit_for(mib));
            const uint64_t after = load_relaxed(&hole_pending);
            EXPECT_GE(after - before, 4 * mib);
            EXPECT_LE(after - before, 4 * mib + SLICE_BYTES);
            before = after;
        }
        unit_visit_for(mib);
        EXPECT_GE(load_relaxed(&hole_pending), 10 * mib);
        EXPECT_FALSE(unit_visit_for(mib)); // nothing is left
        for (void* p : kept) unit_free(p);
    }));
}

// Whoever ends the helper waits for no look.
TEST_UNSANITIZED(Visit, ForGrowthEndsWithTheHelper) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":release_floor=0");
        unit_attach();
        Owner owner;
        std::vector<void*> kept = owner_has(owner, [](size_t i) { return i % 64 != 0; });
        release_poke();
        EXPECT_EQ(load_relaxed(&release_state), RELEASE_HELPER);
        release_helper_stop();
        const uint64_t before = load_relaxed(&hole_pending);
        EXPECT_FALSE(unit_visit_for(uint64_t{1} << 20));
        EXPECT_LE(load_relaxed(&hole_pending) - before, SLICE_BYTES);
        release_helper_allow();
        for (void* p : kept) unit_free(p);
    }));
}

// Of 3 MiB hardly a page is free: it looks at no more, and the next one at others.
TEST_UNSANITIZED(Visit, ForGrowthStopsWhereLittleIsFree) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        Owner owner;
        std::vector<void*> kept = owner_has(owner, [](size_t i) { return i % 4 == 0; });
        std::set<struct slice*> slabs;
        for (void* p : kept) slabs.insert(unit_slice(p));
        const size_t share = (size_t{3} << 20) / SLICE_BYTES;
        for (size_t i = 1; i <= 2; i++) {
            EXPECT_FALSE(unit_visit_for(uint64_t{1} << 20));
            const size_t sorted = static_cast<size_t>(std::count_if(
                slabs.begin(), slabs.end(), [](struct slice* s) { return slice_pages(s)->sorted != 0; }));
            EXPECT_GE(sorted, i * share);
            EXPECT_LE(sorted, i * (share + 2)); // a slab is not full of blocks to the last byte
        }
        for (void* p : kept) unit_free(p);
    }));
}

uint64_t now_ns() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t{1000000000} * static_cast<uint64_t>(t.tv_sec) + static_cast<uint64_t>(t.tv_nsec);
}

// Whether a visit that is asked for takes place: it answers for all that is owed. `late`: a millisecond had
// passed since the one before.
bool visit_takes_place(uint64_t before, bool* late) {
    store_relaxed(&release_owed, uint64_t{1});
    unit_visit_asked();
    *late = now_ns() - before >= 1000000;
    return load_relaxed(&release_owed) == 0;
}

TEST(Visit, ProgramsThatAskAgainAndAgainHaveOneAMillisecond) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        bool late = false;
        for (unsigned i = 0; i < 100; i++) {
            uint64_t before = now_ns();
            unit_visit_asked();
            bool took_place = visit_takes_place(before, &late);
            EXPECT_TRUE(late || !took_place) << "a visit before its time";
            usleep(1100);
            EXPECT_TRUE(visit_takes_place(before, &late)) << "no visit, though its time had come";
            usleep(1100);
        }
    }));
    EXPECT_FINE(in_child([] {
        windows_are_endless(":release=off");
        unit_attach();
        bool late = false;
        for (unsigned i = 0; i < 10; i++) EXPECT_TRUE(visit_takes_place(now_ns(), &late));
    }));
}

// A visitor that finds a list longer than its slab, or a block on it that is sorted already, has the owner
// look, whose own walks are far between here.
TEST_NATIVE(Visit, HasTheOwnerReportWhatIsWrong) {
    enum { some = 200 };
    for (bool visited : {false, true})
        for (bool sorted_before : {false, true}) {
            Ended ended = in_child([=] {
                windows_are_endless(":check_first=0:check_every=1000000");
                unit_attach();
                Owner owner;
                std::vector<void*> all;
                owner.does([&] {
                    const unsigned capacity = size_classes[class_of(64)].capacity;
                    while (all.size() < 8 * capacity) all.push_back(unit_alloc(64));
                    for (unsigned i = 0; i < 8; i++) unit_free(all[i * capacity + capacity - 1]);
                    all.erase(all.begin(), all.begin() + capacity);
                    for (unsigned i = 0; i < some; i++) unit_free(all[i]);
                });
                if (visited && sorted_before) unit_visit(true);
                owner.does([&] {
                    unit_free(all[0]);
                    for (unsigned i = some; i < 2 * some; i++) unit_free(all[i]);
                });
                if (visited) unit_visit(true);
                owner.does([&] {
                    for (unsigned i = 2 * some; i < 4 * some; i++) unit_free(all[i]);
                });
                _exit(0);
            });
            EXPECT_EQ(ended.aborted(), visited) << sorted_before << ended.printed;
            EXPECT_EQ(ended.printed.find("weir: double-free: already freed 0x"),
                      visited ? 0 : std::string::npos);
        }
}

// The same of the slab that the owner allocates from: it looks before its list becomes the bin's.
TEST_NATIVE(Visit, HasTheOwnerReportWhatIsWrongWhereItAllocates) {
    for (bool visited : {false, true}) {
        Ended ended = in_child([=] {
            windows_are_endless(":reuse=late:check_first=0:check_every=1000000");
            unit_attach();
            Owner owner;
            Blocks others;
            std::vector<void*> all;
            owner.does([&] {
                grows(others);
                const unsigned capacity = size_classes[class_of(64)].capacity;
                for (unsigned i = 0; i < capacity; i++) all.push_back(unit_alloc(64));
                unit_free(all[0]);
                all[0] = unit_alloc(64);
                for (unsigned i = 0; i < capacity / 4; i++) unit_free(all[i]);
                unit_free(all[1]);
            });
            if (visited) unit_visit(true);
            owner.does([&] { unit_alloc(64); });
            _exit(0);
        });
        EXPECT_EQ(ended.aborted(), visited) << ended.printed;
    }
}

// A slab from which its owner allocates: all but the first of its blocks are freed, by the owner or by
// others.
void active_slab_is_visited(size_t size, bool by_owner, const char* options) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless(options);
        unit_attach();
        Owner owner;
        Blocks others;
        std::vector<void*> blocks;
        std::set<uintptr_t> ever, first;
        owner.does([&] {
            grows(others);
            for (unsigned i = 0; i < size_classes[class_of(size)].capacity * 3u / 4; i++) {
                blocks.push_back(unit_alloc(size));
                memset(blocks.back(), 1, size);
                add_pages(ever, blocks.back(), size);
            }
            if (by_owner)
                for (size_t i = 1; i < blocks.size(); i++) unit_free(blocks[i]);
        });
        if (!by_owner)
            for (size_t i = 1; i < blocks.size(); i++) unit_free(blocks[i]);
        unit_collect(); // sends what waits to be sent
        unit_visit(true);
        release_all();
        add_pages(first, blocks[0], size);
        size_t over = 0;
        for (uintptr_t page : ever) over += first.count(page) == 0 && is_resident(page);
        // What is in the bin stays: a page's blocks.
        EXPECT_LE(over, 2u) << size << " bytes of " << ever.size() << " pages, by owner " << by_owner;
        EXPECT_GE(unit_check_slabs(), 0);
        owner.does([&] {
            for (unsigned i = 0; i < 2000; i++) others.alloc(size);
            EXPECT_TRUE(contents_right(others));
            unit_free(blocks[0]);
            others.free_all();
            unit_collect();
        });
        expect_no_live_blocks();
    }));
}
TEST_UNEMULATED(Visit, FindsWhatWasFreedIntoActiveSlabs) {
    for (size_t size : {64u, 256u, 1000u}) {
        active_slab_is_visited(size, true, "");
        active_slab_is_visited(size, false, "");
        active_slab_is_visited(size, false, ":check_first=0:check_every=1000000"); // direct ones
    }
}

// Where lists are made anew, in a fork's child, a slab that is allocated from comes to none.
TEST_UNEMULATED(Visit, ActiveSlabsComeToNoList) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        Blocks others;
        grows(others);
        void* p = unit_alloc(1000);
        struct slice* s = unit_active(class_of(1000));
        EXPECT_EQ(unit_slice(p), s);
        EXPECT_NE(s->listed, 0u);
        EXPECT_FALSE(unit_lists(class_of(1000)));
        unit_list_again(s);
        EXPECT_FALSE(unit_lists(class_of(1000)));
        unit_free(p);
        others.free_all();
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// Others free the last block of a slab from which its owner allocates: it stays the owner's.
TEST(Visit, NobodyTakesAnActiveSlabAway) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        Owner owner;
        Blocks others, mine;
        const unsigned capacity = size_classes[class_of(1000)].capacity;
        std::vector<void*> blocks;
        for (unsigned round = 0; round < 20; round++) {
            blocks.clear();
            owner.does([&] {
                grows(others);
                for (unsigned i = 0; i < capacity + round; i++) blocks.push_back(unit_alloc(1000));
            });
            for (void* p : blocks) unit_free(p);
            unit_collect();
            unit_visit(true);
            ASSERT_GE(unit_check_slabs(), 0);
            for (unsigned i = 0; i < 100; i++) mine.alloc(1000); // in what may have been taken away
            owner.does([&] {
                for (unsigned i = 0; i < 3 * capacity; i++) others.alloc(1000);
            });
            ASSERT_TRUE(contents_right(mine) && contents_right(others));
            ASSERT_GE(unit_check_slabs(), 0);
        }
        owner.does([&] { others.free_all(); });
        mine.free_all();
    }));
}

// Others free all but a block in each page; then it is the owner's frees that make pages free, one each: as
// few as it would never have looked at before the visit.
TEST_UNEMULATED(Visit, WhatTheOwnerFreesAfterwardsIsSeen) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        Owner owner;
        std::vector<Block> all, of_pages, kept;
        std::set<uintptr_t> ever, touched;
        owner.does([&] {
            for (size_t i = 0; i < 200 * (SLICE_BYTES / 64); i++) {
                Block b = {static_cast<unsigned char*>(unit_alloc(64)), 64, 64,
                           static_cast<unsigned char>(i)};
                block_fill(b);
                add_pages(ever, b.p, b.usable);
                all.push_back(b);
            }
            for (size_t i = 0; i < all.size(); i += SLICE_BYTES / 64) {
                unit_free(all[i].p);
                all[i].p = nullptr;
            }
        });
        for (const Block& b : all) {
            if (b.p == nullptr) continue;
            if (of_pages.empty() || page_of(of_pages.back().p) != page_of(b.p))
                of_pages.push_back(b);
            else
                unit_free(b.p);
        }
        unit_collect();
        owner.does([&] { // takes in what came
            std::vector<Block> left;
            for (size_t i = 0; i < of_pages.size(); i++) {
                if (i == 0 || unit_slice(of_pages[i].p) != unit_slice(of_pages[i - 1].p))
                    unit_free(of_pages[i].p);
                else
                    left.push_back(of_pages[i]);
            }
            of_pages.swap(left);
        });
        unit_visit(true);
        owner.does([&] {
            for (const Block& b : of_pages) {
                if (kept.empty() || unit_slice(kept.back().p) != unit_slice(b.p))
                    kept.push_back(b);
                else
                    unit_free(b.p);
            }
        });
        unit_visit(true);
        release_all();
        for (const Block& b : kept) add_pages(touched, b.p, b.usable);
        size_t over = 0;
        for (uintptr_t page : ever) over += touched.count(page) == 0 && is_resident(page);
        EXPECT_LE(over << page_shift, 256u << 10);
        EXPECT_GE(unit_check_slabs(), 0);
        owner.does([&] {
            for (const Block& b : kept) unit_free(b.p);
            unit_collect();
        });
        ASSERT_GE(unit_check_slabs(), 0);
    }));
}

// Visits all the time, and gives the pages back.
class Visitor {
  public:
    Visitor()
        : thread([this] {
              while (!stop.load()) {
                  unit_visit(true);
                  release_all();
                  usleep(20);
              }
          }) {}
    ~Visitor() {
        stop = true;
        thread.join();
    }

  private:
    std::atomic<bool> stop{false};
    std::thread thread;
};

// The child of a fork has all that was its thread's, whatever was being visited.
// Absent: an emulator that forks among threads may end by its own assertions
TEST_UNEMULATED(Visit, ForksMeanwhile) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        Visitor visitor;
        Blocks blocks;
        Random random(5);
        for (unsigned round = 0; round < unit_rounds(100); round++) {
            while (blocks.all.size() < 4000) blocks.alloc(1 + random.below(1500));
            while (blocks.all.size() > 2000) blocks.free(random.below(blocks.all.size()));
            int status = forked([&] {
                EXPECT_TRUE(unit_check_slabs() >= 0 && contents_right(blocks));
                for (unsigned i = 0; i < 500; i++) EXPECT_TRUE(blocks.alloc(1 + random.below(1500)));
                blocks.free_all();
                EXPECT_GE(unit_check_slabs(), 0);
            });
            ASSERT_EQ(status, 0);
        }
    }));
}

std::atomic<unsigned> looks[3], looks_left;
std::atomic<bool> look_is_done;

// The helper's looks, as they are; once one has nothing left, no more.
bool look_counted(enum release_look look) {
    if (look_is_done) return false;
    looks[look]++;
    bool left = unit_look(look);
    looks_left += left;
    look_is_done = !left;
    return left;
}

// Sleep for a lock, as an owner would that comes for it all the time, but that they never take it.
class Sleepers {
  public:
    explicit Sleepers(struct os_lock* lock) : wanted(&lock->wanted) {
        for (int i = 0; i < 3; i++)
            all.emplace_back([this] {
                while (!over) {
                    store_relaxed(wanted, 1u);
                    os_futex_wait_for(wanted, 1, 50000000);
                }
            });
    }
    ~Sleepers() {
        over = true;
        for (std::thread& t : all) t.join();
    }

  private:
    uint32_t* wanted;
    std::atomic<bool> over{false};
    std::vector<std::thread> all;
};

uint64_t free_pages() {
    os_lock_take(&release_lock); // not in the middle of a pass
    uint64_t bytes = load_relaxed(&hole_pending) + load_relaxed(&span_totals.purged);
    os_lock_give(&release_lock);
    return bytes >> page_shift;
}

// After each of the helper's looks: the process is at work.
void stays_busy() { store_relaxed(&release_busy, 1u); }

// Looks 5 ms apart, by `look`, of a process at work. Returns until when a test may wait.
uint64_t helper_looks(const char* window_ms, bool (*look)(enum release_look)) {
    std::string all = "release_delay=5:release_floor=0:thread_free_max=4k:release_window=";
    setenv("WEIR_OPTIONS", (all + window_ms).c_str(), 1);
    unit_attach();
    release_look_hook = look;
    release_tick_hook = stays_busy;
    return now_ns() + 60000000000;
}

// 200 slabs' blocks; those for which `keeps` holds stay.
std::vector<void*> slabs_filled(const std::function<bool(size_t)>& keeps, std::set<uintptr_t>* pages) {
    std::vector<void*> all, kept;
    for (unsigned i = 0; i < 200 * SLICE_BYTES / 1024; i++) {
        all.push_back(unit_alloc(1000));
        memset(all.back(), 1, 1000);
        if (pages != nullptr) pages->insert(page_of(all.back()));
    }
    for (size_t i = 0; i < all.size(); i++) {
        if (keeps(i))
            kept.push_back(all[i]);
        else
            unit_free(all[i]);
    }
    return kept;
}
bool one_of_64(size_t i) { return i % 64 == 0; }

// The helper gives way to such an owner: a look ends early, and the next ones go on where it was, until all
// of the heap has had its turn. Again, where threads hardly run, since the machine has other work.
void helper_gives_way() {
    look_is_done = true;
    const uint64_t end_ns = helper_looks("400", look_counted);
    Sleepers sleepers(unit_own_lock());
    for (bool seen = false; !seen;) {
        ASSERT_LT(now_ns(), end_ns) << looks_left << " looks left something";
        std::set<uintptr_t> pages;
        release_all(); // or what the time before left would be taken, and not count
        const uint64_t before = free_pages();
        std::vector<void*> kept = slabs_filled(one_of_64, &pages);
        looks_left = looks[RELEASE_LOOK_DUE] = looks[RELEASE_LOOK_ON] = looks[RELEASE_LOOK_ALL] = 0;
        look_is_done = false;
        release_poke();
        while (!look_is_done && now_ns() < end_ns) usleep(500);
        seen = looks_left >= 5 && looks[RELEASE_LOOK_ON] >= 5 && looks[RELEASE_LOOK_ALL] == 0;
        // One page in 16 has a block.
        if (seen) {
            EXPECT_GE(free_pages() - before, pages.size() / 4 * 3);
        }
        for (void* p : kept) unit_free(p);
        unit_collect();
    }
    // A thread of the program sorts all of it, and never gives way.
    std::vector<void*> kept = slabs_filled(one_of_64, nullptr);
    struct slice* s = unit_slice(kept[kept.size() / 2]);
    EXPECT_NE(unit_unsorted(s), 0u);
    std::thread another([&] { EXPECT_FALSE(unit_look(RELEASE_LOOK_DUE)); });
    another.join();
    EXPECT_EQ(unit_unsorted(s), 0u);
}

enum Stage { FIRST_LOOK, SLAB_FREED_TO, NEXT_LOOK, OVER };
std::atomic<int> stage;
std::atomic<bool> all_were_looked_at;

bool look_in_stages(enum release_look look) {
    if (stage == OVER) return false;
    bool left = unit_look(look);
    all_were_looked_at = all_were_looked_at || look == RELEASE_LOOK_ALL;
    if (stage == NEXT_LOOK || !left) stage = OVER;
    if (stage == FIRST_LOOK) stage = SLAB_FREED_TO;
    while (stage == SLAB_FREED_TO) usleep(100);
    return left;
}

// It goes on where it was: a slab that it has seen, and that is worth a visit again, has to wait for its
// turn.
void helper_goes_on() {
    stage = OVER;
    const uint64_t end_ns = helper_looks("40", look_in_stages);
    Sleepers sleepers(unit_own_lock());
    for (bool seen = false; !seen;) {
        ASSERT_LT(now_ns(), end_ns);
        const size_t in_slab = SLICE_BYTES / 1024;
        // Of the first slabs three quarters, to have some left to free.
        std::vector<void*> kept = slabs_filled(
            [](size_t i) { return i < 10 * in_slab ? i % in_slab >= in_slab / 4 : one_of_64(i); }, nullptr);
        struct slice* s = unit_slice(kept[2 * in_slab]);
        all_were_looked_at = false;
        stage = FIRST_LOOK;
        release_poke();
        while (stage < SLAB_FREED_TO && now_ns() < end_ns) usleep(500);
        bool sorted = unit_unsorted(s) == 0;
        uint32_t waits = 0;
        if (stage == SLAB_FREED_TO) {
            for (size_t i = 0, n = 0; i < kept.size() && n < in_slab / 2; i++) {
                if (unit_slice(kept[i]) != s) continue;
                unit_free(kept[i]);
                kept.erase(kept.begin() + static_cast<ptrdiff_t>(i--));
                n++;
            }
            waits = unit_unsorted(s);
            stage = NEXT_LOOK;
        }
        while (stage != OVER && now_ns() < end_ns) usleep(500);
        seen = sorted && waits >= in_slab / 4 && !all_were_looked_at;
        EXPECT_TRUE(!seen || unit_unsorted(s) == waits) << unit_unsorted(s) << " of " << waits;
        for (void* p : kept) unit_free(p);
        unit_collect();
    }
}

// Absent: sanitizers let no helper be; and emulators' locks and clocks are slow.
TEST_NATIVE(Visit, TheHelperGivesWayToOwnersAtWork) { EXPECT_FINE(in_child(helper_gives_way)); }
TEST_NATIVE(Visit, TheHelperGoesOnWhereItGaveWay) { EXPECT_FINE(in_child(helper_goes_on)); }

struct Handed {
    std::mutex lock;
    std::vector<Block> blocks;
};

void free_intact(const Block& b) {
    if (!block_intact(b, b.usable)) ADD_FAILURE() << "a live block was changed";
    unit_free(b.p);
}

// One of the owners: it grows and shrinks, and hands every third block to whoever frees it.
void works_on(size_t most, unsigned seed, Handed& handed) {
    unit_attach();
    Random random(seed);
    std::vector<Block> mine;
    const unsigned rounds =
        unit_emulated ? 20 : unit_rounds(300); // visitors have the lock most of the time there
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < 400; i++) {
            size_t size = 1 + random.below(most);
            Block b = {static_cast<unsigned char*>(unit_alloc(size)), size, 0, static_cast<unsigned char>(i)};
            b.usable = unit_usable(b.p);
            block_fill(b);
            mine.push_back(b);
        }
        size_t left = random.below(4) == 0 ? 50 : mine.size() - 300;
        while (mine.size() > left) {
            std::swap(mine[random.below(mine.size())], mine.back());
            if (random.below(3) == 0) {
                std::lock_guard<std::mutex> hold(handed.lock);
                handed.blocks.push_back(mine.back());
            } else {
                free_intact(mine.back());
            }
            mine.pop_back();
        }
        std::vector<Block> given;
        {
            std::lock_guard<std::mutex> hold(handed.lock);
            while (handed.blocks.size() > 300) {
                given.push_back(handed.blocks.back());
                handed.blocks.pop_back();
            }
        }
        for (const Block& b : given) free_intact(b);
    }
    for (const Block& b : mine) free_intact(b);
    unit_detach();
}

void owners_work_on(size_t most, const char* options) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless(options);
        unit_attach();
        Handed handed;
        {
            Visitor visitor, another;
            std::vector<std::thread> owners;
            for (unsigned i = 0; i < 3; i++)
                owners.emplace_back([&handed, i, most] { works_on(most, i + 1, handed); });
            for (std::thread& t : owners) t.join();
        }
        ASSERT_GE(unit_check_slabs(), 0);
        for (const Block& b : handed.blocks) free_intact(b);
        unit_collect();
        unit_visit(true);
        expect_no_live_blocks();
    }));
}

TEST(Visit, OwnersWorkOn) {
    for (size_t most : {100u, 2000u, 20000u}) {
        owners_work_on(most, "");
        owners_work_on(most, ":thread_free_max=0");
        owners_work_on(most, ":thread_free_max=1"); // active slabs are visited from the first one on
        owners_work_on(most, ":release=off");
    }
}
TEST(Visit, OwnersOfRegionsThatGoAwayWorkOn) { owners_work_on(3000, ":thread_free_max=4k:reserve=4m"); }
TEST(Visit, OwnersWithChecksAtTheCallWorkOn) { owners_work_on(2000, ":checks=full"); }

// Regions are added and dropped while their slabs are looked at.
TEST(Visit, RegionsComeAndGo) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "reserve=4m", 1);
        unit_attach();
        std::atomic<bool> over{false};
        std::vector<std::thread> visitors;
        for (int i = 0; i < 3; i++)
            visitors.emplace_back([&] {
                while (!over) unit_visit(true);
            });
        for (unsigned i = 0; i < unit_rounds(15000); i++) {
            void* large[] = {unit_alloc(6 << 20), unit_alloc(9 << 20)};
            std::vector<void*> small;
            for (int j = 0; j < 80; j++) small.push_back(unit_alloc(1000));
            for (void* p : large) unit_free(p);
            for (void* p : small) unit_free(p);
            unit_collect();
        }
        over = true;
        for (std::thread& t : visitors) t.join();
        expect_nothing_left();
    }));
}

} // namespace
