//! `make bench-placement`: what each rule of placing requests does to throughput, latency and
//! moves, over a matrix of servers, connections and conditions.
//!
//! Owns the command line and the order of runs. Each round goes through all cells of the matrix in
//! an order of its own, and each cell runs its rules one after the other, in an order of its own: a
//! ratio compares neighbours. What a run does, `run` says; what is made of all runs, `summary`,
//! `table`, `plot` and `verdict`.

mod cluster;
mod matrix;
mod plot;
mod report;
mod run;
mod running;
mod summary;
mod table;
mod timeline;
mod verdict;

use crate::{bench::keep, preflight, scene};
use anyhow::{Context, Result, bail};
use baton_api::{Migration, MigrationMode};
use baton_lab::{Lab, Shim, allow_files};
use clap::Args;
use cluster::Clusters;
use matrix::{Cell, Scenario, Server};
use report::Report;
use run::Run;
use running::Bench;
use std::{path::PathBuf, time::Duration};

/// The rule that ratios compare with.
const BASE: &str = "Never";
/// The rule that is judged.
const JUDGED: &str = "WhenBetter";
/// All rules, where the dataplane has them.
const MODES: [&str; 5] = ["Never", "Always", "WhenBetter", "LeastRequests", "Prequal"];
/// A rule of its own: `Never`, and the pod that is slow in this cell does not take part.
const WITHOUT_SLOW: &str = "three alone";
/// Without a load balancer: the client itself sends all requests of one place to one pod, or each
/// to the pod with the fewest in flight. What that comes to is the pods' and the machine's.
const DIRECT: [(&str, bool); 2] = [("direct, staying", false), ("direct, fewest", true)];
/// Descriptors of the load's connections and of all else.
const FILES: u64 = 8_192;

/// Arguments of the bench.
#[derive(Clone, Debug, Args)]
pub struct PlacementArguments {
    /// Only these servers
    #[arg(long, value_enum, value_delimiter = ',')]
    servers: Vec<Server>,
    /// Only these conditions
    #[arg(long, value_enum, value_delimiter = ',')]
    scenarios: Vec<Scenario>,
    /// Numbers of connections
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: Vec<u32>,
    /// Only these rules, by the names of `migration.mode`; `Never` is always there
    #[arg(long, value_delimiter = ',')]
    modes: Vec<String>,
    /// A further rule: NAME={"mode":"WhenBetter","gain":"1ms"}, any fields of `migration`
    #[arg(long, value_name = "NAME=JSON")]
    migration: Vec<String>,
    /// Beside the rules, the client goes straight to the pods, if these are identical: staying at
    /// one, and to that with the fewest requests in flight
    #[arg(long)]
    direct: bool,
    /// How often each rule has its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Length of each measurement
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// The order of the runs and the times of requests follow from this number; a random one if not
    /// given
    #[arg(long)]
    seed: Option<u64>,
    /// The whole matrix, which takes hours
    #[arg(long, conflicts_with_all = ["servers", "scenarios", "connections"])]
    full: bool,
    /// Say what would be run and for how long, and end
    #[arg(long)]
    list: bool,
    /// Where placement.json and placement.svg go
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// A rule of a cell.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// What the policy says.
    pub migration: Migration,
    /// The cell's first pod takes no part.
    pub without_first: bool,
    /// There is no dataplane; whether the client sends to the pod with the fewest in flight.
    pub direct: Option<bool>,
}

impl Variant {
    fn of_mode(name: &str, mode: MigrationMode) -> Self {
        Self {
            name: name.to_owned(),
            migration: scene::migration(mode),
            without_first: false,
            direct: None,
        }
    }

    /// The rule of that name, `None` if this dataplane has none.
    fn named(name: &str) -> Option<Self> {
        let mode = serde_json::from_value(name.into()).ok()?;
        Some(Self::of_mode(name, mode))
    }

    fn parse(text: &str) -> Result<Self> {
        let (name, json) =
            text.split_once('=').with_context(|| format!("`{text}` is not NAME=JSON"))?;
        Ok(Self {
            migration: serde_json::from_str(json).with_context(|| format!("migration {name}"))?,
            ..Self::of_mode(name, MigrationMode::Never)
        })
    }
}

/// The rules of each cell.
struct Rules {
    all: Vec<Variant>,
    /// Asked for by name, so every cell has them all.
    chosen: bool,
    direct: bool,
}

impl Rules {
    fn new(arguments: &PlacementArguments) -> Result<Self> {
        let mut all = Vec::new();
        if arguments.modes.is_empty() {
            for name in MODES {
                match Variant::named(name) {
                    Some(variant) => all.push(variant),
                    None => eprintln!("This dataplane has no rule {name}: left out."),
                }
            }
        } else {
            let asked = arguments.modes.iter().map(String::as_str);
            let base = [BASE].into_iter().filter(|b| !arguments.modes.iter().any(|m| m == b));
            for name in base.chain(asked) {
                let variant = Variant::named(name)
                    .with_context(|| format!("there is no rule `{name}` in migration.mode"))?;
                all.push(variant);
            }
        }
        for text in &arguments.migration {
            all.push(Variant::parse(text)?);
        }
        Ok(Self {
            all,
            chosen: !arguments.modes.is_empty() || !arguments.migration.is_empty(),
            direct: arguments.direct,
        })
    }

