//! What a client sends again: the bytes that were followed, or others.
//!
//! A guard sees the first bytes of a number. The pod takes those that reach it in a segment that
//! its kernel accepts, which may be others: where the first segment was lost, or its kernel dropped
//! it (an acknowledgement of what it never sent, an old timestamp), and the client sends the same
//! numbers again with other bytes. Then what the guard takes for a request's end is none, which
//! harms the client alone, as long as nobody else's request follows on that leg.
//!
//! Owns that comparison, of flows that a guard follows, as their policy may have legs shared at any
//! time: with the kept copies, and with what was set aside. A flow whose pod may have other bytes
//! keeps its legs to itself from then on (`sharing`); also where there is no copy, so that nobody
//! knows: what was set aside is forgotten when another pod is asked, and the one before has it
//! still. So does one whose path takes less than the pods of its legs were told. It never changes
//! what is forwarded, and nothing of it is on the short way: what is predicted is new.

use crate::{Engine, flow::kept::KeptList, ids::FlowId, obs::counters::Counter};
use baton_packet::{Decoded, Segment, SeqNumber, decode};

/// How a segment's bytes compare with copies of the same numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Same {
    /// All of them are there, and equal.
    Wholly,
    /// Those that are there are equal.
    SoFar,
    Otherwise,
}

impl Engine {
    /// A client's segment with bytes whose numbers it used before, perhaps.
    #[cold]
    pub(crate) fn judge_repeated(&mut self, id: FlowId, frame: &[u8], segment: &Segment) {
        let flow = &self.flows[id];
        if flow.progress.told.is_otherwise() || flow.pin.is_some() || !self.is_guarded(id) {
            return;
        }
        let end = segment.seq.add(segment.payload_len());
        let later = |a: SeqNumber, b: SeqNumber| if a.after(b) { a } else { b };
        let earlier = |a: SeqNumber, b: SeqNumber| if a.after(b) { b } else { a };
        // The pod takes none of what it has acknowledged.
        let open = (later(segment.seq, flow.client_acked), earlier(end, flow.client_next));
        let (kept, early) = (flow.kept, flow.early_client);
        let is = |list, span| self.compare(list, (frame, segment), span);
        let followed = !open.1.after(open.0) || is(kept, open) == Same::Wholly;
        if !followed || is(early, (segment.seq, end)) == Same::Otherwise {
            self.keeps_its_legs(id);
        }
    }

    /// No other flow has a leg of this one's from now on.
    #[cold]
    pub(crate) fn keeps_its_legs(&mut self, id: FlowId) {
        let flow = &mut self.flows[id];
        let new = !flow.progress.told.is_otherwise();
        flow.progress.told.may_be_otherwise();
        if new && self.policies[usize::from(flow.policy)].shares_legs() {
            self.counters.add(Counter::Disputed);
        }
    }

    /// Compares the bytes of a segment `from` one number `to` another with the copies of a list,
    /// which is in their order.
    fn compare(
        &self,
        list: KeptList,
        (frame, segment): (&[u8], &Segment),
        (from, to): (SeqNumber, SeqNumber),
    ) -> Same {
        let part = |frame, segment: &Segment, from: SeqNumber, to: SeqNumber| -> Option<&[u8]> {
            let data: &[u8] = segment.data(frame);
            let at = |number: SeqNumber| usize::try_from(number.since(segment.seq)).ok();
            data.get(at(from)?..at(to)?)
        };
        let (mut reached, mut gap) = (from, false);
        for copy in self.copies.kept.iter(list) {
            let Ok(Decoded::Tcp(old)) = decode(copy) else {
                continue;
            };
            let old_end = old.seq.add(old.payload_len());
            let begin = if old.seq.after(from) { old.seq } else { from };
            let stop = if old_end.after(to) { to } else { old_end };
            if !stop.after(begin) {
                continue;
            }
            if part(frame, segment, begin, stop) != part(copy, &old, begin, stop) {
                return Same::Otherwise;
            }
            gap |= begin.after(reached);
            if stop.after(reached) {
                reached = stop;
            }
        }
        match gap || to.after(reached) {
            true => Same::SoFar,
            false => Same::Wholly,
        }
    }
}
