// helper_test.cc: the helper thread of os/os.h: what it shares with the process, what it keeps from libc, how
// it ends, where it must not be. Called by ctest; knows no heap.
//
// SPDX-License-Identifier: Apache-2.0
#include "layers.h"
#include "child.h"
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <thread>
#include <ucontext.h>
#include <vector>

namespace {

// What a helper is told and what it found.
struct Talk {
    uint32_t stop = 0;
    uint32_t begun = 0;
    uint64_t blocked = 0;
    void* word = nullptr;
    void* self = nullptr;
    int* error = nullptr;
    int tid = 0;
    uint32_t fits = 2; // asked for by setting it to 3
};

void stay(void* argument) {
    Talk* talk = static_cast<Talk*>(argument);
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &talk->blocked, sizeof talk->blocked);
    talk->word = arch_thread_word();
    talk->self = arch_thread_pointer();
    talk->error = &errno;
    talk->tid = os_thread_id();
    syscall(SYS_close, -1); // sets errno: this thread's
    store_release(&talk->begun, 1u);
    os_futex_wake(&talk->begun, 1);
    while (load_acquire(&talk->stop) == 0) os_futex_wait_for(&talk->stop, 0, 1000000000);
}

// Looks whether it fits every millisecond, and goes when it does not.
void stay_while_fit(void* argument) {
    Talk* talk = static_cast<Talk*>(argument);
    store_release(&talk->begun, 1u);
    os_futex_wake(&talk->begun, 1);
    while (load_acquire(&talk->stop) == 0) {
        store_release(&talk->fits, os_helper_fits() ? 1u : 0u);
        if (load_relaxed(&talk->fits) == 0) return;
        os_futex_wait_for(&talk->stop, 0, 1000000);
    }
}

bool start(Talk* talk, void (*body)(void*) = stay, void* word = nullptr) {
    if (!os_helper_start(body, talk, word)) return false;
    while (load_acquire(&talk->begun) == 0) os_futex_wait_for(&talk->begun, 0, 1000000000);
    return true;
}

void stop(Talk* talk) {
    store_release(&talk->stop, 1u);
    os_futex_wake(&talk->stop, 1);
    os_helper_join();
}

int threads_now() {
    DIR* all = opendir("/proc/self/task");
    int count = -2;
    while (all != nullptr && readdir(all) != nullptr) count++;
    if (all != nullptr) closedir(all);
    return count;
}

bool ended_within(uint32_t ms) {
    for (; ms != 0 && os_helper_runs(); ms--) usleep(1000);
    return !os_helper_runs();
}

// The body gets a process in which a helper could be; with sanitizers there is none, which is a test too.
template <class Body>
void expect_in_child(Body body) {
    EXPECT_FINE(in_child(
        [&] {
            EXPECT_FALSE(os_helper_start(stay, nullptr, nullptr)); // it is not enabled
            os_helper_enable();
            Talk talk;
            if (unit_sanitized) {
                EXPECT_FALSE(os_helper_start(stay, &talk, nullptr));
                os_helper_join();
            } else {
                body();
            }
        },
        20));
}

TEST(Helper, IsAThreadThatLibcDoesNotKnow) {
    expect_in_child([] {
        const int threads = threads_now(); // an emulator has some of its own
        EXPECT_FALSE(os_helper_runs());
        os_helper_join(); // there is none to wait for
        for (int life = 0; life < 3; life++) {
            Talk talk;
            int word;
            errno = EBADMSG;
            ASSERT_TRUE(start(&talk, stay, &word));
            EXPECT_EQ(errno, EBADMSG);
            EXPECT_TRUE(os_helper_runs());
            EXPECT_EQ(threads_now(), threads + 1);
            EXPECT_TRUE(__libc_single_threaded);
            EXPECT_EQ(talk.word, &word);
            EXPECT_NE(arch_thread_word(), &word);
            EXPECT_NE(talk.self, arch_thread_pointer());
            EXPECT_NE(talk.error, &errno);
            EXPECT_NE(talk.tid, os_thread_id());
            uint64_t never = 1u << (SIGKILL - 1) | 1u << (SIGSTOP - 1);
            if (unit_emulated) never |= uint64_t{15} << 60; // kept by emulators
            EXPECT_EQ(talk.blocked | never, ~uint64_t{0});
            Talk second;
            EXPECT_FALSE(os_helper_start(stay, &second, &word));
            sigset_t mine;
            sigprocmask(SIG_BLOCK, nullptr, &mine);
            EXPECT_FALSE(sigismember(&mine, SIGUSR1));
            stop(&talk);
            EXPECT_FALSE(os_helper_runs());
            EXPECT_EQ(threads_now(), threads);
        }
    });
}

