//! What a packet costs: nanoseconds inside the engine for each kind of frame, by the number of
//! flows, the frames that are ready at a time, and the guard.
//!
//! Frames are built anew for each flow, with its next numbers, and lie in warm buffers; flows come
//! in an order without neighbours. `cargo bench -p baton-engine --bench packets [-- FLOWS]`.

mod support;

use baton_api::Protocol;
use support::{BURST_MAX, Kind, Loaded};

const FLOWS: [usize; 5] = [1, 200, 50_000, 200_000, 1_000_000];
const BURSTS: [usize; 3] = [1, 8, BURST_MAX];
/// Frames of each kind in each figure, at least.
const FRAMES: usize = 200_000;

fn main() {
    let most = std::env::args().filter_map(|a| a.parse().ok()).next();
    let most = most.unwrap_or(usize::MAX);
    if std::env::args().any(|a| a == "--test") {
        return;
    }
    println!("nanoseconds for a frame, median of the rounds");
    print!(
        "{:<7} {:<6} {:>9} {:>5}",
        "family", "guard", "flows", "burst"
    );
    for kind in Kind::ALL {
        print!(" {:>11}", kind.name());
    }
    println!();
    for (family, v6) in [("IPv4", false), ("IPv6", true)] {
        for (guard, protocol) in [("none", Protocol::None), ("http1", Protocol::Http1)] {
            for flows in FLOWS.into_iter().filter(|n| *n <= most) {
                // IPv6 costs the same cache lines; two sizes show that.
                if v6 && !matches!(flows, 200 | 200_000) {
                    continue;
                }
                let mut loaded = Loaded::new(v6, protocol, flows);
                loaded.exchange(BURST_MAX);
                for burst in BURSTS.into_iter().filter(|b| *b == 1 || flows > 1) {
                    let rounds = (FRAMES / flows).clamp(5, 20_000);
                    let took: Vec<_> = (0..rounds).map(|_| loaded.exchange(burst)).collect();
                    print!("{family:<7} {guard:<6} {flows:>9} {burst:>5}");
                    for at in 0..Kind::ALL.len() {
                        let mut all: Vec<f64> = took.iter().map(|t| t[at]).collect();
                        all.sort_by(f64::total_cmp);
                        print!(" {:>11.0}", all[all.len() / 2]);
                    }
                    println!();
                }
            }
        }
    }
}
