//! `sysdump`: what a helper from far away needs, as files.
//!
//! Owns which objects, answers and logs are taken, and that each is bounded. What of an object is
//! kept is `clean`'s; Secrets are never read (`cluster::Kind` has none). What cannot be had is
//! written down instead of ending the dump.

mod archive;
mod clean;
#[cfg(test)]
mod tests;

pub use archive::write;

use crate::{
    ask::{self, Dataplane, Dataplanes},
    cluster::{Cluster, Kind, PodName},
    facts::{Pod, typed},
    failure::Failure,
    status::{self, Scene},
};
use baton_cli::{FlowsQuery, Style, line, states};
use k8s_openapi::api::core::v1::Service;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Flows of one dataplane: about 6 MB.
const FLOWS_MAX: u32 = 20_000;
/// Events of one dataplane: what one answer of it holds.
const EVENTS_MAX: u64 = 4_096;
/// Pods of one Service in the dump.
const PODS_MAX: usize = 500;
/// Services whose Pods are read.
const SERVICES_MAX: usize = 200;
/// Shims whose logs are taken although they are ready: each node has one, with a log of up to
/// 4 MiB, and what a few say all say. Those that are not ready, or were restarted, are taken first.
const READY_SHIMS_MAX: usize = 16;
/// All files together, before they are packed: they wait in memory, and what is sent to a helper
/// should be no more than a mail or a ticket takes (text becomes a tenth).
const DUMP_MAX_BYTES: usize = 256 << 20;

/// A file of the dump.
pub type File = (String, Vec<u8>);

/// A dump under construction.
#[derive(Default)]
struct Dump {
    files: Vec<File>,
    bytes: usize,
    missing: Vec<String>,
}

impl Dump {
    fn text(&mut self, path: impl Into<String>, text: impl Into<Vec<u8>>) {
        let (path, text) = (path.into(), text.into());
        if self.bytes + text.len() > DUMP_MAX_BYTES {
            let most = DUMP_MAX_BYTES >> 20;
            self.missing.push(format!("{path}: a dump has at most {most} MiB"));
            return;
        }
        self.bytes += text.len();
        self.files.push((path, text));
    }

    fn json(&mut self, path: impl Into<String>, value: &impl Serialize) {
        let path = path.into();
        match serde_json::to_vec_pretty(value) {
            Ok(bytes) => self.text(path, bytes),
            Err(error) => self.missing.push(format!("{path}: {error}")),
        }
    }

    /// Objects of one kind, cleaned.
    fn objects(&mut self, kind: Kind, items: &[Value], scene: &Scene) {
        let homes = status::homes(&scene.fleet);
        let clean = |item| clean::object(kind, item, is_ours(item, &homes));
        let clean: Vec<Value> = items.iter().map(clean).collect();
        self.json(format!("objects/{}.json", kind.resource()), &clean);
    }
}

/// Reads everything. The files, and what could not be had.
///
/// # Errors
/// The cluster cannot be asked at all.
pub async fn collect(cluster: &impl Cluster) -> Result<(Vec<File>, Vec<String>), Failure> {
    let mut dump = Dump::default();
    let scene = scene(cluster, &mut dump).await?;
    versions(cluster, &scene, &mut dump).await;
    for kind in Kind::ALL {
        let items = match kind {
            Kind::Pods => backend_pods(cluster, &scene, &mut dump).await?,
            Kind::Deployments | Kind::DaemonSets => {
                labelled(cluster, kind, &scene, &mut dump).await?
            }
            Kind::Services | Kind::EndpointSlices => {
                of_policies(list(cluster, kind, None, None, &mut dump).await?, kind, &scene)
            }
            Kind::Events => events(cluster, &scene, &mut dump).await?,
            Kind::Policies | Kind::Classes | Kind::Nodes => {
                list(cluster, kind, None, None, &mut dump).await?
            }
            // Not Baton's; what is in a ConfigMap is anybody's.
            Kind::Namespaces | Kind::ConfigMaps => continue,
        };
        dump.objects(kind, &items, &scene);
    }
    dataplanes(cluster, &scene, &mut dump).await;
    logs(cluster, &scene, &mut dump).await;
    // What is asked for twice is missing once.
    let mut said = BTreeSet::new();
    dump.missing.retain(|what| said.insert(what.clone()));
    let mut text = String::new();
    dump.missing.iter().for_each(|what| line(&mut text, what));
    // Whatever room is left: it says what is not there.
    let missing = ("missing.txt".to_owned(), text.into_bytes());
    dump.files.push(missing);
    Ok((dump.files, dump.missing))
}

