//! Frames between AF_XDP rings: native and generic mode.
//!
//! Owns one worker's sockets, one for each queue, and the movement of each buffer: fill ring,
//! kernel, RX ring, hand, TX ring, kernel, completion ring, free list. A received frame is sent
//! from the buffer it came in, also through another queue's socket. What workers share is the
//! [`Pool`].
//!
//! Nothing here allocates after [`XdpPort::open`].
#![expect(unsafe_code, reason = "buffers live in memory shared with the kernel")]

use crate::{
    abi::Descriptor,
    config::{Config, ETHERNET_BYTES, Steering, XDP_FRAME_BYTES_MAX},
    error::OpenError,
    frames::{FrameAccount, Owner},
    handler::{Disposition, Handler, Tx},
    interface::Interface,
    matched::SteeringMaps,
    mode::Mode,
    pool::{Parts, Pool, Share},
    ring::{Consumer, Producer},
    socket::{Anchor, Place, Umem, XskSocket},
    spin::Spin,
    stats::{HostStats, KernelStats, Stats, SteeringStats},
    steer::{Programs, QUEUES_MAX, Steer},
    sys,
    xdp_send::{SendQueue, XdpSender},
};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// Frames that are looked at before the first of them is handled.
const LOOK_AHEAD: u32 = 32;
/// Longest sleep while frames wait that the kernel has refused to send.
const UNSENT_RETRY: Duration = Duration::from_millis(1);

/// How often an idle port wakes up to ask whether its interface still exists: `ppoll` does not say.
const ALIVE_CHECK: Duration = Duration::from_secs(1);

pub(crate) struct XdpPort {
    receivers: Vec<Receiver>,
    // The rings are in what the pool keeps.
    sender: XdpSender,
    anchors: Vec<Arc<Anchor>>,
    /// One of the workers tells what there is once for all.
    first: bool,
    fds: Vec<libc::pollfd>,
    batch: u32,
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
    rx: Consumer<Descriptor>,
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
            // SAFETY: the kernel has given the buffer away with the entry in the RX ring, and
            // nobody takes it from there meanwhile; the slice ends before the next is made.
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
    /// One for each worker.
    pub(crate) fn open(
        config: &Config,
        steering: &Steering,
        interface: &Interface,
        mode: Mode,
    ) -> Result<(Vec<Self>, SteeringMaps), OpenError> {
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
        let frames = if config.frames == 0 { needed } else { config.frames };
        if frames < needed {
            return Err(OpenError::TooFewFrames { frames, queues, needed });
        }
        let umem = Umem::new(frames, chunk_bytes)?;
        let workers = config.workers.count();
        let frame_bytes = umem.frame_bytes() as u32;
        let (steer, matched) =
            Steer::load(Programs::Xdp, frame_bytes, steering, workers, interface.mac)?;
        let mut of_queues = Vec::new();
        // Of each worker, one for each queue.
        let mut sockets: Vec<Vec<XskSocket>> = (0..workers).map(|_| Vec::new()).collect();
        for queue in 0..queues {
            for worker in 0..workers {
                let first = sockets[0].first().map(|s| s.anchor.fd());
                let of_queue = sockets[0].get(queue as usize).map(|s| s.anchor.fd());
                let place = match (first, of_queue) {
                    (None, _) => Place::First(&umem),
                    (Some(_), None) => Place::FirstOfQueue,
                    (Some(_), Some(_)) => Place::Further,
                };
                let mut socket = XskSocket::open(config, place)?;
                socket.bind(interface, queue, of_queue.or(first))?;
                steer.set_socket(queue * workers + worker, socket.anchor.fd())?;
                of_queues.extend(socket.of_queue.take());
                sockets[worker as usize].push(socket);
            }
        }
        let mut anchors = Vec::new();
        let mut ports = Vec::new();
        for sockets in sockets {
            let (sockets, own): (Vec<_>, Vec<_>) = sockets
                .into_iter()
                .map(|socket| ((socket.rx, socket.tx), Arc::new(socket.anchor)))
                .unzip();
            anchors.extend(own.iter().map(Arc::clone));
            ports.push((sockets, own));
        }
        let pool = Arc::new(Pool::new(Parts {
            steer,
            queues: of_queues,
            anchors,
            umem,
            frames,
            receive_max: config.rx_ring * workers,
            workers: workers as usize,
        }));
        let mut ports: Vec<Self> = ports
            .into_iter()
            .enumerate()
            .map(|(number, (rings, anchors))| {
                let share = Share::new(Arc::clone(&pool), number);
                Self::assemble(config, interface, share, number == 0, rings, anchors)
            })
            .collect();
        if let Some(first) = ports.first_mut() {
            first.refill_all();
        }
        // Generic XDP sees frames after GRO, which would make them larger than a buffer. An
        // interface whose GRO cannot be switched has none, or its large frames are counted.
        if mode == Mode::Generic && interface.disable_gro().unwrap_or(false) {
            pool.restore_gro(interface.clone());
        }
        // Last, so that no frame is steered to where nobody looks.
        let attached = pool.with_steer(|steer| steer.attach_xdp(interface, mode));
        attached.transpose()?;
        Ok((ports, matched))
    }

