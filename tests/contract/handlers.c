/* handlers.c: handlers of SIGSEGV and SIGBUS that the program installs, by each of libc's calls: what is read
 * back, when and how they are called, and what happens where there is none.
 *
 * Who may call it: tests/contract/run.py. SIGUSR2, which no allocator has to do with, shows what the kernel
 * and libc make of an action; the two others have to look the same. With an argument the library watches
 * faults, and has to be the kernel's handler throughout; without it has to be none.
 *
 * contract: name=off static=yes
 * contract: name=watched static=yes args=watched env=WEIR_OPTIONS=guard_rate=1
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "contract.h"
#include <pthread.h>
#include <setjmp.h>
#include <sys/syscall.h>
#include <ucontext.h>

typedef void (*handler_t)(int);
extern int __sigaction(int number, const struct sigaction* action, struct sigaction* before);
extern handler_t bsd_signal(int number, handler_t handler);
extern handler_t ssignal(int number, handler_t handler);
extern handler_t __sysv_signal(int number, handler_t handler);

static int is_watched;
static char* volatile page;
static sigjmp_buf back;
static volatile int calls, seen_code, seen_on_stack;
static void* volatile seen_address;
static sigset_t seen_mask;
static char* alternate;
static const int faults[] = {SIGSEGV, SIGBUS};

static void see(siginfo_t* info) {
    char here;
    calls++;
    seen_on_stack = &here >= alternate && &here < alternate + SIGSTKSZ;
    seen_address = info == NULL ? NULL : info->si_addr;
    seen_code = info == NULL ? 0 : info->si_code;
    pthread_sigmask(SIG_SETMASK, NULL, &seen_mask);
}
static void opens(int number, siginfo_t* info, void* context) {
    (void)number, (void)context;
    see(info);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}
static void jumps(int number, siginfo_t* info, void* context) {
    (void)number, (void)context;
    see(info);
    siglongjmp(back, 1);
}
static void counts(int number) {
    (void)number;
    see(NULL);
}
static void opens_plain(int number) {
    (void)number;
    see(NULL);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static void fault(void) {
    mprotect(page, 4096, PROT_NONE);
    *(volatile char*)page = 1;
}

static struct sigaction action_of(void (*handler)(int, siginfo_t*, void*), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags};
    sigaddset(&action.sa_mask, SIGUSR1);
    return action;
}
static void set(int number, struct sigaction action) { EXPECT_EQ(sigaction(number, &action, NULL), 0); }

struct kernel_action {
    handler_t handler;
    unsigned long flags;
    void* restorer;
    uint64_t mask;
};
static struct kernel_action kernel_action(int number) {
    struct kernel_action k = {0};
    syscall(SYS_rt_sigaction, number, NULL, &k, sizeof k.mask);
    return k;
}

/* The library's handler stands before the program's, or does not. */
static void expect_place(int number, const void* own) {
    int is_own = (const void*)kernel_action(number).handler == own;
    EXPECT_EQ(is_own, !(is_watched && contract_is_weir()));
}

/* What libc's signal() blocks while the handler runs is the signal itself. */
static void expect_same(const struct sigaction* model, const struct sigaction* found, int number) {
    struct sigaction a = *model;
    if (sigismember(&a.sa_mask, SIGUSR2)) sigdelset(&a.sa_mask, SIGUSR2), sigaddset(&a.sa_mask, number);
    EXPECT(a.sa_sigaction == found->sa_sigaction);
    EXPECT_EQ(a.sa_flags, found->sa_flags);
#ifdef __x86_64__
    EXPECT(a.sa_restorer == found->sa_restorer);
#endif
    EXPECT(memcmp(&a.sa_mask, &found->sa_mask, 8) == 0);
}
static void expect_state(int number) {
    struct sigaction model, found;
    EXPECT_EQ(sigaction(SIGUSR2, NULL, &model), 0);
    EXPECT_EQ(sigaction(number, NULL, &found), 0);
    expect_same(&model, &found, number);
}

