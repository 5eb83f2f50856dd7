//! What it costs to remove a Pod, as `controller.kubernetes.io/pod-deletion-cost` wants it: a
//! ReplicaSet that scales in removes Pods with the lowest number first.
//!
//! Owns the weighing and the hysteresis. A Pod's number is the sum over all policies that ask for
//! it.

use crate::{BackendFigures, Key, Text};
use std::collections::{BTreeMap, BTreeSet};

/// A flow at rest moves by a pure ACK and nobody notices.
const COST_IDLE: u64 = 1;
/// A flow with a request outstanding moves when that is answered, or the request is sent again.
const COST_OUTSTANDING: u64 = 10;
/// A flow that cannot move breaks.
const COST_PINNED: u64 = 100;
/// The annotation is an i32. Ten million pinned flows are far more than one Pod has.
pub(crate) const COST_MAX: u64 = 1 << 30;
/// A cost is written again only if it differs from what is written by more than one part in this
/// many: each write goes to the API server and to everybody who watches Pods.
const HYSTERESIS_PARTS: u64 = 10;

/// What it costs to remove a backend.
pub(crate) fn cost(figures: &BackendFigures) -> u64 {
    // A flow counts once, as the dearest that it is. A flow may be pinned and have a request
    // outstanding; how many are both is not known, and that many count as both is the safe side.
    let pinned = figures.pinned.min(figures.flows);
    let outstanding = figures.outstanding.min(figures.flows - pinned);
    let idle = figures.flows - pinned - outstanding;
    let sum = [(pinned, COST_PINNED), (outstanding, COST_OUTSTANDING), (idle, COST_IDLE)];
    let sum = sum.iter().map(|(flows, each)| flows.saturating_mul(*each));
    sum.fold(0, u64::saturating_add).min(COST_MAX)
}

/// Whether `wanted` is far enough from what is written. That nothing is lost with a Pod, or
/// something, is always told.
fn is_news(written: u64, wanted: u64) -> bool {
    (written == 0) != (wanted == 0)
        || written.abs_diff(wanted).saturating_mul(HYSTERESIS_PARTS) > written
}

/// The costs of all Pods that any policy asks for.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    pods: BTreeMap<Key, PodCost>,
    dirty: BTreeSet<Key>,
}

#[derive(Debug, Default)]
struct PodCost {
    /// By name of the policy, in the Pod's namespace.
    /// Nothing where it is not known yet.
    shares: BTreeMap<Text, Option<u64>>,
    written: Option<u64>,
}

impl Costs {
    /// Makes these the costs of a policy's Pods, instead of those of before.
    pub fn set(
        &mut self,
        policy: &Key,
        before: &BTreeMap<Text, Option<u64>>,
        now: &BTreeMap<Text, Option<u64>>,
    ) {
        let pod = |name: &Text| Key::new(policy.namespace.clone(), name.clone());
        for name in before.keys().filter(|name| !now.contains_key(*name)) {
            let key = pod(name);
            if let Some(cost) = self.pods.get_mut(&key) {
                cost.shares.remove(&policy.name);
                self.dirty.insert(key);
            }
        }
        for (name, share) in now.iter().filter(|(name, share)| before.get(*name) != Some(share)) {
            let key = pod(name);
            let cost = self.pods.entry(key.clone()).or_default();
            cost.shares.insert(policy.name.clone(), *share);
            self.dirty.insert(key);
        }
    }

    /// Whether a fold has something to do here.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The costs to write; none for Pods that `is_live` says nobody has to write to any more.
    pub fn settle(&mut self, is_live: impl Fn(&Key) -> bool) -> BTreeMap<Key, Option<i32>> {
        let mut out = BTreeMap::new();
        for key in std::mem::take(&mut self.dirty) {
            let Some(cost) = self.pods.get_mut(&key) else {
                continue;
            };
            let live = is_live(&key);
            if cost.shares.is_empty() {
                if live && cost.written.is_some() {
                    out.insert(key.clone(), None);
                }
                self.pods.remove(&key);
                continue;
            }
            // As long as a part is not known, what is there stays.
            let mut wanted = cost.shares.values().copied();
            let wanted = wanted.try_fold(0, |sum: u64, share| Some(sum.saturating_add(share?)));
            let Some(wanted) = wanted else { continue };
            let wanted = wanted.min(COST_MAX);
            if live && cost.written.is_none_or(|written| is_news(written, wanted)) {
                cost.written = Some(wanted);
                out.insert(key, Some(i32::try_from(wanted).unwrap_or(i32::MAX)));
            }
        }
        out
    }

    /// All that is written: for a writer that starts anew.
    pub fn written(&self) -> impl Iterator<Item = (&Key, i32)> {
        let written = self.pods.iter();
        written.filter_map(|(key, cost)| Some((key, i32::try_from(cost.written?).ok()?)))
    }

    /// A Pod has this cost from before, by an operator that ended or leads no more. If no policy
    /// asks for one, it is taken off.
    pub fn found(&mut self, pod: &Key, cost: i32) {
        let entry = self.pods.entry(pod.clone()).or_default();
        if entry.written.is_none() {
            entry.written = Some(u64::try_from(cost).unwrap_or_default());
            self.dirty.insert(pod.clone());
        }
    }

