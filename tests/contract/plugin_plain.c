/* plugin_plain.c: a C plugin whose constructor and destructor use the heap; it is opened and closed often.
 *
 * Who may call it: dlopen_new.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

static char* made_by_constructor;
static __thread char* per_thread;

__attribute__((constructor)) static void plugin_start(void) { made_by_constructor = calloc(1, 5000); }

__attribute__((destructor)) static void plugin_stop(void) { free(made_by_constructor); }

char* plugin_strdup(const char* text);
char* plugin_strdup(const char* text) {
    free(per_thread);
    per_thread = NULL;
    made_by_constructor[0]++;
    return strdup(text);
}
