/* sets.c: nanoseconds per pair of malloc and free over a set of blocks, and KiB resident: one block at random
 * is freed and another one taken in its place; or all are taken and then freed in another order.
 *
 * Anybody runs it, with an allocator preloaded or not: cc -O2 -fno-builtin bench/sets.c -o sets, then
 * sets LOW HIGH COUNT PAIRS [order], sizes from LOW to HIGH bytes. It is the measurement behind the sets of
 * docs/adr/0015 and 0020 and knows no allocator. Compare runs that alternate on one machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t state = 88172645463325252u;

/* Below `bound`; Marsaglia's xorshift, "Xorshift RNGs", Journal of Statistical Software 8, 2003. */
static size_t choice(size_t bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % bound;
}

static size_t low, high;

/* Both ends are written to, as programs do. */
static char* block_take(void) {
    size_t size = low + choice(high - low + 1);
    char* p = malloc(size);
    if (p == NULL) abort();
    p[0] = p[size - 1] = 1;
    return p;
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static long resident_kib(void) {
    long pages = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1) abort();
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void replaced(char** set, size_t count, size_t pairs) {
    for (; pairs != 0; pairs--) {
        char** one = &set[choice(count)];
        free(*one);
        *one = block_take();
    }
}

static void in_order(char** set, const size_t* order, size_t count, size_t pairs) {
    for (; pairs >= count; pairs -= count) {
        for (size_t i = 0; i < count; i++) free(set[order[i]]);
        for (size_t i = 0; i < count; i++) set[i] = block_take();
    }
}

int main(int argc, char** argv) {
    if (argc < 5 || (argc > 5 && strcmp(argv[5], "order") != 0)) {
        fprintf(stderr, "sets LOW HIGH COUNT PAIRS [order]\n");
        return 2;
    }
    low = strtoul(argv[1], NULL, 10), high = strtoul(argv[2], NULL, 10);
    size_t count = strtoul(argv[3], NULL, 10), pairs = strtoul(argv[4], NULL, 10);
    if (low == 0 || high < low || count == 0 || pairs < count) {
        fprintf(stderr, "sets: 1 <= LOW <= HIGH, 1 <= COUNT <= PAIRS\n");
        return 2;
    }
    char** set = malloc(count * sizeof *set);
    size_t* order = malloc(count * sizeof *order);
    if (set == NULL || order == NULL) abort();
    for (size_t i = 0; i < count; i++) {
        set[i] = block_take();
        size_t j = choice(i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    double start = now_ns();
    if (argc > 5)
        in_order(set, order, count, pairs);
    else
        replaced(set, count, pairs);
    double ns = (now_ns() - start) / (double)(pairs - (argc > 5 ? pairs % count : 0));
    printf("%.1f ns a pair, %ld KiB resident\n", ns, resident_kib());
    return 0;
}
