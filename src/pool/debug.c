/* debug.c: see debug.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "pool/debug.h"

#include "base/text.h"
#include "core/options.h"
#include "core/report.h"
#include "os/os.h"
#include "page/span.h"

enum { BUCKETS = 4096, FILL_ALLOC = 0x50, FILL_FREE = 0xdd, TAG_BYTES = 8 };

/*  area [ ........ slack | object | tag ][ guard page ]      guard mode; elsewhere the object starts a block
 *  Sync: pools_lock. */
struct pool_object {
    struct pool_object* chain; /* of the same bucket */
    struct pool_object* next;  /* in the pool's queue, or among the spare records */
    struct pool* pool;
    char* p;
    char* area; /* guard mode: a mapping of area_bytes, the guard page included */
    size_t area_bytes;
    bool live;
    const void* alloc_caller;
    const void* free_caller;
    int alloc_thread;
    int free_thread;
};

static struct pool_object** object_buckets; /* by address; Sync: pools_lock */
static struct pool_object* debug_spares;

/* ---- What is wanted. */

WEIR_VAR const struct pool_flag pool_flags[POOL_FLAG_COUNT] = {
    {"exact", WEIR_POOL_EXACT},         {"zero", WEIR_POOL_ZERO},
    {"poison", WEIR_POOL_POISON},       {"caller", WEIR_POOL_CALLER},
    {"integrity", WEIR_POOL_INTEGRITY}, {"tag", WEIR_POOL_TAG},
    {"guard", WEIR_POOL_GUARD},         {"cold_first", WEIR_POOL_COLD_FIRST},
    {"no_cache", WEIR_POOL_NO_CACHE},   {"no_merge", WEIR_POOL_NO_MERGE},
};

static size_t part_length(const char* text) {
    size_t length = 0;
    while (text[length] != '\0' && text[length] != ',' && text[length] != '@') length++;
    return length;
}

/* fail=RATE: percent of the calls. */
static bool fail_parse(const char* word, size_t length, uint32_t* percent) {
    enum { prefix = 5 };
    if (length <= prefix || length > prefix + 3 || !text_equal(word, prefix, "fail=")) return false;
    uint32_t n = 0;
    for (size_t i = prefix; i < length; i++) {
        if (word[i] < '0' || word[i] > '9') return false;
        n = n * 10 + (uint32_t)(word[i] - '0');
    }
    *percent = n > 100 ? 100 : n;
    return true;
}

static void word_warn(const char* word, size_t length) {
    static bool warned; /* Sync: pools_lock */
    if (warned) return;
    warned = true;
    char line[200];
    struct text t = text_make(line, sizeof line - 1);
    text_string(&t, "weir: option 'pool_debug' does not know '");
    for (size_t i = 0; i < length && i < 40; i++) text_char(&t, word[i]);
    text_string(
        &t, "'; it takes poison,integrity,caller,tag,cold_first,guard,no_cache,no_merge,fail=PERCENT@NAMES");
    line[t.length++] = '\n';
    os_write(2, line, t.length);
}

/* Whether `name` is one of the names in "a,b*,c"; without names, every one is. */
static bool names_hold(const char* names, const char* name) {
    if (*names == '\0') return true;
    while (*names != '\0') {
        size_t length = part_length(names);
        bool prefix = length != 0 && names[length - 1] == '*';
        size_t same = 0;
        while (same < length - prefix && name[same] == names[same]) same++;
        if (same == length - prefix && (prefix || name[same] == '\0')) return true;
        names += length;
        if (*names != '\0') names++;
    }
    return false;
}

static void option_apply(struct pool* pool) {
    const char* text = (const char*)(uintptr_t)core_options.pool_debug;
    if (text == NULL) return;
    const char* names = text;
    while (*names != '\0' && *names != '@') names++;
    bool wanted = names_hold(*names == '@' ? names + 1 : names, pool->name);
    while (text < names) {
        size_t length = part_length(text);
        uint32_t flag = 0;
        uint32_t percent = pool->fail_percent;
        for (size_t i = POOL_FLAG_OPTIONS; i < POOL_FLAG_COUNT; i++)
            if (text_equal(text, length, pool_flags[i].word)) flag = pool_flags[i].flag;
        if (flag == 0 && !fail_parse(text, length, &percent)) word_warn(text, length);
        if (wanted) {
            pool->flags |= flag;
            pool->fail_percent = percent;
        }
        text += length;
        if (text < names) text++;
    }
}

WEIR_FN void debug_configure(struct pool* pool) {
    option_apply(pool);
    if ((pool->flags & POOL_WATCHED) != 0) pool->slow |= POOL_DEBUGGED;
    if ((pool->flags & WEIR_POOL_NO_CACHE) != 0) pool->slow |= POOL_UNCACHED;
    if (pool->fail_percent != 0) pool->slow |= POOL_FAILING;
}

WEIR_FN size_t debug_bytes(const struct pool* pool) {
    return pool->size + ((pool->flags & WEIR_POOL_TAG) != 0 ? TAG_BYTES : 0);
}

