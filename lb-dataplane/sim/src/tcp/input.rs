//! What an arriving segment does to a connection.
//!
//! Owns RFC 9293 section 3.10.7 in the order of Linux `tcp_rcv_established` and
//! `tcp_rcv_state_process`. It never sends: `output` does, from what is noted here.

use super::{
    socket::{Failure, RTO_MIN, Socket, State, TIME_WAIT},
    wire::{Out, Seg, build, reset_for, stamp_clock},
};
use crate::clock::{MS, Time};
use baton_packet::{Flags, SeqNumber};

/// Linux `tcp_invalid_ratelimit`: answers to segments out of the window, one in this time.
const OUT_OF_WINDOW_PAUSE: Time = 500 * MS;
/// By then a kernel has given a handshake up (Linux `tcp_synack_retries`: 5).
const SYN_ACK_AGE_MAX_MS: u32 = 63_000;
/// Duplicate acknowledgements that mean a loss (RFC 5681 section 3.2).
const DUP_ACKS: u8 = 3;

/// What a segment brought, beyond what the socket itself remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing to tell.
    None,
    /// The handshake is complete.
    Opened,
    /// A SYN that may open a new connection on the tuple of a socket in TIME_WAIT.
    Reopen,
}

impl Socket {
    /// A segment for this connection arrived. Frames that cannot wait go to `out`; call
    /// [`Socket::poll`] afterwards.
    pub fn segment(&mut self, now: Time, seg: &Seg<'_>, out: &mut Vec<Vec<u8>>) -> Effect {
        match self.state {
            State::Closed => Effect::None,
            State::SynSent => self.in_syn_sent(now, seg, out),
            State::SynReceived => self.in_syn_received(now, seg, out),
            State::TimeWait => self.in_time_wait(now, seg),
            _ => {
                self.in_connected(now, seg, out);
                Effect::None
            }
        }
    }

    fn in_syn_sent(&mut self, now: Time, seg: &Seg<'_>, out: &mut Vec<Vec<u8>>) -> Effect {
        let acks = seg.flags.has(Flags::ACK);
        if acks && seg.ack != self.iss.add(1) {
            out.extend(reset_for(&self.ends, seg));
            return Effect::None;
        }
        if seg.flags.has(Flags::RST) {
            if acks {
                self.over(Some(Failure::Refused));
            }
            return Effect::None;
        }
        if !acks || !seg.flags.has(Flags::SYN) {
            return Effect::None;
        }
        self.negotiate(seg);
        self.snd_una = seg.ack;
        self.measured(now, seg.ack);
        (self.rto_at, self.backoff) = (None, 0);
        self.state = State::Established;
        self.ack_now = true;
        Effect::Opened
    }

    /// Linux `tcp_check_req`.
    fn in_syn_received(&mut self, now: Time, seg: &Seg<'_>, out: &mut Vec<Vec<u8>>) -> Effect {
        let first = self.rcv_nxt;
        if seg.flags.has(Flags::SYN) && !seg.flags.has(Flags::ACK) && seg.seq.add(1) == first {
            // The SYN again: the SYN-ACK again.
            self.rto_at = Some(now);
            return Effect::None;
        }
        let stale = self.paws_rejects(seg) || self.echoes_another(now, seg);
        if stale || !self.in_window(seg) {
            if !seg.flags.has(Flags::RST) {
                self.ack_now = true;
            }
            return Effect::None;
        }
        if seg.flags.any(Flags::RST | Flags::SYN) {
            if seg.flags.has(Flags::SYN) {
                out.extend(reset_for(&self.ends, seg));
            }
            self.over(Some(Failure::Reset));
            return Effect::None;
        }
        if !seg.flags.has(Flags::ACK) {
            return Effect::None;
        }
        if seg.ack != self.iss.add(1) {
            out.extend(reset_for(&self.ends, seg));
            return Effect::None;
        }
        self.snd_una = seg.ack;
        self.measured(now, seg.ack);
        (self.rto_at, self.backoff) = (None, 0);
        self.state = State::Established;
        self.snd_wnd = u32::from(seg.window) << self.snd_scale;
        self.snd_wnd_max = self.snd_wnd;
        self.snd_wl1 = seg.seq;
        self.in_connected(now, seg, out);
        Effect::Opened
    }

