//! Transfers (`docs/adoption-wire.md`): the thread that moves connections between the applications
//! of this node's pods. Owns the thread, where it finds pods, and the figures; the order of steps
//! is [`decide`]'s, what each step does to the kernel [`moving`]'s, who is connected `doors`', who
//! is asked `handing`'s, how two nodes speak to each other [`between`]'s, who closes descriptors
//! [`closers`]'.

mod between;
mod closers;
mod decide;
#[cfg(test)]
mod decide_tests;
mod doors;
mod handing;
mod links;
mod moving;
mod open;
mod paused;
mod serve;
mod serving;

pub use between::{Cut, Settings, channels::bind_here, heir::Outcome};
pub use decide::Ended;
pub use links::Refused;

use anyhow::Context;
use baton_adopter::{Adopter, Netns, Transfers, Warm};
use prometheus::{Histogram, HistogramOpts};
use rustix::{
    event::{EventfdFlags, eventfd},
    io::write,
};
use std::{
    collections::BTreeMap,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};
use tracing::{debug, error, warn};

/// How often, and for how long connections stood still.
#[derive(Debug)]
pub struct Figures {
    ended: [AtomicU64; Ended::ALL.len()],
    refused: [AtomicU64; Refused::ALL.len()],
    /// Applications that are connected.
    pub links: AtomicU64,
    /// From the freezing of the old socket to the first word of the new one.
    pub frozen: Histogram,
    /// The same for those that went to another node, until it said that the new socket talks.
    pub frozen_between: Histogram,
    cut: [AtomicU64; Cut::ALL.len()],
    received: [AtomicU64; Outcome::ALL.len()],
    /// Pods whose port for other nodes was taken.
    pub shut_doors: AtomicU64,
}

impl Figures {
    pub fn new() -> prometheus::Result<Self> {
        // From an idle connection to one with megabytes queued on a busy node.
        let buckets = vec![
            0.000_05, 0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.003_2, 0.006_4, 0.012_8,
            0.025_6, 0.051_2,
        ];
        let options = HistogramOpts::new(
            "baton_shim_transfer_frozen_seconds",
            "How long connections stood still that were moved between applications: from the freezing of the old socket to the first word of the new one.",
        );
        let between = HistogramOpts::new(
            "baton_shim_transfer_frozen_between_nodes_seconds",
            "How long connections stood still that were moved to another node: from the freezing of the old socket to the other node's word that the new one talks.",
        );
        Ok(Self {
            ended: [const { AtomicU64::new(0) }; Ended::ALL.len()],
            refused: Default::default(),
            links: AtomicU64::new(0),
            frozen: Histogram::with_opts(options.buckets(buckets.clone()))?,
            frozen_between: Histogram::with_opts(between.buckets(buckets))?,
            cut: Default::default(),
            received: Default::default(),
            shut_doors: AtomicU64::new(0),
        })
    }

