//! Every way through a Transfer within a node (between two: `between/heir_tests.rs`): whatever
//! fails or ends at whichever step, there is one owner or a reset that is counted, nothing stays
//! frozen, and everybody who was asked is told.

use super::decide::{Effect, Ended, Event, FAR, LinkId, Phase, Step, begin, decide};
use std::collections::BTreeSet;

const A: LinkId = 1;
const A_TOO: LinkId = 2;
const B: LinkId = 3;

/// What the effects have done to the kernel and to the applications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct World {
    frozen: bool,
    exported: bool,
    /// The new socket is there and silent.
    restored: bool,
    remembered_moved: bool,
    remembered_kept: bool,
    old_ended: bool,
    new_speaks: bool,
    given: bool,
    reset: bool,
    /// Who was told how it ends.
    back: BTreeSet<LinkId>,
    gone: BTreeSet<LinkId>,
    counted: Vec<Ended>,
    /// Who was asked.
    asked: BTreeSet<LinkId>,
    dead: BTreeSet<LinkId>,
}

impl World {
    fn does(&mut self, step: Step) {
        match step {
            Step::Freeze => self.frozen = true,
            Step::Export => self.exported = true,
            Step::Restore => self.restored = true,
            Step::Remember => self.remembered_moved = true,
            Step::Drop => {
                assert!(self.remembered_moved, "dropped before it is remembered");
                (self.old_ended, self.frozen) = (true, false);
            }
            Step::Speak => {
                assert!(self.remembered_moved && !self.new_speaks);
                (self.restored, self.new_speaks) = (false, true);
            }
            Step::Give => self.given = true,
            Step::Send | Step::Go => panic!("another node has no part in it"),
        }
    }

    fn fails(&mut self, step: Step) {
        match step {
            // Its application is told to close it, which ends it without a word.
            Step::Drop => (self.old_ended, self.frozen) = (true, false),
            // `Restoring::commit` closes it.
            Step::Speak => (self.restored, self.reset) = (false, true),
            _ => {}
        }
    }

    fn holds(&self) {
        let world = format!("{self:#?}");
        assert_eq!(self.counted.len(), 1, "{world}");
        assert!(!self.frozen && !self.restored, "frozen: {world}");
        let old = !self.old_ended;
        assert_ne!(self.remembered_moved, self.remembered_kept, "{world}");
        assert_eq!(old, self.remembered_kept, "the word and the owner differ: {world}");
        let new = self.new_speaks && self.given;
        match self.counted[0] {
            Ended::Moved => assert!(new && !self.reset && !old, "{world}"),
            Ended::Reset => assert!(self.reset && !self.given && !old, "{world}"),
            _ => assert!(old && !self.new_speaks && !self.reset, "{world}"),
        }
        assert!(self.back.is_disjoint(&self.gone), "{world}");
    }
}

/// All events that may come from outside.
fn from_outside() -> Vec<Event> {
    let mut events = vec![Event::LeaseOver, Event::Declined(Ended::FarBusy)];
    for link in [A, A_TOO, B] {
        events.extend([
            Event::NotMine(link),
            Event::Refused(link),
            Event::Out(link),
            Event::Misfit(link),
            Event::Taken(link),
            Event::Closed(link),
        ]);
    }
    events
}

/// Runs the effects of one event; a step is done, fails, or meets what came meanwhile: one world
/// for each.
fn apply(phase: Phase, world: World, event: Event) -> Vec<(Phase, World)> {
    let mut world = world;
    if let Event::Closed(link) = event {
        world.dead.insert(link);
    }
    let (phase, effects) = decide(phase, event);
    let mut doing = None;
    for effect in &effects {
        match *effect {
            Effect::Offer(link) => {
                world.asked.insert(link);
            }
            Effect::Do(step) => doing = Some(step),
            Effect::Undo => {
                assert!(!world.remembered_moved, "undone behind the point of no return");
                (world.frozen, world.restored) = (false, false);
            }
            Effect::Reset => {
                world.reset = true;
                world.restored = false;
            }
            Effect::Keep => {
                assert!(!world.remembered_moved && !world.frozen, "{world:?}");
                world.remembered_kept = true;
            }
            Effect::Back(link) => {
                world.back.insert(link);
            }
            Effect::Gone(link) => {
                world.gone.insert(link);
            }
            Effect::Count(ended) => world.counted.push(ended),
        }
    }
    let Some(step) = doing else {
        return vec![(phase, world)];
    };
    assert_eq!(effects.last(), Some(&Effect::Do(step)), "nothing behind a step");
    let mut all = Vec::new();
    // What the executor looks at in front of a step.
    for event in [Event::LeaseOver, Event::Closed(A), Event::Closed(B)] {
        let (after, _) = decide(phase.clone(), event);
        if after == Phase::Over {
            all.extend(apply(phase.clone(), world.clone(), event));
        }
    }
    let mut done = world.clone();
    done.does(step);
    all.extend(apply(phase.clone(), done, Event::Done(step)));
    world.fails(step);
    all.extend(apply(phase, world, Event::Failed(step)));
    all
}

