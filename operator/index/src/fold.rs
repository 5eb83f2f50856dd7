//! Making anew what changes touched: policies by themselves, their claims, what they come to, the
//! classes' snapshots, and what is said of it all.
//!
//! Owns the order of these steps. Each policy is made by itself, and a panic in one of them is its
//! own affair.

use crate::{
    ClassUpdate, ClassVerdict, Condition, ConditionKind, Event, Index, Instance, Key, LIMIT_EVENTS,
    LIMIT_INSTANCES_SHOWN, Reason, Status, Text, Update, Verdict,
    allowance::{Grants, Tenant},
    backends::View,
    claims::Outcome,
    drains::DrainNotice,
    frontend::orphan,
    index::PolicyRecord,
    judge::{Judged, conditions, judge, same},
    kept::{Kept, look, owner},
    messages::{bounded, few, internal_error},
    progress::{behind, no_dataplane, ready_members},
    standing::Standing,
    translate::Translation,
};
use baton_api::OnDeadline;
use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// Runs what looks at one policy only. What it reads is not changed by it, so nothing is left
/// half-done by a panic.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| panic_message(&*payload))
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

impl Index {
    /// Computes what the changes since the last fold touched. `now` is in seconds since 1970; it
    /// dates conditions and Events and decides nothing.
    ///
    /// Fold once with all that exists before anything is pushed: a half-known world gives half a
    /// snapshot. A panic in the translation of one policy is caught: the policy keeps its last
    /// snapshot policies and says `InternalError`; the others go on.
    pub fn fold(&mut self, now: i64) -> Update {
        let mut update = Update::default();
        while let Some((_, key)) = self.deadlines.first().filter(|(at, _)| *at <= now).cloned() {
            self.deadlines.pop_first();
            self.dirty.judge.insert(key);
        }
        if std::mem::take(&mut self.dirty.ports) {
            self.give_ports();
        }
        self.examine_dirty();
        for key in self.claims.settle() {
            self.dirty.translate.insert(key);
        }
        self.translate_dirty(&mut update);
        self.commit_classes(&mut update);
        let fronts = self.fronts_dirty(&mut update);
        self.judge_dirty(now, &fronts, &mut update);
        self.judge_classes(&mut update);
        let world = &self.world;
        update.costs =
            self.costs.settle(|pod| world.live_pod(pod).is_some_and(|pod| !pod.deleting));
        update
    }

    fn examine_dirty(&mut self) {
        for key in std::mem::take(&mut self.dirty.examine) {
            let Some(record) = self.policies.get(&key) else {
                continue;
            };
            let namespaces = &self.world.namespaces;
            let (policy, good) = (&record.policy, record.good.as_ref());
            let (classes, holdings) = (&self.classes, &self.holdings);
            let judged = guarded(|| look(&key, policy, good, classes, namespaces, holdings));
            let age = record.age(&key);
            let Some(record) = self.policies.get_mut(&key) else {
                continue;
            };
            match judged {
                Ok(look) => {
                    let claims = match &look.standing {
                        Standing::Fit { claims, .. } => Some((age, Arc::clone(claims))),
                        Standing::Unfit { .. } => None,
                    };
                    self.claims.set(&key, claims);
                    if look.is_bare {
                        self.bare.insert(key.clone());
                    } else {
                        self.bare.remove(&key);
                    }
                    if look.kept.is_none() && matches!(look.standing, Standing::Fit { .. }) {
                        record.good = Some(Arc::clone(&look.served));
                    }
                    record.served = look.served;
                    record.kept = look.kept;
                    record.problem = look.problem;
                    record.standing = Some(look.standing);
                    record.failure = None;
                    self.follow(&key);
                }
                Err(what) => record.failure = Some(what),
            }
            self.dirty.translate.insert(key);
        }
        // What is asked for no more is not kept.
        if !self.holdings.partial {
            let bare = &self.bare;
            let asked = |name: &Text| owner(name).is_some_and(|key| bare.contains(&key));
            self.holdings.held.retain(|name, _| asked(name));
        }
    }

