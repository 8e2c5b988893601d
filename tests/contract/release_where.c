/* release_where.c: giving memory back where there may be no thread, or where the kernel keeps the pages: the
 * program works, does not spin, and memory goes as far as it can.
 *
 * Who may call it: tests/contract/run.py. glibc's malloc gives back too little to pass. `sandbox`: a filter
 * that kills whoever makes a thread, set by prctl or by the raw call, after the heap was used. `locked`:
 * mlockall. `nproc`: no process may be made. `user`: unshare(CLONE_NEWUSER), which a process with more than
 * one thread may not. `changes`: a new root directory without /proc, and no descriptors, before the program
 * has freed anything.
 *
 * contract: name=sandbox args=sandbox glibc=skip
 * contract: name=sandbox_raw args=sandbox_raw glibc=skip
 * contract: name=locked args=locked glibc=skip
 * contract: name=nproc args=nproc glibc=skip
 * contract: name=user args=user glibc=skip env=WEIR_RELEASE_WINDOW=500
 * contract: name=changes args=changes glibc=skip env=WEIR_RELEASE_DELAY=5000,WEIR_RELEASE_WINDOW=5000
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "release.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { SECOND = 50, MORE_KIB = 6 << 10, LOCKED_KIB = 64 << 10 };

/* What a program that is not quite idle does. */
static void work(void) {
    static void* blocks[256];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 256; i++) blocks[i] = malloc((size_t)(16 + i * 37 % 3000));
        for (int i = 0; i < 256; i++) free(blocks[i]);
    }
}

static void forbid_clone(int raw) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
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

/* A free phase before the filter, when there may be a thread, and two after it. */
static void test_sandbox(int raw) {
    struct release_shape* shape = release_shape_new(1);
    release_grow(shape, 64 << 20, 16, 6000);
    release_free(shape, 50);
    EXPECT(release_shrinks(&shape, 1, MORE_KIB, SECOND, NULL));
    release_grow(shape, 64 << 20, 16, 6000);
    forbid_clone(raw);
    for (int phase = 0; phase < 2; phase++) {
        release_free(shape, 50);
        EXPECT(release_shrinks(&shape, 1, MORE_KIB, 4 * SECOND, work));
        EXPECT(release_holds(shape));
        release_grow(shape, 48 << 20, 16, 60000);
    }
    EXPECT_EQ(release_tasks(), 1);
    release_end(shape);
}

static void test_locked(void) {
    struct release_shape* shape = release_shape_new(2);
    release_grow(shape, 16 << 20, 16, 6000);
    release_free(shape, 50);
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
        contract_say(1, "not tested: mlockall is not allowed here\n");
        EXPECT_EQ(errno == EPERM || errno == ENOMEM, 1);
        release_end(shape);
        return;
    }
    for (int round = 0; round < 3; round++) {
        release_grow(shape, 24 << 20, 16, 60000);
        release_free(shape, 10);
        work();
        EXPECT(release_holds(shape));
    }
    double cpu = release_cpu_seconds();
    double time = contract_seconds();
    for (int i = 0; i < 2 * SECOND; i++) release_nap();
    EXPECT(release_cpu_seconds() - cpu < (contract_seconds() - time) * 0.05);
    EXPECT_EQ(malloc_trim(0), 0);
    EXPECT(release_holds(shape));
    /* What could not go is not forgotten. */
    EXPECT_EQ(munlockall(), 0);
    release_table_trim(shape);
    EXPECT_EQ(malloc_trim(0), 1);
    /* What was made accessible ahead of need was made resident by the lock: up to an eighth. */
    EXPECT(release_shrinks(&shape, 1, MORE_KIB + LOCKED_KIB / 8, SECOND, work));
    release_end(shape);
}

static void test_nproc(void) {
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0};
        alarm(40);
        EXPECT_EQ(setrlimit(RLIMIT_NPROC, &none), 0);
        if (geteuid() == 0) EXPECT_EQ(setresuid(65534, 65534, 65534), 0);
        errno = 0;
        EXPECT_EQ(fork(), -1);
        struct release_shape* shape = release_shape_new(4);
        for (int phase = 0; phase < 2; phase++) {
            release_grow(shape, 64 << 20, 16, 6000);
            release_free(shape, 50);
            EXPECT(release_shrinks(&shape, 1, MORE_KIB, 4 * SECOND, work));
        }
        EXPECT_EQ(release_tasks(), 1);
        release_end(shape);
        _exit(contract_failed());
    }
    EXPECT_CHILD_OK(pid);
}

