//! What really happened, and the checkers that compare it with what must hold (DESIGN section 10).
//!
//! Owns the record of every connection, request and execution, kept from outside of the engine: what clients wrote, what
//! left the engine in both directions, what pods executed. It never changes anything in the world.

use crate::{
    clock::{SECOND, Time},
    pod::Cause,
    talk::{Language, Progress, Request, ResponseReader, Tag},
};
use baton_api::{BackendFailure, Protocol};
use baton_packet::SeqNumber;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of one connection's response stream that are remembered: far above what a client asks for.
const STREAM_MAX: usize = 4 << 20;

/// How often one request may be executed where policy allows more than once: `REPLAYS_MAX` more (`engine/src/rescue.rs`).
const EXECUTIONS_MAX: usize = 3;

/// Why an end that a client saw is no mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Explanation {
    /// The client closed or reset it itself.
    Client,
    /// The pod's application meant it.
    Meant,
    /// The engine counted a reason.
    Counted,
    /// Policy lets ends of backends reach clients.
    Policy,
    /// The flow was pinned, so that nobody else could have it.
    Pinned,
    /// The pod's process was started again so soon that the dead one could not be told from it.
    Restarted,
    /// The connection never was complete.
    Handshake,
}

impl Explanation {
    /// The name in the summary.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Explanation::Client => "client's own",
            Explanation::Meant => "meant by the pod",
            Explanation::Counted => "counted",
            Explanation::Policy => "policy",
            Explanation::Pinned => "pinned",
            Explanation::Restarted => "restarted at once",
            Explanation::Handshake => "in the handshake",
        }
    }
}

/// The owner's FIN or RST as it came in.
#[derive(Clone, Copy, Debug)]
pub struct OwnerEnd {
    /// Which pod.
    pub pod: usize,
    /// Over which of our ports.
    pub port: u16,
    /// When it came first.
    pub at: Time,
    /// What the pod knows about it.
    pub cause: Option<Cause>,
    /// Whether the flow was pinned then.
    pub pinned: bool,
    /// The flow's state then.
    pub state: &'static str,
}

/// One client connection.
pub struct Conn {
    /// Which client's.
    pub client: usize,
    /// Initial sequence numbers: the client's, and the server's once the SYN-ACK has passed.
    pub isn: (SeqNumber, Option<SeqNumber>),
    /// Requests begun, with the time, and where each starts in the client's stream.
    pub requests: Vec<(Request, Time, usize)>,
    /// What the client wrote.
    written: Vec<u8>,
    /// What left towards the client, and which of it is known.
    sent: Vec<u8>,
    known: Vec<bool>,
    whole: usize,
    /// Bytes that the client has acknowledged, as far as the engine has seen.
    acked: usize,
    /// The highest byte of the client's that any pod has acknowledged.
    taken: SeqNumber,
    reader: ResponseReader,
    answered: usize,
    /// The leg that the latest new bytes of the response stream came over.
    pub speaker: Option<(usize, u16)>,
    /// Its client saw it open.
    pub open: bool,
    /// The client closed its side or reset it.
    pub client_closed: bool,
    /// The client reset it.
    pub client_aborted: bool,
    /// How it ended, once a client was told.
    pub over: Option<Explanation>,
    /// What explains a reset that left towards the client, at another number than that of its next byte.
    pub inexact: Option<Explanation>,
    /// The last end of an owner.
    pub owner_end: Option<OwnerEnd>,
    /// Its client has nothing more to do with it.
    pub done: bool,
}

impl Conn {
    /// Requests that were begun and whose response has not left completely.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.requests.len() - self.answered
    }

    /// The sequence number of the next new byte towards the client.
    #[must_use]
    pub fn server_next(&self) -> Option<SeqNumber> {
        Some(self.isn.1?.add(1 + self.sent.len() as u32))
    }

    fn response_begun(&self, number: usize) -> bool {
        self.answered > number || (self.answered == number && self.reader.is_within())
    }

    /// Whether a sequence number of the client's is the first of a request, or behind all.
    fn is_boundary(&self, seq: SeqNumber) -> bool {
        let at = seq.since(self.isn.0.add(1));
        let starts = |start: usize| i64::try_from(start).is_ok_and(|s| s == i64::from(at));
        starts(self.written.len()) || self.requests.iter().any(|(_, _, start)| starts(*start))
    }
}

/// Policy as far as the checkers need it.
#[derive(Clone, Copy, Debug)]
struct Rule {
    from: Time,
    failure: BackendFailure,
    protocol: Protocol,
}

