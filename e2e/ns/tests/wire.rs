//! What clients and paths differ in: TCP options, MTU, offloads, large bodies. Always with a move
//! per request.

use anyhow::{Context, Result, ensure};
use baton_api::Algorithm;
use baton_lab::{
    DOWNLOAD_BYTES, HttpClient, Namespace, Options, Server, content, echo_body, run_command,
};
use baton_ns::{HTTP_PORT, Scene, always, never};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{SocketAddr, TcpStream};

const UPLOAD_BYTES: usize = 1 << 20;
/// Rounds per connection: with three pods every pod takes part in every kind of request.
const ROUNDS: u64 = 3;
/// Small, upload, small, download.
const REQUESTS_PER_ROUND: u64 = 4;
/// `IPPROTO_MPTCP`.
const MPTCP: i32 = 262;

/// Options that a kernel offers unless its sysctl of that name is 0.
const OPTIONS: [&str; 3] = ["tcp_window_scaling", "tcp_timestamps", "tcp_sack"];

/// What a client does not offer.
pub const VARIANTS: [(&str, &[&str]); 5] = [
    ("all options", &[]),
    ("no window scaling", &["tcp_window_scaling"]),
    ("no timestamps", &["tcp_timestamps"]),
    ("no SACK", &["tcp_sack"]),
    ("no options at all", &OPTIONS),
];

/// Connections from this namespace offer all options but these from now on.
pub fn offer_all_but(namespace: &Namespace, off: &[&str]) -> Result<()> {
    for name in OPTIONS {
        let value = if off.contains(&name) { "0" } else { "1" };
        namespace.set_sysctl(&format!("net/ipv4/{name}"), value)?;
    }
    Ok(())
}

#[test]
fn every_set_of_options_moves_with_large_bodies() -> Result<()> {
    let scene = one_narrow_leg("wire")?;
    offloads_are_on(&scene)?;
    let namespace = scene.lab.client().namespace();
    for (what, off) in VARIANTS {
        offer_all_but(namespace, off)?;
        let before = scene.counter("migrations_total")?;
        let mut client = HttpClient::connect(namespace, scene.address(HTTP_PORT)?)?;
        rounds(&scene, &mut client).context(what)?;
        let moves = scene.counter("migrations_total")? - before;
        // The first has nowhere to come from, and uploads are too large to move where that is a
        // choice.
        let staying = 1 + ROUNDS;
        assert_eq!(moves, ROUNDS * REQUESTS_PER_ROUND - staying, "{what}: migrations");
    }
    nothing_was_reset(&scene)
}

#[test]
fn an_mptcp_client_falls_back_to_tcp_and_moves() -> Result<()> {
    let scene = one_narrow_leg("mptcp")?;
    let namespace = scene.lab.client().namespace();
    namespace.set_sysctl("net/mptcp/enabled", "1")?;
    let address = scene.address(HTTP_PORT)?;
    let stream = namespace.run(|| mptcp_stream(address))??;
    let mut client = HttpClient::over(stream)?;
    rounds(&scene, &mut client)?;
    // All but the first, and uploads stay.
    assert_eq!(scene.counter("migrations_total")?, ROUNDS * (REQUESTS_PER_ROUND - 1) - 1);
    assert!(scene.counter("options_stripped_total")? > 0, "the client offered no MPTCP");
    nothing_was_reset(&scene)
}

#[test]
fn a_narrow_leg_tells_the_client_its_mtu() -> Result<()> {
    narrow("mtu", |_| Ok(()))
}

#[test]
fn a_narrow_leg_tells_the_client_its_mtu_in_the_other_family() -> Result<()> {
    narrow("mtu-six-to-four", Scene::use_ipv6_of_clients)?;
    narrow("mtu-four-to-six", Scene::use_ipv6_of_pods)
}

fn narrow(name: &str, families: impl FnOnce(&mut Scene) -> Result<()>) -> Result<()> {
    let mut scene = Scene::new(
        name,
        &Options { pods: 2, leg_mtu: vec![("pod-a".into(), 1400)], ..Options::default() },
    )?;
    families(&mut scene)?;
    // The flow begins at the wide leg, so that its MSS is the wide one, and moves to the narrow
    // one.
    let (narrow, wide) = (
        scene.config.policies[0].backends[0].clone(),
        scene.config.policies[0].backends[1].clone(),
    );
    scene.config.policies[0].backends = vec![wide];
    scene.config.policies[0].migration = never();
    scene.start()?;
    let mut client =
        HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?)?;
    assert_eq!(small(&mut client, 0)?, "pod-b");
    // The upload leaves a pod that drains; where moving is a choice it would stay.
    for backend in &mut scene.config.policies[0].backends {
        backend.draining = true;
    }
    scene.config.policies[0].backends.push(narrow);
    scene.config.policies[0].migration = always();
    scene.reconfigure()?;
    scene.wait_adoptable()?;

    let before = scene.counter("icmp_translated_total")?;
    // The next request moves the flow to pod-a, whose leg is too narrow for full segments of this
    // client.
    assert_eq!(upload(&scene, &mut client, "narrow", 1)?, "pod-a");
    assert!(scene.counter("icmp_translated_total")? > before, "no ICMP error was translated");
    rounds(&scene, &mut client)?;
    nothing_was_reset(&scene)
}

