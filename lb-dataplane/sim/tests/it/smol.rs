//! smoltcp as every client's stack: an implementation of TCP that was written without this project
//! in mind.

use baton_sim::{Outcome, Stats, World, scenario::Scenario, smol::SmolSpec};

/// Worlds that have smoltcp for every client, whatever was drawn.
const SEEDS: u64 = 150;

fn all_smol(seed: u64, traced: bool) -> Outcome {
    let mut scenario = Scenario::draw(seed);
    for (n, (client, _)) in scenario.clients.iter_mut().enumerate() {
        client.reuse_port = false;
        scenario.smol[n].get_or_insert(SmolSpec {
            seed: seed << 8 | n as u64,
            keep_alive: [4_000, 60_000, 700_000][n % 3],
            nagle: n % 2 == 0,
        });
    }
    World::of(scenario, seed, traced).outcome(seed)
}

#[test]
fn nothing_is_wrong_with_smoltcp_alone() {
    let (mut stats, mut wrong) = (Stats::default(), Vec::new());
    for seed in 0..SEEDS {
        let outcome = all_smol(seed, false);
        stats.add(&outcome.stats);
        if let Some(violation) = outcome.violation {
            wrong.push(format!("seed {seed}, step {}: {}", violation.step, violation.what));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Worlds in which nothing happens show nothing.
    assert!(stats.answered > 10 * SEEDS, "{} answers", stats.answered);
    assert!(stats.migrations > 2 * SEEDS, "{} migrations", stats.migrations);
}

#[test]
fn smoltcp_takes_its_randomness_and_its_clock_from_the_world() {
    for seed in [3, 4, 7] {
        let (first, second) = (all_smol(seed, true), all_smol(seed, true));
        assert!(first.trace.is_some());
        assert_eq!(first.trace, second.trace);
        assert_eq!(first.stats.steps, second.stats.steps);
    }
}

#[test]
fn the_swarm_draws_it_for_some_clients() {
    let drawn = (0..100).flat_map(|seed| Scenario::draw(seed).smol);
    let (with, without): (Vec<_>, Vec<_>) = drawn.partition(Option::is_some);
    assert!(with.len() > 50 && without.len() > 50, "{} and {}", with.len(), without.len());
}
