//! Finds the processes of the command by looking at /proc again and again, and remembers each program
//! that they run: who they are, what their file says, and whether the preload reached their
//! environment; and adds up their memory, resident as the kernel counts it and live as their slots of the
//! wire say. Used by `run`. It does not judge: `verdict` joins this with the wire's slots.
//!
//! Looking costs time, so the pause between two looks grows with the cost of one. A process that
//! lives between two looks is seen only if it loads the library; the report says so.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::library::Placed;
use crate::procfs::{self, Stat};
use crate::program::{Facts, Image};
use crate::sys::Change;
use crate::timeline::{Sample, Timeline};
use crate::{verdict, wire};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Looks with the first, short pause: most programs that end early do so now.
const LOOKS_FIRST: u64 = 20;
/// A pause lasts at least this many times as long as a look: 2 % of one core at most.
const PAUSE_PER_COST: u32 = 50;
/// A program older than this has run the library's constructor, if it ever will.
const SETTLED: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Process {
    pub pid: i32,
    /// The pid inside the innermost namespace: the one that its slots carry.
    pub inner_pid: i32,
    pub parent: i32,
    pub running: bool,
    /// How it ended; known only for direct children and adopted orphans.
    pub ended: Option<Change>,
    /// The programs that it was seen to run, in time order.
    pub programs: Vec<Program>,
    start_ticks: u64,
}

#[derive(Debug)]
pub struct Program {
    pub exe: String,
    /// The kernel does not let this user look: it runs with other rights.
    pub hidden: bool,
    /// Same stack as the parent: a copy that has not executed a program of its own.
    pub copy_of_parent: bool,
    /// It was gone before its file could be looked at.
    pub gone: bool,
    pub facts: Option<Rc<Facts>>,
    pub environment: Option<Environment>,
    /// Whether the library was mapped once the program had settled.
    pub mapped: Option<bool>,
    pub start_stack: u64,
    pub seen_at: Instant,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    pub preload: Preload,
    pub wire: Wire,
}

/// What WEIR_WIRE names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Own,
    /// That of another `weir run`, which was started within this one.
    Other,
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preload {
    First,
    /// Behind this library.
    Behind(String),
    Missing,
}

pub struct Watcher<'a> {
    placed: &'a Placed,
    processes: Vec<Process>,
    /// Index of the process that has, or had last, a pid.
    current: HashMap<i32, usize>,
    facts: HashMap<(u64, u64), Rc<Facts>>,
    slots_read: u32,
    slots_of_pid: HashMap<i32, Slots>,
    has_lists: bool,
    began: Instant,
    page_bytes: u64,
    cost_before: Duration,
    looks: u64,
    pub pause: Duration,
    pub pause_longest: Duration,
    pub timeline: Timeline,
}

/// The slots that a process claimed so far: one for each program that it ran on weir.
#[derive(Default)]
struct Slots {
    count: usize,
    last: u32,
}

