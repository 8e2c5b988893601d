/* switch_hand.c: fibers by a switch written in assembly, as fiber libraries have them.
 *
 * The switch saves the registers that a call keeps, and the stack pointer; nothing else is known to it, the
 * thread pointer least of all. A separate function, in no translation unit that LTO sees.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fiber.h"

/* Saves where the caller is to *save and goes on at `to`. */
void fiber_switch(void** save, void* to);

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl fiber_switch\n"
        ".hidden fiber_switch\n"
        ".type fiber_switch, @function\n"
        "fiber_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size fiber_switch, . - fiber_switch\n");
/* What the first switch pops: six registers, the entry, and the place of its return address. */
enum { FRAME_WORDS = 8, FRAME_ENTRY = 6 };
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl fiber_switch\n"
        ".hidden fiber_switch\n"
        ".type fiber_switch, %function\n"
        "fiber_switch:\n"
        "    stp x29, x30, [sp, #-160]!\n"
        "    stp x19, x20, [sp, #16]\n"
        "    stp x21, x22, [sp, #32]\n"
        "    stp x23, x24, [sp, #48]\n"
        "    stp x25, x26, [sp, #64]\n"
        "    stp x27, x28, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #16]\n"
        "    ldp x21, x22, [sp, #32]\n"
        "    ldp x23, x24, [sp, #48]\n"
        "    ldp x25, x26, [sp, #64]\n"
        "    ldp x27, x28, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    ldp x29, x30, [sp], #160\n"
        "    ret\n"
        ".size fiber_switch, . - fiber_switch\n");
enum { FRAME_WORDS = 20, FRAME_ENTRY = 1 };
#endif

#define FIBER_SWITCH(f) fiber_switch(&(f)->context, (f)->resumer)

struct hand_fiber {
    _Alignas(16) char stack[FIBER_STACK_BYTES];
};

/* Sync: the fiber that a worker is about to start; each worker reads what it wrote itself. */
static _Thread_local struct fiber* starting;

__attribute__((noinline, used)) void fiber_body_hand(struct fiber* f);
void fiber_body_hand(struct fiber* f) {
#include "body.h"
}

__attribute__((noinline)) static void fiber_entry(void) {
    struct fiber* f = starting;
    fiber_body_hand(f);
    f->ended = 1;
    fiber_switch(&f->context, f->resumer);
    abort();
}

static void* stacks[1024];

static void fiber_make(struct fiber* fiber) {
    struct hand_fiber* h = malloc(sizeof *h);
    if (h == NULL) abort();
    stacks[fiber->number] = h;
    /* The entry finds its stack as after a call: 8 bytes off a multiple of 16 on x86-64, on one elsewhere. */
    void** frame = (void**)(void*)(h->stack + sizeof h->stack) - FRAME_WORDS;
    for (unsigned i = 0; i < FRAME_WORDS; i++) frame[i] = NULL;
    frame[FRAME_ENTRY] = (void*)(uintptr_t)fiber_entry;
    fiber->context = frame;
}

static void fiber_resume(struct fiber* fiber) {
    starting = fiber;
    fiber_switch(&fiber->resumer, fiber->context);
}

static void fiber_drop(struct fiber* fiber) { free(stacks[fiber->number]); }

const struct fiber_kind fiber_kind_hand = {"hand", fiber_make, fiber_resume, fiber_drop};
