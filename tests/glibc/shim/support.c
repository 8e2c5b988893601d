/* support.c: libc calls that end the test when they fail, and the helpers of support/support.h.
 *
 * Who may call it: the tests, through the headers in support/. Each call is checked by one of two functions,
 * `errno_check` or xpthread_check_return, after the two ways in which libc says that it failed. It
 * deliberately does not know the tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"
#include "support/check.h"
#include "support/support.h"
#include "support/xsignal.h"
#include "support/xthread.h"
#include "support/xunistd.h"

static void call_failed(const char* function, int error) {
    shim_say("support: %s: %s\n", function, strerror(error));
    support_record_failure();
    exit(1);
}

/* For calls that return -1 or a null pointer and set errno. */
static void errno_check(const char* function, bool worked) {
    if (!worked) call_failed(function, errno);
}

void xpthread_check_return(const char* function, int value) {
    if (value != 0) call_failed(function, value);
}

/* The heap. A null pointer for no bytes is no failure. */

void* xmalloc(size_t size) {
    void* block = malloc(size);
    errno_check("malloc", block != NULL || size == 0);
    return block;
}

void* xcalloc(size_t count, size_t size) {
    void* block = calloc(count, size);
    errno_check("calloc", block != NULL || count == 0 || size == 0);
    return block;
}

void* xrealloc(void* block, size_t size) {
    void* moved = realloc(block, size);
    errno_check("realloc", moved != NULL || size == 0);
    return moved;
}

char* xstrdup(const char* text) {
    char* copy = strdup(text);
    errno_check("strdup", copy != NULL);
    return copy;
}

char* xstrndup(const char* text, size_t length) {
    char* copy = strndup(text, length);
    errno_check("strndup", copy != NULL);
    return copy;
}

char* xasprintf(const char* format, ...) {
    char* text = NULL;
    va_list arguments;
    va_start(arguments, format);
    errno_check("vasprintf", vasprintf(&text, format, arguments) >= 0);
    va_end(arguments);
    return text;
}

/* The length goes in front, where support_shared_free finds it. */
enum { SHARED_HEAD_BYTES = 64 };

void* support_shared_allocate(size_t size) {
    size_t length = SHARED_HEAD_BYTES + size;
    char* page = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    errno_check("mmap", page != MAP_FAILED);
    memcpy(page, &length, sizeof length);
    return page + SHARED_HEAD_BYTES;
}

void support_shared_free(void* block) {
    size_t length;
    char* page = (char*)block - SHARED_HEAD_BYTES;
    memcpy(&length, page, sizeof length);
    xmunmap(page, length);
}

/* Processes, files, memory. */

pid_t xfork(void) {
    pid_t child = fork();
    errno_check("fork", child >= 0);
    return child;
}

pid_t xwaitpid(pid_t process, int* status, int flags) {
    pid_t ended = waitpid(process, status, flags);
    errno_check("waitpid", ended >= 0);
    return ended;
}

int xopen(const char* path, int flags, mode_t mode) {
    int fd = open(path, flags, mode);
    errno_check(path, fd >= 0);
    return fd;
}

void xclose(int fd) { errno_check("close", close(fd) == 0); }
void xpipe(int fds[2]) { errno_check("pipe", pipe(fds) == 0); }
void xdup2(int from, int to) { errno_check("dup2", dup2(from, to) == to); }
void xunlink(const char* path) { errno_check("unlink", unlink(path) == 0); }
void xftruncate(int fd, off_t length) { errno_check("ftruncate", ftruncate(fd, length) == 0); }

int xdup(int fd) {
    int copy = dup(fd);
    errno_check("dup", copy >= 0);
    return copy;
}

void xwrite(int fd, const void* data, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t count = write(fd, (const char*)data + done, length - done);
        errno_check("write", count > 0);
        done += (size_t)count;
    }
}

ssize_t xread(int fd, void* data, size_t length) {
    ssize_t count = read(fd, data, length);
    errno_check("read", count >= 0);
    return count;
}

void* xmmap(void* address, size_t length, int protection, int flags, int fd) {
    void* mapped = mmap(address, length, protection, flags, fd, 0);
    errno_check("mmap", mapped != MAP_FAILED);
    return mapped;
}

void xmprotect(void* address, size_t length, int protection) {
    errno_check("mprotect", mprotect(address, length, protection) == 0);
}

void xmunmap(void* address, size_t length) { errno_check("munmap", munmap(address, length) == 0); }

long xsysconf(int name) {
    errno = 0;
    long value = sysconf(name);
    errno_check("sysconf", value >= 0 || errno == 0);
    return value;
}

char* xsetlocale(int category, const char* locale) {
    char* set = setlocale(category, locale);
    errno_check("setlocale", set != NULL);
    return set;
}

/* Signals. */

void xraise(int signal) { errno_check("raise", raise(signal) == 0); }

void (*xsignal(int signal_number, void (*handler)(int)))(int) {
    void (*before)(int) = signal(signal_number, handler);
    errno_check("signal", before != SIG_ERR);
    return before;
}

void xsigaction(int signal, const struct sigaction* action, struct sigaction* before) {
    errno_check("sigaction", sigaction(signal, action, before) == 0);
}

