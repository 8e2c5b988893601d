// stepping.h: a handler between the instructions of a piece of code. x86-64 alone, and no sanitizers of
// memory or threads.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_UNIT_STEPPING_H
#define WEIR_UNIT_STEPPING_H

#include "child.h"
#include <csignal>
#include <ucontext.h>

#if defined(__x86_64__)
// UBSan makes several instructions of one, and children slow: tests take every fifth of their steps there.
constexpr unsigned stepping_apart = unit_ubsan ? 5 : 1;

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
