//! What is left of pods that ended while no host-shim ran.

use crate::daemon::{
    Daemon, Files, KEY, ONE_KEY,
    common::{
        INTERFACE, Lab, ends,
        segment::{Message, NAMESPACE, Segment, block},
        wait_for,
    },
    free_address,
};
use baton_adopter::{Adopter, AttachmentId};
use std::sync::atomic::Ordering;

/// As a predecessor leaves it whose pod ends, with a connection that shows its client: its pin and
/// its number keep the connection's leg in a table of all pods.
fn a_pod_that_ended(files: &Files) -> AttachmentId {
    let lab = Lab::new();
    let (pod, ours) = ends(false, 8080, 40_000);
    let listener = lab.listen(pod);
    let adopter = Adopter::load(Some(&files.pins.0)).expect("load");
    adopter.set_key(1, &KEY).expect("set a key");
    let attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
    lab.learn_number(&adopter);
    let adoption = Message::adopt().segment(ours, pod, 1_000, 2_000, &KEY);
    let client = "203.0.113.9:51000".parse().expect("an address");
    let number = NAMESPACE.load(Ordering::Relaxed);
    let payload = block(&adoption, client, number, 1, &KEY);
    lab.send(&Segment { payload, ..adoption });
    let id = attachment.id();
    wait_for("its client is known", || adopter.legs().expect("legs").contains_key(&id.netns));
    drop((listener, lab));
    wait_for("its namespace is gone", || !attachment.alive());
    id
}

#[test]
fn legs_of_a_pod_that_is_gone_keep_nothing() {
    let files = Files::new();
    let gone = a_pod_that_ended(&files);
    let pin = files.pins.0.join(gone.to_string());
    assert!(pin.exists());
    let (lab, control) = (Lab::new(), free_address());
    files.config(&format!(
        "keys: [{ONE_KEY}]\npods:\n  - {{name: pod-a, netns: {{name: {}}}, interface: eth0}}\ncontrol: {control}\npin: PINS\n",
        lab.netns_name()
    ));
    let daemon = Daemon::start(&files, control, &[]);
    assert_eq!(daemon.state()["pods"][0]["attached"], true);
    assert!(!pin.exists(), "{}", daemon.log());
}
