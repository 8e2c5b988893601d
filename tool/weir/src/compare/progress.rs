//! Tells the user how far the comparison is: a bar on a terminal, a line now and then elsewhere. Writes to stderr
//! alone. It does not know what a round is for.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::errors;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two lines where there is no terminal.
const LINE_PAUSE: Duration = Duration::from_secs(20);

pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    line_at: Option<Instant>,
    /// What is compared, where several things are, one after the other.
    title: Option<String>,
}

/// Whether the terminal says that it is one on which a bar can be drawn over the last one.
fn moves_back() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

impl Progress {
    pub fn new(quiet: bool, title: Option<String>) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal() && moves_back()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
            let template = "{bar:24} {percent:>3} %  {msg}  {elapsed}, at most {eta} more";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        Progress { bar, quiet, line_at: None, title }
    }

    /// `done` of at most `all` runs are made, the next is that of `name`.
    pub fn run(&mut self, done: u64, all: u64, round: u32, name: &str) {
        let what = if round == 0 { "warm-up".to_owned() } else { format!("round {round}") };
        let what = match &self.title {
            Some(title) => format!("{title}, {what}"),
            None => what,
        };
        if let Some(bar) = &self.bar {
            bar.set_length(all.max(done + 1));
            bar.set_position(done);
            bar.set_message(format!("{what}, {name}"));
            bar.tick();
        } else if !self.quiet && self.line_at.is_none_or(|at| at.elapsed() >= LINE_PAUSE) {
            self.line_at = Some(Instant::now());
            errors::say(format_args!("{what}, {name}"));
        }
    }

    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
