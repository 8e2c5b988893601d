/* weir/pool.h: object pools: objects of one size, from caches of the calling thread's own.
 *
 * Who may include it: any C11 or C++11 program that is linked with weir. Two ways to have a pool:
 *
 *     struct weir_pool* pool = weir_pool_create("buffers", 16384, 0, 0);   at run time
 *     WEIR_POOL_DECLARE(buffers, 16384, 0, 0)                               at file scope
 *
 * The second is reached straight through thread-local storage: a pair of WEIR_POOL_ALLOC(buffers) and
 * WEIR_POOL_FREE(buffers, p) that the thread's cache serves takes 12 instructions in an x86-64 program. How a
 * thread's cache, the tier that threads share and the heap below work together: docs/pools.md.
 *
 * Every call is thread-safe; none is async-signal-safe. A fiber may change threads between any two calls.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_POOL_H
#define WEIR_POOL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Flags of a pool. */
#define WEIR_POOL_EXACT 0x1u    /**< shares memory with pools of the very same size and alignment alone */
#define WEIR_POOL_NO_MERGE 0x2u /**< shares memory with no other pool */
#define WEIR_POOL_ZERO 0x4u     /**< each object reads as zero when it is given out */
#define WEIR_POOL_NO_CACHE 0x8u /**< no thread's cache, no shared tier: each call goes to the heap */
/** Debugging, also by the option pool_debug; each makes all calls slow, and gives the pool memory of its own.
 */
#define WEIR_POOL_POISON 0x100u    /**< objects are filled with 0x50 when given out, 0xdd when freed */
#define WEIR_POOL_INTEGRITY 0x200u /**< a write to a freed object is found when it next comes or goes */
#define WEIR_POOL_CALLER 0x400u    /**< reports name who allocated and who freed the object last */
#define WEIR_POOL_TAG 0x800u /**< a word behind each object, looked at when it comes or goes: overruns */
#define WEIR_POOL_COLD_FIRST 0x1000u /**< the object that was freed first is given out first */
#define WEIR_POOL_GUARD 0x2000u /**< objects end at an inaccessible page, and are inaccessible once freed */

/** Flags of one call of weir_pool_alloc_flags. */
#define WEIR_POOL_ALLOC_ZERO 0x1u /**< the object reads as zero */
#define WEIR_POOL_ALLOC_CACHED                                                                               \
    0x2u /**< from a cache or not at all: neither the heap nor the kernel is asked */
#define WEIR_POOL_ALLOC_NO_CACHE 0x4u /**< from the heap, past all caches */
#define WEIR_POOL_ALLOC_NO_FAIL 0x8u  /**< is not made to fail by the option pool_fail */

/** A pool. Its fields are the library's. */
struct weir_pool {
    const char* name;
    size_t size;
    size_t align;
    unsigned flags;
    unsigned reserved;
    void* record;
};

/** A thread's cache of a pool that is declared at file scope: the library's and the macros'. */
struct weir_pool_cache {
    void** top;
    void** base;
    void** end;
};

/** Make a pool of objects of `size` bytes at multiples of `align` (a power of two; 0: 16).
 *
 *  The name (up to 31 bytes are kept) is for people. Pools whose objects come to the same size in the heap
 *  share memory unless flags say otherwise; what each has given out is counted apart. NULL: errno is EINVAL
 *  (size 0, alignment, unknown flags) or ENOMEM (no memory, or 4096 pools). */
struct weir_pool* weir_pool_create(const char* name, size_t size, size_t align, unsigned flags);

/** Destroy a pool that nobody uses any more. Returns 0, or EBUSY, after saying on stderr how many are live,
 *  when objects were not freed: the pool is then as it was. No other thread may use the pool meanwhile. A
 * pool that is declared at file scope is made again by its next use. */
int weir_pool_destroy(struct weir_pool* pool);

/** An object, uninitialised but for pools with WEIR_POOL_ZERO. NULL: no memory, or the pool's limit (errno is
 *  not set). */
void* weir_pool_alloc(struct weir_pool* pool);
/** The same; the object reads as zero. */
void* weir_pool_zalloc(struct weir_pool* pool);
/** The same, with flags WEIR_POOL_ALLOC_*; NULL also where one of them is unknown. */
void* weir_pool_alloc_flags(struct weir_pool* pool, unsigned flags);

