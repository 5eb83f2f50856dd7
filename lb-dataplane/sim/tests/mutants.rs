//! Every deliberate fault of the engine is found within the fixed set of seeds, in worlds where
//! nothing is wrong without it.

use baton_engine::Mutant;
use baton_sim::{run, run_with};

/// The fixed set of `make sim`.
const SEEDS: u64 = 10_000;

/// Which checker a violation's text is of; `panic` is an assertion in the engine or of its books.
fn checker(what: &str) -> &str {
    what.split_once(':').map_or("states", |(name, _)| name)
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
    for mutant in Mutant::ALL {
        let found = (0..SEEDS).find_map(|seed| {
            let violation = run_with(seed, false, *mutant).violation?;
            Some((seed, violation.what))
        });
        let name = format!("{mutant:?}");
        let Some((seed, what)) = found else {
            wrong.push(format!("{name} is not found in {SEEDS} seeds"));
            continue;
        };
        needed = needed.max(seed + 1);
        let line = what.replace('\n', " ");
        println!("{name:<16} {:>5} {:<12} {line}", seed + 1, checker(&what));
    }
    for seed in 0..needed {
        if let Some(violation) = run(seed, false).violation {
            wrong.push(format!(
                "seed {seed} is wrong without a mutant: {}",
                violation.what
            ));
        }
    }
    let _ = std::panic::take_hook();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
