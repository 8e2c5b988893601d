/* history.c: see history.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/history.h"

#include "base/atomic.h"
#include "core/options.h"

/* Sync: `turn` is the call's number + 1, NOTE_BUSY while its writer, and no other, has the rest; acquire and
 * release around that. Readers that explain a fault take what they find. */
#define NOTE_BUSY UINT64_MAX
struct history_note {
    uint64_t turn;
    uintptr_t pointer;
    int32_t thread;
    uint16_t what;
    uint16_t count;
    uintptr_t frames[]; /* guard_frames */
};

WEIR_VAR uint64_t history_calls;
static char* history_notes; /* Sync: as history_calls */
static size_t history_stride;
static uint64_t history_turn; /* Sync: relaxed atomic; each call has one of its own */

static struct history_note* note_at(uint64_t turn) {
    return (struct history_note*)(void*)(history_notes + turn % history_calls * history_stride);
}

WEIR_FN void history_start(uint64_t calls) {
    size_t page = os_page_bytes();
    history_stride = sizeof(struct history_note) + core_options.guard_frames * sizeof(uintptr_t);
    for (; calls != 0; calls /= 2) {
        size_t bytes = align_up(calls * history_stride, page);
        history_notes = os_reserve(bytes, page);
        if (history_notes != NULL && os_commit(history_notes, bytes)) break;
        if (history_notes != NULL) os_unmap(history_notes, bytes);
    }
    history_calls = calls;
}

WEIR_FN WEIR_COLD void history_note(enum history_what what, const void* p) {
    uint64_t turn = add_relaxed(&history_turn, 1);
    struct history_note* n = note_at(turn);
    uint64_t before = load_relaxed(&n->turn); /* relaxed: the compare below decides */
    /* Somebody a whole ring ahead, or behind, is at it: this call goes without. Acquire: what was there
     * counts no more before it changes. */
    if (before == NOTE_BUSY || before > turn || !cas_acq_rel(&n->turn, &before, NOTE_BUSY)) return;
    struct trace trace = {.frames = n->frames};
    trace_take(&trace);
    n->pointer = (uintptr_t)p;
    n->thread = trace.thread;
    n->what = (uint16_t)what;
    n->count = (uint16_t)trace.count;
    store_release(&n->turn, turn + 1);
}

WEIR_FN WEIR_COLD bool history_find(enum history_what what, const void* p, struct trace* trace) {
    uint64_t end = load_relaxed(&history_turn);
    for (uint64_t back = 1; back <= end && back <= history_calls; back++) {
        const struct history_note* n = note_at(end - back);
        if (load_acquire(&n->turn) != end - back + 1) continue;
        if (n->pointer != (uintptr_t)p || n->what != what) continue;
        trace->thread = n->thread;
        trace->count = n->count;
        for (uint32_t i = 0; i < n->count && i < TRACE_FRAMES_MAX; i++) trace->frames[i] = n->frames[i];
        return true;
    }
    return false;
}

WEIR_FN WEIR_COLD void history_say(const void* p, bool freed) {
    uintptr_t frames[TRACE_FRAMES_MAX];
    struct trace trace = {.frames = frames};
    if (!history_is_on()) return;
    if (history_find(HISTORY_ALLOC, p, &trace)) trace_say("allocated", &trace);
    if (freed && history_find(HISTORY_FREE, p, &trace)) trace_say("freed", &trace);
}
