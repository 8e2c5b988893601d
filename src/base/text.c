/* text.c: see text.h. Called by everybody who prints; calls nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/text.h"

WEIR_FN void text_char(struct text* t, char c) {
    if (t->length == t->size) {
        t->cut = true;
        return;
    }
    t->data[t->length++] = c;
}

WEIR_FN void text_string(struct text* t, const char* s) {
    while (*s != '\0') text_char(t, *s++);
}

static void text_digits(struct text* t, uint64_t n, unsigned base) {
    char digits[20];
    unsigned count = 0;
    do {
        digits[count++] = "0123456789abcdef"[n % base];
        n /= base;
    } while (n != 0);
    while (count != 0) text_char(t, digits[--count]);
}

WEIR_FN void text_number(struct text* t, uint64_t n) { text_digits(t, n, 10); }

WEIR_FN void text_hex(struct text* t, uint64_t n) {
    text_string(t, "0x");
    text_digits(t, n, 16);
}

/* Bytes of the UTF-8 sequence that begins here; 0: there is none (RFC 3629). A NUL ends all. */
static unsigned utf8_length(const unsigned char* s) {
    if (s[0] < 0x80) return 1;
    unsigned length = s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    for (unsigned i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool beyond = (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf4 && s[1] >= 0x90); /* surrogates, range */
    return overlong || beyond ? 0 : length;
}

static void text_escaped(struct text* t, unsigned char c) {
    text_string(t, "\\u00");
    text_char(t, "0123456789abcdef"[c >> 4]);
    text_char(t, "0123456789abcdef"[c & 15]);
}

WEIR_FN void text_quoted(struct text* t, const char* s) {
    text_char(t, '"');
    while (*s != '\0') {
        unsigned length = utf8_length((const unsigned char*)s);
        unsigned char c = (unsigned char)*s;
        if (length == 0) {
            text_string(t, "\\ufffd");
            s++;
        } else if (c < ' ' || c == 0x7f) {
            text_escaped(t, c);
            s++;
        } else {
            if (c == '"' || c == '\\') text_char(t, '\\');
            while (length-- != 0) text_char(t, *s++);
        }
    }
    text_char(t, '"');
}

WEIR_FN size_t text_length(const char* s, size_t limit) {
    size_t n = 0;
    while (n < limit && s[n] != '\0') n++;
    return n;
}

WEIR_FN bool text_equal(const char* a, size_t length, const char* b) {
    for (size_t i = 0; i < length; i++)
        if (b[i] == '\0' || a[i] != b[i]) return false;
    return b[length] == '\0';
}

WEIR_FN size_t text_distance(const char* a, size_t a_length, const char* b) {
    enum { longest = 32 };
    size_t b_length = text_length(b, longest + 1);
    if (a_length > longest || b_length > longest) return SIZE_MAX;
    size_t row[longest + 1];
    for (size_t j = 0; j <= b_length; j++) row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t above = row[j];
            size_t best = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            if (above + 1 < best) best = above + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
            diagonal = above;
        }
    }
    return row[b_length];
}
