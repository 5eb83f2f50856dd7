//! How the program ends.

use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, ChildStderr, Command, Stdio},
};

/// What the program says.
type Says = BufReader<ChildStderr>;

/// The program, what it says, and the address where it listens.
fn start() -> (Child, Says, String) {
    let directory = env!("CARGO_MANIFEST_DIR");
    // A port that is free now, and nobody's in particular.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("its address").to_string();
    drop(free);
    let mut child = Command::new(env!("CARGO_BIN_EXE_baton-files"))
        .args(["--listen", &address, "--directory", directory])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut says = BufReader::new(child.stderr.take().expect("piped"));
    hear(&mut says, "listening");
    (child, says, address)
}

/// Its next line.
fn hear(says: &mut Says, wanted: &str) {
    let mut line = String::new();
    says.read_line(&mut line).expect("a line");
    assert!(line.contains(wanted), "{line}");
}

fn term(child: &Child) {
    kill_process(Pid::from_child(child), Signal::TERM).expect("it runs");
}

/// An answer's first line.
fn get(stream: &mut TcpStream) -> String {
    let request = b"GET /Cargo.toml HTTP/1.1\r\nHost: a\r\n\r\n";
    stream.write_all(request).expect("a request");
    let mut first = [0; 15];
    stream.read_exact(&mut first).expect("an answer");
    String::from_utf8_lossy(&first).into_owned()
}

#[test]
fn without_connections_sigterm_ends_it() {
    let (mut child, _says, _) = start();
    term(&child);
    // A process that a signal has killed has no code.
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn it_goes_on_until_its_last_connection_has_ended_or_it_is_told_again() {
    for again in [false, true] {
        let (mut child, mut says, address) = start();
        let mut client = TcpStream::connect(&address).expect("it listens");
        assert_eq!(get(&mut client), "HTTP/1.1 200 OK");
        term(&child);
        // Two signals that come before the first one is taken are one.
        hear(&mut says, "ends with its last connection");
        let mut other = TcpStream::connect(&address).expect("it listens");
        assert_eq!(get(&mut other), "HTTP/1.1 200 OK");
        if again {
            term(&child);
        } else {
            drop((client, other));
        }
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
    }
}
