//! What the namespace tests share: a running scene, raw frames, and what the kernel says about a
//! namespace.
//!
//! Test support only. Nothing of the product depends on it.

mod failure;
mod kernel;
mod raw;
mod scene;
mod wait;

pub use kernel::{TcpSocket, established, kernel_counters, listeners, nft, tcp_sockets};
pub use raw::{FrameSocket, Link, RawIp, segment_of, tcp_packet};
pub use scene::{HTTP_PORT, REDIS_POLICY, REDIS_PORT, Scene, always, never, own_v4};
pub use wait::{DEADLINE, until, write_whole};
