//! Connections move between pods of two nodes, each with a host-shim of its own; what does not move
//! stays, and is counted by why.

use super::{
    app::{App, connection, goes_on},
    downloads,
    scene::{FAR_PORT, LONG, PORT, Scene},
    uploads,
};
use crate::daemon::common::wait_for;
use baton_packet::{Destination, Reason};
use baton_sdk::wire::{Message, STATE_BYTES_MAX};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
};

const NODES: [(&str, &str); 2] = [("shop/a", "KEY"), ("shop/b", "KEY")];

#[test]
fn a_download_moves_between_nodes_in_the_middle() {
    let scene = Scene::between(NODES);
    downloads(&scene, &format!("0.0.0.0:{PORT}"), false, super::FILE_BYTES, super::MOVES);
    let half = super::MOVES as u64 / 2;
    assert_eq!((scene.received(0, "taken"), scene.received(1, "taken")), (half, half));
}

#[test]
fn a_download_over_ipv6_moves_between_nodes() {
    let scene = Scene::between(NODES);
    downloads(&scene, &format!("[::]:{PORT}"), true, super::FILE_BYTES / 16, 3);
}

#[test]
fn the_rest_for_a_client_that_has_closed_its_direction_moves_between_nodes() {
    let scene = Scene::between(NODES);
    super::last_download(&scene, &format!("0.0.0.0:{PORT}"), false);
}

#[test]
fn an_upload_moves_between_nodes_in_the_middle() {
    uploads(&Scene::between(NODES));
}

/// A Transfer from the first pod to the second one, whose applications do as `meanwhile` does.
fn asks(scene: &Scene, client: &TcpStream, seq: u32, meanwhile: impl FnOnce() + Send) -> Reason {
    thread::scope(|threads| {
        let asking = threads.spawn(|| scene.transfer(client, 0, seq).reason);
        meanwhile();
        asking.join().expect("it is answered")
    })
}

fn kept(scene: &Scene, client: &TcpStream, seq: u32, why: &str, meanwhile: impl FnOnce() + Send) {
    // Of the first pod's node: the other one may be gone.
    let ended = |how: &str| {
        let line = format!("baton_shim_transfers_total{{result=\"{how}\"}}");
        scene.figure_of(0, &line)
    };
    let before = ended(why);
    let told = asks(scene, client, seq, meanwhile);
    assert_eq!(told, Reason::Kept, "{why}: {}", scene.daemon.log());
    assert_eq!(ended(why), before + 1.0, "{why}: {}", scene.daemon.log());
    assert_eq!(ended("moved"), 0.0);
}

/// A listener in the second pod, without which a probe is told nothing of its application.
pub fn listens(scene: &Scene) -> TcpListener {
    let at = format!("0.0.0.0:{PORT}");
    let listener = scene.pods[1].within(|| TcpListener::bind(at));
    listener.expect("enter the pod").expect("the port is free")
}

#[test]
fn what_cannot_go_to_another_node_stays_and_goes_on() {
    let scene = Scene::between(NODES);
    let (_listener, client, server) = connection(&scene);
    kept(&scene, &client, 1, "no_application", || {});
    let a = App::new(&scene, 0);
    wait_for("the first pod is reached from other nodes", || scene.probe(0).1.between_nodes);
    // Nobody listens there.
    kept(&scene, &client, 2, "unreached", || {
        let id = a.wanted();
        assert!(a.back().contains("transfers.port"));
        a.say(&Message::NotMine { id });
    });
    goes_on(&client, &server);

    let b = App::new(&scene, 1);
    kept(&scene, &client, 3, "not_taken", || {
        let (id, state) = (a.wanted(), vec![7; STATE_BYTES_MAX]);
        a.give(&Message::Out { id, state }, &server);
        match b.hear() {
            Message::Offer { id, local, state, .. } => {
                assert_eq!(local.to_string(), "10.9.0.3:80");
                assert_eq!(state, [7; STATE_BYTES_MAX]);
                let reason = "busy".to_owned();
                b.say(&Message::Refuse { id, reason });
            }
            other => panic!("{other:?}"),
        }
        a.back();
    });
    assert_eq!(scene.received(1, "declined"), 1);
    // It does not answer in time, and is told.
    kept(&scene, &client, 4, "lease_over", || {
        let id = a.wanted();
        a.give(&Message::Out { id, state: vec![] }, &server);
        b.offered();
        a.back();
        b.back();
    });
    // Its answer comes too late.
    b.take(&scene, 0);
    b.back();
    // The host-shim there is killed while the application thinks.
    kept(&scene, &client, 5, "unreached", || {
        let id = a.wanted();
        a.give(&Message::Out { id, state: vec![] }, &server);
        b.offered();
        scene.daemon_of(1).signal("KILL");
        a.back();
    });
    goes_on(&client, &server);
}

#[test]
fn pods_of_two_namespaces_of_kubernetes_hand_nothing_to_each_other() {
    let scene = Scene::between([("shop/a", "KEY"), ("bank/b", "KEY")]);
    let (_listener, client, server) = connection(&scene);
    let (a, _b) = (App::new(&scene, 0), App::new(&scene, 1));
    kept(&scene, &client, 1, "other_namespace", || {
        let id = a.wanted();
        // What the application knows of it does not leave the node.
        a.give(&Message::Out { id, state: b"secret".to_vec() }, &server);
        a.back();
    });
    assert_eq!(scene.received(1, "declined"), 0);
    goes_on(&client, &server);
}

