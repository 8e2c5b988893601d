//! The outcome of a run, and its two forms: text for people and JSON for programs. Pure: it prints
//! nothing itself. It does not know how the figures were gathered. The JSON's schema is documented in
//! `tool/README.md`; fields are only ever added to it.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::pools;
use crate::sys::{self, Change};
use crate::timeline::{Sample, Timeline};
use crate::units::{bytes, count, duration, percent, plural, printable};
use crate::verdict::{Row, Verdict};
use crate::wire::{Figures, Header, Pool, Pools, Slot, State};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

const SCHEMA: &str = "weir-run/1";
/// More processes than this are grouped.
const ROWS_MAX: usize = 10;
/// More groups than this are cut; the JSON has them all.
const GROUPS_MAX: usize = 30;

pub struct Outcome {
    pub command: Vec<String>,
    pub root_pid: i32,
    pub end: Change,
    pub elapsed: Duration,
    pub user: Duration,
    pub system: Duration,
    /// The largest resident set of the root or of a child that it waited for, by the kernel.
    pub resident_max_bytes: u64,
    pub rows: Vec<Row>,
    /// Why the wire could not be read: then nothing is known of the processes.
    pub wire: Result<Header, String>,
    pub look_pause: Duration,
    pub timeline: Timeline,
    /// There may have been processes that nobody saw.
    pub may_have_missed: bool,
    /// Where the library stays because processes that use it are still running.
    pub kept: Option<String>,
}

impl Outcome {
    fn reached(&self) -> usize {
        self.rows.iter().filter(|row| !matches!(row.verdict, Verdict::NotReached(_))).count()
    }

    /// The last program of the root process that calls reached and that left figures.
    fn root(&self) -> Option<&Slot> {
        self.slots()
            .filter(|(pid, _)| *pid == self.root_pid)
            .map(|(_, slot)| slot)
            .max_by_key(|slot| slot.start_ns)
    }

    /// Adds what the command's process wrote when it ended, which no look can be late enough to see.
    /// `began_ns` is the clock's value when the command was started.
    pub fn end_timeline(&mut self, began_ns: u64) {
        // Also where no call of malloc came: the library was there, and wrote what is resident.
        let own = self.rows.iter().filter(|row| row.pid == self.root_pid);
        let ended = own.filter_map(|row| row.slot.as_ref()).filter(|slot| slot.end_ns > 0);
        let Some(slot) = ended.max_by_key(|slot| slot.start_ns) else { return };
        let sample = Sample {
            seconds: Duration::from_nanos(slot.end_ns.saturating_sub(began_ns)).as_secs_f64(),
            resident_bytes: slot.figures.resident_bytes,
            live_bytes: slot.figures.live_bytes,
            processes: 1,
        };
        self.timeline.end(sample);
    }

    fn total(&self) -> Figures {
        let mut total = Figures::default();
        self.slots().for_each(|(_, slot)| total.add(&slot.figures));
        total
    }

    /// Programs on weir that ended before they wrote any figures.
    fn without_figures(&self) -> usize {
        let silent = |row: &&Row| row.slot.as_ref().is_some_and(|slot| !slot.has_figures());
        self.rows.iter().filter(|row| row.verdict == Verdict::Reached).filter(silent).count()
    }

    /// The slots with figures of programs that calls reached, with the pid as the tool sees it.
    fn slots(&self) -> impl Iterator<Item = (i32, &Slot)> {
        self.rows
            .iter()
            .filter(|row| row.verdict == Verdict::Reached)
            .filter_map(|row| Some((row.pid, row.slot.as_ref()?)))
            .filter(|(_, slot)| slot.has_figures())
    }
}

/// The part of resident memory that is not live blocks, in percent. None if nothing is resident.
fn fragmentation(resident: u64, live: u64) -> Option<f64> {
    (resident > 0).then(|| 100.0 * resident.saturating_sub(live) as f64 / resident as f64)
}

// ---- text ------------------------------------------------------------------------------------

/// Writes one line with a label.
pub type Line<'a> = &'a dyn Fn(&mut String, &str, String);

fn labelled(out: &mut String, label: &str, value: String) {
    let _ = writeln!(out, "  {label:<15} {value}");
}