WEIR_FN bool debug_fails(struct pool* pool) {
    uint64_t n = add_relaxed(&pool->calls, 1) * 0x9e3779b97f4a7c15u;
    return (n >> 32) * 100 >> 32 < pool->fail_percent;
}

/* ---- Records by address. */

static struct pool_object** object_bucket(const void* p) {
    return &object_buckets[((uintptr_t)p * 0x9e3779b97f4a7c15u) >> 52];
}
static_assert(BUCKETS == 1 << 12, "the hash's upper 12 bits");

static struct pool_object* object_find(const void* p) {
    if (object_buckets == NULL) return NULL;
    struct pool_object* o = *object_bucket(p);
    while (o != NULL && o->p != p) o = o->chain;
    return o;
}

static struct pool_object* record_take(void) {
    if (object_buckets == NULL)
        object_buckets = (struct pool_object**)span_meta_alloc(BUCKETS * sizeof object_buckets[0]);
    if (object_buckets == NULL) return NULL;
    struct pool_object* o = debug_spares;
    if (o == NULL) return span_meta_alloc(sizeof *o);
    debug_spares = o->next;
    *o = (struct pool_object){0};
    return o;
}

static void record_put(struct pool_object* o) {
    o->next = debug_spares;
    debug_spares = o;
}

/* ---- Objects. */

static size_t guard_bytes(const struct pool* pool) {
    return align_up(align_up(debug_bytes(pool), pool->align), os_page_bytes());
}

/* Memory for an object, at the end of its area. */
static bool object_map(struct pool* pool, struct pool_object* o) {
    if ((pool->flags & WEIR_POOL_GUARD) == 0) {
        o->p = storage_object(pool->storage);
        return o->p != NULL;
    }
    size_t bytes = guard_bytes(pool);
    size_t align = pool->align > os_page_bytes() ? pool->align : os_page_bytes();
    o->area_bytes = bytes + os_page_bytes();
    o->area = os_reserve(o->area_bytes, align);
    if (o->area == NULL) return false;
    if (!os_commit(o->area, bytes)) {
        os_unmap(o->area, o->area_bytes);
        return false;
    }
    o->p = (char*)align_down((uintptr_t)o->area + bytes - debug_bytes(pool), pool->align);
    add_relaxed(&pool->storage->allocated, 1);
    return true;
}

static void object_unmap(struct pool_object* o) {
    if (o->area == NULL) {
        storage_object_free(o->pool->storage, o->p);
        return;
    }
    os_unmap(o->area, o->area_bytes);
    sub_relaxed(&o->pool->storage->allocated, 1);
}

static bool object_cover(const struct pool_object* o, bool accessible) {
    return o->area == NULL || os_cover(o->area, o->area_bytes - os_page_bytes(), accessible);
}

static struct pool_object* object_make(struct pool* pool) {
    struct pool_object* o = record_take();
    if (o == NULL) return NULL;
    o->pool = pool;
    if (!object_map(pool, o)) {
        record_put(o);
        return NULL;
    }
    struct pool_object** bucket = object_bucket(o->p);
    o->chain = *bucket;
    *bucket = o;
    return o;
}

static void object_drop(struct pool_object* o) {
    struct pool_object** link = object_bucket(o->p);
    while (*link != o) link = &(*link)->chain;
    *link = o->chain;
    object_unmap(o);
    record_put(o);
}

/* ---- Content. */

static unsigned char fill_byte(const struct pool_object* o, size_t offset) {
    return (unsigned char)(((uintptr_t)o->p >> 4) * 0x9d + offset * 0x3b + 0x71);
}

static uint64_t tag_of(const struct pool_object* o) {
    return (uintptr_t)o->p * 0xd6e8feb86659fd93u ^ (uintptr_t)o->pool;
}

static void tag_write(const struct pool_object* o) {
    uint64_t tag = tag_of(o);
    if ((o->pool->flags & WEIR_POOL_TAG) != 0) __builtin_memcpy(o->p + o->pool->size, &tag, TAG_BYTES);
}

static bool tag_is_whole(const struct pool_object* o) {
    uint64_t tag = tag_of(o);
    return (o->pool->flags & WEIR_POOL_TAG) == 0 ||
           __builtin_memcmp(o->p + o->pool->size, &tag, TAG_BYTES) == 0;
}

/* What a freed object is filled with, so that it shows who writes to it. Freed ones of guard mode cannot be.
 */
static void freed_fill(const struct pool_object* o) {
    uint32_t flags = o->pool->flags;
    if ((flags & WEIR_POOL_GUARD) != 0) return;
    if ((flags & WEIR_POOL_INTEGRITY) != 0) {
        for (size_t i = 0; i < o->pool->size; i++) o->p[i] = (char)fill_byte(o, i);
    } else if ((flags & WEIR_POOL_POISON) != 0) {
        __builtin_memset(o->p, FILL_FREE, o->pool->size);
    }
}

/* The first byte that is not what freed_fill wrote; the object's size: none. */
static size_t freed_offset(const struct pool_object* o) {
    uint32_t flags = o->pool->flags;
    if ((flags & WEIR_POOL_INTEGRITY) == 0 || (flags & WEIR_POOL_GUARD) != 0) return o->pool->size;
    size_t i = 0;
    while (i < o->pool->size && (unsigned char)o->p[i] == fill_byte(o, i)) i++;
    return i;
}

