//! One thing that `weir bench` runs: a workload of the embedded program or a program that is installed. It does
//! not know under which allocators or how often.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::compare::launch::Stage;
use crate::compare::server::Server;
use crate::sys::Signals;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Workload,
    Program,
}

/// What a server needs: the port that shows that it is ready, and its load.
pub struct Load {
    pub port: u16,
    pub line: String,
}

pub struct Item {
    pub name: String,
    pub kind: Kind,
    /// The shape of the field that it stands for.
    pub shape: String,
    pub sizes: Option<String>,
    pub threads: Option<u32>,
    pub file: PathBuf,
    /// Its own name first; without the rest.
    pub arguments: Vec<OsString>,
    pub input: Option<PathBuf>,
    pub load: Option<Load>,
    pub tells_time: bool,
}

/// A run that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(300);
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

impl Item {
    /// Where each run does what the item is, and rests before its end if it can.
    pub fn stage<'a>(&self, signals: &'a Signals, rest: Duration) -> Result<Stage<'a>> {
        let mut arguments = self.arguments.clone();
        if self.kind == Kind::Workload {
            // Where the process is what is timed, a rest would be.
            let rest = if self.tells_time { rest } else { Duration::ZERO };
            arguments.extend(["--rest".into(), rest.as_secs_f64().to_string().into()]);
        }
        let mut stage = Stage::new(signals, self.file.clone(), arguments)?;
        stage.input = self.input.clone();
        stage.timeout = Some(TIMEOUT);
        stage.tells_time = self.tells_time;
        if let Some(load) = &self.load {
            stage.server = Some(Server {
                until: load.line.clone(),
                ready: None,
                port: Some(load.port),
                ready_timeout: READY_TIMEOUT,
                settle: rest,
                stop_signal: libc::SIGTERM,
                grace: STOP_TIMEOUT,
                output: stage.scratch("load")?,
            });
        }
        Ok(stage)
    }

    /// Only where threads do not race is the count the same in each run.
    pub fn counts_instructions(&self) -> bool {
        self.tells_time
            && self.threads == Some(1)
            && !self.name.starts_with("start/")
            && !self.makes_threads()
    }

    /// Whether its memory is measured some time after its load ended. Of others it is what exit found, when
    /// some allocators have given back all they had.
    pub fn rests(&self) -> bool {
        self.tells_time || self.load.is_some()
    }

    fn makes_threads(&self) -> bool {
        ["server/", "threads/"].iter().any(|family| self.name.starts_with(family))
    }
}

/// The rows of `weir-workload --list`.
pub fn workloads(program: &Path, scale_percent: u32) -> Result<Vec<Item>> {
    let listed = Command::new(program)
        .arg("--list")
        .output()
        .context("cannot run the embedded workloads")?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let items: Option<Vec<Item>> =
        text.lines().map(|line| workload(line, program, scale_percent)).collect();
    items.filter(|items| !items.is_empty()).context("the embedded workloads gave no table")
}

fn workload(line: &str, program: &Path, scale_percent: u32) -> Option<Item> {
    let [name, threads, sizes, time, _content, shape] =
        line.split('\t').collect::<Vec<_>>().try_into().ok()?;
    let words = ["weir-workload", name, "--scale", &scale_percent.to_string()];
    Some(Item {
        name: name.to_owned(),
        kind: Kind::Workload,
        shape: shape.to_owned(),
        sizes: Some(sizes.to_owned()),
        threads: Some(threads.parse().ok()?),
        file: program.to_path_buf(),
        arguments: words.into_iter().map(OsString::from).collect(),
        input: None,
        load: None,
        tells_time: time == "told",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "server/t8\t8\t16-1024\ttold\tchecked\ta server";

    #[test]
    fn a_row_becomes_a_command() {
        let item = workload(ROW, Path::new("/x"), 10).expect("a row");
        assert_eq!(
            (item.name.as_str(), item.threads, item.tells_time),
            ("server/t8", Some(8), true)
        );
        let words = ["weir-workload", "server/t8", "--scale", "10"];
        assert_eq!(item.arguments, words.map(OsString::from));
        assert!(workload("server/t8\t8\t16-1024", Path::new("/x"), 1).is_none());
    }

    #[test]
    fn only_what_is_deterministic_is_counted() {
        let counted = |line: &str| {
            workload(line, Path::new("/x"), 1).is_some_and(|item| item.counts_instructions())
        };
        assert!(counted("pair/16\t1\t16-16\ttold\tunchecked\ta pair"));
        assert!(!counted(ROW));
        assert!(!counted("server/t1\t1\t16-1024\ttold\tchecked\ta server"));
        assert!(!counted("start/one\t1\t1-1\twhole\tchecked\ta start"));
    }

    #[test]
    fn who_tells_its_time_rests() {
        let rests = |line: &str| workload(line, Path::new("/x"), 1).map(|item| item.rests());
        assert_eq!(rests(ROW), Some(true));
        assert_eq!(rests("start/one\t1\t1-1\twhole\tchecked\ta start"), Some(false));
    }
}
