//! The demo's second act in figures: the same kills behind both load balancers, as JSON and as a table.

use crate::report::{duration, grouped};
use baton_lab::Counts;
use serde::Serialize;
use std::fmt::Write as _;

/// The same kills behind both load balancers.
#[derive(Debug, Serialize)]
pub struct Kills {
    /// Behind Baton.
    pub baton: KillSide,
    /// Behind HAProxy.
    pub haproxy: KillSide,
}

/// What clients saw of pods that were killed.
#[derive(Debug, Default, Serialize)]
pub struct KillSide {
    /// Right answers.
    pub requests: u64,
    /// Connections that ended under the client, and wrong answers.
    pub client_errors: u64,
    /// Pods killed and started again.
    pub kills: u64,
    /// Connections that went on at another pod, or at the restarted one.
    pub rescued: u64,
    /// Requests that were sent again.
    pub replayed: u64,
    /// The errors by kind.
    pub errors: Counts,
    /// 99 % of the answers took at most this long.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Kills {
    /// Why the act did not show what it is for; empty if it did.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let baton = &self.baton;
        if baton.client_errors > 0 {
            failures.push(format!(
                "clients saw {} errors while pods behind Baton were killed: {:?}",
                baton.client_errors, baton.errors
            ));
        }
        if baton.rescued == 0 {
            failures.push("no connection was rescued from a killed pod".into());
        }
        failures
    }

    /// The kills, behind both, at most 80 columns wide.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, haproxy: String, baton: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<28}{haproxy:>22}{baton:>22}");
        };
        row("", "HAProxy".into(), "Baton".into());
        let (h, b) = (&self.haproxy, &self.baton);
        row(
            "pods killed and restarted",
            grouped(h.kills),
            grouped(b.kills),
        );
        row("requests", grouped(h.requests), grouped(b.requests));
        row(
            "errors that clients saw",
            grouped(h.client_errors),
            grouped(b.client_errors),
        );
        row(
            "connections rescued",
            grouped(h.rescued),
            grouped(b.rescued),
        );
        row(
            "requests replayed",
            grouped(h.replayed),
            grouped(b.replayed),
        );
        row("latency p99", duration(h.p99_us), duration(b.p99_us));
        row("latency max", duration(h.max_us), duration(b.max_us));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill_side(client_errors: u64, rescued: u64) -> KillSide {
        KillSide {
            requests: 1_234_567,
            client_errors,
            kills: 40,
            rescued,
            replayed: rescued / 2,
            errors: Counts::new(),
            p99_us: 900,
            max_us: 120_000,
        }
    }

    fn kills(baton: KillSide) -> Kills {
        Kills {
            baton,
            haproxy: kill_side(640, 0),
        }
    }

    #[test]
    fn the_table_of_kills_fits_and_holds_both_sides() {
        let table = kills(kill_side(0, 100)).table();
        assert!(table.lines().all(|l| l.len() <= 80), "{table}");
        for text in ["640", "1,234,567", "120.0 ms", "100", "50"] {
            assert!(table.contains(text), "{text} is not in\n{table}");
        }
    }

    #[test]
    fn errors_and_missing_rescues_are_failures() {
        assert_eq!(kills(kill_side(0, 100)).failures(), [""; 0]);
        for baton in [kill_side(1, 100), kill_side(0, 0)] {
            assert_eq!(kills(baton).failures().len(), 1);
        }
    }
}
