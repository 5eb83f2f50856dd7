//! The packet thread: glue between the port and the engine, and nothing else.
//!
//! Owns both. Allocates nothing per packet, never blocks but in [`Port::wait`], and reads the clock
//! once per batch. Commands are served between batches; one that takes long is served a piece at a
//! time, and no other one meanwhile.
//!
//! # Decisions
//!
//! - **Each worker looks at all receive queues**, as the two directions of a flow may arrive on
//!   different ones; which frames of them are its own the program decides (`xsk/src/pool.rs`).
//!   Workers share no table. Frames are sent by one `sendto` per batch.

use crate::{
    capture::{Counts, Tap, through},
    clock,
    commands::{Agreement, Applied, Command, CounterValue, Inbox, NotApplied, Notice, Report},
};
use baton_api::MigrateReply;
use baton_engine::{
    DrainOrder, Engine, Instant, MigrateError, MigrateOrder, Output, Prepared, Reporting, Seat,
    SteeredEnds, Verdict,
};
use baton_xsk::{Disposition, Handler, Port, Stats, Tx};
use std::{
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};
use tracing::info;

/// The longest sleep: `/healthz` wants a turn of the loop every 2 s.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// Batches between two looks at timers and commands while frames keep coming: with 64 frames of 100
/// ns each, about 50 us.
const BATCHES_MAX: usize = 8;
/// Commands served in one turn, and the time after which no further one is begun, so that a burst
/// of them does not hold up frames.
const COMMANDS_MAX: usize = 32;
const COMMANDS_US: u64 = 100;

/// Link-layer addresses asked for in one turn.
const ASKS_PER_TURN: usize = 256;

/// Why the loop ended early. Fatal: the process ends too, the kernel detaches the program.
#[derive(Debug, thiserror::Error)]
pub enum WorkerFailure {
    /// Packet I/O failed.
    #[error("the interface cannot be used any more: {0}")]
    Port(#[source] io::Error),
}

/// All that the packet thread has.
pub struct Worker {
    engine: Engine,
    port: Port,
    inbox: Inbox,
    asks: mpsc::Sender<IpAddr>,
    /// What takes several turns.
    job: Option<Job>,
    /// Where other workers tell what they have measured.
    seat: Option<Seat>,
    /// Copies frames while somebody captures.
    tap: Option<Box<Tap>>,
    own: OwnCounters,
}

/// What only the loop can count.
#[derive(Default)]
struct OwnCounters {
    turns: u64,
    commands: u64,
    asks_lost: u64,
    /// Counted by whoever changes what is steered.
    steering_failures: Arc<AtomicU64>,
    captures: u64,
    /// Of captures that have ended: frames that were meant, lost by a full ring, by the rate, and
    /// not looked at.
    captured: [u64; 4],
}

/// A command that is served a piece at a time.
enum Job {
    Apply(Applying),
    Report(Box<Reporting>, oneshot::Sender<Report>),
    Steering(Box<SteeredEnds>, oneshot::Sender<Box<SteeredEnds>>),
    Drain(DrainOrder, oneshot::Sender<Result<usize, String>>),
    Migrate(Box<MigrateOrder>, MigrateAnswer),
}

type MigrateAnswer = oneshot::Sender<Result<MigrateReply, MigrateError>>;

/// A snapshot that is put in force.
struct Applying {
    prepared: Box<Prepared>,
    agreement: Arc<Agreement>,
    /// This worker has said that it can.
    agreed: bool,
    answer: oneshot::Sender<Applied>,
}

/// What became of the commands of one turn.
enum Commands {
    /// All served.
    Done,
    /// More may wait, so the loop must not sleep.
    More,
    /// The loop is to end.
    Stop,
}

/// The engine's way to send frames of its own.
struct Out<'a, 'b>(&'a mut Tx<'b>);

impl Output for Out<'_, '_> {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        self.0.frame()
    }

    #[inline]
    fn send(&mut self, len: usize) {
        self.0.send(len);
    }
}

/// Frames on their way to the engine.
struct Batch<'a> {
    engine: &'a mut Engine,
    tap: &'a mut Option<Box<Tap>>,
    now: Instant,
}

