/* witness.c: shows which library serves a program's calls of malloc, without being in their way.
 *
 * The tool puts it into LD_PRELOAD beside an allocator. It defines no function of the malloc family, so it
 * takes the place of none. Its constructor finds the pointers through which the loaded objects call malloc
 * and its relatives, and turns them to stubs. The first call of a family writes down who called and in which
 * object the function lies, turns the pointers back and goes on to where it led: later calls do not pass
 * here. At exit it adds what the kernel knows of the process's memory.
 *
 *     object's code --call--> pointer (GOT) --turned--> stub N --> witness_hit(N) --> the function
 *                                 ^------- turned back by the first call ------'
 *
 * The loader calls it; nothing else may. It never allocates and asks the loader for no lock after the
 * constructor. What it does not understand it leaves alone: then nothing is written, and nothing is proven.
 * It deliberately does not know which allocator should be in place.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "witness.h"
#include "witness_arch.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define OBJECTS 256
/* Pointers are turned in this many objects at most, in load order, and in the C library: the first call of a
 * program with hundreds of libraries is seen as soon, and its start is not slowed down. */
#define OBJECTS_WATCHED 64
#define DYNAMIC_ENTRIES_MAX 512

static const struct {
    const char* name;
    enum witness_family family;
} symbols[] = {
#define WITNESS_ROW(name, family) {#name, family},
    WITNESS_SYMBOLS(WITNESS_ROW)
#undef WITNESS_ROW
};

/* A loaded object. Sync: written by the constructor; objects that are there at the start are never unloaded.
 */
struct object {
    const char* name;
    uintptr_t base, start, end;               /* where it lies */
    uintptr_t protected_start, protected_end; /* read-only after relocation */
    const ElfW(Sym) * symbols;
    const char* strings;
    const uint32_t* hash; /* of DT_GNU_HASH */
    const ElfW(Rela) * relocations[2];
    size_t relocation_count[2];
    unsigned pointer_first, pointer_count; /* its pointers that are watched */
    bool is_program, is_libc, skipped;
};

/* A pointer that leads to a stub, and where it led before. */
struct pointer {
    _Atomic(uintptr_t)* at;
    uintptr_t original;
    uintptr_t target; /* the function; other than `original` where the loader binds at the first call */
    unsigned symbol;
};

static struct object objects[OBJECTS];
static unsigned object_count;
static struct pointer pointers[WITNESS_STUBS];
static unsigned pointer_count;

/* Sync: set once by the first call of a family; relaxed, a call that misses it only takes the longer way. */
static atomic_bool family_seen[WITNESS_FAMILIES];
/* Sync: taken by acquire, given by release; never waited for, as a signal handler may stand in its holder. */
static atomic_flag turning = ATOMIC_FLAG_INIT;

static struct witness_header* file;
static uintptr_t start_stack;     /* of this image */
static struct witness_slot* slot; /* of this process; after a fork it may be the parent's */

void* witness_hit(unsigned number) __attribute__((visibility("hidden")));

/* ---- the file ---------------------------------------------------------------------------------------- */

static uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void text_copy(char* to, size_t bytes, const char* from) {
    size_t at = 0;
    for (; at + 1 < bytes && from[at]; at++) to[at] = from[at];
    to[at] = 0;
}

/* A slot for this process, or NULL. */
static struct witness_slot* slot_claim(void) {
    struct witness_slot* all = (struct witness_slot*)(file + 1);
    _Atomic(uint32_t)* claimed = (_Atomic(uint32_t)*)&file->slots_claimed;
    uint32_t at = atomic_fetch_add_explicit(claimed, 1, memory_order_relaxed);
    if (at >= file->slot_count) {
        atomic_fetch_add_explicit((_Atomic(uint32_t)*)&file->slots_refused, 1, memory_order_relaxed);
        return NULL;
    }
    struct witness_slot* own = &all[at];
    own->pid = getpid();
    own->parent_pid = getppid();
    own->start_ns = clock_ns();
    own->start_stack = start_stack;
    own->watched = pointer_count;
    if (readlink("/proc/self/exe", own->exe, sizeof own->exe - 1) < 0) own->exe[0] = 0;
    return own;
}

