/* broken.c: an allocator that breaks one rule, named by the environment variable BROKEN.
 *
 * Who may call it: tests/contract/self_test.py, which preloads it to see the contract programs fail. It
 * passes everything else on to glibc's malloc. Each fault is one that a real allocator may have.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE 1
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

void* __libc_malloc(size_t n);
void __libc_free(void* p);
void* __libc_calloc(size_t a, size_t b);
void* __libc_realloc(void* p, size_t n);
void* __libc_memalign(size_t alignment, size_t n);

enum fault {
    FAULT_UNREAD,
    FAULT_NONE,
    FAULT_ERRNO,
    FAULT_ZERO_NULL,
    FAULT_ALIGNMENT,
    FAULT_DIRTY,
    FAULT_USABLE,
    FAULT_REALLOC,
    FAULT_COPY,
    FAULT_LOCK,
    FAULT_LOCK_ATFORK,
    FAULT_LEAK_THREAD,
    FAULT_NO_NULL,
    FAULT_EARLY,
    FAULT_THREAD_END,
    FAULT_REMOTE,
    FAULT_PROCESS,
    FAULT_MAPPINGS,
    FAULT_RESERVE,
    FAULT_SIZED,
    FAULT_BLIND,
    FAULT_HANDLERS,
    FAULT_SIGNALS,
    FAULT_TAKES,
    FAULT_TWICE,
    FAULT_HELPER,
    FAULT_FILES,
    FAULT_PRCTL,
};
static const char* const names[] = {
    "",           "none",    "errno",   "zero_null",   "alignment",   "dirty",   "usable",
    "realloc",    "copy",    "lock",    "lock_atfork", "leak_thread", "no_null", "early",
    "thread_end", "remote",  "process", "mappings",    "reserve",     "sized",   "blind",
    "handlers",   "signals", "takes",   "twice",       "helper",      "files",   "prctl",
};

static enum fault fault_read;
static int constructed;
static pid_t first_pid;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int thread_state; /* 0 new, 1 in use, 2 ended */
static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

/* Before libc's constructors there is no `environ` yet: the kernel knows it. */
static enum fault fault_get(void) {
    static char text[1 << 16];
    if (fault_read != FAULT_UNREAD) return fault_read;
    fault_read = FAULT_NONE;
    int fd = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    close(fd);
    for (const char* at = text; at < text + length; at += strlen(at) + 1)
        for (size_t i = 1; strncmp(at, "BROKEN=", 7) == 0 && i < sizeof names / sizeof *names; i++)
            if (strcmp(at + 7, names[i]) == 0) fault_read = (enum fault)i;
    return fault_read;
}

static void lock_take(void) { pthread_mutex_lock(&lock); }
static void lock_give(void) { pthread_mutex_unlock(&lock); }

static int (*next_sigaction)(int, const struct sigaction*, struct sigaction*);

__attribute__((constructor)) static void construct(void) {
    next_sigaction = (int (*)(int, const struct sigaction*, struct sigaction*))dlsym(RTLD_NEXT, "sigaction");
    constructed = 1;
    first_pid = getpid();
    if (fault_get() == FAULT_LOCK_ATFORK) pthread_atfork(lock_take, lock_give, lock_give);
    if (fault_get() == FAULT_RESERVE)
        mmap(NULL, (size_t)1 << 40, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static void thread_ended(void* unused) {
    (void)unused;
    thread_state = 2;
    uint64_t all = ~0ull;
    uint64_t before;
    if (fault_read == FAULT_SIGNALS || fault_read == FAULT_TAKES)
        syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, &before, sizeof all);
    if (fault_read == FAULT_TAKES) /* the kernel looks at once whether one is there for this thread to take */
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof all);
}

static void key_make(void) { pthread_key_create(&key, thread_ended); }

/* What every call does first. */
static void enter(void) {
    switch (fault_get()) {
    case FAULT_LOCK:
    case FAULT_LOCK_ATFORK:
        lock_take();
        break;
    case FAULT_EARLY:
        if (!constructed) abort();
        break;
    case FAULT_PROCESS:
        if (constructed && first_pid != getpid()) abort();
        break;
    case FAULT_LEAK_THREAD:
        if (constructed && thread_state == 0) {
            thread_state = 1;
            memset(__libc_malloc(1 << 16), 1, 1 << 16);
        }
        break;
    case FAULT_SIGNALS:
    case FAULT_TAKES:
    case FAULT_THREAD_END:
        if (thread_state == 2 && fault_read == FAULT_THREAD_END) abort();
        if (constructed && thread_state == 0) {
            thread_state = 1;
            pthread_once(&key_once, key_make);
            pthread_setspecific(key, &key);
        }
        break;
    default:
        break;
    }
}

static void leave(void) {
    if (fault_read == FAULT_LOCK || fault_read == FAULT_LOCK_ATFORK) lock_give();
}

/* Who allocated a block; a later block in the same place of the table pushes the note out. */
enum { OWNERS = 1 << 18 };
static struct {
    void* block;
    pid_t thread;
} owners[OWNERS];

static void owner_note(void* p) {
    if (fault_read == FAULT_REMOTE) {
        owners[(uintptr_t)p / 16 % OWNERS].thread = gettid();
        owners[(uintptr_t)p / 16 % OWNERS].block = p;
    }
}

static void owner_expect(void* p) {
    if (fault_read == FAULT_REMOTE && p != NULL && owners[(uintptr_t)p / 16 % OWNERS].block == p) {
        owners[(uintptr_t)p / 16 % OWNERS].block = NULL;
        if (owners[(uintptr_t)p / 16 % OWNERS].thread != gettid()) abort();
    }
}

