//! The sending half of packet mode: frames wait for one `sendmmsg` per batch.
//!
//! Owns the sending socket and the buffers that are not ring slots. Never receives, never allocates
//! after `open`.
#![expect(unsafe_code, reason = "message headers point to frames")]

use crate::{
    config::{Config, ETHERNET_BYTES},
    error::OpenError,
    interface::Interface,
    sys::{self, Mapping},
};
use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    ptr::NonNull,
};

/// Buffers of our own, and the frames that wait for the next `sendmmsg`.
pub(crate) struct PacketSender {
    pub(crate) fd: OwnedFd,
    pub(crate) ifindex: u32,
    pub(crate) buffers: Mapping,
    pub(crate) frame_bytes: usize,
    pub(crate) free: Vec<u32>,
    pub(crate) total: u32,
    pub(crate) held: Option<u32>,
    /// Frames that may wait; the vectors below have room for so many from the start.
    pub(crate) waiting_max: usize,
    /// Vectors of the waiting frames; `headers[i]` points to `waiting[i]`.
    pub(crate) waiting: Vec<libc::iovec>,
    pub(crate) headers: Vec<libc::mmsghdr>,
    /// Buffers of our own among the waiting.
    pub(crate) borrowed: Vec<u32>,
    pub(crate) tx_frames: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) no_frame: u64,
    pub(crate) dropped: u64,
    pub(crate) invalid: u64,
    pub(crate) calls: u64,
}

// SAFETY: the raw pointers are into memory that this value owns (buffers, `waiting`) or that the
// port owning it owns (ring slots); they are used by one thread at a time (`&mut self`).
unsafe impl Send for PacketSender {}

impl PacketSender {
    pub(crate) fn open(
        config: &Config,
        interface: &Interface,
        frame_bytes: usize,
    ) -> Result<Self, OpenError> {
        let fd = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
            .map_err(OpenError::kernel("opening a packet socket"))?;
        // Protocol 0: this socket never receives.
        bind(&fd, interface, 0)?;
        sys::send_as_devices_can(fd.as_fd())
            .map_err(OpenError::kernel("making room for frames to send"))?;
        let on: libc::c_int = 1;
        sys::set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &on)
            .map_err(OpenError::kernel("passing the queueing discipline by"))?;
        let batch = config.batch;
        // All of a batch waiting, one held for the caller, one being filled with a segment.
        let total = batch + 2;
        let buffers = Mapping::anonymous(total as usize * frame_bytes)
            .map_err(OpenError::kernel("reserving packet buffers"))?;
        Ok(Self {
            fd,
            ifindex: interface.index,
            buffers,
            frame_bytes,
            free: (0..total).rev().collect(),
            total,
            held: None,
            waiting_max: batch as usize,
            waiting: Vec::with_capacity(batch as usize),
            headers: Vec::with_capacity(batch as usize),
            borrowed: Vec::with_capacity(total as usize),
            tx_frames: 0,
            tx_bytes: 0,
            no_frame: 0,
            dropped: 0,
            invalid: 0,
            calls: 0,
        })
    }

    pub(crate) fn buffer(&self, index: u32) -> NonNull<u8> {
        debug_assert!(index < self.total);
        // SAFETY: inside of the mapping, which has `total` buffers.
        unsafe { self.buffers.start().add(index as usize * self.frame_bytes) }
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.flush();
        }
        self.free.pop()
    }

    pub(crate) fn frame(&mut self) -> Option<&mut [u8]> {
        let index = match self.held {
            Some(index) => index,
            None => match self.take() {
                Some(index) => index,
                None => {
                    self.no_frame += 1;
                    return None;
                }
            },
        };
        self.held = Some(index);
        let start = self.buffer(index);
        // SAFETY: a held buffer is neither free nor waiting, and the slice borrows `self`.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.frame_bytes) })
    }

    pub(crate) fn send(&mut self, len: usize) {
        if let Some(index) = self.held.take() {
            self.transmit(self.buffer(index), Some(index), len);
        }
    }

    /// Lets a frame wait for the next flush. `index` is that of its buffer if it is one of ours.
    pub(crate) fn transmit(&mut self, start: NonNull<u8>, index: Option<u32>, len: usize) {
        if len < ETHERNET_BYTES as usize || len > self.frame_bytes {
            self.invalid += 1;
            self.free.extend(index);
            return;
        }
        if self.waiting.len() >= self.waiting_max {
            self.flush();
        }
        self.waiting.push(libc::iovec { iov_base: start.as_ptr().cast(), iov_len: len });
        self.borrowed.extend(index);
        self.tx_frames += 1;
        self.tx_bytes += len as u64;
    }

    /// Gives all waiting frames to the kernel, in order. What it refuses twice is dropped and
    /// counted.
    pub(crate) fn flush(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        self.headers.clear();
        for vector in &mut self.waiting {
            // SAFETY: all-zero bytes are a valid header: no name, no control data.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            self.headers.push(header);
        }
        let mut sent = 0;
        let mut retried = false;
        while sent < self.headers.len() {
            let rest = &mut self.headers[sent..];
            self.calls += 1;
            // SAFETY: the headers point to vectors, and those to frames, that nobody touches until
            // this returns.
            let count = unsafe {
                libc::sendmmsg(
                    self.fd.as_raw_fd(),
                    rest.as_mut_ptr(),
                    rest.len() as libc::c_uint,
                    libc::MSG_DONTWAIT,
                )
            };
            if count > 0 {
                sent += count as usize;
                retried = false;
            } else if retried {
                // The first of the rest is refused (queue full, interface down): go on with the
                // next.
                self.dropped += 1;
                self.tx_frames -= 1;
                self.tx_bytes -= self.waiting[sent].iov_len as u64;
                sent += 1;
                retried = false;
            } else {
                retried = true;
            }
        }
        self.waiting.clear();
        self.free.append(&mut self.borrowed);
    }
}

/// Binds a packet socket to an interface; with protocol 0 it receives nothing.
pub(crate) fn bind(
    socket: &OwnedFd,
    interface: &Interface,
    protocol: u16,
) -> Result<(), OpenError> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: interface.index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    sys::bind(socket.as_fd(), &address).map_err(OpenError::kernel("binding a packet socket"))
}
