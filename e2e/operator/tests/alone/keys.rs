//! Host-shims found by their labels: what they say of pods is in the policies' statuses, and
//! adoption keys are exchanged only as fast as dataplanes and shims have them.

use anyhow::{Context, Result, ensure};
use baton_api::{Adoptability, node_key, transfer_key};
use baton_operator_tests::{
    OPERATOR, OPERATOR_NAMESPACE,
    admin::Admin,
    class::{Class, NODE},
    cluster::{DEADLINE, pod, wait_for},
    objects::{Load, figures, served_policy, service, slice_of_pods},
    or_skip,
    shim::Shim,
    world::{SECRETS, World, shim_port},
};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// The labels of host-shims by default.
const SHIM: [(&str, &str); 2] =
    [("app.kubernetes.io/name", "baton"), ("app.kubernetes.io/component", "host-shim")];

/// A shim and its pod.
async fn shim(admin: &Admin, number: u8, labels: &Value, node: &str) -> Result<Shim> {
    let address = Ipv4Addr::new(127, 2, 1, number);
    let shim = Shim::start((address, shim_port()?).into()).await?;
    let mut pod = pod(OPERATOR_NAMESPACE, &format!("shim-{number}"));
    pod["metadata"]["labels"] = labels.clone();
    pod["spec"]["serviceAccountName"] = OPERATOR.into();
    admin.pod(&pod, node, &address.to_string()).await?;
    Ok(shim)
}

/// The content of a Secret.
async fn files(admin: &Admin, name: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let secret = admin.get(&World::secret(name)).await?;
    let data: BTreeMap<String, ByteString> = serde_json::from_value(secret["data"].clone())?;
    Ok(data.into_iter().map(|(name, bytes)| (name, bytes.0)).collect())
}

/// The adoption keys by epoch, and the epoch to sign with.
#[derive(Clone, Debug, PartialEq)]
struct Keys {
    epochs: BTreeMap<u8, Vec<u8>>,
    current: u8,
}

impl Keys {
    async fn read(admin: &Admin) -> Result<Self> {
        let mut files = files(admin, "baton-adoption-keys").await?;
        let current = files.remove("current").context("current")?;
        let epochs = files.into_iter().map(|(name, key)| {
            let epoch = name.strip_prefix("epoch-").context("a name of an epoch")?;
            Ok((epoch.parse()?, key))
        });
        Ok(Self {
            epochs: epochs.collect::<Result<_>>()?,
            current: String::from_utf8(current)?.trim().parse()?,
        })
    }

    async fn until(admin: &Admin, what: &str, wanted: impl Fn(&Self) -> bool) -> Result<Self> {
        let found = wait_for(what, async || {
            let keys = Self::read(admin).await?;
            let epochs: Vec<_> = keys.epochs.keys().collect();
            ensure!(wanted(&keys), "epochs {epochs:?}, current {}", keys.current);
            Ok(keys)
        });
        found.await.with_context(|| admin.log())
    }
}

