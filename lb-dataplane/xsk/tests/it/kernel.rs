//! The real kernel at the far end: partial checksums, large frames, no resets; and all ways to
//! fail.

use crate::common::{
    CLIENT_V4, Lab, MODES, PATIENCE, PORT_V4, RAW_V4, Raw, VIRTUAL_V4, Worker, config, echo,
    steering, tcp,
};
use baton_xsk::{Config, Disposition, Mode, ModeChoice, OpenError, Port, Steering};
use libbpf_rs::libbpf_sys;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

fn until(what: &str, mut f: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !f() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A connection attempt of the client's kernel.
fn start_connecting(lab: &Lab, address: std::net::Ipv4Addr, port: u16) -> OwnedFd {
    lab.in_client(|| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("socket");
        let result = connect(&fd, &std::net::SocketAddrV4::new(address, port));
        assert_eq!(result, Err(Errno::INPROGRESS));
        fd
    })
}

#[test]
fn a_connecting_client_gets_no_reset_and_its_checksums_are_partial() {
    for mode in MODES {
        let lab = Lab::new();
        let (syns, partial) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (syns_seen, partial_seen) = (Arc::clone(&syns), Arc::clone(&partial));
        let port = lab.open(&config(mode));
        let worker = Worker::start(port, (), move |(), frame, len, _| {
            assert_eq!(frame[47], 2, "only SYNs come");
            syns_seen.fetch_add(1, Ordering::Relaxed);
            let mut sum: u32 = 6 + (len as u32 - 34);
            for word in frame[26..34].chunks(2) {
                sum += u32::from(u16::from_be_bytes([word[0], word[1]]));
            }
            let folded = (sum & 0xffff) + (sum >> 16);
            if u32::from(u16::from_be_bytes([frame[50], frame[51]])) == folded {
                partial_seen.fetch_add(1, Ordering::Relaxed);
            }
            Disposition::Release
        });
        let socket = start_connecting(&lab, VIRTUAL_V4, 443);
        // The second SYN comes a second later, and only if nothing answered the first.
        until("a second SYN", || syns.load(Ordering::Relaxed) >= 2);
        assert_eq!(partial.load(Ordering::Relaxed), syns.load(Ordering::Relaxed));
        assert_eq!(sockopt::socket_error(&socket), Ok(Ok(())), "{mode:?}");
        // A port that is not ours is the kernel's, which refuses it.
        let other = start_connecting(&lab, PORT_V4, 81);
        until("a reset", || sockopt::socket_error(&other) == Ok(Err(Errno::CONNREFUSED)));
        let (port, ()) = worker.stop();
        let stats = port.stats();
        assert_eq!(stats.rx_frames, u64::from(syns.load(Ordering::Relaxed)));
        assert_eq!(stats.steering.taken, stats.rx_frames);
        assert!(stats.steering.passed > 0);
        // With the port gone, the kernel answers again.
        drop(port);
        let last = start_connecting(&lab, PORT_V4, 80);
        until("a reset", || sockopt::socket_error(&last) == Ok(Err(Errno::CONNREFUSED)));
    }
}

/// One frame of 40 segments, as a kernel with TSO hands it to its veth.
fn large_frame() -> (Vec<u8>, Vec<u8>) {
    let payload: Vec<u8> = (0..40 * 1448_u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let from = (RAW_V4.into(), 40_000);
    let mut frame = tcp(from, (PORT_V4.into(), 80), 1000, "AP", &payload);
    let mut sum = 6 + (frame.len() as u32 - 34);
    for word in frame[26..34].chunks(2) {
        sum += u32::from(u16::from_be_bytes([word[0], word[1]]));
    }
    let folded = ((sum & 0xffff) + (sum >> 16)) as u16;
    frame[50..52].copy_from_slice(&folded.to_be_bytes());
    (frame, payload)
}

/// The frame behind its virtio-net header: TCP over IPv4, 1,448 bytes per segment, checksum to be
/// completed.
fn with_vnet(frame: &[u8]) -> Vec<u8> {
    let mut all = vec![1, 1];
    for field in [54_u16, 1448, 34, 16] {
        all.extend_from_slice(&field.to_ne_bytes());
    }
    all.extend_from_slice(frame);
    all
}

/// Start sequence number and payload of what a port received, in order.
type Parts = Vec<(u32, Vec<u8>)>;

fn collect(lab: &Lab, mode: ModeChoice, frame: &[u8], expected: usize) -> (Port, Parts) {
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let worker = Worker::start(lab.open(&config(mode)), Parts::new(), move |parts, b, len, _| {
        let sequence = u32::from_be_bytes([b[38], b[39], b[40], b[41]]);
        parts.push((sequence, b[54..len].to_vec()));
        counted.fetch_add(1, Ordering::Relaxed);
        Disposition::Release
    });
    let client = Raw::open(lab);
    client.option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1);
    client.send(&with_vnet(frame));
    until("all segments", || count.load(Ordering::Relaxed) as usize >= expected);
    worker.stop()
}

