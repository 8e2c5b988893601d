/* misuse.c: a program that misuses its heap in one way, named on the command line.
 *
 *   misuse --list           the cases, with what the default mode owes each
 *   misuse CASE             do it; stdout: the line to expect on stderr, then `survived` if it came to that
 *   misuse rates ...        random programs with one misuse each; see rates.c
 *
 * run.py and rates.py call it, with an allocator preloaded or linked. It knows no allocator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "misuse.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

void (*misuse_free_sized)(void* p, size_t size);
void (*misuse_free_aligned_sized)(void* p, size_t align, size_t size);
extern void free_sized(void* p, size_t size) __attribute__((weak));
extern void free_aligned_sized(void* p, size_t align, size_t size) __attribute__((weak));

void misuse_print(int fd, const char* format, ...) {
    char line[512];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (n > 0 && write(fd, line, (size_t)n) != n) _exit(4);
}

static void* thread_free(void* p) {
    free(p);
    return NULL;
}

void misuse_free_remote(void* p) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, thread_free, p) != 0) _exit(4);
    pthread_join(thread, NULL);
}

void misuse_churn(size_t size) {
    enum { slots = 512 };
    static void* held[slots];
    uint64_t x = 88172645463325252ull;
    if (size > 65536) size = 65536;
    for (unsigned i = 0; i < 20000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        unsigned slot = (unsigned)(x >> 32) % slots;
        free(held[slot]);
        held[slot] = (x & 7) < 6 ? malloc(size) : (x & 7) == 6 ? malloc(size / 2 + 1) : NULL;
        if (held[slot] != NULL) memset(held[slot], 0x33, 16 < size / 2 + 1 ? 16 : 1);
    }
    for (unsigned i = 0; i < slots; i++) free(held[i]);
}

static void lookup(void) {
    void* symbol;
    misuse_free_sized = free_sized;
    misuse_free_aligned_sized = free_aligned_sized;
    if (misuse_free_sized == NULL && (symbol = dlsym(RTLD_DEFAULT, "free_sized")) != NULL)
        memcpy(&misuse_free_sized, &symbol, sizeof symbol);
    if (misuse_free_aligned_sized == NULL && (symbol = dlsym(RTLD_DEFAULT, "free_aligned_sized")) != NULL)
        memcpy(&misuse_free_aligned_sized, &symbol, sizeof symbol);
}

int main(int argc, char** argv) {
    static const char* const late_names[] = {"call", "soon", "maybe"};
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none); /* hundreds of aborts follow */
    lookup();
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (unsigned i = 0; i < misuse_case_count; i++)
            misuse_print(STDOUT_FILENO, "%s %s\n", misuse_cases[i].name, late_names[misuse_cases[i].late]);
        return 0;
    }
    if (argc >= 2 && strcmp(argv[1], "rates") == 0) return rates_main(argc - 2, argv + 2);
    for (unsigned i = 0; argc == 2 && i < misuse_case_count; i++) {
        const struct misuse_case* c = &misuse_cases[i];
        if (strcmp(argv[1], c->name) != 0) continue;
        if (strncmp(c->call, "free_sized", 10) == 0 && misuse_free_sized == NULL) return 77;
        if (strncmp(c->call, "free_aligned_sized", 18) == 0 && misuse_free_aligned_sized == NULL) return 77;
        c->run(c);
        misuse_churn(c->size != 0 ? c->size : 64);
        misuse_print(STDOUT_FILENO, "survived\n");
        return 0;
    }
    misuse_print(STDERR_FILENO,
                 "usage: misuse --list | CASE | rates --kind KIND --seed S --rounds N | rates --list\n");
    return 2;
}
