//! Each refusal with its line, field and words; the round trip; what a change means.

use super::*;
use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicU32, Ordering},
};

pub const GOOD: &str = "\
interface: eth0
address: [10.9.0.10, 'fd00::10']
ports: 20000-59999
mode: auto
control: 127.0.0.1:9900
log: {format: text, level: info}
keys: [{epoch: 1, file: adoption-1.key}]
limits: {flows: 65536, guardedFlows: 4096}
rings: {frames: 8192, rx: 2048, tx: 2048, batch: 64, busyPollUs: 0}
policies:
  - name: web
    frontends: ['0.0.0.0:80']
    backends:
      - {name: a, endpoint: '10.9.0.1:80'}
      - name: b
        endpoint: 10.9.0.2:80
        weight: 2
    algorithm: Maglev
    protocol: HTTP1
    migration: {mode: Always, cooldown: 0us}
";

pub const KEY: &str = "00112233445566778899aabbccddeeff";

/// A folder with a configuration, removed on drop.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = std::env::temp_dir().join(format!(
            "bt-config-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir_all(&path).expect("a folder");
        let this = Self(path);
        this.write("dataplane.yaml", GOOD, 0o644);
        this.write("adoption-1.key", KEY, 0o600);
        this
    }

    pub fn file(&self) -> PathBuf {
        self.0.join("dataplane.yaml")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str, mode: u32) {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its mode");
    }

    fn refusal(&self) -> ConfigError {
        Loaded::read(&self.file()).expect_err("refused")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("dataplane.yaml"), text)
}

#[test]
fn without_keys_there_are_none() {
    for keys in ["", "keys: []\n"] {
        let text = GOOD.replacen("keys: [{epoch: 1, file: adoption-1.key}]\n", keys, 1);
        let config = parse(&text).expect("a configuration without keys");
        assert_eq!(config.keys, KeysField::Files(Vec::new()));
    }
}

#[test]
fn the_documented_configuration_is_good_and_survives_a_round_trip() {
    let config = parse(GOOD).expect("good");
    assert_eq!(config.address.len(), 2);
    assert_eq!(config.ports.range(), 20_000..=59_999);
    assert_eq!(config.limits.flows, 65_536);
    assert_eq!(config.limits.guarded_flows, 4_096);
    assert_eq!(config.limits.backends, Limits::default().backends);
    assert_eq!(config.policies.as_ref().expect("policies")[0].backends[1].weight, 2);
    // JSON is YAML, so that what is written can be read by the same reader.
    let written = serde_json::to_string_pretty(&config).expect("written");
    assert_eq!(parse(&written).expect("read again"), config);
}

#[test]
fn only_interface_and_keys_are_needed() {
    let config = parse("interface: eth0\nkeys: [{epoch: 0, file: k}]\n").expect("good");
    assert_eq!(config.control, control_default());
    assert_eq!(config.ports, Ports::default());
    assert_eq!(config.rings, Rings::default());
    assert_eq!(config.policies, None);
}

