/* thread.h (x86-64): the thread word. Included by arch.h alone.
 *
 * The assembly is volatile, so that each call site reads the word again; it has no memory clobber, since
 * it orders nothing. Code that goes into an executable knows the word's offset when it is linked; code
 * that may go into a shared library loads it (initial-exec).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_ARCH_X86_64_THREAD_H
#define WEIR_ARCH_X86_64_THREAD_H

#include "base/compiler.h"

#if WEIR_TLS_IS_DYNAMIC

/* The word's distance from the thread pointer. The descriptor's function changes rax and the flags alone, but
 * the first call in a thread may fill in the thread's block, and glibc before 2.40 did not save vector
 * registers then. The compiler does not see the call: what it may keep below the stack pointer is skipped,
 * and the stack aligned. Unwinders are told, for frames that are measured from the stack pointer, as all are
 * that have no array of variable length. */
WEIR_INLINE uintptr_t arch_thread_word_distance(void) {
    uintptr_t distance;
    void* stack;
    __asm__ volatile("movq %%rsp, %1\n\t"
                     ".cfi_remember_state\n\t"
                     ".cfi_def_cfa_register %1\n\t"
                     "addq $-128, %%rsp\n\t"
                     "andq $-16, %%rsp\n\t"
                     "leaq weir_thread_word@tlsdesc(%%rip), %%rax\n\t"
                     "call *weir_thread_word@tlscall(%%rax)\n\t"
                     "movq %1, %%rsp\n\t"
                     ".cfi_restore_state"
                     : "=&a"(distance), "=&r"(stack)
                     :
                     : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    return distance;
}

WEIR_INLINE void* arch_thread_word(void) {
    void* word;
    __asm__ volatile("movq %%fs:(%1), %0" : "=r"(word) : "r"(arch_thread_word_distance()));
    return word;
}

WEIR_INLINE void* arch_thread_word_plus(uintptr_t offset) { return (char*)arch_thread_word() + offset; }

WEIR_INLINE void arch_thread_word_set(void* word) {
    __asm__ volatile("movq %0, %%fs:(%1)" : : "r"(word), "r"(arch_thread_word_distance()) : "memory");
}

#elif WEIR_TLS_IS_NAIVE
/* arch.h has it. */
#elif defined(__PIC__) && !defined(__PIE__)

/* The word's distance from the thread pointer, the same in every thread. */
WEIR_INLINE intptr_t arch_thread_word_offset(void) {
    intptr_t offset;
    __asm__("movq weir_thread_word@gottpoff(%%rip), %0" : "=r"(offset));
    return offset;
}

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
    if (__builtin_constant_p(offset)) return (char*)arch_thread_word() + offset;
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

#else

WEIR_INLINE intptr_t arch_thread_word_offset(void) {
    intptr_t offset;
    __asm__("movq $weir_thread_word@tpoff, %0" : "=r"(offset));
    return offset;
}

WEIR_INLINE void* arch_thread_word(void) {
    void* word;
    __asm__ volatile("movq %%fs:weir_thread_word@tpoff, %0" : "=r"(word));
    return word;
}

WEIR_INLINE void* arch_thread_word_plus(uintptr_t offset) {
    if (__builtin_constant_p(offset)) return (char*)arch_thread_word() + offset;
    __asm__ volatile("addq %%fs:weir_thread_word@tpoff, %0" : "+r"(offset) : : "cc");
    return (void*)offset;
}

WEIR_INLINE void arch_thread_word_set(void* word) {
    __asm__ volatile("movq %0, %%fs:weir_thread_word@tpoff" : : "r"(word) : "memory");
}

#endif

/* The thread pointer, as a name for the calling thread in locks. */
WEIR_INLINE void* arch_thread_pointer(void) {
    void* self;
    __asm__ volatile("movq %%fs:0, %0" : "=r"(self));
    return self;
}

/* Write what is found at fixed places behind the thread pointer of a thread that libc did not make: the
 * pointer itself twice, and what compilers and libc mix into stack frames and saved addresses. */
WEIR_INLINE void arch_thread_block_fill(uintptr_t* pointer) {
    uintptr_t canary;
    uintptr_t guard;
    __asm__("movq %%fs:0x28, %0\n\t"
            "movq %%fs:0x30, %1"
            : "=&r"(canary), "=r"(guard));
    pointer[0] = (uintptr_t)pointer;
    pointer[2] = (uintptr_t)pointer;
    pointer[5] = canary;
    pointer[6] = guard;
}

WEIR_INLINE void arch_pause(void) { __asm__ volatile("pause"); }

/* The word with `n` added to its low byte, which goes round by itself: an instruction that gcc does not find.
 */
WEIR_INLINE uintptr_t arch_low_byte_plus(uintptr_t word, int8_t n) {
    __asm__("addb %1, %b0" : "+q"(word) : "qi"(n) : "cc");
    return word;
}

#endif
