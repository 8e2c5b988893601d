//! `weir bench`: every workload and every installed program under several allocators, what came of it, and what
//! has changed since a kept result. Called by `main` alone. It takes the command line apart and runs one
//! after the other; rounds, proof and figures are those of `compare`.
//!
//! SPDX-License-Identifier: Apache-2.0

mod against;
mod html;
mod instructions;
mod item;
mod plot;
mod programs;
mod result;
mod summary;
mod text;

use crate::compare::allocators::{self, Choice, WEIR};
use crate::compare::condition::Condition;
use crate::compare::engine::{Comparison, Plan};
use crate::compare::launch::{self, Interrupted, Stage};
use crate::compare::machine::{self, Machine, Ticks};
use crate::compare::measure::Measure;
use crate::compare::outcome::Contender;
use crate::compare::progress::Progress;
use crate::compare::{CONDITION, FAILED, stats};
use crate::errors::{self, Exit, USAGE};
use crate::library::{LIBRARY, LIBRARY_NAME, LIBRARY_VERSION, Place, WORKLOAD};
use crate::output::{self, Output};
use crate::run::End;
use crate::sys::{self, Signals};
use crate::units;
use anyhow::{Context, Result};
use item::{Item, Kind};
use result::{AllocatorEntry, Document, Entry, Missing};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where `--save NAME` keeps results, from the root of the repository.
const RESULTS: &str = "bench/results";
/// Memory that is touched before each run, so that the machine has it at hand: on virtual machines free memory
/// may be the host's, and whose run has to fetch it is chance. More than most workloads use.
const TOUCHED_MIB: u32 = 256;
/// How long a run rests before its end is measured.
const REST: Duration = Duration::from_secs(1);
/// One run in ten of the work and nearly no rest: to see that all of it runs.
const QUICK_SCALE_PERCENT: u32 = 10;
const QUICK_REST: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct Args {
    /// List the workloads, and the programs with whether they are installed
    #[arg(long)]
    list: bool,
    /// Only what begins with this or has it in its name, as 'churn/' or 'server/t8'
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these allocators, by name; 'system' is the C library's
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allocators: Vec<String>,
    /// Leave these allocators out
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    without: Vec<String>,
    /// Compare with the library at PATH too, under NAME; may be given more than once
    #[arg(long, value_name = "NAME=PATH")]
    with: Vec<String>,
    /// Compare with the allocators of a manifest, as bench/peers writes it
    #[arg(long, value_name = "FILE")]
    peers: Vec<PathBuf>,
    /// Counted rounds of each workload; 6 are needed for confidence intervals
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Rounds before those that count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    warmup: u32,
    /// Rest a second before the end in the first N rounds alone, which tell memory at the end and CPU time; without it, in all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rests: Option<u32>,
    /// A tenth of the work, one round: to see that all of it runs, not for figures
    #[arg(long, conflicts_with_all = ["rounds", "warmup", "rests"])]
    quick: bool,
    /// Count the instructions of workloads with one thread too, by valgrind's callgrind
    #[arg(long)]
    instructions: bool,
    /// Write the result as JSON, to stdout when no FILE is given
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = output::STDOUT)]
    json: Option<PathBuf>,
    /// Write one page with tables and plots; - is stdout, instead of the tables
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Keep the result as bench/results/NAME.json
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
    /// Say what has changed since this result
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// End with status 1 if weir is worse than in the earlier result in any workload, as 'time>+3%'
    #[arg(long, value_name = "CONDITION", requires = "against")]
    fail_if: Vec<String>,
    /// Print neither progress nor tables
    #[arg(long)]
    quiet: bool,
}

