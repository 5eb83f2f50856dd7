//! Every way through a Transfer between two nodes: either host-shim, the channel or an application
//! ends, or a lease runs out, at whichever step; messages arrive late or never. There is one owner,
//! or a connection that is reset or given up and counted; nothing stands still beyond its lease.

use super::{
    super::decide::{self as source, Ended, FAR, LinkId},
    heir::{self, Outcome},
};
use std::collections::{BTreeSet, HashSet, VecDeque};

const A: LinkId = 11;
const B: LinkId = 12;

/// What goes over the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Offer,
    Record,
    Go,
    Undo,
    Taken,
    No(Ended),
    Ready,
    Spoken,
    Lost,
}

#[derive(Clone, Debug, PartialEq)]
struct World {
    source: source::Phase,
    /// `None` before it is offered anything.
    heir: Option<heir::Phase>,
    source_lives: bool,
    heir_lives: bool,
    channel: bool,
    /// It has broken once: the second one stays, so that there is an end.
    broke: bool,
    to_heir: VecDeque<Said>,
    to_source: VecDeque<Said>,
    /// The step that the source waits for, as its executor does.
    frozen: bool,
    moved: bool,
    dropped: bool,
    restored: bool,
    speaks: bool,
    given: bool,
    reset: bool,
    counted: Option<Ended>,
    received: Option<Outcome>,
}

impl World {
    fn new() -> Self {
        Self {
            source: source::begin(vec![A], Some(FAR)).expect("both are there"),
            heir: None,
            source_lives: true,
            heir_lives: true,
            channel: true,
            broke: false,
            to_heir: VecDeque::new(),
            to_source: VecDeque::new(),
            frozen: false,
            moved: false,
            dropped: false,
            restored: false,
            speaks: false,
            given: false,
            reset: false,
            counted: None,
            received: None,
        }
    }

    fn say_to_heir(&mut self, said: Said) {
        if self.channel {
            self.to_heir.push_back(said);
        }
    }

    fn say_to_source(&mut self, said: Said) {
        if self.channel {
            self.to_source.push_back(said);
        }
    }

    /// All that may come of an event at the source: each step may fail, if it can.
    fn at_source(&self, event: source::Event) -> Vec<Self> {
        let mut world = self.clone();
        let (phase, effects) = source::decide(world.source.clone(), event);
        world.source = phase;
        for effect in effects {
            match effect {
                source::Effect::Offer(to) => {
                    assert_eq!(to, FAR);
                    world.say_to_heir(Said::Offer);
                }
                source::Effect::Undo => {
                    assert!(!world.moved, "undone behind the point of no return");
                    world.frozen = false;
                }
                source::Effect::Back(FAR) => world.say_to_heir(Said::Undo),
                source::Effect::Keep => assert!(!world.moved && !world.frozen),
                // The old pod's kernel answers again for the pair.
                source::Effect::Reset => world.reset = true,
                source::Effect::Count(ended) => {
                    assert_eq!(world.counted.replace(ended), None);
                }
                source::Effect::Back(_) | source::Effect::Gone(_) => {}
                source::Effect::Do(step) => return world.source_does(step),
            }
        }
        vec![world]
    }

    fn source_does(self, step: source::Step) -> Vec<Self> {
        use source::{Event, Step};
        let mut done = self.clone();
        match step {
            Step::Freeze => done.frozen = true,
            Step::Export => {}
            Step::Send => {
                done.say_to_heir(Said::Record);
                return [vec![done], self.at_source(Event::Failed(step))].concat();
            }
            Step::Remember => done.moved = true,
            Step::Drop => (done.dropped, done.frozen) = (true, false),
            Step::Go => {
                // Over another channel, if there is somebody.
                done.channel = done.heir_lives;
                done.say_to_heir(Said::Go);
                return vec![done];
            }
            Step::Restore | Step::Speak | Step::Give => panic!("not here: {step:?}"),
        }
        let mut failed = self.clone();
        if step == Step::Drop {
            // Its application is told to close it.
            (failed.dropped, failed.frozen) = (true, false);
        }
        let mut all = done.at_source(Event::Done(step));
        all.extend(failed.at_source(Event::Failed(step)));
        all
    }

