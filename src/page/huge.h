/* huge.h: which parts of the heap the kernel may back by huge pages.
 *
 * A region starts without any: its records stay so, and a small heap does not grow by 2 MiB steps where the
 * system makes everything huge. It deliberately knows nothing of blocks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_PAGE_HUGE_H
#define WEIR_PAGE_HUGE_H

#include "page/region.h"

/* Values of the option `hugepages`. */
enum huge_option { HUGE_AUTO, HUGE_NEVER, HUGE_ALWAYS };

/* A region is reserved, and nothing of it accessible: `records` bytes of records, then the heap. */
WEIR_FN void huge_region(uintptr_t base, size_t records, size_t bytes);

#endif