    fn translate_dirty(&mut self, update: &mut Update) {
        for key in std::mem::take(&mut self.dirty.translate) {
            let Some(record) = self.policies.get(&key) else {
                continue;
            };
            let held = self.claims.outcome(&key) == Some(&Outcome::Held);
            let classes = match &record.standing {
                Some(Standing::Fit { classes, .. }) if held => classes.clone(),
                _ => BTreeSet::new(),
            };
            let made = (!classes.is_empty()).then(|| {
                update.translated += 1;
                let holdings = &self.holdings;
                let from_held = holdings.partial || record.kept == Some(Kept::Held);
                let tenant = Tenant::new(&key.namespace, &self.world.namespaces);
                let specs = classes.iter().filter_map(|name| self.classes.get(name));
                let peers = record.served.allow_from.as_deref();
                let view = View {
                    key: &key,
                    policy: &record.served,
                    world: &self.world,
                    allow_from: self.clients.resolve(&key, peers, &self.world),
                    grants: specs.map(|class| Grants::of(&class.spec.allowed, &tenant)).collect(),
                    held: from_held.then_some(&holdings.held),
                    partial: holdings.partial,
                };
                guarded(|| (self.translator)(&view))
            });
            self.place(&key, classes, made);
            self.dirty.judge.insert(key);
        }
    }

    /// Tells the classes what a policy came to.
    fn place(
        &mut self,
        key: &Key,
        classes: BTreeSet<Text>,
        made: Option<Result<Translation, String>>,
    ) {
        let Some(record) = self.policies.get_mut(key) else {
            return;
        };
        match made {
            None => record.translation = None,
            // What no dataplane takes does not replace what they have.
            Some(Ok(Translation { bug: Some(bug), .. }))
                if record.translation.as_ref().is_some_and(|t| t.bug.is_none()) =>
            {
                record.failure = Some(bug);
            }
            Some(Ok(mut new)) => {
                share(record.translation.as_ref(), &mut new);
                record.translation = Some(new);
                record.failure = None;
            }
            // The last good one stays.
            Some(Err(what)) => record.failure = Some(what),
        }
        for name in record.staged.difference(&classes) {
            if let Some(class) = self.classes.get_mut(name) {
                class.stage(key, None, Vec::new());
            }
        }
        let listeners = record.translation.iter().flat_map(|t| &t.listeners);
        let wanted: Vec<_> = listeners.map(|l| (l.name.clone(), Arc::clone(&l.policy))).collect();
        let age = record.age(key);
        for name in &classes {
            if let Some(class) = self.classes.get_mut(name) {
                class.stage(key, Some(age.clone()), wanted.clone());
            }
        }
        record.staged = classes;
    }

    fn commit_classes(&mut self, update: &mut Update) {
        for name in std::mem::take(&mut self.dirty.gone) {
            if !self.classes.contains_key(&name) {
                let gone = ClassUpdate { gone: true, ..ClassUpdate::default() };
                self.class_verdicts.remove(&name);
                update.classes.insert(name, gone);
            }
        }
        for (name, class) in self.classes.iter_mut().filter(|(_, class)| class.is_dirty()) {
            let (changes, touched) = class.commit(self.revision + 1);
            self.revision = self.revision.max(class.revision);
            self.dirty.judge.extend(touched);
            self.dirty.classes.insert(name.clone());
            if let Some(changes) = changes {
                update.classes.insert(name.clone(), changes);
            }
        }
    }

    /// Services in front of dataplanes that changed: their policies are judged, and who has none
    /// any more is put right here. Gives them.
    fn fronts_dirty(&mut self, update: &mut Update) -> BTreeSet<Key> {
        let fronts = std::mem::take(&mut self.dirty.fronts);
        for service in &fronts {
            let Some(record) = self.world.services.get(service) else {
                continue;
            };
            let policies = record.fronts.iter();
            let policies = policies.map(|name| Key::new(service.namespace.clone(), name.clone()));
            self.dirty.judge.extend(policies);
            if record.fronts.is_empty() {
                let writes = orphan(self, service);
                if !writes.is_empty() {
                    update.fronts.insert(service.clone(), Arc::new(writes));
                }
            }
        }
        fronts
    }

