//! Where a frame comes in: the short way (`fast`), or decoded and to whoever it is from.
//!
//! Owns the order of that and the verdict. What a segment means is `client`'s and `server`'s.

use crate::{
    Engine, Output, Verdict,
    clock::Instant,
    ids::to_addr,
    obs::counters::{Counter, DropReason},
};
use baton_packet::{ChecksumState, Decoded, Mac, Segment, ether_src};

impl Engine {
    /// Judges one frame: the first `len` bytes of `buffer`, which it may rewrite in place.
    pub fn frame(
        &mut self,
        now: Instant,
        buffer: &mut [u8],
        len: usize,
        out: &mut impl Output,
    ) -> Verdict {
        let now = self.link.time(now);
        self.events.now = now;
        let len = len.min(buffer.len());
        let predicted = self.predicted(now, &mut buffer[..len], out);
        let mut verdict = predicted.unwrap_or_else(|| self.general(now, &mut buffer[..len], out));
        if self.net.across.is_some()
            && let Some(across) = self.net.across.take()
            && matches!(verdict, Verdict::Transmit(_))
        {
            verdict = across.carry(buffer).map_or_else(Verdict::Drop, Verdict::Transmit);
        }
        if let Verdict::Drop(reason) = verdict {
            self.counters.drop(reason);
        }
        verdict
    }

    /// Whatever is not predicted.
    #[inline(never)]
    fn general(&mut self, now: Instant, frame: &mut [u8], out: &mut impl Output) -> Verdict {
        match baton_packet::decode(frame) {
            Ok(Decoded::Tcp(segment)) => self.segment(now, frame, &segment, out),
            Ok(Decoded::Icmp(error)) => self.icmp(now, frame, &error, out),
            Ok(_) => Verdict::Drop(DropReason::NotOurs),
            Err(malformed) => {
                self.counters.malformed[malformed as usize] += 1;
                Verdict::Drop(DropReason::Malformed)
            }
        }
    }

    #[inline]
    fn segment(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        out: &mut impl Output,
    ) -> Verdict {
        match baton_packet::settle_tcp_checksum(frame, segment) {
            ChecksumState::Full => {}
            ChecksumState::Partial => self.counters.add(Counter::PartialChecksums),
            ChecksumState::Bad => return Verdict::Drop(DropReason::BadChecksum),
        }
        let to = to_addr(segment.dst);
        // A leg's port and a frontend's never coincide on our own addresses: the port range is
        // refused where they do.
        if self.settings.ports.contains(&segment.dst_port) && self.net.sources.contains(segment.dst)
        {
            return self.on_leg(now, frame, segment, out);
        }
        match self.ids.frontends.find(to, segment.dst_port) {
            Some(frontend) => {
                self.counters.add(Counter::FromClients);
                self.on_client(now, frame, segment, frontend, out)
            }
            None => self.on_host_leg(now, frame, segment, out),
        }
    }

    /// Inlined, and what it calls too, although there are two callers: one is rare, and the other
    /// would pay 30 instructions for a call.
    #[inline(always)]
    fn on_leg(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        out: &mut impl Output,
    ) -> Verdict {
        self.counters.add(Counter::FromBackends);
        let from = to_addr(segment.src);
        match self.ids.backends.find(from, segment.src_port) {
            Some(backend) => self.on_backend(now, frame, segment, backend, out),
            None => {
                self.pass_to_host(frame, segment.end).unwrap_or(Verdict::Drop(DropReason::NotOurs))
            }
        }
    }

    /// To an address of the host, which some legs come from on a node's network. Apart, for the
    /// sake of the usual ones.
    #[cold]
    fn on_host_leg(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        out: &mut impl Output,
    ) -> Verdict {
        if !self.settings.ports.contains(&segment.dst_port) {
            return Verdict::Drop(DropReason::NotOurs);
        }
        if self.net.is_source(segment.dst) {
            return self.on_leg(now, frame, segment, out);
        }
        // Steered here for a route's sake that no backend uses (any more).
        self.pass_to_host(frame, segment.end).unwrap_or(Verdict::Drop(DropReason::NotOurs))
    }

    /// A frame that belongs to none of our legs: the host's, unless it came from there.
    #[cold]
    pub(crate) fn pass_to_host(&mut self, frame: &mut [u8], end: u16) -> Option<Verdict> {
        if !self.net.shares_ports || ether_src(frame) == Mac::HOST {
            return None;
        }
        let (to, from) = frame.get_mut(..12)?.split_at_mut(6);
        to.copy_from_slice(&Mac::HOST.0);
        from.copy_from_slice(&self.settings.mac.0);
        self.counters.add(Counter::LeftToHost);
        Some(Verdict::Transmit(usize::from(end)))
    }
}
