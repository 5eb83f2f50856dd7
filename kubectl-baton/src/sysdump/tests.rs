//! What is in a dump, and above all what is not.

use super::*;
use crate::fake::{Fake, bad};
use flate2::read::GzDecoder;
use std::io::Read as _;

/// What the samples' Pods have in their environments, and all objects in their annotations.
const SECRET: &str = "hunter2";

async fn dumped(fake: &Fake) -> (Vec<File>, Vec<String>) {
    collect(fake).await.expect("it answers")
}

fn file<'a>(files: &'a [File], path: &str) -> &'a str {
    let found = files.iter().find(|(name, _)| name == path);
    let (_, bytes) = found.unwrap_or_else(|| {
        panic!("{path} is not among {:?}", files.iter().map(|f| &f.0).collect::<Vec<_>>())
    });
    std::str::from_utf8(bytes).expect("text")
}

#[tokio::test]
async fn everything_that_a_helper_needs_is_there() {
    let (files, missing) = dumped(&Fake::new()).await;
    assert_eq!(missing, Vec::<String>::new());
    for kind in Kind::ALL {
        let name = format!("objects/{}.json", kind.resource());
        let there = files.iter().any(|(path, _)| *path == name);
        let ours = !matches!(kind, Kind::Namespaces | Kind::ConfigMaps);
        assert_eq!(there, ours, "{name}");
    }
    for pod in ["baton-lb-dataplane-6c8d5b7f9-x2b4k", "baton-lb-dataplane-6c8d5b7f9-zq8vt"] {
        for what in ["status", "backends", "flows", "metrics"] {
            assert!(
                file(&files, &format!("dataplanes/{pod}/{what}.json")).len() > 2,
                "{pod} {what}"
            );
        }
        assert_eq!(file(&files, &format!("logs/{pod}/lb-dataplane.log")), "started\n");
    }
    assert!(file(&files, "status.txt").starts_with("Baton works."));
    let versions = file(&files, "versions.json");
    assert!(
        versions.contains("v1.36.0") && versions.contains("baton/operator:0.1.0"),
        "{versions}"
    );
    assert!(file(&files, "objects/pods.json").contains("web-5d4f-abcde"), "a policy's Pod");
    assert!(!file(&files, "objects/services.json").contains("bank"), "no policy's Service");
}

#[tokio::test]
async fn no_secret_is_in_a_dump() {
    let mut fake = Fake::new();
    let key = "-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----";
    fake.log = format!("before\n{key}\nafter\n");
    for items in fake.objects.get_mut().values_mut() {
        for item in items.iter_mut() {
            item["metadata"]["annotations"]["example.org/token"] = SECRET.into();
            item["metadata"]["managedFields"] = json!([{"manager": SECRET}]);
            // As a Secret has it, whatever kind it is on.
            item["data"] = json!({"password": SECRET});
            item["stringData"] = json!({"password": SECRET});
        }
    }
    for pod in fake.objects.get_mut().get_mut(&Kind::Pods).expect("Pods") {
        // A tenant may name his application as he likes.
        pod["metadata"]["labels"]["app.kubernetes.io/name"] = "baton".into();
        let ours = pod["metadata"]["namespace"] == "baton-system";
        let container = &mut pod["spec"]["containers"][0];
        container["env"] = json!([{"name": "PASSWORD", "value": SECRET}]);
        container["readinessProbe"] = json!({
            "httpGet": {"path": format!("/ready?key={SECRET}"), "port": 80, "httpHeaders": [{"name": "Authorization", "value": SECRET}]},
            "exec": {"command": [SECRET]}});
        container["lifecycle"] = json!({"preStop": {"exec": {"command": [SECRET]}}});
        if !ours {
            let ended = json!({"terminated": {"exitCode": 1, "message": SECRET}});
            pod["status"]["containerStatuses"] =
                json!([{"name": "a", "state": ended, "lastState": ended}]);
        }
        let container = &mut pod["spec"]["containers"][0];
        container["args"] = json!([if ours { "run" } else { SECRET }]);
        pod["spec"]["volumes"] =
            json!([{"name": "v", "csi": {"volumeAttributes": {"password": SECRET}}}]);
    }
    let policies = fake.objects.get_mut().get_mut(&Kind::Policies);
    policies.expect("policies")[0]["spec"]["frontend"] =
        json!({"service": {"name": "f", "annotations": {"example.org/token": SECRET}}});
    let (files, _) = dumped(&fake).await;
    for (path, bytes) in &files {
        let text = String::from_utf8_lossy(bytes);
        assert!(!text.contains(SECRET), "{path} holds a secret");
    }
    let log = file(&files, "logs/baton-host-shim-8fj2c/host-shim.log");
    assert_eq!(log, "before\n(a private key was left out)\nafter\n");
    assert!(file(&files, "objects/pods.json").contains("\"run\""), "Baton's own arguments stay");
}

