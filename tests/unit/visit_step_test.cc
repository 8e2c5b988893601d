// visit_step_test.cc: a visitor comes between any two instructions of a thread that uses what it keeps.
// Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "holes.h"
#include "stepping.h"
#include <atomic>
#include <thread>
extern "C" {
#include "page/fence.h"
}

#if defined(__x86_64__)
namespace {

// A thread that visits all heaps when it is asked to. Where the stepping thread has a lock that it needs, it
// is through later.
class Visitor {
  public:
    static inline std::atomic<unsigned> asked, done;
    static inline std::atomic<bool> ends;
    static inline unsigned steps, at; // it comes at the one

    static void start(unsigned step) {
        steps = 0;
        at = step;
        stepping_start(come);
    }
    static void come(int, siginfo_t*, void*) {
        if (++steps != at) return;
        asked++;
        for (unsigned i = 0; i < 200000 && done != asked; i++) arch_pause();
    }
    static void wait() {
        while (done != asked) usleep(100);
    }

    Visitor()
        : thread([] {
              while (!ends) {
                  if (done == asked) continue;
                  unit_visit(true);
                  done++;
              }
          }) {}
    ~Visitor() {
        ends = true;
        thread.join();
    }

  private:
    std::thread thread;
};

// What is kept is the visitor's or the thread's, never both's.
void visited_at_each_step(size_t bytes) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless(":release=off"); // else a helper is made, with signals blocked
        unit_attach();
        fence_is_on = false;
        {
            Visitor visitor;
            // What is kept is found, or put there, within so many instructions.
            for (unsigned step = 1; step <= 200; step++) {
                unit_free(unit_alloc(bytes)); // the gate is open, and one is kept
                Visitor::start(step);
                void* p = unit_alloc(bytes);
                stepping_stop();
                Visitor::wait();
                size_t usable = unit_usable(p); // of a free block that is reported
                ASSERT_GE(usable, bytes) << step;
                memset(p, 0x5a, usable);
                void* another = unit_alloc(bytes);
                EXPECT_NE(another, p) << step;
                memset(another, 0xa5, bytes);
                EXPECT_EQ(static_cast<unsigned char*>(p)[bytes / 2], 0x5a) << step;
                unit_free(another);
                unit_collect(); // none is kept, and the gate is open
                Visitor::start(step);
                unit_free(p);
                stepping_stop();
                Visitor::wait();
                struct unit_figures f;
                unit_census(&f);
                EXPECT_EQ(f.live_blocks, 0u) << step;
                EXPECT_TRUE(span_check());
                EXPECT_TRUE(unit_arena_check());
            }
            EXPECT_GT(Visitor::done, 50u);
        }
        unit_collect();
        EXPECT_EQ(unit_kept_medium_bytes(), 0u);
        EXPECT_FALSE(unit_keeps_large());
    }));
}

// A child that is made there by a handler, and allocates in it.
class Forker {
  public:
    static inline unsigned steps, at, forks, bad;
    static inline size_t bytes;

    static void step(int, siginfo_t*, void*) {
        if (++steps != at) return;
        unit_fork_prepare();
        pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            unit_fork_child();
            void* p = unit_alloc(bytes);
            size_t usable = p == nullptr ? 0 : unit_usable(p);
            if (usable >= bytes) memset(p, 0x5a, usable);
            _exit(usable >= bytes && span_check() ? 0 : 1);
        }
        unit_fork_parent();
        int status = -1;
        waitpid(pid, &status, 0);
        forks++;
        if (status != 0 && bad++ == 0) printf("the first bad child: step %u, status %d\n", steps, status);
    }
};

// What the child finds kept is as large as it is said to be.
TEST_NATIVE(VisitSteps, AForkWhileALargeBlockTakesTheOthersPlace) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":release=off");
        unit_attach();
        fence_is_on = false;
        for (size_t kept : {size_t{600000}, size_t{1} << 20})
            for (unsigned step = 1; step <= 300; step++) {
                size_t next = kept == 600000 ? size_t{1} << 20 : 600000;
                void* first = unit_alloc(kept);
                void* second = unit_alloc(next);
                unit_free(first);
                Forker::bytes = step % 2 == 0 ? kept : next;
                Forker::steps = 0;
                Forker::at = step;
                stepping_start(Forker::step);
                unit_free(second);
                stepping_stop();
            }
        EXPECT_GT(Forker::forks, 300u);
        EXPECT_EQ(Forker::bad, 0u);
        unit_collect();
        EXPECT_TRUE(span_check());
    }));
}

TEST_NATIVE(VisitSteps, MediumBlocks) { visited_at_each_step(8192); }
TEST_NATIVE(VisitSteps, LongBlocks) { visited_at_each_step(200000); }
TEST_NATIVE(VisitSteps, LargeBlocks) { visited_at_each_step(700000); }

} // namespace
#endif
