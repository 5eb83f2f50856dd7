//! `Degraded` where most of a policy's flows can never move.

use super::*;
use crate::standing::snapshot_name;
use baton_api::MigrationMode;

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
    let value = Figures {
        at,
        uptime,
        policies,
    };
    index.apply(Change::Figures(key("pod-200"), Some(Arc::new(value))));
    index.fold(at)
}

fn reason(index: &Index) -> Reason {
    verdict(index, "p")
        .condition(ConditionKind::Degraded)
        .reason
}

#[test]
fn an_event_and_a_condition_say_that_most_flows_cannot_move_and_why() {
    let mut index = index();
    let update = has(&mut index, 10, 100, 20, 31);
    let [event] = update.events.as_slice() else {
        panic!("{:?}", update.events);
    };
    assert_eq!(
        (event.reason, event.warning),
        (Reason::FewFlowsCanMove, true)
    );
    assert!(
        event.message.contains("because of upgrade, TLS:"),
        "{event:?}"
    );
    let said = verdict(&index, "p");
    let degraded = said.condition(ConditionKind::Degraded);
    assert_eq!(degraded.status, Status::True);
    let pinned: Vec<_> = said.pinned.iter().map(|(r, f)| (&**r, *f)).collect();
    assert_eq!(pinned, [("TLS", 20), ("upgrade", 31)]);
    // Other numbers are no other condition, and no Event.
    let update = has(&mut index, 11, 1_000, 300, 400);
    assert!(update.events.is_empty(), "{:?}", update.events);
    assert_eq!(
        verdict(&index, "p").condition(ConditionKind::Degraded),
        degraded
    );
}

#[test]
fn it_is_said_until_clearly_more_than_half_can_and_for_a_minute() {
    let mut index = index();
    has(&mut index, 10, 100, 50, 0);
    assert_eq!(reason(&index), Reason::AsExpected, "half of them");
    has(&mut index, 20, 100, 51, 0);
    assert_eq!(reason(&index), Reason::FewFlowsCanMove);
    // Clients that come and go make no Event each time.
    let update = has(&mut index, 79, 100, 1, 0);
    assert_eq!(
        (reason(&index), update.events.len()),
        (Reason::FewFlowsCanMove, 0)
    );
    has(&mut index, 80, 100, 40, 0);
    assert_eq!(reason(&index), Reason::FewFlowsCanMove, "60 of 100");
    let update = has(&mut index, 81, 100, 39, 0);
    assert_eq!(reason(&index), Reason::AsExpected);
    assert!(!update.events[0].warning, "{:?}", update.events);
    // All connections that cannot move are gone: at once.
    has(&mut index, 82, 100, 100, 0);
    has(&mut index, 83, 0, 0, 0);
    assert_eq!(reason(&index), Reason::AsExpected);
}

#[test]
fn a_few_flows_say_nothing_nor_do_policies_that_want_no_moves() {
    let mut index = index();
    has(&mut index, 10, 19, 19, 0);
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
        has(&mut index, 11, 100, 100, 0);
        assert_eq!(reason(&index), Reason::AsExpected);
    }
    add(&mut index, "p", policy(1, "s", 80));
    has(&mut index, 12, 100, 100, 0);
    assert_eq!(reason(&index), Reason::FewFlowsCanMove);
}
