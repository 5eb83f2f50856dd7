//! What one migration costs a request: p50 at 1 connection with nginx, on a policy where
//! connections stay and on two where they move for every request, by adoption and by translation,
//! in turns, through the same running dataplane.

use crate::{
    RoundArguments,
    bench::{Figures, keep, succeeded, table},
    phases::{PhaseRounds, Phases},
    scene::{self, Baton, moves, moving},
};
use anyhow::{Result, ensure};
use baton_api::{MigrationMode, MoveMethod};
use baton_lab::{Lab, Server, WrkOptions, policy};
use serde::Serialize;
use std::time::Duration;

const STAY_PORT: u16 = 80;
const MOVE_PORT: u16 = 81;
const TRANSLATE_PORT: u16 = 82;
/// Two pods are enough to move between, and keep both warm.
const PODS: usize = 2;

const P50: &str = "p50_us";
const P99: &str = "p99_us";
/// CPU time per request; that of all nginx with kernel work on their behalf.
const DATAPLANE_CPU: &str = "dataplane_cpu_us";
const NGINX_CPU: &str = "nginx_cpu_us";
const ROWS: [(&str, &str); 4] = [
    (P50, "p50 of a request"),
    (P99, "p99 of a request"),
    (DATAPLANE_CPU, "CPU of the dataplane"),
    (NGINX_CPU, "CPU of nginx"),
];

/// What `migration.json` holds.
#[derive(Debug, Serialize)]
struct Cost {
    seconds: u64,
    stay: Side,
    /// By adoption.
    migrate: Side,
    translate: Side,
    /// Median p50 of moving by adoption less that of staying.
    difference_us: f64,
    /// Migrations per request of that side; 1 if each request moved.
    migrations_per_request: f64,
    /// Where the time goes, step by step, with a server that says so.
    phases: Phases,
}

#[derive(Debug, Default, Serialize)]
struct Side {
    #[serde(flatten)]
    figures: Figures,
    requests: u64,
    errors: u64,
    migrations: u64,
    rollbacks: u64,
}

impl Side {
    fn measure(
        &mut self,
        lab: &Lab,
        baton: &Baton,
        nginx: &[Server],
        port: u16,
        length: Duration,
    ) -> Result<()> {
        let cpu = || {
            let servers: Duration = nginx.iter().map(|n| n.process.cpu_time()).sum();
            (baton.dataplane.process.cpu_time(), servers)
        };
        let before = cpu();
        let options = WrkOptions {
            connections: 1,
            ..WrkOptions::new(baton.dataplane.address(port), length)
        };
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

/// Runs the measurement. `true` if there was no error and each request of the moving side moved.
pub fn migration_cost(arguments: &RoundArguments) -> Result<bool> {
    let lab = scene::lab("cost", PODS)?;
    let nginx = scene::nginx(&lab)?;
    let servers = scene::named(&nginx);
    let mut phases = PhaseRounds::start(&lab)?;
    let mut policies = vec![
        moving(MigrationMode::Never, policy("stay", STAY_PORT, &servers)),
        moving(MigrationMode::Always, policy("move", MOVE_PORT, &servers)),
        moving(
            MigrationMode::Always,
            policy("translate", TRANSLATE_PORT, &servers),
        ),
    ];
    policies[1].migration.method = MoveMethod::Adoption;
    policies[2].migration.method = MoveMethod::Translation;
    policies.extend(phases.policies());
    let baton = Baton::start(&lab, &lab.dataplane_config(policies)?)?;
    let length = Duration::from_secs(arguments.seconds);
    let [mut stay, mut migrate, mut translate] = [(); 3].map(|()| Side::default());
    for round in 1..=arguments.rounds {
        stay.measure(&lab, &baton, &nginx, STAY_PORT, length)?;
        migrate.measure(&lab, &baton, &nginx, MOVE_PORT, length)?;
        translate.measure(&lab, &baton, &nginx, TRANSLATE_PORT, length)?;
        phases.measure(&lab, &baton.dataplane)?;
        eprintln!(
            "round {round} of {}: p50 {} us staying, {} us adopted, {} us translated",
            arguments.rounds,
            stay.figures.latest(P50),
            migrate.figures.latest(P50),
            translate.figures.latest(P50),
        );
    }
    let state = baton.dataplane.state()?;
    (stay.migrations, stay.rollbacks) = moves(&state, "stay");
    (migrate.migrations, migrate.rollbacks) = moves(&state, "move");
    (translate.migrations, translate.rollbacks) = moves(&state, "translate");
    let cost = Cost {
        seconds: arguments.seconds,
        difference_us: migrate.figures.median(P50) - stay.figures.median(P50),
        migrations_per_request: migrate.migrations as f64 / migrate.requests as f64,
        phases: phases.finish(&state),
        stay,
        migrate,
        translate,
    };
    let path = keep(&arguments.out, "migration.json", &cost)?;
    println!("{}\n{}", cost.table(), cost.phases.table());
    println!("Written to {}", path.display());
    baton.stop()?;
    lab.remove()?;
    let errors = cost.stay.errors + cost.migrate.errors + cost.translate.errors;
    // The first request of each round's connection has nowhere to move from.
    let moved = |side: &Side| side.migrations + 2 * arguments.rounds >= side.requests;
    let all = moved(&cost.migrate) && moved(&cost.translate);
    let failure = (errors > 0 || !all).then(|| {
        let of = |side: &Side| format!("{} of {} requests", side.migrations, side.requests);
        let (adopted, translated) = (of(&cost.migrate), of(&cost.translate));
        format!("{errors} errors, moved by adoption {adopted}, by translation {translated}")
    });
    Ok(succeeded(failure.as_slice()))
}

impl Cost {
    fn table(&self) -> String {
        let columns = [
            ("median (min to max), us", -24),
            ("staying", 22),
            ("adopted", 22),
            ("more", 7),
            ("translated", 22),
            ("more", 7),
        ];
        let stay = &self.stay.figures;
        let rows = ROWS.map(|(name, text)| {
            let moving = |side: &Side| {
                let more = side.figures.median(name) - stay.median(name);
                [side.figures.text(name), format!("{more:.1}")]
            };
            let moved = [&self.migrate, &self.translate].map(moving);
            let mut row = vec![text.to_owned(), stay.text(name)];
            row.extend(moved.into_iter().flatten());
            row
        });
        let said = |how: &str, m: &Side| {
            format!(
                "{how}: {} requests moved {} times, {} rollbacks, {} errors.\n",
                m.requests, m.migrations, m.rollbacks, m.errors
            )
        };
        format!(
            "\n{}{}{}",
            table(&columns, rows),
            said("By adoption", &self.migrate),
            said("By translation", &self.translate)
        )
    }
}
