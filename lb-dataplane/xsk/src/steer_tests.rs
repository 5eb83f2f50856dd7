//! The programs, run by the kernel on single packets, and their attachment.

use super::*;
use crate::abi::XDP_PACKET_HEADROOM;
use cases::{
    FAR, FAR6, OTHER_MAC, OWN, OWN_MAC, OWN6, VIRTUAL,
    Verdict::{FirstFragment, Fragment, Other, Ours},
    cases, changed, steering, tcp4, tcp6,
};

#[path = "steer_cases.rs"]
mod cases;

/// Runs a program once on a packet; the value that it returns.
fn run(program: BorrowedFd<'_>, packet: &[u8]) -> u32 {
    // SAFETY: all-zero bytes are the defaults of the options.
    let mut options: libbpf_sys::bpf_test_run_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t;
    options.data_in = packet.as_ptr().cast();
    options.data_size_in = packet.len() as u32;
    options.repeat = 1;
    // SAFETY: a valid descriptor; options and packet outlive the call.
    let result =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    assert_eq!(result, 0, "running a program on a packet needs root");
    options.retval
}

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_UNSPEC: u32 = u32::MAX;

fn load(programs: Programs) -> (Steer, SteeringMaps) {
    Steer::load(programs, 2048, &steering(), 1, OWN_MAC).expect("root may load programs")
}

#[test]
fn each_packet_goes_where_it_belongs() {
    let (xdp, _maps) = load(Programs::Xdp);
    let (packet, _maps) = load(Programs::Packet);
    for (name, frame, verdict) in cases() {
        let (before, before_packet) = (xdp.stats(), packet.stats());
        // No socket is in the XSKMAP here, so the program passes even what is ours: the counter
        // tells.
        if frame.len() > 14 {
            let action = run(xdp.xdp.as_ref().expect("loaded").as_fd(), &frame);
            let wanted = if verdict == FirstFragment { XDP_DROP } else { XDP_PASS };
            assert_eq!(action, wanted, "{name}");
            let after = xdp.stats();
            let counted = match verdict {
                Ours => after.no_socket - before.no_socket,
                Fragment | FirstFragment => after.fragments - before.fragments,
                Other => after.passed - before.passed,
            };
            assert_eq!(counted, 1, "{name}: {after:?}");
        }
        // The kernel's test run refuses frames without a whole IP header for programs on socket
        // buffers.
        if frame.len() < 14 + 20 {
            continue;
        }
        let action = run(packet.tc.as_ref().expect("loaded").as_fd(), &frame);
        let wanted =
            if matches!(verdict, Ours | FirstFragment) { TC_ACT_SHOT } else { TC_ACT_UNSPEC };
        assert_eq!(action, wanted, "{name}");
        let after = packet.stats();
        let counted = match verdict {
            Ours => after.taken - before_packet.taken,
            Fragment | FirstFragment => after.fragments - before_packet.fragments,
            Other => after.passed - before_packet.passed,
        };
        assert_eq!(counted, 1, "{name}: {after:?}");
        // The test run gives a socket filter no Ethernet header as a packet socket does;
        // `tests/it/kernel.rs` runs it.
    }
}

/// The kernel takes such a frame as one without a tag, and would answer it.
#[test]
fn a_tag_that_says_a_priority_alone_is_none() {
    let (steer, _maps) = load(Programs::Xdp);
    let program = steer.xdp.as_ref().expect("loaded").as_fd();
    let tagged = |tag: &[u8]| {
        changed(tcp4(FAR, 5000, OWN, 80), |f| {
            f.splice(12..12, tag.iter().copied());
        })
    };
    for (tag, ours) in [
        (&[0x81, 0, 0xe0, 0][..], 1),
        (&[0x88, 0xa8, 0, 0, 0x81, 0, 0x20, 0], 1),
        (&[0x81, 0, 0xe1, 0], 0),
        (&[0x81, 0, 0, 0, 0x81, 0, 0, 5], 0),
    ] {
        let before = steer.stats().no_socket;
        run(program, &tagged(tag));
        assert_eq!(steer.stats().no_socket - before, ours, "{tag:x?}");
    }
}