impl<'a> Watcher<'a> {
    /// `image` is what the command's file says, so that the root is known even if it ends at once.
    pub fn new(
        placed: &'a Placed,
        root: i32,
        image: &Image,
        began: Instant,
        timeline: Timeline,
    ) -> Watcher<'a> {
        let mut watcher = Watcher {
            placed,
            processes: Vec::new(),
            current: HashMap::new(),
            facts: HashMap::new(),
            slots_read: 0,
            slots_of_pid: HashMap::new(),
            has_lists: true,
            began,
            page_bytes: rustix::param::page_size() as u64,
            cost_before: Duration::ZERO,
            looks: 0,
            pause: PAUSE_FIRST,
            pause_longest: PAUSE_FIRST,
            timeline,
        };
        watcher.current.insert(root, 0);
        watcher.processes.push(Process {
            pid: root,
            inner_pid: root,
            parent: std::process::id() as i32,
            running: true,
            ended: None,
            // Nobody has waited for the root yet: even as a zombie it has its entry.
            start_ticks: procfs::stat(root).map_or(0, |stat| stat.start_ticks),
            programs: vec![Program {
                exe: image.path.display().to_string(),
                hidden: false,
                copy_of_parent: false,
                gone: false,
                facts: image.facts.clone().map(Rc::new),
                environment: None,
                mapped: None,
                start_stack: 0,
                seen_at: Instant::now(),
            }],
        });
        watcher
    }

    pub fn into_parts(self) -> (Vec<Process>, Timeline) {
        (self.processes, self.timeline)
    }

    pub fn any_running(&self) -> bool {
        self.processes.iter().any(|process| process.running)
    }

    pub fn is_descendant(&self, pid: i32) -> bool {
        self.current.contains_key(&pid)
    }

    pub fn ended(&mut self, pid: i32, change: Change) {
        if let Some(process) = self.current.get(&pid).and_then(|at| self.processes.get_mut(*at)) {
            process.ended = Some(change);
            process.running = false;
        }
    }

    /// Looks once at every descendant.
    pub fn look(&mut self) {
        let began = Instant::now();
        self.count_slots();
        let alive = self.descendants();
        for process in &mut self.processes {
            process.running = false;
        }
        let mut sum = Sample::default();
        for pid in alive {
            if let Some(stat) = procfs::stat(pid) {
                self.look_at(pid, &stat);
                sum.processes += usize::from(stat.resident_pages > 0);
                sum.resident_bytes += stat.resident_pages * self.page_bytes;
                sum.live_bytes += self.live_bytes(pid);
            }
        }
        let now = self.began.elapsed();
        sum.seconds = now.as_secs_f64();
        self.timeline.add(sum);
        self.looks += 1;
        let base = if self.looks < LOOKS_FIRST { PAUSE_FIRST } else { PAUSE };
        // A look that comes when a sample is due takes it on time.
        let base = base.min(self.timeline.wait(now).max(PAUSE_FIRST));
        // The smaller of two looks: one alone may have been interrupted, or read a new program's file.
        let cost = began.elapsed();
        let usual = cost.min(std::mem::replace(&mut self.cost_before, cost));
        self.pause = base.max(usual * PAUSE_PER_COST).min(PAUSE_MAX);
        self.pause_longest = self.pause_longest.max(self.pause);
    }

    /// What the program that the process runs now has in its hands, as it said last; 0 if it does not say.
    fn live_bytes(&self, pid: i32) -> u64 {
        let live = || {
            let process = self.processes.get(*self.current.get(&pid)?)?;
            let slots = self.slots_of_pid.get(&process.inner_pid)?;
            let slot = wire::slot(&self.placed.wire, slots.last)?;
            // A slot outlives the program that claimed it when another one is executed.
            let program = process.programs.last().filter(|_| process.running)?;
            verdict::same_exe(&slot.exe, program).then_some(slot.figures.live_bytes)
        };
        live().unwrap_or(0)
    }

    fn descendants(&mut self) -> Vec<i32> {
        let own = std::process::id() as i32;
        let mut found = Vec::new();
        if self.has_lists {
            self.has_lists = procfs::children(own, &mut found);
            let mut at = 0;
            while let Some(pid) = found.get(at).copied().filter(|_| self.has_lists) {
                self.has_lists = procfs::children(pid, &mut found);
                at += 1;
            }
        }
        if !self.has_lists {
            let parents = procfs::all_parents();
            found = vec![own];
            let mut at = 0;
            while let Some(parent) = found.get(at).copied() {
                found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
                at += 1;
            }
            found.remove(0);
        }
        found
    }

    fn look_at(&mut self, pid: i32, stat: &Stat) {
        let at = match self.current.get(&pid) {
            Some(at) if self.processes[*at].start_ticks == stat.start_ticks => *at,
            _ => self.add_process(pid, stat),
        };
        if matches!(stat.state, 'Z' | 'X') {
            if self.processes[at].programs.is_empty() {
                let mut program = new_program(format!("({})", stat.name), stat);
                program.gone = true;
                self.processes[at].programs.push(program);
            }
            return;
        }
        self.processes[at].running = true;
        self.look_at_program(at, stat);
    }

    fn add_process(&mut self, pid: i32, stat: &Stat) -> usize {
        let at = self.processes.len();
        self.processes.push(Process {
            pid,
            inner_pid: procfs::inner_pid(pid).unwrap_or(pid),
            parent: stat.parent,
            running: false,
            ended: None,
            programs: Vec::new(),
            start_ticks: stat.start_ticks,
        });
        self.current.insert(pid, at);
        at
    }

    fn look_at_program(&mut self, at: usize, stat: &Stat) {
        let pid = self.processes[at].pid;
        let (exe, hidden) = match procfs::exe(pid) {
            Ok(path) => (path.display().to_string(), false),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                (procfs::argument_zero(pid).unwrap_or_else(|| stat.name.clone()), true)
            }
            // It ended meanwhile, or is a kernel helper without a file.
            Err(_) => return,
        };
        let known = self.processes[at].programs.last_mut().filter(|last| {
            // While a program is being executed its stack is not known yet.
            let unknown = last.start_stack == 0 || stat.start_stack == 0;
            // All that a hidden program shows is the name that it was called by.
            let foreseen = hidden
                && last.start_stack == 0
                && last.facts.as_ref().is_some_and(|facts| facts.secure.is_some())
                && Path::new(&last.exe).file_name() == Path::new(&exe).file_name();
            (last.exe == exe || foreseen) && (unknown || last.start_stack == stat.start_stack)
        });
        match known {
            Some(last) => last.start_stack = last.start_stack.max(stat.start_stack),
            None => {
                // Between the two reads the process may have executed a program.
                match procfs::stat(pid) {
                    Some(now) if now.start_stack == stat.start_stack => {}
                    _ => return,
                }
                let mut program = new_program(exe, stat);
                program.hidden = hidden;
                program.copy_of_parent = self.is_copy(at, stat);
                program.facts = self.facts_of(pid);
                self.processes[at].programs.push(program);
            }
        }
        self.fill_in(at);
    }

    fn is_copy(&self, at: usize, stat: &Stat) -> bool {
        let first = self.processes[at].programs.is_empty();
        first
            && stat.start_stack != 0
            && self.current.get(&stat.parent).is_some_and(|parent| {
                let programs = &self.processes[*parent].programs;
                programs.iter().any(|program| program.start_stack == stat.start_stack)
            })
    }

    fn facts_of(&mut self, pid: i32) -> Option<Rc<Facts>> {
        let file = procfs::open_exe(pid).ok()?;
        let about = file.metadata().ok()?;
        let facts = self
            .facts
            .entry((about.dev(), about.ino()))
            .or_insert_with(|| Rc::new(Facts::of(&file)));
        Some(Rc::clone(facts))
    }

    /// What could not be known at first sight.
    fn fill_in(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let programs = process.programs.len();
        let Some(program) = process.programs.last_mut() else { return };
        // The stack's address is set after the environment's: with it the environment is complete.
        if program.environment.is_none() && program.start_stack != 0 {
            program.environment = environment(process.pid, self.placed);
        }
        let slots = self.slots_of_pid.get(&process.inner_pid).map_or(0, |slots| slots.count);
        if program.mapped.is_none() && slots < programs && program.seen_at.elapsed() > SETTLED {
            program.mapped = procfs::maps(process.pid, &self.placed.library_mark());
        }
    }

    fn count_slots(&mut self) {
        let Ok(header) = wire::header(&self.placed.wire) else { return };
        while self.slots_read < header.slots_claimed.min(header.slot_count) {
            // A claimed slot is filled in a moment later; the next look finds it.
            let Some(pid) = wire::slot_pid(&self.placed.wire, self.slots_read) else { break };
            let slots = self.slots_of_pid.entry(pid).or_default();
            slots.count += 1;
            slots.last = self.slots_read;
            self.slots_read += 1;
        }
    }
}

