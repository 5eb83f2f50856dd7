//! For how long a connection stands still that moves between two pods' applications, with so much
//! unread in it: by the running host-shim's own histogram (`cargo bench -p host-shim --bench
//! transfer`, root). The client's route is not switched within that time.

#[path = "../tests/it/transfer/app.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod app;
#[path = "../tests/it/daemon/mod.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod daemon;
#[path = "../tests/it/transfer/scene.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod scene;

use app::{App, connection};
use baton_sdk::wire::Message;
use rustix::net::sockopt;
use scene::Scene;
use std::{io::Write, net::TcpStream, thread};

const ROUNDS: u32 = 100;

/// Hands the connection over as fast as applications can, and returns it.
fn moved(
    scene: &Scene,
    apps: &[App; 2],
    client: &TcpStream,
    from: usize,
    round: u32,
    server: TcpStream,
) -> TcpStream {
    thread::scope(|threads| {
        let asking = threads.spawn(|| scene.transfer(client, from, round));
        let (id, state) = (apps[from].wanted(), Vec::new());
        apps[from].give(&Message::Out { id, state }, server);
        let id = apps[1 - from].offered();
        let moved = apps[1 - from].take(scene, id);
        apps[1 - from].gets(id);
        assert!(matches!(apps[from].hear(), Message::Gone { .. }));
        asking.join().expect("it is answered");
        moved.into()
    })
}

fn main() {
    stands_still(&Scene::new(), "", "one node");
    let nodes = [("a", "KEY"), ("b", "KEY")];
    stands_still(&Scene::between(nodes), "_between_nodes", "two nodes");
}

fn stands_still(scene: &Scene, kind: &str, place: &str) {
    let apps = [App::new(scene, 0), App::new(scene, 1)];
    let name = format!("baton_shim_transfer_frozen{kind}_seconds");
    let frozen = || {
        let nodes = usize::from(scene.other.is_some());
        let at = |what: &str| {
            let of = |pod| scene.figure_of(pod, &format!("{name}_{what}"));
            (0..=nodes).map(of).sum::<f64>()
        };
        (at("sum"), at("count"))
    };
    for (n, kilobytes) in [0, 16, 64, 128].into_iter().enumerate() {
        scene.route_to(0);
        let (listener, mut client, mut server) = connection(scene);
        drop(listener);
        sockopt::set_socket_recv_buffer_size(&server, 256 << 10).expect("an option");
        let unread = vec![1; kilobytes << 10];
        client.write_all(&unread).expect("room");
        let mut copy = vec![0; unread.len()];
        while !unread.is_empty() && server.peek(&mut copy).expect("open") < unread.len() {}
        let before = frozen();
        for round in 0..ROUNDS {
            let from = usize::from(round % 2 == 1);
            let number = round + ROUNDS * u32::try_from(n).expect("few");
            server = moved(scene, &apps, &client, from, number, server);
        }
        let after = frozen();
        let mean = (after.0 - before.0) / (after.1 - before.1) * 1e6;
        println!("{place}: frozen with {kilobytes:3} KB unread: {mean:7.1} us, mean of {ROUNDS}");
    }
    let (_, metrics) = scene.daemon.get("/metrics");
    for line in metrics.lines() {
        if line.starts_with(&format!("{name}_bucket")) {
            println!("{line}");
        }
    }
}
