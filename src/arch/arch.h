/* arch.h: the one word per thread, and what else differs between processors.
 *
 * `arch_thread_word()` returns the calling thread's `weir_thread_word`, read afresh by inline assembly
 * that carries the TLS relocation itself, so that no compiler keeps the thread's address over a call
 * that may switch stacks and threads (docs/adr/0002). It knows nothing of what the word points to.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_ARCH_ARCH_H
#define WEIR_ARCH_ARCH_H

#include "base/compiler.h"

/* Defined by the heap layer. Non-static, hidden, initial-exec and kept by the linker, because only
 * assembly names it. */
extern __attribute__((visibility("hidden"), tls_model("initial-exec"))) _Thread_local void* weir_thread_word;

#if defined(__x86_64__)
#    include "arch/x86_64/thread.h"
#elif defined(__aarch64__)
#    include "arch/aarch64/thread.h"
#else
#    error "weir runs on x86-64 and aarch64 only"
#endif

#endif
