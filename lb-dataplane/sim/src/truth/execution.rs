//! Who may have a connection, and how often a request is executed.
//!
//! Owns the checkers of adoptions and executions, and their records. Never looks at what streams
//! contain.

use super::{Checked, Execution, Rule, Shifted, Truth};
use crate::{clock::Time, talk::Request, tcp::wire::Seg};
use baton_api::{BackendFailure, Protocol};
use baton_packet::{Flags, SeqNumber};

/// How often one request may be executed where policy allows more than once: `REPLAYS_MAX` more
/// (`engine/src/moves/rescue.rs`).
const EXECUTIONS_MAX: usize = 3;
/// What restores a session (`SELECT` with a number of one digit), and `+OK`.
const PRELUDE_BYTES: u32 = 23;
const PRELUDE_REPLY_BYTES: u32 = 5;

impl Truth {
    /// An adoption leaves.
    ///
    /// # Errors
    /// It does not begin at a request and at the next byte of the response stream.
    pub fn adoption_leaves(
        &mut self,
        pod: usize,
        port: u16,
        seq: SeqNumber,
        ack: SeqNumber,
        exact: bool,
    ) -> Checked {
        self.adoptions.insert((pod, port, seq.0, ack.0));
        self.starts.insert((pod, port), seq.add(self.header_bytes));
        let Some(id) = self.of_leg(pod, port) else {
            return Err(format!("adoption: for no connection, to pod {pod} from port {port}"));
        };
        let Some(conn) = self.conns.get(&id).filter(|_| exact) else {
            return Ok(());
        };
        if !conn.is_boundary(seq.add(self.header_bytes)) {
            return Err(format!("adoption: connection {id} moves in the middle of a request"));
        }
        if conn.server_next() != Some(ack) {
            return Err(format!(
                "adoption: connection {id} moves at {ack:?} of the response stream, which is at {:?}",
                conn.server_next()
            ));
        }
        Ok(())
    }

    /// A SYN leaves on a leg: a client's own, or the engine's for a pod that shall take its
    /// connection over.
    ///
    /// # Errors
    /// It does not begin at a request.
    pub fn syn_leaves(&mut self, leg: (usize, u16), id: u32, seq: SeqNumber, own: bool) -> Checked {
        let Some(conn) = self.conns.get(&id) else {
            return Ok(());
        };
        let first = seq.add(1);
        let next = conn.server_next();
        if self.begun.get(&leg) == Some(&(id, seq)) {
            // A copy of the connection's own first one.
            return Ok(());
        }
        self.begun.remove(&leg);
        self.shifts.remove(&leg);
        self.opening.remove(&leg);
        let Some(next) = next.filter(|_| own) else {
            self.begun.insert(leg, (id, seq));
            return Ok(());
        };
        // What restores a session goes in front of the request, and its reply in front of the
        // response.
        let behind_header = first.add(self.header_bytes);
        let restores = behind_header.add(PRELUDE_BYTES);
        let reply = if conn.is_boundary(behind_header) {
            0
        } else if conn.is_boundary(restores) {
            PRELUDE_REPLY_BYTES
        } else {
            return Err(format!("opening: connection {id} moves in the middle of a request"));
        };
        self.starts.insert(leg, behind_header);
        self.opening.insert(leg, (first, next.sub(reply)));
        Ok(())
    }

    /// A pod answers a SYN.
    pub fn opened(&mut self, leg: (usize, u16), seg: &Seg<'_>) {
        let opening = self.opening.get(&leg);
        if let Some((_, next)) = opening.filter(|(first, _)| *first == seg.ack) {
            let by = next.0.wrapping_sub(seg.seq.add(1).0);
            let stamp = seg.stamps.map(|(value, _)| value);
            self.shifts.entry(leg).or_insert(Shifted { by, acked: 0, stamp });
        }
    }

