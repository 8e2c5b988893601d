//! `weir run`: starts the command with the library in front, stays out of its way, and gathers what
//! the report needs. One thread, one loop: signals, ended children and the next look at /proc.
//! Called by `main` alone. It does not know how figures are decoded or printed.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::elf;
use crate::errors::{self, Exit, NOT_EXECUTABLE, NOT_FOUND, TOOL, USAGE};
use crate::library::{LIBRARY, LIBRARY_NAME, Placed};
use crate::options;
use crate::output::{self, Output, reason};
use crate::plot;
use crate::program;
use crate::report::{self, Outcome};
use crate::sys::{self, Change, Signals, Waited};
use crate::timeline::Timeline;
use crate::verdict::{self, Context};
use crate::watch::Watcher;
use crate::{procfs, wire};
use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long processes that outlive the command may take to end before they count as running on.
const GRACE: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct Args {
    /// Time between two samples of memory, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    interval: u32,
    /// Write everything that is known to FILE as JSON; here and below, - is stdout, after what the command wrote
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run-time options of the library, as NAME=VALUE:NAME=VALUE ('weir options' lists them)
    #[arg(long, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Draw resident against live memory over time, of all processes together, into FILE as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write the samples that --plot draws to FILE, as columns with tabs between them
    #[arg(long, value_name = "FILE")]
    plot_data: Option<PathBuf>,
    /// Print no report
    #[arg(long, conflicts_with = "report")]
    quiet: bool,
    /// Write the report to FILE instead of stderr
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The program to run and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How the tool has to end.
pub enum End {
    Code(u8),
    Signal(i32),
}

/// The signals that a terminal sends to the whole group: the kernel's own have reached the command.
const TERMINALS: [i32; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP];
/// The stop signals, which the command answers first.
const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

pub fn run(args: Args) -> Result<End> {
    for text in &args.options {
        options::check(text).map_err(|error| Exit::error(USAGE, error.to_string()))?;
    }
    let Some((name, arguments)) = args.command.split_first() else {
        return Err(Exit::error(USAGE, "no command: write 'weir run -- PROGRAM ARGUMENTS'"));
    };
    let file = program::find(name, env::var_os("PATH").as_deref())?;
    let image = program::image(&file);
    let results = Results::open(&args)?;

    let signals = Signals::take(&[sys::ending().as_slice(), &STOPS].concat())
        .context("cannot receive signals: the limit of open files (ulimit -n) may be too low")?;
    let placed = Placed::new()?;
    // Without it, processes that outlive their parent are only lost to the report.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));

    let mut command = Command::new(&file);
    command.arg0(name).args(arguments);
    let changed = changed_environment(&placed, &args.options);
    command.envs(changed.iter().cloned());
    signals.restore_in(&mut command);
    sys::close_again_in(&mut command);
    if image.is_elf {
        let environment = full_environment(&changed);
        sys::execute_as_is(&mut command, &file, &args.command, &environment)
            .with_context(|| format!("cannot start {}", file.display()))?;
    }
    let began = Instant::now();
    let root = match command.spawn() {
        Ok(child) => child.id() as i32,
        Err(error) => return Err(start_error(&file, &error)),
    };

    let began_ns = sys::clock_ns().saturating_sub(began.elapsed().as_nanos() as u64);
    let timeline = Timeline::new(Duration::from_millis(args.interval.into()));
    let watcher = Watcher::new(&placed, root, &image, began, timeline);
    let gathered = Run { root, signals, watcher }.gather(began);
    let shown: Vec<String> = args.command.iter().map(|a| a.to_string_lossy().into()).collect();
    let (mut outcome, running) = gathered.outcome(shown, root, &placed);
    outcome.end_timeline(began_ns);
    if running {
        outcome.kept = placed.keep().map(|path| path.display().to_string());
    } else {
        drop(placed);
    }
    results.write(&outcome);
    Ok(match outcome.end {
        Change::Killed(signal) => End::Signal(signal),
        Change::Exited(code) | Change::Stopped(code) => End::Code(code as u8),
    })
}

/// Where the user wants what.
struct Results {
    json: Option<Output>,
    plot: Option<Output>,
    plot_data: Option<Output>,
    report: Option<Output>,
    quiet: bool,
}

impl Results {
    /// Before the command runs: a file that cannot be written is an error before an hour of work, not after.
    fn open(args: &Args) -> Result<Results> {
        output::check_distinct(&[
            ("--json", args.json.as_deref()),
            ("--plot", args.plot.as_deref()),
            ("--plot-data", args.plot_data.as_deref()),
            ("--report", args.report.as_deref()),
        ])?;
        let open = |file: &Option<PathBuf>| file.as_deref().map(Output::new).transpose();
        Ok(Results {
            json: open(&args.json)?,
            plot: open(&args.plot)?,
            plot_data: open(&args.plot_data)?,
            report: open(&args.report)?,
            quiet: args.quiet,
        })
    }

    fn write(self, outcome: &Outcome) {
        write_result(self.json, || report::json(outcome).context("cannot write JSON"));
        write_result(self.plot_data, || Ok(outcome.timeline.tsv()));
        write_result(self.plot, || plot::draw(&outcome.command, &outcome.timeline));
        if self.report.is_none() && !self.quiet {
            let _ = io::stderr().write_all(report::text(outcome).as_bytes());
        }
        let text = report::text(outcome);
        if !write_result(self.report, || Ok(text.clone())) {
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }
}

/// The command has run: its status is worth more than a result. False: it was asked for and is not written.
fn write_result(file: Option<Output>, text: impl FnOnce() -> Result<String>) -> bool {
    let Some(file) = file else { return true };
    let written = text().and_then(|text| file.write(&text));
    if let Err(error) = &written {
        errors::say(format_args!("{error:#}"));
    }
    written.is_ok()
}

pub fn start_error(file: &Path, error: &io::Error) -> anyhow::Error {
    let shown = file.display();
    match error.raw_os_error() {
        Some(libc::ENOENT) => {
            let why = program::missing_part(file).unwrap_or_else(|| reason(error));
            Exit::error(NOT_FOUND, format!("cannot start {shown}: {why}"))
        }
        Some(libc::EACCES | libc::EPERM) => Exit::error(
            NOT_EXECUTABLE,
            format!(
                "cannot execute {shown}: permission denied; check its mode, its interpreter's and whether the file system is mounted noexec"
            ),
        ),
        Some(libc::ENOEXEC) => Exit::error(
            NOT_EXECUTABLE,
            format!("cannot execute {shown}: it is built for another machine, or damaged"),
        ),
        _ => Exit::error(
            if error.raw_os_error() == Some(libc::E2BIG) { NOT_EXECUTABLE } else { TOOL },
            format!("cannot start {shown}: {}", reason(error)),
        ),
    }
}

/// The variables that the command gets, or gets changed.
fn changed_environment(placed: &Placed, options: &[String]) -> Vec<(OsString, OsString)> {
    let joined = |first: OsString, second: Option<OsString>| {
        let mut value = first;
        if let Some(second) = second.filter(|second| !second.is_empty()) {
            value.push(":");
            value.push(second);
        }
        value
    };
    let wire = env::var_os("WEIR_WIRE").map(PathBuf::from);
    let before = env::var_os("LD_PRELOAD").map(|list| without_outer_library(list, wire.as_deref()));
    let preload = joined(placed.library.clone().into(), before);
    let mut changed =
        vec![("LD_PRELOAD".into(), preload), ("WEIR_WIRE".into(), placed.wire_path.clone().into())];
    if !options.is_empty() {
        let own = OsString::from(options.join(":"));
        // The later word wins in the library: the command line over the environment.
        let value = match env::var_os("WEIR_OPTIONS").filter(|before| !before.is_empty()) {
            Some(before) => joined(before, Some(own)),
            None => own,
        };
        changed.push(("WEIR_OPTIONS".into(), value));
    }
    changed
}

/// The preload list without the library of a `weir run` around this one, which lies beside its wire: both
/// copies would claim slots in the new wire, and of those behind the first no call would come.
fn without_outer_library(list: OsString, wire: Option<&Path>) -> OsString {
    let Some(folder) = wire.and_then(Path::parent) else { return list };
    let is_outer = |entry: &[u8]| {
        let path = Path::new(OsStr::from_bytes(entry));
        path.file_name().is_some_and(|name| name == LIBRARY_NAME) && path.parent() == Some(folder)
    };
    let split = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
    let entries = || list.as_bytes().split(split);
    if !entries().any(is_outer) {
        return list;
    }
    let kept: Vec<&[u8]> = entries().filter(|entry| !is_outer(entry)).collect();
    OsString::from_vec(kept.join(&b':'))
}

/// The whole environment of the command.
fn full_environment(changed: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
    let kept = env::vars_os().filter(|(name, _)| changed.iter().all(|(other, _)| other != name));
    kept.chain(changed.iter().cloned()).collect()
}

/// Whether the kernel, which cuts names to 15 bytes, calls this program `name`.
fn is_called(program: &str, name: &str) -> bool {
    let file = program.rsplit('/').next().unwrap_or(program);
    file == name || (name.len() >= 15 && file.starts_with(name))
}

struct Run<'a> {
    root: i32,
    signals: Signals,
    watcher: Watcher<'a>,
}

struct Gathered<'a> {
    watcher: Watcher<'a>,
    end: Change,
    elapsed: Duration,
    user: Duration,
    system: Duration,
    resident_max_bytes: u64,
    root_had_children: bool,
    /// The kernel's name of the root when it ended: that of the last program that it executed.
    root_name: String,
}

