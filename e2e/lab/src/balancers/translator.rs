//! nftables in the dataplane's place: the kernel itself translates each connection to one of the
//! servers, as kube-proxy has it do, and the source as well, so that answers come back the same
//! way. For comparisons in the same layout.

use crate::node::{command, lab::Lab, netns::Namespace};
use anyhow::{Result, ensure};
use std::{fmt::Write as _, net::SocketAddr};

/// Of the table in nftables.
const TABLE: &str = "translator";

/// Address translation in the dataplane's pod.
#[derive(Debug)]
pub struct Translator {
    place: Namespace,
    address: SocketAddr,
}

impl Lab {
    /// Has the kernel of the dataplane's pod translate connections to `port` to the servers in
    /// turn.
    ///
    /// # Errors
    /// Without nftables or servers, or with servers that have no IPv4 address.
    pub fn translator(&self, port: u16, servers: &[SocketAddr]) -> Result<Translator> {
        ensure!(!servers.is_empty(), "address translation needs a server");
        let place = self.dataplane_pod().namespace().clone();
        place.set_sysctl("net/ipv4/ip_forward", "1")?;
        let mut map = String::new();
        for (index, server) in servers.iter().enumerate() {
            ensure!(server.is_ipv4(), "{server}: expected an IPv4 address");
            write!(map, "{index} : {} . {}, ", server.ip(), server.port())?;
        }
        let rules = format!(
            "table ip {TABLE} {{\n  chain to {{\n    type nat hook prerouting priority dstnat;\n    \
             tcp dport {port} dnat to numgen inc mod {} map {{ {} }}\n  }}\n  chain from {{\n    \
             type nat hook postrouting priority srcnat;\n    masquerade\n  }}\n}}\n",
            servers.len(),
            map.trim_end_matches(", ")
        );
        place.run(|| command::with_input("nft", &["-f", "-"], &rules))??;
        Ok(Translator { place, address: SocketAddr::new(self.dataplane_pod().ipv4(), port) })
    }
}

impl Translator {
    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it.
    pub fn remove(self) -> Result<()> {
        let command = format!("delete table ip {TABLE}");
        self.place.run(|| command::run("nft", &[&command]))??;
        Ok(())
    }
}
