// spans.h: where a span lies, and one as a large block has it. For the tests of page/span.h. It deliberately
// knows nothing of what is in one.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_SPANS_H
#define WEIR_TESTS_UNIT_SPANS_H

#include "layers.h"
#include "child.h"
#include <cstring>
#include <sys/mman.h>
#include <vector>
extern "C" {
#include "page/hole.h"
#include "page/release.h"
}

inline char* address(const struct slice* s) { return reinterpret_cast<char*>(slice_address(s)); }
inline size_t bytes_of(size_t slices) { return slices << SLICE_SHIFT; }

// As a large block that ends with its span.
inline void publish(struct slice* s) {
    s->kind = SLICE_LARGE;
    hole_show(s, 0);
}

#endif
