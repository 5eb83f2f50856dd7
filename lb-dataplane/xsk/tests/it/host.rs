//! The way through the host's own stack: its limits, and that nothing of it is left. What it
//! carries is tested with real servers in `e2e/ns`.

use crate::common::{CLIENT_V4, CLIENT_V6, Lab, PORT_MAC, PORT_V4, PORT_V6, RawIp, config, tcp};
use baton_xsk::{Config, Disposition, HOST_MAC, ModeChoice, Port};
use rustix::net::RecvFlags;
use std::{io::ErrorKind, net::SocketAddr, net::TcpStream, os::fd::AsFd, time::Duration};

/// The raw sockets' buffers hold 8 MiB; more than this has no room.
const FLOOD: usize = 2_000;

fn host(mode: ModeChoice) -> Config {
    Config { host: true, ..config(mode) }
}

/// Takes all that is there; what each frame is.
fn take(port: &mut Port) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let wake = crate::common::eventfd();
    port.wait(Some(Duration::ZERO), wake.as_fd()).expect("the interface stays");
    while port.process(&mut |buffer: &mut [u8], len: usize, _: &mut baton_xsk::Tx<'_>| {
        frames.push(buffer[..len].to_vec());
        Disposition::Release
    }) > 0
    {}
    frames
}

#[test]
fn what_the_kernel_delivers_to_the_host_is_a_frame_from_it() {
    for mode in crate::common::MODES {
        let lab = Lab::new();
        let mut port = lab.open(&host(mode));
        let raw = RawIp::open(&lab);
        for (own, number) in [(PORT_V4.into(), 20_000), (PORT_V6.into(), 80)] {
            let mut frame = tcp((own, 40_000), (own, number), 7, "A", b"abc");
            if own.is_ipv6() {
                // A class of service, and the mark of congestion on the way (RFC 3168).
                frame[14..16].copy_from_slice(&[0x6a, 0x30]);
                // Of a packet that goes round it becomes 0 some time.
                frame[21] = 9;
            }
            raw.send(&frame);
            frame[..6].copy_from_slice(&PORT_MAC);
            frame[6..12].copy_from_slice(&HOST_MAC);
            if own.is_ipv4() {
                // The kernel numbers the packets of a raw socket that have no number.
                frame[18..20].fill(0);
                frame[24..26].fill(0);
            }
            let mut got = take(&mut port);
            assert_eq!(got.len(), 1, "{mode:?} {own}: {got:?}");
            if own.is_ipv4() {
                got[0][18..20].fill(0);
                got[0][24..26].fill(0);
            }
            assert_eq!(got[0], frame, "{mode:?} {own}");
        }
        // Of others nothing is seen.
        raw.send(&tcp((PORT_V4.into(), 1), (PORT_V4.into(), 81), 7, "A", b""));
        assert_eq!(take(&mut port), Vec::<Vec<u8>>::new());
        assert_eq!(port.stats().host.rx_frames, 2);
    }
}

#[test]
fn what_has_no_room_is_counted_and_what_is_large_is_cut() {
    let lab = Lab::new();
    let mut port = lab.open(&host(ModeChoice::Native));
    let raw = RawIp::open(&lab);
    let (from, to) = ((PORT_V4.into(), 40_000), (PORT_V4.into(), 80));
    let large = tcp(from, to, 7, "A", &[7; 60_000]);
    for _ in 0..FLOOD {
        raw.send(&large);
    }
    // Nobody knows how large its segments were: such that they fit the interface.
    let frames = take(&mut port);
    let stats = port.stats().host;
    assert!(stats.rx_lost > 0, "{stats:?}");
    let each = 60_000_usize.div_ceil(1_460);
    assert_eq!(frames.len(), (FLOOD - stats.rx_lost as usize) * each);
    assert!(frames.iter().all(|frame| frame.len() <= 1_514));
    assert_eq!(stats.rx_segmented, frames.len() as u64);
    // There is room again.
    raw.send(&tcp(from, to, 7, "A", b"abc"));
    assert_eq!(take(&mut port).len(), 1);
    // Headers that end nowhere.
    let mut nonsense = large;
    nonsense[14 + 20 + 12] = 0;
    raw.send(&nonsense);
    assert!(take(&mut port).is_empty());
    assert_eq!(port.stats().host.rx_unsegmentable, 1);
}

