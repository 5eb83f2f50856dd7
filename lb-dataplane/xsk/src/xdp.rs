//! Frames between AF_XDP rings: native and generic mode.
//!
//! Owns the sockets of all queues, their one UMEM and the movement of each buffer: fill ring, kernel, RX ring,
//! hand, TX ring, kernel, completion ring, free list. A received frame is sent from the buffer it came in, also
//! through another queue's socket. One thread drives all queues.
//!
//! Nothing here allocates after [`XdpPort::open`].
#![expect(unsafe_code, reason = "buffers live in memory shared with the kernel")]

use crate::{
    abi::Descriptor,
    config::{Config, ETHERNET_BYTES, Mode, Steering, XDP_FRAME_BYTES_MAX},
    error::OpenError,
    frames::{FrameAccount, Frames, Owner},
    interface::Interface,
    matched::SteeringMaps,
    port::{Disposition, Handler, Tx},
    ring::{Consumer, Producer},
    socket::{Anchor, Umem, XskSocket},
    spin::Spin,
    stats::{HostStats, KernelStats, Stats},
    steer::{Programs, QUEUES_MAX, Steer},
    sys,
    xdp_send::{SendQueue, XdpSender},
};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    time::{Duration, Instant},
};

/// Frames that are looked at before the first of them is handled.
const LOOK_AHEAD: u32 = 32;
/// Longest sleep while frames wait that the kernel has refused to send.
const UNSENT_RETRY: Duration = Duration::from_millis(1);

/// How often an idle port wakes up to ask whether its interface still exists: `ppoll` does not say.
const ALIVE_CHECK: Duration = Duration::from_secs(1);

pub(crate) struct XdpPort {
    // Order of dropping: the program goes first, then the rings with what they live in, then the buffers.
    steer: Steer,
    receivers: Vec<Receiver>,
    sender: XdpSender,
    anchors: Vec<Anchor>,
    gro_was_on: Option<Interface>,
    fds: Vec<libc::pollfd>,
    batch: u32,
    fill_max: u32,
    spin: Spin,
    checked: Instant,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    rx_frames: u64,
    rx_bytes: u64,
    rx_oversize: u64,
    fill_ring_empty: u64,
    waits: u64,
}

/// The receiving half of a queue.
struct Receiver {
    fill: Producer<u64>,
    rx: Consumer<Descriptor>,
    /// Buffers given to the fill ring and not yet taken from the RX ring.
    with_kernel: u32,
    /// The queue whose socket sends what came in here.
    send_queue: usize,
}

impl Receiver {
    /// Shows the handler the next `count` frames, before the first of them is handled.
    fn look_ahead(&mut self, umem: &Umem, count: u32, handler: &mut impl Handler) {
        for after in 0..count {
            let Some(descriptor) = self.rx.peek(after) else {
                break;
            };
            // SAFETY: the kernel has given the buffer away with the entry in the RX ring, and nobody
            // takes it from there meanwhile; the slice ends before the next is made.
            let buffer: &[u8] = unsafe { umem.slice(descriptor.addr) };
            if let Some(frame) = buffer.get(..descriptor.len as usize) {
                handler.look(frame);
            }
        }
        handler.looked();
    }

    fn ready(&mut self) -> bool {
        self.rx.available() > 0
    }
}

impl XdpPort {
    pub(crate) fn open(
        config: &Config,
        steering: &Steering,
        interface: &Interface,
        mode: Mode,
    ) -> Result<(Self, SteeringMaps), OpenError> {
        let queues = interface.rx_queues;
        if queues > QUEUES_MAX {
            return Err(OpenError::Config {
                field: "receive queues of the interface",
                value: u64::from(queues),
                expected: "at most 256 (`ethtool -L`)",
            });
        }
        let Some(chunk_bytes) = Umem::chunk_bytes(interface.mtu + ETHERNET_BYTES) else {
            return Err(OpenError::MtuTooLarge {
                interface: interface.name.clone(),
                mtu: interface.mtu,
                mode,
                max: XDP_FRAME_BYTES_MAX - ETHERNET_BYTES,
            });
        };
        let config = &config.with_chunks_of(chunk_bytes);
        let needed = config.frames_needed(queues);
        let frames = if config.frames == 0 {
            needed
        } else {
            config.frames
        };
        if frames < needed {
            return Err(OpenError::TooFewFrames {
                frames,
                queues,
                needed,
            });
        }
        let umem = Umem::new(frames, chunk_bytes)?;
        let (steer, matched) = Steer::load(Programs::Xdp, umem.frame_bytes() as u32, steering)?;
        let mut sockets: Vec<XskSocket> = Vec::new();
        for queue in 0..queues {
            let first = sockets.first().map(|s| s.anchor.fd());
            let socket = XskSocket::open(config, first.is_none().then_some(&umem))?;
            socket.bind(interface, queue, first)?;
            steer.set_socket(queue, socket.anchor.fd())?;
            sockets.push(socket);
        }
        let mut port = Self::assemble(config, interface, steer, sockets, umem, frames);
        for queue in 0..port.receivers.len() {
            port.refill(queue);
        }
        // Generic XDP sees frames after GRO, which would make them larger than a buffer. An interface whose GRO
        // cannot be switched has none, or its large frames are counted.
        if mode == Mode::Generic && interface.disable_gro().unwrap_or(false) {
            port.gro_was_on = Some(interface.clone());
        }
        // Last, so that no frame is steered to where nobody looks.
        port.steer.attach_xdp(interface, mode)?;
        Ok((port, matched))
    }

