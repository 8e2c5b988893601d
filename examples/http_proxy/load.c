/* load.c: loads a server with keep-alive connections, checks every byte of what comes back, and reports.
 *
 *     http_load --port 8080 --threads 2 --connections 64 --ms 5000 --bytes 4096 [--post 0] [--requests 0] ...
 *
 * The server answers "/BYTES/SEED" as http_proxy --respond does: see pattern.h. --requests N: a connection is
 * closed after N requests and another one opened. --vanish N: one request in N is abandoned in the middle, by
 * a reset. --slow N: one connection in N reads a little at a time. Prints one line of JSON. Exits with 1
 * where an answer was wrong or cut off; a 503 is counted as refused, and is no error.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "pattern.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_MAX = 2048, READ_BYTES = 256 * 1024, SLOW_BYTES = 4096, SLOW_US = 2000, EVENTS_MAX = 64 };
/* Latencies by powers of two, each in 16 parts: at most 6 % too large. */
enum { PARTS = 16, CLASSES = 40 * PARTS };

static struct {
    uint64_t port, threads, connections, milliseconds, bytes, post, requests, vanish, slow;
} plan = {.port = 8080, .threads = 2, .connections = 64, .milliseconds = 5000, .bytes = 4096};

struct tally {
    uint64_t requests, refused, vanished, opened, errors;
    uint64_t body_bytes;
    uint64_t took[CLASSES];
};

struct client {
    int fd;
    bool slow;
    uint32_t watched; /* epoll's events */
    uint64_t seed;
    uint64_t asked_ns;
    uint64_t served; /* requests on this connection */
    char out[HEAD_MAX];
    size_t out_at, out_bytes;
    uint64_t post_at; /* of the body that is sent */
    char head[HEAD_MAX];
    size_t head_bytes;
    bool in_body;
    unsigned status;
    bool closes;
    uint64_t body_at, body_bytes;
    uint64_t vanish_at; /* bytes of body after which to go; UINT64_MAX: stays */
    uint64_t due_ns;    /* a slow one: when it reads again */
};

struct thread {
    pthread_t id;
    uint64_t random;
    int epoll;
    size_t count;
    struct client* clients;
    struct tally tally;
    char* area;
};

static struct sockaddr_in server;
static uint64_t end_ns;

static uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* xorshift64 (Marsaglia, 2003). */
static uint64_t random_next(struct thread* t) {
    t->random ^= t->random << 13;
    t->random ^= t->random >> 7;
    t->random ^= t->random << 17;
    return t->random;
}

static size_t took_class(uint64_t us) {
    if (us < PARTS) return (size_t)us;
    unsigned power = 63u - (unsigned)__builtin_clzll(us);
    size_t at = (power - 3) * PARTS + (size_t)((us >> (power - 4)) - PARTS);
    return at < CLASSES ? at : CLASSES - 1;
}

static uint64_t took_us(size_t at) {
    if (at < PARTS) return at;
    return ((at % PARTS) + PARTS + 1) << (at / PARTS - 1);
}

/* ---- One connection. */

static void request_prepare(struct thread* t, struct client* c) {
    c->seed = random_next(t) % 1000000;
    c->vanish_at = plan.vanish != 0 && random_next(t) % plan.vanish == 0 ? random_next(t) % (plan.bytes + 1)
                                                                         : UINT64_MAX;
    c->out_bytes =
        (size_t)snprintf(c->out, sizeof c->out, "%s /%ju/%ju HTTP/1.1\r\nHost: load\r\n",
                         plan.post == 0 ? "GET" : "POST", (uintmax_t)plan.bytes, (uintmax_t)c->seed);
    if (plan.post != 0)
        c->out_bytes += (size_t)snprintf(c->out + c->out_bytes, sizeof c->out - c->out_bytes,
                                         "Content-Length: %ju\r\n", (uintmax_t)plan.post);
    memcpy(c->out + c->out_bytes, "\r\n", 2);
    c->out_bytes += 2;
    c->out_at = 0;
    c->post_at = 0;
    c->head_bytes = 0;
    c->in_body = false;
    c->body_at = 0;
    c->asked_ns = clock_ns();
}

static void client_open(struct thread* t, struct client* c) {
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* A slow one reads by the clock: what waits for it must not wake the thread again and again. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | (c->slow ? EPOLLET : 0), .data.ptr = c};
    c->watched = event.events;
    if (c->fd < 0 || epoll_ctl(t->epoll, EPOLL_CTL_ADD, c->fd, &event) != 0 ||
        (connect(c->fd, (struct sockaddr*)&server, sizeof server) != 0 && errno != EINPROGRESS)) {
        perror("http_load: connect");
        exit(2);
    }
    c->served = 0;
    t->tally.opened++;
    request_prepare(t, c);
}

