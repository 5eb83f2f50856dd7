//! Why flows move and how their moves end: the fixed lists behind events and metrics, and what each
//! flow remembers of it.
//!
//! Owns the labels and one byte of each flow. It never decides anything.

/// Why a flow is given to another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[repr(u8)]
#[strum(serialize_all = "snake_case")]
pub enum Cause {
    /// The mean wait there is surely lower (`migration.mode: WhenBetter`).
    Better,
    /// Its backend waits far longer than the policy's others, or stalls.
    Distress,
    /// That one joined, or came back, and is given its share.
    Share,
    /// The queue there is shorter, while the policy's backends are unevenly busy.
    Uneven,
    /// Each request goes to another one (`migration.mode: Always`).
    EveryRequest,
    /// Its backend drains, or has left the policy.
    Drain,
    /// Its backend is ejected for failures, and its client's flows leave together.
    Ejected,
    /// Nobody listens at its backend any more; the flow itself was still served.
    Down,
    /// Its backend ended it, or says nothing any more.
    Rescue,
    /// Its backend did not begin to answer within `responseTimeout`.
    Overdue,
    /// Its pod stood still, and let go of a request that its application had not read.
    Stall,
    /// Somebody asked for it.
    Manual,
    /// It had no leg, and its client sent a request.
    Legless,
}

impl Cause {
    /// All of them, in the order of their numbers.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// How a move ended. Each that began ends in one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[repr(u8)]
#[strum(serialize_all = "snake_case")]
pub enum MoveEnd {
    /// The new owner confirmed it.
    Moved,
    /// The old owner has the flow again.
    RolledBack,
    /// Neither has it: it waits for whoever can adopt it.
    Stranded,
    /// The flow ended meanwhile.
    Ended,
}

impl MoveEnd {
    /// All of them, in the order of their numbers.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// Moves of one policy that ended, by cause and end.
pub(crate) type MoveEnds = [[u64; MoveEnd::ALL.len()]; Cause::ALL.len()];

/// What a flow's last move came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastMove {
    /// It moved, for this reason.
    Moved(Cause),
    /// It was taken back.
    TakenBack,
}

/// Two facts about a flow's moves in one byte: what the last one came to, and why the open one was
/// begun. A flow that is not being moved has an open cause only if somebody asked for its move,
/// which waits for its next request then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Causes(u8);

/// In the low half: no move; then the causes; 15: taken back.
const TAKEN_BACK: u8 = 15;

const _: () = assert!(Cause::ALL.len() < TAKEN_BACK as usize);

impl Causes {
    fn cause(half: u8) -> Option<Cause> {
        Cause::ALL.get(usize::from(half).checked_sub(1)?).copied()
    }

    pub(crate) fn last(self) -> Option<LastMove> {
        match self.0 & 15 {
            TAKEN_BACK => Some(LastMove::TakenBack),
            half => Self::cause(half).map(LastMove::Moved),
        }
    }

    /// Why the present move was begun, or is to begin.
    #[inline]
    pub(crate) fn open(self) -> Option<Cause> {
        Self::cause(self.0 >> 4)
    }

    pub(crate) fn begin(&mut self, cause: Cause) {
        self.0 = self.0 & 15 | (cause as u8 + 1) << 4;
    }

    /// Nothing is open any more.
    pub(crate) fn drop_open(&mut self) {
        self.0 &= 15;
    }

    /// The open move is done.
    pub(crate) fn moved(&mut self) {
        self.0 >>= 4;
    }

    /// The open move was taken back.
    pub(crate) fn taken_back(&mut self) {
        self.0 = TAKEN_BACK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_lists() {
        for (number, cause) in Cause::ALL.iter().enumerate() {
            assert_eq!(*cause as usize, number);
        }
        for (number, end) in MoveEnd::ALL.iter().enumerate() {
            assert_eq!(*end as usize, number);
        }
    }

    #[test]
    fn a_flow_remembers_its_last_move_beside_the_open_one() {
        assert_eq!(size_of::<Causes>(), 1);
        let mut causes = Causes::default();
        assert_eq!((causes.last(), causes.open()), (None, None));
        for first in Cause::ALL {
            for second in Cause::ALL {
                causes.begin(*first);
                causes.moved();
                assert_eq!((causes.last(), causes.open()), (Some(LastMove::Moved(*first)), None));
                causes.begin(*second);
                assert_eq!(causes.last(), Some(LastMove::Moved(*first)));
                assert_eq!(causes.open(), Some(*second));
                causes.drop_open();
                assert_eq!((causes.last(), causes.open()), (Some(LastMove::Moved(*first)), None));
            }
        }
        causes.begin(Cause::Manual);
        causes.taken_back();
        assert_eq!((causes.last(), causes.open()), (Some(LastMove::TakenBack), None));
    }
}
