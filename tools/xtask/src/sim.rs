//! `cargo xtask sim`: many worlds on all cores, or one with its trace.
//!
//! Owns seeds, threads, progress and the summary. What a world is and what must hold in it is
//! `baton-sim`'s.

use baton_sim::{Outcome, Stats};
use clap::Args;
use std::{
    io::{IsTerminal, Write},
    ops::Range,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The fixed set of `make sim`.
const FIXED: Range<u64> = 0..10_000;
/// Failing seeds that are printed in full.
const SHOWN_MAX: usize = 20;
/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(2);

/// Runs worlds of clients, the real engine and model pods on bad links, under a virtual clock. Each
/// world is drawn from its seed, so that a seed and a commit are a run. After every step the
/// checkers look at stream contents, owners, ends that clients see, executions, moves where nothing
/// is wrong, the engine's books and its timers. Without options, the fixed set of seeds is run on
/// all cores. The exit code is 1 if anything was wrong.
#[derive(Args)]
pub struct SimArgs {
    /// Run one seed alone.
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "minutes"])]
    seed: Option<u64>,
    /// Print the sequence diagram of the run: who sends what when, what becomes of each frame, and
    /// every change of a flow's state.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Print the scenario of the seed.
    #[arg(long, requires = "seed")]
    scenario: bool,
    /// Run these seeds, the second one excluded.
    #[arg(long, value_name = "FROM..TO", value_parser = range, conflicts_with = "minutes")]
    seeds: Option<Range<u64>>,
    /// Run random seeds for this long.
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Threads; all cores without it.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Stop at the first failing seed.
    #[arg(long)]
    first: bool,
    /// Let the engine commit this deliberate fault, in one seed or in all.
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "NAME", value_parser = crate::mutants::named)]
    pub(crate) mutant: Option<baton_engine::Mutant>,
    /// Look for every deliberate fault of the engine: one after another, each until the first seed
    /// that shows it.
    #[cfg(feature = "mutants")]
    #[arg(long, conflicts_with_all = ["seed", "mutant", "minutes"])]
    mutants: bool,
    /// Print every counter of the engines, summed up.
    #[arg(long)]
    counters: bool,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let parsed = text.split_once("..").and_then(|(from, to)| {
        let range = from.parse().ok()?..to.parse().ok()?;
        (!Range::is_empty(&range)).then_some(range)
    });
    parsed.ok_or_else(|| format!("`{text}` is no range of seeds: expected as 0..1000"))
}

/// Does what was asked for.
pub fn run(args: &SimArgs) -> ExitCode {
    // A panic in a world is a violation and told as such.
    std::panic::set_hook(Box::new(|_| {}));
    #[cfg(feature = "mutants")]
    if args.mutants {
        return crate::mutants::find_all(args.seeds.clone().unwrap_or(FIXED));
    }
    match args.seed {
        Some(seed) => one(seed, args),
        None => many(args),
    }
}

fn one(seed: u64, args: &SimArgs) -> ExitCode {
    if args.scenario {
        println!("{:#?}", baton_sim::scenario::Scenario::draw(seed));
    }
    let outcome = world(seed, args.trace, args);
    if let Some(trace) = &outcome.trace {
        // Whoever reads may have seen enough: a closed pipe is no error.
        let _ = std::io::stdout().write_all(trace.as_bytes());
    }
    if !args.trace {
        print!("{}", outcome.stats.table(false));
    }
    if args.counters {
        print_counters(&outcome.stats);
    }
    match &outcome.violation {
        None => {
            println!("seed {seed}: nothing is wrong");
            ExitCode::SUCCESS
        }
        Some(_) => {
            println!("{}", told(&outcome, args));
            ExitCode::FAILURE
        }
    }
}

fn world(seed: u64, traced: bool, args: &SimArgs) -> Outcome {
    #[cfg(feature = "mutants")]
    if let Some(mutant) = args.mutant {
        return baton_sim::run_with(seed, traced, mutant);
    }
    let _ = args;
    baton_sim::run(seed, traced)
}

/// What runs worlds like these again.
fn command(args: &SimArgs) -> String {
    #[cfg(feature = "mutants")]
    if let Some(mutant) = args.mutant {
        return format!(
            "cargo run --profile ci -p xtask --features mutants -- sim --mutant {mutant:?}"
        );
    }
    let _ = args;
    "cargo xtask sim".into()
}

