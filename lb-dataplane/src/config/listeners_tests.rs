//! Where this process listens, the files of `controlTls`, folders of keys, and who owns the
//! policies.

use super::{
    tests::{Folder, GOOD, KEY},
    *,
};
use crate::certificates::Authority;
use std::fs;

/// Without policies, so that the places are the only ones.
const BARE: &str = "interface: eth0\nkeys: {directory: keys}\ncontrol: 127.0.0.1:9900\n";
const TLS: &str =
    "controlTls: {listen: '0.0.0.0:9910', certificate: c, key: k, clientAuthority: a}\n";

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("dataplane.yaml"), text)
}

fn with_tls() -> String {
    format!("{BARE}{TLS}probes: 0.0.0.0:9920\n")
}

/// A folder with a whole configuration that uses folders and TLS.
fn folder(authority: &Authority, name: Name) -> Folder {
    let folder = Folder::new();
    fs::create_dir(folder.path("keys")).expect("a folder");
    folder.write("keys/epoch-4", KEY, 0o600);
    folder.write("keys/current", "4\n", 0o644);
    let pair = authority.pair(name);
    folder.write("c", &pair.certificate, 0o644);
    folder.write("k", &pair.key, 0o600);
    folder.write("a", &authority.pem, 0o644);
    folder.write("dataplane.yaml", &with_tls(), 0o644);
    folder
}

fn refusal(folder: &Folder) -> String {
    let error = Loaded::read(&folder.file()).expect_err("refused");
    error.to_string().replace(&folder.path("").display().to_string(), "DIR/")
}

#[test]
fn three_places_are_possible_and_survive_a_round_trip() {
    let config = parse(&with_tls()).expect("good");
    let tls = config.control_tls.as_ref().expect("TLS");
    assert_eq!(tls.listen.port(), 9_910);
    assert_eq!(config.probes.map(|at| at.port()), Some(9_920));
    let written = serde_json::to_string_pretty(&config).expect("written");
    assert_eq!(parse(&written).expect("read again"), config);
}

#[test]
fn places_that_collide_are_refused() {
    let policies = "policies: [{name: web, frontends: ['FRONT'], backends: []}]\n";
    let cases = [
        ("0.0.0.0:9910", "0.0.0.0:0", "dataplane.yaml:4: controlTls.listen: expected a port"),
        (
            "0.0.0.0:9910",
            "10.0.0.1:20005",
            "dataplane.yaml:4: controlTls.listen: port 20005 is one of the legs' ports",
        ),
        (
            "0.0.0.0:9920",
            "0.0.0.0:20005",
            "dataplane.yaml:5: probes: port 20005 is one of the legs' ports",
        ),
        (
            "0.0.0.0:9910",
            "0.0.0.0:9900",
            "dataplane.yaml:4: controlTls.listen: 0.0.0.0:9900 is where the control API listens (`control: 127.0.0.1:9900`)",
        ),
        (
            "0.0.0.0:9920",
            "127.0.0.1:9910",
            "dataplane.yaml:5: probes: 127.0.0.1:9910 is where the control API listens with TLS",
        ),
        (
            "clientAuthority: a",
            "clientauthority: a",
            "dataplane.yaml:4: controlTls.clientauthority: ",
        ),
        (", key: k", "", "dataplane.yaml:4: controlTls.key: is missing"),
        ("{directory: keys}", "keys", "dataplane.yaml:2: keys: "),
        ("{directory: keys}", "{directory: keys, epoch: 1}", "dataplane.yaml:2: keys.epoch: "),
    ];
    for (from, to, words) in cases {
        let text = with_tls().replacen(from, to, 1);
        assert_ne!(text, with_tls(), "{from}");
        let message = parse(&text).expect_err(to).to_string();
        assert!(message.starts_with(words), "{to}: {message}");
    }
    for (front, words) in [
        (
            "0.0.0.0:9910",
            "is where the control API listens with TLS (`controlTls.listen: 0.0.0.0:9910`)",
        ),
        ("0.0.0.0:9920", "is where health and metrics are asked for (`probes: 0.0.0.0:9920`)"),
    ] {
        let text = with_tls() + &policies.replace("FRONT", front);
        let message = parse(&text).expect_err(front).to_string();
        assert!(message.contains(words), "{message}");
    }
    // The commands' place is on another address than any frontend.
    parse(&(with_tls() + &policies.replace("FRONT", "0.0.0.0:9900"))).expect("good");
    // One on the dataplane's own address is in the way of a frontend on all of them.
    let own = with_tls().replace("0.0.0.0:9920", "10.9.0.10:9920");
    let config = parse(&(own + &policies.replace("FRONT", "0.0.0.0:9920"))).expect("good so far");
    let snapshot = config.snapshot(1);
    config.check_snapshot(&snapshot, &[]).expect("not its own");
    let own = ["10.9.0.10".parse().expect("an address")];
    config.check_snapshot(&snapshot, &own).expect_err("its own");
}

