//! The system calls that libbpf-rs and rustix have no safe form of. Owns all `unsafe` of host-shim;
//! knows no policy.
#![expect(
    unsafe_code,
    reason = "bpf(2) links, mount(2) options, SO_NETNS_COOKIE and options of x_tables have no safe binding"
)]

use libbpf_rs::libbpf_sys as raw;
use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

/// linux/socket.h, Linux 5.14; not in libc for every target.
const SO_NETNS_COOKIE: libc::c_int = 71;

fn path_text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path contains a NUL byte"))
}

/// libbpf returns a descriptor or a negative errno.
fn new_descriptor(result: i32) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the call that returned this non-negative number made the descriptor, and nobody else
    // knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}

/// Which packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Those that enter the pod.
    Ingress,
    /// Those that leave it.
    Egress,
}

/// Puts `program` first at one side of an interface of the calling thread's network namespace
/// (Linux 6.6).
pub(crate) fn tcx_attach(program: BorrowedFd<'_>, side: Side, ifindex: u32) -> io::Result<OwnedFd> {
    let at = match side {
        Side::Ingress => raw::BPF_TCX_INGRESS,
        Side::Egress => raw::BPF_TCX_EGRESS,
    };
    let target = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
    let options = raw::bpf_link_create_opts {
        sz: size_of::<raw::bpf_link_create_opts>() as raw::size_t,
        // Without a relative program "before" means before all: nothing may act on an adoption
        // first.
        flags: raw::BPF_F_BEFORE,
        ..Default::default()
    };
    // SAFETY: `options` is initialised, says its own size and outlives the call; the descriptor is
    // borrowed and open.
    new_descriptor(unsafe { raw::bpf_link_create(program.as_raw_fd(), target, at, &options) })
}

/// Replaces the program of a link in one step.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are borrowed and open; no options means that any old program is
    // replaced.
    done(unsafe { raw::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) })
}

/// Takes a link's program off its interface at once, whoever else holds or pins the link.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed and open.
    done(unsafe { raw::bpf_link_detach(link.as_raw_fd()) })
}

/// The interface that a tcx link is on; 0 when the interface is gone. `None` if it is no tcx link.
pub(crate) fn tcx_ifindex(link: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut info = raw::bpf_link_info::default();
    let mut bytes = size_of::<raw::bpf_link_info>() as u32;
    // SAFETY: `info` is a plain struct of `bytes` bytes that the kernel fills; both outlive the
    // call.
    done(unsafe { raw::bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut bytes) })?;
    if info.type_ != raw::BPF_LINK_TYPE_TCX {
        return Ok(None);
    }
    // SAFETY: for links of this type the kernel fills this member of the union.
    Ok(Some(unsafe { info.__bindgen_anon_1.tcx.ifindex }))
}

/// Gives a BPF object a name in a bpffs, which keeps it alive.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_text(path)?;
    // SAFETY: the descriptor is borrowed and open; the text ends with NUL and outlives the call.
    done(unsafe { raw::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) })
}

/// Opens what was pinned.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = path_text(path)?;
    // SAFETY: the text ends with NUL and outlives the call.
    new_descriptor(unsafe { raw::bpf_obj_get(path.as_ptr()) })
}

/// The number of a socket's network namespace, which is never used twice while the machine runs.
///
/// # Errors
/// The kernel's, for what is no socket.
pub fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut bytes = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `cookie`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut bytes,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cookie)
}

