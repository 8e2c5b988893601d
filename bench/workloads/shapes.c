/* shapes.c: what programs do with memory on one thread: growing arrays, a compiler's and an interpreter's
 * trees, big buffers.
 *
 * Who may call it: main.c, by the table at the end. It deliberately knows no allocator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "workload.h"

/* ---- growing arrays: `live` arrays, each grows by realloc up to `high` and starts again */
enum growth { DOUBLING, STEPPING, APPENDING };

static size_t grown(const struct load* load, size_t bytes) {
    size_t more = bytes / 8 + 64;
    if (load->variant == DOUBLING) more = bytes;
    if (load->variant == APPENDING) more = load->low;
    return (bytes + more) & ~(size_t)(WORD - 1);
}

static void grow(const struct load* load) {
    struct block* arrays = memory_map(load->live * sizeof *arrays);
    uint64_t state = 11;
    load_begin();
    for (uint64_t work = load->work; work; work--) {
        struct block* b = &arrays[choice(&state, load->live)];
        if (!b->at) {
            block_take(b, load->low, (uint32_t)work * 3);
            continue;
        }
        size_t before = b->bytes, bytes = grown(load, before);
        words_check(b);
        if (bytes > load->high) {
            block_drop(b);
            continue;
        }
        b->at = realloc(b->at, bytes);
        if (!b->at) give_up("realloc returned NULL");
        words_check(b);
        b->bytes = (uint32_t)bytes;
        words_put(b, before & ~(size_t)(PAGE - 1));
    }
    blocks_drop(arrays, load->live);
    load_end();
}

/* ---- buffers that are too long at first: `high` bytes are taken, from `low` to half of that are filled, and
 * the rest is given back by realloc, as a reader does that does not know how much comes */
static void shrink(const struct load* load) {
    struct block* buffers = memory_map(load->live * sizeof *buffers);
    struct sequence s = sequence_of(19, load->low);
    uint64_t state = 19;
    load_begin();
    for (uint64_t work = load->work; work; work--) {
        struct block* b = &buffers[choice(&state, load->live)];
        if (b->at) block_drop(b);
        size_t bytes = size_draw(&s, SIZE_UNIFORM, load->low, load->high / 2);
        *b = (struct block){malloc(load->high), (uint32_t)bytes, (uint32_t)work};
        if (!b->at) give_up("malloc returned NULL");
        words_put(b, 0);
        b->at = realloc(b->at, bytes);
        if (!b->at) give_up("realloc returned NULL");
        words_check(b);
    }
    blocks_drop(buffers, load->live);
    load_end();
}

/* ---- trees: nodes that know each other, so that nothing but the root is on record */
struct node {
    struct node *left, *right;
    uint64_t sum; /* of the depths below, and of its address */
};

static struct node* node_take(size_t bytes, struct node* left, struct node* right) {
    struct node* n = malloc(bytes);
    if (!n) give_up("malloc returned NULL");
    *n = (struct node){left, right, 0};
    n->sum = (uintptr_t)n + (left ? left->sum : 1) + (right ? right->sum : 2);
    return n;
}

static void node_check(const struct node* n) {
    if (n->sum != (uintptr_t)n + (n->left ? n->left->sum : 1) + (n->right ? n->right->sum : 2))
        give_up("a node has lost its content");
}

/* One that was given out twice is dropped twice, and then it differs. */
static void node_drop(struct node* n) {
    n->sum = 0;
    free(n);
}

static void list_drop(struct node* n) {
    for (struct node* next; n; n = next) {
        node_check(n);
        next = n->left;
        node_drop(n);
    }
}

static struct node* tree_take(unsigned depth) {
    struct node *left = depth ? tree_take(depth - 1) : NULL, *right = depth ? tree_take(depth - 1) : NULL;
    return node_take(sizeof(struct node), left, right);
}

static void tree_drop(struct node* n) {
    node_check(n);
    if (n->left) tree_drop(n->left);
    if (n->right) tree_drop(n->right);
    node_drop(n);
}

/* Trees of many depths come and go beside one that stays: an interpreter's. */
static void tree_binary(const struct load* load) {
    enum { DEPTH_STAYS = 16, DEPTH_MIN = 4, DEPTH_MAX = 14 };
    load_begin();
    struct node* stays = tree_take(DEPTH_STAYS);
    uint64_t done = (2u << DEPTH_STAYS) - 1;
    for (uint64_t work = 0; work < load->work;) {
        for (unsigned depth = DEPTH_MIN; depth <= DEPTH_MAX; depth += 2) {
            const unsigned trees = 1u << (DEPTH_MAX - depth);
            for (unsigned i = 0; i < trees; i++) tree_drop(tree_take(depth));
            work += 2u << DEPTH_MAX;
            done += (uint64_t)trees * ((2u << depth) - 1);
        }
    }
    tree_drop(stays);
    load_end();
    load_did(done);
}

/* A compiler: each function's nodes are taken as it is read, most are freed in order when it is done, and
 * symbols stay until the end. */
