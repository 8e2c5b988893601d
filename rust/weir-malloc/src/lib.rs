//! The weir malloc as Rust's global allocator, on Linux with glibc, x86-64 and aarch64.
//!
//! ```
//! use weir_malloc::Weir;
//!
//! #[global_allocator]
//! static GLOBAL: Weir = Weir;
//!
//! fn main() {
//!     let squares: Vec<u64> = (0..1000).map(|n| n * n).collect();
//!     assert_eq!(squares[999], 998_001);
//!     assert!(weir_malloc::stats().alloc_calls > 0);
//! }
//! ```
//!
//! The crate compiles weir's C sources, with a C compiler and without network. What Rust allocates comes
//! from weir; what C and C++ code in the same program allocates stays with the C library, unless the
//! feature `override` is on: then weir is the malloc of the whole process. Use `override` in executables
//! alone: a shared library would replace malloc for half of its process.
//!
//! Blocks go back to where they came from: memory of `libc::malloc` is freed by `libc::free`, not by
//! Rust. With `override` they are the same.
//!
//! The file calls nothing but the C sources of this crate, and knows nothing of how the heap is laid out.
//!
//! [weir]: https://crates.io/crates/weir-malloc
//!
//! SPDX-License-Identifier: Apache-2.0

#![no_std]
#![warn(missing_docs)]

mod options;
mod stats;

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{CStr, c_char, c_int, c_void};

pub use options::Options;
pub use stats::{Stats, stats};

unsafe extern "C" {
    #[cfg_attr(not(feature = "override"), link_name = "weir_malloc")]
    fn malloc(size: usize) -> *mut c_void;
    #[cfg_attr(not(feature = "override"), link_name = "weir_calloc")]
    fn calloc(count: usize, size: usize) -> *mut c_void;
    #[cfg_attr(not(feature = "override"), link_name = "weir_realloc")]
    fn realloc(block: *mut c_void, size: usize) -> *mut c_void;
    #[cfg_attr(not(feature = "override"), link_name = "weir_aligned_alloc")]
    fn aligned_alloc(align: usize, size: usize) -> *mut c_void;
    #[cfg_attr(not(feature = "override"), link_name = "weir_free")]
    fn free(block: *mut c_void);
    #[cfg_attr(not(feature = "override"), link_name = "weir_malloc_usable_size")]
    fn malloc_usable_size(block: *mut c_void) -> usize;
    #[cfg_attr(not(feature = "override"), link_name = "weir_malloc_trim")]
    fn malloc_trim(pad: usize) -> c_int;
    fn weir_version() -> *const c_char;
}

/// The alignment of every block of malloc, in bytes.
const MALLOC_ALIGN: usize = 16;

/// The weir malloc. It has no state: all values are the same allocator.
///
/// Thread-safe. Not async-signal-safe, as no malloc is. `fork` is safe at any moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weir;

// SAFETY: malloc and its kin give out blocks that no other block overlaps, of at least the size asked
// for and aligned to MALLOC_ALIGN, or to what aligned_alloc was told. None of them unwinds.
unsafe impl GlobalAlloc for Weir {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: both take any size; the alignment of a layout is a power of two.
        unsafe {
            if layout.align() <= MALLOC_ALIGN {
                malloc(layout.size()).cast()
            } else {
                aligned_alloc(layout.align(), layout.size()).cast()
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MALLOC_ALIGN {
            // SAFETY: calloc takes any size. It knows which memory is zero already.
            return unsafe { calloc(1, layout.size()).cast() };
        }
        // SAFETY: the caller's promises are alloc's.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: the block is ours and has the layout's size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the caller has the block from here.
        unsafe { free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= MALLOC_ALIGN {
            // SAFETY: the caller has the block from here, and `size` is not 0.
            return unsafe { realloc(block.cast(), size).cast() };
        }
        // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: both blocks are live, do not overlap, and have the bytes that are copied.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

impl Weir {
    /// The bytes that a block really has: the size asked for, or more.
    ///
    /// # Safety
    ///
    /// `block` is a live block of this allocator.
    #[inline]
    pub unsafe fn usable_size(&self, block: *const u8) -> usize {
        // SAFETY: the caller's promise.
        unsafe { malloc_usable_size(block.cast_mut().cast()) }
    }

    /// Give free memory back to the kernel, and say whether any went back. Takes locks and may take
    /// milliseconds.
    pub fn trim(&self) -> bool {
        // SAFETY: no preconditions.
        unsafe { malloc_trim(0) != 0 }
    }
}

/// The version of the C sources, as `major.minor.patch`.
pub fn version() -> &'static str {
    // SAFETY: a static string that ends with a zero byte.
    let text = unsafe { CStr::from_ptr(weir_version()) };
    text.to_str().unwrap_or_default()
}
