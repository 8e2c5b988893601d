// arena_test.cc: chunks in which medium blocks of all classes lie side by side: against a model, for each
// size of page, with purges, refused memory, threads and forks at any instruction. Called by ctest; each test
// starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include <functional>
#include <map>
#include <mutex>
#include <sched.h>
#include <ucontext.h>

namespace {

constexpr size_t idle_most = 262144; // of an arena, in bytes; less where a page is longer

size_t class_bytes(unsigned m) { return size_classes[SMALL_CLASSES + m].bytes; }
unsigned some_class(Random& random) { return static_cast<unsigned>(random.below(UNIT_MEDIUM_CLASSES)); }

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

// Where memory is tagged the last one does not fit: a chunk ends with a unit that is no block's.
size_t chunk_holds(size_t bytes) { return UNIT_CHUNK_BYTES / bytes - (tag_is_on() ? 1 : 0); }

unsigned chunk_count() {
    unsigned count = 0;
    span_visit(
        [](struct slice* s, void* context) {
            if (s->kind == SLICE_CHUNK) ++*static_cast<unsigned*>(context);
        },
        &count);
    return count;
}

void expect_no_chunk_left() {
    EXPECT_TRUE(unit_arena_check());
    unit_arena_trim();
    EXPECT_EQ(chunk_count(), 0u);
    EXPECT_EQ(unit_arena_idle_bytes(), 0u);
    expect_nothing_left();
}

// One processor, one arena: whatever happens, happens to the same one.
void stay_on_one_processor() {
    cpu_set_t all;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) cpu++;
    CPU_ZERO(&all);
    CPU_SET(cpu, &all);
    ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

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
        EXPECT_LE(unit_arena_idle_bytes(),
                  (idle_most + UNIT_QUICK_BYTES) * os_cpu_count()); // in each arena
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

// Where use goes down and up again by much, what comes back waits, and a pass is told; where it only goes
// down, it becomes runs.
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
        while (all.size() < size_t{6} * UNIT_QUICK_LOOK) all.push_back(unit_arena_alloc(&home, m, 1));
        for (; all.size() > 100; all.pop_back()) unit_arena_free(all.back());
        EXPECT_LE(unit_arena_idle_bytes(), idle_most + UNIT_QUICK_BYTES);
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
                EXPECT_TRUE(model.alloc(UNIT_MEDIUM_CLASSES - 1, SLAB_MAX));
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

TEST(Arena, AFullOneHasNothingAndSlabsServe) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":sparse_max=65535:thread_kept_max=0");
        stay_on_one_processor();
        unit_attach();
        uint32_t home = 0;
        std::vector<void*> all;
        void* p;
        while ((p = unit_arena_alloc(&home, UNIT_MEDIUM_CLASSES - 1, 1)) != nullptr) all.push_back(p);
        EXPECT_EQ(all.size(), size_t{64} * chunk_holds(SLAB_MAX));
        EXPECT_EQ(chunk_count(), 64u);
        void* other = unit_alloc(SLAB_MAX);
        ASSERT_NE(other, nullptr);
        EXPECT_FALSE(unit_in_chunk(other));
        unit_free(other);
        unit_arena_free(all[100]);
        EXPECT_EQ(bare(all[100]), bare(p = unit_arena_alloc(&home, UNIT_MEDIUM_CLASSES - 1, 1)));
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
        const unsigned whole = UNIT_MEDIUM_CLASSES - 1;
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
            for (uint64_t nth = 1, lives = 0;; nth++, lives++) {
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
                    EXPECT_TRUE(model.alloc(UNIT_MEDIUM_CLASSES - 1, SLAB_MAX));
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

// A thread that finds an arena in use goes to the next one and stays there.
TEST(Arena, ContentionMovesTheHome) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        static std::atomic<int> state;
        static pthread_t held;
        os_fault_hook = [](enum os_call call) {
            if (call != OS_PROTECT || !pthread_equal(pthread_self(), held)) return false;
            state = 1;
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

// ---- Forks.

constexpr unsigned held_most = 24;
struct {
    unsigned char* p;
    unsigned m;
} held[held_most]; // filled with their index + 1

#if defined(__x86_64__)
uint64_t used_blocks() {
    uint64_t used = 0;
    for (unsigned m = 0; m < UNIT_MEDIUM_CLASSES; m++) used += unit_arena_used(m);
    return used;
}

unsigned lost_most; // blocks that may be in use for nobody

// All that was live is, with its contents; nothing is handed out twice; the arena is sound and all goes back.
bool child_is_sound() {
    bool good = unit_arena_check();
    uint64_t used = used_blocks();
    uint64_t live = 0;
    uint32_t home = 0;
    unsigned char* more[100];
    for (unsigned i = 0; i < 100; i++) {
        more[i] = static_cast<unsigned char*>(unit_arena_alloc(&home, i * 7 % UNIT_MEDIUM_CLASSES, 1));
        if (more[i] == nullptr) return false;
        memset(more[i], 0xee, class_bytes(i * 7 % UNIT_MEDIUM_CLASSES));
    }
    good &= unit_arena_check();
    for (unsigned i = 0; i < held_most; i++) {
        if (held[i].p == nullptr) continue;
        live++;
        Block b = {held[i].p, 0, class_bytes(held[i].m), static_cast<unsigned char>(i + 1)};
        good &= block_intact(b, b.usable);
        unit_arena_free(held[i].p);
    }
    for (unsigned char* p : more) unit_arena_free(p);
    return good && unit_arena_check() && used >= live && used <= live + lost_most &&
           used_blocks() == used - live;
}

// A handler between the instructions from start to stop. It forks after every `stride`; a child looks there
// and then, and ends, or, where it `goes_on`, returns from the handler and ends in end_child. With no stride,
// it looks at what the bits say of the blocks in a chunk.
class Stepper {
  public:
    static inline unsigned stride, forks, bad;
    static inline bool goes_on, is_child;
    static inline const void* in_chunk;
    static inline uint64_t blocks; // what the bits said last
    static inline unsigned changes;

    static void start() {
        struct sigaction action = {};
        action.sa_sigaction = step;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGTRAP, &action, nullptr);
        __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" : : : "memory", "cc");
    }
    static void stop() { __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" : : : "memory", "cc"); }
    static void end_child() {
        if (is_child) _exit(child_is_sound() ? 0 : 1);
    }

  private:
    static inline unsigned steps;
    static void look() {
        uint64_t now = unit_chunk_blocks(in_chunk);
        changes += now != blocks;
        blocks = now;
    }
    static void step(int, siginfo_t*, void* context) {
        steps++;
        if (stride == 0) return look();
        if (steps % stride != 0) return;
        unit_fork_prepare();
        pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            unit_fork_child();
            if (!goes_on) _exit(child_is_sound() ? 0 : 1);
            is_child = true;
            static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~0x100ll;
            return;
        }
        unit_fork_parent();
        int status = -1;
        waitpid(pid, &status, 0);
        forks++;
        if (status != 0 && bad++ == 0) printf("the first bad child: step %u, status %d\n", steps, status);
    }
};

void held_alloc(unsigned i, Random& random, uint32_t* home, bool steps) {
    unsigned m = some_class(random);
    size_t align = size_t{128} << random.below(6);
    if (steps) Stepper::start();
    void* p = unit_arena_alloc(home, m, align);
    if (steps) Stepper::stop();
    held[i].p = static_cast<unsigned char*>(p);
    held[i].m = m;
    ASSERT_NE(p, nullptr);
    memset(p, static_cast<int>(i + 1), class_bytes(m));
    if (steps) Stepper::end_child();
}

void held_free(unsigned i, bool steps) {
    unsigned char* p = held[i].p;
    held[i].p = nullptr;
    if (steps) Stepper::start();
    unit_arena_free(p);
    if (steps) Stepper::stop();
    if (steps) Stepper::end_child();
}

// False: there is no room behind it.
bool held_grow(unsigned i, Random& random, bool steps) {
    unsigned m = held[i].m + 1 + static_cast<unsigned>(random.below(4));
    if (m >= UNIT_MEDIUM_CLASSES) return false;
    if (steps) Stepper::start();
    bool grown = unit_arena_grow(held[i].p, m);
    if (steps) Stepper::stop();
    if (grown) {
        held[i].m = m;
        memset(held[i].p, static_cast<int>(i + 1), class_bytes(m));
    }
    if (steps) Stepper::end_child();
    return grown;
}

// A fork's child may meet a chunk at any instruction, and takes the bits for what is true: there is exactly
// one at which a block is there, or is gone.
TEST_NATIVE(Arena, BitsAreRightAtEveryInstruction) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        uint32_t home = 0;
        Random random(7);
        Stepper::in_chunk = unit_arena_alloc(&home, 0, 1);
        unsigned taken = 0;
        unsigned grown = 0;
        for (unsigned round = 0; round < 400; round++) {
            unsigned i = static_cast<unsigned>(random.below(held_most));
            Stepper::blocks = unit_chunk_blocks(Stepper::in_chunk);
            Stepper::changes = 0;
            bool was_there = held[i].p != nullptr;
            if (was_there && round % 2 == 0) {
                bool grows = held_grow(i, random, true);
                grown += grows;
                ASSERT_EQ(unit_chunk_blocks(Stepper::in_chunk), Stepper::blocks) << round;
                EXPECT_EQ(Stepper::changes, grows ? 1u : 0u) << round;
                continue;
            }
            if (was_there)
                held_free(i, true);
            else
                held_alloc(i, random, &home, true);
            ASSERT_EQ(unit_chunk_blocks(Stepper::in_chunk), Stepper::blocks) << round;
            bool here = was_there || unit_slice(held[i].p) == unit_slice(Stepper::in_chunk);
            if (!was_there && !here) held_free(i, false); // it made another chunk
            EXPECT_EQ(Stepper::changes, here ? 1u : 0u) << round;
            taken += here;
        }
        EXPECT_GT(taken, 150u);
        EXPECT_GT(grown, 20u);
    }));
}