static void tree_compiler(const struct load* load) {
    enum { FUNCTION_NODES = 4000, STAY_OF = 16 };
    struct sizes* sizes = memory_map(sizeof *sizes);
    sizes_draw(sizes, load, 5);
    struct block* nodes = memory_map(FUNCTION_NODES * sizeof *nodes);
    size_t room = load->work / STAY_OF + FUNCTION_NODES, stay_count = 0;
    struct block* stay = memory_map(room * sizeof *stay);
    uint32_t seed = 0;
    load_begin();
    uint64_t work = 0;
    for (; work < load->work; work += FUNCTION_NODES) {
        for (size_t i = 0; i < FUNCTION_NODES; i++, seed++)
            block_take(&nodes[i], sizes->bytes[seed % SIZES], seed);
        for (size_t i = 0; i < FUNCTION_NODES; i++) {
            if (i % STAY_OF == 7 && stay_count < room)
                stay[stay_count++] = nodes[i];
            else
                block_drop(&nodes[i]);
        }
    }
    blocks_drop(stay, stay_count);
    load_end();
    load_did(work);
    memory_unmap(stay, room * sizeof *stay);
}

/* Lists of pairs that grow at their heads and are cut or thrown away: a Lisp's. */
static void tree_cons(const struct load* load) {
    struct node** heads = memory_map(load->live * sizeof *heads);
    uint64_t state = 13;
    load_begin();
    for (uint64_t work = load->work; work; work--) {
        struct node** head = &heads[choice(&state, load->live)];
        if (*head && choice(&state, 64) == 0) {
            list_drop(*head);
            *head = NULL;
        }
        *head = node_take(sizeof(struct node), *head, NULL);
    }
    for (size_t i = 0; i < load->live; i++) list_drop(heads[i]);
    load_end();
}

/* ---- big buffers: a few at a time, `variant` says whether all of it is written */
enum big_touch { ONE_WORD, PAGES };

static void big(const struct load* load) {
    struct sizes* sizes = memory_map(sizeof *sizes);
    sizes_draw(sizes, load, 6);
    struct block* buffers = memory_map(load->live * sizeof *buffers);
    uint64_t state = 17;
    load_begin();
    for (uint64_t work = 0; work < load->work; work++) {
        struct block* b = &buffers[choice(&state, load->live)];
        if (b->at) {
            word_check(b, 0);
            if (load->variant == PAGES) words_check(b);
            free(b->at);
        }
        *b = (struct block){malloc(sizes->bytes[work % SIZES]), sizes->bytes[work % SIZES], (uint32_t)work};
        if (!b->at) give_up("malloc returned NULL");
        word_put(b, 0);
        if (load->variant == PAGES) words_put(b, 0);
    }
    for (size_t i = 0; i < load->live; i++) {
        if (buffers[i].at) word_check(&buffers[i], 0);
        free(buffers[i].at);
    }
    load_end();
}

#define KIB 1024u
#define MIB (1024u * KIB)
const struct workload workloads_shapes[] = {
    {"grow/doubling",
     "arrays that double by realloc",
     grow,
     {16, 256 * KIB, 150000, 200, DOUBLING, 0},
     {1},
     CHECKED,
     TOLD},
    {"grow/stepping",
     "arrays that grow by an eighth by realloc",
     grow,
     {16, 256 * KIB, 150000, 200, STEPPING, 0},
     {1},
     CHECKED,
     TOLD},
    {"grow/large",
     "few arrays that grow to 64 MB by realloc",
     grow,
     {64 * KIB, 64 * MIB, 400, 2, STEPPING, 0},
     {1},
     CHECKED,
     TOLD},
    {"grow/appending",
     "a few arrays that grow to 16 MB by the same small step, in turns",
     grow,
     {32 * KIB, 16 * MIB, 2400, 4, APPENDING, 0},
     {1},
     CHECKED,
     TOLD},
    {"grow/recurring",
     "a few arrays that double to 16 MB and are freed, again and again",
     grow,
     {64, 16 * MIB, 4000, 4, DOUBLING, 0},
     {1},
     CHECKED,
     TOLD},
    {"grow/shrinking",
     "buffers of 1 MB that realloc cuts to what was filled",
     shrink,
     {4 * KIB, MIB, 8000, 200, 0, 0},
     {1},
     CHECKED,
     TOLD},
    {"tree/binary",
     "an interpreter's trees beside one that stays",
     tree_binary,
     {24, 25, 4000000, 0, 0, 0},
     {1},
     CHECKED,
     TOLD},
    {"tree/compiler",
     "a compiler's nodes: function by function, some stay",
     tree_compiler,
     {24, 257, 3000000, 0, 0, 0},
     {1},
     CHECKED,
     TOLD},
    {"tree/cons", "a Lisp's lists of pairs", tree_cons, {24, 25, 1500000, 5000, 0, 0}, {1}, CHECKED, TOLD},
    {"big/pages",
     "buffers of 1 to 32 MB, each page written",
     big,
     {MIB, 32 * MIB, 100, 4, PAGES, 0},
     {1},
     CHECKED,
     TOLD},
    {"big/word",
     "buffers of 1 to 32 MB, one word written",
     big,
     {MIB, 32 * MIB, 30000, 4, ONE_WORD, 0},
     {1},
     CHECKED,
     TOLD},
    {0},
};
