/* mappings.c: the number of mappings stays bounded under a storm of large reallocs.
 *
 * Who may call it: tests/contract/run.py. A kernel allows a process 65,530 mappings; programs with large
 * heaps have died of running out of them while memory was plentiful.
 *
 * contract: timeout=120
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

enum { SLOTS = 400, STEPS = 10000, MAPPINGS_MAX = 2000 };

static char* slots[SLOTS];
static size_t sizes[SLOTS];

static int mappings(void) {
    int count = 0;
    char text[4096];
    int fd = open("/proc/self/maps", O_RDONLY);
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < n; i++) count += text[i] == '\n';
    close(fd);
    return count;
}

int main(void) {
    contract_begin();
    uint64_t seed = 99;
    int largest = 0;
    for (int step = 0; step < STEPS; step++) {
        size_t i = contract_random(&seed) % SLOTS;
        size_t n = ((size_t)64 << 10) << contract_random(&seed) % 9;
        n += contract_random(&seed) % n;
        if (step % 7 == 0) {
            free(slots[i]);
            slots[i] = NULL;
            sizes[i] = 0;
        }
        char* p = step % 11 == 0 && slots[i] == NULL ? memalign(1 << 16, n) : realloc(slots[i], n);
        if (!EXPECT(p != NULL)) break;
        size_t kept = sizes[i] < n ? sizes[i] : n;
        if (kept != 0 && (p[0] != (char)i || p[kept - 1] != (char)i))
            EXPECT(kept != sizes[i] && p[0] == (char)i);
        p[0] = p[n - 1] = (char)i;
        slots[i] = p;
        sizes[i] = n;
        if (step % 1000 == 999) {
            int now = mappings();
            EXPECT_GE(now, 5);
            largest = now > largest ? now : largest;
        }
    }
    contract_say(1, "largest number of mappings: %d\n", largest);
    EXPECT_LE(largest, MAPPINGS_MAX);
    for (int i = 0; i < SLOTS; i++) free(slots[i]);
    EXPECT_LE(mappings(), MAPPINGS_MAX);

    /* Small blocks with every second freed and trimmed leave holes: these must not become mappings each. */
    enum { COUNT = 200000 };
    static void* small[COUNT];
    for (int i = 0; i < COUNT; i++) {
        small[i] = malloc(3000);
        memset(contract_opaque_pointer(small[i]), 1, 3000);
    }
    for (int i = 0; i < COUNT; i++)
        if (i % 8 != 0) free(small[i]);
    malloc_trim(0);
    EXPECT_LE(mappings(), MAPPINGS_MAX);
    for (int i = 0; i < COUNT; i += 8) free(small[i]);
    return contract_end();
}
