//! What stays in force of a policy that cannot be used as it is: its last good object, or what
//! dataplanes had of it when this index began.
//!
//! Owns what dataplanes were found to have, as long as something lacks, and how that becomes a
//! policy again. Decides nothing about good policies. This is the one thing in snapshots that is
//! history: the alternative is to take a policy from live connections because of a slip in an
//! object.
//!
//! # Decisions
//!
//! - **What slipped keeps its last good content**: a policy that an older definition let in, or
//!   whose file is bad, stays in the snapshot as it last was, with live endpoints, and
//!   `Accepted=False` says which generation is served. After a restart it is taken from the
//!   dataplanes, which are read before anything is pushed. So equal objects give equal snapshots
//!   but for slips.

use crate::{
    Family, Key, Listener, Namespace, Policy, PortRef, Reason, Refusal, Text,
    class::ClassRecord,
    standing::{Standing, examine},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// Why something else than the object is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The object was good before, as this generation.
    Good { generation: i64 },
    /// Dataplanes had it.
    Held,
}

/// What a class's dataplanes were found to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub policy: Arc<baton_api::Policy>,
    pub classes: BTreeSet<Text>,
}

/// What is known of it.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    /// Objects may be missing, so that nothing is left out for want of them.
    pub partial: bool,
    /// By name of the snapshot policy.
    pub held: BTreeMap<Text, Held>,
}

/// Whether a refusal is about what the object says: then the object before it is what its admin
/// last got right. The other refusals are about what else there is.
pub(crate) fn is_slip(reason: Reason) -> bool {
    matches!(reason, Reason::Invalid | Reason::InternalError)
}

/// The policy that a snapshot policy is a listener of.
pub(crate) fn owner(name: &str) -> Option<Key> {
    let mut parts = name.split('/');
    let (namespace, policy) = (parts.next()?, parts.next()?);
    let listener = parts.next()?;
    let whole = [namespace, policy, listener].iter().all(|p| !p.is_empty());
    (whole && parts.next().is_none()).then(|| Key::new(namespace, policy))
}

/// The object of a policy of which only dataplanes know.
pub(crate) fn stand_in(key: &Key) -> Policy {
    let problem = "is of no object that is known: correct the manifests that the operator's log names; if the policy is \
                   in none of them, it goes when all are good";
    Policy {
        // As of a manifest.
        uid: key.to_string().into(),
        created: 0,
        generation: 0,
        service: "".into(),
        listeners: Vec::new(),
        template: Err(Refusal { field: "metadata.name".into(), problem: problem.into() }),
        weights: None,
        classes: crate::Labels::default(),
        frontend: None,
        allow_from: None,
        deletion_cost: false,
        drain_cordoned: true,
    }
}

impl Holdings {
    /// What was found of a policy.
    pub fn of<'a>(&'a self, key: &Key) -> impl Iterator<Item = (&'a Text, &'a Held)> + 'a {
        let prefix = format!("{key}/");
        let first: Text = prefix.as_str().into();
        let found = self.held.range(first..);
        found.take_while(move |(name, _)| name.starts_with(&*prefix))
    }

    /// Takes what a dataplane of a class has. What another one had already stays: they have the
    /// same, or the order decides.
    pub fn found(&mut self, class: &Text, policy: Arc<baton_api::Policy>) {
        let name: Text = policy.name.as_str().into();
        let classes = BTreeSet::new();
        let held = self.held.entry(name).or_insert(Held { policy, classes });
        held.classes.insert(class.clone());
    }

    /// The policy that what was found once came from, as far as that can be told, and the classes
    /// that had it. What the object says is taken where it can be read; `policy` is that object.
    pub fn rebuilt(&self, key: &Key, policy: &Policy) -> Option<(Policy, BTreeSet<Text>)> {
        let mut listeners = Vec::new();
        let mut classes = BTreeSet::new();
        let mut template = None;
        for (name, held) in self.of(key) {
            let Some(listener) = listener(name, &held.policy, policy) else {
                continue;
            };
            listeners.push(listener);
            classes.extend(held.classes.iter().cloned());
            template = template.or_else(|| listeners.last()?.own.clone());
        }
        let rebuilt = Policy {
            uid: policy.uid.clone(),
            created: policy.created,
            generation: policy.generation,
            service: policy.service.clone(),
            listeners,
            template: Ok(template?),
            weights: policy.weights.clone(),
            classes: policy.classes.clone(),
            frontend: policy.frontend.clone(),
            // That of the template, which is what dataplanes had.
            allow_from: None,
            deletion_cost: policy.deletion_cost,
            drain_cordoned: policy.drain_cordoned,
        };
        Some((rebuilt, classes))
    }
}

