//! The daemon on real namespaces: attaching, reloading, leaving, and being replaced without a gap.

use crate::daemon::common::{
    Lab, ends,
    segment::{Message, NAMESPACE, PSH_ACK, RST, Segment, timestamps},
    wait_for,
};
use crate::daemon::{
    ADOPTER_IS_THERE, Daemon, Files, KEY, ONE_KEY, OTHER_KEY, answer, common, free_address, probe,
};
use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
};

const SEQ: u32 = 1_000;
const ACKED: u32 = 2_000;

fn config(lab: &Lab, control: SocketAddr, keys: &str) -> String {
    format!(
        "keys: [{keys}]\npods:\n  - {{name: pod-a, netns: {{name: {}}}, interface: eth0}}\ncontrol: {control}\npin: PINS\n",
        lab.netns_name()
    )
}

const TWO_KEYS: &str = "{epoch: 1, file: KEY}, {epoch: 2, file: OTHER_KEY}";

#[test]
fn it_attaches_serves_and_leaves_nothing() {
    let (lab, files, control) = (Lab::new(), Files::new(), free_address());
    files.config(&config(&lab, control, ONE_KEY));
    let daemon = Daemon::start(&files, control, &[]);
    assert_eq!(probe(&lab, 1, &KEY), ADOPTER_IS_THERE);
    assert_eq!(daemon.get("/healthz"), (200, "ok\n".into()));
    assert_eq!(daemon.get("/readyz"), (200, "1 of 1 pods have the adopter\n".into()));
    assert_eq!(daemon.get("/nothing").0, 404);
    assert_eq!(daemon.request("PUT", "/v1/state").0, 405);
    let state = daemon.state();
    assert_eq!(state["keyEpochs"], serde_json::json!([1]));
    let pod = &state["pods"][0];
    assert_eq!((&pod["attached"], &pod["hook"]), (&true.into(), &"tcx".into()));
    assert_eq!(pod["adoptionSegments"]["no_listener"], 1);
    let (_, metrics) = daemon.get("/metrics");
    for line in [
        "baton_shim_adoption_segments_total{outcome=\"no_listener\"} 1",
        "baton_shim_adoption_segments_total{outcome=\"adopted\"} 0",
        "baton_shim_pods{state=\"attached\"} 1",
        "baton_shim_key_epochs 1",
        "baton_shim_build_info{kernel=",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    for secret in [crate::daemon::KEY_HEX, "abababab"] {
        assert!(!daemon.log().contains(secret) && !state.to_string().contains(secret));
    }
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    assert_eq!(probe(&lab, 1, &KEY), None);
    let left = std::fs::read_dir(&files.pins.0).expect("the pin directory");
    let left: Vec<_> = left
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.ends_with(".debug"))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn sigint_detaches_too() {
    let (lab, files, control) = (Lab::new(), Files::new(), free_address());
    files.config(&config(&lab, control, ONE_KEY));
    let daemon = Daemon::start(&files, control, &[]);
    assert_eq!(probe(&lab, 1, &KEY), ADOPTER_IS_THERE);
    daemon.signal("INT");
    assert!(daemon.wait().success());
    assert_eq!(probe(&lab, 1, &KEY), None);
}

#[test]
fn keys_are_rotated_by_changing_the_file() {
    let (lab, files, control) = (Lab::new(), Files::new(), free_address());
    files.config(&config(&lab, control, ONE_KEY));
    let daemon = Daemon::start(&files, control, &[]);
    let epochs = |expected: serde_json::Value| {
        wait_for("the epochs change", || daemon.state()["keyEpochs"] == expected);
    };
    assert_eq!(probe(&lab, 2, &OTHER_KEY), None);
    files.config(&config(&lab, control, TWO_KEYS));
    epochs(serde_json::json!([1, 2]));
    assert_eq!(probe(&lab, 1, &KEY), ADOPTER_IS_THERE);
    assert_eq!(probe(&lab, 2, &OTHER_KEY), ADOPTER_IS_THERE);
    files.config(&config(&lab, control, "{epoch: 2, file: OTHER_KEY}"));
    epochs(serde_json::json!([2]));
    assert_eq!(probe(&lab, 1, &KEY), None);
    assert_eq!(probe(&lab, 2, &OTHER_KEY), ADOPTER_IS_THERE);
    // A key file that changes under the same name counts as well.
    files.write("other-key", crate::daemon::KEY_HEX, 0o600);
    wait_for("the new key is live", || probe(&lab, 2, &KEY) == ADOPTER_IS_THERE);
    assert_eq!(probe(&lab, 2, &OTHER_KEY), None);
    assert_eq!(daemon.state()["configRefusals"], 0);
}

#[test]
fn a_bad_configuration_is_refused_and_the_last_good_one_stays() {
    let (lab, files, control) = (Lab::new(), Files::new(), free_address());
    files.config(&config(&lab, control, ONE_KEY));
    let daemon = Daemon::start(&files, control, &[]);
    files.config("keys:\n  - {epoch: many, file: KEY}\n");
    // The kernel tells of one change of a file in several events, which may come apart: each is a
    // refusal.
    wait_for("the refusal is counted", || daemon.state()["configRefusals"].as_u64() >= Some(1));
    let refusal = format!("{}:2:13: keys[0].epoch: ", files.path("shim.yaml"));
    wait_for("the refusal is logged", || daemon.log().contains(&refusal));
    assert_eq!(probe(&lab, 1, &KEY), ADOPTER_IS_THERE);
    assert_eq!(daemon.get("/readyz").0, 200);
    // SIGHUP reads again, also where files are not watched.
    daemon.signal("HUP");
    wait_for("SIGHUP reads again", || daemon.log().contains("because=\"SIGHUP\""));
    files.config(&config(&lab, control, TWO_KEYS));
    wait_for("a good one is taken", || daemon.state()["configReloads"] == 1);
}

#[test]
fn a_pod_that_fails_is_reported_and_tried_again_and_stops_no_other() {
    let (lab, files, control) = (Lab::new(), Files::new(), free_address());
    let late = format!("{}-late", common::unique());
    let netns = lab.netns_name();
    files.config(&format!(
        "{}  - {{name: late, netns: {{name: {netns}}}, interface: eth9}}\n  - {{name: none, netns: {{name: {late}}}, interface: eth0}}\n",
        config(&lab, control, ONE_KEY).replace("control", "CONTROL").split("CONTROL").next().expect("pods first")
    ).replace("keys:", &format!("control: {control}\npin: PINS\nkeys:")));
    let daemon = Daemon::start(&files, control, &[]);
    assert_eq!(probe(&lab, 1, &KEY), ADOPTER_IS_THERE);
    let state = daemon.state();
    let pods = &state["pods"];
    assert_eq!(pods[0]["attached"], true);
    assert_eq!(pods[1]["attached"], false);
    let reason = pods[1]["reason"].as_str().expect("a reason");
    assert!(reason.contains("no interface `eth9`; it has: lo, eth0"), "{reason}");
    let reason = pods[2]["reason"].as_str().expect("a reason");
    assert!(reason.contains(&late) && reason.contains("is the pod running?"), "{reason}");
    let (_, metrics) = daemon.get("/metrics");
    assert!(metrics.contains("baton_shim_pods{state=\"failed\"} 2"), "{metrics}");

    common::run(&format!("ip -n {netns} link add eth9 type veth peer name other9"));
    wait_for("the interface gets its adopter", || daemon.state()["pods"][1]["attached"] == true);
    // A pod whose interface is made anew under the same name gets its adopter again.
    common::run(&format!("ip -n {netns} link del eth9"));
    wait_for("the loss is noticed", || daemon.state()["pods"][1]["attached"] == false);
    common::run(&format!("ip -n {netns} link add eth9 type veth peer name other9"));
    wait_for("it is attached again", || daemon.state()["pods"][1]["attached"] == true);
}

#[test]
fn a_namespace_made_anew_under_the_same_name_gets_its_adopter() {
    let (files, control) = (Files::new(), free_address());
    let name = format!("{}-anew", common::unique());
    // Held by a process, so that the old one lives on without its name.
    let mut holders = Vec::new();
    let mut make = || {
        common::run(&format!("ip netns add {name}"));
        common::run(&format!("ip -n {name} link add eth0 type veth peer name other"));
        let holder = std::process::Command::new("ip")
            .args(["netns", "exec", &name, "sleep", "60"])
            .spawn()
            .expect("a process in the namespace");
        holders.push(holder);
    };
    make();
    files.config(&format!(
        "keys: [{ONE_KEY}]\npods:\n  - {{name: a, netns: {{name: {name}}}, interface: eth0}}\n\
         control: {control}\npin: PINS\n"
    ));
    let daemon = Daemon::start(&files, control, &[]);
    let pin = || -> Vec<String> {
        std::fs::read_dir(&files.pins.0)
            .expect("the pin directory")
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("tcx-"))
            .collect()
    };
    let first = pin();
    assert_eq!(first.len(), 1);
    common::run(&format!("ip netns del {name}"));
    wait_for("the loss is noticed", || daemon.state()["pods"][0]["attached"] == false);
    assert_eq!(pin(), [""; 0]);
    make();
    wait_for("it is attached again", || daemon.state()["pods"][0]["attached"] == true);
    assert_ne!(pin(), first);
    for holder in &mut holders {
        holder.kill().expect("kill");
        holder.wait().expect("wait");
    }
    common::run(&format!("ip netns del {name}"));
}

