//! What comes next in one Transfer: a function of what is and what happened. Owns the order of the
//! steps, the point of no return ([`Step::Remember`]), and that each Transfer ends once, with one
//! owner or a reset that is counted. No I/O, no clock.
//!
//! Decisions:
//! - What is asked of another node's host-shim has the same steps, with [`FAR`] in place of the
//!   application that takes: Ready stands for the restored socket, Spoken for the one that talks.
//!   Behind the point of no return Go is said until it is answered, over another channel if need
//!   be, or until nobody there can have kept the connection.
//! - The connection of an application whose link breaks before the point of no return stays with
//!   it, although it may have died: one that lives goes on with its copy, and two owners are worse
//!   than none.

/// An application's connection to host-shim.
pub type LinkId = u64;

/// In place of the application that takes: the host-shim of another node. Links' numbers begin
/// behind it.
pub const FAR: LinkId = 0;

/// Where a Transfer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The applications of the pod that has the connection are asked for it.
    Asking { waiting: Vec<LinkId>, to: LinkId },
    /// One has handed it out; the other pod's is asked whether it takes it.
    Offering { from: LinkId, to: LinkId },
    /// Both have agreed, and this step is being done.
    Moving { from: LinkId, to: LinkId, step: Step },
    /// It has ended.
    Over,
}

impl Phase {
    /// It is nowhere here any more, and may not talk on the other node yet.
    pub const fn has_parted(&self) -> bool {
        matches!(self, Self::Moving { step: Step::Go, .. })
    }

    /// Who is slow if its time is over now.
    pub const fn waits_for(&self) -> &'static str {
        match self {
            Self::Asking { .. } => "its application has not handed it out",
            Self::Offering { .. } => "the other application has not answered",
            Self::Moving { step: Step::Send, .. } => "the other node has not restored it",
            Self::Moving { step: Step::Go, .. } => "the other node has not said that it talks",
            Self::Moving { .. } | Self::Over => "this host-shim had no time",
        }
    }
}

/// What is done once both applications have agreed, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Freeze,
    Export,
    Restore,
    /// In place of Restore, where another node restores it.
    Send,
    /// Moved is remembered: before, all can be undone, and from now on nothing.
    Remember,
    /// The old socket ends without a word.
    Drop,
    /// The new one begins to talk.
    Speak,
    /// The other application gets it.
    Give,
    /// In place of both, where another node does both.
    Go,
}

impl Step {
    const HERE: [Self; 7] = [
        Self::Freeze,
        Self::Export,
        Self::Restore,
        Self::Remember,
        Self::Drop,
        Self::Speak,
        Self::Give,
    ];
    const FAR: [Self; 6] =
        [Self::Freeze, Self::Export, Self::Send, Self::Remember, Self::Drop, Self::Go];

    /// For people: "no time is left to ...".
    pub const fn words(self) -> &'static str {
        match self {
            Self::Freeze => "freeze it",
            Self::Export => "export it",
            Self::Restore => "restore it",
            Self::Send => "send it to the other node",
            Self::Remember => "remember that it moved",
            Self::Drop => "end the old socket",
            Self::Speak => "have the new one talk",
            Self::Give => "give it to the other application",
            Self::Go => "have the other node's talk",
        }
    }

    pub fn all(to: LinkId) -> &'static [Self] {
        if to == FAR { &Self::FAR } else { &Self::HERE }
    }

    fn next(self, to: LinkId) -> Option<Self> {
        Self::all(to).iter().copied().find(|step| *step > self)
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This application has no such connection.
    NotMine(LinkId),
    /// This application does not want to, on either side.
    Refused(LinkId),
    /// Here it is.
    Out(LinkId),
    /// Here is something, but not the connection that was asked for.
    Misfit(LinkId),
    /// It takes it.
    Taken(LinkId),
    /// The connection to it has ended.
    Closed(LinkId),
    /// The other node's host-shim does not take it, or cannot be reached.
    Declined(Ended),
    /// Who asked may have given up.
    LeaseOver,
    Done(Step),
    Failed(Step),
}

