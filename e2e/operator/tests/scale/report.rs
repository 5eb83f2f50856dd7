//! The table of what a run took, with a loud word where it is over a limit of the product.

use crate::process::Memory;
use std::time::Duration;

/// Of the operator's memory, at 5,000 policies and 50,000 endpoints.
const MEMORY_LIMIT_BYTES: u64 = 150_000_000;
/// From the operator's start to all dataplanes in sync, at that size.
const START_LIMIT: Duration = Duration::from_secs(5);
/// From a change of an EndpointSlice to the dataplanes, 99 of 100.
const CHANGE_LIMIT: Duration = Duration::from_millis(100);

/// One life of the operator.
pub struct Life {
    /// Which.
    pub what: &'static str,
    /// From its start to all dataplanes in sync.
    pub synchronised: Duration,
    /// From its start until all statuses are written, if some are.
    pub told: Option<Duration>,
    /// When all was in sync.
    pub then: Memory,
    /// At its end.
    pub settled: Memory,
    /// Share of a processor that it takes while nothing but figures change.
    pub processor: f64,
    /// From changes of EndpointSlices to the dataplanes.
    pub changes: Vec<Duration>,
}

/// Prints it all.
pub fn print(title: &str, lives: &[Life]) {
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    println!("\n{title}");
    println!("  {:<44}{}", "", lives.iter().map(|l| format!("{:>16}", l.what)).collect::<String>());
    let row = |name: &str, of: &dyn Fn(&Life) -> String| {
        let cells: String = lives.iter().map(|life| format!("{:>16}", of(life))).collect();
        println!("  {name:<44}{cells}");
    };
    row("start to all dataplanes in sync", &|l| format!("{:.2} s", l.synchronised.as_secs_f64()));
    row("start to all statuses written", &|l| {
        l.told.map_or("-".to_owned(), |told| format!("{:.2} s", told.as_secs_f64()))
    });
    row("memory when in sync", &|l| mb(l.then.resident));
    row("memory settled", &|l| mb(l.settled.resident));
    row("of it not the program's file", &|l| mb(l.settled.own));
    row("memory at its peak", &|l| mb(l.settled.peak));
    row("of it not the program's file", &|l| mb(l.settled.own_peak));
    row("processor while figures change", &|l| format!("{:.0} %", l.processor * 100.0));
    row("change of a slice to dataplanes, median", &|l| millis(at(&l.changes, 50)));
    row("change of a slice to dataplanes, worst", &|l| millis(at(&l.changes, 100)));
    for life in lives {
        let over = |what: &str, is: bool, value: String, limit: String| {
            if is {
                println!(
                    "  OVER THE LIMIT ({}): {what} {value}, expected at most {limit}",
                    life.what
                );
            }
        };
        let peak = life.settled.peak;
        over("memory at its peak", peak > MEMORY_LIMIT_BYTES, mb(peak), mb(MEMORY_LIMIT_BYTES));
        let start = life.synchronised;
        over(
            "start to in sync",
            start > START_LIMIT,
            format!("{start:.2?}"),
            format!("{START_LIMIT:?}"),
        );
        if let Some(worst) = at(&life.changes, 100) {
            over(
                "change to dataplanes",
                worst > CHANGE_LIMIT,
                format!("{worst:.0?}"),
                format!("{CHANGE_LIMIT:?}"),
            );
        }
    }
}

fn at(times: &[Duration], percent: usize) -> Option<Duration> {
    let mut times = times.to_vec();
    times.sort();
    times.get((times.len() * percent).div_ceil(100).checked_sub(1)?).copied()
}

fn millis(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |t| format!("{:.0} ms", t.as_secs_f64() * 1e3))
}