/* User-mode emulators keep what the kernel does not. */
static int kernel_tidies(void) {
    struct sigaction found, action = action_of(jumps, 0x20000000);
    set(SIGUSR2, action);
    EXPECT_EQ(sigaction(SIGUSR2, NULL, &found), 0);
    return (found.sa_flags & 0x20000000) == 0;
}

static void test_read_back(int number) {
    static const int flags[] = {0,
                                SA_SIGINFO,
                                SA_ONSTACK | SA_SIGINFO,
                                SA_RESTART,
                                SA_NODEFER,
                                (int)SA_RESETHAND,
                                SA_NOCLDSTOP | SA_SIGINFO,
                                0x20000000,
                                SA_SIGINFO | 0x800};
    int tidies = kernel_tidies();
    signal(SIGUSR2, SIG_DFL);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        for (int kind = 0; kind < 3; kind++) {
            struct sigaction before, model, action = action_of(jumps, flags[i] & (tidies ? -1 : ~0x20000000));
            if (kind != 0) action.sa_handler = kind == 1 ? SIG_DFL : SIG_IGN;
            if (tidies) sigaddset(&action.sa_mask, SIGKILL);
            sigaddset(&action.sa_mask, SIGRTMAX - (int)i);
            EXPECT_EQ(sigaction(SIGUSR2, &action, &model), 0);
            EXPECT_EQ((i & 1 ? __sigaction : sigaction)(number, &action, &before), 0);
            expect_same(&model, &before, number);
            expect_state(number);
            if (kind == 0) expect_place(number, (const void*)jumps);
        }
}

static void test_calls(int number) {
    static handler_t (*const sets[])(int, handler_t) = {signal,      bsd_signal,    ssignal,
                                                        sysv_signal, __sysv_signal, sigset};
    static const handler_t handlers[] = {counts, SIG_IGN, opens_plain, SIG_DFL, counts};
    for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++)
        for (size_t h = 0; h < sizeof handlers / sizeof handlers[0]; h++) {
            handler_t model = sets[s](SIGUSR2, handlers[h]);
            EXPECT(sets[s](number, handlers[h]) == model);
            expect_state(number);
            if (handlers[h] == counts) expect_place(number, (const void*)counts);
        }
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(siginterrupt(SIGUSR2, i & 1), siginterrupt(number, i & 1));
        expect_state(number);
        EXPECT(signal(SIGUSR2, counts) == signal(number, counts));
        expect_state(number);
    }
    siginterrupt(SIGUSR2, 0), siginterrupt(number, 0);
    EXPECT(sigset(SIGUSR2, SIG_HOLD) == sigset(number, SIG_HOLD));
    EXPECT(sigset(SIGUSR2, SIG_HOLD) == SIG_HOLD && sigset(number, SIG_HOLD) == SIG_HOLD);
    EXPECT(sigset(SIGUSR2, counts) == SIG_HOLD && sigset(number, counts) == SIG_HOLD);
    EXPECT(sigset(SIGUSR2, SIG_DFL) == counts && sigset(number, SIG_DFL) == counts);
    EXPECT_EQ(sigignore(SIGUSR2), sigignore(number));
    expect_state(number);
    for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++) {
        errno = 0;
        EXPECT(sets[s] == sigset || (sets[s](number, SIG_ERR) == SIG_ERR && errno == EINVAL));
    }
    expect_state(number);
    signal(SIGUSR2, SIG_DFL), signal(number, SIG_DFL);
}

static void test_errors(void) {
    struct sigaction action = {.sa_handler = counts};
    static const int wrong[] = {-1, 0, 32, 33, 65, SIGKILL, SIGSTOP};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        errno = 0;
        EXPECT(sigaction(wrong[i], &action, NULL) == -1 && errno == EINVAL);
        errno = 0;
        EXPECT(signal(wrong[i], counts) == SIG_ERR && errno == EINVAL);
    }
}

