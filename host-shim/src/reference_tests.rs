//! The shim's part of `docs/generated/metrics.md`, from what it really exports. `BATON_GENERATE=1`
//! writes it anew.

use crate::{
    metrics,
    pods::When,
    releases::Figures,
    tracking::ConnTracking,
    transfers,
    view::{ReleasesView, State, TransfersView},
};
use baton_adopter::Outcome;
use baton_tidy::metrics::Component;
use baton_tls::{Name, Server};
use std::sync::Arc;

#[test]
fn metric_reference_is_what_the_shim_exports() {
    let figures = Arc::new(Figures::new().expect("figures"));
    let moves = Arc::new(transfers::Figures::new().expect("figures"));
    let state = State {
        version: "0",
        kernel: String::new(),
        uptime_seconds: 0,
        unable: None,
        key_epochs: Vec::new(),
        signing_epoch: None,
        takes_keys: false,
        config_reloads: 0,
        config_refusals: 0,
        attach_failures: 0,
        attached: When::ALL.iter().map(|w| (w.name(), 0)).collect(),
        discovered: None,
        adoption_segments: Outcome::ALL.iter().map(|o| (o.name(), 0)).collect(),
        conn_tracking: Some(ConnTracking {
            entries: 0,
            entries_max: 0,
            invalid_packets: Some(0),
            time_wait_seconds: 0,
            close_seconds: 0,
            be_liberal: false,
            loose: true,
        }),
        releases: ReleasesView { unable: None, decided: figures.decided(), figures: Some(figures) },
        transfers: TransfersView {
            unable: None,
            applications: 0,
            ended: moves.ended(),
            received: moves.received(),
            figures: Some(moves),
        },
        pods: Vec::new(),
    };
    let authority = crate::certificates::Authority::new();
    let material = authority.material(&authority.pair(Name::Shim));
    let tls = Server::new(Name::Shim, Name::Operator, material).expect("a server");
    let component = Component {
        name: "host-shim",
        prefix: "baton_shim_",
        place: "http://POD:9911/metrics of each host-shim",
        open: &["version", "kernel"],
        open_of: &[],
        meanings: &[],
    };
    let text = metrics::text(&state, Some(&tls), &Default::default()).expect("text");
    component.keep(std::str::from_utf8(&text).expect("UTF-8"));
}
