/* os.h: all that weir asks of the operating system.
 *
 * Contract of every call: errno is kept; failure is a result, never a report; nothing allocates.
 * Addresses and sizes are multiples of the OS page unless said otherwise. The layer-by-layer build
 * (WEIR_TESTING) asks `os_fault_hook` before each call that can fail, so that a test can fail the Nth.
 * It deliberately knows nothing of slices, slabs or heaps.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_OS_OS_H
#define WEIR_OS_OS_H

#include "base/compiler.h"

enum os_call { OS_MAP, OS_PROTECT, OS_PURGE, OS_REMAP, OS_OTHER, OS_CALL_COUNT };

/* Number of system calls made so far, by kind. Sync: relaxed atomics; figures for people. */
WEIR_VAR_DECL uint64_t os_call_counts[OS_CALL_COUNT];

#ifdef WEIR_TESTING
/* Returns true to make the call fail as if the kernel had refused it. */
WEIR_VAR_DECL bool (*os_fault_hook)(enum os_call call);
#endif

/* Bytes of an OS page; read once. */
WEIR_FN size_t os_page_bytes(void);
/* Set aside `bytes` of inaccessible, uncharged address space at a multiple of `align` (a power of two,
 * at least a page). NULL: not to be had. */
WEIR_FN void* os_reserve(size_t bytes, size_t align);
/* Give address space back altogether. */
WEIR_FN void os_unmap(void* p, size_t bytes);
/* Make a part of a reservation readable and writable. False: refused (commit charge, mapping count). */
WEIR_FN bool os_commit(void* p, size_t bytes);
/* The same for memory of a kind: a word that os gave (os_tags_memory), 0: plain. */
WEIR_FN bool os_commit_as(void* p, size_t bytes, uint32_t kind);
/* Make a part that was never written to readable alone, as zeroes: nothing is charged for it. */
WEIR_FN bool os_commit_zeroes(void* p, size_t bytes);
/* Make it inaccessible again; what it holds stays. */
WEIR_FN bool os_forbid(void* p, size_t bytes);
/* Keep a range a mapping of its own: the next os_commit and os_forbid of just that range neither split nor
 * merge mappings. */
WEIR_FN bool os_part(void* p, size_t bytes);
/* Map fresh zero pages over a range: accessible, or inaccessible and uncharged. The range belongs to us
 * before and after; no moment leaves a hole. */
WEIR_FN bool os_cover(void* p, size_t bytes, bool accessible);
WEIR_FN bool os_cover_as(void* p, size_t bytes, bool accessible, uint32_t kind);
/* Give the pages of an accessible range back; they read as zero afterwards. False: they were kept
 * (locked memory). */
WEIR_FN bool os_purge(void* p, size_t bytes);
/* The same for many ranges, with as few system calls as the kernel makes possible. Returns how many were
 * done: all, or those before the first that was not. *locked then tells whether that one's pages are locked,
 * or the kernel refused for another reason; part of that range may have been given back. */
struct os_range {
    void* start;
    size_t bytes;
};
WEIR_FN unsigned os_purge_many(const struct os_range* ranges, unsigned count, bool* locked);
/* How the kernel backs memory by huge pages. NEVER and ALWAYS ask for it, for a range of address space or as
 * the system's setting; ASKED: by the system's setting where it is a range's, and where ALWAYS is asked for
 * where it is the system's. */
enum os_huge { OS_HUGE_NEVER, OS_HUGE_ASKED, OS_HUGE_ALWAYS };
/* The system's setting; *huge_bytes receives the size of such a page, 0 where there are none. Reads files. */
WEIR_FN enum os_huge os_huge_mode(size_t* huge_bytes);
/* Say how a range is to be backed. ASKED is how every range starts, and is not had back: nothing happens.
 * False: the kernel has no huge pages, or refuses. */
WEIR_FN bool os_advise_huge(void* p, size_t bytes, enum os_huge mode);
/* Put huge pages under a range now, whatever the system's setting. False: there were none to be had, or the
 * kernel (before Linux 6.1) cannot. */
WEIR_FN bool os_collapse(void* p, size_t bytes);
/* Make the huge page at p, if there is one, 512 small ones: what is given back of it is then free for others
 * at once, and not only when memory is short. */
WEIR_FN void os_split_huge(void* p);
/* Which pages of an accessible range are resident: there[i] & 1 for the i-th. False: the kernel does not say.
 */
WEIR_FN bool os_resident_pages(void* p, size_t bytes, unsigned char* there);
/* A copy of ranges of this process's memory, one behind the other. Returns the bytes that were copied: of all
 * before the first one that cannot be read; 0 where the kernel has no such call. May block where the memory
 * is a mapping of the program's. */
