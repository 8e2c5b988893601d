// address_space.h: what the process has of it, for tests that limit it. It deliberately knows nothing of
// weir.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_ADDRESS_SPACE_H
#define WEIR_TESTS_UNIT_ADDRESS_SPACE_H

#include <cstddef>
#include <fstream>
#include <unistd.h>

// In bytes: the tests before this one may have left it threads' arenas of the C library.
inline size_t address_space_used() {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

#endif
