// arena_test.cc: chunks in which medium blocks of all classes lie side by side: against a model, for each
// size of page, with purges, refused memory and threads. Called by ctest; each test
// starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "arenas.h"
#include "workers.h"
#include <functional>
#include <map>
#include <mutex>
#include <sched.h>

namespace {

constexpr size_t idle_most = 262144; // of an arena, in bytes; less where a page is longer

// A shadow of live blocks: where each lies, and what was written to all of it.
class Model {
  public:
    explicit Model(uint32_t* home = nullptr) : home(home == nullptr ? &own_home : home) {}
    bool alloc(unsigned m, size_t align) {
        auto* p = static_cast<unsigned char*>(unit_arena_alloc(home, m, align));
        if (p == nullptr) return false;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % (align > 128 ? align : 128), 0u);
        auto after = live.lower_bound(p);
        EXPECT_TRUE(after == live.end() || bare(p) + class_bytes(m) <= bare(after->first))
            << "blocks overlap";
        EXPECT_TRUE(after == live.begin() ||
                    bare(std::prev(after)->first) + std::prev(after)->second.bytes <= bare(p))
            << "blocks overlap";
        Piece piece = {class_bytes(m), ++last};
        memset(p, piece.stamp, piece.bytes);
        live[p] = piece;
        counts[m]++;
        return true;
    }
    bool intact() const {
        for (const auto& [p, piece] : live)
            if (!holds(p, piece)) return false;
        return true;
    }
    void free_nth(size_t n) {
        auto it = live.begin();
        std::advance(it, static_cast<long>(n));
        unsigned char* p = it->first;
        EXPECT_TRUE(holds(p, it->second));
        counts[class_of(it->second.bytes) - SMALL_CLASSES]--;
        live.erase(it);
        unit_arena_free(p);
    }
    // To a larger class where it lies, if what is behind it is free.
    bool grow_nth(size_t n, unsigned by) {
        auto it = live.begin();
        std::advance(it, static_cast<long>(n));
        auto& [p, piece] = *it;
        unsigned m = class_of(piece.bytes) - SMALL_CLASSES;
        unsigned to = m + by < UNIT_MEDIUM_CLASSES ? m + by : UNIT_MEDIUM_CLASSES - 1;
        if (!unit_arena_grow(p, to)) return false;
        EXPECT_TRUE(holds(p, piece));
        EXPECT_GT(to, m);
        EXPECT_TRUE(std::next(it) == live.end() || bare(p) + class_bytes(to) <= bare(std::next(it)->first))
            << "blocks overlap";
        counts[m]--;
        counts[to]++;
        piece.bytes = class_bytes(to);
        memset(p, piece.stamp, piece.bytes);
        return true;
    }
    void free_all() {
        while (!live.empty()) free_nth(live.size() - 1);
    }
    void expect_counts() const {
        for (unsigned m = 0; m < UNIT_MEDIUM_CLASSES; m++) EXPECT_EQ(unit_arena_used(m), counts[m]) << m;
    }
    size_t size() const { return live.size(); }
    size_t bytes() const {
        size_t sum = 0;
        for (const auto& [p, piece] : live) sum += piece.bytes;
        return sum;
    }

  private:
    struct Piece {
        size_t bytes;
        unsigned char stamp;
    };
    static bool holds(const unsigned char* p, const Piece& piece) {
        return p[0] == piece.stamp && memcmp(p, p + 1, piece.bytes - 1) == 0;
    }
    uint32_t own_home = 0;
    uint32_t* home;
    std::map<unsigned char*, Piece, ByAddress> live;
    uint64_t counts[UNIT_MEDIUM_CLASSES] = {};
    unsigned char last = 0;
};

// Blocks of all classes and alignments come and go, in waves; every invariant holds all the time.
void churn(Random& random, Model& model, unsigned rounds, unsigned most, const std::function<void()>& pass) {
    size_t aim = 0;
    unsigned grown = 0;
    for (unsigned i = 0; i < rounds && !::testing::Test::HasFailure(); i++) {
        if (i % 512 == 0) aim = random.below(most);
        if (model.size() < aim || (model.size() < 2 * aim && random.below(2) == 0))
            model.alloc(some_class(random), size_t{16} << random.below(13));
        else if (model.size() != 0)
            model.free_nth(random.below(model.size()));
        if (model.size() != 0 && random.below(4) == 0)
            grown += model.grow_nth(random.below(model.size()), static_cast<unsigned>(random.below(6)));
        EXPECT_LE(unit_arena_idle_bytes(), // in each arena
                  (std::max(idle_most, model.bytes() / 16) + UNIT_QUICK_BYTES) * os_cpu_count());
        if (i % 16 != 0) continue;
        EXPECT_TRUE(unit_arena_check()) << "step " << i;
        if (i % 256 != 0) continue;
        pass();
        model.expect_counts();
    }
    EXPECT_GE(grown, tag_is_on() ? 0 : rounds / 100);
}