/// An execution.
#[derive(Clone, Copy, Debug)]
struct Execution {
    number: u32,
    pod: usize,
    at: Time,
}

/// Everything that is known.
pub struct Truth {
    language: Language,
    /// Every connection by its number.
    pub conns: BTreeMap<u32, Conn>,
    /// Connections of a client's port, the latest first: a port may be used again.
    by_port: BTreeMap<(usize, u16), Vec<u32>>,
    legs: BTreeMap<(usize, u16), u32>,
    /// The first byte that a leg's socket takes.
    starts: BTreeMap<(usize, u16), SeqNumber>,
    executions: BTreeMap<Tag, Vec<Execution>>,
    rules: Vec<Rule>,
    adoptions: BTreeSet<(usize, u16, u32, u32)>,
    /// Executions in all.
    pub executed: u64,
    /// Executions of a request that had been executed before.
    pub replayed: u64,
    /// Pods that were replaced at their address, with the time: what the one before adopted, nobody knows any more. The one
    /// way to a second execution that the protocol does not prevent (README, limits).
    pub replaced: Vec<(usize, Time)>,
    /// Ends that clients saw, by explanation.
    pub ends: BTreeMap<Explanation, u64>,
}

type Checked = Result<(), String>;

impl Truth {
    /// Nothing has happened.
    #[must_use]
    pub fn new(language: Language) -> Self {
        Self {
            language,
            conns: BTreeMap::new(),
            by_port: BTreeMap::new(),
            legs: BTreeMap::new(),
            starts: BTreeMap::new(),
            executions: BTreeMap::new(),
            rules: Vec::new(),
            adoptions: BTreeSet::new(),
            executed: 0,
            replayed: 0,
            replaced: Vec::new(),
            ends: BTreeMap::new(),
        }
    }

    /// A snapshot is in force.
    pub fn rule(&mut self, from: Time, failure: BackendFailure, protocol: Protocol) {
        self.rules.push(Rule {
            from,
            failure,
            protocol,
        });
    }

    /// Whether any policy in force between two times satisfies `is`.
    fn any_rule(&self, from: Time, to: Time, is: impl Fn(&Rule) -> bool) -> bool {
        let ends = self.rules.iter().skip(1).map(|r| r.from).chain([Time::MAX]);
        let in_force = self.rules.iter().zip(ends);
        in_force
            .filter(|(rule, end)| rule.from <= to && *end > from)
            .any(|(rule, _)| is(rule))
    }

    /// Whether a policy of the last moments passes every end of a backend on.
    #[must_use]
    pub fn ends_pass(&self, now: Time) -> bool {
        let passes = |r: &Rule| r.failure == BackendFailure::Reset || r.protocol == Protocol::None;
        self.any_rule(now.saturating_sub(SECOND), now, passes)
    }

    /// A client opens a connection.
    pub fn connects(&mut self, client: usize, conn: u32, port: u16, isn: u32) {
        self.by_port
            .entry((client, port))
            .or_default()
            .insert(0, conn);
        let new = Conn {
            client,
            isn: (SeqNumber(isn), None),
            requests: Vec::new(),
            written: Vec::new(),
            sent: Vec::new(),
            known: Vec::new(),
            whole: 0,
            acked: 0,
            taken: SeqNumber(isn).add(1),
            reader: ResponseReader::new(self.language),
            answered: 0,
            speaker: None,
            open: false,
            client_closed: false,
            client_aborted: false,
            over: None,
            inexact: None,
            owner_end: None,
            done: false,
        };
        self.conns.insert(conn, new);
    }

    /// A request begins at the present end of the client's stream.
    pub fn begins(&mut self, now: Time, request: Request) {
        if let Some(conn) = self.conns.get_mut(&request.tag.conn) {
            let start = conn.written.len();
            conn.requests.push((request, now, start));
        }
    }