// `kept`: blocks that another thread keeps in the same chunk, and that the child may free.
void fork_at_each_step(bool goes_on, unsigned kept) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        lost_most = 1 + kept; // what the interrupted call had in hand
        std::atomic<int> state{0};
        std::thread keeper([&] {
            for (unsigned i = 0; i < kept; i++) unit_free(unit_alloc(3000 * (i + 1)));
            state = 1;
            while (state != 2) usleep(100);
            unit_detach();
        });
        while (state != 1) usleep(100);
        uint32_t home = 0;
        Random random(5);
        Stepper::goes_on = goes_on;
        Stepper::stride = 211;
        held_alloc(0, random, &home, true); // makes the chunk
        for (unsigned i = 1; i < held_most; i += 2) held_alloc(i, random, &home, false);
        Stepper::stride = 53;
        unsigned grown = 0;
        for (unsigned round = 0; round < 32 && Stepper::bad == 0; round++) {
            unsigned i = static_cast<unsigned>(random.below(held_most));
            if (held[i].p == nullptr)
                held_alloc(i, random, &home, true);
            else if (round % 2 == 0)
                grown += held_grow(i, random, true);
            else
                held_free(i, true);
            Stepper::stride = round % 2 == 0 ? 53 : 13; // what a block grows by takes few instructions
        }
        EXPECT_GT(grown, 1u);
        EXPECT_GT(Stepper::forks, 100u);
        EXPECT_EQ(Stepper::bad, 0u);
        state = 2;
        keeper.join();
        EXPECT_TRUE(child_is_sound());
    }));
}