    fn at_heir(&self, event: heir::Event) -> Vec<Self> {
        let mut world = self.clone();
        let Some(phase) = world.heir else {
            return vec![world];
        };
        let (phase, effects) = heir::decide(phase, event);
        world.heir = Some(phase);
        for effect in effects {
            match effect {
                heir::Effect::SayTaken => world.say_to_source(Said::Taken),
                heir::Effect::SayNo(why) => world.say_to_source(Said::No(why)),
                heir::Effect::SayReady => world.say_to_source(Said::Ready),
                heir::Effect::SaySpoken => world.say_to_source(Said::Spoken),
                heir::Effect::SayLost => world.say_to_source(Said::Lost),
                heir::Effect::Abort => {
                    assert!(!world.speaks);
                    world.restored = false;
                }
                heir::Effect::Reset => {
                    world.reset = true;
                    (world.restored, world.speaks) = (false, false);
                }
                heir::Effect::Back(_) => {}
                heir::Effect::Count(outcome) => {
                    assert_eq!(world.received.replace(outcome), None);
                }
                heir::Effect::Do(step) => {
                    let mut done = world.clone();
                    match step {
                        heir::Step::Restore => done.restored = true,
                        heir::Step::Speak => {
                            assert!(world.moved && world.dropped, "two owners: {world:#?}");
                            (done.restored, done.speaks) = (false, true);
                        }
                        heir::Step::Give => done.given = true,
                    }
                    let mut all = done.at_heir(heir::Event::Done(step));
                    all.extend(world.at_heir(heir::Event::Failed(step)));
                    return all;
                }
            }
        }
        vec![world]
    }

    fn heard_by_heir(&self, said: Said) -> Vec<Self> {
        match said {
            Said::Offer => {
                let mut busy = self.clone();
                busy.say_to_source(Said::No(Ended::FarBusy));
                let mut world = self.clone();
                world.heir = Some(heir::Phase::Offered { to: B });
                vec![busy, world]
            }
            Said::Record => self.at_heir(heir::Event::Record),
            Said::Undo => self.at_heir(heir::Event::Undone),
            // As the executor answers for what is over.
            Said::Go => match self.heir {
                Some(heir::Phase::Over) | None => {
                    let mut world = self.clone();
                    let spoken = world.received == Some(Outcome::Taken);
                    world.say_to_source(if spoken { Said::Spoken } else { Said::Lost });
                    vec![world]
                }
                Some(_) => self.at_heir(heir::Event::Go),
            },
            other => panic!("not to the heir: {other:?}"),
        }
    }

    fn heard_by_source(&self, said: Said) -> Vec<Self> {
        use source::{Event, Step};
        self.at_source(match said {
            Said::Taken => Event::Taken(FAR),
            Said::No(why) => Event::Declined(why),
            Said::Ready => Event::Done(Step::Send),
            Said::Spoken => Event::Done(Step::Go),
            Said::Lost => Event::Failed(Step::Go),
            other => panic!("not to the source: {other:?}"),
        })
    }

    /// The channel ends, with what is under way in it.
    fn cut(&self) -> Vec<Self> {
        let mut world = self.clone();
        world.channel = false;
        world.broke = true;
        world.to_heir.clear();
        world.to_source.clear();
        let after = if world.heir_lives { world.at_heir(heir::Event::Cut) } else { vec![world] };
        let told = after.iter().flat_map(|world| {
            if world.source_lives {
                world.at_source(source::Event::Closed(FAR))
            } else {
                vec![world.clone()]
            }
        });
        told.collect()
    }

    fn source_is_killed(&self) -> Vec<Self> {
        let mut world = self.clone();
        world.source_lives = false;
        // Its application has the next host-shim thaw or drop it, by what is remembered.
        world.frozen = false;
        world.dropped = world.moved;
        world.cut()
    }