#[tokio::test]
async fn shims_are_asked_for_pods_and_keys() -> Result<()> {
    let mut world = or_skip!(World::alone().await?);
    let namespace = world.server.namespace("shims").await?.name;
    let labels: Value = json!(BTreeMap::from(SHIM));
    let shim_at = shim(&world.admin, 1, &labels, NODE).await?;
    let stranger = shim(&world.admin, 2, &json!({ "app": "something-else" }), NODE).await?;
    let port = shim_port()?.to_string();
    let arguments = ["--shim-port", &port, "--key-rest-seconds", "1"];
    let operator = world.start_operator("shims", &arguments)?;
    let admin = world.admin.clone();
    let class = Class::start(&admin, "shims", 1).await?;
    let dataplane = &class.dataplanes[0];

    // Pods.
    let addresses = [("a", "10.5.0.1"), ("b", "10.5.0.2")];
    for (name, address) in addresses {
        admin.pod(&pod(&namespace, name), NODE, address).await?;
    }
    admin.apply(&service(&namespace, "web")).await?;
    let slice = slice_of_pods(&namespace, "web", NODE, &addresses);
    admin.apply(&slice).await?;
    let policy = class.policy(&namespace, "web", "web", 8_080);
    admin.apply(&policy).await?;
    let two = |s: &baton_api::Snapshot| {
        served_policy(s, &namespace, "web").is_some_and(|p| p.backends.len() == 2)
    };
    let served = class.served(&admin, two).await?;
    let served = served_policy(&served[0].snapshot, &namespace, "web").context("a policy")?;
    let (own, other) = (format!("{namespace}/a"), format!("{namespace}/b"));
    let why = "kernel 6.1 is older than 6.9";
    let keys = Keys::until(&admin, "there is a key", |keys| keys.epochs.len() == 1).await?;
    let first = keys.current;
    dataplane.set_key_epochs(&[first]);
    shim_at.set(&[first], &[(&own, Some(why)), (&other, None)]);
    let obstacle = Load { obstacle: Some(Adoptability::NoAdopter), ..Load::default() };
    dataplane.set_figures(vec![figures(served, &[("a", obstacle)])]);
    let says = format!("cannot have it adopt: {why}");
    let told = |c: &Value| {
        let message = c["message"].as_str().unwrap_or_default();
        let translated = c["reason"] == "ByTranslation";
        translated && message.contains(&says) && message.contains("1 of 2 backends")
    };
    admin.condition_where("Adoptable says what the shim says", &policy, "Adoptable", told).await?;
    shim_at.set(&[first], &[(&own, None), (&other, None)]);
    dataplane.set_figures(vec![figures(served, &[])]);
    let adopts = |c: &Value| c["reason"] == "Adoptable";
    admin.condition_where("all adopt", &policy, "Adoptable", adopts).await?;

    // Keys: the next one is signed with when the dataplane and the shim have it, and not before.
    let ask = json!({ "metadata": { "annotations": { "baton.dev/rotate": "now" } } });
    admin.merge(&World::secret("baton-adoption-keys"), "", &ask).await?;
    let both = Keys::until(&admin, "there is a second key", |keys| keys.epochs.len() == 2).await?;
    assert_eq!(both.current, first);
    assert_eq!(both.epochs[&first], keys.epochs[&first]);
    let second = both.epochs.keys().copied().find(|epoch| *epoch != first);
    let second = second.context("another epoch")?;
    dataplane.set_key_epochs(&[first, second]);
    // Both are heard, and the shim does not have it.
    dataplane.wait_looks(DEADLINE, 2).await?;
    shim_at.wait_looks(DEADLINE, 1).await?;
    dataplane.wait_looks(DEADLINE, 1).await?;
    assert_eq!(Keys::read(&admin).await?, both, "{}", admin.log());
    shim_at.set(&[first, second], &[]);
    let switched =
        Keys::until(&admin, "the second is signed with", |k| k.current == second).await?;
    assert_eq!(switched.epochs, both.epochs);
    dataplane.set_key_epochs(&[second, first]);
    let settled = Keys::until(&admin, "the first is gone", |k| k.epochs.len() == 1).await?;
    assert_eq!(settled.epochs[&second], both.epochs[&second]);

    assert_eq!(stranger.looks(), 0, "a pod without the labels was asked");
    // Nothing that is secret is in the log: no key, and no line of a private key.
    let log = operator.log();
    for key in both.epochs.values() {
        let key = String::from_utf8(key.clone())?;
        assert!(!log.contains(key.trim()), "the log shows an adoption key");
    }
    for name in SECRETS {
        for (file, content) in files(&admin, name).await? {
            let content = String::from_utf8(content)?;
            if file.ends_with(".key") {
                let shown = content.lines().filter(|l| l.len() > 40).any(|l| log.contains(l));
                assert!(!shown, "the log shows {file} of {name}");
            }
        }
    }
    Ok(())
}

/// A key of a Secret.
fn master(digits: &[u8]) -> Result<[u8; 16]> {
    let digits = std::str::from_utf8(digits)?.trim();
    let mut key = [0; 16];
    ensure!(digits.len() == 32, "{} digits", digits.len());
    for (i, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16)?;
    }
    Ok(key)
}

#[tokio::test]
async fn each_shim_is_sent_the_keys_of_the_node_that_its_pod_is_on() -> Result<()> {
    let mut world = or_skip!(World::alone().await?);
    let labels: Value = json!(BTreeMap::from(SHIM));
    let nodes = ["node-x", "node-y"];
    let mut shims = Vec::new();
    for (number, node) in (3..).zip(nodes) {
        let shim = shim(&world.admin, number, &labels, node).await?;
        shim.take_keys();
        shims.push(shim);
    }
    let port = shim_port()?.to_string();
    let arguments = ["--shim-port", &port, "--key-rest-seconds", "1"];
    let operator = world.start_operator("node-keys", &arguments)?;
    let admin = world.admin.clone();
    let keys = Keys::until(&admin, "there is a key", |keys| keys.epochs.len() == 1).await?;
    let first = keys.current;
    let sent = |at: usize, epoch: u8, keys: &Keys| {
        let master = master(&keys.epochs[&epoch])?;
        let expected = (epoch, node_key(&master, nodes[at]), transfer_key(&master));
        let sent = shims[at].sent();
        let last = sent.last().context("nothing is sent")?;
        ensure!(last.checked()? == [expected], "{last:?}");
        Ok(())
    };
    for at in 0..2 {
        wait_for("its own is sent", async || sent(at, first, &keys)).await?;
    }
    // What a shim was sent is what lets a rotation go on.
    let ask = json!({ "metadata": { "annotations": { "baton.dev/rotate": "now" } } });
    admin.merge(&World::secret("baton-adoption-keys"), "", &ask).await?;
    let settled = Keys::until(&admin, "another one signs alone", |keys| {
        keys.current != first && keys.epochs.len() == 1
    });
    let settled = settled.await?;
    for (at, node) in nodes.into_iter().enumerate() {
        wait_for("only the new one is sent", async || sent(at, settled.current, &settled)).await?;
        let all = shims[at].sent();
        assert!(all.iter().all(|keys| keys.node == node), "{all:?}");
        // The first, both, both with the new one in front, the new one.
        assert_eq!(all.len(), 4, "{all:?}");
        assert_eq!(all[1].keys.len(), 2);
    }
    let log = operator.log();
    for (_, key) in keys.epochs.iter().chain(&settled.epochs) {
        assert!(!log.contains(std::str::from_utf8(key)?.trim()));
    }
    Ok(())
}

