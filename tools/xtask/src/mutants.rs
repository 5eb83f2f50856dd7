//! `cargo xtask sim --mutants`: which seed shows which deliberate fault of the engine.
//!
//! Owns the search and its table. What a fault is belongs to `baton-engine`, what shows it to
//! `baton-sim`.

use baton_engine::Mutant;
use std::{ops::Range, process::ExitCode};

/// The fault of a name.
pub(crate) fn named(text: &str) -> Result<Mutant, String> {
    let all = Mutant::ALL.iter().copied();
    let found = all.clone().find(|mutant| format!("{mutant:?}") == text);
    found.ok_or_else(|| {
        let names: Vec<String> = all.map(|mutant| format!("{mutant:?}")).collect();
        format!("no fault has this name: expected one of {}", names.join(", "))
    })
}

/// Looks for each fault in these seeds and prints what showed it.
pub(crate) fn find_all(seeds: Range<u64>) -> ExitCode {
    let mut missed = 0;
    for mutant in Mutant::ALL {
        let mut runs = seeds.clone().map(|seed| baton_sim::run_with(seed, false, *mutant));
        let found = runs.find_map(|outcome| Some((outcome.seed, outcome.violation?)));
        let name = format!("{mutant:?}");
        match found {
            Some((seed, violation)) => println!("{name:<20} seed {seed:>5}: {}", violation.what),
            None => {
                missed += 1;
                println!("{name:<20} not found");
            }
        }
    }
    println!("{} of {} faults found", Mutant::ALL.len() - missed, Mutant::ALL.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