pub fn text(outcome: &Outcome) -> String {
    let mut out = String::new();
    let line = labelled;
    let _ = writeln!(out, "weir: {}", shown_command(&outcome.command));
    line(&mut out, "result", end_text(outcome.end));
    line(
        &mut out,
        "time",
        format!(
            "{} elapsed, {} user, {} system",
            duration(outcome.elapsed),
            duration(outcome.user),
            duration(outcome.system)
        ),
    );
    figures_text(&mut out, outcome, &line);
    let sets: Vec<(i32, &Pools)> = outcome.slots().map(|(pid, slot)| (pid, &slot.pools)).collect();
    pools::text(&mut out, &sets, &line);
    match &outcome.wire {
        Err(error) => line(&mut out, "processes", format!("unknown: {error}")),
        Ok(header) => {
            line(&mut out, "processes", summary(outcome));
            table(&mut out, outcome);
            if header.slots_refused > 0 {
                let refused = plural(header.slots_refused.into(), "process", "processes");
                note(
                    &mut out,
                    &format!("{refused} found no free slot: on weir, but not in the figures"),
                );
            }
            let silent = outcome.without_figures();
            if silent > 0 {
                let silent = plural(silent as u64, "program", "programs");
                note(
                    &mut out,
                    &format!(
                        "{silent} on weir left no figures: killed, or left by _exit or exec, within milliseconds"
                    ),
                );
            }
            if outcome.may_have_missed {
                note(
                    &mut out,
                    &format!(
                        "processes are looked for every {} or sooner: one that lived shorter without loading weir may be missing",
                        duration(outcome.look_pause)
                    ),
                );
            }
        }
    }
    if let Some(kept) = &outcome.kept {
        note(&mut out, &format!("processes are still running: remove {kept} when they have ended"));
    }
    out
}

/// How many programs ran, and how many of them on weir.
fn summary(outcome: &Outcome) -> String {
    let programs = outcome.rows.len();
    let pids: BTreeSet<i32> = outcome.rows.iter().map(|row| row.pid).collect();
    let silent = outcome.rows.iter().filter(|row| row.made_no_call()).count();
    let reached = outcome.reached();
    let missed = programs - reached - silent;
    let mut parts = Vec::new();
    for (number, what) in [(reached, "on weir"), (missed, "NOT on weir"), (silent, "made no call")]
    {
        if number == programs {
            parts.push(if number == 1 { what.to_owned() } else { format!("all {what}") });
        } else if number > 0 {
            parts.push(format!("{} {what}", count(number as u64)));
        }
    }
    let total = plural(programs as u64, "program", "programs");
    let total = if pids.len() == programs {
        total
    } else {
        format!("{total} in {}", plural(pids.len() as u64, "process", "processes"))
    };
    format!("{total}: {}", parts.join(", "))
}

fn note(out: &mut String, text: &str) {
    let _ = writeln!(out, "  note: {text}");
}

fn figures_text(out: &mut String, outcome: &Outcome, line: Line) {
    let Some(root) = outcome.root() else {
        let peak = bytes(outcome.resident_max_bytes);
        line(out, "memory", format!("{peak} resident at the peak, by the kernel's count"));
        if outcome.slots().next().is_some() {
            calls_text(out, &outcome.total(), outcome.timeline.last(), line);
        }
        return;
    };
    memory_text(out, root, line);
    let several = outcome.slots().count();
    if several > 1 {
        let total = outcome.total();
        line(
            out,
            "all processes",
            format!(
                "{} resident and {} live, as the sum of {several} peaks",
                bytes(total.resident_peak_bytes),
                bytes(total.live_peak_bytes)
            ),
        );
    }
    calls_text(out, &outcome.total(), outcome.timeline.last(), line);
}

