/* support/check.h: how a test says that something is wrong: TEST_VERIFY, TEST_COMPARE, FAIL and their kin.
 *
 * Who may include it: the tests of glibc's source package, and this shim. The names and meanings are those
 * that the tests use; the code is our own. Failures are counted in a page that forked children share
 * (record.c), and test-driver.c makes the exit status of them. It deliberately knows no allocator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SUPPORT_CHECK_H
#define SHIM_SUPPORT_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <wchar.h>

/* The test goes on (FAIL, FAIL_RET, TEST_...) or its process ends at once (FAIL_EXIT..., ..._EXIT). */
#define FAIL(...) shim_fail(__FILE__, __LINE__, __VA_ARGS__)
#define FAIL_RET(...) return (shim_fail(__FILE__, __LINE__, __VA_ARGS__), 1)
#define FAIL_PRINT(...) shim_fail(__FILE__, __LINE__, __VA_ARGS__)
#define FAIL_EXIT(status, ...) shim_fail_exit((status), __FILE__, __LINE__, __VA_ARGS__)
#define FAIL_EXIT1(...) FAIL_EXIT(1, __VA_ARGS__)
/* 77: the machine cannot do what the test is about. */
#define FAIL_UNSUPPORTED(...) FAIL_EXIT(77, __VA_ARGS__)

#define TEST_VERIFY(expression)                                                                              \
    do {                                                                                                     \
        if (!(expression)) shim_fail(__FILE__, __LINE__, "not true: %s", #expression);                       \
    } while (0)
#define TEST_VERIFY_EXIT(expression)                                                                         \
    do {                                                                                                     \
        if (!(expression)) shim_fail_exit(1, __FILE__, __LINE__, "not true: %s", #expression);               \
    } while (0)

/* A number of any integer type, with its sign known: so that -1 and 0xffffffffu are told apart. */
struct shim_number {
    bool negative;
    uintmax_t bits;
};
#define SHIM_NUMBER(value) ((struct shim_number){(value) < 0, (uintmax_t)(value)})
#define TEST_COMPARE(left, right)                                                                            \
    do {                                                                                                     \
        __typeof__(+(left)) shim_left = (left);                                                              \
        __typeof__(+(right)) shim_right = (right);                                                           \
        shim_compare(__FILE__, __LINE__, #left, SHIM_NUMBER(shim_left), #right, SHIM_NUMBER(shim_right));    \
    } while (0)
#define TEST_COMPARE_BLOB(left, left_length, right, right_length)                                            \
    shim_compare_blob(__FILE__, __LINE__, #left, (left), (left_length), #right, (right), (right_length))
#define TEST_COMPARE_STRING(left, right)                                                                     \
    shim_compare_string(__FILE__, __LINE__, #left, (left), #right, (right))
#define TEST_COMPARE_STRING_WIDE(left, right)                                                                \
    shim_compare_wide(__FILE__, __LINE__, #left, (left), #right, (right))

void shim_fail(const char* file, int line, const char* format, ...) __attribute__((format(printf, 3, 4)));
void shim_fail_exit(int status, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 4, 5), noreturn));
void shim_compare(const char* file, int line, const char* left_text, struct shim_number left,
                  const char* right_text, struct shim_number right);
void shim_compare_blob(const char* file, int line, const char* left_text, const void* left,
                       size_t left_length, const char* right_text, const void* right, size_t right_length);
void shim_compare_string(const char* file, int line, const char* left_text, const char* left,
                         const char* right_text, const char* right);
void shim_compare_wide(const char* file, int line, const char* left_text, const wchar_t* left,
                       const char* right_text, const wchar_t* right);

/* Counts a failure without a message; whether one was counted; the status of a process that ends with
 * `status` when nothing else went wrong. */
void support_record_failure(void);
int support_record_failure_is_failed(void);
int support_report_failure(int status);
void support_record_failure_reset(void);

#endif
