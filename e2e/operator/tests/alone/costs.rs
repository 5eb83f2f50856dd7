//! A deletion cost that one operator wrote goes also if the policy stops asking for it while nobody
//! leads.

use anyhow::{Context, Result};
use baton_operator_tests::{
    class::{Class, NODE},
    cluster::pod,
    objects::{Load, figures, served_policy, service, slice_of_pods},
    or_skip,
    world::World,
};
use serde_json::Value;

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

fn cost(pod: &Value) -> Option<&str> {
    pod["metadata"]["annotations"][COST].as_str()
}

#[tokio::test]
async fn the_next_operator_removes_what_nobody_asks_for_any_more() -> Result<()> {
    let mut world = or_skip!(World::alone().await?);
    let namespace = world.server.namespace("costs").await?.name;
    let first = world.start_operator("costs", &[])?;
    let admin = world.admin.clone();
    let class = Class::start(&admin, "costs-again", 1).await?;
    let backend = pod(&namespace, "a");
    admin.pod(&backend, NODE, "10.1.0.1").await?;
    admin.apply(&service(&namespace, "web")).await?;
    let slice = slice_of_pods(&namespace, "web", NODE, &[("a", "10.1.0.1")]);
    admin.apply(&slice).await?;
    let mut policy = class.policy(&namespace, "web", "web", 8_080);
    policy["spec"]["podDeletionCost"] = "Enabled".into();
    admin.apply(&policy).await?;
    let one = |s: &baton_api::Snapshot| {
        served_policy(s, &namespace, "web").is_some_and(|p| p.backends.len() == 1)
    };
    let served = class.served(&admin, one).await?;
    let served = served_policy(&served[0].snapshot, &namespace, "web").context("a policy")?;
    let load = |flows| Load { flows, ..Load::default() };
    class.dataplanes[0].set_figures(vec![figures(served, &[("a", load(30))])]);
    let costs = |flows: &'static str| move |pod: &Value| cost(pod) == Some(flows);
    admin.until("a costs 30", &backend, costs("30")).await?;

    // The next one goes on with it.
    first.kill()?;
    let second = world.start_operator("costs", &[])?;
    class.dataplanes[0].set_figures(vec![figures(served, &[("a", load(50))])]);
    admin.until("a costs 50", &backend, costs("50")).await?;

    second.kill()?;
    policy["spec"]["podDeletionCost"] = "Disabled".into();
    admin.apply(&policy).await?;
    let _third = world.start_operator("costs", &[])?;
    admin.condition(&policy, "Programmed", "True").await?;
    world.admin.until("the cost is gone", &backend, |pod| cost(pod).is_none()).await?;
    Ok(())
}
