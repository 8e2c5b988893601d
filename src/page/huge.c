/* huge.c: see huge.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "page/huge.h"

#include "core/options.h"
#include "os/os.h"

WEIR_FN void huge_region(uintptr_t base, size_t records, size_t bytes) {
    /* One call for all that will ever be accessible: what is made accessible later keeps it. A kernel that
     * refuses has no huge pages. */
    size_t small = core_options.hugepages == HUGE_ALWAYS ? records : bytes;
    (void)os_advise_huge((void*)base, small, OS_HUGE_NEVER);
    if (small != bytes) (void)os_advise_huge((void*)(base + small), bytes - small, OS_HUGE_ALWAYS);
}
