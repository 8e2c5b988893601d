//! Runs the command once under one allocator: through the launcher, with the witness in place, looking at
//! its memory meanwhile, and leaves nothing of it behind. Called by `compare` for each run. It does not
//! know what other runs there are or what the figures are for.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::sample::{Sampler, Seen};
use super::server::{self, Server};
use super::witness::{self, Slot};
use crate::errors;
use crate::library::{self, LAUNCHER, Place, WITNESS};
use crate::procfs;
use crate::program;
use crate::sys::{self, Change, Signals};
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use std::ffi::OsString;
use std::fs::File;
use std::hash::Hasher;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long processes that outlive the command may take to end by themselves, and after SIGTERM.
const GRACE: Duration = Duration::from_millis(200);
/// The end of stderr that is kept.
const STDERR_BYTES: usize = 2048;
/// `struct launcher_report`, which tool/native/launcher.h describes.
const REPORT_BYTES: usize = 88;
/// What the loader is to load before all else.
pub const PRELOAD: &str = "LD_PRELOAD";

/// What all runs have in common.
pub struct Stage<'a> {
    pub signals: &'a Signals,
    /// The file to execute and the command's arguments, its own name first.
    pub file: PathBuf,
    pub arguments: Vec<OsString>,
    /// The program that the kernel runs for the file: itself, or a script's interpreter.
    image: PathBuf,
    pub input: Option<PathBuf>,
    pub timeout: Option<Duration>,
    pub server: Option<Server>,
    /// The command writes `time_s SECONDS` to stdout, which is its time, what else it does is not; and
    /// `resident_bytes BYTES`, its memory at the end.
    pub tells_time: bool,
    /// Variables that neither the command nor shell lines get from the tool's own environment. With LD_PRELOAD among
    /// them, the allocator and the witness alone are preloaded.
    pub without: Vec<OsString>,
    launcher: PathBuf,
    witness_path: String,
    evidence_path: PathBuf,
    evidence: File,
    stdout: File,
    stderr: File,
    place: Place,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Killed(i32),
    /// A server that was stopped by our own signal, after its load had succeeded.
    Stopped,
    TimedOut,
    /// The load failed, or the server was never ready; says why.
    LoadFailed(String),
}

/// One run.
#[derive(Debug, Clone)]
pub struct Trial {
    pub end: End,
    /// The command's own time; of a server, the time of its load.
    pub wall: Duration,
    pub user: Duration,
    pub system: Duration,
    /// The largest process, as the kernel counts it.
    pub largest_bytes: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub switches: u64,
    pub series: Vec<(f64, u64)>,
    pub seen: Vec<Seen>,
    pub slots: Vec<Slot>,
    /// Process images that found no slot.
    pub refused: u32,
    /// Resident bytes of a server after its load and some rest.
    pub settled_bytes: Option<u64>,
    pub stdout_hash: u64,
    pub stderr_tail: String,
    /// Processes that were still running afterwards and were killed.
    pub leftovers: usize,
    pub root: i32,
}

/// The user asked to end it all.
#[derive(Debug)]
pub struct Interrupted(pub i32);

impl std::fmt::Display for Interrupted {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "interrupted by {}", sys::signal_name(self.0))
    }
}

impl std::error::Error for Interrupted {}

