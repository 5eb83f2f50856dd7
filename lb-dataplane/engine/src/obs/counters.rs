//! Counters and drop reasons: plain numbers of one worker, read by the control thread between
//! batches.
//!
//! Owns the fixed metric names and labels. It never formats anything on the packet path.

use crate::obs::pins::{Lost, PinReason};

/// Why a frame was dropped. Each ends in `drops_total{reason="..."}`.
///
/// As wide as a length, so that a `Verdict` is returned in two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[repr(usize)]
#[strum(serialize_all = "snake_case")]
pub enum DropReason {
    /// Not parseable; the decoder's reason is counted by itself.
    Malformed,
    /// The TCP checksum is wrong and not a partial one.
    BadChecksum,
    /// Neither a frontend nor a leg of ours is addressed.
    NotOurs,
    /// A segment of no flow that is not a SYN.
    NoFlow,
    /// A segment from a backend on a port that is no leg.
    NoLeg,
    /// The flow table is full.
    FlowTableFull,
    /// What is left of the flow table is kept for policies with fewer flows.
    FlowsOfOthers,
    /// The policy has no backend that can take the flow.
    NoBackend,
    /// The policy's backends have addresses of one IP family only, of which the dataplane has none.
    /// The client is reset.
    NoFamily,
    /// No free port towards the backend.
    NoPort,
    /// The next hop's link-layer address is not known yet.
    NoNeighbour,
    /// No route to the next hop, or the table of next hops is full.
    NoRoute,
    /// The hop limit ended here.
    TtlExpired,
    /// An ICMP error that quotes none of our legs.
    IcmpUnrelated,
    /// Flags that no TCP sends (SYN with FIN or RST, none at all).
    BadFlags,
    /// A SYN, and no pod has said yet whether it restores clients' addresses, as the policy wants.
    NotAsked,
    /// A SYN of a client that the policy's `allowFrom` does not name.
    NotAllowed,
}

impl DropReason {
    /// All reasons.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }
}

macro_rules! counters {
    ($($variant:ident = $name:literal $(, $key:literal : $value:literal)? ; #[doc = $doc:literal])+) => {
        /// What the engine counts beside drops and transitions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Counter { $(#[doc = $doc] $variant),+ }
        impl Counter {
            /// All of them.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant),+];
            /// Metric name without prefix, and its label.
            #[must_use]
            pub const fn metric(self) -> (&'static str, Option<(&'static str, &'static str)>) {
                match self { $(Counter::$variant => ($name, counters!(@label $($key, $value)?))),+ }
            }
            /// What it counts, for people.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Counter::$variant => $doc),+ }
            }
        }
    };
    (@label) => { None };
    (@label $key:literal, $value:literal) => { Some(($key, $value)) };
}

