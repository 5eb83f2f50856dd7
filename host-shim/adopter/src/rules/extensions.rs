//! What matches and targets of x_tables mean here: those in the tables of `iptables-legacy`, and
//! those that `iptables-nft` puts into rules of nftables. Owns their names.

/// What a part of a rule says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// An adoption may reach what a SYN would not, for this reason.
    Redirects(&'static str),
    /// The kernel tracks connections for its sake.
    Tracks,
}

/// A rule that looks at what a SYN has and an adoption, which is an ACK, has not.
pub(super) const TELLS_SYNS: Part = Part::Redirects("a rule that tells SYNs from other segments");

/// `struct xt_tcp`: ports, the number of an option, and which flags are looked at.
const TCP_OPTION_AT: usize = 8;
const TCP_FLAGS_AT: usize = 9;

pub(super) fn target(name: &[u8]) -> Option<Part> {
    match until_nul(name) {
        b"TPROXY" => Some(Part::Redirects("TPROXY")),
        b"SYNPROXY" => Some(Part::Redirects("SYNPROXY")),
        b"CT" | b"CONNMARK" | b"CONNSECMARK" => Some(Part::Tracks),
        _ => None,
    }
}

/// A match, by its name and what is behind that in its own struct.
pub(super) fn matching(name: &[u8], data: &[u8]) -> Option<Part> {
    let is_set = |at| data.get(at).is_some_and(|byte| *byte != 0);
    match until_nul(name) {
        b"tcp" => (is_set(TCP_OPTION_AT) || is_set(TCP_FLAGS_AT)).then_some(TELLS_SYNS),
        b"bpf" | b"osf" | b"socket" | b"string" | b"tcpmss" | b"u32" => Some(TELLS_SYNS),
        b"cluster" | b"connbytes" | b"connlabel" | b"connlimit" | b"connmark" | b"conntrack"
        | b"helper" | b"state" => Some(Part::Tracks),
        _ => None,
    }
}

pub(super) fn until_nul(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_alone_tell_no_syns() {
        let mut tcp = [0; 12];
        tcp[4..8].copy_from_slice(&[0x90, 0x1f, 0x90, 0x1f]);
        assert_eq!(matching(b"tcp\0", &tcp), None);
        for at in [TCP_OPTION_AT, TCP_FLAGS_AT] {
            let mut tells = tcp;
            tells[at] = 2;
            assert_eq!(matching(b"tcp\0", &tells), Some(TELLS_SYNS));
        }
        assert_eq!(matching(b"tcpmss\0", &[]), Some(TELLS_SYNS));
        assert_eq!(matching(b"comment\0", &tcp), None);
        assert_eq!(target(b"TPROXY\0\0"), Some(Part::Redirects("TPROXY")));
        assert_eq!(target(b"MARK\0"), None);
    }
}
