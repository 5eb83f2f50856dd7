//! TCP options as text and as bytes, those of adoption messages with their tag among them.
//!
//! The tag is computed here from `docs/adoption-wire.md`, not by the code that it judges.

use super::names::{Base, Names};
use crate::common::NAMESPACE;
use baton_packet::Reason;
use siphasher::sip::SipHasher24;
use std::{fmt::Write as _, hash::Hasher, net::IpAddr};

const ADOPTION_OPTION: u8 = 253;
const ADOPTION_BYTES: usize = 28;
const TAG_AT: usize = 12;
const NAMESPACE_AT: usize = 20;
const KINDS: [(&str, u16); 6] = [
    ("adopt", 0xba70),
    ("probe", 0xba71),
    ("answer", 0xba72),
    ("forget", 0xba73),
    ("release", 0xba74),
    ("transfer", 0xba75),
];
const FLAGS: [char; 4] = ['w', 's', 't', 'e'];

/// The key of an epoch in all cases.
pub fn key_bytes(epoch: u8) -> [u8; 16] {
    // The harness's own epoch 3 has its own key.
    [epoch + 4; 16]
}

/// Which numbers stand in a segment's fields, by its direction.
#[derive(Clone, Copy)]
pub struct Bases {
    pub seq: Base,
    pub ack: Base,
    pub ts: Base,
    pub echo: Base,
}

impl Bases {
    pub fn new(to_server: bool) -> Self {
        let client = Self {
            seq: Base::ClientSeq,
            ack: Base::ServerSeq,
            ts: Base::ClientTs,
            echo: Base::ServerTs,
        };
        if to_server {
            return client;
        }
        Self { seq: client.ack, ack: client.seq, ts: client.echo, echo: client.ts }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

/// Bytes from hexadecimal text; `00*40` is forty times `00`.
pub fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("`{text}` is not hexadecimal");
    let mut bytes = Vec::new();
    for part in text.split_whitespace() {
        let (part, times) = match part.split_once('*') {
            Some((part, times)) => (part, times.parse::<usize>().map_err(|_| wrong())?),
            None => (part, 1),
        };
        if !part.len().is_multiple_of(2) {
            return Err(wrong());
        }
        let one: Result<Vec<u8>, _> =
            (0..part.len() / 2).map(|i| u8::from_str_radix(&part[2 * i..2 * i + 2], 16)).collect();
        bytes.extend(one.map_err(|_| wrong())?.repeat(times));
    }
    Ok(bytes)
}

/// The options of a segment, as text. `None` if they are not what the notation can say.
pub fn options_text(
    mut bytes: &[u8],
    bases: Bases,
    right_tag: Option<[u8; 8]>,
    names: &mut Names,
) -> Option<String> {
    let mut words = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        if kind <= 1 {
            words.push(if kind == 0 { "eol" } else { "nop" }.to_owned());
            bytes = rest;
            continue;
        }
        let length = usize::from(*rest.first()?);
        if length < 2 || length > bytes.len() {
            return None;
        }
        let (option, rest) = bytes.split_at(length);
        words.push(option_text(option, bases, right_tag, names));
        bytes = rest;
    }
    Some(words.join(","))
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn option_text(
    option: &[u8],
    bases: Bases,
    right_tag: Option<[u8; 8]>,
    names: &mut Names,
) -> String {
    match option {
        [2, 4, a, b] => format!("mss {}", u16::from_be_bytes([*a, *b])),
        [3, 3, scale] => format!("wscale {scale}"),
        [4, 2] => "sackOK".into(),
        [8, 10, stamps @ ..] => {
            let value = names.number_text(be32(stamps), bases.ts, false);
            let echo = names.number_text(be32(&stamps[4..]), bases.echo, false);
            format!("TS val {value} ecr {echo}")
        }
        [5, 10, block @ ..] => {
            let from = names.number_text(be32(block), bases.ack, false);
            let to = names.number_text(be32(&block[4..]), bases.ack, false);
            format!("sack {from}:{to}")
        }
        [ADOPTION_OPTION, 28, ..] => adoption_text(option, bases, right_tag, names),
        _ => format!("option {}", hex(option)),
    }
}

fn adoption_text(
    option: &[u8],
    bases: Bases,
    right_tag: Option<[u8; 8]>,
    names: &mut Names,
) -> String {
    let id = u16::from_be_bytes([option[2], option[3]]);
    let Some((kind, _)) = KINDS.iter().find(|k| k.1 == id) else {
        return format!("option {}", hex(option));
    };
    let first = u16::from_be_bytes([option[4], option[5]]);
    let first = match Reason::from_code(first) {
        Some(reason) if *kind == "answer" => reason.label().to_owned(),
        _ => format!("mss {first}"),
    };
    let flags: String =
        (0..4).filter(|bit| option[7] >> bit & 1 == 1).map(|bit| FLAGS[bit]).collect();
    let flags = if flags.is_empty() { "-" } else { &flags };
    let (base, word) = value_of(kind, bases);
    let value = names.number_text(be32(&option[8..]), base, false);
    let tag = if right_tag.is_some_and(|tag| tag == option[TAG_AT..NAMESPACE_AT]) {
        String::new()
    } else {
        format!(" tag {}", hex(&option[TAG_AT..NAMESPACE_AT]))
    };
    let namespace = if option[NAMESPACE_AT..] == usual_namespace(kind) {
        String::new()
    } else {
        format!(" namespace {}", hex(&option[NAMESPACE_AT..]))
    };
    format!(
        "{kind} {first} scales {}/{} flags {flags} epoch {} {word} {value}{namespace}{tag}",
        option[6] >> 4,
        option[6] & 15,
        option[7] >> 4,
    )
}

/// A probe asks for the number of the namespace; it is every pod's, and what every other message
/// says, unless said otherwise.
fn usual_namespace(kind: &str) -> [u8; 8] {
    let number = if kind == "probe" { 0 } else { NAMESPACE };
    number.to_be_bytes()
}

/// What the option's 32-bit value is: an adoption's is the server's clock, an answer's what the
/// socket in the way expects.
fn value_of(kind: &str, bases: Bases) -> (Base, &'static str) {
    if kind == "answer" { (bases.ack, "expects") } else { (bases.echo, "server-ts") }
}

/// The options of a text between `<` and `>`.
pub fn options_bytes(text: &str, bases: Bases, names: &Names) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    for item in text.split(',') {
        let words: Vec<&str> = item.split_whitespace().collect();
        let wrong = || format!("`{item}` is no option");
        match words[..] {
            ["eol"] => bytes.push(0),
            ["nop"] => bytes.push(1),
            ["sackOK"] => bytes.extend([4, 2]),
            ["mss", n] => {
                bytes.extend([2, 4]);
                bytes.extend(n.parse::<u16>().map_err(|_| wrong())?.to_be_bytes());
            }
            ["wscale", n] => bytes.extend([3, 3, n.parse().map_err(|_| wrong())?]),
            ["TS", "val", value, "ecr", echo] => {
                bytes.extend([8, 10]);
                bytes.extend(names.number(value, bases.ts)?.to_be_bytes());
                bytes.extend(names.number(echo, bases.echo)?.to_be_bytes());
            }
            ["sack", block] => {
                let (from, to) = block.split_once(':').ok_or_else(wrong)?;
                bytes.extend([5, 10]);
                bytes.extend(names.number(from, bases.ack)?.to_be_bytes());
                bytes.extend(names.number(to, bases.ack)?.to_be_bytes());
            }
            ["option", hex] => bytes.extend(unhex(hex)?),
            [kind, ..] if KINDS.iter().any(|k| k.0 == kind) => {
                bytes.extend(adoption_bytes(&words, bases, names).ok_or_else(wrong)?);
            }
            _ => return Err(wrong()),
        }
    }
    Ok(bytes)
}

