/* registry.c: which thread has which heap: attach, detach, threads that ended unseen, fork.
 *
 * A heap's record is never freed: it waits for the next thread. A thread that uses the allocator after
 * its exit hook gets a heap again, which nobody gives back; it is found by asking the kernel whether
 * its thread still lives, when heaps are short.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/registry.h"

#include "core/options.h"
#include "heap/full.h"
#include "heap/heap.h"
#include "heap/refill.h"
#include "heap/slab.h"
#include "os/os.h"
#include "page/span.h"

__attribute__((used, visibility("hidden"), tls_model("initial-exec"))) _Thread_local void* weir_thread_word =
    &heap_empty;

#define EMPTY_BINS {[0 ... CLASS_COUNT - 1] = {NULL, SLICE_BYTES}}
WEIR_VAR struct heap heap_empty = {.bins = EMPTY_BINS};
WEIR_VAR struct os_lock heaps_lock = {.rank = LOCK_HEAPS};
WEIR_VAR struct heap_totals heap_totals;
WEIR_VAR void (*heap_attach_hook)(void);
WEIR_VAR void (*heap_tick_hook)(void);

/* Sync: heaps_lock. */
static struct heap* registry;
static struct heap* spares;
static uint32_t registry_count;
static uint32_t sweep_at = 16; /* look for ended threads when the registry would grow past this */
static bool started;

static void heap_reset(struct heap* h) {
    for (unsigned c = 0; c < CLASS_COUNT; c++) {
        h->bins[c] = (struct bin){NULL, SLICE_BYTES};
        h->active[c] = NULL;
        h->available[c] = NULL;
    }
    for (unsigned i = 0; i < OUTBOX_SLOTS; i++) h->outbox[i] = (struct outbox){0};
    h->owner_word = (char*)h + (full_is_on() ? 1 : 0);
    h->kept_bytes = 0;
    h->slab_count = 0;
}

/* Under heaps_lock: move the figures of an ended heap to the totals and let another thread have it. */
static void heap_retire(struct heap* h) {
    add_relaxed(&heap_totals.handed_out, h->handed_out);
    add_relaxed(&heap_totals.remote_frees, h->remote_frees);
    add_relaxed(&heap_totals.slow_calls, h->slow_calls);
    sub_relaxed(&heap_totals.heaps_live, 1);
    store_relaxed(&h->handed_out, 0);
    store_relaxed(&h->remote_frees, 0);
    store_relaxed(&h->slow_calls, 0);
    heap_reset(h);
    store_relaxed(&h->tid, 0);
    h->spare_next = spares;
    spares = h;
}

/* Empty a heap out: every block and slab goes where other threads can use it. The caller owns h. */
static void heap_disband(struct heap* h) {
    outbox_flush_all(h);
    for (unsigned c = 0; c < CLASS_COUNT; c++) {
        bin_return(h, c);
        struct slice* s = h->active[c];
        h->active[c] = NULL;
        if (s != NULL) {
            s->flags &= (uint8_t)~SLICE_KEPT;
            orphan_put(h, s);
        }
        while ((s = h->available[c]) != NULL) {
            slab_list_remove(&h->available[c], s);
            orphan_put(h, s);
        }
    }
    h->kept_bytes = 0;
}

/* Under heaps_lock: heaps of threads that ended after their exit hook had run. */
static void registry_sweep(void) {
    for (struct heap* h = registry; h != NULL; h = h->registry_next) {
        int tid = load_relaxed(&h->tid);
        if (tid == 0 || os_thread_lives(tid)) continue;
        heap_disband(h);
        heap_retire(h);
    }
    sweep_at = registry_count * 2 > 16 ? registry_count * 2 : 16;
}

