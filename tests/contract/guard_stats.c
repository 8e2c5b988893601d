/* guard_stats.c: the statistics count guarded blocks: how many there were, and how many freed ones still lie
 * in their slots.
 *
 * Who may call it: tests/contract/run.py. With a rate of 1 and 16 slots every figure is known; without the
 * option all are 0. Where the library has no statistics, only the blocks are checked.
 *
 * contract: args=16 env=WEIR_OPTIONS=guard_rate=1:guard_slots=16
 * contract: name=off args=0
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include "../../include/weir/weir.h"

enum { ROUNDS = 100 };

static struct weir_stats stats_now(void) {
    struct weir_stats stats = {.struct_size = sizeof stats};
    int (*get)(struct weir_stats*) = (int (*)(struct weir_stats*))dlsym(RTLD_DEFAULT, "weir_stats_get");
    if (get != NULL) EXPECT_EQ(get(&stats), 0);
    return stats;
}

/* The JSON's value of a field. */
static uint64_t json_value(const char* name) {
    int (*json)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "weir_stats_json");
    static char text[1 << 17];
    int fd = memfd_create("stats", 0);
    EXPECT_EQ(json(fd), 0);
    ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char* at = strstr(text, key);
    if (!EXPECT(at != NULL)) return 0;
    return strtoull(at + strlen(key), NULL, 10);
}

int main(int argc, char** argv) {
    contract_begin();
    uint64_t slots = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t guarded = slots != 0 ? 1 : 0;
    char* volatile kept = malloc(100);
    EXPECT(kept != NULL && malloc_usable_size(kept) >= 100);
    if (contract_is_weir()) {
        struct weir_stats before = stats_now();
        for (int i = 0; i < ROUNDS; i++) free(kept), kept = malloc(100);
        struct weir_stats after = stats_now();
        EXPECT_EQ(after.guarded_calls - before.guarded_calls, ROUNDS * guarded);
        EXPECT_EQ(after.alloc_calls - before.alloc_calls, ROUNDS);
        EXPECT(after.guarded_freed < slots || slots == 0); /* one at least is live */
        EXPECT(after.guarded_freed > 0 || slots == 0);
        free(kept);
        EXPECT_EQ(stats_now().guarded_freed, after.guarded_freed + guarded);
        EXPECT_EQ(json_value("guarded_freed"), after.guarded_freed + guarded);
        EXPECT_EQ(json_value("guarded_calls"), after.guarded_calls);
        EXPECT_EQ(after.guarded_calls == 0, slots == 0);
        kept = NULL;
    }
    free(kept);
    return contract_end();
}
