//! What the chart ships is what the tests run with, and its alerts have a runbook. Reads files
//! only; what Helm makes of them is not looked at here.

use baton_tidy::root;
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::Path};

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn copies_in_the_chart_are_equal_to_what_they_are_of() {
    let (root, chart) = (root(), root().join("charts/baton"));
    let definitions = root.join("crds/generated");
    assert_eq!(names(&definitions), names(&chart.join("crds")));
    let mut pairs: Vec<_> = names(&definitions)
        .iter()
        .map(|name| (definitions.join(name), chart.join("crds").join(name)))
        .collect();
    let rights = chart.join("files/rbac");
    let operators = ["cluster-role.yaml", "role.yaml", "pod-patches.yaml", "frontends.yaml"];
    for name in operators {
        pairs.push((root.join("operator/rbac").join(name), rights.join(name)));
    }
    pairs.push((root.join("host-shim/rbac/rbac.yaml"), rights.join("host-shim.yaml")));
    assert_eq!(names(&rights).len(), 5, "a file that nothing is compared with");
    for (source, copy) in pairs {
        assert!(
            read(&source) == read(&copy),
            "{} is not what {} is: cp {1} {0}",
            copy.display(),
            source.display()
        );
    }
}

#[test]
fn every_alert_has_its_section_in_the_runbook() {
    let root = root();
    let alerts = read(&root.join("charts/baton/files/alerts.yaml"));
    let runbook = read(&root.join("docs/runbook.md"));
    let told = |prefix: &str, text: &str| -> BTreeSet<String> {
        let lines = text.lines().map(str::trim);
        lines.filter_map(|line| line.strip_prefix(prefix)).map(str::to_owned).collect()
    };
    let alerted = told("- alert: ", &alerts);
    assert!(!alerted.is_empty());
    assert_eq!(alerted, told("## ", &runbook));
    for alert in &alerted {
        let anchor = format!("docs/runbook.md#{}", alert.to_lowercase());
        assert!(alerts.contains(&anchor), "{alert} does not lead to {anchor}");
    }
}

/// From seven eighths on new connections, moves and policies are refused, though the table is never
/// full then: the eighth is for others.
#[test]
fn the_alert_of_tables_comes_before_an_eighth_is_for_others_only() {
    let root = root();
    for (file, constant) in [
        ("lb-dataplane/engine/src/containers/shares.rs", "const KEPT_PART: u32 = 8;"),
        ("operator/index/src/lib.rs", "pub const LINGERING_SHARE: usize = 8;"),
        // What `status` says, too.
        ("common/cli/src/sentences.rs", "const NEAR_LIMIT_PERCENT: u64 = 80;"),
    ] {
        assert!(read(&root.join(file)).contains(constant), "{file}: {constant}");
    }
    let alerts = read(&root.join("charts/baton/files/alerts.yaml"));
    let mut lines = alerts.lines().skip_while(|line| !line.ends_with("BatonTableNearlyFull"));
    let expr = lines.find(|line| line.trim().starts_with("expr: ")).expect("a query");
    let (_, bound) = expr.rsplit_once("> ").expect("a bound");
    assert_eq!(bound, "0.8");
}

/// Whoever installs the chart and copies a policy of a page can connect.
#[test]
fn policies_of_the_pages_listen_where_the_charts_service_leads() {
    let root = root();
    let values: Value = serde_saphyr::from_str(&read(&root.join("charts/baton/values.yaml")))
        .expect("the chart's values");
    let ports = values["dataplane"]["service"]["ports"].as_array();
    let leads: BTreeSet<u64> = ports
        .expect("ports")
        .iter()
        .filter_map(|port| port.get("targetPort").unwrap_or(&port["port"]).as_u64())
        .collect();
    for page in ["crds/README.md", "docs/put-a-service-behind-baton.md"] {
        let text = read(&root.join(page));
        let policies = text.split("kind: LoadBalancerPolicy").skip(1);
        let mut found = 0;
        for policy in policies.filter_map(|rest| rest.split("```").next()) {
            if policy.contains("frontend:") {
                // A Service that the operator makes leads there.
                found += 1;
                continue;
            }
            // The first of its fields of that name that stands alone.
            let words = policy.split([' ', '{', ',', '\n']);
            let at = words.skip_while(|word| *word != "port:").nth(1);
            let port = at.and_then(|port| port.trim_end_matches('}').parse().ok());
            let Some(port) = port else { continue };
            assert!(leads.contains(&port), "{page}: nothing leads to {port}");
            found += 1;
        }
        assert!(found > 0, "{page} has a policy");
    }
}

/// What a dataplane takes at most with 32 receive queues, all tables full, and as many ports as
/// legs may have: its buffers are there from the start, tables and ports fill up.
#[test]
fn thirty_two_queues_and_full_tables_fit_the_charts_memory_limit() {
    /// `QUEUE_BYTES_MAX` of `lb-dataplane/xsk/src/config.rs`, whose tests hold the buffers of each
    /// mode to it.
    const QUEUE_BYTES: u64 = 8_000_000;
    const QUEUES: u64 = 32;
    /// The program, its threads, BPF maps of 16,384 frontends, a snapshot and its successor.
    const REST_BYTES: u64 = 96 << 20;
    /// Bytes of one of each, as the comments of the chart's values and `docs/operations.md` have
    /// it; a leg's port takes
    /// 14.1 at each backend.
    const BYTES: [(&str, u64); 7] = [
        ("flows", 250),
        ("guardedFlows", 108),
        ("respSessions", 160),
        ("keptSegments", 920),
        ("closingLegs", 128),
        ("affinities", 56),
        ("trackedPairs", 0),
    ];
    let constants = read(&root().join("lb-dataplane/xsk/src/config.rs"));
    assert!(constants.contains("pub const QUEUE_BYTES_MAX: usize = 8_000_000;"));
    let values: Value = serde_saphyr::from_str(&read(&root().join("charts/baton/values.yaml")))
        .expect("the values are YAML");
    let of = |path: &str| values.pointer(path).unwrap_or_else(|| panic!("no {path}"));
    let number = |path: &str| of(path).as_u64().unwrap_or_else(|| panic!("{path}"));
    let tables: u64 = BYTES
        .iter()
        .map(|(name, bytes)| number(&format!("/dataplane/limits/{name}")) * bytes)
        .sum();
    let first = number("/dataplane/legPorts/first");
    // `last: 0` is 49,999 in a Deployment, which has the most.
    let last = match number("/dataplane/legPorts/last") {
        0 => 49_999,
        last => last,
    };
    let ports = number("/dataplane/limits/backends") * (last - first + 1) * 141 / 10;
    let limit = match of("/dataplane/resources/limits/memory").as_str() {
        Some("1Gi") => 1_u64 << 30,
        other => panic!("read {other:?} here, too"),
    };
    let wanted = QUEUES * QUEUE_BYTES + tables + ports + REST_BYTES;
    assert!(wanted <= limit, "{wanted} of {limit}: ports {ports}, tables {tables}");
}
