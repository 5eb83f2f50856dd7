//! Frames through a packet socket: where AF_XDP is not possible.
//!
//! Owns a packet socket with a receive ring (TPACKET_V2) and one for sending; the steering programs let only
//! our frames into the ring and hide them from the kernel's own TCP. A received frame is changed in its ring
//! slot and sent from there; frames that hold several segments are cut into buffers of our own.
//!
//! Nothing here allocates after [`PacketPort::open`].
#![expect(
    unsafe_code,
    reason = "ring slots live in memory shared with the kernel"
)]

use crate::{
    abi::{self, VirtioNetHeader},
    config::{Config, Steering},
    error::OpenError,
    frames::FrameAccount,
    gso::{Checksum, Segments},
    interface::Interface,
    packet_send::{PacketSender, bind},
    port::{Disposition, Tx},
    spin::SpinScore,
    stats::{HostStats, KernelStats, Stats},
    steer::{Programs, Steer},
    sys::{self, Mapping},
};
use std::{
    cell::Cell,
    io,
    mem::{offset_of, size_of},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// A slot holds the largest frame that a peer's TSO makes (64 KiB and Ethernet) behind the ring's own headers.
const SLOT_BYTES: usize = 66 * 1024;
/// Slots of a block. 30 of them nearly fill 2 MiB, and the kernel rounds blocks up to a power of two pages.
const SLOTS_PER_BLOCK: u32 = 30;
/// Blocks at most: 510 slots, 34 MiB that the kernel cannot swap.
const BLOCKS_MAX: u32 = 17;
/// Frame bytes that surely fit behind the headers of a slot.
const SLOT_FRAME_BYTES_MAX: usize = SLOT_BYTES - 256;

pub(crate) struct PacketPort {
    // Order of dropping: sockets before the program, so that the kernel stays silent until nobody listens.
    sender: PacketSender,
    receive: OwnedFd,
    steer: Steer,
    ring: Mapping,
    slots: u32,
    next: u32,
    batch: u32,
    busy_poll: Duration,
    spin: SpinScore,
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
    waits: u64,
}

impl PacketPort {
    pub(crate) fn open(
        config: &Config,
        steering: &Steering,
        interface: &Interface,
    ) -> Result<Self, OpenError> {
        let failed = |operation| OpenError::kernel(operation);
        if config.frame_bytes as usize > SLOT_FRAME_BYTES_MAX {
            return Err(OpenError::FrameTooLarge {
                frame_bytes: config.frame_bytes,
                max: SLOT_FRAME_BYTES_MAX as u32,
            });
        }
        let mut steer = Steer::load(Programs::Packet, config.frame_bytes, steering)?;
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
        let blocks = config
            .rx_ring
            .div_ceil(SLOTS_PER_BLOCK)
            .clamp(1, BLOCKS_MAX);
        let slots = blocks * SLOTS_PER_BLOCK;
        let block_bytes = block_bytes();
        let request = libc::tpacket_req {
            tp_block_size: block_bytes,
            tp_block_nr: blocks,
            tp_frame_size: SLOT_BYTES as u32,
            tp_frame_nr: slots,
        };
        sys::set_option(
            receive.as_fd(),
            libc::SOL_PACKET,
            libc::PACKET_RX_RING,
            &request,
        )
        .map_err(failed("making the receive ring of the packet socket"))?;
        let ring = Mapping::of_socket(receive.as_fd(), blocks as usize * block_bytes as usize, 0)
            .map_err(failed("mapping the receive ring of the packet socket"))?;
        let sender = PacketSender::open(config, interface)?;
        steer.attach_tc(interface)?;
        bind(&receive, interface, libc::ETH_P_ALL as u16)?;
        let watch = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let fds = [watch(receive.as_raw_fd()), watch(-1), watch(-1)];
        Ok(Self {
            sender,
            receive,
            steer,
            ring,
            slots,
            next: 0,
            batch: config.batch.min(slots / 2),
            busy_poll: Duration::from_micros(u64::from(config.busy_poll_us)),
            spin: SpinScore::new(),
            fds,
            drops: Cell::new(0),
            counts: Counts::default(),
        })
    }

    pub(crate) fn steer(&self) -> &Steer {
        &self.steer
    }

    pub(crate) fn set_steering(&mut self, steering: &Steering) -> Result<(), OpenError> {
        self.steer.set(steering)
    }

    pub(crate) fn sender(&mut self) -> &mut PacketSender {
        &mut self.sender
    }

    pub(crate) fn process(
        &mut self,
        f: &mut impl FnMut(&mut [u8], usize, &mut Tx<'_>) -> Disposition,
    ) -> usize {
        let mut seen = 0;
        let mut taken = 0;
        while taken < self.batch {
            let slot = self.slot((self.next + taken) % self.slots);
            if slot.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                break;
            }
            taken += 1;
            seen += self.process_slot(slot, f);
        }
        if taken > 0 {
            // Frames that were changed in their slots must be out before the kernel gets the slots back.
            self.sender.flush();
            for i in 0..taken {
                let slot = self.slot((self.next + i) % self.slots);
                slot.status()
                    .store(libc::TP_STATUS_KERNEL, Ordering::Release);
            }
            self.next = (self.next + taken) % self.slots;
        }
        seen
    }

    fn process_slot(
        &mut self,
        slot: Slot,
        f: &mut impl FnMut(&mut [u8], usize, &mut Tx<'_>) -> Disposition,
    ) -> usize {
        let Some((vnet, len, whole)) = slot.describe() else {
            self.counts.rx_oversize += 1;
            return 0;
        };
        let frame_bytes = self.sender.frame_bytes;
        if vnet.gso_type != abi::VIRTIO_NET_HDR_GSO_NONE {
            // SAFETY: the slot is ours until its status goes back, and this is the only slice of it.
            let large = unsafe { std::slice::from_raw_parts(whole.as_ptr(), len) };
            return self.segment(large, vnet, f);
        }
        if len > frame_bytes {
            self.counts.rx_oversize += 1;
            return 0;
        }
        // SAFETY: as above; `describe` checked that SLOT_FRAME_BYTES_MAX bytes from here are in the slot, and
        // `open` that a frame is not larger.
        let buffer = unsafe { std::slice::from_raw_parts_mut(whole.as_ptr(), frame_bytes) };
        self.counts.rx_frames += 1;
        self.counts.rx_bytes += len as u64;
        match f(buffer, len, &mut Tx::packet(&mut self.sender)) {
            Disposition::Transmit(len) => self.sender.transmit(whole, None, len),
            Disposition::Release => {}
        }
        1
    }

    fn segment(
        &mut self,
        large: &[u8],
        vnet: VirtioNetHeader,
        f: &mut impl FnMut(&mut [u8], usize, &mut Tx<'_>) -> Disposition,
    ) -> usize {
        let kind = vnet.gso_type & !abi::VIRTIO_NET_HDR_GSO_ECN;
        let trusted = abi::VIRTIO_NET_HDR_F_NEEDS_CSUM | abi::VIRTIO_NET_HDR_F_DATA_VALID;
        let checksum = if vnet.flags & trusted != 0 {
            Checksum::Trusted
        } else {
            Checksum::Unverified
        };
        let tcp = matches!(
            kind,
            abi::VIRTIO_NET_HDR_GSO_TCPV4 | abi::VIRTIO_NET_HDR_GSO_TCPV6
        );
        let segments = Segments::new(
            large,
            usize::from(vnet.gso_size),
            self.sender.frame_bytes,
            checksum,
        );
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
            match f(buffer, len, &mut Tx::packet(&mut self.sender)) {
                Disposition::Transmit(len) => self.sender.transmit(start, Some(index), len),
                Disposition::Release => self.sender.free.push(index),
            }
        }
    }

    fn slot(&self, index: u32) -> Slot {
        let block = (index / SLOTS_PER_BLOCK) as usize * block_bytes() as usize;
        let offset = block + (index % SLOTS_PER_BLOCK) as usize * SLOT_BYTES;
        debug_assert!(offset + SLOT_BYTES <= self.ring.bytes());
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
    ) -> io::Result<()> {
        self.sender.flush();
        if self.ready() {
            return Ok(());
        }
        if !self.busy_poll.is_zero() && timeout != Some(Duration::ZERO) && self.spin.worth_it() {
            let limit = timeout.map_or(self.busy_poll, |t| t.min(self.busy_poll));
            let start = Instant::now();
            while start.elapsed() < limit {
                if self.ready() {
                    self.spin.ended(true);
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            self.spin.ended(false);
        }
        self.fds[1].fd = wake.as_raw_fd();
        self.fds[2].fd = host.map_or(-1, |host| host.as_raw_fd());
        self.counts.waits += 1;
        sys::poll(&mut self.fds, timeout)?;
        if self.fds[0].revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) == 0 {
            return Ok(());
        }
        match sys::take_error(self.receive.as_fd())? {
            // Down for now: the kernel binds the socket again when the interface comes back.
            Some(e) if e.raw_os_error() == Some(libc::ENETDOWN) && !self.gone() => Ok(()),
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// Is the interface gone for good?
    fn gone(&self) -> bool {
        rustix::net::netdevice::index_to_name(&self.receive, self.sender.ifindex).is_err()
    }

    fn ready(&self) -> bool {
        let status = self.slot(self.next);
        status.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    pub(crate) fn stats(&self) -> Stats {
        let asked: io::Result<libc::tpacket_stats> = sys::get_option(
            self.receive.as_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
        );
        if let Ok(since_last) = asked {
            self.drops
                .set(self.drops.get() + u64::from(since_last.tp_drops));
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
            kernel: KernelStats {
                rx_ring_full: self.drops.get(),
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

/// Bytes of a block: its slots, rounded up to pages.
const fn block_bytes() -> u32 {
    (SLOTS_PER_BLOCK as usize * SLOT_BYTES).next_multiple_of(4096) as u32
}

/// One slot of the receive ring: a `tpacket2_hdr`, a gap, a virtio-net header and the frame.
#[derive(Clone, Copy)]
struct Slot(NonNull<u8>);

impl Slot {
    fn status(&self) -> &AtomicU32 {
        const { assert!(offset_of!(libc::tpacket2_hdr, tp_status) == 0) };
        // SAFETY: the slot's first word is the status, aligned as slots are; the ring outlives the slot, which is
        // used only in methods of the port.
        unsafe { self.0.cast::<AtomicU32>().as_ref() }
    }

    /// The virtio-net header, the frame's length and its start; `None` if it was cut off.
    fn describe(&self) -> Option<(VirtioNetHeader, usize, NonNull<u8>)> {
        // SAFETY: the kernel filled the header before it set the status that the caller has seen.
        let header = unsafe { self.0.cast::<libc::tpacket2_hdr>().read() };
        let mac = usize::from(header.tp_mac);
        let len = header.tp_snaplen as usize;
        if header.tp_snaplen < header.tp_len
            || mac < size_of::<libc::tpacket2_hdr>() + size_of::<VirtioNetHeader>()
            || mac + len > SLOT_BYTES
            || mac + SLOT_FRAME_BYTES_MAX > SLOT_BYTES
        {
            return None;
        }
        // SAFETY: inside of the slot (just checked); the header lies right in front of the frame.
        let (vnet, start) = unsafe {
            let start = self.0.add(mac);
            let vnet = start
                .sub(size_of::<VirtioNetHeader>())
                .cast::<VirtioNetHeader>()
                .read_unaligned();
            (vnet, start)
        };
        Some((vnet, len, start))
    }
}
