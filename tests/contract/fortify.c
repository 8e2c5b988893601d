/* fortify.c: malloc_usable_size under _FORTIFY_SOURCE=3.
 *
 * Who may call it: tests/contract/run.py. A fortified memset knows what malloc was asked for and aborts
 * past it. Programs that use the whole usable size take one of two ways: a realloc to that size, or a
 * function that hands the same block back with a larger declared size. Both must work, and a program
 * that stays within its size must never abort.
 *
 * contract: cflags=-O2,-U_FORTIFY_SOURCE,-D_FORTIFY_SOURCE=3
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <signal.h>

#if !defined(__USE_FORTIFY_LEVEL) || __USE_FORTIFY_LEVEL < 3
#    error "this program is about _FORTIFY_SOURCE=3"
#endif

__attribute__((alloc_size(2), noinline, noipa)) static void* expand_to_usable(void* p, size_t n) {
    (void)n;
    return contract_opaque_pointer(p);
}

static void test_whole_usable_size(size_t n) {
    char* p = malloc(n);
    if (!EXPECT(p != NULL)) return;
    memset(p, 1, n);
    size_t usable = malloc_usable_size(p);
    EXPECT_GE(usable, n);
    p = expand_to_usable(p, usable);
    memset(p, 2, usable);
    EXPECT(usable == 0 || p[usable - 1] == 2);
    if (usable > 0) {
        p = realloc(p, usable);
        if (!EXPECT(p != NULL)) return;
        EXPECT_GE(malloc_usable_size(p), usable);
        memset(p, 3, usable);
        EXPECT(p[usable - 1] == 3 && p[0] == 3);
    }
    free(p);
    p = calloc(n, 2);
    memset(p, 4, n * 2);
    p = reallocarray(p, n + 1, 3);
    memset(p, 5, (n + 1) * 3);
    EXPECT(p[(n + 1) * 3 - 1] == 5);
    free(p);
}

/* Fortification is really on: one byte past the request aborts. */
static void test_fortified(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 2);
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        size_t n = contract_opaque(20);
        char* p = malloc(n);
        memset(p, 1, n + contract_opaque(1));
        contract_opaque_pointer(p);
        _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void) {
    contract_begin();
    for (size_t n = 1; n < 4u << 20; n = n < 1100 ? n + 1 : n + n / 3)
        test_whole_usable_size(contract_opaque(n));
    test_fortified();
    return contract_end();
}
