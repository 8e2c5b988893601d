/* tests/golden/trace.c: runs the malloc family one instruction at a time and prints where it went.
 *
 * Who may call it: check/golden.py, which compiles it, preloads or links the library, and reads what
 * it prints. It deliberately does not know what an instruction is: it prints addresses, and the
 * disassembly is the caller's affair. Nor does it know which path is the fast one.
 *
 *   trace MODE STEP NAME...     traces each NAME for the sizes 1, 1 + STEP, ... up to 1024
 *     MODE step: the child is single-stepped (ptrace); prints one line for each call:
 *         NAME SIZE OFFSET,OFFSET,~,OFFSET    offsets in the module of NAME; ~ is a stay elsewhere
 *     MODE plain: only calls, between two markers, for an emulator that logs each instruction; prints
 *         base NAME ENTRY BASE END, marks BEGIN END, and call NAME SIZE before all else.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#    include <sys/user.h>
#endif

enum { SIZE_MAX_TRACED = 1024, CALLS_PER_SIZE = 4, WARM_BLOCKS = 16, STEPS_MAX = 1 << 20 };
/* A call that is longer than this took no fast path: the rest of it runs unobserved. */
enum { KEPT_MAX = 128 };
enum { SUBJECTS_MAX = 16 };

/* How a subject is called. A freeing subject gets blocks from `partner`, which is not traced. */
enum kind { KIND_ALLOC, KIND_CALLOC, KIND_FREE, KIND_FREE_SIZED, KIND_PAIR };

struct subject {
    const char* name;
    enum kind kind;
    const char* partner; /* what makes or ends the blocks of this one */
    void* function;
    void* partner_function;
    uintptr_t base, end; /* the module of `function` */
};

static const struct subject known[] = {
    {"malloc", KIND_ALLOC, "free", NULL, NULL, 0, 0},
    {"_Znwm", KIND_ALLOC, "free", NULL, NULL, 0, 0},
    {"calloc", KIND_CALLOC, "free", NULL, NULL, 0, 0},
    {"free", KIND_FREE, "malloc", NULL, NULL, 0, 0},
    {"_ZdlPvm", KIND_FREE_SIZED, "_Znwm", NULL, NULL, 0, 0},
    {"free_sized", KIND_FREE_SIZED, "malloc", NULL, NULL, 0, 0},
    {"_ZdlPv", KIND_FREE, "_Znwm", NULL, NULL, 0, 0},
};

/* Sync: written by the child before it stops at its marker, read by the parent while it is stopped. */
struct shared {
    int subject;
    size_t size;
};
static struct shared* shared;

/* From pair.c, where it is linked in: by reference, because exporting them would also export the
 * library's own symbols from the program, which no ordinary program does. */
__attribute__((weak)) void pair_malloc_free(void);
__attribute__((weak)) void pair_new_delete(void);

static void* pair_find(const char* name) {
    if (strcmp(name, "pair_malloc_free") == 0) return (void*)(uintptr_t)pair_malloc_free;
    if (strcmp(name, "pair_new_delete") == 0) return (void*)(uintptr_t)pair_new_delete;
    return NULL;
}

static struct subject subjects[SUBJECTS_MAX];
static int subject_count;

static void die(const char* what) {
    fprintf(stderr, "trace: %s\n", what);
    exit(2);
}

/* The marker: the parent starts to step where the child stops here; an emulator's log shows it. */
__attribute__((noinline)) static void mark_begin(void) {
#if defined(__x86_64__)
    __asm__ volatile("int3" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
}
__attribute__((noinline)) static void mark_end(void) { __asm__ volatile("nop" ::: "memory"); }
static int marking; /* 0: only warming up */
static FILE* listing;

static void* call_alloc(const struct subject* s, void* function, size_t size) {
    if (s->kind == KIND_CALLOC) return ((void* (*)(size_t, size_t))function)(1, size);
    return ((void* (*)(size_t))function)(size);
}
static void call_free(const struct subject* s, void* function, void* block, size_t size) {
    if (s->kind == KIND_FREE_SIZED)
        ((void (*)(void*, size_t))function)(block, size);
    else
        ((void (*)(void*))function)(block);
}

static void begin(int index, size_t size) {
    if (!marking) return;
    shared->subject = index;
    shared->size = size;
    if (listing)
        fprintf(listing, "call %s %zu\n", subjects[index].name, size);
    else
        mark_begin();
}

static void run_size(int index, size_t size) {
    const struct subject* s = &subjects[index];
    const struct subject plain = {.kind = KIND_ALLOC};
    void* blocks[WARM_BLOCKS];
    if (s->kind == KIND_PAIR) {
        for (int i = 0; i < WARM_BLOCKS + CALLS_PER_SIZE; i++) {
            if (i >= WARM_BLOCKS) begin(index, size);
            ((void (*)(void))s->function)();
            if (i >= WARM_BLOCKS && marking) mark_end();
        }
        return;
    }
    int frees = s->kind == KIND_FREE || s->kind == KIND_FREE_SIZED;
    void* make = frees ? s->partner_function : s->function;
    void* end = frees ? s->function : s->partner_function;
    const struct subject* maker = frees ? &plain : s;
    const struct subject* ender = frees ? s : &plain;
    /* One block stays live, so that no slab becomes empty while the others come and go. */
    void* kept = call_alloc(maker, make, size);
    __asm__ volatile("" : "+r"(kept));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < WARM_BLOCKS; i++) blocks[i] = call_alloc(maker, make, size);
        for (int i = 0; i < WARM_BLOCKS; i++) call_free(ender, end, blocks[i], size);
    }
    for (int i = 0; i < CALLS_PER_SIZE; i++) {
        if (!frees) begin(index, size);
        blocks[i] = call_alloc(maker, make, size);
        if (!frees && marking) mark_end();
    }
    for (int i = 0; i < CALLS_PER_SIZE; i++) {
        if (frees) begin(index, size);
        call_free(ender, end, blocks[i], size);
        if (frees && marking) mark_end();
    }
}

