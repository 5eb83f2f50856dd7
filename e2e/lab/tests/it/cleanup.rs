//! Nothing is left behind: after a drop, after Ctrl-C, and after SIGKILL once the next lab starts.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as the test itself does")]

use baton_lab::{Lab, NginxOptions, Options, RECORD_DIR};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

/// Everything on the machine that bears a lab's name: namespaces, cgroups, directories, records,
/// processes.
fn traces(id: &str) -> Vec<String> {
    let mut found = Vec::new();
    let cgroups: Vec<PathBuf> = fs::read_to_string("/proc/mounts")
        .unwrap()
        .lines()
        .filter(|l| l.contains(" cgroup"))
        .map(|l| PathBuf::from(l.split(' ').nth(1).unwrap()))
        .collect();
    let places = ["/run/netns".into(), RECORD_DIR.into(), std::env::temp_dir()];
    for place in places.iter().chain(&cgroups) {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(id) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let cwd = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        if line.contains(id) || cwd.display().to_string().contains(id) {
            // Not the command line: redis writes another one once it has started.
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push(format!("process {}: {name}", entry.path().display()));
        }
    }
    found
}

/// A lab of another process. It ends with its input, so that none is left if this test is killed.
fn hold() -> (Child, String, ChildStdin) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_baton-lab"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let id = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find_map(|l| Some(l.strip_prefix("ready ")?.to_owned()))
        .expect("the lab comes up");
    let input = child.stdin.take().unwrap();
    (child, id, input)
}

fn small() -> Options {
    Options::with_pods(1)
}

#[test]
fn a_dropped_lab_leaves_nothing() {
    let lab = Lab::new("drop", &small()).unwrap();
    let nginx = lab.pods()[0].nginx(&NginxOptions::default()).unwrap();
    let redis = lab.pods()[0].redis().unwrap();
    let id = lab.id().to_owned();
    // 4 namespaces, cgroup, directory, record, nginx master, redis (the worker's title has no
    // path).
    assert!(traces(&id).len() >= 9, "{:?}", traces(&id));
    // The servers' handles outlive the lab: it takes the processes with it all the same.
    drop(lab);
    assert_eq!(traces(&id), [""; 0]);
    drop((nginx, redis));
}

#[test]
fn ctrl_c_leaves_nothing() {
    let (mut child, id, _input) = hold();
    assert!(traces(&id).len() >= 18);
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(traces(&id), [""; 0]);
}

#[test]
fn the_end_of_its_input_ends_a_held_lab() {
    let (mut child, id, input) = hold();
    drop(input);
    assert!(child.wait().unwrap().success());
    assert_eq!(traces(&id), [""; 0]);
}

#[test]
fn the_next_start_cleans_up_after_a_crash() {
    let (mut child, id, _input) = hold();
    assert!(traces(&id).len() >= 18);
    child.kill().unwrap();
    child.wait().unwrap();
    let lab = Lab::new("next", &small()).unwrap();
    assert_eq!(traces(&id), [""; 0]);
    drop(lab);
}

#[test]
fn a_living_lab_is_left_alone() {
    let (mut child, id, _input) = hold();
    let before = traces(&id);
    drop(Lab::new("neighbour", &small()).unwrap());
    assert_eq!(traces(&id), before);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(Lab::new("neighbour", &small()).unwrap());
}

#[test]
fn the_labs_directory_is_private() {
    let lab = Lab::new("private", &small()).unwrap();
    let mode = |p: &Path| fs::metadata(p).unwrap().mode() & 0o777;
    assert_eq!(mode(lab.directory()), 0o700);
    assert_eq!(mode(&lab.key(1).unwrap().file), 0o600);
    let digits = fs::read_to_string(lab.key(1).unwrap().file).unwrap();
    assert_eq!(digits.trim().len(), 32);
}
