//! A result as text: a table for each workload as soon as it has run, and at the end where each allocator stands, where
//! weir loses and what has changed. Pure. It does not know how anything was measured.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::against::Against;
use super::item::Item;
use super::result::{Document, Entry, Missing, Run};
use super::summary::{self, Summary, Worst};
use crate::compare::allocators::WEIR;
use crate::compare::measure::{MEASURES, Measure};
use crate::compare::outcome::signed;
use crate::compare::text::aligned;
use std::fmt::Write;

/// Of a list of losses or changes, so many are shown; the JSON and the page have all.
const SHOWN_MAX: usize = 15;
/// The measures in which allocators are ranked.
pub const RANKED: [Measure; 4] = [Measure::Time, Measure::Cpu, Measure::Peak, Measure::Final];

pub fn listing(items: &[Item], missing: &[Missing]) -> String {
    let mut rows = vec![["name", "threads", "sizes", "shape"].map(str::to_owned).to_vec()];
    for item in items {
        let threads = item.threads.map_or_else(|| "-".to_owned(), |threads| threads.to_string());
        let sizes = item.sizes.clone().unwrap_or_else(|| "-".to_owned());
        rows.push(vec![item.name.clone(), threads, sizes, item.shape.clone()]);
    }
    let mut out = left(&rows);
    for program in missing {
        let _ = writeln!(out, "{}: not installed: it needs {}", program.name, program.needs);
    }
    out
}

/// All columns to the left.
fn left(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.len()).max().unwrap_or(0)
    };
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(line, "{cell:<width$}  ", width = width(column));
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// `1.08`, or a dash.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn shown(run: &Run, measure: Measure) -> String {
    run.median(measure).map_or_else(|| "-".to_owned(), |value| measure.show(value))
}

/// The half width of the interval, in percent of the median.
pub fn spread(run: &Run, measure: Measure) -> Option<f64> {
    let estimate = run.estimate(measure)?;
    let interval = estimate.interval.filter(|_| estimate.median > 0.0)?;
    Some((interval.high - interval.low) / estimate.median * 50.0)
}

pub fn nanoseconds(entry: &Entry, run: &Run) -> Option<f64> {
    Some(run.median(Measure::Time)? * 1e9 / entry.operations.filter(|count| *count > 0)? as f64)
}

pub fn workload(entry: &Entry) -> String {
    let mut out = format!("{}: {}\n", entry.name, entry.shape);
    let counted = entry.results.iter().any(|run| run.instructions.is_some());
    let mut heads =
        vec!["", "time", "+-", "to best", "ns each", "CPU", "peak", "to best", "at end", "to best"];
    if counted {
        heads.push("instr. each");
    }
    let mut rows = vec![heads.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for run in entry.results.iter().filter(|run| run.counts()) {
        let to_best = |measure| times(summary::ratio(entry, run, measure));
        let mut row = vec![
            run.allocator.clone(),
            shown(run, Measure::Time),
            spread(run, Measure::Time)
                .map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1} %")),
            to_best(Measure::Time),
            nanoseconds(entry, run).map_or_else(|| "-".to_owned(), |ns| format!("{ns:.1}")),
            shown(run, Measure::Cpu),
            shown(run, Measure::Peak),
            to_best(Measure::Peak),
            shown(run, Measure::Final),
            to_best(Measure::Final),
        ];
        if counted {
            row.push(
                run.instructions_each.map_or_else(|| "-".to_owned(), |each| format!("{each:.1}")),
            );
        }
        rows.push(row);
    }
    if rows.len() > 1 {
        out.push_str(&aligned(&rows));
    }
    for run in &entry.results {
        if let Some(failure) = &run.failure {
            let _ = writeln!(out, "{}: LEFT OUT: {failure}", run.allocator);
        }
        if let Some(library) = &run.brought {
            let _ = writeln!(out, "{}: LEFT OUT: {}", run.allocator, of_its_own(library));
        }
        for note in &run.notes {
            let _ = writeln!(out, "{}: note: {note}", run.allocator);
        }
    }
    for note in &entry.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out.push('\n');
    out
}

pub fn of_its_own(library: &str) -> String {
    format!("the program brings an allocator of its own, {library}")
}

/// What follows the tables of the workloads.
pub fn closing(document: &Document) -> String {
    let mut out = String::new();
    for program in &document.not_installed {
        let _ = writeln!(out, "{}: not installed: it needs {}", program.name, program.needs);
    }
    if document.interrupted {
        out.push_str("interrupted\n");
    }
    out.push_str(&means(&document.summary));
    out.push_str(&losses(document));
    if let Some(against) = &document.against {
        out.push_str(&changes(against));
    }
    for note in &document.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn worst(worst: Option<&Worst>) -> String {
    worst.map_or_else(|| "-".to_owned(), |worst| format!("{:.2} {}", worst.ratio, worst.workload))
}

fn means(summary: &[Summary]) -> String {
    let heads = [
        "to the best peer",
        "of",
        "time",
        "CPU",
        "peak",
        "20 MiB+",
        "at end",
        "worst time",
        "worst peak",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for one in summary {
        rows.push(vec![
            one.allocator.clone(),
            one.workloads.to_string(),
            times(one.time),
            times(one.cpu),
            times(one.peak),
            times(one.peak_large),
            times(one.last),
            worst(one.worst_time.as_ref()),
            worst(one.worst_peak.as_ref()),
        ]);
    }
    format!(
        "geometric means of the ratios to the best peer, weir not among the peers\n{}\n",
        aligned(&rows)
    )
}

fn losses(document: &Document) -> String {
    let mut out = String::new();
    for measure in RANKED {
        let losses = summary::losses(&document.workloads, measure);
        if losses.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "weir is behind the best peer in {}, {} workloads:",
            title(measure),
            losses.len()
        );
        for (entry, ratio) in losses.iter().take(SHOWN_MAX) {
            let _ = writeln!(out, "  {ratio:.2}  {}", entry.name);
        }
        out.push('\n');
    }
    out
}

pub fn title(measure: Measure) -> &'static str {
    match measure {
        Measure::Time => "time",
        Measure::Cpu => "CPU time",
        Measure::Peak => "peak memory",
        Measure::Final => "memory at the end",
        Measure::Faults => "page faults",
    }
}