#[test]
fn a_frame_of_many_segments_arrives_whole() {
    for mode in [ModeChoice::Native, ModeChoice::Packet] {
        let lab = Lab::new();
        let (frame, payload) = large_frame();
        let (port, parts) = collect(&lab, mode, &frame, 40);
        let mut joined = Vec::new();
        for (sequence, part) in parts {
            assert_eq!(sequence, 1000 + joined.len() as u32);
            assert!(part.len() <= 1448);
            joined.extend_from_slice(&part);
        }
        assert!(joined == payload, "{mode:?}");
        let stats = port.stats();
        assert_eq!(stats.rx_oversize, 0);
        // In native mode the kernel cuts them: XDP on our end turns the peer's TSO off.
        let cut_here = if mode == ModeChoice::Packet { 40 } else { 0 };
        assert_eq!(stats.rx_segmented, cut_here);
        assert!(port.frames().is_complete());
    }
}

/// A frame as large as an interface's MTU allows comes in and goes out in one piece, whatever the
/// MTU.
#[test]
fn jumbo_frames_pass_whole_in_the_mode_that_auto_chooses() {
    for (mtu, mode) in [
        (1_779, Mode::Native),
        (3_000, Mode::Native),
        (9_001, Mode::Packet),
        (16_000, Mode::Packet),
    ] {
        let lab = Lab::new();
        lab.ip_in_port(&format!("link set eth0 mtu {mtu}"));
        lab.ip_in_client(&format!("link set eth0 mtu {mtu}"));
        let port = lab.open(&config(ModeChoice::Auto));
        assert_eq!(port.mode(), mode, "MTU {mtu}: {:?}", port.fallbacks());
        let worker = echo(port);
        let client = Raw::open(&lab);
        let payload: Vec<u8> = (0..mtu - 40).map(|i| ((i * 31) >> 3) as u8).collect();
        let (from, to) = ((RAW_V4.into(), 40_000), (PORT_V4.into(), 80));
        let mut buffer = vec![0; 20_000];
        for number in 0..5_000_u32 {
            // Large and small ones in turn: both keep their order.
            let payload = if number % 3 == 0 { &payload[..] } else { &[] };
            let frame = tcp(from, to, number, "A", payload);
            client.send(&frame);
            let len = client.receive_tcp(&mut buffer, Instant::now() + PATIENCE);
            assert_eq!(len, Some(frame.len()), "MTU {mtu}, frame {number}");
            assert_eq!(buffer[38..42], number.to_be_bytes());
            assert!(buffer[54..frame.len()] == *payload);
        }
        let (port, ()) = worker.stop();
        let stats = port.stats();
        assert_eq!((stats.rx_frames, stats.tx_frames), (5_000, 5_000));
        assert_eq!(stats.rx_oversize + stats.tx_invalid, 0, "{stats:?}");
        assert!(port.frames().is_complete());
    }
}

/// An interface without XDP of its own, as some CNIs give to pods. Generic XDP would attach there,
/// and lose what a neighbour's segmentation offload left large.
#[test]
fn a_macvlan_works_in_packet_mode() {
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x33];
    let lab = Lab::new();
    lab.ip_in_port(
        "link add link eth0 name mv0 address 02:00:00:00:00:33 type macvlan mode bridge",
    );
    lab.ip_in_port("link set mv0 up");
    let port = lab.open(&Config { interface: "mv0".into(), ..config(ModeChoice::Auto) });
    assert_eq!(port.mode(), Mode::Packet, "{:?}", port.fallbacks());
    let [(Mode::Native, why)] = port.fallbacks() else { panic!("{:?}", port.fallbacks()) };
    assert!(why.contains("mv0 refuses an XDP program"), "{why}");
    let worker = echo(port);
    let client = Raw::open(&lab);
    let mut buffer = vec![0; 2048];
    for number in 0..1_000_u32 {
        let (from, to) = ((RAW_V4.into(), 40_000), (PORT_V4.into(), 80));
        let mut frame = tcp(from, to, number, "A", &[7; 1_000]);
        frame[..6].copy_from_slice(&MAC);
        client.send(&frame);
        let len = client.receive_tcp(&mut buffer, Instant::now() + PATIENCE);
        assert_eq!(len, Some(frame.len()));
        assert_eq!((&buffer[6..12], &buffer[38..42]), (&MAC[..], &number.to_be_bytes()[..]));
    }
    client.option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1);
    let (mut large, _) = large_frame();
    large[..6].copy_from_slice(&MAC);
    client.send(&with_vnet(&large));
    for _ in 0..40 {
        // With a virtio-net header in front.
        let len = client.receive(&mut buffer, Instant::now() + PATIENCE);
        assert!(len.is_some_and(|len| len > 10 + 54), "{len:?}");
    }
    let (port, ()) = worker.stop();
    let stats = port.stats();
    assert_eq!((stats.rx_frames, stats.rx_segmented), (1_040, 40), "{stats:?}");
}

