/* zero.c: requests of zero bytes, and NULL.
 *
 * Who may call it: tests/contract/run.py. malloc(0) and its kin give unique blocks that can be freed;
 * realloc(p, 0) frees p and gives NULL; realloc(NULL, n) is malloc; free(NULL) is nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

enum { COUNT = 600 };

static int order(const void* a, const void* b) {
    uintptr_t x = *(const uintptr_t*)a;
    uintptr_t y = *(const uintptr_t*)b;
    return x < y ? -1 : x > y;
}

static void test_unique(void) {
    static void* blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        void* p = NULL;
        switch (i % 6) {
        case 0:
            p = malloc(contract_opaque(0));
            break;
        case 1:
            p = calloc(contract_opaque(0), 8);
            break;
        case 2:
            p = calloc(8, contract_opaque(0));
            break;
        case 3:
            p = memalign(64, contract_opaque(0));
            break;
        case 4:
            EXPECT_EQ(posix_memalign(&p, 32, contract_opaque(0)), 0);
            break;
        case 5:
            p = realloc(NULL, contract_opaque(0));
            break;
        }
        EXPECT(p != NULL);
        EXPECT_EQ((uintptr_t)p % 16, 0);
        blocks[i] = p;
    }
    qsort(blocks, COUNT, sizeof *blocks, order);
    for (int i = 1; i < COUNT; i++) EXPECT_NE((uintptr_t)blocks[i], (uintptr_t)blocks[i - 1]);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
}

static void test_realloc_to_zero(void) {
    static const size_t sizes[] = {0, 1, 24, 500, 5000, 70000, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void* p = malloc(sizes[i]);
        EXPECT(p != NULL);
        EXPECT(realloc(p, contract_opaque(0)) == NULL);
        p = malloc(sizes[i]);
        EXPECT(reallocarray(p, contract_opaque(0), 16) == NULL);
        p = malloc(sizes[i]);
        EXPECT(reallocarray(p, 16, contract_opaque(0)) == NULL);
    }
    /* It did free: 4 GiB go through 100 MiB of address space. */
    long before = contract_status_kib("VmSize:");
    for (int i = 0; i < 4096; i++)
        if (realloc(malloc(1 << 20), contract_opaque(0)) != NULL) EXPECT(!"realloc to zero gives NULL");
    EXPECT_LE(contract_status_kib("VmSize:") - before, 100 * 1024);
    long resident = contract_status_kib("VmRSS:");
    for (int i = 0; i < 200000; i++) {
        char* p = malloc(1000);
        memset(contract_opaque_pointer(p), 1, 1000);
        p = realloc(p, contract_opaque(0));
        if (p != NULL) EXPECT(!"realloc to zero gives NULL");
    }
    EXPECT_LE(contract_status_kib("VmRSS:") - resident, 20 * 1024);
}

static void test_null(void) {
    free(NULL);
    for (size_t n = 1; n < 3000000; n = n * 3 + 1) {
        char* p = realloc(NULL, n);
        EXPECT(p != NULL);
        contract_fill(p, n, 9);
        EXPECT_GE(malloc_usable_size(p), n);
        EXPECT(contract_holds(p, n, 9));
        free(p);
        p = reallocarray(NULL, n, 2);
        EXPECT(p != NULL);
        EXPECT_GE(malloc_usable_size(p), 2 * n);
        free(p);
    }
    EXPECT_EQ(malloc_usable_size(NULL), 0);
}

int main(void) {
    contract_begin();
    test_unique();
    test_realloc_to_zero();
    test_null();
    return contract_end();
}
