/* main.c: an HTTP/1.1 reverse proxy whose memory comes from object pools.
 *
 *     http_proxy --listen 8080 --backend 127.0.0.1:9000 [--malloc] [--buffer 16k] ...
 *
 *     acceptor (this thread) --connections--> workers (epoll each) --journal lines--> writer
 *
 * With --respond BYTES in place of --backend it answers requests itself, and is its own backend for a test.
 * SIGTERM or SIGINT: requests that have begun may end, all memory is given back, and the pools are destroyed,
 * which fails, and with it the program, where an object leaked. --help names the options.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "journal.h"
#include "local.h"
#include "memory.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { BUFFER_MIN = 2048, THREADS_MAX = 256, BACKLOG = 1024, SHORTAGE_MS = 20 };

static struct memory_plan plan = {.buffer_bytes = 16384};
static const char* listen_at = "127.0.0.1:8080";
static const char* backend_at;
static const char* journal_path;
static uint64_t buffers_max, connections_max, buffer_bytes = 16384, threads = 2;

/* ---- The command line. */

struct option {
    const char* name;
    const char* help;
    const char** text; /* one of the two takes the value; neither: the option has none */
    uint64_t* number;
};

static const struct option options[] = {
    {"--listen", "ADDRESS:PORT  where clients come in; port 0: any, see stdout (127.0.0.1:8080)", &listen_at,
     NULL},
    {"--backend", "ADDRESS:PORT  the server behind", &backend_at, NULL},
    {"--respond", "BYTES  without --backend: answer with so many bytes (0), or as many as /BYTES/SEED says",
     NULL, &settings.respond_bytes},
    {"--threads", "N  workers (2)", NULL, &threads},
    {"--buffer", "BYTES  size of a buffer, k and m are units (16k)", NULL, &buffer_bytes},
    {"--buffers", "N  at most so many buffers are out; 0: no limit (0)", NULL, &buffers_max},
    {"--connections", "N  at most so many clients; 0: no limit (0)", NULL, &connections_max},
    {"--timeout", "MS  for a client or a server that does nothing (10000)", NULL, &settings.timeout_ms},
    {"--journal", "FILE  a line for each request", &journal_path, NULL},
    {"--malloc", "take everything from malloc in place of pools", NULL, NULL},
};
enum { OPTIONS = sizeof options / sizeof options[0] };

static _Noreturn void usage(int status) {
    FILE* to = status == 0 ? stdout : stderr;
    fprintf(to, "http_proxy OPTION...\n");
    for (size_t i = 0; i < OPTIONS; i++) fprintf(to, "  %-14s %s\n", options[i].name, options[i].help);
    exit(status);
}

static bool number_parse(const char* text, uint64_t* out) {
    char* end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    unsigned shift = *end == 'k' ? 10 : *end == 'm' ? 20 : 0;
    if (shift != 0) end++;
    *out = (uint64_t)value << shift;
    return errno == 0 && end != text && *end == '\0' && *text != '-' && value <= 1ul << 40;
}

static void options_parse(char** argv) {
    for (char** at = argv + 1; *at != NULL; at++) {
        const struct option* o = options;
        while (o < options + OPTIONS && strcmp(o->name, *at) != 0) o++;
        if (strcmp(*at, "--help") == 0) usage(0);
        if (o == options + OPTIONS) usage(2);
        if (o->text == NULL && o->number == NULL) {
            plan.malloc_only = true;
            continue;
        }
        if (*++at == NULL) usage(2);
        if (o->text != NULL)
            *o->text = *at;
        else if (!number_parse(*at, o->number))
            usage(2);
    }
    if (buffer_bytes < BUFFER_MIN || threads == 0 || threads > THREADS_MAX) usage(2);
    plan.buffer_bytes = buffer_bytes;
    plan.buffers_max = buffers_max;
    plan.connections_max = connections_max;
    settings.threads = (unsigned)threads;
}

/* "ADDRESS:PORT", or a port of this machine. */
static bool address_parse(const char* text, struct sockaddr_storage* out, socklen_t* bytes) {
    char host[256] = "127.0.0.1";
    const char* colon = strrchr(text, ':');
    if (colon != NULL) snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo* found;
    if (getaddrinfo(host, colon == NULL ? text : colon + 1, &hints, &found) != 0) return false;
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

/* ---- Accepting. */

static int spare_fd = -1; /* to have one where there is none left */

static int door_open(void) {
    struct sockaddr_storage at = {0};
    socklen_t bytes = 0;
    if (!address_parse(listen_at, &at, &bytes)) return -1;
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr*)&at, bytes) != 0 || listen(fd, BACKLOG) != 0)
        return -1;
    bytes = sizeof at;
    getsockname(fd, (struct sockaddr*)&at, &bytes);
    in_port_t port = at.ss_family == AF_INET6 ? ((struct sockaddr_in6*)&at)->sin6_port
                                              : ((struct sockaddr_in*)&at)->sin_port;
    printf("http_proxy: listening on port %u\n", ntohs(port));
    fflush(stdout);
    return fd;
}

static void client_refuse(int fd) {
    static const char text[] =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\n503\n";
    char waste[4096];
    (void)send(fd, text, sizeof text - 1, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    while (recv(fd, waste, sizeof waste, 0) > 0) continue; /* what is unread would reset it */
    close(fd);
    workers_refused();
}

static void client_take(int fd) {
    struct connection* c = memory_connection();
    if (c == NULL) {
        client_refuse(fd);
        return;
    }
    c->client.fd = fd;
    workers_hand(c);
}

/* Descriptors have run out. The spare one lets the first who waits be told. Where that fails too the whole
 * system has none, and a pause keeps this from spinning. */
static void shortage(int door) {
    close(spare_fd);
    int fd = accept4(door, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) client_refuse(fd);
    spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) poll(NULL, 0, SHORTAGE_MS);
}

static void clients_take(int door) {
    for (;;) {
        int fd = accept4(door, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            client_take(fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            shortage(door);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return; /* nobody waits, or one who left: poll tells */
        }
    }
}

static void serve(int door, int signals) {
    struct pollfd fds[] = {{.fd = signals, .events = POLLIN}, {.fd = door, .events = POLLIN}};
    while ((fds[0].revents & POLLIN) == 0) {
        int n = poll(fds, 2, 50);
        if (n == 0) {
            memory_idle();
            n = poll(fds, 2, -1);
        }
        if (n > 0 && (fds[1].revents & POLLIN) != 0) clients_take(door);
    }
}

static _Noreturn void fail(const char* what) {
    fprintf(stderr, "http_proxy: %s: %s\n", what, strerror(errno));
    exit(1);
}

int main(int argc, char** argv) {
    (void)argc;
    settings.timeout_ms = 10000;
    options_parse(argv);
    if (backend_at != NULL && !address_parse(backend_at, &settings.backend, &settings.backend_bytes))
        fail(backend_at);
    /* Threads inherit the mask: the signals come in by the descriptor alone. */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_CLOEXEC);
    spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    local_init();
    if (!memory_begin(&plan)) fail("memory");
    if (!journal_begin(journal_path)) fail("journal");
    if (signals < 0 || spare_fd < 0 || !workers_begin()) fail("workers");
    int door = door_open();
    if (door < 0) fail(listen_at);
    serve(door, signals);
    close(door);
    workers_end();
    journal_end();
    close(signals);
    close(spare_fd);
    return memory_end() ? 0 : 1;
}
