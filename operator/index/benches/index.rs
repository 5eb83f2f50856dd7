//! What changes cost at 5,000 policies, 50,000 endpoints and 16 classes.

#[path = "../tests/it/common/fleet.rs"]
mod fleet;

use baton_index::{Change, Index};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use fleet::Fleet;
use std::hint::black_box;

/// Applies one of two changes in turn, so that each is news, and folds.
fn turns(c: &mut Criterion, name: &str, index: &mut Index, changes: &[Change; 2]) {
    let mut turn = 0;
    c.bench_function(name, |b| {
        b.iter(|| {
            turn ^= 1;
            index.apply(changes[turn].clone());
            black_box(index.fold(2))
        });
    });
}

fn benches(c: &mut Criterion) {
    let mut fleet = Fleet::default();
    let mut index = fleet.index();
    let slices = [fleet.slice(4_321, 0), fleet.slice(4_321, 1)];
    turns(c, "endpoint readiness", &mut index, &slices);
    let pods = [fleet.pod(77, 3, false), fleet.pod(77, 3, true)];
    turns(c, "pod deleted", &mut index, &pods);
    let nodes = [fleet.node(9, false), fleet.node(9, true)];
    turns(c, "node cordoned (100 policies)", &mut index, &nodes);
    let policy = fleet.policy(2_500);
    let Change::Policy(key, _) = &policy else {
        return;
    };
    let policies = [Change::Policy(key.clone(), None), policy.clone()];
    turns(c, "policy comes and goes", &mut index, &policies);
    let all = fleet.all();
    let mut group = c.benchmark_group("start");
    group.sample_size(10);
    group.bench_function("everything from nothing", |b| {
        b.iter_batched(
            || all.clone(),
            |all| {
                let mut index = Index::new();
                all.into_iter().for_each(|change| index.apply(change));
                let update = index.fold(0);
                (index, update)
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(index, benches);
criterion_main!(index);
