//! The measures of a run and their table: name, unit, what they mean. Each figure that `weir compare` shows
//! goes through here. It does not know how a run is made or how figures are printed.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::launch::Trial;
use super::proof::Executable;
use crate::units;
use serde::Serialize;
use std::time::Duration;

/// The figures of one run, as the JSON has them.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Time of the command, or of a server's load.
    pub wall_s: f64,
    /// User and system time of all processes.
    pub cpu_s: f64,
    pub user_s: f64,
    pub system_s: f64,
    /// Largest resident memory of all processes together, as far as samples show it, and at least that of
    /// the largest process, which the kernel counts.
    pub peak_bytes: u64,
    pub peak_process_bytes: u64,
    /// Resident memory at exit; of a server and of what tells it, after the load and some rest.
    pub final_bytes: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub context_switches: u64,
}

impl Figures {
    pub fn of(trial: &Trial, executables: &[Executable]) -> Figures {
        let seen = executables.iter().map(|executable| executable.peak_bytes).max().unwrap_or(0);
        let peak_process_bytes = trial.largest_bytes.max(seen);
        let sampled = trial.series.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        // The last program that the command's process ran, if exit ran its destructors.
        let root = trial.slots.iter().rev().find(|slot| slot.pid == trial.root);
        let at_exit = root.filter(|slot| slot.ended).map(|slot| slot.resident_bytes);
        let last_sample = trial.series.last().map(|(_, bytes)| *bytes);
        Figures {
            wall_s: trial.wall.as_secs_f64(),
            cpu_s: (trial.user + trial.system).as_secs_f64(),
            user_s: trial.user.as_secs_f64(),
            system_s: trial.system.as_secs_f64(),
            peak_bytes: sampled.max(peak_process_bytes),
            peak_process_bytes,
            final_bytes: trial
                .settled_bytes
                .or(at_exit)
                .or(last_sample)
                .unwrap_or(peak_process_bytes),
            minor_faults: trial.minor_faults,
            major_faults: trial.major_faults,
            context_switches: trial.switches,
        }
    }
}

/// What can be asked for by name, in `--fail-if` and in the JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    Time,
    Cpu,
    Peak,
    Final,
    Faults,
}

pub const MEASURES: [Measure; 5] =
    [Measure::Time, Measure::Cpu, Measure::Peak, Measure::Final, Measure::Faults];

impl Measure {
    pub fn name(self) -> &'static str {
        match self {
            Measure::Time => "time",
            Measure::Cpu => "cpu",
            Measure::Peak => "peak",
            Measure::Final => "final",
            Measure::Faults => "faults",
        }
    }

    /// Whether only a run that rested before its end tells it: an allocator may work then.
    pub fn needs_rest(self) -> bool {
        matches!(self, Measure::Cpu | Measure::Final)
    }

    pub fn of(self, figures: &Figures) -> f64 {
        match self {
            Measure::Time => figures.wall_s,
            Measure::Cpu => figures.cpu_s,
            Measure::Peak => figures.peak_bytes as f64,
            Measure::Final => figures.final_bytes as f64,
            Measure::Faults => (figures.minor_faults + figures.major_faults) as f64,
        }
    }

    /// The value for people.
    pub fn show(self, value: f64) -> String {
        match self {
            Measure::Time | Measure::Cpu => {
                units::duration(Duration::try_from_secs_f64(value).unwrap_or_default())
            }
            Measure::Peak | Measure::Final => units::bytes(value as u64),
            Measure::Faults => units::count(value as u64),
        }
    }
}
