/* remote_bits.c: see remote_bits.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/remote_bits.h"

#include "heap/full.h"
#include "page/span.h"

static uint32_t words_of(const struct slice* s) { return (slab_class(s)->capacity + 63) / 64; }

/* Whether there are bits beside the slab. Where they found no room once, nobody asks again. */
static bool bits_reach(const struct slice* s) {
    static bool refused; /* Sync: relaxed */
    uint32_t index = slice_index(s);
    if (index < load_acquire(&region_bits_end)) return true; /* acquire: region_bits */
    if (load_relaxed(&refused)) return false;
    os_lock_take(&page_lock);
    bool reached = region_bits_reach(index + 1);
    os_lock_give(&page_lock);
    if (!reached) store_relaxed(&refused, true);
    return reached;
}

WEIR_FN void remote_bits_begin_now(struct slice* s) {
    if (s->region != 0 || tag_is_on() || !bits_reach(s)) return;
    weir_assert(!full_is_on()); /* which fills no bins */
    weir_assert(slab_class(s)->capacity <= SLICE_BITS);
    __atomic_fetch_or(&s->remote, REMOTE_BITS, __ATOMIC_SEQ_CST);
}

WEIR_FN void remote_bits_end_now(struct slice* s) {
    __atomic_fetch_and(&s->remote, ~REMOTE_BITS, __ATOMIC_SEQ_CST);
    uint32_t count;
    block_t* last;
    block_t* first = remote_bits_take(s, true, &last, &count);
    if (first == NULL) return;
    uint64_t doubt = 0;
    for (block_t* p = first; p != NULL; p = p->next) doubt |= remote_mark(p);
    (void)slab_push_remote(s, first, last, count, doubt);
}

WEIR_FN block_t* remote_bits_late(struct slice* s, uint32_t block) {
    uint64_t bit = 1ull << block % 64;
    uint64_t* word = slice_bits_word(s, block / 64);
    if ((__atomic_fetch_and(word, ~bit, __ATOMIC_SEQ_CST) & bit) == 0) return NULL;
    return (block_t*)(slice_address(s) + (size_t)block * slab_class(s)->bytes);
}

/* Blocks whose bits are set in words [from, end) come before those of the list that starts with `first`. */
static block_t* words_take(struct slice* s, uint32_t from, uint32_t end, block_t* first, block_t** last,
                           uint32_t* count) {
    const uint32_t bytes = slab_class(s)->bytes;
    const uintptr_t start = slice_address(s);
    for (uint32_t i = end; i-- > from;) {
        uint64_t* word = slice_bits_word(s, i);
        if (load_seq_cst(word) == 0) continue;
        uint64_t set = __atomic_exchange_n(word, 0, __ATOMIC_SEQ_CST);
        for (; set != 0; ++*count) {
            uint32_t bit = bit_high(set);
            set ^= 1ull << bit;
            block_t* p = (block_t*)(start + (size_t)(i * 64 + bit) * bytes);
            if (first == NULL) *last = p;
            p->next = first;
            first = p;
        }
    }
    return first;
}

/* From the highest block down, so that each link is to what was linked before. */
WEIR_FN block_t* remote_bits_take(struct slice* s, bool all, block_t** last, uint32_t* count) {
    struct slice_bits* b = slice_bits(s);
    const uint32_t words = words_of(s);
    const uint32_t near = words < SLICE_BITS_NEAR / 64 ? words : SLICE_BITS_NEAR / 64;
    block_t* first = NULL;
    *count = 0;
    store_relaxed(&b->looks, 0u);
    if (all || load_relaxed(&b->noted_far) != 0) {
        (void)__atomic_exchange_n(&b->noted_far, 0, __ATOMIC_SEQ_CST);
        first = words_take(s, near, words, first, last, count);
    }
    (void)__atomic_exchange_n(&b->noted, 0, __ATOMIC_SEQ_CST);
    return words_take(s, 0, near, first, last, count);
}

/* Acquire: region_bits. Else relaxed: for those who look now and then. */
WEIR_FN uint32_t remote_bits_count(const struct slice* s) {
    if (!slab_has_noted(s, load_acquire(&s->remote))) return 0;
    const struct slice_bits* b = slice_bits(s);
    const uint32_t near = SLICE_BITS_NEAR / 64;
    uint32_t words = words_of(s);
    if (words > near && load_relaxed(&b->noted_far) == 0) words = near;
    uint32_t count = 0;
    for (uint32_t i = 0; i < words; i++)
        count += (uint32_t)__builtin_popcountll(load_relaxed(slice_bits_word(s, i)));
    return count;
}

WEIR_FN bool remote_bits_have(const struct slice* s, const void* p) {
    if (!remote_bits_are_used(load_acquire(&s->remote))) return false;
    uint32_t block = class_block_index(slab_class(s), (uintptr_t)p - slice_address(s));
    return remote_bit_is_set(s, block);
}

WEIR_FN void remote_bits_forget(struct slice* s) {
    if (!remote_bits_are_used(load_relaxed(&s->remote))) return;
    store_relaxed(&slice_bits(s)->noted, 0u);
    store_relaxed(&slice_bits(s)->noted_far, 0u);
    for (uint32_t i = words_of(s); i-- > 0;) store_relaxed(slice_bits_word(s, i), (uint64_t)0);
}

WEIR_FN void remote_bits_look(struct slice* s) {
    if (!remote_bits_are_used(load_relaxed(&s->remote))) return;
    store_relaxed(&slice_bits(s)->noted, 1u);
    store_relaxed(&slice_bits(s)->noted_far, 1u);
}
