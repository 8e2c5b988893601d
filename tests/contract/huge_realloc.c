/* huge_realloc.c: a block that grows from 1 MiB to 1 GiB by realloc, and shrinks again.
 *
 * Who may call it: tests/contract/run.py. Growth must not copy: the largest resident set stays close to
 * the block, and time stays bounded. Every page carries a stamp that is checked at the end.
 *
 * contract: timeout=120
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

enum { PAGE = 4096, STEPS_MAX_S = 10 };
#define LARGEST ((size_t)1 << 30)

static void stamp(char* p, size_t from, size_t to) {
    for (size_t at = (from + PAGE - 1) / PAGE * PAGE; at + sizeof(size_t) <= to; at += PAGE)
        memcpy(p + at, &at, sizeof at);
}

static int stamped(const char* p, size_t bytes) {
    for (size_t at = 0; at + sizeof(size_t) <= bytes; at += PAGE) {
        size_t found;
        memcpy(&found, p + at, sizeof found);
        if (found != at) return 0;
    }
    return 1;
}

/* Soon: nobody is asked for it, but a process that does nothing more is looked at. */
static void expect_resident_at_most(long kib) {
    enum { most_s = 8 };
    double start = contract_seconds();
    while (contract_status_kib("VmRSS:") > kib && contract_seconds() - start < most_s) usleep(20000);
    EXPECT_LE(contract_status_kib("VmRSS:"), kib);
}

/* Two blocks grow in turns, so that neither always has the room behind it free. */
static void test_growth(size_t largest, int turns) {
    char* blocks[2] = {NULL, NULL};
    size_t size = 0;
    double start = contract_seconds();
    for (size_t n = 1 << 20; size < largest; n = n + n / 2) {
        if (n > largest) n = largest;
        for (int b = 0; b < turns; b++) {
            char* p = realloc(blocks[b], n);
            if (!EXPECT(p != NULL)) return;
            stamp(p, size, n);
            blocks[b] = p;
        }
        size = n;
    }
    for (int b = 0; b < turns; b++) EXPECT(stamped(blocks[b], size));
    EXPECT_LE(contract_seconds() - start, 20);
    long resident = contract_status_kib("VmHWM:");
    EXPECT_GE(resident, (long)(largest * (size_t)turns / 1024));
    EXPECT_LE(resident, (long)(largest * (size_t)turns / 1024 * 115 / 100));
    for (; size > 1 << 20; size /= 3)
        for (int b = 0; b < turns; b++) {
            blocks[b] = realloc(blocks[b], size / 3);
            EXPECT(blocks[b] != NULL && stamped(blocks[b], size / 3));
        }
    /* What a shrinking realloc cut off goes back to the kernel, as what is freed does. */
    expect_resident_at_most(64 * 1024);
    for (int b = 0; b < turns; b++) free(blocks[b]);
    expect_resident_at_most(64 * 1024);
}

/* From the smallest blocks up, one byte-ish step at a time would be quadratic if each step copied. */
static void test_small_steps(void) {
    double start = contract_seconds();
    char* p = NULL;
    size_t bytes = 0;
    for (; bytes < 64u << 20 && contract_seconds() - start < STEPS_MAX_S; bytes += 8192) {
        p = realloc(p, bytes + 8192);
        if (!EXPECT(p != NULL)) return;
        stamp(p, bytes, bytes + 8192);
    }
    EXPECT(stamped(p, bytes));
    EXPECT_EQ(bytes, 64 << 20); /* or the time was up */
    free(p);
}

int main(void) {
    contract_begin();
    test_growth(LARGEST / 2, 2);
    test_growth(LARGEST, 1);
    test_small_steps();
    return contract_end();
}
