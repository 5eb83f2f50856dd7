//! The harness keeps its own promises: a server is ready, tells identities apart, keeps data over a
//! restart, forgets when asked to, and leaves nothing behind.

use anyhow::Result;
use baton_apiserver::{own, shared};
use k8s_openapi::api::{authorization::v1 as authorization, core::v1::ConfigMap};
use kube::{
    Api,
    api::{ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams},
};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// For what takes a second on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time between two looks at what nothing tells.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

fn config_map(name: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
    ConfigMap { metadata, ..Default::default() }
}

#[tokio::test]
async fn a_service_account_may_do_only_what_rbac_grants() -> Result<()> {
    let Some(server) = shared() else {
        return Ok(());
    };
    let namespace = server.namespace("identity").await?.name;
    let admin: Api<ConfigMap> = Api::namespaced(server.admin().await?, &namespace);
    admin.create(&PostParams::default(), &config_map("one")).await?;

    let client = server.client_as(&namespace, "default").await?;
    let reviews: Api<authorization::SelfSubjectAccessReview> = Api::all(client.clone());
    let review = authorization::SelfSubjectAccessReview {
        spec: authorization::SelfSubjectAccessReviewSpec {
            resource_attributes: Some(authorization::ResourceAttributes {
                namespace: Some(namespace.clone()),
                verb: Some("get".into()),
                resource: Some("configmaps".into()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = reviews.create(&PostParams::default(), &review).await?;
    assert!(!answer.status.expect("a review is answered").allowed);

    let refused = Api::<ConfigMap>::namespaced(client, &namespace).get("one").await;
    let Err(kube::Error::Api(status)) = refused else {
        panic!("expected a refusal, got {refused:?}");
    };
    assert_eq!(status.code, 403);
    let who = format!("system:serviceaccount:{namespace}:default");
    assert!(status.message.contains(&who), "{}", status.message);
    Ok(())
}

#[tokio::test]
async fn a_kubeconfig_is_readable_by_its_owner_only() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let Some(server) = shared() else {
        return Ok(());
    };
    let namespace = server.namespace("file").await?.name;
    let identity = server.service_account(&namespace, "default").await?;
    let path = server.kubeconfig_file(&identity)?;
    assert_eq!(fs::metadata(&path)?.permissions().mode() & 0o777, 0o600);
    let written: serde_json::Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    assert_eq!(written, identity.kubeconfig());
    let shown = format!("{identity:?}");
    let token = written["users"][0]["user"]["token"].as_str().expect("a token");
    assert!(!shown.contains(token));
    Ok(())
}

#[tokio::test]
async fn a_restart_keeps_data_and_port_and_forgetting_ends_watches() -> Result<()> {
    let Some(server) = own() else {
        return Ok(());
    };
    let namespace = server.namespace("restart").await?.name;
    let api: Api<ConfigMap> = Api::namespaced(server.admin().await?, &namespace);
    api.create(&PostParams::default(), &config_map("before")).await?;
    let version =
        api.list(&ListParams::default()).await?.metadata.resource_version.expect("a version");
    api.create(&PostParams::default(), &config_map("after")).await?;

    server.stop()?;
    assert!(api.list(&ListParams::default()).await.is_err(), "a stopped server answers");
    assert!(server.stop().is_err(), "it was stopped already");
    server.start_again()?;
    assert_eq!(api.list(&ListParams::default()).await?.items.len(), 2);

    server.forget_history()?;
    assert_eq!(first_watch_status(&api, &version).await?, Some(410));

    server.kill()?;
    server.start_again()?;
    assert_eq!(api.list(&ListParams::default()).await?.items.len(), 2);

    let (api_bytes, etcd_bytes) = server.memory_bytes()?;
    println!(
        "API server started in {} ms; memory {} MB, etcd {} MB",
        server.started_in().as_millis(),
        api_bytes / 1_000_000,
        etcd_bytes / 1_000_000
    );
    let folder = server.folder().to_owned();
    drop(server);
    assert!(!folder.exists(), "{} is left behind", folder.display());
    Ok(())
}

/// Set for the process that the test below kills.
const KILLED: &str = "BATON_TEST_KILLED";

#[test]
fn a_killed_test_process_leaves_no_server_and_no_folder() -> Result<()> {
    if std::env::var_os(KILLED).is_some() {
        let server = own().expect("the parent has found Go");
        println!("folder {}", server.folder().display());
        // Until the parent kills this process; if the parent itself goes, standard input ends.
        io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(());
    }
    if shared().is_none() {
        return Ok(());
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--exact", "a_killed_test_process_leaves_no_server_and_no_folder", "--nocapture"])
        .env(KILLED, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let folder = loop {
        let line = lines.next().expect("the child says its folder")?;
        if let Some((_, folder)) = line.split_once("folder ") {
            break PathBuf::from(folder);
        }
    };
    assert!(!users_of(&folder)?.is_empty(), "nothing runs there");
    child.kill()?;
    child.wait()?;
    let end = Instant::now() + DEADLINE;
    while folder.exists() || !users_of(&folder)?.is_empty() {
        let left = users_of(&folder)?;
        assert!(Instant::now() < end, "left behind: {left:?}, folder: {}", folder.exists());
        // The servers are nobody's children by now: nothing tells when they have ended and their
        // folder is gone.
        thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// Processes whose command line names a folder.
fn users_of(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.to_string_lossy();
    Ok(fs::read_dir("/proc")?
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&*folder))
        .collect())
}

/// The status code of an error that a watch from `version` begins with.
async fn first_watch_status(api: &Api<ConfigMap>, version: &str) -> Result<Option<u16>> {
    use futures_util::{StreamExt, pin_mut};
    let stream = match api.watch(&WatchParams::default(), version).await {
        Ok(stream) => stream,
        Err(kube::Error::Api(status)) => return Ok(Some(status.code)),
        Err(e) => return Err(e.into()),
    };
    pin_mut!(stream);
    Ok(match stream.next().await {
        Some(Ok(WatchEvent::Error(status))) => Some(status.code),
        Some(Err(kube::Error::Api(status))) => Some(status.code),
        _ => None,
    })
}
