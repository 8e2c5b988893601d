/* plugin_new.cpp: a C++ plugin that brings libstdc++ into a program that had none.
 *
 * Who may call it: dlopen_new.c, which opens it late. Everything stays inside: what it throws it catches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cstddef>
#include <new>
#include <string>
#include <vector>

namespace {

int handler_calls;

void handler() {
    if (++handler_calls == 2) std::set_new_handler(nullptr);
}

} // namespace

/* Whether a `new` of n bytes throws std::bad_alloc. */
extern "C" int plugin_throws(std::size_t n) {
    try {
        char* volatile p = new char[n];
        delete[] p;
    } catch (const std::bad_alloc&) {
        return 1;
    } catch (...) {
        return -1;
    }
    return 0;
}

/* Whether an aligned `new` of n bytes throws std::bad_alloc. */
extern "C" int plugin_aligned_throws(std::size_t n) {
    try {
        ::operator delete(::operator new(n, std::align_val_t{128}), std::align_val_t{128});
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

/* How often the new_handler was called by a `new` that fails. */
extern "C" int plugin_handler_calls(std::size_t n) {
    handler_calls = 0;
    std::set_new_handler(handler);
    return plugin_throws(n) == 1 ? handler_calls : -1;
}

extern "C" int plugin_nothrow_null(std::size_t n) {
    char* volatile p = new (std::nothrow) char[n];
    bool is_null = p == nullptr;
    delete[] p;
    return is_null;
}

/* Work with memory; the sum is known to the caller. A block that the plugin made may be freed outside. */
extern "C" void* plugin_work(std::size_t count, std::size_t* bytes) {
    std::vector<std::string> strings;
    for (std::size_t i = 0; i < count; i++) strings.push_back(std::string(i, 'p'));
    *bytes = 0;
    for (const std::string& s : strings) *bytes += s.size();
    return new char[1000];
}
