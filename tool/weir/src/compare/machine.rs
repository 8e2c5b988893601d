//! The machine that a comparison was made on, as far as results depend on it. Reads a few files once. It
//! does not know about allocators.
//!
//! SPDX-License-Identifier: Apache-2.0

use serde::{Deserialize, Serialize};
use std::fs;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    pub system: String,
}

impl Machine {
    pub fn this() -> Machine {
        let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = field(&information, "model name", ':');
        let name = name.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = field(&memory, "MemTotal", ':').unwrap_or_default();
        let kib = memory.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            processor: name,
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: kib.unwrap_or(0) * 1024,
            kernel: kernel.trim().to_owned(),
            system: field(&release, "PRETTY_NAME", '=').unwrap_or_default(),
        }
    }
}

/// A warning where other programs use the processors, which makes times differ without a reason.
pub fn busy() -> Option<String> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = load.split_whitespace().next()?.parse().ok()?;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (load > processors as f64 / 2.0).then(|| {
        format!(
            "at the start {load:.1} programs wanted the {processors} processors: expect noise in times"
        )
    })
}

/// The value of the first line that begins with `name`.
fn field(text: &str, name: &str, separator: char) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_once(separator)?.1.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::this();
        assert!(!machine.processor.is_empty() && !machine.kernel.is_empty());
        assert!(machine.processors > 0 && machine.memory_bytes > 1 << 20);
        assert_eq!(field("A=\"b c\"\n", "A", '='), Some("b c".to_owned()));
    }
}
