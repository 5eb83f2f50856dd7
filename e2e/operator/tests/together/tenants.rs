//! Two tenants of one class, of whom one tries what is not theirs: ports, addresses, other
//! namespaces' Pods. It is told so in its own policies' statuses, and the other one's policies are
//! served as before.

use anyhow::{Context, Result};
use baton_api::Snapshot;
use baton_operator_tests::{
    class::{Class, NODE},
    cluster::pod,
    objects::{has, served_policy, service, slice, slice_of_pods},
    or_skip,
    world::World,
};
use serde_json::{Value, json};

/// A namespace with a Service `web` and a Pod of it, which has one of these.
struct Tenant {
    namespace: String,
    address: String,
}

struct Two {
    world: World,
    class: Class,
    good: Tenant,
    evil: Tenant,
}

impl Two {
    /// The good one's policy `web` is served at port 8000. `allowed` is what is granted to the two
    /// namespaces.
    async fn start(
        name: &str,
        network: u8,
        allowed: impl Fn(&str, &str) -> Value,
    ) -> Result<Option<Self>> {
        let Some(world) = World::together().await? else {
            return Ok(None);
        };
        let tenant = async |kind: &str, last: u8| {
            let namespace = world.server.namespace(&format!("{name}-{kind}")).await?.name;
            let address = format!("10.{network}.0.{last}");
            let admin = &world.admin;
            admin.apply(&service(&namespace, "web")).await?;
            admin.pod(&pod(&namespace, "web-0"), NODE, &address).await?;
            let pods = [("web-0", address.as_str())];
            let slice = slice_of_pods(&namespace, "web", NODE, &pods);
            admin.apply(&slice).await?;
            anyhow::Ok(Tenant { namespace, address })
        };
        let (good, evil) = (tenant("good", 1).await?, tenant("evil", 2).await?);
        let spec = json!({
            "allowed": allowed(&good.namespace, &evil.namespace),
            "reservedPorts": ["9910", "10250"],
        });
        let class = Class::start_as(&world.admin, name, 1, &spec).await?;
        let two = Self { world, class, good, evil };
        two.goes_on(0).await?;
        Ok(Some(two))
    }

    /// What the good one writes is served.
    async fn goes_on(&self, number: u16) -> Result<()> {
        let (admin, namespace) = (&self.world.admin, &self.good.namespace);
        let name = format!("web-{number}");
        admin.apply(&service(namespace, &name)).await?;
        let pods = [("web-0", self.good.address.as_str())];
        let slice = slice_of_pods(namespace, &name, NODE, &pods);
        admin.apply(&slice).await?;
        let policy = self.class.policy(namespace, &name, &name, 8_000 + number);
        admin.apply(&policy).await?;
        admin.condition(&policy, "Programmed", "True").await?;
        let served = self.class.served(admin, has(namespace, &name)).await?;
        let served = served_policy(&served[0].snapshot, namespace, &name).context("served")?;
        assert_eq!(served.backends.len(), 1);
        Ok(())
    }

