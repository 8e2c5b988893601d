/* stats_sizes.c: weir_stats_get fills in what its caller knows, and nothing behind it.
 *
 * Who may call it: tests/contract/run.py. Callers of older and newer headers are played by sizes. Where the
 * library has no statistics, only the block is checked.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include "../../include/weir/weir.h"

enum { FILL = 0xa5 };

int main(void) {
    contract_begin();
    int (*get)(struct weir_stats*) = (int (*)(struct weir_stats*))dlsym(RTLD_DEFAULT, "weir_stats_get");
    char* volatile block = malloc(1000);
    size_t usable = malloc_usable_size(block);
    EXPECT(block != NULL && usable >= 1000 && usable < 1064);
    struct {
        struct weir_stats stats;
        char behind[64];
    } s;
    size_t first = offsetof(struct weir_stats, refaulted_bytes); /* what the header had at first */
    for (size_t size = 0; get != NULL && size <= sizeof s; size += 8) {
        memset(&s, FILL, sizeof s);
        s.stats.struct_size = (uint32_t)size;
        int fits = size >= 8 && size <= sizeof s.stats;
        EXPECT_EQ(get(&s.stats), fits ? 0 : EINVAL);
        EXPECT_EQ(s.stats.struct_size, size);
        for (size_t at = fits ? size : 8; at < sizeof s; at++) EXPECT_EQ(((unsigned char*)&s)[at], FILL);
        if (fits) EXPECT_EQ(s.stats.version, WEIR_STATS_VERSION);
        if (fits && size >= first) EXPECT(s.stats.live_bytes >= usable && s.stats.misuse_reports == 0);
        if (size == sizeof s.stats) EXPECT(s.stats.refaulted_bytes <= s.stats.purged_bytes);
    }
    free(block);
    return contract_end();
}
