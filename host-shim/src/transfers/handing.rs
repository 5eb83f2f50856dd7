//! What is asked of this node's applications: each is asked in turn, each event decided, and what
//! was decided done. Owns who is asked, and the limits of what is in progress; the order of steps
//! is [`decide`]'s, what each does to the kernel [`moving`]'s.

use super::{
    between::{
        GO_AGAIN, READY_FOR, heir,
        session::MESSAGE_BYTES_MAX,
        wire::{Id, Message as ToShim},
    },
    decide::{Effect, Ended, Event, FAR, LinkId, Phase, Step, begin, decide},
    links::Link,
    moving::{self, Destination, Moving, Target, far_ends},
    open::{Open, TRANSFERS_MAX, TRANSFERS_OF_POD_MAX},
    serving::Serving,
};
use baton_adopter::Transfer;
use baton_sdk::wire::{Message, reason};
use baton_tcp_repair::encode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::VecDeque,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};
use tracing::{debug, warn};

/// For an application.
const NO_ROOM: &str =
    "it takes it into what is no new TCP socket of its pod and the connection's family";

impl Serving<'_> {
    pub fn said(&mut self, from: LinkId, pod: u64, message: Message, descriptor: Option<OwnedFd>) {
        let (id, event) = match message {
            Message::NotMine { id } => (id, Event::NotMine(from)),
            Message::Refuse { id, .. } => (id, Event::Refused(from)),
            Message::Take { id } => {
                let Some(socket) = descriptor else { return };
                match self.taken((from, pod), id, socket) {
                    Some(event) => (id, event),
                    None => return,
                }
            }
            Message::Out { id, state } => {
                let Some(descriptor) = descriptor else { return };
                let asked = self.open.get_mut(&id).filter(|open| {
                    matches!(&open.phase, Phase::Asking { waiting, .. } if waiting.contains(&from))
                });
                match asked {
                    Some(open) if moving::fits(descriptor.as_fd(), &open.ask) => {
                        open.state = state;
                        open.moving = Some(Moving::new(descriptor));
                        (id, Event::Out(from))
                    }
                    Some(_) => {
                        self.put_away(pod, descriptor);
                        (id, Event::Misfit(from))
                    }
                    None => {
                        self.put_away(pod, descriptor);
                        let reason = Ended::LeaseOver.words().to_owned();
                        self.say(from, &Message::Back { id, reason }, None);
                        return;
                    }
                }
            }
            Message::Doubt { id, local, remote } => {
                let Some(descriptor) = descriptor else { return };
                self.settle((from, pod), id, (local, remote), descriptor);
                return;
            }
            // `Link` lets nothing else through.
            _ => return,
        };
        if self.heirs.contains_key(&id) {
            match event {
                Event::Taken(link) => self.feed_heir(id, heir::Event::Taken(link)),
                Event::Refused(link) => self.feed_heir(id, heir::Event::Refused(link)),
                _ => {}
            }
            return;
        }
        self.feed(id, event);
    }

    /// An application takes a connection, into this socket.
    fn taken(&mut self, (from, pod): (LinkId, u64), id: u64, socket: OwnedFd) -> Option<Event> {
        let asked = match self.open.get_mut(&id) {
            Some(open) => open.asks(from),
            None => self.heirs.get_mut(&id).and_then(|heir| heir.asks(from)),
        };
        let (why, event) = match asked {
            Some((target, arriving)) if moving::can_take(socket.as_fd(), target) => {
                arriving.socket = Some(socket);
                return Some(Event::Taken(from));
            }
            Some(_) => (NO_ROOM, Some(Event::Refused(from))),
            None => (Ended::LeaseOver.words(), None),
        };
        self.put_away(pod, socket);
        let reason = why.to_owned();
        self.say(from, &Message::Back { id, reason }, None);
        event
    }

    /// Whose a connection is that an application was handing out when a host-shim ended, or the
    /// link broke.
    fn settle(
        &mut self,
        (from, pod): (LinkId, u64),
        id: u64,
        (local, remote): (std::net::SocketAddr, std::net::SocketAddr),
        descriptor: OwnedFd,
    ) {
        // One that is connected is of these ends, and none of another Transfer's.
        let ends = moving::ends_of(descriptor.as_fd());
        let honest = moving::is_tcp_of(descriptor.as_fd(), pod)
            && ends.is_none_or(|ends| ends == (local, remote));
        let stays = if honest {
            let moved = self.transfers.is_moved(pod, local, remote);
            let copy = descriptor.try_clone();
            match (moved, copy) {
                (Ok(moved), Ok(copy)) => moving::settle(copy, moved).unwrap_or(true),
                _ => true,
            }
        } else {
            true
        };
        self.put_away(pod, descriptor);
        let message = if stays {
            let reason = Ended::OwnerLeft.words().to_owned();
            Message::Back { id, reason }
        } else {
            Message::Gone { id }
        };
        self.say(from, &message, None);
    }

    pub fn ask(&mut self, ask: Transfer) {
        // Told again: it is in progress, or was decided meanwhile.
        if self.leaving || self.asked.contains(&ask) {
            return;
        }
        let lease = match self.transfers.lease(&ask) {
            Ok(Some(lease)) => lease,
            Ok(None) => return,
            Err(problem) => {
                warn!(%problem, "a Transfer is not decided");
                return;
            }
        };
        let of_pod = self.open.values().filter(|o| o.ask.netns() == ask.netns());
        if self.open.len() >= TRANSFERS_MAX || of_pod.count() >= TRANSFERS_OF_POD_MAX {
            self.figures.end(Ended::Busy);
            return;
        }
        if !self.pods.contains_key(&ask.netns()) {
            self.figures.end(Ended::NoNamespace);
            return;
        }
        if let Err(why) = self.begin(ask, lease) {
            self.keep(&ask);
            self.figures.end(why);
            debug!(?ask, why = why.words(), "a connection stays");
        }
    }

    fn begin(&mut self, ask: Transfer, lease: Duration) -> Result<(), Ended> {
        let other = self.pods.values().find(|p| Some(p.place.number) == ask.namespace());
        let known = |link: &&Link| link.pod == ask.netns() && link.ports.is_some();
        let waiting: Vec<_> = self.links.values().filter(known).map(|l| l.id).collect();
        let (phase, to) = if let Some(place) = other.map(|pod| pod.place.clone()) {
            let phase = begin(waiting.clone(), self.taker(place.cookie, ask.port()))?;
            let target = Target::find(&place, &ask).ok_or(Ended::NoPod)?;
            (phase, Destination::Here(target))
        } else {
            let ends = far_ends(&ask).filter(|_| self.settings.are_usable());
            let (local, remote) = ends.ok_or(Ended::NoPod)?;
            let phase = begin(waiting.clone(), Some(FAR))?;
            let peer = SocketAddr::new(local.ip(), self.settings.port);
            let channel = self.reach(ask.netns(), peer)?;
            let to = Destination::Far { local, remote, channel };
            (phase, to)
        };
        let id = self.number();
        let open = Open {
            ask,
            phase,
            deadline: Instant::now() + lease,
            to,
            state: Vec::new(),
            moving: None,
            why: String::new(),
            again: None,
            gone: None,
        };
        self.open.insert(id, open);
        self.asked.insert(ask);
        let want = Message::Want { id, local: ask.local(), remote: ask.remote() };
        for link in waiting {
            self.say(link, &want, None);
        }
        Ok(())
    }

    /// An application of a pod that listens on a port, in turn.
    pub fn taker(&self, cookie: u64, port: u16) -> Option<LinkId> {
        let takes = |link: &&Link| link.pod == cookie && link.listens_on(port);
        let mut takers: Vec<_> = self.links.values().filter(takes).map(|l| l.id).collect();
        takers.sort_unstable();
        let turn = usize::try_from(self.next).unwrap_or(0);
        (!takers.is_empty()).then(|| takers[turn % takers.len()])
    }

    /// What a Transfer is called between nodes.
    fn far_id(&self, number: u64) -> Id {
        u128::from(self.nonce) << 64 | u128::from(number)
    }

    fn keep(&self, ask: &Transfer) {
        // Made room for others: its next copy asks again.
        if let Err(problem) = self.transfers.kept(ask) {
            debug!(%problem, "a Transfer is not answered");
        }
    }

    /// The time of one is over.
    pub fn end_lease(&mut self, id: u64) {
        if let Some(open) = self.open.get_mut(&id) {
            open.why = open.phase.waits_for().to_owned();
        }
        self.feed(id, Event::LeaseOver);
    }

    /// Has an event decided, and those that follow from its effects.
    pub fn feed(&mut self, id: u64, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(open) = self.open.get_mut(&id) else {
                return;
            };
            let before = std::mem::replace(&mut open.phase, Phase::Over);
            let (phase, effects) = decide(before, event);
            open.phase = phase;
            let ended = effects.iter().find_map(|effect| match effect {
                Effect::Count(ended) => Some(*ended),
                _ => None,
            });
            for effect in effects {
                events.extend(self.perform(id, effect, ended));
            }
        }
        if self.open.get(&id).is_some_and(|o| o.phase == Phase::Over)
            && let Some(open) = self.open.remove(&id)
        {
            self.asked.remove(&open.ask);
            if let Some(mut moving) = open.moving {
                moving.arriving.abort();
                // Its application may have closed its own by now.
                if let (Some(socket), Some(target)) =
                    (moving.arriving.socket.take(), open.to.here())
                {
                    self.put_away(target.cookie, socket);
                }
                self.put_away(open.ask.netns(), moving.out);
            }
        }
    }

    /// Does one thing, and says what came of it if that is to be decided upon.
    fn perform(&mut self, id: u64, effect: Effect, ended: Option<Ended>) -> Option<Event> {
        let far = self.far_id(id);
        let open = self.open.get_mut(&id)?;
        match effect {
            Effect::Do(step) => return self.step(id, step),
            Effect::Offer(to) => {
                let ((local, remote), state) = (open.to.ends(), std::mem::take(&mut open.state));
                if let Some(channel) = open.to.channel() {
                    let offer = ToShim::Offer {
                        id: far,
                        number: open.ask.namespace().unwrap_or(0),
                        local,
                        remote,
                        state,
                    };
                    self.tell(channel, offer);
                } else {
                    let message = Message::Offer { id, local, remote, state };
                    self.say(to, &message, None);
                }
            }
            Effect::Undo => {
                if let Some(moving) = &mut open.moving {
                    moving.undo();
                }
            }
            Effect::Reset => {
                let ask = &open.ask;
                if open.to.channel().is_some() {
                    // Whatever comes for it is answered by the kernel again.
                    self.transfers.lives(ask.netns(), ask.local(), ask.remote());
                } else if let Some(moving) = &mut open.moving {
                    moving.arriving.reset();
                }
            }
            Effect::Keep => {
                let ask = open.ask;
                self.keep(&ask);
            }
            Effect::Back(FAR) => {
                // One that is gone knows.
                if let Some(channel) = open.to.channel()
                    && self.channels.contains_key(&channel)
                {
                    self.tell(channel, ToShim::Undo { id: far });
                }
            }
            Effect::Back(to) => {
                let words = ended.map_or("another one handed it out", Ended::words);
                let reason = match open.why.as_str() {
                    "" => reason(words),
                    why => reason(&format!("{words}: {why}")),
                };
                self.say(to, &Message::Back { id, reason }, None);
            }
            Effect::Gone(to) => self.say(to, &Message::Gone { id }, None),
            Effect::Count(ended) => {
                self.figures.end(ended);
                let (ask, why) = (open.ask, &open.why);
                if let (Ended::Moved, true, Some(moving)) =
                    (ended, open.to.channel().is_some(), &open.moving)
                {
                    self.figures.frozen_between.observe(moving.stood().as_secs_f64());
                }
                match ended {
                    Ended::Moved => debug!(?ask, "a connection was moved"),
                    Ended::Reset => warn!(?ask, why, "a connection was lost: {}", ended.words()),
                    _ => debug!(?ask, why, "a connection stays: {}", ended.words()),
                }
            }
        }
        None
    }

    fn step(&mut self, id: u64, step: Step) -> Option<Event> {
        let far = self.far_id(id);
        let open = self.open.get_mut(&id)?;
        let Phase::Moving { from, to, .. } = open.phase else {
            return None;
        };
        if step <= Step::Remember && Instant::now() >= open.deadline {
            // What was done before took the time, not whoever is asked next.
            open.why = format!("no time is left to {}", step.words());
            return Some(Event::LeaseOver);
        }
        let moving = open.moving.as_mut()?;
        let result = match step {
            Step::Send => {
                let (channel, exported) = (open.to.channel()?, moving.exported.take()?);
                let record = ToShim::Record { id: far, bytes: encode(&exported).into() };
                if record.bytes() <= MESSAGE_BYTES_MAX {
                    self.tell(channel, record);
                    // Done when it is answered.
                    return None;
                }
                Err(format!("its record has {} bytes", record.bytes()))
            }
            Step::Remember => {
                for link in [from, to] {
                    let left = match open.to.channel().filter(|_| link == FAR) {
                        Some(channel) => self.channels.get(&channel).is_none_or(has_hung_up),
                        None => self.links.get(&link).is_none_or(has_hung_up),
                    };
                    if left {
                        return Some(Event::Closed(link));
                    }
                }
                let moved = self.transfers.moved(&open.ask, moving.written_to);
                if to == FAR && moved.is_ok() {
                    open.deadline = Instant::now() + READY_FOR;
                }
                moved.map_err(|e| e.to_string())
            }
            Step::Go => return self.say_go(id),
            Step::Give => return self.give(id, to),
            step => moving.take(step, &open.to, self.warm),
        };
        if step == Step::Speak && result.is_ok() {
            self.figures.frozen.observe(moving.stood().as_secs_f64());
            if let Some(target) = open.to.here() {
                self.transfers.lives(target.cookie, target.local, target.remote);
            }
        }
        match result {
            Ok(()) => Some(Event::Done(step)),
            Err(why) => {
                if step == Step::Drop {
                    warn!(why, "a socket that was moved away is not closed: report this");
                }
                open.why = why;
                Some(Event::Failed(step))
            }
        }
    }

    fn give(&mut self, id: u64, to: LinkId) -> Option<Event> {
        let open = self.open.get_mut(&id)?;
        let link = self.links.get_mut(&to);
        let given = link.is_some_and(|link| link.say(&Message::Yours { id }, None));
        if !given {
            open.why = "its link broke".into();
        }
        let step = Step::Give;
        Some(if given { Event::Done(step) } else { Event::Failed(step) })
    }

    /// Says Go, over another channel if the last one has ended, but not too often.
    pub fn say_go(&mut self, number: u64) -> Option<Event> {
        let now = Instant::now();
        let open = self.open.get_mut(&number)?;
        let early = open.gone.map(|last| last + GO_AGAIN).filter(|next| now < *next);
        open.again = early;
        if early.is_some() {
            return None;
        }
        open.gone = Some(now);
        let (netns, (local, _)) = (open.ask.netns(), open.to.ends());
        let peer = SocketAddr::new(local.ip(), self.settings.port);
        let reached = self.reach(netns, peer);
        let open = self.open.get_mut(&number)?;
        match (reached, &mut open.to) {
            (Ok(over), Destination::Far { channel, .. }) => {
                *channel = over;
                let id = self.far_id(number);
                self.tell(over, ToShim::Go { id });
            }
            // Until its time is over.
            _ => open.again = Some(now + GO_AGAIN),
        }
        None
    }
}

fn has_hung_up(link: &impl AsFd) -> bool {
    let mut ended = [PollFd::new(link, PollFlags::HUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut ended, Some(&at_once)).is_ok_and(|n| n > 0)
}
