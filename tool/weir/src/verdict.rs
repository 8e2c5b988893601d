//! Joins the slots of the wire with the processes that were seen, and gives for every program that ran
//! whether calls reached weir and, if not, why. Pure: it takes what was gathered and reads nothing
//! but the files of programs that nobody saw. It does not know how the answer is printed.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::elf::{self, Class};
use crate::program::Facts;
use crate::sys::{self, Change};
use crate::watch::{Preload, Process, Program, Wire};
use crate::wire::{Slot, State};
use std::fs::File;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Calls of the malloc family came from outside the library.
    Reached,
    /// A copy of a reached process without a slot of its own (vfork, a bare clone): it has its
    /// parent's heap.
    Inherited,
    NotReached(Reason),
}

/// Why no call reached weir. `code` is stable, `text` is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    pub code: &'static str,
    pub text: String,
}

#[derive(Debug)]
pub struct Row {
    pub pid: i32,
    pub parent_pid: i32,
    pub exe: String,
    pub verdict: Verdict,
    /// Something worth knowing although calls reached weir.
    pub note: Option<String>,
    pub running: bool,
    pub slot: Option<Slot>,
}

impl Row {
    /// Weir was in place, and there was nothing to reach it.
    pub fn made_no_call(&self) -> bool {
        matches!(&self.verdict, Verdict::NotReached(reason) if reason.code == "no_call")
    }
}

pub struct Context {
    pub library_machine: u16,
    pub slots_refused: u32,
}

/// One row per program that ran, in the order in which the processes were seen.
pub fn rows(processes: &[Process], slots: Vec<Slot>, context: &Context) -> Vec<Row> {
    let reached: Vec<i32> = slots.iter().filter(|slot| is_reached(slot)).map(|s| s.pid).collect();
    let mut slots: Vec<Option<Slot>> = slots.into_iter().map(Some).collect();
    let mut rows = Vec::new();
    for process in processes {
        // A pid that was used again within one run is not told apart: all its slots go to the first.
        let own = slots
            .iter_mut()
            .filter(|slot| slot.as_ref().is_some_and(|slot| slot.pid == process.inner_pid));
        let own: Vec<Slot> = own.filter_map(Option::take).collect();
        let parent_reached = reached.contains(&process.parent);
        rows.extend(process_rows(process, own, parent_reached, context));
    }
    // Processes that only the handshake saw.
    let mut unseen: Vec<Slot> = slots.into_iter().flatten().collect();
    while !unseen.is_empty() {
        let pid = unseen[0].pid;
        let (own, rest): (Vec<Slot>, Vec<Slot>) =
            unseen.into_iter().partition(|slot| slot.pid == pid);
        unseen = rest;
        let copies_end = own.len() - 1;
        rows.extend(own.into_iter().enumerate().filter_map(|(at, slot)| {
            let executed = slot.state == State::Forked && at < copies_end;
            (!executed).then(|| slot_row(slot, None, None))
        }));
    }
    rows
}

