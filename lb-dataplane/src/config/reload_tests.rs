//! Which changes of files are noticed, and which are none.

use super::{
    tests::{Folder, GOOD, KEY},
    *,
};
use std::time::Duration;
use tokio::time::timeout;

/// Far longer than the kernel takes to tell.
const WITHIN: Duration = Duration::from_secs(10);
/// Longer than the watcher waits for quiet, so that a change would have been told.
const QUIET: Duration = Duration::from_millis(500);

fn read(folder: &Folder) -> (Result<Loaded, ConfigError>, Sources) {
    let mut sources = Sources::default();
    let read = Loaded::read_noting(&folder.file(), &mut sources);
    (read, sources)
}

fn watcher(folder: &Folder) -> Watcher {
    let (loaded, sources) = read(folder);
    loaded.expect("good");
    Watcher::new(sources).expect("watched")
}

async fn noticed(watcher: &mut Watcher, what: &str) {
    timeout(WITHIN, watcher.changed()).await.expect(what);
}

async fn nothing(watcher: &mut Watcher, what: &str) {
    assert!(timeout(QUIET, watcher.changed()).await.is_err(), "{what}");
}

#[tokio::test]
async fn changed_files_are_noticed_and_reading_them_is_not_a_change() {
    let folder = Folder::new();
    let mut watcher = watcher(&folder);
    for name in ["dataplane.yaml", "adoption-1.key"] {
        let text = fs::read_to_string(folder.path(name)).expect("read");
        folder.write(name, &text, 0o600);
        noticed(&mut watcher, name).await;
    }
    // Kubernetes and editors replace files by renaming.
    folder.write("next", GOOD, 0o600);
    fs::rename(folder.path("next"), folder.file()).expect("renamed");
    noticed(&mut watcher, "a replaced file").await;
    Loaded::read(&folder.file()).expect("good");
    folder.write("dataplane.log", "a line", 0o600);
    nothing(&mut watcher, "reading, or another file, was taken for a change").await;
}

#[tokio::test]
async fn a_change_between_reading_and_watching_is_noticed() {
    let folder = Folder::new();
    let (loaded, sources) = read(&folder);
    loaded.expect("good");
    folder.write("dataplane.yaml", GOOD, 0o600);
    let mut watcher = Watcher::new(sources).expect("watched");
    noticed(&mut watcher, "before the watcher's start").await;
    nothing(&mut watcher, "once is enough").await;

    let (_, sources) = read(&folder);
    folder.write("adoption-1.key", &KEY.replace('0', "1"), 0o600);
    watcher.follow(sources).expect("watched");
    noticed(&mut watcher, "before a reload was in force").await;
}

/// As where a signal comes in between.
#[tokio::test]
async fn a_change_is_noticed_also_if_its_wait_for_quiet_was_dropped() {
    let folder = Folder::new();
    let mut watcher = watcher(&folder);
    folder.write("dataplane.yaml", GOOD, 0o600);
    // Longer than the kernel takes to tell, shorter than it has to be quiet.
    let dropped = timeout(Duration::from_millis(100), watcher.changed()).await;
    assert!(dropped.is_err(), "it was not quiet yet");
    noticed(&mut watcher, "what had begun").await;
    nothing(&mut watcher, "once is enough").await;
}

/// Names another key in the configuration, has it refused, and writes the key.
async fn a_key_that_comes_later(name: &str) {
    let folder = Folder::new();
    let mut watcher = watcher(&folder);
    let text = GOOD.replace("file: adoption-1.key", &format!("file: {name}"));
    folder.write("dataplane.yaml", &text, 0o600);
    noticed(&mut watcher, "the configuration").await;
    let (refused, sources) = read(&folder);
    let error = refused.expect_err("its key is missing");
    assert_eq!(error.field, "keys[0].file", "{error}");
    watcher.follow_too(sources).expect("watched");
    nothing(&mut watcher, "the key is not there yet").await;

    // What is in force is still watched.
    folder.write("adoption-1.key", KEY, 0o600);
    noticed(&mut watcher, "the key in force").await;

    if let Some(parent) = Path::new(name).parent() {
        fs::create_dir_all(folder.path(&parent.to_string_lossy())).expect("folders");
    }
    folder.write(name, KEY, 0o600);
    noticed(&mut watcher, name).await;
    let (loaded, sources) = read(&folder);
    loaded.expect("good now");
    watcher.follow(sources).expect("watched");

    // And what is no longer named is not.
    folder.write("adoption-1.key", KEY, 0o600);
    nothing(&mut watcher, "nobody reads the old key").await;
    folder.write(name, KEY, 0o600);
    noticed(&mut watcher, "the new key changed").await;
}

#[tokio::test]
async fn a_key_written_after_the_configuration_that_names_it_is_noticed() {
    a_key_that_comes_later("adoption-2.key").await;
}

#[tokio::test]
async fn so_is_one_in_a_folder_that_did_not_exist() {
    a_key_that_comes_later("secrets/now/adoption.key").await;
}

#[tokio::test]
async fn a_folder_that_is_replaced_is_watched_again() {
    let folder = Folder::new();
    fs::create_dir(folder.path("keys")).expect("a folder");
    folder.write("keys/1.key", KEY, 0o600);
    let text = GOOD.replace("file: adoption-1.key", "file: keys/1.key");
    folder.write("dataplane.yaml", &text, 0o600);
    let mut watcher = watcher(&folder);
    fs::rename(folder.path("keys"), folder.path("old")).expect("renamed");
    fs::create_dir(folder.path("keys")).expect("a folder");
    folder.write("keys/1.key", KEY, 0o600);
    noticed(&mut watcher, "the replaced folder").await;
    folder.write("keys/1.key", KEY, 0o600);
    noticed(&mut watcher, "a file of the new folder").await;
}

#[tokio::test]
async fn an_exchanged_secret_of_keys_is_noticed_and_so_is_a_file_more() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name);
    for name in ["keys", "keys/..1", "keys/..2"] {
        fs::create_dir(at(name)).expect("a folder");
    }
    for version in ["..1", "..2"] {
        folder.write(&format!("keys/{version}/epoch-1"), KEY, 0o600);
        folder.write(&format!("keys/{version}/current"), "1", 0o600);
    }
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, at(&format!("keys/{name}"))).expect("a link");
    };
    link("..1", "..data");
    link("..data/epoch-1", "epoch-1");
    link("..data/current", "current");
    let text = GOOD.replace("[{epoch: 1, file: adoption-1.key}]", "{directory: keys}");
    folder.write("dataplane.yaml", &text, 0o600);
    let mut watcher = watcher(&folder);
    link("..2", "..next");
    fs::rename(at("keys/..next"), at("keys/..data")).expect("exchanged");
    noticed(&mut watcher, "the exchanged link").await;

    // As in a plain folder: the files that were there stay as they are.
    folder.write("keys/epoch-2", KEY, 0o600);
    noticed(&mut watcher, "a key more").await;
    // What was read again names it, so its change is one too.
    let mut sources = Sources::default();
    Loaded::read_noting(&folder.file(), &mut sources).expect("good");
    watcher.follow(sources).expect("watched");
    folder.write("keys/epoch-2", &KEY.replace('0', "1"), 0o600);
    noticed(&mut watcher, "the key more changed").await;
}
