/* new_delete.cpp: the 8 operators new and the 12 operators delete.
 *
 * Who may call it: tests/contract/run.py. Every new is paired with every delete that the standard pairs
 * it with; failure calls the new_handler in a loop, throws std::bad_alloc, or gives nullptr.
 *
 * contract: cflags=-faligned-new
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace {

const std::size_t kTooLarge = static_cast<std::size_t>(PTRDIFF_MAX) + 1;
int handler_calls;

void handler_that_throws() {
    ++handler_calls;
    throw std::bad_alloc();
}

void handler_that_gives_up_third() {
    if (++handler_calls == 3) std::set_new_handler(nullptr);
}

struct other_error {};

/* The standard wants bad_alloc; nothrow new lets anything else through only by std::terminate. */
void handler_that_throws_other() { throw other_error(); }

using allocate = void* (*)(std::size_t, std::size_t);
using release = void (*)(void*, std::size_t, std::size_t);

std::align_val_t al(std::size_t a) { return static_cast<std::align_val_t>(a); }

const allocate plain_news[] = {
    [](std::size_t n, std::size_t) { return ::operator new(n); },
    [](std::size_t n, std::size_t) { return ::operator new(n, std::nothrow); },
    [](std::size_t n, std::size_t) { return ::operator new[](n); },
    [](std::size_t n, std::size_t) { return ::operator new[](n, std::nothrow); },
};
const allocate aligned_news[] = {
    [](std::size_t n, std::size_t a) { return ::operator new(n, al(a)); },
    [](std::size_t n, std::size_t a) { return ::operator new(n, al(a), std::nothrow); },
    [](std::size_t n, std::size_t a) { return ::operator new[](n, al(a)); },
    [](std::size_t n, std::size_t a) { return ::operator new[](n, al(a), std::nothrow); },
};
const release plain_deletes[] = {
    [](void* p, std::size_t, std::size_t) { ::operator delete(p); },
    [](void* p, std::size_t, std::size_t) { ::operator delete(p, std::nothrow); },
    [](void* p, std::size_t n, std::size_t) { ::operator delete(p, n); },
    [](void* p, std::size_t, std::size_t) { ::operator delete[](p); },
    [](void* p, std::size_t, std::size_t) { ::operator delete[](p, std::nothrow); },
    [](void* p, std::size_t n, std::size_t) { ::operator delete[](p, n); },
};
const release aligned_deletes[] = {
    [](void* p, std::size_t, std::size_t a) { ::operator delete(p, al(a)); },
    [](void* p, std::size_t, std::size_t a) { ::operator delete(p, al(a), std::nothrow); },
    [](void* p, std::size_t n, std::size_t a) { ::operator delete(p, n, al(a)); },
    [](void* p, std::size_t, std::size_t a) { ::operator delete[](p, al(a)); },
    [](void* p, std::size_t, std::size_t a) { ::operator delete[](p, al(a), std::nothrow); },
    [](void* p, std::size_t n, std::size_t a) { ::operator delete[](p, n, al(a)); },
};

template <std::size_t N, std::size_t M>
void pair_all(const allocate (&news)[N], const release (&deletes)[M], std::size_t alignment) {
    const std::size_t sizes[] = {0, 1, 8, 24, 100, 1000, 1025, 5000, 70000, 1 << 20};
    for (std::size_t n : sizes)
        for (allocate make : news)
            for (release end : deletes) {
                void* p = make(n, alignment);
                void* q = make(n, alignment);
                EXPECT(p != nullptr && q != nullptr && p != q);
                EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % alignment, 0);
                EXPECT_GE(malloc_usable_size(p), n);
                contract_fill(p, n, 1);
                contract_fill(q, n, 2);
                EXPECT(contract_holds(p, n, 1));
                errno = 99;
                end(p, n, alignment);
                end(q, n, alignment);
                EXPECT_EQ(errno, 99);
            }
    for (release end : deletes) end(nullptr, 0, alignment);
}

template <typename Error, typename Call>
bool throws(Call call) {
    try {
        void* p = call();
        contract_opaque_pointer(p);
    } catch (const Error&) {
        return true;
    }
    return false;
}

