//! Captures: frames of chosen flows, copied on their way. What AF_XDP takes is seen by no packet
//! socket, so tcpdump cannot.
//!
//! Owns what a capture is asked for and its limits. The [`Tap`] is the packet thread's part,
//! [`pcapng`] the file's form; who may ask, and the stream, are the control API's.
//!
//! # Decisions
//!
//! - **Captures copy in the I/O glue**: the engine only classifies a frame
//!   (`engine/src/reports/flow_lookup.rs`), before and after it has it, since a frame may begin or
//!   end its flow. Two bounded queues of buffers that exist already go between packet and control
//!   thread; without a capture there is one branch per frame. The file is written by own code of
//!   some hundred lines: of `pcap-file` there are only release candidates since 2.0; tests read the
//!   files with it.

mod drains;
pub mod pcapng;
mod tap;
#[cfg(test)]
pub mod tap_tests;
pub mod through;

pub use drains::{Drains, taps};
pub use tap::{Counts, Drain, Packet, Tap, tap};

use baton_api::Clients;
use std::time::Duration;

/// Copies that wait for the control thread, in all: 8,192 frames' headers.
pub const RING_BYTES: usize = 2 << 20;
/// The same with payload: 4,096 whole frames.
pub const RING_PAYLOAD_BYTES: usize = 8 << 20;
/// Copied bytes per second. More is not read in time by people, and takes the packet thread from
/// its work: at 5 GB/s of copying this is 0.3 % of it.
pub const RATE_BYTES: u64 = 16 << 20;
/// Bytes of one capture's file: as much as Wireshark opens with ease.
pub const FILE_MAX_BYTES: u64 = 256 << 20;
/// Without another word.
pub const TIME_DEFAULT: Duration = Duration::from_secs(10);
/// Less than a connection of the control API may last.
pub const TIME_MAX: Duration = Duration::from_secs(240);
/// Ethernet with IPv6 and eight extension headers of the usual lengths, and TCP with all options,
/// or an ICMP error that quotes such: more than any header here has.
pub const SNAPLEN_HEADERS: usize = 256;
/// A frame's buffer.
pub const SNAPLEN_MAX: usize = 2_048;
/// An Ethernet and an IPv4 header: nothing less is of use.
pub const SNAPLEN_MIN: usize = 34;
/// Names of policies or backends in one filter: a policy has 16 listeners at most.
pub const NAMES_MAX: usize = 32;

/// What is to be captured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only flows of these clients.
    pub clients: Option<Clients>,
    /// Only flows of these policies.
    pub policies: Vec<String>,
    /// Only flows of these backends, and what is said to them beside flows.
    pub backends: Vec<String>,
}

/// How much of it, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Which frames.
    pub filter: Filter,
    /// What clients and servers say too; otherwise headers only.
    pub payload: bool,
    /// Bytes of a frame at most.
    pub snaplen: usize,
    /// How long.
    pub time: Duration,
}

impl Filter {
    /// For the head of the file.
    pub fn words(&self) -> String {
        let mut words = Vec::new();
        words.extend(self.clients.map(|clients| format!("client {clients}")));
        words.extend(self.policies.iter().map(|name| format!("policy {name}")));
        words.extend(self.backends.iter().map(|name| format!("backend {name}")));
        if words.is_empty() {
            return "every frame".to_owned();
        }
        format!("frames of {}", words.join(", "))
    }

    fn is_empty(&self) -> bool {
        self.clients.is_none() && self.policies.is_empty() && self.backends.is_empty()
    }
}
