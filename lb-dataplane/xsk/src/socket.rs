//! One AF_XDP socket with its four rings, and the UMEM that all sockets of a port share.
//!
//! Owns descriptors and mappings. Never decides which frame goes where.
#![expect(unsafe_code, reason = "rings and buffers live in memory shared with the kernel")]

use crate::{
    abi::{self, Descriptor, MmapOffsets, RingOffset, UmemRegistration, XdpStatistics},
    config::{CHUNK_BYTES_MAX, Config, FRAME_BYTES, XDP_FRAME_BYTES_MAX},
    error::OpenError,
    frames::FrameId,
    interface::Interface,
    ring::{Consumer, Producer, RingMemory},
    sys::{self, Mapping},
};
use std::{
    io,
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    thread,
    time::{Duration, Instant},
};

/// The kernel frees the queue of a closed socket a little later, in a work item: the queue of a
/// predecessor that was just killed, or of the mode tried before, is busy for so long at most.
const QUEUE_RELEASE_MAX: Duration = Duration::from_secs(1);
/// How often to try meanwhile.
const QUEUE_RELEASE_RETRY: Duration = Duration::from_millis(2);

/// The memory of all buffers.
#[derive(Debug)]
pub(crate) struct Umem {
    memory: Mapping,
    chunk_bytes: u32,
    frame_bytes: u32,
}

impl Umem {
    /// Bytes of one chunk: the kernel's headroom and a frame. `None` if no chunk is so large.
    pub(crate) fn chunk_bytes(frame_bytes: u32) -> Option<u32> {
        if frame_bytes <= FRAME_BYTES {
            Some(abi::UMEM_CHUNK_BYTES_MIN)
        } else if frame_bytes <= XDP_FRAME_BYTES_MAX {
            Some(CHUNK_BYTES_MAX)
        } else {
            None
        }
    }

    pub(crate) fn new(frames: u32, chunk_bytes: u32) -> Result<Self, OpenError> {
        let bytes = frames as usize * chunk_bytes as usize;
        let memory =
            Mapping::anonymous(bytes).map_err(OpenError::kernel("reserving packet buffers"))?;
        Ok(Self { memory, chunk_bytes, frame_bytes: chunk_bytes - abi::XDP_PACKET_HEADROOM })
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes as usize
    }

    /// The address for the fill ring.
    pub(crate) fn fill_address(&self, frame: FrameId) -> u64 {
        u64::from(frame.0) * u64::from(self.chunk_bytes)
    }

    /// The address at which frames of our own start: where the kernel puts received ones, so that
    /// both look alike.
    pub(crate) fn frame_address(&self, frame: FrameId) -> u64 {
        self.fill_address(frame) + u64::from(abi::XDP_PACKET_HEADROOM)
    }

    /// The buffer that an address of any ring lies in.
    pub(crate) fn frame_at(&self, address: u64) -> FrameId {
        // Addresses are below the UMEM's size, which `Self::new` computed from a u32 of frames.
        FrameId((address / u64::from(self.chunk_bytes)) as u32)
    }

    /// The usable bytes from `address` on.
    ///
    /// # Safety
    /// The caller owns the buffer that `address` lies in (it is in no ring), and makes no other
    /// slice of it while this one lives.
    pub(crate) unsafe fn slice<'a>(&self, address: u64) -> &'a mut [u8] {
        let start = address as usize;
        let bytes = self.frame_bytes as usize;
        assert!(
            address % u64::from(self.chunk_bytes) + u64::from(self.frame_bytes)
                <= u64::from(self.chunk_bytes)
                && start + bytes <= self.memory.bytes(),
            "the kernel gave a frame at {address}, outside of its buffer"
        );
        // SAFETY: inside of the mapping (just checked); exclusive by contract; bytes have no
        // invalid values.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().add(start).as_ptr(), bytes) }
    }
}

/// One socket. Whoever takes the rings out must keep the mappings, which they point into, and the
/// descriptor.
#[derive(Debug)]
pub(crate) struct XskSocket {
    pub(crate) rx: Consumer<Descriptor>,
    pub(crate) tx: Producer<Descriptor>,
    /// Of its queue, if it is the first socket there.
    pub(crate) of_queue: Option<QueueRings>,
    pub(crate) anchor: Anchor,
}

/// The kernel's rings of one queue.
#[derive(Debug)]
pub(crate) struct QueueRings {
    pub(crate) fill: Producer<u64>,
    pub(crate) completion: Consumer<u64>,
}

/// What the rings of a socket live in.
#[derive(Debug)]
pub(crate) struct Anchor {
    _mappings: Vec<Mapping>,
    fd: OwnedFd,
}

/// What a socket is opened for.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// The first of all: registers the buffers.
    First(&'a Umem),
    /// The first of another queue; shares the buffers when it is bound.
    FirstOfQueue,
    /// Another of a queue; shares the queue's rings when it is bound.
    Further,
}

impl Anchor {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The kernel's own counters.
    pub(crate) fn statistics(&self) -> io::Result<XdpStatistics> {
        sys::get_option(self.fd(), libc::SOL_XDP, libc::XDP_STATISTICS)
    }
}

fn kernel(operation: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    OpenError::kernel(operation)
}

