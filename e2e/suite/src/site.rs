//! The cluster, as `kubectl` and `helm` reach it.
//!
//! Owns starting and ending one of our own where none is given. Asserts nothing.

use anyhow::{Context, Result, bail, ensure};
use baton_cluster::{Cluster, Options, ProxyMode, client_image, helm, server_image};
use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Where Baton is installed.
pub const NAMESPACE: &str = "baton-system";
/// Where what it balances is.
pub const SHOP: &str = "shop";
/// For any change to come to an end on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A cluster and how to speak to it.
pub struct Site {
    own: Option<Cluster>,
    kubeconfig: PathBuf,
    helm: PathBuf,
    chart: PathBuf,
}

impl Site {
    /// The one that `BATON_E2E_KUBECONFIG` names, with `kubectl` and `helm` of the PATH and all
    /// images on its nodes; without it one of our own with two nodes and the images of
    /// `BATON_IMAGES` (`make images`).
    pub fn get() -> Result<Self> {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/baton");
        if let Some(kubeconfig) = env::var_os("BATON_E2E_KUBECONFIG") {
            return Ok(Self {
                own: None,
                kubeconfig: kubeconfig.into(),
                helm: "helm".into(),
                chart,
            });
        }
        let folder = env::var_os("BATON_IMAGES").context(
            "BATON_IMAGES names no folder: run `make e2e`, which builds the images, or give BATON_E2E_KUBECONFIG",
        )?;
        let folder = PathBuf::from(folder);
        let mut images = Vec::new();
        for name in ["baton-operator", "lb-dataplane", "host-shim"] {
            let image = folder.join(format!("{name}.tar"));
            ensure!(image.is_file(), "{} is missing: run `make images`", image.display());
            images.push(image);
        }
        let made = env::temp_dir().join(format!("bt-e2e-{}", std::process::id()));
        fs::create_dir_all(&made)?;
        images.push(server_image(&made)?);
        images.push(client_image(&made, &[built("baton-files")?])?);
        let proxy = match env::var("BATON_E2E_PROXY").as_deref() {
            Err(_) | Ok("iptables") => ProxyMode::Iptables,
            Ok("nftables") => ProxyMode::Nftables,
            Ok(other) => bail!("BATON_E2E_PROXY={other}: expected iptables or nftables"),
        };
        let cluster = Cluster::up(&Options { nodes: 2, images, proxy });
        let _ = fs::remove_dir_all(&made);
        let cluster = cluster?;
        Ok(Self { kubeconfig: cluster.kubeconfig(), own: Some(cluster), helm: helm()?, chart })
    }

