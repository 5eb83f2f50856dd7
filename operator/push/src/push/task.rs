//! The task of one target: carries events to its session and requests to its control API, and tells
//! the news.
//!
//! Owns one client and the reports that wait. Decides nothing; never waits for whoever reads the
//! reports.

use super::{
    Epoch, Metrics, Outcome, Rendered, Report, Settings, TargetKind,
    client::{Client, Done, Found},
    session::{Answer, Event, News, Request, Session},
};
use crate::{SPANS, keys::LiveKeys};
use baton_api::RefusedPolicy;
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{Instant, sleep_until},
};
use tracing::{Instrument as _, Span, debug, field::Empty, trace_span};

/// Bytes of states that all tasks read at one time, so that many large dataplanes do not take the
/// operator's memory together: two to four of the largest, each of which is read within some 50 ms
/// every 2 s. One state may be larger: it is read alone.
pub(super) const STATE_BUDGET_BYTES: usize = 4 << 20;
/// Unit of the budget. Also what a state takes at least.
const STATE_UNIT_BYTES: usize = 16 << 10;

/// The budget as places.
pub(super) fn state_budget() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(STATE_BUDGET_BYTES / STATE_UNIT_BYTES))
}

/// The newest content of a class.
pub(super) type Newest = watch::Receiver<Option<Arc<Rendered>>>;

/// What a task is told while it runs.
pub(super) struct Inputs {
    /// A shim's never changes.
    pub(super) content: Newest,
    pub(super) epoch: Epoch,
    /// Of no use to a dataplane's.
    pub(super) keys: LiveKeys,
    pub(super) nudge: Arc<Notify>,
    pub(super) stop: watch::Receiver<bool>,
}

/// What all tasks share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) settings: Arc<Settings>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) reports: mpsc::Sender<Report>,
    pub(super) budget: Arc<Semaphore>,
}

type InFlight = Pin<Box<dyn Future<Output = (Client, Request, Done)> + Send>>;

/// What a task wakes up for.
enum Woken {
    Stopping,
    Done(Box<(Client, Request, Done)>),
    Content,
    Nudged,
    Keys,
    Alarm,
    /// There is room for one report.
    Room(mpsc::OwnedPermit<Report>),
    Unread,
}

/// One target's task.
pub(super) struct Task {
    name: Arc<str>,
    is_dataplane: bool,
    shared: Shared,
    inputs: Inputs,
    session: Session,
    /// What the session was told last.
    content: Option<Arc<Rendered>>,
    /// Not here while a request is under way.
    client: Option<Client>,
    in_flight: Option<InFlight>,
    /// For the state that is being read.
    room: Option<OwnedSemaphorePermit>,
    state_bytes: usize,
    /// The time of the session begins here.
    start: Instant,
    /// At most one of each kind.
    waiting: Vec<Report>,
    /// What the dataplane said last of policies that it cannot take.
    refused: Arc<[RefusedPolicy]>,
    counted_in_sync: bool,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.count_in_sync(false);
        self.count_target().fetch_sub(1, Relaxed);
    }
}

impl Task {
    pub(super) fn new(
        name: Arc<str>,
        kind: &TargetKind,
        client: Client,
        shared: Shared,
        inputs: Inputs,
        rng: fastrand::Rng,
    ) -> Self {
        let is_dataplane = matches!(kind, TargetKind::Dataplane { .. });
        let settings = Arc::clone(&shared.settings);
        let interval =
            if is_dataplane { settings.poll_interval } else { settings.shim_poll_interval };
        let task = Self {
            name,
            is_dataplane,
            session: Session::new(settings, interval, inputs.epoch, rng, Duration::ZERO),
            content: None,
            shared,
            inputs,
            client: Some(client),
            in_flight: None,
            room: None,
            state_bytes: 0,
            start: Instant::now(),
            waiting: Vec::new(),
            refused: Arc::default(),
            counted_in_sync: false,
        };
        task.count_target().fetch_add(1, Relaxed);
        task
    }