void test_failures(const allocate (&news)[4], std::size_t alignment) {
    std::size_t n = contract_opaque(kTooLarge);
    for (int i = 0; i < 4; i++) {
        bool is_nothrow = i % 2 == 1;
        auto call = [&] { return news[i](n, alignment); };

        std::set_new_handler(nullptr);
        if (is_nothrow)
            EXPECT(call() == nullptr);
        else
            EXPECT(throws<std::bad_alloc>(call));

        handler_calls = 0;
        std::set_new_handler(handler_that_throws);
        if (is_nothrow)
            EXPECT(call() == nullptr);
        else
            EXPECT(throws<std::bad_alloc>(call));
        EXPECT_EQ(handler_calls, 1);

        handler_calls = 0;
        std::set_new_handler(handler_that_gives_up_third);
        if (is_nothrow)
            EXPECT(call() == nullptr);
        else
            EXPECT(throws<std::bad_alloc>(call));
        EXPECT_EQ(handler_calls, 3);

        if (!is_nothrow) {
            std::set_new_handler(handler_that_throws_other);
            EXPECT(throws<other_error>(call));
        }
        std::set_new_handler(nullptr);
    }
}

struct alignas(128) wide {
    char bytes[200];
};

struct throws_in_constructor {
    char bytes[100];
    throws_in_constructor() { throw other_error(); }
};

void test_expressions() {
    volatile std::size_t count = kTooLarge;
    EXPECT(throws<std::bad_alloc>([&] { return new char[count]; }));
    EXPECT(throws<std::bad_array_new_length>([&] { return new double[count]; }));
    EXPECT((new (std::nothrow) char[count]) == nullptr);
    EXPECT(throws<other_error>([] { return new throws_in_constructor; }));
    std::unique_ptr<wide> one(new wide);
    std::unique_ptr<wide[]> many(new wide[7]);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(one.get()) % 128, 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(many.get()) % 128, 0);
    std::map<std::string, std::vector<int>> map;
    for (int i = 0; i < 5000; i++)
        map["a key that is longer than the small string buffer " + std::to_string(i)].assign(i % 50, i);
    std::thread([taken = std::move(map)]() mutable {
        EXPECT_EQ(taken.size(), 5000);
        taken.clear();
    }).join();
    /* Many failures in a row leave the heap sound. */
    for (int i = 0; i < 1000; i++)
        if (!throws<std::bad_alloc>([&] { return ::operator new(count); })) EXPECT(!"throws each time");
}

void test_operators_are_the_library_s() {
    if (std::getenv("CONTRACT_LIB") == nullptr) return;
    static const char* const names[] = {
        "_Znwm",
        "_Znam",
        "_ZnwmSt11align_val_t",
        "_ZnamSt11align_val_t",
        "_ZdlPv",
        "_ZdaPv",
        "_ZdlPvm",
        "_ZdaPvm",
        "_ZdlPvSt11align_val_t",
        "_ZdaPvSt11align_val_t",
        "_ZdlPvmSt11align_val_t",
        "_ZdaPvmSt11align_val_t",
    };
    for (const char* name : names)
        if (!EXPECT(contract_is_from_lib(dlsym(RTLD_DEFAULT, name))))
            contract_say(1, "  %s is not the library's\n", name);
}

} // namespace

/* Also as the first that is deleted at all: each form in a process that has deleted nothing. */
void test_null_comes_first() {
    for (std::size_t size : {0, 1, 8, 1024, 1 << 20})
        for (bool array : {false, true}) {
            pid_t child = fork();
            if (child == 0) {
                void* volatile none = nullptr;
                if (array)
                    ::operator delete[](none, size);
                else
                    ::operator delete(none, size);
                _exit(0);
            }
            int status = -1;
            EXPECT_EQ(waitpid(child, &status, 0), child);
            EXPECT_EQ(status, 0);
        }
}

int main() {
    contract_begin();
    test_null_comes_first();
    test_operators_are_the_library_s();
    pair_all(plain_news, plain_deletes, 16);
    for (std::size_t alignment : {std::size_t{1}, std::size_t{8}, std::size_t{16}, std::size_t{64},
                                  std::size_t{4096}, std::size_t{1} << 17})
        pair_all(aligned_news, aligned_deletes, alignment);
    test_failures(plain_news, 16);
    test_failures(aligned_news, 64);
    test_expressions();
    return contract_end();
}
