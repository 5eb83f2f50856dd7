//! What a directory of manifests comes to, and when its files are read again.

use super::*;
use crate::source::{Message, tests::sink};
use baton_index::Change;
use tokio::sync::mpsc::Receiver;

/// A directory, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("baton-manifests-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("written");
    }

    fn path(&self) -> &Path {
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
            Message::Synced(_) => continue,
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
  targetRefs: [{name: web}]
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
    directory.look().await.expect("heard");
    let all = ["+LoadBalancerPolicy shop/web", "+Pod default/a", "+Pod default/b"];
    assert_eq!(told(&mut received), all);
    directory.look().await.expect("heard");
    assert!(told(&mut received).is_empty());
    folder.write("a.yaml", &(pod("a", "10.0.0.1") + &pod("b", "10.0.0.3")));
    directory.look().await.expect("heard");
    assert_eq!(told(&mut received), ["+Pod default/b"]);
    // An object that moves to another file is the same object.
    folder.write("a.yaml", &pod("a", "10.0.0.1"));
    folder.write(
        "c.json",
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"status":{"podIP":"10.0.0.3"}}"#,
    );
    directory.look().await.expect("heard");
    assert!(told(&mut received).is_empty());
    fs::remove_file(folder.path().join("c.json")).expect("removed");
    fs::remove_file(folder.path().join("b.yml")).expect("removed");
    directory.look().await.expect("heard");
    assert_eq!(told(&mut received), ["-LoadBalancerPolicy shop/web", "-Pod default/b"]);
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
    directory.look().await.expect("heard");
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
        directory.look().await.expect("heard");
        assert!(told(&mut received).is_empty(), "{bad}");
        assert_eq!(refused(), 1, "{bad}");
    }
    // Other files go on meanwhile.
    folder.write("a.yaml", &pod("a", "10.0.0.2"));
    directory.look().await.expect("heard");
    assert_eq!(told(&mut received), ["+Pod default/a"]);
    folder.write("web.yaml", &POLICY.replace("port: 80", "port: 81"));
    directory.look().await.expect("heard");
    assert_eq!(told(&mut received), ["+LoadBalancerPolicy shop/web"]);
    assert_eq!(refused(), 0);
}

/// `>` empties a file, and what writes into it may take seconds to begin.
#[tokio::test]
async fn a_file_that_is_empty_takes_nothing_away_and_one_of_comments_does() {
    let folder = Folder::new("emptied");
    let (sink, mut received) = sink();
    let refused = sink.metrics.refused.clone();
    let refused = || refused.with_label_values(&["file"]).get();
    let mut directory = Directory::new(folder.path().to_owned(), sink.clone()).expect("rules");
    folder.write("web.yaml", POLICY);
    directory.look().await.expect("heard");
    assert_eq!(told(&mut received).len(), 1);
    for (text, expected) in [("", 1), (POLICY, 0), ("", 1)] {
        folder.write("web.yaml", text);
        directory.look().await.expect("heard");
        assert!(told(&mut received).is_empty(), "{text}");
        assert_eq!(refused(), expected, "{text}");
    }
    folder.write("web.yaml", "# none\n");
    directory.look().await.expect("heard");
    assert_eq!(told(&mut received), ["-LoadBalancerPolicy shop/web"]);
    assert_eq!(refused(), 0);
}

#[tokio::test]
async fn it_is_whole_when_each_file_was_good_once() {
    let folder = Folder::new("whole");
    let (sink, _received) = sink();
    let mut directory = Directory::new(folder.path().to_owned(), sink.clone()).expect("rules");
    assert_eq!(directory.known, Known::Nothing);
    folder.write("a.yaml", &pod("a", "10.0.0.1"));
    folder.write("b.yaml", "a: [");
    for (text, whole) in [("a: [", false), (POLICY, true), ("a: [", true)] {
        folder.write("b.yaml", text);
        directory.look().await.expect("heard");
        assert_eq!(directory.known == Known::All, whole, "{text}");
    }
}