/// What is to be done now, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Offer(LinkId),
    Do(Step),
    /// The new socket is forgotten, the old one goes on as if nothing had been.
    Undo,
    /// The new socket resets the peer; one that is nowhere is not spoken for any more.
    Reset,
    /// Kept is remembered.
    Keep,
    /// It goes on with it, or does not get it.
    Back(LinkId),
    /// Another one has it.
    Gone(LinkId),
    Count(Ended),
}

macro_rules! ended {
    ($($(#[$doc:meta])* $name:ident = $label:literal, $words:literal;)+) => {
        /// How a Transfer ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Ended { $($(#[$doc])* $name),+ }

        impl Ended {
            /// All, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// For metrics.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label),+ }
            }

            /// For people.
            pub const fn words(self) -> &'static str {
                match self { $(Self::$name => $words),+ }
            }
        }
    };
}

ended! {
    Moved = "moved", "the other pod's application has it";
    /// Behind the point of no return.
    Reset = "reset", "it could not be given to the other application, and was reset";
    NoApplication = "no_application", "no application of the pod is connected to host-shim";
    NotMine = "not_mine", "no connected application of the pod has this connection";
    Refused = "refused", "its application does not hand it out";
    Misfit = "wrong_descriptor", "its application handed out another descriptor than was asked for";
    OwnerLeft = "owner_left", "its application ended its connection to host-shim";
    NoPod = "no_pod", "the other pod is not on this node, and transfers.port is 0, or its address is another one's";
    NoTaker = "no_taker", "no application of the other pod that listens on the port is connected to host-shim";
    NotTaken = "not_taken", "the other application does not take it";
    TakerLeft = "taker_left", "the other application ended its connection to host-shim";
    LeaseOver = "lease_over", "the applications took too long";
    NotFrozen = "not_frozen", "the kernel does not freeze the socket";
    NotExported = "not_exported", "the connection cannot be exported";
    NotRestored = "not_restored", "the connection cannot be restored in the other pod";
    NotRemembered = "not_remembered", "the adopter's table does not take it";
    /// Of another node, like those that follow.
    Unreached = "unreached", "the other pod's host-shim cannot be reached: do network policies let the pods connect to each other at transfers.port?";
    OtherTenant = "other_namespace", "the pods are in two namespaces of Kubernetes";
    TooLarge = "too_large", "it has more unread and unsent than goes to another node";
    FarBusy = "far_busy", "too many are in progress on the other node";
    /// Undecided: the next copy asks again.
    Busy = "busy", "too many are in progress";
    /// Undecided.
    NoNamespace = "no_namespace", "the pod's namespace is not known (any more)";
}

/// The begin: the applications of the pod are to be asked, and one of the other pod is there.
pub fn begin(waiting: Vec<LinkId>, to: Option<LinkId>) -> Result<Phase, Ended> {
    if waiting.is_empty() {
        return Err(Ended::NoApplication);
    }
    let to = to.ok_or(Ended::NoTaker)?;
    Ok(Phase::Asking { waiting, to })
}

/// The next phase and what is to be done.
pub fn decide(phase: Phase, event: Event) -> (Phase, Vec<Effect>) {
    match phase {
        Phase::Asking { waiting, to } => asking(waiting, to, event),
        Phase::Offering { from, to } => offering(from, to, event),
        Phase::Moving { from, to, step } => moving(from, to, step, event),
        Phase::Over => (Phase::Over, Vec::new()),
    }
}

/// Nothing has been frozen yet, or all was undone.
fn kept(why: Ended, told: &[LinkId]) -> (Phase, Vec<Effect>) {
    let mut effects = vec![Effect::Keep];
    effects.extend(told.iter().map(|link| Effect::Back(*link)));
    effects.push(Effect::Count(why));
    (Phase::Over, effects)
}

fn taker_left(to: LinkId) -> Ended {
    if to == FAR { Ended::Unreached } else { Ended::TakerLeft }
}

