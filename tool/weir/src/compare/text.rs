//! The comparison as text: two tables of at most 80 columns where names are short, what served each
//! program's calls, and the verdict. Pure. It does not know how anything was measured.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::measure::Measure;
use super::outcome::{Contender, Outcome, sign};
use super::stats::{self, Estimate};
use crate::units::{self, quoted};
use std::fmt::Write;

const COMMAND_CHARS: usize = 68;

pub fn text(outcome: &Outcome) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "weir compare: {}", shortened(&quoted(&outcome.command)));
    let rounds =
        outcome.contenders.iter().map(|contender| contender.rounds.len()).max().unwrap_or(0);
    if rounds > 0 {
        let intervals = match outcome.system().filter(|system| system.counts()) {
            Some(_) if rounds < stats::VALUES_MIN => {
                format!("; {} are needed for confidence intervals", stats::VALUES_MIN)
            }
            Some(_) => "; (95 % interval of the ratio to system)".to_owned(),
            None => String::new(),
        };
        let rounds = units::plural(rounds as u64, "round", "interleaved rounds");
        let _ = writeln!(out, "medians of {rounds}{intervals}");
        if outcome.interrupted {
            out.push_str("interrupted\n");
        }
        out.push('\n');
        out.push_str(&table(outcome, "time", &TIMES));
        out.push('\n');
        out.push_str(&table(outcome, "memory", &MEMORY));
        out.push('\n');
    }
    out.push_str(&served(outcome));
    for note in &outcome.notes {
        let _ = writeln!(out, "note: {note}");
    }
    let _ = writeln!(out, "\n{}", outcome.verdict());
    out
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= COMMAND_CHARS {
        return text.to_owned();
    }
    let start: String = text.chars().take(COMMAND_CHARS - 3).collect();
    format!("{start}...")
}

fn heading(measure: Measure) -> &'static str {
    match measure {
        Measure::Time => "elapsed",
        Measure::Cpu => "CPU",
        Measure::Peak => "peak",
        Measure::Final => "at end",
        Measure::Faults => "faults",
    }
}

/// How much of a ratio a column shows.
#[derive(Clone, Copy, PartialEq)]
enum Ratio {
    WithInterval,
    Alone,
    None,
}

const TIMES: [(Measure, Ratio); 2] =
    [(Measure::Time, Ratio::WithInterval), (Measure::Cpu, Ratio::WithInterval)];
const MEMORY: [(Measure, Ratio); 3] = [
    (Measure::Peak, Ratio::WithInterval),
    (Measure::Final, Ratio::Alone),
    (Measure::Faults, Ratio::None),
];

fn table(outcome: &Outcome, title: &str, columns: &[(Measure, Ratio)]) -> String {
    let system = outcome.system().filter(|system| system.counts());
    let mut rows = vec![vec![title.to_owned()]];
    for (measure, ratio) in columns {
        rows[0].push(heading(*measure).to_owned());
        if system.is_some() && *ratio != Ratio::None {
            rows[0].push("vs system".to_owned());
        }
    }
    for contender in &outcome.contenders {
        let mut row = vec![contender.name().to_owned()];
        for (measure, shown) in columns {
            let estimate = contender.estimate(*measure);
            row.push(estimate.map_or("-".to_owned(), |e| measure.show(e.median)));
            if let Some(system) = system.filter(|_| *shown != Ratio::None) {
                let ratio = contender.ratio(system, *measure);
                let ratio = ratio.filter(|_| contender.name() != system.name());
                row.push(ratio.map_or(String::new(), |ratio| change(&ratio, *shown)));
            }
        }
        rows.push(row);
    }
    aligned(&rows)
}

/// `-8.1 % (-11 to -4.2)`.
fn change(ratio: &Estimate, shown: Ratio) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let mut text = format!("{} %", sign(percent(ratio.median)));
    if let Some(interval) = ratio.interval.filter(|_| shown == Ratio::WithInterval) {
        let _ =
            write!(text, " ({} to {})", sign(percent(interval.low)), sign(percent(interval.high)));
    }
    text
}

/// The first column to the left, the others to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate().take(columns) {
            let width = width(column);
            let _ = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Per allocator: version, compiler, path, and where calls went.
fn served(outcome: &Outcome) -> String {
    let mut out = String::new();
    for contender in &outcome.contenders {
        let allocator = &contender.allocator;
        let mut first = Vec::new();
        first.extend(allocator.version.clone());
        first.extend(allocator.origin.clone());
        first.extend(allocator.compiler.clone());
        let _ = writeln!(out, "{}: {}", contender.name(), first.join(", "));
        if let Some(flags) = &allocator.flags {
            let _ = writeln!(out, "  flags: {flags}");
        }
        if let Some(path) = allocator.path.as_ref().filter(|_| allocator.name != "weir") {
            let _ = writeln!(out, "  {}", path.display());
        }
        for (name, value) in &allocator.environment {
            let _ = writeln!(out, "  {name}={value}");
        }
        let _ = writeln!(out, "  {}", state(contender));
        for note in allocator.note.iter().chain(&contender.notes) {
            let _ = writeln!(out, "  note: {note}");
        }
    }
    out
}

fn state(contender: &Contender) -> String {
    match &contender.failure {
        Some(failure) => format!("LEFT OUT: {failure}"),
        None if !contender.proven => contender.evidence.clone(),
        None => format!("in place: {}", contender.evidence),
    }
}
