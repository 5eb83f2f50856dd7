//! The lab: a router namespace that stands for the node, and around it pods, clients and the
//! dataplane.
//!
//! Every pod has one interface `eth0` on a veth to the router, a subnet of its own and a default
//! route through the router, for IPv4 and IPv6, with all offloads as the kernel sets them. Dropping
//! the [`Lab`] removes everything.

use crate::node::{
    cgroup::{Cgroup, Hierarchy},
    command,
    netns::Namespace,
    process::{Process, Spec},
    record::Thing,
    shared::Shared,
    signals,
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    fmt::Write as _,
    fs::DirBuilder,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// Pods in one lab, at most: their names are letters.
pub const PODS_MAX: usize = 26;
/// Third byte of the dataplane's subnet, 10.77.100.0/24.
const DATAPLANE_SUBNET: u8 = 100;
/// Third byte of the first client's subnet; the second client has the next.
const CLIENT_SUBNET: u8 = 101;
/// A network interface's name has at most 15 bytes; lab names are shorter still, to leave room in
/// `ip netns`.
const NAME_BYTES_MAX: usize = 32;

/// What the lab looks like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of pods, named `pod-a`, `pod-b`, …
    pub pods: usize,
    /// A second client namespace, `client2`.
    pub second_client: bool,
    /// MTU of all legs but those below.
    pub mtu: u32,
    /// MTU of single legs, on both ends of the veth: (`pod-a`, 1400).
    pub leg_mtu: Vec<(String, u32)>,
    /// Receive and transmit queues of the dataplane's interface.
    pub dataplane_queues: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { pods: 4, second_client: false, mtu: 1500, leg_mtu: Vec::new(), dataplane_queues: 1 }
    }
}

impl Options {
    /// So many pods, two clients, and the rest as usual.
    #[must_use]
    pub fn with_clients(pods: usize) -> Self {
        Self { second_client: true, ..Self::with_pods(pods) }
    }

    /// So many pods, and the rest as usual.
    #[must_use]
    pub fn with_pods(pods: usize) -> Self {
        Self { pods, ..Self::default() }
    }
}

/// One place in the lab: a pod, a client, or the dataplane's pod.
#[derive(Clone, Debug)]
pub struct Pod {
    pub(crate) lab: Arc<Shared>,
    name: String,
    namespace: Namespace,
    subnet: u8,
    cgroup: Option<Cgroup>,
}