    /// Until it is stopped, or its inputs are gone.
    pub(super) async fn run(mut self) {
        let wanted = self.wanted();
        self.handle(wanted);
        while let Some(woken) = self.woken().await {
            match woken {
                Woken::Stopping => {}
                Woken::Done(done) => self.done(*done),
                Woken::Content => {
                    let wanted = self.wanted();
                    self.handle(wanted);
                }
                Woken::Nudged => self.handle(Event::Nudge),
                Woken::Keys => self.handle(Event::Look),
                Woken::Alarm => self.handle(Event::Tick),
                Woken::Room(permit) => drop(permit.send(self.waiting.remove(0))),
                // Nobody reads any more; the dataplane is served all the same.
                Woken::Unread => self.waiting.clear(),
            }
        }
    }

    /// What happens next. None if the task has to end.
    async fn woken(&mut self) -> Option<Woken> {
        let busy = self.in_flight.is_some();
        let stopping = *self.inputs.stop.borrow();
        if stopping && !busy {
            return None;
        }
        let alarm = self.session.wake_at().map(|at| self.start + at);
        let reports = &self.shared.reports;
        let told = !self.waiting.is_empty();
        Some(tokio::select! {
            biased;
            ended = self.inputs.stop.changed(), if !stopping => ended.ok().map(|()| Woken::Stopping)?,
            done = ended(&mut self.in_flight), if busy => Woken::Done(Box::new(done)),
            changed = self.inputs.content.changed() => changed.ok().map(|()| Woken::Content)?,
            () = self.inputs.nudge.notified() => Woken::Nudged,
            changed = self.inputs.keys.changed(), if !self.is_dataplane => {
                changed.ok().map(|()| Woken::Keys)?
            }
            () = rung(alarm), if alarm.is_some() => Woken::Alarm,
            permit = reports.clone().reserve_owned(), if told => {
                permit.map_or(Woken::Unread, Woken::Room)
            }
        })
    }

    /// Takes the newest content, of which the session learns the version.
    fn wanted(&mut self) -> Event {
        self.content = self.inputs.content.borrow_and_update().clone();
        Event::Wanted(self.content.as_ref().map(|content| content.version()))
    }

    fn handle(&mut self, event: Event) {
        let next = self.session.handle(self.start.elapsed(), event);
        for news in next.news {
            self.tell(news);
        }
        if let Some(ask) = next.ask {
            self.ask(ask);
        }
        self.count_in_sync(self.session.is_in_sync());
    }

    fn ask(&mut self, ask: Request) {
        if *self.inputs.stop.borrow() {
            return;
        }
        if ask == Request::Poll && !self.find_room() {
            self.handle(Event::Answer(Answer::NoRoom));
            return;
        }
        let Some(mut client) = self.client.take() else {
            debug_assert!(false, "two requests at one time");
            return;
        };
        let content = self.content.clone();
        let span = span(&self.name, ask, content.as_deref());
        let request = async move {
            let done = client.ask(ask, content.as_ref()).await;
            ended_as(&Span::current(), &done);
            (client, ask, done)
        };
        self.in_flight = Some(Box::pin(request.instrument(span)));
    }

    /// Takes places for a state as large as the last one.
    fn find_room(&mut self) -> bool {
        let units = self.state_bytes.div_ceil(STATE_UNIT_BYTES).max(1);
        let units = units.min(STATE_BUDGET_BYTES / STATE_UNIT_BYTES);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        self.room = Arc::clone(&self.shared.budget).try_acquire_many_owned(units).ok();
        self.room.is_some()
    }

    fn done(&mut self, (client, ask, done): (Client, Request, Done)) {
        self.in_flight = None;
        self.client = Some(client);
        self.room = None;
        self.count(ask, &done);
        debug!(target_name = &*self.name, ?ask, answer = ?done.answer, took = ?done.took, bytes = done.bytes, "asked");
        match &done.found {
            Found::Taken(refused) => self.refused = refused.clone().into(),
            Found::Dataplane(state, _) => self.refused = state.refused.clone().into(),
            Found::Nothing | Found::Shim(_) => {}
        }
        self.handle(Event::Answer(done.answer));
        match done.found {
            Found::Nothing | Found::Taken(_) => {}
            Found::Dataplane(state, problems) => {
                self.state_bytes = done.bytes;
                let in_sync = self.session.is_in_sync();
                self.wait(Outcome::State { state, problems, in_sync });
            }
            Found::Shim(state) => {
                self.state_bytes = done.bytes;
                self.wait(Outcome::Shim(state));
            }
        }
    }