fn changes(against: &Against) -> String {
    let mut out = String::new();
    for measure in MEASURES {
        let changes = against
            .changes
            .iter()
            .filter(|change| change.allocator == WEIR && change.measure == measure.name());
        let (worse, mut better): (Vec<_>, Vec<_>) = changes.partition(|change| change.ratio > 1.0);
        better.reverse(); // the largest change first, too
        for (word, changes) in [("worse", worse), ("better", better)] {
            if changes.is_empty() {
                continue;
            }
            let count = changes.len();
            let _ = writeln!(out, "weir is {word} than before in {} ({count}):", title(measure));
            for change in changes.iter().take(SHOWN_MAX) {
                let percent = |ratio: f64| signed((ratio - 1.0) * 100.0);
                let (low, high) = change.interval;
                let change = (percent(change.ratio), &change.workload);
                let _ = writeln!(
                    out,
                    "  {}  {} ({} to {})",
                    change.0,
                    change.1,
                    percent(low),
                    percent(high)
                );
            }
        }
    }
    if out.is_empty() {
        out.push_str("weir: no change since the earlier result beyond the intervals\n");
    }
    for line in verdicts(against) {
        let _ = writeln!(out, "{line}");
    }
    out.push('\n');
    out
}

/// What a comparison with an earlier result says beside the changes, line by line.
pub fn verdicts(against: &Against) -> Vec<String> {
    let mut lines = Vec::new();
    if !against.not_in_both.is_empty() {
        lines.push(format!("not in both results: {}", against.not_in_both.join(", ")));
    }
    for judged in &against.conditions {
        let answer = match (judged.met.as_slice(), judged.uncertain.as_slice()) {
            _ if judged.judged == 0 => "judged in no workload".to_owned(),
            ([], []) => "not met".to_owned(),
            ([], some) => format!("uncertain in {}", some.join(", ")),
            (some, _) => format!("met in {}", some.join(", ")),
        };
        lines.push(format!("--fail-if '{}': {answer}", judged.condition));
        if !judged.not_judged.is_empty() {
            let names = judged.not_judged.join(", ");
            lines.push(format!("--fail-if '{}': not judged in {names}", judged.condition));
        }
        if !judged.lost.is_empty() {
            let names = judged.lost.join(", ");
            let text = "judged before and not now";
            lines.push(format!("--fail-if '{}': {text}: {names}", judged.condition));
        }
    }
    lines.extend(against.notes.iter().map(|note| format!("note: {note}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::against::Judged;
    use super::super::summary::summary;
    use super::super::summary::tests::distinct;
    use super::*;

    #[test]
    fn verdicts_are_told() {
        let judged =
            |met: &[&str], uncertain: &[&str], judged, not_judged: &[&str], lost: &[&str]| {
                let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
                Judged {
                    condition: "time>+3%".to_owned(),
                    met: names(met),
                    uncertain: names(uncertain),
                    not_judged: names(not_judged),
                    lost: names(lost),
                    judged,
                }
            };
        let against = Against {
            changes: Vec::new(),
            conditions: vec![
                judged(&["a"], &["b"], 2, &[], &[]),
                judged(&[], &["b"], 2, &["c"], &["e"]),
                judged(&[], &[], 1, &[], &[]),
                judged(&[], &[], 0, &[], &[]),
            ],
            not_in_both: vec!["d".to_owned()],
            notes: vec!["of another machine".to_owned()],
        };
        let lines = verdicts(&against);
        let wanted = [
            "not in both results: d",
            "--fail-if 'time>+3%': met in a",
            "--fail-if 'time>+3%': uncertain in b",
            "--fail-if 'time>+3%': not judged in c",
            "--fail-if 'time>+3%': judged before and not now: e",
            "--fail-if 'time>+3%': not met",
            "--fail-if 'time>+3%': judged in no workload",
            "note: of another machine",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn every_figure_stands_in_its_column() {
        let entry = distinct();
        assert_eq!(
            workload(&entry),
            "shape/one: a shape\n          time     +-  to best  ns each     CPU      peak  to best    at end  to best\nsystem  2.0 ms  2.0 %     1.00   2000.0  3.0 ms  38.1 MiB     1.00  19.1 MiB     2.00\nweir    3.0 ms  2.0 %     1.50   3000.0  9.0 ms  28.6 MiB     0.75  4.77 MiB     0.50\nother   4.0 ms  2.0 %     2.00   4000.0  6.0 ms  47.7 MiB     1.25  9.54 MiB     1.00\n\n"
        );
        assert_eq!(
            means(&summary(&[entry])),
            "geometric means of the ratios to the best peer, weir not among the peers\nto the best peer  of  time   CPU  peak  20 MiB+  at end      worst time      worst peak\nsystem             1  1.00  1.00  1.00     1.00    2.00  1.00 shape/one  1.00 shape/one\nweir               1  1.50  3.00  0.75     0.75    0.50  1.50 shape/one  0.75 shape/one\nother              1  2.00  2.00  1.25     1.25    1.00  2.00 shape/one  1.25 shape/one\n\n"
        );
    }
}
