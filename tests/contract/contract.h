/* contract.h: the checks of the contract programs: EXPECT and friends, counted across forks.
 *
 * Who may include it: the programs of tests/contract, one translation unit each. A program calls
 * `contract_begin()` first in main (or in its first constructor) and returns `contract_end()`, which
 * prints the tally. A program that checked nothing fails. Counters live in a shared mapping, so the
 * checks of children of fork count too. Nothing here allocates from the heap: the heap is on trial.
 * It deliberately knows no allocator by name, but for `contract_is_weir()`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef CONTRACT_H
#define CONTRACT_H

#ifndef _GNU_SOURCE
#    define _GNU_SOURCE 1
#endif

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CONTRACT_UNUSED __attribute__((unused))
#define CONTRACT_SHOWN_MAX 2 /* failures of one line that are printed in full; the rest is counted */
#define CONTRACT_LINES 1024  /* lines that are told apart */

/* Sync: the counters are atomic, relaxed: only the sum at the end matters. */
struct contract_tally {
    unsigned long checks;
    unsigned long failures;
    unsigned shown[CONTRACT_LINES];
};

static struct contract_tally* contract_tally_page;

/* Formats into a stack buffer and writes it at once: no stdio buffer, which would come from the heap. */
__attribute__((format(printf, 2, 3))) CONTRACT_UNUSED static void contract_say(int fd, const char* format,
                                                                               ...) {
    char line[1024];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (n > (int)sizeof line - 1) n = (int)sizeof line - 1;
    if (n > 0 && write(fd, line, (size_t)n) < 0) _exit(99);
}

CONTRACT_UNUSED static struct contract_tally* contract_tally_get(void) {
    if (contract_tally_page == NULL) {
        void* page = mmap(NULL, sizeof *contract_tally_page, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) {
            contract_say(2, "contract: no page for the tally\n");
            _exit(98);
        }
        contract_tally_page = (struct contract_tally*)page;
    }
    return contract_tally_page;
}

/* One check; true when it held. Keeps errno, so that a check of errno may follow. */
CONTRACT_UNUSED static int contract_check(int held, const char* file, int line, const char* what,
                                          int shows_values, long long left, long long right) {
    int saved_errno = errno;
    struct contract_tally* tally = contract_tally_get();
    __atomic_fetch_add(&tally->checks, 1, __ATOMIC_RELAXED);
    if (!held) __atomic_fetch_add(&tally->failures, 1, __ATOMIC_RELAXED);
    if (!held &&
        __atomic_fetch_add(&tally->shown[line % CONTRACT_LINES], 1, __ATOMIC_RELAXED) < CONTRACT_SHOWN_MAX) {
        if (shows_values)
            contract_say(1, "%s:%d: expected %s: %lld (0x%llx) and %lld (0x%llx)\n", file, line, what, left,
                         (unsigned long long)left, right, (unsigned long long)right);
        else
            contract_say(1, "%s:%d: expected %s (errno %d)\n", file, line, what, saved_errno);
    }
    errno = saved_errno;
    return held;
}

#define EXPECT(cond) contract_check((cond) ? 1 : 0, __FILE__, __LINE__, #cond, 0, 0, 0)
/* Compares as signed 64-bit numbers; pointers go through uintptr_t. */
#define EXPECT_EQ(a, b) contract_compare_eq((long long)(a), (long long)(b), __FILE__, __LINE__, #a " == " #b)
#define EXPECT_NE(a, b) contract_compare_ne((long long)(a), (long long)(b), __FILE__, __LINE__, #a " != " #b)
#define EXPECT_LE(a, b) contract_compare_le((long long)(a), (long long)(b), __FILE__, __LINE__, #a " <= " #b)
#define EXPECT_GE(a, b) contract_compare_ge((long long)(a), (long long)(b), __FILE__, __LINE__, #a " >= " #b)

#define CONTRACT_COMPARE(name, op)                                                                           \
    CONTRACT_UNUSED static int contract_compare_##name(long long a, long long b, const char* file, int line, \
                                                       const char* what) {                                   \
        return contract_check(a op b, file, line, what, 1, a, b);                                            \
    }
CONTRACT_COMPARE(eq, ==)
CONTRACT_COMPARE(ne, !=)
CONTRACT_COMPARE(le, <=)
CONTRACT_COMPARE(ge, >=)

/* True when the allocator on trial is weir. */
#ifdef CONTRACT_STATIC
CONTRACT_UNUSED static int contract_is_weir(void) { return 1; }
#else
CONTRACT_UNUSED static int contract_is_weir(void) { return dlsym(RTLD_DEFAULT, "weir_version") != NULL; }
#endif