/// What one process has, and had at most.
fn memory_text(out: &mut String, slot: &Slot, line: Line) {
    let f = &slot.figures;
    let rest = if slot.state == State::Ended { "at the end" } else { "when last seen" };
    line(
        out,
        "resident",
        format!("{} at the peak, {} {rest}", bytes(f.resident_peak_bytes), bytes(f.resident_bytes)),
    );
    line(
        out,
        "live",
        format!("{} at the peak, {} {rest}", bytes(f.live_peak_bytes), bytes(f.live_bytes)),
    );
    let shares = [
        (fragmentation(f.resident_peak_bytes, f.live_peak_bytes), "at the peak"),
        (fragmentation(f.resident_bytes, f.live_bytes), rest),
    ];
    let shares: Vec<String> = shares
        .into_iter()
        .filter_map(|(share, when)| Some(format!("{} {when}", percent(share?))))
        .collect();
    if !shares.is_empty() {
        line(out, "fragmentation", format!("{} (resident but not live)", shares.join(", ")));
    }
    line(
        out,
        "held by weir",
        format!(
            "{} cached, {} in free spans, {} in free pages of slabs, {} bookkeeping",
            bytes(f.cached_bytes),
            bytes(f.dirty_bytes),
            bytes(f.hole_bytes),
            bytes(f.metadata_bytes)
        ),
    );
}

fn calls_text(out: &mut String, total: &Figures, last: Option<&Sample>, line: Line) {
    line(
        out,
        "calls",
        format!(
            "{} allocated, {} freed, {} of them by another thread",
            count(total.alloc_calls),
            count(total.free_calls),
            count(total.remote_frees)
        ),
    );
    line(out, "system calls", format!("{} by the allocator", count(total.sys_calls)));
    released_text(out, total, last, line);
    if total.misuse_reports > 0 {
        let reports = plural(total.misuse_reports, "report", "reports");
        line(out, "MISUSE", format!("{reports}: the program broke the rules of malloc, see above"));
    }
}

/// What became of memory that was free, and what is resident after it.
fn released_text(out: &mut String, total: &Figures, last: Option<&Sample>, line: Line) {
    let calls = plural(total.release_calls, "system call", "system calls");
    let mut given = format!("{} in {calls}", bytes(total.purged_bytes));
    if total.purged_bytes > 0 {
        let _ = write!(given, ", {} of it used again", bytes(total.refaulted_bytes));
    }
    line(out, "given back", given);
    if let Some(last) = last {
        let seconds = duration(Duration::from_secs_f64(last.seconds));
        let (resident, live) = (bytes(last.resident_bytes), bytes(last.live_bytes));
        line(
            out,
            "last sample",
            format!("{resident} resident against {live} live, after {seconds}"),
        );
    }
}

fn end_text(end: Change) -> String {
    match end {
        Change::Killed(signal) => format!("killed by {}", sys::signal_name(signal)),
        Change::Exited(code) | Change::Stopped(code) => format!("exit status {code}"),
    }
}

fn table(out: &mut String, outcome: &Outcome) {
    // One process on weir has been described in full already.
    if outcome.rows.len() == 1 && outcome.reached() == 1 && outcome.rows[0].note.is_none() {
        return;
    }
    if outcome.rows.len() <= ROWS_MAX {
        for row in &outcome.rows {
            let _ = writeln!(out, "    {:>8}  {}", row.pid, row_text(row, true));
        }
        return;
    }
    let mut groups: BTreeMap<(bool, String), u64> = BTreeMap::new();
    for row in &outcome.rows {
        let reached = !matches!(row.verdict, Verdict::NotReached(_));
        *groups.entry((reached, row_text(row, false))).or_default() += 1;
    }
    // Those not reached first, then the largest groups.
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|((reached, _), times)| (*reached, std::cmp::Reverse(*times)));
    for ((_, text), times) in groups.iter().take(GROUPS_MAX) {
        let _ = writeln!(out, "    {:>8}  {text}", format!("{} x", count(*times)));
    }
    if let Some(cut) = groups.get(GROUPS_MAX..).filter(|cut| !cut.is_empty()) {
        let rows = cut.iter().map(|(_, times)| times).sum();
        let _ = writeln!(out, "    and {} more; --json FILE has them all", count(rows));
    }
}

