//! What `status` says in clusters of many kinds: the samples', and that one with something broken.

use super::*;
use crate::{
    fake::{Fake, answer, bad, golden, good, which},
    status::report::Report,
};
use baton_cli::{Style, WIDTH_MAX};
use baton_crds::{Condition, ConditionStatus};
use serde_json::json;

async fn seen(fake: &Fake, namespace: Option<&str>) -> Report {
    judge(&look(fake, namespace).await.expect("it answers"))
}

async fn problems(fake: &Fake) -> String {
    let report = seen(fake, None).await;
    assert_eq!(report.works, report.problems.is_empty());
    report.problems.join("\n")
}

#[tokio::test]
async fn a_cluster_where_all_is_well_and_one_pod_cannot_adopt() {
    let report = seen(&Fake::new(), None).await;
    assert!(report.works, "{report:?}");
    golden("status.txt", &render(&report, Style::default()));
    golden("status-wide.txt", &render(&report, Style { wide: true, colour: false }));
}

#[tokio::test]
async fn a_bad_night() {
    let mut fake = Fake::new();
    for pod in fake.objects.get_mut().get_mut(&Kind::Pods).expect("Pods") {
        let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
        let status = &mut pod["status"];
        if name.starts_with("baton-operator") || name.ends_with("kl5wz") {
            status["conditions"][0]["status"] = "False".into();
            status["containerStatuses"][0]["state"] =
                json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}});
        }
    }
    fake.answers = Box::new(|pod, words| {
        if which(pod) == "b" {
            return bad(
                2,
                "lb-dataplane: no dataplane answers at unix:/run/baton/control.sock: is it running?",
            );
        }
        let said = answer("a", words)?.0;
        let mut state: serde_json::Value = serde_json::from_slice(&said).expect("JSON");
        state["problems"] = json!([
            "policy `shop/web/http`: none of its 3 backends is usable (web-5d4f-abcde is down, web-5d4f-fghij is down, \
             web-5d4f-klmno is down), so nobody serves new connections: look at the pods; `lb-dataplane backends` says more"
        ]);
        state["policies"][1]["lostTotal"] = json!({"no_backend": 2, "fate_unknown": 1});
        state["tables"]["flows"] = json!([60_000, 65_536]);
        good(state.to_string())
    });
    fake.forbidden = vec![Kind::EndpointSlices];
    let report = seen(&fake, None).await;
    assert!(!report.works);
    let text = render(&report, Style::default());
    golden("status-bad.txt", &text);
    assert!(
        text.lines().all(|line| line.chars().count() <= WIDTH_MAX || !line.trim().contains(' ')),
        "{text}"
    );
}

