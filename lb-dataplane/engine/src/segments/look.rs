//! Looking ahead in a batch of frames: what each will need is read before the first is judged, so
//! that the reads overlap where one after the other would wait for memory.
//!
//! Owns the steps of that. It changes nothing that is asked for anywhere else: without it every
//! frame is judged the same, only later (`fuzz/targets.rs`, `the_short_ways_change_nothing`).
//!
//! # Decisions
//!
//! - **A batch of frames is looked at ahead**: hashes, buckets and flows of up to 32 frames are
//!   read before the first is judged, so that the reads overlap. First all hashes are computed,
//!   then all buckets are read, then all flows: a processor overlaps what a few hundred
//!   instructions read, and to parse one frame takes a third of that. It pays with more flows than
//!   a core's cache holds, and is left out below 4,096 of them. The dataplane's image asks glibc
//!   for huge pages (`GLIBC_TUNABLES`), since page walks are the next largest part; no unsafe code
//!   is needed for that (`docs/performance.md`). Rejected: to read guards' trackers too. A request
//!   and a client's ack gained 5 to 10 %, and a backend's ack, which needs none, lost 20 %.

use crate::{
    Engine,
    containers::ahead::{AHEAD_MAX, ALWAYS, FROM_FLOWS, Sought},
    ids::{FlowId, Leg, Tabled},
    tables::legs::Use,
};
use baton_packet::{V4, V6, plain_ends};
use std::hint::black_box;

impl Engine {
    /// Looks at one of up to [`AHEAD_MAX`] frames that are given in next. Worth it for more than
    /// one.
    #[inline]
    pub fn look_at(&mut self, frame: &[u8]) {
        if (ALWAYS || self.flows.used() >= FROM_FLOWS) && self.ahead.len < AHEAD_MAX {
            let sought = self.sought::<V4>(frame);
            let sought = sought.or_else(|| self.sought::<V6>(frame));
            self.ahead.sought[self.ahead.len] = sought;
            self.ahead.len += 1;
        }
    }

    /// Where the look-up of a frame's flow begins.
    #[inline(always)]
    fn sought<F: Tabled>(&self, frame: &[u8]) -> Option<Sought> {
        let ((src, src_port), (dst, dst_port)) = plain_ends::<F>(frame)?;
        if self.net.sources.is_leg::<F>(dst, dst_port) {
            let backend = self.ids.backends.find(F::addr(src), src_port)?;
            let source = self.backends[usize::from(backend)].source;
            let port = self.net.sources.number_of::<F>(source, (dst, dst_port));
            let leg = Leg { backend, port };
            Some(Sought::Leg(leg))
        } else {
            let frontend = self.ids.frontends.find(F::addr(dst), dst_port)?;
            let hash = (self.flows).hash(F::addr(src), src_port, frontend);
            Some(Sought::Client(hash))
        }
    }

    /// Reads what the look-ups of the frames looked at begin with, and then their flows.
    pub fn look_ahead(&mut self) {
        let len = std::mem::take(&mut self.ahead.len);
        for sought in self.ahead.sought[..len].iter().flatten() {
            black_box(match sought {
                Sought::Client(hash) => self.flows.touch_index(*hash),
                Sought::Leg(leg) => self.legs.uses.touch(*leg),
            });
        }
        let mut flows: [Option<FlowId>; AHEAD_MAX] = [None; AHEAD_MAX];
        for (sought, flow) in self.ahead.sought[..len].iter().zip(&mut flows) {
            *flow = match sought {
                Some(Sought::Client(hash)) => self.flows.perhaps(*hash),
                Some(Sought::Leg(leg)) => match self.legs.uses.used_by(*leg) {
                    Some(Use::Owner(id)) => Some(id),
                    _ => None,
                },
                None => None,
            };
        }
        for id in flows.into_iter().flatten() {
            let flow = &self.flows[id];
            black_box(flow.last_ms ^ flow.boundary.0);
        }
    }
}
