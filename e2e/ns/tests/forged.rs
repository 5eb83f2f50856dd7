//! Adoption segments that are not the dataplane's: no socket comes of them, and each is counted.
//!
//! The sender may be anywhere and claim any address; it sees traffic but does not have the key.

use anyhow::{Context, Result, ensure};
use baton_lab::{HttpClient, Namespace};
use baton_ns::{
    FrameSocket, HTTP_PORT, RawIp, Scene, TcpSocket, established, never, segment_of, until,
};
use baton_packet::{
    Adoption, AdoptionKey, Flags, Mac, MessageKind, STRIPPED_FROM_CLIENTS, Segment, SegmentSpec,
    SeqNumber, build_adoption, complete_tcp_checksum, decode, parse_adoption, strip_options,
};
use std::{fs, net::SocketAddr};

const ETHERNET_BYTES: usize = 14;
/// Byte offset of the source port in an Ethernet frame with an IPv4 header without options.
const SOURCE_PORT_AT: usize = 34;
/// First byte of the adoption option there: 14 + 20 + 20.
const OPTION_AT: usize = 54;
const OUTCOMES: [&str; 16] = [
    "adopted",
    "repeated",
    "probe_ready",
    "no_listener",
    "accept_queue_full",
    "kernel_refused",
    "tuple_in_use",
    "already_adopted",
    "syncookies_off",
    "bad_checksum",
    "bad_tag",
    "unknown_epoch",
    "bad_layout",
    "stray_answer",
    "answer_lost",
    "renew",
];

fn message(epoch: u8) -> Adoption {
    Adoption {
        kind: MessageKind::Adopt,
        mss: 1460,
        server_wscale: 7,
        client_wscale: 7,
        wscale_ok: true,
        sack_ok: true,
        timestamps_ok: true,
        ecn_ok: false,
        epoch,
        server_ts: 1,
        namespace: 1,
    }
}

