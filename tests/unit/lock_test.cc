// lock_test.cc: os/lock.h: exclusion, nesting, sleeping waiters, fork. Called by ctest.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <atomic>
#include <thread>
#include <vector>

namespace {

TEST(Lock, ExcludesThreads) {
    struct os_lock lock = {};
    constexpr unsigned threads = 6;
    const unsigned rounds = unit_rounds(50000);
    uint64_t counter = 0; // plain: only the lock keeps it right
    std::vector<std::thread> all;
    for (unsigned t = 0; t < threads; t++)
        all.emplace_back([&] {
            for (unsigned i = 0; i < rounds; i++) {
                os_lock_take(&lock);
                counter++;
                os_lock_give(&lock);
            }
        });
    for (std::thread& t : all) t.join();
    EXPECT_EQ(counter, uint64_t{threads} * rounds);
    EXPECT_EQ(lock.owner, nullptr);
}

TEST(Lock, NestsInItsOwner) {
    struct os_lock lock = {};
    EXPECT_FALSE(os_lock_is_mine(&lock));
    os_lock_take(&lock);
    os_lock_take(&lock);
    os_lock_take(&lock);
    EXPECT_TRUE(os_lock_is_mine(&lock));
    auto others_try = [&] {
        bool got = true;
        std::thread([&] {
            EXPECT_FALSE(os_lock_is_mine(&lock));
            got = os_lock_try(&lock);
            if (got) os_lock_give(&lock);
        }).join();
        return got;
    };
    EXPECT_FALSE(others_try());
    os_lock_give(&lock);
    os_lock_give(&lock);
    EXPECT_TRUE(os_lock_is_mine(&lock));
    EXPECT_FALSE(others_try());
    os_lock_give(&lock);
    EXPECT_FALSE(os_lock_is_mine(&lock));
    EXPECT_TRUE(others_try());
}

TEST(Lock, TryTakesAFreeLockOnce) {
    struct os_lock lock = {};
    EXPECT_TRUE(os_lock_try(&lock));
    EXPECT_FALSE(os_lock_try(&lock));
    os_lock_give(&lock);
    EXPECT_TRUE(os_lock_try(&lock));
    os_lock_give(&lock);
}

TEST(Lock, WakesEverySleeper) {
    struct os_lock lock = {};
    constexpr unsigned sleepers = 24;
    std::atomic<unsigned> through{0};
    std::vector<std::thread> all;
    os_lock_take(&lock);
    for (unsigned t = 0; t < sleepers; t++)
        all.emplace_back([&] {
            os_lock_take(&lock);
            through++;
            os_lock_give(&lock);
        });
    while (load_relaxed(&lock.wanted) == 0) usleep(1000);
    usleep(50000); // so that most of them are in the kernel
    EXPECT_EQ(through.load(), 0u);
    os_lock_give(&lock);
    for (std::thread& t : all) t.join();
    EXPECT_EQ(through.load(), sleepers);
}

// A lock that says so is waited for awake: nobody has to wake who comes by in time. Another one's waiter
// sleeps soon.
TEST(Lock, SpinsAsLongAsItSaysBeforeItSleeps) {
    for (uint32_t us : {0u, UINT32_MAX}) {
        struct os_lock lock = {};
        lock.spin_us = us;
        std::atomic<bool> waits{false};
        os_lock_take(&lock);
        std::thread other([&] {
            waits = true;
            os_lock_take(&lock);
            os_lock_give(&lock);
        });
        while (!waits) std::this_thread::yield();
        for (unsigned i = 0; i < 1000 && load_relaxed(&lock.wanted) == 0 && (us == 0 || i < 100); i++)
            usleep(1000);
        EXPECT_EQ(load_relaxed(&lock.wanted), us == 0 ? 1u : 0u);
        os_lock_give(&lock);
        other.join();
    }
}

// How long a look at a lock takes differs from processor to processor. By the waiter's own time, since it may
// be stopped; and tried again, since a processor that is shared works at one speed now and at another then.
TEST(Lock, SpinsByTheClock) {
    enum { us = 20000, tries = 10 };
    uint64_t least = us * 1000 / 2, most = us * 1000 * 8;
    std::atomic<uint64_t> took{0};
    for (unsigned i = 0; i < tries && (took < least || took > most); i++) {
        os_lock_looks_us = 0;
        os_lock_learn();
        EXPECT_EQ(os_lock_looks_us == 0, os_cpu_count() == 1);
        EXPECT_LE(os_lock_looks_us, 1000u);
        if (os_lock_looks_us == 0) return; // no look finds it free
        struct os_lock lock = {};
        lock.spin_us = us;
        os_lock_take(&lock);
        std::thread other([&] {
            uint64_t began = os_thread_cpu_ns();
            os_lock_take(&lock);
            took = os_thread_cpu_ns() - began;
            os_lock_give(&lock);
        });
        while (load_relaxed(&lock.wanted) == 0) usleep(100);
        os_lock_give(&lock);
        other.join();
    }
    EXPECT_GE(took, least);
    EXPECT_LE(took, most);
}

// A sleeper that was woken may take long to run: the lock's next owners do not wake it again.
TEST(Lock, WakesOnceHoweverOftenItIsGiven) {
    struct os_lock lock = {};
    uint64_t before = load_relaxed(&os_call_counts[OS_OTHER]);
    store_relaxed(&lock.wanted, 1u);
    for (int i = 0; i < 10; i++) {
        os_lock_take(&lock);
        os_lock_give(&lock);
    }
    EXPECT_EQ(load_relaxed(&os_call_counts[OS_OTHER]), before + 1);
    EXPECT_EQ(lock.wanted, 0u);
}

// Who slept for it leaves it marked as wanted, and wakes nobody.
TEST(Lock, WhoGivesItLearnsWhetherSomebodySlept) {
    struct os_lock lock = {};
    bool woke = false, woke_another = false;
    for (useconds_t us = 10000; !woke && us < 5000000; us *= 2) {
        os_lock_take(&lock);
        store_relaxed(&lock.wanted, 0u);
        EXPECT_FALSE(os_lock_give_waking(&lock));
        os_lock_take(&lock);
        std::thread sleeper([&] {
            os_lock_take(&lock);
            woke_another = woke_another || os_lock_give_waking(&lock);
            if (os_lock_is_mine(&lock)) os_lock_give(&lock);
        });
        while (load_relaxed(&lock.wanted) == 0) usleep(1000);
        usleep(us); // so that it is in the kernel
        os_lock_take(&lock);
        EXPECT_FALSE(os_lock_give_waking(&lock)); // the owner's own
        woke = os_lock_give_waking(&lock);
        sleeper.join();
    }
    EXPECT_TRUE(woke);
    EXPECT_FALSE(woke_another);
}

// Absent: its handlers stand between the trap and the test
TEST_UNSANITIZED(Lock, GivingAnothersLockTraps) {
    EXPECT_TRUE(in_child([] {
                    struct os_lock lock = {};
                    os_lock_give(&lock);
                }).trapped());
}

TEST_UNSANITIZED(Lock, RanksOutOfOrderTrap) {
    static struct os_lock low = {.owner = nullptr, .nest = 0, .wanted = 0, .rank = LOCK_HEAPS, .spin_us = 0};
    static struct os_lock high = {.owner = nullptr, .nest = 0, .wanted = 0, .rank = LOCK_PAGES, .spin_us = 0};
    EXPECT_TRUE(in_child([] {
                    os_lock_take(&high);
                    os_lock_take(&low);
                }).trapped());
    EXPECT_FINE(in_child([] {
        os_lock_take(&low);
        os_lock_take(&high);
        os_lock_take(&low); // again: it is the caller's
        os_lock_give(&low);
        os_lock_give(&high);
        os_lock_give(&low);
        os_lock_take(&high);
        os_lock_give(&high);
    }));
}

// The thread that forks holds the lock; others wait for it, and do not come along.
TEST(Lock, SurvivesForkInItsOwnersHand) {
    EXPECT_FINE(in_child([] {
        static struct os_lock lock;
        os_lock_take(&lock);
        std::thread waiter([] {
            os_lock_take(&lock);
            os_lock_give(&lock);
        });
        while (load_relaxed(&lock.wanted) == 0) usleep(1000);
        pid_t pid = fork();
        if (pid == 0) {
            os_lock_fork_child(&lock, false);
            bool good = os_lock_is_mine(&lock) && lock.wanted == 0;
            os_lock_give(&lock);
            good &= os_lock_try(&lock);
            os_lock_give(&lock);
            _exit(good && lock.owner == nullptr ? 0 : 1);
        }
        int status;
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
        os_lock_give(&lock);
        waiter.join();
    }));
}

TEST(Lock, IsTakenFromAnOwnerThatForkLeftBehind) {
    EXPECT_FINE(in_child([] {
        static struct os_lock lock;
        std::atomic<int> step{0};
        std::thread owner([&] {
            os_lock_take(&lock);
            os_lock_take(&lock);
            step = 1;
            while (step != 2) usleep(1000);
            os_lock_give(&lock);
            os_lock_give(&lock);
        });
        while (step != 1) usleep(1000);
        pid_t pid = fork();
        if (pid == 0) {
            os_lock_fork_child(&lock, true);
            bool good = os_lock_is_mine(&lock) && lock.nest == 0;
            os_lock_give(&lock);
            _exit(good && os_lock_try(&lock) ? 0 : 1);
        }
        int status;
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
        step = 2;
        owner.join();
    }));
}

} // namespace
