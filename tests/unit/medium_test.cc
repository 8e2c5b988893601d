// medium_test.cc: blocks from 1 KiB on that chunks have: which classes come from chunks, figures, misuse,
// threads that end, forks. Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "forked.h"
#include "arenas.h"
#include <functional>
#include <mutex>
#include <sys/time.h>

namespace {

unsigned medium_of(size_t size) { return class_of(size) - SMALL_CLASSES; }

void start(const char* options) {
    setenv("WEIR_OPTIONS", options, 1);
    unit_attach();
}

// ---- Chunks or slabs.

TEST(Medium, AClassWithManyBlocksGetsSlabs) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=5");
        std::vector<void*> all;
        for (unsigned i = 0; i < 8; i++) {
            all.push_back(unit_alloc(1500));
            EXPECT_EQ(unit_in_chunk(all[i]), i < 5) << i;
        }
        void* other = unit_alloc(5000);
        EXPECT_TRUE(unit_in_chunk(other)); // each class by itself
        unit_free(other);
        for (void* p : all) unit_free(p);
        void* kept = unit_alloc(1500);
        EXPECT_EQ(bare(kept), bare(all[4])); // kept, whatever the class is
        all[4] = kept;
        while (unit_kept_count(medium_of(1500)) != 0) all.push_back(unit_alloc(1500));
        void* p = unit_alloc(1500);
        EXPECT_FALSE(unit_in_chunk(p)); // it has a slab
        for (; all.size() > 8; all.pop_back()) unit_free(all.back());
        unit_free(p);
        unit_free(all[4]);
        unit_collect(); // and now none
        unit_free(unit_alloc(1500));
        EXPECT_TRUE(unit_in_chunk(p = unit_alloc(1500)));
        unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Medium, BlocksOfHalfAPageAndMoreStayInChunks) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=5");
        Blocks blocks;
        for (unsigned i = 0; i < 100; i++) blocks.alloc(i % 2 == 0 ? 2048 : 2049);
        for (const Block& b : blocks.all)
            EXPECT_EQ(unit_in_chunk(b.p), b.size > 2048 || &b - blocks.all.data() < 10);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// Blocks that others free count until they have aged.
TEST(Medium, AClassReturnsToChunks) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=5");
        void* all[8];
        for (void*& p : all) p = unit_alloc(1500);
        std::thread([&] {
            for (void* p : all) unit_free(p);
            unit_detach();
        }).join();
        unit_collect();
        void* p = unit_alloc(1500);
        EXPECT_FALSE(unit_in_chunk(p));
        unit_free(p);
        // Blocks of small classes, a refill every now and then.
        std::vector<void*> small;
        struct unit_figures before, now;
        unit_census(&before);
        do {
            for (unsigned i = 0; i < 1000; i++) small.push_back(unit_alloc(1000));
            for (void* q : small) unit_free(q);
            small.clear();
            unit_census(&now);
        } while (now.slow_calls < before.slow_calls + 3 * 1024);
        p = unit_alloc(1500);
        EXPECT_TRUE(unit_in_chunk(p));
        unit_free(p);
        expect_nothing_left();
    }));
}

TEST(Medium, SparseMaxOfZeroMeansSlabs) {
    EXPECT_FINE(in_child([] {
        start("release=off:sparse_max=0");
        Blocks blocks;
        for (unsigned m = 0; m < chunk_classes(); m++) blocks.alloc(class_bytes(m));
        for (const Block& b : blocks.all) EXPECT_FALSE(unit_in_chunk(b.p));
        EXPECT_EQ(used_blocks(), 0u);
        blocks.free_all();
        EXPECT_EQ(unit_kept_medium_bytes(), 0u);
        expect_nothing_left();
    }));
}

TEST(Medium, FullChecksMeanSlabs) {
    EXPECT_FINE(in_child([] {
        start("release=off:checks=full");
        void* p = unit_alloc(3000);
        EXPECT_FALSE(unit_in_chunk(p));
        unit_free(p);
        EXPECT_EQ(unit_kept_block(medium_of(3000)), nullptr);
        expect_nothing_left();
    }));
}

