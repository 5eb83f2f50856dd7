//! What the node's connection tracking says of itself: how full its table is, how long it remembers
//! closed connections, and how many packets it called INVALID. Reads only; never changes a setting
//! or an entry.
//!
//! # Decisions
//!
//! - **host-shim reports its node's connection tracking, and changes nothing of it**: the table is
//!   the whole node's, and a full one drops packets of Pods that have nothing to do with Baton.
//!   `nf_conntrack_max` is the machine's: in every network namespace but the first it can only be
//!   read (Linux 6.18), so labs judge the number of entries, which is counted for each namespace.

use crate::config::Discovery;
use baton_adopter::Netns;
use serde::Serialize;
use std::{fs, io};

/// From here on the table counts as nearly full, in percent. The alert of the chart has the same
/// number.
const NEARLY_FULL_PERCENT: u64 = 75;

/// The network namespace that stands for the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeNetwork {
    /// The one that this process runs in: a service of the node itself.
    Own,
    /// That of the node's first process: this one runs in a Pod with `hostPID`.
    Of(Netns),
}

/// Connection tracking of one network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnTracking {
    /// Entries that there are.
    pub entries: u64,
    /// `nf_conntrack_max`: with so many the kernel drops what would need another one.
    pub entries_max: u64,
    /// Packets that it called INVALID, since the namespace was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalid_packets: Option<u64>,
    /// How long a connection is remembered that both ends closed by FIN.
    pub time_wait_seconds: u64,
    /// How long one is that ended by RST.
    pub close_seconds: u64,
    /// Segments outside of the window are not INVALID.
    pub be_liberal: bool,
    /// A connection whose SYN was not seen is not INVALID. Adoptions need it.
    pub loose: bool,
}

impl NodeNetwork {
    /// With discovery it is a cluster's node, and its first process is in the node's network.
    pub fn new(discovery: Option<&Discovery>) -> Self {
        match discovery {
            Some(discovery) => Self::Of(Netns::Path(discovery.proc.join("1/ns/net"))),
            None => Self::Own,
        }
    }

    /// What its connection tracking says now; nothing where the kernel has none, or the namespace
    /// cannot be entered.
    pub fn tracking(&self) -> Option<ConnTracking> {
        match self {
            Self::Own => ConnTracking::read(),
            Self::Of(netns) => netns.open().ok()?.within(ConnTracking::read).ok()?,
        }
    }
}

impl ConnTracking {
    /// Of the namespace that the calling thread is in.
    fn read() -> Option<Self> {
        let flag = |name| sysctl(name).map(|value| value != 0);
        Some(Self {
            entries: sysctl("count")?,
            entries_max: sysctl("max")?,
            invalid_packets: statistics().ok().and_then(|text| invalid(&text)),
            time_wait_seconds: sysctl("tcp_timeout_time_wait")?,
            close_seconds: sysctl("tcp_timeout_close")?,
            be_liberal: flag("tcp_be_liberal")?,
            loose: flag("tcp_loose")?,
        })
    }

    /// Whether little room is left.
    pub fn is_nearly_full(&self) -> bool {
        self.entries.saturating_mul(100) > self.entries_max.saturating_mul(NEARLY_FULL_PERCENT)
    }
}

/// /proc/sys/net shows the namespace of the thread that opens it.
fn sysctl(name: &str) -> Option<u64> {
    let path = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn statistics() -> io::Result<String> {
    fs::read_to_string("/proc/thread-self/net/stat/nf_conntrack")
}

/// The sum of the column `invalid`: a line of names, then one of hexadecimal numbers for each CPU.
fn invalid(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let column = lines.next()?.split_whitespace().position(|name| name == "invalid")?;
    lines.map(|line| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_is_found_by_its_name_and_summed_over_all_cpus() {
        let text = "entries  clashres found new invalid ignore\n\
                    0000019d  00000000 00000000 00000000 0000000a 00000004\n\
                    0000019d  00000000 00000000 00000000 00000010 00000002\n";
        assert_eq!(invalid(text), Some(26));
        assert_eq!(invalid("entries found\n1 2\n"), None);
        assert_eq!(invalid(""), None);
    }

    #[test]
    fn a_table_is_nearly_full_beyond_three_quarters() {
        let with = |entries| ConnTracking {
            entries,
            entries_max: 1_000,
            invalid_packets: None,
            time_wait_seconds: 120,
            close_seconds: 10,
            be_liberal: false,
            loose: true,
        };
        assert!(!with(750).is_nearly_full());
        assert!(with(751).is_nearly_full());
    }
}
