/* body.h: what a fiber does: it frees, switches and allocates in one frame, in each way that malloc offers.
 *
 * Who may include it: one switch_* file, after defining FIBER_SWITCH(f), which switches away from fiber f and
 * goes on when some thread resumes it. The text is pasted into the kind's function, so that the calls of the
 * allocator stand beside the switch in the same function, where a compiler may keep what it learnt before.
 * Variables: `f`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

/* Warm slots first: there is always a block to free. */
for (unsigned i = 0; i < FIBER_SLOTS; i++) {
    f->sizes[i] = 16 + i * 16;
    f->blocks[i] = (unsigned char*)malloc(f->sizes[i]);
    fiber_fill(f, f->blocks[i], f->sizes[i], i);
}
for (unsigned i = 0; i < FIBER_POOLED; i++) {
    f->pooled[i] = FIBER_POOL_ALLOC();
    fiber_fill(f, f->pooled[i], FIBER_POOLED_BYTES, FIBER_SLOTS + i);
}
while (f->turns != 0) {
    /* malloc and free: the plain pair, in a loop, as the compilers like to find it. */
    for (unsigned i = 0; i < 8 && f->turns != 0; i++, f->turns--) {
        fiber_check(f, i);
        free(f->blocks[i]);
        FIBER_SWITCH(f);
        f->blocks[i] = (unsigned char*)malloc(f->sizes[i]);
        fiber_fill(f, f->blocks[i], f->sizes[i], i);
    }
    /* The same on a pool, whose words the compiler may like to keep as well. */
    for (unsigned i = 0; i < FIBER_POOLED && f->turns != 0; i++, f->turns--) {
        fiber_check_pooled(f, i);
        FIBER_POOL_FREE(f->pooled[i]);
        FIBER_SWITCH(f);
        f->pooled[i] = FIBER_POOL_ALLOC();
        fiber_fill(f, f->pooled[i], FIBER_POOLED_BYTES, FIBER_SLOTS + i);
    }
    unsigned s = 8 + (unsigned)(fiber_random(&f->seed) % 8);
    size_t n = 1 + fiber_random(&f->seed) % 700;
    if (f->turns == 0) break;
    f->turns--;
    fiber_check(f, s);
    switch (f->turns & 3) {
    case 0: /* calloc: zero, wherever it runs */
        free(f->blocks[s]);
        FIBER_SWITCH(f);
        f->blocks[s] = (unsigned char*)calloc(1, n);
        f->wrong += f->blocks[s][0] != 0 || f->blocks[s][n / 2] != 0 || f->blocks[s][n - 1] != 0;
        break;
    case 1: /* realloc of a block that another thread gave out: the content comes along */
        FIBER_SWITCH(f);
        f->blocks[s] = (unsigned char*)realloc(f->blocks[s], n);
        f->wrong += f->blocks[s][0] != (unsigned char)(f->number * 31 + s + 1);
        break;
    case 2: { /* new here, sized delete there */
        unsigned char* p = (unsigned char*)FIBER_NEW(n);
        p[0] = p[n - 1] = (unsigned char)s;
        FIBER_SWITCH(f);
        f->wrong += p[0] != (unsigned char)s || p[n - 1] != (unsigned char)s;
        FIBER_DELETE(p, n);
        free(f->blocks[s]);
        f->blocks[s] = (unsigned char*)malloc(n);
        break;
    }
    default: /* a block of this fiber is freed by another one, on some third thread */
        free(fiber_exchange(f->blocks[s]));
        FIBER_SWITCH(f);
        f->blocks[s] = (unsigned char*)malloc(n);
        break;
    }
    f->sizes[s] = n;
    fiber_fill(f, f->blocks[s], n, s);
}
for (unsigned i = 0; i < FIBER_SLOTS; i++) {
    fiber_check(f, i);
    free(f->blocks[i]);
}
for (unsigned i = 0; i < FIBER_POOLED; i++) {
    fiber_check_pooled(f, i);
    FIBER_POOL_FREE(f->pooled[i]);
}
