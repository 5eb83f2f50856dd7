//! What a connection is made of: plain data.
//!
//! Owns the types and the list of socket options that come along. Nothing here asks the kernel.

use std::net::SocketAddr;

/// A socket's state (linux/tcp_states.h), as far as one can be frozen in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// Both directions are open.
    Established,
    /// The peer has closed its direction.
    CloseWait,
}

impl TcpState {
    /// By the kernel's number.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Established),
            8 => Some(Self::CloseWait),
            _ => None,
        }
    }

    /// Numbers that the peer's FIN has taken.
    pub(crate) const fn fins(self) -> u32 {
        match self {
            Self::Established => 0,
            Self::CloseWait => 1,
        }
    }

    /// The kernel's name of any state's number.
    #[must_use]
    pub const fn name(number: u8) -> &'static str {
        match number {
            1 => "ESTABLISHED",
            2 => "SYN-SENT",
            3 => "SYN-RECEIVED",
            4 => "FIN-WAIT-1",
            5 => "FIN-WAIT-2",
            6 => "TIME-WAIT",
            7 => "CLOSED",
            8 => "CLOSE-WAIT",
            9 => "LAST-ACK",
            10 => "LISTEN",
            11 => "CLOSING",
            _ => "unknown",
        }
    }
}

/// How far both streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The socket's state.
    pub state: TcpState,
    /// Number of the next byte that the application would read.
    pub read_to: u32,
    /// Bytes that have arrived and were not read. The peer's FIN is not among them.
    pub unread: u32,
    /// Number of the next byte that the application would write.
    pub written_to: u32,
    /// Bytes written that the peer has not acknowledged.
    pub unacknowledged: u32,
    /// Of these, the ones that were never sent.
    pub unsent: u32,
}

/// What the handshake agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Largest segment that the peer takes, in bytes.
    pub mss: u16,
    /// The peer's window scale and our own (RFC 7323), 0 to 14 each; none if not agreed.
    pub scales: Option<(u8, u8)>,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Timestamps (RFC 7323): the value of our clock. Linux 6.7: the lowest bit says microseconds.
    pub timestamp: Option<u32>,
}

/// `struct tcp_repair_window` (linux/tcp.h, Linux 4.7): numbers and bytes, unscaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Number of the segment that last moved the peer's window.
    pub snd_wl1: u32,
    /// The peer's window.
    pub snd_wnd: u32,
    /// The largest that it ever was.
    pub max_window: u32,
    /// Our window, as last offered.
    pub rcv_wnd: u32,
    /// What was acknowledged then.
    pub rcv_wup: u32,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident = $level:ident, $option:ident;)+) => {
        /// A socket option of one number that comes along.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Setting { $($(#[$doc])* $name),+ }

        impl Setting {
            /// All of them, in the order of the record.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            pub(crate) const fn place(self) -> (i32, i32) {
                match self { $(Self::$name => (libc::$level, libc::$option)),+ }
            }
        }
    };
}

settings! {
    /// Nagle's algorithm is off.
    NoDelay = IPPROTO_TCP, TCP_NODELAY;
    /// Keepalive probes are sent.
    KeepAlive = SOL_SOCKET, SO_KEEPALIVE;
    /// After so many seconds.
    KeepIdle = IPPROTO_TCP, TCP_KEEPIDLE;
    /// Every so many seconds.
    KeepInterval = IPPROTO_TCP, TCP_KEEPINTVL;
    /// So many.
    KeepCount = IPPROTO_TCP, TCP_KEEPCNT;
    /// Milliseconds without acknowledgement before the connection ends.
    UserTimeout = IPPROTO_TCP, TCP_USER_TIMEOUT;
    /// Unsent bytes from which on the socket is not writable.
    NotSentLowAt = IPPROTO_TCP, TCP_NOTSENT_LOWAT;
    /// The firewall mark.
    Mark = SOL_SOCKET, SO_MARK;
    /// The queueing priority.
    Priority = SOL_SOCKET, SO_PRIORITY;
    /// IPv4's type of service.
    TypeOfService = IPPROTO_IP, IP_TOS;
    /// A bound port may be bound again.
    ReuseAddress = SOL_SOCKET, SO_REUSEADDR;
    /// By several sockets of one user.
    ReusePort = SOL_SOCKET, SO_REUSEPORT;
}

/// One connection, as it was when its socket was frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Number of the first byte of `unread`; one more behind the peer's FIN, which counts as a byte
    /// in front of them. So `unread` ends with what was acknowledged.
    pub read_to: u32,
    /// What has arrived and was not read.
    pub unread: Vec<u8>,
    /// Nothing follows behind `unread`: the peer has closed its direction, or the application reads
    /// no more.
    pub reads_end: bool,
    /// Number of the first byte of `unacknowledged`.
    pub acknowledged_to: u32,
    /// What was written and is not acknowledged.
    pub unacknowledged: Vec<u8>,
    /// How many of these, at the end, were never sent.
    pub unsent: u32,
    /// What the handshake agreed on.
    pub negotiated: Negotiated,
    /// Both windows.
    pub window: Window,
    /// IPv6's traffic class; 0 with IPv4.
    pub traffic_class: i32,
    /// Sizes of the send and the receive buffer in bytes, as the kernel counts them (twice what was
    /// asked for), and which of them the application has set (`SO_BUF_LOCK`, Linux 5.14: 1, 2).
    pub buffers: (i32, i32, i32),
    /// Other socket options, in the order of [`Setting::ALL`].
    pub settings: Vec<i32>,
    /// The congestion control algorithm's name, at most 15 bytes.
    pub congestion: String,
    /// The congestion window and the slow start threshold, in segments.
    pub congestion_window: (u32, u32),
}
