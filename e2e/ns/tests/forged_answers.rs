//! Answers of adopters, and ends of connections, that are not the pods': each is counted, and none
//! changes anything.
//!
//! The sender sees all traffic and claims the pods' addresses, but does not have the key.

use anyhow::{Context, Result, ensure};
use baton_lab::HttpClient;
use baton_ns::{FrameSocket, HTTP_PORT, RawIp, Scene, never, nft, segment_of, tcp_packet, until};
use baton_packet::{
    Adoption, AdoptionKey, Flags, Mac, MessageKind, Reason, Segment, SegmentSpec, build_adoption,
    parse_adoption,
};
use std::{net::SocketAddr, thread};

const ETHERNET_BYTES: usize = 14;
/// The only epoch of these scenes.
const EPOCH: u8 = 1;
const PROBE: u8 = 0x71;
const ADOPT: u8 = 0x70;

/// What an adopter may refuse with.
const REFUSALS: [Reason; 6] = [
    Reason::NoListener,
    Reason::AcceptQueueFull,
    Reason::KernelRefused,
    Reason::TupleInUse,
    Reason::AlreadyAdopted,
    Reason::SyncookiesOff,
];

/// A scene whose network delivers packets whatever address they claim to come from.
fn scene(name: &str) -> Result<Scene> {
    let scene = Scene::with_pods(name, 2)?;
    for name in ["all", "client"] {
        let name = format!("net/ipv4/conf/{name}/rp_filter");
        scene.lab.router().namespace().set_sysctl(&name, "0")?;
    }
    Ok(scene)
}

/// Whether a frame is one of our messages of this kind to a pod.
fn is_message(frame: &[u8], to: SocketAddr, kind: u8) -> bool {
    segment_of(frame).is_some_and(|s| {
        (s.dst, s.dst_port) == (to.ip(), to.port())
            && parse_adoption(frame, &s).is_some()
            && s.options(frame).get(3) == Some(&kind)
    })
}

/// The answer to a message, all of it right but for its tag.
fn answer(message: &Segment, reason: Reason) -> Result<Vec<u8>> {
    let spec = SegmentSpec {
        src_mac: Mac::default(),
        dst_mac: Mac::default(),
        src: message.dst,
        dst: message.src,
        src_port: message.dst_port,
        dst_port: message.src_port,
        seq: message.ack,
        ack: message.seq,
        flags: Flags::RST | Flags::ACK,
        window: 0,
        timestamps: Some((0, 0)),
        payload: &[],
    };
    let answer = Adoption::bare(MessageKind::Answer(reason), EPOCH);
    let mut buffer = [0; 256];
    let key = AdoptionKey::from_bytes([7; 16]);
    let length = build_adoption(&mut buffer, &spec, &answer, &key).context("build")?;
    Ok(buffer[ETHERNET_BYTES..length].to_vec())
}

/// Waits until exactly so many more forged answers are counted.
fn counted(scene: &Scene, before: u64, more: usize) -> Result<()> {
    let wanted = before + u64::try_from(more)?;
    until("each forged answer is counted", || {
        let now = scene.counter("forged_answers_total")?;
        ensure!(now >= wanted, "{now}, before {before}");
        Ok(())
    })?;
    assert_eq!(scene.counter("forged_answers_total")?, wanted);
    Ok(())
}