#[test]
fn forged_adoptions_create_no_socket() -> Result<()> {
    let mut scene = Scene::with_pods("forged", 2)?;
    scene.start()?;
    // The forger's packets shall arrive, whatever address they claim to come from.
    for name in ["all", "client", "pod-b"] {
        scene
            .lab
            .router()
            .namespace()
            .set_sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), "0")?;
    }
    let genuine = captured_adoption(&scene)?;
    let target = SocketAddr::new(scene.lab.pods()[0].ipv4(), HTTP_PORT);
    let dataplane = SocketAddr::new(scene.lab.dataplane_pod().ipv4(), 45_000);
    let key = AdoptionKey::from_hex(fs::read_to_string(scene.lab.key(1)?.file)?.trim())?;
    let strange = AdoptionKey::from_bytes([7; 16]);

    let forge = |epoch: u8, key: &AdoptionKey, kind| -> Result<Vec<u8>> {
        let mut buffer = vec![0; 256];
        let spec = SegmentSpec {
            src_mac: Mac::default(),
            dst_mac: Mac::default(),
            src: dataplane.ip(),
            dst: target.ip(),
            src_port: dataplane.port(),
            dst_port: target.port(),
            seq: SeqNumber(1_000_000),
            ack: SeqNumber(2_000_000),
            flags: Flags::ACK,
            window: 500,
            timestamps: Some((5, 6)),
            payload: &[],
        };
        let message = Adoption { kind, ..message(epoch) };
        let length = build_adoption(&mut buffer, &spec, &message, key).context("build")?;
        buffer.truncate(length);
        Ok(buffer)
    };
    let untagged = {
        let mut frame = forge(1, &key, MessageKind::Adopt)?;
        frame[OPTION_AT + 12..OPTION_AT + 20].fill(0);
        checked(frame)?
    };
    let other_tuple = {
        let mut frame = genuine.clone();
        let port = u16::from_be_bytes([frame[SOURCE_PORT_AT], frame[SOURCE_PORT_AT + 1]]);
        let other = if port == 45_001 { 45_002u16 } else { 45_001 };
        frame[SOURCE_PORT_AT..SOURCE_PORT_AT + 2].copy_from_slice(&other.to_be_bytes());
        checked(frame)?
    };
    let other_numbers = {
        let mut frame = genuine.clone();
        frame[SOURCE_PORT_AT + 7] ^= 1;
        checked(frame)?
    };
    let answer = {
        let mut frame = forge(1, &key, MessageKind::Adopt)?;
        // Adopt becomes Answer; the tag is wrong with it, and it would be dropped anyway.
        frame[OPTION_AT + 3] = 0x72;
        frame[SOURCE_PORT_AT + 13] = (Flags::RST | Flags::ACK).0;
        checked(frame)?
    };
    let short_layout = {
        // The option at its place, but the timestamps are not: no layout of ours.
        let mut frame = forge(1, &key, MessageKind::Adopt)?;
        frame[OPTION_AT + 28..OPTION_AT + 40].fill(1);
        checked(frame)?
    };
    let cases: [(&str, Vec<u8>, &[&str]); 9] = [
        ("no tag", untagged, &["bad_tag"]),
        ("tag of another key", forge(1, &strange, MessageKind::Adopt)?, &["bad_tag"]),
        ("an epoch that is not live", forge(9, &key, MessageKind::Adopt)?, &["unknown_epoch"]),
        ("probe with another key", forge(1, &strange, MessageKind::Probe)?, &["bad_tag"]),
        ("genuine, on another tuple", other_tuple, &["bad_tag"]),
        ("genuine, with other numbers", other_numbers, &["bad_tag"]),
        ("an answer to a pod", answer, &["stray_answer", "bad_tag"]),
        ("another layout", short_layout, &["bad_layout"]),
        (
            "with the key, for the namespace of another pod",
            forge(1, &key, MessageKind::Adopt)?,
            &["renew"],
        ),
    ];
    let senders = [scene.lab.client().namespace(), scene.lab.pods()[1].namespace()];
    for sender in senders {
        let raw = RawIp::open(sender)?;
        for (what, frame, outcomes) in &cases {
            let before = counted(&scene, outcomes)?;
            let sockets = sockets(&scene)?;
            raw.send(&frame[ETHERNET_BYTES..], target.ip())?;
            until(&format!("counted: {what}, from {}", sender.name()), || {
                let now = counted(&scene, outcomes)?;
                ensure!(now == before + 1, "{now} of {outcomes:?}, before {before}");
                Ok(())
            })?;
            assert_eq!(self::sockets(&scene)?, sockets, "{what}: a socket came of it");
        }
        // The very segment that was right before: the pod remembers it. It makes no second socket.
        let outcomes = ["repeated", "already_adopted"];
        let (before, sockets) = (counted(&scene, &outcomes)?, sockets(&scene)?);
        raw.send(&genuine[ETHERNET_BYTES..], target.ip())?;
        until("a genuine adoption sent again is counted", || {
            let now = counted(&scene, &outcomes)?;
            ensure!(now == before + 1, "{now}, before {before}");
            Ok(())
        })?;
        assert_eq!(self::sockets(&scene)?, sockets, "a socket came of a repeated adoption");
    }
    // The pod serves on.
    let mut client =
        HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?)?;
    for _ in 0..10 {
        ensure!(client.get("/")?.body == b"ok", "wrong body");
    }
    Ok(())
}

