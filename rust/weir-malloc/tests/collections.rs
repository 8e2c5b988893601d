//! Real collections on weir. Run by cargo.
//!
//! SPDX-License-Identifier: Apache-2.0

use std::alloc::{GlobalAlloc, Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::thread;
use weir_malloc::{Weir, stats, version};

#[global_allocator]
static GLOBAL: Weir = Weir;

weir_malloc::options!(c"check_every=1");

#[test]
fn collections_keep_what_they_are_given() {
    let mut map = HashMap::new();
    let mut tree = BTreeMap::new();
    let mut queue = VecDeque::new();
    for n in 0..20_000u32 {
        map.insert(n, format!("number {n}"));
        tree.insert(std::cmp::Reverse(n), vec![n; (n % 7) as usize]);
        queue.push_front(n);
        if n % 3 == 0 {
            map.remove(&(n / 2));
            queue.pop_back();
        }
    }
    assert!(map.iter().all(|(n, text)| *text == format!("number {n}")));
    assert!(tree.iter().all(|(n, row)| row.len() == (n.0 % 7) as usize));
    assert_eq!(queue.front(), Some(&19_999));
}

#[test]
fn threads_free_what_others_allocated() {
    let before = stats();
    let (send, receive) = std::sync::mpsc::channel::<Vec<String>>();
    let reader = thread::spawn(move || receive.iter().map(|row| row.len()).sum::<usize>());
    let writers: Vec<_> = (0..4)
        .map(|w| {
            let send = send.clone();
            thread::spawn(move || {
                for n in 0..500 {
                    send.send((0..20).map(|i| format!("{w} {n} {i}")).collect()).unwrap();
                }
            })
        })
        .collect();
    drop(send);
    writers.into_iter().for_each(|w| w.join().unwrap());
    assert_eq!(reader.join().unwrap(), 4 * 500 * 20);
    assert!(stats().remote_frees > before.remote_frees);
}

#[test]
fn layouts_of_every_alignment() {
    for shift in 0..=20 {
        for size in [1, 15, 64, 1000, 4096, 70_000] {
            let layout = Layout::from_size_align(size, 1 << shift).unwrap();
            // SAFETY: the layout has a size; the block is used within it and freed with its layout.
            unsafe {
                let block = alloc_zeroed(layout);
                assert!(!block.is_null() && block as usize % layout.align() == 0);
                assert!((0..size).all(|i| block.add(i).read() == 0));
                assert!(GLOBAL.usable_size(block) >= size);
                block.write_bytes(0xa5, size);
                let grown = realloc(block, layout, size * 3);
                assert!(!grown.is_null() && grown as usize % layout.align() == 0);
                assert!((0..size).all(|i| grown.add(i).read() == 0xa5));
                let grown_layout = Layout::from_size_align(size * 3, layout.align()).unwrap();
                let shrunk = realloc(grown, grown_layout, 1);
                assert!(shrunk as usize % layout.align() == 0 && shrunk.read() == 0xa5);
                dealloc(shrunk, Layout::from_size_align(1, layout.align()).unwrap());
            }
        }
    }
}

#[test]
fn what_cannot_be_had_is_null() {
    for align in [8, 64] {
        let layout = Layout::from_size_align(isize::MAX as usize - 4096, align).unwrap();
        // SAFETY: no block is given out.
        unsafe {
            assert!(alloc(layout).is_null());
            assert!(GLOBAL.alloc_zeroed(layout).is_null());
        }
    }
    let mut vector = vec![7u8; 100];
    assert!(vector.try_reserve_exact(isize::MAX as usize / 2).is_err());
    assert_eq!(vector, [7; 100]);
}

#[test]
fn the_version_is_the_crates() {
    assert_eq!(version(), env!("CARGO_PKG_VERSION"));
}
