//! `attach` and `detach` as a user types them, with an operator and a cluster that do their part at
//! each change, or do not.

use super::tests::{Seen, typed_in};
use crate::{
    cluster::Kind,
    fake::{Fake, Objects},
};
use serde_json::{Value, json};

fn service_of_clients() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "front", "namespace": "shop", "resourceVersion": "7", "uid": "u",
            "managedFields": [{"manager": "kubectl-client-side-apply"}],
        },
        "spec": {
            "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "type": "ClusterIP",
            "selector": {"app": "front"}, "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
        },
    })
}

fn slice(name: &str, by: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "namespace": "shop",
            "labels": {
                "kubernetes.io/service-name": "front", "endpointslice.kubernetes.io/managed-by": by,
            },
        },
        "addressType": "IPv4", "endpoints": [],
    })
}

fn find<'a>(objects: &'a Objects, kind: Kind, name: &str) -> Option<&'a Value> {
    let mut items = objects.get(&kind)?.iter();
    items.find(|item| item["metadata"]["name"] == name)
}

/// What operator and cluster make of what is there.
fn reacts(objects: &mut Objects) {
    let service = find(objects, Kind::Services, "front").expect("the clients' Service");
    let selects = !service["spec"]["selector"].is_null();
    let policy = service["metadata"]["labels"]["baton.dev/policy"].clone();
    let through = !selects && policy == "front";
    let slices = match through {
        true => vec![slice("front-baton-ipv4-0", "baton-operator")],
        false => vec![slice("front-abc", "endpointslice-controller.k8s.io")],
    };
    objects.insert(Kind::EndpointSlices, slices);
    let policies = objects.get_mut(&Kind::Policies).expect("policies");
    let mut policies = policies.iter_mut();
    if let Some(policy) = policies.find(|policy| policy["metadata"]["name"] == "front") {
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": "True", "reason": kind, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        policy["status"] = json!({
            "addresses": ["10.96.0.7:80"],
            "frontend": {
                "service": "front", "leadsTo": if through { "Dataplanes" } else { "Nowhere" },
                "ports": [{"listener": "http", "port": 18_000}],
            },
            "conditions": [condition("Accepted"), condition("Programmed")],
        });
    }
}

fn with(change: impl FnOnce(&mut Value)) -> Fake {
    let mut fake = Fake::new();
    let mut service = service_of_clients();
    change(&mut service);
    let objects = fake.objects.get_mut();
    objects.get_mut(&Kind::Services).expect("Services").push(service);
    fake.reacts = Box::new(reacts);
    fake
}

/// The objects that a dry run prints, in the form in which programs that read manifests take
/// several: each document is one object with a kind.
fn manifests(seen: &Seen) -> Vec<Value> {
    let list: Value = serde_json::from_str(&seen.out).expect("JSON");
    assert_eq!((&list["apiVersion"], &list["kind"]), (&json!("v1"), &json!("List")));
    list["items"].as_array().expect("items").clone()
}

async fn refused(fake: &Fake, line: &str, why: &str) {
    let seen = typed_in(fake, line).await;
    seen.refuses(why);
    assert!(fake.written.borrow().is_empty(), "{:?}", fake.written);
}

