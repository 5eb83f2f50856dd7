//! One message and its answer over a TCP connection, by the three ways in which host-shim could
//! carry them: epoll as its threads do, tokio, tokio-uring (`cargo bench -p host-shim --bench
//! message_io`). The peer is the same for all: a thread that blocks.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rustix::{
    buffer::spare_capacity,
    event::epoll,
    io::{Errno, read, write},
};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A word of the protocol, and a record with 128 KB queued.
const MESSAGE_BYTES: [usize; 2] = [256, 128 << 10];
const ANSWER_BYTES: usize = 64;

/// A connection whose peer answers each message of so many bytes.
fn connection(bytes: usize) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (mut peer, _) = listener.accept().expect("a connection");
    thread::spawn(move || {
        let mut message = vec![0; bytes];
        while peer.read_exact(&mut message).is_ok() {
            peer.write_all(&[1; ANSWER_BYTES]).expect("open");
        }
    });
    ours.set_nodelay(true).expect("an option");
    ours
}

/// Waits until the socket is ready, as `host-shim/src/transfers` does.
fn ready(poller: impl AsFd) {
    let mut events = Vec::with_capacity(8);
    epoll::wait(poller, spare_capacity(&mut events), None).expect("an event");
}

fn by_epoll(bytes: usize, rounds: u64) -> Duration {
    let socket = connection(bytes);
    socket.set_nonblocking(true).expect("an option");
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
    epoll::add(&poller, &socket, epoll::EventData::new_u64(0), both).expect("epoll");
    let (message, mut answer) = (vec![7; bytes], [0; ANSWER_BYTES]);
    let begun = Instant::now();
    for _ in 0..rounds {
        let mut sent = 0;
        while sent < bytes {
            match write(&socket, &message[sent..]) {
                Ok(more) => sent += more,
                Err(Errno::AGAIN) => ready(&poller),
                Err(error) => panic!("{error}"),
            }
        }
        let mut got = 0;
        while got < ANSWER_BYTES {
            match read(&socket, &mut answer[got..]) {
                Ok(more) => got += more,
                Err(Errno::AGAIN) => ready(&poller),
                Err(error) => panic!("{error}"),
            }
        }
    }
    begun.elapsed()
}

fn by_tokio(bytes: usize, rounds: u64) -> Duration {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    runtime.block_on(async {
        let socket = connection(bytes);
        socket.set_nonblocking(true).expect("an option");
        let mut socket = tokio::net::TcpStream::from_std(socket).expect("epoll");
        let (message, mut answer) = (vec![7; bytes], [0; ANSWER_BYTES]);
        let begun = Instant::now();
        for _ in 0..rounds {
            socket.write_all(&message).await.expect("open");
            socket.read_exact(&mut answer).await.expect("open");
        }
        begun.elapsed()
    })
}

fn by_tokio_uring(bytes: usize, rounds: u64) -> Duration {
    tokio_uring::start(async {
        let socket = tokio_uring::net::TcpStream::from_std(connection(bytes));
        // Registered: no allocation, and no mapping of pages, for each message.
        let space = [vec![7; bytes], vec![0; ANSWER_BYTES]];
        let buffers = tokio_uring::buf::fixed::FixedBufRegistry::new(space);
        buffers.register().expect("locked memory");
        let mut message = buffers.check_out(0).expect("it is free");
        let mut answer = buffers.check_out(1).expect("it is free");
        let begun = Instant::now();
        for _ in 0..rounds {
            let (sent, buffer) = socket.write_fixed_all(message).await;
            sent.expect("open");
            message = buffer;
            let mut got = 0;
            while got < ANSWER_BYTES {
                let (more, buffer) = socket.read_fixed(answer).await;
                got += more.expect("open");
                answer = buffer;
            }
        }
        begun.elapsed()
    })
}

/// How long so many rounds with messages of so many bytes take.
type Way = fn(usize, u64) -> Duration;

fn messages(c: &mut Criterion) {
    for bytes in MESSAGE_BYTES {
        let mut group = c.benchmark_group("message");
        group.throughput(Throughput::Bytes(bytes as u64));
        let ways: [(&str, Way); 3] =
            [("epoll", by_epoll), ("tokio", by_tokio), ("tokio-uring", by_tokio_uring)];
        for (name, way) in ways {
            group.bench_function(BenchmarkId::new(name, bytes), |b| {
                b.iter_custom(|rounds| way(bytes, rounds));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, messages);
criterion_main!(benches);