void run_churn(uint32_t shift) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless();
        start_with_pages(shift);
        Random random(shift);
        Model model;
        churn(random, model, unit_rounds(6000), 150, [&] {
            release_all();
            EXPECT_TRUE(model.intact());
            EXPECT_TRUE(unit_arena_check());
        });
        model.free_all();
        expect_no_chunk_left();
    }));
}
TEST(Arena, AllClassesAndAlignmentsOnPagesOf4KiB) { run_churn(12); }
TEST(Arena, AllClassesAndAlignmentsOnPagesOf16KiB) { run_churn(14); }
TEST(Arena, AllClassesAndAlignmentsOnPagesOf64KiB) { run_churn(16); }

TEST(Arena, BlocksKeepTheirContentsWhileOthersArePurged) {
    for (uint32_t shift : {12u, 16u})
        EXPECT_FINE(in_child([=] {
            windows_are_endless();
            start_with_pages(shift);
            Random random(shift + 5);
            Model model;
            {
                Purger purger;
                churn(random, model, unit_rounds(6000), 100, [] {});
                for (unsigned i = 0; i < 20000 && purger.passes.load() < 4; i++) {
                    churn(random, model, 50, 100, [] {});
                    usleep(200);
                }
                EXPECT_GT(purger.passes.load(), 3u);
            }
            EXPECT_TRUE(model.intact());
            model.free_all();
            expect_no_chunk_left();
        }));
}

TEST(Arena, RunsAreMergedWithBothNeighbours) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        uint32_t home = 0;
        const unsigned m = class_of(32768) - SMALL_CLASSES;
        std::vector<char*> all;
        for (unsigned i = 0; i < chunk_holds(32768); i++)
            all.push_back(static_cast<char*>(unit_arena_alloc(&home, m, 1)));
        EXPECT_EQ(chunk_count(), 1u);
        for (size_t i = 1; i < all.size(); i++) EXPECT_EQ(bare(all[i]), bare(all[i - 1]) + 32768);
        for (unsigned i : {4u, 6u, 5u, 3u, 8u, 7u}) { // alone; alone; between two; before one; after; between
            unit_arena_free(all[i]);
            EXPECT_TRUE(unit_arena_check()) << i;
        }
        // Six together: three of twice the size have room nowhere else.
        for (unsigned i = 0; i < 3; i++)
            EXPECT_EQ(bare(unit_arena_alloc(&home, class_of(65536) - SMALL_CLASSES, 1)),
                      bare(all[3 + 2 * i]));
        EXPECT_EQ(chunk_count(), 1u);
        EXPECT_TRUE(unit_arena_check());
    }));
}

// A freed block waits for the next one of its class, and is swallowed by a run before there is another chunk.
TEST(Arena, AFreedBlockIsTheNextOfItsClass) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        uint32_t home = 0;
        const unsigned half = class_of(8192) - SMALL_CLASSES;
        const unsigned whole = class_of(16384) - SMALL_CLASSES;
        char* all[UNIT_CHUNK_BYTES / 8192];
        for (char*& p : all) p = static_cast<char*>(unit_arena_alloc(&home, half, 1));
        unit_arena_free(all[7]);
        EXPECT_EQ(unit_arena_used(half), std::size(all) - 1);
        EXPECT_EQ(unit_arena_idle_bytes(), 8192u);
        EXPECT_TRUE(unit_arena_check());
        char* again = static_cast<char*>(unit_arena_alloc(&home, half, 1));
        EXPECT_EQ(bare(again), bare(all[7]));
        EXPECT_EQ(unit_arena_used(half), std::size(all));
        EXPECT_EQ(unit_arena_idle_bytes(), 0u);
        all[7] = again;
        // One that does not start at a multiple of the alignment stays where it is.
        unit_arena_free(all[9]);
        void* aligned = unit_arena_alloc(&home, half, 16384);
        EXPECT_NE(bare(aligned), bare(static_cast<void*>(all[9])));
        EXPECT_EQ(chunk_count(), 2u);
        unit_arena_free(aligned);
        unit_arena_trim();
        all[9] = static_cast<char*>(unit_arena_alloc(&home, half, 1));
        unit_arena_free(all[4]);
        unit_arena_free(all[5]);
        EXPECT_EQ(bare(unit_arena_alloc(&home, whole, 1)), bare(static_cast<void*>(all[4])));
        EXPECT_EQ(chunk_count(), 1u);
        EXPECT_TRUE(unit_arena_check());
    }));
}

