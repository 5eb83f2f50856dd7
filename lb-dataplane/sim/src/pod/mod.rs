//! A pod: its kernel, its adopter, its server process, and their ends.
//!
//! Owns the three together and what a crash or a restart does to them. What they do while they live is in their modules.

pub mod adopter;
pub mod kernel;
pub mod process;

use crate::clock::Time;
use crate::talk::{Language, Request};
use baton_packet::{Mac, SeqNumber};
use kernel::Kernel;
use process::{Process, ProcessSpec};
use std::net::SocketAddr;

/// Why a pod's socket ended, as only the pod knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its application closed it on purpose.
    Meant,
    /// Its application closed it because the peer had.
    PeerClosed,
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
    /// Bytes that no client sent in this order.
    Wrong(String),
}

/// One pod.
pub struct Pod {
    /// Its kernel and adopter.
    pub kernel: Kernel,
    /// Its server, dead or alive.
    pub process: Process,
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
        }
    }

    /// A frame arrived.
    pub fn frame(&mut self, now: Time, frame: &[u8], out: &mut Vec<Vec<u8>>) {
        self.kernel.frame(now, frame, out);
        self.step(now, out);
    }

    /// Lets kernel and process do what is due.
    pub fn step(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        self.kernel.poll(now, out);
        self.process.step(now, &mut self.kernel, out);
        self.kernel.poll(now, out);
    }

    /// When [`Pod::step`] has to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.kernel
            .deadline()
            .into_iter()
            .chain(self.process.deadline())
            .min()
    }

    /// `kill -9` of the process: Linux closes its sockets in its name.
    pub fn crash(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        if self.process.die() {
            self.kernel.close_listener(now, out);
            self.kernel.forsake_all(now, out);
        }
    }

    /// The process starts again. With `anew` the pod is another one at the same address: nothing of its kernel's or
    /// adopter's memory is left.
    pub fn restart(&mut self, now: Time, anew: bool) {
        if !self.process.is_alive() {
            if anew {
                self.kernel.forget_all();
            }
            self.process.start(now);
            self.kernel.listen();
        }
    }
}
