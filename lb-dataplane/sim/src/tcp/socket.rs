//! The state of one connection and what its application does with it.
//!
//! Owns every field and the application's calls. What segments do is in `input`, what is sent and
//! when in `output`.

use super::{
    buffer::{ReceiveBuffer, SendBuffer},
    wire::{Ends, Offer, Seg, stamp_clock},
};
use crate::clock::{MS, SECOND, Time};
use baton_packet::SeqNumber;

/// First retransmission timeout before anything was measured (RFC 6298 section 2; Linux
/// `TCP_TIMEOUT_INIT`).
pub(super) const RTO_FIRST: Time = SECOND;
/// Linux `TCP_RTO_MIN`.
pub(super) const RTO_MIN: Time = 200 * MS;
/// Linux `TCP_RTO_MAX`.
pub(super) const RTO_MAX: Time = 120 * SECOND;
/// Linux `tcp_retries2`.
const RETRIES_MAX: u8 = 15;
/// Linux `tcp_orphan_retries`, for sockets without a process.
const ORPHAN_RETRIES_MAX: u8 = 8;
/// Linux `tcp_syn_retries` and, one less, `tcp_synack_retries`.
const SYN_RETRIES_MAX: u8 = 6;
/// Linux `TCP_TIMEWAIT_LEN`, and `tcp_fin_timeout` for orphans in FIN_WAIT_2.
pub(super) const TIME_WAIT: Time = 60 * SECOND;

/// What differs between endpoints.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Own largest segment, as the SYN says it.
    pub mss: u16,
    /// Window scale to offer.
    pub scale: Option<u8>,
    /// Whether to offer selective acknowledgements.
    pub sack: bool,
    /// Whether to offer timestamps.
    pub stamps: bool,
    /// Bytes of the receive buffer.
    pub buffer: u32,
    /// How long an acknowledgement may wait for data to go with; 0 is not at all.
    pub delayed_ack_us: Time,
}

/// RFC 9293 section 3.3.2, without LISTEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// SYN sent.
    SynSent,
    /// SYN-ACK sent.
    SynReceived,
    /// Open.
    Established,
    /// Own FIN sent.
    FinWait1,
    /// And acknowledged.
    FinWait2,
    /// The peer's FIN received.
    CloseWait,
    /// Both sent, own one not acknowledged.
    Closing,
    /// The peer's FIN received, own one sent.
    LastAck,
    /// Both done, remembered for a while.
    TimeWait,
    /// Nothing left.
    Closed,
}

/// Why a connection is over although its application did not close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer refused the SYN.
    Refused,
    /// The peer reset it.
    Reset,
    /// The peer answered nothing for too long.
    TimedOut,
}

/// What an adoption tells the socket that it makes.
#[derive(Clone, Copy, Debug)]
pub struct Adopted {
    /// The client's MSS.
    pub mss: u16,
    /// Own scale and the client's, if scaling was negotiated.
    pub scales: Option<(u8, u8)>,
    /// Whether selective acknowledgements were negotiated.
    pub sack: bool,
    /// Own timestamp to go on from and the client's last one, if timestamps were negotiated.
    pub stamps: Option<(u32, u32)>,
}

/// One connection.
pub struct Socket {
    pub(super) config: Config,
    /// Both ends.
    pub ends: Ends,
    pub(super) state: State,
    pub(super) failure: Option<Failure>,
    /// No process has it any more.
    pub(super) orphan: bool,

    pub(super) iss: SeqNumber,
    pub(super) snd_una: SeqNumber,
    pub(super) snd_nxt: SeqNumber,
    pub(super) snd_wnd: u32,
    pub(super) snd_wnd_max: u32,
    pub(super) snd_wl1: SeqNumber,
    pub(super) snd_scale: u8,
    pub(super) mss: usize,
    pub(super) out: SendBuffer,
    pub(super) fin_wanted: bool,
    /// Where the own FIN is, while it is sent and not acknowledged.
    pub(super) fin_seq: Option<SeqNumber>,
    pub(super) fin_acked: bool,

    pub(super) rcv_nxt: SeqNumber,
    /// `rcv_nxt` when the last ACK left (Linux `rcv_wup`).
    pub(super) rcv_wup: SeqNumber,
    /// The right edge of the window that was advertised; it never shrinks.
    pub(super) rcv_edge: SeqNumber,
    pub(super) rcv_scale: u8,
    pub(super) in_: ReceiveBuffer,
    /// Where the peer's FIN is, once one was seen.
    pub(super) peer_fin: Option<SeqNumber>,
    pub(super) peer_done: bool,

