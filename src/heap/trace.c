/* trace.c: see trace.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/trace.h"

#include "core/options.h"
#include "core/report.h"
#include "heap/heap.h"

WEIR_FN void trace_take(struct trace* trace) {
    const struct heap* h = heap_self();
    int thread = load_relaxed(&h->tid);
    trace->thread = thread > 0 ? thread : os_thread_id();
    trace->count = os_stack_take(trace->frames, (uint32_t)core_options.guard_frames);
}

WEIR_FN WEIR_COLD void trace_text_thread(struct text* t, int thread) {
    if (thread > 0)
        text_number(t, (uint64_t)thread);
    else
        text_string(t, "? (a sandbox does not tell)");
}

static void say_frame(uintptr_t address) {
    char line[300];
    char path[256];
    uintptr_t offset;
    struct text t = text_make(line, sizeof line - 1);
    text_string(&t, "  ");
    text_hex(&t, address);
    if (os_module_find(address, path, sizeof path, &offset)) {
        text_char(&t, ' ');
        text_string(&t, path);
        text_char(&t, '+');
        text_hex(&t, offset);
    }
    line[t.length] = '\0';
    core_report_detail(line);
}

static void say_thread(const char* what, int thread) {
    char line[96];
    struct text t = text_make(line, sizeof line - 1);
    text_string(&t, what);
    text_string(&t, " by thread ");
    trace_text_thread(&t, thread);
    line[t.length] = '\0';
    core_report_detail(line);
}

WEIR_FN WEIR_COLD void trace_say(const char* what, const struct trace* trace) {
    say_thread(what, trace->thread);
    for (uint32_t i = 0; i < trace->count; i++) say_frame(trace->frames[i]);
}

WEIR_FN WEIR_COLD void trace_say_fault(const char* what, const struct os_fault* fault) {
    uintptr_t frames[TRACE_FRAMES_MAX];
    uint32_t count = fault->ends_handler ? 0 : os_stack_take(frames, TRACE_FRAMES_MAX);
    uint32_t at = 0;
    while (at < count && frames[at] != fault->code) at++; /* what is above it is the handler's */
    say_thread(what, os_thread_id());
    say_frame(fault->code);
    for (at++; at < count; at++) say_frame(frames[at]);
}
