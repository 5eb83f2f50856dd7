//! `controller.kubernetes.io/pod-deletion-cost` on pods of a policy that asks for it: it follows
//! what dataplanes count, and goes when nobody asks for it any more.

use anyhow::{Context, Result};
use baton_operator_tests::{
    class::{Class, NODE},
    cluster::pod,
    objects::{Load, figures, served_policy, service, slice_of_pods},
    or_skip,
    world::World,
};
use serde_json::{Value, json};

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

fn cost(pod: &Value) -> Option<&str> {
    pod["metadata"]["annotations"][COST].as_str()
}

fn flows(flows: u64) -> Load {
    Load { flows, ..Load::default() }
}

#[tokio::test]
async fn the_cost_follows_the_flows_and_goes_with_the_wish() -> Result<()> {
    let world = or_skip!(World::together().await?);
    let admin = &world.admin;
    let namespace = world.server.namespace("costs").await?.name;
    let class = Class::start(admin, "costs", 2).await?;
    let addresses = [("a", "10.1.0.1"), ("b", "10.1.0.2"), ("c", "10.1.0.3")];
    let [a, b, c] = ["a", "b", "c"].map(|name| pod(&namespace, name));
    for (pod, (_, address)) in [&a, &b].into_iter().zip(addresses) {
        admin.pod(pod, NODE, address).await?;
    }
    // Somebody else says what the deletion of this one costs.
    let mut owned = c.clone();
    owned["metadata"]["annotations"][COST] = "-7".into();
    admin.pod(&owned, NODE, "10.1.0.3").await?;
    admin.apply(&service(&namespace, "web")).await?;
    let slice = slice_of_pods(&namespace, "web", NODE, &addresses);
    admin.apply(&slice).await?;
    let mut policy = class.policy(&namespace, "web", "web", 8_080);
    admin.apply(&policy).await?;
    let three = |s: &baton_api::Snapshot| {
        served_policy(s, &namespace, "web").is_some_and(|p| p.backends.len() == 3)
    };
    let served = class.served(admin, three).await?;
    let served = served_policy(&served[0].snapshot, &namespace, "web").context("a policy")?;

    // Of ten flows two can never move (100 each), three wait for an answer (10 each), five are at
    // rest (1 each); fifty more are at rest on the other dataplane. Costs that differ by a tenth or
    // less are as good as equal, so none do here.
    let dear = Load { flows: 10, pinned: 2, outstanding: 3, obstacle: None };
    class.dataplanes[0].set_figures(vec![figures(served, &[("a", dear)])]);
    class.dataplanes[1].set_figures(vec![figures(served, &[("a", flows(50)), ("c", flows(9))])]);
    policy["spec"]["podDeletionCost"] = "Enabled".into();
    admin.apply(&policy).await?;
    admin.until("a costs 285", &a, |pod| cost(pod) == Some("285")).await?;
    admin.until("b costs nothing", &b, |pod| cost(pod) == Some("0")).await?;
    admin.until("69 flows", &policy, |p| p["status"]["flows"] == 69).await?;

    class.dataplanes[0].set_figures(vec![figures(served, &[("b", flows(100))])]);
    class.dataplanes[1].set_figures(vec![figures(served, &[])]);
    admin.until("b costs 100", &b, |pod| cost(pod) == Some("100")).await?;
    admin.until("a costs nothing", &a, |pod| cost(pod) == Some("0")).await?;

    policy["spec"]["podDeletionCost"] = "Disabled".into();
    admin.apply(&policy).await?;
    for pod in [&a, &b] {
        let left = admin.until("the cost is gone", pod, |pod| cost(pod).is_none()).await?;
        assert_eq!(left["metadata"]["annotations"], json!({ "kept": "as it is" }));
    }
    assert_eq!(cost(&admin.get(&c).await?), Some("-7"));
    Ok(())
}