impl Pod {
    /// Its name, as `pod-a`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its network namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its IPv4 address.
    #[must_use]
    pub fn ipv4(&self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 77, self.subnet, 2))
    }

    /// Its IPv6 address.
    #[must_use]
    pub fn ipv6(&self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::new(0xfd77, u16::from(self.subnet), 0, 0, 0, 0, 0, 2))
    }

    /// A directory for its files.
    pub fn directory(&self) -> Result<PathBuf> {
        let path = self.lab.directory().join(&self.name);
        std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Starts a process here (in the pod's cgroup, if it has one).
    pub fn spawn(&self, spec: &Spec) -> Result<Process> {
        Process::start(&self.lab, &self.namespace, self.cgroup.as_ref(), spec)
    }

    /// Limits the CPU time of all its processes, present and future, to a percentage of one CPU.
    ///
    /// # Errors
    /// If the kernel refuses, or for a client, which has no cgroup.
    pub fn throttle(&self, percent: f64) -> Result<()> {
        self.cgroup()?.limit(Some(percent))
    }

    /// Lifts the limit.
    pub fn unthrottle(&self) -> Result<()> {
        self.cgroup()?.limit(None)
    }

    /// Periods in which its processes had used up their CPU time, so far.
    pub fn throttled_periods(&self) -> Result<u64> {
        self.cgroup()?.throttled_periods()
    }

    /// Process ids in its cgroup.
    ///
    /// # Errors
    /// For a client, which has no cgroup.
    pub fn processes(&self) -> Result<Vec<i32>> {
        Ok(self.cgroup()?.processes())
    }

    fn cgroup(&self) -> Result<&Cgroup> {
        self.cgroup.as_ref().with_context(|| format!("{} has no cgroup", self.name))
    }
}

/// A running lab.
#[derive(Debug)]
pub struct Lab {
    pub(crate) shared: Arc<Shared>,
    router: Pod,
    pods: Vec<Pod>,
    clients: Vec<Pod>,
    dataplane: Pod,
}

/// Tells labs of one process apart.
static SEQUENCE: AtomicU32 = AtomicU32::new(0);

impl Lab {
    /// Removes what dead labs left on this machine, then sets up a new one.
    ///
    /// # Errors
    /// Without root or iproute2, or if the options make no sense. What was set up until then is
    /// removed.
    pub fn new(name: &str, options: &Options) -> Result<Self> {
        check(name, options)?;
        let number = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let id = match number {
            0 => format!("bt-{name}-{}", std::process::id()),
            _ => format!("bt-{name}{number}-{}", std::process::id()),
        };
        let hierarchy = Hierarchy::find()?;
        let shared = Arc::new(Shared::create(id)?);
        signals::watch(&shared)?;
        let built = Self::build(&shared, options, &hierarchy);
        if built.is_err()
            && let Err(e) = shared.record.remove()
        {
            eprintln!("baton-lab: removing {}: {e:#}", shared.id());
        }
        built.with_context(|| format!("setting up lab {name}"))
    }

    fn build(shared: &Arc<Shared>, options: &Options, hierarchy: &Hierarchy) -> Result<Self> {
        shared.record.note(Thing::Directory(shared.directory().to_owned()))?;
        // Made here and nowhere else: an existing one, or one that is a link, is refused.
        DirBuilder::new()
            .mode(0o700)
            .create(shared.directory())
            .with_context(|| format!("making {}", shared.directory().display()))?;

        let place = |name: &str, subnet: u8, limited: bool| -> Result<Pod> {
            let full = format!("{}-{name}", shared.id());
            shared.record.note(Thing::Namespace(full.clone()))?;
            let cgroup = if limited {
                for path in hierarchy.paths_of(&full) {
                    shared.record.note(Thing::Cgroup(path))?;
                }
                Some(hierarchy.create(&full)?)
            } else {
                None
            };
            Ok(Pod {
                lab: Arc::clone(shared),
                name: name.to_owned(),
                namespace: Namespace::create(&full)?,
                subnet,
                cgroup,
            })
        };
        let router = place("router", 0, false)?;
        let pods = (0..options.pods)
            .map(|i| {
                let letter = char::from(b'a' + u8::try_from(i)?);
                place(&format!("pod-{letter}"), u8::try_from(i + 1)?, true)
            })
            .collect::<Result<Vec<_>>>()?;
        let mut clients = vec![place("client", CLIENT_SUBNET, false)?];
        if options.second_client {
            clients.push(place("client2", CLIENT_SUBNET + 1, false)?);
        }
        let dataplane = place("dataplane", DATAPLANE_SUBNET, true)?;

        // Forwarding first: it makes the router's IPv6 addresses those of a router from the start.
        router.namespace.set_sysctl("net/ipv4/ip_forward", "1")?;
        router.namespace.set_sysctl("net/ipv6/conf/all/forwarding", "1")?;
        let legs = || pods.iter().chain(&clients).chain([&dataplane]);
        command::with_input("ip", &["-batch", "-"], &links(&router, legs(), options))?;
        let mut near = String::new();
        for leg in legs() {
            write!(
                near,
                "addr add 10.77.{0}.1/24 dev {1}\n\
                 addr add fd77:{0:x}::1/64 dev {1} nodad\n\
                 link set {1} up\n",
                leg.subnet, leg.name
            )?;
        }
        command::with_input("ip", &["-n", router.namespace.name(), "-batch", "-"], &near)?;
        for leg in legs() {
            let v4 = format!(
                "addr add 10.77.{0}.2/24 dev eth0\n\
                 addr add fd77:{0:x}::2/64 dev eth0 nodad\n\
                 link set eth0 up\n\
                 route add default via 10.77.{0}.1\n",
                leg.subnet
            );
            let v6 = format!("route add default via fd77:{:x}::1\n", leg.subnet);
            let name = leg.namespace.name();
            command::with_input("ip", &["-n", name, "-batch", "-"], &v4)?;
            command::with_input("ip", &["-6", "-n", name, "-batch", "-"], &v6)?;
        }
        Ok(Self { shared: Arc::clone(shared), router, pods, clients, dataplane })
    }

    /// The lab's name on this machine, as `bt-demo-1234`: the prefix of its namespaces and cgroups.
    #[must_use]
    pub fn id(&self) -> &str {
        self.shared.id()
    }

    /// The lab's files: configurations, logs, keys. Removed with the lab.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.shared.directory()
    }

    /// The pods, `pod-a` first.
    #[must_use]
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// The namespace that stands for the node.
    #[must_use]
    pub fn router(&self) -> &Pod {
        &self.router
    }

    /// The first client.
    #[must_use]
    pub fn client(&self) -> &Pod {
        &self.clients[0]
    }

    /// All clients.
    #[must_use]
    pub fn clients(&self) -> &[Pod] {
        &self.clients
    }

    /// The node's address, as the dataplane's pod sees it.
    #[must_use]
    pub fn node_address(&self) -> IpAddr {
        Ipv4Addr::new(10, 77, DATAPLANE_SUBNET, 1).into()
    }

    /// The node's addresses on the link to the first client, which stands for the world outside:
    /// IPv4 and IPv6.
    #[must_use]
    pub fn uplink_addresses(&self) -> [IpAddr; 2] {
        let v6 = Ipv6Addr::new(0xfd77, u16::from(CLIENT_SUBNET), 0, 0, 0, 0, 0, 1);
        [Ipv4Addr::new(10, 77, CLIENT_SUBNET, 1).into(), v6.into()]
    }

    /// The place of the dataplane, or of what stands in for it.
    #[must_use]
    pub fn dataplane_pod(&self) -> &Pod {
        &self.dataplane
    }

    /// All namespaces.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        let places = self.pods.iter().chain(&self.clients);
        places.chain([&self.router, &self.dataplane]).map(|p| &p.namespace)
    }

    /// Removes everything now and says what could not be removed.
    ///
    /// # Errors
    /// With every failure; the next lab's start tries again.
    pub fn remove(self) -> Result<()> {
        self.shared.record.remove()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(e) = self.shared.record.remove() {
            eprintln!("baton-lab: removing {}: {e:#}", self.shared.id());
        }
    }
}

