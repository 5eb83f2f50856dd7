//! Deliberate faults of the state machine, which the simulator must find (feature `mutants`, off in
//! every product).
//!
//! Owns their names. Without the feature nothing asks for them at run time: each question is the
//! constant `false`.

/// One deliberate fault.
#[cfg_attr(feature = "mutants", derive(strum::VariantArray))]
#[cfg_attr(
    not(feature = "mutants"),
    expect(dead_code, reason = "some are asked for with the feature alone")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// What the old owner sends while the new one is unconfirmed goes to the client.
    SkipFencing,
    /// A bare RST confirms an adoption.
    CommitOnReset,
    /// A socket with other numbers on the tuple confirms an adoption.
    CommitOnStale,
    /// A request of unknown fate goes back to the old owner as if the new one had refused it.
    RollBackTaken,
    /// A new owner's timestamps do not go on from the old one's.
    StampsAnew,
    /// The first segments to a pod that was sent our SYN echo another pod's timestamps.
    EchoStrangers,
    /// A header of the PROXY protocol is sent once, whether it arrives or not.
    HeaderOnce,
    /// A request follows our SYN at once.
    OverrunOpening,
    /// A port is used again as soon as it is free.
    ReusePort,
    /// The first bytes of a response do not count: its request is kept, and may be given to another
    /// backend.
    SpliceResponse,
    /// Keys that were rotated out stay valid.
    KeepOldKeys,
    /// An answer is believed whatever its tag is.
    TrustTags,
    /// An answer is believed whatever it answers.
    AnyNumbers,
    /// Each probe of a backend has the numbers of its first one.
    SameNumbers,
    /// Options of clients reach pods.
    KeepOptions,
    /// Every request may be executed twice, whatever policy says.
    ReplayAlways,
    /// No limit to how often one request is executed once more.
    ReplayUnbounded,
    /// A request counts as never seen by a backend that ended.
    BelieveUnseen,
    /// What a pod keeps counts as let go of.
    TakeWhatIsKept,
    /// A connection that a pod keeps counts as handed on.
    InheritWhatIsKept,
    /// A backend's end reaches the client without the question whether anybody listens.
    BelieveEveryEnd,
    /// An end that nothing marks reaches the client if anybody listens.
    BelieveUnmarked,
    /// Kept segments of a closed flow are never given back.
    LeakKept,
    /// The owner leg's port of a closed flow is never given back.
    LeakPort,
    /// A flow moves although the client lacks bytes of the last response.
    MoveUnacked,
    /// A flow moves although requests are unanswered.
    MovePipelined,
    /// The old owner's leg is forgotten, not closed.
    LeaveOldLeg,
    /// Nothing looks after an adoption that is not answered.
    ForgetTimer,
    /// What a mean wait looks like at this moment moves flows: no margin for its error, no budget,
    /// no rest between moves.
    MoveOnNoise,
    /// The flows of a distressed backend stay there.
    StayInDistress,
    /// A distressed backend is not left alone: it is given flows again at once.
    NoBackOff,
    /// What pods' kernels say of their load is not heard.
    DeafToPressure,
    /// A flow takes any leg that is parked at its pod, whatever the ends agreed to there.
    TakeAnyLeg,
    /// On a leg that was another flow's both sides' timestamps are the new one's own.
    StampsRunBack,
    /// What a pod repeats of its answers to another flow on a shared leg is this one's.
    HearFormer,
}

#[cfg(feature = "mutants")]
impl Mutant {
    /// All of them.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;
}

/// Which fault is committed, for parts that do not see the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Committed {
    #[cfg(feature = "mutants")]
    mutant: Option<Mutant>,
}

impl Committed {
    /// This one from now on.
    #[cfg(feature = "mutants")]
    pub(crate) const fn to(mutant: Option<Mutant>) -> Self {
        Self { mutant }
    }

    /// Whether it is this one.
    #[cfg(feature = "mutants")]
    #[inline]
    pub(crate) fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Never.
    #[cfg(not(feature = "mutants"))]
    #[inline]
    #[expect(clippy::unused_self, reason = "the same call with and without the feature")]
    pub(crate) const fn is(self, _: Mutant) -> bool {
        false
    }
}
