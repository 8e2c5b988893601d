/* mailbox.c: an array of one-block boxes, each with a state word.
 *
 *   EMPTY --put: CAS--> BUSY --store--> FULL --take: CAS--> BUSY --store--> EMPTY
 *
 * Called by the workers. In the child of a fork a box that was BUSY stays so for ever; nobody waits
 * for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mailbox.h"

#include <stdatomic.h>

enum box_state { BOX_EMPTY, BOX_BUSY, BOX_FULL };

/* Sync: `block` belongs to whoever moved `state` to BUSY. */
struct box {
    _Alignas(64) _Atomic int state;
    struct block block;
};

static struct box* boxes;
static unsigned box_count;
/* Sync: relaxed; a bound on memory that may be late by a few blocks. */
static _Atomic size_t bytes_held;

void mailbox_init(unsigned count) {
    boxes = memory_map(count * sizeof *boxes);
    box_count = count;
}

int mailbox_put(unsigned index, const struct block* b) {
    struct box* box = &boxes[index % box_count];
    int expected = BOX_EMPTY;
    if (atomic_load_explicit(&box->state, memory_order_relaxed) != BOX_EMPTY) return 0;
    /* Acquire: pairs with the release in mailbox_take, so that the last reader is done with `block`. */
    if (!atomic_compare_exchange_strong_explicit(&box->state, &expected, BOX_BUSY, memory_order_acquire,
                                                 memory_order_relaxed))
        return 0;
    box->block = *b;
    atomic_fetch_add_explicit(&bytes_held, b->size, memory_order_relaxed);
    /* Release: publishes the record and the content of the block to the taker. */
    atomic_store_explicit(&box->state, BOX_FULL, memory_order_release);
    return 1;
}

int mailbox_take(unsigned index, struct block* b) {
    struct box* box = &boxes[index % box_count];
    int expected = BOX_FULL;
    if (atomic_load_explicit(&box->state, memory_order_relaxed) != BOX_FULL) return 0;
    /* Acquire: pairs with the release in mailbox_put. */
    if (!atomic_compare_exchange_strong_explicit(&box->state, &expected, BOX_BUSY, memory_order_acquire,
                                                 memory_order_relaxed))
        return 0;
    *b = box->block;
    atomic_fetch_sub_explicit(&bytes_held, b->size, memory_order_relaxed);
    /* Release: the next put must not overtake our reads of `block`. */
    atomic_store_explicit(&box->state, BOX_EMPTY, memory_order_release);
    return 1;
}

size_t mailbox_bytes(void) { return atomic_load_explicit(&bytes_held, memory_order_relaxed); }
unsigned mailbox_count(void) { return box_count; }
