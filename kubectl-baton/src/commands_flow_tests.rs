//! `trace`, `migrate` and `explain` as a user types them, against the samples' cluster.

use super::tests::typed_in;
use crate::cluster::Kind;
use crate::fake::{Fake, answer, bad, golden, good, which};
use serde_json::{Value, json};
use std::{cell::Cell, rc::Rc};

#[tokio::test(start_paused = true)]
async fn trace_shows_what_happens_on_all_dataplanes_in_order() {
    let fake = Fake::new();
    let seen = typed_in(&fake, "trace -A --for 3s").await;
    assert!(seen.is(0) && seen.out.is_empty(), "from now on, and nothing happens: {}", seen.out);
    let ran = fake.ran.borrow().clone();
    assert!(ran[0].ends_with(" events"), "{ran:?}");
    assert!(ran[2].ends_with(" events?since=104"), "{ran:?}");
    assert_eq!(ran.len(), 2 * 4, "four looks at two dataplanes");

    let seen = typed_in(&Fake::new(), "trace -A --past --for 1s").await;
    assert!(seen.is(0) && seen.err.is_empty(), "{}", seen.err);
    golden("trace.txt", &seen.out);
    let seen = typed_in(&Fake::new(), "trace --past --for 1s -o json").await;
    let lines: Vec<Value> =
        seen.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 6, "those of namespace shop");
    assert_eq!(lines[0]["time"], "2025-12-31T23:59:58.01Z");
    assert_eq!(lines[0]["dataplane"], "baton-lb-dataplane-6c8d5b7f9-zq8vt");
    assert_eq!(lines[1]["event"], "moved");

    let fake = Fake::new();
    let seen = typed_in(
        &fake,
        "trace -A --past --for 1s --flow baton-lb-dataplane-6c8d5b7f9-x2b4k/192.0.2.7:40112",
    )
    .await;
    assert_eq!(seen.out.lines().count(), 1, "{}", seen.out);
    assert!(seen.out.contains("moved web-5d4f-abcde -> web-5d4f-fghij (drain)"));
    assert!(
        fake.ran.borrow()[0].ends_with(" events?since=0&client=192.0.2.7%3A40112"),
        "{:?}",
        fake.ran
    );
    let one = typed_in(&Fake::new(), "trace -A --past --for 1s --policy data/cache/redis").await;
    assert_eq!(one.out.matches("lost on").count(), 2, "{}", one.out);
}

