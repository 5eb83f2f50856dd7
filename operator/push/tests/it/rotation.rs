//! Rotation of adoption keys with made-up dataplanes and shims that take the stored keys late,
//! start again and fall silent.

use baton_push::{
    Files, UnixSeconds,
    keys::{
        Ages, KeyError, KeySet, Peer, PeerKind, RotationSettings, Rotator, Step, Warning, Wishes,
        table::{Action, State},
    },
};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);
const START: UnixSeconds = UnixSeconds(1_800_000_000);

/// Not random, but different each time.
fn counter() -> impl FnMut(&mut [u8; 16]) {
    let mut count = 0_u128;
    move |bytes| {
        count += 1;
        *bytes = count.to_be_bytes();
    }
}

fn files(entries: &[(&str, &str)]) -> Files {
    entries.iter().map(|(n, t)| (*n, t.as_bytes())).collect()
}

const K: &str = "000102030405060708090a0b0c0d0e0f\n";

#[test]
fn stored_keys_round_trip_and_are_never_shown() {
    let stored = files(&[("epoch-7", K), ("epoch-8", &K.replace('0', "F")), ("current", "7\n")]);
    let keys = KeySet::from_files(&stored).expect("good").expect("there");
    assert_eq!((keys.current(), keys.epochs()), (7, vec![7, 8]));
    let again = KeySet::from_files(&keys.to_files()).expect("good").expect("there");
    assert_eq!(again, keys);
    assert_eq!(keys.to_files().get("epoch-7"), Some(K.as_bytes()));
    let text = format!("{keys:?}");
    assert!(!text.contains("0001") && text.contains("AdoptionKey(..)"), "{text}");
    assert_eq!(KeySet::from_files(&Files::new()), Ok(None));
}

#[test]
fn what_is_no_key_set_is_refused_with_what_to_change_and_without_a_digit() {
    let bad = K.replace("0f", "0g");
    for (entries, words) in [
        (vec![("epoch-7", K)], "`current` is missing"),
        (vec![("epoch-7", K), ("current", "8")], "expected one of 7"),
        (vec![("epoch-7", K), ("current", "x")], "expected one of 7"),
        (vec![("epoch-7", K), ("current", "07")], "expected one of 7"),
        (vec![("current", "7")], "there is no key"),
        (vec![("epoch-7", &*bad), ("current", "7")], "`epoch-7` is not a key"),
        (vec![("epoch-7", "00"), ("current", "7")], "`epoch-7` is not a key"),
        (vec![("epoch-256", K), ("current", "7")], "`epoch-256` is not known"),
        (vec![("epoch-+7", K), ("current", "7")], "is not known"),
        (vec![("epoch-7", K), ("notes", K), ("current", "7")], "`notes` is not known"),
        (vec![("epoch-3", K), ("epoch-19", K), ("current", "3")], "alike on the wire"),
    ] {
        let error: KeyError = KeySet::from_files(&files(&entries)).expect_err(words);
        let text = format!("{error} {error:?}");
        assert!(text.contains(words), "{text}");
        assert!(!text.contains("0102"), "{text}");
    }
    let many: Vec<String> = (0..9).map(|i| format!("epoch-{i}")).collect();
    let mut entries: Vec<_> = many.iter().map(|name| (name.as_str(), K)).collect();
    entries.push(("current", "0"));
    let error = KeySet::from_files(&files(&entries)).expect_err("too many");
    assert_eq!(error, KeyError::TooMany { found: 9 });
}

#[test]
fn ages_round_trip_and_lost_ones_postpone() {
    let ages = Ages {
        made: [(3, START)].into(),
        current_since: Some(START),
        served: Some("now".to_owned()),
        excluded: ["node-x".to_owned()].into(),
    };
    assert_eq!(Ages::from_text(&ages.to_text()).expect("good"), ages);
    assert!(Ages::from_text("{").is_err());
    let keys = KeySet::from_files(&files(&[("epoch-3", K), ("current", "3")]));
    let keys = keys.expect("good").expect("there");
    let mut rotator = Rotator::new(RotationSettings::default());
    let step = rotator.step(
        START,
        Some(&keys),
        &Ages::default(),
        Some(&[]),
        &Wishes::default(),
        &mut counter(),
    );
    let (kept, ages) = step.change.expect("ages");
    assert_eq!((step.action, kept), (None, keys));
    assert_eq!(ages.made, [(3, START)].into());
}

