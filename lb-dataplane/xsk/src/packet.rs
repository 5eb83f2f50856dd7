//! Frames through a packet socket: where AF_XDP is not possible.
//!
//! Owns a packet socket with a receive ring (TPACKET_V2) and one for sending; the steering programs
//! let only our frames into the ring and hide them from the kernel's own TCP. A received frame is
//! changed in its ring slot and sent from there; frames that hold several segments are cut into
//! buffers of our own. Those that do not fit a slot wait in the socket's queue
//! (`PACKET_COPY_THRESH`); their slots say when it is their turn.
//!
//! Nothing here allocates after [`PacketPort::open`].
//!
//! # Decisions
//!
//! - **Jumbo frames go through packet mode, and are kept in pieces** (`xsk/src/packet.rs`,
//!   `engine/src/flow/pieces.rs`): a buffer of AF_XDP is a page at most. Rejected: `xdp.frags` with
//!   `XDP_USE_SG`, because a veth then leaves its peer's segmentation offload on, and XDP does not
//!   tell the segments' size of a frame of 64 KB. What does not fit a slot of the packet ring waits
//!   in the socket's queue (`PACKET_COPY_THRESH`), so slots have the MTU's size; with 66 KiB each,
//!   one ring took 34 MB. A kept copy has 2 KiB, a jumbo segment takes up to five of them, so
//!   requests in jumbo frames move and are rescued like any other.
#![expect(unsafe_code, reason = "ring slots live in memory shared with the kernel")]

use crate::{
    abi::{self, VirtioNetHeader},
    config::{Config, ETHERNET_BYTES, FRAME_BYTES, FRAME_BYTES_MAX, Steering},
    error::OpenError,
    frames::FrameAccount,
    gso::{Checksum, Segments},
    handler::{Disposition, Handler, Tx},
    interface::Interface,
    matched::SteeringMaps,
    mode::Mode,
    packet_send::{PacketSender, bind},
    spin::Spin,
    stats::{HostStats, KernelStats, Stats},
    steer::{Programs, Steer},
    sys::{self, Mapping},
};
use rustix::{io::Errno, net::RecvFlags};
use std::{
    cell::Cell,
    io,
    mem::{offset_of, size_of},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// What the kernel puts in front of a frame in its slot: its own header (52 bytes, aligned to 16),
/// a virtio-net header, and alignment.
const SLOT_HEADER_BYTES: usize = 128;
/// Blocks of the ring: what the kernel finds in one piece also on a machine that has run for long.
const BLOCK_BYTES: usize = 256 << 10;
/// The ring at most: 2,176 slots at the usual MTU, 448 with jumbo frames.
const RING_BYTES_MAX: usize = 4 << 20;
/// Frames of many segments, as a local peer's TSO and GRO make them, do not fit a slot. So many
/// bytes of them may wait beside the ring: 33 of 64 KiB.
const LARGE_QUEUE_BYTES: usize = 9 << 18;
/// The largest of these, and the header in front of it: 64 KiB, or with BIG TCP what an admin says
/// (192 KiB with Cilium).
const LARGE_BYTES: usize = size_of::<VirtioNetHeader>() + (256 << 10);
/// An error of the socket comes before a frame, once. More than two in a row are no such ones.
const RECEIVE_TRIES: usize = 3;

/// How the ring is made for an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    frame_bytes: usize,
    slot_bytes: usize,
    slots_per_block: u32,
    blocks: u32,
}

impl Layout {
    /// `None` if frames of this MTU are too large.
    fn new(mtu: u32, slots: u32) -> Option<Self> {
        let frame = mtu.saturating_add(ETHERNET_BYTES).max(FRAME_BYTES);
        if frame > FRAME_BYTES_MAX {
            return None;
        }
        let frame_bytes = (frame as usize).next_multiple_of(libc::TPACKET_ALIGNMENT);
        let slot_bytes = frame_bytes + SLOT_HEADER_BYTES;
        let slots_per_block = (BLOCK_BYTES / slot_bytes) as u32;
        let blocks_max = (RING_BYTES_MAX / BLOCK_BYTES) as u32;
        Some(Self {
            frame_bytes,
            slot_bytes,
            slots_per_block,
            blocks: slots.div_ceil(slots_per_block).clamp(1, blocks_max),
        })
    }

