//! A frozen socket: what can be found out of it, and how it ends.
//!
//! Owns the order of steps, and that there is no third way out.

use crate::{
    Connection, Negotiated, Position, Setting, TcpState, Window,
    record::QUEUE_BYTES_MAX,
    sys::{self, Queue},
};
use socket2::SockRef;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
};

/// Most bytes of one segment in a send queue (`GSO_LEGACY_MAX_SIZE`).
const SEGMENT_BYTES_MAX: usize = 64 << 10;

static BARE_DROPS: AtomicU64 = AtomicU64::new(0);

/// Frozen and half-restored sockets that were dropped without a word since the process began. Each
/// is a bug.
#[must_use]
pub fn bare_drops() -> u64 {
    BARE_DROPS.load(Ordering::Relaxed)
}

pub(crate) fn note_bare_drop() {
    BARE_DROPS.fetch_add(1, Ordering::Relaxed);
}

/// Why a socket cannot be frozen.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// Not while it opens or closes.
    #[error("the socket is in state {0}: only ESTABLISHED and CLOSE-WAIT can be frozen")]
    State(&'static str),
    /// It has a filter, whose place is needed.
    #[error("the application has attached a filter to the socket")]
    Filtered,
    /// No right to.
    #[error("no CAP_NET_ADMIN in the user namespace of the socket's network namespace")]
    NotPermitted,
    /// Not a TCP socket, or one that the kernel does not repair (MPTCP).
    #[error("the kernel does not freeze this socket: {0}")]
    Kernel(#[source] io::Error),
}

/// Why a connection cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// TLS in the kernel or the like.
    #[error("the socket has an upper layer protocol (`{0}`), whose state does not come along")]
    UpperLayer(String),
    /// The application reads ahead by an offset of the kernel's.
    #[error("the application has set SO_PEEK_OFF: what is queued cannot be copied")]
    PeekOffset,
    /// Too much is queued.
    #[error("{0} bytes are queued: at most {QUEUE_BYTES_MAX} in each direction can be exported")]
    TooLong(u32),
    /// Somebody else used the socket meanwhile.
    #[error("the queues changed while they were read")]
    Changed,
    /// A system call failed.
    #[error("the kernel refused: {0}")]
    Kernel(#[from] io::Error),
}

/// A socket in repair mode. Its application's calls fail with EPERM and EINVAL while this lives; it
/// sends nothing, and what arrives is dropped: the peer sends it again.
#[derive(Debug)]
pub struct Frozen {
    socket: OwnedFd,
    reuse: i32,
    /// As it was: while it is frozen, the peer's is 0.
    window: Window,
    /// Not sent yet. Known from the begin only: a timer that fires while the send queue is chosen
    /// has the kernel count all of it as sent, and send none (`tcp_write_xmit`).
    unsent: u32,
    exported: bool,
    /// One of the exits was taken.
    over: bool,
}

/// Whether this process may freeze sockets, by one that nobody needs.
///
/// # Errors
/// The kernel's: `CAP_NET_ADMIN` is missing, or it has no `TCP_REPAIR`.
pub fn supported() -> io::Result<()> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    sys::enter(socket.as_fd())?;
    sys::leave(socket.as_fd())
}

/// The state of any socket, if one can be frozen in it.
fn state_of(fd: BorrowedFd<'_>) -> Result<TcpState, FreezeError> {
    let info = sys::info(fd).map_err(FreezeError::Kernel)?;
    TcpState::of(info[0]).ok_or(FreezeError::State(TcpState::name(info[0])))
}

impl Frozen {
    /// Freezes a socket. `socket` may be a duplicate of the application's descriptor.
    ///
    /// # Errors
    /// It cannot be frozen, and is as it was.
    pub fn new(socket: OwnedFd) -> Result<Self, FreezeError> {
        let fd = socket.as_fd();
        state_of(fd)?;
        let reuse = sys::get_int(fd, Setting::ReuseAddress.place()).map_err(FreezeError::Kernel)?;
        if sys::filters(fd).map_err(FreezeError::Kernel)? {
            return Err(FreezeError::Filtered);
        }
        // In repair mode the kernel goes on taking and acknowledging what arrives, which nobody
        // would have after an export.
        sys::deafen(fd).map_err(FreezeError::Kernel)?;
        if let Err(error) = sys::enter(fd) {
            sys::undeafen(fd).map_err(FreezeError::Kernel)?;
            return Err(match error.kind() {
                io::ErrorKind::PermissionDenied => FreezeError::NotPermitted,
                _ => FreezeError::Kernel(error),
            });
        }
        let mut frozen = Self {
            socket,
            reuse,
            window: Window::default(),
            unsent: 0,
            exported: false,
            over: false,
        };
        // It may have changed before it was frozen.
        let held = state_of(frozen.socket.as_fd());
        match held.and_then(|_| frozen.hold().map_err(FreezeError::Kernel)) {
            Ok(()) => Ok(frozen),
            Err(error) => {
                frozen.over = true;
                frozen.leave().map_err(FreezeError::Kernel)?;
                Err(error)
            }
        }
    }

