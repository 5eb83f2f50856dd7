//! Ends of connections, as they come from pods and reach clients: each is explained.
//!
//! Owns the judgement of one end. What is known of the connection is in `truth`.

use super::{World, wire::Call};
use crate::{
    address,
    client::End,
    clock::Time,
    pod::Cause,
    tcp::wire::Seg,
    truth::{Conn, Explanation, OwnerEnd, is_near},
};
use baton_api::Protocol;
use baton_engine::states::State;
use baton_packet::{Flags, SeqNumber};
use std::net::SocketAddr;

/// How soon after an owner's end arrived a process that is started again is taken for the old one:
/// the engine watches for 50 ms (`engine/src/backend/liveness.rs`), and its questions and their
/// answers may get lost.
const RESTART_UNSEEN: Time = 150_000;

impl World {
    pub(super) fn client_ended(&mut self, i: usize, id: u32, end: End, open: usize) {
        self.note(|| format!("client {i}: connection {id} ended: {end:?}, {open} open requests"));
        let Some(conn) = self.truth.conns.get_mut(&id) else {
            return;
        };
        conn.done = true;
        match end {
            End::Aborted => {
                conn.client_aborted = true;
                self.truth.ends(id, Explanation::Client);
            }
            End::Done => {}
            // What reached the client had left the engine, where it was judged.
            _ if conn.over.is_some() => {}
            // It was at the number of a reset that other bytes had overtaken, or takes any within
            // its window.
            End::Reset if conn.inexact.is_some() => {
                let why = conn.inexact.unwrap_or(Explanation::Counted);
                if why == Explanation::Counted {
                    self.untold = self.untold.saturating_sub(1);
                }
                self.truth.ends(id, why);
            }
            End::TimedOut => {
                self.violated(format!("service: connection {id} of client {i} timed out"));
            }
            _ => self.violated(format!(
                "ends: connection {id} of client {i}: {end:?} by a segment that was no end to the engine"
            )),
        }
    }

    /// A FIN or RST leaves towards a client: it needs an explanation, once for each connection.
    pub(super) fn judge_end(&mut self, id: u32, seg: &Seg<'_>, own: bool, call: &mut Call) {
        let Some(conn) = self.truth.conns.get(&id) else {
            return;
        };
        if conn.over.is_some() {
            return;
        }
        let rst = seg.flags.has(Flags::RST);
        let exact = conn.server_next().is_none_or(|next| (0..=1).contains(&seg.seq.since(next)));
        if rst && conn.open && !exact {
            // A guess, the answer to an old segment, or ahead of lost ones. Should the client take
            // it all the same, it says so.
            let counted =
                call.counted > 0 || (own && self.untold > 0 && self.flow_of(id).is_none());
            let why = if counted { Some(Explanation::Counted) } else { self.of_owner_end(conn) };
            if let Some(conn) = self.truth.conns.get_mut(&id) {
                conn.inexact = why.or(conn.inexact);
            }
            return;
        }
        let unanswered = conn.unanswered();
        let owner_end = conn.owner_end;
        let why = if call.counted > 0 {
            call.counted -= 1;
            Some(Explanation::Counted)
        } else if own && self.untold > 0 && self.is_told_late(id, rst) {
            self.untold -= 1;
            Some(Explanation::Counted)
        } else {
            self.of_owner_end(conn)
        };
        match why {
            Some(why) => {
                self.note(|| format!("connection {id} ends: {}", why.name()));
                self.truth.ends(id, why);
            }
            None => {
                let what = if rst { "a reset" } else { "a close" };
                let by = if own { "the engine's own" } else { "forwarded" };
                self.violated(format!(
                    "ends: connection {id} gets {what} ({by}) without a counted reason; {unanswered} unanswered \
                     requests, owner's end {owner_end:?}, policy {:?} {:?}",
                    self.scenario.policy.protocol, self.scenario.policy.on_backend_failure
                ));
            }
        }
    }

