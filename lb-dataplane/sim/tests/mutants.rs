//! Every deliberate fault of the engine is found within the fixed set of seeds, in a world where
//! nothing is wrong without it.
//!
//! `found.txt` says which seed showed each fault last; the others are only tried where that one
//! shows it no more. `BATON_GENERATE=1` looks for the first seed of each, and writes the file.

use baton_engine::Mutant;
use baton_sim::{run, run_with};
use std::{
    env, fs, iter,
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// The fixed set of `make sim`.
const SEEDS: u64 = 10_000;

const RECORDED: &str = include_str!("found.txt");

/// The seed that showed a fault when that was last written down.
fn recorded(mutant: &str) -> Option<u64> {
    let mut lines = RECORDED.lines().filter_map(|line| line.split_once(' '));
    let (_, seed) = lines.find(|(name, _)| *name == mutant)?;
    Some(seed.trim().parse().expect("a seed"))
}

/// Which checker a violation's text is of; `panic` is an assertion in the engine or of its books.
fn checker(what: &str) -> &str {
    what.split_once(':').map_or("states", |(name, _)| name)
}

/// `work` of all numbers below `count`, on all processors, in their order.
fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let one_thread = || {
        let numbers = iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        let mine = numbers.take_while(|n| *n < count);
        mine.map(|n| (n, work(n))).collect::<Vec<_>>()
    };
    let mut all: Vec<(usize, T)> = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let jobs: Vec<_> = (0..threads).map(|_| scope.spawn(one_thread)).collect();
        let done = jobs.into_iter().map(|job| job.join().expect("no panic"));
        done.flatten().collect()
    });
    all.sort_by_key(|(n, _)| *n);
    all.into_iter().map(|(_, result)| result).collect()
}

#[test]
fn every_mutant_is_found() {
    // A panic in a world is a violation and told as such.
    std::panic::set_hook(Box::new(|_| {}));
    let anew = env::var_os("BATON_GENERATE").is_some();
    let shows = |mutant: Mutant, seed: u64| {
        let violation = run_with(seed, false, mutant).violation?;
        Some((seed, violation.what, run(seed, false).violation))
    };
    let found = each(Mutant::ALL.len(), |n| {
        let mutant = Mutant::ALL[n];
        let first = recorded(&format!("{mutant:?}")).filter(|_| !anew);
        first
            .and_then(|seed| shows(mutant, seed))
            .or_else(|| (0..SEEDS).find_map(|seed| shows(mutant, seed)))
    });
    println!("{:<16} {:>5} {:<12} violation", "mutant", "seed", "checker");
    let (mut wrong, mut lines) = (Vec::new(), String::new());
    for (mutant, found) in Mutant::ALL.iter().zip(found) {
        let name = format!("{mutant:?}");
        let Some((seed, what, sound)) = found else {
            wrong.push(format!("{name} is not found in {SEEDS} seeds"));
            continue;
        };
        let line = what.replace('\n', " ");
        println!("{name:<16} {seed:>5} {:<12} {line}", checker(&what));
        lines += &format!("{name:<16} {seed}\n");
        if let Some(violation) = sound {
            let what = violation.what;
            wrong.push(format!("seed {seed} is wrong without a mutant: {what}"));
        }
    }
    let _ = std::panic::take_hook();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if anew {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/found.txt");
        fs::write(file, lines).expect("found.txt is written");
    } else if lines != RECORDED {
        println!("found.txt is stale, and this takes longer than it would: BATON_GENERATE=1");
    }
}
