/* own.cpp: the probe in a program that replaces operators new and delete: its own are called, and malloc is
 * weir's all the same. See probe.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "probe.h"

#include <new>
#include <string>

static unsigned long own_calls;
void* operator new(std::size_t size) {
    own_calls++;
    void* block = std::malloc(size);
    if (block == nullptr) throw std::bad_alloc();
    return block;
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }

int main() {
    int result = probe_malloc();
    unsigned long before = own_calls;
    for (int i = 0; i < PROBE_BLOCKS; i++) delete[] new int[10];
    std::string text(100, 'x');
    std::printf("own: %lu calls\n", own_calls - before);
    probe_show("malloc");
    return own_calls - before > PROBE_BLOCKS && text[99] == 'x' ? result : 1;
}
