/* mailbox.h: blocks on their way from one thread to another, without a lock.
 *
 * Any worker may put and take at any time. A mailbox does not know who sends to whom, and never waits: a
 * put that finds its box in use and a take that finds none full simply fail.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MODEL_MAILBOX_H
#define MODEL_MAILBOX_H

#include "block.h"

void mailbox_init(unsigned count);
/** Hand `b` over through box `index % count`; returns 1 when it was taken in. */
int mailbox_put(unsigned index, const struct block* b);
/** Take a block from box `index % count`; returns 1 when there was one. */
int mailbox_take(unsigned index, struct block* b);
/** Number of bytes on their way now. */
size_t mailbox_bytes(void);
unsigned mailbox_count(void);

#endif
