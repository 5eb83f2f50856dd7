//! Clients under load: wrk with 64 connections that stay, in a Pod of the cluster.
//!
//! Owns what counts as an error. Judges nothing.

use crate::site::{SHOP, Site};
use anyhow::{Context, Result, bail, ensure};
use std::process::{Child, Stdio};

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
    ///
    /// # Errors
    /// `kubectl` cannot be started.
    pub fn start(site: &Site, address: &str, seconds: u32) -> Result<Self> {
        let (connections, url) = (format!("-c{CONNECTIONS}"), format!("http://{address}/"));
        let duration = format!("-d{seconds}s");
        let child = site
            .kubectl_command()
            .args(["-n", SHOP, "exec", "client", "--", "wrk", "-t1"])
            .args([&connections, &duration, "--timeout", "10s", &url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Self { child })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It did not run, or did nothing.
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

/// The figures that wrk prints.
fn read(text: &str) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut counted = false;
    for line in text.lines().map(str::trim) {
        if let Some((count, _)) = line.split_once(" requests in ") {
            outcome.requests = count.parse().with_context(|| line.to_owned())?;
            counted = true;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_prints_is_read() {
        let text = "Running 20s test @ http://10.0.0.1/\n  1 threads and 64 connections\n  \
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
        };
        assert_eq!(expected.errors(), 156);
        assert_eq!(read(text).expect("figures"), expected);
        let calm = "  10 requests in 1.00s, 1MB read\n";
        assert_eq!(read(calm).expect("figures").errors(), 0);
        assert!(read("unable to connect").is_err());
    }
}
