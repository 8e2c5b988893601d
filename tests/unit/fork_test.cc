// fork_test.cc: the heap in the child of a process with many threads. Called by ctest; the handlers that
// the api layer registers are called here by hand.
//
// SPDX-License-Identifier: Apache-2.0
#include "blocks.h"
#include "forked.h"
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/syscall.h>
#include <thread>

namespace {

bool lock_is_free(struct os_lock* lock) {
    if (!os_lock_try(lock)) return false;
    os_lock_give(lock);
    return lock->nest == 0 && lock->wanted == 0;
}

void expect_usable_heap(unsigned rounds) {
    EXPECT_TRUE(lock_is_free(&page_lock));
    EXPECT_TRUE(lock_is_free(unit_heaps_lock()));
    EXPECT_TRUE(unit_self() == nullptr || lock_is_free(unit_own_lock()));
    EXPECT_TRUE(span_check());
    Random random(3);
    Blocks blocks;
    for (unsigned i = 0; i < rounds; i++) {
        if (blocks.all.size() < 100 || random.below(2) == 0)
            EXPECT_TRUE(blocks.alloc(some_size(random)));
        else
            blocks.free(random.below(blocks.all.size()));
    }
    blocks.free_all();
    unit_collect();
    EXPECT_TRUE(span_check());
}

TEST(Fork, OfOneThreadLosesNothing) {
    EXPECT_FINE(in_child([] {
        Blocks blocks;
        Random random(1);
        for (int i = 0; i < 1000; i++) blocks.alloc(some_size(random));
        EXPECT_EQ(forked([&] {
                      struct unit_figures f;
                      unit_census(&f);
                      EXPECT_EQ(f.live_blocks, 1000u);
                      EXPECT_EQ(unit_heaps_live(), 1u);
                      EXPECT_GE(unit_check_slabs(), 0);
                      expect_usable_heap(2000);
                      blocks.free_all();
                      EXPECT_GE(unit_check_slabs(), 0);
                      expect_nothing_left();
                  }),
                  0);
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Fork, BeforeTheFirstAllocation) {
    EXPECT_FINE(in_child([] {
        EXPECT_EQ(forked([] { expect_usable_heap(500); }), 0);
        expect_usable_heap(500);
    }));
}

// Threads that stand still somewhere; the child has their blocks, but not them.
TEST(Fork, LeavesOtherThreadsBlocksUsable) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        constexpr unsigned threads = 3;
        Blocks all[threads];
        std::atomic<unsigned> ready{0};
        std::atomic<bool> stop{false};
        std::vector<std::thread> owners;
        for (unsigned t = 0; t < threads; t++)
            owners.emplace_back([&, t] {
                Random random(t + 1);
                for (int i = 0; i < 2000; i++) {
                    if (all[t].all.size() < 100 || random.below(3) != 0)
                        all[t].alloc(some_size(random));
                    else
                        all[t].free(random.below(all[t].all.size()));
                }
                ready++;
                while (!stop) usleep(1000);
                all[t].free_all();
                unit_detach();
            });
        while (ready != threads) usleep(1000);
        for (int i = 0; i < 3; i++)
            EXPECT_EQ(forked([&] {
                          EXPECT_EQ(unit_heaps_live(), 1u);
                          struct unit_figures f;
                          unit_census(&f);
                          uint64_t live = 0;
                          for (Blocks& blocks : all) live += blocks.all.size();
                          EXPECT_GE(f.live_blocks, live); // what lay free in their heaps counts as in use
                          expect_usable_heap(2000);
                          for (Blocks& blocks : all) {
                              for (const Block& b : blocks.all) EXPECT_EQ(unit_usable(b.p), b.usable);
                              blocks.free_all();
                          }
                          expect_usable_heap(2000);
                          EXPECT_GE(unit_check_slabs(), 0);
                      }),
                      0);
        stop = true;
        for (std::thread& t : owners) t.join();
        expect_nothing_left();
    }));
}

// What another thread is purging, with the page lock given up, is in no list: the child has it as free
// memory.
static std::atomic<int> purge_state;
static bool purge_waits(enum os_call call) {
    if (call != OS_PURGE || purge_state != 0) return false;
    purge_state = 1;
    while (purge_state == 1) usleep(100);
    return false;
}
// What lies free in the heap of a thread that ended is the child's as well, and the parent's.
TEST(Fork, AfterAThreadEnded) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Blocks blocks;
        std::thread([&] {
            Random random(1);
            for (int i = 0; i < 500; i++) blocks.alloc(16 + random.below(500));
            for (int i = 0; i < 250; i++) blocks.free(random.below(blocks.all.size()));
            unit_end();
        }).join();
        EXPECT_GT(unit_parked(), 0u);
        EXPECT_EQ(forked([&] {
                      EXPECT_EQ(unit_parked(), 0u);
                      EXPECT_EQ(unit_heaps_live(), 1u);
                      struct unit_figures f;
                      unit_census(&f);
                      EXPECT_EQ(f.live_blocks, 250u);
                      blocks.free_all();
                      expect_usable_heap(1000);
                      expect_nothing_left();
                  }),
                  0);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// A child that no handler saw has the live blocks; the heap of the thread that ended is nobody's there.