#[test]
fn host_shims_with_two_keys_hand_nothing_to_each_other() {
    let scene = Scene::between(NODES);
    // The other node's operator has another key of the same epoch: its host-shim reads it again.
    let (files, _) = scene.other.as_ref().expect("two nodes");
    let (_listener, client, server) = connection(&scene);
    let (a, _b) = (App::new(&scene, 0), App::new(&scene, 1));
    files.write("key", &"ab".repeat(16), 0o600);
    scene.daemon_of(1).signal("HUP");
    let line = "baton_shim_transfer_channels_ended_total{reason=\"unauthentic\"}";
    // Until it has read it, the application there is asked, and says nothing.
    for seq in 1.. {
        let told = asks(&scene, &client, seq, || {
            let id = a.wanted();
            a.back();
            a.say(&Message::NotMine { id });
        });
        assert_eq!(told, Reason::Kept);
        if scene.figure_of(1, line) > 0.0 {
            break;
        }
    }
    assert!(scene.ended("unreached") > 0);
    assert_eq!(scene.ended("moved"), 0);
    goes_on(&client, &server);
}

#[test]
fn a_pods_own_port_is_left_to_it() {
    let scene = Scene::between(NODES);
    let at = format!("0.0.0.0:{FAR_PORT}");
    let own = scene.pods[1].within(|| TcpListener::bind(at));
    let own = own.expect("enter the pod").expect("the port is free");
    let (b, _listener) = (App::new(&scene, 1), listens(&scene));
    scene.knows(1);
    let taken = || scene.figure_of(1, "baton_shim_transfer_ports_taken_total");
    wait_for("it is counted", || taken() == 1.0);
    assert!(!scene.probe(1).1.between_nodes);
    assert!(scene.daemon_of(1).log().contains("transfers.port"));
    let found = || {
        let (files, _) = scene.other.as_ref().expect("two nodes");
        let output = Command::new(env!("CARGO_BIN_EXE_host-shim"))
            .args(["preflight", "--output", "json", "--config"])
            .arg(files.path("shim.yaml"))
            .output();
        let said = output.expect("run host-shim").stdout;
        let report: serde_json::Value = serde_json::from_slice(&said).expect("JSON");
        let findings = report["findings"].as_array().expect("a list");
        let door = findings.iter().find(|f| f["check"] == "transfers.port");
        let door = door.expect("it is looked at");
        let text = |field: &str| door[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("found"))
    };
    let (status, words) = found();
    assert_eq!(status, "note", "{words}");
    assert!(words.starts_with("17464 is another process's: its connections"), "{words}");
    drop(own);
    wait_for("it is free", || scene.probe(1).1.between_nodes);
    let listens = ("good".into(), "17464: host-shim listens".into());
    assert_eq!(found(), listens);
    drop(b);
    wait_for("nobody listens", || found().1 == "17464 is free");
}

/// As on a node's network, whose own pods see it at another address than those of others do.
#[test]
fn the_peer_may_have_another_address_there() {
    let scene = Scene::between(NODES);
    let (_listener, client, server) = connection(&scene);
    let (a, b) = (App::new(&scene, 0), App::new(&scene, 1));
    let _there = listens(&scene);
    wait_for("the door is open", || scene.probe(1).1.between_nodes);
    // To which the second pod has a route.
    let peer = SocketAddr::from(([10, 9, 0, 2], 4_321));
    let to = Destination {
        peer: Some(peer.ip()),
        peer_port: peer.port(),
        ..scene.destination(&client, 1)
    };
    thread::scope(|threads| {
        let asking = threads.spawn(|| scene.transfer_to(&client, 0, to, 1));
        let id = a.wanted();
        a.give(&Message::Out { id, state: vec![] }, &server);
        let id = b.offered();
        let moved = TcpStream::from(b.take(&scene, id));
        b.gets(id);
        assert_eq!(moved.peer_addr().expect("connected"), peer);
        let told = asking.join().expect("it is answered");
        assert_eq!(told.reason, Reason::Moved, "{}", scene.daemon.log());
    });
}

/// Strangers that connect and say nothing, or nonsense, are closed, and keep nobody out.
#[test]
fn strangers_at_the_port_are_bounded_and_go() {
    let scene = Scene::between(NODES);
    let (_listener, client, server) = connection(&scene);
    let (a, b) = (App::new(&scene, 0), App::new(&scene, 1));
    let _there = listens(&scene);
    wait_for("the door is open", || scene.probe(1).1.between_nodes);
    let at = format!("10.9.0.3:{FAR_PORT}");
    let strangers: Vec<_> = (0..40)
        .map(|n| {
            let stream = scene.pods[0].within(|| TcpStream::connect(&at));
            let mut stream = stream.expect("enter the pod").expect("it listens");
            stream.set_read_timeout(Some(LONG)).expect("an option");
            if n % 2 == 0 {
                // It may be closed already.
                let _ = stream.write_all(&[1, 1, 9, 9, 9]);
            }
            stream
        })
        .collect();
    let moved = asks(&scene, &client, 1, || {
        let id = a.wanted();
        a.give(&Message::Out { id, state: vec![] }, &server);
        let id = b.offered();
        let socket = b.take(&scene, id);
        b.gets(id);
        assert!(matches!(a.hear(), Message::Gone { .. }));
        goes_on_there(&scene, &client, &socket.into());
    });
    assert_eq!(moved, Reason::Moved);
    for mut stranger in strangers {
        // Closed or reset, within a second.
        let _ = stranger.read(&mut [0]);
    }
    let ended = |why: &str| {
        let line = format!("baton_shim_transfer_channels_ended_total{{reason=\"{why}\"}}");
        scene.figure_of(1, &line)
    };
    assert!(ended("pushed_out") >= 20.0, "{}", ended("pushed_out"));
    assert!(ended("late") > 0.0, "{}", ended("late"));
}

fn goes_on_there(scene: &Scene, client: &TcpStream, server: &TcpStream) {
    scene.route_to(1);
    goes_on(client, server);
}
