// retag_test.cc: tags of medium blocks and of pools' objects: who has which, and what is found by them.
// Called by ctest; each test starts the heap, with tags, in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "holes.h"
#include "pools.h"
#include <csignal>
#include <deque>
#include <map>
#include <vector>
extern "C" {
#include "page/fence.h"
}

#ifdef __aarch64__

WEIR_POOL_DECLARE(unit_tagged_words, 200, 0, 0);

namespace {

constexpr size_t unit_bytes = 128;

void start(const char* more = "") {
    std::string all = "tagging=sync:release=off" + std::string(more);
    setenv("WEIR_OPTIONS", all.c_str(), 1);
    unit_attach();
    ASSERT_TRUE(tag_is_on());
}

unsigned memory_tag(const void* p) { return tag_of(tag_read(p)); }
// All of a block has its pointer's tag, which is not weir's own.
bool is_tagged(const void* p) {
    const char* at = static_cast<const char*>(p);
    for (size_t i = 0; i < unit_usable(p); i += TAG_GRANULE)
        if (memory_tag(at + i) != tag_of(p)) return false;
    return tag_of(p) != 0;
}
char read_at(const void* p) { return *static_cast<const volatile char*>(p); }

// The access ends the process: by a wrong tag, sync or async, or where a large block was.
template <class Access>
void expect_fault(Access access, bool by_tag = true) {
    Ended ended = in_child([&] {
        struct sigaction action = {};
        action.sa_flags = SA_SIGINFO;
        action.sa_sigaction = [](int, siginfo_t* info, void*) {
            _exit(info->si_code == SEGV_MTEAERR || info->si_code == SEGV_MTESERR ? 77 : 78);
        };
        sigaction(SIGSEGV, &action, nullptr);
        access();
    });
    EXPECT_TRUE(ended.exited(by_tag ? 77 : 78)) << ended.status << " " << ended.printed;
}
template <class Body>
void expect_report(const char* code, Body body) {
    Ended ended = in_child([&] { body(); });
    EXPECT_TRUE(ended.aborted()) << ended.status;
    EXPECT_NE(ended.printed.find(std::string("weir: ") + code), std::string::npos) << ended.printed;
}

// ---- Medium blocks.

// Neighbours differ, also from the blocks before that had some of the memory, as long as there are tags.
TEST(Retag, MediumBlocksDifferFromAllAroundAndBefore) {
    EXPECT_FINE(in_child([] {
        start(":thread_kept_max=0:sparse_max=65535");
        Random random(5);
        std::map<char*, char*> live; // by the bare address
        std::map<uintptr_t, unsigned> before;
        unsigned scarce = 0;
        for (unsigned i = 0; i < 6000; i++) {
            if (live.size() > 100 || (!live.empty() && random.below(3) == 0)) {
                auto it = live.begin();
                std::advance(it, static_cast<long>(random.below(live.size())));
                char* p = it->second;
                uintptr_t at = reinterpret_cast<uintptr_t>(bare(p)) / unit_bytes;
                for (size_t n = unit_usable(p) / unit_bytes; n != 0; n--) before[at++] = tag_of(p);
                unit_free(p);
                EXPECT_EQ(memory_tag(p), 0u);
                live.erase(it);
                continue;
            }
            size_t size = SMALL_MAX + 1 + random.below(i % 2 == 0 ? 3000 : SLAB_MAX - SMALL_MAX);
            char* p = static_cast<char*>(random.below(4) == 0
                                             ? unit_alloc_aligned(size, size_t{16} << random.below(13))
                                             : unit_alloc(size));
            ASSERT_TRUE(is_tagged(p));
            unsigned taken = 1u << memory_tag(bare(p) - TAG_GRANULE) | 1;
            size_t usable = unit_usable(p);
            taken |= 1u << memory_tag(bare(p) + usable);
            unsigned formers = 0;
            uintptr_t at = reinterpret_cast<uintptr_t>(bare(p)) / unit_bytes;
            for (size_t n = 0; n < usable / unit_bytes; n++)
                if (before.count(at + n) != 0) formers |= 1u << before[at + n];
            EXPECT_EQ(taken >> tag_of(p) & 1, 0u);
            bool all = (taken | formers) == 0xffff;
            scarce += all;
            EXPECT_TRUE(all || (formers >> tag_of(p) & 1) == 0);
            live[bare(p)] = p;
            EXPECT_TRUE(i % 64 != 0 || unit_arena_check());
        }
        EXPECT_LT(scarce, 600u);
        for (auto& one : live) unit_free(one.second);
        expect_nothing_left();
    }));
}

TEST(Retag, AKeptBlockHasAnotherTagAtOnce) {
    EXPECT_FINE(in_child([] {
        start();
        for (size_t size : {size_t{1025}, size_t{5000}, size_t{65536}}) {
            char* p = static_cast<char*>(unit_alloc(size));
            for (unsigned i = 0; i < 50; i++) {
                unit_free(p);
                EXPECT_NE(memory_tag(p), tag_of(p));
                char* q = static_cast<char*>(unit_alloc(size));
                ASSERT_EQ(bare(q), bare(p));
                EXPECT_NE(tag_of(q), tag_of(p));
                EXPECT_TRUE(is_tagged(q));
                p = q;
            }
            unit_free(p);
        }
        expect_nothing_left();
    }));
}

// What was kept, and went back to its chunk without being given out, had a tag that nobody knew.
TEST(Retag, ABlockThatWasKeptDoesNotComeBackWithTheTagOfBefore) {
    EXPECT_FINE(in_child([] {
        start();
        size_t again = 0;
        for (int round = 0; round < 40; round++) {
            std::vector<char*> all;
            for (int i = 0; i < 20; i++) all.push_back(static_cast<char*>(unit_alloc(3000)));
            std::map<char*, unsigned> before;
            for (char* p : all) before[bare(p)] = tag_of(p);
            for (char* p : all) unit_free(p);
            for (char*& p : all) {
                p = static_cast<char*>(unit_alloc(3000));
                auto found = before.find(bare(p));
                if (found == before.end()) continue;
                again++;
                EXPECT_NE(found->second, tag_of(p));
            }
            for (char* p : all) unit_free(p);
        }
        EXPECT_GT(again, 400u);
        expect_nothing_left();
    }));
}

TEST(Retag, AccessesThroughWrongMediumPointersFault) {
    EXPECT_FINE(in_child([] {
        start();
        for (size_t size : {size_t{1025}, size_t{20000}, size_t{65536}}) {
            static char* p;
            p = static_cast<char*>(unit_alloc(size));
            size_t usable = unit_usable(p);
            read_at(p + usable - 1);
            expect_fault([=] { read_at(p + usable); });
            expect_fault([=] { p[usable + 15] = 1; });
            expect_fault([] { read_at(p - 1); });
            expect_fault([] { p[-16] = 1; });
            expect_fault([] { read_at(bare(p)); });
            unit_free(p); // it is kept
            expect_fault([] { read_at(p); });
            expect_fault([=] { p[size - 1] = 1; });
            unit_collect();
            expect_fault([] { read_at(p); });
            char* q = static_cast<char*>(unit_alloc(size));
            if (bare(q) == bare(p)) expect_fault([] { read_at(p); });
            unit_free(q);
        }
    }));
}

TEST(Retag, MediumPointersThatAreNotTheBlocksAreReported) {
    EXPECT_FINE(in_child([] {
        start();
        static char* p;
        static char* q;
        p = static_cast<char*>(unit_alloc(3000));
        expect_report("tag-mismatch", [] { unit_free(bare(p)); });
        expect_report("tag-mismatch", [] { unit_usable(bare(p)); });
        expect_report("tag-mismatch", [] { unit_realloc(bare(p), 9000); });
        unit_free(p);
        expect_report("double-free", [] { unit_free(p); });
        expect_report("double-free", [] { unit_realloc(p, 100); });
        q = static_cast<char*>(unit_alloc(3000));
        ASSERT_EQ(bare(q), bare(p));
        for (const char* call : {"free", "realloc", "usable"})
            expect_report("", [=] {
                if (*call == 'f') unit_free(p);
                if (*call == 'r') unit_realloc(p, 100);
                if (*call == 'u') unit_usable(p);
            });
        unit_free(q);
    }));
}

// Two frees of one block that both have found it live: as if two threads came at the same instant.
TEST(Retag, OfTwoFreesAtOnceOneIsTold) {
    EXPECT_FINE(in_child([] {
        start();
        static char* p;
        for (size_t size : {size_t{1025}, size_t{5000}, size_t{65536}}) {
            p = static_cast<char*>(unit_alloc(size));
            void* next = unit_arena_retag(p);
            EXPECT_EQ(unit_arena_retag(p), nullptr);
            EXPECT_TRUE(is_tagged(next));
            unit_free(next);
        }
        for (size_t size : {size_t{100000}, size_t{3000000}}) {
            p = static_cast<char*>(unit_alloc(size));
            unit_large_free(p);
            expect_report("double-free", [] { unit_large_free(p); });
            unit_free(unit_alloc(size));
        }
        expect_nothing_left();
    }));
}

// The same with threads.
TEST(Retag, TwoThreadsThatFreeOneBlockAtOnceDoItOnce) {
    for (size_t size : {size_t{5000}, size_t{65536}, size_t{100000}, size_t{3000000}}) {
        Ended ended = in_child([=] {
            constexpr int rounds = 200;
            start(":on_error=report");
            std::atomic<void*> shared{nullptr};
            std::atomic<int> turn{0};
            std::atomic<int> done{0};
            auto worker = [&] {
                unit_attach();
                for (int i = 1; i <= rounds; i++) {
                    while (turn != i) {
                    }
                    unit_free(shared);
                    done++;
                }
                unit_detach();
            };
            std::thread one(worker);
            std::thread other(worker);
            for (int i = 1; i <= rounds; i++) {
                shared = unit_alloc(size);
                turn = i;
                while (done != 2 * i) {
                }
                ASSERT_EQ(core_report_count, static_cast<uint64_t>(i));
                void* p = unit_alloc(size);
                void* q = unit_alloc(size);
                ASSERT_NE(bare(static_cast<char*>(p)), bare(static_cast<char*>(q)));
                unit_free(p);
                unit_free(q);
            }
            one.join();
            other.join();
            expect_nothing_left();
        });
        EXPECT_TRUE(ended.fine()) << size << ": " << ended.printed.substr(0, 400);
    }
}

TEST(Retag, ReallocsFourWays) {
    EXPECT_FINE(in_child([] {
        start();
        char* p = static_cast<char*>(unit_alloc(3000));
        memset(p, 4, 3000);
        EXPECT_EQ(unit_realloc(p, 2000), p); // stays: with its tag
        EXPECT_EQ(unit_realloc(p, 3000), p);
        for (size_t size : {size_t{9000}, size_t{60000}, size_t{100000}, size_t{70000}, size_t{30000},
                            size_t{1200}, size_t{500}, size_t{8000}}) {
            static char* old;
            old = p;
            p = static_cast<char*>(unit_realloc(p, size));
            for (size_t i = 0; i < std::min<size_t>(size, 500); i++) ASSERT_EQ(p[i], 4);
            if (p != old) expect_fault([] { read_at(old); }, tag_of(old) != 0);
            EXPECT_TRUE(size > SLAB_MAX || is_tagged(p));
        }
        unit_free(p);
        expect_nothing_left();
    }));
}

// Zeroes come with the tag where there is no block that was tagged when it was freed.
TEST(Retag, CallocZeroesWithTheTag) {
    EXPECT_FINE(in_child([] {
        start(":thread_kept_max=65536");
        bool zeroed;
        for (size_t size = SMALL_MAX + 1; size <= SLAB_MAX; size += 1 + size / 3) {
            std::vector<void*> all;
            for (unsigned i = 0; i < 5; i++) {
                void* p = unit_alloc(size);
                memset(p, 0x5a, size);
                all.push_back(p);
            }
            for (void* p : all) unit_free(p);
            std::vector<void*> kept;
            for (unsigned n = unit_kept_count(class_of(size) - SMALL_CLASSES); n != 0; n--) {
                kept.push_back(unit_alloc_zeroable(size, &zeroed));
                EXPECT_FALSE(zeroed); // and so the caller does it
            }
            EXPECT_FALSE(kept.empty());
            for (unsigned i = 0; i < 4; i++) {
                void* p = unit_alloc_zeroable(size, &zeroed);
                EXPECT_TRUE(zeroed) << size;
                EXPECT_TRUE(is_zero(p, unit_usable(p)));
                EXPECT_TRUE(is_tagged(p));
                all[i] = p;
            }
            for (unsigned i = 0; i < 4; i++) unit_free(all[i]);
            for (void* p : kept) unit_free(p);
        }
        // A block that a hook allocates meanwhile is another matter.
        unit_collect();
        static void* inner;
        unit_set_hooks(nullptr, [] {
            if (inner == nullptr) {
                inner = &inner;
                inner = unit_alloc(40000);
            }
        });
        void* p = unit_alloc_zeroable(50000, &zeroed);
        EXPECT_TRUE(is_zero(p, zeroed ? 50000 : 0));
        EXPECT_TRUE(zeroed);
        unit_set_hooks(nullptr, nullptr);
        unit_free(p);
        unit_free(inner);
        expect_nothing_left();
    }));
}

// What a chunk or a slab had is tag 0 for whoever has the memory next.
TEST(Retag, MemoryThatChangesHandsHasNoTag) {
    EXPECT_FINE(in_child([] {
        start(":sparse_max=65535");
        fence_is_on = false; // so that large blocks lie where the others lay
        for (unsigned round = 0; round < 4; round++) {
            std::vector<void*> all;
            for (unsigned i = 0; i < 60; i++) all.push_back(unit_alloc(60000));
            for (unsigned i = 0; i < 20000; i++) all.push_back(unit_alloc(1 + i % 1000));
            for (void* p : all) memset(p, 1, unit_usable(p));
            if (round % 2 != 0) release_all();
            for (void* p : all) unit_free(p);
            unit_collect();
            auto* large = static_cast<char*>(unit_alloc(size_t{12} << 20));
            EXPECT_EQ(tag_of(large), 0u);
            memset(large, 2, size_t{12} << 20);
            for (size_t i = 0; i < size_t{12} << 20; i += TAG_GRANULE)
                ASSERT_EQ(memory_tag(large + i), 0u) << i;
            unit_free(large);
            unit_collect();
        }
        expect_nothing_left();
    }));
}

TEST(Retag, AForksChildHasTheTags) {
    EXPECT_FINE(in_child([] {
        start();
        static char* p;
        p = static_cast<char*>(unit_alloc(5000));
        std::atomic<int> step{0};
        std::thread other([&] {
            unit_attach();
            unit_free(unit_alloc(7000));
            step = 1;
            while (step != 2) usleep(100);
            unit_detach();
        });
        while (step != 1) usleep(100);
        EXPECT_EQ(forked([] {
                      EXPECT_TRUE(is_tagged(p));
                      unit_free(p);
                      for (unsigned i = 0; i < 200; i++) {
                          void* q = unit_alloc(1025 + i * 300);
                          EXPECT_TRUE(unit_usable(q) > SLAB_MAX || is_tagged(q));
                          unit_free(q);
                      }
                      EXPECT_TRUE(unit_arena_check());
                  }),
                  0);
        step = 2;
        other.join();
        unit_free(p);
    }));
}

// ---- Objects of pools.

TEST(Retag, AnObjectThatIsPutHasAnotherTag) {
    EXPECT_FINE(in_child([] {
        start();
        for (size_t size : {size_t{16}, size_t{200}, size_t{1024}, size_t{5000}, size_t{60000}}) {
            weir_pool* pool = weir_pool_create("tagged", size, 0, 0);
            static char* p;
            p = static_cast<char*>(weir_pool_alloc(pool));
            for (unsigned i = 0; i < 100; i++) {
                EXPECT_TRUE(is_tagged(p));
                weir_pool_free(pool, p);
                EXPECT_NE(memory_tag(p), tag_of(p));
                if (i == 0) expect_fault([] { read_at(p); });
                char* q = static_cast<char*>(weir_pool_alloc(pool));
                ASSERT_EQ(bare(q), bare(p)); // the last one put
                EXPECT_NE(tag_of(q), tag_of(p));
                p = q;
            }
            weir_pool_free(pool, p);
            expect_conserved(pool, 0);
            EXPECT_EQ(weir_pool_destroy(pool), 0);
        }
        // Larger ones have no tags.
        weir_pool* pool = weir_pool_create("large", 200000, 0, 0);
        void* p = weir_pool_alloc(pool);
        EXPECT_EQ(tag_of(p), 0u);
        weir_pool_free(pool, p);
        EXPECT_EQ(weir_pool_alloc(pool), p);
    }));
}

TEST(Retag, WordsInTheProgramStayEmpty) {
    EXPECT_FINE(in_child([] {
        start();
        std::deque<void*> all;
        for (unsigned i = 0; i < 2000; i++) {
            if (i % 3 != 2) {
                all.push_back(WEIR_POOL_ALLOC(unit_tagged_words));
                EXPECT_TRUE(is_tagged(all.back()));
                memset(all.back(), 1, 200);
            } else {
                void* p = all.front();
                all.pop_front();
                WEIR_POOL_FREE(unit_tagged_words, p);
                EXPECT_NE(memory_tag(p), tag_of(p));
            }
            EXPECT_EQ(weir_pool_cache_unit_tagged_words.end, nullptr);
        }
        weir_pool_stats s = stats(WEIR_POOL(unit_tagged_words));
        EXPECT_EQ(s.used, all.size());
        EXPECT_GT(s.held, 0u); // what is cached is found all the same
        for (void* p : all) weir_pool_free(WEIR_POOL(unit_tagged_words), p);
        expect_conserved(WEIR_POOL(unit_tagged_words), 0);
    }));
}

TEST(Retag, PutsOfWrongPointersAreReported) {
    EXPECT_FINE(in_child([] {
        start();
        static weir_pool* pool;
        static char* p;
        static char* q;
        for (size_t size : {size_t{200}, size_t{5000}}) {
            pool = weir_pool_create("misused", size, 0, 0);
            p = static_cast<char*>(weir_pool_alloc(pool));
            expect_report("tag-mismatch", [] { weir_pool_free(pool, bare(p)); });
            expect_report("", [] { weir_pool_free(pool, p + 16); });
            weir_pool_free(pool, p);
            expect_report("", [] { weir_pool_free(pool, p); });
            q = static_cast<char*>(weir_pool_alloc(pool));
            ASSERT_EQ(bare(q), bare(p));
            expect_report("", [] { weir_pool_free(pool, p); });
            weir_pool_free(pool, q);
        }
    }));
}

TEST(Retag, DebuggedPoolsToo) {
    for (unsigned flags : {0x100u, 0x200u, 0x400u, 0x800u, 0x1000u, 0x2000u, 0xf00u})
        EXPECT_FINE(in_child([=] {
            start();
            bool guarded = (flags & WEIR_POOL_GUARD) != 0;
            static weir_pool* pool;
            pool = weir_pool_create("watched", 300, 0, flags);
            static char* p;
            std::vector<char*> all;
            for (unsigned i = 0; i < 40; i++) {
                p = static_cast<char*>(weir_pool_alloc(pool));
                memset(p, 3, 300);
                all.push_back(p);
                if (i % 2 == 0) continue;
                weir_pool_free(pool, p);
                all.pop_back();
                EXPECT_TRUE(guarded || memory_tag(p) != tag_of(p));
                if (i == 1 && !guarded) expect_fault([] { p[1] = 1; });
                if (i == 1) expect_report("pool-double-free", [] { weir_pool_free(pool, p); });
            }
            // A pointer of an earlier life of an object that is live again.
            char* old = p;
            while (bare(p = static_cast<char*>(weir_pool_alloc(pool))) != bare(old)) all.push_back(p);
            if (!guarded) expect_report("pool-double-free", [=] { weir_pool_free(pool, old); });
            weir_pool_free(pool, p);
            for (char* q : all) weir_pool_free(pool, q);
            EXPECT_EQ(weir_pool_reserve(pool, 60), 0);
            expect_conserved(pool, 0);
            EXPECT_EQ(weir_pool_destroy(pool), 0);
        }));
}

// Threads put what others took, while pools are flushed.
TEST(Retag, ObjectsGoBetweenThreads) {
    EXPECT_FINE(in_child([] {
        start();
        static weir_pool* pool;
        pool = weir_pool_create("between", 700, 0, 0);
        EXPECT_EQ(weir_pool_reserve(pool, 300), 0);
        static std::atomic<char*> slots[64];
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < 4; t++)
            threads.emplace_back([t] {
                Random random(t + 1);
                for (unsigned i = 0; i < 5000; i++) {
                    char* p = static_cast<char*>(weir_pool_alloc(pool));
                    // No zeros: emulators fault where memset uses DC ZVA on an address with a tag.
                    memset(p, static_cast<int>(i % 255 + 1), 700);
                    p = slots[random.below(64)].exchange(p);
                    if (p == nullptr) continue;
                    EXPECT_EQ(p[0], p[699]);
                    EXPECT_EQ(tag_of(p), memory_tag(p));
                    weir_pool_free(pool, p);
                    if (i % 500 == 0) weir_pool_flush(pool);
                }
                unit_detach();
            });
        for (std::thread& thread : threads) thread.join();
        for (auto& slot : slots) weir_pool_free(pool, slot.load());
        expect_conserved(pool, 0);
    }));
}

} // namespace

#endif
