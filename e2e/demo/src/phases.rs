//! Where the time of a request goes when its connection stays and when it moves: p50 of each step, in turns.
//!
//! Beside nginx, which cannot be asked, a server of the lab's own notes what it does when ([`PhaseServer`]), behind
//! two policies of its own on the same dataplane. What passes the dataplane is noted in turns of its own, because
//! noting costs time. Owns the turns and the table; measures nothing that [`cost`](crate::cost) does.

use crate::{
    phase_steps::{DATAPLANE_STEPS, STEPS, Step, Trip, WHOLE, matched, p50_us, tapped},
    rounds::Figure,
    run::moves,
};
use anyhow::{Result, ensure};
use baton_api::{MigrationMode, Policy, State};
use baton_lab::{Dataplane, Lab, PhaseClient, PhaseServer, Tap};
use serde::Serialize;
use std::{collections::BTreeMap, net::SocketAddr};

const STAY_PORT: u16 = 8080;
const MOVE_PORT: u16 = 8081;
const STAY_POLICY: &str = "phases-stay";
const MOVE_POLICY: &str = "phases-move";
const SERVER_PORT: u16 = 8080;
/// Requests of one turn: about half a second, enough for a steady median.
const REQUESTS: u64 = 10_000;
/// Requests of a turn in which frames are noted.
const TAPPED_REQUESTS: u64 = Tap::REQUESTS_MAX / 2;
/// Requests without a complete set of notes: the last ones of a turn, or while receive times are being switched on.
const INCOMPLETE_MAX: f64 = 0.05;

/// One row of the breakdown.
#[derive(Debug, Serialize)]
pub struct Row {
    name: &'static str,
    #[serde(skip)]
    text: &'static str,
    /// p50 of the rounds; absent for a step that a request does not have if its connection stays.
    stay_us: Option<Figure>,
    move_us: Option<Figure>,
    difference_us: f64,
}

/// The breakdown, as `migration.json` holds it under `phases`.
#[derive(Debug, Serialize)]
pub struct Phases {
    requests_per_turn: u64,
    /// The steps in their order, then the whole.
    steps: Vec<Row>,
    /// From the node's side, in turns of their own.
    dataplane: Vec<Row>,
    requests: u64,
    /// Requests that lack a note and are left out.
    incomplete: u64,
    /// Of the moving side's requests, those whose connection the server had just accepted.
    accepted_share: f64,
    migrations: u64,
    rollbacks: u64,
}

