//! A socket that goes on with another one's congestion window (`bpf/warm.bpf.c`; BPF struct_ops of
//! Linux 5.6). Owns the program; which window, and what the socket's algorithm is behind that, its
//! caller says.

use crate::{
    Error,
    object::{Aligned, refuse},
    printed::{quiet, what_was_said},
};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/warm.bpf.o")));
/// The maps' names in the object.
const ALGORITHM: &str = "warm";
const WINDOWS: &str = "windows";
/// Where `struct tcp_congestion_ops`, as the program has it, has its name.
const NAME_AT: usize = 32;
/// `TCP_CA_NAME_MAX`, less the last zero.
const NAME_BYTES_MAX: usize = 15;

/// The congestion control that only sets a window. Gone when this is dropped; sockets that have
/// been through it do not need it any more.
#[derive(Debug)]
pub struct Warm {
    /// For `TCP_CONGESTION`.
    name: String,
    windows: MapHandle,
    _link: Link,
}

impl Warm {
    /// Loads it.
    ///
    /// # Errors
    /// The kernel does not take it: sockets begin with its own window.
    pub fn load() -> Result<Self, Error> {
        quiet();
        what_was_said();
        let mut open = ObjectBuilder::default()
            .name("baton_warm")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .map_err(|e| refuse(&e))?;
        // There is one list for all of a kernel, in which others of us may be.
        let random = RandomState::new().build_hasher().finish() as u32;
        let name = format!("baton{random:08x}");
        let missing = || Error::Load { reason: "the object lacks its algorithm".into() };
        let mut algorithm = open.maps_mut().find(|map| map.name() == ALGORITHM);
        let data = algorithm.as_mut().and_then(|map| map.initial_value_mut());
        let (_, place) =
            data.and_then(|data| data.split_at_mut_checked(NAME_AT)).ok_or_else(missing)?;
        let place = place.get_mut(..NAME_BYTES_MAX).ok_or_else(missing)?;
        place.fill(0);
        place[..name.len()].copy_from_slice(name.as_bytes());
        let mut object = open.load().map_err(|e| refuse(&e))?;
        let windows = object.maps().find(|map| map.name() == WINDOWS);
        let windows = MapHandle::try_from(&windows.ok_or_else(missing)?).map_err(|e| refuse(&e))?;
        let mut maps = object.maps_mut();
        let mut algorithm = maps.find(|map| map.name() == ALGORITHM).ok_or_else(missing)?;
        let link = algorithm.attach_struct_ops().map_err(|e| refuse(&e))?;
        Ok(Self { name, windows, _link: link })
    }

    /// Gives a socket a congestion window and a slow start threshold, in segments. Its congestion
    /// control is none any more: the caller sets one.
    ///
    /// # Errors
    /// The kernel's; the socket is as it was.
    pub fn set(&self, socket: BorrowedFd<'_>, window: u32, threshold: u32) -> io::Result<()> {
        let mut value = [0; 8];
        value[..4].copy_from_slice(&window.to_ne_bytes());
        value[4..].copy_from_slice(&threshold.to_ne_bytes());
        let key = socket.as_raw_fd().to_ne_bytes();
        self.windows.update(&key, &value, MapFlags::ANY).map_err(io::Error::other)?;
        let set = rustix::net::sockopt::set_tcp_congestion(socket, &self.name);
        let forgotten = self.windows.delete(&key).map_err(io::Error::other);
        set?;
        forgotten
    }
}
