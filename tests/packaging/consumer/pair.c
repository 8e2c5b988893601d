/* pair.c: the pair of calls that link-time optimisation is to inline. See probe.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "probe.h"

__attribute__((noinline, used, visibility("default"))) void probe_pair(void) {
    void* block = malloc(64);
    __asm__ volatile("" : "+r"(block) : : "memory");
    free(block);
}
