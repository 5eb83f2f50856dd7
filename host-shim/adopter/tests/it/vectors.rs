//! The C program and the Rust codec agree on every byte: the vectors of the wire page, and messages
//! built by `baton-packet`, are put before the real adopter, and its Answers before `baton-packet`.

use crate::common::{INTERFACE, Lab, PEER_MAC, POD_MAC, wait_for};
use baton_adopter::{Adopter, Outcome};
use baton_packet::{
    Adoption, AdoptionKey, Decoded, Flags, Mac, MessageKind, Reason, SegmentSpec, SeqNumber,
    build_adoption, decode, parse_adoption,
};
use std::net::IpAddr;

fn bytes(hex: &serde_json::Value) -> Vec<u8> {
    let digits = hex.as_str().expect("hexadecimal text");
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits"))
        .collect()
}

#[test]
fn the_vectors_of_the_wire_page() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/adoption-vectors.json");
    let text = std::fs::read_to_string(file).expect("docs/adoption-vectors.json");
    let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let vectors = file["vectors"].as_array().expect("a list");
    let lab = Lab::new();
    let adopter = Adopter::load(None).expect("the kernel takes the adopter");
    let _attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
    let mut checked = [0; 2];
    for vector in vectors {
        let name = &vector["name"];
        let key = bytes(&vector["key"]).try_into().expect("16 bytes");
        let epoch = vector["epoch"].as_u64().expect("a number") as u8;
        adopter.set_key(epoch, &key).expect("set a key");
        let address = |field: &str| -> IpAddr {
            vector[field].as_str().expect("an address").parse().expect("an address")
        };
        let tcp = bytes(&vector["tcp_header"]);
        assert_eq!(tcp.len(), 60);
        let mut frame = [POD_MAC, PEER_MAC].concat();
        match (address("src"), address("dst")) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                frame.extend([8, 0, 0x45, 0, 0, 80, 0, 0, 0x40, 0, 64, 6, 0, 0]);
                frame.extend(src.octets());
                frame.extend(dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 60, 6, 64]);
                frame.extend(src.octets());
                frame.extend(dst.octets());
            }
            _ => panic!("{name}: both ends have the same version"),
        }
        frame.extend(&tcp);
        // Nothing listens in this namespace, and its number is another one: who is not of that
        // opinion has a wrong tag.
        let answer = vector["kind"] == "answer";
        let outcome = match vector["kind"].as_str() {
            Some("answer") => Outcome::StrayAnswer,
            Some("probe") => Outcome::NoListener,
            _ => Outcome::Renew,
        };
        let count = |outcome| adopter.counters().expect("counters").of(outcome);
        let before = count(outcome);
        lab.peer.send(&frame, None);
        wait_for(&format!("{name} is counted"), || count(outcome) == before + 1);
        if !answer {
            // One bit of the tag wrong, and it is not. The checksum is left to the device, to be
            // none of the reasons.
            let before = count(Outcome::BadTag);
            let last = frame.len() - 21;
            frame[last] ^= 1;
            lab.peer.send(&frame, Some(frame.len() - tcp.len()));
            wait_for(&format!("{name} with a wrong tag"), || count(Outcome::BadTag) == before + 1);
        }
        checked[usize::from(answer)] += 1;
        adopter.retire_key(epoch).expect("retire");
    }
    assert!(checked.iter().all(|n| *n > 0), "{checked:?}");
}

#[test]
fn what_the_dataplane_builds_is_adopted_and_what_is_answered_it_reads() {
    let key = AdoptionKey::from_bytes([0x5a; 16]);
    for v6 in [false, true] {
        let lab = Lab::new();
        let adopter = Adopter::load(None).expect("the kernel takes the adopter");
        adopter.set_key(14, &[0x5a; 16]).expect("set a key");
        let _attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
        let (pod, ours) = crate::common::ends(v6, 8080, 40_000);
        let message = Adoption {
            kind: MessageKind::Adopt,
            mss: 1_300,
            server_wscale: 7,
            client_wscale: 8,
            wscale_ok: true,
            sack_ok: true,
            timestamps_ok: true,
            ecn_ok: false,
            epoch: 14,
            server_ts: 123_456,
            namespace: adopter
                .namespace_number(lab.pod.cookie())
                .expect("a number")
                .expect("it is attached"),
        };
        let spec = SegmentSpec {
            src_mac: Mac(PEER_MAC),
            dst_mac: Mac(POD_MAC),
            src: ours.ip(),
            dst: pod.ip(),
            src_port: ours.port(),
            dst_port: pod.port(),
            seq: SeqNumber(77),
            ack: SeqNumber(88),
            flags: Flags::ACK,
            window: 500,
            timestamps: Some((1, 2)),
            payload: &[],
        };
        let mut frame = [0; 128];
        let length = build_adoption(&mut frame, &spec, &message, &key).expect("it fits");

        lab.peer.send(&frame[..length], None);
        let answer = loop {
            let deadline = std::time::Instant::now() + crate::common::DEADLINE;
            let (frame, _) = lab.peer.receive(deadline).expect("an answer");
            if let Ok(Decoded::Tcp(segment)) = decode(&frame)
                && segment.src_port == pod.port()
            {
                break parse_adoption(&frame, &segment).expect("an adoption message");
            }
        };
        assert_eq!(answer.epoch(), 14);
        let answer = answer.verify(&key).expect("the tag is right");
        assert_eq!(answer.kind, MessageKind::Answer(Reason::NoListener));

        // That refusal is final; another port is another adoption.
        let listener = lab.listen(pod);
        let (_, ours) = crate::common::ends(v6, 8080, 40_001);
        let spec = SegmentSpec { src_port: ours.port(), ..spec };
        let length = build_adoption(&mut frame, &spec, &message, &key).expect("it fits");
        lab.peer.send(&frame[..length], None);
        assert_eq!(listener.accept().expect("accept").1, ours);
    }
}