/// Reads an option of a socket into a buffer that also holds what is asked for.
pub(crate) fn get_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    buffer: &mut [u8],
) -> io::Result<()> {
    let mut bytes =
        libc::socklen_t::try_from(buffer.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads and writes at most `bytes` bytes at the buffer, which is that long;
    // both outlive the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, buffer.as_mut_ptr().cast(), &mut bytes)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The hardware type of an interface of the socket's network namespace.
pub(crate) fn interface_kind(socket: BorrowedFd<'_>, interface: &str) -> io::Result<u32> {
    // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the name ends with NUL, because it is shorter than the zeroed field; the kernel
    // writes only `request`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this request fills the hardware address of the union.
    Ok(u32::from(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family }))
}

/// Runs a program on a frame again and again (`BPF_PROG_TEST_RUN`). Returns its last action and its
/// mean time in ns.
pub(crate) fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    repeat: u32,
) -> io::Result<(i32, u32)> {
    let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut options = raw::bpf_test_run_opts {
        sz: size_of::<raw::bpf_test_run_opts>() as raw::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: u32::try_from(frame.len()).map_err(too_large)?,
        repeat: i32::try_from(repeat).map_err(too_large)?,
        ..Default::default()
    };
    // SAFETY: `options` says its own size and points to `frame`, whose length is given; both
    // outlive the call.
    done(unsafe { raw::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })?;
    Ok((options.retval as i32, options.duration))
}

/// Runs a program on a frame once, in the calling thread's network namespace; what it writes to the
/// frame is there afterwards.
pub(crate) fn test_run_once(program: BorrowedFd<'_>, frame: &mut [u8]) -> io::Result<()> {
    let bytes = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let at = frame.as_mut_ptr();
    let mut options = raw::bpf_test_run_opts {
        sz: size_of::<raw::bpf_test_run_opts>() as raw::size_t,
        data_in: at.cast(),
        data_size_in: bytes,
        data_out: at.cast(),
        data_size_out: bytes,
        ..Default::default()
    };
    // SAFETY: `options` says its own size and points to `frame`, whose length is given; the kernel
    // copies the frame before it runs the program and writes at most that many bytes back; both
    // outlive the call.
    done(unsafe { raw::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })
}

/// Runs a program on a frame once, as if it came in by an interface of the calling thread's network
/// namespace. Returns its action.
pub(crate) fn test_run_at(program: BorrowedFd<'_>, ifindex: u32, frame: &[u8]) -> io::Result<u32> {
    let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
    // `struct __sk_buff` of linux/bpf.h, as far as its `ifindex`; the rest is 0.
    let mut context = [0_u32; 11];
    context[10] = ifindex;
    let mut options = raw::bpf_test_run_opts {
        sz: size_of::<raw::bpf_test_run_opts>() as raw::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: u32::try_from(frame.len()).map_err(too_large)?,
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: size_of_val(&context) as u32,
        ..Default::default()
    };
    // SAFETY: `options` says its own size and points to `frame` and `context`, whose lengths are
    // given; all outlive the call, which writes to none but `options`.
    done(unsafe { raw::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })?;
    Ok(options.retval)
}

/// Has a program judge each buffer that comes to a socket of a sockmap.
pub(crate) fn attach_verdict(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are borrowed and open.
    done(unsafe {
        raw::bpf_prog_attach(program.as_raw_fd(), map.as_raw_fd(), raw::BPF_SK_SKB_VERDICT, 0)
    })
}

/// A link of an iterator program, which runs only when it is read ([`iterate`]).
pub(crate) fn iterator_link(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is borrowed and open; no target and no options.
    new_descriptor(unsafe {
        raw::bpf_link_create(program.as_raw_fd(), 0, raw::BPF_TRACE_ITER, std::ptr::null())
    })
}

/// One reading of an iterator, over the calling thread's network namespace where it is about
/// sockets.
pub(crate) fn iterate(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is borrowed and open.
    new_descriptor(unsafe { raw::bpf_iter_create(link.as_raw_fd()) })
}

/// Makes the kernel count runs and time of all programs, until the descriptor is closed.
pub(crate) fn enable_statistics() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    new_descriptor(unsafe { raw::bpf_enable_stats(raw::BPF_STATS_RUN_TIME) })
}

/// How often a program ran and how long in ns, while statistics were enabled.
pub(crate) fn run_statistics(program: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let mut info = raw::bpf_prog_info::default();
    let mut bytes = size_of::<raw::bpf_prog_info>() as u32;
    // SAFETY: `info` is a plain struct of `bytes` bytes, asks for no arrays (all zero), and
    // outlives the call.
    done(unsafe { raw::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut bytes) })?;
    Ok((info.run_cnt, info.run_time_ns))
}
