//! Room for sessions: what few connections need, apart from what all do.
//!
//! Owns a slab over memory that somebody else reserved, and its free list. A slot is overwritten
//! when it is given back: what it held may be a secret.

use super::session::Session;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// Memory of sessions.
pub trait Store: AsRef<[Session]> + AsMut<[Session]> {}

impl<T: AsRef<[Session]> + AsMut<[Session]>> Store for T {}

/// Room for as many sessions as `S` has.
#[derive(Clone)]
pub struct Sessions<S> {
    slots: S,
    free: u32,
    used: u32,
    /// None is given out at present.
    withheld: bool,
}

impl<S: Store> Sessions<S> {
    /// All of it is free.
    pub fn new(mut slots: S) -> Self {
        let all = slots.as_mut();
        let count = all.len() as u32;
        for (next, slot) in (1..).zip(all) {
            *slot = Session::new();
            slot.next = if next < count { next } else { NONE };
        }
        Self { slots, free: if count == 0 { NONE } else { 0 }, used: 0, withheld: false }
    }

    /// Whether no further one is given out, whoever asks: for callers that share them out.
    pub fn withhold(&mut self, withheld: bool) {
        self.withheld = withheld;
    }

    /// How many are in use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// How many there are.
    pub fn limit(&self) -> u32 {
        self.slots.as_ref().len() as u32
    }

    pub(super) fn get(&self, id: u32) -> Option<&Session> {
        self.slots.as_ref().get(id as usize)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Session> {
        self.slots.as_mut().get_mut(id as usize)
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        if self.withheld {
            return None;
        }
        let id = self.free;
        self.free = self.get(id)?.next;
        self.used += 1;
        Some(id)
    }

    pub(super) fn give_back(&mut self, id: u32) {
        let free = self.free;
        if let Some(slot) = self.get_mut(id) {
            *slot = Session::new();
            slot.next = free;
            self.free = id;
            self.used -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::table::Kind;

    #[test]
    fn slots_are_given_out_once() {
        let mut sessions = Sessions::new([const { Session::new() }; 3]);
        let taken = [(); 3].map(|()| sessions.take());
        assert_eq!(taken, [Some(0), Some(1), Some(2)]);
        assert_eq!((sessions.used(), sessions.limit(), sessions.take()), (3, 3, None));
        sessions.give_back(1);
        sessions.withhold(true);
        assert_eq!((sessions.used(), sessions.take()), (2, None));
        sessions.withhold(false);
        assert_eq!((sessions.used(), sessions.take()), (2, Some(1)));
        assert_eq!(Sessions::new([]).take(), None);
    }

    #[test]
    fn a_secret_is_overwritten_when_its_room_is_given_back() {
        let mut sessions = Sessions::new([const { Session::new() }; 1]);
        let id = sessions.take().unwrap_or(NONE);
        if let Some(session) = sessions.get_mut(id) {
            session.begin(Kind::Auth);
            assert_eq!(session.bytes(b"secret"), Ok(()));
            assert!(session.has_bytes(b"secret"));
        }
        sessions.give_back(id);
        assert!(sessions.get(id).is_some_and(|s| !s.has_bytes(b"secret")));
    }
}