counters! {
    FromClients = "segments_total", "from": "client"; #[doc = "Segments addressed to a frontend."]
    FromBackends = "segments_total", "from": "backend"; #[doc = "Segments addressed to a leg."]
    LeftToHost = "left_to_host_total"; #[doc = "With hostNetwork: segments to the ports of legs that belong to none, left to the node: it translates connections to such ports."]
    PartialChecksums = "checksums_completed_total"; #[doc = "Partial checksums (CHECKSUM_PARTIAL of a veth peer) that were completed."]
    FlowsOpened = "flows_opened_total"; #[doc = "Flows since start."]
    FlowsClosed = "flows_closed_total"; #[doc = "Flows freed since start."]
    Requests = "requests_total"; #[doc = "Requests begun."]
    Boundaries = "boundaries_total"; #[doc = "Request boundaries at which the flow could have moved."]
    MigrationsBegun = "migrations_begun_total"; #[doc = "Adoptions sent for the first time."]
    MigrationsConfirmed = "migrations_total"; #[doc = "Adoptions that the new owner confirmed."]
    Rollbacks = "rollbacks_total"; #[doc = "Adoptions taken back: the old owner served the request."]
    AdoptionRetries = "adoption_retries_total"; #[doc = "Adoption segments sent again."]
    OpeningsSent = "openings_total", "result": "sent"; #[doc = "SYNs of ours to pods that shall take a connection over and do not adopt it."]
    OpeningsAgain = "openings_total", "result": "repeated"; #[doc = "Those that were sent again."]
    OpeningsAnswered = "openings_total", "result": "opened"; #[doc = "Those that the pod agreed to: its numbers are translated from then on."]
    OpeningsRefused = "openings_total", "result": "refused"; #[doc = "Those that the pod's kernel refused: nothing listens."]
    OpeningsUnanswered = "openings_total", "result": "silence"; #[doc = "Those that nobody answered, after all repetitions: the old owner kept the connection, or another pod took it."]
    OpeningsUnlike = "openings_total", "result": "unlike"; #[doc = "Those that the pod agreed to without timestamps, which the client has been promised. It takes no more connections over by translation."]
    ShiftsFull = "openings_total", "result": "table_full"; #[doc = "Those that the pod agreed to where as many legs were translated as may be."]
    LegsParked = "legs_parked_total"; #[doc = "Legs that their connections left and that were kept for others."]
    LegsIntroduced = "legs_introduced_total"; #[doc = "Legs begun with a header of the PROXY protocol, as their policy wants (`clientAddress: ProxyV2`)."]
    HeadersSent = "proxy_headers_sent_total"; #[doc = "Headers of the PROXY protocol sent to Pods, those that were sent again included."]
    LegsRestored = "legs_restored_total"; #[doc = "Legs begun on which the pod sees the client's address, as its policy wants (`clientAddress: Restore`)."]
    LegsHidden = "legs_hidden_total"; #[doc = "Legs of such policies on which the pod sees the dataplane's: it has no adopter that restores, is the client itself, or has an address of the other IP family."]
    LegsShared = "legs_shared_total"; #[doc = "Requests that went to another pod on a leg that another connection had before."]
    LegsLeft = "legs_left_total"; #[doc = "Times that a connection between two requests left its leg to others: it has none until its next request."]
    ParkedFull = "legs_parked_full_total"; #[doc = "Legs that were closed because as many as may be were kept at their pod, or in all."]
    RefusedNoListener = "adoptions_refused_total", "reason": "no_listener"; #[doc = "Refusals: nothing listens."]
    RefusedQueueFull = "adoptions_refused_total", "reason": "accept_queue_full"; #[doc = "Refusals: accept queue full."]
    RefusedKernel = "adoptions_refused_total", "reason": "kernel_refused"; #[doc = "Refusals: the kernel function failed."]
    RefusedTupleInUse = "adoptions_refused_total", "reason": "tuple_in_use"; #[doc = "Refusals: a socket is in the way."]
    RefusedAlreadyAdopted = "adoptions_refused_total", "reason": "already_adopted"; #[doc = "Adopted before, and that socket is gone."]
    RefusedRenew = "adoptions_refused_total", "reason": "renew"; #[doc = "Refusals: the pod was replaced, or its number made anew, since it was probed."]
    RefusedSyncookies = "adoptions_refused_total", "reason": "syncookies_off"; #[doc = "Refusals: tcp_syncookies is 0."]
    RefusedPacketRules = "adoptions_refused_total", "reason": "packet_rules"; #[doc = "Refusals: the pod's packet rules redirect connections."]
    ForgedAnswers = "forged_answers_total"; #[doc = "Adoption answers whose tag or epoch is wrong."]
    FateReplayed = "fates_unknown_total", "outcome": "replayed"; #[doc = "Requests of unknown fate that policy allowed to replay."]
    FateReset = "fates_unknown_total", "outcome": "reset"; #[doc = "Requests of unknown fate that ended in a reset."]
    TimeWaitsEnded = "time_waits_ended_total"; #[doc = "RSTs to pods that had closed first, once both ends had acknowledged all: Linux forgets its TIME_WAIT, and the port can be used again."]
    ForgetsSent = "forgets_total", "result": "sent"; #[doc = "Forgets sent: connection trackers on the way to the pod are to forget a pair of ports that nothing uses any more."]
    ForgetsAnswered = "forgets_total", "result": "forgotten"; #[doc = "Pairs that the pod's adopter said to be free: adoptions may use them again."]
    ForgetsInUse = "forgets_total", "result": "in_use"; #[doc = "Pairs on which the pod had a TIME_WAIT left, or a connection whose adoption nobody had confirmed."]
    ForgetsUnanswered = "forgets_total", "result": "silence"; #[doc = "Pairs of which nobody said so: adoptions use them again after two minutes."]
    StaleSockets = "stale_sockets_total"; #[doc = "Stale sockets met on a new leg's tuple."]
    LateAnswers = "late_answers_total"; #[doc = "Adoption answers with a right tag that belong to an earlier adoption or probe than the open one."]
    ResetsDoubted = "resets_doubted_total"; #[doc = "RSTs from owners without ACK, which may be older than the connection there, or at a number that is none of its ends: answered by a question."]
    ClientResetsDoubted = "client_resets_doubted_total"; #[doc = "RSTs of clients with a number that only the pod can judge: passed on with a question whether the socket is gone."]
    Fenced = "fenced_segments_total"; #[doc = "Segments from a leg that is not the owner, absorbed."]
    FencedData = "fenced_data_segments_total"; #[doc = "Those among them that carried new data."]
    LegsClosed = "legs_closed_total", "how": "clean"; #[doc = "Old legs closed by FIN in both directions."]
    LegsReset = "legs_closed_total", "how": "reset"; #[doc = "Old legs that had to be reset."]
    ResetsToClients = "resets_sent_total", "to": "client"; #[doc = "Resets that Baton sent to clients."]
    ResetsToBackends = "resets_sent_total", "to": "backend"; #[doc = "Resets that Baton sent to backends."]
    ResetsLimited = "resets_limited_total", "to": "stranger"; #[doc = "Resets for unknown segments of clients that the rate limit held back."]
    ChallengesLimited = "resets_limited_total", "to": "client"; #[doc = "Challenges to SYNs on connections that live, held back by a limit of their own."]
    PodResetsLimited = "resets_limited_total", "to": "backend"; #[doc = "Resets to sockets of pods that are no leg's, held back by a limit of their own."]
    StayedKeptFull = "stays_total", "reason": "kept_full"; #[doc = "No buffer was free to keep the request."]
    StayedClosingFull = "stays_total", "reason": "closing_full"; #[doc = "The table of closing legs was full."]
    StayedNoPort = "stays_total", "reason": "no_port"; #[doc = "No port was free towards the target."]
    StayedPortReserve = "stays_total", "reason": "port_reserve"; #[doc = "Of the ports towards the target that trackers have certainly forgotten, only those were left that are kept for rescues and drains."]
    StayedTracked = "stays_total", "reason": "tracked_limit"; #[doc = "Connection trackers on the way may remember as many pairs of ports as they are to at most."]
    StayedNoFrame = "stays_total", "reason": "no_frame"; #[doc = "No frame was free for the adoption segment."]
    StayedShiftsFull = "stays_total", "reason": "shifts_full"; #[doc = "As many legs were translated as may be."]
    StayedRate = "stays_total", "reason": "rate"; #[doc = "The policy's moves per second were used up."]
    StayedFlow = "stays_total", "reason": "flow_limit"; #[doc = "The flow had moved as often as its policy allows."]
    StayedBackend = "stays_total", "reason": "backend_rate"; #[doc = "The policy's moves per second onto the chosen backend were used up."]
    StayedLarge = "stays_total", "reason": "large"; #[doc = "The request was too large for a new pod's first receive window, or so it seemed; only a pod that goes away or fails is left with one."]
    Backlogged = "backlog_segments_total"; #[doc = "Client segments that waited until a new owner had confirmed, or its receive window took them."]
    BacklogFlowFull = "backlog_full_total", "limit": "flow"; #[doc = "Client segments that could not wait: as many of their flow did as may. The client sends them again."]
    BacklogFull = "backlog_full_total", "limit": "all"; #[doc = "Client segments that could not wait: half of the kept segments were waiting ones, or none was free."]
    BacklogNetworkFull = "backlog_full_total", "limit": "network"; #[doc = "The same: as many of one client network's are kept, or as many of its flows wait, as may."]
    BacklogsFull = "backlog_full_total", "limit": "flows"; #[doc = "Flows whose client's segments could not wait, as those of too many did."]
    NextHopsFull = "next_hops_full_total"; #[doc = "Connections of clients on the own link that were answered where their SYN came from, as the next hops of clients were used up."]
    HalfOpenReplaced = "half_open_replaced_total"; #[doc = "Handshakes that were not complete and gave way to newer ones: as many with the backend were open as may be."]
    EarlySegments = "early_segments_total"; #[doc = "Segments that came ahead of missing ones, of which copies were kept until those came: guards see bytes in order."]
    EarlyFlowFull = "early_full_total", "limit": "flow"; #[doc = "Segments that came ahead of missing ones and were not passed on: as many of their flow are set aside as may be. They are sent again."]
    EarlyNetworkFull = "early_full_total", "limit": "network"; #[doc = "The same: as many of one client network's are set aside as may be."]
    EarlyFull = "early_full_total", "limit": "all"; #[doc = "The same: as many of all flows are set aside as may be, or no buffer was free."]
    AffinitiesReplaced = "affinities_replaced_total"; #[doc = "Clients with affinity that were forgotten early, as the table was full."]
    Stranded = "stranded_total"; #[doc = "Flows whose owner was gone, from the moment that this was known."]
    OwnersExited = "exit_marks_total"; #[doc = "Owners' FINs and RSTs that came with the exit mark: their process was exiting."]
    OwnersListening = "listener_marks_total"; #[doc = "Owners' FINs and RSTs that came with the listener mark, or the unread mark: a process that listens closed them."]
    OwnersClosed = "owners_lost_total", "how": "closed"; #[doc = "Stranded flows whose owner closed."]
    OwnersReset = "owners_lost_total", "how": "reset"; #[doc = "Stranded flows whose owner reset."]
    OwnersSilent = "owners_lost_total", "how": "silent"; #[doc = "Stranded flows of whose owner nothing was heard any more."]
    OwnersReleased = "owners_lost_total", "how": "released"; #[doc = "Stranded flows whose owner's adopter let go of their request, which its application had not read."]
    ReleasesAsked = "releases_total", "result": "asked"; #[doc = "Releases sent: a pod answers nothing, and another one could answer the request. Repetitions count."]
    ReleasesDone = "releases_total", "result": "released"; #[doc = "Requests that the pod let go of, unread."]
    ReleasesKept = "releases_total", "result": "kept"; #[doc = "Requests that the pod keeps, mostly because its application has begun to read them."]
    ReleasesUnanswered = "releases_total", "result": "silence"; #[doc = "Requests about which nobody answered, so that their clients' next bytes wait no longer for that."]
    TransfersAsked = "transfers_total", "result": "asked"; #[doc = "Transfers sent: a pod's application is asked to hand a connection to another pod's. Repetitions count."]
    TransfersDone = "transfers_total", "result": "moved"; #[doc = "Connections that another pod's application went on with, in the middle of a message too."]
    TransfersKept = "transfers_total", "result": "kept"; #[doc = "Connections that stay where they are: one of the applications would not, or host-shim could not."]
    TransfersUnanswered = "transfers_total", "result": "silence"; #[doc = "Connections of which nobody said whether they moved, and that did not."]
    TransfersFull = "transfers_total", "result": "table_full"; #[doc = "Connections that were not asked for because as many transfers are open as there may be, or as their policy may have."]
    LegsOverUnmarked = "legs_over_unmarked_total"; #[doc = "Ends of owners at rest that nothing marks, while somebody listens: the flow gets another leg, and its client is not told."]
    ClosesBelieved = "closes_believed_total"; #[doc = "Ends of owners that were held back, and then passed on to their clients: the pod goes on without them."]
    Rescues = "rescues_total"; #[doc = "Flows whose owner was gone or overdue, and that another backend adopted."]
    AdoptionsDelayed = "adoptions_delayed_total"; #[doc = "Tries to move a flow without its request that found every adoptable backend given as many as it takes per millisecond; each is made again."]
    ResponseTimeouts = "response_timeouts_total"; #[doc = "Requests that their owner did not begin to answer within the policy's time."]
    SessionsRestored = "sessions_restored_total"; #[doc = "Adoptions that carried AUTH or SELECT in front of the request."]
    LivenessProbesSent = "liveness_probes_total", "result": "sent"; #[doc = "Probes and SYNs that asked whether anybody listens."]
    LivenessProbesAnswered = "liveness_probes_total", "result": "listens"; #[doc = "Those answered by the adopter or a SYN-ACK: somebody does."]
    LivenessProbesRefused = "liveness_probes_total", "result": "refused"; #[doc = "Those answered by the adopter or a RST: nobody does."]
    LivenessProbesUnanswered = "liveness_probes_total", "result": "silence"; #[doc = "Those that nobody answered, after all repetitions."]
    BackendsWithoutListener = "backends_down_total", "reason": "no_listener"; #[doc = "Backends found to listen no more."]
    BackendsSilent = "backends_down_total", "reason": "silent"; #[doc = "Backends found to answer nothing at all."]
    FlowTableRekeyed = "flow_table_rekeys_total"; #[doc = "Times that the flow table took other hash keys, because too many flows were in one place."]
    BackendsRestarted = "backends_restarted_total"; #[doc = "Backends at which another process listens than before, as their adopters say."]
    BackendsBack = "backends_back_total"; #[doc = "Backends that were down and listen again."]
    Ejections = "ejections_total", "result": "ejected"; #[doc = "Backends ejected for failures in a row."]
    EjectionsCapped = "ejections_total", "result": "capped"; #[doc = "Ejections that the policy's cap prevented."]
    UnexpectedEvents = "unexpected_events_total"; #[doc = "Events that no state machine row foresees: a mistake in the engine."]
    KeptFull = "kept_full_total"; #[doc = "Client segments that could not be kept."]
    KeptGaveWay = "kept_gave_way_total"; #[doc = "Incomplete requests whose copies gave way to newer ones: no buffer was free, or their client's network had its part."]
    NoFrame = "frames_exhausted_total"; #[doc = "Segments of our own that found no free frame."]
    ProbesSent = "probes_total", "result": "sent"; #[doc = "Adoption probes sent."]
    ProbesReady = "probes_total", "result": "ready"; #[doc = "Probes answered with Ready."]
    ProbesRefused = "probes_total", "result": "refused"; #[doc = "Probes answered with a reason against."]
    ProbesReset = "probes_total", "result": "no_adopter"; #[doc = "Probes that drew a bare RST: no adopter there."]
    LoadProbesPaced = "load_probes_paced_total"; #[doc = "Probes for a load report after which the next one waits longer than 10 ms, as a worker sends so many in a second at most."]
    BeyondWindow = "segments_beyond_window_total"; #[doc = "Segments beyond the largest possible window: forwarded (where legs are shared: dropped), nothing learned from them."]
    IcmpTranslated = "icmp_translated_total"; #[doc = "ICMP errors passed to the other leg."]
    NarrowPaths = "narrow_paths_total"; #[doc = "ICMP errors not passed on, of clients' paths that take less than 1,260 bytes (IPv6: 1,280): the pod would send less to all clients."]
    OptionsStripped = "options_stripped_total"; #[doc = "Client segments that lost MPTCP, TFO, accurate ECN or experimental options."]
    UrgentCleared = "urgent_cleared_total"; #[doc = "Client segments with urgent data that go on as plain ones, since a guard follows: a pod's kernel would take the urgent byte out of the stream."]
    Disputed = "disputed_flows_total"; #[doc = "Flows with shared legs that keep theirs to themselves: a pod may have bytes of their clients' that were not followed, or was told of a longer MSS than their path takes."]
    TimeoutsHandshake = "timeouts_total", "state": "handshake"; #[doc = "Flows ended by the handshake timer."]
    TimeoutsIdle = "timeouts_total", "state": "idle"; #[doc = "Flows ended by the idle timer."]
    TimeoutsHalfClosed = "timeouts_total", "state": "half_closed"; #[doc = "Flows ended by the half-closed timer."]
    TimeoutsUnheard = "timeouts_total", "state": "unheard"; #[doc = "Flows whose ends had both closed, and that were forgotten before each had acknowledged all of the other: nobody repeated anything for two minutes (or `timeouts.halfClosed`, if that is shorter)."]
    EndsToldBehind = "ends_told_behind_total"; #[doc = "Times that clients of a pod were told of their servers' ends although not all that had come to the interface was looked at for half a second: a request that waits there finds its connection closed."]
}

/// The values of one engine.
pub(crate) struct Counters {
    values: [u64; Counter::ALL.len()],
    drops: [u64; DropReason::ALL.len()],
    pub(crate) malformed: [u64; baton_packet::Malformed::ALL.len()],
    pub(crate) transitions: [u64; crate::states::TABLE.len()],
    /// Of all policies there ever were.
    pub(crate) lost: [u64; Lost::ALL.len()],
    pub(crate) pins: [u64; PinReason::COUNT],
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            values: [0; Counter::ALL.len()],
            drops: [0; DropReason::ALL.len()],
            malformed: [0; baton_packet::Malformed::ALL.len()],
            transitions: [0; crate::states::TABLE.len()],
            lost: [0; Lost::ALL.len()],
            pins: [0; PinReason::COUNT],
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, counter: Counter) {
        self.values[counter as usize] += 1;
    }

    #[inline]
    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }
}
