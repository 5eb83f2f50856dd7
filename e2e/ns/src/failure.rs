//! What the tests of failures ask a scene: is a backend back, was everything rescued, and if not,
//! what was going on.

use crate::{Scene, until};
use anyhow::{Context, Result, ensure};
use baton_api::{
    BackendHealth, BackendState, EventCursor, FlowEvent, FlowEvents, PolicyState, State,
};
use std::collections::BTreeSet;

impl Scene {
    /// The figures of one policy.
    pub fn policy(&self, index: usize) -> Result<PolicyState> {
        let mut policies = self.state()?.policies;
        ensure!(index < policies.len(), "there is no policy {index}");
        Ok(policies.swap_remove(index))
    }

    /// The figures of one backend of a policy.
    pub fn backend(&self, policy: usize, name: &str) -> Result<BackendState> {
        let found = self.policy(policy)?.backends.into_iter();
        let mut found = found.filter(|b| b.name == name);
        found.next().with_context(|| format!("no backend {name}"))
    }

    /// Kills the nginx of a pod, counted round, and starts it again; gives the pod's name.
    pub fn kill(&mut self, at: usize) -> Result<String> {
        let at = at % self.nginx.len();
        let nginx = &mut self.nginx[at];
        nginx.process.crash()?;
        nginx.restart()?;
        Ok(nginx.pod().name().to_owned())
    }

    /// Waits until a backend takes flows again: up, adoptable, and nothing waits for its return.
    ///
    /// # Errors
    /// With what is in the way at the deadline.
    pub fn wait_back(&self, policy: usize, name: &str) -> Result<()> {
        let back = until(&format!("{name} back"), || {
            let backend = self.backend(policy, name)?;
            ensure!(
                backend.health == BackendHealth::Up
                    && backend.adoptability.is_ready()
                    && backend.stranded == 0,
                "{}, {}, {} stranded",
                backend.health,
                backend.adoptability,
                backend.stranded
            );
            Ok(())
        });
        self.explained(back)
    }

    /// No flow of a policy ended because of a backend's death, and each rescue is in a backend's
    /// figures.
    ///
    /// # Errors
    /// With the reasons of those that did.
    pub fn nothing_lost(&self, policy: usize) -> Result<PolicyState> {
        let figures = self.policy(policy)?;
        let lost: u64 = figures.lost_total.values().sum();
        let by_backend: u64 = figures.backends.iter().map(|b| b.rescued_total).sum();
        let check = || {
            ensure!(lost == 0, "lost: {:?}", figures.lost_total);
            ensure!(
                by_backend == figures.rescues_total,
                "{by_backend} rescues by backend, {} in all",
                figures.rescues_total
            );
            Ok(())
        };
        self.explained(check())?;
        Ok(figures)
    }

    /// Adds the dataplane's state to an error: what it was doing when it went wrong.
    pub fn explained<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|e| match self.state() {
            Ok(state) => {
                let lost = self.lost().unwrap_or_else(|e| format!("{e:#}"));
                e.context(format!("{}\n{lost}\nwhat went wrong", words(&state)))
            }
            Err(other) => e.context(format!("and the dataplane does not answer: {other:#}")),
        })
    }

    /// What happened last to the flows that were lost, as far as the dataplane remembers it.
    fn lost(&self) -> Result<String> {
        let mut events: Vec<FlowEvent> = Vec::new();
        let mut since = EventCursor::default();
        loop {
            let target = format!("/v1/events?since={since}");
            let told: FlowEvents = serde_json::from_str(&self.dataplane()?.control_text(&target)?)?;
            events.extend(told.events);
            since = told.next;
            if !told.more {
                break;
            }
        }
        let lost: BTreeSet<_> =
            events.iter().filter(|e| e.event == "lost").map(|e| e.client).collect();
        let mut text = format!("lost flows that it remembers: {}", lost.len());
        for client in lost.into_iter().take(LOST_SHOWN) {
            let of_client: Vec<_> = events.iter().filter(|e| e.client == client).collect();
            for event in &of_client[of_client.len().saturating_sub(EVENTS_SHOWN)..] {
                let at = event.at_micros;
                text.push_str(&format!("\n  {at} us {client} {}", event.words()));
            }
        }
        Ok(text)
    }
}

/// Lost flows that a failure shows, and what of each.
const LOST_SHOWN: usize = 8;
const EVENTS_SHOWN: usize = 12;

/// What it was doing at the end, in the output of the test: the harness shows that of a test that
/// fails, and only that.
impl Drop for Scene {
    fn drop(&mut self) {
        let Some(dataplane) = &self.dataplane else {
            return;
        };
        match dataplane.state() {
            Ok(state) => eprintln!("the dataplane's state at the end: {}", words(&state)),
            Err(e) => eprintln!("the dataplane gave no state at the end: {e:#}"),
        }
        eprintln!("its log:\n{}", dataplane.process.tail());
    }
}

/// Policies as JSON, and every counter that is not 0.
fn words(state: &State) -> String {
    let policies = serde_json::to_string_pretty(&state.policies).unwrap_or_default();
    let counters: Vec<_> = state
        .counters
        .iter()
        .filter(|(_, value)| **value > 0)
        .map(|(name, value)| format!("  {name} {value}"))
        .collect();
    format!("policies: {policies}\ncounters:\n{}", counters.join("\n"))
}
