/* storage.c: the memory that pools share: magazines, the tier of slots, what is needed and what goes back.
 *
 * Alloc and free come here when a thread's two magazines are empty or full; the helper thread now and then.
 * No lock is taken on those paths but for the heap's own. It deliberately does not know which thread caches
 * what.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "core/options.h"
#include "os/os.h"
#include "page/release.h"
#include "page/span.h"
#include "pool/pool.h"

/* As many shards as processors, within bounds, so that few threads begin at the same one. */
enum { SHARDS_MIN = 4, FULL_SLOTS = 1024, LONE_SLOTS = 4096, EMPTY_SLOTS = 128 };
enum { SPARES_BYTES = 4096, MAGAZINE_OBJECTS_MIN = 2, LONE_CAPACITY = 2 };

static struct storage* storages; /* Sync: pools_lock to change; read by acquire */
static uint32_t storage_count;

WEIR_FN struct storage* storage_first(void) { return load_acquire(&storages); }

static struct tier* tier_make(uint32_t slots) {
    uint32_t processors = os_cpu_count();
    uint32_t shards = SHARDS_MIN;
    while (shards < processors && shards < SHARDS_MAX) shards *= 2;
    struct tier* t = span_meta_alloc(sizeof *t + slots * sizeof(struct slot));
    if (t == NULL) return NULL;
    tier_shape(t, shards, slots / shards);
    t->turn = 1;
    return t;
}

/* What the heap gives for an object: one size for all that may share. */
static size_t storage_block_bytes(size_t size, size_t align) {
    if (size > SLAB_MAX || align > SLAB_MAX) return align_up(size, os_page_bytes());
    return size_classes[align <= GRANULE ? class_of(size) : class_of_aligned(size, align)].bytes;
}

/* Two magazines of one or two objects are worth less than one of as many as both: a run of calls moves more
 * at once, and one that goes to and fro no less. */
static bool storage_is_single(size_t block_bytes) { return MAGAZINE_BYTES_MAX / block_bytes <= 2; }

static uint32_t storage_capacity(size_t block_bytes) {
    size_t fits = MAGAZINE_BYTES_MAX / block_bytes;
    if (storage_is_single(block_bytes)) fits = 2 * MAGAZINE_BYTES_MAX / block_bytes;
    return fits > MAGAZINE_OBJECTS_MAX   ? MAGAZINE_OBJECTS_MAX
           : block_bytes >= MIB          ? 1 /* two would be all that a burst leaves, in each thread */
           : fits < MAGAZINE_OBJECTS_MIN ? MAGAZINE_OBJECTS_MIN
                                         : (uint32_t)fits;
}

static uint32_t magazine_bytes(uint32_t capacity) {
    return (uint32_t)(sizeof(struct magazine) + capacity * sizeof(void*));
}

static bool storage_serves(const struct storage* s, size_t size, size_t align, size_t block_bytes,
                           uint32_t flags) {
    if (s->block_bytes != block_bytes || s->flags != flags) return false;
    if ((flags & WEIR_POOL_NO_MERGE) != 0 && s->users != 0) return false;
    /* A block of a slab is aligned to all that divides its size; a larger one may lie in a chunk, aligned to
     * what is asked for and no more. */
    if (block_bytes > SMALL_MAX && s->align != align) return false;
    return flags == 0 || (s->bytes == size && s->align == align);
}

/* What tells one kind from another. Nobody uses it meanwhile. */
static void storage_shape(struct storage* s, size_t size, size_t align, size_t block_bytes, uint32_t flags) {
    s->bytes = flags == 0 ? block_bytes : size;
    s->align = align;
    s->block_bytes = block_bytes;
    s->flags = flags;
    s->single = storage_is_single(block_bytes);
    s->id = storage_count++;
}

static struct storage* storage_make(uint32_t capacity) {
    struct storage* s = span_meta_alloc(sizeof *s);
    if (s == NULL) return NULL;
    *s = (struct storage){.next = storages,
                          .capacity = capacity,
                          .spares = SPARES_BYTES / magazine_bytes(capacity),
                          .lone = capacity <= LONE_CAPACITY,
                          .full = tier_make(capacity <= LONE_CAPACITY ? LONE_SLOTS : FULL_SLOTS),
                          .empty = tier_make(EMPTY_SLOTS)};
    if (s->full == NULL || s->empty == NULL) return NULL;
    store_release(&storages, s); /* publishes the record, to storage_first */
    return s;
}

