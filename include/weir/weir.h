/* weir/weir.h: the public interface of the weir allocator beyond the standard malloc family.
 *
 * Who may include it: any C11 or C++11 program. The malloc family itself (malloc, free, ...) is
 * declared by <stdlib.h>; linking or preloading libweir replaces it. Nothing here knows how the heap
 * is laid out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_VERSION_MAJOR 0
#define WEIR_VERSION_MINOR 1
#define WEIR_VERSION_PATCH 0

/** The default options of a program, read once at start-up; the environment overrides them.
 *
 *  A program may define it: `const char* weir_options = "dirty_max=8m:on_error=report";`. The syntax is
 *  that of WEIR_OPTIONS. The symbol is weak in the library; NULL means "none". */
extern const char* weir_options;

/** A consistent-enough snapshot of the heap; every figure is in bytes unless it says otherwise.
 *
 *  Counters of other threads are read without stopping them, one after the other: what threads do during
 *  the call is in some figures and not in others, and may be in one twice. Set `struct_size` to
 *  `sizeof(struct weir_stats)` before the call; a newer library fills in as many fields as the caller
 *  knows. */
struct weir_stats {
    uint32_t struct_size; /**< set by the caller: sizeof(struct weir_stats) */
    uint32_t version;     /**< set by the library: WEIR_STATS_VERSION */
    /* Blocks that wait in another thread's bins, at most a slab's worth per size class, count as live. */
    uint64_t live_bytes;     /**< blocks in the program's hands, at their usable sizes */
    uint64_t live_blocks;    /**< number of those blocks */
    uint64_t cached_bytes;   /**< free blocks inside slabs that belong to a thread heap or wait for one */
    uint64_t dirty_bytes;    /**< free spans that may still be resident */
    uint64_t metadata_bytes; /**< resident bookkeeping (records of slices and chunks, thread heaps) */
    uint64_t resident_bytes; /**< resident set of the whole process now */
    uint64_t resident_peak_bytes; /**< largest resident set of the whole process so far */
    uint64_t committed_bytes;     /**< address space that is readable and writable now */
    uint64_t reserved_bytes;      /**< address space that is set aside */
    uint64_t alloc_calls;         /**< number of blocks given out since the start */
    uint64_t free_calls;          /**< alloc_calls less live_blocks: blocks given back since the start */
    uint64_t remote_frees;        /**< of these, by a thread that did not own the block's slab */
    uint64_t slow_calls;          /**< number of allocations that left the fast path */
    uint64_t heaps_live;          /**< number of thread heaps in use */
    uint64_t heaps_total;         /**< number of thread heaps ever made */
    uint64_t sys_map;             /**< number of mmap and munmap calls */
    uint64_t sys_protect;         /**< number of mprotect calls */
    uint64_t sys_purge;           /**< number of madvise calls that gave memory back */
    uint64_t sys_remap;           /**< number of mremap calls */
    uint64_t sys_other;           /**< number of all other system calls */
    uint64_t purged_bytes;        /**< bytes given back to the kernel since the start */
    uint64_t misuse_reports;      /**< number of misuse reports (on_error=report keeps going) */
    uint64_t refaulted_bytes;     /**< of purged_bytes, what is or was in use again */
    uint64_t scanned_bytes;       /**< slabs that were looked through for free pages, counted each time */
    uint64_t release_calls;       /**< number of system calls made to give memory back */
    uint64_t release_window_ns;   /**< for how long memory is now free and unused before it is given back */
    uint64_t hole_bytes;          /**< free pages inside slabs and blocks in use, not yet given back */
    uint64_t guarded_calls;       /**< of alloc_calls, how many were sampled by guard_rate */
    uint64_t guarded_freed;       /**< number of freed guarded blocks whose pages are still inaccessible */
};
#define WEIR_STATS_VERSION 1u

/** One row of statistics for a size class or a thread heap. */
struct weir_stats_class {
    uint64_t block_bytes;   /**< usable size of a block of the class */
    uint64_t slabs;         /**< number of slabs */
    uint64_t live_blocks;   /**< number of blocks in the program's hands */
    uint64_t cached_blocks; /**< number of free blocks in those slabs that were handed out before */
    uint64_t slab_bytes;    /**< address space of those slabs */
};
struct weir_stats_heap {
    uint64_t id; /**< a small number, unique among the heaps of the process */
    int32_t tid; /**< kernel thread id of the thread that has it; 0: none, waiting for reuse, or not known */
    uint32_t reserved;
    uint64_t slabs;        /**< number of slabs the heap owns */
    uint64_t live_bytes;   /**< bytes of blocks in the program's hands from those slabs */
    uint64_t cached_bytes; /**< bytes of free blocks in those slabs */
};

/** Fill in *stats. Returns 0, or EINVAL when struct_size is not one that this library knows.
 *  Thread-safe; not async-signal-safe. Keeps errno. */
int weir_stats_get(struct weir_stats* stats);

/** Row `index` of the size classes; returns 0, or ENOENT past the last one. Thread-safe. */
int weir_stats_class_get(unsigned index, struct weir_stats_class* row);

/** Row `index` of the thread heaps; returns 0, or ENOENT past the last one. Thread-safe. */
int weir_stats_heap_get(unsigned index, struct weir_stats_heap* row);

/** Write all statistics as one JSON object (schema: docs/stats.schema.json) to file descriptor `fd`.
 *  Returns 0, or the errno of the failed write. Allocates nothing. Thread-safe. */
int weir_stats_json(int fd);

/** Give back what the calling thread's heap caches: for a worker that is about to wait for long.
 *
 *  What it caches of object pools goes to the other threads. The free blocks and slabs that the thread kept
 * for itself become other threads' to use, empty ones go to the page layer (and by its rules to the kernel),
 * frees that wait for other heaps are delivered, and blocks that others free into its slabs meanwhile wait
 * for nobody. Blocks in use are not touched. The thread's next malloc gives it a heap again. It costs some
 * microseconds and the next allocations a slow path each: worth it before a wait of milliseconds, not of
 * microseconds. Thread-safe; not async-signal-safe. Keeps errno. */
void weir_thread_idle(void);

/** The version of the library as "major.minor.patch"; a static string. */
const char* weir_version(void);

#ifdef __cplusplus
}
#endif
#endif
