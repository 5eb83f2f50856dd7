//! Frames through real veths in all three modes, with every buffer accounted for.

use crate::common::{
    Lab, MODES, PATIENCE, PORT_V4, PORT_V6, RAW_V4, RAW_V6, Raw, VIRTUAL_V4, Worker, config, echo,
    swap, tcp,
};
use baton_xsk::{Config, Disposition, Mode, ModeChoice};
use std::{net::IpAddr, time::Instant};

/// Sends frames one at a time and checks each answer byte for byte.
fn exchange(client: &Raw, frame: &[u8]) {
    let mut expected = frame.to_vec();
    swap(&mut expected);
    client.send(frame);
    let mut buffer = vec![0; 4096];
    let len = client.receive_tcp(&mut buffer, Instant::now() + PATIENCE).expect("an answer");
    assert_eq!(&buffer[..len], expected);
}

#[test]
fn every_size_comes_back_unchanged() {
    for mode in MODES {
        let lab = Lab::new();
        let port = lab.open(&config(mode));
        assert_eq!(port.queues(), 1);
        assert_eq!(port.mtu(), 1500);
        assert_eq!(port.mac(), crate::common::PORT_MAC);
        let worker = echo(port);
        let client = Raw::open(&lab);
        let targets: [(IpAddr, IpAddr, u16); 5] = [
            (RAW_V4.into(), PORT_V4.into(), 80),
            (RAW_V4.into(), VIRTUAL_V4.into(), 443),
            (RAW_V4.into(), PORT_V4.into(), 20_000),
            (RAW_V6.into(), PORT_V6.into(), 80),
            (RAW_V6.into(), PORT_V6.into(), 29_999),
        ];
        let mut sent = 0;
        for (from, to, number) in targets {
            for size in [0, 1, 6, 7, 100, 1000, 1439, 1440] {
                let payload: Vec<u8> = (0..size).map(|i| (i * 7) as u8).collect();
                exchange(&client, &tcp((from, 40_000), (to, number), size, "A", &payload));
                sent += 1;
            }
        }
        let (port, ()) = worker.stop();
        let stats = port.stats();
        assert_eq!((stats.rx_frames, stats.tx_frames), (sent, sent), "{mode:?}");
        assert_eq!(stats.rx_bytes, stats.tx_bytes);
        assert_eq!(stats.steering.taken, sent);
        assert!(port.frames().is_complete(), "{:?}", port.frames());
        assert_eq!(port.frames().transmit, 0, "all were sent and reaped");
    }
}

/// As where a switch floods what it has forgotten the way of, and another host serves the same
/// frontend.
#[test]
fn what_is_sent_to_another_hardware_address_is_another_hosts() {
    for mode in MODES {
        let lab = Lab::new();
        let worker = echo(lab.open(&config(mode)));
        let client = Raw::open(&lab);
        let (from, to) = ((RAW_V4.into(), 40_000), (VIRTUAL_V4.into(), 443));
        for number in [1, 2] {
            let mut others = tcp(from, to, 7, "A", b"another's");
            others[..6].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
            client.send(&others);
            exchange(&client, &tcp(from, to, number, "A", b"ours"));
        }
        let (port, ()) = worker.stop();
        let stats = port.stats();
        assert_eq!((stats.rx_frames, stats.steering.taken), (2, 2), "{mode:?}: {stats:?}");
    }
}

#[test]
fn auto_is_native_on_a_veth() {
    let lab = Lab::new();
    let port = lab.open(&config(ModeChoice::Auto));
    assert_eq!(port.mode(), Mode::Native);
    assert!(port.fallbacks().is_empty());
    assert!(lab.output_in_port("ip", &["link", "show", "eth0"]).contains("xdp "));
    drop(port);
    assert!(!lab.output_in_port("ip", &["link", "show", "eth0"]).contains("xdp "));
}

/// A million frames with 256 on their way at a time.
#[test]
fn a_million_frames_are_all_accounted_for() {
    const FRAMES: u32 = 1_000_000;
    const WINDOW: u32 = 256;
    let lab = Lab::new();
    let worker = echo(lab.open(&config(ModeChoice::Native)));
    let client = Raw::open(&lab);
    let mut frame = tcp((RAW_V4.into(), 40_000), (PORT_V4.into(), 80), 0, "A", &[]);
    let mut buffer = vec![0; 2048];
    let (mut sent, mut received) = (0, 0_u32);
    while received < FRAMES {
        while sent < FRAMES && sent - received < WINDOW {
            frame[38..42].copy_from_slice(&sent.to_be_bytes());
            client.send(&frame);
            sent += 1;
        }
        let len = client.receive_tcp(&mut buffer, Instant::now() + PATIENCE);
        assert_eq!(len, Some(frame.len()), "after {received} of {sent}");
        assert_eq!(buffer[38..42], received.to_be_bytes(), "in order");
        received += 1;
    }
    let (port, ()) = worker.stop();
    let (stats, frames) = (port.stats(), port.frames());
    assert_eq!(stats.rx_frames, u64::from(FRAMES));
    assert_eq!(stats.tx_frames, u64::from(FRAMES));
    assert_eq!(stats.fill_ring_empty, 0);
    assert_eq!(stats.kernel.rx_dropped + stats.kernel.rx_ring_full, 0);
    assert_eq!(stats.kernel.tx_invalid_descs + stats.kernel.rx_invalid_descs, 0);
    assert!(frames.is_complete(), "{frames:?}");
    assert_eq!((frames.transmit, frames.hand), (0, 0), "{frames:?}");
}