#[tokio::test]
async fn of_two_objects_with_one_name_the_first_files_counts() {
    let folder = Folder::new("twice");
    let (sink, mut received) = sink();
    let mut directory = Directory::new(folder.path().to_owned(), sink.clone()).expect("rules");
    folder.write("b.yaml", &pod("a", "10.0.0.2"));
    directory.look().await.expect("heard");
    assert_eq!(told(&mut received), ["+Pod default/a"]);
    folder.write("a.yaml", &pod("a", "10.0.0.1"));
    directory.look().await.expect("heard");
    assert_eq!(told(&mut received), ["+Pod default/a"]);
    assert_eq!(sink.metrics.refused.with_label_values(&["file"]).get(), 1);
    fs::remove_file(folder.path().join("a.yaml")).expect("removed");
    directory.look().await.expect("heard");
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
    directory.look().await.expect("heard");
    assert_eq!(told(&mut received).len(), 1);
    fs::rename(&inside, folder.path().join("elsewhere")).expect("renamed");
    directory.look().await.expect("heard");
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
    let source = tokio::spawn(run(link.clone(), sink));
    let mut seen = Vec::new();
    // A change, then all kinds are known.
    for _ in 0..=Kind::ALL.len() {
        seen.push(next(&mut received).await);
    }
    assert!(matches!(seen[0], Message::Change(Change::Pod(..))), "{seen:?}");
    assert!(seen[1..].iter().all(|m| matches!(m, Message::Synced(_))), "{seen:?}");
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

/// What a bad file held before the start is not known, so the others are told with the word that
/// something is missing.
#[tokio::test]
async fn a_file_that_is_bad_at_the_start_keeps_no_other_from_being_told() {
    let folder = Folder::new("part");
    let (sink, mut received) = sink();
    folder.write("a.yaml", &pod("a", "10.0.0.1"));
    folder.write("b.yaml", "a: [");
    let source = tokio::spawn(run(folder.path().to_owned(), sink));
    assert!(matches!(next(&mut received).await, Message::Change(Change::Pod(..))));
    assert!(matches!(next(&mut received).await, Message::Partial(true)));
    for _ in Kind::ALL {
        assert!(matches!(next(&mut received).await, Message::Synced(_)));
    }
    folder.write("b.yaml", &pod("b", "10.0.0.2"));
    assert!(matches!(next(&mut received).await, Message::Change(Change::Pod(..))));
    assert!(matches!(next(&mut received).await, Message::Partial(false)));
    source.abort();
}

async fn next(received: &mut Receiver<Message>) -> Message {
    let limit = std::time::Duration::from_secs(30);
    let message = tokio::time::timeout(limit, received.recv()).await;
    message.expect("in time").expect("it runs")
}

/// A directory whose files are read at another time.
struct Bench {
    folder: Folder,
    reader: Reader,
    files: Files,
}

impl Bench {
    fn new(name: &str, clock: fn() -> i64) -> Self {
        let folder = Folder::new(name);
        let reader = Reader {
            directory: folder.path().to_owned(),
            checker: Checker::new().expect("rules"),
            sink: sink().0,
            clock,
        };
        Self { folder, reader, files: Files::new() }
    }

    /// As `mv` into the directory: another file, whatever the time is.
    fn replace(&self, name: &str, text: &str) {
        self.folder.write(".half", text);
        let path = self.folder.path();
        fs::rename(path.join(".half"), path.join(name)).expect("renamed");
    }

    /// How many files were read, and whether objects may be others.
    fn look(&mut self) -> (usize, bool) {
        let look = self.reader.look(&mut self.files).expect("listed");
        (look.read, look.changed)
    }

    fn names(&self) -> Vec<String> {
        let objects = self.files.values().flat_map(|file| file.objects.iter());
        let name = |((_, key), _): &(Id, Content)| key.name.to_string();
        objects.flatten().map(name).collect()
    }

    fn problems(&self) -> Vec<String> {
        let problems = self.files.values().flat_map(|file| &file.problems);
        problems.map(ConfigError::to_string).collect()
    }
}

/// Long after every change.
fn later() -> i64 {
    i64::MAX
}

/// Before every change.
fn at_once() -> i64 {
    0
}

#[test]
fn a_file_that_is_the_same_is_not_read_again() {
    let mut bench = Bench::new("same", later);
    bench.replace("a.yaml", &pod("a", "10.0.0.1"));
    bench.replace("b.yaml", &pod("b", "10.0.0.1"));
    assert_eq!(bench.look(), (2, true));
    assert_eq!(bench.look(), (0, false));
    bench.replace("b.yaml", &pod("c", "10.0.0.1"));
    assert_eq!(bench.look(), (1, true));
    assert_eq!(bench.names(), ["a", "c"]);
    // Another file with the same text is read, and no news.
    bench.replace("b.yaml", &pod("c", "10.0.0.1"));
    assert_eq!(bench.look(), (1, false));
    fs::remove_file(bench.folder.path().join("a.yaml")).expect("removed");
    assert_eq!(bench.look(), (0, true));
    assert_eq!(bench.names(), ["c"]);
}

/// Two writes within one tick of the file system's clock, of texts of one length, leave nothing
/// else to see.
#[test]
fn a_file_that_was_changed_lately_is_read_again_whatever_it_looks_like() {
    let mut bench = Bench::new("lately", at_once);
    for name in ["a", "b", "c", "d", "e"] {
        bench.folder.write("a.yaml", &pod(name, "10.0.0.1"));
        assert_eq!(bench.look(), (1, true));
        assert_eq!(bench.names(), [name]);
        assert_eq!(bench.look(), (1, false));
    }
}

#[test]
fn a_stamp_is_of_use_when_a_later_change_has_later_times() {
    let stamp = |modified: i64, changed: i64| Stamp {
        device: 1,
        inode: 2,
        bytes: 3,
        modified: (modified, 999_999_999),
        changed: (changed, 999_999_999),
    };
    for (modified, changed, now, settled) in [
        (100, 100, 100, false),
        (100, 100, 100 + SETTLED_SECONDS - 1, false),
        (100, 100, 100 + SETTLED_SECONDS, true),
        // Copied with its old times, just now.
        (7, 100, 101, false),
        // From a file server whose clock is ahead.
        (200, 200, 100, false),
    ] {
        let got = stamp(modified, changed).is_settled(now);
        assert_eq!(got, settled, "{modified} {changed} {now}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_without_reading_it_again() {
    let mut bench = Bench::new("wrong", later);
    bench.replace("a.yaml", &pod("a", "10.0.0.1"));
    bench.look();
    bench.replace("a.yaml", &pod("a", "[1]"));
    for read in [1, 0] {
        assert_eq!(bench.look(), (read, false));
        let problems = bench.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        let place = "a.yaml:4: status.podIP: ";
        assert!(problems[0].contains(place), "{problems:?}");
        assert_eq!(bench.names(), ["a"], "the last good content");
    }
}

#[test]
fn a_file_that_cannot_be_read_keeps_its_content_and_is_tried_again() {
    let mut bench = Bench::new("large", later);
    bench.replace("a.yaml", &pod("a", "10.0.0.1"));
    bench.look();
    let large = fs::File::create(bench.folder.path().join("a.yaml")).expect("made");
    large.set_len(FILE_BYTES_MAX as u64 + 1).expect("sparse");
    for _ in 0..2 {
        assert_eq!(bench.look(), (1, false));
        assert_eq!(bench.problems().len(), 1, "{:?}", bench.problems());
        assert_eq!(bench.names(), ["a"]);
    }
    bench.replace("a.yaml", &pod("a", "10.0.0.1"));
    bench.look();
    assert_eq!(bench.problems(), [""; 0]);
}

#[test]
fn files_count_in_the_order_of_their_names_and_a_bad_one_keeps_out_no_other() {
    let mut bench = Bench::new("many", later);
    let names: Vec<String> = (0..30).map(|i| format!("pod-{i:03}")).collect();
    for name in names.iter().rev() {
        let file = format!("{name}.yaml");
        bench.folder.write(&file, &pod(name, "10.0.0.1"));
    }
    bench.folder.write("pod-015.yaml", "a: [");
    assert_eq!(bench.look(), (30, true));
    assert_eq!(bench.problems().len(), 1, "{:?}", bench.problems());
    let good: Vec<&String> = names.iter().filter(|n| *n != "pod-015").collect();
    assert_eq!(bench.names().iter().collect::<Vec<_>>(), good);
}

/// The objects of a text as `Kind namespace/name`, or what is wrong with it.
fn objects(text: &str) -> Result<Vec<String>, String> {
    let bench = Bench::new("text", later);
    let objects = bench.reader.objects(Path::new("a.yaml"), text);
    let id = |((kind, key), _): (Id, Content)| format!("{} {key}", kind.as_str());
    let words = |problems: Vec<ConfigError>| problems[0].to_string();
    let objects = objects.map_err(words)?;
    Ok(objects.into_iter().map(id).collect())
}

#[test]
fn documents_and_lists_are_taken_apart() {
    let of = |text: &str| objects(text).expect(text);
    let text = "# first\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n--- # second\n\n---\n\
                apiVersion: v1\nkind: List\nitems:\n\
                - {apiVersion: v1, kind: Pod, metadata: {name: b, namespace: shop}}\n\
                - apiVersion: v1\n  kind: Node\n  metadata: {name: n1}\n...\n";
    assert_eq!(of(text), ["Pod default/a", "Pod shop/b", "Node /n1"]);
    assert!(of("").is_empty() && of("# only\n---\n").is_empty());
    // The items of a typed list need not say what they are.
    let list = r#"{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "c"}}]}"#;
    assert_eq!(of(list), ["Pod default/c"]);
    let lists = format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{list}]}}"#);
    assert_eq!(of(&lists), ["Pod default/c"]);
    let mark =
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations: {x: '---', y: ---z}\n";
    assert_eq!(of(mark), ["Pod default/a"]);
}

#[test]
fn what_is_wrong_is_told_with_its_line_and_field() {
    let first = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n";
    let item = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    \
                name: a\n  status:\n    podIP: [1]\n";
    for (second, begin) in [
        ("kind: Pod\nmetadata: {name: b}\n", ":5: apiVersion: is missing"),
        ("apiVersion: v1\nkind: Pod\nmetadata:\n  labels: {}\n", ":7: metadata.name: is missing"),
        ("a: [\n", ":"),
        ("just words\n", ":5: is text: expected an object"),
        (item, ":13: items[0].status.podIP: "),
    ] {
        let got = objects(&format!("{first}{second}")).expect_err(second);
        assert!(got.starts_with(&format!("a.yaml{begin}")), "{got}");
    }
}
