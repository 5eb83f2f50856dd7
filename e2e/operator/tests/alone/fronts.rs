//! Services of somebody else that the operator does not know yet, under a name that a policy has
//! for its frontend. Nothing but the operator keeps them as they are: the admission policy that
//! refuses it other Services is taken away.
//!
//! What the operator knows is decided by a gateway between it and the API server, which holds back
//! the watch of Services: so it does not depend on who is faster.

use anyhow::{Context, Result, ensure};
use baton_operator_tests::{
    OPERATOR, OPERATOR_NAMESPACE, admin::Admin, apply::send, cluster::wait_for, manifests, or_skip,
    world::World,
};
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Frame, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// Speaks to the API server for an operator.
struct Gateway {
    address: SocketAddr,
    way: Way,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Way {
    client: Client,
    /// Whether what the watch of Services says passes.
    open: watch::Sender<bool>,
    /// Writes of Services and what was answered, as `POST NAME 409`.
    writes: Arc<Mutex<Vec<String>>>,
}

impl Gateway {
    async fn start(client: Client) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let way = Way { client, open: watch::Sender::new(true), writes: Arc::default() };
        let task = tokio::spawn(serve(listener, way.clone()));
        Ok(Self { address, way, task })
    }

    fn hold(&self) {
        self.way.open.send_replace(false);
    }

    fn pass(&self) {
        self.way.open.send_replace(true);
    }

    async fn wrote(&self, admin: &Admin, what: &str) -> Result<()> {
        wait_for(what, async || {
            let writes = self.way.writes.lock().expect("nobody panics with it");
            ensure!(
                writes.iter().any(|write| write.starts_with(what)),
                "{writes:?}\n{}",
                admin.log()
            );
            Ok(())
        })
        .await
    }

    fn kubeconfig(&self, world: &World) -> Result<std::path::PathBuf> {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config",
            "clusters": [{ "name": "test", "cluster": { "server": format!("http://{}", self.address) } }],
            "users": [{ "name": "test", "user": {} }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
            "current-context": "test",
        });
        let path = world.server.folder().join("gateway.kubeconfig");
        std::fs::write(&path, kubeconfig.to_string())?;
        Ok(path)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, way: Way) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let way = way.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| way.clone().pass(request));
            // It ends when the operator closes it.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl Way {
    async fn pass(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = anyhow::Error>>> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let (method, path) = (head.method.clone(), head.uri.path().to_owned());
        let services = path.starts_with("/api/v1/") && path.contains("/services");
        let name = serde_json::from_slice(&body).unwrap_or(Value::Null)["metadata"]["name"]
            .as_str()
            .map_or_else(|| path.rsplit('/').next().unwrap_or_default().to_owned(), str::to_owned);
        head.uri = head.uri.path_and_query().context("a path")?.as_str().parse()?;
        head.headers.remove(header::HOST);
        let answer = self.client.send(Request::from_parts(head, Body::from(body.to_vec()))).await?;
        if services && method != Method::GET {
            let mut writes = self.writes.lock().expect("nobody panics with it");
            writes.push(format!("{method} {name} {}", answer.status().as_u16()));
        }
        let held = services && method == Method::GET;
        let (mut head, body) = answer.into_parts();
        head.headers.remove(header::TRANSFER_ENCODING);
        let open = self.open.subscribe();
        let frames = stream::unfold((body, open), move |(mut body, mut open)| async move {
            let frame = body.frame().await?;
            if held {
                open.wait_for(|open| *open).await.ok()?;
            }
            Some((frame.map_err(anyhow::Error::from), (body, open)))
        });
        let frames: std::pin::Pin<
            Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>>> + Send>,
        > = Box::pin(frames);
        Ok(Response::from_parts(head, StreamBody::new(frames)))
    }
}

/// The admission policy and its binding.
fn guards() -> Result<Vec<Value>> {
    let all = manifests::folder("operator/rbac")?.into_iter();
    let guards: Vec<Value> =
        all.filter(|m| m["metadata"]["name"] == "baton-operator-frontends").collect();
    ensure!(guards.len() == 2, "{guards:?}");
    Ok(guards)
}

/// Waits until the API server does not refuse the operator's Services any more.
async fn unguarded(world: &World, namespace: &str) -> Result<()> {
    let operator = world.server.client_as(OPERATOR_NAMESPACE, OPERATOR).await?;
    let uri = format!("/api/v1/namespaces/{namespace}/services?dryRun=All");
    wait_for("nothing guards Services", async || {
        let probe = service(namespace, "probe");
        let answer = send(&operator, Method::POST, &uri, "application/json", &probe).await?;
        answer.object()?;
        Ok(())
    })
    .await
}

fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "selector": { "app": name }, "ports": [{ "name": "web", "port": 80 }] },
    })
}

fn policy(namespace: &str, name: &str, front: &str, ports: &[u16]) -> Value {
    let listeners: Vec<Value> = ports
        .iter()
        .map(|port| json!({ "name": format!("at-{port}"), "port": port, "servicePort": 80 }))
        .collect();
    json!({
        "apiVersion": "baton.dev/v1alpha1", "kind": "LoadBalancerPolicy",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "targetRefs": [{ "name": format!("{name}-pods") }],
            "frontend": { "service": { "name": front } },
            "listeners": listeners,
            "dataplaneSelector": { "matchLabels": { "class": "fronts" } },
        },
    })
}

/// What is not to change is whose fields are and which version it has, too.
async fn unchanged(admin: &Admin, before: &Value) -> Result<()> {
    let after = admin.get(before).await?;
    ensure!(after == *before, "{after}\nwas\n{before}\n{}", admin.log());
    Ok(())
}

#[tokio::test]
async fn a_service_of_somebody_else_stays_as_it_is_before_the_operator_knows_it() -> Result<()> {
    let mut world = or_skip!(World::alone().await?);
    let guards = guards()?;
    for guard in &guards {
        world.admin.delete(guard).await?;
    }
    let result = stays(&mut world).await;
    for guard in &guards {
        world.admin.apply(guard).await?;
    }
    result
}

async fn stays(world: &mut World) -> Result<()> {
    let namespace = world.server.namespace("fronts").await?.name;
    unguarded(world, &namespace).await?;
    let client = world.server.client_as(OPERATOR_NAMESPACE, OPERATOR).await?;
    let gateway = Gateway::start(client).await?;
    let kubeconfig = gateway.kubeconfig(world)?;
    let _operator = world.start_operator_at(&kubeconfig, "fronts", &[])?;
    let admin = &world.admin;
    admin
        .apply(&json!({
            "apiVersion": "baton.dev/v1alpha1", "kind": "BatonDataplane",
            "metadata": { "name": "fronts", "labels": { "class": "fronts" } },
            "spec": {
                "namespace": OPERATOR_NAMESPACE, "selector": { "matchLabels": { "class": "none" } },
            },
        }))
        .await?;
    for target in ["first-pods", "second-pods"] {
        admin.apply(&service(&namespace, target)).await?;
    }
    // One whose frontend the operator has made, and knows.
    let first = policy(&namespace, "first", "made", &[80, 81]);
    admin.apply(&first).await?;
    let made = service(&namespace, "made");
    let ports = |count: usize| {
        move |s: &Value| s["spec"]["ports"].as_array().is_some_and(|p| p.len() == count)
    };
    admin.until("it is made", &made, ports(2)).await?;
    // What the create has set an apply takes away.
    admin.apply(&policy(&namespace, "first", "made", &[80])).await?;
    let one = admin.until("it has one port", &made, ports(1)).await?;
    let mut managers = one["metadata"]["managedFields"].as_array().into_iter().flatten();
    ensure!(
        managers.all(|m| m["manager"] != "baton-operator-frontend" || m["operation"] == "Apply"),
        "{one}"
    );
    let known = |p: &Value| !p["status"]["addresses"][0].is_null();
    admin.until("the operator knows it", &first, known).await?;

    gateway.hold();
    // One of a name that was free as far as the operator knows.
    let others = admin.apply(&service(&namespace, "others")).await?;
    let second = policy(&namespace, "second", "others", &[80]);
    admin.apply(&second).await?;
    gateway.wrote(admin, "POST others 409").await?;
    unchanged(admin, &others).await?;
    // One in the place of what the operator has made.
    admin.delete(&made).await?;
    let again = admin.apply(&made).await?;
    admin.apply(&policy(&namespace, "first", "made", &[80, 82])).await?;
    gateway.wrote(admin, "PATCH made 4").await?;
    unchanged(admin, &again).await?;

    gateway.pass();
    let not_owned = |c: &Value| c["reason"] == "FrontendNotOwned";
    for policy in [&first, &second] {
        let what = "the policy says whose it is";
        admin.condition_where(what, policy, "Degraded", not_owned).await?;
    }
    for before in [&others, &again] {
        unchanged(admin, before).await?;
    }
    // Another uid is no mistake of the operator's, and nothing that a policy's author can correct.
    let log = admin.log();
    ensure!(!log.contains("refused: it is not written"), "{log}");
    Ok(())
}
