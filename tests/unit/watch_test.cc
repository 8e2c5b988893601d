// watch_test.cc: os.h, faults: which watcher is told what, and what follows. Called by ctest.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <csignal>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>

namespace {

enum { tag_late = 8, tag_now = 9 };
const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

struct Told {
    unsigned count;
    struct os_fault last;
};
Told by_range, by_tags;
bool goes_on = true;
bool tell_range(const struct os_fault* fault) {
    by_range = {by_range.count + 1, *fault};
    return goes_on;
}
bool tell_tags(const struct os_fault* fault) {
    by_tags = {by_tags.count + 1, *fault};
    return goes_on;
}

uintptr_t at_range(const void* p) { return reinterpret_cast<uintptr_t>(p); }
char* no_access() {
    return static_cast<char*>(mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}
bool tell_and_open(const struct os_fault* fault) {
    mprotect(reinterpret_cast<void*>(fault->address & -page), page, PROT_READ | PROT_WRITE);
    return tell_tags(fault);
}

// As the kernel tells of a wrong tag; it takes that from a process about itself.
void send(int code, uintptr_t address) {
    siginfo_t info = {};
    info.si_signo = SIGSEGV;
    info.si_code = code;
    info.si_addr = reinterpret_cast<void*>(address);
    syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGSEGV, &info);
}

volatile int calls;
void handler(int, siginfo_t*, void*) { calls = calls + 1; }
void handler_set() {
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO;
    EXPECT_EQ(os_fault_action(SIGSEGV, &action, nullptr), 0);
}

TEST_NATIVE(Watch, EachFaultIsToldToItsWatcher) {
    EXPECT_FINE(in_child([] {
        char* range = no_access();
        os_fault_watch(range, page, tell_range);
        os_fault_watch_tags(tell_tags);
        handler_set();
        send(tag_now, at_range(range) + 8);
        EXPECT_EQ(by_tags.count, 1u); // whatever the address
        EXPECT_EQ(by_tags.last.kind, OS_FAULT_TAG);
        EXPECT_EQ(by_tags.last.address, at_range(range) + 8);
        send(tag_late, 0);
        EXPECT_EQ(by_tags.count, 2u);
        EXPECT_EQ(by_tags.last.kind, OS_FAULT_TAG_LATE);
        send(SEGV_ACCERR, at_range(range));
        EXPECT_EQ(by_range.count, 1u);
        EXPECT_EQ(by_range.last.kind, OS_FAULT_RANGE);
        send(SEGV_ACCERR, at_range(range) + page);
        EXPECT_EQ(by_tags.count, 3u);
        EXPECT_EQ(by_tags.last.kind, OS_FAULT_PLAIN);
        EXPECT_EQ(calls, 0);
        send(SI_QUEUE, at_range(range)); // somebody sent it
        EXPECT_EQ(by_range.count + by_tags.count, 4u);
        EXPECT_EQ(calls, 1);
    }));
}

TEST_NATIVE(Watch, WhatTheWatcherDoesNotTakeIsThePrograms) {
    EXPECT_FINE(in_child([] {
        os_fault_watch_tags(tell_tags);
        handler_set();
        goes_on = false;
        send(tag_now, 4096);
        send(tag_late, 0);
        EXPECT_EQ(by_tags.count, 2u);
        EXPECT_EQ(calls, 2);
    }));
}

// A handler that returns and changes nothing.
TEST_NATIVE(Watch, AFaultThatComesAgainIsKnown) {
    const struct os_fault one = {OS_FAULT_TAG, 64, 64, 4096, false, OS_ACCESS_READ};
    const struct os_fault elsewhere = {OS_FAULT_TAG, 80, 80, 4096, false, OS_ACCESS_READ};
    const struct os_fault by_other_code = {OS_FAULT_TAG, 80, 80, 4100, false, OS_ACCESS_READ};
    EXPECT_FALSE(os_fault_repeats(&one));
    EXPECT_TRUE(os_fault_repeats(&one));
    std::thread([&] { EXPECT_FALSE(os_fault_repeats(&one)); }).join();
    EXPECT_FALSE(os_fault_repeats(&one));
    EXPECT_TRUE(os_fault_repeats(&one));
    EXPECT_FALSE(os_fault_repeats(&elsewhere));
    EXPECT_FALSE(os_fault_repeats(&by_other_code));
    EXPECT_TRUE(os_fault_repeats(&by_other_code));
    EXPECT_FALSE(os_fault_repeats(&one));
}

TEST_NATIVE(Watch, ALateFaultEndsTheProcessThoughItDoesNotComeAgain) {
    Ended ended = in_child([] {
        os_fault_watch_tags(tell_tags);
        goes_on = false;
        send(tag_late, 0);
    });
    EXPECT_TRUE(WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGSEGV) << ended.status;
}

TEST_NATIVE(Watch, AFaultThatIsTakenIsTriedAgain) {
    EXPECT_FINE(in_child([] {
        char* p = no_access();
        os_fault_watch_tags(tell_and_open);
        *static_cast<volatile char*>(p + 5) = 7;
        EXPECT_EQ(by_tags.count, 1u);
        EXPECT_EQ(by_tags.last.address, at_range(p) + 5);
        EXPECT_EQ(p[5], 7);
    }));
}

TEST_NATIVE(Watch, WithoutAWatcherOfTagsTheyAreThePrograms) {
    EXPECT_FINE(in_child([] {
        char* range = no_access();
        os_fault_watch(range, page, tell_range);
        handler_set();
        send(tag_now, at_range(range));
        send(tag_late, 0);
        send(SEGV_ACCERR, at_range(range) + page);
        EXPECT_EQ(by_range.count, 0u);
        EXPECT_EQ(calls, 3);
    }));
}

} // namespace
