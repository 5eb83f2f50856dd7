//! Header prediction: the segments of an open flow that change no state, which are nearly all of them.
//!
//! A client's acknowledgement, a backend's, and a backend's data behind the begin of a response, each
//! exactly the next one in its stream, and plain in the sense of `baton_packet::plain` (IPv4). What
//! is not predicted in any respect goes the general way, from which nothing was taken:
//! [`Engine::predicted`] changes nothing before it knows. Both ways leave equal state
//! (`fuzz/targets.rs`, `prediction_changes_nothing`).

use crate::{
    Engine, Verdict,
    backend::Use,
    counters::Counter,
    engine::Instant,
    flow::{Addr, Bits, Flow, FlowId},
    guards::From,
    states::State,
};
use baton_packet::{Plain, plain, readdress};
use std::net::{IpAddr, Ipv4Addr};

const fn mapped(address: u32) -> Addr {
    Ipv4Addr::from_bits(address).to_ipv6_mapped().octets()
}

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
    pub(crate) fn predicted(&mut self, now: Instant, frame: &mut [u8]) -> Option<Verdict> {
        if !self.predicts {
            return None;
        }
        let plain = plain(frame)?;
        let to = IpAddr::V4(Ipv4Addr::from_bits(plain.dst));
        if self.settings.ports.contains(&plain.dst_port) && self.sources.contains(to) {
            self.predicted_backend(now, frame, &plain, to)
        } else if plain.payload == plain.end {
            self.predicted_ack(now, frame, &plain)
        } else {
            None
        }
    }

    /// A client's acknowledgement.
    #[inline]
    fn predicted_ack(&mut self, now: Instant, frame: &mut [u8], plain: &Plain) -> Option<Verdict> {
        let frontend = self.frontend_ids.find(&mapped(plain.dst), plain.dst_port)?;
        let id = self
            .flows
            .find(&mapped(plain.src), plain.src_port, frontend)?;
        let flow = &self.flows[id];
        let next = plain.seq == flow.client_next
            && plain.ack.at_or_after(flow.server_acked)
            && plain.ack.at_or_before(flow.server_next);
        let rests = flow.state == State::Response
            && plain.ack == flow.server_next
            && flow.client_acked == flow.client_next;
        if !next || rests || !is_open(flow, plain) || !flow.client_may_send(plain.seq) {
            return None;
        }
        let backend = self.backends.get(usize::from(flow.owner.backend))?;
        let (source, hop) = (backend.source?, backend.hop?);
        let (IpAddr::V4(src), sport) = self.sources.end(source, flow.owner.port) else {
            return None;
        };
        let to = (v4(&backend.addr), backend.port);
        let mac = self.hops.mac(hop)?;

        self.counters.add(Counter::FromClients);
        let flow = &mut self.flows[id];
        flow.last_ms = now.ms32();
        flow.server_acked = plain.ack;
        flow.client_window = plain.window;
        if let Some((value, _)) = plain.stamps {
            flow.client_ts = value;
        }
        readdress(
            frame,
            ((src.to_bits(), sport), to),
            (self.settings.mac, mac),
        );
        Some(Verdict::Transmit(usize::from(plain.end)))
    }

    /// A backend's acknowledgement, or data behind the begin of a response.
    #[inline]
    fn predicted_backend(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        plain: &Plain,
        to: IpAddr,
    ) -> Option<Verdict> {
        let index = self.backend_ids.find(&mapped(plain.src), plain.src_port)?;
        let backend = &self.backends[usize::from(index)];
        let number = self.sources.number(backend.source, (to, plain.dst_port));
        let Some(Use::Owner(id)) = backend.used_by(number) else {
            return None;
        };
        let flow = &self.flows[id];
        let next = plain.seq == flow.server_next
            && plain.ack.at_or_after(flow.client_acked)
            && plain.ack.at_or_before(flow.client_next);
        let data = plain.data_len() > 0;
        let (in_response, all_acked) = (
            flow.state == State::Response,
            plain.ack == flow.client_next && flow.server_acked == flow.server_next,
        );
        // Data begins a response, and an acknowledgement may end one.
        let changes = if data {
            !in_response
        } else {
            in_response && all_acked
        };
        if !next || changes || !is_open(flow, plain) || !flow.server_may_send(plain.seq) {
            return None;
        }
        let frontend = &self.frontends[usize::from(flow.frontend)];
        let ends = (
            (v4(&frontend.addr), frontend.port),
            (v4(&flow.client), flow.client_port),
        );
        let mac = self.client_mac(flow)?;

        self.counters.add(Counter::FromBackends);
        self.backends[usize::from(index)].health.heard(now);
        self.note_backends(now, id, plain);
        if data {
            self.follow(id, From::Server, 0, plain.data(frame));
            self.flows[id].server_next = plain.seq.add(plain.data_len());
        }
        readdress(frame, ends, (self.settings.mac, mac));
        Some(Verdict::Transmit(usize::from(plain.end)))
    }

    #[inline]
    fn note_backends(&mut self, now: Instant, id: FlowId, plain: &Plain) {
        let flow = &mut self.flows[id];
        flow.last_ms = now.ms32();
        flow.client_acked = plain.ack;
        if let Some((value, _)) = plain.stamps
            && value.wrapping_sub(flow.server_ts) as i32 >= 0
        {
            (flow.server_ts, flow.server_ts_ms) = (value, now.ms32());
        }
    }
}
