//! The demo's figures: as JSON for machines, as one table and one sentence for people.

use crate::{
    bench::{Columns, duration, grouped, table},
    kills::Kills,
};
use baton_lab::{Counts, LoadReport, RedisTest, Window};
use serde::Serialize;
use std::collections::BTreeSet;

/// Everything that `report.json` holds.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What was run.
    pub settings: Settings,
    /// The run without migration.
    pub off: Side,
    /// The run with migration.
    pub on: Side,
    /// redis-benchmark with a migration per command.
    pub redis: RedisSide,
    /// Pods that were killed under load.
    pub kills: Kills,
}

/// What was run.
#[derive(Debug, Serialize)]
pub struct Settings {
    /// Length of each run.
    pub seconds: u64,
    /// Number of pods.
    pub pods: u16,
    /// wrk's persistent connections.
    pub connections: u32,
    /// Name of the throttled pod.
    pub throttled_pod: String,
    /// Its CPU limit.
    pub throttle_percent: f64,
    /// Mean pause of a connection between two requests.
    pub think_ms: u64,
}

/// One of the two runs.
#[derive(Debug, Serialize)]
pub struct Side {
    /// wrk's responses.
    pub requests: u64,
    /// wrk's errors and the checking client's.
    pub errors: u64,
    /// wrk's latencies.
    pub p50_us: u64,
    /// 90 % are at most this long.
    pub p90_us: u64,
    /// 99 % are at most this long.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
    /// Confirmed moves of both clients' connections.
    pub migrations: u64,
    /// Moves that were taken back.
    pub rollbacks: u64,
    /// wrk's connections by pod, at the end of the run.
    pub connections_per_pod: Counts,
    /// The client of our own, which ran beside wrk and checked every response.
    pub checked: Checked,
}

/// What the checking client saw.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// Responses of which every byte was right.
    pub requests: u64,
    /// Errors by kind.
    pub errors: Counts,
    /// Latency over time, which the plot shows.
    pub windows: Vec<Window>,
}

/// redis-benchmark's run.
#[derive(Debug, Serialize)]
pub struct RedisSide {
    /// Commands that were answered.
    pub commands: u64,
    /// Errors that it reported.
    pub errors: u64,
    /// Confirmed moves.
    pub migrations: u64,
    /// Moves that were taken back.
    pub rollbacks: u64,
    /// Its tests.
    pub tests: Vec<RedisTest>,
}

impl Side {
    /// Puts together what wrk, the checking client and the dataplane say.
    pub fn new(
        wrk: &LoadReport,
        checked: LoadReport,
        connections_per_pod: Counts,
        migrations: u64,
        rollbacks: u64,
    ) -> Self {
        Self {
            requests: wrk.requests,
            errors: wrk.error_count() + checked.error_count(),
            p50_us: wrk.latency.p50_us,
            p90_us: wrk.latency.p90_us,
            p99_us: wrk.latency.p99_us,
            max_us: wrk.latency.max_us,
            migrations,
            rollbacks,
            connections_per_pod,
            checked: Checked {
                requests: checked.requests,
                errors: checked.errors,
                windows: checked.windows,
            },
        }
    }
}