/* True when `symbol` is defined by the library that CONTRACT_LIB names. */
CONTRACT_UNUSED static int contract_is_from_lib(const void* symbol) {
    const char* lib = getenv("CONTRACT_LIB");
    Dl_info info;
    char wanted[4096];
    char found[4096];
    return lib != NULL && symbol != NULL && dladdr(symbol, &info) != 0 && info.dli_fname != NULL &&
           realpath(lib, wanted) != NULL && realpath(info.dli_fname, found) != NULL &&
           strcmp(wanted, found) == 0;
}

/* Where the run is one under a library, checks that malloc and free are the library's: a run of glibc's
 * malloc must not pass for one of the library's. */
CONTRACT_UNUSED static void contract_begin(void) {
    contract_tally_get();
    if (getenv("CONTRACT_LIB") != NULL) {
        EXPECT(contract_is_from_lib(dlsym(RTLD_DEFAULT, "malloc")));
        EXPECT(contract_is_from_lib(dlsym(RTLD_DEFAULT, "free")));
    }
    /* The two above prove nothing about the allocator's behaviour: they do not count. */
    __atomic_store_n(&contract_tally_page->checks, 0, __ATOMIC_RELAXED);
}

CONTRACT_UNUSED static int contract_failed(void) {
    return __atomic_load_n(&contract_tally_get()->failures, __ATOMIC_RELAXED) != 0;
}

/* Prints the tally; the value for main to return or to hand to _exit. */
CONTRACT_UNUSED static int contract_end(void) {
    unsigned long checks = __atomic_load_n(&contract_tally_get()->checks, __ATOMIC_RELAXED);
    unsigned long failures = __atomic_load_n(&contract_tally_get()->failures, __ATOMIC_RELAXED);
    contract_say(1, "contract: %lu checks, %lu failures\n", checks, failures);
    return failures != 0 || checks == 0;
}

/* Waits for a child and checks that it ended by exit(0). */
#define EXPECT_CHILD_OK(pid) contract_child_ok((pid), __FILE__, __LINE__)
CONTRACT_UNUSED static int contract_child_ok(pid_t pid, const char* file, int line) {
    int status = -1;
    pid_t got;
    if (!contract_check(pid > 0, file, line, "a child", 1, pid, 1)) return 0;
    do got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    if (WIFSIGNALED(status))
        contract_say(1, "%s:%d: child ended by signal %d%s\n", file, line, WTERMSIG(status),
                     WTERMSIG(status) == SIGALRM ? " (its alarm: a deadlock)" : "");
    return contract_check(got == pid && status == 0, file, line, "child's wait status 0", 1, status, 0);
}

/* A field of /proc/self/status in KiB ("VmRSS:", "VmHWM:", "VmSize:"), or -1. */
CONTRACT_UNUSED static long contract_status_kib(const char* field) {
    char text[8192];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return -1;
    text[n] = '\0';
    const char* at = strstr(text, field);
    return at == NULL ? -1 : strtol(at + strlen(field), NULL, 10);
}

CONTRACT_UNUSED static double contract_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* xorshift64*: a seeded stream of numbers, the same in every run. */
CONTRACT_UNUSED static uint64_t contract_random(uint64_t* state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

/* Fills with a pattern that depends on the seed and the position; `contract_holds` tells whether all of
 * it is still there. */
CONTRACT_UNUSED static void contract_fill(void* p, size_t bytes, unsigned seed) {
    unsigned char* at = (unsigned char*)p;
    for (size_t i = 0; i < bytes; i++) at[i] = (unsigned char)(seed + i * 7u + (i >> 8));
}

CONTRACT_UNUSED static int contract_holds(const void* p, size_t bytes, unsigned seed) {
    const unsigned char* at = (const unsigned char*)p;
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (unsigned char)(seed + i * 7u + (i >> 8))) return 0;
    return 1;
}

CONTRACT_UNUSED static int contract_is_zero(const void* p, size_t bytes) {
    const unsigned char* at = (const unsigned char*)p;
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != 0) return 0;
    return 1;
}

/* Hides a value from the optimiser: sizes that no program may ask for, and blocks it may not elide. */
CONTRACT_UNUSED static size_t contract_opaque(size_t value) {
    __asm__ volatile("" : "+r"(value));
    return value;
}

CONTRACT_UNUSED static void* contract_opaque_pointer(void* value) {
    __asm__ volatile("" : "+r"(value) : : "memory");
    return value;
}

#endif
