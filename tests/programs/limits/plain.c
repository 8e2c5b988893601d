/* plain.c: a program that takes and gives back blocks of mixed sizes, and prints `done`.
 *
 * Who may call it: limits.py, which builds it in several ways: static, with sanitizers, for musl, setuid.
 * With the argument `overrun` it first writes behind a block. It knows nothing but ISO C.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

static void overrun(void) {
    volatile char* volatile block = malloc(10);
    block[10] = 1;
    free((void*)block);
}

/* A hundred blocks are held at a time; few enough in all for a malloc that frees nothing. */
static int work(void) {
    static unsigned char* held[100];
    unsigned state = 1;
    for (unsigned i = 0; i < 20000; i++) {
        state = state * 1103515245u + 12345u;
        const unsigned at = (state >> 8) % 100;
        const size_t size = 1 + ((state >> 24) % 100 != 0 ? (state >> 16) % 1000 : (state >> 12) % 200000);
        if (held[at] != NULL && *held[at] != at) return 1;
        free(held[at]);
        held[at] = malloc(size);
        if (held[at] == NULL) return 2;
        memset(held[at], (int)at, size);
    }
    return 0;
}

int main(int count, char** arguments) {
    if (count > 1 && strcmp(arguments[1], "overrun") == 0) overrun();
    if (count > 1 && strcmp(arguments[1], "linger") == 0)
        thrd_sleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    const int status = work();
    if (status == 0) puts("done");
    return status;
}
