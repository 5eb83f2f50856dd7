//! The definitions are what an API server takes without a warning: structural, bounded, described,
//! with good defaults.

use serde_json::{Value, json};

/// Every keyword that the check without a server knows, and those that mean nothing to it.
const KEYWORDS: [&str; 22] = [
    "additionalProperties",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
];

fn schemas() -> Vec<(String, Value, Value)> {
    let definitions = baton_crds::definitions().expect("the definitions");
    let schema = |definition| {
        let value = serde_json::to_value(definition).expect("JSON");
        let version = value["spec"]["versions"][0].clone();
        let kind = value["spec"]["names"]["kind"].as_str().expect("a kind").to_owned();
        (kind, version["schema"]["openAPIV3Schema"].clone(), version)
    };
    definitions.iter().map(schema).collect()
}

/// Calls `visit` for every schema below this one, with its path.
fn each(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        each(below, &format!("{path}.{name}"), visit);
    }
    for keyword in ["items", "additionalProperties"] {
        if schema[keyword].is_object() {
            each(&schema[keyword], &format!("{path}[]"), visit);
        }
    }
}

#[test]
fn every_field_is_structural_bounded_and_described() {
    for (kind, schema, _) in schemas() {
        let mut seen = 0;
        each(&schema, &kind, &mut |path, schema| {
            seen += 1;
            let fields = schema.as_object().expect("a schema");
            for keyword in fields.keys() {
                let known =
                    KEYWORDS.contains(&keyword.as_str()) || keyword == "x-kubernetes-validations";
                assert!(known, "{path}: {keyword}");
            }
            // The API server refuses a description of the metadata.
            let item = path.ends_with("[]") || path.ends_with(".metadata");
            assert!(item || schema["description"].is_string(), "{path} has no description");
            let number = |name: &str| schema[name].as_f64();
            let own = path.contains(".spec");
            match schema["type"].as_str() {
                Some("object") if schema["additionalProperties"].is_object() => {
                    assert!(number("maxProperties").is_some(), "{path}");
                }
                Some("object") => assert!(schema["properties"].is_object(), "{path}"),
                Some("array") => {
                    assert!(number("maxItems").is_some(), "{path}");
                    assert!(schema["x-kubernetes-list-type"].is_string(), "{path}");
                }
                Some("string") => {
                    let bounded = number("maxLength").is_some() || schema["enum"].is_array();
                    assert!(bounded, "{path}");
                }
                Some("integer") => {
                    let format = schema["format"].as_str().expect(path);
                    assert!(["int32", "int64"].contains(&format), "{path}: {format}");
                    let bounded = number("minimum").is_some() && number("maximum").is_some();
                    assert!(bounded || !own, "{path}");
                }
                Some("boolean") => {}
                Some(other) => panic!("{path}: {other}"),
                None => assert_eq!(schema["x-kubernetes-int-or-string"], true, "{path}"),
            }
        });
        assert!(seen > 30, "{kind}: {seen}");
    }
}

#[test]
fn every_default_is_good_and_whole() {
    for (kind, schema, _) in schemas() {
        each(&schema, &kind, &mut |path, schema| {
            let Some(default) = schema.get("default") else {
                return;
            };
            // Defaults are not added to a default, so that of an object has to have those of all
            // its fields.
            for (name, below) in schema["properties"].as_object().into_iter().flatten() {
                assert_eq!(default.get(name), below.get("default"), "{path}.{name}");
            }
            if let Some(words) = schema["enum"].as_array() {
                assert!(words.contains(default), "{path}: {default}");
            }
        });
    }
}