// Chores of the slow path (here: sending home what others own) come whatever the order of its calls.
TEST(Medium, ChoresAreDoneAlsoWhereEverySecondSlowCallIsForAMediumBlock) {
    EXPECT_FINE(in_child([] {
        start("release=off:thread_kept_max=0");
        void* theirs[3];
        std::atomic<bool> ready{false}, done{false};
        std::thread owner([&] {
            for (void*& p : theirs) p = unit_alloc(500);
            ready = true;
            while (!done) usleep(100);
            unit_detach();
        });
        while (!ready) usleep(100);
        struct slice* slab = unit_slice(theirs[0]);
        if (!tag_is_on()) unit_free(theirs[2]); // goes alone, the others by way of an outbox
        for (bool odd : {false, true}) {
            unit_free(theirs[odd ? 1 : 0]);
            if (odd) unit_free(unit_alloc(2000));
            uint64_t sent = unit_remote_count(slab);
            for (unsigned i = 0; i < 32; i++) {
                unit_free(unit_alloc(2000));
                struct unit_figures before, after;
                unit_census(&before);
                do (void)unit_alloc(1024); // until one is a slow call
                while (unit_census(&after), after.slow_calls == before.slow_calls);
            }
            EXPECT_EQ(unit_remote_count(slab), sent + 1) << odd;
        }
        done = true;
        owner.join();
    }));
}

// ---- Misuse.

// What `misuse` of a live block of 3000 bytes says; the heap is sound afterwards.
void expect_report(const char* text, size_t offset, const std::function<void(char*)>& misuse) {
    static char* block; // the same place in parent and child: the child prints where it was
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    Ended ended = in_child([&] {
        start("release=off:on_error=report");
        std::vector<void*> others;
        for (size_t size : {2000u, 5000u, 9000u}) others.push_back(unit_alloc(size));
        block = static_cast<char*>(unit_alloc(3000));
        others.push_back(unit_alloc(4000));
        uintptr_t at = reinterpret_cast<uintptr_t>(block) + offset;
        EXPECT_EQ(write(ends[1], &at, sizeof at), static_cast<ssize_t>(sizeof at));
        misuse(block);
        EXPECT_TRUE(unit_arena_check());
        Blocks blocks;
        for (unsigned i = 0; i < 200; i++) blocks.alloc(1100 + i * 97);
        blocks.free_all();
        for (void* p : others) unit_free(p);
        EXPECT_TRUE(unit_arena_check());
    });
    uintptr_t at = 0;
    EXPECT_EQ(read(ends[0], &at, sizeof at), static_cast<ssize_t>(sizeof at));
    close(ends[0]);
    close(ends[1]);
    char expected[160];
    at = reinterpret_cast<uintptr_t>(tag_clear(reinterpret_cast<void*>(at)));
    snprintf(expected, sizeof expected, text, static_cast<size_t>(at));
    EXPECT_TRUE(ended.fine()) << ended.status;
    EXPECT_EQ(ended.printed, expected);
}

#define TWICE(call) "weir: double-free: already freed 0x%zx in " call "; see docs/errors/double-free.md\n"
#define INTERIOR(call)                                                                                       \
    "weir: invalid-free: not the start of a block 0x%zx in " call "; see docs/errors/invalid-free.md\n"