// No more than so much waits: what is freed past that are runs, and idle pages, and holes.
TEST(Arena, FewFreedBlocksWait) {
    for (unsigned chunks : {1u, 4u, 12u})
        EXPECT_FINE(in_child([=] {
            windows_are_endless();
            stay_on_one_processor();
            unit_attach();
            const size_t most = std::min<size_t>(chunks * UNIT_QUICK_CHUNK_BYTES, UNIT_QUICK_BYTES);
            uint32_t home = 0;
            std::vector<void*> all;
            for (unsigned i = 0; i < chunks * UNIT_CHUNK_BYTES / 2048; i++)
                all.push_back(unit_arena_alloc(&home, class_of(2048) - SMALL_CLASSES, 1));
            EXPECT_EQ(chunk_count(), chunks);
            size_t peak = 0;
            for (size_t i = 0; i < all.size(); i += 2) { // no page is without a block
                unit_arena_free(all[i]);
                peak = std::max<size_t>(peak, unit_arena_idle_bytes());
            }
            EXPECT_EQ(peak, most);
            EXPECT_TRUE(unit_arena_check());
        }));
}

// Blocks that come along are a class's own, whole, and in use; off a free run, as far as that goes, and of
// those that wait.
TEST(Arena, SomeComeAlong) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        uint32_t home = 0;
        for (unsigned m = 0; m < UNIT_SLAB_MEDIUM_CLASSES; m += 5) {
            const uint64_t used = unit_arena_used(m);
            const unsigned most = std::min<unsigned>(UNIT_ARENA_MORE, UNIT_CHUNK_BYTES / 2 / class_bytes(m));
            void* all[2][1 + UNIT_ARENA_MORE];
            unsigned count[2];
            count[0] = unit_arena_alloc_some(&home, m, most, all[0]);
            EXPECT_EQ(count[0], tag_is_on() ? 1u : 1u + most);
            for (unsigned again : {0u, 1u}) {
                count[1] = unit_arena_alloc_some(&home, m, 2, all[1]);
                bool all_wait = again == 0 || 3 * class_bytes(m) <= UNIT_QUICK_CHUNK_BYTES;
                EXPECT_TRUE(count[1] == (tag_is_on() ? 1u : 3u) || !all_wait) << class_bytes(m);
                EXPECT_EQ(unit_arena_used(m), used + count[0] + count[1]);
                for (unsigned k : {0u, 1u})
                    for (unsigned i = 0; i < count[k]; i++)
                        memset(all[k][i], static_cast<int>(32 * k + i), class_bytes(m));
                for (unsigned k : {0u, 1u})
                    for (unsigned i = 0; i < count[k]; i++) {
                        Block b = {static_cast<unsigned char*>(all[k][i]), 0, class_bytes(m),
                                   static_cast<unsigned char>(32 * k + i)};
                        EXPECT_TRUE(block_intact(b, b.usable)) << class_bytes(m) << " " << again;
                    }
                EXPECT_TRUE(unit_arena_check());
                for (unsigned i = 0; i < count[1]; i++) unit_arena_free(all[1][i]);
            }
            for (unsigned i = 0; i < count[0]; i++) unit_arena_free(all[0][i]);
            EXPECT_EQ(unit_arena_used(m), used);
            unit_arena_trim(); // the next class has a chunk for itself
        }
        EXPECT_TRUE(unit_arena_check());
        expect_no_chunk_left();
    }));
}

// No more than a run has.
TEST(Arena, NoMoreComeAlongThanTheRunHas) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        if (tag_is_on()) return; // each is taken by itself then
        const unsigned m = class_of(2048) - SMALL_CLASSES;
        uint32_t home = 0;
        std::vector<void*> all;
        for (unsigned i = 0; i < UNIT_CHUNK_BYTES / 2048; i++) all.push_back(unit_arena_alloc(&home, m, 1));
        EXPECT_EQ(chunk_count(), 1u);
        for (unsigned i = 100; i < 103; i++) unit_arena_free(all[i]);
        unit_arena_publish(); // a run of three
        void* some[1 + UNIT_ARENA_MORE];
        EXPECT_EQ(unit_arena_alloc_some(&home, m, UNIT_ARENA_MORE, some), 3u);
        for (unsigned i = 0; i < 3; i++) EXPECT_EQ(bare(some[i]), bare(all[100 + i]));
        EXPECT_EQ(chunk_count(), 1u);
        EXPECT_TRUE(unit_arena_check());
    }));
}

