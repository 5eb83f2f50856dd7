//! `lb-dataplane status`, `flows` and `backends` tell of a running dataplane what is so.

use crate::http_without_error;
use anyhow::{Context as _, Result, ensure};
use baton_lab::HttpClient;
use baton_ns::{HTTP_PORT, Scene, until};
use serde_json::Value;

const CONNECTIONS: usize = 5;

#[test]
fn the_commands_tell_what_is_so() -> Result<()> {
    let mut scene = Scene::with_pods("cli", 2)?;
    scene.shim_config.pods.retain(|p| p.name != "pod-b");
    scene.start_shim()?;
    scene.start_dataplane()?;
    scene.wait_reason("pod-a", "ready")?;
    scene.wait_reason("pod-b", "no adopter (is host-shim running there?)")?;
    let options = scene.http_load(4, Some(400))?;
    http_without_error(&scene, options)?;

    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let namespace = scene.lab.client().namespace();
        let mut client = HttpClient::connect(namespace, scene.address(HTTP_PORT)?)?;
        ensure!(client.get("/")?.body == b"ok", "wrong body");
        clients.push(client);
    }
    let dataplane = scene.dataplane()?;
    let json = |arguments: &[&str]| -> Result<Value> {
        Ok(serde_json::from_str(&dataplane.tool(&[arguments, &["--output", "json"]].concat())?)?)
    };
    // The very connections of our clients, each once, with their present owners.
    let flows = json(&["flows"])?;
    let flows = flows["flows"].as_array().context("no flows")?;
    for client in &clients {
        let own = client.stream().local_addr()?.to_string();
        let found = flows.iter().filter(|f| f["client"] == own.as_str()).count();
        ensure!(found == 1, "{own} is {found} times in {flows:?}");
        ensure!(dataplane.tool(&["flows"])?.contains(&own), "{own} is not in the table");
    }
    // One pod cannot adopt, and the words say why.
    let backends = dataplane.tool(&["backends"])?;
    for part in ["pod-a", "pod-b", "no adopter"] {
        ensure!(backends.contains(part), "`{part}` is not in\n{backends}");
    }
    // The flows of the load linger a moment after both sides have closed.
    until("only our connections", || {
        let status = json(&["status"])?;
        let policy = &status["policies"][0];
        ensure!(
            policy["flowsTotal"] == 4 + CONNECTIONS && policy["flows"] == CONNECTIONS,
            "{status}"
        );
        Ok(())
    })?;
    // Nobody answers: another exit code than "it does not work".
    let error =
        dataplane.tool(&["status", "--control", "127.0.0.1:9"]).err().map(|e| format!("{e:#}"));
    ensure!(error.as_ref().is_some_and(|e| e.contains("exit status: 2")), "{error:?}");
    Ok(())
}
