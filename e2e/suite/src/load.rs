//! Clients under load: wrk with 64 connections that stay, in a Pod of the cluster.
//!
//! Owns what counts as an error. Judges nothing.

use crate::site::{SHOP, Site};
use anyhow::{Context, Result, bail, ensure};
use std::{
    net::Ipv4Addr,
    process::{Child, Stdio},
};

/// Connections that stay open for the whole run.
pub const CONNECTIONS: u32 = 64;

/// A run under way.
pub struct Load {
    child: Child,
}

/// What clients saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Answers.
    pub requests: u64,
    /// Connections that could not be opened.
    pub connect: u64,
    /// Connections that were reset, or closed before the whole answer, seen while reading.
    pub read: u64,
    /// The same, seen while writing.
    pub write: u64,
    /// Answers that were no 2xx or 3xx.
    pub status: u64,
    /// Answers that took more than 10 s.
    pub slow: u64,
    /// The longest that an answer took, in microseconds, as exact as wrk prints it.
    pub max_us: u64,
}

impl Outcome {
    /// What may not be.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.connect + self.read + self.write + self.status
    }
}

impl Load {
    /// Starts for so many seconds against an address.
    pub fn start(site: &Site, address: &str, seconds: u32) -> Result<Self> {
        let wrk = format!("wrk -t1 -c{CONNECTIONS} -d{seconds}s --timeout 10s http://{address}/");
        Self::run(site, &wrk)
    }

    /// The same with connections of one request each, up to 200 a second: nodes remember each in
    /// their connection tracking for two minutes.
    pub fn short(site: &Site, address: &str, seconds: u32) -> Result<Self> {
        let pace = "/dev/shm/pace.lua";
        let wrk = format!(
            "echo 'function delay() return 20 end' > {pace}; \
             wrk -t1 -c4 -d{seconds}s --timeout 10s -s {pace} -H 'Connection: close' http://{address}/"
        );
        Self::run(site, &wrk)
    }

    fn run(site: &Site, shell: &str) -> Result<Self> {
        let child = site
            .kubectl_command()
            .args(["-n", SHOP, "exec", "client", "--", "sh", "-c", shell])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Self { child })
    }

    /// Waits until all its connections to the address are open.
    ///
    /// # Errors
    /// They are not, at the deadline.
    pub fn wait_open(&self, site: &Site, address: &str) -> Result<()> {
        let show = ["-n", SHOP, "exec", "client", "--", "/bin/cat", "/proc/net/tcp"];
        site.until("all connections are open", || {
            let open = established(&site.kubectl(&show)?, address)?;
            Ok((open >= CONNECTIONS as usize).then_some(()))
        })
    }

    /// Waits for its end.
    pub fn end(self) -> Result<Outcome> {
        let output = self.child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "wrk: {text}{said}");
        let outcome = read(&text)?;
        ensure!(outcome.requests > 0, "no request was answered:\n{text}");
        Ok(outcome)
    }
}

/// How many connections to an IPv4 address a Pod's `/proc/net/tcp` says to be established.
fn established(table: &str, address: &str) -> Result<usize> {
    let address: Ipv4Addr = address.parse().with_context(|| address.to_owned())?;
    // As the kernel prints it: the number that the bytes make on this machine, in hexadecimal
    // digits.
    let to = format!("{:08X}:", u32::from_ne_bytes(address.octets()));
    let is_open = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|remote| remote.starts_with(&to)) && fields.next() == Some("01")
    };
    Ok(table.lines().filter(is_open).count())
}

/// The figures that wrk prints.
fn read(text: &str) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut counted = false;
    for line in text.lines().map(str::trim) {
        if let Some((count, _)) = line.split_once(" requests in ") {
            outcome.requests = count.parse().with_context(|| line.to_owned())?;
            counted = true;
        } else if let Some(figures) = line.strip_prefix("Latency ") {
            // Mean, deviation, maximum, and how many are within the deviation.
            let max = figures.split_whitespace().nth(2);
            outcome.max_us = max.and_then(microseconds).with_context(|| line.to_owned())?;
        } else if let Some(errors) = line.strip_prefix("Socket errors: ") {
            for error in errors.split(", ") {
                let (kind, count) = error.split_once(' ').with_context(|| line.to_owned())?;
                let count: u64 = count.parse().with_context(|| line.to_owned())?;
                let field = match kind {
                    "connect" => &mut outcome.connect,
                    "read" => &mut outcome.read,
                    "write" => &mut outcome.write,
                    "timeout" => &mut outcome.slow,
                    _ => bail!("an error of another kind: {line}"),
                };
                *field += count;
            }
        } else if let Some(count) = line.strip_prefix("Non-2xx or 3xx responses: ") {
            outcome.status += count.parse::<u64>().with_context(|| line.to_owned())?;
        }
    }
    ensure!(counted, "this is not what wrk prints:\n{text}");
    Ok(outcome)
}

/// A time as wrk prints it: `12.34ms`.
fn microseconds(text: &str) -> Option<u64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 6e7), ("h", 3.6e9)];
    let found = units.iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number * factor)
    });
    found.map(|us| us.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_are_counted() {
        let line = |remote: &str, state: &str| {
            format!("   1: 0200020A:9C40 {remote} {state} 00000000:00000000 02:0000A1B2\n")
        };
        let table = [
            "  sl  local_address rem_address   st tx_queue rx_queue\n".to_owned(),
            line("0A00600A:0050", "01"),
            line("0A00600A:0050", "01"),
            line("0A00600A:0050", "02"),
            line("0B00600A:0050", "01"),
        ];
        assert_eq!(established(&table.concat(), "10.96.0.10").expect("an address"), 2);
        assert!(established("", "web").is_err());
    }

    #[test]
    fn what_wrk_prints_is_read() {
        let text = "Running 20s test @ http://10.0.0.1/\n  1 threads and 64 connections\n  \
                    Thread Stats   Avg      Stdev     Max   +/- Stdev\n    \
                    Latency     1.05ms    1.36ms  45.16ms   94.21%\n    \
                    Req/Sec    19.50k     1.20k   21.00k    70.00%\n  \
                    388558 requests in 20.01s, 62.62MB read\n  \
                    Socket errors: connect 1, read 138, write 12, timeout 7\n  \
                    Non-2xx or 3xx responses: 5\nRequests/sec:  19417.01\n";
        let expected = Outcome {
            requests: 388_558,
            connect: 1,
            read: 138,
            write: 12,
            status: 5,
            slow: 7,
            max_us: 45_160,
        };
        assert_eq!(expected.errors(), 156);
        assert_eq!(read(text).expect("figures"), expected);
        let calm = "  10 requests in 1.00s, 1MB read\n";
        assert_eq!(read(calm).expect("figures").errors(), 0);
        assert!(read("unable to connect").is_err());
        for (text, us) in [("123.45us", 123), ("1.50s", 1_500_000), ("2.00m", 120_000_000)] {
            assert_eq!(microseconds(text), Some(us));
        }
        assert_eq!(microseconds("nan"), None);
    }
}
