//! One connection is moved by command, and the dataplane's events say what became of it.

use anyhow::{Context, Result, ensure};
use baton_api::{FlowEvent, FlowView, Migration, MigrationMode};
use baton_lab::HttpClient;
use baton_ns::{HTTP_PORT, Scene, until};

/// Moves of the connection: at rest and in the middle of things.
const MOVES: usize = 8;

#[test]
fn a_connection_goes_where_it_is_told_and_events_say_so() -> Result<()> {
    let mut scene = Scene::with_pods("migrate-by-hand", 3)?;
    // Nothing moves by itself.
    scene.config.policies[0].migration =
        Migration { mode: MigrationMode::DrainOnly, ..Migration::default() };
    scene.start()?;
    scene.wait_adoptable()?;
    let mut client =
        HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?)?;
    let own = client.stream().local_addr()?.to_string();
    let dataplane = scene.dataplane()?;
    let flow = || -> Result<FlowView> {
        let flows = dataplane.flows()?.into_iter();
        let mut mine = flows.filter(|f| f.client.to_string() == own);
        mine.next().context("the connection is not among the flows")
    };
    let mut path = vec![answered_by(&mut client)?];
    for round in 0..MOVES {
        let names = ["pod-a", "pod-b", "pod-c"];
        let at = path.last().context("a pod")?;
        let here = names.iter().position(|name| name == at).context("a name")?;
        let target = names[(here + 1) % 3];
        if round % 2 == 0 {
            until("at rest", || {
                let state = flow()?.state;
                ensure!(state == "Idle", "{state}");
                Ok(())
            })?;
        }
        let words = dataplane.tool(&["migrate", &own, "--to", target])?;
        ensure!(words.contains(at.as_str()) && words.contains(target), "{words}");
        let pod = answered_by(&mut client)?;
        ensure!(pod == target, "asked for {target}, answered by {pod}: {words}");
        path.push(pod);
    }
    let last = flow()?.last_move.context("a last move")?;
    ensure!(last.cause.as_deref() == Some("manual"), "{last:?}");

    eprintln!("{}", dataplane.tool(&["trace", "--past", "--for", "100ms"])?);
    let asked = ["trace", "--past", "--for", "1s", "--client", &own, "-o", "json"];
    let text = scene.explained(dataplane.tool(&asked))?;
    let events = text.lines().map(serde_json::from_str);
    let events: Vec<FlowEvent> = events.collect::<Result<_, _>>().context(text.clone())?;
    let steps = |what: &str| -> Vec<(Option<&str>, Option<&str>)> {
        let these = events.iter().filter(|e| e.event == what);
        let these = these.filter(|e| e.cause.as_deref() == Some("manual"));
        these.map(|e| (e.from.as_deref(), e.to.as_deref())).collect()
    };
    let expected: Vec<_> =
        path.windows(2).map(|pair| (Some(pair[0].as_str()), Some(pair[1].as_str()))).collect();
    for what in ["move_asked", "adopting", "moved"] {
        ensure!(steps(what) == expected, "{what}: {:?}\n{text}", steps(what));
    }
    let ends = scene.state()?.policies[0].moves_total.clone();
    ensure!(ends["manual"]["moved"] == MOVES as u64, "{ends:?}");

    // What is not there is refused with what is, and with its own exit code.
    let refused = dataplane.tool(&["migrate", &own, "--to", "nobody"]).err();
    let refused = refused.map(|e| format!("{e:#}")).unwrap_or_default();
    ensure!(
        refused.contains("exit status: 1")
            && refused.contains("has no backend `nobody`: expected one of pod-a, pod-b, pod-c"),
        "{refused}"
    );
    answered_by(&mut client)?;
    scene.nothing_lost(0)?;
    Ok(())
}

fn answered_by(client: &mut HttpClient) -> Result<String> {
    let response = client.get("/")?;
    ensure!(response.body == b"ok", "wrong body");
    Ok(response.pod().context("no X-Pod")?.to_owned())
}
