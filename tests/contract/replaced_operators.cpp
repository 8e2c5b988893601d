/* replaced_operators.cpp: a program with operators of its own, of which it defines only the two basic ones.
 *
 * Who may call it: tests/contract/run.py. Its blocks begin behind a header, so that a pointer from its
 * operator new is no block of malloc, and its delete looks for that header. The other forms (arrays, nothrow,
 * sized) are the library's, and the standard has them call the program's. The aligned ones are a family of
 * their own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"

#include <new>
#include <string>
#include <vector>

static const uint64_t MARK = 0x6f776e20626c6f63ull;
static const size_t HEADER = 16;
static unsigned long given, taken;
static bool refuses;
static char* arena; /* where it is not NULL, memory comes from there */

void* operator new(std::size_t size) {
    if (refuses) throw std::bad_alloc();
    uint64_t* header = static_cast<uint64_t*>(arena != nullptr ? arena : malloc(size + HEADER));
    if (header == nullptr) throw std::bad_alloc();
    header[0] = MARK;
    given++;
    return reinterpret_cast<char*>(header) + HEADER;
}

#pragma GCC diagnostic ignored "-Wsized-deallocation" // that it is missing is the point
void operator delete(void* p) noexcept {
    if (p == nullptr) return;
    uint64_t* header = reinterpret_cast<uint64_t*>(static_cast<char*>(p) - HEADER);
    EXPECT(header[0] == MARK);
    header[0] = 0;
    taken++;
    if (arena == nullptr) free(header);
}

/* As the compiler would call it with or without sized deallocation. */
template <class Call>
static void pairs(Call call) {
    for (size_t size = 1; size < 3000; size += 7) {
        unsigned long before = given;
        void* p = nullptr;
        void (*release)(void*, size_t) = nullptr;
        call(size, p, release);
        EXPECT(p != nullptr);
        EXPECT_EQ(given, before + 1);
        before = taken;
        memset(p, 7, size);
        release(p, size);
        EXPECT_EQ(taken, before + 1);
    }
}

int main() {
    contract_begin();
    pairs([](size_t n, void*& p, void (*&release)(void*, size_t)) {
        p = ::operator new(n);
        release = [](void* q, size_t size) { ::operator delete(q, size); };
    });
    pairs([](size_t n, void*& p, void (*&release)(void*, size_t)) {
        p = ::operator new[](n);
        release = [](void* q, size_t) { ::operator delete[](q); };
    });
    pairs([](size_t n, void*& p, void (*&release)(void*, size_t)) {
        p = ::operator new[](n);
        release = [](void* q, size_t size) { ::operator delete[](q, size); };
    });
    pairs([](size_t n, void*& p, void (*&release)(void*, size_t)) {
        p = ::operator new(n, std::nothrow);
        release = [](void* q, size_t) { ::operator delete(q, std::nothrow); };
    });
    pairs([](size_t n, void*& p, void (*&release)(void*, size_t)) {
        p = ::operator new[](n, std::nothrow);
        release = [](void* q, size_t) { ::operator delete[](q, std::nothrow); };
    });
    {
        unsigned long before = given;
        std::vector<std::string> strings;
        for (int i = 0; i < 100; i++) strings.emplace_back(200, 'x');
        EXPECT(given - before >= 100);
    }
    EXPECT_EQ(given, taken);

    refuses = true;
    EXPECT(::operator new(8, std::nothrow) == nullptr);
    EXPECT(::operator new[](8, std::nothrow) == nullptr);
    bool thrown = false;
    try {
        delete[] new char[8];
    } catch (const std::bad_alloc&) {
        thrown = true;
    }
    EXPECT(thrown);
    refuses = false;

    /* As of a program that is linked to low addresses and has an array for its objects. */
    for (uintptr_t low = 1 << 16; low < 1ull << 36; low *= 4) {
        void* at = mmap(reinterpret_cast<void*>(low), 1 << 16, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (at != reinterpret_cast<void*>(low)) continue; /* somebody else's */
        arena = static_cast<char*>(at);
        unsigned long ended = taken;
        ::operator delete(::operator new(40), std::size_t{40});
        ::operator delete[](::operator new[](40), std::size_t{40});
        EXPECT_EQ(taken, ended + 2);
        munmap(at, 1 << 16);
    }
    arena = nullptr;
    ::operator delete(nullptr, std::size_t{40});

    unsigned long before = given;
    void* p = ::operator new(100, std::align_val_t(256));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 256, 0);
    ::operator delete(p, 100, std::align_val_t(256));
    p = ::operator new[](100, std::align_val_t(256), std::nothrow);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 256, 0);
    ::operator delete[](p, 100, std::align_val_t(256));
    EXPECT_EQ(given, before);
    return contract_end();
}
