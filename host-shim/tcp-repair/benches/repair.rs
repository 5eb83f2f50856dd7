//! What a move costs, on loopback: a connection with so much queued each way is exported, its
//! record written and read, and restored (`cargo bench -p baton-tcp-repair`, root). It is measured
//! once for each of many connections and shown as percentiles.

use baton_tcp_repair::{Cold, Frozen, Restoring, decode, encode};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::{
    hint::black_box,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

const ROUNDS: usize = 1_000;

fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let to = listener.local_addr().expect("bound");
    let client = TcpStream::connect(to).expect("it listens");
    let (server, _) = listener.accept().expect("a connection");
    (client, server)
}

fn show(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |part: usize| took[(took.len() - 1) * part / 100].as_nanos() as f64 / 1_000.0;
    println!("{what:34} p50 {:7.1} us   p99 {:7.1} us   worst {:7.1} us", at(50), at(99), at(100));
}

fn duplicate(socket: &TcpStream) -> OwnedFd {
    socket.try_clone().expect("a descriptor").into()
}

/// The old socket ends before the new one begins, since both have the same ends here.
fn moved(listener: &TcpListener, queued: usize) -> Duration {
    let (client, server) = connect(listener);
    for (end, other) in [(&client, &server), (&server, &client)] {
        SockRef::from(other).set_recv_buffer_size(200 << 10).expect("any size");
        SockRef::from(end).set_send_buffer_size(200 << 10).expect("any size");
    }
    (&client).write_all(&vec![1; queued]).expect("room");
    let mut copy = vec![0; queued];
    while queued > 0 && server.peek(&mut copy).expect("open") < queued {}
    let socket = duplicate(&server);
    let new = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    let new = OwnedFd::from(new.expect("a socket"));
    let begin = Instant::now();
    let mut frozen = Frozen::new(socket).expect("open");
    let record = encode(&frozen.export().expect("all of it"));
    frozen.commit().expect("it ends");
    let connection = decode(black_box(&record)).expect("as written");
    let restored = Restoring::new(new, &connection, &Cold).expect("the ends are free");
    let socket = TcpStream::from(restored.commit().expect("it speaks"));
    let took = begin.elapsed();
    (&socket).read_exact(&mut copy).expect("what was queued");
    took
}

fn main() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    for kilobytes in [0, 16, 64, 128] {
        let all = (0..ROUNDS).map(|_| moved(&listener, kilobytes << 10));
        show(&format!("export and restore, {kilobytes} KB unread"), all.collect());
    }
}