// Absent: an emulator that forks among threads may get stuck in a lock of its own.
TEST_UNEMULATED(Fork, UnseenAfterAThreadEnded) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Blocks blocks;
        struct heap* left = nullptr;
        std::thread([&] {
            for (int i = 0; i < 500; i++) blocks.alloc(100);
            left = unit_self();
            unit_end();
        }).join();
        EXPECT_GT(unit_parked(), 0u);
        fflush(stdout);
        pid_t pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
        if (pid == 0) {
            alarm(100);
            std::thread([&] {
                unit_free(unit_alloc(100));
                EXPECT_NE(unit_self(), left);
                blocks.free_all();
                EXPECT_EQ(unit_parked(), 0u);
                unit_end();
            }).join();
            fflush(stdout);
            _exit(::testing::Test::HasFailure() ? 1 : 0);
        }
        int status = -1;
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Fork, InTheMiddleOfAnothersPurge) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "release=off", 1);
        unit_attach();
        const size_t bytes = 32 << 20;
        void* p = unit_alloc(bytes);
        EXPECT_NE(p, nullptr);
        unit_free(p);
        uint64_t live = span_totals.live;
        purge_state = 0;
        os_fault_hook = purge_waits;
        std::thread purger([] { span_purge(UINT64_MAX); });
        while (purge_state != 1) usleep(100);
        EXPECT_GE(span_totals.live, live + bytes);
        EXPECT_EQ(forked([&] {
                      EXPECT_EQ(span_totals.live, live);
                      EXPECT_TRUE(span_check());
                      EXPECT_EQ(unit_alloc(bytes), p);
                      memset(p, 1, bytes);
                      unit_free(p);
                      EXPECT_TRUE(span_check());
                  }),
                  0);
        purge_state = 2;
        purger.join();
        os_fault_hook = nullptr;
        EXPECT_EQ(span_totals.live, live);
        EXPECT_TRUE(span_check());
    }));
}

TEST(Fork, ByAThreadWithoutAHeap) {
    EXPECT_FINE(in_child([] {
        unit_attach();
        Blocks blocks;
        for (int i = 0; i < 500; i++) blocks.alloc(100);
        std::thread([&] {
            EXPECT_EQ(forked([&] {
                          EXPECT_EQ(unit_heaps_live(), 0u);
                          blocks.free_all();
                          expect_usable_heap(500);
                          EXPECT_EQ(unit_heaps_live(), 1u);
                      }),
                      0);
        }).join();
        EXPECT_EQ(unit_heaps_live(), 1u);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// Threads that are anywhere in the heap when the fork comes.
// Absent: a sanitizer's own locks are left behind as well, and an emulator may end by its own assertions
TEST_NATIVE(Fork, AtAnyMomentOfOtherThreads) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "reserve=64m:dirty_max=256k", 1);
        unit_attach();
        std::atomic<bool> stop{false};
        std::vector<std::thread> busy;
        for (unsigned t = 0; t < 3; t++)
            busy.emplace_back([&, t] {
                Random random(t + 1);
                void* held[64] = {};
                while (!stop) {
                    size_t i = random.below(64);
                    unit_free(held[i]);
                    held[i] = unit_alloc(some_size(random));
                }
                for (void* p : held) unit_free(p);
                unit_detach();
            });
        Blocks mine;
        for (unsigned i = 0; i < unit_rounds(60); i++) {
            mine.alloc(100 + i * 50);
            EXPECT_EQ(forked([&] {
                          mine.free_all();
                          expect_usable_heap(300);
                      }),
                      0);
        }
        stop = true;
        for (std::thread& t : busy) t.join();
        mine.free_all();
        EXPECT_GE(unit_check_slabs(), 0);
        expect_nothing_left();
    }));
}