#[test]
fn what_the_files_lack_is_said_at_their_field() {
    let authority = Authority::new();
    let right = folder(&authority, Name::Dataplane);
    let loaded = Loaded::read(&right.file()).expect("good");
    assert!(loaded.tls.is_some());
    assert_eq!(loaded.key_epochs(), [4]);
    assert!(!format!("{loaded:?}").contains("8899"));

    let wrong = folder(&authority, Name::Shim);
    let text = refusal(&wrong);
    assert!(
        text.contains(
            ":4: controlTls.certificate: the certificate is not one of `dataplane.baton`"
        ),
        "{text}"
    );

    let pair = authority.pair(Name::Dataplane);
    right.write("k", &pair.key, 0o600);
    let text = refusal(&right);
    assert!(
        text.contains(":4: controlTls.key: the key does not belong to the certificate"),
        "{text}"
    );
    right.write("c", &pair.certificate, 0o644);
    right.write("k", &pair.key, 0o640);
    let text = refusal(&right);
    assert!(
        text.contains(":4: controlTls.key: the key DIR/k is open to others (mode 640)"),
        "{text}"
    );
    right.write("k", &pair.key, 0o600);
    right.write("a", "", 0o644);
    let text = refusal(&right);
    assert!(
        text.contains(":4: controlTls.clientAuthority: the authority has no CERTIFICATE"),
        "{text}"
    );
    right.write("a", &authority.pem, 0o644);
    Loaded::read(&right.file()).expect("good again");

    right.write("keys/epoch-5", KEY, 0o640);
    let text = refusal(&right);
    assert!(
        text.contains(":2: keys.directory: the key file DIR/keys/epoch-5 is open to others"),
        "{text}"
    );
    right.write("keys/epoch-5", KEY, 0o600);
    right.write("keys/current", "6", 0o644);
    let text = refusal(&right);
    assert!(
        text.contains("DIR/keys/current names no key that is there: expected 4 or 5"),
        "{text}"
    );
}

#[test]
fn exchanged_files_are_a_change_that_can_be_applied() {
    let authority = Authority::new();
    let folder = folder(&authority, Name::Dataplane);
    let old = Loaded::read(&folder.file()).expect("good");
    let read = || Loaded::read(&folder.file()).expect("good");

    folder.write("keys/epoch-5", &KEY.replace('0', "1"), 0o600);
    folder.write("keys/current", "5", 0o644);
    let new = read();
    assert_eq!(new.key_epochs(), [5, 4]);
    let change = |new: &Loaded| compare(&old, new);
    assert_eq!(change(&new), Change { keys: true, ..Change::default() });

    let pair = authority.pair(Name::Dataplane);
    folder.write("c", &pair.certificate, 0o644);
    folder.write("k", &pair.key, 0o600);
    assert_eq!(change(&read()), Change { keys: true, tls: true, ..Change::default() });

    // Another place to listen at waits for a restart; what the files hold does not.
    let text = with_tls().replace("0.0.0.0:9910", "0.0.0.0:9911").replace("9920", "9921");
    folder.write("dataplane.yaml", &text, 0o644);
    let mut new = read();
    let restart = vec!["controlTls.listen", "probes"];
    assert_eq!(change(&new), Change { keys: true, tls: true, restart, ..Change::default() });
    new.config.keep_fixed(&old.config);
    assert_eq!(new.config.control_tls, old.config.control_tls);

    folder.write("dataplane.yaml", BARE, 0o644);
    let new = read();
    let restart = vec!["controlTls", "probes"];
    assert_eq!(change(&new), Change { keys: true, restart, ..Change::default() });
}

#[test]
fn policies_are_the_files_or_the_operators() {
    assert_eq!(parse(BARE).expect("good").policies, None);
    let empty = parse(&format!("{BARE}policies: []\n")).expect("good");
    assert_eq!(empty.policies, Some(Vec::new()));
    let written = serde_json::to_string(&empty).expect("written");
    assert_eq!(parse(&written).expect("read again"), empty);

    let folder = Folder::new();
    let old = Loaded::read(&folder.file()).expect("good");
    let at = GOOD.find("policies:").expect("policies");
    folder.write("dataplane.yaml", &GOOD[..at], 0o644);
    let new = Loaded::read(&folder.file()).expect("good");
    assert_eq!(compare(&old, &new), Change { policies: true, ..Change::default() });
}
