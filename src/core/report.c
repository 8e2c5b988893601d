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

static void report_write(const char* code, const char* what) {
    char line[320];
    struct text t = text_make(line, sizeof line - 1);
    text_string(&t, "weir: ");
    text_string(&t, code);
    text_string(&t, ": ");
    text_string(&t, what);
    text_string(&t, "; see docs/errors/");
    text_string(&t, code);
    text_string(&t, ".md");
    line[t.length++] = '\n';
    os_write(2, line, t.length);
}

WEIR_FN void core_report_say(const char* code, const char* what) {
    report_write(code, what);
    add_relaxed(&core_report_count, 1);
}

WEIR_FN void core_report_detail(const char* text) {
    char line[320];
    struct text t = text_make(line, sizeof line - 1);
    text_string(&t, "weir:   ");
    text_string(&t, text);
    line[t.length++] = '\n';
    os_write(2, line, t.length);
}

WEIR_FN void core_report_end(void) {
    if (core_options.on_error != 0) return;
    /* A handler of the abort that meets the same heap again would come back for ever. */
    static void* reporter; /* Sync: relaxed; a thread looks for its own name only */
    if (load_relaxed(&reporter) == arch_thread_pointer()) os_abort_now();
    store_relaxed(&reporter, arch_thread_pointer());
    os_abort();
}

WEIR_FN void core_report_text(const char* code, const char* what) {
    core_report_say(code, what);
    core_report_end();
}

/* A block's address is told without its tag, as everywhere. */
static uintptr_t pointer_told(const void* pointer) {
    return (uintptr_t)(core_options.tagging != 0 ? arch_tag_clear(pointer) : pointer);
}

WEIR_FN void core_report_say_pointer(const char* code, const char* what, const void* pointer,
                                     const char* call) {
    char said[320];
    struct text t = text_make(said, sizeof said - 1);
    text_string(&t, what);
    text_char(&t, ' ');
    text_hex(&t, pointer_told(pointer));
    text_string(&t, " in ");
    text_string(&t, call);
    said[t.length] = '\0';
    core_report_say(code, said);
}

WEIR_FN void core_report(const char* code, const char* what, const void* pointer, const char* call) {
    core_report_say_pointer(code, what, pointer, call);
    core_report_end();
}

WEIR_FN void core_say_busy(const char* name, int64_t count, const char* more) {
    char said[240];
    struct text t = text_make(said, sizeof said - 1);
    text_string(&t, "pool ");
    text_string(&t, name);
    text_string(&t, " has ");
    if (count < 0) text_char(&t, '-');
    text_number(&t, (uint64_t)(count < 0 ? -count : count));
    text_string(&t, " objects in use in weir_pool_destroy");
    text_string(&t, more);
    said[t.length] = '\0';
    report_write("pool-busy", said);
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
