//! A result as it is kept, shown and read again: medians and intervals of each workload under each allocator, with all
//! that they depend on. docs/bench.schema.json describes it; fields are only ever added within one schema
//! number. It does not know how anything was measured.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::against::Against;
use super::item::{Item, Kind};
use super::summary::Summary;
use crate::compare::allocators::{Allocator, SYSTEM};
use crate::compare::machine::Machine;
use crate::compare::measure::{MEASURES, Measure};
use crate::compare::outcome::{Contender, Outcome};
use crate::compare::stats::{Estimate, Interval};
use crate::errors::{Exit, USAGE};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::Path;

pub const SCHEMA: u32 = 1;
/// Of a workload that does not tell its revision.
pub const FIRST_REVISION: u64 = 1;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Document {
    pub schema: u32,
    pub tool_version: String,
    pub library_version: String,
    pub machine: Machine,
    pub confidence: f64,
    pub quick: bool,
    pub interrupted: bool,
    pub allocators: Vec<AllocatorEntry>,
    pub workloads: Vec<Entry>,
    pub not_installed: Vec<Missing>,
    pub summary: Vec<Summary>,
    pub against: Option<Against>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AllocatorEntry {
    pub name: String,
    pub version: Option<String>,
    pub origin: Option<String>,
    pub compiler: Option<String>,
    pub flags: Option<String>,
    pub environment: BTreeMap<String, String>,
    pub note: Option<String>,
}

/// A program that is not on this machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Missing {
    pub name: String,
    pub needs: String,
}

/// A workload, or a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub kind: String,
    pub shape: String,
    pub sizes: Option<String>,
    pub threads: Option<u32>,
    /// malloc and free, or realloc, in each run.
    pub operations: Option<u64>,
    /// Of its work, where that has changed and name, sizes and operations have not; the first is left out.
    #[serde(default = "first_revision", skip_serializing_if = "is_first_revision")]
    pub revision: u64,
    /// A program's file and its length: another version does other work. Results of before do not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Memory at the end was measured some time after the load; results of before do not say so.
    #[serde(default)]
    pub rested: bool,
    pub results: Vec<Run>,
    pub notes: Vec<String>,
}

/// Each file that a program's command names, and its length.
fn program_told(item: &Item) -> Option<String> {
    let arguments = item.arguments.iter().skip(1).map(Path::new);
    let named = arguments.filter(|path| path.is_absolute());
    let files = std::iter::once(item.file.as_path()).chain(named).filter_map(|path| {
        let file = path.canonicalize().ok()?;
        let length = file.metadata().ok().filter(Metadata::is_file)?.len();
        Some(format!("{}, {length} bytes", file.display()))
    });
    (item.kind == Kind::Program).then(|| files.collect::<Vec<_>>().join("; "))
}

fn first_revision() -> u64 {
    FIRST_REVISION
}

fn is_first_revision(revision: &u64) -> bool {
    *revision == FIRST_REVISION
}

/// What it came to under one allocator.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Run {
    pub allocator: String,
    pub proven: bool,
    pub evidence: String,
    pub failure: Option<String>,
    /// Of `system`: the allocator that the program brings, which served it. It is not the C library's then, and no
    /// figure of it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brought: Option<String>,
    pub rounds: usize,
    /// Those of them that memory at the end and CPU time are of; results of before do not say so.
    #[serde(default)]
    pub rounds_rested: usize,
    pub median: BTreeMap<String, f64>,
    pub interval: BTreeMap<String, (f64, f64)>,
    pub instructions: Option<u64>,
    /// Of one operation.
    pub instructions_each: Option<f64>,
    pub notes: Vec<String>,
}

impl Document {
    /// Whether a run of those has an interval of the measure. What only tells something after a rest needs it in a
    /// workload that rests, if there is any.
    pub fn has_interval(&self, measure: Measure, of: impl Fn(&Run) -> bool) -> bool {
        let any_rested = self.workloads.iter().any(|entry| entry.rested);
        let telling =
            self.workloads.iter().filter(|e| e.rested || !any_rested || !measure.needs_rest());
        telling
            .flat_map(|entry| &entry.results)
            .filter(|run| run.counts() && of(run))
            .any(|run| run.estimate(measure).is_some_and(|estimate| estimate.interval.is_some()))
    }

