/* debug.c: see debug.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "pool/debug.h"

#include "base/text.h"
#include "core/options.h"
#include "core/report.h"
#include "heap/retag.h"
#include "heap/trace.h"
#include "os/os.h"
#include "page/span.h"

enum { BUCKET_BITS = 12, BUCKET_BITS_MORE = 2, BUCKET_OBJECTS = 2 };
enum { FILL_ALLOC = 0x50, FILL_FREE = 0xdd, TAG_BYTES = 8 };

/*  area [ .... slack | object | tail ][ guard page ]     guard mode: a tail of less than the alignment
 *  block [ object | tail ]                               elsewhere: a tail of TAG_BYTES, or none
 *  Sync: pools_lock. */
struct pool_object {
    struct pool_object* chain; /* of the same bucket */
    struct pool_object* next;  /* in the pool's queue, or among the spare records */
    struct pool* pool;
    char* p;    /* as it was given out; freed: with another tag, where memory has any */
    char* area; /* guard mode: a mapping of area_bytes, the guard page included */
    size_t area_bytes;
    bool live;
    const void* alloc_caller;
    const void* free_caller;
    int alloc_thread;
    int free_thread;
};

/* By address, without its tag. Sync: pools_lock. */
static struct pool_object** object_buckets;
static uint32_t bucket_bits;
static uint64_t debug_objects;
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
    if ((pool->flags & POOL_WATCHED) != 0 || os_tsan_is_blind()) pool->slow |= POOL_DEBUGGED;
    if ((pool->flags & WEIR_POOL_NO_CACHE) != 0) pool->slow |= POOL_UNCACHED;
    if (pool->fail_percent != 0) pool->slow |= POOL_FAILING;
}

WEIR_FN size_t debug_bytes(const struct pool* pool) {
    /* In guard mode the page behind the object says more than a tag between the two. */
    bool tagged = (pool->flags & (WEIR_POOL_TAG | WEIR_POOL_GUARD)) == WEIR_POOL_TAG;
    return pool->size + (tagged ? TAG_BYTES : 0);
}

WEIR_FN bool debug_fails(struct pool* pool) {
    uint64_t n = add_relaxed(&pool->calls, 1) * 0x9e3779b97f4a7c15u;
    return (n >> 32) * 100 >> 32 < pool->fail_percent;
}

/* ---- Records by address. */

static struct pool_object** object_bucket(const void* p) {
    return &object_buckets[((uintptr_t)tag_clear(p) * 0x9e3779b97f4a7c15u) >> (64 - bucket_bits)];
}

static struct pool_object* object_find(const void* p) {
    if (object_buckets == NULL) return NULL;
    struct pool_object* o = *object_bucket(p);
    while (o != NULL && tag_clear(o->p) != tag_clear(p)) o = o->chain;
    return o;
}

static void object_list(struct pool_object* o) {
    struct pool_object** bucket = object_bucket(o->p);
    o->chain = *bucket;
    *bucket = o;
}

/* Four times as many buckets, so that what the old ones took is little. False: no memory. */
static bool buckets_grow(void) {
    struct pool_object** old = object_buckets;
    size_t count = old == NULL ? 0 : (size_t)1 << bucket_bits;
    uint32_t bits = old == NULL ? BUCKET_BITS : bucket_bits + BUCKET_BITS_MORE;
    struct pool_object** more = (struct pool_object**)span_meta_alloc(sizeof more[0] << bits);
    if (more == NULL) return false;
    object_buckets = more;
    bucket_bits = bits;
    for (size_t i = 0; i < count; i++)
        for (struct pool_object *o = old[i], *next; o != NULL; o = next) {
            next = o->chain;
            object_list(o);
        }
    return true;
}

