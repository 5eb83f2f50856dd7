//! What stays in force of policies that cannot be used, while the operator runs and after a
//! restart.

use super::*;

fn slip(created: i64, field: &str) -> Policy {
    Policy {
        generation: 2,
        service: "".into(),
        listeners: Vec::new(),
        template: Err(Refusal { field: field.into(), problem: "is wrong".into() }),
        ..policy(created, "", 80)
    }
}

fn names(index: &Index) -> Vec<String> {
    index.snapshot("class").map(|p| p.name.clone()).collect()
}

fn held(index: &Index) -> Vec<Arc<baton_api::Policy>> {
    index.snapshot("class").cloned().collect()
}

/// All that `index()` has, but for policies.
fn world() -> Index {
    let mut index = index();
    index.apply(Change::Policy(key("p"), None));
    let _ = index.fold(1);
    index
}

#[test]
fn a_slip_that_a_dataplane_makes_ends_with_the_dataplane() {
    let mut index = index();
    // Its own address and the unspecified one, which stands for it. What is served meanwhile has
    // no explicit address.
    let mut twice = policy(1, "s", 80);
    twice.generation = 2;
    twice.listeners[0].addresses = vec![IpAddr::from([0; 4]), address(200)];
    add(&mut index, "p", twice);
    let _ = index.fold(2);
    index.says("p Accepted Invalid: generation 1");
    index.apply(Change::Pod(key("pod-200"), None));
    let _ = index.fold(3);
    // Only dataplanes' own addresses are allowed to it, and it is none any more.
    index.says("p Accepted NotAllowed: 10.0.0.200");
}

#[test]
fn a_slip_keeps_what_was_good_and_its_endpoints_are_followed() {
    let mut index = index();
    let revision = index.class("class").expect("it exists").revision;
    let acknowledged = Report { acknowledged: Some(revision), ..Report::default() };
    report(&mut index, acknowledged);
    let accepted = ConditionKind::Accepted;
    for (field, reason) in [("spec.drain", Reason::Invalid), ("", Reason::InternalError)] {
        add(&mut index, "p", slip(1, field));
        // Wants the same port, and does not get it.
        add(&mut index, "younger", policy(2, "t", 80));
        let update = index.fold(2);
        assert!(update.classes.is_empty(), "{:?}", update.classes);
        expect(&index, "p", accepted, reason, "is wrong; what it said as generation 1");
        expect(&index, "p", accepted, reason, "its endpoints as they are now");
        index.says("p Programmed Programmed");
        index.says("younger Accepted Conflicted: ns/p");
        assert_eq!(verdict(&index, "p").observed_generation, 2);
        assert_eq!(index.wants(), Wants::Nothing);
    }
    index.apply(slice("s", &[(1, READY), (2, LEAVING)]));
    let _ = index.fold(3);
    assert!(backends(&index).contains(&("pod-2".to_owned(), 1, true)));
    let mut better = policy(1, "s", 81);
    better.generation = 3;
    add(&mut index, "p", better);
    let _ = index.fold(4);
    index.says("p Accepted Accepted");
    assert_eq!(index.snapshot("class").next().expect("p").frontends[0].port(), 81);
    index.says("younger Accepted Accepted");
    // Deleted is deleted.
    add(&mut index, "p", slip(1, "spec.drain"));
    let _ = index.fold(5);
    index.apply(Change::Policy(key("p"), None));
    let _ = index.fold(6);
    assert_eq!(names(&index), ["ns/younger/http"]);
    // So is one that was deleted and made again.
    add(&mut index, "p", slip(7, "spec.drain"));
    let _ = index.fold(7);
    assert_eq!(names(&index), ["ns/younger/http"]);
}

#[test]
fn what_another_choice_takes_away_is_not_kept() {
    let mut index = index();
    let mut elsewhere = policy(1, "s", 80);
    elsewhere.classes = Labels::from_iter([("tier", "edge")]);
    add(&mut index, "p", elsewhere);
    let _ = index.fold(2);
    assert!(names(&index).is_empty());
    let reason = Reason::NoDataplaneClass;
    expect(&index, "p", ConditionKind::Accepted, reason, "tier=edge");
}