    /// A Pod came again under the name of another one: nothing is written on it.
    pub fn renewed(&mut self, pod: &Key) {
        if let Some(cost) = self.pods.get_mut(pod) {
            cost.written = None;
            self.dirty.insert(pod.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn backend(flows: u64, outstanding: u64, pinned: u64) -> BackendFigures {
        BackendFigures { flows, outstanding, pinned, ..BackendFigures::default() }
    }

    proptest! {
        #[test]
        fn costs_are_bounded_and_grow_with_what_is_lost(
            flows in any::<u64>(), outstanding in any::<u64>(), pinned in any::<u64>()
        ) {
            let base = cost(&backend(flows, outstanding, pinned));
            prop_assert!(base <= COST_MAX && i32::try_from(base).is_ok());
            prop_assert!(cost(&backend(flows.saturating_add(1), outstanding, pinned)) >= base);
            prop_assert!(cost(&backend(flows, outstanding.saturating_add(1), pinned)) >= base);
            prop_assert!(cost(&backend(flows, outstanding, pinned.saturating_add(1))) >= base);
        }

        #[test]
        fn what_is_written_is_never_further_off_than_a_tenth(wanted in prop::collection::vec(0u64..5_000, 1..50)) {
            let mut costs = Costs::default();
            let policy = Key::new("ns", "p");
            let (mut before, mut written) = (BTreeMap::new(), None);
            for cost in wanted {
                let now = BTreeMap::from([(Text::from("pod"), Some(cost))]);
                costs.set(&policy, &before, &now);
                before = now;
                for (_, value) in costs.settle(|_| true) {
                    prop_assert_ne!(value, written);
                    written = value;
                }
                let shown = u64::try_from(written.expect("written")).expect("not negative");
                prop_assert!(shown.abs_diff(cost) * 10 <= shown, "{} for {}", shown, cost);
                prop_assert_eq!(shown == 0, cost == 0);
            }
        }
    }

    #[test]
    fn pinned_flows_cost_most_and_idle_ones_least() {
        let [idle, outstanding, pinned] = [backend(5, 0, 0), backend(5, 5, 0), backend(5, 0, 5)];
        assert!(cost(&idle) < cost(&outstanding) && cost(&outstanding) < cost(&pinned));
        assert_eq!(cost(&backend(0, 0, 0)), 0);
    }

    #[test]
    fn costs_of_several_policies_add_up_and_the_last_takes_the_annotation_off() {
        let mut costs = Costs::default();
        let (one, other, pod) = (Key::new("ns", "a"), Key::new("ns", "b"), Key::new("ns", "pod"));
        let (none, seven) = (BTreeMap::new(), BTreeMap::from([(Text::from("pod"), Some(7))]));
        costs.set(&one, &none, &seven);
        costs.set(&other, &none, &seven);
        assert_eq!(costs.settle(|_| true), [(pod.clone(), Some(14))].into());
        costs.set(&one, &seven, &none);
        assert_eq!(costs.settle(|_| true), [(pod.clone(), Some(7))].into());
        costs.set(&other, &seven, &none);
        assert_eq!(costs.settle(|_| true), [(pod, None)].into());
        assert!(costs.pods.is_empty());
    }

    #[test]
    fn what_an_earlier_operator_wrote_is_taken_off_kept_or_held_until_it_is_known() {
        let mut costs = Costs::default();
        let (policy, pod) = (Key::new("ns", "a"), Key::new("ns", "pod"));
        let share = |cost| BTreeMap::from([(Text::from("pod"), cost)]);
        costs.found(&pod, 20);
        assert_eq!(costs.settle(|_| true), [(pod.clone(), None)].into());
        assert!(costs.is_empty());
        // A policy asks, and no dataplane has said yet what it costs.
        costs.found(&pod, 20);
        costs.set(&policy, &BTreeMap::new(), &share(None));
        assert!(costs.settle(|_| true).is_empty());
        costs.set(&policy, &share(None), &share(Some(21)));
        assert!(costs.settle(|_| true).is_empty(), "within a tenth");
        costs.set(&policy, &share(Some(21)), &share(Some(30)));
        assert_eq!(costs.settle(|_| true), [(pod.clone(), Some(30))].into());
        // What is read back is what was written.
        costs.found(&pod, 20);
        assert!(costs.settle(|_| true).is_empty());
        costs.renewed(&pod);
        costs.set(&policy, &share(Some(30)), &BTreeMap::new());
        assert!(costs.settle(|_| false).is_empty());
        assert!(costs.is_empty());
    }

    #[test]
    fn nothing_is_written_to_a_pod_that_goes() {
        let mut costs = Costs::default();
        let (none, seven) = (BTreeMap::new(), BTreeMap::from([(Text::from("pod"), Some(7))]));
        costs.set(&Key::new("ns", "a"), &none, &seven);
        assert!(costs.settle(|_| false).is_empty());
        costs.set(&Key::new("ns", "a"), &seven, &none);
        assert!(costs.settle(|_| false).is_empty());
    }
}
