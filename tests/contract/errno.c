/* errno.c: what the malloc family does to errno, and when it refuses.
 *
 * Who may call it: tests/contract/run.py. free keeps errno for every kind of block; requests past
 * PTRDIFF_MAX and overflowing products give NULL and ENOMEM and leave the old block alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

#define PAST ((size_t)PTRDIFF_MAX + 1)

static void test_free_keeps_errno(void) {
    static const size_t sizes[] = {0, 1, 16, 100, 1000, 5000, 40000, 200000, 1 << 20, 5 << 20, 70 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void* blocks[20];
        for (int k = 0; k < 20; k++) blocks[k] = k % 2 ? malloc(sizes[i]) : memalign(256, sizes[i]);
        for (int k = 0; k < 20; k++) {
            errno = 1234;
            free(blocks[k]);
            EXPECT_EQ(errno, 1234);
        }
    }
    errno = 77;
    free(NULL);
    EXPECT_EQ(errno, 77);
    /* Enough blocks that slabs turn over and memory goes back to the kernel. */
    enum { COUNT = 100000 };
    static void* many[COUNT];
    for (int i = 0; i < COUNT; i++) many[i] = malloc(600);
    int kept = 1;
    for (int i = 0; i < COUNT; i++) {
        errno = 55;
        free(many[i]);
        kept &= errno == 55;
    }
    EXPECT(kept);
}

#define EXPECT_ENOMEM(call)                                                                                  \
    do {                                                                                                     \
        errno = 0;                                                                                           \
        void* got = (call);                                                                                  \
        int code = errno;                                                                                    \
        EXPECT_EQ((uintptr_t)got, 0);                                                                        \
        EXPECT_EQ(code, ENOMEM);                                                                             \
        free(got);                                                                                           \
    } while (0)

static void test_too_large(void) {
    static const size_t sizes[] = {PTRDIFF_MAX,   PAST,         PAST + 4096, SIZE_MAX - 4096,
                                   SIZE_MAX - 15, SIZE_MAX - 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = contract_opaque(sizes[i]);
        EXPECT_ENOMEM(malloc(n));
        EXPECT_ENOMEM(calloc(n, 1));
        EXPECT_ENOMEM(calloc(1, n));
        EXPECT_ENOMEM(realloc(NULL, n));
        EXPECT_ENOMEM(reallocarray(NULL, n, 1));
        EXPECT_ENOMEM(aligned_alloc(16, n));
        EXPECT_ENOMEM(memalign(64, n));
        EXPECT_ENOMEM(memalign(1 << 20, n));
        EXPECT_ENOMEM(valloc(n));
        EXPECT_ENOMEM(pvalloc(n));
        void* out = &out;
        EXPECT_EQ(posix_memalign(&out, 4096, n), ENOMEM);
        EXPECT(out == (void*)&out);
    }
}

static void test_products(void) {
    static const size_t pairs[][2] = {
        {SIZE_MAX / 2, 3},
        {SIZE_MAX / 2 + 1, 2},
        {(size_t)1 << 32, (size_t)1 << 32},
        {SIZE_MAX, SIZE_MAX},
        {(size_t)1 << 33, (size_t)1 << 31},
        {SIZE_MAX / 16 + 2, 16},
        {PTRDIFF_MAX, 2},
    };
    char* old = malloc(100);
    contract_fill(old, 100, 3);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        size_t a = contract_opaque(pairs[i][0]);
        size_t b = contract_opaque(pairs[i][1]);
        EXPECT_ENOMEM(calloc(a, b));
        EXPECT_ENOMEM(calloc(b, a));
        EXPECT_ENOMEM(reallocarray(NULL, a, b));
        errno = 0;
        EXPECT(reallocarray(contract_opaque_pointer(old), a, b) == NULL);
        EXPECT_EQ(errno, ENOMEM);
        EXPECT(contract_holds(old, 100, 3));
    }
    free(old);
}

static void test_realloc_failure_keeps_block(void) {
    static const size_t sizes[] = {1, 24, 1000, 30000, 300000, 3 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char* p = malloc(sizes[i]);
        contract_fill(p, sizes[i], (unsigned)i);
        errno = 0;
        EXPECT(realloc(contract_opaque_pointer(p), contract_opaque(PAST)) == NULL);
        EXPECT_EQ(errno, ENOMEM);
        errno = 0;
        EXPECT(realloc(contract_opaque_pointer(p), contract_opaque(PTRDIFF_MAX)) == NULL);
        EXPECT_EQ(errno, ENOMEM);
        EXPECT(contract_holds(p, sizes[i], (unsigned)i));
        free(p);
    }
}

int main(void) {
    contract_begin();
    test_free_keeps_errno();
    test_too_large();
    test_products();
    test_realloc_failure_keeps_block();
    return contract_end();
}
