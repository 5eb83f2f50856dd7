//! Listeners that are left alone for a while: epoll tells of a connection that cannot be accepted
//! again and again. Owns which, and until when; never why.

use rustix::event::epoll::{self, EventData, EventFlags};
use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

/// Who connects meanwhile waits in the kernel. Descriptors are rarely free any sooner.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Paused {
    ids: Vec<u64>,
    until: Option<Instant>,
}

impl Paused {
    /// One more is left alone from now on. Whether it is the first.
    pub fn add(&mut self, now: Instant, id: u64) -> bool {
        self.ids.push(id);
        let is_first = self.until.is_none();
        self.until.get_or_insert(now + PAUSE);
        is_first
    }

    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// All of them, once their time is over: each is to be resumed.
    pub fn due(&mut self, now: Instant) -> Vec<u64> {
        match self.until {
            Some(until) if until <= now => {
                self.until = None;
                std::mem::take(&mut self.ids)
            }
            _ => Vec::new(),
        }
    }
}

/// Whether epoll tells of the connections that come to a listener that it has.
pub fn heed(epoll: BorrowedFd<'_>, listener: BorrowedFd<'_>, id: u64, is_heeded: bool) {
    let flags = if is_heeded { EventFlags::IN } else { EventFlags::empty() };
    // Fails only if epoll has it not.
    let _ = epoll::modify(epoll, listener, EventData::new_u64(id), flags);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::{buffer::spare_capacity, event::Timespec};
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::{AsFd, OwnedFd},
    };

    fn told(epoll: &OwnedFd) -> usize {
        let (mut events, at_once) = (Vec::with_capacity(4), Timespec::default());
        epoll::wait(epoll, spare_capacity(&mut events), Some(&at_once)).expect("epoll")
    }

    #[test]
    fn a_connection_that_waits_is_told_of_once_the_pause_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let _waits = TcpStream::connect(listener.local_addr().expect("bound")).expect("open");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        epoll::add(&epoll, &listener, EventData::new_u64(7), EventFlags::IN).expect("epoll");
        assert_eq!(told(&epoll), 1);

        let (mut paused, now) = (Paused::default(), Instant::now());
        assert_eq!((paused.until(), paused.due(now)), (None, vec![]));
        heed(epoll.as_fd(), listener.as_fd(), 7, false);
        assert_eq!(told(&epoll), 0);
        assert!(paused.add(now, 7));
        assert!(!paused.add(now + PAUSE / 2, 8));
        assert_eq!(paused.until(), Some(now + PAUSE));
        assert!(paused.due(now + PAUSE / 2).is_empty());
        assert_eq!(paused.due(now + PAUSE), [7, 8]);
        assert_eq!((paused.until(), paused.due(now + PAUSE)), (None, vec![]));
        heed(epoll.as_fd(), listener.as_fd(), 7, true);
        assert_eq!(told(&epoll), 1);
    }
}
