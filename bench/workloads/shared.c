/* shared.c: blocks that pass between threads: servers, producers and consumers, false sharing, threads that
 * live for a moment.
 *
 * Who may call it: main.c, by the table at the end. It deliberately knows no allocator: lines of the cache
 * are 64 bytes here whatever the machine has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "workload.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

enum { STACK_BYTES = 1 << 17 };

static pthread_attr_t small_stack;

static void threads_prepare(int state) {
    pthread_attr_init(&small_stack);
    pthread_attr_setstacksize(&small_stack, STACK_BYTES);
    pthread_attr_setdetachstate(&small_stack, state);
}

static pthread_t thread_start(void* (*start)(void*), void* argument) {
    pthread_t thread;
    if (pthread_create(&thread, &small_stack, start, argument) != 0) give_up("no thread");
    return thread;
}

/* ---- server: a thread replaces blocks in an array, then hands it to a thread of its own making and ends
 * (P. Larson and M. Krishnan, ISMM 1998): what it finds there another thread took, about one free in ten. */
enum { SERVER_GENERATION = 10000 };

struct chain {
    struct block* blocks;
    uint64_t work, state;
    uint32_t seed;
};

static const struct load* served;
static struct sizes server_sizes;
static sem_t server_ended;

static void* server_thread(void* argument) {
    struct chain* c = argument;
    for (unsigned i = 0; i < SERVER_GENERATION && c->work; i++, c->work--, c->seed++) {
        struct block* b = &c->blocks[choice(&c->state, served->live)];
        if (b->at) block_drop(b);
        block_take(b, server_sizes.bytes[c->seed % SIZES], c->seed);
    }
    if (c->work) {
        thread_start(server_thread, c);
    } else {
        blocks_drop(c->blocks, served->live);
        sem_post(&server_ended);
    }
    return NULL;
}

static void server(const struct load* load) {
    served = load;
    sizes_draw(&server_sizes, load, 2);
    sem_init(&server_ended, 0, 0);
    threads_prepare(PTHREAD_CREATE_DETACHED);
    struct chain* chains = memory_map(load->threads * sizeof *chains);
    struct block* blocks = memory_map(load->threads * load->live * sizeof *blocks);
    load_begin();
    for (size_t i = 0; i < load->threads; i++) {
        chains[i] = (struct chain){blocks + i * load->live, load->work / load->threads + 1, i + 1, 0};
        thread_start(server_thread, &chains[i]);
    }
    for (size_t i = 0; i < load->threads; i++) {
        while (sem_wait(&server_ended) != 0) {
        }
    }
    load_end();
}

/* ---- producers and consumers: batches of `live` blocks through a queue; who takes blocks never frees one
 * (xmalloc-test, C. Lever and D. Boreham, USENIX 2000). `variant` says how many produce. Of small blocks 512
 * are a batch: with 64 the queue was asked for so often that most of the time was the kernel's, which has
 * threads wait for the queue's lock, and the same run took from 25 to 150 ms. */
enum producers { HALF, ONE, ALL_BUT_ONE };
enum { BATCHES_PER_THREAD = 4 };

struct batch {
    struct batch* next;
    struct block blocks[];
};

/* Sync: lock. A thread that has found it empty sleeps until there is one batch for each thread: where each
 * batch woke one, what a run takes is how often the kernel happens to let who was woken run at once. Not for
 * ever: of the batches that nobody has in hand, one of the two queues has half, and that is more. */
struct queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct batch* first;
    size_t count;
    int64_t to_come; /* full ones: so many more */
};

static struct queue free_batches = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, 0};
static struct queue full_batches = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, 0};
static const struct load* produced;
static struct sizes producer_sizes;
static size_t producer_count;
static _Atomic int64_t to_produce, to_consume; /* batches. Sync: relaxed, each is claimed once */

