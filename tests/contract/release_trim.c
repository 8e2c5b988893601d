/* release_trim.c: malloc_trim returns all that can be returned, and says whether there was any; and a million
 * frees of 100 bytes, after which 100 MB are free, cost few system calls.
 *
 * Who may call it: tests/contract/run.py. glibc's malloc cannot pass: its malloc_trim says 1 whenever it
 * looks, and its system calls cannot be asked for.
 *
 * contract: name=small args=small glibc=skip env=WEIR_OPTIONS=release_delay=60000:release_window=60000
 * contract: name=large args=large glibc=skip env=WEIR_OPTIONS=release_delay=60000:release_window=60000
 * contract: name=others args=others glibc=skip env=WEIR_OPTIONS=release=off
 * contract: name=calls args=calls glibc=skip
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "release.h"
#include "../../include/weir/weir.h"

enum { MORE_KIB = 4 << 10, CALLS_MAX = 400, FREES = 1000000 };

static int (*stats_get)(struct weir_stats*);

static unsigned long system_calls(void) {
    struct weir_stats s = {.struct_size = sizeof s};
    EXPECT(stats_get != NULL && stats_get(&s) == 0);
    return s.sys_map + s.sys_protect + s.sys_purge + s.sys_remap + s.sys_other;
}

static void test_trim(size_t least, size_t most) {
    struct release_shape* shape = release_shape_new(least);
    for (int round = 0; round < 3; round++) {
        release_grow(shape, 64 << 20, least, most);
        release_free(shape, 50);
        EXPECT_EQ(malloc_trim(0), 1);
        EXPECT(release_shrinks(&shape, 1, MORE_KIB, 0, NULL));
        EXPECT_EQ(malloc_trim(0), 0);
        EXPECT_EQ(malloc_trim(0), 0);
        EXPECT(release_holds(shape));
    }
    release_grow(shape, 64 << 20, least, most);
    release_free(shape, 50);
    EXPECT_EQ(malloc_trim((size_t)1 << 40), 0); /* so much may stay */
    EXPECT_EQ(malloc_trim(0), 1);
    release_end(shape);
}

/* Whoever asks for it: also what others freed for a thread that sleeps. */
static void test_others(void) {
    struct release_shape* shape = release_owner_sleeps();
    release_free(shape, 50);
    EXPECT_EQ(malloc_trim(0), 1);
    EXPECT(release_shrinks(&shape, 1, MORE_KIB, 0, NULL));
    release_end(shape);
}

/* `step`: the order of the frees; one that shares no factor with FREES visits all of them. */
static void test_calls(size_t step) {
    void** block =
        (void**)mmap(NULL, FREES * sizeof *block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(block != MAP_FAILED);
    for (size_t i = 0; i < FREES; i++) {
        block[i] = malloc(100);
        EXPECT(block[i] != NULL);
        memset(block[i], 1, 100);
    }
    long peak = contract_status_kib("RssAnon:");
    unsigned long before = system_calls();
    for (size_t i = 0; i < FREES; i++) free(block[i * step % FREES]);
    for (int i = 0; i < 50 && contract_status_kib("RssAnon:") > peak - (90 << 10); i++) release_nap();
    EXPECT_LE(contract_status_kib("RssAnon:"), peak - (90 << 10));
    EXPECT_LE(system_calls() - before, CALLS_MAX);
    munmap(block, FREES * sizeof *block);
}

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[argc - 1] : "";
    contract_begin();
    alarm(50);
    stats_get = (int (*)(struct weir_stats*))dlsym(RTLD_DEFAULT, "weir_stats_get");
    if (strcmp(what, "small") == 0) test_trim(16, 3000);
    if (strcmp(what, "large") == 0) test_trim(5000, 300000);
    if (strcmp(what, "others") == 0) test_others();
    if (strcmp(what, "calls") == 0) {
        test_calls(1);
        test_calls(7);
        /* The helper sorts slabs whose last blocks are just being freed: neither waits for the other each
         * time. */
        for (int i = 0; i < 3; i++) test_calls(618033);
    }
    return contract_end();
}
