//! One state of the model: the flow as the dataplane has it, the pods, the client, the network, and
//! what happened so far.
//!
//! Owns the data. Who changes it: `step` (by the declared table), `decide`, `server`, `client`,
//! `rescue` (the dataplane), `pod` (the pods), `explore` (what may happen next).

use crate::{
    config::{Config, Faults, PODS_MAX, REQUESTS_MAX, UNITS_MAX},
    pod::{Pod, STALE, Socket},
    wire::{InFlight, Leg},
};
use baton_engine::{Lost, handover::Progress, states::State};
use std::hash::{Hash, Hasher};

/// A state of the declared table, which can be part of a hashed state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct At(pub State);

impl Hash for At {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0 as u8).hash(state);
    }
}

impl std::fmt::Debug for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

/// Why a backend is down, as the dataplane believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Down {
    /// Its kernel answers, nobody listens.
    NoListener,
    /// Nothing is heard.
    Silent,
}

/// What the dataplane knows of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Known {
    /// The last probe said Ready.
    pub ready: bool,
    /// Why it is down.
    pub down: Option<Down>,
    /// It agreed to less than the client was promised.
    pub unlike: bool,
    /// Our next port towards it.
    pub next_port: u8,
}

/// The engine's flow (`engine/src/flow/mod.rs`), its bits spelled out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Where it is in the declared table.
    pub state: At,
    /// The owner leg.
    pub owner: Option<Leg>,
    /// The standby leg.
    pub standby: Option<Leg>,
    /// Legs in the closing table.
    pub closing: Vec<Leg>,
    /// Legs that a handshake opened, and whose numbers they have.
    pub shifts: Vec<(Leg, u8)>,
    /// `KEPT_WHOLE`: a copy of the outstanding request.
    pub kept: bool,
    /// The client's FIN is among the kept segments.
    pub kept_fin: bool,
    /// What the hand-over remembers: the engine's own.
    pub progress: Progress,
    /// `FIN_SENT`.
    pub fin_sent: bool,
    /// `OUTSTANDING`.
    pub outstanding: bool,
    /// Pinned by a gap in a response.
    pub pinned: bool,
    /// It moved before.
    pub migrated: bool,
    /// First unit of the request that an adoption carries.
    pub boundary: u8,
    /// Next unit of the client.
    pub client_next: u8,
    /// What the backend acknowledged.
    pub client_acked: u8,
    /// Next unit of the backend.
    pub server_next: u8,
    /// What the client acknowledged.
    pub server_acked: u8,
    /// Requests that the guard saw.
    pub requests: u8,
}

/// How the client's connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// The server's side reset it.
    Reset,
    /// The server's side closed it.
    Closed,
    /// The client reset it.
    ByClient,
}

/// The client's own TCP and application: one request after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// Requests sent.
    pub sent: u8,
    /// It closed its direction.
    pub fin: bool,
    /// From which leg each unit came, where it came.
    pub from: [Option<Leg>; UNITS_MAX],
    /// What the dataplane was told to have arrived.
    pub acked: u8,
    /// A FIN and its place.
    pub fin_at: Option<u8>,
    /// How it ended.
    pub ended: Option<Ended>,
}

impl Client {
    /// Units that arrived without a gap.
    #[must_use]
    pub fn got(&self) -> u8 {
        self.from.iter().take_while(|u| u.is_some()).count() as u8
    }
}

/// Why the engine let the client see an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Counted as lost, by `Lost`'s number.
    Lost(u8),
    /// A pod that lives closed an idle connection: a close of its own.
    CloseStands,
    /// The client closed its direction first; what its owner does then passes.
    ClientLeft,
    /// A timer that policy sets, counted as a time-out.
    Idle,
    /// A pinned flow's end passes.
    Pinned,
    /// It passed without a reason.
    Uncounted,
}

impl Why {
    /// The reason's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Why::Lost(n) => Lost::ALL.get(usize::from(n)).map_or("?", |l| l.label()),
            Why::CloseStands => "close_stands",
            Why::ClientLeft => "client_left",
            Why::Idle => "idle",
            Why::Pinned => "pinned",
            Why::Uncounted => "uncounted",
        }
    }
}

/// What happened, for the properties; the protocol never looks at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// How often each request was executed.
    pub executed: [u8; REQUESTS_MAX],
    /// Why the client saw or will see an end.
    pub why: Option<Why>,
    /// What went wrong, by property.
    pub broken: Option<Broken>,
}

/// A property that a transition broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// Two pods' bytes for one unit reached the client.
    TwoOwners,
    /// A unit that does not answer the client's request reached it.
    WrongBytes,
    /// An adoption was confirmed that no pod made.
    ConfirmedNothing,
    /// After a refusal or withdrawal the old pod was not the owner, or the request had been
    /// executed meanwhile.
    NotGivenBack,
    /// An event that its state cannot have.
    Unexpected,
    /// A reason that was counted did not hold.
    FalseReason,
    /// Something of a request was sent to a pod that had not answered our SYN, or a leg's numbers
    /// were shifted twice.
    NotOpened,
}

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The dataplane's flow.
    pub flow: Flow,
    /// What the dataplane knows of the pods.
    pub known: [Known; PODS_MAX],
    /// The pods.
    pub pods: [Pod; PODS_MAX],
    /// The client.
    pub client: Client,
    /// Packets on their way.
    pub net: InFlight,
    /// Faults that may still happen.
    pub left: Faults,
    /// Hand-overs by choice that may still happen.
    pub moves: u8,
    /// Legs that may still be opened.
    pub legs: u8,
    /// For the properties.
    pub ghost: Ghost,
}

impl World {
    /// The flow belongs to pod 0; all pods listen.
    #[must_use]
    pub fn first(config: &Config) -> Self {
        let mut pods: [Pod; PODS_MAX] = Default::default();
        let mut known = [Known::default(); PODS_MAX];
        for (pod, known) in pods.iter_mut().zip(&mut known).take(usize::from(config.pods)) {
            pod.listens = true;
            known.ready = true;
        }
        for (pod, unlike) in pods.iter_mut().zip(config.unlike) {
            pod.unlike = unlike;
        }
        pods[0].add(Socket::new(0, 0, 0));
        known[0].next_port = 1;
        let state = if config.fresh { State::Fresh } else { State::Idle };
        let flow = Flow {
            state: At(state),
            owner: Some(Leg { pod: 0, port: 0 }),
            standby: None,
            closing: Vec::new(),
            shifts: Vec::new(),
            kept: false,
            kept_fin: false,
            progress: Progress::default(),
            fin_sent: false,
            outstanding: false,
            pinned: false,
            migrated: false,
            boundary: 0,
            client_next: 0,
            client_acked: 0,
            server_next: 0,
            server_acked: 0,
            requests: 0,
        };
        Self {
            flow,
            known,
            pods,
            client: Client::default(),
            net: InFlight::default(),
            left: config.faults,
            moves: config.moves,
            legs: config.legs_max - 1,
            ghost: Ghost::default(),
        }
    }

    /// The pod of a leg.
    pub fn pod_mut(&mut self, leg: Leg) -> &mut Pod {
        &mut self.pods[usize::from(leg.pod)]
    }

    /// A new leg to `pod`, on a port that was never used; a stale socket may sit there.
    pub fn open(&mut self, pod: u8, stale: bool) -> Leg {
        let known = &mut self.known[usize::from(pod)];
        let leg = Leg { pod, port: known.next_port };
        known.next_port += 1;
        self.legs -= 1;
        if stale {
            self.pod_mut(leg).add(Socket::new(leg.port, STALE, STALE));
        }
        leg
    }
}
