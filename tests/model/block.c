/* block.c: writes and checks the content of blocks.
 *
 * Called by the worker that holds the block. It does not know where blocks come from.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "block.h"

#include <string.h>

#define WORD_STEP 0x9e3779b97f4a7c15ull

static inline uint64_t block_key(const struct block* b) {
    return mix64(model_config.seed ^ ((uint64_t)b->id << 17));
}

static inline uint64_t word_at(uint64_t key, size_t index) { return key + index * WORD_STEP; }

static inline void words_fill(unsigned char* p, uint64_t key, size_t first, size_t end) {
    uint64_t value = word_at(key, first);
    for (size_t i = first; i < end; i++, value += WORD_STEP) memcpy(p + 8 * i, &value, 8);
}

static inline void tail_fill(unsigned char* p, uint64_t key, size_t n) {
    uint64_t value = word_at(key, n / 8);
    for (size_t i = n & ~(size_t)7; i < n; i++) p[i] = (unsigned char)(value >> (8 * (i & 7)));
}

/* The sampled words of a large block: one in each of a few pages, the same ones whenever they are asked
 * for with the same key and size. */
static inline size_t sample_count(size_t n) {
    size_t count = 4 + (n >> 16);
    return count < 64 ? count : 64;
}

static inline size_t sample_word(uint64_t key, size_t index, size_t words) {
    uint64_t r = mix64(key + index);
    return (size_t)(((unsigned __int128)r * words) >> 64);
}

void block_fill(const struct block* b) {
    uint64_t key = block_key(b);
    size_t words = b->filled / 8;
    if (b->filled <= BLOCK_FULL_MAX) {
        words_fill(b->ptr, key, 0, words);
    } else {
        words_fill(b->ptr, key, 0, BLOCK_EDGE_WORDS);
        words_fill(b->ptr, key, words - BLOCK_EDGE_WORDS, words);
        for (size_t i = 0; i < sample_count(b->filled); i++) {
            size_t word = sample_word(key, i, words);
            words_fill(b->ptr, key, word, word + 1);
        }
    }
    tail_fill(b->ptr, key, b->filled);
}

/* Cold: finds the first byte that differs and says so. */
__attribute__((noinline, noreturn, cold)) static void
content_fail(const struct block* b, const unsigned char* at, size_t first, size_t n) {
    uint64_t key = block_key(b);
    size_t i = first;
    while (i < n && at[i] == (unsigned char)(word_at(key, i / 8) >> (8 * (i & 7)))) i++;
    uint64_t expected = word_at(key, i / 8), found = 0;
    size_t start = i & ~(size_t)7;
    memcpy(&found, at + start, n - start < 8 ? n - start : 8);
    model_fail(
        "content: block %p of %zu bytes (filled %zu, id %u, kind %u, alignment %zu): at byte %zu expected "
        "word 0x%016llx, found 0x%016llx",
        (const void*)at, b->size, b->filled, b->id, b->kind, (size_t)1 << b->align_log2, i,
        (unsigned long long)expected, (unsigned long long)found);
}

static inline uint64_t words_differ(const unsigned char* p, uint64_t key, size_t first, size_t end) {
    uint64_t value = word_at(key, first), differ = 0;
    for (size_t i = first; i < end; i++, value += WORD_STEP) {
        uint64_t word;
        memcpy(&word, p + 8 * i, 8);
        differ |= word ^ value;
    }
    return differ;
}

void block_verify_at(const struct block* b, const unsigned char* at, size_t n) {
    uint64_t key = block_key(b);
    size_t words = n / 8;
    if (b->filled <= BLOCK_FULL_MAX) {
        uint64_t differ = words_differ(at, key, 0, words);
        uint64_t value = word_at(key, words);
        for (size_t i = n & ~(size_t)7; i < n; i++)
            differ |= (uint64_t)(at[i] ^ (unsigned char)(value >> (8 * (i & 7))));
        if (__builtin_expect(differ != 0, 0)) content_fail(b, at, 0, n);
        return;
    }
    size_t all_words = b->filled / 8, head = words < BLOCK_EDGE_WORDS ? words : BLOCK_EDGE_WORDS;
    if (words_differ(at, key, 0, head) != 0) content_fail(b, at, 0, 8 * head);
    for (size_t i = 0; i < sample_count(b->filled); i++) {
        size_t word = sample_word(key, i, all_words);
        if (word < words && words_differ(at, key, word, word + 1) != 0)
            content_fail(b, at, 8 * word, 8 * (word + 1));
    }
    if (n < b->filled) return;
    if (words_differ(at, key, words - BLOCK_EDGE_WORDS, words) != 0)
        content_fail(b, at, 8 * (words - BLOCK_EDGE_WORDS), 8 * words);
    uint64_t value = word_at(key, words);
    for (size_t i = n & ~(size_t)7; i < n; i++)
        if (at[i] != (unsigned char)(value >> (8 * (i & 7)))) content_fail(b, at, i, n);
}

static void zero_range(const unsigned char* p, size_t n, size_t first, size_t end) {
    uint64_t differ = 0;
    size_t i = first;
    for (; i + 8 <= end; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, 8);
        differ |= word;
    }
    for (; i < end; i++) differ |= p[i];
    if (__builtin_expect(differ == 0, 1)) return;
    for (i = first; p[i] == 0;) i++;
    model_fail("zeroes: block %p of %zu bytes: at byte %zu expected 0x00, found 0x%02x", (const void*)p, n, i,
               p[i]);
}

void block_verify_zero(const unsigned char* p, size_t n, int whole) {
    if (n <= BLOCK_FULL_MAX || whole) {
        zero_range(p, n, 0, n);
        return;
    }
    zero_range(p, n, 0, 256);
    zero_range(p, n, n - 256, n);
    for (size_t i = 0; i < sample_count(n); i++) {
        size_t first = 64 * sample_word(n, i, n / 64);
        zero_range(p, n, first, first + 64);
    }
}
