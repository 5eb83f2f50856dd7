//! All frames of one interface, as a packet socket sees them.
//!
//! Owns its opening and its reading; what frames mean is for `tap` and `blast`.

use crate::{
    node::lab::Pod,
    timing::timestamps::{Received, bind_packet, enable, receive},
};
use anyhow::{Context, Result};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with,
    sockopt::set_socket_recv_buffer_size_force,
};
use std::{io, os::fd::OwnedFd};

const FRAME_BYTES_MAX: usize = 64 * 1024;

/// Frames wait in it until they are read, up to a number of bytes.
#[derive(Debug)]
pub(crate) struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// On an interface of a place, with the kernel's times.
    pub(crate) fn open(place: &Pod, interface: &str, buffer_bytes: usize) -> Result<Self> {
        place
            .namespace()
            .run(|| {
                // Protocol 0: no frame until it is bound.
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
                set_socket_recv_buffer_size_force(&socket, buffer_bytes)?;
                enable(&socket)?;
                let index = name_to_index(&socket, interface)?;
                bind_packet(&socket, index)?;
                Ok::<_, io::Error>(Self(socket))
            })?
            .with_context(|| format!("packet socket on {interface}"))
    }

    /// Shows each frame that waits.
    pub(crate) fn read(&self, mut see: impl FnMut(&Received, &[u8])) -> Result<()> {
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        loop {
            match receive(&self.0, &mut buffer) {
                Ok(received) => see(&received, &buffer[..received.bytes]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e).context("reading a frame"),
            }
        }
    }
}
