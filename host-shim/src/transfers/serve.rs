//! The thread: waits for what is asked and for what applications and other nodes say, and for the
//! ends of leases. Owns what is known at a time; never waits for one application. Who is connected
//! is `doors`', what is done of it `handing`'s.

use super::{
    Figures, Shared, Warmth,
    between::Settings,
    closers::Closers,
    decide::{Event, LinkId},
    links::{Link, Refused},
    paused::{Paused, heed},
    serving::Serving,
};
use anyhow::Context;
use baton_adopter::Transfers;
use baton_sdk::wire::{Message, PACKET_BYTES_MAX};
use rustix::{
    buffer::spare_capacity,
    event::{
        Timespec,
        epoll::{self, EventData, EventFlags},
    },
    io::{Errno, read},
    net::{Shutdown, shutdown},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fs::File,
    io::Read,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};
use tracing::warn;

/// What epoll tells of at a time.
const EVENTS: usize = 64;

const ASKS: u64 = 0;
const CHANGED: u64 = 1;
/// Listeners and links have numbers from here on.
const FIRST: u64 = 2;

pub fn serve(
    transfers: &Transfers,
    warm: &Warmth,
    shared: &Shared,
    figures: &Figures,
) -> anyhow::Result<()> {
    let mut asks = transfers.asks()?;
    let mut serving = Serving {
        transfers,
        warm,
        figures,
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?,
        pods: BTreeMap::new(),
        links: HashMap::new(),
        listeners: HashMap::new(),
        open: BTreeMap::new(),
        settings: Settings::default(),
        channels: HashMap::new(),
        doors: HashMap::new(),
        heirs: BTreeMap::new(),
        spoken: VecDeque::new(),
        nonce: nonce().context("/dev/urandom")?,
        lost_channels: Vec::new(),
        unbound: &shared.unbound,
        asked: HashSet::new(),
        next: FIRST,
        lost: Vec::new(),
        closers: Closers::default(),
        paused: Paused::default(),
        leaving: false,
        home: File::open("/proc/thread-self/ns/net").context("this thread's namespace")?,
    };
    serving.watch(asks.as_fd(), ASKS)?;
    serving.watch(shared.changed.as_fd(), CHANGED)?;
    let mut space = vec![0; PACKET_BYTES_MAX];
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        let patience = serving.patience();
        match epoll::wait(&serving.epoll, spare_capacity(&mut events), patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("waiting for Transfers"),
        }
        for event in events.drain(..) {
            match event.data.u64() {
                ASKS => {
                    for ask in asks.gather()? {
                        serving.ask(ask);
                    }
                }
                CHANGED => {
                    let _ = read(&shared.changed, &mut [0; 8]);
                    if shared.stop.load(Ordering::Relaxed) {
                        serving.leave();
                        continue;
                    }
                    let settings = shared.settings.lock();
                    let settings = settings.unwrap_or_else(PoisonError::into_inner).clone();
                    serving.settle_for(settings);
                    let places = shared.places.lock();
                    let places = places.unwrap_or_else(PoisonError::into_inner).clone();
                    let all_bound = serving.know(places);
                    shared.unbound.store(!all_bound, Ordering::Relaxed);
                }
                id => {
                    if let Some(pod) = serving.listeners.get(&id) {
                        serving.accept(*pod);
                    } else if let Some(pod) = serving.doors.get(&id) {
                        serving.admit(*pod);
                    } else if serving.channels.contains_key(&id) {
                        serving.hear_far(id, &mut space);
                    } else {
                        serving.hear(id, &mut space);
                    }
                }
            }
            serving.part_with_lost();
        }
        serving.end_leases();
        serving.part_with_lost();
        if serving.leaving && serving.open.is_empty() && serving.heirs.is_empty() {
            for id in serving.links.keys().copied().collect::<Vec<_>>() {
                serving.close(id, None);
            }
            return Ok(());
        }
    }
}