    /// Nothing more of what is queued is sent. In repair mode the kernel goes on by its timers
    /// (pacing), and the peer's acknowledgement of a byte that the restored socket has not sent
    /// would be dropped there, again and again.
    fn hold(&mut self) -> io::Result<()> {
        let fd = self.socket.as_fd();
        let window = sys::window(fd)?;
        let none = Window { snd_wnd: 0, ..window };
        sys::set_window(fd, none)?;
        self.window = window;
        self.unsent = sys::unacknowledged(fd)?.1;
        Ok(())
    }

    /// What is queued goes on.
    fn let_go(&self) -> io::Result<()> {
        let fd = self.socket.as_fd();
        // Our own window may have grown meanwhile.
        let window = Window { snd_wnd: self.window.snd_wnd, ..sys::window(fd)? };
        sys::set_window(fd, window)
    }

    /// A socket that another process froze, which has ended since; `None` if it is not frozen.
    /// Whether its connection lives elsewhere by now, the caller must know.
    ///
    /// # Errors
    /// The kernel's.
    pub fn left_behind(socket: OwnedFd) -> io::Result<Option<Self>> {
        if !sys::is_frozen(socket.as_fd())? {
            return Ok(None);
        }
        // Of the peer's window the next acknowledgement tells.
        let window = sys::window(socket.as_fd())?;
        let unsent = sys::unacknowledged(socket.as_fd())?.1;
        Ok(Some(Self {
            socket,
            window,
            unsent,
            // What it was is not known any more; with 0 the server's next start fails.
            reuse: 1,
            exported: false,
            over: false,
        }))
    }

    /// How far both streams are.
    ///
    /// # Errors
    /// The kernel's.
    pub fn position(&self) -> io::Result<Position> {
        let fd = self.socket.as_fd();
        let state = state_of(fd).map_err(|error| io::Error::other(error.to_string()))?;
        let unread = sys::unread(fd)?;
        let (unacknowledged, _) = sys::unacknowledged(fd)?;
        // A FIN takes a number of its own (RFC 9293, 3.4) and is not counted as unread (`tcp_inq`).
        let end = sys::queue_end(fd, Queue::Receive)?;
        Ok(Position {
            state,
            read_to: end.wrapping_sub(state.fins()).wrapping_sub(unread),
            unread,
            written_to: sys::queue_end(fd, Queue::Send)?,
            unacknowledged,
            unsent: self.unsent,
        })
    }

