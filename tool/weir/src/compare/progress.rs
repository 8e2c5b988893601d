//! Tells the user how far the comparison is: a bar on a terminal, a line per round elsewhere. Writes to stderr
//! alone. It does not know what a round is for.
//!
//! SPDX-License-Identifier: Apache-2.0

use crate::errors;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Progress {
    pub fn new(quiet: bool) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template(
                "{bar:30} {percent:>3} %  {msg}  {elapsed} of about {duration}",
            ) {
                bar.set_style(style);
            }
            bar
        });
        Progress { bar, quiet }
    }

    /// `done` of about `all` runs are made, the next is that of `name`.
    pub fn run(&self, done: u64, all: u64, round: usize, name: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(all.max(done + 1));
            bar.set_position(done);
            let what = if round == 0 { "warm-up".to_owned() } else { format!("round {round}") };
            bar.set_message(format!("{what}, {name}"));
        }
    }

    /// A round is over.
    pub fn round(&self, text: &str) {
        if self.bar.is_none() && !self.quiet {
            errors::say(text);
        }
    }

    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