TEST(Medium, AKeptBlockFreedAgainIsReported) {
    expect_report(TWICE("free"), 0, [](char* p) {
        unit_free(p);
        unit_free(p);
        EXPECT_EQ(bare(unit_alloc(3000)), bare(static_cast<void*>(p))); // and it is kept once
        EXPECT_NE(bare(unit_alloc(3000)), bare(static_cast<void*>(p)));
    });
}
TEST(Medium, EachOfSeveralKeptBlocksFreedAgainIsReported) {
    for (unsigned twice = 0; twice < 3; twice++)
        expect_report(TWICE("free"), 0, [=](char* p) {
            void* all[] = {p, unit_alloc(3000), unit_alloc(3000)};
            std::swap(all[0], all[twice]);
            for (void* q : all) unit_free(q);
            unit_free(p);
        });
}
TEST(Medium, ABlockInAFreeRunFreedAgainIsReported) {
    expect_report(TWICE("free"), 0, [](char* p) {
        core_options.thread_kept_max = 0;
        unit_free(p);
        unit_free(p);
    });
}
TEST(Medium, ABlockThatAnotherThreadFreedIsReported) {
    expect_report(TWICE("free"), 0, [](char* p) {
        std::atomic<int> step{0};
        std::thread other([&] {
            unit_attach();
            unit_free(p); // it keeps it
            step = 1;
            while (step != 2) usleep(100);
            unit_detach();
        });
        while (step != 1) usleep(100);
        unit_free(p);
        step = 2;
        other.join();
    });
}
TEST(Medium, ABlockThatAThreadFreedAndEndedIsReported) {
    expect_report(TWICE("free"), 0, [](char* p) {
        std::thread([&] {
            unit_free(p);
            unit_detach();
        }).join();
        unit_free(p);
    });
}
TEST(Medium, UsableSizeOfAFreeBlockIsReported) {
    expect_report(TWICE("malloc_usable_size"), 0, [](char* p) {
        unit_free(p);
        EXPECT_EQ(unit_usable(p), 0u);
    });
}
TEST(Medium, ReallocOfAFreeBlockIsReported) {
    expect_report(TWICE("realloc"), 0, [](char* p) {
        core_options.thread_kept_max = 0;
        unit_free(p);
        EXPECT_EQ(unit_realloc(p, 4000), nullptr);
    });
}
TEST(Medium, PointersIntoABlockAreReported) {
    for (size_t offset : {1u, 16u, 128u, 1024u, 2944u, 3071u}) {
        expect_report(INTERIOR("free"), offset, [=](char* p) {
            unit_free(p + offset);
            unit_free(p);
        });
        expect_report(INTERIOR("realloc"), offset, [=](char* p) {
            EXPECT_EQ(unit_realloc(p + offset, 100), nullptr);
            EXPECT_EQ(unit_usable(p), 3072u);
        });
        expect_report(INTERIOR("malloc_usable_size"), offset,
                      [=](char* p) { EXPECT_EQ(unit_usable(p + offset), 0u); });
    }
}
TEST(Medium, PointersIntoABlockAreReportedWhereOneOfTheClassIsKept) {
    for (size_t offset : {1u, 16u, 127u, 128u, 1024u, 2944u})
        expect_report(INTERIOR("free"), offset, [=](char* p) {
            unit_free(unit_alloc(3000));
            unit_free(p + offset);
            EXPECT_NE(bare(unit_kept_block(medium_of(3000))), bare(static_cast<void*>(p + offset)));
            EXPECT_EQ(unit_usable(p), 3072u);
        });
}
// The record of each slice of a chunk says where its blocks are.
TEST(Medium, BlocksOfEachSliceAreKept) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        std::vector<char*> all;
        for (size_t bytes = 0; bytes < UNIT_CHUNK_BYTES / 2; bytes += 3072)
            all.push_back(static_cast<char*>(unit_alloc(3000)));
        unit_free(unit_alloc(3000)); // the first one goes the slow way
        for (char*& p : all) {
            unit_free(p);
            EXPECT_EQ(bare(unit_kept_block(medium_of(3000))), bare(static_cast<void*>(p)));
            auto* again = static_cast<char*>(unit_alloc(3000));
            EXPECT_EQ(bare(again), bare(p));
            p = again; // where memory is tagged, with another tag
        }
        EXPECT_NE(unit_slice(all.front()), nullptr);
        EXPECT_EQ(unit_slice(all.front()), unit_slice(all.back()));
        for (char* p : all) unit_free(p);
        expect_nothing_left();
    }));
}
TEST(Medium, PointersIntoAFreeRunAreReported) {
    for (size_t offset : {0u, 16u, 128u, 1024u, 3000u})
        expect_report(TWICE("free"), offset, [=](char* p) {
            core_options.thread_kept_max = 0;
            unit_free(p);
            unit_free(p + offset);
        });
}

