//! What an adopter tells of its pod besides that it is ready: the server timestamp field of such an answer
//! (`docs/adoption-wire.md`). Owns its layout; what follows from it is the engine's.

/// The content of the field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The pod's last segments carry [`EXIT_MARK`](crate::EXIT_MARK) if their process exits.
    pub marks_exits: bool,
    /// The listener, unless there are several on the port or the adopter is older.
    pub listener: Option<Listener>,
}

/// One listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The end of its inode number: the next process has another one.
    pub id: u16,
    /// Descriptors of all processes that refer to it; 255 for that many or more.
    pub holders: core::num::NonZeroU8,
}

impl Told {
    /// From the field.
    #[must_use]
    pub fn from_field(field: u32) -> Self {
        let [high, low, holders, flags] = field.to_be_bytes();
        Self {
            marks_exits: flags & 1 != 0,
            listener: core::num::NonZeroU8::new(holders).map(|holders| Listener {
                id: u16::from_be_bytes([high, low]),
                holders,
            }),
        }
    }

    /// The field.
    #[must_use]
    pub fn field(self) -> u32 {
        let (id, holders) = self.listener.map_or((0, 0), |l| (l.id, l.holders.get()));
        let [high, low] = id.to_be_bytes();
        u32::from_be_bytes([high, low, holders, u8::from(self.marks_exits)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::num::NonZeroU8;

    #[test]
    fn what_is_told_has_the_layout_of_the_wire_format() {
        let told = Told {
            marks_exits: true,
            listener: NonZeroU8::new(3).map(|holders| Listener {
                id: 0xabcd,
                holders,
            }),
        };
        assert_eq!(told.field(), 0xabcd_0301);
        assert_eq!(Told::from_field(0xabcd_0301), told);
    }

    #[test]
    fn older_adopters_tell_nothing() {
        assert_eq!(Told::from_field(0), Told::default());
        assert_eq!(Told::default().field(), 0);
    }

    #[test]
    fn without_holders_there_is_no_listener_and_other_bits_are_for_later() {
        let told = Told {
            marks_exits: true,
            listener: None,
        };
        for field in [1, 0xabcd_0001, 0xabcd_00ff] {
            assert_eq!(Told::from_field(field), told);
        }
    }
}