static void slot_state(struct witness_slot* own, enum witness_state state) {
    /* Release: pairs with the tool, which reads the fields after the state. */
    atomic_store_explicit((_Atomic(uint32_t)*)&own->state, state, memory_order_release);
}

/* The slot of this process: a child of fork gets one of its own, with what its parent's calls showed. */
static struct witness_slot* slot_own(void) {
    if (!slot || slot->pid == getpid()) return slot;
    struct witness_slot* own = slot_claim();
    if (own) {
        own->inherited = 1;
        own->call_count = slot->call_count;
        memcpy(own->calls, slot->calls, sizeof own->calls);
        slot_state(own, own->call_count ? WITNESS_REACHED : WITNESS_LOADED);
    }
    slot = own;
    return own;
}

static const char* file_name(char** environment) {
    static const char name[] = "WITNESS_FILE=";
    for (; environment && *environment; environment++) {
        if (strncmp(*environment, name, sizeof name - 1) == 0) return *environment + sizeof name - 1;
    }
    return NULL;
}

static bool file_map(const char* path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    struct witness_header head;
    bool good = pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head && head.magic == WITNESS_MAGIC &&
                head.version == WITNESS_VERSION && head.slot_bytes == sizeof(struct witness_slot);
    if (good) {
        size_t bytes = sizeof head + (size_t)head.slot_count * sizeof(struct witness_slot);
        void* at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        good = at != MAP_FAILED;
        if (good) file = at;
    }
    close(fd);
    return good;
}

/* ---- the loaded objects ------------------------------------------------------------------------------ */

/* The loader has relocated most tables of its objects in memory, but not those of every object. */
static uintptr_t table_address(const struct object* object, ElfW(Addr) value) {
    return value < object->base ? object->base + value : value;
}

static void object_tables(struct object* object, const ElfW(Dyn) * dynamic) {
    size_t bytes[2] = {0, 0}, relative = 0;
    bool plain = false;
    for (size_t at = 0; at < DYNAMIC_ENTRIES_MAX && dynamic[at].d_tag != DT_NULL; at++) {
        ElfW(Addr) value = dynamic[at].d_un.d_ptr;
        switch (dynamic[at].d_tag) {
        case DT_SYMTAB:
            object->symbols = (const void*)table_address(object, value);
            break;
        case DT_STRTAB:
            object->strings = (const void*)table_address(object, value);
            break;
        case DT_GNU_HASH:
            object->hash = (const void*)table_address(object, value);
            break;
        case DT_RELA:
            object->relocations[0] = (const void*)table_address(object, value);
            break;
        case DT_RELASZ:
            bytes[0] = value;
            break;
        case DT_RELACOUNT:
            relative = value;
            break;
        case DT_JMPREL:
            object->relocations[1] = (const void*)table_address(object, value);
            break;
        case DT_PLTRELSZ:
            bytes[1] = value;
            break;
        case DT_PLTREL:
            plain = value != DT_RELA;
            break;
        default:
            break;
        }
    }
    for (unsigned table = 0; table < 2; table++) {
        object->relocation_count[table] = bytes[table] / sizeof(ElfW(Rela));
        if (!object->relocations[table]) object->relocation_count[table] = 0;
    }
    /* Those that need no symbol come first. */
    if (relative <= object->relocation_count[0]) {
        object->relocations[0] += relative;
        object->relocation_count[0] -= relative;
    }
    if (!object->symbols || !object->strings || plain) object->skipped = true;
}

