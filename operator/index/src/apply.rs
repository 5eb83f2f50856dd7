//! Taking changes in: each is stored, and what it touches is marked.
//!
//! Owns the knowledge of what depends on what. Computes nothing that a fold gives back.

use crate::{
    Change, Class, Figures, Index, Key, LIMIT_LISTENERS_REMEMBERED, Node, Pod, Policy, Report,
    Shim, Text,
    class::{ClassRecord, Member},
    index::PolicyRecord,
    kept::{owner, stand_in},
    reach::Leads,
    reports::DataplaneRecord,
    standing::{Standing, snapshot_name},
    world::ServiceRecord,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

impl Index {
    /// Takes a change in. Costs a look-up or a few; the work is done by the next [`Index::fold`].
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Policy(key, Some(policy)) => self.policy(&key, policy),
            Change::Policy(key, None) => self.no_policy(&key),
            Change::Service(key, service) => {
                if self.world.service(&key, service) {
                    self.mark_service(&key);
                    self.mark_front(key);
                }
            }
            Change::Slice(key, slice) => {
                let before = self.leads(&key);
                for service in self.world.slice(&key, slice) {
                    self.mark_service(&service);
                    self.mark_front(service);
                }
                self.mark_led(before, &key);
            }
            Change::Pod(key, pod) => self.pod(&key, pod.as_ref()),
            Change::Node(name, node) => self.node(&name, node.as_deref()),
            Change::Namespace(name, namespace) => {
                let before = self.world.namespaces.get(&name).cloned();
                if self.world.namespace(&name, namespace) {
                    self.examine_namespace(&name);
                    let after = self.world.namespaces.get(&name);
                    let (before, after) = (before.as_deref(), after.map(|n| &**n));
                    let touched = self.clients.namespace(&name, before, after);
                    self.dirty.translate.extend(touched);
                }
            }
            Change::Class(name, Some(class)) => self.a_class(&name, class),
            Change::Class(name, None) => self.no_class(&name),
            Change::Shim(node, shim) => self.shim(&node, shim),
            Change::Excluded(nodes) => self.excluded(nodes),
            Change::Report(pod, report) => self.report(&pod, report),
            Change::Figures(pod, figures) => self.figures(&pod, figures.map(Arc::unwrap_or_clone)),
            Change::Held(class, policies) => self.held(&class, policies),
            Change::Partial(partial) => self.partial(partial),
        }
    }

    /// What a dataplane has. Where nothing else is known of a policy, this stands in for its
    /// object.
    fn held(&mut self, class: &Text, policies: Vec<Arc<baton_api::Policy>>) {
        for policy in policies {
            let Some(key) = owner(&policy.name) else {
                // Of a configuration file.
                continue;
            };
            if !self.policies.contains_key(&key) {
                if !self.holdings.partial {
                    continue;
                }
                let mut record = PolicyRecord::new(Arc::new(stand_in(&key)));
                record.stands_in = true;
                self.policies.insert(key.clone(), Box::new(record));
            }
            self.holdings.found(class, policy);
            self.dirty.examine.insert(key);
        }
    }

    fn partial(&mut self, partial: bool) {
        if std::mem::replace(&mut self.holdings.partial, partial) == partial || partial {
            return;
        }
        let stand_ins = self.policies.iter().filter(|(_, record)| record.stands_in);
        let stand_ins: Vec<Key> = stand_ins.map(|(key, _)| key.clone()).collect();
        for key in stand_ins {
            self.no_policy(&key);
        }
        let held = self.holdings.held.keys().filter_map(|name| owner(name));
        self.dirty.examine.extend(held);
    }

    fn policy(&mut self, key: &Key, policy: Arc<Policy>) {
        let policy = self.with_ports(key, policy);
        if let Some(record) = self.policies.get(key) {
            if record.policy == policy {
                return;
            }
            // Another object of the same name: nothing of the old one is its.
            if record.policy.uid != policy.uid {
                self.no_policy(key);
            }
        }
        let record = self.policies.entry(key.clone());
        let record = record.or_insert_with(|| Box::new(PolicyRecord::new(Arc::clone(&policy))));
        self.dirty.ports |= record.policy.frontend.is_some() || policy.frontend.is_some();
        record.policy = policy;
        record.stands_in = false;
        // What of it is served, and which Service it follows then, is found out by the next fold.
        self.dirty.examine.insert(key.clone());
    }

    /// Has a policy follow the Service of what is served of it.
    pub(crate) fn follow(&mut self, key: &Key) {
        let Some(record) = self.policies.get_mut(key) else {
            return;
        };
        let served = &record.served;
        let follows = served.template.is_ok() && !served.service.is_empty();
        let after = follows.then(|| Key::new(key.namespace.clone(), served.service.clone()));
        let before = std::mem::replace(&mut record.target, after.clone());
        if before != after
            && let Some(service) = before
        {
            self.world.target(&service, &key.name, false);
        }
        if let Some(service) = after {
            self.world.target(&service, &key.name, true);
        }
        let front = record.served.frontend.as_ref();
        let after = front.map(|f| Key::new(key.namespace.clone(), f.service.clone()));
        let before = std::mem::replace(&mut record.front, after.clone());
        if before != after
            && let Some(service) = before
        {
            self.world.front(&service, &key.name, false);
            self.dirty.fronts.insert(service);
        }
        if let Some(service) = after {
            self.world.front(&service, &key.name, true);
        }
        let peers = record.served.allow_from.as_deref();
        self.clients.follow(key, peers);
        self.remember_names(key);
    }

    /// Totals of a listener's snapshot policy belong to its policy from now on, also when the
    /// listener goes.
    fn remember_names(&mut self, key: &Key) {
        let Some(record) = self.policies.get_mut(key) else {
            return;
        };
        let listeners = record.served.listeners.iter();
        let now: BTreeSet<Text> = listeners.map(|l| snapshot_name(key, l).into()).collect();
        let mut forgotten = Vec::new();
        if record.names.union(&now).count() > LIMIT_LISTENERS_REMEMBERED {
            forgotten.extend(record.names.difference(&now).cloned());
            record.names.retain(|name| now.contains(name));
        }
        for name in now {
            if record.names.insert(name.clone()) {
                self.names.insert(name.clone(), key.clone());
                for counted in self.dataplanes.values().filter_map(|d| d.figures.get(&name)) {
                    record.sums.add(&name, None, &counted.figures);
                }
            }
        }
        for name in forgotten {
            self.forget_name(&name);
        }
    }

    fn forget_name(&mut self, name: &Text) {
        self.names.remove(name);
        for dataplane in self.dataplanes.values_mut() {
            dataplane.forget(name);
        }
    }

    fn no_policy(&mut self, key: &Key) {
        let Some(record) = self.policies.remove(key) else {
            return;
        };
        self.claims.set(key, None);
        self.clients.follow(key, None);
        self.bare.remove(key);
        // Others may have waited for its ports.
        self.dirty.ports |= record.policy.frontend.is_some() || record.served.frontend.is_some();
        if let Some(service) = &record.front {
            self.world.front(service, &key.name, false);
            self.dirty.fronts.insert(service.clone());
        }
        if let Some(deadline) = record.drains.deadline() {
            self.deadlines.remove(&(deadline, key.clone()));
        }
        if let Some(service) = &record.target {
            self.world.target(service, &key.name, false);
        }
        // While objects may be missing, this one may only have moved from one file to another.
        if !self.holdings.partial {
            let held: Vec<Text> = self.holdings.of(key).map(|(name, _)| name.clone()).collect();
            for name in held {
                self.holdings.held.remove(&name);
            }
        }
        for class in &record.staged {
            if let Some(class) = self.classes.get_mut(class) {
                class.stage(key, None, Vec::new());
            }
        }
        for name in &record.names {
            self.forget_name(name);
        }
        self.costs.set(key, &record.costs, &BTreeMap::new());
        for set in [&mut self.dirty.examine, &mut self.dirty.translate, &mut self.dirty.judge] {
            set.remove(key);
        }
    }

    fn mark_service(&mut self, service: &Key) {
        let Some(record) = self.world.services.get(service) else {
            return;
        };
        let policies = record.policies.iter();
        let keys = policies.map(|name| Key::new(service.namespace.clone(), name.clone()));
        self.dirty.translate.extend(keys);
    }

    /// Has a Service looked at again if it is in front of dataplanes, or has been.
    fn mark_front(&mut self, service: Key) {
        let record = self.world.services.get(&service);
        if record.is_some_and(ServiceRecord::is_front) {
            self.dirty.fronts.insert(service);
        }
    }

    /// Has the policies of classes looked at again to whose dataplanes a slice leads in another way
    /// than before.
    fn mark_led(&mut self, before: Option<Leads>, slice: &Key) {
        let after = self.leads(slice);
        if before == after {
            return;
        }
        let classes = [before, after].into_iter().flatten();
        for class in classes.flat_map(|(classes, _)| classes) {
            self.judge_class(&class);
        }
    }

    fn judge_service(&mut self, service: &Key) {
        let Some(record) = self.world.services.get(service) else {
            return;
        };
        let policies = record.policies.iter();
        let keys = policies.map(|name| Key::new(service.namespace.clone(), name.clone()));
        self.dirty.judge.extend(keys);
    }

    fn pod(&mut self, key: &Key, pod: Option<&Arc<Pod>>) {
        let Some(before) = self.world.pod(key, pod.cloned()) else {
            return;
        };
        let as_backend = |pod: &Arc<Pod>| {
            let addresses = (pod.address, pod.second_address);
            let marks = (pod.labels.clone(), pod.annotations.clone());
            (pod.deleting, addresses, marks, pod.node.clone())
        };
        if before.as_ref().map(as_backend) != pod.map(as_backend) {
            for service in self.world.services_of_pod(key) {
                self.mark_service(&service);
            }
        }
        let namespace = self.world.namespaces.get(&key.namespace);
        let (was, is) = (before.as_deref(), pod.map(|pod| &**pod));
        let touched = self.clients.pod(key, was, is, namespace.map(|n| &**n));
        self.dirty.translate.extend(touched);
        if before.is_none() || pod.is_none() {
            self.costs.renewed(key);
        }
        if let Some(cost) = pod.and_then(|pod| pod.cost) {
            self.costs.found(key, cost);
        }
        self.join(key);
        if let Some(class) = self.class_of.get(key).cloned() {
            let as_dataplane = |pod: &Arc<Pod>| {
                let is = (pod.ready, pod.deleting, pod.host_network);
                (is, pod.node.clone())
            };
            if before.as_ref().map(as_dataplane) != pod.map(as_dataplane) {
                self.judge_class(&class);
            }
        }
        if pod.is_none() {
            self.forget_dataplane(key);
        }
    }

    /// Puts a Pod into the class that it belongs to.
    fn join(&mut self, key: &Key) {
        let pod = self.world.live_pod(key);
        let fits = |class: &&Arc<Class>, pod: &Pod| {
            class.namespace == key.namespace
                && !class.selector.is_empty()
                && pod.labels.include(&class.selector)
        };
        let all = self.classes.iter().map(|(name, record)| (name, &record.spec));
        let class = pod.and_then(|pod| {
            let fitting = all.filter(|(_, class)| fits(class, pod));
            fitting.min_by_key(|(name, class)| (class.created, *name))
        });
        let class = class.map(|(name, _)| name.clone());
        let report = self.dataplanes.get(key).and_then(|d| d.report.as_ref());
        let member = pod.and_then(|pod| Member::of(pod, report.map(|r| &**r)));
        let before = match &class {
            Some(name) => self.class_of.insert(key.clone(), name.clone()),
            None => self.class_of.remove(key),
        };
        // With whether other dataplanes are to be pushed to.
        let mut touched = BTreeMap::new();
        if before != class
            && let Some(name) = before
            && let Some(record) = self.classes.get_mut(&name)
        {
            record.members.remove(key);
            touched.insert(name, true);
        }
        if let Some(name) = class
            && let Some(record) = self.classes.get_mut(&name)
        {
            let is = member.as_ref().map(|member| member.address);
            let was = match &member {
                Some(member) => record.members.insert(key.clone(), member.clone()),
                None => record.members.remove(key),
            };
            if was != member {
                touched.insert(name, was.map(|was| was.address) != is);
            }
        }
        for (name, moved) in touched {
            if let Some(record) = self.classes.get_mut(&name) {
                record.members_changed |= moved;
            }
            self.judge_class(&name);
            // What an explicit address is depends on whose it is.
            self.examine_class(&name, |policy| {
                policy.listeners.iter().any(|l| !l.addresses.is_empty())
            });
        }
    }

    /// Has the policies of a namespace looked at again.
    fn examine_namespace(&mut self, namespace: &Text) {
        let first = Key::new(namespace.clone(), "");
        let policies = self.policies.range(first..).map(|(key, _)| key);
        let policies = policies.take_while(|key| key.namespace == *namespace);
        self.dirty.examine.extend(policies.cloned());
    }

    fn judge_class(&mut self, class: &Text) {
        if let Some(record) = self.classes.get(class) {
            self.dirty.judge.extend(record.policies().cloned());
        }
        self.dirty.classes.insert(class.clone());
    }

    /// Has the policies of a class looked at again that are of that kind, by what is served of them
    /// or by what they say, where that is not served.
    fn examine_class(&mut self, class: &Text, kind: impl Fn(&Policy) -> bool) {
        let spec = self.classes.get(class).map(|record| &record.spec);
        for (key, record) in &self.policies {
            let is = |policy: &Policy| {
                spec.is_some_and(|spec| match policy.classes.is_empty() {
                    true => spec.default,
                    false => spec.labels.include(&policy.classes),
                })
            };
            let was = match &record.standing {
                Some(Standing::Fit { classes, .. }) => classes.contains(class),
                // What made it unfit may be this class.
                Some(Standing::Unfit { .. }) | None => true,
            };
            let served = (was || is(&record.served)) && kind(&record.served);
            // What made it a slip may be this class, too.
            let said = record.problem.is_some() && kind(&record.policy);
            if served || said {
                self.dirty.examine.insert(key.clone());
            }
        }
    }

    fn node(&mut self, name: &Text, node: Option<&Node>) {
        let Some(before) = self.world.node(name, node.cloned()) else {
            return;
        };
        let cordoned = |node: Option<&Node>| node.is_some_and(|n| n.cordoned);
        let zone = |node: Option<&Node>| node.and_then(|n| n.zone.clone());
        let before = before.as_ref();
        if before.is_some() != node.is_some() {
            for service in &self.world.own_node {
                self.dirty.fronts.insert(service.clone());
            }
        }
        for service in self.world.services_of_node(name) {
            if cordoned(before) == cordoned(node) {
                self.judge_service(&service);
            } else {
                self.mark_service(&service);
            }
            if zone(before) != zone(node) {
                self.mark_front(service);
            }
        }
    }

    fn shim(&mut self, node: &Text, shim: Option<Arc<Shim>>) {
        let (news, first_or_last) = self.world.shim(node, shim);
        if first_or_last {
            self.dirty.judge.extend(self.policies.keys().cloned());
        } else if news {
            for service in self.world.services_of_node(node) {
                self.judge_service(&service);
            }
        }
    }

    /// All policies are looked at: whose Pods are there, slices need not say.
    fn excluded(&mut self, nodes: BTreeSet<Text>) {
        if self.world.excluded != nodes {
            self.world.excluded = nodes;
            self.dirty.translate.extend(self.policies.keys().cloned());
        }
    }

    fn a_class(&mut self, name: &Text, class: Arc<Class>) {
        let Some(record) = self.classes.get_mut(name) else {
            let namespace = class.namespace.clone();
            self.classes.insert(name.clone(), ClassRecord::new(class));
            self.dirty.classes.insert(name.clone());
            self.dirty.ports = true;
            self.join_namespaces([namespace]);
            self.examine_class(name, |_| true);
            return;
        };
        let before = Arc::clone(&record.spec);
        if before == class {
            return;
        }
        record.respecify(Arc::clone(&class));
        self.dirty.classes.insert(name.clone());
        let members = |c: &Class| (c.namespace.clone(), c.selector.clone(), c.created);
        if members(&before) != members(&class) {
            self.join_namespaces([before.namespace.clone(), class.namespace.clone()]);
        }
        let policies = |c: &Class| (c.default, c.labels.clone());
        let ports = |c: &Class| {
            let given = (c.leg_ports, c.frontend_ports);
            (given, c.control_port, c.reserved_ports.clone())
        };
        if policies(&before) != policies(&class)
            || ports(&before) != ports(&class)
            || before.allowed != class.allowed
        {
            self.dirty.ports = true;
            self.examine_class(name, |_| true);
        }
        self.judge_class(name);
    }

    fn no_class(&mut self, name: &Text) {
        // First those that it had, while they can be found.
        self.examine_class(name, |_| true);
        let Some(record) = self.classes.remove(name) else {
            return;
        };
        // Nobody was told of it if it was never folded.
        if record.revision > 0 {
            self.dirty.gone.insert(name.clone());
        }
        self.dirty.classes.remove(name);
        self.join_namespaces([record.spec.namespace.clone()]);
    }

    fn join_namespaces(&mut self, namespaces: impl IntoIterator<Item = Text>) {
        let namespaces: BTreeSet<Text> = namespaces.into_iter().collect();
        for namespace in namespaces {
            let pods: Vec<Key> =
                self.world.pods_in(&namespace).map(|(key, _)| key.clone()).collect();
            for pod in pods {
                self.join(&pod);
            }
        }
    }

    fn report(&mut self, pod: &Key, report: Option<Arc<Report>>) {
        let record = self.dataplanes.entry(pod.clone()).or_default();
        if record.report == report {
            self.forget_dataplane(pod);
            return;
        }
        let said = |record: &DataplaneRecord| {
            let refused = record.refusal().map(|(revision, words)| (revision, words.clone()));
            (record.acknowledged(), refused, record.unreachable().cloned())
        };
        let addresses = |record: &DataplaneRecord| {
            let report = record.report.as_ref();
            report.map(|r| r.addresses.clone()).unwrap_or_default()
        };
        let (before, had) = (said(record), addresses(record));
        let old = std::mem::replace(&mut record.report, report);
        let (after, has) = (said(record), addresses(record));
        let refused = |of: Option<&Arc<Report>>| of.map(|r| r.refused_policies.clone());
        let refused = [refused(old.as_ref()), refused(record.report.as_ref())];
        let [before_names, after_names] = refused.map(Option::unwrap_or_default);
        if before_names != after_names {
            let changed = before_names.keys().chain(after_names.keys());
            let changed = changed.filter(|n| before_names.get(*n) != after_names.get(*n));
            let keys = changed.filter_map(|name| self.names.get(name));
            self.dirty.judge.extend(keys.cloned());
        }
        if let Some(name) = self.class_of.get(pod)
            && let Some(class) = self.classes.get(name)
        {
            self.dirty.classes.insert(name.clone());
            let judge = &mut self.dirty.judge;
            if before.2 != after.2 {
                judge.extend(class.policies().cloned());
            } else {
                let (low, high) = (before.0.min(after.0), before.0.max(after.0));
                let high = if before.1 == after.1 { high } else { u64::MAX };
                judge.extend(class.changed_between(low, high).cloned());
            }
        }
        if had != has {
            self.join(pod);
        }
        self.forget_dataplane(pod);
    }

    fn figures(&mut self, pod: &Key, figures: Option<Figures>) {
        let record = self.dataplanes.entry(pod.clone()).or_default();
        let (names, policies) = (&self.names, &mut self.policies);
        let changed = record.count(
            figures,
            |name| names.contains_key(name),
            |name, old, new| {
                if let Some(policy) = names.get(name).and_then(|key| policies.get_mut(key)) {
                    policy.sums.add(name, old, new);
                }
            },
        );
        let keys = changed.iter().filter_map(|name| self.names.get(name));
        self.dirty.judge.extend(keys.cloned());
        self.forget_dataplane(pod);
    }

    /// Lets go of a dataplane that is not there and says nothing.
    fn forget_dataplane(&mut self, pod: &Key) {
        let silent = |d: &DataplaneRecord| d.report.is_none() && d.at.is_none();
        if self.world.live_pod(pod).is_none() && self.dataplanes.get(pod).is_some_and(silent) {
            self.dataplanes.remove(pod);
        }
    }
}
