//! The explorations that are run, small enough that all of them together take less than a minute on
//! one core.
//!
//! Owns the list. Each configuration lets few things go wrong, but those in every way.

use crate::{
    config::{Config, Faults},
    openings,
    wire::Network,
};

const NONE: Faults = Config::new("", Network::Forever).faults;

fn forever(name: &'static str, faults: Faults) -> Config {
    Config {
        faults,
        tries_max: 2,
        legs_max: 3,
        ..Config::new(name, Network::Forever)
    }
}

/// A full queue, a process killed, a connection closed: under whatever else is changed.
fn three_faults(names: [&'static str; 3], change: impl Fn(&mut Config)) -> Vec<Config> {
    let faults = [
        Faults { full: 1, ..NONE },
        Faults { crashes: 1, ..NONE },
        Faults { closes: 1, ..NONE },
    ];
    let with = |(name, faults)| {
        let mut config = forever(name, faults);
        change(&mut config);
        config
    };
    names.into_iter().zip(faults).map(with).collect()
}

/// Safety: packets may arrive late, never, or any number of times, and timers end whenever they
/// like.
#[must_use]
pub fn safety() -> Vec<Config> {
    let mut all = vec![
        forever("no fault but the network", NONE),
        forever("a key is lost", Faults { keyless: 1, ..NONE }),
        forever(
            "a pod falls silent",
            Faults {
                silences: 1,
                ..NONE
            },
        ),
        forever(
            "a stale socket and a full queue",
            Faults {
                stale: 1,
                full: 1,
                ..NONE
            },
        ),
        forever(
            "a request repeated and a full queue",
            Faults {
                client_repeats: 1,
                full: 1,
                ..NONE
            },
        ),
        forever(
            "killed and started again",
            Faults {
                crashes: 1,
                restarts: 1,
                ..NONE
            },
        ),
        forever("two processes killed", Faults { crashes: 2, ..NONE }),
        forever(
            "a request let go of, twice asked",
            Faults {
                releases: 2,
                ..NONE
            },
        ),
        Config {
            legs_max: 2,
            ..forever(
                "a request let go of, killed",
                Faults {
                    releases: 1,
                    crashes: 1,
                    ..NONE
                },
            )
        },
        Config {
            replay: true,
            response_timeout: true,
            legs_max: 2,
            ..forever(
                "a request let go of, response timeout",
                Faults {
                    releases: 1,
                    ..NONE
                },
            )
        },
        Config {
            legs_max: 2,
            ..forever(
                "a request let go of, the client closes",
                Faults {
                    releases: 1,
                    client_closes: 1,
                    ..NONE
                },
            )
        },
        forever(
            "the client resets",
            Faults {
                client_resets: 1,
                crashes: 1,
                ..NONE
            },
        ),
        Config {
            legs_max: 2,
            ..forever(
                "the client closes",
                Faults {
                    client_closes: 1,
                    closes: 1,
                    ..NONE
                },
            )
        },
        Config {
            fresh: true,
            ..forever(
                "new flow, the client resets",
                Faults {
                    client_resets: 1,
                    silences: 1,
                    ..NONE
                },
            )
        },
        Config {
            fresh: true,
            drain: true,
            ..forever(
                "new flow, drain: a stale socket",
                Faults { stale: 1, ..NONE },
            )
        },
        Config {
            requests: 0,
            ..forever(
                "no request, the client closes",
                Faults {
                    client_closes: 1,
                    crashes: 1,
                    closes: 1,
                    ..NONE
                },
            )
        },
        Config {
            fresh: true,
            requests: 0,
            ..forever(
                "no request on a new flow, the client closes and resets",
                Faults {
                    client_closes: 1,
                    client_resets: 1,
                    ..NONE
                },
            )
        },
        forever(
            "the client closes and resets",
            Faults {
                client_closes: 1,
                client_resets: 1,
                ..NONE
            },
        ),
    ];
    let names = [
        "one request: full",
        "one request: killed",
        "one request: closed",
    ];
    all.extend(three_faults(names, |_| {}));
    let names = [
        "new flow, drain: full",
        "new flow, drain: killed",
        "new flow, drain: closed",
    ];
    all.extend(three_faults(names, |c| {
        c.fresh = true;
        c.drain = true;
    }));
    let names = ["replay: full", "replay: killed", "replay: closed"];
    all.extend(three_faults(names, |c| c.replay = true));
    let names = [
        "response timeout: full",
        "response timeout: killed",
        "response timeout: closed",
    ];
    all.extend(three_faults(names, |c| {
        c.replay = true;
        c.response_timeout = true;
        c.legs_max = if c.faults.full > 0 { 3 } else { 2 };
    }));
    let names = [
        "two-part responses: full",
        "two-part responses: killed",
        "two-part responses: closed",
    ];
    all.extend(three_faults(names, |c| c.parts = 2));
    let names = [
        "two parts, replay: full",
        "two parts, replay: killed",
        "two parts, replay: closed",
    ];
    all.extend(three_faults(names, |c| {
        c.parts = 2;
        c.replay = true;
        c.legs_max = 2;
    }));
    let names = [
        "three pods: full",
        "three pods: killed",
        "three pods: closed",
    ];
    all.extend(three_faults(names, |c| c.pods = 3));
    let names = [
        "two requests: full",
        "two requests: killed",
        "two requests: closed",
    ];
    all.extend(three_faults(names, |c| c.requests = 2));
    all.extend(openings::safety());
    all
}

/// Eventual service: packets arrive once, in any order, but for the one that is lost; timers are
/// longer than a packet's way.
#[must_use]
pub fn service() -> Vec<Config> {
    let lost = Faults { losses: 1, ..NONE };
    let counted = |name, faults| Config {
        faults,
        tries_max: 2,
        legs_max: 3,
        ..Config::new(name, Network::Counted)
    };
    let mut all = vec![
        counted("service: a loss", lost),
        counted("service: a loss, a double", Faults { doubles: 1, ..lost }),
        counted("service: a full queue", Faults { full: 1, ..lost }),
        counted("service: a stale socket", Faults { stale: 1, ..lost }),
        counted("service: a key lost", Faults { keyless: 1, ..lost }),
        counted("service: closed", Faults { closes: 1, ..lost }),
        counted(
            "service: silent",
            Faults {
                silences: 1,
                ..NONE
            },
        ),
        counted("service: an early timer", Faults { early: 1, ..lost }),
        counted(
            "service: let go of",
            Faults {
                releases: 2,
                ..lost
            },
        ),
        Config {
            legs_max: 2,
            ..counted("service: killed, a loss", Faults { crashes: 1, ..lost })
        },
        Config {
            replay: true,
            response_timeout: true,
            legs_max: 2,
            ..counted(
                "service: response timeout, silent",
                Faults {
                    silences: 1,
                    ..NONE
                },
            )
        },
        Config {
            parts: 2,
            legs_max: 2,
            ..counted("service: two parts, killed", Faults { crashes: 1, ..NONE })
        },
        Config {
            drain: true,
            fresh: true,
            ..counted("service: drain", lost)
        },
        Config {
            fresh: true,
            ..counted(
                "service: new flow, silent",
                Faults {
                    silences: 1,
                    ..NONE
                },
            )
        },
    ];
    all.extend(openings::service());
    all
}
