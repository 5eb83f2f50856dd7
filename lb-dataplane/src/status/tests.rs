//! What people see, compared as a whole, and its width.

use super::{table::WIDTH_MAX, *};
use baton_api::{
    Algorithm, BackendState, FlowView, Micros, PolicyState, Protocol, State, WorkerState,
};

fn backend(name: &str, adoptable: bool, reason: &str) -> BackendState {
    BackendState {
        name: name.to_owned(),
        endpoint: "10.9.0.1:80".parse().expect("an endpoint"),
        weight: 1,
        draining: name == "b",
        adoptable,
        adoptable_reason: reason.to_owned(),
        flows: 32,
        outstanding: 4,
        first_byte: Micros(1_250),
        requests_total: 10,
        migrations_in_total: 1_000,
        migrations_out_total: 999,
        health: "up".into(),
        stranded: 0,
        rescued_total: 0,
        drain: None,
    }
}

fn reply() -> StateReply {
    StateReply {
        state: State {
            version: "0.1.0".to_owned(),
            generation: 5,
            uptime_seconds: 7_380,
            worker: WorkerState {
                interface: "eth0".to_owned(),
                mode: "native".to_owned(),
                addresses: vec!["10.9.0.10".parse().expect("an address")],
                ports: (20_000, 32_767),
                key_epochs: vec![1, 2],
            },
            policies: vec![PolicyState {
                name: "web".to_owned(),
                frontends: vec!["10.9.0.10:80".parse().expect("an endpoint")],
                algorithm: Algorithm::LeastOutstanding,
                protocol: Protocol::Http1,
                flows: 64,
                flows_total: 70,
                migrations_total: 1_999,
                rollbacks_total: 3,
            rescues_total: 0,
            replays_total: 0,
            lost_total: Default::default(),
            pins_total: Default::default(),
            panic: false,
                backends: vec![
                    backend("a", true, "ready"),
                    backend("b", false, "no answer to a probe: is host-shim running there?"),
                ],
            }],
            counters: [
                ("drops_total{reason=\"no_flow\"}".to_owned(), 7),
                ("drops_total{reason=\"malformed\"}".to_owned(), 0),
                ("io_drops_total{reason=\"kernel_rx_ring_full\"}".to_owned(), 9),
                ("requests_total".to_owned(), 12),
            ]
            .into(),
            tables: [
                ("flows".to_owned(), (60_000, 65_536)),
                ("backends".to_owned(), (2, 256)),
            ]
            .into(),
        },
        problems: vec![
            "the default router's link-layer address is unknown: `ip neigh show` and `ip route show` tell more"
                .to_owned(),
        ],
    }
}

#[test]
fn status_answers_whether_it_works_and_why_not() {
    let text = views::status(&reply());
    assert_eq!(
        text,
        "\
It does NOT work as it should:
  - the default router's link-layer address is unknown: `ip neigh show` and `ip
    route show` tell more

version 0.1.0, up 2h 3m, native mode on eth0, generation 5
address 10.9.0.10, leg ports 20000-32767, key epochs 1 2

POLICY  FRONTEND      FLOWS  SINCE START  MIGRATIONS  ROLLBACKS
web     10.9.0.10:80     64           70        1999          3

BACKEND  ENDPOINT     ADOPTS      FLOWS  OUTST.  1ST BYTE    IN  OUT
a        10.9.0.1:80  yes            32       4     1.2ms  1000  999
b        10.9.0.1:80  no, drains     32       4     1.2ms  1000  999
  b cannot adopt: no answer to a probe: is host-shim running there?

Limits near exhaustion:
  flows: 60000 of 65536 (91 %)

DROPPED BECAUSE      FRAMES
kernel rx ring full       9
no flow                   7
"
    );
    let mut good = reply();
    good.problems.clear();
    let oversize = "io_drops_total{reason=\"rx_oversize\"}".to_owned();
    good.state.counters.insert(oversize, 1);
    let text = views::status(&good);
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(
        words.join(" ").contains("ethtool -K INTERFACE tso off"),
        "{text}"
    );
    assert!(views::status(&good).starts_with("It works.\n"));
}

#[test]
fn nothing_is_wider_than_a_terminal() {
    let mut wide = reply();
    for policy in &mut wide.state.policies {
        policy.name = "n".repeat(127);
        policy.frontends = vec![
            "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535"
                .parse()
                .expect("an endpoint"),
        ];
        for backend in &mut policy.backends {
            backend.name = "p".repeat(127);
            backend.endpoint = policy.frontends[0];
            backend.adoptable_reason = "a long reason ".repeat(12);
        }
    }
    wide.state.policies.push(wide.state.policies[0].clone());
    let flows = vec![FlowView {
        client: "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535"
            .parse()
            .expect("an address"),
        frontend: wide.state.policies[0].frontends[0],
        policy: "n".repeat(127),
        backend: "p".repeat(127),
        port: 65_535,
        state: "AdoptingWithRequest".to_owned(),
        migrations: u32::MAX,
        quiet: Micros(8_000_000_000),
        pinned: None,
    }];
    // A name of 127 characters in a sentence cannot be wrapped; in a table it is cut.
    let text = views::status(&wide) + &views::flows(&flows, true);
    for line in text.lines().filter(|line| line.contains(' ')) {
        let longest_word = line.split(' ').map(|w| w.chars().count()).max();
        if longest_word < Some(WIDTH_MAX) {
            assert!(line.chars().count() <= WIDTH_MAX, "{line}");
        }
    }
}

#[test]
fn questions_become_paths() {
    let flows = |policy: Option<&str>| Topic::Flows {
        policy: policy.map(str::to_owned),
        backend: None,
        limit: 5,
    };
    assert_eq!(path(&Topic::Status), "/v1/state");
    assert_eq!(path(&flows(None)), "/v1/flows?limit=5");
    assert_eq!(
        path(&flows(Some("ns/web & co"))),
        "/v1/flows?limit=5&policy=ns/web%20%26%20co"
    );
}
