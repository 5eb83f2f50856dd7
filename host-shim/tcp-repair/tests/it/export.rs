//! Connections that go from one pod's socket to another's, with all that is queued.

use crate::scene::{
    Scene, arrived, patient, segment_bytes, set_send_buffer, socket_for, unacknowledged, until,
};
use baton_tcp_repair::{
    Cold, Connection, ExportError, FreezeError, Frozen, QUEUE_BYTES_MAX, RestoreError, Restoring,
    Warm, decode, encode,
};
use socket2::{Domain, SockFilter, SockRef, Socket, TcpKeepalive, Type};
use std::{
    cell::Cell,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

pub fn bytes(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub fn restored_in(scene: &Scene, pod: usize, connection: &Connection) -> Restoring {
    let restoring =
        scene.pods[pod].run(|| Restoring::new(socket_for(connection), connection, &Cold));
    restoring.expect("the address is there")
}

/// From the first pod to the second one; the client's segments are held back meanwhile.
fn moved(scene: &Scene, server: TcpStream) -> (Connection, TcpStream) {
    scene.hold(true);
    let application = server.try_clone().expect("a descriptor");
    let mut frozen = Frozen::new(OwnedFd::from(server)).expect("it is open");
    let connection = frozen.export().expect("all of it");
    let record = decode(&encode(&connection)).expect("as written");
    assert_eq!(record, connection);
    let restoring = restored_in(scene, 1, &record);
    frozen.commit().expect("the old one ends");
    drop(application);
    scene.hold(false);
    scene.route_to(1);
    let socket = restoring.commit().expect("it speaks");
    (connection, patient(TcpStream::from(socket)))
}

pub fn exact(mut from: &TcpStream, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    from.read_exact(&mut got).expect("all of it");
    assert!(got == wanted, "the bytes differ");
}

#[test]
fn both_directions_go_on_at_the_byte() {
    for v6 in [false, true] {
        for len in [0, 16 << 10, 64 << 10, 128 << 10] {
            let scene = Scene::new();
            let (_listener, client, server) = scene.connect(v6);
            // The client takes less than is written, so some of it was never sent.
            // Nobody reads, so the window does not grow by itself.
            SockRef::from(&server).set_recv_buffer_size(200 << 10).expect("any size");
            let (up, down) = (bytes(1, len), bytes(2, 4 * len));
            SockRef::from(&server).set_send_buffer_size(8 * len + 4_096).expect("any size");
            (&client).write_all(&up).expect("room");
            arrived(&server, len);
            (&server).write_all(&down).expect("room");

            let (connection, server) = moved(&scene, server);
            assert_eq!(connection.unread, up);
            if len == 128 << 10 {
                assert!(connection.unsent > 0, "the test shows less than it says");
            }
            exact(&server, &up);
            exact(&client, &down);
            thread::scope(|threads| {
                for (mut from, to, seed) in [(&client, &server, 3), (&server, &client, 4)] {
                    let more = bytes(seed, 300_000);
                    let copy = more.clone();
                    threads.spawn(move || from.write_all(&more).expect("open"));
                    threads.spawn(move || exact(to, &copy));
                }
            });
            drop(server);
            assert_eq!((&client).read(&mut [0; 1]).expect("a clean end"), 0);
            for space in [&scene.client, &scene.pods[0], &scene.pods[1]] {
                assert_eq!(space.count("OutRsts"), 0, "{v6} {len}");
            }
        }
    }
}

/// Segments stay as long as they were, also of a peer that takes short ones.
#[test]
fn segments_are_as_long_as_before() {
    for v6 in [false, true] {
        for peers in [None, Some(700)] {
            let scene = Scene::new();
            let (_listener, client, server) = scene.connect_with_mss(v6, peers);
            let before = segment_bytes(&server);
            let header = if v6 { 60 } else { 40 };
            let wanted = peers.unwrap_or(1_500 - header) - 12;
            assert_eq!(before, wanted);
            let (_, mut server) = moved(&scene, server);
            assert_eq!(segment_bytes(&server), before);
            let sent = bytes(7, 64 << 10);
            server.write_all(&sent).expect("room");
            exact(&client, &sent);
            assert_eq!(segment_bytes(&server), before);
        }
    }
}

/// Gives nothing, and remembers what it was asked for.
struct Asked(Cell<Option<(u32, u32)>>);

impl Warm for Asked {
    fn set(&self, _: BorrowedFd<'_>, window: u32, threshold: u32) {
        self.0.set(Some((window, threshold)));
    }
}

#[test]
fn the_congestion_window_comes_along() {
    let scene = Scene::new();
    let (_listener, client, mut server) = scene.connect(false);
    let sent = bytes(3, 4 << 20);
    thread::scope(|threads| {
        threads.spawn(|| server.write_all(&sent).expect("open"));
        exact(&client, &sent);
    });
    let mut frozen = Frozen::new(OwnedFd::from(server)).expect("it is open");
    let connection = frozen.export().expect("all of it");
    let window = connection.congestion_window;
    assert!(window.0 > 10, "it has grown: {window:?}");
    let asked = |connection: &Connection| {
        scene.pods[1].run(|| {
            let asked = Asked(Cell::new(None));
            let restoring = Restoring::new(socket_for(connection), connection, &asked);
            restoring.expect("the address is there").abort();
            asked.0.get()
        })
    };
    assert_eq!(asked(&connection), Some(window));
    // More than could ever be under way.
    let endless = Connection { congestion_window: (u32::MAX, 0), ..connection };
    assert_eq!(asked(&endless), Some((QUEUE_BYTES_MAX / 536, 1)));
    frozen.abort().expect("it goes on");
}

#[test]
fn what_was_agreed_and_set_is_the_same() {
    let scene = Scene::new();
    let (_listener, client, server) = scene.connect(false);
    let set = SockRef::from(&server);
    set.set_tcp_nodelay(true).expect("an option");
    let probes = TcpKeepalive::new()
        .with_time(Duration::from_secs(77))
        .with_interval(Duration::from_secs(7))
        .with_retries(5);
    set.set_tcp_keepalive(&probes).expect("an option");
    set.set_tcp_user_timeout(Some(Duration::from_millis(5_500))).expect("an option");
    set.set_mark(9).expect("root");
    set.set_tos_v4(0x28).expect("an option");
    set.set_tcp_congestion(b"reno").expect("always there");
    let before = set.recv_buffer_size().expect("a size");
    let (first, server) = moved(&scene, server);
    let set = SockRef::from(&server);
    assert!(set.tcp_nodelay().expect("an option") && set.keepalive().expect("an option"));
    assert_eq!(set.tcp_keepalive_time().expect("an option"), Duration::from_secs(77));
    assert_eq!(set.tcp_keepalive_retries().expect("an option"), 5);
    let timeout = set.tcp_user_timeout().expect("an option");
    assert_eq!(timeout, Some(Duration::from_millis(5_500)));
    assert_eq!((set.mark().expect("root"), set.tos_v4().expect("an option")), (9, 0x28));
    assert_eq!(&set.tcp_congestion().expect("a name")[..4], b"reno");
    assert!(set.recv_buffer_size().expect("a size") >= before);

    // Seen once more, everything that does not move on is as it was.
    (&client).write_all(b"x").expect("open");
    exact(&server, b"x");
    let mut frozen = Frozen::new(server.try_clone().expect("a descriptor").into()).expect("open");
    let again = frozen.export().expect("all of it");
    frozen.abort().expect("it goes on");
    let (mut a, mut b) = (first.negotiated, again.negotiated);
    assert!(b.timestamp.is_some() && a.timestamp.is_some(), "Linux has timestamps");
    let ahead = b.timestamp.unwrap_or(0).wrapping_sub(a.timestamp.unwrap_or(0));
    assert!(ahead.cast_signed() >= 0, "the clock never runs back");
    (a.timestamp, b.timestamp) = (None, None);
    assert_eq!(a, b);
    assert_eq!((first.settings, first.congestion), (again.settings, again.congestion));
    assert_eq!(again.read_to, first.read_to.wrapping_add(1));
    assert_eq!(first.buffers.2, again.buffers.2, "what the application had set");
}

/// The client has seen nothing of what the old socket sent: less than a congestion window, and
/// more.
#[test]
fn what_was_sent_and_lost_is_repeated() {
    for len in [1, 4 << 10, 64 << 10] {
        let scene = Scene::new();
        let (_listener, client, server) = scene.connect(false);
        scene.hold(true);
        let lost = bytes(5, len);
        (&server).write_all(&lost).expect("room");
        let (connection, server) = moved(&scene, server);
        assert_eq!(connection.unacknowledged, lost);
        assert!((connection.unsent as usize) < len);
        exact(&client, &lost);
        (&client).write_all(b"thanks").expect("open");
        exact(&server, b"thanks");
        assert_eq!(scene.client.count("OutRsts"), 0);
    }
}

/// The old socket owed an acknowledgement and never sends it. With Nagle's algorithm the client
/// waits for it, so the new socket's first word must bring it: else the client has to probe.
#[test]
fn an_acknowledgement_that_was_owed_comes_with_the_first_word() {
    let scene = Scene::new();
    let (_listener, client, server) = scene.connect(false);
    // Warm: a connection's first segments are acknowledged at once.
    for _ in 0..20 {
        (&client).write_all(b"ping").expect("open");
        exact(&server, b"ping");
        (&server).write_all(b"pong").expect("open");
        exact(&client, b"pong");
    }
    (&client).write_all(b"a").expect("open");
    arrived(&server, 1);
    let words = || ["RetransSegs", "TCPLossProbes"].map(|name| scene.client.count(name));
    let before = words();
    let (connection, server) = moved(&scene, server);
    assert_eq!(connection.unread, b"a");
    until("the acknowledgement", || unacknowledged(&client) == 0);
    assert_eq!(words(), before, "the client had to ask");
    (&client).write_all(b"b").expect("open");
    exact(&server, b"ab");
    (&server).write_all(b"and back").expect("open");
    exact(&client, b"and back");
}

/// Nobody holds the client back: what it sends while its connection is on the way, it sends again.
#[test]
fn what_arrives_in_between_is_not_lost() {
    for abort in [false, true] {
        let scene = Scene::new();
        let (_listener, client, server) = scene.connect(false);
        (&client).write_all(b"before ").expect("open");
        arrived(&server, 7);
        let copy = server.try_clone().expect("a descriptor");
        let mut frozen = Frozen::new(copy.into()).expect("open");
        (&client).write_all(b"meanwhile").expect("open");
        let connection = frozen.export().expect("all of it");
        assert_eq!(connection.unread, b"before ");
        let server = if abort {
            frozen.abort().expect("it goes on");
            server
        } else {
            let restoring =
                scene.pods[1].run(|| Restoring::new(socket_for(&connection), &connection, &Cold));
            let restoring = restoring.expect("the address is there");
            scene.route_to(1);
            frozen.commit().expect("the old one ends");
            patient(TcpStream::from(restoring.commit().expect("it speaks")))
        };
        exact(&server, b"before meanwhile");
        (&server).write_all(b"answer").expect("open");
        exact(&client, b"answer");
        for space in [&scene.client, &scene.pods[0], &scene.pods[1]] {
            assert_eq!(space.count("OutRsts"), 0);
        }
    }
}

#[test]
fn windows_without_scales_stay_as_large_as_they_are() {
    let scene = Scene::new();
    scene.client.run(|| {
        let scaling = "/proc/sys/net/ipv4/tcp_window_scaling";
        std::fs::write(scaling, "0").expect("root sets it");
    });
    let (_listener, client, server) = scene.connect(false);
    let (connection, server) = moved(&scene, server);
    assert_eq!(connection.negotiated.scales, None);
    (&server).write_all(b"x").expect("open");
    exact(&client, b"x");
    let copy = client.try_clone().expect("a descriptor");
    let mut frozen = Frozen::new(copy.into()).expect("open");
    let seen = frozen.export().expect("all of it").window.snd_wnd;
    frozen.abort().expect("it goes on");
    assert!(seen > 32 << 10, "the client may send {seen} bytes");
}

/// What the application has done to its socket would be in the way, or be lost.
#[test]
fn what_cannot_be_exported_says_why_and_goes_on() {
    let scene = Scene::new();
    let (_listener, client, server) = scene.connect(false);
    let copy = || OwnedFd::from(server.try_clone().expect("a descriptor"));
    let all = [SockFilter::new(0x06, 0, 0, u32::MAX)];
    SockRef::from(&server).attach_filter(&all).expect("a right of all");
    let refused = Frozen::new(copy());
    assert!(matches!(refused, Err(FreezeError::Filtered)), "{refused:?}");
    SockRef::from(&server).detach_filter().expect("its own");

    scene.hold(true);
    set_send_buffer(&server, 3 * QUEUE_BYTES_MAX as i32);
    (&server).write_all(&vec![7; QUEUE_BYTES_MAX as usize + 1]).expect("room");
    let mut frozen = Frozen::new(copy()).expect("it is open");
    let refused = frozen.export();
    let most = QUEUE_BYTES_MAX + 1;
    assert!(matches!(refused, Err(ExportError::TooLong(n)) if n == most), "{refused:?}");
    frozen.abort().expect("it goes on");
    scene.hold(false);
    scene.route_to(0);
    exact(&client, &vec![7; most as usize]);
}

#[test]
fn what_cannot_be_restored_says_so_and_sends_nothing() {
    let scene = Scene::new();
    let (_listener, client, server) = scene.connect(false);
    let mut frozen = Frozen::new(server.try_clone().expect("a descriptor").into()).expect("open");
    let mut connection = frozen.export().expect("all of it");
    let taken = scene.pods[0].run(|| Restoring::new(socket_for(&connection), &connection, &Cold));
    let taken = taken.expect_err("the old socket is still there").to_string();
    assert!(taken.contains("the remote end") || taken.contains("the local end"), "{taken}");
    // Whoever made the socket may keep it.
    let made = scene.pods[1].run(|| socket_for(&connection));
    let copy = made.try_clone().expect("a descriptor");
    let aborted = Restoring::new(copy, &connection, &Cold);
    aborted.expect("the address is there").abort();
    let read = rustix::net::recv(&made, &mut [0; 1], rustix::net::RecvFlags::DONTWAIT);
    let out_of_repair_mode = [rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED];
    assert!(read.is_err_and(|e| out_of_repair_mode.contains(&e)), "{read:?}");
    restored_in(&scene, 1, &connection).abort();
    drop(made);
    frozen.abort().expect("it goes on");
    (&client).write_all(b"still here").expect("open");
    exact(&server, b"still here");

    // It listens, is no socket of TCP, or is in use.
    let bound = scene.pods[1].run(|| TcpListener::bind("0.0.0.0:81").expect("a port"));
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let connected = TcpStream::connect(listener.local_addr().expect("bound"));
    let used: [OwnedFd; 3] =
        [bound.into(), datagrams.into(), connected.expect("it listens").into()];
    for socket in used {
        let refused = Restoring::new(socket, &connection, &Cold);
        assert!(matches!(refused, Err(RestoreError::Kernel { .. })), "{refused:?}");
    }
    connection.local = "10.9.0.3:80".parse().expect("an address");
    let refused = scene.pods[1].run(|| Restoring::new(socket_for(&connection), &connection, &Cold));
    let refused = refused.expect_err("nobody has that address");
    assert!(refused.to_string().starts_with("the local end: "), "{refused}");
    connection.settings.pop();
    let refused = Restoring::new(socket_for(&connection), &connection, &Cold);
    assert!(matches!(refused, Err(RestoreError::Settings(_))), "{refused:?}");
    for space in [&scene.client, &scene.pods[0], &scene.pods[1]] {
        assert_eq!(space.count("OutRsts"), 0);
    }
}

/// The server's next start must find its port as free as if it had accepted the connection itself.
#[test]
fn servers_of_one_port_share_it_with_what_came() {
    let scene = Scene::new();
    let (_listener, client, server) = scene.connect(false);
    SockRef::from(&server).set_reuse_port(true).expect("an option");
    SockRef::from(&server).set_reuse_address(false).expect("an option");
    let (_, server) = moved(&scene, server);
    scene.pods[1].run(|| {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        listener.set_reuse_port(true).expect("an option");
        let at: SocketAddr = "0.0.0.0:80".parse().expect("an address");
        listener.bind(&at.into()).expect("it shares the port");
    });
    (&server).write_all(b"x").expect("open");
    exact(&client, b"x");
}