fn listener(name: &str, held: &baton_api::Policy, object: &Policy) -> Option<Listener> {
    let name: Text = name.rsplit('/').next()?.into();
    let port = held.frontends.first()?.port();
    let addresses = held.frontends.iter().map(|f| f.address());
    let own = addresses.clone().all(|address| address.is_unspecified());
    let said = object.listeners.iter().find(|l| l.name == name);
    Some(Listener {
        service_port: said.map_or(PortRef::Number(port), |l| l.service_port.clone()),
        name,
        port: match (&object.frontend, said) {
            (Some(_), Some(said)) => said.port,
            _ => port,
        },
        allocated: own.then_some(port),
        addresses: if own { Vec::new() } else { addresses.collect() },
        own: Some(Arc::new(baton_api::Policy {
            name: String::new(),
            frontends: Vec::new(),
            backends: Vec::new(),
            ..held.clone()
        })),
        protocol_by_port: false,
    })
}

/// The families of the Service that it was for.
pub(crate) fn families(held: &baton_api::Policy) -> Vec<Family> {
    let family = |address: IpAddr| match address {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    };
    let all: BTreeSet<Family> = held.frontends.iter().map(|f| family(f.address())).collect();
    all.into_iter().collect()
}

/// What is served of a policy, and what that is by itself.
pub(crate) struct Look {
    pub served: Arc<Policy>,
    pub kept: Option<Kept>,
    pub problem: Option<(Reason, String)>,
    pub standing: Standing,
    /// It cannot be used as it is, and nothing good is known of it but what dataplanes may have.
    pub is_bare: bool,
}

/// Looks at it, and at what it was when it was good the last time.
pub(crate) fn look(
    key: &Key,
    policy: &Arc<Policy>,
    good: Option<&Arc<Policy>>,
    classes: &BTreeMap<Text, ClassRecord>,
    namespaces: &BTreeMap<Text, Arc<Namespace>>,
    holdings: &Holdings,
) -> Look {
    let examine = |policy: &Policy, only: Option<&BTreeSet<Text>>| {
        examine(key, policy, classes, namespaces, only)
    };
    let itself = |standing, is_bare| Look {
        served: Arc::clone(policy),
        kept: None,
        problem: None,
        standing,
        is_bare,
    };
    let standing = examine(policy, None);
    let problem = match &standing {
        Standing::Unfit { reason, message } if is_slip(*reason) => (*reason, message.clone()),
        _ => return itself(standing, false),
    };
    // What it says may have been good while there was something else, too.
    if let Some(good) = good.filter(|good| *good != policy) {
        let generation = good.generation;
        return Look {
            standing: examine(good, None),
            served: Arc::clone(good),
            kept: Some(Kept::Good { generation }),
            problem: Some(problem),
            is_bare: false,
        };
    }
    let Some((rebuilt, had)) = holdings.rebuilt(key, policy) else {
        return itself(standing, true);
    };
    Look {
        standing: examine(&rebuilt, Some(&had)),
        served: Arc::new(rebuilt),
        kept: Some(Kept::Held),
        problem: Some(problem),
        is_bare: true,
    }
}

/// What of them a dataplane is to be asked for before it is given anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Nothing: all is known.
    Nothing,
    /// What it has of these policies, which cannot be used as they are and of which nothing good is
    /// known.
    These(BTreeSet<Key>),
    /// All that it has, because objects may be missing.
    All,
}

impl Wants {
    /// Whether a snapshot policy of this name is asked for.
    #[must_use]
    pub fn include(&self, name: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::These(keys) => owner(name).is_some_and(|key| keys.contains(&key)),
            Self::All => owner(name).is_some(),
        }
    }
}