#[test]
fn answers_that_are_forged_change_nothing() -> Result<()> {
    let mut scene = scene("answers")?;
    scene.start()?;
    let raw = RawIp::open(scene.lab.client().namespace())?;
    let sniffer = FrameSocket::open(scene.lab.router().namespace())?;
    let pods = [0, 1].map(|pod| SocketAddr::new(scene.lab.pods()[pod].ipv4(), HTTP_PORT));
    let refused = |scene: &Scene| -> Result<u64> {
        let of = |reason: &Reason| {
            let name = format!("adoptions_refused_total{{reason=\"{}\"}}", reason.label());
            scene.counter(&name)
        };
        REFUSALS.iter().map(of).sum()
    };

    // To probes: the next one of a pod has other numbers, and the tag is wrong for both.
    for pod in pods {
        let (probe, _) = sniffer.find("a probe", |frame| is_message(frame, pod, PROBE))?;
        let probe = segment_of(&probe).context("a segment")?;
        let before = scene.counter("forged_answers_total")?;
        for reason in REFUSALS {
            raw.send(&answer(&probe, reason)?, probe.src)?;
        }
        counted(&scene, before, REFUSALS.len())?;
    }
    for backend in ["pod-a", "pod-b"] {
        assert_eq!(scene.reason(backend)?, "ready");
    }

    // To an adoption that is open: its pod is cut off as soon as the connection is the other one's.
    let mut client =
        HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?)?;
    for _ in 0..4 {
        ensure!(client.get("/")?.body == b"ok", "wrong body");
    }
    let owner = client.get("/")?.pod().context("a pod's name")?.to_owned();
    let other = pods[usize::from(owner == "pod-a")];
    let router = scene.lab.router().namespace();
    nft(router, "add table ip cut")?;
    nft(router, "add chain ip cut forward { type filter hook forward priority 0; }")?;
    nft(router, &format!("add rule ip cut forward ip daddr {} drop", other.ip()))?;
    let (forged, moved) =
        (scene.counter("forged_answers_total")?, scene.counter("migrations_total")?);
    let sniffer = FrameSocket::open(router)?;
    let request = thread::spawn(move || client.get("/").map(|response| (client, response)));
    let (adoption, _) = sniffer.find("an adoption", |frame| is_message(frame, other, ADOPT))?;
    let adoption = segment_of(&adoption).context("a segment")?;
    for reason in REFUSALS {
        raw.send(&answer(&adoption, reason)?, adoption.src)?;
    }
    let Ok(answered) = request.join() else {
        anyhow::bail!("the client panicked");
    };
    let (_client, response) = answered?;
    ensure!(response.body == b"ok", "wrong body");
    assert_eq!(response.pod(), Some(owner.as_str()), "it goes back");
    counted(&scene, forged, REFUSALS.len())?;
    assert_eq!(refused(&scene)?, 0, "taken for a pod's");
    assert_eq!(scene.counter("migrations_total")?, moved);
    Ok(())
}

#[test]
fn resets_and_ends_that_are_forged_end_no_connection() -> Result<()> {
    let mut scene = scene("ends")?;
    scene.config.policies[0].migration = never();
    scene.start()?;
    let frontend = scene.address(HTTP_PORT)?;
    let mut client = HttpClient::connect(scene.lab.client().namespace(), frontend)?;
    let owner = client.get("/")?.pod().context("a pod's name")?.to_owned();
    let pod = &scene.lab.pods()[usize::from(owner == "pod-b")];
    let pod = SocketAddr::new(pod.ipv4(), HTTP_PORT);
    let sniffer = FrameSocket::open(scene.lab.router().namespace())?;
    ensure!(client.get("/")?.body == b"ok", "wrong body");
    // The client's acknowledgement of the whole response, on its way to the pod.
    let to_pod = |s: &Segment| (s.dst, s.dst_port) == (pod.ip(), pod.port());
    let (request, _) = sniffer.find("the request", |frame| {
        segment_of(frame).is_some_and(|s| to_pod(&s) && s.payload_len() > 0)
    })?;
    let request = segment_of(&request).context("a segment")?;
    let (last, _) = sniffer.find("its acknowledgement", |frame| {
        segment_of(frame).is_some_and(|s| {
            to_pod(&s) && s.src_port == request.src_port && s.ack.after(request.ack)
        })
    })?;
    let last = segment_of(&last).context("a segment")?;
    let dataplane = SocketAddr::new(last.src, last.src_port);

    let raw = RawIp::open(scene.lab.client().namespace())?;
    let resets = scene.counter("resets_doubted_total")?;
    let mut sent = 0;
    // An adopter's refusal, with the very numbers.
    for reason in REFUSALS {
        raw.send(&answer(&last, reason)?, dataplane.ip())?;
        sent += 1;
    }
    // A reset without ACK is asked back, whatever its number, and one with ACK that is not right
    // with the next byte; a FIN that is not waits for its turn.
    for (flags, ahead) in [
        (Flags::RST, 0),
        (Flags::RST, 1_000),
        (Flags::RST | Flags::ACK, 100_000),
        (Flags::RST | Flags::ACK, 0x8000_0000),
        (Flags::FIN | Flags::ACK, 100_000),
        (Flags::FIN | Flags::ACK, 0x8000_0000),
    ] {
        let numbers = (last.ack.add(ahead).0, last.seq.0);
        let packet = tcp_packet(pod, dataplane, numbers, flags, &[])?;
        raw.send(&packet, dataplane.ip())?;
        sent += 1;
    }
    until("the resets are asked back", || {
        let now = scene.counter("resets_doubted_total")?;
        ensure!(now == resets + 4, "{now}, before {resets}");
        Ok(())
    })?;
    for _ in 0..sent {
        let response = client.get("/")?;
        ensure!(response.body == b"ok", "wrong body");
        assert_eq!(response.pod(), Some(owner.as_str()));
    }
    assert_eq!(scene.reason(&owner)?, "ready");
    Ok(())
}
