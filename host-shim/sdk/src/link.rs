//! What an application calls. Owns the order of calls: a connection is handed out once, an incoming
//! one taken or refused once.

use crate::{
    packet,
    shared::{DOUBT_PATIENCE, Entry, NONE, Offer, Outcome, Shared, Taken},
    slot::Slot,
    wire::{Message, PORTS_MAX, STATE_BYTES_MAX, reason},
};
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
    net::{RecvFlags, recv},
};
use std::{
    fmt,
    future::poll_fn,
    io,
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, atomic::Ordering},
    task::Poll,
    thread::JoinHandle,
    time::Duration,
};

/// An application's connection to the host-shim of its node. One of each process is enough; one
/// that is forked off connects itself, and can do nothing with its parent's.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Connects, in the background, and again whenever the connection breaks. `ports`: those that
    /// the application listens on, and takes connections of.
    ///
    /// # Errors
    /// More ports than [`PORTS_MAX`], port 0, or no thread can be made.
    pub fn connect(ports: &[u16]) -> io::Result<Self> {
        if ports.len() > PORTS_MAX || ports.contains(&0) {
            let problem = format!("1 to {PORTS_MAX} ports that are not 0");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared::new(ports, stop));
        let of_thread = Arc::clone(&shared);
        let thread = spawn(move || of_thread.serve())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Whether host-shim knows this application.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.is_connected()
    }

    /// Waits until it does.
    #[must_use]
    pub fn wait_connected(&self, patience: Duration) -> bool {
        self.shared.wait_connected(0, patience).is_some()
    }

    /// This connection may be wanted from now on, as long as the result lives.
    ///
    /// # Errors
    /// It is not connected.
    pub fn register(&self, stream: &TcpStream) -> io::Result<Registered> {
        self.register_ends(stream.local_addr()?, stream.peer_addr()?)
    }

    /// The same, of any type, by its ends.
    ///
    /// # Errors
    /// None today.
    pub fn register_ends(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<Registered> {
        let ends = (canonical(local), canonical(remote));
        Ok(Registered { entry: self.shared.register(ends), shared: Arc::clone(&self.shared), ends })
    }

    /// Waits for a connection that another pod's application hands out. `None` once the link is
    /// closed.
    #[must_use]
    pub fn accept(&self) -> Option<Incoming> {
        loop {
            match self.shared.offer() {
                Ok(offer) => return Some(self.incoming(offer)),
                Err(Some(slot)) => slot.wait(),
                Err(None) => return None,
            }
        }
    }

    /// The same for a task, on any runtime. May be dropped at any time.
    pub async fn accept_async(&self) -> Option<Incoming> {
        loop {
            match self.shared.offer() {
                Ok(offer) => return Some(self.incoming(offer)),
                Err(Some(slot)) => poll_fn(|task| slot.poll(task.waker())).await,
                Err(None) => return None,
            }
        }
    }

    fn incoming(&self, offer: Offer) -> Incoming {
        Incoming { shared: Arc::clone(&self.shared), offer, taking: false, decided: false }
    }

    /// Ends [`Self::accept`] on all threads; nothing is wanted or offered any more.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            if !self.shared.is_of_this_process() {
                // It is the parent's.
                std::mem::forget(thread);
                return;
            }
            // A panic there is a bug, and has been printed.
            let _ = thread.join();
        }
    }
}

/// A thread that takes no signal: an application that waits for one blocks it in its own threads,
/// and knows of no other.
fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let thread = std::thread::Builder::new().name("baton".into()).spawn(work);
    before.thread_set_mask()?;
    thread
}

/// IPv4 on a socket of IPv6 is IPv4.
fn canonical(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}

/// Why a connection was not handed out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// Nobody wants it (any more).
    #[error("the connection is not wanted")]
    NotWanted,
    /// What is said of it is too long.
    #[error("the state has {0} bytes: at most {STATE_BYTES_MAX} are passed on")]
    StateTooLong(usize),
    /// The other side, or host-shim, did not take it.
    #[error("{0}")]
    Kept(String),
    /// Host-shim ended in the middle, and no other one came: another pod may have it. Close it.
    #[error("host-shim ended in the middle, and the connection cannot go on: close it")]
    Lost,
}