    fn assemble(
        config: &Config,
        interface: &Interface,
        steer: Steer,
        sockets: Vec<XskSocket>,
        umem: Umem,
        frames: u32,
    ) -> Self {
        let (mut receivers, mut send_queues, mut anchors) = (Vec::new(), Vec::new(), Vec::new());
        let mut fds = Vec::with_capacity(sockets.len() + 1);
        for (queue, socket) in sockets.into_iter().enumerate() {
            let fd = socket.anchor.fd().as_raw_fd();
            receivers.push(Receiver {
                fill: socket.fill,
                rx: socket.rx,
                with_kernel: 0,
                // With fewer transmit queues than receive queues, a socket of a high queue cannot send.
                send_queue: queue % interface.tx_queues as usize,
            });
            send_queues.push(SendQueue {
                tx: socket.tx,
                completion: socket.completion,
                fd,
                with_kernel: 0,
            });
            anchors.push(socket.anchor);
            fds.push(libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
        }
        // The places of the caller's eventfd and of the host's sockets.
        for _ in 0..2 {
            fds.push(libc::pollfd {
                fd: -1,
                events: libc::POLLIN,
                revents: 0,
            });
        }
        Self {
            steer,
            receivers,
            sender: XdpSender {
                umem,
                frames: Frames::new(frames),
                queues: send_queues,
                current: 0,
                held: None,
                tx_frames: 0,
                tx_bytes: 0,
                no_frame: 0,
                ring_full: 0,
                invalid: 0,
                wakeups: 0,
            },
            anchors,
            gro_was_on: None,
            fds,
            batch: config.batch,
            fill_max: config.rx_ring,
            spin: Spin::new(Duration::from_micros(u64::from(config.busy_poll_us))),
            checked: Instant::now(),
            counts: Counts::default(),
        }
    }

    pub(crate) fn steer(&self) -> &Steer {
        &self.steer
    }

    /// Bytes that a callback may use of each buffer.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.sender.umem.frame_bytes()
    }

    pub(crate) fn spin(&mut self) -> &mut Spin {
        &mut self.spin
    }

    pub(crate) fn queues(&self) -> usize {
        self.receivers.len()
    }

    pub(crate) fn sender(&mut self) -> &mut XdpSender {
        self.sender.current = 0;
        &mut self.sender
    }

    pub(crate) fn process(&mut self, f: &mut impl Handler) -> usize {
        let mut seen = 0;
        for queue in 0..self.receivers.len() {
            let receiver = &mut self.receivers[queue];
            let sender = &mut self.sender;
            sender.current = receiver.send_queue;
            let ready = receiver.rx.available().min(self.batch);
            for at in 0..ready {
                if at % LOOK_AHEAD == 0 && ready - at > 1 {
                    receiver.look_ahead(&sender.umem, (ready - at).min(LOOK_AHEAD), f);
                }
                let Some(descriptor) = receiver.rx.pop() else {
                    break;
                };
                let frame = sender.umem.frame_at(descriptor.addr);
                sender.frames.give(frame, Owner::Receive, Owner::Hand);
                receiver.with_kernel -= 1;
                // SAFETY: the buffer came out of the RX ring, so it is in hand; no other slice of it exists.
                let buffer = unsafe { sender.umem.slice(descriptor.addr) };
                let len = descriptor.len as usize;
                if len > buffer.len() {
                    self.counts.rx_oversize += 1;
                    sender.frames.put(frame, Owner::Hand);
                    continue;
                }
                seen += 1;
                self.counts.rx_frames += 1;
                self.counts.rx_bytes += len as u64;
                match f.frame(buffer, len, &mut Tx::xdp(sender)) {
                    Disposition::Transmit(len) => sender.transmit(frame, descriptor.addr, len),
                    Disposition::Release => sender.frames.put(frame, Owner::Hand),
                }
            }
            if ready > 0 {
                receiver.rx.release();
                // At once: under load the next batch is already there, and these frames should not wait for it.
                self.sender.kick(self.receivers[queue].send_queue);
                self.refill(queue);
            }
        }
        seen
    }

