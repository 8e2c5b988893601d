//! Draws resident against live memory of one run over time. Pure: gives SVG. It does not know how samples were
//! taken, nor how a line is drawn.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::chart::{self, Chart, Line, Mark};
use crate::timeline::{Sample, Timeline};
use crate::units::{bytes, quoted};
use anyhow::Result;
use plotters::style::RGBColor;

/// Told apart also by most colour-blind people (Okabe and Ito, 2008).
const RESIDENT: RGBColor = RGBColor(213, 94, 0);
const LIVE: RGBColor = RGBColor(0, 114, 178);

pub fn draw(command: &[String], timeline: &Timeline) -> Result<String> {
    let samples = timeline.samples();
    let (peak, last) = (timeline.peak(), timeline.last());
    let line = |name: &str, colour, value: fn(&Sample) -> u64, steps: bool| {
        let points: Vec<(f64, f64)> =
            samples.iter().map(|sample| (sample.seconds, value(sample) as f64)).collect();
        let largest = samples.iter().map(value).max();
        let notes = match (largest, last) {
            (Some(largest), Some(last)) => {
                vec![format!("peak {}", bytes(largest)), format!("end {}", bytes(value(last)))]
            }
            _ => vec!["ended too soon".to_owned()],
        };
        let points = if steps { chart::steps(&points) } else { points };
        Line { name: name.to_owned(), notes, colour, points }
    };
    let marks = [(peak, "peak"), (last, "end")].into_iter().filter_map(|(sample, name)| {
        let sample = sample?;
        let at = (sample.seconds, sample.resident_bytes as f64);
        let name = format!("{name} {}", bytes(sample.resident_bytes));
        Some(Mark { name, colour: RESIDENT, at })
    });
    let mut marks: Vec<Mark> = marks.collect();
    // One point needs one name.
    if peak == last {
        marks.truncate(1);
    }
    chart::draw(&Chart {
        title: "Resident and live memory",
        command: &quoted(command),
        memory: "memory of all processes",
        // Live is what the process told last: it stays until it tells again.
        lines: &[
            line("live", LIVE, |sample| sample.live_bytes, true),
            line("resident", RESIDENT, |sample| sample.resident_bytes, false),
        ],
        marks: &marks,
    })
}
