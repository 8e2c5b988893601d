/* stack.c (Linux): return addresses of the calling thread, and the files that they lie in.
 *
 * A walk follows the compiler's unwind tables, from what it remembers of them: a look-up in a small table of
 * its own and three loads for a frame. Where a function does what this file does not know, the compiler's
 * unwinder takes the whole stack instead. That unwinder is found at the start, where a library may be loaded;
 * no stack that is taken later allocates. libc's table of loaded objects is read without a lock; where libc
 * (before glibc 2.35) has none, addresses stay addresses, and each stack is the unwinder's.
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

#include "arch/arch.h"
#include "base/atomic.h"
#include "base/text.h"
#include "os/linux/unwind.h"
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

/* libgcc's struct dwarf_eh_bases. */
struct found_entry {
    void* text;
    void* data;
    void* function;
};

/* Sync: written once, before the first stack is taken. */
typedef _Unwind_Reason_Code (*unwind_t)(_Unwind_Trace_Fn step, void* context);
typedef uintptr_t (*address_t)(struct _Unwind_Context* context);
typedef int (*object_t)(void* address, struct found_object* found);
typedef const void* (*entry_t)(void* address, struct found_entry* found);
#ifdef WEIR_TESTING
WEIR_VAR uint64_t os_stack_unwinder_calls;
#endif
static unwind_t stack_unwind;
static entry_t stack_entry;
static address_t stack_address;
static object_t stack_object;
static uintptr_t own_start; /* weir's own code, where it is a library; else nothing */
static uintptr_t own_end;

/* Objects that were there at the start, and stay for as long as the process runs. */
enum { OBJECTS_MAX = 128 };
WEIR_WIDE(objects) static uintptr_t object_start[OBJECTS_MAX];
WEIR_WIDE(objects) static uintptr_t object_end[OBJECTS_MAX];
static uint32_t object_count;

static void* unwinder_symbol(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (found != NULL) return found;
    static void* library; /* stays loaded */
    if (library == NULL) library = dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_LOCAL);
    return library == NULL ? NULL : dlsym(library, name);
}

static void objects_remember(const struct link_map* map) {
    struct found_object found;
    while (map->l_prev != NULL) map = map->l_prev;
    for (; map != NULL && object_count < OBJECTS_MAX; map = map->l_next) {
        if (stack_object((void*)map->l_ld, &found) != 0) continue;
        object_start[object_count] = (uintptr_t)found.start;
        object_end[object_count++] = (uintptr_t)found.end;
    }
}

WEIR_FN void os_stack_start(void) {
    int saved = errno;
    stack_address = (address_t)unwinder_symbol("_Unwind_GetIP");
    stack_unwind = (unwind_t)unwinder_symbol("_Unwind_Backtrace");
    stack_entry = (entry_t)unwinder_symbol("_Unwind_Find_FDE");
    stack_object = (object_t)dlsym(RTLD_DEFAULT, "_dl_find_object");
    struct found_object own;
    if (stack_object != NULL && stack_object((void*)(uintptr_t)&os_stack_start, &own) == 0) {
        objects_remember(own.map);
        if (own.map->l_name[0] != '\0') {
            own_start = (uintptr_t)own.start;
            own_end = (uintptr_t)own.end;
        }
    }
    uintptr_t first; /* the unwinder's own first steps are taken here, not in a malloc */
    (void)os_stack_take(&first, 1);
    errno = saved;
}

/* ---- What is remembered of the tables */

/* `rule`: a struct unwind_rule in one word. Sync: relaxed; words of two rules do not match. */
struct memory_cell {
    uintptr_t code; /* exclusive or rule */
    uint64_t rule;
};
enum { MEMORY_SHIFT = 11, DISTANCE_BITS = 19 };
WEIR_WIDE(memory) static struct memory_cell memory[1 << MEMORY_SHIFT];

