//! `clientAddress: Restore` with real servers: whoever serves a request sees the client's address,
//! after each move and each death, by both methods and in both families.

use crate::{http_without_error, more, no_error};
use anyhow::{Context, Result, ensure};
use baton_api::{ClientAddress, Endpoint, MoveMethod, Protocol};
use baton_lab::{
    HttpEcho, LoadOptions, NginxOptions, Options, POSTGRES_PORT, Pod, RedisClient, Reply,
};
use baton_ns::{HTTP_PORT, REDIS_PORT, Scene, never, own_v4};
use std::net::IpAddr;

const REQUESTS: u64 = 6_000;
const CONNECTIONS: usize = 16;

/// Three pods, whose nginx logs whom it serves.
fn scene(name: &str) -> Result<Scene> {
    let web = NginxOptions { peers: true, ..NginxOptions::default() };
    let mut scene = Scene::with_nginx(name, &Options::with_pods(3), &web)?;
    scene.add_redis()?;
    for policy in &mut scene.config.policies {
        policy.client_address = ClientAddress::Restore;
    }
    Ok(scene)
}

/// Six servers die under load, one after the other: each request reached one that saw the client.
pub(crate) fn none_lost_over_deaths(scene: &mut Scene) -> Result<()> {
    scene.start()?;
    let namespace = scene.lab.client().namespace();
    let load = HttpEcho::start(namespace, scene.http_load(CONNECTIONS, None)?)?;
    for at in 0..6 {
        more(&load, 1_000)?;
        let name = scene.kill(at)?;
        scene.wait_back(0, &name)?;
    }
    more(&load, 1_000)?;
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    scene.nothing_lost(0)?;
    let all = seen(scene, scene.lab.client().ipv4())?;
    ensure!(all > 5_000, "{all} requests in the logs");
    Ok(())
}

/// How many requests pods had, each of which came from the client.
pub(crate) fn seen(scene: &Scene, client: IpAddr) -> Result<u64> {
    let mut all = 0;
    for nginx in &scene.nginx {
        for (address, port) in nginx.peers()? {
            ensure!(address == client, "{} saw {address}", nginx.pod().name());
            ensure!(port > 0, "no port");
            all += 1;
        }
    }
    Ok(all)
}

#[test]
fn whoever_serves_sees_the_client() -> Result<()> {
    for (name, v6, method) in [
        ("seen4a", false, MoveMethod::Adoption),
        ("seen4t", false, MoveMethod::Translation),
        ("seen6", true, MoveMethod::Auto),
    ] {
        let mut scene = scene(name)?;
        if v6 {
            scene.use_ipv6()?;
        }
        for policy in &mut scene.config.policies {
            policy.migration.method = method;
        }
        scene.start()?;
        let client = scene.lab.client();
        let (address, at): (IpAddr, fn(&Scene, u16) -> _) = match v6 {
            false => (client.ipv4(), |scene, port| scene.address(port)),
            true => (client.ipv6(), |scene, port| Ok(scene.dataplane()?.address_v6(port))),
        };
        let options = LoadOptions::of(at(&scene, HTTP_PORT)?, CONNECTIONS, Some(REQUESTS));
        let (report, echo) = http_without_error(&scene, options)?;
        assert_eq!(echo.per_pod.len(), 3, "{:?}", echo.per_pod);
        let moves = scene.state()?.policies[0].migrations_total;
        ensure!(moves > REQUESTS / 2, "{moves} moves");
        assert_eq!(seen(&scene, address)?, REQUESTS);
        assert_eq!(scene.counter("legs_hidden_total")?, 0);
        eprintln!("{name}: {:.0} requests/s, {moves} moves", report.per_second());

        // redis tells a client who it is: address and port, whichever pod is asked.
        let mut redis = RedisClient::connect(client.namespace(), at(&scene, REDIS_PORT)?)?;
        let own = redis.local()?;
        let mut ports = 0;
        for _ in 0..9 {
            scene.wait_legs_closed()?;
            let Reply::Bulk(Some(text)) = redis.call(&[b"CLIENT", b"INFO"])? else {
                anyhow::bail!("CLIENT INFO: not a text");
            };
            let text = String::from_utf8(text)?;
            let said = text.split(' ').find_map(|field| field.strip_prefix("addr="));
            let seen: std::net::SocketAddr = said.context("no addr")?.parse()?;
            assert_eq!(seen.ip(), own.ip(), "{text}");
            ports += usize::from(seen.port() == own.port());
        }
        // Its own, unless the pod has yet to hear the last word on its former one from there.
        assert!(ports > 6, "{ports} of 9 with the client's port");
    }
    Ok(())
}

/// A protocol that nobody follows: each connection stays where it is, and is the client's there.
#[test]
fn postgres_sees_and_logs_the_client() -> Result<()> {
    const QUERIES: usize = 12;
    let mut scene = scene("seenpg")?;
    let servers = scene.lab.in_each_pod(Pod::postgres)?;
    let mut policy = scene.config.policies[0].clone();
    policy.name = "postgres".into();
    policy.frontends = vec![own_v4(POSTGRES_PORT)?];
    policy.protocol = Protocol::None;
    policy.migration = never();
    for (backend, server) in policy.backends.iter_mut().zip(&servers) {
        let at = server.address();
        backend.endpoint = Endpoint::new(at.ip(), at.port()).context("port")?;
    }
    scene.config.policies.push(policy);
    scene.start()?;
    let client = scene.lab.client();
    let address = scene.address(POSTGRES_PORT)?;
    for _ in 0..QUERIES {
        let seen = client.psql(address, "select host(inet_client_addr())")?;
        assert_eq!(seen, client.ipv4().to_string());
    }
    let logged = format!("connection received: host={} ", client.ipv4());
    let logs = servers.iter().map(|server| server.process.stderr());
    let count: usize = logs.map(|log| log.matches(&logged).count()).sum();
    ensure!(count == QUERIES, "{count} of {QUERIES} connections logged");
    Ok(())
}

#[test]
fn who_takes_over_from_the_dead_sees_the_client() -> Result<()> {
    let mut scene = scene("seendead")?;
    none_lost_over_deaths(&mut scene)?;
    assert_eq!(scene.counter("legs_hidden_total")?, 0);
    Ok(())
}
