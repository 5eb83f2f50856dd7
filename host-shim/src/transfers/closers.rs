//! Closes descriptors of pods' applications: closing may take as long as the application likes
//! (SO_LINGER, a file system of its own), and so may closing a socket that has unread packets,
//! which closes the descriptors in them.
//!
//! Owns a thread for each pod that has handed anything over, so that a pod waits for itself alone,
//! and counts what is not closed yet. Decides nothing about a pod that keeps too much open, and
//! leaves the sockets' options alone: the application may have its own descriptor of them.

use super::{links::LINKS_MAX, open::TRANSFERS_OF_POD_MAX};
use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};
use tracing::warn;

/// What one pod may have waiting: twice as much as its Transfers and its links hold, which may end
/// at one moment.
pub const CLOSING_MAX: usize = 2 * (TRANSFERS_OF_POD_MAX + LINKS_MAX);
/// Such a thread calls close(2) and nothing else.
const STACK_BYTES: usize = 64 * 1024;

#[derive(Default)]
pub struct Closers(HashMap<u64, Closer>);

/// Of one pod. Its thread ends once this is dropped and all is closed.
struct Closer {
    queue: mpsc::Sender<OwnedFd>,
    /// For the thread, also where it cannot be made at the first attempt.
    queued: Arc<Mutex<mpsc::Receiver<OwnedFd>>>,
    has_thread: bool,
    waiting: Arc<AtomicUsize>,
}

impl Closers {
    /// Closes a descriptor that came from this pod, without waiting.
    pub fn close(&mut self, pod: u64, descriptor: OwnedFd) {
        let closer = self.0.entry(pod).or_insert_with(|| {
            let (queue, queued) = mpsc::channel();
            Closer {
                queue,
                queued: Arc::new(Mutex::new(queued)),
                has_thread: false,
                waiting: Arc::default(),
            }
        });
        closer.waiting.fetch_add(1, Ordering::Relaxed);
        // Its other end is here.
        let _ = closer.queue.send(descriptor);
        if !closer.has_thread {
            let (queued, waiting) = (Arc::clone(&closer.queued), Arc::clone(&closer.waiting));
            let thread = std::thread::Builder::new().name("closer".into()).stack_size(STACK_BYTES);
            let made = thread.spawn(move || {
                for descriptor in &*queued.lock().unwrap_or_else(PoisonError::into_inner) {
                    drop(descriptor);
                    waiting.fetch_sub(1, Ordering::Relaxed);
                }
            });
            if let Err(problem) = &made {
                warn!(%problem, "descriptors of applications stay open: no thread can be made");
            }
            closer.has_thread = made.is_ok();
        }
    }

    /// Whether a pod keeps as many open as it may.
    pub fn is_full(&self, pod: u64) -> bool {
        self.0.get(&pod).is_some_and(|closer| closer.waiting.load(Ordering::Relaxed) >= CLOSING_MAX)
    }

    /// Only these pods are there. What others handed over is closed nonetheless.
    pub fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        self.0.retain(|pod, _| is_there(*pod));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::{
        set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
    };
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
        time::Duration,
    };

    /// A connection whose last descriptor takes an hour to close, and its peer, which reads
    /// nothing: what was written is more than the peer has room for, however late it is sent.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // Its connections inherit that, and it does not grow: tcp(7).
        set_socket_recv_buffer_size(&listener, 4_096).expect("an option");
        let mut stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("open");
        let (peer, _) = listener.accept().expect("a connection");
        set_socket_send_buffer_size(&stream, 131_072).expect("an option");
        stream.write_all(&[7; 65_536]).expect("room");
        set_socket_linger(&stream, Some(Duration::from_secs(3_600))).expect("an option");
        (stream.into(), peer)
    }

    /// Readable once the other one is closed, or there is no hope.
    fn pair() -> (UnixStream, OwnedFd) {
        let (reader, other) = UnixStream::pair().expect("a pair");
        let patience = Some(Duration::from_secs(60));
        reader.set_read_timeout(patience).expect("an option");
        (reader, other.into())
    }

    #[test]
    fn a_pod_whose_descriptors_do_not_close_waits_alone() {
        let mut closers = Closers::default();
        let (stuck, mut peer) = lingering();
        closers.close(1, stuck);
        for _ in 1..CLOSING_MAX {
            closers.close(1, pair().1);
        }
        // The first is never taken off the count, and no later one overtakes it.
        assert!(closers.is_full(1) && !closers.is_full(2));
        let (mut reader, other) = pair();
        closers.close(2, other);
        assert_eq!(reader.read(&mut [0]).expect("its end"), 0);

        // A pod that is forgotten is closed to its end.
        let (mut last, other) = pair();
        closers.close(1, other);
        closers.retain(|pod| pod != 1);
        assert!(!closers.is_full(1));
        peer.read_to_end(&mut Vec::new()).expect("its end");
        assert_eq!(last.read(&mut [0]).expect("its end"), 0);
    }
}
