//! `weir compare`: the same command under several allocators, in interleaved rounds, and what came of it.
//! Called by `main` alone. It decides which runs are made and which count; how one is made, judged and
//! shown is elsewhere.
//!
//! SPDX-License-Identifier: Apache-2.0

mod allocators;
mod condition;
mod json;
mod launch;
mod machine;
mod measure;
mod outcome;
mod plot;
mod progress;
mod proof;
mod sample;
mod server;
mod stats;
mod text;
mod witness;

use crate::errors::{Exit, TOOL, USAGE};
use crate::library::{LIBRARY, LIBRARY_NAME};
use crate::output::{self, Output};
use crate::program;
use crate::run::End;
use crate::sys::Signals;
use crate::units;
use allocators::WEIR;
use anyhow::{Context, Result};
use condition::{Answer, Condition};
use launch::{Interrupted, Stage, Trial};
use measure::Figures;
use outcome::{Contender, Outcome, Round};
use progress::Progress;
use proof::Proof;
use server::Server;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A condition of --fail-if was met.
const CONDITION: u8 = 1;
/// Some run failed or was not proven.
const FAILED: u8 = 3;

/// Rounds when neither --rounds nor --time-budget says otherwise.
const ROUNDS_MAX: u32 = 40;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    choice: allocators::Choice,
    /// Counted rounds; without it, at least 6 and as many as the time budget allows, up to 40
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,
    /// Begin no further round after this time, once 6 are counted
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30", conflicts_with = "rounds")]
    time_budget: f64,
    /// Rounds before those that count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    warmup: u32,
    /// Write everything that is known as JSON, to stdout when no FILE is given
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Draw resident memory over time for each allocator, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// End with status 1 if so, as 'time>+3%' or 'peak>10% vs jemalloc'; may be given more than once
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<String>,
    /// The command must write the same to stdout under each allocator
    #[arg(long)]
    same_output: bool,
    /// A run that ends with this status has succeeded, instead of 0
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..=255))]
    expect_status: i32,
    /// Compare runs of a command that fails, if it fails in the same way under each allocator
    #[arg(long, conflicts_with = "expect_status")]
    ignore_failure: bool,
    /// Pass the output of the first run on
    #[arg(long)]
    show_output: bool,
    /// Each run reads FILE as its standard input, which is empty otherwise
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// A shell line that is run before each run and not measured
    #[arg(long, value_name = "LINE")]
    prepare: Option<String>,
    /// End a run that takes longer; it has failed then
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<f64>,
    /// Print neither progress nor tables
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// The program to run and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Servers")]
struct ServerArgs {
    /// The command is a server: run this shell line as its load, then stop the server
    #[arg(long, value_name = "LINE")]
    until: Option<String>,
    /// The server is ready when this shell line succeeds
    #[arg(long, value_name = "LINE", requires = "until")]
    ready: Option<String>,
    /// The server is ready when it accepts connections at this port of the machine
    #[arg(long, value_name = "N", requires = "until")]
    port: Option<u16>,
    /// How long the server may take to be ready
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30")]
    ready_timeout: f64,
    /// Rest between the load and the last look at the server's memory
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    settle: f64,
    /// The signal that stops the server: its name or number
    #[arg(long, value_name = "SIGNAL", value_parser = signal, default_value = "TERM")]
    stop_signal: i32,
    /// How long the server may take to stop before it is killed
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    stop_timeout: f64,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let good = text.parse::<f64>().ok().filter(|seconds| (0.0..=1e6).contains(seconds));
    good.ok_or_else(|| "write a number of seconds from 0 to 1000000".to_owned())
}

/// The signals by which servers are stopped.
const SIGNALS: [(&str, i32); 6] = [
    ("TERM", libc::SIGTERM),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("HUP", libc::SIGHUP),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
];

fn signal(text: &str) -> std::result::Result<i32, String> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let named = SIGNALS.iter().find(|(known, number)| *known == name || number.to_string() == name);
    named
        .map(|(_, number)| *number)
        .ok_or_else(|| format!("use one of {}", SIGNALS.map(|(name, _)| name).join(", ")))
}

