//! What makes a server's run: when it is ready, which load it gets, how it is stopped. Used by `launch`.
//! It does not know how the server is started or measured.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::launch::Stage;
use crate::errors::{Exit, TOOL};
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Between two tests whether the server is ready.
pub const POLL: Duration = Duration::from_millis(20);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

pub struct Server {
    /// The load, a shell line.
    pub until: String,
    /// A shell line that succeeds when the server is ready.
    pub ready: Option<String>,
    /// A port of this machine that accepts connections when the server is ready.
    pub port: Option<u16>,
    pub ready_timeout: Duration,
    pub settle: Duration,
    pub stop_signal: i32,
    /// From the signal to SIGKILL.
    pub grace: Duration,
    /// Takes the load's output.
    pub output: File,
}

fn accepts(port: u16) -> bool {
    let addresses: [SocketAddr; 2] =
        [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
    addresses.iter().any(|address| {
        // A port without a listener may be chosen for the connection's own end, which then meets itself.
        TcpStream::connect_timeout(address, CONNECT_TIMEOUT)
            .is_ok_and(|stream| stream.local_addr().ok() != stream.peer_addr().ok())
    })
}

impl Server {
    pub fn tests_readiness(&self) -> bool {
        self.ready.is_some() || self.port.is_some()
    }

    /// Before the server is started, nothing else may answer in its place.
    pub fn check_port(&self) -> Result<()> {
        match self.port {
            Some(port) if accepts(port) => Err(Exit::error(
                TOOL,
                format!(
                    "port {port} is in use before the server starts: stop what listens there, or choose another port"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Whether connections are accepted, where that is a condition.
    pub fn port_is_ready(&self) -> bool {
        self.port.is_none_or(accepts)
    }

    /// Starts the shell line that tests whether the server is ready.
    pub fn start_ready(&self, stage: &Stage) -> Result<Option<Child>> {
        let Some(line) = &self.ready else { return Ok(None) };
        let mut command = stage.shell(line);
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command.spawn().map(Some).context("cannot start the shell of --ready")
    }

    pub fn start_load(&self, stage: &Stage) -> Result<Child> {
        self.output.set_len(0)?;
        (&mut &self.output).seek(SeekFrom::Start(0))?;
        let mut command = stage.shell(&self.until);
        command.stdout(self.output.try_clone()?).stderr(self.output.try_clone()?);
        command.process_group(0).spawn().context("cannot start the shell of --until")
    }

    /// The last line that the load wrote, for a message about it.
    pub fn load_stderr(&self) -> String {
        let mut bytes = Vec::new();
        let mut file = &self.output;
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes));
        let text = String::from_utf8_lossy(&bytes);
        match text.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(line) if read.is_ok() => format!(": {}", line.trim()),
            _ => String::new(),
        }
    }
}