/// A dataplane or shim: what it took last, which may be old.
#[derive(Clone)]
struct Node {
    kind: PeerKind,
    has: Option<KeySet>,
    silent_since: Option<UnixSeconds>,
    /// As the operator saw it last.
    reported: Peer,
}

type Random = Box<dyn FnMut(&mut [u8; 16])>;

struct World {
    now: UnixSeconds,
    rotator: Rotator,
    settings: RotationSettings,
    stored: Option<KeySet>,
    ages: Ages,
    nodes: Vec<Node>,
    rng: Random,
    warnings: Vec<Warning>,
    actions: Vec<Action>,
}

impl World {
    fn new(kinds: &[PeerKind], stored: Option<KeySet>) -> Self {
        let settings = RotationSettings::default();
        let node = |(i, kind): (usize, &PeerKind)| Node {
            kind: *kind,
            has: stored.clone(),
            silent_since: None,
            reported: Peer {
                unreachable_since: Some(START),
                ..Peer::unheard(format!("n{i}"), *kind, Some(format!("node-{i}")))
            },
        };
        let nodes = kinds.iter().enumerate().map(node).collect();
        let mut world = Self {
            now: START,
            rotator: Rotator::new(settings.clone()),
            settings,
            nodes,
            stored,
            ages: Ages::default(),
            rng: Box::new(counter()),
            warnings: Vec::new(),
            actions: Vec::new(),
        };
        (0..world.nodes.len()).for_each(|i| world.report(i));
        world
    }

    /// The node tells what it has.
    fn report(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        node.reported.unreachable_since = node.silent_since;
        if node.silent_since.is_some() {
            return;
        }
        let (live, signs) = match &node.has {
            None => (Vec::new(), None),
            Some(keys) => (keys.epochs(), Some(keys.current())),
        };
        node.reported.live = match node.kind {
            PeerKind::Dataplane => live,
            PeerKind::Shim => live.iter().map(|epoch| epoch % 16).collect(),
        };
        node.reported.signs_with = signs.filter(|_| node.kind == PeerKind::Dataplane);
    }

    fn step(&mut self, request: Option<&str>) -> Step {
        self.step_without(request, &[])
    }

    /// Nodes of these numbers are excluded.
    fn step_without(&mut self, request: Option<&str>, excluded: &[usize]) -> Step {
        let wishes = Wishes {
            rotate: request.map(str::to_owned),
            excluded: excluded.iter().map(|i| format!("node-{i}")).collect(),
        };
        let peers: Vec<Peer> = self.nodes.iter().map(|n| n.reported.clone()).collect();
        let step = self.rotator.step(
            self.now,
            self.stored.as_ref(),
            &self.ages,
            Some(&peers),
            &wishes,
            &mut self.rng,
        );
        if let Some((keys, ages)) = &step.change {
            self.assert_nothing_is_lost(keys, excluded);
            self.stored = Some(keys.clone());
            self.ages = ages.clone();
        }
        self.actions.extend(step.action);
        self.warnings.extend(step.warnings.iter().cloned());
        step
    }

    /// Whoever is neither silent for too long nor excluded signs with a stored key, and nobody
    /// shall sign with what another one lacks.
    fn assert_nothing_is_lost(&self, keys: &KeySet, excluded: &[usize]) {
        let counts = |node: &&Node| {
            let limit = self.settings.unreachable_limit;
            node.silent_since.is_none_or(|since| self.now.since(since) < limit)
        };
        let included = self.nodes.iter().enumerate();
        let included = included.filter(|(i, _)| !excluded.contains(i));
        for node in included.map(|(_, node)| node).filter(counts) {
            let Some(has) = &node.has else { continue };
            assert!(
                keys.has(has.current()) || node.kind == PeerKind::Shim,
                "epoch {} is removed, with which {} signs",
                has.current(),
                node.reported.name
            );
            assert!(
                has.has(keys.current()),
                "{} lacks epoch {}, with which all shall sign",
                node.reported.name,
                keys.current()
            );
        }
    }
}

fn key_set(current: u8) -> KeySet {
    let entry = format!("epoch-{current}");
    KeySet::from_files(&files(&[(&entry, K), ("current", &current.to_string())]))
        .expect("good")
        .expect("there")
}