// ---- Threads.

TEST(Medium, AThreadThatEndsGivesBackWhatItKept) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        void* mine = unit_alloc(3000);
        std::thread([] {
            for (unsigned m = 0; m < chunk_classes(); m++) unit_free(unit_alloc(class_bytes(m)));
            EXPECT_GT(unit_kept_medium_bytes(), 0u);
            unit_detach();
        }).join();
        EXPECT_EQ(used_blocks(), 1u);
        struct unit_figures f;
        unit_census(&f);
        EXPECT_EQ(f.live_blocks, 1u);
        EXPECT_EQ(f.cached_bytes, 0u);
        std::thread([] { // whoever has the ended thread's record now
            unit_attach();
            for (unsigned m = 0; m < UNIT_MEDIUM_CLASSES; m++) EXPECT_EQ(unit_kept_block(m), nullptr);
            EXPECT_EQ(unit_kept_medium_bytes(), 0u);
            unit_detach();
        })
            .join();
        unit_free(mine);
        expect_nothing_left();
    }));
}

TEST(Medium, NobodyElseFindsAKeptBlock) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        std::atomic<int> step{0};
        void* kept = nullptr;
        std::thread other([&] {
            kept = unit_alloc(3000);
            unit_free(kept);
            step = 1;
            while (step != 2) usleep(100);
            void* again = unit_alloc(3000);
            EXPECT_EQ(bare(again), bare(kept));
            unit_free(again);
            unit_detach();
        });
        while (step != 1) usleep(100);
        Blocks blocks;
        for (unsigned i = 0; i < 100; i++) blocks.alloc(2900 + i);
        for (const Block& b : blocks.all) EXPECT_NE(bare(static_cast<void*>(b.p)), bare(kept));
        unit_collect();
        EXPECT_TRUE(unit_in_chunk(kept));
        step = 2;
        other.join();
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Medium, AThreadWithoutAHeapFrees) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        void* p = unit_alloc(3000);
        std::thread([&] { unit_free(p); }).join();
        unit_collect(); // it was left for others
        EXPECT_EQ(used_blocks(), 0u);
        expect_nothing_left();
    }));
}

struct Handed {
    std::mutex mutex;
    Block block = {nullptr, 0, 0, 0};
};

TEST(Medium, ThreadsFreeEachOthersBlocks) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":sparse_max=8");
        unit_attach();
        static Handed handed[64];
        std::atomic<unsigned> bad{0};
        {
            Purger purger;
            std::vector<std::thread> all;
            for (unsigned t = 0; t < 4; t++)
                all.emplace_back([&, t] {
                    Random random(t + 1);
                    struct unit_figures f;
                    for (unsigned i = 0; i < unit_rounds(20000); i++) {
                        size_t size = SMALL_MAX / 2 + random.below(size_t{1} << (11 + random.below(6)));
                        Block b = {static_cast<unsigned char*>(unit_alloc(size)), size, size,
                                   static_cast<unsigned char>(random.next())};
                        if (b.p == nullptr) bad++;
                        block_fill(b);
                        Handed& slot = handed[random.below(64)];
                        slot.mutex.lock();
                        std::swap(slot.block, b);
                        slot.mutex.unlock();
                        if (b.p == nullptr) continue;
                        if (!block_intact(b, b.usable)) bad++;
                        unit_free(b.p);
                        if (i % 1024 == 0 && t == 0) unit_census(&f);
                        if (i % 4096 == 0) unit_detach();
                    }
                    unit_detach();
                });
            for (std::thread& t : all) t.join();
        }
        EXPECT_EQ(bad.load(), 0u);
        EXPECT_GE(unit_check_slabs(), 0);
        for (Handed& h : handed) unit_free(h.block.p);
        expect_nothing_left();
    }));
}

