//! A socket that goes on with another one's congestion window, by the real kernel. Needs root.

use baton_adopter::Warm;
use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    process::Command,
};

/// What `ss` says of the socket with this local port.
fn figure(port: u16, name: &str) -> Option<u32> {
    let asked = Command::new("ss")
        .args(["-tinH", "src", &format!(":{port}")])
        .output()
        .expect("iproute2 is there");
    let text = String::from_utf8(asked.stdout).expect("text");
    let value = text.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.parse().expect("a number"))
}

#[test]
fn a_socket_goes_on_with_the_window_it_is_given() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("listens");
    let (mut server, _) = listener.accept().expect("a connection");
    let port = client.local_addr().expect("bound").port();
    let before = tcp_congestion(&client).expect("a name");
    let warm = Warm::load().expect("the kernel takes it");
    // Beside its successor.
    let _other = Warm::load().expect("another one");
    warm.set(client.as_fd(), 77, 33).expect("a socket");
    for algorithm in ["reno", &before] {
        set_tcp_congestion(&client, algorithm).expect("it is there");
        assert_eq!(figure(port, "cwnd"), Some(77), "{algorithm}");
    }
    // Those of BBR have none.
    if before != "bbr" {
        assert_eq!(figure(port, "ssthresh"), Some(33));
    }
    // A second time, and no other socket.
    warm.set(client.as_fd(), 5, 7).expect("a socket");
    drop(warm);
    set_tcp_congestion(&client, "reno").expect("it is there");
    assert_eq!(figure(port, "cwnd"), Some(5));
    let other = TcpStream::connect(listener.local_addr().expect("bound")).expect("listens");
    let other = other.local_addr().expect("bound").port();
    assert_eq!(figure(other, "cwnd"), Some(10));
    let sent = vec![7; 256 << 10];
    let mut got = vec![0; sent.len()];
    std::thread::scope(|threads| {
        threads.spawn(|| client.write_all(&sent).expect("open"));
        server.read_exact(&mut got).expect("all of it");
    });
    assert!(got == sent);
}