// Where use goes down and up again by much, what comes back waits, and a pass is told; where it stays the
// same for long, it becomes runs.
TEST(Arena, WhatComesAndGoesWaits) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        if (tag_is_on()) return; // nothing waits then
        const size_t bytes = 2048;
        const unsigned m = class_of(bytes) - SMALL_CLASSES;
        uint32_t home = 0;
        std::vector<void*> all;
        size_t owed = unit_release_owed();
        auto wave = [&] {
            while (all.size() < 1500) all.push_back(unit_arena_alloc(&home, m, 1));
            for (; all.size() > 100; all.pop_back()) unit_arena_free(all.back());
            return unit_arena_idle_bytes();
        };
        EXPECT_LE(wave(), idle_most + UNIT_QUICK_BYTES);
        EXPECT_EQ(unit_release_owed(), owed);
        for (unsigned i = 0; i < 24; i++) wave();
        EXPECT_GE(wave(), 1400 * bytes);
        EXPECT_GT(unit_release_owed(), owed);
        EXPECT_TRUE(unit_arena_check());
        unit_arena_publish();
        EXPECT_EQ(unit_arena_idle_bytes(), 0u); // all of it is holes
        while (all.size() < 1500) all.push_back(unit_arena_alloc(&home, m, 1));
        for (size_t i = 0; i < size_t{8} * UNIT_QUICK_LOOK; i++) {
            void*& p = all[i % all.size()];
            unit_arena_free(p);
            p = unit_arena_alloc(&home, m, 1);
        }
        for (; all.size() > 100; all.pop_back()) unit_arena_free(all.back());
        EXPECT_LE(unit_arena_idle_bytes(), idle_most + UNIT_QUICK_BYTES);
        EXPECT_TRUE(unit_arena_check());
    }));
}

// So it is where it takes more frees than are looked at to go down.
TEST(Arena, WhatComesAndGoesSlowlyWaits) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        if (tag_is_on()) return;
        const size_t bytes = 2048, count = size_t{3} * UNIT_QUICK_LOOK;
        const unsigned m = class_of(bytes) - SMALL_CLASSES;
        uint32_t home = 0;
        std::vector<void*> all;
        size_t waits = 0;
        for (unsigned i = 0; i < 12; i++) {
            while (all.size() < count) all.push_back(unit_arena_alloc(&home, m, 1));
            for (; !all.empty(); all.pop_back()) unit_arena_free(all.back());
            waits = unit_arena_idle_bytes();
        }
        EXPECT_GE(waits, count * bytes);
        EXPECT_TRUE(unit_arena_check());
    }));
}

// Where more is in use, more pages stay idle: for the next blocks, without a word of theirs; a pass is told.
TEST(Arena, AFewOfManyPagesStayIdle) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        const unsigned m = class_of(16384) - SMALL_CLASSES;
        uint32_t home = 0;
        std::vector<void*> all;
        for (unsigned i = 0; i < 20 * UNIT_CHUNK_BYTES / 16384; i++)
            all.push_back(unit_arena_alloc(&home, m, 1));
        size_t owed = unit_release_owed();
        const size_t part = 10 * UNIT_CHUNK_BYTES / 16;
        size_t peak = 0;
        for (size_t i = 0; i < all.size(); i += 2) {
            unit_arena_free(all[i]);
            peak = std::max<size_t>(peak, unit_arena_idle_bytes());
        }
        EXPECT_GT(peak, part);
        EXPECT_LE(peak, 2 * part + UNIT_QUICK_BYTES);
        EXPECT_GT(unit_release_owed(), owed);
        for (size_t i = 1; i < all.size(); i += 2) unit_arena_free(all[i]);
        EXPECT_LE(unit_arena_idle_bytes(), idle_most + UNIT_QUICK_BYTES); // less is in use
        EXPECT_TRUE(unit_arena_check());
        unit_arena_publish();
        EXPECT_EQ(unit_arena_idle_bytes(), 0u);
    }));
}

// Before an arena takes pages that have no memory, what waits is merged.
TEST(Arena, WhatWaitsGoesBeforeMoreMemory) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        uint32_t home = 0;
        const unsigned small = class_of(4096) - SMALL_CLASSES, large = class_of(32768) - SMALL_CLASSES;
        EXPECT_EQ(unit_arena_alloc_resident(&home, small, 1), nullptr); // there is none yet
        std::vector<void*> all;
        for (unsigned i = 0; i < 3 * UNIT_CHUNK_BYTES / 4096 + 10; i++)
            all.push_back(unit_arena_alloc(&home, small, 1));
        EXPECT_EQ(chunk_count(), 4u);
        EXPECT_EQ(unit_arena_alloc_resident(&home, small, 1), nullptr); // what is left has no memory
        for (unsigned i = 100; i < 130; i++) unit_arena_free(all[i]);   // fewer than may wait
        EXPECT_EQ(bare(unit_arena_alloc(&home, large, 1)), bare(all[100]));
        EXPECT_EQ(bare(unit_arena_alloc_resident(&home, large, 1)), bare(all[108]));
        EXPECT_TRUE(unit_arena_check());
    }));
}

