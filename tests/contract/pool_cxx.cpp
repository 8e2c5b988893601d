/* pool_cxx.cpp: weir::pool<T>: construction, destruction, exceptions, owners, over-aligned types.
 *
 * Who may call it: tests/contract/run.py. glibc's malloc has no pools.
 *
 * contract: glibc=skip
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
extern "C" {
#pragma weak weir_version
#pragma weak weir_pool_create
#pragma weak weir_pool_destroy
#pragma weak weir_pool_alloc
#pragma weak weir_pool_free
#pragma weak weir_pool_flush
#pragma weak weir_pool_stats_get
}
#include "weir/weir.hpp"
#include <thread>
#include <vector>

namespace {

int alive;

struct Counted {
    int value;
    explicit Counted(int v) : value(v) {
        if (v < 0) throw v;
        alive++;
    }
    ~Counted() { alive--; }
};

struct alignas(256) Wide {
    char text[300];
};

unsigned long used(weir_pool* pool) {
    weir_pool_stats s = {};
    s.struct_size = sizeof s;
    EXPECT_EQ(weir_pool_stats_get(pool, &s), 0);
    return s.used;
}

void test_objects() {
    weir::pool<Counted> pool("counted");
    std::vector<Counted*> all;
    for (int i = 0; i < 1000; i++) all.push_back(pool.create(i));
    EXPECT_EQ(alive, 1000);
    EXPECT_EQ(used(pool.get()), 1000);
    int whole = 1;
    for (int i = 0; i < 1000; i++) whole &= all[static_cast<size_t>(i)]->value == i;
    EXPECT(whole);
    std::thread([&] {
        for (Counted* c : all) pool.destroy(c);
    }).join();
    pool.destroy(nullptr);
    EXPECT_EQ(alive, 0);
    EXPECT_EQ(used(pool.get()), 0);
    int thrown = 0;
    try {
        (void)pool.create(-5);
    } catch (int v) {
        thrown = v;
    }
    EXPECT_EQ(thrown, -5);
    EXPECT_EQ(used(pool.get()), 0);
    {
        auto owner = pool.make(7);
        auto moved = std::move(owner);
        EXPECT(moved->value == 7 && alive == 1);
    }
    EXPECT_EQ(alive, 0);
    pool.flush();
}

void test_wide() {
    weir::pool<Wide> pool("wide");
    std::vector<Wide*> all;
    for (unsigned i = 0; i < 100; i++) {
        all.push_back(pool.allocate());
        EXPECT_EQ(reinterpret_cast<uintptr_t>(all.back()) % 256, 0);
    }
    for (Wide* w : all) pool.deallocate(w);
    EXPECT_EQ(used(pool.get()), 0);
}

} // namespace

int main() {
    contract_begin();
    EXPECT(weir_pool_create != nullptr);
    if (weir_pool_create == nullptr) return contract_end();
    test_objects();
    test_wide();
    return contract_end();
}
