// visit_step_test.cc: a visitor comes between any two instructions of a thread that uses what it keeps.
// Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "at_step.h"
#include "holes.h"
#include <utility>
extern "C" {
#include "page/fence.h"
}

#if defined(__x86_64__)
namespace {

// What is kept is the visitor's or the thread's, never both's.
void visited_at_each_step(size_t bytes) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless(":release=off"); // else a helper is made, with signals blocked
        unit_attach();
        fence_is_on = false;
        {
            Visitor visitor;
            // What is kept is found, or put there, within so many instructions.
            for (unsigned step = 1; step <= 200; step += stepping_apart) {
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
            EXPECT_GT(Visitor::done, 50u / stepping_apart);
            EXPECT_GT(Visitor::in_time, 0u);
        }
        unit_collect();
        EXPECT_EQ(unit_kept_medium_bytes(), 0u);
        EXPECT_FALSE(unit_keeps_large());
    }));
}

size_t forks_bytes; // that a child allocates

bool child_allocates() {
    void* p = unit_alloc(forks_bytes);
    size_t usable = p == nullptr ? 0 : unit_usable(p);
    if (usable >= forks_bytes) memset(p, 0x5a, usable);
    return usable >= forks_bytes && span_check();
}

// What the child finds kept is as large as it is said to be.
TEST_NATIVE(VisitSteps, AForkWhileALargeBlockTakesTheOthersPlace) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":release=off");
        unit_attach();
        fence_is_on = false;
        Forker::fine = child_allocates;
        for (size_t kept : {size_t{600000}, size_t{1} << 20})
            for (unsigned step = 1; step <= 300; step += stepping_apart) {
                size_t next = kept == 600000 ? size_t{1} << 20 : 600000;
                void* first = unit_alloc(kept);
                void* second = unit_alloc(next);
                unit_free(first);
                forks_bytes = step % 2 == 0 ? kept : next;
                Forker::start(step);
                unit_free(second);
                stepping_stop();
            }
        EXPECT_GT(Forker::forks, 300u / stepping_apart);
        EXPECT_EQ(Forker::bad, 0u);
        unit_collect();
        EXPECT_TRUE(span_check());
    }));
}

// A full slab and another one change places while somebody sorts them, or forks.
TEST_NATIVE(VisitSteps, AFullSlabAndAnother) {
    for (bool forks : {false, true})
        EXPECT_FINE(in_child([=] {
            constexpr size_t bytes = 256;
            windows_are_endless(
                ":release_floor=1073741824:check_first=0:check_every=1000000:guard_rate=0"); // no helper
            unit_attach();
            Forker::fine = child_allocates;
            forks_bytes = bytes;
            const size_t each = size_classes[class_of(bytes)].capacity;
            std::vector<void*> all;
            for (size_t i = 0; i < 12 * each; i++) all.push_back(unit_alloc(bytes));
            // Full ones are nobody's: from now on ten of them are the thread's, with a block to give.
            for (size_t i = 0; i < 10; i++) unit_free(std::exchange(all[i * each + each / 2], nullptr));
            Visitor visitor;
            unsigned changes = 0, shared = 0;
            for (unsigned step = 1; step <= 900; step += 5 * stepping_apart) {
                const struct slice* before = unit_active(class_of(bytes));
                const size_t first = step / (5 * stepping_apart) % 10 * each;
                const size_t count = class_enough(&size_classes[class_of(bytes)]) + 2;
                const size_t apart = each / count; // no page drains
                if (unit_slice(all[first]) == before) continue;
                for (size_t i = 0; i < count; i++) unit_free(all[first + i * apart]);
                shared += unit_is_shared(before); // else it goes the long way
                forks ? Forker::start(step) : Visitor::start(step);
                all[first] = unit_alloc(bytes);
                stepping_stop();
                if (!forks) Visitor::wait();
                changes += unit_active(class_of(bytes)) != before;
                for (size_t i = 1; i < count; i++) all[first + i * apart] = unit_alloc(bytes);
                void*& left = all[first + each / 2];
                if (left == nullptr) left = unit_alloc(bytes); // all of it is in use again
                ASSERT_GE(unit_check_slabs(), 0) << step;
            }
            EXPECT_GT(changes, 100u / stepping_apart);
            EXPECT_GT(shared, 100u / stepping_apart);
            EXPECT_TRUE(forks ? Forker::forks > 50 / stepping_apart && Forker::bad == 0
                              : Visitor::in_time > 0);
        }));
}

// Blocks of full slabs that are nobody's, and have so many.
std::vector<void*> of_nobodys(unsigned slabs, size_t bytes, unsigned each) {
    std::vector<void*> all;
    std::thread([&] {
        for (unsigned i = 0; i <= slabs * each; i++) all.push_back(unit_alloc(bytes));
    }).join();
    return all;
}

