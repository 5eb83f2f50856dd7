//! The explorations of moves and rescues by translation: pods that do not adopt, whose legs are
//! opened by a handshake.
//!
//! Owns the list. [`crate::plans`] runs it with its own.

use crate::{
    config::{Config, Faults},
    wire::Network,
};

/// No pod adopts.
const ALL: [bool; 3] = [true; 3];
/// The one adopts that the flow begins at.
const SECOND: [bool; 3] = [false, true, false];
/// All others do.
const FIRST: [bool; 3] = [true, false, false];

fn forever(name: impl Into<String>, opened: [bool; 3], faults: Faults) -> Config {
    Config { opened, faults, tries_max: 2, legs_max: 3, ..Config::new(name, Network::Forever) }
}

/// Safety, as in [`crate::plans::safety`].
#[must_use]
pub fn safety() -> Vec<Config> {
    let full = Faults::FULL;
    let killed = Faults::CRASH;
    let closed = Faults::CLOSE;
    let restarted = Faults::CRASH + Faults::RESTART;
    let given_up = Faults::GIVEN_UP;
    let mut all = vec![
        forever("opened: no fault but the network", ALL, Faults::NONE),
        forever("opened: a full queue", ALL, full),
        forever("opened: killed", ALL, killed),
        forever("opened: closed", ALL, closed),
        forever("opened: killed and started again", ALL, restarted),
        Config {
            requests: 0,
            ..forever(
                "opened: no request, killed and started again, closed",
                ALL,
                restarted + Faults::CLOSE,
            )
        },
        forever("opened: a handshake given up, a full queue", ALL, given_up + Faults::FULL),
        forever("opened: a stale socket", ALL, full + Faults::STALE),
        forever("opened: a pod falls silent", ALL, Faults::SILENCE),
        Config {
            legs_max: 2,
            ..forever("opened: the client closes", ALL, closed + Faults::CLIENT_CLOSE)
        },
        Config {
            requests: 0,
            ..forever(
                "opened: no request, the client closes, killed",
                ALL,
                killed + Faults::CLIENT_CLOSE + Faults::CLOSE,
            )
        },
        forever("opened: the client resets, killed", ALL, killed + Faults::CLIENT_RESET),
        forever("opened: a request repeated, a full queue", ALL, full + Faults::CLIENT_REPEAT),
        forever("opened: a release, killed", ALL, killed + Faults::RELEASE),
        Config {
            legs_max: 2,
            ..forever("opened: two processes killed", ALL, Faults::CRASH + Faults::CRASH)
        },
        forever("opened or adopted: killed", SECOND, killed),
        forever("opened or adopted: full", SECOND, full),
        forever("opened or adopted: closed", SECOND, closed),
        forever("adopted or opened: killed", FIRST, killed),
        forever("adopted or opened: full", FIRST, full),
        Config {
            unlike: SECOND,
            ..forever("opened: a pod that agrees to less, killed", ALL, killed)
        },
    ];
    let three = [("full", full), ("killed", killed), ("closed", closed)];
    let mut each = |what: &str, opened, faults: &[_], change: &dyn Fn(&mut Config)| {
        for (fault, faults) in faults {
            let mut config = forever(format!("{what}: {fault}"), opened, *faults);
            change(&mut config);
            all.push(config);
        }
    };
    let drain = |c: &mut Config| (c.fresh, c.drain) = (true, true);
    each("opened, drain", ALL, &three, &drain);
    each("opened, drain", ALL, &[("given up", given_up)], &drain);
    each("opened, replay", ALL, &three, &|c| c.replay = true);
    each("opened, response timeout", ALL, &three[..2], &|c| {
        (c.replay, c.response_timeout, c.legs_max) = (true, true, 2);
    });
    each("opened, three pods", SECOND, &three, &|c| c.pods = 3);
    each("opened, two requests", ALL, &three[1..], &|c| {
        (c.requests, c.legs_max) = (2, 2);
    });
    each("opened, two parts", ALL, &three[1..2], &|c| {
        (c.parts, c.legs_max) = (2, 2);
    });
    all
}

/// Eventual service, as in [`crate::plans::service`].
#[must_use]
pub fn service() -> Vec<Config> {
    let lost = Faults::LOSS;
    let counted = |name, opened, faults| Config {
        opened,
        faults,
        tries_max: 2,
        legs_max: 3,
        ..Config::new(name, Network::Counted)
    };
    vec![
        counted("service, opened: a loss", ALL, lost),
        counted("service, opened: a loss, a double", ALL, lost + Faults::DOUBLE),
        counted("service, opened: a full queue", ALL, lost + Faults::FULL),
        counted("service, opened: given up", ALL, lost + Faults::GIVEN_UP),
        counted("service, opened: an early timer", ALL, lost + Faults::EARLY),
        counted("service, opened: a stale socket", ALL, lost + Faults::STALE),
        counted("service, opened: silent", ALL, Faults::SILENCE),
        Config { legs_max: 2, ..counted("service, opened: killed", ALL, lost + Faults::CRASH) },
        Config {
            drain: true,
            fresh: true,
            ..counted("service, opened: drain, a full queue", ALL, lost + Faults::FULL)
        },
        Config {
            unlike: SECOND,
            ..counted("service, opened: a pod that agrees to less", ALL, lost)
        },
        Config {
            pods: 3,
            ..counted("service: opened or adopted, a full queue", SECOND, lost + Faults::FULL)
        },
    ]
}
