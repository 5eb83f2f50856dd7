//! What a packet costs: nanoseconds inside the engine for each kind of frame, by the number of
//! flows, the frames that are ready at a time, and the guard.
//!
//! Frames are built anew for each flow, with its next numbers, and lie in warm buffers; flows come
//! in an order without neighbours. `cargo bench -p baton-engine --bench packets [-- FLOWS]`. Below
//! it is what the machine's memory alone takes, see [`memory_alone`].

mod support;

use baton_api::Protocol;
use std::{hint::black_box, time::Instant};
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
    print!("{:<7} {:<6} {:>9} {:>5}", "family", "guard", "flows", "burst");
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
    println!("\nmemory alone: two lines that are read for each of a burst of {BURST_MAX}");
    for flows in FLOWS.into_iter().filter(|n| *n <= most) {
        println!("{:<14} {flows:>9} {:>17.0}", "", memory_alone(flows));
    }
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

/// Nanoseconds for a frame, if all there was to do was to read the line of the index and the first
/// line of the flow, ahead for a burst as the engine does, and to write the latter: what no engine
/// with such a table of flows falls below. The tables have the sizes of the engine's.
fn memory_alone(flows: usize) -> f64 {
    const PER_BUCKET: usize = 4;
    let mut index = vec![Line([0; 8]); flows.div_ceil(PER_BUCKET)];
    let mut table = vec![[Line([0; 8]); 2]; flows];
    let mut order: Vec<usize> = (0..flows).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    rng.shuffle(&mut order);
    // Which bucket a flow is in has nothing to do with its number.
    for flow in 0..flows {
        index[flow / PER_BUCKET].0[flow % PER_BUCKET] = order[flow] as u64;
    }
    let mut places: Vec<(usize, usize)> =
        (0..flows).map(|at| (at / PER_BUCKET, at % PER_BUCKET)).collect();
    rng.shuffle(&mut places);
    let round = |_| {
        let began = Instant::now();
        for burst in places.chunks(BURST_MAX) {
            let mut found = [0; BURST_MAX];
            for ((bucket, at), flow) in burst.iter().zip(&mut found) {
                *flow = index[*bucket].0[*at] as usize;
            }
            for flow in &found[..burst.len()] {
                black_box(table[*flow][0].0[0]);
            }
            for flow in &found[..burst.len()] {
                table[*flow][0].0[0] += 1;
            }
        }
        black_box(&mut table);
        began.elapsed().as_nanos() as f64 / flows as f64
    };
    let mut all: Vec<f64> = (0..(FRAMES / flows).clamp(5, 20_000)).map(round).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
