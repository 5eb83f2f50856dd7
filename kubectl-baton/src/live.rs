//! The cluster that the kubeconfig names: lists, `exec` and logs over its API server, all bounded
//! in time and size.
//!
//! Owns the connection. Judges nothing and prints nothing.

use crate::{
    args::{CONTROL_DEFAULT, Options},
    cluster::{Cluster, Edit, ExecOutput, Kind, Listed, PodName},
    failure::{Deed, Failure},
    proxy,
};
use baton_api::ControlAddress;
use baton_cli::{Bounded, Stop};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Status};
use kube::{
    Api, Client, Config,
    api::{
        ApiResource, AttachParams, AttachedProcess, DeleteParams, DynamicObject, ListParams,
        LogParams, Patch, PatchParams, PostParams,
    },
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use std::{future::Future, io::Write, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

/// The dataplane's own limit for an answer is 12 s; the way there and back takes some more.
const EXEC_LIMIT: Duration = Duration::from_secs(20);
/// A page of a list, or a log. kube-apiserver gives up after 60 s by itself; nobody waits that
/// long.
const ASK_LIMIT: Duration = Duration::from_secs(30);
/// A connection to the API server.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Objects in one page, as kubectl has it.
const PAGE: u32 = 500;
/// Objects of one kind: a cluster of the size that the operator is measured with (50,000 endpoints)
/// has fewer slices and policies; Pods are only read where their number is small.
const OBJECTS_MAX: usize = 20_000;
/// Some lines of an error.
const STDERR_MAX_BYTES: usize = 64 << 10;
/// Read at once from a Pod.
const PIPE_BYTES: usize = 64 << 10;
/// The end of a container's log: about a day at the level `info`.
const LOG_LINES: i64 = 5_000;
/// The same, for long lines.
const LOG_MAX_BYTES: i64 = 4 << 20;

/// Who changes objects, as the API server remembers it.
const MANAGER: &str = "kubectl-baton";

fn resource(kind: Kind) -> ApiResource {
    let (group, version, name, plural) = kind.names();
    let api_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: name.to_owned(),
        plural: plural.to_owned(),
    }
}

/// A cluster behind its API server.
pub struct Live {
    client: Client,
    server: String,
    namespace: String,
    home: Option<String>,
    control: ControlAddress,
    options: String,
}

/// The options that choose a cluster, and where Baton is in it, as a shell reads them.
fn typed(options: &Options) -> String {
    let file = options.kubeconfig.as_ref();
    let file = file.map(|file| file.display().to_string());
    let control = options.control.to_string();
    [
        ("context", options.context.clone()),
        ("kubeconfig", file),
        ("baton-namespace", options.baton_namespace.clone()),
        ("control", Some(control).filter(|it| it != CONTROL_DEFAULT)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(format!(" --{name} {}", quoted(&value?))))
    .collect()
}

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%_+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Live {
    /// Reads the kubeconfig as kubectl does. Connects to nobody yet.
    ///
    /// # Errors
    /// There is no usable kubeconfig.
    pub async fn new(options: &Options) -> Result<Self, Failure> {
        let wanted =
            KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
        let file = match &options.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let file = file.map_err(|e| Failure::kubeconfig(&e))?;
        let of_cluster = proxy::of_cluster(&file, options.context.as_deref());
        let config = Config::from_custom_kubeconfig(file, &wanted).await;
        let mut config = config.map_err(|e| Failure::kubeconfig(&e))?;
        config.connect_timeout = Some(CONNECT_LIMIT);
        let mut server = proxy::shown(&config.cluster_url.to_string());
        server.truncate(server.trim_end_matches('/').len());
        let env = |name: &str| std::env::var(name).ok();
        config.proxy_url = match proxy::chosen(of_cluster, &server, env) {
            Some(url) => {
                server.push_str(&format!(" (through the proxy {})", proxy::shown(&url)));
                let url = proxy::with_scheme(&url)?;
                Some(url.parse().map_err(|_| proxy::unusable(&url))?)
            }
            None => None,
        };
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).map_err(|e| {
            Failure::Config(format!("the kubeconfig's cluster or user cannot be used: {e}"))
        })?;
        Ok(Self {
            client,
            server,
            namespace,
            home: options.baton_namespace.clone(),
            control: options.control,
            options: typed(options),
        })
    }

    async fn ask<T>(
        &self,
        deed: &Deed,
        limit: Duration,
        asking: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        match timeout(limit, asking).await {
            Ok(answer) => answer.map_err(|error| Failure::of(&error, deed, &self.server)),
            Err(_) => Err(Failure::Slow { what: deed.to_string(), seconds: limit.as_secs() }),
        }
    }

    fn pods(&self, pod: &PodName) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &pod.namespace)
    }
}

