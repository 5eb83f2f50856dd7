//! The rules of nftables, which are also those of `iptables-nft`. Owns which of them redirect
//! connections.
//!
//! These do: any rule in a chain of type `nat`, also for what the pod sends; TPROXY; a rule that
//! writes addresses or ports; one that hands packets to another device; one that looks at what
//! tells a SYN from an adoption. A chain of NAT without rules does where others have connections
//! tracked: those are translated to what they were.

use super::{
    extensions::{self, Part, TELLS_SYNS, until_nul},
    netlink::{Netlink, attribute, attributes, number},
    shown,
};
use std::{collections::BTreeSet, io};

/// More chains or rules than a pod needs for itself are not read through again and again.
const READ_MAX: usize = 4_096;
/// So often rules may change while they are read.
const TRIES_MAX: u32 = 4;

/// linux/netfilter/nf_tables.h, with the subsystem's number above.
const GET_CHAIN: u16 = 10 << 8 | 4;
const GET_RULE: u16 = 10 << 8 | 7;
const GET_GENERATION: u16 = 10 << 8 | 16;
const GENERATION_ID: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_TYPE: u16 = 7;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// Of the expressions `match` and `target`, extensions of iptables.
const EXTENSION_NAME: u16 = 1;
const EXTENSION_DATA: u16 = 3;
/// Of the expression `exthdr`: what it looks into, and that it reads.
const HEADER_OPERATION: u16 = 6;
const HEADER_DESTINATION_REGISTER: u16 = 1;
const OPERATION_TCP_OPTION: u32 = 1;
/// Of the expression `payload`.
const PAYLOAD_DESTINATION_REGISTER: u16 = 1;
const PAYLOAD_BASE: u16 = 2;
const PAYLOAD_OFFSET: u16 = 3;
const PAYLOAD_LENGTH: u16 = 4;
const PAYLOAD_SOURCE_REGISTER: u16 = 5;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
/// Ports are in front in the transport header; addresses are behind this in both network headers.
const PORTS_END: u32 = 4;
const ADDRESSES_AT: u32 = 12;

/// What was read of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Nftables {
    /// The generation that was read; none where there is no nftables.
    generation: Option<u32>,
    /// A rule that redirects.
    pub(super) redirect: Option<String>,
    /// A chain of NAT without rules.
    pub(super) idle_nat: Option<String>,
    /// Rules have connections tracked.
    pub(super) tracks: bool,
}

/// Reads them, unless `known` is of the present generation.
///
/// # Errors
/// They cannot be read. That the kernel has no nftables is none: then there are no rules.
pub(super) fn read(known: &Nftables) -> io::Result<Nftables> {
    let mut netlink = match Netlink::open() {
        Ok(netlink) => netlink,
        Err(error) if is_missing(&error) => return Ok(Nftables::default()),
        Err(error) => return Err(error),
    };
    for _ in 0..TRIES_MAX {
        let Some(before) = generation(&mut netlink)? else {
            return Ok(Nftables::default());
        };
        if known.generation == Some(before) {
            return Ok(known.clone());
        }
        let nat = nat_chains(&mut netlink);
        let found = nat.and_then(|nat| read_rules(&mut netlink, &nat));
        if generation(&mut netlink)? == Some(before) {
            return Ok(Nftables { generation: Some(before), ..found? });
        }
    }
    Err(io::Error::other("its rules change all the time"))
}

/// No such protocol, or no such subsystem.
fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::EINVAL | libc::EOPNOTSUPP)
    )
}

