/* layout.c: the crate's Stats is struct weir_stats, field by field: sizes and ends must agree.
 *
 * Who may compile it: the crate's build. When it fails, src/stats.rs needs the header's new fields. It
 * deliberately holds no code.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stddef.h>

#include "weir/weir.h"

_Static_assert(sizeof(struct weir_stats) == 240, "weir_malloc::Stats has 2 words of 32 bits and 29 of 64");
_Static_assert(offsetof(struct weir_stats, live_bytes) == 8, "the figures follow the two words");
_Static_assert(offsetof(struct weir_stats, alloc_calls) == 80, "alloc_calls is the tenth figure");
_Static_assert(offsetof(struct weir_stats, guarded_freed) == 232, "guarded_freed is the last figure");
_Static_assert(WEIR_STATS_VERSION == 1, "weir_malloc::Stats is version 1");
