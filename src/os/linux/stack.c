/* stack.c (Linux): return addresses of the calling thread, and the files that they lie in.
 *
 * The compiler's unwinder is found at the start, where a library may be loaded; a stack that is taken later
 * costs a table look-up per frame and no call that allocates. libc's table of loaded objects is read without
 * a lock; where libc (before glibc 2.35) has none, addresses stay addresses.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <unwind.h>

#include "base/text.h"
#include "os/os.h"

/* libc's struct dl_find_object, by another name: headers before glibc 2.35 have none. */
struct found_object {
    unsigned long long flags;
    void* start;
    void* end;
    const struct link_map* map;
    void* frames;
    unsigned long long reserved[7];
};

/* Sync: written once, before the first stack is taken. */
typedef _Unwind_Reason_Code (*unwind_t)(_Unwind_Trace_Fn step, void* context);
typedef uintptr_t (*address_t)(struct _Unwind_Context* context);
typedef int (*object_t)(void* address, struct found_object* found);
static unwind_t stack_unwind;
static address_t stack_address;
static object_t stack_object;
static uintptr_t own_start; /* weir's own code, where it is a library; else nothing */
static uintptr_t own_end;

static void* unwinder_symbol(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (found != NULL) return found;
    static void* library; /* stays loaded */
    if (library == NULL) library = dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_LOCAL);
    return library == NULL ? NULL : dlsym(library, name);
}

WEIR_FN void os_stack_start(void) {
    int saved = errno;
    stack_address = (address_t)unwinder_symbol("_Unwind_GetIP");
    stack_unwind = (unwind_t)unwinder_symbol("_Unwind_Backtrace");
    stack_object = (object_t)dlsym(RTLD_DEFAULT, "_dl_find_object");
    struct found_object own;
    if (stack_object != NULL && stack_object((void*)(uintptr_t)&os_stack_start, &own) == 0 &&
        own.map->l_name[0] != '\0') {
        own_start = (uintptr_t)own.start;
        own_end = (uintptr_t)own.end;
    }
    uintptr_t first; /* the unwinder's own first steps are taken here, not in a malloc */
    (void)os_stack_take(&first, 1);
    errno = saved;
}

struct stack_walk {
    uintptr_t* frames;
    uint32_t most;
    uint32_t count;
};

static _Unwind_Reason_Code stack_step(struct _Unwind_Context* context, void* argument) {
    struct stack_walk* w = argument;
    uintptr_t address = stack_address(context);
    if (address == 0) return _URC_END_OF_STACK;
    if (w->count == 0 && address - own_start < own_end - own_start) return _URC_NO_REASON;
    w->frames[w->count++] = address;
    return w->count < w->most ? _URC_NO_REASON : _URC_END_OF_STACK;
}

WEIR_FN uint32_t os_stack_take(uintptr_t* frames, uint32_t most) {
    if (stack_unwind == NULL || stack_address == NULL || most == 0) return 0;
    struct stack_walk walk = {.frames = frames, .most = most, .count = 0};
    stack_unwind(stack_step, &walk);
    return walk.count;
}

WEIR_FN bool os_module_find(uintptr_t address, char* path, size_t bytes, uintptr_t* offset) {
    struct found_object found;
    if (stack_object == NULL || stack_object((void*)address, &found) != 0) return false;
    *offset = address - found.map->l_addr;
    if (found.map->l_name[0] == '\0') {
        os_read_link("/proc/self/exe", path, bytes);
        return path[0] != '\0';
    }
    struct text t = text_make(path, bytes - 1);
    text_string(&t, found.map->l_name);
    path[t.length] = '\0';
    return true;
}
