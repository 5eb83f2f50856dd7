//! A connection as bytes: a head (mark, version, length, checksum), then the fields in a fixed
//! order, all numbers little-endian, queues and names behind their lengths.
//!
//! Owns the format. The checksum (SipHash-2-4 with a key of zeros over all behind it) is compared
//! before anything is decoded; it finds damage, not forgery: the protocol between shims
//! authenticates.

use crate::{Connection, Negotiated, Setting, Window};
use siphasher::sip::SipHasher24;
use std::{
    hash::Hasher,
    net::{IpAddr, SocketAddr},
};

/// The format that is written, and the only one that is read.
pub const VERSION: u16 = 1;
/// Most bytes of each queue: the largest buffers that Linux gives by itself are 6 MiB
/// (`tcp_rmem[2]`).
pub const QUEUE_BYTES_MAX: u32 = 8 << 20;
/// What a record begins with.
const MARK: [u8; 4] = *b"BTCP";
/// Mark, version, two bytes of zero, length of all behind the head, checksum of that.
const HEAD_BYTES: usize = 4 + 2 + 2 + 4 + 8;
/// Names of congestion control are shorter (`TCP_CA_NAME_MAX`).
const NAME_BYTES_MAX: usize = 15;

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// They begin otherwise.
    #[error("not the record of a connection")]
    Foreign,
    /// Another version wrote them.
    #[error("the record has version {0}: this program reads version {VERSION}")]
    Version(u16),
    /// They are too few, or too many.
    #[error("the record says that it has {said} bytes and has {has}")]
    Length {
        /// Behind the head, by the head.
        said: u64,
        /// Behind the head.
        has: u64,
    },
    /// They were changed on the way.
    #[error("the record's checksum is wrong")]
    Checksum,
    /// A field cannot have this value.
    #[error("the record's field `{0}` is out of range")]
    Field(&'static str),
}