static struct pool_object* record_take(void) {
    if (object_buckets == NULL && !buckets_grow()) return NULL;
    if (debug_objects >> bucket_bits >= BUCKET_OBJECTS) (void)buckets_grow(); /* or chains grow */
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

static size_t guard_bytes(const struct pool* pool) { return align_up(debug_bytes(pool), os_page_bytes()); }

/* As it was asked for: less than a block's leaves less room between an object and its guard page. */
static size_t guard_align(const struct pool* pool) {
    return pool->handle->align == 0 ? pool->align : pool->handle->align;
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
    o->p = (char*)align_down((uintptr_t)o->area + bytes - debug_bytes(pool), guard_align(pool));
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

/* It is freed: what the program has of it is no pointer to it any more. */
static void object_retag(struct pool_object* o) {
    if (!tag_is_on() || o->area != NULL) return;
    char* p = heap_retag(o->p, "weir_pool_free");
    if (p != NULL) o->p = p; /* reported otherwise */
}

/* ---- What lies between an object and what is not its own: a tag, or in guard mode what the alignment
 * leaves.
 */

static size_t tail_bytes(const struct pool_object* o) {
    size_t room = debug_bytes(o->pool);
    if (o->area != NULL) room = (size_t)(o->area + o->area_bytes - os_page_bytes() - o->p);
    return room - o->pool->size;
}

static char tail_byte(const struct pool_object* o, size_t offset) {
    uint64_t tag = (uintptr_t)tag_clear(o->p) * 0xd6e8feb86659fd93u ^ (uintptr_t)o->pool;
    return (char)(tag >> (offset % TAG_BYTES * 8));
}

static void tail_write(const struct pool_object* o) {
    size_t bytes = tail_bytes(o);
    for (size_t i = 0; i < bytes; i++) o->p[o->pool->size + i] = tail_byte(o, i);
}

static bool tail_is_whole(const struct pool_object* o) {
    size_t bytes = tail_bytes(o);
    size_t i = 0;
    while (i < bytes && o->p[o->pool->size + i] == tail_byte(o, i)) i++;
    return i == bytes;
}

static struct pool_object* object_make(struct pool* pool) {
    struct pool_object* o = record_take();
    if (o == NULL) return NULL;
    o->pool = pool;
    if (!object_map(pool, o)) {
        record_put(o);
        return NULL;
    }
    object_list(o);
    debug_objects++;
    tail_write(o);
    return o;
}

static void object_drop(struct pool_object* o) {
    struct pool_object** link = object_bucket(o->p);
    while (*link != o) link = &(*link)->chain;
    *link = o->chain;
    debug_objects--;
    object_unmap(o);
    record_put(o);
}

/* ---- Content. */

static unsigned char fill_byte(const struct pool_object* o, size_t offset) {
    return (unsigned char)(((uintptr_t)o->p >> 4) * 0x9d + offset * 0x3b + 0x71);
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

static struct debug_fault fault_of(const struct pool* pool, const void* p, const char* code,
                                   const char* what) {
    struct debug_fault f = {.code = code, .what = what, .p = p, .offset = SIZE_MAX};
    __builtin_memcpy(f.name, pool->name, sizeof f.name);
    return f;
}

static struct debug_fault object_fault(const struct pool_object* o, const char* code, const char* what) {
    struct debug_fault f = fault_of(o->pool, o->p, code, what);
    if ((o->pool->flags & WEIR_POOL_CALLER) == 0) return f;
    f.alloc_caller = o->alloc_caller;
    f.alloc_thread = o->alloc_thread;
    f.free_caller = o->free_caller;
    f.free_thread = o->free_thread;
    return f;
}

static struct debug_fault overrun_fault(const struct pool_object* o) {
    return object_fault(o, "pool-overrun", "written past its end, an object of pool ");
}

/* What was done to an object while it was free. */
static struct debug_fault freed_fault(const struct pool_object* o) {
    if ((o->pool->flags & WEIR_POOL_GUARD) != 0) return (struct debug_fault){.code = NULL};
    size_t offset = freed_offset(o);
    if (offset != o->pool->size) {
        struct debug_fault f = object_fault(o, "pool-written", "a freed object was written to, of pool ");
        f.offset = offset;
        return f;
    }
    return tail_is_whole(o) ? (struct debug_fault){.code = NULL} : overrun_fault(o);
}

static void text_caller(struct text* t, const char* what, const void* caller, int thread) {
    text_string(t, what);
    text_hex(t, (uintptr_t)caller);
    text_string(t, " in thread ");
    trace_text_thread(t, thread);
}

WEIR_FN void debug_report(const struct debug_fault* f, const char* call) {
    char line[320];
    struct text t = text_make(line, sizeof line - 1);
    text_string(&t, f->what);
    text_string(&t, f->name);
    text_char(&t, ' ');
    text_hex(&t, (uintptr_t)f->p);
    if (f->offset != SIZE_MAX) {
        text_string(&t, " at offset ");
        text_number(&t, f->offset);
    }
    text_string(&t, " in ");
    text_string(&t, call);
    if (f->alloc_caller != NULL) text_caller(&t, "; allocated by ", f->alloc_caller, f->alloc_thread);
    if (f->free_caller != NULL) text_caller(&t, ", freed by ", f->free_caller, f->free_thread);
    line[t.length] = '\0';
    core_report_text(f->code, line);
}

static const struct pool_object* object_live(const struct pool* pool) {
    for (size_t i = 0; object_buckets != NULL && i < (size_t)1 << bucket_bits; i++)
        for (const struct pool_object* o = object_buckets[i]; o != NULL; o = o->chain)
            if (o->pool == pool && o->live) return o;
    return NULL;
}

WEIR_FN void debug_holder(const struct pool* pool, char* line, size_t bytes) {
    struct text t = text_make(line, bytes - 1);
    const struct pool_object* o = (pool->flags & WEIR_POOL_CALLER) != 0 ? object_live(pool) : NULL;
    if (o != NULL) text_caller(&t, "; one of them allocated by ", o->alloc_caller, o->alloc_thread);
    line[t.length] = '\0';
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

WEIR_FN void* debug_alloc(struct pool* pool, bool cached_only, const void* caller) {
    struct debug_fault fault = {.code = NULL};
    os_lock_take(&pools_lock);
    struct pool_object* o = queue_take(pool);
    if (o != NULL && !object_cover(o, true)) {
        queue_put(pool, o);
        o = NULL;
    } else if (o != NULL) {
        fault = freed_fault(o);
    } else if (!cached_only) {
        o = object_make(pool);
    }
    char* p = o == NULL ? NULL : o->p;
    if (o != NULL) {
        if (os_tsan_is_blind()) os_tsan_acquire(p, pool->size);
        o->live = true;
        o->alloc_caller = caller;
        o->alloc_thread = os_thread_id();
        o->free_caller = NULL;
        if ((pool->flags & WEIR_POOL_POISON) != 0) __builtin_memset(p, FILL_ALLOC, pool->size);
        tail_write(o);
    }
    os_lock_give(&pools_lock);
    if (fault.code != NULL) debug_report(&fault, "weir_pool_alloc");
    return p;
}

static struct debug_fault free_fault(const struct pool_object* o, const struct pool* pool, const void* p) {
    if (o == NULL) return fault_of(pool, p, "pool-foreign", "not an object of pool ");
    if (!o->live || o->p != p)
        return object_fault(o, "pool-double-free", "already freed, an object of pool ");
    if (o->pool != pool) return object_fault(o, "pool-wrong", "freed to another pool, an object of pool ");
    return tail_is_whole(o) ? (struct debug_fault){.code = NULL} : overrun_fault(o);
}

WEIR_FN bool debug_free(struct pool* pool, void* p, const void* caller) {
    os_lock_take(&pools_lock);
    struct pool_object* o = object_find(p);
    struct debug_fault fault = free_fault(o, pool, p);
    if (fault.code == NULL) {
        o->live = false;
        o->free_caller = caller;
        o->free_thread = os_thread_id();
        freed_fill(o);
        if (os_tsan_is_blind()) os_tsan_release(p, pool->size);
        object_retag(o);
        (void)object_cover(o, false); /* refused, it stays accessible */
        queue_put(pool, o);
    }
    os_lock_give(&pools_lock);
    if (fault.code != NULL) debug_report(&fault, "weir_pool_free");
    return fault.code == NULL;
}

WEIR_FN bool debug_empty(struct pool* pool, uint64_t keep, struct debug_fault* fault) {
    fault->code = NULL;
    while (pool->freed_count > keep && fault->code == NULL) {
        struct pool_object* o = queue_take(pool);
        *fault = freed_fault(o);
        object_drop(o);
    }
    return fault->code != NULL;
}

WEIR_FN bool debug_reserve(struct pool* pool, uint64_t objects) {
    while (pool->freed_count < objects) {
        struct pool_object* o = object_make(pool);
        if (o == NULL) return false;
        freed_fill(o);
        object_retag(o);
        (void)object_cover(o, false);
        queue_put(pool, o);
    }
    return true;
}
