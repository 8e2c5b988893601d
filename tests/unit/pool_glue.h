/* pool_glue.h: what the tests of pools need of the pool layer beyond weir/pool.h, in terms that C++ can read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_TESTS_UNIT_POOL_GLUE_H
#define WEIR_TESTS_UNIT_POOL_GLUE_H

#include "base/compiler.h"
#include "weir/pool.h"

struct os_lock;
struct weir_pool;

uint32_t unit_pool_tick_calls(void); /* slow calls until what is done now and then */
uint64_t unit_pool_tick(void);       /* what the helper does at each of its looks */
/* Figures of at most `count` pools that were made after number `after`; the number of them. */
struct unit_pool {
    uint64_t number;
    uint32_t id;
    struct weir_pool_stats figures;
};
int unit_pool_visit(uint64_t after, struct unit_pool* rows, int count, uint64_t* made);
void unit_pool_fork_prepare(void);
void unit_pool_fork_parent(void);
void unit_pool_fork_child(void);
struct os_lock* unit_pools_lock(void);
/* The calling thread's entry as in the middle of an exchange of magazines, or as it was. */
void unit_pool_between(struct weir_pool* pool, bool between);
void unit_pool_thread_hook(bool (*hook)(void));
/* A pool whose macros are calls. */
void* unit_calls_alloc(void);
void unit_calls_free(void* p);
struct weir_pool* unit_calls_pool(void);

#endif