    fn end(&self, ended: Ended) {
        self.ended[ended as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn refuse(&self, why: Refused) {
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn cut(&self, why: Cut) {
        self.cut[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn receive(&self, outcome: Outcome) {
        self.received[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Channels between nodes that have ended, by why.
    pub fn channels_ended(&self) -> BTreeMap<&'static str, u64> {
        let count = |c: &Cut| self.cut[*c as usize].load(Ordering::Relaxed);
        Cut::ALL.iter().map(|c| (c.label(), count(c))).collect()
    }

    /// What other nodes offered, by what became of it.
    pub fn received(&self) -> BTreeMap<&'static str, u64> {
        let count = |o: &Outcome| self.received[*o as usize].load(Ordering::Relaxed);
        Outcome::ALL.iter().map(|o| (o.label(), count(o))).collect()
    }

    /// By how they ended.
    pub fn ended(&self) -> BTreeMap<&'static str, u64> {
        let count = |e: &Ended| self.ended[*e as usize].load(Ordering::Relaxed);
        Ended::ALL.iter().map(|e| (e.label(), count(e))).collect()
    }

    /// Connections of applications that were refused or closed, by why.
    pub fn refused(&self) -> BTreeMap<&'static str, u64> {
        let count = |r: &Refused| self.refused[*r as usize].load(Ordering::Relaxed);
        Refused::ALL.iter().map(|r| (r.label(), count(r))).collect()
    }
}

/// A pod that has the adopter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// [`baton_adopter::OpenNetns::cookie`].
    pub cookie: u64,
    /// [`Adopter::namespace_number`].
    pub number: u64,
    pub netns: Netns,
    pub interface: String,
    /// The pod's namespace in Kubernetes, if it is known.
    pub tenant: Option<String>,
}

/// What the thread and the rest share.
#[derive(Debug)]
struct Shared {
    places: Mutex<Vec<Place>>,
    settings: Mutex<Settings>,
    /// Something of this has changed.
    changed: OwnedFd,
    stop: AtomicBool,
    /// Some pod's socket could not be bound: it is tried again at the next word of the pods.
    unbound: AtomicBool,
}

/// Congestion windows go with their connections, where the kernel lets them.
#[derive(Debug)]
struct Warmth(Option<Warm>);

impl Warmth {
    fn load() -> Self {
        let warm = Warm::load().inspect_err(|problem| {
            warn!(%problem, "connections that are moved begin with the kernel's initial congestion window");
        });
        Self(warm.ok())
    }
}

impl baton_tcp_repair::Warm for Warmth {
    fn set(&self, socket: BorrowedFd<'_>, window: u32, threshold: u32) {
        if let Some(warm) = &self.0
            && let Err(problem) = warm.set(socket, window, threshold)
        {
            debug!(%problem, "a connection begins with the initial congestion window");
        }
    }
}

/// The running thread. Ends when this is dropped.
#[derive(Debug)]
pub struct Mover {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    pub figures: Arc<Figures>,
}

impl Mover {
    fn start(transfers: Transfers, warm: Warmth) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            places: Mutex::default(),
            settings: Mutex::default(),
            changed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .context("an eventfd")?,
            stop: AtomicBool::new(false),
            unbound: AtomicBool::new(false),
        });
        let figures = Arc::new(Figures::new()?);
        let (of_thread, counted) = (Arc::clone(&shared), Arc::clone(&figures));
        let thread = std::thread::Builder::new()
            .name("transfers".into())
            .spawn(move || {
                if let Err(problem) = serve::serve(&transfers, &warm, &of_thread, &counted) {
                    error!(
                        problem = format!("{problem:#}"),
                        "no connection is moved between applications any more: restart host-shim, and report this"
                    );
                }
                // What is asked from now on stays where it is.
                if let Err(problem) = transfers.enable(false) {
                    warn!(%problem, "Transfers are asked although nobody decides them");
                }
            })
            .context("a thread for Transfers")?;
        Ok(Self { shared, thread: Some(thread), figures })
    }

    /// These pods have the adopter, and no others.
    pub fn know(&self, places: Vec<Place>) {
        let mut known = self.shared.places.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != places || self.shared.unbound.load(Ordering::Relaxed) {
            *known = places;
            drop(known);
            self.wake();
        }
    }

    /// Whether, and with which keys, connections go to other nodes.
    pub fn reach(&self, settings: Settings) {
        let known = self.shared.settings.lock();
        *known.unwrap_or_else(PoisonError::into_inner) = settings;
        self.wake();
    }

    fn wake(&self) {
        // Fails only if the counter is full, and then it is readable as well.
        let _ = write(&self.shared.changed, &1_u64.to_ne_bytes());
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // It waits for what one side has parted with, 2 s at most (`between::READY_FOR`). A
            // panic there is a bug, and has been printed.
            let _ = thread.join();
        }
    }
}

/// The part in Transfers of this node, or why it has none.
pub fn start(adopter: &Adopter) -> anyhow::Result<Result<Mover, String>> {
    if let Err(problem) = baton_tcp_repair::supported() {
        let reason = format!("the kernel does not freeze sockets: {problem}");
        warn!(reason, "connections stay where they are between requests");
        return Ok(Err(reason));
    }
    Ok(Ok(Mover::start(adopter.transfers()?, Warmth::load())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_is_counted_by_name() {
        let figures = Figures::new().expect("figures");
        figures.end(Ended::Moved);
        figures.end(Ended::Busy);
        figures.end(Ended::Busy);
        figures.refuse(Refused::Stray);
        assert_eq!(figures.ended()["moved"], 1);
        assert_eq!(figures.ended()["busy"], 2);
        assert_eq!(figures.ended().values().sum::<u64>(), 3);
        assert_eq!(figures.refused()["stray"], 1);
        for (at, why) in Refused::ALL.iter().enumerate() {
            assert_eq!(*why as usize, at);
        }
    }
}
