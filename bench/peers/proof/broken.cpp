/* broken.cpp: an allocator that takes over what it is told to, so that prove.py can be seen to fail.
 *
 * Built by prove.py --self-test, once for each fault: -DFAULT_x=1. Without a fault it is a whole and very
 * simple allocator: blocks come from one array and never go back. It deliberately knows nothing about the
 * proofs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#ifndef FAULT_silent /* exports nothing: the library is there and replaces nothing */
#    define FAULT_silent 0
#endif
#ifndef FAULT_c_only /* no operators, although it claims them */
#    define FAULT_c_only 0
#endif
#ifndef FAULT_no_calloc /* one function of the family is left to libc */
#    define FAULT_no_calloc 0
#endif
#ifndef FAULT_hollow /* all names are here, and the blocks are libc's */
#    define FAULT_hollow 0
#endif
#ifndef FAULT_yes_man /* its witness says yes to everything */
#    define FAULT_yes_man 0
#endif
#ifndef FAULT_asleep /* it does not run as it is meant to */
#    define FAULT_asleep 0
#endif

extern "C" {
void* __libc_malloc(std::size_t);
void __libc_free(void*);
}

namespace {

constexpr std::size_t ARENA_BYTES = std::size_t{256} << 20, HEADER_BYTES = 16;
alignas(4096) char arena[ARENA_BYTES];
std::atomic<std::size_t> used{HEADER_BYTES};

/* The block's size stands in the word before it. Relaxed: each caller has bytes of its own. */
void* block_new(std::size_t size, std::size_t align) {
    if (FAULT_hollow && align <= HEADER_BYTES) return __libc_malloc(size);
    std::size_t start = used.fetch_add(size + align + HEADER_BYTES, std::memory_order_relaxed) + HEADER_BYTES;
    std::uintptr_t block = (reinterpret_cast<std::uintptr_t>(arena) + start + align - 1) / align * align;
    if (start + align + size > ARENA_BYTES) return nullptr;
    std::memcpy(reinterpret_cast<void*>(block - sizeof size), &size, sizeof size);
    return reinterpret_cast<void*>(block);
}

bool in_arena(const void* block) {
    const char* p = static_cast<const char*>(block);
    return p >= arena && p < arena + ARENA_BYTES;
}

[[maybe_unused]] std::size_t block_size(const void* block) {
    std::size_t size = 0;
    if (block && in_arena(block))
        std::memcpy(&size, static_cast<const char*>(block) - sizeof size, sizeof size);
    return size;
}

[[maybe_unused]] void block_free(void* block) {
    if (FAULT_hollow && block && !in_arena(block)) __libc_free(block);
}

} // namespace

#if FAULT_silent
extern "C" void* unused_malloc(std::size_t size) { return block_new(size, HEADER_BYTES); }
#else
extern "C" {
bool broken_awake() { return !FAULT_asleep; }
int broken_owns(const void* block) { return FAULT_yes_man || in_arena(block); }
void* malloc(std::size_t size) { return block_new(size, HEADER_BYTES); }
void free(void* block) { block_free(block); }
#    if !FAULT_no_calloc
void* calloc(std::size_t count, std::size_t size) {
    void* block = block_new(count * size, HEADER_BYTES);
    return block ? std::memset(block, 0, count * size) : nullptr;
}
#    endif
void* realloc(void* old, std::size_t size) {
    void* block = block_new(size, HEADER_BYTES);
    std::size_t kept = block_size(old);
    if (block && old) std::memcpy(block, old, kept < size ? kept : size);
    return block;
}
void* reallocarray(void* old, std::size_t count, std::size_t size) { return realloc(old, count * size); }
void* memalign(std::size_t align, std::size_t size) { return block_new(size, align); }
void* aligned_alloc(std::size_t align, std::size_t size) { return block_new(size, align); }
void* valloc(std::size_t size) { return block_new(size, 4096); }
void* pvalloc(std::size_t size) { return block_new((size + 4095) / 4096 * 4096, 4096); }
int posix_memalign(void** result, std::size_t align, std::size_t size) {
    *result = block_new(size, align);
    return *result ? 0 : ENOMEM;
}
std::size_t malloc_usable_size(void* block) { return in_arena(block) ? block_size(block) : SIZE_MAX / 2; }
}

#    if !FAULT_c_only
void* operator new(std::size_t size) { return block_new(size, HEADER_BYTES); }
void* operator new[](std::size_t size) { return block_new(size, HEADER_BYTES); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return block_new(size, HEADER_BYTES); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
    return block_new(size, HEADER_BYTES);
}
void* operator new(std::size_t size, std::align_val_t align) { return block_new(size, std::size_t(align)); }
void* operator new[](std::size_t size, std::align_val_t align) { return block_new(size, std::size_t(align)); }
void* operator new(std::size_t size, std::align_val_t align, const std::nothrow_t&) noexcept {
    return block_new(size, std::size_t(align));
}
void* operator new[](std::size_t size, std::align_val_t align, const std::nothrow_t&) noexcept {
    return block_new(size, std::size_t(align));
}
void operator delete(void* block) noexcept { block_free(block); }
void operator delete[](void* block) noexcept { block_free(block); }
void operator delete(void* block, std::size_t) noexcept { block_free(block); }
void operator delete[](void* block, std::size_t) noexcept { block_free(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { block_free(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { block_free(block); }
void operator delete(void* block, std::align_val_t) noexcept { block_free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { block_free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { block_free(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { block_free(block); }
void operator delete(void* block, std::align_val_t, const std::nothrow_t&) noexcept { block_free(block); }
void operator delete[](void* block, std::align_val_t, const std::nothrow_t&) noexcept { block_free(block); }
#    endif
#endif