/// The stream goes on here, unless it is [`Why::Lost`].
#[derive(Debug, thiserror::Error)]
#[error("the connection is not handed out: {why}")]
pub struct NotMoved<S: fmt::Debug> {
    /// As it was, unless it is lost.
    pub stream: S,
    /// Why it was not handed out.
    pub why: Why,
}

/// A connection that may be wanted.
#[derive(Debug)]
pub struct Registered {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    ends: (SocketAddr, SocketAddr),
}

impl Registered {
    /// Whether another pod shall have it: one atomic load, to be asked between two pieces of work.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let wanted = self.entry.wanted.load(Ordering::Relaxed);
        // What was so in the process that this one was forked off stays so for ever.
        wanted != NONE && self.shared.is_of_this_process()
    }

    /// Readable (poll(2)) while it is wanted, for threads that wait for the client meanwhile.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn wake(&self) -> io::Result<BorrowedFd<'_>> {
        // A fork has the same one, and would read its parent's wake-up.
        if !self.shared.is_of_this_process() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.entry.wake()
    }

    /// Waits until it is wanted, in a task on any runtime. May be dropped at any time.
    pub async fn wanted(&self) {
        poll_fn(|task| {
            self.entry.wait(task.waker());
            if self.is_wanted() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Hands the connection out, with what the next application must know of it, and waits until it
    /// has gone or stays, mostly well under a millisecond, as a rule 200 ms at most. Nothing may be
    /// read from or written to it meanwhile, nor through a duplicate.
    ///
    /// # Errors
    /// It stays, and goes on, unless it is [`Why::Lost`].
    pub fn hand_out<S: AsFd + fmt::Debug>(
        &self,
        stream: S,
        state: &[u8],
    ) -> Result<(), NotMoved<S>> {
        let (connection, slot) = match self.begin(stream.as_fd(), state) {
            Ok(begun) => begun,
            Err(why) => return Err(NotMoved { stream, why }),
        };
        let mut outcome = slot.wait();
        if let Outcome::Lost = outcome {
            outcome = doubt(&self.shared, self.ends, connection, stream.as_fd());
        }
        ended(outcome, stream)
    }

    /// The same for a task, on any runtime, and with its kind of stream. Must not be dropped before
    /// it ends: the connection would be closed if it stays.
    ///
    /// # Errors
    /// It stays, and goes on, unless it is [`Why::Lost`].
    pub async fn hand_out_async<S: AsFd + fmt::Debug>(
        &self,
        stream: S,
        state: &[u8],
    ) -> Result<(), NotMoved<S>> {
        let (connection, slot) = match self.begin(stream.as_fd(), state) {
            Ok(begun) => begun,
            Err(why) => return Err(NotMoved { stream, why }),
        };
        let mut outcome = poll_fn(|task| slot.poll(task.waker())).await;
        if let Outcome::Lost = outcome {
            outcome = match self.doubt_beside(connection, stream.as_fd()) {
                Ok(slot) => poll_fn(|task| slot.poll(task.waker())).await,
                // Tasks that wait are better than a connection that is lost.
                Err(_) => doubt(&self.shared, self.ends, connection, stream.as_fd()),
            };
        }
        ended(outcome, stream)
    }

    /// [`doubt`] on a thread of its own, as it may wait for the next host-shim.
    fn doubt_beside(
        &self,
        connection: u64,
        stream: BorrowedFd<'_>,
    ) -> io::Result<Arc<Slot<Outcome>>> {
        let copy = stream.try_clone_to_owned()?;
        let (shared, ends) = (Arc::clone(&self.shared), self.ends);
        let slot = Arc::new(Slot::default());
        let settled = Arc::clone(&slot);
        spawn(move || settled.put(doubt(&shared, ends, connection, copy.as_fd())))?;
        Ok(slot)
    }

    /// Says that it stays: the application cannot hand it out now.
    pub fn refuse(&self, why: &str) {
        if !self.shared.is_of_this_process() {
            return;
        }
        let id = self.entry.take();
        if id != NONE {
            let reason = reason(why);
            self.shared.tell(None, &Message::Refuse { id, reason });
        }
    }

    fn begin(
        &self,
        stream: BorrowedFd<'_>,
        state: &[u8],
    ) -> Result<(u64, Arc<Slot<Outcome>>), Why> {
        if !self.shared.is_of_this_process() {
            return Err(Why::Kept("a link is not its forks' as well".into()));
        }
        if state.len() > STATE_BYTES_MAX {
            let why = Why::StateTooLong(state.len());
            self.refuse(&why.to_string());
            return Err(why);
        }
        let id = self.entry.take();
        if id == NONE {
            return Err(Why::NotWanted);
        }
        let state = state.to_vec();
        let out = Message::Out { id, state };
        Ok(self.shared.ask(None, id, &out, Some(stream)))
    }
}

/// What came of an Out.
fn ended<S: AsFd + fmt::Debug>(outcome: Outcome, stream: S) -> Result<(), NotMoved<S>> {
    let why = match outcome {
        Outcome::Gone => return Ok(()),
        Outcome::Back(reason) | Outcome::Unsent(reason) => Why::Kept(reason),
        // A frozen socket gives nothing (EPERM), nor does one whose connection has moved.
        Outcome::Lost | Outcome::Yours => match recv(&stream, &mut [0; 0], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN) => Why::Kept("host-shim has ended".into()),
            Err(_) => Why::Lost,
        },
    };
    Err(NotMoved { stream, why })
}

/// Host-shim ended between the Out and its end. Whether the connection lives here only the next one
/// can say, and only it can thaw a socket that was left frozen.
fn doubt(
    shared: &Shared,
    (local, remote): (SocketAddr, SocketAddr),
    connection: u64,
    stream: BorrowedFd<'_>,
) -> Outcome {
    let Some(next) = shared.wait_connected(connection, DOUBT_PATIENCE) else {
        return Outcome::Lost;
    };
    let id = shared.number_of_doubt();
    let doubt = Message::Doubt { id, local, remote };
    match shared.ask(Some(next), id, &doubt, Some(stream)).1.wait() {
        Outcome::Unsent(_) => Outcome::Lost,
        other => other,
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.deregister(self.ends, &self.entry);
    }
}

/// A connection that another pod's application hands out. Dropped, it is refused.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<Shared>,
    offer: Offer,
    /// Its Take is waited for.
    taking: bool,
    decided: bool,
}

