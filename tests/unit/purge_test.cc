// purge_test.cc: many ranges given back by one call, and huge pages: os/os.h against this machine's kernel
// and against one that refuses. Called by ctest; knows no slices.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sys/syscall.h>
#include <vector>

namespace {

// Pages 0, 2, 4 … of a written mapping are the ranges; the odd ones must stay.
struct Comb {
    size_t page = os_page_bytes();
    unsigned count;
    char* start;
    std::vector<struct os_range> ranges;
    explicit Comb(unsigned n) : count(n) {
        start = static_cast<char*>(os_reserve(bytes(), page));
        EXPECT_TRUE(start != nullptr && os_commit(start, bytes()));
        memset(start, 1, bytes());
        for (unsigned i = 0; i < n; i++) ranges.push_back({start + 2 * i * page, page});
    }
    ~Comb() { os_unmap(start, bytes()); }
    size_t bytes() const { return 2 * count * page; }
    unsigned purge(bool* locked) { return os_purge_many(ranges.data(), count, locked); }
    // How many leading ranges read as zero; -1: another page was touched.
    int zeroed() const {
        int n = 0;
        while (n < static_cast<int>(count) && is_zero(ranges[static_cast<unsigned>(n)].start, page)) n++;
        for (unsigned i = 0; i < count; i++)
            if (start[(2 * i + 1) * page] != 1 || (static_cast<int>(i) > n && start[2 * i * page] != 1))
                return -1;
        return n;
    }
};

unsigned calls_refused; // a bit for each call of OS_PURGE, from the lowest
void refuse(unsigned which) {
    calls_refused = which;
    os_fault_hook = [](enum os_call call) {
        if (call != OS_PURGE) return false;
        bool refused = (calls_refused & 1) != 0;
        calls_refused >>= 1;
        return refused;
    };
}

// Whether this kernel takes many ranges at once, which decides how many calls are right.
bool kernel_has_batches() {
    Comb comb(2);
    bool locked;
    uint64_t before = os_call_counts[OS_PURGE];
    comb.purge(&locked);
    return os_call_counts[OS_PURGE] - before == 1;
}

TEST(Purge, GivesManyRangesBackInFewCalls) {
    EXPECT_FINE(in_child([] {
        bool locked = true;
        EXPECT_EQ(os_purge_many(nullptr, 0, &locked), 0u);
        EXPECT_FALSE(locked);
        bool batches = kernel_has_batches();
        for (unsigned n : {1u, 2u, 9u, 1500u}) {
            Comb comb(n);
            errno = EBADMSG;
            uint64_t before = os_call_counts[OS_PURGE];
            ASSERT_EQ(comb.purge(&locked), n);
            EXPECT_EQ(errno, EBADMSG);
            EXPECT_FALSE(locked);
            EXPECT_EQ(comb.zeroed(), static_cast<int>(n));
            EXPECT_EQ(os_call_counts[OS_PURGE] - before, batches ? (n + 1023) / 1024 : n);
        }
    }));
}

// Absent: an emulator gives locked pages back
TEST_UNEMULATED(Purge, StopsAtLockedPagesAndSaysSo) {
    EXPECT_FINE(in_child([] {
        bool batches = kernel_has_batches();
        for (unsigned at : {0u, 1u, 7u, 19u}) {
            Comb comb(20);
            ASSERT_EQ(syscall(SYS_mlock, comb.ranges[at].start, comb.page), 0);
            bool locked = false;
            errno = EBADMSG;
            EXPECT_EQ(comb.purge(&locked), at);
            EXPECT_EQ(errno, EBADMSG);
            EXPECT_TRUE(locked);
            EXPECT_EQ(comb.zeroed(), static_cast<int>(at));
            // What the kernel said of one range was no word against the call.
            syscall(SYS_munlock, comb.ranges[at].start, comb.page);
            EXPECT_EQ(comb.purge(&locked), 20u);
            EXPECT_EQ(kernel_has_batches(), batches);
        }
    }));
}

// Absent: the emulator gives unmapped pages back, too
TEST_UNEMULATED(Purge, TellsOtherRefusalsFromLockedPages) {
    EXPECT_FINE(in_child([] {
        Comb comb(4);
        os_unmap(comb.ranges[2].start, comb.page);
        bool locked = true;
        EXPECT_EQ(comb.purge(&locked), 2u);
        EXPECT_FALSE(locked);
        ASSERT_TRUE(os_cover(comb.ranges[2].start, comb.page, true));
        EXPECT_EQ(comb.purge(&locked), 4u);
    }));
}

TEST(Purge, DoesWithoutTheCallForMany) {
    EXPECT_FINE(in_child([] { // refused once, for want of memory: the next time it is asked again
        bool batches = kernel_has_batches();
        if (!batches) return;
        Comb comb(6);
        bool locked;
        refuse(1); // the one for all; its first range alone, then one for the rest
        uint64_t before = os_call_counts[OS_PURGE];
        EXPECT_EQ(comb.purge(&locked), 6u);
        EXPECT_EQ(comb.zeroed(), 6);
        EXPECT_EQ(os_call_counts[OS_PURGE] - before, 2u);
        os_fault_hook = nullptr;
        EXPECT_TRUE(kernel_has_batches());
    }));
    EXPECT_FINE(in_child([] { // all are refused
        Comb comb(6);
        bool locked = true;
        refuse(~0u);
        EXPECT_EQ(comb.purge(&locked), 0u);
        EXPECT_FALSE(locked);
        EXPECT_EQ(comb.zeroed(), 0);
    }));
    EXPECT_FINE(in_child([] { // in a sandbox, where an unusual call may kill
        os_sandbox_announced();
        Comb comb(6);
        bool locked;
        refuse(1u << 4);
        EXPECT_EQ(comb.purge(&locked), 4u);
        EXPECT_FALSE(locked);
        EXPECT_EQ(comb.zeroed(), 4);
        os_fault_hook = nullptr;
        uint64_t before = os_call_counts[OS_PURGE];
        EXPECT_EQ(comb.purge(&locked), 6u);
        EXPECT_EQ(os_call_counts[OS_PURGE] - before, 6u);
    }));
}

std::string file_text(const char* path) {
    char text[256];
    return std::string(text, os_read_file(path, text, sizeof text));
}

size_t huge_kib_of(const char* start) {
    char head[32];
    snprintf(head, sizeof head, "%lx-", reinterpret_cast<unsigned long>(start));
    std::string smaps;
    FILE* file = fopen("/proc/self/smaps", "r");
    char line[512];
    bool here = false;
    size_t kib = 0;
    while (file != nullptr && fgets(line, sizeof line, file) != nullptr) {
        if (strchr(line, '-') != nullptr && strstr(line, "kB") == nullptr)
            here = strncmp(line, head, strlen(head)) == 0;
        if (here && strncmp(line, "AnonHugePages:", 14) == 0) kib = strtoul(line + 14, nullptr, 10);
    }
    if (file != nullptr) fclose(file);
    return kib;
}

TEST(Huge, ModeIsTheSystems) {
    size_t bytes = 1;
    enum os_huge mode = os_huge_mode(&bytes);
    std::string enabled = file_text("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string size = file_text("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    EXPECT_EQ(bytes, strtoul(size.c_str(), nullptr, 10));
    EXPECT_EQ(mode == OS_HUGE_ALWAYS, enabled.find("[always]") != std::string::npos);
    EXPECT_EQ(mode == OS_HUGE_ASKED, enabled.find("[madvise]") != std::string::npos);
}

// Absent where a range is backed by the emulator's pages, or lies beside a sanitizer's.
TEST_NATIVE(Huge, AdviceDecidesWhatBacksARange) {
    size_t huge;
    enum os_huge mode = os_huge_mode(&huge);
    if (huge == 0 ||
        mode == OS_HUGE_NEVER) { // asking for them changes nothing, and says so where there are none
        const size_t some = 4 * MIB;
        char* p = static_cast<char*>(os_reserve(some, 2 * MIB));
        ASSERT_TRUE(p != nullptr && os_commit(p, some));
        EXPECT_EQ(os_advise_huge(p, some, OS_HUGE_ALWAYS), huge != 0);
        memset(p, 1, some);
        EXPECT_EQ(huge_kib_of(p), 0u);
        return;
    }
    EXPECT_FINE(in_child([&] {
        char* p = static_cast<char*>(os_reserve(4 * huge, huge));
        ASSERT_TRUE(p != nullptr && os_commit(p, 4 * huge));
        errno = EBADMSG;
        EXPECT_TRUE(os_advise_huge(p, 4 * huge, OS_HUGE_NEVER));
        memset(p, 1, huge);
        EXPECT_EQ(huge_kib_of(p), 0u);
        uint64_t before = os_call_counts[OS_OTHER];
        EXPECT_TRUE(os_advise_huge(p, 4 * huge, OS_HUGE_ASKED)); // nothing: there is no way back
        EXPECT_EQ(os_call_counts[OS_OTHER], before);
        EXPECT_TRUE(os_advise_huge(p, 4 * huge, OS_HUGE_ALWAYS));
        memset(p + huge, 1, huge);
        // How many there were to be had is the machine's affair; those that are there can be counted on.
        size_t asked = huge_kib_of(p);
        EXPECT_EQ(asked % (huge / KIB), 0u);
        if (os_collapse(p, huge)) {
            EXPECT_GE(huge_kib_of(p), huge / KIB);
        }
        EXPECT_EQ(p[0], 1);
        os_unmap(p, 4 * huge);
        EXPECT_FALSE(os_advise_huge(p, 4 * huge, OS_HUGE_NEVER));
        EXPECT_FALSE(os_collapse(p, huge));
        EXPECT_EQ(errno, EBADMSG);
    }));
}

} // namespace