#[test]
fn what_the_hosts_stack_refuses_is_counted_and_keeps_no_buffer() {
    let lab = Lab::new();
    let mut port = lab.open(&host(ModeChoice::Native));
    // Without a route, larger than any, and not IP at all.
    let far = tcp((PORT_V4.into(), 80), ([203, 0, 113, 1].into(), 9), 7, "A", b"");
    let mut nonsense = far.clone();
    nonsense[14] = 0;
    for frame in [far, nonsense] {
        let mut tx = port.tx();
        let buffer = tx.frame().expect("buffers are left");
        buffer[..frame.len()].copy_from_slice(&frame);
        buffer[..6].copy_from_slice(&HOST_MAC);
        tx.send(frame.len());
    }
    port.flush();
    let stats = port.stats();
    assert_eq!((stats.host.tx_frames, stats.host.tx_refused), (0, 2));
    assert_eq!(stats.tx_frames, 0, "none went by the interface");
    assert!(port.frames().is_complete(), "{:?}", port.frames());
}

#[test]
fn the_kernel_is_silent_while_the_port_is_open_and_answers_again_afterwards() {
    let lab = Lab::new();
    let connect = |own: SocketAddr| {
        lab.in_port(|| TcpStream::connect_timeout(&own, Duration::from_millis(300)))
            .map_err(|error| error.kind())
    };
    let own = [SocketAddr::from((PORT_V4, 80)), SocketAddr::from((PORT_V6, 29_999))];
    let port = lab.open(&host(ModeChoice::Packet));
    for own in own {
        assert_eq!(connect(own).err(), Some(ErrorKind::TimedOut), "{own}");
    }
    let other = SocketAddr::from((PORT_V4, 81));
    assert_eq!(connect(other).err(), Some(ErrorKind::ConnectionRefused));
    drop(port);
    for own in own {
        assert_eq!(connect(own).err(), Some(ErrorKind::ConnectionRefused));
    }
}

/// Sends a frame by the host's stack.
fn send_by_host(port: &mut Port, frame: &[u8]) {
    let mut tx = port.tx();
    let buffer = tx.frame().expect("buffers are left");
    buffer[..frame.len()].copy_from_slice(frame);
    buffer[..6].copy_from_slice(&HOST_MAC);
    tx.send(frame.len());
}

/// Whether this is an error from the host about a segment that is too long, quotes it, and says
/// this MTU.
fn is_told(frame: &[u8], of: &[u8], mtu: u16) -> bool {
    let v6 = of[12..14] == [0x86, 0xdd];
    let (header, protocol, kind) =
        if v6 { (40, frame[20], [2, 0]) } else { (20, frame[23], [3, 4]) };
    let (icmp, quoted) = (14 + header, 14 + header + 8);
    protocol == if v6 { 58 } else { 1 }
        && frame[..6] == PORT_MAC
        && frame[6..14] == [&HOST_MAC[..], &of[12..14]].concat()
        && frame[icmp..icmp + 2] == kind
        && frame[icmp + 6..quoted] == mtu.to_be_bytes()
        // Ports and number behind the quoted addresses.
        && frame[quoted + header - 8..quoted + header + 8] == of[14 + header - 8..14 + header + 8]
}

/// The kernel has no socket that it could tell, so that nobody heard, and the sender repeated
/// itself until it gave up.
#[test]
fn a_path_that_takes_less_is_told_to_the_port() {
    for mode in [ModeChoice::Native, ModeChoice::Packet] {
        let lab = Lab::new();
        let mut port = lab.open(&host(mode));
        let ends = [(PORT_V4.into(), CLIENT_V4.into()), (PORT_V6.into(), CLIENT_V6.into())];
        let frames = ends.map(|(own, client)| tcp((own, 80), (client, 9), 7, "A", &[7; 1_400]));
        let told = |port: &mut Port, mtu| {
            for frame in &frames {
                send_by_host(port, frame);
                let got = take(port);
                // Where the kernel says so itself, it is said twice.
                assert!(!got.is_empty(), "{mode:?} {mtu}");
                let told = got.iter().all(|got| is_told(got, frame, mtu));
                assert!(told, "{mode:?} {mtu}: {got:?}");
            }
        };
        // The device's own, of which a raw socket says nothing but that.
        lab.ip_in_port("link set eth0 mtu 1350");
        told(&mut port, 1_350);
        // The kernel knows a path's.
        lab.ip_in_port(&format!("route replace {CLIENT_V4}/32 dev eth0 mtu lock 1300"));
        lab.ip_in_port(&format!("-6 route replace {CLIENT_V6}/128 dev eth0 mtu lock 1300"));
        lab.ip_in_port("link set eth0 mtu 1500");
        told(&mut port, 1_300);
        // A router on the way says the same; what is about others' segments is not for the port.
        send_by_host(&mut port, &frames[0]);
        let error = take(&mut port).remove(0);
        let mut other = error.clone();
        other[63] += 1;
        let checksum = u16::from_be_bytes([error[36], error[37]]) - 1;
        other[36..38].copy_from_slice(&checksum.to_be_bytes());
        let raw = RawIp::open(&lab);
        raw.send(&error);
        raw.send(&other);
        let got = take(&mut port);
        assert!(got.len() == 1 && is_told(&got[0], &frames[0], 1_300));
        assert!(port.frames().is_complete(), "{:?}", port.frames());
    }
}