impl Report {
    /// Why the demo did not show what it is for; empty if it did.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for (name, errors) in [
            ("the run without migration", self.off.errors),
            ("the run with migration", self.on.errors),
            ("redis-benchmark", self.redis.errors),
        ] {
            if errors > 0 {
                failures.push(format!("{name} had {errors} errors"));
            }
        }
        for (name, migrations) in [
            ("the run with migration", self.on.migrations),
            ("redis-benchmark", self.redis.migrations),
        ] {
            if migrations == 0 {
                failures.push(format!("no connection moved in {name}"));
            }
        }
        failures.extend(self.kills.failures());
        if self.off.migrations > 0 {
            failures.push(format!("{} connections moved with migration off", self.off.migrations));
        }
        failures
    }

    /// The table, 72 columns wide.
    pub fn table(&self) -> String {
        let columns: &Columns = &[("", -28), ("migration off", 22), ("migration on", 22)];
        let (off, on) = (&self.off, &self.on);
        let row = |name: &str, of: &dyn Fn(&Side) -> String| vec![name.to_owned(), of(off), of(on)];
        let mut rows = vec![
            row("requests", &|s| grouped(s.requests)),
            row("errors", &|s| grouped(s.errors)),
            row("latency p50", &|s| duration(s.p50_us)),
            row("latency p90", &|s| duration(s.p90_us)),
            row("latency p99", &|s| duration(s.p99_us)),
            row("latency max", &|s| duration(s.max_us)),
        ];
        let both = off.connections_per_pod.keys().chain(on.connections_per_pod.keys());
        for (i, pod) in both.collect::<BTreeSet<_>>().into_iter().enumerate() {
            let lead = if i == 0 { "connections" } else { "" };
            let slow = *pod == self.settings.throttled_pod;
            let mark = if slow { " (slow)" } else { "" };
            let count = |s: &Side| grouped(s.connections_per_pod.get(pod).copied().unwrap_or(0));
            rows.push(row(&format!("{lead:<12}{pod}{mark}"), &count));
        }
        rows.push(row("migrations", &|s| grouped(s.migrations)));
        rows.push(row("rollbacks", &|s| grouped(s.rollbacks)));
        table(columns, rows)
    }

    /// What the table means, in one sentence.
    pub fn sentence(&self) -> String {
        let (off, on) = (&self.off, &self.on);
        let times = off.p99_us as f64 / on.p99_us.max(1) as f64;
        let errors = match on.errors {
            0 => "without one error".to_owned(),
            1 => "with 1 error".to_owned(),
            n => format!("with {} errors", grouped(n)),
        };
        let compared = if times >= 1.0 {
            format!("{times:.1} times lower than")
        } else {
            format!("{:.1} times higher than", 1.0 / times)
        };
        format!(
            "With {} limited to {} % of a CPU, moving live connections ({} times, {errors}) \
             made the p99 latency of the same {} connections {compared} keeping them where they were: \
             {} instead of {}.",
            self.settings.throttled_pod,
            self.settings.throttle_percent,
            grouped(on.migrations),
            self.settings.connections,
            duration(on.p99_us),
            duration(off.p99_us),
        )
    }

    /// How the figures came about.
    pub fn conditions(&self) -> String {
        let settings = &self.settings;
        let pause = match settings.think_ms {
            0 => "without pause".to_owned(),
            ms => format!("about {ms} ms after each response"),
        };
        format!(
            "wrk: {} persistent connections, {} s each run, GET of a page that nginx compresses, {pause}. \
             Beside it {} and {} responses to a client that checks every byte; its errors are in the table, too.",
            settings.connections,
            settings.seconds,
            grouped(self.off.checked.requests),
            grouped(self.on.checked.requests),
        )
    }

    /// What redis-benchmark showed, in one sentence.
    pub fn redis_sentence(&self) -> String {
        let redis = &self.redis;
        let tests: Vec<_> = redis
            .tests
            .iter()
            .map(|t| {
                format!(
                    "{} {}/s, p50 {}, p99 {}",
                    t.name,
                    grouped(t.per_second.round() as u64),
                    duration(t.p50_us),
                    duration(t.p99_us)
                )
            })
            .collect();
        format!(
            "redis-benchmark: {} commands, {} errors, {} migrations, {} rollbacks ({}).",
            grouped(redis.commands),
            grouped(redis.errors),
            grouped(redis.migrations),
            grouped(redis.rollbacks),
            tests.join("; ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bench::wrapped, kills::KillSide};

    fn side(p99_us: u64, errors: u64, migrations: u64) -> Side {
        Side {
            requests: 1_234_567_890,
            errors,
            p50_us: 900,
            p90_us: 1_500,
            p99_us,
            max_us: 2_500_000,
            migrations,
            rollbacks: 0,
            connections_per_pod: [("pod-a".to_owned(), 16), ("pod-b".to_owned(), 48)].into(),
            checked: Checked { requests: 1, errors: Counts::new(), windows: Vec::new() },
        }
    }

    fn report(off: Side, on: Side, redis_migrations: u64) -> Report {
        Report {
            settings: Settings {
                seconds: 10,
                pods: 4,
                connections: 64,
                throttled_pod: "pod-a".into(),
                throttle_percent: 5.0,
                think_ms: 40,
            },
            off,
            on,
            redis: RedisSide {
                commands: 200_000,
                errors: 0,
                migrations: redis_migrations,
                rollbacks: 0,
                tests: Vec::new(),
            },
            kills: Kills {
                baton: KillSide { rescued: 1, ..KillSide::default() },
                haproxy: KillSide::default(),
            },
        }
    }

    #[test]
    fn the_table_fits_and_holds_every_figure() {
        let table = report(side(150_000, 0, 0), side(3_000, 0, 1_234), 1).table();
        assert!(table.lines().all(|l| l.len() <= 80), "{table}");
        for text in
            ["1,234,567,890", "150.0 ms", "3.0 ms", "2.50 s", "900 us", "pod-a (slow)", "1,234"]
        {
            assert!(table.contains(text), "{text} is not in\n{table}");
        }
    }

    #[test]
    fn the_sentence_follows_the_numbers() {
        let better = report(side(150_000, 0, 0), side(3_000, 0, 9), 1);
        assert!(better.sentence().contains("50.0 times lower"));
        assert!(better.sentence().contains("without one error"));
        let worse = report(side(3_000, 0, 0), side(6_000, 2, 9), 1);
        assert!(worse.sentence().contains("2.0 times higher"));
        assert!(worse.sentence().contains("with 2 errors"));
        assert!(wrapped(&worse.sentence()).lines().all(|l| l.len() <= 80));
    }

    #[test]
    fn errors_and_missing_migrations_are_failures() {
        let good = report(side(1, 0, 0), side(1, 0, 1), 1);
        assert_eq!(good.failures(), [""; 0]);
        for (off, on, redis) in [
            (side(1, 1, 0), side(1, 0, 1), 1),
            (side(1, 0, 0), side(1, 1, 1), 1),
            (side(1, 0, 0), side(1, 0, 0), 1),
            (side(1, 0, 0), side(1, 0, 1), 0),
            (side(1, 0, 7), side(1, 0, 1), 1),
        ] {
            assert_eq!(report(off, on, redis).failures().len(), 1);
        }
        let mut noticed = report(side(1, 0, 0), side(1, 0, 1), 1);
        noticed.kills.baton.client_errors = 1;
        assert_eq!(noticed.failures().len(), 1);
    }
}
