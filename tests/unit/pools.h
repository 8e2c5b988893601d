// pools.h: what tests of pools share: objects whose content is checked, figures, conservation.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_POOLS_H
#define WEIR_TESTS_UNIT_POOLS_H

#include "child.h"
#include "layers.h"
#include "weir/pool.h"
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

extern "C" {
#include "pool_glue.h"
}

inline weir_pool_stats stats(weir_pool* pool) {
    weir_pool_stats s = {};
    s.struct_size = sizeof s;
    EXPECT_EQ(weir_pool_stats_get(pool, &s), 0);
    return s;
}

// For a pool that shares memory with none that has objects out, when no thread uses it.
inline void expect_conserved(weir_pool* pool, uint64_t used) {
    weir_pool_stats s = stats(pool);
    EXPECT_EQ(s.used, used);
    EXPECT_EQ(s.allocated, s.used + s.cached);
    EXPECT_LE(s.shared + s.held, s.cached);
    EXPECT_TRUE(s.users != 1 || s.shared + s.held == s.cached);
}

// Objects of a pool; each carries a stamp at both ends, so that one given out twice is seen.
struct Objects {
    struct Object {
        void* p;
        uint64_t stamp;
    };
    weir_pool* pool;
    size_t size;
    std::vector<Object> all;
    Objects(weir_pool* of, size_t bytes) : pool(of), size(bytes) {}

    void* alloc(unsigned flags = 0) {
        void* p = flags == 0 ? weir_pool_alloc(pool) : weir_pool_alloc_flags(pool, flags);
        EXPECT_NE(p, nullptr);
        if (p == nullptr) return p;
        uint64_t stamp = reinterpret_cast<uintptr_t>(p) * 0x9e3779b97f4a7c15u + all.size();
        write(p, stamp);
        all.push_back({p, stamp});
        return p;
    }
    void free(size_t index) {
        Object o = all[index];
        all[index] = all.back();
        all.pop_back();
        check(o);
        weir_pool_free(pool, o.p);
    }
    void free_all() {
        while (!all.empty()) free(all.size() - 1);
    }
    void write(void* p, uint64_t stamp) const {
        if (size < 16) {
            memset(p, static_cast<int>(stamp), size);
            return;
        }
        memcpy(p, &stamp, 8);
        memcpy(static_cast<char*>(p) + size - 8, &stamp, 8);
    }
    void check(const Object& o) const {
        if (size < 16) {
            EXPECT_EQ(*static_cast<unsigned char*>(o.p), static_cast<unsigned char>(o.stamp));
            return;
        }
        EXPECT_EQ(memcmp(o.p, &o.stamp, 8), 0);
        EXPECT_EQ(memcmp(static_cast<char*>(o.p) + size - 8, &o.stamp, 8), 0);
    }
};

#endif