static void queue_put(struct queue* q, struct batch* b) {
    pthread_mutex_lock(&q->lock);
    b->next = q->first;
    q->first = b;
    bool last = --q->to_come == 0;
    if (++q->count == produced->threads || last) pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

static struct batch* queue_take(struct queue* q) {
    pthread_mutex_lock(&q->lock);
    while (!q->first) pthread_cond_wait(&q->filled, &q->lock);
    struct batch* b = q->first;
    q->first = b->next;
    q->count--;
    pthread_mutex_unlock(&q->lock);
    return b;
}

static void producer_job(size_t number) {
    bool produces = number < producer_count;
    _Atomic int64_t* left = produces ? &to_produce : &to_consume;
    uint32_t seed = (uint32_t)number << 24;
    while (atomic_fetch_sub_explicit(left, 1, memory_order_relaxed) > 0) {
        struct batch* b = queue_take(produces ? &free_batches : &full_batches);
        for (size_t i = 0; produces && i < produced->live; i++, seed++)
            block_take(&b->blocks[i], producer_sizes.bytes[seed % SIZES], seed);
        if (!produces) blocks_drop(b->blocks, produced->live);
        queue_put(produces ? &full_batches : &free_batches, b);
    }
}

static void producers(const struct load* load) {
    produced = load;
    sizes_draw(&producer_sizes, load, 3);
    unsigned threads = load->threads;
    producer_count = load->variant == HALF ? threads / 2 : load->variant == ONE ? 1 : threads - 1;
    to_produce = to_consume = full_batches.to_come = (int64_t)(load->work / load->live + 1);
    size_t count = (size_t)threads * BATCHES_PER_THREAD;
    size_t bytes = sizeof(struct batch) + load->live * sizeof(struct block);
    char* batches = memory_map(count * bytes);
    for (size_t i = 0; i < count; i++) queue_put(&free_batches, (struct batch*)(void*)(batches + i * bytes));
    load_on_threads(load, producer_job);
}

/* ---- exchange: threads replace blocks of their own, and every second 64 new ones go to another thread, each
 * in turn, which frees them when it next looks (rpmalloc-benchmark, M. Jansson 2017). A thread all of whose
 * parcels are under way opens what came and lets others run; who is done goes on to open until all are. */
enum { PARCEL_BLOCKS = 64, PARCELS = 32 };

struct parcel {
    struct parcel* next;
    size_t from;
    struct block blocks[PARCEL_BLOCKS];
};

/* Sync: atomic; whoever takes a list takes all of it. */
struct trader {
    _Alignas(64) _Atomic(struct parcel*) came; /* from others */
    _Alignas(64) _Atomic(struct parcel*) back; /* its own, empty again */
};

static const struct load* exchanged;
static struct sizes exchange_sizes;
static struct trader* traders;
static struct parcel* parcels;
static struct block* exchange_blocks;
static _Atomic unsigned traders_done;

static void parcel_put(_Atomic(struct parcel*)* list, struct parcel* p) {
    p->next = atomic_load_explicit(list, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(list, &p->next, p, memory_order_release,
                                                  memory_order_relaxed)) {
    }
}

static void parcels_open(struct trader* t) {
    struct parcel* next;
    for (struct parcel* p = atomic_exchange_explicit(&t->came, NULL, memory_order_acquire); p; p = next) {
        next = p->next;
        blocks_drop(p->blocks, PARCEL_BLOCKS);
        parcel_put(&traders[p->from].back, p);
    }
}

static struct parcel* parcels_back(struct trader* t) {
    struct parcel* p;
    while (!(p = atomic_exchange_explicit(&t->back, NULL, memory_order_acquire))) {
        parcels_open(t);
        sched_yield();
    }
    return p;
}

static void exchange_job(size_t number) {
    const uint32_t live = exchanged->live;
    struct trader* t = &traders[number];
    struct block* blocks = exchange_blocks + number * live;
    struct parcel* empty = NULL;
    size_t to = number;
    uint64_t state = 0x5eed + number;
    uint32_t seed = (uint32_t)number << 24;
    for (unsigned i = 0; i < PARCELS; i++) {
        struct parcel* p = &parcels[number * PARCELS + i];
        *p = (struct parcel){empty, number, {{0}}};
        empty = p;
    }
    for (uint64_t rounds = exchanged->work / exchanged->threads / PARCEL_BLOCKS + 1; rounds; rounds--) {
        parcels_open(t);
        if (!empty) empty = parcels_back(t);
        struct parcel* p = rounds % 2 ? empty : NULL;
        for (unsigned i = 0; i < PARCEL_BLOCKS; i++, seed++) {
            struct block* b = p ? &p->blocks[i] : &blocks[choice(&state, live)];
            if (b->at) block_drop(b);
            block_take(b, exchange_sizes.bytes[seed % SIZES], seed);
        }
        if (!p) continue;
        empty = p->next;
        to = (to + 1) % exchanged->threads;
        if (to == number) to = (to + 1) % exchanged->threads;
        parcel_put(&traders[to].came, p);
    }
    blocks_drop(blocks, live);
    atomic_fetch_add(&traders_done, 1);
    while (atomic_load(&traders_done) != exchanged->threads) {
        parcels_open(t);
        sched_yield();
    }
    parcels_open(t);
}

static void exchange(const struct load* load) {
    exchanged = load;
    sizes_draw(&exchange_sizes, load, 11);
    traders = memory_map(load->threads * sizeof *traders);
    parcels = memory_map(load->threads * PARCELS * sizeof *parcels);
    exchange_blocks = memory_map(load->threads * load->live * sizeof *exchange_blocks);
    load_on_threads(load, exchange_job);
}

/* ---- false sharing: each thread writes to a small block of its own many times. Active: it takes the block
 * itself. Passive: the main thread took all of them one after the other, and a thread that frees one may be
 * given it again (E. Berger and others, Hoard, ASPLOS 2000). The main thread keeps one meanwhile: of three
 * that are in use at once, two are one block where every second call gives the last one again. */
enum sharing { ACTIVE, PASSIVE };
enum { SHARING_WRITES = 64 };

static const struct load* sharing_load;
static struct block* sharing_blocks;
static pthread_barrier_t sharing_all_have_one;

static void sharing_job(size_t number) {
    struct block mine = sharing_blocks[number];
    uint32_t seed = (uint32_t)number;
    if (!mine.at) block_take(&mine, sharing_load->low, seed);
    pthread_barrier_wait(&sharing_all_have_one);
    for (uint64_t work = sharing_load->work / sharing_load->threads + 1; work; work--, seed++) {
        if (!mine.at) block_take(&mine, sharing_load->low, seed);
        volatile uint64_t* word = (volatile uint64_t*)(void*)mine.at;
        uint64_t before = *word;
        for (unsigned i = 0; i < SHARING_WRITES; i++) *word = *word + 1;
        *word = *word - SHARING_WRITES;
        if (*word != before) give_up("a block has lost its content");
        block_drop(&mine);
    }
}

static void sharing(const struct load* load) {
    sharing_load = load;
    sharing_blocks = memory_map(load->threads * sizeof *sharing_blocks);
    for (size_t i = 0; load->variant == PASSIVE && i < load->threads; i++)
        block_take(&sharing_blocks[i], load->low, (uint32_t)i);
    struct block kept;
    block_take(&kept, load->low, 1u << 31); /* nobody else's content */
    pthread_barrier_init(&sharing_all_have_one, NULL, load->threads);
    load_on_threads(load, sharing_job);
    block_drop(&kept);
}

/* ---- short threads: each takes some blocks, frees half of them and leaves the others to who joins it */
enum { SHORT_BLOCKS = 64 };

static const struct load* short_load;
static struct sizes short_sizes;

static void* short_thread(void* argument) {
    struct block* blocks = argument;
    for (uint32_t i = 0; i < SHORT_BLOCKS; i++) block_take(&blocks[i], short_sizes.bytes[i], i);
    for (uint32_t i = 0; i < SHORT_BLOCKS; i += 2) block_drop(&blocks[i]);
    return NULL;
}

static void short_threads(const struct load* load) {
    short_load = load;
    sizes_draw(&short_sizes, load, 4);
    threads_prepare(PTHREAD_CREATE_JOINABLE);
    unsigned threads = load->threads;
    pthread_t* running = memory_map(threads * sizeof *running);
    struct block* blocks = memory_map((size_t)threads * SHORT_BLOCKS * sizeof *blocks);
    load_begin();
    for (uint64_t work = 0; work < load->work; work += (uint64_t)threads * SHORT_BLOCKS) {
        for (unsigned i = 0; i < threads; i++)
            running[i] = thread_start(short_thread, blocks + i * SHORT_BLOCKS);
        for (unsigned i = 0; i < threads; i++) {
            pthread_join(running[i], NULL);
            blocks_drop(blocks + i * SHORT_BLOCKS, SHORT_BLOCKS);
        }
    }
    load_end();
}

const struct workload workloads_shared[] = {
    {"server",
     "a server: threads free what other threads took, and hand on what they have",
     server,
     {16, 1025, 1500000, 1000, 0, 0},
     {1, 2, 4, 8, 64},
     CHECKED,
     TOLD},
    {"exchange",
     "threads with blocks of their own hand some over to each other",
     exchange,
     {16, 16 * 1024 + 1, 1000000, 1000, 0, 0},
     {2, 8},
     CHECKED,
     TOLD},
    {"producers/half",
     "one half of the threads takes blocks, the other frees them",
     producers,
     {16, 513, 1500000, 512, HALF, 0},
     {2, 4, 8, 64},
     CHECKED,
     TOLD},
    {"producers/one",
     "one thread takes blocks, all others free them",
     producers,
     {16, 513, 1500000, 512, ONE, 0},
     {4, 8},
     CHECKED,
     TOLD},
    {"producers/most",
     "all threads but one take blocks, that one frees them",
     producers,
     {16, 513, 1500000, 512, ALL_BUT_ONE, 0},
     {4, 8},
     CHECKED,
     TOLD},
    {"producers/messages",
     "one half of the threads takes blocks of one size, the other frees them",
     producers,
     {512, 513, 1500000, 512, HALF, 0},
     {2, 8},
     CHECKED,
     TOLD},
    {"producers/buffers",
     "one half of the threads takes buffers, the other frees them",
     producers,
     {2048, 65537, 300000, 64, HALF, 0},
     {2, 8},
     CHECKED,
     TOLD},
    {"sharing/active",
     "threads write to small blocks that each took",
     sharing,
     {16, 17, 1000000, 0, ACTIVE, 0},
     {2, 4, 8},
     CHECKED,
     TOLD},
    {"sharing/passive",
     "threads write to small blocks that one thread took",
     sharing,
     {16, 17, 1000000, 0, PASSIVE, 0},
     {2, 4, 8},
     CHECKED,
     TOLD},
    {"threads",
     "many threads that live for a moment",
     short_threads,
     {16, 4097, 400000, 0, 0, 0},
     {1, 8, 64},
     CHECKED,
     TOLD},
    {0},
};