impl<'a> Run<'a> {
    fn gather(mut self, began: Instant) -> Gathered<'a> {
        let mut user = Duration::ZERO;
        let mut system = Duration::ZERO;
        let mut root_had_children = false;
        let mut root_name = String::new();
        let root_end: Waited = loop {
            let until = Instant::now() + self.watcher.pause;
            self.watcher.look();
            // Looking may have taken a while; signals are answered at least once per look.
            let mut ended = None;
            loop {
                self.wait(until.saturating_duration_since(Instant::now()));
                self.receive();
                // Asked while the root is a zombie; after wait_any nothing is left of it.
                let zombie = sys::has_ended(self.root).then(|| procfs::stat(self.root)).flatten();
                if let Some(stat) = zombie {
                    root_had_children = stat.children_faults > 0;
                    root_name = stat.name;
                }
                while let Some(waited) = sys::wait_any() {
                    ended = ended.or(self.reaped(waited, &mut user, &mut system));
                }
                if ended.is_some() || Instant::now() >= until {
                    break;
                }
            }
            if let Some(waited) = ended {
                break waited;
            }
        };
        let elapsed = began.elapsed();
        self.watcher.timeline.stop();
        self.let_others_end(&mut user, &mut system);
        Gathered {
            watcher: self.watcher,
            end: root_end.change,
            elapsed,
            user,
            system,
            resident_max_bytes: root_end.resident_max_bytes,
            root_had_children,
            root_name,
        }
    }

    /// Sleeps until a signal arrives or the time is over.
    fn wait(&self, time: Duration) {
        let fd = self.signals.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let timeout =
            Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let _ = poll(&mut fds, Some(&timeout));
    }

    fn receive(&mut self) {
        while let Some(received) = self.signals.next() {
            let signal = received.signal;
            // What a process of the command sent to its group, the command has as well. A timer that was set
            // before the tool was executed (alarm) would have been the command's.
            let meant_for_tool = match received.sender {
                Some(sender) => !self.watcher.is_descendant(sender),
                None => !TERMINALS.contains(&signal),
            };
            if signal != libc::SIGCHLD && !STOPS.contains(&signal) && meant_for_tool {
                sys::kill(self.root, signal);
            }
        }
    }

    /// Takes note of a child; returns the root's end.
    fn reaped(
        &mut self,
        waited: Waited,
        user: &mut Duration,
        system: &mut Duration,
    ) -> Option<Waited> {
        if let Change::Stopped(signal) = waited.change {
            if waited.pid == self.root {
                self.stop_along(signal);
            }
            return None;
        }
        *user += waited.user;
        *system += waited.system;
        self.watcher.ended(waited.pid, waited.change);
        (waited.pid == self.root).then_some(waited)
    }

    /// The command stopped, so the shell must see the tool stop; and when the tool goes on, so does
    /// the command, even if only the tool was told.
    fn stop_along(&self, signal: i32) {
        self.signals.stop_self(signal);
        if procfs::stat(self.root).is_some_and(|stat| stat.state == 'T') {
            sys::kill(self.root, libc::SIGCONT);
        }
    }

    /// Processes that outlive the root get a moment, so that a last child is not taken for a daemon.
    fn let_others_end(&mut self, user: &mut Duration, system: &mut Duration) {
        let until = Instant::now() + GRACE;
        loop {
            while let Some(waited) = sys::wait_any() {
                self.reaped(waited, user, system);
            }
            self.watcher.look();
            if !self.watcher.any_running() || Instant::now() >= until {
                return;
            }
            self.wait(self.watcher.pause);
            while self.signals.next().is_some() {}
        }
    }
}