    pub fn has_workload(&self, name: &str) -> bool {
        self.workloads.iter().any(|entry| entry.name == name)
    }

    pub fn json(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

/// The library that served a program run as it is, where that is not the C library: of its largest process.
fn brought(contender: &Contender) -> Option<String> {
    if contender.name() != SYSTEM {
        return None;
    }
    let served = contender.median_round()?.executables.iter().filter(|one| one.target.is_some());
    let target = served.max_by_key(|one| one.peak_bytes)?.target.as_deref()?;
    let file = target.rsplit('/').next().unwrap_or(target);
    let is_libc =
        ["libc.so", "libc-", "libc.musl", "ld-"].iter().any(|begin| file.starts_with(begin));
    (!is_libc).then(|| file.to_owned())
}

/// A result that was kept; `option` names it.
pub fn read(path: &Path, option: &str) -> Result<Document> {
    let refuse = |why: String| Exit::error(USAGE, format!("{option} {}: {why}", path.display()));
    let text = std::fs::read_to_string(path)
        .map_err(|error| refuse(format!("cannot read it: {error}")))?;
    let document: Document = serde_json::from_str(&text)
        .map_err(|error| refuse(format!("no result of 'weir bench --json=FILE': {error}")))?;
    match document.schema {
        SCHEMA => Ok(document),
        other => Err(refuse(format!("its schema is {other}, this tool reads {SCHEMA}"))),
    }
}

impl AllocatorEntry {
    pub fn of(allocator: &Allocator) -> AllocatorEntry {
        AllocatorEntry {
            name: allocator.name.clone(),
            version: allocator.version.clone(),
            origin: allocator.origin.clone(),
            compiler: allocator.compiler.clone(),
            flags: allocator.flags.clone(),
            environment: allocator.environment.iter().cloned().collect(),
            note: allocator.note.clone(),
        }
    }
}

impl Entry {
    pub fn of(item: &Item, outcome: &Outcome, operations: Option<u64>, revision: u64) -> Entry {
        Entry {
            name: item.name.clone(),
            kind: match item.kind {
                Kind::Workload => "workload".to_owned(),
                Kind::Program => "program".to_owned(),
            },
            shape: item.shape.clone(),
            sizes: item.sizes.clone(),
            threads: item.threads,
            operations,
            revision,
            program: program_told(item),
            rested: item.rests(),
            results: outcome.contenders.iter().map(Run::of).collect(),
            notes: outcome.notes.clone(),
        }
    }

    pub fn run(&self, allocator: &str) -> Option<&Run> {
        self.results.iter().find(|run| run.allocator == allocator && run.counts())
    }
}

impl Run {
    fn of(contender: &Contender) -> Run {
        let mut run = Run {
            allocator: contender.name().to_owned(),
            proven: contender.proven,
            evidence: contender.evidence.clone(),
            failure: contender.failure.clone(),
            brought: brought(contender),
            rounds: contender.rounds.len(),
            rounds_rested: contender.values(Measure::Final).len(),
            notes: contender.notes.clone(),
            ..Run::default()
        };
        for measure in MEASURES {
            let Some(estimate) = contender.estimate(measure) else { continue };
            run.median.insert(measure.name().to_owned(), estimate.median);
            if let Some(Interval { low, high }) = estimate.interval {
                run.interval.insert(measure.name().to_owned(), (low, high));
            }
        }
        run
    }

    pub fn counts(&self) -> bool {
        self.failure.is_none() && self.brought.is_none() && self.rounds > 0
    }

    pub fn median(&self, measure: Measure) -> Option<f64> {
        self.median.get(measure.name()).copied()
    }

    pub fn estimate(&self, measure: Measure) -> Option<Estimate> {
        let interval = self
            .interval
            .get(measure.name())
            .map(|(low, high)| Interval { low: *low, high: *high });
        Some(Estimate { median: self.median(measure)?, interval })
    }
}
