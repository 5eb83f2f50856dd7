//! What the tests here are made of, without an API server.

use baton_operator_tests::{
    apply::{path, warning_text},
    fields::{leaves, missing},
};
use serde_json::{Value, json};

#[test]
fn manifests_say_where_their_objects_are() {
    let at = |version: &str, kind: &str, namespace: Option<&str>| {
        let metadata = json!({ "name": "a", "namespace": namespace });
        path(&json!({ "apiVersion": version, "kind": kind, "metadata": metadata }))
    };
    let policy = at("baton.dev/v1alpha1", "LoadBalancerPolicy", Some("shop"));
    assert_eq!(
        policy.as_deref(),
        Some("/apis/baton.dev/v1alpha1/namespaces/shop/loadbalancerpolicies/a")
    );
    assert_eq!(at("v1", "Node", None).as_deref(), Some("/api/v1/nodes/a"));
    assert_eq!(
        at("discovery.k8s.io/v1", "EndpointSlice", Some("x")).as_deref(),
        Some("/apis/discovery.k8s.io/v1/namespaces/x/endpointslices/a")
    );
    assert_eq!(path(&json!({ "kind": "Pod" })), None);
}

#[test]
fn warnings_are_unpacked() {
    assert_eq!(
        warning_text(r#"299 - "unrecognized format \"uint16\" here""#),
        r#"unrecognized format "uint16" here"#
    );
}

#[test]
fn what_no_object_sets_is_missing() {
    let schema = json!({ "properties": {
        "a": { "type": "string", "default": "x" },
        "b": { "properties": { "c": { "enum": ["P", "Q"], "default": "P" }, "d": { "enum": ["R"], "default": "R" } } },
        "e": { "items": { "properties": { "f": { "type": "integer" } } } },
        "g": { "items": { "type": "string" }, "default": ["s"] },
        "h": { "additionalProperties": { "type": "string" } },
    }});
    let leaves = leaves(&schema, "spec");
    let paths: Vec<_> = leaves.keys().map(String::as_str).collect();
    let all = ["spec.a", "spec.b.c", "spec.b.d", "spec.e[].f", "spec.g[]", "spec.h"];
    assert_eq!(paths, all);
    let object = |spec: Value| json!({ "spec": spec });
    let none = [object(json!({ "a": "x", "b": { "c": "P", "d": "R" }, "e": [], "g": ["s"] }))];
    let said = missing(&leaves, &none);
    assert_eq!(said, ["spec.a", "spec.b.c: \"Q\"", "spec.b.c", "spec.e[].f", "spec.g[]", "spec.h"]);
    let both = [
        object(json!({ "a": "y", "b": { "c": "P", "d": "R" }, "e": [{}, { "f": 1 }] })),
        object(json!({ "b": { "c": "Q" }, "g": ["t"], "h": { "k": "v" } })),
    ];
    assert!(missing(&leaves, &both).is_empty());
}