/// One text of the good configuration replaced, and what must be said.
#[test]
fn every_refusal_names_line_field_and_what_was_expected() {
    let cases = [
        ("interface: eth0", "interfaec: eth0", "dataplane.yaml:1: interfaec: ", "interface"),
        (
            "interface: eth0",
            "interface: averyverylonginterface",
            "dataplane.yaml:1: interface: ",
            "expected 1 to 15 characters",
        ),
        ("10.9.0.10, ", "10.9.0.300, ", "dataplane.yaml:2: address[0]: ", "IP address"),
        (
            "10.9.0.10, ",
            "0.0.0.0, ",
            "dataplane.yaml:2: address[0]: ",
            "0.0.0.0 is not an address that this machine can have",
        ),
        ("'fd00::10'", "10.9.0.10", "dataplane.yaml:2: address[1]: ", "twice"),
        (
            "20000-59999",
            "20000",
            "dataplane.yaml:3: ports: ",
            "expected first and last, as 20000-32767",
        ),
        ("20000-59999", "80-2000", "dataplane.yaml:3: ports: ", "expected ports from 1024"),
        ("20000-59999", "20000-20010", "dataplane.yaml:3: ports: ", "expected at least 64"),
        ("mode: auto", "mode: fast", "dataplane.yaml:4: mode: ", "native"),
        (
            "127.0.0.1:9900",
            "localhost",
            "dataplane.yaml:5: control: ",
            "expected an address and port, as 127.0.0.1:9900, or unix:/PATH",
        ),
        (
            "127.0.0.1:9900",
            "unix:control.sock",
            "dataplane.yaml:5: control: ",
            "expected an absolute one, as unix:/run/baton/control.sock",
        ),
        (
            "127.0.0.1:9900",
            "0.0.0.0:30000",
            "dataplane.yaml:5: control: ",
            "one of the legs' ports 20000-59999",
        ),
        (
            "127.0.0.1:9900",
            "0.0.0.0:80",
            "dataplane.yaml:12: policies[0].frontends[0]: ",
            "where the control API listens",
        ),
        (
            "level: info",
            "level: loud",
            "dataplane.yaml:6: log.level: ",
            "expected off, error, warn, info, debug or trace",
        ),
        ("format: text", "format: xml", "dataplane.yaml:6: log.format: ", "json"),
        (
            "[{epoch: 1, file: adoption-1.key}]",
            "[{epoch: 1, file: a}, {epoch: 2, file: b}, {epoch: 3, file: c}]",
            "dataplane.yaml:7: keys: ",
            "expected one key, or two",
        ),
        (
            "[{epoch: 1, file: adoption-1.key}]",
            "[{epoch: 1, file: a}, {epoch: 17, file: b}]",
            "dataplane.yaml:7: keys[1].epoch: ",
            "differ modulo 16",
        ),
        (
            "epoch: 1,",
            "epoch: 256,",
            "dataplane.yaml:7: keys[0].epoch: ",
            "expected a whole number from 0 to 255",
        ),
        ("epoch: 1, file", "file", "dataplane.yaml:7: keys[0].epoch: ", "is missing"),
        (
            "flows: 65536",
            "flows: many",
            "dataplane.yaml:8: limits.flows: ",
            "expected a whole number from 0 to 4294967295",
        ),
        ("flows: 65536", "flows: 3", "dataplane.yaml:8: limits.flows: ", "expected 16 to 16777216"),
        ("rx: 2048", "rx: 2000", "dataplane.yaml:9: rings.rx: ", "a power of two from 64 to 65536"),
        ("batch: 64", "batch: 0", "dataplane.yaml:9: rings.batch: ", "1 to 2048"),
        ("frames: 8192", "frames: 64", "dataplane.yaml:9: rings.frames: ", "at least 6209"),
        (
            "name: web",
            "name: we b",
            "dataplane.yaml:11: policies[0].name: ",
            "expected 1 to 143 letters",
        ),
        (
            "0.0.0.0:80",
            "0.0.0.0:0",
            "dataplane.yaml:12: policies[0].frontends[0]: ",
            "expected as 10.0.0.1:80",
        ),
        (
            "0.0.0.0:80",
            "0.0.0.0:20000",
            "dataplane.yaml:12: policies[0].frontends[0]: ",
            "one of the legs' ports",
        ),
        (
            "name: b\n",
            "name: a\n",
            "dataplane.yaml:15: policies[0].backends[1].name: ",
            "`a` is already the name of backends[0]",
        ),
        (
            "10.9.0.2:80",
            "10.9.0.1:80",
            "dataplane.yaml:16: policies[0].backends[1].endpoint: ",
            "already the endpoint of backends[0]",
        ),
        (
            "weight: 2",
            "weight: heavy",
            "dataplane.yaml:17: policies[0].backends[1].weight: ",
            "expected a whole number from 0 to 65535",
        ),
        ("weight: 2", "wieght: 2", "dataplane.yaml:17: policies[0].backends[1].wieght: ", "weight"),
        (
            "cooldown: 0us",
            "cooldown: 5",
            "dataplane.yaml:20: policies[0].migration.cooldown: ",
            "expected whole numbers with units",
        ),
        (
            "cooldown: 0us",
            "ratioPercent: 90",
            "dataplane.yaml:20: policies[0].migration.ratioPercent: ",
            "below 100",
        ),
    ];
    for (from, to, place, words) in cases {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let message = parse(&text).expect_err(to).to_string();
        assert!(message.starts_with(place), "{to}: {message}");
        assert!(message.contains(words), "{to}: {message}");
        assert!(!message.contains('\n'), "{to}: {message}");
    }
}

