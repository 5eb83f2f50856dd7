//! Every rule refuses what it is for and accepts what it is not for.

use crate::common::{By, all};
use baton_crds::{Checker, Problem};
use serde_json::Value;
use std::{collections::BTreeSet, path::Path};

fn problems(checker: &Checker, object: &Value) -> Vec<Problem> {
    let report = checker.check(&object.to_string(), Path::new("case.yaml"));
    assert_eq!((report.checked, report.passed_over), (1, 0), "{object}");
    report.problems
}

#[test]
fn what_is_good_is_accepted_and_what_is_not_is_refused_with_its_field_and_message() {
    let checker = Checker::new().expect("the definitions");
    let mut refused = 0;
    for cases in all() {
        assert_eq!(problems(&checker, &cases.smallest), []);
        for case in &cases.cases {
            assert!(!case.accepted.is_empty() && !case.refused.is_empty(), "{}", case.field);
            for patch in &case.accepted {
                assert_eq!(problems(&checker, &cases.object(patch)), [], "{patch}");
            }
            for patch in &case.refused {
                let problems = problems(&checker, &cases.object(patch));
                let [problem] = problems.as_slice() else { panic!("{patch}: {problems:?}") };
                assert_eq!(problem.field, case.field, "{patch}: {problem}");
                assert!(problem.problem.contains(&case.message), "{patch}: {problem}");
                refused += 1;
            }
        }
    }
    assert!(refused > 100, "only {refused} cases");
}

#[test]
fn every_rule_has_a_case() {
    let checker = Checker::new().expect("the definitions");
    let mut seen = BTreeSet::new();
    for cases in all() {
        let kind = cases.smallest["kind"].as_str().expect("a kind");
        for case in cases.cases.iter().filter(|case| case.by == By::Rule) {
            for patch in &case.refused {
                for problem in problems(&checker, &cases.object(patch)) {
                    seen.insert((kind.to_owned(), unnumbered(&problem.field), problem.problem));
                }
            }
        }
    }
    let mut rules = BTreeSet::new();
    for definition in baton_crds::definitions().expect("the definitions") {
        let value = serde_json::to_value(&definition).expect("JSON");
        let schema = &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        collect(schema, &definition.spec.names.kind, "", &mut rules);
    }
    assert_eq!(seen, rules);
}

/// The field of a rule, its fieldPath added, and its message.
fn collect(schema: &Value, kind: &str, path: &str, rules: &mut BTreeSet<(String, String, String)>) {
    let here = schema["x-kubernetes-validations"].as_array();
    for rule in here.into_iter().flatten() {
        let field = rule["fieldPath"].as_str().unwrap_or_default();
        let field = format!("{path}{field}").trim_start_matches('.').to_owned();
        let message = rule["message"].as_str().expect("a message").to_owned();
        assert!(rule["reason"].is_string(), "{field}: {message}");
        assert!(!message.contains('\n'), "{message}");
        rules.insert((kind.to_owned(), field, message));
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        collect(below, kind, format!("{path}.{name}").trim_start_matches('.'), rules);
    }
    if schema["items"].is_object() {
        collect(&schema["items"], kind, path, rules);
    }
}

/// A field without the numbers of items.
fn unnumbered(field: &str) -> String {
    let parts = field.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect()
}
