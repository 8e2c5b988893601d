/* fiber_handler.cpp: a new_handler that switches away and comes back on another thread.
 *
 * Who may call it: tests/contract/run.py. operator new fails under a limit of address space; the handler
 * makes room and switches; another thread resumes the fiber inside the handler. What operator new does next
 * must be that thread's, and the heaps of both must be sound afterwards.
 *
 * contract: as_mib=1000 timeout=60
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

#include <new>
#include <pthread.h>
#include <semaphore.h>
#include <ucontext.h>

namespace {

constexpr size_t kReserve = size_t{400} << 20;
constexpr size_t kRequest = size_t{700} << 20;
constexpr int kRounds = 20;
constexpr size_t kStack = 256 * 1024;

ucontext_t fiber, resumer;
void* reserve;
int handled;
bool ended;
int current; /* which of the two threads runs the fiber */
int handler_thread;
sem_t turns[2];

void handler() {
    handled++;
    if (reserve == nullptr) {
        std::set_new_handler(nullptr);
        return;
    }
    free(reserve);
    reserve = nullptr;
    handler_thread = current;
    swapcontext(&fiber, &resumer);
}

/* Small blocks of many classes, so that a heap used by two threads at once would show. */
void churn() {
    static void* blocks[2000];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 2000; i++) {
            blocks[i] = ::operator new(16 + i % 700);
            memset(blocks[i], static_cast<int>(i), 16);
        }
        bool good = true;
        for (size_t i = 0; i < 2000; i++) {
            good &= *static_cast<unsigned char*>(blocks[i]) == static_cast<unsigned char>(i);
            ::operator delete(blocks[i]);
        }
        EXPECT(good);
    }
}

void body() {
    for (int round = 0; round < kRounds; round++) {
        reserve = malloc(kReserve);
        EXPECT(reserve != nullptr);
        std::set_new_handler(handler);
        int before = handled;
        churn();
        void* p = ::operator new(kRequest, std::nothrow);
        EXPECT_EQ(handled, before + 1);
        EXPECT(p != nullptr);
        EXPECT_EQ(current, 1 - handler_thread);
        churn();
        ::operator delete(p);
    }
    ended = true;
    setcontext(&resumer);
}

/* The two threads resume the fiber in turn; both live on. */
void* resume_in_turn(void* number) {
    int self = static_cast<int>(reinterpret_cast<uintptr_t>(number));
    for (;;) {
        sem_wait(&turns[self]);
        if (!ended) {
            current = self;
            swapcontext(&resumer, &fiber);
        }
        sem_post(&turns[1 - self]);
        if (ended) return nullptr;
    }
}

} // namespace

int main() {
    contract_begin();
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = malloc(kStack);
    fiber.uc_stack.ss_size = kStack;
    fiber.uc_link = nullptr;
    makecontext(&fiber, body, 0);
    sem_init(&turns[0], 0, 1);
    sem_init(&turns[1], 0, 0);
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        if (pthread_create(&threads[i], nullptr, resume_in_turn, reinterpret_cast<void*>(i)) != 0) return 1;
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    EXPECT_EQ(handled, kRounds);
    free(fiber.uc_stack.ss_sp);
    return contract_end();
}
