//! The redis-benchmark load generator, with its figures as numbers.

use crate::node::{
    lab::Pod,
    process::{Process, Spec},
};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, time::Duration};

/// What redis-benchmark shall do.
#[derive(Clone, Debug)]
pub struct RedisBenchOptions {
    /// The server.
    pub address: SocketAddr,
    /// Its names of the tests, as `set` and `get`.
    pub tests: Vec<String>,
    /// Commands per test.
    pub commands: u64,
    /// Persistent connections.
    pub connections: u32,
    /// It must end within this time (it tries for ever to reach a server that is not there).
    pub deadline: Duration,
}

/// One test's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RedisTest {
    /// Its name, as `SET`.
    pub name: String,
    /// Commands per second.
    pub per_second: f64,
    /// Median latency.
    pub p50_us: u64,
    /// 99 % are at most this long.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// A running redis-benchmark.
#[derive(Debug)]
pub struct RedisBench {
    /// The process.
    pub process: Process,
    options: RedisBenchOptions,
}

/// What redis-benchmark found.
#[derive(Clone, Debug, PartialEq)]
pub struct RedisBenchReport {
    /// Commands that were answered.
    pub commands: u64,
    /// Errors that it reported and survived (since version 7 it ends at the first, which
    /// [`RedisBench::join`] says).
    pub errors: u64,
    /// The tests.
    pub tests: Vec<RedisTest>,
}

impl Pod {
    /// Starts redis-benchmark here.
    pub fn redis_benchmark(&self, options: &RedisBenchOptions) -> Result<RedisBench> {
        let arguments = [
            "-h".to_owned(),
            options.address.ip().to_string(),
            "-p".to_owned(),
            options.address.port().to_string(),
            "-t".to_owned(),
            options.tests.join(","),
            "-n".to_owned(),
            options.commands.to_string(),
            "-c".to_owned(),
            options.connections.to_string(),
            "--csv".to_owned(),
        ];
        Ok(RedisBench {
            process: self.spawn(&Spec::new("redis-benchmark", arguments))?,
            options: options.clone(),
        })
    }
}

impl RedisBench {
    /// Waits for its end.
    ///
    /// # Errors
    /// If it fails, does not end, or says less than it was asked for.
    pub fn join(mut self) -> Result<RedisBenchReport> {
        let status = self.process.wait(self.options.deadline)?;
        ensure!(status.success(), "redis-benchmark failed ({status}):\n{}", self.process.tail());
        let tests = parse(&self.process.stdout())?;
        ensure!(
            tests.len() >= self.options.tests.len(),
            "redis-benchmark ended early:\n{}",
            self.process.tail()
        );
        let errors = count_errors(&self.process.stdout()) + count_errors(&self.process.stderr());
        Ok(RedisBenchReport { commands: self.options.commands * tests.len() as u64, errors, tests })
    }
}

/// It reports error replies as `Error from server: …` and broken connections as `Error: …`.
fn count_errors(text: &str) -> u64 {
    text.lines().filter(|l| l.contains("Error")).count() as u64
}

/// Reads `"SET","88888.89","0.301","0.096","0.295","0.431","0.487","0.663"`: after the name
/// commands per second, then milliseconds: average, least, p50, p95, p99, longest.
fn parse(text: &str) -> Result<Vec<RedisTest>> {
    text.lines()
        .filter(|l| l.starts_with('"') && !l.starts_with("\"test\""))
        .map(|line| {
            let fields: Vec<_> = line.split("\",\"").map(|f| f.trim_matches('"')).collect();
            let number = |i: usize| -> Result<f64> {
                let field: &str = fields.get(i).with_context(|| line.to_owned())?;
                field.parse().with_context(|| line.to_owned())
            };
            let us = |i| number(i).map(|ms| (ms * 1000.0).round() as u64);
            Ok(RedisTest {
                name: fields[0].to_owned(),
                per_second: number(1)?,
                p50_us: us(4)?,
                p99_us: us(6)?,
                max_us: us(7)?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_is_read_and_errors_are_counted() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                    \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"SET\",\"88888.89\",\"0.301\",\"0.096\",\"0.295\",\"0.431\",\"0.487\",\"0.663\"\n";
        let tests = parse(text).unwrap();
        assert_eq!(tests.len(), 1);
        assert_eq!(tests[0].name, "SET");
        assert_eq!((tests[0].p50_us, tests[0].p99_us, tests[0].max_us), (295, 487, 663));
        assert!(parse("\"SET\",\"88\"\n").is_err());
        assert_eq!(count_errors("Error from server: x\nfine\nError: Connection reset\n"), 2);
    }
}
