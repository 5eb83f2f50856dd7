//! In which order the kernel, the engine and open flows come: the worker is a queue that is looked
//! into, the kernel a list of what was said to it.

use super::snapshot::Snapshots;
use crate::{
    commands::{Command, Inbox},
    config::Config,
    steering::{Maps, Steerer},
    workers::Workers,
};
use baton_api::Pushed;
use baton_engine::SteeredEnds;
use baton_packet::Mac;
use baton_xsk::{OpenError, Steering};
use std::{
    io,
    net::IpAddr,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

/// What was done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// The kernel steers these ports of frontends and addresses of backends, too.
    Added(Vec<u16>, Vec<IpAddr>),
    /// These and no others.
    Set(Vec<u16>, Vec<IpAddr>),
    /// The engine was told of the snapshot with this generation.
    ListenerReport(u64),
}

#[derive(Clone, Default)]
pub(super) struct Kernel {
    done: Arc<Mutex<Vec<Done>>>,
    refuses: Arc<AtomicBool>,
}

fn ports(steering: &Steering) -> Vec<u16> {
    let mut ports: Vec<u16> = steering.frontends.iter().map(|(_, port)| *port).collect();
    ports.sort_unstable();
    ports
}

impl Kernel {
    fn done(&self) -> MutexGuard<'_, Vec<Done>> {
        self.done.lock().expect("no panic")
    }

    fn note(&self, done: Done) -> Result<(), OpenError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(OpenError::Kernel { operation: "a test", source: io::Error::other("no") });
        }
        self.done().push(done);
        Ok(())
    }
}

impl Maps for Kernel {
    fn add(&mut self, steering: &Steering) -> Result<(), OpenError> {
        self.note(Done::Added(ports(steering), steering.addresses.clone()))
    }

    fn set(&mut self, steering: &Steering) -> Result<(), OpenError> {
        self.note(Done::Set(ports(steering), steering.addresses.clone()))
    }

    fn set_mac(&mut self, _: Mac) -> Result<(), OpenError> {
        Ok(())
    }
}

