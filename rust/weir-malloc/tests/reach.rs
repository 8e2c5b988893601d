//! Whose memory is weir's: the program's, and with the feature `override` what C code gets. Run by cargo. Its
//! processes are children of the test, so that nothing else allocates beside what is counted.
//!
//! SPDX-License-Identifier: Apache-2.0

use std::ffi::{CStr, c_char, c_int, c_void};
use std::process::{Command, Output};
use weir_malloc::{Weir, stats};

#[global_allocator]
static GLOBAL: Weir = Weir;

weir_malloc::options!(c"stats=exit");

unsafe extern "C" {
    fn strdup(text: *const c_char) -> *mut c_char;
    fn malloc(size: usize) -> *mut c_void;
    fn free(block: *mut c_void);
    fn fork() -> c_int;
    fn waitpid(child: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
}

const BLOCKS: u64 = 1000;

/// Runs one test of this file, which is ignored otherwise, in a process of its own.
fn child(name: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program)
        .args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap()
}

fn assert_passes(name: &str) {
    let out = child(name);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stdout).contains("1 passed"));
}

#[test]
fn calls_arrive_in_weir() {
    assert_passes("calls");
}

#[test]
#[ignore = "runs in a process of its own"]
fn calls() {
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

#[test]
fn c_code_is_reached_with_override_alone() {
    assert_passes("c_code");
}

#[test]
#[ignore = "runs in a process of its own"]
fn c_code() {
    let before = stats().alloc_calls;
    for _ in 0..BLOCKS {
        // SAFETY: what C allocated is read within its size and freed by C.
        unsafe {
            let copy = strdup(c"forty characters, so that it is a block..".as_ptr());
            assert!(CStr::from_ptr(copy).to_bytes().len() > 16);
            free(copy.cast());
            free(std::hint::black_box(malloc(100)));
        }
    }
    let calls = stats().alloc_calls - before;
    if cfg!(feature = "override") {
        assert!(calls >= 2 * BLOCKS, "{calls}");
    } else {
        assert!(calls < BLOCKS, "{calls}");
    }
}

#[test]
fn fork_leaves_a_heap_that_works() {
    assert_passes("forked");
}

#[test]
#[ignore = "runs in a process of its own"]
fn forked() {
    let text: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    // SAFETY: the child calls nothing but the allocator, and ends without destructors.
    unsafe {
        let process = fork();
        if process == 0 {
            let more: Vec<String> = text.iter().map(|t| t.repeat(3)).collect();
            _exit(if more[7] == "777" && more.len() == 1000 { 0 } else { 1 });
        }
        let mut status = -1;
        assert_eq!(waitpid(process, &mut status, 0), process);
        assert_eq!(status, 0);
    }
    assert_eq!(text[999], "999");
}

#[test]
fn the_programs_options_are_read() {
    let errors = String::from_utf8(child("forked").stderr).unwrap();
    assert!(errors.contains("\"alloc_calls\":"), "stats=exit writes JSON: {errors}");
}
