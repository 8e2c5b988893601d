/* retag.c: see retag.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/retag.h"

#include "core/report.h"
#include "heap/free.h"
#include "heap/guard.h"
#include "heap/history.h"
#include "heap/medium.h"
#include "heap/place.h"
#include "heap/slab.h"
#include "heap/tagged.h"
#include "page/fence.h"
#include "page/span.h"

static void tags_wipe(void* p, size_t bytes) { tag_set(p, bytes); }

WEIR_FN WEIR_COLD void retag_start(void) {
    fence_start();
    span_wipe_hook = tags_wipe;
}

WEIR_FN WEIR_COLD void retag_misuse(const void* p, const char* call) {
    struct heap_place place;
    uint64_t before = arch_tag_ignore(); /* what is looked at has any tag */
    bool free = place_at((uintptr_t)tag_clear(p), &place) && place_is_free(&place);
    arch_tag_ignore_end(before);
    core_report_say_pointer(free ? "double-free" : "tag-mismatch", free ? REPORT_FREED : REPORT_TAG, p, call);
    history_say(p, true);
    core_report_end();
}

WEIR_FN void* heap_retag(void* p, const char* call) {
    if (weir_unlikely(guard_holds(p))) return p;
    struct slice* s = slice_find(tag_clear(p));
    if (weir_unlikely(s == NULL)) {
        core_report("invalid-free", REPORT_FOREIGN, p, call);
        return NULL;
    }
    s = slice_first(s);
    uint8_t kind = load_relaxed(&s->kind);
    if (kind == SLICE_CHUNK) return medium_retag(s, p, call);
    if (kind == SLICE_SLAB && slab_holds_block(s, tag_clear(p)))
        return retag_allows(p, call) ? tagged_free(s, p) : NULL;
    if (kind == SLICE_LARGE && slice_address(s) == (uintptr_t)p) return p;
    block_misuse(s, p, call);
    return NULL;
}
