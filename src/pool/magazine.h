/* magazine.h: an array of free objects, which moves between threads as a whole.
 *
 * Magazines are memory of weir's own, made when they are first needed and never unmapped. Whoever has one
 * alone may look into it. Empty ones wait in slots and, where those are taken, on a shelf: a list to which
 * one is pushed by CAS, and which is taken off as a whole, so that no one reads the link of a magazine that
 * is not his.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_POOL_MAGAZINE_H
#define WEIR_POOL_MAGAZINE_H

#include "pool/slot.h"

enum { MAGAZINE_OBJECTS_MAX = 62, MAGAZINE_BYTES_MAX = 128 * 1024 };

/*  objects[0 .. count) free objects, objects[count .. capacity) room
 *  Invariant: count <= capacity <= MAGAZINE_OBJECTS_MAX; the address is a multiple of 64.
 *  Sync: whoever took it out of a slot, off a shelf, or made it. */
struct magazine {
    struct magazine* next; /* on a shelf */
    uint32_t count;        /* while in a thread's cache: as of when it came there */
    uint32_t capacity;
    void* objects[];
};

WEIR_INLINE uintptr_t magazine_word(const struct magazine* m) { return (uintptr_t)m | m->count; }
WEIR_INLINE struct magazine* magazine_of(uintptr_t word) {
    return (struct magazine*)(word & ~(uintptr_t)SLOT_OBJECTS_MAX);
}

/* A word that is one object by itself. */
WEIR_INLINE uintptr_t object_word(const void* p) { return (uintptr_t)p | 1; }
WEIR_INLINE void* object_of(uintptr_t word) { return (void*)(word & ~(uintptr_t)SLOT_OBJECTS_MAX); }

WEIR_INLINE void shelf_push_chain(struct magazine** shelf, struct magazine* first, struct magazine* last) {
    struct magazine* head = load_relaxed(shelf);
    do last->next = head;
    while (!cas_acq_rel(shelf, &head, first)); /* publishes the links, to shelf_pop */
}

WEIR_INLINE void shelf_push(struct magazine** shelf, struct magazine* m) { shelf_push_chain(shelf, m, m); }

/* One magazine; NULL: there is none, or another thread has the list in hand. */
WEIR_INLINE struct magazine* shelf_pop(struct magazine** shelf) {
    if (load_relaxed(shelf) == NULL) return NULL;
    struct magazine* m = xchg_acquire(shelf, NULL);
    if (m == NULL || m->next == NULL) return m;
    struct magazine* last = m->next;
    while (last->next != NULL) last = last->next;
    shelf_push_chain(shelf, m->next, last);
    return m;
}

#endif
