/* pressure.c (Linux): word of the kernel or of systemd that memory is short (os.h).
 *
 * Asked for by an option alone. All descriptors are the helper thread's, in the table of its own: the program
 * cannot close them, nor find its own numbers taken. It deliberately does not know what is done about it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/text.h"
#include "os/linux/call.h"
#include "os/os.h"

/* Tells the helper alone, in which it is blocked, and is ignored by default. */
enum { PRESSURE_SIGNAL = SIGURG };
enum { PRESSURE_PATH_MAX = 4096, PRESSURE_EVENTS_BYTES = 256 };
/* 200 ms of stalls in 2 s, as systemd has it; other windows are for the privileged. With the final NUL. */
static const char pressure_trigger[] = "some 200000 2000000";

enum { PRESSURE_WAKE, PRESSURE_WATCH, PRESSURE_EVENTS, PRESSURE_COUNT };
/*  wake: signals to the helper | watch: PSI or what systemd gave | events: memory.events of the cgroup
 *
 *  fd < 0: not there, which is how poll wants it. Sync: the helper alone, but for the flag. */
static struct pollfd pressure_fds[PRESSURE_COUNT];
static bool pressure_speaks; /* watch is a pipe or a socket, that is read from */
static uint64_t pressure_events_seen;
static uint32_t
    pressure_is_open; /* Sync: relaxed; who misses a change wakes nobody, or a helper that does not wait */

#ifdef WEIR_TESTING
WEIR_VAR const char* os_cgroup_root = "/sys/fs/cgroup";
#else
static const char* const os_cgroup_root = "/sys/fs/cgroup";
#endif

static int file_open(const char* path, int flags) {
    return (int)os_call6(OS_OTHER, SYS_openat, AT_FDCWD, (long)path,
                         flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0, 0, 0);
}

static void file_close(struct pollfd* file) {
    if (file->fd >= 0) os_call3(OS_OTHER, SYS_close, file->fd, 0, 0);
    file->fd = -1;
}

