//! The cluster as one owned value.
//!
//! Owns the order of things: slot, hub, first node with the control plane, images, kubelets; and on
//! drop the reverse.

use crate::{
    binaries::Binaries,
    certificates::Authority,
    command::{self, ip},
    config::{self, ProxyMode},
    images,
    node::{NODES_MAX, Node},
    say, say_since,
    slot::Slot,
};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The API server is ready 3 s after its start on two idle cores; a machine that also compiles gets
/// much more.
const API_DEADLINE: Duration = Duration::from_secs(180);
/// A node is Ready 3 s after its kubelet's start; as above.
const NODE_DEADLINE: Duration = Duration::from_secs(120);
/// There with br_netfilter, whether it is a module or built in.
const BRIDGE_FILTER: &str = "/proc/sys/net/bridge";
/// A connection inside one machine is answered far below this, or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nodes, 1 to 3. The first also holds the control plane.
    pub nodes: u8,
    /// OCI archives that every node shall have.
    pub images: Vec<PathBuf>,
    /// Of every node's kube-proxy.
    pub proxy: ProxyMode,
}

/// A running cluster. Dropping it ends it and removes all traces.
#[derive(Debug)]
pub struct Cluster {
    // Processes end before their folder, network and cgroups are removed: fields drop in this
    // order.
    nodes: Vec<Node>,
    images: Vec<PathBuf>,
    proxy: ProxyMode,
    authority: Authority,
    binaries: Binaries,
    slot: Slot,
}

impl Cluster {
    /// Starts a cluster and waits until its nodes are Ready. Gets all parts first, which takes
    /// minutes the first time.
    ///
    /// # Errors
    /// With what failed, and the end of that part's log.
    pub fn up(options: &Options) -> Result<Self> {
        ensure!(
            (1..=NODES_MAX).contains(&options.nodes),
            "{} nodes: expected 1 to {NODES_MAX}",
            options.nodes
        );
        have_bridge_filter()?;
        if options.proxy == ProxyMode::Iptables {
            command::run("iptables", &["--version"])
                .context("kube-proxy needs iptables: run `make setup`")?;
        }
        let binaries = Binaries::get()?;
        let start = Instant::now();
        let slot = Slot::claim()?;
        let address = slot.address(2);
        let url = format!("https://{address}:{}", config::API_PORT);
        make_hub(&slot)?;
        let authority = Authority::create(&slot.folder().join("certificates"), address, &url)?;
        let pause = images::pause_image(&slot.folder())?;
        let mut cluster = Self {
            nodes: Vec::new(),
            images: vec![pause],
            proxy: options.proxy,
            authority,
            binaries,
            slot,
        };
        let first = Node::create(&cluster.slot, 1, &cluster.binaries)?;
        cluster.nodes.push(first);
        cluster.start_control_plane(address)?;
        say_since(start, &format!("API server ready at {url}"));
        cluster.join()?;
        for archive in &options.images {
            cluster.import(archive)?;
        }
        for _ in 1..options.nodes {
            cluster.add_node()?;
        }
        cluster.kubectl(&["wait", "--for=create", "serviceaccount/default", "--timeout=60s"])?;
        say_since(start, &format!("up with {} node(s)", options.nodes));
        Ok(cluster)
    }

    /// Adds a node and waits until it is Ready.
    ///
    /// # Errors
    /// If there are as many as can be, or it does not become Ready.
    pub fn add_node(&mut self) -> Result<&Node> {
        let number = u8::try_from(self.nodes.len())?.saturating_add(1);
        let node = Node::create(&self.slot, number, &self.binaries)?;
        self.nodes.push(node);
        self.join()?;
        self.nodes.last().context("a node was added")
    }

    /// Puts an OCI archive's images on every node, also those that are added later.
    pub fn import(&mut self, archive: &Path) -> Result<()> {
        let start = Instant::now();
        // The caller's file may be gone when a node is added.
        let copy = self.folder().join(format!("image-{}.tar", self.images.len()));
        fs::copy(archive, &copy).with_context(|| format!("copying {}", archive.display()))?;
        for node in &self.nodes {
            node.import(&copy, &self.binaries)?;
        }
        self.images.push(copy);
        say_since(start, &format!("imported {}", archive.display()));
        Ok(())
    }

