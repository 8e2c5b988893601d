/* shadow.h: an independent record of which bytes are in the program's hands, to catch two live blocks
 * that overlap and bytes that are given up twice.
 *
 * Any thread may call it at any time; claims are made after an allocation and taken back before the
 * matching free. It knows addresses only: neither the allocator's layout nor the model's blocks.
 *
 *   address:   [ region: 22 bits ][ word of 512 B: 17 bits ][ granule of 8 B: 6 bits ][ 3 bits ]
 *   directory[region] -> leaf: one bit per granule, set while a live block covers it
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MODEL_SHADOW_H
#define MODEL_SHADOW_H

#include "base.h"

/** Set up; the first `leaves` regions (of 64 MiB, 1 MiB each) are mapped at once, so that they are there
 *  when an address-space limit comes later. */
void shadow_init(unsigned leaves);
/** Claim [p, p+n); dies when any of it is claimed already. n == 0 counts as one byte. */
void shadow_claim(const void* p, size_t n, const char* what);
/** Give [p, p+n) up; dies when any of it is not claimed. */
void shadow_release(const void* p, size_t n, const char* what);
/** Number of granules that are still claimed; only when no other thread runs. */
uint64_t shadow_count(void);
/** Number of regions that could not be recorded for want of memory. */
uint64_t shadow_missing(void);

#endif
