//! The election against an API server in memory, with time that the test turns.

use super::{LEASE, Leadership, Settings, run};
use crate::{fake_api::FakeApi, owner::Owner};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/baton/leases/baton-operator";
const LASTS: Duration = Duration::from_secs(15);

/// One process.
struct Candidate {
    told: watch::Receiver<Leadership>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

fn candidate(api: &FakeApi, identity: &str) -> Candidate {
    owning(api, identity, None)
}

fn owning(api: &FakeApi, identity: &str, owner: Option<Owner>) -> Candidate {
    lasting(api, identity, owner, LASTS)
}

fn lasting(api: &FakeApi, identity: &str, owner: Option<Owner>, duration: Duration) -> Candidate {
    let (sender, told) = watch::channel(Leadership::Standby);
    let (stop, stopped) = oneshot::channel();
    let settings =
        Settings { namespace: "baton".to_owned(), identity: identity.to_owned(), duration, owner };
    let task = tokio::spawn(run(api.client(), settings, sender, stopped));
    Candidate { told, stop, task }
}

impl Candidate {
    /// Waits until it leads; gives the epoch and how long it took.
    async fn leads(&mut self) -> (u32, Duration) {
        let begun = Instant::now();
        let led = self.told.wait_for(|l| l.epoch().is_some()).await;
        let epoch = led.expect("it lives").epoch().expect("it leads");
        (epoch, begun.elapsed())
    }

    async fn stands_by(&mut self) -> Duration {
        let begun = Instant::now();
        let led = self.told.wait_for(|l| l.epoch().is_none()).await;
        drop(led.expect("it lives"));
        begun.elapsed()
    }
}

fn held_by(holder: &str, transitions: i32) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE, "namespace": "baton"},
        "spec": {"holderIdentity": holder, "leaseTransitions": transitions, "leaseDurationSeconds": 15},
    })
}

#[tokio::test(start_paused = true)]
async fn the_first_one_leads_and_renews_and_gives_the_lease_back() {
    let api = FakeApi::default();
    let mut a = candidate(&api, "a");
    assert_eq!(a.leads().await.0, 1);
    let first = api.get(PATH).expect("a Lease");
    assert_eq!(first["spec"]["holderIdentity"], "a");
    assert_eq!(first["spec"]["leaseDurationSeconds"], 15);
    sleep(4 * LASTS).await;
    let later = api.get(PATH).expect("a Lease");
    assert_eq!(later["spec"]["leaseTransitions"], 0);
    assert_ne!(later["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert_eq!(a.told.borrow().epoch(), Some(1));

    let mut b = candidate(&api, "b");
    sleep(LASTS).await;
    assert_eq!(b.told.borrow().epoch(), None);
    a.stop.send(()).expect("it lives");
    a.task.await.expect("ends");
    let (epoch, took) = b.leads().await;
    assert_eq!(epoch, 2);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dead_leaders_lease_is_taken_when_it_has_expired_and_not_before() {
    let api = FakeApi::default();
    api.put(PATH, held_by("dead", 6));
    let mut a = candidate(&api, "a");
    let (epoch, took) = a.leads().await;
    assert_eq!(epoch, 8);
    assert!(took >= LASTS && took < LASTS + Duration::from_secs(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_an_api_server_stops_before_the_lease_can_be_anybody_elses() {
    for silent in [false, true] {
        let api = FakeApi::default();
        let mut a = candidate(&api, "a");
        a.leads().await;
        if silent {
            api.silent(true);
        } else {
            api.fail(Some(500));
        }
        let took = a.stands_by().await;
        assert!(took < LASTS, "silent {silent}: {took:?}");
        // It comes back with a new epoch.
        api.fail(None);
        api.silent(false);
        assert_eq!(a.leads().await.0, 2, "silent {silent}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_lost_answer_costs_no_lease() {
    // The shortest, the chart's, and one whose requests have the longest limit.
    for seconds in [2, 6, 60] {
        let duration = Duration::from_secs(seconds);
        let api = FakeApi::default();
        let mut a = lasting(&api, "a", None, duration);
        a.leads().await;
        // The next renewal begins in between, and its answer never comes.
        api.silent(true);
        sleep(duration / 4).await;
        api.silent(false);
        let lost = timeout(duration * 2, a.stands_by()).await;
        assert!(lost.is_err(), "a Lease of {duration:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_is_anothers_or_gone_stops() {
    let api = FakeApi::default();
    let mut a = candidate(&api, "a");
    a.leads().await;
    api.put(PATH, held_by("b", 1));
    assert!(a.stands_by().await < LASTS);
    assert_eq!(a.leads().await.0, 3);
    api.delete(PATH);
    assert!(a.stands_by().await < LASTS);
    assert_eq!(a.leads().await.0, 4);
}

#[tokio::test(start_paused = true)]
async fn of_two_that_take_it_at_one_moment_one_leads() {
    let api = FakeApi::default();
    let mut both = [candidate(&api, "a"), candidate(&api, "b")];
    sleep(Duration::from_secs(5)).await;
    let leading = both.iter_mut().filter(|c| c.told.borrow().epoch().is_some());
    assert_eq!(leading.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_lease_goes_with_the_account_and_is_led_by_where_that_is_not_allowed() {
    for refused in [false, true] {
        let api = FakeApi::default();
        // As an earlier version left it.
        api.put(PATH, held_by("", 3));
        api.refuse_owners(refused);
        let account = Owner::new("baton-operator", "u");
        let mut a = owning(&api, "a", Some(account.clone()));
        let (epoch, took) = a.leads().await;
        assert_eq!(epoch, 5);
        assert!(took < Duration::from_secs(1), "{took:?}");
        sleep(2 * LASTS).await;
        assert_eq!(a.told.borrow().epoch(), Some(5));
        let lease = api.get(PATH).expect("a Lease");
        let owners = &lease["metadata"]["ownerReferences"];
        let expected = if refused { Value::Null } else { json!([account.reference()]) };
        assert_eq!(*owners, expected);
    }
    // One that is made now has its owner from the start.
    let api = FakeApi::default();
    let mut a = owning(&api, "a", Some(Owner::new("baton-operator", "u")));
    a.leads().await;
    let lease = api.get(PATH).expect("a Lease");
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u");
}
