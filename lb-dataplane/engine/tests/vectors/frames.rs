//! Frames as text: `client > frontend: P. seq 1:19 ack 1 win 501 <nop,nop,TS val 0 ecr 0> "GET
//! ..."`, in the manner of tcpdump.
//!
//! Owns both directions. What the text leaves out has one value only (IPv4 without options, DF, id
//! 0, right checksums, hardware addresses by the places), and [`text`] writes a frame that differs
//! from that as `raw`, so no byte goes unsaid.

use super::{
    icmp,
    names::{Names, Purpose},
    options::{self, Bases, hex, options_bytes, options_text, unhex},
};
use crate::common::{
    OUR_MAC, ROUTER_MAC, ours, pod_mac,
    wire::{Wire, settle_ipv4, settle_tcp},
};
use baton_packet::{Decoded, EndMark, Flags, Mac, Segment, decode, put_end_mark};
use std::net::IpAddr;

/// As tcpdump writes them, lowest bit first.
const FLAGS: [char; 8] = ['F', 'S', 'R', 'P', '.', 'U', 'E', 'W'];
const IPV4_CHECKSUM_AT: usize = 24;
/// Runs of one byte from this length on are written as `"x"*N`.
const RUN: usize = 16;
pub const TTL: u8 = 64;

/// A line's words: options, data and edits are one word each.
pub fn words(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let close = match first {
            '<' => Some('>'),
            '{' => Some('}'),
            '"' => Some('"'),
            _ => None,
        };
        // A lone `>` stands between places.
        let close = close.and_then(|c| rest[1..].find(c).map(|at| at + 1));
        let from = close.unwrap_or(0);
        let end = rest[from..].find(char::is_whitespace).map_or(rest.len(), |at| from + at);
        found.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    found
}

/// The frame of a line.
pub fn bytes(text: &str, names: &mut Names) -> Result<Vec<u8>, String> {
    if let Some(raw) = text.strip_prefix("raw ") {
        return unhex(raw);
    }
    let mut words = words(text);
    let edits = match words.last() {
        Some(last) if last.starts_with('{') => words.pop(),
        _ => None,
    };
    let frame = if words.first() == Some(&"icmp") {
        icmp::bytes(&words[1..], names)?
    } else {
        segment_bytes(&words, names)?
    };
    match edits {
        Some(edits) => edited(frame, edits.trim_matches(['{', '}'])),
        None => Ok(frame),
    }
}

pub fn mac_of(ip: IpAddr, names: &Names) -> Mac {
    if ip == ours(names.v6) {
        return OUR_MAC;
    }
    names.pod_at(ip).map_or(ROUTER_MAC, pod_mac)
}

fn flags_of(text: &str) -> Result<Flags, String> {
    let bit = |c: char| FLAGS.iter().position(|f| *f == c);
    let mut bits = 0;
    for c in text.chars().filter(|c| *c != '-') {
        bits |= 1u8 << bit(c).ok_or_else(|| format!("`{text}` are no flags"))?;
    }
    Ok(Flags(bits))
}

fn flags_text(flags: Flags) -> String {
    let set = (0..8).filter(|bit| flags.0 >> bit & 1 == 1);
    let text: String = set.map(|bit| FLAGS[bit]).collect();
    if text.is_empty() { "-".into() } else { text }
}

