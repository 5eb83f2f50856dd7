//! What is wrong is said in words that an admin can act on; frames that make no sense are counted.
//!
//! A kernel without `bpf_sk_assign_tcp_reqsk` cannot be had here: that message is tested where it
//! is made.

use crate::http_without_error;
use anyhow::{Context, Result, ensure};
use baton_lab::{Key, Process, Spec, program};
use baton_ns::{FrameSocket, HTTP_PORT, RawIp, Scene, segment_of, tcp_packet, until, write_whole};
use baton_packet::{Flags, complete_tcp_checksum};
use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

/// A program that cannot start says so at once.
const REFUSE_DEADLINE: Duration = Duration::from_secs(10);

#[test]
fn what_keeps_the_dataplane_from_starting_is_said() -> Result<()> {
    let scene = Scene::with_pods("refuse", 1)?;
    let good = &scene.config;
    let with = |change: fn(&mut baton_lab::DataplaneConfig)| {
        let mut config = good.clone();
        change(&mut config);
        config
    };
    let run = program("lb-dataplane")?.display().to_string();

    for (capability, name) in [("net_raw", "CAP_NET_RAW"), ("net_admin", "CAP_NET_ADMIN")] {
        let bounding = format!("--bounding-set=-{capability}");
        refused(&scene, good, &["setpriv", &bounding, "--", &run], &[name])?;
    }
    let no_such = with(|c| c.interface = "eth7".into());
    refused(&scene, &no_such, &[&run], &["interface: eth7", "no such interface", "eth0"])?;

    // Somebody listens in the range.
    let listener =
        scene.lab.dataplane_pod().namespace().run(|| TcpListener::bind("0.0.0.0:20007"))??;
    refused(&scene, good, &[&run], &["port range in use", "20007"])?;
    drop(listener);

    let in_range = with(|c| {
        c.policies[0].frontends =
            vec![baton_api::Endpoint::new([0, 0, 0, 0].into(), 20_007).expect("not 0")];
    });
    refused(&scene, &in_range, &[&run], &["policies[0].frontends[0]", "20007"])?;
    let no_key = with(|c| {
        c.keys = vec![Key { epoch: 1, file: "no-such-key".into() }].into();
    });
    refused(&scene, &no_key, &[&run], &["keys[0].file", "no-such-key"])?;
    Ok(())
}

#[test]
fn what_keeps_the_shim_from_starting_is_said() -> Result<()> {
    let scene = Scene::with_pods("refuseshim", 1)?;
    let path = scene.lab.directory().join("shim.yaml");
    write_whole(&path, &serde_json::to_string(&scene.shim_config)?)?;
    let path = path.display().to_string();
    let run = program("host-shim")?.display().to_string();
    // CAP_SYS_ADMIN stands in for CAP_BPF, so both have to go.
    let without = ["--bounding-set=-bpf,-sys_admin", "--", &run];
    let start = |arguments: &[&str]| {
        let all = without.iter().chain(arguments).copied();
        scene.lab.router().spawn(&Spec::new("setpriv", all))
    };
    says(start(&["run", "--config", &path])?, &["not permitted", "host-shim preflight"])?;
    says(start(&["preflight", "--config", &path])?, &["CAP_BPF"])
}