const FLEET: [PeerKind; 4] =
    [PeerKind::Dataplane, PeerKind::Dataplane, PeerKind::Shim, PeerKind::Shim];

#[test]
fn keys_are_exchanged_step_by_step_and_the_epochs_wrap() {
    let mut world = World::new(&FLEET, Some(key_set(254)));
    for round in 0..4 {
        let request = format!("request {round}");
        let from = world.stored.clone().expect("there").current();
        let to = from.wrapping_add(1);
        // Twenty minutes in steps of ten seconds; nodes take what is stored a minute later, one
        // after the other.
        for second in 0..120 {
            let _ = world.step(Some(&request));
            world.now = world.now.plus(Duration::from_secs(10));
            if second % 6 == 0 {
                let i = second / 6 % FLEET.len();
                world.nodes[i].has = world.stored.clone();
                world.report(i);
            }
        }
        let stored = world.stored.clone().expect("there");
        assert_eq!((stored.current(), stored.epochs()), (to, vec![to]), "round {round}");
    }
    let one = [Action::AddNext, Action::SignWithNext, Action::RemoveOld];
    assert_eq!(world.actions, one.repeat(4));
    assert_eq!(world.warnings, []);
}

#[test]
fn without_a_request_a_key_lives_for_its_period() {
    let mut world = World::new(&[], Some(key_set(3)));
    let period = world.settings.period;
    let _ = world.step(None);
    let step = world.step(None);
    assert_eq!((step.action, step.look_again), (None, HOUR));
    world.now = START.plus(period - Duration::from_secs(1));
    let step = world.step(None);
    assert_eq!((step.action, step.look_again), (None, Duration::from_secs(1)));
    world.now = START.plus(period);
    assert_eq!(world.step(None).action, Some(Action::AddNext));
    // With nobody there it is only spread that is waited for.
    assert_eq!(world.step(None).look_again, world.settings.spread);
}

fn asks(text: &str) -> Wishes {
    Wishes { rotate: Some(text.to_owned()), ..Wishes::default() }
}

#[test]
fn a_request_is_served_once_and_the_first_key_needs_nobody() {
    let mut rotator = Rotator::new(RotationSettings::default());
    let mut rng = counter();
    let step = rotator.step(START, None, &Ages::default(), None, &asks("r"), &mut rng);
    assert_eq!((step.state, step.action), (State::NoKey, Some(Action::MakeFirst)));
    let (keys, ages) = step.change.expect("made");
    let step = rotator.step(START, Some(&keys), &ages, None, &asks("r"), &mut rng);
    assert_eq!((step.action, step.change), (None, None));
    let step = rotator.step(START, Some(&keys), &ages, None, &asks("s"), &mut rng);
    let (keys, ages) = step.change.expect("added");
    assert_eq!(ages.served.as_deref(), Some("s"));
    // Beyond that, all have to be known.
    let later = START.plus(24 * HOUR);
    let step = rotator.step(later, Some(&keys), &ages, None, &asks("t"), &mut rng);
    assert_eq!(step.change, None);
    assert!(step.waiting_for[0].contains("not all"), "{step:?}");
}

#[test]
fn a_new_first_key_is_of_an_epoch_that_nobody_has() {
    let mut world = World::new(&FLEET, Some(key_set(1)));
    world.stored = None;
    let _ =
        world.rotator.step(START, None, &Ages::default(), None, &Wishes::default(), &mut world.rng);
    let peers: Vec<Peer> = world.nodes.iter().map(|n| n.reported.clone()).collect();
    let step = world.rotator.step(
        START,
        None,
        &Ages::default(),
        Some(&peers),
        &Wishes::default(),
        &mut world.rng,
    );
    assert_eq!(step.change.expect("made").0.current(), 2);
}

