//! Where the time of a request goes when its connection stays and when it moves: p50 of each step,
//! in turns.
//!
//! Beside nginx, which cannot be asked, a server of the lab's own notes what it does when
//! ([`PhaseServer`]), behind two policies of its own on the same dataplane. What passes the
//! dataplane is noted in turns of its own, because noting costs time. Owns the turns and the table;
//! measures nothing that [`cost`](crate::cost) does.

use crate::{
    bench::{Figure, Figures, table},
    phase_steps::{DATAPLANE_STEPS, STEPS, Step, Trip, WHOLE, matched, p50_us, tapped},
    scene::{moves, moving},
};
use anyhow::{Result, ensure};
use baton_api::{MigrationMode, Policy, State};
use baton_lab::{Dataplane, Lab, PhaseClient, PhaseServer, Pod, Tap, policy};
use serde::Serialize;

const STAY_PORT: u16 = 8080;
const MOVE_PORT: u16 = 8081;
const STAY_POLICY: &str = "phases-stay";
const MOVE_POLICY: &str = "phases-move";
const SERVER_PORT: u16 = 8080;
/// Requests of one turn: about half a second, enough for a steady median.
const REQUESTS: u64 = 10_000;
/// Requests of a turn in which frames are noted.
const TAPPED_REQUESTS: u64 = Tap::REQUESTS_MAX / 2;
/// Requests without a complete set of notes: the last ones of a turn, or while receive times are
/// being switched on.
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

/// Notes the p50 of each step.
fn note<T>(side: &mut Figures, steps: &[Step<T>], requests: &[T]) {
    for (name, _, length) in steps {
        let mut lengths: Vec<i64> = requests.iter().filter_map(length).collect();
        if let Some(p50) = p50_us(&mut lengths) {
            side.note(name, p50);
        }
    }
}

/// The measurement under way.
#[derive(Debug, Default)]
pub struct PhaseRounds {
    servers: Vec<(String, PhaseServer)>,
    stay: Figures,
    migrate: Figures,
    next: u64,
    requests: u64,
    incomplete: u64,
    moving: u64,
    accepted: u64,
}

impl PhaseRounds {
    /// Starts a server in each pod.
    pub fn start(lab: &Lab) -> Result<Self> {
        let start = |pod: &Pod| Ok((pod.name().to_owned(), pod.phase_server(SERVER_PORT)?));
        Ok(Self { servers: lab.in_each_pod(start)?, ..Self::default() })
    }

    /// The policies that the dataplane needs for it.
    pub fn policies(&self) -> [Policy; 2] {
        let servers = self.servers.iter();
        let servers: Vec<_> = servers.map(|(n, s)| (n.clone(), s.address())).collect();
        [
            (STAY_POLICY, STAY_PORT, MigrationMode::Never),
            (MOVE_POLICY, MOVE_PORT, MigrationMode::Always),
        ]
        .map(|(name, port, mode)| moving(mode, policy(name, port, &servers)))
    }

    /// One turn of each side, then one of each with an eye on the dataplane.
    pub fn measure(&mut self, lab: &Lab, dataplane: &Dataplane) -> Result<()> {
        for (port, moving) in [(STAY_PORT, false), (MOVE_PORT, true)] {
            let trips = self.turn(lab, dataplane, port, REQUESTS)?;
            // On either side a first request is unlike the others: it is the one that a connection
            // begins with.
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
            note(side, STEPS, &like);
            note(side, &[WHOLE], &like);
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
            let side = if moving { &mut self.migrate } else { &mut self.stay };
            note(side, DATAPLANE_STEPS, &seen);
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
            dataplane: DATAPLANE_STEPS.iter().map(|(name, text, _)| self.row(name, text)).collect(),
            requests: self.requests,
            incomplete: self.incomplete,
            accepted_share: self.accepted as f64 / self.moving as f64,
            migrations,
            rollbacks,
        }
    }

    fn row(&self, name: &'static str, text: &'static str) -> Row {
        let (stay_us, move_us) = (self.stay.get(name).cloned(), self.migrate.get(name).cloned());
        let median = |f: &Option<Figure>| f.as_ref().map_or(0.0, |f| f.median);
        Row { name, text, difference_us: median(&move_us) - median(&stay_us), stay_us, move_us }
    }
}

/// Of two tables, 80 columns wide.
const fn columns(heading: &'static str) -> [(&'static str, isize); 4] {
    [(heading, -53), ("staying", 9), ("moving", 9), ("more", 9)]
}

impl Phases {
    /// 80 columns wide.
    pub fn table(&self) -> String {
        let part = |heading, rows: &[Row]| table(&columns(heading), rows.iter().map(Row::cells));
        format!(
            "{}{}\
             Medians of steps need not add up to the median of the whole. An adoption goes\n\
             ahead of its request, so the kernel's part of it begins in the first row; from\n\
             its frame to \"server woken\" it is seen as one. \"In\" to \"out\" holds the wake-up\n\
             and system calls of the dataplane, and the engine's part (`make bench-engine`).\n\
             {:.1} % of the moving side's requests came over a connection just accepted.",
            part("where the time goes: p50 of each step, us", &self.steps),
            part("at the dataplane's interface (in turns of their own)", &self.dataplane),
            self.accepted_share * 100.0
        )
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let number = |f: &Option<Figure>| match f {
            Some(f) => format!("{:.1}", f.median),
            None => "-".into(),
        };
        vec![
            self.text.to_owned(),
            number(&self.stay_us),
            number(&self.move_us),
            format!("{:.1}", self.difference_us),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase_steps::tests::{client, server, tap};
    use std::collections::BTreeMap;

    #[test]
    fn the_table_shows_differences_and_fits_80_columns() {
        let mut rounds = PhaseRounds::default();
        for (side, moved) in [(&mut rounds.stay, false), (&mut rounds.migrate, true)] {
            let trips = matched(&[client(1)], [server(1, moved)].into_iter());
            note(side, STEPS, &trips);
            note(side, &[WHOLE], &trips);
        }
        let trips = matched(&[client(1)], [server(1, true)].into_iter());
        let seen = tapped(&trips, &BTreeMap::from([(1, tap())]), true);
        note(&mut rounds.migrate, DATAPLANE_STEPS, &seen);
        let steps: Vec<_> = STEPS.iter().map(|(n, t, _)| rounds.row(n, t)).collect();
        assert_eq!(steps[1].difference_us, -6.0);
        assert_eq!(steps[2].difference_us, 3.0);
        assert!(steps[2].stay_us.is_none());
        let phases = Phases {
            requests_per_turn: REQUESTS,
            steps,
            dataplane: DATAPLANE_STEPS.iter().map(|(n, t, _)| rounds.row(n, t)).collect(),
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
