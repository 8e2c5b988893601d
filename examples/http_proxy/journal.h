/* journal.h: one line per request, written by a thread of its own.
 *
 * Who may call it: workers take and give lines, from any thread. A line is allocated by the worker and
 * freed by the writer: its pool moves them back by the magazine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef HTTP_PROXY_JOURNAL_H
#define HTTP_PROXY_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JOURNAL_TARGET_BYTES = 208 };

struct journal_line {
    struct journal_line* next;
    uint64_t bytes;
    uint64_t took_us;
    unsigned status; /* 0: the client went away */
    char target[JOURNAL_TARGET_BYTES];
};

/** Start the writer. A NULL path: no journal. False: the file or the thread cannot be had. */
bool journal_begin(const char* path);
/** When the workers have ended: write what is left and stop. */
void journal_end(void);
/** A line for a request that begins; NULL: no journal, or no memory for a line. */
struct journal_line* journal_take(const char* target, size_t bytes);
/** The request is done: the line is the writer's. */
void journal_give(struct journal_line* line, unsigned status, uint64_t bytes, uint64_t begun_ns);
uint64_t journal_clock_ns(void);

#endif