TEST(Arena, ChunksComeAndGo) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        Model model;
        const size_t holds = chunk_holds(SLAB_MAX);
        for (unsigned chunks = 1; chunks <= 5; chunks++) {
            for (unsigned i = 0; i < chunk_holds(SLAB_MAX); i++)
                EXPECT_TRUE(model.alloc(UNIT_SLAB_MEDIUM_CLASSES - 1, SLAB_MAX));
            EXPECT_EQ(chunk_count(), chunks);
        }
        EXPECT_TRUE(unit_arena_check());
        while (model.size() != 0) {
            model.free_nth(model.size() - 1);
            unit_arena_publish();
            EXPECT_EQ(chunk_count(), std::min<size_t>((model.size() + holds - 1) / holds + 1, 5));
            EXPECT_TRUE(unit_arena_check());
        }
        EXPECT_EQ(chunk_count(), 1u); // one that is empty is kept
        EXPECT_TRUE(model.alloc(0, 1));
        EXPECT_EQ(chunk_count(), 1u);
        unit_arena_trim();
        EXPECT_EQ(chunk_count(), 1u); // it is in use
        model.free_all();
        expect_no_chunk_left();
    }));
}

// What is known of chunks that are no more takes no memory once somebody has been there, and can come again.
TEST(Arena, RecordsOfChunksThatWentGoToo) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        // Of a record, in whole pages; of four beside each other, of which two share a page three times.
        const bool known = !tag_is_on() && os_page_bytes() == 4096;
        const size_t least = known ? 2 * 4096 : 0, least_of_four = known ? 13 * 4096 : 0;
        Model model;
        for (unsigned time = 0; time < 2; time++) {
            while (chunk_count() < 20) EXPECT_TRUE(model.alloc(UNIT_MEDIUM_CLASSES - 1, 1));
            for (unsigned i = 0; i < 300; i++) EXPECT_TRUE(model.alloc(i % 20, 1));
            model.free_all();
            unit_arena_publish();
            EXPECT_EQ(chunk_count(), 1u);
            uint64_t before = load_relaxed(&span_totals.purged);
            unit_arena_trim();
            uint64_t last = load_relaxed(&span_totals.purged) - before;
            EXPECT_GE(last, least) << time;                                          // that of the last one
            EXPECT_GE(before, (time + 1) * (4 * least_of_four + 2 * least)) << time; // one of 20 stayed
            unit_arena_publish();
            EXPECT_EQ(load_relaxed(&span_totals.purged), before + last); // nothing is left to do
            EXPECT_TRUE(unit_arena_check());
        }
        // One that came again before anybody was there is in use.
        while (chunk_count() < 20) EXPECT_TRUE(model.alloc(UNIT_MEDIUM_CLASSES - 1, 1));
        model.free_all();
        EXPECT_LT(chunk_count(), 20u);
        while (chunk_count() < 20) EXPECT_TRUE(model.alloc(UNIT_MEDIUM_CLASSES - 1, 1));
        unit_arena_publish();
        EXPECT_TRUE(unit_arena_check());
        model.expect_counts();
        model.free_all();
        expect_no_chunk_left();
    }));
}

// A visitor comes, as by a handler's malloc_trim, while a chunk is made whose record lies between some that
// are gone.
unsigned publishes;
TEST(Arena, ARecordThatIsInUseStays) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        Model model;
        std::vector<void*> large;
        for (unsigned there = 2; there < 9; there++) { // of which some have one behind them, others none
            while (chunk_count() < 12) EXPECT_TRUE(model.alloc(UNIT_MEDIUM_CLASSES - 1, 1));
            model.free_all();
            while (chunk_count() < there) EXPECT_TRUE(model.alloc(UNIT_MEDIUM_CLASSES - 1, 1));
            // No free span is left for a chunk, and what is behind the frontier is to be made accessible
            // first.
            const struct region* r = &regions[0];
            uint32_t frontier;
            do {
                frontier = r->frontier;
                large.push_back(unit_alloc_aligned(UNIT_CHUNK_BYTES, os_page_bytes()));
            } while (r->frontier == frontier ||
                     r->committed - r->frontier >= UNIT_CHUNK_BYTES >> SLICE_SHIFT);
            publishes = 0;
            os_fault_hook = [](enum os_call call) {
                if (call == OS_PROTECT && publishes++ == 0) unit_arena_publish();
                return false;
            };
            while (chunk_count() <= there) EXPECT_TRUE(model.alloc(UNIT_MEDIUM_CLASSES - 1, 1));
            os_fault_hook = nullptr;
            EXPECT_GE(publishes, 1u);
            EXPECT_TRUE(unit_arena_check());
            model.expect_counts();
        }
        model.free_all();
        for (void* p : large) unit_free(p);
        expect_no_chunk_left();
    }));
}