#[tokio::test]
async fn what_is_not_installed_is_told_with_what_to_do() {
    let mut bare = Fake::empty();
    bare.objects.get_mut().remove(&Kind::Policies);
    bare.objects.get_mut().remove(&Kind::Classes);
    let text = problems(&bare).await;
    assert!(
        text.starts_with("Baton is not installed") && text.contains("charts/baton/crds"),
        "{text}"
    );
    let text = problems(&Fake::empty()).await;
    assert!(
        text.starts_with("only Baton's definitions are installed") && text.contains("helm install"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "said once: {text}");
}

#[tokio::test]
async fn each_part_that_is_missing_is_a_problem_of_its_own() {
    let without = |component: &str| {
        let mut fake = Fake::new();
        let pods = fake.objects.get_mut().get_mut(&Kind::Pods).expect("Pods");
        pods.retain(|pod| pod["metadata"]["labels"]["app.kubernetes.io/component"] != component);
        fake
    };
    assert!(
        problems(&without("operator"))
            .await
            .starts_with("there is no operator, so changes reach no dataplane")
    );
    let text = problems(&without("lb-dataplane")).await;
    assert!(
        text.starts_with(
            "class default has no dataplane: no Pod in namespace baton-system has the labels app."
        ),
        "{text}"
    );
    let mut classless = Fake::new();
    classless.objects.get_mut().get_mut(&Kind::Classes).expect("classes").clear();
    let report = seen(&classless, None).await;
    assert!(report.problems[0].starts_with("there is no BatonDataplane"), "{report:?}");
}

#[tokio::test]
async fn no_program_is_run_in_pods_that_nobody_of_the_cluster_named() {
    let mut fake = Fake::new();
    fake.forbidden = vec![Kind::Classes];
    let report = seen(&fake, None).await;
    assert!(fake.ran.borrow().is_empty() && report.dataplanes.is_empty());
    let told = report.unseen.iter().any(|u| u.contains("`--baton-namespace`"));
    assert!(told, "{report:?}");
    fake.home = Some("baton-system");
    let report = seen(&fake, None).await;
    assert_eq!(report.dataplanes.len(), 2, "by the chart's labels");
    // What may not be seen may well be there.
    assert!(report.works, "{:?}", report.problems);
    let pods = fake.objects.get_mut().get_mut(&Kind::Pods).expect("Pods");
    for pod in pods {
        pod["metadata"]["namespace"] = "tenant".into();
    }
    assert_eq!(seen(&fake, None).await.dataplanes.len(), 0);
}

#[tokio::test]
async fn where_nothing_adopts_connections_move_by_translation_unless_the_policy_forbids_it() {
    async fn said(adoption_only: bool, change: impl FnOnce(&mut Fake)) -> (String, bool) {
        let mut fake = Fake::new();
        change(&mut fake);
        let policies = fake.objects.get_mut().get_mut(&Kind::Policies);
        if adoption_only {
            let web = &mut policies.expect("policies")[0]["spec"];
            web["migration"]["method"] = "Adoption".into();
        }
        let report = seen(&fake, None).await;
        let all: Vec<String> = report.problems.iter().chain(&report.notes).cloned().collect();
        (all.join("\n"), report.works)
    }
    let pods = |keep: fn(&str) -> bool| {
        move |fake: &mut Fake| {
            let pods = fake.objects.get_mut().get_mut(&Kind::Pods).expect("Pods");
            pods.retain(|pod| keep(pod["metadata"]["name"].as_str().expect("a name")));
        }
    };
    let old = |fake: &mut Fake| {
        let nodes = fake.objects.get_mut().get_mut(&Kind::Nodes);
        for node in nodes.expect("nodes") {
            node["status"]["nodeInfo"]["kernelVersion"] = "6.1.0".into();
        }
    };
    let no_shim = || pods(|name| !name.starts_with("baton-host-shim"));
    let one_less = || pods(|name| name != "baton-host-shim-v7q9d");
    for (only, (text, works), what, fate) in [
        (
            false,
            said(false, no_shim()).await,
            "there is no host-shim at all: ",
            " move to Pods by translation",
        ),
        (
            true,
            said(true, no_shim()).await,
            "there is no host-shim at all: ",
            " do not move to Pods",
        ),
        (
            false,
            said(false, one_less()).await,
            "on node-3 (there is no Pod of it): ",
            " move to the Pods there by translation",
        ),
        (
            true,
            said(true, one_less()).await,
            "on node-3 (there is no Pod of it): ",
            " do not move to the Pods there",
        ),
        (
            false,
            said(false, old).await,
            "node node-3 has Linux 6.1.0: ",
            " Pods by translation (adoption needs 6.9",
        ),
        (true, said(true, old).await, "node node-3 has Linux 6.1.0: ", " do not move to its "),
    ] {
        assert!(text.contains(what) && text.contains(fate), "{text}");
        assert_eq!(works, !only, "{text}");
    }
}

fn with_condition(kind: &str, status: ConditionStatus) -> Fake {
    let mut fake = Fake::new();
    let policy = &mut fake.objects.get_mut().get_mut(&Kind::Policies).expect("policies")[0];
    let conditions = policy["status"]["conditions"].as_array_mut().expect("conditions");
    for condition in conditions {
        if condition["type"] == kind {
            let mut typed: Condition =
                serde_json::from_value(condition.clone()).expect("a condition");
            typed.status = status;
            typed.reason = "Reason".into();
            typed.message = "what to do".into();
            *condition = serde_json::to_value(typed).expect("JSON");
        }
    }
    fake
}

#[tokio::test]
async fn a_policys_conditions_decide_over_its_word() {
    for (kind, status, word, works) in [
        ("Accepted", ConditionStatus::False, "refused", false),
        ("Programmed", ConditionStatus::Unknown, "not served", false),
        ("Adoptable", ConditionStatus::False, "no moves", true),
        ("Degraded", ConditionStatus::True, "degraded", true),
        ("Degraded", ConditionStatus::False, "ok", true),
    ] {
        let report = seen(&with_condition(kind, status), Some("shop")).await;
        assert_eq!((report.policies[0].state, report.works), (word, works), "{kind}");
        let said: Vec<&String> = report.problems.iter().chain(&report.notes).collect();
        assert_eq!(
            said.iter().any(|text| text.contains("Reason: what to do")),
            word != "ok",
            "{kind}: {said:?}"
        );
    }
    // Worth a look, and the policy is as it should be.
    let mut fake = with_condition("Adoptable", ConditionStatus::True);
    let policy = &mut fake.objects.get_mut().get_mut(&Kind::Policies).expect("policies")[0];
    let conditions = policy["status"]["conditions"].as_array_mut();
    for condition in conditions.expect("conditions") {
        if condition["type"] == "Adoptable" {
            condition["reason"] = "ByTranslation".into();
        }
    }
    let report = seen(&fake, Some("shop")).await;
    assert_eq!((report.policies[0].state, report.works), ("ok", true));
    let notes = report.notes.join("\n");
    assert!(notes.contains("shop/web: ByTranslation: what to do"), "{notes}");
    let mut fake = Fake::new();
    fake.objects.get_mut().get_mut(&Kind::Policies).expect("policies")[0]["status"] = json!({});
    assert!(
        problems(&fake)
            .await
            .starts_with("policy shop/web: the operator has said nothing about it")
    );
    let mut fake = Fake::new();
    fake.objects.get_mut().get_mut(&Kind::Policies).expect("policies")[0]["metadata"]["generation"] =
        json!(2);
    let notes = seen(&fake, None).await.notes.join("\n");
    assert!(notes.contains("shop/web: the operator has not seen its newest version"), "{notes}");
}

#[tokio::test]
async fn where_clients_connect_and_where_that_leads_is_shown() {
    let mut fake = Fake::new();
    let objects = fake.objects.get_mut();
    let policies = objects.get_mut(&Kind::Policies).expect("policies");
    let spec = policies[0]["spec"].clone();
    policies[0]["spec"]["frontend"] = json!({"service": {"name": "web-lb"}});
    let mut addresses = policies[0].clone();
    addresses["metadata"]["name"] = "addresses".into();
    addresses["spec"] = spec;
    addresses["spec"]["listeners"] = json!([
        {"name": "a", "port": 80, "addresses": ["192.0.2.1", "192.0.2.2"]},
        {"name": "b", "port": 81},
        {"name": "c", "port": 82},
    ]);
    addresses["status"]["addresses"] = json!(["192.0.2.1:80", "192.0.2.2:80"]);
    policies.push(addresses);
    let mut shown = Vec::new();
    for leads_to in ["Dataplanes", "Pods", "Nowhere", "another Service's"] {
        let policies = fake.objects.get_mut().get_mut(&Kind::Policies);
        let status = &mut policies.expect("policies")[0]["status"];
        status["addresses"] = json!(["192.0.2.10:80", "10.96.0.9:80", "[fd00::9]:80"]);
        status["frontend"] = match leads_to {
            "another Service's" => json!({"service": "web-old", "leadsTo": "Dataplanes"}),
            _ => json!({"service": "web-lb", "leadsTo": leads_to}),
        };
        let report = seen(&fake, Some("shop")).await;
        let front = report.policies[0].frontend.as_ref().expect("it has one");
        shown.push(front.leads_to);
        if leads_to == "Pods" {
            let wide = |wide| Style { wide, colour: false };
            let text = [false, true].map(|is| render(&report, wide(is)));
            golden("status-clients.txt", &text.join("\n"));
        }
    }
    assert_eq!(shown, ["dataplanes", "pods", "nowhere", "unseen"]);
}

#[tokio::test]
async fn missing_rights_leave_gaps_that_are_told_or_end_it() {
    let mut fake = Fake::new();
    fake.forbidden = vec![Kind::Nodes];
    let report = seen(&fake, None).await;
    assert!(report.works && report.nodes.is_empty());
    assert!(report.unseen[0].contains("no permission for `list` on `nodes`"), "{report:?}");
    fake.forbidden = vec![Kind::Policies];
    let failure = look(&fake, Some("shop")).await.expect_err("nothing to judge");
    assert!(
        failure
            .to_string()
            .contains("`list` on `loadbalancerpolicies.baton.dev` in namespace `shop`"),
        "{failure}"
    );
}

#[tokio::test]
async fn a_namespace_without_policies_points_to_the_others() {
    let report = seen(&Fake::new(), Some("empty")).await;
    assert!(report.works && report.policies.is_empty());
    assert!(report.notes[0].contains("namespace empty: `-A`"), "{report:?}");
}