impl Cluster for Live {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn home(&self) -> Option<&str> {
        self.home.as_deref()
    }

    fn control(&self) -> ControlAddress {
        self.control
    }

    fn options(&self) -> &str {
        &self.options
    }

    async fn list(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Listed, Failure> {
        let resource = resource(kind);
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let deed = Deed::new("list", kind.resource(), namespace);
        let mut params = ListParams::default().limit(PAGE);
        if let Some(labels) = labels {
            params = params.labels(labels);
        }
        let mut listed = Listed::default();
        loop {
            let page = self.ask(&deed, ASK_LIMIT, api.list(&params)).await?;
            for object in page.items {
                let value = serde_json::to_value(object);
                let mut value = value.map_err(|error| unreadable(&deed, &error))?;
                // Items of a list do not say what they are.
                value["apiVersion"] = resource.api_version.as_str().into();
                value["kind"] = resource.kind.as_str().into();
                listed.items.push(value);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(_) if listed.items.len() >= OBJECTS_MAX => {
                    listed.truncated = true;
                    return Ok(listed);
                }
                Some(token) => params = params.continue_token(&token),
                None => return Ok(listed),
            }
        }
    }

    async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Value>, Failure> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource(kind));
        let deed = Deed::new("get", kind.resource(), Some(namespace));
        match self.ask(&deed, ASK_LIMIT, api.get(name)).await {
            Ok(object) => {
                let value = serde_json::to_value(object);
                value.map(Some).map_err(|error| unreadable(&deed, &error))
            }
            Err(Failure::Missing(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn write(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        edit: Edit,
    ) -> Result<(), Failure> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource(kind));
        let deed = |verb| Deed::new(verb, kind.resource(), Some(namespace));
        match edit {
            Edit::Create(object) => {
                let deed = deed("create");
                let object = serde_json::from_value(object).map_err(|error| Failure::Other {
                    what: format!("{deed} is not possible"),
                    why: error.to_string(),
                })?;
                let params =
                    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
                self.ask(&deed, ASK_LIMIT, api.create(&params, &object)).await?;
            }
            Edit::Merge(patch) => {
                let params = PatchParams {
                    field_manager: Some(MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                let patch = Patch::Merge(patch);
                let request = api.patch(name, &params, &patch);
                self.ask(&deed("patch"), ASK_LIMIT, request).await?;
            }
            Edit::Delete => {
                let params = DeleteParams::default();
                let request = api.delete(name, &params);
                match self.ask(&deed("delete"), ASK_LIMIT, request).await {
                    Ok(_) | Err(Failure::Missing(_)) => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(())
    }

    async fn exec_into(
        &self,
        pod: &PodName,
        container: &str,
        command: &[String],
        limit: Duration,
        stop: Option<Stop>,
        out: &mut dyn Write,
    ) -> Result<ExecOutput, Failure> {
        // A WebSocket is opened with GET, so API servers ask for `get`; from 1.35 on for `create`
        // too.
        let deed = Deed::new("get create", "pods/exec", Some(&pod.namespace));
        let params = AttachParams {
            max_stdout_buf_size: Some(PIPE_BYTES),
            ..AttachParams::default()
                .container(container)
                .stdin(stop.is_some())
                .stdout(true)
                .stderr(true)
        };
        let api = self.pods(pod);
        let asking = async {
            let mut process =
                self.ask(&deed, EXEC_LIMIT, api.exec(&pod.name, command, &params)).await?;
            let interrupted = interrupted(stop, process.stdin());
            tokio::select! {
                ran = finish(process, pod, out) => ran,
                () = interrupted => Err(Failure::Other {
                    what: format!("a command in Pod {pod} broke off"),
                    why: "it was interrupted".to_owned(),
                }),
            }
        };
        timeout(EXEC_LIMIT + limit, asking).await.unwrap_or_else(|_| {
            Err(Failure::Slow {
                what: format!("a command in Pod {pod}"),
                seconds: (EXEC_LIMIT + limit).as_secs(),
            })
        })
    }

    async fn log(&self, pod: &PodName, container: &str, previous: bool) -> Result<String, Failure> {
        let deed = Deed::new("get", "pods/log", Some(&pod.namespace));
        let params = LogParams {
            container: Some(container.to_owned()),
            previous,
            tail_lines: Some(LOG_LINES),
            limit_bytes: Some(LOG_MAX_BYTES),
            ..LogParams::default()
        };
        self.ask(&deed, ASK_LIMIT, self.pods(pod).logs(&pod.name, &params)).await
    }

    async fn version(&self) -> Result<String, Failure> {
        let deed = Deed::new("get", "/version", None);
        let info = self.ask(&deed, ASK_LIMIT, self.client.apiserver_version()).await?;
        Ok(info.git_version)
    }
}

fn unreadable(deed: &Deed, error: &serde_json::Error) -> Failure {
    Failure::Other { what: format!("an answer to {deed} cannot be read"), why: error.to_string() }
}

/// Hands the user's first wish to end on to the command; ends with the second one, and never
/// without.
async fn interrupted(stop: Option<Stop>, stdin: Option<impl AsyncWrite + Unpin>) {
    let (Some(mut stop), Some(mut stdin)) = (stop, stdin) else {
        return std::future::pending().await;
    };
    let first = stop.wait_for(|wishes| *wishes >= 1).await.is_ok();
    // One that has ended already takes nothing, which shows in how it ended.
    if first && stdin.write_all(b"\n").await.is_ok() {
        let _ = stdin.flush().await;
    }
    let second = stop.wait_for(|wishes| *wishes >= 2).await.is_ok();
    if !second {
        std::future::pending::<()>().await;
    }
}

/// Reads both streams to their ends, then how it ended.
async fn finish(
    mut process: AttachedProcess,
    pod: &PodName,
    out: &mut dyn Write,
) -> Result<ExecOutput, Failure> {
    let broke =
        |why: String| Failure::Other { what: format!("a command in Pod {pod} broke off"), why };
    let status = process.take_status();
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let mut errors = Bounded::new(STDERR_MAX_BYTES, "it is more than 64 KiB");
    let (stdout, stderr) = tokio::join!(pass(stdout, out), pass(stderr, &mut errors));
    stdout.and(stderr).map_err(&broke)?;
    let stderr = String::from_utf8_lossy(&errors.bytes).trim().to_owned();
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    let Some(status) = status else {
        return Err(broke("the API server did not say how it ended".to_owned()));
    };
    let code = exit_code(&status).map_err(|why| Failure::Other {
        what: format!("no command can be run in Pod {pod}"),
        why,
    })?;
    Ok(ExecOutput { stderr, code })
}

/// Writes a stream as it comes.
async fn pass(stream: Option<impl AsyncRead + Unpin>, out: &mut dyn Write) -> Result<(), String> {
    let Some(mut stream) = stream else {
        return Ok(());
    };
    let mut buffer = vec![0; PIPE_BYTES];
    loop {
        let read = stream.read(&mut buffer).await.map_err(|e| e.to_string())?;
        if read == 0 {
            return Ok(());
        }
        let written = out.write_all(&buffer[..read]).and_then(|()| out.flush());
        written.map_err(|error| format!("what it says cannot be written: {error}"))?;
    }
}

/// What the kubelet says of a command's end; the error is why it was not run at all.
fn exit_code(status: &Status) -> Result<i32, String> {
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status.details.iter().flat_map(|d| d.causes.iter().flatten());
    let code = causes
        .filter(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .find_map(|cause| cause.message.as_deref()?.parse().ok());
    code.ok_or_else(|| status.message.clone().unwrap_or_else(|| "no reason given".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::watch;

    #[test]
    fn an_exit_code_is_told_from_a_command_that_did_not_run() {
        let status = |text: &str| serde_json::from_str::<Status>(text).expect("a status");
        assert_eq!(exit_code(&status(r#"{"status":"Success"}"#)), Ok(0));
        let failed = status(
            r#"{"status":"Failure","reason":"NonZeroExitCode","message":"command terminated with non-zero exit code",
                "details":{"causes":[{"reason":"ExitCode","message":"1"}]}}"#,
        );
        assert_eq!(exit_code(&failed), Ok(1));
        let absent = status(
            r#"{"status":"Failure","reason":"InternalError","message":"exec: \"lb-dataplane\": executable file not found in $PATH"}"#,
        );
        assert!(exit_code(&absent).expect_err("did not run").contains("executable file not found"));
    }

    /// What is proposed next changes the cluster that was asked.
    #[test]
    fn the_options_that_choose_a_cluster_are_typed_again() {
        let options = |line: &str| crate::args::tests::parsed(line).expect(line).options;
        assert_eq!(typed(&options("kubectl-baton -n shop status")), "");
        let line = "kubectl-baton --context arn:aws:eks:x:1:cluster/p --kubeconfig /tmp/k status";
        let expected = " --context arn:aws:eks:x:1:cluster/p --kubeconfig /tmp/k";
        assert_eq!(typed(&options(line)), expected);
        let mut odd = options("kubectl-baton --control 127.0.0.1:9900 status");
        odd.context = Some("it's; $prod".to_owned());
        let expected = r" --context 'it'\''s; $prod' --control 127.0.0.1:9900";
        assert_eq!(typed(&odd), expected);
    }

    #[tokio::test]
    async fn what_a_command_says_is_passed_on_as_long_as_it_is_taken() {
        let mut out = Bounded::new(1_000_000, "it is too much");
        assert_eq!(pass(Some(&b"12345"[..]), &mut out).await, Ok(()));
        assert_eq!(pass(None::<&[u8]>, &mut out).await, Ok(()));
        assert_eq!(out.bytes, b"12345");
        let endless = pass(Some(tokio::io::repeat(1)), &mut out).await;
        assert!(endless.expect_err("too much").contains("it is too much"));
        assert!(out.bytes.len() <= 1_000_000, "{}", out.bytes.len());
        // A reader that has gone.
        let mut full: &mut [u8] = &mut [0; 3];
        let cut = pass(Some(&b"12345"[..]), &mut full).await;
        assert!(cut.expect_err("no room").contains("cannot be written"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_wish_to_end_is_handed_on_and_the_second_ends() {
        let (tell, stop) = watch::channel(0);
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ending = tokio::spawn(interrupted(Some(stop.clone()), Some(ours)));
        let soon = Duration::from_secs(1);
        assert!(timeout(soon, &mut ending).await.is_err(), "nobody wished it");
        tell.send_replace(1);
        assert_eq!(theirs.read_u8().await.expect("a byte"), b'\n');
        assert!(timeout(soon, &mut ending).await.is_err(), "it ends by itself");
        tell.send_replace(2);
        ending.await.expect("ends");
    }
}
