// stepping.h: a handler between the instructions of a piece of code. x86-64 alone, and no sanitizers of
// memory or threads.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_UNIT_STEPPING_H
#define WEIR_UNIT_STEPPING_H

#include <csignal>
#include <ucontext.h>

#if defined(__has_feature)
#    if __has_feature(undefined_behavior_sanitizer)
#        define UNIT_CHECKED 1
#    endif
#endif
#ifndef UNIT_CHECKED
#    define UNIT_CHECKED 0
#endif

#if defined(__x86_64__)
// Such checks are what a build of theirs is about: they make several instructions of one, and each child
// slow. The steps at which something comes are as many times further apart there; at all of them it comes in
// the others.
constexpr unsigned stepping_apart = UNIT_CHECKED ? 5 : 1;

// From here on `step` runs after each instruction of the calling thread, until stepping_stop.
inline void stepping_start(void (*step)(int, siginfo_t*, void*)) {
    struct sigaction action = {};
    action.sa_sigaction = step;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &action, nullptr);
    __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" : : : "memory", "cc");
}
inline void stepping_stop() { __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" : : : "memory", "cc"); }
// By the handler: what it returns to runs without it.
inline void stepping_ends(void* context) {
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~0x100ll;
}
#endif

#endif