/// What `status` sees, and what it says of that. Where it sees too little to judge, Baton's Pods
/// are looked for all the same.
async fn scene(cluster: &impl Cluster, dump: &mut Dump) -> Result<Scene, Failure> {
    let scene = match status::look(cluster, None).await {
        Ok(scene) => scene,
        Err(failure) if failure.is_for_all() => return Err(failure),
        Err(failure) => {
            dump.missing.push(format!("status.txt: {failure}"));
            let mut scene = Scene::default();
            match ask::fleet(cluster).await {
                Ok(fleet) => scene.fleet = fleet,
                Err(failure) if failure.is_for_all() => return Err(failure),
                Err(failure) => dump.missing.push(format!("dataplanes: {failure}")),
            }
            let policies = list(cluster, Kind::Policies, None, None, dump).await?;
            scene.policies = typed(&policies, &mut dump.missing);
            if let Err(failure) = status::workloads(cluster, &mut scene).await {
                dump.missing.push(format!("logs: {failure}"));
            }
            scene.answers = states(&Dataplanes(cluster), &scene.fleet.dataplanes).await;
            return Ok(scene);
        }
    };
    let report = status::judge(&scene);
    let style = Style { wide: true, colour: false };
    dump.text("status.txt", status::render(&report, style));
    dump.json("status.json", &report);
    dump.missing.extend(report.unseen);
    Ok(scene)
}

/// The kinds' objects; a missing right or kind is written down.
async fn list(
    cluster: &impl Cluster,
    kind: Kind,
    namespace: Option<&str>,
    labels: Option<&str>,
    dump: &mut Dump,
) -> Result<Vec<Value>, Failure> {
    match cluster.list(kind, namespace, labels).await {
        Ok(listed) => {
            if listed.truncated {
                dump.missing.push(format!(
                    "objects/{}.json: there are more than are read",
                    kind.resource()
                ));
            }
            Ok(listed.items)
        }
        Err(failure) if failure.is_for_all() => Err(failure),
        Err(failure) => {
            dump.missing.push(format!("objects/{}.json: {failure}", kind.resource()));
            Ok(Vec::new())
        }
    }
}

async fn labelled(
    cluster: &impl Cluster,
    kind: Kind,
    scene: &Scene,
    dump: &mut Dump,
) -> Result<Vec<Value>, Failure> {
    let mut items = Vec::new();
    for home in status::homes(&scene.fleet) {
        items.extend(list(cluster, kind, home.as_deref(), Some(ask::CHART), dump).await?);
    }
    Ok(items)
}

/// Namespace and Service of each policy.
fn services(scene: &Scene) -> BTreeSet<(String, String)> {
    let policies = scene.policies.iter();
    policies
        .map(|p| {
            (
                p.metadata.namespace.clone().unwrap_or_default(),
                p.spec.service().unwrap_or_default().to_owned(),
            )
        })
        .collect()
}

/// Those of the policies, and those where Baton is.
fn of_policies(items: Vec<Value>, kind: Kind, scene: &Scene) -> Vec<Value> {
    let wanted = services(scene);
    let homes = status::homes(&scene.fleet);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |item: &Value| {
        let metadata = &item["metadata"];
        let name = match kind {
            Kind::EndpointSlices => &metadata["labels"]["kubernetes.io/service-name"],
            _ => &metadata["name"],
        };
        let namespace = text(&metadata["namespace"]);
        wanted.contains(&(namespace.clone(), text(name))) || homes.contains(&Some(namespace))
    };
    items.into_iter().filter(of).collect()
}

