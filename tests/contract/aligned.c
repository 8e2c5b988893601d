/* aligned.c: aligned allocation: every power of two to 64 MiB, the EINVAL rules, size plus alignment.
 *
 * Who may call it: tests/contract/run.py. The rules are those of glibc 2.36: memalign rounds a strange
 * alignment up, posix_memalign refuses it. aligned_alloc may do either: glibc refuses from 2.38 on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

static void* aligned_any(int kind, size_t alignment, size_t n) {
    void* p = NULL;
    switch (kind) {
    case 0:
        return memalign(alignment, n);
    case 1:
        return aligned_alloc(alignment, n);
    default:
        EXPECT_EQ(posix_memalign(&p, alignment, n), 0);
        return p;
    }
}

static void test_powers_of_two(void) {
    static const size_t sizes[] = {1, 15, 16, 17, 100, 1024, 1025, 4096, 10000, 65536, 65537, 300000};
    for (size_t alignment = sizeof(void*); alignment <= 64u << 20; alignment *= 2) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            void* blocks[6];
            size_t n = sizes[i];
            for (int k = 0; k < 6; k++) {
                blocks[k] = aligned_any(k % 3, alignment, n);
                if (!EXPECT(blocks[k] != NULL)) return;
                EXPECT_EQ((uintptr_t)blocks[k] % alignment, 0);
                EXPECT_GE(malloc_usable_size(blocks[k]), n);
                contract_fill(blocks[k], n, (unsigned)k);
            }
            for (int k = 0; k < 6; k++) EXPECT(contract_holds(blocks[k], n, (unsigned)k));
            /* realloc of an aligned block keeps the content, whatever it does to the alignment. */
            for (int k = 0; k < 2; k++) {
                blocks[k] = realloc(blocks[k], n * 3);
                EXPECT(blocks[k] != NULL && contract_holds(blocks[k], n, (unsigned)k));
            }
            for (int k = 0; k < 6; k++) free(blocks[k]);
        }
    }
}

static void test_plain_alignment(void) {
    for (size_t n = 1; n < 100000; n += n / 16 + 1) {
        void* a = malloc(n);
        void* b = calloc(1, n);
        void* c = realloc(malloc(1), n);
        EXPECT_EQ(((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % _Alignof(max_align_t), 0);
        free(a);
        free(b);
        free(c);
    }
}

static void test_posix_memalign_einval(void) {
    static const size_t bad[] = {0, 1, 2, 4, 7, 24, 48, 100, 4095, 4097, ((size_t)1 << 63) + 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        void* out = &out;
        errno = 4321;
        EXPECT_EQ(posix_memalign(&out, contract_opaque(bad[i]), 100), EINVAL);
        EXPECT_EQ(errno, 4321);
        EXPECT(out == (void*)&out);
    }
}

static void test_strange_alignments(void) {
    static const size_t odd[] = {0, 1, 2, 3, 5, 17, 24, 48, 100, 1000, 3000, 5000, 100000};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        size_t up = 1;
        while (up < odd[i]) up *= 2;
        void* p = memalign(contract_opaque(odd[i]), 100);
        EXPECT(p != NULL);
        EXPECT_EQ((uintptr_t)p % up, 0);
        EXPECT_EQ((uintptr_t)p % 16, 0);
        free(p);
        errno = 0;
        p = aligned_alloc(contract_opaque(odd[i]), 100);
        if (p == NULL) {
            EXPECT_EQ(errno, EINVAL);
            EXPECT(odd[i] == 0 || up != odd[i]);
        } else {
            EXPECT_EQ((uintptr_t)p % up, 0);
        }
        free(p);
    }
    /* The size need not be a multiple of the alignment. */
    void* p = aligned_alloc(256, 100);
    EXPECT(p != NULL && (uintptr_t)p % 256 == 0);
    free(p);
}

static void test_sum_overflow(void) {
    static const size_t top = (size_t)1 << 63;
    static const size_t cases[][2] = {
        {4096, SIZE_MAX - 4095},
        {4096, SIZE_MAX - 4096},
        {4096, (size_t)PTRDIFF_MAX - 100},
        {(size_t)1 << 40, SIZE_MAX - ((size_t)1 << 40)},
        {(size_t)1 << 62, 100},
        {(size_t)1 << 62, (size_t)1 << 62},
        {top, 0},
        {top, 16},
        {top, top},
        {top, SIZE_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t alignment = contract_opaque(cases[i][0]);
        size_t n = contract_opaque(cases[i][1]);
        void* out = &out;
        errno = 0;
        EXPECT(memalign(alignment, n) == NULL);
        EXPECT_EQ(errno, ENOMEM);
        errno = 0;
        EXPECT(aligned_alloc(alignment, n) == NULL);
        EXPECT_EQ(errno, ENOMEM);
        EXPECT_EQ(posix_memalign(&out, alignment, n), ENOMEM);
        EXPECT(out == (void*)&out);
    }
    /* Past the largest power of two there is nothing to round up to. */
    errno = 0;
    EXPECT(memalign(contract_opaque(top + 1), 16) == NULL);
    EXPECT_EQ(errno, EINVAL);
    errno = 0;
    EXPECT(memalign(contract_opaque(SIZE_MAX), 16) == NULL);
    EXPECT_EQ(errno, EINVAL);
}

static void test_pages(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    static const size_t sizes[] = {0, 1, 100, 4095, 4096, 4097, 8192, 100000, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        void* v = valloc(n);
        void* p = pvalloc(n);
        EXPECT(v != NULL && (uintptr_t)v % page == 0);
        EXPECT(p != NULL && (uintptr_t)p % page == 0);
        EXPECT_GE(malloc_usable_size(v), n);
        /* pvalloc rounds the size up to a whole page. */
        EXPECT_GE(malloc_usable_size(p), (n + page - 1) / page * page);
        contract_fill(v, n, 1);
        contract_fill(p, (n + page - 1) / page * page, 2);
        EXPECT(contract_holds(v, n, 1));
        free(v);
        free(p);
    }
}

int main(void) {
    contract_begin();
    test_powers_of_two();
    test_plain_alignment();
    test_posix_memalign_einval();
    test_strange_alignments();
    test_sum_overflow();
    test_pages();
    return contract_end();
}
