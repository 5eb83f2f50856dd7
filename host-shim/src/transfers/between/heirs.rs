//! Connections that other nodes' host-shims offer: the application is asked, the socket restored,
//! and given once Go was said. Owns the sockets meanwhile and the limits; which step comes next is
//! [`heir`]'s.

use super::{
    OFFERED_FOR, READY_FOR, SPOKEN_MAX,
    heir::{self, Effect, Event, Outcome, Phase, Step, decide},
    offered::Heir,
    wire::{Id, Message},
};
use crate::transfers::{
    decide::{Ended, Event as SourceEvent, FAR, Step as SourceStep},
    moving::{Arriving, Target},
    open::{TRANSFERS_MAX, TRANSFERS_OF_POD_MAX},
    serving::Serving,
};
use baton_sdk::wire::{Message as ToApplication, reason};
use baton_tcp_repair::decode;
use bytes::Bytes;
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tracing::{debug, warn};

impl Serving<'_> {
    /// What another host-shim said.
    pub fn said_far(&mut self, channel: u64, message: Message) {
        let (id, event) = match message {
            Message::Offer { id, number, local, remote, state } => {
                let offered = self.offered(channel, id, number, (local, remote), state);
                if let Err(why) = offered {
                    self.figures.receive(Outcome::Declined);
                    self.tell(channel, Message::No { id, why });
                }
                return;
            }
            Message::Record { id, bytes } => {
                if let Some(heir) = self.heir_of(id, channel)
                    && let Some(heir) = self.heirs.get_mut(&heir)
                    && heir.phase.awaits_record()
                {
                    heir.record = bytes;
                }
                (id, Event::Record)
            }
            Message::Undo { id } => (id, Event::Undone),
            Message::Go { id } => {
                self.go(channel, id);
                return;
            }
            Message::Taken { id } => return self.answered(channel, id, SourceEvent::Taken(FAR)),
            Message::No { id, why } => {
                return self.answered(channel, id, SourceEvent::Declined(why));
            }
            Message::Ready { id } => {
                return self.answered(channel, id, SourceEvent::Done(SourceStep::Send));
            }
            Message::Spoken { id } => {
                return self.answered(channel, id, SourceEvent::Done(SourceStep::Go));
            }
            Message::Lost { id } => {
                return self.answered(channel, id, SourceEvent::Failed(SourceStep::Go));
            }
            // The channel keeps these.
            Message::Hello { .. } | Message::Bye { .. } => return,
        };
        if let Some(heir) = self.heir_of(id, channel) {
            self.feed_heir(heir, event);
        }
    }

    /// One of those that were offered over this channel.
    fn heir_of(&self, id: Id, channel: u64) -> Option<u64> {
        let mut all = self.heirs.iter();
        let found = all.find(|(_, heir)| heir.id == id && heir.channel == channel);
        found.map(|(number, _)| *number)
    }

    /// An answer to what this node offers.
    fn answered(&mut self, channel: u64, id: Id, event: SourceEvent) {
        let number = (id >> 64 == u128::from(self.nonce)).then_some(id as u64);
        let asked = number.filter(|number| {
            self.open.get(number).is_some_and(|open| open.is_over_channel(channel))
        });
        if let Some(number) = asked {
            self.feed(number, event);
        }
    }

    fn offered(
        &mut self,
        channel: u64,
        id: Id,
        number: u64,
        ends: (SocketAddr, SocketAddr),
        state: Vec<u8>,
    ) -> Result<(), Ended> {
        let over = self.channels.get(&channel).ok_or(Ended::Unreached)?;
        let cookie = over.pod;
        // Who was connected to says nothing of its own accord.
        if over.peer.is_some() || self.heirs.values().any(|heir| heir.id == id) {
            return Err(Ended::NotTaken);
        }
        let of_pod = self.heirs.values().filter(|heir| heir.target.cookie == cookie);
        if self.leaving
            || self.heirs.len() >= TRANSFERS_MAX
            || of_pod.count() >= TRANSFERS_OF_POD_MAX
        {
            return Err(Ended::FarBusy);
        }
        let place = self.pods.get(&cookie).ok_or(Ended::NoPod)?.place.clone();
        let (local, remote) = ends;
        // Whoever knows it was told by a dataplane. With IPv6 there is no room for it.
        if number != place.number && (number != 0 || local.is_ipv4()) {
            return Err(Ended::NoPod);
        }
        let to = self.taker(cookie, local.port()).ok_or(Ended::NoTaker)?;
        let target = Target::at(&place, local, remote).ok_or(Ended::NoPod)?;
        let heir = Heir {
            id,
            channel,
            phase: Phase::Offered { to },
            deadline: Instant::now() + OFFERED_FOR,
            target,
            record: Bytes::new(),
            arriving: Arriving::default(),
            why: String::new(),
        };
        let number = self.number();
        self.heirs.insert(number, heir);
        let offer = ToApplication::Offer { id: number, local, remote, state };
        self.say(to, &offer, None);
        Ok(())
    }

    /// Its former pod has parted with it. Comes again, over another channel, where the first one
    /// ended before it was answered.
    fn go(&mut self, channel: u64, id: Id) {
        let Some(pod) = self.channels.get(&channel).map(|channel| channel.pod) else {
            return;
        };
        let mut all = self.heirs.iter_mut();
        let waits = all.find(|(_, heir)| heir.id == id && heir.target.cookie == pod);
        if let Some((number, heir)) = waits {
            heir.channel = channel;
            let number = *number;
            self.feed_heir(number, Event::Go);
        } else if self.spoken.contains(&id) {
            self.tell(channel, Message::Spoken { id });
        } else {
            self.tell(channel, Message::Lost { id });
        }
    }

    /// Has an event decided, and those that follow from its effects.
    pub fn feed_heir(&mut self, number: u64, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let Some(heir) = self.heirs.get_mut(&number) else {
                return;
            };
            let (phase, effects) = decide(heir.phase, event);
            heir.phase = phase;
            for effect in effects {
                next = self.perform_for_heir(number, effect).or(next);
            }
        }
        if self.heirs.get(&number).is_some_and(|heir| heir.phase == Phase::Over)
            && let Some(mut heir) = self.heirs.remove(&number)
            && let Some(socket) = heir.arriving.socket.take()
        {
            heir.arriving.abort();
            // Its application may have closed its own by now.
            self.put_away(heir.target.cookie, socket);
        }
    }

    fn perform_for_heir(&mut self, number: u64, effect: Effect) -> Option<Event> {
        let heir = self.heirs.get_mut(&number)?;
        let (id, channel) = (heir.id, heir.channel);
        match effect {
            Effect::SayTaken => self.tell(channel, Message::Taken { id }),
            Effect::SayNo(why) => self.tell(channel, Message::No { id, why }),
            Effect::SayReady => {
                heir.deadline = Instant::now() + READY_FOR;
                self.tell(channel, Message::Ready { id });
            }
            Effect::SaySpoken => {
                if self.spoken.len() >= SPOKEN_MAX {
                    self.spoken.pop_front();
                }
                self.spoken.push_back(id);
                self.tell(channel, Message::Spoken { id });
            }
            Effect::SayLost => self.tell(channel, Message::Lost { id }),
            Effect::Abort => heir.arriving.abort(),
            Effect::Reset => heir.arriving.reset(),
            Effect::Back(to) => {
                let reason = reason("the other node does not hand it on");
                self.say(to, &ToApplication::Back { id: number, reason }, None);
            }
            Effect::Count(outcome) => {
                self.figures.receive(outcome);
                let (ends, why) = ((heir.target.local, heir.target.remote), &heir.why);
                let outcome = outcome.label();
                match outcome {
                    "abandoned" | "reset" => {
                        warn!(?ends, why, "a connection of another node is lost here: {outcome}");
                    }
                    _ => debug!(?ends, why, outcome, "another node offered a connection"),
                }
            }
            Effect::Do(step) => {
                return Some(match self.step_for_heir(number, step) {
                    Ok(()) => Event::Done(step),
                    Err(why) => {
                        if let Some(heir) = self.heirs.get_mut(&number) {
                            heir.why = why;
                        }
                        Event::Failed(step)
                    }
                });
            }
        }
        None
    }

    fn step_for_heir(&mut self, number: u64, step: Step) -> Result<(), String> {
        let heir = self.heirs.get_mut(&number).ok_or("it is over")?;
        match step {
            Step::Restore => {
                let record = std::mem::take(&mut heir.record);
                let connection = decode(&record).map_err(|problem| problem.to_string())?;
                heir.arriving.restore(connection, &heir.target, self.warm)
            }
            Step::Speak => {
                heir.arriving.speak()?;
                let target = &heir.target;
                self.transfers.lives(target.cookie, target.local, target.remote);
                Ok(())
            }
            Step::Give => {
                let Phase::Doing { to, .. } = heir.phase else {
                    return Err("it is over".into());
                };
                let yours = ToApplication::Yours { id: number };
                let link = self.links.get_mut(&to).ok_or("its application left")?;
                let given = link.say(&yours, None);
                given.then_some(()).ok_or_else(|| "its link broke".into())
            }
        }
    }

    /// Until the first of these has to end.
    pub fn heirs_patience(&self) -> Option<Duration> {
        let heirs = self.heirs.values().map(|heir| heir.deadline);
        let channels = self.channels.values().map(|channel| channel.ends().0);
        let first = heirs.chain(channels).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Those that their former pods have for sure.
    pub fn end_heirs_unless_ready(&mut self) {
        let all = self.heirs.iter();
        let held = all.filter(|(_, heir)| !matches!(heir.phase, Phase::Ready { .. }));
        for number in held.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.feed_heir(number, heir::Event::LeaseOver);
        }
    }

    pub fn end_heirs(&mut self, now: Instant) {
        let over = self.heirs.iter().filter(|(_, heir)| heir.deadline <= now);
        for number in over.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.feed_heir(number, heir::Event::LeaseOver);
        }
    }
}
