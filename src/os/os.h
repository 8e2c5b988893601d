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
/* Map fresh zero pages over a range: accessible, or inaccessible and uncharged. The range belongs to us
 * before and after; no moment leaves a hole. */
WEIR_FN bool os_cover(void* p, size_t bytes, bool accessible);
/* Give the pages of an accessible range back; they read as zero afterwards. False: they were kept
 * (locked memory). */
WEIR_FN bool os_purge(void* p, size_t bytes);
/* Move the pages of [from, from+bytes) to [to, to+bytes); both ranges stay mapped, `from` reads as zero
 * afterwards. False: nothing was moved (old kernel, emulator, limit), and `to` may be unmapped. */
WEIR_FN bool os_move(void* from, void* to, size_t bytes);
/* Whether the kernel would charge this many bytes to the process now, as a private writable mapping. */
WEIR_FN bool os_charge_probe(size_t bytes);
/* True when vm.overcommit_memory is 2. */
WEIR_FN bool os_overcommit_is_strict(void);
/* RLIMIT_AS of the process in bytes; UINT64_MAX when there is none. */
WEIR_FN uint64_t os_address_space_limit(void);
/* Whether RLIMIT_AS or RLIMIT_DATA limits this process. */
WEIR_FN bool os_memory_is_limited(void);
/* CLOCK_MONOTONIC in nanoseconds. */
WEIR_FN uint64_t os_clock_ns(void);
/* Write all of it; 0 or an errno. */
WEIR_FN int os_write(int fd, const void* data, size_t bytes);
/* Read at most `bytes` of a small file; the number read, 0 on any failure. */
WEIR_FN size_t os_read_file(const char* path, char* data, size_t bytes);
/* Target of a symbolic link into data, NUL-terminated and cut to fit. */
WEIR_FN void os_read_link(const char* path, char* data, size_t bytes);
/* Map a file shared and writable; *bytes receives its size. NULL: could not. */
WEIR_FN void* os_map_file(const char* path, size_t* bytes);
/* Resident set of this process and its peak, in bytes, from /proc/self/status; 0 when unknown. */
WEIR_FN void os_resident(uint64_t* now, uint64_t* peak);
/* Environment variable; NULL when absent or in secure execution. Works before libc has set `environ`. */
WEIR_FN const char* os_environment(const char* name);
/* Kernel ids of this process, its parent and the calling thread; whether thread `tid` of this process
 * still lives. */
WEIR_FN int os_process_id(void);
WEIR_FN int os_parent_id(void);
WEIR_FN int os_thread_id(void);
WEIR_FN bool os_thread_lives(int tid);
/* Whether p lies in the dynamic loader's own image, whose start-up allocator gave out memory before any
 * malloc could be called. */
WEIR_FN bool os_loader_owns(const void* p);
/* Keep every signal from the calling thread until *before is put back; no handler runs in between. False:
 * refused, and there is nothing to put back. */
WEIR_FN bool os_signals_block(uint64_t* before);
WEIR_FN void os_signals_restore(uint64_t before);
/* 64 unpredictable bits. */
WEIR_FN uint64_t os_random(void);
WEIR_FN WEIR_NORETURN void os_abort(void);
/* The same past any handler of SIGABRT. */
WEIR_FN WEIR_NORETURN void os_abort_now(void);
/* Sleep while *word == value, and wake one or all sleepers. */
WEIR_FN void os_futex_wait(uint32_t* word, uint32_t value);
WEIR_FN void os_futex_wake(uint32_t* word, int count);

#endif
