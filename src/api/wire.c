/* wire.c: see wire.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "api/wire.h"

#include "api/stats.h"
#include "heap/heap.h"
#include "os/os.h"
#include "page/release.h"
#include "page/span.h"
#include "pool/pool.h"
#include "weir/wire.h"

enum { REFRESH_EARLY = 4, REFRESH_CALLS = 64 };
/* A refresh walks all records, which in a large heap takes a while: the pause after it is 100 times as long,
 * within these bounds. */
#define REFRESH_NS 5000000u
#define REFRESH_NS_MAX 50000000u

static struct weir_wire_header* wire_file;
static struct weir_wire_slot* wire_slot; /* Sync: set by the constructor and by the only thread of a child */
WEIR_WIDE(wire)
static struct weir_stats wire_inherited;  /* a fork's child: its parent's counts; Sync: as wire_slot */
static struct weir_wire_pool* wire_pools; /* the rows; NULL: the file has none. Sync: the constructor */
/* Which of the file's chunks has the rows of pools 16 * i to 16 * i + 15, plus 1; 0: none yet. Sync:
 * pools_lock. */
WEIR_WIDE(wire) static uint16_t wire_chunks[CHUNKS];
static uint64_t wire_due_ns; /* Sync: relaxed; whoever moves it on refreshes */

static void wire_claim(void) {
    wire_slot = NULL;
    /* Asked before the increment, which no number of processes may carry around. */
    uint32_t index = load_relaxed(&wire_file->slots_claimed);
    if (index < wire_file->slot_count) index = add_relaxed(&wire_file->slots_claimed, 1);
    if (index >= wire_file->slot_count) {
        add_relaxed(&wire_file->slots_refused, 1);
        return;
    }
    struct weir_wire_slot* slot = (struct weir_wire_slot*)(wire_file + 1) + index;
    slot->pid = os_process_id();
    slot->parent_pid = os_parent_id();
    slot->start_ns = os_clock_ns();
    os_read_link(WEIR_TEXT("/proc/self/exe"), slot->exe, sizeof slot->exe);
    wire_slot = slot;
}

/* ---- Object pools: a pool's row is found by its id, so that a row serves one pool until that ends. */

static_assert(CHUNK_POOLS == WEIR_WIRE_POOL_CHUNK && POOL_NAME_BYTES == WEIR_WIRE_POOL_NAME_BYTES,
              "chunks and names are those of pools");
static_assert(WEIR_WIRE_POOL_COUNT_MAX / WEIR_WIRE_POOL_CHUNK < UINT16_MAX, "a chunk's number fits");

struct wire_pools_look {
    const struct weir_wire_slot*
        slot; /* other than wire_slot: a handler forked meanwhile, and this is the child */
    uint64_t now;
    uint32_t pools;
    uint32_t left_out;
};

/* NULL: all chunks are taken. */
static struct weir_wire_pool* wire_row(const struct wire_pools_look* look, uint32_t id) {
    uint16_t* chunk = &wire_chunks[id / CHUNK_POOLS];
    uint32_t chunks = wire_file->pool_count / CHUNK_POOLS;
    /* Asked before the increment, which no number of pools may carry around. */
    if (*chunk == 0 && load_relaxed(&wire_file->pool_chunks_claimed) < chunks) {
        uint32_t index = add_relaxed(&wire_file->pool_chunks_claimed, 1);
        if (index < chunks) *chunk = (uint16_t)(index + 1);
        if (look->slot != load_relaxed(&wire_slot)) *chunk = 0; /* it may be the parent's */
    }
    return *chunk == 0 ? NULL : &wire_pools[(*chunk - 1) * CHUNK_POOLS + id % CHUNK_POOLS];
}

static bool wire_pool(const struct pool* pool, const struct weir_pool_stats* figures, void* context) {
    struct wire_pools_look* look = context;
    if (look->slot != load_relaxed(&wire_slot)) return false;
    look->pools++;
    struct weir_wire_pool* row = wire_row(look, pool->id);
    if (row == NULL) {
        look->left_out++;
        return true;
    }
    struct weir_wire_pool all = {
        .slot = (uint32_t)(look->slot - (struct weir_wire_slot*)(wire_file + 1)) + 1,
        .flags = figures->flags,
        .number = pool->number,
        .object_bytes = figures->object_bytes,
        .block_bytes = figures->block_bytes,
        .users = figures->users,
        .storage = figures->storage,
        .allocated = figures->allocated,
        .used = figures->used,
        .held = figures->held,
        .cached = figures->cached,
        .shared = figures->shared,
        .needed = figures->needed,
        .magazine = figures->magazine,
        .limit = figures->limit,
        .failed = figures->failed,
        .seen_ns = look->now,
    };
    __builtin_memcpy(all.name, figures->name, sizeof all.name);
    *row = all;
    return true;
}

