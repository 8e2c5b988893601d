/* pattern.h: bodies of which each byte can be checked: byte i of the one with a seed is (seed + i) % 251.
 *
 * Who may include it: one file of a program that makes or checks bodies. 251 is a prime, so that bytes which
 * moved by a buffer or a page show.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef HTTP_PROXY_PATTERN_H
#define HTTP_PROXY_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PATTERN_PERIOD = 251, PATTERN_RUN = 65536 };

static unsigned char pattern_table[PATTERN_RUN + PATTERN_PERIOD];

/* Before any thread uses the others. */
static inline void pattern_begin(void) {
    for (size_t i = 0; i < sizeof pattern_table; i++) pattern_table[i] = (unsigned char)(i % PATTERN_PERIOD);
}

static inline void pattern_fill(uint64_t at, char* to, size_t bytes) {
    while (bytes != 0) {
        size_t run = bytes < PATTERN_RUN ? bytes : PATTERN_RUN;
        memcpy(to, pattern_table + at % PATTERN_PERIOD, run);
        at += run;
        to += run;
        bytes -= run;
    }
}

static inline bool pattern_matches(uint64_t at, const char* from, size_t bytes) {
    while (bytes != 0) {
        size_t run = bytes < PATTERN_RUN ? bytes : PATTERN_RUN;
        if (memcmp(from, pattern_table + at % PATTERN_PERIOD, run) != 0) return false;
        at += run;
        from += run;
        bytes -= run;
    }
    return true;
}

#endif
