//! What a comparison came to: per allocator its runs, and medians, ratios and the verdict from them. Used by
//! everything that prints. Pure; it does not know how runs are made or shown.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::allocators::{Allocator, SYSTEM, WEIR};
use super::measure::{Figures, Measure};
use super::proof::Executable;
use super::stats::{self, Estimate};
use crate::units;

/// One counted run.
#[derive(Debug, Clone)]
pub struct Round {
    pub figures: Figures,
    /// It rested before its end as long as its command was to.
    pub rested: bool,
    pub executables: Vec<Executable>,
    pub series: Vec<(f64, u64)>,
}

#[derive(Debug, Clone)]
pub struct Contender {
    pub allocator: Allocator,
    pub proven: bool,
    pub evidence: String,
    /// How its runs ended.
    pub status: String,
    /// Why it was left out of the comparison.
    pub failure: Option<String>,
    pub notes: Vec<String>,
    pub rounds: Vec<Round>,
    /// A hash of what each run wrote to stdout.
    pub outputs: Vec<u64>,
}

impl Contender {
    pub fn new(allocator: Allocator) -> Contender {
        Contender {
            allocator,
            proven: false,
            evidence: "it did not run".to_owned(),
            status: "not run".to_owned(),
            failure: None,
            notes: Vec::new(),
            rounds: Vec::new(),
            outputs: Vec::new(),
        }
    }

    pub fn name(&self) -> &str {
        &self.allocator.name
    }

    pub fn has_run(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// In the comparison with figures.
    pub fn counts(&self) -> bool {
        self.failure.is_none() && !self.rounds.is_empty()
    }

    pub fn values(&self, measure: Measure) -> Vec<f64> {
        let telling = self.rounds.iter().filter(|round| round.rested || !measure.needs_rest());
        telling.map(|round| measure.of(&round.figures)).collect()
    }

    pub fn estimate(&self, measure: Measure) -> Option<Estimate> {
        stats::estimate(&self.values(measure))
    }

    /// The ratio to another, paired by round.
    pub fn ratio(&self, base: &Contender, measure: Measure) -> Option<Estimate> {
        if !self.counts() || !base.counts() {
            return None;
        }
        stats::ratio(&self.values(measure), &base.values(measure))
    }

    /// The round whose time is nearest to the median.
    pub fn median_round(&self) -> Option<&Round> {
        let median = self.estimate(Measure::Time)?.median;
        self.rounds.iter().min_by(|left, right| {
            let distance = |round: &Round| (round.figures.wall_s - median).abs();
            distance(left).total_cmp(&distance(right))
        })
    }
}

#[derive(Debug)]
pub struct Outcome {
    pub command: Vec<String>,
    pub contenders: Vec<Contender>,
    /// The user ended it before the last round.
    pub interrupted: bool,
    pub notes: Vec<String>,
}

impl Outcome {
    pub fn contender(&self, name: &str) -> Option<&Contender> {
        self.contenders.iter().find(|contender| contender.name() == name)
    }

    pub fn system(&self) -> Option<&Contender> {
        self.contender(SYSTEM)
    }

    pub fn all_good(&self) -> bool {
        self.contenders.iter().all(Contender::counts)
    }

    /// Those that are fastest: the best median, and all that cannot be told apart from it.
    fn fastest(&self) -> Vec<&Contender> {
        let time = |contender: &Contender| {
            contender.estimate(Measure::Time).map_or(f64::INFINITY, |estimate| estimate.median)
        };
        let mut counted: Vec<&Contender> =
            self.contenders.iter().filter(|contender| contender.counts()).collect();
        counted.sort_by(|left, right| time(left).total_cmp(&time(right)));
        let Some(best) = counted.first().copied() else { return Vec::new() };
        counted.retain(|contender| {
            contender.name() == best.name()
                || contender.ratio(best, Measure::Time).is_none_or(|ratio| !differs(&ratio))
        });
        counted
    }

    /// Why every allocator is left out, if it is the same for all.
    fn failure_of_all(&self) -> Option<&str> {
        let first = self.contenders.first()?.failure.as_deref()?;
        let same = self.contenders.iter().all(|c| c.failure.as_deref() == Some(first));
        (same && self.contenders.len() > 1).then_some(first)
    }

