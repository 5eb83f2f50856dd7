//! How far a drain is, in figures and words, for who waits for one.
//!
//! Owns how the figures of several backends, or of several dataplanes, make one. Which backends are
//! meant is the tool's to say.

use crate::text::{WIDTH_MAX, count, span};
use baton_api::{BackendState, DrainState, PolicyState, printable};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{IsTerminal as _, Write as _, stderr},
};

/// All that one order means, together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainProgress {
    /// Flows that are still there.
    pub flows: u64,
    /// Since the drain began.
    pub moved: u64,
    /// By themselves.
    pub ended: u64,
    /// By the deadline, in order.
    pub closed: u64,
    /// What the flows that are left wait for.
    pub waiting: BTreeMap<String, u64>,
    /// Until the last deadline, in seconds; none if it has passed.
    pub deadline_seconds: Option<u64>,
}

impl DrainProgress {
    /// One backend's; none if it does not drain.
    #[must_use]
    pub fn of(backend: &BackendState) -> Option<Self> {
        let DrainState { moved, ended, closed, left, waiting, .. } = backend.drain.as_ref()?;
        let waiting = waiting.iter().filter(|(_, flows)| **flows > 0);
        Some(Self {
            // Those that are on their way elsewhere may come back.
            flows: waiting.clone().map(|(_, flows)| *flows).sum(),
            moved: *moved,
            ended: *ended,
            closed: *closed,
            waiting: waiting.map(|(why, flows)| (why.clone(), *flows)).collect(),
            // Rounded up: a deadline that has not passed is never 0 s away.
            deadline_seconds: (left.0 > 0).then(|| left.0.div_ceil(1_000_000)),
        })
    }

    /// All of these; none if there are none. A backend may serve several policies; its flows count
    /// once.
    ///
    /// # Errors
    /// The policies in which it does not drain (any more).
    pub fn of_all<'a>(
        backends: impl IntoIterator<Item = (&'a PolicyState, &'a BackendState)>,
    ) -> Result<Option<Self>, Vec<&'a str>> {
        let (mut all, mut seen, mut idle) = (Self::default(), BTreeSet::new(), Vec::new());
        for (policy, backend) in backends {
            match Self::of(backend) {
                None => idle.push(policy.name.as_str()),
                Some(one) if seen.insert(backend.endpoint) => all.add(&one),
                Some(_) => {}
            }
        }
        if idle.is_empty() { Ok((!seen.is_empty()).then_some(all)) } else { Err(idle) }
    }

    /// Adds another one's.
    pub fn add(&mut self, other: &Self) {
        self.flows += other.flows;
        self.moved += other.moved;
        self.ended += other.ended;
        self.closed += other.closed;
        for (why, flows) in &other.waiting {
            *self.waiting.entry(why.clone()).or_default() += flows;
        }
        self.deadline_seconds = self.deadline_seconds.max(other.deadline_seconds);
    }

    /// What is left and why: `15 flows left (12 request in progress, 3 pinned: upgrade)`.
    #[must_use]
    pub fn left(&self) -> String {
        let left = count(self.flows, "flow");
        if self.waiting.is_empty() {
            return format!("{left} left");
        }
        let waiting = self.waiting.iter();
        let waiting: Vec<String> =
            waiting.map(|(why, flows)| format!("{flows} {}", why.replace('_', " "))).collect();
        format!("{left} left ({})", waiting.join(", "))
    }

    /// What became of the others: `230 moved, 4 ended, 0 closed`.
    #[must_use]
    pub fn gone(&self) -> String {
        format!("{} moved, {} ended, {} closed", self.moved, self.ended, self.closed)
    }

    /// Everything in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = format!("{}; {}", self.left(), self.gone());
        if let Some(seconds) = self.deadline_seconds.filter(|_| self.flows > 0) {
            line.push_str(&format!("; deadline in {}", span(seconds)));
        }
        line
    }
}

/// Progress: one line that changes on a terminal, a line per change elsewhere. Writes nothing.
#[derive(Debug)]
struct ProgressLine {
    terminal: bool,
    last: String,
}

impl ProgressLine {
    /// For a stream that is a terminal, or is none.
    fn new(terminal: bool) -> Self {
        Self { terminal, last: String::new() }
    }

    /// What is to be written for this line. The passing of time alone is no change.
    fn say(&mut self, line: &str) -> String {
        let timeless = |line: &str| line.split("; deadline").next().map(str::to_owned);
        let line = &*printable(line);
        let text = if self.terminal {
            let fits: String = line.chars().take(WIDTH_MAX - 1).collect();
            format!("\r\x1b[K{fits}")
        } else if timeless(line) != timeless(&self.last) {
            format!("{line}\n")
        } else {
            String::new()
        };
        line.clone_into(&mut self.last);
        text
    }

    /// What is to be written at the end.
    fn end(&self) -> &'static str {
        if self.terminal && !self.last.is_empty() { "\r\x1b[K" } else { "" }
    }
}

/// Progress on the standard error stream.
pub struct Progress(ProgressLine);

impl Default for Progress {
    fn default() -> Self {
        Self(ProgressLine::new(stderr().is_terminal()))
    }
}

impl Progress {
    /// A look, or something that the admin should know.
    pub fn say(&mut self, line: &str) {
        let _ = write!(stderr(), "{}", self.0.say(line));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let _ = write!(stderr(), "{}", self.0.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_api::Micros;

    fn progress(left_us: u64) -> DrainProgress {
        DrainProgress {
            flows: 8,
            moved: 5,
            ended: 1,
            closed: 0,
            waiting: [("request_in_progress".to_owned(), 6), ("pinned: upgrade".to_owned(), 2)]
                .into(),
            deadline_seconds: (left_us > 0).then(|| Micros(left_us).0.div_ceil(1_000_000)),
        }
    }

    #[test]
    fn what_is_left_is_said_with_its_reasons_and_what_is_gone_without() {
        assert_eq!(
            progress(17_000_001).line(),
            "8 flows left (2 pinned: upgrade, 6 request in progress); 5 moved, 1 ended, 0 closed; deadline in 18s"
        );
        let done =
            DrainProgress { moved: 9, deadline_seconds: Some(3), ..DrainProgress::default() };
        assert_eq!(done.line(), "0 flows left; 9 moved, 0 ended, 0 closed");
    }

    #[test]
    fn several_make_one_with_the_last_deadline() {
        let mut both = progress(5_000_000);
        both.add(&progress(0));
        both.add(&progress(9_000_000));
        assert_eq!((both.flows, both.moved, both.deadline_seconds), (24, 15, Some(9)));
        assert_eq!(both.waiting["pinned: upgrade"], 6);
    }

    #[test]
    fn time_alone_is_no_change() {
        let (now, later) = (progress(17_000_000).line(), progress(9_000_000).line());
        assert_ne!(now, later);
        let mut file = ProgressLine::new(false);
        assert_eq!(file.say(&now), format!("{now}\n"));
        assert_eq!((file.say(&later), file.end()), (String::new(), ""));
        let empty = DrainProgress::default().line();
        assert_eq!(file.say(&empty), format!("{empty}\n"));
        let mut terminal = ProgressLine::new(true);
        assert_eq!(terminal.end(), "");
        for line in [now, later] {
            let fits: String = line.chars().take(WIDTH_MAX - 1).collect();
            assert_eq!(terminal.say(&line), format!("\r\x1b[K{fits}"));
        }
        assert_eq!(terminal.end(), "\r\x1b[K");
    }
}
