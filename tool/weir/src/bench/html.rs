//! A result as one page that needs nothing else: where each allocator stands, where weir loses, every workload,
//! and how it was measured. Pure: gives HTML. It does not know how a plot is drawn.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::plot;
use super::result::{Document, Entry};
use super::summary::{self, Summary, Worst};
use super::text::{RANKED, nanoseconds, of_its_own, spread, times, title, verdicts};
use crate::compare::allocators::WEIR;
use crate::compare::machine::Machine;
use crate::compare::measure::Measure;
use crate::units;
use anyhow::Result;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#111;background:#fff}\
table{border-collapse:collapse;margin:.6em 0 1.6em;font-variant-numeric:tabular-nums}\
th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}tr.weir{font-weight:bold}\
td.good{background:#d7efdf}td.bad{background:#fbdfce}td.worse{background:#f3b08f}\
svg{max-width:100%;height:auto}.wide{overflow-x:auto}.note{color:#555}";

const HOW: &str = "Each workload is a process of its own, which does a fixed amount of work; allocators take turns in interleaved \
rounds, in an order that differs from round to round, and before each run 256 MiB are used and freed, so that none pays for what \
the host of a virtual machine has taken away. A figure is the median of its rounds; \u{b1} is half of the median's 95 % \
confidence interval, from order statistics. Time is that of the work alone, where a workload tells it, otherwise that of the \
process; of a server, that of its load. Peak is the largest resident memory of all processes together. At end is resident \
memory one second after the work is done and all is freed, in rounds that rest; of a program, when it exits. In every run a witness library, \
beside each allocator alike, shows that the program's calls arrive there; a run without that proof does not count. A ratio is \
to the best peer in that workload, whoever it is; weir is not among the peers.";

pub fn page(document: &Document) -> Result<String> {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n");
    let _ = write!(out, "<title>weir bench</title>\n<style>{STYLE}</style>\n<h1>weir bench</h1>\n");
    out.push_str(&about(document));
    out.push_str("<h2>Where each allocator stands</h2>\n");
    out.push_str("<p>Geometric means of the ratios to the best peer of each workload: 1.00 is the best peer everywhere.</p>\n");
    let _ = writeln!(out, "<figure>{}</figure>", plot::corner(&document.summary)?);
    out.push_str(&means(&document.summary));
    out.push_str("<h2>Where weir loses</h2>\n");
    out.push_str(&losses(document));
    out.push_str(&changes(document));
    out.push_str("<h2>All workloads</h2>\n");
    for measure in RANKED {
        let _ = writeln!(out, "<h3>{}, ratio to the best peer</h3>", capital(title(measure)));
        let _ = writeln!(out, "<figure>{}</figure>", plot::strips(&document.workloads, measure)?);
        out.push_str("<p class=\"note\">A triangle points to a ratio beyond the scale; the table has it.</p>\n");
        out.push_str(&ratios(document, measure));
    }
    out.push_str("<h2>Figures</h2>\n");
    for entry in &document.workloads {
        out.push_str(&figures(entry));
    }
    let _ = writeln!(out, "<h2>How it was measured</h2>\n<p>{HOW}</p>");
    out.push_str("</html>\n");
    Ok(out)
}

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// The cells are HTML already; the first row is the head.
fn table(rows: &[Vec<String>]) -> String {
    let mut out = String::from("<div class=\"wide\"><table>\n");
    for (at, row) in rows.iter().enumerate() {
        let is_weir = row.first().is_some_and(|cell| cell == WEIR);
        out.push_str(if is_weir { "<tr class=\"weir\">" } else { "<tr>" });
        for cell in row {
            let _ = match cell.strip_prefix("<td") {
                Some(_) => write!(out, "{cell}</td>"),
                None if at == 0 => write!(out, "<th>{cell}</th>"),
                None => write!(out, "<td>{cell}</td>"),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
    out
}

fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| escaped(name)).collect()
}

fn about(document: &Document) -> String {
    let machine = &document.machine;
    let mut out = format!(
        "<p>{}, {} processors, {}; Linux {}, {}. {}weir {}, tool {}.</p>\n",
        escaped(&machine.processor),
        machine.processors,
        units::bytes(machine.memory_bytes),
        escaped(&machine.kernel),
        escaped(&machine.system),
        escaped(&details(machine)),
        escaped(&document.library_version),
        escaped(&document.tool_version),
    );
    let mut rows =
        vec![head(&["allocator", "version", "origin", "compiler", "flags", "environment"])];
    for allocator in &document.allocators {
        let text = |value: &Option<String>| escaped(value.as_deref().unwrap_or("-"));
        let environment: Vec<String> =
            allocator.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        rows.push(vec![
            escaped(&allocator.name),
            text(&allocator.version),
            text(&allocator.origin),
            text(&allocator.compiler),
            text(&allocator.flags),
            escaped(&environment.join(" ")),
        ]);
    }
    out.push_str(&table(&rows));
    for program in &document.not_installed {
        let (name, needs) = (escaped(&program.name), escaped(&program.needs));
        let _ = writeln!(out, "<p class=\"note\">{name}: not installed: it needs {needs}</p>");
    }
    let quick =
        document.quick.then_some("a quick run: figures show that all of it runs, and no more");
    let interrupted = document.interrupted.then_some("interrupted: not all workloads have run");
    let notes = document.notes.iter().map(String::as_str);
    for note in quick.into_iter().chain(interrupted).chain(notes) {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(note));
    }
    out
}

/// What else its times depend on, as far as it is known.
fn details(machine: &Machine) -> String {
    let word = |what: &str, value: &Option<String>| {
        value.as_ref().map_or_else(String::new, |value| format!("{what}{value}. "))
    };
    let kind = if machine.virtual_machine == Some(true) { "A virtual machine. " } else { "" };
    [
        word("", &machine.model),
        word("Caches ", &machine.caches),
        word("Huge pages: ", &machine.huge_pages),
        word("Governor: ", &machine.governor),
        kind.to_owned(),
    ]
    .concat()
}

fn worst(worst: Option<&Worst>) -> String {
    worst.map_or_else(
        || "-".to_owned(),
        |worst| format!("{:.2} {}", worst.ratio, escaped(&worst.workload)),
    )
}

fn means(summary: &[Summary]) -> String {
    let mut rows = vec![head(&[
        "allocator",
        "workloads",
        "time",
        "CPU",
        "peak",
        "peak, 20 MiB and more",
        "at end",
        "worst time",
        "worst peak",
        "worst end",
    ])];
    for one in summary {
        rows.push(vec![
            escaped(&one.allocator),
            one.workloads.to_string(),
            times(one.time),
            times(one.cpu),
            times(one.peak),
            times(one.peak_large),
            times(one.last),
            worst(one.worst_time.as_ref()),
            worst(one.worst_peak.as_ref()),
            worst(one.worst_final.as_ref()),
        ]);
    }
    table(&rows)
}

fn losses(document: &Document) -> String {
    let mut out = String::new();
    for measure in RANKED {
        let losses = summary::losses(&document.workloads, measure);
        let _ = writeln!(
            out,
            "<h3>{}: {} of {}</h3>",
            capital(title(measure)),
            losses.len(),
            document.workloads.len()
        );
        let mut rows = vec![head(&["workload", "ratio", "weir", "best peer"])];
        for (entry, ratio) in losses {
            let show = |value: Option<f64>| {
                value.map_or_else(|| "-".to_owned(), |value| measure.show(value))
            };
            let own = entry.run(WEIR).and_then(|run| run.median(measure));
            rows.push(vec![
                escaped(&entry.name),
                cell(ratio),
                show(own),
                show(summary::best(entry, measure)),
            ]);
        }
        if rows.len() > 1 {
            out.push_str(&table(&rows));
        }
    }
    out
}

fn changes(document: &Document) -> String {
    let Some(against) = &document.against else { return String::new() };
    let mut rows = vec![head(&["workload", "allocator", "measure", "now to before", "interval"])];
    for change in &against.changes {
        rows.push(vec![
            escaped(&change.workload),
            escaped(&change.allocator),
            escaped(&change.measure),
            cell(change.ratio),
            format!("{:.2} to {:.2}", change.interval.0, change.interval.1),
        ]);
    }
    let mut out = format!("<h2>What has changed</h2>\n{}", table(&rows));
    for line in verdicts(against) {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(&line));
    }
    out
}

/// A ratio with a colour.
fn cell(ratio: f64) -> String {
    let class = match ratio {
        ratio if ratio < 1.005 => "good",
        ratio if ratio <= 1.1 => "",
        ratio if ratio <= 1.5 => "bad",
        _ => "worse",
    };
    format!("<td class=\"{class}\">{ratio:.2}")
}

fn ratios(document: &Document, measure: Measure) -> String {
    let names: Vec<&str> =
        document.allocators.iter().map(|allocator| allocator.name.as_str()).collect();
    let mut rows = vec![head(&[&["workload", "best peer"], names.as_slice()].concat())];
    for entry in &document.workloads {
        let best = summary::best(entry, measure);
        let mut row = vec![
            escaped(&entry.name),
            best.map_or_else(|| "-".to_owned(), |value| measure.show(value)),
        ];
        for name in &names {
            let ratio = entry.run(name).and_then(|run| summary::ratio(entry, run, measure));
            row.push(ratio.map_or_else(|| "-".to_owned(), cell));
        }
        rows.push(row);
    }
    table(&rows)
}

fn figures(entry: &Entry) -> String {
    let mut out = format!("<h3>{}</h3>\n<p>{}", escaped(&entry.name), escaped(&entry.shape));
    if let (Some(sizes), Some(threads)) = (&entry.sizes, entry.threads) {
        let _ = write!(
            out,
            "; {} bytes, {}",
            escaped(sizes),
            units::plural(u64::from(threads), "thread", "threads")
        );
    }
    out.push_str("</p>\n");
    let mut rows = vec![head(&[
        "allocator",
        "time",
        "\u{b1} %",
        "ns each",
        "CPU",
        "peak",
        "at end",
        "faults",
        "instructions each",
    ])];
    for run in &entry.results {
        if let Some(failure) = &run.failure {
            let _ =
                writeln!(out, "<p>{}: left out: {}</p>", escaped(&run.allocator), escaped(failure));
            continue;
        }
        if let Some(library) = &run.brought {
            let (name, why) = (escaped(&run.allocator), escaped(&of_its_own(library)));
            let _ = writeln!(out, "<p>{name}: in no mean and no ratio: {why}</p>");
        }
        let show = |measure: Measure| {
            run.median(measure).map_or_else(|| "-".to_owned(), |value| measure.show(value))
        };
        let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        rows.push(vec![
            escaped(&run.allocator),
            show(Measure::Time),
            dash(spread(run, Measure::Time).map(|percent| format!("{percent:.1}"))),
            dash(nanoseconds(entry, run).map(|ns| format!("{ns:.1}"))),
            show(Measure::Cpu),
            show(Measure::Peak),
            show(Measure::Final),
            show(Measure::Faults),
            dash(run.instructions_each.map(|each| format!("{each:.1}"))),
        ]);
    }
    out.push_str(&table(&rows));
    out
}

#[cfg(test)]
mod tests {
    use super::super::summary::summary;
    use super::super::summary::tests::{distinct, entry};
    use super::*;

    #[test]
    fn names_cannot_break_out_and_losses_are_shown() {
        let lost = entry("<script>", &[("system", 1.0, 30e6), ("weir", 2.0, 60e6)]);
        let text = figures(&lost);
        assert!(!text.contains("<script>") && text.contains("&lt;script&gt;"));
        assert_eq!(cell(1.0), "<td class=\"good\">1.00");
        assert!(
            cell(1.6).contains("worse") && cell(1.2).contains("bad") && cell(1.05).contains("\"\"")
        );
        let rows = [vec!["a".to_owned()], vec!["weir".to_owned(), cell(2.0)]];
        assert!(
            table(&rows).contains("<tr class=\"weir\"><td>weir</td><td class=\"worse\">2.00</td>")
        );
    }
    #[test]
    fn every_figure_stands_in_its_column() {
        let cells = |html: &str| {
            let text: Vec<&str> = html
                .split('<')
                .filter_map(|part| part.split_once('>'))
                .map(|(_, text)| text.trim())
                .collect();
            text.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("|")
        };
        let entry = distinct();
        assert_eq!(
            cells(&figures(&entry)),
            "shape/one|a shape|allocator|time|± %|ns each|CPU|peak|at end|faults|instructions each|system|2.0 ms|2.0|2000.0|3.0 ms|38.1 MiB|19.1 MiB|1,000|-|weir|3.0 ms|2.0|3000.0|9.0 ms|28.6 MiB|4.77 MiB|1,500|123.4|other|4.0 ms|2.0|4000.0|6.0 ms|47.7 MiB|9.54 MiB|500|-"
        );
        assert_eq!(
            cells(&means(&summary(&[entry]))),
            "allocator|workloads|time|CPU|peak|peak, 20 MiB and more|at end|worst time|worst peak|worst end|system|1|1.00|1.00|1.00|1.00|2.00|1.00 shape/one|1.00 shape/one|2.00 shape/one|weir|1|1.50|3.00|0.75|0.75|0.50|1.50 shape/one|0.75 shape/one|0.50 shape/one|other|1|2.00|2.00|1.25|1.25|1.00|2.00 shape/one|1.25 shape/one|1.00 shape/one"
        );
    }
}
