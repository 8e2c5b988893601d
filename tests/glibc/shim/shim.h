/* shim.h: what the parts of the shim share among themselves.
 *
 * Who may include it: the .c files of this folder and support/test-driver.c; no test knows it. Nothing here
 * takes memory from the heap.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SHIM_H
#define SHIM_SHIM_H

#include <stdarg.h>
#include <stdbool.h>

/* Writes one line to standard output, without the heap. */
void shim_say(const char* format, ...) __attribute__((format(printf, 1, 2)));
void shim_say_list(const char* format, va_list arguments) __attribute__((format(printf, 1, 0)));

/* What a test asked of its driver by defining macros before it included it. */
struct shim_test {
    int (*plain)(void); /* exactly one of the two functions is set */
    int (*with_arguments)(int, char**);
    void (*prepare)(int, char**); /* NULL: nothing to prepare */
    void (*clean_up)(void);       /* NULL: nothing to clean up; runs in the driver after the test */
    int timeout_s;
    int expected_status;
    int expected_signal; /* 0: the test is to end by itself */
};

/* Runs the test in a child, judges how it ended and says so; the exit status of the program. */
int shim_drive(const struct shim_test* test, int argc, char** argv);

/* The files that add_temp_file and create_temp_file know of; the driver removes them. */
void shim_temp_files_remove(void);

#endif