#[test]
fn frames_without_sense_are_counted_and_do_no_harm() -> Result<()> {
    let mut scene = Scene::with_pods("garbage", 2)?;
    scene.start()?;
    let options = scene.http_load(4, Some(400))?;
    // A frame on the dataplane's link, to learn the link and to make wrong frames of.
    let dataplane = scene.address(HTTP_PORT)?;
    let socket = FrameSocket::open(scene.lab.router().namespace())?;
    http_without_error(&scene, options)?;
    let mac = scene.lab.dataplane_pod().namespace().mac("eth0")?;
    let (mut template, link) = socket.find("a frame to the dataplane", |frame| {
        frame.get(..6) == Some(&mac[..])
            && segment_of(frame).is_some_and(|s| s.dst == dataplane.ip() && s.dst_port == HTTP_PORT)
    })?;

    // As it came, the sum over the payload is left to the hardware, so that no change of the
    // payload would show.
    let segment = segment_of(&template).context("a segment")?;
    complete_tcp_checksum(&mut template, &segment);

    let malformed = || -> Result<u64> {
        let state = scene.state()?;
        let of = |prefix: &str| -> u64 {
            state.counters.iter().filter(|(n, _)| n.starts_with(prefix)).map(|(_, v)| v).sum()
        };
        Ok(of("malformed_total"))
    };
    let bad_checksums = || scene.counter("drops_total{reason=\"bad_checksum\"}");
    let before = (malformed()?, bad_checksums()?);
    // Every truncation of a good frame (the steering program passes what it cannot read to the
    // kernel).
    for length in 14..template.len() {
        socket.send(&template[..length], &link)?;
    }
    // Every bit of every header byte, flipped: lengths, offsets, flags, checksums.
    for bit in 14 * 8..(template.len().min(74)) * 8 {
        let mut frame = template.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        socket.send(&frame, &link)?;
    }
    // Nonsense behind a right address.
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..2_000 {
        let mut frame = template.clone();
        let from = rng.usize(34..frame.len());
        rng.fill(&mut frame[from..]);
        // Our port again, so that it is steered to us.
        frame[36..38].copy_from_slice(&HTTP_PORT.to_be_bytes());
        socket.send(&frame, &link)?;
    }
    until("wrong checksums counted", || {
        let now = bad_checksums()?;
        ensure!(now >= before.1 + 1_000, "{now}, before {}", before.1);
        Ok(())
    })?;
    assert!(malformed()? > before.0, "no malformed frame was counted");

    // Right checksums, wrong flags.
    let raw = RawIp::open(scene.lab.client().namespace())?;
    let client = SocketAddr::new(scene.lab.client().ipv4(), 60_123);
    let bad_flags = scene.counter("drops_total{reason=\"bad_flags\"}")?;
    for flags in [Flags::SYN | Flags::FIN, Flags::SYN | Flags::RST, Flags(0xff)] {
        raw.send(&tcp_packet(client, dataplane, (1, 2), flags, b"x")?, dataplane.ip())?;
    }
    until("wrong flags counted", || {
        let now = scene.counter("drops_total{reason=\"bad_flags\"}")?;
        ensure!(now >= bad_flags + 3, "{now}, before {bad_flags}");
        Ok(())
    })?;
    // Segments of no connection, with every set of flags.
    for flags in 0..=255 {
        let packet = tcp_packet(
            client,
            dataplane,
            (fastrand::u32(..), fastrand::u32(..)),
            Flags(flags),
            b"",
        )?;
        raw.send(&packet, dataplane.ip())?;
    }

    // It serves on, and as well as before.
    ensure!(scene.dataplane_mut()?.process.try_wait()?.is_none(), "the dataplane ended");
    let options = scene.http_load(16, Some(5_000))?;
    http_without_error(&scene, options)?;
    let log = scene.dataplane()?.process.stderr();
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}

/// Runs the dataplane with a configuration and asserts that it ends with these words.
fn refused(
    scene: &Scene,
    config: &baton_lab::DataplaneConfig,
    command: &[&str],
    words: &[&str],
) -> Result<()> {
    let path = scene.lab.directory().join("refused.yaml");
    write_whole(&path, &serde_json::to_string(config)?)?;
    let path = path.display().to_string();
    let arguments = command[1..].iter().copied().chain(["run", "--config", &path]);
    let spec = Spec::new(command[0], arguments);
    says(scene.lab.dataplane_pod().spawn(&spec)?, words)
}

fn says(mut process: Process, words: &[&str]) -> Result<()> {
    let status =
        process.wait(REFUSE_DEADLINE).with_context(|| format!("{words:?}: {}", process.tail()))?;
    let said = process.stderr() + &process.stdout();
    ensure!(status.code() == Some(1), "{words:?}: {status}: {said}");
    for word in words {
        ensure!(said.contains(word), "`{word}` is not in: {said}");
    }
    ensure!(!said.contains("panicked"), "{said}");
    Ok(())
}
