//! Inputs of the engine's fuzzing as programs: bytes become a policy, table sizes and a sequence of
//! operations.
//!
//! Owns the alphabets (pieces of conversations, flags, numbers, waits), which are small so that
//! flows meet. Any bytes are a program; what is missing at the end is 0. Executes nothing.

use crate::common::{conn::*, policy};
use baton_api::{
    Affinity, Algorithm, BackendFailure, ClientIp, Drain, Legs, Micros, MigrationMode, MoveMethod,
    OnDeadline, Policy, Protocol,
};
use baton_packet::Flags;

/// Client connections of a program.
pub const FLOWS: usize = 8;
/// Pods that a snapshot may list.
pub const PODS: usize = 4;

/// Bytes that are read one after the other.
pub struct Program<'a>(&'a [u8]);

impl<'a> Program<'a> {
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte, 0 behind the end.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    /// The next bytes, fewer at the end.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn of<T: Copy>(&mut self, alphabet: &[T]) -> T {
        alphabet[usize::from(self.byte()) % alphabet.len()]
    }

    pub fn flags(&mut self) -> Flags {
        self.of(FLAGS)
    }

    /// An offset to a number that would be right.
    pub fn offset(&mut self) -> i32 {
        self.of(OFFSETS)
    }

    pub fn said_by_client(&mut self) -> &'static [u8] {
        self.of(CLIENT_PIECES)
    }

    pub fn said_by_pod(&mut self) -> &'static [u8] {
        self.of(POD_PIECES)
    }

    pub fn wait_us(&mut self) -> u64 {
        self.of(WAITS_US)
    }

    /// The policy `web` with everything that random input shall meet; its timeouts are short, so
    /// that everything ends.
    pub fn policy(&mut self) -> Policy {
        let [kinds, modes, limit, drain] = [self.byte(), self.byte(), self.byte(), self.byte()];
        let mut p = policy(PODS);
        p.protocol = [
            Protocol::Http1,
            Protocol::Resp,
            Protocol::Memcached,
            Protocol::RequestResponse,
            Protocol::None,
        ][usize::from(kinds % 5)];
        p.on_backend_failure = [
            BackendFailure::ReplayIdempotent,
            BackendFailure::Replay,
            BackendFailure::AdoptIdleOnly,
            BackendFailure::Reset,
        ][usize::from(kinds >> 4 & 3)];
        p.migration.mode =
            [MigrationMode::Always, MigrationMode::DrainOnly, MigrationMode::WhenBetter]
                [usize::from(modes % 3)];
        // The tables of Maglev take a thousand times longer to build than all the rest.
        p.algorithm = match modes >> 2 & 31 {
            31 => Algorithm::Maglev,
            30 => Algorithm::Random,
            n if n & 1 != 0 => Algorithm::WeightedRoundRobin,
            _ => Algorithm::LeastOutstanding,
        };
        // What came later, where the committed inputs rarely are.
        match modes >> 2 & 31 {
            22 => p.migration.legs = Legs::Shared,
            23 => p.migration.method = MoveMethod::Translation,
            24 => p.migration.method = MoveMethod::Auto,
            25 => p.migration.per_backend_per_second = 1,
            26 => p.migration.mode = MigrationMode::Never,
            27 => p.migration.per_flow = 1,
            28..=30 => {
                if p.migration.mode == MigrationMode::Always {
                    p.migration.mode = MigrationMode::WhenBetter;
                }
                p.affinity =
                    Some(Affinity { client_ip: ClientIp { timeout: Micros::from_secs(1) } });
            }
            _ => {}
        }
        p.migration.per_second = if modes & 0x80 != 0 { 2 } else { 0 };
        p.migration.cooldown = Micros(if kinds & 0x80 != 0 { 5_000 } else { 0 });
        p.migration.gain = Micros(0);
        p.migration.ratio_percent = 100;
        p.health.failure_threshold = u32::from(kinds >> 6 & 1) * 2;
        p.health.base_ejection_time = Micros::from_millis(300);
        p.response_timeout = (limit != 0).then(|| Micros::from_millis(u64::from(limit) * 4));
        p.drain = Drain {
            quiet: Micros::from_millis(u64::from(drain & 7) * 100),
            deadline: Micros::from_millis(u64::from(drain >> 3 & 7) * 200),
            on_deadline: if drain & 0x80 != 0 { OnDeadline::Close } else { OnDeadline::Wait },
        };
        p.slow_start = Micros::from_millis(u64::from(drain >> 6 & 1) * 500);
        if p.algorithm == Algorithm::Maglev {
            p.slow_start = Micros(0);
        }
        // Longer than what is in progress has behind a drain's deadline (5 s).
        p.timeouts.idle = Micros::from_secs(8);
        p.timeouts.handshake = Micros::from_secs(2);
        p.timeouts.half_closed = Micros::from_secs(8);
        p
    }
}

