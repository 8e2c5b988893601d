// os_test.cc: the contract of os/os.h against this machine's kernel. Called by ctest; knows no slices.
//
// SPDX-License-Identifier: Apache-2.0
extern "C" {
#include "base/atomic.h"
#include "os/os.h"
}
#include "child.h"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <string>
#include <thread>

namespace {

constexpr size_t chunk = 1u << 20;

struct File {
    char path[64] = "/tmp/weir-unit-XXXXXX";
    explicit File(const std::string& content) {
        int fd = mkstemp(path);
        EXPECT_GE(fd, 0);
        EXPECT_EQ(write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size()));
        close(fd);
    }
    ~File() { unlink(path); }
};

TEST(Os, PageSizeIsTheKernels) {
    EXPECT_EQ(os_page_bytes(), static_cast<size_t>(sysconf(_SC_PAGESIZE)));
    EXPECT_EQ(os_page_bytes(), os_page_bytes());
}

TEST(Os, ReservesAtEveryAlignmentAndLeavesNothingBehind) {
    for (size_t align = os_page_bytes(); align <= 64 * chunk; align *= 4) {
        for (int i = 0; i < 3; i++) {
            char* p = static_cast<char*>(os_reserve(chunk, align));
            ASSERT_NE(p, nullptr);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
            EXPECT_TRUE(is_mapped(p) && is_mapped(p + chunk - os_page_bytes()));
            EXPECT_FALSE(is_readable(p));
            os_unmap(p, chunk);
            EXPECT_FALSE(is_mapped(p));
        }
    }
}

TEST(Os, ReserveOfTooMuchIsRefused) {
    EXPECT_EQ(os_reserve(size_t{1} << 60, os_page_bytes()), nullptr);
    EXPECT_EQ(os_reserve(SIZE_MAX - os_page_bytes() + 1, 2 * os_page_bytes()), nullptr);
}

TEST(Os, UnmapOfNothingDoesNothing) {
    uint64_t before = os_call_counts[OS_MAP];
    os_unmap(nullptr, 0);
    EXPECT_EQ(os_call_counts[OS_MAP], before);
}

TEST(Os, CommitMakesAPartWritableAndZero) {
    size_t page = os_page_bytes();
    char* p = static_cast<char*>(os_reserve(chunk, page));
    ASSERT_NE(p, nullptr);
    ASSERT_TRUE(os_commit(p + 4 * page, 2 * page));
    EXPECT_TRUE(is_zero(p + 4 * page, 2 * page));
    memset(p + 4 * page, 7, 2 * page);
    EXPECT_FALSE(is_readable(p + 3 * page));
    EXPECT_FALSE(is_readable(p + 6 * page));
    ASSERT_TRUE(os_commit(p + 5 * page, 2 * page));
    EXPECT_EQ(p[5 * page], 7);
    os_unmap(p, chunk);
    EXPECT_FALSE(os_commit(p, page));
}

TEST(Os, CoverStartsAfreshEitherWay) {
    size_t page = os_page_bytes();
    char* p = static_cast<char*>(os_reserve(chunk, page));
    ASSERT_TRUE(os_commit(p, chunk));
    memset(p, 1, chunk);
    ASSERT_TRUE(os_cover(p + page, page, true));
    EXPECT_EQ(p[0], 1);
    EXPECT_TRUE(is_zero(p + page, page));
    EXPECT_EQ(p[2 * page], 1);
    p[page] = 3;
    ASSERT_TRUE(os_cover(p + page, page, false));
    EXPECT_TRUE(is_mapped(p + page));
    EXPECT_FALSE(is_readable(p + page));
    EXPECT_EQ(p[2 * page], 1);
    ASSERT_TRUE(os_commit(p + page, page));
    EXPECT_TRUE(is_zero(p + page, page));
    os_unmap(p, chunk);
}

