//! Commands as a user types them, against the samples' cluster: what is printed, what is noted,
//! which exit code.

use super::*;
use crate::{
    args::tests::parsed,
    fake::{Buffer, Fake, answer, bad, golden, good, which},
    samples,
};
use baton_api::{DrainReply, FlowEvents, MigrateReply};
use baton_cli::args::Output;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{cell::Cell, rc::Rc};

/// What a user sees.
pub struct Seen {
    pub out: String,
    pub err: String,
    pub code: Result<ExitCode, String>,
}

impl Seen {
    pub fn is(&self, code: u8) -> bool {
        self.code == Ok(ExitCode::from(code))
    }

    /// It was not done, and this is why.
    pub fn refuses(&self, why: &str) {
        assert!(self.is(1) && self.err.contains(why), "{}", self.err);
    }

    /// What is printed, on one line.
    pub fn words(&self) -> String {
        self.out.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

pub async fn typed_in(fake: &Fake, line: &str) -> Seen {
    let args::CommandLine { command, options } =
        parsed(&format!("kubectl-baton {line}")).expect(line);
    let (out, err) = (Buffer::default(), Buffer::default());
    let asking = Asking {
        cluster: fake,
        options: &options,
        show: Show::into("kubectl-baton", options.output, out.clone(), err.clone()),
    };
    let code = asking.run(&command).await.map_err(|error| format!("{error:#}"));
    Seen { out: out.text(), err: err.text(), code }
}

#[tokio::test]
async fn tables_are_as_committed() {
    for (line, file) in [
        ("backends", "backends.txt"),
        ("backends -A -o wide", "backends-wide.txt"),
        ("flows -A", "flows.txt"),
        ("flows -A -o wide", "flows-wide.txt"),
        ("flows -o yaml --limit 1", "flows.yaml"),
        ("explain 192.0.2.7:40112", "explain.txt"),
        ("explain 192.0.2.7:40114", "explain-pinned.txt"),
        ("explain 192.0.2.9", "explain-alone.txt"),
        ("drain web-5d4f-abcde", "drain.txt"),
        ("migrate 192.0.2.7:40112", "migrate.txt"),
        ("version", "version.txt"),
    ] {
        let seen = typed_in(&Fake::new(), line).await;
        assert!(seen.is(0), "{line}: {:?} {}", seen.code, seen.err);
        golden(file, &seen.out);
        if !line.contains("-o") {
            assert!(
                seen.out.lines().all(|line| line.chars().count() <= baton_cli::WIDTH_MAX),
                "{}",
                seen.out
            );
        }
    }
}

#[tokio::test]
async fn check_ends_with_what_it_found() {
    let mut fake = Fake::new();
    assert!(typed_in(&fake, "check").await.is(0));
    fake.version = "v1.29.0".to_owned();
    let seen = typed_in(&fake, "check -o json").await;
    let report: Value = serde_json::from_str(&seen.out).expect("JSON");
    assert!(seen.is(1) && report["installable"] == false, "{report}");
}

#[tokio::test]
async fn status_ends_as_lb_dataplane_does() {
    assert!(typed_in(&Fake::new(), "status").await.is(0));
    let seen = typed_in(&Fake::empty(), "status -o json").await;
    assert!(seen.is(1));
    let report: Value = serde_json::from_str(&seen.out).expect("JSON");
    assert_eq!(report["works"], false);
    let mut blind = Fake::new();
    blind.forbidden = vec![Kind::Pods];
    let error =
        typed_in(&blind, "status").await.code.expect_err("cannot be asked: main ends with 2");
    assert!(error.contains("`list` on `pods` in namespace `baton-system`"), "{error}");
}

#[tokio::test]
async fn namespaces_are_meant_as_kubectl_means_them() {
    let policies = |seen: &Seen| seen.out.matches("Policy ").count();
    let fake = Fake::new();
    assert_eq!(policies(&typed_in(&fake, "backends").await), 1, "the context's: shop");
    assert_eq!(policies(&typed_in(&fake, "backends -n data").await), 1);
    assert_eq!(policies(&typed_in(&fake, "backends -A").await), 2);
    assert!(typed_in(&fake, "backends -n data cache").await.is(0));
    let seen = typed_in(&fake, "backends -n data web").await;
    seen.refuses(
        "no dataplane serves policy web in namespace data: expected one of data/cache/redis",
    );
    let seen = typed_in(&fake, "backends shop/web/http -n data").await;
    assert!(seen.is(0) && policies(&seen) == 1, "a full name says where");
}

#[tokio::test]
async fn flows_are_filtered_and_sorted() {
    async fn clients(line: &str) -> Vec<String> {
        let seen = typed_in(&Fake::new(), &format!("{line} -o json")).await;
        let flows: Value = serde_json::from_str(&seen.out).expect("JSON");
        let flows = flows["flows"].as_array().expect("a list").clone();
        flows.iter().map(|flow| flow["client"].as_str().expect("a client").to_owned()).collect()
    }
    assert_eq!(clients("flows --client 192.0.2.7").await, ["192.0.2.7:40112", "192.0.2.7:40114"]);
    assert_eq!(clients("flows --client [2001:db8::9]:33001").await, ["[2001:db8::9]:33001"]);
    assert_eq!(clients("flows --pinned").await, ["192.0.2.7:40114"]);
    assert_eq!(clients("flows --state idle -A").await, ["192.0.2.7:40112", "192.0.2.9:51000"]);
    assert_eq!(
        clients("flows --sort moves --limit 2").await,
        ["192.0.2.7:40112", "[2001:db8::9]:33001"]
    );
    assert_eq!(clients("flows --sort quiet --limit 1").await, ["192.0.2.8:40999"]);
    assert_eq!(clients("flows --policy data/cache/redis").await, ["192.0.2.9:51000"]);
    let fake = Fake::new();
    let seen = typed_in(&fake, "flows --backend web-5d4f-klmno --limit 1").await;
    assert!(seen.out.contains("192.0.2.8:40999"), "{}", seen.out);
    assert!(
        fake.ran.borrow()[0].ends_with("flows?limit=20000&backend=web-5d4f-klmno"),
        "{:?}",
        fake.ran
    );
    let seen = typed_in(&fake, "flows -A --limit 2").await;
    assert!(seen.out.contains("2 shown, there are more"), "{}", seen.out);
    assert_eq!(typed_in(&fake, "flows -n nowhere").await.out, "No flows.\n");
}

#[tokio::test]
async fn a_dataplane_that_is_silent_is_named_and_all_silent_is_an_error() {
    let mut fake = Fake::new();
    fake.answers = Box::new(|pod, words| match which(pod) {
        "a" => answer("a", words),
        _ => bad(2, "lb-dataplane: no dataplane answers at unix:/run/baton/control.sock"),
    });
    let seen = typed_in(&fake, "flows -A").await;
    assert!(
        seen.is(0)
            && seen
                .err
                .contains("baton-lb-dataplane-6c8d5b7f9-zq8vt is left out: no dataplane answers"),
        "{}",
        seen.err
    );
    fake.answers = Box::new(|_, _| {
        bad(2, "lb-dataplane: no dataplane answers at unix:/run/baton/control.sock")
    });
    let error = typed_in(&fake, "flows").await.code.expect_err("nobody answers");
    assert!(
        error.starts_with("no dataplane answers: baton-lb-dataplane-6c8d5b7f9-x2b4k: no dataplane")
            && error.contains("1 more"),
        "{error}"
    );
    fake.objects.get_mut().get_mut(&Kind::Classes).expect("classes").clear();
    fake.objects.get_mut().get_mut(&Kind::Pods).expect("Pods").clear();
    let error = typed_in(&fake, "top --count 1").await.code.expect_err("there is none");
    assert!(error.contains("there is no dataplane"), "{error}");
    fake.objects.get_mut().remove(&Kind::Classes);
    let error = typed_in(&fake, "drain a").await.code.expect_err("not there");
    assert!(error.contains("nothing was drained"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn top_shows_what_happened_between_two_looks() {
    let looks = Rc::new(Cell::new(0_u64));
    let counted = Rc::clone(&looks);
    let fake = Fake::changed("state", move |_, state| {
        let look = counted.get() / 2;
        counted.set(counted.get() + 1);
        for policy in state["policies"].as_array_mut().expect("policies") {
            let backends = policy["backends"].as_array_mut().expect("backends");
            for (i, backend) in backends.iter_mut().enumerate() {
                let grown = |value: &Value, by: u64| {
                    Value::from(value.as_u64().expect("a figure") + by * look)
                };
                backend["requestsTotal"] = grown(&backend["requestsTotal"], 1_000 * (i as u64 + 1));
                backend["migrationsInTotal"] = grown(&backend["migrationsInTotal"], 3);
            }
        }
    });
    let seen = typed_in(&fake, "top --count 2 --rows 2").await;
    assert!(seen.is(0), "{:?}", seen.code);
    golden("top.txt", &seen.out);
    let (first, second) = seen.out.split_once("\n\n").expect("two frames");
    assert!(first.starts_with("99 flows, - requests/s"), "{first}");
    // Two dataplanes, each 1,000 + 2,000 + 3,000 requests in 2 s.
    assert!(second.starts_with("99 flows, 6000 requests/s, 9.0 moves/s"), "{second}");
    assert_eq!(looks.get(), 4);
}

#[tokio::test(start_paused = true)]
async fn watching_flows_prints_a_frame_per_look() {
    let seen = typed_in(&Fake::new(), "flows --watch --count 3").await;
    assert_eq!(seen.out.matches("CLIENT").count(), 3);
    let seen = typed_in(&Fake::new(), "flows --watch --count 2 -o yaml").await;
    assert_eq!(seen.out.matches("---\n").count(), 2, "{}", seen.out);
}

#[tokio::test]
async fn explain_says_why_a_flow_stays() {
    let fake = Fake::new();
    let seen = typed_in(&fake, "explain 198.51.100.1:1").await;
    seen.refuses("no dataplane has a flow of 198.51.100.1:1");
    let seen = typed_in(&fake, "explain baton-lb-dataplane-6c8d5b7f9-zq8vt/192.0.2.7:40112").await;
    assert!(seen.is(1), "it is on the other one");
    let seen = typed_in(&fake, "explain 192.0.2.7").await;
    assert_eq!(seen.out.matches(" is on web-5d4f-abcde").count(), 2, "{}", seen.out);
    async fn why(change: impl Fn(&mut Value)) -> String {
        let mut fake = Fake::new();
        change(&mut fake.objects.get_mut().get_mut(&Kind::Policies).expect("policies")[0]["spec"]);
        typed_in(&fake, "explain 192.0.2.7:40112").await.words()
    }
    for (field, value, words) in [
        ("mode", json!("Never"), "It stays for now: - The policy says `migration.mode: Never`"),
        (
            "mode",
            json!("DrainOnly"),
            "`migration.mode: DrainOnly`, and web-5d4f-abcde does not drain",
        ),
        ("mode", json!("Always"), "It moves: - The policy says `migration.mode: Always`"),
        ("perFlow", json!(3), "It has made the 3 moves that `migration.perFlow` allows"),
        ("perSecond", json!(50), "`migration.perSecond` lets 50 flows move per second"),
        (
            "ratioPercent",
            json!(500),
            "It stays: the wait here is 403 % of that at web-5d4f-fghij (`ratioPercent` 500), a move would gain 940us a request and cost 35us once.",
        ),
        ("cooldown", json!("1s"), "It rests from its last move for another"),
    ] {
        let text = why(|spec| spec["migration"][field] = value.clone()).await;
        assert!(text.contains(words), "{field}: {text}");
    }
    let text = why(|spec| spec["affinity"] = json!({"clientIP": {"timeout": "3h"}})).await;
    assert!(text.contains("affinity keeps all flows of this client on web-5d4f-abcde"), "{text}");
}

/// Dataplanes on which a Pod drains: how many flows are left at each look, and whether it drains at
/// all.
fn draining(flows: Vec<u64>) -> Fake {
    let look = Cell::new(0_usize);
    Fake::changed("state", move |_, state| {
        let at = look.get() / 2;
        look.set(look.get() + 1);
        // The first look is before the order.
        if let Some(left) = at.checked_sub(1).map(|at| flows[at.min(flows.len() - 1)]) {
            let backend = &mut state["policies"][1]["backends"][0];
            backend["flows"] = left.into();
            backend["drain"] = json!({"byCommand": true, "since": "1s", "left": "20s", "moved": 9 - left, "ended": 0,
                "closed": 0, "waiting": {"request in progress": left}});
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_until_no_dataplane_has_a_flow_left() {
    let fake = draining(vec![5, 2, 0]);
    let seen = typed_in(&fake, "drain web-5d4f-abcde --wait").await;
    assert!(seen.is(0), "{:?} {}", seen.code, seen.err);
    golden("drain-wait.txt", &seen.out);
    assert!(
        seen.out
            .starts_with("shop/web-5d4f-abcde is empty after 2.0s and can be stopped: 18 moved"),
        "{}",
        seen.out
    );
    let orders: Vec<String> =
        fake.ran.borrow().iter().filter(|line| line.contains(" drain ")).cloned().collect();
    let order = r#"drain {"backend":"web-5d4f-abcde","policy":"shop/web/http","undo":false}"#;
    assert_eq!(
        orders,
        [
            format!("baton-lb-dataplane-6c8d5b7f9-x2b4k {order}"),
            format!("baton-lb-dataplane-6c8d5b7f9-zq8vt {order}"),
        ],
        "each dataplane once, and only the policy of this namespace"
    );
    let seen = typed_in(&draining(vec![5, 1]), "drain web-5d4f-abcde --wait --timeout 3s").await;
    assert!(seen.is(1));
    let words = seen.words();
    assert!(
        words.contains("is not empty after 3.0s: 2 flows left (2 request in progress); 16 moved"),
        "{words}"
    );
    let seen = typed_in(&draining(vec![3, 0]), "drain web-5d4f-abcde --wait -o json").await;
    let outcome: Value = serde_json::from_str(&seen.out).expect("JSON");
    assert_eq!((&outcome["empty"], &outcome["dataplanes"]), (&json!(true), &json!(2)));
}

#[tokio::test(start_paused = true)]
async fn what_to_do_next_is_for_the_cluster_that_was_asked() {
    let fake = Fake { options: " --context prod", ..draining(vec![5]) };
    let seen = typed_in(&fake, "drain web-5d4f-abcde").await;
    let next = "  kubectl baton --context prod -n shop drain web-5d4f-abcde --undo\n";
    assert!(seen.out.contains(next), "{}", seen.out);
}

/// A dataplane can be asked before it has its first snapshot, as in a rollout.
#[tokio::test(start_paused = true)]
async fn a_dataplane_that_gets_the_pod_while_a_drain_waits_is_told_too() {
    let looks = [Cell::new(0_u32), Cell::new(0_u32)];
    let fake = Fake::changed("state", move |which, state| {
        let (look, snapshot_at) = match which {
            "a" => (&looks[0], 0),
            _ => (&looks[1], 2),
        };
        let at = look.replace(look.get() + 1);
        if at < snapshot_at {
            state["policies"] = json!([]);
        } else if at > snapshot_at {
            let backend = &mut state["policies"][1]["backends"][0];
            let left = u8::from(at < 4);
            backend["flows"] = json!(left);
            backend["drain"] = json!({"byCommand": true, "since": "1s", "left": "20s", "moved": 3,
                "ended": 0, "closed": 0, "waiting": {"request in progress": left}});
        }
    });
    let seen = typed_in(&fake, "drain web-5d4f-abcde --wait").await;
    assert!(seen.is(0), "{:?} {}", seen.code, seen.err);
    assert!(seen.out.contains("is empty after 3.0s"), "{}", seen.out);
    let ran = fake.ran.borrow();
    let told = ran.iter().filter(|line| line.contains(" drain "));
    assert_eq!(told.count(), 2, "{ran:?}");
}

/// It gets the backend's policies in a moment, and nobody waits.
#[tokio::test(start_paused = true)]
async fn a_dataplane_that_has_no_policies_yet_is_named_by_a_drain_that_does_not_wait() {
    let fake = Fake::changed("state", |which, state| {
        if which == "b" {
            (state["policies"], state["generation"]) = (json!([]), json!(0));
        }
    });
    let seen = typed_in(&fake, "drain web-5d4f-abcde").await;
    seen.refuses("zq8vt has no policies yet, so it was not told");
    assert!(seen.out.contains("drains on 1 dataplane:"), "{}", seen.out);
    let seen = typed_in(&fake, "drain web-5d4f-abcde --undo").await;
    assert!(seen.is(0), "it does not drain: {}", seen.err);
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_cannot_be_says_why() {
    let seen = typed_in(&Fake::new(), "drain web-nobody").await;
    seen.refuses("has a Pod web-nobody: expected one of web-5d4f-abcde, web-5d4f-fghij");
    let seen = typed_in(&Fake::new(), "drain web-5d4f-abcde --policy shop").await;
    seen.refuses(
        "no dataplane serves policy shop in namespace shop: expected one of shop/web/http",
    );
    let seen = typed_in(&Fake::new(), "drain cache-0").await;
    seen.refuses("there is one in namespace data: `-n data`");
    assert!(typed_in(&Fake::new(), "drain data/cache-0").await.is(0));
    // The samples' dataplanes never say that it drains.
    let seen = typed_in(&Fake::new(), "drain web-5d4f-abcde --wait").await;
    seen.refuses("does not drain any more on dataplane");
    let mut fake = Fake::new();
    fake.answers = Box::new(|pod, words| match (which(pod), words[0]) {
        ("b", "drain") => bad(1, "lb-dataplane: no policy is named `x`"),
        (which, _) => answer(which, words),
    });
    let seen = typed_in(&fake, "drain web-5d4f-abcde").await;
    seen.refuses("zq8vt refuses: no policy is named `x`");
    assert!(seen.out.contains("drains on 1 dataplane:"), "{}", seen.out);
    let mut fake = Fake::new();
    fake.answers = Box::new(|pod, words| match words[0] {
        "drain" => good(r#"{"backends": 1, "bySnapshot": 1}"#),
        _ => answer(which(pod), words),
    });
    let seen = typed_in(&fake, "drain web-5d4f-abcde --undo").await;
    seen.refuses("goes on draining on dataplane");
    assert!(
        typed_in(&Fake::new(), "drain web-5d4f-abcde -A").await.code.is_err(),
        "which namespace?"
    );
    assert_eq!(Output::default(), Output::Table);
}

#[test]
fn the_page_shows_what_is_committed() {
    let page = include_str!("../../docs/kubectl.md");
    for name in [
        "check.txt",
        "status.txt",
        "status-bad.txt",
        "backends.txt",
        "flows.txt",
        "explain.txt",
        "explain-pinned.txt",
        "top.txt",
        "drain-wait.txt",
        "migrate.txt",
        "trace.txt",
    ] {
        let path = format!("{}/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("a golden file");
        assert!(page.contains(&text), "docs/kubectl.md does not show golden/{name}");
    }
}

#[test]
fn answers_to_orders_are_what_the_real_types_write() {
    fn kept<T: DeserializeOwned + Serialize>(words: &[&str]) {
        let ran = answer("a", words).expect("an answer");
        let text = String::from_utf8(ran.0).expect("text");
        let is: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(is, samples::written::<T>(words[0], &text), "{words:?}");
    }
    kept::<DrainReply>(&["drain"]);
    kept::<MigrateReply>(&["migrate"]);
    kept::<FlowEvents>(&["events", "since=0"]);
}