impl Handler for Batch<'_> {
    fn look(&mut self, frame: &[u8]) {
        self.engine.look_at(frame);
    }

    fn looked(&mut self) {
        self.engine.look_ahead();
    }

    fn frame(&mut self, buffer: &mut [u8], len: usize, tx: &mut Tx<'_>) -> Disposition {
        let tap = self.tap.as_deref_mut();
        match through::frame(self.engine, tap, self.now, buffer, len, &mut Out(tx)) {
            Verdict::Transmit(len) => Disposition::Transmit(len),
            // The engine has counted the reason.
            Verdict::Drop(_) | Verdict::Absorbed => Disposition::Release,
        }
    }
}

impl Worker {
    /// Puts the parts together. `asks` receives addresses that the engine needs resolved; `seat` is
    /// where other workers are heard; `steering_failures` is counted elsewhere and told here.
    pub fn new(
        engine: Engine,
        port: Port,
        inbox: Inbox,
        asks: mpsc::Sender<IpAddr>,
        seat: Option<Seat>,
        steering_failures: Arc<AtomicU64>,
    ) -> Self {
        Self {
            engine,
            port,
            inbox,
            asks,
            seat,
            job: None,
            tap: None,
            own: OwnCounters { steering_failures, ..OwnCounters::default() },
        }
    }

    /// Serves frames and commands until told to stop.
    ///
    /// # Errors
    /// The port failed.
    pub fn run(mut self) -> Result<(), WorkerFailure> {
        loop {
            let now = clock::now();
            self.own.turns += 1;
            self.inbox.beat(now.0);
            let waiting = match self.commands(now) {
                Commands::Done => false,
                Commands::More => true,
                Commands::Stop => return Ok(()),
            };
            if let Some(seat) = &mut self.seat {
                seat.turn(&mut self.engine, clock::now());
            }
            let drained = (0..BATCHES_MAX).any(|_| self.batch(clock::now()) == 0);
            self.engine.is_behind(!drained);
            self.timers(clock::now());
            let unresolved = self.resolve();
            // Going to sleep sends what is pending with the same system call; with more work at
            // hand, what there is goes out first.
            if drained && !waiting && !unresolved {
                self.sleep()?;
            } else {
                self.port.flush();
            }
        }
    }

    fn batch(&mut self, now: Instant) -> usize {
        self.port.process(&mut Batch { engine: &mut self.engine, tap: &mut self.tap, now })
    }

    fn timers(&mut self, now: Instant) {
        if self.engine.next_deadline().is_some_and(|due| due <= now) {
            let tap = self.tap.as_deref_mut();
            through::poll(&mut self.engine, tap, now, &mut Out(&mut self.port.tx()));
        }
        // Who asked for it takes it back in time, unless it is gone without a word.
        if self.tap.as_ref().is_some_and(|tap| tap.is_over(now)) {
            drop(self.capture(None));
        }
    }

    fn capture(&mut self, tap: Option<Box<Tap>>) -> Option<Box<Tap>> {
        self.own.captures += u64::from(tap.as_ref().is_some_and(|tap| tap.first));
        let before = std::mem::replace(&mut self.tap, tap);
        if let Some(before) = &before {
            for (sum, count) in self.own.captured.iter_mut().zip(captured(before.counts())) {
                *sum += count;
            }
        }
        before
    }

    /// Has the kernel asked for link-layer addresses; whether there are more.
    fn resolve(&mut self) -> bool {
        for _ in 0..ASKS_PER_TURN {
            let Some(address) = self.engine.next_unresolved() else {
                return false;
            };
            if self.asks.try_send(address).is_err() {
                // The engine asks again later.
                self.own.asks_lost += 1;
            }
        }
        true
    }

    fn sleep(&mut self) -> Result<(), WorkerFailure> {
        let now = clock::now();
        let due = self
            .engine
            .next_deadline()
            .map_or(SLEEP_MAX, |due| clock::until(now, due).min(SLEEP_MAX));
        let woken = self.port.wait(Some(due), self.inbox.wake_fd());
        if woken.map_err(WorkerFailure::Port)? {
            self.inbox.rearm();
        }
        Ok(())
    }

    fn commands(&mut self, now: Instant) -> Commands {
        for _ in 0..COMMANDS_MAX {
            if let Some(job) = self.job.take() {
                self.job = self.go_on(now, job);
                return Commands::More;
            }
            let Some(command) = self.inbox.next() else {
                return Commands::Done;
            };
            if !self.command(now, command) {
                return Commands::Stop;
            }
            if clock::now().0 > now.0 + COMMANDS_US {
                break;
            }
        }
        Commands::More
    }

