/* text.h: text put together in a caller's buffer, without the C library.
 *
 * Anything that reports or prints uses it, at any moment, signal handlers included. It deliberately
 * knows nothing of files: the caller writes the buffer out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_BASE_TEXT_H
#define WEIR_BASE_TEXT_H

#include "base/compiler.h"

/*  data [ text .......... | free ...... ]
 *         0           length          size
 *  Invariant: length <= size. What does not fit is cut and `cut` is set. */
struct text {
    char* data;
    size_t size;
    size_t length;
    bool cut;
};

WEIR_INLINE struct text text_make(char* data, size_t size) {
    return (struct text){.data = data, .size = size, .length = 0, .cut = false};
}
WEIR_FN void text_char(struct text* t, char c);
WEIR_FN void text_string(struct text* t, const char* s);
WEIR_FN void text_number(struct text* t, uint64_t n);
WEIR_FN void text_hex(struct text* t, uint64_t n);
/* A string in JSON's quotes: at most 6 bytes for each of its own, and 2. Bytes that are no UTF-8 become
 * U+FFFD. */
WEIR_FN void text_quoted(struct text* t, const char* s);
/* Length of a NUL-terminated string, at most `limit`. */
WEIR_FN size_t text_length(const char* s, size_t limit);
/* True when the first `length` bytes of a are all of the string b. */
WEIR_FN bool text_equal(const char* a, size_t length, const char* b);
/* Levenshtein distance of two names of at most 32 characters (longer ones: SIZE_MAX). */
WEIR_FN size_t text_distance(const char* a, size_t a_length, const char* b);

#endif
