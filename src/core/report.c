/* report.c: see report.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "core/report.h"

#include "arch/arch.h"
#include "base/atomic.h"
#include "base/text.h"
#include "core/options.h"
#include "os/os.h"

WEIR_VAR uint64_t core_report_count;

WEIR_FN void core_report(const char* code, const char* what, const void* pointer, const char* call) {
    char line[320];
    struct text t = text_make(line, sizeof line - 1);
    text_string(&t, "weir: ");
    text_string(&t, code);
    text_string(&t, ": ");
    text_string(&t, what);
    text_char(&t, ' ');
    text_hex(&t, (uintptr_t)pointer);
    text_string(&t, " in ");
    text_string(&t, call);
    text_string(&t, "; see docs/errors/");
    text_string(&t, code);
    text_string(&t, ".md");
    line[t.length++] = '\n';
    os_write(2, line, t.length);
    add_relaxed(&core_report_count, 1);
    if (core_options.on_error != 0) return;
    /* A handler of the abort that meets the same heap again would come back for ever. */
    static void* reporter; /* Sync: relaxed; a thread looks for its own name only */
    if (load_relaxed(&reporter) == arch_thread_pointer()) os_abort_now();
    store_relaxed(&reporter, arch_thread_pointer());
    os_abort();
}

WEIR_FN void core_report_size(const void* pointer, size_t bytes, const char* call) {
    char what[96];
    struct text t = text_make(what, sizeof what - 1);
    text_string(&t, "size ");
    text_number(&t, bytes);
    text_string(&t, " does not belong to the block");
    what[t.length] = '\0';
    core_report("wrong-size", what, pointer, call);
}