TEST(Arena, AFullOneHasNothingAndSlabsServe) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":sparse_max=65535:thread_kept_max=0");
        stay_on_one_processor();
        unit_attach();
        if (tag_is_on()) return; // each block's tag would take the memory of all 4 GiB
        uint32_t home = 0;
        std::vector<void*> all;
        void* p;
        while ((p = unit_arena_alloc(&home, UNIT_SLAB_MEDIUM_CLASSES - 1, 1)) != nullptr) all.push_back(p);
        EXPECT_EQ(all.size(), size_t{UNIT_ARENA_CHUNKS} * chunk_holds(SLAB_MAX));
        EXPECT_EQ(chunk_count(), unsigned{UNIT_ARENA_CHUNKS});
        void* other = unit_alloc(SLAB_MAX);
        ASSERT_NE(other, nullptr);
        EXPECT_FALSE(unit_in_chunk(other));
        unit_free(other);
        unit_arena_free(all[100]);
        EXPECT_EQ(bare(all[100]), bare(p = unit_arena_alloc(&home, UNIT_SLAB_MEDIUM_CLASSES - 1, 1)));
        all[100] = p;
        EXPECT_TRUE(unit_arena_check());
        for (void* q : all) unit_arena_free(q);
        EXPECT_LE(chunk_count(), 1 + UNIT_QUICK_BYTES / SLAB_MAX); // for those that wait, and an empty one
        unit_collect();
        expect_no_chunk_left();
    }));
}

TEST(Arena, PagesThatArePurgedJustNowAreNotHanded) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        uint32_t home = 0;
        const unsigned whole = UNIT_SLAB_MEDIUM_CLASSES - 1;
        char* low = static_cast<char*>(unit_arena_alloc(&home, class_of(49152) - SMALL_CLASSES, 1));
        char* mid = static_cast<char*>(unit_arena_alloc(&home, whole, SLAB_MAX));
        char* high = static_cast<char*>(unit_arena_alloc(&home, whole, SLAB_MAX));
        ASSERT_EQ(bare(mid), bare(low) + 65536);
        ASSERT_EQ(bare(high), bare(mid) + 65536);
        memset(mid, 1, SLAB_MAX);
        unit_arena_free(mid);
        EXPECT_EQ(unit_arena_idle_bytes(), SLAB_MAX);
        unit_arena_publish(); // dirty holes
        EXPECT_EQ(unit_arena_idle_bytes(), 0u);
        Gate gate;
        gate.wait();
        // The shortest run that fits starts in the slice before, with pages that are to be had.
        EXPECT_EQ(unit_arena_alloc(&home, whole, 1), nullptr);
        EXPECT_TRUE(unit_arena_check());
        EXPECT_TRUE(gate.join());
        char* p = static_cast<char*>(unit_arena_alloc(&home, whole, 1));
        EXPECT_EQ(bare(p), bare(low) + 49152);
        EXPECT_TRUE(is_zero(p + 16384, 49152));
        EXPECT_TRUE(unit_arena_check());
    }));
}

// What is free goes back.
TEST_UNEMULATED(Arena, FreePagesGoBack) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        Random random(3);
        Model model;
        for (unsigned i = 0; i < 200; i++) EXPECT_TRUE(model.alloc(some_class(random), 1));
        while (model.size() > 10) model.free_nth(random.below(model.size()));
        EXPECT_GT(unit_arena_idle_bytes(), 0u);
        unit_visit(true); // as before each pass
        EXPECT_EQ(unit_arena_idle_bytes(), 0u);
        release_all();
        unsigned stayed = 0;
        auto count = [](struct slice* s, void* context) {
            for (uint32_t i = 0; s->kind == SLICE_CHUNK && i < uint32_t{UNIT_CHUNK_BYTES} >> page_shift;
                 i++) {
                uint32_t holes = hole_of(load_relaxed(&slice_pages(s + i / slice_page_count())->state));
                bool hole = (holes >> i % slice_page_count() & 1) != 0;
                *static_cast<unsigned*>(context) += hole && is_resident((slice_address(s) >> page_shift) + i);
            }
        };
        span_visit(count, &stayed);
        EXPECT_EQ(stayed, 0u);
        EXPECT_TRUE(model.intact());
        EXPECT_TRUE(unit_arena_check());
        model.free_all();
        expect_no_chunk_left();
    }));
}

// ---- Refused memory.

std::atomic<uint64_t> os_calls, refuse_from, refused;