/// `KIND (mss N | REASON) scales S/C flags F epoch E (server-ts|expects) N [namespace HEX] [tag
/// HEX]`; without a tag, one of zeros for [`sign`].
fn adoption_bytes(words: &[&str], bases: Bases, names: &Names) -> Option<Vec<u8>> {
    let kind = words[0];
    let (_, id) = KINDS.iter().find(|k| k.0 == kind)?;
    let rest = if words.get(1) == Some(&"mss") { 3 } else { 2 };
    let first = match words[1] {
        "mss" => words.get(2)?.parse().ok()?,
        reason => {
            (1..16_u16).find(|c| Reason::from_code(*c).is_some_and(|r| r.label() == reason))?
        }
    };
    let &["scales", scales, "flags", flags, "epoch", epoch, _, value, ref rest @ ..] =
        words.get(rest..)?
    else {
        return None;
    };
    let (server, client) = scales.split_once('/')?;
    let bits = (0..4).filter(|bit| flags.contains(FLAGS[*bit]));
    let (base, _) = value_of(kind, bases);
    let mut bytes = vec![ADOPTION_OPTION, ADOPTION_BYTES as u8];
    bytes.extend(id.to_be_bytes());
    bytes.extend(u16::to_be_bytes(first));
    bytes.push(server.parse::<u8>().ok()? << 4 | client.parse::<u8>().ok()?);
    bytes.push(epoch.parse::<u8>().ok()? << 4 | bits.fold(0, |all, bit| all | 1 << bit));
    bytes.extend(names.number(value, base).ok()?.to_be_bytes());
    let (namespace, tag) = match rest {
        ["namespace", hex, tag @ ..] => (unhex(hex).ok()?, tag),
        tag => (usual_namespace(kind).to_vec(), tag),
    };
    match tag {
        [] => bytes.extend([0; 8]),
        ["tag", hex] => bytes.extend(unhex(hex).ok()?),
        _ => return None,
    }
    bytes.extend(namespace);
    Some(bytes)
}

fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The tag of an adoption message, by the table of `docs/adoption-wire.md`. `tcp` is the header
/// with its options.
pub fn tag(src: IpAddr, dst: IpAddr, tcp: &[u8]) -> Option<[u8; 8]> {
    let option = tcp.get(20..20 + ADOPTION_BYTES)?;
    let stamps = tcp.get(52..60)?;
    if option[0] != ADOPTION_OPTION {
        return None;
    }
    let mut text = Vec::new();
    text.extend(mapped(src));
    text.extend(mapped(dst));
    text.extend(&tcp[..12]);
    text.extend(&option[2..8]);
    text.extend(&tcp[14..16]);
    text.extend(&option[8..12]);
    text.extend(stamps);
    text.extend(&option[NAMESPACE_AT..]);
    assert_eq!(text.len(), 72, "as many bytes as the table has");
    let mut hasher = SipHasher24::new_with_key(&key_bytes(option[7] >> 4));
    hasher.write(&text);
    Some(hasher.finish().to_be_bytes())
}

/// Puts the right tag where the option has zeros for it.
pub fn sign(src: IpAddr, dst: IpAddr, tcp: &mut [u8]) {
    let at = 20 + TAG_AT;
    if tcp.get(at..at + 8) == Some(&[0; 8])
        && let Some(tag) = tag(src, dst, tcp)
    {
        tcp[at..at + 8].copy_from_slice(&tag);
    }
}
