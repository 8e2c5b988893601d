/* spawn.c: the other ways to a new process: vfork, _Fork, posix_spawn, system, popen.
 *
 * Who may call it: tests/contract/run.py; it starts itself with `child` as its argument. Threads allocate
 * all the while. The child of vfork shares the parent's memory; the child of _Fork runs no handlers and
 * may only call what a signal handler may, which is what it does here.
 *
 * With `helper`, memory is given back to the kernel at every moment, by a helper thread where the allocator
 * has one, which no child has.
 *
 * contract: timeout=90
 * contract: name=helper args=helper timeout=90
 * env=WEIR_OPTIONS=release_delay=1:release_window=1:release_delay_max=1
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/syscall.h>

enum { ROUNDS = 30 };

extern char** environ;
static int stop;

static void* churn(void* number) {
    void* mine[64] = {0};
    uint64_t seed = 3 + (uintptr_t)number;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        size_t i = contract_random(&seed) % 64;
        free(mine[i]);
        mine[i] = malloc(contract_random(&seed) % 20000 + 1);
        if (mine[i] == NULL || malloc_usable_size(mine[i]) == 0) EXPECT(!"a block");
    }
    for (int i = 0; i < 64; i++) free(mine[i]);
    return NULL;
}

static int child_main(void) {
    for (size_t n = 1; n < 1 << 22; n *= 2) {
        void* p = calloc(1, n);
        if (p == NULL || !contract_is_zero(p, n)) return 1;
        free(p);
    }
    return 7;
}

/* The child of _Fork or of the system call. */
static pid_t fork_raw(int by_call) {
    return by_call ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : _Fork();
}

/* Blocks whose memory goes back all the time while children are made that use all kinds of memory. */
static void with_helper(void) {
    enum { BLOCKS = 10000, CHILDREN = 300 };
    static void* blocks[BLOCKS];
    uint64_t seed = 5;
    for (int round = 0; round < CHILDREN; round++) {
        for (int i = 0; i < BLOCKS; i++)
            if (blocks[i] == NULL) blocks[i] = malloc(600 + (size_t)i % 800);
        for (int i = 0; i < BLOCKS; i++) {
            if (i % 16 == 0 && round % 7 != 0) continue;
            free(blocks[i]);
            blocks[i] = NULL;
        }
        usleep((unsigned)(contract_random(&seed) % 2000));
        pid_t pid = fork_raw(round % 2);
        if (pid == 0) {
            alarm(20);
            void* large[16];
            for (size_t i = 0; i < 16; i++) memset(large[i] = malloc(70000 + i * 3000), 1, 70000);
            for (int i = 0; i < 16; i++) free(large[i]);
            for (size_t i = 0; i < 500; i++) free(malloc(i * 80));
            for (int i = 0; i < BLOCKS; i += 100) free(blocks[i]);
            _exit(contract_failed());
        }
        if (!EXPECT_CHILD_OK(pid)) return;
    }
}

int main(int argc, char** argv) {
    if (argc > 1 && strcmp(argv[1], "child") == 0) return child_main();
    contract_begin();
    if (argc > 1) {
        with_helper();
        return contract_end();
    }
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) EXPECT_EQ(pthread_create(&threads[i], NULL, churn, (void*)i), 0);

    char* child_argv[] = {argv[0], "child", NULL};
    for (int i = 0; i < ROUNDS; i++) {
        int status = -1;
        pid_t pid = vfork();
        if (pid == 0) {
            execv(argv[0], child_argv);
            _exit(1);
        }
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 7 << 8);

        pid = _Fork();
        if (pid == 0) {
            execv(argv[0], child_argv);
            _exit(1);
        }
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 7 << 8);

        posix_spawn_file_actions_t actions;
        EXPECT_EQ(posix_spawn_file_actions_init(&actions), 0);
        EXPECT_EQ(posix_spawn_file_actions_addopen(&actions, 9, "/dev/null", O_RDONLY, 0), 0);
        EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, NULL, child_argv, environ), 0);
        posix_spawn_file_actions_destroy(&actions);
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 7 << 8);

        char* p = malloc(1000);
        contract_fill(p, 1000, 3);
        EXPECT_EQ(system("exit 5"), 5 << 8);
        EXPECT(contract_holds(p, 1000, 3));
        free(p);
    }
    FILE* pipe = popen("echo hello from popen", "r");
    char line[100] = "";
    EXPECT(pipe != NULL && fgets(line, sizeof line, pipe) != NULL);
    EXPECT(strcmp(line, "hello from popen\n") == 0);
    EXPECT_EQ(pclose(pipe), 0);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);

    /* One thread alone: the child of _Fork may then allocate, as nothing was held at the fork. */
    for (int i = 0; i < ROUNDS; i++) {
        pid_t pid = _Fork();
        if (pid == 0) {
            alarm(20);
            void* p = malloc(100000);
            EXPECT(p != NULL);
            free(p);
            _exit(child_main() != 7 || contract_failed());
        }
        EXPECT_CHILD_OK(pid);
    }
    return contract_end();
}