fn process_rows(
    process: &Process,
    slots: Vec<Slot>,
    parent_reached: bool,
    context: &Context,
) -> Vec<Row> {
    let mut slots: Vec<Option<Slot>> = slots.into_iter().map(Some).collect();
    let last_slot = slots.len().checked_sub(1);
    // Which slot belongs to which program: the next free one of the same file.
    let matched: Vec<Option<usize>> = {
        let mut taken = vec![false; slots.len()];
        process
            .programs
            .iter()
            .map(|program| {
                let at = slots.iter().enumerate().position(|(at, slot)| {
                    !taken[at] && slot.as_ref().is_some_and(|slot| same_exe(&slot.exe, program))
                })?;
                taken[at] = true;
                Some(at)
            })
            .collect()
    };
    let executed_unmatched = process
        .programs
        .iter()
        .zip(&matched)
        .any(|(program, slot)| slot.is_none() && !program.copy_of_parent && !program.gone);
    let mut rows = Vec::new();
    for (at, program) in process.programs.iter().enumerate() {
        let last = at + 1 == process.programs.len();
        let slot_at = matched[at];
        match slot_at.and_then(|at| slots[at].take()) {
            Some(slot) => {
                let executed =
                    slot.state == State::Forked && (slot_at != last_slot || executed_unmatched);
                if !executed {
                    rows.push(slot_row(slot, Some(process), Some(program)));
                }
            }
            // The moment between fork and exec, or a zombie whose slots say it all.
            None if program.copy_of_parent && (!last || last_slot.is_some()) => {}
            None if program.gone && last_slot.is_some() => {}
            None => rows.push(Row {
                pid: process.pid,
                parent_pid: process.parent,
                exe: program.exe.clone(),
                verdict: if program.copy_of_parent && parent_reached {
                    Verdict::Inherited
                } else {
                    Verdict::NotReached(reason_without_slot(process, program, last, context))
                },
                note: None,
                running: process.running && last,
                slot: None,
            }),
        }
    }
    for (at, slot) in slots.into_iter().enumerate() {
        let Some(slot) = slot else { continue };
        let executed = slot.state == State::Forked && (Some(at) != last_slot || executed_unmatched);
        if !executed {
            rows.push(slot_row(slot, Some(process), None));
        }
    }
    // Programs that only their slots show belong between those that were seen. The others keep
    // their order, as they have no time of their own in the slots' clock.
    if rows.iter().all(|row| row.slot.is_some()) {
        rows.sort_by_key(|row| row.slot.as_ref().map(|slot| slot.start_ns));
    }
    rows
}

fn slot_row(slot: Slot, process: Option<&Process>, program: Option<&Program>) -> Row {
    let read;
    let facts = match program {
        Some(program) => program.facts.as_deref(),
        None => {
            read = File::open(&slot.exe).ok().map(|file| Facts::of(&file));
            read.as_ref()
        }
    };
    let (verdict, note) = if is_reached(&slot) {
        let linked = facts.and_then(Facts::sanitizer);
        let note = linked.map(|name| {
            format!("built with {name}, which may refuse to run behind a preloaded library")
        });
        (Verdict::Reached, note)
    } else if slot.state == State::Damaged {
        let why = "its figures make no sense, as a program overwrote the wire file: it may run on weir, unproven";
        (Verdict::NotReached(reason("slot_damaged", why)), None)
    } else {
        (Verdict::NotReached(reason_with_slot(process, program, facts)), None)
    };
    Row {
        pid: process.map_or(slot.pid, |process| process.pid),
        parent_pid: process.map_or(slot.parent_pid, |process| process.parent),
        exe: slot.exe.clone(),
        verdict,
        note,
        running: process.is_some_and(|process| process.running),
        slot: Some(slot),
    }
}

fn is_reached(slot: &Slot) -> bool {
    match slot.state {
        State::Reached | State::Forked => true,
        // The last state hides whether REACHED came before; the counters tell.
        State::Ended => slot.figures.alloc_calls + slot.figures.free_calls > 0,
        State::Loaded | State::Damaged => false,
    }
}

/// The slot's path is cut to 255 bytes.
pub fn same_exe(exe: &str, program: &Program) -> bool {
    exe == program.exe || (exe.len() >= 255 && program.exe.starts_with(exe))
}

fn reason(code: &'static str, text: impl Into<String>) -> Reason {
    Reason { code, text: text.into() }
}

/// The library is mapped and its constructor ran, but no call came.
fn reason_with_slot(
    process: Option<&Process>,
    program: Option<&Program>,
    facts: Option<&Facts>,
) -> Reason {
    if let Some(name) = facts.and_then(Facts::sanitizer) {
        return sanitizer(name);
    }
    if facts.is_some_and(Facts::defines_malloc) {
        return own_malloc();
    }
    let environment = program.and_then(|program| program.environment.as_ref());
    if let Some(Preload::Behind(first)) = environment.map(|environment| &environment.preload) {
        return reason("preload_outranked", format!("LD_PRELOAD was changed: {first} comes first"));
    }
    if let Some(Change::Killed(signal)) = process.and_then(|process| process.ended) {
        let name = sys::signal_name(signal);
        return reason("killed_early", format!("killed by {name} before its first call"));
    }
    reason("no_call", "library loaded, but no malloc call came")
}