impl<'a> Stage<'a> {
    pub fn new(signals: &'a Signals, file: PathBuf, arguments: Vec<OsString>) -> Result<Stage<'a>> {
        let mut place = Place::new();
        let launcher = place.code("weir-launcher", LAUNCHER)?;
        let witness_path = place.code("libweir-witness.so", WITNESS)?.display().to_string();
        // Where root runs services that drop their rights, those have to write here too; the directory
        // cannot be listed and its name is random.
        let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
        let data = |name, mode| {
            let made = place.data(name, mode);
            made.map_err(|error| library::cannot_make("files", &error))
        };
        let (evidence_path, evidence) = data("evidence", mode)?;
        let (_, stdout) = data("stdout", 0o600)?;
        let (_, stderr) = data("stderr", 0o600)?;
        let image = program::image(&file).path;
        // What a server's load leaves behind comes to the tool, which ends it.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Ok(Stage {
            signals,
            image,
            file,
            arguments,
            input: None,
            timeout: None,
            server: None,
            tells_time: false,
            without: Vec::new(),
            launcher,
            witness_path,
            evidence_path,
            evidence,
            stdout,
            stderr,
            place,
        })
    }

    /// A library of the tool, placed where every run can load it.
    pub fn place_library(&mut self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        self.place.code(name, bytes)
    }

    /// A file for output that is not kept.
    pub fn scratch(&self, name: &str) -> Result<File> {
        let made = self.place.data(name, 0o600);
        Ok(made.map_err(|error| library::cannot_make("a file for output", &error))?.1)
    }

    /// Runs the command once, with `library` preloaded.
    pub fn run(&self, library: Option<&Path>, environment: &[(String, String)]) -> Result<Trial> {
        witness::init(&self.evidence)
            .map_err(|error| library::cannot_make("the witness's file", &error))?;
        for file in [&self.stdout, &self.stderr] {
            file.set_len(0)?;
            (&mut &*file).seek(SeekFrom::Start(0))?;
        }
        if let Some(server) = &self.server {
            server.check_port()?;
        }
        let mut run = self.start(library, environment)?;
        let outcome = run.follow();
        // Whatever happened, nothing of the run stays.
        let leftovers = run.clear();
        let (end, wall, settled_bytes) = outcome?;
        let (end, wall, settled_bytes) = self.told(end, wall, settled_bytes)?;
        let ended = run.ended.unwrap_or_default();
        let header = witness::header(&self.evidence)?;
        let slots = witness::slots(&self.evidence, &header)?;
        let Run { mut sampler, root, .. } = run;
        sampler.know_root(&self.image);
        Ok(Trial {
            end,
            wall,
            user: ended.user,
            system: ended.system,
            largest_bytes: ended.resident_max_bytes,
            minor_faults: ended.minor_faults,
            major_faults: ended.major_faults,
            switches: ended.switches,
            series: sampler.series,
            seen: sampler.seen,
            slots,
            refused: header.refused,
            settled_bytes,
            stdout_hash: hash(&self.stdout)?,
            stderr_tail: tail(&self.stderr)?,
            leftovers,
            root,
        })
    }

    /// The time that the command tells, and its memory, where it does.
    fn told(
        &self,
        end: End,
        wall: Duration,
        settled_bytes: Option<u64>,
    ) -> Result<(End, Duration, Option<u64>)> {
        if !self.tells_time || end != End::Exited(0) {
            return Ok((end, wall, settled_bytes));
        }
        let (stdout, _) = self.captured()?;
        let refused = |what: &str| End::LoadFailed(format!("it did not tell its {what}"));
        Ok(match (told_seconds(&stdout), told_bytes(&stdout)) {
            (Some(seconds), Some(bytes)) => (end, seconds, Some(bytes)),
            (None, _) => (refused("time"), wall, settled_bytes),
            (_, None) => (refused("memory"), wall, settled_bytes),
        })
    }

    fn start(&self, library: Option<&Path>, environment: &[(String, String)]) -> Result<Run<'_>> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&reader, true)?;
        let mut command = Command::new(&self.launcher);
        command.arg(writer.as_raw_fd().to_string()).arg(&self.file).args(&self.arguments);
        command.env_remove("WEIR_WIRE").env("WITNESS_FILE", &self.evidence_path);
        self.clean(&mut command);
        command.env(PRELOAD, self.preload(library));
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(match &self.input {
            Some(path) => Stdio::from(
                File::open(path).with_context(|| format!("cannot read {}", path.display()))?,
            ),
            None => Stdio::null(),
        });
        command.stdout(self.stdout.try_clone()?).stderr(self.stderr.try_clone()?);
        self.signals.restore_in(&mut command);
        // For the moment of the start, the launcher inherits the descriptor.
        fcntl_setfd(&writer, FdFlags::empty())?;
        let launcher = command.spawn().context("cannot start the launcher")?;
        drop(writer);
        let mut run = Run {
            stage: self,
            sampler: Sampler::new(launcher.id() as i32, &self.evidence, &self.witness_path),
            launcher,
            reports: reader,
            root: 0,
            started_at: Instant::now(),
            started_ns: 0,
            ended: None,
            helper: None,
        };
        if let Err(error) = run.await_start() {
            run.clear();
            return Err(error);
        }
        Ok(run)
    }

    fn preload(&self, library: Option<&Path>) -> OsString {
        let mut list = OsString::new();
        if let Some(library) = library {
            list.push(library);
            list.push(":");
        }
        list.push(&self.witness_path);
        let before = std::env::var_os(PRELOAD).filter(|before| !before.is_empty());
        if let Some(before) = before.filter(|_| !self.without.iter().any(|name| name == PRELOAD)) {
            list.push(":");
            list.push(before);
        }
        list
    }

    fn clean(&self, command: &mut Command) {
        self.without.iter().for_each(|name| {
            command.env_remove(name);
        });
    }

    /// The captured output of the last run.
    pub fn captured(&self) -> Result<(Vec<u8>, Vec<u8>)> {
        let whole = |file: &File| -> Result<Vec<u8>> {
            let mut bytes = Vec::new();
            (&mut &*file).seek(SeekFrom::Start(0))?;
            (&mut &*file).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        Ok((whole(&self.stdout)?, whole(&self.stderr)?))
    }

    /// Runs a shell line that is not measured, on the system's malloc.
    pub fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(line).stdin(Stdio::null());
        self.clean(&mut command);
        self.signals.restore_in(&mut command);
        command
    }

    /// Waits for a child of the tool; a signal to the tool ends it.
    pub fn wait_for(&self, child: &mut Child) -> Result<ExitStatus> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            let pause = Duration::from_millis(100);
            if let Err(error) = self.pause(pause, None) {
                sys::kill(child.id() as i32, libc::SIGKILL);
                let _ = child.wait();
                return Err(error);
            }
        }
    }

    /// Sleeps until a signal arrives, a report comes or the time is over. A signal that asks the tool to
    /// end is an error.
    fn pause(&self, time: Duration, reports: Option<&OwnedFd>) -> Result<()> {
        let signals = self.signals.fd();
        let mut fds = vec![PollFd::new(&signals, PollFlags::IN)];
        let reports = reports.map(AsFd::as_fd);
        if let Some(reports) = &reports {
            fds.push(PollFd::new(reports, PollFlags::IN));
        }
        let timeout =
            Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let _ = poll(&mut fds, Some(&timeout));
        while let Some(received) = self.signals.next() {
            if received.signal != libc::SIGCHLD {
                bail!(Interrupted(received.signal));
            }
        }
        Ok(())
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Ended {
    status: i32,
    start_ns: u64,
    end_ns: u64,
    user: Duration,
    system: Duration,
    resident_max_bytes: u64,
    minor_faults: u64,
    major_faults: u64,
    switches: u64,
}

enum Report {
    Failed(i32),
    Started { pid: i32, start_ns: u64 },
    Ended(Ended),
}

/// The launcher and what it started.
struct Run<'a> {
    stage: &'a Stage<'a>,
    sampler: Sampler<'a>,
    launcher: Child,
    reports: OwnedFd,
    root: i32,
    started_at: Instant,
    started_ns: u64,
    ended: Option<Ended>,
    /// The load of a server or its test of readiness, while it runs.
    helper: Option<Helper>,
}