/// What does not fit a slot waits beside the ring, and keeps its place among those that do.
#[test]
fn frames_of_many_segments_keep_their_order_among_small_ones() {
    let lab = Lab::new();
    let (large, payload) = large_frame();
    let (rounds, count) = (20_u32, Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&count);
    let worker = Worker::start(
        lab.open(&config(ModeChoice::Packet)),
        Parts::new(),
        move |parts, b, len, _| {
            let sequence = u32::from_be_bytes([b[38], b[39], b[40], b[41]]);
            parts.push((sequence, b[54..len].to_vec()));
            counted.fetch_add(1, Ordering::Relaxed);
            Disposition::Release
        },
    );
    let client = Raw::open(&lab);
    client.option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1);
    let mut plain = vec![0; 10];
    for round in 0..rounds {
        client.send(&with_vnet(&large));
        let small = tcp((RAW_V4.into(), 40_000), (PORT_V4.into(), 80), round, "A", &[9]);
        plain.truncate(10);
        plain.extend(small);
        client.send(&plain);
    }
    until("all segments", || count.load(Ordering::Relaxed) == rounds * 41);
    let (port, parts) = worker.stop();
    for (round, parts) in parts.chunks(41).enumerate() {
        let (segments, small) = parts.split_at(40);
        let joined: Vec<u8> = segments.iter().flat_map(|(_, part)| part.clone()).collect();
        assert!(joined == payload, "round {round}");
        assert_eq!(small, [(round as u32, vec![9])]);
    }
    let stats = port.stats();
    assert_eq!(stats.rx_segmented, u64::from(rounds) * 40);
    assert_eq!(stats.rx_oversize + stats.kernel.rx_ring_full, 0, "{stats:?}");
}

/// More of them than may wait are lost and counted, and the ring goes on in order.
#[test]
fn large_frames_beyond_the_limit_are_counted() {
    let lab = Lab::new();
    let mut port = lab.open(&config(ModeChoice::Packet));
    let client = Raw::open(&lab);
    client.option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1);
    let sent = 200;
    for _ in 0..sent {
        client.send(&with_vnet(&large_frame().0));
    }
    let mut plain = vec![0; 10];
    plain.extend(tcp((RAW_V4.into(), 40_000), (PORT_V4.into(), 80), 7, "A", &[1]));
    client.send(&plain);
    let mut last = 0;
    until("the small frame", || {
        while port.process(&mut |b: &mut [u8], len: usize, _: &mut baton_xsk::Tx<'_>| {
            last = len;
            assert!(b.len() >= len);
            Disposition::Release
        }) > 0
        {}
        last == 55
    });
    let stats = port.stats();
    let (got, lost) = (stats.rx_segmented / 40, stats.kernel.rx_ring_full);
    assert_eq!(got + lost, sent, "{stats:?}");
    assert!(got >= 20 && lost > 0, "{got} of {sent}: {stats:?}");
}

#[test]
fn in_generic_mode_a_frame_larger_than_a_buffer_is_counted() {
    let lab = Lab::new();
    let port = lab.open(&config(ModeChoice::Generic));
    let worker = echo(port);
    let client = Raw::open(&lab);
    client.option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1);
    client.send(&with_vnet(&large_frame().0));
    client.option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 0);
    // What is sent after it comes back after it.
    let small = tcp((RAW_V4.into(), 40_000), (PORT_V4.into(), 80), 7, "A", &[1]);
    client.send(&small);
    let mut buffer = vec![0; 4096];
    let len = client.receive_tcp(&mut buffer, Instant::now() + PATIENCE);
    assert_eq!(len, Some(small.len()));
    let (port, ()) = worker.stop();
    assert_eq!(port.stats().rx_oversize, 1, "{:?}", port.stats());
    assert_eq!(port.stats().rx_frames, 1);
}

