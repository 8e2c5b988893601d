/* tag_fault.c: see tag_fault.h.
 *
 * What is known: where the access went, the tag of its pointer, and the tags that memory has now. An
 * explanation is taken from the first of these that fits:
 *
 *   lost     a live block's memory has no tag any more                       mismatch
 *   history  that very pointer was given out for the block, and freed        use after free
 *   near     a block less than its own size away has the pointer's tag       overflow, underflow
 *   slot     the tag is one of this slot's, or there are no slots            use after free
 *   far      the nearest block that has the pointer's tag                    overflow, underflow
 *   none     a pointer without a tag, or from nowhere                        mismatch
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/tag_fault.h"

#include "base/text.h"
#include "core/options.h"
#include "core/report.h"
#include "heap/heap.h"
#include "heap/history.h"
#include "heap/place.h"
#include "os/os.h"
#include "page/fence.h"
#include "tag/tag.h"

enum tag_error { ERROR_OVERFLOW, ERROR_UNDERFLOW, ERROR_AFTER_FREE, ERROR_MISMATCH };
static const char* const error_codes[] = {"tag-overflow", "tag-underflow", "tag-use-after-free",
                                          "tag-mismatch"};

struct explanation {
    enum tag_error error;
    struct heap_place block; /* that the program had in mind */
};

WEIR_VAR uint32_t tag_faults_passed;

static unsigned place_tag(const struct heap_place* p) { return tag_of(tag_read((const void*)p->start)); }

/* Whether the pointer was given out for the block. */
static bool block_had(const struct heap_place* p, unsigned tag) {
    uintptr_t frames[TRACE_FRAMES_MAX];
    struct trace trace = {.frames = frames};
    return history_is_on() && history_find(HISTORY_FREE, tag_with(p->start, tag), &trace);
}

static bool slot_may_have(const struct heap_place* p, unsigned tag) {
    return !p->slotted || (p->slot & 1) == (tag & 1);
}

/* What block is looked for beside an access. */
struct search {
    uintptr_t address;
    bool by_tag; /* one whose memory has `tag`; else any */
    unsigned tag;
    bool near; /* the access is less than the block's own size away */
    unsigned steps;
};

static bool search_fits(const struct search* w, const struct heap_place* p, uintptr_t distance) {
    if (p->kind != PLACE_BLOCK || (w->near && distance >= p->bytes)) return false;
    return !w->by_tag || (p->tagged && place_tag(p) == w->tag);
}

/* The nearest such block before or behind a place. */
static bool explain_beside(struct explanation* e, const struct heap_place* at, const struct search* w) {
    struct heap_place before = *at;
    struct heap_place behind = *at;
    bool goes_before = true;
    bool goes_behind = true;
    for (unsigned i = 0; i < w->steps && (goes_before || goes_behind); i++) {
        goes_before = goes_before && place_at(before.start - 1, &before) && before.kind != PLACE_NONE;
        goes_behind =
            goes_behind && place_at(behind.start + behind.bytes, &behind) && behind.kind != PLACE_NONE;
        uintptr_t past = w->address - (before.start + before.bytes);
        uintptr_t short_of = behind.start - 1 - w->address;
        bool fits_before = goes_before && search_fits(w, &before, past);
        bool fits_behind = goes_behind && search_fits(w, &behind, short_of);
        if (!fits_before && !fits_behind) continue;
        bool overflow = fits_before && (!fits_behind || past <= short_of);
        e->error = overflow ? ERROR_OVERFLOW : ERROR_UNDERFLOW;
        e->block = overflow ? before : behind;
        return true;
    }
    return false;
}

static void explain_fence(struct explanation* e, const struct heap_place* at, uintptr_t address) {
    const struct search beside = {.address = address, .steps = 2}; /* a tail and a fence */
    if (at->kind != PLACE_GAP || !explain_beside(e, at, &beside)) e->error = ERROR_AFTER_FREE;
}

/* Nothing near has the pointer's tag. */
static void explain_far(struct explanation* e, const struct heap_place* at, struct search* beside) {
    if (at->kind == PLACE_BLOCK && slot_may_have(at, beside->tag))
        e->error = ERROR_AFTER_FREE;
    else
        (void)explain_beside(e, at, beside);
}

/* The memory was given back to the kernel past weir. */
static bool block_lost_tag(const struct heap_place* at, uintptr_t address) {
    return at->kind == PLACE_BLOCK && at->tagged && tag_of(tag_read((const void*)address)) == 0 &&
           !place_is_free(at);
}

static void explain(struct explanation* e, const struct heap_place* at, const struct os_fault* fault) {
    struct search beside = {
        .address = fault->address, .by_tag = true, .tag = tag_of((const void*)fault->pointer), .steps = 4096};
    struct search near = beside;
    near.near = true;
    *e = (struct explanation){.error = ERROR_MISMATCH, .block = *at};
    if (fault->kind == OS_FAULT_PLAIN)
        explain_fence(e, at, fault->address);
    else if (block_lost_tag(at, fault->address))
        return;
    else if (at->kind == PLACE_NONE || (at->kind == PLACE_BLOCK && at->tagged && block_had(at, beside.tag)))
        e->error = ERROR_AFTER_FREE;
    else if (beside.tag != 0 && !explain_beside(e, at, &near))
        explain_far(e, at, &beside);
}

/* ---- Words */