    /// A timestamp that no SYN-ACK of ours had (Linux from 6.15: `tsecr_reject`).
    fn echoes_another(&self, now: Time, seg: &Seg<'_>) -> bool {
        let since = |echo: u32| self.stamp(now).wrapping_sub(echo);
        let echo = seg.stamps.filter(|_| self.stamps).map(|(_, echo)| echo);
        echo.is_some_and(|echo| echo != 0 && since(echo) > SYN_ACK_AGE_MAX_MS)
    }

    /// Linux `tcp_timewait_state_process`.
    fn in_time_wait(&mut self, now: Time, seg: &Seg<'_>) -> Effect {
        let stale = self.paws_rejects(seg);
        let exact = seg.seq == self.rcv_nxt && seg.end() == seg.seq;
        if !stale && seg.flags.has(Flags::RST) && seg.seq == self.rcv_nxt {
            self.over(None);
            return Effect::None;
        }
        if !stale && exact {
            self.wait_until = Some(now + TIME_WAIT);
            return Effect::None;
        }
        if seg.flags.has(Flags::SYN)
            && !seg.flags.any(Flags::RST | Flags::ACK)
            && !stale
            && seg.seq.after(self.rcv_nxt)
        {
            return Effect::Reopen;
        }
        if !seg.flags.has(Flags::RST) {
            self.wait_until = Some(now + TIME_WAIT);
            self.challenge(now);
        }
        Effect::None
    }

    fn in_connected(&mut self, now: Time, seg: &Seg<'_>, out: &mut Vec<Vec<u8>>) {
        if !self.acceptable(now, seg, out) {
            return;
        }
        if !seg.flags.has(Flags::ACK) {
            return;
        }
        self.take_stamp(seg);
        if !self.acknowledged(now, seg) || self.state == State::Closed {
            return;
        }
        self.text(now, seg, out);
    }

    /// Linux `tcp_validate_incoming`.
    fn acceptable(&mut self, now: Time, seg: &Seg<'_>, out: &mut Vec<Vec<u8>>) -> bool {
        let rst = seg.flags.has(Flags::RST);
        if self.paws_rejects(seg) && !self.late_ack(seg) && !rst {
            self.answer_out_of_window(now, seg);
            return false;
        }
        if !self.in_window(seg) {
            if rst {
                if self.reset_behind_fin(seg) {
                    self.over(Some(Failure::Reset));
                }
            } else if seg.flags.has(Flags::SYN) {
                self.syn_in_connected(now, seg, out);
            } else {
                self.answer_out_of_window(now, seg);
            }
            return false;
        }
        if rst {
            // RFC 5961 section 3.2.
            if seg.seq == self.rcv_nxt || self.reset_behind_fin(seg) {
                self.over(Some(Failure::Reset));
            } else {
                self.challenge(now);
            }
            return false;
        }
        if seg.flags.has(Flags::SYN) {
            self.syn_in_connected(now, seg, out);
            return false;
        }
        true
    }

    /// RFC 5961 section 4.2; an orphan in FIN_WAIT_2 is a time-wait socket in Linux, which resets.
    fn syn_in_connected(&mut self, now: Time, seg: &Seg<'_>, out: &mut Vec<Vec<u8>>) {
        let waits = self.orphan && self.state == State::FinWait2;
        if waits && seg.seq.at_or_after(self.rcv_nxt) {
            out.extend(reset_for(&self.ends, seg));
        } else {
            self.challenge(now);
        }
    }

    /// Linux `tcp_reset_check`.
    fn reset_behind_fin(&self, seg: &Seg<'_>) -> bool {
        seg.seq == self.rcv_nxt.sub(1)
            && matches!(self.state, State::CloseWait | State::LastAck | State::Closing)
    }

    /// RFC 7323 section 5; Linux `tcp_paws_check` with its window of one tick.
    fn paws_rejects(&self, seg: &Seg<'_>) -> bool {
        match seg.stamps {
            Some((value, _)) if self.stamps && self.ts_recent != 0 => {
                self.ts_recent.wrapping_sub(value) as i32 > 1
            }
            _ => false,
        }
    }

