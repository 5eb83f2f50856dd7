//! Two system calls of the faults that nothing offers safely: a tap device, and a program at an
//! interface.
//!
//! Owns: their unsafe code. Knows nothing of faults.
#![expect(unsafe_code, reason = "TUNSETIFF and BPF_LINK_CREATE have no safe binding")]

use libbpf_rs::libbpf_sys as raw;
use std::{
    fs::{File, OpenOptions},
    io,
    mem::size_of,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
};

/// Where a program sees packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// Packets that come in.
    Ingress,
    /// Packets that go out.
    Egress,
}

/// Makes a tap device in the calling thread's network namespace. It is gone when the file is
/// closed. Reads and writes are whole Ethernet frames and never block. It offers no offloads, so
/// the kernel cuts large packets up and completes checksums before it hands a frame over.
pub(crate) fn open_tap(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the name ends with NUL, because it is shorter than the zeroed field; the kernel reads
    // and writes only `request`, which outlives the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Puts a program at an interface of the calling thread's network namespace (tcx, Linux 6.6). It is
/// gone when the descriptor is closed.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, point: Point) -> io::Result<OwnedFd> {
    let target = i32::try_from(interface).map_err(|_| io::ErrorKind::InvalidInput)?;
    let kind = match point {
        Point::Ingress => raw::BPF_TCX_INGRESS,
        Point::Egress => raw::BPF_TCX_EGRESS,
    };
    let options = raw::bpf_link_create_opts {
        sz: size_of::<raw::bpf_link_create_opts>() as raw::size_t,
        ..Default::default()
    };
    // SAFETY: `options` is initialised, says its own size and outlives the call; the descriptor is
    // borrowed and open.
    let link = unsafe { raw::bpf_link_create(program.as_raw_fd(), target, kind, &options) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the call that returned this non-negative number made the descriptor, and nobody else
    // knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}
