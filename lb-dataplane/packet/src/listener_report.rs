//! What an adopter tells of its pod besides whether it is ready: the server timestamp field of an
//! answer to a probe that found a listener (`docs/adoption-wire.md`). Owns its layout; what follows
//! from it is the engine's.

const MARKS_EXITS: u8 = 1;
const SEVERAL: u8 = 2;
const FORGETS: u8 = 4;
const TRANSFERS: u8 = 8;
const BETWEEN_NODES: u8 = 16;
const RESTORES: u8 = 32;

/// The content of the field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerReport {
    /// The pod's last segments carry [`EndMark::Exiting`](crate::EndMark::Exiting) if their process
    /// exits.
    pub marks_exits: bool,
    /// The adopter answers a Forget ([`MessageKind::Forget`](crate::MessageKind::Forget)); to any
    /// other one it would be a SYN.
    pub forgets: bool,
    /// The application hands connections to others of its kind, and takes theirs
    /// ([`MessageKind::Transfer`](crate::MessageKind::Transfer)).
    pub transfers: bool,
    /// Those connections go to pods of other nodes, and come from there, as well.
    pub between_nodes: bool,
    /// The adopter takes client blocks ([`ClientBlock`](crate::ClientBlock)).
    pub restores: bool,
    /// The listener, unless the adopter cannot count its holders or is older.
    pub listener: Option<Listener>,
}

/// The listening socket of a port, or several of them (`SO_REUSEPORT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The end of its inode number: the next process has another one. Of several, the sum, which is
    /// another one as soon as one of them is.
    pub id: u16,
    /// Descriptors of all processes that refer to it, or to any of them; 255 for that many or more.
    pub holders: core::num::NonZeroU8,
    /// There is more than one.
    pub several: bool,
}

impl ListenerReport {
    /// Whether there is anything: an older adopter is silent.
    #[must_use]
    pub fn is_anything(self) -> bool {
        self.marks_exits || self.forgets || self.listener.is_some()
    }

    /// From the field.
    #[must_use]
    pub fn from_field(field: u32) -> Self {
        let [high, low, holders, flags] = field.to_be_bytes();
        Self {
            marks_exits: flags & MARKS_EXITS != 0,
            forgets: flags & FORGETS != 0,
            transfers: flags & TRANSFERS != 0,
            between_nodes: flags & BETWEEN_NODES != 0,
            restores: flags & RESTORES != 0,
            listener: core::num::NonZeroU8::new(holders).map(|holders| Listener {
                id: u16::from_be_bytes([high, low]),
                holders,
                several: flags & SEVERAL != 0,
            }),
        }
    }

    /// The field.
    #[must_use]
    pub fn field(self) -> u32 {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let marks = flag(self.marks_exits, MARKS_EXITS)
            | flag(self.forgets, FORGETS)
            | flag(self.transfers, TRANSFERS)
            | flag(self.between_nodes, BETWEEN_NODES)
            | flag(self.restores, RESTORES);
        let Some(listener) = self.listener else {
            return marks.into();
        };
        let [high, low] = listener.id.to_be_bytes();
        let several = if listener.several { SEVERAL } else { 0 };
        u32::from_be_bytes([high, low, listener.holders.get(), marks | several])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::num::NonZeroU8;

    #[test]
    fn what_is_told_has_the_layout_of_the_wire_format() {
        for (several, forgets, transfers, between_nodes, restores, field) in [
            (false, false, false, false, false, 0xabcd_0301),
            (true, false, false, false, false, 0xabcd_0303),
            (true, true, false, false, false, 0xabcd_0307),
            (false, true, true, false, false, 0xabcd_030d),
            (false, true, true, true, false, 0xabcd_031d),
            (false, true, false, false, true, 0xabcd_0325),
        ] {
            let told = ListenerReport {
                marks_exits: true,
                forgets,
                transfers,
                between_nodes,
                restores,
                listener: NonZeroU8::new(3).map(|holders| Listener {
                    id: 0xabcd,
                    holders,
                    several,
                }),
            };
            assert_eq!(told.field(), field);
            assert_eq!(ListenerReport::from_field(field), told);
        }
    }

    #[test]
    fn older_adopters_tell_nothing() {
        assert_eq!(ListenerReport::from_field(0), ListenerReport::default());
        assert_eq!(ListenerReport::default().field(), 0);
    }

    #[test]
    fn without_holders_there_is_no_listener_and_other_bits_are_for_later() {
        let told = ListenerReport {
            marks_exits: true,
            forgets: false,
            transfers: false,
            between_nodes: false,
            restores: false,
            listener: None,
        };
        for field in [1, 0xabcd_0001, 0xabcd_00c3] {
            assert_eq!(ListenerReport::from_field(field), told);
        }
    }
}
