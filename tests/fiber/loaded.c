/* loaded.c: loads the library named by $FIBER_LIBRARY when no static TLS is left, and fills loaded.h's table
 * in.
 *
 * Who may call it: the loader, before main. First it loads copies of a library with initial-exec TLS
 * ($FIBER_FILLER: a file name with two %d in it, bytes and number) until the loader refuses even a small one.
 * $FIBER_REFUSED names a library that must be refused then too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "loaded.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#undef malloc
#undef free
#undef calloc
#undef realloc

struct loaded loaded;

static void give_up(const char* what, const char* why) {
    fprintf(stderr, "loaded: %s: %s\n", what, why);
    exit(3);
}

/* Loads copies until one is refused; whether that came about. */
static int static_tls_exhaust(const char* pattern, int bytes) {
    enum { COPIES = 64 };
    for (int i = 0; i < COPIES; i++) {
        char name[4096];
        snprintf(name, sizeof name, pattern, bytes, i);
        if (dlopen(name, RTLD_NOW) == NULL) return strstr(dlerror(), "TLS") != NULL;
    }
    return 0;
}

static void* symbol(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (found == NULL) give_up(name, "not in the library");
    return found;
}

static __attribute__((constructor)) void load(void) {
    const char* name = getenv("FIBER_LIBRARY");
    const char* filler = getenv("FIBER_FILLER");
    const char* refused = getenv("FIBER_REFUSED");
    if (name == NULL || filler == NULL || refused == NULL) give_up("environment", "FIBER_* are not set");
    if (!static_tls_exhaust(filler, 128) || !static_tls_exhaust(filler, 8))
        give_up(filler, "could not use up static TLS with copies of it");
    if (dlopen(refused, RTLD_NOW) != NULL) give_up(refused, "was loaded, though no static TLS is left");
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) give_up(name, dlerror());
    loaded.malloc = (void* (*)(size_t))symbol(library, "malloc");
    loaded.free = (void (*)(void*))symbol(library, "free");
    loaded.calloc = (void* (*)(size_t, size_t))symbol(library, "calloc");
    loaded.realloc = (void* (*)(void*, size_t))symbol(library, "realloc");
    loaded.operator_new = (void* (*)(size_t))symbol(library, "_Znwm");
    loaded.operator_delete = (void (*)(void*, size_t))symbol(library, "_ZdlPvm");
    dlclose(library); /* it stays: threads have its destructor to run */
}