    fn judge_dirty(&mut self, now: i64, fronts: &BTreeSet<Key>, update: &mut Update) {
        for key in std::mem::take(&mut self.dirty.judge) {
            if !self.policies.contains_key(&key) {
                continue;
            }
            update.judged += 1;
            let judged = guarded(|| judge(self, &key, now));
            let Some(record) = self.policies.get_mut(&key) else {
                continue;
            };
            let (mut verdict, costs) = match judged {
                Ok(Some(judged)) => {
                    let before = record.drains.deadline();
                    for notice in drained(record, &judged, now) {
                        event(update, &judged.verdict, now, notice);
                    }
                    let after = record.drains.deadline();
                    if before != after {
                        if let Some(at) = before {
                            self.deadlines.remove(&(at, key.clone()));
                        }
                        self.deadlines.extend(after.map(|at| (at, key.clone())));
                    }
                    if let Some((serving, writes)) = judged.front {
                        record.serving = serving;
                        let touched = record.front.as_ref().is_some_and(|f| fronts.contains(f));
                        if (touched && !writes.is_empty()) || *record.front_writes != writes {
                            record.front_writes = Arc::new(writes);
                            let service = record.front.clone();
                            let said = service.map(|key| (key, Arc::clone(&record.front_writes)));
                            update.fronts.extend(said);
                        }
                    }
                    (judged.verdict, judged.costs)
                }
                Ok(None) => continue,
                Err(what) => {
                    let before = record.verdict.as_deref();
                    let verdict = bare(&key, record.policy.as_ref(), before, &what, now);
                    (verdict, record.costs.clone())
                }
            };
            if costs != record.costs {
                self.costs.set(&key, &record.costs, &costs);
                record.costs = costs;
            }
            // What is remembered of backends that are no more goes with them.
            if let Some(translation) = &record.translation {
                prune(&mut record.sums, translation);
            }
            if same(record.verdict.as_ref(), &mut verdict) {
                continue;
            }
            tell(record.verdict.as_deref(), &verdict, now, update);
            let verdict = Arc::new(verdict);
            record.verdict = Some(Arc::clone(&verdict));
            update.verdicts.push(verdict);
        }
    }

    fn judge_classes(&mut self, update: &mut Update) {
        for name in std::mem::take(&mut self.dirty.classes) {
            let Some(verdict) = self.judge_class_now(&name) else {
                continue;
            };
            if self.class_verdicts.get(&name) != Some(&verdict) {
                self.class_verdicts.insert(name, verdict.clone());
                update.class_verdicts.push(verdict);
            }
        }
    }

    fn judge_class_now(&self, name: &Text) -> Option<ClassVerdict> {
        let class = self.classes.get(name)?;
        let ready = ready_members(self, class);
        let mut instances: Vec<Instance> = class
            .members
            .keys()
            .map(|pod| {
                let behind = behind(self, pod, class.revision).map(|(_, message)| message);
                let synchronised = behind.is_none();
                // One that has all of it and cannot be asked may be anything by now.
                let problem = behind.or_else(|| {
                    let why = self.dataplanes.get(pod)?.unreachable()?;
                    Some(format!(
                        "dataplane {pod} cannot be reached and goes on with what it has: {why}"
                    ))
                });
                Instance {
                    pod: pod.clone(),
                    node: self.world.live_pod(pod).and_then(|pod| pod.node.clone()),
                    synchronised,
                    problem: problem.map(bounded),
                }
            })
            .collect();
        let synchronised =
            instances.iter().filter(|i| i.synchronised && ready.contains(&&i.pod)).count();
        let mut problems = Vec::new();
        if ready.is_empty() {
            problems.push(no_dataplane(name, class));
        }
        if class.over_limit() > 0 {
            problems.push(format!(
                "{} of policies have no room, or too little, as each policy says: raise spec.limits.policies (at most {}), or \
                 `limits.backends` of the dataplanes and of this class, or add another class",
                crate::messages::count(class.over_limit(), "listener"),
                baton_api::LIMIT_POLICIES
            ));
        }
        let bad = instances.iter().filter_map(|i| i.problem.as_ref());
        let bad = few(bad, "; ");
        if !bad.is_empty() {
            problems.push(bad);
        }
        let dataplanes = instances.len();
        instances.sort_by_key(|instance| instance.problem.is_none());
        instances.truncate(LIMIT_INSTANCES_SHOWN);
        Some(ClassVerdict {
            class: name.clone(),
            observed_generation: class.spec.generation,
            dataplanes,
            ready: ready.len(),
            synchronised,
            policies: class.snapshot().len(),
            over_limit: class.over_limit(),
            problem: (!problems.is_empty()).then(|| bounded(problems.join("; "))),
            instances,
        })
    }
}

