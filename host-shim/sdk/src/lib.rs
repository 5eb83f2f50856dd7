//! Hands live TCP connections, in the middle of a request or response, from one pod's application
//! to another pod's, and takes them. The client notices nothing: the stream of bytes goes on.
//!
//! Owns the application's side of the talk with host-shim ([`wire`]) and nothing else: which
//! connection goes where, a dataplane decides; how a socket moves is host-shim's; what the next
//! application must know of a connection to go on with it ([`Incoming::state`]) is the
//! application's own.
//!
//! Works, and does nothing, where there is no host-shim, and connects again when one is replaced.
//!
//! ```no_run
//! use baton_sdk::Link;
//! use std::net::{TcpListener, TcpStream};
//!
//! # fn serve(_: &Link, _: TcpStream, _: &[u8]) -> std::io::Result<()> { Ok(()) }
//! let listener = TcpListener::bind("0.0.0.0:80")?;
//! let link = Link::connect(&[80])?;
//! std::thread::scope(|threads| {
//!     threads.spawn(|| {
//!         while let Some(incoming) = link.accept() {
//!             let state = incoming.state().to_vec();
//!             if let Ok(stream) = incoming.take() {
//!                 let _ = serve(&link, stream, &state);
//!             }
//!         }
//!     });
//!     for stream in listener.incoming() {
//!         let _ = serve(&link, stream?, b"");
//!     }
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod link;
pub mod packet;
mod shared;
mod slot;
pub mod wire;

pub use link::{Incoming, Link, NotMoved, Registered, Why};
pub use wire::STATE_BYTES_MAX;
