//! What an application calls. Owns the order of calls: a connection is handed out once, an incoming
//! one taken or refused once.

use crate::{
    shared::{DOUBT_PATIENCE, Entry, NONE, Offer, Outcome, Shared},
    slot::Slot,
    wire::{Message, PORTS_MAX, STATE_BYTES_MAX, reason},
};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    fmt,
    future::poll_fn,
    io,
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    task::Poll,
    thread::JoinHandle,
    time::Duration,
};

/// An application's connection to the host-shim of its node. One of each process is enough.
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
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Shared::new(ports, stop));
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("baton".into())
            .spawn(move || of_thread.serve())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
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
        Ok(Registered {
            entry: self.shared.register(ends),
            shared: Arc::clone(&self.shared),
            ends,
        })
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
        Incoming {
            shared: Arc::clone(&self.shared),
            offer,
            decided: false,
        }
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
            // A panic there is a bug, and has been printed.
            let _ = thread.join();
        }
    }
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
    /// Host-shim ended meanwhile.
    #[error("the connection to host-shim broke")]
    Lost,
}

/// The stream goes on here.
#[derive(Debug, thiserror::Error)]
#[error("the connection stays here: {why}")]
pub struct NotMoved<S: fmt::Debug> {
    /// As it was.
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
        self.entry.wanted.load(Ordering::Relaxed) != NONE
    }

    /// Readable (poll(2)) while it is wanted, for threads that wait for the client meanwhile.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn wake(&self) -> io::Result<BorrowedFd<'_>> {
        self.entry.wake()
    }

    /// Waits until it is wanted, in a task on any runtime. May be dropped at any time.
    pub async fn wanted(&self) {
        poll_fn(|task| {
            self.entry.wait(task.waker());
            if self.is_wanted() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Hands the connection out, with what the next application must know of it, and waits until it
    /// has gone or stays, mostly well under a millisecond, as a rule 200 ms at most. Nothing may be
    /// read from or written to it meanwhile, nor through a duplicate.
    ///
    /// # Errors
    /// It stays, and goes on.
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
        match self.end(outcome) {
            Ok(()) => Ok(()),
            Err(why) => Err(NotMoved { stream, why }),
        }
    }

    /// The same for a task, on any runtime, and with its kind of stream. Must not be dropped before
    /// it ends: the connection would be closed if it stays.
    ///
    /// # Errors
    /// It stays, and goes on.
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
        if let Outcome::Lost = outcome
            && let Ok(copy) = stream.as_fd().try_clone_to_owned()
        {
            // It may wait for the next host-shim.
            let (shared, ends) = (Arc::clone(&self.shared), self.ends);
            let slot = Arc::new(Slot::default());
            let settled = Arc::clone(&slot);
            std::thread::spawn(move || {
                settled.put(doubt(&shared, ends, connection, copy.as_fd()));
            });
            outcome = poll_fn(|task| slot.poll(task.waker())).await;
        }
        match self.end(outcome) {
            Ok(()) => Ok(()),
            Err(why) => Err(NotMoved { stream, why }),
        }
    }

    /// Says that it stays: the application cannot hand it out now.
    pub fn refuse(&self, why: &str) {
        let id = self.entry.wanted.swap(NONE, Ordering::SeqCst);
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
        if state.len() > STATE_BYTES_MAX {
            let why = Why::StateTooLong(state.len());
            self.refuse(&why.to_string());
            return Err(why);
        }
        let id = self.entry.wanted.swap(NONE, Ordering::SeqCst);
        if id == NONE {
            return Err(Why::NotWanted);
        }
        let state = state.to_vec();
        let out = Message::Out { id, state };
        Ok(self.shared.ask(None, id, &out, Some(stream)))
    }

    fn end(&self, outcome: Outcome) -> Result<(), Why> {
        // What woke its reader is over.
        if let Some(wake) = self.entry.made() {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        match outcome {
            Outcome::Gone => Ok(()),
            Outcome::Back(reason) => Err(Why::Kept(reason)),
            Outcome::Lost | Outcome::Yours(_) => Err(Why::Lost),
        }
    }
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
    shared.ask(Some(next), id, &doubt, Some(stream)).1.wait()
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

    /// Takes it.
    ///
    /// # Errors
    /// Nothing came of it: the other application goes on with it.
    pub fn take(mut self) -> io::Result<TcpStream> {
        let slot = self.begin();
        received(slot.wait()).map(TcpStream::from)
    }

    fn begin(&mut self) -> Arc<Slot<Outcome>> {
        self.decided = true;
        let id = self.offer.id;
        let take = Message::Take { id };
        let of = Some(self.offer.connection);
        self.shared.ask(of, id, &take, None).1
    }

    /// The same for a task, on any runtime: the stream is non-blocking
    /// (`tokio::net::TcpStream::from_std`).
    ///
    /// # Errors
    /// Nothing came of it: the other application goes on with it.
    pub async fn take_async(mut self) -> io::Result<TcpStream> {
        let slot = self.begin();
        let outcome = poll_fn(|task| slot.poll(task.waker())).await;
        let stream = TcpStream::from(received(outcome)?);
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Leaves it where it is.
    pub fn refuse(mut self, why: &str) {
        self.say_no(why);
    }

    fn say_no(&mut self, why: &str) {
        self.decided = true;
        let no = Message::Refuse {
            id: self.offer.id,
            reason: reason(why),
        };
        self.shared.tell(Some(self.offer.connection), &no);
    }
}

/// What came of a Take. Host-shim sends descriptors that reset their peer if nobody takes them out
/// of the packet.
fn received(outcome: Outcome) -> io::Result<OwnedFd> {
    let reason = match outcome {
        Outcome::Yours(descriptor) => {
            rustix::net::sockopt::set_socket_linger(&descriptor, None)?;
            return Ok(descriptor);
        }
        Outcome::Back(reason) => reason,
        Outcome::Lost | Outcome::Gone => Why::Lost.to_string(),
    };
    Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason))
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.decided {
            self.say_no("the application dropped it");
        }
    }
}
