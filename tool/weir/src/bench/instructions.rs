//! Counts a workload's instructions under each allocator, once, by valgrind's callgrind: those of the function that
//! does the work and all that it calls. The same in each run, so one is enough. It does not know what time they take.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::item::Item;
use super::result::Entry;
use crate::compare::launch::{self, End, Stage};
use crate::compare::outcome::Contender;
use crate::errors::{Exit, USAGE};
use crate::program;
use crate::sys::Signals;
use anyhow::{Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A part of the work: callgrind is fifty times slower. The count is that of this part.
const SCALE_PERCENT: &str = "2";

pub fn valgrind() -> Result<PathBuf> {
    program::find("valgrind".as_ref(), std::env::var_os("PATH").as_deref()).map_err(|_| {
        Exit::error(USAGE, "--instructions needs valgrind: install it, or leave the option out")
    })
}

pub fn count(
    entry: &mut Entry,
    item: &Item,
    contenders: &[Contender],
    signals: &Signals,
    valgrind: &Path,
    without: &[OsString],
) -> Result<()> {
    let words = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--toggle-collect=load_run",
        "--",
    ];
    let mut arguments: Vec<OsString> = words.into_iter().map(OsString::from).collect();
    arguments.push(item.file.clone().into());
    arguments
        .extend([item.name.as_str(), "--scale", SCALE_PERCENT, "--rest", "0"].map(OsString::from));
    let mut stage = Stage::new(signals, valgrind.to_path_buf(), arguments)?;
    stage.without = without.to_vec();
    for (run, contender) in
        entry.results.iter_mut().zip(contenders).filter(|(run, _)| run.failure.is_none())
    {
        let library = contender.allocator.path.as_deref();
        let trial = stage.run(library, &contender.allocator.environment)?;
        let (stdout, stderr) = stage.captured()?;
        if trial.end != End::Exited(0) {
            run.notes.push(format!("no count of instructions: {}", trial.end));
            continue;
        }
        // The program says where its malloc lies: under valgrind there is no other proof.
        let reached = launch::told(&stdout, "malloc_in").map(PathBuf::from);
        if let Some(library) = library
            && reached.as_deref() != Some(library.canonicalize()?.as_path())
        {
            run.notes
                .push("no count of instructions: valgrind did not load the allocator".to_owned());
            continue;
        }
        let operations =
            launch::told(&stdout, "operations").and_then(|text| text.parse::<f64>().ok());
        run.instructions = collected(&String::from_utf8_lossy(&stderr));
        run.instructions_each =
            run.instructions.zip(operations).map(|(count, operations)| count as f64 / operations);
        if run.instructions.is_none() {
            bail!("its count is not in what it wrote: {}", trial.stderr_tail.trim());
        }
    }
    Ok(())
}

/// `==123== Collected : 4567`.
fn collected(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("Collected : "))?;
    line.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found() {
        assert_eq!(collected("==1== Events    : Ir\n==1== Collected : 4567\n==1==\n"), Some(4567));
        assert_eq!(collected("==1== no such thing"), None);
    }
}
