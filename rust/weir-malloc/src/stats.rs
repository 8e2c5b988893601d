//! The figures of the heap, as `weir_stats_get` gives them. Anybody may call it at any time. It knows the
//! layout of one C struct, which c/layout.c compares with the header.
//!
//! SPDX-License-Identifier: Apache-2.0

use core::ffi::c_int;

/// A snapshot of the heap. Sizes are bytes, counts are since the start of the process.
///
/// Counters of other threads are read without stopping them: each is right at some moment of the call.
#[repr(C)]
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    struct_size: u32,
    version: u32,
    /// Blocks in the program's hands, at their usable sizes.
    pub live_bytes: u64,
    /// Number of those blocks.
    pub live_blocks: u64,
    /// Free blocks inside slabs.
    pub cached_bytes: u64,
    /// Free spans that may still be resident.
    pub dirty_bytes: u64,
    /// Resident bookkeeping.
    pub metadata_bytes: u64,
    /// Resident set of the whole process now.
    pub resident_bytes: u64,
    /// Largest resident set of the whole process so far.
    pub resident_peak_bytes: u64,
    /// Address space that is readable and writable.
    pub committed_bytes: u64,
    /// Address space that is set aside.
    pub reserved_bytes: u64,
    /// Blocks given out.
    pub alloc_calls: u64,
    /// Blocks given back.
    pub free_calls: u64,
    /// Of these, by a thread that did not own the block's slab.
    pub remote_frees: u64,
    /// Allocations that left the fast path.
    pub slow_calls: u64,
    /// Thread heaps in use.
    pub heaps_live: u64,
    /// Thread heaps ever made.
    pub heaps_total: u64,
    /// Calls of mmap and munmap.
    pub sys_map: u64,
    /// Calls of mprotect.
    pub sys_protect: u64,
    /// Calls of madvise that gave memory back.
    pub sys_purge: u64,
    /// Calls of mremap.
    pub sys_remap: u64,
    /// All other system calls.
    pub sys_other: u64,
    /// Bytes given back to the kernel.
    pub purged_bytes: u64,
    /// Reports of misuse.
    pub misuse_reports: u64,
    /// Of `purged_bytes`, what is or was in use again.
    pub refaulted_bytes: u64,
    /// Slabs that were looked through for free pages, counted each time.
    pub scanned_bytes: u64,
    /// System calls made to give memory back.
    pub release_calls: u64,
    /// Nanoseconds for which memory is now free and unused before it is given back.
    pub release_window_ns: u64,
    /// Free pages inside slabs and blocks in use, not yet given back.
    pub hole_bytes: u64,
    /// Of `alloc_calls`, those that `guard_rate` sampled.
    pub guarded_calls: u64,
    /// Freed guarded blocks whose pages are still inaccessible.
    pub guarded_freed: u64,
}

unsafe extern "C" {
    fn weir_stats_get(stats: *mut Stats) -> c_int;
}

/// The figures now. Allocates nothing.
pub fn stats() -> Stats {
    let mut stats = Stats { struct_size: size_of::<Stats>() as u32, ..Stats::default() };
    // SAFETY: the struct is the C one, and its size is in it. The one failure is another size, which
    // c/layout.c rules out.
    unsafe { weir_stats_get(&mut stats) };
    stats
}