    /// The evil one's policy is refused for this reason and with these words, and is in no
    /// snapshot.
    async fn refused(&self, policy: &Value, reason: &str, words: &[&str]) -> Result<()> {
        let admin = &self.world.admin;
        admin.apply(policy).await?;
        let what = format!("{reason}: {words:?}");
        let said = |c: &Value| {
            let message = c["message"].as_str().unwrap_or_default();
            c["status"] == "False"
                && c["reason"] == reason
                && words.iter().all(|words| message.contains(words))
        };
        admin.condition_where(&what, policy, "Accepted", said).await?;
        let none = |s: &Snapshot| served_policy(s, &self.evil.namespace, "web").is_none();
        self.class.served(admin, none).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_tenant_gets_no_port_and_no_address_that_it_is_not_allowed() -> Result<()> {
    let allowed = |good: &str, evil: &str| {
        json!([
            { "namespaces": { "names": [good] }, "ports": ["22", "8000-8999"], "addresses": ["192.0.2.1"] },
            { "namespaces": { "names": [evil] } },
        ])
    };
    let two = or_skip!(Two::start("ports", 11, allowed).await?);
    let (admin, evil) = (&two.world.admin, &two.evil.namespace);
    let policy = |port| two.class.policy(evil, "web", "web", port);
    let control = two.class.dataplanes[0].address().port();
    for (port, reason, words) in [
        (22, "NotAllowed", "ports 1024-65535 of the dataplanes' own addresses"),
        (10_250, "PortReserved", "spec.reservedPorts"),
        (9_910, "PortReserved", "expected another port"),
        (control, "PortReserved", "spec.controlPort"),
        (1_100, "PortInLegRange", "1024 to 1151"),
    ] {
        let number = port.to_string();
        let words = [words, number.as_str()];
        two.refused(&policy(port), reason, &words).await?;
    }
    // Another tenant's Pod and its granted address; the dataplane's own one is.
    for address in [two.good.address.as_str(), "192.0.2.1"] {
        let mut elsewhere = policy(8_500);
        elsewhere["spec"]["listeners"][0]["addresses"] = json!([address]);
        let words = [address, "an admin of BatonDataplane ports change its spec.allowed"];
        two.refused(&elsewhere, "NotAllowed", &words).await?;
    }
    two.goes_on(1).await?;
    let own = two.class.dataplanes[0].address().ip().to_string();
    let mut here = policy(8_500);
    here["spec"]["listeners"][0]["addresses"] = json!([own]);
    admin.apply(&here).await?;
    admin.condition(&here, "Programmed", "True").await?;

    // Who is in no entry may have nothing.
    let nobody =
        json!([{ "namespaces": { "names": [two.good.namespace] }, "ports": ["8000-8999"] }]);
    let class = two.class.manifest(&json!({ "allowed": nobody }));
    admin.apply(&class).await?;
    let words = [evil.as_str(), "may have nothing"];
    two.refused(&here, "NotAllowed", &words).await?;
    two.goes_on(2).await
}

#[tokio::test]
async fn a_namespaces_labels_say_what_it_is_allowed() -> Result<()> {
    let allowed = |good: &str, _: &str| {
        json!([
            { "namespaces": { "names": [good] } },
            { "namespaces": { "matchLabels": { "tier": "front" } } },
        ])
    };
    let two = or_skip!(Two::start("labels", 12, allowed).await?);
    let (admin, evil) = (&two.world.admin, &two.evil.namespace);
    let policy = two.class.policy(evil, "web", "web", 8_500);
    two.refused(&policy, "NotAllowed", &["may have nothing"]).await?;
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": evil } });
    let label = |value: Value| json!({ "metadata": { "labels": { "tier": value } } });
    admin.merge(&object, "", &label("front".into())).await?;
    admin.condition(&policy, "Programmed", "True").await?;
    two.class.served(admin, has(evil, "web")).await?;
    admin.merge(&object, "", &label(Value::Null)).await?;
    two.refused(&policy, "NotAllowed", &["may have nothing"]).await?;
    two.goes_on(1).await
}

#[tokio::test]
async fn endpoints_that_are_another_namespaces_pods_are_not_used() -> Result<()> {
    let Some(two) = Two::start("foreign", 13, |_, _| json!([{ "namespaces": {} }])).await? else {
        return Ok(());
    };
    let (admin, evil) = (&two.world.admin, &two.evil.namespace);
    let policy = two.class.policy(evil, "web", "web", 8_500);
    admin.apply(&policy).await?;
    let (own, victim) = (two.evil.address.as_str(), two.good.address.as_str());
    // The victim's address without a Pod, as the own Pod's, and as that of the victim's Pod of the
    // same name.
    let mut bare = slice(evil, "web", &[victim]);
    bare["metadata"]["name"] = "web-2".into();
    let mut lies = slice_of_pods(evil, "web", NODE, &[("web-0", victim)]);
    lies["metadata"]["name"] = "web-3".into();
    let mut theirs = lies.clone();
    theirs["metadata"]["name"] = "web-4".into();
    theirs["endpoints"][0]["targetRef"]["namespace"] = two.good.namespace.as_str().into();
    for slice in [&mut bare, &mut lies, &mut theirs] {
        slice["endpoints"][0]["conditions"]["terminating"] = true.into();
        admin.apply(slice).await?;
    }
    let said = |c: &Value| {
        let message = c["message"].as_str().unwrap_or_default();
        c["reason"] == "EndpointsNotAllowed"
            && message.contains("1 endpoint is not used")
            && message.contains(victim)
            && message.contains("spec.allowed[].endpoints")
    };
    admin.condition_where("the endpoint is named", &policy, "Degraded", said).await?;
    let endpoints = |s: &Snapshot| -> Option<Vec<String>> {
        let policy = served_policy(s, evil, "web")?;
        let all = policy.backends.iter().map(|b| b.endpoint.to_string());
        Some(all.collect())
    };
    let only = vec![format!("{own}:8080")];
    let served = |s: &Snapshot| endpoints(s).as_ref() == Some(&only);
    two.class.served(admin, served).await?;
    two.goes_on(1).await?;

    // By name of the class's admin it may.
    let allowed = json!([
        { "namespaces": {} },
        { "namespaces": { "names": [evil] }, "ports": [], "endpoints": [victim] },
    ]);
    let class = two.class.manifest(&json!({ "allowed": allowed }));
    admin.apply(&class).await?;
    let both = |s: &Snapshot| endpoints(s).is_some_and(|all| all.len() == 2);
    two.class.served(admin, both).await?;
    Ok(())
}
