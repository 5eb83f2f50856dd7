//! What a network namespace's own packet rules do to connections: whether a SYN may not reach the
//! listener on its port.
//!
//! The adopter acts before such rules (tc comes before netfilter), so an adoption would go around a
//! proxy to which they redirect, or around a rule that drops SYNs. NAT of any kind counts as well:
//! on the way to the listener its hook compares the port that it tracks with the one of the request
//! that the adopter assigned, where the kernel has not put it yet, and takes the request off the
//! segment, which then draws a reset (`nf_nat_ipv4_local_in`, net/netfilter/nf_nat_proto.c, Linux
//! 5.1). Owns what counts as redirecting, and its words. What a kernel has no support for has no
//! rules; what cannot be read counts as redirecting. Changes nothing.

mod extensions;
mod legacy;
mod netlink;
mod nftables;

use nftables::Nftables;

/// Names come from the pod: so much of one is shown.
const NAME_MAX: usize = 64;

/// What was read last of a namespace's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacketRules {
    nftables: Nftables,
    /// Why nothing may be adopted, in words.
    refusal: Option<String>,
}

impl PacketRules {
    /// Those of the calling thread's namespace. What nftables says is not read again while its
    /// generation is the one that `self` knows.
    pub(crate) fn read_again(&self) -> Self {
        let nftables = match nftables::read(&self.nftables) {
            Ok(nftables) => nftables,
            Err(problem) => return Self::unreadable(&problem),
        };
        let found = match &nftables.redirect {
            Some(found) => Ok(Some(found.clone())),
            None => legacy::read().map(|legacy| {
                let tracks = nftables.tracks || legacy.tracks;
                let idle_nat = nftables.idle_nat.as_ref().filter(|_| tracks);
                let idle_nat = idle_nat.map(|place| format!("NAT in {place}"));
                legacy.redirect.or(idle_nat)
            }),
        };
        match found {
            Ok(found) => Self {
                refusal: found.map(|place| {
                    format!(
                        "packet rules of the Pod's network namespace treat SYNs and adoptions differently ({place}): an adoption \
                         would go around a proxy or a rule, or be lost, so its connections stay where they are"
                    )
                }),
                nftables,
            },
            Err(problem) => Self::unreadable(&problem),
        }
    }

    /// More is at the hooks of netfilter than the adopter looks at.
    pub(crate) fn too_many() -> Self {
        Self::unreadable(&std::io::Error::other(
            "there are more than 64 functions at a hook of netfilter, or 32 KiB of rules in a table of iptables-legacy",
        ))
    }

    /// They change faster than they are read.
    pub(crate) fn unsteady() -> Self {
        Self::unreadable(&std::io::Error::other("they change all the time"))
    }

    pub(crate) fn unreadable(problem: &std::io::Error) -> Self {
        Self {
            nftables: Nftables::default(),
            refusal: Some(format!(
                "the packet rules of the Pod's network namespace cannot be read ({problem}), and may redirect connections"
            )),
        }
    }

    /// Why nothing may be adopted.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }
}

/// A name of the pod's choice, for people: ends at NUL, nothing that a terminal or a label would
/// take for something else.
fn shown(name: &[u8]) -> String {
    name.iter()
        .take_while(|byte| **byte != 0)
        .take(NAME_MAX)
        .map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' })
        .collect()
}
