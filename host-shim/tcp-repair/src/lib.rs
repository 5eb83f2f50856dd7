//! Takes a live TCP connection out of one socket and puts it into another (`TCP_REPAIR`, tcp(7),
//! Linux 3.5; `CAP_NET_ADMIN` in the user namespace that owns the socket's network namespace).
//!
//! Owns freezing, what a connection is made of, its record as bytes, and restoring. It knows no
//! policy, no protocol between shims, and finds no sockets: callers bring a descriptor, of their
//! own or from `pidfd_getfd(2)`.
//!
//! A [`Frozen`] socket has two exits, [`Frozen::commit`] and [`Frozen::abort`]. A bare drop is a
//! bug: it is counted ([`bare_drops`]) and takes the way that cannot make two owners.
//!
//! # What does not come along
//!
//! - The estimate of the round trip: nothing sets it. A restored socket begins with what the
//!   kernel has cached for the destination (`tcp_init_metrics`), and learns by its first byte.
//! - The congestion window, unless its restorer brings a [`Warm`]: no system call sets it. It is
//!   the initial one then.
//! - The peer's last timestamp (`ts_recent`): the next segment brings it.
//! - A socket that has closed its own direction (FIN-WAIT) is not frozen: all is said, and a move
//!   gains nothing.
//!
//! # What it costs
//!
//! A move with 0, 16, 64, 128 KB unread 34, 53, 136, 234 us (p99 110, 210, 372, 452), record and
//! checksum with it: `cargo bench --profile ci -p baton-tcp-repair`, on two cores of a virtual
//! machine beside a load of 3.
//!
//! # Decisions
//!
//! - **An application notices a freeze**: its `recv` and `send` fail with EPERM and EINVAL while
//!   its socket is in repair mode (`tcp_recvmsg_locked`, `tcp_sendmsg_locked`). So this is for
//!   those that cooperate; what a stalled one has not read, the adopter's iterator takes.
//! - **A thawed socket gets its `SO_REUSEADDR` back**: leaving repair mode clears it
//!   (`do_tcp_setsockopt`), and the server's next start could not bind its port.
//! - **A frozen socket is deaf**, by a filter that drops all: in repair mode the kernel goes on
//!   taking and acknowledging what arrives, and after an export nobody would have it. The peer
//!   sends it again.
//! - **A frozen socket sees a window of 0**: in repair mode the kernel goes on sending what is
//!   queued, by its pacing timer, also behind an export. The peer acknowledges such bytes, and
//!   Linux drops what acknowledges more than the restored socket has sent. Found: of five downloads
//!   that moved 20 times each, with BBR on a busy machine, three stood still for good.
//! - **A restored socket repeats the last byte that was sent**, in place of the window probe that
//!   the kernel sends: a probe lies in front of the peer's window, and Linux drops it before it
//!   looks at what it acknowledges. An acknowledgement that the old socket owed would be missing,
//!   and a client that waits for it (Nagle) stand still for 200 ms. The answer to the byte also
//!   gives the new socket its first estimate of the round trip, so that it does not wait 3 s before
//!   its first repetition. With a full congestion window the byte could not leave before the peer
//!   acknowledges it; then it is the probe, whose answer acknowledges all.
//! - **A restored socket hears of the peer's segment size before it connects**: told with the other
//!   options only, it sends segments of 524 bytes for good. Found: a download that had moved once
//!   ran at half of its rate.
//! - **A peer's FIN comes along as a number and an end of reading**: the restored socket's receive
//!   queue begins one further, so that it ends behind the FIN and all that the socket says
//!   acknowledges it; and `shutdown(SHUT_RD)` has the application read the end behind what was
//!   unread. The socket is ESTABLISHED then, not CLOSE-WAIT. When it is closed it waits for a FIN
//!   that does not come again, for a second (`TCP_LINGER2`) or three time-outs, in FIN-WAIT-2.
//!   Rejected: a FIN in the peer's name by a raw socket in the namespace, as CRIU does it. It needs
//!   `CAP_NET_RAW`, passes the pod's packet rules, which may drop it when nothing can be undone any
//!   more, and draws an acknowledgement by a timer of the kernel's, which must not be said before
//!   the commit.
//! - **What was never sent is written behind the commit**: in repair mode it would count as sent
//!   (`tcp_write_xmit`) and wait for a repetition.
//!
//! ```
//! use std::os::fd::OwnedFd;
//!
//! /// Takes a connection, as bytes for another namespace's shim.
//! fn take(socket: OwnedFd) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
//!     let mut frozen = baton_tcp_repair::Frozen::new(socket)?;
//!     let connection = frozen.export()?;
//!     frozen.commit()?;
//!     Ok(baton_tcp_repair::encode(&connection))
//! }
//! ```

mod frozen;
mod record;
mod restore;
mod state;
mod sys;

pub use frozen::{ExportError, FreezeError, Frozen, bare_drops, supported};
pub use record::{QUEUE_BYTES_MAX, RecordError, VERSION, decode, encode};
pub use restore::{Cold, RestoreError, Restoring, Warm};
pub use state::{Connection, Negotiated, Position, Setting, TcpState, Window};
