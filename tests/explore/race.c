/* race.c: the race that lock-free free lists have, made to happen: a thread has read the list's head and is
 * about to read the next pointer out of the object when another thread takes that object and gives it back to
 * the OS.
 *
 * Who may call it: ctest, or a person. The same schedule on three things: a free list whose head is changed
 * together with a counter (as by a double-word compare and swap), which must be killed each time; the slots
 * of weir's pools, by slot.h as it is, which must survive at whatever step the first thread is held; and, so
 * that it is seen to be the reading that kills, the list with objects that stay mapped. The list is here to
 * be killed and nowhere else.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "atomic.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool/magazine.h"

enum { OBJECT_BYTES = 2097152, OBJECTS = 2, REPEATS = 20, STEPS_MAX = 64 };

/* ---- The schedule: before its step number `hold_at` the first thread waits until the other has done its
 * part. */

static _Thread_local bool is_first;
static unsigned hold_at;
static unsigned steps;
static void* (*other_part)(void*);

void explore_saw(uintptr_t value) { (void)value; }

void explore_step(void) {
    if (!is_first || steps++ != hold_at) return;
    pthread_t other;
    if (pthread_create(&other, NULL, other_part, NULL) != 0) _exit(99);
    pthread_join(other, NULL);
}

static void* object_from_os(void) {
    void* p = mmap(NULL, OBJECT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) _exit(99);
    return p;
}
static bool keeps_mapped;
static void object_to_os(void* p) {
    if (!keeps_mapped) munmap(p, OBJECT_BYTES);
}

/* ---- The list: a counter in the upper 16 bits of the head makes the compare fail when anything happened. */

struct link {
    struct link* next;
};
static uint64_t head;
enum { POINTER_BITS = 48 };
static struct link* head_link(uint64_t word) { return (struct link*)(word & ((1ull << POINTER_BITS) - 1)); }
static uint64_t head_next(uint64_t word, struct link* to) {
    return ((word >> POINTER_BITS) + 1) << POINTER_BITS | (uint64_t)(uintptr_t)to;
}

static void* list_get(void) {
    uint64_t seen = load_relaxed(&head);
    for (;;) {
        struct link* first = head_link(seen);
        if (first == NULL) return NULL;
        struct link* next = load_relaxed(&first->next); /* the race: the object may be the OS's by now */
        if (cas_acq_rel(&head, &seen, head_next(seen, next))) return first;
    }
}

static void list_put(void* p) {
    struct link* l = p;
    uint64_t seen = load_relaxed(&head);
    do l->next = head_link(seen);
    while (!cas_acq_rel(&head, &seen, head_next(seen, l)));
}

/* The caches are too crowded for what it frees. */
static void* list_other(void* unused) {
    void* p = list_get();
    if (p != NULL) object_to_os(p);
    return unused;
}

static void list_run(void) {
    for (unsigned i = 0; i < OBJECTS; i++) list_put(object_from_os());
    other_part = list_other;
    is_first = true;
    void* p = list_get();
    is_first = false;
    if (p != NULL) memset(p, 1, OBJECT_BYTES);
}

/* ---- The pool's slots, with magazines of one object as at this size. */

static _Alignas(64) unsigned char tier_room[sizeof(struct tier) + 4 * sizeof(struct slot)];
static struct tier* const tier = (struct tier*)(void*)tier_room;
static _Alignas(64) unsigned char magazine_room[OBJECTS][64];

static void* slots_get(void) {
    struct tier_place at = {0, OBJECTS, 0, 0};
    uintptr_t word = tier_take(tier, &at);
    if (word == 0) return object_from_os();
    struct magazine* m = magazine_of(word);
    return m->objects[--m->count];
}

static void* slots_other(void* unused) {
    object_to_os(slots_get());
    return unused;
}

static void slots_run(void) {
    tier_shape(tier, 2, 2);
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct magazine* m = (struct magazine*)(void*)magazine_room[i];
        m->capacity = m->count = 1;
        m->objects[0] = object_from_os();
        struct tier_place at = {0, i, 0, 0};
        if (!tier_put(tier, &at, magazine_word(m))) _exit(98);
    }
    other_part = slots_other;
    is_first = true;
    void* p = slots_get();
    is_first = false;
    memset(p, 1, OBJECT_BYTES); /* it is this thread's, and mapped */
}

/* ---- Verdicts. */

static unsigned passed;
static unsigned failed;

static void judge(bool good, const char* what, unsigned at) {
    good ? passed++ : failed++;
    if (!good) printf("FAIL %s, held before step %u\n", what, at);
}

/* The signal that ended the run, 0 for none; *made: steps that the first thread made, where it lived. */
static int ends_by(void (*body)(void), unsigned at, unsigned* made) {
    unsigned* shown = mmap(NULL, sizeof *shown, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        alarm(60);
        hold_at = at;
        body();
        *shown = steps;
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    *made = *shown;
    munmap(shown, sizeof *shown);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(void) {
    enum { BETWEEN = 1 }; /* after the head was read, before the next pointer is */
    unsigned made;
    for (unsigned i = 0; i < REPEATS; i++)
        judge(ends_by(list_run, BETWEEN, &made) == SIGSEGV, "the list survived", BETWEEN);
    keeps_mapped = true;
    judge(ends_by(list_run, BETWEEN, &made) == 0, "the list died though nothing was unmapped", BETWEEN);
    keeps_mapped = false;
    judge(ends_by(slots_run, STEPS_MAX, &made) == 0 && made >= 2 && made < STEPS_MAX, "the slots died alone",
          STEPS_MAX);
    unsigned all = made + 6; /* with the other thread come more steps */
    for (unsigned i = 0; i < REPEATS; i++)
        for (unsigned at = 0; at < all; at++) judge(ends_by(slots_run, at, &made) == 0, "the slots died", at);
    printf("held before each of the first %u steps\n%u passed, %u failed\n", all, passed, failed);
    return failed != 0;
}
