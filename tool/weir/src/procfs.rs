//! Reads what /proc tells about a process. Pure parsing plus file reads; used by the watcher. Every
//! answer may be missing, because processes end at any time and some may not be looked at. It does
//! not know which processes matter.
//!
//! SPDX-License-Identifier: Apache-2.0

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stat {
    /// The name of the program, cut to 15 bytes.
    pub name: String,
    pub state: char,
    pub parent: i32,
    /// Minor faults of the children that were waited for: above zero once there was one.
    pub children_faults: u64,
    /// Clock ticks since boot. With the pid it names a process for good.
    pub start_ticks: u64,
    /// Resident pages.
    pub resident_pages: u64,
    /// Address of the stack's start, new with each exec; 0 where it may not be seen, or not yet.
    pub start_stack: u64,
}

pub fn stat(pid: i32) -> Option<Stat> {
    // The name may be any bytes.
    let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&bytes))
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name is in parentheses and may contain anything, parentheses and blanks too.
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let name = text.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
    // The numbers are those of proc(5), where the state is field 3.
    let field = |number: usize| fields.get(number - 3);
    let number = |at: usize| field(at)?.parse::<u64>().ok();
    // An exec puts the stack's start where the arguments begin, and then below what it pushes under them.
    let start_stack = number(28)?;
    let is_set_up = start_stack != number(48).unwrap_or(0);
    Some(Stat {
        name,
        state: field(3)?.chars().next()?,
        parent: field(4)?.parse().ok()?,
        children_faults: number(11)?,
        start_ticks: number(22)?,
        resident_pages: number(24)?,
        start_stack: if is_set_up { start_stack } else { 0 },
    })
}

/// Appends the children of all threads of `pid`. False if the kernel has no such list.
pub fn children(pid: i32, out: &mut Vec<i32>) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let mut text = String::new();
    for task in tasks.flatten() {
        text.clear();
        match File::open(task.path().join("children")) {
            Ok(mut file) => {
                let _ = file.read_to_string(&mut text);
                out.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
            }
            // A thread that ended looks the same as a kernel without the list; the process tells.
            Err(error) if error.kind() == io::ErrorKind::NotFound && task.path().exists() => {
                return false;
            }
            Err(_) => {}
        }
    }
    true
}

/// Every process and its parent: the slow way for kernels without lists of children.
pub fn all_parents() -> Vec<(i32, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?.parent)))
        .collect()
}

/// All processes below `pid`, but for those of `without` and what is below them.
pub fn descendants(pid: i32, without: &[i32]) -> Vec<i32> {
    let mut found = vec![pid];
    let mut at = 0;
    let mut next = Vec::new();
    while let Some(parent) = found.get(at).copied() {
        if !children(parent, &mut next) {
            return descendants_slowly(pid, without);
        }
        found.extend(next.drain(..).filter(|child| !without.contains(child)));
        at += 1;
    }
    found.remove(0);
    found
}

/// For kernels without lists of children.
fn descendants_slowly(pid: i32, without: &[i32]) -> Vec<i32> {
    let parents = all_parents();
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        let below = parents.iter().filter(|(child, of)| *of == parent && !without.contains(child));
        found.extend(below.map(|(child, _)| *child));
        at += 1;
    }
    found.remove(0);
    found
}

/// The program that runs, or the error: PermissionDenied where another user's rights are in play.
pub fn exe(pid: i32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe"))
}

/// The program's file itself, even if it was deleted or lies in another mount namespace.
pub fn open_exe(pid: i32) -> io::Result<File> {
    File::open(format!("/proc/{pid}/exe"))
}

pub fn argument_zero(pid: i32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let first = bytes.split(|byte| *byte == 0).next()?;
    (!first.is_empty()).then(|| String::from_utf8_lossy(first).into_owned())
}

/// The values of some variables in the environment that the process was started with.
pub fn environment<const N: usize>(pid: i32, names: [&str; N]) -> Option<[Option<Vec<u8>>; N]> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
    Some(names.map(|name| variable(&bytes, name)))
}

pub fn variable(environment: &[u8], name: &str) -> Option<Vec<u8>> {
    environment
        .split(|byte| *byte == 0)
        .find_map(|pair| Some(pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec()))
}

/// Whether a file of this path is mapped.
pub fn maps(pid: i32, path: &str) -> Option<bool> {
    let bytes = fs::read(format!("/proc/{pid}/maps")).ok()?;
    Some(bytes.windows(path.len()).any(|window| window == path.as_bytes()))
}

/// The pid by which the process knows itself: the last one, of the innermost namespace.
pub fn inner_pid(pid: i32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "42 (a) (b c) S 7 42 42 0 -1 4194560 94 1234 0 0 0 0 0 0 20 0 1 0 \
        5555 2994176 219 18446744073709551615 1 2 140721 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0";

    #[test]
    fn stat_is_parsed_past_any_name() {
        let stat = parse_stat(LINE).expect("a good line");
        assert_eq!((stat.name.as_str(), stat.state, stat.parent), ("a) (b c", 'S', 7));
        assert_eq!((stat.children_faults, stat.start_ticks), (1234, 5555));
        assert_eq!((stat.resident_pages, stat.start_stack), (219, 140721));
        for cut in 0..LINE.len() - 60 {
            let _ = parse_stat(&LINE[..cut]);
        }
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat(")("), None);
    }

    #[test]
    fn a_stack_that_an_exec_still_builds_has_no_start() {
        // LINE ends with field 44; the arguments' start is field 48.
        let with_arguments = |start: u64| format!("{LINE} 0 0 0 {start} 0 0 0 0");
        let start = |line: &str| parse_stat(line).map(|stat| stat.start_stack);
        assert_eq!(start(&with_arguments(140721)), Some(0));
        assert_eq!(start(&with_arguments(140999)), Some(140721));
    }

    #[test]
    fn variables_are_found_whole() {
        let environment = b"LD_PRELOAD_X=1\0LD_PRELOAD=/a:/b\0EMPTY=\0";
        assert_eq!(variable(environment, "LD_PRELOAD").as_deref(), Some(b"/a:/b".as_slice()));
        assert_eq!(variable(environment, "EMPTY").as_deref(), Some(b"".as_slice()));
        assert_eq!(variable(environment, "PRELOAD"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = std::process::id() as i32;
        assert!(stat(pid).is_some_and(|stat| stat.start_stack != 0));
        assert!(exe(pid).is_ok());
        assert_eq!(inner_pid(pid), Some(pid));
        assert!(children(pid, &mut Vec::new()));
    }
}