// ---- Forks.

// The child has what other threads kept, free.
TEST(Medium, AForksChildHasWhatOthersKept) {
    EXPECT_FINE(in_child([] {
        start("release=off");
        std::atomic<int> step{0};
        std::thread other([&] {
            for (size_t size : {2000u, 9000u, 30000u}) unit_free(unit_alloc(size));
            step = 1;
            while (step != 2) usleep(100);
            unit_detach();
        });
        while (step != 1) usleep(100);
        Blocks mine;
        mine.alloc(3000);
        unit_free(unit_alloc(5000));
        EXPECT_EQ(used_blocks(), 5u);
        int status = forked([&] {
            EXPECT_EQ(used_blocks(), 2u);
            struct unit_figures f;
            unit_census(&f);
            EXPECT_EQ(f.live_blocks, 1u);
            mine.free_all();
            expect_nothing_left();
        });
        EXPECT_EQ(status, 0);
        step = 2;
        other.join();
        mine.free_all();
        expect_nothing_left();
    }));
}

// A timer's handler forks wherever it finds the thread; parent and child go on with the call. Another thread
// keeps blocks in the same chunks.
// Absent: sanitizers do not bear it, and an emulator that forks among threads may end by its own assertions
TEST_NATIVE(Medium, AHandlerForksAndTheChildGoesOn) {
    static volatile sig_atomic_t forks, is_child;
    static volatile pid_t last_child;
    EXPECT_FINE(in_child([] {
        start("release=off");
        std::atomic<int> step{0};
        sigset_t set, before;
        sigemptyset(&set);
        sigaddset(&set, SIGALRM);
        pthread_sigmask(SIG_BLOCK, &set, &before);
        std::thread other([&] {
            for (size_t size = 1100; size < 20000; size += size / 8) unit_free(unit_alloc(size));
            step = 1;
            while (step != 2) usleep(100);
            unit_detach();
        });
        while (step != 1) usleep(100);
        core_options.thread_kept_max = 0; // each of this thread's calls goes to the chunks
        signal(SIGALRM, [](int) {
            unit_fork_prepare();
            pid_t pid = fork();
            if (pid == 0) {
                unit_fork_child();
                is_child = 1;
            } else {
                unit_fork_parent();
                last_child = pid;
            }
            forks = forks + 1;
        });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        Random random(11);
        Blocks blocks;
        blocks.all.reserve(64); // libc's malloc, which its fork would wait for, has nothing to do
        auto once = [&] {
            if (blocks.all.size() < 40 && random.below(2) == 0)
                blocks.alloc(SMALL_MAX + 1 + random.below(9000));
            else if (!blocks.all.empty())
                blocks.free(random.below(blocks.all.size()));
        };
        for (unsigned i = 0; i < unit_rounds(300) && !is_child; i++) {
            int had = forks;
            struct itimerval timer = {{0, 0}, {0, static_cast<long>(20 + random.below(400))}};
            setitimer(ITIMER_REAL, &timer, nullptr);
            while (forks == had) once();
            if (is_child) break;
            int status = -1;
            waitpid(last_child, &status, 0);
            ASSERT_EQ(status, 0) << i;
        }
        if (is_child) {
            signal(SIGALRM, SIG_DFL);
            alarm(60);
            for (unsigned i = 0; i < 300; i++) once();
            EXPECT_TRUE(unit_arena_check());
            blocks.free_all();
            EXPECT_TRUE(unit_arena_check());
            fflush(stdout);
            _exit(::testing::Test::HasFailure() ? 1 : 0);
        }
        EXPECT_EQ(forks, static_cast<int>(unit_rounds(300)));
        step = 2;
        other.join();
        blocks.free_all();
        expect_nothing_left();
    }));
}

} // namespace