fn row_text(row: &Row, figures: bool) -> String {
    let exe = printable(&row.exe);
    let mut text = match &row.verdict {
        Verdict::Reached => format!("on weir  {exe}"),
        Verdict::Inherited => format!("on weir  {exe}: shares its parent's heap"),
        Verdict::NotReached(reason) if row.made_no_call() => {
            format!("no call  {exe}: {}", reason.text)
        }
        Verdict::NotReached(reason) => format!("NOT      {exe}: {}", reason.text),
    };
    if let (true, Verdict::Reached, Some(slot)) = (figures, &row.verdict, &row.slot) {
        let f = &slot.figures;
        if slot.has_figures() {
            let calls = plural(f.alloc_calls, "allocation", "allocations");
            let _ =
                write!(text, ": {calls}, {} resident at the peak", bytes(f.resident_peak_bytes));
        } else {
            text.push_str(": no figures");
        }
    }
    if row.running {
        text.push_str("; still running");
    }
    if let Some(note) = &row.note {
        let _ = write!(text, "; {note}");
    }
    text
}

/// The command, cut to a line.
fn shown_command(command: &[String]) -> String {
    const WIDTH: usize = 90;
    let whole = printable(&command.join(" "));
    if whole.chars().count() <= WIDTH {
        return whole;
    }
    let cut: String = whole.chars().take(WIDTH - 3).collect();
    format!("{cut}...")
}

// ---- JSON ------------------------------------------------------------------------------------

#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    tool_version: &'static str,
    library_version: &'static str,
    command: &'a [String],
    root_pid: i32,
    exit: JsonExit,
    elapsed_seconds: f64,
    user_seconds: f64,
    system_seconds: f64,
    resident_max_bytes: u64,
    root: Option<JsonSlot<'a>>,
    total: Option<JsonTotal>,
    memory: JsonMemory<'a>,
    processes: Vec<JsonProcess<'a>>,
    handshake: JsonHandshake<'a>,
}

#[derive(Serialize)]
struct JsonExit {
    code: Option<i32>,
    signal: Option<i32>,
    signal_name: Option<String>,
}

#[derive(Serialize)]
struct JsonSlot<'a> {
    is_final: bool,
    threads_max: u32,
    start_ns: u64,
    end_ns: u64,
    fragmentation_peak_percent: Option<f64>,
    fragmentation_percent: Option<f64>,
    #[serde(flatten)]
    figures: &'a Figures,
    pools_made: u64,
    pools_left_out: u64,
    pools: &'a [Pool],
}

#[derive(Serialize)]
struct JsonTotal {
    processes: usize,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
struct JsonMemory<'a> {
    interval_ms: f64,
    samples: usize,
    peak: Option<&'a Sample>,
    last: Option<&'a Sample>,
}

#[derive(Serialize)]
struct JsonProcess<'a> {
    pid: i32,
    parent_pid: i32,
    exe: &'a str,
    verdict: &'static str,
    reason: Option<&'static str>,
    reason_text: Option<&'a str>,
    note: Option<&'a str>,
    running: bool,
    figures: Option<JsonSlot<'a>>,
}

#[derive(Serialize)]
struct JsonHandshake<'a> {
    error: Option<&'a str>,
    slots: u32,
    slots_claimed: u32,
    slots_refused: u32,
    reached: usize,
    not_reached: usize,
    look_pause_ms: f64,
    may_have_missed: bool,
}

pub fn json(outcome: &Outcome) -> serde_json::Result<String> {
    let (code, signal) = match outcome.end {
        Change::Killed(signal) => (None, Some(signal)),
        Change::Exited(code) | Change::Stopped(code) => (Some(code), None),
    };
    let several = outcome.slots().count();
    let header = outcome.wire.as_ref().ok();
    let json = Json {
        schema: SCHEMA,
        tool_version: env!("CARGO_PKG_VERSION"),
        library_version: crate::library::LIBRARY_VERSION,
        command: &outcome.command,
        root_pid: outcome.root_pid,
        exit: JsonExit { code, signal, signal_name: signal.map(sys::signal_name) },
        elapsed_seconds: outcome.elapsed.as_secs_f64(),
        user_seconds: outcome.user.as_secs_f64(),
        system_seconds: outcome.system.as_secs_f64(),
        resident_max_bytes: outcome.resident_max_bytes,
        root: outcome.root().map(json_slot),
        total: (several > 0).then(|| JsonTotal { processes: several, figures: outcome.total() }),
        memory: JsonMemory {
            interval_ms: outcome.timeline.interval().as_secs_f64() * 1e3,
            samples: outcome.timeline.samples().len(),
            peak: outcome.timeline.peak(),
            last: outcome.timeline.last(),
        },
        processes: outcome.rows.iter().map(json_process).collect(),
        handshake: JsonHandshake {
            error: outcome.wire.as_ref().err().map(String::as_str),
            slots: header.map_or(0, |header| header.slot_count),
            slots_claimed: header.map_or(0, |header| header.slots_claimed),
            slots_refused: header.map_or(0, |header| header.slots_refused),
            reached: outcome.reached(),
            not_reached: outcome.rows.len() - outcome.reached(),
            look_pause_ms: outcome.look_pause.as_secs_f64() * 1e3,
            may_have_missed: outcome.may_have_missed,
        },
    };
    let mut text = serde_json::to_string_pretty(&json)?;
    text.push('\n');
    Ok(text)
}

