// available_test.cc: heap/available.h: which of its slabs a thread goes on with: none for a block or two, as
// long as there is memory. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include <map>
#include <vector>

namespace {

// Slabs of one class, all full; the last one is the active one.
struct Full {
    Full(size_t size, unsigned count) : size(size) {
        unit_attach(); // with tags, capacities are less
        k = &size_classes[class_of(size)];
        for (unsigned i = 0; i < k->capacity * count; i++) all.push_back(unit_alloc(size));
        for (void* p : all) slabs.insert(unit_slice(p));
        EXPECT_EQ(slabs.size(), count);
    }
    ~Full() {
        for (void* p : all) unit_free(p);
    }
    bool has(void* p) const { return slabs.count(unit_slice(p)) != 0; }
    // Block i of slab s; no longer among all.
    void* take(unsigned s, unsigned i) { return std::exchange(all[s * k->capacity + i], nullptr); }
    void free_one_of_the_others() {
        for (unsigned s = 0; s + 1 < slabs.size(); s++) unit_free(take(s, s % k->capacity));
    }
    size_t size;
    const struct size_class* k;
    std::vector<void*> all;
    std::set<struct slice*> slabs;
};

TEST(Available, SlabsWithFewFreeBlocksWaitForMore) {
    EXPECT_FINE(in_child([] {
        Full full(256, 20);
        const unsigned enough = class_enough(full.k);
        ASSERT_GT(enough, 2u);
        full.free_one_of_the_others();
        std::vector<void*> more;
        for (unsigned i = 0; i < 40; i++) {
            more.push_back(unit_alloc(256));
            EXPECT_FALSE(full.has(more.back()));
        }
        for (unsigned i = 1; i < enough; i++) unit_free(full.take(7, 100 + i));
        EXPECT_GE(unit_check_slabs(), 0);
        // What the active slab has on resident pages comes first: so many were built at once.
        unsigned found = 0;
        for (unsigned i = 0; i < std::max<unsigned>(os_page_bytes() / 256, 64) + enough; i++) {
            more.push_back(unit_alloc(256));
            found += full.has(more.back());
        }
        EXPECT_EQ(found, enough);
        for (void* p : more) unit_free(p);
    }));
}

// Where the active slab is full, the others have their turns: of those with enough the one with the most
// blocks in use, and the lowest of equals. Each is used up, and listed again.
TEST(Available, TheBestOfTheOthersTakesAFullOnesPlace) {
    for (size_t size : {48u, 256u, 1024u})
        for (const char* options : {"check_first=0:check_every=1000000", "check_first=0:reuse=late", ""})
            EXPECT_FINE(in_child([=] {
                setenv("WEIR_OPTIONS", options, 1);
                Full full(size, 20);
                const unsigned enough = class_enough(full.k);
                Random random(7);
                std::map<struct slice*, std::vector<void*>> blocks;
                for (void* p : std::exchange(full.all, {})) blocks[unit_slice(p)].push_back(p);
                for (unsigned round = 0; round < unit_rounds(60); round++) {
                    std::vector<std::pair<size_t, struct slice*>> order; // free blocks, slab
                    std::vector<struct slice*> slabs;
                    for (auto& [slab, all] : blocks) slabs.push_back(slab);
                    if (round % 2 != 0) std::reverse(slabs.begin(), slabs.end());
                    for (struct slice* slab : slabs) {
                        if (slab == unit_active(class_of(size)) || random.below(4) != 0 || order.size() == 7)
                            continue;
                        std::vector<void*>& all = blocks[slab];
                        size_t count = enough + random.below(4);
                        for (size_t i = 0; i < count; i++) {
                            std::swap(all[random.below(static_cast<unsigned>(all.size()))], all.back());
                            unit_free(all.back());
                            all.pop_back();
                        }
                        order.emplace_back(count, slab);
                    }
                    std::sort(order.begin(), order.end());
                    ASSERT_GE(unit_check_slabs(), 0) << round;
                    for (auto [count, slab] : order)
                        for (size_t i = 0; i < count; i++) {
                            void* p = unit_alloc(size);
                            ASSERT_EQ(unit_slice(p), slab) << size << " " << round << " " << i;
                            memset(p, 7, size);
                            blocks[slab].push_back(p);
                            if (i >= 2) continue;
                            EXPECT_EQ(unit_is_shared(slab), config_owner_publishes != 0);
                            ASSERT_GE(unit_check_slabs(), 0) << round;
                        }
                }
                for (auto& [slab, all] : blocks)
                    for (void* p : all) unit_free(p);
                expect_no_live_blocks();
            }));
}

// One at random goes, another one comes: no list for each, and hardly more memory.
TEST(Available, ReplacementAtRandomTakesManyBlocksAtATime) {
    for (size_t size : {48u, 256u, 1024u})
        EXPECT_FINE(in_child([&] {
            const unsigned rounds = unit_rounds(40000);
            Full full(size, 12);
            Random random(1);
            struct unit_figures before, after;
            uint64_t live = span_totals.live;
            unit_census(&before);
            for (unsigned i = 0; i < rounds; i++) {
                void*& p = full.all[random.below(static_cast<unsigned>(full.all.size()))];
                unit_free(p);
                p = unit_alloc(size);
            }
            unit_census(&after);
            EXPECT_LT(after.slow_calls - before.slow_calls, rounds / 4);
            EXPECT_LE(span_totals.live, live + live / 8 + SLICE_BYTES);
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

// Lists that become the bin's as they are: each that is due is checked, and no charge outlives its list.
TEST(Available, ListsThatTurnOverAreCheckedInTurns) {
    for (size_t size : {48u, 400u, 1024u})
        EXPECT_FINE(in_child([&] {
            core_options.check_first = 0;
            const unsigned rounds = 40000;
            Full full(size, 12);
            Random random(1);
            unsigned walked = 0;
            uint32_t before = 0;
            const unsigned some = static_cast<unsigned>(full.all.size()) / 3;
            for (unsigned i = 0; i < rounds; i++) {
                if (i / some % 2 == 0) { // a third goes, and as much comes again
                    std::swap(full.all[random.below(static_cast<unsigned>(full.all.size()))],
                              full.all.back());
                    unit_free(full.all.back());
                    full.all.pop_back();
                } else {
                    full.all.push_back(unit_alloc(size));
                }
                uint32_t unchecked = unit_turns_unchecked();
                ASSERT_LT(unchecked, core_options.check_every);
                walked += unchecked < before;
                before = unchecked;
            }
            EXPECT_GT(walked, 2u);
            std::set<struct slice*> slabs;
            for (void* p : full.all) slabs.insert(unit_slice(p));
            uint64_t charged = 0;
            for (const struct slice* s : slabs) charged += slice_pages(s)->charged * size;
            EXPECT_EQ(unit_exposed(), charged);
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

// Six go and six come, again and again: lists of less than a page are joined by the slab's next one; once.
TEST(Available, ShortListsThatTurnOverAreJoinedByMore) {
    for (size_t size : {48u, 256u, 1024u})
        EXPECT_FINE(in_child([&] {
            enum { some = 6, rounds = 400 };
            core_options.check_first = 0;
            std::vector<void*> all;
            for (unsigned i = 0; i < 20; i++) all.push_back(unit_alloc(size));
            while (all.size() < unit_slice(all[0])->built) all.push_back(unit_alloc(size)); // no more is free
            const uint32_t built = unit_slice(all[0])->built;
            struct unit_figures before, after;
            unit_census(&before);
            for (unsigned i = 0; i < rounds; i++) {
                for (unsigned j = 0; j < some; j++) unit_free(all[j]);
                for (unsigned j = 0; j < some; j++) all[j] = unit_alloc(size);
            }
            unit_census(&after);
            const unsigned page = static_cast<unsigned>(os_page_bytes() / size + 1);
            const bool few = some * size < 4096;
            EXPECT_LE(unit_slice(all[0])->built, built + (few ? 2 * page : 0u));
            EXPECT_LE(after.slow_calls - before.slow_calls, few ? rounds / 2u : rounds + 1u);
            for (void* p : all) unit_free(p);
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

TEST(Available, ALongListCountsAsSeveral) {
    EXPECT_FINE(in_child([] {
        core_options.check_first = 8;
        core_options.reuse = REUSE_LATE;
        Full full(64, 1);
        ASSERT_GT(full.all.size(), 600u);
        for (unsigned count : {600u, 20u}) {
            EXPECT_EQ(unit_turns_unchecked(), 0u);
            for (unsigned i = 0; i < count; i++) unit_free(full.all[i]);
            for (unsigned i = 0; i < count; i++) full.all[i] = unit_alloc(64);
        }
        EXPECT_EQ(unit_turns_unchecked(), 1u); // 600 blocks were all that is walked for sure
    }));
}

// Three blocks of four were freed, at random: what comes next goes to few pages, so that the others empty.
// Absent where no helper may be, or owners do not publish: what they sort depends on thread_free_max.
TEST_NATIVE(Available, SparseSlabsArePacked) {
    EXPECT_FINE(in_child([] {
        core_options.check_first = 0;
        Full full(64, 40);
        std::vector<void*> all;
        all.swap(full.all);
        Random random(1);
        for (size_t i = all.size(); i > 1; i--) std::swap(all[i - 1], all[random.below(i)]);
        for (size_t i = 0; i < all.size(); i++) {
            if (i % 4 == 0)
                full.all.push_back(all[i]);
            else
                unit_free(all[i]);
        }
        std::set<uintptr_t> pages;
        for (unsigned i = 0; i < 2 * full.k->capacity; i++) full.all.push_back(unit_alloc(64));
        for (size_t i = full.all.size() - 128; i < full.all.size(); i++)
            pages.insert(reinterpret_cast<uintptr_t>(full.all[i]) / os_page_bytes());
        EXPECT_LE(pages.size(), 10u);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// A slab of three pages has one to give at most, and needs it again soon: its list turns over as it is.
TEST_NATIVE(Available, SlabsOfAFewPagesAreNotPacked) {
    for (unsigned pages : {3u, 4u})
        EXPECT_FINE(in_child([&] {
            core_options.check_first = 0;
            core_options.reuse = REUSE_LATE;
            Full full(256, 8);
            full.free_one_of_the_others(); // the heap owns them again, and is one of some size
            std::vector<void*> all;
            for (size_t i = 0; i < pages * os_page_bytes() / 64; i++) all.push_back(unit_alloc(64));
            const struct slice* s = unit_slice(all[0]);
            EXPECT_EQ(s->built, all.size()); // and the bin is empty
            Random random(1);
            for (size_t i = all.size(); i > 1; i--) std::swap(all[i - 1], all[random.below(i)]);
            for (size_t i = 0; i < all.size(); i++)
                if (i % 4 != 0) unit_free(all[i]);
            unit_alloc(64);
            EXPECT_EQ(slice_pages(s)->sorted != 0, pages == 4);
            EXPECT_GE(unit_check_slabs(), 0);
        }));
}

TEST_NATIVE(Available, TheActiveSlabIsPackedToo) {
    EXPECT_FINE(in_child([] {
        core_options.check_first = 0;
        core_options.reuse = REUSE_LATE;
        Full full(64, 40);
        const unsigned own = full.k->capacity;
        std::vector<void*> last(full.all.end() - own, full.all.end());
        full.free_one_of_the_others(); // the heap owns them again, and is one of some size
        full.all.resize(full.all.size() - own);
        unit_free(last[0]);
        last[0] = unit_alloc(64);
        Random random(1);
        for (unsigned i = own; i > 1; i--) std::swap(last[i - 1], last[random.below(i)]);
        for (unsigned i = 0; i < own; i++)
            if (i % 4 != 0) unit_free(last[i]);
        std::set<uintptr_t> pages;
        for (unsigned i = 0; i < 128; i++)
            pages.insert(reinterpret_cast<uintptr_t>(unit_alloc(64)) / os_page_bytes());
        EXPECT_LE(pages.size(), 6u);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// Blocks of many classes in no order, of which some are replaced, or go.
struct Strewn {
    Strewn(unsigned count, unsigned least) : least(least) {
        while (count-- != 0) all.push_back(unit_alloc(size()));
    }
    ~Strewn() {
        for (void* p : all) unit_free(p);
    }
    unsigned size() { return least + random.below(1008 - least); }
    void*& any() { return all[random.below(static_cast<unsigned>(all.size()))]; }
    void swap(unsigned count) {
        while (count-- != 0) {
            void*& p = any();
            unit_free(p);
            p = unit_alloc(size());
        }
    }
    void drop(unsigned count) {
        while (count-- != 0) {
            std::swap(any(), all.back());
            unit_free(all.back());
            all.pop_back();
        }
    }
    // How many classes' active slabs have blocks on lists of pages: nobody sorts but their owner.
    unsigned sorted() const {
        unsigned found = 0;
        for (unsigned c = class_of(least); c <= class_of(1008); c++)
            found += unit_active(c) != nullptr && slice_pages(unit_active(c))->sorted != 0;
        return found;
    }
    unsigned least;
    Random random{1};
    std::vector<void*> all;
};

// A thread that goes round, as many blocks taken as given back: what it packs it is given at once, so that it
// stops; and it packs again when it gives back more than it takes.
TEST_NATIVE(Available, WhoGoesRoundPacksNoMore) {
    windows_are_endless(":release_floor=1g"); // no visitor sorts
    EXPECT_FINE(in_child([] {
        core_options.check_first = 0;
        Strewn blocks(2400, 560);
        unsigned rounds = 0, sorted = 0;
        for (; unit_packs() && rounds < 1000; rounds++) {
            blocks.swap(1000);
            sorted += blocks.sorted();
        }
        EXPECT_GT(sorted, 0u);
        EXPECT_LT(rounds, 1000u);
        for (unsigned still = 0; still < 20; still++) {
            blocks.swap(1000);
            EXPECT_FALSE(unit_packs());
        }
        EXPECT_EQ(blocks.sorted(), 0u);
        while (!unit_packs() && blocks.all.size() > 300) {
            blocks.drop(3);
            blocks.swap(2);
        }
        EXPECT_TRUE(unit_packs());
        for (unsigned i = 0; i < 300 && blocks.sorted() == 0; i++) {
            blocks.drop(1);
            blocks.swap(2);
        }
        EXPECT_GT(blocks.sorted(), 0u);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// Nearly all that such a thread is given comes from sparse slabs: to pack them keeps its pages few.
TEST_NATIVE(Available, WhoHasSparseSlabsAloneGoesOnPacking) {
    windows_are_endless(":release_floor=1g");
    EXPECT_FINE(in_child([] {
        core_options.check_first = 0;
        Strewn blocks(8000, 16);
        blocks.drop(5000);
        for (unsigned i = 0; i < 60; i++) {
            blocks.swap(1000);
            EXPECT_TRUE(unit_packs());
        }
        EXPECT_GT(blocks.sorted(), 0u);
        EXPECT_GE(unit_check_slabs(), 0);
    }));
}

// A list that was written to is reported, not followed.
TEST_NATIVE(Available, AListThatWasWrittenToIsNotPacked) {
    Ended ended = in_child([] {
        Full full(64, 40);
        for (size_t i = 0; i < full.all.size(); i++)
            if (i % 4 != 0) unit_free(std::exchange(full.all[i], nullptr));
        unit_active(class_of(64))->free = reinterpret_cast<void*>(0x4141414141414140);
        for (unsigned i = 0; i < 5000; i++) unit_alloc(64);
    });
    EXPECT_EQ(ended.printed.find("weir: corrupt-list: a freed block was written to 0x"), 0u) << ended.printed;
}

TEST(Available, WithoutMemoryTheLastBlocksServe) {
    EXPECT_FINE(in_child([] {
        Full full(256, 20);
        full.free_one_of_the_others();
        os_fault_hook = [](enum os_call) { return true; };
        std::vector<void*> more;
        unsigned found = 0;
        for (void* p; (p = unit_alloc(256)) != nullptr; more.push_back(p)) found += full.has(p);
        os_fault_hook = nullptr;
        EXPECT_EQ(found, 19u);
        for (void* p : more) unit_free(p);
    }));
}

// What waits in bins would keep a page or more of each class, and its slab.
TEST(Available, WhoOnlyFreesKeepsNoBins) {
    EXPECT_FINE(in_child([] {
        std::vector<void*> all;
        for (size_t size = 128; size <= 1024; size += 16)
            for (unsigned i = 0; i < 200; i++) all.push_back(unit_alloc(size));
        Random random(1);
        for (size_t i = all.size(); i > 1; i--)
            std::swap(all[i - 1], all[random.below(static_cast<unsigned>(i))]);
        for (void* p : all) unit_free(p);
        struct unit_figures f;
        unit_census(&f);
        EXPECT_EQ(f.live_blocks, 0u);
        EXPECT_LE(f.cached_bytes, unit_kept_bytes_max());
        EXPECT_GE(unit_check_slabs(), 0);
        expect_nothing_left();
    }));
}

// A thread without a slab of the class takes what it has before it makes one; and what it leaves serves
// others.
TEST(Available, FewBlocksServeWhoHasNoOthers) {
    EXPECT_FINE(in_child([] {
        unit_attach(); // tags are to start in the first thread
        std::unique_ptr<Full> full;
        std::thread([&] {
            full = std::make_unique<Full>(256, 5);
            full->free_one_of_the_others();
            unit_detach();
        }).join();
        for (unsigned i = 0; i < 4; i++) {
            void*& p = full->all[i * full->k->capacity + i];
            ASSERT_EQ(p, nullptr);
            p = unit_alloc(256);
            EXPECT_TRUE(full->has(p));
        }
    }));
}

} // namespace