/** Give an object back to the pool that it came from, by any thread. NULL is nothing. */
void weir_pool_free(struct weir_pool* pool, void* object);

/** At most `objects` of the pool are out at any time; 0: no limit. Each object is then counted, and no thread
 *  keeps any. Before the pool's first object and weir_pool_reserve: returns 0, EBUSY later on, or EINVAL or
 *  ENOMEM as weir_pool_create. */
int weir_pool_limit(struct weir_pool* pool, size_t objects);

/** Keep `objects` free ones ready in the shared tier: they are allocated now. What was taken of them is made
 *  again now and then, by calls of weir_pool_alloc that no thread's cache serves, and objects that are freed
 *  stay until as many are there. Pools that share memory share what is ready: it is the sum of what each
 *  asked for. weir_pool_flush gives it back, until such a call. 0: none. Returns 0; ENOMEM when there was no
 *  memory or no room for all (it keeps what it got, and tries again as above); ENOTSUP for a pool that no
 *  thread caches: of WEIR_POOL_NO_CACHE or with a limit. */
int weir_pool_reserve(struct weir_pool* pool, size_t objects);

/** Give back what the pool, and those that share its memory, cache: the shared tier's objects at once, the
 * calling thread's too, another thread's when it next takes more from the pool than it has, or is idle
 *  (weir_thread_idle), or ends. At any time, by any thread; stops nobody. */
void weir_pool_flush(struct weir_pool* pool);

/** The same for all pools, but for what weir_pool_reserve asked for. */
void weir_pool_gc(void);

/** The figures of a pool. They are exact when no thread uses the pool, and otherwise right but for the
 * objects that moved during the call. */
struct weir_pool_stats {
    uint32_t struct_size; /**< set by the caller: sizeof(struct weir_pool_stats) */
    uint32_t flags;       /**< as the pool was made, options included */
    char name[32];
    uint64_t number;       /**< counts the pools that were made, from 1 */
    uint64_t object_bytes; /**< as asked for */
    uint64_t block_bytes;  /**< what an object takes in the heap */
    uint64_t used;         /**< objects of this pool in the program's hands */
    uint64_t held;         /**< objects in threads' caches of this pool */
    uint64_t failed;       /**< calls that returned NULL */
    uint64_t limit;        /**< 0: none */
    /* Of the memory that this pool has, alone or with others. allocated == used by all of them + cached. */
    uint64_t storage;   /**< a number: pools with the same one share memory */
    uint64_t users;     /**< number of those pools */
    uint64_t allocated; /**< objects taken from the heap and not given back */
    uint64_t cached;    /**< objects in all caches: threads' and the shared tier */
    uint64_t shared;    /**< of these, in the shared tier */
    uint64_t needed;    /**< sliding mean of what was in use or moved; more than that goes back to the heap */
    uint64_t magazine;  /**< objects that move at once between a thread's cache and the shared tier */
};

/** Fill in *stats. Returns 0, or EINVAL when struct_size is none that the library knows. */
int weir_pool_stats_get(struct weir_pool* pool, struct weir_pool_stats* stats);
/** The figures of the first pool that was made after the one of number `after`; 0: of the first. Whatever
 * ends in between, this meets each other pool once:
 *
 *      struct weir_pool_stats s = {sizeof s};
 *      while (weir_pool_stats_next(s.number, &s) == 0) ...
 *
 *  Returns 0, ENOENT past the last one, or EINVAL as above. */
int weir_pool_stats_next(uint64_t after, struct weir_pool_stats* stats);

/** What the macros below call when the thread's cache cannot serve them. */
void* weir_pool_alloc_slow(struct weir_pool* pool, struct weir_pool_cache* cache);
void weir_pool_free_slow(struct weir_pool* pool, struct weir_pool_cache* cache, void* object);

