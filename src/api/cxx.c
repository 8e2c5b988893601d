/* cxx.c: the C++ operators new and delete, in C, so that the library needs libc alone.
 *
 * They are compiled with unwind tables, so that exceptions pass through. What only the C++ runtime has
 * (the new_handler, the throw) is looked up when an allocation has failed, also in a runtime that was
 * loaded late and privately. A program may replace any of them; those that it leaves alone come to its own
 * where the standard says so. The nothrow forms are left to the C++ runtime: they call the others, and only
 * C++ can turn what those throw into NULL. Names are those of the Itanium C++ ABI.
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

/* Names for our own definitions, whoever else defines the operator: where the two differ, the program has
 * replaced it. A weak definition is one that compilers neither inline nor take for the only one. */
#define OWN(own, name) OWN_EXPANDED(own, name)
#define OWN_EXPANDED(own, name) static __typeof__(name) own __attribute__((alias(#name)))
#define REPLACED(own, name) weir_unlikely(address_of((void (*)(void))(name)) != (uintptr_t)(own))

/* LLVM takes the two for different ones where it optimizes a whole program. */
WEIR_INLINE uintptr_t address_of(void (*function)(void)) {
    uintptr_t address = (uintptr_t)function;
    __asm__("" : "+r"(address));
    return address;
}

void* _Znwm(size_t size); /* no header declares them to C */
void* _Znam(size_t size);
void* _ZnwmSt11align_val_t(size_t size, size_t align);
void* _ZnamSt11align_val_t(size_t size, size_t align);
void _ZdlPv(void* p);
void _ZdaPv(void* p);
void _ZdlPvSt11align_val_t(void* p, size_t align);
void _ZdaPvSt11align_val_t(void* p, size_t align);
OWN(own_delete, _ZdlPv);
OWN(own_delete_array, _ZdaPv);
OWN(own_delete_aligned, _ZdlPvSt11align_val_t);
OWN(own_delete_array_aligned, _ZdaPvSt11align_val_t);

WEIR_AT_LINE WEIR_OPERATOR void* _Znwm(size_t size) {
    size_t last = size - 1;
    if (weir_likely(last < SMALL_MAX)) {
        void* p = heap_alloc_fast(last);
        if (weir_likely(p != NULL)) return p;
    }
    return new_aligned(size, 1);
}
WEIR_OPERATOR void* _Znam(size_t size) { return _Znwm(size); }
WEIR_OPERATOR void* _ZnwmSt11align_val_t(size_t size, size_t align) { return new_aligned(size, align); }
WEIR_OPERATOR void* _ZnamSt11align_val_t(size_t size, size_t align) {
    return _ZnwmSt11align_val_t(size, align);
}

WEIR_AT_LINE WEIR_OPERATOR void _ZdlPv(void* p) { heap_free(p, "operator delete"); }
WEIR_OPERATOR void _ZdaPv(void* p) { _ZdlPv(p); }
WEIR_OPERATOR void _ZdlPvSt11align_val_t(void* p, size_t align) {
    (void)align;
    heap_free(p, "operator delete");
}
WEIR_OPERATOR void _ZdaPvSt11align_val_t(void* p, size_t align) { _ZdlPvSt11align_val_t(p, align); }

static void delete_verified(void* p, size_t size, size_t align) {
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

static WEIR_NOINLINE void delete_slow(void* p, size_t size, void (*unsized)(void*)) {
    if (REPLACED(own_delete, _ZdlPv) || REPLACED(own_delete_array, _ZdaPv)) {
        unsized(p);
        return;
    }
    store_relaxed(&page_root.trusted, load_relaxed(&page_root.base));
    delete_verified(p, size, 1);
}

/* Verified: the block's class must be the one the size is served from. `trusted` is the region's base once it
 * is known that nobody replaced operator delete. Before, and where it was replaced, no pointer is found to be
 * the thread's own, and every sized delete comes to look. */
WEIR_INLINE void delete_sized(void* p, size_t size, void (*unsized)(void*)) {
    struct slice* s;
    size_t last = size - 1;
    if (config_trust_size != 0) {
        if (weir_likely(last < SMALL_MAX && heap_free_to_bin(p, last))) return;
        heap_free(p, "operator delete");
        return;
    }
    if (weir_likely(heap_owns(p, &page_root.trusted, &s) && (size_t)s->small_class == last / GRANULE)) {
        slab_push(s, p);
        return;
    }
    delete_slow(p, size, unsized);
}

WEIR_AT_LINE WEIR_OPERATOR void _ZdlPvm(void* p, size_t size) { delete_sized(p, size, _ZdlPv); }
WEIR_OPERATOR void _ZdaPvm(void* p, size_t size) { delete_sized(p, size, _ZdaPv); }
WEIR_OPERATOR void _ZdlPvmSt11align_val_t(void* p, size_t size, size_t align) {
    if (REPLACED(own_delete_aligned, _ZdlPvSt11align_val_t))
        _ZdlPvSt11align_val_t(p, align);
    else
        delete_verified(p, size, align);
}
WEIR_OPERATOR void _ZdaPvmSt11align_val_t(void* p, size_t size, size_t align) {
    if (REPLACED(own_delete_array_aligned, _ZdaPvSt11align_val_t) ||
        REPLACED(own_delete_aligned, _ZdlPvSt11align_val_t))
        _ZdaPvSt11align_val_t(p, align);
    else
        delete_verified(p, size, align);
}
