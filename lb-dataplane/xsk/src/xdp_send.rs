//! The sending half of AF_XDP: buffers from hand to the TX rings.
//!
//! Owns the TX rings of one worker. Never receives, never sleeps, never allocates.
#![expect(unsafe_code, reason = "buffers live in memory shared with the kernel")]

use crate::{
    abi::Descriptor,
    config::ETHERNET_BYTES,
    frames::{FrameAccount, FrameId, Owner},
    pool::Share,
    ring::Producer,
    sys,
};
use std::os::fd::RawFd;

/// The sending half of a worker's sockets.
pub(crate) struct XdpSender {
    pub(crate) share: Share,
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
    pub(crate) fd: RawFd,
    /// Buffers in the TX ring that the kernel was not shown yet.
    pub(crate) unshown: u32,
    /// When last looked at, the kernel had not taken all that it was shown.
    pub(crate) untaken: bool,
}

impl XdpSender {
    pub(crate) fn frame(&mut self) -> Option<&mut [u8]> {
        let frame = match self.held {
            Some(frame) => frame,
            None => self.take()?,
        };
        self.held = Some(frame);
        let umem = &self.share.pool.umem;
        // SAFETY: the held buffer is in no ring, and the slice borrows `self`, so there is no
        // second one.
        Some(unsafe { umem.slice(umem.frame_address(frame)) })
    }

    pub(crate) fn take(&mut self) -> Option<FrameId> {
        if let Some(frame) = self.share.take(Owner::Hand) {
            return Some(frame);
        }
        for queue in 0..self.queues.len() {
            self.kick(queue);
        }
        let frame = self.share.take(Owner::Hand);
        if frame.is_none() {
            self.no_frame += 1;
        }
        frame
    }

    pub(crate) fn send(&mut self, len: usize) {
        if let Some(frame) = self.held.take() {
            let address = self.share.pool.umem.frame_address(frame);
            self.transmit(frame, address, len);
        }
    }

    /// Puts a buffer in hand into the current TX ring; drops and counts it if that stays full.
    pub(crate) fn transmit(&mut self, frame: FrameId, address: u64, len: usize) {
        // The kernel takes a bad descriptor without ever completing it: the buffer would be lost.
        if len < ETHERNET_BYTES as usize || len > self.share.pool.umem.frame_bytes() {
            self.invalid += 1;
            self.share.put(frame, Owner::Hand);
            return;
        }
        let descriptor = Descriptor { addr: address, len: len as u32, options: 0 };
        let mut pushed = self.queues[self.current].tx.push(descriptor);
        if !pushed {
            self.kick(self.current);
            pushed = self.queues[self.current].tx.push(descriptor);
        }
        if !pushed {
            self.ring_full += 1;
            self.share.put(frame, Owner::Hand);
            return;
        }
        self.share.give(frame, Owner::Hand, Owner::Transmit);
        self.queues[self.current].unshown += 1;
        self.tx_frames += 1;
        self.tx_bytes += len as u64;
    }

    /// Shows what is in a TX ring to the kernel; returns how many frames it has not taken yet.
    fn prepare(&mut self, at: usize) -> u32 {
        let queue = &mut self.queues[at];
        if queue.unshown == 0 && !queue.untaken {
            return 0;
        }
        self.share.sent(at, std::mem::take(&mut queue.unshown));
        let pending = queue.tx.pending();
        if pending > 0 {
            queue.tx.publish();
        }
        queue.untaken = pending > 0;
        pending
    }

    /// Are there frames that the kernel has not taken?
    pub(crate) fn unsent(&mut self) -> bool {
        let mut all = self.queues.iter_mut();
        all.any(|q| (q.unshown > 0 || q.untaken) && q.tx.pending() > 0)
    }

    /// Where all buffers are.
    pub(crate) fn frames(&self) -> FrameAccount {
        let unshown = self.queues.iter().map(|queue| queue.unshown).sum();
        self.share.account(u32::from(self.held.is_some()), unshown)
    }

    /// Makes the kernel send what is in a TX ring. What it does not take now stays for the next
    /// call.
    pub(crate) fn kick(&mut self, queue: usize) {
        let mut pending = self.prepare(queue);
        while pending > 0 {
            self.wakeups += 1;
            let result = sys::kick(self.queues[queue].fd);
            let progress = self.share.reap(queue) > 0;
            // An error says that frames are left: its limit per call is reached (EAGAIN), a frame
            // was lost in the device's queue (EBUSY), there is no memory (ENOBUFS), or the
            // interface is gone.
            if result.is_ok() || !progress {
                break;
            }
            pending = self.prepare(queue);
        }
        self.share.reap(queue);
    }
}