impl Serving<'_> {
    pub fn watch(&self, fd: BorrowedFd<'_>, id: u64) -> anyhow::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(id), EventFlags::IN).context("epoll")
    }

    /// Closes what came from a pod, or may have something of it unread, without waiting. A pod that
    /// keeps too much open loses its applications.
    pub fn put_away(&mut self, pod: u64, descriptor: OwnedFd) {
        self.closers.close(pod, descriptor);
        if self.closers.is_full(pod) {
            let of_it = self.links.values().filter(|link| link.pod == pod);
            for id in of_it.map(|link| link.id) {
                if !self.lost.contains(&id) {
                    self.figures.refuse(Refused::Unclosed);
                    self.lost.push(id);
                }
            }
        }
    }

    /// The same for a socket of an application, which hears of it at once.
    pub fn put_socket_away(&mut self, pod: u64, socket: OwnedFd) {
        // Epoll would tell for ever of one that is not closed yet. It need not have it.
        let _ = epoll::delete(&self.epoll, &socket);
        let _ = shutdown(&socket, Shutdown::Both);
        self.put_away(pod, socket);
    }

    /// Of a channel that is watched.
    pub fn watch_for(&self, id: u64, flags: EventFlags) -> anyhow::Result<()> {
        let channel = self.channels.get(&id).context("no such channel")?;
        epoll::modify(&self.epoll, channel, EventData::new_u64(id), flags).context("epoll")
    }

    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Until the first of what has its time.
    fn patience(&self) -> Option<Timespec> {
        let open = self.open.values();
        let first = open.map(|open| open.again.map_or(open.deadline, |at| at.min(open.deadline)));
        let greetings = self.links.values().filter_map(Link::greets_by);
        let left = first
            .chain(greetings)
            .chain(self.paused.until())
            .min()
            .map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.into_iter().chain(self.heirs_patience()).min()?;
        // A little later than too early.
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    pub fn say(&mut self, to: LinkId, message: &Message, descriptor: Option<BorrowedFd<'_>>) {
        if let Some(link) = self.links.get_mut(&to)
            && !link.say(message, descriptor)
        {
            self.figures.refuse(Refused::Slow);
            self.lost.push(to);
        }
    }

    fn part_with_lost(&mut self) {
        while !self.lost.is_empty() || !self.lost_channels.is_empty() {
            while let Some(link) = self.lost.pop() {
                self.close(link, None);
            }
            while let Some((channel, why)) = self.lost_channels.pop() {
                self.cut(channel, why);
            }
        }
    }

    fn end_leases(&mut self) {
        let now = Instant::now();
        let over = self.open.iter().filter(|(_, open)| open.deadline <= now);
        for id in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end_lease(id);
        }
        let again = self.open.iter().filter(|(_, open)| open.again.is_some_and(|at| at <= now));
        for id in again.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.say_go(id);
        }
        self.end_silent(now);
        self.resume(now);
        self.end_heirs(now);
        self.end_channels(now);
    }

    /// Nothing new begins, and what is in progress stays where it is, but for what one side or the
    /// other may have parted with: that ends within [`READY_FOR`](super::between::READY_FOR).
    fn leave(&mut self) {
        self.leaving = true;
        if let Err(problem) = self.transfers.enable(false) {
            warn!(%problem, "Transfers are asked although nobody decides them");
        }
        for (id, pod) in &self.listeners {
            let listener = self.pods.get(pod).and_then(|pod| pod.listener.as_ref());
            if let Some((_, listener)) = listener {
                heed(self.epoll.as_fd(), listener.as_fd(), *id, false);
            }
        }
        let undoable = self.open.iter().filter(|(_, o)| !o.phase.has_parted());
        for id in undoable.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.feed(id, Event::LeaseOver);
        }
        self.end_heirs_unless_ready();
    }
}

fn nonce() -> std::io::Result<u64> {
    let mut random = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(u64::from_ne_bytes(random))
}
