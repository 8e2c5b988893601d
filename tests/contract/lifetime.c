/* lifetime.c: the heap before constructors, in constructors, during exit and after it.
 *
 * Who may call it: tests/contract/run.py. Blocks are made in the preinit array (before the libraries'
 * constructors), in the first constructor and in main, and freed in exit handlers and in the last
 * destructor, which gives the verdict.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

enum { STAGES = 3, COUNT = 200 };

static void* blocks[STAGES][COUNT];
static int stages_made;
static int handlers_run;
static char* line; /* made by stdio, freed in the destructor */

static size_t size_at(int i) { return (size_t)i * (size_t)i * 7 + 1; }

static void make(int stage) {
    for (int i = 0; i < COUNT; i++) {
        blocks[stage][i] = i % 3 == 0 ? calloc(1, size_at(i)) : malloc(size_at(i));
        EXPECT(blocks[stage][i] != NULL);
        EXPECT_GE(malloc_usable_size(blocks[stage][i]), size_at(i));
        contract_fill(blocks[stage][i], size_at(i), (unsigned)(stage + i));
    }
    stages_made++;
}

/* Checks and replaces a third of every stage's blocks. */
static void churn(int third) {
    for (int stage = 0; stage < STAGES; stage++)
        for (int i = third; i < COUNT; i += 3) {
            EXPECT(contract_holds(blocks[stage][i], size_at(i), (unsigned)(stage + i)));
            blocks[stage][i] = realloc(blocks[stage][i], size_at(i) * 2 + 1);
            EXPECT(contract_holds(blocks[stage][i], size_at(i), (unsigned)(stage + i)));
        }
}

static void at_preinit(void) {
    contract_begin();
    make(0);
}
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = at_preinit;

__attribute__((constructor(101))) static void first_constructor(void) { make(1); }

__attribute__((destructor(101))) static void last_destructor(void) {
    EXPECT_EQ(handlers_run, 3);
    for (int stage = 0; stage < STAGES; stage++)
        for (int i = 0; i < COUNT; i++) {
            EXPECT(contract_holds(blocks[stage][i], size_at(i), (unsigned)(stage + i)));
            free(blocks[stage][i]);
        }
    free(line);
    for (size_t n = 1; n < 1 << 22; n *= 2) {
        void* p = malloc(n);
        EXPECT(p != NULL);
        free(p);
    }
    fflush(stdout);
    _exit(contract_end());
}

static void at_exit(void) {
    handlers_run++;
    churn(0);
}

static void on_exit_handler(int code, void* argument) {
    EXPECT_EQ(code, 3);
    EXPECT(strcmp(argument, "an argument from the heap") == 0);
    free(argument);
    handlers_run++;
    churn(1);
}

static void at_exit_nested(void) {
    handlers_run++;
    churn(2);
}

static void at_exit_that_registers(void) { EXPECT_EQ(atexit(at_exit_nested), 0); }

static void at_exit_small(void) { free(malloc(contract_opaque(64))); }

int main(void) {
    EXPECT_EQ(stages_made, 2);
    make(2);
    for (int i = 0; i < 40; i++) /* past the handlers that libc holds without the heap */
        EXPECT_EQ(atexit(i == 20 ? at_exit : i == 30 ? at_exit_that_registers : at_exit_small), 0);
    EXPECT_EQ(on_exit(on_exit_handler, strdup("an argument from the heap")), 0);
    size_t size = 0;
    FILE* file = fopen("/proc/self/cmdline", "r");
    EXPECT(file != NULL && getline(&line, &size, file) > 0);
    fclose(file);
    exit(3);
}