const TAKEN: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

pub fn compare(args: Args) -> Result<End> {
    let mut conditions = Vec::new();
    for text in &args.fail_if {
        conditions.push(Condition::parse(text).map_err(|why| Exit::error(USAGE, why))?);
    }
    let chosen = allocators::choose(&args.choice)?;
    check_conditions(&conditions, &chosen, args.rounds)?;
    let Some((name, _)) = args.command.split_first() else {
        return Err(Exit::error(USAGE, "no command: write 'weir compare -- PROGRAM ARGUMENTS'"));
    };
    let to_stdout = args.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if to_stdout && args.command.get(1).is_some_and(|word| word == "--") {
        let name = name.to_string_lossy();
        return Err(Exit::error(
            USAGE,
            format!("'{name} --': is '{name}' the file for the JSON? write --json=FILE"),
        ));
    }
    let file = program::find(name, std::env::var_os("PATH").as_deref())?;
    if let Some(input) = &args.input {
        std::fs::File::open(input).map_err(|error| {
            Exit::error(USAGE, format!("--input: cannot read {}: {error}", input.display()))
        })?;
    }
    let json_file = args.json.as_deref().filter(|_| !to_stdout).map(Output::new).transpose()?;
    let plot_file = args.plot.as_deref().map(Output::new).transpose()?;

    let signals = Signals::take(&TAKEN)
        .context("cannot receive signals: the limit of open files (ulimit -n) may be too low")?;
    let (file, arguments) = executed(file, &args.command);
    let mut stage = Stage::new(&signals, file, arguments)?;
    stage.input = args.input.clone();
    stage.timeout = args.timeout.map(Duration::from_secs_f64);
    stage.server = args.server.into_server(&stage)?;
    let mut contenders: Vec<Contender> = chosen.into_iter().map(Contender::new).collect();
    if let Some(weir) = contenders.iter_mut().find(|contender| contender.name() == WEIR) {
        weir.allocator.path = Some(stage.place_library(LIBRARY_NAME, LIBRARY)?);
    }

    let mut comparison = Comparison {
        stage: &stage,
        contenders,
        progress: Progress::new(args.quiet),
        same_output: args.same_output,
        show_output: args.show_output,
        prepare: args.prepare.as_deref(),
        expect_status: args.expect_status,
        ignore_failure: args.ignore_failure,
        reference: None,
        runs: 0,
        notes: machine::busy().into_iter().collect(),
    };
    let interrupted = match comparison.rounds(args.warmup, args.rounds, args.time_budget) {
        Ok(()) => None,
        Err(error) => match error.downcast::<Interrupted>() {
            Ok(interrupted) => Some(interrupted.0),
            Err(error) => {
                comparison.progress.clear();
                return Err(error);
            }
        },
    };
    comparison.progress.clear();
    comparison.note_outputs();
    let Comparison { contenders, notes, .. } = comparison;
    let outcome = Outcome {
        command: args.command.iter().map(|word| word.to_string_lossy().into()).collect(),
        contenders,
        interrupted: interrupted.is_some(),
        notes,
    };
    let (answers, condition_met) = judge(&outcome, &conditions);
    let table = text::text(&outcome);
    let answers_text: String = answers
        .iter()
        .map(|judged| format!("--fail-if '{}': {}\n", judged.condition, judged.result))
        .collect();
    let document = || json::json(&outcome, &machine::Machine::this(), answers);
    let document = match args.json {
        Some(_) => document().context("cannot write JSON")?,
        None => String::new(),
    };
    let shown = match to_stdout {
        true => &document,
        false => &format!("{table}{answers_text}"),
    };
    // One that cannot be written does not take the others along.
    let written = [
        if args.quiet && !to_stdout { Ok(()) } else { output::stdout(shown) },
        json_file.map_or(Ok(()), |file| file.write(&document)),
        plot_file.map_or(Ok(()), |file| file.write(&plot::draw(&outcome)?)),
    ];
    written.into_iter().collect::<Result<()>>()?;
    Ok(match interrupted {
        Some(signal) => End::Signal(signal),
        None if !outcome.all_good() => End::Code(FAILED),
        None if condition_met => End::Code(CONDITION),
        None => End::Code(0),
    })
}

