/* os.c (Linux): the contract of os.h by raw system calls.
 *
 * Raw, because a program may interpose mmap and its kin with functions that allocate.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/text.h"
#include "os/linux/call.h"

#ifndef MREMAP_DONTUNMAP
#    define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_COLLAPSE
#    define MADV_COLLAPSE 25
#endif
#ifndef PIDFD_SELF
#    define PIDFD_SELF (-10000) /* the calling thread, where a descriptor of a process is asked for */
#endif

WEIR_VAR uint64_t os_call_counts[OS_CALL_COUNT];

#ifdef WEIR_TESTING
WEIR_VAR bool (*os_fault_hook)(enum os_call call);
static bool os_fault(enum os_call call) { return os_fault_hook != NULL && os_fault_hook(call); }
#else
static inline bool os_fault(enum os_call call) {
    (void)call;
    return false;
}
#endif

WEIR_FN long os_call_error(enum os_call kind, long number, long a, long b, long c, long d, long e, long f) {
    int saved = errno;
    add_relaxed(&os_call_counts[kind], 1);
    long result = syscall(number, a, b, c, d, e, f);
    if (result == -1) result = -errno;
    errno = saved;
    return result;
}
WEIR_FN long os_call6(enum os_call kind, long number, long a, long b, long c, long d, long e, long f) {
    long result = os_call_error(kind, number, a, b, c, d, e, f);
    return result < 0 ? -1 : result; /* no address of user space is negative */
}
WEIR_FN long os_call3(enum os_call kind, long number, long a, long b, long c) {
    return os_call6(kind, number, a, b, c, 0, 0, 0);
}

WEIR_FN size_t os_page_bytes(void) {
    static size_t page_bytes;
    size_t bytes = load_relaxed(&page_bytes); /* relaxed: every thread computes the same value */
    if (weir_unlikely(bytes == 0)) {
        bytes = getauxval(AT_PAGESZ);
        store_relaxed(&page_bytes, bytes);
    }
    return bytes;
}