// A signal handler that forks may find its own thread with any lock held, others waiting for it.
// Absent: sanitizers do not bear it, and an emulator that forks among threads may end by its own assertions
TEST_NATIVE(Fork, FromASignalHandlerInTheMiddleOfAllocation) {
    static volatile sig_atomic_t forks, bad;
    EXPECT_FINE(in_child([] {
        setenv("WEIR_OPTIONS", "reserve=64m:dirty_max=128k", 1);
        unit_attach();
        std::atomic<bool> stop{false};
        std::thread other([&] {
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, SIGUSR1);
            pthread_sigmask(SIG_BLOCK, &set, nullptr);
            Random random(7);
            while (!stop) unit_free(unit_alloc(some_size(random)));
            unit_detach();
        });
        signal(SIGUSR1, [](int) {
            unit_fork_prepare();
            pid_t pid = fork();
            if (pid == 0) {
                alarm(60);
                unit_fork_child();
                // The interrupted call is never finished here, as in any child that goes on to exec.
                bool good = true;
                for (size_t size = 1; size < 200000; size += 1 + size / 4) {
                    void* p = unit_alloc(size);
                    good &= p != nullptr;
                    unit_free(p);
                }
                _exit(good ? 0 : 1);
            }
            unit_fork_parent();
            int status = -1;
            waitpid(pid, &status, 0);
            forks = forks + 1;
            if (status != 0) bad = bad + 1;
        });
        Blocks blocks;
        blocks.all.reserve(64); // libc's malloc, which its fork would wait for, has nothing to do
        const unsigned wanted = unit_rounds(60);
        pthread_t self = pthread_self();
        std::thread sender([&] {
            for (unsigned i = 0; i < wanted; i++) {
                pthread_kill(self, SIGUSR1);
                usleep(1500);
            }
            stop = true;
        });
        Random random(9);
        while (!stop) {
            if (blocks.all.size() < 50)
                blocks.alloc(some_size(random));
            else
                blocks.free(random.below(blocks.all.size()));
        }
        sender.join();
        other.join();
        EXPECT_GT(forks, 0);
        EXPECT_EQ(bad, 0);
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Fork, ChildrenMayForkAgain) {
    EXPECT_FINE(in_child([] {
        Blocks blocks;
        for (int i = 0; i < 200; i++) blocks.alloc(300);
        EXPECT_EQ(forked([&] {
                      for (int i = 0; i < 200; i++) blocks.alloc(200);
                      EXPECT_EQ(forked([&] {
                                    blocks.free_all();
                                    expect_nothing_left();
                                }),
                                0);
                      blocks.free_all();
                      expect_nothing_left();
                  }),
                  0);
        blocks.free_all();
        expect_nothing_left();
    }));
}

TEST(Fork, InFullMode) {
    EXPECT_FINE(in_child([] {
        setenv("WEIR_CHECKS", "full", 1);
        Blocks blocks;
        for (int i = 0; i < 500; i++) blocks.alloc(10 + i);
        EXPECT_EQ(forked([&] {
                      expect_usable_heap(500);
                      blocks.free_all();
                      expect_nothing_left();
                  }),
                  0);
        blocks.free_all();
        expect_nothing_left();
    }));
}

// A thread that forks in a handler may have one of the locks, and wait for what this one has.
TEST(Fork, GivesWayWhereALockIsNotToBeHad) {
    EXPECT_FINE(in_child(
        [] {
            unit_attach();
            struct os_lock* own = unit_heap_lock();
            for (struct os_lock* lock : {unit_heaps_lock(), own, &page_lock}) {
                std::atomic<int> step{0};
                std::thread other([&] {
                    os_lock_take(lock);
                    step = 1;
                    while (step.load() != 2) usleep(100);
                    os_lock_give(lock);
                });
                while (step.load() != 1) usleep(100);
                EXPECT_FALSE(unit_fork_tries(true));
                EXPECT_FALSE(unit_fork_tries(false));
                for (struct os_lock* each : {unit_heaps_lock(), own, &page_lock})
                    EXPECT_FALSE(os_lock_is_mine(each));
                step = 2;
                other.join();
                EXPECT_TRUE(unit_fork_tries(true));
                unit_fork_parent();
                for (struct os_lock* each : {unit_heaps_lock(), own, &page_lock})
                    EXPECT_FALSE(os_lock_is_mine(each));
            }
        },
        20));
}

// A thread in an arena, or at its own lists, may wait for the page lock: were that taken, a fork handler of
// the program's that allocates would wait for the thread. For long it is not waited for: it may sleep in a
// handler.
TEST(Fork, WaitsForThoseInArenasAndHeaps) {
    EXPECT_FINE(in_child(
        [] {
            unit_attach();
            for (bool arenas : {true, false}) {
                std::atomic<int> step{0};
                std::thread other([&] {
                    unit_attach();
                    struct os_lock* own = unit_own_lock();
                    if (arenas)
                        EXPECT_TRUE(unit_arenas_take());
                    else
                        os_lock_take(own);
                    step = 1;
                    while (step.load() != 2) usleep(100);
                    if (arenas)
                        unit_arenas_give();
                    else
                        os_lock_give(own);
                    unit_detach();
                });
                while (step.load() != 1) usleep(100);
                EXPECT_FALSE(unit_fork_tries(true));
                EXPECT_FALSE(os_lock_is_mine(&page_lock));
                EXPECT_FALSE(unit_arena_is_mine());
                EXPECT_TRUE(unit_fork_tries(false));
                unit_fork_parent();
                step = 2;
                other.join();
                EXPECT_TRUE(unit_fork_tries(true));
                EXPECT_TRUE(unit_arena_is_mine());
                // What such a handler does.
                Blocks blocks;
                for (size_t size : {100u, 3000u, 30000u, 300000u, 3000000u}) EXPECT_TRUE(blocks.alloc(size));
                blocks.free_all();
                unit_fork_parent();
                EXPECT_FALSE(unit_arena_is_mine());
                EXPECT_FALSE(os_lock_is_mine(&page_lock));
            }
        },
        20));
}

} // namespace
