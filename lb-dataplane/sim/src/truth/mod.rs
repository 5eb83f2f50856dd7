//! What really happened, and the checkers that compare it with what must hold (ARCHITECTURE.md,
//! what always holds).
//!
//! Owns the record of every connection, request and execution, kept from outside of the engine:
//! what clients wrote, what left the engine in both directions, what pods executed. It never
//! changes anything in the world.

mod execution;
mod stream;

use crate::{
    clock::{SECOND, Time},
    pod::Cause,
    talk::{Language, Request, ResponseReader, Tag},
};
use baton_api::{BackendFailure, Legs, Policy, Protocol};
use baton_packet::SeqNumber;
use std::collections::{BTreeMap, BTreeSet};

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
    /// Whether it came ahead of bytes that were still under way: the engine waits for its
    /// repetition.
    pub early: bool,
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
    /// The highest byte of the client's that any pod has acknowledged.
    taken: SeqNumber,
    reader: ResponseReader,
    answered: usize,
    /// The leg that the client's stream went over last.
    leg: Option<(usize, u16)>,
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
    /// What explains a reset that left towards the client, at another number than that of its next
    /// byte.
    pub inexact: Option<Explanation>,
    /// Legs whose socket another leg has by now.
    heirs: BTreeMap<(usize, u16), (usize, u16)>,
    /// The last end of an owner.
    pub owner_end: Option<OwnerEnd>,
    /// Its client has nothing more to do with it.
    pub done: bool,
}

