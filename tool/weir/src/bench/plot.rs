//! The plots of the page, as SVG: time against memory for all allocators, and each workload's ratios as a row of
//! dots. Pure. It does not know what a ratio is of.
//!
//! SPDX-License-Identifier: Apache-2.0

use super::result::Entry;
use super::summary::{self, Summary};
use crate::compare::allocators::WEIR;
use crate::compare::measure::Measure;
use crate::compare::plot::COLOURS;
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const CORNER: (u32, u32) = (760, 520);
const STRIP_WIDTH: u32 = 1000;
const STRIP_HEIGHT: i32 = 18;
/// The legend of so many columns, then the scale.
const LEGEND_COLUMNS: i32 = 5;
const LEGEND_WIDTH: i32 = 160;
const LEGEND_HEIGHT: i32 = 18;
const NAME_WIDTH: i32 = 190;
/// A ratio beyond is drawn at the edge, as a triangle.
const RATIO_MIN: f64 = 0.5;
const RATIO_MAX: f64 = 8.0;
const RATIOS: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = std::result::Result<(), Box<dyn std::error::Error>>;

/// weir's is the first; the others have theirs by place.
fn colour(name: &str, place: usize) -> RGBColor {
    if name == WEIR { COLOURS[0] } else { COLOURS[1 + place % (COLOURS.len() - 1)] }
}

fn drawn(size: (u32, u32), draw: impl FnOnce(&Area) -> DrawResult) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let result = area.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&area));
        result.map_err(|error| anyhow!("cannot draw: {error}"))?;
        area.present().map_err(|error| anyhow!("cannot draw: {error}"))?;
    }
    Ok(svg)
}

/// Each allocator's means: left is fast, low is small.
pub fn corner(summary: &[Summary]) -> Result<String> {
    let points: Vec<(usize, &str, f64, f64)> = summary
        .iter()
        .enumerate()
        .filter_map(|(at, one)| Some((at, one.allocator.as_str(), one.time?, one.peak?)))
        .collect();
    let top = |value: fn(&(usize, &str, f64, f64)) -> f64| {
        points.iter().map(value).fold(1.2, f64::max) * 1.08
    };
    let low = |value: fn(&(usize, &str, f64, f64)) -> f64| {
        points.iter().map(value).fold(1.0, f64::min) * 0.95
    };
    let (x, y) =
        (low(|point| point.2)..top(|point| point.2), low(|point| point.3)..top(|point| point.3));
    drawn(CORNER, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(14)
            .margin_right(150)
            .x_label_area_size(44)
            .y_label_area_size(58)
            .build_cartesian_2d(x.log_scale(), y.log_scale())?;
        chart
            .configure_mesh()
            .x_desc("time, ratio to the best peer")
            .y_desc("peak resident memory, ratio to the best peer")
            .x_label_formatter(&|value| format!("{value:.1}"))
            .y_label_formatter(&|value| format!("{value:.1}"))
            .label_style(("sans-serif", 13))
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        for (at, name, time, peak) in &points {
            let colour = colour(name, *at);
            let dot = if is_ring(*at) { colour.stroke_width(2) } else { colour.filled() };
            let style = TextStyle::from(("sans-serif", 14)).pos(Pos::new(HPos::Left, VPos::Center));
            let element = EmptyElement::at((*time, *peak))
                + Circle::new((0, 0), 5, dot)
                + Text::new((*name).to_owned(), (9, 0), style);
            chart.draw_series([element])?;
        }
        Ok(())
    })
}

/// A row for each workload, a dot for each allocator, on a logarithmic scale; the worst for weir is first.
pub fn strips(entries: &[Entry], measure: Measure) -> Result<String> {
    let of_weir = |entry: &Entry| {
        entry.run(WEIR).and_then(|run| summary::ratio(entry, run, measure)).unwrap_or(0.0)
    };
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by(|left, right| of_weir(right).total_cmp(&of_weir(left)));
    let top = strip_top(entries);
    let height = top + STRIP_HEIGHT * sorted.len() as i32 + 10;
    drawn((STRIP_WIDTH, height as u32), |area| {
        scale(area, top, height)?;
        legend(area, entries)?;
        for (row, entry) in sorted.iter().enumerate() {
            let y = top + STRIP_HEIGHT * row as i32 + STRIP_HEIGHT / 2;
            let style =
                TextStyle::from(("sans-serif", 12)).pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(entry.name.clone(), (NAME_WIDTH - 8, y), style))?;
            // weir's dot is drawn last, on top.
            let mut runs: Vec<_> = entry.results.iter().enumerate().collect();
            runs.sort_by_key(|(_, run)| run.allocator == WEIR);
            for (at, run) in runs {
                let Some(ratio) = summary::ratio(entry, run, measure) else { continue };
                let radius = if run.allocator == WEIR { 5 } else { 3 };
                match (ratio < RATIO_MIN, ratio > RATIO_MAX) {
                    (true, _) => beyond(area, (place(ratio), y), -radius, &run.allocator, at)?,
                    (_, true) => beyond(area, (place(ratio), y), radius, &run.allocator, at)?,
                    _ => dot(area, (place(ratio), y), radius, &run.allocator, at)?,
                }
            }
        }
        Ok(())
    })
}

