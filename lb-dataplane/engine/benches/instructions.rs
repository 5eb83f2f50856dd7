//! Forwards packets for counting instructions, see `tools/instructions.sh`: callgrind counts inside
//! `forward_counted`, where the frames of one kind go.

mod support;

use baton_api::Protocol;
use support::{BURST_MAX, Kind, Loaded, sharing::Sharing};

const FLOWS: usize = 1_024;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // `cargo bench` and `cargo test --benches` pass flags of their own: nothing to do then.
    let [kind, guard, family, leg, exchanges] = &args[..] else {
        println!(
            "usage: instructions KIND <none|http1> <4|6> <own|translated|shared|none> <exchanges of {FLOWS} flows>"
        );
        return;
    };
    let exchanges: u32 = exchanges.parse().expect("a number of exchanges");
    if kind == "exchange" {
        return whole_exchanges(leg == "shared", exchanges);
    }
    let protocol = match guard.as_str() {
        "http1" => Protocol::Http1,
        _ => Protocol::None,
    };
    let mut loaded = Loaded::new(family == "6", protocol, FLOWS);
    // So that no table is touched for the first time.
    loaded.exchange(BURST_MAX);
    if leg == "translated" {
        loaded.translate();
        loaded.exchange(BURST_MAX);
    }
    loaded.without_engine = leg == "none";
    loaded.counted = Kind::ALL.into_iter().find(|k| k.name() == kind);
    assert!(loaded.counted.is_some(), "{kind:?} is no kind");
    for _ in 0..exchanges {
        loaded.exchange(BURST_MAX);
    }
    println!("{} packets of each of {} kinds", exchanges as usize * FLOWS, Kind::ALL.len());
}

/// Whole exchanges, each with a move to another pod or none with one.
fn whole_exchanges(shared: bool, exchanges: u32) {
    let mut sharing = Sharing::new(shared, 64);
    let count = exchanges as usize * FLOWS;
    for _ in 0..count {
        sharing.exchange();
    }
    println!("{count} exchanges, {} of them on shared legs", sharing.shared());
}