TEST(Helper, TakesNoSignalOfTheProcess) {
    static volatile sig_atomic_t by;
    expect_in_child([] {
        struct sigaction action = {};
        action.sa_handler = [](int) { by = os_thread_id(); };
        sigaction(SIGUSR1, &action, nullptr);
        Talk talk;
        ASSERT_TRUE(start(&talk));
        sigset_t one, pending;
        sigemptyset(&one);
        sigaddset(&one, SIGUSR1);
        sigprocmask(SIG_BLOCK, &one, nullptr);
        kill(getpid(), SIGUSR1); // nobody but the helper could take it now
        usleep(2000);
        EXPECT_EQ(by, 0);
        sigpending(&pending);
        EXPECT_TRUE(sigismember(&pending, SIGUSR1));
        sigprocmask(SIG_UNBLOCK, &one, nullptr);
        EXPECT_EQ(by, os_thread_id());
        stop(&talk);
    });
}

// Success of unshare(CLONE_THREAD) is the kernel's word for it, and asks for no privilege.
TEST(Helper, LeavesAProcessOfOneThreadWhenJoined) {
    expect_in_child([] {
        for (unsigned i = 0; i < unit_rounds(600); i++) { // that many, to meet it in the midst of its end
            Talk talk;
            ASSERT_TRUE(start(&talk));
            if (i == 0 && !unit_emulated) {
                EXPECT_EQ(syscall(SYS_unshare, CLONE_THREAD), -1);
            }
            if (i % 2 != 0) { // met when its word is cleared already, but not more than that
                store_release(&talk.stop, 1u);
                os_futex_wake(&talk.stop, 1);
                while (os_helper_runs()) arch_pause();
            }
            stop(&talk);
            ASSERT_TRUE(syscall(SYS_unshare, CLONE_THREAD) == 0 || unit_emulated) << i;
        }
    });
}

// On a stack of its own, where there is no handler of gtest's that its unwinding would run into.
[[noreturn]] void end_first_thread() {
    static char stack[256 * 1024];
    static ucontext_t here, there;
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = sizeof stack;
    makecontext(&there, [] { pthread_exit(nullptr); }, 0);
    swapcontext(&here, &there);
    abort();
}

TEST(Helper, FollowsOneThatIsEnding) {
    expect_in_child([] {
        for (unsigned i = 0; i < unit_rounds(600); i++) {
            static uint32_t begun;
            store_release(&begun, 0u);
            auto brief = [](void*) {
                store_release(&begun, 1u);
                os_futex_wake(&begun, 1);
            };
            uint64_t until = os_clock_ns() + 5000000000u;
            bool started = false; // at the latest when the last one's body has returned
            while (!started && os_clock_ns() < until) {
                started = os_helper_start(brief, nullptr, nullptr);
                uint32_t nobody = 0;
                if (!started) os_futex_wait_for(&nobody, 0, 20000);
            }
            ASSERT_TRUE(started);
            while (load_acquire(&begun) == 0) os_futex_wait_for(&begun, 0, 1000000000);
        }
        os_helper_join();
        EXPECT_TRUE(threads_now() == 1 || unit_emulated);
    });
}

