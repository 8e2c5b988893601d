/* atfork.c: malloc inside fork handlers, registered before and after the allocator's own.
 *
 * Who may call it: tests/contract/run.py. A function in the program's preinit array registers handlers
 * before any library's constructors have run; a constructor and main register more. Prepare handlers run
 * in reverse, so that the early ones run after the allocator's, when its locks are held; the early parent
 * and child handlers run before the allocator's. All of them allocate and free.
 *
 * contract: name=single timeout=60
 * contract: name=mt args=mt timeout=60
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>

enum { KINDS = 3, FORKS = 60 };

static void* held[KINDS];
static int prepared[KINDS];
static int ended_in_parent[KINDS];
static int ended_in_child[KINDS];
static int stop;

static void allocate_some(int kind) {
    for (size_t n = 1; n < 400000; n = n * 3 + 5) {
        char* p = malloc(n);
        if (!EXPECT(p != NULL)) return;
        p[0] = 1;
        p = realloc(p, n * 2);
        EXPECT(p != NULL && p[0] == 1);
        free(p);
    }
    free(held[kind]);
    held[kind] = malloc(100 + (size_t)kind);
}

#define HANDLERS(kind)                                                                                       \
    static void prepare_##kind(void) { prepared[kind]++, allocate_some(kind); }                              \
    static void parent_##kind(void) { ended_in_parent[kind]++, allocate_some(kind); }                        \
    static void child_##kind(void) { ended_in_child[kind]++, allocate_some(kind); }
HANDLERS(0)
HANDLERS(1)
HANDLERS(2)

static void register_early(void) { pthread_atfork(prepare_0, parent_0, child_0); }
__attribute__((section(".preinit_array"), used)) static void (*const at_preinit)(void) = register_early;

__attribute__((constructor(101))) static void register_in_constructor(void) {
    pthread_atfork(prepare_1, parent_1, child_1);
}

static void* churn(void* unused) {
    void* mine[64] = {0};
    uint64_t seed = 3;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        size_t i = contract_random(&seed) % 64;
        free(mine[i]);
        mine[i] = malloc(contract_random(&seed) % 70000);
    }
    for (int i = 0; i < 64; i++) free(mine[i]);
    return unused;
}

int main(int argc, char** argv) {
    contract_begin();
    pthread_t thread;
    int is_mt = argc > 1 && strcmp(argv[1], "mt") == 0;
    pthread_atfork(prepare_2, parent_2, child_2);
    if (is_mt) EXPECT_EQ(pthread_create(&thread, NULL, churn, NULL), 0);
    alarm(40);
    for (int i = 0; i < FORKS; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            for (int kind = 0; kind < KINDS; kind++) {
                EXPECT_EQ(ended_in_child[kind], 1);
                EXPECT_EQ(prepared[kind], i + 1);
                allocate_some(kind);
            }
            pid_t again = fork();
            if (again == 0) _exit(contract_failed());
            EXPECT_CHILD_OK(again);
            _exit(contract_failed());
        }
        EXPECT_CHILD_OK(pid);
    }
    for (int kind = 0; kind < KINDS; kind++) {
        EXPECT_EQ(prepared[kind], FORKS);
        EXPECT_EQ(ended_in_parent[kind], FORKS);
        EXPECT_EQ(ended_in_child[kind], 0);
        free(held[kind]);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    if (is_mt) pthread_join(thread, NULL);
    return contract_end();
}