/* What the call says in a process that has one thread for certain: a raw fork's child. */
static int unshare_alone(void) {
    int status = -1;
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) syscall(SYS_exit_group, syscall(SYS_unshare, CLONE_NEWUSER) == 0 ? 0 : errno);
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

/* At each moment of a free phase's end: a thread has just been made, works, or is about to go. */
static void test_user(void) {
    int expected = unshare_alone();
    for (int naps = 0; naps < 2 * SECOND; naps = naps * 2 + 1) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(40);
            struct release_shape* shape = release_shape_new(8);
            release_grow(shape, 48 << 20, 16, 6000);
            release_free(shape, 50);
            for (int i = 0; i < naps; i++) release_nap();
            errno = 0;
            EXPECT_EQ(unshare(CLONE_NEWUSER) == 0 ? 0 : errno, expected);
            EXPECT(release_shrinks(&shape, 1, MORE_KIB, 4 * SECOND, work));
            EXPECT(release_holds(shape));
            _exit(contract_failed());
        }
        EXPECT_CHILD_OK(pid);
    }
}

static int tasks_in(DIR* tasks) {
    int count = -2;
    rewinddir(tasks);
    while (readdir(tasks) != NULL) count++;
    return count;
}

/* An empty directory becomes the root, by libc's call or by a raw one. 0, or the call's errno. */
static int root_change(int raw) {
    char path[] = "/tmp/contract-root-XXXXXX";
    if (!EXPECT(mkdtemp(path) != NULL)) return EEXIST;
    int old = open("/", O_PATH | O_DIRECTORY);
    errno = 0;
    int error = (raw ? (int)syscall(SYS_chroot, path) : chroot(path)) == 0 ? 0 : errno;
    EXPECT_EQ(unlinkat(old, path + 1, AT_REMOVEDIR), 0);
    close(old);
    return error;
}

enum change { BY_CHROOT, BY_UNSHARE, BY_SETNS, BY_SETRLIMIT, CHANGES };
static int change_do(enum change way) {
    struct rlimit none = {0, 0};
    int space;
    switch (way) {
    case BY_CHROOT:
        return root_change(0);
    case BY_UNSHARE:
        return unshare(CLONE_NEWNS) == 0 ? root_change(1) : errno;
    case BY_SETNS:
        space = open("/proc/self/ns/mnt", O_RDONLY);
        return setns(space, CLONE_NEWNS) == 0 ? root_change(1) : errno;
    default:
        return setrlimit(RLIMIT_NOFILE, &none) == 0 ? 0 : errno;
    }
}

/* What an allocator has to know of the process before it may have a thread is known when nothing can be read
 * any more. */
static void change_bears_thread(enum change way) {
    DIR* tasks = opendir("/proc/self/task");
    int expected = contract_status_kib("Seccomp:") == 0 ? 2 : 1;
    EXPECT_EQ(tasks_in(tasks), 1);
    int error = change_do(way);
    if (error != 0) {
        contract_say(1, "not tested: change %d is not allowed here\n", (int)way);
        EXPECT_EQ(error, EPERM);
        return;
    }
    EXPECT_EQ(open("/proc/self/status", O_RDONLY), -1);
    struct release_shape* shape = release_shape_new(3);
    release_grow(shape, 4 << 20, 16, 6000);
    release_free(shape, 50);
    int most = 0;
    for (int ms = 0; ms < 2000 && most < 2; ms++) {
        usleep(1000);
        most = tasks_in(tasks);
    }
    EXPECT_EQ(most, expected);
    release_end(shape);
}

static void test_changes(void) {
    for (enum change way = BY_CHROOT; way < CHANGES; way = (enum change)(way + 1)) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(40);
            change_bears_thread(way);
            _exit(contract_failed());
        }
        EXPECT_CHILD_OK(pid);
    }
}

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[argc - 1] : "";
    contract_begin();
    alarm(55);
    if (strcmp(what, "sandbox") == 0) test_sandbox(0);
    if (strcmp(what, "sandbox_raw") == 0) test_sandbox(1);
    if (strcmp(what, "locked") == 0) test_locked();
    if (strcmp(what, "nproc") == 0) test_nproc();
    if (strcmp(what, "user") == 0) test_user();
    if (strcmp(what, "changes") == 0) test_changes();
    return contract_end();
}