/// The library never announced itself. The order is that of certainty: what the file rules out comes
/// before what the surroundings suggest.
fn reason_without_slot(
    process: &Process,
    program: &Program,
    last: bool,
    context: &Context,
) -> Reason {
    if let Some(reason) =
        program.facts.as_ref().and_then(|facts| reason_in_file(facts, context.library_machine))
    {
        return reason;
    }
    if program.hidden {
        return reason(
            "secure_execution",
            "runs with other rights (setuid or the like): the loader ignores LD_PRELOAD",
        );
    }
    if let Some(environment) = &program.environment {
        if environment.wire == Wire::Other {
            return reason(
                "other_run",
                "another 'weir run' took over, whose report tells whether it is on weir",
            );
        }
        match &environment.preload {
            Preload::Missing => {
                return reason(
                    "preload_cleared",
                    "its parent removed the library from LD_PRELOAD (a cleaned environment)",
                );
            }
            Preload::Behind(_) | Preload::First if environment.wire == Wire::Missing => {
                return reason(
                    "wire_cleared",
                    "its parent removed WEIR_WIRE: it may run on weir, unproven",
                );
            }
            _ => {}
        }
    }
    if let Some(name) = program.facts.as_deref().and_then(Facts::sanitizer) {
        return sanitizer(name);
    }
    if program.mapped == Some(true) {
        return if context.slots_refused > 0 {
            reason("slots_exhausted", "runs on weir, but all slots for the proof were taken")
        } else {
            reason(
                "no_handshake",
                "library mapped, but it could not open the wire file (other user or sandbox)",
            )
        };
    }
    if program.mapped == Some(false) {
        return reason(
            "not_loaded",
            "the loader did not map the library (other user, sandbox or chroot; see its message)",
        );
    }
    match process.ended {
        Some(Change::Killed(signal)) if last => reason(
            "killed_early",
            format!("killed by {} before the library was loaded", sys::signal_name(signal)),
        ),
        _ => reason("ended_early", "ended before it could be looked at, or the loader failed"),
    }
}

/// Why a library of `machine` cannot be preloaded into this program, if its file says so.
pub fn reason_in_file(facts: &Facts, machine: u16) -> Option<Reason> {
    let elf = match &facts.elf {
        Ok(elf) => elf,
        Err(elf::Error::Broken(_)) => {
            return Some(reason("damaged_file", "its ELF file is damaged"));
        }
        Err(_) => return None,
    };
    if elf.class == Class::Bits32 {
        return Some(reason("wrong_class", "32-bit program: the library is 64-bit"));
    }
    if elf.machine != machine || !elf.little_endian {
        let name = machine_name(elf.machine);
        return Some(reason("other_machine", format!("built for another machine ({name})")));
    }
    let Some(interpreter) = &elf.interpreter else {
        return Some(reason("static", "statically linked: there is no loader to preload anything"));
    };
    if let Some(what) = facts.secure {
        let text = format!("{what}: the loader ignores LD_PRELOAD in secure execution");
        return Some(reason("secure_execution", text));
    }
    interpreter.contains("ld-musl").then(|| {
        reason("musl", "linked with musl: the library is built for glibc and was not loaded")
    })
}

pub fn own_malloc() -> Reason {
    reason("own_malloc", "has a malloc of its own linked in, which comes first")
}