#[tokio::test]
async fn an_excluded_node_is_sent_no_key_and_nothing_is_adopted_there() -> Result<()> {
    const LOST: &str = "node-lost";
    let mut world = or_skip!(World::alone().await?);
    let namespace = world.server.namespace("excluded").await?.name;
    let labels: Value = json!(BTreeMap::from(SHIM));
    let lost = shim(&world.admin, 5, &labels, LOST).await?;
    let other = shim(&world.admin, 6, &labels, "node-z").await?;
    lost.take_keys();
    other.take_keys();
    let port = shim_port()?.to_string();
    let arguments = ["--shim-port", &port, "--key-rest-seconds", "1"];
    let _operator = world.start_operator("excluded", &arguments)?;
    let admin = world.admin.clone();
    let class = Class::start(&admin, "excluded", 1).await?;
    let dataplane = &class.dataplanes[0];
    admin.pod(&pod(&namespace, "a"), LOST, "10.5.1.1").await?;
    admin.apply(&service(&namespace, "web")).await?;
    let slice = slice_of_pods(&namespace, "web", LOST, &[("a", "10.5.1.1")]);
    admin.apply(&slice).await?;
    let policy = class.policy(&namespace, "web", "web", 8_081);
    admin.apply(&policy).await?;
    let on = |node: Option<&'static str>| {
        let namespace = namespace.clone();
        move |s: &baton_api::Snapshot| {
            served_policy(s, &namespace, "web")
                .is_some_and(|p| p.backends.iter().all(|b| b.node.as_deref() == node))
        }
    };
    class.served(&admin, on(Some(LOST))).await?;
    let keys = Keys::until(&admin, "there is a key", |keys| keys.epochs.len() == 1).await?;
    let first = keys.current;
    dataplane.set_key_epochs(&[first]);
    wait_for("both have it", async || {
        ensure!(!lost.sent().is_empty() && !other.sent().is_empty());
        Ok(())
    })
    .await?;

    let exclude = |nodes: Value| {
        let annotations = json!({ "baton.dev/excluded-nodes": nodes });
        let patch = json!({ "metadata": { "annotations": annotations } });
        let admin = &admin;
        async move {
            let keys = World::secret("baton-adoption-keys");
            admin.merge(&keys, "", &patch).await
        }
    };
    exclude(json!(LOST)).await?;
    class.served(&admin, on(None)).await?;
    let told = |c: &Value| {
        let message = c["message"].as_str().unwrap_or_default();
        c["reason"] == "ByTranslation" && message.contains("is excluded from adoptions")
    };
    admin.condition_where("Adoptable names the node", &policy, "Adoptable", told).await?;
    // The rotation begins by itself, and ends although that node's host-shim keeps what it had.
    Keys::until(&admin, "another key", |keys| keys.epochs.len() == 2).await?;
    dataplane.set_key_epochs(&[first, first.wrapping_add(1)]);
    let second = Keys::until(&admin, "it signs", |keys| keys.current != first).await?;
    let second = second.current;
    dataplane.set_key_epochs(&[second]);
    Keys::until(&admin, "the first is gone", |keys| keys.epochs.len() == 1).await?;
    let had = lost.sent();
    ensure!(had.iter().flat_map(|sent| &sent.keys).all(|key| key.epoch == first), "{had:?}");

    exclude(Value::Null).await?;
    class.served(&admin, on(Some(LOST))).await?;
    wait_for("it is let in", async || {
        let sent = lost.sent();
        let last = sent.last().context("nothing is sent")?;
        ensure!(last.keys.len() == 1 && last.keys[0].epoch == second, "{last:?}");
        Ok(())
    })
    .await
}