TEST(Arena, EachCallOfTheSystemRefused) {
    for (const char* options : {"reserve=1g", "reserve=4m"})
        for (bool all_after : {false, true})
            for (uint64_t nth = 1, lives = 0;; nth += unit_refused_step, lives++) {
                Ended ended = in_child([&] {
                    setenv("WEIR_OPTIONS", options, 1);
                    unit_attach();
                    refuse_from = nth + os_calls;
                    static bool rest;
                    rest = all_after;
                    os_fault_hook = [](enum os_call) {
                        uint64_t n = ++os_calls;
                        bool yes = rest ? n >= refuse_from : n == refuse_from;
                        refused += yes;
                        return yes;
                    };
                    Model model;
                    Random random(nth);
                    unsigned missing = 0;
                    for (unsigned i = 0; i < 120; i++) missing += !model.alloc(some_class(random), 1);
                    while (model.size() > 20) model.free_nth(random.below(model.size()));
                    release_all();
                    unit_arena_trim();
                    for (unsigned i = 0; i < 60; i++)
                        missing += !model.alloc(some_class(random), size_t{16} << random.below(13));
                    EXPECT_TRUE(unit_arena_check());
                    EXPECT_TRUE(missing == 0 || refused != 0);
                    os_fault_hook = nullptr;
                    EXPECT_TRUE(model.alloc(UNIT_SLAB_MEDIUM_CLASSES - 1, SLAB_MAX));
                    EXPECT_TRUE(model.intact());
                    model.free_all();
                    expect_no_chunk_left();
                    fflush(stdout);
                    if (refused == 0) _exit(::testing::Test::HasFailure() ? 1 : 42);
                });
                EXPECT_EQ(ended.printed, "");
                if (ended.exited(42)) {
                    EXPECT_GE(lives, 2u);
                    break;
                }
                ASSERT_TRUE(ended.fine()) << options << " call " << nth << " status " << ended.status;
            }
}

// ---- Threads.

// A thread that finds an arena in use goes to the next one and stays there, where threads are few.
TEST(Arena, ContentionMovesTheHome) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        static std::atomic<int> state;
        static pthread_t held;
        os_fault_hook = [](enum os_call call) {
            if (call != OS_PROTECT || state != 0 || !pthread_equal(pthread_self(), held)) return false;
            state = 1; // once: it may need more than one such call
            while (state.load() != 2) usleep(100);
            return false;
        };
        const uint32_t next = os_cpu_count() > 1 ? 1 : 0;
        uint32_t home = next, other_home = 0;
        void* before = unit_arena_alloc(&home, 0, 1); // the next one has a chunk
        EXPECT_EQ(home, next);
        void* q = nullptr;
        std::thread other([&] {
            held = pthread_self();
            while (state == 0) q = unit_arena_alloc(&other_home, UNIT_MEDIUM_CLASSES - 1, 1);
        });
        while (state.load() != 1) usleep(100); // it holds the first one's lock
        if (next == 0) state = 2;
        home = 0;
        void* p = unit_arena_alloc(&home, 0, 1);
        EXPECT_EQ(home, next);
        void* more = unit_arena_alloc(&home, 0, 1);
        EXPECT_EQ(home, next);
        state = 2;
        other.join();
        for (void* block : {before, p, more, q}) EXPECT_NE(block, nullptr);
        EXPECT_EQ(other_home, 0u);
        EXPECT_TRUE(unit_arena_check());
    }));
}

// The processors that this thread may run on; with one of them it runs there.
std::vector<int> processors() {
    cpu_set_t set;
    EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    std::vector<int> all;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set)) all.push_back(cpu);
    return all;
}
void run_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    EXPECT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
    EXPECT_EQ(os_cpu_number(), static_cast<uint32_t>(cpu));
}

// With more threads than arenas one that finds an arena in use takes each processor's own from then on,
// until it finds one in use where there are fewer threads again.
TEST(Arena, ManyThreadsGoByTheirProcessors) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        const std::vector<int> cpus = processors();
        uint32_t home = 0;
        std::vector<void*> all = {unit_arena_alloc(&home, 3, 1)};
        auto meets_another = [&] {
            if (cpus.size() < 2) { // there is one arena, and who holds it would be waited for
                home = UNIT_ARENA_BY_CPU;
                return;
            }
            Worker other;
            other.does([&] { unit_arena_hold(all.back(), false); });
            all.push_back(unit_arena_alloc(&home, 3, 1));
            EXPECT_NE(unit_arena_of(all.back()), unit_arena_of(all[all.size() - 2]));
            other.does([&] { unit_arena_leave(all[all.size() - 2]); });
        };
        {
            Crowd crowd = crowd_of(static_cast<unsigned>(cpus.size()));
            meets_another();
            EXPECT_EQ(home, UNIT_ARENA_BY_CPU);
            std::map<const void*, int> owners; // of arenas
            for (int turn = 0; turn < 2; turn++)
                for (int cpu : cpus) {
                    run_on(cpu);
                    all.push_back(unit_arena_alloc(&home, 3, 1));
                    const void* arena = unit_arena_of(all.back());
                    if (owners.count(arena) == 0) owners[arena] = cpu;
                    EXPECT_TRUE(owners[arena] == cpu || cpus.size() > 16) << turn;
                }
            EXPECT_EQ(owners.size(), std::min<size_t>(cpus.size(), 16));
            EXPECT_EQ(home, UNIT_ARENA_BY_CPU);
        }
        meets_another();
        EXPECT_EQ(home == UNIT_ARENA_BY_CPU, cpus.size() < 2);
        for (void* p : all) unit_arena_free(p);
        expect_no_chunk_left();
    }));
}

