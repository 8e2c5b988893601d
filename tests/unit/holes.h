// holes.h: what the tests of given-back memory share: page sizes that the machine has not, a thread that
// purges all the time, a gate in the kernel's way, and which pages live blocks touch. Unit tests include it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_HOLES_H
#define WEIR_TESTS_UNIT_HOLES_H

#include "blocks.h"
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <set>
#include <thread>
extern "C" {
#include "page/hole.h"
#include "page/release.h"
}

// Windows that do not end while the test runs: memory goes back by release_all alone.
inline void windows_are_endless(const char* more = "") {
    std::string all = "release_delay=3600000:release_window=3600000:release_delay_max=3600000";
    setenv("WEIR_OPTIONS", (all + more).c_str(), 1);
}

inline uint64_t purged() { return load_relaxed(&span_totals.purged); }

// A block that is written to.
inline void* filled(size_t bytes) {
    void* p = unit_alloc(bytes);
    EXPECT_NE(p, nullptr);
    memset(p, 7, bytes);
    return p;
}

// The heap with pages of 2^shift bytes. Larger ones than the machine's are no large blocks', which ask it.
inline void start_with_pages(uint32_t shift) {
    unit_attach();
    page_shift = shift;
}

// A thread without a heap that gives back whatever there is, all the time.
class Purger {
  public:
    Purger()
        : thread([this] {
              while (!stop.load()) {
                  unit_arena_publish();
                  passes += release_all() ? 1 : 0;
                  usleep(100);
              }
          }) {}
    ~Purger() {
        stop = true;
        thread.join();
    }
    std::atomic<unsigned> passes{0}; // that found something

  private:
    std::atomic<bool> stop{false};
    std::thread thread;
};

// A thread that does what it is told and sleeps in between.
class Owner {
  public:
    Owner()
        : thread([this] {
              unit_attach();
              for (;;) {
                  while (!told.load()) usleep(200);
                  if (!task) break;
                  task();
                  told = false;
              }
              unit_detach();
          }) {}
    void does(const std::function<void()>& what) {
        task = what;
        told = true;
        while (told.load()) usleep(200);
    }
    ~Owner() {
        task = nullptr;
        told = true;
        thread.join();
    }

  private:
    std::function<void()> task;
    std::atomic<bool> told{false};
    std::thread thread;
};

// Holds one purge up in its call of the kernel. One in a process.
class Gate {
  public:
    // `refuse`: the call then fails.
    explicit Gate(bool refuse = false) {
        refused = refuse;
        state = ARMED;
        os_fault_hook = [](enum os_call call) {
            int armed = ARMED;
            if (call != OS_PURGE || !state.compare_exchange_strong(armed, WAITING)) return false;
            while (state.load() != OPEN) usleep(100);
            return refused.load();
        };
        thread = std::thread([this] { result = release_all(); });
    }
    // Returns when the purge is in the kernel.
    void wait() {
        while (state.load() != WAITING) usleep(100);
    }
    void open() { state = OPEN; }
    bool is_open() const { return state.load() == OPEN; }
    // What release_all said.
    bool join() {
        open();
        thread.join();
        return result;
    }

  private:
    enum { ARMED = 1, WAITING, OPEN };
    inline static std::atomic<int> state;
    inline static std::atomic<bool> refused;
    bool result = false;
    std::thread thread;
};

// Refuses calls of OS_PURGE: bit n of `which` the nth from now on.
inline void refuse_purges(uint64_t which) {
    static uint64_t left;
    left = which;
    os_fault_hook = [](enum os_call call) {
        if (call != OS_PURGE) return false;
        bool refused = (left & 1) != 0;
        left >>= 1;
        return refused;
    };
}

inline uintptr_t page_of(const void* p) { return reinterpret_cast<uintptr_t>(tag_clear(p)) >> page_shift; }
inline void add_pages(std::set<uintptr_t>& pages, const void* p, size_t bytes) {
    const char* end = static_cast<const char*>(p) + bytes - 1;
    for (uintptr_t page = page_of(p); page <= page_of(end); page++) pages.insert(pages.end(), page);
}
inline bool contents_right(const Blocks& blocks) {
    return std::all_of(blocks.all.begin(), blocks.all.end(),
                       [](const Block& b) { return block_intact(b, b.usable); });
}
inline std::set<uintptr_t> touched_pages(const Blocks& blocks) {
    std::set<uintptr_t> pages;
    for (const Block& b : blocks.all) add_pages(pages, b.p, b.usable);
    return pages;
}
// Of the machine's pages.
inline bool is_resident(uintptr_t page) {
    unsigned char what = 0;
    EXPECT_EQ(mincore(reinterpret_cast<void*>(page << page_shift), size_t{1} << page_shift, &what), 0);
    return (what & 1) != 0;
}
inline uint64_t state_of(const struct slice* s) { return load_acquire(&slice_pages(s)->state); }

// When nothing is left in bins and on lists (unit_collect): the pages of the blocks' slabs that no block
// touches, and no others, are holes; and `resident`, of a machine's pages: those others alone are resident.
inline void expect_holes_exact(const Blocks& blocks, bool resident) {
    std::set<uintptr_t> touched = touched_pages(blocks);
    std::set<struct slice*> slabs;
    for (const Block& b : blocks.all) slabs.insert(unit_slice(b.p));
    unsigned missed = 0, wrong = 0, stayed = 0;
    for (struct slice* s : slabs) {
        if (unit_is_large(s)) continue;
        for (uint32_t i = 0; i < s->span_slices * slice_page_count(); i++) {
            struct slice* part = s + i / slice_page_count();
            bool hole = (hole_of(state_of(part)) >> i % slice_page_count() & 1) != 0;
            uintptr_t page = (slice_address(s) >> page_shift) + i;
            // With tags a chunk's last unit is no block's.
            bool end = tag_is_on() && s->kind == SLICE_CHUNK && i + 1 == s->span_slices * slice_page_count();
            missed += !hole && !end && touched.count(page) == 0;
            wrong += hole && touched.count(page) != 0;
            if (resident) stayed += hole && is_resident(page);
        }
    }
    EXPECT_EQ(missed, 0u) << "pages that no block touches are no holes";
    EXPECT_EQ(wrong, 0u) << "pages of blocks are holes";
    EXPECT_EQ(stayed, 0u) << "holes are resident";
}

#endif
