//! Flags and configuration files of what runs on a node.
//!
//! Owns the cluster's fixed addresses and each setting's reason. Starts nothing.

use crate::{binaries::Binaries, certificates::Authority};
use anyhow::{Context, Result};
use serde_json::json;
use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

/// Addresses of Services. Routed nowhere: each node's kube-proxy catches them.
const SERVICE_RANGE: &str = "10.96.0.0/16";
/// Addresses of Pods, a /24 of it per node.
const POD_RANGE: &str = "10.244.0.0/16";
/// Where the API server listens.
pub(crate) const API_PORT: u16 = 6443;
/// A node whose kubelet is silent for this long is NotReady: tests of lost nodes do not want to
/// wait for the usual 50 s.
const NODE_GRACE: &str = "20s";
/// Name of the image that holds a Pod's namespaces.
pub(crate) const PAUSE_IMAGE: &str = "localhost/baton-cluster/pause:1";

/// How kube-proxy has the nodes' kernels lead connections to Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// With nftables, which every machine of the tests has.
    #[default]
    Nftables,
    /// With iptables, as most clusters do: with a rule that drops what connection tracking calls
    /// INVALID.
    Iptables,
}

impl ProxyMode {
    /// As kube-proxy's configuration says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }
}

/// Addresses of the Pods of a node, numbered from 1.
pub(crate) fn pod_range(node: u8) -> String {
    format!("10.244.{node}.0/24")
}

pub(crate) fn etcd(folder: &Path) -> Vec<String> {
    vec![
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--socket={}", etcd_socket(folder).display()),
    ]
}

pub(crate) fn etcd_socket(folder: &Path) -> PathBuf {
    folder.join("etcd.sock")
}

pub(crate) fn api_server(folder: &Path, address: Ipv4Addr, authority: &Authority) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", authority.path(name).display());
    vec![
        format!("--etcd-servers=unix://{}", etcd_socket(folder).display()),
        format!("--bind-address={address}"),
        // Pods reach the Service `kubernetes` here, so it may not be loopback.
        format!("--advertise-address={address}"),
        format!("--secure-port={API_PORT}"),
        file("client-ca-file", "ca.crt"),
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("kubelet-certificate-authority", "ca.crt"),
        file("kubelet-client-certificate", "kubelet-client.crt"),
        file("kubelet-client-key", "kubelet-client.key"),
        "--kubelet-preferred-address-types=InternalIP".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        file("service-account-key-file", "tokens.pub"),
        file("service-account-signing-key-file", "tokens.key"),
        file("requestheader-client-ca-file", "ca.crt"),
        "--requestheader-allowed-names=front-proxy".into(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
        "--requestheader-group-headers=X-Remote-Group".into(),
        "--requestheader-username-headers=X-Remote-User".into(),
        file("proxy-client-cert-file", "front-proxy.crt"),
        file("proxy-client-key-file", "front-proxy.key"),
        format!("--service-cluster-ip-range={SERVICE_RANGE}"),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--allow-privileged=true".into(),
        "--profiling=false".into(),
    ]
}

pub(crate) fn controllers(authority: &Authority) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", authority.path(name).display());
    vec![
        file("kubeconfig", "controllers.kubeconfig"),
        file("authentication-kubeconfig", "controllers.kubeconfig"),
        file("authorization-kubeconfig", "controllers.kubeconfig"),
        "--bind-address=127.0.0.1".into(),
        "--use-service-account-credentials=true".into(),
        file("service-account-private-key-file", "tokens.key"),
        file("root-ca-file", "ca.crt"),
        file("cluster-signing-cert-file", "ca.crt"),
        file("cluster-signing-key-file", "ca.key"),
        "--leader-elect=false".into(),
        "--allocate-node-cidrs=false".into(),
        format!("--node-monitor-grace-period={NODE_GRACE}"),
        // At the default pace of 20 requests a second the default ServiceAccounts take 5 s, and
        // Pods wait for them.
        "--kube-api-qps=300".into(),
        "--kube-api-burst=600".into(),
        "--profiling=false".into(),
    ]
}

pub(crate) fn scheduler(authority: &Authority) -> Vec<String> {
    let kubeconfig = authority.path("scheduler.kubeconfig");
    let file = |flag: &str| format!("--{flag}={}", kubeconfig.display());
    vec![
        file("kubeconfig"),
        file("authentication-kubeconfig"),
        file("authorization-kubeconfig"),
        "--bind-address=127.0.0.1".into(),
        "--leader-elect=false".into(),
        "--profiling=false".into(),
    ]
}

