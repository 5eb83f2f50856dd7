//! A script of changes, by a seed: policies come, change and go, pods come, are not ready, end and
//! go.
//!
//! Owns what the server has been told, and since when each policy and pod may be missing. Names and
//! addresses are never used again, so what is gone stays gone.

use anyhow::{Context, Result, ensure};
use baton_api::Snapshot;
use baton_operator_tests::{
    admin::Admin,
    class::Class,
    dataplane::Arrival,
    objects::{service, slice},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// Policies at one time, about.
const POLICIES: usize = 8;
/// Pods of a Service at one time, about.
const PODS: usize = 4;
/// The first of the listeners' ports.
const PORT: u16 = 5_000;

/// What stands in a snapshot: a policy, or a backend of it.
type Entry = (String, Option<String>);

/// What the server has been told.
pub struct Script {
    rng: fastrand::Rng,
    namespace: String,
    selector: Value,
    /// By name, which is that of its Service too.
    policies: BTreeMap<String, Live>,
    /// Since when it may be missing.
    removed: BTreeMap<Entry, Instant>,
    policies_made: u16,
    pods_made: u32,
    /// Changes so far.
    pub changes: usize,
}

struct Live {
    manifest: Value,
    /// Address, and what is special about it.
    pods: Vec<(String, Pod)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Pod {
    Ready,
    NotReady,
    Terminating,
}

impl Script {
    pub fn new(seed: u64, namespace: &str, class: &Class) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            namespace: namespace.to_owned(),
            selector: class.selector(),
            policies: BTreeMap::new(),
            removed: BTreeMap::new(),
            policies_made: 0,
            pods_made: 0,
            changes: 0,
        }
    }

    /// One change.
    pub async fn step(&mut self, admin: &Admin) -> Result<()> {
        self.changes += 1;
        let few = self.policies.len() < POLICIES;
        match self.rng.u8(0..10) {
            0..=1 if few => self.create(admin).await,
            0..=1 => self.delete(admin).await,
            2..=3 if self.policies.len() > 1 => self.change(admin).await,
            _ if self.policies.is_empty() => self.create(admin).await,
            _ => self.pods(admin).await,
        }
    }

    async fn create(&mut self, admin: &Admin) -> Result<()> {
        let number = self.policies_made;
        self.policies_made += 1;
        let name = format!("p{number}");
        let mut manifest =
            baton_operator_tests::objects::policy(&self.namespace, &name, &name, PORT + number);
        manifest["spec"]["dataplaneSelector"] = self.selector.clone();
        admin.apply(&service(&self.namespace, &name)).await?;
        admin.apply(&manifest).await?;
        let pods = Vec::new();
        self.policies.insert(name, Live { manifest, pods });
        Ok(())
    }

    fn any(&mut self) -> Result<String> {
        let place = self.rng.usize(0..self.policies.len());
        let name = self.policies.keys().nth(place);
        name.cloned().context("a policy")
    }

    async fn delete(&mut self, admin: &Admin) -> Result<()> {
        let name = self.any()?;
        let live = self.policies.remove(&name).context("a policy")?;
        let now = Instant::now();
        for (address, _) in &live.pods {
            self.removed.insert((self.full(&name), Some(format!("{address}:8080"))), now);
        }
        self.removed.insert((self.full(&name), None), now);
        admin.delete(&live.manifest).await
    }

    async fn change(&mut self, admin: &Admin) -> Result<()> {
        let name = self.any()?;
        let algorithms = ["LeastOutstanding", "Maglev", "Random", "WeightedRoundRobin"];
        let algorithm = algorithms[self.rng.usize(0..algorithms.len())];
        let deadline = format!("{}s", self.rng.u8(1..100));
        let live = self.policies.get_mut(&name).context("a policy")?;
        live.manifest["spec"]["algorithm"] = algorithm.into();
        live.manifest["spec"]["drain"] = json!({ "deadline": deadline });
        admin.apply(&live.manifest).await?;
        Ok(())
    }

    /// One pod comes, goes or becomes another.
    async fn pods(&mut self, admin: &Admin) -> Result<()> {
        let name = self.any()?;
        let number = self.pods_made;
        let (what, any) = (self.rng.u8(0..10), self.rng.usize(..));
        let full = self.full(&name);
        let live = self.policies.get_mut(&name).context("a policy")?;
        let place = any % live.pods.len().max(1);
        match what {
            0..=1 if live.pods.len() > 1 => {
                let (address, _) = live.pods.remove(place);
                let entry = (full, Some(format!("{address}:8080")));
                self.removed.insert(entry, Instant::now());
            }
            2..=5 if !live.pods.is_empty() => {
                live.pods[place].1 = match live.pods[place].1 {
                    Pod::Ready if what < 4 => Pod::NotReady,
                    Pod::Ready | Pod::Terminating => Pod::Terminating,
                    Pod::NotReady => Pod::Ready,
                };
            }
            _ if live.pods.len() <= PODS => {
                self.pods_made += 1;
                let [high, low] = [number / 250, number % 250 + 1];
                live.pods.push((format!("10.7.{high}.{low}"), Pod::Ready));
            }
            _ => {}
        }
        let addresses: Vec<&str> = live.pods.iter().map(|(address, _)| &**address).collect();
        let mut manifest = slice(&self.namespace, &name, &addresses);
        for (endpoint, (_, pod)) in
            manifest["endpoints"].as_array_mut().context("endpoints")?.iter_mut().zip(&live.pods)
        {
            endpoint["conditions"] = json!({
                "ready": *pod == Pod::Ready,
                "serving": *pod != Pod::NotReady,
                "terminating": *pod == Pod::Terminating,
            });
        }
        admin.apply(&manifest).await?;
        Ok(())
    }

    fn full(&self, name: &str) -> String {
        format!("{}/{name}/main", self.namespace)
    }

    /// Whether a snapshot says what the server has been told.
    pub fn is_told(&self, snapshot: &Snapshot) -> bool {
        let mut wanted = BTreeMap::new();
        for (name, live) in &self.policies {
            let spec = &live.manifest["spec"];
            for (address, pod) in &live.pods {
                let serves = *pod != Pod::NotReady;
                let state = (*pod == Pod::Terminating, serves);
                wanted.insert((self.full(name), Some(format!("{address}:8080"))), state);
            }
            let algorithm = spec["algorithm"].as_str().unwrap_or("LeastOutstanding");
            let deadline = spec["drain"]["deadline"].as_str().unwrap_or("25s");
            let text = format!("{} {algorithm} {deadline}", self.full(name));
            wanted.insert((text, None), (false, false));
        }
        let mut found = BTreeMap::new();
        for policy in &snapshot.policies {
            for backend in &policy.backends {
                let entry = (policy.name.clone(), Some(backend.endpoint.to_string()));
                found.insert(entry, (backend.draining, backend.weight > 0));
            }
            let deadline = seconds(policy.drain.deadline);
            let text = format!("{} {:?} {deadline}", policy.name, policy.algorithm);
            found.insert((text, None), (false, false));
        }
        wanted == found
    }

    /// Whether no snapshot dropped a policy or a pod before the server was told to.
    ///
    /// # Errors
    /// With the first that did.
    pub fn nothing_live_was_dropped(&self, history: &[Arrival]) -> Result<()> {
        let mut before = BTreeSet::new();
        for arrival in history {
            let now = entries(&arrival.snapshot);
            for gone in before.difference(&now) {
                let since = self.removed.get(gone);
                ensure!(
                    since.is_some_and(|since| *since < arrival.at),
                    "generation {} drops {gone:?}, which the server was not told to",
                    arrival.snapshot.generation
                );
            }
            before = now;
        }
        Ok(())
    }
}

/// A time as the script writes it, which a snapshot may write in minutes.
fn seconds(time: baton_api::Micros) -> String {
    format!("{}s", time.0 / 1_000_000)
}

fn entries(snapshot: &Snapshot) -> BTreeSet<Entry> {
    let policies = snapshot.policies.iter();
    policies
        .flat_map(|policy| {
            let backends = policy.backends.iter().map(|b| Some(b.endpoint.to_string()));
            let all = backends.chain([None]);
            all.map(|entry| (policy.name.clone(), entry))
        })
        .collect()
}