// Absent elsewhere: an emulator's steps are not the program's, a sanitizer's are too many.
TEST_NATIVE(Arena, AForkAtAnyInstructionWhoseChildGoesOn) { fork_at_each_step(true, 0); }
TEST_NATIVE(Arena, AForkAtAnyInstructionWhoseChildAllocatesInTheHandler) { fork_at_each_step(false, 0); }
TEST_NATIVE(Arena, AForkAtAnyInstructionWhileOthersKeepBlocks) { fork_at_each_step(true, 3); }
#endif

// Absent: a sanitizer's own locks are left behind as well, and an emulator may end by its own assertions
TEST_NATIVE(Arena, AForkAtAnyMomentOfOtherThreads) {
    EXPECT_FINE(in_child([] {
        windows_are_endless();
        unit_attach();
        uint32_t home = 0;
        for (unsigned i = 0; i < held_most; i++) {
            held[i].m = i * 2;
            held[i].p = static_cast<unsigned char*>(unit_arena_alloc(&home, i * 2, 1));
            memset(held[i].p, static_cast<int>(i + 1), class_bytes(held[i].m));
        }
        std::atomic<bool> stop{false};
        std::vector<std::thread> busy;
        for (unsigned t = 0; t < 3; t++)
            busy.emplace_back([&, t] {
                Random random(t + 1);
                uint32_t own = t % 2;
                void* mine[16] = {};
                while (!stop) {
                    void*& p = mine[random.below(16)];
                    if (p != nullptr) unit_arena_free(p);
                    p = unit_arena_alloc(&own, some_class(random), 1);
                }
                for (void* p : mine)
                    if (p != nullptr) unit_arena_free(p);
            });
        unsigned bad = 0;
        for (unsigned i = 0; i < unit_rounds(200); i++) {
            unit_fork_prepare();
            pid_t pid = fork();
            if (pid == 0) {
                alarm(60);
                unit_fork_child();
                bool good = unit_arena_check();
                for (unsigned n = 0; n < held_most; n++) {
                    Block b = {held[n].p, 0, class_bytes(held[n].m), static_cast<unsigned char>(n + 1)};
                    good &= block_intact(b, b.usable);
                    unit_arena_free(held[n].p);
                }
                uint32_t own = 0;
                for (unsigned n = 0; n < 100; n++)
                    unit_arena_free(unit_arena_alloc(&own, n % UNIT_MEDIUM_CLASSES, 4096));
                _exit(good && unit_arena_check() ? 0 : 1);
            }
            unit_fork_parent();
            int status = -1;
            waitpid(pid, &status, 0);
            bad += status != 0;
        }
        stop = true;
        for (std::thread& t : busy) t.join();
        EXPECT_EQ(bad, 0u);
        for (auto& h : held) unit_arena_free(h.p);
        expect_no_chunk_left();
    }));
}

} // namespace
