//! The comparison as text: two tables of at most 80 columns where names are short, what served each
//! program's calls, and the verdict. Pure. It does not know how anything was measured.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::measure::Measure;
use super::outcome::{Contender, Outcome, sign};
use super::stats::Estimate;
use std::fmt::Write;

const COMMAND_CHARS: usize = 68;

pub fn text(outcome: &Outcome) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "weir compare: {}", shortened(&outcome.command.join(" ")));
    let rounds =
        outcome.contenders.iter().map(|contender| contender.rounds.len()).max().unwrap_or(0);
    if rounds > 0 {
        let _ = writeln!(
            out,
            "medians of {rounds} interleaved rounds; in parentheses where the ratio to system\nlies with 95 % confidence{}",
            if outcome.interrupted { "; interrupted" } else { "" }
        );
        out.push('\n');
        out.push_str(&table(outcome, "time", &[Measure::Time, Measure::Cpu]));
        out.push('\n');
        out.push_str(&table(outcome, "memory", &[Measure::Peak, Measure::Final, Measure::Faults]));
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
    let text = text.replace(char::is_control, " ");
    if text.chars().count() <= COMMAND_CHARS {
        return text;
    }
    let start: String = text.chars().take(COMMAND_CHARS - 3).collect();
    format!("{start}...")
}

fn heading(measure: Measure) -> &'static str {
    match measure {
        Measure::Time => "elapsed",
        Measure::Cpu => "CPU",
        Measure::Peak => "peak",
        Measure::Final => "at the end",
        Measure::Faults => "page faults",
    }
}

/// A column is a value and, but for system's, its ratio. The first measure's ratio has its interval.
fn table(outcome: &Outcome, title: &str, measures: &[Measure]) -> String {
    let mut rows = vec![vec![title.to_owned()]];
    for measure in measures {
        rows[0].push(heading(*measure).to_owned());
        rows[0].push("vs system".to_owned());
    }
    if outcome.system().is_none() {
        rows[0].retain(|cell| cell != "vs system");
    }
    for contender in &outcome.contenders {
        let mut row = vec![contender.name().to_owned()];
        for (at, measure) in measures.iter().enumerate() {
            let estimate = contender.estimate(*measure);
            row.push(estimate.map_or("-".to_owned(), |e| measure.show(e.median)));
            if let Some(system) = outcome.system() {
                let ratio =
                    contender.ratio(system, *measure).filter(|_| contender.name() != system.name());
                row.push(ratio.map_or(String::new(), |ratio| change(&ratio, at == 0)));
            }
        }
        rows.push(row);
    }
    aligned(&rows)
}

/// `-8.1 % (-11 to -4.2)`.
fn change(ratio: &Estimate, with_interval: bool) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let mut text = format!("{} %", sign(percent(ratio.median)));
    if let Some(interval) = ratio.interval.filter(|_| with_interval) {
        let _ =
            write!(text, " ({} to {})", sign(percent(interval.low)), sign(percent(interval.high)));
    }
    text
}

/// The first column to the left, the others to the right; an interval is to the left of its column, so that
/// its numbers stand under each other.
fn aligned(rows: &[Vec<String>]) -> String {
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
        first.extend(allocator.flags.clone());
        let _ = writeln!(out, "{}: {}", contender.name(), first.join(", "));
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
        None => format!("in place: {}", contender.evidence),
    }
}
