//! The rounds of a comparison: which allocator runs when, which runs count, and why one does not. Used by
//! `compare`, and by `bench` for each workload. It does not know how a run is made or how figures are shown.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::launch::{self, Interrupted, Stage, Trial};
use super::measure::Figures;
use super::outcome::{Contender, Outcome, Round};
use super::progress::Progress;
use super::proof::{self, Proof};
use super::stats;
use crate::errors::{Exit, TOOL};
use crate::units;
use anyhow::Result;
use std::io::Write;
use std::process::Stdio;
use std::time::Instant;

/// Rounds when neither their number nor the time says otherwise.
const ROUNDS_MAX: u32 = 40;

/// How many rounds there are.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Before those that count.
    pub warmup: u32,
    /// None: at least those that an interval needs, and as many as the budget allows.
    pub rounds: Option<u32>,
    pub budget_s: f64,
}

pub struct Comparison<'a> {
    pub stage: &'a Stage<'a>,
    pub contenders: Vec<Contender>,
    pub progress: Progress,
    pub same_output: bool,
    /// Say so where stdout depends on the allocator.
    pub notes_outputs: bool,
    pub show_output: bool,
    pub prepare: Option<&'a str>,
    /// For the warm-up and the rounds after so many: the same command, which does not rest before its end.
    pub hurried: Option<(u32, &'a Stage<'a>)>,
    /// Comparisons that follow each other count it up, so that not always the same one begins.
    pub turn: u32,
    pub expect_status: i32,
    pub ignore_failure: bool,
    /// How the first run that succeeded ended, and what it wrote: all others must do the same. Where
    /// failure is ignored, it is the first run.
    reference: Option<(launch::End, u64)>,
    runs: u64,
    pub notes: Vec<String>,
}

impl<'a> Comparison<'a> {
    /// Of a command that must end with 0 and may write what it likes.
    pub fn new(stage: &'a Stage<'a>, contenders: Vec<Contender>, progress: Progress) -> Self {
        Comparison {
            stage,
            contenders,
            progress,
            same_output: false,
            notes_outputs: true,
            show_output: false,
            prepare: None,
            hurried: None,
            turn: 0,
            expect_status: 0,
            ignore_failure: false,
            reference: None,
            runs: 0,
            notes: Vec::new(),
        }
    }

    /// Makes the rounds; what they came to, and the signal that ended them early.
    pub fn run(mut self, plan: Plan, command: Vec<String>) -> Result<(Outcome, Option<i32>)> {
        let ended = self.rounds(plan);
        self.progress.clear();
        let signal = match ended {
            Ok(()) => None,
            Err(error) => Some(error.downcast::<Interrupted>()?.0),
        };
        if self.notes_outputs {
            self.note_outputs();
        }
        let Comparison { contenders, notes, .. } = self;
        Ok((Outcome { command, contenders, interrupted: signal.is_some(), notes }, signal))
    }

    fn rounds(&mut self, plan: Plan) -> Result<()> {
        let Plan { warmup, rounds, budget_s: budget } = plan;
        let began = Instant::now();
        for _ in 0..warmup {
            self.round(0, u64::from(rounds.unwrap_or(ROUNDS_MAX)))?;
        }
        for round in 1..=rounds.unwrap_or(ROUNDS_MAX) {
            let enough = rounds.is_none() && round as usize > stats::VALUES_MIN;
            let spent = began.elapsed().as_secs_f64();
            if enough && spent + spent / f64::from(round + warmup) > budget {
                break;
            }
            // Only runs that can be compared are worth their time.
            if !self.contenders.iter().any(|contender| contender.failure.is_none()) {
                break;
            }
            self.round(round, u64::from(rounds.unwrap_or(ROUNDS_MAX)))?;
        }
        Ok(())
    }

    fn round(&mut self, round: u32, all: u64) -> Result<()> {
        for at in order(self.contenders.len(), round, self.turn) {
            if self.contenders[at].failure.is_some() {
                continue;
            }
            let name = self.contenders[at].name().to_owned();
            let all = all * self.contenders.len() as u64;
            self.progress.run(self.runs, all, round, &name);
            self.trial(at, round)?;
            self.runs += 1;
        }
        Ok(())
    }

