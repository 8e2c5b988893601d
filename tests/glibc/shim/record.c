/* record.c: the failures of one test program, counted in a page that its forked children share.
 *
 * Who may call it: the tests, through support/check.h, and the driver. Messages go straight to standard
 * output by write(2): the heap is on trial, and a message must come through when it is broken. It
 * deliberately does not know what is tested.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim.h"
#include "support/check.h"

/* Sync: atomic, relaxed: only whether it is zero at the end matters, and by then the writers have ended. */
static unsigned* failures;

__attribute__((constructor)) static void record_init(void) {
    void* page = mmap(NULL, sizeof *failures, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) _exit(99);
    failures = page;
}

void shim_say(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    shim_say_list(format, arguments);
    va_end(arguments);
}

void shim_say_list(const char* format, va_list arguments) {
    char line[1024];
    int length = vsnprintf(line, sizeof line, format, arguments);
    if (length > (int)sizeof line - 1) length = (int)sizeof line - 1;
    fflush(stdout);
    for (int done = 0; done < length;) {
        ssize_t count = write(STDOUT_FILENO, line + done, (size_t)(length - done));
        if (count <= 0) _exit(99);
        done += (int)count;
    }
}

void support_record_failure(void) { __atomic_fetch_add(failures, 1, __ATOMIC_RELAXED); }

int support_record_failure_is_failed(void) { return __atomic_load_n(failures, __ATOMIC_RELAXED) != 0; }

void support_record_failure_reset(void) { __atomic_store_n(failures, 0, __ATOMIC_RELAXED); }

int support_report_failure(int status) {
    return status == 0 && support_record_failure_is_failed() ? 1 : status;
}

static void fail(const char* file, int line, const char* format, va_list arguments) {
    int saved = errno;
    char text[768];
    vsnprintf(text, sizeof text, format, arguments);
    support_record_failure();
    shim_say("%s:%d: failed: %s\n", file, line, text);
    errno = saved;
}

void shim_fail(const char* file, int line, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fail(file, line, format, arguments);
    va_end(arguments);
}

void shim_fail_exit(int status, const char* file, int line, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fail(file, line, format, arguments);
    va_end(arguments);
    exit(status);
}

void shim_compare(const char* file, int line, const char* left_text, struct shim_number left,
                  const char* right_text, struct shim_number right) {
    if (left.negative == right.negative && left.bits == right.bits) return;
    shim_fail(file, line, "%s is %jd (0x%jx), %s is %jd (0x%jx)", left_text, (intmax_t)left.bits, left.bits,
              right_text, (intmax_t)right.bits, right.bits);
}

void shim_compare_blob(const char* file, int line, const char* left_text, const void* left,
                       size_t left_length, const char* right_text, const void* right, size_t right_length) {
    if (left_length != right_length) {
        shim_fail(file, line, "%s has %zu bytes, %s has %zu", left_text, left_length, right_text,
                  right_length);
    } else if (left_length > 0 && memcmp(left, right, left_length) != 0) {
        shim_fail(file, line, "the %zu bytes of %s and %s differ", left_length, left_text, right_text);
    }
}

void shim_compare_string(const char* file, int line, const char* left_text, const char* left,
                         const char* right_text, const char* right) {
    if (left == right || (left != NULL && right != NULL && strcmp(left, right) == 0)) return;
    shim_fail(file, line, "%s is \"%s\", %s is \"%s\"", left_text, left != NULL ? left : "(null)", right_text,
              right != NULL ? right : "(null)");
}

void shim_compare_wide(const char* file, int line, const char* left_text, const wchar_t* left,
                       const char* right_text, const wchar_t* right) {
    if (left == right || (left != NULL && right != NULL && wcscmp(left, right) == 0)) return;
    shim_fail(file, line, "%s and %s differ", left_text, right_text);
}
