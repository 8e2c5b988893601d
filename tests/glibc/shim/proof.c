/* proof.c: says at the end of a test program whose malloc it ran on: `proof: weir` or `proof: not weir`.
 *
 * Who may call it: nobody; it is linked into every test program. The proof is that calls arrived: weir's own
 * statistics count the blocks that are taken here. It speaks in the process that main() began in alone,
 * not in forked children, and after the test is over, so that nothing is disturbed. SHIM_STATIC: no dlsym.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "shim.h"
#include <weir/weir.h>

/* Weak: it is there when weir is linked into the program; a preloaded one is looked up. */
extern int weir_stats_get(struct weir_stats* stats) __attribute__((weak));

static pid_t first_process;

__attribute__((constructor)) static void proof_begin(void) { first_process = getpid(); }

static uint64_t blocks_live(void) {
    int (*get)(struct weir_stats*) = weir_stats_get;
#ifndef SHIM_STATIC
    if (get == NULL) get = (int (*)(struct weir_stats*))dlsym(RTLD_DEFAULT, "weir_stats_get");
#endif
    struct weir_stats stats = {.struct_size = sizeof stats};
    return get != NULL && get(&stats) == 0 ? stats.live_blocks : 0;
}

__attribute__((destructor)) static void proof_end(void) {
    enum { BLOCKS = 1000, BLOCK_BYTES = 48 };
    static void* blocks[BLOCKS];
    if (getpid() != first_process) return;
    uint64_t before = blocks_live();
    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(BLOCK_BYTES);
    uint64_t after = blocks_live();
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    shim_say("proof: %s\n", after - before == BLOCKS ? "weir" : "not weir");
}
