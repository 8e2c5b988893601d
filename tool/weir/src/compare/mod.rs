//! `weir compare`: the same command under several allocators, in interleaved rounds, and what came of it.
//! Called by `main`; `bench` uses its parts. It takes the command line apart; how runs are made, which count
//! and how they are shown is elsewhere.
//!
//! SPDX-License-Identifier: Apache-2.0

pub mod allocators;
pub mod condition;
pub mod engine;
mod json;
pub mod launch;
pub mod machine;
pub mod measure;
pub mod outcome;
pub mod plot;
pub mod progress;
mod proof;
mod sample;
pub mod server;
pub mod stats;
pub mod text;
mod witness;

use crate::errors::{Exit, USAGE};
use crate::library::{LIBRARY, LIBRARY_NAME};
use crate::output::{self, Output};
use crate::program;
use crate::run::End;
use crate::sys::{self, Signals};
use allocators::WEIR;
use anyhow::{Context, Result};
use condition::{Answer, Condition};
use engine::{Comparison, Plan};
use launch::Stage;
use outcome::{Contender, Outcome};
use progress::Progress;
use server::Server;
use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

/// A condition of --fail-if was met.
pub const CONDITION: u8 = 1;
/// Some run failed or was not proven.
pub const FAILED: u8 = 3;

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
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = output::STDOUT)]
    json: Option<PathBuf>,
    /// Draw resident memory over time for each allocator, as SVG; - is stdout, instead of the tables
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

pub fn compare(args: Args) -> Result<End> {
    let mut conditions = Vec::new();
    for text in &args.fail_if {
        conditions.push(Condition::parse(text).map_err(|why| Exit::error(USAGE, why))?);
    }
    let chosen = allocators::choose(&args.choice, "--only")?;
    check_conditions(&conditions, &chosen, args.rounds)?;
    let Some((name, _)) = args.command.split_first() else {
        return Err(Exit::error(USAGE, "no command: write 'weir compare -- PROGRAM ARGUMENTS'"));
    };
    let to_stdout = |path: &Option<PathBuf>| path.as_deref().is_some_and(output::is_stdout);
    if to_stdout(&args.json) && args.command.get(1).is_some_and(|word| word == "--") {
        let name = name.to_string_lossy();
        return Err(Exit::error(
            USAGE,
            format!("'{name} --': is '{name}' the file for the JSON? write --json=FILE"),
        ));
    }
    let file = program::find(name, std::env::var_os("PATH").as_deref())?;
    if let Some(input) = &args.input {
        // A folder can be opened, and then not be read.
        let readable = File::open(input).and_then(|file| match file.metadata()?.is_dir() {
            true => Err(ErrorKind::IsADirectory.into()),
            false => Ok(()),
        });
        readable.map_err(|error| {
            let why = output::reason(&error);
            Exit::error(USAGE, format!("--input: cannot read {}: {why}", input.display()))
        })?;
    }
    let tables = !args.quiet && !to_stdout(&args.json) && !to_stdout(&args.plot);
    let (json, plot) = (args.json.as_deref(), args.plot.as_deref());
    output::check_distinct(&[("--json", json), ("--plot", plot)])?;
    let json_file = json.map(Output::new).transpose()?;
    let plot_file = plot.map(Output::new).transpose()?;

    let signals = Signals::take(&sys::ending())
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

    let mut comparison = Comparison::new(&stage, contenders, Progress::new(args.quiet, None));
    comparison.same_output = args.same_output;
    comparison.show_output = args.show_output;
    comparison.prepare = args.prepare.as_deref();
    comparison.expect_status = args.expect_status;
    comparison.ignore_failure = args.ignore_failure;
    comparison.notes = machine::busy().into_iter().collect();
    let plan = Plan { warmup: args.warmup, rounds: args.rounds, budget_s: args.time_budget };
    let command = args.command.iter().map(|word| word.to_string_lossy().into()).collect();
    let (outcome, interrupted) = comparison.run(plan, command)?;
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
    // One that cannot be written does not take the others along.
    let written = [
        if tables { output::stdout(&format!("{table}{answers_text}")) } else { Ok(()) },
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
pub fn executed(file: PathBuf, command: &[OsString]) -> (PathBuf, Vec<OsString>) {
    let image = program::image(&file);
    let is_script = File::open(&file).is_ok_and(|opened| program::interpreter(&opened).is_some());
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

#[cfg(test)]
mod tests {
    use super::*;

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