    /// A kubeconfig for whom RBAC lets do anything. It works from anywhere on this machine, and
    /// goes with the cluster.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.authority.path("admin.kubeconfig")
    }

    /// The nodes, first the one with the control plane.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// How its kube-proxies work.
    #[must_use]
    pub fn proxy(&self) -> ProxyMode {
        self.proxy
    }

    /// A node to do harm to.
    pub fn node_mut(&mut self, name: &str) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|n| n.name() == name)
    }

    /// The folder of all that the cluster keeps.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.slot.folder()
    }

    /// A `kubectl` command that speaks to this cluster as admin, for the caller to add to.
    #[must_use]
    pub fn kubectl_command(&self) -> Command {
        let mut kubectl = Command::new(&self.binaries.kubernetes);
        kubectl.arg("kubectl").env("KUBECONFIG", self.kubeconfig());
        kubectl
    }

    /// Runs `kubectl` and gives its standard output.
    ///
    /// # Errors
    /// With what it said, if it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        command::check(self.kubectl_command().args(arguments))
    }

    fn start_control_plane(&mut self, address: Ipv4Addr) -> Result<()> {
        let kubeconfig = self.kubeconfig();
        let kubernetes = self.binaries.kubernetes.clone();
        let (authority, binaries) = (&self.authority, &self.binaries);
        let node = self.nodes.first_mut().context("the first node is there")?;
        let folder = node.folder().to_owned();
        node.start_kubernetes("etcd", &config::etcd(&folder), binaries)?;
        let socket = config::etcd_socket(&folder);
        node.daemon("etcd")?.wait_until("listening", API_DEADLINE, || {
            UnixStream::connect(&socket).context("connecting")
        })?;
        let arguments = config::api_server(&folder, address, authority);
        node.start_kubernetes("kube-apiserver", &arguments, binaries)?;
        let listening = SocketAddr::from((address, config::API_PORT));
        node.daemon("kube-apiserver")?.wait_until("ready", API_DEADLINE, || {
            TcpStream::connect_timeout(&listening, CONNECT_TIMEOUT).context("connecting")?;
            let mut ask = Command::new(&kubernetes);
            ask.args(["kubectl", "get", "--raw", "/readyz"]);
            command::check(ask.env("KUBECONFIG", &kubeconfig))
        })?;
        node.start_kubernetes(
            "kube-controller-manager",
            &config::controllers(authority),
            binaries,
        )?;
        node.start_kubernetes("kube-scheduler", &config::scheduler(authority), binaries)
    }

    /// Makes a node of the last namespaces: containerd, images, kubelet, kube-proxy.
    fn join(&mut self) -> Result<()> {
        let start = Instant::now();
        let kubectl = self.kubectl_command();
        let node = self.nodes.last_mut().context("there is a node")?;
        self.authority.add_node(node.name(), node.address())?;
        node.start_containerd(&self.authority, &self.binaries)?;
        for archive in &self.images {
            node.import(archive, &self.binaries)?;
        }
        node.start_kubelet(&self.authority, &self.binaries, self.proxy)?;
        let (name, kubeconfig) = (node.name().to_owned(), self.authority.path("admin.kubeconfig"));
        let program = kubectl.get_program().to_owned();
        node.daemon("kubelet")?.wait_until("Ready", NODE_DEADLINE, || {
            let mut wait = Command::new(&program);
            wait.args(["kubectl", "wait", "--for=condition=Ready", "--timeout=2s"]);
            command::check(wait.arg(format!("node/{name}")).env("KUBECONFIG", &kubeconfig))
        })?;
        say_since(start, &format!("{name} is Ready"));
        Ok(())
    }
}

/// Answers from Pods on a Service client's own node must pass the node's packet filter, which
/// translated the question.
fn have_bridge_filter() -> Result<()> {
    if Path::new(BRIDGE_FILTER).exists() {
        return Ok(());
    }
    command::run("modprobe", &["br_netfilter"]).with_context(|| {
        format!("this kernel has no br_netfilter ({BRIDGE_FILTER} is missing), which a node needs")
    })?;
    Ok(())
}

/// The nodes' common link: a bridge in a network namespace of its own, so that the machine's
/// firewall has no say in what nodes send each other, and one end of a veth on the machine, by
/// which it reaches them.
fn make_hub(slot: &Slot) -> Result<()> {
    let hub = slot.hub();
    ip(&format!("netns add {hub}"))?;
    ip(&format!("-n {hub} link add hub type bridge"))?;
    ip(&format!("-n {hub} link set hub up"))?;
    ip(&format!("link add {hub} type veth peer name machine netns {hub}"))?;
    ip(&format!("-n {hub} link set machine master hub up"))?;
    ip(&format!("address add {}/24 dev {hub}", slot.address(1)))?;
    ip(&format!("link set {hub} up"))?;
    say(&format!("network {}/24 behind interface {hub}", slot.address(0)));
    Ok(())
}
