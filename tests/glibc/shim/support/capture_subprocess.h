/* support/capture_subprocess.h: runs a function in a forked child and keeps what it printed.
 *
 * Who may include it: the tests of glibc's source package. It deliberately does not judge how the child
 * ended.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SUPPORT_CAPTURE_SUBPROCESS_H
#define SHIM_SUPPORT_CAPTURE_SUBPROCESS_H

#include <sys/types.h>
#include <sys/wait.h>

#include <support/xmemstream.h>

struct support_capture_subprocess {
    struct xmemstream out;
    struct xmemstream err;
    int status; /* as waitpid gives it */
};

struct support_capture_subprocess support_capture_subprocess(void (*body)(void*), void* closure);
void support_capture_subprocess_free(struct support_capture_subprocess* capture);

#endif
