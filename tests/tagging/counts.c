/* counts.c: so many allocations and frees of one size, for counting what instructions they take.
 *
 *   counts SHAPE BYTES PAIRS     pair: malloc and free, again and again; set: a set of 1000 blocks, of which
 * one after the other, at random, is freed and allocated anew; loop: neither counts tag prints the tag of a
 * fresh block
 *
 * counts.py calls it, with an allocator preloaded, and has the emulator write down each instruction. It
 * knows no allocator, but that scudo tags wherever it can, unless told by a call of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include "tags.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { SET = 1000 };
static void* set[SET];

__attribute__((noinline)) static void run_pair(size_t bytes, unsigned long pairs) {
    for (unsigned long i = 0; i < pairs; i++) free(hide(malloc(bytes)));
}
__attribute__((noinline)) static void run_loop(size_t bytes, unsigned long pairs) {
    for (unsigned long i = 0; i < pairs; i++) hide((void*)bytes);
}
__attribute__((noinline)) static void run_set(size_t bytes, unsigned long pairs) {
    unsigned random = 1;
    for (unsigned i = 0; i < SET; i++) set[i] = malloc(bytes);
    for (unsigned long i = 0; i < pairs; i++) {
        random = random * 1664525u + 1013904223u;
        unsigned at = (random >> 8) % SET;
        free(set[at]);
        set[at] = malloc(bytes);
    }
}

static void tags_disable(void) {
    void (*call)(void);
    void* symbol = dlsym(RTLD_DEFAULT, "malloc_disable_memory_tagging");
    if (symbol == NULL) return;
    memcpy(&call, &symbol, sizeof call);
    call();
}

int main(int argc, char** argv) {
    if (getenv("COUNTS_TAGS_OFF") != NULL) tags_disable();
    if (argc == 2 && strcmp(argv[1], "tag") == 0) {
        say("%u\n", tag_of(hide(malloc(40))));
        return 0;
    }
    if (argc != 4) return 2;
    size_t bytes = strtoul(argv[2], NULL, 10);
    unsigned long pairs = strtoul(argv[3], NULL, 10);
    if (strcmp(argv[1], "pair") == 0) run_pair(bytes, pairs);
    if (strcmp(argv[1], "set") == 0) run_set(bytes, pairs);
    if (strcmp(argv[1], "loop") == 0) run_loop(bytes, pairs);
    return 0;
}