impl XskSocket {
    /// Opens a socket and makes its rings.
    pub(crate) fn open(config: &Config, place: Place<'_>) -> Result<Self, OpenError> {
        let fd =
            sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(|e| match e.raw_os_error() {
                Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) => OpenError::NoAfXdp,
                _ => OpenError::kernel("opening an AF_XDP socket")(e),
            })?;
        if let Place::First(umem) = place {
            register_umem(&fd, umem)?;
        }
        let make = |name, entries: u32, operation| {
            let entries = &(entries as libc::c_int);
            sys::set_option(fd.as_fd(), libc::SOL_XDP, name, entries).map_err(kernel(operation))
        };
        let (rx_entries, tx_entries) = (config.rx_ring, config.tx_ring);
        let (fill_entries, completion_entries) = (config.fill_ring(), config.completion_ring());
        let first_of_queue = !matches!(place, Place::Further);
        if first_of_queue {
            let (fill, completion) = (libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING);
            make(fill, fill_entries, "making the fill ring")?;
            make(completion, completion_entries, "making the completion ring")?;
        }
        make(libc::XDP_RX_RING, rx_entries, "making the RX ring")?;
        make(libc::XDP_TX_RING, tx_entries, "making the TX ring")?;
        // Linux 6.17 and newer send as many frames per call as asked for; older ones 32. Its limit
        // is the ring's size. Without it `sendto` is only called more often.
        let _ = sys::set_option(
            fd.as_fd(),
            libc::SOL_XDP,
            abi::XDP_MAX_TX_SKB_BUDGET,
            &(tx_entries as libc::c_int),
        );
        let offsets: MmapOffsets =
            sys::get_option(fd.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
                .map_err(kernel("asking where the rings are"))?;
        // Page offsets do not fit libc's types on 32-bit targets; we are 64-bit (the fill ring's is
        // 1 << 32).
        let map = |at: RingOffset, entries: u32, entry_bytes: usize, page: i64| {
            let bytes = at.desc as usize + entries as usize * entry_bytes;
            Mapping::of_socket(fd.as_fd(), bytes, page).map_err(kernel("mapping a ring"))
        };
        let (address_bytes, descriptor_bytes) = (size_of::<u64>(), size_of::<Descriptor>());
        let (rx_page, tx_page) = (libc::XDP_PGOFF_RX_RING, libc::XDP_PGOFF_TX_RING);
        let rx = map(offsets.rx, rx_entries, descriptor_bytes, rx_page)?;
        let tx = map(offsets.tx, tx_entries, descriptor_bytes, tx_page)?;
        // SAFETY: mappings and offsets are the kernel's own; each ring gets its one user side here,
        // and the mappings are kept beside the rings.
        let (rx_ring, tx_ring) = unsafe {
            (
                Consumer::new(at(&rx, offsets.rx, rx_entries)),
                Producer::new(at(&tx, offsets.tx, tx_entries)),
            )
        };
        let mut mappings = vec![rx, tx];
        let mut of_queue = None;
        if first_of_queue {
            let page = libc::XDP_UMEM_PGOFF_FILL_RING.cast_signed();
            let fill = map(offsets.fr, fill_entries, address_bytes, page)?;
            let page = libc::XDP_UMEM_PGOFF_COMPLETION_RING.cast_signed();
            let completion = map(offsets.cr, completion_entries, address_bytes, page)?;
            // SAFETY: as above.
            of_queue = Some(unsafe {
                QueueRings {
                    fill: Producer::new(at(&fill, offsets.fr, fill_entries)),
                    completion: Consumer::new(at(&completion, offsets.cr, completion_entries)),
                }
            });
            mappings.extend([fill, completion]);
        }
        Ok(Self { rx: rx_ring, tx: tx_ring, of_queue, anchor: Anchor { _mappings: mappings, fd } })
    }

    /// Binds to a queue, in copy mode and with wake-ups only when needed; `share` is the first
    /// socket, of this queue if it has one already.
    pub(crate) fn bind(
        &self,
        interface: &Interface,
        queue: u32,
        share: Option<BorrowedFd<'_>>,
    ) -> Result<(), OpenError> {
        // A sharing socket takes the mode and the wake-up flag of the first.
        let (flags, shared) = match share {
            None => (libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP, 0),
            Some(first) => (libc::XDP_SHARED_UMEM, first.as_raw_fd().cast_unsigned()),
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: interface.index,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared,
        };
        let deadline = Instant::now() + QUEUE_RELEASE_MAX;
        let mut bound = sys::bind(self.anchor.fd(), &address);
        while matches!(&bound, Err(e) if e.raw_os_error() == Some(libc::EBUSY))
            && Instant::now() < deadline
        {
            thread::sleep(QUEUE_RELEASE_RETRY);
            bound = sys::bind(self.anchor.fd(), &address);
        }
        bound.map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => OpenError::QueueBusy { name: interface.name.clone(), queue },
            Some(libc::ENETDOWN) => OpenError::InterfaceDown { name: interface.name.clone() },
            _ => OpenError::kernel("binding an AF_XDP socket to a queue")(e),
        })
    }
}

fn register_umem(fd: &OwnedFd, umem: &Umem) -> Result<(), OpenError> {
    let bytes = umem.memory.bytes() as u64;
    let registration = UmemRegistration {
        addr: umem.memory.start().as_ptr() as u64,
        len: bytes,
        chunk_size: umem.chunk_bytes,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    sys::set_option(fd.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &registration).map_err(|e| {
        match e.raw_os_error() {
            Some(libc::ENOBUFS) => OpenError::Memlock { bytes },
            _ => OpenError::kernel("registering packet buffers")(e),
        }
    })
}

/// The parts of a ring in its mapping.
fn at<T>(mapping: &Mapping, offset: RingOffset, size: u32) -> RingMemory<T> {
    let part = |bytes: u64| -> NonNull<u8> {
        assert!((bytes as usize) < mapping.bytes(), "ring offset {bytes}");
        // SAFETY: inside of the mapping (just checked).
        unsafe { mapping.start().add(bytes as usize) }
    };
    RingMemory {
        producer: part(offset.producer).cast(),
        consumer: part(offset.consumer).cast(),
        entries: part(offset.desc).cast(),
        size,
    }
}
