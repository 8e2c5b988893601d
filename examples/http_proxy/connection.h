/* connection.h: one client, the server that answers it, and what flows between them.
 *
 *     client --recv--> request  buffer --send--> server      the buffers are there while they hold data, and
 *     client <--send-- response buffer <--recv-- server      no longer: an idle connection has none
 *
 * Who may call it: the worker that owns the connection, and no other thread. It deliberately does not know
 * which connections there are besides.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef HTTP_PROXY_CONNECTION_H
#define HTTP_PROXY_CONNECTION_H

#include "http.h"

struct connection;
struct journal_line;
struct worker;

/* A socket. It is watched edge-triggered: an event sets the flags, a call that would block clears them. */
struct end {
    struct connection* owner;
    int fd; /* -1: none */
    bool readable;
    bool writable;
    bool hung; /* the peer sends no more: it is read until that shows */
};

enum stage { STAGE_HEAD, STAGE_BODY, STAGE_DONE };

/* One direction.
 *
 *   area [ ... start ... seen ... end ... )   [start, seen) may be passed on, [seen, end) is not looked at
 * yet or belongs to the next message
 *
 *   Invariant outside of a step: area == NULL is start == seen == end == 0 is "no data". */
struct flow {
    char* area;
    size_t start;
    size_t seen;
    size_t end;
    enum stage stage;
    struct http_body body;
    uint64_t passed; /* bytes of this message that went on */
};

/* Who answers a request. */
enum answerer { BY_SERVER, BY_PATTERN, BY_STATS };

struct connection {
    struct connection* next; /* in the inbox, of the worker's, of its dead */
    struct connection* previous;
    struct connection* retry_next;
    struct worker* worker;
    struct end client;
    struct end server;
    struct flow request;
    struct flow response;
    struct http_head asked;
    struct http_head answered;
    enum answerer answerer;
    uint64_t local_left; /* of a body that is made here */
    uint64_t local_seed;
    struct journal_line* line;
    uint64_t begun_ns;
    uint64_t moved_ms; /* when something last came or went */
    bool retrying;     /* on the worker's list */
    bool lingering;    /* answered for good: what the client still sends is thrown away */
    bool over;         /* the worker closes it */
};

/** A connection that was handed over begins: `client.fd` and `worker` are set. */
void connection_begin(struct connection* c);
/** epoll's word about one of its sockets. */
void connection_event(struct end* e, uint32_t events);
/** Move what can be moved. Afterwards look at `over`. */
void connection_pump(struct connection* c);
/** Some time has passed. */
void connection_expire(struct connection* c);
/** The program ends: an idle connection is over. */
void connection_stop(struct connection* c);
/** Close its sockets and give back all but itself. */
void connection_end(struct connection* c);

/* ---- For local.c. */

/** Answer with a status and close, or just close where an answer has begun. */
void connection_refuse(struct connection* c, unsigned status);
/** A buffer for the flow, if it has none. False: none is left, and what follows from that is done. */
bool connection_buffer(struct connection* c, struct flow* f);
/** Give the buffer back if it holds nothing. */
void flow_rest(struct flow* f);

#endif
