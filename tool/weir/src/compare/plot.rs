//! Resident memory over time, one line per allocator: the run whose time is nearest to the median. Pure:
//! gives SVG. It does not know how samples were taken, nor how a line is drawn.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::allocators::WEIR;
use super::outcome::Outcome;
use crate::chart::{self, Chart, Line};
use crate::units::{self, quoted};
use anyhow::Result;
use plotters::style::RGBColor;

/// weir's first. The first seven are told apart also by most colour-blind people (Okabe and Ito, 2008).
pub const COLOURS: [RGBColor; 13] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 170),
    RGBColor(140, 86, 75),
    RGBColor(127, 127, 127),
    RGBColor(170, 170, 30),
    RGBColor(0, 70, 40),
    RGBColor(120, 0, 50),
];

pub fn draw(outcome: &Outcome) -> Result<String> {
    chart::draw(&Chart {
        title: "Resident memory",
        command: &quoted(&outcome.command),
        memory: "resident memory",
        lines: &lines(outcome),
        marks: &[],
    })
}

/// weir is drawn last, so that its line is on top.
fn lines(outcome: &Outcome) -> Vec<Line> {
    let mut others = COLOURS[1..].iter().cycle();
    let mut lines: Vec<(bool, Line)> = outcome
        .contenders
        .iter()
        .filter_map(|contender| {
            let is_weir = contender.name() == WEIR;
            let colour = if is_weir { COLOURS[0] } else { *others.next()? };
            let round = contender.median_round()?;
            let points = round.series.iter().map(|(seconds, bytes)| (*seconds, *bytes as f64));
            let notes = vec![format!("peak {}", units::bytes(round.figures.peak_bytes))];
            let name = contender.name().to_owned();
            Some((is_weir, Line { name, notes, colour, points: points.collect() }))
        })
        .collect();
    lines.sort_by_key(|(is_weir, _)| *is_weir);
    lines.into_iter().map(|(_, line)| line).collect()
}
