//! The system calls that need `unsafe`: signals, waiting with resource usage, dying by a signal. All
//! of the tool's unsafe code is here. Used by `run` alone; the tool has one thread. It does not know
//! which signals matter or what a status means for the report.
//!
//! SPDX-License-Identifier: Apache-2.0

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{Error, Read, Result};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

/// Whether SIGPIPE was ignored when the tool started. Rust's runtime ignores it before `main`, so it
/// has to be asked earlier.
/// Sync: written once before `main`, by the only thread; relaxed, as it orders nothing else.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
/// The same of SIGXFSZ, which `fail_on_file_size` ignores.
/// Sync: as above.
static FILE_SIZE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
/// Whether descriptors 0 to 2 were closed when the tool started: the runtime opens /dev/null in their place.
/// Sync: as above.
static WERE_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

extern "C" fn before_runtime() {
    PIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    FILE_SIZE_WAS_IGNORED.store(is_ignored(libc::SIGXFSZ), Ordering::Relaxed);
    for (fd, was_closed) in (0..).zip(&WERE_CLOSED) {
        // SAFETY: a plain system call that asks about a descriptor, open or not.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        was_closed.store(flags < 0, Ordering::Relaxed);
    }
}

// SAFETY: the loader calls the entries of this section as functions without results, once, before
// the Rust runtime starts; this one needs nothing of the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_RUNTIME: extern "C" fn() = before_runtime;

/// The signals by which others, timers and limits ask a process to end, and do if it does not answer. Left out:
/// those of its own errors, PIPE, which the runtime ignores, and XFSZ, which `fail_on_file_size` does.
pub fn ending() -> Vec<i32> {
    let named = [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGXCPU,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGSTKFLT,
    ];
    named.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).collect()
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; all-zero bytes are a valid sigaction.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

fn set_disposition(signal: i32, handler: libc::sighandler_t) {
    // SAFETY: the handler is SIG_DFL or SIG_IGN, never code.
    unsafe {
        libc::signal(signal, handler);
    }
}

/// From here on, a write beyond the limit of file sizes is an error of that write: by default it ends the
/// process, without a word and with its files left behind.
pub fn fail_on_file_size() {
    set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
}