const FLAGS: &[Flags] = &[
    Flags::ACK,
    PSH_ACK,
    FIN_ACK,
    RST_ACK,
    Flags::RST,
    Flags::SYN,
    Flags(Flags::SYN.0 | Flags::ACK.0),
    Flags::FIN,
    Flags(0),
    Flags(Flags::SYN.0 | Flags::FIN.0),
    Flags(Flags::SYN.0 | Flags::RST.0),
    Flags(Flags::ACK.0 | Flags::URG.0),
    Flags(Flags::PSH.0 | Flags::ACK.0 | Flags::FIN.0),
    Flags(Flags::SYN.0 | Flags::ECE.0 | Flags::CWR.0),
    Flags(0xff),
    Flags::PSH,
];

/// Around 0, pieces of the alphabets back and forth, windows, the wrap.
const OFFSETS: &[i32] = &[
    0,
    0,
    0,
    0,
    1,
    -1,
    2,
    -2,
    5,
    -5,
    14,
    -14,
    18,
    -18,
    -38,
    38,
    100,
    -100,
    1_448,
    -1_448,
    65_535,
    -65_535,
    1 << 24,
    -(1 << 24),
    1 << 30,
    -(1 << 30),
    i32::MAX,
    i32::MIN,
];

/// From within a millisecond to behind every timer: paced closes 250 us to 10 ms, adoption retries,
/// silence 250 ms and 2.2 s, orphans 10 s.
const WAITS_US: &[u64] = &[
    0, 1, 300, 999, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000, 20_000, 40_000, 60_000, 100_000,
    150_000, 250_000, 300_000, 500_000, 1_000_000, 1_300_000, 2_200_000, 3_000_000, 3_600_000,
    4_000_000, 5_000_000, 10_000_000, 15_000_000,
];

/// 1,300 bytes of a body: several of them fill what is kept of a request.
const MUCH: &[u8] = &[b'x'; 1_300];

const CLIENT_PIECES: &[&[u8]] = &[
    GET,
    b"",
    POST,
    b"GET / HT",
    b"TP/1.1\r\n\r\n",
    b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhe",
    b"llo",
    b"PUT / HTTP/1.1\r\ncontent-length: 5200\r\n\r\n",
    MUCH,
    b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n",
    b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n",
    b"0\r\n\r\n",
    b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b"HEAD / HTTP/1.0\r\n\r\n",
    PING,
    b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n",
    b"$1\r\nv\r\n",
    b"*1\r\n$5\r\nMULTI\r\n",
    b"*1\r\n$4\r\nEXEC\r\n",
    b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n",
    SELECT,
    AUTH,
    b"*1\r\n$5\r\nRESET\r\n",
    b"get a\r\n",
    b"set a 0 0 5\r\nhel",
    b"lo\r\n",
    b"delete a noreply\r\n",
    b"mg a v\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"x",
    b"\0\xff\r\n",
];

const POD_PIECES: &[&[u8]] = &[
    OK,
    b"",
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe",
    b"llo",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 S\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nhalf",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n",
    b"0\r\n\r\n",
    b"HTTP/1.1 204 N\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n",
    b"HTTP/1.1 304 N\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    b"+PONG\r\n",
    b"+OK\r\n",
    b"+OK\r\n+OK\r\n",
    b"+QUEUED\r\n",
    b"*1\r\n+OK\r\n",
    b"-ERR\r\n",
    b"$1\r\nv\r\n",
    b"$-1\r\n",
    b"END\r\n",
    b"VALUE a 0 5\r\nhello\r\nEND\r\n",
    b"STORED\r\n",
    b"VA 1\r\nx\r\n",
    b"ERROR\r\n",
    MUCH,
    b"x",
    b"\0\xff\r\n",
];

/// A session that goes with its flow.
pub const AUTH: &[u8] = b"*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n";

/// A request and its response in a protocol.
pub fn talk(protocol: Protocol) -> (&'static [u8], &'static [u8]) {
    match protocol {
        Protocol::Resp => (PING, b"+PONG\r\n"),
        Protocol::Memcached => (b"get a\r\n", b"END\r\n"),
        _ => (GET, OK),
    }
}
