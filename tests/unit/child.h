// child.h: a test's body in a process of its own, made by fork. Unit tests include it.
//
// The heap starts once in a process, and reports end it: whatever touches the page or heap layer, or is
// meant to die, runs in a child, so that the parent stays without a heap and every child starts afresh.
// Not gtest's death tests: those execute the program again, which emulators may not be able to. It
// deliberately knows nothing of the layers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TESTS_UNIT_CHILD_H
#define WEIR_TESTS_UNIT_CHILD_H

#include <gtest/gtest.h>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define UNIT_SANITIZED 1
#elif defined(__has_feature)
#    if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#        define UNIT_SANITIZED 1
#    endif
#endif
#ifndef UNIT_SANITIZED
#    define UNIT_SANITIZED 0 // otherwise address space is full of shadow, and every access is slow
#endif
#ifdef __aarch64__
#    define UNIT_EMULATED 1 // most likely
#else
#    define UNIT_EMULATED 0
#endif
constexpr bool unit_sanitized = UNIT_SANITIZED;
#if defined(__has_feature)
constexpr bool unit_ubsan = __has_feature(undefined_behavior_sanitizer);
#else
constexpr bool unit_ubsan = false; // or one that no test can see
#endif
#ifdef __OPTIMIZE__
constexpr bool unit_optimized = true;
#else
constexpr bool unit_optimized = false; // the tests' own code takes most of the time
#endif
constexpr bool unit_emulated = UNIT_EMULATED;

// Tests that a sanitizer, or an emulator, makes meaningless: such a build has none of that name, so that none
// counts as passed.
#define UNIT_NO_TEST(suite, name) [[maybe_unused]] static void suite##_##name##_is_none_here()
#if UNIT_SANITIZED
#    define TEST_UNSANITIZED(suite, name) UNIT_NO_TEST(suite, name)
#else
#    define TEST_UNSANITIZED(suite, name) TEST(suite, name)
#endif
#if UNIT_EMULATED
#    define TEST_UNEMULATED(suite, name) UNIT_NO_TEST(suite, name)
#else
#    define TEST_UNEMULATED(suite, name) TEST(suite, name)
#endif
#if UNIT_SANITIZED || UNIT_EMULATED
#    define TEST_NATIVE(suite, name) UNIT_NO_TEST(suite, name)
#else
#    define TEST_NATIVE(suite, name) TEST(suite, name)
#endif
// Rounds of a random test: fewer where each is slow.
constexpr unsigned unit_rounds(unsigned n) {
    return unit_sanitized || unit_emulated ? n / 5 + 1 : unit_optimized ? n : n / 3 + 1;
}

// Tests that refuse each call of the kernel in turn refuse each one where a process takes milliseconds, and
// every so many elsewhere: an odd number, as calls come in pairs.
constexpr unsigned unit_refused_step = unit_emulated ? 11 : unit_sanitized ? 3 : 1;

struct Ended {
    int status = -1;     // as waitpid gives it
    std::string printed; // what the child wrote to stderr
    bool fine() const { return status == 0; }
    bool aborted() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT; }
    bool trapped() const {
        return WIFSIGNALED(status) && (WTERMSIG(status) == SIGILL || WTERMSIG(status) == SIGTRAP);
    }
    bool exited(int code) const { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
};

// Runs body() in a child. Its failed expectations print to stdout as usual and make it exit with 1.
template <class Body>
Ended in_child(Body body, unsigned seconds = 200) {
    Ended ended;
    int ends[2];
    if (pipe(ends) != 0) return ended;
    fflush(stdout);
    fflush(stderr);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        alarm(seconds);
        close(ends[0]);
        dup2(ends[1], 2);
        close(ends[1]);
        int before = ::testing::Test::HasFailure() ? 1 : 0;
        body();
        fflush(stdout);
        fflush(stderr);
        _exit(before == 0 && ::testing::Test::HasFailure() ? 1 : 0);
    }
    close(ends[1]);
    char buffer[4096];
    ssize_t n;
    while ((n = read(ends[0], buffer, sizeof buffer)) > 0)
        ended.printed.append(buffer, static_cast<size_t>(n));
    close(ends[0]);
    if (pid > 0) waitpid(pid, &ended.status, 0);
    // A user-mode emulator says so when its program dies; that line is not the program's.
    size_t said = ended.printed.find("qemu: uncaught target signal");
    if (said != std::string::npos) ended.printed.resize(said);
    return ended;
}

#define EXPECT_FINE(run)                                                                                     \
    do {                                                                                                     \
        Ended unit_ended = (run);                                                                            \
        EXPECT_TRUE(unit_ended.fine())                                                                       \
            << "status " << unit_ended.status << ", stderr: " << unit_ended.printed;                         \
        EXPECT_EQ(unit_ended.printed, "");                                                                   \
    } while (0)

// A small generator, the same numbers everywhere.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
    size_t below(size_t n) { return static_cast<size_t>((next() >> 11) % n); }
};

// What the kernel says of an address, without touching it from the program.
inline bool is_mapped(const void* page) {
    return msync(const_cast<void*>(page), static_cast<size_t>(sysconf(_SC_PAGESIZE)), MS_ASYNC) == 0;
}
inline bool is_readable(const void* p) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    bool good = write(ends[1], p, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return good;
}
inline bool is_zero(const void* p, size_t bytes) {
    const unsigned char* b = static_cast<const unsigned char*>(p);
    return bytes == 0 || (b[0] == 0 && __builtin_memcmp(b, b + 1, bytes - 1) == 0);
}

#endif