/// Baton's own Pods and those of the policies' Services.
async fn backend_pods(
    cluster: &impl Cluster,
    scene: &Scene,
    dump: &mut Dump,
) -> Result<Vec<Value>, Failure> {
    let mut items = labelled(cluster, Kind::Pods, scene, dump).await?;
    for dataplane in &scene.fleet.dataplanes {
        // A class may choose Pods that are not the chart's.
        let name = &dataplane.pod.name;
        if !items.iter().any(|item| is(item, name)) {
            items.extend(
                list(cluster, Kind::Pods, Some(&name.namespace), None, dump)
                    .await?
                    .into_iter()
                    .filter(|item| is(item, name)),
            );
        }
    }
    let wanted = services(scene);
    let listed = list(cluster, Kind::Services, None, None, dump).await?;
    let found: Vec<Service> = typed(&listed, &mut dump.missing);
    let mut read = 0;
    for service in found {
        let (namespace, name) = (
            service.metadata.namespace.unwrap_or_default(),
            service.metadata.name.unwrap_or_default(),
        );
        let selector = service.spec.and_then(|spec| spec.selector).unwrap_or_default();
        if selector.is_empty() || !wanted.contains(&(namespace.clone(), name)) {
            continue;
        }
        read += 1;
        if read > SERVICES_MAX {
            dump.missing.push(format!("Pods of more than {SERVICES_MAX} Services"));
            break;
        }
        let labels: Vec<String> = selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let mut pods =
            list(cluster, Kind::Pods, Some(&namespace), Some(&labels.join(",")), dump).await?;
        if pods.len() > PODS_MAX {
            dump.missing.push(format!(
                "{} Pods of one Service in namespace {namespace}",
                pods.len() - PODS_MAX
            ));
            pods.truncate(PODS_MAX);
        }
        items.extend(pods);
    }
    let key =
        |item: &Value| format!("{}/{}", item["metadata"]["namespace"], item["metadata"]["name"]);
    items.sort_by_key(key);
    items.dedup_by_key(|item| key(item));
    Ok(items)
}

fn is(item: &Value, pod: &PodName) -> bool {
    item["metadata"]["namespace"] == pod.namespace.as_str()
        && item["metadata"]["name"] == pod.name.as_str()
}

/// Events about what is Baton's: its kinds, and everything in its namespaces.
async fn events(
    cluster: &impl Cluster,
    scene: &Scene,
    dump: &mut Dump,
) -> Result<Vec<Value>, Failure> {
    let homes = status::homes(&scene.fleet);
    let mut namespaces: BTreeSet<Option<String>> = homes.clone();
    // Those about classes, which are in no namespace, are in this one.
    namespaces.insert(Some("default".to_owned()));
    namespaces.extend(services(scene).into_iter().map(|(namespace, _)| Some(namespace)));
    if namespaces.contains(&None) {
        namespaces = [None].into();
    }
    let mut items = Vec::new();
    for namespace in namespaces {
        let all = list(cluster, Kind::Events, namespace.as_deref(), None, dump).await?;
        let home = homes.contains(&namespace) && namespace.is_some();
        items.extend(all.into_iter().filter(|item| {
            let version = item["regarding"]["apiVersion"].as_str().unwrap_or_default();
            home || version.starts_with(baton_crds::GROUP)
        }));
    }
    Ok(items)
}

async fn versions(cluster: &impl Cluster, scene: &Scene, dump: &mut Dump) {
    let server = cluster.version().await.unwrap_or_else(|failure| {
        dump.missing.push(format!("versions.json: {failure}"));
        "unknown".to_owned()
    });
    let images = |pods: &mut dyn Iterator<Item = &Pod>| -> BTreeMap<String, String> {
        pods.map(|pod| (pod.name.to_string(), pod.image.clone())).collect()
    };
    let told: BTreeMap<&str, &str> = scene
        .answers
        .iter()
        .filter_map(|asked| {
            Some((asked.name(), asked.result.as_ref().ok()?.state.version.as_str()))
        })
        .collect();
    dump.json(
        "versions.json",
        &json!({
            "kubectlBaton": env!("CARGO_PKG_VERSION"),
            "kubernetes": server,
            "dataplanes": told,
            "images": {
                "operator": images(&mut scene.operators.iter()),
                "host-shim": images(&mut scene.shims.iter()),
                "lb-dataplane": images(&mut scene.fleet.dataplanes.iter().map(|d| &d.pod)),
            },
        }),
    );
}

