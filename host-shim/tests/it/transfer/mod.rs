//! Connections move between real applications in real namespaces, in the middle of what they do.

mod app;
mod between;
mod far;
mod refusals;
mod scene;
#[path = "../../../src/transfers/between/session.rs"]
#[allow(dead_code, reason = "a test uses a part of it")]
mod session;

use crate::daemon::common::wait_for;
use baton_packet::Reason;
use scene::{LONG, PORT, Scene};
use siphasher::sip::SipHasher24;
use std::{
    fs,
    hash::Hasher,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    path::{Path, PathBuf},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

const FILE_BYTES: usize = 64 << 20;
const MOVES: usize = 20;

/// A directory that both pods share; removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(crate::daemon::common::unique());
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.clone()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Bytes of which no two pieces are the same.
fn content(bytes: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes + 8);
    let mut number = 0_u64;
    while all.len() < bytes {
        number += 1;
        let mut hasher = SipHasher24::new();
        hasher.write_u64(number);
        all.extend(hasher.finish().to_be_bytes());
    }
    all.truncate(bytes);
    all
}

/// How far a client may go, so that each move is in the middle.
#[derive(Default)]
struct Gate {
    allowed: Mutex<usize>,
    opened: Condvar,
    done: AtomicU64,
}

impl Gate {
    fn open(&self, to: usize) {
        *self.allowed.lock().expect("the gate") = to;
        self.opened.notify_all();
    }

    /// How much more is allowed, once anything is.
    fn wait(&self, done: usize) -> usize {
        self.done.store(done as u64, Ordering::Relaxed);
        let mut allowed = self.allowed.lock().expect("the gate");
        while *allowed <= done {
            let (next, over) = self.opened.wait_timeout(allowed, LONG).expect("the gate");
            assert!(!over.timed_out(), "the gate never opened");
            allowed = next;
        }
        *allowed - done
    }

    fn reached(&self, at: usize) {
        wait_for("the client gets so far", || self.done.load(Ordering::Relaxed) >= at as u64);
    }
}

/// The head of an answer, byte by byte, and the length that it says.
fn head(stream: &mut TcpStream) -> (String, usize) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
    (head, length.expect("a length"))
}

fn download(stream: &mut TcpStream, file: &str, gate: &Gate) -> Vec<u8> {
    ask(stream, file);
    body(stream, gate)
}

