//! The condition `Adoptable`, by what dataplanes and host-shims say and by the policy's method.

use super::{
    figures::{backend, figures},
    *,
};
use baton_api::MoveMethod;

/// Policy `p` with a method.
fn by(method: MoveMethod) -> Index {
    let mut index = index();
    let mut one = policy(1, "s", 80);
    if let Ok(template) = &mut one.template {
        Arc::make_mut(template).migration.method = method;
    }
    add(&mut index, "p", one);
    let _ = index.fold(1);
    index
}

#[test]
fn adoptable_names_the_pod_the_node_and_the_shim() {
    let mut index = by(MoveMethod::Adoption);
    let adoptable = ConditionKind::Adoptable;
    index.says("p Adoptable NotProbed: 2 of 2 backends");
    index.apply(figures(1, 0, vec![backend("pod-1", 2, None), backend("pod-2", 0, None)]));
    let _ = index.fold(2);
    index.says("p Adoptable Adoptable: all backends");
    let why = Some("no adopter (is host-shim running there?)");
    index.apply(figures(2, 0, vec![backend("pod-1", 2, None), backend("pod-2", 0, why)]));
    let _ = index.fold(3);
    index.says("p Adoptable BackendsNotAdoptable: 1 of 2 backends: pod-2: no adopter");
    let shim = |pods: &[&str]| {
        let unattached = pods.iter().map(|name| (key(name), "kernel 5.10".into()));
        let shim = Shim { unreachable: None, unattached: unattached.collect() };
        Change::Shim("node".into(), Some(Arc::new(shim)))
    };
    index.apply(shim(&["pod-2"]));
    let _ = index.fold(4);
    expect(
        &index,
        "p",
        adoptable,
        Reason::BackendsNotAdoptable,
        "1 of 2 backends: pod-2: the host-shim of node node cannot have it adopt: kernel 5.10",
    );
    // What holds of several is said once.
    index.apply(figures(3, 0, vec![backend("pod-1", 2, why), backend("pod-2", 0, why)]));
    index.apply(shim(&["pod-1", "pod-2"]));
    let _ = index.fold(4);
    expect(
        &index,
        "p",
        adoptable,
        Reason::BackendsNotAdoptable,
        "2 of 2 backends: pod-1, pod-2: the host-shim of node node cannot",
    );
    index.apply(Change::Shim("other".into(), Some(Arc::new(Shim::default()))));
    index.apply(Change::Shim("node".into(), None));
    let _ = index.fold(5);
    expect(
        &index,
        "p",
        adoptable,
        Reason::BackendsNotAdoptable,
        "pod-1, pod-2: no adopter (is host-shim running there?), and no host-shim runs on node node",
    );
}

#[test]
fn what_does_not_adopt_is_moved_to_by_translation() {
    let adoptable = ConditionKind::Adoptable;
    let why = Some("no adopter");
    let mut index = by(MoveMethod::Auto);
    let mut said = |method, pods: Vec<BackendFigures>, reason, part: &str| {
        let mut one = policy(1, "s", 80);
        if let Ok(template) = &mut one.template {
            Arc::make_mut(template).migration.method = method;
        }
        add(&mut index, "p", one);
        index.apply(figures(1, 0, pods));
        let _ = index.fold(2);
        expect(&index, "p", adoptable, reason, part);
        verdict(&index, "p").condition(adoptable).status
    };
    let pods = || vec![backend("pod-1", 2, None), backend("pod-2", 0, why)];
    let some = "to 1 of 2 backends by translation, one round trip longer: pod-2: no adopter";
    let status = said(MoveMethod::Auto, pods(), Reason::ByTranslation, some);
    assert_eq!(status, Status::True);
    let status =
        said(MoveMethod::Translation, pods(), Reason::Adoptable, "all backends, by translation");
    assert_eq!(status, Status::True);
    // Nor can it where the queue of connections to accept is full.
    let full = || {
        let mut pods = pods();
        pods[1].unadoptable = Some("accept queue full".into());
        pods[1].untranslatable = Some("accept queue full".into());
        pods
    };
    let unlike = || {
        let mut pods = pods();
        pods[1].untranslatable = Some("no TCP timestamps".into());
        pods
    };
    let none = Reason::BackendsNotAdoptable;
    let either = "pod-2: accept queue full, so no connection can be opened there either";
    for (method, pods, part) in [
        (MoveMethod::Auto, full(), either),
        (MoveMethod::Translation, full(), "pod-2: accept queue full"),
        (MoveMethod::Auto, unlike(), "pod-2: no adopter, and not by translation either: no TCP"),
        (MoveMethod::Translation, unlike(), "pod-2: no TCP timestamps"),
        (MoveMethod::Adoption, unlike(), "pod-2: no adopter"),
    ] {
        assert_eq!(said(method, pods, none, part), Status::False);
    }
    // No connection can be opened where nobody listens.
    let dead = || {
        let mut pods = pods();
        pods[1].unusable = Some("down: nothing listens on the port".into());
        pods
    };
    for (method, part) in [
        (MoveMethod::Auto, "1 of 2 backends: pod-2: no adopter"),
        (MoveMethod::Translation, "1 of 2 backends: pod-2: down"),
        (MoveMethod::Adoption, "1 of 2 backends: pod-2: no adopter"),
    ] {
        assert_eq!(said(method, dead(), none, part), Status::False);
    }
}
