//! Judges one run: did the program's calls of malloc reach the allocator that was meant? Joins what the
//! witness wrote with the programs that were seen in /proc. Called for each run. It does not know what
//! the run was measured for.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::launch::Trial;
use super::sample::Seen;
use super::witness::{Call, Slot};
use crate::elf;
use crate::library::LIBRARY;
use crate::program::Facts;
use crate::verdict;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A program that ran, all its processes together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executable {
    pub exe: String,
    pub processes: u32,
    /// The largest resident memory of one of them.
    pub peak_bytes: u64,
    /// The object that served its calls; None where none was seen.
    pub target: Option<String>,
    /// Why calls did not reach the allocator, or none was seen.
    pub missed: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    pub proven: bool,
    /// One line for people.
    pub evidence: String,
    pub executables: Vec<Executable>,
}

/// `library` is the allocator that was preloaded; None for the system's own, where any will do.
pub fn judge(trial: &Trial, library: Option<&Path>) -> Proof {
    let mut by_name: BTreeMap<(String, Option<String>), Executable> = BTreeMap::new();
    let mut counter = Counter { library, reached: 0, reached_peak: 0, missed: Vec::new() };
    let mut root_missed = false;
    let mut first_call: Option<&Call> = None;
    let mut told = false;
    for slot in &trial.slots {
        // An image that made calls before it forked has shown for its copies where they go.
        let call = primary(slot);
        let peak = slot_peak(slot, &trial.seen);
        let missed = counter.count_slot(slot, call, peak);
        root_missed |= missed.is_some() && call.is_some() && slot.pid == trial.root;
        // A program says more than the C library, which calls for it.
        let says_more = call.is_some_and(|call| call.caller == slot.exe);
        if missed.is_none() && (first_call.is_none() || says_more && !told) {
            first_call = call;
            told = says_more;
        }
        let target = call.map(|call| call.target.clone());
        add(&mut by_name, slot.exe.clone(), target, missed, peak);
    }
    for seen in trial.seen.iter().filter(|seen| !seen.copy && !has_slot(seen, &trial.slots)) {
        let Some(why) = reason(seen) else { continue };
        root_missed |= seen.pid == trial.root;
        counter.missed.push((seen.exe.clone(), why.clone(), seen.peak_bytes));
        add(&mut by_name, seen.exe.clone(), None, Some(why), seen.peak_bytes);
    }
    let missed_peak = counter.missed.iter().map(|(_, _, peak)| *peak).max();
    let proven = counter.reached > 0
        && !root_missed
        && missed_peak.is_none_or(|peak| peak <= counter.reached_peak);
    Proof {
        proven,
        evidence: evidence(proven, &counter, first_call, trial),
        executables: by_name.into_values().collect(),
    }
}

struct Counter<'a> {
    library: Option<&'a Path>,
    reached: usize,
    reached_peak: u64,
    /// Program, reason, peak memory.
    missed: Vec<(String, String, u64)>,
}

impl Counter<'_> {
    /// Why the image's calls did not reach the allocator, if they were seen to go elsewhere; what says
    /// nothing about the allocator is not counted.
    fn count_slot(&mut self, slot: &Slot, call: Option<&Call>, peak: u64) -> Option<String> {
        let Some(call) = call else {
            // The file may say why; if not, a program that makes no calls says nothing about the allocator.
            if let Some(why) = own_malloc(&slot.exe) {
                self.missed.push((slot.exe.clone(), why.clone(), peak));
                return Some(why);
            }
            return Some("no call was seen".to_owned());
        };
        let elsewhere = slot
            .calls
            .iter()
            .filter(|call| call.serves_malloc())
            .find(|call| self.library.is_some_and(|library| !is_same(&call.target, library)));
        if call.is_of_c() && self.library.is_none() || elsewhere.is_none() && self.matches(call) {
            self.reached += 1;
            self.reached_peak = self.reached_peak.max(peak);
            return None;
        }
        let target = elsewhere.unwrap_or(call);
        let why = format!("{} went to {}", target.symbol(), target.target);
        self.missed.push((slot.exe.clone(), why.clone(), peak));
        Some(why)
    }

    fn matches(&self, call: &Call) -> bool {
        self.library.is_none_or(|library| is_same(&call.target, library))
    }
}

/// The call that tells: one of C's functions, to which operator new leads as well.
fn primary(slot: &Slot) -> Option<&Call> {
    let called = || slot.calls.iter().filter(|call| call.called != 0);
    called().find(|call| call.is_of_c()).or_else(|| called().next())
}

/// The witness cuts paths to 255 bytes, and the loader may know a file by another name.
fn is_same(target: &str, library: &Path) -> bool {
    let text = library.to_string_lossy();
    if target == text || (target.len() >= 255 && text.starts_with(target)) {
        return true;
    }
    match (std::fs::metadata(target), std::fs::metadata(library)) {
        (Ok(left), Ok(right)) => (left.dev(), left.ino()) == (right.dev(), right.ino()),
        _ => false,
    }
}

