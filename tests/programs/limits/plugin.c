/* plugin.c: a library that gives out blocks of its malloc, whichever that is.
 *
 * Who may call it: cases.c opens it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

void* plugin_take(size_t size);
void plugin_give(void* block);

void* plugin_take(size_t size) { return malloc(size); }
void plugin_give(void* block) { free(block); }
