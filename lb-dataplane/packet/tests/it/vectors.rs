//! `docs/adoption-vectors.json`: the contract between this crate and the BPF program, in numbers.
//!
//! The file is generated here (`BATON_UPDATE_VECTORS=1 cargo test -p baton-packet --test it
//! vectors::`) and compared in every other run. Tag and tag input are checked against a second
//! SipHash and a second assembly of the input, both written from the papers alone, so that a
//! mistake in the crate cannot bless itself.

use baton_packet::{
    ADOPTION_HEADER_BYTES, Adoption, AdoptionKey, Flags, Mac, MessageKind, Reason, SegmentSpec,
    SeqNumber, build_adoption, parse_adoption,
};
use serde::{Deserialize, Serialize};
use std::{fmt::Write, net::IpAddr, path::PathBuf};

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct File {
    about: String,
    vectors: Vec<Vector>,
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Vector {
    name: String,
    /// `adopt`, `probe`, `forget` or `answer`.
    kind: String,
    /// Label and code of an answer's reason.
    reason: Option<String>,
    reason_code: Option<u16>,
    key: String,
    epoch: u8,
    src: IpAddr,
    dst: IpAddr,
    src_port: u16,
    dst_port: u16,
    seq: u32,
    ack: u32,
    tcp_flags: u8,
    window: u16,
    mss: u16,
    server_wscale: u8,
    client_wscale: u8,
    wscale_ok: bool,
    sack_ok: bool,
    timestamps_ok: bool,
    ecn_ok: bool,
    server_ts: u32,
    /// 16 hexadecimal digits.
    namespace: String,
    tsval: u32,
    tsecr: u32,
    tag_input: String,
    tag: String,
    tcp_header: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "{text}");
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// SipHash-2-4, from the paper (Aumasson, Bernstein 2012).
fn siphash(key: &[u8], message: &[u8]) -> u64 {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let (k0, k1) = (word(&key[..8]), word(&key[8..]));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let round = |v: &mut [u64; 4]| {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[1]);
        v[0] = v[0].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].rotate_left(32);
    };
    let mut padded = message.to_vec();
    padded.resize((message.len() + 1).next_multiple_of(8) - 1, 0);
    padded.push(message.len() as u8);
    for chunk in padded.chunks(8) {
        let m = word(chunk);
        v[3] ^= m;
        round(&mut v);
        round(&mut v);
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

/// The table of the wire format, field by field.
fn tag_input(v: &Vector) -> Vec<u8> {
    let mut input = Vec::new();
    for address in [v.src, v.dst] {
        match address {
            IpAddr::V4(v4) => {
                input.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
                input.extend_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => input.extend_from_slice(&v6.octets()),
        }
    }
    input.extend_from_slice(&v.src_port.to_be_bytes());
    input.extend_from_slice(&v.dst_port.to_be_bytes());
    input.extend_from_slice(&v.seq.to_be_bytes());
    input.extend_from_slice(&v.ack.to_be_bytes());
    input.extend_from_slice(match v.kind.as_str() {
        "adopt" => &[0xba, 0x70],
        "probe" => &[0xba, 0x71],
        "answer" => &[0xba, 0x72],
        "forget" => &[0xba, 0x73],
        "release" => &[0xba, 0x74],
        "transfer" => &[0xba, 0x75],
        other => panic!("{other}"),
    });
    input.extend_from_slice(&v.reason_code.unwrap_or(v.mss).to_be_bytes());
    input.push(v.server_wscale * 16 + v.client_wscale);
    input.push(
        u8::from(v.wscale_ok)
            + u8::from(v.sack_ok) * 2
            + u8::from(v.timestamps_ok) * 4
            + u8::from(v.ecn_ok) * 8
            + v.epoch * 16,
    );
    input.extend_from_slice(&v.window.to_be_bytes());
    input.extend_from_slice(&v.server_ts.to_be_bytes());
    input.extend_from_slice(&v.tsval.to_be_bytes());
    input.extend_from_slice(&v.tsecr.to_be_bytes());
    input.extend_from_slice(&unhex(&v.namespace));
    input
}

fn message(kind: MessageKind, epoch: u8, server_ts: u32) -> Adoption {
    Adoption {
        kind,
        mss: 1460,
        server_wscale: 7,
        client_wscale: 9,
        wscale_ok: true,
        sack_ok: true,
        timestamps_ok: true,
        ecn_ok: false,
        epoch,
        server_ts,
        namespace: match kind {
            MessageKind::Probe => 0,
            _ => 0xfeed_0123_4567_89ab,
        },
    }
}

/// Name, whether IPv6, key, message, timestamps.
type Case = (&'static str, bool, [u8; 16], Adoption, (u32, u32));

fn cases() -> Vec<Case> {
    use MessageKind::{Adopt, Answer, Probe};
    let counting: [u8; 16] = std::array::from_fn(|i| i as u8);
    let mixed = *b"\xf0\xe1\xd2\xc3\xb4\xa5\x96\x87\x78\x69\x5a\x4b\x3c\x2d\x1e\x0f";
    let stamps = (0x1122_3344, 0x5566_7788);
    let bare = Adoption {
        mss: 536,
        server_wscale: 0,
        client_wscale: 0,
        wscale_ok: false,
        sack_ok: false,
        timestamps_ok: false,
        ..message(Adopt, 1, 0)
    };
    let most = Adoption {
        mss: u16::MAX,
        server_wscale: 14,
        client_wscale: 14,
        ecn_ok: true,
        namespace: u64::MAX,
        ..message(Adopt, 15, u32::MAX)
    };
    let forget = |epoch| Adoption { kind: MessageKind::Forget, mss: 0, epoch, ..bare };
    let release = |epoch| Adoption { kind: MessageKind::Release, ..forget(epoch) };
    let transfer = |epoch| Adoption {
        kind: MessageKind::Transfer,
        mss: 8080,
        server_ts: 0x0a00_0007,
        ..forget(epoch)
    };
    vec![
        ("v4 adopt", false, counting, message(Adopt, 0, 1_000_000), stamps),
        ("v4 adopt without any option negotiated", false, mixed, bare, (0, 0)),
        ("v4 adopt with the largest values", false, [0xff; 16], most, (u32::MAX, u32::MAX)),
        ("v4 probe", false, counting, message(Probe, 3, 0), stamps),
        (
            "v4 answer no listener",
            false,
            counting,
            message(Answer(Reason::NoListener), 0, 0),
            stamps,
        ),
        (
            "v4 answer tuple in use with rcv_nxt",
            false,
            mixed,
            message(Answer(Reason::TupleInUse), 1, 0x89ab_cdef),
            stamps,
        ),
        (
            "v4 answer already adopted",
            false,
            mixed,
            message(Answer(Reason::AlreadyAdopted), 14, 0),
            (0, 0),
        ),
        ("v6 adopt", true, counting, message(Adopt, 0, 1_000_000), stamps),
        ("v6 adopt with the key of zeros", true, [0; 16], message(Adopt, 7, 42), stamps),
        ("v6 probe", true, mixed, message(Probe, 15, 0), stamps),
        (
            "v6 answer ready",
            true,
            mixed,
            // Ends are marked; three descriptors refer to the listener 0xbeef.
            message(Answer(Reason::Ready), 15, 0xbeef_0301),
            stamps,
        ),
        (
            "v6 answer accept queue full",
            true,
            counting,
            message(Answer(Reason::AcceptQueueFull), 2, 0),
            stamps,
        ),
        (
            "v6 answer kernel refused",
            true,
            counting,
            message(Answer(Reason::KernelRefused), 8, 0),
            stamps,
        ),
        (
            "v6 answer syncookies off",
            true,
            mixed,
            message(Answer(Reason::SyncookiesOff), 9, 0),
            stamps,
        ),
        (
            "v4 answer renew after 1.5 s",
            false,
            mixed,
            message(Answer(Reason::Renew), 1, 1_500),
            stamps,
        ),
        ("v4 forget", false, counting, forget(3), (0, 0)),
        ("v6 forget", true, mixed, forget(12), (0, 0)),
        ("v4 release", false, counting, release(3), (0, 0)),
        ("v6 release", true, mixed, release(12), (0, 0)),
        ("v4 transfer", false, counting, transfer(3), stamps),
        ("v6 transfer", true, mixed, transfer(12), stamps),
        (
            "v6 transfer to another node",
            true,
            mixed,
            Adoption { wscale_ok: true, ..transfer(12) },
            stamps,
        ),
        ("v4 answer moved", false, counting, message(Answer(Reason::Moved), 3, 0), (0, 0)),
        ("v4 answer released", false, counting, message(Answer(Reason::Released), 3, 0), (0, 0)),
        ("v6 answer kept", true, mixed, message(Answer(Reason::Kept), 12, 0), (0, 0)),
        ("v4 answer forgotten", false, counting, message(Answer(Reason::Forgotten), 3, 0), (0, 0)),
        (
            "v4 answer packet rules",
            false,
            mixed,
            // Ends are marked, Forgets answered; no listener is told of.
            message(Answer(Reason::PacketRules), 4, 5),
            stamps,
        ),
    ]
}

fn spec(v6: bool, answer: bool, timestamps: (u32, u32)) -> SegmentSpec<'static> {
    let address = |last: u8| -> IpAddr {
        if v6 {
            [0xfd, 0, 0xba, 0x70, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last].into()
        } else {
            [10, 244, 1, last].into()
        }
    };
    let to_pod = SegmentSpec {
        src_mac: Mac(crate::support::SRC_MAC),
        dst_mac: Mac(crate::support::DST_MAC),
        src: address(2),
        dst: address(200),
        src_port: 32_768,
        dst_port: 6379,
        seq: SeqNumber(0xffff_fff0),
        ack: SeqNumber(0x0102_0304),
        flags: Flags::ACK,
        window: 502,
        timestamps: Some(timestamps),
        payload: &[],
    };
    if !answer {
        return to_pod;
    }
    // An answer has both ends swapped, and each number in the other's place.
    SegmentSpec {
        src: to_pod.dst,
        dst: to_pod.src,
        src_port: to_pod.dst_port,
        dst_port: to_pod.src_port,
        seq: to_pod.ack,
        ack: to_pod.seq,
        ..to_pod
    }
}

fn generate() -> File {
    let vectors = cases().into_iter().map(|(name, v6, key, message, timestamps)| {
        let reason = match message.kind {
            MessageKind::Answer(reason) => Some(reason),
            _ => None,
        };
        let spec = spec(v6, reason.is_some(), timestamps);
        let mut buf = [0xa5; 200];
        let adoption_key = AdoptionKey::from_bytes(key);
        let length = build_adoption(&mut buf, &spec, &message, &adoption_key).unwrap();
        let frame = &buf[..length];
        let seg = crate::support::segment(frame);
        let header = &frame[usize::from(seg.l4)..];
        let read = parse_adoption(frame, &seg).unwrap().verify(&adoption_key).unwrap();
        let mut vector = Vector {
            name: name.to_owned(),
            kind: match message.kind {
                MessageKind::Adopt => "adopt",
                MessageKind::Probe => "probe",
                MessageKind::Forget => "forget",
                MessageKind::Release => "release",
                MessageKind::Transfer => "transfer",
                MessageKind::Answer(_) => "answer",
            }
            .to_owned(),
            reason: reason.map(|r| r.label().to_owned()),
            reason_code: reason.map(Reason::code),
            key: hex(&key),
            epoch: read.epoch,
            src: spec.src,
            dst: spec.dst,
            src_port: spec.src_port,
            dst_port: spec.dst_port,
            seq: seg.seq.0,
            ack: spec.ack.0,
            tcp_flags: seg.flags.0,
            window: seg.window,
            mss: read.mss,
            server_wscale: read.server_wscale,
            client_wscale: read.client_wscale,
            wscale_ok: read.wscale_ok,
            sack_ok: read.sack_ok,
            timestamps_ok: read.timestamps_ok,
            ecn_ok: read.ecn_ok,
            server_ts: read.server_ts,
            namespace: format!("{:016x}", read.namespace),
            tsval: timestamps.0,
            tsecr: timestamps.1,
            tag_input: String::new(),
            tag: hex(&header[32..40]),
            tcp_header: hex(header),
        };
        vector.tag_input = hex(&tag_input(&vector));
        vector
    });
    File {
        about: "Test vectors of adoption-wire.md. Bytes are hexadecimal, in the order of the wire; tag_input is what SipHash-2-4 \
                with key is computed over; tcp_header is the whole segment, its TCP checksum (with the pseudo-header of src \
                and dst) included; mss is 0 where reason_code takes its place. Generated by lb-dataplane/packet/tests/it/vectors.rs."
            .to_owned(),
        vectors: vectors.collect(),
    }
}

#[test]
fn the_file_is_up_to_date() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/adoption-vectors.json");
    let text = serde_json::to_string_pretty(&generate()).unwrap() + "\n";
    if std::env::var_os("BATON_UPDATE_VECTORS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let found = std::fs::read_to_string(&path).expect("docs/adoption-vectors.json");
    assert!(
        found == text,
        "docs/adoption-vectors.json is stale: run with BATON_UPDATE_VECTORS=1 and check the difference"
    );
}

/// From the file alone, by other code than the crate's.
#[test]
fn the_file_is_right() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/adoption-vectors.json");
    let file: File = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(file.vectors.len() >= 12);
    for v in &file.vectors {
        let header = unhex(&v.tcp_header);
        let input = unhex(&v.tag_input);
        assert_eq!((header.len(), input.len()), (ADOPTION_HEADER_BYTES, 72), "{}", v.name);
        assert_eq!(input, tag_input(v), "{}", v.name);
        let tag = siphash(&unhex(&v.key), &input).to_be_bytes();
        assert_eq!(hex(&tag), v.tag, "{}", v.name);

        let mut expected = Vec::new();
        expected.extend_from_slice(&input[32..44]);
        expected.extend_from_slice(&[15 << 4, v.tcp_flags]);
        expected.extend_from_slice(&v.window.to_be_bytes());
        // The checksum is judged by etherparse below.
        expected.extend_from_slice(&header[16..18]);
        expected.extend_from_slice(&[0, 0, 253, 28]);
        expected.extend_from_slice(&input[44..50]);
        expected.extend_from_slice(&v.server_ts.to_be_bytes());
        expected.extend_from_slice(&tag);
        expected.extend_from_slice(&input[64..]);
        expected.extend_from_slice(&[1, 1, 8, 10]);
        expected.extend_from_slice(&input[56..64]);
        assert_eq!(hex(&header), hex(&expected), "{}", v.name);
        let flags = match v.kind.as_str() {
            "answer" => 0x14,
            "forget" => 0x02,
            _ => 0x10,
        };
        assert_eq!(v.tcp_flags, flags, "{}", v.name);

        let (tcp, _) = etherparse::TcpHeader::from_slice(&header).unwrap();
        let checksum = match (v.src, v.dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                tcp.calc_checksum_ipv4_raw(s.octets(), d.octets(), &[])
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                tcp.calc_checksum_ipv6_raw(s.octets(), d.octets(), &[])
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(checksum.unwrap(), tcp.checksum, "{}", v.name);
    }
}

#[test]
fn the_second_siphash_gives_the_papers_value() {
    // Appendix A of the paper: key 00..0f, message 00..0e.
    let bytes: Vec<u8> = (0..16).collect();
    assert_eq!(siphash(&bytes, &bytes[..15]), 0xa129_ca61_49be_45e5);
}
