/* tsan.c (Linux): ThreadSanitizer in the program, which watches the program and not this library (os.h).
 *
 * Its runtime is reached by weak names: it is in the process before this library, or not at all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/atomic.h"
#include "os/os.h"

extern __attribute__((weak)) void __tsan_init(void);
extern __attribute__((weak)) void __tsan_acquire(void* address);
extern __attribute__((weak)) void __tsan_release(void* address);

/* Built with it, the library is watched as all code is. */
#ifdef WEIR_THREAD_SANITIZER
enum { config_tsan_sees = 1 };
#else
enum { config_tsan_sees = 0 };
#endif

/* Bytes that have one clock. As many for objects of all sizes, since memory goes from one to another. */
enum { TSAN_GRAIN = 1024 };

WEIR_FN bool os_tsan_is_blind(void) { return !config_tsan_sees && __tsan_init != NULL; }

static void grains_visit(void* p, size_t bytes, void (*visit)(void* address)) {
    uintptr_t end = (uintptr_t)p + bytes;
    for (uintptr_t at = align_down((uintptr_t)p, TSAN_GRAIN); at < end; at += TSAN_GRAIN) visit((void*)at);
}

WEIR_FN void os_tsan_release(void* p, size_t bytes) { grains_visit(p, bytes, __tsan_release); }
WEIR_FN void os_tsan_acquire(void* p, size_t bytes) { grains_visit(p, bytes, __tsan_acquire); }
