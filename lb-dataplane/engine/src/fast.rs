//! The short way of a segment: what is exactly next in its stream, on an open flow, plain in the
//! sense of `baton_packet::plain` (IPv4), and right.
//!
//! Owns the tests that make a segment one of these, and what then is known without asking. What new
//! bytes mean is asked where the general way asks. [`Engine::predicted`] changes nothing before it
//! knows; a segment that is not predicted in any respect goes the general way. Both ways leave
//! equal state (`fuzz/targets.rs`, `prediction_changes_nothing`).

use crate::{
    Engine, Output, Verdict,
    clock::Instant,
    counters::Counter,
    flow::{Bits, Flow},
    guards::From,
    ids::{Addr, FlowId, Leg, mapped},
    legs::Use,
    states::{Frame, State},
};
use baton_packet::{Plain, plain, readdress};
use std::net::{IpAddr, Ipv4Addr};

fn v4(address: &Addr) -> u32 {
    let [.., a, b, c, d] = *address;
    u32::from_be_bytes([a, b, c, d])
}

/// Nothing is set aside or watched, and the segment has timestamps where the flow has them.
#[inline]
fn is_open(flow: &Flow, plain: &Plain) -> bool {
    matches!(
        flow.state,
        State::Fresh | State::Request | State::Response | State::Idle
    ) && !flow.backlog.is_some()
        && flow.early_client.is_empty()
        && flow.early_server.is_empty()
        && flow.bits.has(Bits::TIMESTAMPS) == plain.stamps.is_some()
}

impl Engine {
    /// Has no segment predicted: every one goes the general way. For tests that compare the two.
    #[doc(hidden)]
    pub fn set_prediction(&mut self, on: bool) {
        self.predicts = on;
    }

    /// What becomes of a frame that was predicted; otherwise it has to go the general way.
    #[inline]
    pub(crate) fn predicted(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        out: &mut impl Output,
    ) -> Option<Verdict> {
        if !self.predicts {
            return None;
        }
        let plain = plain(frame)?;
        let to = IpAddr::V4(Ipv4Addr::from_bits(plain.dst));
        if self.settings.ports.contains(&plain.dst_port) && self.sources.contains(to) {
            self.predicted_backend(now, frame, &plain, to, out)
        } else {
            self.predicted_client(now, frame, &plain, out)
        }
    }

    #[inline]
    fn predicted_client(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        plain: &Plain,
        out: &mut impl Output,
    ) -> Option<Verdict> {
        let frontend = self.frontend_ids.find(&mapped(plain.dst), plain.dst_port)?;
        let id = self
            .flows
            .find(&mapped(plain.src), plain.src_port, frontend)?;
        let flow = &self.flows[id];
        let next = plain.seq == flow.client_next
            && plain.ack.at_or_after(flow.server_acked)
            && plain.ack.at_or_before(flow.server_next);
        let predicted = next && is_open(flow, plain) && flow.client_may_send(plain.seq);
        if !predicted || !plain.is_right(frame) {
            return None;
        }
        self.counters.add(Counter::FromClients);
        let flow = &mut self.flows[id];
        let acks_more = plain.ack != flow.server_acked;
        flow.last_ms = now.ms32();
        flow.server_acked = plain.ack;
        flow.client_window = plain.window;
        if let Some((value, _)) = plain.stamps {
            flow.client_ts = value;
        }
        if acks_more && flow.state == State::Response && flow.all_acked() {
            self.comes_to_rest(now, id, out);
        }
        if plain.data_len() > 0 {
            let segment = plain.segment();
            let treat = self.client_goes_on(now, frame, &segment, id, out);
            return Some(self.client_went_on(now, frame, &segment, id, treat, acks_more, out));
        }
        Some(self.pass_to_owner(frame, plain, id))
    }

    /// A segment without data to the flow's owner.
    #[inline]
    fn pass_to_owner(&mut self, frame: &mut [u8], plain: &Plain, id: FlowId) -> Verdict {
        let owner = self.flows[id].owner;
        let backend = self.backends.get(usize::from(owner.backend));
        let ready = backend.and_then(|b| {
            let (IpAddr::V4(src), sport) = self.sources.end(b.source?, owner.port) else {
                return None;
            };
            let mac = self.hops.mac(b.hop?)?;
            Some(((src.to_bits(), sport), (v4(&b.addr), b.port), mac))
        });
        match ready {
            Some((from, to, mac)) => {
                readdress(frame, (from, to), (self.settings.mac, mac));
                Verdict::Transmit(usize::from(plain.end))
            }
            None => self.forward_to_leg(frame, &plain.segment(), owner),
        }
    }

    #[inline]
    fn predicted_backend(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        plain: &Plain,
        to: IpAddr,
        out: &mut impl Output,
    ) -> Option<Verdict> {
        let index = self.backend_ids.find(&mapped(plain.src), plain.src_port)?;
        let backend = &self.backends[usize::from(index)];
        let number = self.sources.number(backend.source, (to, plain.dst_port));
        let leg = Leg {
            backend: index,
            port: number,
        };
        let Some(Use::Owner(id)) = self.legs.used_by(leg) else {
            return None;
        };
        let flow = &self.flows[id];
        let next = plain.seq == flow.server_next
            && plain.ack.at_or_after(flow.client_acked)
            && plain.ack.at_or_before(flow.client_next);
        let predicted = next && is_open(flow, plain) && flow.server_may_send(plain.seq);
        if !predicted || !plain.is_right(frame) {
            return None;
        }
        self.counters.add(Counter::FromBackends);
        self.backends[usize::from(index)].liveness.heard(now);
        let flow = &mut self.flows[id];
        flow.last_ms = now.ms32();
        flow.client_acked = plain.ack;
        if let Some((value, _)) = plain.stamps
            && value.wrapping_sub(flow.server_ts) as i32 >= 0
        {
            (flow.server_ts, flow.server_ts_ms) = (value, now.ms32());
        }
        let mut treat = Frame::Forward;
        let in_response = flow.state == State::Response;
        if plain.data_len() == 0 {
            if in_response && flow.all_acked() {
                self.comes_to_rest(now, id, out);
            }
        } else {
            if in_response {
                self.follow(id, From::Server, 0, plain.data(frame));
            } else {
                treat = self.server_data(now, frame, &plain.segment(), id, 0, out);
            }
            self.flows[id].server_next = plain.seq.add(plain.data_len());
        }
        Some(match treat {
            Frame::Forward => self.pass_to_client(frame, plain, id),
            Frame::Absorb => Verdict::Absorbed,
        })
    }

    /// To the flow's client.
    #[inline]
    fn pass_to_client(&mut self, frame: &mut [u8], plain: &Plain, id: FlowId) -> Verdict {
        let flow = &self.flows[id];
        let frontend = &self.frontends[usize::from(flow.frontend)];
        let ends = (
            (v4(&frontend.addr), frontend.port),
            (v4(&flow.client), flow.client_port),
        );
        match self.client_mac(flow) {
            Some(mac) => {
                readdress(frame, ends, (self.settings.mac, mac));
                Verdict::Transmit(usize::from(plain.end))
            }
            None => self.forward_to_client(frame, &plain.segment(), id),
        }
    }
}