#[test]
fn text_that_is_no_yaml_is_refused_with_its_line() {
    for (text, line) in [("interface: [\n", 2), ("interface: eth0\n\tx: 1\n", 2)] {
        let error = parse(text).expect_err(text);
        assert!(error.line.is_some_and(|at| at <= line), "{error}");
    }
    let error = parse("").expect_err("empty");
    assert!(!error.unreadable);
}

#[test]
fn the_same_field_twice_is_refused() {
    let error = parse(&format!("{GOOD}mode: native\n")).expect_err("twice");
    assert_eq!(error.line, Some(21), "{error}");
    assert!(error.problem.contains("mode"), "{error}");
}

#[test]
fn keys_are_read_and_bad_ones_are_refused_without_showing_them() {
    let folder = Folder::new();
    let loaded = Loaded::read(&folder.file()).expect("good");
    assert_eq!(loaded.key_epochs(), [1]);
    assert!(!format!("{loaded:?}").contains("8899"));

    for mode in [0o640, 0o604, 0o620, 0o666] {
        folder.write("adoption-1.key", KEY, mode);
        let text = folder.refusal().to_string();
        assert!(text.contains(":7: keys[0].file: "), "{text}");
        assert!(text.contains("is open to others"), "{text}");
        assert!(text.contains("chmod 600"), "{text}");
    }
    folder.write("adoption-1.key", "00112233", 0o600);
    let text = folder.refusal().to_string();
    assert!(text.contains("32 hexadecimal digits"), "{text}");
    assert!(!text.contains("00112233"), "{text}");

    fs::remove_file(folder.0.join("adoption-1.key")).expect("removed");
    let error = folder.refusal();
    assert_eq!(error.field, "keys[0].file");
    assert!(error.problem.contains("cannot be read"), "{error}");
    assert!(!error.unreadable, "the configuration itself was read");

    fs::remove_file(folder.file()).expect("removed");
    assert!(folder.refusal().unreadable);
}

#[test]
fn a_change_says_what_can_be_applied_and_what_waits_for_a_restart() {
    let folder = Folder::new();
    let old = Loaded::read(&folder.file()).expect("good");
    assert!(compare(&old, &old.clone()).is_nothing());

    let text = GOOD
        .replace("level: info", "level: debug")
        .replace("weight: 2", "weight: 3")
        .replace("rx: 2048", "rx: 1024")
        .replace("interface: eth0", "interface: eth1");
    folder.write("dataplane.yaml", &text, 0o644);
    folder.write("adoption-1.key", &KEY.replace('0', "1"), 0o600);
    let mut new = Loaded::read(&folder.file()).expect("good");
    let change = compare(&old, &new);
    assert_eq!(
        change,
        Change {
            policies: true,
            keys: true,
            tls: false,
            log_level: true,
            restart: vec!["interface", "rings"],
        }
    );
    new.config.keep_fixed(&old.config);
    assert_eq!(new.config.interface, "eth0");
    assert_eq!(new.config.rings.rx, 2048);
    assert_eq!(new.config.log.level, "debug");
    assert_eq!(new.config.policies.expect("policies")[0].backends[1].weight, 3);
}

/// The dataplane's files of the page for machines without a cluster.
#[test]
fn the_pages_examples_are_good() {
    let folder = Folder::new();
    folder.write("epoch-1", KEY, 0o400);
    folder.write("current", "1", 0o400);
    let page = include_str!("../../../docs/machines.md");
    let examples = page.split("```yaml\n").skip(1);
    let examples = examples.filter(|example| example.starts_with("# dataplane.yaml"));
    let all: Vec<Config> = examples
        .filter_map(|rest| rest.split("```").next())
        .map(|example| {
            let keys = folder.path("").display().to_string();
            let example = example.replace("/var/lib/baton/baton-adoption-keys", &keys);
            Config::parse(&folder.file(), &example).expect(&example)
        })
        .collect();
    let policies = all.iter().map(|config| config.policies.as_ref().map(Vec::len));
    assert_eq!(policies.collect::<Vec<_>>(), [Some(1), None]);
}