#[test]
fn pods_come_and_go_with_the_configuration() {
    let (one, two) = (Lab::new(), Lab::new());
    let (files, control) = (Files::new(), free_address());
    files.config(&config(&one, control, ONE_KEY));
    let daemon = Daemon::start(&files, control, &[]);
    assert_eq!(probe(&one, 1, &KEY), ADOPTER_IS_THERE);
    assert_eq!(probe(&two, 1, &KEY), None);
    files.config(&config(&two, control, ONE_KEY));
    wait_for("the other pod gets it", || probe(&two, 1, &KEY) == ADOPTER_IS_THERE);
    assert_eq!(probe(&one, 1, &KEY), None);
    assert_eq!(daemon.state()["pods"].as_array().expect("a list").len(), 1);
}

/// Adopts on and on, each adoption followed by data, until told to stop; every single one must be
/// accepted. Ports are used again after 1,000 adoptions: a closed connection with an unread byte
/// leaves nothing.
fn adopt_without_end(lab: &Lab, stop: &AtomicBool) -> u32 {
    let (pod, _) = ends(false, 8080, 0);
    let listener = lab.listen(pod);
    let mut adopted: u32 = 0;
    while !stop.load(Ordering::Relaxed) {
        let port = 10_000 + u16::try_from(adopted % 1_000).expect("below 1,000");
        let (_, ours) = ends(false, 8080, port);
        let message = Message::adopt();
        // A fresh place in the stream for each round of ports.
        let seq = SEQ.wrapping_add(10 * adopted);
        lab.send(&message.segment(ours, pod, seq, ACKED, &KEY));
        lab.send(&Segment {
            from: ours,
            to: pod,
            seq,
            ack: ACKED,
            flags: PSH_ACK,
            window: 500,
            options: timestamps(message.tsval, message.tsecr),
            payload: vec![1],
        });
        let reply = lab.receive(ours).expect("a reply").segment;
        assert_eq!(
            (reply.flags & RST, reply.ack),
            (0, seq.wrapping_add(1)),
            "adoption {adopted} failed: {reply:?}"
        );
        drop(listener.accept().expect("accept"));
        adopted += 1;
    }
    adopted
}