    fn of(&self, cell: &Cell) -> Vec<Variant> {
        let mut rules: Vec<_> = self
            .all
            .iter()
            .filter(|v| self.chosen || cell.all_rules || [BASE, JUDGED].contains(&v.name.as_str()))
            .cloned()
            .collect();
        if cell.scenario.has_slow_pod() {
            rules.push(Variant {
                without_first: true,
                name: WITHOUT_SLOW.to_owned(),
                ..Variant::of_mode(BASE, MigrationMode::Never)
            });
        }
        if self.direct && cell.scenario == Scenario::Identical {
            rules.extend(DIRECT.map(|(name, fewest)| Variant {
                direct: Some(fewest),
                ..Variant::of_mode(name, MigrationMode::Never)
            }));
        }
        rules
    }
}

/// Runs the bench. `true` if no client saw an error.
pub fn placement(arguments: &PlacementArguments) -> Result<bool> {
    let cells = matrix::cells(arguments);
    if cells.is_empty() {
        bail!("no cell of the matrix is left: {}", matrix::applicable());
    }
    let rules = Rules::new(arguments)?;
    let length = Duration::from_secs(arguments.seconds);
    let runs: Vec<(&Cell, Vec<Variant>)> = cells.iter().map(|c| (c, rules.of(c))).collect();
    let turns = |(cell, rules): &(&Cell, Vec<Variant>)| {
        arguments.rounds * cell.repeats() * u32::try_from(rules.len()).unwrap_or(u32::MAX)
    };
    let count: u32 = runs.iter().map(turns).sum();
    let expected: Duration =
        runs.iter().map(|run| (run.0.length(length) + run::AROUND) * turns(run)).sum();
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    eprintln!(
        "{count} runs in {} cells, about {} minutes; --seed {seed}",
        runs.len(),
        expected.as_secs().div_ceil(60)
    );
    if arguments.list {
        for (cell, variants) in &runs {
            let names: Vec<_> = variants.iter().map(|v| v.name.as_str()).collect();
            println!("{:<48}{}", cell.name(), names.join(", "));
        }
        return Ok(true);
    }
    preflight::check(&cells.iter().flat_map(|c| c.server.programs()).copied().collect::<Vec<_>>())?;
    allow_files(FILES)?;
    let pods = cells.iter().map(|c| c.scenario.pods()).max().unwrap_or(1);
    eprintln!("Setting up {pods} pods around a router, a client and a dataplane …");
    let lab = scene::lab("placement", pods)?;
    let mut clusters = Clusters::start(&lab, &cells)?;
    let shim = lab.shim(&lab.shim_config()?)?;
    let mut bench = Bench { lab: &lab, clusters: &mut clusters, length };
    let mut report = Report::new(arguments, seed);
    for round in 1..=arguments.rounds {
        one_round(&mut bench, &runs, (round, count), &mut report)?;
        // What was measured is kept, whatever ends the rest.
        save(arguments, &mut report)?;
    }
    println!("{}", table::cells(&report));
    println!("{}", table::verdict(&report.verdict));
    println!(
        "Written to {out}/placement.json and {out}/placement.svg",
        out = arguments.out.display()
    );
    end(clusters, shim, lab)?;
    let errors: u64 = report.runs.iter().map(|r| r.errors).sum();
    if errors > 0 {
        eprintln!("baton-demo: {errors} errors");
    }
    Ok(errors == 0)
}

/// All cells in an order of this round's own.
fn one_round(
    bench: &mut Bench<'_>,
    cells: &[(&Cell, Vec<Variant>)],
    (round, count): (u32, u32),
    report: &mut Report,
) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(report.seed.wrapping_add(round.into()));
    let mut order: Vec<_> = cells
        .iter()
        .flat_map(|(cell, rules)| (0..cell.repeats()).map(move |repeat| (cell, rules, repeat)))
        .collect();
    rng.shuffle(&mut order);
    for (cell, rules, repeat) in order {
        let mut rules: Vec<_> = rules.iter().collect();
        rng.shuffle(&mut rules);
        // All rules of a round serve the same requests.
        let arrivals = rng.u64(..);
        for rule in rules {
            let figures = bench
                .run(cell, rule, arrivals)
                .with_context(|| format!("{}, {}", cell.name(), rule.name))?;
            let run = Run {
                round: (round - 1) * cell.repeats() + repeat + 1,
                number: report.runs.len() + 1,
                ..figures
            };
            eprintln!(
                "{:>4}/{count} {:>5} s  {:<36} {}",
                run.number,
                report.start.elapsed().as_secs(),
                cell.name(),
                run.line()
            );
            report.runs.push(run);
        }
    }
    Ok(())
}

fn save(arguments: &PlacementArguments, report: &mut Report) -> Result<()> {
    report.judge();
    keep(&arguments.out, "placement.json", report)?;
    plot::write(&arguments.out.join("placement.svg"), report)
}

fn end(clusters: Clusters, shim: Shim, lab: Lab) -> Result<()> {
    drop(clusters);
    shim.stop()?;
    lab.remove()
}
