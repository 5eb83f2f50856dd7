//! Certificates through their lives, and real handshakes with them.

use crate::common::{Accept, Both, Fake, Operator, quick};
use baton_push::{
    Files, UnixSeconds,
    certificates::{
        Action, CA_LIFE, LEAF_LIFE, Reason, Role, SKEW, SPREAD, Stored, check_supplied, inspect,
        renew,
    },
    push::Tls,
};
use baton_tls::{Client, Material, Name, Server};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn material(files: &Files) -> Material {
    let part = |name| files.get(name).expect("a part");
    Material::from_pem(part("tls.crt"), part("tls.key"), part("ca.crt")).expect("good material")
}

/// Renews and stores.
fn renewed(now: UnixSeconds, stored: &mut Stored) -> Vec<Action> {
    let renewal = renew(now, stored).expect("renewed");
    if let Some(authority) = renewal.changed.authority {
        stored.authority = Some(authority);
    }
    stored.leaves.extend(renewal.changed.leaves);
    let next = renew(now, stored).expect("renewed");
    assert_eq!(next.actions, [], "all is done at once");
    assert_eq!(next.changed, Stored::default());
    assert!(next.next_look > now, "{} at {now}", next.next_look);
    renewal.actions
}

fn fresh(now: UnixSeconds) -> Stored {
    let mut stored = Stored::default();
    let actions = renewed(now, &mut stored);
    let mut expected = vec![Action::CreateAuthority];
    expected.extend(Role::ALL.map(|role| Action::Issue(role, Reason::Missing)));
    assert_eq!(actions, expected);
    stored
}

const START: UnixSeconds = UnixSeconds(1_800_000_000);

#[test]
fn what_is_made_is_good_for_its_holder_and_its_time() {
    let stored = fresh(START);
    let existing = inspect(&stored).expect("good");
    let ca = existing.authority.expect("made");
    assert_eq!(ca.current.not_before, START.minus(SKEW));
    assert_eq!(ca.current.not_after, START.plus(CA_LIFE));
    for (role, leaf) in &existing.leaves {
        assert_eq!(leaf.certificate.not_before, START.minus(SKEW));
        assert_eq!(leaf.certificate.not_after, START.plus(LEAF_LIFE));
        assert!(leaf.is_signed_by_current && leaf.is_for_role);
        assert_eq!(leaf.trusts, ca.trusted);
        assert_eq!(check_supplied(START, *role, &stored.leaves[role]).expect("good"), [""; 0]);
    }
}

#[test]
fn keys_are_in_no_debug_text() {
    let stored = fresh(START);
    let text = format!("{stored:?} {:?}", renew(START, &Stored::default()));
    assert!(!text.contains("PRIVATE") && !text.contains("BEGIN"), "{text}");
}

#[test]
fn leaves_are_made_anew_when_two_thirds_have_passed() {
    let mut stored = fresh(START);
    let look = renew(START, &stored).expect("renewed").next_look;
    assert_eq!(look, START.plus(LEAF_LIFE / 3 * 2));
    assert_eq!(renewed(look.minus(Duration::from_secs(1)), &mut stored), []);
    let expected = Role::ALL.map(|role| Action::Issue(role, Reason::Due));
    assert_eq!(renewed(look, &mut stored), expected);
}

/// Twelve years, as often as the plan asks for it: all leaves are always good and trusted by those
/// who hold any older state up to a day.
#[test]
fn a_ca_is_exchanged_with_overlap() {
    let mut now = START;
    let mut stored = fresh(now);
    let mut before = stored.clone();
    let mut changed_at = now;
    let mut seen = Vec::new();
    while now < START.plus(CA_LIFE + 700 * DAY) {
        now = renew(now, &stored).expect("renewed").next_look;
        let was = stored.clone();
        let actions = renewed(now, &mut stored);
        if was != stored {
            // Who has the state of before, which may be a day old, and who has the new one believe
            // each other.
            if now.since(changed_at) >= SPREAD {
                before = was;
            }
            changed_at = now;
            for (a, b) in [(&before, &stored), (&stored, &before), (&stored, &stored)] {
                assert_believes(now, a, b, &actions);
            }
        }
        seen.extend(actions.into_iter().filter(|a| !matches!(a, Action::Issue(..))));
    }
    let trust = Role::ALL.map(Action::Trust);
    let mut expected = vec![Action::AddNext];
    expected.extend(trust);
    expected.extend([Action::Promote, Action::DropOld]);
    expected.extend(trust);
    assert_eq!(seen, expected);
    let existing = inspect(&stored).expect("good");
    assert_eq!(existing.authority.expect("there").trusted.len(), 1);
}

