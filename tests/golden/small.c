/* small.c: a plain small program: some blocks of every kind that programs have, and no more than one thread.
 *
 * check/small.py runs it, plainly and under an instruction counter. What it prints at its end is the
 * process's own /proc/self/smaps, read without an allocation.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 64 };
static void* volatile block[BLOCKS];

static void some(size_t size) {
    for (unsigned i = 0; i < BLOCKS; i++) {
        block[i] = malloc(size);
        if (block[i] == NULL) abort();
        memset(block[i], 1, 1);
    }
    for (unsigned i = 0; i < BLOCKS; i++) free(block[i]);
}

int main(void) {
    for (size_t size = 16; size <= 256; size += 48) some(size);
    char* text = calloc(1, 100);
    for (size_t size = 200; text != NULL && size <= 1000; size += 100) text = realloc(text, size);
    free(text);
    for (size_t size = 2048; size <= 65536; size *= 8) {
        block[0] = malloc(size);
        free(block[0]);
    }
    block[1] = malloc(1 << 20); /* kept: memory that is to go back is work for a thread */
    static char buffer[4096];
    int smaps = open("/proc/self/smaps", O_RDONLY);
    ssize_t got;
    while ((got = read(smaps, buffer, sizeof buffer)) > 0)
        if (write(STDOUT_FILENO, buffer, (size_t)got) != got) return 1;
    return 0;
}
