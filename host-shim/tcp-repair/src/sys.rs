//! The system calls. Owns all `unsafe` of this crate; knows no connection.
#![expect(unsafe_code, reason = "TCP_REPAIR and what belongs to it have no safe binding")]

use crate::Window;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockAddr;
use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
    sync::Once,
};

/// Which queue is meant in repair mode.
#[derive(Clone, Copy)]
pub(crate) enum Queue {
    None = 0,
    Receive = 1,
    Send = 2,
}

/// `struct tcp_repair_opt`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RepairOption {
    pub(crate) code: u32,
    pub(crate) value: u32,
}

const TCP_REPAIR_WINDOW: i32 = 29;
pub(crate) const SO_BUF_LOCK: i32 = 72;
/// linux/sockios.h.
const SIOCOUTQNSD: libc::Ioctl = 0x894B;

/// Plain values that the kernel reads and writes as they are in memory.
pub(crate) trait Plain: Copy {}
impl Plain for i32 {}
impl Plain for u32 {}
impl<const N: usize> Plain for [u32; N] {}
impl<const N: usize> Plain for [u8; N] {}

pub(crate) fn set<T: Plain>(
    fd: BorrowedFd<'_>,
    (level, name): (i32, i32),
    value: T,
) -> io::Result<()> {
    set_all(fd, (level, name), std::slice::from_ref(&value))
}

fn set_all<T: Copy>(fd: BorrowedFd<'_>, (level, name): (i32, i32), values: &[T]) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of `values`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            values.as_ptr().cast(),
            mem::size_of_val(values) as libc::socklen_t,
        )
    };
    done(result)
}