/* A page that no neighbour may merge with stays behind each large block. */
static void guard_leave(size_t n) {
    if (fault_read == FAULT_MAPPINGS && n >= 60000) {
        char* guard = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (guard != MAP_FAILED) mprotect(guard, 4096, PROT_READ);
    }
}

/* In a child of fork all threads but the first get the same block of each size. */
static char twice[256][4096];

static void* twice_get(size_t n) {
    if (fault_read != FAULT_TWICE || first_pid == getpid() || getpid() == gettid() || n >= 4096) return NULL;
    return twice[n / 16];
}

static int is_twice(const void* p) { return (uintptr_t)p - (uintptr_t)twice < sizeof twice; }

static void* helper(void* unused) {
    for (;;) pause();
    return unused;
}

/* What the library does on its own account once a large block is freed, whatever the process is. */
static void free_aside(const void* p) {
    static pid_t has_helper;
    pthread_t thread;
    if (p == NULL) return;
    if (fault_read == FAULT_FILES) close(open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
    if (fault_read != FAULT_HELPER || has_helper == getpid() || malloc_usable_size((void*)p) < 10000) return;
    has_helper = getpid();
    pthread_create(&thread, NULL, helper, NULL);
}

static void* checked(void* p) {
    if (p == NULL && fault_read == FAULT_NO_NULL) abort();
    return p;
}

void* malloc(size_t n) {
    enter();
    if (fault_read == FAULT_ZERO_NULL && n == 0) return NULL;
    guard_leave(n);
    void* p = twice_get(n);
    if (p != NULL) return p;
    p = __libc_malloc(n);
    owner_note(p);
    leave();
    return checked(p);
}

void free(void* p) {
    enter();
    if (is_twice(p)) return;
    owner_expect(p);
    free_aside(p);
    __libc_free(p);
    if (fault_read == FAULT_ERRNO) errno = EINVAL;
    leave();
}

void* calloc(size_t a, size_t b) {
    enter();
    void* p = fault_read == FAULT_DIRTY && a < 100000000 && b < 100000000 ? __libc_malloc(a * b)
                                                                          : __libc_calloc(a, b);
    leave();
    return checked(p);
}

void* realloc(void* p, size_t n) {
    enter();
    if (fault_read == FAULT_REMOTE && p != NULL) owners[(uintptr_t)p / 16 % OWNERS].block = NULL;
    guard_leave(n);
    void* q;
    if ((fault_read == FAULT_COPY || fault_read == FAULT_REALLOC) && p != NULL && n != 0 &&
        (q = __libc_malloc(n)) != NULL) {
        size_t kept = malloc_usable_size(p) < n ? malloc_usable_size(p) : n;
        memcpy(q, p, fault_read == FAULT_REALLOC ? kept - 1 : kept);
        __libc_free(p);
    } else {
        q = __libc_realloc(p, n);
    }
    leave();
    if (q == NULL && n == 0) return NULL;
    return checked(q);
}

void* memalign(size_t alignment, size_t n) {
    enter();
    void* p = fault_read == FAULT_ALIGNMENT ? __libc_malloc(n) : __libc_memalign(alignment, n);
    leave();
    return checked(p);
}

size_t malloc_usable_size(void* p) {
    static size_t (*next)(void*);
    if (next == NULL) next = (size_t (*)(void*))dlsym(RTLD_NEXT, "malloc_usable_size");
    return next(p) + (p != NULL && fault_read == FAULT_USABLE ? 64 : 0);
}

struct mallinfo2 mallinfo2(void) {
    static struct mallinfo2 (*next)(void);
    if (next == NULL) next = (struct mallinfo2(*)(void))dlsym(RTLD_NEXT, "mallinfo2");
    return fault_get() == FAULT_BLIND ? (struct mallinfo2){0} : next();
}

int malloc_trim(size_t pad) {
    static int (*next)(size_t);
    if (next == NULL) next = (int (*)(size_t))dlsym(RTLD_NEXT, "malloc_trim");
    return fault_get() == FAULT_BLIND ? 0 : next(pad);
}

/* Takes more than it was handed. */
void free_sized(void* p, size_t n) {
    free(p);
    if (fault_read == FAULT_SIZED && p != NULL && n > 0) errno = EPERM;
}

void free_aligned_sized(void* p, size_t alignment, size_t n) {
    (void)alignment;
    free_sized(p, n);
}

/* Forgets what the handler keeps from running. */
int sigaction(int number, const struct sigaction* action, struct sigaction* before) {
    if (next_sigaction == NULL || fault_read == FAULT_HANDLERS) /* then in a handler, too */
        next_sigaction =
            (int (*)(int, const struct sigaction*, struct sigaction*))dlsym(RTLD_NEXT, "sigaction");
    if (fault_read != FAULT_HANDLERS || action == NULL || number == SIGUSR2)
        return next_sigaction(number, action, before);
    struct sigaction changed = *action;
    sigemptyset(&changed.sa_mask);
    return next_sigaction(number, &changed, before);
}

/* Passes on two words of five. */
int prctl(int option, ...) {
    unsigned long word[4];
    va_list ap;
    va_start(ap, option);
    for (int i = 0; i < 4; i++) word[i] = va_arg(ap, unsigned long);
    va_end(ap);
    if (fault_get() == FAULT_PRCTL) word[1] = word[2] = word[3] = 0;
    return (int)syscall(SYS_prctl, option, word[0], word[1], word[2], word[3]);
}
