//! What one migration costs a request: p50 at 1 connection with nginx, on a policy where
//! connections stay and on three where they move for every request, by adoption, by translation and
//! on legs that others had before, in turns, through the same running dataplane.

use crate::{
    RoundArguments,
    bench::{Figures, keep, succeeded, table},
    phases::{PhaseRounds, Phases},
    scene::{self, Baton, moves, moving},
};
use anyhow::{Result, ensure};
use baton_api::{Legs, MigrationMode, MoveMethod};
use baton_lab::{Lab, Server, WrkOptions, policy};
use serde::Serialize;
use std::{net::SocketAddr, time::Duration};

/// The policy of the first way listens here, those of the others behind it.
const FIRST_PORT: u16 = 80;
/// Two pods are enough to move between, and keep both warm.
const PODS: usize = 2;

const P50: &str = "p50_us";
const P99: &str = "p99_us";
/// CPU time per request; that of all nginx with kernel work on their behalf.
const DATAPLANE_CPU: &str = "dataplane_cpu_us";
const NGINX_CPU: &str = "nginx_cpu_us";

/// How the connection is taken over at each request. The names are those of the policies too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Way {
    Staying,
    Adopted,
    Translated,
    Shared,
}

impl Way {
    const ALL: [Self; 4] = [Self::Staying, Self::Adopted, Self::Translated, Self::Shared];

    const fn name(self) -> &'static str {
        match self {
            Self::Staying => "staying",
            Self::Adopted => "adopted",
            Self::Translated => "translated",
            Self::Shared => "shared",
        }
    }

    fn port(self) -> u16 {
        FIRST_PORT + self as u16
    }

    fn policy(self, servers: &[(String, SocketAddr)]) -> baton_api::Policy {
        let (mode, method, legs) = match self {
            Self::Staying => (MigrationMode::Never, MoveMethod::Auto, Legs::Private),
            Self::Adopted => (MigrationMode::Always, MoveMethod::Adoption, Legs::Private),
            Self::Translated => (MigrationMode::Always, MoveMethod::Translation, Legs::Private),
            Self::Shared => (MigrationMode::Always, MoveMethod::Translation, Legs::Shared),
        };
        let mut policy = moving(mode, policy(self.name(), self.port(), servers));
        (policy.migration.method, policy.migration.legs) = (method, legs);
        policy
    }
}

/// What `migration.json` holds.
#[derive(Debug, Serialize)]
struct Cost {
    seconds: u64,
    sides: Vec<Side>,
    /// Requests that went on a leg which another connection, or this one, had before.
    legs_shared: u64,
    /// Where the time goes, step by step, with a server that says so.
    phases: Phases,
}

#[derive(Debug, Serialize)]
struct Side {
    way: Way,
    #[serde(flatten)]
    figures: Figures,
    requests: u64,
    errors: u64,
    migrations: u64,
    rollbacks: u64,
}

impl Side {
    fn new(way: Way) -> Self {
        Self {
            way,
            figures: Figures::default(),
            requests: 0,
            errors: 0,
            migrations: 0,
            rollbacks: 0,
        }
    }

    fn measure(
        &mut self,
        lab: &Lab,
        baton: &Baton,
        nginx: &[Server],
        length: Duration,
    ) -> Result<()> {
        let port = self.way.port();
        let cpu = || {
            let servers: Duration = nginx.iter().map(|n| n.process.cpu_time()).sum();
            (baton.dataplane.process.cpu_time(), servers)
        };
        let before = cpu();
        let options =
            WrkOptions { connections: 1, ..WrkOptions::new(baton.dataplane.address(port), length) };
        let report = lab.client().wrk(&options)?.join()?;
        let after = cpu();
        ensure!(report.requests > 0, "no response on port {port}");
        let each = |d: Duration| d.as_secs_f64() * 1e6 / report.requests as f64;
        self.figures.note(P50, report.latency.p50_us as f64);
        self.figures.note(P99, report.latency.p99_us as f64);
        self.figures.note(DATAPLANE_CPU, each(after.0 - before.0));
        self.figures.note(NGINX_CPU, each(after.1 - before.1));
        self.requests += report.requests;
        self.errors += report.error_count();
        Ok(())
    }
}

/// Runs the measurement. `true` if there was no error and each request of the moving sides moved.
pub fn migration_cost(arguments: &RoundArguments) -> Result<bool> {
    let lab = scene::lab("cost", PODS)?;
    let nginx = scene::nginx(&lab)?;
    let servers = scene::named(&nginx);
    let mut phases = PhaseRounds::start(&lab)?;
    let mut policies = Way::ALL.map(|way| way.policy(&servers)).to_vec();
    policies.extend(phases.policies());
    let baton = Baton::start(&lab, &lab.dataplane_config(policies)?)?;
    let length = Duration::from_secs(arguments.seconds);
    let mut sides: Vec<_> = Way::ALL.into_iter().map(Side::new).collect();
    for round in 1..=arguments.rounds {
        let mut said = Vec::new();
        for side in &mut sides {
            side.measure(&lab, &baton, &nginx, length)?;
            said.push(format!("{} {} us", side.way.name(), side.figures.latest(P50)));
        }
        phases.measure(&lab, &baton.dataplane)?;
        let (rounds, said) = (arguments.rounds, said.join(", "));
        eprintln!("round {round} of {rounds}: p50 {said}");
    }
    let state = baton.dataplane.state()?;
    for side in &mut sides {
        (side.migrations, side.rollbacks) = moves(&state, side.way.name());
    }
    let cost = Cost {
        seconds: arguments.seconds,
        sides,
        legs_shared: state.counters.get("legs_shared_total").copied().unwrap_or(0),
        phases: phases.finish(&state),
    };
    let path = keep(&arguments.out, "migration.json", &cost)?;
    println!("{}\n{}", cost.table(), cost.phases.table());
    println!("Written to {}", path.display());
    baton.stop()?;
    lab.remove()?;
    // The first request of each round's connection has nowhere to move from.
    let stayed = |side: &&Side| {
        side.way != Way::Staying && side.migrations + 2 * arguments.rounds < side.requests
    };
    let wrong = cost.sides.iter().filter(|s| s.errors > 0 || stayed(s));
    let wrong: Vec<_> = wrong.map(Side::said).collect();
    Ok(succeeded(&wrong))
}

impl Side {
    fn said(&self) -> String {
        format!(
            "{}: {} requests moved {} times, {} rollbacks, {} errors.",
            self.way.name(),
            self.requests,
            self.migrations,
            self.rollbacks,
            self.errors
        )
    }
}

impl Cost {
    fn table(&self) -> String {
        let columns = [
            ("median (min to max), us", -24),
            ("p50", 18),
            ("more", 7),
            ("p99", 20),
            ("CPU of dataplane", 22),
            ("CPU of nginx", 22),
        ];
        let staying = self.sides.first().map_or(f64::NAN, |s| s.figures.median(P50));
        let rows = self.sides.iter().map(|side| {
            let figures = &side.figures;
            vec![
                side.way.name().to_owned(),
                figures.text(P50),
                format!("{:.1}", figures.median(P50) - staying),
                figures.text(P99),
                figures.text(DATAPLANE_CPU),
                figures.text(NGINX_CPU),
            ]
        });
        let mut text = format!("\n{}", table(&columns, rows));
        for side in &self.sides {
            text += &(side.said() + "\n");
        }
        text + &format!("{} requests went on a leg that was one before.\n", self.legs_shared)
    }
}
