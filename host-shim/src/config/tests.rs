//! Whole configurations, the least one, and each refusal with its line, field and words.

use super::*;
use crate::certificates::Authority;
use std::os::unix::fs::PermissionsExt;

/// A directory of key files, removed on drop.
struct Keys(PathBuf);

impl Keys {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("bt-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let keys = Self(dir);
        keys.write("good", "000102030405060708090a0b0c0d0e0f\n", 0o600);
        keys.write("other", &"ab".repeat(16), 0o400);
        keys.write("open", &"ab".repeat(16), 0o644);
        keys.write("short", "abc", 0o600);
        keys
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        let path = self.0.join(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, text).expect("a key file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("permissions");
    }

    fn parse(&self, text: &str) -> Result<Config, ConfigError> {
        let text = text.replace("DIR", &self.0.display().to_string());
        Config::parse(Path::new("shim.yaml"), &text)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn configured(config: &Config) -> &[EpochKey] {
    match &config.keys {
        super::Keys::Configured(keys) => keys,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_whole_configuration() {
    let keys = Keys::new("whole");
    let config = keys
        .parse(
            "keys:\n  - {epoch: 1, file: DIR/good}\n  - {epoch: 2, file: DIR/other}\npods:\n  \
             - {name: ns/pod-a, netns: {name: bt-pod-a}, interface: eth0}\n  \
             - {name: b, netns: {path: /run/x}, interface: eth0}\n  - {name: c, netns: {pid: 7}, interface: eth0}\n\
             control: 127.0.0.1:9901\nlog: {format: json, level: 'info,host_shim=debug'}\npin: /run/pins\n\
             transfers: {port: 17464}\n",
        )
        .expect("a good configuration");
    let found = configured(&config);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].key, Key(std::array::from_fn(|i| i as u8)));
    let netns: Vec<_> = config.pods.iter().map(|p| p.netns.clone()).collect();
    assert_eq!(
        netns,
        [Netns::Name("bt-pod-a".into()), Netns::Path("/run/x".into()), Netns::Pid(7)]
    );
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.log.level.filter().to_string(), "host_shim=debug,info");
    assert_eq!(config.pin, Path::new("/run/pins"));
    assert_eq!(config.transfers_port, 17_464);
}

#[test]
fn the_least_configuration() {
    let keys = Keys::new("least");
    let config = keys.parse("keys: [{epoch: 0, file: DIR/good}]").expect("a good configuration");
    assert_eq!(config.pods, []);
    assert_eq!(config.control, None);
    assert_eq!(config.log, Log::default());
    assert_eq!(config.pin, Path::new(DEFAULT_PIN_DIR));
}

#[test]
fn refusals_name_line_field_and_what_was_expected() {
    let keys = Keys::new("refusals");
    let good = "keys: [{epoch: 1, file: DIR/good}]\n";
    let with = |rest: &str| format!("{good}{rest}");
    // Text, then what the message must begin with and what it must contain.
    let cases = [
        ("keys: []\n".into(), "shim.yaml:1:1: keys: ", "one or two"),
        ("keys: 5\n".into(), "shim.yaml:1:1: keys: ", "one or two"),
        ("keys:\n  - {epoch: x, file: y}\n".into(), "shim.yaml:2:13: keys[0].epoch: ", "0 to 255"),
        (
            "keys:\n  - {epoch: 256, file: y}\n".into(),
            "shim.yaml:2:13: keys[0].epoch: ",
            "0 to 255",
        ),
        ("keys:\n  - {epoch: 1}\n".into(), "shim.yaml:2:", "missing field `file`"),
        (
            "keys:\n  - {epoch: 1, fil: y}\n".into(),
            "shim.yaml:2:16: keys[0].fil: ",
            "expected one of epoch, file",
        ),
        (
            "keys:\n  - {epoch: 1, file: DIR/none}\n".into(),
            "shim.yaml:2:16: keys[0].file: cannot read ",
            "No such file",
        ),
        (
            "keys:\n  - {epoch: 1, file: DIR/open}\n".into(),
            "shim.yaml:2:16: keys[0].file: ",
            "mode 0644, so that others can read the key: run `chmod 600",
        ),
        (
            "keys:\n  - {epoch: 1, file: DIR/short}\n".into(),
            "shim.yaml:2:16: keys[0].file: ",
            "32 hexadecimal digits",
        ),
        (
            "keys:\n  - {epoch: 1, file: DIR/good}\n  - {epoch: 17, file: DIR/other}\n".into(),
            "shim.yaml:3:6: keys[1].epoch: ",
            "modulo 16",
        ),
        (
            "keys: {directory: DIR/none}\n".into(),
            "shim.yaml:1:8: keys.directory: the key directory ",
            "none cannot be read",
        ),
        ("keys: {folder: x}\n".into(), "shim.yaml:1:", "unknown field `folder`"),
        (with("probes: x\n"), "shim.yaml:2:1: probes: ", "127.0.0.1:9901"),
        (
            with("controlTls: {listen: '1.2.3.4:1', certificate: a, key: b}\n"),
            "shim.yaml:2:",
            "missing field `clientAuthority`",
        ),
        (
            with(
                "controlTls: {listen: '1.2.3.4:1', certificate: none, key: b, clientAuthority: c}\n",
            ),
            "shim.yaml:2:35: controlTls.certificate: the certificate none cannot be read",
            "expected the path of a file with certificates",
        ),
        ("keys: [\n".into(), "shim.yaml:1:", "unclosed bracket"),
        (String::new(), "shim.yaml: keys: there are none", "no operator can send them"),
        (with("control: nowhere\n"), "shim.yaml:2:1: control: ", "127.0.0.1:9901"),
        (
            with("log: {level: loud}\n"),
            "shim.yaml:2:14: log.level: ",
            "`loud` is not a level; expected off, error, warn",
        ),
        (
            with("log: {format: xml}\n"),
            "shim.yaml:2:15: log.format: ",
            "expected one of text, json",
        ),
        (with("pin: here\n"), "shim.yaml:2:1: pin: ", "absolute path"),
        (
            with("transfers: {port: 70000}\n"),
            "shim.yaml:2:19: transfers.port: ",
            "or 0: connections move within the node only",
        ),
        (
            with("pod: []\n"),
            "shim.yaml:2:1: pod: unknown field `pod`",
            "expected one of keys, node, pods",
        ),
        (
            with("pods:\n  - {name: a b, netns: {pid: 1}, interface: eth0}\n"),
            "shim.yaml:3:6: pods[0].name: ",
            "a name of letters",
        ),
        (
            with("pods:\n  - {name: a, netns: {pid: 0}, interface: eth0}\n"),
            "shim.yaml:3:23: pods[0].netns.pid: ",
            "number of a process",
        ),
        (
            with("pods:\n  - {name: a, netns: {nam: x}, interface: eth0}\n"),
            "shim.yaml:3:",
            "unknown variant `nam`, expected one of name, path, pid",
        ),
        (
            with("pods:\n  - {name: a, netns: {path: x}, interface: eth0}\n"),
            "shim.yaml:3:23: pods[0].netns.path: ",
            "absolute",
        ),
        (
            with("pods:\n  - {name: a, netns: {name: ../x}, interface: eth0}\n"),
            "shim.yaml:3:23: pods[0].netns.name: ",
            "/run/netns",
        ),
        (
            with("pods:\n  - {name: a, netns: {pid: 1}, interface: abcdefghijklmnop}\n"),
            "shim.yaml:3:32: pods[0].interface: ",
            "1 to 15",
        ),
        (
            with(
                "pods:\n  - {name: a, netns: {pid: 1}, interface: e}\n  - {name: a, netns: {pid: 2}, interface: e}\n",
            ),
            "shim.yaml:4:6: pods[1].name: ",
            "already the name of pods[0]",
        ),
        (
            with(
                "pods:\n  - {name: a, netns: {pid: 1}, interface: e}\n  - {name: b, netns: {pid: 1}, interface: e}\n",
            ),
            "shim.yaml:4:32: pods[1].interface: ",
            "same namespace and interface",
        ),
    ];
    for (text, begin, contains) in cases {
        let message = keys.parse(&text).expect_err(&text).to_string();
        assert!(message.starts_with(begin), "{text}\n{message}");
        assert!(message.contains(contains), "{text}\n{message}");
    }
}

#[test]
fn a_folder_of_keys_gives_the_one_to_sign_with_first() {
    let keys = Keys::new("folder");
    fs::create_dir(keys.0.join("epochs")).expect("a directory");
    keys.write("epochs/epoch-7", &"07".repeat(16), 0o600);
    keys.write("epochs/epoch-18", &"12".repeat(16), 0o400);
    keys.write("epochs/current", "18\n", 0o644);
    let config = || keys.parse("keys: {directory: DIR/epochs}\n");
    let good = config().expect("good");
    let epochs: Vec<u8> = configured(&good).iter().map(|k| k.epoch).collect();
    assert_eq!(epochs, [18, 7]);
    assert_eq!(configured(&good)[0].key, Key([0x12; 16]));
    for file in ["epochs/epoch-7", "epochs/epoch-18", "epochs/current"] {
        assert!(good.files.contains(&keys.0.join(file)), "{file}");
    }
    keys.write("epochs/epoch-18", &"12".repeat(16), 0o644);
    let refusal = config().expect_err("open to others").to_string();
    assert!(refusal.starts_with("shim.yaml:1:8: keys.directory: "), "{refusal}");
    assert!(refusal.contains("epoch-18 has mode 0644"), "{refusal}");
}

#[test]
fn without_keys_the_operator_sends_those_of_this_node() {
    let keys = Keys::new("operator");
    let refusal = keys.parse("node: n-1\n").expect_err("nobody can send them");
    let words = refusal.to_string();
    assert!(words.contains("keys: there are none"), "{words}");
    assert!(words.contains("the operator sends them by controlTls"), "{words}");

    let authority = Authority::new();
    let pair = authority.pair(Name::Shim);
    keys.write("tls.crt", &pair.certificate, 0o644);
    keys.write("tls.key", &pair.key, 0o600);
    keys.write("ca.crt", &authority.pem, 0o644);
    let tls = "controlTls: {listen: '127.0.0.1:9901', certificate: DIR/tls.crt, key: DIR/tls.key, clientAuthority: DIR/ca.crt}\n";
    let of = |more: &str| keys.parse(&format!("{tls}{more}"));
    for (more, expected) in [
        ("node: n-1\n", "n-1"),
        ("discovery: {node: n-2}\n", "n-2"),
        ("node: n-1\ndiscovery: {node: n-2}\n", "n-1"),
    ] {
        let node = expected.to_owned();
        let config = of(more).expect(more);
        assert_eq!(config.keys, super::Keys::Operator { node }, "{more}");
    }
    let words = of("node: n/1\n").expect_err("no name").to_string();
    assert!(words.contains("node: it is not known which node this is"), "{words}");
}

/// The shim's files of the page for machines without a cluster.
#[test]
fn the_pages_examples_are_good() {
    let keys = Keys::new("pages");
    keys.write("adoption-1.key", &"ab".repeat(16), 0o600);
    let authority = Authority::new();
    let pair = authority.pair(Name::Shim);
    keys.write("tls.crt", &pair.certificate, 0o644);
    keys.write("tls.key", &pair.key, 0o600);
    keys.write("ca.crt", &authority.pem, 0o644);
    let page = include_str!("../../../docs/machines.md");
    let examples = page.split("```yaml\n").skip(1);
    let examples = examples.filter(|example| example.starts_with("# shim.yaml"));
    let all: Vec<Config> = examples
        .filter_map(|rest| rest.split("```").next())
        .map(|example| {
            let example = example
                .replace("adoption-1.key", "DIR/adoption-1.key")
                .replace("/var/lib/baton/baton-shim-tls", "DIR");
            keys.parse(&example).expect(&example)
        })
        .collect();
    let node = "machine-1".to_owned();
    assert_eq!(all[1].keys, super::Keys::Operator { node });
    assert_eq!(all.len(), 2);
}
