// arena_fork_test.cc: chunks of medium blocks at any instruction: their bits, and forks by handlers there.
// Called by ctest; each test starts the heap in a child of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include "arenas.h"
#include "forked.h"
#include "at_step.h"
#include <algorithm>

namespace {

constexpr unsigned held_most = 24;
struct {
    unsigned char* p;
    unsigned m;
} held[held_most]; // filled with their index + 1

#if defined(__x86_64__)
unsigned lost_most; // blocks that may be in use for nobody
unsigned filled;    // and that fill a bank

// All that was live is, with its contents; nothing is handed out twice; the arena is sound and all goes back.
bool child_is_sound() {
    bool good = unit_arena_check();
    uint64_t used = used_blocks() - filled;
    uint64_t live = 0;
    uint32_t home = 0;
    unsigned char* more[100];
    for (unsigned i = 0; i < 100; i++) {
        unsigned m = i * 7 % (i % 4 == 0 ? UNIT_MEDIUM_CLASSES : UNIT_MEDIUM_CLASSES / 2);
        more[i] = static_cast<unsigned char*>(unit_arena_alloc(&home, m, 1));
        if (more[i] == nullptr) return false;
        memset(more[i], 0xee, class_bytes(m));
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
           used_blocks() - filled == used - live;
}

// A handler between the instructions from start to stop. It forks after every `stride` of them, times
// stepping_apart; a child looks there and then, and ends, or, where it `goes_on`, returns from the handler
// and ends in end_child. With no stride, it looks at what the bits say of the blocks in a chunk.
class Stepper {
  public:
    static inline unsigned stride;
    static inline bool goes_on, is_child;
    static inline const void* in_chunk;
    static inline uint64_t blocks; // what the bits said last
    static inline unsigned changes;

    static void start() { stepping_start(step); }
    static void stop() { stepping_stop(); }
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
        if (steps % (stride * stepping_apart) != 0) return;
        Forker::steps = steps;
        if (!Forker::child_goes_on(goes_on ? nullptr : child_is_sound)) return;
        is_child = true;
        stepping_ends(context);
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

std::vector<void*> filler;
void fill_a_bank(uint32_t* home) {
    const size_t each = UNIT_CHUNK_BYTES / class_bytes(UNIT_MEDIUM_CLASSES - 1);
    for (; filled < UNIT_BANK_CHUNKS * each; filled++)
        filler.push_back(unit_arena_alloc(home, UNIT_MEDIUM_CLASSES - 1, 1));
    ASSERT_EQ(chunk_count(), unsigned{UNIT_BANK_CHUNKS}); // all of them full
}

// A chunk loses its last block while another one has none.
void a_chunk_goes() {
    for (unsigned i = 0; i < held_most; i++)
        if (held[i].p != nullptr) held_free(i, false);
    const unsigned before = chunk_count();
    ASSERT_GT(before, unsigned{UNIT_BANK_CHUNKS});
    filled -= 2;
    unit_arena_free(filler[0]);
    unit_arena_publish(); // else they wait
    Stepper::stride = 53;
    Stepper::start();
    unit_arena_free(filler[1]);
    unit_arena_publish();
    Stepper::stop();
    Stepper::end_child();
    EXPECT_LT(chunk_count(), before);
}

// `kept`: blocks that another thread keeps in the same chunk, and that the child may free. `further`: in
// another bank than the first.
void fork_at_each_step(bool goes_on, unsigned kept, bool further = false) {
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
        if (further) fill_a_bank(&home);
        held_alloc(0, random, &home, true); // makes the chunk, and the bank
        EXPECT_EQ(chunk_count(), further ? UNIT_BANK_CHUNKS + 1u : 1u);
        for (unsigned i = 1; i < held_most; i += 2) held_alloc(i, random, &home, false);
        Stepper::stride = 53;
        unsigned grown = 0;
        for (unsigned round = 0; round < 32 && Forker::bad == 0; round++) {
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
        if (further && Forker::bad == 0) a_chunk_goes();
        EXPECT_GT(Forker::forks, 100u / stepping_apart);
        EXPECT_EQ(Forker::bad, 0u);
        state = 2;
        keeper.join();
        EXPECT_TRUE(child_is_sound());
    }));
}

// The same where several are taken at once: those that come along may be in use for nobody.
void fork_where_some_come_along(bool goes_on) {
    EXPECT_FINE(in_child([=] {
        windows_are_endless();
        stay_on_one_processor();
        unit_attach();
        lost_most = 1 + UNIT_ARENA_MORE;
        uint32_t home = 0;
        Random random(5);
        for (unsigned i = 0; i < held_most; i += 2) held_alloc(i, random, &home, false);
        Stepper::goes_on = goes_on;
        unsigned came = 0;
        for (unsigned round = 0; round < 24 && Forker::bad == 0; round++) {
            void* all[1 + UNIT_ARENA_MORE];
            const unsigned m = static_cast<unsigned>(random.below(24));
            Stepper::stride = 7 + round % 4 * 12;
            Stepper::start();
            unsigned count = unit_arena_alloc_some(&home, m, 1 + round % UNIT_ARENA_MORE, all);
            Stepper::stop();
            came += count - 1;
            for (unsigned i = 0; i < count; i++) memset(all[i], 0xaa, class_bytes(m));
            Stepper::end_child();
            for (unsigned i = 0; i < count; i++) unit_arena_free(all[i]);
            ASSERT_TRUE(unit_arena_check());
        }
        EXPECT_GT(came, 60u);
        EXPECT_GT(Forker::forks, 100u / stepping_apart);
        EXPECT_EQ(Forker::bad, 0u);
        EXPECT_TRUE(child_is_sound());
    }));
}

// Absent elsewhere: an emulator's steps are not the program's, a sanitizer's are too many.
TEST_NATIVE(Arena, AForkAtAnyInstructionWhoseChildGoesOn) { fork_at_each_step(true, 0); }
TEST_NATIVE(Arena, AForkAtAnyInstructionWhoseChildAllocatesInTheHandler) { fork_at_each_step(false, 0); }
TEST_NATIVE(Arena, AForkAtAnyInstructionWhileOthersKeepBlocks) { fork_at_each_step(true, 3); }
TEST_NATIVE(Arena, AForkAtAnyInstructionInAFurtherBank) { fork_at_each_step(false, 0, true); }
TEST_NATIVE(Arena, AForkAtAnyInstructionInAFurtherBankWhoseChildGoesOn) { fork_at_each_step(true, 0, true); }
TEST_NATIVE(Arena, AForkWhereSomeComeAlongWhoseChildGoesOn) { fork_where_some_come_along(true); }
TEST_NATIVE(Arena, AForkWhereSomeComeAlongWhoseChildAllocatesInTheHandler) {
    fork_where_some_come_along(false);
}
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
                uint32_t own = t % std::min(os_cpu_count(), 2u); // there are as many arenas, or more
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
            bad +=
                forked([] {
                    EXPECT_TRUE(unit_arena_check());
                    for (unsigned n = 0; n < held_most; n++) {
                        Block b = {held[n].p, 0, class_bytes(held[n].m), static_cast<unsigned char>(n + 1)};
                        EXPECT_TRUE(block_intact(b, b.usable));
                        unit_arena_free(held[n].p);
                    }
                    uint32_t own = 0;
                    for (unsigned n = 0; n < 100; n++)
                        unit_arena_free(unit_arena_alloc(&own, n % UNIT_MEDIUM_CLASSES, 4096));
                    EXPECT_TRUE(unit_arena_check());
                }) != 0;
        }
        stop = true;
        for (std::thread& t : busy) t.join();
        EXPECT_EQ(bad, 0u);
        for (auto& h : held) unit_arena_free(h.p);
        expect_no_chunk_left();
    }));
}

} // namespace