static void say_first(const struct explanation* e, const struct os_fault* fault) {
    static const char* const verbs[] = {"access", "read", "write"};
    const struct heap_place* b = &e->block;
    bool freed = place_is_free(b);
    uintptr_t end = b->start + b->bytes;
    bool before = e->error == ERROR_UNDERFLOW;
    bool behind = e->error == ERROR_OVERFLOW;
    char what[256];
    struct text t = text_make(what, sizeof what - 1);
    text_string(&t, verbs[fault->access]);
    if (b->kind != PLACE_BLOCK) {
        text_string(&t, " at ");
        text_hex(&t, fault->address);
        text_string(&t, b->kind == PLACE_NONE ? ", where no block is any more" : ", between blocks");
    } else {
        text_string(&t, before || behind ? " " : " at byte ");
        text_number(&t, before ? b->start - fault->address : fault->address - (behind ? end : b->start));
        text_string(&t, before ? " bytes before " : behind ? " bytes behind the end of " : " of ");
        text_string(&t, freed ? "freed block " : "block ");
        text_hex(&t, b->start);
        text_string(&t, " of ");
        text_number(&t, b->bytes);
        text_string(&t, " bytes");
        if (e->error == ERROR_AFTER_FREE && !freed) text_string(&t, ", which was given out again");
    }
    what[t.length] = '\0';
    core_report_say(error_codes[e->error], what);
}

static void say_tags(const struct os_fault* fault) {
    char line[128];
    struct text t = text_make(line, sizeof line - 1);
    text_string(&t, "pointer has tag ");
    text_number(&t, tag_of((const void*)fault->pointer));
    text_string(&t, ", memory has tag ");
    text_number(&t, tag_of(tag_read((const void*)fault->address)));
    text_string(&t, ", at ");
    text_hex(&t, fault->address);
    line[t.length] = '\0';
    core_report_detail(line);
}

/* Of a use after free the pointer's own life, else the life of the block that is there; where that has lost
 * its tag, the pointer's again. */
static void say_history(const struct explanation* e, const struct os_fault* fault) {
    if (e->block.kind != PLACE_BLOCK || !e->block.tagged) return;
    bool after = e->error == ERROR_AFTER_FREE;
    unsigned own = place_tag(&e->block);
    unsigned tag = after || own == 0 ? tag_of((const void*)fault->pointer) : own;
    history_say(tag_with(e->block.start, tag), after);
}

/* ---- Faults */

/* Places that were reported, where the program goes on: once each. Sync: relaxed; two threads may both be
 * first. */
static bool place_is_new(uintptr_t code) {
    static uintptr_t reported[256];
    for (unsigned i = 0; i < sizeof reported / sizeof reported[0]; i++) {
        uintptr_t known = load_relaxed(&reported[i]);
        if (known == code) return false;
        if (known != 0) continue;
        store_relaxed(&reported[i], code);
        return true;
    }
    return true;
}

/* The program goes on: past this access, and until its thread frees a block, without comparing. */
static bool fault_lets_go_on(const struct os_fault* fault) {
    if (core_options.on_error == 0) return false;
    if (fault->kind == OS_FAULT_PLAIN) return fence_page_open((void*)fault->address);
    if (fault->kind == OS_FAULT_TAG) {
        store_relaxed(&tag_faults_passed, 1u);
        return os_tags_set(0);
    }
    return true;
}

static bool fault_tell_slow(const struct os_fault* fault) {
    struct heap_place at;
    struct explanation e;
    bool report_once = core_options.on_error != 0;
    if (fault->kind == OS_FAULT_TAG_LATE) {
        if (report_once && !place_is_new(fault->code)) return true;
        if (!report_once && os_fault_repeats(fault)) return false;
        core_report_say("tag-late",
                        "a pointer with a wrong tag was used by this thread, at some place before");
        trace_say_fault("noticed", fault);
        return fault_lets_go_on(fault);
    }
    if (!place_at(fault->address, &at)) return false;
    /* What the program itself made inaccessible is its own business. */
    if (fault->kind == OS_FAULT_PLAIN && at.kind == PLACE_BLOCK && !place_is_free(&at)) return false;
    if (report_once && !place_is_new(fault->code)) return fault_lets_go_on(fault);
    if (!report_once && os_fault_repeats(fault)) return false;
    explain(&e, &at, fault);
    say_first(&e, fault);
    if (fault->kind == OS_FAULT_TAG) say_tags(fault);
    trace_say_fault("access", fault);
    say_history(&e, fault);
    return fault_lets_go_on(fault);
}

static bool fault_tell_tags(const struct os_fault* fault) {
    uint64_t before = arch_tag_ignore(); /* what is looked at has any tag */
    bool again = fault_tell_slow(fault);
    arch_tag_ignore_end(before);
    return again;
}

/* A system call where nothing was passed by this thread, two where something was. */
WEIR_FN WEIR_COLD void tag_fault_resume_slow(void) {
    if (os_tags_mode() != tag_state.mode) (void)os_tags_set(tag_state.mode);
}

WEIR_FN void tag_fault_start(void) {
    /* The mode is set with the first heap: here at the latest, before there are threads. */
    if (heap_self() == &heap_empty && heap_attach() == NULL) return;
    if (!tag_is_on()) return;
    os_stack_start();
    if (core_options.tag_history != 0) history_start(core_options.tag_history);
    (void)os_fault_watch_tags(fault_tell_tags);
}
