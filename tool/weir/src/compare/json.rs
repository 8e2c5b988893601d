//! The comparison as JSON, as docs/compare.schema.json describes it. Fields are only ever added within one
//! schema number. It does not know how anything was measured.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::machine::Machine;
use super::measure::{Figures, MEASURES};
use super::outcome::{Contender, Outcome, Round};
use super::proof::Executable;
use super::stats::{self, Estimate};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    tool_version: &'static str,
    command: &'a [String],
    machine: &'a Machine,
    confidence: f64,
    interrupted: bool,
    allocators: Vec<Entry<'a>>,
    conditions: Vec<Judged>,
    notes: &'a [String],
    verdict: String,
}

/// One `--fail-if`.
#[derive(Serialize)]
pub struct Judged {
    pub condition: String,
    pub result: &'static str,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    path: Option<String>,
    version: Option<&'a str>,
    origin: Option<&'a str>,
    compiler: Option<&'a str>,
    flags: Option<&'a str>,
    environment: BTreeMap<&'a str, &'a str>,
    note: Option<&'a str>,
    proven: bool,
    evidence: &'a str,
    status: &'a str,
    failure: Option<&'a str>,
    notes: &'a [String],
    rounds: Vec<RoundEntry<'a>>,
    median: Map<String, Value>,
    interval: Map<String, Value>,
    ratio_to_system: Map<String, Value>,
    series: Vec<(f64, u64)>,
}

#[derive(Serialize)]
struct RoundEntry<'a> {
    #[serde(flatten)]
    figures: &'a Figures,
    executables: Vec<ExecutableEntry<'a>>,
}

#[derive(Serialize)]
struct ExecutableEntry<'a> {
    exe: &'a str,
    processes: u32,
    peak_bytes: u64,
    target: Option<&'a str>,
    missed: Option<&'a str>,
}

pub fn json(
    outcome: &Outcome,
    machine: &Machine,
    conditions: Vec<Judged>,
) -> serde_json::Result<String> {
    let document = Document {
        schema: SCHEMA,
        tool_version: env!("CARGO_PKG_VERSION"),
        command: &outcome.command,
        machine,
        confidence: stats::LEVEL,
        interrupted: outcome.interrupted,
        allocators: outcome.contenders.iter().map(|contender| entry(outcome, contender)).collect(),
        conditions,
        notes: &outcome.notes,
        verdict: outcome.verdict(),
    };
    let mut text = serde_json::to_string_pretty(&document)?;
    text.push('\n');
    Ok(text)
}

fn entry<'a>(outcome: &'a Outcome, contender: &'a Contender) -> Entry<'a> {
    let allocator = &contender.allocator;
    let mut median = Map::new();
    let mut interval = Map::new();
    let mut ratio_to_system = Map::new();
    for measure in MEASURES {
        let estimate = contender.estimate(measure);
        median.insert(measure.name().to_owned(), estimate.map(|e| e.median).into());
        interval.insert(measure.name().to_owned(), bounds(estimate.as_ref()));
        let ratio = outcome.system().and_then(|system| contender.ratio(system, measure));
        let mut of = Map::new();
        of.insert("median".to_owned(), ratio.map(|e| e.median).into());
        of.insert("interval".to_owned(), bounds(ratio.as_ref()));
        ratio_to_system.insert(measure.name().to_owned(), Value::Object(of));
    }
    Entry {
        name: &allocator.name,
        path: allocator.path.as_ref().map(|path| path.display().to_string()),
        version: allocator.version.as_deref(),
        origin: allocator.origin.as_deref(),
        compiler: allocator.compiler.as_deref(),
        flags: allocator.flags.as_deref(),
        environment: allocator.environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect(),
        note: allocator.note.as_deref(),
        proven: contender.proven,
        evidence: &contender.evidence,
        status: &contender.status,
        failure: contender.failure.as_deref(),
        notes: &contender.notes,
        rounds: contender.rounds.iter().map(round).collect(),
        median,
        interval,
        ratio_to_system,
        series: contender.median_round().map(|round| round.series.clone()).unwrap_or_default(),
    }
}

fn round(round: &Round) -> RoundEntry<'_> {
    let executables = round.executables.iter().map(|executable: &Executable| ExecutableEntry {
        exe: &executable.exe,
        processes: executable.processes,
        peak_bytes: executable.peak_bytes,
        target: executable.target.as_deref(),
        missed: executable.missed.as_deref(),
    });
    RoundEntry { figures: &round.figures, executables: executables.collect() }
}

fn bounds(estimate: Option<&Estimate>) -> Value {
    match estimate.and_then(|estimate| estimate.interval) {
        Some(interval) => vec![interval.low, interval.high].into(),
        None => Value::Null,
    }
}
