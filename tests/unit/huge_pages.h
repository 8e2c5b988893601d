// huge_pages.h: what the kernel says of huge pages: whether it has them, and of a mapping how many and what
// it was advised. For the tests of page/huge.h. It deliberately knows nothing of the heap.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_HUGE_PAGES_H
#define WEIR_TESTS_UNIT_HUGE_PAGES_H

#include "glue.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

inline bool kernel_has_huge_pages() {
    size_t bytes;
    return os_huge_mode(&bytes) != OS_HUGE_NEVER && bytes == 2 * MIB;
}

struct Mapping {
    size_t huge_kib = 0;
    std::string flags;
};
// The mappings from the one that holds `first` to the one that holds `last`, as the kernel describes them:
// what all have of huge pages, and the last one's flags.
inline Mapping mappings_of(const void* first, const void* last) {
    Mapping found;
    bool here = false;
    FILE* file = fopen("/proc/self/smaps", "r");
    char line[512];
    while (file != nullptr && fgets(line, sizeof line, file) != nullptr) {
        uintptr_t from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = reinterpret_cast<uintptr_t>(last) >= from && reinterpret_cast<uintptr_t>(first) < to;
        if (here && strncmp(line, "AnonHugePages:", 14) == 0)
            found.huge_kib += strtoul(line + 14, nullptr, 10);
        if (here && strncmp(line, "VmFlags:", 8) == 0) found.flags = line + 8;
    }
    if (file != nullptr) fclose(file);
    return found;
}
inline Mapping mapping_of(const void* p) { return mappings_of(p, p); }
// Huge pages that the machine has split so far.
inline uint64_t huge_pages_split() {
    uint64_t count = 0;
    FILE* file = fopen("/proc/vmstat", "r");
    char line[128];
    while (file != nullptr && fgets(line, sizeof line, file) != nullptr)
        if (strncmp(line, "thp_split_page ", 15) == 0) count = strtoull(line + 15, nullptr, 10);
    if (file != nullptr) fclose(file);
    return count;
}
inline bool has_flag(const void* p, const char* flag) {
    return mapping_of(p).flags.find(flag) != std::string::npos;
}

#endif
