//! Packets with at most one descriptor over the socket `baton`. Owns the system calls of both
//! sides; never waits.

use crate::wire::{Malformed, Message, NAME, PACKET_BYTES_MAX};
// That of rustix takes no pid 0, which is what a process of another PID namespace has.
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
        SocketType, bind, connect, ipproto, listen, recvmsg, sendmsg, socket_with,
    },
};
use std::{
    fs,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Applications that host-shim has not greeted yet.
const BACKLOG: i32 = 64;
/// Descriptors that one packet can have (`SCM_MAX_FD` of the kernel's `include/net/scm.h`).
const DESCRIPTORS_MAX: usize = 253;
const OVERFLOW_UID: &str = "/proc/sys/kernel/overflowuid";

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Where applications of the calling thread's network namespace find host-shim.
///
/// # Errors
/// The kernel's: another host-shim has the name.
pub fn open() -> io::Result<OwnedFd> {
    let socket = socket()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(NAME)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A connection to the host-shim of the calling thread's network namespace.
///
/// # Errors
/// The kernel's: `ConnectionRefused` where there is none; `PermissionDenied` where somebody has its
/// name who is not the node's root, which host-shim is.
pub fn reach() -> io::Result<OwnedFd> {
    let socket = socket()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(NAME)?)?;
    // Of whoever began to listen.
    let peer = getsockopt(&socket, PeerCredentials)?;
    let ids = |file| fs::read_to_string(file).unwrap_or_default();
    if peer.uid() != root(&ids("/proc/self/uid_map"), &ids(OVERFLOW_UID)) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(socket)
}

/// What the node's root is called in this process's user namespace: any but the first one has no
/// name for it, and shows it as nobody.
fn root(map: &str, overflow: &str) -> u32 {
    let of_first = ["0", "0", "4294967295"];
    match map.is_empty() || map.split_whitespace().eq(of_first) {
        true => 0,
        false => overflow.trim().parse().unwrap_or(65_534),
    }
}

/// A new socket for a connection that has this end here, of the calling thread's network namespace:
/// the connection is its application's in all that the kernel counts and filters by, and the
/// application has the descriptor before anything moves.
///
/// # Errors
/// The kernel's: no descriptor is left.
pub fn new_socket(local: SocketAddr) -> io::Result<OwnedFd> {
    let family = if local.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?)
}

/// Sends one message, or says that there is no room (`WouldBlock`).
///
/// # Errors
/// The kernel's.
pub fn send(
    socket: impl AsFd,
    message: &Message,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = descriptor.as_slice();
    if !rights.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(rights));
    }
    let packet = message.encode();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(&packet)], &mut control, flags)?;
    Ok(())
}

/// Why nothing was received.
#[derive(Debug, thiserror::Error)]
pub enum Nothing {
    /// There is nothing yet.
    #[error("nothing has come yet")]
    Yet,
    /// The other side has closed.
    #[error("the other side has closed the connection")]
    Closed,
    /// What came is no message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A system call failed.
    #[error(transparent)]
    Kernel(io::Error),
}

/// Receives one message, with a descriptor if one belongs to it. `space` is at least
/// [`PACKET_BYTES_MAX`] long. Whatever descriptors came with what is no message are in `strays`,
/// which is empty before: closing them may take as long as the other side likes (SO_LINGER), so
/// that is the caller's.
///
/// # Errors
/// Why there is none; after all but [`Nothing::Yet`] the connection is of no use.
pub fn receive(
    socket: impl AsFd,
    space: &mut [u8],
    strays: &mut Vec<OwnedFd>,
) -> Result<(Message, Option<OwnedFd>), Nothing> {
    debug_assert!(space.len() >= PACKET_BYTES_MAX && strays.is_empty());
    // The kernel closes those that do not fit, on this thread.
    let mut control = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut control);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        let into = &mut [IoSliceMut::new(space)];
        match recvmsg(&socket, into, &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(Nothing::Yet),
            Err(Errno::CONNRESET) => return Err(Nothing::Closed),
            Err(e) => return Err(Nothing::Kernel(e.into())),
            Ok(got) => break got,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(all) = message {
            strays.extend(all);
        }
    }
    if got.bytes == 0 {
        return Err(Nothing::Closed);
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(Malformed::Long.into());
    }
    let message = Message::decode(&space[..got.bytes])?;
    // Without room for more descriptors in this process the kernel leaves some out.
    let expected = usize::from(message.has_descriptor());
    if got.flags.contains(ReturnFlags::CTRUNC) || strays.len() != expected {
        return Err(Malformed::Descriptors.into());
    }
    Ok((message, strays.pop()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_called_as_the_user_namespace_has_it() {
        for first in ["         0          0 4294967295\n", ""] {
            assert_eq!(root(first, "65534\n"), 0);
        }
        // `hostUsers: false`: 0 is the Pod's own root.
        let of_pod = "         0  131072  65536\n";
        assert_eq!(root(of_pod, "65533\n"), 65_533);
        assert_eq!(root("0 131072 65536\n65536 0 1\n", ""), 65_534);
    }
}
