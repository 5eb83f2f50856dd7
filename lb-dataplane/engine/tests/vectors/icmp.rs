//! ICMP errors as text: `icmp FROM > TO: 3/4 rest 00000578 ttl 60 quoting FROM > TO: len 640 ttl 63
//! seq 19 then HEX`.
//!
//! Owns the quoted packet too, of which 8 bytes of the TCP header and whatever is given behind them
//! are there.

use super::{
    frames::{TTL, mac_of},
    names::{Names, Purpose},
    options::{Bases, hex, unhex},
};
use crate::common::wire::{checksum, icmp, packet, pseudo};
use baton_packet::{IcmpError, Mac};
use std::net::{IpAddr, SocketAddr};

/// In the quoted TCP header: the checksum that is right if the quote is the whole segment.
const RIGHT: &str = "....";
const CHECKSUM_AT: usize = 16;

fn settle(tcp: &mut [u8], src: IpAddr, dst: IpAddr) {
    tcp[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
    let sum = checksum(&[&pseudo(src, dst, 6, tcp.len()), tcp]);
    tcp[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
}

fn value<'a>(words: &[&'a str], name: &str) -> Result<&'a str, String> {
    let at = words.iter().position(|w| *w == name);
    at.and_then(|at| words.get(at + 1).copied()).ok_or_else(|| format!("{name} is missing"))
}

fn number<T: std::str::FromStr>(words: &[&str], name: &str) -> Result<T, String> {
    let text = value(words, name)?;
    text.parse().map_err(|_| format!("`{name} {text}`?"))
}

/// The frame of a line's words behind `icmp`.
pub fn bytes(words: &[&str], names: &mut Names) -> Result<Vec<u8>, String> {
    let cut = words.iter().position(|w| *w == "quoting");
    let (outer, inner) = words.split_at(cut.ok_or("nothing is quoted")?);
    let [from, ">", to, kind, outer @ ..] = outer else {
        return Err("expected FROM > TO: TYPE/CODE".into());
    };
    let (from, to) = (names.host(from)?, names.host(to.trim_end_matches(':'))?);
    let (kind, code) = kind.split_once('/').ok_or("expected TYPE/CODE")?;
    let kind = [
        kind.parse().map_err(|_| "the type is a number")?,
        code.parse().map_err(|_| "the code is a number")?,
    ];
    let (rest, quoted) = (unhex(value(outer, "rest")?)?, quote(&inner[1..], names)?);
    let ttl = number(outer, "ttl").unwrap_or(TTL);
    let macs = (mac_of(from, names), mac_of(to, names));
    Ok(icmp(macs, (from, to), ttl, kind, &rest, &quoted))
}

fn quote(words: &[&str], names: &mut Names) -> Result<Vec<u8>, String> {
    let [from, ">", to, rest @ ..] = words else {
        return Err("expected FROM > TO: of the quoted segment".into());
    };
    let (from, to) = (names.place(from)?, names.place(to.trim_end_matches(':'))?);
    let bases = Bases::new(names.is_server(to));
    let seq = names.number(value(rest, "seq")?, bases.seq)?;
    let mut tcp = Vec::new();
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    tcp.extend(seq.to_be_bytes());
    if rest.contains(&"then") {
        let text = value(rest, "then")?;
        tcp.extend(unhex(&text.replace(RIGHT, "0000"))?);
        if text.contains(RIGHT) {
            settle(&mut tcp, from.ip(), to.ip());
        }
    }
    // As if it were whole: the length is the sender's, not the quote's.
    let len: usize = number(rest, "len")?;
    let ttl = number(rest, "ttl").unwrap_or(TTL);
    let header = if from.is_ipv6() { 40 } else { 20 };
    let whole = vec![0; len.checked_sub(header).ok_or("len: too short")?];
    let macs = (Mac([0; 6]), Mac([0; 6]));
    let frame = packet(macs, (from.ip(), to.ip()), 6, ttl, &whole);
    let mut quoted = frame[14..14 + header].to_vec();
    quoted.extend(tcp);
    Ok(quoted)
}

/// An ICMP error as text.
pub fn text(frame: &[u8], e: &IcmpError, names: &mut Names) -> Option<String> {
    let (l4, l3, at) = (e.l4.into(), usize::from(e.inner_l3), usize::from(e.inner_l4));
    let head: &[u8] = frame.get(l4..l4 + 8)?;
    let from = SocketAddr::new(e.inner_src, e.inner_src_port);
    let to = SocketAddr::new(e.inner_dst, e.inner_dst_port);
    let bases = Bases::new(names.is_server(to));
    let length = u16::from_be_bytes(if e.v6 {
        [frame[l3 + 4], frame[l3 + 5]]
    } else {
        [frame[l3 + 2], frame[l3 + 3]]
    });
    let length = usize::from(length) + if e.v6 { 40 } else { 0 };
    let inner_ttl = frame[l3 + if e.v6 { 7 } else { 8 }];
    let behind = frame.get(at + 8..usize::from(e.end))?;
    let host = |ip: IpAddr, names: &mut Names| names.host_name(ip);
    let outer = format!(
        "icmp {} > {}: {}/{} rest {} ttl {}",
        host(e.outer_src, names),
        host(e.outer_dst, names),
        head[0],
        head[1],
        hex(&head[4..]),
        e.hop_limit,
    );
    let inner = format!(
        "quoting {} > {}: len {length} ttl {inner_ttl} seq {}",
        names.place_name(from, to, Purpose::Leg),
        names.place_name(to, from, Purpose::Leg),
        names.number_text(e.inner_seq.0, bases.seq, false),
    );
    let mut tcp = frame[at..usize::from(e.end)].to_vec();
    let mut then = if behind.is_empty() { String::new() } else { format!(" then {}", hex(behind)) };
    if tcp.len() >= CHECKSUM_AT + 2 {
        settle(&mut tcp, e.inner_src, e.inner_dst);
        if tcp == frame[at..usize::from(e.end)] {
            let at = " then ".len() + 2 * (CHECKSUM_AT - 8);
            then.replace_range(at..at + 4, RIGHT);
        }
    }
    Some(format!("{outer} {inner}{then}"))
}
