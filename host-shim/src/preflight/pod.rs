//! What one pod's network namespace can do.

use super::report::{Finding, Report};
use crate::{config::Pod, transfers::bind_here};
use baton_adopter::OpenNetns;
use rustix::io::Errno;
use std::{fs, io, path::Path};

/// State LISTEN in /proc/net/tcp.
const LISTEN: &str = "0A";
const CONNTRACK_LOOSE: &str = "net/netfilter/nf_conntrack_tcp_loose";

/// `transfers_port`: where it is reached from other nodes, unless 0.
pub fn check(pod: &Pod, transfers_port: u16, report: &mut Report) {
    let subject = format!("pod {} ({}, {})", pod.name, pod.netns.path().display(), pod.interface);
    let mut add = |check, finding| report.add(&subject, check, finding);
    let open = match pod.netns.open() {
        Ok(open) => open,
        Err(error) => {
            let change =
                "start the pod, or correct `netns` (`ip netns list` names those of /run/netns)";
            add("network namespace", Finding::missing(error.to_string(), change));
            return;
        }
    };
    add("network namespace", Finding::good(format!("cookie {}", open.cookie())));
    add("interface", interface(&open, &pod.interface));
    add("net.ipv4.tcp_syncookies", syncookies(&open));
    if let Some(finding) = conntrack(&open) {
        add("nf_conntrack_tcp_loose", finding);
    }
    add("packet rules", packet_rules(&open));
    add("TCP options", options(&open));
    add("listeners", listeners(&open));
    if transfers_port != 0 {
        add("transfers.port", door(&open, transfers_port));
    }
}

/// The namespace's own value: /proc/sys/net shows that of the thread that reads it.
fn sysctl(open: &OpenNetns, name: &str) -> Option<String> {
    let path = format!("/proc/sys/{name}");
    let text = open.within(|| std::fs::read_to_string(path)).ok()?.ok()?;
    Some(text.trim().to_owned())
}

fn interface(open: &OpenNetns, name: &str) -> Finding {
    match open.ifindex(name) {
        Ok(index) => Finding::good(format!("index {index}")),
        Err(error) => Finding::missing(
            error.to_string(),
            "correct `interface`: it is the pod's end of its link to the node",
        ),
    }
}

fn syncookies(open: &OpenNetns) -> Finding {
    match sysctl(open, "net/ipv4/tcp_syncookies").as_deref() {
        Some("0") => Finding::missing(
            "0: the kernel ignores adoptions",
            "set it to 1, the default: `sysctl -w net.ipv4.tcp_syncookies=1` in the pod's namespace, or remove it from the pod's securityContext.sysctls",
        ),
        Some(value) => Finding::good(value),
        None => Finding::missing("cannot be read", "use a kernel built with CONFIG_SYN_COOKIES=y"),
    }
}

fn conntrack(open: &OpenNetns) -> Option<Finding> {
    Some(match sysctl(open, CONNTRACK_LOOSE)?.as_str() {
        "0" => Finding::missing(
            "0: connection tracking takes an adopted connection for INVALID",
            "set it to 1, the default: `sysctl -w net.netfilter.nf_conntrack_tcp_loose=1` in the pod's namespace, and on the node as well",
        ),
        value => Finding::good(value),
    })
}

fn packet_rules(open: &OpenNetns) -> Finding {
    match open.packet_rules() {
        Ok(None) => Finding::good("none that redirect or translate connections"),
        Ok(Some(refusal)) => Finding::missing(
            refusal,
            "have no sidecar or mesh take this pod's connections (for Istio: `sidecar.istio.io/inject: \"false\"`); connections move to the pod as it is by translation",
        ),
        Err(error) => Finding::missing(error.to_string(), "give host-shim CAP_SYS_ADMIN"),
    }
}

/// Connections that negotiated an option can be adopted only where the option is on.
fn options(open: &OpenNetns) -> Finding {
    let names = ["tcp_timestamps", "tcp_sack", "tcp_window_scaling"];
    let off: Vec<_> = names
        .into_iter()
        .filter(|name| sysctl(open, &format!("net/ipv4/{name}")).as_deref() == Some("0"))
        .collect();
    if off.is_empty() {
        return Finding::good(format!("{} are on", names.join(", ")));
    }
    Finding::note(
        format!("{} off", off.join(", ")),
        "connections that began with the option are not adopted here (KernelRefused), and those with timestamps do not move here by translation either; set it to 1 in every pod or in none",
    )
}

/// Ports and inodes of the listeners in the calling thread's network namespace.
fn listeners_here() -> Vec<(u16, String)> {
    let tables = ["tcp", "tcp6"].map(|file| {
        fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default()
    });
    let lines = tables.iter().flat_map(|text| text.lines().skip(1));
    let listener = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (_, port) = fields.next()?.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let listens = fields.nth(1)? == LISTEN;
        listens.then_some((port, fields.nth(5)?.to_owned()))
    };
    lines.filter_map(listener).collect()
}

/// Where host-shims of other nodes connect to.
fn door(open: &OpenNetns, port: u16) -> Finding {
    let tried = open.within(|| (bind_here(port).map(drop), listeners_here()));
    let refused = match tried {
        Ok((Ok(()), _)) => return Finding::good(format!("{port} is free")),
        Ok((Err(Errno::ADDRINUSE), listeners)) => {
            let mut there = listeners.iter().filter(|(at, _)| *at == port);
            if there.any(|(_, inode)| is_host_shims(inode)) {
                return Finding::good(format!("{port}: host-shim listens"));
            }
            format!("{port} is another process's")
        }
        Ok((Err(error), _)) => format!("{port}: {error}"),
        Err(error) => format!("{port}: {error}"),
    };
    Finding::note(
        format!(
            "{refused}: its connections are handed on within the node only, none in the middle of a message to or from other nodes"
        ),
        "have no process of the pod listen there, or give another `transfers.port`, the same on all nodes (chart: `shim.transfers.port`)",
    )
}

/// Whether a running host-shim has the socket, by its name.
fn is_host_shims(inode: &str) -> bool {
    let socket = format!("socket:[{inode}]");
    let has = |process: &Path| -> io::Result<bool> {
        if fs::read_to_string(process.join("comm"))?.trim_end() != env!("CARGO_PKG_NAME") {
            return Ok(false);
        }
        let mut descriptors = fs::read_dir(process.join("fd"))?.flatten();
        Ok(descriptors.any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == Path::new(&socket))))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|entry| entry.path()).any(|process| has(&process).unwrap_or(false))
}

fn listeners(open: &OpenNetns) -> Finding {
    match open.within(|| listeners_here().len()) {
        Ok(0) => Finding::note("none", "nothing can be adopted until the application listens"),
        Ok(count) => Finding::good(count.to_string()),
        Err(error) => Finding::missing(error.to_string(), "give host-shim CAP_SYS_ADMIN"),
    }
}