    /// A segment that is no SYN leaves on a leg.
    ///
    /// # Errors
    /// The engine opened the leg and its pod has not answered yet, or the segment echoes what that
    /// pod never said.
    pub fn on_opened(&self, leg: (usize, u16), seg: &Seg<'_>) -> Checked {
        let reset = seg.flags.has(Flags::RST);
        if !self.opening.contains_key(&leg) || reset {
            return Ok(());
        }
        let (pod, port) = leg;
        let Some(shifted) = self.shifts.get(&leg) else {
            return Err(format!(
                "opening: pod {pod} has not answered the SYN from port {port}, and is sent more"
            ));
        };
        let echo = seg.stamps.map(|(_, echo)| echo);
        let old = |(first, echo): (u32, u32)| (echo.wrapping_sub(first) as i32) < 0;
        if shifted.stamp.zip(echo).is_some_and(old) {
            return Err(format!(
                "opening: pod {pod} is told on port {port} what another pod's clock said"
            ));
        }
        Ok(())
    }

    /// A number of a pod's as the client is to see it.
    #[must_use]
    pub fn as_client_sees(&self, leg: (usize, u16), seq: SeqNumber) -> SeqNumber {
        seq.add(self.shifts.get(&leg).map_or(0, |shifted| shifted.by))
    }

    /// A number of the client's as its client has it.
    #[must_use]
    pub fn as_client_has(&self, leg: (usize, u16), seq: SeqNumber) -> SeqNumber {
        seq.add(self.shifts.get(&leg).map_or(0, |shifted| shifted.acked))
    }

    /// A pod made a socket.
    ///
    /// # Errors
    /// No adoption asked for it.
    pub fn adopted(&self, pod: usize, port: u16, seq: SeqNumber, ack: SeqNumber) -> Checked {
        if self.adoptions.contains(&(pod, port, seq.0, ack.0)) {
            return Ok(());
        }
        Err(format!(
            "adoption: pod {pod} made a socket towards port {port} that Baton never asked for"
        ))
    }

    /// A pod executed a request.
    ///
    /// # Errors
    /// Not as a client asked it, or once too often.
    pub fn executed(&mut self, now: Time, pod: usize, request: &Request, number: u32) -> Checked {
        let tag = request.tag;
        let conn = self.conns.get(&tag.conn);
        let known = conn.and_then(|c| c.requests.get(usize::from(tag.number)));
        let Some((asked, begun_at, _)) = known.filter(|(asked, _, _)| asked == request) else {
            return Err(format!("execution: pod {pod} executes {tag}, which nobody asked for"));
        };
        let (asked, begun_at) = (*asked, *begun_at);
        self.executed += 1;
        let before = self.executions.get(&tag).and_then(|e| e.first().copied());
        let this = Execution { number, pod, at: now };
        self.executions.entry(tag).or_default().push(this);
        let Some(first) = before else {
            return Ok(());
        };
        self.replayed += 1;
        let times = self.executions[&tag].len();
        let earlier = format!(
            "execution: {tag} is executed {times} times, first at {} us by pod {}, now by pod {pod}",
            first.at, first.pod
        );
        let allows = |rule: &Rule| match rule.failure {
            BackendFailure::Replay => true,
            BackendFailure::ReplayIdempotent => {
                asked.is_idempotent()
                    && !matches!(rule.protocol, Protocol::RequestResponse | Protocol::None)
            }
            BackendFailure::AdoptIdleOnly | BackendFailure::Reset => false,
        };
        if times > EXECUTIONS_MAX {
            return Err(format!("{earlier}: more often than ever"));
        }
        if !self.any_rule(begun_at, now, allows) {
            return Err(format!("{earlier}, and policy does not allow it"));
        }
        Ok(())
    }

    /// A client has a whole response.
    ///
    /// # Errors
    /// From an execution that never was.
    pub fn answered(&self, request: &Request, execution: Option<u32>) -> Checked {
        let Some(number) = execution else {
            return Ok(());
        };
        let all = self.executions.get(&request.tag);
        if all.is_some_and(|all| all.iter().any(|e| e.number == number)) {
            return Ok(());
        }
        Err(format!(
            "execution: {} is answered by execution {number}, which never was",
            request.tag
        ))
    }
}