    /// What the client or the owner did that explains an end.
    fn of_owner_end(&self, conn: &Conn) -> Option<Explanation> {
        let unanswered = conn.unanswered();
        let crashed = (conn.owner_end).is_some_and(|e| e.cause == Some(Cause::Crash));
        // To the bare rule a response that is cut short is a whole one (a limit that the README
        // names).
        let bare = self.scenario.policy.protocol == Protocol::RequestResponse;
        if conn.client_aborted || (conn.client_closed && (unanswered == 0 || !crashed || bare)) {
            return Some(Explanation::Client);
        }
        if !conn.open {
            return Some(Explanation::Handshake);
        }
        let end = conn.owner_end?;
        if end.cause == Some(Cause::Meant) {
            Some(Explanation::Meant)
        } else if end.state.starts_with("Syn") {
            Some(Explanation::Handshake)
        } else if self.truth.ends_pass(self.now) {
            Some(Explanation::Policy)
        } else if end.pinned {
            Some(Explanation::Pinned)
        } else {
            self.restarted_soon(&end).then_some(Explanation::Restarted)
        }
    }

    /// Whether a flow may be told only now of an end that was counted before: there was no frame
    /// for its reset, or for the FIN of one that was closed.
    fn is_told_late(&self, id: u32, rst: bool) -> bool {
        match self.flow_of(id) {
            None => rst,
            Some(flow) => !rst && flow.state == "FinSentToClient",
        }
    }

    /// Whether another process listened before the end of the old one's connection could be judged.
    pub(super) fn restarted_soon(&self, end: &OwnerEnd) -> bool {
        if self.scenario.policy.protocol != Protocol::RequestResponse {
            // Its end is marked, and the next one's listener is another; or it is taken for the end
            // of the leg alone.
            return false;
        }
        let before = end.at + RESTART_UNSEEN;
        let mut deaths = self.restarts.iter();
        deaths.any(|(pod, died, started)| *pod == end.pod && *died <= end.at && *started < before)
    }

    /// A FIN or RST of a pod comes in: whose owner's it is.
    pub(super) fn owner_ends(&mut self, pod: usize, port: u16, seq: SeqNumber) {
        let seq = self.truth.as_client_sees((pod, port), seq);
        // The first that the engine hears of a socket that was handed on may be its end.
        let handed = || {
            let id = self.truth.handed_to((pod, port))?;
            Some((id, self.flow_of(id)?))
        };
        let flow = self.flow_on(pod, port, None, Some(seq)).or_else(handed);
        let Some((id, view)) = flow else {
            return;
        };
        let peer = SocketAddr::new(address::ours(self.scenario.pods_v6), port);
        let cause = self.pods[pod].kernel.cause(&peer);
        let at = self.now;
        let Some(conn) = self.truth.conns.get_mut(&id) else {
            return;
        };
        // A kernel that has forgotten the socket says nothing new of it.
        let before = conn.owner_end.filter(|e| (e.pod, e.port) == (pod, port));
        let cause = cause.or(before.and_then(|e| e.cause));
        let ahead = conn.server_next().is_some_and(|next| seq.after(next));
        let early = ahead || conn.has_gap();
        let guessed = conn.server_next().is_some_and(|next| !is_near(seq, next));
        let same = |e: OwnerEnd| (e.pod, e.port, e.cause) == (pod, port, cause);
        let again = conn.owner_end.is_some_and(same);
        if again && let Some(end) = &mut conn.owner_end {
            // A kernel repeats a FIN that nobody acknowledged, perhaps when another process listens
            // already; and one whose reset was not believed has been asked for another. What was
            // sent meanwhile may have pinned the flow.
            end.at = at;
            end.pinned |= view.pinned.is_some();
            end.early &= early;
        }
        if guessed || again {
            return;
        }
        let state = State::ALL.iter().find(|s| s.name() == view.state);
        conn.owner_end = Some(OwnerEnd {
            pod,
            port,
            at,
            cause,
            early,
            pinned: view.pinned.is_some(),
            state: state.map_or("", |s| s.name()),
        });
    }
}
