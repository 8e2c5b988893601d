/* arch.h: the one word per thread, tags of memory, and what else differs between processors.
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

/* How the word is reached; -DWEIR_TLS=name chooses.
 *   fresh    initial-exec, by assembly: libweir, and what is compiled into a program
 *   dynamic  TLS descriptors, by assembly: a library that dlopen may load at any time, however little static
 * TLS the process has left naive    what the compiler makes of a plain thread-local variable: for tests, to
 * show why it is wrong */
#define WEIR_TLS_fresh 1
#define WEIR_TLS_dynamic 2
#define WEIR_TLS_naive 3
#define WEIR_TLS_NUMBER_EXPANDED(name) WEIR_TLS_##name
#define WEIR_TLS_NUMBER(name) WEIR_TLS_NUMBER_EXPANDED(name)
#ifndef WEIR_TLS
#    define WEIR_TLS fresh
#endif
#define WEIR_TLS_IS_DYNAMIC (WEIR_TLS_NUMBER(WEIR_TLS) == WEIR_TLS_dynamic)
#define WEIR_TLS_IS_NAIVE (WEIR_TLS_NUMBER(WEIR_TLS) == WEIR_TLS_naive)
#if WEIR_TLS_NUMBER(WEIR_TLS) == WEIR_TLS_fresh
#    define WEIR_TLS_MODEL __attribute__((visibility("hidden"), tls_model("initial-exec")))
#elif WEIR_TLS_IS_DYNAMIC || WEIR_TLS_IS_NAIVE
#    define WEIR_TLS_MODEL __attribute__((visibility("hidden")))
#else
#    error "WEIR_TLS is fresh, dynamic or naive"
#endif

/* Defined by the heap layer. Non-static, hidden and kept by the linker, because only assembly names it. */
extern WEIR_TLS_MODEL _Thread_local void* weir_thread_word;

#if WEIR_TLS_IS_NAIVE
WEIR_INLINE void* arch_thread_word(void) { return weir_thread_word; }
WEIR_INLINE void* arch_thread_word_plus(uintptr_t offset) { return (char*)weir_thread_word + offset; }
WEIR_INLINE void arch_thread_word_set(void* word) { weir_thread_word = word; }
#endif

#if defined(__x86_64__)
#    include "arch/x86_64/stack.h"
#    include "arch/x86_64/tag.h"
#    include "arch/x86_64/thread.h"
#elif defined(__aarch64__)
#    include "arch/aarch64/stack.h"
#    include "arch/aarch64/tag.h"
#    include "arch/aarch64/thread.h"
#else
#    error "weir runs on x86-64 and aarch64 only"
#endif

/* -DWEIR_TAGS=0 leaves heap tagging out. */
#ifndef WEIR_TAGS
#    define WEIR_TAGS 1
#endif
enum { config_tags = ARCH_HAS_TAGS && WEIR_TAGS };

#endif
