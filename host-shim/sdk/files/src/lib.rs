//! A file server (HTTP/1.1: GET, PUT with Content-Length, keep-alive) for pods that share a
//! directory, whose connections move between them at any byte. Owns the threads; what the next
//! server must know of a connection is [`session`]'s, what it says to its client [`http`]'s.

mod http;
mod serve;
mod session;

pub use session::{Doing, Session};

use baton_sdk::Link;
use std::{
    io,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

/// What all threads share.
#[derive(Debug)]
pub struct Server {
    directory: PathBuf,
    link: Link,
    connections: Mutex<usize>,
    /// A connection has ended, or another server has it.
    ended: Condvar,
}

/// A connection that is counted until it is dropped.
struct Counted(Arc<Server>);

impl Counted {
    fn new(server: &Arc<Server>) -> Self {
        *server.count() += 1;
        Self(Arc::clone(server))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.ended.notify_all();
    }
}

impl Server {
    /// Files of a directory.
    #[must_use]
    pub const fn new(directory: PathBuf, link: Link) -> Self {
        Self { directory, link, connections: Mutex::new(0), ended: Condvar::new() }
    }

    fn count(&self) -> std::sync::MutexGuard<'_, usize> {
        // A number is right whatever panicked.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has no connection.
    pub fn wait_until_idle(&self) {
        let wait = self.ended.wait_while(self.count(), |count| *count > 0);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }

    /// The connection to host-shim.
    #[must_use]
    pub const fn link(&self) -> &Link {
        &self.link
    }

    /// Serves a connection on a thread of its own, from where it is.
    fn spawn(self: &Arc<Self>, stream: TcpStream, session: Session) {
        let counted = Counted::new(self);
        let made = std::thread::Builder::new().name("connection".into()).spawn(move || {
            // What ends a connection its client knows as well.
            let server = &counted.0;
            let _ = serve::serve(&server.link, &server.directory, stream, session);
        });
        if let Err(problem) = made {
            eprintln!("baton-files: a connection is closed: {problem}");
        }
    }

    /// Serves what other pods' servers hand out, until the link is closed.
    pub fn take_over(self: &Arc<Self>) {
        while let Some(incoming) = self.link.accept() {
            match Session::decode(incoming.state()) {
                Some(session) => {
                    if let Ok(stream) = incoming.take() {
                        self.spawn(stream, session);
                    }
                }
                None => incoming.refuse("the state is of another kind of server"),
            }
        }
    }

    /// Serves new connections.
    ///
    /// # Errors
    /// The listener's.
    pub fn accept(self: &Arc<Self>, listener: &TcpListener) -> io::Result<()> {
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.spawn(stream, Session::default()),
                // The client has gone again.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => return Err(e),
            }
        }
    }
}
