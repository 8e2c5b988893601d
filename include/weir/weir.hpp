/* weir/weir.hpp: weir for C++: weir::allocator<T>, weir::memory_resource, weir::resource() for containers,
 * and weir::pool<T>.
 *
 * Who may include it: any C++17 program that is linked with weir (shared, archive or object); without
 * weir it does not link. It allocates by malloc, aligned_alloc and free, which weir provides in such a
 * program, and never by operator new: a program's own operator new does not see what its containers take
 * from here. Where another malloc stands in front of weir's (preloaded, or a sanitizer's), blocks come from
 * that one and go back to it. It deliberately knows nothing of how the heap is laid out.
 *
 * Works without exceptions and RTTI: what would be thrown ends the process then.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_WEIR_HPP
#define WEIR_WEIR_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#    error "weir/weir.hpp needs C++17 or newer"
#endif

#include <malloc.h>
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <utility>

#include "weir/pool.h"
#include "weir/weir.h"

#if defined(__cpp_constexpr_dynamic_alloc) && __cplusplus >= 202002L
#    define WEIR_CONSTEXPR_20 constexpr
#else
#    define WEIR_CONSTEXPR_20
#endif

namespace weir {

namespace detail {

/* The reference that makes a program without weir fail to link, rather than run on another malloc. */
[[gnu::used]] inline const char* (*const linked)() = &weir_version;

/* Whether a block of malloc is aligned enough. weir's always is to 16 bytes; other mallocs, which may stand
 * in front of it, align blocks below 16 bytes to 8. */
[[nodiscard]] inline bool is_malloc_aligned(std::size_t bytes, std::size_t align) noexcept {
    return align <= 8 || (align <= 16 && bytes >= align);
}

[[noreturn]] inline void throw_bad_alloc() {
#if defined(__cpp_exceptions)
    throw std::bad_alloc();
#else
    abort();
#endif
}

[[noreturn]] inline void throw_bad_array_new_length() {
#if defined(__cpp_exceptions)
    throw std::bad_array_new_length();
#else
    abort();
#endif
}

/* `bytes` bytes at a multiple of `align`, a power of two. As operator new: calls the new_handler while
 * there is one, then throws std::bad_alloc. */
[[nodiscard]] inline void* allocate(std::size_t bytes, std::size_t align) {
    for (;;) {
        void* block = nullptr;
        if (bytes <= PTRDIFF_MAX)
            block = is_malloc_aligned(bytes, align) ? ::malloc(bytes) : ::aligned_alloc(align, bytes);
        if (__builtin_expect(block != nullptr, 1)) return block;
        std::new_handler handler = std::get_new_handler();
        if (handler == nullptr) throw_bad_alloc();
        handler();
    }
}

/* The block's usable bytes. Compilers take the size in the call of malloc for all that may be touched;
 * behind the empty assembly they no longer know it. */
[[nodiscard]] inline std::size_t usable(void*& block) noexcept {
    __asm__("" : "+r"(block));
    return ::malloc_usable_size(block);
}

} // namespace detail

/** An allocator without state for the standard's containers; all of them are equal.
 *
 *  A block may be given back by any thread, and by free(). Over-aligned types are served. Throws
 *  std::bad_array_new_length when the size does not fit into size_t, std::bad_alloc when there is no
 *  memory. Thread-safe; not async-signal-safe. In C++20 usable in constant expressions, where memory is
 *  the compiler's. */
template <class T>
class allocator {
    static_assert(!std::is_const_v<T> && !std::is_volatile_v<T> && !std::is_reference_v<T>,
                  "an allocator's type is a plain object type");

  public:
    using value_type = T;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using propagate_on_container_move_assignment = std::true_type;
    using is_always_equal = std::true_type;

    constexpr allocator() noexcept = default;
    constexpr allocator(const allocator&) noexcept = default;
    template <class U>
    constexpr allocator(const allocator<U>&) noexcept {}
    constexpr allocator& operator=(const allocator&) noexcept = default;

    /** Room for `count` objects of type T, uninitialised. */
    [[nodiscard]] WEIR_CONSTEXPR_20 T* allocate(size_type count) {
#if __cplusplus >= 202002L
        if (std::is_constant_evaluated()) return std::allocator<T>().allocate(count);
#endif
        return static_cast<T*>(detail::allocate(bytes_of(count), alignof(T)));
    }

    /** Give back what allocate returned. */
    WEIR_CONSTEXPR_20 void deallocate(T* block, size_type count) noexcept {
#if __cplusplus >= 202002L
        if (std::is_constant_evaluated()) {
            std::allocator<T>().deallocate(block, count);
            return;
        }
#endif
        static_cast<void>(count);
        ::free(block);
    }

#if defined(__cpp_lib_allocate_at_least)
    /** Room for `count` objects or more: all that the block has. */
    [[nodiscard]] constexpr std::allocation_result<T*> allocate_at_least(size_type count) {
        if (std::is_constant_evaluated()) return {allocate(count), count};
        void* block = detail::allocate(bytes_of(count), alignof(T));
        size_type usable = detail::usable(block) / sizeof(T);
        return {static_cast<T*>(block), usable};
    }
#endif

