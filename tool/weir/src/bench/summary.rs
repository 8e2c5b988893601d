//! Where each allocator stands: geometric means of its ratios to the best peer, workload by workload, and the worst
//! of them. Pure. The best peer is the best of all that are not weir, so weir's ratio can be below one.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::result::{Entry, Run};
use crate::compare::allocators::WEIR;
use crate::compare::measure::Measure;
use serde::{Deserialize, Serialize};

/// From this peak of the best peer on, a workload is one of the large ones.
pub const LARGE_BYTES: f64 = (20 << 20) as f64;

/// Below, a ratio is shown as 1.00.
const LOSS_MIN: f64 = 1.005;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Summary {
    pub allocator: String,
    /// Workloads with figures, of all.
    pub workloads: usize,
    pub time: Option<f64>,
    /// Results of before lack it.
    #[serde(default)]
    pub cpu: Option<f64>,
    pub peak: Option<f64>,
    /// Over workloads whose best peer has a peak of 20 MiB and more.
    pub peak_large: Option<f64>,
    #[serde(rename = "final")]
    pub last: Option<f64>,
    pub worst_time: Option<Worst>,
    pub worst_peak: Option<Worst>,
    pub worst_final: Option<Worst>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    pub workload: String,
    pub ratio: f64,
}

/// The median of the best peer.
pub fn best(entry: &Entry, measure: Measure) -> Option<f64> {
    let peers = entry.results.iter().filter(|run| run.allocator != WEIR && run.counts());
    peers.filter_map(|run| run.median(measure)).filter(|value| *value > 0.0).min_by(f64::total_cmp)
}

/// None for memory at the end where the program did not rest: an allocator that gives all back at exit would
/// be the best one there.
pub fn ratio(entry: &Entry, run: &Run, measure: Measure) -> Option<f64> {
    let comparable = measure != Measure::Final || entry.rested;
    let own = run.median(measure).filter(|_| comparable && run.counts())?;
    best(entry, measure).map(|best| own / best)
}

pub fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let count = ratios.len();
    (count > 0).then(|| (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / count as f64).exp())
}

pub fn summary(entries: &[Entry]) -> Vec<Summary> {
    let names = entries.first().map(|entry| entry.results.iter().map(|run| run.allocator.clone()));
    names.into_iter().flatten().map(|name| of(entries, name)).collect()
}

fn of(entries: &[Entry], allocator: String) -> Summary {
    let ratios = |measure: Measure, wanted: &dyn Fn(&Entry) -> bool| -> Vec<Worst> {
        let wanted = entries.iter().filter(|entry| wanted(entry));
        let ratios = wanted.filter_map(|entry| {
            let ratio = ratio(entry, entry.run(&allocator)?, measure)?;
            Some(Worst { workload: entry.name.clone(), ratio })
        });
        ratios.collect()
    };
    let is_large =
        |entry: &Entry| best(entry, Measure::Peak).is_some_and(|bytes| bytes >= LARGE_BYTES);
    let (time, peak) = (ratios(Measure::Time, &|_| true), ratios(Measure::Peak, &|_| true));
    let (large, last) = (ratios(Measure::Peak, &is_large), ratios(Measure::Final, &|_| true));
    Summary {
        workloads: time.len(),
        time: mean(&time),
        cpu: mean(&ratios(Measure::Cpu, &|_| true)),
        peak: mean(&peak),
        peak_large: mean(&large),
        last: mean(&last),
        worst_time: worst(time),
        worst_peak: worst(peak),
        worst_final: worst(last),
        allocator,
    }
}

fn mean(ratios: &[Worst]) -> Option<f64> {
    geometric_mean(&ratios.iter().map(|one| one.ratio).collect::<Vec<_>>())
}

fn worst(ratios: Vec<Worst>) -> Option<Worst> {
    ratios.into_iter().max_by(|left, right| left.ratio.total_cmp(&right.ratio))
}

/// The workloads in which weir is behind the best peer, the worst first.
pub fn losses(entries: &[Entry], measure: Measure) -> Vec<(&Entry, f64)> {
    let mut losses: Vec<(&Entry, f64)> = entries
        .iter()
        .filter_map(|entry| Some((entry, ratio(entry, entry.run(WEIR)?, measure)?)))
        .filter(|(_, ratio)| *ratio > LOSS_MIN)
        .collect();
    losses.sort_by(|left, right| right.1.total_cmp(&left.1));
    losses
}

#[cfg(test)]
pub mod tests {
    use super::super::result::FIRST_REVISION;
    use super::*;