#[test]
fn the_interface_may_get_another_hardware_address() {
    let (steer, mut maps) = load(Programs::Xdp);
    let ours = |mac: [u8; 6]| {
        let frame = changed(tcp4(FAR, 5000, OWN, 80), |f| f[..6].copy_from_slice(&mac));
        let before = steer.stats().no_socket;
        run(steer.xdp.as_ref().expect("loaded").as_fd(), &frame);
        steer.stats().no_socket > before
    };
    assert!(ours(OWN_MAC) && !ours(OTHER_MAC));
    maps.set_mac(OTHER_MAC).expect("a change");
    assert!(ours(OTHER_MAC) && !ours(OWN_MAC));
    maps.set(&steering()).expect("a change");
    assert!(ours(OTHER_MAC) && !ours(OWN_MAC), "it stays");
}

#[test]
fn a_frame_larger_than_a_buffer_is_dropped_and_counted() {
    let (steer, _maps) = load(Programs::Xdp);
    let program = steer.xdp.as_ref().expect("loaded").as_fd();
    let room = 4096 - XDP_PACKET_HEADROOM as usize;
    for (bytes, action, oversize) in
        [(2048, XDP_PASS, 0), (2049, XDP_DROP, 1), (room - 512, XDP_DROP, 2)]
    {
        let mut frame = tcp4(FAR, 5000, OWN, 80);
        frame.resize(bytes, 0);
        assert_eq!(run(program, &frame), action, "{bytes}");
        assert_eq!(steer.stats().oversize, oversize, "{bytes}");
    }
    let mut other = tcp4(FAR, 5000, OWN, 81);
    other.resize(3000, 0);
    assert_eq!(run(program, &other), XDP_PASS);
    assert_eq!(steer.stats().oversize, 2);
}

#[test]
fn changes_add_and_remove() {
    let (steer, mut maps) = load(Programs::Packet);
    let ours = |steer: &Steer, frame: &[u8]| {
        run(steer.tc.as_ref().expect("loaded").as_fd(), frame) == TC_ACT_SHOT
    };
    let kept = tcp4(FAR, 5000, OWN, 80);
    let old_frontend = tcp4(FAR, 5000, VIRTUAL, 443);
    let old_port = tcp4(FAR, 80, OWN, 20_000);
    let new_frontend = tcp4(FAR, 5000, [10, 0, 9, 10], 8080);
    let new_port = tcp4(FAR, 80, OWN, 40_000);
    let before = [&kept, &old_frontend, &old_port];
    assert!(before.iter().all(|f| ours(&steer, f)));
    assert!(!ours(&steer, &new_frontend) && !ours(&steer, &new_port));
    let changed = Steering {
        frontends: vec![(OWN.into(), 80), ([10, 0, 9, 10].into(), 8080)],
        by_address: Vec::new(),
        addresses: vec![OWN.into()],
        ports: 40_000..=49_999,
        backends: None,
    };
    maps.add(&changed).expect("a change");
    let after = [&kept, &new_frontend, &old_frontend, &old_port];
    assert!(after.iter().all(|f| ours(&steer, f)), "nothing goes");
    assert!(!ours(&steer, &new_port), "the ports stay");
    maps.set(&changed).expect("a change");
    assert!([&kept, &new_frontend, &new_port].iter().all(|f| ours(&steer, f)));
    assert!(!ours(&steer, &old_frontend) && !ours(&steer, &old_port));
    // The own address without frontends is still the own address.
    let legs = Steering { frontends: Vec::new(), ..changed };
    maps.set(&legs).expect("a change");
    assert!(ours(&steer, &new_port) && !ours(&steer, &kept));
    maps.set(&steering()).expect("a change back");
    assert!(before.iter().all(|f| ours(&steer, f)));
}

