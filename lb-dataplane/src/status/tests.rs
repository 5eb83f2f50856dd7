//! What people see, compared as a whole, and its width.

use super::{samples::reply, views};
use baton_api::{Adoptability, BackendHealth, DrainState, Micros, StateReply};
use baton_cli::{Style, WIDTH_MAX};

fn status(reply: &StateReply) -> String {
    views::status(reply, Style::default())
}

#[test]
fn status_answers_whether_it_works_and_why_not() {
    let text = status(&reply());
    assert_eq!(
        text,
        "\
It does NOT work as it should:
  - the default router's link-layer address is unknown: `ip neigh show` and `ip
    route show` tell more

version 0.1.0, up 2h 3m, native mode on eth0, generation 5
address 10.9.0.10, leg ports 20000-32767, key epochs 1 2

POLICY  FRONTEND      FLOWS  SINCE START  MOVES  ROLLBACKS  RESCUES  LOST
web     10.9.0.10:80     64           70   1999          3        0     0

Policy web
BACKEND  ENDPOINT     STATE   FLOWS  OUTST.  1ST BYTE    IN  OUT
a        10.9.0.1:80  up         32       4     1.2ms  1000  999
b        10.9.0.1:80  drains     32       4     1.2ms  1000  999
  b cannot adopt: no adopter (is host-shim running there?)
  b drains because its Pod ends or the configuration says so: 32 flows left

Limits near exhaustion:
  60000 of 65536 flows are in use (91 %)

DROPPED BECAUSE      FRAMES
kernel rx ring full       9
no flow                   7
"
    );
    let mut good = reply();
    good.problems.clear();
    let oversize = "io_drops_total{reason=\"rx_oversize\"}".to_owned();
    good.state.counters.insert(oversize, 1);
    let text = status(&good);
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains("ethtool -K INTERFACE tso off"), "{text}");
    assert!(status(&good).starts_with("It works.\n"));
}

/// The sample with a bad night behind it.
fn troubled() -> StateReply {
    let mut reply = reply();
    reply.problems.clear();
    let policy = &mut reply.state.policies[0];
    policy.rescues_total = 12;
    policy.replays_total = 3;
    policy.lost_total = [("fate_unknown".to_owned(), 2)].into();
    policy.pinned = [("server_first".to_owned(), 1), ("upgrade".to_owned(), 4)].into();
    let why = "GET /healthz: 503, expected 200-399".to_owned();
    policy.backends[0].health = BackendHealth::Unhealthy(Some(why));
    policy.backends[0].rescued_total = 12;
    policy.backends[0].stranded = 1;
    policy.backends[1].adoptability = Adoptability::Ready;
    policy.backends[1].drain = Some(DrainState {
        by_command: true,
        left: Micros::from_secs(17),
        moved: 230,
        waiting: [("request in progress".to_owned(), 29), ("pinned: upgrade".to_owned(), 3)].into(),
        ..DrainState::default()
    });
    reply
}

#[test]
fn status_says_what_failed_and_what_became_of_the_flows() {
    let text = status(&troubled());
    assert_eq!(
        text.split_once("\nLimits").map(|(text, _)| text),
        Some(
            "\
It works.
Worth a look:
  - backend `a` of `web` is unhealthy: GET /healthz: 503, expected 200-399: look
    at the pod, or at `health.active` of the policy if it does work
  - policy `web`: 2 connections of clients broken since start (2 fate unknown):
    `onBackendFailure` says which requests may be executed once more

version 0.1.0, up 2h 3m, native mode on eth0, generation 5
address 10.9.0.10, leg ports 20000-32767, key epochs 1 2

POLICY  FRONTEND      FLOWS  SINCE START  MOVES  ROLLBACKS  RESCUES  LOST
web     10.9.0.10:80     64           70   1999          3       12     2
  web: 3 requests sent again; lost 2 fate unknown; pinned 4 upgrade, 1 server
  first

Policy web
BACKEND  ENDPOINT     STATE      FLOWS  OUTST.  1ST BYTE    IN  OUT
a        10.9.0.1:80  unhealthy     32       4     1.2ms  1000  999
b        10.9.0.1:80  drains        32       4     1.2ms  1000  999
  a: 12 flows died here and went on elsewhere, 1 flow without an owner that
  adopts
  b drains by command: 32 flows left (3 pinned: upgrade, 29 request in
  progress); 230 moved, 0 ended, 0 closed; deadline in 17s
"
        )
    );
    let mut panic = troubled();
    panic.state.policies[0].panic = true;
    assert!(status(&panic).contains("  web: panic mode, all backends are used; 3"));
}

#[test]
fn nothing_is_wider_than_a_terminal() {
    let mut wide = troubled();
    for policy in &mut wide.state.policies {
        policy.name = "n".repeat(127);
        policy.flows_total = u64::from(u32::MAX);
        policy.migrations_total = u64::from(u32::MAX);
        policy.panic = true;
        policy.frontends =
            vec!["[fd00:1111:2222:3333:4444:5555:6666:7777]:65535".parse().expect("an endpoint")];
        for backend in &mut policy.backends {
            backend.name = "p".repeat(127);
            backend.endpoint = policy.frontends[0];
            backend.adoptability = Adoptability::PacketRules;
            let why = "a long reason ".repeat(12);
            backend.health = BackendHealth::Unhealthy(Some(why));
            backend.flows = u64::from(u32::MAX);
        }
    }
    wide.state.policies.push(wide.state.policies[0].clone());
    // A name of 127 characters in a sentence cannot be wrapped; in a table it is cut.
    let text = status(&wide);
    for line in text.lines().filter(|line| line.contains(' ')) {
        let longest_word = line.split(' ').map(|w| w.chars().count()).max();
        if longest_word < Some(WIDTH_MAX) {
            assert!(line.chars().count() <= WIDTH_MAX, "{line}");
        }
    }
}