#[test]
fn a_rotation_ends_although_one_answers_and_never_takes_the_key() {
    let mut world = World::new(&FLEET, Some(key_set(5)));
    let _ = world.step(Some("r"));
    let _ = world.step(Some("r"));
    for i in [0, 1, 2] {
        world.nodes[i].has = world.stored.clone();
        world.report(i);
    }
    let step = world.step(Some("r"));
    assert_eq!(step.waiting_for, ["n3 has no key of epoch 6 yet (it has [5])"]);
    assert_eq!(step.warnings, []);
    world.now = world.now.plus(HOUR);
    let step = world.step(Some("r"));
    assert_eq!(step.action, None);
    assert!(step.warnings[0].to_string().contains("n3 has no key"), "{step:?}");
    // A shim, so that `assert_nothing_is_lost` holds of nobody who signs; its pods are given
    // nothing until it takes the key.
    world.nodes[3].silent_since = Some(START);
    world.now = world.now.plus(5 * HOUR);
    let step = world.step(Some("r"));
    assert_eq!(step.action, Some(Action::SignWithNext));
    let named = |action| Warning::PassedOver { action, names: vec!["n3".to_owned()] };
    assert_eq!(step.warnings, [named(Action::SignWithNext)]);
    for i in [0, 1, 2] {
        world.nodes[i].has = world.stored.clone();
        world.report(i);
    }
    // Nobody signs with the old one any more; the shim is waited for once more, and the grace time.
    world.now = world.now.plus(6 * HOUR);
    let _ = world.step(Some("r"));
    world.now = world.now.plus(HOUR);
    let step = world.step(Some("r"));
    assert_eq!(step.action, Some(Action::RemoveOld), "{step:?}");
}

#[test]
fn a_rotation_ends_although_a_dataplane_answers_that_it_signs_with_the_old_key() {
    let mut world = World::new(&FLEET, Some(key_set(5)));
    for _ in 0..2 {
        let _ = world.step(Some("r"));
    }
    let liar = world.nodes[0].reported.clone();
    // What it really has is not what it says.
    (0..4).for_each(|i| world.nodes[i].has = world.stored.clone());
    for _ in 0..40 {
        (0..4).for_each(|i| world.report(i));
        world.nodes[0].reported = Peer { unreachable_since: None, ..liar.clone() };
        world.now = world.now.plus(HOUR / 2);
        let _ = world.step(Some("r"));
        (0..4).for_each(|i| world.nodes[i].has = world.stored.clone());
    }
    let ends = [Action::AddNext, Action::SignWithNext, Action::RemoveOld];
    assert_eq!(world.actions, ends);
    assert!(world.warnings.iter().any(|w| matches!(w, Warning::Stuck { .. })));
    assert!(world.warnings.iter().any(|w| matches!(w, Warning::PassedOver { .. })));
}

#[test]
fn who_is_silent_blocks_up_to_the_limit_and_is_named_then() {
    let mut world = World::new(&FLEET, Some(key_set(5)));
    for _ in 0..2 {
        let _ = world.step(Some("r"));
    }
    world.nodes[1].silent_since = Some(world.now);
    for i in 0..4 {
        if i != 1 {
            world.nodes[i].has = world.stored.clone();
        }
        world.report(i);
    }
    world.now = world.now.plus(HOUR - Duration::from_secs(1));
    let step = world.step(Some("r"));
    assert_eq!(step.action, None);
    assert!(step.waiting_for[0].contains("does not answer"), "{step:?}");
    world.now = world.now.plus(Duration::from_secs(1));
    let step = world.step(Some("r"));
    assert_eq!(step.action, Some(Action::SignWithNext));
    let named = Warning::PassedOver { action: Action::SignWithNext, names: vec!["n1".to_owned()] };
    assert_eq!(step.warnings, [named]);
    // One that comes back with the old key and answers holds up the removal.
    world.nodes[1].silent_since = None;
    for i in [0, 2, 3] {
        world.nodes[i].has = world.stored.clone();
    }
    (0..4).for_each(|i| world.report(i));
    world.now = world.now.plus(HOUR / 2);
    let step = world.step(Some("r"));
    assert_eq!(step.action, None);
    assert_eq!(step.waiting_for, ["n1 signs with epoch 5 still"]);
}

/// Those that are not excluded have what is stored, and say so.
fn others_follow(world: &mut World, excluded: &[usize]) {
    for i in (0..world.nodes.len()).filter(|i| !excluded.contains(i)) {
        world.nodes[i].has = world.stored.clone();
        world.report(i);
    }
}

/// Until a rotation ends, or an hour.
fn rotate_without(world: &mut World, excluded: &[usize]) -> Duration {
    let began = world.now;
    for _ in 0..360 {
        let ended = world.step_without(None, excluded).action == Some(Action::RemoveOld);
        others_follow(world, excluded);
        if ended {
            break;
        }
        world.now = world.now.plus(Duration::from_secs(10));
    }
    world.now.since(began)
}

