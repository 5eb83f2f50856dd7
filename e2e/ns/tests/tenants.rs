//! Two tenants of one class on the whole chain, one of them hostile, and live connections to the
//! other: it asks for the other's port, for Baton's own, for other addresses, names the other's
//! pods as endpoints that end, flaps the readiness of its own ten times a second and has thousands
//! of endpoints. How late the other's changes may be is in `e2e/operator`, `hostile`.

use crate::{
    more,
    operator::{Chain, READY},
};
use anyhow::{Context, Result, ensure};
use baton_lab::Operator;
use baton_ns::until;
use std::{
    fmt::Write,
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Ready or not, all of them, this often.
const FLAP_EVERY: Duration = Duration::from_millis(100);
const FLAPPING: usize = 50;
/// Endpoints that no Pod has.
const ENDPOINTS: usize = 5_000;
/// An EndpointSlice has so many at most.
const ENDPOINTS_OF_SLICE: usize = 1_000;
/// Changes of the honest tenant.
const CHANGES: usize = 100;
/// Its own, which the class lets it have.
const PORT: u16 = 8_200;

/// A Service of the hostile tenant with its endpoints, and a policy for it with these listeners.
fn served(name: &str, listeners: &str, endpoints: &[String]) -> String {
    let mut text = format!(
        "apiVersion: baton.dev/v1alpha1\nkind: LoadBalancerPolicy\n\
         metadata: {{name: {name}, namespace: evil, creationTimestamp: \"2026-01-02T00:00:00Z\"}}\n\
         spec: {{targetRefs: [{{name: {name}}}], listeners: [{listeners}], protocol: HTTP1}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: evil}}\n\
         spec: {{ipFamilies: [IPv4], ports: [{{name: http, port: 80}}]}}\n"
    );
    for (number, some) in endpoints.chunks(ENDPOINTS_OF_SLICE).enumerate() {
        let slice = format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-{number}, namespace: evil, \
             labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\n\
             ports: [{{name: http, port: 80, protocol: TCP}}]\nendpoints:\n{}",
            some.concat()
        );
        text.push_str(&slice);
    }
    text
}

fn listener(port: u16) -> String {
    format!("{{name: l{port}, port: {port}, servicePort: 80}}")
}

fn endpoint(address: &str, pod: &str, conditions: &str) -> String {
    format!(
        "  - {{addresses: [{address}], nodeName: router, targetRef: {{kind: Pod, {pod}}}, conditions: {{{conditions}}}}}\n"
    )
}