/* ---- Reports. */

static void report_caller(struct text* t, const char* what, const void* caller, int thread) {
    text_string(t, what);
    text_hex(t, (uintptr_t)caller);
    text_string(t, " in thread ");
    text_number(t, (uint64_t)thread);
}

/* `o` is a copy: nothing is locked while something is said. */
static void object_report(const struct pool_object* o, const char* code, const char* what, const char* of,
                          const void* p, size_t offset, const char* call) {
    char line[320];
    struct text t = text_make(line, sizeof line - 1);
    text_string(&t, what);
    text_string(&t, of);
    text_char(&t, ' ');
    text_hex(&t, (uintptr_t)p);
    if (offset != SIZE_MAX) {
        text_string(&t, " at offset ");
        text_number(&t, offset);
    }
    text_string(&t, " in ");
    text_string(&t, call);
    if (o != NULL && (o->pool->flags & WEIR_POOL_CALLER) != 0) {
        report_caller(&t, "; allocated by ", o->alloc_caller, o->alloc_thread);
        if (o->free_caller != NULL) report_caller(&t, ", freed by ", o->free_caller, o->free_thread);
    }
    line[t.length] = '\0';
    core_report_text(code, line);
}

/* ---- Calls. */

/* The next freed object: the newest, or the oldest. */
static struct pool_object* queue_take(struct pool* pool) {
    struct pool_object* o = pool->freed;
    if (o == NULL) return NULL;
    pool->freed = o->next;
    if (pool->freed == NULL) pool->freed_last = NULL;
    pool->freed_count--;
    return o;
}

static void queue_put(struct pool* pool, struct pool_object* o) {
    bool cold_first = (pool->flags & WEIR_POOL_COLD_FIRST) != 0;
    o->next = cold_first ? NULL : pool->freed;
    if (cold_first && pool->freed_last != NULL)
        pool->freed_last->next = o;
    else
        pool->freed = o;
    if (o->next == NULL) pool->freed_last = o;
    pool->freed_count++;
}

WEIR_FN void* debug_alloc(struct pool* pool, const void* caller) {
    os_lock_take(&pools_lock);
    struct pool_object written = {0};
    size_t offset = 0;
    struct pool_object* o = queue_take(pool);
    if (o != NULL && !object_cover(o, true)) {
        queue_put(pool, o);
        o = NULL;
    } else if (o == NULL) {
        o = object_make(pool);
    } else if ((offset = freed_offset(o)) != pool->size) {
        written = *o;
    }
    char* p = o == NULL ? NULL : o->p;
    if (o != NULL) {
        o->live = true;
        o->alloc_caller = caller;
        o->alloc_thread = os_thread_id();
        o->free_caller = NULL;
        if ((pool->flags & WEIR_POOL_POISON) != 0) __builtin_memset(p, FILL_ALLOC, pool->size);
        tag_write(o);
    }
    os_lock_give(&pools_lock);
    if (written.pool != NULL)
        object_report(&written, "pool-written", "a freed object was written to, of pool ", pool->name, p,
                      offset, "weir_pool_alloc");
    return p;
}

WEIR_FN bool debug_free(struct pool* pool, void* p, const void* caller) {
    os_lock_take(&pools_lock);
    struct pool_object* o = object_find(p);
    struct pool_object seen = {0};
    if (o != NULL) seen = *o;
    bool right = o != NULL && o->live && o->pool == pool;
    bool whole = right && tag_is_whole(o);
    if (whole) {
        o->live = false;
        o->free_caller = caller;
        o->free_thread = os_thread_id();
        freed_fill(o);
        (void)object_cover(o, false); /* refused, it stays accessible */
        queue_put(pool, o);
    }
    os_lock_give(&pools_lock);
    if (whole) return true;
    if (seen.pool == NULL)
        object_report(NULL, "pool-foreign", "not an object of pool ", pool->name, p, SIZE_MAX,
                      "weir_pool_free");
    else if (!seen.live)
        object_report(&seen, "pool-double-free", "already freed, an object of pool ", seen.pool->name, p,
                      SIZE_MAX, "weir_pool_free");
    else if (seen.pool != pool)
        object_report(&seen, "pool-wrong", "freed to another pool, an object of pool ", seen.pool->name, p,
                      SIZE_MAX, "weir_pool_free");
    else
        object_report(&seen, "pool-overrun", "written past its end, an object of pool ", pool->name, p,
                      SIZE_MAX, "weir_pool_free");
    return false;
}

WEIR_FN void debug_empty(struct pool* pool, uint64_t keep) {
    while (pool->freed_count > keep) object_drop(queue_take(pool));
}

WEIR_FN bool debug_reserve(struct pool* pool, uint64_t objects) {
    while (pool->freed_count < objects) {
        struct pool_object* o = object_make(pool);
        if (o == NULL) return false;
        freed_fill(o);
        (void)object_cover(o, false);
        queue_put(pool, o);
    }
    return true;
}
