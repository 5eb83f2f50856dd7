//! The sending half of AF_XDP: buffers from hand to the TX rings and back from the completion rings.
//!
//! Owns all buffers of a port and who has which. Never receives, never sleeps, never allocates.
#![expect(unsafe_code, reason = "buffers live in memory shared with the kernel")]

use crate::{
    abi::Descriptor,
    config::ETHERNET_BYTES,
    frames::{FrameId, Frames, Owner},
    ring::{Consumer, Producer},
    socket::Umem,
    sys,
};
use std::os::fd::RawFd;

/// The sending half of all queues, and all buffers.
pub(crate) struct XdpSender {
    pub(crate) umem: Umem,
    pub(crate) frames: Frames,
    pub(crate) queues: Vec<SendQueue>,
    /// Where frames go at the moment.
    pub(crate) current: usize,
    /// The buffer that [`XdpSender::frame`] gave and that is not sent yet.
    pub(crate) held: Option<FrameId>,
    pub(crate) tx_frames: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) no_frame: u64,
    pub(crate) ring_full: u64,
    pub(crate) invalid: u64,
    pub(crate) wakeups: u64,
}

pub(crate) struct SendQueue {
    pub(crate) tx: Producer<Descriptor>,
    pub(crate) completion: Consumer<u64>,
    pub(crate) fd: RawFd,
    /// Buffers put into the TX ring and not yet taken from the completion ring.
    pub(crate) with_kernel: u32,
}

impl XdpSender {
    pub(crate) fn frame(&mut self) -> Option<&mut [u8]> {
        let frame = match self.held {
            Some(frame) => frame,
            None => self.take()?,
        };
        self.held = Some(frame);
        // SAFETY: the held buffer is in no ring, and the slice borrows `self`, so there is no second one.
        Some(unsafe { self.umem.slice(self.umem.frame_address(frame)) })
    }

    pub(crate) fn take(&mut self) -> Option<FrameId> {
        if let Some(frame) = self.frames.take(Owner::Hand) {
            return Some(frame);
        }
        for queue in 0..self.queues.len() {
            self.kick(queue);
        }
        let frame = self.frames.take(Owner::Hand);
        if frame.is_none() {
            self.no_frame += 1;
        }
        frame
    }

    pub(crate) fn send(&mut self, len: usize) {
        if let Some(frame) = self.held.take() {
            let address = self.umem.frame_address(frame);
            self.transmit(frame, address, len);
        }
    }

    /// Puts a buffer in hand into the current TX ring; drops and counts it if that stays full.
    pub(crate) fn transmit(&mut self, frame: FrameId, address: u64, len: usize) {
        // The kernel takes a bad descriptor without ever completing it: the buffer would be lost.
        if len < ETHERNET_BYTES as usize || len > self.umem.frame_bytes() {
            self.invalid += 1;
            self.frames.put(frame, Owner::Hand);
            return;
        }
        let descriptor = Descriptor {
            addr: address,
            len: len as u32,
            options: 0,
        };
        let mut pushed = self.queues[self.current].tx.push(descriptor);
        if !pushed {
            self.kick(self.current);
            pushed = self.queues[self.current].tx.push(descriptor);
        }
        if !pushed {
            self.ring_full += 1;
            self.frames.put(frame, Owner::Hand);
            return;
        }
        self.frames.give(frame, Owner::Hand, Owner::Transmit);
        self.queues[self.current].with_kernel += 1;
        self.tx_frames += 1;
        self.tx_bytes += len as u64;
    }

    /// Takes the buffers of sent frames back; returns how many.
    pub(crate) fn reap(&mut self, queue: usize) -> u32 {
        let queue = &mut self.queues[queue];
        if queue.with_kernel == 0 {
            return 0;
        }
        let mut taken = 0;
        while let Some(address) = queue.completion.pop() {
            self.frames
                .put(self.umem.frame_at(address), Owner::Transmit);
            taken += 1;
        }
        if taken > 0 {
            queue.completion.release();
            queue.with_kernel -= taken;
        }
        taken
    }

    /// Shows what is in a TX ring to the kernel; returns how many frames it has not taken yet.
    pub(crate) fn prepare(&mut self, queue: usize) -> u32 {
        let queue = &mut self.queues[queue];
        if queue.with_kernel == 0 {
            return 0;
        }
        let pending = queue.tx.pending();
        if pending > 0 {
            queue.tx.publish();
        }
        pending
    }

    /// Are there frames that the kernel has not taken?
    pub(crate) fn unsent(&mut self) -> bool {
        self.queues
            .iter_mut()
            .any(|q| q.with_kernel > 0 && q.tx.pending() > 0)
    }

    /// Makes the kernel send what is in a TX ring. What it does not take now stays for the next call.
    pub(crate) fn kick(&mut self, queue: usize) {
        let mut pending = self.prepare(queue);
        while pending > 0 {
            self.wakeups += 1;
            let result = sys::kick(self.queues[queue].fd);
            let progress = self.reap(queue) > 0;
            // An error says that frames are left: its limit per call is reached (EAGAIN), a frame was lost in
            // the device's queue (EBUSY), there is no memory (ENOBUFS), or the interface is gone.
            if result.is_ok() || !progress {
                break;
            }
            pending = self.prepare(queue);
        }
        self.reap(queue);
    }
}