/* A record that nobody has any more, whose magazines hold as many: those that wait in it fit. Who empties it
 * without the lock counts out its objects last, and goes on with its empty magazines alone. */
static struct storage* storage_left(uint32_t capacity) {
    struct storage* s = storages;
    while (s != NULL && (s->capacity != capacity || s->users != 0 || load_relaxed(&s->allocated) != 0))
        s = s->next;
    if (s != NULL) store_relaxed(&s->peak, (uint64_t)0);
    return s;
}

static struct storage* storage_get(size_t size, size_t align, uint32_t flags) {
    size_t block_bytes = storage_block_bytes(size, align);
    struct storage* s = storages;
    while (s != NULL && !storage_serves(s, size, align, block_bytes, flags)) s = s->next;
    if (s != NULL) return s;
    uint32_t capacity = storage_capacity(block_bytes);
    s = storage_left(capacity);
    if (s == NULL) s = storage_make(capacity);
    if (s != NULL) storage_shape(s, size, align, block_bytes, flags);
    return s;
}

WEIR_FN struct storage* storage_join(struct pool* pool, size_t size, uint32_t flags) {
    struct storage* s = storage_get(size, pool->align, flags & (WEIR_POOL_EXACT | WEIR_POOL_NO_MERGE));
    if (s == NULL) return NULL;
    s->users++;
    pool->sharing = s->pools;
    s->pools = pool;
    return s;
}

WEIR_FN void storage_leave(struct pool* pool) {
    struct storage* s = pool->storage;
    weir_assert(s->users != 0);
    struct pool** link = &s->pools;
    while (*link != pool) link = &(*link)->sharing;
    *link = pool->sharing;
    store_relaxed(&s->reserve, load_relaxed(&s->reserve) - pool->reserve);
    if (--s->users != 0) return;
    storage_empty(s, 0);
    store_relaxed(&s->needed, (uint64_t)0);
}

WEIR_FN struct magazine* storage_magazine(struct storage* s, struct tier_place* at) {
    uintptr_t word = tier_take(s->empty, at);
    if (word != 0) return magazine_of(word);
    struct magazine* m = shelf_pop(&s->shelf);
    if (m != NULL) return m;
    m = span_meta_alloc(magazine_bytes(s->capacity));
    if (m != NULL) m->capacity = s->capacity;
    return m;
}

WEIR_FN void storage_discard(struct storage* s, struct magazine* m, struct tier_place* at) {
    weir_assert(m->count == 0);
    if (!tier_put(s->empty, at, magazine_word(m))) shelf_push(&s->shelf, m);
}

/* More was taken from the heap: it is needed. */
static void storage_grew(struct storage* s, uint64_t objects) {
    uint64_t all = add_relaxed(&s->allocated, objects) + objects;
    if (all > load_relaxed(&s->needed)) store_relaxed(&s->needed, all);
    if (all > load_relaxed(&s->peak))
        store_relaxed(&s->peak, all); /* one that is lost counts in the next look */
}

WEIR_FN void* storage_object(struct storage* s) {
    void* p = heap_alloc_aligned(s->bytes, s->align);
    if (weir_unlikely(p == NULL)) {
        /* What pools cache is memory too. */
        for (struct storage* other = storage_first(); other != NULL; other = other->next)
            storage_empty(other, load_relaxed(&other->reserve));
        p = heap_alloc_aligned(s->bytes, s->align);
    }
    if (p != NULL) storage_grew(s, 1);
    return p;
}

WEIR_FN void storage_object_free(struct storage* s, void* p) {
    sub_relaxed(&s->allocated, 1);
    heap_free(p, "weir_pool_free");
}

WEIR_FN uint32_t storage_fill(struct storage* s, struct magazine* m, uint32_t wanted) {
    weir_assert(m->count == 0);
    uint32_t count = 0;
    m->objects[0] = storage_object(s);
    if (m->objects[0] == NULL) return 0;
    for (count = 1; count < wanted && count < m->capacity; count++) {
        m->objects[count] = heap_alloc_aligned(s->bytes, s->align);
        if (m->objects[count] == NULL) break;
    }
    storage_grew(s, count - 1);
    m->count = count;
    return count;
}

/* Give the last objects of a magazine back. */
static void drain_to(struct storage* s, struct magazine* m, uint32_t keep) {
    uint32_t count = m->count - keep;
    for (uint32_t i = 0; i < count; i++) heap_free(m->objects[keep + i], "weir_pool_free");
    m->count = keep;
    sub_relaxed(&s->allocated, count);
}

