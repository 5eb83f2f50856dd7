//! How host-shims cover the Nodes and Pods of policies.

use super::*;

fn shim(index: &mut Index, node: &str, shim: Option<Shim>) {
    index.apply(Change::Shim(node.into(), shim.map(Arc::new)));
    let _ = index.fold(2);
}

fn labels(all: &[(&'static str, usize)]) -> Vec<(&'static str, usize)> {
    all.iter().copied().filter(|(_, count)| *count > 0).collect()
}

fn nodes(index: &Index) -> Vec<(&'static str, usize)> {
    labels(&index.coverage().nodes())
}

fn pods(index: &Index) -> Vec<(&'static str, usize)> {
    labels(&index.coverage().pods())
}

#[test]
fn each_node_and_pod_of_a_policy_counts_once_by_what_is_in_the_way() {
    let mut index = index();
    // Two listeners lead to the same Pods; Service `t` has no policy.
    let mut two = policy(1, "s", 80);
    let second = Listener { name: "again".into(), port: 81, ..two.listeners[0].clone() };
    two.listeners.push(second);
    add(&mut index, "p", two);
    let _ = index.fold(2);
    assert_eq!(nodes(&index), [("unknown", 1)]);
    assert_eq!(pods(&index), []);

    shim(&mut index, "other", Some(Shim::default()));
    assert_eq!(nodes(&index), [("missing", 1)]);
    assert_eq!(pods(&index), [("no_shim", 2)]);

    let away = Shim { unreachable: Some("no answer".into()), ..Shim::default() };
    shim(&mut index, "node", Some(away));
    assert_eq!(nodes(&index), [("unreachable", 1)]);
    assert_eq!(pods(&index), [("shim_unreachable", 2)]);

    let failing =
        Shim { unreachable: None, unattached: [(key("pod-2"), "kernel 5.10".into())].into() };
    shim(&mut index, "node", Some(failing));
    assert_eq!(nodes(&index), [("works", 1)]);
    assert_eq!(pods(&index), [("not_attached", 1)]);

    // What its host-shim says is not asked for then.
    index.apply(Change::Excluded(["node".into()].into()));
    let _ = index.fold(3);
    assert_eq!(nodes(&index), [("node_excluded", 1)]);
    assert_eq!(pods(&index), [("node_excluded", 2)]);

    let node = Node { ready: false, cordoned: false, zone: None };
    index.apply(Change::Node("node".into(), Some(Arc::new(node))));
    let _ = index.fold(3);
    assert_eq!(nodes(&index), [("node_not_ready", 1)]);
    assert_eq!(pods(&index), [("node_not_ready", 2)]);
}

#[test]
fn pods_that_leave_need_no_adopter() {
    let mut index = index();
    shim(&mut index, "other", Some(Shim::default()));
    assert_eq!(pods(&index), [("no_shim", 2)]);
    index.apply(slice("s", &[(1, LEAVING), (2, READY)]));
    let _ = index.fold(3);
    assert_eq!(pods(&index), [("no_shim", 1)]);
    index.apply(Change::Policy(key("p"), None));
    let _ = index.fold(4);
    assert_eq!(index.coverage(), Coverage::default());
}
