//! The proof that a program's memory is weir's. Run by cargo; in a process of its own, as what is counted while
//! other threads allocate is in some counters and not in others.
//!
//! SPDX-License-Identifier: Apache-2.0

use weir_malloc::{Weir, stats};

#[global_allocator]
static GLOBAL: Weir = Weir;

weir_malloc::options!(c"check_every=1");

#[test]
fn calls_arrive_in_weir() {
    let before = stats();
    let blocks: Vec<Box<u64>> = (0..10_000).map(Box::new).collect();
    let during = stats();
    assert!(during.alloc_calls - before.alloc_calls >= 10_000);
    assert!(during.live_bytes - before.live_bytes >= 10_000 * 16);
    assert_eq!(blocks.iter().map(|n| **n).sum::<u64>(), 49_995_000);
    drop(blocks);
    assert!(stats().free_calls - before.free_calls >= 10_000);
    assert_eq!(stats().misuse_reports, 0);
}
