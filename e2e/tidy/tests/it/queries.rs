//! Dashboards and alerts ask for what the programs export: every metric, every label and every
//! fixed value of a label is in `docs/generated/metrics.md`, which comes from the exporters
//! themselves.

use baton_tidy::{
    metrics::{Metrics, reference},
    root,
};
use promql_parser::{
    label::{MatchOp, Matchers},
    parser::{self, Expr, LabelModifier, VectorSelector},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

/// Labels that the scrape adds: the Prometheus operator's, and `node` by the relabelling of the
/// chart's PodMonitor.
const OF_THE_SCRAPE: &[&str] = &["namespace", "pod", "container", "job", "instance", "node"];
/// What Grafana puts in for its variables, as far as the language's grammar is concerned.
const VARIABLES: &[(&str, &str)] = &[
    ("$__rate_interval", "5m"),
    ("$__range", "1h"),
    ("$namespace", ".*"),
    ("$policy_namespace", "shop"),
    ("$policy", "web"),
    ("$listener", ".*"),
];

/// Queries with where they are.
fn queries() -> BTreeMap<String, String> {
    let folder = root().join("charts/baton/files");
    let mut all = BTreeMap::new();
    let alerts = fs::read_to_string(folder.join("alerts.yaml")).expect("alerts");
    let alerts: Value = serde_saphyr::from_str(&alerts).expect("YAML");
    for rule in alerts["groups"].as_array().into_iter().flatten() {
        for rule in rule["rules"].as_array().into_iter().flatten() {
            let name = rule["alert"].as_str().expect("a name");
            all.insert(format!("alert {name}"), string(&rule["expr"]));
        }
    }
    for name in ["fleet", "policy"] {
        let dashboard = dashboard(name);
        for panel in dashboard["panels"].as_array().expect("panels") {
            let title = panel["title"].as_str().expect("a title");
            for target in panel["targets"].as_array().into_iter().flatten() {
                let place = format!("{name}: {title} {}", string(&target["refId"]));
                let twice = all.insert(place, string(&target["expr"]));
                assert!(twice.is_none(), "{name} has two panels `{title}`");
            }
        }
        for variable in dashboard["templating"]["list"].as_array().expect("variables") {
            let query = variable["query"]["query"].as_str();
            let call = query.and_then(|q| q.strip_prefix("label_values("));
            if let Some((metric, label)) = call.and_then(|c| c.rsplit_once(", ")) {
                let label = label.trim_end_matches(')');
                let place = format!("{name}: variable {}", string(&variable["name"]));
                all.insert(place, format!("count by ({label}) ({metric})"));
            }
        }
    }
    all
}

fn dashboard(name: &str) -> Value {
    let path = root().join(format!("charts/baton/files/dashboards/{name}.json"));
    let text = fs::read_to_string(&path).expect("a dashboard");
    serde_json::from_str(&text).expect("JSON")
}

fn string(value: &Value) -> String {
    value.as_str().expect("a string").to_owned()
}

fn parsed(query: &str) -> Result<Expr, String> {
    let mut query = query.to_owned();
    for (variable, value) in VARIABLES {
        query = query.replace(variable, value);
    }
    assert!(!query.contains('$'), "an unknown variable: {query}");
    parser::parse(&query)
}

/// What is wrong with a query.
fn problems(metrics: &Metrics, query: &str) -> Vec<String> {
    match parsed(query) {
        Ok(parsed) => {
            let mut look = Look { metrics, problems: Vec::new() };
            look.labels_of(&parsed);
            look.problems
        }
        Err(error) => vec![error],
    }
}

struct Look<'a> {
    metrics: &'a Metrics,
    problems: Vec<String>,
}