fn strip_top(entries: &[Entry]) -> i32 {
    let runs = entries.first().map_or(0, |entry| entry.results.len()) as i32;
    26 + LEGEND_HEIGHT * ((runs + LEGEND_COLUMNS - 1) / LEGEND_COLUMNS)
}

fn place(ratio: f64) -> i32 {
    let part = (ratio.clamp(RATIO_MIN, RATIO_MAX) / RATIO_MIN).ln() / (RATIO_MAX / RATIO_MIN).ln();
    NAME_WIDTH + (part * f64::from(STRIP_WIDTH as i32 - NAME_WIDTH - 16)) as i32
}

fn scale(area: &Area, top: i32, height: i32) -> DrawResult {
    for ratio in RATIOS {
        let x = place(ratio);
        let line = BLACK.mix(if ratio == 1.0 { 0.6 } else { 0.15 });
        area.draw(&PathElement::new(vec![(x, top - 4), (x, height - 6)], line))?;
        let style = TextStyle::from(("sans-serif", 12)).pos(Pos::new(HPos::Center, VPos::Bottom));
        area.draw(&Text::new(format!("{ratio}"), (x, top - 6), style))?;
    }
    Ok(())
}

fn legend(area: &Area, entries: &[Entry]) -> DrawResult {
    let runs = entries.first().map(|entry| entry.results.as_slice()).unwrap_or_default();
    for (at, run) in runs.iter().enumerate() {
        let (row, column) = (at as i32 / LEGEND_COLUMNS, at as i32 % LEGEND_COLUMNS);
        let (x, y) = (NAME_WIDTH + column * LEGEND_WIDTH, 10 + row * LEGEND_HEIGHT);
        dot(area, (x, y), 4, &run.allocator, at)?;
        let style = TextStyle::from(("sans-serif", 12)).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(run.allocator.clone(), (x + 8, y), style))?;
    }
    Ok(())
}

/// Filled, and a ring where colours come a second time.
fn dot(area: &Area, at: (i32, i32), radius: i32, name: &str, place: usize) -> DrawResult {
    let colour = colour(name, place);
    let style = if is_ring(place) { colour.stroke_width(2) } else { colour.filled() };
    area.draw(&Circle::new(at, radius, style))?;
    Ok(())
}

/// Points to where the ratio would lie: to the left where `reach` is negative.
fn beyond(area: &Area, at: (i32, i32), reach: i32, name: &str, place: usize) -> DrawResult {
    let ((x, y), half) = (at, reach.abs());
    let corners = vec![(x + reach * 2, y), (x, y - half), (x, y + half), (x + reach * 2, y)];
    let colour = colour(name, place);
    if is_ring(place) {
        area.draw(&PathElement::new(corners, colour.stroke_width(2)))?;
    } else {
        area.draw(&Polygon::new(corners, colour.filled()))?;
    }
    Ok(())
}

fn is_ring(place: usize) -> bool {
    place >= COLOURS.len() - 1
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::entry;
    use super::*;

    #[test]
    fn plots_show_every_allocator_and_workload() {
        let entries = [
            entry("first", &[("system", 1.0, 1e6), ("weir", 2.0, 1e6)]),
            entry("second", &[("system", 1.0, 1e6), ("weir", 200.0, 1e6)]),
        ];
        let svg = strips(&entries, Measure::Time).expect("a plot");
        assert!(
            svg.find("second").zip(svg.find("first")).is_some_and(|(second, first)| second < first),
            "{svg}"
        );
        let svg = corner(&summary::summary(&entries)).expect("a plot");
        assert!(svg.contains("system") && svg.contains("weir"));
        assert!(corner(&[]).is_ok() && strips(&[], Measure::Time).is_ok());
        assert_eq!(place(100.0), place(RATIO_MAX));
        let triangles = |time: f64| {
            let one = [entry("one", &[("system", 1.0, 1e6), ("weir", time, 1e6)])];
            strips(&one, Measure::Time).expect("a plot").matches("<polygon").count()
        };
        assert_eq!([0.4, 0.6, 7.0, 9.0].map(triangles), [1, 0, 0, 1]);
    }
}
