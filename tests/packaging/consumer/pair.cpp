/* pair.cpp: pair.c for a project that has no C. See probe.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "probe.h"

extern "C" __attribute__((noinline, used, visibility("default"))) void probe_pair(void) {
    void* block = malloc(64);
    __asm__ volatile("" : "+r"(block) : : "memory");
    free(block);
}
