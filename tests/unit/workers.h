// workers.h: what the tests of threads share: threads that do as they are told, crowds of them, many blocks
// at once. Unit tests include it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_WORKERS_H
#define WEIR_TESTS_UNIT_WORKERS_H

#include "blocks.h"
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

// A thread that does what it is told, one thing after the other, and keeps its heap in between.
class Worker {
  public:
    Worker() : thread([this] { run(); }) {}
    ~Worker() { end(); }
    template <class Task>
    void does(Task task) {
        std::unique_lock<std::mutex> held(mutex);
        next = task;
        changed.notify_all();
        changed.wait(held, [&] { return next == nullptr; });
    }
    void end() {
        if (!thread.joinable()) return;
        {
            std::unique_lock<std::mutex> held(mutex);
            stop = true;
            changed.notify_all();
        }
        thread.join();
    }
    bool detaches = true;

  private:
    void run() {
        std::unique_lock<std::mutex> held(mutex);
        for (;;) {
            changed.wait(held, [&] { return stop || next != nullptr; });
            if (stop) break;
            next();
            next = nullptr;
            changed.notify_all();
        }
        if (detaches) unit_detach();
    }
    std::mutex mutex;
    std::condition_variable changed;
    std::function<void()> next;
    bool stop = false;
    std::thread thread;
};

// Threads with heaps, that do nothing more.
using Crowd = std::vector<std::unique_ptr<Worker>>;
inline Crowd crowd_of(unsigned count) {
    Crowd all;
    for (unsigned i = 0; i < count; i++) {
        all.push_back(std::make_unique<Worker>());
        all.back()->does([] { unit_attach(); });
    }
    return all;
}

inline std::vector<void*> many(size_t count, size_t size) {
    std::vector<void*> all;
    for (size_t i = 0; i < count; i++) {
        all.push_back(unit_alloc(size));
        memset(all.back(), static_cast<int>(i), size);
    }
    return all;
}

inline struct unit_figures census() {
    struct unit_figures f;
    unit_census(&f);
    return f;
}

#endif
