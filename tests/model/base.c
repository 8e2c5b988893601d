/* base.c: the model test's own memory, its clock, its output and its way to fail.
 *
 * Any file of the model may call it. It knows nothing of blocks; it asks worker.c only where the failing
 * thread stands.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base.h"
#include "worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct model_config model_config;

void* memory_try(size_t bytes) {
    void* p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void* memory_map(size_t bytes) {
    void* p = memory_try(bytes);
    if (p == NULL) model_fail("the test's own mmap of %zu bytes failed", bytes);
    return p;
}

static void write_all(int fd, const char* text, size_t n) {
    while (n > 0) {
        ssize_t done = write(fd, text, n);
        if (done <= 0) return;
        text += done;
        n -= (size_t)done;
    }
}

void model_print(int fd, const char* format, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (n > 0) write_all(fd, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

static const char* mix_name(enum model_mix mix) {
    return mix == MIX_SMALL ? "small" : mix == MIX_MIXED ? "mixed" : "large";
}

void model_fail(const char* format, ...) {
    char line[1024];
    const struct model_config* c = &model_config;
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    const struct worker* w = worker_self;
    /* One write, so that two threads that fail together stay readable. */
    model_print(STDERR_FILENO,
                "model: FAILED: %s; in %s, call %llu of worker %u%s; reproduce: model --seed %llu --ops %llu "
                "--threads %u --mix %s --size-max %zu --live-max %zu --forks %u --slots %u\n",
                line, w != NULL ? w->call : "main", w != NULL ? (unsigned long long)w->ops : 0ull,
                w != NULL ? w->index : 0u, w != NULL && w->forked ? " (child of a fork)" : "",
                (unsigned long long)c->seed, (unsigned long long)c->ops, c->threads, mix_name(c->mix),
                c->size_max, c->live_max, c->forks, c->slots);
    abort();
}

double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
