//! Fuzz targets: the engine under any sequence of frames, times and changes, and any snapshot put
//! in force. On stable Rust they are ordinary tests: each runs over the committed corpus
//! (`fuzz/__fuzz__/<target>/corpus`) and over random inputs.
//!
//! Longer: `BOLERO_RANDOM_ITERATIONS=1000000 cargo test -p baton-engine --test fuzz`.
//! Again: a failure prints `BOLERO_RANDOM_SEED=...`; set it and run the target.
#![allow(missing_docs)]

#[path = "../tests/common/allocations.rs"]
mod allocations;
#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../../packet/fuzz/corpus.rs"]
mod corpus;
mod driver;
mod outsiders;
mod program;
mod snapshots;
#[path = "../../../common/api/fuzz/texts.rs"]
mod texts;
mod watch;

use baton_engine::Counter;
use bolero::check;
use driver::Driver;
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hasher,
};

/// Whatever comes in whichever order, the books stay straight, nothing is allocated, and in the end
/// everything is forgotten.
#[test]
fn sequences() {
    check!()
        .with_iterations(8_000)
        .with_max_len(400)
        .for_each(|input: &[u8]| Driver::run(input).world.ends());
}

/// Header prediction leaves the state that the general way leaves, and the same frames; and looking
/// at frames ahead changes nothing either.
#[test]
fn the_short_ways_change_nothing() {
    let both = |input: &[u8]| {
        let [a, b] = [true, false].map(|short| {
            let mut driver = Driver::run_with(input, short);
            let middle = seen(&driver);
            driver.world.ends();
            (middle, seen(&driver))
        });
        assert!(a == b, "with the short ways and without them is not the same");
    };
    corpus::replay("sequences", both);
    check!().with_iterations(4_000).with_max_len(400).for_each(both);
}

/// All that can be seen of an engine, and of what left it.
fn seen(driver: &Driver) -> (u64, String) {
    let w = &driver.world.w;
    let counters: Vec<u64> = Counter::ALL.iter().map(|c| w.count(*c)).collect();
    let (flows, _) = w.engine.flows(w.now, 0, usize::MAX);
    let text = format!("{counters:?} {:?} {flows:?}", w.engine.state(w.now));
    (driver.world.digest.finish(), text)
}

/// Snapshots as text over flows that live.
#[test]
fn applied_snapshots() {
    check!().with_iterations(8_000).with_max_len(97).for_each(snapshots::check);
}

/// Each target has its corpus, and every input of it holds.
#[test]
fn corpora() {
    corpus::replay("sequences", |input| Driver::run(input).world.ends());
    corpus::replay("applied_snapshots", snapshots::check);
}

/// The corpus gets deep: together its inputs take every row of the declared table, so that the
/// fuzzing starts behind each.
#[test]
fn the_corpus_takes_every_transition() {
    let mut taken: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (_, input) in corpus::inputs("sequences") {
        let mut driver = Driver::run(&input);
        driver.world.ends();
        for (state, event, times) in driver.world.w.engine.transitions() {
            *taken.entry((state, event)).or_default() += times;
        }
    }
    // That takes more handshakes at one time than a program has connections.
    let never: BTreeSet<_> =
        taken.iter().filter(|((_, event), n)| **n == 0 && *event != "Outnumbered").collect();
    assert_eq!(never, BTreeSet::new(), "never taken");
}

/// What the counting rests on: an allocation is seen.
#[test]
#[should_panic(expected = "allocations")]
fn an_allocation_is_seen() {
    drop(allocations::taking_nothing(|| std::hint::black_box(vec![1u8; 32])));
}
