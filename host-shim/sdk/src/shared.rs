//! What an application's threads and the one that talks to host-shim share, and that thread. Owns
//! who waits for which answer; knows no sockets of the application.

use crate::{
    packet::{self, Nothing},
    slot::Slot,
    wire::{Message, PACKET_BYTES_MAX, VERSION, reason},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read, write},
};
use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

/// How soon a host-shim that is there again is found.
const RECONNECT_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Offered connections that the application has not accepted yet: each has been taken from another
/// pod's application, which waits 200 ms for it at most.
const OFFERS_MAX: usize = 256;
/// A host-shim that reads nothing for so long is of no use (`LEASE_NS` of the adopter).
const SEND_PATIENCE: Duration = Duration::from_millis(200);
/// How long a connection whose owner is in doubt waits for the next host-shim, which is as long as
/// its replacement takes at most.
pub(crate) const DOUBT_PATIENCE: Duration = Duration::from_secs(5);

/// No transfer has this number.
pub(crate) const NONE: u64 = 0;

/// How a transfer ends for one side.
#[derive(Debug)]
pub(crate) enum Outcome {
    Gone,
    Back(String),
    Yours,
    /// Host-shim was not told.
    Unsent(String),
    /// The connection to host-shim broke.
    Lost,
}

/// A registered connection.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// The transfer that wants it, or [`NONE`].
    pub(crate) wanted: AtomicU64,
    wake: OnceLock<OwnedFd>,
    waker: Mutex<Option<Waker>>,
}

impl Entry {
    /// Returns whom to wake.
    fn want(&self, id: u64) -> Option<Waker> {
        self.wanted.store(id, Ordering::SeqCst);
        if let Some(wake) = self.wake.get() {
            // Fails only if the counter is full, and then it is readable as well.
            let _ = write(wake, &1_u64.to_ne_bytes());
        }
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        waker.take()
    }

    fn calm(&self, id: u64) {
        let same = (Ordering::SeqCst, Ordering::SeqCst);
        let was = self.wanted.compare_exchange(id, NONE, same.0, same.1);
        if was.is_ok()
            && let Some(wake) = self.wake.get()
        {
            // Non-blocking.
            let _ = read(wake, &mut [0; 8]);
        }
    }

    /// The transfer that wants it; nobody wants it from now on.
    pub(crate) fn take(&self) -> u64 {
        let id = self.wanted.swap(NONE, Ordering::SeqCst);
        self.adjust_wake();
        id
    }

    /// Readable only while it is wanted.
    fn adjust_wake(&self) {
        let Some(wake) = self.wake.get() else { return };
        if self.wanted.load(Ordering::SeqCst) == NONE {
            let _ = read(wake, &mut [0; 8]);
        }
        // What was wanted since, whose wake-up may have been read with it.
        if self.wanted.load(Ordering::SeqCst) != NONE {
            let _ = write(wake, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn wake(&self) -> io::Result<BorrowedFd<'_>> {
        use rustix::event::{EventfdFlags, eventfd};
        if self.wake.get().is_none() {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Another thread's is as good.
            let _ = self.wake.set(made);
        }
        let wake = self.wake.get().ok_or(io::ErrorKind::NotFound)?;
        self.adjust_wake();
        Ok(wake.as_fd())
    }

    /// Wakes a task once it is wanted.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut here = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        *here = Some(waker.clone());
    }
}

/// What was offered and is not decided.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) connection: u64,
    pub(crate) id: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) state: Vec<u8>,
    /// Nobody waits for the end of its Take any more.
    pub(crate) taken: Option<Taken>,
}

/// A Take under way: the socket that the connection comes into.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) socket: OwnedFd,
    pub(crate) slot: Arc<Slot<Outcome>>,
}

#[derive(Debug, Default)]
struct State {
    /// To host-shim, once it has said Welcome.
    socket: Option<Arc<OwnedFd>>,
    /// How many there have been: what was said on another one is void.
    connection: u64,
    registered: HashMap<(SocketAddr, SocketAddr), Arc<Entry>>,
    waiting: HashMap<u64, Arc<Slot<Outcome>>>,
    offers: VecDeque<Offer>,
    acceptors: Vec<Weak<Slot<()>>>,
    /// Whom to wake once this is not locked any more: a waker may run or end a task at once, which
    /// may call the link.
    woken: Vec<Waker>,
    closed: bool,
}

/// Lets go of the state, and wakes who waits.
fn wake(mut state: MutexGuard<'_, State>) {
    let woken = std::mem::take(&mut state.woken);
    drop(state);
    woken.into_iter().for_each(Waker::wake);
}

#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// The process that has connected. Another one was forked off, has its descriptors and not its
    /// thread, and the lock as it was.
    pid: u32,
    ports: Vec<u16>,
    stop: OwnedFd,
    connected: std::sync::Condvar,
    doubts: AtomicU64,
}

