//! Whether a Service leads clients to a listener's port of the dataplanes, as the operator sees it
//! with the rights that it has.

use anyhow::{Result, ensure};
use baton_operator_tests::{
    OPERATOR_NAMESPACE,
    class::{Class, NODE},
    objects::{service, slice, slice_of_pods},
    or_skip,
    world::World,
};
use serde_json::Value;

#[tokio::test]
async fn a_port_that_no_service_leads_to_is_said_and_the_policy_is_ready() -> Result<()> {
    let world = or_skip!(World::together().await?);
    let admin = &world.admin;
    let namespace = world.server.namespace("reach").await?.name;
    let class = Class::start(admin, "reach", 1).await?;
    for object in [service(&namespace, "web"), slice(&namespace, "web", &["10.6.0.1"])] {
        admin.apply(&object).await?;
    }
    let policy = class.policy(&namespace, "web", "web", 8_091);
    admin.apply(&policy).await?;
    let unreached = |c: &Value| c["reason"] == "NoServicePort";
    let said = admin.condition_where("it is said", &policy, "Degraded", unreached).await?;
    let message = said["message"].as_str().unwrap_or_default();
    ensure!(said["status"] == "True" && message.contains("port 8091 (listener main)"), "{said}");
    admin.condition(&policy, "Ready", "True").await?;

    // A Service in front of the dataplane, with another port and then with this one.
    let pod = class.pod_name(0);
    let front = "reach-front";
    let mut slice = slice_of_pods(OPERATOR_NAMESPACE, front, NODE, &[(&pod, "10.6.0.2")]);
    for (port, status) in [(8_092, "True"), (8_091, "False"), (8_092, "True")] {
        slice["ports"][0]["port"] = port.into();
        admin.apply(&slice).await?;
        admin.condition(&policy, "Degraded", status).await?;
    }
    admin.delete(&slice).await
}
