//! A packet socket that sees and says, per frame, whether its checksum is left to the device.
#![expect(unsafe_code, reason = "packet sockets and SO_PEEK_OFF have no safe binding")]

use std::{
    ffi::CString,
    io,
    mem::{size_of, zeroed},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Instant,
};

/// `struct virtio_net_hdr`: flags, gso type, header length, gso size, checksum start, checksum
/// offset.
const VNET_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM_AT: u16 = 16;

pub struct PacketSocket(OwnedFd);

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Has the kernel keep an offset at which a socket is looked at (`MSG_PEEK`), from 0 on.
pub fn read_ahead(socket: &impl AsRawFd) {
    let from: libc::c_int = 0;
    // SAFETY: the value is a C int that outlives the call, and its size is given.
    let set = check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const from).cast(),
            size_of::<libc::c_int>() as u32,
        )
    });
    set.expect("TCP has it since Linux 6.9");
}

impl PacketSocket {
    /// On an interface of the calling thread's network namespace.
    pub fn bind(interface: &str) -> io::Result<Self> {
        let name = CString::new(interface)?;
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no pointers; the returned descriptor is ours.
        let fd = check(unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(protocol))
        })?;
        // SAFETY: `fd` was just made and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let one: libc::c_int = 1;
        for option in [libc::PACKET_VNET_HDR, libc::PACKET_IGNORE_OUTGOING] {
            // SAFETY: the value is a C int that outlives the call, and its size is given.
            check(unsafe {
                libc::setsockopt(
                    fd.as_raw_fd(),
                    libc::SOL_PACKET,
                    option,
                    (&raw const one).cast(),
                    size_of::<libc::c_int>() as u32,
                )
            })?;
        }
        // SAFETY: all zeroes is a valid address, which is then filled.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        // SAFETY: the name ends with NUL.
        address.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
        // SAFETY: the address and its size belong together and outlive the call.
        check(unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        })?;
        Ok(Self(fd))
    }

    /// Sends a frame; `partial` is the offset of a TCP header whose checksum the device shall
    /// complete.
    pub fn send(&self, frame: &[u8], partial: Option<usize>) {
        let mut bytes = vec![0; VNET_BYTES];
        if let Some(start) = partial {
            bytes[0] = NEEDS_CHECKSUM;
            bytes[6..8].copy_from_slice(&(start as u16).to_ne_bytes());
            bytes[8..10].copy_from_slice(&TCP_CHECKSUM_AT.to_ne_bytes());
        }
        bytes.extend_from_slice(frame);
        // SAFETY: the buffer outlives the call and its length is given.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        assert_eq!(sent, bytes.len() as isize, "{}", io::Error::last_os_error());
    }

    /// The next frame, and whether its checksum is left to the device.
    pub fn receive(&self, deadline: Instant) -> Option<(Vec<u8>, bool)> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // Rounded up, so that a wait of less than a millisecond is no busy loop.
        let wait_ms = left.as_millis() as i32 + i32::from(!left.is_zero());
        // SAFETY: one pollfd, which outlives the call.
        if unsafe { libc::poll(&mut poll, 1, wait_ms) } <= 0 {
            return None;
        }
        let mut bytes = vec![0; 70_000];
        // SAFETY: the buffer outlives the call and its length is given.
        let got =
            unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        let got = usize::try_from(got).ok().filter(|n| *n > VNET_BYTES)?;
        Some((bytes[VNET_BYTES..got].to_vec(), bytes[0] & NEEDS_CHECKSUM != 0))
    }
}