fn json_process(row: &Row) -> JsonProcess<'_> {
    let (verdict, reason) = match &row.verdict {
        Verdict::Reached => ("reached", None),
        Verdict::Inherited => ("inherited", None),
        Verdict::NotReached(reason) => ("not_reached", Some(reason)),
    };
    JsonProcess {
        pid: row.pid,
        parent_pid: row.parent_pid,
        exe: &row.exe,
        verdict,
        reason: reason.map(|reason| reason.code),
        reason_text: reason.map(|reason| reason.text.as_str()),
        note: row.note.as_deref(),
        running: row.running,
        figures: row.slot.as_ref().filter(|slot| slot.has_figures()).map(json_slot),
    }
}

fn json_slot(slot: &Slot) -> JsonSlot<'_> {
    let f = &slot.figures;
    JsonSlot {
        is_final: slot.state == State::Ended,
        threads_max: slot.threads_max,
        start_ns: slot.start_ns,
        end_ns: slot.end_ns,
        fragmentation_peak_percent: fragmentation(f.resident_peak_bytes, f.live_peak_bytes),
        fragmentation_percent: fragmentation(f.resident_bytes, f.live_bytes),
        figures: f,
        pools_made: slot.pools.made,
        pools_left_out: slot.pools.left_out,
        pools: &slot.pools.rows,
    }
}

// ---- a process that is running ---------------------------------------------------------------

const LIVE_SCHEMA: &str = "weir-stats/1";

/// What a running process wrote last.
pub struct Live {
    pub pid: i32,
    pub slot: Slot,
    /// CLOCK_MONOTONIC when it was read.
    pub now_ns: u64,
}

impl Live {
    /// How long ago it wrote its figures.
    fn age(&self) -> Duration {
        Duration::from_nanos(self.now_ns.saturating_sub(self.slot.refreshed_ns))
    }

    fn running(&self) -> Duration {
        Duration::from_nanos(self.now_ns.saturating_sub(self.slot.start_ns))
    }
}

pub fn live_text(live: &Live) -> String {
    let mut out = String::new();
    let slot = &live.slot;
    let _ = writeln!(out, "weir: process {}, {}", live.pid, printable(&slot.exe));
    let (age, running) = (duration(live.age()), duration(live.running()));
    labelled(&mut out, "figures", format!("of {age} ago, {running} after its start"));
    memory_text(&mut out, slot, &labelled);
    calls_text(&mut out, &slot.figures, None, &labelled);
    pools::text(&mut out, &[(live.pid, &slot.pools)], &labelled);
    out
}

#[derive(Serialize)]
struct JsonLive<'a> {
    schema: &'static str,
    tool_version: &'static str,
    pid: i32,
    exe: &'a str,
    age_seconds: f64,
    running_seconds: f64,
    #[serde(flatten)]
    figures: JsonSlot<'a>,
}

pub fn live_json(live: &Live) -> serde_json::Result<String> {
    let json = JsonLive {
        schema: LIVE_SCHEMA,
        tool_version: env!("CARGO_PKG_VERSION"),
        pid: live.pid,
        exe: &live.slot.exe,
        age_seconds: live.age().as_secs_f64(),
        running_seconds: live.running().as_secs_f64(),
        figures: json_slot(&live.slot),
    };
    let mut text = serde_json::to_string_pretty(&json)?;
    text.push('\n');
    Ok(text)
}
