/* memory.h: where the proxy's objects come from: weir's pools, or malloc.
 *
 * Who may call it: every file of the proxy, from any thread. An object may be given back by another thread
 * than the one that took it. It deliberately does not know what the objects are for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef HTTP_PROXY_MEMORY_H
#define HTTP_PROXY_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

struct connection;
struct journal_line;

struct memory_plan {
    bool malloc_only;
    size_t buffer_bytes;
    size_t buffers_max; /* 0: no limit */
    size_t connections_max;
};

/** Before any other call, in the only thread. False: it cannot be had; errno says why. */
bool memory_begin(const struct memory_plan* plan);
/** When all is given back, in the only thread. False: something is not, and stderr names the pool. */
bool memory_end(void);

/** All: NULL when the limit is reached or there is no memory. A connection reads as zero. */
struct connection* memory_connection(void);
void memory_connection_free(struct connection* c);
char* memory_buffer(void);
void memory_buffer_free(char* buffer);
struct journal_line* memory_line(void);
void memory_line_free(struct journal_line* line);

size_t memory_buffer_bytes(void);
/** The calling thread is about to wait for long. */
void memory_idle(void);
/** The pools' figures as a JSON array; the number of bytes, less than `size`. */
size_t memory_json(char* text, size_t size);

#endif