fn told(outcome: &Outcome, args: &SimArgs) -> String {
    let Some(violation) = &outcome.violation else {
        return String::new();
    };
    format!(
        "seed {}: step {}, {}.{:03} ms: {}\n  replay: {} --seed {} --trace",
        outcome.seed,
        violation.step,
        violation.at_us / 1_000,
        violation.at_us % 1_000,
        violation.what,
        command(args),
        outcome.seed
    )
}

/// What all threads share.
struct Shared {
    next: AtomicU64,
    end: u64,
    /// Random seeds instead of the next ones.
    random: Option<u64>,
    until: Option<Instant>,
    done: AtomicU64,
    running: AtomicUsize,
    first: bool,
    result: Mutex<(Stats, Vec<Outcome>)>,
}

fn many(args: &SimArgs) -> ExitCode {
    let seeds = args.seeds.clone().unwrap_or(FIXED);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores).max(1);
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let begun = Instant::now();
    let minutes = args.minutes.map(|m| Duration::from_secs_f64((m * 60.0).max(0.0)));
    let shared = Shared {
        next: AtomicU64::new(if minutes.is_some() { 0 } else { seeds.start }),
        end: if minutes.is_some() { u64::MAX } else { seeds.end },
        random: minutes.map(|_| clock()),
        until: minutes.map(|m| begun + m),
        done: AtomicU64::new(0),
        running: AtomicUsize::new(threads),
        first: args.first,
        result: Mutex::new((Stats::default(), Vec::new())),
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(&shared, args));
        }
        progress(&shared, begun);
    });
    let (stats, mut failed) = shared.result.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort_by_key(|outcome| outcome.seed);
    print!("{}", stats.table(true));
    if args.counters {
        print_counters(&stats);
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{:.1} s on {threads} threads, {:.1} ms of a thread for each seed",
        seconds,
        seconds * 1e3 * threads as f64 / stats.seeds.max(1) as f64
    );
    for outcome in failed.iter().take(SHOWN_MAX) {
        println!("{}", told(outcome, args));
    }
    if failed.len() > SHOWN_MAX {
        let others: Vec<String> = failed[SHOWN_MAX..].iter().map(|o| o.seed.to_string()).collect();
        println!("and seeds {}", others.join(" "));
    }
    println!("{} of {} seeds failed", failed.len(), stats.seeds);
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_counters(stats: &Stats) {
    for (name, value) in &stats.counters {
        println!("  {name:<50} {value:>14}");
    }
}

fn work(shared: &Shared, args: &SimArgs) {
    let mut sum = Stats::default();
    let mut failed = Vec::new();
    loop {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let late = shared.until.is_some_and(|until| Instant::now() >= until);
        if number >= shared.end || late {
            break;
        }
        // Any odd multiplier visits every seed once.
        let seed = match shared.random {
            Some(base) => number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(base) >> 16,
            None => number,
        };
        let outcome = world(seed, false, args);
        sum.add(&outcome.stats);
        shared.done.fetch_add(1, Ordering::Relaxed);
        if outcome.violation.is_some() {
            eprintln!("{}", told(&outcome, args));
            failed.push(outcome);
            if shared.first {
                shared.next.store(shared.end, Ordering::Relaxed);
            }
        }
    }
    let mut result = shared.result.lock().unwrap_or_else(PoisonError::into_inner);
    result.0.add(&sum);
    result.1.append(&mut failed);
    drop(result);
    shared.running.fetch_sub(1, Ordering::Release);
}

/// Says how far it is, until all threads are done.
fn progress(shared: &Shared, begun: Instant) {
    let mut next = begun + PROGRESS;
    while shared.running.load(Ordering::Acquire) > 0 {
        thread::sleep(Duration::from_millis(20));
        if Instant::now() < next || !std::io::stderr().is_terminal() {
            continue;
        }
        next += PROGRESS;
        let done = shared.done.load(Ordering::Relaxed);
        let rate = done as f64 / begun.elapsed().as_secs_f64();
        eprint!("\r{done} seeds, {rate:.0} a second ");
    }
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
}
