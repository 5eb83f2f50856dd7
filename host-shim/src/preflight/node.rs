//! What the node's kernel and this process can do.

use super::report::{Finding, Report};
use crate::tracking::{ConnTracking, NodeNetwork};
use baton_adopter::{Adopter, Error, kernel};
use std::path::Path;

/// Capabilities that host-shim uses: name, bit (linux/capability.h) and what for.
const CAPABILITIES: [(&str, u32, &str); 4] = [
    ("CAP_NET_ADMIN", 12, "attaching to interfaces"),
    ("CAP_SYS_ADMIN", 21, "entering pods' network namespaces and mounting the BPF file system"),
    ("CAP_PERFMON", 38, "a program that reads kernel structures"),
    ("CAP_BPF", 39, "loading programs and maps"),
];
/// The kernel lets CAP_SYS_ADMIN stand for CAP_PERFMON and CAP_BPF.
const SYS_ADMIN: u32 = 21;
/// There is none without PSI, and with `psi=0` none of its files can be read.
const PRESSURE: &str = "/proc/pressure/cpu";

pub fn check(pin: &Path, network: &NodeNetwork, report: &mut Report) {
    let mut add = |check, finding| report.add("node", check, finding);
    add("kernel", version());
    add("kernel types (BTF)", btf());
    add(kernel::ADOPT_FUNCTION, function());
    add("capabilities", capabilities());
    match Adopter::load(None) {
        Ok(adopter) => {
            add("adopter", Finding::good("the kernel takes the program"));
            add("attach point", hook(&adopter));
            add("releases", releases(&adopter));
            add("transfers", transfers());
        }
        // Nothing that the lines above do not say.
        Err(Error::KernelLacks { .. }) => {
            let without = format!("the kernel cannot take it without {}", kernel::ADOPT_FUNCTION);
            add("adopter", Finding::missing(without, "see above"));
        }
        Err(error) => {
            let change = "see the other lines; if they are all good, report this as a bug with the text above";
            add("adopter", Finding::missing(error.to_string(), change));
        }
    }
    add("changes of packet rules", rule_changes());
    add("pressure (PSI)", pressure(Path::new(PRESSURE)));
    add("BPF file system", bpffs(pin));
    add("connection tracking", tracking(network.tracking()));
}

fn tracking(tracking: Option<ConnTracking>) -> Finding {
    let Some(tracking) = tracking else {
        return Finding::good("none in this kernel, or not loaded");
    };
    let found = format!(
        "{} of {} entries; remembers what was closed for {} s, what was reset for {} s; tcp_be_liberal {}",
        tracking.entries,
        tracking.entries_max,
        tracking.time_wait_seconds,
        tracking.close_seconds,
        u8::from(tracking.be_liberal)
    );
    if !tracking.loose {
        return Finding::missing(
            format!("{found}; tcp_loose 0: it takes an adopted connection for INVALID"),
            "set it to 1, the default: `sysctl -w net.netfilter.nf_conntrack_tcp_loose=1` on the node",
        );
    }
    if tracking.is_nearly_full() {
        return Finding::note(
            found,
            "a full table drops packets of new connections, whosoever they are: raise net.netfilter.nf_conntrack_max on the node",
        );
    }
    Finding::good(found)
}

fn version() -> Finding {
    let (major, minor) = kernel::MINIMUM;
    let release = kernel::release();
    match kernel::version(&release) {
        Some(version) if version >= kernel::MINIMUM => {
            Finding::good(format!("{release} (needed: {major}.{minor})"))
        }
        _ => Finding::missing(release, format!("run Linux {major}.{minor} or newer on this node")),
    }
}

fn btf() -> Finding {
    if kernel::has_btf() {
        Finding::good(kernel::BTF)
    } else {
        Finding::missing(
            format!("{} does not exist", kernel::BTF),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y",
        )
    }
}

fn function() -> Finding {
    match kernel::has_function(kernel::ADOPT_FUNCTION) {
        Some(true) => Finding::good("in this kernel"),
        Some(false) => Finding::missing(
            "not in this kernel",
            "run Linux 6.9 or newer, built with CONFIG_SYN_COOKIES=y and CONFIG_NET_CLS_ACT=y",
        ),
        None => Finding::missing(
            "unknown: the kernel's types cannot be read",
            "see the line about kernel types",
        ),
    }
}

fn releases(adopter: &Adopter) -> Finding {
    let Err(reason) = adopter.releases() else {
        return Finding::good("the kernel takes the iterator");
    };
    let lacks = kernel::has_function(kernel::RELEASE_FUNCTION) == Some(false);
    let found =
        if lacks { format!("the kernel lacks {}", kernel::RELEASE_FUNCTION) } else { reason };
    Finding::note(
        format!("{found}: what a stalled pod has not read stays there"),
        "use a kernel built with CONFIG_PROC_FS=y, CONFIG_NET_SOCK_MSG=y and CONFIG_DEBUG_INFO_BTF=y; if it is, report this as a bug with the text above",
    )
}

fn transfers() -> Finding {
    match baton_tcp_repair::supported() {
        Ok(()) => Finding::good("the kernel freezes sockets (TCP_REPAIR)"),
        Err(error) => Finding::note(
            format!(
                "the kernel does not freeze sockets: {error}; connections stay where they are between requests"
            ),
            "run as root, or add CAP_NET_ADMIN to the container's securityContext",
        ),
    }
}