pub(super) fn steerer(own: Vec<IpAddr>) -> (Steerer, Kernel) {
    let kernel = Kernel::default();
    let maps = Box::new(kernel.clone());
    (Steerer::new(maps, own, 20_000..=20_063, true), kernel)
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

struct Lab {
    snapshots: Arc<Snapshots>,
    steerer: Steerer,
    kernel: Kernel,
    inbox: Inbox,
}

impl Lab {
    fn new() -> Self {
        let file = "interface: eth0\nkeys: [{epoch: 3, file: k}]\nports: 20000-20063\n";
        let config = Config::parse(Path::new("test.yaml"), file).expect("good");
        let (workers, mut inboxes) = Workers::new(1).expect("an eventfd");
        let inbox = inboxes.remove(0);
        let own = vec![ip("10.0.0.1")];
        let (steerer, kernel) = steerer(own.clone());
        let none = || Ok(Vec::new());
        let snapshots = Snapshots::new(workers, config, own, none, steerer.clone());
        Self { snapshots: Arc::new(snapshots), steerer, kernel, inbox }
    }

    /// Pushes a snapshot with a frontend at this port, in the background.
    fn push(&self, generation: u64, port: u16) -> tokio::task::JoinHandle<bool> {
        let text = format!(
            r#"{{"generation":{generation},"policies":[{{"name":"web","frontends":["10.0.0.1:{port}"],"backends":[]}}]}}"#
        );
        let snapshot = Pushed::read(text.as_bytes()).expect("good");
        let snapshots = Arc::clone(&self.snapshots);
        tokio::spawn(async move { snapshots.offer(snapshot).await.is_ok() })
    }

    /// Ports of frontends that are steered.
    fn steered(&self) -> Vec<u16> {
        let ports = self.steerer.ports();
        ports.lock().expect("no panic").iter().copied().collect()
    }

    /// The worker's next command.
    async fn command(&mut self) -> Command {
        loop {
            if let Some(command) = self.inbox.next() {
                return command;
            }
            tokio::task::yield_now().await;
        }
    }

    /// The worker is told of a snapshot and takes it.
    async fn applies(&mut self) {
        let Command::Apply(prepared, _, answer) = self.command().await else {
            panic!("a snapshot comes next");
        };
        self.kernel.done().push(Done::ListenerReport(prepared.generation()));
        assert!(answer.send((Ok(()), prepared)).is_ok());
    }
}

#[tokio::test]
async fn what_comes_is_steered_before_the_engine_has_it_and_what_went_until_no_flow_needs_it() {
    let mut lab = Lab::new();
    let own = vec![ip("10.0.0.1")];
    let looking = Arc::clone(&lab.snapshots);
    let first = lab.push(1, 80);
    lab.applies().await;
    assert!(first.await.expect("no panic"));
    let added = |port: u16| Done::Added(vec![port], own.clone());
    assert_eq!(*lab.kernel.done(), [added(80), Done::ListenerReport(1)]);

    // Only now, so that the order of tasks does not matter.
    tokio::spawn(async move { looking.steer().await });
    let Command::Steering(mut ends, answer) = lab.command().await else {
        panic!("what is needed is asked for");
    };
    // The next one waits: it would come between the engine's word and what follows from it.
    let second = lab.push(2, 81);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(lab.inbox.next().is_none());
    ends.frontends = vec![(ip("10.0.0.1"), 80)];
    assert!(answer.send(ends).is_ok());
    lab.applies().await;
    assert!(second.await.expect("no panic"));
    // A flow came by the first frontend, and a leg from an address of the host.
    let Command::Steering(mut ends, answer) = lab.command().await else {
        panic!("asked again");
    };
    assert!(ends.frontends.is_empty(), "those of before are forgotten");
    ends.frontends = vec![(ip("10.0.0.1"), 80), (ip("10.0.0.1"), 81)];
    ends.sources = vec![ip("10.0.9.1")];
    assert!(answer.send(ends).is_ok());
    // It ends, and another look follows without a change.
    let Command::Steering(mut ends, answer) = lab.command().await else {
        panic!("asked again");
    };
    ends.frontends = vec![(ip("10.0.0.1"), 81)];
    assert!(answer.send(ends).is_ok());
    let Command::Steering(..) = lab.command().await else {
        panic!("and again");
    };
    let all = [
        added(80),
        Done::ListenerReport(1),
        Done::Set(vec![80], own.clone()),
        added(81),
        Done::ListenerReport(2),
        Done::Set(vec![80, 81], vec![own[0], ip("10.0.9.1")]),
        Done::Set(vec![81], own.clone()),
    ];
    assert_eq!(*lab.kernel.done(), all);
}

#[tokio::test]
async fn sources_of_routes_are_steered_until_the_routes_change_and_no_leg_needs_them() {
    let lab = Lab::new();
    let mut ends = SteeredEnds::default();
    lab.steerer.set_sources(&[ip("10.0.9.1")]);
    lab.steerer.set(&mut ends);
    lab.steerer.set_sources(&[ip("10.0.9.2")]);
    ends.sources = vec![ip("10.0.9.1")];
    lab.steerer.set(&mut ends);
    let own = |more: &[&str]| [&["10.0.0.1"], more].concat().into_iter().map(ip).collect();
    let all = [
        Done::Added(vec![], own(&["10.0.9.1"])),
        Done::Set(vec![], own(&["10.0.9.1"])),
        Done::Added(vec![], own(&["10.0.9.2"])),
        Done::Set(vec![], own(&["10.0.9.1", "10.0.9.2"])),
    ];
    assert_eq!(*lab.kernel.done(), all);
}

#[tokio::test]
async fn a_snapshot_comes_into_force_although_the_kernel_refuses_and_that_is_counted() {
    let mut lab = Lab::new();
    lab.kernel.refuses.store(true, Ordering::Relaxed);
    let pushed = lab.push(1, 80);
    lab.applies().await;
    assert!(pushed.await.expect("no panic"));
    assert_eq!(lab.steerer.failures().load(Ordering::Relaxed), 1);
    let mut ends = SteeredEnds::default();
    lab.steerer.set(&mut ends);
    assert_eq!(lab.steered(), [80], "as long as it may be");
    assert_eq!(lab.steerer.failures().load(Ordering::Relaxed), 2);
    lab.kernel.refuses.store(false, Ordering::Relaxed);
    ends.frontends = vec![(ip("10.0.0.1"), 80)];
    lab.steerer.set(&mut ends);
    let done = lab.kernel.done().pop();
    assert_eq!(done, Some(Done::Set(vec![80], vec![ip("10.0.0.1")])));
    assert_eq!(lab.steerer.failures().load(Ordering::Relaxed), 2);
}

/// Checks of backends must not use these ports, and may use them again.
#[tokio::test]
async fn the_ports_of_frontends_are_those_that_are_steered_now() {
    let mut lab = Lab::new();
    for (generation, port) in [(1, 80), (2, 81)] {
        let pushed = lab.push(generation, port);
        lab.applies().await;
        assert!(pushed.await.expect("no panic"));
    }
    assert_eq!(lab.steered(), [80, 81]);
    let mut ends = SteeredEnds::default();
    ends.by_address = vec![(ip("10.0.0.1"), 81)];
    lab.steerer.set(&mut ends);
    assert_eq!(lab.steered(), [81]);
}
