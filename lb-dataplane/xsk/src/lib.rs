//! Packet I/O of the dataplane: AF_XDP, and AF_PACKET where that is not possible.
//!
//! Gives one thread, or several, the frames of one interface (and, if asked to, of its host) that
//! belong to the dataplane, each in a buffer that may be changed and sent in place, and leaves all
//! others to the kernel. Knows addresses and ports, no flows.
//!
//! | module | owns |
//! |---|---|
//! | `port` | the choice of the mode |
//! | `handler` | what the caller is given for each frame |
//! | `spin` | whether to wait awake |
//! | `xdp`, `xdp_send` | one worker's frames between rings, for native and generic mode |
//! | `pool` | what the workers share: buffers, fill and completion rings, the program |
//! | `packet`, `packet_send` | the same with packet sockets; `gso` cuts large frames |
//! | `host` | the way through the host's own stack, on a node's network |
//! | `host_send`, `host_pieces` | the way out by it, cut where that is allowed and needed |
//! | `socket`, `ring`, `frames` | AF_XDP sockets, their rings, who has which buffer |
//! | `steer`, `bpf/` | the programs that tell our frames from the others |
//! | `matched` | what these match, changed from whatever thread |
//! | `abi`, `sys` | the kernel's structures and calls |
//!
//! Frames are as the sender made them: with offloads on, a local veth peer leaves only the
//! pseudo-header's sum in the checksum field (CHECKSUM_PARTIAL), which the caller completes.
//!
//! # Decisions
//!
//! - **Generic XDP is no fallback**: on a veth or macvlan it sees frames after the sender's
//!   segmentation offload was skipped, elsewhere after GRO, and the receiving side cannot always
//!   turn that off. `auto` goes from native to packet mode, which cuts such frames up. Where
//!   generic is asked for, lost frames are counted (`io_drops_total{reason="rx_oversize"}`) and
//!   `status` says what to do.

mod abi;
mod capability;
mod config;
mod error;
mod frames;
mod gso;
mod handler;
mod host;
mod host_errors;
mod host_pieces;
mod host_send;
mod interface;
mod matched;
mod mode;
mod packet;
mod packet_send;
mod pool;
mod port;
mod ring;
mod socket;
mod spin;
mod stats;
mod steer;
mod sys;
mod xdp;
mod xdp_send;

pub use capability::probe_capabilities;
pub use config::{
    ADDRESSES_MAX, BACKENDS_MAX, Config, FRONTENDS_MAX, QUEUE_BYTES_MAX, Steering, WORKERS_MAX,
    Workers,
};
pub use error::{Missing, MissingList, OpenError};
pub use frames::FrameAccount;
pub use handler::{Disposition, Handler, Tx};
pub use host_send::HOST_MAC;
pub use matched::{SteeringMaps, ports_of};
pub use mode::{Mode, ModeChoice};
pub use port::Port;
pub use stats::{HostStats, KernelStats, Stats, SteeringStats};