#[test]
fn another_program_on_the_interface_stays() {
    let lab = Lab::new();
    let first = echo(lab.open(&config(ModeChoice::Native)));
    let program = |lab: &Lab| {
        let shown = lab.output_in_port("ip", &["link", "show", "eth0"]);
        shown.lines().find_map(|l| l.trim().strip_prefix("prog/xdp").map(str::to_owned))
    };
    let before = program(&lab);
    assert!(before.is_some());
    for mode in [ModeChoice::Native, ModeChoice::Generic] {
        let result = lab.in_port(|| Port::open(&config(mode), &steering()));
        let error = result.err().expect("a refusal");
        assert!(
            matches!(error, OpenError::QueueBusy { .. } | OpenError::XdpOccupied { .. }),
            "{error}"
        );
    }
    assert_eq!(before, program(&lab));
    drop(first.stop());
}

#[test]
fn auto_falls_back_to_packet_beside_another_program() {
    for flags in [libbpf_sys::XDP_FLAGS_DRV_MODE, libbpf_sys::XDP_FLAGS_SKB_MODE] {
        let lab = Lab::new();
        lab.in_port(|| crate::common::attach_passing_xdp("eth0", flags));
        let shown = |lab: &Lab| lab.output_in_port("ip", &["link", "show", "eth0"]);
        let before = shown(&lab);
        assert!(before.contains("prog/xdp"), "{before}");
        let port = lab.open(&config(ModeChoice::Auto));
        assert_eq!(port.mode(), Mode::Packet);
        let modes: Vec<_> = port.fallbacks().iter().map(|(m, _)| *m).collect();
        assert_eq!(modes, [Mode::Native]);
        let [(_, native)] = port.fallbacks() else { panic!("one reason") };
        assert!(native.contains("another XDP program"), "{native}");
        let worker = echo(port);
        let client = Raw::open(&lab);
        let frame = tcp((RAW_V4.into(), 40_000), (PORT_V4.into(), 80), 7, "A", &[1]);
        client.send(&frame);
        let mut buffer = vec![0; 2048];
        let len = client.receive_tcp(&mut buffer, Instant::now() + PATIENCE);
        assert_eq!(len, Some(frame.len()));
        drop(worker.stop());
        assert_eq!(before, shown(&lab));
    }
}

#[test]
fn steering_changes_lose_no_frame_of_what_stays() {
    for mode in [ModeChoice::Native, ModeChoice::Packet] {
        let lab = Lab::new();
        let (mut ports, mut maps) = lab.in_port(|| {
            let opened = Port::open(&config(mode), &steering());
            opened.expect("the port opens")
        });
        let worker = echo(ports.remove(0));
        let stop = Arc::new(AtomicU32::new(0));
        let stopping = Arc::clone(&stop);
        // Beside the thread that serves the frames.
        let changing = thread::spawn(move || {
            let mut changes = 0_u32;
            while stopping.load(Ordering::Relaxed) == 0 {
                let mut next = steering();
                let odd = changes % 2 == 1;
                if odd {
                    next.frontends.truncate(1);
                    next.addresses.truncate(1);
                    next.ports = 20_000..=60_000;
                }
                maps.set(&next).expect("a change");
                changes += 1;
            }
            changes
        });
        let client = Raw::open(&lab);
        let mut buffer = vec![0; 2048];
        for round in 0..3000 {
            let to = if round % 2 == 0 { 80 } else { 20_000 };
            let frame = tcp((RAW_V4.into(), 40_000), (PORT_V4.into(), to), round, "A", &[]);
            client.send(&frame);
            let len = client.receive_tcp(&mut buffer, Instant::now() + PATIENCE);
            assert_eq!(len, Some(frame.len()), "{mode:?} round {round}");
            assert_eq!(buffer[38..42], round.to_be_bytes());
        }
        stop.store(1, Ordering::Relaxed);
        let changes = changing.join().expect("no panic");
        assert!(changes > 100, "{changes}");
        assert_eq!(worker.stop().0.stats().rx_frames, 3000);
    }
}

