/* compiler.h: what the compilers differ in, under one set of names.
 *
 * Every file may include it. It knows no operating system and calls nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_BASE_COMPILER_H
#define WEIR_BASE_COMPILER_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

/* Functions that cross files: static where all layers are one translation unit, so that a static
 * library exports no helper names; hidden symbols in the layer-by-layer build that the tests use. */
#ifdef WEIR_ONE_UNIT
#    define WEIR_FN static __attribute__((unused))
#    define WEIR_VAR static
#    define WEIR_VAR_DECL static
#else
#    define WEIR_FN __attribute__((visibility("hidden")))
#    define WEIR_VAR __attribute__((visibility("hidden")))
#    define WEIR_VAR_DECL extern __attribute__((visibility("hidden")))
#endif

#define WEIR_INLINE static inline __attribute__((always_inline, unused))
#define WEIR_NOINLINE __attribute__((noinline))
#define WEIR_COLD __attribute__((cold, noinline))
/* Data by what a small process does with it, since each page that it touches is one more that it carries.
 * WIDE: zero at first, and large or rarely used; away from what every process writes. UNWRITTEN: never
 * written, or nearly never; what is written lies behind it. src/weir_data.ld names the sections. */
#define WEIR_WIDE(name) __attribute__((section(".bss.weir_wide." #name)))
#define WEIR_UNWRITTEN __attribute__((section(".data.weir_unwritten")))
/* A string that running processes read: among the constants. Other ones lie with what is said to people. */
#define WEIR_TEXT(string)                                                                                    \
    (__extension__({                                                                                         \
        static const char weir_text[] = string;                                                              \
        weir_text;                                                                                           \
    }))
#define WEIR_NORETURN __attribute__((noreturn))
/* The attributes that libc's headers gave the function, for a second name of it. */
#if defined(__GNUC__) && !defined(__clang__)
#    define WEIR_COPY(target) __attribute__((copy(target)))
#else
#    define WEIR_COPY(target)
#endif
#define WEIR_EXPORT __attribute__((visibility("default")))
/* The C++ operators. WEIR_WEAK_OPERATORS=1: an object in which a program's own ones replace them, at link
 * time or at run time; otherwise they can be inlined, and a program that has its own cannot be linked with
 * them. */
#ifndef WEIR_WEAK_OPERATORS
#    define WEIR_WEAK_OPERATORS 0
#endif
#if WEIR_WEAK_OPERATORS
#    define WEIR_OPERATOR WEIR_EXPORT __attribute__((weak))
#else
#    define WEIR_OPERATOR WEIR_EXPORT
#endif
/* A function that begins with a line of the cache: what every call runs lies in as few as can be, and where
 * its branches lie to their ends does not change with what comes before. */
#define WEIR_AT_LINE __attribute__((aligned(64)))
/* Keep pointer p in one register: where compilers see what it was added up from, they add that up again for
 * some of its members, which takes instructions and registers. */
#define weir_one_register(p) __asm__("" : "+r"(p))
/* Go on with `guess` in place of `value`, where a branch has made sure that they are the same: what follows
 * does not wait for `value`, and the processor looks meanwhile whether it was right, as of any branch.
 * Compilers may not make a conditional move of the branch, which would wait. */
#define weir_guess(value, guess)                                                                             \
    do {                                                                                                     \
        (value) = (guess);                                                                                   \
        __asm__ volatile("" : "+r"(value));                                                                  \
    } while (0)
#define weir_likely(x) __builtin_expect(!!(x), 1)
#define weir_unlikely(x) __builtin_expect(!!(x), 0)

/* Choices of whoever compiles src/weir.c into a program of his own. WEIR_TRUST_SIZE=1: sized delete takes
 * the size it is given as true, and a block of the slab that the thread allocates from goes straight back
 * into the bin. */
#ifndef WEIR_TRUST_SIZE
#    define WEIR_TRUST_SIZE 0
#endif
enum { config_trust_size = WEIR_TRUST_SIZE };

/* Invariants of our own. In release builds the compiler still checks that the expression compiles. */
#ifdef WEIR_DEBUG
#    define weir_assert(x)                                                                                   \
        do {                                                                                                 \
            if (weir_unlikely(!(x))) __builtin_trap();                                                       \
        } while (0)
#else
#    define weir_assert(x) ((void)sizeof(!(x)))
#endif

#ifndef __cplusplus
#    undef static_assert
#    define static_assert _Static_assert
#endif

#define KIB (1024ul)
#define MIB (1024ul * KIB)
#define GIB (1024ul * MIB)

WEIR_INLINE uintptr_t align_up(uintptr_t n, uintptr_t power) { return (n + power - 1) & ~(power - 1); }
WEIR_INLINE uintptr_t align_down(uintptr_t n, uintptr_t power) { return n & ~(power - 1); }
WEIR_INLINE bool is_power_of_two(uintptr_t n) { return n != 0 && (n & (n - 1)) == 0; }
/* Index of the highest set bit; n must not be 0. */
WEIR_INLINE unsigned bit_high(uint64_t n) { return 63u ^ (unsigned)__builtin_clzll(n); }
WEIR_INLINE unsigned bit_low(uint64_t n) { return (unsigned)__builtin_ctzll(n); }

#endif
