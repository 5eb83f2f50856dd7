//! 5,000 policies, 50,000 endpoints, 16 classes: a change costs work for what it touches, counted
//! in policies and not in time, and memory for what is kept, counted in bytes.

use crate::common::fleet::{CLASSES, ENDPOINTS_EACH, Fleet, NODES, POLICIES};
use baton_index::{Change, ConditionKind, Index, Status, Update};
use std::sync::Arc;

fn after(index: &mut Index, change: Change) -> Update {
    index.apply(change);
    index.fold(2)
}

#[test]
fn a_change_costs_what_it_touches() {
    let mut fleet = Fleet::default();
    let mut index = fleet.index();
    let served: usize = index.classes().map(|class| index.snapshot(class).len()).sum();
    assert_eq!(served, POLICIES as usize);
    let fully = |v: &&Arc<baton_index::Verdict>| {
        v.condition(ConditionKind::Programmed).status == Status::True
    };
    assert_eq!(index.verdicts().filter(fully).count(), POLICIES as usize);

    // One endpoint is not ready any more.
    let update = after(&mut index, fleet.slice(4_321, 1));
    assert_eq!((update.translated, update.judged), (1, 1));
    assert_eq!((update.classes.len(), update.verdicts.len()), (1, 1));
    let (class, changes) = update.classes.first_key_value().expect("one");
    assert_eq!((&**class, changes.changed.len(), changes.removed.len()), ("1", 1, 0));
    assert!(changes.dataplanes.is_none());

    // Both dataplanes of that class acknowledge it: one policy has waited for that.
    for change in fleet.acknowledgements(&index) {
        index.apply(change);
    }
    let update = index.fold(3);
    assert_eq!((update.translated, update.judged, update.verdicts.len()), (0, 1, 1));

    // The same slice again, a Pod as it was: nothing.
    assert_eq!(after(&mut index, fleet.slice(4_321, 1)), Update::default());
    assert_eq!(after(&mut index, fleet.pod(77, 3, false)), Update::default());

    // A Pod is deleted.
    let update = after(&mut index, fleet.pod(77, 3, true));
    assert_eq!((update.translated, update.judged, update.classes.len()), (1, 1, 1));

    // A Node is cordoned: the policies with endpoints there.
    let here = (0..POLICIES)
        .filter(|at| (0..ENDPOINTS_EACH).any(|pod| (at + pod * 7) % NODES == 9))
        .count();
    let update = after(&mut index, fleet.node(9, true));
    assert_eq!((update.translated, update.judged), (here, here));
    assert!(here <= 100, "{here}");

    // A policy goes and comes again.
    let Change::Policy(key, policy) = fleet.policy(2_500) else {
        panic!("a policy");
    };
    let update = after(&mut index, Change::Policy(key.clone(), None));
    assert_eq!((update.translated, update.judged, update.classes.len()), (0, 0, 1));
    let update = after(&mut index, Change::Policy(key, policy));
    assert_eq!((update.translated, update.judged, update.classes.len()), (1, 1, 1));
    assert_eq!(index.classes().count(), CLASSES as usize);
}

#[test]
fn an_endpoint_takes_little_memory() {
    // The change list is made and dropped inside, so what stays is the index with the texts that it
    // shares.
    let mut kept = None;
    let info = allocation_counter::measure(|| kept = Some(Fleet::default().index()));
    let endpoints = u64::from(POLICIES * ENDPOINTS_EACH);
    let bytes = u64::try_from(info.bytes_current).expect("more than before");
    let peak = info.bytes_max;
    println!(
        "{} bytes per endpoint, {} MiB in all, {} MiB at most with the list of all changes beside",
        bytes / endpoints,
        bytes >> 20,
        peak >> 20
    );
    assert!(kept.is_some());
    // The operator has 150 MB for all; this leaves half of it to the rest.
    assert!(bytes < 75_000_000, "{bytes}");
}