fn new_program(exe: String, stat: &Stat) -> Program {
    Program {
        exe,
        hidden: false,
        copy_of_parent: false,
        gone: false,
        facts: None,
        environment: None,
        mapped: None,
        start_stack: stat.start_stack,
        seen_at: Instant::now(),
    }
}

#[cfg(test)]
impl Process {
    pub fn for_test(pid: i32, parent: i32, programs: Vec<Program>) -> Process {
        let (inner_pid, running, ended, start_ticks) = (pid, false, None, 0);
        Process { pid, inner_pid, parent, running, ended, programs, start_ticks }
    }
}

#[cfg(test)]
impl Program {
    pub fn for_test(exe: &str, facts: Option<Facts>) -> Program {
        let stat = Stat {
            name: String::new(),
            state: 'R',
            parent: 0,
            children_faults: 0,
            start_ticks: 0,
            resident_pages: 0,
            start_stack: 1,
        };
        Program { facts: facts.map(Rc::new), ..new_program(exe.to_owned(), &stat) }
    }
}

fn environment(pid: i32, placed: &Placed) -> Option<Environment> {
    let [preload, wire] = procfs::environment(pid, ["LD_PRELOAD", "WEIR_WIRE"])?;
    Some(Environment {
        preload: preload_order(&preload.unwrap_or_default(), placed.library.as_os_str().as_bytes()),
        wire: match wire.unwrap_or_default() {
            path if path == placed.wire_path.as_os_str().as_bytes() => Wire::Own,
            path if path.is_empty() => Wire::Missing,
            _ => Wire::Other,
        },
    })
}

fn preload_order(value: &[u8], library: &[u8]) -> Preload {
    let mut entries = value
        .split(|byte| *byte == b':' || byte.is_ascii_whitespace())
        .filter(|entry| !entry.is_empty());
    let Some(first) = entries.next() else { return Preload::Missing };
    if first == library {
        Preload::First
    } else if entries.any(|entry| entry == library) {
        Preload::Behind(String::from_utf8_lossy(first).into_owned())
    } else {
        Preload::Missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_in_the_preload_list_is_known() {
        assert_eq!(preload_order(b"/l", b"/l"), Preload::First);
        assert_eq!(preload_order(b":/l /x", b"/l"), Preload::First);
        assert_eq!(preload_order(b"/x:/l", b"/l"), Preload::Behind("/x".to_owned()));
        assert_eq!(preload_order(b"/x:/ll", b"/l"), Preload::Missing);
        assert_eq!(preload_order(b"", b"/l"), Preload::Missing);
    }
}