/// What has to be executed: the file, or the shell with a text that has no first line for the kernel.
fn executed(file: PathBuf, command: &[OsString]) -> (PathBuf, Vec<OsString>) {
    let image = program::image(&file);
    let is_script =
        std::fs::File::open(&file).is_ok_and(|opened| program::interpreter(&opened).is_some());
    let arguments = command.to_vec();
    if image.is_elf || is_script || image.facts.is_none() {
        return (file, arguments);
    }
    let mut words = vec![OsString::from("sh"), file.into()];
    words.extend(arguments.into_iter().skip(1));
    ("/bin/sh".into(), words)
}

fn check_conditions(
    conditions: &[Condition],
    chosen: &[allocators::Allocator],
    rounds: Option<u32>,
) -> Result<()> {
    for condition in conditions {
        for name in [WEIR, &condition.base] {
            if !chosen.iter().any(|allocator| allocator.name == name) {
                return Err(Exit::error(
                    USAGE,
                    format!(
                        "--fail-if '{}' needs the allocator '{name}', which is not compared",
                        condition.text
                    ),
                ));
            }
        }
        if rounds.is_some_and(|rounds| (rounds as usize) < stats::VALUES_MIN) {
            return Err(Exit::error(
                USAGE,
                format!(
                    "--fail-if needs at least {} rounds: fewer have no confidence interval",
                    stats::VALUES_MIN
                ),
            ));
        }
    }
    Ok(())
}

fn judge(outcome: &Outcome, conditions: &[Condition]) -> (Vec<json::Judged>, bool) {
    let mut judged = Vec::new();
    let mut met = false;
    for condition in conditions {
        let ratio = outcome
            .contender(WEIR)
            .zip(outcome.contender(&condition.base))
            .and_then(|(weir, base)| weir.ratio(base, condition.measure));
        let result = match ratio.map(|ratio| condition.answer(&ratio)) {
            Some(Answer::Met) => {
                met = true;
                "met"
            }
            Some(Answer::NotMet) => "not met",
            Some(Answer::Uncertain) => {
                "uncertain: the median is beyond the limit, its interval is not"
            }
            None => "unknown: no figures",
        };
        judged.push(json::Judged { condition: condition.text.clone(), result });
    }
    (judged, met)
}

impl ServerArgs {
    fn into_server(self, stage: &Stage) -> Result<Option<Server>> {
        let Some(until) = self.until else { return Ok(None) };
        Ok(Some(Server {
            until,
            ready: self.ready,
            port: self.port,
            ready_timeout: Duration::from_secs_f64(self.ready_timeout),
            settle: Duration::from_secs_f64(self.settle),
            stop_signal: self.stop_signal,
            grace: Duration::from_secs_f64(self.stop_timeout),
            output: stage.scratch("load")?,
        }))
    }
}

struct Comparison<'a> {
    stage: &'a Stage<'a>,
    contenders: Vec<Contender>,
    progress: Progress,
    same_output: bool,
    show_output: bool,
    prepare: Option<&'a str>,
    expect_status: i32,
    ignore_failure: bool,
    /// How the first run that succeeded ended, and what it wrote: all others must do the same. Where
    /// failure is ignored, it is the first run.
    reference: Option<(launch::End, u64)>,
    runs: u64,
    notes: Vec<String>,
}