    /// Gives the kernel as many buffers for receiving as may be with it.
    fn refill(&mut self, queue: usize) {
        let receiver = &mut self.receivers[queue];
        let wanted = self.fill_max - receiver.with_kernel;
        if wanted == 0 {
            return;
        }
        let room = receiver.fill.free(wanted).min(wanted);
        let mut given = 0;
        while given < room {
            let Some(frame) = self.sender.frames.take(Owner::Receive) else {
                break;
            };
            let pushed = receiver.fill.push(self.sender.umem.fill_address(frame));
            debug_assert!(pushed, "the ring said that it has room");
            given += 1;
        }
        receiver.with_kernel += given;
        if given > 0 {
            receiver.fill.publish();
        } else if receiver.fill.pending() == 0 {
            self.counts.fill_ring_empty += 1;
        }
    }

    pub(crate) fn flush(&mut self) {
        for queue in 0..self.receivers.len() {
            self.sender.kick(queue);
            self.refill(queue);
        }
    }

    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
        wake: BorrowedFd<'_>,
        host: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        // `ppoll` would send too, but from within its own preparation to sleep: measured with one frame on its way,
        // that made the round trip 21 us instead of 5.
        self.flush();
        if self.ready() {
            return Ok(());
        }
        let receivers = &mut self.receivers;
        if self
            .spin
            .awake(timeout, || receivers.iter_mut().any(Receiver::ready))
        {
            return Ok(());
        }
        // What the kernel did not take (no memory, queue stopped) is tried again soon.
        let longest = if self.sender.unsent() {
            UNSENT_RETRY
        } else {
            ALIVE_CHECK
        };
        let timeout = Some(timeout.map_or(longest, |t| t.min(longest)));
        if let [.., of_caller, of_host] = &mut self.fds[..] {
            of_caller.fd = wake.as_raw_fd();
            of_host.fd = host.map_or(-1, |host| host.as_raw_fd());
        }
        self.counts.waits += 1;
        let ready = sys::poll(&mut self.fds, timeout)?;
        self.spin.slept();
        if ready == 0 && self.checked.elapsed() >= ALIVE_CHECK {
            self.checked = Instant::now();
            for anchor in &self.anchors {
                if let Some(error) = sys::take_error(anchor.fd())? {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn ready(&mut self) -> bool {
        self.receivers.iter_mut().any(Receiver::ready)
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut kernel = KernelStats::default();
        for anchor in &self.anchors {
            let Ok(queue) = anchor.statistics() else {
                continue;
            };
            kernel.rx_dropped += queue.rx_dropped;
            kernel.rx_invalid_descs += queue.rx_invalid_descs;
            kernel.tx_invalid_descs += queue.tx_invalid_descs;
            kernel.rx_ring_full += queue.rx_ring_full;
            kernel.rx_fill_ring_empty += queue.rx_fill_ring_empty_descs;
            kernel.tx_ring_empty += queue.tx_ring_empty_descs;
        }
        let steering = self.steer.stats();
        Stats {
            rx_frames: self.counts.rx_frames,
            rx_bytes: self.counts.rx_bytes,
            tx_frames: self.sender.tx_frames,
            tx_bytes: self.sender.tx_bytes,
            tx_dropped_no_frame: self.sender.no_frame,
            tx_ring_full: self.sender.ring_full,
            tx_invalid: self.sender.invalid,
            rx_oversize: self.counts.rx_oversize + steering.oversize,
            rx_segmented: 0,
            rx_unsegmentable: 0,
            fill_ring_empty: self.counts.fill_ring_empty,
            wakeups: self.sender.wakeups,
            waits: self.counts.waits,
            spins: self.spin.spins(),
            kernel,
            steering,
            host: HostStats::default(),
        }
    }

    pub(crate) fn frames(&self) -> FrameAccount {
        let frames = &self.sender.frames;
        let account = FrameAccount {
            free: frames.free_count(),
            receive: self.receivers.iter().map(|r| r.with_kernel).sum(),
            hand: u32::from(self.sender.held.is_some()),
            transmit: self.sender.queues.iter().map(|q| q.with_kernel).sum(),
            total: frames.total(),
        };
        #[cfg(debug_assertions)]
        for (owner, count) in [
            (Owner::Free, account.free),
            (Owner::Receive, account.receive),
            (Owner::Hand, account.hand),
            (Owner::Transmit, account.transmit),
        ] {
            debug_assert_eq!(frames.count(owner), count, "{owner:?}");
        }
        account
    }
}

impl Drop for XdpPort {
    fn drop(&mut self) {
        if let Some(interface) = &self.gro_was_on {
            // The interface may be gone, then there is nothing to restore.
            let _ = interface.enable_gro();
        }
    }
}