#[tokio::test]
async fn what_cannot_be_had_is_written_down_and_the_rest_is_there() {
    let mut fake = Fake::new();
    fake.forbidden = vec![Kind::Nodes, Kind::Deployments];
    fake.answers = Box::new(|_, _| bad(2, "lb-dataplane: no dataplane answers"));
    let (files, missing) = dumped(&fake).await;
    let text = missing.join("\n");
    assert!(
        text.contains(
            "objects/deployments.apps.json: no permission for `list` on `deployments.apps`"
        ),
        "{text}"
    );
    assert!(text.contains("zq8vt: no dataplane answers"), "{text}");
    assert_eq!(file(&files, "missing.txt").lines().count(), missing.len());
    file(&files, "logs/baton-operator-7d9c66bf54-4jkxl/operator.log");
}

#[tokio::test]
async fn what_keeps_status_from_judging_keeps_nothing_else_out() {
    for kind in [Kind::Policies, Kind::Pods, Kind::EndpointSlices] {
        let mut fake = Fake::new();
        // Too slow, or an error of the server's.
        fake.broken = vec![kind];
        let (files, missing) = dumped(&fake).await;
        let said = missing.iter().any(|m| m.contains(&kind.resource()));
        assert!(said, "{kind:?}: {missing:?}");
        file(&files, "objects/services.json");
        let pods = !matches!(kind, Kind::Pods);
        let logs = "logs/baton-operator-7d9c66bf54-4jkxl/operator.log";
        assert_eq!(files.iter().any(|(path, _)| path == logs), pods, "{kind:?}");
        let asked = files.iter().any(|(path, _)| path.ends_with("zq8vt/status.json"));
        assert_eq!(asked, pods, "{kind:?}");
    }
}

#[tokio::test]
async fn a_large_cluster_makes_no_large_dump() {
    let mut fake = Fake::new();
    let pods = fake.objects.get_mut().get_mut(&Kind::Pods).expect("Pods");
    let shim = |pod: &&Value| pod["metadata"]["name"] == "baton-host-shim-v7q9d";
    let shim = pods.iter().find(shim).expect("a shim").clone();
    let name = |pod: &mut Value, at: usize| {
        pod["metadata"]["name"] = format!("baton-host-shim-{at:03}").into();
    };
    for at in 0..READY_SHIMS_MAX {
        let mut one = shim.clone();
        name(&mut one, at);
        pods.push(one);
    }
    let mut restarted = shim;
    name(&mut restarted, 999);
    restarted["status"]["containerStatuses"][0]["restartCount"] = 1.into();
    pods.push(restarted);
    let (files, missing) = dumped(&fake).await;
    let has = |path: &str| files.iter().any(|(there, _)| there.starts_with(path));
    assert!(has("logs/baton-host-shim-999"), "it was restarted");
    let of_shims = files.iter().filter(|(path, _)| path.starts_with("logs/baton-host-shim"));
    assert_eq!(of_shims.count(), READY_SHIMS_MAX + 2, "and its log before that");
    let text = missing.join("\n");
    assert!(text.contains("host-shims that are ready"), "{text}");

    let mut dump = Dump::default();
    dump.text("a", vec![0; DUMP_MAX_BYTES]);
    dump.text("b", "x");
    assert_eq!(dump.missing, ["b: a dump has at most 256 MiB"]);
    assert_eq!(dump.files.len(), 1);
}

#[tokio::test]
async fn text_in_a_dump_is_nothing_that_a_terminal_obeys() {
    let mut fake = Fake::new();
    fake.log = "a\x1b]0;x\x07b\n".to_owned();
    let policies = fake.objects.get_mut().get_mut(&Kind::Policies);
    let conditions = &mut policies.expect("policies")[0]["status"]["conditions"];
    for condition in conditions.as_array_mut().expect("conditions") {
        condition["status"] = "True".into();
        condition["message"] = "web has `\x1b[2J` as its weight".into();
    }
    let (files, _) = dumped(&fake).await;
    assert!(file(&files, "status.txt").contains(r"`\u{1b}[2J`"));
    for (path, bytes) in files.iter().filter(|(path, _)| !path.ends_with(".json")) {
        let text = std::str::from_utf8(bytes).expect("text");
        let obeyed = text.lines().find(|line| line.contains(char::is_control));
        assert_eq!(obeyed, None, "{path}");
    }
}

#[test]
fn an_archive_is_read_back_and_never_overwrites() {
    let path = std::env::temp_dir().join(format!("bt-sysdump-{}.tar.gz", std::process::id()));
    let files = vec![("a/b.json".to_owned(), b"{}".to_vec()), ("empty.txt".to_owned(), Vec::new())];
    let bytes = write(&path, "dump", &files, 1_700_000_000).expect("written");
    let read = std::fs::read(&path).expect("there");
    assert_eq!(read.len() as u64, bytes);
    let mut archive = tar::Archive::new(GzDecoder::new(read.as_slice()));
    let mut found = Vec::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        found.push((entry.path().expect("a path").display().to_string(), text));
    }
    assert_eq!(
        found,
        [
            ("dump/a/b.json".to_owned(), "{}".to_owned()),
            ("dump/empty.txt".to_owned(), String::new())
        ]
    );
    let again = write(&path, "dump", &files, 0).expect_err("it is there");
    assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
    std::fs::remove_file(&path).expect("removed");
}
