/* support/support.h: calls that end the test when they fail, and a few helpers, under the tests' names.
 *
 * Who may include it: the tests of glibc's source package, and this shim. A function whose name is a libc
 * function's with an x in front does what that one does, and ends the process with a message on failure. It
 * deliberately declares what the tests we run use, and no more.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SUPPORT_SUPPORT_H
#define SHIM_SUPPORT_SUPPORT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#include <support/check.h>

void* xmalloc(size_t size) __attribute__((malloc));
void* xcalloc(size_t count, size_t size) __attribute__((malloc));
void* xrealloc(void* block, size_t size);
char* xstrdup(const char* text);
char* xstrndup(const char* text, size_t length);
char* xasprintf(const char* format, ...) __attribute__((format(printf, 1, 2)));
long xsysconf(int name);
char* xsetlocale(int category, const char* locale);

/* write_message: a line on standard output without stdio. */
void write_message(const char* message);
/* set_fortify_handler: calls `handler` on SIGABRT, and keeps libc's message off the terminal. */
void set_fortify_handler(void (*handler)(int));
void ignore_stderr(void);
/* Each ends the process with status 0 in that many seconds, by exit or _exit; a thread waits. */
void delayed_exit(int seconds);
void delayed__exit(int seconds);

/* Memory that forked children share, zeroed; not from the heap. */
void* support_shared_allocate(size_t size);
void support_shared_free(void* block);

#endif