void xpthread_sigmask(int how, const sigset_t* set, sigset_t* before) {
    xpthread_check_return("pthread_sigmask", pthread_sigmask(how, set, before));
}

/* Threads. */

pthread_t xpthread_create(pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
    pthread_t thread;
    xpthread_check_return("pthread_create", pthread_create(&thread, attributes, body, argument));
    return thread;
}

void* xpthread_join(pthread_t thread) {
    void* result = NULL;
    xpthread_check_return("pthread_join", pthread_join(thread, &result));
    return result;
}

int xpthread_barrier_wait(pthread_barrier_t* barrier) {
    int result = pthread_barrier_wait(barrier);
    if (result != PTHREAD_BARRIER_SERIAL_THREAD) xpthread_check_return("pthread_barrier_wait", result);
    return result;
}

void xpthread_detach(pthread_t thread) { xpthread_check_return("pthread_detach", pthread_detach(thread)); }
void xpthread_cancel(pthread_t thread) { xpthread_check_return("pthread_cancel", pthread_cancel(thread)); }

void xpthread_kill(pthread_t thread, int signal) {
    xpthread_check_return("pthread_kill", pthread_kill(thread, signal));
}

void xpthread_once(pthread_once_t* guard, void (*body)(void)) {
    xpthread_check_return("pthread_once", pthread_once(guard, body));
}

void xpthread_attr_init(pthread_attr_t* attributes) {
    xpthread_check_return("pthread_attr_init", pthread_attr_init(attributes));
}

void xpthread_attr_destroy(pthread_attr_t* attributes) {
    xpthread_check_return("pthread_attr_destroy", pthread_attr_destroy(attributes));
}

void xpthread_attr_setdetachstate(pthread_attr_t* attributes, int state) {
    xpthread_check_return("pthread_attr_setdetachstate", pthread_attr_setdetachstate(attributes, state));
}

void xpthread_attr_setstacksize(pthread_attr_t* attributes, size_t size) {
    xpthread_check_return("pthread_attr_setstacksize", pthread_attr_setstacksize(attributes, size));
}

void xpthread_mutex_init(pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes) {
    xpthread_check_return("pthread_mutex_init", pthread_mutex_init(mutex, attributes));
}

void xpthread_mutex_lock(pthread_mutex_t* mutex) {
    xpthread_check_return("pthread_mutex_lock", pthread_mutex_lock(mutex));
}

void xpthread_mutex_unlock(pthread_mutex_t* mutex) {
    xpthread_check_return("pthread_mutex_unlock", pthread_mutex_unlock(mutex));
}

void xpthread_mutex_destroy(pthread_mutex_t* mutex) {
    xpthread_check_return("pthread_mutex_destroy", pthread_mutex_destroy(mutex));
}

void xpthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
    xpthread_check_return("pthread_cond_wait", pthread_cond_wait(condition, mutex));
}

void xpthread_barrier_init(pthread_barrier_t* barrier, pthread_barrierattr_t* attributes,
                           unsigned int count) {
    xpthread_check_return("pthread_barrier_init", pthread_barrier_init(barrier, attributes, count));
}

void xpthread_barrier_destroy(pthread_barrier_t* barrier) {
    xpthread_check_return("pthread_barrier_destroy", pthread_barrier_destroy(barrier));
}

void xpthread_barrierattr_init(pthread_barrierattr_t* attributes) {
    xpthread_check_return("pthread_barrierattr_init", pthread_barrierattr_init(attributes));
}

void xpthread_barrierattr_destroy(pthread_barrierattr_t* attributes) {
    xpthread_check_return("pthread_barrierattr_destroy", pthread_barrierattr_destroy(attributes));
}

void xpthread_barrierattr_setpshared(pthread_barrierattr_t* attributes, int shared) {
    xpthread_check_return("pthread_barrierattr_setpshared",
                          pthread_barrierattr_setpshared(attributes, shared));
}

/* Helpers. */

/* What a part of glibc calls when it gives up; see libc-symbols.h. */
void shim_libc_fatal(const char* message);
void shim_libc_fatal(const char* message) {
    xwrite(STDERR_FILENO, message, strlen(message));
    abort();
}

void write_message(const char* message) { xwrite(STDOUT_FILENO, message, strlen(message)); }

void ignore_stderr(void) {
    int fd = xopen("/dev/null", O_WRONLY, 0);
    xdup2(fd, STDERR_FILENO);
    xclose(fd);
}

void set_fortify_handler(void (*handler)(int)) {
    const struct sigaction action = {.sa_handler = handler};
    xsigaction(SIGABRT, &action, NULL);
    ignore_stderr();
}

static void wait_seconds(void* seconds) {
    const struct timespec wait = {.tv_sec = (time_t)(intptr_t)seconds};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, NULL);
}

static void* exit_later(void* seconds) {
    wait_seconds(seconds);
    exit(support_report_failure(0));
    return NULL;
}

static void* exit_later_at_once(void* seconds) {
    wait_seconds(seconds);
    _exit(support_report_failure(0));
    return NULL;
}

void delayed_exit(int seconds) {
    xpthread_detach(xpthread_create(NULL, exit_later, (void*)(intptr_t)seconds));
}

void delayed__exit(int seconds) {
    xpthread_detach(xpthread_create(NULL, exit_later_at_once, (void*)(intptr_t)seconds));
}