/// Whether the witness was in what was seen: in the process itself, or in the image that it is a copy of. Where
/// addresses are not drawn, other images have their stack there too, also one without the witness.
fn is_of(slot: &Slot, seen: &Seen) -> bool {
    let is_copy = slot.start_stack == seen.start_stack && slot.start_stack != 0;
    (slot.pid == seen.pid || is_copy && !seen.preload_cleared)
        && (slot.exe == seen.exe || (slot.exe.len() >= 255 && seen.exe.starts_with(&slot.exe)))
}

fn has_slot(seen: &Seen, slots: &[Slot]) -> bool {
    slots.iter().any(|slot| is_of(slot, seen))
}

/// The most that the image had, or one of its copies.
fn slot_peak(slot: &Slot, seen: &[Seen]) -> u64 {
    let sampled = seen.iter().filter(|seen| is_of(slot, seen));
    sampled.map(|seen| seen.peak_bytes).max().unwrap_or(0).max(slot.resident_peak_bytes)
}

fn add(
    by_name: &mut BTreeMap<(String, Option<String>), Executable>,
    exe: String,
    target: Option<String>,
    missed: Option<String>,
    peak_bytes: u64,
) {
    let entry = by_name.entry((exe.clone(), target.clone())).or_insert(Executable {
        exe,
        processes: 0,
        peak_bytes: 0,
        target,
        missed,
    });
    entry.processes += 1;
    entry.peak_bytes = entry.peak_bytes.max(peak_bytes);
}

/// A malloc that a program carries comes before every preloaded one.
fn own_malloc(exe: &str) -> Option<String> {
    let facts = Facts::of(&File::open(exe).ok()?);
    match facts.sanitizer() {
        Some(name) => Some(verdict::sanitizer(name).text),
        None => facts.defines_malloc().then(|| verdict::own_malloc().text),
    }
}

/// Why the witness did not load, if that can be known.
fn reason(seen: &Seen) -> Option<String> {
    let facts = File::open(&seen.exe).ok().map(|file| Facts::of(&file));
    let machine = elf::inspect(&LIBRARY, &[]).map_or(0, |elf| elf.machine);
    if let Some(reason) = facts.as_ref().and_then(|facts| verdict::reason_in_file(facts, machine)) {
        return Some(reason.text);
    }
    if seen.preload_cleared {
        return Some("its parent took the preloaded libraries out of LD_PRELOAD".to_owned());
    }
    if let Some(name) = facts.as_ref().and_then(Facts::sanitizer) {
        return Some(verdict::sanitizer(name).text);
    }
    seen.settled
        .then(|| "the loader did not load the witness (other user, sandbox or chroot)".to_owned())
}

fn evidence(proven: bool, counter: &Counter, first: Option<&Call>, trial: &Trial) -> String {
    let mut text = match (first, proven) {
        (Some(call), true) => {
            let programs = if counter.reached == 1 { "program" } else { "programs" };
            format!(
                "{} by {} reached {}; {} {programs}",
                call.symbol(),
                name_of(&call.caller),
                name_of(&call.target),
                counter.reached
            )
        }
        _ if counter.missed.is_empty() && trial.refused > 0 => {
            "more processes than the witness has room for".to_owned()
        }
        _ if counter.missed.is_empty() => {
            "no call of malloc was seen: the program made none, or ended too early".to_owned()
        }
        _ => "not in place".to_owned(),
    };
    // The largest is the one that matters.
    if let Some((exe, why, _)) = counter.missed.iter().max_by_key(|(_, _, peak)| *peak) {
        let others = counter.missed.len() - 1;
        text.push_str(&format!("{} {}: {why}", if proven { "; not" } else { ":" }, name_of(exe)));
        if others > 0 {
            text.push_str(&format!(", and {others} more"));
        }
    }
    text
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::Stat;

    fn seen(pid: i32, exe: &str, start_stack: u64) -> Seen {
        Seen::new(pid, exe.to_owned(), &Stat { start_stack, ..Stat::default() })
    }

    #[test]
    fn copies_are_judged_by_their_image() {
        let slot = Slot {
            pid: 7,
            exe: "/a".to_owned(),
            start_ns: 1,
            ended: false,
            inherited: false,
            start_stack: 4096,
            watched: 1,
            resident_peak_bytes: 10,
            resident_bytes: 0,
            threads: 0,
            calls: Vec::new(),
        };
        assert!(is_of(&slot, &seen(7, "/a", 0)));
        assert!(is_of(&slot, &seen(8, "/a", 4096)));
        for other in [seen(7, "/b", 4096), seen(8, "/b", 4096), seen(8, "/a", 8192)] {
            assert!(!is_of(&slot, &other), "{other:?}");
        }
        let mut another_image = seen(8, "/a", 4096);
        another_image.preload_cleared = true;
        assert!(!is_of(&slot, &another_image));
        let unknown = Slot { start_stack: 0, ..slot.clone() };
        assert!(!is_of(&unknown, &seen(8, "/a", 0)));
        let (mut grown, mut strange) = (seen(8, "/a", 4096), seen(9, "/b", 4096));
        (grown.peak_bytes, strange.peak_bytes) = (20, 30);
        assert_eq!(slot_peak(&slot, &[grown, strange]), 20);
        assert_eq!(slot_peak(&slot, &[]), 10);
    }
}
