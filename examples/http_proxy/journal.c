/* journal.c: see journal.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "journal.h"
#include "memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The writer sleeps so long between two batches, so that workers wake it rarely. */
enum { BATCH_NS = 10 * 1000 * 1000 };

static FILE* file;
static int wake = -1;
static pthread_t writer;
/* Sync: release when pushed, acquire when all are taken at once: nobody takes a single one, so that no line
 * can come back between a look at the first and its exchange. */
static _Atomic(struct journal_line*) pushed;
static atomic_bool ending; /* Sync: relaxed; the eventfd orders it */

uint64_t journal_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void writer_wake(void) {
    uint64_t one = 1;
    (void)!write(wake, &one, sizeof one);
}

/* What was pushed, oldest first. */
static struct journal_line* lines_take(void) {
    struct journal_line* newest = atomic_exchange_explicit(&pushed, NULL, memory_order_acquire);
    struct journal_line* oldest = NULL;
    while (newest != NULL) {
        struct journal_line* next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

static void lines_write(struct journal_line* line) {
    while (line != NULL) {
        struct journal_line* next = line->next;
        fprintf(file, "%s %u %ju bytes %ju us\n", line->target, line->status, (uintmax_t)line->bytes,
                (uintmax_t)line->took_us);
        memory_line_free(line);
        line = next;
    }
    fflush(file);
}

static void* writer_run(void* unused) {
    (void)unused;
    while (!atomic_load_explicit(&ending, memory_order_relaxed)) {
        uint64_t count;
        memory_idle(); /* what it freed is the workers' */
        (void)!read(wake, &count, sizeof count);
        lines_write(lines_take());
        nanosleep(&(struct timespec){.tv_nsec = BATCH_NS}, NULL);
    }
    lines_write(lines_take());
    return NULL;
}

bool journal_begin(const char* path) {
    if (path == NULL) return true;
    file = fopen(path, "we");
    wake = eventfd(0, EFD_CLOEXEC);
    return file != NULL && wake >= 0 && pthread_create(&writer, NULL, writer_run, NULL) == 0;
}

void journal_end(void) {
    if (file == NULL) return;
    atomic_store_explicit(&ending, true, memory_order_relaxed);
    writer_wake();
    pthread_join(writer, NULL);
    fclose(file);
    close(wake);
}

struct journal_line* journal_take(const char* target, size_t bytes) {
    struct journal_line* line = file == NULL ? NULL : memory_line();
    if (line == NULL) return NULL;
    size_t n = bytes < sizeof line->target ? bytes : sizeof line->target - 1;
    memcpy(line->target, target, n);
    line->target[n] = '\0';
    return line;
}

void journal_give(struct journal_line* line, unsigned status, uint64_t bytes, uint64_t begun_ns) {
    line->status = status;
    line->bytes = bytes;
    line->took_us = (journal_clock_ns() - begun_ns) / 1000;
    struct journal_line* head = atomic_load_explicit(&pushed, memory_order_relaxed);
    do line->next = head;
    while (!atomic_compare_exchange_weak_explicit(&pushed, &head, line, memory_order_release,
                                                  memory_order_relaxed));
    if (head == NULL) writer_wake();
}