fn segment_bytes(words: &[&str], names: &mut Names) -> Result<Vec<u8>, String> {
    let [from, ">", to, flags, rest @ ..] = words else {
        return Err("expected FROM > TO: FLAGS".into());
    };
    let (from_name, to_name) = (from, to.trim_end_matches(':'));
    let (from, to) = (names.place(from_name)?, names.place(to_name)?);
    names.note_port(to_name, to, from);
    names.note_port(from_name, from, to);
    let bases = Bases::new(names.is_server(to));
    let macs = (mac_of(from.ip(), names), mac_of(to.ip(), names));
    let mut wire = Wire::new(macs, (from, to), (0, 0), flags_of(flags)?);
    wire.window = 0;
    let mut end = None;
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        let mut value = || rest.next().copied().ok_or_else(|| format!("{word} what?"));
        match *word {
            "seq" => {
                let text = value()?;
                let (from, until) = text.split_once(':').unzip();
                wire.seq = names.number(from.unwrap_or(text), bases.seq)?;
                end = until;
            }
            "ack" => wire.ack = names.number(value()?, bases.ack)?,
            "win" => wire.window = value()?.parse().map_err(|_| "win: a number")?,
            "ttl" => wire.ttl = value()?.parse().map_err(|_| "ttl: a number")?,
            w if w.starts_with('<') => {
                wire.options = options_bytes(w.trim_matches(['<', '>']), bases, names)?;
            }
            w if w.starts_with('"') => wire.data.extend(data_bytes(w)?),
            w => return Err(format!("`{w}` is nothing that a frame has")),
        }
    }
    if let Some(end) = end
        && names.number(end, bases.seq)? != wire.seq.wrapping_add(wire.data.len() as u32)
    {
        return Err(format!("seq ends at {end}, the data does not"));
    }
    if !wire.options.len().is_multiple_of(4) {
        return Err("options: not a multiple of 4 bytes".into());
    }
    let mut frame = wire.build();
    let l4 = if names.v6 { 54 } else { 34 };
    options::sign(from.ip(), to.ip(), &mut frame[l4..]);
    // The tag was written.
    settle_tcp(&mut frame, false);
    Ok(frame)
}

fn data_bytes(word: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("{word} is no data");
    let inside = word.strip_prefix('"').and_then(|w| w.split_once('"'));
    let (quoted, times) = match inside.ok_or_else(wrong)? {
        (quoted, "") => (quoted, 1),
        (quoted, times) => {
            let times = times.strip_prefix('*').and_then(|n| n.parse().ok());
            (quoted, times.ok_or_else(wrong)?)
        }
    };
    let mut bytes = Vec::new();
    let mut rest = quoted.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next().ok_or_else(wrong)? {
            b'r' => bytes.push(b'\r'),
            b'n' => bytes.push(b'\n'),
            b'x' => {
                let digits = [rest.next().ok_or_else(wrong)?, rest.next().ok_or_else(wrong)?];
                let digits = std::str::from_utf8(&digits).map_err(|_| wrong())?;
                bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
            }
            _ => return Err(wrong()),
        }
    }
    Ok(bytes.repeat(times))
}

fn data_text(data: &[u8]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut plain = String::new();
    let mut rest = data;
    let quote = |text: &str| format!("\"{text}\"");
    while let Some(first) = rest.first() {
        let run = rest.iter().take_while(|b| *b == first).count();
        let one = match first {
            b'\r' => "\\r".to_owned(),
            b'\n' => "\\n".to_owned(),
            b'"' | b'\\' => format!("\\x{first:02x}"),
            0x20..0x7f => char::from(*first).to_string(),
            _ => format!("\\x{first:02x}"),
        };
        if run >= RUN {
            if !plain.is_empty() {
                parts.push(quote(&std::mem::take(&mut plain)));
            }
            parts.push(format!("{}*{run}", quote(&one)));
            rest = &rest[run..];
        } else {
            plain.push_str(&one);
            rest = &rest[1..];
        }
    }
    if !plain.is_empty() {
        parts.push(quote(&plain));
    }
    parts.join(" ")
}