TEST(Os, PurgedPagesReadAsZeroAndStayWritable) {
    size_t page = os_page_bytes();
    char* p = static_cast<char*>(os_reserve(chunk, page));
    ASSERT_TRUE(os_commit(p, chunk));
    memset(p, 1, chunk);
    ASSERT_TRUE(os_purge(p + page, 2 * page));
    EXPECT_EQ(p[page - 1], 1);
    EXPECT_TRUE(is_zero(p + page, 2 * page));
    EXPECT_EQ(p[3 * page], 1);
    p[page] = 5;
    EXPECT_EQ(p[page], 5);
    os_unmap(p, chunk);
}

TEST(Os, LockedPagesAreKept) {
    size_t page = os_page_bytes();
    char* p = static_cast<char*>(os_reserve(chunk, page));
    ASSERT_TRUE(os_commit(p, chunk));
    memset(p, 1, page);
    if (syscall(SYS_mlock, p, page) == 0) {
        EXPECT_FALSE(os_purge(p, page));
        EXPECT_EQ(p[0], 1);
    }
    os_unmap(p, chunk);
}

TEST(Os, MoveTakesThePagesAndLeavesNoHole) {
    size_t page = os_page_bytes();
    char* from = static_cast<char*>(os_reserve(chunk, page));
    char* to = static_cast<char*>(os_reserve(chunk, page));
    ASSERT_TRUE(os_commit(from, chunk) && os_commit(to, chunk));
    memset(from, 1, chunk);
    memset(to, 2, chunk);
    if (os_move(from + page, to + page, 3 * page)) {
        EXPECT_TRUE(is_zero(from + page, 3 * page));
        for (size_t i = 0; i < 3 * page; i++) ASSERT_EQ(to[page + i], 1);
        EXPECT_EQ(from[0], 1);
        EXPECT_EQ(from[4 * page], 1);
        EXPECT_EQ(to[4 * page], 2);
        from[page] = 9;
        EXPECT_EQ(to[page], 1);
    } else {
        for (size_t i = 0; i < chunk; i++) ASSERT_EQ(from[i], 1);
    }
    os_unmap(from, chunk);
    os_unmap(to, chunk);
    EXPECT_FALSE(os_move(from, to, page));
}

TEST(Os, ChargeProbeRefusesTheImpossible) {
    EXPECT_TRUE(os_charge_probe(chunk));
    EXPECT_FALSE(os_charge_probe(size_t{1} << 60));
}

TEST(Os, KeepsErrnoWhetherCallsSucceedOrFail) {
    size_t page = os_page_bytes();
    char* p = static_cast<char*>(os_reserve(chunk, page));
    char data[16];
    size_t bytes;
    uint64_t now, peak;
    uint32_t word = 1;
    errno = EBADMSG;
    auto kept = [](const char* what) {
        EXPECT_EQ(errno, EBADMSG) << what;
        errno = EBADMSG;
    };
    os_commit(p, page), kept("commit");
    os_commit(reinterpret_cast<void*>(page), page), kept("commit fails");
    os_commit(p + 1, page), kept("commit fails otherwise");
    os_reserve(size_t{1} << 60, page), kept("reserve fails");
    os_cover(p, page, true), kept("cover");
    os_purge(p, page), kept("purge");
    os_purge(reinterpret_cast<void*>(page), page), kept("purge fails");
    os_move(reinterpret_cast<void*>(page), p, page), kept("move fails");
    os_charge_probe(size_t{1} << 60), kept("charge fails");
    os_unmap(p, chunk), kept("unmap");
    os_unmap(p + 1, page), kept("unmap fails");
    os_read_file("/nowhere/at/all", data, sizeof data), kept("read_file fails");
    os_read_file("/proc", data, sizeof data), kept("read_file of a directory");
    os_read_link("/nowhere/at/all", data, sizeof data), kept("read_link fails");
    os_map_file("/nowhere/at/all", &bytes), kept("map_file fails");
    os_resident(&now, &peak), kept("resident");
    os_write(-1, data, 1), kept("write fails");
    os_overcommit_is_strict(), kept("overcommit");
    os_address_space_limit(), kept("limit");
    os_memory_is_limited(), kept("limits");
    os_environment("WEIR_UNIT_NONE"), kept("environment");
    os_thread_lives(1), kept("thread_lives fails");
    os_random(), kept("random");
    os_futex_wait(&word, 0), kept("futex_wait refuses");
    os_futex_wake(&word, 1), kept("futex_wake");
    os_loader_owns(&word), kept("loader_owns");
    os_clock_ns(), kept("clock");
}