/* Rows of pools that ended. */
static void wire_pools_sweep(const struct wire_pools_look* look) {
    for (uint32_t c = 0; c < CHUNKS; c++) {
        if (wire_chunks[c] == 0) continue;
        struct weir_wire_pool* rows = &wire_pools[(wire_chunks[c] - 1) * CHUNK_POOLS];
        for (uint32_t i = 0; i < CHUNK_POOLS; i++)
            if (rows[i].seen_ns != look->now) rows[i].slot = 0;
    }
}

/* Only the end waits for who is at work on the list of pools, unless that is what this thread left to end. */
static void wire_pools_refresh(uint64_t now, bool last) {
    if (wire_pools == NULL) return;
    if (last && !os_lock_is_mine(&pools_lock))
        os_lock_take(&pools_lock);
    else if (!os_lock_try(&pools_lock))
        return;
    struct weir_wire_slot* slot = wire_slot;
    if (slot == NULL) { /* a handler forked meanwhile, and there is none for the child */
        os_lock_give(&pools_lock);
        return;
    }
    struct wire_pools_look look = {.slot = slot, .now = now, .pools = 0, .left_out = 0};
    store_relaxed(&slot->pools_turn, slot->pools_turn + 1);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* before the rows change */
    uint64_t made = pool_visit(0, wire_pool, &look);
    if (slot == load_relaxed(&wire_slot)) {
        wire_pools_sweep(&look);
        store_relaxed(&slot->pools_made, made);
        store_relaxed(&slot->pools, look.pools);
        store_relaxed(&slot->pools_left_out, (uint64_t)look.left_out);
        store_release(&slot->pools_turn, slot->pools_turn + 1); /* publishes the rows */
    }
    os_lock_give(&pools_lock);
}

/* ---- Refresh. */

static uint64_t wire_sys_calls(const struct weir_stats* all) {
    return all->sys_map + all->sys_protect + all->sys_purge + all->sys_remap + all->sys_other;
}

static void* wire_writer; /* who writes the slot's figures; NULL: nobody. Sync: atomic, acq_rel */

/* False: another is at it, whose figures are as good. Only the end waits, a tenth of a second at most: who is
 * at it may have been stopped. */
static bool wire_write_begin(bool last) {
    enum { looks = 100 };
    for (int look = 0; look < looks; look++) {
        void* writer = NULL;
        if (cas_acq_rel(&wire_writer, &writer, arch_thread_pointer())) return true;
        if (!last || writer == arch_thread_pointer()) break; /* a signal handler of its own */
        uint32_t never = 0;
        os_futex_wait_for(&never, 0, 1000000);
    }
    return last;
}

static void wire_refresh(bool last) {
    if (!wire_write_begin(last)) return;
    struct weir_wire_slot* slot = wire_slot;
    struct weir_stats all;
    struct census t;
    stats_fill(&all, &t);
    if (slot != load_relaxed(&wire_slot)) return; /* a handler forked, and this is the child */
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
    uint64_t now = os_clock_ns();
    wire_pools_refresh(now, last);
    store_relaxed(&slot->refreshed_ns, now);
    if (!last) store_release(&wire_writer, (void*)NULL); /* after the end nobody writes any more */
}

/* One thread refreshes when it is time, whoever that is: the thread needs no heap. */
static void wire_look(void) {
    uint64_t now = os_clock_ns();
    uint64_t due = load_relaxed(&wire_due_ns);
    if (now < due || !cas_acq_rel(&wire_due_ns, &due, now + REFRESH_NS)) return;
    if (wire_slot == NULL) return;
    wire_refresh(false);
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
        if (wire_slot != NULL) wire_refresh(false);
        return;
    }
    if ((calls & (REFRESH_CALLS - 1)) == 0) wire_look();
}

static struct weir_wire_pool* wire_rows(struct weir_wire_header* file) {
    return (struct weir_wire_pool*)((struct weir_wire_slot*)(file + 1) + file->slot_count);
}