    fn assemble(
        config: &Config,
        interface: &Interface,
        share: Share,
        first: bool,
        rings: Vec<(Consumer<Descriptor>, Producer<Descriptor>)>,
        anchors: Vec<Arc<Anchor>>,
    ) -> Self {
        let (mut receivers, mut send_queues) = (Vec::new(), Vec::new());
        let mut fds = Vec::with_capacity(rings.len() + 2);
        for (queue, ((rx, tx), anchor)) in rings.into_iter().zip(&anchors).enumerate() {
            let fd = anchor.fd().as_raw_fd();
            receivers.push(Receiver {
                rx,
                // With fewer transmit queues than receive queues, a socket of a high queue cannot
                // send.
                send_queue: queue % interface.tx_queues as usize,
            });
            send_queues.push(SendQueue { tx, fd, unshown: 0, untaken: false });
            fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        }
        // The places of the caller's eventfd and of the host's sockets.
        for _ in 0..2 {
            fds.push(libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 });
        }
        Self {
            receivers,
            sender: XdpSender {
                share,
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
            first,
            fds,
            batch: config.batch,
            spin: Spin::new(Duration::from_micros(u64::from(config.busy_poll_us))),
            checked: Instant::now(),
            counts: Counts::default(),
        }
    }

    /// Does something with the program.
    pub(crate) fn with_steer<T>(&self, f: impl FnOnce(&mut Steer) -> T) -> Option<T> {
        self.pool().with_steer(f)
    }

    fn pool(&self) -> &Pool {
        &self.sender.share.pool
    }

    /// Bytes that a callback may use of each buffer.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.pool().umem.frame_bytes()
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
        // The buffers stay where they are while the sender is lent.
        let pool = Arc::clone(&self.sender.share.pool);
        let umem = &pool.umem;
        for queue in 0..self.receivers.len() {
            let receiver = &mut self.receivers[queue];
            let sender = &mut self.sender;
            sender.current = receiver.send_queue;
            let ready = receiver.rx.available().min(self.batch);
            for at in 0..ready {
                if at % LOOK_AHEAD == 0 && ready - at > 1 {
                    receiver.look_ahead(umem, (ready - at).min(LOOK_AHEAD), f);
                }
                let Some(descriptor) = receiver.rx.pop() else {
                    break;
                };
                let frame = umem.frame_at(descriptor.addr);
                sender.share.give(frame, Owner::Receive, Owner::Hand);
                // SAFETY: the buffer came out of the RX ring, so it is in hand; no other slice of
                // it exists.
                let buffer = unsafe { umem.slice(descriptor.addr) };
                let len = descriptor.len as usize;
                if len > buffer.len() {
                    self.counts.rx_oversize += 1;
                    sender.share.put(frame, Owner::Hand);
                    continue;
                }
                seen += 1;
                self.counts.rx_frames += 1;
                self.counts.rx_bytes += len as u64;
                match f.frame(buffer, len, &mut Tx::xdp(sender)) {
                    Disposition::Transmit(len) => sender.transmit(frame, descriptor.addr, len),
                    Disposition::Release => sender.share.put(frame, Owner::Hand),
                }
            }
            if ready > 0 {
                receiver.rx.release();
                sender.share.received(queue, ready);
                // At once: under load the next batch is already there, and these frames should not
                // wait for it.
                self.sender.kick(self.receivers[queue].send_queue);
                self.refill(queue);
            }
        }
        seen
    }

    /// Gives the kernel as many buffers for receiving as may be with it.
    fn refill(&mut self, queue: usize) {
        if !self.sender.share.refill(queue) {
            self.counts.fill_ring_empty += 1;
        }
    }

    fn refill_all(&mut self) {
        for queue in 0..self.receivers.len() {
            self.refill(queue);
        }
    }

    pub(crate) fn flush(&mut self) {
        for queue in 0..self.receivers.len() {
            self.sender.kick(queue);
            self.refill(queue);
        }
        let held = u32::from(self.sender.held.is_some());
        self.sender.share.flushed(held);
    }

    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
        wake: BorrowedFd<'_>,
        host: Option<BorrowedFd<'_>>,
    ) -> io::Result<bool> {
        // `ppoll` would send too, but from within its own preparation to sleep: measured with one
        // frame on its way, that made the round trip 21 us instead of 5.
        self.flush();
        if self.ready() {
            return Ok(false);
        }
        let receivers = &mut self.receivers;
        if self.spin.awake(timeout, || receivers.iter_mut().any(Receiver::ready)) {
            return Ok(false);
        }
        // What the kernel did not take (no memory, queue stopped) is tried again soon.
        let longest = if self.sender.unsent() { UNSENT_RETRY } else { ALIVE_CHECK };
        let timeout = Some(timeout.map_or(longest, |t| t.min(longest)));
        if let [.., of_caller, of_host] = &mut self.fds[..] {
            of_caller.fd = wake.as_raw_fd();
            of_host.fd = host.map_or(-1, |host| host.as_raw_fd());
        }
        self.counts.waits += 1;
        let ready = sys::poll(&mut self.fds, timeout)?;
        self.spin.slept();
        let woken =
            matches!(&self.fds[..], [.., of_caller, _] if of_caller.revents & libc::POLLIN != 0);
        if ready == 0 && self.checked.elapsed() >= ALIVE_CHECK {
            self.checked = Instant::now();
            for anchor in &self.anchors {
                if let Some(error) = sys::take_error(anchor.fd())? {
                    return Err(error);
                }
            }
        }
        Ok(woken)
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
            kernel.tx_ring_empty += queue.tx_ring_empty_descs;
            if self.first {
                // Of the queue, whichever socket is asked.
                kernel.rx_fill_ring_empty += queue.rx_fill_ring_empty_descs;
            }
        }
        let steering = if self.first { self.pool().steering() } else { SteeringStats::default() };
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
        self.sender.frames()
    }
}

impl Drop for XdpPort {
    fn drop(&mut self) {
        self.pool().detach();
    }
}
