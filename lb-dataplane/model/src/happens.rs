//! What may happen: the steps of the model, and what each one does.
//!
//! Owns the list and [`Run::take`]. When a step may be taken is said in `explore`.

use crate::{
    client::Sends,
    step::Run,
    wire::{Leg, Network, Packet, Way, Wire},
    world::{Ended, Why},
};
use baton_engine::{handover::Input, states::Event};

/// Something that happens. `pick` is the pod that policy would choose if it had to choose one in
/// this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A packet arrives.
    Arrives {
        /// Which.
        packet: Packet,
        /// Who would be chosen.
        pick: Option<u8>,
    },
    /// A packet is lost.
    Lost(Packet),
    /// A packet arrives, and will arrive again.
    Doubled(Packet),
    /// The client sends its next request, which policy would move.
    Request {
        /// Where to.
        pick: Option<u8>,
        /// A stale socket sits on the tuple there.
        stale: bool,
    },
    /// The client sends its unanswered request again.
    RequestAgain,
    /// The client acknowledges what it has.
    ClientAcks {
        /// Who would be chosen.
        pick: Option<u8>,
    },
    /// The client closes its direction.
    ClientCloses,
    /// The client resets.
    ClientResets,
    /// An application reads a request, executes it and sends the first unit of its response.
    Executes(Leg),
    /// It sends the next unit.
    GoesOn(Leg),
    /// It closes, having seen the client's end.
    SeesEnd(Leg),
    /// It closes for reasons of its own.
    Closes(Leg),
    /// It resets for reasons of its own (`SO_LINGER` 0).
    Aborts(Leg),
    /// A pod's kernel repeats what is not acknowledged.
    Repeats(Leg),
    /// A pod's kernel gives a request socket up.
    GivesUpHandshake(Leg),
    /// A pod's process is killed; its kernel ends what it had.
    Killed(u8),
    /// The same, and each connection is reset.
    KilledHard(u8),
    /// It is started again.
    Started(u8),
    /// A pod's accept queue fills up.
    QueueFills(u8),
    /// It has room again.
    QueueEmpties(u8),
    /// A pod's adopter loses the key of the present epoch.
    KeyLost(u8),
    /// It has it again.
    KeyFound(u8),
    /// Nothing is heard of a pod from now on.
    Silenced(u8),
    /// The adoption timer ends.
    AdoptionTimer {
        /// Policy's time for an answer is over as well.
        overdue: bool,
        /// Who would be chosen.
        pick: Option<u8>,
    },
    /// The timer of the next try to find an owner ends.
    RescueTimer {
        /// Who would be chosen.
        pick: Option<u8>,
        /// A stale socket sits on the tuple there.
        stale: bool,
    },
    /// The time for a rescue is over.
    GivesUp,
    /// Policy's time for an answer is over.
    ResponseOverdue {
        /// Who would be chosen.
        pick: Option<u8>,
    },
    /// The owner answers nothing: it is asked to let go of the request.
    AsksRelease,
    /// No answer to it came in time.
    ReleaseLate,
    /// The idle or half-closed timer ends.
    IdleTimer,
    /// The timer of Baton's own FIN ends.
    PartedTimer {
        /// For the last time.
        last: bool,
    },
    /// A drain comes to the flow.
    Drains {
        /// Who would be chosen.
        pick: Option<u8>,
        /// A stale socket sits on the tuple there.
        stale: bool,
    },
    /// A listener answers the question.
    Listens {
        /// Which pod's.
        pod: u8,
        /// Who would be chosen.
        pick: Option<u8>,
    },
    /// A kernel answers that nobody listens.
    NobodyListens {
        /// Which pod's.
        pod: u8,
        /// Who would be chosen.
        pick: Option<u8>,
    },
    /// The question meets silence.
    NoAnswer {
        /// Which pod.
        pod: u8,
        /// Who would be chosen.
        pick: Option<u8>,
    },
    /// A probe's answer changes what is known of a pod.
    Probed {
        /// Which pod.
        pod: u8,
        /// Who would be chosen.
        pick: Option<u8>,
    },
}

