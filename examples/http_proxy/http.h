/* http.h: the heads of HTTP/1.1 messages, and where their bodies end.
 *
 * Who may call it: connection.c and local.c. It looks at bytes and keeps none: what it says of a head is
 * numbers. Whatever could be read in two ways is refused, so that the proxy and the server behind it never
 * disagree about where a message ends (RFC 9112, sections 5 and 6). It deliberately does not know about
 * sockets.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef HTTP_PROXY_HTTP_H
#define HTTP_PROXY_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_HEAD_BYTES_MAX = 8192 };

/** Verdicts on a head: one of these, or the status to refuse it with. */
enum { HTTP_MORE = 0, HTTP_GOOD = 200 };

enum http_framing { HTTP_LENGTH, HTTP_CHUNKED, HTTP_UNTIL_CLOSE };

struct http_body {
    enum http_framing framing;
    int chunk;     /* the state in http_body_take */
    uint64_t left; /* of the body or, if chunked, of the chunk */
    bool done;
    bool bad;
};

struct http_head {
    size_t bytes; /* with its empty line */
    struct http_body body;
    unsigned status; /* of a response */
    bool keep_alive;
    bool wants_no_body; /* a request that is answered by a head alone */
    size_t target_at;   /* of a request: where its target begins, and how long it is */
    size_t target_bytes;
};

/** Look at what came so far. HTTP_MORE: the head is not complete. */
unsigned http_request(const char* text, size_t bytes, struct http_head* out);
/** The same for the answer to `asked`; what is not HTTP_MORE or HTTP_GOOD is 502. */
unsigned http_response(const char* text, size_t bytes, const struct http_head* asked, struct http_head* out);

/** How many of these bytes belong to the body. Sets `done` at its end, `bad` where its framing is broken. */
size_t http_body_take(struct http_body* b, const char* text, size_t bytes);

/** The words that go with a status. */
const char* http_reason(unsigned status);

#endif