/// Blocks signals and receives them through a descriptor, so that nothing runs asynchronously.
pub struct Signals {
    file: File,
    mask_before: libc::sigset_t,
    child_was_ignored: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Received {
    pub signal: i32,
    /// The process that sent it; None if the kernel did, as for ^C at a terminal.
    pub sender: Option<i32>,
}

impl Signals {
    /// Takes over SIGCHLD and those of `wanted` that are not ignored. An ignored signal stays ignored,
    /// here and in the command: that is how `nohup` and background jobs work.
    pub fn take(wanted: &[i32]) -> Result<Signals> {
        let child_was_ignored = is_ignored(libc::SIGCHLD);
        // With SIGCHLD ignored the kernel reaps children itself and their status is lost.
        set_disposition(libc::SIGCHLD, libc::SIG_DFL);
        let mut mask = empty_set();
        let mut mask_before = empty_set();
        // SAFETY: both sets are initialised, and signalfd gives a new descriptor that File then owns.
        unsafe {
            libc::sigaddset(&mut mask, libc::SIGCHLD);
            for signal in wanted.iter().filter(|signal| !is_ignored(**signal)) {
                libc::sigaddset(&mut mask, *signal);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, &mask, &mut mask_before) != 0 {
                return Err(Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(Error::last_os_error());
            }
            Ok(Signals { file: File::from_raw_fd(fd), mask_before, child_was_ignored })
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The next signal that has arrived, without waiting.
    pub fn next(&self) -> Option<Received> {
        const BYTES: usize = size_of::<libc::signalfd_siginfo>();
        let mut raw = [0u8; BYTES];
        match (&self.file).read(&mut raw) {
            Ok(BYTES) => {}
            _ => return None,
        }
        // SAFETY: the kernel filled in all bytes of the plain-data struct.
        let info: libc::signalfd_siginfo =
            unsafe { std::ptr::read_unaligned(raw.as_ptr().cast::<libc::signalfd_siginfo>()) };
        Some(Received {
            signal: info.ssi_signo as i32,
            // Codes above zero are the kernel's own.
            sender: (info.ssi_code <= 0).then_some(info.ssi_pid as i32),
        })
    }

    /// Lets `command` start with the signal state that the tool itself was started with.
    pub fn restore_in(&self, command: &mut Command) {
        let mask = self.mask_before;
        let child_was_ignored = self.child_was_ignored;
        let pipe_was_ignored = PIPE_WAS_IGNORED.load(Ordering::Relaxed);
        let file_size_was_ignored = FILE_SIZE_WAS_IGNORED.load(Ordering::Relaxed);
        // SAFETY: between fork and exec only async-signal-safe calls are made.
        unsafe {
            command.pre_exec(move || {
                if child_was_ignored {
                    set_disposition(libc::SIGCHLD, libc::SIG_IGN);
                }
                if pipe_was_ignored {
                    set_disposition(libc::SIGPIPE, libc::SIG_IGN);
                }
                if !file_size_was_ignored {
                    set_disposition(libc::SIGXFSZ, libc::SIG_DFL);
                }
                if libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut()) != 0 {
                    return Err(Error::last_os_error());
                }
                Ok(())
            });
        }
    }

    /// Stops this process by `signal`, as the command was stopped; returns when it is continued.
    pub fn stop_self(&self, signal: i32) {
        let mut only = empty_set();
        // SAFETY: the set is initialised; raising a stop signal with its default action is what ^Z does.
        unsafe {
            libc::sigaddset(&mut only, signal);
            libc::raise(signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
            if signal != libc::SIGSTOP {
                libc::sigprocmask(libc::SIG_BLOCK, &only, std::ptr::null_mut());
            }
        }
    }
}

/// Lets `command`, which inherits the tool's descriptors 0 to 2, start without those that were closed before.
pub fn close_again_in(command: &mut Command) {
    // SAFETY: between fork and exec only close is called, on descriptors that nothing uses from here on.
    unsafe {
        command.pre_exec(|| {
            for (fd, was_closed) in (0..).zip(&WERE_CLOSED) {
                if was_closed.load(Ordering::Relaxed) {
                    libc::close(fd);
                }
            }
            Ok(())
        });
    }
}

/// Makes `command` execute `file` as it is: `Command` alone would hand an ELF file of a format that
/// the kernel does not know to the shell, as a script. `command` must be complete but for this.
pub fn execute_as_is(
    command: &mut Command,
    file: &Path,
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
) -> Result<()> {
    let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(Error::from);
    let file = text(file.as_os_str())?;
    let arguments =
        arguments.iter().map(|argument| text(argument)).collect::<Result<Vec<CString>>>()?;
    let mut pairs = Vec::new();
    for (name, value) in environment {
        let mut pair = name.clone();
        pair.push("=");
        pair.push(value);
        pairs.push(text(&pair)?);
    }
    // SAFETY: between fork and exec the closure makes system calls and writes into arrays that were
    // allocated before. The strings that the pointers name live in the closure.
    unsafe {
        let mut argument_pointers = null_pointers(arguments.len() + 1);
        let mut pair_pointers = null_pointers(pairs.len() + 1);
        command.pre_exec(move || {
            for (pointer, argument) in argument_pointers.iter_mut().zip(&arguments) {
                *pointer.get_mut() = argument.as_ptr().cast_mut();
            }
            for (pointer, pair) in pair_pointers.iter_mut().zip(&pairs) {
                *pointer.get_mut() = pair.as_ptr().cast_mut();
            }
            let (argv, envp) = (argument_pointers.as_ptr().cast(), pair_pointers.as_ptr().cast());
            libc::execve(file.as_ptr(), argv, envp);
            Err(Error::last_os_error())
        });
    }
    Ok(())
}

/// Atomic only because a plain pointer may not move into a closure that is Send; the layout is the same.
fn null_pointers(count: usize) -> Vec<AtomicPtr<libc::c_char>> {
    (0..count).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect()
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset initialises the set and cannot fail on a valid pointer.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Ends this process by `signal` without a core file of its own. Returns only if the signal did not
/// end it.
pub fn die_by(signal: i32) {
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls on initialised values.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        // A core handler that is a program does not look at the limit, only at this.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        set_disposition(signal, libc::SIG_DFL);
        let mut only = empty_set();
        libc::sigaddset(&mut only, signal);
        libc::raise(signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
    }
}

/// CLOCK_MONOTONIC, by which the library writes down when a process ended.
pub fn clock_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a plain system call that fills in initialised plain data.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: a plain system call; a process that is gone is no error here.
    unsafe {
        libc::kill(pid, signal);
    }
}

/// Takes the status of a child that has ended; one that has not, or is none, stays as it is.
pub fn reap(pid: i32) {
    // SAFETY: a plain system call that writes nothing.
    unsafe {
        libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Exited(i32),
    Killed(i32),
    Stopped(i32),
}

#[derive(Debug, Clone, Copy)]
pub struct Waited {
    pub pid: i32,
    pub change: Change,
    pub user: Duration,
    pub system: Duration,
    pub resident_max_bytes: u64,
}

/// What a status of wait says.
pub fn change(status: i32) -> Change {
    if libc::WIFSTOPPED(status) {
        Change::Stopped(libc::WSTOPSIG(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Killed(libc::WTERMSIG(status))
    } else {
        Change::Exited(libc::WEXITSTATUS(status))
    }
}

/// A child that ended or stopped, without waiting for one.
pub fn wait_any() -> Option<Waited> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both results are initialised plain data, zero or filled in by the kernel.
    let (pid, usage) = unsafe {
        let options = libc::WNOHANG | libc::WUNTRACED;
        let pid = libc::wait4(-1, &mut status, options, usage.as_mut_ptr());
        (pid, usage.assume_init())
    };
    if pid <= 0 {
        return None;
    }
    Some(Waited {
        pid,
        change: change(status),
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
        resident_max_bytes: usage.ru_maxrss.max(0) as u64 * 1024,
    })
}

/// Whether `pid` has ended; it stays a zombie, so that /proc can still be asked about it.
pub fn has_ended(pid: i32) -> bool {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: all-zero bytes are a valid siginfo_t; si_pid stays zero when nothing ended.
    unsafe {
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, pid as libc::id_t, info.as_mut_ptr(), options) == 0
            && info.assume_init().si_pid() == pid
    }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec.max(0) as u64)
        + Duration::from_micros(time.tv_usec.max(0) as u64)
}

/// `SIGKILL` for 9.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGPROF => "SIGPROF",
        libc::SIGIO => "SIGIO",
        libc::SIGPWR => "SIGPWR",
        libc::SIGSTKFLT => "SIGSTKFLT",
        libc::SIGSYS => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
