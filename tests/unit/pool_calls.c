/* pool_calls.c: pools at file scope as compilers have them that weir has no assembly for: without a word of
 * warning, the unused ones included.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define WEIR_POOL_CALLS
#include "pool_glue.h"

WEIR_POOL_DECLARE(unit_calls, 300, 0, 0);

void* unit_calls_alloc(void) { return WEIR_POOL_ALLOC(unit_calls); }
void unit_calls_free(void* p) { WEIR_POOL_FREE(unit_calls, p); }
struct weir_pool* unit_calls_pool(void) { return WEIR_POOL(unit_calls); }