fn ask(stream: &mut TcpStream, file: &str) {
    write!(stream, "GET /{file} HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
}

fn body(stream: &mut TcpStream, gate: &Gate) -> Vec<u8> {
    let (status, length) = head(stream);
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    let mut body = vec![0; length];
    let mut done = 0;
    while done < length {
        let more = gate.wait(done).min(length - done);
        let got = stream.read(&mut body[done..done + more]).expect("the body");
        assert_ne!(got, 0, "it ended at {done}");
        done += got;
    }
    gate.done.store(done as u64, Ordering::Relaxed);
    body
}

fn upload(stream: &mut TcpStream, file: &str, body: &[u8], gate: &Gate) {
    let length = body.len();
    write!(stream, "PUT /{file} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n")
        .expect("sent");
    let mut done = 0;
    while done < length {
        let more = gate.wait(done).min(length - done);
        done += stream.write(&body[done..done + more]).expect("the body goes on");
    }
    gate.done.store(done as u64, Ordering::Relaxed);
    let (status, length) = head(stream);
    assert!(status.starts_with("HTTP/1.1 201"), "{status}");
    let mut text = vec![0; length];
    stream.read_exact(&mut text).expect("the count");
    assert_eq!(String::from_utf8_lossy(&text).trim(), body.len().to_string());
}

/// Moves the connection back and forth while the client works, every other time while it stands
/// still.
fn moves(scene: &Scene, stream: &TcpStream, gate: &Gate, bytes: usize, moves: usize) {
    scene.fence();
    let part = bytes / (moves + 1);
    for n in 0..moves {
        gate.open(part * (n + 1));
        if n % 2 == 0 {
            gate.reached(part * (n + 1));
        }
        let told = scene.transfer(stream, n % 2, n as u32);
        assert_eq!(told.reason, Reason::Moved, "move {n}: {}", scene.daemon_of(n % 2).log());
    }
    gate.open(bytes);
}

fn moved_download(at: &str, v6: bool, bytes: usize, count: usize) {
    downloads(&Scene::new(), at, v6, bytes, count);
}

fn downloads(scene: &Scene, at: &str, v6: bool, bytes: usize, count: usize) {
    let directory = Directory::new();
    let body = content(bytes);
    fs::write(directory.0.join("file"), &body).expect("a file");
    let servers = [0, 1].map(|pod| scene.serve(pod, directory.path(), at));
    let mut stream = scene.connect(v6);
    let control = stream.try_clone().expect("a descriptor");
    let gate = Gate::default();
    let got = std::thread::scope(|threads| {
        let client = threads.spawn(|| download(&mut stream, "file", &gate));
        moves(scene, &control, &gate, bytes, count);
        client.join().expect("the client has all")
    });
    assert!(got == body, "the content differs");
    assert_eq!(scene.ended("moved"), count as u64);
    assert_eq!(scene.ended("reset"), 0);
    // Keep-alive: the next request, on the same connection.
    gate.open(usize::MAX);
    let small = &body[..1_000];
    fs::write(directory.0.join("small"), small).expect("a file");
    assert_eq!(download(&mut stream, "small", &gate), small);
    for server in servers {
        server.link().close();
    }
}

#[test]
fn a_download_moves_back_and_forth_in_the_middle() {
    moved_download(&format!("0.0.0.0:{PORT}"), false, FILE_BYTES, MOVES);
}

#[test]
fn a_download_over_ipv6_moves() {
    moved_download(&format!("[::]:{PORT}"), true, FILE_BYTES / 16, 3);
}

/// IPv4 on a listener of IPv6.
#[test]
fn a_download_over_mapped_addresses_moves() {
    moved_download(&format!("[::]:{PORT}"), false, FILE_BYTES / 16, 3);
}

/// A client that has said all and closed its direction.
fn last_download(scene: &Scene, at: &str, v6: bool) {
    let directory = Directory::new();
    let wanted = content(FILE_BYTES);
    fs::write(directory.0.join("file"), &wanted).expect("a file");
    let servers = [0, 1].map(|pod| scene.serve(pod, directory.path(), at));
    let mut stream = scene.connect(v6);
    let control = stream.try_clone().expect("a descriptor");
    let gate = Gate::default();
    ask(&mut stream, "file");
    stream.shutdown(Shutdown::Write).expect("open");
    let got = std::thread::scope(|threads| {
        let client = threads.spawn(|| body(&mut stream, &gate));
        // More is left behind the last one than both ends' buffers hold, so that the server has not
        // closed yet.
        moves(scene, &control, &gate, wanted.len() / 2, MOVES / 2);
        gate.open(wanted.len());
        client.join().expect("the client has all")
    });
    assert!(got == wanted, "the content differs");
    // The last server reads the end, which its own kernel never heard of, and closes too.
    assert_eq!(stream.read(&mut [0]).expect("a clean end"), 0);
    let ended = (scene.ended("moved"), scene.ended("reset"));
    assert_eq!(ended, (MOVES as u64 / 2, 0));
    for server in servers {
        server.link().close();
    }
}

#[test]
fn the_rest_for_a_client_that_has_closed_its_direction_moves() {
    last_download(&Scene::new(), &format!("0.0.0.0:{PORT}"), false);
    last_download(&Scene::new(), &format!("[::]:{PORT}"), true);
}

#[test]
fn an_upload_moves_back_and_forth_in_the_middle() {
    uploads(&Scene::new());
}

fn uploads(scene: &Scene) {
    let directory = Directory::new();
    let body = content(FILE_BYTES);
    let at = format!("0.0.0.0:{PORT}");
    let servers = [0, 1].map(|pod| scene.serve(pod, directory.path(), &at));
    let mut stream = scene.connect(false);
    let control = stream.try_clone().expect("a descriptor");
    let gate = Gate::default();
    std::thread::scope(|threads| {
        let client = threads.spawn(|| upload(&mut stream, "file", &body, &gate));
        moves(scene, &control, &gate, FILE_BYTES, MOVES);
        client.join().expect("the client has sent all");
    });
    let stored = fs::read(Path::new(&directory.0).join("file")).expect("stored");
    assert!(stored == body, "the content differs");
    assert_eq!(scene.ended("moved"), MOVES as u64);
    for server in servers {
        server.link().close();
    }
}
