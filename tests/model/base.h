/* base.h: what every part of the model test stands on: its configuration, its own memory, its random
 * numbers and the way it fails.
 *
 * Any file of the model may use it. Nothing here calls malloc, so that the allocator under test never
 * sees the test's own memory. It knows nothing of blocks or of entry points.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MODEL_BASE_H
#define MODEL_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum model_mix { MIX_SMALL, MIX_MIXED, MIX_LARGE };
enum model_overlap { OVERLAP_FULL, OVERLAP_SAMPLED, OVERLAP_OFF };

/** What the command line says; written before the first thread starts, constant afterwards. */
struct model_config {
    uint64_t seed;
    uint64_t ops;            /* entry points called, all threads together */
    unsigned threads;        /* concurrent workers */
    unsigned slots;          /* blocks a worker may hold */
    unsigned forks;          /* forks, all threads together */
    unsigned life_ops;       /* mean number of calls that a thread makes before a successor replaces it */
    size_t size_max;         /* largest request that must succeed */
    size_t live_max;         /* bound of the bytes requested and not freed */
    size_t align_min;        /* alignment that every block must have */
    size_t limit_as_after;   /* RLIMIT_AS to set after a quarter of the operations; 0: leave it alone */
    size_t limit_data_after; /* the same for RLIMIT_DATA, the bytes of private writable memory */
    size_t stack_bytes;      /* stack of a worker */
    enum model_mix mix;
    enum model_overlap overlap;
    unsigned stall_seconds; /* no progress, or a child of a fork, for so long: it hangs */
    int nomem_ok;           /* ENOMEM is an answer (counted), not a failure */
    int trim;               /* call malloc_trim now and then */
    int pvalloc;            /* call pvalloc, which some allocators leave to libc */
    int verbose;            /* print the calls made, one figure for each entry point */
};
extern struct model_config model_config;

/** Memory of the test's own, zeroed, straight from the kernel. `memory_map` dies when there is none,
 *  `memory_try` returns NULL. */
void* memory_map(size_t bytes);
void* memory_try(size_t bytes);

/** Print one line to stderr, with the command that reproduces it, and abort. Allocates nothing. */
__attribute__((noreturn, format(printf, 1, 2))) void model_fail(const char* format, ...);
/** Print to `fd` without stdio's buffers, hence without malloc. */
__attribute__((format(printf, 2, 3))) void model_print(int fd, const char* format, ...);
double clock_seconds(void);

static inline uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/** xoroshiro128+ (Blackman and Vigna, 2018): one per worker, so that a worker's stream of decisions is
 *  a function of the seed and its number alone. */
struct rng {
    uint64_t s0, s1;
};

static inline void rng_init(struct rng* r, uint64_t seed) {
    r->s0 = mix64(seed + 0x9e3779b97f4a7c15ull);
    r->s1 = mix64(seed + 2 * 0x9e3779b97f4a7c15ull) | 1;
}

static inline uint64_t rng_next(struct rng* r) {
    uint64_t a = r->s0, b = r->s1, sum = a + b;
    b ^= a;
    r->s0 = ((a << 24) | (a >> 40)) ^ b ^ (b << 16);
    r->s1 = (b << 37) | (b >> 27);
    return sum;
}

/** A number in [0, n) from the upper half of x; n up to 2^32. */
static inline uint64_t pick(uint64_t x, uint64_t n) { return ((x >> 32) * n) >> 32; }
static inline uint64_t rng_below(struct rng* r, uint64_t n) { return pick(rng_next(r), n); }

#ifdef __cplusplus
}
#endif
#endif
