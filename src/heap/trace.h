/* trace.h: who did something, and from where: a thread and its stack, kept with a block and told in reports.
 *
 * Internal to the heap layer. What tells is safe in signal handlers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_TRACE_H
#define WEIR_HEAP_TRACE_H

#include "base/compiler.h"
#include "base/text.h"
#include "os/os.h"

/* The option guard_frames says how many are kept. */
enum { TRACE_FRAMES_MAX = 32 };
struct trace {
    int thread;
    uint32_t count;
    uintptr_t* frames;
};

/* A thread's id, as os_thread_id told it. */
WEIR_FN void trace_text_thread(struct text* t, int thread);
/* The calling thread's stack, into `frames`, which there is room for. */
WEIR_FN void trace_take(struct trace* trace);
/* Lines of detail: `<what> by thread T`, then the frames. */
WEIR_FN WEIR_COLD void trace_say(const char* what, const struct trace* trace);
/* The same of the calling thread, in the handler of the fault: from the instruction that made it. */
WEIR_FN WEIR_COLD void trace_say_fault(const char* what, const struct os_fault* fault);

#endif
