//! `weir stats`: the figures of a running process, out of the wire file that `weir run` made for it. The process
//! is not stopped and not asked: it writes its figures there by itself. Called by `main` alone. It does not
//! know how figures are printed.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::library::LIBRARY_NAME;
use crate::output::{self, reason};
use crate::procfs::{self, Stat};
use crate::report::{self, Live};
use crate::sys;
use crate::units::printable;
use crate::wire::{self, State};
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Print everything that is known as JSON
    #[arg(long)]
    json: bool,
    /// The process, which 'weir run' started, or which a process of such a command started
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
}

pub fn stats(args: &Args) -> Result<()> {
    let live = look(args.pid)?;
    let text = if args.json { report::live_json(&live)? } else { report::live_text(&live) };
    output::stdout(&text)
}

fn look(pid: i32) -> Result<Live> {
    let before = running(pid)?;
    let path = wire_path(pid)?;
    let shown = printable(&path.display().to_string());
    let file = open(pid, &path)?;
    let inner = procfs::inner_pid(pid).unwrap_or(pid);
    let slot = wire::live(&file, inner).with_context(|| shown.clone())?;
    // Its pid may be another's by now.
    if running(pid).ok() != Some(before) {
        bail!("process {pid} has just ended");
    }
    let Some(slot) = slot else {
        bail!(
            "process {pid} is not on weir: it is in none of the slots of {shown}; the report of 'weir run' will say why"
        );
    };
    if slot.state == State::Damaged {
        bail!("the figures of process {pid} make no sense: a program overwrote {shown}");
    }
    if slot.state == State::Loaded {
        bail!("process {pid} has loaded weir, but no call of malloc has arrived there yet");
    }
    if !slot.has_figures() {
        bail!("process {pid} is on weir and has written no figures yet: ask again in a moment");
    }
    Ok(Live { pid, slot, now_ns: sys::clock_ns() })
}

/// What names the process for good, its program included.
type Identity = (u64, u64);

fn running(pid: i32) -> Result<Identity> {
    match procfs::stat(pid) {
        None => bail!("there is no process {pid}"),
        Some(Stat { state: 'Z' | 'X', .. }) => bail!("process {pid} has ended"),
        Some(stat) => Ok((stat.start_ticks, stat.start_stack)),
    }
}

fn wire_path(pid: i32) -> Result<PathBuf> {
    let environment = match fs::read(format!("/proc/{pid}/environ")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("may not look at process {pid}: run this as its user, or as root")
        }
        Err(_) => bail!("process {pid} has just ended"),
    };
    match procfs::variable(&environment, "WEIR_WIRE") {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(OsStr::from_bytes(&path))),
        _ if procfs::maps(pid, LIBRARY_NAME) == Some(true) => bail!(
            "process {pid} has libweir, but was not started by 'weir run': its figures are its own; WEIR_STATS=exit prints them at its end"
        ),
        _ => bail!(
            "process {pid} was not started by 'weir run' and maps no libweir: 'weir run -- PROGRAM' starts a program on it"
        ),
    }
}

/// None: it is no regular file. The path is another's to choose: a pipe would keep whoever opens it, and
/// some devices do things when they are opened.
fn open_file(path: &Path) -> std::io::Result<Option<File>> {
    let place = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    if !place.metadata()?.is_file() {
        return Ok(None);
    }
    File::open(format!("/proc/self/fd/{}", place.as_raw_fd())).map(Some)
}

fn open(pid: i32, path: &Path) -> Result<File> {
    // The process may have another root directory.
    let seen =
        PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path));
    let shown = printable(&path.display().to_string());
    match open_file(path).or_else(|_| open_file(&seen)) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => bail!(
            "process {pid} was not started by 'weir run': {shown}, which its WEIR_WIRE names, is no file"
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!(
                "the wire file of process {pid}, {shown}, is gone: 'weir run' was killed, or the file was removed"
            )
        }
        Err(error) => {
            bail!("cannot read the wire file of process {pid}, {shown}: {}", reason(&error))
        }
    }
}
