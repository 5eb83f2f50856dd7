//! What a directory of manifests comes to, file by file.

use super::{
    Message,
    directory::{Directory, Known},
    tests::sink,
};
use crate::kind::Kind;
use baton_index::Change;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tokio::sync::mpsc::Receiver;

/// A directory, removed on drop.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("baton-manifests-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("written");
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What was told, in words, sorted.
fn told(received: &mut Receiver<Message>) -> Vec<String> {
    fn word<T>(kind: Kind, name: &str, object: Option<&T>) -> String {
        let sign = if object.is_some() { '+' } else { '-' };
        format!("{sign}{} {name}", kind.as_str())
    }
    let mut words = Vec::new();
    while let Ok(message) = received.try_recv() {
        words.push(match message {
            Message::Change(Change::Policy(key, object)) => {
                word(Kind::Policy, &key.to_string(), object.as_ref())
            }
            Message::Change(Change::Service(key, object)) => {
                word(Kind::Service, &key.to_string(), object.as_ref())
            }
            Message::Change(Change::Pod(key, object)) => {
                word(Kind::Pod, &key.to_string(), object.as_ref())
            }
            Message::Change(Change::Class(name, object)) => {
                word(Kind::Class, &name, object.as_ref())
            }
            Message::Refused(name) => format!("!{name}"),
            other => panic!("{other:?}"),
        });
    }
    words.sort();
    words
}

fn pod(name: &str, ip: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nstatus: {{podIP: {ip}}}\n---\n")
}

const POLICY: &str = "\
apiVersion: baton.dev/v1alpha1
kind: LoadBalancerPolicy
metadata: {name: web, namespace: shop}
spec:
  targetRef: {name: web}
  listeners: [{name: http, port: 80}]
";

#[tokio::test]
async fn only_what_changed_is_told_again() {
    let folder = Folder::new("changes");
    let (sink, mut received) = sink();
    let mut directory = Directory::new(folder.path().to_owned(), sink.clone()).expect("rules");
    folder.write("a.yaml", &(pod("a", "10.0.0.1") + &pod("b", "10.0.0.2")));
    folder.write("b.yml", POLICY);
    folder.write(".hidden.yaml", &pod("hidden", "10.0.0.9"));
    folder.write("notes.txt", "no manifest");
    directory.tell().await.expect("heard");
    let all = [
        "+LoadBalancerPolicy shop/web",
        "+Pod default/a",
        "+Pod default/b",
    ];
    assert_eq!(told(&mut received), all);
    directory.tell().await.expect("heard");
    assert!(told(&mut received).is_empty());
    folder.write("a.yaml", &(pod("a", "10.0.0.1") + &pod("b", "10.0.0.3")));
    directory.tell().await.expect("heard");
    assert_eq!(told(&mut received), ["+Pod default/b"]);
    // An object that moves to another file is the same object.
    folder.write("a.yaml", &pod("a", "10.0.0.1"));
    folder.write(
        "c.json",
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"status":{"podIP":"10.0.0.3"}}"#,
    );
    directory.tell().await.expect("heard");
    assert!(told(&mut received).is_empty());
    fs::remove_file(folder.path().join("c.json")).expect("removed");
    fs::remove_file(folder.path().join("b.yml")).expect("removed");
    directory.tell().await.expect("heard");
    assert_eq!(
        told(&mut received),
        ["-LoadBalancerPolicy shop/web", "-Pod default/b"]
    );
}

#[tokio::test]
async fn a_bad_files_last_good_content_stays() {
    let folder = Folder::new("bad");
    let (sink, mut received) = sink();
    let refused = sink.metrics.refused.clone();
    let refused = || refused.with_label_values(&["file"]).get();
    let mut directory = Directory::new(folder.path().to_owned(), sink.clone()).expect("rules");
    folder.write("a.yaml", &pod("a", "10.0.0.1"));
    folder.write("web.yaml", POLICY);
    directory.tell().await.expect("heard");
    assert_eq!((told(&mut received).len(), refused()), (2, 0));
    for bad in [
        "a: [".to_owned(),
        POLICY.replace("port: 80", "port: 0"),
        POLICY.replace("http", "HTTP"),
        POLICY.replace("spec:", "spec:\n  drain: {deadline: soon}"),
        POLICY.replace("kind: LoadBalancerPolicy", "kind: LoadBalancerPolice"),
        pod("x", "10.0.0.1").replace("podIP: 10.0.0.1", "podIP: [1]"),
    ] {
        folder.write("web.yaml", &bad);
        directory.tell().await.expect("heard");
        assert!(told(&mut received).is_empty(), "{bad}");
        assert_eq!(refused(), 1, "{bad}");
    }
    // Other files go on meanwhile.
    folder.write("a.yaml", &pod("a", "10.0.0.2"));
    directory.tell().await.expect("heard");
    assert_eq!(told(&mut received), ["+Pod default/a"]);
    folder.write("web.yaml", &POLICY.replace("port: 80", "port: 81"));
    directory.tell().await.expect("heard");
    assert_eq!(told(&mut received), ["+LoadBalancerPolicy shop/web"]);
    assert_eq!(refused(), 0);
}

