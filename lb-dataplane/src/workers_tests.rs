//! Several workers as one: what all are told, what becomes of their answers, and that a snapshot is
//! taken by all or by none.

use crate::{
    commands::{Command, Inbox, Notice, Report, WorkerError},
    engines, merge,
    workers::Workers,
};
use baton_api::{
    Adoptability, BackendHealth, EventCursor, FlowEvent, FlowEvents, Policy, PolicyState, Snapshot,
};
use baton_engine::{Engine, Instant, Migrate, MigrateError, Planner, Settings};
use baton_packet::Mac;
use std::{future::poll_fn, path::Path, task::Poll};

/// Serves the commands of all inboxes in turn while something is asked.
async fn while_served<T>(
    inboxes: &mut [Inbox],
    mut serve: impl FnMut(usize, Command),
    asked: impl Future<Output = T>,
) -> T {
    let mut asked = std::pin::pin!(asked);
    poll_fn(|context| {
        if let Poll::Ready(done) = asked.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        for (at, inbox) in inboxes.iter_mut().enumerate() {
            while let Some(command) = inbox.next() {
                serve(at, command);
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

fn two() -> (Workers, Vec<Inbox>) {
    Workers::new(2).expect("eventfds")
}

#[tokio::test]
async fn a_notice_is_for_all_also_when_one_is_gone() {
    let (workers, mut inboxes) = two();
    drop(inboxes.remove(0));
    let told = workers.tell(Notice::Link(true)).await;
    assert_eq!(told, Err(WorkerError::Gone));
    let other = inboxes[0].next();
    assert!(matches!(other, Some(Command::Notice(Notice::Link(true)))));
    assert!(!workers.is_alive());
}

#[tokio::test]
async fn the_beat_is_that_of_the_slowest() {
    let (workers, inboxes) = two();
    inboxes[1].beat(7);
    assert_eq!(workers.beat_us(), 0, "one has not turned yet");
    inboxes[0].beat(9);
    assert_eq!(workers.beat_us(), 7);
}

#[tokio::test]
async fn flow_tables_are_gone_through_one_after_the_other() {
    let (workers, mut inboxes) = two();
    let mut asked = Vec::new();
    let mut cursor = Some((0, 0));
    while let Some(at) = cursor {
        let serve = |worker, command| {
            if let Command::Flows(from, _, answer) = command {
                asked.push((worker, from));
                let _ = answer.send((Vec::new(), (from < 20).then_some(from + 10)));
            }
        };
        let part = while_served(&mut inboxes, serve, workers.flows(at, 10)).await;
        cursor = part.expect("served").1;
    }
    let all = [0, 10, 20].into_iter();
    let both: Vec<_> = (0..2).flat_map(|w| all.clone().map(move |f| (w, f))).collect();
    assert_eq!(asked, both);
}

#[tokio::test]
async fn a_move_is_made_by_the_worker_that_has_the_flow() {
    let client = "10.1.0.1:4000".parse().expect("an address");
    let wanted = Migrate { client, frontend: None, to: None };
    for has in [0, 1, 2] {
        let (workers, mut inboxes) = two();
        let serve = |at, command| {
            if let Command::Migrate(_, answer) = command {
                let _ = answer.send(Err(if at == has {
                    MigrateError::Moving
                } else {
                    MigrateError::NoFlow(client)
                }));
            }
        };
        let asked = workers.migrate(wanted.clone());
        let said = while_served(&mut inboxes, serve, asked).await.expect("served");
        let expected = match has {
            2 => MigrateError::NoFlow(client),
            _ => MigrateError::Moving,
        };
        assert_eq!(said.err(), Some(expected), "{has}");
    }
}

#[tokio::test]
async fn events_go_on_where_those_of_each_worker_ended() {
    let (workers, mut inboxes) = two();
    let mut asked = Vec::new();
    for since in [None, Some("0"), Some("5.9")] {
        let since: Option<EventCursor> = since.map(|text| text.parse().expect("a cursor"));
        let serve = |at: usize, command| {
            if let Command::Events(since, max, answer) = command {
                asked.push((since, max));
                let seq = 10 * (at as u64 + 1);
                let event = FlowEvent {
                    seq,
                    worker: 0,
                    at_micros: 100 - seq,
                    event: "moved".to_owned(),
                    client: "10.1.0.1:4000".parse().expect("an address"),
                    frontend: None,
                    policy: "web".to_owned(),
                    cause: None,
                    reason: None,
                    from: None,
                    to: None,
                };
                let _ = answer.send(FlowEvents {
                    now_micros: seq,
                    next: EventCursor(vec![seq]),
                    missed: seq,
                    more: at == 1,
                    events: vec![event],
                    ..FlowEvents::default()
                });
            }
        };
        let asked = workers.events(since.as_ref(), 8);
        let told = while_served(&mut inboxes, serve, asked).await.expect("served");
        assert_eq!(told.next.to_string(), "10.20");
        assert_eq!((told.missed, told.more, told.now_micros), (30, true, 20));
        let of: Vec<_> = told.events.iter().map(|e| (e.worker, e.seq)).collect();
        assert_eq!(of, [(0, 10), (1, 20)]);
    }
    let since = [None, None, Some(0), Some(0), Some(5), Some(9)];
    assert_eq!(asked, since.map(|since| (since, 8)));
}

fn policy(name: &str, port: u16, backends: std::ops::Range<u16>) -> Policy {
    let backends: Vec<_> = backends
        .map(|n| serde_json::json!({"name": format!("b{n}"), "endpoint": format!("10.2.0.{n}:80")}))
        .collect();
    serde_json::from_value(serde_json::json!({
        "name": name, "frontends": [format!("10.0.0.1:{port}")], "backends": backends,
    }))
    .expect("a policy")
}

fn snapshot(generation: u64, policies: Vec<Policy>) -> Snapshot {
    Snapshot { generation, policies }
}

struct Engines {
    settings: Vec<Settings>,
    engines: Vec<Engine>,
    planner: Planner,
}

impl Engines {
    fn new() -> Self {
        let file = "interface: eth0\nkeys: [{epoch: 3, file: k}]\nports: 20000-20255\nworkers: 2\nlimits: {backends: 4}\n";
        let config = crate::config::Config::parse(Path::new("test.yaml"), file).expect("good");
        let own = ["10.0.0.1".parse().expect("an address")];
        let settings = engines::settings(&config, &own, 2);
        let made = settings.iter().map(|settings| {
            let settings = Settings { mac: Mac([2; 6]), mtu: 1_500, ..settings.clone() };
            Engine::new(settings, Instant(0)).expect("good settings")
        });
        Self { engines: made.collect(), planner: Planner::for_workers(&settings, 7), settings }
    }

    /// Goes on with both until neither has anything to do.
    fn offer(&mut self, snapshot: &Snapshot) -> Vec<bool> {
        let prepared = self.planner.prepare(snapshot, None).expect("good");
        let mut both: Vec<_> = prepared.into_iter().collect();
        let mut took = vec![false; 2];
        for ((engine, prepared), took) in self.engines.iter_mut().zip(&mut both).zip(&mut took) {
            while !prepared.has_room() {
                assert_eq!(engine.apply_piece(Instant(1), prepared), Ok(false));
                assert!(engine.state(Instant(1)).policies.is_empty(), "nothing yet");
            }
            while engine.apply_piece(Instant(1), prepared) == Ok(false) {}
            *took = true;
        }
        self.planner.in_force(&mut both[0]);
        took
    }
}

#[test]
fn engines_of_two_workers_have_the_same_in_force_and_ports_of_their_own() {
    let mut lab = Engines::new();
    assert_eq!(lab.offer(&snapshot(1, vec![policy("web", 80, 1..4)])), [true; 2]);
    let states: Vec<_> = lab.engines.iter_mut().map(|engine| engine.state(Instant(2))).collect();
    assert_eq!(states[0].policies, states[1].policies);
    assert_eq!(states[0].policies[0].backends.len(), 3);
    let (a, b) = (&lab.settings[0].ports, &lab.settings[1].ports);
    assert!(a.end() < b.start() && a.len() == b.len());
}

#[tokio::test]
async fn a_snapshot_that_one_worker_was_never_asked_about_is_taken_by_none() {
    let (workers, mut inboxes) = two();
    drop(inboxes.remove(1));
    let mut lab = Engines::new();
    let wanted = snapshot(1, vec![policy("web", 80, 1..4)]);
    let prepared = lab.planner.prepare(&wanted, None).expect("good");
    assert_eq!(workers.apply(prepared).await.err(), Some(WorkerError::Gone));
    let Some(Command::Apply(_, agreement, _)) = inboxes[0].next() else {
        panic!("the first was asked");
    };
    agreement.agree();
    assert_eq!(agreement.verdict(), Some(false));
}

#[test]
fn figures_are_added_and_the_worst_word_is_shown() {
    let mut lab = Engines::new();
    lab.offer(&snapshot(1, vec![policy("web", 80, 1..3)]));
    let state = lab.engines[0].state(Instant(2));
    let engine_figures = lab.engines[0].figures();
    let report = |used, change: fn(&mut PolicyState)| {
        let mut state = state.clone();
        state.policies.iter_mut().for_each(change);
        state.tables = [("flows", (used, 100)), ("backends", (2, 256))]
            .map(|(name, table)| (name.to_owned(), table))
            .into();
        let mut figures = engine_figures.clone();
        figures[0].backends[0].leg_ports = 100;
        figures[0].backends[0].ready_leg_ports = 100 - used;
        Report { state, counters: vec![("rx_frames_total", None, 5)], figures }
    };
    let mut all = report(3, |policy| {
        policy.flows = 2;
        policy.backends[0].adoptability = Adoptability::Ready;
        policy.backends[0].health = BackendHealth::Up;
        policy.backends[0].outstanding = 4;
        policy.pins_total.insert("upgrade".to_owned(), 1);
    });
    let more = report(97, |policy| {
        policy.flows = 5;
        policy.backends.swap(0, 1);
        policy.backends[1].adoptability = Adoptability::Lapsed;
        policy.backends[1].health = BackendHealth::Silent;
        policy.backends[1].outstanding = 3;
        policy.pins_total.insert("upgrade".to_owned(), 2);
        policy.pins_total.insert("tls".to_owned(), 1);
    });
    let rest = report(50, |_| {});
    merge::report(&mut all, more);
    let policy = &all.state.policies[0];
    let backend = &policy.backends[0];
    assert_eq!((policy.flows, backend.outstanding), (7, 7));
    assert_eq!(policy.backends.len(), 2);
    assert_eq!(
        (backend.adoptability, &backend.health),
        (Adoptability::Lapsed, &BackendHealth::Silent)
    );
    assert_eq!(policy.pins_total["upgrade"], 3);
    assert_eq!(policy.pins_total["tls"], 1);
    assert_eq!(all.counters, [("rx_frames_total", None, 10)]);
    // One full worker is not hidden by the room of the others, whichever comes first.
    merge::report(&mut all, rest);
    assert_eq!(all.state.tables["flows"], (97, 100));
    assert_eq!(all.state.tables["backends"], (2, 256), "each has all");
    let ports = &all.figures[0].backends[0];
    assert_eq!((ports.leg_ports, ports.ready_leg_ports), (100, 3));
}
