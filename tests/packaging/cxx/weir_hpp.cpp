/* weir_hpp.cpp: weir::allocator and weir::memory_resource in the standard's containers.
 *
 * Who may run it: run.py, which compiles it under each standard, compiler and C++ library. Prints a line for
 * each check that fails and ends with their number. It deliberately knows the allocator's requirements and
 * weir's statistics alone; operator new is replaced here, so that what goes there is seen.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <weir/weir.hpp>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

static std::atomic<int> failures{0};
#define CHECK(x) ((x) ? void() : (void(std::printf("%s:%d: %s\n", __FILE__, __LINE__, #x)), void(failures++)))

/* The program's own operator new: weir::allocator must not call it. */
static std::atomic<unsigned long> new_calls{0};
void* operator new(std::size_t size) {
    new_calls++;
    void* block = std::malloc(size);
    if (block == nullptr) std::abort();
    return block;
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }

static weir_stats stats() {
    weir_stats all{};
    all.struct_size = static_cast<std::uint32_t>(sizeof all);
    CHECK(weir_stats_get(&all) == 0);
    return all;
}

template <class T>
static bool is_aligned(const T* object, std::size_t align = alignof(T)) {
    return reinterpret_cast<std::uintptr_t>(object) % align == 0;
}

struct alignas(256) Wide {
    char bytes[256];
};
struct Row {
    std::uint64_t words[9];
};

using Ints = std::vector<int, weir::allocator<int>>;
using String = std::basic_string<char, std::char_traits<char>, weir::allocator<char>>;
using Traits = std::allocator_traits<weir::allocator<int>>;

static_assert(std::is_same_v<Traits::value_type, int>);
static_assert(std::is_same_v<Traits::pointer, int*>);
static_assert(std::is_same_v<Traits::rebind_alloc<Wide>, weir::allocator<Wide>>);
static_assert(Traits::is_always_equal::value);
static_assert(Traits::propagate_on_container_move_assignment::value);
static_assert(std::is_empty_v<weir::allocator<int>>);
static_assert(std::is_nothrow_default_constructible_v<weir::allocator<void>>);
static_assert(std::is_nothrow_constructible_v<weir::allocator<Wide>, const weir::allocator<char>&>);
static_assert(weir::allocator<int>() == weir::allocator<char>());
static_assert(!(weir::allocator<int>() != weir::allocator<char>()));
static_assert(weir::allocator<Row>().max_size() == std::numeric_limits<std::ptrdiff_t>::max() / sizeof(Row));

#if __cplusplus >= 202002L
constexpr int constant() {
    Ints numbers;
    for (int i = 1; i <= 10; i++) numbers.push_back(i);
    int sum = 0;
    for (int number : numbers) sum += number;
    return sum;
}
static_assert(constant() == 55);
#endif

static void test_containers() {
    unsigned long news = new_calls;
    weir_stats before = stats();
    {
        Ints numbers;
        for (int i = 0; i < 100000; i++) numbers.push_back(i);
        CHECK(numbers.size() == 100000 && numbers[99999] == 99999);
        CHECK(stats().live_bytes >= before.live_bytes + 400000);
        std::list<Row, weir::allocator<Row>> rows(1000);
        std::map<int, String, std::less<>, weir::allocator<std::pair<const int, String>>> map;
        std::unordered_map<int, int, std::hash<int>, std::equal_to<>,
                           weir::allocator<std::pair<const int, int>>>
            table;
        for (int i = 0; i < 1000; i++) {
            map.emplace(i, String(40, static_cast<char>('a' + i % 26)));
            table[i] = i;
        }
        CHECK(map.at(27) == String(40, 'b') && table.size() == 1000 && rows.size() == 1000);
        Ints other = std::move(numbers);
        CHECK(other.size() == 100000);
        std::shared_ptr<Row> shared = std::allocate_shared<Row>(weir::allocator<void>());
        CHECK(shared.use_count() == 1);
        CHECK(stats().alloc_calls >= before.alloc_calls + 4000);
    }
    CHECK(new_calls == news);
    CHECK(stats().misuse_reports == 0);
}

