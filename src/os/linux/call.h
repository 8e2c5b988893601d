/* call.h: what the files of os/linux share: counted system calls, and the lines of /proc/self/status.
 *
 * For those files alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_OS_LINUX_CALL_H
#define WEIR_OS_LINUX_CALL_H

#include "base/compiler.h"
#include "os/os.h"

/* One system call: counted, errno kept. Returns the kernel's result, with -1 for every failure; os_call_error
 * has -errno. */
WEIR_FN long os_call6(enum os_call kind, long number, long a, long b, long c, long d, long e, long f);
WEIR_FN long os_call3(enum os_call kind, long number, long a, long b, long c);
WEIR_FN long os_call_error(enum os_call kind, long number, long a, long b, long c, long d, long e, long f);

/* A file to read; -1: it cannot be, or a sandbox was announced. os_file_read: 0 at its end, and on failure.
 */
WEIR_FN long os_file_open(const char* path);
WEIR_FN size_t os_file_read(long fd, char* data, size_t bytes);
WEIR_FN void os_file_close(long fd);

/* What follows "Name:" in the text of a status file, up to its line's end; NULL: no such line. */
WEIR_FN const char* os_status_line(const char* status, size_t length, const char* name);
/* The digits of that line as one number; 0 when there are none. */
WEIR_FN uint64_t os_status_number(const char* status, size_t length, const char* name);

/* Whether the program has begun to confine itself: files may not be opened any more. Before it does, what
 * will be asked for later is read. */
WEIR_FN bool os_sandbox_is_announced(void);
WEIR_FN void os_overcommit_remember(void);

/* Called in the helper: whether its table of descriptors is not the process's; a last attempt to make it so.
 * False in other threads. */
WEIR_FN bool os_helper_files_are_own(void);
/* Send the helper a signal, which is blocked in it. */
WEIR_FN void os_helper_signal(int number);
/* The helper ends, or did not come along. */
WEIR_FN void os_pressure_forget(void);

#endif