    /// Copies the connection out. It stays frozen; [`Self::commit`] once another socket has it,
    /// [`Self::abort`] if none will.
    ///
    /// # Errors
    /// It cannot be exported; it stays frozen.
    pub fn export(&mut self) -> Result<Connection, ExportError> {
        let at = self.position()?;
        let fd = self.socket.as_fd();
        let name = |place| -> io::Result<String> {
            let (text, len) = match sys::get(fd, place, [0_u8; 16]) {
                Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => ([0; 16], 0),
                other => other?,
            };
            let text = text[..len].split(|byte| *byte == 0).next();
            Ok(String::from_utf8_lossy(text.unwrap_or_default()).into_owned())
        };
        if sys::get_int(fd, (libc::SOL_SOCKET, libc::SO_PEEK_OFF))? >= 0 {
            return Err(ExportError::PeekOffset);
        }
        let layer = name((libc::IPPROTO_TCP, libc::TCP_ULP))?;
        if !layer.is_empty() {
            return Err(ExportError::UpperLayer(layer));
        }
        let socket = SockRef::from(&self.socket);
        let address = |of: io::Result<socket2::SockAddr>| {
            of?.as_socket().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
        };
        let (local, remote) = (address(socket.local_addr())?, address(socket.peer_addr())?);
        let [_, _, _, _, _, options, scales, _] = sys::info(fd)?;
        let settings = Setting::ALL.iter().map(|setting| match setting {
            // In repair mode the kernel says something else.
            Setting::ReuseAddress => Ok(self.reuse),
            setting => sys::get_int(fd, setting.place()),
        });
        let sending = sys::sending(fd)?;
        let class = (libc::IPPROTO_IPV6, libc::IPV6_TCLASS);
        let buffer = |name| sys::get_int(fd, (libc::SOL_SOCKET, name));
        let connection = Connection {
            local,
            remote,
            read_to: at.read_to.wrapping_add(at.state.fins()),
            unread: self.peek(Queue::Receive, at.unread)?,
            reads_end: sys::reads_end(fd)?,
            acknowledged_to: at.written_to.wrapping_sub(at.unacknowledged),
            unacknowledged: self.peek(Queue::Send, at.unacknowledged)?,
            unsent: at.unsent,
            negotiated: Negotiated {
                // In repair mode this is the peer's own, not what is in use at present.
                mss: sys::get_int(fd, (libc::IPPROTO_TCP, libc::TCP_MAXSEG))?
                    .try_into()
                    .unwrap_or(u16::MAX),
                scales: (options & 4 != 0).then_some((scales & 15, scales >> 4)),
                sack: options & 2 != 0,
                timestamp: (options & 1 != 0).then(|| sys::timestamp(fd)).transpose()?,
            },
            window: self.window,
            traffic_class: if local.is_ipv6() { sys::get_int(fd, class)? } else { 0 },
            buffers: (
                buffer(libc::SO_SNDBUF)?,
                buffer(libc::SO_RCVBUF)?,
                buffer(sys::SO_BUF_LOCK)?,
            ),
            settings: settings.collect::<io::Result<_>>()?,
            congestion: name((libc::IPPROTO_TCP, libc::TCP_CONGESTION))?,
            congestion_window: (sending.window, sending.threshold),
        };
        // A segment that had passed the filter before it was attached opens the window again.
        if self.position()? != at || sys::window(fd)?.snd_wnd != 0 {
            return Err(ExportError::Changed);
        }
        self.exported = true;
        Ok(connection)
    }

    /// A copy of a whole queue.
    fn peek(&self, queue: Queue, bytes: u32) -> Result<Vec<u8>, ExportError> {
        if bytes > QUEUE_BYTES_MAX {
            return Err(ExportError::TooLong(bytes));
        }
        // The first segment of the send queue may be acknowledged in part, and comes whole.
        let mut copy = vec![0; bytes as usize + SEGMENT_BYTES_MAX];
        let mut more = SEGMENT_BYTES_MAX;
        if bytes > 0 {
            let fd = self.socket.as_fd();
            sys::choose(fd, queue)?;
            let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
            let got = rustix::net::recv(fd, &mut copy[..], flags);
            sys::choose(fd, Queue::None)?;
            let got = got.map_err(io::Error::from)?.0;
            copy.truncate(got);
            more = got.checked_sub(bytes as usize).ok_or(ExportError::Changed)?;
        }
        copy.drain(..more);
        Ok(copy)
    }

    /// Another socket has the connection, or will: this one ends. Nothing is sent; the application
    /// sees `ECONNABORTED`, as from any connection that ended.
    ///
    /// # Errors
    /// The kernel's.
    pub fn commit(mut self) -> io::Result<()> {
        self.over = true;
        self.end()
    }

    /// The socket goes on as if nothing had been; what the kernel took for sent meanwhile (see
    /// `unsent`) comes with its retransmission time-out.
    ///
    /// # Errors
    /// The kernel's.
    pub fn abort(mut self) -> io::Result<()> {
        self.over = true;
        self.go_on()
    }

    fn go_on(&self) -> io::Result<()> {
        let fd = self.socket.as_fd();
        let window = self.let_go();
        self.leave()?;
        window?;
        // What was queued and not sent may have lost its timer: this sends it.
        let place = Setting::NoDelay.place();
        let no_delay = sys::get_int(fd, place)?;
        sys::set(fd, place, 1_i32)?;
        sys::set(fd, place, no_delay)
    }

    fn end(&self) -> io::Result<()> {
        let fd = self.socket.as_fd();
        sys::disconnect(fd)?;
        self.leave()
    }

    fn leave(&self) -> io::Result<()> {
        let fd = self.socket.as_fd();
        sys::leave(fd)?;
        sys::undeafen(fd)?;
        sys::set(fd, Setting::ReuseAddress.place(), self.reuse)
    }
}

/// What was exported may live elsewhere, and two owners are worse than none; what was not, lives
/// here.
impl Drop for Frozen {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        note_bare_drop();
        let ended = if self.exported { self.end() } else { self.go_on() };
        // Whoever drops it cannot be told; the count says that it happened.
        let _ = ended;
    }
}