static int object_add(struct dl_phdr_info* info, size_t bytes, void* unused) {
    (void)bytes, (void)unused;
    if (object_count == OBJECTS) return 1;
    struct object* object = &objects[object_count];
    uintptr_t page = getauxval(AT_PAGESZ), own = (uintptr_t)&objects, libc = (uintptr_t)&gnu_get_libc_version;
    const ElfW(Dyn)* dynamic = NULL;
    object->name = info->dlpi_name;
    object->base = info->dlpi_addr;
    object->start = UINTPTR_MAX;
    for (unsigned at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr)* segment = &info->dlpi_phdr[at];
        uintptr_t start = object->base + segment->p_vaddr, end = start + segment->p_memsz;
        if (segment->p_type == PT_LOAD) {
            if (start < object->start) object->start = start;
            if (end > object->end) object->end = end;
        } else if (segment->p_type == PT_DYNAMIC) {
            dynamic = (const void*)start;
        } else if (segment->p_type == PT_GNU_RELRO) {
            object->protected_start = start & -page;
            object->protected_end = end & -page;
        }
    }
    if (!dynamic) return 0;
    object->is_program = object_count == 0;
    object->is_libc = libc >= object->start && libc < object->end;
    /* The loader calls through pointers of its own; the kernel's object and this one call nothing. */
    object->skipped = object->base == getauxval(AT_BASE) || object->start == getauxval(AT_SYSINFO_EHDR) ||
                      (own >= object->start && own < object->end);
    object_tables(object, dynamic);
    object_count++;
    return 0;
}

static struct object* object_of(uintptr_t address) {
    for (unsigned at = 0; at < object_count; at++) {
        if (address >= objects[at].start && address < objects[at].end) return &objects[at];
    }
    return NULL;
}

/* The address of a function that the object defines, or 0. The table: numbers of buckets, of the first
 * symbol in it, of filter words; the filter; buckets; per symbol its hash, whose lowest bit ends a chain. */
