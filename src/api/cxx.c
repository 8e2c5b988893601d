/* cxx.c: the C++ operators new and delete, in C, so that the library needs libc alone.
 *
 * They are compiled with unwind tables, so that exceptions pass through. What only the C++ runtime has
 * (the new_handler, the throw) is looked up when an allocation has failed, also in a runtime that was
 * loaded late and privately. Names are those of the Itanium C++ ABI.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdlib.h>

#include "api/malloc.h"
#include "core/options.h"
#include "core/report.h"
#include "heap/heap.h"
#include "os/os.h"

typedef void (*handler_t)(void);

/* A function of the C++ runtime that this process uses; NULL: it has none. */
static void* cxx_symbol(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    static const char* const runtimes[] = {"libstdc++.so.6", "libc++.so.1"};
    for (size_t i = 0; found == NULL && i < sizeof runtimes / sizeof runtimes[0]; i++) {
        void* runtime = dlopen(runtimes[i], RTLD_LAZY | RTLD_NOLOAD);
        if (runtime != NULL) found = dlsym(runtime, name);
    }
    return found;
}

/* Weak: there where the runtime is linked in, statically or from the start; NULL where it comes late. */
extern __attribute__((weak)) handler_t _ZSt15get_new_handlerv(void);
extern __attribute__((weak)) void _ZSt17__throw_bad_allocv(void);

static handler_t new_handler(void) {
    handler_t (*get)(void) = _ZSt15get_new_handlerv;
    if (get == NULL) get = (handler_t(*)(void))cxx_symbol("_ZSt15get_new_handlerv");
    return get != NULL ? get() : NULL;
}

static WEIR_NORETURN void throw_bad_alloc(void) {
    void (*throw)(void) = _ZSt17__throw_bad_allocv;
    if (throw == NULL) throw = (void (*)(void))cxx_symbol("_ZSt17__throw_bad_allocv");
    if (throw == NULL) throw = (void (*)(void))cxx_symbol("_ZNSt3__117__throw_bad_allocEv");
    if (throw != NULL) throw();
    static const char line[] = "weir: out of memory in operator new, and no C++ runtime to throw bad_alloc\n";
    os_write(2, line, sizeof line - 1);
    os_abort();
}

static void* new_try(size_t size, size_t align) {
    if (size > PTRDIFF_MAX) return NULL;
    return align <= GRANULE ? heap_alloc(size) : heap_alloc_aligned(size, align);
}

static WEIR_COLD void* new_loop(size_t size, size_t align) {
    for (;;) {
        handler_t handler = new_handler();
        if (handler == NULL) throw_bad_alloc();
        handler();
        void* p = new_try(size, align);
        if (p != NULL) return p;
    }
}

static void* new_aligned(size_t size, size_t align) {
    void* p = new_try(size, align);
    return weir_likely(p != NULL) ? p : new_loop(size, align);
}

/* nothrow: a handler may throw, and only C++ can catch. The runtime's own operator does: it calls the
 * throwing one, which is ours, and turns an exception into NULL. */
static WEIR_COLD void* nothrow_loop(const char* name, void* self, size_t size, size_t align,
                                    const void* tag) {
    if (new_handler() == NULL) return NULL;
    void* theirs = dlsym(RTLD_NEXT, name);
    if (theirs == NULL || theirs == self) {
        void* runtime = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
        theirs = runtime != NULL ? dlsym(runtime, name) : NULL;
    }
    if (theirs == NULL || theirs == self) return NULL;
    if (align == 0) return ((void* (*)(size_t, const void*))theirs)(size, tag);
    return ((void* (*)(size_t, size_t, const void*))theirs)(size, align, tag);
}

WEIR_EXPORT void* _Znwm(size_t size) {
    size_t last = size - 1;
    if (weir_likely(last < SMALL_MAX)) {
        void* p = heap_alloc_fast(last);
        if (weir_likely(p != NULL)) return p;
    }
    return new_aligned(size, 1);
}
WEIR_EXPORT void* _ZnwmSt11align_val_t(size_t size, size_t align) { return new_aligned(size, align); }

