/* sized.c: C23's free_sized and free_aligned_sized, where the allocator has them.
 *
 * Who may call it: tests/contract/run.py. glibc 2.36 has neither, so that its run checks their absence.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

int main(void) {
    contract_begin();
    void (*free_sized)(void*, size_t) = (void (*)(void*, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    void (*free_aligned_sized)(void*, size_t, size_t) =
        (void (*)(void*, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    EXPECT((free_sized == NULL) == (free_aligned_sized == NULL));
    if (contract_is_weir()) {
        EXPECT(contract_is_from_lib((void*)free_sized));
        EXPECT(contract_is_from_lib((void*)free_aligned_sized));
    }
    if (free_sized == NULL || free_aligned_sized == NULL) return contract_end();
    free_sized(NULL, 0);
    free_sized(NULL, 100);
    free_aligned_sized(NULL, 64, 64);
    for (size_t n = 0; n < 3u << 20; n = n < 1100 ? n + 1 : n * 2) {
        void* p = malloc(n);
        contract_fill(p, n, 1);
        errno = 31;
        free_sized(p, n);
        p = calloc(n, 1);
        EXPECT(contract_is_zero(p, n));
        errno = 31;
        free_sized(p, n);
        p = realloc(malloc(1), n + 1);
        contract_fill(p, n + 1, 2);
        errno = 31;
        free_sized(p, n + 1);
        EXPECT_EQ(errno, 31);
        for (size_t alignment = 16; alignment <= 1 << 16; alignment *= 8) {
            p = aligned_alloc(alignment, n);
            EXPECT_EQ((uintptr_t)p % alignment, 0);
            contract_fill(p, n, 3);
            errno = 31;
            free_aligned_sized(p, alignment, n);
            EXPECT_EQ(errno, 31);
        }
    }
    return contract_end();
}
