//! Every deliberate fault of the engine is found within the fixed set of seeds, in worlds where
//! nothing is wrong without it.

use baton_engine::Mutant;
use baton_sim::{run, run_with};
use std::{
    iter,
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// The fixed set of `make sim`.
const SEEDS: u64 = 10_000;

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
    let (mut wrong, mut needed) = (Vec::new(), 0);
    println!(
        "{:<16} {:>5} {:<12} violation",
        "mutant", "seeds", "checker"
    );
    let found = each(Mutant::ALL.len(), |n| {
        (0..SEEDS).find_map(|seed| {
            let violation = run_with(seed, false, Mutant::ALL[n]).violation?;
            Some((seed, violation.what))
        })
    });
    for (mutant, found) in Mutant::ALL.iter().zip(found) {
        let name = format!("{mutant:?}");
        let Some((seed, what)) = found else {
            wrong.push(format!("{name} is not found in {SEEDS} seeds"));
            continue;
        };
        needed = needed.max(seed + 1);
        let line = what.replace('\n', " ");
        println!("{name:<16} {:>5} {:<12} {line}", seed + 1, checker(&what));
    }
    let sound = each(needed as usize, |seed| run(seed as u64, false).violation);
    for (seed, violation) in sound.into_iter().enumerate() {
        if let Some(violation) = violation {
            wrong.push(format!(
                "seed {seed} is wrong without a mutant: {}",
                violation.what
            ));
        }
    }
    let _ = std::panic::take_hook();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
