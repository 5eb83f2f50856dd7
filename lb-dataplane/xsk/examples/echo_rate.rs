//! Round-trip time and frames per second of an echo in each mode, over a veth pair between two
//! namespaces.
//!
//! `cargo run --release -p baton-xsk --example echo_rate [busy_poll_us]`, as root. A kernel UDP
//! echo in the same layout gives the scale. Client and echo share the machine's cores, as a pod and
//! its peers do.
#![expect(unsafe_code, reason = "the client sends and receives in batches")]

#[path = "../tests/it/common/mod.rs"]
mod common;

use baton_xsk::ModeChoice;
use common::{Lab, MODES, PORT_V4, RAW_V4, Raw, config, echo, tcp};
use std::{
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

const ROUNDS: usize = 30_000;
const RATE_TIME: Duration = Duration::from_secs(2);
const FRAME_BYTES: usize = 128;

fn percentile(sorted: &[u64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100] as f64 / 1000.0
}

fn print_latency(name: &str, mut times: Vec<u64>, note: &str) {
    times.sort_unstable();
    println!(
        "{name:<22} p50 {:6.1} us   p99 {:6.1} us   {note}",
        percentile(&times, 50),
        percentile(&times, 99)
    );
}

fn kernel_udp() {
    let lab = Lab::new();
    let server = lab.in_port(|| UdpSocket::bind((PORT_V4, 9000)).expect("free"));
    let client = lab.in_client(|| {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).expect("free");
        socket.connect((PORT_V4, 9000)).expect("reachable");
        socket
    });
    let thread = thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = server.recv_from(&mut buffer) {
            if len == 1 {
                break;
            }
            let _ = server.send_to(&buffer[..len], from);
        }
    });
    let mut buffer = [0; 2048];
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        client.send(&[7; 86]).expect("sent");
        client.recv(&mut buffer).expect("received");
        times.push(start.elapsed().as_nanos() as u64);
    }
    client.send(&[0]).expect("sent");
    thread.join().expect("no panic");
    print_latency("kernel UDP", times, "");
}

fn latency(mode: ModeChoice, busy_poll_us: u32) {
    let lab = Lab::new();
    let mut config = config(mode);
    config.busy_poll_us = busy_poll_us;
    let worker = echo(lab.open(&config));
    let client = Raw::open_for(&lab, libc::ETH_P_IP as u16);
    let from = (RAW_V4.into(), 40_000);
    let frame = tcp(from, (PORT_V4.into(), 80), 1, "A", &[7; FRAME_BYTES - 54]);
    let mut buffer = vec![0; 2048];
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        // Long enough that the echo sleeps again, as it does between the requests of one
        // connection.
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_micros(40) {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        client.send(&frame);
        client.receive_blocking(&mut buffer).expect("an answer");
        times.push(start.elapsed().as_nanos() as u64);
    }
    let stats = worker.stop().0.stats();
    let per_frame = |n: u64| n as f64 / stats.rx_frames as f64;
    let note = format!(
        "per frame: {:.2} sends, {:.2} waits",
        per_frame(stats.wakeups),
        per_frame(stats.waits)
    );
    print_latency(&format!("{mode:?} 1 in flight"), times, &note);
}

fn rate(mode: ModeChoice, window: usize, busy_poll_us: u32) {
    let lab = Lab::new();
    let mut config = config(mode);
    config.busy_poll_us = busy_poll_us;
    let worker = echo(lab.open(&config));
    let client = Raw::open_for(&lab, libc::ETH_P_IP as u16);
    let from = (RAW_V4.into(), 40_000);
    let frame = tcp(from, (PORT_V4.into(), 80), 1, "A", &[7; FRAME_BYTES - 54]);
    let mut batch = Batch::new(&frame, window);
    let start = Instant::now();
    let mut received = 0_u64;
    let mut credit = window;
    while start.elapsed() < RATE_TIME {
        batch.send(&client, credit);
        credit = batch.receive(&client);
        received += credit as u64;
    }
    let seconds = start.elapsed().as_secs_f64();
    let stats = worker.stop().0.stats();
    let per_frame = |n: u64| n as f64 / stats.rx_frames as f64;
    println!(
        "{:<22} {:9.0} frames/s   per frame: {:.3} sends, {:.3} waits",
        format!("{mode:?} {window} in flight"),
        received as f64 / seconds,
        per_frame(stats.wakeups),
        per_frame(stats.waits)
    );
}

/// The client's side of a measurement: many frames per call.
struct Batch {
    _buffers: Vec<Vec<u8>>,
    _vectors: Vec<libc::iovec>,
    send: Vec<libc::mmsghdr>,
    receive: Vec<libc::mmsghdr>,
}

impl Batch {
    fn new(frame: &[u8], window: usize) -> Self {
        let mut buffers: Vec<Vec<u8>> = (0..window).map(|_| frame.to_vec()).collect();
        buffers.extend((0..window).map(|_| vec![0; 2048]));
        let mut vectors: Vec<_> = buffers
            .iter_mut()
            .map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() })
            .collect();
        let mut headers: Vec<libc::mmsghdr> = vectors
            .iter_mut()
            .map(|v| {
                // SAFETY: all-zero bytes are a valid header.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = v;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        let receive = headers.split_off(window);
        Self { _buffers: buffers, _vectors: vectors, send: headers, receive }
    }

    fn send(&mut self, client: &Raw, count: usize) {
        let mut sent = 0;
        while sent < count {
            let rest = &mut self.send[sent..count];
            // SAFETY: headers, vectors and buffers live in `self`.
            let n =
                unsafe { libc::sendmmsg(client.raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0) };
            sent += n.max(0) as usize;
        }
    }

    fn receive(&mut self, client: &Raw) -> usize {
        // SAFETY: as above.
        let n = unsafe {
            libc::recvmmsg(
                client.raw_fd(),
                self.receive.as_mut_ptr(),
                self.receive.len() as u32,
                libc::MSG_WAITFORONE,
                std::ptr::null_mut(),
            )
        };
        assert!(n > 0, "{}", std::io::Error::last_os_error());
        n as usize
    }
}

fn main() {
    let busy_poll_us = std::env::args().nth(1).map_or(0, |a| a.parse().expect("microseconds"));
    println!("busy_poll_us = {busy_poll_us}");
    kernel_udp();
    for mode in MODES {
        latency(mode, busy_poll_us);
    }
    for window in [1, 32, 256] {
        for mode in MODES {
            rate(mode, window, busy_poll_us);
        }
    }
}
