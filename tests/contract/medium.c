/* medium.c: blocks of 1 to 64 KiB: few of each size, freed by any thread, resized, aligned, over forks.
 *
 * Who may call it: tests/contract/run.py. Threads hand each other blocks and look at all of their content;
 * then the statistics, where the library has them, agree with what is live.
 *
 * contract: timeout=60
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include "../../include/weir/weir.h"
#include <pthread.h>

enum { SLOTS = 48, THREADS = 4, ROUNDS = 6000, FORKS = 20 };

static struct {
    pthread_mutex_t lock;
    unsigned char* block;
    size_t size;
    unsigned seed;
} slots[SLOTS];

static size_t some_size(uint64_t* seed) {
    size_t octave = (size_t)1024 << contract_random(seed) % 6;
    return octave + 1 + contract_random(seed) % octave;
}

static unsigned char* block_make(uint64_t* seed, size_t size) {
    if (contract_random(seed) % 4 != 0) return malloc(size);
    size_t align = (size_t)32 << contract_random(seed) % 12;
    unsigned char* p = aligned_alloc(align, size);
    EXPECT_EQ((uintptr_t)p % align, 0);
    return p;
}

static void* churn(void* number) {
    uint64_t seed = (uint64_t)(uintptr_t)number + 1;
    for (int i = 0; i < ROUNDS; i++) {
        size_t size = some_size(&seed);
        unsigned mark = (unsigned)contract_random(&seed);
        unsigned char* p = block_make(&seed, size);
        if (!EXPECT(p != NULL && malloc_usable_size(p) >= size)) return NULL;
        contract_fill(p, size, mark);
        if (i % 8 == 0) {
            size_t more = some_size(&seed);
            p = realloc(p, more);
            if (!EXPECT(p != NULL && contract_holds(p, size < more ? size : more, mark))) return NULL;
            size = more;
            contract_fill(p, size, mark);
        }
        size_t n = contract_random(&seed) % SLOTS;
        pthread_mutex_lock(&slots[n].lock);
        unsigned char* old = slots[n].block;
        size_t old_size = slots[n].size;
        unsigned old_mark = slots[n].seed;
        slots[n].block = p;
        slots[n].size = size;
        slots[n].seed = mark;
        pthread_mutex_unlock(&slots[n].lock);
        if (old != NULL && !contract_holds(old, old_size, old_mark)) EXPECT(!"content is kept");
        free(old);
    }
    return NULL;
}

static void slots_free(void) {
    for (int n = 0; n < SLOTS; n++) {
        if (slots[n].block != NULL) EXPECT(contract_holds(slots[n].block, slots[n].size, slots[n].seed));
        free(slots[n].block);
        slots[n].block = NULL;
    }
}

/* The child has all blocks that were in the slots, and the threads' own are none of its business. */
static void child(void) {
    alarm(30);
    slots_free();
    uint64_t seed = 5;
    for (int i = 0; i < 200; i++) free(block_make(&seed, some_size(&seed)));
    _exit(contract_failed());
}

/* How often the statistics name a class with these figures. */
static int stats_say(const char* figures) {
    int (*json)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "weir_stats_json");
    static char text[1 << 17];
    int fd = memfd_create("stats", 0);
    EXPECT_EQ(json(fd), 0);
    ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    return strstr(text, figures) != NULL;
}

static void test_stats(void) {
    void* volatile blocks[3];
    for (int i = 0; i < 3; i++) blocks[i] = malloc(20000);
    EXPECT(stats_say("{\"block_bytes\":20480,\"slabs\":0,\"live_blocks\":3,\"cached_blocks\":0,"));
    for (int i = 0; i < 3; i++) free(blocks[i]);
    EXPECT(stats_say("{\"block_bytes\":20480,\"slabs\":0,\"live_blocks\":0,\"cached_blocks\":3,"));
    malloc_trim(0);
    EXPECT(!stats_say("{\"block_bytes\":20480,"));
}

int main(void) {
    contract_begin();
    if (contract_is_weir()) test_stats();
    pthread_t threads[THREADS];
    for (int n = 0; n < SLOTS; n++) pthread_mutex_init(&slots[n].lock, NULL);
    for (uintptr_t i = 0; i < THREADS; i++) EXPECT_EQ(pthread_create(&threads[i], NULL, churn, (void*)i), 0);
    for (int i = 0; i < FORKS; i++) {
        for (int n = 0; n < SLOTS; n++) pthread_mutex_lock(&slots[n].lock);
        pid_t pid = fork();
        if (pid == 0) child();
        for (int n = 0; n < SLOTS; n++) pthread_mutex_unlock(&slots[n].lock);
        EXPECT_CHILD_OK(pid);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    slots_free();
    return contract_end();
}
