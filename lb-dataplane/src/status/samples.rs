//! A state of a dataplane, for tests of what is made of it.

use baton_api::{Adoptability, BackendState, StateReply};
use serde_json::{from_value, json};

/// A backend with a load.
pub fn backend(name: &str, adoptability: Adoptability) -> BackendState {
    let backend = json!({
        "name": name, "endpoint": "10.9.0.1:80", "weight": 1, "draining": name == "b",
        "adoptability": adoptability, "flows": 32, "outstanding": 4,
        "firstByte": "1250us", "requestsTotal": 10, "migrationsInTotal": 1_000,
        "migrationsOutTotal": 999, "health": "up",
    });
    from_value(backend).expect("a backend")
}

/// Two backends, of which the second drains and cannot adopt.
pub fn reply() -> StateReply {
    let backends = [backend("a", Adoptability::Ready), backend("b", Adoptability::NoAdopter)];
    let state = json!({
        "signingEpoch": 1, "version": "0.1.0", "generation": 5, "uptimeSeconds": 7_380,
        "worker": {"interface": "eth0", "mode": "native", "addresses": ["10.9.0.10"],
            "ports": [20_000, 32_767], "keyEpochs": [1, 2]},
        "policies": [{"name": "web", "frontends": ["10.9.0.10:80"], "algorithm": "LeastOutstanding",
            "protocol": "HTTP1", "flows": 64, "flowsTotal": 70, "migrationsTotal": 1_999,
            "rollbacksTotal": 3, "backends": backends}],
        "counters": {
            "drops_total{reason=\"no_flow\"}": 7, "drops_total{reason=\"malformed\"}": 0,
            "io_drops_total{reason=\"kernel_rx_ring_full\"}": 9, "requests_total": 12,
        },
        "tables": {"flows": [60_000, 65_536], "backends": [2, 256]},
        "problems": [
            "the default router's link-layer address is unknown: `ip neigh show` and `ip route show` tell more"
        ],
    });
    from_value(state).expect("a state")
}
