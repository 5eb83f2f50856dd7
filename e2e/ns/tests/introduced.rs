//! `clientAddress: ProxyV2` with real servers: whoever serves a request was told of the client by a
//! header, on the first connection and after each move and each death, whatever is lost on the way.

use crate::{
    http_without_error,
    restored::{none_lost_over_deaths, seen},
};
use anyhow::{Result, ensure};
use baton_api::{ClientAddress, MoveMethod};
use baton_lab::{FaultRates, LoadOptions, NginxOptions, Options, Side};
use baton_ns::{HTTP_PORT, Scene, until};

const REQUESTS: u64 = 6_000;
const CONNECTIONS: usize = 16;
/// With loss most of the time is waited for a kernel's retransmission timer.
const LOSSY_CONNECTIONS: usize = 64;
const LOST_PER_MILLE: u32 = 10;
const SEED: u64 = 9;

/// Three pods, whose nginx takes connections with a header only, and logs whom it names.
fn scene(name: &str, header: bool) -> Result<Scene> {
    let web = NginxOptions { peers: true, header, ..NginxOptions::default() };
    let mut scene = Scene::with_nginx(name, &Options::with_pods(3), &web)?;
    scene.config.policies[0].client_address = ClientAddress::ProxyV2;
    Ok(scene)
}

#[test]
fn whoever_serves_is_told_of_the_client() -> Result<()> {
    for (name, v6, method, lossy) in [
        ("told4a", false, MoveMethod::Adoption, false),
        ("told4t", false, MoveMethod::Translation, false),
        ("told6", true, MoveMethod::Auto, false),
        ("toldlossa", false, MoveMethod::Adoption, true),
        ("toldlosst", false, MoveMethod::Translation, true),
    ] {
        let mut scene = scene(name, true)?;
        if v6 {
            scene.use_ipv6()?;
        }
        scene.config.policies[0].migration.method = method;
        scene.start()?;
        let faults = scene.lab.faults(SEED)?;
        if lossy {
            for side in [Side::Pods, Side::Clients] {
                faults.set_both(side, FaultRates::loss(LOST_PER_MILLE))?;
            }
        }
        let client = scene.lab.client();
        let (address, at) = match v6 {
            false => (client.ipv4(), scene.address(HTTP_PORT)?),
            true => (client.ipv6(), scene.dataplane()?.address_v6(HTTP_PORT)),
        };
        let options = LoadOptions {
            connections: if lossy { LOSSY_CONNECTIONS } else { CONNECTIONS },
            requests: Some(REQUESTS),
            ..LoadOptions::new(at)
        };
        let (report, echo) = http_without_error(&scene, options)?;
        assert_eq!(echo.per_pod.len(), 3, "{:?}", echo.per_pod);
        let moves = scene.state()?.policies[0].migrations_total;
        ensure!(moves > REQUESTS / 2, "{moves} moves");
        let requests = seen(&scene, address)?;
        // GET may be executed once more than it is answered.
        ensure!(requests == REQUESTS || (lossy && requests > REQUESTS), "{requests}");
        let (legs, headers) =
            (scene.counter("legs_introduced_total")?, scene.counter("proxy_headers_sent_total")?);
        ensure!(legs > moves && headers >= legs, "{legs} legs, {headers} headers");
        ensure!(!lossy || headers > legs, "none was lost");
        eprintln!(
            "{name}: {:.0} requests/s, {moves} moves, {legs} legs, {headers} headers",
            report.per_second()
        );
        faults.calm()?;
    }
    Ok(())
}

#[test]
fn who_takes_over_from_the_dead_is_told_of_the_client() -> Result<()> {
    let mut scene = scene("tolddead", true)?;
    none_lost_over_deaths(&mut scene)?;
    Ok(())
}

/// The policy says that servers expect the header, and they do not: a check says so.
#[test]
fn servers_that_do_not_expect_the_header_are_named() -> Result<()> {
    for (name, header) in [("toldright", true), ("toldwrong", false)] {
        let mut scene = scene(name, header)?;
        let check = r#"{"path": "/", "interval": "100ms", "timeout": "100ms"}"#;
        scene.config.policies[0].health.active = Some(serde_json::from_str(check)?);
        scene.start()?;
        if header {
            http_without_error(&scene, scene.http_load(CONNECTIONS, Some(1_000))?)?;
            continue;
        }
        until("the check names the header", || {
            let health = scene.state()?.policies[0].backends[0].health.to_string();
            ensure!(health.contains("without the PROXY header it answers"), "{health}");
            Ok(())
        })?;
    }
    Ok(())
}
