/* switch_ucontext.c: fibers by swapcontext of libc.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fiber.h"

#include <ucontext.h>

#if FIBER_POOLS
WEIR_POOL_DEFINE(fiber_pool, FIBER_POOLED_BYTES, 0, 0); /* of all kinds */
#endif

struct ucontext_fiber {
    ucontext_t own;
    _Alignas(16) char stack[FIBER_STACK_BYTES];
};

#define FIBER_SWITCH(f) swapcontext(&((struct ucontext_fiber*)(f)->context)->own, (ucontext_t*)(f)->resumer)

/* makecontext passes ints. */
__attribute__((noinline, used)) void fiber_body_ucontext(unsigned high, unsigned low);
void fiber_body_ucontext(unsigned high, unsigned low) {
    struct fiber* f = (struct fiber*)((uintptr_t)high << 32 | low);
#include "body.h"
    f->ended = 1;
    setcontext((ucontext_t*)f->resumer);
}

static void fiber_make(struct fiber* fiber) {
    struct ucontext_fiber* u = malloc(sizeof *u);
    if (u == NULL || getcontext(&u->own) != 0) abort();
    u->own.uc_stack.ss_sp = u->stack;
    u->own.uc_stack.ss_size = sizeof u->stack;
    u->own.uc_link = NULL;
    makecontext(&u->own, (void (*)(void))fiber_body_ucontext, 2, (unsigned)((uintptr_t)fiber >> 32),
                (unsigned)(uintptr_t)fiber);
    fiber->context = u;
}

static void fiber_resume(struct fiber* fiber) {
    ucontext_t here;
    fiber->resumer = &here;
    swapcontext(&here, &((struct ucontext_fiber*)fiber->context)->own);
}

static void fiber_drop(struct fiber* fiber) { free(fiber->context); }

const struct fiber_kind fiber_kind_ucontext = {"ucontext", fiber_make, fiber_resume, fiber_drop};
