/* probe.cpp: calls every entry point of malloc and of C++'s operators, and tells in which library each of
 * them lies.
 *
 *     probe entries WITNESS [LEFT_OUT...]     every entry point in turn; those left out are looked at and not
 * called probe threads WITNESS                   blocks that four threads make, pass on and free
 *
 * prove.py runs it with an allocator preloaded, alone and under a debugger that counts the calls which
 * arrive. A line for each entry point: its name, the file of the function, calls, blocks that came of them,
 * blocks that the witness calls the allocator's own. The calls go through the very address that is looked up.
 * It deliberately does not judge.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "witness.h"

#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t ALIGNMENT = 256;
constexpr int CALLS = 16, THREADS = 4, ROUNDS = 50;
constexpr std::size_t SIZES[] = {24, 200, 4000, 40000, 300000};

enum class Shape {
    size, // allocate: void* (size)
    count_size,
    align_size,
    pointer_align_size, // posix_memalign
    old_size,           // realloc
    old_count_size,     // reallocarray
    size_nothrow,
    size_align,
    size_align_nothrow,
    block, // free: void (block)
    block_size,
    block_nothrow,
    block_align,
    block_size_align,
    block_align_nothrow,
    usable, // size_t (block)
};

struct Entry {
    const char* name;
    void* address;
    Shape shape;
    bool left_out = false;
    long calls = 0, blocks = 0, owned = 0;
};

template <typename Function>
void* address_of(Function* function) {
    return reinterpret_cast<void*>(function);
}

using Nothrow = const std::nothrow_t&;
using Align = std::align_val_t;
#define OPERATOR(result, name, ...) address_of<result(__VA_ARGS__)>(&operator name)

Entry entries[] = {
    {"malloc", address_of(&malloc), Shape::size},
    {"calloc", address_of(&calloc), Shape::count_size},
    {"realloc", address_of(&realloc), Shape::old_size},
    {"reallocarray", address_of(&reallocarray), Shape::old_count_size},
    {"aligned_alloc", address_of(&aligned_alloc), Shape::align_size},
    {"memalign", address_of(&memalign), Shape::align_size},
    {"posix_memalign", address_of(&posix_memalign), Shape::pointer_align_size},
    {"valloc", address_of(&valloc), Shape::size},
    {"pvalloc", address_of(&pvalloc), Shape::size},
    {"malloc_usable_size", address_of(&malloc_usable_size), Shape::usable},
    {"free", address_of(&free), Shape::block},
    {"_Znwm", OPERATOR(void*, new, std::size_t), Shape::size},
    {"_ZnwmRKSt9nothrow_t", OPERATOR(void*, new, std::size_t, Nothrow), Shape::size_nothrow},
    {"_ZnwmSt11align_val_t", OPERATOR(void*, new, std::size_t, Align), Shape::size_align},
    {"_ZnwmSt11align_val_tRKSt9nothrow_t", OPERATOR(void*, new, std::size_t, Align, Nothrow),
     Shape::size_align_nothrow},
    {"_ZdlPv", OPERATOR(void, delete, void*), Shape::block},
    {"_ZdlPvm", OPERATOR(void, delete, void*, std::size_t), Shape::block_size},
    {"_ZdlPvRKSt9nothrow_t", OPERATOR(void, delete, void*, Nothrow), Shape::block_nothrow},
    {"_ZdlPvSt11align_val_t", OPERATOR(void, delete, void*, Align), Shape::block_align},
    {"_ZdlPvmSt11align_val_t", OPERATOR(void, delete, void*, std::size_t, Align), Shape::block_size_align},
    {"_ZdlPvSt11align_val_tRKSt9nothrow_t", OPERATOR(void, delete, void*, Align, Nothrow),
     Shape::block_align_nothrow},
    {"_Znam", OPERATOR(void*, new[], std::size_t), Shape::size},
    {"_ZnamRKSt9nothrow_t", OPERATOR(void*, new[], std::size_t, Nothrow), Shape::size_nothrow},
    {"_ZnamSt11align_val_t", OPERATOR(void*, new[], std::size_t, Align), Shape::size_align},
    {"_ZnamSt11align_val_tRKSt9nothrow_t", OPERATOR(void*, new[], std::size_t, Align, Nothrow),
     Shape::size_align_nothrow},
    {"_ZdaPv", OPERATOR(void, delete[], void*), Shape::block},
    {"_ZdaPvm", OPERATOR(void, delete[], void*, std::size_t), Shape::block_size},
    {"_ZdaPvRKSt9nothrow_t", OPERATOR(void, delete[], void*, Nothrow), Shape::block_nothrow},
    {"_ZdaPvSt11align_val_t", OPERATOR(void, delete[], void*, Align), Shape::block_align},
    {"_ZdaPvmSt11align_val_t", OPERATOR(void, delete[], void*, std::size_t, Align), Shape::block_size_align},
    {"_ZdaPvSt11align_val_tRKSt9nothrow_t", OPERATOR(void, delete[], void*, Align, Nothrow),
     Shape::block_align_nothrow},
};

/* What frees a block has to fit what made it. */
const struct {
    const char *make, *release;
} pairs[] = {
    {"malloc", "free"},
    {"calloc", "free"},
    {"realloc", "free"},
    {"reallocarray", "free"},
    {"aligned_alloc", "free"},
    {"memalign", "free"},
    {"posix_memalign", "free"},
    {"valloc", "free"},
    {"pvalloc", "free"},
    {"_Znwm", "_ZdlPv"},
    {"_Znwm", "_ZdlPvm"},
    {"_ZnwmRKSt9nothrow_t", "_ZdlPvRKSt9nothrow_t"},
    {"_ZnwmSt11align_val_t", "_ZdlPvSt11align_val_t"},
    {"_ZnwmSt11align_val_t", "_ZdlPvmSt11align_val_t"},
    {"_ZnwmSt11align_val_tRKSt9nothrow_t", "_ZdlPvSt11align_val_tRKSt9nothrow_t"},
    {"_Znam", "_ZdaPv"},
    {"_Znam", "_ZdaPvm"},
    {"_ZnamRKSt9nothrow_t", "_ZdaPvRKSt9nothrow_t"},
    {"_ZnamSt11align_val_t", "_ZdaPvSt11align_val_t"},
    {"_ZnamSt11align_val_t", "_ZdaPvmSt11align_val_t"},
    {"_ZnamSt11align_val_tRKSt9nothrow_t", "_ZdaPvSt11align_val_tRKSt9nothrow_t"},
};

