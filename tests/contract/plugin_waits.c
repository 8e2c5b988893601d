/* plugin_waits.c: a C plugin whose constructor, and with it dlopen, ends when a byte comes from the
 * descriptor that PLUGIN_WAITS names.
 *
 * Who may call it: handler_first.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void plugin_start(void) {
    char byte;
    if (read(atoi(getenv("PLUGIN_WAITS")), &byte, 1) != 1) abort();
}