impl Look<'_> {
    /// The labels that samples of an expression may have; complains about what it comes by.
    fn labels_of(&mut self, expr: &Expr) -> BTreeSet<String> {
        match expr {
            Expr::VectorSelector(selector) => self.selector(selector),
            Expr::MatrixSelector(matrix) => self.selector(&matrix.vs),
            Expr::Paren(inner) => self.labels_of(&inner.expr),
            Expr::Unary(inner) => self.labels_of(&inner.expr),
            Expr::Subquery(inner) => self.labels_of(&inner.expr),
            Expr::Call(call) => {
                let args = call.args.args.iter();
                args.flat_map(|arg| self.labels_of(arg)).collect()
            }
            Expr::Aggregate(of) => {
                let labels = self.labels_of(&of.expr);
                match &of.modifier {
                    Some(LabelModifier::Include(by)) => {
                        self.known(&by.labels, &labels, expr);
                        by.labels.iter().cloned().collect()
                    }
                    Some(LabelModifier::Exclude(without)) => {
                        self.known(&without.labels, &labels, expr);
                        let gone: BTreeSet<_> = without.labels.iter().cloned().collect();
                        labels.difference(&gone).cloned().collect()
                    }
                    // `topk` keeps the labels of what it chooses.
                    None if of.param.is_some() => labels,
                    None => BTreeSet::new(),
                }
            }
            Expr::Binary(binary) => {
                let (left, right) = (self.labels_of(&binary.lhs), self.labels_of(&binary.rhs));
                let modifier = binary.modifier.as_ref();
                if let Some(matching) = modifier.and_then(|m| m.matching.as_ref()) {
                    self.known(&matching.labels().labels, &left, expr);
                    self.known(&matching.labels().labels, &right, expr);
                }
                left
            }
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => BTreeSet::new(),
            Expr::Extension(_) => unreachable!("the parser makes none"),
        }
    }

    fn known(&mut self, asked: &[String], there: &BTreeSet<String>, expr: &Expr) {
        for label in asked.iter().filter(|label| !there.contains(*label)) {
            self.problems.push(format!("no label {label} in {expr}"));
        }
    }

    fn selector(&mut self, selector: &VectorSelector) -> BTreeSet<String> {
        let name = selector.name.as_deref().unwrap_or_default();
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
            let family = name.strip_suffix(suffix)?;
            let metric = self.metrics.get(family)?;
            (metric.kind == "histogram").then_some((metric, *suffix == "_bucket"))
        });
        let own = self.metrics.get(name).filter(|m| m.kind != "histogram");
        let Some((metric, bucket)) = own.map(|metric| (metric, false)).or(histogram) else {
            self.problems.push(format!("nothing exports {name}"));
            return BTreeSet::new();
        };
        let mut labels: BTreeSet<String> = metric.labels.keys().cloned().collect();
        labels.extend(OF_THE_SCRAPE.iter().map(|l| (*l).to_owned()));
        labels.extend(bucket.then(|| "le".to_owned()));
        let Matchers { matchers, .. } = &selector.matchers;
        for matcher in matchers {
            let fixed = metric.labels.get(&matcher.name);
            if !labels.contains(&matcher.name) {
                self.problems.push(format!("{name} has no label {}", matcher.name));
            } else if let (MatchOp::Equal | MatchOp::NotEqual, Some(values)) = (&matcher.op, fixed)
                && !values.is_empty()
                && !values.contains(&matcher.value)
            {
                let problem = format!("{name}: {} is never `{}`", matcher.name, matcher.value);
                self.problems.push(problem);
            }
        }
        labels
    }
}

#[test]
fn every_query_asks_for_what_is_exported() {
    let (metrics, queries) = (reference(), queries());
    assert!(queries.len() > 40, "{}", queries.len());
    let variables = queries.keys().filter(|place| place.contains(": variable "));
    assert_eq!(variables.count(), 5, "namespace twice, and a policy's three");
    let mut all = Vec::new();
    for (place, query) in &queries {
        for problem in problems(&metrics, query) {
            all.push(format!("{place}: {problem}"));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn what_is_not_exported_is_found() {
    let metrics = reference();
    for (query, expected) in [
        ("baton_dataplane_nothing_total", "nothing exports"),
        ("sum by (backend_pod) (baton_dataplane_ready)", "no label backend_pod"),
        ("baton_dataplane_ready and on (policy) baton_dataplane_policy_panic", "no label policy"),
        (r#"baton_shim_pods{state="lost"}"#, "is never `lost`"),
        (r#"baton_shim_pods{policy="a"}"#, "has no label policy"),
        ("baton_operator_push_duration_seconds", "nothing exports"),
        ("sum by (le) (baton_operator_push_duration_seconds_count)", "no label le"),
        ("sum(sum by (pod) (rate(baton_dataplane_requests_total[5m]))", ""),
    ] {
        let found = problems(&metrics, query);
        assert!(!found.is_empty() && found[0].contains(expected), "{query}: {found:?}");
    }
    let good = "histogram_quantile(0.9, sum by (le, pod) (rate(baton_operator_push_duration_seconds_bucket[5m])))";
    assert_eq!(problems(&metrics, good), [""; 0]);
}

#[test]
fn dashboards_are_laid_out_and_every_panel_says_what_it_shows() {
    let mut uids = BTreeSet::new();
    for name in ["fleet", "policy"] {
        let dashboard = dashboard(name);
        assert!(uids.insert(string(&dashboard["uid"])), "{name}");
        let variables: BTreeSet<_> = dashboard["templating"]["list"]
            .as_array()
            .expect("variables")
            .iter()
            .map(|v| string(&v["name"]))
            .collect();
        let mut taken = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for panel in dashboard["panels"].as_array().expect("panels") {
            let title = string(&panel["title"]);
            assert!(ids.insert(panel["id"].as_u64()), "{title}");
            let at = |field: &str| panel["gridPos"][field].as_u64().expect("a number");
            assert!(at("x") + at("w") <= 24, "{title}");
            for y in at("y")..at("y") + at("h") {
                for x in at("x")..at("x") + at("w") {
                    assert!(taken.insert((x, y)), "{name}: {title} lies on another panel");
                }
            }
            if panel["type"] == "row" {
                continue;
            }
            assert!(!string(&panel["description"]).is_empty(), "{title}");
            let targets = panel["targets"].as_array().expect("targets");
            assert!(!targets.is_empty(), "{title}");
            for target in targets {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
                for variable in ["namespace", "policy_namespace", "policy", "listener"] {
                    let used = string(&target["expr"]).contains(&format!("${variable}"));
                    assert!(!used || variables.contains(variable), "{title}: {variable}");
                }
            }
        }
    }
}