    fn slots(&self) -> u32 {
        self.slots_per_block * self.blocks
    }

    /// Where a slot begins in the ring.
    fn offset(&self, slot: u32) -> usize {
        let (block, at) = (slot / self.slots_per_block, slot % self.slots_per_block);
        block as usize * BLOCK_BYTES + at as usize * self.slot_bytes
    }
}

pub(crate) struct PacketPort {
    // Order of dropping: sockets before the program, so that the kernel stays silent until nobody
    // listens.
    sender: PacketSender,
    receive: OwnedFd,
    steer: Steer,
    ring: Mapping,
    layout: Layout,
    /// The slot that is filled next.
    next: u32,
    batch: u32,
    /// A frame that did not fit its slot.
    large: Box<[u8]>,
    /// What the receiving socket reported instead of such a frame.
    failure: Option<io::Error>,
    spin: Spin,
    fds: [libc::pollfd; 3],
    /// The kernel forgets its drops when asked for them.
    drops: Cell<u64>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    rx_frames: u64,
    rx_bytes: u64,
    rx_oversize: u64,
    rx_segmented: u64,
    rx_unsegmentable: u64,
    large_lost: u64,
    waits: u64,
}

impl PacketPort {
    pub(crate) fn open(
        config: &Config,
        steering: &Steering,
        interface: &Interface,
    ) -> Result<(Self, SteeringMaps), OpenError> {
        let failed = |operation| OpenError::kernel(operation);
        let Some(layout) = Layout::new(interface.mtu, config.rx_ring) else {
            return Err(OpenError::MtuTooLarge {
                interface: interface.name.clone(),
                mtu: interface.mtu,
                mode: Mode::Packet,
                max: FRAME_BYTES_MAX - ETHERNET_BYTES,
            });
        };
        let (mut steer, matched) =
            Steer::load(Programs::Packet, layout.frame_bytes as u32, steering, 1, interface.mac)?;
        // Protocol 0: nothing arrives before the socket is bound.
        let receive = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
            .map_err(failed("opening a packet socket"))?;
        let on: libc::c_int = 1;
        sys::set_option(
            receive.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_BPF,
            &steer.filter().as_raw_fd(),
        )
        .map_err(failed("attaching the filter to the packet socket"))?;
        let set = |name, value: libc::c_int, operation| {
            sys::set_option(receive.as_fd(), libc::SOL_PACKET, name, &value)
                .map_err(OpenError::kernel(operation))
        };
        let v2 = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set(libc::PACKET_VERSION, v2, "choosing TPACKET_V2")?;
        set(libc::PACKET_VNET_HDR, on, "asking for segment sizes")?;
        set(libc::PACKET_IGNORE_OUTGOING, on, "ignoring what we send")?;
        // What does not fit its slot is also queued, whole and in the ring's order.
        set(libc::PACKET_COPY_THRESH, on, "queueing large frames")?;
        // The kernel counts twice what it is told.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&receive, LARGE_QUEUE_BYTES / 2)
            .map_err(io::Error::from)
            .map_err(failed("making room for large frames"))?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: layout.blocks,
            tp_frame_size: layout.slot_bytes as u32,
            tp_frame_nr: layout.slots(),
        };
        sys::set_option(receive.as_fd(), libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
            .map_err(failed("making the receive ring of the packet socket"))?;
        let ring_bytes = layout.blocks as usize * BLOCK_BYTES;
        let ring = Mapping::of_socket(receive.as_fd(), ring_bytes, 0)
            .map_err(failed("mapping the receive ring of the packet socket"))?;
        let sender = PacketSender::open(config, interface, layout.frame_bytes)?;
        steer.attach_tc(interface)?;
        bind(&receive, interface, libc::ETH_P_ALL as u16)?;
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let fds = [watch(receive.as_raw_fd()), watch(-1), watch(-1)];
        let port = Self {
            sender,
            receive,
            steer,
            ring,
            layout,
            next: 0,
            batch: config.batch.min(layout.slots() / 2),
            large: vec![0; LARGE_BYTES].into_boxed_slice(),
            failure: None,
            spin: Spin::new(Duration::from_micros(u64::from(config.busy_poll_us))),
            fds,
            drops: Cell::new(0),
            counts: Counts::default(),
        };
        Ok((port, matched))
    }

