/* isolate.c: a process that confines or detaches itself finds the kernel's answers to be those it would get
 * with any other malloc: what the allocator keeps running must be out of the way.
 *
 * Who may call it: tests/contract/run.py. Free memory is left behind and time given, so that an allocator
 * with a thread of its own has it. Then `unshare` and `setns` compare the calls' results with those in a
 * child that has one thread for certain; `prctl` its results and errno; `sandbox`, `strict` and `inherited`
 * go on allocating under filters that kill whoever makes a thread or opens a file.
 *
 * contract: name=unshare args=unshare
 * contract: name=setns args=setns
 * contract: name=prctl args=prctl
 * contract: name=sandbox args=sandbox
 * contract: name=strict args=strict
 * contract: name=inherited args=inherited
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <dirent.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { BLOCKS = 4096, BLOCK_BYTES = 16 << 10 };

static int threads_now(void) {
    DIR* all = opendir("/proc/self/task");
    int count = -2;
    while (all != NULL && readdir(all) != NULL) count++;
    if (all != NULL) closedir(all);
    return count;
}

/* 64 MiB used and freed, and one block in sixteen kept. */
static void churn(void) {
    static void* blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        free(blocks[i]);
        blocks[i] = malloc(BLOCK_BYTES);
        memset(blocks[i], 1, BLOCK_BYTES);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (i % 16 == 0) continue;
        free(blocks[i]);
        blocks[i] = NULL;
    }
}

/* As an idle program has it: up to half a second, no longer than the allocator's thread needs to come. */
static void settle(void) {
    churn();
    for (int i = 0; i < 50 && threads_now() == 1; i++) usleep(10000);
}

/* What a call answers: its result and errno in one number. */
static long answer(long result) { return result == 0 ? 0 : errno; }

/* The same call in a process that has nothing but one thread: a raw fork's child, by a raw system call. */
static long answer_bare(long number, long a, long b) {
    int status = -1;
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) syscall(SYS_exit_group, answer(syscall(number, a, b)));
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

static void unshare_is_as_bare(int flags) {
    pid_t pid = fork();
    if (pid == 0) {
        long expected = answer_bare(SYS_unshare, flags, 0);
        settle();
        errno = 0;
        EXPECT_EQ(answer(unshare(flags)), expected);
        churn();
        _exit(contract_failed());
    }
    EXPECT_CHILD_OK(pid);
}

static void test_unshare(void) {
    const int flags[] = {CLONE_NEWUSER,
                         CLONE_THREAD,
                         CLONE_SIGHAND,
                         CLONE_VM,
                         CLONE_NEWNS,
                         CLONE_FILES | CLONE_FS,
                         CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID,
                         CLONE_NEWTIME,
                         0,
                         1 << 3};
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) unshare_is_as_bare(flags[i]);
    /* A pipe's last writer is gone when the process has closed it, whoever else had its descriptors. */
    int ends[2];
    char byte;
    settle();
    EXPECT_EQ(pipe2(ends, O_NONBLOCK), 0);
    EXPECT_EQ(unshare(CLONE_FILES), 0);
    close(ends[1]);
    EXPECT_EQ(read(ends[0], &byte, 1), 0);
}

static void test_setns(void) {
    static const struct {
        const char* path;
        int kind;
    } spaces[] = {{"/proc/self/ns/user", CLONE_NEWUSER},
                  {"/proc/self/ns/mnt", CLONE_NEWNS},
                  {"/proc/self/ns/mnt", 0},
                  {"/proc/self/ns/net", CLONE_NEWNET},
                  {"/proc/self/ns/time", CLONE_NEWTIME},
                  {"/proc/self/ns/net", CLONE_NEWNS},
                  {"/proc/self/status", 0}};
    for (unsigned i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int fd = open(spaces[i].path, O_RDONLY | O_CLOEXEC);
            long expected = answer_bare(SYS_setns, fd, spaces[i].kind);
            settle();
            errno = 0;
            EXPECT_EQ(answer(setns(fd, spaces[i].kind)), expected);
            churn();
            _exit(contract_failed());
        }
        EXPECT_CHILD_OK(pid);
    }
    errno = 0;
    EXPECT_EQ(setns(-1, 0), -1);
    EXPECT_EQ(errno, EBADF);
}

static void test_prctl(void) {
    char name[32] = "";
    errno = 0;
    EXPECT_EQ(prctl(PR_SET_NAME, "contract"), 0);
    EXPECT_EQ(prctl(PR_GET_NAME, name), 0);
    EXPECT(strcmp(name, "contract") == 0);
    EXPECT_EQ(errno, 0);
    EXPECT_EQ(prctl(-1, 0, 0, 0, 0), -1);
    EXPECT_EQ(errno, EINVAL);
    errno = 0;
    int signal_number = 0;
    EXPECT_EQ(prctl(PR_SET_PDEATHSIG, SIGUSR2), 0);
    EXPECT_EQ(prctl(PR_GET_PDEATHSIG, &signal_number), 0);
    EXPECT_EQ(signal_number, SIGUSR2);
    EXPECT_EQ(prctl(PR_SET_PDEATHSIG, 0), 0);
    EXPECT_EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 0);
    EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 1, 0, 0), -1); /* the fourth word arrives, too */
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    EXPECT_EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
    errno = 0;
    EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL),
              -1); /* how programs ask whether there are any */
    EXPECT_EQ(errno, EFAULT);
    churn();
}

/* Everything passes but what an idle allocator has no business to do then. By prctl, or by the raw call that
 * libseccomp makes after prctl(PR_SET_NO_NEW_PRIVS). */
static void forbid(int raw) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 440 /* process_madvise */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (raw)
        EXPECT_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), 0);
    else
        EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static void test_sandbox(void) {
    for (int way = 0; way < 4; way++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (way & 1) settle();
            forbid(way & 2);
            for (int round = 0; round < 6; round++) {
                churn();
                usleep(100000);
            }
            malloc_trim(0);
            _exit(contract_failed());
        }
        EXPECT_CHILD_OK(pid);
    }
}

/* Nothing but read, write and the end: memory that is there already must do, and no thread may be left that
 * would be killed. */
static void test_strict(void) {
    pid_t pid = fork();
    if (pid == 0) {
        settle();
        void* block = malloc(100);
        EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT), 0);
        free(block);
        block = malloc(100);
        syscall(SYS_exit, block == NULL);
    }
    EXPECT_CHILD_OK(pid);
}

/* A program started under a filter that it knows nothing of. */
static void test_inherited(void) {
    pid_t pid = fork();
    if (pid == 0) {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof code / sizeof *code, code};
        EXPECT_EQ(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        EXPECT_EQ(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), 0);
        execl("/proc/self/exe", "isolate", "idle", (char*)NULL);
        _exit(97);
    }
    EXPECT_CHILD_OK(pid);
}

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[argc - 1] : "";
    contract_begin();
    alarm(50);
    if (strcmp(what, "unshare") == 0) test_unshare();
    if (strcmp(what, "setns") == 0) test_setns();
    if (strcmp(what, "prctl") == 0) test_prctl();
    if (strcmp(what, "sandbox") == 0) test_sandbox();
    if (strcmp(what, "strict") == 0) test_strict();
    if (strcmp(what, "inherited") == 0) test_inherited();
    if (strcmp(what, "idle") == 0) {
        settle();
        EXPECT_EQ(threads_now(), 1);
    }
    return contract_end();
}
