//! When a file is read again, and what comes of it.

use super::{Files, Look, Reader, SETTLED_SECONDS, Stamp};
use crate::{
    manifest::LIMIT_FILE_BYTES,
    source::{directory_tests::Folder, tests::sink},
};
use std::{ffi::OsStr, fs};

const GOOD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nstatus: {podIP: 10.0.0.1}\n";

struct Bench {
    folder: Folder,
    reader: Reader,
    files: Files,
}

impl Bench {
    fn new(name: &str, clock: fn() -> i64) -> Self {
        let folder = Folder::new(name);
        let (sink, _) = sink();
        let mut reader = Reader::new(folder.path().to_owned(), sink).expect("rules");
        reader.clock = clock;
        Self {
            folder,
            reader,
            files: Files::default(),
        }
    }

    /// As `mv` into the directory: another file, whatever the time is.
    fn replace(&self, name: &str, text: &str) {
        self.folder.write(".half", text);
        let path = self.folder.path();
        fs::rename(path.join(".half"), path.join(name)).expect("renamed");
    }

    fn look(&mut self) -> Look {
        self.files.look(&self.reader)
    }

    fn names(&self) -> Vec<String> {
        let name = |(_, id, _): (_, &super::Id, _)| id.1.name.to_string();
        self.files.objects().map(name).collect()
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
    bench.replace("a.yaml", GOOD);
    bench.replace("b.yaml", &GOOD.replace("name: a", "name: b"));
    let look = bench.look();
    assert_eq!((look.read, look.changed), (2, true));
    let look = bench.look();
    assert_eq!((look.read, look.changed), (0, false));
    bench.replace("b.yaml", &GOOD.replace("name: a", "name: c"));
    let look = bench.look();
    assert_eq!((look.read, look.changed), (1, true));
    assert_eq!(bench.names(), ["a", "c"]);
    // Another file with the same text is read, and no news.
    bench.replace("b.yaml", &GOOD.replace("name: a", "name: c"));
    let look = bench.look();
    assert_eq!((look.read, look.changed), (1, false));
    fs::remove_file(bench.folder.path().join("a.yaml")).expect("removed");
    let look = bench.look();
    assert_eq!((look.read, look.changed), (0, true));
    assert_eq!(bench.names(), ["c"]);
}

/// Two writes within one tick of the file system's clock, of texts of one length, leave nothing else to see.
#[test]
fn a_file_that_was_changed_lately_is_read_again_whatever_it_looks_like() {
    let mut bench = Bench::new("lately", at_once);
    for name in ["a", "b", "c", "d", "e"] {
        let text = GOOD.replace("name: a", &format!("name: {name}"));
        bench.folder.write("a.yaml", &text);
        let look = bench.look();
        assert_eq!((look.read, look.changed), (1, true));
        assert_eq!(bench.names(), [name]);
        let look = bench.look();
        assert_eq!((look.read, look.changed), (1, false));
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
    bench.replace("a.yaml", GOOD);
    let _ = bench.look();
    bench.replace("a.yaml", &GOOD.replace("podIP: 10.0.0.1", "podIP: [1]"));
    for (read, word) in [(1, "first"), (0, "again")] {
        let look = bench.look();
        assert_eq!((look.read, look.changed), (read, false), "{word}");
        let [problem] = look.problems.as_slice() else {
            panic!("{:?}", look.problems);
        };
        let words = problem.to_string();
        assert!(words.contains("a.yaml:4: status.podIP: "), "{words}");
        assert_eq!(bench.names(), ["a"], "the last good content");
        assert!(bench.files.are_known());
    }
}

#[test]
fn a_file_that_cannot_be_read_keeps_its_content_and_is_tried_again() {
    let mut bench = Bench::new("large", later);
    bench.replace("a.yaml", GOOD);
    let _ = bench.look();
    let large = fs::File::create(bench.folder.path().join("a.yaml")).expect("made");
    large.set_len(LIMIT_FILE_BYTES + 1).expect("sparse");
    for _ in 0..2 {
        let look = bench.look();
        assert_eq!((look.read, look.changed), (1, false));
        assert!(!bench.files.are_read() && bench.files.are_known());
        assert_eq!(look.problems.len(), 1, "{:?}", look.problems);
        assert_eq!(bench.names(), ["a"]);
    }
    bench.replace("a.yaml", GOOD);
    assert!(bench.look().problems.is_empty() && bench.files.are_read());
}

/// More files than one thread takes: each is read once, and they count in order of their names.
#[test]
fn many_files_are_read_at_one_time_and_count_in_order() {
    let mut bench = Bench::new("many", later);
    let names: Vec<String> = (0..300).map(|i| format!("pod-{i:03}")).collect();
    for name in names.iter().rev() {
        let text = GOOD.replace("name: a", &format!("name: {name}"));
        bench.folder.write(&format!("{name}.yaml"), &text);
    }
    bench.folder.write("pod-150.yaml", "a: [");
    let look = bench.look();
    assert_eq!((look.read, look.problems.len()), (300, 1));
    let good: Vec<&String> = names.iter().filter(|n| *n != "pod-150").collect();
    assert_eq!(bench.names().iter().collect::<Vec<_>>(), good);
    let files: Vec<&OsStr> = bench.files.objects().map(|(f, ..)| f.as_os_str()).collect();
    assert!(files.is_sorted() && files.len() == 299);
    assert!(!bench.files.are_known());
}
