//! What does not move stays, goes on, and is counted by why; applications that misbehave cost
//! themselves their connection to host-shim.

use super::{
    app::{App, connection, goes_on},
    scene::{LONG, PORT, Scene},
};
use crate::daemon::common::wait_for;
use baton_packet::{Destination, Reason, Which};
use baton_sdk::{
    Link, Why,
    wire::{Message, STATE_BYTES_MAX, VERSION},
};
use baton_tcp_repair::{Frozen, QUEUE_BYTES_MAX};
use rustix::net::{
    AddressFamily, SocketType,
    sockopt::{set_socket_linger, set_socket_send_buffer_size_force},
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

/// It is asked for the client's connection, answers meanwhile, and it stays.
fn kept(scene: &Scene, client: &TcpStream, why: &str, meanwhile: impl FnOnce() + Send) {
    let to = scene.destination(client, 1);
    kept_to(scene, client, to, why, meanwhile);
}

fn kept_to(
    scene: &Scene,
    client: &TcpStream,
    to: Destination,
    why: &str,
    meanwhile: impl FnOnce() + Send,
) {
    // Another request each time, and so another Transfer.
    static SEQ: AtomicU32 = AtomicU32::new(1_000);
    let seq = SEQ.fetch_add(1, Ordering::Relaxed);
    let before = scene.ended(why);
    let told = thread::scope(|threads| {
        let asking = threads.spawn(|| scene.transfer_to(client, 0, to, seq));
        meanwhile();
        asking.join().expect("it is answered")
    });
    assert_eq!(told.reason, Reason::Kept, "{why}: {}", scene.daemon.log());
    assert_eq!(scene.ended(why), before + 1, "{why}: {}", scene.daemon.log());
    assert_eq!(scene.ended("moved"), 0);
}

#[test]
fn what_cannot_go_stays_and_goes_on() {
    let scene = Scene::new();
    let (_listener, client, server) = connection(&scene);
    kept(&scene, &client, "no_application", || {});
    goes_on(&client, &server);

    let a = App::new(&scene, 0);
    kept(&scene, &client, "no_taker", || {});
    let b = App::new(&scene, 1);
    let to = scene.destination(&client, 1);
    let elsewhere = [
        Destination { which: Which::Namespace(1), ..to },
        Destination { address_end: to.address_end ^ 1, ..to },
    ];
    for to in elsewhere {
        kept_to(&scene, &client, to, "no_pod", || {});
    }
    let other_port = Destination { port: 81, ..to };
    kept_to(&scene, &client, other_port, "no_taker", || {});
    goes_on(&client, &server);

    kept(&scene, &client, "not_mine", || {
        let id = a.wanted();
        a.say(&Message::NotMine { id });
    });
    kept(&scene, &client, "refused", || {
        let (id, reason) = (a.wanted(), "not now".into());
        a.say(&Message::Refuse { id, reason });
    });
    // No socket, one of another connection, the client's end of this one.
    let (reading, _writing) = rustix::pipe::pipe().expect("a pipe");
    let other = scene.connect(false);
    let wrong = [
        reading,
        other.try_clone().expect("a descriptor").into(),
        client.try_clone().expect("a descriptor").into(),
    ];
    for descriptor in wrong {
        kept(&scene, &client, "wrong_descriptor", || {
            let (id, state) = (a.wanted(), vec![]);
            a.give(&Message::Out { id, state }, descriptor);
            assert!(a.back().contains("another descriptor"));
        });
    }
    kept(&scene, &client, "not_taken", || {
        let (id, state) = (a.wanted(), b"state".to_vec());
        a.give(&Message::Out { id, state }, &server);
        let (id, reason) = (b.offered(), "full".into());
        b.say(&Message::Refuse { id, reason });
        assert!(a.back().contains("does not take it"));
    });
    goes_on(&client, &server);
    // What is no socket of TCP, one of another pod, of the other family, of no namespace's.
    let own = |v6: bool| {
        let local = SocketAddr::new(if v6 { "::" } else { "0.0.0.0" }.parse().expect("one"), 0);
        baton_sdk::packet::new_socket(local)
    };
    let raw = || {
        let tcp = Some(rustix::net::ipproto::TCP);
        rustix::net::socket(AddressFamily::INET, SocketType::RAW, tcp)
    };
    let wrong = [
        rustix::pipe::pipe().expect("a pipe").0,
        scene.pods[0].within(|| own(false)).expect("enter").expect("a socket"),
        scene.pods[1].within(|| own(true)).expect("enter").expect("a socket"),
        scene.pods[1].within(raw).expect("enter").expect("a socket"),
    ];
    for descriptor in wrong {
        kept(&scene, &client, "not_taken", || {
            let (id, state) = (a.wanted(), vec![]);
            a.give(&Message::Out { id, state }, &server);
            let id = b.offered();
            b.give(&Message::Take { id }, descriptor);
            assert!(b.back().contains("no new TCP socket"));
            assert!(a.back().contains("does not take it"));
        });
    }
    // In use already.
    kept(&scene, &client, "not_restored", || {
        let (id, state) = (a.wanted(), vec![]);
        a.give(&Message::Out { id, state }, &server);
        let used = scene.pods[1].within(|| TcpListener::bind("0.0.0.0:81"));
        let used = used.expect("enter").expect("a port");
        b.give(&Message::Take { id: b.offered() }, used);
        b.back();
        a.back();
    });
    goes_on(&client, &server);
    // Nobody answers; what comes later is sent back.
    kept(&scene, &client, "lease_over", || {
        let (id, state) = (a.wanted(), vec![]);
        assert!(a.back().contains("too long"));
        a.give(&Message::Out { id, state }, &server);
        assert!(a.back().contains("too long"));
    });
    kept(&scene, &client, "lease_over", || {
        let (id, state) = (a.wanted(), vec![]);
        a.give(&Message::Out { id, state }, &server);
        let id = b.offered();
        assert!(a.back().contains("too long"));
        assert!(b.back().contains("too long"));
        b.take(&scene, id);
        assert!(b.back().contains("too long"));
    });
    let not_moved = |why: &str, says: &str| {
        kept(&scene, &client, why, || {
            let (id, state) = (a.wanted(), vec![]);
            a.give(&Message::Out { id, state }, &server);
            let id = b.offered();
            let _socket = b.take(&scene, id);
            for told in [a.back(), b.back()] {
                assert!(told.contains(says), "{told}");
            }
        });
    };
    // More than a record has room for, as the client reads nothing.
    let much = vec![7; QUEUE_BYTES_MAX as usize + (8 << 20)];
    set_socket_send_buffer_size_force(&server, 2 * much.len()).expect("root");
    (&server).write_all(&much).expect("room");
    not_moved("not_exported", "bytes are queued");
    (&client).read_exact(&mut vec![0; much.len()]).expect("all of it");
    goes_on(&client, &server);
    // The server has said all: nothing is gained.
    server.shutdown(std::net::Shutdown::Write).expect("open");
    not_moved("not_frozen", "FIN-WAIT-");
    (&client).write_all(b"last").expect("open");
    let mut got = [0; 4];
    (&server).read_exact(&mut got).expect("open");
    assert_eq!(&got, b"last");
}

#[test]
fn who_leaves_meanwhile_takes_nothing_along() {
    let scene = Scene::new();
    let (_listener, client, server) = connection(&scene);
    let b = App::new(&scene, 1);
    let a = App::new(&scene, 0);
    kept(&scene, &client, "owner_left", || {
        a.wanted();
        drop(a);
    });
    let a = App::new(&scene, 0);
    kept(&scene, &client, "owner_left", || {
        let (id, state) = (a.wanted(), vec![]);
        a.give(&Message::Out { id, state }, &server);
        b.offered();
        drop(a);
        assert!(b.back().contains("ended its connection"));
    });
    goes_on(&client, &server);
    let a = App::new(&scene, 0);
    kept(&scene, &client, "taker_left", || {
        let (id, state) = (a.wanted(), vec![]);
        a.give(&Message::Out { id, state }, &server);
        let id = b.offered();
        // Both at once, as far as host-shim sees.
        scene.daemon.signal("STOP");
        b.take(&scene, id);
        drop(b);
        scene.daemon.signal("CONT");
        assert!(a.back().contains("ended its connection"));
    });
    goes_on(&client, &server);
    assert_eq!(scene.metric("baton_shim_application_links"), 1);
}

/// The connection was given to it, and its process ends before it looks.
#[test]
fn what_nobody_hears_of_is_reset() {
    let scene = Scene::new();
    let (_listener, mut client, server) = connection(&scene);
    let (a, b) = (App::new(&scene, 0), App::new(&scene, 1));
    let told = thread::scope(|threads| {
        let asking = threads.spawn(|| scene.transfer(&client, 0, 7));
        let (id, state) = (a.wanted(), vec![]);
        a.give(&Message::Out { id, state }, server);
        let id = b.offered();
        let socket = b.take(&scene, id);
        assert!(matches!(a.hear(), Message::Gone { .. }));
        drop((b, socket));
        asking.join().expect("it is answered")
    });
    assert_eq!(told.reason, Reason::Moved);
    let error = client.read(&mut [0; 1]).expect_err("a reset, no end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn the_old_pod_says_nothing_of_what_has_moved() {
    let scene = Scene::new();
    let (listener, mut client, server) = connection(&scene);
    goes_on(&client, &server);
    let (a, b) = (App::new(&scene, 0), App::new(&scene, 1));
    let to = scene.destination(&client, 1);
    let (told, moved) = thread::scope(|threads| {
        let asking = threads.spawn(|| scene.transfer_to(&client, 0, to, 7));
        let (id, state) = (a.wanted(), vec![1, 2, 3]);
        a.give(&Message::Out { id, state }, server);
        let Message::Offer { id, state, .. } = b.hear() else {
            panic!("not offered");
        };
        assert_eq!(state, [1, 2, 3]);
        let moved = b.take(&scene, id);
        b.gets(id);
        assert!(matches!(a.hear(), Message::Gone { .. }));
        (asking.join().expect("it is answered"), moved)
    });
    assert_eq!(told.reason, Reason::Moved);
    // The client's packets still go to the old pod.
    client.write_all(b"late").expect("open");
    let resets = "baton_shim_adoption_segments_total{outcome=\"moved_reset\"}";
    wait_for("a reset is dropped", || scene.metric(resets) > 0);
    // A SYN there is refused as ever, once no program that another test starts has the listener.
    drop(listener);
    let mut refused = None;
    wait_for("nobody listens", || {
        let connect = || TcpStream::connect(("10.9.0.2", PORT));
        let connected = scene.client.within(connect).expect("enter the client");
        refused = connected.err();
        refused.is_some()
    });
    let refused = refused.expect("it is set");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    scene.route_to(1);
    let mut server = TcpStream::from(moved);
    let mut got = [0; 4];
    server.read_exact(&mut got).expect("it comes again");
    assert_eq!(&got, b"late");
    goes_on(&client, &server);
    assert_eq!(scene.ended("moved"), 1);
    assert_eq!(scene.metric("baton_shim_transfer_frozen_seconds_count"), 1);
}

#[test]
fn the_sdk_hands_out_once_and_says_why_not() {
    let scene = Scene::new();
    let (_listener, client, server) = connection(&scene);
    let link = scene.pods[0].within(|| Link::connect(&[PORT]));
    let link = link.expect("enter the pod").expect("a link");
    let registered = link.register(&server).expect("it is connected");
    scene.knows(0);
    let b = App::new(&scene, 1);
    let not_moved = registered.hand_out(server, b"").expect_err("not wanted");
    assert_eq!(not_moved.why, Why::NotWanted);
    let mut server = Some(not_moved.stream);
    kept(&scene, &client, "refused", || {
        wait_for("it is wanted", || registered.is_wanted());
        let stream = server.take().expect("here");
        let long = vec![0; STATE_BYTES_MAX + 1];
        let not_moved = registered.hand_out(stream, &long).expect_err("too long");
        assert_eq!(not_moved.why, Why::StateTooLong(STATE_BYTES_MAX + 1));
        server = Some(not_moved.stream);
    });
    kept(&scene, &client, "not_taken", || {
        wait_for("it is wanted", || registered.is_wanted());
        let stream = server.take().expect("here");
        thread::scope(|threads| {
            threads.spawn(|| {
                let (id, reason) = (b.offered(), "no".into());
                b.say(&Message::Refuse { id, reason });
            });
            let not_moved = registered.hand_out(stream, b"x").expect_err("not taken");
            assert!(matches!(not_moved.why, Why::Kept(_)), "{:?}", not_moved.why);
            server = Some(not_moved.stream);
        });
    });
    // The lease ends while the application is busy: it is not wanted any more.
    kept(&scene, &client, "lease_over", || {});
    wait_for("it is calm again", || !registered.is_wanted());
    goes_on(&client, server.as_ref().expect("here"));
    kept(&scene, &client, "not_mine", || {
        wait_for("it is wanted", || registered.is_wanted());
        drop(registered);
    });
    kept(&scene, &client, "not_mine", || {});
}

#[test]
fn applications_that_misbehave_are_cut_off_and_others_go_on() {
    let scene = Scene::new();
    let (_listener, client, server) = connection(&scene);
    let good = App::new(&scene, 0);
    let b = App::new(&scene, 1);
    let hello = |version| Message::Hello { version, ports: vec![PORT] };
    let refused = |why: &str| {
        let line = format!("baton_shim_application_links_refused_total{{reason=\"{why}\"}}");
        scene.metric(&line)
    };

    let bad = App::silent(&scene, 0);
    bad.say(&hello(VERSION + 1));
    assert!(bad.bye().contains("speaks version"));
    let bad = App::silent(&scene, 0);
    bad.say(&Message::NotMine { id: 1 });
    assert!(bad.bye().contains("Hello comes first"));
    for said in [hello(VERSION), Message::Gone { id: 1 }] {
        let bad = App::new(&scene, 0);
        bad.say(&said);
        assert!(bad.bye().contains("host-shim's to say"));
    }
    let bad = App::new(&scene, 0);
    rustix::net::send(&bad.0, b"\xff?", rustix::net::SendFlags::NOSIGNAL).expect("sent");
    assert!(bad.bye().contains("no message has the number"));
    // A descriptor with what has none, and none with what has one.
    let bad = App::new(&scene, 0);
    bad.give(&Message::NotMine { id: 1 }, &server);
    assert!(bad.bye().contains("descriptors"));
    let bad = App::new(&scene, 0);
    bad.say(&Message::Out { id: 1, state: vec![] });
    assert!(bad.bye().contains("descriptors"));
    assert_eq!(refused("malformed"), 7);
    let bad = App::new(&scene, 0);
    bad.say(&Message::NotMine { id: 1 });
    assert!(bad.bye().contains("nobody asked"));
    assert_eq!(refused("stray"), 1);

    // As many as there may be, which all read nothing; one more is refused, and the other pod's
    // are as before.
    let crowd: Vec<App> = (1..64).map(|_| App::new(&scene, 0)).collect();
    let more = App::silent(&scene, 0);
    assert!(more.bye().contains("64 applications"));
    assert_eq!(refused("too_many"), 1);
    drop(App::new(&scene, 1));
    kept(&scene, &client, "not_taken", || {
        let (id, state) = (good.wanted(), vec![7; STATE_BYTES_MAX]);
        good.give(&Message::Out { id, state }, &server);
        let id = b.offered();
        b.say(&Message::Refuse { id, reason: String::new() });
        good.back();
    });
    drop(crowd);
    wait_for("places are free again", || scene.metric("baton_shim_application_links") == 2);
    assert!(App::silent(&scene, 0).bye().contains("Hello"));
    assert_eq!(refused("silent"), 1);
    goes_on(&client, &server);
}

/// The table of ports is the node's.
#[test]
fn a_pod_has_no_more_ports_than_its_share() {
    let scene = Scene::new();
    let on_64 = |n: u16| {
        let app = App::silent(&scene, 0);
        let ports = (64 * n + 1..=64 * (n + 1)).collect();
        app.say(&Message::Hello { version: VERSION, ports });
        assert!(matches!(app.hear(), Message::Welcome { .. }));
        app
    };
    let mut all: Vec<App> = (0..4).map(on_64).collect();
    assert!(on_64(4).bye().contains("at most 256 ports"));
    let refused = "baton_shim_application_links_refused_total{reason=\"too_many\"}";
    assert_eq!(scene.metric(refused), 1);
    // Those that others of it listen on are no more, and the other pod has its own.
    let same = on_64(0);
    drop((all.pop(), App::new(&scene, 1), same));
    wait_for("they are gone", || scene.metric("baton_shim_application_links") == 3);
    let last = on_64(4);
    assert_eq!(scene.metric(refused), 1);
    drop(last);
}

/// A connection of the first pod whose last descriptor takes an hour to close, and its peer, which
/// reads nothing.
fn lingering(scene: &Scene) -> (TcpStream, TcpStream) {
    let pair = scene.pods[0].within(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound"));
        (stream.expect("open"), listener.accept().expect("one").0)
    });
    let (mut stream, peer) = pair.expect("enter the pod");
    stream.set_nonblocking(true).expect("an option");
    while let Ok(written) = stream.write(&[7; 65_536]) {
        assert_ne!(written, 0);
    }
    let hour = Some(Duration::from_secs(3_600));
    set_socket_linger(&stream, hour).expect("an option");
    (stream, peer)
}

#[test]
fn a_pod_whose_descriptors_do_not_close_waits_alone() {
    let scene = Scene::new();
    let bad = [0; 3].map(|pod| App::new(&scene, pod));
    let good = App::new(&scene, 1);
    let end = SocketAddr::from(([10, 9, 0, 2], PORT));
    let doubt = Message::Doubt { id: 9, local: end, remote: end };
    let [first, second, third, fourth] = [(); 4].map(|()| lingering(&scene));
    // Until the last descriptors are in packets.
    scene.daemon.signal("STOP");
    bad[0].give(&doubt, first.0);
    // With a message that has none, and behind it, where it is not read.
    bad[1].give(&Message::NotMine { id: 1 }, second.0);
    bad[2].give(&Message::NotMine { id: 1 }, third.0);
    bad[2].give(&doubt, fourth.0);
    scene.daemon.signal("CONT");
    bad[0].back();
    for app in &bad[1..] {
        assert!(app.bye().contains("descriptors"));
    }
    let (mut reader, other) = UnixStream::pair().expect("a pair");
    reader.set_read_timeout(Some(LONG)).expect("an option");
    good.give(&doubt, other);
    good.back();
    assert_eq!(reader.read(&mut [0]).expect("it is closed"), 0);
    drop((first.1, second.1, third.1, fourth.1));
}

#[test]
fn an_end_of_host_shim_in_the_middle_leaves_one_owner() {
    let mut scene = Scene::new();
    let (_listener, client, server) = connection(&scene);
    let link = scene.pods[0].within(|| Link::connect(&[PORT]));
    let link = link.expect("enter the pod").expect("a link");
    let registered = link.register(&server).expect("it is connected");
    scene.knows(0);
    let b = App::new(&scene, 1);
    let to = scene.destination(&client, 1);
    scene.ask(&client, 0, to, 5);
    wait_for("it is wanted", || registered.is_wanted());
    let not_moved = thread::scope(|threads| {
        let handing = threads.spawn(|| registered.hand_out(server, b"x"));
        b.offered();
        scene.restart(true);
        handing.join().expect("it ends")
    });
    let not_moved = not_moved.expect_err("nobody took it");
    assert!(matches!(not_moved.why, Why::Kept(_)), "{:?}", not_moved.why);
    goes_on(&client, &not_moved.stream);

    // One that died with the socket frozen: the next one thaws it.
    let server = not_moved.stream;
    let ends = (server.local_addr().expect("connected"), server.peer_addr().expect("connected"));
    let copy = server.try_clone().expect("a descriptor");
    std::mem::forget(Frozen::new(copy.into()).expect("open"));
    (&server).write_all(b"?").expect_err("it is frozen");
    let a = App::new(&scene, 0);
    let doubt = Message::Doubt { id: 9, local: ends.0, remote: ends.1 };
    a.give(&doubt, &server);
    a.back();
    goes_on(&client, &server);
}