static void run_all(size_t step) {
    for (int i = 0; i < subject_count; i++) {
        size_t top = subjects[i].kind == KIND_PAIR ? 1 : SIZE_MAX_TRACED;
        for (size_t size = 1; size <= top; size += step) run_size(i, size);
    }
}

/* The extent of the module that holds `address`, from its program headers. */
static int module_find(struct dl_phdr_info* info, size_t bytes, void* argument) {
    (void)bytes;
    struct subject* s = argument;
    uintptr_t top = 0;
    int found = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)* header = &info->dlpi_phdr[i];
        if (header->p_type != PT_LOAD) continue;
        uintptr_t from = info->dlpi_addr + header->p_vaddr, to = from + header->p_memsz;
        if (to > top) top = to;
        if ((uintptr_t)s->function >= from && (uintptr_t)s->function < to) found = 1;
    }
    if (!found) return 0;
    s->base = info->dlpi_addr;
    s->end = top;
    return 1;
}

static void subject_add(const char* name) {
    struct subject* s = &subjects[subject_count];
    if (subject_count++ == SUBJECTS_MAX) die("too many names");
    *s = (struct subject){.name = name, .kind = KIND_PAIR};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) *s = known[i];
    s->function = s->kind == KIND_PAIR ? pair_find(name) : dlsym(RTLD_DEFAULT, name);
    s->partner_function = s->partner ? dlsym(RTLD_DEFAULT, s->partner) : NULL;
    if (!s->function || (s->partner && !s->partner_function)) die(name);
    if (!dl_iterate_phdr(module_find, s)) die("module not found");
}

#if defined(__x86_64__)
static uintptr_t path[KEPT_MAX];

/* Steps the child from its marker through one call, or through its first KEPT_MAX instructions; returns the
 * number of steps kept in path. */
static int step_call(pid_t child, const struct subject* s, int* ended) {
    struct user_regs_struct regs;
    uintptr_t entry_sp = 0;
    int kept = 0, status;
    for (int steps = 0; steps < STEPS_MAX; steps++) {
        if (ptrace(PTRACE_SINGLESTEP, child, 0, 0)) die("single step");
        if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
            *ended = 1;
            return kept;
        }
        ptrace(PTRACE_GETREGS, child, 0, &regs);
        if (!entry_sp && regs.rip == (uintptr_t)s->function) entry_sp = regs.rsp;
        if (kept == KEPT_MAX || (entry_sp && regs.rsp > entry_sp)) return kept;
        if (entry_sp) path[kept++] = regs.rip;
    }
    die("a call never returned");
    return 0;
}

static void path_print(const struct subject* s, size_t size, int kept) {
    printf("%s %zu ", s->name, size);
    int outside = 0;
    for (int i = 0; i < kept; i++) {
        int inside = path[i] >= s->base && path[i] < s->end;
        if (inside)
            printf("%s%lx", i ? "," : "", (unsigned long)(path[i] - s->base));
        else if (!outside)
            printf(",~");
        outside = !inside;
    }
    putchar('\n');
}

static int run_stepped(size_t step) {
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        run_all(step); /* warm, not marked */
        marking = 1;
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) die("ptrace is not allowed here");
        raise(SIGSTOP);
        run_all(step);
        _exit(0);
    }
    int status, ended = 0;
    while (!ended && waitpid(child, &status, 0) == child) {
        if (WIFEXITED(status)) return WEXITSTATUS(status);
        if (WIFSIGNALED(status)) die("the child died of a signal");
        int by = WSTOPSIG(status);
        if (by == SIGTRAP) {
            const struct subject* s = &subjects[shared->subject];
            path_print(s, shared->size, step_call(child, s, &ended));
        }
        ptrace(PTRACE_CONT, child, 0, by == SIGTRAP || by == SIGSTOP ? 0 : by);
    }
    return 2;
}
#else
static int run_stepped(size_t step) {
    (void)step;
    die("mode step is for x86-64");
    return 2;
}
#endif

/* The calls are listed first, by a dry run, so that the log of the emulator holds nothing else. */
static int run_plain(size_t step) {
    for (int i = 0; i < subject_count; i++)
        printf("base %s %lx %lx %lx\n", subjects[i].name, (unsigned long)(uintptr_t)subjects[i].function,
               (unsigned long)subjects[i].base, (unsigned long)subjects[i].end);
    printf("marks %lx %lx\n", (unsigned long)(uintptr_t)mark_begin, (unsigned long)(uintptr_t)mark_end);
    marking = 1;
    listing = stdout;
    run_all(step);
    fflush(stdout);
    listing = NULL;
    run_all(step);
    return 0;
}

int main(int count, char** arguments) {
    if (count < 4) die("usage: trace step|plain STEP NAME...");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) die("mmap");
    for (int i = 3; i < count; i++) subject_add(arguments[i]);
    size_t step = (size_t)atoi(arguments[2]);
    if (step == 0) die("STEP must be positive");
    return strcmp(arguments[1], "step") == 0 ? run_stepped(step) : run_plain(step);
}