static void client_reopen(struct thread* t, struct client* c, bool reset) {
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    if (reset) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(c->fd);
    client_open(t, c);
}

static void client_failed(struct thread* t, struct client* c, const char* why) {
    if (t->tally.errors++ == 0)
        fprintf(stderr, "http_load: %s: status %u, byte %ju of %ju, request %ju of its connection\n", why,
                c->status, (uintmax_t)c->body_at, (uintmax_t)c->body_bytes, (uintmax_t)c->served);
    client_reopen(t, c, true);
}

static void request_ended(struct thread* t, struct client* c) {
    if (c->status == 503) {
        t->tally.refused++;
    } else {
        t->tally.requests++;
        t->tally.took[took_class((clock_ns() - c->asked_ns) / 1000)]++;
    }
    c->served++;
    if (c->closes || c->status == 503 || (plan.requests != 0 && c->served >= plan.requests))
        client_reopen(t, c, false);
    else
        request_prepare(t, c);
}

/* False: not all was sent. The socket is full, or broken: then the read that follows fails and is told. */
static bool client_send(struct client* c) {
    char body[16384];
    while (c->out_at < c->out_bytes) {
        ssize_t n = send(c->fd, c->out + c->out_at, c->out_bytes - c->out_at, MSG_NOSIGNAL);
        if (n < 0) return false;
        c->out_at += (size_t)n;
    }
    while (c->post_at < plan.post) {
        size_t run = plan.post - c->post_at < sizeof body ? (size_t)(plan.post - c->post_at) : sizeof body;
        pattern_fill(c->seed + c->post_at, body, run);
        ssize_t n = send(c->fd, body, run, MSG_NOSIGNAL);
        if (n < 0) return false;
        c->post_at += (uint64_t)n;
    }
    return true;
}

/* The bytes of a head among these; its end sets in_body. SIZE_MAX: it is none. */
static size_t head_take(struct client* c, const char* text, size_t bytes) {
    size_t had = c->head_bytes;
    size_t n = bytes < sizeof c->head - 1 - had ? bytes : sizeof c->head - 1 - had;
    memcpy(c->head + had, text, n);
    c->head[had + n] = '\0';
    c->head_bytes = had + n;
    char* stop = strstr(c->head, "\r\n\r\n");
    if (stop == NULL) return n == bytes ? n : SIZE_MAX;
    stop[2] = '\0';
    const char* length = strstr(c->head, "\r\nContent-Length: ");
    if (strncmp(c->head, "HTTP/1.1 ", 9) != 0 || length == NULL) return SIZE_MAX;
    c->status = (unsigned)strtoul(c->head + 9, NULL, 10);
    c->body_bytes = strtoull(length + strlen("\r\nContent-Length: "), NULL, 10);
    c->closes = strstr(c->head, "\r\nConnection: close") != NULL;
    c->in_body = true;
    return (size_t)(stop - c->head) + 4 - had;
}

static bool body_take(struct thread* t, struct client* c, const char* text, size_t bytes) {
    bool pattern = c->status == 200;
    bool good = bytes <= c->body_bytes - c->body_at &&
                (pattern ? c->body_bytes == plan.bytes && pattern_matches(c->seed + c->body_at, text, bytes)
                         : c->status == 503);
    c->body_at += bytes;
    if (pattern) t->tally.body_bytes += bytes;
    return good;
}

/* What came; false: what is to be sent is another request now. */
static bool client_take(struct thread* t, struct client* c, const char* text, size_t bytes) {
    size_t at = 0;
    if (!c->in_body) at = head_take(c, text, bytes);
    if (at == SIZE_MAX || (c->in_body && !body_take(t, c, text + at, bytes - at))) {
        client_failed(t, c, "wrong answer");
        return false;
    }
    if (c->in_body && c->body_at >= c->vanish_at) {
        t->tally.vanished++;
        client_reopen(t, c, true);
        return false;
    }
    if (!c->in_body || c->body_at < c->body_bytes) return true;
    request_ended(t, c);
    return false;
}

