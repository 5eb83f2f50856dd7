//! The few system calls that rustix does not wrap, behind safe signatures. Owns no policy.
#![expect(
    unsafe_code,
    reason = "socket options, ioctls and mappings of AF_XDP and AF_PACKET have no safe wrapper"
)]

use std::{
    ffi::{c_int, c_void},
    io,
    mem::{MaybeUninit, size_of},
    net::Ipv6Addr,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr::{self, NonNull},
};

/// Plain data that the kernel may read or write as bytes.
///
/// # Safety
/// Every bit pattern is a value, and there is no padding that must not be read.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers and structures of integers, without padding.
unsafe impl Plain for c_int {}
// SAFETY: as above.
unsafe impl Plain for crate::abi::UmemRegistration {}
// SAFETY: as above.
unsafe impl Plain for crate::abi::XdpStatistics {}
// SAFETY: as above.
unsafe impl Plain for crate::abi::MmapOffsets {}
// SAFETY: as above.
unsafe impl Plain for libc::tpacket_req {}
// SAFETY: as above.
unsafe impl Plain for libc::tpacket_stats {}
// SAFETY: as above.
unsafe impl Plain for libc::sockaddr_xdp {}
// SAFETY: as above.
unsafe impl Plain for libc::sockaddr_ll {}
// SAFETY: as above.
unsafe impl Plain for [u32; MEMORY_INFO_VALUES] {}

/// Values of `SO_MEMINFO` (include/uapi/linux/sock_diag.h, `SK_MEMINFO_VARS`), and the one that
/// counts drops.
const MEMORY_INFO_VALUES: usize = 9;
const MEMORY_INFO_DROPS: usize = 8;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// `socket(2)`, close-on-exec and non-blocking.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = check(unsafe {
        libc::socket(domain, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol)
    })?;
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `setsockopt(2)`.
pub(crate) fn set_option<T: Plain>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which outlives the call.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast::<c_void>(),
            size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// What a socket may have sent that devices have not: as much as their queues take, as of what the
/// kernel sends on for others. With its usual 208 KiB, 95 packets that waited for one slow device
/// were all that a socket could send, by whichever.
const SEND_BUFFER_BYTES: usize = 1 << 29;

/// Has devices bound what waits, and not the socket.
pub(crate) fn send_as_devices_can(fd: BorrowedFd<'_>) -> io::Result<()> {
    // The kernel doubles it.
    rustix::net::sockopt::set_socket_send_buffer_size_force(fd, SEND_BUFFER_BYTES)?;
    Ok(())
}

/// `getsockopt(2)`; refuses an answer of another size.
pub(crate) fn get_option<T: Plain>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which outlives the call.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast::<c_void>(),
            &raw mut bytes,
        )
    })?;
    if bytes as usize != size_of::<T>() {
        return Err(io::Error::other(format!(
            "socket option {name}: the kernel answered {bytes} bytes, expected {}",
            size_of::<T>()
        )));
    }
    // SAFETY: zeroed, then filled by the kernel; every bit pattern of a `Plain` type is a value.
    Ok(unsafe { value.assume_init() })
}

/// `bind(2)` to an address structure of any family.
pub(crate) fn bind<A: Plain>(fd: BorrowedFd<'_>, address: &A) -> io::Result<()> {
    // SAFETY: pointer and length describe `address`, which outlives the call.
    check(unsafe {
        libc::bind(fd.as_raw_fd(), ptr::from_ref(address).cast(), size_of::<A>() as libc::socklen_t)
    })
    .map(drop)
}

/// `sendto(2)` without data: asks the kernel to look at the TX ring.
pub(crate) fn kick(fd: RawFd) -> io::Result<()> {
    // SAFETY: no buffer is passed.
    let sent = unsafe { libc::sendto(fd, ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `ppoll(2)` without a signal mask. Returns the number of ready descriptors; an interrupted call
/// counts as none.
pub(crate) fn poll(
    fds: &mut [libc::pollfd],
    timeout: Option<std::time::Duration>,
) -> io::Result<usize> {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(t.subsec_nanos()),
    });
    // SAFETY: the slice and the optional timespec outlive the call.
    let ready = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            timeout.as_ref().map_or(ptr::null(), ptr::from_ref),
            ptr::null(),
        )
    };
    match check(ready) {
        Ok(count) => Ok(count as usize),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(e) => Err(e),
    }
}