#[test]
fn adoption_options_of_clients_are_stripped_at_the_frontend() -> Result<()> {
    let mut scene = Scene::with_pods("stripped", 2)?;
    scene.config.policies[0].migration = never();
    scene.start()?;
    let frontend = scene.address(HTTP_PORT)?;
    let namespace = scene.lab.client().namespace();
    let sniffer = FrameSocket::open(namespace)?;
    let mut client = HttpClient::connect(namespace, frontend)?;
    ensure!(client.get("/")?.body == b"ok", "wrong body");
    let local = client.stream().local_addr()?;
    // The client's last acknowledgement gives the numbers that its next segment will have.
    let (frame, _) = sniffer.find("an acknowledgement", |frame| {
        segment_of(frame).is_some_and(|s| {
            s.src_port == local.port()
                && s.flags == Flags::ACK
                && s.payload_len() == 0
                && s.dst_port == HTTP_PORT
        })
    })?;
    let segment = segment_of(&frame).context("a segment")?;
    // Worst case: a client that has the key.
    let key = AdoptionKey::from_hex(fs::read_to_string(scene.lab.key(1)?.file)?.trim())?;
    let mut forged = vec![0; 256];
    let length = build_adoption(
        &mut forged,
        &SegmentSpec {
            src_mac: Mac::default(),
            dst_mac: Mac::default(),
            src: local.ip(),
            dst: frontend.ip(),
            src_port: local.port(),
            dst_port: frontend.port(),
            seq: segment.seq,
            ack: segment.ack,
            flags: Flags::ACK,
            window: segment.window,
            timestamps: baton_packet::timestamps(segment.options(&frame)),
            payload: &[],
        },
        &message(1),
        &key,
    )
    .context("build")?;
    let others: Vec<&str> = OUTCOMES.iter().copied().filter(|o| *o != "probe_ready").collect();
    let (stripped, seen) = (scene.counter("options_stripped_total")?, counted(&scene, &others)?);
    let pods = FrameSocket::open(scene.lab.router().namespace())?;
    RawIp::open(namespace)?.send(&forged[ETHERNET_BYTES..length], frontend.ip())?;
    until("stripped", || {
        let now = scene.counter("options_stripped_total")?;
        ensure!(now == stripped + 1, "{now}, before {stripped}");
        Ok(())
    })?;
    // It goes on to the pod as a plain acknowledgement.
    pods.find("the segment towards the pod", |frame| {
        segment_of(frame).is_some_and(|s| {
            s.dst_port == HTTP_PORT
                && s.seq == segment.seq
                && s.dst != frontend.ip()
                && parse_adoption(frame, &s).is_none()
                && !strip_options(&mut frame.to_vec(), &s, STRIPPED_FROM_CLIENTS)
        })
    })?;
    ensure!(client.get("/")?.body == b"ok", "the connection lives");
    assert_eq!(counted(&scene, &others)?, seen, "the pod's adopter saw the option");
    Ok(())
}

/// A genuine adoption to pod-a, seen on the way, whose connection has moved on since.
fn captured_adoption(scene: &Scene) -> Result<Vec<u8>> {
    let sniffer = FrameSocket::open(scene.lab.router().namespace())?;
    let mut client =
        HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?)?;
    let pod = scene.lab.pods()[0].ipv4();
    for _ in 0..4 {
        ensure!(client.get("/")?.body == b"ok", "wrong body");
    }
    let (frame, _) = sniffer.find("an adoption", |frame| {
        segment_of(frame).is_some_and(|s| {
            s.dst == pod && parse_adoption(frame, &s).is_some() && is_adopt(frame, &s)
        })
    })?;
    drop(client);
    scene.wait_legs_closed()?;
    Ok(frame)
}

fn is_adopt(frame: &[u8], segment: &Segment) -> bool {
    segment.options(frame).get(2..4) == Some(&[0xba, 0x70])
}

/// The frame with its TCP checksum made right again.
fn checked(mut frame: Vec<u8>) -> Result<Vec<u8>> {
    let segment = match decode(&frame) {
        Ok(baton_packet::Decoded::Tcp(segment)) => segment,
        other => anyhow::bail!("not a segment: {other:?}"),
    };
    complete_tcp_checksum(&mut frame, &segment);
    Ok(frame)
}

fn counted(scene: &Scene, outcomes: &[&str]) -> Result<u64> {
    outcomes.iter().map(|o| scene.shim_counter(&[&format!("\"{o}\"")])).sum()
}

fn sockets(scene: &Scene) -> Result<Vec<TcpSocket>> {
    let of = |namespace: &Namespace| -> Result<Vec<TcpSocket>> {
        let mut sockets = established(namespace)?;
        sockets.sort_by_key(|s| (s.local_port, s.remote_port));
        Ok(sockets)
    };
    of(scene.lab.pods()[0].namespace())
}