#[tokio::test(start_paused = true)]
async fn a_service_is_attached_in_the_order_that_loses_nobody_and_detached_again() {
    let fake = with(|_| ());
    let seen: Seen = typed_in(&fake, "attach svc/front").await;
    assert!(seen.is(0), "{}", seen.err);
    assert!(seen.out.contains("leads through Baton") && seen.out.contains("10.96.0.7:80"));
    assert!(seen.err.contains("protocol HTTP1"), "{}", seen.err);
    let steps =
        ["create services/front-pods", "create loadbalancerpolicies/front", "patch services/front"];
    assert_eq!(*fake.written.borrow(), steps);
    {
        let objects = fake.objects.borrow();
        let service = find(&objects, Kind::Services, "front").expect("it");
        assert!(service["spec"]["selector"].is_null(), "{service}");
        let pods = find(&objects, Kind::Services, "front-pods").expect("one for its pods");
        assert_eq!(pods["spec"]["selector"], json!({"app": "front"}));
        assert_eq!(pods["spec"]["ports"][0]["targetPort"], 8080);
        let policy = find(&objects, Kind::Policies, "front").expect("a policy");
        assert_eq!(policy["spec"]["targetRefs"][0]["name"], "front-pods");
        let listener = json!([{"name": "http", "port": 80, "servicePort": 80}]);
        assert_eq!(policy["spec"]["listeners"], listener);
        let problems = baton_crds::check(&policy.to_string(), std::path::Path::new("p.json"));
        assert!(problems.expect("checked").is_empty());
    }
    typed_in(&fake, "attach front").await.refuses("leads to policy front already");
    typed_in(&fake, "attach front-pods").await.refuses("clients use front");

    fake.written.borrow_mut().clear();
    let seen = typed_in(&fake, "detach svc/front").await;
    assert!(seen.is(0), "{}", seen.err);
    let steps =
        ["patch services/front", "delete loadbalancerpolicies/front", "delete services/front-pods"];
    assert_eq!(*fake.written.borrow(), steps);
    {
        let objects = fake.objects.borrow();
        let service = find(&objects, Kind::Services, "front").expect("it");
        assert_eq!(service["spec"], service_of_clients()["spec"]);
        assert_eq!(service["metadata"]["labels"], json!({}));
    }
    typed_in(&fake, "detach front").await.refuses("is not attached");
}

