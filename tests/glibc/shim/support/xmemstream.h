/* support/xmemstream.h: a stream that ends up in memory.
 *
 * Who may include it: the tests of glibc's source package, and support/capture_subprocess.h. It deliberately
 * does not know what is written to it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SHIM_SUPPORT_XMEMSTREAM_H
#define SHIM_SUPPORT_XMEMSTREAM_H

#include <stdio.h>

struct xmemstream {
    FILE* out;
    char* buffer; /* complete, with a NUL after it, once the stream is closed */
    size_t length;
};

void xopen_memstream(struct xmemstream* stream);
void xfclose_memstream(struct xmemstream* stream);

#endif
