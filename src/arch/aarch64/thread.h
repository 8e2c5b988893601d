/* thread.h (aarch64): the thread word by initial-exec TLS. Included by arch.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_ARCH_AARCH64_THREAD_H
#define WEIR_ARCH_AARCH64_THREAD_H

#include "base/compiler.h"

/* Volatile, so that each call site reads it again; without a memory clobber, since it orders nothing. */
WEIR_INLINE void* arch_thread_word(void) {
    void* word;
    void* thread;
    __asm__ volatile("adrp %0, :gottprel:weir_thread_word\n\t"
                     "ldr %0, [%0, :gottprel_lo12:weir_thread_word]\n\t"
                     "mrs %1, tpidr_el0\n\t"
                     "ldr %0, [%1, %0]"
                     : "=&r"(word), "=&r"(thread));
    return word;
}

/* The word plus an offset: an address inside what it points to. */
WEIR_INLINE void* arch_thread_word_plus(uintptr_t offset) { return (char*)arch_thread_word() + offset; }

WEIR_INLINE void arch_thread_word_set(void* word) {
    void* offset;
    void* thread;
    __asm__ volatile("adrp %0, :gottprel:weir_thread_word\n\t"
                     "ldr %0, [%0, :gottprel_lo12:weir_thread_word]\n\t"
                     "mrs %1, tpidr_el0\n\t"
                     "str %2, [%1, %0]"
                     : "=&r"(offset), "=&r"(thread)
                     : "r"(word)
                     : "memory");
}

/* The thread pointer, as a name for the calling thread in locks. */
WEIR_INLINE void* arch_thread_pointer(void) {
    void* self;
    __asm__ volatile("mrs %0, tpidr_el0" : "=r"(self));
    return self;
}

WEIR_INLINE void arch_pause(void) { __asm__ volatile("yield"); }

#endif