    /// A workload with medians of time and of peak memory for each allocator.
    pub fn entry(name: &str, figures: &[(&str, f64, f64)]) -> Entry {
        let run = |(allocator, time, peak): &(&str, f64, f64)| Run {
            allocator: (*allocator).to_owned(),
            proven: true,
            rounds: 6,
            median: [("time", *time), ("peak", *peak), ("final", *peak)]
                .map(|(n, v)| (n.to_owned(), v))
                .into(),
            interval: [("time", (time * 0.99, time * 1.01))].map(|(n, v)| (n.to_owned(), v)).into(),
            ..Run::default()
        };
        Entry {
            name: name.to_owned(),
            kind: "workload".to_owned(),
            shape: "a shape".to_owned(),
            sizes: None,
            threads: Some(1),
            operations: Some(1000),
            revision: FIRST_REVISION,
            program: None,
            rested: true,
            results: figures.iter().map(run).collect(),
            notes: Vec::new(),
        }
    }

    /// One whose figures all differ: 1,000 operations; weir's are 0.75 to 3 times the best peer's.
    pub fn distinct() -> Entry {
        let names = ["time", "cpu", "peak", "final", "faults"];
        let figures = |allocator: &str, values: [f64; 5]| Run {
            allocator: allocator.to_owned(),
            proven: true,
            rounds: 6,
            median: names
                .iter()
                .zip(values)
                .map(|(name, value)| ((*name).to_owned(), value))
                .collect(),
            interval: [("time".to_owned(), (values[0] * 0.98, values[0] * 1.02))].into(),
            ..Run::default()
        };
        let mut entry = entry("shape/one", &[]);
        entry.results = vec![
            figures("system", [0.002, 0.003, 40e6, 20e6, 1000.0]),
            figures("weir", [0.003, 0.009, 30e6, 5e6, 1500.0]),
            figures("other", [0.004, 0.006, 50e6, 10e6, 500.0]),
        ];
        entry.results[1].instructions_each = Some(123.4);
        entry
    }

    fn near(value: Option<f64>, wanted: f64) -> bool {
        value.is_some_and(|value| (value - wanted).abs() < 1e-9)
    }

    #[test]
    fn ratios_are_to_the_best_peer_and_weir_is_none() {
        let entries = [
            entry("a", &[("system", 2.0, 30e6), ("weir", 0.5, 60e6), ("other", 1.0, 25e6)]),
            entry("b", &[("system", 1.0, 1e6), ("weir", 2.0, 1e6), ("other", 4.0, 2e6)]),
        ];
        let summary = summary(&entries);
        assert!(near(summary[1].time, 1.0), "{:?}", summary[1]);
        assert!(near(summary[0].time, 2f64.sqrt()) && near(summary[2].time, 2.0));
        assert!(near(summary[1].peak_large, 2.4), "only the first is large: {:?}", summary[1]);
        assert_eq!(summary[1].worst_time, Some(Worst { workload: "b".to_owned(), ratio: 2.0 }));
        let losses: Vec<&str> =
            losses(&entries, Measure::Time).iter().map(|(entry, _)| entry.name.as_str()).collect();
        assert_eq!(losses, ["b"]);
    }

    #[test]
    fn memory_at_the_end_counts_after_a_rest_alone() {
        let figures: &[(&str, f64, f64)] = &[("system", 1.0, 1e6), ("weir", 1.0, 3e6)];
        let mut program = entry("program/a", figures);
        program.rested = false;
        let entries = [entry("b", &[("system", 1.0, 2e6), ("weir", 1.0, 4e6)]), program];
        let summary = summary(&entries);
        assert!(near(summary[1].last, 2.0), "{:?}", summary[1]);
        assert!(near(summary[1].peak, 6f64.sqrt()));
        let names = |measure| -> Vec<&str> {
            losses(&entries, measure).iter().map(|(entry, _)| entry.name.as_str()).collect()
        };
        assert_eq!(names(Measure::Final), ["b"]);
        assert_eq!(names(Measure::Peak), ["program/a", "b"]);
    }

    #[test]
    fn who_failed_is_no_peer() {
        let mut one = entry("a", &[("system", 2.0, 1e6), ("weir", 1.0, 1e6), ("other", 0.1, 1e6)]);
        one.results[2].failure = Some("killed".to_owned());
        let summary = summary(&[one]);
        assert!(
            near(summary[1].time, 0.5) && summary[2].time.is_none() && summary[2].workloads == 0
        );
        assert_eq!(geometric_mean(&[]), None);
    }
}