/// The hostile tenant's Pods and what its EndpointSlice says of them.
fn flapping(port: u16, ready: bool) -> String {
    let conditions = format!("ready: {ready}, serving: {ready}, terminating: false");
    let address = |n: usize| format!("10.77.200.{}", n + 1);
    let endpoints: Vec<String> = (0..FLAPPING)
        .map(|n| {
            let pod = format!("name: flap-{n}, namespace: evil");
            endpoint(&address(n), &pod, &conditions)
        })
        .collect();
    let mut text = served("flap", &listener(port), &endpoints);
    for n in 0..FLAPPING {
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: flap-{n}, namespace: evil, labels: {{app: flap}}}}\n\
             spec: {{nodeName: router, containers: [{{name: web}}]}}\nstatus: {{phase: Running, podIP: {}, \
             conditions: [{{type: Ready, status: \"True\"}}]}}\n",
            address(n)
        );
    }
    text
}

/// What the hostile tenant asks for and must not get, by file.
fn asked() -> Vec<(&'static str, String)> {
    let ends = "ready: false, serving: true, terminating: true";
    let foreign: Vec<String> = ["a", "b", "c", "d"]
        .iter()
        .zip(1..)
        .map(|(letter, n)| {
            let pod = format!("name: pod-{letter}, namespace: shop");
            endpoint(&format!("10.77.{n}.2"), &pod, ends)
        })
        .collect();
    let many: Vec<String> = (0..ENDPOINTS)
        .map(|n| format!("  - {{addresses: [10.200.{}.{}]}}\n", n / 250, 1 + n % 250))
        .collect();
    let elsewhere = "{name: other, port: 8300, servicePort: 80, addresses: [10.77.1.2]}";
    vec![
        ("evil-same-port.yaml", served("same-port", &listener(80), &[])),
        ("evil-control.yaml", served("control", &listener(9_900), &[])),
        ("evil-probes.yaml", served("probes", &listener(9_910), &[])),
        ("evil-elsewhere.yaml", served("elsewhere", elsewhere, &[])),
        ("evil-foreign.yaml", served("foreign", &listener(8_400), &foreign)),
        ("evil-many.yaml", served("many", &listener(8_500), &many)),
    ]
}

/// What dataplanes have of the hostile tenant: only what is its own.
fn within_its_bounds(chain: &Chain) -> Result<()> {
    let snapshot = chain.snapshot()?;
    let policies = snapshot["policies"].as_array().context("policies")?;
    for policy in policies {
        let name = policy["name"].as_str().context("name")?;
        if !name.starts_with("evil/") {
            continue;
        }
        for frontend in policy["frontends"].as_array().context("frontends")? {
            let frontend = frontend.as_str().context("a frontend")?;
            let port = frontend.rsplit(':').next();
            let own = ["8200", "8400", "8500"].map(Some);
            ensure!(own.contains(&port), "{name} has {frontend}");
            ensure!(!frontend.starts_with("10.77.1.2:"), "{name}: {frontend}");
        }
        let backends = policy["backends"].as_array().context("backends")?;
        let own = |backend: &serde_json::Value| {
            let endpoint = backend["endpoint"].as_str();
            endpoint.is_some_and(|end| end.starts_with("10.77.200."))
        };
        ensure!(backends.iter().all(own), "{name}: {backends:?}");
    }
    for letter in ["a", "b", "c", "d"] {
        let pod = chain.backend(&format!("pod-{letter}"))?.context("a pod")?;
        ensure!(!pod.draining, "{pod:?}");
    }
    Ok(())
}

/// The class lets the hostile tenant have any port but the reserved ones and those of others.
fn allow_all_ports(operator: &Operator) -> Result<()> {
    let allowed = "  allowed:\n";
    let evil = "    - {namespaces: {names: [evil]}, ports: [\"1-65535\"]}\n";
    operator.edit("dataplane.yaml", allowed, &format!("{allowed}{evil}"))
}

#[test]
fn a_hostile_tenant_costs_the_other_no_connection() -> Result<()> {
    let chain = Chain::start("tenants")?;
    let load = chain.load()?;
    let stop = AtomicBool::new(false);
    let operator = &chain.operator;
    allow_all_ports(operator)?;
    // An API server says who was first, files do not.
    let first = "  namespace: shop\n  creationTimestamp: \"2026-01-01T00:00:00Z\"\nspec:\n";
    operator.edit("web.yaml", "  namespace: shop\nspec:\n", first)?;
    operator.write("evil-flap.yaml", &flapping(PORT, true))?;
    until("the hostile tenant is served", || {
        let text = chain.snapshot()?.to_string();
        ensure!(text.contains("evil/flap/"), "{}", operator.process.stderr());
        Ok(())
    })?;
    for (file, text) in asked() {
        operator.write(file, &text)?;
    }
    for name in ["same-port", "control", "probes", "elsewhere"] {
        let refused = format!("LoadBalancerPolicy evil/{name}: Accepted: no");
        until("it is refused", || {
            let said = operator.process.stderr();
            ensure!(said.contains(&refused), "`{refused}` is not in {said}");
            Ok(())
        })?;
    }
    let began = Instant::now();
    let (flaps, changes) = thread::scope(|scope| {
        let flapping = scope.spawn(|| -> Result<u32> {
            let mut flaps = 0;
            while !stop.load(Ordering::Relaxed) {
                operator.write("evil-flap.yaml", &flapping(PORT, flaps % 2 == 1))?;
                flaps += 1;
                let due = began + flaps * FLAP_EVERY;
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok(flaps)
        });
        let changes = changes(&chain, || more(&load, 200).map(drop));
        stop.store(true, Ordering::Relaxed);
        let flaps = flapping.join().map_err(|_| anyhow::anyhow!("it panicked"));
        (flaps, changes)
    });
    let (flaps, worst) = (flaps??, changes?);
    eprintln!(
        "{flaps} flaps in {:?}; the other's {CHANGES} changes arrived after {worst:?} at worst",
        began.elapsed()
    );
    ensure!(flaps > 10, "{flaps} flaps");
    within_its_bounds(&chain)?;
    chain.unharmed(load)
}

/// The honest tenant takes a pod out and back in, which dataplanes learn; how long the slowest
/// took.
fn changes(chain: &Chain, mut meanwhile: impl FnMut() -> Result<()>) -> Result<Duration> {
    let unready = "ready: false, serving: false, terminating: false";
    let mut worst = Duration::ZERO;
    for n in 0..CHANGES {
        let (from, to) = if n % 2 == 0 { (READY, unready) } else { (unready, READY) };
        chain.endpoint(1, from, to)?;
        let since = Instant::now();
        until("the change is there", || {
            let pod = chain.backend("pod-b")?.context("pod-b")?;
            ensure!((pod.weight == 0) == (n % 2 == 0), "{pod:?}");
            Ok(())
        })?;
        worst = worst.max(since.elapsed());
        within_its_bounds(chain)?;
        meanwhile()?;
    }
    Ok(worst)
}

#[test]
fn a_port_that_the_machine_listens_on_is_not_given_away() -> Result<()> {
    let chain = Chain::start("hostports")?;
    let (machine, client) = (chain.lab.dataplane_pod(), chain.lab.client());
    let bind = || TcpListener::bind("0.0.0.0:22");
    let ssh = machine.namespace().run(bind)??;
    allow_all_ports(&chain.operator)?;
    chain.operator.write("evil-flap.yaml", &flapping(22, true))?;
    until("it is refused", || {
        let said = chain.operator.process.stderr();
        ensure!(said.contains("where another process of this machine listens"), "{said}");
        Ok(())
    })?;
    let address = chain.dataplane.address(22);
    let stream = client.namespace().run(|| TcpStream::connect(address))??;
    let (_, peer) = ssh.accept()?;
    ensure!(peer == stream.local_addr()?, "{peer}");
    drop((ssh, stream));
    // Who waited for the port gets it when it is free.
    until("it is served", || {
        let text = chain.snapshot()?.to_string();
        ensure!(text.contains("evil/flap/"), "{text}");
        Ok(())
    })
}