WEIR_FN size_t os_peek(const struct os_range* from, unsigned count, void* to);
/* Move the pages of [from, from+bytes) to [to, to+bytes); both ranges stay mapped, `from` reads as zero
 * afterwards. False: refused (limit, several mappings), and `to` may be unmapped. Nothing was moved then, but
 * where there are several mappings (Linux 6.17). */
WEIR_FN bool os_move(void* from, void* to, size_t bytes);
/* Whether there is such a call: not in old kernels and emulators. */
WEIR_FN bool os_may_move(void);
/* Whether the kernel would charge this many bytes to the process now, as a private writable mapping. */
WEIR_FN bool os_charge_probe(size_t bytes);
/* Mappings that a process may have (vm.max_map_count); 0: not known. Reads a file. */
WEIR_FN uint64_t os_mappings_max(void);
/* True when vm.overcommit_memory is 2. */
WEIR_FN bool os_overcommit_is_strict(void);
/* RLIMIT_AS of the process in bytes; UINT64_MAX when there is none. */
WEIR_FN uint64_t os_address_space_limit(void);
/* Whether RLIMIT_AS or RLIMIT_DATA limits this process. */
WEIR_FN bool os_memory_is_limited(void);
/* CLOCK_MONOTONIC in nanoseconds. */
WEIR_FN uint64_t os_clock_ns(void);
/* Processor time that the process's threads have used, or the calling one, in nanoseconds. A system call. */
WEIR_FN uint64_t os_cpu_ns(void);
WEIR_FN uint64_t os_thread_cpu_ns(void);
/* Write all of it; 0 or an errno. */
WEIR_FN int os_write(int fd, const void* data, size_t bytes);
/* Read at most `bytes` of a small file; the number read, 0 on any failure, and where the program has
 * announced a sandbox (os_sandbox_announced). */
WEIR_FN size_t os_read_file(const char* path, char* data, size_t bytes);
/* Target of a symbolic link into data, NUL-terminated and cut to fit. */
WEIR_FN void os_read_link(const char* path, char* data, size_t bytes);
/* Map a file shared and writable; *bytes receives its size. NULL: could not. */
WEIR_FN void* os_map_file(const char* path, size_t* bytes);
/* Resident set of this process and its peak, in bytes, from /proc/self/status; 0 when unknown. */
WEIR_FN void os_resident(uint64_t* now, uint64_t* peak);
/* Environment variable; NULL when absent or in secure execution. Works before libc has set `environ`. */
WEIR_FN const char* os_environment(const char* name);
/* How many variables have names that start so; likewise. */
WEIR_FN size_t os_environment_count(const char* start);
/* Kernel ids of this process, its parent and the calling thread, negative where a sandbox refuses to tell;
 * whether thread `tid` of this process still lives. */
WEIR_FN int os_process_id(void);
WEIR_FN int os_parent_id(void);
WEIR_FN int os_thread_id(void);
WEIR_FN bool os_thread_lives(int tid);
/* Processors that the calling thread may run on; at least 1. */
WEIR_FN uint32_t os_cpu_count(void);
/* The number of the processor that the calling thread runs on just now, or ran on a moment ago.
 * OS_CPU_UNKNOWN in a sandbox: where libc has no restartable sequence to read it from, aarch64 asks the
 * kernel. */
enum { OS_CPU_UNKNOWN = UINT32_MAX };
WEIR_FN uint32_t os_cpu_number(void);
/* Whether p lies in the dynamic loader's own image, whose start-up allocator gave out memory before any
 * malloc could be called. */
WEIR_FN bool os_loader_owns(const void* p);
/* Keep every signal from the calling thread until *before is put back; no handler runs in between. False:
 * refused, and there is nothing to put back. */
WEIR_FN bool os_signals_block(uint64_t* before);
WEIR_FN void os_signals_restore(uint64_t before);
/* Put back libc's own signals alone: a thread that ends, and keeps the others, has to answer when libc asks
 * all threads for something (setuid), and waits for it. */
WEIR_FN void os_signals_restore_libcs(uint64_t before);
/* Whether os_barrier is to be had: not in a sandbox, and not before Linux 4.14. The first call may take some
 * milliseconds. */
WEIR_FN bool os_barrier_ready(void);
/* Each other thread of the process has a full memory barrier somewhere between call and return. False:
 * refused. */
WEIR_FN bool os_barrier(void);
/* 64 unpredictable bits. */
WEIR_FN uint64_t os_random(void);
WEIR_FN WEIR_NORETURN void os_abort(void);
/* The same past any handler of SIGABRT. */
WEIR_FN WEIR_NORETURN void os_abort_now(void);
/* Sleep while *word == value, at most `ns` nanoseconds where that is said, and wake one or all sleepers. */
WEIR_FN void os_futex_wait(uint32_t* word, uint32_t value);
WEIR_FN void os_futex_wait_for(uint32_t* word, uint32_t value, uint64_t ns);
WEIR_FN int os_futex_wake(uint32_t* word, int count); /* how many slept, and do no more */