TEST(Os, ReadsFilesUpToTheBuffersEnd) {
    File file("0123456789");
    char data[8] = "xxxxxxx";
    EXPECT_EQ(os_read_file(file.path, data, 4), 4u);
    EXPECT_EQ(memcmp(data, "0123xxx", 8), 0);
    char all[64];
    EXPECT_EQ(os_read_file(file.path, all, sizeof all), 10u);
    EXPECT_EQ(os_read_file("/nowhere/at/all", all, sizeof all), 0u);
    EXPECT_EQ(os_read_file("/proc", all, sizeof all), 0u);
}

TEST(Os, ReadsLinksCutToFit) {
    File file("");
    std::string link = std::string(file.path) + ".link";
    ASSERT_EQ(symlink("target", link.c_str()), 0);
    char data[32];
    os_read_link(link.c_str(), data, sizeof data);
    EXPECT_STREQ(data, "target");
    os_read_link(link.c_str(), data, 4);
    EXPECT_STREQ(data, "tar");
    os_read_link("/nowhere/at/all", data, sizeof data);
    EXPECT_STREQ(data, "");
    unlink(link.c_str());
}

TEST(Os, MapsFilesShared) {
    File file("abc");
    size_t bytes = 0;
    char* p = static_cast<char*>(os_map_file(file.path, &bytes));
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(bytes, 3u);
    p[1] = 'X';
    char data[8];
    EXPECT_EQ(os_read_file(file.path, data, sizeof data), 3u);
    EXPECT_EQ(memcmp(data, "aXc", 3), 0);
    os_unmap(p, os_page_bytes());
    File empty("");
    EXPECT_EQ(os_map_file(empty.path, &bytes), nullptr);
    EXPECT_EQ(os_map_file("/nowhere/at/all", &bytes), nullptr);
}

TEST(Os, ResidentSetFollowsWhatIsTouched) {
    constexpr size_t much = 32 * chunk;
    uint64_t before, peak_before, now, peak;
    char* p = static_cast<char*>(os_reserve(much, os_page_bytes()));
    ASSERT_TRUE(os_commit(p, much));
    os_resident(&before, &peak_before);
    ASSERT_GT(before, 0u);
    memset(p, 1, much);
    os_resident(&now, &peak);
    EXPECT_GE(now, before + much * 9 / 10);
    EXPECT_GE(peak, peak_before + much / 2);
    os_unmap(p, much);
    os_resident(&before, &peak_before);
    EXPECT_LE(before, now - much / 2);
    EXPECT_GE(peak_before, now - much / 8);
}

TEST(Os, StrictOvercommitIsTheKernelsSetting) {
    char mode = '?';
    os_read_file("/proc/sys/vm/overcommit_memory", &mode, 1);
    EXPECT_EQ(os_overcommit_is_strict(), mode == '2');
}

// Absent: an emulator keeps limits to itself
TEST_UNEMULATED(Os, LimitsAreTheProcesssOwn) {
    EXPECT_FINE(in_child([] {
        struct rlimit limit;
        getrlimit(RLIMIT_AS, &limit);
        uint64_t wanted = uint64_t{1} << 50;
        EXPECT_EQ(os_address_space_limit(), limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur);
        struct rlimit data;
        getrlimit(RLIMIT_DATA, &data);
        EXPECT_EQ(os_memory_is_limited(), limit.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY);
        if (limit.rlim_cur < wanted) wanted = limit.rlim_cur;
        limit.rlim_cur = wanted;
        ASSERT_EQ(syscall(SYS_prlimit64, 0, RLIMIT_AS, &limit, nullptr), 0);
        EXPECT_EQ(os_address_space_limit(), wanted);
        EXPECT_TRUE(os_memory_is_limited());
    }));
    EXPECT_FINE(in_child([] {
        struct rlimit limit;
        getrlimit(RLIMIT_DATA, &limit);
        limit.rlim_cur = uint64_t{1} << 50;
        ASSERT_EQ(syscall(SYS_prlimit64, 0, RLIMIT_DATA, &limit, nullptr), 0);
        EXPECT_TRUE(os_memory_is_limited());
    }));
}