#[test]
fn an_excluded_node_begins_a_rotation_that_ends_without_it() {
    let mut world = World::new(&FLEET, Some(key_set(5)));
    let _ = world.step(None);
    let step = world.step_without(None, &[3]);
    assert_eq!(step.action, Some(Action::AddNext), "it begins at once");
    others_follow(&mut world, &[3]);
    // It answers all the time, that it has the old key.
    let took = rotate_without(&mut world, &[3]);
    let least = world.settings.spread + world.settings.grace;
    assert!(took < least + Duration::from_secs(60), "{took:?}");
    let stored = world.stored.clone().expect("there");
    assert_eq!(stored.epochs(), [6]);
    let all: Vec<_> = world.warnings.iter().map(ToString::to_string).collect();
    assert!(all.iter().all(|w| w.contains("node-3") && !w.contains("node-2")), "{all:?}");
    // That was all.
    world.now = world.now.plus(24 * HOUR);
    assert_eq!(world.step_without(None, &[3]).action, None);
    // Let in, it gets what the others have, which is no reason to rotate; excluded again, it is.
    others_follow(&mut world, &[]);
    let step = world.step(None);
    assert_eq!((step.action, step.warnings), (None, vec![]));
    assert_eq!(world.step_without(None, &[3]).action, Some(Action::AddNext));
}

#[test]
fn a_node_that_is_excluded_during_a_rotation_has_another_one_begin() {
    let mut world = World::new(&FLEET, Some(key_set(5)));
    let _ = world.step(Some("r"));
    assert_eq!(world.step(Some("r")).action, None, "it is under way");
    (0..4).for_each(|i| world.nodes[i].has = world.stored.clone());
    (0..4).for_each(|i| world.report(i));
    // It has the next key already.
    let _ = rotate_without(&mut world, &[3]);
    assert_eq!(world.stored.clone().expect("there").epochs(), [6]);
    let _ = rotate_without(&mut world, &[3]);
    assert_eq!(world.stored.clone().expect("there").epochs(), [7]);
    assert_eq!(world.nodes[3].reported.live, [5, 6]);
}

#[test]
fn who_excludes_a_node_is_told_what_stands_in_the_way() {
    let mut world = World::new(&FLEET, Some(key_set(5)));
    let step = world.step_without(None, &[1, 2, 9]);
    let words = step.warnings[0].to_string();
    assert!(words.contains("node-1 (n1 runs there and has all keys"), "{words}");
    assert!(words.contains(", node-2, node-9 (no host-shim is known there"), "{words}");
}

#[test]
fn nothing_is_lost_in_any_order_of_what_nodes_do() {
    let mut rotations = 0;
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(&FLEET, Some(key_set(rng.u8(..))));
        for turn in 0..600 {
            world.now = world.now.plus(Duration::from_secs(rng.u64(0..90)));
            let i = rng.usize(..world.nodes.len());
            match rng.u8(..12) {
                0..4 => {
                    // Takes what is stored: a shim or dataplane reads its directory.
                    world.nodes[i].has = world.stored.clone();
                }
                4..9 => world.report(i),
                9 if rng.u8(..4) == 0 => {
                    let silent = world.nodes[i].silent_since;
                    world.nodes[i].silent_since = silent.is_none().then_some(world.now);
                    // Who comes back after long has started again and reads what is stored.
                    world.nodes[i].has = world.stored.clone();
                    world.report(i);
                }
                10 => world.rotator = Rotator::new(world.settings.clone()),
                _ => {}
            }
            let request = format!("{}", turn / 100);
            // Now and then a shim is excluded, and let in again with what is stored by then.
            let excluded: &[usize] = if turn / 150 % 2 == 1 { &[3] } else { &[] };
            if turn % 300 == 0 {
                world.nodes[3].has = world.stored.clone();
            }
            let _ = world.step_without(Some(&request), excluded);
        }
        rotations += world.actions.iter().filter(|a| **a == Action::RemoveOld).count();
    }
    println!("{rotations} rotations in 300 runs");
    assert!(rotations > 300, "{rotations} rotations are too few to show anything");
}