impl Incoming {
    /// What that application says of it.
    #[must_use]
    pub fn state(&self) -> &[u8] {
        &self.offer.state
    }

    /// The end that it will have here.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.offer.local
    }

    /// The peer's end here.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.offer.remote
    }

    /// Takes it, into a new socket of this process.
    ///
    /// # Errors
    /// Nothing came of it, or no descriptor is left: the other application goes on with it.
    pub fn take(mut self) -> io::Result<TcpStream> {
        let slot = self.begin()?;
        self.received(slot.wait())
    }

    fn begin(&mut self) -> io::Result<Arc<Slot<Outcome>>> {
        let taken = match self.offer.taken.take() {
            Some(taken) => taken,
            None => {
                let socket = packet::new_socket(self.offer.local).inspect_err(|problem| {
                    self.say_no(&format!("the application has no socket for it: {problem}"));
                })?;
                let id = self.offer.id;
                let (of, take) = (Some(self.offer.connection), Message::Take { id });
                let slot = self.shared.ask(of, id, &take, Some(socket.as_fd())).1;
                Taken { socket, slot }
            }
        };
        self.taking = true;
        Ok(Arc::clone(&self.offer.taken.insert(taken).slot))
    }

    /// The same for a task, on any runtime: the stream is non-blocking
    /// (`tokio::net::TcpStream::from_std`). May be dropped at any time: then [`Link::accept`] has
    /// it once more, and to refuse it there ends the connection if it has come by then.
    ///
    /// # Errors
    /// Nothing came of it, or no descriptor is left: the other application goes on with it.
    pub async fn take_async(mut self) -> io::Result<TcpStream> {
        let slot = self.begin()?;
        let outcome = poll_fn(|task| slot.poll(task.waker())).await;
        let stream = self.received(outcome)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// What came of a Take. Until then the socket resets its peer when it is closed, so that nobody
    /// takes that for the end of what was to be said.
    fn received(&mut self, outcome: Outcome) -> io::Result<TcpStream> {
        self.decided = true;
        let reason = match (outcome, self.offer.taken.take()) {
            (Outcome::Yours, Some(taken)) => {
                rustix::net::sockopt::set_socket_linger(&taken.socket, None)?;
                return Ok(taken.socket.into());
            }
            (Outcome::Back(reason) | Outcome::Unsent(reason), _) => reason,
            _ => "the connection to host-shim broke".into(),
        };
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason))
    }

    /// Leaves it where it is.
    pub fn refuse(mut self, why: &str) {
        self.say_no(why);
    }

    fn say_no(&mut self, why: &str) {
        self.decided = true;
        // Too late to say so of what was taken.
        if self.offer.taken.is_some() {
            return;
        }
        let no = Message::Refuse { id: self.offer.id, reason: reason(why) };
        self.shared.tell(Some(self.offer.connection), &no);
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.decided {
            return;
        }
        if !self.taking {
            return self.say_no("the application dropped it");
        }
        let Offer { connection, id, local, remote, .. } = self.offer;
        self.shared.offer_again(Offer {
            connection,
            id,
            local,
            remote,
            state: std::mem::take(&mut self.offer.state),
            taken: self.offer.taken.take(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_is_in_doubt_goes_on_only_if_it_can() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let open = TcpStream::connect(at).expect("it listens");
        let kept = ended(Outcome::Lost, &open).expect_err("nobody has it");
        assert!(matches!(kept.why, Why::Kept(_)), "{:?}", kept.why);
        // As one whose connection has moved.
        let ends = packet::new_socket(at).expect("a socket");
        let lost = ended(Outcome::Lost, &ends).expect_err("nobody knows");
        assert_eq!(lost.why, Why::Lost);
    }

    /// A fork has its parent's descriptors, and its lock as it was; it must not wait for that, nor
    /// take a wake-up.
    #[test]
    fn a_fork_does_nothing_with_its_parents_link() {
        let new = || eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
        let wake = new();
        rustix::io::write(&wake, &1_u64.to_ne_bytes()).expect("room");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let (shared, _held) = Shared::of_a_fork(new());
        let copies = [NONE, 7].map(|wanted| {
            let copy = wake.try_clone().expect("a descriptor");
            let entry = Arc::new(Entry::with(wanted, copy));
            let (shared, ends) = (Arc::clone(&shared), (at, at));
            Registered { shared, entry, ends }
        });
        let link = Link { shared, thread: None };
        let (done, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let stream = TcpStream::connect(at).expect("it listens");
            assert!(!link.is_connected() && !link.wait_connected(Duration::from_secs(1)));
            drop(link.register(&stream).expect("connected"));
            assert!(link.accept().is_none());
            for registered in copies {
                assert!(!registered.is_wanted());
                registered.wake().expect_err("its parent's");
                registered.hand_out(&stream, b"").expect_err("its parent's");
                registered.refuse("no");
            }
            done.send(()).expect("the test waits");
        });
        ends.recv_timeout(Duration::from_secs(60)).expect("it ends");
        let left = rustix::io::read(&wake, &mut [0; 8]);
        assert_eq!(left, Ok(8), "its parent is woken");
    }
}
