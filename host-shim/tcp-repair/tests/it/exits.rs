//! The exits of a freeze: a connection ends in silence, or goes on, and nobody has it twice.

use crate::scene::{Scene, arrived, open_window, set_pacing, until};
use baton_tcp_repair::{Cold, ExportError, FreezeError, Frozen, TcpState, bare_drops};
use socket2::SockRef;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

fn duplicate(socket: &TcpStream) -> OwnedFd {
    socket.try_clone().expect("a descriptor").into()
}

/// The number that the application would read next.
fn reads_next(socket: &TcpStream) -> u32 {
    let frozen = Frozen::new(duplicate(socket)).expect("it is open");
    let at = frozen.position().expect("numbers");
    frozen.abort().expect("it goes on");
    at.read_to
}

fn goes_on(client: &TcpStream, mut server: &TcpStream, unread: &[u8]) {
    let mut got = vec![0; unread.len()];
    server.read_exact(&mut got).expect("what it had not read");
    assert_eq!(got, unread);
    for (mut from, mut to) in [(client, server), (server, client)] {
        from.write_all(b"and on").expect("open");
        let mut got = [0; 6];
        to.read_exact(&mut got).expect("open");
        assert_eq!(&got, b"and on");
    }
}

#[test]
fn a_connection_with_unread_bytes_ends_in_silence() {
    for v6 in [false, true] {
        for half_closed in [false, true] {
            let scene = Scene::new();
            let (_listener, mut client, mut server) = scene.connect(v6);
            let boundary = reads_next(&server);
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("open");
            if half_closed {
                client.shutdown(Shutdown::Write).expect("open");
                until("the FIN arrives", || {
                    let frozen = Frozen::new(duplicate(&server)).expect("it is open");
                    let at = frozen.position().expect("numbers");
                    frozen.abort().expect("it goes on");
                    at.state == TcpState::CloseWait
                });
            }
            arrived(&server, 18);
            let before = (scene.pods[0].count("OutSegs"), scene.pods[0].count("OutRsts"));
            let frozen = Frozen::new(duplicate(&server)).expect("it is open");
            let at = frozen.position().expect("numbers");
            frozen.commit().expect("it ends");
            assert_eq!((at.read_to, at.unread), (boundary, 18));
            let state = [TcpState::Established, TcpState::CloseWait][usize::from(half_closed)];
            assert_eq!(at.state, state);
            let after = (scene.pods[0].count("OutSegs"), scene.pods[0].count("OutRsts"));
            assert_eq!(before, after, "nothing was sent");
            let error = server.read(&mut [0; 64]).expect_err("the request is gone");
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
            let error = server.read(&mut [0; 64]).expect_err("told once");
            assert_eq!(error.kind(), ErrorKind::NotConnected);
        }
    }
}

#[test]
fn a_thawed_socket_goes_on_as_it_was() {
    let scene = Scene::new();
    let (_listener, mut client, server) = scene.connect(false);
    SockRef::from(&server).set_reuse_address(true).expect("a right of all");
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("open");
    arrived(&server, 18);
    let _ = reads_next(&server);
    let reuses = SockRef::from(&server).reuse_address().expect("an option");
    assert!(reuses, "repair mode takes it away");
    goes_on(&client, &server, b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(scene.pods[0].count("OutRsts"), 0);
}

/// The kernel's timer that spreads what is queued goes on, and finds nothing that it may send.
#[test]
fn what_is_paced_waits_until_the_socket_is_thawed() {
    let scene = Scene::new();
    let (_listener, mut client, mut server) = scene.connect(false);
    set_pacing(&server, 100_000);
    let sent = vec![7; 60_000];
    server.write_all(&sent).expect("room");
    arrived(&client, 1);
    let mut frozen = Frozen::new(duplicate(&server)).expect("it is open");
    let at = frozen.position().expect("numbers");
    assert!(at.unsent > 0, "{at:?}");
    let record = frozen.export().expect("all of it");
    assert_eq!(record.unsent, at.unsent);
    assert!(record.window.snd_wnd > 0, "{:?}", record.window);
    // Thirty times what it waits between two segments of that rate.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(450) {
        assert_eq!(frozen.position().expect("numbers"), at);
        std::thread::yield_now();
    }
    frozen.abort().expect("it goes on");
    let mut got = vec![0; sent.len()];
    client.read_exact(&mut got).expect("all of it");
    assert!(got == sent);
    goes_on(&client, &server, b"");
}

/// What it had not sent may be under way then.
#[test]
fn a_window_that_opens_meanwhile_is_noticed() {
    let scene = Scene::new();
    let (_listener, client, server) = scene.connect(false);
    let mut frozen = Frozen::new(duplicate(&server)).expect("it is open");
    open_window(&server);
    let refused = frozen.export();
    assert!(matches!(refused, Err(ExportError::Changed)), "{refused:?}");
    frozen.abort().expect("it goes on");
    goes_on(&client, &server, b"");
}

#[test]
fn a_socket_in_another_state_is_refused_by_name() {
    let scene = Scene::new();
    let (listener, _client, server) = scene.connect(false);
    let refused = Frozen::new(listener.try_clone().expect("a descriptor").into());
    assert!(matches!(refused, Err(FreezeError::State("LISTEN"))), "{refused:?}");
    server.shutdown(Shutdown::Write).expect("open");
    // It is FIN-WAIT-1 or, once the FIN is acknowledged, FIN-WAIT-2.
    let refused = Frozen::new(duplicate(&server)).expect_err("it closes").to_string();
    assert!(refused.starts_with("the socket is in state FIN-WAIT-"), "{refused}");
}

/// The only test that drops sockets without a word.
#[test]
fn a_bare_drop_is_counted_and_never_makes_two_owners() {
    let scene = Scene::new();
    let (_listener, client, mut server) = scene.connect(false);
    let before = bare_drops();
    drop(Frozen::new(duplicate(&server)).expect("open"));
    assert_eq!(bare_drops(), before + 1);
    goes_on(&client, &server, b"");

    let mut frozen = Frozen::new(duplicate(&server)).expect("open");
    let exported = frozen.export().expect("all of it");
    drop(frozen);
    assert_eq!(bare_drops(), before + 2);
    let error = server.read(&mut [0; 1]).expect_err("another may have it");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);

    let restoring = scene.pods[1].run(|| {
        let socket = crate::scene::socket_for(&exported);
        baton_tcp_repair::Restoring::new(socket, &exported, &Cold)
    });
    drop(restoring.expect("the address is there, too"));
    assert_eq!(bare_drops(), before + 3);
    for pod in &scene.pods {
        assert_eq!(pod.count("OutRsts"), 0);
    }
}