/// The record of a connection.
#[must_use]
pub fn encode(connection: &Connection) -> Vec<u8> {
    let c = connection;
    let mut out = vec![0; HEAD_BYTES];
    for address in [c.local, c.remote] {
        match address.ip() {
            IpAddr::V4(ip) => {
                out.push(4);
                out.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                out.push(6);
                out.extend(ip.octets());
            }
        }
        out.extend(address.port().to_le_bytes());
    }
    let number = |out: &mut Vec<u8>, n: u32| out.extend(n.to_le_bytes());
    number(&mut out, c.read_to);
    number(&mut out, c.acknowledged_to);
    number(&mut out, c.unsent);
    let n = &c.negotiated;
    out.extend(n.mss.to_le_bytes());
    let (theirs, ours) = n.scales.unwrap_or_default();
    let flags = [n.scales.is_some(), n.sack, n.timestamp.is_some(), c.reads_end];
    let flags = flags.iter().rev().fold(0, |all, on| all << 1 | u8::from(*on));
    out.extend([flags, theirs, ours]);
    number(&mut out, n.timestamp.unwrap_or_default());
    let w = &c.window;
    for value in [w.snd_wl1, w.snd_wnd, w.max_window, w.rcv_wnd, w.rcv_wup] {
        number(&mut out, value);
    }
    for value in [c.traffic_class, c.buffers.0, c.buffers.1, c.buffers.2] {
        out.extend(value.to_le_bytes());
    }
    for value in &c.settings {
        out.extend(value.to_le_bytes());
    }
    out.push(c.congestion.len() as u8);
    out.extend(c.congestion.bytes());
    number(&mut out, c.congestion_window.0);
    number(&mut out, c.congestion_window.1);
    for queue in [&c.unread, &c.unacknowledged] {
        number(&mut out, queue.len() as u32);
        out.extend(queue);
    }
    let body = &out[HEAD_BYTES..];
    let (length, sum) = (body.len() as u32, checksum(body));
    out[..4].copy_from_slice(&MARK);
    out[4..6].copy_from_slice(&VERSION.to_le_bytes());
    out[8..12].copy_from_slice(&length.to_le_bytes());
    out[12..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
    out
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The connection of a record.
///
/// # Errors
/// What is wrong with the bytes. Nothing is allocated for more than they are.
pub fn decode(bytes: &[u8]) -> Result<Connection, RecordError> {
    let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(RecordError::Foreign)?;
    let [m0, m1, m2, m3, v0, v1, z0, z1, l0, l1, l2, l3, sum @ ..] = *head;
    if [m0, m1, m2, m3] != MARK {
        return Err(RecordError::Foreign);
    }
    let version = u16::from_le_bytes([v0, v1]);
    if version != VERSION || [z0, z1] != [0, 0] {
        return Err(RecordError::Version(version));
    }
    let (said, has) = (u32::from_le_bytes([l0, l1, l2, l3]).into(), body.len() as u64);
    if said != has {
        return Err(RecordError::Length { said, has });
    }
    if checksum(body) != u64::from_le_bytes(sum) {
        return Err(RecordError::Checksum);
    }
    let mut rest = Rest(body);
    let (local, remote) = (rest.address("local")?, rest.address("remote")?);
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(RecordError::Field("remote"));
    }
    let (read_to, acknowledged_to) = (rest.number("read_to")?, rest.number("acknowledged_to")?);
    let unsent = rest.number("unsent")?;
    let mss = u16::from_le_bytes(rest.array("mss")?);
    let [flags, theirs, ours] = rest.array("scales")?;
    if flags > 15 || theirs > 14 || ours > 14 {
        return Err(RecordError::Field("scales"));
    }
    let timestamp = rest.number("timestamp")?;
    let mut window = [0; 5];
    for value in &mut window {
        *value = rest.number("window")?;
    }
    let [snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup] = window;
    let traffic_class = rest.signed("traffic_class")?;
    let buffers = (rest.signed("buffers")?, rest.signed("buffers")?, rest.signed("buffers")?);
    let settings = Setting::ALL.iter().map(|_| rest.signed("settings"));
    let settings = settings.collect::<Result<_, _>>()?;
    let [length] = rest.array("congestion")?;
    let name = rest.take("congestion", usize::from(length))?;
    let congestion = String::from_utf8(name.to_vec()).ok();
    let congestion = congestion
        .filter(|name| name.len() <= NAME_BYTES_MAX && name.bytes().all(|b| b.is_ascii_graphic()));
    let congestion_window = (rest.number("congestion_window")?, rest.number("congestion_window")?);
    let unread = rest.queue("unread")?;
    let unacknowledged = rest.queue("unacknowledged")?;
    if unsent as usize > unacknowledged.len() {
        return Err(RecordError::Field("unsent"));
    }
    if !rest.0.is_empty() {
        return Err(RecordError::Field("end"));
    }
    Ok(Connection {
        local,
        remote,
        read_to,
        unread,
        reads_end: flags & 8 != 0,
        acknowledged_to,
        unacknowledged,
        unsent,
        negotiated: Negotiated {
            mss,
            scales: (flags & 1 != 0).then_some((theirs, ours)),
            sack: flags & 2 != 0,
            timestamp: (flags & 4 != 0).then_some(timestamp),
        },
        window: Window { snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup },
        traffic_class,
        buffers,
        settings,
        congestion: congestion.ok_or(RecordError::Field("congestion"))?,
        congestion_window,
    })
}

/// What is not decoded yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, field: &'static str, bytes: usize) -> Result<&'a [u8], RecordError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(RecordError::Field(field))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], RecordError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(RecordError::Field(field))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn number(&mut self, field: &'static str) -> Result<u32, RecordError> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn signed(&mut self, field: &'static str) -> Result<i32, RecordError> {
        self.array(field).map(i32::from_le_bytes)
    }

    fn address(&mut self, field: &'static str) -> Result<SocketAddr, RecordError> {
        let ip: IpAddr = match self.array(field)? {
            [4_u8] => self.array::<4>(field)?.into(),
            [6] => self.array::<16>(field)?.into(),
            _ => return Err(RecordError::Field(field)),
        };
        let port = u16::from_le_bytes(self.array(field)?);
        Ok(SocketAddr::new(ip, port))
    }

    fn queue(&mut self, field: &'static str) -> Result<Vec<u8>, RecordError> {
        let bytes = self.number(field)?;
        if bytes > QUEUE_BYTES_MAX {
            return Err(RecordError::Field(field));
        }
        self.take(field, bytes as usize).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
