/* witness.c: see witness.h. Allocates nothing itself, so that what it counts is not its own.
 *
 * Built into the probe, and as a library for program.py. It knows five shapes of functions and no allocator's
 * headers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "witness.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 128, SLACK_BYTES = 4096, ADDRESS_BITS = 48, AROUND_BYTES = 64 << 10 };

typedef bool (*ask)(const void* block, size_t size);

static ask witness_ask;
static void* witness_function;
static int witness_answer;

/* bool and enum both answer in the lowest byte. */
static bool ask_owns(const void* block, size_t size) {
    (void)size;
    return ((unsigned char (*)(const void*))witness_function)(block) == witness_answer;
}

static bool ask_size(const void* block, size_t size) {
    size_t said = ((size_t (*)(const void*))witness_function)(block);
    return said >= size && said < (size_t)1 << ADDRESS_BITS;
}

static bool ask_end(const void* block, size_t size) {
    uintptr_t end = (uintptr_t)((void* (*)(const void*))witness_function)(block);
    uintptr_t start = (uintptr_t)block;
    return end >= start + size && end - start <= 2 * size + SLACK_BYTES;
}

/* Never falls, whatever is freed. */
static bool ask_bytes(const void* block, size_t size) {
    static _Thread_local uint64_t before;
    uint64_t now = 0, grown;
    size_t length = sizeof now;
    (void)block;
    ((int (*)(const char*, void*, size_t*, void*, size_t))witness_function)("thread.allocated", &now, &length,
                                                                            NULL, 0);
    grown = now - before;
    before = now;
    return grown >= size;
}

struct seen {
    uintptr_t block;
    bool found;
};

static void seen_block(uintptr_t block, size_t size, void* argument) {
    struct seen* seen = argument;
    (void)size;
    if (block == seen->block) seen->found = true;
}

/* The allocator has to stand still while it is walked. The walk is by the starts of what holds the blocks,
 * which lie before them: by a header, or by as much as an alignment takes. */
static bool ask_iterate(const void* block, size_t size) {
    void (*halt)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "malloc_disable");
    void (*resume)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "malloc_enable");
    struct seen seen = {(uintptr_t)block, false};
    if (!halt || !resume) return false;
    halt();
    ((int (*)(uintptr_t, size_t, void (*)(uintptr_t, size_t, void*), void*))witness_function)(
        seen.block - AROUND_BYTES, size + AROUND_BYTES, seen_block, &seen);
    resume();
    return seen.found;
}

static const struct {
    const char* name;
    ask ask;
} kinds[] = {
    {"owns", ask_owns}, {"size", ask_size}, {"end", ask_end}, {"bytes", ask_bytes}, {"iterate", ask_iterate}};

int witness_open(const char* spec) {
    char kind[NAME_MAX_BYTES], function[NAME_MAX_BYTES];
    if (strcmp(spec, "none") == 0) return 0;
    if (sscanf(spec, "%127[^:]:%127[^:]:%d", kind, function, &witness_answer) != 3) return -1;
    witness_function = dlsym(RTLD_DEFAULT, function);
    if (!witness_function) return -1;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (strcmp(kind, kinds[k].name) == 0) witness_ask = kinds[k].ask;
    }
    return witness_ask ? 0 : -1;
}

int witness_owns(const void* block, size_t size) { return witness_ask ? witness_ask(block, size) : -1; }
