/* guarded.c: a program that misuses one block of 100 bytes, which is guarded (guard_rate=1).
 *
 *   misuse_guarded --list    the cases: name, and the signal that the default mode ends it with, or `none`
 *   misuse_guarded CASE      do it; stdout: the line to expect on stderr, then `survived` if it came to that
 *
 * guarded.py calls it, with an allocator preloaded. Distances are for pages of 4096 bytes. It knows no
 * allocator, but that the block lies at an end of its page.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BYTES = 100, PAGE = 4096 };

static char* volatile block; /* hidden from the compiler, which would see the misuse coming */
static volatile char sink;

__attribute__((format(printf, 1, 2))) static void say(const char* format, ...) {
    char line[512];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (n > 0 && write(STDOUT_FILENO, line, (size_t)n) != n) _exit(4);
}
static void expect(const char* code, const char* what, const char* behind) {
    say("expect weir: %s: %s0x%zx%s; see docs/errors/%s.md\n", code, what, (size_t)(uintptr_t)block, behind,
        code);
}

/* At the end of its page, or at its start. */
static void take(int right) {
    for (int i = 0; i < 1000; i++) {
        block = malloc(BYTES);
        if (((uintptr_t)block % PAGE == 0) == !right) return;
        free(block);
    }
    _exit(3); /* it is not guarded */
}

static void overflow_within_granule(void) {
    take(1);
    expect("guard-overflow", "written 0 bytes behind the end of block ", " of 100 bytes, found in free");
    block[100] = 0;
    free(block);
}
static void overflow_past_granule(void) {
    take(1);
    expect("guard-overflow", "write 12 bytes behind the end of block ", " of 100 bytes");
    block[112] = 1;
}
static void overflow_by_16(void) {
    take(1);
    expect("guard-overflow", "read 16 bytes behind the end of block ", " of 100 bytes");
    sink = block[116];
}
static void overflow_by_4096(void) {
    take(0);
    expect("guard-overflow", "write 4096 bytes behind the end of block ", " of 100 bytes");
    block[4196] = 1;
}
static void overflow_realloc(void) {
    take(1);
    do block = realloc(block, 128);
    while ((uintptr_t)block % PAGE == 0);
    expect("guard-overflow", "write 0 bytes behind the end of block ", " of 128 bytes");
    block[128] = 1;
}
static void underflow(void) {
    take(0);
    expect("guard-underflow", "write 1 bytes before block ", " of 100 bytes");
    block[-1] = 1;
}
static void underflow_found_late(void) {
    take(1);
    expect("guard-underflow", "written 1 bytes before block ", " of 100 bytes, found in free");
    block[-1] = 1;
    free(block);
}
static void freed_read(void) {
    take(1);
    free(block);
    expect("guard-use-after-free", "read at byte 8 of freed block ", " of 100 bytes");
    sink = block[8];
}
static void freed_write(void) {
    take(1);
    free(block);
    expect("guard-use-after-free", "write at byte 99 of freed block ", " of 100 bytes");
    block[99] = 1;
}
static void* thread_free(void* p) {
    free(p);
    return NULL;
}
static void freed_by_thread(void) {
    pthread_t thread;
    take(1);
    char* p = block;
    if (pthread_create(&thread, NULL, thread_free, p) != 0) _exit(4);
    pthread_join(thread, NULL);
    expect("guard-use-after-free", "read at byte 0 of freed block ", " of 100 bytes");
    sink = block[0];
}
static void freed_by_realloc(void) {
    take(1);
    char* moved = realloc(block, 101);
    expect("guard-use-after-free", "read at byte 1 of freed block ", " of 100 bytes");
    sink = block[1];
    free(moved);
}
static void double_free(void) {
    take(1);
    free(block);
    expect("double-free", "already freed ", " in free");
    free(block);
}
static void invalid_free(void) {
    take(1);
    char* p = block;
    block += 16;
    expect("invalid-free", "not the start of a block ", " in free");
    free(block);
    block = p;
}
static void freed_usable_size(void) {
    take(1);
    free(block);
    expect("double-free", "already freed ", " in malloc_usable_size");
    (void)malloc_usable_size(block);
}

/* A handler that the program installs gets its own faults without a word, and those of guarded blocks behind
 * the report. */
static void own_handler(int number, siginfo_t* info, void* context) {
    (void)number, (void)context;
    void* at = (void*)((uintptr_t)info->si_addr & -(uintptr_t)PAGE);
    mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}
static void freed_with_handler(void) {
    struct sigaction action = {.sa_sigaction = own_handler, .sa_flags = SA_SIGINFO};
    take(1);
    sigaction(SIGSEGV, &action, NULL);
    char* other = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *(volatile char*)other = 1;
    free(block);
    expect("guard-use-after-free", "read at byte 0 of freed block ", " of 100 bytes");
    sink = block[0];
}

static const struct {
    const char* name;
    const char* ends;
    void (*run)(void);
} cases[] = {
    {"overflow-within-granule", "SIGABRT", overflow_within_granule},
    {"overflow-past-granule", "SIGSEGV", overflow_past_granule},
    {"overflow-by-16", "SIGSEGV", overflow_by_16},
    {"overflow-by-4096", "SIGSEGV", overflow_by_4096},
    {"overflow-after-realloc", "SIGSEGV", overflow_realloc},
    {"underflow", "SIGSEGV", underflow},
    {"underflow-found-late", "SIGABRT", underflow_found_late},
    {"freed-read", "SIGSEGV", freed_read},
    {"freed-write", "SIGSEGV", freed_write},
    {"freed-by-thread", "SIGSEGV", freed_by_thread},
    {"freed-by-realloc", "SIGSEGV", freed_by_realloc},
    {"double-free", "SIGABRT", double_free},
    {"invalid-free", "SIGABRT", invalid_free},
    {"freed-usable-size", "SIGABRT", freed_usable_size},
    {"freed-with-handler", "none", freed_with_handler},
};

int main(int argc, char** argv) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(argv[1], "--list") == 0) say("%s %s\n", cases[i].name, cases[i].ends);
        if (strcmp(argv[1], cases[i].name) != 0) continue;
        cases[i].run();
        say("survived\n");
    }
    return 0;
}
