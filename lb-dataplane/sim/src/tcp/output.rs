//! What a connection sends, and when.
//!
//! Owns windows, retransmission, delayed acknowledgements, probes and deadlines. It never looks at
//! arriving segments.

use super::{
    socket::{Failure, RTO_MAX, Socket, State, TIME_WAIT},
    wire::{Out, build},
};
use crate::clock::Time;
use baton_packet::{Flags, SeqNumber};

/// Segments in flight at most, in place of congestion control (Linux `TCP_INIT_CWND` is 10).
const FLIGHT_SEGMENTS: usize = 10;

impl Socket {
    /// Sends what is due or possible.
    pub fn poll(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        if self.state == State::Closed {
            return;
        }
        if let Some(until) = self.wait_until {
            if until == 0 {
                self.wait_until = Some(now + TIME_WAIT);
            } else if now >= until {
                return self.over(None);
            }
        }
        match self.state {
            State::SynSent | State::SynReceived => return self.shake(now, out),
            State::TimeWait => {}
            _ => {
                if self.rto_at.is_some_and(|at| now >= at) && !self.timed_out(now, out) {
                    return;
                }
                if std::mem::take(&mut self.resend) && self.snd_una != self.snd_nxt {
                    self.send_head(now, out);
                }
                self.send_new(now, out);
                if self.snd_una != self.snd_nxt {
                    self.arm(now);
                }
            }
        }
        if self.ack_now || self.ack_at.is_some_and(|at| now >= at) {
            self.emit(now, self.snd_nxt, 0..0, false, out);
        }
    }

