/* wire.c: see wire.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "api/wire.h"

#include "api/stats.h"
#include "heap/heap.h"
#include "os/os.h"
#include "page/release.h"
#include "weir/wire.h"

enum { REFRESH_EARLY = 4, REFRESH_CALLS = 64 };
/* A refresh walks all records, which in a large heap takes a while: the pause after it is 100 times as long,
 * within these bounds. */
#define REFRESH_NS 5000000u
#define REFRESH_NS_MAX 50000000u

static struct weir_wire_header* wire_file;
static struct weir_wire_slot* wire_slot; /* Sync: set by the constructor and by the only thread of a child */
static struct weir_stats wire_inherited; /* a fork's child: its parent's counts; Sync: as wire_slot */
static uint64_t wire_due_ns;             /* Sync: relaxed; whoever moves it on refreshes */

static void wire_claim(void) {
    uint32_t index = add_relaxed(&wire_file->slots_claimed, 1);
    wire_slot = NULL;
    if (index >= wire_file->slot_count) {
        add_relaxed(&wire_file->slots_refused, 1);
        return;
    }
    struct weir_wire_slot* slot = (struct weir_wire_slot*)(wire_file + 1) + index;
    slot->pid = os_process_id();
    slot->parent_pid = os_parent_id();
    slot->start_ns = os_clock_ns();
    os_read_link("/proc/self/exe", slot->exe, sizeof slot->exe);
    wire_slot = slot;
}

static uint64_t wire_sys_calls(const struct weir_stats* all) {
    return all->sys_map + all->sys_protect + all->sys_purge + all->sys_remap + all->sys_other;
}

static void wire_refresh(void) {
    struct weir_wire_slot* slot = wire_slot;
    struct weir_stats all;
    struct census t;
    stats_fill(&all, &t);
    store_relaxed(&slot->threads_max, (uint32_t)load_relaxed(&heap_totals.heaps_peak));
    store_relaxed(&slot->live_bytes, all.live_bytes);
    if (all.live_bytes > slot->live_peak_bytes) store_relaxed(&slot->live_peak_bytes, all.live_bytes);
    store_relaxed(&slot->cached_bytes, all.cached_bytes);
    store_relaxed(&slot->dirty_bytes, all.dirty_bytes);
    store_relaxed(&slot->metadata_bytes, all.metadata_bytes);
    store_relaxed(&slot->resident_bytes, all.resident_bytes);
    store_relaxed(&slot->resident_peak_bytes, all.resident_peak_bytes);
    store_relaxed(&slot->committed_bytes, all.committed_bytes);
    const struct weir_stats* old = &wire_inherited;
    store_relaxed(&slot->alloc_calls, all.alloc_calls - old->alloc_calls);
    store_relaxed(&slot->free_calls, all.free_calls - old->free_calls);
    store_relaxed(&slot->remote_frees, all.remote_frees - old->remote_frees);
    store_relaxed(&slot->slow_calls, all.slow_calls - old->slow_calls);
    store_relaxed(&slot->sys_calls, wire_sys_calls(&all) - wire_sys_calls(old));
    store_relaxed(&slot->sys_purge, all.sys_purge - old->sys_purge);
    store_relaxed(&slot->purged_bytes, all.purged_bytes - old->purged_bytes);
    store_relaxed(&slot->misuse_reports, all.misuse_reports - old->misuse_reports);
    store_relaxed(&slot->refaulted_bytes, all.refaulted_bytes - old->refaulted_bytes);
    store_relaxed(&slot->scanned_bytes, all.scanned_bytes - old->scanned_bytes);
    store_relaxed(&slot->release_calls, all.release_calls - old->release_calls);
    store_relaxed(&slot->release_window_ns, all.release_window_ns);
    store_relaxed(&slot->hole_bytes, all.hole_bytes);
}

/* One thread refreshes when it is time, whoever that is: the thread needs no heap. */
static void wire_look(void) {
    uint64_t now = os_clock_ns();
    uint64_t due = load_relaxed(&wire_due_ns);
    if (now < due || !cas_acq_rel(&wire_due_ns, &due, now + REFRESH_NS)) return;
    if (wire_slot == NULL) return;
    wire_refresh();
    uint64_t pause = (os_clock_ns() - now) * 100;
    if (pause > REFRESH_NS_MAX) pause = REFRESH_NS_MAX;
    if (pause > REFRESH_NS) store_relaxed(&wire_due_ns, now + pause);
}

/* On the slow path: look at the clock now and then, and let one thread refresh when it is time. Two early
 * refreshes serve processes that are short and end without running destructors; a refresh takes some
 * 50 us, so there are no more of them. */
static void wire_tick(void) {
    uint64_t calls = heap_self()->slow_calls;
    if (calls == REFRESH_EARLY || calls == REFRESH_EARLY * 8) {
        if (wire_slot != NULL) wire_refresh();
        return;
    }
    if ((calls & (REFRESH_CALLS - 1)) == 0) wire_look();
}

WEIR_FN void wire_open(void) {
    const char* path = os_environment("WEIR_WIRE");
    if (path == NULL) return;
    size_t bytes = 0;
    struct weir_wire_header* file = os_map_file(path, &bytes);
    if (file == NULL) return;
    if (bytes < sizeof *file || file->magic != WEIR_WIRE_MAGIC || file->version != WEIR_WIRE_VERSION ||
        file->slot_bytes != sizeof(struct weir_wire_slot) || file->slot_count > WEIR_WIRE_SLOT_COUNT_MAX ||
        bytes < sizeof *file + (size_t)file->slot_count * sizeof(struct weir_wire_slot)) {
        os_unmap(file, bytes);
        return;
    }
    wire_file = file;
    wire_claim();
    if (wire_slot == NULL) return;
    store_release(&wire_slot->state, (uint32_t)WEIR_WIRE_LOADED); /* publishes the identity fields */
    heap_tick_hook = wire_tick;
    heap_large_hook = wire_look;
    release_tick_hook = wire_look;
}

WEIR_FN void wire_reached(void) {
    if (wire_slot == NULL || load_relaxed(&wire_slot->state) == WEIR_WIRE_REACHED) return;
    store_release(&wire_slot->state, (uint32_t)WEIR_WIRE_REACHED); /* as in wire_open */
}

WEIR_FN void wire_forked(void) {
    if (wire_file == NULL) return;
    wire_claim();
    if (wire_slot == NULL) return;
    struct census t;
    stats_fill(&wire_inherited, &t);
    store_relaxed(&wire_slot->live_bytes, wire_inherited.live_bytes);
    store_release(&wire_slot->state, (uint32_t)WEIR_WIRE_FORKED); /* as in wire_open */
}

WEIR_FN void wire_ended(void) {
    if (wire_slot == NULL) return;
    wire_refresh();
    store_relaxed(&wire_slot->end_ns, os_clock_ns());
    /* A process in which no call came stays LOADED: that is what the reader wants to know. */
    if (load_relaxed(&wire_slot->state) != WEIR_WIRE_LOADED)
        store_release(&wire_slot->state, (uint32_t)WEIR_WIRE_ENDED); /* publishes the figures */
}