// What waits in an outbox goes to its slab once, by the thread or by the visitor, whichever of a slab's
// blocks it is that the thread frees just then: the first one goes alone, the second one is the first in the
// outbox, and so on; `sends`: while it sends them. `asked`: where another visitor was there before and took
// nothing.
void outboxes_visited_at_each_step(unsigned freed, bool sends, bool asked) {
    constexpr size_t bytes = 128;
    windows_are_endless(":release=off");
    unit_attach();
    const unsigned each = size_classes[class_of(bytes)].capacity;
    const bool is_long = sends || freed == 32;
    const unsigned steps = is_long ? 600 : 200; // of which the last ones come too late
    const unsigned apart = (is_long ? 3 : 1) * stepping_apart;
    const std::vector<void*> all = of_nobodys(steps / apart + 1, bytes, each);
    Visitor visitor;
    unsigned taken = 0;
    size_t at = 0;
    for (unsigned step = 1; step <= steps; step += apart, at += each) {
        const struct slice* s = unit_slice(all[at]);
        const auto came = [&] { return each - unit_used(s) + unit_remote_count(s); };
        ASSERT_TRUE(unit_is_unowned(s));
        ASSERT_EQ(came(), 0u);
        for (unsigned i = 0; i < freed; i++) unit_free(all[at + i]);
        if (asked) std::thread([] { unit_visit(false); }).join();
        Visitor::start(step);
        sends ? unit_outboxes_send() : unit_free(all[at + freed]);
        stepping_stop();
        Visitor::wait();
        taken += came() >= freed;
        unit_outboxes_send();
        ASSERT_EQ(came(), freed + (sends ? 0 : 1)) << step;
        ASSERT_GE(unit_check_slabs(), 0) << step;
    }
    EXPECT_GT(Visitor::in_time, 50u / stepping_apart);
    EXPECT_GT(taken, 50u / stepping_apart);
}

TEST_NATIVE(VisitSteps, Outboxes) {
    for (bool asked : {false, true})
        for (unsigned freed : {1u, 2u, 3u, 32u})
            EXPECT_FINE(in_child([=] { outboxes_visited_at_each_step(freed, false, asked); }));
}

TEST_NATIVE(VisitSteps, OutboxesThatAreSent) {
    for (bool asked : {false, true})
        EXPECT_FINE(in_child([=] { outboxes_visited_at_each_step(10, true, asked); }));
}

TEST_NATIVE(VisitSteps, MediumBlocks) { visited_at_each_step(8192); }
TEST_NATIVE(VisitSteps, LongBlocks) { visited_at_each_step(200000); }
TEST_NATIVE(VisitSteps, LargeBlocks) { visited_at_each_step(700000); }

// A thread without a heap that frees what it is told to at one step of the caller's, and takes what is
// nobody's, and gives it back, at a later one.
class Taker {
  public:
    static inline unsigned steps, frees_at, takes_at;
    static inline unsigned held; // so often a record was, when it had taken what there was
    static inline std::vector<void*> blocks;
    static inline std::atomic<unsigned> asked, done;
    static inline std::atomic<bool> ends;

    static void start(unsigned frees, unsigned takes) {
        steps = 0;
        frees_at = frees;
        takes_at = takes;
        stepping_start([](int, siginfo_t*, void*) {
            steps++;
            if (steps == frees_at || steps == takes_at) ask();
            held += steps == takes_at && done == asked && unit_visitors() != 0;
        });
    }
    // It may have to wait for a lock that the caller has.
    static void ask() {
        constexpr auto patience = std::chrono::milliseconds(5);
        asked++;
        const auto until = std::chrono::steady_clock::now() + patience;
        while (done != asked && std::chrono::steady_clock::now() < until) sched_yield();
    }
    static void wait() {
        while (done != asked) sched_yield();
    }

    Taker()
        : thread([] {
              while (!ends) {
                  if (done == asked) {
                      usleep(20);
                      continue;
                  }
                  for (void* p : blocks) unit_free(p);
                  if (blocks.empty()) {
                      unit_attach();
                      unit_free(unit_alloc(1000));
                      unit_detach();
                      unit_collect();
                  }
                  blocks.clear();
                  done++;
              }
          }) {}
    ~Taker() {
        ends = true;
        thread.join();
    }

  private:
    std::thread thread;
};

// Who gives a slab behind the primary region to whoever wants it looks at its record once more, in case the
// last block came meanwhile: another thread may have had the slab by then, and the region with it.
TEST_NATIVE(VisitSteps, ARegionIsHeldWhileASlabIsGivenAway) {
    EXPECT_FINE(in_child([] {
        windows_are_endless(":reserve=4m:release=off");
        unit_attach();
        std::thread([] { // its record stays for the next ones
            unit_attach();
            unit_detach();
        })
            .join();
        bool zeroed;
        struct slice* s = span_alloc(1, 1, &zeroed);
        while (s->region == 0) s = span_alloc(1, 1, &zeroed);
        const unsigned row = s->region;
        span_free(s);
        ASSERT_EQ(regions[row].base, 0u);
        const size_class& k = size_classes[class_of(1000)];
        const unsigned enough = class_enough(&k);
        Taker taker;
        std::thread([&] { // without a heap, in which blocks would wait
            for (unsigned apart : {8u, 24u})
                for (unsigned step = 200; step <= 600; step += stepping_apart) {
                    std::vector<void*> all;
                    std::thread([&] {
                        unit_attach();
                        for (unsigned i = 0; i < k.capacity; i++) all.push_back(unit_alloc(1000));
                        unit_detach();
                    }).join();
                    ASSERT_EQ(unit_slice(all.front())->region, row);
                    ASSERT_EQ(unit_slice(all.front()), unit_slice(all.back()));
                    for (unsigned i = 1; i < enough; i++) unit_free(all[i]);
                    Taker::blocks.assign(all.begin() + enough, all.end());
                    Taker::start(step, step + apart);
                    unit_free(all[0]);
                    stepping_stop();
                    for (unsigned more = 0; more < 2; more++) { // there may have been fewer steps
                        Taker::wait();
                        Taker::ask();
                    }
                    Taker::wait();
                    ASSERT_EQ(regions[row].live, 0u) << step;
                    ASSERT_EQ(unit_visitors(), 0u) << step;
                }
        })
            .join();
        EXPECT_GT(Taker::held, 0u);
    }));
}

} // namespace
#endif