/// Of a path that takes less than pods are told of, the engine lets packets be cut: a router would,
/// a raw socket refuses them.
#[test]
fn what_may_be_cut_reaches_a_device_that_takes_less() {
    let lab = Lab::new();
    let mut port = lab.open(&host(ModeChoice::Native));
    let client = lab.in_client(|| {
        use rustix::net::{AddressFamily, SocketType, ipproto, socket};
        socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::TCP)).expect("root may")
    });
    let receive = || {
        let mut packet = [0; 2_048];
        let got = rustix::net::recv(&client, &mut packet, RecvFlags::DONTWAIT);
        got.ok().map(|(_, len)| packet[20..len].to_vec())
    };
    lab.ip_in_port("link set eth0 mtu 600");
    let (own, peer) = ((PORT_V4.into(), 80), (CLIENT_V4.into(), 9));
    let mut sent = tcp(own, peer, 7, "A", &[7; 1_400]);
    for may_be_cut in [false, true] {
        // A number, and whether it must not be. The kernel writes the checksum.
        let flags = if may_be_cut { 0 } else { 0x40 };
        sent[18..22].copy_from_slice(&[0, 9, flags, 0]);
        send_by_host(&mut port, &sent);
        let mut told = take(&mut port);
        // The client's kernel answers that nobody listens.
        told.retain(|frame| is_told(frame, &sent, 600));
        assert_eq!(told.len(), usize::from(!may_be_cut), "{told:?}");
        assert_eq!(receive(), may_be_cut.then(|| sent[34..].to_vec()));
    }
    let stats = port.stats().host;
    assert_eq!((stats.tx_frames, stats.tx_refused), (1, 1), "{stats:?}");
}

/// One socket sends for all, and what waits in a device's queue is held against it: with the
/// kernel's usual limit 95 packets to a slow tunnel's clients kept the node's own Pods from getting
/// any.
#[test]
fn what_a_slow_device_has_queued_holds_up_nobody_else() {
    let lab = Lab::new();
    lab.ip_in_port("link add slow type veth peer name other");
    for device in ["slow", "other"] {
        lab.ip_in_port(&format!("link set {device} up"));
    }
    lab.ip_in_port("addr add 10.79.0.1/24 dev slow");
    lab.ip_in_port("neigh add 10.79.0.2 lladdr 02:00:00:00:00:09 dev slow");
    let queue = "qdisc add dev slow root tbf rate 8mbit burst 3k limit 4mb";
    let arguments: Vec<&str> = queue.split(' ').collect();
    lab.output_in_port("tc", &arguments);
    let mut port = lab.open(&host(ModeChoice::Native));
    let slow = tcp((PORT_V4.into(), 80), ([10, 79, 0, 2].into(), 9), 7, "A", &[7; 1_400]);
    for _ in 0..500 {
        send_by_host(&mut port, &slow);
    }
    let waiting = lab.output_in_port("tc", &["-s", "qdisc", "show", "dev", "slow"]);
    assert!(waiting.contains("dropped 0,"), "{waiting}");
    let own = tcp((PORT_V4.into(), 9), (PORT_V4.into(), 80), 7, "A", b"abc");
    send_by_host(&mut port, &own);
    let stats = port.stats().host;
    assert_eq!((stats.tx_refused, take(&mut port).len()), (0, 1), "{stats:?}");
}