#[test]
fn whatever_fails_there_is_one_owner_or_a_counted_reset() {
    let mut ends = BTreeSet::new();
    let mut seen = Vec::new();
    for waiting in [vec![A], vec![A, A_TOO]] {
        let world = World { asked: waiting.iter().copied().collect(), ..World::default() };
        let first = begin(waiting, Some(B)).expect("both are there");
        let mut open = vec![(first, world)];
        while let Some((phase, world)) = open.pop() {
            if phase == Phase::Over {
                world.holds();
                ends.insert(world.counted[0].label());
                // Nothing that comes later changes anything.
                for event in from_outside() {
                    assert_eq!(decide(Phase::Over, event), (Phase::Over, vec![]));
                }
                continue;
            }
            if seen.contains(&(phase.clone(), world.clone())) {
                continue;
            }
            seen.push((phase.clone(), world.clone()));
            for event in from_outside() {
                open.extend(apply(phase.clone(), world.clone(), event));
            }
        }
    }
    let expected: BTreeSet<_> = Ended::ALL
        .iter()
        .filter(|ended| {
            use Ended::{Busy, NoApplication, NoNamespace, NoPod, NoTaker};
            use Ended::{FarBusy, OtherTenant, TooLarge, Unreached};
            let before = matches!(ended, Busy | NoApplication | NoNamespace | NoPod | NoTaker);
            !before && !matches!(ended, FarBusy | OtherTenant | TooLarge | Unreached)
        })
        .map(|ended| ended.label())
        .collect();
    assert_eq!(ends, expected, "the others end it before it begins, or are another node's");
    assert!(seen.len() > 10, "{}", seen.len());
}

#[test]
fn who_still_waits_is_told_unless_it_has_answered_or_left() {
    let asking = |waiting: &[LinkId]| begin(waiting.to_vec(), Some(B)).expect("both are there");
    let told = |phase, event| {
        let (_, effects) = decide(phase, event);
        let links = effects.iter().filter_map(|effect| match effect {
            Effect::Back(link) => Some(*link),
            _ => None,
        });
        links.collect::<Vec<_>>()
    };
    assert_eq!(told(asking(&[A, A_TOO]), Event::Out(A)), [A_TOO]);
    assert_eq!(told(asking(&[A, A_TOO]), Event::LeaseOver), [A, A_TOO]);
    assert_eq!(told(asking(&[A, A_TOO]), Event::Refused(A)), [A_TOO]);
    assert_eq!(told(asking(&[A]), Event::NotMine(A)), [0; 0]);
    let offering = Phase::Offering { from: A, to: B };
    assert_eq!(told(offering.clone(), Event::Closed(A)), [B]);
    assert_eq!(told(offering.clone(), Event::Refused(B)), [A]);
    assert_eq!(told(offering, Event::LeaseOver), [A, B]);
}

/// An application can guess the numbers of others' Transfers, which count up.
#[test]
fn who_was_not_asked_has_no_say() {
    const OTHER: LinkId = 4;
    let mut phases =
        vec![Phase::Asking { waiting: vec![A, A_TOO], to: B }, Phase::Offering { from: A, to: B }];
    phases.extend(Step::all(B).iter().map(|step| Phase::Moving { from: A, to: B, step: *step }));
    for phase in phases {
        for event in [
            Event::NotMine(OTHER),
            Event::Refused(OTHER),
            Event::Out(OTHER),
            Event::Misfit(OTHER),
            Event::Taken(OTHER),
            Event::Closed(OTHER),
        ] {
            let unchanged = (phase.clone(), vec![]);
            assert_eq!(decide(phase.clone(), event), unchanged, "{event:?}");
        }
    }
}

#[test]
fn one_that_takes_must_be_there_before_anybody_is_asked() {
    assert_eq!(begin(vec![], Some(B)), Err(Ended::NoApplication));
    assert_eq!(begin(vec![A], None), Err(Ended::NoTaker));
}

/// What a host-shim does that is told to end.
#[test]
fn what_is_cut_short_is_kept_unless_it_has_parted() {
    let mut phases =
        vec![Phase::Asking { waiting: vec![A], to: FAR }, Phase::Offering { from: A, to: FAR }];
    phases.extend([Step::Send, Step::Go].map(|step| Phase::Moving { from: A, to: FAR, step }));
    let parted: Vec<_> = phases.iter().map(Phase::has_parted).collect();
    assert_eq!(parted, [false, false, false, true]);
    for phase in phases {
        let is_lost = phase.has_parted();
        let (after, effects) = decide(phase, Event::LeaseOver);
        assert_eq!(after, Phase::Over);
        assert_eq!(effects.contains(&Effect::Reset), is_lost, "{effects:?}");
        assert_eq!(effects.contains(&Effect::Keep), !is_lost, "{effects:?}");
    }
}

#[test]
fn steps_are_in_their_order() {
    for to in [B, FAR] {
        let all = Step::all(to);
        assert!(all.is_sorted());
        // No step between two nodes is behind the point of no return but those of parting.
        assert!(all.contains(&Step::Remember) && all.contains(&Step::Drop));
    }
    for (at, ended) in Ended::ALL.iter().enumerate() {
        assert_eq!(*ended as usize, at);
    }
}