pub fn bench(args: &Args) -> Result<End> {
    let conditions = conditions(args)?;
    let before = args.against.as_deref().map(|path| result::read(path, "--against")).transpose()?;
    let cannot = |before| against::cannot_judge(before, &Machine::this(), &conditions);
    if let Some(why) = before.as_ref().and_then(cannot) {
        return Err(Exit::error(USAGE, why));
    }
    let signals = Signals::take(&sys::ending())
        .context("cannot receive signals: the limit of open files (ulimit -n) may be too low")?;
    let mut place = Place::new();
    let program = place.code("weir-workload", WORKLOAD)?;
    let scale_percent = if args.quick { QUICK_SCALE_PERCENT } else { 100 };
    let mut items = item::workloads(&program, scale_percent)?;
    let (found, missing) = programs::programs(&place)?;
    items.extend(found);
    if args.list {
        output::stdout(&text::listing(&items, &missing))?;
        return Ok(End::Code(0));
    }
    let (items, missing) = selected(items, missing, &args.only)?;
    let instructions = args.instructions.then(instructions::valgrind).transpose()?;
    let contenders = contenders(args, &mut place)?;
    let outputs = Outputs::open(args, &contenders, &items)?;
    if !conditions.is_empty() && !contenders.iter().any(|one| one.allocator.name == WEIR) {
        let why = "--fail-if judges weir, which --allocators or --without leaves out".to_owned();
        return Err(Exit::error(USAGE, why));
    }
    let mut run = Run {
        args,
        signals: &signals,
        prepare: touching(&program),
        instructions,
        document: document(args, &contenders, missing),
        without: settings(),
        gone_wrong: false,
    };
    if run.without.iter().any(|name| name == launch::PRELOAD) {
        errors::say("LD_PRELOAD is set and left out: each run has its own allocator alone");
    }
    if !run.without.is_empty() {
        let names: Vec<_> = run.without.iter().map(|name| name.to_string_lossy()).collect();
        let note = format!("left out of the environment: {}", names.join(", "));
        run.document.notes.push(note);
    }
    let ticks = Ticks::now();
    let ended = run.all(&items, &contenders);
    let gone_wrong = run.gone_wrong;
    let mut document = run.document;
    document.interrupted = !matches!(ended, Ok(None));
    document.summary = summary::summary(&document.workloads);
    let stolen = ticks.zip(Ticks::now()).and_then(|(before, now)| now.stolen_since(&before));
    document.notes.extend(stolen.into_iter().chain(wide(&document.workloads)));
    if let Some(before) = &before {
        document.against = Some(against::compare(before, &document, &conditions, &|name| {
            is_chosen(&args.only, name)
        }));
    }
    let part = gone_wrong
        || document.interrupted
        || document.workloads.iter().flat_map(|entry| &entry.results).any(|r| r.failure.is_some());
    let failed = part || document.against.as_ref().is_some_and(|against| against.says_nothing());
    let met = document.against.as_ref().is_some_and(|against| against.met());
    // What was measured is kept whatever ended it.
    let written = outputs.write(&document, part);
    let interrupted = ended?;
    written?;
    Ok(match interrupted {
        Some(signal) => End::Signal(signal),
        None if failed => End::Code(FAILED),
        None if met => End::Code(CONDITION),
        None => End::Code(0),
    })
}

/// Where there is not that much memory, runs are made all the same.
fn touching(program: &Path) -> String {
    let quoted = program.display().to_string().replace('\'', "'\\''");
    format!("'{quoted}' --touch {TOUCHED_MIB} 2>/dev/null || :")
}

fn conditions(args: &Args) -> Result<Vec<Condition>> {
    let mut conditions = Vec::new();
    for text in &args.fail_if {
        let condition = Condition::parse(text).map_err(|why| Exit::error(USAGE, why))?;
        if condition.names_base {
            let why = format!(
                "--fail-if '{text}': weir is held against its earlier result, leave 'vs' out"
            );
            return Err(Exit::error(USAGE, why));
        }
        conditions.push(condition);
    }
    let rounds = if args.quick { 1 } else { args.rounds };
    let least = stats::VALUES_MIN;
    if !conditions.is_empty() && (rounds as usize) < least {
        let why =
            format!("--fail-if needs at least {least} rounds: fewer have no confidence interval");
        return Err(Exit::error(USAGE, why));
    }
    let rests = args.rests.unwrap_or(rounds).min(rounds) as usize;
    if let Some(condition) = conditions.iter().find(|one| one.measure.needs_rest())
        && rests < least
    {
        let why = format!(
            "--fail-if '{}' needs at least {least} --rests: fewer have no confidence interval",
            condition.text
        );
        return Err(Exit::error(USAGE, why));
    }
    Ok(conditions)
}