pub fn sanitizer(name: &str) -> Reason {
    reason("sanitizer", format!("built with {name}, whose own malloc comes first"))
}

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "x86".to_owned(),
        8 => "MIPS".to_owned(),
        20 | 21 => "PowerPC".to_owned(),
        22 => "S390".to_owned(),
        40 => "Arm 32-bit".to_owned(),
        elf::MACHINE_X86_64 => "x86-64".to_owned(),
        elf::MACHINE_AARCH64 => "aarch64".to_owned(),
        243 => "RISC-V".to_owned(),
        258 => "LoongArch".to_owned(),
        other => format!("ELF machine {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Environment;
    use crate::wire::{Figures, Pools};

    const CONTEXT: Context = Context { library_machine: elf::MACHINE_X86_64, slots_refused: 0 };

    fn slot(pid: i32, state: State, start_ns: u64, exe: &str) -> Slot {
        Slot {
            index: 0,
            state,
            pid,
            parent_pid: 1,
            threads_max: 1,
            start_ns,
            end_ns: 0,
            figures: Figures { alloc_calls: 1, ..Figures::default() },
            refreshed_ns: start_ns,
            pools: Pools::default(),
            pools_turn: 0,
            exe: exe.to_owned(),
        }
    }

    fn facts(change: impl FnOnce(&mut elf::Facts)) -> Option<Facts> {
        let mut elf = elf::Facts {
            class: Class::Bits64,
            little_endian: true,
            kind: elf::KIND_SHARED,
            machine: elf::MACHINE_X86_64,
            interpreter: Some("/lib64/ld-linux-x86-64.so.2".to_owned()),
            needed: Vec::new(),
            defined: Vec::new(),
        };
        change(&mut elf);
        Some(Facts { elf: Ok(elf), secure: None })
    }

    fn program(exe: &str) -> Program {
        Program::for_test(exe, facts(|_| {}))
    }

    fn copy(exe: &str) -> Program {
        Program { copy_of_parent: true, ..program(exe) }
    }

    /// What the rows say, one word each: the reason's code, or the verdict.
    fn said(rows: &[Row]) -> Vec<(i32, &str, &str)> {
        let word = |row: &Row| match &row.verdict {
            Verdict::Reached => "reached",
            Verdict::Inherited => "inherited",
            Verdict::NotReached(reason) => reason.code,
        };
        rows.iter().map(|row| (row.pid, row.exe.as_str(), word(row))).collect()
    }

    fn code(program: Program) -> &'static str {
        let rows = rows(&[Process::for_test(5, 1, vec![program])], Vec::new(), &CONTEXT);
        assert_eq!(rows.len(), 1);
        match &rows[0].verdict {
            Verdict::NotReached(reason) => reason.code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fork_and_exec_are_one_row() {
        let processes = [
            Process::for_test(2, 1, vec![program("/bin/sh")]),
            Process::for_test(3, 2, vec![copy("/bin/sh"), program("/bin/ls")]),
        ];
        let slots = vec![
            slot(2, State::Reached, 1, "/bin/sh"),
            slot(3, State::Forked, 2, "/bin/sh"),
            slot(3, State::Ended, 3, "/bin/ls"),
        ];
        let rows = rows(&processes, slots, &CONTEXT);
        assert_eq!(said(&rows), [(2, "/bin/sh", "reached"), (3, "/bin/ls", "reached")]);
    }

    #[test]
    fn a_copy_that_executes_a_static_program_is_one_row() {
        let fixed = Program::for_test("/bin/fixed", facts(|elf| elf.interpreter = None));
        let processes = [Process::for_test(3, 2, vec![copy("/bin/sh"), fixed])];
        let slots = vec![slot(3, State::Forked, 2, "/bin/sh")];
        assert_eq!(said(&rows(&processes, slots, &CONTEXT)), [(3, "/bin/fixed", "static")]);
    }

    #[test]
    fn a_copy_without_a_slot_has_its_parents_heap() {
        let processes = [
            Process::for_test(2, 1, vec![program("/bin/sh")]),
            Process::for_test(3, 2, vec![copy("/bin/sh")]),
        ];
        let slots = vec![slot(2, State::Reached, 1, "/bin/sh")];
        let rows = rows(&processes, slots, &CONTEXT);
        assert_eq!(said(&rows), [(2, "/bin/sh", "reached"), (3, "/bin/sh", "inherited")]);
    }

    #[test]
    fn a_copy_that_stays_one_has_a_row() {
        let slots = vec![slot(3, State::Forked, 2, "/bin/sh")];
        let processes = [Process::for_test(3, 2, vec![copy("/bin/sh")])];
        assert_eq!(said(&rows(&processes, slots, &CONTEXT)), [(3, "/bin/sh", "reached")]);
    }

    #[test]
    fn processes_that_nobody_saw_come_from_their_slots() {
        let slots = vec![
            slot(7, State::Forked, 1, "/no/sh"),
            slot(8, State::Loaded, 2, "/no/true"),
            slot(7, State::Ended, 3, "/no/ls"),
        ];
        let rows = rows(&[], slots, &CONTEXT);
        assert_eq!(said(&rows), [(7, "/no/ls", "reached"), (8, "/no/true", "no_call")]);
        assert!(rows[1].made_no_call());
    }

    #[test]
    fn a_damaged_slot_proves_nothing() {
        let processes = [Process::for_test(2, 1, vec![program("/bin/true")])];
        let slots = vec![slot(2, State::Damaged, 1, "/bin/true")];
        assert_eq!(said(&rows(&processes, slots, &CONTEXT)), [(2, "/bin/true", "slot_damaged")]);
    }

    #[test]
    fn an_end_without_calls_is_no_call() {
        let mut ended = slot(2, State::Ended, 1, "/bin/true");
        ended.figures = Figures::default();
        let processes = [Process::for_test(2, 1, vec![program("/bin/true")])];
        assert_eq!(said(&rows(&processes, vec![ended], &CONTEXT)), [(2, "/bin/true", "no_call")]);
    }

    #[test]
    fn the_file_gives_the_reason() {
        type Change = fn(&mut elf::Facts);
        let cases: [(Change, &str); 6] = [
            (|elf| elf.interpreter = None, "static"),
            (|elf| elf.class = Class::Bits32, "wrong_class"),
            (|elf| elf.machine = elf::MACHINE_AARCH64, "other_machine"),
            (|elf| elf.interpreter = Some("/lib/ld-musl-x86_64.so.1".into()), "musl"),
            (|elf| elf.needed = vec!["libasan.so.8".into()], "sanitizer"),
            (|elf| elf.defined = vec!["__tsan_init"], "sanitizer"),
        ];
        for (change, wanted) in cases {
            assert_eq!(code(Program::for_test("/x", facts(change))), wanted);
        }
        let secure = facts(|_| {}).map(|facts| Facts { secure: Some("setuid"), ..facts });
        assert_eq!(code(Program::for_test("/x", secure)), "secure_execution");
        let damaged = Facts { elf: Err(elf::Error::Broken("header")), secure: None };
        assert_eq!(code(Program::for_test("/x", Some(damaged))), "damaged_file");
    }

    #[test]
    fn the_surroundings_give_the_reason() {
        let with = |preload, wire| Program {
            environment: Some(Environment { preload, wire }),
            ..program("/x")
        };
        assert_eq!(code(with(Preload::Missing, Wire::Own)), "preload_cleared");
        assert_eq!(code(with(Preload::First, Wire::Missing)), "wire_cleared");
        assert_eq!(code(with(Preload::Missing, Wire::Other)), "other_run");
        assert_eq!(code(with(Preload::First, Wire::Own)), "ended_early");
        assert_eq!(code(Program { mapped: Some(true), ..program("/x") }), "no_handshake");
        assert_eq!(code(Program { mapped: Some(false), ..program("/x") }), "not_loaded");
        assert_eq!(code(Program { hidden: true, ..program("/x") }), "secure_execution");
        let mut killed = Process::for_test(5, 1, vec![program("/x")]);
        killed.ended = Some(Change::Killed(9));
        assert_eq!(said(&rows(&[killed], Vec::new(), &CONTEXT)), [(5, "/x", "killed_early")]);
        let full = Context { slots_refused: 1, ..CONTEXT };
        let mapped = Program { mapped: Some(true), ..program("/x") };
        let processes = [Process::for_test(5, 1, vec![mapped])];
        assert_eq!(said(&rows(&processes, Vec::new(), &full)), [(5, "/x", "slots_exhausted")]);
    }

    #[test]
    fn a_loaded_library_without_calls_has_a_reason() {
        let reason = |program: Program| {
            let exe = program.exe.clone();
            let processes = [Process::for_test(5, 1, vec![program])];
            let rows = rows(&processes, vec![slot(5, State::Loaded, 1, &exe)], &CONTEXT);
            assert_eq!(rows.len(), 1);
            said(&rows)[0].2.to_owned()
        };
        let defines = |name| Program::for_test("/x", facts(|elf| elf.defined = vec![name]));
        assert_eq!(reason(defines("malloc")), "own_malloc");
        assert_eq!(reason(defines("__asan_init")), "sanitizer");
        assert_eq!(reason(program("/x")), "no_call");
        let preload = Preload::Behind("/other.so".to_owned());
        let behind = Environment { preload, wire: Wire::Own };
        let behind = Program { environment: Some(behind), ..program("/x") };
        assert_eq!(reason(behind), "preload_outranked");
    }
}
