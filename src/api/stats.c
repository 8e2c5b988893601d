/* stats.c: weir_stats_* and the JSON form.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "api/stats.h"

#include <errno.h>
#include <stdlib.h>

#include "base/text.h"
#include "core/options.h"
#include "core/report.h"
#include "heap/census.h"
#include "heap/registry.h"
#include "os/os.h"
#include "page/release.h"
#include "page/span.h"
#include "pool/pool.h"

#define TEXT_OF(x) #x
#define VERSION_TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

WEIR_EXPORT const char* weir_version(void) {
    return VERSION_TEXT(WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR, WEIR_VERSION_PATCH);
}

WEIR_FN void stats_fill(struct weir_stats* out, struct census* t) {
    census_take(t);
    *out = (struct weir_stats){
        .struct_size = sizeof *out,
        .version = WEIR_STATS_VERSION,
        .live_bytes = t->live_bytes,
        .live_blocks = t->live_blocks,
        .cached_bytes = t->cached_bytes,
        .dirty_bytes = load_relaxed(&span_totals.dirty),
        .metadata_bytes = t->record_bytes + t->meta_bytes - load_relaxed(&span_totals.meta_unused),
        .committed_bytes = t->committed_bytes,
        .reserved_bytes = t->reserved_bytes,
        .alloc_calls = t->alloc_calls,
        .free_calls = t->alloc_calls > t->live_blocks ? t->alloc_calls - t->live_blocks : 0,
        .remote_frees = t->remote_frees,
        .slow_calls = t->slow_calls,
        .heaps_live = load_relaxed(&heap_totals.heaps_live),
        .heaps_total = load_relaxed(&heap_totals.heaps_made),
        .sys_map = load_relaxed(&os_call_counts[OS_MAP]),
        .sys_protect = load_relaxed(&os_call_counts[OS_PROTECT]),
        .sys_purge = load_relaxed(&os_call_counts[OS_PURGE]),
        .sys_remap = load_relaxed(&os_call_counts[OS_REMAP]),
        .sys_other = load_relaxed(&os_call_counts[OS_OTHER]),
        .purged_bytes = load_relaxed(&span_totals.purged),
        .misuse_reports = load_relaxed(&core_report_count),
        .refaulted_bytes = load_relaxed(&release_totals.refaulted),
        .scanned_bytes = load_relaxed(&release_totals.scanned),
        .release_calls = load_relaxed(&release_totals.calls),
        .release_window_ns = load_relaxed(&release_totals.window_ns),
        .hole_bytes = t->hole_bytes,
        .guarded_calls = t->guarded_calls,
        .guarded_freed = t->guarded_freed,
    };
    os_resident(&out->resident_bytes, &out->resident_peak_bytes);
}

WEIR_EXPORT int weir_stats_get(struct weir_stats* stats) {
    if (stats == NULL || stats->struct_size < 2 * sizeof(uint32_t)) return EINVAL;
    struct weir_stats all;
    struct census t;
    stats_fill(&all, &t);
    uint32_t size = stats->struct_size;
    if (size > sizeof all) return EINVAL;
    __builtin_memcpy(stats, &all, size);
    stats->struct_size = size;
    return 0;
}

WEIR_EXPORT int weir_stats_class_get(unsigned index, struct weir_stats_class* row) {
    if (index >= CLASS_COUNT) return ENOENT;
    struct census t;
    census_take(&t);
    const struct size_class* k = &size_classes[index];
    *row = (struct weir_stats_class){.block_bytes = k->bytes,
                                     .slabs = t.classes[index].slabs,
                                     .live_blocks = t.classes[index].live_blocks,
                                     .cached_blocks = t.classes[index].cached_blocks,
                                     .slab_bytes =
                                         t.classes[index].slabs * ((uint64_t)k->slices << SLICE_SHIFT)};
    return 0;
}

/* Negative in the heap: not known. */
static int32_t heap_thread(const struct heap* h) {
    int tid = load_relaxed(&h->tid);
    return tid > 0 ? tid : 0;
}

WEIR_EXPORT int weir_stats_heap_get(unsigned index, struct weir_stats_heap* row) {
    const struct heap* h = registry_first();
    for (; h != NULL && index != 0; index--) h = h->registry_next;
    if (h == NULL) return ENOENT;
    struct census_heap t = {.heap = h};
    census_take_heap(&t);
    *row = (struct weir_stats_heap){.id = h->id,
                                    .tid = heap_thread(h),
                                    .slabs = t.slabs,
                                    .live_bytes = t.live_bytes,
                                    .cached_bytes = t.cached_bytes};
    return 0;
}

/* JSON through a small buffer that is written out when it fills. */
struct json {
    struct text text;
    int fd;
    int error;
    char buffer[4096];
};

static void json_flush(struct json* j) {
    if (j->error == 0) j->error = os_write(j->fd, j->buffer, j->text.length);
    j->text.length = 0;
}

/* Make room for `bytes` more. */
static void json_room(struct json* j, size_t bytes) {
    if (j->text.size - j->text.length < bytes) json_flush(j);
}

static void json_field(struct json* j, const char* name, uint64_t value, bool last) {
    json_room(j, 128);
    text_char(&j->text, '"');
    text_string(&j->text, name);
    text_string(&j->text, "\":");
    text_number(&j->text, value);
    if (!last) text_char(&j->text, ',');
}

static void json_string(struct json* j, const char* s) {
    json_room(j, 128);
    text_string(&j->text, s);
}