/// On a node's network the node's own connections may have such ports.
#[test]
fn where_backends_are_known_nothing_else_is_a_legs() {
    let (steer, mut maps) = load(Programs::Xdp);
    let ours = |steer: &Steer, frame: &[u8]| {
        let before = steer.stats().no_socket;
        run(steer.xdp.as_ref().expect("loaded").as_fd(), frame);
        steer.stats().no_socket > before
    };
    let leg = |port| tcp4(FAR, port, OWN, 20_000);
    let leg6 = |port| tcp6(FAR6, port, OWN6, 20_000);
    let client = tcp4(FAR, 5_000, OWN, 80);
    assert!(ours(&steer, &leg(80)) && ours(&steer, &leg6(81)));
    for (backends, v4, v6) in [
        (vec![(FAR.into(), 80)], [true, false], [false, false]),
        (vec![(FAR.into(), 81), (FAR6.into(), 80)], [false, true], [true, false]),
        (vec![], [false; 2], [false; 2]),
    ] {
        let known = Steering { backends: Some(backends), ..steering() };
        maps.set(&known).expect("a change");
        assert_eq!([80, 81].map(|port| ours(&steer, &leg(port))), v4);
        assert_eq!([80, 81].map(|port| ours(&steer, &leg6(port))), v6);
        assert!(ours(&steer, &client));
    }
    let too_many =
        Steering { backends: Some(vec![(FAR.into(), 80); crate::BACKENDS_MAX + 1]), ..steering() };
    assert!(matches!(maps.set(&too_many), Err(OpenError::Steering { .. })));
    maps.set(&steering()).expect("a change back");
    assert!(ours(&steer, &leg(80)));
}

#[test]
fn as_many_frontends_as_promised_can_be_exchanged_at_once() {
    let (_steer, mut maps) = load(Programs::Packet);
    let many = |third: u8| Steering {
        frontends: (0..crate::FRONTENDS_MAX)
            .map(|i| ([10, third, (i >> 8) as u8, i as u8].into(), 80))
            .collect(),
        ..steering()
    };
    maps.set(&many(1)).expect("all fit");
    maps.add(&many(2)).expect("all fit beside the old");
    assert_eq!(maps.count()[0], 2 * crate::FRONTENDS_MAX);
    maps.set(&many(2)).expect("the old go");
    assert_eq!(maps.count()[0], crate::FRONTENDS_MAX);
    let mut too_many = many(3);
    too_many.frontends.push((OWN.into(), 80));
    assert!(matches!(maps.set(&too_many), Err(OpenError::Steering { .. })));
}

/// Kernels before 6.6 have no tcx: the older way must attach, replace what a killed process left,
/// and detach.
#[test]
fn clsact_attaches_replaces_and_detaches() {
    let shown = std::thread::spawn(|| {
        // SAFETY: only this thread, which ends here, enters the new network namespace.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
            .expect("root may make a namespace");
        let interface = Interface::find("lo").expect("every namespace has one");
        let filters = || {
            let output = std::process::Command::new("tc")
                .args(["filter", "show", "dev", "lo", "ingress"])
                .output()
                .expect("iproute2 is installed");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.matches("handle 0xba70").count()
        };
        let (left_over, _maps) = load(Programs::Packet);
        let program = left_over.tc.as_ref().expect("loaded").as_fd();
        attach_clsact(program, &interface).expect("clsact attaches");
        let after_kill = filters();
        let (mut steer, _maps) = load(Programs::Packet);
        let program = steer.tc.as_ref().expect("loaded").as_fd();
        attach_clsact(program, &interface).expect("clsact replaces");
        steer.attached = Some(Attached::Clsact(interface.index));
        let replaced = filters();
        drop(steer);
        [after_kill, replaced, filters()]
    });
    assert_eq!(shown.join().expect("no panic"), [1, 1, 0]);
}