/* ---- Pools that are declared at file scope.
 *
 *   WEIR_POOL_DECLARE(name, size, align, flags)       a pool of one source file
 *   WEIR_POOL_DECLARE_TYPED(name, type, flags)        the same for objects of a type
 *   WEIR_POOL_EXTERN(name, size, align, flags)        in a header: a pool for all files that include it, and
 *   WEIR_POOL_DEFINE(name, size, align, flags)        behind that, in one of them
 *   WEIR_POOL_EXTERN_TYPED(name, type, flags), WEIR_POOL_DEFINE_TYPED(name, type, flags)
 *   WEIR_POOL_ALLOC(name), WEIR_POOL_ZALLOC(name)     an object, or NULL
 *   WEIR_POOL_FREE(name, object)                      object is not NULL
 *   WEIR_POOL(name)                                   the pool as a struct weir_pool*, for all other calls
 *
 * The names are C identifiers of the whole program or library, whose own the pool is: others use the pointer.
 * The thread's cache takes 24 bytes of static TLS. A shared library that declares pools must stay loaded
 * (-Wl,-z,nodelete), and one that is loaded late by dlopen needs that many bytes of the space that libc keeps
 * for such (glibc: 512 bytes to 2 KiB in all); with WEIR_POOL_CALLS defined the macros need none: they call
 * the functions above, as they do where the compiler or processor is another one. */

#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__aarch64__)) &&            \
    defined(__LP64__) && !defined(WEIR_POOL_CALLS)
#    define WEIR_POOL_INLINED 1
#else
#    define WEIR_POOL_INLINED 0
#endif

#ifdef __cplusplus
#    define WEIR_POOL_C extern "C"
#    define WEIR_POOL_ALIGNOF(type) alignof(type)
#else
#    define WEIR_POOL_C extern
#    define WEIR_POOL_ALIGNOF(type) _Alignof(type)
#endif

#if WEIR_POOL_INLINED

#    define WEIR_POOL_HIDDEN __attribute__((visibility("hidden")))
#    define WEIR_POOL_INLINE static inline __attribute__((always_inline, unused))

/* Each read of the words is volatile assembly at the place where it stands, through the thread pointer of the
 * thread that runs there: a compiler keeps none of it over a call that may return on another thread. The
 * words' distance from the thread pointer is the same in all threads, and may be kept. */
#    if defined(__x86_64__)
/* As both of the compiler's dialects have it: -masm=att and -masm=intel. */
#        define WEIR_POOL_MOVE_IN(att, intel) "{movq %%fs:" att ", %0|mov %0, QWORD PTR fs:" intel "}"
#        define WEIR_POOL_COMPARE_WITH(att, intel) "{cmpq %%fs:" att ", %0|cmp %0, QWORD PTR fs:" intel "}"
#        define WEIR_POOL_MOVE_OUT(att, intel) "{movq %0, %%fs:" att "|mov QWORD PTR fs:" intel ", %0}"
#    endif
#    if defined(__x86_64__) && (!defined(__PIC__) || defined(__PIE__))
#        define WEIR_POOL_DISTANCE(words)
#        define WEIR_POOL_COMPARE(words, limit, top, equal)                                                  \
            __asm__ volatile(                                                                                \
                WEIR_POOL_MOVE_IN(words "@tpoff", words "@tpoff") "\n\t" WEIR_POOL_COMPARE_WITH(             \
                    words "@tpoff+" limit, words "@tpoff+" limit)                                            \
                : "=r"(top), "=@cce"(equal))
#        define WEIR_POOL_STORE(words, top)                                                                  \
            __asm__ volatile(WEIR_POOL_MOVE_OUT(words "@tpoff", words "@tpoff") : : "r"(top) : "memory")
#        define WEIR_POOL_ADDRESS(words, cache)                                                              \
            __asm__ volatile(WEIR_POOL_MOVE_IN("0", "[0]") "\n\t"                                            \
                                                           "{leaq " words "@tpoff(%0), %0|lea %0, " words    \
                                                           "@tpoff[%0]}"                                     \
                             : "=r"(cache))
#    elif defined(__x86_64__)
#        define WEIR_POOL_DISTANCE(words)                                                                    \
            intptr_t weir_pool_distance;                                                                     \
            __asm__("{movq " words "@gottpoff(%%rip), %0|mov %0, QWORD PTR " words "@gottpoff[rip]}"         \
                    : "=r"(weir_pool_distance));
