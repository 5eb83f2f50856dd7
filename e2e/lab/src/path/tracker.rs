//! Connection tracking on the router, as a node has it, with the rule by which kube-proxy (iptables
//! mode) drops what tracking calls INVALID.
//!
//! Owns one nftables table in the router's namespace. Entries and their time-outs are that
//! namespace's own; only `nf_conntrack_max` is the machine's (read-only in every other namespace,
//! Linux 6.18), so a lab judges the number of entries against a limit and never sets it.

use crate::{
    node::{command, lab::Lab, netns::Namespace},
    work::stats::Counts,
};
use anyhow::{Context, Result};
use std::{fs, path::Path};

/// Of the table in nftables.
const TABLE: &str = "tracker";
/// Where the kernel shows figures of connection tracking, below /proc/sys.
const SYSCTLS: &str = "net/netfilter/nf_conntrack_";

/// Connection tracking on the router.
#[derive(Debug)]
pub struct Tracker {
    node: Namespace,
}

/// The table at one moment, by the states that it keeps connections in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// Entries of TCP connections by state, as `TIME_WAIT`.
    pub tcp: Counts,
    /// All other entries.
    pub others: u64,
}

impl Lab {
    /// Has the router track connections from now on, and drop INVALID packets that it would
    /// forward.
    ///
    /// # Errors
    /// Without nftables, or if the kernel has no connection tracking.
    pub fn track(&self) -> Result<Tracker> {
        self.track_with("drop")
    }

    /// The same without the drop: what is INVALID is counted and forwarded, which tells waits that
    /// tracking causes from others.
    pub fn track_only(&self) -> Result<Tracker> {
        self.track_with("accept")
    }

    fn track_with(&self, verdict: &str) -> Result<Tracker> {
        let node = self.router().namespace().clone();
        // One table for both families, at the place in the packet's way where kube-proxy's chain
        // KUBE-FORWARD is.
        let rules = format!(
            "table inet {TABLE} {{\n  counter invalid {{ }}\n  chain forward {{\n    \
             type filter hook forward priority filter; policy accept;\n    \
             ct state invalid counter name invalid {verdict}\n  }}\n}}\n"
        );
        node.run(|| command::with_input("nft", &["-f", "-"], &rules))??;
        Ok(Tracker { node })
    }
}

impl Tracker {
    /// Entries that there are now.
    pub fn entries(&self) -> Result<u64> {
        self.sysctl("count")
    }

    /// `nf_conntrack_max`: entries that the kernel allows in each namespace of this machine.
    pub fn entries_max(&self) -> Result<u64> {
        self.sysctl("max")
    }

    /// The entries by state. Slow where there are many: the kernel writes a line for each.
    pub fn by_state(&self) -> Result<Tracked> {
        let path = "/proc/thread-self/net/nf_conntrack";
        let text = self.node.run(|| fs::read_to_string(path))?.context(path)?;
        Ok(Tracked::read(&text))
    }

    /// Packets that the rule dropped, or would have.
    pub fn invalid(&self) -> Result<u64> {
        let ask = ["-j", "list", "counter", "inet", TABLE, "invalid"];
        let text = self.node.run(|| command::run("nft", &ask))??;
        let listed: serde_json::Value = serde_json::from_str(&text).context("nft -j")?;
        let objects = listed["nftables"].as_array().into_iter().flatten();
        let mut counters = objects.filter_map(|o| o["counter"]["packets"].as_u64());
        counters.next().with_context(|| format!("no counter in {text}"))
    }

    /// Sets a sysctl of tracking in the router's namespace, as `set("tcp_be_liberal", 1)`.
    pub fn set(&self, name: &str, value: u64) -> Result<()> {
        self.node.set_sysctl(&format!("{SYSCTLS}{name}"), &value.to_string())
    }

    /// Takes the rule away. Entries stay until their time-outs.
    pub fn remove(self) -> Result<()> {
        let command = format!("delete table inet {TABLE}");
        self.node.run(|| command::run("nft", &[&command]))??;
        Ok(())
    }

    fn sysctl(&self, name: &str) -> Result<u64> {
        let path = Path::new("/proc/sys").join(format!("{SYSCTLS}{name}"));
        // /proc/sys/net shows the namespace of the thread that opens it.
        let text = self.node.run(|| fs::read_to_string(&path))?;
        let text = text.with_context(|| path.display().to_string())?;
        text.trim().parse().with_context(|| text.clone())
    }
}

impl Tracked {
    /// Reads `/proc/net/nf_conntrack`: family, its number, protocol, its number, seconds left, and
    /// for TCP the state.
    fn read(text: &str) -> Self {
        let mut tracked = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace().skip(2);
            match (words.next(), words.nth(2)) {
                (Some("tcp"), Some(state)) => {
                    *tracked.tcp.entry(state.to_owned()).or_default() += 1;
                }
                _ => tracked.others += 1,
            }
        }
        tracked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_by_state() {
        let text = "\
ipv4     2 tcp      6 117 TIME_WAIT src=10.77.100.2 dst=10.77.1.2 sport=20001 dport=80 src=10.77.1.2 dst=10.77.100.2 \
sport=80 dport=20001 [ASSURED] mark=0 zone=0 use=2
ipv4     2 udp      17 29 src=10.77.100.2 dst=10.77.1.2 sport=5 dport=53 [UNREPLIED] src=10.77.1.2 dst=10.77.100.2
ipv6     10 tcp      6 9 CLOSE src=fd77::2 dst=fd77:1::2 sport=20001 dport=80 src=fd77:1::2 dst=fd77::2 sport=80
ipv4     2 tcp      6 100 TIME_WAIT src=10.77.100.2 dst=10.77.2.2 sport=20001 dport=80 src=10.77.2.2 dst=10.77.100.2
";
        let tracked = Tracked::read(text);
        let tcp = [("CLOSE", 1), ("TIME_WAIT", 2)].map(|(s, n)| (s.to_owned(), n));
        assert_eq!(tracked.tcp, Counts::from(tcp));
        assert_eq!(tracked.others, 1);
    }
}
