/* thread.h (x86-64): the thread word by initial-exec TLS. Included by arch.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_ARCH_X86_64_THREAD_H
#define WEIR_ARCH_X86_64_THREAD_H

#include "base/compiler.h"

/* Volatile, so that each call site reads it again; without a memory clobber, since it orders nothing. */
WEIR_INLINE void* arch_thread_word(void) {
    void* word;
    __asm__ volatile("movq weir_thread_word@gottpoff(%%rip), %0\n\t"
                     "movq %%fs:(%0), %0"
                     : "=r"(word));
    return word;
}

/* The word plus an offset: an address inside what it points to, for one instruction less. The scratch
 * register is rax, so that the caller's result, which comes later, finds it free. */
WEIR_INLINE void* arch_thread_word_plus(uintptr_t offset) {
    void* slot;
    __asm__ volatile("movq weir_thread_word@gottpoff(%%rip), %0\n\t"
                     "addq %%fs:(%0), %1"
                     : "=&a"(slot), "+r"(offset)
                     :
                     : "cc");
    return (void*)offset;
}

WEIR_INLINE void arch_thread_word_set(void* word) {
    void* offset;
    __asm__ volatile("movq weir_thread_word@gottpoff(%%rip), %0\n\t"
                     "movq %1, %%fs:(%0)"
                     : "=&r"(offset)
                     : "r"(word)
                     : "memory");
}

/* The thread pointer, as a name for the calling thread in locks. */
WEIR_INLINE void* arch_thread_pointer(void) {
    void* self;
    __asm__ volatile("movq %%fs:0, %0" : "=r"(self));
    return self;
}

WEIR_INLINE void arch_pause(void) { __asm__ volatile("pause"); }

#endif