/// Listeners that came to what they were stay the same object: who holds it can tell by that, and
/// it is kept once.
fn share(before: Option<&Translation>, now: &mut Translation) {
    for new in &mut now.listeners {
        let old = before.and_then(|t| t.listeners.iter().find(|old| old.name == new.name));
        if let Some(old) = old.filter(|old| old.policy == new.policy) {
            new.policy = Arc::clone(&old.policy);
        }
    }
}

fn prune(sums: &mut crate::reports::Sums, translation: &Translation) {
    let known: usize = translation.listeners.iter().map(|l| l.details.len()).sum();
    if sums.backends.len() <= known {
        return;
    }
    let listeners = translation.listeners.iter();
    let known: BTreeSet<(&Text, &Text)> =
        listeners.flat_map(|l| l.details.iter().map(|d| (&l.name, &d.name))).collect();
    sums.backends.retain(|(policy, backend), _| known.contains(&(policy, backend)));
}

/// A verdict on a policy that could not be judged.
fn bare(
    key: &Key,
    policy: &crate::Policy,
    before: Option<&Verdict>,
    what: &str,
    now: i64,
) -> Verdict {
    let unknown = || (Status::Unknown, Reason::InternalError, "see Accepted".to_owned());
    let all = [internal_error(what), unknown(), unknown(), unknown()];
    let mut verdict = before.cloned().unwrap_or_else(|| Verdict {
        policy: key.clone(),
        uid: policy.uid.clone(),
        observed_generation: policy.generation,
        conditions: conditions(all.clone(), None, now),
        classes: Vec::new(),
        addresses: Vec::new(),
        front: None,
        programmed: 0,
        dataplanes: 0,
        ready: 0,
        total: 0,
        flows: 0,
        totals: crate::Totals::default(),
        movable: crate::Movable::default(),
        pinned: BTreeMap::new(),
        drained: crate::Drained::default(),
        drains: Vec::new(),
        backends: Vec::new(),
        backends_not_shown: 0,
        figures_at: None,
    });
    verdict.observed_generation = policy.generation;
    verdict.conditions = conditions(all, before, now);
    verdict
}

/// The notices of a policy's drains.
fn drained(record: &mut PolicyRecord, judged: &Judged, now: i64) -> Vec<DrainNotice> {
    let template = record.served.template.as_ref();
    let on_deadline = template.map_or(OnDeadline::Wait, |template| template.drain.on_deadline);
    let lost = record.sums.totals.lost;
    record.drains.update(now, &judged.drains, judged.is_all, lost, on_deadline)
}

fn event(update: &mut Update, about: &Verdict, at: i64, notice: DrainNotice) {
    if update.events.len() >= LIMIT_EVENTS {
        update.events_dropped += 1;
        return;
    }
    update.events.push(Event {
        policy: about.policy.clone(),
        uid: about.uid.clone(),
        at,
        warning: notice.warning,
        reason: notice.reason,
        message: notice.message,
    });
}

/// Events for what changed between two verdicts.
fn tell(before: Option<&Verdict>, now: &Verdict, at: i64, update: &mut Update) {
    for is in &now.conditions {
        let was = before.map(|verdict| verdict.condition(is.kind));
        if was.is_some_and(|was| was.status == is.status && was.reason == is.reason) {
            continue;
        }
        let bad = is_bad(is);
        // What went well from the start is no news; neither is what follows from another condition.
        if bad || was.is_some_and(is_bad) && is.status != Status::Unknown {
            let notice =
                DrainNotice { warning: bad, reason: is.reason, message: is.message.clone() };
            event(update, now, at, notice);
        }
    }
}

fn is_bad(condition: &Condition) -> bool {
    let follows =
        matches!(condition.reason, Reason::NotAccepted | Reason::Pending | Reason::ProtocolNone);
    match condition.kind {
        ConditionKind::Accepted | ConditionKind::Programmed | ConditionKind::Adoptable => {
            condition.status == Status::False && !follows
        }
        // One dataplane that cannot be reached would be an Event of each policy of its class, which
        // says it once.
        ConditionKind::Degraded => {
            condition.status == Status::True && condition.reason != Reason::DataplaneUnreachable
        }
    }
}
