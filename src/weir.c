/* weir.c: the shipped library: all layers, from the bottom up, as one translation unit.
 *
 * Compile this file alone. One unit, so that helpers are inlined without LTO and static archives export
 * nothing but the public names.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#define WEIR_ONE_UNIT 1

#include "base/text.c"
#include "os/linux/os.c"
#include "os/linux/lock.c"
#include "os/linux/helper.c"
#include "os/linux/pressure.c"
#include "os/linux/fault.c"
#include "os/linux/unwind.c"
#include "os/linux/stack.c"
#include "os/linux/tsan.c"
#include "core/options.c"
#include "core/report.c"
#include "page/huge.c"
#include "page/region.c"
#include "page/span.c"
#include "page/hole.c"
#include "page/release.c"
#include "heap/class.c"
#include "heap/full.c"
#include "heap/guard.c"
#include "heap/slab.c"
#include "heap/slab_pages.c"
#include "heap/exposure.c"
#include "heap/spare.c"
#include "heap/large.c"
#include "heap/arena.c"
#include "heap/medium.c"
#include "heap/available.c"
#include "heap/refill.c"
#include "heap/free.c"
#include "heap/alloc.c"
#include "heap/visit.c"
#include "heap/registry.c"
#include "heap/census.c"
#include "pool/storage.c"
#include "pool/thread.c"
#include "pool/debug.c"
#include "pool/pool.c"
#include "api/stats.c"
#include "api/wire.c"
#include "api/malloc.c"
#include "api/pool.c"
#include "api/cxx.c"
#include "api/introspect.c"
#include "api/isolate.c"
#include "api/process.c"
