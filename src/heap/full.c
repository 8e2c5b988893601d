/* full.c: see full.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/full.h"

#include "core/report.h"
#include "heap/slab.h"
#include "os/os.h"
#include "tag/tag.h"

#define POISON 0xdededededededede

static uint64_t full_secret;

WEIR_FN void full_start(void) {
    if (tag_is_on() && core_options.tag_history != 0) core_options.checks = 1; /* see history.h */
    if (full_is_on()) full_secret = os_random() | 1;
}

static uint64_t seal_of(const void* p) {
    uint64_t x = ((uintptr_t)tag_clear(p) ^ full_secret) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

WEIR_FN bool full_is_free(const void* p) { return ((const block_t*)p)->seal == seal_of(p); }

typedef uint64_t __attribute__((may_alias)) word_t;

WEIR_FN void full_seal(const struct slice* s, block_t* p) {
    word_t* words = (word_t*)p;
    for (size_t i = 2; i < slab_class(s)->bytes / sizeof(word_t); i++) words[i] = POISON;
    p->seal = seal_of(p);
}

WEIR_FN void full_seal_list(const struct slice* s, block_t* first) {
    for (; first != NULL; first = first->next) full_seal(s, first);
}

/* Where nothing is tagged, an address has no tag either, though the processor would ignore it. */
static bool full_is_block(const struct slice* s, const block_t* p) {
    return slab_holds_block(s, p) && (tag_is_on() ? tag_fits(p) : tag_of(p) == 0);
}

static bool full_is_intact(const struct slice* s, const block_t* p) {
    if (!full_is_block(s, p) || p->seal != seal_of(p)) return false;
    if (p->next != NULL && !full_is_block(s, p->next)) return false;
    const word_t* words = (const word_t*)p;
    for (size_t i = 2; i < slab_class(s)->bytes / sizeof(word_t); i++)
        if (words[i] != POISON) return false;
    return true;
}

WEIR_FN void* full_pop(struct slice* s) {
    block_t* p = s->free;
    if (!full_is_intact(s, p)) {
        slab_forget_free(s); /* before the report: a handler of the abort may allocate */
        core_report("corrupt-list", REPORT_WRITTEN, p, "malloc");
        return NULL;
    }
    s->free = p->next;
    slab_count(s, slab_used(s) + 1, s->until + 1, s->built);
    p->seal = 0;
    return p;
}
