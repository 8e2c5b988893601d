/* cases.c: what programs for glibc do that a preloaded malloc cannot follow, or has to bear.
 *
 * Who may call it: limits.py, as `cases NAME ARGUMENT...`; the table at the end has the names. Each prints
 * what it found and ends with status 0, unless its last line says otherwise.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <mcheck.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void* volatile sink; /* keeps compilers from leaving calls out */

typedef void* take_fn(size_t size);
typedef void give_fn(void* block);

static int fail(const char* what) {
    printf("%s: %s\n", what, dlerror());
    return 4;
}

/* Enough blocks to need new memory from the kernel, and to give some back. */
static int work(void) {
    static char* held[2000];
    for (size_t i = 0; i < 100000; i++) {
        const size_t at = i * 7919 % 2000;
        free(held[at]);
        held[at] = malloc(i % 1000 == 0 ? 300000 : i % 3000);
        if (held[at] == NULL) return 2;
        if (i % 3000 != 0) held[at][0] = 1;
    }
    return write(1, "done\n", 5) == 5 ? 0 : 3;
}

/* core: ends by SIGABRT, with a core file where that is allowed. */
static int case_core(char** arguments) {
    (void)arguments;
    sink = memset(malloc(1 << 20), 1, 1 << 20);
    abort();
}

/* Refuses for good what the filter says. */
static int filtered(struct sock_filter* code, size_t count) {
    const struct sock_fprog program = {(unsigned short)count, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

#define ALLOW(call)                                                                                          \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* seccomp kill|refuse [forbidden]: a filter that lets libc's malloc work, and little more. The first call of
 * malloc comes before the filter that kills, and after the one that refuses. */
static int case_seccomp(char** arguments) {
    const int kills = strcmp(arguments[0], "kill") == 0;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(brk),
        ALLOW(mmap),
        ALLOW(munmap),
        ALLOW(mremap),
        ALLOW(mprotect),
        ALLOW(madvise),
        ALLOW(getrandom),
        ALLOW(futex),
        ALLOW(write),
        ALLOW(exit_group),
        BPF_STMT(BPF_RET | BPF_K, kills ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM),
    };
    if (kills) sink = malloc(10);
    if (!filtered(code, sizeof code / sizeof *code)) return 5;
    if (arguments[1] != NULL && getppid() == -1) return 6;
    return work();
}

/* plugin LIBRARY deep|shallow [cross]: blocks of a library that was opened, given back by itself or by us. */
static int case_plugin(char** arguments) {
    void* library = dlopen(arguments[0], RTLD_NOW | (strcmp(arguments[1], "deep") == 0 ? RTLD_DEEPBIND : 0));
    if (library == NULL) return fail("dlopen");
    take_fn* take = (take_fn*)dlsym(library, "plugin_take");
    give_fn* give = (give_fn*)dlsym(library, "plugin_give");
    if (arguments[2] != NULL)
        free(take(50));
    else
        give(take(50));
    return work();
}

static int other_malloc(void* library, int mixed) {
    take_fn* take = (take_fn*)dlsym(library, "malloc");
    give_fn* give = (give_fn*)dlsym(library, "free");
    puts(take == malloc ? "the same malloc" : "another malloc");
    give(memset(take(100), 1, 100));
    if (mixed) give(malloc(100));
    return work();
}

/* What another thread was given, or writes, shows in blocks that this one has filled. */
static void* churn(void* letter) {
    enum { blocks = 50, bytes = 64, turns = 50000 };
    static _Thread_local char* held[blocks];
    for (size_t i = 0; i < turns; i++) {
        char** at = &held[i * 7919 % blocks];
        for (size_t k = 0; *at != NULL && k < bytes; k++)
            if ((*at)[k] != *(char*)letter) return "a block is another thread's, too\n";
        free(*at);
        if ((*at = malloc(bytes)) == NULL) return "no memory\n";
        memset(*at, *(char*)letter, bytes);
    }
    return NULL;
}

/* unnamed: threads of which none gets to know its id, from the first call of malloc on. */
static int case_unnamed(char** arguments) {
    enum { threads = 8, rounds = 4 };
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_gettid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    (void)arguments;
    if (!filtered(code, sizeof code / sizeof *code)) return 5;
    static char letters[threads] = "abcdefgh";
    for (unsigned round = 0; round < rounds; round++) {
        pthread_t all[threads];
        for (unsigned i = 0; i < threads; i++)
            if (pthread_create(&all[i], NULL, churn, &letters[i]) != 0) return 6;
        for (unsigned i = 0; i < threads; i++) {
            void* what = NULL;
            if (pthread_join(all[i], &what) != 0) return 7;
            if (what != NULL) return printf("%s", (const char*)what) < 0 ? 3 : 2;
        }
    }
    return work();
}

/* dlopen LIBRARY [mixed]: a malloc opened by a running program. */
static int case_dlopen(char** arguments) {
    void* library = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL);
    return library == NULL ? fail("dlopen") : other_malloc(library, arguments[1] != NULL);
}

/* dlmopen: a libc of its own in a name space of its own. */
static int case_dlmopen(char** arguments) {
    (void)arguments;
    void* library = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    return library == NULL ? fail("dlmopen") : other_malloc(library, 0);
}

/* debugging: glibc's mcheck and mtrace; $MALLOC_TRACE names mtrace's file. */
static int case_debugging(char** arguments) {
    (void)arguments;
    printf("mcheck %d\n", mcheck(NULL));
    mtrace();
    const int status = work();
    muntrace();
    printf("trace %s\n", access(getenv("MALLOC_TRACE"), F_OK) == 0 ? "written" : "none");
    return status;
}

/* jemalloc [mixed]: a program linked with jemalloc that uses calls that only jemalloc has. */
static int case_jemalloc(char** arguments) {
    void* (*take)(size_t, int) = (void* (*)(size_t, int))dlsym(RTLD_DEFAULT, "mallocx");
    void (*give)(void*, int) = (void (*)(void*, int))dlsym(RTLD_DEFAULT, "dallocx");
    int (*control)(const char*, void*, size_t*, void*, size_t) =
        (int (*)(const char*, void*, size_t*, void*, size_t))dlsym(RTLD_DEFAULT, "mallctl");
    if (take == NULL || give == NULL || control == NULL) return fail("dlsym");
    size_t allocated = 0;
    size_t length = sizeof allocated;
    sink = malloc(8 << 20);
    if (control("stats.allocated", &allocated, &length, NULL, 0) != 0) return 5;
    printf("mallctl %s malloc\n", allocated > 8 << 20 ? "counts" : "does not count");
    give(memset(take(100, 0), 1, 100), 0);
    if (arguments[0] != NULL) free(take(100, 0));
    return work();
}

static const struct {
    const char* name;
    int arguments_min;
    int (*run)(char** arguments);
} CASES[] = {
    {"core", 0, case_core},         {"seccomp", 1, case_seccomp}, {"plugin", 2, case_plugin},
    {"dlopen", 1, case_dlopen},     {"dlmopen", 0, case_dlmopen}, {"debugging", 0, case_debugging},
    {"jemalloc", 0, case_jemalloc}, {"unnamed", 0, case_unnamed},
};

int main(int count, char** arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    for (size_t i = 0; count > 1 && i < sizeof CASES / sizeof *CASES; i++)
        if (strcmp(arguments[1], CASES[i].name) == 0 && count - 2 >= CASES[i].arguments_min)
            return CASES[i].run(arguments + 2);
    return 9;
}