impl Gathered<'_> {
    /// The outcome, and whether processes are still running.
    fn outcome(self, command: Vec<String>, root: i32, placed: &Placed) -> (Outcome, bool) {
        let running = self.watcher.any_running();
        let look_pause = self.watcher.pause_longest;
        let (processes, timeline) = self.watcher.into_parts();
        let read = wire::header(&placed.wire)
            .and_then(|header| Ok((header, wire::slots(&placed.wire, &header)?)));
        let (rows, wire) = match read {
            Ok((header, slots)) => {
                let context = Context {
                    library_machine: elf::inspect(&LIBRARY, &[]).map_or(0, |elf| elf.machine),
                    slots_refused: header.slots_refused,
                };
                (verdict::rows(&processes, slots, &context), Ok(header))
            }
            Err(error) => (Vec::new(), Err(error.to_string())),
        };
        let has_children = rows.iter().any(|row| row.pid != root);
        // A root that ends under a name that nobody knows executed a program that nobody saw.
        let mut known = rows.iter().filter(|row| row.pid == root).map(|row| row.exe.as_str());
        let is_known = self.root_name.is_empty()
            || command.first().is_some_and(|name| is_called(name, &self.root_name))
            || known.any(|exe| is_called(exe, &self.root_name));
        let outcome = Outcome {
            command,
            root_pid: root,
            end: self.end,
            elapsed: self.elapsed,
            user: self.user,
            system: self.system,
            resident_max_bytes: self.resident_max_bytes,
            rows,
            wire,
            look_pause,
            timeline,
            may_have_missed: self.root_had_children || has_children || !is_known,
            kept: None,
        };
        (outcome, running)
    }
}