    /** The largest `count` that can be asked for. */
    [[nodiscard]] constexpr size_type max_size() const noexcept {
        return static_cast<size_type>(PTRDIFF_MAX) / sizeof(T);
    }

  private:
    static size_type bytes_of(size_type count) {
        size_type bytes = 0;
        if (__builtin_mul_overflow(count, sizeof(T), &bytes)) detail::throw_bad_array_new_length();
        return bytes;
    }
};

template <class T, class U>
[[nodiscard]] constexpr bool operator==(const allocator<T>&, const allocator<U>&) noexcept {
    return true;
}
#if __cplusplus < 202002L
template <class T, class U>
[[nodiscard]] constexpr bool operator!=(const allocator<T>&, const allocator<U>&) noexcept {
    return false;
}
#endif

/** weir as a std::pmr::memory_resource. All objects of the class are equal; weir::resource() is one.
 *
 *  Alignments are powers of two. Throws std::bad_alloc. Thread-safe. */
class memory_resource final : public std::pmr::memory_resource {
    void* do_allocate(std::size_t bytes, std::size_t align) override {
        return detail::allocate(bytes, align);
    }
    void do_deallocate(void* block, std::size_t, std::size_t) override { ::free(block); }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
#if defined(__cpp_rtti)
        return dynamic_cast<const memory_resource*>(&other) != nullptr;
#else
        return this == &other;
#endif
    }
};

/** The one memory_resource that is there as long as the process is, also for destructors of statics. */
[[nodiscard]] inline std::pmr::memory_resource* resource() noexcept {
    alignas(memory_resource) static unsigned char room[sizeof(memory_resource)];
    static memory_resource* const one = ::new (static_cast<void*>(room)) memory_resource;
    return one;
}

/** A pool of objects of type T (weir/pool.h), over-aligned ones included.
 *
 *  allocate and deallocate are memory alone; create and destroy construct and destruct; make gives an owner
 * that gives the object back. All may be called by any thread; objects may be given back by any thread. The
 * pool's end gives its memory back when all objects came back; otherwise it says how many did not, and their
 * memory stays. */
template <class T>
class pool {
    static_assert(std::is_object_v<T> && !std::is_const_v<T> && !std::is_volatile_v<T>,
                  "a pool's type is a plain object type");

  public:
    /** Gives an object back to its pool. */
    class deleter {
      public:
        constexpr deleter() noexcept = default;
        explicit deleter(pool& of) noexcept : owner(&of) {}
        void operator()(T* object) const noexcept { owner->destroy(object); }

      private:
        pool* owner = nullptr;
    };
    using unique_ptr = std::unique_ptr<T, deleter>;

    /** `flags` as weir_pool_create has them. Throws std::bad_alloc. */
    explicit pool(const char* name, unsigned flags = 0)
        : one(weir_pool_create(name, sizeof(T), alignof(T), flags)) {
        if (one == nullptr) detail::throw_bad_alloc();
    }
    ~pool() { static_cast<void>(weir_pool_destroy(one)); }
    pool(const pool&) = delete;
    pool& operator=(const pool&) = delete;

    /** Room for an object; nullptr: no memory, or the pool's limit. */
    [[nodiscard]] T* try_allocate() noexcept { return static_cast<T*>(weir_pool_alloc(one)); }
    /** The same; throws std::bad_alloc. */
    [[nodiscard]] T* allocate() {
        T* object = try_allocate();
        if (object == nullptr) detail::throw_bad_alloc();
        return object;
    }
    void deallocate(T* object) noexcept { weir_pool_free(one, object); }

    /** A new object; throws std::bad_alloc, and what its constructor throws. */
    template <class... Arguments>
    [[nodiscard]] T* create(Arguments&&... arguments) {
        /* Gives the room back when the constructor throws. */
        struct room_owner {
            pool& of;
            T* room;
            ~room_owner() {
                if (room != nullptr) of.deallocate(room);
            }
        } room{*this, allocate()};
        T* object = ::new (static_cast<void*>(room.room)) T(std::forward<Arguments>(arguments)...);
        room.room = nullptr;
        return object;
    }
    void destroy(T* object) noexcept {
        if (object == nullptr) return;
        object->~T();
        deallocate(object);
    }
    template <class... Arguments>
    [[nodiscard]] unique_ptr make(Arguments&&... arguments) {
        return unique_ptr(create(std::forward<Arguments>(arguments)...), deleter(*this));
    }

    void flush() noexcept { weir_pool_flush(one); }
    /** For the calls that this class has no names for. */
    [[nodiscard]] weir_pool* get() noexcept { return one; }

  private:
    weir_pool* one;
};

} // namespace weir

#undef WEIR_CONSTEXPR_20
#endif
