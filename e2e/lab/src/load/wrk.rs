//! The wrk load generator, with its figures as numbers.
//!
//! wrk prints rounded text; a `done` hook (called once, after the run) prints the exact figures
//! instead.

use crate::{
    node::{
        lab::Pod,
        process::{Process, Spec},
    },
    work::stats::{Latency, LoadReport},
};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde::Deserialize;
use std::{fs, net::SocketAddr, time::Duration};

/// A response slower than this is a timeout to wrk (its default is 2 s, less than a throttled pod
/// may need).
const TIMEOUT_S: u64 = 20;
/// wrk needs so much longer than its duration, at most: connecting, and waiting for its last
/// responses.
const SLACK: Duration = Duration::from_secs(30);

const DONE_HOOK: &str = r#"
wrong = 0
local threads = {}
setup = function(thread) table.insert(threads, thread) end
done = function(summary, latency, requests)
  local e, wrong = summary.errors, 0
  for _, thread in ipairs(threads) do wrong = wrong + thread:get("wrong") end
  io.write(string.format(
    'BATON {"requests":%d,"duration_us":%d,"bytes":%d,"connect":%d,"read":%d,"write":%d,"status":%d,' ..
    '"timeout":%d,"wrong":%d,"p50":%d,"p90":%d,"p99":%d,"p999":%d,"max":%d}\n',
    summary.requests, summary.duration, summary.bytes, e.connect, e.read, e.write, e.status, e.timeout, wrong,
    latency:percentile(50), latency:percentile(90), latency:percentile(99), latency:percentile(99.9), latency.max))
end
"#;

/// What wrk shall do.
#[derive(Clone, Debug)]
pub struct WrkOptions {
    /// The server.
    pub address: SocketAddr,
    /// Request target.
    pub target: String,
    /// Persistent connections.
    pub connections: u32,
    /// Threads of wrk.
    pub threads: u32,
    /// How long.
    pub duration: Duration,
    /// Mean pause of a connection between a response and its next request, as a person or a program
    /// that uses the answer makes it; each pause is between half and one and a half of it. Zero
    /// sends at once, which measures a saturated machine. The pause is no part of a latency.
    pub think: Duration,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    /// What every body must be; `None` looks at none, which is faster.
    pub body: Option<String>,
}

impl WrkOptions {
    /// `GET /` over 64 connections from one thread.
    #[must_use]
    pub fn new(address: SocketAddr, duration: Duration) -> Self {
        Self {
            address,
            target: "/".into(),
            connections: 64,
            threads: 1,
            duration,
            think: Duration::ZERO,
            headers: Vec::new(),
            body: None,
        }
    }
}

#[derive(Deserialize)]
struct Line {
    requests: u64,
    duration_us: u64,
    connect: u64,
    read: u64,
    write: u64,
    status: u64,
    timeout: u64,
    wrong: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

/// A running wrk.
#[derive(Debug)]
pub struct Wrk {
    /// The process.
    pub process: Process,
    duration: Duration,
}

impl Pod {
    /// Starts wrk here.
    pub fn wrk(&self, options: &WrkOptions) -> Result<Wrk> {
        let script = self.directory()?.join("wrk.lua");
        fs::write(&script, script_text(options))?;
        let mut arguments = vec![
            format!("-t{}", options.threads),
            format!("-c{}", options.connections),
            format!("-d{}s", options.duration.as_secs_f64().ceil()),
            format!("--timeout={TIMEOUT_S}s"),
            "-s".to_owned(),
            script.display().to_string(),
        ];
        for (name, value) in &options.headers {
            arguments.extend(["-H".to_owned(), format!("{name}: {value}")]);
        }
        arguments.push(format!("http://{}{}", options.address, options.target));
        Ok(Wrk { process: self.spawn(&Spec::new("wrk", arguments))?, duration: options.duration })
    }
}

impl Wrk {
    /// Ends it now, as Ctrl-C does, and gives its report: errors of kind `connect`, `read`,
    /// `write`, `timeout`, `status` (above 399), and `wrong` where a body was wanted (another one,
    /// or another status than 200).
    ///
    /// # Errors
    /// As [`Wrk::join`], or if it has ended before.
    pub fn stop(mut self) -> Result<LoadReport> {
        self.process.signal(Signal::INT)?;
        self.join()
    }

    /// Waits for its end.
    pub fn join(mut self) -> Result<LoadReport> {
        let status = self.process.wait(self.duration + SLACK)?;
        ensure!(status.success(), "wrk failed ({status}):\n{}", self.process.tail());
        parse(&self.process.stdout())
    }
}

/// The `done` hook, a `response` hook if bodies are looked at, and a `delay` hook if connections
/// pause (wrk calls it before each request but the first).
fn script_text(options: &WrkOptions) -> String {
    let mut text = String::from("-- Written by baton-lab.\n");
    if let Some(body) = &options.body {
        text += &format!(
            "response = function(status, headers, body)\n  \
             if status ~= 200 or body ~= {body:?} then wrong = wrong + 1 end\nend\n"
        );
    }
    let mean_ms = options.think.as_millis();
    if mean_ms > 0 {
        let (least, most) = (mean_ms.div_ceil(2), mean_ms + mean_ms / 2);
        text += &format!("delay = function() return math.random({least}, {most}) end\n");
    }
    text + DONE_HOOK
}

fn parse(output: &str) -> Result<LoadReport> {
    let line = output
        .lines()
        .find_map(|l| l.strip_prefix("BATON "))
        .with_context(|| format!("wrk gave no figures:\n{output}"))?;
    let line: Line = serde_json::from_str(line).with_context(|| line.to_owned())?;
    let errors = [
        ("connect", line.connect),
        ("read", line.read),
        ("write", line.write),
        ("status", line.status),
        ("timeout", line.timeout),
        ("wrong", line.wrong),
    ];
    let errors = errors.into_iter().filter(|(_, count)| *count > 0);
    Ok(LoadReport {
        requests: line.requests,
        errors: errors.map(|(kind, n)| (kind.to_owned(), n)).collect(),
        elapsed: Duration::from_micros(line.duration_us),
        latency: Latency {
            count: line.requests,
            p50_us: line.p50,
            p90_us: line.p90,
            p99_us: line.p99,
            p999_us: line.p999,
            max_us: line.max,
        },
        ..LoadReport::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_between_what_wrk_prints() {
        let text = "Running 1s test\nBATON {\"requests\":10,\"duration_us\":2000000,\"bytes\":1,\
                    \"connect\":1,\"read\":2,\"write\":3,\"status\":4,\"timeout\":5,\"wrong\":6,\"p50\":6,\
                    \"p90\":7,\"p99\":8,\"p999\":9,\"max\":9}\nRequests/sec: 5\n";
        let report = parse(text).unwrap();
        assert_eq!((report.requests, report.error_count()), (10, 21));
        assert_eq!((report.latency.p99_us, report.latency.max_us), (8, 9));
        assert!((report.per_second() - 5.0).abs() < 1e-9);
        assert!(parse("unable to connect").is_err());
    }
}
