/* available.c: see available.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/available.h"

#include "heap/slab.h"

static void unlist(struct heap* h, struct slice* s) {
    slab_list_remove(&h->available[s->size_class], s);
    store_relaxed(&s->listed, (uint8_t)0);
}

WEIR_FN void available_put(struct heap* h, struct slice* s, const char* call) {
    os_lock_take(&h->lock);
    slab_collect(s, call);
    if (s->until == 0) {
        slab_release(s);
    } else {
        slab_list_push(&h->available[s->size_class], s);
        store_relaxed(&s->listed, (uint8_t)1);
    }
    os_lock_give(&h->lock);
}

WEIR_FN struct slice* available_take(struct heap* h, unsigned c) {
    enum { look = 8 };
    /* Relaxed: others only take away. */
    if (load_relaxed(&h->available[c]) == NULL) return NULL;
    os_lock_take(&h->lock);
    struct slice* best = h->available[c];
    struct slice* s = best != NULL ? best->next : NULL;
    for (unsigned i = 1; i < look && s != NULL; s = s->next, i++)
        if (s->until > best->until || (s->until == best->until && s < best)) best = s;
    if (best != NULL) unlist(h, best);
    os_lock_give(&h->lock);
    return best;
}

WEIR_FN void available_release(struct heap* h, struct slice* s) {
    os_lock_take(&h->lock);
    unlist(h, s);
    slab_release(s);
    os_lock_give(&h->lock);
}

WEIR_FN void available_sweep(struct heap* h, const char* call) {
    os_lock_take(&h->lock);
    for (unsigned c = 0; c < CLASS_COUNT; c++) {
        struct slice* next;
        for (struct slice* s = h->available[c]; s != NULL; s = next) {
            next = s->next;
            slab_collect(s, call);
            if (s->until != 0) continue;
            unlist(h, s);
            slab_release(s);
        }
    }
    os_lock_give(&h->lock);
}

/* The caller has given the slab a block and may no longer rely on anything it says: by now it may have
 * been released and be another one. Under the lock of the heap it names, what it says holds. */
WEIR_FN void available_steal(struct slice* s) {
    struct heap* h = owner_heap(load_relaxed(&s->owner));
    if (h == NULL || load_relaxed(&s->until) != remote_count(load_relaxed(&s->remote))) return;
    os_lock_take(&h->lock);
    if (owner_heap(load_acquire(&s->owner)) == h && load_relaxed(&s->kind) == SLICE_SLAB &&
        load_relaxed(&s->listed) != 0) {
        /* Acquire: pairs with the owner's last push and the release of the other givers. */
        uint32_t until = load_acquire(&s->until);
        uint64_t word = load_acquire(&s->remote);
        if (until != 0 && until == remote_count(word)) {
            unlist(h, s);
            slab_release(s);
        }
    }
    os_lock_give(&h->lock);
}
