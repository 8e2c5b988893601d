/* atomic.h: atomic operations with their memory order in the name, on plain objects.
 *
 * GNU builtins rather than <stdatomic.h>: the records that other threads touch are also written by
 * their owner with plain stores, which _Atomic would turn into ordered ones.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_BASE_ATOMIC_H
#define WEIR_BASE_ATOMIC_H

#include "base/compiler.h"

#define load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define add_relaxed(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
#define sub_relaxed(p, v) __atomic_fetch_sub((p), (v), __ATOMIC_RELAXED)
#define xchg_acquire(p, v) __atomic_exchange_n((p), (v), __ATOMIC_ACQUIRE)
#define xchg_release(p, v) __atomic_exchange_n((p), (v), __ATOMIC_RELEASE)
/* Compare and swap: acq_rel on success, acquire on failure (the caller looks at what it found). */
#define cas_acq_rel(p, expected, v)                                                                          \
    __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
/* In the one order that all such operations have: on success a store that later ones of this thread come
 * after. */
#define cas_seq_cst(p, expected, v)                                                                          \
    __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE)
#define load_seq_cst(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define cas_acquire(p, expected, v)                                                                          \
    __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)

/* A word that one thread changes and others only look at, now and then and without need of order. The
 * owner's change, and a compare with it, are one plain instruction on an aligned word, which compilers do
 * not form from relaxed atomics; ThreadSanitizer builds say so in the language's terms. */
#ifdef __SANITIZE_THREAD__
#    define WEIR_THREAD_SANITIZER 1
#elif defined(__has_feature)
#    if __has_feature(thread_sanitizer)
#        define WEIR_THREAD_SANITIZER 1
#    endif
#endif
/* owner_publish: a store of the owner's that others may follow where config_owner_publishes says so: they
 * then see its stores before. On aarch64 that would be an instruction more. */
#ifdef WEIR_THREAD_SANITIZER
#    define owner_publish(p, v) store_release((p), (v))
#    define owner_decrement(p) owner_decrement_release(p)
#    define owner_increment(p) store_relaxed((p), load_relaxed(p) + 1)
#    define owner_compare(p, v) (load_relaxed(p) == (v))
#    define owner_peek(p) load_relaxed(p)
#elif defined(__aarch64__)
#    define owner_publish(p, v) store_relaxed((p), (v))
/* With release: whoever sees the count that ends a slab also sees the stores before it. */
#    define owner_decrement(p) owner_decrement_release(p)
#    define owner_increment(p) ((void)++*(p))
#    define owner_compare(p, v) (*(p) == (v))
#    define owner_peek(p) (*(p))
#else
#    define owner_publish(p, v)                                                                              \
        store_release((p), (v)) /* a plain store, as x86-64 stores are seen in order */
#    define owner_decrement(p) (--*(p))
#    define owner_increment(p) ((void)++*(p))
#    define owner_compare(p, v) (*(p) == (v))
#    define owner_peek(p) (*(p))
#endif
/* Clang makes an operation on one byte of a plain one on a larger word, and the next load of the word waits
 * until that has reached the cache. It leaves atomics as they are, and gcc makes one instruction of a plain
 * one alone. */
#if defined(WEIR_THREAD_SANITIZER) || defined(__clang__)
#    define owner_set(p, bits) store_relaxed((p), (__typeof__(*(p)))(load_relaxed(p) | (bits)))
#    define owner_clear(p, bits) store_relaxed((p), (__typeof__(*(p)))(load_relaxed(p) & ~(bits)))
#else
#    define owner_set(p, bits) ((void)(*(p) |= (bits)))
#    define owner_clear(p, bits) ((void)(*(p) &= (__typeof__(*(p)))~(bits)))
#endif

#if defined(__aarch64__) && !defined(WEIR_THREAD_SANITIZER)
enum { config_owner_publishes = 0 };
#else
enum { config_owner_publishes = 1 };
#endif

WEIR_INLINE uint32_t owner_decrement_release(uint32_t* p) {
    uint32_t left = load_relaxed(p) - 1;
    __atomic_store_n(p, left, __ATOMIC_RELEASE);
    return left;
}

#endif