    /// A client handed bytes to its stack.
    pub fn wrote(&mut self, conn: u32, bytes: &[u8]) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.written.extend_from_slice(bytes);
        }
    }

    /// The latest connection of a client's port.
    #[must_use]
    pub fn of_client(&self, client: usize, port: u16) -> Option<u32> {
        self.by_port.get(&(client, port))?.first().copied()
    }

    /// The one of a client's port that these numbers are of: one of the client's direction, one of the server's. The latest
    /// one if they are of none.
    #[must_use]
    pub fn of_numbers(
        &self,
        client: usize,
        port: u16,
        of_client: Option<SeqNumber>,
        of_server: Option<SeqNumber>,
    ) -> Option<u32> {
        let all = self.by_port.get(&(client, port))?;
        let fits = |id: &&u32| {
            self.conns.get(id).is_some_and(|conn| {
                of_client.is_some_and(|seq| is_near(seq, conn.isn.0))
                    || of_server
                        .zip(conn.isn.1)
                        .is_some_and(|(seq, isn)| is_near(seq, isn))
            })
        };
        all.iter().find(fits).or(all.first()).copied()
    }

    /// The connection of a leg.
    #[must_use]
    pub fn of_leg(&self, pod: usize, port: u16) -> Option<u32> {
        self.legs.get(&(pod, port)).copied()
    }

    /// Whether a pod has a leg of a connection, or had one that no other connection has by now.
    #[must_use]
    pub fn had_leg(&self, pod: usize, conn: u32) -> bool {
        self.legs.iter().any(|((p, _), c)| (*p, *c) == (pod, conn))
    }

    /// A leg is this connection's from now on.
    pub fn leg_is(&mut self, pod: usize, port: u16, conn: u32) {
        if self.legs.insert((pod, port), conn) != Some(conn) {
            self.starts.remove(&(pod, port));
        }
    }

    /// Payload that leaves towards a pod: the client's own bytes at the client's own numbers, and none of a request whose
    /// response has begun, but towards the pod that makes it. (A pod that was given the request before may execute it
    /// later.)
    ///
    /// # Errors
    /// It is not so.
    pub fn to_pod(&self, id: u32, leg: (usize, u16), seq: SeqNumber, data: &[u8]) -> Checked {
        let Some(conn) = self.conns.get(&id) else {
            return Ok(());
        };
        let (from, to) = (seq.since(conn.isn.0.add(1)), data.len() as i32);
        // What is in front of the leg's first byte its kernel throws away.
        let from = from.max(
            self.starts
                .get(&leg)
                .map_or(0, |s| s.since(conn.isn.0.add(1))),
        );
        let to = seq.since(conn.isn.0.add(1)) + to;
        let ends = conn
            .requests
            .iter()
            .skip(1)
            .map(|(_, _, start)| *start)
            .chain([usize::MAX]);
        for (number, ((request, _, start), end)) in conn.requests.iter().zip(ends).enumerate() {
            let overlaps =
                i64::from(from) < end as i64 && i64::from(to) > *start as i64 && from < to;
            if overlaps && conn.response_begun(number) && conn.speaker != Some(leg) {
                return Err(format!(
                    "execution: {} goes to pod {} (port {}) although pod {:?} has begun to answer it",
                    request.tag, leg.0, leg.1, conn.speaker
                ));
            }
        }
        let at = seq.since(conn.isn.0.add(1));
        let right = usize::try_from(at).is_ok_and(|at| {
            conn.written
                .get(at..at + data.len())
                .is_some_and(|written| written == data)
        });
        if right {
            return Ok(());
        }
        Err(format!(
            "stream: {} bytes at {at} towards a pod are not what the client wrote there",
            data.len()
        ))
    }

    /// Payload that leaves towards a client, from this leg: no byte twice with different values, nothing spliced, every
    /// response what its execution gives.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn to_client(
        &mut self,
        id: u32,
        from: (usize, u16),
        seq: SeqNumber,
        data: &[u8],
    ) -> Checked {
        let Some(conn) = self.conns.get_mut(&id) else {
            return Ok(());
        };
        let Some(isn) = conn.isn.1 else {
            return Err(format!(
                "stream: data towards connection {id} before a SYN-ACK"
            ));
        };
        let at = seq.since(isn.add(1));
        let Some(at) = usize::try_from(at).ok().filter(|at| *at < STREAM_MAX) else {
            return Err(format!("stream: data towards connection {id} at {at}"));
        };
        let end = at + data.len();
        if end > conn.sent.len() {
            if conn.speaker.is_some_and(|speaker| speaker != from)
                && (conn.reader.is_within() || conn.whole != conn.sent.len())
            {
                return Err(format!(
                    "single owner: connection {id} hears pod {} (port {}) in the middle of what pod {:?} says",
                    from.0, from.1, conn.speaker
                ));
            }
            conn.speaker = Some(from);
            conn.sent.resize(end, 0);
            conn.known.resize(end, false);
        }
        for (offset, byte) in data.iter().enumerate() {
            let at = at + offset;
            if at < conn.acked {
                // Its kernel has it already and throws this away.
                continue;
            }
            if conn.known[at] && conn.sent[at] != *byte {
                return Err(format!(
                    "sequence space: connection {id}, byte {at} was {:#x} and is {byte:#x} now, from pod {} (port {})",
                    conn.sent[at], from.0, from.1
                ));
            }
            conn.sent[at] = *byte;
            conn.known[at] = true;
        }
        Self::judge_stream(id, conn)
    }

    /// Reads on in what is complete of the stream towards a client.
    fn judge_stream(id: u32, conn: &mut Conn) -> Checked {
        let end = conn.known[conn.whole..].iter().position(|known| !known);
        let end = end.map_or(conn.sent.len(), |n| conn.whole + n);
        while conn.whole < end {
            let Some((request, _, _)) = conn.requests.get(conn.answered) else {
                return Err(format!(
                    "stream: connection {id} hears what it did not ask for"
                ));
            };
            let (used, progress) = conn.reader.read(request, &conn.sent[conn.whole..end])?;
            conn.whole += used;
            if matches!(progress, Progress::Whole { .. }) {
                conn.answered += 1;
            }
        }
        Ok(())
    }

    /// An acknowledgement of the client's reaches the engine.
    pub fn client_acks(&mut self, client: usize, port: u16, seq: SeqNumber, ack: SeqNumber) {
        let id = self.of_numbers(client, port, Some(seq), None);
        let conn = id.and_then(|id| self.conns.get_mut(&id));
        if let Some(conn) = conn
            && let Some(isn) = conn.isn.1
            && let Ok(acked) = usize::try_from(ack.since(isn.add(1)))
            && acked <= conn.sent.len()
        {
            conn.acked = conn.acked.max(acked);
        }
    }

    /// An acknowledgement of a pod's reaches the engine.
    pub fn pod_acks(&mut self, pod: usize, port: u16, ack: SeqNumber) {
        let id = self.of_leg(pod, port);
        if let Some(conn) = id.and_then(|id| self.conns.get_mut(&id))
            && is_near(ack, conn.isn.0)
        {
            conn.taken = conn.taken.max(ack);
        }
    }

    /// The engine acknowledges something to a client in a backend's name.
    ///
    /// # Errors
    /// No pod has it: the client would never send it again.
    pub fn acknowledges(&self, id: u32, ack: SeqNumber) -> Checked {
        let Some(conn) = self.conns.get(&id) else {
            return Ok(());
        };
        // The client's FIN is nothing that a pod has to have.
        let most = conn.taken.add(u32::from(conn.client_closed));
        if ack.after(most) && is_near(ack, conn.isn.0) {
            let bytes = ack.since(most);
            return Err(format!(
                "stream: connection {id} is told of {bytes} bytes that no pod has"
            ));
        }
        Ok(())
    }

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
        self.starts.insert((pod, port), seq);
        let Some(id) = self.of_leg(pod, port) else {
            return Err(format!(
                "adoption: for no connection, to pod {pod} from port {port}"
            ));
        };
        let Some(conn) = self.conns.get(&id).filter(|_| exact) else {
            return Ok(());
        };
        if !conn.is_boundary(seq) {
            return Err(format!(
                "adoption: connection {id} moves in the middle of a request"
            ));
        }
        if conn.server_next() != Some(ack) {
            return Err(format!(
                "adoption: connection {id} moves at {ack:?} of the response stream, which is at {:?}",
                conn.server_next()
            ));
        }
        Ok(())
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
            return Err(format!(
                "execution: pod {pod} executes {tag}, which nobody asked for"
            ));
        };
        let (asked, begun_at) = (*asked, *begun_at);
        self.executed += 1;
        let before = self.executions.get(&tag).and_then(|e| e.first().copied());
        let this = Execution {
            number,
            pod,
            at: now,
        };
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
        let mut replaced = self.replaced.iter();
        let forgotten = replaced.any(|(p, at)| *p == pod && pod == first.pod && *at > first.at);
        if !forgotten && !self.any_rule(begun_at, now, allows) {
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

    /// A connection's client is told that it ends.
    pub fn ends(&mut self, id: u32, why: Explanation) {
        if let Some(conn) = self.conns.get_mut(&id)
            && conn.over.is_none()
        {
            conn.over = Some(why);
            *self.ends.entry(why).or_default() += 1;
        }
    }
}

/// Whether a number is one that a kernel may have sent, rather than another connection's or a guess.
#[must_use]
pub fn is_near(seq: SeqNumber, isn: SeqNumber) -> bool {
    (-(1 << 24)..=(1 << 24)).contains(&seq.since(isn))
}