fn generation(netlink: &mut Netlink) -> io::Result<Option<u32>> {
    let mut found = None;
    let asked = netlink.ask(GET_GENERATION, false, |_, message| {
        found = number(message, GENERATION_ID);
        Ok(false)
    });
    match asked {
        Ok(_) => found.map(Some).ok_or_else(|| io::Error::other("nftables tells no generation")),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

type Chain = (u8, Vec<u8>, Vec<u8>);

/// The chains of type `nat`.
fn nat_chains(netlink: &mut Netlink) -> io::Result<BTreeSet<Chain>> {
    let (mut chains, mut read) = (BTreeSet::new(), 0);
    netlink.ask(GET_CHAIN, true, |family, message| {
        bounded(&mut read)?;
        if is_nat(message)
            && let (Some(table), Some(name)) =
                (attribute(message, CHAIN_TABLE), attribute(message, CHAIN_NAME))
        {
            chains.insert((family, table.to_vec(), name.to_vec()));
        }
        Ok(true)
    })?;
    Ok(chains)
}

fn bounded(read: &mut usize) -> io::Result<()> {
    *read += 1;
    if *read > READ_MAX {
        return Err(io::Error::other(format!("there are more than {READ_MAX} rules or chains")));
    }
    Ok(())
}

fn is_nat(chain: &[u8]) -> bool {
    attribute(chain, CHAIN_TYPE).is_some_and(|kind| kind.starts_with(b"nat"))
}

/// Reads them until one redirects.
fn read_rules(netlink: &mut Netlink, nat: &BTreeSet<Chain>) -> io::Result<Nftables> {
    let place = |table: &[u8], chain: &[u8]| {
        format!("nftables' table `{}`, chain `{}`", shown(table), shown(chain))
    };
    let mut found = Nftables {
        idle_nat: nat.first().map(|(_, table, chain)| place(table, chain)),
        ..Nftables::default()
    };
    let mut read = 0;
    netlink.ask(GET_RULE, true, |family, message| {
        bounded(&mut read)?;
        let (Some(table), Some(chain)) =
            (attribute(message, RULE_TABLE), attribute(message, RULE_CHAIN))
        else {
            return Ok(true);
        };
        let how = if nat.contains(&(family, table.to_vec(), chain.to_vec())) {
            Some("NAT")
        } else {
            let expressions = attribute(message, RULE_EXPRESSIONS).unwrap_or(&[]);
            parts(expressions).find_map(|part| match part {
                Part::Redirects(how) => Some(how),
                Part::Tracks => {
                    found.tracks = true;
                    None
                }
            })
        };
        found.redirect = how.map(|how| format!("{how} in {}", place(table, chain)));
        Ok(found.redirect.is_none())
    })?;
    Ok(found)
}

/// What the expressions of a rule outside of NAT's chains say of it.
fn parts(expressions: &[u8]) -> impl Iterator<Item = Part> {
    attributes(expressions).filter_map(|(_, expression)| {
        let name = attribute(expression, EXPRESSION_NAME)?;
        let data = attribute(expression, EXPRESSION_DATA).unwrap_or(&[]);
        let extension = || attribute(data, EXTENSION_NAME);
        match until_nul(name) {
            b"tproxy" => Some(Part::Redirects("TPROXY")),
            b"synproxy" => Some(Part::Redirects("SYNPROXY")),
            b"fwd" => Some(Part::Redirects("forwarding to another device")),
            b"osf" | b"socket" => Some(TELLS_SYNS),
            b"ct" | b"connlimit" | b"dynset" | b"objref" => Some(Part::Tracks),
            b"target" => extensions::target(extension()?),
            b"match" => {
                extensions::matching(extension()?, attribute(data, EXTENSION_DATA).unwrap_or(&[]))
            }
            b"payload" => payload(data),
            b"exthdr" if reads_tcp_option(data) => Some(TELLS_SYNS),
            _ => None,
        }
    })
}

fn payload(data: &[u8]) -> Option<Part> {
    let field = |wanted| number(data, wanted).unwrap_or(0);
    let (at, base) = (field(PAYLOAD_OFFSET), field(PAYLOAD_BASE));
    let end = at.saturating_add(field(PAYLOAD_LENGTH));
    let writes_ends = match base {
        NETWORK_HEADER => end > ADDRESSES_AT,
        TRANSPORT_HEADER => at < PORTS_END,
        _ => false,
    };
    if attribute(data, PAYLOAD_SOURCE_REGISTER).is_some() {
        return writes_ends.then_some(Part::Redirects("writing of addresses or ports"));
    }
    let reads = attribute(data, PAYLOAD_DESTINATION_REGISTER).is_some();
    (reads && base == TRANSPORT_HEADER && end > PORTS_END).then_some(TELLS_SYNS)
}

fn reads_tcp_option(data: &[u8]) -> bool {
    attribute(data, HEADER_DESTINATION_REGISTER).is_some()
        && number(data, HEADER_OPERATION) == Some(OPERATION_TCP_OPTION)
}