#[tokio::test]
async fn it_is_whole_when_each_file_was_good_once() {
    let folder = Folder::new("whole");
    let (sink, _received) = sink();
    let mut directory = Directory::new(folder.path().to_owned(), sink.clone()).expect("rules");
    assert_eq!(directory.known(), Known::Nothing);
    folder.write("a.yaml", &pod("a", "10.0.0.1"));
    folder.write("b.yaml", "a: [");
    for (text, whole) in [("a: [", false), (POLICY, true), ("a: [", true)] {
        folder.write("b.yaml", text);
        directory.tell().await.expect("heard");
        assert_eq!(directory.known() == Known::All, whole, "{text}");
    }
}

#[tokio::test]
async fn of_two_objects_with_one_name_the_first_files_counts() {
    let folder = Folder::new("twice");
    let (sink, mut received) = sink();
    let mut directory = Directory::new(folder.path().to_owned(), sink.clone()).expect("rules");
    folder.write("b.yaml", &pod("a", "10.0.0.2"));
    directory.tell().await.expect("heard");
    assert_eq!(told(&mut received), ["+Pod default/a"]);
    folder.write("a.yaml", &pod("a", "10.0.0.1"));
    directory.tell().await.expect("heard");
    assert_eq!(told(&mut received), ["+Pod default/a"]);
    assert_eq!(sink.metrics.refused.with_label_values(&["file"]).get(), 1);
    fs::remove_file(folder.path().join("a.yaml")).expect("removed");
    directory.tell().await.expect("heard");
    assert_eq!(told(&mut received), ["+Pod default/a"]);
}

#[tokio::test]
async fn what_is_known_stays_while_the_directory_is_away() {
    let folder = Folder::new("away");
    let (sink, mut received) = sink();
    let inside = folder.path().join("manifests");
    fs::create_dir(&inside).expect("made");
    fs::write(inside.join("a.yaml"), pod("a", "10.0.0.1")).expect("written");
    let mut directory = Directory::new(inside.clone(), sink.clone()).expect("rules");
    directory.tell().await.expect("heard");
    assert_eq!(told(&mut received).len(), 1);
    fs::rename(&inside, folder.path().join("elsewhere")).expect("renamed");
    directory.tell().await.expect("heard");
    assert!(told(&mut received).is_empty());
}

#[tokio::test]
async fn a_running_source_sees_writes_links_that_are_exchanged_and_all_at_the_start() {
    let folder = Folder::new("watched");
    let (sink, mut received) = sink();
    let version = |name: &str, ip: &str| {
        let inside = folder.path().join(name);
        fs::create_dir(&inside).expect("made");
        fs::write(inside.join("a.yaml"), pod("a", ip)).expect("written");
        inside
    };
    let link = folder.path().join("current");
    std::os::unix::fs::symlink(version("one", "10.0.0.1"), &link).expect("linked");
    let source = tokio::spawn(super::directory::run(link.clone(), sink));
    let mut seen = Vec::new();
    // A change, then all kinds are known.
    for _ in 0..=Kind::ALL.len() {
        seen.push(next(&mut received).await);
    }
    assert!(
        matches!(seen[0], Message::Change(Change::Pod(..))),
        "{seen:?}"
    );
    assert!(
        seen[1..].iter().all(|m| matches!(m, Message::Synced(_))),
        "{seen:?}"
    );
    fs::write(link.join("b.yaml"), pod("b", "10.0.0.2")).expect("written");
    assert!(
        matches!(next(&mut received).await, Message::Change(Change::Pod(key, Some(_))) if &*key.name == "b")
    );
    // As Kubernetes exchanges the content of a mounted ConfigMap.
    let new = folder.path().join("new");
    std::os::unix::fs::symlink(version("two", "10.0.0.7"), &new).expect("linked");
    fs::rename(&new, &link).expect("exchanged");
    let changes = [next(&mut received).await, next(&mut received).await];
    assert!(
        changes
            .iter()
            .any(|m| matches!(m, Message::Change(Change::Pod(key, None)) if &*key.name == "b")),
        "{changes:?}"
    );
    assert!(
        changes
            .iter()
            .any(|m| matches!(m, Message::Change(Change::Pod(key, Some(_))) if &*key.name == "a")),
        "{changes:?}"
    );
    source.abort();
}

/// What a bad file held before the start is not known, so the others are told with the word that something is missing.
#[tokio::test]
async fn a_file_that_is_bad_at_the_start_keeps_no_other_from_being_told() {
    let folder = Folder::new("part");
    let (sink, mut received) = sink();
    folder.write("a.yaml", &pod("a", "10.0.0.1"));
    folder.write("b.yaml", "a: [");
    let source = tokio::spawn(super::directory::run(folder.path().to_owned(), sink));
    assert!(matches!(
        next(&mut received).await,
        Message::Change(Change::Pod(..))
    ));
    assert!(matches!(next(&mut received).await, Message::Partial(true)));
    for _ in Kind::ALL {
        assert!(matches!(next(&mut received).await, Message::Synced(_)));
    }
    folder.write("b.yaml", &pod("b", "10.0.0.2"));
    assert!(matches!(
        next(&mut received).await,
        Message::Change(Change::Pod(..))
    ));
    assert!(matches!(next(&mut received).await, Message::Partial(false)));
    source.abort();
}

async fn next(received: &mut Receiver<Message>) -> Message {
    let limit = std::time::Duration::from_secs(30);
    let message = tokio::time::timeout(limit, received.recv()).await;
    message.expect("in time").expect("it runs")
}
