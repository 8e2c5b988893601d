//! The program's own default options. Anybody may use the macro, once in a program. It knows how the C
//! side finds the string, and no option.
//!
//! SPDX-License-Identifier: Apache-2.0

use core::ffi::{CStr, c_char};

/// What `weir_options` points to; made by [`options!`](crate::options).
#[repr(transparent)]
pub struct Options(*const c_char);

// SAFETY: the pointer leads to a constant that nobody writes.
unsafe impl Sync for Options {}

impl Options {
    /// Options from a constant string.
    pub const fn new(text: &'static CStr) -> Self {
        Self(text.as_ptr())
    }
}

/// Sets the program's default options, below those of the environment; written once, outside functions.
///
/// ```
/// weir_malloc::options!(c"dirty_max=8m:on_error=report");
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! options {
    ($text:expr) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub static weir_options: $crate::Options = $crate::Options::new($text);
    };
}
