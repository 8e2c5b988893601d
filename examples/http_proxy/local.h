/* local.h: requests that the program answers itself: /stats, and with --respond all others.
 *
 * Who may call it: connection.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef HTTP_PROXY_LOCAL_H
#define HTTP_PROXY_LOCAL_H

#include "connection.h"

/** Before the threads begin. */
void local_init(void);
/** Who answers a request for this target. */
enum answerer local_begin(struct connection* c, const char* target, size_t bytes);
/** The steps in place of the server's. A body that is sent is checked: see pattern.h. */
bool local_swallow(struct connection* c);
bool local_produce(struct connection* c);

#endif
