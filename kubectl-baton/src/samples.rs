//! The cluster of the tests, in `samples/`: made up, because what it shows (a Pod that crashes, one
//! that cannot adopt, a pinned connection) is seldom there together, but in the words of the real
//! types.
//!
//! Owns that it stays so: each sample is exactly what the type writes that a dataplane or an API
//! server's client reads and writes it with, and policies and classes keep the rules of their
//! definitions. What real programs answer is seen in the cluster (`e2e/suite`).

use baton_api::{FlowsReply, StateReply};
use baton_crds::{BatonDataplane, LoadBalancerPolicy};
use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{fs, path::PathBuf};

fn path(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("samples");
    folder.join(name)
}

/// The text of one.
pub fn sample(name: &str) -> String {
    let path = path(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What the type makes of a text.
pub fn written<T: DeserializeOwned + Serialize>(name: &str, text: &str) -> Value {
    let read: T = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::to_value(read).expect("JSON")
}

/// Compares a sample with what its type makes of it; `BATON_GENERATE=1` writes that.
fn kept<T: DeserializeOwned + Serialize>(name: &str) {
    let text = sample(name);
    let (is, written) =
        (serde_json::from_str::<Value>(&text).expect("JSON"), written::<T>(name, &text));
    if std::env::var_os("BATON_GENERATE").is_some() {
        let text = serde_json::to_string_pretty(&written).expect("JSON") + "\n";
        // At once: other tests read it meanwhile.
        let new = path(&format!("{name}.new"));
        fs::write(&new, text).expect("a sample");
        fs::rename(&new, path(name)).expect("a sample");
        return;
    }
    assert_eq!(
        is, written,
        "{name} is not what its type writes: `BATON_GENERATE=1` writes it anew"
    );
}

#[test]
fn samples_are_what_the_real_types_write() {
    kept::<StateReply>("status-a.json");
    kept::<StateReply>("status-b.json");
    kept::<FlowsReply>("flows-a.json");
    kept::<FlowsReply>("flows-b.json");
    kept::<Vec<LoadBalancerPolicy>>("loadbalancerpolicies.json");
    kept::<Vec<BatonDataplane>>("batondataplanes.json");
    kept::<Vec<EndpointSlice>>("endpointslices.json");
    kept::<Vec<Service>>("services.json");
    kept::<Vec<Node>>("nodes.json");
    kept::<Vec<Pod>>("pods.json");
}

#[test]
fn policies_and_classes_keep_the_rules_of_their_definitions() {
    for name in ["loadbalancerpolicies.json", "batondataplanes.json"] {
        let objects: Vec<Value> = serde_json::from_str(&sample(name)).expect("JSON");
        for object in objects {
            let problems = baton_crds::check(&object.to_string(), &path(name)).expect("checked");
            assert!(problems.is_empty(), "{name}: {problems:?}");
        }
    }
}