/// Ends the client of a test however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn replaced_without_a_gap(end: impl Fn(Daemon), arguments: &[&str]) {
    let (lab, files, control) = (Lab::new(), Files::new(), free_address());
    files.config(&config(&lab, control, ONE_KEY));
    let first = Daemon::start(&files, control, arguments);
    let told = answer(&lab, 1, &KEY).expect("the adopter answers");
    NAMESPACE.store(told.namespace, Ordering::Relaxed);
    let stop = AtomicBool::new(false);
    let (adopted, last) = std::thread::scope(|scope| {
        let client = scope.spawn(|| adopt_without_end(&lab, &stop));
        let stopped = Stop(&stop);
        let mut daemon = first;
        for _ in 0..3 {
            let before = daemon.state()["adoptionSegments"]["adopted"].as_u64();
            wait_for("adoptions go on", || {
                daemon.state()["adoptionSegments"]["adopted"].as_u64() > before
            });
            end(daemon);
            daemon = Daemon::start(&files, control, arguments);
            assert!(daemon.log().contains("taken_over=true"), "{}", daemon.log());
        }
        drop(stopped);
        (client.join().expect("no adoption failed"), daemon)
    });
    // The counters went from one to the next.
    let state = last.state();
    assert_eq!(state["adoptionSegments"]["adopted"], adopted);
    assert_eq!(state["pods"][0]["adoptionSegments"]["adopted"], adopted);
}

