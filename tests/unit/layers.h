// layers.h: weir's C headers as C++ can read them, and glue.h for those that it cannot. Unit tests
// include it first. heap.h is C alone (void pointers convert by themselves), hence the glue.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_LAYERS_H
#define WEIR_TESTS_UNIT_LAYERS_H

#ifndef _Thread_local
#    define _Thread_local __thread
#endif

extern "C" {
#include "base/atomic.h"
#include "base/compiler.h"
#include "core/options.h"
#include "core/report.h"
#include "heap/class.h"
#include "os/lock.h"
#include "os/os.h"
#include "page/region.h"
#include "page/slice.h"
#include "page/span.h"
#include "tag/tag.h"
#include "weir/weir.h"
#include "glue.h"
}

// The address of a block without its tag: where memory is tagged, a block that comes again has another one.
template <class T>
T* bare(T* p) {
    return static_cast<T*>(tag_clear(p));
}
struct ByAddress {
    bool operator()(const void* a, const void* b) const { return tag_clear(a) < tag_clear(b); }
};

#endif