    /// Serves one piece of a job; what is left of it. An asker that has gone away is no reason to
    /// stop.
    fn go_on(&mut self, now: Instant, job: Job) -> Option<Job> {
        match job {
            Job::Apply(applying) => return self.apply(now, applying).map(Job::Apply),
            Job::Report(mut report, answer) => {
                if !self.engine.report_piece(now, &mut report) {
                    return Some(Job::Report(report, answer));
                }
                let _ = answer.send(self.report(*report));
            }
            Job::Steering(mut ends, answer) => {
                if !self.engine.steering_piece(&mut ends) {
                    return Some(Job::Steering(ends, answer));
                }
                let _ = answer.send(ends);
            }
            Job::Drain(mut order, answer) => {
                let Some(backends) = self.engine.drain_piece(now, &mut order) else {
                    return Some(Job::Drain(order, answer));
                };
                let _ = answer.send(match backends {
                    0 => Err(format!("no backend is named `{}`", order.backend())),
                    some => Ok(some),
                });
            }
            Job::Migrate(mut order, answer) => {
                let tap = self.tap.as_deref_mut();
                let out = &mut Out(&mut self.port.tx());
                let moved = through::migrate_piece(&mut self.engine, tap, now, &mut order, out);
                let Some(moved) = moved else {
                    return Some(Job::Migrate(order, answer));
                };
                let _ = answer.send(moved);
            }
        }
        None
    }