static void test_delivery(void) {
    for (int on_stack = 0; on_stack < 2; on_stack++)
        for (int nodefer = 0; nodefer < 2; nodefer++) {
            set(SIGSEGV,
                action_of(opens, SA_SIGINFO | (on_stack ? SA_ONSTACK : 0) | (nodefer ? SA_NODEFER : 0)));
            calls = 0;
            errno = 77;
            fault();
            EXPECT_EQ(errno, 77);
            EXPECT_EQ(calls, 1);
            EXPECT(seen_address == page && seen_code == SEGV_ACCERR);
            EXPECT_EQ(seen_on_stack, on_stack);
            EXPECT_EQ(sigismember(&seen_mask, SIGSEGV), !nodefer);
            EXPECT(sigismember(&seen_mask, SIGUSR1) == 1 && sigismember(&seen_mask, SIGUSR2) == 0);
            raise(SIGSEGV);
            EXPECT(calls == 2 && seen_code == SI_TKILL);
        }
    for (int i = 0; i < 3; i++) {
        set(SIGSEGV, action_of(jumps, SA_SIGINFO));
        if (sigsetjmp(back, 1) == 0) fault();
    }
    EXPECT_EQ(calls, 5);
    signal(SIGSEGV, opens_plain);
    fault();
    EXPECT_EQ(calls, 6);
    signal(SIGSEGV, SIG_IGN);
    raise(SIGSEGV);
    signal(SIGSEGV, SIG_DFL);
}

static void sets_another(int number) {
    signal(number, opens_plain);
    calls = 100;
}
static void test_in_a_handler(void) {
    signal(SIGSEGV, sets_another);
    fault();
    EXPECT_EQ(calls, 101);
    signal(SIGSEGV, SIG_DFL);
}

/* How a child ends that does this. */
static int end_of(void (*act)(void)) {
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        act();
        _exit(calls < 9 ? calls : 9);
    }
    waitpid(pid, &status, 0);
    return status;
}
static void child_default(void) { fault(); }
static void child_ignored(void) {
    signal(SIGSEGV, SIG_IGN);
    raise(SIGSEGV);
    fault();
}
static void child_raises(void) { raise(SIGSEGV); }
static void child_bus(void) {
    char* p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, memfd_create("empty", 0), 0);
    *(volatile char*)p;
}
static void child_once(void) {
    struct sigaction found;
    calls = 0;
    set(SIGSEGV, action_of(opens, SA_SIGINFO | (int)SA_RESETHAND));
    fault();
    sigaction(SIGSEGV, NULL, &found);
    if (calls != 1 || found.sa_handler != SIG_DFL || (found.sa_flags & (int)SA_RESETHAND) == 0) _exit(20);
    fault();
}
static void child_sets(void) {
    calls = 0;
    signal(SIGSEGV, opens_plain);
    expect_place(SIGSEGV, (const void*)opens_plain);
    fault();
}
static void test_ends(void) {
    EXPECT_EQ(WTERMSIG(end_of(child_default)), SIGSEGV);
    EXPECT_EQ(WTERMSIG(end_of(child_ignored)), SIGSEGV);
    EXPECT_EQ(WTERMSIG(end_of(child_raises)), SIGSEGV);
    EXPECT_EQ(WTERMSIG(end_of(child_bus)), SIGBUS);
    EXPECT_EQ(WTERMSIG(end_of(child_once)), SIGSEGV);
    set(SIGSEGV, action_of(opens, SA_SIGINFO));
    EXPECT_EQ(WEXITSTATUS(end_of(child_sets)), 1);
    expect_place(SIGSEGV, (const void*)opens);
}