fn is_chosen(patterns: &[String], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| name.contains(pattern))
}

/// A warning where times vary so much that one workload says little.
fn wide(entries: &[Entry]) -> Option<String> {
    const TOLD_PERCENT: f64 = 10.0;
    let of_weir = entries.iter().filter_map(|entry| entry.run(WEIR));
    let spreads: Vec<f64> = of_weir.filter_map(|run| text::spread(run, Measure::Time)).collect();
    let median = stats::estimate(&spreads)?.median;
    (median > TOLD_PERCENT).then(|| {
        format!("times vary: of half of the workloads weir's interval is wider than {median:.0} % to each side, and a single one says little")
    })
}

/// What the patterns choose; all of it without one.
fn selected(
    mut items: Vec<Item>,
    mut missing: Vec<Missing>,
    patterns: &[String],
) -> Result<(Vec<Item>, Vec<Missing>)> {
    for pattern in patterns {
        let names =
            items.iter().map(|item| &item.name).chain(missing.iter().map(|program| &program.name));
        if !names.clone().any(|name| name.contains(pattern)) {
            let why = format!(
                "--only '{pattern}': no workload has that in its name; 'weir bench --list' shows all"
            );
            return Err(Exit::error(USAGE, why));
        }
    }
    items.retain(|item| is_chosen(patterns, &item.name));
    missing.retain(|program| is_chosen(patterns, &program.name));
    Ok((items, missing))
}

fn contenders(args: &Args, place: &mut Place) -> Result<Vec<Contender>> {
    let choice = Choice {
        with: args.with.clone(),
        peers: args.peers.clone(),
        only: args.allocators.clone(),
        without: args.without.clone(),
    };
    let mut chosen = allocators::choose(&choice, "--allocators")?;
    if let Some(weir) = chosen.iter_mut().find(|allocator| allocator.name == WEIR) {
        weir.path = Some(place.code(LIBRARY_NAME, LIBRARY)?);
    }
    Ok(chosen.into_iter().map(Contender::new).collect())
}

/// The variables set here that allocators read, and what would come between them and the program.
fn settings() -> Vec<OsString> {
    const BEGIN: [&str; 9] = [
        "WEIR_",
        "MALLOC_",
        "MIMALLOC_",
        "TCMALLOC_",
        "SCUDO_",
        "RPMALLOC_",
        "SNMALLOC_",
        "GLIBC_TUNABLES",
        launch::PRELOAD,
    ];
    let names = std::env::vars_os()
        .filter(|(name, value)| name != launch::PRELOAD || !value.is_empty())
        .map(|(name, _)| name);
    let reads = |name: &OsString| {
        let name = name.to_string_lossy();
        BEGIN.iter().any(|begin| name.starts_with(begin))
    };
    names.filter(reads).collect()
}

fn document(args: &Args, contenders: &[Contender], not_installed: Vec<Missing>) -> Document {
    Document {
        schema: result::SCHEMA,
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        library_version: LIBRARY_VERSION.to_owned(),
        machine: Machine::this(),
        confidence: stats::LEVEL,
        quick: args.quick,
        interrupted: false,
        allocators: contenders
            .iter()
            .map(|contender| AllocatorEntry::of(&contender.allocator))
            .collect(),
        workloads: Vec::new(),
        not_installed,
        summary: Vec::new(),
        against: None,
        notes: machine::busy().into_iter().chain(rests(args)).collect(),
    }
}

/// What figures of a run in which not all rounds rest, or not for long, stand for.
fn rests(args: &Args) -> Option<String> {
    if args.quick {
        let note = "quick: runs rest for a tenth of a second, in which nobody has given back what goes after a delay";
        return Some(note.to_owned());
    }
    let rests = args.rests.filter(|rests| *rests < args.rounds)?;
    let rounds = units::plural(u64::from(rests), "round", "rounds");
    Some(format!(
        "memory at the end and CPU time of workloads and servers are of the first {rounds}: the others do not rest"
    ))
}

