//! Draws amounts of memory over time as SVG: lines, marks on them, and a legend beside the chart. Used by
//! `run` and `compare`. It does not know what the lines stand for.
//!
//! SPDX-License-Identifier: Apache-2.0

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (960, 540);
const LEGEND_WIDTH: u32 = 170;
const TITLE_CHARS: usize = 64;
/// More points than this are not seen.
const POINTS_MAX: usize = 2000;
/// Heights of a line's name and of a note below it, and what parts two lines.
const NAME_STEP: i32 = 20;
const NOTE_STEP: i32 = 17;
const LINE_GAP: i32 = 8;

pub struct Line {
    pub name: String,
    /// What stands below the name in the legend.
    pub notes: Vec<String>,
    pub colour: RGBColor,
    /// Seconds and bytes, in time order.
    pub points: Vec<(f64, f64)>,
}

/// A point that is named in the chart itself.
pub struct Mark {
    pub name: String,
    pub colour: RGBColor,
    pub at: (f64, f64),
}

pub struct Chart<'a> {
    /// What is drawn, and the command that it is drawn of.
    pub title: &'a str,
    pub command: &'a str,
    pub memory: &'a str,
    /// The last one is on top, and first in the legend.
    pub lines: &'a [Line],
    pub marks: &'a [Mark],
}

pub fn draw(chart: &Chart) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw_on(&area, chart).map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    }
    Ok(text)
}

/// The points as steps: each value stays until the next one.
pub fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut out: Vec<(f64, f64)> = Vec::new();
    for (seconds, value) in points {
        match out.last().copied() {
            Some((_, before)) if before != *value => out.push((*seconds, before)),
            _ => {}
        }
        out.push((*seconds, *value));
    }
    out
}

/// Few enough points to draw: of each stretch of time the ends, the smallest and the largest.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points.to_vec();
    }
    let by_value = |left: &&(f64, f64), right: &&(f64, f64)| left.1.total_cmp(&right.1);
    let mut out = Vec::new();
    for part in points.chunks(points.len().div_ceil(POINTS_MAX / 4)) {
        let kept =
            [part.first(), part.iter().min_by(by_value), part.iter().max_by(by_value), part.last()];
        let mut kept: Vec<(f64, f64)> = kept.into_iter().flatten().copied().collect();
        kept.sort_by(|left, right| left.0.total_cmp(&right.0));
        kept.dedup();
        out.extend(kept);
    }
    out
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

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), Box<dyn std::error::Error>>;

fn draw_on(area: &Area, chart: &Chart) -> DrawResult {
    let points = || chart.lines.iter().flat_map(|line| line.points.iter());
    let right = points().map(|point| point.0).fold(0.0, f64::max);
    let top = points().map(|point| point.1).fold(0.0, f64::max);
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
    let (left, legend_area) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let mut context = ChartBuilder::on(&left)
        .caption(title(chart), ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..(right * 1.01).max(1e-9), 0.0..(top * 1.08).max(1e-9))?;
    context
        .configure_mesh()
        .x_desc(format!("time since the start ({time_name})"))
        .y_desc(format!("{} ({byte_name})", chart.memory))
        .x_label_formatter(&|value| number(*value, right))
        .y_label_formatter(&|value| number(*value, top))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    for line in chart.lines {
        let scaled = thinned(&line.points).into_iter().map(|(x, y)| (x / second, y / byte));
        context.draw_series(LineSeries::new(scaled, line.colour.stroke_width(2)))?;
    }
    for mark in chart.marks {
        let at = (mark.at.0 / second, mark.at.1 / byte);
        // The text stays inside the chart.
        let (side, shift) = if at.0 > right / 2.0 { (HPos::Right, -8) } else { (HPos::Left, 8) };
        let style = TextStyle::from(("sans-serif", 13)).pos(Pos::new(side, VPos::Bottom));
        let element = EmptyElement::at(at)
            + Circle::new((0, 0), 4, mark.colour.filled())
            + Text::new(mark.name.clone(), (shift, -4), style);
        context.draw_series([element])?;
    }
    legend(&legend_area, chart.lines)?;
    area.present()?;
    Ok(())
}

fn title(chart: &Chart) -> String {
    let mut shown: String = chart.command.chars().take(TITLE_CHARS).collect();
    if shown.len() < chart.command.len() {
        shown.push_str("...");
    }
    format!("{} of: {shown}", chart.title)
}

fn legend(area: &Area, lines: &[Line]) -> DrawResult {
    let height = |line: &Line| NAME_STEP + NOTE_STEP * line.notes.len() as i32 + LINE_GAP;
    let whole: i32 = lines.iter().map(height).sum();
    // Many lines move together rather than off the picture.
    let squeeze = f64::from(SIZE.1 as i32 - 72) / f64::from(whole.max(1));
    let scaled = |length: i32| (f64::from(length) * squeeze.min(1.0)) as i32;
    let mut y = 0;
    for line in lines.iter().rev() {
        let at = 64 + scaled(y);
        area.draw(&PathElement::new(vec![(4, at), (30, at)], line.colour.stroke_width(3)))?;
        area.draw(&Text::new(line.name.clone(), (38, at - 8), ("sans-serif", 15)))?;
        for (note, row) in line.notes.iter().zip(0..) {
            let down = scaled(y + NAME_STEP - 10 + row * NOTE_STEP) + 64;
            area.draw(&Text::new(note.clone(), (38, down), ("sans-serif", 13)))?;
        }
        y += height(line);
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_until_the_next() {
        let points = [(0.0, 1.0), (1.0, 1.0), (2.0, 5.0), (3.0, 0.0)];
        let wanted = [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (2.0, 5.0), (3.0, 5.0), (3.0, 0.0)];
        assert_eq!(steps(&points), wanted);
        assert!(steps(&[]).is_empty());
    }

    #[test]
    fn a_spike_and_both_ends_survive_thinning() {
        let mut points: Vec<(f64, f64)> = (0..50_000).map(|at| (f64::from(at), 10.0)).collect();
        points[31_234].1 = 99.0;
        points[31_236].1 = 1.0;
        let thin = thinned(&points);
        assert!(thin.len() <= POINTS_MAX, "{}", thin.len());
        for point in [points[0], points[31_234], points[31_236], points[49_999]] {
            assert!(thin.contains(&point), "{point:?} is gone");
        }
        assert!(thin.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }

    #[test]
    fn nothing_is_drawn_as_nothing_and_text_cannot_break_out() {
        let lines = [Line {
            name: "a<b>&\"c".to_owned(),
            notes: vec!["n".to_owned()],
            colour: BLACK,
            points: Vec::new(),
        }];
        let command = "sh -c '<script>&'";
        let chart = Chart { title: "Memory", command, memory: "memory", lines: &lines, marks: &[] };
        let svg = draw(&chart).expect("a picture");
        assert!(svg.trim_end().ends_with("</svg>"));
        assert!(!svg.contains("<script>") && !svg.contains("a<b>"), "{svg}");
    }
}
