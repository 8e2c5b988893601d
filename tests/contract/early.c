/* early.c: a program whose first allocation comes before libc's own constructor.
 *
 * Who may call it: tests/contract/run.py. Functions of .preinit_array run before every constructor, and so
 * does the start of some sanitizers; libc has not set `environ` by then. The allocation works, and the
 * options of the environment hold all the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include "../../include/weir/weir.h"

static char* early;

static void first(void) {
    early = malloc(100);
    if (early != NULL) memset(early, 'e', 100);
}
static void (*const preinit)(void) __attribute__((used, section(".preinit_array"))) = first;

static void test_reserve_is_heard(void) {
    int (*get)(struct weir_stats*) = (int (*)(struct weir_stats*))dlsym(RTLD_DEFAULT, "weir_stats_get");
    struct weir_stats stats = {.struct_size = sizeof stats};
    EXPECT(get != NULL && get(&stats) == 0);
    EXPECT(stats.reserved_bytes > 0 && stats.reserved_bytes <= 3ull << 30);
}

int main(int argc, char** argv) {
    if (argc == 1) {
        setenv("WEIR_RESERVE", "2g", 1);
        execl(argv[0], argv[0], "again", (char*)NULL);
        return 1;
    }
    contract_begin();
    EXPECT(early != NULL && early[0] == 'e' && early[99] == 'e');
    if (contract_is_weir()) test_reserve_is_heard();
    free(early);
    return contract_end();
}