/// A shell line beside a server, in a process group of its own.
struct Helper {
    child: Child,
    /// The tool's own children when it was started: what else comes to the tool is the line's.
    before: Vec<i32>,
}

/// How a shell line beside a server ended.
enum Helped {
    Ended(ExitStatus),
    ServerGone,
    TimedOut,
}

type Outcome = (End, Duration, Option<u64>);

impl Run<'_> {
    fn await_start(&mut self) -> Result<()> {
        while self.root == 0 {
            match self.report()? {
                Some(Report::Started { pid, start_ns }) => {
                    self.root = pid;
                    self.started_ns = start_ns;
                    self.started_at = Instant::now();
                    self.sampler.begin(pid);
                }
                Some(Report::Failed(error)) => return Err(self.exec_error(error)),
                Some(Report::Ended(_)) => bail!("the launcher reported an end before a start"),
                None => self.stage.pause(Duration::from_millis(100), Some(&self.reports))?,
            }
        }
        Ok(())
    }

    fn exec_error(&self, error: i32) -> anyhow::Error {
        crate::run::start_error(&self.stage.file, &std::io::Error::from_raw_os_error(error))
    }

    /// The next report, if there is one; an error when the launcher is gone without the last one.
    fn report(&mut self) -> Result<Option<Report>> {
        let mut bytes = [0; REPORT_BYTES];
        match rustix::io::read(&self.reports, &mut bytes) {
            Ok(REPORT_BYTES) => Ok(Some(decode(&bytes)?)),
            Ok(_) => bail!("the launcher ended without a report"),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error).context("cannot read the launcher's report"),
        }
    }

    fn follow(&mut self) -> Result<Outcome> {
        match &self.stage.server {
            None => {
                let in_time = self.follow_until(self.stage.timeout, |_| Ok(false))?;
                let Some(ended) = self.ended.filter(|_| in_time) else {
                    return Ok((End::TimedOut, self.started_at.elapsed(), None));
                };
                Ok((
                    end_of(ended.status),
                    Duration::from_nanos(ended.end_ns - ended.start_ns),
                    None,
                ))
            }
            Some(server) => self.serve(server),
        }
    }

    /// Looks at the command until it has ended, `done` says so, or the time is over. False for the last.
    fn follow_until(
        &mut self,
        limit: Option<Duration>,
        mut done: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<bool> {
        let began = Instant::now();
        loop {
            let until = Instant::now() + self.sampler.pause;
            self.sampler.look();
            loop {
                while self.ended.is_none()
                    && let Some(report) = self.report()?
                {
                    match report {
                        Report::Ended(ended) => self.ended = Some(ended),
                        Report::Failed(error) => return Err(self.exec_error(error)),
                        Report::Started { .. } => bail!("the launcher reported two starts"),
                    }
                }
                if done(self)? || self.is_over() {
                    return Ok(true);
                }
                if limit.is_some_and(|limit| began.elapsed() >= limit) {
                    return Ok(false);
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                let reports = self.ended.is_none().then_some(&self.reports);
                self.stage.pause(left, reports)?;
            }
        }
    }

    /// A command is over when it has ended; a server that went into the background, with its last process.
    fn is_over(&self) -> bool {
        self.ended.is_some() && (self.stage.server.is_none() || !self.sampler.any_left)
    }

    fn serve(&mut self, server: &Server) -> Result<Outcome> {
        let began = Instant::now();
        let failed = |text: String| Ok((End::LoadFailed(text), Duration::ZERO, None));
        while !self.is_ready(server, began)? {
            if !self.look_for(server::POLL)? {
                return failed(self.early_end("before it was ready"));
            }
            if began.elapsed() > server.ready_timeout {
                let seconds = server.ready_timeout.as_secs_f64();
                return failed(format!(
                    "not ready after {seconds} s; --ready-timeout gives it longer"
                ));
            }
        }
        // Without a test of readiness, a load that fails at once came too early.
        let wall = loop {
            let (helped, wall) =
                self.help(|stage| server.start_load(stage).map(Some), self.stage.timeout)?;
            let status = match helped {
                Helped::Ended(status) => status,
                Helped::TimedOut => return Ok((End::TimedOut, wall, None)),
                Helped::ServerGone => return failed(self.early_end("under its load")),
            };
            if status.success() {
                break wall;
            }
            if server.tests_readiness() || began.elapsed() > server.ready_timeout {
                return failed(format!("the load ended with {status}{}", server.load_stderr()));
            }
            if !self.look_for(server::POLL)? {
                return failed(self.early_end("before its load succeeded"));
            }
        };
        if !self.look_for(server.settle)? {
            return failed(self.early_end("after its load"));
        }
        self.sampler.look();
        let settled = self.sampler.series.last().map(|(_, bytes)| *bytes);
        self.stop(server)?;
        let ended = match self.ended {
            Some(ended) => end_of(ended.status),
            None => return failed("did not stop: SIGKILL was needed; see --stop-signal".into()),
        };
        // By the signal, with the status that a shell gives for it, or in peace.
        let signal = server.stop_signal;
        let end = match ended {
            End::Exited(0) => End::Stopped,
            End::Exited(code) if code == 128 + signal => End::Stopped,
            End::Killed(killed_by) if killed_by == signal => End::Stopped,
            other => other,
        };
        Ok((end, wall, settled))
    }

    fn is_ready(&mut self, server: &Server, began: Instant) -> Result<bool> {
        if !server.port_is_ready() {
            return Ok(false);
        }
        let left = server.ready_timeout.saturating_sub(began.elapsed());
        let (helped, _) = self.help(|stage| server.start_ready(stage), Some(left))?;
        Ok(matches!(helped, Helped::Ended(status) if status.success()))
    }

    /// Runs a shell line beside the server, and ends what it leaves behind. No line has succeeded at once.
    fn help(
        &mut self,
        start: impl FnOnce(&Stage) -> Result<Option<Child>>,
        limit: Option<Duration>,
    ) -> Result<(Helped, Duration)> {
        let before = procfs::descendants(process::id() as i32, &[]);
        let began = Instant::now();
        let Some(child) = start(self.stage)? else {
            return Ok((Helped::Ended(ExitStatus::default()), Duration::ZERO));
        };
        self.helper = Some(Helper { child, before });
        let mut status = None;
        let in_time = self.follow_until(limit, |run| {
            let Some(helper) = &mut run.helper else { return Ok(true) };
            status = helper.child.try_wait()?;
            Ok(status.is_some())
        })?;
        let wall = began.elapsed();
        self.clear_helper();
        let helped = match status {
            Some(status) => Helped::Ended(status),
            None if in_time => Helped::ServerGone,
            None => Helped::TimedOut,
        };
        Ok((helped, wall))
    }

    /// Ends the shell line and what it left behind: the tool has adopted all that lost its parent.
    fn clear_helper(&mut self) {
        let Some(Helper { mut child, before }) = self.helper.take() else { return };
        if !matches!(child.try_wait(), Ok(Some(_))) {
            sys::kill(-(child.id() as i32), libc::SIGKILL);
            let _ = child.wait();
        }
        let began = Instant::now();
        let mut asked = Vec::new();
        loop {
            let pids = procfs::descendants(process::id() as i32, &before);
            // One of another user may not be for us to end.
            if pids.is_empty() || began.elapsed() > 5 * GRACE {
                return;
            }
            for pid in &pids {
                if began.elapsed() > GRACE {
                    sys::kill(*pid, libc::SIGKILL);
                } else if !asked.contains(pid) {
                    sys::kill(*pid, libc::SIGTERM);
                    asked.push(*pid);
                }
            }
            std::thread::sleep(Duration::from_millis(2));
            pids.iter().for_each(|pid| sys::reap(*pid));
        }
    }

    /// Looks on for a while. False if the server is gone.
    fn look_for(&mut self, time: Duration) -> Result<bool> {
        Ok(!self.follow_until(Some(time), |_| Ok(false))?)
    }

    /// Asks the command to end, then whatever it leaves behind; a server in the background is left behind.
    fn stop(&mut self, server: &Server) -> Result<()> {
        if self.ended.is_none() {
            sys::kill(self.root, server.stop_signal);
            self.follow_until(Some(server.grace), |run| Ok(run.ended.is_some()))?;
        }
        for pid in self.sampler.descendants() {
            sys::kill(pid, server.stop_signal);
        }
        self.follow_until(Some(server.grace), |_| Ok(false))?;
        Ok(())
    }

    fn early_end(&self, when: &str) -> String {
        let how = match self.ended {
            Some(ended) => end_of(ended.status).to_string(),
            None => "no process is left".to_owned(),
        };
        format!("the server ended {when}: {how}")
    }

    /// Ends whatever is left, so that the next run has the machine for itself.
    fn clear(&mut self) -> usize {
        self.clear_helper();
        let mut began = Instant::now();
        let mut leftovers = 0;
        // Those that are about to end by themselves may; a command that has not ended is not one.
        let mut signal = if self.ended.is_some() { 0 } else { libc::SIGKILL };
        loop {
            let pids = self.sampler.descendants();
            if pids.is_empty() {
                break;
            }
            if signal == 0 && began.elapsed() > GRACE {
                (signal, began) = (libc::SIGTERM, Instant::now());
                leftovers = pids.len();
                pids.iter().for_each(|pid| sys::kill(*pid, signal));
            } else if signal == libc::SIGTERM && began.elapsed() > GRACE {
                signal = libc::SIGKILL;
            }
            if signal == libc::SIGKILL {
                // A program that became another user's (setuid) is not for us to end.
                if began.elapsed() > 5 * GRACE {
                    for pid in &pids {
                        errors::say(format_args!(
                            "process {pid} cannot be ended: is it another user's? it is left running"
                        ));
                    }
                    leftovers = pids.len();
                    let _ = self.launcher.kill();
                    break;
                }
                pids.iter().for_each(|pid| sys::kill(*pid, signal));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.launcher.wait();
        // A killed command has its report by now.
        if self.ended.is_none()
            && let Ok(Some(Report::Ended(ended))) = self.report()
        {
            self.ended = Some(ended);
        }
        leftovers
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Exited(code) => write!(out, "exit status {code}"),
            End::Killed(signal) => write!(out, "killed by {}", sys::signal_name(*signal)),
            End::Stopped => out.write_str("stopped"),
            End::TimedOut => out.write_str("timed out"),
            End::LoadFailed(why) => out.write_str(why),
        }
    }
}

fn end_of(status: i32) -> End {
    match sys::change(status) {
        Change::Killed(signal) => End::Killed(signal),
        Change::Exited(code) | Change::Stopped(code) => End::Exited(code),
    }
}

fn decode(bytes: &[u8; REPORT_BYTES]) -> Result<Report> {
    let int = |at: usize| {
        let mut raw = [0; 4];
        raw.copy_from_slice(&bytes[at..at + 4]);
        i32::from_ne_bytes(raw)
    };
    let long = |at: usize| {
        let mut raw = [0; 8];
        raw.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(raw)
    };
    Ok(match int(0) {
        1 => Report::Failed(int(4)),
        2 => Report::Started { pid: int(8), start_ns: long(16) },
        3 => Report::Ended(Ended {
            status: int(4),
            start_ns: long(16),
            end_ns: long(24).max(long(16)),
            user: Duration::from_micros(long(32)),
            system: Duration::from_micros(long(40)),
            resident_max_bytes: long(48) * 1024,
            minor_faults: long(56),
            major_faults: long(64),
            switches: long(72) + long(80),
        }),
        other => bail!("the launcher wrote a report of unknown kind {other}"),
    })
}

/// The value of the line `NAME VALUE`.
pub fn told(stdout: &[u8], name: &str) -> Option<String> {
    let text = String::from_utf8_lossy(stdout);
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
}

fn told_seconds(stdout: &[u8]) -> Option<Duration> {
    Duration::try_from_secs_f64(told(stdout, "time_s")?.parse().ok()?).ok()
}

fn told_bytes(stdout: &[u8]) -> Option<u64> {
    told(stdout, "resident_bytes")?.parse().ok()
}

fn hash(file: &File) -> Result<u64> {
    let mut hasher = std::hash::DefaultHasher::new();
    let mut bytes = [0; 1 << 16];
    let mut file = file;
    file.seek(SeekFrom::Start(0))?;
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(hasher.finish()),
            got => hasher.write(&bytes[..got]),
        }
    }
}

fn tail(file: &File) -> Result<String> {
    let mut file = file;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(STDERR_BYTES as u64)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_by_its_name_alone() {
        let stdout = b"malloc_in /a b\ntime_s 0.25\noperations 7\n";
        assert_eq!(told(stdout, "time_s").as_deref(), Some("0.25"));
        assert_eq!(told(stdout, "malloc_in").as_deref(), Some("/a b"));
        assert_eq!(told(b"time_s\n", "time_s"), None);
        assert_eq!(told_seconds(stdout), Some(Duration::from_millis(250)));
        assert_eq!(told_seconds(b"time_s -1\n"), None);
        assert_eq!((told_bytes(stdout), told_bytes(b"resident_bytes 4096\n")), (None, Some(4096)));
    }
}