static struct heap* heap_take(int tid) {
    /* Thread ids are reused: a heap under our own id was left by a thread that is gone. */
    for (struct heap* h = registry; h != NULL && tid != 0; h = h->registry_next)
        if (load_relaxed(&h->tid) == tid) return h;
    if (spares == NULL && registry_count >= sweep_at) registry_sweep();
    struct heap* h = spares;
    if (h != NULL) {
        spares = h->spare_next;
    } else {
        h = span_meta_alloc(sizeof *h);
        if (h == NULL) return NULL;
        heap_reset(h);
        h->id = registry_count++;
        h->registry_next = registry;
        store_release(&registry, h); /* publishes the record to registry_visit */
    }
    store_relaxed(&h->tid, tid);
    uint64_t live = add_relaxed(&heap_totals.heaps_live, 1) + 1;
    if (live > load_relaxed(&heap_totals.heaps_peak)) store_relaxed(&heap_totals.heaps_peak, live);
    store_relaxed(&heap_totals.heaps_made, registry_count);
    return h;
}

WEIR_FN struct heap* heap_attach(void) {
    os_lock_take(&heaps_lock);
    if (!started) {
        started = true;
        core_options_start();
        region_start(core_options.reserve);
        full_start();
    }
    struct heap* h = heap_take(os_thread_id());
    if (h != NULL) arch_thread_word_set(h);
    os_lock_give(&heaps_lock);
    if (h != NULL && heap_attach_hook != NULL) heap_attach_hook();
    return h;
}

WEIR_FN void heap_detach(void) {
    struct heap* h = heap_self();
    if (h == &heap_empty) return;
    arch_thread_word_set(&heap_empty);
    heap_disband(h);
    os_lock_take(&heaps_lock);
    heap_retire(h);
    os_lock_give(&heaps_lock);
}

WEIR_FN void heap_collect(void) {
    struct heap* h = heap_self();
    if (h == &heap_empty) return;
    outbox_flush_all(h);
    for (unsigned c = 0; c < CLASS_COUNT; c++) {
        struct slice* s = h->active[c];
        if (s != NULL) {
            bin_return(h, c);
            slab_collect(s, "malloc_trim");
            h->active[c] = NULL;
            s->flags &= (uint8_t)~SLICE_KEPT;
            slab_list_push(&h->available[c], s);
        }
        for (s = h->available[c]; s != NULL;) {
            struct slice* next = s->next;
            slab_collect(s, "malloc_trim");
            if (s->until == 0) {
                slab_list_remove(&h->available[c], s);
                slab_release(h, s);
            }
            s = next;
        }
    }
    h->kept_bytes = 0;
}

WEIR_FN struct heap* registry_first(void) { return load_acquire(&registry); }

WEIR_FN void heap_fork_prepare(void) {
    os_lock_take(&heaps_lock);
    os_lock_take(&page_lock);
}

WEIR_FN void heap_fork_parent(void) {
    os_lock_give(&page_lock);
    os_lock_give(&heaps_lock);
}

/* A slab whose owner did not come along: nobody's now. Which of its free blocks were where, only the
 * owner knew, so they count as in use. */
static void slab_leave_behind(struct slice* s, void* survivor) {
    if (s->kind != SLICE_SLAB || load_relaxed(&s->owner) == survivor) return;
    if (load_relaxed(&s->owner) == NULL && (load_relaxed(&s->remote) & REMOTE_UNOWNED) != 0) return;
    slab_forget_free(s);
    store_relaxed(&s->owner, NULL);
    store_release(&s->remote, REMOTE_UNOWNED);
}

WEIR_FN void heap_fork_child(void) {
    struct heap* self = heap_self();
    os_lock_forget_sleepers(&heaps_lock);
    os_lock_forget_sleepers(&page_lock);
    span_visit((void (*)(struct slice*, void*))slab_leave_behind, self->owner_word);
    for (struct heap* h = registry; h != NULL; h = h->registry_next)
        if (h != self && load_relaxed(&h->tid) != 0) heap_retire(h);
    if (self != &heap_empty) store_relaxed(&self->tid, os_thread_id());
    heap_fork_parent();
}
