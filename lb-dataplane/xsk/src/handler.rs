//! What the caller is given for each frame, and what it gives back.
//!
//! Owns the ways out for frames of the caller's own, in whichever mode. Knows nothing of rings.

use crate::{host_send, packet_send::PacketSender, xdp_send::XdpSender};

/// What becomes of a received frame.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Its buffer now holds a frame of this length, which is sent.
    Transmit(usize),
    /// Its buffer is free again.
    Release,
}

/// Sends frames of one's own, beside received ones.
pub struct Tx<'a> {
    sender: Sender<'a>,
    pub(crate) host: Option<&'a mut host_send::Sender>,
}

enum Sender<'a> {
    Xdp(&'a mut XdpSender),
    Packet(&'a mut PacketSender),
}

impl<'a> Tx<'a> {
    pub(crate) fn xdp(sender: &'a mut XdpSender) -> Self {
        let sender = Sender::Xdp(sender);
        Self { sender, host: None }
    }

    pub(crate) fn packet(sender: &'a mut PacketSender) -> Self {
        let sender = Sender::Packet(sender);
        Self { sender, host: None }
    }

    /// The same, with another way out.
    pub(crate) fn with_host<'b>(&'b mut self, host: &'b mut host_send::Sender) -> Tx<'b> {
        let sender = match &mut self.sender {
            Sender::Xdp(sender) => Sender::Xdp(sender),
            Sender::Packet(sender) => Sender::Packet(sender),
        };
        let host = Some(host);
        Tx { sender, host }
    }

    /// A buffer to write a frame into, for the interface's MTU and 1,778 at least; the same one
    /// until it is sent. `None` (counted) if all are in use.
    pub fn frame(&mut self) -> Option<&mut [u8]> {
        match &mut self.sender {
            Sender::Xdp(sender) => sender.frame(),
            Sender::Packet(sender) => sender.frame(),
        }
    }

    /// Sends the first `len` bytes of the buffer that [`Self::frame`] gave last; nothing without
    /// one.
    pub fn send(&mut self, len: usize) {
        if self.host.is_some() && self.send_to_host(len) {
            return;
        }
        match &mut self.sender {
            Sender::Xdp(sender) => sender.send(len),
            Sender::Packet(sender) => sender.send(len),
        }
    }

    /// False if the frame does not go there. Its buffer stays with us.
    fn send_to_host(&mut self, len: usize) -> bool {
        let frame = match &mut self.sender {
            Sender::Xdp(sender) => sender.frame(),
            Sender::Packet(sender) => sender.frame(),
        };
        match (&mut self.host, frame) {
            (Some(host), Some(frame)) if host_send::Sender::takes(frame) => {
                host.send(&frame[..len.min(frame.len())]);
                true
            }
            _ => false,
        }
    }
}

/// What becomes of frames. A closure is one that looks at none ahead.
pub trait Handler {
    /// One of several frames that come next, and leave as they are for now.
    fn look(&mut self, _frame: &[u8]) {}

    /// Those were all of these.
    fn looked(&mut self) {}

    /// A buffer with a frame at its start and the frame's length, see [`Port::process`].
    fn frame(&mut self, buffer: &mut [u8], len: usize, tx: &mut Tx<'_>) -> Disposition;
}

impl<F: FnMut(&mut [u8], usize, &mut Tx<'_>) -> Disposition> Handler for F {
    fn frame(&mut self, buffer: &mut [u8], len: usize, tx: &mut Tx<'_>) -> Disposition {
        self(buffer, len, tx)
    }
}
