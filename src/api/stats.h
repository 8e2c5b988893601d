/* stats.h: figures for the other parts of the api layer. Internal to it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_API_STATS_H
#define WEIR_API_STATS_H

#include "heap/census.h"
#include "weir/weir.h"

/* All of *out, with *t as the census it was made from. Keeps errno, allocates nothing. */
WEIR_FN void stats_fill(struct weir_stats* out, struct census* t);

#endif
