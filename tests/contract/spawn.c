/* spawn.c: the other ways to a new process: vfork, _Fork, posix_spawn, system, popen.
 *
 * Who may call it: tests/contract/run.py; it starts itself with `child` as its argument. Threads allocate
 * all the while. The child of vfork shares the parent's memory; the child of _Fork runs no handlers and
 * may only call what a signal handler may, which is what it does here.
 *
 * contract: timeout=90
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>
#include <spawn.h>

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

int main(int argc, char** argv) {
    if (argc > 1 && strcmp(argv[1], "child") == 0) return child_main();
    contract_begin();
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
