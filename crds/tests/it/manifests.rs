//! Manifests as people write them: where each problem is, and what is nobody's business here.

use baton_crds::{Checker, FILE_BYTES_MAX, LIST_DEPTH_MAX, PROBLEMS_MAX, Report, check};
use proptest::prelude::*;
use std::path::Path;

const GOOD: &str = "\
# The shop.
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: baton.dev/v1alpha1
kind: LoadBalancerPolicy
metadata:
  name: web
  namespace: shop
spec:
  targetRefs:
    - name: web
  listeners:
    - name: http
      port: 80
  migration:
    mode: WhenBetter
";

fn report(text: &str) -> Report {
    let checker = Checker::new().expect("the definitions");
    checker.check(text, Path::new("shop.yaml"))
}

fn told(text: &str) -> Vec<String> {
    report(text).problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_good_file_has_no_problems_and_is_counted() {
    let expected = Report { problems: Vec::new(), checked: 1, passed_over: 1 };
    assert_eq!(report(GOOD), expected);
    assert_eq!(check(GOOD, Path::new("shop.yaml")).expect("the definitions"), []);
    assert_eq!(report(""), Report::default());
    assert_eq!(report("# nothing\n---\n"), Report::default());
}

#[test]
fn a_problem_has_the_line_of_its_field_in_the_file() {
    let line = |from: &str, to: &str| told(&GOOD.replace(from, to));
    assert_eq!(
        line("mode: WhenBetter", "mode: WhenBeter"),
        ["shop.yaml:18: spec.migration.mode: `WhenBeter` is not possible: expected `WhenBetter`"]
    );
    assert_eq!(
        line("mode: WhenBetter", "mod: WhenBetter"),
        ["shop.yaml:18: spec.migration.mod: `mod` is no field here: expected `mode`"]
    );
    assert_eq!(
        line("port: 80", "port: 0"),
        ["shop.yaml:16: spec.listeners[0].port: 0 is out of range: expected 1 to 65535"]
    );
    // What is missing is at what should contain it; a rule's problem is at the field that it names.
    assert_eq!(
        line("      port: 80\n", ""),
        ["shop.yaml:15: spec.listeners[0].port: is missing: expected a whole number"]
    );
    assert_eq!(
        line("mode: WhenBetter", "mode: Always\n  protocol: None"),
        [
            "shop.yaml:18: spec.migration.mode: is not possible with protocol None, which knows no request to move at: \
          expected another mode, or the protocol that the pods speak"
        ]
    );
}

#[test]
fn all_problems_are_told_in_the_order_of_the_lines() {
    let text =
        GOOD.replace("port: 80", "port: 0").replace("name: web\n  namesp", "name: Web\n  namesp");
    let text = format!(
        "{text}{}",
        "---\napiVersion: baton.dev/v1alpha1\nkind: BatonDataplane\nmetadata: {name: edge}\nspec: {}\n"
    );
    let told = told(&text);
    let starts = [
        "shop.yaml:9: metadata.name: ",
        "shop.yaml:16: spec.listeners[0].port: ",
        "shop.yaml:23: spec.namespace: ",
        "shop.yaml:23: spec.selector: ",
    ];
    assert_eq!(told.len(), starts.len(), "{told:?}");
    for (told, start) in told.iter().zip(starts) {
        assert!(told.starts_with(start), "{told}");
    }
}

#[test]
fn what_is_no_yaml_is_told_with_its_line() {
    let text = format!("{GOOD}---\nb: [1\nc: 2\n");
    let told = told(&text);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("shop.yaml:21: "), "{told:?}");
    // What comes before it is checked all the same.
    let report = report(&text.replace("port: 80", "port: 0"));
    assert_eq!((report.problems.len(), report.checked), (2, 1));
    let twice = GOOD.replace("    mode: WhenBetter\n", "    mode: WhenBetter\n    mode: Never\n");
    let told = self::told(&twice);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("shop.yaml:19: ") && told[0].contains("mode"), "{told:?}");
}

#[test]
fn a_slip_in_kind_or_version_does_not_pass_for_another_kind() {
    let told = |from: &str, to: &str| told(&GOOD.replace(from, to));
    assert_eq!(
        told("kind: LoadBalancerPolicy", "kind: LoadBalancerPolcy"),
        [
            "shop.yaml:7: kind: `LoadBalancerPolcy` is no kind of baton.dev: expected `LoadBalancerPolicy`"
        ]
    );
    for version in ["baton.dev/v1", "batn.dev/v1alpha1", "v1alpha1", "baton.dev/v1alpha2"] {
        assert_eq!(
            told("baton.dev/v1alpha1", version),
            [format!(
                "shop.yaml:6: apiVersion: `{version}` has no LoadBalancerPolicy: expected baton.dev/v1alpha1"
            )]
        );
    }
    assert_eq!(
        told("kind: LoadBalancerPolicy", "kinds: LoadBalancerPolicy"),
        ["shop.yaml:6: kind: is missing: expected text, as all objects of Kubernetes have it"]
    );
    let other = report(&GOOD.replace("baton.dev/v1alpha1", "gateway.example.com/v1"));
    assert_eq!((other.problems.len(), other.passed_over), (0, 2));
}