    pub(super) stamps: bool,
    pub(super) stamp_offset: u32,
    pub(super) ts_recent: u32,

    pub(super) ack_now: bool,
    pub(super) ack_at: Option<Time>,
    pub(super) unacked: u8,
    pub(super) rto: Time,
    pub(super) rto_at: Option<Time>,
    pub(super) backoff: u8,
    pub(super) probing: bool,
    pub(super) dup_acks: u8,
    /// Everything below it is being sent again, one segment for each ACK that makes progress.
    pub(super) recover: Option<SeqNumber>,
    /// The first unacknowledged segment is to be sent once more.
    pub(super) resend: bool,
    pub(super) timed: Option<(SeqNumber, Time)>,
    pub(super) out_of_window_at: Option<Time>,
    pub(super) wait_until: Option<Time>,
    /// Segments sent again.
    pub retransmissions: u32,
}

impl Socket {
    fn new(config: Config, ends: Ends, state: State, iss: SeqNumber) -> Self {
        Self {
            config,
            ends,
            state,
            failure: None,
            orphan: false,
            iss,
            snd_una: iss,
            snd_nxt: iss,
            snd_wnd: 0,
            snd_wnd_max: 0,
            snd_wl1: SeqNumber(0),
            snd_scale: 0,
            mss: 536,
            out: SendBuffer::default(),
            fin_wanted: false,
            fin_seq: None,
            fin_acked: false,
            rcv_nxt: SeqNumber(0),
            rcv_wup: SeqNumber(0),
            rcv_edge: SeqNumber(0),
            rcv_scale: 0,
            in_: ReceiveBuffer::default(),
            peer_fin: None,
            peer_done: false,
            stamps: config.stamps,
            stamp_offset: iss.0.rotate_left(11),
            ts_recent: 0,
            ack_now: false,
            ack_at: None,
            unacked: 0,
            rto: RTO_FIRST,
            rto_at: None,
            backoff: 0,
            probing: false,
            dup_acks: 0,
            recover: None,
            resend: false,
            timed: None,
            out_of_window_at: None,
            wait_until: None,
            retransmissions: 0,
        }
    }

    /// Opens a connection; the SYN leaves with the next [`Socket::poll`].
    #[must_use]
    pub fn connect(config: Config, ends: Ends, iss: SeqNumber) -> Self {
        Self::new(config, ends, State::SynSent, iss)
    }

    /// Answers a SYN; the SYN-ACK leaves with the next [`Socket::poll`].
    #[must_use]
    pub fn answer(config: Config, ends: Ends, iss: SeqNumber, syn: &Seg<'_>) -> Self {
        let mut socket = Self::new(config, ends, State::SynReceived, iss);
        socket.negotiate(syn);
        socket
    }

    /// The socket that an adoption makes of a segment: ESTABLISHED, nothing sent (Linux
    /// `bpf_sk_assign_tcp_reqsk`, `cookie_bpf_check`, `tcp_get_cookie_sock`).
    #[must_use]
    pub fn adopt(config: Config, ends: Ends, now: Time, seg: &Seg<'_>, how: &Adopted) -> Self {
        let mut socket = Self::new(config, ends, State::Established, seg.ack.sub(1));
        socket.snd_una = seg.ack;
        socket.snd_nxt = seg.ack;
        socket.mss = usize::from(how.mss.min(config.mss));
        (socket.rcv_scale, socket.snd_scale) = how.scales.unwrap_or_default();
        socket.config.sack = how.sack;
        socket.snd_wl1 = seg.seq;
        socket.snd_wnd = u32::from(seg.window) << socket.snd_scale;
        socket.snd_wnd_max = socket.snd_wnd;
        socket.start_receiving(seg.seq);
        socket.stamps = how.stamps.is_some();
        if let Some((own, client)) = how.stamps {
            socket.stamp_offset = own.wrapping_sub(stamp_clock(now));
            socket.ts_recent = client;
        }
        socket
    }

    /// In another place from now on (`TCP_REPAIR`): its timers and what it measured are new, and it
    /// says something at once.
    pub fn restored(&mut self, now: Time, ends: Ends) {
        self.ends = ends;
        (self.rto, self.backoff, self.timed) = (RTO_FIRST, 0, None);
        (self.ack_now, self.ack_at) = (true, None);
        self.rto_at = self.rto_at.map(|_| now + RTO_FIRST);
        (self.dup_acks, self.recover, self.resend) = (0, None, false);
    }

