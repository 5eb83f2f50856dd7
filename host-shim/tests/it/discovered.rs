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
    wait_for("the Pod has it", || {
        daemon.state()["pods"][0]["attached"] == true
    });
    // Both were looked at in one turn.
    let pods = daemon.state()["pods"].clone();
    assert_eq!(pods[1]["name"], "thief/web", "{pods}");
    assert_eq!(pods[1]["attached"], false, "{pods}");
}