/// Each holder in `a` trusts the CA of each leaf in `b`, which is good now.
fn assert_believes(now: UnixSeconds, a: &Stored, b: &Stored, actions: &[Action]) {
    let (a, b) = (inspect(a).expect("good"), inspect(b).expect("good"));
    let cas = b.authority.expect("there");
    for leaf in b.leaves.values() {
        let good = leaf.certificate.not_before..leaf.certificate.not_after;
        assert!(good.contains(&now), "a leaf is out of its time at {now} after {actions:?}");
        assert!(leaf.is_signed_by_current);
        for holder in a.leaves.values() {
            assert!(holder.trusts.contains(&cas.current), "at {now} after {actions:?}");
        }
    }
}

#[test]
fn what_is_damaged_is_made_anew_but_for_the_ca() {
    let good = fresh(START);
    for (file, bytes) in [("tls.key", "x"), ("tls.crt", ""), ("ca.crt", "-----BEGIN")] {
        let mut stored = good.clone();
        let leaf = stored.leaves.get_mut(&Role::Shim).expect("there");
        leaf.insert(file, bytes);
        let actions = renewed(START, &mut stored);
        assert_eq!(actions, [Action::Issue(Role::Shim, Reason::Missing)], "{file}");
        let mut stored = good.clone();
        let ca = stored.authority.as_mut().expect("there");
        ca.insert(file, bytes);
        let error = renew(START, &stored).expect_err("a damaged CA").to_string();
        assert!(error.contains(file) && error.contains("expected"), "{error}");
    }
    // Another role's certificate, and one of another CA.
    let mut stored = good.clone();
    let other = stored.leaves[&Role::Dataplane].clone();
    stored.leaves.insert(Role::Operator, other);
    let expected = [Action::Issue(Role::Operator, Reason::WrongName)];
    assert_eq!(renewed(START, &mut stored), expected);
    let mut stored = good.clone();
    stored.leaves.clone_from(&fresh(START).leaves);
    let expected = Role::ALL.map(|role| Action::Issue(role, Reason::OldAuthority));
    assert_eq!(renewed(START, &mut stored), expected);
    // A clock that was a year ahead.
    let mut stored = fresh(START.plus(365 * DAY));
    let expected = Role::ALL.map(|role| Action::Issue(role, Reason::NotYetGood));
    assert_eq!(renewed(START, &mut stored), expected);
}

#[test]
fn an_operator_that_ends_between_two_writes_goes_on() {
    let end = renew(START, &fresh(START)).expect("renewed").next_look;
    let mut stored = fresh(START);
    let mut now = end;
    // Only the CA's Secret is ever written before the end; the leaves follow with the next start.
    for _ in 0..400 {
        let renewal = renew(now, &stored).expect("renewed");
        if let Some(authority) = renewal.changed.authority {
            stored.authority = Some(authority);
        } else {
            stored.leaves.extend(renewal.changed.leaves);
        }
        let existing = inspect(&stored).expect("good");
        let trusted = existing.authority.expect("there").trusted;
        assert!((1..=2).contains(&trusted.len()));
        now = now.plus(10 * DAY);
    }
    renewed(now, &mut stored);
}

