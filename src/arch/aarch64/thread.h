/* thread.h (aarch64): the thread word by initial-exec TLS. Included by arch.h alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_ARCH_AARCH64_THREAD_H
#define WEIR_ARCH_AARCH64_THREAD_H

#include "base/compiler.h"

#if WEIR_TLS_IS_DYNAMIC

/* The word's address, by its TLS descriptor: the function it names changes x0 and the link register alone. */
WEIR_INLINE void** arch_thread_word_address(void) {
    register char* distance __asm__("x0");
    char* thread;
    __asm__ volatile("adrp x0, :tlsdesc:weir_thread_word\n\t"
                     "ldr x1, [x0, :tlsdesc_lo12:weir_thread_word]\n\t"
                     "add x0, x0, :tlsdesc_lo12:weir_thread_word\n\t"
                     ".tlsdesccall weir_thread_word\n\t"
                     "blr x1\n\t"
                     "mrs %1, tpidr_el0"
                     : "=r"(distance), "=&r"(thread)
                     :
                     : "x1", "x30", "cc", "memory");
    return (void**)(void*)(thread + (uintptr_t)distance);
}

WEIR_INLINE void* arch_thread_word(void) { return *arch_thread_word_address(); }
WEIR_INLINE void* arch_thread_word_plus(uintptr_t offset) { return (char*)arch_thread_word() + offset; }
WEIR_INLINE void arch_thread_word_set(void* word) { *arch_thread_word_address() = word; }

#elif !WEIR_TLS_IS_NAIVE

/* The word's distance from the thread pointer, the same in every thread. */
WEIR_INLINE intptr_t arch_thread_word_offset(void) {
    intptr_t offset;
    __asm__("adrp %0, :gottprel:weir_thread_word\n\t"
            "ldr %0, [%0, :gottprel_lo12:weir_thread_word]"
            : "=r"(offset));
    return offset;
}

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

#endif

/* The thread pointer, as a name for the calling thread in locks. */
WEIR_INLINE void* arch_thread_pointer(void) {
    void* self;
    __asm__ volatile("mrs %0, tpidr_el0" : "=r"(self));
    return self;
}

/* Write what is found at fixed places behind the thread pointer of a thread that libc did not make: nothing,
 * the canary of stack frames is a global here. */
WEIR_INLINE void arch_thread_block_fill(uintptr_t* pointer) { (void)pointer; }

WEIR_INLINE void arch_pause(void) { __asm__ volatile("yield"); }

/* The word with `n` added to its low byte, which goes round by itself. */
WEIR_INLINE uintptr_t arch_low_byte_plus(uintptr_t word, int8_t n) {
    return (word & ~(uintptr_t)0xff) | ((word + (uint8_t)n) & 0xff);
}

#endif