impl Comparison<'_> {
    fn rounds(&mut self, warmup: u32, rounds: Option<u32>, budget: f64) -> Result<()> {
        let began = Instant::now();
        for _ in 0..warmup {
            self.round(0, u64::from(rounds.unwrap_or(ROUNDS_MAX)))?;
        }
        for round in 1..=rounds.unwrap_or(ROUNDS_MAX) {
            let enough = rounds.is_none() && round as usize > stats::VALUES_MIN;
            let spent = began.elapsed().as_secs_f64();
            if enough && spent + spent / f64::from(round + warmup) > budget {
                break;
            }
            // Only runs that can be compared are worth their time.
            if !self.contenders.iter().any(|contender| contender.failure.is_none()) {
                break;
            }
            self.round(round, u64::from(rounds.unwrap_or(ROUNDS_MAX)))?;
        }
        Ok(())
    }

    fn round(&mut self, round: u32, all: u64) -> Result<()> {
        for at in order(self.contenders.len(), round) {
            if self.contenders[at].failure.is_some() {
                continue;
            }
            let name = self.contenders[at].name().to_owned();
            let all = all * self.contenders.len() as u64;
            self.progress.run(self.runs, all, round, &name);
            self.trial(at, round > 0)?;
            self.runs += 1;
        }
        Ok(())
    }

    /// One run under one allocator, and whether it counts.
    fn trial(&mut self, at: usize, counted: bool) -> Result<()> {
        if let Some(line) = self.prepare {
            let mut child = self.stage.shell(line).stdout(Stdio::null()).spawn()?;
            let status = self.stage.wait_for(&mut child)?;
            if !status.success() {
                return Err(Exit::error(TOOL, format!("--prepare '{line}' ended with {status}")));
            }
        }
        let allocator = &self.contenders[at].allocator;
        let library = allocator.path.clone();
        let trial = self.stage.run(library.as_deref(), &allocator.environment)?;
        if self.show_output && self.runs == 0 {
            let (stdout, stderr) = self.stage.captured()?;
            let _ = std::io::stderr().write_all(&stderr);
            let _ = std::io::stdout().write_all(&stdout);
        }
        let proof = proof::judge(&trial, library.as_deref());
        let failure = self.failure(at, &trial, &proof);
        let contender = &mut self.contenders[at];
        contender.status = trial.end.to_string();
        contender.proven = proof.proven;
        contender.evidence = proof.evidence;
        contender.outputs.push(trial.stdout_hash);
        if trial.leftovers > 0 && contender.notes.is_empty() {
            contender.notes.push(format!(
                "{} still running after the command had ended, and stopped",
                units::plural(trial.leftovers as u64, "process was", "processes were")
            ));
        }
        contender.failure = failure;
        if counted && contender.failure.is_none() {
            let figures = Figures::of(&trial, &proof.executables);
            let Proof { executables, .. } = proof;
            contender.rounds.push(Round { figures, executables, series: trial.series });
        }
        Ok(())
    }

    fn has_succeeded(&self, end: &launch::End) -> bool {
        match end {
            launch::End::Stopped => true,
            launch::End::Exited(status) => *status == self.expect_status,
            _ => false,
        }
    }

    /// Why a run does not count.
    fn failure(&mut self, at: usize, trial: &Trial, proof: &Proof) -> Option<String> {
        let last_words =
            || match trial.stderr_tail.lines().rev().find(|line| !line.trim().is_empty()) {
                Some(line) => format!(" (its last words: {})", line.trim()),
                None => String::new(),
            };
        if matches!(trial.end, launch::End::TimedOut | launch::End::LoadFailed(_)) {
            return Some(format!("{}{}", trial.end, last_words()));
        }
        let succeeded = self.has_succeeded(&trial.end);
        // A first run that failed is no measure for one that did not: the failures are left out.
        if let Some((end, _)) = &self.reference
            && succeeded
            && !self.has_succeeded(end)
        {
            let name = self.contenders[at].name().to_owned();
            let failure = format!("{end}, while {name}: {}", trial.end);
            let others = self.contenders.iter_mut().enumerate().filter(|(other, _)| *other != at);
            for (_, other) in others.filter(|(_, other)| other.failure.is_none() && other.has_run())
            {
                other.failure = Some(failure.clone());
            }
            self.reference = None;
        }
        match &self.reference {
            None if succeeded || self.ignore_failure => {
                if !succeeded {
                    self.notes.push(format!(
                        "the command's first run: {}{}",
                        trial.end,
                        last_words()
                    ));
                }
                self.reference = Some((trial.end.clone(), trial.stdout_hash));
            }
            None => {
                let unproven = match proof.proven {
                    true => String::new(),
                    false => format!("; {}", proof.evidence),
                };
                return Some(format!("{}{}{unproven}", trial.end, last_words()));
            }
            Some((end, hash)) => {
                if trial.end != *end {
                    return Some(format!(
                        "{}, while the first run: {end}{}",
                        trial.end,
                        last_words()
                    ));
                }
                if self.same_output && trial.stdout_hash != *hash {
                    return Some("its stdout differs from that of the first run".to_owned());
                }
            }
        }
        (!proof.proven).then(|| proof.evidence.clone())
    }

    /// Output that is always the same under the first allocator and not under another is worth a look.
    fn note_outputs(&mut self) {
        let first = self.contenders.iter().find(|contender| contender.failure.is_none());
        let Some(((_, hash), first)) = self.reference.as_ref().zip(first) else { return };
        if self.same_output || first.outputs.iter().any(|output| output != hash) {
            return;
        }
        let differing: Vec<&str> = self
            .contenders
            .iter()
            .filter(|contender| contender.outputs.iter().any(|output| output != hash))
            .map(Contender::name)
            .collect();
        if !differing.is_empty() {
            self.notes.push(format!(
                "stdout is the same in every run under {}, and differs under {}",
                first.name(),
                differing.join(", ")
            ));
        }
    }
}

