//! Pods that the API server tells of, found by their processes.

use crate::daemon::{
    Files,
    cluster::{Cluster, pod},
    common::{Lab, wait_for},
};
use serde_json::{Value, json};

const UID: &str = "1f0c2d3e-4a5b-6c7d-8e9f-a0b1c2d3e4f5";

fn running() -> Value {
    json!({"phase": "Running", "podIPs": [{"ip": "10.7.0.1"}]})
}

/// Without a process that lives as long as the Pod (CRI-O keeps none) another one stands for the
/// namespace once a container was started again: what is to be done in it goes by that.
#[test]
fn a_pod_whose_container_starts_again_is_found_by_its_new_process() {
    let (lab, files) = (Lab::new(), Files::new());
    let cluster = Cluster::new(&files, &[pod("shop", "web", UID, &running())]);
    let first = cluster.run(&lab, UID);
    let daemon = cluster.start(&files);
    let found_by = |process: &str| {
        let pods = daemon.state()["pods"].clone();
        pods[0]["attached"] == true && pods[0]["netns"] == process
    };
    wait_for("it is found", || found_by(&first.netns()));
    cluster.end(first);
    let second = cluster.run(&lab, UID);
    wait_for("it is found again", || found_by(&second.netns()));
}

/// Of a static Pod an annotation says what its control groups are named after, and everybody writes
/// annotations.
#[test]
fn a_pod_that_says_it_is_another_one_gets_nothing_of_it() {
    let (lab, files) = (Lab::new(), Files::new());
    let other = "2f0c2d3e-4a5b-6c7d-8e9f-a0b1c2d3e4f5";
    // Before it has an address, with which its network namespace could be told from others.
    let mut thief = pod("thief", "web", other, &json!({"phase": "Pending"}));
    thief["metadata"]["annotations"] =
        json!({"kubernetes.io/config.hash": UID, "kubernetes.io/config.mirror": UID});
    let pods = [pod("shop", "web", UID, &running()), thief];
    let cluster = Cluster::new(&files, &pods);
    let _process = cluster.run(&lab, UID);
    let daemon = cluster.start(&files);
    wait_for("the Pod has it", || daemon.state()["pods"][0]["attached"] == true);
    // Both were looked at in one turn.
    let pods = daemon.state()["pods"].clone();
    assert_eq!(pods[1]["name"], "thief/web", "{pods}");
    assert_eq!(pods[1]["attached"], false, "{pods}");
}

/// An alert that stays on for as long as they are there would be turned off.
#[test]
fn pods_that_start_or_never_have_it_are_no_failure() {
    let files = Files::new();
    let other = "2f0c2d3e-4a5b-6c7d-8e9f-a0b1c2d3e4f5";
    let mut of_node = pod("shop", "agent", UID, &running());
    of_node["spec"]["hostNetwork"] = true.into();
    let waits = pod("shop", "web", other, &json!({"phase": "Pending"}));
    let cluster = Cluster::new(&files, &[of_node, waits]);
    let daemon = cluster.start(&files);
    wait_for("both were looked at", || {
        let pods = daemon.state()["pods"].clone();
        pods[0]["attempts"].is_u64() && pods[1]["attempts"].is_u64()
    });
    let (_, metrics) = daemon.get("/metrics");
    for line in ["{state=\"failed\"} 0", "{state=\"unfit\"} 2"] {
        let line = format!("baton_shim_pods{line}");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
}
