/* tags.h: what the test programs of tagging share: tags of addresses and of memory, output without malloc.
 *
 * For aarch64 with memory tags alone. It knows no allocator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TAGGING_TAGS_H
#define TAGGING_TAGS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static inline uintptr_t address_of(const volatile void* p) {
    return (uintptr_t)p & (((uintptr_t)1 << 56) - 1);
}
static inline unsigned tag_of(const volatile void* p) { return (uintptr_t)p >> 56 & 15; }
/** The tag of the memory. */
static inline unsigned tag_at(const volatile void* p) {
    uintptr_t at = (uintptr_t)p;
    __asm__ volatile("ldg %0, [%0]" : "+r"(at));
    return at >> 56 & 15;
}

/** Hides a pointer from the compiler, which would see the misuse coming. */
static inline void* hide(void* p) {
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

__attribute__((format(printf, 1, 2))) static inline void say(const char* format, ...) {
    char line[512];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (n > 0 && write(STDOUT_FILENO, line, (size_t)n) != n) _exit(4);
}

#endif
