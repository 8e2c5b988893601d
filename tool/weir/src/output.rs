//! The files that a user names for results, and stdout: what was there before stays whole until there is
//! something to put in its place. Used by `run`, `compare` and `main`. It does not know what is written.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::errors::{Exit, TOOL, USAGE};
use anyhow::{Context, Result};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A result that is to come. Opened before the work: what cannot be written is an error before an hour
/// of it, not after. Dropped without `write`, it leaves everything as it was.
pub struct Output {
    path: PathBuf,
    /// None: stdout.
    file: Option<File>,
    /// The file beside `path` that is renamed to it; none for stdout, links, devices and pipes.
    beside: Option<PathBuf>,
}

/// The name that stands for stdout; a file that is called so is `./-`.
pub const STDOUT: &str = "-";

pub fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == STDOUT
}

impl Output {
    pub fn new(path: &Path) -> Result<Output> {
        if is_stdout(path) {
            return Ok(Output { path: path.to_path_buf(), file: None, beside: None });
        }
        let target = fs::metadata(path).ok();
        if target.as_ref().is_some_and(is_program) {
            return Err(Exit::error(
                USAGE,
                format!(
                    "{} is a program, which a result would overwrite; name another file",
                    path.display()
                ),
            ));
        }
        // What is no file of its own, as /dev/stdout, must stay what it is.
        let plain = fs::symlink_metadata(path).map_or(true, |itself| itself.is_file());
        let opened = match plain.then(|| file_beside(path, target.as_ref())) {
            Some(Ok((beside, file))) => Ok((Some(beside), file)),
            // A folder that takes no new files may have one that can be written.
            Some(Err(_)) if target.is_some() => open(path),
            Some(Err(error)) => Err(error),
            None => open(path),
        };
        let (beside, file) = opened.map_err(|error| cannot_write(path, &error))?;
        Ok(Output { path: path.to_path_buf(), file: Some(file), beside })
    }

    pub fn write(mut self, text: &str) -> Result<()> {
        let Some(file) = self.file.take() else { return stdout(text) };
        self.write_whole(file, text).map_err(|error| cannot_write(&self.path, &error))
    }

    fn write_whole(&mut self, mut file: File, text: &str) -> io::Result<()> {
        if self.beside.is_none() && file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        file.write_all(text.as_bytes())?;
        if let Some(beside) = &self.beside {
            fs::rename(beside, &self.path)?;
            self.beside = None;
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            let _ = fs::remove_file(beside);
        }
    }
}

/// What to do about `ErrorKind::FileTooLarge`.
pub const FILE_SIZE_HELP: &str = "raise the limit of file sizes (ulimit -f)";

/// Each result needs a file of its own, or stdout; devices and pipes that are named by their path take several.
/// By the options that name them.
pub fn check_distinct(named: &[(&str, Option<&Path>)]) -> Result<()> {
    let mut seen: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path) in named.iter().filter_map(|(option, path)| Some((*option, (*path)?))) {
        if !is_stdout(path) && fs::metadata(path).is_ok_and(|target| !target.is_file()) {
            continue;
        }
        let place = if is_stdout(path) { path.to_path_buf() } else { place(path) };
        if let Some((other, _)) = seen.iter().find(|(_, other)| *other == place) {
            let shown = path.display();
            let why =
                format!("{other} and {option} both name {shown}; give each a file of its own");
            return Err(Exit::error(USAGE, why));
        }
        seen.push((option, place));
    }
    Ok(())
}

/// The same for all names of one file, whether it is there yet or not.
fn place(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    whole.canonicalize().unwrap_or_else(|_| match (whole.parent(), whole.file_name()) {
        (Some(folder), Some(name)) => {
            folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf()).join(name)
        }
        _ => whole,
    })
}

fn is_program(file: &Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

fn file_beside(path: &Path, target: Option<&Metadata>) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(ErrorKind::IsADirectory)?.to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
    if let Some(target) = target {
        file.set_permissions(target.permissions())?;
    }
    Ok((beside, file))
}

fn open(path: &Path) -> io::Result<(Option<PathBuf>, File)> {
    // A link may lead to a file that is not there yet.
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    Ok((None, file))
}

fn cannot_write(path: &Path, error: &io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room, or name a file elsewhere",
        ErrorKind::FileTooLarge => FILE_SIZE_HELP,
        _ => "name a file that can be",
    };
    Exit::error(TOOL, format!("cannot write {}: {}; {advice}", path.display(), reason(error)))
}

/// The error without Rust's "(os error 13)".
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Writes to stdout. A reader that has seen enough is no failure.
pub fn stdout(text: &str) -> Result<()> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to stdout")
        }
        _ => Ok(()),
    }
}
