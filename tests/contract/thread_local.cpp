/* thread_local.cpp: C++ thread_local objects that own memory, destroyed at thread exit and at exit.
 *
 * Who may call it: tests/contract/run.py. A destructor allocates, frees, and touches another thread_local
 * for the first time; the initial thread's objects are destroyed during exit, after which the last
 * destructor of the program gives the verdict.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace {

std::atomic<int> destroyed{0};
std::atomic<int> late_destroyed{0};

struct late {
    std::vector<std::string> strings;
    ~late() {
        EXPECT_EQ(strings.size(), 30);
        strings.assign(50, std::string(2000, 'x'));
        ++late_destroyed;
    }
};
thread_local late late_object;

struct owner {
    std::vector<std::string> strings;
    ~owner() {
        EXPECT_EQ(strings.size(), 100);
        bool kept = true;
        for (const std::string& s : strings) kept = kept && s == std::string(200, 'a');
        EXPECT(kept);
        late_object.strings.assign(30, std::string(500, 'b'));
        strings.clear();
        strings.shrink_to_fit();
        ++destroyed;
    }
};
thread_local owner object;

void use() {
    for (int i = 0; i < 100; i++) object.strings.push_back(std::string(200, 'a'));
}

} // namespace

__attribute__((destructor(101))) static void last_destructor() {
    EXPECT_EQ(destroyed, 301);
    EXPECT_EQ(late_destroyed, 301);
    _exit(contract_end());
}

int main() {
    contract_begin();
    use();
    for (int i = 0; i < 100; i++) {
        std::thread a(use), b(use), c(use);
        a.join();
        b.join();
        c.join();
    }
    EXPECT_EQ(destroyed, 300);
    return 0;
}