/* A child that shares the memory, not the handlers. */
static void test_vfork(void) {
    set(SIGSEGV, action_of(opens, SA_SIGINFO));
    pid_t pid = vfork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, counts);
        _exit(0);
    }
    EXPECT_CHILD_OK(pid);
    struct sigaction found;
    EXPECT_EQ(sigaction(SIGSEGV, NULL, &found), 0);
    EXPECT(found.sa_sigaction == opens);
    EXPECT_EQ(sigaction(SIGBUS, NULL, &found), 0);
    EXPECT(found.sa_handler == SIG_DFL);
    expect_place(SIGSEGV, (const void*)opens);
    calls = 0;
    fault();
    EXPECT_EQ(calls, 1);
}

static volatile int thread_stops;
static void* thread_sets(void* which) {
    while (!thread_stops) set(SIGSEGV, action_of(opens, SA_SIGINFO | (which == NULL ? 0 : SA_NODEFER)));
    return NULL;
}
static void test_threads(void) {
    pthread_t thread[2];
    set(SIGSEGV, action_of(opens, SA_SIGINFO));
    for (size_t i = 0; i < 2; i++)
        EXPECT_EQ(pthread_create(&thread[i], NULL, thread_sets, i ? page : NULL), 0);
    calls = 0;
    for (int i = 0; i < 3000; i++) fault();
    thread_stops = 1;
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    EXPECT_EQ(calls, 3000);
    expect_place(SIGSEGV, (const void*)opens);
}

/* Of two that set at once the last one is what the kernel goes by. */
static unsigned volatile rounds_begun, rounds_done;
static void* thread_sets_once(void* unused) {
    for (unsigned i = 1; i <= 3000; i++) {
        while (rounds_begun < i) continue;
        set(SIGSEGV, action_of(opens, SA_SIGINFO | SA_NODEFER));
        rounds_done = i;
    }
    return unused;
}
static void test_order(void) {
    pthread_t thread;
    unsigned wrong = 0;
    struct sigaction found;
    EXPECT_EQ(pthread_create(&thread, NULL, thread_sets_once, NULL), 0);
    for (unsigned i = 1; i <= 3000; i++) {
        rounds_begun = i;
        for (unsigned k = 0; k < i % 16; k++) __asm__ volatile("");
        set(SIGSEGV, action_of(opens, SA_SIGINFO));
        while (rounds_done < i) continue;
        sigaction(SIGSEGV, NULL, &found);
        wrong += (kernel_action(SIGSEGV).flags & SA_NODEFER) != ((unsigned)found.sa_flags & SA_NODEFER);
    }
    pthread_join(thread, NULL);
    EXPECT_EQ(wrong, 0);
}

/* More different actions than anybody has. */
static void child_many(void) {
    for (unsigned i = 0; i < 1000; i++) {
        struct sigaction found, action = action_of(opens, SA_SIGINFO);
        memcpy(&action.sa_mask, &i, sizeof i);
        sigdelset(&action.sa_mask, SIGKILL);
        sigaction(SIGSEGV, &action, NULL);
        sigaction(SIGSEGV, NULL, &found);
        if (memcmp(&found.sa_mask, &action.sa_mask, 8) != 0 || found.sa_sigaction != opens) _exit(20);
        calls = 0;
        fault();
        if (calls != 1) _exit(21);
    }
    calls = 0;
}

int main(int argc, char** argv) {
    (void)argv;
    contract_begin();
    is_watched = argc > 1;
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    alternate = mmap(NULL, SIGSTKSZ, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = SIGSTKSZ}, NULL);
    for (int i = 0; i < 2; i++) expect_state(faults[i]); /* none was ever set */
    for (int i = 0; i < 2; i++) {
        signal(SIGUSR2, SIG_DFL); /* its first action, as that of the others */
        signal(faults[i], SIG_DFL);
        test_read_back(faults[i]);
        test_calls(faults[i]);
    }
    test_errors();
    test_delivery();
    test_in_a_handler();
    test_ends();
    test_vfork();
    test_threads();
    test_order();
    EXPECT_EQ(end_of(child_many), 0);
    return contract_end();
}