#[test]
fn objects_in_lists_are_checked() {
    let text = "\
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Service, metadata: {name: web}}
  - apiVersion: baton.dev/v1alpha1
    kind: BatonDataplane
    metadata: {name: edge}
    spec:
      namespace: baton
      selector: {matchLabels: {a: b}}
      controlPort: 70000
";
    assert_eq!(
        told(text),
        ["shop.yaml:11: items[1].spec.controlPort: 70000 is out of range: expected 1 to 65535"]
    );
    let good = report(&text.replace("70000", "9901"));
    assert_eq!((good.problems.len(), good.checked, good.passed_over), (0, 1, 1));
    let deep = (0..=LIST_DEPTH_MAX).fold("null".to_owned(), |inner, _| {
        format!("{{apiVersion: v1, kind: List, items: [{inner}]}}")
    });
    assert_eq!(told(&deep).len(), 1, "{:?}", told(&deep));
}

#[test]
fn what_an_api_server_gave_can_be_checked() {
    let text = "\
apiVersion: baton.dev/v1alpha1
kind: LoadBalancerPolicy
metadata:
  name: web
  namespace: shop
  uid: 7b1c
  resourceVersion: '12'
  generation: 3
  creationTimestamp: '2026-01-01T00:00:00Z'
  labels: {app: web}
  managedFields: []
spec:
  targetRefs: [{kind: Service, name: web}]
  listeners: [{name: http, port: 80, protocol: HTTP1}]
  responseTimeout: null
status:
  conditions: []
  whatever: 1
";
    assert_eq!(told(text), [""; 0]);
    let label = text.replace("{app: web}", "{app: 1}");
    assert_eq!(
        told(&label),
        ["shop.yaml:10: metadata.labels.app: is a number: expected text, in quotes"]
    );
    let label = text.replace("labels:", "label:");
    assert_eq!(
        told(&label),
        ["shop.yaml:10: metadata.label: `label` is no field here: expected `labels`"]
    );
}

#[test]
fn json_is_yaml() {
    let text = r#"{"apiVersion": "baton.dev/v1alpha1", "kind": "LoadBalancerPolicy",
 "metadata": {"name": "web"},
 "spec": {"targetRefs": [{"name": "web"}],
  "listeners": []}}"#;
    assert_eq!(told(text), ["shop.yaml:4: spec.listeners: has 0 entries: expected at least 1"]);
}

#[test]
fn anchors_are_followed_but_not_without_end() {
    let text = GOOD.replace("port: 80", "port: &p 0\n      servicePort: *p");
    assert_eq!(told(&text).len(), 2, "{:?}", told(&text));
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..9 {
        let below = format!("*a{}, ", i - 1).repeat(10);
        bomb.push_str(&format!("a{i}: &a{i} [{below}]\n"));
    }
    let told = told(&bomb);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(!told[0].contains("apiVersion"), "refused as YAML: {told:?}");
}

#[test]
fn a_file_and_its_problems_have_limits() {
    let long = format!("# {}", "x".repeat(FILE_BYTES_MAX));
    let told = told(&long);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("shop.yaml: is too large with "), "{told:?}");
    let many = "- 1\n---\n".repeat(PROBLEMS_MAX + 1);
    assert_eq!(report(&many).problems.len(), PROBLEMS_MAX);
}

#[test]
fn no_problem_has_more_than_one_line() {
    let text = GOOD.replace("mode: WhenBetter", r#""m\u001b[31m\node": 1"#);
    let told = told(&text);
    assert_eq!(told.len(), 1);
    assert!(!told[0].contains(char::is_control), "{told:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_text_makes_the_check_panic(at in 0..GOOD.len(), cut in 0..20_usize, put in "[a-z0-9:{}\\[\\],&*!|>\"'#% \n-]{0,8}") {
        let mut text = GOOD.to_owned();
        text.replace_range(at..(at + cut).min(GOOD.len()), &put);
        thread_local! {
            static CHECKER: Checker = Checker::new().expect("the definitions");
        }
        let lines = text.lines().count() as u64;
        for problem in CHECKER.with(|c| c.check(&text, Path::new("a.yaml"))).problems {
            prop_assert!(problem.line.is_none_or(|line| (1..=lines + 1).contains(&line)), "{}\n{}", problem, text);
        }
    }
}

/// The examples of the pages are checked as they stand there.
#[test]
fn the_pages_examples_are_good() {
    fn examples(page: &str) -> impl Iterator<Item = &str> {
        let all = page.split("```yaml\n").skip(1);
        all.filter_map(|rest| rest.split("```").next())
    }
    let readme = examples(include_str!("../../README.md"));
    let machines = examples(include_str!("../../../docs/machines.md"));
    let directory = machines.filter(|example| example.contains("kind: BatonDataplane"));
    let objects: Vec<usize> = readme
        .chain(directory)
        .map(|example| {
            let report = report(example);
            assert_eq!(report.problems, [], "{example}");
            report.checked
        })
        .collect();
    assert_eq!(objects, [1, 1, 2]);
}