#[tokio::test(start_paused = true)]
async fn without_a_dataplane_clients_notice_nothing_and_the_same_command_goes_on() {
    let mut fake = with(|_| ());
    fake.reacts = Box::new(|_| ());
    let seen = typed_in(&fake, "attach front --timeout 2s").await;
    seen.refuses("no dataplane serves policy front yet: the operator has not answered");
    assert_eq!(fake.written.borrow().len(), 2);
    let selector = {
        let objects = fake.objects.borrow();
        find(&objects, Kind::Services, "front").expect("it")["spec"]["selector"].clone()
    };
    assert_eq!(selector, json!({"app": "front"}));
    fake.reacts = Box::new(reacts);
    (fake.reacts)(fake.objects.get_mut());
    let seen = typed_in(&fake, "attach front").await;
    assert!(seen.is(0), "{}", seen.err);
    assert_eq!(fake.written.borrow().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_attach_that_was_stopped_after_its_last_change_waits_on() {
    let mut fake = with(|_| ());
    // The operator programs, and does not lead the Service yet.
    fake.reacts = Box::new(|objects| {
        reacts(objects);
        for policy in objects.get_mut(&Kind::Policies).expect("policies") {
            if policy["metadata"]["name"] == "front" {
                policy["status"]["frontend"]["leadsTo"] = "Nowhere".into();
            }
        }
    });
    for _ in 0..2 {
        let seen = typed_in(&fake, "attach front --timeout 1s").await;
        seen.refuses("does not lead to dataplanes yet");
        assert_eq!(fake.written.borrow().len(), 3, "{:?}", fake.written);
    }
    let seen = typed_in(&fake, "attach front --dry-run").await;
    assert!(seen.out.contains("is done  Service front"), "{}", seen.out);
    reacts(fake.objects.get_mut());
    let seen = typed_in(&fake, "attach front").await;
    seen.refuses("leads to policy front already");
}

#[tokio::test(start_paused = true)]
async fn names_that_are_too_long_for_what_is_made_are_shortened() {
    let name = "a".repeat(57) + "-bcdef";
    let ports = json!([
        {"name": "http-with-a-long-name", "port": 80}, {"name": "http", "port": 81},
    ]);
    let fake = with(|service| {
        service["metadata"]["name"] = name.as_str().into();
        service["spec"]["ports"] = ports;
    });
    let seen = typed_in(&fake, &format!("attach {name} --dry-run -o json")).await;
    let made = manifests(&seen);
    let pods = "a".repeat(57) + "-pods";
    assert_eq!(made[0]["metadata"]["name"], pods.as_str());
    let listeners = &made[1]["spec"]["listeners"];
    let names = [&listeners[0]["name"], &listeners[1]["name"]];
    assert_eq!(names, ["port-80", "http"]);
    let problems = baton_crds::check(&made[1].to_string(), std::path::Path::new("p.json"));
    assert!(problems.expect("checked").is_empty());
}

/// The API server refuses a policy with one name twice, when the Service of the pods is made.
#[tokio::test(start_paused = true)]
async fn a_port_that_has_the_name_of_another_ones_listener_keeps_it() {
    let fake = with(|service| {
        service["spec"]["ports"] = json!([
            {"name": "http-with-a-long-name", "port": 8080}, {"name": "port-8080", "port": 80},
            {"name": "port-8080-2", "port": 81},
        ]);
    });
    let seen = typed_in(&fake, "attach front --dry-run -o json").await;
    let made = manifests(&seen);
    let names = [0, 1, 2].map(|at| made[1]["spec"]["listeners"][at]["name"].clone());
    assert_eq!(names, ["port-8080-3", "port-8080", "port-8080-2"]);
}

#[tokio::test(start_paused = true)]
async fn where_baton_is_not_installed_attach_says_so() {
    let fake = with(|_| ());
    fake.objects.borrow_mut().remove(&Kind::Policies);
    let seen = typed_in(&fake, "attach front").await;
    let why = seen.code.expect_err("it is not");
    assert!(why.contains("Baton is not installed"), "{why}");
}

/// What somebody else writes is not what the cluster writes by the selector.
#[tokio::test(start_paused = true)]
async fn a_detach_takes_nothing_away_before_the_cluster_leads_to_the_pods() {
    let mut fake = with(|_| ());
    assert!(typed_in(&fake, "attach front").await.is(0));
    fake.reacts = Box::new(|_| ());
    let slices = fake.objects.get_mut().get_mut(&Kind::EndpointSlices);
    slices.expect("slices").push(slice("front-mine", "me"));
    let seen = typed_in(&fake, "detach front").await;
    seen.refuses("1 EndpointSlices of Baton are still there");
}

/// As after `helm uninstall --no-hooks`, also where the definitions went, too.
#[tokio::test(start_paused = true)]
async fn a_detach_needs_no_operator_and_no_definitions() {
    for definitions in [true, false] {
        let mut fake = with(|_| ());
        assert!(typed_in(&fake, "attach front").await.is(0));
        // Who writes what the cluster writes is still there.
        fake.reacts = Box::new(|objects| {
            let service = find(objects, Kind::Services, "front").expect("the clients' Service");
            let selects = !service["spec"]["selector"].is_null();
            let slices = objects.entry(Kind::EndpointSlices).or_default();
            let cluster = slice("front-abc", "endpointslice-controller.k8s.io");
            if selects && !slices.contains(&cluster) {
                slices.push(cluster);
            }
        });
        if !definitions {
            fake.objects.borrow_mut().remove(&Kind::Policies);
        }
        let seen = typed_in(&fake, "detach front").await;
        assert!(seen.is(0), "{}", seen.err);
        let objects = fake.objects.borrow();
        let service = find(&objects, Kind::Services, "front").expect("it");
        assert_eq!(service["spec"]["selector"], json!({"app": "front"}));
        let left = &objects[&Kind::EndpointSlices];
        assert_eq!((left.len(), &left[0]["metadata"]["name"]), (1, &json!("front-abc")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_detach_deletes_the_policy_that_the_label_names_and_none_of_several_without_it() {
    let other = |name: &str, pods: &str| {
        json!({
            "apiVersion": "baton.dev/v1alpha1", "kind": "LoadBalancerPolicy",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "targetRefs": [{"name": pods}], "frontend": {"service": {"name": "front"}},
                "listeners": [{"name": "http", "port": 80}],
            },
        })
    };
    let add = |fake: &mut Fake, policy| {
        let policies = fake.objects.get_mut().get_mut(&Kind::Policies);
        policies.expect("policies").insert(0, policy);
    };
    let mut fake = with(|_| ());
    assert!(typed_in(&fake, "attach front").await.is(0));
    add(&mut fake, other("another", "front-pods"));
    fake.written.borrow_mut().clear();
    let seen = typed_in(&fake, "detach front").await;
    assert!(seen.is(0), "{}", seen.err);
    let deleted = "delete loadbalancerpolicies/front".to_owned();
    assert!(fake.written.borrow().contains(&deleted), "{:?}", fake.written);
    // One that is for other Pods was not made by `attach`.
    let mut fake = with(|_| ());
    add(&mut fake, other("another", "elsewhere"));
    refused(&fake, "detach front", "is not attached").await;
    add(&mut fake, other("one", "front-pods"));
    add(&mut fake, other("two", "front-pods"));
    refused(&fake, "detach front", "policies two, one are all for the pods").await;
}

#[tokio::test(start_paused = true)]
async fn a_detach_that_was_stopped_goes_on_where_it_was_and_deletes_nothing_too_early() {
    let mut fake = with(|_| ());
    assert!(typed_in(&fake, "attach front").await.is(0));
    fake.written.borrow_mut().clear();
    // The operator keeps its slices.
    fake.reacts = Box::new(|_| ());
    let still = "still leads through Baton, too: 1 EndpointSlices";
    for _ in 0..2 {
        let seen = typed_in(&fake, "detach front --timeout 1s").await;
        seen.refuses(still);
        assert_eq!(*fake.written.borrow(), ["patch services/front"]);
    }
    reacts(fake.objects.get_mut());
    let began = tokio::time::Instant::now();
    let seen = typed_in(&fake, "detach front --linger 7s").await;
    assert!(seen.is(0), "{}", seen.err);
    assert!(began.elapsed().as_secs() >= 7, "nodes had no time to follow");
    assert_eq!(fake.written.borrow().len(), 3);
}

/// `kubectl apply` of a manifest from before, or of a newer one.
#[tokio::test(start_paused = true)]
async fn a_selector_that_somebody_gave_back_is_taken_again_and_another_one_kept() {
    let fake = with(|_| ());
    let _ = typed_in(&fake, "attach front").await;
    let apply = |what: &str, value: Value| {
        let objects = &mut *fake.objects.borrow_mut();
        let mut services = objects.get_mut(&Kind::Services).expect("some").iter_mut();
        let front = services.find(|s| s["metadata"]["name"] == "front");
        front.expect("it")["spec"][what] = value;
        reacts(objects);
        fake.written.borrow_mut().clear();
    };
    apply("selector", json!({"app": "front"}));
    let seen = typed_in(&fake, "attach front").await;
    assert!(seen.is(0), "{}", seen.err);
    assert_eq!(*fake.written.borrow(), ["patch services/front"]);
    assert_eq!(
        find(&fake.objects.borrow(), Kind::Services, "front").expect("it")["spec"]["selector"],
        Value::Null
    );

    apply("selector", json!({"app": "newer"}));
    refused(&fake, "attach front", "has another spec.selector than when it was attached").await;
    let seen = typed_in(&fake, "detach front").await;
    assert!(seen.is(0), "{}", seen.err);
    let objects = fake.objects.borrow();
    let front = find(&objects, Kind::Services, "front").expect("it");
    assert_eq!(front["spec"]["selector"], json!({"app": "newer"}));
    assert_eq!(front["metadata"]["labels"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_can_be_taken_back() {
    let mut fake = with(|_| ());
    fake.reacts = Box::new(|_| ());
    let _ = typed_in(&fake, "attach front --timeout 1s").await;
    let seen = typed_in(&fake, "detach front").await;
    assert!(seen.is(0), "{}", seen.err);
    let objects = fake.objects.borrow();
    assert!(find(&objects, Kind::Policies, "front").is_none());
    assert!(find(&objects, Kind::Services, "front-pods").is_none());
}

#[tokio::test]
async fn a_dry_run_shows_each_change_and_changes_nothing() {
    let fake = with(|_| ());
    let seen = typed_in(&fake, "attach front --dry-run").await;
    assert!(seen.is(0), "{}", seen.err);
    for part in [
        "create  Service front-pods",
        "create  LoadBalancerPolicy front",
        "change  Service front",
        r#"- spec.selector: {"app":"front"}"#,
        "+ metadata.labels[baton.dev/policy]: front",
    ] {
        assert!(seen.out.contains(part), "{part}: {}", seen.out);
    }
    let seen = typed_in(&fake, "attach front --dry-run -o json").await;
    let made = manifests(&seen);
    let kinds: Vec<_> = made.iter().map(|m| m["kind"].as_str()).collect();
    assert_eq!(kinds, [Some("Service"), Some("LoadBalancerPolicy"), Some("Service")]);
    let front = &made[2];
    assert!(front["spec"]["selector"].is_null() && front["spec"]["clusterIP"].is_null());
    assert!(front["metadata"]["managedFields"].is_null(), "{front}");
    assert_eq!(front["metadata"]["labels"]["baton.dev/policy"], "front");
    assert!(fake.written.borrow().is_empty());
}

#[tokio::test]
async fn what_cannot_be_attached_is_refused_with_what_to_do() {
    let spec = |key: &'static str, value: Value| with(move |s| s["spec"][key] = value);
    let udp = json!([{"name": "dns", "port": 53, "protocol": "UDP"}]);
    refused(&with(|_| ()), "attach nothing", "there is no Service nothing").await;
    refused(&spec("type", json!("ExternalName")), "attach front", "of type ExternalName").await;
    refused(&spec("selector", Value::Null), "attach front", "has no selector").await;
    refused(&spec("clusterIP", json!("None")), "attach front", "is headless").await;
    refused(&spec("ports", udp), "attach front", "port 53 of Service front is UDP").await;
    refused(&spec("ports", json!([])), "attach front", "has 0 ports").await;
    let all = typed_in(&with(|_| ()), "attach front -A").await;
    assert_eq!(all.code, Err("a Service is of one namespace: name it with -n".into()));
    for (key, value, who) in [
        ("managedFields", json!([{"manager": "argocd-controller"}]), "Argo CD"),
        ("managedFields", json!([{"manager": "kustomize-controller"}]), "Flux"),
        ("labels", json!({"helm.toolkit.fluxcd.io/name": "shop"}), "Flux"),
    ] {
        let kept = with(|s| s["metadata"][key] = value);
        let why = format!("is kept by {who}");
        refused(&kept, "attach front", &why).await;
        let seen = typed_in(&kept, "attach front --dry-run -o yaml").await;
        assert!(seen.is(0) && seen.out.contains("baton.dev/policy: front"), "{}", seen.err);
    }
    // A policy of the samples.
    refused(&with(|_| ()), "attach front --policy web", "there is a policy web already").await;
    let mut taken = with(|_| ());
    let other = json!({"metadata": {"name": "front-pods", "namespace": "shop"}, "spec": {}});
    taken.objects.get_mut().get_mut(&Kind::Services).expect("Services").push(other);
    refused(&taken, "attach front", "there is a Service front-pods already").await;
}

#[tokio::test]
async fn the_protocol_is_the_ports_unless_said_otherwise() {
    for (port, line, expected) in [
        (json!({"port": 9000, "appProtocol": "http"}), "", "HTTP1"),
        (json!({"port": 6379}), "", "RESP"),
        (json!({"name": "memcached", "port": 7000}), "", "Memcached"),
        (json!({"port": 9000}), "", "None"),
        (json!({"name": "grpc", "port": 80}), "", "None"),
        (json!({"port": 80}), "--protocol RESP", "RESP"),
    ] {
        let fake = with(|s| s["spec"]["ports"] = json!([port]));
        let seen = typed_in(&fake, &format!("attach front --dry-run -o json {line}")).await;
        let made = manifests(&seen);
        assert_eq!(made[1]["spec"]["protocol"], expected, "{port}");
    }
    let ports = json!([{"name": "http", "port": 80}, {"name": "redis", "port": 6379}]);
    let mixed = with(|s| s["spec"]["ports"] = ports);
    let seen = typed_in(&mixed, "attach front --dry-run -o json").await;
    let made = manifests(&seen);
    let spec = &made[1]["spec"];
    let said = [0, 1].map(|at| spec["listeners"][at]["protocol"].as_str());
    assert_eq!((said, &spec["protocol"]), ([Some("HTTP1"), Some("RESP")], &Value::Null));
    let sticky = with(|s| s["spec"]["sessionAffinity"] = json!("ClientIP"));
    let seen = typed_in(&sticky, "attach front --dry-run -o json").await;
    let made = manifests(&seen);
    let affinity = json!({"clientIP": {"timeout": "10800s"}});
    assert_eq!(made[1]["spec"]["affinity"], affinity);
}

#[tokio::test]
async fn where_clients_from_outside_reach_it_then_is_said() {
    for (policy, is_said) in [("Local", true), ("Cluster", false)] {
        let fake = with(|s| s["spec"]["externalTrafficPolicy"] = json!(policy));
        let seen = typed_in(&fake, "attach front --dry-run").await;
        let said = seen.err.contains("at nodes with a dataplane only");
        assert_eq!(said, is_said, "{}", seen.err);
    }
}