#        define WEIR_POOL_COMPARE(words, limit, top, equal)                                                  \
            __asm__ volatile(WEIR_POOL_MOVE_IN("(%2)", "[%2]") "\n\t" WEIR_POOL_COMPARE_WITH(                \
                                 limit "(%2)", "[%2+" limit "]")                                             \
                             : "=&r"(top), "=@cce"(equal)                                                    \
                             : "r"(weir_pool_distance))
#        define WEIR_POOL_STORE(words, top)                                                                  \
            __asm__ volatile(WEIR_POOL_MOVE_OUT("(%1)", "[%1]")                                              \
                             :                                                                               \
                             : "r"(top), "r"(weir_pool_distance)                                             \
                             : "memory")
#        define WEIR_POOL_ADDRESS(words, cache)                                                              \
            __asm__ volatile(WEIR_POOL_MOVE_IN("0", "[0]") "\n\t"                                            \
                                                           "{addq %1, %0|add %0, %1}"                        \
                             : "=&r"(cache)                                                                  \
                             : "r"(weir_pool_distance)                                                       \
                             : "cc")
#    else
/* Within one call the address serves both. */
#        define WEIR_POOL_DISTANCE(words)                                                                    \
            intptr_t weir_pool_distance;                                                                     \
            void* weir_pool_words;                                                                           \
            __asm__("adrp %0, :gottprel:" words "\n\t"                                                       \
                    "ldr %0, [%0, :gottprel_lo12:" words "]"                                                 \
                    : "=r"(weir_pool_distance));
#        define WEIR_POOL_COMPARE(words, limit, top, equal)                                                  \
            do {                                                                                             \
                void** weir_pool_end;                                                                        \
                __asm__ volatile("mrs %2, tpidr_el0\n\t"                                                     \
                                 "add %2, %2, %3\n\t"                                                        \
                                 "ldr %0, [%2]\n\t"                                                          \
                                 "ldr %1, [%2, " limit "]"                                                   \
                                 : "=&r"(top), "=&r"(weir_pool_end), "=&r"(weir_pool_words)                  \
                                 : "r"(weir_pool_distance));                                                 \
                (equal) = (top) == weir_pool_end;                                                            \
            } while (0)
#        define WEIR_POOL_STORE(words, top)                                                                  \
            __asm__ volatile("str %1, [%0]" : : "r"(weir_pool_words), "r"(top) : "memory")
#        define WEIR_POOL_ADDRESS(words, cache)                                                              \
            __asm__ volatile("mrs %0, tpidr_el0\n\t"                                                         \
                             "add %0, %0, %1"                                                                \
                             : "=&r"(cache)                                                                  \
                             : "r"(weir_pool_distance))
#    endif