    /// One run under one allocator, and whether it counts.
    fn trial(&mut self, at: usize, round: u32) -> Result<()> {
        let hurried = self.hurried.filter(|(rests, _)| !(1..=*rests).contains(&round));
        let stage = hurried.map_or(self.stage, |(_, stage)| stage);
        if let Some(line) = self.prepare {
            let mut child = stage.shell(line).stdout(Stdio::null()).spawn()?;
            let status = stage.wait_for(&mut child)?;
            if !status.success() {
                return Err(Exit::error(TOOL, format!("--prepare '{line}' ended with {status}")));
            }
        }
        let allocator = &self.contenders[at].allocator;
        let library = allocator.path.clone();
        let trial = stage.run(library.as_deref(), &allocator.environment)?;
        if self.show_output && self.runs == 0 {
            let (stdout, stderr) = stage.captured()?;
            let _ = std::io::stderr().write_all(&stderr);
            let _ = std::io::stdout().write_all(&stdout);
        }
        let proof = proof::judge(&trial, library.as_deref());
        let failure = self.failure(at, &trial, &proof);
        let contender = &mut self.contenders[at];
        contender.status = trial.end.to_string();
        contender.proven = proof.proven;
        contender.evidence = proof.evidence;
        contender.outputs.push(trial.stdout_hash);
        if trial.leftovers > 0 && contender.notes.is_empty() {
            contender.notes.push(format!(
                "{} still running after the command had ended, and stopped",
                units::plural(trial.leftovers as u64, "process was", "processes were")
            ));
        }
        contender.failure = failure;
        if round > 0 && contender.failure.is_none() {
            let figures = Figures::of(&trial, &proof.executables);
            let Proof { executables, .. } = proof;
            let rested = hurried.is_none();
            contender.rounds.push(Round { figures, rested, executables, series: trial.series });
        }
        Ok(())
    }

    fn has_succeeded(&self, end: &launch::End) -> bool {
        match end {
            launch::End::Stopped => true,
            launch::End::Exited(status) => *status == self.expect_status,
            _ => false,
        }
    }

    /// Why a run does not count.
    fn failure(&mut self, at: usize, trial: &Trial, proof: &Proof) -> Option<String> {
        let last_words =
            || match trial.stderr_tail.lines().rev().find(|line| !line.trim().is_empty()) {
                Some(line) => format!(" (its last words: {})", line.trim()),
                None => String::new(),
            };
        if matches!(trial.end, launch::End::TimedOut | launch::End::LoadFailed(_)) {
            return Some(format!("{}{}", trial.end, last_words()));
        }
        let succeeded = self.has_succeeded(&trial.end);
        // A first run that failed is no measure for one that did not: the failures are left out.
        if let Some((end, _)) = &self.reference
            && succeeded
            && !self.has_succeeded(end)
        {
            let name = self.contenders[at].name().to_owned();
            let failure = format!("{end}, while {name}: {}", trial.end);
            let others = self.contenders.iter_mut().enumerate().filter(|(other, _)| *other != at);
            for (_, other) in others.filter(|(_, other)| other.failure.is_none() && other.has_run())
            {
                other.failure = Some(failure.clone());
            }
            self.reference = None;
        }
        match &self.reference {
            None if succeeded || self.ignore_failure => {
                if !succeeded {
                    self.notes.push(format!(
                        "the command's first run: {}{}",
                        trial.end,
                        last_words()
                    ));
                }
                self.reference = Some((trial.end.clone(), trial.stdout_hash));
            }
            None => {
                let unproven = match proof.proven {
                    true => String::new(),
                    false => format!("; {}", proof.evidence),
                };
                return Some(format!("{}{}{unproven}", trial.end, last_words()));
            }
            Some((end, hash)) => {
                if trial.end != *end {
                    return Some(format!(
                        "{}, while the first run: {end}{}",
                        trial.end,
                        last_words()
                    ));
                }
                if self.same_output && trial.stdout_hash != *hash {
                    return Some("its stdout differs from that of the first run".to_owned());
                }
            }
        }
        (!proof.proven).then(|| proof.evidence.clone())
    }

