//! When statuses are written: at once, soon, or as often as there is room for figures.

use super::*;
use crate::digest::Digests;
use baton_index::{Change, Index, Labels, Policy, Refusal};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use tokio::time::{sleep_until, timeout};

/// How often dataplanes are asked for their figures.
const LOOK: Duration = Duration::from_secs(5);

struct Scene {
    outbox: Outbox,
    ledger: Arc<Ledger>,
    verdicts: Vec<Verdict>,
    began: Instant,
    /// Writes so far.
    written: usize,
}

impl Scene {
    /// Policies whose statuses say no figures yet and nothing else that is wrong.
    fn of(count: usize) -> Self {
        let ledger = Arc::new(Ledger::default());
        let metrics = Metrics::new().expect("figures");
        let (outbox, _) = Outbox::new(Arc::clone(&ledger), metrics);
        let verdicts = (0..count).map(|number| verdict(&format!("p{number}")));
        let mut scene = Self {
            outbox,
            ledger,
            verdicts: verdicts.collect(),
            began: Instant::now(),
            written: 0,
        };
        for number in 0..count {
            let key = scene.verdicts[number].policy.clone();
            let meta = ObjectMeta::default();
            scene.ledger.note(Kind::Policy, &key, &meta, &Value::Null);
            scene.verdicts[number].figures_at = Some(0);
            scene.write(&scene.verdicts[number].clone());
        }
        scene.written = 0;
        scene
    }

    fn write(&mut self, verdict: &Verdict) {
        let before = self.ledger.get(Kind::Policy, &verdict.policy);
        let status = status::policy(verdict, &before.expect("noted"), Timestamp::now());
        let digests = Digests::policy(&status);
        self.ledger.written(Kind::Policy, &verdict.policy, digests, &status.conditions);
        self.written += 1;
    }

    /// Dataplanes are asked until this long after the beginning, and what is due is written.
    async fn run(&mut self, until: Duration, mut change: impl FnMut(u64, &mut Verdict)) {
        let end = self.began + until;
        while Instant::now() < end {
            let second = self.began.elapsed().as_secs();
            for number in 0..self.verdicts.len() {
                change(second, &mut self.verdicts[number]);
                self.verdicts[number].figures_at = i64::try_from(second).ok();
                self.outbox.verdict(&Arc::new(self.verdicts[number].clone()));
            }
            let next = Instant::now() + LOOK;
            loop {
                tokio::select! {
                    biased;
                    () = sleep_until(next) => break,
                    (_, verdict, _turn) = self.outbox.policies.next() => self.write(&verdict),
                }
            }
        }
    }
}

/// What an index says of a policy.
fn verdict(name: &str) -> Verdict {
    let policy = Policy {
        uid: "u".into(),
        created: 0,
        generation: 1,
        service: "web".into(),
        listeners: Vec::new(),
        template: Err(Refusal { field: "spec.x".into(), problem: "it is bad".into() }),
        weights: None,
        classes: Labels::default(),
        frontend: None,
        allow_from: None,
        deletion_cost: false,
        drain_cordoned: false,
    };
    let mut index = Index::new();
    index.apply(Change::Policy(Key::new("shop", name), Some(Arc::new(policy))));
    let _ = index.fold(100);
    Verdict::clone(index.verdicts().next().expect("one"))
}

#[tokio::test(start_paused = true)]
async fn a_condition_is_written_at_once_and_how_many_pods_there_are_soon() {
    let mut scene = Scene::of(1);
    let problem = |_, v: &mut Verdict| v.conditions[0].message = "it is worse".into();
    scene.run(Duration::from_secs(1), problem).await;
    assert_eq!(scene.written, 1);
    scene.run(Duration::from_secs(15), |_, v| v.total = 3).await;
    assert_eq!(scene.written, 1);
    scene.run(Duration::from_secs(25), |_, _| ()).await;
    assert_eq!(scene.written, 2);
}