    /// One line: what the comparison says.
    pub fn verdict(&self) -> String {
        let counted = self.contenders.iter().filter(|contender| contender.counts()).count();
        if let Some(failure) = self.failure_of_all() {
            return format!("no comparison: the command failed under every allocator: {failure}");
        }
        let mut text = match (self.contender(WEIR), self.system()) {
            (Some(weir), _) if weir.failure.is_some() => {
                format!("weir: no comparison: {}", weir.failure.as_deref().unwrap_or_default())
            }
            (_, Some(system)) if system.failure.is_some() => {
                let failure = system.failure.as_deref().unwrap_or_default();
                let others: Vec<&str> =
                    self.contenders.iter().filter(|c| c.counts()).map(Contender::name).collect();
                match others.is_empty() {
                    true => format!("no comparison: system failed: {failure}"),
                    false => format!("system failed: {failure}; {} did not", others.join(", ")),
                }
            }
            (Some(weir), Some(system)) if weir.counts() && system.counts() => {
                let part = |measure, less, more, noun| {
                    weir.ratio(system, measure).map(|ratio| difference(&ratio, less, more, noun))
                };
                let time = part(Measure::Time, "less time", "more time", "time");
                // Where other programs disturb the clock, the processor's time may still tell.
                let told = |measure| weir.ratio(system, measure).is_some_and(|r| differs(&r));
                let cpu = (!told(Measure::Time) && told(Measure::Cpu))
                    .then(|| part(Measure::Cpu, "less CPU time", "more CPU time", "CPU time"))
                    .flatten();
                let peak =
                    part(Measure::Peak, "less peak memory", "more peak memory", "peak memory");
                let parts: Vec<String> = [time, cpu, peak].into_iter().flatten().collect();
                format!("weir against system: {}", parts.join(", "))
            }
            _ if counted == 0 => "no comparison: no run was counted".to_owned(),
            _ => String::new(),
        };
        let fastest: Vec<&str> = self.fastest().into_iter().map(Contender::name).collect();
        if counted > 1 {
            if !text.is_empty() {
                text.push_str("; ");
            }
            if fastest.len() == counted && counted > 2 {
                text.push_str(&format!("no fastest of {counted} can be told"));
            } else if fastest.len() > 1 {
                text.push_str(&format!(
                    "fastest of {counted}, not told apart: {}",
                    fastest.join(", ")
                ));
            } else {
                text.push_str(&format!("fastest of {counted}: {}", fastest.join("")));
            }
        }
        let failed: Vec<&str> =
            self.contenders.iter().filter(|c| c.failure.is_some()).map(Contender::name).collect();
        if counted > 0 && !failed.is_empty() {
            text.push_str(&format!("; left out: {}", failed.join(", ")));
        }
        text
    }
}

/// Whether the interval excludes that there is no difference.
pub fn differs(ratio: &Estimate) -> bool {
    ratio.interval.is_some_and(|interval| interval.low > 1.0 || interval.high < 1.0)
}

/// `8 % less time (4 to 11 %)`, or that none can be told.
fn difference(ratio: &Estimate, less: &str, more: &str, noun: &str) -> String {
    let change = (ratio.median - 1.0) * 100.0;
    let Some(interval) = ratio.interval else {
        return format!("{} {noun}, too few rounds to be sure", signed(change));
    };
    let (low, high) = ((interval.low - 1.0) * 100.0, (interval.high - 1.0) * 100.0);
    if interval.high < 1.0 {
        format!("{} {less} ({} to {})", units::percent(-change), plain(-high), units::percent(-low))
    } else if interval.low > 1.0 {
        format!("{} {more} ({} to {})", units::percent(change), plain(low), units::percent(high))
    } else {
        format!("no difference in {noun} beyond noise ({} to {} %)", sign(low), sign(high))
    }
}

/// `-8.1 %`.
pub fn signed(percent: f64) -> String {
    format!("{} %", sign(percent))
}

/// `-8.1`, `+0.4`, `+12`, `0.0`.
pub fn sign(percent: f64) -> String {
    let digits = if percent.abs() >= 9.95 { 0 } else { 1 };
    // What rounds to nothing has no sign.
    if percent.abs() < 0.05 { "0.0".to_owned() } else { format!("{percent:+.digits$}") }
}

fn plain(percent: f64) -> String {
    units::percent(percent).trim_end_matches(" %").to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::stats::Interval;
    use super::*;

    fn contender(name: &str, times: &[f64], peak: u64) -> Contender {
        let allocator = Allocator { name: name.to_owned(), ..Allocator::default() };
        let rounds = times.iter().map(|wall_s| Round {
            figures: Figures {
                wall_s: *wall_s,
                cpu_s: *wall_s,
                user_s: *wall_s,
                system_s: 0.0,
                peak_bytes: peak,
                peak_process_bytes: peak,
                final_bytes: peak,
                minor_faults: 1,
                major_faults: 0,
                context_switches: 0,
            },
            rested: true,
            executables: Vec::new(),
            series: vec![(*wall_s, peak)],
        });
        Contender { proven: true, rounds: rounds.collect(), ..Contender::new(allocator) }
    }

    fn outcome(contenders: Vec<Contender>) -> Outcome {
        Outcome { command: vec!["x".to_owned()], contenders, interrupted: false, notes: Vec::new() }
    }

    const NOISY: [f64; 6] = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9];