    /// Output that is always the same under the first allocator and not under another is worth a look.
    fn note_outputs(&mut self) {
        let first = self.contenders.iter().find(|contender| contender.failure.is_none());
        let Some(first) = first else { return };
        let Some(hash) = first.outputs.first() else { return };
        if self.same_output || first.outputs.iter().any(|output| output != hash) {
            return;
        }
        let differing: Vec<&str> = self
            .contenders
            .iter()
            .filter(|contender| contender.outputs.iter().any(|output| output != hash))
            .map(Contender::name)
            .collect();
        if !differing.is_empty() {
            self.notes.push(format!(
                "stdout is the same in every run under {}, and differs under {}",
                first.name(),
                differing.join(", ")
            ));
        }
    }
}

/// Who runs when, the same in each comparison. As many rounds as there are contenders make a Latin square: each
/// stands once in each place. Within one, E. J. Williams's zigzag of 1949 changes who follows whom. The first
/// begins with the listed order, which warm-ups have too; the next ones are of shuffled contenders. A turn lets each
/// square begin with another of its rows.
fn order(count: usize, round: u32, turn: u32) -> Vec<usize> {
    if count == 0 {
        return Vec::new();
    }
    let index = round.saturating_sub(1) as usize;
    let (square, row) = (index / count, (index + turn as usize) % count);
    let zigzag = |place: usize| match place % 2 {
        0 => (count - place / 2) % count,
        _ => place / 2 + 1,
    };
    let mut who = vec![0; count];
    for place in 0..count {
        who[zigzag(place)] = place;
    }
    if square > 0 {
        shuffle(&mut who, square as u64);
    }
    (0..count).map(|place| who[(zigzag(place) + row) % count]).collect()
}

/// Fisher and Yates's shuffle with splitmix64 (G. Steele and others, OOPSLA 2014).
fn shuffle(order: &mut [usize], seed: u64) {
    let mut state = seed;
    for at in (1..order.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        order.swap(at, ((mixed ^ (mixed >> 31)) % (at as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_stands_in_every_place_equally_often() {
        for count in 1..=13 {
            assert_eq!(order(count, 0, 0), (0..count).collect::<Vec<_>>(), "warm-up");
            assert_eq!(order(count, 1, 0), order(count, 0, 0));
            let mut times = vec![vec![0; count]; count];
            for round in 1..=40 {
                let now = order(count, round, 0);
                assert_eq!(now, order(count, round, 0));
                for (place, who) in now.into_iter().enumerate() {
                    times[who][place] += 1;
                }
                let all = times.iter().flatten();
                let (least, most) = (all.clone().min(), all.max());
                let differ = most.zip(least).map(|(most, least)| most - least);
                assert!(differ.is_some_and(|by| by <= 1), "{count}, round {round}: {times:?}");
            }
        }
    }

    #[test]
    fn everyone_follows_everyone() {
        for count in [2, 4, 6, 8] {
            for square in 0..3 {
                let rounds = (1..=count).map(|row| order(count as usize, square * count + row, 0));
                let pairs: std::collections::HashSet<(usize, usize)> = rounds
                    .flat_map(|o| o.windows(2).map(|w| (w[0], w[1])).collect::<Vec<_>>())
                    .collect();
                assert_eq!(pairs.len() as u32, count * (count - 1), "{count}, square {square}");
            }
        }
        assert_ne!(order(8, 1, 0), order(8, 9, 0), "squares differ");
    }

    #[test]
    fn turns_change_who_stands_where() {
        let rows = |count: usize, of: &dyn Fn(u32) -> Vec<usize>| {
            (0..count as u32).map(of).collect::<std::collections::BTreeSet<_>>()
        };
        for count in 1..=13 {
            let square = rows(count, &|row| order(count, 1 + row, 0));
            assert_eq!(square.len(), count);
            assert_eq!(
                rows(count, &|turn| order(count, 1, turn)),
                square,
                "one round of each turn"
            );
            for turn in 0..20 {
                assert_eq!(
                    rows(count, &|row| order(count, 1 + row, turn)),
                    square,
                    "{count}, {turn}"
                );
            }
        }
    }
}