    pub(crate) fn steer(&self) -> &Steer {
        &self.steer
    }

    /// Bytes that a callback may use of each buffer.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.layout.frame_bytes
    }

    pub(crate) fn spin(&mut self) -> &mut Spin {
        &mut self.spin
    }

    pub(crate) fn sender(&mut self) -> &mut PacketSender {
        &mut self.sender
    }

    pub(crate) fn process(&mut self, f: &mut impl Handler) -> usize {
        let (mut seen, mut taken) = (0, 0);
        let slots = self.layout.slots();
        while taken < self.batch {
            let slot = self.slot((self.next + taken) % slots);
            let status = slot.status().load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                break;
            }
            taken += 1;
            seen += if status & libc::TP_STATUS_COPY == 0 {
                self.process_slot(slot, f)
            } else {
                self.process_large(f)
            };
        }
        if taken > 0 {
            // Frames that were changed in their slots must be out before the kernel gets the slots
            // back.
            self.sender.flush();
            for i in 0..taken {
                let slot = self.slot((self.next + i) % slots);
                slot.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
            }
            self.next = (self.next + taken) % slots;
        }
        seen
    }

    fn process_slot(&mut self, slot: Slot, f: &mut impl Handler) -> usize {
        let Some((vnet, len, whole)) = slot.describe(&self.layout) else {
            // It did not fit, and too much of that kind waited already.
            self.counts.large_lost += 1;
            return 0;
        };
        let frame_bytes = self.layout.frame_bytes;
        if vnet.gso_type != abi::VIRTIO_NET_HDR_GSO_NONE {
            // SAFETY: the slot is ours until its status goes back, and this is the only slice of
            // it.
            let large = unsafe { std::slice::from_raw_parts(whole.as_ptr(), len) };
            return self.segment(large, vnet, f);
        }
        if len > frame_bytes {
            self.counts.rx_oversize += 1;
            return 0;
        }
        // SAFETY: as above; `describe` checked that `frame_bytes` bytes from here are in the slot.
        let buffer = unsafe { std::slice::from_raw_parts_mut(whole.as_ptr(), frame_bytes) };
        self.counts.rx_frames += 1;
        self.counts.rx_bytes += len as u64;
        match f.frame(buffer, len, &mut Tx::packet(&mut self.sender)) {
            Disposition::Transmit(len) => self.sender.transmit(whole, None, len),
            Disposition::Release => {}
        }
        1
    }

    /// Takes what did not fit its slot from the queue, where it is the next.
    fn process_large(&mut self, f: &mut impl Handler) -> usize {
        // Moved out and back, so that the rest may be borrowed; an empty box allocates nothing.
        let mut large = std::mem::take(&mut self.large);
        let header_bytes = size_of::<VirtioNetHeader>();
        let seen = match self.receive_large(&mut large) {
            Some(len) if len >= header_bytes => {
                let (header, frame) = large[..len].split_at(header_bytes);
                // SAFETY: as many bytes as the header has, all values of which are valid.
                let vnet = unsafe { header.as_ptr().cast::<VirtioNetHeader>().read_unaligned() };
                if vnet.gso_type == abi::VIRTIO_NET_HDR_GSO_NONE {
                    self.counts.rx_oversize += 1;
                    0
                } else {
                    self.segment(frame, vnet, f)
                }
            }
            _ => {
                self.counts.large_lost += 1;
                0
            }
        };
        self.large = large;
        seen
    }

    fn receive_large(&mut self, large: &mut [u8]) -> Option<usize> {
        for _ in 0..RECEIVE_TRIES {
            match rustix::net::recv(&self.receive, &mut *large, RecvFlags::DONTWAIT) {
                Ok((_, len)) => return Some(len),
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                // What `wait` would have asked for.
                Err(error) => self.failure = Some(error.into()),
            }
        }
        None
    }

    fn segment(&mut self, large: &[u8], vnet: VirtioNetHeader, f: &mut impl Handler) -> usize {
        let kind = vnet.gso_type & !abi::VIRTIO_NET_HDR_GSO_ECN;
        let trusted = abi::VIRTIO_NET_HDR_F_NEEDS_CSUM | abi::VIRTIO_NET_HDR_F_DATA_VALID;
        let checksum =
            if vnet.flags & trusted != 0 { Checksum::Trusted } else { Checksum::Unverified };
        let tcp = matches!(kind, abi::VIRTIO_NET_HDR_GSO_TCPV4 | abi::VIRTIO_NET_HDR_GSO_TCPV6);
        let segments =
            Segments::new(large, usize::from(vnet.gso_size), self.sender.frame_bytes, checksum);
        let (true, Ok(mut segments)) = (tcp, segments) else {
            self.counts.rx_unsegmentable += 1;
            return 0;
        };
        let mut seen = 0;
        loop {
            let Some(index) = self.sender.take() else {
                self.counts.rx_unsegmentable += 1;
                return seen;
            };
            let start = self.sender.buffer(index);
            // SAFETY: a buffer off the free list, so this is its only slice.
            let buffer =
                unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.sender.frame_bytes) };
            let Some(len) = segments.next_into(buffer) else {
                self.sender.free.push(index);
                return seen;
            };
            seen += 1;
            self.counts.rx_segmented += 1;
            self.counts.rx_frames += 1;
            self.counts.rx_bytes += len as u64;
            match f.frame(buffer, len, &mut Tx::packet(&mut self.sender)) {
                Disposition::Transmit(len) => self.sender.transmit(start, Some(index), len),
                Disposition::Release => self.sender.free.push(index),
            }
        }
    }

    fn slot(&self, index: u32) -> Slot {
        let offset = self.layout.offset(index);
        debug_assert!(offset + self.layout.slot_bytes <= self.ring.bytes());
        // SAFETY: inside of the mapping: `open` made as many blocks as hold `slots`.
        Slot(unsafe { self.ring.start().add(offset) })
    }

    pub(crate) fn flush(&mut self) {
        self.sender.flush();
    }

    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
        wake: BorrowedFd<'_>,
        host: Option<BorrowedFd<'_>>,
    ) -> io::Result<bool> {
        self.sender.flush();
        if self.ready() {
            return Ok(false);
        }
        let next = self.slot(self.next);
        if self.spin.awake(timeout, || next.is_filled()) {
            return Ok(false);
        }
        self.fds[1].fd = wake.as_raw_fd();
        self.fds[2].fd = host.map_or(-1, |host| host.as_raw_fd());
        self.counts.waits += 1;
        sys::poll(&mut self.fds, timeout)?;
        self.spin.slept();
        let woken = self.fds[1].revents & libc::POLLIN != 0;
        let failed = self.fds[0].revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
        let error = match self.failure.take() {
            None if failed => sys::take_error(self.receive.as_fd())?,
            error => error,
        };
        match error {
            // Down for now: the kernel binds the socket again when the interface comes back.
            Some(e) if e.raw_os_error() == Some(libc::ENETDOWN) && !self.gone() => Ok(woken),
            Some(e) => Err(e),
            None => Ok(woken),
        }
    }

    /// Is the interface gone for good?
    fn gone(&self) -> bool {
        rustix::net::netdevice::index_to_name(&self.receive, self.sender.ifindex).is_err()
    }

    fn ready(&self) -> bool {
        self.slot(self.next).is_filled()
    }

    pub(crate) fn stats(&self) -> Stats {
        let asked: io::Result<libc::tpacket_stats> =
            sys::get_option(self.receive.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS);
        if let Ok(since_last) = asked {
            self.drops.set(self.drops.get() + u64::from(since_last.tp_drops));
        }
        Stats {
            rx_frames: self.counts.rx_frames,
            rx_bytes: self.counts.rx_bytes,
            tx_frames: self.sender.tx_frames,
            tx_bytes: self.sender.tx_bytes,
            tx_dropped_no_frame: self.sender.no_frame,
            tx_ring_full: self.sender.dropped,
            tx_invalid: self.sender.invalid,
            rx_oversize: self.counts.rx_oversize,
            rx_segmented: self.counts.rx_segmented,
            rx_unsegmentable: self.counts.rx_unsegmentable,
            fill_ring_empty: 0,
            wakeups: self.sender.calls,
            waits: self.counts.waits,
            spins: self.spin.spins(),
            kernel: KernelStats {
                rx_ring_full: self.drops.get() + self.counts.large_lost,
                ..KernelStats::default()
            },
            steering: self.steer.stats(),
            host: HostStats::default(),
        }
    }

    pub(crate) fn frames(&self) -> FrameAccount {
        FrameAccount {
            free: self.sender.free.len() as u32,
            receive: 0,
            hand: u32::from(self.sender.held.is_some()),
            transmit: self.sender.borrowed.len() as u32,
            total: self.sender.total,
        }
    }
}

