/* main.c: the probe as a C program. See probe.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "probe.h"

int main(void) {
    int result = probe_malloc();
    probe_show("malloc");
    probe_show("malloc_usable_size");
    return result;
}
