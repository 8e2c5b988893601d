//! Resident and live memory of all processes of a run over time. Filled by `watch`, shown by `report` and
//! `plot`. Pure: it keeps what it is given. It does not know where the figures come from.
//!
//! Samples are kept at the interval, and beside them the look with most resident memory and the last one,
//! whenever they were. A run of any length keeps a bounded number: when there are too many, every second
//! one goes and the interval doubles.
//!
//! SPDX-License-Identifier: Apache-2.0

use std::fmt::Write;
use std::time::Duration;

const SAMPLES_MAX: usize = 20_000;

/// All processes together, as they were seen in one look.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Sample {
    /// Since the command was started.
    pub seconds: f64,
    pub resident_bytes: u64,
    pub live_bytes: u64,
    pub processes: usize,
}

#[derive(Debug)]
pub struct Timeline {
    interval: Duration,
    /// When the next sample is to be taken, since the start.
    due: Duration,
    stopped: bool,
    samples: Vec<Sample>,
    peak: Option<Sample>,
    last: Option<Sample>,
}

impl Timeline {
    pub fn new(interval: Duration) -> Timeline {
        let due = Duration::ZERO;
        Timeline { interval, due, stopped: false, samples: Vec::new(), peak: None, last: None }
    }

    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// How long after `now` the next sample is to be taken.
    pub fn wait(&self, now: Duration) -> Duration {
        self.due.saturating_sub(now)
    }

    /// Takes note of a look. One that found no memory is none: whoever is about to end has given it back.
    pub fn add(&mut self, sample: Sample) {
        if self.stopped || sample.resident_bytes == 0 {
            return;
        }
        if self.peak.is_none_or(|peak| sample.resident_bytes > peak.resident_bytes) {
            self.peak = Some(sample);
        }
        self.last = Some(sample);
        let now = Duration::from_secs_f64(sample.seconds);
        if now < self.due {
            return;
        }
        self.samples.push(sample);
        // Late samples do not shift those that follow.
        let periods = now.as_nanos() / self.interval.as_nanos().max(1) + 1;
        self.due = self.interval.saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX));
        if self.samples.len() >= SAMPLES_MAX {
            self.thin();
        }
    }

    fn thin(&mut self) {
        let mut keep = false;
        self.samples.retain(|_| {
            keep = !keep;
            keep
        });
        self.interval = self.interval.saturating_mul(2);
    }

    /// The command has ended: what others do afterwards is not shown.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// What the command's only process knew of itself when it ended.
    pub fn end(&mut self, sample: Sample) {
        if self.last.is_none_or(|last| last.seconds < sample.seconds && last.processes == 1) {
            self.stopped = false;
            self.add(sample);
            self.stopped = true;
        }
    }

    pub fn peak(&self) -> Option<&Sample> {
        self.peak.as_ref()
    }

    pub fn last(&self) -> Option<&Sample> {
        self.last.as_ref()
    }

    /// In time order, the peak and the last look included.
    pub fn samples(&self) -> Vec<Sample> {
        let mut all = self.samples.clone();
        for extra in [self.peak, self.last].into_iter().flatten() {
            let at = all.partition_point(|sample| sample.seconds < extra.seconds);
            if all.get(at) != Some(&extra) {
                all.insert(at, extra);
            }
        }
        all
    }

    pub fn tsv(&self) -> String {
        let mut out = String::from("seconds\tresident_bytes\tlive_bytes\tprocesses\n");
        for Sample { seconds, resident_bytes, live_bytes, processes } in self.samples() {
            let _ = writeln!(out, "{seconds:.6}\t{resident_bytes}\t{live_bytes}\t{processes}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, resident_bytes: u64) -> Sample {
        Sample { seconds, resident_bytes, live_bytes: 1, processes: 1 }
    }

    fn seconds(timeline: &Timeline) -> Vec<f64> {
        timeline.samples().iter().map(|sample| sample.seconds).collect()
    }

    #[test]
    fn samples_keep_the_interval_the_peak_and_the_last() {
        let mut timeline = Timeline::new(Duration::from_millis(50));
        for at in 0..20 {
            let spike = if at == 13 { 100 } else { 0 };
            timeline.add(sample(f64::from(at) / 100.0, 10 + spike));
        }
        assert_eq!(seconds(&timeline), [0.0, 0.05, 0.1, 0.13, 0.15, 0.19]);
        assert_eq!(timeline.peak(), Some(&sample(0.13, 110)));
        assert_eq!(timeline.last(), Some(&sample(0.19, 10)));
        assert_eq!(timeline.wait(Duration::from_millis(190)), Duration::from_millis(10));
        assert_eq!(timeline.tsv().lines().nth(4), Some("0.130000\t110\t1\t1"));
    }

    #[test]
    fn nothing_counts_after_the_end_and_nothing_resident_is_no_sample() {
        let mut timeline = Timeline::new(Duration::from_millis(50));
        timeline.add(sample(0.0, 0));
        assert!(timeline.samples().is_empty() && timeline.last().is_none());
        timeline.end(sample(0.01, 7));
        timeline.stop();
        timeline.add(sample(0.2, 9));
        assert_eq!(seconds(&timeline), [0.01]);
    }

    #[test]
    fn the_end_of_one_process_is_not_the_end_of_several() {
        let mut timeline = Timeline::new(Duration::from_millis(50));
        timeline.add(Sample { processes: 2, ..sample(0.0, 5) });
        timeline.end(sample(0.01, 7));
        assert_eq!(seconds(&timeline), [0.0]);
        let mut timeline = Timeline::new(Duration::from_millis(50));
        timeline.add(sample(0.02, 5));
        timeline.end(sample(0.01, 7));
        assert_eq!(seconds(&timeline), [0.02]);
    }

    #[test]
    fn a_long_run_keeps_a_bounded_number() {
        let mut timeline = Timeline::new(Duration::from_millis(10));
        for at in 0..100_000 {
            timeline.add(sample(f64::from(at) / 100.0, 10));
        }
        let samples = timeline.samples();
        assert!(samples.len() <= SAMPLES_MAX && samples.len() >= SAMPLES_MAX / 3);
        assert_eq!(timeline.last(), Some(&sample(999.99, 10)));
        assert!(samples.windows(2).all(|pair| pair[0].seconds < pair[1].seconds));
        assert!(timeline.interval() > Duration::from_millis(40));
    }
}