    /// The same of a snapshot. While others have not said whether they can, packets are served on.
    fn apply(&mut self, now: Instant, mut applying: Applying) -> Option<Applying> {
        let prepared = &mut applying.prepared;
        let verdict = match applying.agreed {
            true => applying.agreement.verdict(),
            false => Some(true),
        };
        let result = match verdict {
            None => return Some(applying),
            Some(false) => Err(NotApplied::Elsewhere),
            Some(true) => {
                let piece = self.engine.apply_piece(now, prepared);
                piece.map_err(NotApplied::Here)
            }
        };
        if result.is_err() {
            applying.agreement.refuse();
        } else if prepared.has_room() && !applying.agreed {
            applying.agreement.agree();
            applying.agreed = true;
        }
        let result = match result {
            // What has nothing new is in force at once.
            Ok(false) => return Some(applying),
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let _ = applying.answer.send((result, applying.prepared));
        None
    }

    /// False if the loop is to end.
    fn command(&mut self, now: Instant, command: Command) -> bool {
        self.own.commands += 1;
        // An asker that has gone away is no reason to stop: answers may fail.
        match command {
            Command::Apply(prepared, agreement, answer) => {
                self.job =
                    Some(Job::Apply(Applying { prepared, agreement, agreed: false, answer }));
            }
            Command::Notice(notice) => return self.notice(now, notice),
            Command::Routes(mut routes, answer) => {
                self.engine.put_routes(&mut routes);
                let _ = answer.send(routes);
            }
            Command::Steering(ends, answer) => self.job = Some(Job::Steering(ends, answer)),
            Command::Drain { policy, backend, on, answer } => {
                self.job = Some(Job::Drain(DrainOrder::new(policy, backend, on), answer));
            }
            Command::Migrate(wanted, answer) => {
                let order = Box::new(MigrateOrder::new(wanted));
                self.job = Some(Job::Migrate(order, answer));
            }
            Command::Events(since, max, answer) => {
                let _ = answer.send(self.engine.events(now, since, max));
            }
            Command::Report(answer) => self.job = Some(Job::Report(Box::default(), answer)),
            Command::Capture(tap, answer) => {
                let _ = answer.send(self.capture(tap));
            }
            Command::Flows(cursor, max, answer) => {
                let _ = answer.send(self.engine.flows(now, cursor, max));
            }
        }
        true
    }

    /// Likewise.
    fn notice(&mut self, now: Instant, notice: Notice) -> bool {
        match notice {
            Notice::Keys(keys) => self.engine.set_keys(&keys),
            Notice::Neighbour(address, mac) => self.engine.set_neighbour(address, mac),
            Notice::Link(up) => self.engine.set_link(now, up),
            Notice::Spin(allowed) => self.port.allow_spinning(allowed),
            Notice::Health { policy, backend, healthy } => {
                self.engine.set_health(now, &policy, backend, healthy);
            }
            Notice::Stop => {
                info!("the packet worker stops");
                return false;
            }
        }
        true
    }

    fn report(&self, gathered: Reporting) -> Report {
        let tap = self.tap.as_deref().map(Tap::counts);
        let counters = counters(&self.engine, &self.port.stats(), &self.own, tap);
        let (state, figures) = gathered.end();
        Report { state, counters, figures }
    }
}

/// All counters under their metric names; `control::meanings` says what they mean.
fn counters(
    engine: &Engine,
    stats: &Stats,
    own: &OwnCounters,
    tap: Option<&Counts>,
) -> Vec<CounterValue> {
    let mut counters: Vec<CounterValue> = engine.counters().collect();
    port_counters(stats, &mut counters);
    counters.extend([
        ("worker_turns_total", None, own.turns),
        ("worker_commands_total", None, own.commands),
        ("neighbour_asks_lost_total", None, own.asks_lost),
        ("steering_failures_total", None, own.steering_failures.load(Ordering::Relaxed)),
        ("captures_total", None, own.captures),
    ]);
    let now = tap.map(captured).unwrap_or_default();
    let names = [
        ("capture_frames_total", None),
        ("capture_drops_total", Some(("reason", "ring_full"))),
        ("capture_drops_total", Some(("reason", "rate"))),
        ("capture_drops_total", Some(("reason", "unseen"))),
    ];
    for (((name, label), before), now) in names.into_iter().zip(own.captured).zip(now) {
        counters.push((name, label, before + now));
    }
    counters
}

/// In the order of [`OwnCounters::captured`].
fn captured(counts: &Counts) -> [u64; 4] {
    let all = [&counts.matched, &counts.ring_full, &counts.rate, &counts.unseen];
    all.map(|count| count.load(Ordering::Relaxed))
}

/// What a worker that has just started counts: every name and label there is.
#[cfg(test)]
pub fn counters_at_start(engine: &Engine) -> Vec<CounterValue> {
    counters(engine, &Stats::default(), &OwnCounters::default(), None)
}

/// The port's.
fn port_counters(stats: &Stats, counters: &mut Vec<CounterValue>) {
    let (kernel, steering) = (stats.kernel, stats.steering);
    counters.extend([
        ("rx_frames_total", None, stats.rx_frames),
        ("rx_bytes_total", None, stats.rx_bytes),
        ("tx_frames_total", None, stats.tx_frames),
        ("tx_bytes_total", None, stats.tx_bytes),
        ("rx_segmented_total", None, stats.rx_segmented + stats.host.rx_segmented),
        ("host_rx_frames_total", None, stats.host.rx_frames),
        ("host_tx_frames_total", None, stats.host.tx_frames),
        ("fill_ring_empty_total", None, stats.fill_ring_empty),
        ("io_wakeups_total", None, stats.wakeups),
        ("io_waits_total", None, stats.waits),
        ("io_spins_total", None, stats.spins),
        ("kernel_tx_ring_empty_total", None, kernel.tx_ring_empty),
        ("steered_frames_total", None, steering.taken),
        ("passed_frames_total", None, steering.passed),
        ("passed_fragments_total", None, steering.fragments),
    ]);
    let mut lost = |reason, value| {
        counters.push(("io_drops_total", Some(("reason", reason)), value));
    };
    lost("tx_no_frame", stats.tx_dropped_no_frame);
    lost("tx_ring_full", stats.tx_ring_full);
    lost("tx_invalid", stats.tx_invalid);
    lost("rx_oversize", stats.rx_oversize);
    lost("rx_unsegmentable", stats.rx_unsegmentable);
    lost("kernel_rx_dropped", kernel.rx_dropped);
    lost("kernel_rx_invalid", kernel.rx_invalid_descs);
    lost("kernel_tx_invalid", kernel.tx_invalid_descs);
    lost("kernel_rx_ring_full", kernel.rx_ring_full);
    lost("kernel_fill_ring_empty", kernel.rx_fill_ring_empty);
    lost("steering_no_socket", steering.no_socket);
    lost("host_rx_full", stats.host.rx_lost);
    lost("host_rx_unsegmentable", stats.host.rx_unsegmentable);
    lost("host_tx_refused", stats.host.tx_refused);
}

#[cfg(test)]
mod tests {
    /// The engine and the port know nothing of each other, but must mean the same.
    #[test]
    fn the_host_has_one_hardware_address() {
        assert_eq!(baton_packet::Mac::HOST.0, baton_xsk::HOST_MAC);
    }
}