static bool wire_fits(const struct weir_wire_header* file, size_t bytes) {
    if (file->magic != WEIR_WIRE_MAGIC || file->version != WEIR_WIRE_VERSION) return false;
    if (file->slot_bytes != sizeof(struct weir_wire_slot) || file->slot_count > WEIR_WIRE_SLOT_COUNT_MAX)
        return false;
    bool rows = file->pool_count != 0;
    if (rows && (file->pool_bytes != sizeof(struct weir_wire_pool) ||
                 file->pool_count % WEIR_WIRE_POOL_CHUNK != 0 || file->pool_count > WEIR_WIRE_POOL_COUNT_MAX))
        return false;
    size_t end = sizeof *file + (size_t)file->slot_count * sizeof(struct weir_wire_slot);
    return bytes >= end + (size_t)file->pool_count * sizeof(struct weir_wire_pool);
}

static WEIR_NOINLINE void wire_open_file(const char* path) {
    size_t bytes = 0;
    struct weir_wire_header* file = os_map_file(path, &bytes);
    if (file == NULL) return;
    if (bytes < sizeof *file || !wire_fits(file, bytes)) {
        os_unmap(file, bytes);
        return;
    }
    wire_file = file;
    if (file->pool_count != 0) wire_pools = wire_rows(file);
    wire_claim();
    if (wire_slot == NULL) return;
    store_release(&wire_slot->state, (uint32_t)WEIR_WIRE_LOADED); /* publishes the identity fields */
    heap_tick_hook = wire_tick;
    heap_long_hook = wire_look;
    release_tick_hook = wire_look;
    pool_tick_hook = wire_look;
}

WEIR_FN void wire_open(void) {
    const char* path = os_environment(WEIR_TEXT("WEIR_WIRE"));
    if (path != NULL) wire_open_file(path);
}

WEIR_FN void wire_reached(void) {
    if (wire_slot == NULL || load_relaxed(&wire_slot->state) == WEIR_WIRE_REACHED) return;
    store_release(&wire_slot->state, (uint32_t)WEIR_WIRE_REACHED); /* as in wire_open */
}

/* What the parent said last. */
static void wire_inherit(const struct weir_wire_slot* parent) {
    struct weir_stats* to = &wire_inherited;
    to->live_bytes = load_relaxed(&parent->live_bytes);
    to->alloc_calls += load_relaxed(&parent->alloc_calls);
    to->free_calls += load_relaxed(&parent->free_calls);
    to->remote_frees += load_relaxed(&parent->remote_frees);
    to->slow_calls += load_relaxed(&parent->slow_calls);
    to->sys_purge += load_relaxed(&parent->sys_purge);
    to->sys_other += load_relaxed(&parent->sys_calls) - load_relaxed(&parent->sys_purge);
    to->purged_bytes += load_relaxed(&parent->purged_bytes);
    to->misuse_reports += load_relaxed(&parent->misuse_reports);
    to->refaulted_bytes += load_relaxed(&parent->refaulted_bytes);
    to->scanned_bytes += load_relaxed(&parent->scanned_bytes);
    to->release_calls += load_relaxed(&parent->release_calls);
}

WEIR_FN void wire_forked(void) {
    if (wire_file == NULL) return;
    const struct weir_wire_slot* parent = wire_slot;
    store_relaxed(&wire_writer, (void*)NULL); /* its thread did not come along, or will find another slot */
    __builtin_memset(wire_chunks, 0, sizeof wire_chunks); /* those rows are the parent's */
    wire_claim();
    if (wire_slot == NULL) return;
    struct census t;
    /* A handler forked while its thread was changing spans, to which the child may return: they are not to be
     * looked at now. */
    if (!os_lock_is_mine(&page_lock))
        stats_fill(&wire_inherited, &t);
    else if (parent != NULL)
        wire_inherit(parent);
    store_relaxed(&wire_slot->live_bytes, wire_inherited.live_bytes);
    store_release(&wire_slot->state, (uint32_t)WEIR_WIRE_FORKED); /* as in wire_open */
}

WEIR_FN void wire_ended(void) {
    if (wire_slot == NULL) return;
    wire_refresh(true);
    store_relaxed(&wire_slot->end_ns, os_clock_ns());
    /* A process in which no call came stays LOADED: that is what the reader wants to know. */
    if (load_relaxed(&wire_slot->state) != WEIR_WIRE_LOADED)
        store_release(&wire_slot->state, (uint32_t)WEIR_WIRE_ENDED); /* publishes the figures */
}