impl Run<'_> {
    /// Does what happens.
    pub fn take(&mut self, step: Step, network: Network) {
        let quiet = self.world.net.is_quiet();
        let counted = network == Network::Counted;
        match step {
            Step::Arrives { packet, pick } => {
                self.pick = pick;
                self.world.net.take(network, &packet);
                self.arrives(packet, counted);
            }
            Step::Lost(packet) => {
                self.world.left.losses -= 1;
                self.world.net.take(network, &packet);
            }
            Step::Doubled(packet) => {
                self.world.left.doubles -= 1;
                self.arrives(packet, counted);
            }
            Step::Request { pick, stale } => {
                let (seq, ack) = (self.world.client.sent, self.world.client.got());
                self.world.moves -= u8::from(pick.is_some());
                self.spend_stale(stale);
                self.world.client.sent += 1;
                self.world.client.acked = ack;
                self.on_client(seq, Sends::Request, ack, pick);
            }
            Step::RequestAgain => {
                let (seq, ack) = (self.world.client.sent - 1, self.world.client.got());
                if !counted {
                    self.world.left.client_repeats -= 1;
                }
                self.on_client(seq, Sends::Request, ack, None);
            }
            Step::ClientAcks { pick } => {
                self.pick = pick;
                let client = &mut self.world.client;
                client.acked = client.got();
                let (seq, ack) = (client.sent + u8::from(client.fin), client.acked);
                self.on_client(seq, Sends::Ack, ack, None);
            }
            Step::ClientCloses => {
                self.world.left.client_closes -= 1;
                let client = &mut self.world.client;
                client.fin = true;
                client.acked = client.got();
                let (seq, ack) = (client.sent, client.acked);
                self.on_client(seq, Sends::Fin, ack, None);
            }
            Step::ClientResets => {
                self.world.left.client_resets -= 1;
                self.world.client.ended = Some(Ended::ByClient);
                self.on_client_rst();
            }
            Step::AdoptionTimer { overdue, pick } => {
                self.spend_early(quiet, counted);
                self.pick = pick;
                self.overdue = overdue;
                self.decide(Input::Silence);
            }
            Step::RescueTimer { pick, stale } => {
                self.spend_early(quiet, counted);
                self.pick = pick;
                self.spend_stale(stale);
                self.try_rescue_later();
            }
            Step::GivesUp => {
                self.spend_early(quiet, counted);
                self.give_up();
            }
            Step::ResponseOverdue { pick } => {
                self.spend_early(quiet, counted);
                self.pick = pick;
                self.decide(Input::Overdue);
            }
            Step::IdleTimer => {
                self.why(Why::Idle);
                self.step(Event::Timeout);
            }
            Step::PartedTimer { last } => {
                self.step(if last { Event::Timeout } else { Event::Doubt });
            }
            Step::Drains { pick, stale } => {
                self.world.moves -= 1;
                self.spend_stale(stale);
                self.pick = pick;
                self.move_idle();
            }
            Step::AsksRelease => {
                self.world.left.releases -= 1;
                self.decide(Input::Stalled);
            }
            Step::ReleaseLate => {
                self.spend_early(quiet, counted);
                self.decide(Input::ReleaseLate);
            }
            Step::Listens { pod, pick } => {
                self.pick = pick;
                self.listens(pod);
            }
            Step::NobodyListens { pod, pick } => {
                self.pick = pick;
                self.nobody_listens(pod);
            }
            Step::NoAnswer { pod, pick } => {
                self.pick = pick;
                self.is_silent(pod);
            }
            Step::Probed { pod, pick } => {
                self.pick = pick;
                self.probed(pod);
            }
            _ => self.in_pod(step),
        }
        if self.stale {
            // No leg was opened: the fault did not happen.
            self.world.left.stale += 1;
        }
        self.tidy();
    }

    fn spend_stale(&mut self, stale: bool) {
        self.world.left.stale -= u8::from(stale);
        self.stale = stale;
    }

    fn spend_early(&mut self, quiet: bool, counted: bool) {
        if counted && !quiet {
            self.world.left.early -= 1;
        }
    }

    /// What happens in a pod alone.
    fn in_pod(&mut self, step: Step) {
        match step {
            Step::Executes(leg) => {
                let request = self.world.pod_mut(leg).socket_mut(leg.port).map(|s| {
                    s.read += 1;
                    s.read - 1
                });
                if let Some(count) =
                    request.and_then(|r| self.world.ghost.executed.get_mut(usize::from(r)))
                {
                    *count += 1;
                }
                self.answers(leg);
            }
            Step::GoesOn(leg) => self.answers(leg),
            Step::SeesEnd(leg) => self.ends(leg, false),
            Step::Closes(leg) | Step::Aborts(leg) => {
                self.world.left.closes -= 1;
                self.world.pod_mut(leg).closed_one = true;
                self.ends(leg, matches!(step, Step::Aborts(_)));
            }
            Step::Repeats(leg) => self.repeats(leg),
            Step::GivesUpHandshake(leg) => {
                self.world.left.given_up -= 1;
                self.world.pod_mut(leg).gives_up(leg.port);
            }
            Step::Killed(number) | Step::KilledHard(number) => {
                self.world.left.crashes -= 1;
                let pod = &mut self.world.pods[usize::from(number)];
                pod.listens = false;
                pod.full = false;
                pod.died = true;
                let ports: Vec<u8> = pod.sockets.iter().map(|s| s.port).collect();
                for port in ports {
                    self.world.pods[usize::from(number)].gives_up(port);
                    let hard = matches!(step, Step::KilledHard(_));
                    self.ends(Leg { pod: number, port }, hard);
                }
            }
            Step::Started(number) => {
                self.world.left.restarts -= 1;
                self.world.pods[usize::from(number)].listens = true;
            }
            Step::QueueFills(number) => {
                self.world.left.full -= 1;
                self.world.pods[usize::from(number)].full = true;
            }
            Step::QueueEmpties(number) => self.world.pods[usize::from(number)].full = false,
            Step::KeyLost(number) => {
                self.world.left.keyless -= 1;
                self.world.pods[usize::from(number)].keyless = true;
            }
            Step::KeyFound(number) => self.world.pods[usize::from(number)].keyless = false,
            Step::Silenced(number) => {
                self.world.left.silences -= 1;
                self.world.pods[usize::from(number)].cut = true;
            }
            // All else concerns the dataplane.
            _ => {}
        }
    }

    fn arrives(&mut self, packet: Packet, counted: bool) {
        let Packet { way, leg, isn, wire } = packet;
        match way {
            Way::ToPod => {
                let safe = self.config.safeguards;
                let pod = self.world.pod_mut(leg);
                if let Some((isn, wire)) = pod.receive(leg.port, isn, wire, &safe) {
                    self.pod_sends(leg, isn, wire);
                }
            }
            // Of a silent pod, nothing arrives; where packets may come late, it may.
            Way::FromPod if counted && self.world.pods[usize::from(leg.pod)].cut => {}
            Way::FromPod => self.on_pod(leg, isn, wire),
        }
    }

    fn pod_sends(&mut self, leg: Leg, isn: u8, wire: Wire) {
        let packet = Packet { way: Way::FromPod, leg, isn, wire };
        self.world.net.send(self.config.network, packet);
    }

    fn answers(&mut self, leg: Leg) {
        let unit = self.world.pod_mut(leg).socket_mut(leg.port).map(|s| {
            s.snd += 1;
            (s.isn, s.snd - 1, s.rcv)
        });
        if let Some((isn, seq, ack)) = unit {
            self.pod_sends(leg, isn, Wire::Data { seq, ack });
        }
    }

    fn ends(&mut self, leg: Leg, hard: bool) {
        let pod = self.world.pod_mut(leg);
        let isn = pod.socket(leg.port).map_or(0, |s| s.isn);
        if let Some(wire) = pod.end(leg.port, hard) {
            self.pod_sends(leg, isn, wire);
        }
    }

    fn repeats(&mut self, leg: Leg) {
        let pod = self.world.pod_mut(leg);
        let unlike = pod.unlike;
        let Some(socket) = pod.socket(leg.port).cloned() else {
            return;
        };
        let isn = socket.isn;
        if socket.half {
            let ack = socket.rcv;
            return self.pod_sends(leg, isn, Wire::SynAck { ack, unlike });
        }
        for seq in socket.una..socket.snd {
            let ack = socket.rcv;
            self.pod_sends(leg, isn, Wire::Data { seq, ack });
        }
        if socket.closed {
            let (seq, ack) = (socket.snd, socket.rcv);
            self.pod_sends(leg, isn, Wire::Fin { seq, ack });
        }
    }
}