/// Changes to a frame that is otherwise right: `set OFFSET=HEX` (an IPv4 header checksum is made
/// right after it, unless that is what was set), `cut LENGTH`, `tail HEX` (behind the packet),
/// `partial` (the checksum as a veth peer leaves it), `badsum`, `exit` and `listens` (the adopter's
/// marks).
fn edited(mut frame: Vec<u8>, edits: &str) -> Result<Vec<u8>, String> {
    for edit in edits.split(',').map(str::trim) {
        let wrong = || format!("`{edit}` is no edit of this frame");
        match *edit.split_whitespace().collect::<Vec<_>>() {
            ["set", what] => {
                let (at, value) = what.split_once('=').ok_or_else(wrong)?;
                let (at, value) = (at.parse::<usize>().map_err(|_| wrong())?, unhex(value)?);
                let room = frame.get_mut(at..at + value.len()).ok_or_else(wrong)?;
                room.copy_from_slice(&value);
                if at + value.len() <= IPV4_CHECKSUM_AT || (26..34).contains(&at) {
                    settle_ipv4(&mut frame);
                }
            }
            ["cut", length] => frame.truncate(length.parse().map_err(|_| wrong())?),
            ["tail", bytes] => frame.extend(unhex(bytes)?),
            ["badsum"] => {
                let Ok(Decoded::Tcp(segment)) = decode(&frame) else {
                    return Err(wrong());
                };
                frame[usize::from(segment.l4) + 17] ^= 1;
            }
            [mark @ ("exit" | "listens" | "unread" | "released")] => {
                let Ok(Decoded::Tcp(segment)) = decode(&frame) else {
                    return Err(wrong());
                };
                let mark = match mark {
                    "exit" => EndMark::Exiting,
                    "listens" => EndMark::Listening,
                    "unread" => EndMark::Unread,
                    _ => EndMark::Released,
                };
                if !put_end_mark(&mut frame, &segment, mark) {
                    return Err(wrong());
                }
            }
            ["partial"] => settle_tcp(&mut frame, true),
            _ => return Err(wrong()),
        }
    }
    Ok(frame)
}

/// A frame as text. It is said exactly: [`bytes`] of the text is the frame again.
pub fn text(frame: &[u8], names: &mut Names) -> String {
    let said = match decode(frame) {
        Ok(Decoded::Tcp(segment)) => segment_text(frame, &segment, names),
        Ok(Decoded::Icmp(error)) => icmp::text(frame, &error, names),
        _ => None,
    };
    said.filter(|text| bytes(text, names).as_deref() == Ok(frame))
        .unwrap_or_else(|| format!("raw {}", hex(frame)))
}

fn segment_text(frame: &[u8], s: &Segment, names: &mut Names) -> Option<String> {
    let from = std::net::SocketAddr::new(s.src, s.src_port);
    let to = std::net::SocketAddr::new(s.dst, s.dst_port);
    let option_bytes = s.options(frame);
    let purpose = match option_bytes {
        [253, 28, 0xba, 0x71, ..] => Purpose::Probe,
        [] if s.flags == Flags::SYN && s.window == u16::MAX => Purpose::Question,
        _ => Purpose::Leg,
    };
    // The engine draws the numbers of a Forget, too, and of the RST in front of one.
    let forget = matches!(option_bytes, [253, 28, 0xba, 0x73, ..]);
    let fresh = purpose != Purpose::Leg || forget;
    let bases = Bases::new(names.is_server(to));
    let from = names.place_name(from, to, purpose);
    let to = {
        let at = std::net::SocketAddr::new(s.src, s.src_port);
        names.place_name(to, at, purpose)
    };
    let mut words = vec![format!("{from} > {to}: {}", flags_text(s.flags))];
    let data = s.data(frame);
    let seq = names.number_text(s.seq.0, bases.seq, fresh);
    if data.is_empty() {
        words.push(format!("seq {seq}"));
    } else {
        let end = names.number_text(s.seq.0.wrapping_add(data.len() as u32), bases.seq, false);
        words.push(format!("seq {seq}:{end}"));
    }
    if s.ack.0 != 0 || s.flags.has(Flags::ACK) {
        let ack = names.number_text(s.ack.0, bases.ack, fresh);
        words.push(format!("ack {ack}"));
    }
    words.push(format!("win {}", s.window));
    let ttl = frame[if s.is_v6() { 21 } else { 22 }];
    if ttl != TTL {
        words.push(format!("ttl {ttl}"));
    }
    if !option_bytes.is_empty() {
        let tag = options::tag(s.src, s.dst, &frame[usize::from(s.l4)..usize::from(s.payload)]);
        let text = options_text(option_bytes, bases, tag, names)?;
        words.push(format!("<{text}>"));
    }
    if !data.is_empty() {
        words.push(data_text(data));
    }
    if !s.is_v6() && frame[20] == 0 {
        words.push(format!("{{set 18={:02x}{:02x}00}}", frame[18], frame[19]));
    }
    Some(words.join(" "))
}
