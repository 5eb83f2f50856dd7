//! Which ports of the dataplanes are behind the Services of policies with a frontend.
//!
//! Owns who has which. A port that a policy has stays its own, also in an operator that starts
//! anew, because the policy's status says it. A new one is chosen by the policy's and the
//! listener's name, so that two operators that see the same objects choose the same.
//!
//! # Decisions
//!
//! - **The status is where ports are remembered.** The Service is not: clients' tools may own it,
//!   and write over it. What a status says is taken only if the class has that port to give and no
//!   older policy has it.

use crate::{
    Class, Index, Key, Listener, Policy, PortRange, Text,
    standing::{choose, snapshot_name},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Whether a class has a port to give out.
fn gives(class: &Class, port: u16) -> bool {
    let in_range = |(first, last): (u16, u16)| (first..=last).contains(&port);
    let mut reserved = class.reserved_ports.iter();
    class.frontend_ports.is_some_and(in_range)
        && !class.leg_ports.is_some_and(in_range)
        && port != class.control_port
        && !reserved.any(|range: &PortRange| range.contains(port))
}

/// The first port of a name: FNV-1a, which is the same in every build.
fn first(name: &str, count: u32) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    name.bytes().fold(2_166_136_261, mix) % count.max(1)
}

/// A free port that all of the classes give, from the one of the name on.
fn free(name: &str, classes: &[&Arc<Class>], taken: &BTreeSet<u16>) -> Option<u16> {
    let (lowest, highest) = classes.first()?.frontend_ports?;
    let count = u32::from(highest.checked_sub(lowest)?) + 1;
    let begin = first(name, count);
    let mut all = (0..count).map(|i| u32::from(lowest) + (begin + i) % count);
    all.find_map(|port| {
        let port = u16::try_from(port).ok()?;
        let all_give = classes.iter().all(|class| gives(class, port));
        (all_give && !taken.contains(&port)).then_some(port)
    })
}

impl Index {
    /// Gives ports to the listeners of policies with a frontend. The policies whose ports are not
    /// what they were are looked at again.
    pub(crate) fn give_ports(&mut self) {
        let mut taken = BTreeSet::new();
        let mut wanting = BTreeMap::new();
        let mut given: BTreeMap<Key, Vec<Option<u16>>> = BTreeMap::new();
        let fronted = self.policies.iter().filter(|(_, r)| {
            let served = !Arc::ptr_eq(&r.policy, &r.served) && r.served.frontend.is_some();
            r.policy.frontend.is_some() || served
        });
        let mut fronted: Vec<_> = fronted.map(|(key, record)| (record.age(key), record)).collect();
        fronted.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (age, record) in &fronted {
            let classes = self.classes_of(&record.policy);
            let had = |port: u16, taken: &BTreeSet<u16>| {
                !classes.is_empty()
                    && classes.iter().all(|class| gives(class, port))
                    && !taken.contains(&port)
            };
            for (at, listener) in record.policy.listeners.iter().enumerate() {
                let kept = listener.allocated.filter(|port| had(*port, &taken));
                if kept.is_none() && record.policy.frontend.is_some() {
                    wanting.insert((age.clone(), at), snapshot_name(&age.key, listener));
                }
                given.entry(age.key.clone()).or_default().push(kept);
                taken.extend(kept);
            }
            // What is served in its place keeps its ports, too.
            let served = record.served.listeners.iter();
            taken.extend(served.filter_map(|listener| listener.allocated));
        }
        // The oldest policies first.
        for ((age, at), name) in wanting {
            let Some(record) = self.policies.get(&age.key) else {
                continue;
            };
            let port = free(&name, &self.classes_of(&record.policy), &taken);
            taken.extend(port);
            if let Some(slot) = given.get_mut(&age.key).and_then(|all| all.get_mut(at)) {
                *slot = port;
            }
        }
        for (key, ports) in given {
            let Some(record) = self.policies.get_mut(&key) else {
                continue;
            };
            let has = record.policy.listeners.iter().map(|l| l.allocated);
            if record.policy.frontend.is_none() || has.eq(ports.iter().copied()) {
                continue;
            }
            let mut policy = Policy::clone(&record.policy);
            for (listener, port) in policy.listeners.iter_mut().zip(ports) {
                listener.allocated = port;
            }
            record.policy = Arc::new(policy);
            self.dirty.examine.insert(key);
        }
    }

    /// A policy that came, with the ports that it has where its status does not say them yet.
    pub(crate) fn with_ports(&self, key: &Key, policy: Arc<Policy>) -> Arc<Policy> {
        let Some(record) = self.policies.get(key).filter(|_| policy.frontend.is_some()) else {
            return policy;
        };
        let known = |name: &Text| {
            let mut all = record.policy.listeners.iter();
            all.find(|l| l.name == *name).and_then(|l| l.allocated)
        };
        let lacks = |l: &Listener| l.allocated.is_none() && known(&l.name).is_some();
        if !policy.listeners.iter().any(lacks) {
            return policy;
        }
        let mut policy = Policy::clone(&policy);
        for listener in policy.listeners.iter_mut().filter(|l| lacks(l)) {
            listener.allocated = known(&listener.name);
        }
        Arc::new(policy)
    }

    fn classes_of(&self, policy: &Policy) -> Vec<&Arc<Class>> {
        let names = choose(policy, &self.classes).unwrap_or_default();
        let classes = names.iter().filter_map(|name| self.classes.get(name));
        classes.map(|class| &class.spec).collect()
    }
}