static int digit_of_base64(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Returns the number of bytes; SIZE_MAX: that is not base64, or too long. */
static size_t base64_decode(const char* text, unsigned char* data, size_t size) {
    uint32_t bits = 0;
    unsigned count = 0;
    size_t length = 0;
    for (; *text != '\0' && *text != '='; text++) {
        int digit = digit_of_base64(*text);
        if (digit < 0) return SIZE_MAX;
        bits = bits << 6 | (uint32_t)digit;
        count += 6;
        if (count < 8) continue;
        count -= 8;
        if (length == size) return SIZE_MAX;
        data[length++] = (unsigned char)(bits >> count);
    }
    return length;
}

static int socket_connect(const char* path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = text_length(path, sizeof address.sun_path);
    if (length >= sizeof address.sun_path) return -1;
    for (size_t i = 0; i < length; i++) address.sun_path[i] = path[i];
    int fd = (int)os_call3(OS_OTHER, SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && os_call3(OS_OTHER, SYS_connect, fd, (long)&address, sizeof address) < 0) {
        os_call3(OS_OTHER, SYS_close, fd, 0, 0);
        fd = -1;
    }
    return fd;
}

/* What systemd's MEMORY_PRESSURE protocol names: a PSI file, a FIFO or a socket. */
static bool watch_open_named(const char* path, const char* written) {
    struct pollfd* watch = &pressure_fds[PRESSURE_WATCH];
    unsigned char data[256];
    size_t bytes = written == NULL ? 0 : base64_decode(written, data, sizeof data);
    struct stat status;
    if (bytes == SIZE_MAX || path[0] != '/') return false;
    if (os_call6(OS_OTHER, SYS_newfstatat, AT_FDCWD, (long)path, (long)&status, 0, 0, 0) < 0) return false;
    bool is_socket = S_ISSOCK(status.st_mode);
    bool is_pipe = S_ISFIFO(status.st_mode);
    if (!is_socket && !is_pipe && !S_ISREG(status.st_mode)) return false; /* /dev/null: not wanted */
    /* A FIFO that is also open for writing does not end when its writers go. */
    watch->fd = is_socket ? socket_connect(path) : file_open(path, bytes != 0 || is_pipe ? O_RDWR : O_RDONLY);
    if (watch->fd < 0 && is_pipe && bytes == 0) watch->fd = file_open(path, O_RDONLY);
    if (watch->fd >= 0 && bytes != 0 && os_write(watch->fd, data, bytes) != 0) file_close(watch);
    pressure_speaks = is_socket || is_pipe;
    watch->events = pressure_speaks ? POLLIN : POLLPRI;
    return watch->fd >= 0;
}

static bool watch_open_psi(const char* path) {
    struct pollfd* watch = &pressure_fds[PRESSURE_WATCH];
    watch->fd = file_open(path, O_RDWR);
    if (watch->fd >= 0 && os_write(watch->fd, pressure_trigger, sizeof pressure_trigger) != 0)
        file_close(watch);
    pressure_speaks = false;
    watch->events = POLLPRI;
    return watch->fd >= 0;
}

/* A path is being put together: root, then what follows "0::". */
struct cgroup {
    struct text text;
    unsigned seen; /* characters of what follows the first colon */
};

/* The one hierarchy's root is "/", which adds nothing: a slash goes in with what comes after it. */
static void cgroup_see(void* cgroup, unsigned line, char c) {
    enum { second_colon, first_slash, first_of_name };
    struct cgroup* g = cgroup;
    (void)line;
    unsigned at = g->seen++;
    if (c == '\n' || at < first_of_name) return;
    if (at == first_of_name) text_char(&g->text, '/');
    text_char(&g->text, c);
}

/* A file of the process's own cgroup of the one hierarchy (v2), whose number is 0. */
static bool cgroup_path(char* path, size_t size, const char* name) {
    static const status_name_t number = "0";
    struct cgroup g = {text_make(path, size), 0};
    text_string(&g.text, os_cgroup_root);
    if (os_status_scan("/proc/self/cgroup", &number, 1, cgroup_see, &g) != 0 || g.seen == 0) return false;
    text_char(&g.text, '/');
    text_string(&g.text, name);
    text_char(&g.text, '\0');
    return !g.text.cut;
}

/* A number of what memory.events says; reading it is what arms the next notice. */
static uint64_t events_read(void) {
    char text[PRESSURE_EVENTS_BYTES];
    long length =
        os_call6(OS_OTHER, SYS_pread64, pressure_fds[PRESSURE_EVENTS].fd, (long)text, sizeof text, 0, 0, 0);
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (long i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    return hash;
}

static void pressure_close(void) {
    for (unsigned i = 0; i < PRESSURE_COUNT; i++) file_close(&pressure_fds[i]);
}

WEIR_FN bool os_pressure_open(void) {
    const char* named = os_environment("MEMORY_PRESSURE_WATCH");
    char path[PRESSURE_PATH_MAX];
    if (os_sandbox_is_announced() || !os_helper_files_are_own()) return false;
    if (load_relaxed(&pressure_is_open) != 0) return true;
    for (unsigned i = 0; i < PRESSURE_COUNT; i++) pressure_fds[i] = (struct pollfd){.fd = -1};
    if (named != NULL && named[0] != '\0') {
        if (!watch_open_named(named, os_environment("MEMORY_PRESSURE_WRITE"))) return false;
    } else {
        if (!cgroup_path(path, sizeof path, "memory.pressure") || !watch_open_psi(path))
            watch_open_psi("/proc/pressure/memory");
        if (cgroup_path(path, sizeof path, "memory.events"))
            pressure_fds[PRESSURE_EVENTS] =
                (struct pollfd){.fd = file_open(path, O_RDONLY), .events = POLLPRI};
        if (pressure_fds[PRESSURE_EVENTS].fd >= 0) pressure_events_seen = events_read();
        if (pressure_fds[PRESSURE_WATCH].fd < 0 && pressure_fds[PRESSURE_EVENTS].fd < 0) return false;
    }
    uint64_t signals = 1ull << (PRESSURE_SIGNAL - 1);
    int fd = (int)os_call6(OS_OTHER, SYS_signalfd4, -1, (long)&signals, sizeof signals,
                           SFD_CLOEXEC | SFD_NONBLOCK, 0, 0);
    pressure_fds[PRESSURE_WAKE] = (struct pollfd){.fd = fd, .events = POLLIN};
    if (fd < 0) pressure_close();
    store_relaxed(&pressure_is_open, fd >= 0 ? 1u : 0u);
    return fd >= 0;
}

/* Take in what can be read now; what it says does not matter. *some: there was something. False: the other
 * end is gone. */
static bool drain(int fd, bool* some) {
    char data[512];
    for (unsigned i = 0; i < 64; i++) {
        long n = os_call_error(OS_OTHER, SYS_read, fd, (long)data, sizeof data, 0, 0, 0);
        if (n <= 0) return n == -EAGAIN || n == -EINTR;
        *some = true;
    }
    return true;
}

/* Each gives true for word that memory is short, and closes a file of which nothing more will come. */
static bool watch_look(struct pollfd* watch) {
    bool some = (watch->revents & POLLPRI) != 0;
    bool alive = (watch->revents & (POLLERR | POLLNVAL)) == 0;
    if (pressure_speaks && alive) alive = drain(watch->fd, &some);
    if (!alive) file_close(watch);
    return some && (alive || pressure_speaks);
}
static bool events_look(struct pollfd* events) {
    if ((events->revents & POLLPRI) ==
        0) { /* the kernel sets POLLERR with it, which alone is the group's end */
        file_close(events);
        return false;
    }
    uint64_t before = pressure_events_seen;
    pressure_events_seen = events_read();
    return pressure_events_seen != before;
}

WEIR_FN enum os_pressure os_pressure_wait(uint64_t ns) {
    struct timespec limit = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    struct pollfd* watch = &pressure_fds[PRESSURE_WATCH];
    struct pollfd* events = &pressure_fds[PRESSURE_EVENTS];
    bool some = false;
    bool woken = false;
    if (load_relaxed(&pressure_is_open) == 0) return OS_PRESSURE_LOST;
    if (os_call6(OS_OTHER, SYS_ppoll, (long)pressure_fds, PRESSURE_COUNT, (long)&limit, 0, 0, 0) <= 0)
        return OS_PRESSURE_NONE;
    if (pressure_fds[PRESSURE_WAKE].revents != 0) drain(pressure_fds[PRESSURE_WAKE].fd, &woken);
    if (watch->revents != 0) some |= watch_look(watch);
    if (events->revents != 0) some |= events_look(events);
    if (watch->fd < 0 && events->fd < 0) {
        pressure_close();
        store_relaxed(&pressure_is_open,
                      0u); /* the next wait says LOST, if this one has something else to say */
    }
    if (some) return OS_PRESSURE_SOME;
    return load_relaxed(&pressure_is_open) != 0 ? OS_PRESSURE_NONE : OS_PRESSURE_LOST;
}

WEIR_FN void os_pressure_wake(void) {
    if (load_relaxed(&pressure_is_open) != 0) os_helper_signal(PRESSURE_SIGNAL);
}

WEIR_FN void os_pressure_forget(void) { store_relaxed(&pressure_is_open, 0u); }