#[test]
fn columns_show_fields_that_there_are() {
    for (kind, schema, version) in schemas() {
        let columns = version["additionalPrinterColumns"].as_array().expect("columns");
        let shown: Vec<&str> =
            columns.iter().map(|c| c["name"].as_str().expect("a name")).collect();
        let first: &[&str] = match kind.as_str() {
            "LoadBalancerPolicy" => &[
                "Service",
                "Backends",
                "Address",
                "Flows",
                "Movable",
                "Migrations",
                "Ready",
                "Adoptable",
            ],
            _ => &["Default", "Dataplanes", "Policies"],
        };
        assert!(shown.starts_with(first), "{shown:?}");
        assert_eq!(shown.last(), Some(&"Age"));
        for column in columns {
            let path = column["jsonPath"].as_str().expect("a path");
            if path == ".metadata.creationTimestamp" {
                continue;
            }
            let mut at = &schema;
            for step in path.split('.').skip(1).filter(|step| !step.starts_with("type==")) {
                let name = step.split('[').next().expect("a name");
                at = &at["properties"][name];
                if step.contains('[') {
                    at = &at["items"];
                }
            }
            assert_eq!(at["type"], column["type"], "{path}");
        }
    }
}

#[test]
fn names_are_what_people_type() {
    let definitions = baton_crds::definitions().expect("the definitions");
    let names = definitions.iter().map(|d| {
        let names = &d.spec.names;
        let short = names.short_names.clone().unwrap_or_default();
        (
            d.spec.scope.as_str(),
            names.kind.as_str(),
            short,
            names.categories.clone().unwrap_or_default(),
        )
    });
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            ("Cluster", "BatonDataplane", vec!["bdp".to_owned()], vec!["networking".to_owned()]),
            (
                "Namespaced",
                "LoadBalancerPolicy",
                vec!["lbp".to_owned()],
                vec!["networking".to_owned()]
            ),
        ]
    );
    for definition in &definitions {
        let [version] = definition.spec.versions.as_slice() else { panic!("one version") };
        assert!(version.served && version.storage && version.name == baton_crds::VERSION);
        assert_eq!(definition.spec.group, baton_crds::GROUP);
        let status = version.subresources.as_ref().and_then(|s| s.status.as_ref());
        assert!(status.is_some(), "the status has its own way");
    }
}

#[test]
fn a_status_is_left_out_where_nothing_is_known() {
    let status = baton_crds::LoadBalancerPolicyStatus::default();
    assert_eq!(serde_json::to_value(status).expect("JSON"), json!({}));
    let status = baton_crds::BatonDataplaneStatus::default();
    assert_eq!(serde_json::to_value(status).expect("JSON"), json!({}));
}

/// Functions of rules beyond those of 1.28, and the Kubernetes that has them in its library.
const LIBRARY: [(&str, u32); 3] = [("isIP", 30), ("isCIDR", 30), ("isCanonical", 30)];
/// Those that all have that the chart could mean.
const OLD: [&str; 9] =
    ["all", "duration", "exists_one", "has", "in", "int", "size", "split", "substring"];

/// An API server compiles rules that it has not seen before with the library of the minor version
/// before its own, so that it can be rolled back: what 1.30 brought, 1.30 refuses ("undeclared
/// reference to 'isIP'"), and the definitions cannot be installed there.
#[test]
fn rules_ask_for_no_function_that_the_oldest_kubernetes_refuses() {
    let mut oldest = 0;
    for (kind, schema, _) in schemas() {
        each(&schema, &kind, &mut |path, schema| {
            let rules = schema["x-kubernetes-validations"].as_array();
            for rule in rules.into_iter().flatten() {
                let rule = rule["rule"].as_str().expect("a rule");
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let calls = rule.split('(').map(|before| {
                    let name = before.rsplit(|c| !is_name(c)).next();
                    name.unwrap_or_default()
                });
                // Behind the last parenthesis nothing is called.
                let calls: Vec<&str> = calls.collect();
                for name in calls.iter().rev().skip(1).filter(|name| !name.is_empty()) {
                    let of = LIBRARY.iter().find(|(known, _)| known == name);
                    assert!(of.is_some() || OLD.contains(name), "{path}: {name}: since when?");
                    oldest = oldest.max(of.map_or(0, |(_, minor)| minor + 1));
                }
            }
        });
    }
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/baton/Chart.yaml");
    let chart = std::fs::read_to_string(chart).expect("the chart");
    let takes = chart.split("kubeVersion: \">=1.").nth(1).expect("a version");
    let takes: u32 = takes.split('.').next().expect("a minor").parse().expect("a number");
    assert!(takes >= oldest, "the chart takes 1.{takes}, rules need 1.{oldest}");
}
