/* hugepages.c: a heap of small blocks whose walk misses the TLB, for one allocator: time and resident memory.
 *
 * Called by hugepages.py, or by hand under LD_PRELOAD. Builds a heap of blocks of 32 to 128 bytes, waits,
 * walks it in random order, frees a part of the blocks and waits again. The sequence is the same for every
 * allocator. It knows nothing of them: what became huge it reads from /proc/self/smaps_rollup.
 *
 *   table  a hash table with chains: look-ups of random keys, two or three dependent misses each
 *   tree   sorted records under a search tree that was built in one go: fifteen to twenty levels each
 *   chase  blocks linked into one random cycle: one dependent miss each
 *   pages  blocks of 1 to 16 KiB and no walk: what is freed among them goes back, or stays
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct node {
    struct node* next; /* table: chain; tree: left; chase: the next one */
    struct node* right;
    uint64_t key;
    char rest[]; /* to the block's size */
};

struct table {
    struct node** bucket;
    size_t mask;
};

static uint64_t state = 0x9e3779b97f4a7c15u;
static uint64_t random_next(void) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
}
static size_t random_below(size_t n) { return (size_t)(((unsigned __int128)random_next() * n) >> 64); }

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double proc_mib(const char* path, const char* name) {
    char line[256];
    double mib = -1;
    FILE* f = fopen(path, "r");
    if (f == NULL) return -1;
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':')
            mib = strtod(line + strlen(name) + 1, NULL) / 1024;
    fclose(f);
    return mib;
}

static void show(const char* what) {
    printf("\"%s_mib\": %.1f, \"%s_huge_mib\": %.1f, ", what, proc_mib("/proc/self/smaps_rollup", "Rss"),
           what, proc_mib("/proc/self/smaps_rollup", "AnonHugePages"));
}

static struct node* make(uint64_t key, bool pages) {
    size_t bytes = pages ? 1024 + 512 * (key % 31) : 32 + 16 * (key % 7);
    struct node* n = malloc(bytes);
    if (n == NULL) abort();
    memset(n, 1, bytes);
    n->key = key;
    n->next = n->right = NULL;
    return n;
}

/* The tree over node[0, count), whose keys ascend. */
static struct node* tree_build(struct node** node, size_t count) {
    if (count == 0) return NULL;
    struct node* top = node[count / 2];
    top->next = tree_build(node, count / 2);
    top->right = tree_build(node + count / 2 + 1, count - count / 2 - 1);
    return top;
}

static void shuffle(struct node** node, size_t count) {
    for (size_t i = count - 1; i > 0; i--) {
        size_t j = random_below(i + 1);
        struct node* n = node[i];
        node[i] = node[j];
        node[j] = n;
    }
}

static uint64_t walk(const char* shape, struct node* root, const struct table* t, size_t count,
                     size_t steps) {
    uint64_t sum = 0;
    struct node* n = root;
    for (size_t i = 0; i < steps; i++) {
        uint64_t key = shape[0] == 'c' ? 0 : random_below(count);
        if (shape[1] == 'a') /* table */
            for (n = t->bucket[key * 0x9e3779b97f4a7c15u >> 20 & t->mask]; n != NULL && n->key != key;)
                n = n->next;
        else if (shape[0] == 't')
            for (n = root; n != NULL && n->key != key;) n = key < n->key ? n->next : n->right;
        else
            n = n->next;
        if (n != NULL) sum += n->key;
    }
    return sum;
}

static void pause_for(double s) {
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

/* Until khugepaged has looked at all of memory so many times more. */
static void wait_for_scans(long more) {
    long first = -1;
    for (int i = 0; i < 6000; i++) {
        FILE* f = fopen("/sys/kernel/mm/transparent_hugepage/khugepaged/full_scans", "r");
        long now = -1;
        if (f == NULL || fscanf(f, "%ld", &now) != 1) now = -1;
        if (f != NULL) fclose(f);
        if (first == -1) first = now;
        /* One that is under way does not count. */
        if (now == -1 || now > first + more) return;
        pause_for(0.01);
    }
    fprintf(stderr, "hugepages: khugepaged does not come round\n");
}

static double argument(int count, char** words, const char* name, double otherwise) {
    for (int i = 1; i + 1 < count; i++)
        if (strcmp(words[i], name) == 0) return strtod(words[i + 1], NULL);
    return otherwise;
}

int main(int count, char** words) {
    const char* shape = count > 1 ? words[1] : "";
    if (strcmp(shape, "table") != 0 && strcmp(shape, "tree") != 0 && strcmp(shape, "chase") != 0 &&
        strcmp(shape, "pages") != 0) {
        fprintf(stderr, "hugepages table|tree|chase|pages [--mib 1024] [--steps 4e6] [--settle 3] [--free "
                        "0.02] [--idle 2] [--scans 0]\n");
        return 2;
    }
    bool pages = shape[0] == 'p';
    size_t nodes = (size_t)(argument(count, words, "--mib", 1024) * 1048576 / (pages ? 8704 : 80));
    size_t steps = (size_t)argument(count, words, "--steps", 4e6);
    struct node** node = malloc(nodes * sizeof *node);
    struct table table = {NULL, 1};
    while (table.mask < nodes) table.mask = table.mask * 2 + 1;
    if (shape[1] == 'a') table.bucket = calloc(table.mask + 1, sizeof *table.bucket);
    if (node == NULL || (shape[1] == 'a' && table.bucket == NULL)) return 1;

    printf("{\"shape\": \"%s\", ", shape);
    double start = seconds(CLOCK_MONOTONIC);
    for (size_t i = 0; i < nodes; i++) node[i] = make(i, pages);
    double built = seconds(CLOCK_MONOTONIC);
    if (shape[1] == 'a') {
        for (size_t i = 0; i < nodes; i++) {
            struct node** bucket = &table.bucket[node[i]->key * 0x9e3779b97f4a7c15u >> 20 & table.mask];
            node[i]->next = *bucket;
            *bucket = node[i];
        }
    }
    struct node* root = shape[0] == 't' ? tree_build(node, shape[1] == 'r' ? nodes : 0) : NULL;
    shuffle(node, nodes);
    if (shape[0] == 'c') {
        for (size_t i = 0; i < nodes; i++) node[i]->next = node[i + 1 == nodes ? 0 : i + 1];
        root = node[0];
    }
    show("built");
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    pause_for(argument(count, words, "--settle", 3));
    double settle_cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    show("settled");
    double before = seconds(CLOCK_THREAD_CPUTIME_ID);
    uint64_t sum = pages ? 0 : walk(shape, root, &table, nodes, steps);
    double walked = seconds(CLOCK_THREAD_CPUTIME_ID) - before;
    size_t gone = (size_t)((double)nodes * argument(count, words, "--free", 0.02));
    for (size_t i = 0; i < gone; i++) free(node[i]);
    pause_for(argument(count, words, "--idle", 2));
    show("freed");
    long scans = (long)argument(count, words, "--scans", 0);
    if (scans != 0) {
        wait_for_scans(scans);
        show("scanned");
    }
    printf("\"build_ns\": %.1f, \"settle_cpu_s\": %.3f, \"step_ns\": %.1f, \"sum\": %llu}\n",
           (built - start) * 1e9 / (double)nodes, settle_cpu, walked * 1e9 / (double)steps,
           (unsigned long long)sum);
    return 0;
}
