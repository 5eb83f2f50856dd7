//! One question to nfnetlink in the calling thread's namespace, and the messages of its answer.
//! Owns sockets and framing.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
    netlink::{NETFILTER, SocketAddrNetlink},
    recv, sendto, socket_with,
};
use std::{io, os::fd::OwnedFd};

const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// What was dumped changed meanwhile.
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER_BYTES: usize = 16;
/// `struct nfgenmsg` behind it.
const FAMILY_BYTES: usize = 4;
/// The kernel builds messages of 32 KB at most for a buffer of this size.
const BUFFER_BYTES: usize = 64 * 1024;

/// A socket to nfnetlink.
pub(super) struct Netlink {
    socket: OwnedFd,
    buffer: Vec<u8>,
    number: u32,
}

impl Netlink {
    /// # Errors
    /// The kernel's, among them that it has no nfnetlink.
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(NETFILTER),
        )?;
        Ok(Self { socket, buffer: vec![0; BUFFER_BYTES], number: 0 })
    }

    /// Gives each message of the answer (its family, and its attributes) to `take`, until that says
    /// `false`. Whether all are of one moment.
    ///
    /// # Errors
    /// The kernel's, or that it answers in a way that is not known.
    pub(super) fn ask(
        &mut self,
        kind: u16,
        dump: bool,
        mut take: impl FnMut(u8, &[u8]) -> io::Result<bool>,
    ) -> io::Result<bool> {
        self.number += 1;
        let flags = if dump { NLM_F_REQUEST | NLM_F_DUMP } else { NLM_F_REQUEST };
        let mut question = Vec::with_capacity(HEADER_BYTES + FAMILY_BYTES);
        question.extend(((HEADER_BYTES + FAMILY_BYTES) as u32).to_ne_bytes());
        question.extend(kind.to_ne_bytes());
        question.extend(flags.to_ne_bytes());
        question.extend(self.number.to_ne_bytes());
        question.extend([0; 4 + FAMILY_BYTES]);
        sendto(&self.socket, &question, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut whole = true;
        loop {
            // The kernel has answered by the time that it was asked, and goes on with a dump while
            // that is read.
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            let (_, bytes) = recv(&self.socket, self.buffer.as_mut_slice(), flags)?;
            let mut rest = self.buffer.get(..bytes).ok_or_else(unknown)?;
            while !rest.is_empty() {
                let (message, after) = split(rest).ok_or_else(unknown)?;
                rest = after;
                if message.number != self.number {
                    continue;
                }
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE => return Ok(whole),
                    NLMSG_ERROR => {
                        let code = message.body.first_chunk().ok_or_else(unknown)?;
                        return Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(*code)));
                    }
                    _ => {
                        let (family, attributes) =
                            message.body.split_at_checked(FAMILY_BYTES).ok_or_else(unknown)?;
                        if !take(family[0], attributes)? || !dump {
                            return Ok(whole);
                        }
                    }
                }
            }
        }
    }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    number: u32,
    body: &'a [u8],
}

/// The first message, and what is behind it.
fn split(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let (header, _) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let word = |at: usize| {
        u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let length = word(0) as usize;
    let message = Message {
        kind: half(4),
        flags: half(6),
        number: word(8),
        body: bytes.get(HEADER_BYTES..length)?,
    };
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((message, after))
}

fn unknown() -> io::Error {
    io::Error::other("nfnetlink answers in an unknown way")
}

/// The attributes of a message or of another attribute: number and content. Ends at what is none.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    /// Nested, and in network byte order.
    const FLAGS: u16 = 0xc000;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (header, _) = rest.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let content = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((u16::from_ne_bytes([header[2], header[3]]) & !FLAGS, content))
    })
}

/// One of them.
pub(super) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(number, _)| *number == wanted).map(|(_, content)| content)
}

/// One that is a number.
pub(super) fn number(bytes: &[u8], wanted: u16) -> Option<u32> {
    attribute(bytes, wanted)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
