/* pool_burst.c: one second after a burst a pool's memory is what is needed, whether the process idles or
 * works on.
 *
 * Who may call it: tests/contract/run.py. What is needed is what the pool says that it holds: objects in use
 * and in the thread's cache; the resident set is the kernel's figure. glibc's malloc has no pools.
 *
 * contract: name=large_idle args=2097152,200,20,idle glibc=skip
 * contract: name=large_busy args=2097152,200,20,busy glibc=skip
 * contract: name=medium_idle args=16384,20000,2000,idle glibc=skip
 * contract: name=medium_busy args=16384,20000,2000,busy glibc=skip
 * contract: name=small_idle args=1024,200000,20000,idle glibc=skip
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#pragma weak weir_pool_create
#pragma weak weir_pool_alloc
#pragma weak weir_pool_free
#pragma weak weir_pool_stats_get
#pragma weak weir_pool_flush
#include "weir/pool.h"

enum { OBJECTS_MAX = 200000, LATE_MS = 1000, ATTEMPTS = 3 };

static void* objects[OBJECTS_MAX];

static uint64_t clock_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static size_t resident(void) {
    char text[128];
    int fd = open("/proc/self/statm", O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n < 0 ? 0 : n] = '\0';
    return strtoul(strchr(text, ' '), NULL, 10) * (size_t)sysconf(_SC_PAGESIZE);
}

static void turn_over(struct weir_pool* pool, size_t size, unsigned count) {
    for (unsigned i = 0; i < count; i++) weir_pool_free(pool, objects[i]);
    for (unsigned i = 0; i < count; i++) {
        objects[i] = weir_pool_alloc(pool);
        memset(objects[i], 2, size);
    }
}

/* Whether a second after a burst of `burst` objects, of which `kept` stay, the memory is what is needed. */
static int goes_back(struct weir_pool* pool, size_t size, unsigned burst, unsigned kept, int busy,
                     size_t before) {
    for (unsigned i = 0; i < burst; i++) {
        objects[i] = weir_pool_alloc(pool);
        EXPECT(objects[i] != NULL);
        memset(objects[i], 1, size);
    }
    size_t peak = resident() - before;
    EXPECT(peak >= (burst - kept) * size);
    for (unsigned i = kept; i < burst; i++) weir_pool_free(pool, objects[i]);
    uint64_t start = clock_ms();
    while (clock_ms() - start < LATE_MS) {
        if (busy) turn_over(pool, size, kept);
        usleep(1000);
    }
    struct weir_pool_stats s = {.struct_size = sizeof s};
    EXPECT_EQ(weir_pool_stats_get(pool, &s), 0);
    EXPECT_EQ(s.used, kept);
    size_t now = resident() - before;
    int good = now <= s.needed * size * 11 / 10 && s.needed <= (s.used + s.held) * 11 / 10 + 2;
    if (!good)
        contract_say(1, "%zu bytes resident, needed %zu, used %zu, held %zu\n", now,
                     (size_t)(s.needed * size), (size_t)s.used, (size_t)s.held);
    for (unsigned i = 0; i < kept; i++) weir_pool_free(pool, objects[i]);
    weir_pool_flush(pool);
    return good;
}

int main(int argc, char** argv) {
    contract_begin();
    EXPECT(weir_pool_create != NULL && argc == 5);
    if (weir_pool_create == NULL || argc != 5) return contract_end();
    size_t size = strtoul(argv[1], NULL, 10);
    unsigned burst = (unsigned)strtoul(argv[2], NULL, 10);
    unsigned kept = (unsigned)strtoul(argv[3], NULL, 10);
    memset(objects, 1, sizeof objects); /* resident before the first look */
    struct weir_pool* pool = weir_pool_create("burst", size, 0, 0);
    /* On a machine that is busy with other things the helper thread may come late: once in three is enough.
     */
    int good = 0;
    size_t before = resident();
    for (unsigned i = 0; i < ATTEMPTS && !good; i++)
        good = goes_back(pool, size, burst, kept, strcmp(argv[4], "busy") == 0, before);
    EXPECT(good);
    return contract_end();
}
