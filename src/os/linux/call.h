/* call.h: what the files of os/linux share: counted system calls, and the lines of files of /proc.
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

/* The name of a line in a file of /proc that has lines of names and values (status, cgroup): what precedes
 * the first colon. */
enum { STATUS_NAME_BYTES = 16 };
typedef char status_name_t[STATUS_NAME_BYTES];
/* A character of what follows that colon in a line that has the name of that number, its end included. */
typedef void (*status_see_t)(void* context, unsigned line, char c);
/* Have `see` called for each of these, in the file's order. Little stack is used, and the file may be of any
 * length: a status file has a line of all the user's groups. 0, or a negative errno: -ECANCELED where a
 * sandbox was announced. */
WEIR_FN long os_status_scan(const char* path, const status_name_t* names, unsigned count, status_see_t see,
                            void* context);

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