    /// Linux `tcp_disordered_ack`: a pure ACK that was overtaken is no old duplicate.
    fn late_ack(&self, seg: &Seg<'_>) -> bool {
        let Some((value, _)) = seg.stamps else {
            return false;
        };
        let age_ms = self.ts_recent.wrapping_sub(value);
        seg.flags.has(Flags::ACK)
            && seg.end() == seg.seq
            && seg.seq == self.rcv_nxt
            && seg.ack == self.snd_una
            && u32::from(seg.window) << self.snd_scale == self.snd_wnd
            && u64::from(age_ms) <= self.rto * 6 / 5 / MS
    }

    /// Linux `tcp_sequence`.
    fn in_window(&self, seg: &Seg<'_>) -> bool {
        seg.end().at_or_after(self.rcv_wup) && seg.seq.at_or_before(self.rcv_edge.max(self.rcv_nxt))
    }

    /// Linux `tcp_oow_rate_limited` and `tcp_send_dupack`: segments with data are answered always.
    fn answer_out_of_window(&mut self, now: Time, seg: &Seg<'_>) {
        if seg.data.is_empty() && !seg.flags.has(Flags::FIN) {
            self.challenge(now);
        } else {
            self.ack_now = true;
        }
    }

    fn challenge(&mut self, now: Time) {
        let limited = |at| now < at + OUT_OF_WINDOW_PAUSE;
        if self.out_of_window_at.is_some_and(limited) {
            return;
        }
        self.out_of_window_at = Some(now);
        self.ack_now = true;
    }

    /// Linux `tcp_replace_ts_recent`.
    fn take_stamp(&mut self, seg: &Seg<'_>) {
        if let Some((value, _)) = seg.stamps
            && self.stamps
            && seg.seq.at_or_before(self.rcv_wup)
            && value.wrapping_sub(self.ts_recent) as i32 >= 0
        {
            self.ts_recent = value;
        }
    }

    /// Linux `tcp_ack`. `false` if the segment is to be dropped.
    fn acknowledged(&mut self, now: Time, seg: &Seg<'_>) -> bool {
        if seg.ack.before(self.snd_una) {
            if seg.ack.before(self.snd_una.sub(self.snd_wnd_max)) {
                // RFC 5961 section 5.2.
                self.challenge(now);
                return false;
            }
            return true;
        }
        if seg.ack.after(self.snd_nxt) {
            if !matches!(self.state, State::Established | State::CloseWait) {
                self.challenge(now);
            }
            return false;
        }
        let window = u32::from(seg.window) << self.snd_scale;
        let progress = seg.ack.after(self.snd_una);
        let same = window == self.snd_wnd;
        let newer = seg.seq.after(self.snd_wl1)
            || (seg.seq == self.snd_wl1 && (window > self.snd_wnd || window == 0));
        if progress || newer {
            self.snd_wnd = window;
            self.snd_wnd_max = self.snd_wnd_max.max(window);
            self.snd_wl1 = seg.seq;
        }
        if progress {
            self.progress(now, seg.ack);
        } else if seg.data.is_empty() && same && self.snd_nxt.after(self.snd_una) {
            self.dup_acks = self.dup_acks.saturating_add(1);
            if self.dup_acks == DUP_ACKS && self.recover.is_none() {
                self.recover = Some(self.snd_nxt);
                self.resend = true;
            }
        }
        if self.probing && self.snd_wnd > 0 {
            (self.probing, self.rto_at, self.backoff) = (false, None, 0);
        }
        true
    }

    fn progress(&mut self, now: Time, ack: SeqNumber) {
        let fin_acked = self.fin_seq.is_some_and(|fin| ack.after(fin));
        let bytes = ack.since(self.snd_una) as usize - usize::from(fin_acked);
        self.out.acked(bytes);
        self.snd_una = ack;
        self.measured(now, ack);
        (self.dup_acks, self.backoff) = (0, 0);
        // RFC 6298 section 5, (5.2) and (5.3): restarted for what is still on its way, a FIN alone,
        // too.
        self.rto_at = None;
        if self.snd_una != self.snd_nxt {
            self.arm(now);
        }
        if let Some(recover) = self.recover {
            if ack.at_or_after(recover) {
                self.recover = None;
            } else {
                // A partial ACK: the next hole (RFC 6582 section 3.2).
                self.resend = true;
            }
        }
        if fin_acked {
            self.fin_seq = None;
            self.fin_acked = true;
            match self.state {
                State::FinWait1 => {
                    self.state = State::FinWait2;
                    if self.orphan {
                        self.wait_until = Some(now + TIME_WAIT);
                    }
                }
                State::Closing => self.time_wait(now),
                State::LastAck => self.over(None),
                _ => {}
            }
        }
    }

