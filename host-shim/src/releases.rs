//! The threads that decide Releases: one waits for what the adopter was asked, and has each
//! namespace's sockets looked at on another one ([`rounds`]), once for all that was asked of it
//! meanwhile. Owns when a pass is made and the figures of it; never what may be ended
//! (`baton_adopter::Releases`).

mod rounds;

use anyhow::Context;
use baton_adopter::{Adopter, Ask, Netns, Releases};
use prometheus::{Histogram, HistogramOpts};
use rounds::Rounds;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::{Errno, write},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::Duration,
};
use tracing::{debug, error, warn};

/// A pass takes milliseconds, and waits for sockets whose lock a process holds: one that was
/// throttled in the kernel for 0.1 s, one whose memory has to be read from a dead server for ever.
/// Nothing else shall wait for that.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// What became of what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Decision {
    /// The connection was ended with its request unread.
    Released,
    /// It goes on.
    Kept,
    /// The pod's namespace is not known (any more); the next copy asks again.
    NoNamespace,
    /// The kernel refused, or too much waits for a pass; the next copy asks again.
    Failed,
}

impl Decision {
    /// All, in the order of their numbers.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// For metrics and people.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// How often, and how long it takes.
#[derive(Debug)]
pub struct Figures {
    decided: [AtomicU64; Decision::ALL.len()],
    /// The time in which the kernel went through the sockets.
    pub passes: Histogram,
}

impl Figures {
    pub fn new() -> prometheus::Result<Self> {
        // From a namespace's few sockets in a small table to a hundred thousand in a large one.
        let buckets = vec![
            0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128,
        ];
        let options = HistogramOpts::new(
            "baton_shim_release_pass_seconds",
            "How long the kernel took to go through a pod's sockets for all that dataplanes asked to release there.",
        );
        Ok(Self {
            decided: Default::default(),
            passes: Histogram::with_opts(options.buckets(buckets))?,
        })
    }

    fn add(&self, decision: Decision, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.decided[decision as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// By the names of the decisions.
    pub fn decided(&self) -> BTreeMap<&'static str, u64> {
        let count = |d: &Decision| self.decided[*d as usize].load(Ordering::Relaxed);
        Decision::ALL.iter().map(|d| (d.name(), count(d))).collect()
    }
}

/// Where each namespace with an adopter is found. Names, not descriptors: an open one would keep
/// the namespace of a pod that has ended.
type Places = Arc<Mutex<BTreeMap<u64, Netns>>>;

/// What the threads share.
struct Decides {
    releases: Releases,
    places: Places,
    figures: Arc<Figures>,
    /// Dropped with the last thread.
    _ends: mpsc::Sender<Infallible>,
}

/// The running threads. They end when this is dropped.
#[derive(Debug)]
pub struct Decider {
    stop: OwnedFd,
    ended: Mutex<Receiver<Infallible>>,
    places: Places,
    pub figures: Arc<Figures>,
}

impl Decider {
    pub fn start(releases: Releases) -> anyhow::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).context("an eventfd")?;
        let stopped = stop.try_clone().context("a descriptor")?;
        let (places, figures) = (Places::default(), Arc::new(Figures::new()?));
        let known = Arc::clone(&places);
        let counted = Arc::clone(&figures);
        let (ends, ended) = mpsc::channel();
        std::thread::Builder::new()
            .name("releases".into())
            .spawn(move || {
                let decides =
                    Arc::new(Decides { releases, places: known, figures: counted, _ends: ends });
                if let Err(problem) = decide_all(&decides, &stopped) {
                    error!(
                        problem = format!("{problem:#}"),
                        "no Release is answered any more: restart host-shim, and report this"
                    );
                }
            })
            .context("a thread for Releases")?;
        Ok(Self { stop, ended: Mutex::new(ended), places, figures })
    }

    /// These namespaces have an adopter, and no others.
    pub fn know(&self, places: impl Iterator<Item = (u64, Netns)>) {
        let places = places.collect();
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = places;
    }
}

impl Drop for Decider {
    fn drop(&mut self) {
        // Fails only if the counter is full, and then it is readable as well.
        let _ = write(&self.stop, &1_u64.to_ne_bytes());
        // An answer is an error: the threads' end of the channel is gone.
        if self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(END_PATIENCE)
            == Err(RecvTimeoutError::Timeout)
        {
            warn!("a pass over a pod's sockets does not end: another process holds one of them");
        }
    }
}

/// The adopter's part in Releases, or a word in the log why there is none.
pub fn start(adopter: &Adopter) -> anyhow::Result<Result<Decider, String>> {
    match adopter.releases() {
        Ok(releases) => Ok(Ok(Decider::start(releases)?)),
        Err(reason) => {
            warn!(
                reason,
                "requests that stalled pods have not read stay there: this kernel cannot take them away"
            );
            Ok(Err(reason))
        }
    }
}

/// One round: what was asked since the last one, at most what the ring holds (`ASKS_BYTES` of
/// `bpf/release.h`), and one pass for each namespace in it. Asks that come meanwhile are the next
/// pass's, so that more of them make no more passes.
fn decide_all(decides: &Arc<Decides>, stop: &OwnedFd) -> anyhow::Result<()> {
    let rounds = Arc::new(Rounds::default());
    let mut asks = decides.releases.asks()?;
    loop {
        let mut wakes = [PollFd::new(&asks, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut wakes, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("waiting for Releases"),
        }
        if !wakes[1].revents().is_empty() {
            return Ok(());
        }
        for (cookie, asked) in asks.gather()? {
            let (count, passing) = (asked.len(), Arc::clone(decides));
            let added = rounds.add(cookie, asked, move |asked| decide(&passing, cookie, asked));
            let left_out = added.unwrap_or_else(|problem| {
                warn!(%problem, "Releases are not decided");
                count
            });
            decides.figures.add(Decision::Failed, left_out);
        }
    }
}

fn decide(decides: &Decides, cookie: u64, asked: &BTreeSet<Ask>) {
    let Decides { releases, places, figures, .. } = decides;
    let known = places.lock().unwrap_or_else(PoisonError::into_inner);
    let place = known.get(&cookie).cloned();
    drop(known);
    let Some(place) = place else {
        figures.add(Decision::NoNamespace, asked.len());
        return;
    };
    match releases.pass(&place, cookie, asked) {
        Ok(Some(pass)) => {
            figures.passes.observe(pass.took.as_secs_f64());
            figures.add(Decision::Released, pass.released);
            figures.add(Decision::Kept, pass.kept);
            debug!(netns = %place, asked = asked.len(), ?pass, "Releases decided");
        }
        // Its process has ended, and another has its number. attend() finds the next one.
        Ok(None) | Err(baton_adopter::Error::NetnsMissing { .. }) => {
            figures.add(Decision::NoNamespace, asked.len());
        }
        Err(problem) => {
            figures.add(Decision::Failed, asked.len());
            warn!(netns = %place, %problem, "Releases are not decided");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_counted_by_name() {
        let figures = Figures::new().expect("figures");
        figures.add(Decision::Kept, 3);
        figures.add(Decision::NoNamespace, 1);
        for (at, decision) in Decision::ALL.iter().enumerate() {
            assert_eq!(*decision as usize, at);
        }
        let expected = [("failed", 0), ("kept", 3), ("no_namespace", 1), ("released", 0)];
        assert_eq!(figures.decided(), expected.into());
    }
}