/* Whether it may send is asked for as long as there is something to send. */
static void client_watch(struct thread* t, struct client* c, bool sends) {
    struct epoll_event event = {.events = sends ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
    if (c->slow || c->watched == event.events) return;
    c->watched = event.events;
    epoll_ctl(t->epoll, EPOLL_CTL_MOD, c->fd, &event);
}

/* One turn: others have theirs before the next. */
static void client_run(struct thread* t, struct client* c) {
    if (c->slow && clock_ns() < c->due_ns) return;
    bool sent = client_send(c);
    ssize_t n = recv(c->fd, t->area, c->slow ? SLOW_BYTES : READ_BYTES, 0);
    if (n > 0) {
        c->due_ns = c->slow ? clock_ns() + SLOW_US * 1000 : 0;
        if (!client_take(t, c, t->area, (size_t)n)) sent = client_send(c);
        client_watch(t, c, !sent);
    } else if (n == 0 || errno != EAGAIN) {
        client_failed(t, c, n == 0 ? "closed in the middle" : strerror(errno));
    } else {
        client_watch(t, c, !sent);
    }
}

static void* thread_run(void* argument) {
    struct thread* t = argument;
    struct epoll_event events[EVENTS_MAX];
    for (size_t i = 0; i < t->count; i++) {
        t->clients[i].slow = plan.slow != 0 && i % plan.slow == 0;
        client_open(t, &t->clients[i]);
    }
    while (clock_ns() < end_ns) {
        int n = epoll_wait(t->epoll, events, EVENTS_MAX, plan.slow != 0 ? 1 : 100);
        for (int i = 0; i < n; i++) client_run(t, events[i].data.ptr);
        for (size_t i = 0; i < t->count && plan.slow != 0; i += plan.slow) client_run(t, &t->clients[i]);
    }
    for (size_t i = 0; i < t->count; i++) close(t->clients[i].fd);
    return NULL;
}

/* ---- All of them. */

static uint64_t percentile(const struct tally* sum, double part) {
    uint64_t before = 0;
    for (size_t i = 0; i < CLASSES; i++) {
        before += sum->took[i];
        if (before > 0 && (double)before >= part * (double)sum->requests) return took_us(i);
    }
    return 0;
}

static void tally_add(struct tally* sum, const struct tally* one) {
    sum->requests += one->requests;
    sum->refused += one->refused;
    sum->vanished += one->vanished;
    sum->opened += one->opened;
    sum->errors += one->errors;
    sum->body_bytes += one->body_bytes;
    for (size_t i = 0; i < CLASSES; i++) sum->took[i] += one->took[i];
}

static void options_parse(char** argv) {
    static const struct {
        const char* name;
        uint64_t* value;
    } options[] = {
        {"--port", &plan.port},         {"--threads", &plan.threads}, {"--connections", &plan.connections},
        {"--ms", &plan.milliseconds},   {"--bytes", &plan.bytes},     {"--post", &plan.post},
        {"--requests", &plan.requests}, {"--vanish", &plan.vanish},   {"--slow", &plan.slow}};
    for (char** at = argv + 1; *at != NULL; at += 2) {
        size_t i = 0;
        while (i < sizeof options / sizeof options[0] && strcmp(options[i].name, at[0]) != 0) i++;
        char* end = NULL;
        if (i < sizeof options / sizeof options[0] && at[1] != NULL)
            *options[i].value = strtoull(at[1], &end, 10);
        if (end == NULL || end == at[1] || *end != '\0') {
            fprintf(stderr, "http_load: %s: see the top of load.c\n", at[0]);
            exit(2);
        }
    }
}

int main(int argc, char** argv) {
    (void)argc;
    options_parse(argv);
    pattern_begin();
    server = (struct sockaddr_in){.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)plan.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct thread* threads = calloc(plan.threads, sizeof *threads);
    struct tally sum = {0};
    uint64_t begun_ns = clock_ns();
    end_ns = begun_ns + plan.milliseconds * 1000000;
    for (uint64_t i = 0; i < plan.threads; i++) {
        struct thread* t = &threads[i];
        t->random = 88172645463325252u + i * 1000003;
        t->epoll = epoll_create1(EPOLL_CLOEXEC);
        t->count = (size_t)((plan.connections + plan.threads - 1 - i) / plan.threads);
        t->clients = calloc(t->count, sizeof *t->clients);
        t->area = malloc(READ_BYTES);
        if (pthread_create(&t->id, NULL, thread_run, t) != 0) return 2;
    }
    for (uint64_t i = 0; i < plan.threads; i++) {
        pthread_join(threads[i].id, NULL);
        tally_add(&sum, &threads[i].tally);
        close(threads[i].epoll);
        free(threads[i].clients);
        free(threads[i].area);
    }
    free(threads);
    double seconds = (double)(clock_ns() - begun_ns) / 1e9;
    printf("{\"requests\":%ju,\"rps\":%.0f,\"mib_s\":%.1f,\"p50_us\":%ju,\"p99_us\":%ju,\"opened\":%ju,"
           "\"refused\":%ju,"
           "\"vanished\":%ju,\"errors\":%ju}\n",
           (uintmax_t)sum.requests, (double)sum.requests / seconds,
           (double)sum.body_bytes / seconds / 1048576, (uintmax_t)percentile(&sum, 0.5),
           (uintmax_t)percentile(&sum, 0.99), (uintmax_t)sum.opened, (uintmax_t)sum.refused,
           (uintmax_t)sum.vanished, (uintmax_t)sum.errors);
    return sum.errors == 0 && sum.requests > 0 ? 0 : 1;
}