#[test]
fn an_upgrade_leaves_no_gap() {
    replaced_without_a_gap(
        |daemon| {
            daemon.signal("TERM");
            assert!(daemon.wait().success());
        },
        &["--keep-on-exit"],
    );
}

#[test]
fn a_sigkill_leaves_no_gap() {
    replaced_without_a_gap(
        |daemon| {
            daemon.signal("KILL");
            assert!(!daemon.wait().success());
        },
        &[],
    );
}

#[test]
fn a_successor_removes_what_it_does_not_want() {
    let (one, two) = (Lab::new(), Lab::new());
    let (files, control) = (Files::new(), free_address());
    files.config(&config(&one, control, TWO_KEYS));
    let first = Daemon::start(&files, control, &[]);
    first.signal("KILL");
    first.wait();
    assert_eq!(probe(&one, 1, &KEY), ADOPTER_IS_THERE);
    files.config(&config(&two, control, "{epoch: 2, file: OTHER_KEY}"));
    let _second = Daemon::start(&files, control, &[]);
    assert_eq!(probe(&one, 2, &OTHER_KEY), None);
    assert_eq!(probe(&two, 2, &OTHER_KEY), ADOPTER_IS_THERE);
    assert_eq!(probe(&two, 1, &KEY), None);
}

#[test]
fn a_second_shim_is_told_of_the_first() {
    let (lab, files, control) = (Lab::new(), Files::new(), free_address());
    files.config(&config(&lab, control, ONE_KEY));
    let _first = Daemon::start(&files, control, &[]);
    files.config(&config(&lab, free_address(), ONE_KEY));
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_host-shim"))
        .args(["run", "--config", &files.path("shim.yaml")])
        .output()
        .expect("run");
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("in use by another host-shim"), "{said}");
    // The refusal harmed nothing.
    assert_eq!(probe(&lab, 1, &KEY), ADOPTER_IS_THERE);
}

#[test]
fn json_logs_are_json() {
    let (lab, files, control) = (Lab::new(), Files::new(), free_address());
    files.config(&format!("{}log: {{format: json}}\n", config(&lab, control, ONE_KEY)));
    let daemon = Daemon::start(&files, control, &[]);
    let log = daemon.log();
    assert!(log.lines().count() >= 2, "{log}");
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        assert!(line["message"].is_string() && line["level"].is_string(), "{line}");
    }
}

#[test]
fn the_level_of_the_log_changes_while_it_runs() {
    let (lab, files, control) = (Lab::new(), Files::new(), free_address());
    let good = config(&lab, control, ONE_KEY);
    files.config(&good);
    let daemon = Daemon::start(&files, control, &[]);
    let reloads = |result: &str, count: u32| {
        let line = format!("baton_shim_config_reloads_total{{result=\"{result}\"}} {count}");
        wait_for(&line, || daemon.get("/metrics").1.lines().any(|l| l == line));
    };
    files.config(&format!("{good}log: {{level: off}}\n"));
    reloads("good", 1);
    files.config(&format!("{good}log: {{level: loud}}\n"));
    reloads("refused", 1);
    let log = daemon.log();
    assert!(!log.contains("read again") && !log.contains("refused"), "{log}");
    // Of each module its own.
    files.config(&format!("{good}log: {{level: 'error,host_shim=info'}}\n"));
    wait_for("a line", || daemon.log().contains("the configuration was read again"));
}