/// What a node's own daemons need to know.
pub(crate) struct NodeConfig<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) number: u8,
    pub(crate) address: Ipv4Addr,
    pub(crate) authority: &'a Authority,
    pub(crate) binaries: &'a Binaries,
}

impl NodeConfig<'_> {
    /// containerd's socket, which can be used from outside of the node too.
    pub(crate) fn socket(folder: &Path) -> PathBuf {
        folder.join("containerd.sock")
    }

    pub(crate) fn containerd(&self) -> Result<Vec<String>> {
        let plugins = self.folder.join("cni");
        fs::create_dir(&plugins).context("making the folder of CNI configurations")?;
        let network = json!({
            "cniVersion": "1.0.0",
            "name": "baton-cluster",
            "plugins": [{
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "isDefaultGateway": true,
                "hairpinMode": true,
                // Would want iptables. Pods talk to Pods, Services and nodes only.
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": self.folder.join("addresses"),
                    "ranges": [[{ "subnet": pod_range(self.number) }]],
                },
            }],
        });
        write(&plugins.join("10-bridge.conflist"), &network.to_string())?;
        let path = self.folder.join("containerd.toml");
        write(&path, &self.containerd_toml(&plugins))?;
        Ok(vec!["--config".into(), path.display().to_string()])
    }

    /// Version 2 of the format, which containerd 1.6, 1.7 and 2.x all read.
    fn containerd_toml(&self, plugins: &Path) -> String {
        let quote = |path: PathBuf| format!("{:?}", path.display().to_string());
        let folder = |name: &str| quote(self.folder.join(name));
        let debian = |name: &str| quote(self.binaries.debian(name));
        format!(
            r#"version = 2
root = {root}
state = {state}
[grpc]
  address = {socket}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Root may lack CAP_SYS_RESOURCE, and then may not lower the score that the kernel's out-of-memory killer goes by.
  restrict_oom_score_adj = true
  enable_unprivileged_ports = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {cni_programs}
    conf_dir = {cni}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = {runc}
        SystemdCgroup = false
"#,
            root = folder("containerd"),
            state = folder("containerd-state"),
            socket = quote(Self::socket(self.folder)),
            cni_programs = debian("usr/lib/cni"),
            cni = quote(plugins.into()),
            runc = debian("usr/sbin/runc"),
        )
    }

    pub(crate) fn kubelet(&self) -> Result<Vec<String>> {
        let certificate = |suffix: &str| self.authority.path(&format!("{}.{suffix}", self.name));
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzBindAddress": "127.0.0.1",
            // Many machines still have version 1.
            "failCgroupV1": false,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", self.name),
            "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            "containerRuntimeEndpoint": format!("unix://{}", Self::socket(self.folder).display()),
            "podLogsDir": self.folder.join("pod-logs"),
            "volumePluginDir": self.folder.join("volume-plugins"),
            "resolvConf": "",
            "clusterDomain": "cluster.local",
            "tlsCertFile": certificate("crt"),
            "tlsPrivateKeyFile": certificate("key"),
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": self.authority.path("ca.crt") },
            },
            "authorization": { "mode": "Webhook" },
            // The machine's disk is not the cluster's: how full it is shall not evict Pods.
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
                "imagefs.inodesFree": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "4s",
            "syncFrequency": "10s",
        });
        let path = self.folder.join("kubelet.json");
        write(&path, &config.to_string())?;
        let folder =
            |flag: &str, name: &str| format!("--{flag}={}", self.folder.join(name).display());
        Ok(vec![
            format!("--config={}", path.display()),
            format!("--kubeconfig={}", certificate("kubeconfig").display()),
            format!("--hostname-override={}", self.name),
            format!("--node-ip={}", self.address),
            folder("root-dir", "kubelet"),
            folder("cert-dir", "kubelet-certificates"),
        ])
    }

    pub(crate) fn proxy(&self, mode: ProxyMode) -> Result<Vec<String>> {
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": mode.name(),
            "bindAddress": self.address,
            "hostnameOverride": self.name,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "clusterCIDR": POD_RANGE,
            "clientConnection": { "kubeconfig": self.authority.path("proxy.kubeconfig") },
            // These are sysctls of the whole machine: leave them as they are.
            "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
        });
        let path = self.folder.join("proxy.json");
        write(&path, &config.to_string())?;
        Ok(vec![format!("--config={}", path.display())])
    }
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}
