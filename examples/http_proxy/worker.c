/* worker.c: see worker.h. Each worker has its own epoll and its own connections; another thread touches its
 * inbox and figures alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "worker.h"
#include "memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { EVENTS_MAX = 64, SWEEP_MS = 250, QUIET_MS = 50, STARVED_MS = 5, DRAIN_MS = 1000 };

struct settings settings;
static struct worker* workers;
static atomic_bool stopping;                 /* Sync: relaxed; the eventfd orders it */
static atomic_uint_fast64_t refused_at_door; /* Sync: the acceptor's, relaxed */

static uint64_t clock_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

bool worker_stopping(void) { return atomic_load_explicit(&stopping, memory_order_relaxed); }

void workers_refused(void) { worker_count(&refused_at_door); }

/* ---- The worker's lists. */

void worker_retry(struct connection* c, bool starved) {
    struct worker* w = c->worker;
    if (starved) w->starved = true;
    if (c->retrying) return;
    c->retrying = true;
    c->retry_next = w->retry;
    w->retry = c;
}

static void worker_link(struct worker* w, struct connection* c) {
    c->previous = NULL;
    c->next = w->first;
    if (w->first != NULL) w->first->previous = c;
    w->first = c;
}

static void worker_bury(struct worker* w, struct connection* c) {
    if (c->previous != NULL)
        c->previous->next = c->next;
    else
        w->first = c->next;
    if (c->next != NULL) c->next->previous = c->previous;
    connection_end(c);
    c->next = w->dead;
    w->dead = c;
}

/* After a batch of events nobody names them any more, but for the list of retries. */
static void worker_free_dead(struct worker* w) {
    struct connection* c = w->dead;
    w->dead = NULL;
    while (c != NULL) {
        struct connection* next = c->next;
        if (c->retrying) {
            c->next = w->dead;
            w->dead = c;
        } else {
            memory_connection_free(c);
        }
        c = next;
    }
}

static void worker_admit(struct worker* w) {
    struct connection* c = atomic_exchange_explicit(&w->inbox, NULL, memory_order_acquire);
    while (c != NULL) {
        struct connection* next = c->next;
        worker_link(w, c);
        worker_count(&w->served);
        connection_begin(c);
        if (c->over) worker_bury(w, c);
        c = next;
    }
}

static void worker_retry_all(struct worker* w) {
    struct connection* c = w->retry;
    w->retry = NULL;
    w->starved = false;
    while (c != NULL) {
        struct connection* next = c->retry_next;
        c->retrying = false;
        if (!c->over) {
            connection_pump(c);
            if (c->over) worker_bury(w, c);
        }
        c = next;
    }
}

static void worker_sweep(struct worker* w, void (*look)(struct connection*)) {
    struct connection* next;
    for (struct connection* c = w->first; c != NULL; c = next) {
        next = c->next;
        look(c);
        if (c->over) worker_bury(w, c);
    }
}

static void connection_cut(struct connection* c) { c->over = true; }

/* ---- The loop. */

static void worker_event(struct worker* w, const struct epoll_event* event) {
    if (event->data.ptr == w) {
        uint64_t count;
        (void)!read(w->wake, &count, sizeof count);
        worker_admit(w);
        return;
    }
    struct end* e = event->data.ptr;
    struct connection* c = e->owner;
    bool was_over = c->over;
    connection_event(e, event->events);
    if (c->over && !was_over) worker_bury(w, c);
}

/* Wait for events. Before a long wait the thread's caches go to those who work. */
static int worker_wait(struct worker* w, struct epoll_event* events) {
    if (w->retry != NULL) return epoll_wait(w->epoll, events, EVENTS_MAX, w->starved ? STARVED_MS : 0);
    int n = epoll_wait(w->epoll, events, EVENTS_MAX, QUIET_MS);
    if (n != 0) return n;
    memory_idle();
    bool alone = w->first == NULL && !worker_stopping();
    return epoll_wait(w->epoll, events, EVENTS_MAX, alone ? -1 : SWEEP_MS);
}

static void* worker_run(void* argument) {
    struct worker* w = argument;
    struct epoll_event events[EVENTS_MAX];
    uint64_t sweep_ms = 0;
    uint64_t end_ms = 0;
    while (!worker_stopping() || w->first != NULL || w->dead != NULL) {
        int n = worker_wait(w, events);
        w->now_ms = clock_ms();
        for (int i = 0; i < n; i++) worker_event(w, &events[i]);
        worker_retry_all(w);
        if (w->now_ms - sweep_ms >= SWEEP_MS) {
            worker_sweep(w, connection_expire);
            sweep_ms = w->now_ms;
        }
        if (worker_stopping()) {
            if (end_ms == 0) end_ms = w->now_ms + DRAIN_MS;
            worker_sweep(w, w->now_ms < end_ms ? connection_stop : connection_cut);
        }
        worker_free_dead(w);
    }
    return NULL;
}

/* ---- All of them. */

static bool worker_begin(struct worker* w) {
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->now_ms = clock_ms();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = w};
    return w->epoll >= 0 && w->wake >= 0 && epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->wake, &event) == 0 &&
           pthread_create(&w->thread, NULL, worker_run, w) == 0;
}

bool workers_begin(void) {
    workers = calloc(settings.threads, sizeof *workers);
    if (workers == NULL) return false;
    for (unsigned i = 0; i < settings.threads; i++)
        if (!worker_begin(&workers[i])) return false;
    return true;
}

static void worker_wake(struct worker* w) {
    uint64_t one = 1;
    (void)!write(w->wake, &one, sizeof one);
}

void workers_hand(struct connection* c) {
    static unsigned turn; /* the acceptor's */
    struct worker* w = &workers[turn++ % settings.threads];
    c->worker = w;
    struct connection* head = atomic_load_explicit(&w->inbox, memory_order_relaxed);
    do c->next = head;
    while (!atomic_compare_exchange_weak_explicit(&w->inbox, &head, c, memory_order_release,
                                                  memory_order_relaxed));
    if (head == NULL) worker_wake(w);
}

void workers_end(void) {
    atomic_store_explicit(&stopping, true, memory_order_relaxed);
    for (unsigned i = 0; i < settings.threads; i++) worker_wake(&workers[i]);
    for (unsigned i = 0; i < settings.threads; i++) {
        struct worker* w = &workers[i];
        pthread_join(w->thread, NULL);
        /* What came in after its last look. */
        worker_admit(w);
        worker_sweep(w, connection_cut);
        worker_free_dead(w);
        close(w->epoll);
        close(w->wake);
    }
    free(workers);
}

size_t worker_json(char* text, size_t size) {
    uint64_t served = 0, requests = 0, vanished = 0;
    uint64_t refused = atomic_load_explicit(&refused_at_door, memory_order_relaxed);
    for (unsigned i = 0; i < settings.threads; i++) {
        served += atomic_load_explicit(&workers[i].served, memory_order_relaxed);
        requests += atomic_load_explicit(&workers[i].requests, memory_order_relaxed);
        refused += atomic_load_explicit(&workers[i].refused, memory_order_relaxed);
        vanished += atomic_load_explicit(&workers[i].vanished, memory_order_relaxed);
    }
    return (size_t)snprintf(
        text, size, "{\"connections\":%ju,\"requests\":%ju,\"refused\":%ju,\"vanished\":%ju,\"pools\":",
        (uintmax_t)served, (uintmax_t)requests, (uintmax_t)refused, (uintmax_t)vanished);
}
