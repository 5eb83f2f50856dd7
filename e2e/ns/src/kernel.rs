//! What the kernel says about a namespace (sockets, counters), and what tests change there
//! (sysctls, packet filter).
//!
//! Read through `/proc/thread-self`, which shows the namespace of the thread that looks.

use anyhow::{Context, Result};
use baton_lab::{Namespace, run_command};
use std::{collections::BTreeMap, fs};

/// One TCP socket of a namespace, as `/proc/net/tcp` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Local port.
    pub local_port: u16,
    /// Port at the other end.
    pub remote_port: u16,
    /// Number of the kernel's state; 1 is ESTABLISHED.
    pub state: u8,
}

/// Sockets that are established, IPv4 and IPv6.
pub fn established(namespace: &Namespace) -> Result<Vec<TcpSocket>> {
    let text = read(namespace, &["tcp", "tcp6"])?;
    let sockets = text.lines().filter_map(socket);
    Ok(sockets.filter(|s| s.state == 1).collect())
}

/// How many TCP sockets a namespace has, listeners included, those in TIME_WAIT not: a count that
/// the kernel keeps. (Each read of [`established`] goes through the sockets of all namespaces:
/// where there are 20,000, some 10 ms of a CPU.)
pub fn tcp_sockets(namespace: &Namespace) -> Result<usize> {
    let text = read(namespace, &["sockstat", "sockstat6"])?;
    let counts = text.lines().filter_map(|line| {
        let (kind, rest) = line.split_once(": inuse ")?;
        let count = rest.split_whitespace().next()?.parse::<usize>().ok()?;
        kind.starts_with("TCP").then_some(count)
    });
    Ok(counts.sum())
}

/// How many sockets listen on a TCP port.
pub fn listeners(namespace: &Namespace, port: u16) -> Result<usize> {
    const LISTEN: u8 = 10;
    let text = read(namespace, &["tcp", "tcp6"])?;
    let sockets = text.lines().filter_map(socket);
    Ok(sockets.filter(|s| s.state == LISTEN && s.local_port == port).count())
}

fn socket(line: &str) -> Option<TcpSocket> {
    let mut fields = line.split_whitespace().skip(1);
    let mut port = || u16::from_str_radix(fields.next()?.rsplit_once(':')?.1, 16).ok();
    let (local_port, remote_port) = (port()?, port()?);
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    Some(TcpSocket { local_port, remote_port, state })
}

/// The kernel's protocol counters of a namespace, as `Tcp.RetransSegs` or `TcpExt.TCPTimeouts`.
pub fn kernel_counters(namespace: &Namespace) -> Result<BTreeMap<String, u64>> {
    let text = read(namespace, &["snmp", "netstat"])?;
    let lines: Vec<_> = text.lines().collect();
    let mut counters = BTreeMap::new();
    // Lines come in pairs: names, then values.
    for pair in lines.chunks_exact(2) {
        let (Some((group, names)), Some((_, values))) =
            (pair[0].split_once(": "), pair[1].split_once(": "))
        else {
            continue;
        };
        for (name, value) in names.split(' ').zip(values.split(' ')) {
            // Tcp.MaxConn is -1.
            counters.insert(format!("{group}.{name}"), value.parse().unwrap_or(0));
        }
    }
    Ok(counters)
}

fn read(namespace: &Namespace, files: &[&str]) -> Result<String> {
    namespace.run(|| {
        files
            .iter()
            .map(|f| {
                let path = format!("/proc/thread-self/net/{f}");
                fs::read_to_string(&path).context(path)
            })
            .collect::<Result<String>>()
    })?
}

/// Runs one `nft` command in the namespace.
pub fn nft(namespace: &Namespace, command: &str) -> Result<()> {
    namespace.run(|| run_command("nft", &[command]).map(drop))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_net_tcp_is_read() {
        let line = "   1: 02014D0A:0050 02644D0A:4E20 01 00000000:00000000 02:0000A1B2 00000000     0        0 1 2";
        let expected = TcpSocket { local_port: 80, remote_port: 20_000, state: 1 };
        assert_eq!(socket(line), Some(expected));
        assert_eq!(socket("  sl  local_address rem_address   st tx_queue rx_queue tr"), None);
    }
}
