/* history.h: who allocated and who freed, of the last so many calls (option tag_history).
 *
 * Internal to the heap layer. On, checks=full is on too: each call then comes by a slow path, where it is
 * noted. It deliberately knows nothing of tags but that pointers differ by them.
 *
 *   notes   [ call k | call k+1 | ... ]   a ring: the oldest go first
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_HEAP_HISTORY_H
#define WEIR_HEAP_HISTORY_H

#include "heap/trace.h"

enum history_what { HISTORY_ALLOC, HISTORY_FREE };

/* Sync: written once, before the second thread. */
WEIR_VAR_DECL uint64_t history_calls; /* that are kept; 0: it is off */
WEIR_INLINE bool history_is_on(void) { return weir_unlikely(history_calls != 0); }

/* Keep so many calls from now on; less where there is no memory. Once. */
WEIR_FN void history_start(uint64_t calls);
/* The calling thread was given block p, or gave it back. */
WEIR_FN WEIR_COLD void history_note(enum history_what what, const void* p);
/* The last such call with just that pointer, its tag included; trace->frames has room for TRACE_FRAMES_MAX.
 * False: not among those that are kept. Safe in signal handlers. */
WEIR_FN WEIR_COLD bool history_find(enum history_what what, const void* p, struct trace* trace);
/* Lines of detail: that pointer's last allocation and its last free, as far as they are kept. */
WEIR_FN WEIR_COLD void history_say(const void* p, bool freed);

#endif
