//! How long a restored socket waits for an acknowledgement before it sends again: no system call
//! sets what the old one had measured.

use crate::{
    export::{bytes, exact, restored_in},
    scene::{Scene, patience, patient, until},
};
use baton_tcp_repair::Frozen;
use std::{io::Write, net::TcpStream, os::fd::OwnedFd, time::Instant};

/// What is printed: how long a first flight waits that is lost as a whole.
#[test]
fn the_first_acknowledgement_says_how_long_a_round_trip_takes() {
    for queued in [0, 64 << 10] {
        let scene = Scene::new();
        let (_listener, client, server) = scene.connect(false);
        let sent = bytes(1, queued);
        exact_after_writing(&server, &client, b"before");
        let (before, measured) = patience(&server);
        assert!(!measured.is_zero());
        scene.hold(true);
        (&server).write_all(&sent).expect("room");
        let application = server.try_clone().expect("a descriptor");
        let mut frozen = Frozen::new(OwnedFd::from(server)).expect("it is open");
        let connection = frozen.export().expect("all of it");
        let restoring = restored_in(&scene, 1, &connection);
        frozen.commit().expect("the old one ends");
        drop(application);
        scene.hold(false);
        // All that it sends is lost on the way.
        scene.route_to(1);
        scene.lose(true);
        let begun = Instant::now();
        let server = patient(TcpStream::from(restoring.commit().expect("it speaks")));
        let (unmeasured, none) = patience(&server);
        assert!(none.is_zero(), "{none:?}");
        let again = || scene.pods[1].count("TCPLossProbes") + scene.pods[1].count("TCPTimeouts");
        until("it sends again", || again() > 0);
        let waited = begun.elapsed();
        scene.lose(false);
        exact(&client, &sent);
        exact_after_writing(&server, &client, b"behind");
        let (after, measured) = patience(&server);
        assert!(!measured.is_zero());
        assert!(after < unmeasured, "{after:?}");
        println!(
            "{queued} bytes under way: time-out {before:?} before, {unmeasured:?} restored, \
             {after:?} acknowledged; all lost: again after {waited:?}"
        );
    }
}

fn exact_after_writing(mut from: &TcpStream, to: &TcpStream, bytes: &[u8]) {
    from.write_all(bytes).expect("room");
    exact(to, bytes);
    until("it is acknowledged", || crate::scene::unacknowledged(from) == 0);
}
