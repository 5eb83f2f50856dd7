//! Pods whose own packet rules redirect connections to a proxy, as service meshes have them: no
//! request goes around the proxy, whoever made the rules, and also where they are made while
//! requests move.

use anyhow::{Context, Result, ensure};
use baton_api::{Algorithm, MoveMethod};
use baton_lab::{HttpClient, NginxOptions, Options};
use baton_ns::{HTTP_PORT, Scene};
use std::process::Command;

const REASON: &str = "the pod's packet rules redirect, translate or tell SYNs from other segments, or have just changed: an adoption could go around a proxy";
/// The proxy of each pod, which adds a header.
const PROXY: &str = "server {
    listen 0.0.0.0:15006;
    location / { proxy_pass http://127.0.0.1:80; add_header X-Proxy yes always; }
  }";
/// Has the pod's proxy get what comes to its service port.
const REDIRECTS: [(&str, &[&str]); 3] = [
    (
        "iptables-nft",
        &["iptables-nft -t nat -A PREROUTING -p tcp --dport 80 -j REDIRECT --to-ports 15006"],
    ),
    (
        "iptables-legacy",
        &["iptables-legacy -t nat -A PREROUTING -p tcp --dport 80 -j REDIRECT --to-ports 15006"],
    ),
    (
        "nft",
        &[
            "nft add table ip mesh",
            "nft add chain ip mesh in { type nat hook prerouting priority -100; }",
            "nft add rule ip mesh in tcp dport 80 redirect to :15006",
        ],
    ),
];

fn scene(name: &str, method: MoveMethod) -> Result<Scene> {
    let options = Options::with_pods(2);
    let web = NginxOptions { more: PROXY.into(), ..NginxOptions::default() };
    let mut scene = Scene::with_nginx(name, &options, &web)?;
    // Each second connection begins at the pod with a proxy, however much slower that is.
    scene.config.policies[0].algorithm = Algorithm::WeightedRoundRobin;
    scene.config.policies[0].migration.method = method;
    Ok(scene)
}

fn redirect(scene: &Scene, commands: &[&str]) -> Result<()> {
    let pod = scene.lab.pods()[0].namespace().name();
    for command in commands {
        let output =
            Command::new("ip").args(["netns", "exec", pod]).args(command.split(' ')).output()?;
        let problem = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command}: {problem}");
    }
    Ok(())
}

/// Requests on new connections: how many the first pod served. There each must have come by its
/// proxy, and by the other's none.
fn served_by_proxy(scene: &Scene) -> Result<usize> {
    let address = scene.address(HTTP_PORT)?;
    let mut served = 0;
    for connection in 0..16 {
        let mut client = HttpClient::connect(scene.lab.client().namespace(), address)?;
        for request in 0..25 {
            let response = client.get("/")?;
            ensure!(response.status == 200, "{response:?}");
            let pod = response.pod().context("which pod?")?;
            let redirected = pod == scene.lab.pods()[0].name();
            ensure!(
                response.header("x-proxy").is_some() == redirected,
                "request {request} of connection {connection}: {response:?}"
            );
            served += usize::from(redirected);
        }
    }
    Ok(served)
}

fn moves_to(scene: &Scene, pod: usize) -> Result<u64> {
    Ok(scene.state()?.policies[0].backends[pod].migrations_in_total)
}

/// The first pod has rules when everything starts: requests that its proxy served.
fn redirected(mut scene: Scene, commands: &[&str]) -> Result<(Scene, usize)> {
    redirect(&scene, commands)?;
    scene.start_shim()?;
    scene.start_dataplane()?;
    let (meshed, plain) = (scene.lab.pods()[0].name(), scene.lab.pods()[1].name());
    scene.wait_reason(meshed, REASON)?;
    scene.wait_reason(plain, "ready")?;
    let served = served_by_proxy(&scene)?;
    Ok((scene, served))
}

#[test]
fn no_request_goes_around_a_pods_proxy() -> Result<()> {
    for (tool, commands) in REDIRECTS {
        let (scene, served) = redirected(scene("meshed", MoveMethod::Adoption)?, commands)?;
        ensure!(served > 0, "{tool}: it is served all the same");
        ensure!(moves_to(&scene, 0)? == 0, "{tool}");
        ensure!(moves_to(&scene, 1)? > 0, "{tool}: others adopt");
        ensure!(scene.counter("rollbacks_total")? == 0, "{tool}");
        let shim = scene.shim.as_ref().context("shim")?;
        let state = shim.control_text("/v1/state")?;
        ensure!(state.contains("treat SYNs and adoptions differently (NAT in"), "{state}");
    }
    Ok(())
}

/// A translated leg begins with a SYN, which the rules see: the request comes by the proxy.
#[test]
fn requests_move_through_a_pods_proxy_by_translation() -> Result<()> {
    for (tool, commands) in REDIRECTS {
        let (scene, served) = redirected(scene("meshmove", MoveMethod::Auto)?, commands)?;
        let (there, back) = (moves_to(&scene, 0)?, moves_to(&scene, 1)?);
        eprintln!("{tool}: {served} served by the proxy, {there} moves to it, {back} away");
        ensure!(served > 0 && there > 0 && back > 0, "{tool}");
        let translated = scene.counter("openings_total{result=\"opened\"}")?;
        ensure!(translated == there, "{tool}: {translated} of {there}");
        scene.nothing_lost(0)?;
    }
    Ok(())
}

/// Requests that moved to the first pod by adoption, and then its rules come.
fn redirected_after_moves(
    name: &str,
    method: MoveMethod,
    (tool, commands): (&str, &[&str]),
) -> Result<Scene> {
    let mut scene = scene(name, method)?;
    scene.start()?;
    let address = scene.address(HTTP_PORT)?;
    let mut client = HttpClient::connect(scene.lab.client().namespace(), address)?;
    for _ in 0..20 {
        client.get("/")?;
    }
    ensure!(moves_to(&scene, 0)? > 0, "{tool}: it adopted before");
    let translated = scene.counter("openings_total{result=\"opened\"}")?;
    ensure!(translated == 0, "{tool}: {translated}");
    drop(client);
    redirect(&scene, commands)?;
    Ok(scene)
}

/// Rules that come while connections move: from then on they come by the proxy.
#[test]
fn a_redirect_that_comes_while_requests_move_is_followed_by_translation() -> Result<()> {
    for (tool, commands) in REDIRECTS {
        let scene = redirected_after_moves("meshcome", MoveMethod::Auto, (tool, commands))?;
        // Nobody has read the rules yet.
        let served = served_by_proxy(&scene)?;
        let translated = scene.counter("openings_total{result=\"opened\"}")?;
        eprintln!("{tool}: {served} served by the proxy, {translated} translations");
        ensure!(served > 0 && translated > 0, "{tool}");
        scene.nothing_lost(0)?;
    }
    Ok(())
}

#[test]
fn a_redirect_that_comes_while_requests_move_is_not_gone_around() -> Result<()> {
    for (tool, commands) in REDIRECTS {
        let scene = redirected_after_moves("meshing", MoveMethod::Adoption, (tool, commands))?;
        // Nobody has read the rules yet.
        let moved = moves_to(&scene, 0)?;
        let served = served_by_proxy(&scene)?;
        ensure!(served > 0, "{tool}: it is served all the same");
        let meshed = scene.lab.pods()[0].name();
        scene.wait_reason(meshed, REASON)?;
        let moved_since = moves_to(&scene, 0)? - moved;
        ensure!(moved_since == 0, "{tool}: {moved_since} moved there");
    }
    Ok(())
}
