/* new_handler.cpp: a new_handler that frees memory lets operator new succeed.
 *
 * Who may call it: tests/contract/run.py, under a limit of address space. The program holds a ballast;
 * a request that does not fit beside it calls the handler, which drops the ballast.
 *
 * contract: as_mib=1000 timeout=30
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <new>

namespace {

const std::size_t kBallast = std::size_t{500} << 20;
const std::size_t kRequest = std::size_t{600} << 20;
void* ballast;
int handler_calls;

void handler_that_frees() {
    ++handler_calls;
    if (ballast == nullptr) throw std::bad_alloc();
    std::free(ballast);
    ballast = nullptr;
}

template <typename Call>
void expect_retry(Call call) {
    ballast = std::malloc(kBallast);
    if (!EXPECT(ballast != nullptr)) return;
    handler_calls = 0;
    std::set_new_handler(handler_that_frees);
    void* p = nullptr;
    try {
        p = call();
    } catch (const std::bad_alloc&) {
    }
    EXPECT(p != nullptr);
    EXPECT_EQ(handler_calls, 1);
    std::set_new_handler(nullptr);
    std::free(p);
    std::free(ballast);
    ballast = nullptr;
}

} // namespace

int main() {
    contract_begin();
    for (int round = 0; round < 3; round++) {
        expect_retry([] { return ::operator new(contract_opaque(kRequest)); });
        expect_retry([] { return ::operator new[](contract_opaque(kRequest)); });
        expect_retry([] { return ::operator new(contract_opaque(kRequest), std::nothrow); });
        expect_retry([] { return ::operator new(contract_opaque(kRequest), std::align_val_t{4096}); });
        expect_retry(
            [] { return ::operator new[](contract_opaque(kRequest), std::align_val_t{64}, std::nothrow); });
    }
    /* Without ballast the handler throws at its first call. */
    handler_calls = 0;
    std::set_new_handler(handler_that_frees);
    bool caught = false;
    try {
        contract_opaque_pointer(::operator new(contract_opaque(kRequest * 2)));
    } catch (const std::bad_alloc&) {
        caught = true;
    }
    EXPECT(caught);
    EXPECT_EQ(handler_calls, 1);
    EXPECT(::operator new(contract_opaque(kRequest * 2), std::nothrow) == nullptr);
    EXPECT_EQ(handler_calls, 2);
    return contract_end();
}