/// What the kernel writes into `value`, and how many bytes of it.
pub(crate) fn get<T: Plain>(
    fd: BorrowedFd<'_>,
    (level, name): (i32, i32),
    mut value: T,
) -> io::Result<(T, usize)> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`, for which every pattern is valid
    // (`Plain`).
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    done(result).map(|()| (value, len as usize))
}

pub(crate) fn get_int(fd: BorrowedFd<'_>, place: (i32, i32)) -> io::Result<i32> {
    Ok(get(fd, place, 0_i32)?.0)
}

fn done(result: i32) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const fn tcp(name: i32) -> (i32, i32) {
    (libc::IPPROTO_TCP, name)
}

pub(crate) fn enter(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, tcp(libc::TCP_REPAIR), 1_i32)
}

/// Whether it is in repair mode.
pub(crate) fn is_frozen(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(get_int(fd, tcp(libc::TCP_REPAIR))? != 0)
}

/// Leaves repair mode with a window probe.
pub(crate) fn leave_with_probe(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, tcp(libc::TCP_REPAIR), 0_i32)
}

/// What the kernel says of how it sends.
pub(crate) struct Sending {
    /// Segments under way (`tcpi_unacked`).
    pub(crate) under_way: u32,
    /// The slow start threshold in segments (`tcpi_snd_ssthresh`).
    pub(crate) threshold: u32,
    /// The congestion window in segments (`tcpi_snd_cwnd`).
    pub(crate) window: u32,
}

/// From `struct tcp_info`, 24, 76 and 80 bytes from its begin.
pub(crate) fn sending(fd: BorrowedFd<'_>) -> io::Result<Sending> {
    let (info, len) = get(fd, tcp(libc::TCP_INFO), [0_u32; 21])?;
    if len < size_of_val(&info) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Sending { under_way: info[6], threshold: info[19], window: info[20] })
}

/// Leaves repair mode and sends nothing (`TCP_REPAIR_OFF_NO_WP`, Linux 4.19).
pub(crate) fn leave(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, tcp(libc::TCP_REPAIR), -1_i32)
}

/// From now on whatever arrives for the socket is dropped unseen (`tcp_filter`).
pub(crate) fn deafen(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut none =
        libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut none };
    // SAFETY: the kernel copies the program, whose one instruction outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    done(result)
}

pub(crate) fn undeafen(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, (libc::SOL_SOCKET, libc::SO_DETACH_FILTER), 0_i32)
}

/// Whether the application has a filter of its own (`SO_GET_FILTER` counts its instructions).
pub(crate) fn filters(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut len: libc::socklen_t = 0;
    // SAFETY: with a length of 0 the kernel writes nothing but the length.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_GET_FILTER,
            std::ptr::null_mut(),
            &raw mut len,
        )
    };
    done(result).map(|()| len > 0)
}

pub(crate) fn choose(fd: BorrowedFd<'_>, queue: Queue) -> io::Result<()> {
    set(fd, tcp(libc::TCP_REPAIR_QUEUE), queue as i32)
}

/// The number behind the end of the chosen queue.
pub(crate) fn queue_end(fd: BorrowedFd<'_>, queue: Queue) -> io::Result<u32> {
    choose(fd, queue)?;
    let end = get(fd, tcp(libc::TCP_QUEUE_SEQ), 0_u32)?.0;
    choose(fd, Queue::None)?;
    Ok(end)
}

pub(crate) fn set_queue_begin(fd: BorrowedFd<'_>, queue: Queue, number: u32) -> io::Result<()> {
    choose(fd, queue)?;
    set(fd, tcp(libc::TCP_QUEUE_SEQ), number)
}

pub(crate) fn set_options(fd: BorrowedFd<'_>, options: &[RepairOption]) -> io::Result<()> {
    set_all(fd, tcp(libc::TCP_REPAIR_OPTIONS), options)
}

pub(crate) fn timestamp(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(get(fd, tcp(libc::TCP_TIMESTAMP), 0_u32)?.0)
}

pub(crate) fn set_timestamp(fd: BorrowedFd<'_>, value: u32) -> io::Result<()> {
    set(fd, tcp(libc::TCP_TIMESTAMP), value)
}

pub(crate) fn window(fd: BorrowedFd<'_>) -> io::Result<Window> {
    let ([snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup], _) =
        get(fd, tcp(TCP_REPAIR_WINDOW), [0_u32; 5])?;
    Ok(Window { snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup })
}

pub(crate) fn set_window(fd: BorrowedFd<'_>, window: Window) -> io::Result<()> {
    let Window { snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup } = window;
    set(fd, tcp(TCP_REPAIR_WINDOW), [snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup])
}

/// The first bytes of `struct tcp_info`: state, flags of options, both window scales.
pub(crate) fn info(fd: BorrowedFd<'_>) -> io::Result<[u8; 8]> {
    let (info, len) = get(fd, tcp(libc::TCP_INFO), [0_u8; 8])?;
    if len < info.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(info)
}

fn ask(fd: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u32> {
    let mut value: libc::c_int = 0;
    // SAFETY: each of the requests here writes one int (`tcp_ioctl`).
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) };
    done(result)?;
    u32::try_from(value).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Whether nothing follows behind what was not read (`RCV_SHUTDOWN`).
pub(crate) fn reads_end(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut end = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut end, Some(&at_once))?;
    Ok(end[0].revents().contains(PollFlags::RDHUP))
}

/// How long [`connect`] may take, which in repair mode asks nobody: what a Transfer has in all.
const CONNECT_FOR: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Connects, without waiting for anybody. Who has another descriptor of the socket may begin a
/// deferred fast open at the right moment (`TCP_FASTOPEN_CONNECT`, also in repair mode) and make it
/// blocking again: then connect(2) would wait for ever. A signal ends that.
pub(crate) fn connect(fd: BorrowedFd<'_>, to: &SockAddr) -> io::Result<()> {
    let _alarm = Alarm::set()?;
    // SAFETY: the pointer and the length are those of `to`.
    let result = unsafe { libc::connect(fd.as_raw_fd(), to.as_ptr().cast(), to.len()) };
    done(result)
}

/// Interrupts the calling thread's system calls, again and again, until it is dropped.
struct Alarm(libc::timer_t);

impl Alarm {
    /// Ignored by default, so that one that is late does nothing.
    const SIGNAL: i32 = libc::SIGURG;

    fn set() -> io::Result<Self> {
        extern "C" fn nothing(_: i32) {}
        static HANDLED: Once = Once::new();
        HANDLED.call_once(|| {
            // SAFETY: all zeros are a valid action: no flags (SA_RESTART is what must not be).
            let mut action: libc::sigaction = unsafe { mem::zeroed() };
            action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
            // SAFETY: the handler does nothing, and so nothing that a handler must not do.
            unsafe { libc::sigaction(Self::SIGNAL, &raw const action, std::ptr::null_mut()) };
        });
        // SAFETY: all zeros are a valid event.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = Self::SIGNAL;
        // SAFETY: it has no preconditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both pointers are to values that outlive the call.
        done(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) })?;
        let alarm = Self(timer);
        let every = libc::itimerspec { it_interval: CONNECT_FOR, it_value: CONNECT_FOR };
        // SAFETY: the timer exists, and `every` outlives the call.
        done(unsafe { libc::timer_settime(timer, 0, &raw const every, std::ptr::null_mut()) })?;
        Ok(alarm)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Bytes that have arrived and were not read, without a FIN.
pub(crate) fn unread(fd: BorrowedFd<'_>) -> io::Result<u32> {
    ask(fd, libc::FIONREAD)
}

/// Bytes that were written and are not acknowledged, and those among them that were not sent. Each
/// counts our own FIN.
pub(crate) fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    Ok((ask(fd, libc::TIOCOUTQ)?, ask(fd, SIOCOUTQNSD)?))
}

/// Ends the connection; in repair mode nothing is sent, and the application sees `ECONNABORTED`
/// (`tcp_disconnect`).
pub(crate) fn disconnect(fd: BorrowedFd<'_>) -> io::Result<()> {
    let nobody =
        libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: the pointer and the length are those of `nobody`.
    let result = unsafe {
        libc::connect(
            fd.as_raw_fd(),
            &raw const nobody,
            size_of::<libc::sockaddr>() as libc::socklen_t,
        )
    };
    done(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Socket, Type};
    use std::{net::TcpListener, os::fd::AsFd, sync::mpsc, thread, time::Duration};

    /// As whoever has another descriptor of it can have it at any moment.
    #[test]
    fn a_deferred_fast_open_that_blocks_is_not_waited_for() {
        const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = SockAddr::from(listener.local_addr().expect("bound"));
        let (tells, told) = mpsc::channel();
        thread::spawn(move || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            for option in [libc::TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE] {
                set(socket.as_fd(), tcp(option), 1_i32).expect("an option");
            }
            connect(socket.as_fd(), &to).expect("it is deferred");
            let _ = tells.send(connect(socket.as_fd(), &to));
        });
        let ended = told.recv_timeout(Duration::from_secs(60)).expect("it ends");
        let problem = ended.expect_err("it is not connected");
        assert_eq!(problem.kind(), io::ErrorKind::Interrupted);
    }
}
