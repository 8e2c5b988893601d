// passed.h: blocks of a class that one thread takes and others free, so that bits are set of its active slab.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_PASSED_H
#define WEIR_TESTS_PASSED_H

#include "workers.h"
#include <cstring>
#include <utility>

// Blocks that the calling thread took, of which others freed those before. The last `count` ones lie in the
// slab that it allocates from, of which others set bits.
inline std::vector<void*> passed(Worker& other, size_t size, size_t count) {
    std::vector<void*> all = many(8, size);
    other.does([&] {
        for (void* p : all) unit_free(p);
    });
    all.clear();
    const struct slice* s = nullptr;
    for (size_t in_a_row = 0; in_a_row < count && all.size() < 5000; in_a_row++) {
        all.push_back(unit_alloc(size));
        memset(all.back(), 1, size);
        const struct slice* before = std::exchange(s, unit_slice(all.back()));
        if (s != before || s != unit_active(class_of(size)) || !unit_takes_bits(s)) in_a_row = 0;
    }
    return all;
}

inline std::vector<void*> last_of(const std::vector<void*>& all, size_t count) {
    return {all.end() - static_cast<ptrdiff_t>(count), all.end()};
}

#endif