    fn times(factor: f64) -> Vec<f64> {
        NOISY.iter().map(|time| time * factor).collect()
    }

    #[test]
    fn a_clear_result_is_told_with_its_interval() {
        let three = outcome(vec![
            contender("system", &NOISY, 100),
            contender("weir", &times(0.92), 112),
            contender("other", &times(0.8), 100),
        ]);
        assert_eq!(
            three.verdict(),
            "weir against system: 8.0 % less time (8.0 to 8.0 %), 12 % more peak memory (12 to 12 %); fastest of 3: other"
        );
    }

    #[test]
    fn a_loss_is_told_as_plainly() {
        let two =
            outcome(vec![contender("system", &NOISY, 100), contender("weir", &times(1.5), 100)]);
        let verdict = two.verdict();
        assert!(verdict.contains("50 % more time (50 to 50 %)"), "{verdict}");
        assert!(verdict.contains("no difference in peak memory"), "{verdict}");
        assert!(verdict.ends_with("fastest of 2: system"), "{verdict}");
    }

    #[test]
    fn noise_is_no_result() {
        let mut reversed = NOISY.to_vec();
        reversed.reverse();
        let two =
            outcome(vec![contender("system", &NOISY, 100), contender("weir", &reversed, 100)]);
        let verdict = two.verdict();
        assert!(verdict.contains("no difference in time beyond noise"), "{verdict}");
        assert!(verdict.contains("not told apart"), "{verdict}");
        let few = outcome(vec![contender("system", &[1.0], 100), contender("weir", &[0.5], 100)]);
        assert!(
            few.verdict().contains("-50 % time, too few rounds to be sure"),
            "{}",
            few.verdict()
        );
    }

    #[test]
    fn what_failed_is_not_compared() {
        let mut broken = contender("weir", &times(0.1), 1);
        broken.failure = Some("killed by SIGSEGV".to_owned());
        let verdict = outcome(vec![contender("system", &NOISY, 100), broken]).verdict();
        assert!(verdict.starts_with("weir: no comparison: killed by SIGSEGV"), "{verdict}");
        assert!(verdict.ends_with("left out: weir"), "{verdict}");
        assert!(!verdict.contains("fastest"), "{verdict}");
        assert_eq!(outcome(Vec::new()).verdict(), "no comparison: no run was counted");
    }

    #[test]
    fn a_run_without_rest_tells_neither_the_end_nor_the_processor() {
        let mut one = contender("weir", &NOISY, 100);
        let hurried = one.rounds.iter_mut().skip(2);
        hurried.for_each(|round| (round.rested, round.figures.final_bytes) = (false, 900));
        let told = |measure| one.values(measure).len();
        assert_eq!((told(Measure::Time), told(Measure::Peak)), (6, 6));
        assert_eq!((told(Measure::Cpu), told(Measure::Final)), (2, 2));
        let last = one.estimate(Measure::Final).expect("two values");
        assert_eq!((last.median, last.interval.is_none()), (100.0, true));
        let other = contender("system", &NOISY, 200);
        let ratio = one.ratio(&other, Measure::Final).expect("a ratio");
        assert_eq!(ratio.median, 0.5);
    }

    #[test]
    fn signs_and_words() {
        assert_eq!(
            (sign(-0.04), sign(12.34), sign(-8.06)),
            ("0.0".into(), "+12".into(), "-8.1".into())
        );
        let ratio = |low, high| Estimate { median: 1.0, interval: Some(Interval { low, high }) };
        assert!(
            differs(&ratio(1.01, 1.02)) && differs(&ratio(0.9, 0.99)) && !differs(&ratio(0.9, 1.1))
        );
    }
}
