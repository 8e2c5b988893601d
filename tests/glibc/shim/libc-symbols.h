/* libc-symbols.h: the names that every file of a build of glibc may use.
 *
 * Who may include it: the runner puts it in front of every file that comes from glibc's source package. With
 * SHIM_LIBC, the file is a part of glibc that a test of it brings along (the recipe `libc` in expected.tsv);
 * it becomes a part of the program, so that there is nothing to hide. It deliberately knows no function of
 * libc.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_LIBC_SYMBOLS_H
#define SHIM_LIBC_SYMBOLS_H

#ifndef _GNU_SOURCE
#    define _GNU_SOURCE 1
#endif
#include <sys/cdefs.h>

#define attribute_hidden
#define libc_hidden_proto(name)
#define libc_hidden_def(name)
#define strong_alias(name, other) extern __typeof__(name) other __attribute__((alias(#name)));
#define weak_alias(name, other) extern __typeof__(name) other __attribute__((weak, alias(#name)));

#ifdef SHIM_LIBC
/* After <features.h>, which refuses it in a program. */
#    define _LIBC 1
#    define __set_errno(value) (errno = (value))
#    define __snprintf snprintf
#    define __libc_fatal shim_libc_fatal
void shim_libc_fatal(const char* message) __attribute__((noreturn));
#endif

#ifndef __attribute_optimization_barrier__
#    define __attribute_optimization_barrier__ __attribute__((noinline, noclone))
#endif

#endif