WEIR_FN void storage_drain(struct storage* s, struct magazine* m) { drain_to(s, m, 0); }

static uint64_t tier_objects(const struct tier* t) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < tier_slots(t); i++) sum += slot_objects(load_relaxed(&t->slots[i].word));
    return sum;
}

WEIR_FN uint64_t storage_shared(const struct storage* s) { return tier_objects(s->full); }

static void drain_word(struct storage* s, uintptr_t word) {
    if (s->lone) {
        storage_object_free(s, object_of(word));
        return;
    }
    struct magazine* m = magazine_of(word);
    struct tier_place at = {0};
    storage_drain(s, m);
    storage_discard(s, m, &at);
}

WEIR_FN uint64_t storage_empty(struct storage* s, uint64_t keep) {
    uint64_t gone = 0;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < tier_slots(s->full); i++) {
        struct slot* slot = &s->full->slots[i];
        uint32_t count = slot_objects(load_relaxed(&slot->word));
        if (seen < keep) {
            seen += count;
            continue;
        }
        uintptr_t word = slot_take(slot);
        if (word == 0) continue;
        gone += slot_objects(word);
        drain_word(s, word);
    }
    return gone;
}

/* Where there is no helper, whoever shares a magazine looks when it is time. */
static void storage_look_alone(void) {
    static uint64_t due; /* Sync: relaxed; whoever moves it on looks */
    uint64_t now = os_clock_ns();
    uint64_t expected = load_relaxed(&due);
    if (now < expected || !cas_acq_rel(&due, &expected, now + core_options.release_delay * 1000000)) return;
    uint64_t shrunk;
    (void)storage_tick(&shrunk);
}

/* Memory is shared that may not be needed for long: see that somebody looks at it. */
static void storage_poke(const struct storage* s) {
    if (weir_unlikely(load_relaxed(&release_state) == RELEASE_ALONE)) storage_look_alone();
    if (load_relaxed(&release_above) != 0) return;
    uint64_t bytes = load_relaxed(&s->allocated) * s->block_bytes;
    if (bytes < core_options.release_floor) return;
    store_relaxed(&release_above, bytes);
    release_poke();
}

/* Whether less is ready than was asked for. */
static bool storage_lacks(const struct storage* s) {
    uint64_t reserve = load_relaxed(&s->reserve);
    return reserve != 0 && storage_shared(s) < reserve;
}

static bool storage_is_crowded(const struct storage* s) {
    uint64_t needed = load_relaxed(&s->needed);
    return load_relaxed(&s->allocated) > needed + needed / 4 + s->capacity && !storage_lacks(s);
}

static bool word_share(struct storage* s, uintptr_t word, struct pool_entry* e) {
    if (load_acquire(&s->epoch) != e->epoch || storage_is_crowded(s)) return false;
    if (!tier_put(s->full, &e->full, word)) return false;
    /* Pairs with pool_flush: it finds the word in its slot, which was put in one order with this, or this
     * finds its epoch. */
    if (weir_unlikely(load_seq_cst(&s->epoch) != e->epoch)) {
        word = tier_take(s->full, &e->full);
        if (word != 0) drain_word(s, word);
    }
    storage_poke(s);
    return true;
}

WEIR_FN bool storage_share(struct storage* s, struct magazine* m, struct pool_entry* e) {
    if (!s->lone) return word_share(s, magazine_word(m), e);
    while (m->count != 0 && word_share(s, object_word(m->objects[m->count - 1]), e)) m->count--;
    return false;
}

WEIR_FN void storage_share_lone(struct storage* s, void* p, struct pool_entry* e) {
    if (!word_share(s, object_word(p), e)) storage_object_free(s, p);
}

/* Put a word into the next free slot. False: there is none. */
static bool tier_put_next(struct tier* t, uint32_t* next, uintptr_t word) {
    for (; *next < tier_slots(t); ++*next) {
        struct slot* slot = &t->slots[*next];
        if (!slot_put(slot, word)) continue;
        slot_touch(t, slot);
        tier_reach(t, *next);
        return true;
    }
    return false;
}

static bool reserve_object(struct storage* s, uint32_t* next) {
    void* p = storage_object(s);
    if (p == NULL) return false;
    if (tier_put_next(s->full, next, object_word(p))) return true;
    storage_object_free(s, p);
    return false;
}