WEIR_EXPORT void* _ZnwmRKSt9nothrow_t(size_t size, const void* tag) {
    void* p = new_try(size, 1);
    if (weir_likely(p != NULL)) return p;
    return nothrow_loop("_ZnwmRKSt9nothrow_t", (void*)_ZnwmRKSt9nothrow_t, size, 0, tag);
}
WEIR_EXPORT void* _ZnwmSt11align_val_tRKSt9nothrow_t(size_t size, size_t align, const void* tag) {
    void* p = new_try(size, align);
    if (weir_likely(p != NULL)) return p;
    return nothrow_loop("_ZnwmSt11align_val_tRKSt9nothrow_t", (void*)_ZnwmSt11align_val_tRKSt9nothrow_t, size,
                        align, tag);
}

static WEIR_NOINLINE void delete_slow(void* p, size_t size, size_t align) {
    static const char call[] = "operator delete";
    if (p != NULL && core_options.trust_size == 0) {
        size_t usable = heap_usable(p, call);
        if (usable == 0) return; /* reported */
        if (!heap_size_matches(usable, size, align)) {
            core_report_size(p, size, call);
            return;
        }
    }
    heap_free(p, call);
}

/* Verified: the block's class must be the one the size is served from. */
static inline __attribute__((always_inline)) void delete_sized(void* p, size_t size) {
    struct slice* s;
    size_t last = size - 1;
    if (config_trust_size != 0) {
        if (weir_likely(last < SMALL_MAX && heap_free_to_bin(p, last))) return;
        heap_free(p, "operator delete");
        return;
    }
    if (weir_likely(heap_owns(p, &s) && (size_t)s->small_class == last / GRANULE)) {
        slab_push(s, p);
        return;
    }
    delete_slow(p, size, 1);
}

WEIR_EXPORT void _ZdlPv(void* p) { heap_free(p, "operator delete"); }
WEIR_EXPORT void _ZdlPvm(void* p, size_t size) { delete_sized(p, size); }
WEIR_EXPORT void _ZdlPvSt11align_val_t(void* p, size_t align) {
    (void)align;
    heap_free(p, "operator delete");
}
WEIR_EXPORT void _ZdlPvmSt11align_val_t(void* p, size_t size, size_t align) { delete_slow(p, size, align); }
WEIR_EXPORT void _ZdlPvRKSt9nothrow_t(void* p, const void* tag) {
    (void)tag;
    heap_free(p, "operator delete");
}
WEIR_EXPORT void _ZdlPvSt11align_val_tRKSt9nothrow_t(void* p, size_t align, const void* tag) {
    (void)align;
    (void)tag;
    heap_free(p, "operator delete");
}

/* The array forms are the same operations. */
WEIR_ALIAS(_Znam, _Znwm);
WEIR_ALIAS(_ZnamSt11align_val_t, _ZnwmSt11align_val_t);
WEIR_ALIAS(_ZnamRKSt9nothrow_t, _ZnwmRKSt9nothrow_t);
WEIR_ALIAS(_ZnamSt11align_val_tRKSt9nothrow_t, _ZnwmSt11align_val_tRKSt9nothrow_t);
WEIR_ALIAS(_ZdaPv, _ZdlPv);
WEIR_ALIAS(_ZdaPvm, _ZdlPvm);
WEIR_ALIAS(_ZdaPvSt11align_val_t, _ZdlPvSt11align_val_t);
WEIR_ALIAS(_ZdaPvmSt11align_val_t, _ZdlPvmSt11align_val_t);
WEIR_ALIAS(_ZdaPvRKSt9nothrow_t, _ZdlPvRKSt9nothrow_t);
WEIR_ALIAS(_ZdaPvSt11align_val_tRKSt9nothrow_t, _ZdlPvSt11align_val_tRKSt9nothrow_t);