    pub(super) fn start_receiving(&mut self, next: SeqNumber) {
        self.rcv_nxt = next;
        self.rcv_wup = next;
        self.rcv_edge = next.add(self.config.buffer.min(self.window_max()));
    }

    pub(super) fn window_max(&self) -> u32 {
        u32::from(u16::MAX) << self.rcv_scale
    }

    /// Takes what both sides offered.
    pub(super) fn negotiate(&mut self, syn: &Seg<'_>) {
        let (theirs, stamps) = syn.offer();
        self.mss = usize::from(theirs.mss.min(self.config.mss));
        self.stamps &= stamps;
        self.config.sack &= theirs.sack;
        match (self.config.scale, theirs.scale) {
            (Some(own), Some(their)) => (self.rcv_scale, self.snd_scale) = (own, their),
            _ => self.config.scale = None,
        }
        if self.stamps {
            self.ts_recent = syn.stamps.map_or(0, |(value, _)| value);
        }
        // The window of a SYN is never scaled.
        self.snd_wnd = u32::from(syn.window);
        self.snd_wnd_max = self.snd_wnd;
        self.snd_wl1 = syn.seq;
        self.start_receiving(syn.seq.add(1));
    }

    /// What a SYN or SYN-ACK of this socket says.
    pub(super) fn offer(&self) -> Offer {
        Offer { mss: self.config.mss, scale: self.config.scale, sack: self.config.sack }
    }

    /// Gives bytes to send.
    pub fn send(&mut self, bytes: &[u8]) {
        debug_assert!(!self.fin_wanted, "sent after a close");
        self.out.push(bytes);
    }

    /// Reads at most `max` bytes.
    pub fn recv(&mut self, to: &mut Vec<u8>, max: usize) -> usize {
        let n = self.in_.read(to, max);
        if n > 0 {
            self.window_opens();
        }
        n
    }

    /// Closes the sending side: FIN behind everything sent.
    pub fn close(&mut self) {
        match self.state {
            State::SynSent => self.over(None),
            State::SynReceived | State::Established | State::CloseWait => self.fin_wanted = true,
            _ => {}
        }
    }

    /// The process is gone or has closed for good: nobody will read what comes (Linux `tcp_close`).
    /// `false` if bytes were left unread, so that the connection has to be reset instead.
    #[must_use]
    pub fn orphan(&mut self) -> bool {
        self.orphan = true;
        if self.in_.unread() > 0 {
            return false;
        }
        self.close();
        if self.state == State::FinWait2 {
            self.wait_until.get_or_insert(0);
        }
        true
    }

    pub(super) fn over(&mut self, failure: Option<Failure>) {
        self.state = State::Closed;
        self.failure = self.failure.or(failure);
        (self.rto_at, self.ack_at, self.wait_until) = (None, None, None);
        self.ack_now = false;
    }

    /// Where the connection is.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Why it failed.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Bytes that the application has not read.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.in_.unread()
    }

    /// Bytes given to send that the peer has not acknowledged.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.out.len()
    }

    /// Whether the peer closed and everything is read.
    #[must_use]
    pub fn at_end(&self) -> bool {
        self.peer_done && self.in_.unread() == 0
    }

    /// Whether the peer's FIN came.
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        self.peer_done
    }

    /// Whether no process has it.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.orphan
    }

    /// Next byte expected from the peer.
    #[must_use]
    pub fn rcv_nxt(&self) -> SeqNumber {
        self.rcv_nxt
    }

    /// Next byte that the application reads (Linux `copied_seq`).
    #[must_use]
    pub fn read_to(&self) -> SeqNumber {
        self.rcv_nxt.sub(self.in_.unread() as u32)
    }

    /// Next byte to be sent.
    #[must_use]
    pub fn snd_nxt(&self) -> SeqNumber {
        self.snd_nxt
    }

    pub(super) fn retries_max(&self) -> u8 {
        match self.state {
            State::SynSent => SYN_RETRIES_MAX,
            State::SynReceived => SYN_RETRIES_MAX - 1,
            _ if self.orphan => ORPHAN_RETRIES_MAX,
            _ => RETRIES_MAX,
        }
    }
}