/// What each dataplane says: its state, its backends, its flows, its counters.
async fn dataplanes(cluster: &impl Cluster, scene: &Scene, dump: &mut Dump) {
    let fleet = Dataplanes(cluster);
    for asked in &scene.answers {
        let folder = format!("dataplanes/{}", asked.name());
        match &asked.result {
            Ok(answer) => {
                dump.json(format!("{folder}/status.json"), answer);
                dump.json(format!("{folder}/backends.json"), &answer.state.policies);
                let metrics =
                    json!({"counters": answer.state.counters, "tables": answer.state.tables});
                dump.json(format!("{folder}/metrics.json"), &metrics);
            }
            Err(why) => dump.missing.push(format!("{folder}: {why}")),
        }
    }
    let answering: Vec<Dataplane> = scene
        .answers
        .iter()
        .filter(|asked| asked.result.is_ok())
        .map(|asked| asked.dataplane.clone())
        .collect();
    let query = FlowsQuery { limit: FLOWS_MAX, ..FlowsQuery::default() };
    for asked in baton_cli::flows(&fleet, &answering, &query).await {
        let path = format!("dataplanes/{}/flows.json", asked.name());
        match &asked.result {
            Ok(flows) => dump.json(path, flows),
            Err(why) => dump.missing.push(format!("{path}: {why}")),
        }
    }
    // The last ones: where they end is asked first.
    let ends = baton_cli::events(&fleet, &answering, None, |_| None).await;
    let since = |dataplane: &Dataplane| {
        let of = ends.iter().find(|asked| asked.dataplane.pod.uid == dataplane.pod.uid)?;
        Some(of.result.as_ref().ok()?.next.back(EVENTS_MAX))
    };
    for asked in baton_cli::events(&fleet, &answering, None, since).await {
        let path = format!("dataplanes/{}/events.json", asked.name());
        match &asked.result {
            Ok(events) => dump.json(path, events),
            Err(why) => dump.missing.push(format!("{path}: {why}")),
        }
    }
}

/// The Pods whose logs are taken, those that tell most first.
fn logged<'a>(scene: &'a Scene, dump: &mut Dump) -> Vec<&'a Pod> {
    let calm = |pod: &&Pod| pod.ready && pod.restarts == 0;
    let (mut ready, troubled): (Vec<_>, Vec<_>) = scene.shims.iter().partition(calm);
    if ready.len() > READY_SHIMS_MAX {
        dump.missing
            .push(format!("logs of {} host-shims that are ready", ready.len() - READY_SHIMS_MAX));
        ready.truncate(READY_SHIMS_MAX);
    }
    let dataplanes = scene.fleet.dataplanes.iter().map(|one| &one.pod);
    let first = scene.operators.iter().chain(dataplanes);
    first.chain(troubled).chain(ready).collect()
}

/// The ends of the logs of Baton's own containers, and of those before a restart.
async fn logs(cluster: &impl Cluster, scene: &Scene, dump: &mut Dump) {
    for pod in logged(scene, dump) {
        for container in &pod.containers {
            let rounds: &[bool] = if pod.restarts > 0 { &[false, true] } else { &[false] };
            for previous in rounds {
                let suffix = if *previous { ".previous" } else { "" };
                let path = format!("logs/{}/{container}{suffix}.log", pod.name.name);
                match cluster.log(&pod.name, container, *previous).await {
                    Ok(text) => dump.text(path, clean::log(&text)),
                    Err(failure) => dump.missing.push(format!("{path}: {failure}")),
                }
            }
        }
    }
}

/// Whether an object is the chart's: its label alone anybody may put on what is his.
fn is_ours(item: &Value, homes: &BTreeSet<Option<String>>) -> bool {
    let metadata = &item["metadata"];
    let home = metadata["namespace"].as_str().map(str::to_owned);
    let name = metadata["labels"]["app.kubernetes.io/name"].as_str();
    name == Some("baton") && home.is_some() && homes.contains(&home)
}