// Absent: no helper, and sanitizers do not know the stack that is used here
TEST_UNSANITIZED(Helper, DoesNotKeepTheProcessFromEnding) {
    enum { BY_PTHREAD_EXIT, BY_EXIT, BY_OTHER_THREAD };
    for (int way : {BY_PTHREAD_EXIT, BY_EXIT, BY_OTHER_THREAD}) {
        static Talk talk;
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            os_helper_enable();
            if (!start(&talk) && !unit_sanitized) _exit(99);
            if (way == BY_EXIT) _exit(7);
            pthread_t other;
            if (way == BY_OTHER_THREAD) {
                pthread_create(
                    &other, nullptr,
                    [](void*) -> void* {
                        usleep(20000);
                        return nullptr;
                    },
                    nullptr);
            }
            end_first_thread();
        }
        int status = -1;
        waitpid(pid, &status, 0);
        ASSERT_TRUE(WIFEXITED(status)) << way << " " << status;
        EXPECT_EQ(WEXITSTATUS(status), way == BY_EXIT ? 7 : 0) << way;
    }
}

// Without exit_group, as runtimes end their threads that use no libc.
// Absent: no helper, or the emulator's own end of threads
TEST_NATIVE(Helper, EndsWhenItIsTheLastThread) {
    static Talk talk;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        os_helper_enable();
        if (!start(&talk, stay_while_fit)) _exit(99);
        usleep(5000);
        syscall(SYS_exit, 3);
    }
    int status = -1;
    pid_t ended = 0; // an alarm would do nothing: what is left has all signals blocked
    for (int ms = 0; ms < 5000 && (ended = waitpid(pid, &status, WNOHANG)) == 0; ms++) usleep(1000);
    if (ended == 0) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

TEST(Helper, IsNotInTheChildOfFork) {
    expect_in_child([] {
        Talk talk;
        ASSERT_TRUE(start(&talk));
        EXPECT_FINE(in_child([] {
            os_helper_fork_child();
            EXPECT_FALSE(os_helper_runs());
            os_helper_join();
            Talk own;
            if (!start(&own)) {
                EXPECT_TRUE(unit_emulated); // not where the emulator might die of it
                return;
            }
            EXPECT_TRUE(unit_emulated || threads_now() == 2) << threads_now();
            stop(&own);
        }));
        EXPECT_TRUE(os_helper_runs());
        // A raw fork, which runs no handlers: the kernel itself forgets the helper, and none is made.
        int status = -1;
        pid_t pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
        if (pid == 0) {
            Talk own;
            bool forgotten = !os_helper_runs() || unit_emulated;
            _exit(forgotten && !os_helper_start(stay, &own, nullptr) ? 0 : 1);
        }
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
        stop(&talk);
    });
}

TEST(Helper, IsNotMadeByAChildOfVfork) {
    expect_in_child([] {
        static Talk talk;
        static bool made;
        pid_t pid = vfork();
        if (pid == 0) {
            made = os_helper_start(stay, &talk, nullptr);
            _exit(0);
        }
        int status = -1;
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
        EXPECT_FALSE(made && !unit_emulated); // emulators make it a fork, which is another process as well
        EXPECT_FALSE(os_helper_runs());
        ASSERT_TRUE(start(&talk));
        stop(&talk);
    });
}

TEST(Helper, HoldsNoFileOfTheProcess) {
    expect_in_child([] {
        int ends[2];
        ASSERT_EQ(pipe(ends), 0);
        Talk talk;
        ASSERT_TRUE(start(&talk));
        if (unit_emulated || // it shares the table among its own threads
            syscall(SYS_close_range, ends[1], ends[1], 1u << 1 /* CLOSE_RANGE_UNSHARE */) != 0) {
            close(ends[1]); // an old kernel
        }
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        char byte;
        EXPECT_EQ(read(ends[0], &byte, 1), 0); // the end of the file: no writer is left
        stop(&talk);
    });
}

// It has looked some times, and stays.
void start_and_fit(Talk* talk) {
    ASSERT_TRUE(start(talk, stay_while_fit));
    usleep(20000);
    EXPECT_TRUE(os_helper_runs());
    EXPECT_EQ(load_acquire(&talk->fits), 1u);
}