#[tokio::test(start_paused = true)]
async fn figures_of_a_policy_are_written_every_half_minute_if_they_changed_and_later_if_by_little()
{
    let mut scene = Scene::of(1);
    let grows = |second: u64, v: &mut Verdict| v.totals.migrations = second * 1_000;
    scene.run(Duration::from_secs(125), grows).await;
    assert!((3..=4).contains(&scene.written), "{}", scene.written);
    let before = scene.written;
    let one_more = |_, v: &mut Verdict| v.totals.migrations = 125_001;
    scene.run(Duration::from_secs(400), one_more).await;
    // The last of the growth, and no more.
    assert!(scene.written <= before + 1, "{}", scene.written);
    let before = scene.written;
    scene.run(Duration::from_secs(800), |_, v| v.flows = 0).await;
    assert_eq!(scene.written, before, "nothing changes");
    let one_more = |_, v: &mut Verdict| v.totals.migrations = 125_002;
    scene.run(Duration::from_secs(1_000), one_more).await;
    assert_eq!(scene.written, before, "not yet");
    scene.run(Duration::from_secs(1_110), one_more).await;
    assert_eq!(scene.written, before + 1);
    // Back to what is written: nothing.
    scene.run(Duration::from_secs(1_115), |_, v| v.flows = 500).await;
    scene.run(Duration::from_secs(1_500), |_, v| v.flows = 0).await;
    assert_eq!(scene.written, before + 1);
}

/// 2,500 writes a second if each look were written; with one every 15 s for each, 333.
#[tokio::test(start_paused = true)]
async fn figures_of_many_busy_policies_are_written_at_a_bounded_rate() {
    const POLICIES: usize = 1_000;
    let mut scene = Scene::of(POLICIES);
    let busy = |second: u64, v: &mut Verdict| {
        v.flows = 100 + second % 70;
        v.totals.migrations = second * second;
    };
    scene.run(Duration::from_secs(500), busy).await;
    // 20 a second.
    assert!(scene.written <= 20 * 500, "{}", scene.written);
    assert!(scene.written >= 7 * POLICIES, "{}", scene.written);
    // None of them is in the way of what presses.
    let problem = |_, v: &mut Verdict| v.conditions[0].message = "it is worse".into();
    let before = scene.written;
    scene.run(scene.began.elapsed() + Duration::from_secs(1), problem).await;
    assert_eq!(scene.written, before + POLICIES);
}

#[tokio::test(start_paused = true)]
async fn a_class_that_is_behind_for_a_moment_is_not_written_and_all_else_of_it_is_at_once() {
    let ledger = Arc::new(Ledger::default());
    let metrics = Metrics::new().expect("figures");
    let (outbox, _) = Outbox::new(Arc::clone(&ledger), metrics);
    let key = Key::new("", "edge");
    ledger.note(Kind::Class, &key, &ObjectMeta::default(), &Value::Null);
    // How many seconds later it is written, if within a minute, with so many dataplanes.
    let written = async |ready, synchronised, patience| {
        let verdict = ClassVerdict {
            class: "edge".into(),
            observed_generation: 1,
            dataplanes: 2,
            ready,
            synchronised,
            policies: 1,
            over_limit: 0,
            problem: None,
            instances: Vec::new(),
        };
        let began = Instant::now();
        outbox.class_verdict(verdict);
        let next = timeout(Duration::from_secs(patience), outbox.classes.next());
        let (_, verdict, _turn) = next.await.ok()?;
        let before = ledger.get(Kind::Class, &key).expect("noted");
        let status = status::class(&verdict, None, &before, Timestamp::now());
        let digests = Digests::class(&status);
        ledger.written(Kind::Class, &key, digests, &status.conditions);
        Some(began.elapsed().as_secs())
    };
    assert_eq!(written(2, 2, 60).await, Some(0));
    // A snapshot is on its way, and arrives.
    assert_eq!(written(2, 1, 5).await, None);
    assert_eq!(written(2, 2, 60).await, None);
    // One dataplane stays behind. That it has caught up is what people wait for.
    assert_eq!(written(2, 1, 60).await, Some(SETTLED_EVERY.as_secs()));
    assert_eq!(written(2, 2, 60).await, Some(0));
    assert_eq!(written(0, 0, 60).await, Some(0), "nobody serves it");
}