/// Who runs when, the same in each comparison. As many rounds as there are contenders make a Latin square: each
/// stands once in each place. Within one, E. J. Williams's zigzag of 1949 changes who follows whom. The first
/// begins with the listed order, which warm-ups have too; the next ones are of shuffled contenders.
fn order(count: usize, round: u32) -> Vec<usize> {
    if count == 0 {
        return Vec::new();
    }
    let index = round.saturating_sub(1) as usize;
    let (square, row) = (index / count, index % count);
    let zigzag = |place: usize| match place % 2 {
        0 => (count - place / 2) % count,
        _ => place / 2 + 1,
    };
    let mut who = vec![0; count];
    for place in 0..count {
        who[zigzag(place)] = place;
    }
    if square > 0 {
        shuffle(&mut who, square as u64);
    }
    (0..count).map(|place| who[(zigzag(place) + row) % count]).collect()
}

/// Fisher and Yates's shuffle with splitmix64 (G. Steele and others, OOPSLA 2014).
fn shuffle(order: &mut [usize], seed: u64) {
    let mut state = seed;
    for at in (1..order.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        order.swap(at, ((mixed ^ (mixed >> 31)) % (at as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_stands_in_every_place_equally_often() {
        for count in 1..=13 {
            assert_eq!(order(count, 0), (0..count).collect::<Vec<_>>(), "warm-up");
            assert_eq!(order(count, 1), order(count, 0));
            let mut times = vec![vec![0; count]; count];
            for round in 1..=40 {
                let now = order(count, round);
                assert_eq!(now, order(count, round));
                for (place, who) in now.into_iter().enumerate() {
                    times[who][place] += 1;
                }
                let all = times.iter().flatten();
                let (least, most) = (all.clone().min(), all.max());
                let differ = most.zip(least).map(|(most, least)| most - least);
                assert!(differ.is_some_and(|by| by <= 1), "{count}, round {round}: {times:?}");
            }
        }
    }

    #[test]
    fn everyone_follows_everyone() {
        for count in [2, 4, 6, 8] {
            for square in 0..3 {
                let rounds = (1..=count).map(|row| order(count as usize, square * count + row));
                let pairs: std::collections::HashSet<(usize, usize)> = rounds
                    .flat_map(|o| o.windows(2).map(|w| (w[0], w[1])).collect::<Vec<_>>())
                    .collect();
                assert_eq!(pairs.len() as u32, count * (count - 1), "{count}, square {square}");
            }
        }
        assert_ne!(order(8, 1), order(8, 9), "squares differ");
    }

    #[test]
    fn seconds_and_signals_are_checked() {
        assert_eq!(seconds("1.5"), Ok(1.5));
        for text in ["", "-1", "nan", "inf", "1e9", "x"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!((signal("TERM"), signal("SIGINT"), signal("1")), (Ok(15), Ok(2), Ok(1)));
        assert!(signal("KILL").expect_err("not a stop").contains("TERM, INT"));
    }
}