TEST_UNEMULATED(Helper, NoticesThatItIsNotLikeTheProcess) {
    expect_in_child([] {
        Talk talk;
        start_and_fit(&talk);
        ASSERT_EQ(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        EXPECT_TRUE(ended_within(2000)); // the calling thread's alone
        EXPECT_EQ(load_acquire(&talk.fits), 0u);
        Talk next;
        ASSERT_TRUE(start(&next, stay_while_fit)); // it inherits what its maker has
        usleep(20000);
        EXPECT_TRUE(os_helper_runs());
        bool changes = geteuid() == 0; // the test of a user has no other to become
        EXPECT_TRUE(!changes || syscall(SYS_setresuid, 65534, 65534, 65534) == 0);
        EXPECT_EQ(ended_within(changes ? 2000 : 50), changes);
        stop(&next);
        stop(&talk);
    });
}

bool process_has_filter() {
    char line[256];
    bool has = true;
    FILE* status = fopen("/proc/self/status", "re");
    while (status != nullptr && fgets(line, sizeof line, status) != nullptr)
        if (strncmp(line, "Seccomp:", 8) == 0) has = strstr(line, "\t0") == nullptr;
    if (status != nullptr) fclose(status);
    return has;
}

uint64_t calls_now() { return load_relaxed(&os_call_counts[OS_OTHER]); }

TEST_NATIVE(Helper, ReadsOnceAndNotAtTheStart) {
    expect_in_child([] {
        uint64_t before = calls_now();
        os_helper_enable();
        EXPECT_EQ(calls_now(), before + 1);
        EXPECT_EQ(os_sandboxed(), process_has_filter());
        EXPECT_GT(calls_now(), before + 3);
        before = calls_now();
        EXPECT_EQ(os_sandboxed(), process_has_filter());
        EXPECT_EQ(calls_now(), before);
    });
}

TEST_NATIVE(Helper, AsksAgainWhereDescriptorsWereShort) {
    expect_in_child([] {
        struct rlimit limit;
        ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
        struct rlimit none = {0, limit.rlim_max};
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
        Talk talk;
        EXPECT_TRUE(os_sandboxed()); // to be safe
        EXPECT_FALSE(os_helper_start(stay, &talk, nullptr));
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        EXPECT_EQ(os_sandboxed(), process_has_filter());
    });
}

// A filter that lets everything pass but one call.
bool forbid(long call, uint32_t action) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}
bool forbid_clone(uint32_t action) { return forbid(SYS_clone, action); }

TEST_UNEMULATED(Helper, IsNotTriedWhereNothingTells) {
    expect_in_child([] {
        Talk talk;
        ASSERT_TRUE(forbid(SYS_openat, SECCOMP_RET_ERRNO | ENOENT));
        EXPECT_TRUE(os_sandboxed());
        EXPECT_FALSE(os_helper_start(stay, &talk, nullptr));
    });
}

