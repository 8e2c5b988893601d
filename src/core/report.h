/* report.h: what is said when the caller did something wrong.
 *
 * Each kind of misuse has a code, a page docs/errors/<code>.md and a test of its exact text. A report is
 * one line on stderr; afterwards the process aborts, or carries on with the block leaked
 * (on_error=report). Callable with any internal lock held and from a signal handler.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_CORE_REPORT_H
#define WEIR_CORE_REPORT_H

#include "base/compiler.h"

#define REPORT_FOREIGN "not a block of this heap"
#define REPORT_INTERIOR "not the start of a block"
#define REPORT_FREED "already freed"
#define REPORT_TAG "the pointer's tag is not the block's"
#define REPORT_WRITTEN "a freed block was written to"

/* Number of reports so far. Sync: relaxed; a figure for people. */
WEIR_VAR_DECL uint64_t core_report_count;

/* `weir: <code>: <what>; see docs/errors/<code>.md`; core_report says `<what> <pointer> in <call>`. */
WEIR_FN WEIR_COLD void core_report_text(const char* code, const char* what);
WEIR_FN WEIR_COLD void core_report(const char* code, const char* what, const void* pointer, const char* call);
/* The two halves of core_report_text, for reports of several lines: the first line, then lines of detail
 * (`weir:   <text>`), then what on_error says. */
WEIR_FN WEIR_COLD void core_report_say(const char* code, const char* what);
WEIR_FN WEIR_COLD void core_report_say_pointer(const char* code, const char* what, const void* pointer,
                                               const char* call);
WEIR_FN WEIR_COLD void core_report_detail(const char* text);
WEIR_FN WEIR_COLD void core_report_end(void);
/* `weir: pool-busy: pool <name> has <count> objects in use in weir_pool_destroy<more>; see ...`; the process
 * goes on. */
WEIR_FN WEIR_COLD void core_say_busy(const char* name, int64_t count, const char* more);
WEIR_FN WEIR_COLD void core_report_size(const void* pointer, size_t bytes, const char* call);

#endif
