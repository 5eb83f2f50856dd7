//! The dataplane on the node's own network: it serves one of the node's interfaces, and Pods and
//! some clients are behind others.
//!
//! In these labs `client` is outside, where the dataplane's interface leads; `client2` is a Pod of
//! the node, as all backends are.

use crate::{more, no_error, wire};
use anyhow::{Result, ensure};
use baton_api::Algorithm;
use baton_lab::{
    Exchange, HttpClient, HttpEcho, Load, LoadOptions, Namespace, Options, RedisCheck, policy,
    run_command_with_input,
};
use baton_ns::{HTTP_PORT, REDIS_PORT, Scene, nft};
use std::{
    fmt::Write as _,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

const REQUESTS: u64 = 5_000;
const CONNECTIONS: usize = 16;
/// Kills of pods under load.
const KILLS: usize = 12;
/// How long a connection may take that is refused or accepted at once.
const AT_ONCE: Duration = Duration::from_secs(1);

fn node(name: &str, pods: usize) -> Result<Scene> {
    let mut scene = Scene::new(name, &Options::with_clients(pods))?;
    scene.use_node()?;
    Ok(scene)
}

/// Outside, a Pod of the node, and the node itself.
fn places(scene: &Scene) -> [(&'static str, &Namespace); 3] {
    let [outside, pod] = scene.lab.clients() else {
        unreachable!("the options say two clients");
    };
    [
        ("outside", outside.namespace()),
        ("a Pod", pod.namespace()),
        ("the node", scene.lab.router().namespace()),
    ]
}

fn finish<E: Exchange>(place: &str, load: Load<E>) -> Result<E> {
    let (report, exchange) = load.join()?;
    no_error(&report, Some(REQUESTS))?;
    eprintln!("{place}: {:.0} requests/s", report.per_second());
    Ok(exchange)
}

fn options(address: SocketAddr) -> LoadOptions {
    LoadOptions::of(address, CONNECTIONS, Some(REQUESTS))
}

/// What the node's own stack lost of ours, in either direction.
fn lost_by_the_node(scene: &Scene) -> Result<u64> {
    let mut lost = 0;
    for reason in ["host_rx_full", "host_rx_unsegmentable", "host_tx_refused"] {
        lost += scene.counter(&format!("io_drops_total{{reason=\"{reason}\"}}"))?;
    }
    Ok(lost)
}

fn from_all_sides(scene: &Scene, http: SocketAddr, redis: SocketAddr) -> Result<()> {
    let servers: Vec<_> = scene.redis.iter().map(baton_lab::Server::address).collect();
    for (place, namespace) in places(scene) {
        let before = scene.counter("host_rx_frames_total")?;
        let echo = finish(place, HttpEcho::start(namespace, options(http))?)?;
        ensure!(
            echo.pod_changes == REQUESTS - CONNECTIONS as u64,
            "{place}: {} requests were answered by another pod than the one before",
            echo.pod_changes
        );
        let of_pods = REQUESTS;
        let of_node = scene.counter("host_rx_frames_total")? - before;
        ensure!(of_node >= of_pods, "{place}: {of_node} frames");
        let load = RedisCheck::start(namespace, &servers, options(redis))?;
        no_error(&RedisCheck::finish(load)?, Some(REQUESTS))?;
        let mut client = HttpClient::connect(namespace, http)?;
        wire::rounds(scene, &mut client)?;
    }
    scene.wait_legs_closed()?;
    ensure!(scene.counter("rx_segmented_total")? > 0, "offloads are on");
    ensure!(scene.counter("host_tx_frames_total")? > 0, "none was sent");
    for counter in [
        "legs_closed_total{how=\"reset\"}",
        "resets_sent_total{to=\"client\"}",
        "drops_total{reason=\"bad_checksum\"}",
    ] {
        ensure!(scene.counter(counter)? == 0, "{counter}");
    }
    ensure!(lost_by_the_node(scene)? == 0, "frames were lost");
    Ok(())
}

fn from_all_sides_in(mode: &str) -> Result<()> {
    let mut scene = node(&format!("host-{mode}"), 3)?;
    scene.config.mode = mode.into();
    scene.add_redis()?;
    scene.start()?;
    let (http, redis) = (scene.address(HTTP_PORT)?, scene.address(REDIS_PORT)?);
    from_all_sides(&scene, http, redis)
}

#[test]
fn pods_and_clients_of_the_own_node_are_served_like_others() -> Result<()> {
    from_all_sides_in("native")
}

#[test]
fn in_packet_mode_too() -> Result<()> {
    from_all_sides_in("packet")
}

#[test]
fn over_ipv6_too() -> Result<()> {
    let mut scene = node("host-v6", 3)?;
    scene.add_redis()?;
    scene.use_ipv6()?;
    scene.start()?;
    let dataplane = scene.dataplane()?;
    let http = dataplane.address_v6(HTTP_PORT);
    from_all_sides(&scene, http, dataplane.address_v6(REDIS_PORT))
}

/// The kernel has no socket that it could tell that a path is narrower than what is sent; without
/// Baton the Pod hears of it from the node. What becomes of it is counted.
fn narrow_behind_the_node(
    name: &str,
    v6: bool,
    narrow: impl FnOnce(&Namespace, &str, IpAddr) -> Result<()>,
    counted: &str,
) -> Result<()> {
    let mut scene = node(name, 2)?;
    if v6 {
        scene.use_ipv6()?;
    }
    scene.start()?;
    let [_, pod] = scene.lab.clients() else {
        unreachable!("the options say two clients");
    };
    let dataplane = scene.dataplane()?;
    let (address, own) = match v6 {
        true => (dataplane.address_v6(HTTP_PORT), pod.ipv6()),
        false => (dataplane.address(HTTP_PORT), pod.ipv4()),
    };
    narrow(scene.lab.router().namespace(), pod.name(), own)?;
    let server = scene.config.policies[0].backends[0].endpoint;
    let server = SocketAddr::new(server.address(), server.port());
    wire::download(&mut HttpClient::connect(pod.namespace(), server)?)?;
    let mut client = HttpClient::connect(pod.namespace(), address)?;
    wire::rounds(&scene, &mut client)?;
    ensure!(scene.counter(counted)? > 0, "nothing of {counted}");
    Ok(())
}

#[test]
fn a_narrow_path_behind_the_node_is_told_to_pods() -> Result<()> {
    for (name, v6) in [("host-path", false), ("host-path6", true)] {
        let narrow = |node: &Namespace, device: &str, client: IpAddr| {
            let to = client.to_string();
            let family = if v6 { "-6" } else { "-4" };
            node.ip(&[family, "route", "replace", &to, "dev", device, "mtu", "lock", "1300"])
                .map(drop)
        };
        narrow_behind_the_node(name, v6, narrow, "icmp_translated_total")?;
    }
    Ok(())
}

/// As a tunnel whose clients do not know of it.
#[test]
fn a_narrow_device_of_the_node_is_told_to_pods() -> Result<()> {
    for (name, v6) in [("host-dev", false), ("host-dev6", true)] {
        narrow_behind_the_node(name, v6, device_with("1300"), "icmp_translated_total")?;
    }
    Ok(())
}

/// Pods would send less to everybody, so that they are not told.
#[test]
fn to_a_very_narrow_device_of_the_node_packets_are_cut() -> Result<()> {
    narrow_behind_the_node("host-cut", false, device_with("1200"), "narrow_paths_total")
}

fn device_with(mtu: &str) -> impl Fn(&Namespace, &str, IpAddr) -> Result<()> {
    move |node, device, _| node.ip(&["link", "set", device, "mtu", mtu]).map(drop)
}

/// As kube-proxy does it: the node translates the Service's address before the packet is delivered
/// to it, and back.
#[test]
fn a_services_address_leads_to_the_dataplane_of_the_own_node() -> Result<()> {
    let mut scene = node("host-service", 2)?;
    scene.start()?;
    let node = scene.lab.router().namespace();
    let service = SocketAddr::from(([10, 96, 0, 7], 8_080));
    let to = scene.address(HTTP_PORT)?;
    // Where a node without a default route would not even begin to send.
    node.ip(&["route", "add", "10.96.0.0/16", "dev", "client"])?;
    nft(node, "add table ip service")?;
    for hook in ["prerouting", "output"] {
        nft(
            node,
            &format!("add chain ip service {hook} {{ type nat hook {hook} priority -100; }}"),
        )?;
        nft(
            node,
            &format!("add rule ip service {hook} ip daddr 10.96.0.7 tcp dport 8080 dnat to {to}"),
        )?;
    }
    for (place, namespace) in places(&scene) {
        finish(place, HttpEcho::start(namespace, options(service))?)?;
        let mut client = HttpClient::connect(namespace, service)?;
        wire::rounds(&scene, &mut client)?;
    }
    ensure!(lost_by_the_node(&scene)? == 0, "frames were lost");
    Ok(())
}

#[test]
fn killed_pods_of_the_own_node_cost_no_client_anything() -> Result<()> {
    let mut scene = node("host-kill", 4)?;
    scene.start()?;
    let address = scene.address(HTTP_PORT)?;
    let loads = places(&scene)
        .into_iter()
        .map(|(_, namespace)| {
            let paced = LoadOptions {
                pace: Some(Duration::from_millis(4)),
                requests: None,
                ..options(address)
            };
            HttpEcho::start(namespace, paced)
        })
        .collect::<Result<Vec<_>>>()?;
    for kill in 0..KILLS {
        for load in &loads {
            more(load, 200)?;
        }
        let name = scene.kill(kill)?;
        scene.wait_back(0, &name)?;
    }
    for load in loads {
        more(&load, 200)?;
        let (report, _) = load.stop()?;
        scene.explained(no_error(&report, None))?;
    }
    let figures = scene.nothing_lost(0)?;
    ensure!(figures.rescues_total > 0, "nothing was rescued");
    Ok(())
}

/// What is not the dataplane's stays the node's, while it runs and afterwards.
#[test]
fn the_nodes_own_connections_are_not_touched() -> Result<()> {
    let mut scene = node("host-own", 2)?;
    let node = scene.lab.router().namespace().clone();
    let IpAddr::V4(own) = scene.lab.uplink_addresses()[0] else {
        unreachable!("the first is IPv4");
    };
    let connect = |scene: &Scene, port: u16| -> Result<[std::io::Result<TcpStream>; 3]> {
        let mut results = Vec::new();
        for (_, namespace) in places(scene) {
            let to = SocketAddr::from((own, port));
            results.push(namespace.run(|| TcpStream::connect_timeout(&to, AT_ONCE))?);
        }
        Ok(results.try_into().expect("three places"))
    };
    let refused = |results: [std::io::Result<TcpStream>; 3]| {
        results.iter().all(|result| {
            result.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        })
    };
    scene.start()?;
    let listener = node.run(|| TcpListener::bind((own, 8_080)))??;
    for stream in connect(&scene, 8_080)? {
        let stream = stream?;
        let (accepted, from) = listener.accept()?;
        ensure!(from == stream.local_addr()?, "the right one");
        drop(accepted);
    }
    ensure!(refused(connect(&scene, 81)?), "nobody listens on port 81");
    for stream in connect(&scene, HTTP_PORT)? {
        stream?;
    }
    // Of no leg, although one might have it.
    ensure!(refused(connect(&scene, 20_001)?), "nobody listens there");
    scene.dataplane = None;
    ensure!(refused(connect(&scene, HTTP_PORT)?), "nothing of it is left");
    // A host without IPv6 has none to serve.
    node.set_sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
    scene.start()?;
    for stream in connect(&scene, HTTP_PORT)? {
        stream?;
    }
    Ok(())
}

/// Has the node translate what it sends on.
fn translate(node: &Namespace, rule: &str) -> Result<()> {
    nft(node, "add table ip masq")?;
    nft(node, "add chain ip masq postrouting { type nat hook postrouting priority 100; }")?;
    nft(node, &format!("add rule ip masq postrouting {rule}"))
}

/// Sends some bytes both ways.
fn exchange(a: &TcpStream, b: &TcpStream) -> Result<()> {
    let sent = vec![7; 1 << 18];
    let mut got = vec![0; sent.len()];
    for (mut one, mut other) in [(a, b), (b, a)] {
        other.set_read_timeout(Some(AT_ONCE))?;
        std::thread::scope(|scope| {
            scope.spawn(|| one.write_all(&sent));
            other.read_exact(&mut got)
        })?;
        ensure!(got == sent);
        got.fill(0);
    }
    Ok(())
}

/// As flannel and kube-proxy do it (`masquerade fully-random`): what a Pod sends to the outside
/// comes from the node's address and a port of the node's choice, which may be one of the legs'.
#[test]
fn the_node_translates_connections_of_pods_to_ports_of_legs() -> Result<()> {
    let mut scene = node("host-nat", 2)?;
    let node = scene.lab.router().namespace().clone();
    let [outside, pod] = scene.lab.clients() else {
        unreachable!("the options say two clients");
    };
    let (outside, pod) = (outside.clone(), pod.clone());
    let (from, ports) = (pod.ipv4(), &scene.config.ports);
    let rule =
        format!("ip saddr {from} tcp dport {{ 8080, 8081 }} masquerade to :{ports} fully-random");
    translate(&node, &rule)?;
    // Of two servers outside one is a backend, too.
    let server = |port| SocketAddr::from((outside.ipv4(), port));
    let backends = [("outside".to_owned(), server(8_080))];
    scene.config.policies.push(policy("outside", 8_082, &backends));
    scene.start_shim()?;
    scene.start_dataplane()?;
    let left = || scene.counter("left_to_host_total");
    for port in [8_081, 8_080] {
        ensure!(left()? == 0, "the kernel kept what no backend sends");
        let to = server(port);
        let listener = outside.namespace().run(|| TcpListener::bind(to))??;
        let connect = || pod.namespace().run(|| TcpStream::connect_timeout(&to, AT_ONCE));
        for _ in 0..CONNECTIONS {
            let stream = connect()??;
            let (accepted, from) = listener.accept()?;
            ensure!(from != stream.local_addr()?, "it is not translated");
            exchange(&stream, &accepted)?;
        }
        drop(listener);
        let refused = connect()?.err().map(|error| error.kind());
        ensure!(refused == Some(ErrorKind::ConnectionRefused), "{refused:?}");
    }
    ensure!(left()? > 0, "the node was given what is no leg's");
    ensure!(lost_by_the_node(&scene)? == 0, "frames were lost");
    Ok(())
}

/// As flannel does with what does not come from a Pod's network, or the node's end of it: legs come
/// from where the node itself would send from.
#[test]
fn strangers_are_translated_and_the_node_is_none_on_its_own_links() -> Result<()> {
    let mut scene = node("host-source", 2)?;
    let node = scene.lab.router().namespace().clone();
    let [uplink, _] = scene.lab.uplink_addresses();
    translate(&node, &format!("ip saddr {uplink} tcp dport 80 masquerade"))?;
    scene.start()?;
    let address = scene.address(HTTP_PORT)?;
    for (place, namespace) in places(&scene) {
        let echo = finish(place, HttpEcho::start(namespace, options(address))?)?;
        ensure!(echo.pod_changes == REQUESTS - CONNECTIONS as u64);
    }
    Ok(())
}

/// Where the node translates these too: an adoption names both ends of a connection, so it does not
/// survive that. Such Pods are served, and nothing moves to them until the node leaves the legs
/// alone.
#[test]
fn pods_behind_a_translation_are_served_and_said_to_be_so() -> Result<()> {
    let mut scene = node("host-masq", 2)?;
    scene.config.policies[0].algorithm = Algorithm::WeightedRoundRobin;
    let node = scene.lab.router().namespace().clone();
    let pod = scene.lab.pods()[1].ipv4();
    let rule = format!("ip daddr {pod} tcp dport 80 masquerade fully-random");
    translate(&node, &rule)?;
    scene.start_shim()?;
    scene.start_dataplane()?;
    scene.wait_reason("pod-a", "ready")?;
    let said = "no answer to probes (a firewall, or addresses translated on the way?)";
    scene.wait_reason("pod-b", said)?;
    let address = scene.address(HTTP_PORT)?;
    for (place, namespace) in places(&scene) {
        let echo = finish(place, HttpEcho::start(namespace, options(address))?)?;
        // To the one by adoption, to the other by translation.
        let moves = echo.pod_changes;
        ensure!(moves == REQUESTS - CONNECTIONS as u64, "{place}: {moves}");
    }
    let translated = scene.counter("openings_total{result=\"opened\"}")?;
    ensure!(translated > 0, "nothing was translated");
    let ports = &scene.config.ports;
    for (hook, rule) in [
        ("output", format!("ip daddr {pod} tcp sport {ports} notrack")),
        ("prerouting", format!("ip saddr {pod} tcp dport {ports} notrack")),
    ] {
        nft(
            &node,
            &format!("add chain ip masq {hook} {{ type filter hook {hook} priority raw; }}"),
        )?;
        nft(&node, &format!("add rule ip masq {hook} {rule}"))?;
    }
    scene.wait_adoptable()?;
    for (place, namespace) in places(&scene) {
        let echo = finish(place, HttpEcho::start(namespace, options(address))?)?;
        ensure!(echo.pod_changes == REQUESTS - CONNECTIONS as u64);
    }
    Ok(())
}

/// A route for each Pod of a large node, in both families: the kernel tells them in many pieces.
#[test]
fn a_node_may_have_thousands_of_routes() -> Result<()> {
    let mut scene = node("host-routes", 2)?;
    let namespace = scene.lab.router().namespace().name().to_owned();
    for (family, prefix) in [("-4", "10.99"), ("-6", "fd99::")] {
        let mut batch = String::new();
        for number in 0..2_000 {
            let to = match family {
                "-4" => format!("{prefix}.{}.{}/32", number / 250, number % 250),
                _ => format!("{prefix}{number:x}/128"),
            };
            writeln!(batch, "route add {to} dev pod-a")?;
        }
        let arguments = [family, "-n", &namespace, "-batch", "-"];
        run_command_with_input("ip", &arguments, &batch)?;
    }
    scene.start()?;
    let echo =
        HttpEcho::start(scene.lab.clients()[1].namespace(), options(scene.address(HTTP_PORT)?))?;
    finish("a Pod", echo).map(drop)
}