Entry* entry(const char* name) {
    for (Entry& e : entries) {
        if (std::strcmp(e.name, name) == 0) return &e;
    }
    std::fprintf(stderr, "probe: no entry point %s\n", name);
    std::exit(2);
}

template <typename Result, typename... Arguments>
Result call(const Entry& e, Arguments... arguments) {
    return reinterpret_cast<Result (*)(Arguments...)>(e.address)(arguments...);
}

void* made(const Entry& e, std::size_t size) {
    switch (e.shape) {
    case Shape::size:
        return call<void*>(e, size);
    case Shape::count_size:
        return call<void*>(e, std::size_t{1}, size);
    case Shape::align_size:
        return call<void*>(e, ALIGNMENT, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    case Shape::old_size:
        return call<void*>(e, static_cast<void*>(nullptr), size);
    case Shape::old_count_size:
        return call<void*>(e, static_cast<void*>(nullptr), std::size_t{1}, size);
    case Shape::size_nothrow:
        return call<void*, std::size_t, Nothrow>(e, size, std::nothrow);
    case Shape::size_align:
        return call<void*>(e, size, Align{ALIGNMENT});
    case Shape::size_align_nothrow:
        return call<void*, std::size_t, Align, Nothrow>(e, size, Align{ALIGNMENT}, std::nothrow);
    case Shape::pointer_align_size: {
        void* block = nullptr;
        return call<int>(e, &block, ALIGNMENT, size) == 0 ? block : nullptr;
    }
    default:
        return nullptr;
    }
}

void released(const Entry& e, void* block, std::size_t size) {
    switch (e.shape) {
    case Shape::block:
        return call<void>(e, block);
    case Shape::block_size:
        return call<void>(e, block, size);
    case Shape::block_nothrow:
        return call<void, void*, Nothrow>(e, block, std::nothrow);
    case Shape::block_align:
        return call<void>(e, block, Align{ALIGNMENT});
    case Shape::block_size_align:
        return call<void>(e, block, size, Align{ALIGNMENT});
    case Shape::block_align_nothrow:
        return call<void, void*, Align, Nothrow>(e, block, Align{ALIGNMENT}, std::nothrow);
    default:
        std::abort();
    }
}

void pair_run(Entry* make, Entry* release) {
    Entry* usable = entry("malloc_usable_size");
    if (make->left_out || release->left_out) return;
    for (int i = 0; i < CALLS; i++) {
        std::size_t size = SIZES[static_cast<std::size_t>(i) % (sizeof SIZES / sizeof SIZES[0])];
        void* block = made(*make, size);
        make->calls++;
        if (!block) continue;
        std::memset(block, i, size);
        make->blocks++;
        make->owned += witness_owns(block, size) == 1;
        if (call<std::size_t>(*usable, block) >= size) usable->blocks++;
        usable->calls++;
        released(*release, block, size);
        release->calls++;
    }
}

void entries_run() {
    for (const auto& pair : pairs) pair_run(entry(pair.make), entry(pair.release));
}

/* Each thread makes a block by malloc and one by new in each round and frees those of the thread before it.
 */
void threads_run() {
    static std::atomic<void*> passed[THREADS][2][ROUNDS];
    static std::atomic<long> blocks, owned;
    Entry *make[] = {entry("malloc"), entry("_Znwm")}, *release[] = {entry("free"), entry("_ZdlPv")};
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++) {
        threads.emplace_back([t, &make, &release] {
            for (int round = 0; round < ROUNDS; round++) {
                for (int kind = 0; kind < 2; kind++) {
                    std::size_t size =
                        SIZES[static_cast<std::size_t>(round) % (sizeof SIZES / sizeof SIZES[0])];
                    void* block = made(*make[kind], size);
                    if (!block) std::abort();
                    std::memset(block, round, size);
                    blocks.fetch_add(1, std::memory_order_relaxed);
                    owned.fetch_add(witness_owns(block, size) == 1, std::memory_order_relaxed);
                    /* Release pairs with the acquire below: the block's content is there before its address.
                     */
                    passed[t][kind][round].store(block, std::memory_order_release);
                }
            }
            for (int round = 0; round < ROUNDS; round++) {
                for (int kind = 0; kind < 2; kind++) {
                    void* block;
                    while (!(block = passed[(t + THREADS - 1) % THREADS][kind][round].load(
                                 std::memory_order_acquire))) {
                        std::this_thread::yield();
                    }
                    released(*release[kind], block, 0);
                }
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (Entry* e : {make[0], make[1], release[0], release[1]}) e->calls = long{THREADS} * ROUNDS;
    make[0]->blocks = blocks.load();
    make[0]->owned = owned.load();
}

/* A witness that says yes to everything is none: memory that no allocator gave must not be the allocator's.
 */
void strangers_show() {
    std::size_t size = SIZES[0];
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    alignas(16) char local[64] = {};
    if (page == MAP_FAILED) std::exit(2);
    witness_owns(page, size); // a witness that counts begins anew here
    std::printf("strangers\t%d\n", (witness_owns(page, size) == 1) + (witness_owns(local, size) == 1));
    munmap(page, 4096);
}

void entries_show() {
    for (const Entry& e : entries) {
        Dl_info info;
        const char* file = dladdr(e.address, &info) && info.dli_fname ? info.dli_fname : "?";
        std::printf("entry\t%s\t%s\t%ld\t%ld\t%ld\n", e.name, file, e.calls, e.blocks, e.owned);
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: probe entries|threads WITNESS [LEFT_OUT...]\n");
        return 2;
    }
    std::printf("witness\t%s\n", witness_open(argv[2]) != 0          ? "missing"
                                 : std::strcmp(argv[2], "none") == 0 ? "none"
                                                                     : "there");
    for (int i = 3; i < argc; i++) entry(argv[i])->left_out = true;
    if (std::strcmp(argv[1], "threads") == 0)
        threads_run();
    else
        entries_run();
    strangers_show();
    entries_show();
    return 0;
}
