//! Follows the processes of one run through /proc: resident memory of all of them together over time, and
//! of each program the largest. Used by `launch`. It does not know which allocator they run on.
//!
//! Looking costs time that the program may want, so the pause between two looks grows with the cost of one
//! and with the length of the run. Pages that two processes share count for each.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::witness;
use crate::procfs::{self, Stat};
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// A pause is at most this part of the run's length: some hundreds of samples, and more where it is long.
const LENGTH_PER_PAUSE: u32 = 200;
/// A pause lasts at least this many times as long as a look: about 1 % of one processor.
const PAUSE_PER_COST: u32 = 100;
/// The first tenth of a second may cost more, or a short run would have no samples.
const PAUSE_PER_COST_FIRST: u32 = 20;
const FIRST: Duration = Duration::from_millis(100);
/// A program older than this has run the witness's constructor, if it ever will.
const SETTLED: Duration = Duration::from_millis(50);

/// A program that a process was seen to run.
#[derive(Debug, Clone)]
pub struct Seen {
    pub pid: i32,
    pub exe: String,
    /// A fork's copy that has not executed a program of its own.
    pub copy: bool,
    pub peak_bytes: u64,
    /// The witness was not in LD_PRELOAD when the program started.
    pub preload_cleared: bool,
    /// It lived long enough for the witness to announce itself.
    pub settled: bool,
    pub start_stack: u64,
    start_ticks: u64,
    since: Instant,
}

impl Seen {
    pub fn new(pid: i32, exe: String, stat: &Stat) -> Seen {
        Seen {
            pid,
            exe,
            copy: false,
            peak_bytes: 0,
            preload_cleared: false,
            settled: false,
            start_ticks: stat.start_ticks,
            start_stack: stat.start_stack,
            since: Instant::now(),
        }
    }
}

pub struct Sampler<'a> {
    launcher: i32,
    root: i32,
    began: Instant,
    page_bytes: u64,
    witness: &'a File,
    /// The witness's path as it stands in LD_PRELOAD.
    preloaded: &'a str,
    slots_read: u32,
    slot_pids: Vec<i32>,
    cost_before: Duration,
    /// Index of the program that a process runs, by pid.
    current: HashMap<i32, usize>,
    pub seen: Vec<Seen>,
    /// Seconds since the start, and resident bytes of all processes.
    pub series: Vec<(f64, u64)>,
    /// Whether the last look found a process, also one that ended meanwhile: what it had started was handed
    /// to the launcher behind the look's back.
    pub any_left: bool,
    pub pause: Duration,
}

