//! Releases (`docs/adoption-wire.md`), as far as user space has a part in them: it is told of what
//! was asked, has the iterator look at a namespace's sockets, and turns into Kept what the iterator
//! left. Owns the order of these; what may be ended is judged by `bpf/release.h`, under the
//! socket's lock. Never ends a socket itself.

use crate::{
    Error, Netns,
    asked::{Fate, map_error},
    object::Release,
    sys,
};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use rustix::{
    io::{Errno, read},
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::{Duration, Instant},
};

/// `struct adoption` of `bpf/tables.h`, whose last field is the namespace's cookie.
const ASK_BYTES: usize = 56;
const NETNS_AT: usize = 48;

/// What one Release asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ask([u8; ASK_BYTES]);

impl Ask {
    /// Of which namespace, by [`crate::OpenNetns::cookie`].
    #[must_use]
    pub fn netns(&self) -> u64 {
        self.0[NETNS_AT..].first_chunk().map_or(0, |cookie| u64::from_ne_bytes(*cookie))
    }
}

/// What one pass came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Connections that were ended.
    pub released: usize,
    /// Those that go on.
    pub kept: usize,
    /// The time in which the iterator went through the sockets.
    pub took: Duration,
}

/// Decides Releases: passes over several namespaces at a time, but one over each.
#[derive(Debug)]
pub struct Releases {
    link: OwnedFd,
    /// Where the program drops what a socket holds. Open, as the verdict ends with its descriptors.
    _draining: MapHandle,
    releases: MapHandle,
    asks: MapHandle,
}

/// Where the adopter says what was asked.
pub struct Asks<'a> {
    ring: RingBuffer<'a>,
    map: &'a MapHandle,
    gathered: Rc<RefCell<BTreeMap<u64, BTreeSet<Ask>>>>,
}

impl std::fmt::Debug for Asks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asks").finish_non_exhaustive()
    }
}

impl Releases {
    pub(crate) fn new(
        release: &Release,
        releases: &MapHandle,
        asks: &MapHandle,
    ) -> io::Result<Self> {
        let copy = |map: &MapHandle| MapHandle::try_from(map).map_err(io::Error::other);
        Ok(Self {
            link: sys::iterator_link(release.program.as_fd())?,
            _draining: copy(&release.draining)?,
            releases: copy(releases)?,
            asks: copy(asks)?,
        })
    }

    /// Opens what the adopter writes asks to.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn asks(&self) -> Result<Asks<'_>, Error> {
        let gathered = Rc::new(RefCell::new(BTreeMap::<u64, BTreeSet<Ask>>::new()));
        let into = Rc::clone(&gathered);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&self.asks, move |event: &[u8]| {
                if let Ok(ask) = event.try_into().map(Ask) {
                    into.borrow_mut().entry(ask.netns()).or_default().insert(ask);
                }
                0
            })
            .map_err(|e| map_error("asks", "opening", &e))?;
        let ring = builder.build().map_err(|e| map_error("asks", "opening", &e))?;
        Ok(Asks { ring, map: &self.asks, gathered })
    }

    /// Goes through the TCP sockets of a namespace once and decides what was asked of it, where no
    /// other pass does so. Waits for a process that holds a socket's lock. The
    /// namespace must still be the one that was asked: `None` if the name leads to another one, and
    /// nothing is decided.
    ///
    /// # Errors
    /// Those of [`Netns::open`], [`Error::Pass`] and [`Error::Map`]. What is undecided then stays
    /// so, and is told of again when its next copy comes.
    pub fn pass(
        &self,
        netns: &Netns,
        cookie: u64,
        asks: &BTreeSet<Ask>,
    ) -> Result<Option<Pass>, Error> {
        let looked = netns.within_unchecked(|| self.look(cookie))?;
        let refuse = |source| Error::Pass { netns: netns.to_string(), source };
        let Some(took) = looked.map_err(refuse)? else {
            return Ok(None);
        };
        let mut pass = Pass { took, ..Pass::default() };
        for ask in asks {
            match self.settle(ask)? {
                Some(Fate::Done) => pass.released += 1,
                Some(Fate::Kept) => pass.kept += 1,
                _ => {}
            }
        }
        Ok(Some(pass))
    }

    /// Runs the iterator over the calling thread's namespace, if that is the one.
    fn look(&self, cookie: u64) -> io::Result<Option<Duration>> {
        let any = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        if sys::netns_cookie(any.as_fd())? != cookie {
            return Ok(None);
        }
        let begun = Instant::now();
        // The kernel ties it to the namespace of who makes it (bpf_iter_init_seq_net()).
        let iterator = sys::iterate(self.link.as_fd())?;
        // The program writes nothing: one read goes through all sockets, unless there are more than
        // a million (MAX_ITER_OBJECTS of bpf_seq_read()), after which it says EAGAIN.
        let mut nothing = [0; 8];
        loop {
            match read(&iterator, &mut nothing) {
                Ok(0) => return Ok(Some(begun.elapsed())),
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The state of what was asked before the iterator ran; what it left becomes Kept, unless its
    /// lease is over: then its next copy asks again.
    fn settle(&self, ask: &Ask) -> Result<Option<Fate>, Error> {
        match Fate::read(&self.releases, "releases", &ask.0)? {
            Some(Fate::Asked(None)) => Ok(None),
            Some(Fate::Asked(Some(_))) => {
                let kept = Fate::Kept.write(&self.releases, &ask.0);
                Ok(kept.is_ok().then_some(Fate::Kept))
            }
            decided => Ok(decided),
        }
    }
}

/// Readable when there is something to gather.
impl AsFd for Asks<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Asks<'_> {
    /// All that waits, at most what the buffer holds, by namespace. Nothing is told twice.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn gather(&mut self) -> Result<BTreeMap<u64, BTreeSet<Ask>>, Error> {
        self.ring.consume().map_err(|e| map_error("asks", "reading", &e))?;
        Ok(std::mem::take(&mut *self.gathered.borrow_mut()))
    }
}