    fn time_wait(&mut self, now: Time) {
        self.state = State::TimeWait;
        self.rto_at = None;
        self.wait_until = Some(now + TIME_WAIT);
    }

    /// RFC 6298 with one timed segment and Karn's rule.
    fn measured(&mut self, now: Time, ack: SeqNumber) {
        if let Some((seq, at)) = self.timed
            && ack.after(seq)
        {
            self.timed = None;
            // Three times the measured time holds delayed ACKs and jitter of these links.
            self.rto = RTO_MIN.max(RTO_MIN + 3 * (now - at));
        }
    }

    /// Payload and FIN: Linux `tcp_data_queue`, `tcp_fin`.
    fn text(&mut self, now: Time, seg: &Seg<'_>, out: &mut Vec<Vec<u8>>) {
        let fin = seg.flags.has(Flags::FIN);
        let closed_by_peer =
            matches!(self.state, State::CloseWait | State::Closing | State::LastAck);
        if seg.data.is_empty() && !fin {
            return;
        }
        let data_end = seg.seq.add(seg.data.len() as u32);
        if self.orphan && !seg.data.is_empty() && data_end.after(self.rcv_nxt) && !closed_by_peer {
            // Nobody will ever read it (Linux `TCP_ABORT_ON_DATA`).
            out.extend(reset_for(&self.ends, seg));
            self.over(Some(Failure::Reset));
            return;
        }
        if seg.end().at_or_before(self.rcv_nxt) {
            // All of it was here before: acknowledged at once, without a limit.
            self.ack_now = true;
            return;
        }
        if closed_by_peer {
            return;
        }
        let old = self.rcv_nxt.since(seg.seq).max(0) as usize;
        let data = seg.data.get(old..).unwrap_or_default();
        let at = self.rcv_nxt.max(seg.seq);
        let room = self.rcv_edge.since(at).max(0) as usize;
        let fits = data.len() <= room;
        let data = &data[..data.len().min(room)];
        if at != self.rcv_nxt {
            // smoltcp's clients ask with a byte in front of their next number, be it the place of a
            // FIN that is still on its way. No client writes such a byte.
            if !data.is_empty() && data != [0] {
                self.in_.early(at, data);
            }
            if fin && fits {
                self.peer_fin = Some(data_end);
            }
            self.ack_now = true;
            return;
        }
        if !data.is_empty() {
            let had_gap = self.in_.has_gap();
            self.rcv_nxt = self.in_.in_order(self.rcv_nxt, data);
            self.unacked = self.unacked.saturating_add(1);
            let delay = self.config.delayed_ack_us;
            if had_gap || delay == 0 || self.unacked >= 2 {
                self.ack_now = true;
            } else {
                self.ack_at.get_or_insert(now + delay);
            }
        }
        if !fits {
            self.ack_now = true;
        } else if fin {
            self.peer_fin = Some(data_end);
        }
        if self.peer_fin == Some(self.rcv_nxt) {
            self.peer_finished(now);
        }
    }

    fn peer_finished(&mut self, now: Time) {
        self.peer_fin = None;
        self.peer_done = true;
        self.rcv_nxt = self.rcv_nxt.add(1);
        self.ack_now = true;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.time_wait(now),
            _ => {}
        }
    }

    /// Resets the connection: the frame that says so, if the peer may know it (Linux
    /// `tcp_send_active_reset`).
    #[must_use]
    pub fn abort(&mut self, now: Time) -> Option<Vec<u8>> {
        let known = !matches!(
            self.state,
            State::Closed | State::SynSent | State::TimeWait | State::FinWait2
        );
        let frame = known.then(|| {
            build(
                &self.ends,
                &Out {
                    seq: self.snd_nxt,
                    ack: Some(self.rcv_nxt),
                    flags: Flags::RST,
                    window: 0,
                    offer: None,
                    stamps: self.stamps.then(|| (self.stamp(now), self.ts_recent)),
                    data: &[],
                },
            )
        });
        self.over(None);
        frame
    }

    pub(super) fn stamp(&self, now: Time) -> u32 {
        stamp_clock(now).wrapping_add(self.stamp_offset)
    }
}