/// One slot of the receive ring: a `tpacket2_hdr`, a gap, a virtio-net header and the frame.
#[derive(Clone, Copy)]
struct Slot(NonNull<u8>);

impl Slot {
    fn status(&self) -> &AtomicU32 {
        const { assert!(offset_of!(libc::tpacket2_hdr, tp_status) == 0) };
        // SAFETY: the slot's first word is the status, aligned as slots are; the ring outlives the
        // slot, which is used only in methods of the port.
        unsafe { self.0.cast::<AtomicU32>().as_ref() }
    }

    fn is_filled(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// The virtio-net header, the frame's length and its start; `None` if it was cut off.
    fn describe(&self, layout: &Layout) -> Option<(VirtioNetHeader, usize, NonNull<u8>)> {
        // SAFETY: the kernel filled the header before it set the status that the caller has seen.
        let header = unsafe { self.0.cast::<libc::tpacket2_hdr>().read() };
        let mac = usize::from(header.tp_mac);
        let len = header.tp_snaplen as usize;
        if header.tp_snaplen < header.tp_len
            || mac < size_of::<libc::tpacket2_hdr>() + size_of::<VirtioNetHeader>()
            || mac + len > layout.slot_bytes
            || mac + layout.frame_bytes > layout.slot_bytes
        {
            return None;
        }
        // SAFETY: inside of the slot (just checked); the header lies right in front of the frame.
        let (vnet, start) = unsafe {
            let start = self.0.add(mac);
            let vnet =
                start.sub(size_of::<VirtioNetHeader>()).cast::<VirtioNetHeader>().read_unaligned();
            (vnet, start)
        };
        Some((vnet, len, start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::QUEUE_BYTES_MAX;

    #[test]
    fn ring_queue_and_buffers_take_at_most_8_mb() {
        let config = Config::new("eth0");
        for (mtu, slots) in [(1_280, 2_176), (1_500, 2_176), (9_001, 448), (16_370, 240)] {
            let layout = Layout::new(mtu, config.rx_ring).expect("packet mode takes it");
            assert_eq!(layout.slots(), slots, "{layout:?}");
            assert!(layout.frame_bytes >= (mtu + ETHERNET_BYTES) as usize);
            assert!(layout.slots_per_block as usize * layout.slot_bytes <= BLOCK_BYTES);
            assert_eq!(layout.offset(slots - 1) / BLOCK_BYTES, layout.blocks as usize - 1);
            let ring = layout.blocks as usize * BLOCK_BYTES;
            let sending = (config.batch as usize + 2) * layout.frame_bytes;
            let bytes = ring + sending + LARGE_QUEUE_BYTES + LARGE_BYTES;
            assert!(bytes <= QUEUE_BYTES_MAX, "MTU {mtu}: {bytes}");
        }
        assert_eq!(Layout::new(16_371, 64), None);
        assert_eq!(Layout::new(u32::MAX, 64), None);
        // A small ring stays small.
        assert_eq!(Layout::new(1_500, 64).map(|l| l.blocks), Some(1));
    }
}