TEST(Os, ProcessorTimeIsThatOfAllThreads) {
    uint64_t begun = os_cpu_ns();
    std::thread([] {
        for (uint64_t start = os_clock_ns(); os_clock_ns() < start + 20000000;) {
        }
    }).join();
    uint64_t used = os_cpu_ns() - begun;
    EXPECT_GT(used, 0u);
    usleep(30000);
    EXPECT_LT(os_cpu_ns() - begun - used, 20000000u); // and stands still while they sleep
}

TEST(Os, ClockRunsForward) {
    uint64_t begun = os_clock_ns();
    usleep(2000);
    EXPECT_GE(os_clock_ns(), begun + 2000000);
    EXPECT_GT(begun, 0u);
}

TEST(Os, WritesAllOfItOrSaysWhyNot) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    std::string much(300000, 'm'); // more than a pipe holds at once
    size_t got = 0;
    std::thread reader([&] {
        char buffer[4096];
        ssize_t n;
        while ((n = read(ends[0], buffer, sizeof buffer)) > 0) got += static_cast<size_t>(n);
    });
    EXPECT_EQ(os_write(ends[1], much.data(), much.size()), 0);
    close(ends[1]);
    reader.join();
    close(ends[0]);
    EXPECT_EQ(got, much.size());
    EXPECT_EQ(os_write(-1, "x", 1), EBADF);
}

TEST(Os, EnvironmentIsTheProcesss) {
    setenv("WEIR_UNIT_VARIABLE", "value", 1);
    EXPECT_STREQ(os_environment("WEIR_UNIT_VARIABLE"), "value");
    EXPECT_EQ(os_environment_count("WEIR_UNIT_VAR"), 1u);
    setenv("WEIR_UNIT_VAR", "", 1);
    EXPECT_STREQ(os_environment("WEIR_UNIT_VAR"), "");
    EXPECT_EQ(os_environment_count("WEIR_UNIT_VAR"), 2u);
    unsetenv("WEIR_UNIT_VAR");
    unsetenv("WEIR_UNIT_VARIABLE");
    EXPECT_EQ(os_environment("WEIR_UNIT_VARIABLE"), nullptr);
    EXPECT_EQ(os_environment_count("WEIR_UNIT_VAR"), 0u);
    EXPECT_FINE(in_child([] {
        const std::string path = getenv("PATH");
        setenv("WEIR_UNIT_VARIABLE", "late", 1);
        char** saved = environ;
        environ = nullptr; // as before libc's start: what the kernel handed over counts
        const char* value = os_environment("PATH");
        const char* late = os_environment("WEIR_UNIT_VARIABLE");
        const char* part = os_environment("PAT");
        size_t paths = os_environment_count("PATH=");
        environ = saved;
        EXPECT_EQ(std::string(value == nullptr ? "(none)" : value), path);
        EXPECT_EQ(late, nullptr);
        EXPECT_EQ(part, nullptr);
        EXPECT_EQ(paths, 1u);
    }));
}

TEST(Os, IdsAreTheKernels) {
    EXPECT_EQ(os_process_id(), getpid());
    EXPECT_EQ(os_parent_id(), getppid());
    EXPECT_EQ(os_thread_id(), getpid());
    EXPECT_TRUE(os_thread_lives(os_thread_id()));
    int other = 0;
    bool lived = false;
    std::thread([&] {
        other = os_thread_id();
        lived = os_thread_lives(other);
    }).join();
    EXPECT_NE(other, os_thread_id());
    EXPECT_TRUE(lived);
    for (int i = 0; i < 1000 && os_thread_lives(other); i++) usleep(1000);
    EXPECT_FALSE(os_thread_lives(other));
}

