//! The explorations that are run, small enough that all of them together take about a minute on one
//! core.
//!
//! Owns the list. Each configuration lets few things go wrong, but those in every way.

use crate::{
    config::{Config, Faults},
    openings,
    wire::Network,
};

fn forever(name: impl Into<String>, faults: Faults) -> Config {
    Config { faults, tries_max: 2, legs_max: 3, ..Config::new(name, Network::Forever) }
}

/// A full queue, a process killed, a connection closed: under whatever else is changed.
fn three_faults(what: &str, change: impl Fn(&mut Config)) -> Vec<Config> {
    let faults = [("full", Faults::FULL), ("killed", Faults::CRASH), ("closed", Faults::CLOSE)];
    let with = |(fault, faults)| {
        let mut config = forever(format!("{what}: {fault}"), faults);
        change(&mut config);
        config
    };
    faults.into_iter().map(with).collect()
}

/// Safety: packets may arrive late, never, or any number of times, and timers end whenever they
/// like.
#[must_use]
pub fn safety() -> Vec<Config> {
    let mut all = vec![
        forever("no fault but the network", Faults::NONE),
        forever("a key is lost", Faults::KEYLESS),
        forever("a pod falls silent", Faults::SILENCE),
        forever("a stale socket and a full queue", Faults::STALE + Faults::FULL),
        forever("a request repeated and a full queue", Faults::CLIENT_REPEAT + Faults::FULL),
        forever("killed and started again", Faults::CRASH + Faults::RESTART),
        forever("two processes killed", Faults::CRASH + Faults::CRASH),
        forever("a request let go of, twice asked", Faults::RELEASE + Faults::RELEASE),
        Config {
            legs_max: 2,
            ..forever("a request let go of, killed", Faults::RELEASE + Faults::CRASH)
        },
        Config {
            replay: true,
            response_timeout: true,
            legs_max: 2,
            ..forever("a request let go of, response timeout", Faults::RELEASE)
        },
        Config {
            legs_max: 2,
            ..forever(
                "a request let go of, the client closes",
                Faults::RELEASE + Faults::CLIENT_CLOSE,
            )
        },
        forever("the client resets", Faults::CLIENT_RESET + Faults::CRASH),
        Config {
            legs_max: 2,
            ..forever("the client closes", Faults::CLIENT_CLOSE + Faults::CLOSE)
        },
        Config {
            fresh: true,
            ..forever("new flow, the client resets", Faults::CLIENT_RESET + Faults::SILENCE)
        },
        Config {
            fresh: true,
            drain: true,
            ..forever("new flow, drain: a stale socket", Faults::STALE)
        },
        Config {
            requests: 0,
            ..forever(
                "no request, the client closes",
                Faults::CLIENT_CLOSE + Faults::CRASH + Faults::CLOSE,
            )
        },
        Config {
            fresh: true,
            requests: 0,
            ..forever(
                "no request on a new flow, the client closes and resets",
                Faults::CLIENT_CLOSE + Faults::CLIENT_RESET,
            )
        },
        forever("the client closes and resets", Faults::CLIENT_CLOSE + Faults::CLIENT_RESET),
    ];
    all.extend(three_faults("one request", |_| {}));
    all.extend(three_faults("new flow, drain", |c| {
        c.fresh = true;
        c.drain = true;
    }));
    all.extend(three_faults("replay", |c| c.replay = true));
    all.extend(three_faults("response timeout", |c| {
        c.replay = true;
        c.response_timeout = true;
        c.legs_max = if c.faults.full > 0 { 3 } else { 2 };
    }));
    all.extend(three_faults("two-part responses", |c| c.parts = 2));
    all.extend(three_faults("two parts, replay", |c| {
        c.parts = 2;
        c.replay = true;
        c.legs_max = 2;
    }));
    all.extend(three_faults("three pods", |c| c.pods = 3));
    all.extend(three_faults("two requests", |c| c.requests = 2));
    all.extend(openings::safety());
    all
}

/// Eventual service: packets arrive once, in any order, but for the one that is lost; timers are
/// longer than a packet's way.
#[must_use]
pub fn service() -> Vec<Config> {
    let lost = Faults::LOSS;
    let counted = |name, faults| Config {
        faults,
        tries_max: 2,
        legs_max: 3,
        ..Config::new(name, Network::Counted)
    };
    let mut all = vec![
        counted("service: a loss", lost),
        counted("service: a loss, a double", lost + Faults::DOUBLE),
        counted("service: a full queue", lost + Faults::FULL),
        counted("service: a stale socket", lost + Faults::STALE),
        counted("service: a key lost", lost + Faults::KEYLESS),
        counted("service: closed", lost + Faults::CLOSE),
        counted("service: silent", Faults::SILENCE),
        counted("service: an early timer", lost + Faults::EARLY),
        counted("service: let go of", lost + Faults::RELEASE + Faults::RELEASE),
        Config { legs_max: 2, ..counted("service: killed, a loss", lost + Faults::CRASH) },
        Config {
            replay: true,
            response_timeout: true,
            legs_max: 2,
            ..counted("service: response timeout, silent", Faults::SILENCE)
        },
        Config { parts: 2, legs_max: 2, ..counted("service: two parts, killed", Faults::CRASH) },
        Config { drain: true, fresh: true, ..counted("service: drain", lost) },
        Config { fresh: true, ..counted("service: new flow, silent", Faults::SILENCE) },
    ];
    all.extend(openings::service());
    all
}
