/* class.c: the tables of class.h, laid out at compile time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "heap/class.h"

/* Slabs of one slice hold at least eight blocks; above 8 KiB eight slices do. */
#define SLICES(b) ((b) <= 8192 ? 1 : (b) <= SLAB_MAX ? SLAB_SLICES : 0)
#define CAPACITY(b) (SLICES(b) * SLICE_BYTES / (b))
#define ENOUGH(b) (CAPACITY(b) < 16 ? 1 : CAPACITY(b) > 256 ? 32 : CAPACITY(b) / 8)
/* The inverse of an odd number modulo 2^64 by Newton's steps: 5 bits, then twice as many with each. */
#define INVERSE5(o) ((3ull * (o)) ^ 2)
#define BETTER(o, x) ((x) * (2 - (o) * (x)))
#define INVERSE20(o) BETTER(o, BETTER(o, INVERSE5(o)))
#define INVERSE(o) BETTER(o, BETTER(o, INVERSE20(o)))
#define ODD(b) ((uint64_t)(b) / ((uint64_t)(b) & -(uint64_t)(b)))
#define ROW(b)                                                                                               \
    {.bytes = (b),                                                                                           \
     .slices = SLICES(b),                                                                                    \
     .capacity = CAPACITY(b),                                                                                \
     .enough = ENOUGH(b),                                                                                    \
     .turn = __builtin_ctz(b) + CLASS_TAG_BITS,                                                              \
     .exact = INVERSE(ODD(b)) << CLASS_TAG_BITS,                                                             \
     .inverse = ((1ull << 40) + (b) - 1) / (b)}
#define ROWS8(base, step)                                                                                    \
    ROW((base) + (step)), ROW((base) + 2 * (step)), ROW((base) + 3 * (step)), ROW((base) + 4 * (step)),      \
        ROW((base) + 5 * (step)), ROW((base) + 6 * (step)), ROW((base) + 7 * (step)),                        \
        ROW((base) + 8 * (step))

WEIR_VAR struct size_class size_classes[CLASS_COUNT] = {
    ROWS8(0, 16),         ROWS8(128, 16),       ROWS8(256, 16),     ROWS8(384, 16),     ROWS8(512, 16),
    ROWS8(640, 16),       ROWS8(768, 16),       ROWS8(896, 16),     ROWS8(1024, 128),   ROWS8(2048, 256),
    ROWS8(4096, 512),     ROWS8(8192, 1024),    ROWS8(16384, 2048), ROWS8(32768, 4096), ROWS8(65536, 8192),
    ROWS8(131072, 16384), ROWS8(262144, 32768),
};

/* Eight classes, for sizes from (SMALL_MAX << d) + 1 on, each of 1 << d steps. */
#define STEPS(d, k) [(8 + (k)) << (d)...((9 + (k)) << (d)) - 1] = 8 * (d) + (k)
#define STEPS8(d)                                                                                            \
    STEPS(d, 0), STEPS(d, 1), STEPS(d, 2), STEPS(d, 3), STEPS(d, 4), STEPS(d, 5), STEPS(d, 6), STEPS(d, 7)

WEIR_UNWRITTEN WEIR_VAR uint8_t medium_of_steps[MEDIUM_STEPS] = {STEPS8(0), STEPS8(1), STEPS8(2),
                                                                 STEPS8(3), STEPS8(4), STEPS8(5)};

WEIR_FN void classes_start(bool apart) {
    for (unsigned c = 0; c < SLAB_CLASSES && apart; c++) {
        struct size_class* k = &size_classes[c];
        if ((size_t)k->capacity * k->bytes == (size_t)k->slices << SLICE_SHIFT) k->capacity--;
    }
}
