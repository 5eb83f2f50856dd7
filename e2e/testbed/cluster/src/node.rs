//! One node: namespaces with a first process, a cgroup, a link to the others, containerd, kubelet
//! and kube-proxy.
//!
//! Owns all processes in it: they end when the value is dropped.

use crate::{
    binaries::Binaries,
    certificates::Authority,
    cgroup,
    command::{self, ip},
    config::{NodeConfig, ProxyMode, pod_range},
    process::{Daemon, inside, only_child, tail},
    slot::Slot,
};
use anyhow::{Context, Result, bail, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    fs,
    net::Ipv4Addr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Nodes of a cluster.
pub(crate) const NODES_MAX: u8 = 3;
/// Namespaces and mounts take milliseconds; a machine that also compiles gets more.
const NAMESPACES_DEADLINE: Duration = Duration::from_secs(30);
/// containerd answers within a second.
const CONTAINERD_DEADLINE: Duration = Duration::from_secs(60);
/// The kernel ends some dozens of processes within a second.
const END_DEADLINE: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// The end of the link inside a node.
const LINK: &str = "node0";

/// A running node. Dropping it ends all that runs on it.
#[derive(Debug)]
pub struct Node {
    name: String,
    number: u8,
    address: Ipv4Addr,
    folder: PathBuf,
    pub(crate) daemons: Vec<Daemon>,
    /// `unshare`, which kills the first process when it ends, and whose standard input the first
    /// process reads.
    unshare: Child,
    init: Pid,
    init_handle: OwnedFd,
}

impl Node {
    /// Makes the namespaces and the link; runs nothing yet. `number` counts from 1.
    pub(crate) fn create(slot: &Slot, number: u8, binaries: &Binaries) -> Result<Self> {
        ensure!((1..=NODES_MAX).contains(&number), "a cluster has at most {NODES_MAX} nodes");
        let name = slot.node_name(number);
        let folder = slot.folder().join(&name);
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        cgroup::create(&name)?;
        let script = folder.join("node.sh");
        fs::write(&script, include_str!("node.sh")).context("writing the node's script")?;
        let log_path = folder.join("init.log");
        let log = fs::File::create(&log_path).context("making the log of the first process")?;
        let mut unshare = Command::new("unshare")
            .args(["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"])
            .args(["--kill-child", "--propagation=private", "--", "sh"])
            .arg(&script)
            .arg(&folder)
            .arg(&name)
            .arg(&binaries.kubernetes)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().context("sharing a log")?)
            .stderr(log)
            .spawn()
            .context("starting `unshare`: is util-linux installed? (`make setup`)")?;
        let (init, init_handle) = match wait_init(&mut unshare, &folder) {
            Ok(found) => found,
            Err(e) => {
                // Its child ends with it. Both fail only if it has ended.
                let _ = unshare.kill();
                let _ = unshare.wait();
                return Err(
                    e.context(format!("making the namespaces of {name}: {}", tail(&log_path)))
                );
            }
        };
        let node = Self {
            name,
            number,
            address: slot.address(1 + number),
            folder,
            daemons: Vec::new(),
            unshare,
            init,
            init_handle,
        };
        node.link(slot)?;
        Ok(node)
    }

    /// Its name in the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address on the link that it shares with the other nodes and the machine.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Where logs and data are. They go with the cluster.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The process id, as the machine sees it, of the first process of its namespaces.
    #[must_use]
    pub fn init_id(&self) -> i32 {
        self.init.as_raw_nonzero().get()
    }

    /// Runs a command in the node's namespaces and gives its standard output.
    ///
    /// # Errors
    /// If it fails, with what it wrote to standard error.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        command::check(inside(self.init, program).args(arguments))
    }

    /// Starts containerd and waits until it answers.
    pub(crate) fn start_containerd(
        &mut self,
        authority: &Authority,
        binaries: &Binaries,
    ) -> Result<()> {
        let arguments = self.config(authority, binaries).containerd()?;
        let own = binaries.debian("usr/bin");
        // It looks for its shim there.
        let path = format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            own.display()
        );
        let mut command = inside(self.init, own.join("containerd"));
        command.args(arguments).env("PATH", path);
        let mut daemon = Daemon::start("containerd", &mut command, &self.folder)?;
        daemon.wait_until("answering", CONTAINERD_DEADLINE, || {
            ctr(&self.folder, binaries, &["version"])
        })?;
        self.daemons.push(daemon);
        Ok(())
    }

    /// Puts the images of an OCI archive where kubelet finds them.
    pub(crate) fn import(&self, archive: &Path, binaries: &Binaries) -> Result<()> {
        let path = archive.display().to_string();
        ctr(&self.folder, binaries, &["--namespace", "k8s.io", "images", "import", &path])
            .with_context(|| format!("importing {path} on {}", self.name))?;
        Ok(())
    }

    pub(crate) fn start_kubelet(
        &mut self,
        authority: &Authority,
        binaries: &Binaries,
        proxy: ProxyMode,
    ) -> Result<()> {
        let config = self.config(authority, binaries);
        let (kubelet, proxy) = (config.kubelet()?, config.proxy(proxy)?);
        self.start_kubernetes("kubelet", &kubelet, binaries)?;
        self.start_kubernetes("kube-proxy", &proxy, binaries)
    }

    /// Starts one of Kubernetes' programs here.
    pub(crate) fn start_kubernetes(
        &mut self,
        name: &str,
        arguments: &[String],
        binaries: &Binaries,
    ) -> Result<()> {
        let mut command = inside(self.init, &binaries.kubernetes);
        command.arg(name).args(arguments);
        let daemon = Daemon::start(name, &mut command, &self.folder)?;
        self.daemons.push(daemon);
        Ok(())
    }

    /// The last one that was started.
    pub(crate) fn daemon(&mut self, name: &str) -> Result<&mut Daemon> {
        let node = &self.name;
        let found = self.daemons.iter_mut().find(|d| d.name() == name);
        found.with_context(|| format!("{name} does not run on {node}"))
    }

    fn config<'a>(&'a self, authority: &'a Authority, binaries: &'a Binaries) -> NodeConfig<'a> {
        NodeConfig {
            folder: &self.folder,
            name: &self.name,
            number: self.number,
            address: self.address,
            authority,
            binaries,
        }
    }

    /// Connects the node with the hub, and routes to the Pods of the other nodes.
    fn link(&self, slot: &Slot) -> Result<()> {
        let (hub, init, number) = (slot.hub(), self.init.as_raw_nonzero(), self.number);
        ip(&format!("-n {hub} link add n{number} type veth peer name {LINK} netns {init}"))?;
        ip(&format!("-n {hub} link set n{number} master hub up"))?;
        let inside = |words: &str| {
            let mut all = vec!["--net".to_owned(), format!("--target={init}"), "ip".into()];
            all.extend(words.split_whitespace().map(str::to_owned));
            command::run("nsenter", &all)
        };
        inside("link set lo up")?;
        inside(&format!("address add {}/24 dev {LINK}", self.address))?;
        inside(&format!("link set {LINK} up"))?;
        // kubelet wants a default route to find its own address by.
        inside(&format!("route add default via {}", slot.address(1)))?;
        for other in (1..=NODES_MAX).filter(|other| *other != number) {
            inside(&format!("route add {} via {}", pod_range(other), slot.address(1 + other)))?;
        }
        self.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
        Ok(())
    }

    /// Ends all that runs on the node at once, as a power cut would.
    pub fn crash(&mut self) -> Result<()> {
        // Fails only if it has ended.
        let _ = self.unshare.kill();
        self.unshare.wait().context("waiting for a node")?;
        let timeout = Timespec::try_from(END_DEADLINE).context("deadline")?;
        // Its handle calls the first process ended when all others of the namespace are
        // (`zap_pid_ns_processes`).
        if poll(&mut [PollFd::new(&self.init_handle, PollFlags::IN)], Some(&timeout))? == 0 {
            bail!("processes of {} still run after {END_DEADLINE:?}", self.name);
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(e) = self.crash() {
            crate::say(&format!("{e:#}"));
        }
    }
}

/// Waits for the first process and until it has made its mounts.
fn wait_init(unshare: &mut Child, folder: &Path) -> Result<(Pid, OwnedFd)> {
    let end = Instant::now() + NAMESPACES_DEADLINE;
    loop {
        if let Some(status) = unshare.try_wait()? {
            bail!("`unshare` ended ({status})");
        }
        if folder.join("mounted").exists()
            && let Some(init) = only_child(unshare.id())
        {
            let handle =
                pidfd_open(init, PidfdFlags::empty()).context("opening a handle of a node")?;
            return Ok((init, handle));
        }
        ensure!(Instant::now() < end, "not done after {NAMESPACES_DEADLINE:?}");
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Asks a node's containerd, from outside: its socket is a file.
fn ctr(folder: &Path, binaries: &Binaries, arguments: &[&str]) -> Result<String> {
    let mut ctr = Command::new(binaries.debian("usr/bin/ctr"));
    ctr.arg("--address").arg(NodeConfig::socket(folder)).args(arguments);
    command::check(&mut ctr)
}
