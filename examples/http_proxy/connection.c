/* connection.c: see connection.h. Each step moves what it can and says whether something moved; the pump
 * repeats them until nothing does.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "connection.h"
#include "journal.h"
#include "local.h"
#include "memory.h"
#include "worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Rounds of one connection before the others' turn; how long an answered client may take to hang up. */
enum { ROUNDS_MAX = 32, LINGER_MS = 1000, COMPACT_PART = 4 };

/* ---- Sockets. */

static void end_close(struct end* e) {
    if (e->fd >= 0) close(e->fd); /* epoll forgets it by itself */
    e->fd = -1;
    e->readable = e->writable = e->hung = false;
}

static bool end_watch(struct end* e, int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = e};
    e->fd = fd;
    return epoll_ctl(e->owner->worker->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* ---- Buffers. */

void flow_rest(struct flow* f) {
    if (f->area == NULL || f->start != f->end) return;
    memory_buffer_free(f->area);
    f->area = NULL;
    f->start = f->seen = f->end = 0;
}

static void flow_drop(struct flow* f) {
    f->start = f->seen = f->end;
    flow_rest(f);
}

bool connection_buffer(struct connection* c, struct flow* f) {
    if (f->area == NULL) f->area = memory_buffer();
    if (f->area != NULL) return true;
    /* Nothing of this exchange has gone anywhere yet: say no. Otherwise wait until somebody gives one back.
     */
    if (f->stage == STAGE_HEAD && c->response.passed == 0)
        connection_refuse(c, 503);
    else
        worker_retry(c, true);
    return false;
}

enum fill { FILL_NOTHING, FILL_MORE, FILL_END, FILL_FAILED };

/* Room behind the data. A move is worth it where little is moved, or where a head has to be in one piece. */
static size_t flow_room(struct flow* f) {
    size_t capacity = memory_buffer_bytes();
    size_t held = f->end - f->start;
    if (f->end == capacity && f->start != 0 && (f->stage == STAGE_HEAD || held <= capacity / COMPACT_PART)) {
        memmove(f->area, f->area + f->start, held);
        f->seen -= f->start;
        f->start = 0;
        f->end = held;
    }
    return capacity - f->end;
}

static enum fill flow_fill(struct connection* c, struct flow* f, struct end* from) {
    if (!from->readable || !connection_buffer(c, f)) return FILL_NOTHING;
    size_t room = flow_room(f);
    if (room == 0) return FILL_NOTHING;
    ssize_t n = recv(from->fd, f->area + f->end, room, 0);
    int error = errno;
    if (n > 0) {
        f->end += (size_t)n;
        /* Less than there was room for was all, but for the end, which has no event of its own. */
        from->readable = (size_t)n == room || from->hung;
        return FILL_MORE;
    }
    flow_rest(f);
    if (n == 0) {
        from->readable = false;
        from->hung = true;
        return FILL_END;
    }
    if (error == EINTR) return FILL_NOTHING; /* sockets that do not block are not interrupted */
    from->readable = false;
    return error == EAGAIN ? FILL_NOTHING : FILL_FAILED;
}

/* Bytes passed on; -1: the other end is gone. */
static ssize_t flow_drain(struct connection* c, struct flow* f, struct end* to) {
    if (f->start == f->seen || !to->writable) return 0;
    ssize_t n = send(to->fd, f->area + f->start, f->seen - f->start, MSG_NOSIGNAL);
    if (n < 0) {
        to->writable = false;
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    }
    if ((size_t)n < f->seen - f->start) to->writable = false;
    f->start += (size_t)n;
    f->passed += (uint64_t)n;
    c->moved_ms = c->worker->now_ms;
    flow_rest(f);
    return n;
}

/* ---- The end of it. */

static void connection_linger(struct connection* c) {
    flow_drop(&c->request);
    flow_drop(&c->response);
    end_close(&c->server);
    /* Closed with unread data the socket would be reset, and the answer lost on its way. */
    shutdown(c->client.fd, SHUT_WR);
    c->client.readable = true;
    c->lingering = true;
    c->moved_ms = c->worker->now_ms;
}

void connection_refuse(struct connection* c, unsigned status) {
    if (c->lingering || c->over) return;
    worker_count(&c->worker->refused);
    if (c->response.passed != 0) {
        c->over = true;
        return;
    }
    char text[256];
    int n = snprintf(
        text, sizeof text,
        "HTTP/1.1 %u %s\r\nContent-Type: text/plain\r\nContent-Length: 4\r\nConnection: close\r\n\r\n%u\n",
        status, http_reason(status), status);
    /* So few bytes go at once, or not at all where the client left earlier answers unread. */
    (void)send(c->client.fd, text, (size_t)n, MSG_NOSIGNAL);
    if (c->line != NULL) journal_give(c->line, status, 0, c->begun_ns);
    c->line = NULL;
    connection_linger(c);
}

static void linger_step(struct connection* c) {
    char waste[4096];
    while (c->client.readable) {
        ssize_t n = recv(c->client.fd, waste, sizeof waste, 0);
        if (n > 0) continue;
        c->client.readable = false;
        c->over = n == 0 || errno != EAGAIN;
    }
}

/* ---- Client to server. */

static bool server_reach(struct connection* c) {
    /* What a server says unasked is the answer to nothing. */
    if (c->server.fd >= 0 && (c->server.hung || c->server.readable)) end_close(&c->server);
    if (c->server.fd >= 0) return true;
    int fd = socket(settings.backend.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        connection_refuse(c, 503);
        return false;
    }
    const struct sockaddr* to = (const struct sockaddr*)&settings.backend;
    if (!end_watch(&c->server, fd) ||
        (connect(fd, to, settings.backend_bytes) != 0 && errno != EINPROGRESS)) {
        end_close(&c->server);
        connection_refuse(c, 502);
        return false;
    }
    return true;
}

static bool request_route(struct connection* c) {
    const char* target = c->request.area + c->request.start + c->asked.target_at;
    c->line = journal_take(target, c->asked.target_bytes);
    c->answerer = local_begin(c, target, c->asked.target_bytes);
    return c->answerer != BY_SERVER || server_reach(c);
}

/* Whether the head is complete now, good, and on its way. */
static bool request_head(struct connection* c) {
    struct flow* f = &c->request;
    while (f->end - f->start >= 2 && memcmp(f->area + f->start, "\r\n", 2) == 0) f->start += 2;
    f->seen = f->start;
    if (f->start == f->end) {
        flow_rest(f);
        return false;
    }
    unsigned verdict = http_request(f->area + f->start, f->end - f->start, &c->asked);
    if (verdict == HTTP_MORE && f->end - f->start < memory_buffer_bytes()) return false;
    if (verdict != HTTP_GOOD) {
        connection_refuse(c, verdict == HTTP_MORE ? 431 : verdict);
        return false;
    }
    c->begun_ns = journal_clock_ns();
    if (!request_route(c)) return false;
    f->stage = STAGE_BODY;
    f->body = c->asked.body;
    f->seen += c->asked.bytes;
    if (c->answerer != BY_SERVER) f->start = f->seen;
    return true;
}

/* How far a message's body goes in what came. */
static bool flow_look(struct flow* f) {
    size_t n = f->area == NULL ? 0 : http_body_take(&f->body, f->area + f->seen, f->end - f->seen);
    f->seen += n;
    if (f->body.done) f->stage = STAGE_DONE;
    return n != 0 || f->body.done;
}

static bool request_in(struct connection* c) {
    struct flow* f = &c->request;
    if (f->stage == STAGE_DONE) return false;
    bool between = f->stage == STAGE_HEAD && f->area == NULL;
    switch (flow_fill(c, f, &c->client)) {
    case FILL_END:
    case FILL_FAILED:
        c->over = true;
        return false;
    case FILL_MORE:
        /* A head has one span of time to come in, however many pieces it comes in. */
        if (between || f->stage == STAGE_BODY) c->moved_ms = c->worker->now_ms;
        break;
    case FILL_NOTHING:
        break;
    }
    if (c->lingering || f->area == NULL) return false;
    bool began = f->stage == STAGE_HEAD && request_head(c);
    if (f->stage != STAGE_BODY || c->lingering) return false;
    bool moved = flow_look(f);
    flow_rest(f);
    if (f->body.bad) connection_refuse(c, 400);
    return moved || began;
}

static bool request_out(struct connection* c) {
    if (c->answerer != BY_SERVER) return local_swallow(c);
    ssize_t n = flow_drain(c, &c->request, &c->server);
    if (n < 0) connection_refuse(c, 502);
    return n > 0;
}

/* ---- Server to client. */

static bool response_head(struct connection* c) {
    struct flow* f = &c->response;
    unsigned verdict = http_response(f->area + f->seen, f->end - f->seen, &c->asked, &c->answered);
    if (verdict == HTTP_MORE && f->end - f->seen < memory_buffer_bytes()) return false;
    if (verdict != HTTP_GOOD) {
        connection_refuse(c, 502);
        return false;
    }
    f->seen += c->answered.bytes;
    if (c->answered.status < 200) return true; /* the answer is still to come */
    f->stage = STAGE_BODY;
    f->body = c->answered.body;
    return true;
}

/* Nothing more comes: the end of a body that ends so, otherwise a failure. */
static bool response_ended(struct connection* c) {
    struct flow* f = &c->response;
    if (f->stage == STAGE_BODY && f->body.framing == HTTP_UNTIL_CLOSE) {
        f->stage = STAGE_DONE;
        return true;
    }
    connection_refuse(c, 502);
    return false;
}

static bool response_in(struct connection* c) {
    struct flow* f = &c->response;
    if (f->stage == STAGE_DONE || c->request.stage == STAGE_HEAD) return false;
    if (c->answerer != BY_SERVER) return local_produce(c);
    switch (flow_fill(c, f, &c->server)) {
    case FILL_END:
        return response_ended(c);
    case FILL_FAILED:
        connection_refuse(c, 502);
        return false;
    case FILL_MORE:
        c->moved_ms = c->worker->now_ms;
        break;
    case FILL_NOTHING:
        break;
    }
    if (c->lingering || f->seen == f->end) return false;
    bool began = f->stage == STAGE_HEAD && response_head(c);
    if (f->stage != STAGE_BODY) return began;
    bool moved = flow_look(f);
    if (f->body.bad) connection_refuse(c, 502);
    return moved || began;
}

static bool response_out(struct connection* c) {
    ssize_t n = flow_drain(c, &c->response, &c->client);
    if (n < 0) {
        worker_count(&c->worker->vanished);
        c->over = true;
    }
    return n > 0;
}

/* ---- Both. */

static bool exchange_end(struct connection* c) {
    if (c->response.stage != STAGE_DONE || c->response.start != c->response.seen) return false;
    bool whole = c->request.stage == STAGE_DONE && c->request.start == c->request.seen;
    bool goes_on = whole && c->asked.keep_alive && c->answered.keep_alive && !worker_stopping();
    if (!whole || !c->answered.keep_alive || c->response.area != NULL) end_close(&c->server);
    if (c->line != NULL) journal_give(c->line, c->answered.status, c->response.passed, c->begun_ns);
    c->line = NULL;
    worker_count(&c->worker->requests);
    flow_drop(&c->response);
    c->response = (struct flow){.stage = STAGE_HEAD};
    c->request.stage = STAGE_HEAD;
    c->request.passed = 0;
    c->answerer = BY_SERVER;
    if (!goes_on) connection_linger(c);
    return true;
}

void connection_pump(struct connection* c) {
    static bool (*const steps[])(struct connection*) = {request_in, request_out, response_in, response_out,
                                                        exchange_end};
    for (int round = 0; round < ROUNDS_MAX; round++) {
        bool moved = false;
        for (size_t i = 0; i < sizeof steps / sizeof steps[0] && !c->lingering && !c->over; i++)
            moved |= steps[i](c);
        if (c->lingering && !c->over) linger_step(c);
        if (!moved || c->lingering || c->over) return;
    }
    worker_retry(c, false);
}

void connection_begin(struct connection* c) {
    c->client.owner = c->server.owner = c;
    c->server.fd = -1;
    c->moved_ms = c->worker->now_ms;
    if (!end_watch(&c->client, c->client.fd)) c->over = true;
}

static bool connection_is_idle(const struct connection* c) {
    return c->request.stage == STAGE_HEAD && c->request.area == NULL;
}

void connection_event(struct end* e, uint32_t events) {
    struct connection* c = e->owner;
    if (c->over) return;
    bool gone = (events & (EPOLLHUP | EPOLLERR)) != 0;
    if (gone || (events & (EPOLLIN | EPOLLRDHUP)) != 0) e->readable = true;
    if (gone || (events & EPOLLOUT) != 0) e->writable = true;
    if (gone || (events & EPOLLRDHUP) != 0) e->hung = true;
    if (e == &c->client && gone) {
        if (!c->lingering && !connection_is_idle(c)) worker_count(&c->worker->vanished);
        c->over = true;
    } else if (e == &c->server && e->hung && connection_is_idle(c)) {
        end_close(e);
    } else {
        connection_pump(c);
    }
}

void connection_expire(struct connection* c) {
    uint64_t quiet = c->worker->now_ms - c->moved_ms;
    if (c->lingering || connection_is_idle(c)) {
        if (quiet >= (c->lingering ? LINGER_MS : settings.timeout_ms)) c->over = true;
    } else if (quiet >= settings.timeout_ms) {
        connection_refuse(c, c->request.stage == STAGE_DONE ? 504 : 408);
    }
}

void connection_stop(struct connection* c) {
    if (c->lingering || connection_is_idle(c)) c->over = true;
}

void connection_end(struct connection* c) {
    flow_drop(&c->request);
    flow_drop(&c->response);
    end_close(&c->client);
    end_close(&c->server);
    if (c->line != NULL) journal_give(c->line, 0, c->response.passed, c->begun_ns);
    c->line = NULL;
}
