//! The checks bite: with one safeguard taken away, the exploration finds what that one prevents.

use baton_engine::timing::REPLAYS_MAX;
use baton_model::{
    check::{explore, explore_until_any},
    config::{Config, Faults, Safeguards},
    wire::Network,
};

fn config(faults: Faults) -> Config {
    Config {
        faults,
        tries_max: 2,
        legs_max: 3,
        safeguards: Safeguards::ALL,
        ..Config::new("a safeguard less", Network::Forever)
    }
}

/// No pod adopts.
fn opened(faults: Faults) -> Config {
    Config { opened: [true; 3], ..config(faults) }
}

/// The configuration holds with all safeguards, and without the one that `without` takes away
/// `property` does not.
fn bites(config: Config, without: impl FnOnce(&mut Safeguards), property: &str) {
    let whole = explore(config.clone());
    assert!(whole.counterexamples.is_empty(), "with all safeguards: {:?}", whole.counterexamples);
    bites_alone(config, without, property);
}

fn bites_alone(mut config: Config, without: impl FnOnce(&mut Safeguards), property: &str) {
    without(&mut config.safeguards);
    let report = explore(config);
    let found = report.counterexamples.iter().find(|c| c.0 == property);
    let all: Vec<_> = report.counterexamples.iter().map(|c| c.0).collect();
    let (_, way) = found.unwrap_or_else(|| panic!("not found, but {all:?}"));
    println!("{property}, {} states:\n{way}", report.states);
}

const ONCE: &str = "at most once, or as often as policy says";

#[test]
fn without_fencing_two_pods_speak_to_the_client() {
    let config =
        Config { replay: true, response_timeout: true, legs_max: 2, ..config(Faults::NONE) };
    bites(config, |s| s.fencing = false, "single owner");
}

#[test]
fn a_bare_rst_that_confirms_confirms_nothing() {
    let property = "a confirmed adoption was made";
    bites(config(Faults::NONE), |s| s.handover.bare_rst_is_no_answer = false, property);
}

#[test]
fn already_adopted_taken_for_a_refusal_executes_twice() {
    let faults = Faults::CLOSE;
    let without = |s: &mut Safeguards| s.handover.already_adopted_is_no_refusal = false;
    bites(config(faults), without, ONCE);
}

#[test]
fn a_roll_back_after_data_was_taken_executes_twice() {
    let faults = Faults::CLOSE;
    let without = |s: &mut Safeguards| s.handover.taken_data_is_no_withdrawal = false;
    bites(config(faults), without, ONCE);
}

#[test]
fn replays_without_limit_execute_too_often() {
    let config = Config {
        replay: true,
        response_timeout: true,
        legs_max: 2 + REPLAYS_MAX,
        tries_max: 1,
        ..config(Faults::NONE)
    };
    bites(config, |s| s.handover.replays_are_counted = false, ONCE);
}

#[test]
fn a_late_first_adoption_after_a_refusal_executes_twice() {
    let faults = Faults::FULL;
    bites(config(faults), |s| s.refusals_are_final = false, ONCE);
}

#[test]
fn a_memory_that_ends_with_the_listener_executes_twice() {
    let faults = Faults::CRASH;
    bites(config(faults), |s| s.memory_outlives_listener = false, ONCE);
}

#[test]
fn adoptions_that_are_forgotten_execute_twice() {
    let faults = Faults::CLOSE;
    bites(config(faults), |s| s.adoptions_are_remembered = false, ONCE);
}

#[test]
fn a_begun_response_that_is_replayed_is_spliced() {
    let config = Config { parts: 2, replay: true, legs_max: 2, ..config(Faults::CRASH) };
    let property = "no splice behind a begun response";
    bites(config, |s| s.begun_response_stays = false, property);
}

#[test]
fn a_late_bare_rst_that_is_believed_ends_a_living_connection() {
    let property = "the client sees an end only for a counted reason";
    bites(config(Faults::NONE), |s| s.handover.late_rst_is_told_apart = false, property);
}

#[test]
fn a_bare_rst_that_only_the_client_takes_for_exact_is_counted() {
    let config = config(Faults::CRASH);
    let property = "the client sees an end only for a counted reason";
    bites(config, |s| s.handover.every_rst_is_told_apart = false, property);
}

#[test]
fn an_end_behind_the_clients_own_is_counted() {
    let faults = Faults::CLIENT_CLOSE + Faults::CLOSE;
    let config = Config { legs_max: 2, ..config(faults) };
    let property = "the client sees an end only for a counted reason";
    bites(config, |s| s.handover.half_closed_is_counted = false, property);
}

#[test]
fn a_kept_fin_is_answered() {
    let faults = Faults::CLIENT_CLOSE + Faults::CRASH + Faults::CLOSE;
    let config = Config { requests: 0, ..config(faults) };
    let without = |s: &mut Safeguards| s.handover.kept_fin_is_answered = false;
    bites(config, without, "a counted reason holds");
}

/// Final refusals make it needless to await each of them; the engine does both.
#[test]
fn with_final_refusals_awaiting_each_is_not_needed() {
    let mut config = config(Faults::FULL + Faults::CRASH);
    config.safeguards.handover.each_refusal_is_awaited = false;
    let report = explore_until_any(config);
    assert!(report.counterexamples.is_empty(), "{:?}", report.counterexamples);
}

#[test]
fn a_syn_ack_that_confirms_lets_the_old_owner_go_before_there_is_a_connection() {
    let property = "a confirmed adoption was made";
    let without = |s: &mut Safeguards| s.handover.syn_ack_is_no_answer = false;
    bites(opened(Faults::NONE), without, property);
}

#[test]
fn a_late_refusal_of_a_syn_that_is_believed_executes_twice() {
    let faults = Faults::CRASH;
    let without = |s: &mut Safeguards| s.handover.late_refusal_is_no_end = false;
    bites(opened(faults), without, ONCE);
}

#[test]
fn a_handshake_that_is_given_up_is_taken_for_a_close() {
    let mut config = Config { drain: true, ..opened(Faults::GIVEN_UP) };
    // As with pods that mark their ends: what is not marked is believed.
    config.safeguards.handover.unmarked_end_is_the_legs = false;
    let without = |s: &mut Safeguards| s.handover.given_up_is_no_close = false;
    bites(config, without, "a counted reason holds");
}

#[test]
fn an_unmarked_end_that_is_believed_may_be_that_of_a_process_that_was_started_again() {
    let config = Config { requests: 0, ..opened(Faults::CRASH + Faults::RESTART) };
    let without = |s: &mut Safeguards| s.handover.unmarked_end_is_the_legs = false;
    bites(config, without, "a counted reason holds");
}

#[test]
fn a_request_that_was_read_is_not_let_go_of() {
    let config = config(Faults::RELEASE);
    bites(config, |s| s.releases_are_of_unread = false, ONCE);
}

#[test]
fn a_request_that_is_kept_stays() {
    let config = config(Faults::RELEASE);
    bites(config, |s| s.handover.what_is_kept_stays = false, ONCE);
}
