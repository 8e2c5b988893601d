/* counts.c: the counts of calls in the statistics, in each checking mode.
 *
 * Who may call it: tests/contract/run.py. The program runs itself again with checks=full. Where the library
 * has no statistics, the same work runs without them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include "../../include/weir/weir.h"

enum { BLOCKS = 3000, FREED = 2500 };

int main(int argc, char** argv) {
    contract_begin();
    int (*get)(struct weir_stats*) = (int (*)(struct weir_stats*))dlsym(RTLD_DEFAULT, "weir_stats_get");
    struct weir_stats before = {.struct_size = sizeof before}, after = before;
    static void* blocks[BLOCKS];
    if (get != NULL) get(&before);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(1 + (size_t)i * 7 % 9000);
        EXPECT(blocks[i] != NULL);
    }
    for (int i = 0; i < FREED; i++) free(blocks[i]);
    if (get != NULL) {
        get(&after);
        EXPECT_EQ(after.alloc_calls - before.alloc_calls, BLOCKS);
        EXPECT_EQ(after.free_calls - before.free_calls, FREED);
        EXPECT_EQ(after.live_blocks - before.live_blocks, BLOCKS - FREED);
    }
    for (int i = FREED; i < BLOCKS; i++) free(blocks[i]);
    int bad = contract_end();
    if (bad != 0 || argc > 1) return bad;
    setenv("WEIR_CHECKS", "full", 1);
    execl(argv[0], argv[0], "full", (char*)NULL);
    return 1;
}
