//! The `weir` command line: takes the arguments apart and turns errors into one line and an exit code.
//! Nothing calls it. It does not know how a command is run.
//!
//! SPDX-License-Identifier: Apache-2.0

mod bench;
mod chart;
mod compare;
mod elf;
mod errors;
mod library;
mod options;
mod output;
mod plot;
mod pools;
mod procfs;
mod program;
mod report;
mod run;
mod stats;
mod sys;
mod timeline;
mod units;
mod verdict;
mod watch;
mod wire;

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use run::End;
use std::process::ExitCode;

/// Runs programs on the weir allocator and reports what it did for them.
#[derive(Parser)]
#[command(name = "weir", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a program on weir, then report memory, calls and which processes were reached
    ///
    /// The exit status is the program's own; a program that dies by a signal ends the tool by the same
    /// signal. Errors of the tool itself: 2 usage, 125 other failure, 126 not executable, 127 no such
    /// program.
    #[command(override_usage = "weir run [OPTIONS] -- COMMAND [ARGUMENTS]...")]
    Run(run::Args),
    /// Compare a program's time and memory under several allocators
    ///
    /// Runs the command on the system's malloc, on weir, and on each allocator that is installed or named,
    /// in interleaved rounds, with proof that its calls arrived there. Exit status: 0, 1 when a --fail-if
    /// condition is met, 2 usage, 3 when runs failed, differed or were not proven, 125 other failure,
    /// 126 not executable, 127 no such program.
    #[command(override_usage = "weir compare [OPTIONS] -- COMMAND [ARGUMENTS]...")]
    Compare(Box<compare::Args>),
    /// Compare allocators over a suite of workloads and installed programs
    ///
    /// Each workload runs as 'weir compare' runs a program. Exit status: 0, 1 when a --fail-if condition is
    /// met, 2 usage, 3 when runs failed or were not proven, 125 other failure.
    Bench(Box<bench::Args>),
    /// Show memory, calls and object pools of a running process
    ///
    /// The process must be one of a command that 'weir run' runs. It is neither stopped nor asked: the figures
    /// are those that it wrote last, at most some 50 ms ago while it takes and gives back memory.
    Stats(stats::Args),
    /// List the run-time options of the library
    Options,
    /// Print the versions of the tool and of the library inside it
    Version,
    /// Print the man page weir(1), or write it and those of the subcommands into a directory
    Man {
        /// Where weir.1, weir-run.1 and the others are written
        dir: Option<std::path::PathBuf>,
    },
    /// Print the completion script for a shell
    Completions { shell: clap_complete::Shell },
}

fn main() -> ExitCode {
    sys::fail_on_file_size();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => return usage(&error),
        // Help, which is what was asked for.
        Err(text) => return end(output::stdout(&text.to_string()).map(|()| End::Code(0))),
    };
    end(act(cli.action))
}

fn end(result: Result<End>) -> ExitCode {
    match result {
        Ok(End::Code(code)) => ExitCode::from(code),
        Ok(End::Signal(signal)) => {
            sys::die_by(signal);
            // The signal did not end this process; a shell would show the same number.
            ExitCode::from((128 + signal).clamp(0, 255) as u8)
        }
        Err(error) => {
            errors::say(format_args!("{error:#}"));
            ExitCode::from(errors::code(&error))
        }
    }
}

fn act(action: Action) -> Result<End> {
    let text = match action {
        Action::Run(args) => return run::run(args),
        Action::Compare(args) => return compare::compare(*args),
        Action::Bench(args) => return bench::bench(&args),
        Action::Stats(args) => {
            stats::stats(&args)?;
            return Ok(End::Code(0));
        }
        Action::Options => options::listing(),
        Action::Version => format!(
            "weir {} (library {}, {})\n",
            env!("CARGO_PKG_VERSION"),
            library::LIBRARY_VERSION,
            units::bytes(library::LIBRARY.len() as u64)
        ),
        Action::Man { dir: Some(dir) } => {
            clap_mangen::generate_to(Cli::command(), &dir)
                .with_context(|| format!("cannot write man pages into {}", dir.display()))?;
            return Ok(End::Code(0));
        }
        Action::Man { dir: None } => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .context("cannot make the page")?;
            String::from_utf8_lossy(&page).into_owned()
        }
        Action::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "weir", &mut script);
            String::from_utf8_lossy(&script).into_owned()
        }
    };
    output::stdout(&text)?;
    Ok(End::Code(0))
}

/// An error becomes one line.
fn usage(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    let first: Vec<&str> =
        text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let first = first.join(" ");
    let first = first.strip_prefix("error: ").unwrap_or(&first);
    let known = ["run", "compare", "bench", "stats"];
    let named = std::env::args_os().nth(1).unwrap_or_default();
    let action = known.into_iter().find(|name| named == *name).unwrap_or("run");
    errors::say(match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "nothing to do: 'weir run -- PROGRAM' runs a program, 'weir --help' lists the rest"
                .into()
        }
        ErrorKind::MissingRequiredArgument if action == "stats" => {
            "no process: write 'weir stats PID'".into()
        }
        ErrorKind::MissingRequiredArgument if first.contains("<COMMAND>") => {
            format!("no command: write 'weir {action} -- PROGRAM ARGUMENTS'")
        }
        _ => format!("{first}; 'weir --help' and 'weir {action} --help' show the usage"),
    });
    ExitCode::from(errors::USAGE)
}