static void* os_map(void* where, size_t bytes, int protection, int flags) {
    if (os_fault(OS_MAP)) return NULL;
    long p = os_call6(OS_MAP, SYS_mmap, (long)where, (long)bytes, protection,
                      flags | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == -1 ? NULL : (void*)p;
}

WEIR_FN void* os_reserve(size_t bytes, size_t align) {
    char* p = os_map(NULL, bytes, PROT_NONE, 0);
    if (p == NULL || ((uintptr_t)p & (align - 1)) == 0) return p;
    os_unmap(p, bytes);
    if (bytes > SIZE_MAX - align) return NULL;
    p = os_map(NULL, bytes + align, PROT_NONE, 0);
    if (p == NULL) return NULL;
    char* start = (char*)align_up((uintptr_t)p, align);
    if (start != p) os_unmap(p, (size_t)(start - p));
    size_t behind = align - (size_t)(start - p);
    if (behind != 0) os_unmap(start + bytes, behind);
    return start;
}

WEIR_FN void os_unmap(void* p, size_t bytes) {
    if (bytes != 0) os_call3(OS_MAP, SYS_munmap, (long)p, (long)bytes, 0);
}

WEIR_FN bool os_commit_as(void* p, size_t bytes, uint32_t kind) {
    if (os_fault(OS_PROTECT)) return false;
    return os_call3(OS_PROTECT, SYS_mprotect, (long)p, (long)bytes, PROT_READ | PROT_WRITE | (int)kind) == 0;
}

WEIR_FN bool os_commit(void* p, size_t bytes) { return os_commit_as(p, bytes, 0); }

WEIR_FN bool os_commit_zeroes(void* p, size_t bytes) {
    if (os_fault(OS_PROTECT)) return false;
    return os_call3(OS_PROTECT, SYS_mprotect, (long)p, (long)bytes, PROT_READ) == 0;
}

WEIR_FN bool os_forbid(void* p, size_t bytes) {
    if (os_fault(OS_PROTECT)) return false;
    return os_call3(OS_PROTECT, SYS_mprotect, (long)p, (long)bytes, PROT_NONE) == 0;
}

/* Mappings that were advised differently are not merged, and this advice says nothing else of memory without
 * a file. */
WEIR_FN bool os_part(void* p, size_t bytes) {
    if (os_fault(OS_OTHER)) return false;
    return os_call3(OS_OTHER, SYS_madvise, (long)p, (long)bytes, MADV_RANDOM) == 0;
}

WEIR_FN bool os_cover_as(void* p, size_t bytes, bool accessible, uint32_t kind) {
    return os_map(p, bytes, accessible ? PROT_READ | PROT_WRITE | (int)kind : PROT_NONE, MAP_FIXED) != NULL;
}

WEIR_FN bool os_cover(void* p, size_t bytes, bool accessible) { return os_cover_as(p, bytes, accessible, 0); }

WEIR_FN bool os_purge(void* p, size_t bytes) {
    if (os_fault(OS_PURGE)) return false;
    return os_call3(OS_PURGE, SYS_madvise, (long)p, (long)bytes, MADV_DONTNEED) == 0;
}

/* Whole ranges at the front that process_madvise did in one call; 0 when it failed, with *error. */
static unsigned purge_batch(const struct os_range* ranges, unsigned count, long* error) {
    enum { BATCH_MAX = 1024 }; /* the kernel's UIO_MAXIOV */
    static_assert(sizeof(struct os_range) == sizeof(struct iovec) &&
                      offsetof(struct os_range, bytes) == offsetof(struct iovec, iov_len),
                  "passed to the kernel as they are");
    if (count > BATCH_MAX) count = BATCH_MAX;
    *error = ENOMEM;
    if (os_fault(OS_PURGE)) return 0;
    long bytes =
        os_call_error(OS_PURGE, SYS_process_madvise, PIDFD_SELF, (long)ranges, count, MADV_DONTNEED, 0, 0);
    *error = bytes < 0 ? -bytes : 0;
    unsigned done = 0;
    for (; bytes > 0 && done < count && (size_t)bytes >= ranges[done].bytes; done++)
        bytes -= (long)ranges[done].bytes;
    return done;
}

WEIR_FN unsigned os_purge_many(const struct os_range* ranges, unsigned count, bool* locked) {
    static uint32_t batch_refused; /* Sync: relaxed; once 1 it stays: who misses it asks once more */
    unsigned done = 0;
    *locked = false;
    while (done < count) {
        long batch_error = 0;
        if (count - done > 1 && load_relaxed(&batch_refused) == 0 && !os_sandboxed()) {
            unsigned more = purge_batch(ranges + done, count - done, &batch_error);
            done += more;
            if (more != 0) continue;
        }
        /* What one call for many refuses may be the range's fault or the kernel's: the range alone tells. */
        if (os_fault(OS_PURGE)) break;
        long error = os_call_error(OS_PURGE, SYS_madvise, (long)ranges[done].start, (long)ranges[done].bytes,
                                   MADV_DONTNEED, 0, 0, 0);
        *locked = error == -EINVAL;
        if (error != 0) break;
        if (batch_error != 0 && batch_error != ENOMEM && batch_error != EINTR)
            store_relaxed(&batch_refused, 1u);
        done++;
    }
    return done;
}

WEIR_FN enum os_huge os_huge_mode(size_t* huge_bytes) {
    char text[64];
    size_t length =
        os_read_file(WEIR_TEXT("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"), text, sizeof text);
    size_t bytes = 0;
    for (size_t i = 0; i < length && text[i] >= '0' && text[i] <= '9'; i++)
        bytes = bytes * 10 + (size_t)(text[i] - '0');
    *huge_bytes = bytes;
    length = os_read_file(WEIR_TEXT("/sys/kernel/mm/transparent_hugepage/enabled"), text, sizeof text);
    for (size_t i = 0; i + 2 < length; i++) /* "always [madvise] never" */
        if (text[i] == '[')
            return text[i + 1] == 'a' ? OS_HUGE_ALWAYS : text[i + 1] == 'm' ? OS_HUGE_ASKED : OS_HUGE_NEVER;
    return OS_HUGE_NEVER;
}

WEIR_FN bool os_advise_huge(void* p, size_t bytes, enum os_huge mode) {
    if (mode == OS_HUGE_ASKED) return true;
    if (os_fault(OS_OTHER)) return false;
    return os_call3(OS_OTHER, SYS_madvise, (long)p, (long)bytes,
                    mode == OS_HUGE_ALWAYS ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0;
}

WEIR_FN bool os_collapse(void* p, size_t bytes) {
    if (os_fault(OS_OTHER)) return false;
    return os_call3(OS_OTHER, SYS_madvise, (long)p, (long)bytes, MADV_COLLAPSE) == 0;
}

WEIR_FN void os_split_huge(void* p) {
    if (os_sandboxed()) return; /* a filter may kill for advice that it does not know */
    /* Advice for a part of a huge page splits it (Linux 5.4). */
    uintptr_t page = align_down((uintptr_t)p, os_page_bytes());
    (void)os_call3(OS_OTHER, SYS_madvise, (long)page, (long)os_page_bytes(), MADV_COLD);
}

WEIR_FN bool os_resident_pages(void* p, size_t bytes, unsigned char* there) {
    if (os_sandboxed() || os_fault(OS_OTHER)) return false;
    return os_call3(OS_OTHER, SYS_mincore, (long)p, (long)bytes, (long)there) == 0;
}

WEIR_FN size_t os_peek(const struct os_range* from, unsigned count, void* to) {
    if (os_sandboxed() || os_fault(OS_OTHER)) return 0;
    struct os_range here = {to, 0};
    for (unsigned i = 0; i < count; i++) here.bytes += from[i].bytes;
    long got =
        os_call6(OS_OTHER, SYS_process_vm_readv, os_process_id(), (long)&here, 1, (long)from, count, 0);
    return got < 0 ? 0 : (size_t)got;
}

static bool move(void* from, void* to, size_t bytes) {
    return os_call6(OS_REMAP, SYS_mremap, (long)from, (long)bytes, (long)bytes,
                    MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, (long)to, 0) == (long)to;
}

/* Whether a page may be read, without an access: no file has the number, but an emulator looks at the page
 * first. */
static bool page_is_there(const void* p) {
    return os_call_error(OS_OTHER, SYS_write, -1, (long)p, 1, 0, 0, 0) != -EFAULT;
}

/* Some emulators move pages, and from then on say of the old place that they purged it when they did not
 * (qemu 7.2), or that nothing is mapped there (qemu 10). */
enum move { MOVE_UNKNOWN = 0, MOVE_SOUND = 1, MOVE_UNSOUND = 2 };
static uint32_t move_try(void) {
    size_t page = os_page_bytes();
    char* two = os_map(NULL, 2 * page, PROT_READ | PROT_WRITE, 0);
    if (two == NULL) return MOVE_UNKNOWN;
    volatile char* from = two;
    *from = 1;
    bool sound = move(two, two + page, page) && page_is_there(two) && from[page] == 1 && *from == 0;
    if (sound) {
        *from = 1;
        sound = os_call3(OS_PURGE, SYS_madvise, (long)two, (long)page, MADV_DONTNEED) == 0 && *from == 0;
    }
    os_unmap(two, 2 * page);
    return sound ? MOVE_SOUND : MOVE_UNSOUND;
}

WEIR_FN bool os_may_move(void) {
    static uint32_t known; /* enum move; Sync: relaxed */
    if (load_relaxed(&known) == MOVE_UNKNOWN) store_relaxed(&known, move_try());
    return load_relaxed(&known) == MOVE_SOUND;
}

WEIR_FN bool os_move(void* from, void* to, size_t bytes) {
    return !os_fault(OS_REMAP) && os_may_move() && move(from, to, bytes);
}

WEIR_FN bool os_charge_probe(size_t bytes) {
    long p = os_call6(OS_MAP, SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
    if (p == -1) return false;
    os_unmap((void*)p, bytes);
    return true;
}

static long text_file_open(const char* path) {
    if (os_sandbox_is_announced()) return -ECANCELED;
    return os_call_error(OS_OTHER, SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
}

static long text_file_read(long fd, char* data, size_t bytes) {
    return os_call_error(OS_OTHER, SYS_read, fd, (long)data, (long)bytes, 0, 0, 0);
}

static void text_file_close(long fd) { os_call3(OS_OTHER, SYS_close, fd, 0, 0); }

WEIR_FN size_t os_read_file(const char* path, char* data, size_t bytes) {
    long fd = text_file_open(path);
    if (fd < 0) return 0;
    size_t length = 0;
    for (long n; length < bytes && (n = text_file_read(fd, data + length, bytes - length)) > 0;)
        length += (size_t)n;
    text_file_close(fd);
    return length;
}

WEIR_FN void os_read_link(const char* path, char* data, size_t bytes) {
    long n = os_call6(OS_OTHER, SYS_readlinkat, AT_FDCWD, (long)path, (long)data, (long)(bytes - 1), 0, 0);
    data[n < 0 ? 0 : n] = '\0';
}

WEIR_FN void* os_map_file(const char* path, size_t* bytes) {
    long fd = os_call6(OS_OTHER, SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) return NULL;
    long size = os_call3(OS_OTHER, SYS_lseek, fd, 0, SEEK_END);
    long p = -1;
    if (size > 0) p = os_call6(OS_OTHER, SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    os_call3(OS_OTHER, SYS_close, fd, 0, 0);
    *bytes = (size_t)size;
    return p == -1 ? NULL : (void*)p;
}

/* Which of the names it is; `count`: none. */
static unsigned status_line(const status_name_t* names, unsigned count, const char* name, unsigned length) {
    unsigned i = 0;
    for (; i < count; i++) {
        unsigned same = 0;
        while (same < length && names[i][same] == name[same]) same++;
        if (same == length && names[i][same] == '\0') break;
    }
    return i;
}

WEIR_FN long os_status_scan(const char* path, const status_name_t* names, unsigned count, status_see_t see,
                            void* context) {
    char part[128];
    status_name_t name;
    unsigned length = 0; /* of what is known of the line's name */
    unsigned line = count;
    bool named = false;
    long fd = text_file_open(path);
    if (fd < 0) return fd;
    long n;
    while ((n = text_file_read(fd, part, sizeof part)) > 0) {
        for (long i = 0; i < n; i++) {
            char c = part[i];
            if (named && line < count) see(context, line, c);
            if (c == '\n') {
                named = false;
                length = 0;
            } else if (!named && c == ':') {
                named = true;
                line = length < sizeof name ? status_line(names, count, name, length) : count;
            } else if (!named && length < sizeof name) {
                name[length++] = c;
            }
        }
    }
    text_file_close(fd);
    return n;
}

static void resident_see(void* numbers, unsigned line, char c) {
    uint64_t* number = (uint64_t*)numbers + line;
    if (c >= '0' && c <= '9') *number = *number * 10 + (uint64_t)(c - '0');
}

WEIR_FN void os_resident(uint64_t* now, uint64_t* peak) {
    static const status_name_t names[] = {"VmRSS", "VmHWM"};
    uint64_t numbers[] = {0, 0};
    (void)os_status_scan(WEIR_TEXT("/proc/self/status"), names, 2, resident_see, numbers);
    *now = numbers[0] * KIB;
    *peak = numbers[1] * KIB;
}

static uint32_t overcommit_mode; /* the digit, remembered for a sandbox; 0: read it. Sync: relaxed */

WEIR_FN void os_overcommit_remember(void) {
    char mode = '0';
    os_read_file(WEIR_TEXT("/proc/sys/vm/overcommit_memory"), &mode, 1);
    store_relaxed(&overcommit_mode, (uint32_t)mode);
}

WEIR_FN bool os_overcommit_is_strict(void) {
    char mode = (char)load_relaxed(&overcommit_mode);
    if (mode != 0) return mode == '2';
    return os_read_file(WEIR_TEXT("/proc/sys/vm/overcommit_memory"), &mode, 1) == 1 && mode == '2';
}

WEIR_FN uint64_t os_mappings_max(void) {
    char text[32];
    size_t length = os_read_file(WEIR_TEXT("/proc/sys/vm/max_map_count"), text, sizeof text);
    uint64_t most = 0;
    for (size_t i = 0; i < length && text[i] >= '0' && text[i] <= '9' && most < UINT32_MAX; i++)
        most = most * 10 + (uint64_t)(text[i] - '0');
    return most;
}

static uint64_t os_limit(int resource) {
    struct rlimit limit;
    if (os_call6(OS_OTHER, SYS_prlimit64, 0, resource, 0, (long)&limit, 0, 0) != 0) return UINT64_MAX;
    return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

WEIR_FN uint64_t os_address_space_limit(void) { return os_limit(RLIMIT_AS); }

WEIR_FN bool os_memory_is_limited(void) {
    return os_limit(RLIMIT_AS) != UINT64_MAX || os_limit(RLIMIT_DATA) != UINT64_MAX;
}

static uint64_t clock_ns(int clock) {
    struct timespec t = {0, 0};
    os_call3(OS_OTHER, SYS_clock_gettime, clock, (long)&t, 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

WEIR_FN uint64_t os_clock_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

WEIR_FN uint64_t os_cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }
WEIR_FN uint64_t os_thread_cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

WEIR_FN int os_write(int fd, const void* data, size_t bytes) {
    const char* p = data;
    int saved = errno;
    int error = 0;
    while (bytes != 0) {
        long n = syscall(SYS_write, fd, p, bytes);
        if (n < 0) {
            if (errno == EINTR) continue;
            error = errno;
            break;
        }
        p += n;
        bytes -= (size_t)n;
    }
    errno = saved;
    return error;
}

/* A loaded library that comes before libc may allocate before libc's start has set `environ`; the strings lie
 * behind the arguments, where the kernel put them. The loader's name for that place: absent from other C
 * libraries. */
extern __attribute__((weak)) void* __libc_stack_end;
static char* const* environment_strings(void) {
    static char* const none[] = {NULL};
    if (getauxval(AT_SECURE) != 0) return none;
    if (environ != NULL) return environ;
    if (&__libc_stack_end == NULL || __libc_stack_end == NULL) return none;
    const long* arguments = __libc_stack_end;
    return (char* const*)__libc_stack_end + arguments[0] + 2;
}

/* What is behind `start` in the string; NULL: it starts otherwise. */
static const char* string_behind(const char* string, const char* start) {
    while (*start != '\0' && *string == *start) string++, start++;
    return *start == '\0' ? string : NULL;
}

WEIR_FN const char* os_environment(const char* name) {
    for (char* const* s = environment_strings(); *s != NULL; s++) {
        const char* rest = string_behind(*s, name);
        if (rest != NULL && *rest == '=') return rest + 1;
    }
    return NULL;
}

WEIR_FN size_t os_environment_count(const char* start) {
    size_t count = 0;
    for (char* const* s = environment_strings(); *s != NULL; s++) count += string_behind(*s, start) != NULL;
    return count;
}

/* Of linux/membarrier.h, which older headers do not have. */
enum { MEMBARRIER_EXPEDITED = 1 << 3, MEMBARRIER_REGISTER = 1 << 4 };
enum { BARRIER_UNKNOWN, BARRIER_READY, BARRIER_REFUSED };
static uint32_t barrier_state; /* Sync: relaxed; the kernel knows whether the process is registered */

WEIR_FN bool os_barrier_ready(void) {
    if (os_sandboxed()) return false;
    if (load_relaxed(&barrier_state) == BARRIER_UNKNOWN) {
        bool ready =
            !os_fault(OS_OTHER) && os_call3(OS_OTHER, SYS_membarrier, MEMBARRIER_REGISTER, 0, 0) == 0;
        store_relaxed(&barrier_state, (uint32_t)(ready ? BARRIER_READY : BARRIER_REFUSED));
    }
    return load_relaxed(&barrier_state) == BARRIER_READY;
}

WEIR_FN bool os_barrier(void) {
    bool may = !os_sandboxed() && !os_fault(OS_OTHER);
    if (may && os_call3(OS_OTHER, SYS_membarrier, MEMBARRIER_EXPEDITED, 0, 0) == 0) return true;
    store_relaxed(&barrier_state, (uint32_t)BARRIER_UNKNOWN); /* a process that is not registered */
    return false;
}

WEIR_FN int os_process_id(void) { return (int)os_call3(OS_OTHER, SYS_getpid, 0, 0, 0); }
WEIR_FN int os_parent_id(void) { return (int)os_call3(OS_OTHER, SYS_getppid, 0, 0, 0); }
WEIR_FN int os_thread_id(void) { return (int)os_call3(OS_OTHER, SYS_gettid, 0, 0, 0); }
WEIR_FN bool os_thread_lives(int tid) {
    int saved = errno;
    add_relaxed(&os_call_counts[OS_OTHER], 2);
    bool gone = syscall(SYS_tgkill, syscall(SYS_getpid), tid, 0) == -1 && errno == ESRCH;
    errno = saved;
    return !gone; /* any other answer (a sandbox's refusal) tells nothing */
}

WEIR_FN uint32_t os_cpu_count(void) {
    uint64_t set[128] = {0}; /* as many as the kernel's largest configuration has */
    long bytes = os_call3(OS_OTHER, SYS_sched_getaffinity, 0, sizeof set, (long)set);
    uint32_t count = 0;
    for (long i = 0; i < bytes / (long)sizeof set[0]; i++) count += (uint32_t)__builtin_popcountll(set[i]);
    return count == 0 ? 1 : count;
}

WEIR_FN uint32_t os_cpu_number(void) {
    if (os_sandboxed()) return OS_CPU_UNKNOWN;
    int saved = errno;
    int cpu = sched_getcpu();
    errno = saved;
    return cpu < 0 ? OS_CPU_UNKNOWN : (uint32_t)cpu;
}

/* The kernel's set of 64 signals, libc's own two among them. */
WEIR_FN bool os_signals_block(uint64_t* before) {
    uint64_t all = ~0ull;
    return os_call6(OS_OTHER, SYS_rt_sigprocmask, SIG_BLOCK, (long)&all, (long)before, sizeof all, 0, 0) == 0;
}

WEIR_FN void os_signals_restore(uint64_t before) {
    os_call6(OS_OTHER, SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, sizeof before, 0, 0);
}

/* The first of the kernel's real-time signals: glibc has two, musl three. */
WEIR_FN void os_signals_restore_libcs(uint64_t before) {
    enum { realtime = 32 };
#ifdef __GLIBC__
    const uint64_t libcs = 3ull << (realtime - 1);
#else
    const uint64_t libcs = 7ull << (realtime - 1);
#endif
    os_signals_restore(before | ~libcs);
}

WEIR_FN uint64_t os_random(void) {
    uint64_t bits = 0;
    if (os_call3(OS_OTHER, SYS_getrandom, (long)&bits, sizeof bits, 1 /* GRND_NONBLOCK */) != sizeof bits) {
        const uint64_t* seed = (const uint64_t*)getauxval(AT_RANDOM);
        bits = (seed == NULL ? 0 : seed[0]) ^ os_clock_ns() * 0x9e3779b97f4a7c15u;
    }
    return bits;
}

WEIR_FN bool os_loader_owns(const void* p) {
    uintptr_t base = getauxval(AT_BASE);
    if (base == 0) return false;
    const ElfW(Ehdr)* header = (const ElfW(Ehdr)*)base;
    const ElfW(Phdr)* segment = (const ElfW(Phdr)*)(base + header->e_phoff);
    for (unsigned i = 0; i < header->e_phnum; i++) {
        if (segment[i].p_type != PT_LOAD) continue;
        uintptr_t start = align_down(base + segment[i].p_vaddr, os_page_bytes());
        uintptr_t end = align_up(base + segment[i].p_vaddr + segment[i].p_memsz, os_page_bytes());
        if ((uintptr_t)p >= start && (uintptr_t)p < end) return true;
    }
    return false;
}

WEIR_FN void os_abort(void) { abort(); }

WEIR_FN void os_abort_now(void) {
    os_action_default(SIGABRT);
    abort();
}

WEIR_FN void os_futex_wait(uint32_t* word, uint32_t value) {
    os_call6(OS_OTHER, SYS_futex, (long)word, FUTEX_WAIT_PRIVATE, value, 0, 0, 0);
}
WEIR_FN void os_futex_wait_for(uint32_t* word, uint32_t value, uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    os_call6(OS_OTHER, SYS_futex, (long)word, FUTEX_WAIT_PRIVATE, value, (long)&t, 0, 0);
}
WEIR_FN int os_futex_wake(uint32_t* word, int count) {
    long woken = os_call3(OS_OTHER, SYS_futex, (long)word, FUTEX_WAKE_PRIVATE, count);
    return woken > 0 ? (int)woken : 0;
}
