//! What the engine of each worker is made with.
//!
//! Owns how ports and table sizes are divided among workers. Makes no engine.

use crate::config::Config;
use baton_api::Limits;
use baton_engine::{Settings, Share};
use baton_packet::Mac;
use baton_xsk::ports_of;
use std::net::IpAddr;

/// Settings for each of so many workers, without what only a port knows and what is random.
pub fn settings(config: &Config, addresses: &[IpAddr], workers: u32) -> Vec<Settings> {
    let each = (0..workers).map(|worker| Settings {
        limits: part_of(config.limits, workers),
        addresses: addresses.to_vec(),
        // An interface may have addresses that come and go, those given here belong to the
        // dataplane.
        legs_from_all: !config.address.is_empty(),
        ports: ports_of(&config.ports.range(), worker, workers),
        share: Share { worker, workers },
        mac: Mac([0; 6]),
        mtu: 0,
        seed: 0,
        hash_keys: (0, 0),
    });
    each.collect()
}

/// What no table is made smaller than for the sake of workers.
const LEAST: u32 = 64;

/// A worker has its part of each table, rounded up; but all have all backends.
fn part_of(limits: Limits, workers: u32) -> Limits {
    let part = |size: u32| size.div_ceil(workers).max(size.min(LEAST));
    Limits {
        flows: part(limits.flows),
        backends: limits.backends,
        closing_legs: part(limits.closing_legs),
        kept_segments: part(limits.kept_segments),
        guarded_flows: part(limits.guarded_flows),
        resp_sessions: part(limits.resp_sessions),
        affinities: part(limits.affinities),
        tracked_pairs: part(limits.tracked_pairs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn workers_have_ports_of_their_own_and_all_tables_together_are_as_large_as_asked_for() {
        let file = "interface: eth0\nkeys: [{epoch: 3, file: k}]\nports: 20000-20999\nworkers: 3\n";
        let config = Config::parse(Path::new("test.yaml"), file).expect("good");
        let all = settings(&config, &["10.0.0.1".parse().expect("an address")], 3);
        let ports: Vec<_> = all.iter().map(|s| s.ports.clone()).collect();
        assert_eq!(ports, [20_000..=20_332, 20_333..=20_665, 20_666..=20_998]);
        let flows: u32 = all.iter().map(|s| s.limits.flows).sum();
        assert!((65_536..65_539).contains(&flows), "{flows}");
        assert!(all.iter().all(|s| s.limits.backends == 256));
    }
}
