//! Packets that no honest TCP sends: raw IPv4 packets from any namespace, and whole frames on a
//! link.
//!
//! Without unsafe code: the address of a link, which safe interfaces cannot make, is taken from a
//! frame that was received on it.

use crate::{DEADLINE, until};
use anyhow::{Context, Result, ensure};
use baton_lab::Namespace;
use baton_packet::{Decoded, Flags, Mac, Segment, SegmentSpec, SeqNumber, build_segment, decode};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType,
    recvfrom, sendto, socket_with,
};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    ops::Range,
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

/// `ETH_P_ALL` (3) in network byte order: every frame, in both directions.
const ALL_FRAMES: u32 = (3u16.to_be()) as u32;
/// `IPPROTO_RAW`: the sender writes the IP header.
const IPPROTO_RAW: i32 = 255;
/// Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// Room for one frame, GSO ones included.
const FRAME_BYTES: usize = 65_600;
/// Headers of Ethernet, IP and TCP at most.
const HEADERS_BYTES: usize = ETHERNET_BYTES + 40 + 60;
/// First address of a flood's senders: 10.128.0.0/9, which no lab uses.
const FLOOD_FIRST: u32 = 0x0a80_0000;
/// Sent at once: fewer than the 256 frames that the queue of a veth holds (drivers/net/veth.c,
/// VETH_RING_SIZE).
const BURST: usize = 100;
/// Between two bursts, so that what is shown is who receives them and not who overruns the node's
/// queues.
const PAUSE: Duration = Duration::from_millis(1);

/// Sends IPv4 packets as they are given, whatever address they claim to come from.
#[derive(Debug)]
pub struct RawIp(Socket);

impl RawIp {
    /// Opens it in `namespace`; usable from any thread.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn open(namespace: &Namespace) -> Result<Self> {
        let socket =
            namespace.run(|| Socket::new(Domain::IPV4, Type::RAW, Some(IPPROTO_RAW.into())))??;
        // A flood shall not be held up by our own socket's buffer.
        socket.set_send_buffer_size(4 << 20)?;
        Ok(Self(socket))
    }

    /// Sends one packet, IP header first.
    ///
    /// # Errors
    /// If the kernel refuses, for example without a route.
    pub fn send(&self, packet: &[u8], to: IpAddr) -> Result<()> {
        let to = SockAddr::from(SocketAddr::new(to, 0));
        self.0.send_to(packet, &to).map(drop).context("sending a raw packet")
    }

    /// Sends the SYNs of these numbers, some tens of thousands a second. Each number has an address
    /// and a port of its own, and nobody answers from there.
    pub fn flood(&self, to: SocketAddr, numbers: Range<u32>) -> Result<()> {
        for (sent, number) in numbers.enumerate() {
            if sent % BURST == BURST - 1 {
                thread::sleep(PAUSE);
            }
            let from = Ipv4Addr::from(FLOOD_FIRST | number);
            let from = SocketAddr::from((from, 1_024 + (number % 60_000) as u16));
            // Far apart, as random ones would be.
            let seq = number.wrapping_mul(0x9e37_79b9);
            self.send(&tcp_packet(from, to, (seq, 0), Flags::SYN, &[])?, to.ip())?;
        }
        Ok(())
    }
}

/// A TCP packet without Ethernet header, with right checksums.
///
/// # Errors
/// If the addresses are of different families.
pub fn tcp_packet(
    from: SocketAddr,
    to: SocketAddr,
    (seq, ack): (u32, u32),
    flags: Flags,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let mut buffer = vec![0; HEADERS_BYTES + payload.len()];
    let length = build_segment(&mut buffer, &spec(from, to, (seq, ack), flags, payload))
        .context("addresses of one family")?;
    Ok(buffer[ETHERNET_BYTES..length].to_vec())
}

/// A segment without timestamps and with a full window.
fn spec<'a>(
    from: SocketAddr,
    to: SocketAddr,
    (seq, ack): (u32, u32),
    flags: Flags,
    payload: &'a [u8],
) -> SegmentSpec<'a> {
    SegmentSpec {
        src_mac: Mac::default(),
        dst_mac: Mac::default(),
        src: from.ip(),
        dst: to.ip(),
        src_port: from.port(),
        dst_port: to.port(),
        seq: SeqNumber(seq),
        ack: SeqNumber(ack),
        flags,
        window: u16::MAX,
        timestamps: None,
        payload,
    }
}

/// The TCP segment in a frame, if it is one.
#[must_use]
pub fn segment_of(frame: &[u8]) -> Option<Segment> {
    match decode(frame) {
        Ok(Decoded::Tcp(segment)) => Some(segment),
        _ => None,
    }
}

/// Sees every frame of a namespace, in both directions, and can send frames on a link where it saw
/// one.
#[derive(Debug)]
pub struct FrameSocket(OwnedFd);

/// A link, known from a frame on it.
pub struct Link(SocketAddrAny);

impl FrameSocket {
    /// Opens it in `namespace`.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn open(namespace: &Namespace) -> Result<Self> {
        let protocol = NonZeroU32::new(ALL_FRAMES).map(Protocol::from_raw);
        let socket = namespace.run(|| {
            socket_with(
                AddressFamily::PACKET,
                SocketType::RAW,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                protocol,
            )
        })??;
        Ok(Self(socket))
    }

    /// Waits for a frame that `wanted` admits; gives it and the link that it was seen on.
    pub fn find(&self, what: &str, wanted: impl Fn(&[u8]) -> bool) -> Result<(Vec<u8>, Link)> {
        let mut buffer = vec![0; FRAME_BYTES];
        until(what, || {
            loop {
                let (_, length, from) = recvfrom(&self.0, &mut buffer[..], RecvFlags::empty())?;
                let frame = &buffer[..length.min(FRAME_BYTES)];
                if wanted(frame) {
                    let link = from.context("a frame without a link")?;
                    return Ok((frame.to_vec(), Link(link)));
                }
            }
        })
    }

    /// Sends a whole frame on a link.
    pub fn send(&self, frame: &[u8], link: &Link) -> Result<()> {
        // A veth has no queue but the 256 frames that its other end has not taken yet
        // (drivers/net/veth.c, VETH_RING_SIZE). Beyond these it drops and says ENOBUFS: whoever
        // sends faster than that end reads has to wait for it.
        let deadline = Instant::now() + DEADLINE;
        let sent = loop {
            match sendto(&self.0, frame, SendFlags::empty(), &link.0) {
                Err(Errno::NOBUFS) if Instant::now() < deadline => thread::yield_now(),
                sent => break sent.context("sending a frame")?,
            }
        };
        ensure!(sent == frame.len(), "{sent} of {} bytes of a frame were sent", frame.len());
        Ok(())
    }
}