#[test]
fn extra_frames_leave_before_the_frame_itself() {
    for mode in MODES {
        let lab = Lab::new();
        let worker = Worker::start(lab.open(&config(mode)), (), |(), buffer, len, tx| {
            swap(&mut buffer[..len]);
            for extra in [1, 2] {
                let out = tx.frame().expect("buffers are left");
                out[..len].copy_from_slice(&buffer[..len]);
                out[len - 1] = extra;
                tx.send(len);
            }
            Disposition::Transmit(len)
        });
        let client = Raw::open(&lab);
        let mut buffer = vec![0; 2048];
        for round in 0..50 {
            let ends = (RAW_V4.into(), 40_000);
            client.send(&tcp(ends, (PORT_V4.into(), 80), round, "A", &[9]));
            for last in [1, 2, 9] {
                let len =
                    client.receive_tcp(&mut buffer, Instant::now() + PATIENCE).expect("an answer");
                assert_eq!(buffer[38..42], round.to_be_bytes());
                assert_eq!(buffer[len - 1], last, "{mode:?}");
            }
        }
        let (port, ()) = worker.stop();
        assert_eq!(port.stats().tx_frames, 150);
        assert!(port.frames().is_complete());
    }
}

#[test]
fn frames_of_all_queues_are_served() {
    const FLOWS: u16 = 64;
    let lab = Lab::with_queues(4);
    let port = lab.open(&config(ModeChoice::Native));
    assert_eq!(port.queues(), 4);
    let worker = echo(port);
    let client = Raw::open(&lab);
    for round in 0..20 {
        for flow in 0..FLOWS {
            let from = (RAW_V4.into(), 40_000 + flow);
            exchange(&client, &tcp(from, (PORT_V4.into(), 80), round, "A", &[1, 2, 3]));
        }
    }
    // All queues took part.
    let counters = lab.output_in_port("ethtool", &["-S", "eth0"]);
    for queue in 0..4 {
        let name = format!("rx_queue_{queue}_xdp_packets: ");
        let count = counters.lines().find_map(|l| l.trim().strip_prefix(&name));
        let count: u32 = count.and_then(|c| c.parse().ok()).expect("a counter");
        assert!(count > 0, "{counters}");
    }
    let (port, ()) = worker.stop();
    assert_eq!(port.stats().rx_frames, u64::from(FLOWS) * 20);
    assert_eq!(port.stats().steering.no_socket, 0);
    assert!(port.frames().is_complete());
}

#[test]
fn sending_when_all_buffers_are_in_use_is_counted_and_loses_none() {
    let lab = Lab::new();
    let mut config = config(ModeChoice::Native);
    (config.rx_ring, config.tx_ring, config.batch) = (64, 64, 16);
    let mut port = lab.open(&config);
    // The far end takes nothing while it is down, so every buffer that is sent stays in the ring or
    // is dropped.
    let total = port.frames().total;
    lab.ip_in_port("link set eth0 down");
    for _ in 0..total * 2 {
        let mut tx = port.tx();
        if let Some(buffer) = tx.frame() {
            buffer[..60].fill(0);
            tx.send(60);
        }
    }
    let stats = port.stats();
    assert!(stats.tx_ring_full > 0, "{stats:?}");
    assert!(port.frames().is_complete(), "{:?}", port.frames());
    // A length that no frame has is refused without losing the buffer.
    for length in [0, 13, 2049, usize::MAX] {
        let mut tx = port.tx();
        assert!(tx.frame().is_some());
        tx.send(length);
    }
    assert_eq!(port.stats().tx_invalid, 4);
    assert!(port.frames().is_complete());
}

/// As on a macvlan or a card whose line is busy: with the kernel's usual limit for a socket 95
/// frames could wait, 17 of the jumbo ones.
#[test]
fn what_the_device_below_has_queued_is_not_lost_in_packet_mode() {
    let lab = Lab::new();
    lab.ip_in_port("link add link eth0 name mv0 type macvlan mode bridge");
    lab.ip_in_port("link set mv0 up");
    let queue = "qdisc add dev eth0 root tbf rate 8mbit burst 3k limit 4mb";
    let arguments: Vec<&str> = queue.split(' ').collect();
    lab.output_in_port("tc", &arguments);
    let mut port = lab.open(&Config { interface: "mv0".into(), ..config(ModeChoice::Packet) });
    let frame = tcp((PORT_V4.into(), 80), (RAW_V4.into(), 9), 7, "A", &[7; 1_400]);
    for _ in 0..500 {
        let mut tx = port.tx();
        tx.frame().expect("buffers are left")[..frame.len()].copy_from_slice(&frame);
        tx.send(frame.len());
    }
    port.flush();
    let waiting = lab.output_in_port("tc", &["-s", "qdisc", "show", "dev", "eth0"]);
    assert!(waiting.contains("dropped 0,"), "{waiting}");
    let stats = port.stats();
    assert_eq!((stats.tx_frames, stats.tx_ring_full), (500, 0));
}