impl Conn {
    /// Requests that were begun and whose response has not left completely. What is still under way
    /// in the midst of a payload, in front of its end, counts as left.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        let left = self.reader.left();
        let to_its_end = left.is_some_and(|left| self.whole + left == self.sent.len());
        self.requests.len() - self.answered - usize::from(to_its_end)
    }

    /// Whether some in front of the next new byte towards the client are still under way.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        self.known[self.whole..].contains(&false)
    }

    /// The sequence number of the next new byte towards the client.
    #[must_use]
    pub fn server_next(&self) -> Option<SeqNumber> {
        Some(self.isn.1?.add(1 + self.sent.len() as u32))
    }

    /// Where the socket of a leg is at last.
    fn heir_of(&self, mut leg: (usize, u16)) -> (usize, u16) {
        while let Some(heir) = self.heirs.get(&leg) {
            leg = *heir;
        }
        leg
    }

    /// Whether the latest new bytes of the response stream came from the socket of this leg,
    /// wherever it was then.
    fn is_spoken_by(&self, leg: (usize, u16)) -> bool {
        let heir = |leg| self.heir_of(leg);
        self.speaker.map(heir) == Some(heir(leg))
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
#[derive(Clone, Debug)]
struct Rule {
    from: Time,
    failure: BackendFailure,
    protocol: Protocol,
    /// Whether legs go from connection to connection.
    shares: bool,
    /// Where adoption alone takes connections over: pods that have an adopter.
    adopters: Option<Vec<usize>>,
}

/// What is known of a leg that the engine opened once its pod has answered, or that another
/// connection had before.
#[derive(Clone, Copy, Debug)]
struct Shifted {
    /// What lies between the pod's numbers and those that the client is to see.
    by: u32,
    /// The same of the client's own numbers.
    acked: u32,
    /// The pod's first timestamp.
    stamp: Option<u32>,
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
    /// Bytes of the header in front of each leg.
    header_bytes: u32,
    /// Every connection by its number.
    pub conns: BTreeMap<u32, Conn>,
    /// Connections of a client's port, the latest first: a port may be used again.
    by_port: BTreeMap<(usize, u16), Vec<u32>>,
    legs: BTreeMap<(usize, u16), u32>,
    /// Pods and the connections that they had a leg of at any time.
    had: BTreeSet<(usize, u32)>,
    /// The first byte of the client's that a leg's socket takes, as far as is known.
    starts: BTreeMap<(usize, u16), SeqNumber>,
    /// Legs that a connection began on, before any pod had answered, and its first number.
    begun: BTreeMap<(usize, u16), (u32, SeqNumber)>,
    /// Legs that the engine opened: the client's next byte for the pod, and where the client is to
    /// see the pod's first one; and once the pod has answered, what lies between the two.
    opening: BTreeMap<(usize, u16), (SeqNumber, SeqNumber)>,
    shifts: BTreeMap<(usize, u16), Shifted>,
    /// Pods whose adopters have answered anything.
    pub answered: BTreeSet<usize>,
    executions: BTreeMap<Tag, Vec<Execution>>,
    rules: Vec<Rule>,
    adoptions: BTreeSet<(usize, u16, u32, u32)>,
    /// Executions in all.
    pub executed: u64,
    /// Executions of a request that had been executed before.
    pub replayed: u64,
    /// Ends that clients saw, by explanation.
    pub ends: BTreeMap<Explanation, u64>,
}

type Checked = Result<(), String>;

impl Truth {
    /// Nothing has happened.
    #[must_use]
    pub fn new(language: Language, header_bytes: u32) -> Self {
        Self {
            language,
            header_bytes,
            conns: BTreeMap::new(),
            by_port: BTreeMap::new(),
            legs: BTreeMap::new(),
            had: BTreeSet::new(),
            starts: BTreeMap::new(),
            begun: BTreeMap::new(),
            opening: BTreeMap::new(),
            shifts: BTreeMap::new(),
            answered: BTreeSet::new(),
            executions: BTreeMap::new(),
            rules: Vec::new(),
            adoptions: BTreeSet::new(),
            executed: 0,
            replayed: 0,
            ends: BTreeMap::new(),
        }
    }

    /// A snapshot is in force.
    pub fn rule(&mut self, from: Time, policy: &Policy, adopters: Option<Vec<usize>>) {
        self.rules.push(Rule {
            from,
            failure: policy.on_backend_failure,
            protocol: policy.protocol,
            shares: policy.migration.legs == Legs::Shared,
            adopters,
        });
    }

    /// Whether any policy in force between two times satisfies `is`.
    fn any_rule(&self, from: Time, to: Time, is: impl Fn(&Rule) -> bool) -> bool {
        let ends = self.rules.iter().skip(1).map(|r| r.from).chain([Time::MAX]);
        let in_force = self.rules.iter().zip(ends);
        in_force.filter(|(rule, end)| rule.from <= to && *end > from).any(|(rule, _)| is(rule))
    }

    /// Whether legs may go from connection to connection.
    #[must_use]
    pub fn legs_are_shared(&self) -> bool {
        self.rules.iter().any(|rule| rule.shares)
    }

    /// Whether a policy of the last moments passes every end of a backend on.
    #[must_use]
    pub fn ends_pass(&self, now: Time) -> bool {
        let nobody = |adopters: &Vec<usize>| adopters.iter().all(|a| !self.answered.contains(a));
        let passes = |r: &Rule| {
            r.failure == BackendFailure::Reset
                || r.protocol == Protocol::None
                || r.adopters.as_ref().is_some_and(nobody)
        };
        self.any_rule(now.saturating_sub(SECOND), now, passes)
    }

    /// A client opens a connection.
    pub fn connects(&mut self, client: usize, conn: u32, port: u16, isn: u32) {
        self.by_port.entry((client, port)).or_default().insert(0, conn);
        let new = Conn {
            client,
            isn: (SeqNumber(isn), None),
            requests: Vec::new(),
            written: Vec::new(),
            sent: Vec::new(),
            known: Vec::new(),
            whole: 0,
            taken: SeqNumber(isn).add(1),
            reader: ResponseReader::new(self.language),
            answered: 0,
            leg: None,
            speaker: None,
            open: false,
            client_closed: false,
            client_aborted: false,
            over: None,
            inexact: None,
            heirs: BTreeMap::new(),
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

    /// Whether a connection is, or was, that of a client's port: who executes late may mean one
    /// before.
    #[must_use]
    pub fn had_port(&self, client: usize, port: u16, conn: u32) -> bool {
        let all = self.by_port.get(&(client, port));
        all.is_some_and(|all| all.contains(&conn))
    }

    /// The one of a client's port that these numbers are of: one of the client's direction, one of
    /// the server's. The latest one if they are of none.
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
                    || of_server.zip(conn.isn.1).is_some_and(|(seq, isn)| is_near(seq, isn))
            })
        };
        all.iter().find(fits).or(all.first()).copied()
    }

    /// The connection of a leg.
    #[must_use]
    pub fn of_leg(&self, pod: usize, port: u16) -> Option<u32> {
        self.legs.get(&(pod, port)).copied()
    }

    /// The connection of a leg, where that is another one of the same client's port than this, and
    /// whether it began later.
    #[must_use]
    pub fn another_of_port(&self, leg: (usize, u16), conn: u32) -> Option<(u32, bool)> {
        let its = self.of_leg(leg.0, leg.1).filter(|its| *its != conn)?;
        let both = |all: &&Vec<u32>| all.contains(&its) && all.contains(&conn);
        let all = self.by_port.values().find(both)?;
        let place = |of| all.iter().position(|id| *id == of);
        Some((its, place(its) < place(conn)))
    }

    /// Whether a pod has a leg of a connection, or had one that no other connection has by now.
    #[must_use]
    pub fn had_leg(&self, pod: usize, conn: u32) -> bool {
        self.had.contains(&(pod, conn))
    }

    /// A leg is this connection's from now on.
    pub fn leg_is(&mut self, pod: usize, port: u16, conn: u32) {
        self.had.insert((pod, conn));
        if self.legs.insert((pod, port), conn) != Some(conn) {
            self.starts.remove(&(pod, port));
            self.shifts.remove(&(pod, port));
            self.opening.remove(&(pod, port));
        }
    }

    /// A connection's stream goes over this leg, or begins to.
    pub fn goes_over(&mut self, conn: u32, leg: (usize, u16)) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.leg = Some(leg);
        }
    }

    /// Whether a connection's stream went over another leg so far.
    #[must_use]
    pub fn is_elsewhere(&self, conn: u32, leg: (usize, u16)) -> bool {
        let last = self.conns.get(&conn).and_then(|conn| conn.leg);
        last.is_some_and(|last| last != leg)
    }

    /// A connection has a leg that another one had, whose numbers stand where the pod sends and
    /// expects them. `of_client`: where the client's stream is there; if that is not known, at rest
    /// or in front of the request that is not answered.
    pub fn shares(
        &mut self,
        leg: (usize, u16),
        id: u32,
        (seq, ack): (SeqNumber, SeqNumber),
        of_client: Option<SeqNumber>,
    ) {
        self.leg_is(leg.0, leg.1, id);
        self.goes_over(id, leg);
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let start = |(_, _, start): &(Request, Time, usize)| conn.isn.0.add(1 + *start as u32);
        let request = conn.requests.get(conn.answered).map(start);
        let at = of_client.or(request).unwrap_or(conn.taken);
        let next = conn.server_next().unwrap_or_default();
        let shifted = Shifted {
            by: next.0.wrapping_sub(ack.0),
            acked: at.0.wrapping_sub(seq.0),
            stamp: None,
        };
        self.shifts.insert(leg, shifted);
        self.starts.insert(leg, at);
    }

    /// The socket of a leg is that of another one from now on; which connection's, if it is any's.
    pub fn transferred(
        &mut self,
        from: (usize, u16),
        to: (usize, u16),
        next: SeqNumber,
    ) -> Option<u32> {
        let id = self.of_leg(from.0, from.1)?;
        self.leg_is(to.0, to.1, id);
        self.starts.insert(to, next);
        let conn = self.conns.get_mut(&id)?;
        conn.heirs.remove(&to);
        conn.heirs.insert(from, to);
        Some(id)
    }

    /// The connection whose socket an application handed to that of this leg.
    pub fn handed_to(&self, leg: (usize, u16)) -> Option<u32> {
        let id = self.of_leg(leg.0, leg.1)?;
        let heirs = &self.conns.get(&id)?.heirs;
        heirs.values().any(|heir| *heir == leg).then_some(id)
    }

    /// Whether a connection's client was told that it ends.
    pub fn is_over(&self, id: u32) -> bool {
        (self.conns.get(&id)).is_some_and(|conn| conn.over.is_some())
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

/// Whether a number is one that a kernel may have sent, rather than another connection's or a
/// guess.
#[must_use]
pub fn is_near(seq: SeqNumber, isn: SeqNumber) -> bool {
    (-(1 << 24)..=(1 << 24)).contains(&seq.since(isn))
}