    fn heir_is_killed(&self) -> Vec<Self> {
        let mut world = self.clone();
        world.heir_lives = false;
        // A socket in repair mode ends without a word, one that was not given resets.
        world.restored = false;
        if world.speaks && !world.given {
            (world.speaks, world.reset) = (false, true);
        }
        world.cut()
    }

    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        if self.source_lives {
            for event in [
                source::Event::Out(A),
                source::Event::Refused(A),
                source::Event::Closed(A),
                source::Event::LeaseOver,
            ] {
                all.extend(self.at_source(event));
            }
            all.extend(self.source_is_killed());
        }
        if self.heir_lives {
            for event in [
                heir::Event::Taken(B),
                heir::Event::Refused(B),
                heir::Event::Closed(B),
                heir::Event::LeaseOver,
            ] {
                all.extend(self.at_heir(event));
            }
            all.extend(self.heir_is_killed());
        }
        if self.channel && !self.broke {
            all.extend(self.cut());
        }
        let mut world = self.clone();
        if let Some(said) = world.to_heir.pop_front() {
            all.extend(world.heard_by_heir(said));
        }
        let mut world = self.clone();
        if let Some(said) = world.to_source.pop_front() {
            all.extend(world.heard_by_source(said));
        }
        all.retain(|next| next != self);
        all
    }

    fn is_over(&self) -> bool {
        let source = !self.source_lives || self.source == source::Phase::Over;
        let heir = !self.heir_lives || matches!(self.heir, None | Some(heir::Phase::Over));
        source && heir
    }

    /// At any time.
    fn is_safe(&self) {
        let old = !self.moved;
        assert!(!(old && self.speaks), "two owners: {self:#?}");
        assert!(!self.given || self.speaks, "given and silent: {self:#?}");
    }

    /// At the end.
    fn holds(&self) {
        assert!(!self.frozen && !self.restored, "it stands still: {self:#?}");
        let counted = self.counted;
        if !self.moved {
            let kept = !matches!(counted, Some(Ended::Moved | Ended::Reset));
            assert!(kept && !self.speaks && !self.given && !self.dropped, "{self:#?}");
            assert!(counted.is_some() || !self.source_lives, "uncounted: {self:#?}");
            return;
        }
        assert!(self.dropped, "{self:#?}");
        if self.given {
            assert_eq!(self.received, Some(Outcome::Taken), "{self:#?}");
            return;
        }
        // Nobody has it: somebody who lives has counted that.
        let told = counted == Some(Ended::Reset)
            || matches!(self.received, Some(Outcome::Abandoned | Outcome::Reset));
        let nobody_lives = !self.source_lives && !self.heir_lives;
        assert!(told || nobody_lives, "uncounted: {self:#?}");
        assert_ne!(counted, Some(Ended::Moved), "{self:#?}");
    }
}

#[test]
fn whoever_ends_there_is_one_owner_or_a_counted_end() {
    let mut open = vec![World::new()];
    let mut seen = HashSet::new();
    let (mut ends, mut outcomes) = (BTreeSet::new(), BTreeSet::new());
    while let Some(world) = open.pop() {
        if !seen.insert(format!("{world:?}")) {
            continue;
        }
        world.is_safe();
        if world.is_over() {
            world.holds();
            ends.extend(world.counted.map(Ended::label));
            outcomes.extend(world.received.map(Outcome::label));
        }
        let next = world.next();
        // What waits has a lease that ends it.
        assert!(!next.is_empty() || world.is_over(), "stuck: {world:#?}");
        open.extend(next);
    }
    assert_eq!(outcomes.len(), Outcome::ALL.len(), "{outcomes:?}");
    for end in ["moved", "reset", "unreached", "far_busy", "not_taken", "taker_left", "too_large"] {
        assert!(ends.contains(end), "{end} is not in {ends:?}");
    }
    assert!(seen.len() > 300, "{}", seen.len());
}

#[test]
fn a_record_is_awaited_where_it_is_acted_upon() {
    let (to, step) = (7, heir::Step::Restore);
    for phase in [
        heir::Phase::Offered { to },
        heir::Phase::Taken { to },
        heir::Phase::Doing { to, step },
        heir::Phase::Ready { to },
        heir::Phase::Over,
    ] {
        let (after, _) = heir::decide(phase, heir::Event::Record);
        assert_eq!(phase.awaits_record(), after != phase, "{phase:?}");
    }
}

/// The one case in which the source counts a loss although the connection lives: the answer to Go
/// is not heard for as long as it is waited for.
#[test]
fn a_go_is_answered_alike_twice() {
    let mut world = World::new();
    world.heir = Some(heir::Phase::Over);
    world.received = Some(Outcome::Taken);
    let told = world.heard_by_heir(Said::Go);
    assert_eq!(told[0].to_source, [Said::Spoken]);
    world.received = Some(Outcome::Abandoned);
    assert_eq!(world.heard_by_heir(Said::Go)[0].to_source, [Said::Lost]);
}

#[test]
fn outcomes_are_in_the_order_of_their_numbers() {
    for (at, outcome) in Outcome::ALL.iter().enumerate() {
        assert_eq!(*outcome as usize, at);
    }
}
