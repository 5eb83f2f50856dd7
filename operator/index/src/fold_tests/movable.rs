//! How many flows can move, and `Degraded` where most of them never can.

use super::{
    figures::{backend, figures},
    *,
};
use crate::standing::snapshot_name;
use baton_api::{MigrationMode, MoveMethod};

/// What the dataplane says from now on: so many flows, of which so many are pinned by TLS, and so
/// many by an upgrade.
fn has(index: &mut Index, at: i64, flows: u64, tls: u64, upgrade: u64) -> Update {
    let name = snapshot_name(&key("p"), &policy(1, "s", 80).listeners[0]);
    let pinned = [("TLS", tls), ("upgrade", upgrade)];
    let policies = vec![PolicyFigures {
        name: name.into(),
        flows,
        pinned: pinned.map(|(why, flows)| (why.into(), flows)).into(),
        ..PolicyFigures::default()
    }];
    let uptime = 1;
    let value = Figures { at, uptime, policies };
    index.apply(Change::Figures(key("pod-200"), Some(Arc::new(value))));
    index.fold(at)
}

fn reason(index: &Index) -> Reason {
    verdict(index, "p").condition(ConditionKind::Degraded).reason
}

#[test]
fn an_event_and_a_condition_say_that_most_flows_cannot_move_and_why() {
    let mut index = index();
    let update = has(&mut index, 10, 100, 20, 31);
    let [event] = update.events.as_slice() else {
        panic!("{:?}", update.events);
    };
    assert_eq!((event.reason, event.warning), (Reason::FewFlowsCanMove, true));
    assert!(event.message.contains("because of TLS, upgrade:"), "{event:?}");
    let said = verdict(&index, "p");
    let degraded = said.condition(ConditionKind::Degraded);
    assert_eq!(degraded.status, Status::True);
    let pinned: Vec<_> = said.pinned.iter().map(|(r, f)| (&**r, *f)).collect();
    assert_eq!(pinned, [("TLS", 20), ("upgrade", 31)]);
    // Other numbers are no other condition, and no Event, whichever reason has more of them.
    let update = has(&mut index, 11, 1_000, 400, 300);
    assert!(update.events.is_empty(), "{:?}", update.events);
    assert_eq!(verdict(&index, "p").condition(ConditionKind::Degraded), degraded);
}

#[test]
fn it_is_said_until_clearly_more_than_half_can_and_for_a_minute() {
    let mut index = index();
    let _ = has(&mut index, 10, 100, 50, 0);
    assert_eq!(reason(&index), Reason::AsExpected, "half of them");
    let _ = has(&mut index, 20, 100, 51, 0);
    assert_eq!(reason(&index), Reason::FewFlowsCanMove);
    // Clients that come and go make no Event each time.
    let update = has(&mut index, 79, 100, 1, 0);
    assert_eq!((reason(&index), update.events.len()), (Reason::FewFlowsCanMove, 0));
    let _ = has(&mut index, 80, 100, 40, 0);
    assert_eq!(reason(&index), Reason::FewFlowsCanMove, "60 of 100");
    let update = has(&mut index, 81, 100, 39, 0);
    assert_eq!(reason(&index), Reason::AsExpected);
    assert!(!update.events[0].warning, "{:?}", update.events);
    // All connections that cannot move are gone: at once.
    let _ = has(&mut index, 82, 100, 100, 0);
    let _ = has(&mut index, 83, 0, 0, 0);
    assert_eq!(reason(&index), Reason::AsExpected);
}

#[test]
fn a_few_flows_say_nothing_nor_do_policies_that_want_no_moves() {
    let mut index = index();
    let _ = has(&mut index, 10, 19, 19, 0);
    assert_eq!(reason(&index), Reason::AsExpected);
    let quiet: [fn(&mut baton_api::Policy); 2] = [
        |policy| policy.migration.mode = MigrationMode::Never,
        |policy| policy.protocol = baton_api::Protocol::None,
    ];
    for change in quiet {
        let mut one = policy(1, "s", 80);
        if let Ok(template) = &mut one.template {
            change(Arc::make_mut(template));
        }
        add(&mut index, "p", one);
        let _ = has(&mut index, 11, 100, 100, 0);
        assert_eq!(reason(&index), Reason::AsExpected);
    }
    add(&mut index, "p", policy(1, "s", 80));
    let _ = has(&mut index, 12, 100, 100, 0);
    assert_eq!(reason(&index), Reason::FewFlowsCanMove);
}

/// Where neither backend adopts, and one was unlike the others or accepts nothing.
#[test]
fn none_moves_by_translation_to_where_no_connection_can_be_opened() {
    for (unadoptable, untranslatable, method, expected) in [
        (Some("no adopter"), Some("no TCP timestamps"), MoveMethod::Auto, (0, 5)),
        (Some("no adopter"), Some("no TCP timestamps"), MoveMethod::Translation, (0, 5)),
        (Some("accept queue full"), Some("accept queue full"), MoveMethod::Auto, (0, 5)),
        // By adoption it can.
        (None, Some("no TCP timestamps"), MoveMethod::Auto, (10, 5)),
        (None, Some("no TCP timestamps"), MoveMethod::Translation, (0, 5)),
    ] {
        let mut index = index();
        let mut policy = policy(1, "s", 80);
        if let Ok(template) = &mut policy.template {
            Arc::make_mut(template).migration.method = method;
        }
        add(&mut index, "p", policy);
        let other = BackendFigures {
            untranslatable: untranslatable.map(Into::into),
            ..backend("pod-2", 5, unadoptable)
        };
        let one = backend("pod-1", 10, Some("no adopter"));
        index.apply(figures(1, 0, vec![one, other]));
        let _ = index.fold(2);
        let movable = verdict(&index, "p").movable;
        let is = (movable.by_adoption, movable.by_translation);
        assert_eq!(is, expected, "{unadoptable:?} {untranslatable:?} {method:?}");
    }
}

/// Both backends have 10 flows, of which 3 are pinned.
#[test]
fn flows_can_move_where_another_backend_takes_them() {
    let refuses = Some("an MPTCP listener?");
    let cases = [
        ((None, None), MoveMethod::Auto, (14, 0)),
        // Only to the one that adopts by adoption.
        ((None, refuses), MoveMethod::Auto, (7, 7)),
        ((None, refuses), MoveMethod::Adoption, (7, 0)),
        ((refuses, refuses), MoveMethod::Auto, (0, 14)),
        ((refuses, refuses), MoveMethod::Adoption, (0, 0)),
        ((None, None), MoveMethod::Translation, (0, 14)),
    ];
    for ((one, other), method, (by_adoption, by_translation)) in cases {
        let mut index = index();
        let mut policy = policy(1, "s", 80);
        if let Ok(template) = &mut policy.template {
            Arc::make_mut(template).migration.method = method;
        }
        add(&mut index, "p", policy);
        let backends = [("pod-1", one), ("pod-2", other)];
        let backends =
            backends.map(|(name, why)| BackendFigures { pinned: 3, ..backend(name, 10, why) });
        index.apply(figures(1, 0, backends.to_vec()));
        let _ = index.fold(2);
        let expected = Movable { by_adoption, by_translation };
        assert_eq!(verdict(&index, "p").movable, expected, "{one:?} {other:?} {method:?}");
        // The only one that takes connections has nobody to hand its own to.
        index.apply(slice("s", &[(1, READY), (2, UNREADY)]));
        let _ = index.fold(3);
        let movable = verdict(&index, "p").movable;
        assert!(movable.by_adoption + movable.by_translation <= 7, "{movable:?}");
    }
}