/* ---- Memory tags (os/linux/tags.c): what the kernel does with the tags of addresses.
 *
 * The mode is each thread's: it has its maker's, and exec ends it. */

/* Bits: what follows an access whose tag is not the memory's. Both: the kernel chooses for each processor. */
enum { OS_TAGS_SYNC = 1, OS_TAGS_ASYNC = 2 };
#ifdef WEIR_TESTING
WEIR_VAR_DECL uint32_t os_tags_refused; /* bit m: os_tags_set refuses mode m, as an older kernel does */
#endif
/* Whether processor and kernel have tags. */
WEIR_FN bool os_tags_exist(void);
/* The calling thread's mode; 0: tags are not compared. */
WEIR_FN uint32_t os_tags_mode(void);
/* Set it, have system calls take addresses with tags, and let the processor choose any tag but 0. False:
 * refused. */
WEIR_FN bool os_tags_set(uint32_t mode);
/* The kind of memory that has tags, for os_commit_as and os_cover_as. */
WEIR_FN uint32_t os_tags_memory(void);
/* Threads of this process; 0: not known. */
WEIR_FN uint32_t os_thread_count(void);

/* ---- Faults on purpose, and who called. */

enum os_access { OS_ACCESS_UNKNOWN, OS_ACCESS_READ, OS_ACCESS_WRITE };
/* RANGE: in the range that is watched. TAG: the pointer's tag is not the memory's. TAG_LATE: the same, at
 * some access before; where is not known. PLAIN: another, outside the range; told where tags are watched. */
enum os_fault_kind { OS_FAULT_RANGE, OS_FAULT_TAG, OS_FAULT_TAG_LATE, OS_FAULT_PLAIN };
struct os_fault {
    enum os_fault_kind kind;
    uintptr_t address; /* 0: not known */
    uintptr_t pointer; /* the same with its tag, as far as the processor told */
    uintptr_t code;    /* of the instruction */
    bool ends_handler; /* by which a signal handler returns: the stack there cannot be walked */
    enum os_access access;
};
/* Have faults at addresses in [start, start + bytes), or by tags, told to `tell`, in a signal handler: true
 * when the access may be tried again. All others, and those it answers with false, go to the handler that the
 * program has, or end the process as they would have. Nothing changes for programs that never call this. Each
 * once, before there are threads. False: refused. */
WEIR_FN bool os_fault_watch(const void* start, size_t bytes, bool (*tell)(const struct os_fault* fault));
WEIR_FN bool os_fault_watch_tags(bool (*tell)(const struct os_fault* fault));
/* Whether it is the one that this was last asked about, and by this thread: the program's handler returned,
 * and the access is tried again. For who has answered false before. */
WEIR_FN bool os_fault_repeats(const struct os_fault* fault);
/* In the child of a fork. */
WEIR_FN void os_fault_forked(void);
/* Whether weir's handler of this signal stands before the program's; then os_fault_action is its
 * sigaction(2): it keeps the program's action, reads it back, and has it called behind weir's. errno is
 * sigaction's. Safe in signal handlers. */
struct sigaction;
WEIR_FN bool os_fault_is_watched(int number);
WEIR_FN int os_fault_action(int number, const struct sigaction* action, struct sigaction* before);
/* The definition of a name of libc's that comes after this library's own; NULL in a static program. Keeps
 * errno. */
WEIR_FN void* os_symbol_next(const char* name);
/* sigaction(2) of that kind, or the kernel's; which one is found at the first call, or by os_action_find.
 * errno is sigaction's. */
WEIR_FN void os_action_find(void);
WEIR_FN int os_action_next(int number, const struct sigaction* action, struct sigaction* before);
/* Give a signal its default action, past everybody. */
WEIR_FN void os_action_default(int number);
/* Find what unwinds stacks; may load a library, and allocate. Without it stacks are empty. */
WEIR_FN void os_stack_start(void);
/* Return addresses of the calling thread's stack, the innermost first, without weir's own where it is a
 * library. Returns how many. Allocates nothing; safe in handlers of faults. */
WEIR_FN uint32_t os_stack_take(uintptr_t* frames, uint32_t most);
#ifdef WEIR_TESTING
/* How many of them the compiler's unwinder took. */
WEIR_VAR_DECL uint64_t os_stack_unwinder_calls;
#endif
/* The file that was loaded at an address, into `path`, and the offset from where it was loaded. False: not
 * known. Safe in signal handlers. */
