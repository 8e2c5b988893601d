//! The tool's own failures: one line for the user and the exit code that a shell would use. It does
//! not know how a command ended; that is passed on elsewhere.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::units::printable;
use std::fmt;

pub const USAGE: u8 = 2;
pub const TOOL: u8 = 125;
pub const NOT_EXECUTABLE: u8 = 126;
pub const NOT_FOUND: u8 = 127;

/// An error with an exit code of its own. Errors without one end the tool with `TOOL`.
#[derive(Debug)]
pub struct Exit {
    pub code: u8,
    message: String,
}

impl Exit {
    pub fn error(code: u8, message: impl Into<String>) -> anyhow::Error {
        Exit { code, message: message.into() }.into()
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Exit {}

pub fn code(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<Exit>().map_or(TOOL, |exit| exit.code)
}

/// Writes one line to stderr. A closed stderr is no reason to fail.
pub fn say(text: impl fmt::Display) {
    use std::io::Write;
    let line = format!("weir: {}\n", printable(&text.to_string().replace('\n', " ")));
    let _ = std::io::stderr().write_all(line.as_bytes());
}
