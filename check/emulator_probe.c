/* emulator_probe.c: whether this machine keeps memory tags: those of two threads that store the first
 * tags of the same pages at the same time are all there afterwards, and an access with another tag faults.
 *
 * check/emulator.sh runs it under each emulator that it finds. Prints one line; exits 0 when all is well.
 * It knows nothing of the library.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum {
    THREADS = 2,
    PAGES = 16384,
    PAGE = 4096,
    PROT_TAGGED = 0x20,       /* PROT_MTE */
    HWCAP2_TAGGING = 1 << 18, /* HWCAP2_MTE */
    SET_TAGGED = 55,          /* PR_SET_TAGGED_ADDR_CTRL */
    SYNC = 1 << 1,            /* PR_MTE_TCF_SYNC */
    TAG_FAULT = 9,            /* SEGV_MTESERR */
};

static char* base;
static volatile unsigned long step[THREADS];
static sigjmp_buf back;
static volatile int fault_code;

static uintptr_t place(unsigned long page, unsigned thread) {
    return (uintptr_t)base + page * PAGE + thread * (PAGE / THREADS);
}
static uintptr_t tagged(uintptr_t at, unsigned tag) { return at | (uintptr_t)tag << 56; }
static unsigned tag_read(uintptr_t at) {
    __asm__ volatile("ldg %0, [%0]" : "+r"(at));
    return at >> 56 & 15;
}
static void tag_store(uintptr_t at) { __asm__ volatile("stg %0, [%0]" : : "r"(at) : "memory"); }

static void* worker(void* arg) {
    unsigned me = (unsigned)(uintptr_t)arg;
    for (unsigned long page = 0; page < PAGES; page++) {
        step[me] = page + 1;
        for (unsigned spins = 0; step[1 - me] < page + 1; spins++)
            if (spins >= 1u << 20) sched_yield(); /* the other one has to be right here, not woken */
        tag_store(tagged(place(page, me), me + 1));
    }
    return NULL;
}

static void on_fault(int number, siginfo_t* info, void* context) {
    (void)number, (void)context;
    fault_code = info->si_code;
    siglongjmp(back, 1);
}

/* The code of the fault that a read through a pointer with this tag makes, or 0. */
static int fault_of(unsigned tag) {
    fault_code = 0;
    if (sigsetjmp(back, 1) == 0) (void)*(volatile char*)tagged(place(7, 0), tag);
    return fault_code;
}

int main(void) {
    pthread_t threads[THREADS];
    unsigned long lost = 0;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    if ((getauxval(AT_HWCAP2) & HWCAP2_TAGGING) == 0) return puts("no memory tagging"), 2;
    if (prctl(SET_TAGGED, 1 | SYNC | 0xfffe << 3, 0, 0, 0) != 0) return puts("tag checks cannot be set"), 2;
    base = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE | PROT_TAGGED, MAP_PRIVATE | MAP_ANONYMOUS,
                -1, 0);
    if (base == MAP_FAILED) return puts("no memory that carries tags"), 2;
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, worker, (void*)(uintptr_t)i) != 0) return 3;
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (unsigned long page = 0; page < PAGES; page++)
        for (unsigned i = 0; i < THREADS; i++) lost += tag_read(place(page, i)) != i + 1;
    sigaction(SIGSEGV, &action, NULL);
    if (lost != 0) return printf("%lu of %d tags are lost\n", lost, PAGES * THREADS), 1;
    if (fault_of(1) != 0) return puts("an access with the right tag faults"), 1;
    if (fault_of(2) != TAG_FAULT) return puts("an access with a wrong tag does not fault"), 1;
    return puts("keeps tags"), 0;
}
