//! What pods were told of the client, by a header in front of what the client sends (`introduce`)
//! or a client block (`restore`), and whether they may have been told other bytes than were
//! followed, or too long an MSS (`disputed`): plain data.

/// What the pods of a flow's owner leg and of its standby leg were told of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Told(u8);

impl Told {
    /// The owner leg begins with a header.
    const BEGINS: u8 = 1;
    /// And the pod has not acknowledged it.
    const DUE: u8 = 2;
    /// The pod sees the client's address.
    const RESTORED: u8 = 4;
    /// The same of the standby leg.
    const STANDBY: u8 = 3;
    /// Some pod of the flow's may have been told other bytes than were followed.
    const OTHERWISE: u8 = 1 << 6;
    const OF_LEGS: u8 = Self::OTHERWISE - 1;

    /// The owner's pod may lack the header, or some of it.
    #[inline]
    pub(crate) const fn is_due(self) -> bool {
        self.0 & Self::DUE != 0
    }

    /// The standby's pod may.
    pub(crate) const fn is_due_at_standby(self) -> bool {
        self.0 >> Self::STANDBY & Self::DUE != 0
    }

    /// The owner's pod has a header of this client's, or will.
    pub(crate) const fn begins(self) -> bool {
        self.0 & Self::BEGINS != 0
    }

    /// The owner's pod sees this client's address, whoever sends on that leg.
    #[inline]
    pub(crate) const fn is_restored(self) -> bool {
        self.0 & Self::RESTORED != 0
    }

    /// There is a new owner leg, with a header or without one, restored or not.
    pub(crate) const fn leg_begins(&mut self, header: bool, restored: bool) {
        self.0 &= !(Self::BEGINS | Self::DUE | Self::RESTORED);
        if header {
            self.0 |= Self::BEGINS | Self::DUE;
        }
        if restored {
            self.0 |= Self::RESTORED;
        }
    }

    pub(crate) const fn has_arrived(&mut self) {
        self.0 &= !Self::DUE;
    }

    /// The owner leg becomes the standby leg.
    pub(crate) const fn stands_by(&mut self) {
        let legs = (self.0 << Self::STANDBY) & Self::OF_LEGS;
        self.0 = self.0 & Self::OTHERWISE | legs;
    }

    /// The standby leg becomes the owner leg.
    pub(crate) const fn resumes(&mut self) {
        let legs = (self.0 & Self::OF_LEGS) >> Self::STANDBY;
        self.0 = self.0 & Self::OTHERWISE | legs;
    }

    /// Whether some pod may have been told other bytes than were followed.
    pub(crate) const fn is_otherwise(self) -> bool {
        self.0 & Self::OTHERWISE != 0
    }

    pub(crate) const fn may_be_otherwise(&mut self) {
        self.0 |= Self::OTHERWISE;
    }
}