fn rule_changes() -> Finding {
    match kernel::counts_rule_changes() {
        Some(false) => Finding::note(
            "some of nftables' are known half a second late: adoptions pass until then",
            "run Linux 6.17 or newer if pods get rules of a mesh or a firewall while they serve",
        ),
        Some(true) => Finding::good("known at once"),
        None => Finding::missing(
            "unknown: the kernel's types cannot be read",
            "see the line about kernel types",
        ),
    }
}

fn pressure(file: &Path) -> Finding {
    match std::fs::read_to_string(file) {
        Ok(_) => Finding::good("the kernel accounts for it"),
        Err(error) => Finding::note(
            format!(
                "{} cannot be read ({error}): CPU and memory pressure of pods are not told, so `load: LatencyAndPressure` goes by accept queues and throttling alone",
                file.display()
            ),
            "boot the node with psi=1, or use a kernel built with CONFIG_PSI=y",
        ),
    }
}

fn capabilities() -> Finding {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let held = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    judge_capabilities(held)
}

fn judge_capabilities(held: u64) -> Finding {
    let held = |bit: u32| held >> bit & 1 == 1;
    let has = |bit: u32| held(bit) || (bit > SYS_ADMIN && held(SYS_ADMIN));
    let lacking: Vec<_> = CAPABILITIES.iter().filter(|(_, bit, _)| !has(*bit)).collect();
    if lacking.is_empty() {
        return Finding::good(CAPABILITIES.map(|(name, ..)| name).join(", "));
    }
    let names: Vec<_> = lacking.iter().map(|(name, ..)| *name).collect();
    let uses: Vec<_> = lacking.iter().map(|(name, _, why)| format!("{name} ({why})")).collect();
    Finding::missing(
        format!("lacking {}", names.join(", ")),
        format!("run as root, or add to the container's securityContext: {}", uses.join(", ")),
    )
}

fn hook(adopter: &Adopter) -> Finding {
    if adopter.kernel_has_tcx() {
        Finding::good("tcx")
    } else {
        Finding::note(
            "clsact (this kernel has no tcx)",
            "a filter that another tool deletes takes the adopter away; Linux 6.6 or newer has tcx",
        )
    }
}

fn bpffs(pin: &Path) -> Finding {
    let root = if pin.starts_with("/sys/fs/bpf") { Path::new("/sys/fs/bpf") } else { pin };
    if kernel::is_bpffs(pin) && kernel::is_nodes(pin) == Some(false) {
        return Finding::note(
            format!("mounted in this container only, for {}", pin.display()),
            format!(
                "the adopter does not outlive the container, and Pods cannot adopt while it is replaced; on the node: \
                 mount -t bpf bpf {}, then delete this Pod",
                root.display()
            ),
        );
    }
    if kernel::is_bpffs(pin) {
        return Finding::good(format!("mounted, for {}", pin.display()));
    }
    Finding::note(
        format!("not mounted at {}", root.display()),
        format!(
            "`host-shim run` mounts it; in a container mount the node's /sys/fs/bpf into it, else the adopter does \
             not outlive the container (on the node: mount -t bpf bpf {})",
            root.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_nearly_full_or_strict_is_told() {
        let text = |tracking| serde_json::to_string(&super::tracking(tracking)).expect("JSON");
        let calm = ConnTracking {
            entries: 10,
            entries_max: 100,
            invalid_packets: None,
            time_wait_seconds: 120,
            close_seconds: 10,
            be_liberal: false,
            loose: true,
        };
        assert!(text(None).contains(r#""status":"good""#));
        assert!(text(Some(calm)).contains(r#""status":"good""#));
        let full = ConnTracking { entries: 76, ..calm };
        assert!(text(Some(full)).contains(r#""status":"note""#));
        let strict = ConnTracking { loose: false, ..full };
        assert!(text(Some(strict)).contains(r#""status":"missing""#));
    }

    #[test]
    fn without_pressure_it_is_said_what_is_lost() {
        let text = |file| serde_json::to_string(&pressure(Path::new(file))).expect("JSON");
        assert!(text("/proc/stat").contains(r#""status":"good""#));
        let none = text("/proc/pressure/nothing");
        assert!(none.contains(r#""status":"note""#), "{none}");
        for words in ["No such file", "throttling alone", "psi=1"] {
            assert!(none.contains(words), "{none}");
        }
    }

    #[test]
    fn lacking_capabilities_are_named() {
        let text = |held| serde_json::to_string(&judge_capabilities(held)).expect("JSON");
        let all: u64 = 1 << 12 | 1 << 21 | 1 << 38 | 1 << 39;
        assert!(text(all).contains(r#""status":"good""#));
        // CAP_SYS_ADMIN stands for the two newer ones.
        assert!(text(1 << 12 | 1 << 21).contains(r#""status":"good""#));
        let none = text(0);
        for (name, ..) in CAPABILITIES {
            assert!(none.contains(name), "{none}");
        }
        let no_admin = text(all & !(1 << 12));
        assert!(no_admin.contains(r#""found":"lacking CAP_NET_ADMIN""#), "{no_admin}");
    }
}
