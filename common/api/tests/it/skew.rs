//! Snapshots between two versions, both ways.

use baton_api::{Ignored, Pushed, Snapshot, read_policy};
use serde_json::{Value, json};

/// As this version writes it, with what a newer one may have beside it.
fn newer() -> Value {
    json!({
        "generation": 3,
        "realm": "east",
        "policies": [
            {
                "name": "web", "frontends": ["10.0.0.1:80"], "hedging": {"after": "5ms"},
                "backends": [
                    {"name": "a", "endpoint": "10.0.1.1:80", "zone": "z"},
                    {"name": "b", "endpoint": "10.0.1.2:80", "zone": "y", "weight": 3},
                ],
                "migration": {"mode": "DrainOnly", "perZone": 1},
                "affinity": {"clientIP": {"timeout": "1m", "prefix": 24}},
                "health": {"active": {"path": "/", "port": 81, "grpc": true}},
            },
            {"name": "db", "frontends": ["10.0.0.1:81"], "backends": [], "protocol": "QUIC"},
        ],
    })
}

/// The same without.
fn known() -> Value {
    let mut known = newer();
    let of = |value: &mut Value, at: &str, field: &str| {
        let object = value.pointer_mut(at).and_then(Value::as_object_mut);
        object.expect("an object").remove(field).expect("a field");
    };
    of(&mut known, "", "realm");
    of(&mut known, "/policies/0", "hedging");
    of(&mut known, "/policies/0/backends/0", "zone");
    of(&mut known, "/policies/0/backends/1", "zone");
    of(&mut known, "/policies/0/migration", "perZone");
    of(&mut known, "/policies/0/affinity/clientIP", "prefix");
    of(&mut known, "/policies/0/health/active", "grpc");
    known["policies"].as_array_mut().expect("a list").pop();
    known
}

#[test]
fn of_a_newer_snapshot_unknown_fields_are_ignored_and_unknown_words_refuse_their_policy() {
    let pushed = Pushed::read(newer().to_string().as_bytes()).expect("readable");
    let same: Snapshot = serde_json::from_value(known()).expect("all of it is known");
    assert_eq!(pushed.snapshot, same);
    let expected = [
        "ActiveCheck.grpc",
        "Backend.zone",
        "ClientIp.prefix",
        "Migration.perZone",
        "Policy.hedging",
        "Snapshot.realm",
    ];
    assert!(pushed.ignored.iter().eq(expected), "{:?}", pushed.ignored);
    let [(name, why)] = &pushed.unreadable[..] else {
        panic!("{:?}", pushed.unreadable);
    };
    assert_eq!(name, "db");
    assert!(why.starts_with("protocol: unknown variant `QUIC`"), "{why}");
    // Read back by an operator of the older version.
    let policies = &newer()["policies"];
    let mut ignored = Ignored::new();
    let web = read_policy(policies[0].to_string().as_bytes(), &mut ignored);
    assert_eq!(web.as_ref(), Ok(&same.policies[0]));
    assert_eq!(ignored.len(), 5);
    assert!(read_policy(policies[1].to_string().as_bytes(), &mut ignored).is_err());
    // What people write is read as before.
    assert!(serde_json::from_value::<Snapshot>(newer()).is_err());
}

#[test]
fn an_older_version_meets_only_what_is_used() {
    let bare = json!({
        "generation": 1,
        "policies": [{
            "name": "web", "frontends": ["10.0.0.1:80"],
            "backends": [{"name": "a", "endpoint": "10.0.1.1:80"}],
        }],
    });
    let snapshot: Snapshot = serde_json::from_value(bare.clone()).expect("good");
    assert_eq!(serde_json::to_value(&snapshot).expect("written"), bare);
    let pushed = Pushed::read(bare.to_string().as_bytes());
    assert_eq!(pushed.map(|p| p.snapshot), Ok(snapshot));
}

#[test]
fn what_is_told_of_the_unknown_is_bounded_and_what_is_no_snapshot_is_refused() {
    let mut many = newer();
    for n in 0..1_000 {
        many["policies"][0][format!("\n{n}{}", "x".repeat(1_000))] = json!(n);
    }
    let pushed = Pushed::read(many.to_string().as_bytes()).expect("readable");
    assert_eq!(pushed.ignored.len(), 16);
    let short = |name: &String| name.len() < 100 && !name.contains('\n');
    assert!(pushed.ignored.iter().all(short), "{:?}", pushed.ignored);
    for (text, path) in [
        ("", "."),
        ("{", "?"),
        (r#"{"generation":1}"#, "."),
        (r#"{"generation":-1,"policies":[]}"#, "generation"),
        (r#"{"generation":1,"policies":[{}]}"#, "policies[0]"),
        (
            r#"{"generation":1,"policies":[{"name":"a b","frontends":["x"],"backends":[]}]}"#,
            "policies[0].frontends[0]",
        ),
        (r#"{"generation":1,"policies":[]} 1"#, "."),
    ] {
        let refused = Pushed::read(text.as_bytes()).expect_err(text);
        assert_eq!(refused.path, path, "{text}: {refused}");
    }
    let full = vec![json!({"name": "a", "new": 1}); 1_025];
    let full = json!({"generation": 1, "policies": full}).to_string();
    let refused = Pushed::read(full.as_bytes()).expect_err("too many");
    assert_eq!(refused.path, "policies");
}
