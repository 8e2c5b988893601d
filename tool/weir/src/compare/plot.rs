//! Draws resident memory over time, one line per allocator: the run whose time is nearest to the median. Pure:
//! gives SVG. It does not know how samples were taken.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::allocators::WEIR;
use super::outcome::{Outcome, quoted};
use crate::units;
use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (960, 540);
/// weir's first. The first seven are told apart also by most colour-blind people (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 13] = [
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
const LEGEND_WIDTH: u32 = 170;
const TITLE_CHARS: usize = 64;
/// More points than this are not seen.
const POINTS_MAX: usize = 2000;

struct Line {
    is_weir: bool,
    name: String,
    peak: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

pub fn draw(outcome: &Outcome) -> Result<String> {
    let lines = lines(outcome);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        chart(&area, &lines, &title(outcome))
            .map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    }
    Ok(text)
}

fn title(outcome: &Outcome) -> String {
    let command = quoted(&outcome.command);
    let mut shown: String = command.chars().take(TITLE_CHARS).collect();
    if shown.len() < command.len() {
        shown.push_str("...");
    }
    format!("Resident memory of: {shown}")
}

/// weir is drawn last, so that its line is on top.
fn lines(outcome: &Outcome) -> Vec<Line> {
    let mut others = COLOURS[1..].iter().cycle();
    let mut lines: Vec<Line> = outcome
        .contenders
        .iter()
        .filter_map(|contender| {
            let is_weir = contender.name() == WEIR;
            let colour = if is_weir { COLOURS[0] } else { *others.next()? };
            let series = &contender.median_round()?.series;
            let step = series.len().div_ceil(POINTS_MAX).max(1);
            let last = series.len().checked_sub(1)?;
            let points = series
                .iter()
                .enumerate()
                .filter(|(at, _)| at % step == 0 || *at == last)
                .map(|(_, (seconds, bytes))| (*seconds, *bytes as f64))
                .collect();
            let figures = &contender.median_round()?.figures;
            let peak = units::bytes(figures.peak_bytes);
            let name = contender.name().to_owned();
            Some(Line { is_weir, name, peak: format!("peak {peak}"), colour, points })
        })
        .collect();
    lines.sort_by_key(|line| line.is_weir);
    lines
}

/// The unit in which a range is read best, and its name.
fn unit(top: f64, units: &[(f64, &'static str)]) -> (f64, &'static str) {
    units
        .iter()
        .rev()
        .find(|(size, _)| top >= *size)
        .or(units.first())
        .copied()
        .unwrap_or((1.0, ""))
}

fn chart(
    area: &DrawingArea<SVGBackend, plotters::coord::Shift>,
    lines: &[Line],
    title: &str,
) -> std::result::Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let right = points().map(|(seconds, _)| *seconds).fold(0.0, f64::max);
    let top = points().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
    let (second, time_name) = unit(
        right,
        &[(1e-3, "milliseconds"), (1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours")],
    );
    let kib = 1024.0;
    let (byte, byte_name) =
        unit(top, &[(kib, "KiB"), (kib * kib, "MiB"), (kib * kib * kib, "GiB")]);
    let (right, top) = (right / second, top / byte);

    area.fill(&WHITE)?;
    // Beside the chart, where it covers no line.
    let (left, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let mut chart = ChartBuilder::on(&left)
        .caption(title, ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..(right * 1.01).max(1e-9), 0.0..(top * 1.08).max(1e-9))?;
    chart
        .configure_mesh()
        .x_desc(format!("time since the start ({time_name})"))
        .y_desc(format!("resident memory ({byte_name})"))
        .x_label_formatter(&|value| number(*value, right))
        .y_label_formatter(&|value| number(*value, top))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    for line in lines {
        let scaled = line.points.iter().map(|(seconds, bytes)| (seconds / second, bytes / byte));
        chart.draw_series(LineSeries::new(scaled, line.colour.stroke_width(2)))?;
    }
    let step = (SIZE.1 as i32 - 96).checked_div(lines.len() as i32).unwrap_or(0).min(44);
    for (line, row) in lines.iter().rev().zip(0..) {
        let y = 64 + row * step;
        legend.draw(&PathElement::new(vec![(4, y), (30, y)], line.colour.stroke_width(3)))?;
        legend.draw(&Text::new(line.name.clone(), (38, y - 8), ("sans-serif", 15)))?;
        legend.draw(&Text::new(line.peak.clone(), (38, y + 10), ("sans-serif", 13)))?;
    }
    area.present()
}

/// As many digits as an axis up to `top` needs.
fn number(value: f64, top: f64) -> String {
    let digits = if top >= 10.0 {
        0
    } else if top >= 1.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}