/* The thread's words are named by assembly alone: a name for the whole program, hidden, and kept. */
#    define WEIR_POOL_FUNCTIONS(name, type, size_, flags_)                                                   \
        WEIR_POOL_C WEIR_POOL_HIDDEN struct weir_pool weir_pool_##name;                                      \
        WEIR_POOL_C WEIR_POOL_HIDDEN __thread struct weir_pool_cache weir_pool_cache_##name;                 \
        WEIR_POOL_INLINE type* weir_pool_alloc_##name(void) {                                                \
            void** top;                                                                                      \
            int empty;                                                                                       \
            void* object;                                                                                    \
            WEIR_POOL_DISTANCE("weir_pool_cache_" #name)                                                     \
            WEIR_POOL_COMPARE("weir_pool_cache_" #name, "8", top, empty);                                    \
            if (__builtin_expect(!empty, 1)) {                                                               \
                object = top[-1];                                                                            \
                WEIR_POOL_STORE("weir_pool_cache_" #name, top - 1);                                          \
            } else {                                                                                         \
                struct weir_pool_cache* cache;                                                               \
                WEIR_POOL_ADDRESS("weir_pool_cache_" #name, cache);                                          \
                object = weir_pool_alloc_slow(&weir_pool_##name, cache);                                     \
            }                                                                                                \
            if (((flags_) & WEIR_POOL_ZERO) != 0 && object != NULL) memset(object, 0, (size_));              \
            return (type*)object;                                                                            \
        }                                                                                                    \
        WEIR_POOL_INLINE void weir_pool_free_##name(type* object) {                                          \
            void** top;                                                                                      \
            int full;                                                                                        \
            WEIR_POOL_DISTANCE("weir_pool_cache_" #name)                                                     \
            WEIR_POOL_COMPARE("weir_pool_cache_" #name, "16", top, full);                                    \
            if (__builtin_expect(!full, 1)) {                                                                \
                *top = (void*)object;                                                                        \
                WEIR_POOL_STORE("weir_pool_cache_" #name, top + 1);                                          \
            } else {                                                                                         \
                struct weir_pool_cache* cache;                                                               \
                WEIR_POOL_ADDRESS("weir_pool_cache_" #name, cache);                                          \
                weir_pool_free_slow(&weir_pool_##name, cache, (void*)object);                                \
            }                                                                                                \
        }
#    define WEIR_POOL_WORDS(name)                                                                            \
        __attribute__((used)) __thread struct weir_pool_cache weir_pool_cache_##name = {NULL, NULL, NULL};

#else

#    if defined(__GNUC__) || defined(__clang__)
#        define WEIR_POOL_INLINE static inline __attribute__((unused))
#    else
#        define WEIR_POOL_INLINE static inline
#    endif
#    define WEIR_POOL_FUNCTIONS(name, type, size_, flags_)                                                   \
        WEIR_POOL_C struct weir_pool weir_pool_##name;                                                       \
        WEIR_POOL_INLINE type* weir_pool_alloc_##name(void) {                                                \
            return (type*)weir_pool_alloc(&weir_pool_##name);                                                \
        }                                                                                                    \
        WEIR_POOL_INLINE void weir_pool_free_##name(type* object) {                                          \
            weir_pool_free(&weir_pool_##name, (void*)object);                                                \
        }
#    define WEIR_POOL_WORDS(name)

#endif

/* The last line takes the semicolon that follows the macro. */
#define WEIR_POOL_EXTERN_AS(name, type, size_, flags_)                                                       \
    WEIR_POOL_FUNCTIONS(name, type, size_, flags_)                                                           \
    WEIR_POOL_INLINE type* weir_pool_zalloc_##name(void) {                                                   \
        type* object = weir_pool_alloc_##name();                                                             \
        if (object != NULL && ((flags_) & WEIR_POOL_ZERO) == 0) memset((void*)object, 0, (size_));           \
        return object;                                                                                       \
    }                                                                                                        \
    struct weir_pool

#define WEIR_POOL_DEFINE(name, size, align, flags)                                                           \
    WEIR_POOL_WORDS(name)                                                                                    \
    struct weir_pool weir_pool_##name = {#name, (size), (align), (flags), 0u, NULL}
#define WEIR_POOL_DEFINE_TYPED(name, type, flags)                                                            \
    WEIR_POOL_DEFINE(name, sizeof(type), WEIR_POOL_ALIGNOF(type), flags)

#define WEIR_POOL_EXTERN(name, size, align, flags) WEIR_POOL_EXTERN_AS(name, void, size, flags)
#define WEIR_POOL_EXTERN_TYPED(name, type, flags) WEIR_POOL_EXTERN_AS(name, type, sizeof(type), flags)
#define WEIR_POOL_DECLARE(name, size, align, flags)                                                          \
    WEIR_POOL_EXTERN(name, size, align, flags);                                                              \
    WEIR_POOL_DEFINE(name, size, align, flags)
#define WEIR_POOL_DECLARE_TYPED(name, type, flags)                                                           \
    WEIR_POOL_EXTERN_TYPED(name, type, flags);                                                               \
    WEIR_POOL_DEFINE_TYPED(name, type, flags)

#define WEIR_POOL(name) (&weir_pool_##name)
#define WEIR_POOL_ALLOC(name) weir_pool_alloc_##name()
#define WEIR_POOL_FREE(name, object) weir_pool_free_##name(object)
#define WEIR_POOL_ZALLOC(name) weir_pool_zalloc_##name()

#ifdef __cplusplus
}
#endif
#endif