fn asking(mut waiting: Vec<LinkId>, to: LinkId, event: Event) -> (Phase, Vec<Effect>) {
    let why = match event {
        Event::LeaseOver => return kept(Ended::LeaseOver, &waiting),
        Event::Out(link) if waiting.contains(&link) => {
            let others = waiting.iter().filter(|other| **other != link);
            let mut effects: Vec<_> = others.map(|other| Effect::Back(*other)).collect();
            effects.push(Effect::Offer(to));
            return (Phase::Offering { from: link, to }, effects);
        }
        // Its own link hears of it below.
        Event::Misfit(link) if waiting.contains(&link) => {
            return kept(Ended::Misfit, &waiting);
        }
        Event::Closed(link) if link == to => {
            waiting.retain(|other| *other != link);
            return kept(taker_left(to), &waiting);
        }
        Event::Declined(why) if to == FAR => return kept(why, &waiting),
        Event::NotMine(link) if waiting.contains(&link) => Ended::NotMine,
        // Who was not asked may have guessed the number.
        Event::Refused(link) if waiting.contains(&link) => Ended::Refused,
        Event::Closed(link) if waiting.contains(&link) => Ended::OwnerLeft,
        _ => return (Phase::Asking { waiting, to }, Vec::new()),
    };
    if let Event::NotMine(link) | Event::Refused(link) | Event::Closed(link) = event {
        waiting.retain(|other| *other != link);
    }
    // Who refuses has it.
    if waiting.is_empty() || why == Ended::Refused {
        return kept(why, &waiting);
    }
    (Phase::Asking { waiting, to }, Vec::new())
}

fn offering(from: LinkId, to: LinkId, event: Event) -> (Phase, Vec<Effect>) {
    match event {
        Event::Taken(link) if link == to => {
            let step = Step::Freeze;
            (Phase::Moving { from, to, step }, vec![Effect::Do(step)])
        }
        Event::Refused(link) if link == to => kept(Ended::NotTaken, &[from]),
        Event::Closed(link) if link == to => kept(taker_left(to), &[from]),
        Event::Closed(link) if link == from => kept(Ended::OwnerLeft, &[to]),
        Event::Declined(why) if to == FAR => kept(why, &[from]),
        Event::LeaseOver => kept(Ended::LeaseOver, &[from, to]),
        _ => (Phase::Offering { from, to }, Vec::new()),
    }
}

fn moving(from: LinkId, to: LinkId, step: Step, event: Event) -> (Phase, Vec<Effect>) {
    let undone = |why, told: &[LinkId]| {
        let (phase, mut effects) = kept(why, told);
        effects.insert(0, Effect::Undo);
        (phase, effects)
    };
    let lost = || {
        let effects =
            vec![Effect::Reset, Effect::Gone(from), Effect::Back(to), Effect::Count(Ended::Reset)];
        (Phase::Over, effects)
    };
    let is_undoable = step <= Step::Remember;
    match event {
        Event::Done(done) if done == step => match step.next(to) {
            Some(step) => (Phase::Moving { from, to, step }, vec![Effect::Do(step)]),
            None => {
                let effects = vec![Effect::Gone(from), Effect::Count(Ended::Moved)];
                (Phase::Over, effects)
            }
        },
        Event::Failed(failed) if failed == step => match step {
            Step::Freeze => undone(Ended::NotFrozen, &[from, to]),
            Step::Export => undone(Ended::NotExported, &[from, to]),
            Step::Restore => undone(Ended::NotRestored, &[from, to]),
            Step::Send => undone(Ended::TooLarge, &[from, to]),
            Step::Remember => undone(Ended::NotRemembered, &[from, to]),
            // Its application closes it, silently as long as it is frozen.
            Step::Drop => {
                let step = if to == FAR { Step::Go } else { Step::Speak };
                (Phase::Moving { from, to, step }, vec![Effect::Do(step)])
            }
            Step::Speak | Step::Give | Step::Go => lost(),
        },
        // Another channel.
        Event::Closed(FAR) if step == Step::Go => {
            (Phase::Moving { from, to, step }, vec![Effect::Do(step)])
        }
        // It had its time, and restores nothing any more.
        Event::LeaseOver if step == Step::Go => lost(),
        Event::Declined(why) if is_undoable && to == FAR => undone(why, &[from]),
        Event::LeaseOver if is_undoable => undone(Ended::LeaseOver, &[from, to]),
        Event::Closed(link) if is_undoable && link == to => undone(taker_left(to), &[from]),
        Event::Closed(link) if is_undoable && link == from => undone(Ended::OwnerLeft, &[to]),
        _ => (Phase::Moving { from, to, step }, Vec::new()),
    }
}
