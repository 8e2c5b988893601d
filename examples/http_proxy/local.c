/* local.c: see local.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "local.h"
#include "memory.h"
#include "pattern.h"
#include "worker.h"

#include <stdio.h>

void local_init(void) { pattern_begin(); }

static bool number_take(const char** at, const char* end, uint64_t* out) {
    const char* begin = *at;
    uint64_t value = 0;
    while (*at < end && **at >= '0' && **at <= '9' && *at - begin < 12)
        value = value * 10 + (uint64_t)(*(*at)++ - '0');
    if (*at == begin) return false;
    *out = value;
    return true;
}

/* "/BYTES/SEED"; each may be missing. */
static void pattern_ask(struct connection* c, const char* target, size_t bytes) {
    const char* at = target + 1;
    const char* end = target + bytes;
    c->local_left = settings.respond_bytes;
    c->local_seed = 0;
    if (*target != '/' || !number_take(&at, end, &c->local_left)) return;
    if (at == end || *at != '/') return;
    at++;
    (void)number_take(&at, end, &c->local_seed);
}

enum answerer local_begin(struct connection* c, const char* target, size_t bytes) {
    if (bytes == strlen("/stats") && memcmp(target, "/stats", bytes) == 0) return BY_STATS;
    if (settings.backend_bytes != 0) return BY_SERVER;
    pattern_ask(c, target, bytes);
    return BY_PATTERN;
}

bool local_swallow(struct connection* c) {
    struct flow* f = &c->request;
    size_t n = f->seen - f->start;
    if (n == 0) return false;
    bool checked = c->answerer == BY_PATTERN && f->body.framing == HTTP_LENGTH;
    bool good = !checked || pattern_matches(c->local_seed + f->passed, f->area + f->start, n);
    f->passed += n;
    f->start = f->seen;
    flow_rest(f);
    if (!good) connection_refuse(c, 400);
    return true;
}

/* With its head it fits in the smallest buffer. */
enum { STATS_BYTES = 1800 };

static size_t stats_write(char* text, size_t size) {
    char body[STATS_BYTES];
    size_t n = worker_json(body, sizeof body);
    n += memory_json(body + n, sizeof body - n - 2);
    body[n++] = '}';
    body[n++] = '\n';
    return (size_t)snprintf(
        text, size, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%.*s", n,
        (int)n, body);
}

static size_t pattern_head(const struct connection* c, char* text, size_t size) {
    return (size_t)snprintf(text, size,
                            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: "
                            "%ju\r\n\r\n",
                            (uintmax_t)c->local_left);
}

/* As much of the body as there is room for. */
static void pattern_more(struct connection* c) {
    struct flow* f = &c->response;
    size_t room = memory_buffer_bytes() - f->end;
    size_t n = c->local_left < room ? (size_t)c->local_left : room;
    pattern_fill(c->local_seed, f->area + f->end, n);
    c->local_seed += n;
    c->local_left -= n;
    f->end += n;
}

bool local_produce(struct connection* c) {
    struct flow* f = &c->response;
    bool asked = c->request.stage == STAGE_DONE && c->request.start == c->request.seen;
    if (!asked || f->area != NULL || !connection_buffer(c, f)) return false;
    if (f->stage == STAGE_HEAD) {
        size_t size = memory_buffer_bytes();
        f->end = c->answerer == BY_STATS ? stats_write(f->area, size) : pattern_head(c, f->area, size);
        f->stage = STAGE_BODY;
        c->answered = (struct http_head){.status = 200, .keep_alive = true};
        if (c->answerer == BY_STATS || c->asked.wants_no_body) c->local_left = 0;
    }
    pattern_more(c);
    f->seen = f->end;
    if (c->local_left == 0) f->stage = STAGE_DONE;
    return true;
}