/// The pending error of a socket, taken.
pub(crate) fn take_error(fd: BorrowedFd<'_>) -> io::Result<Option<io::Error>> {
    let number: c_int = get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR)?;
    Ok((number != 0).then(|| io::Error::from_raw_os_error(number)))
}

/// Packets that a socket lost because its buffer was full, since it was opened (wraps at 32 bits).
pub(crate) fn receive_drops(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let values: [u32; MEMORY_INFO_VALUES] = get_option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(u64::from(values[MEMORY_INFO_DROPS]))
}

/// Has [`receive_v6`] told what of a packet's header it needs.
pub(crate) fn ask_for_header(fd: BorrowedFd<'_>) -> io::Result<()> {
    let on: c_int = 1;
    set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &on)?;
    set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, &on)?;
    set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, &on)
}

/// What came by an IPv6 raw socket.
pub(crate) struct ReceivedV6 {
    /// Bytes of payload.
    pub(crate) len: usize,
    pub(crate) from: Ipv6Addr,
    pub(crate) to: Ipv6Addr,
    /// Traffic class: the marks of congestion are in it.
    pub(crate) class: u8,
    /// Hop limit: how often it may still be sent on.
    pub(crate) hops: u8,
}

/// Room for the control messages that tell destination, traffic class and hop limit, aligned as
/// such messages are.
#[repr(C, align(8))]
struct Control([u8; 96]);

/// `recvmsg(2)` of an IPv6 raw socket.
pub(crate) fn receive_v6(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<ReceivedV6> {
    // SAFETY: all-zero bytes are a valid address of no family.
    let mut from: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut control = Control([0; 96]);
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid header without any part.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = (&raw mut from).cast();
    header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Control>() as _;
    // SAFETY: the header's parts have the lengths that it says, and outlive the call.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let (mut to, mut class, mut hops) = (None, 0, 0);
    // SAFETY: the kernel filled the header; a message is inside of `control`, or there is none.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    // SAFETY: as above.
    while let Some(told) = unsafe { next.as_ref() } {
        // SAFETY: messages of these types hold an `in6_pktinfo` or an `int`, and there is room for
        // all in `control`.
        unsafe {
            let data = libc::CMSG_DATA(told);
            match (told.cmsg_level, told.cmsg_type) {
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    to = Some(data.cast::<libc::in6_pktinfo>().read_unaligned());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    class = data.cast::<c_int>().read_unaligned() as u8;
                }
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    hops = data.cast::<c_int>().read_unaligned() as u8;
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(&raw const header, told);
        }
    }
    let Some(to) = to else {
        return Err(io::Error::other("the kernel did not tell the destination"));
    };
    Ok(ReceivedV6 {
        len,
        from: from.sin6_addr.s6_addr.into(),
        to: to.ipi6_addr.s6_addr.into(),
        class,
        hops,
    })
}

/// Memory shared with the kernel, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; who may touch which part is the
// owner's matter.
unsafe impl Send for Mapping {}
// SAFETY: as above; it only tells where it is and how long.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Fresh zeroed memory, present at once, so that no page fault falls into the packet path.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1, 0)
    }

    /// The memory that a socket shares at `offset`.
    pub(crate) fn of_socket(fd: BorrowedFd<'_>, bytes: usize, offset: i64) -> io::Result<Self> {
        Self::map(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    fn map(bytes: usize, flags: c_int, fd: RawFd, offset: i64) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast())
            .ok_or_else(|| io::Error::other("the kernel mapped memory at address 0"))?;
        Ok(Self { start, bytes })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` got; the owner drops what points into it with it.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(result, 0, "munmap of our own mapping");
    }
}