#[test]
fn ipv6_narrow_leg() -> Result<()> {
    let mut scene = Scene::new(
        "mtu6",
        &Options { pods: 2, leg_mtu: vec![("pod-a".into(), 1400)], ..Options::default() },
    )?;
    scene.config.policies[0].algorithm = Algorithm::WeightedRoundRobin;
    scene.use_ipv6()?;
    scene.start()?;
    let address = scene.dataplane()?.address_v6(HTTP_PORT);
    for _ in 0..2 {
        let mut client = HttpClient::connect(scene.lab.client().namespace(), address)?;
        rounds(&scene, &mut client)?;
    }
    nothing_was_reset(&scene)
}

/// Pods' kernels remember a path's MTU by address, and to them all clients have the dataplane's.
#[test]
fn one_clients_narrow_path_is_no_other_clients() -> Result<()> {
    let mut scene = Scene::new("narrow-path", &Options::with_pods(2))?;
    scene.start()?;
    let (router, client) = (scene.lab.router().namespace(), scene.lab.client());
    let path = [&*client.ipv4().to_string(), "dev", client.name(), "mtu", "lock", "600"];
    router.ip(&[&["route", "replace"][..], &path].concat())?;
    let mut client = HttpClient::connect(client.namespace(), scene.address(HTTP_PORT)?)?;
    rounds(&scene, &mut client)?;
    for pod in scene.lab.pods() {
        let remembered = pod.namespace().ip(&["route", "show", "cache"])?;
        ensure!(!remembered.contains("mtu"), "{}: {remembered}", pod.name());
    }
    assert!(scene.counter("narrow_paths_total")? > 0, "no router said so");
    nothing_was_reset(&scene)
}

fn one_narrow_leg(name: &str) -> Result<Scene> {
    let mut scene = Scene::new(
        name,
        &Options { pods: 3, leg_mtu: vec![("pod-a".into(), 1400)], ..Options::default() },
    )?;
    scene.start()?;
    Ok(scene)
}

/// Small requests, uploads and downloads over one connection, all contents checked.
pub fn rounds(scene: &Scene, client: &mut HttpClient) -> Result<()> {
    for round in 0..ROUNDS {
        small(client, round)?;
        upload(scene, client, &format!("file-{round}"), fastrand::u64(..))?;
        small(client, round)?;
        download(client)?;
    }
    Ok(())
}

pub fn small(client: &mut HttpClient, number: u64) -> Result<String> {
    let (target, nonce) = (format!("/echo/{number}"), fastrand::u64(..).to_string());
    let response = client.request("GET", &target, &[("X-Nonce", &nonce)], &[])?;
    ensure!(response.body == echo_body(&target, &nonce).as_bytes(), "wrong body: {response:?}");
    Ok(response.pod().context("no X-Pod")?.to_owned())
}

pub fn download(client: &mut HttpClient) -> Result<()> {
    let response = client.get("/files/10m.bin")?;
    ensure!(response.status == 200, "status {}", response.status);
    ensure!(response.body == content(DOWNLOAD_BYTES, 0), "the download differs");
    Ok(())
}

/// Uploads bytes made from `seed` and compares what the pod that answered has on its disk.
fn upload(scene: &Scene, client: &mut HttpClient, name: &str, seed: u64) -> Result<String> {
    upload_bytes(scene, client, name, &content(UPLOAD_BYTES, seed))
}

/// The same with these bytes.
pub fn upload_bytes(
    scene: &Scene,
    client: &mut HttpClient,
    name: &str,
    bytes: &[u8],
) -> Result<String> {
    let response = client.request("PUT", &format!("/upload/{name}"), &[], bytes)?;
    ensure!(matches!(response.status, 201 | 204), "status {}", response.status);
    let pod = response.pod().context("no X-Pod")?.to_owned();
    let found = nginx_of(scene, &pod)?.uploaded(name)?;
    ensure!(found == bytes, "the upload in {pod} differs");
    Ok(pod)
}

fn nginx_of<'a>(scene: &'a Scene, pod: &str) -> Result<&'a Server> {
    let found = scene.lab.pods().iter().zip(&scene.nginx).find(|(p, _)| p.name() == pod);
    found.map(|(_, nginx)| nginx).with_context(|| format!("no pod {pod}"))
}

fn mptcp_stream(address: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::from(MPTCP)))
        .context("this kernel has no MPTCP (CONFIG_MPTCP)")?;
    socket.connect(&address.into())?;
    Ok(socket.into())
}

/// As in a cluster, nobody has turned the offloads of the veths off: neither at the client nor at
/// the pods.
fn offloads_are_on(scene: &Scene) -> Result<()> {
    for place in scene.lab.pods().iter().chain([scene.lab.client()]) {
        let text = place.namespace().run(|| run_command("ethtool", &["-k", "eth0"]))??;
        for feature in ["tcp-segmentation-offload: on", "tx-checksumming: on"] {
            ensure!(text.contains(feature), "{}: not `{feature}`:\n{text}", place.name());
        }
    }
    Ok(())
}

fn nothing_was_reset(scene: &Scene) -> Result<()> {
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    assert_eq!(scene.counter("drops_total{reason=\"bad_checksum\"}")?, 0);
    assert_eq!(scene.counter("fates_unknown_total{outcome=\"reset\"}")?, 0);
    assert_eq!(
        scene.counter("pins_total{reason=\"pipelined\"}")?,
        0,
        "an upload was taken for a request"
    );
    Ok(())
}