static void json_totals(struct json* j, const struct weir_stats* all) {
#define FIELD(name) json_field(j, #name, all->name, false)
    FIELD(live_bytes);
    FIELD(live_blocks);
    FIELD(cached_bytes);
    FIELD(dirty_bytes);
    FIELD(metadata_bytes);
    FIELD(resident_bytes);
    FIELD(resident_peak_bytes);
    FIELD(committed_bytes);
    FIELD(reserved_bytes);
    FIELD(alloc_calls);
    FIELD(free_calls);
    FIELD(remote_frees);
    FIELD(slow_calls);
    FIELD(heaps_live);
    FIELD(heaps_total);
    FIELD(sys_map);
    FIELD(sys_protect);
    FIELD(sys_purge);
    FIELD(sys_remap);
    FIELD(sys_other);
    FIELD(purged_bytes);
    FIELD(misuse_reports);
    FIELD(refaulted_bytes);
    FIELD(scanned_bytes);
    FIELD(release_calls);
    FIELD(release_window_ns);
    FIELD(hole_bytes);
    FIELD(guarded_calls);
    FIELD(guarded_freed);
#undef FIELD
}

static void json_classes(struct json* j, const struct census* t) {
    bool first = true;
    for (unsigned c = 0; c < CLASS_COUNT; c++) {
        const struct census_class* k = &t->classes[c];
        if (k->slabs == 0 && k->live_blocks == 0 && k->cached_blocks == 0) continue;
        json_string(j, first ? "{" : ",{");
        first = false;
        json_field(j, "block_bytes", size_classes[c].bytes, false);
        json_field(j, "slabs", k->slabs, false);
        json_field(j, "live_blocks", k->live_blocks, false);
        json_field(j, "cached_blocks", k->cached_blocks, false);
        json_field(j, "slab_bytes", k->slabs * ((uint64_t)size_classes[c].slices << SLICE_SHIFT), true);
        json_string(j, "}");
    }
}

static void json_heaps(struct json* j) {
    bool first = true;
    for (const struct heap* h = registry_first(); h != NULL; h = h->registry_next) {
        struct census_heap t = {.heap = h};
        census_take_heap(&t);
        json_string(j, first ? "{" : ",{");
        first = false;
        json_field(j, "id", h->id, false);
        json_field(j, "tid", (uint64_t)heap_thread(h), false);
        json_field(j, "slabs", t.slabs, false);
        json_field(j, "live_bytes", t.live_bytes, false);
        json_field(j, "cached_bytes", t.cached_bytes, true);
        json_string(j, "}");
    }
}

static void json_pool(struct json* j, const struct weir_pool_stats* row, bool first) {
    json_string(j, first ? "{\"name\":" : ",{\"name\":");
    json_room(j, 6 * sizeof row->name + 2);
    text_quoted(&j->text, row->name);
    json_string(j, ",");
#define FIELD(name) json_field(j, #name, row->name, false)
    FIELD(object_bytes);
    FIELD(block_bytes);
    FIELD(users);
    FIELD(storage);
    FIELD(allocated);
    FIELD(used);
    FIELD(cached);
    FIELD(shared);
    FIELD(held);
    FIELD(needed);
    FIELD(magazine);
    FIELD(limit);
    FIELD(failed);
#undef FIELD
    json_string(j, "\"flags\":[");
    bool some = false;
    for (unsigned i = 0; i < POOL_FLAG_COUNT; i++) {
        if ((row->flags & pool_flags[i].flag) == 0) continue;
        json_string(j, some ? ",\"" : "\"");
        json_string(j, pool_flags[i].word);
        json_string(j, "\"");
        some = true;
    }
    json_string(j, "]}");
}

/* Pools are looked at a few at a time: nothing is written under their lock. */
enum { POOL_ROWS = 16 };
struct pool_rows {
    unsigned count;
    uint64_t last; /* number of the pool in the last row */
    struct weir_pool_stats rows[POOL_ROWS];
};

static bool pool_rows_add(const struct pool* pool, const struct weir_pool_stats* figures, void* context) {
    struct pool_rows* r = context;
    r->rows[r->count++] = *figures;
    r->last = pool->number;
    return r->count < POOL_ROWS;
}

static void json_pools(struct json* j) {
    struct pool_rows r = {.last = 0};
    bool first = true;
    do {
        r.count = 0;
        os_lock_take(&pools_lock);
        pool_visit(r.last, pool_rows_add, &r);
        os_lock_give(&pools_lock);
        for (unsigned i = 0; i < r.count; i++) {
            json_pool(j, &r.rows[i], first);
            first = false;
        }
    } while (r.count == POOL_ROWS);
}

WEIR_EXPORT int weir_stats_json(int fd) {
    struct weir_stats all;
    struct census t;
    stats_fill(&all, &t);
    struct json j = {.fd = fd, .error = 0};
    j.text = text_make(j.buffer, sizeof j.buffer);
    json_string(&j, "{\"weir\":\"");
    json_string(&j, weir_version());
    json_string(&j, "\",");
    json_field(&j, "version", WEIR_STATS_VERSION, false);
    json_totals(&j, &all);
    json_string(&j, "\"classes\":[");
    json_classes(&j, &t);
    json_string(&j, "],\"heaps\":[");
    json_heaps(&j);
    json_string(&j, "],\"pools\":[");
    json_pools(&j);
    json_string(&j, "]}\n");
    json_flush(&j);
    return j.error;
}