impl<'a> Sampler<'a> {
    pub fn new(launcher: i32, witness: &'a File, preloaded: &'a str) -> Sampler<'a> {
        Sampler {
            launcher,
            root: 0,
            began: Instant::now(),
            page_bytes: rustix::param::page_size() as u64,
            witness,
            preloaded,
            slots_read: 0,
            slot_pids: Vec::new(),
            cost_before: Duration::ZERO,
            current: HashMap::new(),
            seen: Vec::new(),
            series: Vec::new(),
            any_left: true,
            pause: PAUSE_MIN,
        }
    }

    /// A root that ended before the first look ran at least the program that it was started with.
    pub fn know_root(&mut self, exe: &Path) {
        if !self.seen.iter().any(|seen| seen.pid == self.root) {
            let exe = exe.display().to_string();
            self.seen.push(Seen::new(self.root, exe, &Stat::default()));
        }
    }

    /// The command has started: its time begins.
    pub fn begin(&mut self, root: i32) {
        self.root = root;
        self.began = Instant::now();
    }

    /// Looks once at every process of the command.
    pub fn look(&mut self) {
        let began = Instant::now();
        let pids = self.descendants();
        let mut total = 0;
        self.any_left = !pids.is_empty();
        for pid in pids {
            let Some(stat) = procfs::stat(pid) else { continue };
            if matches!(stat.state, 'Z' | 'X') {
                continue;
            }
            let bytes = stat.resident_pages * self.page_bytes;
            total += bytes;
            self.look_at(pid, &stat, bytes);
        }
        let length = self.began.elapsed();
        // A process that is about to end has given its memory back.
        if total > 0 {
            self.series.push((length.as_secs_f64(), total));
        }
        // The smaller of two looks: one alone may have been interrupted.
        let cost = began.elapsed();
        let usual = cost.min(std::mem::replace(&mut self.cost_before, cost));
        let factor = if length < FIRST { PAUSE_PER_COST_FIRST } else { PAUSE_PER_COST };
        let wanted = (length / LENGTH_PER_PAUSE).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pause = wanted.max(usual * factor).min(Duration::from_secs(1));
    }

    pub fn descendants(&self) -> Vec<i32> {
        procfs::descendants(self.launcher, &[])
    }

    fn look_at(&mut self, pid: i32, stat: &Stat, bytes: u64) {
        self.know_stack(pid, stat);
        let known = self.current.get(&pid).copied().filter(|at| {
            let seen = &self.seen[*at];
            // While a program is being executed its stack is not known yet.
            seen.start_ticks == stat.start_ticks
                && (seen.start_stack == stat.start_stack || stat.start_stack == 0)
        });
        let at = match known {
            Some(at) => at,
            None => match self.add(pid, stat) {
                Some(at) => at,
                None => return,
            },
        };
        let seen = &mut self.seen[at];
        seen.peak_bytes = seen.peak_bytes.max(bytes);
        if !seen.settled && seen.since.elapsed() > SETTLED {
            seen.settled = true;
            self.settle(at);
        }
    }

    /// A program that was seen while it was being executed is the same one once its stack is known.
    fn know_stack(&mut self, pid: i32, stat: &Stat) {
        let Some(seen) = self.current.get(&pid).and_then(|at| self.seen.get_mut(*at)) else {
            return;
        };
        let unknown = seen.start_stack == 0 && stat.start_stack != 0;
        if unknown
            && seen.start_ticks == stat.start_ticks
            && procfs::exe(pid).is_ok_and(|exe| exe.display().to_string() == seen.exe)
        {
            seen.start_stack = stat.start_stack;
        }
    }

    fn add(&mut self, pid: i32, stat: &Stat) -> Option<usize> {
        let exe = procfs::exe(pid).ok()?.display().to_string();
        // Before its exec the root is the launcher's copy.
        if pid == self.root && self.seen.is_empty() && exe.contains("weir-launcher") {
            return None;
        }
        let copy = self.current.get(&stat.parent).is_some_and(|parent| {
            let parent = &self.seen[*parent];
            parent.start_stack == stat.start_stack && parent.exe == exe
        });
        self.seen.push(Seen { copy, ..Seen::new(pid, exe, stat) });
        self.current.insert(pid, self.seen.len() - 1);
        Some(self.seen.len() - 1)
    }

    /// Asks a program that should have announced itself by now, and has not, for the reason.
    fn settle(&mut self, at: usize) {
        let Ok(header) = witness::header(self.witness) else { return };
        while self.slots_read < header.claimed.min(witness::SLOT_COUNT) {
            let Some(pid) = witness::slot_pid(self.witness, self.slots_read) else { break };
            self.slot_pids.push(pid);
            self.slots_read += 1;
        }
        let seen = &mut self.seen[at];
        if !self.slot_pids.contains(&seen.pid)
            && let Some([preload]) = procfs::environment(seen.pid, ["LD_PRELOAD"])
        {
            let preload = preload.unwrap_or_default();
            seen.preload_cleared = !String::from_utf8_lossy(&preload).contains(self.preloaded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_being_executed_is_seen_once() {
        let own = std::process::id() as i32;
        let none = File::open("/dev/null").expect("/dev/null");
        let mut sampler = Sampler::new(own, &none, "");
        let set_up = procfs::stat(own).expect("this process");
        sampler.look_at(own, &Stat { start_stack: 0, ..set_up.clone() }, 1);
        sampler.look_at(own, &set_up, 2);
        sampler.look_at(own, &Stat { start_stack: 0, ..set_up.clone() }, 3);
        assert_eq!(sampler.seen.len(), 1);
        assert_eq!(sampler.seen[0].peak_bytes, 3);
        let another = Stat { start_stack: set_up.start_stack - 4096, ..set_up };
        sampler.look_at(own, &another, 4);
        assert_eq!(sampler.seen.len(), 2);
    }
}
