//! A stranger's program on the packaged crate; run.py builds it with and without `override`. It says how
//! many of its blocks weir has counted. It knows the crate's public names alone.
//!
//! SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

#[global_allocator]
static GLOBAL: weir_malloc::Weir = weir_malloc::Weir;

fn main() {
    let before = weir_malloc::stats().alloc_calls;
    let map: BTreeMap<u32, String> = (0..1000).map(|n| (n, n.to_string().repeat(9))).collect();
    let threads: Vec<_> = (0..4)
        .map(|t| std::thread::spawn(move || vec![t; 10_000].into_iter().sum::<usize>()))
        .collect();
    let sum: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
    let calls = weir_malloc::stats().alloc_calls - before;
    assert_eq!((map.len(), sum), (1000, 60_000));
    assert!(calls >= 1000, "{calls}");
    println!("weir {}: {calls} calls", weir_malloc::version());
}
