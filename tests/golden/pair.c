/* tests/golden/pair.c: pairs of allocation and free of constant size, for link-time optimisation to
 * melt together with the library.
 *
 * Who may call it: check/golden.py links it with trace.c and weir.o and traces each function; what is
 * counted is the whole function. It deliberately knows nothing of the library: it is what a program
 * would write. The barrier keeps the compiler from removing the pair as unused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stddef.h>
#include <stdlib.h>

void* weir_golden_new(size_t size) __asm__("_Znwm");
void weir_golden_delete(void* block, size_t size) __asm__("_ZdlPvm");

#define EXPORTED __attribute__((noinline, used, retain, visibility("default")))
enum { PAIR_BYTES = 64 };

EXPORTED void pair_malloc_free(void);
EXPORTED void pair_new_delete(void);

void pair_malloc_free(void) {
    void* block = malloc(PAIR_BYTES);
    __asm__ volatile("" : "+r"(block) : : "memory");
    free(block);
}

void pair_new_delete(void) {
    void* block = weir_golden_new(PAIR_BYTES);
    __asm__ volatile("" : "+r"(block) : : "memory");
    weir_golden_delete(block, PAIR_BYTES);
}
