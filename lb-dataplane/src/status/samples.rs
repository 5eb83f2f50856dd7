//! A state of a dataplane, for tests of what is made of it.

use baton_api::{
    Algorithm, BackendState, Micros, PolicyState, Protocol, State, StateReply, WorkerState,
};

/// A backend with a load.
pub fn backend(name: &str, adoptable: bool, reason: &str) -> BackendState {
    BackendState {
        name: name.to_owned(),
        endpoint: "10.9.0.1:80".parse().expect("an endpoint"),
        weight: 1,
        draining: name == "b",
        adoptable,
        adoptable_reason: reason.to_owned(),
        flows: 32,
        pinned: 0,
        outstanding: 4,
        first_byte: Micros(1_250),
        wait: None,
        placement: None,
        requests_total: 10,
        migrations_in_total: 1_000,
        migrations_out_total: 999,
        health: "up".into(),
        stranded: 0,
        rescued_total: 0,
        drain: None,
    }
}

/// Two backends, of which the second drains and cannot adopt.
pub fn reply() -> StateReply {
    StateReply {
        signing_epoch: Some(1),
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
            refused: Vec::new(),
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
            moves_total: Default::default(),
            panic: false,
            placement: None,
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