// The user's groups come before most of what it looks at.
TEST_UNEMULATED(Helper, NoticesTheSameBehindManyGroups) {
    expect_in_child([] {
        std::vector<gid_t> groups(4000, getegid());
        if (syscall(SYS_setgroups, groups.size(), groups.data()) != 0) {
            EXPECT_EQ(errno, EPERM);
            fprintf(stderr, "not tested: setgroups is not allowed here\n");
            return;
        }
        EXPECT_EQ(os_sandboxed(), process_has_filter());
        Talk talk;
        start_and_fit(&talk);
        ASSERT_EQ(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        EXPECT_TRUE(ended_within(2000));
        stop(&talk);
    });
}

// It has the memory of its parent, whom that does not bind.
TEST_NATIVE(Helper, IsAllowedAfterAChildOfVforkAnnouncedASandbox) {
    expect_in_child([] {
        pid_t pid = vfork();
        if (pid == 0) {
            os_sandbox_announced();
            _exit(0);
        }
        int status = -1;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        Talk talk;
        start_and_fit(&talk);
        stop(&talk);
    });
}

// Emulators have no filters.
TEST_UNEMULATED(Helper, IsRefusedWhereCloneIs) {
    expect_in_child([] {
        Talk talk;
        ASSERT_TRUE(forbid_clone(SECCOMP_RET_ERRNO | EPERM));
        errno = EBADMSG;
        EXPECT_FALSE(os_helper_start(stay, &talk, nullptr));
        EXPECT_EQ(errno, EBADMSG);
        EXPECT_FALSE(os_helper_runs());
        sigset_t mine;
        sigprocmask(SIG_BLOCK, nullptr, &mine);
        EXPECT_FALSE(sigismember(&mine, SIGUSR1));
    });
}

// Announced after the start, as prctl's wrapper does.
TEST(Helper, IsNotTriedWhereASandboxIsAnnounced) {
    expect_in_child([] {
        Talk talk;
        os_sandbox_announced();
        EXPECT_TRUE(os_sandboxed());
        forbid_clone(SECCOMP_RET_KILL_PROCESS);
        EXPECT_FALSE(os_helper_start(stay, &talk, nullptr));
    });
}

TEST_UNEMULATED(Helper, IsNotTriedWhereCloneMayKill) {
    expect_in_child([] {
        Talk talk;
        ASSERT_TRUE(forbid_clone(SECCOMP_RET_KILL_PROCESS));
        EXPECT_TRUE(os_sandboxed());
        EXPECT_FALSE(os_helper_start(stay, &talk, nullptr));
    });
}

// So that the two above say something.
TEST_NATIVE(Helper, WouldEndAProcessWhereCloneKills) {
    Ended tried = in_child([] {
        os_helper_enable();
        os_sandbox_learn();
        Talk talk;
        forbid_clone(SECCOMP_RET_KILL_PROCESS);
        os_helper_start(stay, &talk, nullptr);
    });
    EXPECT_TRUE(WIFSIGNALED(tried.status) && WTERMSIG(tried.status) == SIGSYS) << tried.status;
}

TEST(Helper, IsAllowedAfterAThreadOfTheProgram) {
    expect_in_child([] {
        EXPECT_TRUE(forbid_clone(SECCOMP_RET_ALLOW) || unit_emulated);
        os_sandbox_announced();
        Talk talk;
        EXPECT_FALSE(os_helper_start(stay, &talk, nullptr));
        os_sandbox_thread_seen();
        ASSERT_TRUE(start(&talk, stay_while_fit));
        usleep(5000);
        EXPECT_TRUE(os_helper_runs());
        stop(&talk);
        os_sandbox_announced(); // a new filter: what was seen before it counts no more
        EXPECT_FALSE(os_helper_start(stay, &talk, nullptr));
    });
}

TEST(Helper, IsRefusedWithoutMemoryForItsStack) {
    expect_in_child([] {
        static enum os_call refused;
        Talk talk;
        os_fault_hook = [](enum os_call call) { return call == refused; };
        for (enum os_call call : {OS_MAP, OS_PROTECT}) {
            refused = call;
            EXPECT_FALSE(os_helper_start(stay, &talk, nullptr));
        }
        os_fault_hook = nullptr;
        ASSERT_TRUE(start(&talk));
        stop(&talk);
    });
}

TEST(Helper, HasLocksOfItsOwn) {
    static struct os_lock lock;
    struct Locks {
        static void body(void* argument) {
            for (unsigned i = 0; i < 2000; i++) {
                os_lock_take(&lock);
                ++*static_cast<uint64_t*>(argument);
                os_lock_give(&lock);
            }
        }
    };
    expect_in_child([] {
        uint64_t counter = 0; // plain: only the lock keeps it right
        ASSERT_TRUE(os_helper_start(Locks::body, &counter, nullptr));
        for (unsigned i = 0; i < 2000; i++) {
            os_lock_take(&lock);
            counter++;
            os_lock_give(&lock);
        }
        os_helper_join();
        EXPECT_EQ(counter, 4000u);
        EXPECT_EQ(lock.owner, nullptr);
    });
}

TEST(Helper, FutexWaitEndsByItself) {
    uint32_t word = 0;
    uint64_t begun = os_clock_ns();
    errno = EBADMSG;
    os_futex_wait_for(&word, 0, 20000000);
    EXPECT_EQ(errno, EBADMSG);
    EXPECT_GE(os_clock_ns() - begun, 20000000u);
    begun = os_clock_ns();
    os_futex_wait_for(&word, 1, 5000000000u); // another value: at once
    EXPECT_LT(os_clock_ns() - begun, 4000000000u);
}

} // namespace