#[tokio::test(start_paused = true)]
async fn trace_says_what_it_missed_and_goes_on_without_a_silent_dataplane() {
    let mut fake = Fake::new();
    let looks = Rc::new(Cell::new(0_u64));
    let counted = Rc::clone(&looks);
    fake.answers = Box::new(move |pod, words| {
        if which(pod) == "b" {
            return bad(2, "lb-dataplane: no dataplane answers at 127.0.0.1:9909");
        }
        counted.set(counted.get() + 1);
        let mut said: Value = serde_json::from_slice(&answer("a", words)?.0).expect("JSON");
        if counted.get() == 2 {
            said["missed"] = 7.into();
        }
        good(said.to_string())
    });
    let seen = typed_in(&fake, "trace -A --for 3s").await;
    assert!(seen.is(0));
    let (missed, silent) = ("7 events were overwritten", "zq8vt is left out: no dataplane");
    assert_eq!(seen.err.matches(missed).count(), 1, "{}", seen.err);
    assert_eq!(seen.err.matches(silent).count(), 1, "{}", seen.err);
    fake.answers = Box::new(|_, _| bad(2, "lb-dataplane: no dataplane answers"));
    let error = typed_in(&fake, "trace").await.code.expect_err("nobody");
    assert!(error.contains("no dataplane answers"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn trace_does_not_wait_for_its_next_look_while_there_is_more() {
    let looks = Rc::new(Cell::new(0_u64));
    let counted = Rc::clone(&looks);
    let fake = Fake::changed("events", move |_, said| {
        counted.set(counted.get() + 1);
        said["more"] = (counted.get() <= 20).into();
    });
    let seen = typed_in(&fake, "trace -A --for 1s").await;
    assert!(seen.is(0));
    assert_eq!(looks.get(), 20 + 2 * 2, "two dataplanes: ten looks, then one a second");
}

#[tokio::test]
async fn migrate_orders_one_flow_from_its_own_dataplane() {
    let fake = Fake::new();
    let seen = typed_in(&fake, "migrate 192.0.2.7:40112 --to web-5d4f-fghij").await;
    assert!(seen.is(0), "{}", seen.err);
    let ran = fake.ran.borrow().clone();
    assert_eq!(
        ran.last().map(String::as_str),
        Some(
            r#"baton-lb-dataplane-6c8d5b7f9-x2b4k migrate {"client":"192.0.2.7:40112","frontend":"10.1.1.10:8080","to":"web-5d4f-fghij"}"#
        )
    );
    let seen = typed_in(&fake, "migrate 192.0.2.7:40112 -o json").await;
    let said: Value = serde_json::from_str(&seen.out).expect("JSON");
    assert_eq!(said["begun"], true);
    assert_eq!(said["id"], "baton-lb-dataplane-6c8d5b7f9-x2b4k/192.0.2.7:40112");
    let seen = typed_in(&fake, "migrate 192.0.2.7").await;
    seen.refuses("192.0.2.7 has 2 flows: name one");
    let seen = typed_in(&fake, "migrate 198.51.100.1:1").await;
    seen.refuses("no dataplane has a flow");
    let mut fake = Fake::new();
    fake.answers = Box::new(|pod, words| match words[0] {
        "migrate" => bad(1, "lb-dataplane: the flow is pinned: upgrade"),
        _ => answer(which(pod), words),
    });
    let seen = typed_in(&fake, "migrate 192.0.2.7:40114").await;
    seen.refuses("192.0.2.7:40114 is not moved: the flow is pinned: upgrade");
    fake.answers = Box::new(|pod, words| match words[0] {
        "migrate" => bad(2, "lb-dataplane: unrecognized subcommand"),
        _ => answer(which(pod), words),
    });
    let error = typed_in(&fake, "migrate 192.0.2.7:40112").await.code;
    let error = error.expect_err("an older dataplane");
    assert!(error.contains("did not take the order"), "{error}");
}

#[tokio::test]
async fn explain_tells_the_last_move_waits_and_wishes() {
    async fn with(change: impl Fn(&mut Value) + 'static) -> String {
        let fake = Fake::changed("flows", move |which, said| {
            if which == "a" {
                change(&mut said["flows"][0]);
            }
        });
        let seen = typed_in(&fake, "explain 192.0.2.7:40112").await;
        seen.words()
    }
    for (cause, words) in [
        ("manual", "because somebody asked for it (`migrate`)"),
        ("rescue", "because the Pod before it ended the connection or died"),
        ("every_request", "(`migration.mode: Always`)"),
    ] {
        let text = with(move |flow| flow["lastMove"] = json!({"cause": cause, "ago": "2s"})).await;
        assert!(text.contains("2s ago, because") && text.contains(words), "{text}");
        assert!(!text.contains("It rests"), "{text}");
    }
    let text = with(|flow| {
        flow["lastMove"] = json!({"cause": "drain", "ago": "2s", "by": "Transfer"});
    })
    .await;
    assert!(
        text.contains("2s ago, handed on by its application, because the Pod before it drained"),
        "{text}"
    );
    let text = with(|flow| {
        flow["state"] = "Legless".into();
        flow["backend"] = "".into();
    })
    .await;
    assert!(
        text.contains("is on no Pod (policy") && text.contains("It can move: - Its next request"),
        "{text}"
    );
    // It got a connection again, which is no move.
    for (migrations, before) in [(0, false), (3, true)] {
        let text = with(move |flow| {
            flow["migrations"] = migrations.into();
            flow["lastMove"] = json!({"cause": "legless", "ago": "1s", "by": "SharedLeg"});
        })
        .await;
        assert!(
            text.contains("between two requests") && text.contains("its request 1s ago took one"),
            "{text}"
        );
        let moved = text.contains("Before, it had moved 3 times.");
        assert_eq!(moved, before, "{text}");
        for wrong in ["since the client connected", "the last time to", "It rests"] {
            assert!(!text.contains(wrong), "{text}");
        }
    }
    let text = with(|flow| flow["lastMove"] = json!({"ago": "2s"})).await;
    assert!(text.contains("A move was taken back 2s ago"), "{text}");
    let text = with(|flow| flow["askedTo"] = "web-5d4f-klmno".into()).await;
    assert!(
        text.contains("It moves: - Somebody asked for it (`migrate`): it goes to web-5d4f-klmno"),
        "{text}"
    );
}

#[tokio::test]
async fn explain_says_whether_a_pinned_flow_can_be_handed_on() {
    for transfers in [false, true] {
        let fake = Fake::changed("state", move |_, state| {
            for policy in state["policies"].as_array_mut().expect("policies") {
                for backend in policy["backends"].as_array_mut().expect("backends") {
                    backend["transfers"] = transfers.into();
                }
            }
        });
        let text = typed_in(&fake, "explain 192.0.2.7:40114").await.words();
        assert!(text.contains("It is pinned: "), "{text}");
        let says = "it hands the connection on";
        assert_eq!(text.contains(says), transfers, "{text}");
    }
}

#[tokio::test]
async fn explain_says_of_no_flow_without_a_protocol_that_it_moves() {
    for (drains, transfers, mode) in [
        (false, false, "WhenBetter"),
        (true, false, "WhenBetter"),
        (true, false, "DrainOnly"),
        (true, true, "WhenBetter"),
    ] {
        let mut fake = Fake::changed("state", move |_, state| {
            for policy in state["policies"].as_array_mut().expect("policies") {
                policy["protocol"] = "None".into();
                policy["backends"][0]["draining"] = drains.into();
                policy["backends"][0]["transfers"] = transfers.into();
            }
        });
        // The dataplane knows: of an `appProtocol` the policy says nothing.
        let policies = fake.objects.get_mut().get_mut(&Kind::Policies);
        let spec = &mut policies.expect("policies")[0]["spec"];
        spec["protocol"] = Value::Null;
        spec["migration"]["mode"] = mode.into();
        let text = typed_in(&fake, "explain 192.0.2.7:40112").await.words();
        let verdict = match transfers {
            false => "It stays for now: - The policy's protocol is None",
            true => "It can move: - The policy's protocol is None",
        };
        assert!(text.contains(verdict), "{drains} {transfers} {mode}: {text}");
        assert_eq!(text.contains("it hands the connection on"), transfers, "{text}");
    }
}

#[tokio::test]
async fn explain_says_in_numbers_why_a_flow_moves_or_stays() {
    async fn with(change: impl Fn(&mut Value) + 'static) -> String {
        let fake = Fake::changed("state", move |which, state| {
            let policies = state["policies"].as_array_mut().expect("policies");
            let mut policies = policies.iter_mut();
            if which == "a" {
                let web = policies.find(|p| p["name"] == "shop/web/http");
                change(web.expect("shop/web/http"));
            }
        });
        let seen = typed_in(&fake, "explain 192.0.2.7:40112").await;
        seen.words()
    }
    let here = |state: &mut Value, field: &str, value: Value| {
        state["backends"][0]["placement"][field] = value;
    };
    let text = with(|_| ()).await;
    for words in [
        "waited 1.2ms on average in the last half second (give or take 60us)",
        "It moves when the budget for calm times (2 of 1,000 requests) has a move left",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let text = with(move |state| here(state, "error", "1ms".into())).await;
    assert!(text.contains("It stays, since that is not sure yet"), "{text}");
    let text = with(move |state| here(state, "standing", "distressed".into())).await;
    assert!(text.contains("It moves: web-5d4f-abcde is distressed"), "{text}");
    let text = with(move |state| here(state, "stalled", "30ms".into())).await;
    assert!(text.contains("has answered nothing for 30.0ms"), "{text}");
    let text = with(|state| {
        state["backends"][1]["placement"]["standing"] = "joining".into();
    });
    let text = text.await;
    assert!(text.contains("web-5d4f-fghij has come or come back"), "{text}");
    let text = with(|state| state["placement"]["uneven"] = true.into()).await;
    assert!(text.contains("unevenly busy"), "{text}");
    let text = with(|state| state["placement"] = Value::Null).await;
    assert!(text.contains("does not tell the waits"), "{text}");
}

#[tokio::test]
async fn explain_says_to_which_pods_it_goes_by_translation() {
    async fn with(adoptability: &'static str, unlike: bool, method: &str) -> String {
        let mut fake = Fake::changed("state", move |_, state| {
            let policies = state["policies"].as_array_mut().expect("policies");
            for policy in policies {
                for backend in policy["backends"].as_array_mut().expect("backends") {
                    if backend["name"] != "web-5d4f-abcde" {
                        backend["adoptability"] = adoptability.into();
                        backend["unlike"] = unlike.into();
                    }
                }
            }
        });
        let spec =
            &mut fake.objects.get_mut().get_mut(&Kind::Policies).expect("policies")[0]["spec"];
        spec["migration"]["method"] = method.into();
        typed_in(&fake, "explain 192.0.2.7:40112").await.words()
    }
    let by = "By translation, one round trip longer, to Pods that do not adopt: web-5d4f-fghij (no adopter";
    for (adoptability, unlike, method, words) in [
        ("noAdopter", false, "Auto", by),
        (
            "noKey",
            false,
            "Auto",
            "to Pods that do not adopt: web-5d4f-fghij (adoptions are off, as the dataplane has no adoption key",
        ),
        (
            "noAdopter",
            false,
            "Adoption",
            "No other Pod can take it now: web-5d4f-fghij cannot adopt: no adopter",
        ),
        // Where nobody listens no connection can be opened either.
        (
            "notListening",
            false,
            "Translation",
            "No other Pod can take it now: web-5d4f-fghij can neither adopt nor be connected to: nothing listens",
        ),
        (
            "acceptQueueFull",
            false,
            "Auto",
            "No other Pod can take it now: web-5d4f-fghij can neither adopt nor be connected to: accept queue full",
        ),
        // Nor where a client would lose the timestamps that it was promised.
        (
            "noAdopter",
            true,
            "Auto",
            "and none moves there by translation: it has no TCP timestamps",
        ),
        (
            "ready",
            true,
            "Translation",
            "No other Pod can take it now: none moves to web-5d4f-fghij by translation: it has no TCP",
        ),
        ("ready", false, "Translation", "`migration.method: Translation`"),
    ] {
        let text = with(adoptability, unlike, method).await;
        assert!(text.contains(words), "{adoptability}, {method}: {text}");
    }
    let text = with("ready", true, "Auto").await;
    assert!(!text.contains("ranslation"), "{text}");
}

#[tokio::test]
async fn flows_say_when_the_dataplane_cut_them() {
    let fake = Fake::changed("flows", |which, said| {
        if which == "a" {
            said["truncated"] = true.into();
        }
    });
    let seen = typed_in(&fake, "flows -A -o json").await;
    let said: Value = serde_json::from_str(&seen.out).expect("JSON");
    assert_eq!(said["truncated"], true);
}
