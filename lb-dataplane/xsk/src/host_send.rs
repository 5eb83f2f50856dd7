//! Packets into the host's own stack.
//!
//! Owns the sockets that send them, and notes what the kernel refuses. Receives nothing.

use crate::{
    config::ETHERNET_BYTES,
    error::OpenError,
    host_errors::{self, Paths, TooLong},
    host_pieces, sys,
};
use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags, sendmsg_addr},
};
use std::{
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

/// The hardware address that stands for the host's own stack, as for its loopback interface.
pub const HOST_MAC: [u8; 6] = [0; 6];

const ETHERNET: usize = ETHERNET_BYTES as usize;
/// What is sent.
pub(crate) struct Sender {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
    paths: Paths,
    /// Errors to be told to the receiver.
    too_long: TooLong,
    pub(crate) frames: u64,
    pub(crate) refused: u64,
}

impl Sender {
    pub(crate) fn open(v6: bool) -> Result<Self, OpenError> {
        let open = |domain| -> io::Result<OwnedFd> {
            let socket = sys::socket(domain, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
            // One socket of a family sends for all.
            sys::send_as_devices_can(socket.as_fd())?;
            Ok(socket)
        };
        let open = |domain| open(domain).map_err(OpenError::kernel("opening a raw socket to send"));
        Ok(Self {
            v4: open(libc::AF_INET)?,
            v6: v6.then(|| open(libc::AF_INET6)).transpose()?,
            paths: Paths::open(v6)
                .map_err(OpenError::kernel("opening sockets to ask about paths"))?,
            too_long: TooLong::new(),
            frames: 0,
            refused: 0,
        })
    }

    /// What is to be told to the receiver.
    pub(crate) fn too_long(&mut self) -> &mut TooLong {
        &mut self.too_long
    }

    /// Whether a frame goes this way.
    pub(crate) fn takes(frame: &[u8]) -> bool {
        frame.starts_with(&HOST_MAC)
    }

    /// Gives the packet in a frame to the host's stack, in pieces if it is too long and may be cut.
    /// What it refuses is counted: netfilter's rules, no route, an MTU.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let ip = frame.get(ETHERNET..).unwrap_or_default();
        let sent = match self.try_send(ip) {
            Err(Errno::MSGSIZE) => self.send_in_pieces(ip),
            sent => sent,
        };
        match sent {
            Ok(()) => self.frames += 1,
            Err(error) => {
                self.refused += 1;
                if error == Errno::MSGSIZE {
                    self.too_long.note(ip, &self.paths);
                }
            }
        }
    }

    fn send_in_pieces(&self, ip: &[u8]) -> Result<(), Errno> {
        let (_, to) = host_errors::ends(ip).ok_or(Errno::INVAL)?;
        let mtu = self.paths.mtu(to)?;
        let to = SocketAddr::new(to, 0);
        for (header, piece) in host_pieces::pieces(ip, mtu).ok_or(Errno::MSGSIZE)? {
            let parts = [IoSlice::new(&header), IoSlice::new(piece)];
            let mut nothing = SendAncillaryBuffer::default();
            sendmsg_addr(&self.v4, &to, &parts, &mut nothing, SendFlags::DONTWAIT)?;
        }
        Ok(())
    }

    fn try_send(&self, ip: &[u8]) -> Result<(), Errno> {
        let (_, to) = host_errors::ends(ip).ok_or(Errno::INVAL)?;
        let socket = match to {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => self.v6.as_ref().ok_or(Errno::AFNOSUPPORT)?,
        };
        let to = SocketAddr::new(to, 0);
        rustix::net::sendto(socket, ip, SendFlags::DONTWAIT, &to).map(drop)
    }
}
