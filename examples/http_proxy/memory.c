/* memory.c: the three kinds of objects, each from a pool of its own or, for comparison, from malloc.
 *
 * The connections and the journal's lines are of types known here, so their pools are declared at file scope
 * and the calls are inlined. How large a buffer is, the command line says: that pool is made at run time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "memory.h"
#include "connection.h"
#include "journal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static struct memory_plan plan;

size_t memory_buffer_bytes(void) { return plan.buffer_bytes; }

/* ---- malloc, with limits as the pools have them. */

struct quota {
    size_t max;
    atomic_size_t used; /* Sync: relaxed; it guards no memory. Counted where there is a limit alone */
};

static struct quota connections_quota;
static struct quota buffers_quota;

static bool quota_take(struct quota* q) {
    if (q->max == 0 || atomic_fetch_add_explicit(&q->used, 1, memory_order_relaxed) < q->max) return true;
    atomic_fetch_sub_explicit(&q->used, 1, memory_order_relaxed);
    return false;
}

static void quota_give(struct quota* q) {
    if (q->max != 0) atomic_fetch_sub_explicit(&q->used, 1, memory_order_relaxed);
}

static void* counted(struct quota* q, void* p) {
    if (p == NULL) quota_give(q);
    return p;
}

static void plain_begin(void) {
    connections_quota.max = plan.connections_max;
    buffers_quota.max = plan.buffers_max;
}

static struct connection* plain_connection(void) {
    if (!quota_take(&connections_quota)) return NULL;
    return counted(&connections_quota, calloc(1, sizeof(struct connection)));
}

static void plain_connection_free(struct connection* c) {
    free(c);
    quota_give(&connections_quota);
}

static char* plain_buffer(void) {
    return quota_take(&buffers_quota) ? counted(&buffers_quota, malloc(plan.buffer_bytes)) : NULL;
}

static void plain_buffer_free(char* buffer) {
    free(buffer);
    quota_give(&buffers_quota);
}

#if HTTP_PROXY_POOLS

#    include <weir/pool.h>
#    include <weir/weir.h>

WEIR_POOL_DECLARE_TYPED(connections, struct connection, WEIR_POOL_ZERO);
WEIR_POOL_DECLARE_TYPED(journal_lines, struct journal_line, 0);
static struct weir_pool* buffers;

bool memory_begin(const struct memory_plan* wanted) {
    plan = *wanted;
    plain_begin();
    if (plan.malloc_only) return true;
    buffers = weir_pool_create("buffers", plan.buffer_bytes, 0, 0);
    if (buffers == NULL) return false;
    /* A pool with a limit counts each object at once, so that no thread may keep any: it is set where asked.
     */
    errno = plan.buffers_max == 0 ? 0 : weir_pool_limit(buffers, plan.buffers_max);
    if (errno == 0 && plan.connections_max != 0)
        errno = weir_pool_limit(WEIR_POOL(connections), plan.connections_max);
    return errno == 0;
}

bool memory_end(void) {
    if (plan.malloc_only) return true;
    /* What is still out is a leak, and the pool says so itself. */
    int busy = weir_pool_destroy(WEIR_POOL(journal_lines));
    busy |= weir_pool_destroy(WEIR_POOL(connections));
    busy |= weir_pool_destroy(buffers);
    return busy == 0;
}

struct connection* memory_connection(void) {
    return plan.malloc_only ? plain_connection() : WEIR_POOL_ALLOC(connections);
}

void memory_connection_free(struct connection* c) {
    if (plan.malloc_only)
        plain_connection_free(c);
    else
        WEIR_POOL_FREE(connections, c);
}

char* memory_buffer(void) { return plan.malloc_only ? plain_buffer() : weir_pool_alloc(buffers); }

void memory_buffer_free(char* buffer) {
    if (plan.malloc_only)
        plain_buffer_free(buffer);
    else
        weir_pool_free(buffers, buffer);
}

struct journal_line* memory_line(void) {
    return plan.malloc_only ? malloc(sizeof(struct journal_line)) : WEIR_POOL_ALLOC(journal_lines);
}

void memory_line_free(struct journal_line* line) {
    if (plan.malloc_only)
        free(line);
    else
        WEIR_POOL_FREE(journal_lines, line);
}

void memory_idle(void) { weir_thread_idle(); }

size_t memory_json(char* text, size_t size) {
    size_t at = (size_t)snprintf(text, size, "[");
    struct weir_pool_stats s = {.struct_size = sizeof s};
    while (at < size && weir_pool_stats_next(s.number, &s) == 0)
        at += (size_t)snprintf(
            text + at, size - at,
            "%s{\"name\":\"%s\",\"object_bytes\":%ju,\"used\":%ju,\"held\":%ju,\"failed\":%ju,\"limit\":%ju,"
            "\"storage\":%ju,\"allocated\":%ju,\"cached\":%ju,\"shared\":%ju,\"needed\":%ju}",
            at == 1 ? "" : ",", s.name, (uintmax_t)s.object_bytes, (uintmax_t)s.used, (uintmax_t)s.held,
            (uintmax_t)s.failed, (uintmax_t)s.limit, (uintmax_t)s.storage, (uintmax_t)s.allocated,
            (uintmax_t)s.cached, (uintmax_t)s.shared, (uintmax_t)s.needed);
    if (at < size) at += (size_t)snprintf(text + at, size - at, "]");
    return at < size ? at : size - 1;
}

#else

bool memory_begin(const struct memory_plan* wanted) {
    plan = *wanted;
    plain_begin();
    errno = ENOTSUP; /* without weir there are no pools */
    return plan.malloc_only;
}

bool memory_end(void) { return true; }

struct connection* memory_connection(void) { return plain_connection(); }
void memory_connection_free(struct connection* c) { plain_connection_free(c); }
char* memory_buffer(void) { return plain_buffer(); }
void memory_buffer_free(char* buffer) { plain_buffer_free(buffer); }
struct journal_line* memory_line(void) { return malloc(sizeof(struct journal_line)); }
void memory_line_free(struct journal_line* line) { free(line); }
void memory_idle(void) {}
size_t memory_json(char* text, size_t size) { return (size_t)snprintf(text, size, "[]"); }

#endif