WEIR_FN bool os_module_find(uintptr_t address, char* path, size_t bytes, uintptr_t* offset);

/* ---- The helper thread: at most one in a process, made without libc's knowledge (docs/internals/os.md).
 *
 * What runs in it uses system calls, locks and the thread word; no other thread-local variable, nothing of
 * libc that keeps state, and no descriptor of the process: it has none of them where the kernel lets it. All
 * signals are blocked in it. It does not keep the process from ending. */

/* At the library's start: this process may have a helper. None is started before. */
WEIR_FN void os_helper_enable(void);
/* Find out, once (again where descriptors were short), whether a filter of system calls is there. Reads a
 * file (40 us at a process's first look into /proc), which a filter of the program's own, another root
 * directory or a limit may forbid later: called before the program sets up one of these, and when it gets a
 * second thread. os_sandboxed and os_helper_start call it. Any thread; safe in signal handlers. */
WEIR_FN void os_sandbox_learn(void);
/* The program is about to confine itself: what it has not been seen to do may be forbidden, or deadly, and is
 * not done any more. Called before the system call that does it. */
WEIR_FN void os_sandbox_announced(void);
/* A thread of the program's own was made: threads are allowed. Cheap. */
WEIR_FN void os_sandbox_thread_seen(void);
/* Whether there may be a filter, found or announced, that forbids what few programs do. Calls
 * os_sandbox_learn. */
WEIR_FN bool os_sandboxed(void);
/* Whether the program itself asked for a filter, by prctl: from then on it may be killed for any call that it
 * does not need, reading a clock among them. */
WEIR_VAR_DECL uint32_t os_sandbox_is_own; /* Sync: relaxed */
/* Run body(argument) in the helper, whose thread word is `thread_word`. False: it runs already, is not
 * allowed now (sandbox, privileged process, a process made by vfork or by a raw system call, sanitizer, a
 * library whose TLS is dynamic) or the kernel refuses. Safe in signal handlers. */
WEIR_FN bool os_helper_start(void (*body)(void*), void* argument, void* thread_word);
/* Whether it lives: relaxed, one load. */
WEIR_FN bool os_helper_runs(void);
/* In a process that was made without fork handlers, with memory of its own: the thread pointer that the
 * parent's helper had, if it ever had one. NULL elsewhere. */
WEIR_FN void* os_helper_left(void);
/* Called by body now and then: whether it may go on, or must return and not be started again for a while. No:
 * its credentials or its sandbox are not the process's any more (libc changes those of its own threads
 * alone), or it is the last thread. Reads two files (30 us). */
WEIR_FN bool os_helper_fits(void);
/* Wait until its stack is free for the next one; it is on its way out. At once in the helper itself and where
 * there is none. */
WEIR_FN void os_helper_await(void);
/* From one call with true to one with false none is started, by a signal handler say. */
WEIR_FN void os_helper_forbid(bool forbid);
/* Wait until the kernel has no trace of it; whoever calls has told body to return. At once in the helper
 * itself and where there is none. */
WEIR_FN void os_helper_join(void);
/* In the child of fork: there is none. */
WEIR_FN void os_helper_fork_child(void);

/* ---- ThreadSanitizer.
 *
 * Whether its runtime is in the process and does not see what this library does: its calls of clone, which
 * the runtime intercepts for threads that it knows, and how memory goes from one thread to another. */
WEIR_FN bool os_tsan_is_blind(void);
/* Where it is: what the calling thread did comes before what the one does that acquires any of these bytes.
 */
WEIR_FN void os_tsan_release(void* p, size_t bytes);
WEIR_FN void os_tsan_acquire(void* p, size_t bytes);

/* ---- Word that memory is short. Called in the helper, but for os_pressure_wake.
 *
 * Watched is what $MEMORY_PRESSURE_WATCH names (systemd's protocol; /dev/null: nothing) or, without it, the
 * kernel's pressure figures and memory.events of the process's cgroup, or else the whole system's pressure.
 */
enum os_pressure { OS_PRESSURE_NONE, OS_PRESSURE_SOME, OS_PRESSURE_LOST };

/* False: nothing to watch, nothing wanted, a sandbox was announced, or the helper could get no table of
 * descriptors of its own. Ends with the helper. */
WEIR_FN bool os_pressure_open(void);
/* Sleep until memory is short, os_pressure_wake is called (also if that was before) or `ns` nanoseconds are
 * over: NONE for the latter two. LOST: nothing is left to watch, without a sleep. */
WEIR_FN enum os_pressure os_pressure_wait(uint64_t ns);
/* Any thread; nothing happens where nobody watches. */
WEIR_FN void os_pressure_wake(void);
#ifdef WEIR_TESTING
WEIR_VAR_DECL const char* os_cgroup_root;
#endif

#endif