    /// When [`Socket::poll`] has to be called next; at once if something can be sent now.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let handshake = matches!(self.state, State::SynSent | State::SynReceived);
        let now_due = (handshake && self.rto_at.is_none()) || self.ack_now || self.resend;
        let some = [now_due.then_some(0), self.rto_at, self.ack_at, self.wait_until];
        if self.state == State::Closed {
            return None;
        }
        some.into_iter().flatten().min()
    }

    fn shake(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        if self.rto_at.is_some_and(|at| now < at) {
            if std::mem::take(&mut self.ack_now) {
                // Linux `tcp_v4_reqsk_send_ack`: no SYN-ACK.
                self.emit(now, self.iss.add(1), 0..0, false, out);
            }
            return;
        }
        if self.rto_at.is_some() {
            self.backoff += 1;
            self.retransmissions += 1;
            self.timed = None;
            if self.backoff > self.retries_max() {
                return self.over(Some(Failure::TimedOut));
            }
        } else {
            self.timed = Some((self.iss, now));
        }
        self.ack_now = false;
        self.snd_nxt = self.iss.add(1);
        self.emit_offer(now, out);
        self.rto_at = Some(now + (self.rto << self.backoff).min(RTO_MAX));
    }

    fn emit_offer(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        let answers = self.state == State::SynReceived;
        let segment = Out {
            seq: self.iss,
            ack: answers.then_some(self.rcv_nxt),
            flags: Flags::SYN,
            window: self.config.buffer.min(u32::from(u16::MAX)) as u16,
            offer: Some(self.offer()),
            stamps: self.stamps.then(|| (self.stamp(now), self.ts_recent)),
            data: &[],
        };
        out.push(build(&self.ends, &segment));
    }

    /// The retransmission or probe timer ended. `false` if the connection is given up.
    fn timed_out(&mut self, now: Time, out: &mut Vec<Vec<u8>>) -> bool {
        self.backoff += 1;
        if self.backoff > self.retries_max() {
            self.over(Some(Failure::TimedOut));
            return false;
        }
        self.rto_at = None;
        if self.snd_una != self.snd_nxt {
            self.recover = Some(self.snd_nxt);
            self.dup_acks = 0;
            self.send_head(now, out);
        } else if self.probing {
            // Linux `tcp_xmit_probe_skb`: an empty segment below the window.
            self.emit(now, self.snd_una.sub(1), 0..0, false, out);
        }
        self.arm(now);
        true
    }

    pub(super) fn arm(&mut self, now: Time) {
        self.rto_at.get_or_insert(now + (self.rto << self.backoff.min(16)).min(RTO_MAX));
    }

    fn payload_max(&self) -> usize {
        self.mss - if self.stamps { 12 } else { 0 }
    }

    /// The first unacknowledged segment once more.
    fn send_head(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        self.retransmissions += 1;
        self.timed = None;
        let fin = self.fin_seq;
        let flight = self.snd_nxt.since(self.snd_una) as usize - usize::from(fin.is_some());
        // A window that shrank to nothing is still probed with one byte.
        let n = flight.min(self.payload_max()).min(self.snd_wnd.max(1) as usize);
        let ends = fin == Some(self.snd_una.add(n as u32));
        self.emit(now, self.snd_una, 0..n, ends, out);
        self.arm(now);
    }

    fn send_new(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        // Behind the own FIN nothing follows.
        while self.fin_seq.is_none() && !self.fin_acked {
            let flight = self.snd_nxt.since(self.snd_una) as usize;
            let left = self.out.len().saturating_sub(flight);
            if left == 0 && !self.fin_wanted {
                break;
            }
            let most = self.payload_max();
            let room = (self.snd_wnd as usize).saturating_sub(flight);
            if room == 0 || flight / most >= FLIGHT_SEGMENTS {
                if flight == 0 {
                    self.probing = true;
                    self.arm(now);
                }
                break;
            }
            let n = left.min(most).min(room);
            let fin = self.fin_wanted && n == left;
            let seq = self.snd_nxt;
            self.snd_nxt = seq.add(n as u32 + u32::from(fin));
            if fin {
                self.fin_seq = Some(seq.add(n as u32));
                self.state = match self.state {
                    State::CloseWait => State::LastAck,
                    _ => State::FinWait1,
                };
            }
            self.timed.get_or_insert((seq, now));
            self.probing = false;
            self.emit(now, seq, flight..flight + n, fin, out);
            self.arm(now);
        }
    }

    /// The window to advertise; its right edge never moves back.
    fn window(&mut self) -> u16 {
        let free = self.config.buffer.saturating_sub(self.in_.unread() as u32);
        let scaled = free.min(self.window_max()) >> self.rcv_scale << self.rcv_scale;
        self.rcv_edge = self.rcv_edge.max(self.rcv_nxt.add(scaled));
        let window = self.rcv_edge.since(self.rcv_nxt).max(0) as u32;
        // A remainder below the scale is promised up to the next unit by whoever rounds up, never
        // by us.
        (window >> self.rcv_scale).min(u32::from(u16::MAX)) as u16
    }

    /// The application read: the peer is told if that makes a difference (RFC 9293 section
    /// 3.8.6.2.2).
    pub(super) fn window_opens(&mut self) {
        let free = self.config.buffer.saturating_sub(self.in_.unread() as u32);
        let known = self.rcv_edge.since(self.rcv_nxt).max(0) as u32;
        let step = (2 * self.mss as u32).min(self.config.buffer / 2).max(1);
        let open = !self.peer_done && self.state != State::Closed;
        if open && free.min(self.window_max()) >= known.saturating_add(step) {
            self.ack_now = true;
        }
    }

    fn emit(
        &mut self,
        now: Time,
        seq: SeqNumber,
        bytes: std::ops::Range<usize>,
        fin: bool,
        out: &mut Vec<Vec<u8>>,
    ) {
        let window = self.window();
        self.ack_now = false;
        self.ack_at = None;
        self.unacked = 0;
        self.rcv_wup = self.rcv_nxt;
        let data = self.out.slice(bytes.start, bytes.len());
        let mut flags = if data.is_empty() { Flags(0) } else { Flags::PSH };
        if fin {
            flags = flags | Flags::FIN;
        }
        let segment = Out {
            seq,
            ack: Some(self.rcv_nxt),
            flags,
            window,
            offer: None,
            stamps: self.stamps.then(|| (self.stamp(now), self.ts_recent)),
            data,
        };
        out.push(build(&self.ends, &segment));
    }
}
