//! A pod: its kernel, its adopter, its server process, and their ends.
//!
//! Owns the three together and what a crash or a restart does to them. What they do while they live
//! is in their modules.

pub mod adopter;
pub mod kernel;
pub mod process;
pub mod restored;

use crate::clock::Time;
use crate::talk::{Language, Request};
use adopter::Question;
use baton_packet::{Decoded, EndMark, Flags, Mac, SeqNumber, decode, put_end_mark};
use kernel::Kernel;
use process::{Process, ProcessSpec};
use std::{collections::BTreeSet, net::SocketAddr};

/// Why a pod's socket ended, as only the pod knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its application closed it on purpose.
    Meant,
    /// Its application closed it because the peer had.
    PeerClosed,
    /// Its adopter let go of it, its request unread.
    Released,
    /// Its process died, or its listener closed before the connection was accepted.
    Crash,
}

/// What a pod tells the world.
#[derive(Clone, Debug)]
pub enum PodNote {
    /// A request was executed.
    Executed {
        /// Which.
        request: Request,
        /// The number of the execution.
        execution: u32,
        /// Over which connection.
        peer: SocketAddr,
        /// Whom it sees there instead of the dataplane.
        sees: Option<SocketAddr>,
    },
    /// A socket was made of an adoption.
    Adopted {
        /// For this connection.
        peer: SocketAddr,
        /// From this byte of the client's.
        seq: SeqNumber,
        /// And this one of the server's.
        ack: SeqNumber,
    },
    /// host-shim was told of a Transfer.
    TransferAsked(Question),
    /// Bytes that no client sent in this order.
    Wrong(String),
}

/// One pod.
pub struct Pod {
    /// Its kernel and adopter.
    pub kernel: Kernel,
    /// Its server, dead or alive.
    pub process: Process,
    /// Peers that were sent a mark: its repetitions have it, too.
    exited: BTreeSet<SocketAddr>,
}

impl Pod {
    /// A pod whose server listens.
    #[must_use]
    pub fn new(
        index: u32,
        at: SocketAddr,
        macs: (Mac, Mac),
        spec: ProcessSpec,
        language: Language,
        seed: u64,
    ) -> Self {
        let mut kernel = Kernel::new(at, macs, spec.backlog, spec.buffer, spec.delayed_ack, seed);
        kernel.listen();
        Self {
            kernel,
            process: Process::new(index, spec, language, seed ^ 0x5eed),
            exited: BTreeSet::new(),
        }
    }

    /// A frame arrived.
    pub fn frame(&mut self, now: Time, frame: &[u8], out: &mut Vec<Vec<u8>>) {
        let from = out.len();
        self.kernel.frame(now, frame, out);
        self.mark_repeated(&mut out[from..]);
        self.step(now, out);
    }

    /// Lets kernel and process do what is due.
    pub fn step(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        let from = out.len();
        self.kernel.poll(now, out);
        let by_process = out.len();
        self.process.step(now, &mut self.kernel, out);
        if self.marks_exits() && self.process.is_alive() {
            // What it closes while it listens. (What waits behind data is sent by the kernel later,
            // in nobody's name.)
            for frame in &mut out[by_process..] {
                mark(frame, EndMark::Listening);
            }
        }
        self.kernel.poll(now, out);
        self.mark_repeated(&mut out[from..]);
    }

    /// Whether its adopter marks the last segments of a process that exits.
    fn marks_exits(&self) -> bool {
        self.kernel.adopter.told.marks_exits
    }

    fn mark_repeated(&self, frames: &mut [Vec<u8>]) {
        if self.exited.is_empty() {
            return;
        }
        for frame in frames {
            // A RST to a tuple without a socket is in nobody's name.
            if let Some((peer, flags)) = end_to(frame)
                && flags.has(Flags::FIN)
                && self.exited.contains(&peer)
                && self.kernel.cause(&peer) == Some(Cause::Crash)
            {
                mark(frame, EndMark::Exiting);
            }
        }
    }

    /// When [`Pod::step`] has to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.kernel.deadline().into_iter().chain(self.process.deadline()).min()
    }

    /// `kill -9` of the process: Linux closes its sockets in its name.
    pub fn crash(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        if self.process.die() {
            let from = out.len();
            self.kernel.close_listener(now, out);
            self.kernel.forsake_all(now, out);
            if self.marks_exits() {
                for frame in &mut out[from..] {
                    if mark(frame, EndMark::Exiting) {
                        self.exited.extend(end_to(frame).map(|(peer, _)| peer));
                    }
                }
            }
        }
    }

    /// The process starts again. With `anew` the pod is another one at the same address: nothing of
    /// its kernel's or adopter's memory is left.
    pub fn restart(&mut self, now: Time, anew: bool) {
        if !self.process.is_alive() {
            if anew {
                self.kernel.forget_all(now);
            }
            self.process.start(now);
            self.kernel.listen();
        }
    }
}

/// As the adopter's program at egress does.
fn mark(frame: &mut [u8], mark: EndMark) -> bool {
    matches!(decode(frame), Ok(Decoded::Tcp(segment)) if put_end_mark(frame, &segment, mark))
}

/// Whom a segment goes to, and its flags.
fn end_to(frame: &[u8]) -> Option<(SocketAddr, Flags)> {
    let Ok(Decoded::Tcp(segment)) = decode(frame) else {
        return None;
    };
    let peer = SocketAddr::new(segment.dst, segment.dst_port);
    Some((peer, segment.flags))
}