// Nobody asks where it runs then, in case that takes a system call.
TEST(Arena, InASandboxManyThreadsGoToTheNext) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        uint32_t home = 0;
        void* p = unit_arena_alloc(&home, 3, 1);
        Crowd crowd = crowd_of(os_cpu_count());
        os_sandbox_announced();
        EXPECT_EQ(os_cpu_number(), static_cast<uint32_t>(OS_CPU_UNKNOWN));
        Worker other;
        const bool more = os_cpu_count() > 1; // than one arena, whose holder would be waited for
        if (more) other.does([&] { unit_arena_hold(p, false); });
        void* q = unit_arena_alloc(&home, 3, 1);
        EXPECT_EQ(home, more ? 1u : 0u);
        home = UNIT_ARENA_BY_CPU; // as of a thread that did before
        if (more) other.does([&] { unit_arena_leave(p); });
        void* r = unit_arena_alloc(&home, 3, 1);
        EXPECT_EQ(unit_arena_of(r), unit_arena_of(p));
        for (void* block : {p, q, r}) unit_arena_free(block);
        expect_no_chunk_left();
    }));
}

struct Handed {
    std::mutex mutex;
    unsigned char* block = nullptr;
    unsigned m = 0;
    unsigned char stamp = 0;
};

// Threads free what others allocated; each looks at all of the content.
TEST(Arena, ThreadsFreeEachOthersBlocks) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        static Handed handed[64];
        std::atomic<unsigned> bad{0};
        {
            Purger purger;
            std::vector<std::thread> all;
            for (unsigned t = 0; t < 4; t++)
                all.emplace_back([&, t] {
                    Random random(t + 1);
                    uint32_t home = 0;
                    for (unsigned i = 0; i < unit_rounds(20000); i++) {
                        Handed mine;
                        mine.m = some_class(random);
                        mine.stamp = static_cast<unsigned char>(random.next());
                        mine.block = static_cast<unsigned char*>(
                            unit_arena_alloc(&home, mine.m, size_t{16} << random.below(13)));
                        if (mine.block != nullptr) memset(mine.block, mine.stamp, class_bytes(mine.m));
                        Handed& slot = handed[random.below(64)];
                        slot.mutex.lock();
                        std::swap(slot.block, mine.block);
                        std::swap(slot.m, mine.m);
                        std::swap(slot.stamp, mine.stamp);
                        slot.mutex.unlock();
                        if (mine.block == nullptr) continue;
                        Block b = {mine.block, 0, class_bytes(mine.m), mine.stamp};
                        if (!block_intact(b, b.usable)) bad++;
                        unit_arena_free(mine.block);
                        if (i % 512 == 0) (void)unit_arena_idle_bytes();
                        if (i % 2048 == 0) unit_arena_trim();
                    }
                });
            for (std::thread& t : all) t.join();
        }
        EXPECT_EQ(bad.load(), 0u);
        EXPECT_TRUE(unit_arena_check());
        for (Handed& h : handed)
            if (h.block != nullptr) unit_arena_free(h.block);
        expect_no_chunk_left();
    }));
}

// For a visitor a thread waits, as it is gone soon: in another arena nothing is free for the thread.
TEST(Arena, AVisitorIsWaitedForAndOthersAreNot) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        uint32_t home = 0;
        void* first = unit_arena_alloc(&home, 3, 1);
        bool stays = false;
        for (unsigned i = 0; i < 50 && !stays; i++) { // a machine that is busy lets a visitor sleep, say
            home = 0;
            std::atomic<bool> holds{false};
            std::thread visitor([&] {
                unit_arena_hold(first, true);
                holds = true;
                usleep(100);
                unit_arena_leave(first);
            });
            while (!holds) std::this_thread::yield();
            unit_arena_free(unit_arena_alloc(&home, 3, 1));
            stays = home == 0;
            visitor.join();
        }
        EXPECT_TRUE(stays);
        const bool more = os_cpu_count() > 1; // than one arena, which would be waited for
        for (bool visits : {false, true}) {   // nor is one that does not leave
            Worker other;
            if (more) other.does([&] { unit_arena_hold(first, visits); });
            home = 0;
            void* p = unit_arena_alloc(&home, 3, 1);
            EXPECT_EQ(home, more ? 1u : 0u) << visits;
            if (more) other.does([&] { unit_arena_leave(first); });
            other.end();
            unit_arena_free(p);
        }
        unit_arena_free(first);
        expect_no_chunk_left();
    }));
}

} // namespace