fn check(name: &str, options: &Options) -> Result<()> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    ensure!(
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(good),
        "`{name}` is not a lab name: expected 1 to {NAME_BYTES_MAX} small letters, digits or `-`"
    );
    ensure!(
        (1..=PODS_MAX).contains(&options.pods),
        "{} pods are not possible: expected 1 to {PODS_MAX}",
        options.pods
    );
    if !rustix::process::geteuid().is_root() {
        bail!("the lab makes network namespaces and cgroups: run it as root (`sudo make …`)");
    }
    Ok(())
}

/// Commands that make one veth per leg, each end in its namespace.
fn links<'a>(router: &Pod, legs: impl Iterator<Item = &'a Pod>, options: &Options) -> String {
    legs.map(|leg| {
        let mtu = options
            .leg_mtu
            .iter()
            .find(|(name, _)| *name == leg.name)
            .map_or(options.mtu, |(_, mtu)| *mtu);
        let queues = if leg.subnet == DATAPLANE_SUBNET { options.dataplane_queues } else { 1 };
        format!(
            "link add eth0 mtu {mtu} netns {} numtxqueues {queues} numrxqueues {queues} \
             type veth peer name {} mtu {mtu} numtxqueues {queues} numrxqueues {queues} netns {}\n",
            leg.namespace.name(),
            leg.name,
            router.namespace.name(),
        )
    })
    .collect()
}