fn kept(name: &str, part: &str) -> PathBuf {
    Path::new(RESULTS).join(format!("{name}{part}.json"))
}

fn cannot_save(
    args: &Args,
    contenders: &[Contender],
    items: &[Item],
    name: &str,
) -> Option<String> {
    const ELSEWHERE: &str = "--json=FILE writes elsewhere";
    if name.contains('/') || name.is_empty() {
        return Some("a name, not a path: --json=FILE writes elsewhere".to_owned());
    }
    let kept = kept(name, "");
    if !kept.exists() {
        return None;
    }
    let least = stats::VALUES_MIN;
    if args.quick || !args.only.is_empty() || (args.rounds as usize) < least {
        let why = format!(
            "there is a result that less than all workloads in {least} rounds would replace: {ELSEWHERE}"
        );
        return Some(why);
    }
    let before = match result::read(&kept, "it would replace") {
        Ok(before) => before,
        Err(why) => return Some(format!("{why}: {ELSEWHERE}")),
    };
    if Machine::this().has_other_processors(&before.machine) {
        let differences = Machine::this().differences(&before.machine).join("; ");
        return Some(format!(
            "there is a result of another machine ({differences}): take another name"
        ));
    }
    if args.rests.is_some_and(|rests| (rests as usize) < least)
        && before.has_interval(Measure::Final, |_| true)
    {
        let why = format!(
            "there is a result with confidence intervals of memory at the end, which less than {least} --rests have not: {ELSEWHERE}"
        );
        return Some(why);
    }
    let here = |name: &String| contenders.iter().any(|one| one.allocator.name == *name);
    let runs = |name: &String| items.iter().any(|item| item.name == *name);
    let allocators = before.allocators.into_iter().map(|one| one.name).filter(|name| !here(name));
    let workloads = before.workloads.into_iter().map(|one| one.name).filter(|name| !runs(name));
    let lacking: Vec<String> = allocators.chain(workloads).collect();
    (!lacking.is_empty()).then(|| {
        format!("there is a result with {}, which this run lacks: {ELSEWHERE}", lacking.join(", "))
    })
}

impl Args {
    fn shows_tables(&self) -> bool {
        let results = [&self.json, &self.html];
        !self.quiet && !results.into_iter().flatten().any(|path| output::is_stdout(path))
    }
}

/// The files that are asked for, opened before hours of work.
struct Outputs<'a> {
    args: &'a Args,
    json: Option<Output>,
    saved: Option<Output>,
    html: Option<Output>,
}

impl Outputs<'_> {
    fn open<'a>(args: &'a Args, contenders: &[Contender], items: &[Item]) -> Result<Outputs<'a>> {
        let saved = args.save.as_deref().map(|name| kept(name, ""));
        output::check_distinct(&[
            ("--json", args.json.as_deref()),
            ("--html", args.html.as_deref()),
            ("--save", saved.as_deref()),
        ])?;
        let saved = args.save.as_deref().map(|name| {
            if let Some(why) = cannot_save(args, contenders, items, name) {
                return Err(Exit::error(USAGE, format!("--save '{name}': {why}")));
            }
            Output::new(&kept(name, ""))
        });
        Ok(Outputs {
            args,
            json: args.json.as_deref().map(Output::new).transpose()?,
            saved: saved.transpose()?,
            html: args.html.as_deref().map(Output::new).transpose()?,
        })
    }

    /// One that cannot be written does not take the others along. `part`: something is missing.
    fn write(self, document: &Document, part: bool) -> Result<()> {
        let json = document.json().context("cannot write JSON")?;
        // A part of a result does not take the place of a whole one.
        let saved = match self.args.save.as_deref().filter(|_| part) {
            Some(name) => Some(Output::new(&kept(name, ".partial"))),
            None => self.saved.map(Ok),
        };
        let written = [
            if self.args.shows_tables() {
                output::stdout(&text::closing(document))
            } else {
                Ok(())
            },
            self.json.map_or(Ok(()), |file| file.write(&json)),
            saved.map_or(Ok(()), |file| file?.write(&json)),
            self.html.map_or(Ok(()), |file| file.write(&html::page(document)?)),
        ];
        written.into_iter().collect()
    }
}

