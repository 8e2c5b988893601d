/* usable.c: malloc_usable_size: never less than asked, little more, all of it writable and kept.
 *
 * Who may call it: tests/contract/run.py. The bound on the slack is that of weir's size classes (16-byte
 * steps to 1 KiB, then 12.5 %, or three such steps above 2 KiB, where a block of the next two classes may
 * serve; whole pages of 64 KiB for large blocks) and is asked of weir alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

static size_t slack_max(size_t n) {
    if (n <= 1024) return n == 0 ? 16 : 15;
    if (n > 2048 && n <= 57344) return n / 8 * 3 + n / 16;
    if (n / 8 >= 65536 || n <= 32768) return n / 8;
    return 65536;
}

static size_t next_size(size_t n) { return n < 1200 ? n + 1 : n + n / 23 + 1; }

static void test_usable_is_writable(void) {
    int is_weir = contract_is_weir();
    for (size_t n = 0; n < 40u << 20; n = n < (1 << 20) ? next_size(n) : n * 2 - 77) {
        char* p = malloc(n);
        char* neighbour = malloc(n);
        if (!EXPECT(p != NULL && neighbour != NULL)) return;
        size_t usable = malloc_usable_size(p);
        size_t usable_neighbour = malloc_usable_size(neighbour);
        EXPECT_GE(usable, n);
        if (is_weir) EXPECT_LE(usable - n, slack_max(n));
        contract_fill(p, usable, 1);
        contract_fill(neighbour, usable_neighbour, 2);
        EXPECT(contract_holds(p, usable, 1));
        EXPECT(contract_holds(neighbour, usable_neighbour, 2));
        EXPECT_EQ(malloc_usable_size(p), usable);
        /* realloc within the usable size, growing and shrinking, keeps all of it. */
        p = realloc(p, usable);
        if (usable == 0) p = malloc(1);
        EXPECT(p != NULL && contract_holds(p, usable, 1));
        p = realloc(p, usable * 2 + 1);
        EXPECT(p != NULL && contract_holds(p, usable, 1));
        if (usable / 3 > 0) {
            p = realloc(p, usable / 3);
            EXPECT(p != NULL && contract_holds(p, usable / 3, 1));
            EXPECT_GE(malloc_usable_size(p), usable / 3);
        }
        EXPECT(contract_holds(neighbour, usable_neighbour, 2));
        free(p);
        free(neighbour);
    }
}

static void test_random_reallocs(void) {
    enum { COUNT = 64 };
    static char* blocks[COUNT];
    static size_t sizes[COUNT];
    uint64_t seed = 20240229;
    for (int step = 0; step < 60000; step++) {
        unsigned i = (unsigned)(contract_random(&seed) % COUNT);
        unsigned shift = (unsigned)(contract_random(&seed) % 15);
        size_t n = contract_random(&seed) % ((size_t)16 << shift) + 1;
        size_t kept = sizes[i] < n ? sizes[i] : n;
        char* p = realloc(blocks[i], n);
        if (!EXPECT(p != NULL)) return;
        if (!contract_holds(p, kept, i)) EXPECT(!"realloc keeps the content");
        contract_fill(p, n, i);
        blocks[i] = p;
        sizes[i] = n;
    }
    for (unsigned i = 0; i < COUNT; i++) {
        EXPECT(contract_holds(blocks[i], sizes[i], i));
        free(blocks[i]);
    }
}

int main(void) {
    contract_begin();
    test_usable_is_writable();
    test_random_reallocs();
    return contract_end();
}