WEIR_FN bool storage_reserve(struct storage* s, uint64_t objects) {
    uint32_t next = 0;
    struct tier_place empty = {0};
    for (uint64_t have = storage_shared(s); have < objects;) {
        if (s->lone) {
            if (!reserve_object(s, &next)) return false;
            have++;
            continue;
        }
        struct magazine* m = storage_magazine(s, &empty);
        if (m == NULL) return false;
        uint64_t lacking = objects - have;
        uint32_t count = storage_fill(s, m, lacking < m->capacity ? (uint32_t)lacking : m->capacity);
        if (count == 0 || !tier_put_next(s->full, &next, magazine_word(m))) {
            storage_drain(s, m);
            storage_discard(s, m, &empty);
            return false;
        }
        have += count;
    }
    return true;
}

/* Take up to `surplus` objects out of slots that nobody touched in this turn. */
static void storage_trim(struct storage* s, uint64_t surplus) {
    for (uint32_t i = tier_slots(s->full); i-- > 0 && surplus != 0;) {
        struct slot* slot = &s->full->slots[i];
        if (load_relaxed(&slot->touched) == load_relaxed(&s->full->turn)) continue;
        uintptr_t word = slot_take(slot);
        if (word == 0) continue;
        if (s->lone) {
            storage_object_free(s, object_of(word));
            surplus--;
            continue;
        }
        struct magazine* m = magazine_of(word);
        uint32_t keep = m->count > surplus ? m->count - (uint32_t)surplus : 0;
        surplus -= m->count - keep;
        drain_to(s, m, keep);
        struct tier_place at = {0};
        if (keep == 0)
            storage_discard(s, m, &at);
        else if (!slot_put(slot, magazine_word(m)) && !tier_put(s->full, &at, magazine_word(m)))
            drain_word(s, magazine_word(m));
    }
}

/* Takes need look no further than the last word that is there. */
static void tier_reach_lower(struct tier* t) {
    for (uint32_t shard = 0; shard < t->shards; shard++) {
        uint32_t seen = load_relaxed(&t->reach[shard]);
        uint32_t reach = t->per_shard;
        while (reach != 0 && load_relaxed(&t->slots[shard * t->per_shard + reach - 1].word) == 0) reach--;
        if (reach != seen)
            (void)cas_acq_rel(&t->reach[shard], &seen, reach); /* failed: it was raised meanwhile */
    }
}

/* A look at one storage. What lay in its slot from one look to the next was not needed meanwhile; the need is
 * what was, or a mean of it: it rises at once, and falls by 15/16 of the way with each look. Returns the
 * bytes that may go later. */
static uint64_t storage_look(struct storage* s, uint64_t* shrunk) {
    uint64_t cold = 0;
    uint64_t shared = 0;
    uint32_t turn = load_relaxed(&s->full->turn);
    for (uint32_t i = 0; i < tier_slots(s->full); i++) {
        const struct slot* slot = &s->full->slots[i];
        uint32_t count = slot_objects(load_relaxed(&slot->word));
        shared += count;
        if (load_relaxed(&slot->touched) != turn) cold += count;
    }
    uint64_t all = load_relaxed(&s->allocated);
    uint64_t need = all > cold ? all - cold : 0;
    uint64_t peak = load_relaxed(&s->peak);
    if (peak > all && peak > need) need = peak; /* it went past the tier */
    uint64_t before = load_relaxed(&s->needed);
    if (need < before) need += (before - need) / 16;
    store_relaxed(&s->needed, need);
    if (need < before) *shrunk += (before - need) * s->block_bytes;
    uint64_t reserve = load_relaxed(&s->reserve);
    if (shared < reserve) reserve = shared;
    uint64_t away = all > shared ? all - shared : 0;
    uint64_t keep = need < away + reserve ? away + reserve : need;
    if (all > keep) storage_trim(s, all - keep);
    store_relaxed(&s->peak, load_relaxed(&s->allocated));
    store_relaxed(&s->full->turn, turn + 1);
    tier_reach_lower(s->full);
    bool settled = shared == cold && need == before && peak <= all;
    return settled ? 0 : (need + shared) * s->block_bytes;
}

WEIR_FN uint64_t storage_tick(uint64_t* shrunk) {
    uint64_t pending = 0;
    *shrunk = 0;
    /* A fork waits for the magazine in hand. Who has the lock now is followed by another look. */
    if (!os_lock_try(&pools_lock)) return load_relaxed(&release_above);
    for (struct storage* s = storage_first(); s != NULL; s = s->next)
        if (load_relaxed(&s->allocated) != 0 || load_relaxed(&s->needed) != 0)
            pending += storage_look(s, shrunk);
    os_lock_give(&pools_lock);
    return pending;
}