    /// What the interface is called that each node has for the others: in our own cluster, or in
    /// one of kind.
    #[must_use]
    pub fn node_interface(&self) -> &'static str {
        if self.own.is_some() { "node0" } else { "eth0" }
    }

    /// `kubectl`, without arguments yet.
    #[must_use]
    pub fn kubectl_command(&self) -> Command {
        match &self.own {
            Some(cluster) => cluster.kubectl_command(),
            None => {
                let mut kubectl = Command::new("kubectl");
                kubectl.env("KUBECONFIG", &self.kubeconfig);
                kubectl
            }
        }
    }

    /// What `kubectl` says.
    ///
    /// # Errors
    /// It fails; with what it said.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        output(self.kubectl_command().args(arguments))
    }

    /// What `helm COMMAND baton` says; `install` and `upgrade` with the chart.
    ///
    /// # Errors
    /// It fails; with what it said.
    pub fn helm(&self, command: &str, arguments: &[&str]) -> Result<String> {
        let mut helm = Command::new(&self.helm);
        helm.env("KUBECONFIG", &self.kubeconfig).args([command, "baton"]);
        if command == "install" || command == "upgrade" {
            helm.arg(&self.chart);
        }
        output(helm.args(["--namespace", NAMESPACE]).args(arguments))
    }

    /// What `kubectl baton` says, of the plugin that is built beside this test.
    ///
    /// # Errors
    /// It is not built, or fails; with what it said.
    pub fn baton(&self, arguments: &[&str]) -> Result<String> {
        let mut plugin = Command::new(built("kubectl-baton")?);
        plugin.env("KUBECONFIG", &self.kubeconfig);
        output(plugin.args(arguments))
    }

    /// Applies manifests.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        let mut kubectl = self.kubectl_command();
        let mut child = kubectl
            .args(["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        child.stdin.take().context("a pipe")?.write_all(manifests.as_bytes())?;
        ensure!(child.wait()?.success(), "kubectl apply refused:\n{manifests}");
        Ok(())
    }

    /// A field of an object in the shop.
    pub fn field(&self, namespace: &str, object: &str, path: &str) -> Result<String> {
        let path = format!("jsonpath={{{path}}}");
        self.kubectl(&["-n", namespace, "get", object, "-o", &path])
    }

    /// The names of a namespace's running Pods with a label that stay, each with its node's.
    pub fn placed(&self, namespace: &str, label: &str) -> Result<Vec<(String, String)>> {
        let running = "--field-selector=status.phase=Running";
        let fields = "jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} {.metadata.deletionTimestamp}{\"\\n\"}{end}";
        let list = ["get", "pods", "-l", label, running, "-o", fields];
        let listed = self.kubectl(&[&["-n", namespace][..], &list].concat())?;
        let stays = |line: &str| {
            let mut fields = line.split_whitespace();
            let placed = (fields.next()?.to_owned(), fields.next()?.to_owned());
            // One that is being deleted may be gone when it is asked for something.
            fields.next().is_none().then_some(placed)
        };
        Ok(listed.lines().filter_map(stays).collect())
    }

    /// Waits until something holds.
    ///
    /// # Errors
    /// It does not, in time; with what was seen last.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let end = Instant::now() + DEADLINE;
        loop {
            let seen = look();
            match seen {
                Ok(Some(found)) => return Ok(found),
                Ok(None) | Err(_) if Instant::now() < end => thread::sleep(LOOK_EVERY),
                Ok(None) => anyhow::bail!("{what}: not so after {DEADLINE:?}"),
                Err(error) => {
                    return Err(error.context(format!("{what}: not so after {DEADLINE:?}")));
                }
            }
        }
    }

    /// Waits until a workload is rolled out.
    pub fn rolled_out(&self, namespace: &str, workload: &str) -> Result<()> {
        self.kubectl(&["-n", namespace, "rollout", "status", workload, "--timeout=120s"])?;
        Ok(())
    }

    /// Prints how things stand, for whoever looks why a test failed. What cannot be asked says so.
    pub fn tell(&self) {
        let tell = |arguments: &[&str]| match self.kubectl(arguments) {
            Ok(text) => println!("\n$ kubectl {}\n{text}", arguments.join(" ")),
            Err(error) => println!("\n{error:#}"),
        };
        tell(&["get", "pods", "-A", "-o", "wide"]);
        tell(&["get", "endpointslices", "-A"]);
        tell(&["-n", SHOP, "describe", "lbp"]);
        tell(&["get", "events", "-A", "--sort-by=.lastTimestamp"]);
        for component in ["lb-dataplane", "operator", "host-shim"] {
            let label = format!("app.kubernetes.io/component={component}");
            let logs = ["-n", NAMESPACE, "logs", "--prefix", "--tail=30", "-l"];
            tell(&[&logs[..], &[&label]].concat());
        }
        let label = "app.kubernetes.io/component=lb-dataplane";
        let pods = self.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", label, "-o", "name"]);
        for pod in pods.unwrap_or_default().lines() {
            for (what, form) in [("status", "json"), ("backends", "table"), ("flows", "table")] {
                let control = "unix:/run/baton/control.sock";
                let ask = ["lb-dataplane", what, "--control", control, "-o", form];
                tell(&[&["-n", NAMESPACE, "exec", pod, "--"][..], &ask].concat());
            }
        }
    }

    /// How many packets each node has dropped because its connection tracking called them INVALID,
    /// by kube-proxy's rule of its iptables mode; nothing where the cluster is not our own.
    pub fn invalid_drops(&self) -> Result<Vec<(String, u64)>> {
        let Some(cluster) = &self.own else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        for node in cluster.nodes() {
            let list = ["-t", "filter", "-L", "KUBE-FORWARD", "-v", "-x", "-n"];
            let rules = node.run("iptables", &list)?;
            let drops = invalid_rule(&rules)
                .with_context(|| format!("{} drops nothing INVALID:\n{rules}", node.name()))?;
            all.push((node.name().to_owned(), drops));
        }
        Ok(all)
    }

    /// Whether the nodes drop what connection tracking calls INVALID: kube-proxy's iptables mode in
    /// a cluster of our own.
    #[must_use]
    pub fn drops_invalid(&self) -> bool {
        self.own.as_ref().is_some_and(|cluster| cluster.proxy() == ProxyMode::Iptables)
    }

    /// What the network namespaces of a program's processes have as `net.mptcp.enabled`; nothing
    /// where the cluster is not our own.
    pub fn multipath_of(&self, program: &str) -> Result<Vec<String>> {
        let Some(cluster) = &self.own else {
            return Ok(Vec::new());
        };
        let look = format!(
            "for p in $(pgrep -x {program}); do nsenter -t $p -n cat /proc/sys/net/mptcp/enabled; done"
        );
        let mut all = Vec::new();
        for node in cluster.nodes() {
            let found = node.run("sh", &["-c", &look])?;
            all.extend(found.lines().map(str::to_owned));
        }
        ensure!(!all.is_empty(), "no node runs {program}");
        Ok(all)
    }

    /// Names of the nodes, and what is below `/sys/fs/bpf/baton` of each; nothing where the cluster
    /// is not our own.
    pub fn left_on_nodes(&self) -> Result<Vec<String>> {
        let Some(cluster) = &self.own else {
            return Ok(Vec::new());
        };
        let mut left = Vec::new();
        for node in cluster.nodes() {
            let look = "ls /sys/fs/bpf/baton 2>/dev/null || true";
            let found = node.run("sh", &["-c", look])?;
            left.extend(found.lines().map(|line| format!("{}: {line}", node.name())));
        }
        Ok(left)
    }
}

