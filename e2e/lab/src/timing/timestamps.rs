//! When the kernel received bytes: `recvmsg` with software receive times, on TCP and on packet
//! sockets.
//!
//! Owns: three system calls that rustix does not offer (SO_TIMESTAMPING, ancillary data with times,
//! binding a packet socket to an interface). Never keeps a pointer beyond a call. The times are
//! CLOCK_REALTIME, which all network namespaces share, so [`now_ns`] is comparable with them.

#![expect(unsafe_code, reason = "no safe interface offers SCM_TIMESTAMPING or sockaddr_ll")]

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd},
    ptr,
    time::{SystemTime, UNIX_EPOCH},
};

/// The kernel stamps at reception in software, and reports software stamps.
const FLAGS: libc::c_uint = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
/// Room for one `SCM_TIMESTAMPING` (a header and three times) and what else a kernel may add.
const CONTROL_WORDS: usize = 32;
const WORD_BYTES: usize = mem::size_of::<usize>();
const HEADER_BYTES: usize = mem::size_of::<libc::cmsghdr>();
const TIME_BYTES: usize = mem::size_of::<libc::timespec>();

/// Nanoseconds of CLOCK_REALTIME.
pub(crate) fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}

/// What one call received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Bytes in the buffer; 0 at the end of a stream.
    pub(crate) bytes: usize,
    /// When the kernel received them (TCP: the last segment of them). Absent until the kernel
    /// stamps.
    pub(crate) at_ns: Option<i64>,
    /// On a packet socket: the frame left through the interface instead of coming in.
    pub(crate) outgoing: bool,
}

/// Asks the kernel for receive times; sockets accepted from a listener inherit it.
pub(crate) fn enable(socket: impl AsFd) -> io::Result<()> {
    let flags = FLAGS;
    // SAFETY: the descriptor is open for the call, and the kernel reads `flags`, whose size is
    // given, only within it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            ptr::from_ref(&flags).cast(),
            mem::size_of_val(&flags) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Limits a packet socket to one interface, and starts it for frames of every protocol.
pub(crate) fn bind_packet(socket: impl AsFd, interface: u32) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` is plain integers, for which all zeros is a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = i32::try_from(interface).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for the call, and the kernel reads `address`, whose size is
    // given, only within it.
    let result = unsafe {
        libc::bind(
            socket.as_fd().as_raw_fd(),
            ptr::from_ref(&address).cast(),
            mem::size_of_val(&address) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// One `recvmsg`; flags of the socket (as non-blocking) hold.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0usize; CONTROL_WORDS];
    // SAFETY: `sockaddr_ll` is plain integers, for which all zeros is a value.
    let mut from: libc::sockaddr_ll = unsafe { mem::zeroed() };
    // SAFETY: `msghdr` is integers and pointers, for which all zeros (null) is a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = ptr::from_mut(&mut from).cast();
    message.msg_namelen = mem::size_of_val(&from) as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control);
    // SAFETY: the descriptor is open for the call; all pointers in `message` point to locals or
    // `buffer`, which live beyond the call and are borrowed by nobody else, with their true sizes.
    let bytes = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, 0) };
    let bytes = usize::try_from(bytes).map_err(|_| io::Error::last_os_error())?;
    let mut octets = [0u8; CONTROL_WORDS * WORD_BYTES];
    for (to, word) in octets.chunks_exact_mut(WORD_BYTES).zip(control) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    let length = message.msg_controllen.min(octets.len());
    Ok(Received {
        bytes,
        at_ns: software_time(&octets[..length]),
        outgoing: from.sll_pkttype == libc::PACKET_OUTGOING,
    })
}

/// The software time in ancillary data: of the three times of `SCM_TIMESTAMPING` the first; 0 means
/// none.
fn software_time(mut control: &[u8]) -> Option<i64> {
    while let Some((length, level, kind)) = header(control) {
        let content = control.get(HEADER_BYTES..length)?;
        if level == libc::SOL_SOCKET && kind == libc::SCM_TIMESTAMPING {
            let first = content.get(..TIME_BYTES)?;
            let (seconds, nanos) = first.split_at(TIME_BYTES / 2);
            let (seconds, nanos) = (word(seconds)?, word(nanos)?);
            let total = seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?;
            return (total > 0).then_some(total);
        }
        control = control.get(length.next_multiple_of(WORD_BYTES)..)?;
    }
    None
}

/// Length (header included), level and type of the first message.
fn header(control: &[u8]) -> Option<(usize, i32, i32)> {
    let length = usize::from_ne_bytes(control.get(..WORD_BYTES)?.try_into().ok()?);
    let integer = |from: usize| {
        let bytes = control.get(from..from + 4)?;
        Some(i32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let (level, kind) = (integer(WORD_BYTES)?, integer(WORD_BYTES + 4)?);
    // A shorter length would go round for ever.
    (HEADER_BYTES..=control.len()).contains(&length).then_some((length, level, kind))
}

fn word(bytes: &[u8]) -> Option<i64> {
    Some(isize::from_ne_bytes(bytes.try_into().ok()?) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
        time::{Duration, Instant},
    };

    fn message(kind: i32, content: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER_BYTES + content.len()).to_ne_bytes().to_vec();
        bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(WORD_BYTES), 0);
        bytes
    }

    fn times(values: [(isize, isize); 3]) -> Vec<u8> {
        let pairs = values.iter().flat_map(|(s, n)| [*s, *n]);
        pairs.flat_map(isize::to_ne_bytes).collect()
    }

    #[test]
    fn the_software_time_is_found_among_other_messages_and_nonsense_is_none() {
        let stamp = message(libc::SCM_TIMESTAMPING, &times([(5, 7), (0, 0), (9, 9)]));
        assert_eq!(software_time(&stamp), Some(5_000_000_007));
        let both = [message(libc::SCM_RIGHTS, &[1, 2, 3]), stamp.clone()].concat();
        assert_eq!(software_time(&both), Some(5_000_000_007));
        let hardware_only = message(libc::SCM_TIMESTAMPING, &times([(0, 0), (0, 0), (9, 9)]));
        assert_eq!(software_time(&hardware_only), None);
        assert_eq!(software_time(&message(libc::SCM_RIGHTS, &[0; 48])), None);
        for cut in 0..stamp.len() {
            assert_eq!(software_time(&stamp[..cut]), None, "{cut}");
        }
        for length in [0, 1, HEADER_BYTES - 1, usize::MAX] {
            let mut bad = both.clone();
            bad[..WORD_BYTES].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(software_time(&bad), None, "{length}");
        }
    }

    #[test]
    fn an_accepted_socket_tells_when_bytes_came_on_the_clock_of_now() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        enable(&listener).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        // The first user of receive times on a machine switches them on, which the kernel may defer
        // a little.
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let before = now_ns();
            client.write_all(b"hello").unwrap();
            let mut buffer = [0; 16];
            let received = receive(&server, &mut buffer).unwrap();
            let after = now_ns();
            assert_eq!((received.bytes, &buffer[..5]), (5, &b"hello"[..]));
            assert!(!received.outgoing);
            if let Some(at) = received.at_ns {
                assert!((before..=after).contains(&at), "{before} {at} {after}");
                break;
            }
            assert!(Instant::now() < end, "no receive time");
        }
        drop(client);
        assert_eq!(receive(&server, &mut [0; 16]).unwrap().bytes, 0);
    }
}