static uintptr_t object_symbol(const struct object* object, const char* name) {
    if (!object->hash || object->skipped) return 0;
    uint32_t buckets = object->hash[0], first = object->hash[1], filters = object->hash[2], hash = 5381;
    if (buckets == 0) return 0;
    for (const char* at = name; *at; at++) hash = hash * 33 + (unsigned char)*at;
    const uint32_t* bucket = object->hash + 4 + filters * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t* chain = bucket + buckets;
    for (uint32_t at = bucket[hash % buckets]; at >= first; at++) {
        uint32_t found = chain[at - first];
        const ElfW(Sym)* symbol = &object->symbols[at];
        if ((found | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            strcmp(object->strings + symbol->st_name, name) == 0) {
            return object->base + symbol->st_value;
        }
        if (found & 1) break;
    }
    return 0;
}

/* Where the loader leads calls of `name` from anywhere: to the first object that defines it. */
static uintptr_t symbol_definition(const char* name) {
    for (unsigned at = 0; at < object_count; at++) {
        uintptr_t found = object_symbol(&objects[at], name);
        if (found) return found;
    }
    return 0;
}

/* ---- turning pointers -------------------------------------------------------------------------------- */

static uintptr_t stub_address(unsigned number) {
    return (uintptr_t)witness_stubs + (uintptr_t)number * WITNESS_STUB_BYTES;
}

static bool object_protects(const struct object* object, const void* at) {
    return (uintptr_t)at >= object->protected_start && (uintptr_t)at < object->protected_end;
}

/* Makes the object's protected pointers writable, or read-only again. */
static bool object_protect(const struct object* object, int protection) {
    size_t bytes = object->protected_end - object->protected_start;
    return bytes == 0 || mprotect((void*)object->protected_start, bytes, protection) == 0;
}

/* The number of the symbol that is called `name`, or WITNESS_SYMBOL_COUNT. */
static unsigned symbol_number(const char* name) {
    unsigned at = 0;
    /* Nearly all names end here. */
    char first = *name;
    bool wanted = first == '_' ? name[1] == 'Z' && name[2] == 'n'
                               : first == 'm' || first == 'c' || first == 'r' || first == 'p' || first == 'a';
    if (!wanted) return WITNESS_SYMBOL_COUNT;
    while (at < WITNESS_SYMBOL_COUNT && strcmp(symbols[at].name, name) != 0) at++;
    return at;
}

/* The function that a call through a pointer of `object` reaches. A pointer that is not bound yet leads
 * into the object's own linkage table, and one to a function whose address the program took may lead
 * into the program's; neither defines the function there. */
static uintptr_t pointer_target(const struct object* object, uintptr_t value, unsigned symbol) {
    const char* name = symbols[symbol].name;
    const struct object* there = object_of(value);
    if ((there == object || there == &objects[0]) && object_symbol(there, name) != value) {
        return symbol_definition(name);
    }
    return value;
}

/* Remembers one pointer, if calls through it say something. */
static void pointer_add(struct object* object, const ElfW(Rela) * relocation) {
    unsigned kind = ELF64_R_TYPE(relocation->r_info);
    if (kind != ARCH_RELOCATION_CALL && kind != ARCH_RELOCATION_ADDRESS) return;
    const ElfW(Sym)* entry = &object->symbols[ELF64_R_SYM(relocation->r_info)];
    unsigned symbol = symbol_number(object->strings + entry->st_name);
    if (symbol == WITNESS_SYMBOL_COUNT || pointer_count == WITNESS_STUBS) return;
    struct pointer* pointer = &pointers[pointer_count];
    pointer->at = (_Atomic(uintptr_t)*)(object->base + relocation->r_offset);
    pointer->original = atomic_load_explicit(pointer->at, memory_order_relaxed); /* others turn nothing yet */
    pointer->target = pointer->original ? pointer_target(object, pointer->original, symbol) : 0;
    pointer->symbol = symbol;
    const struct object* target = object_of(pointer->target);
    /* An allocator's calls of itself say nothing about the program. */
    if (!target || (target == object && !object->is_libc && !object->is_program)) return;
    pointer_count++;
    object->pointer_count++;
}

static void object_watch(struct object* object) {
    object->pointer_first = pointer_count;
    for (unsigned table = 0; table < 2; table++) {
        for (size_t at = 0; at < object->relocation_count[table]; at++) {
            pointer_add(object, &object->relocations[table][at]);
        }
    }
    if (object->pointer_count == 0) return;
    bool writable = object_protect(object, PROT_READ | PROT_WRITE);
    for (unsigned at = object->pointer_first; at < object->pointer_first + object->pointer_count; at++) {
        if (writable || !object_protects(object, pointers[at].at)) {
            /* Release: a thread of another constructor that calls through it finds the row filled in. */
            atomic_store_explicit(pointers[at].at, stub_address(at), memory_order_release);
        }
    }
    if (writable) object_protect(object, PROT_READ);
}

/* Turns the pointers of a family back. */
static void family_release(enum witness_family family) {
    for (unsigned number = 0; number < object_count; number++) {
        struct object* object = &objects[number];
        if (object->pointer_count == 0) continue;
        bool writable = object_protect(object, PROT_READ | PROT_WRITE);
        for (unsigned at = object->pointer_first; at < object->pointer_first + object->pointer_count; at++) {
            struct pointer* pointer = &pointers[at];
            if (symbols[pointer->symbol].family != family) continue;
            if (!writable && object_protects(object, pointer->at)) continue;
            uintptr_t expected = stub_address(at);
            /* Relaxed: both values lead to the same function. The loader may have bound it meanwhile. */
            atomic_compare_exchange_strong_explicit(pointer->at, &expected, pointer->original,
                                                    memory_order_relaxed, memory_order_relaxed);
        }
        if (writable) object_protect(object, PROT_READ);
    }
}

/* ---- what a call shows ------------------------------------------------------------------------------- */

static const char* object_name(const struct witness_slot* own, const struct object* object) {
    return object->is_program && !*object->name ? own->exe : object->name;
}

/* The slot's entry for the object in which `target` lies, made if it is new; NULL when all are taken. */
static struct witness_call* call_entry(struct witness_slot* own, uintptr_t target) {
    const struct object* object = object_of(target);
    if (!object) return NULL;
    char name[WITNESS_TARGET_BYTES];
    text_copy(name, sizeof name, object_name(own, object));
    for (uint32_t at = 0; at < own->call_count; at++) {
        if (strcmp(own->calls[at].target, name) == 0) return &own->calls[at];
    }
    if (own->call_count == WITNESS_CALLS) return NULL;
    struct witness_call* call = &own->calls[own->call_count++];
    memcpy(call->target, name, sizeof name);
    return call;
}

static void call_record(unsigned number) {
    struct witness_slot* own = slot_own();
    if (!own) return;
    const struct pointer* hit = &pointers[number];
    enum witness_family family = symbols[hit->symbol].family;
    struct witness_call* call = call_entry(own, hit->target);
    if (call) {
        const struct object* from = object_of((uintptr_t)hit->at);
        if (from && !call->called) text_copy(call->caller, sizeof call->caller, object_name(own, from));
        call->called |= 1u << hit->symbol;
    }
    for (unsigned at = 0; at < pointer_count; at++) {
        if (symbols[pointers[at].symbol].family != family) continue;
        struct witness_call* bound = call_entry(own, pointers[at].target);
        if (bound) bound->bound |= 1u << pointers[at].symbol;
    }
    slot_state(own, WITNESS_REACHED);
}

/* Called by a stub: the address at which the call goes on. */
void* witness_hit(unsigned number) {
    enum witness_family family = symbols[pointers[number].symbol].family;
    if (!atomic_load_explicit(&family_seen[family], memory_order_relaxed) &&
        !atomic_flag_test_and_set_explicit(&turning, memory_order_acquire)) {
        int error = errno;
        if (!atomic_exchange_explicit(&family_seen[family], true, memory_order_relaxed)) {
            call_record(number);
            family_release(family);
        }
        errno = error;
        /* Release: pairs with the next turn, which finds the pages read-only again. */
        atomic_flag_clear_explicit(&turning, memory_order_release);
    }
    return (void*)pointers[number].original;
}

/* ---- start and end ----------------------------------------------------------------------------------- */

__attribute__((constructor)) static void witness_start(int count, char** arguments, char** environment) {
    (void)count;
    int error = errno;
    const char* name = file_name(environment);
    if (name && file_map(name)) {
        start_stack = (uintptr_t)(arguments - 1);
        dl_iterate_phdr(object_add, NULL);
        slot = slot_claim();
        if (slot) {
            slot_state(slot, WITNESS_LOADED);
            for (unsigned at = 0; at < object_count; at++) {
                const struct object* object = &objects[at];
                if (!object->skipped && (at < OBJECTS_WATCHED || object->is_libc)) object_watch(&objects[at]);
            }
            slot->watched = pointer_count;
        }
    }
    errno = error;
}

/* The number behind `name` in the text of /proc/self/status. */
static uint64_t status_number(const char* text, const char* name) {
    const char* at = strstr(text, name);
    uint64_t number = 0;
    if (!at) return 0;
    for (at += strlen(name); *at == ' ' || *at == '\t'; at++) continue;
    for (; *at >= '0' && *at <= '9'; at++) number = number * 10 + (uint64_t)(*at - '0');
    return number;
}

__attribute__((destructor)) static void witness_end(void) {
    struct witness_slot* own = slot_own();
    if (!own) return;
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[bytes > 0 ? bytes : 0] = 0;
    own->resident_peak_bytes = status_number(text, "VmHWM:") * 1024;
    own->resident_bytes = status_number(text, "VmRSS:") * 1024;
    own->threads = (uint32_t)status_number(text, "Threads:");
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        own->minor_faults = (uint64_t)usage.ru_minflt;
        own->major_faults = (uint64_t)usage.ru_majflt;
    }
    own->end_ns = clock_ns();
    slot_state(own, WITNESS_ENDED);
}