#[test]
fn errors_say_what_to_change() {
    let lab = Lab::new();
    let open = |config: Config, steering: Steering| {
        let result = lab.in_port(|| Port::open(&config, &steering));
        result.err().expect("an error").to_string()
    };
    let missing = open(Config { interface: "eth7".into(), ..config(ModeChoice::Auto) }, steering());
    assert!(missing.contains("eth7") && missing.contains("lo, eth0"), "{missing}");
    let mut odd = config(ModeChoice::Auto);
    odd.rx_ring = 1000;
    let odd = open(odd, steering());
    assert!(odd.contains("rx_ring = 1000") && odd.contains("power of two"), "{odd}");
    let mut few = config(ModeChoice::Native);
    few.frames = 100;
    let few = open(few, steering());
    assert!(few.contains("frames = 100") && few.contains("3265"), "{few}");
    lab.ip_in_port("link set eth0 mtu 9001");
    for mode in [ModeChoice::Native, ModeChoice::Generic] {
        let large = open(config(mode), steering());
        assert!(
            large.contains("MTU of 9001") && large.contains("3826") && large.contains("packet"),
            "{large}"
        );
    }
    lab.ip_in_port("link set eth0 mtu 1500");
    lab.ip_in_port("link set eth0 down");
    let down = open(config(ModeChoice::Auto), steering());
    assert!(down.contains("ip link set eth0 up"), "{down}");
}

#[test]
fn a_missing_capability_is_named() {
    use rustix::thread::{CapabilitySet as Set, capabilities, set_capabilities};
    let lab = Lab::new();
    for (dropped, name, mode) in [
        (Set::NET_RAW, "CAP_NET_RAW", ModeChoice::Auto),
        (Set::NET_ADMIN, "CAP_NET_ADMIN", ModeChoice::Auto),
        (Set::BPF | Set::SYS_ADMIN, "CAP_BPF", ModeChoice::Auto),
        (Set::PERFMON | Set::SYS_ADMIN, "CAP_PERFMON", ModeChoice::Native),
    ] {
        // Capabilities belong to the thread, which ends here.
        let message = lab.in_port(|| {
            let mut sets = capabilities(None).expect("capabilities");
            sets.effective.remove(dropped);
            set_capabilities(None, sets).expect("giving up is allowed");
            assert_eq!(baton_xsk::probe_capabilities().len(), 1);
            let result = Port::open(&config(mode), &steering());
            result.err().expect("an error").to_string()
        });
        assert!(message.contains(name), "{message}");
    }
    assert!(baton_xsk::probe_capabilities().is_empty());
}

#[test]
fn a_removed_interface_ends_waiting_with_an_error() {
    for mode in MODES {
        let lab = Lab::new();
        let mut port = lab.open(&config(mode));
        let wake = crate::common::eventfd();
        let timeout = Some(Duration::from_millis(100));
        port.wait(timeout, wake.as_fd()).expect("still there");
        lab.ip_in_port("link del eth0");
        until("an error", || port.wait(timeout, wake.as_fd()).is_err());
        drop(port);
    }
}

#[test]
fn waiting_ends_when_woken() {
    for mode in MODES {
        let lab = Lab::new();
        let mut port = lab.open(&config(mode));
        let wake = crate::common::eventfd();
        let writer = wake.try_clone().expect("dup");
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            rustix::io::write(&writer, &1_u64.to_ne_bytes()).expect("an eventfd takes 1");
        });
        // Whatever the kernel sends on its own may end a wait early; being woken ends all.
        until("the wake", || port.wait(None, wake.as_fd()).expect("the interface stays"));
        thread.join().expect("no panic");
    }
}

#[test]
fn ping_and_other_tcp_stay_with_the_kernel() {
    for mode in MODES {
        let lab = Lab::new();
        let worker = echo(lab.open(&config(mode)));
        let listener =
            lab.in_port(|| std::net::TcpListener::bind((PORT_V4, 8000)).expect("the port is free"));
        let server = thread::spawn(move || {
            let (mut stream, peer) = listener.accept().expect("a client");
            assert_eq!(peer.ip(), CLIENT_V4);
            std::io::copy(&mut stream.try_clone().expect("dup"), &mut stream).expect("an echo")
        });
        lab.in_client(|| {
            use std::io::{Read, Write};
            let mut stream = std::net::TcpStream::connect((PORT_V4, 8000)).expect("connected");
            stream.write_all(&[5; 100_000]).expect("sent");
            stream.shutdown(std::net::Shutdown::Write).expect("closed");
            let mut back = Vec::new();
            stream.read_to_end(&mut back).expect("received");
            assert!(back == [5; 100_000]);
        });
        assert_eq!(server.join().expect("no panic"), 100_000);
        assert_eq!(worker.stop().0.stats().rx_frames, 0, "{mode:?}");
    }
}

#[test]
fn a_port_can_be_opened_again_at_once() {
    for mode in MODES {
        let lab = Lab::new();
        for _ in 0..10 {
            drop(lab.open(&config(mode)));
        }
    }
}