TEST(Os, KnowsTheLoadersImage) {
    const char* loader = reinterpret_cast<const char*>(getauxval(AT_BASE));
    int local = 0;
    if (loader != nullptr) {
        EXPECT_TRUE(os_loader_owns(loader));
        EXPECT_FALSE(os_loader_owns(loader - 1));
    }
    EXPECT_FALSE(os_loader_owns(&local));
    EXPECT_FALSE(os_loader_owns(nullptr));
    EXPECT_FALSE(os_loader_owns(reinterpret_cast<const void*>(&os_process_id)));
}

TEST(Os, RandomBitsDiffer) {
    uint64_t all_or = 0;
    uint64_t all_and = ~uint64_t{0};
    for (int i = 0; i < 256; i++) {
        uint64_t bits = os_random();
        EXPECT_NE(bits, os_random());
        all_or |= bits;
        all_and &= bits;
    }
    EXPECT_EQ(all_or, ~uint64_t{0});
    EXPECT_EQ(all_and, 0u);
}

TEST(Os, AbortAborts) {
    EXPECT_TRUE(in_child([] { os_abort(); }).aborted());
}

TEST(Os, FutexWakesItsSleepers) {
    uint32_t word = 0;
    std::thread sleeper([&] {
        while (load_acquire(&word) == 0) os_futex_wait(&word, 0);
    });
    usleep(5000);
    store_release(&word, 1u);
    os_futex_wake(&word, 1);
    sleeper.join();
    os_futex_wait(&word, 0); // returns at once: the value is another
}

enum os_call refused;

TEST(Os, FaultHookRefusesTheCallsOfItsKind) {
    EXPECT_FINE(in_child([] {
        size_t page = os_page_bytes();
        char* p = static_cast<char*>(os_reserve(chunk, page));
        char* q = static_cast<char*>(os_reserve(chunk, page));
        ASSERT_TRUE(os_commit(p, chunk) && os_commit(q, chunk));
        p[0] = 1;
        os_fault_hook = [](enum os_call call) { return call == refused; };
        refused = OS_MAP;
        EXPECT_EQ(os_reserve(chunk, page), nullptr);
        EXPECT_EQ(os_reserve(chunk, 64 * chunk), nullptr);
        EXPECT_FALSE(os_cover(p, page, true));
        EXPECT_TRUE(os_commit(p, page));
        refused = OS_PROTECT;
        EXPECT_FALSE(os_commit(p, page));
        refused = OS_PURGE;
        EXPECT_FALSE(os_purge(p, page));
        refused = OS_REMAP;
        EXPECT_FALSE(os_move(p, q, page));
        EXPECT_EQ(p[0], 1);
        refused = OS_OTHER;
        EXPECT_TRUE(os_purge(p, page));
        EXPECT_EQ(p[0], 0);
    }));
}

TEST_NATIVE(Os, ThreadsAreCounted) { // emulators and sanitizers have threads of their own
    uint32_t before = os_thread_count();
    EXPECT_GE(before, 1u);
    uint32_t meanwhile = 0;
    std::thread([&] { meanwhile = os_thread_count(); }).join();
    EXPECT_EQ(meanwhile, before + 1);
}

TEST(Os, CountsItsCallsByKind) {
    uint64_t maps = os_call_counts[OS_MAP];
    uint64_t protects = os_call_counts[OS_PROTECT];
    uint64_t purges = os_call_counts[OS_PURGE];
    uint64_t others = os_call_counts[OS_OTHER];
    void* p = os_reserve(chunk, os_page_bytes());
    os_commit(p, chunk);
    os_purge(p, chunk);
    os_clock_ns();
    os_unmap(p, chunk);
    EXPECT_EQ(os_call_counts[OS_MAP], maps + 2);
    EXPECT_EQ(os_call_counts[OS_PROTECT], protects + 1);
    EXPECT_EQ(os_call_counts[OS_PURGE], purges + 1);
    EXPECT_EQ(os_call_counts[OS_OTHER], others + 1);
}

} // namespace