static uint64_t rule_pack(const struct unwind_rule* rule) {
    uint64_t packed = rule->cfa / sizeof(uintptr_t);
    packed = packed << DISTANCE_BITS | rule->back / sizeof(uintptr_t);
    packed = packed << DISTANCE_BITS | rule->frame / sizeof(uintptr_t);
    return packed << 3 | (uint64_t)rule->by_frame << 2 | (uint64_t)rule->kind;
}

static struct unwind_rule rule_unpack(uint64_t packed) {
    const uint64_t mask = (1u << DISTANCE_BITS) - 1;
    return (struct unwind_rule){
        .kind = (enum unwind_kind)(packed & 3),
        .by_frame = (packed >> 2 & 1) != 0,
        .frame = (uint32_t)((packed >> 3 & mask) * sizeof(uintptr_t)),
        .back = (uint32_t)((packed >> (3 + DISTANCE_BITS) & mask) * sizeof(uintptr_t)),
        .cfa = (uint32_t)((packed >> (3 + 2 * DISTANCE_BITS) & mask) * sizeof(uintptr_t))};
}

static bool object_stays(uintptr_t code) {
    for (uint32_t i = 0; i < object_count; i++)
        if (code - object_start[i] < object_end[i] - object_start[i]) return true;
    return false;
}

static struct unwind_rule rule_find(uintptr_t code) {
    struct memory_cell* cell = &memory[(uint64_t)code * 0x9e3779b97f4a7c15u >> (64 - MEMORY_SHIFT)];
    uint64_t packed = load_relaxed(&cell->rule);
    if ((load_relaxed(&cell->code) ^ packed) == code) return rule_unpack(packed);
    struct found_entry found;
    const void* entry = stack_entry((void*)code, &found);
    if (entry == NULL) return (struct unwind_rule){.kind = UNWIND_UNKNOWN};
    struct unwind_rule rule = unwind_rule_read(entry, (uintptr_t)found.function, code);
    if (object_stays(code)) {
        packed = rule_pack(&rule);
        store_relaxed(&cell->rule, packed);
        store_relaxed(&cell->code, code ^ packed);
    }
    return rule;
}

/* ---- Walks */

struct stack_walk {
    uintptr_t* frames;
    uint32_t most;
    uint32_t count;
};

/* False: that was enough. */
static bool walk_add(struct stack_walk* w, uintptr_t address) {
    if (address == 0) return false;
    if (w->count == 0 && address - own_start < own_end - own_start) return true;
    w->frames[w->count++] = address;
    return w->count < w->most;
}

/* False: a frame on the way is for the unwinder. */
static WEIR_NOINLINE bool walk_by_memory(struct stack_walk* w) {
    struct arch_registers r;
    ARCH_REGISTERS_TAKE(r);
    for (uintptr_t code = r.code;; code = r.code - 1) {
        struct unwind_rule rule = rule_find(code);
        if (rule.kind != UNWIND_STEP) return rule.kind == UNWIND_END;
        uintptr_t cfa = (rule.by_frame ? r.frame : r.stack) + rule.cfa;
        if (cfa <= r.stack) return false;
        r.stack = cfa;
        r.code = arch_return_plain(*(const uintptr_t*)(cfa - rule.back));
        if (rule.frame != 0) r.frame = *(const uintptr_t*)(cfa - rule.frame);
        if (!walk_add(w, r.code)) return true;
    }
}

static _Unwind_Reason_Code unwinder_step(struct _Unwind_Context* context, void* walk) {
    return walk_add(walk, stack_address(context)) ? _URC_NO_REASON : _URC_END_OF_STACK;
}

WEIR_FN uint32_t os_stack_take(uintptr_t* frames, uint32_t most) {
    if (stack_unwind == NULL || stack_address == NULL || most == 0) return 0;
    struct stack_walk walk = {.frames = frames, .most = most, .count = 0};
    if (object_count != 0 && stack_entry != NULL && walk_by_memory(&walk)) return walk.count;
    walk.count = 0;
#ifdef WEIR_TESTING
    add_relaxed(&os_stack_unwinder_calls, 1);
#endif
    stack_unwind(unwinder_step, &walk);
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