#[test]
fn supplied_material_is_used_as_it_is_and_judged() {
    let stored = fresh(START);
    let leaf = &stored.leaves[&Role::Dataplane];
    let judged =
        |after: Duration, role| check_supplied(START.plus(after), role, leaf).expect("good");
    assert_eq!(judged(60 * DAY, Role::Dataplane), [""; 0]);
    let soon = judged(80 * DAY, Role::Dataplane);
    assert!(
        soon.len() == 1 && soon[0].contains("`tls.crt` ends on") && soon[0].contains("in 10 days"),
        "{soon:?}"
    );
    let late = judged(91 * DAY, Role::Dataplane);
    assert!(late[0].contains("has ended on"), "{late:?}");
    let other = judged(DAY, Role::Operator);
    assert!(other.iter().any(|w| w.contains("operator.baton")), "{other:?}");
    assert!(other.iter().any(|w| w.contains("clientAuth")), "{other:?}");
    let mut wrong = leaf.clone();
    wrong.insert("tls.key", stored.leaves[&Role::Shim].get("tls.key").expect("a key"));
    let error = check_supplied(START, Role::Dataplane, &wrong).expect_err("another key");
    assert!(error.to_string().contains("tls.key"), "{error}");
    wrong.remove("ca.crt");
    let error = check_supplied(START, Role::Dataplane, &wrong).expect_err("no CA");
    assert!(error.to_string().contains("`ca.crt` is missing"), "{error}");
}

/// A dataplane that takes only the operator.
async fn tls_fake(server: Arc<Server>) -> Fake {
    let accept: Accept = Arc::new(move |stream| {
        let server = Arc::clone(&server);
        Box::pin(async move {
            let stream = server.accept(stream).await.ok()?;
            Some(Box::new(stream) as Box<dyn Both>)
        })
    });
    Fake::start_with(accept).await
}

#[tokio::test]
async fn a_push_goes_over_mutual_tls_while_the_ca_is_exchanged() {
    // Long ago enough that the CA is due for exchange today.
    let today = UnixSeconds::from(SystemTime::now());
    let mut stored = fresh(today.minus(CA_LIFE - 300 * DAY));
    let now = |days: u32| today.minus(2 * DAY).plus(DAY * days);
    renewed(now(0), &mut stored);
    let server = material(&stored.leaves[&Role::Dataplane]);
    let server = Arc::new(Server::new(Name::Dataplane, Name::Operator, server).expect("a server"));
    let fake = tls_fake(Arc::clone(&server)).await;
    let client = material(&stored.leaves[&Role::Operator]);
    let client = Arc::new(Client::new(Name::Operator, client).expect("a client"));
    let mut op = Operator::new(1, quick(), Arc::new(Tls(Arc::clone(&client))));
    op.targets(&[("a", &fake)]);
    let mut steps = Vec::new();
    for day in 0..3 {
        // The operator takes what is new at once, the dataplane a step later.
        steps.extend(renewed(now(day), &mut stored));
        client.replace(material(&stored.leaves[&Role::Operator])).expect("good");
        fake.restart();
        let version = op.publish(&[&format!("p{day}")]);
        op.acknowledged("a", version).await;
        server.replace(material(&stored.leaves[&Role::Dataplane])).expect("good");
    }
    assert!(steps.contains(&Action::Promote), "{steps:?}");
    // A client of another CA is refused by the dataplane, which it believes.
    let mut stranger = fresh(today).leaves[&Role::Operator].clone();
    let ours = &stored.leaves[&Role::Operator];
    stranger.insert("ca.crt", ours.get("ca.crt").expect("CAs"));
    let stranger = material(&stranger);
    let stranger = Arc::new(Client::new(Name::Operator, stranger).expect("a client"));
    let mut other = Operator::new(9, quick(), Arc::new(Tls(stranger)));
    other.publish(&["evil"]);
    other.targets(&[("a", &fake)]);
    let problem = other
        .report("unreachable", |report| match &report.result {
            baton_push::push::Outcome::Unreachable(baton_push::push::Unreached {
                problem, ..
            }) => Some(problem.clone()),
            _ => None,
        })
        .await;
    println!("a stranger is told: {problem}");
    assert!(fake.puts().iter().all(|(_, names)| names != &["evil"]));
}
