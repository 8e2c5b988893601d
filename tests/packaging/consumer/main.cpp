/* main.cpp: the probe as a C++ program: the operators too are weir's, and what they throw is caught.
 * See probe.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "probe.h"

#include <map>
#include <new>
#include <string>

static int probe_new() {
    unsigned long long before = probe_calls();
    std::map<int, std::string> map;
    for (int i = 0; i < PROBE_BLOCKS; i++) map[i] = "long enough that it needs a block of its own";
    unsigned long long calls = probe_calls() - before;
    std::printf("new: %llu calls\n", calls);
    return calls >= 2 * PROBE_BLOCKS ? 0 : 1;
}

static int probe_throw() {
    volatile std::size_t much = ~std::size_t(0) / 2 - 4096;
    try {
        void* block = ::operator new(much);
        __asm__ volatile("" : "+r"(block) : : "memory"); // or clang's link-time optimisation drops the pair
        ::operator delete(block);
    } catch (const std::bad_alloc&) {
        std::printf("bad_alloc caught\n");
        return 0;
    }
    return 1;
}

int main() {
    int result = probe_malloc() | probe_new() | probe_throw();
    probe_show("malloc");
    probe_show("_Znwm");
    return result;
}