/// The run of all items.
struct Run<'a> {
    args: &'a Args,
    signals: &'a Signals,
    /// The shell line before each run.
    prepare: String,
    /// Where valgrind lies, if instructions are counted.
    instructions: Option<PathBuf>,
    document: Document,
    /// What would set an allocator's options or preload another: all are measured alone, with their defaults.
    without: Vec<OsString>,
    /// Some item could not be run at all: the document's notes say why.
    gone_wrong: bool,
}

impl Run<'_> {
    /// Runs one after the other; gives the signal that ended it early.
    fn all(&mut self, items: &[Item], contenders: &[Contender]) -> Result<Option<i32>> {
        for (at, item) in items.iter().enumerate() {
            let title = format!("{} ({} of {})", item.name, at + 1, items.len());
            let (entry, signal) = match self.one(item, at as u32, contenders.to_vec(), title) {
                Ok(measured) => measured,
                Err(error) => {
                    self.goes_wrong(&format!("{}: {error:#}", item.name));
                    continue;
                }
            };
            let table = text::workload(&entry);
            self.document.workloads.push(entry);
            // Where stdout is not for a result, each table is shown as soon as there is one.
            if self.args.shows_tables() {
                output::stdout(&table)?;
            }
            if signal.is_some() {
                return Ok(signal);
            }
        }
        Ok(None)
    }

    /// Something is missing of the result, which goes on.
    fn goes_wrong(&mut self, note: &str) {
        errors::say(note);
        self.document.notes.push(note.to_owned());
        self.gone_wrong = true;
    }

    /// One item, the `number`th.
    fn one(
        &mut self,
        item: &Item,
        number: u32,
        contenders: Vec<Contender>,
        title: String,
    ) -> Result<(Entry, Option<i32>)> {
        let stage = |rest| -> Result<Stage> {
            let mut stage = item.stage(self.signals, rest)?;
            stage.without = self.without.clone();
            Ok(stage)
        };
        let rested = stage(if self.args.quick { QUICK_REST } else { REST })?;
        let hurried = match self.args.rests.filter(|_| item.rests()) {
            Some(rests) => Some((rests, stage(Duration::ZERO)?)),
            None => None,
        };
        let plan = match self.args.quick {
            true => Plan { warmup: 0, rounds: Some(1), budget_s: 0.0 },
            false => {
                Plan { warmup: self.args.warmup, rounds: Some(self.args.rounds), budget_s: 0.0 }
            }
        };
        let progress = Progress::new(self.args.quiet, Some(title));
        let command: Vec<String> =
            rested.arguments.iter().map(|word| word.to_string_lossy().into()).collect();
        let mut comparison = Comparison::new(&rested, contenders, progress);
        comparison.hurried = hurried.as_ref().map(|(rests, stage)| (*rests, stage));
        // A workload says where its malloc lies and what time it took.
        comparison.notes_outputs = item.kind == Kind::Program;
        comparison.prepare = Some(&self.prepare);
        comparison.turn = number;
        let (outcome, mut signal) = comparison.run(plan, command)?;
        let told = match item.kind {
            Kind::Workload => rested.captured()?.0,
            Kind::Program => Vec::new(),
        };
        let count = |name: &str| launch::told(&told, name).and_then(|text| text.parse().ok());
        let operations = count("operations").filter(|_| item.tells_time);
        let revision = count("revision").unwrap_or(result::FIRST_REVISION);
        let mut entry = Entry::of(item, &outcome, operations, revision);
        if let Some(valgrind) =
            self.instructions.as_ref().filter(|_| item.counts_instructions() && signal.is_none())
        {
            let counted = instructions::count(
                &mut entry,
                item,
                &outcome.contenders,
                self.signals,
                valgrind,
                &self.without,
            );
            if let Err(error) = counted {
                match error.downcast::<Interrupted>() {
                    Ok(interrupted) => signal = Some(interrupted.0),
                    Err(error) => self.goes_wrong(&format!("{}: callgrind: {error:#}", item.name)),
                }
            }
        }
        Ok((entry, signal))
    }
}
