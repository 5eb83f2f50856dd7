//! Whole worlds: the first seeds of the fixed set, and that a seed is a run.

use baton_sim::{Stats, run, scenario::Scenario};

/// Enough that every kind of fault and nearly every row of the declared table comes up; `make sim`
/// runs the whole set.
const SEEDS: u64 = 300;

#[test]
fn nothing_is_wrong_in_the_first_seeds() {
    let mut stats = Stats::default();
    let mut wrong = Vec::new();
    for seed in 0..SEEDS {
        let outcome = run(seed, false);
        stats.add(&outcome.stats);
        if let Some(violation) = outcome.violation {
            wrong.push(format!("seed {seed}, step {}: {}", violation.step, violation.what));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A simulation in which nothing happens finds nothing.
    assert!(stats.migrations > 20 * SEEDS / 10, "{} migrations", stats.migrations);
    assert!(stats.rescues > SEEDS / 10, "{} rescues", stats.rescues);
    assert!(stats.answered > 10 * SEEDS, "{} answers", stats.answered);
    let (noise, slow) = (stats.steady.noise, stats.steady.slow);
    assert!(noise[1] > 0 && slow[2] > 0, "{noise:?} {slow:?}");
    let pressed = stats.steady.pressed;
    assert!(pressed[1] > 0, "{pressed:?}");
    assert!(stats.faults.iter().all(|worlds| *worlds > 0), "{:?}", stats.faults);
    assert!(stats.fates.iter().all(|frames| *frames > 0), "{:?}", stats.fates);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 7, 42, 185, 1_000] {
        let (first, second) = (run(seed, true), run(seed, true));
        let (first_text, second_text) =
            (first.trace.expect("asked for"), second.trace.expect("asked for"));
        let differ = first_text.lines().zip(second_text.lines()).find(|(a, b)| a != b);
        assert_eq!(differ, None);
        assert_eq!(first_text.len(), second_text.len());
        assert_eq!(first.violation, second.violation);
        assert_eq!(run(seed, false).stats.steps, first.stats.steps, "tracing changes nothing");
    }
}

#[test]
fn seeds_differ() {
    let scenarios: Vec<String> =
        (0..50).map(|seed| format!("{:?}", Scenario::draw(seed))).collect();
    for (i, scenario) in scenarios.iter().enumerate() {
        assert!(!scenarios[..i].contains(scenario), "seed {i} is another one's world");
    }
}