#[cfg(test)]
impl Shared {
    /// As a fork of the process that has connected sees it, while a thread there had the lock.
    pub(crate) fn of_a_fork(stop: OwnedFd) -> (Arc<Self>, impl Drop) {
        let shared = Arc::new(Self { pid: 0, ..Self::new(&[], stop) });
        let held: &'static Self = Box::leak(Box::new(Arc::clone(&shared)));
        (shared, held.lock())
    }
}

#[cfg(test)]
impl Entry {
    /// Wanted or not, with this descriptor.
    pub(crate) fn with(wanted: u64, wake: OwnedFd) -> Self {
        Self { wanted: wanted.into(), wake: wake.into(), ..Self::default() }
    }
}

impl Shared {
    pub(crate) fn new(ports: &[u16], stop: OwnedFd) -> Self {
        Self {
            state: Mutex::default(),
            pid: std::process::id(),
            ports: ports.to_vec(),
            stop,
            connected: std::sync::Condvar::new(),
            doubts: AtomicU64::new(0),
        }
    }

    /// Far from the numbers of Transfers, which count from 1.
    pub(crate) fn number_of_doubt(&self) -> u64 {
        u64::MAX - self.doubts.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_of_this_process(&self) -> bool {
        self.pid == std::process::id()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_of_this_process() && self.lock().socket.is_some()
    }

    /// The number of the connection behind `than`, once there is one.
    pub(crate) fn wait_connected(&self, than: u64, patience: Duration) -> Option<u64> {
        if !self.is_of_this_process() {
            return None;
        }
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        while state.socket.is_none() || state.connection <= than {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.closed {
                return None;
            }
            let (next, _) =
                self.connected.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = next;
        }
        Some(state.connection)
    }

    pub(crate) fn register(&self, ends: (SocketAddr, SocketAddr)) -> Arc<Entry> {
        let entry = Arc::new(Entry::default());
        if self.is_of_this_process() {
            self.lock().registered.insert(ends, Arc::clone(&entry));
        }
        entry
    }

    pub(crate) fn deregister(&self, ends: (SocketAddr, SocketAddr), entry: &Arc<Entry>) {
        if !self.is_of_this_process() {
            return;
        }
        let mut state = self.lock();
        if state.registered.get(&ends).is_some_and(|e| Arc::ptr_eq(e, entry)) {
            state.registered.remove(&ends);
        }
        let socket = state.socket.clone();
        drop(state);
        let id = entry.wanted.swap(NONE, Ordering::SeqCst);
        if let Some(socket) = socket.filter(|_| id != NONE) {
            let _ = say(&socket, &Message::NotMine { id }, None);
        }
    }

    /// Sends what an outcome is expected of.
    pub(crate) fn ask(
        &self,
        connection: Option<u64>,
        id: u64,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> (u64, Arc<Slot<Outcome>>) {
        let slot = Arc::new(Slot::default());
        if !self.is_of_this_process() {
            slot.put(Outcome::Unsent("a link is not its forks' as well".into()));
            return (0, slot);
        }
        let mut state = self.lock();
        let now = state.connection;
        let socket = state.socket.clone();
        match socket.filter(|_| connection.is_none_or(|of| of == now)) {
            Some(socket) => {
                state.waiting.insert(id, Arc::clone(&slot));
                drop(state);
                if let Err(problem) = say(&socket, message, descriptor) {
                    self.lock().waiting.remove(&id);
                    slot.put(Outcome::Unsent(format!("host-shim is not told: {problem}")));
                }
            }
            None => slot.put(Outcome::Unsent("host-shim has ended".into())),
        }
        (now, slot)
    }

    /// Sends what needs no outcome, if the connection is still that one.
    pub(crate) fn tell(&self, connection: Option<u64>, message: &Message) {
        if !self.is_of_this_process() {
            return;
        }
        let state = self.lock();
        let now = state.connection;
        let socket = state.socket.clone();
        drop(state);
        if let Some(socket) = socket.filter(|_| connection.is_none_or(|of| of == now)) {
            let _ = say(&socket, message, None);
        }
    }

    /// The next offer, or a slot that is filled when there may be one; nothing once closed.
    pub(crate) fn offer(&self) -> Result<Offer, Option<Arc<Slot<()>>>> {
        if !self.is_of_this_process() {
            return Err(None);
        }
        let mut state = self.lock();
        if let Some(offer) = state.offers.pop_front() {
            return Ok(offer);
        }
        if state.closed {
            return Err(None);
        }
        let slot = Arc::new(Slot::default());
        // Tasks may give up.
        state.acceptors.retain(|other| other.strong_count() > 0);
        state.acceptors.push(Arc::downgrade(&slot));
        Err(Some(slot))
    }

    /// A Take whose end nobody waits for any more: the next one who accepts has it.
    pub(crate) fn offer_again(&self, offer: Offer) {
        if !self.is_of_this_process() {
            return;
        }
        let mut state = self.lock();
        if !state.closed {
            state.offers.push_front(offer);
            wake_acceptors(&mut state);
        }
        wake(state);
    }

    pub(crate) fn close(&self) {
        if !self.is_of_this_process() {
            return;
        }
        let mut state = self.lock();
        state.closed = true;
        let offers = std::mem::take(&mut state.offers);
        wake_acceptors(&mut state);
        wake(state);
        drop(offers);
        self.connected.notify_all();
        let _ = write(&self.stop, &1_u64.to_ne_bytes());
    }

    /// The thread.
    pub(crate) fn serve(&self) {
        loop {
            // In front of the look at `closed`, which is set before that is written: who writes
            // there of another process, as it has the descriptor, wakes this once.
            let _ = read(&self.stop, &mut [0; 8]);
            if self.lock().closed {
                return;
            }
            if let Ok(socket) = packet::reach() {
                self.talk(&Arc::new(socket));
                self.part();
            }
            let mut stop = [PollFd::new(&self.stop, PollFlags::IN)];
            let _ = poll(&mut stop, Some(&RECONNECT_EVERY));
        }
    }

    fn talk(&self, socket: &Arc<OwnedFd>) {
        let hello = Message::Hello { version: VERSION, ports: self.ports.clone() };
        if say(socket, &hello, None).is_err() {
            return;
        }
        let mut space = vec![0; PACKET_BYTES_MAX];
        loop {
            let mut wakes =
                [PollFd::new(&**socket, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            match poll(&mut wakes, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            if !wakes[1].revents().is_empty() {
                return;
            }
            // None of what an application is told has a descriptor.
            let (message, _) = match packet::receive(&**socket, &mut space, &mut Vec::new()) {
                Ok(received) => received,
                Err(Nothing::Yet) => continue,
                Err(Nothing::Malformed(why)) => {
                    let reason = reason(&why.to_string());
                    let _ = say(socket, &Message::Bye { reason }, None);
                    return;
                }
                Err(Nothing::Closed | Nothing::Kernel(_)) => return,
            };
            if let Some(answer) = self.heard(socket, message)
                && say(socket, &answer, None).is_err()
            {
                return;
            }
        }
    }

    /// What is to be said at once.
    fn heard(&self, socket: &Arc<OwnedFd>, message: Message) -> Option<Message> {
        let mut state = self.lock();
        let answer = self.answer(&mut state, socket, message);
        wake(state);
        answer
    }

    fn answer(
        &self,
        state: &mut State,
        socket: &Arc<OwnedFd>,
        message: Message,
    ) -> Option<Message> {
        let end = |state: &mut State, id, outcome| {
            if let Some(slot) = state.waiting.remove(&id) {
                let waker = slot.fill(outcome);
                state.woken.extend(waker);
            }
        };
        match message {
            Message::Welcome { .. } => {
                state.connection += 1;
                state.socket = Some(Arc::clone(socket));
                self.connected.notify_all();
                None
            }
            Message::Want { id, local, remote } => match state.registered.get(&(local, remote)) {
                Some(entry) => {
                    let waker = entry.want(id);
                    state.woken.extend(waker);
                    None
                }
                None => Some(Message::NotMine { id }),
            },
            Message::Offer { id, local, remote, state: of_it } => {
                if state.offers.len() >= OFFERS_MAX {
                    let reason = "the application accepts nothing".to_owned();
                    return Some(Message::Refuse { id, reason });
                }
                let connection = state.connection;
                state.offers.push_back(Offer {
                    connection,
                    id,
                    local,
                    remote,
                    state: of_it,
                    taken: None,
                });
                wake_acceptors(state);
                None
            }
            Message::Yours { id } => {
                end(state, id, Outcome::Yours);
                None
            }
            Message::Gone { id } => {
                end(state, id, Outcome::Gone);
                None
            }
            Message::Back { id, reason } => {
                state.offers.retain(|offer| offer.id != id);
                for entry in state.registered.values() {
                    entry.calm(id);
                }
                end(state, id, Outcome::Back(reason));
                None
            }
            // Of a later version, or out of place.
            _ => None,
        }
    }

    /// All that was said on this connection is void.
    fn part(&self) {
        let mut state = self.lock();
        state.socket = None;
        // A Take may have ended.
        state.offers.retain(|offer| offer.taken.is_some());
        for slot in std::mem::take(&mut state.waiting).into_values() {
            let waker = slot.fill(Outcome::Lost);
            state.woken.extend(waker);
        }
        for entry in state.registered.values() {
            entry.calm(entry.wanted.load(Ordering::SeqCst));
        }
        wake(state);
    }
}

fn wake_acceptors(state: &mut State) {
    let acceptors = std::mem::take(&mut state.acceptors);
    let slots = acceptors.iter().filter_map(Weak::upgrade);
    state.woken.extend(slots.filter_map(|slot| slot.fill(())));
}

/// Sends a message, waiting for room for a while.
fn say(socket: &OwnedFd, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let deadline = Instant::now() + SEND_PATIENCE;
    loop {
        match packet::send(socket, message, descriptor) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                let patience = Timespec::try_from(left).map_err(io::Error::other)?;
                let mut room = [PollFd::new(socket, PollFlags::OUT)];
                match poll(&mut room, Some(&patience)) {
                    Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                    // A signal of the application's.
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(problem) => return Err(problem.into()),
                }
            }
            other => return other,
        }
    }
}