    fn tell(&mut self, news: News) {
        let result = match news {
            News::Acknowledged { generation, version, pushed } => {
                // What was published meanwhile has a younger age: then nobody waits for this one
                // any more.
                let content = self.content.as_ref();
                let took = content.map_or(Duration::ZERO, |c| c.age(std::time::Instant::now()));
                Outcome::Acknowledged {
                    generation,
                    version,
                    pushed,
                    took,
                    refused: Arc::clone(&self.refused),
                }
            }
            News::Refused { version, refusal } => Outcome::Refused { version, refusal },
            News::Overtaken { generation } => Outcome::Overtaken { generation },
            News::Unreachable(unreached) => Outcome::Unreachable(unreached),
            News::Restarted => {
                self.shared.metrics.restarts.fetch_add(1, Relaxed);
                return;
            }
        };
        self.wait(result);
    }

    /// Has a report wait until it is read, in place of an older one of its kind.
    fn wait(&mut self, result: Outcome) {
        let kind = std::mem::discriminant(&result);
        self.waiting.retain(|report| std::mem::discriminant(&report.result) != kind);
        self.waiting.push(Report { target: Arc::clone(&self.name), at: SystemTime::now(), result });
    }

    fn count(&self, ask: Request, done: &Done) {
        let metrics = &self.shared.metrics;
        let failed = matches!(done.answer, Answer::Failed(_));
        if failed {
            metrics.failures.fetch_add(1, Relaxed);
        }
        match (ask, &done.answer) {
            (Request::Put { .. }, Answer::Accepted) => {
                metrics.accepted(done.took, done.bytes as u64);
            }
            (Request::Put { .. }, Answer::Refused(_)) => {
                metrics.refused.fetch_add(1, Relaxed);
            }
            (Request::Put { .. }, Answer::Conflict) => {
                metrics.conflicts.fetch_add(1, Relaxed);
            }
            (Request::Put { .. }, _) => {
                metrics.failed.fetch_add(1, Relaxed);
            }
            (Request::Read, _) if !failed => {
                metrics.reads.fetch_add(1, Relaxed);
            }
            (Request::Poll, _) if !failed => {
                metrics.polls.fetch_add(1, Relaxed);
            }
            _ => {}
        }
    }

    fn count_target(&self) -> &AtomicU64 {
        let metrics = &self.shared.metrics;
        if self.is_dataplane { &metrics.dataplanes } else { &metrics.shims }
    }

    fn count_in_sync(&mut self, in_sync: bool) {
        let metrics = &self.shared.metrics.in_sync;
        match (self.counted_in_sync, in_sync) {
            (false, true) => drop(metrics.fetch_add(1, Relaxed)),
            (true, false) => drop(metrics.fetch_sub(1, Relaxed)),
            _ => {}
        }
        self.counted_in_sync = in_sync;
    }
}

/// Of a push; looks come by the second and say nothing.
fn span(target: &str, ask: Request, content: Option<&Rendered>) -> Span {
    let Request::Put { generation, version } = ask else {
        return Span::none();
    };
    let policies = content.map_or(0, Rendered::policies);
    let bytes = content.map_or(0, |content| content.len(generation));
    trace_span!(
        target: SPANS, "push", otel.kind = "client", dataplane = target, generation = number(generation),
        version = number(version.0), policies = number(policies as u64), bytes = number(bytes), outcome = Empty,
        problem = Empty, otel.status_code = Empty
    )
}

/// OpenTelemetry has signed numbers only, others would become texts.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn ended_as(span: &Span, done: &Done) {
    let (outcome, problem) = match &done.answer {
        Answer::Accepted => ("accepted", None),
        Answer::Conflict => ("conflict", None),
        Answer::Refused(refusal) => ("refused", Some(refusal.problem.as_str())),
        Answer::Failed(problem) => ("failed", Some(problem.as_str())),
        _ => ("other", None),
    };
    span.record("outcome", outcome);
    if let Some(problem) = problem {
        span.record("problem", problem);
        span.record("otel.status_code", "ERROR");
    }
}

/// The end of the request under way.
async fn ended(in_flight: &mut Option<InFlight>) -> (Client, Request, Done) {
    match in_flight {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

async fn rung(alarm: Option<Instant>) {
    match alarm {
        Some(alarm) => sleep_until(alarm).await,
        None => std::future::pending().await,
    }
}