#[test]
fn after_a_restart_dataplanes_are_asked_for_what_cannot_be_used() {
    let before = held(&index());
    let mut index = world();
    add(&mut index, "p", slip(1, "spec.drain"));
    let _ = index.fold(2);
    let wants = index.wants();
    assert_eq!(wants, Wants::These([key("p")].into()));
    assert!(wants.include("ns/p/http") && !wants.include("ns/q/http") && !wants.include("p"));
    index.apply(Change::Held("class".into(), before.clone()));
    // The endpoints are not what they were, and nobody can tell.
    index.apply(slice("s", &[(1, READY)]));
    let _ = index.fold(3);
    assert_eq!(held(&index), before);
    index.says("p Accepted Invalid: dataplanes had of it when this operator began");
    index.says("p Accepted Invalid: with the endpoints of then");
    index.says("p Degraded BackendsNotFollowed: 2 backends are known only");
    // Where the Service can be read all the same, its endpoints are followed.
    let mut readable = slip(1, "spec.drain");
    readable.service = "s".into();
    readable.listeners = policy(1, "s", 80).listeners;
    add(&mut index, "p", readable);
    let _ = index.fold(4);
    assert_eq!(backends(&index), [("pod-1".to_owned(), 1, false)]);
    index.says("p Accepted Invalid: with its endpoints as they are now");
    index.says("p Degraded AsExpected");
    // Good again: nothing is asked for and nothing held any more.
    add(&mut index, "p", policy(1, "s", 80));
    let _ = index.fold(5);
    index.says("p Accepted Accepted");
    assert_eq!(index.wants(), Wants::Nothing);
    assert!(index.holdings.held.is_empty());
}

#[test]
fn what_nobody_asks_for_is_not_taken() {
    let before = held(&index());
    let mut index = world();
    // Deleted while no operator ran.
    index.apply(Change::Held("class".into(), before));
    let _ = index.fold(2);
    assert!(names(&index).is_empty() && index.holdings.held.is_empty());
}

#[test]
fn while_objects_may_be_missing_nothing_that_dataplanes_have_goes() {
    let mut old = index();
    add(&mut old, "q", policy(2, "t", 81));
    let _ = old.fold(2);
    let before = held(&old);
    // One file holds policy p, the Service of q and one of its pods; it is bad at the start.
    let mut index = world();
    index.apply(Change::Partial(true));
    index.apply(Change::Service(key("t"), None));
    add(&mut index, "q", policy(2, "t", 81));
    let _ = index.fold(3);
    assert_eq!(index.wants(), Wants::All);
    index.apply(Change::Held("class".into(), before.clone()));
    let _ = index.fold(4);
    assert_eq!(held(&index), before);
    index.says("p Accepted Invalid: correct the manifests");
    index.says("q Accepted TargetNotFound: what dataplanes had stays");
    // The Service is known again, and one of its pods: the other stays too.
    index.apply(service("t"));
    index.apply(slice("t", &[(3, LEAVING)]));
    let _ = index.fold(5);
    let q = |index: &Index| -> Vec<(String, bool)> {
        let all = held(index);
        let q = all.iter().find(|p| p.name == "ns/q/http").expect("q");
        q.backends.iter().map(|b| (b.name.clone(), b.draining)).collect()
    };
    assert_eq!(q(&index), [("pod-3".to_owned(), true), ("pod-4".to_owned(), false)]);
    index.says("q Degraded BackendsNotFollowed: 1 backend is known only");
    // A new policy does not get what one has that is not known.
    index.apply(service("n"));
    add(&mut index, "new", policy(3, "n", 80));
    let _ = index.fold(6);
    index.says("new Accepted Conflicted: ns/p");
    // All files are good: what is in none of them goes.
    index.apply(Change::Partial(false));
    let _ = index.fold(7);
    assert_eq!(names(&index), ["ns/new/http", "ns/q/http"]);
    assert_eq!(q(&index), [("pod-3".to_owned(), true)]);
    assert!(index.holdings.held.is_empty());
    assert_eq!(index.wants(), Wants::Nothing);
    assert!(!index.is_dirty());
}

#[test]
fn an_object_that_turns_up_takes_the_place_of_what_stood_in_for_it() {
    let before = held(&index());
    let mut index = world();
    index.apply(Change::Partial(true));
    let _ = index.fold(2);
    index.apply(Change::Held("class".into(), before.clone()));
    let _ = index.fold(3);
    add(&mut index, "p", policy(1, "s", 80));
    index.apply(Change::Partial(false));
    let update = index.fold(4);
    assert!(update.classes.is_empty(), "{:?}", update.classes);
    assert_eq!(held(&index), before);
    index.says("p Accepted Accepted");
}