/// The packets that kube-proxy's rule has dropped, in what `iptables -L KUBE-FORWARD -v -x -n`
/// says.
fn invalid_rule(rules: &str) -> Option<u64> {
    let rule =
        rules.lines().find(|line| line.contains("DROP") && line.contains("ctstate INVALID"))?;
    rule.split_whitespace().next()?.parse().ok()
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A program that is built beside this test.
fn built(name: &str) -> Result<PathBuf> {
    let own = env::current_exe()?;
    let mut places = own.ancestors().skip(1).take(2);
    let program = places.find_map(|place| {
        let program = place.join(name);
        program.is_file().then_some(program)
    });
    program.with_context(|| {
        format!("{name} is not built: run `make e2e`, or `cargo build --bins` in the same profile")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_found_among_what_iptables_says() {
        let rules = "Chain KUBE-FORWARD (1 references)\n    pkts      bytes target     prot opt in     out     source               destination\n     \
                     123     4920 DROP       0    --  *      *       0.0.0.0/0            0.0.0.0/0            ctstate INVALID\n       \
                     0        0 ACCEPT     0    --  *      *       0.0.0.0/0            0.0.0.0/0            mark match 0x4000/0x4000\n";
        assert_eq!(invalid_rule(rules), Some(123));
        assert_eq!(invalid_rule("Chain KUBE-FORWARD (1 references)\n"), None);
    }
}
