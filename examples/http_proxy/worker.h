/* worker.h: the threads that serve connections, and what all files know of the program.
 *
 * Who may call it: main.c begins, feeds and ends the workers; connection.c and local.c ask theirs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef HTTP_PROXY_WORKER_H
#define HTTP_PROXY_WORKER_H

#include "connection.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

/* What the command line says; nobody changes it once threads run. */
struct settings {
    struct sockaddr_storage backend;
    socklen_t backend_bytes; /* 0: the program answers itself */
    uint64_t respond_bytes;
    uint64_t timeout_ms;
    unsigned threads;
};
extern struct settings settings;

struct worker {
    pthread_t thread;
    int epoll;
    int wake;                          /* an eventfd: the inbox has something, or the end has come */
    _Atomic(struct connection*) inbox; /* Sync: release when pushed, acquire when all are taken */
    uint64_t now_ms;                   /* from here on the worker's own */
    struct connection* first;
    struct connection* dead; /* closed, and still named by events of this batch */
    struct connection* retry;
    bool starved;                /* the list waits for a buffer */
    atomic_uint_fast64_t served; /* Sync: relaxed, these figures are for people; connections */
    atomic_uint_fast64_t requests;
    atomic_uint_fast64_t refused;
    atomic_uint_fast64_t vanished; /* clients that left in the middle */
};

/** False: no memory, descriptors or threads. */
bool workers_begin(void);
/** Hand a new client over to the next worker; the connection is the worker's from now on. */
void workers_hand(struct connection* c);
/** Let requests end for some seconds, then close all; returns when all threads have ended. */
void workers_end(void);
/** A client for whom there was no connection. */
void workers_refused(void);

bool worker_stopping(void);
/** Pump the connection again: when a buffer may be free again, or just after the others. */
void worker_retry(struct connection* c, bool starved);
/** All workers' figures as the beginning of a JSON object; the number of bytes, less than `size`. */
size_t worker_json(char* text, size_t size);

/* The worker's own figure: nobody else writes it. */
static inline void worker_count(atomic_uint_fast64_t* figure) {
    uint64_t value = atomic_load_explicit(figure, memory_order_relaxed);
    atomic_store_explicit(figure, value + 1, memory_order_relaxed);
}

#endif
