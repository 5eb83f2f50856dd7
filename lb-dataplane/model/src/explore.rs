//! When each step of the model may be taken.
//!
//! Owns the conditions of the steps. What a step does is in `happens`, what must hold in
//! `properties`.

use crate::{
    config::{Config, PODS_MAX},
    coverage::Coverage,
    happens::Step,
    step::Run,
    wire::{Leg, Network, Way},
    world::World,
};
use baton_engine::{
    handover::{Mark, may_be_released},
    states::State,
};
use std::sync::Arc;

/// One exploration's model.
#[derive(Clone, Debug)]
pub struct HandOver {
    /// What is assumed.
    pub config: Config,
    /// Rows of the table that were taken.
    pub coverage: Arc<Coverage>,
}

impl HandOver {
    /// The model of a configuration.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, coverage: Arc::default() }
    }

    /// Adds each step that may be taken in this state.
    pub fn steps(&self, world: &World, steps: &mut Vec<Step>) {
        if world.ghost.broken.is_some() {
            return;
        }
        self.packets(world, steps);
        self.client_steps(world, steps);
        self.pod_steps(world, steps);
        self.dataplane_steps(world, steps);
    }

    /// Whether a timer may end now: it is longer than any packet's way, but for as many times as
    /// the configuration says.
    fn timers_end(&self, world: &World) -> bool {
        self.config.network == Network::Forever || world.net.is_quiet() || world.left.early > 0
    }

    /// Adds a step once for each choice of a pod, if it comes to choosing one.
    fn add_picked(&self, world: &World, steps: &mut Vec<Step>, of: impl Fn(Option<u8>) -> Step) {
        let mut run = Run::new(&self.config, &self.coverage, world.clone());
        run.take(of(None), self.config.network);
        let picked = run.picked;
        if run.world != *world {
            steps.push(of(None));
        }
        if picked {
            steps.extend((0..self.config.pods).map(|p| of(Some(p))));
        }
    }

    fn packets(&self, world: &World, steps: &mut Vec<Step>) {
        let counted = self.config.network == Network::Counted;
        for packet in world.net.each() {
            let judged = packet.way == Way::FromPod && world.flow.owner == Some(packet.leg);
            if judged {
                self.add_picked(world, steps, |pick| Step::Arrives { packet, pick });
            } else {
                steps.push(Step::Arrives { packet, pick: None });
            }
            if counted && world.left.losses > 0 {
                steps.push(Step::Lost(packet));
            }
            if counted && world.left.doubles > 0 {
                steps.push(Step::Doubled(packet));
            }
        }
    }

    fn client_steps(&self, world: &World, steps: &mut Vec<Step>) {
        let client = &world.client;
        if client.ended.is_some() {
            return;
        }
        let answered = client.got() == client.sent * self.config.parts;
        let stale = world.left.stale > 0;
        if answered && client.sent < self.config.requests && !client.fin {
            steps.push(Step::Request { pick: None, stale: false });
            if world.moves > 0 && world.flow.state.0 == State::Idle {
                for pick in (0..self.config.pods).map(Some) {
                    if pick != world.flow.owner.map(|o| o.pod) {
                        for stale in [false, stale] {
                            steps.push(Step::Request { pick, stale });
                        }
                    }
                }
            }
        }
        let may_repeat = match self.config.network {
            Network::Forever => world.left.client_repeats > 0,
            Network::Counted => world.net.is_quiet(),
        };
        if !answered && may_repeat {
            steps.push(Step::RequestAgain);
        }
        if client.acked < client.got() {
            self.add_picked(world, steps, |pick| Step::ClientAcks { pick });
        }
        // While a Release is open, the client's close comes again.
        let open = world.flow.progress.is(Mark::ReleaseAsked);
        if world.left.client_closes > 0 && !client.fin && !open {
            steps.push(Step::ClientCloses);
        }
        if world.left.client_resets > 0 {
            steps.push(Step::ClientResets);
        }
    }

    fn pod_steps(&self, world: &World, steps: &mut Vec<Step>) {
        let quiet = self.config.network == Network::Counted && world.net.is_quiet();
        for number in 0..self.config.pods {
            let pod = &world.pods[usize::from(number)];
            for socket in &pod.sockets {
                let leg = Leg { pod: number, port: socket.port };
                if socket.rcv >= crate::pod::STALE {
                    continue;
                }
                if socket.half && world.left.given_up > 0 {
                    steps.push(Step::GivesUpHandshake(leg));
                }
                if socket.closed || socket.half {
                    if quiet {
                        steps.push(Step::Repeats(leg));
                    }
                    continue;
                }
                let between = socket.snd % self.config.parts == 0;
                if !between {
                    steps.push(Step::GoesOn(leg));
                } else if socket.unread() {
                    steps.push(Step::Executes(leg));
                } else if socket.fin {
                    steps.push(Step::SeesEnd(leg));
                }
                if quiet && socket.una < socket.snd {
                    steps.push(Step::Repeats(leg));
                }
                if world.left.closes > 0 {
                    steps.extend([Step::Closes(leg), Step::Aborts(leg)]);
                }
            }
            let left = &world.left;
            if pod.listens && left.crashes > 0 {
                steps.extend([Step::Killed(number), Step::KilledHard(number)]);
            }
            if !pod.listens && left.restarts > 0 {
                steps.push(Step::Started(number));
            }
            if !pod.full && left.full > 0 {
                steps.push(Step::QueueFills(number));
            }
            if pod.full {
                steps.push(Step::QueueEmpties(number));
            }
            if !pod.keyless && left.keyless > 0 {
                steps.push(Step::KeyLost(number));
            }
            if pod.keyless {
                steps.push(Step::KeyFound(number));
            }
            if !pod.cut && left.silences > 0 {
                steps.push(Step::Silenced(number));
            }
        }
    }

    fn dataplane_steps(&self, world: &World, steps: &mut Vec<Step>) {
        let state = world.flow.state.0;
        if self.timers_end(world) {
            match state {
                State::Adopting | State::AdoptingIdle => {
                    for overdue in [false, self.config.response_timeout] {
                        self.add_picked(world, steps, |pick| Step::AdoptionTimer { overdue, pick });
                    }
                }
                State::Orphan => {
                    for stale in [false, world.left.stale > 0] {
                        self.add_picked(world, steps, |pick| Step::RescueTimer { pick, stale });
                    }
                    // With fair packets, only where nobody can have the flow, or the client cannot
                    // have its bytes.
                    let run = Run::new(&self.config, &self.coverage, world.clone());
                    let nobody = (0..PODS_MAX as u8)
                        .all(|p| world.known[usize::from(p)].unlike || !run.takes_over(p));
                    let waits = world.client.ended.is_some() || world.legs == 0;
                    if self.config.network == Network::Forever || nobody || waits {
                        steps.push(Step::GivesUp);
                    }
                }
                State::FinSentToClient => {
                    steps.extend([false, true].map(|last| Step::PartedTimer { last }));
                }
                State::Request if self.config.response_timeout => {
                    self.add_picked(world, steps, |pick| Step::ResponseOverdue { pick });
                }
                _ => {}
            }
        }
        let owner = world.flow.owner.map(|owner| owner.pod);
        let another = (0..self.config.pods).any(|p| {
            let known = world.known[usize::from(p)];
            Some(p) != owner && known.ready && known.down.is_none()
        });
        let run = Run::new(&self.config, &self.coverage, world.clone());
        let view = run.view();
        if world.left.releases > 0 && another && may_be_released(&view) {
            steps.push(Step::AsksRelease);
        }
        if view.progress.is(Mark::ReleaseAsked) && self.timers_end(world) {
            steps.push(Step::ReleaseLate);
        }
        // Much longer than any other timer: where nothing goes on, because a pod is silent or a
        // client waits for nothing.
        let timed = !matches!(
            state,
            State::Adopting
                | State::AdoptingIdle
                | State::OwnerFinPending
                | State::Orphan
                | State::FinSentToClient
                | State::Gone
        );
        let cut = world.pods.iter().any(|p| p.cut);
        if timed && cut && self.config.network == Network::Counted && world.net.is_quiet() {
            steps.push(Step::IdleTimer);
        }
        if self.config.drain && world.moves > 0 && matches!(state, State::Idle | State::Fresh) {
            for stale in [false, world.left.stale > 0] {
                self.add_picked(world, steps, |pick| Step::Drains { pick, stale });
            }
        }
        if matches!(state, State::Gone) {
            return;
        }
        for number in 0..self.config.pods {
            let (pod, known) = (&world.pods[usize::from(number)], world.known[usize::from(number)]);
            // A question is open where an end is held. What other questions find out, probes find
            // out too. Nothing heard for long is asked about, whatever the flow does.
            let held =
                state == State::OwnerFinPending && world.flow.owner.map(|o| o.pod) == Some(number);
            if held && pod.listens && !pod.cut {
                self.add_picked(world, steps, |pick| Step::Listens { pod: number, pick });
            }
            if held && !pod.listens && !pod.cut {
                self.add_picked(world, steps, |pick| Step::NobodyListens { pod: number, pick });
            }
            if pod.cut && (held || known.down.is_none()) {
                self.add_picked(world, steps, |pick| Step::NoAnswer { pod: number, pick });
            }
            if !pod.cut && known.ready != run.takes_over(number) {
                self.add_picked(world, steps, |pick| Step::Probed { pod: number, pick });
            }
        }
    }
}
