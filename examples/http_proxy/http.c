/* http.c: see http.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "http.h"

#include <string.h>
#include <strings.h>

/* ---- Lines. */

struct span {
    const char* at;
    size_t bytes;
};

static bool span_is(struct span s, const char* word) {
    return s.bytes == strlen(word) && strncasecmp(s.at, word, s.bytes) == 0;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_token(char c) {
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return letter || is_digit(c) || (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* The next line of a head, without its end; a control character, also a CR or LF of its own, makes it bad. */
static bool line_next(const char** at, const char* end, struct span* line) {
    const char* stop = memmem(*at, (size_t)(end - *at), "\r\n", 2);
    if (stop == NULL) return false;
    *line = (struct span){*at, (size_t)(stop - *at)};
    for (const char* p = *at; p < stop; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 127) return false;
    *at = stop + 2;
    return true;
}

static bool header_split(struct span line, struct span* name, struct span* value) {
    const char* colon = memchr(line.at, ':', line.bytes);
    if (colon == NULL || colon == line.at) return false;
    *name = (struct span){line.at, (size_t)(colon - line.at)};
    for (size_t i = 0; i < name->bytes; i++)
        if (!is_token(name->at[i])) return false; /* also a blank, which begins a folded line */
    const char* end = line.at + line.bytes;
    const char* at = colon + 1;
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    while (end > at && (end[-1] == ' ' || end[-1] == '\t')) end--;
    *value = (struct span){at, (size_t)(end - at)};
    return true;
}

/* ---- Headers that matter here. */

struct headers {
    uint64_t length;
    unsigned lengths, codings, hosts;
    bool close, keep_alive;
};

static bool length_parse(struct span value, uint64_t* out) {
    if (value.bytes == 0 || value.bytes > 18) return false;
    *out = 0;
    for (size_t i = 0; i < value.bytes; i++) {
        if (!is_digit(value.at[i])) return false;
        *out = *out * 10 + (uint64_t)(value.at[i] - '0');
    }
    return true;
}

static void options_parse(struct span value, struct headers* h) {
    const char* end = value.at + value.bytes;
    for (const char* at = value.at; at < end;) {
        const char* comma = memchr(at, ',', (size_t)(end - at));
        const char* stop = comma == NULL ? end : comma;
        while (at < stop && (*at == ' ' || *at == '\t')) at++;
        const char* last = stop;
        while (last > at && (last[-1] == ' ' || last[-1] == '\t')) last--;
        struct span word = {at, (size_t)(last - at)};
        if (span_is(word, "close")) h->close = true;
        if (span_is(word, "keep-alive")) h->keep_alive = true;
        at = stop + 1;
    }
}

static unsigned header_take(struct span name, struct span value, struct headers* h) {
    if (span_is(name, "content-length")) {
        uint64_t length;
        if (!length_parse(value, &length) || (h->lengths != 0 && length != h->length)) return 400;
        h->length = length;
        h->lengths++;
    } else if (span_is(name, "transfer-encoding")) {
        if (!span_is(value, "chunked")) return 501;
        h->codings++;
    } else if (span_is(name, "connection")) {
        options_parse(value, h);
    } else if (span_is(name, "host")) {
        h->hosts++;
    }
    return HTTP_GOOD;
}

static unsigned headers_take(const char* at, const char* end, struct headers* h) {
    struct span line, name, value;
    for (;;) {
        if (!line_next(&at, end, &line)) return 400;
        if (line.bytes == 0) break;
        if (!header_split(line, &name, &value)) return 400;
        unsigned verdict = header_take(name, value, h);
        if (verdict != HTTP_GOOD) return verdict;
    }
    return h->codings > 1 || (h->codings != 0 && h->lengths != 0) ? 400 : HTTP_GOOD;
}

static void body_begin(struct http_body* b, const struct headers* h, enum http_framing otherwise) {
    *b = (struct http_body){.framing = h->codings != 0   ? HTTP_CHUNKED
                                       : h->lengths != 0 ? HTTP_LENGTH
                                                         : otherwise};
    b->left = b->framing == HTTP_LENGTH ? h->length : 0;
    b->done = b->framing == HTTP_LENGTH && b->left == 0;
}

/* Where the head ends, or 0. */
static size_t head_bytes(const char* text, size_t bytes) {
    const char* stop = memmem(text, bytes, "\r\n\r\n", 4);
    return stop == NULL ? 0 : (size_t)(stop - text) + 4;
}

/* "HTTP/1.0" or "HTTP/1.1"; the digit, or -1. */
static int version_minor(const char* text) {
    if (memcmp(text, "HTTP/1.", 7) != 0 || (text[7] != '0' && text[7] != '1')) return -1;
    return text[7] - '0';
}

/* METHOD SP target SP HTTP/1.x */
static unsigned request_line(struct span line, const char* text, struct http_head* out, int* minor) {
    const char* end = line.at + line.bytes;
    const char* at = line.at;
    while (at < end && is_token(*at)) at++;
    struct span method = {line.at, (size_t)(at - line.at)};
    if (method.bytes == 0 || at == end || *at != ' ') return 400;
    const char* target = ++at;
    while (at < end && (unsigned char)*at > ' ') at++;
    if (at == target || end - at != 9 || *at != ' ') return 400;
    *minor = version_minor(at + 1);
    if (*minor < 0) return memcmp(at + 1, "HTTP/", 5) == 0 ? 505 : 400;
    if (span_is(method, "CONNECT")) return 501;
    out->wants_no_body = span_is(method, "HEAD");
    out->target_at = (size_t)(target - text);
    out->target_bytes = (size_t)(at - target);
    return HTTP_GOOD;
}

unsigned http_request(const char* text, size_t bytes, struct http_head* out) {
    *out = (struct http_head){.bytes = head_bytes(text, bytes)};
    if (out->bytes == 0) return bytes < HTTP_HEAD_BYTES_MAX ? HTTP_MORE : 431;
    if (out->bytes > HTTP_HEAD_BYTES_MAX) return 431;
    const char* at = text;
    const char* end = text + out->bytes;
    struct span line;
    struct headers h = {0};
    int minor = 0;
    if (!line_next(&at, end, &line)) return 400;
    unsigned verdict = request_line(line, text, out, &minor);
    if (verdict == HTTP_GOOD) verdict = headers_take(at, end, &h);
    if (verdict != HTTP_GOOD) return verdict;
    if (minor == 1 ? h.hosts != 1 : h.hosts > 1 || h.codings != 0) return 400;
    body_begin(&out->body, &h, HTTP_LENGTH);
    out->keep_alive = !h.close && (minor == 1 || h.keep_alive);
    return HTTP_GOOD;
}

unsigned http_response(const char* text, size_t bytes, const struct http_head* asked, struct http_head* out) {
    *out = (struct http_head){.bytes = head_bytes(text, bytes)};
    if (out->bytes == 0) return bytes < HTTP_HEAD_BYTES_MAX ? HTTP_MORE : 502;
    const char* at = text;
    const char* end = text + out->bytes;
    struct span line;
    struct headers h = {0};
    if (!line_next(&at, end, &line) || line.bytes < 12 || line.at[8] != ' ') return 502;
    int minor = version_minor(line.at);
    if (minor < 0 || headers_take(at, end, &h) != HTTP_GOOD) return 502;
    for (const char* p = line.at + 9; p < line.at + 12; p++) {
        if (!is_digit(*p)) return 502;
        out->status = out->status * 10 + (unsigned)(*p - '0');
    }
    /* 101 would make a tunnel of the connection. */
    if (out->status < 100 || out->status == 101) return 502;
    if (asked->wants_no_body || out->status < 200 || out->status == 204 || out->status == 304)
        out->body = (struct http_body){.framing = HTTP_LENGTH, .done = true};
    else
        body_begin(&out->body, &h, HTTP_UNTIL_CLOSE);
    out->keep_alive = !h.close && (minor == 1 || h.keep_alive) && out->body.framing != HTTP_UNTIL_CLOSE;
    return HTTP_GOOD;
}

/* ---- Bodies. */

enum {
    CHUNK_SIZE_FIRST,
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER,
    CHUNK_TRAILER_LINE,
    CHUNK_TRAILER_LF,
    CHUNK_LAST_LF,
};

static int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int chunk_expect(struct http_body* b, bool found, int next) {
    if (!found) b->bad = true;
    return next;
}

/* The state after one byte of a chunk's frame. */
static int chunk_next(struct http_body* b, char c) {
    int digit = hex_value(c);
    switch (b->chunk) {
    case CHUNK_SIZE_FIRST:
        b->left = digit < 0 ? 0 : (uint64_t)digit;
        return chunk_expect(b, digit >= 0, CHUNK_SIZE);
    case CHUNK_SIZE:
        if (c == '\r') return CHUNK_SIZE_LF;
        if (c == ';') return CHUNK_EXTENSION;
        if (digit >= 0) b->left = b->left * 16 + (uint64_t)digit;
        return chunk_expect(b, digit >= 0 && b->left <= (uint64_t)1 << 48, CHUNK_SIZE);
    case CHUNK_EXTENSION:
        return c == '\r' ? CHUNK_SIZE_LF : chunk_expect(b, c != '\n', CHUNK_EXTENSION);
    case CHUNK_SIZE_LF:
        return chunk_expect(b, c == '\n', b->left == 0 ? CHUNK_TRAILER : CHUNK_DATA);
    case CHUNK_DATA_CR:
        return chunk_expect(b, c == '\r', CHUNK_DATA_LF);
    case CHUNK_DATA_LF:
        return chunk_expect(b, c == '\n', CHUNK_SIZE_FIRST);
    case CHUNK_TRAILER:
        return c == '\r' ? CHUNK_LAST_LF : chunk_expect(b, c != '\n', CHUNK_TRAILER_LINE);
    case CHUNK_TRAILER_LINE:
        return c == '\r' ? CHUNK_TRAILER_LF : chunk_expect(b, c != '\n', CHUNK_TRAILER_LINE);
    case CHUNK_TRAILER_LF:
        return chunk_expect(b, c == '\n', CHUNK_TRAILER);
    default:
        b->done = c == '\n';
        return chunk_expect(b, b->done, CHUNK_LAST_LF);
    }
}

static size_t chunked_take(struct http_body* b, const char* text, size_t bytes) {
    size_t at = 0;
    while (at < bytes && !b->done && !b->bad) {
        if (b->chunk != CHUNK_DATA) {
            b->chunk = chunk_next(b, text[at++]);
            continue;
        }
        size_t run = bytes - at < b->left ? bytes - at : (size_t)b->left;
        at += run;
        b->left -= run;
        if (b->left == 0) b->chunk = CHUNK_DATA_CR;
    }
    return at;
}

size_t http_body_take(struct http_body* b, const char* text, size_t bytes) {
    if (b->done) return 0;
    if (b->framing == HTTP_UNTIL_CLOSE) return bytes;
    if (b->framing == HTTP_CHUNKED) return chunked_take(b, text, bytes);
    size_t run = bytes < b->left ? bytes : (size_t)b->left;
    b->left -= run;
    b->done = b->left == 0;
    return run;
}

const char* http_reason(unsigned status) {
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 404:
        return "Not Found";
    case 408:
        return "Request Timeout";
    case 431:
        return "Request Header Fields Too Large";
    case 501:
        return "Not Implemented";
    case 502:
        return "Bad Gateway";
    case 503:
        return "Service Unavailable";
    case 504:
        return "Gateway Timeout";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return "Error";
    }
}