/// p50 of each step, turn by turn.
#[derive(Debug, Default)]
struct Side(BTreeMap<&'static str, Vec<f64>>);

impl Side {
    fn note<T>(&mut self, steps: &[Step<T>], requests: &[T]) {
        for (name, _, length) in steps {
            let mut lengths: Vec<i64> = requests.iter().filter_map(length).collect();
            if let Some(p50) = p50_us(&mut lengths) {
                self.0.entry(name).or_default().push(p50);
            }
        }
    }

    fn figure(&self, name: &str) -> Option<Figure> {
        self.0.get(name).map(|rounds| Figure::of(rounds))
    }
}

/// The measurement under way.
#[derive(Debug)]
pub struct PhaseRounds {
    servers: Vec<(String, PhaseServer)>,
    stay: Side,
    migrate: Side,
    next: u64,
    requests: u64,
    incomplete: u64,
    moving: u64,
    accepted: u64,
}

impl PhaseRounds {
    /// Starts a server in each pod.
    pub fn start(lab: &Lab) -> Result<Self> {
        let servers = lab
            .pods()
            .iter()
            .map(|pod| Ok((pod.name().to_owned(), pod.phase_server(SERVER_PORT)?)))
            .collect::<Result<_>>()?;
        Ok(Self {
            servers,
            stay: Side::default(),
            migrate: Side::default(),
            next: 0,
            requests: 0,
            incomplete: 0,
            moving: 0,
            accepted: 0,
        })
    }

    /// The policies that the dataplane needs for it, each made by `with` as the others are.
    pub fn policies(
        &self,
        with: impl Fn(&str, u16, MigrationMode, &[(String, SocketAddr)]) -> Policy,
    ) -> [Policy; 2] {
        let servers: Vec<_> = self
            .servers
            .iter()
            .map(|(name, server)| (name.clone(), server.address()))
            .collect();
        [
            with(STAY_POLICY, STAY_PORT, MigrationMode::Never, &servers),
            with(MOVE_POLICY, MOVE_PORT, MigrationMode::Always, &servers),
        ]
    }

    /// One turn of each side, then one of each with an eye on the dataplane.
    pub fn measure(&mut self, lab: &Lab, dataplane: &Dataplane) -> Result<()> {
        for (port, moving) in [(STAY_PORT, false), (MOVE_PORT, true)] {
            let trips = self.turn(lab, dataplane, port, REQUESTS)?;
            // On either side a first request is unlike the others: it is the one that a connection begins with.
            let (accepted, kept): (Vec<Trip>, Vec<Trip>) =
                trips.iter().partition(|t| t.server.accepted.is_some());
            let (side, like) = if moving {
                self.moving += trips.len() as u64;
                self.accepted += accepted.len() as u64;
                (&mut self.migrate, accepted)
            } else {
                (&mut self.stay, kept)
            };
            ensure!(
                like.len() as f64 >= (1.0 - INCOMPLETE_MAX) * REQUESTS as f64,
                "only {} of {REQUESTS} requests on port {port} have notes of every step",
                like.len()
            );
            side.note(STEPS, &like);
            side.note(&[WHOLE], &like);
        }
        for (port, moving) in [(STAY_PORT, false), (MOVE_PORT, true)] {
            let tap = lab.tap_dataplane()?;
            let trips = self.turn(lab, dataplane, port, TAPPED_REQUESTS)?;
            let seen = tapped(&trips, &tap.finish()?, moving);
            ensure!(
                seen.len() as f64 >= (1.0 - INCOMPLETE_MAX) * TAPPED_REQUESTS as f64,
                "only {} of {TAPPED_REQUESTS} requests on port {port} were seen at the dataplane",
                seen.len()
            );
            let side = if moving {
                &mut self.migrate
            } else {
                &mut self.stay
            };
            side.note(DATAPLANE_STEPS, &seen);
        }
        Ok(())
    }

    fn turn(
        &mut self,
        lab: &Lab,
        dataplane: &Dataplane,
        port: u16,
        requests: u64,
    ) -> Result<Vec<Trip>> {
        let numbers = self.next..self.next + requests;
        self.next = numbers.end;
        let mut client = PhaseClient::connect(lab.client().namespace(), dataplane.address(port))?;
        let sent = client.run(numbers)?;
        drop(client);
        let served = self.servers.iter().flat_map(|(_, server)| server.take());
        let trips = matched(&sent, served);
        self.requests += requests;
        self.incomplete += requests - trips.len() as u64;
        Ok(trips)
    }

    /// Ends the servers and gives the breakdown. `state` is the dataplane's at the end.
    pub fn finish(self, state: &State) -> Phases {
        let (migrations, rollbacks) = moves(state, MOVE_POLICY);
        let whole = [WHOLE];
        let steps = STEPS.iter().chain(&whole);
        Phases {
            requests_per_turn: REQUESTS,
            steps: steps.map(|(name, text, _)| self.row(name, text)).collect(),
            dataplane: DATAPLANE_STEPS
                .iter()
                .map(|(name, text, _)| self.row(name, text))
                .collect(),
            requests: self.requests,
            incomplete: self.incomplete,
            accepted_share: self.accepted as f64 / self.moving as f64,
            migrations,
            rollbacks,
        }
    }

    fn row(&self, name: &'static str, text: &'static str) -> Row {
        let (stay_us, move_us) = (self.stay.figure(name), self.migrate.figure(name));
        let median = |f: &Option<Figure>| f.as_ref().map_or(0.0, |f| f.median);
        Row {
            name,
            text,
            difference_us: median(&move_us) - median(&stay_us),
            stay_us,
            move_us,
        }
    }
}

/// Width of the table's first column: three columns of nine make 80.
const TEXT_WIDTH: usize = 53;

impl Phases {
    /// Prints the table, 80 columns wide.
    pub fn print(&self) {
        println!("\n{}", self.table());
    }

    fn table(&self) -> String {
        let mut lines = vec![heading("where the time goes: p50 of each step, us")];
        lines.extend(self.steps.iter().map(Row::line));
        lines.push(heading(
            "at the dataplane's interface (in turns of their own)",
        ));
        lines.extend(self.dataplane.iter().map(Row::line));
        lines.push(
            "Medians of steps need not add up to the median of the whole. An adoption goes\n\
             ahead of its request, so the kernel's part of it begins in the first row; from\n\
             its frame to \"server woken\" it is seen as one. \"In\" to \"out\" holds the wake-up\n\
             and system calls of the dataplane, and the engine's part (`make bench-engine`)."
                .into(),
        );
        lines.push(format!(
            "{:.1} % of the moving side's requests came over a connection just accepted.",
            self.accepted_share * 100.0
        ));
        lines.join("\n")
    }
}

fn heading(text: &str) -> String {
    format!(
        "{text:<TEXT_WIDTH$}{:>9}{:>9}{:>9}",
        "staying", "moving", "more"
    )
}

impl Row {
    fn line(&self) -> String {
        let number = |f: &Option<Figure>| match f {
            Some(f) => format!("{:.1}", f.median),
            None => "-".into(),
        };
        format!(
            "{:<TEXT_WIDTH$}{:>9}{:>9}{:>9.1}",
            self.text,
            number(&self.stay_us),
            number(&self.move_us),
            self.difference_us
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase_steps::tests::{client, server, tap};

    #[test]
    fn the_table_shows_differences_and_fits_80_columns() {
        let mut rounds = PhaseRounds {
            servers: Vec::new(),
            stay: Side::default(),
            migrate: Side::default(),
            next: 0,
            requests: 0,
            incomplete: 0,
            moving: 1,
            accepted: 1,
        };
        for (side, moved) in [(&mut rounds.stay, false), (&mut rounds.migrate, true)] {
            let trips = matched(&[client(1)], [server(1, moved)].into_iter());
            side.note(STEPS, &trips);
            side.note(&[WHOLE], &trips);
        }
        let trips = matched(&[client(1)], [server(1, true)].into_iter());
        let seen = tapped(&trips, &BTreeMap::from([(1, tap())]), true);
        rounds.migrate.note(DATAPLANE_STEPS, &seen);
        let steps: Vec<_> = STEPS.iter().map(|(n, t, _)| rounds.row(n, t)).collect();
        assert_eq!(steps[1].difference_us, -6.0);
        assert_eq!(steps[2].difference_us, 3.0);
        assert!(steps[2].stay_us.is_none());
        let phases = Phases {
            requests_per_turn: REQUESTS,
            steps,
            dataplane: DATAPLANE_STEPS
                .iter()
                .map(|(n, t, _)| rounds.row(n, t))
                .collect(),
            requests: 1,
            incomplete: 0,
            accepted_share: 1.0,
            migrations: 1,
            rollbacks: 0,
        };
        let table = phases.table();
        for line in table.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let accept = table.lines().find(|l| l.contains("accept4")).unwrap();
        assert_eq!(
            accept.split_whitespace().rev().take(3).collect::<Vec<_>>(),
            ["3.0", "3.0", "-"]
        );
        let request = table.lines().find(|l| l.starts_with("request in")).unwrap();
        assert!(request.ends_with("4.0"), "{request}");
    }
}