static void test_alignment() {
    std::vector<Wide, weir::allocator<Wide>> wide(3);
    CHECK(is_aligned(wide.data()));
    weir::allocator<Wide> allocator;
    for (std::size_t count = 0; count < 400; count += 57) {
        Wide* block = allocator.allocate(count);
        CHECK(block != nullptr && is_aligned(block));
        allocator.deallocate(block, count);
    }
}

static void test_threads() {
    std::vector<Ints> made(8);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < made.size(); t++)
        threads.emplace_back([&made, t] { made[t].assign(10000, static_cast<int>(t)); });
    for (std::thread& thread : threads) thread.join();
    for (std::size_t t = 0; t < made.size(); t++) CHECK(made[t][9999] == static_cast<int>(t));
}

static void test_resource() {
    std::pmr::memory_resource* resource = weir::resource();
    CHECK(resource == weir::resource());
    weir::memory_resource another;
    CHECK(resource->is_equal(*resource));
#if defined(__cpp_rtti)
    CHECK(resource->is_equal(another) && another.is_equal(*resource));
#endif
    CHECK(!resource->is_equal(*std::pmr::new_delete_resource()));
    unsigned long news = new_calls;
    weir_stats before = stats();
    {
        std::pmr::vector<std::pmr::string> texts(resource);
        for (int i = 0; i < 1000; i++) texts.emplace_back("a text that is long enough for a block");
        CHECK(texts[999] == texts[0]);
        CHECK(stats().alloc_calls >= before.alloc_calls + 1000);
    }
    for (std::size_t align = 1; align <= 65536; align *= 2) {
        void* block = resource->allocate(100, align);
        CHECK(is_aligned(static_cast<char*>(block), align));
        resource->deallocate(block, 100, align);
    }
    CHECK(new_calls == news);
}

#if defined(__cpp_lib_allocate_at_least)
static void test_at_least() {
    weir::allocator<char> allocator;
    auto [block, count] = allocator.allocate_at_least(17);
    CHECK(count == 32);
    for (std::size_t i = 0; i < count; i++) block[i] = 'x';
    allocator.deallocate(block, count);
    weir::allocator<Wide> wide;
    auto room = wide.allocate_at_least(3);
    CHECK(room.count >= 3 && is_aligned(room.ptr));
    wide.deallocate(room.ptr, room.count);
}
#endif

#if defined(__cpp_exceptions)
template <class Expected, class Call>
static bool throws(Call call) {
    try {
        call();
    } catch (const Expected&) {
        return true;
    } catch (...) {
    }
    return false;
}

static int handler_calls;
static void handler() {
    if (++handler_calls == 3) std::set_new_handler(nullptr);
}

static void test_failure() {
    volatile std::size_t huge = std::numeric_limits<std::size_t>::max() / 8;
    weir::allocator<Row> rows;
    weir::allocator<char> chars;
    CHECK(throws<std::bad_array_new_length>([&] { rows.deallocate(rows.allocate(huge), huge); }));
    CHECK(throws<std::bad_alloc>([&] { chars.deallocate(chars.allocate(huge * 7), huge); }));
    CHECK(throws<std::bad_alloc>(
        [&] { weir::resource()->deallocate(weir::resource()->allocate(huge * 7), 1); }));
    CHECK(throws<std::length_error>([&] { Ints().reserve(weir::allocator<int>().max_size() + huge); }));
    std::set_new_handler(handler);
    CHECK(throws<std::bad_alloc>([&] { chars.deallocate(chars.allocate(huge * 7), huge); }));
    CHECK(handler_calls == 3);
}
#endif

int main() {
    test_containers();
    test_alignment();
    test_threads();
    test_resource();
#if defined(__cpp_lib_allocate_at_least)
    test_at_least();
#endif
#if defined(__cpp_exceptions)
    test_failure();
#endif
    int failed = failures;
    std::printf("weir.hpp, C++ %ld: %d failed\n", __cplusplus, failed);
    return failed == 0 ? 0 : 1;
}
