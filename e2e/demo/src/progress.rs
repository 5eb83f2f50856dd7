//! What goes on, while it goes on: a bar at a terminal, a line every two seconds elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Progress of one run.
pub struct Progress {
    label: String,
    start: Instant,
    length: Option<Duration>,
    bar: Option<ProgressBar>,
    next_line: Duration,
}

impl Progress {
    /// Starts the clock of a run, of known length or not.
    pub fn start(label: &str, length: Option<Duration>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let (bar, template) = match length {
                Some(length) => {
                    (ProgressBar::new(milliseconds(length)), "{prefix:16} {bar:24} {msg}")
                }
                None => (ProgressBar::new_spinner(), "{prefix:16} {spinner} {msg}"),
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_prefix(label.to_owned());
            bar
        });
        Self {
            label: label.to_owned(),
            start: Instant::now(),
            length,
            bar,
            next_line: Duration::ZERO,
        }
    }

    /// Shows how far it is, and `message`.
    pub fn tick(&mut self, message: &str) {
        let elapsed = self.start.elapsed();
        match &self.bar {
            Some(bar) => {
                match self.length {
                    Some(length) => bar.set_position(milliseconds(elapsed.min(length))),
                    None => bar.tick(),
                }
                bar.set_message(message.to_owned());
            }
            None if elapsed >= self.next_line => {
                self.next_line += LINE_INTERVAL;
                let of = self.length.map_or_else(String::new, |l| format!("of {} s", l.as_secs()));
                eprintln!("{:<15} {:3.0} s {of:<8} {message}", self.label, elapsed.as_secs_f64());
            }
            None => {}
        }
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
