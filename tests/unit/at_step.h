// at_step.h: another thread's visit, or a fork, between two instructions of a piece of code. x86-64 alone,
// and no sanitizers of memory or threads. Unit tests include it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_UNIT_AT_STEP_H
#define WEIR_UNIT_AT_STEP_H

#include "layers.h"
#include "stepping.h"
#include <atomic>
#include <chrono>
#include <sched.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#if defined(__x86_64__)
// A thread that visits all heaps when it is asked to. Where the stepping thread has a lock that it needs, it
// is through later.
class Visitor {
  public:
    static inline std::atomic<unsigned> asked, done;
    static inline std::atomic<bool> ends;
    static inline unsigned steps, at; // it comes at the one
    static inline unsigned in_time;   // visits that were made there, and not later

    static void start(unsigned step) {
        steps = 0;
        at = step;
        stepping_start(come);
    }
    static void come(int, siginfo_t*, void*) {
        constexpr auto patience = std::chrono::milliseconds(20); // not in yields: each lasts as others run
        if (++steps != at) return;
        asked++;
        const auto until = std::chrono::steady_clock::now() + patience;
        while (done != asked && std::chrono::steady_clock::now() < until) sched_yield();
        in_time += done == asked;
    }
    static void wait() {
        while (done != asked) usleep(100);
    }

    Visitor()
        : thread([] {
              while (!ends) {
                  if (done == asked) {
                      sched_yield();
                      continue;
                  }
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

// In a handler: forks. The child ends there by whether `fine`, or, where that is nullptr, goes on: true.
class Forker {
  public:
    static inline unsigned steps, at, forks, bad;
    static inline bool (*fine)();

    static bool child_goes_on(bool (*is_fine)()) {
        unit_fork_prepare();
        pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            unit_fork_child();
            if (is_fine == nullptr) return true;
            _exit(is_fine() ? 0 : 1);
        }
        unit_fork_parent();
        int status = -1;
        waitpid(pid, &status, 0);
        forks++;
        if (status != 0 && bad++ == 0) printf("the first bad child: step %u, status %d\n", steps, status);
        return false;
    }
    // One fork, at that step.
    static void start(unsigned step) {
        steps = 0;
        at = step;
        stepping_start([](int, siginfo_t*, void*) {
            if (++steps == at) child_goes_on(fine);
        });
    }
    static void wait() {}
};
#endif

#endif
