//! Which Pod a process belongs to, by the paths of its control groups. Pure: text in, identity out.
//!
//! Kubelets name a Pod's group after its UID, whatever the runtime (containerd, CRI-O), the driver
//! (systemd, cgroupfs) and the version of control groups (1, 2). Kubernetes:
//! pkg/kubelet/cm/{pod_container_manager,cgroup_manager}_linux.go.

/// Length of a UID with its four dashes.
const UID_BYTES: usize = 36;
/// Static Pods have a hash of their manifest instead: 32 hexadecimal digits.
const HASH_BYTES: usize = 32;
/// Driver cgroupfs: `pod<UID>`. Driver systemd: `kubepods-burstable-pod<UID>.slice` with `_` for
/// `-`.
const POD: &str = "pod";
const SLICE: &str = ".slice";

/// The UID of the Pod that `/proc/PID/cgroup` names, with dashes, in lower case; of a static Pod
/// the hash.
///
/// Each line is `HIERARCHY:CONTROLLERS:PATH` (`cgroups(7)`); with version 1 there are several,
/// which agree or are outside of any Pod.
#[must_use]
pub fn pod_uid(text: &str) -> Option<String> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    // The innermost part counts: a node that runs in a Pod itself (kind, k3d) has both.
    paths.filter_map(|path| path.rsplit('/').find_map(uid_of_part)).next()
}

/// The UID in one part of a path.
fn uid_of_part(part: &str) -> Option<String> {
    // Where the kubelet uses systemd and containerd does not, it makes `SLICE:cri-containerd:ID`
    // one part.
    let part = part.split(':').next().unwrap_or(part);
    if let Some(slice) = part.strip_suffix(SLICE) {
        // `kubepods-pod<UID>`, `kubepods-besteffort-pod<UID>`, `kubelet-kubepods-pod<UID>`; the UID
        // itself has no `-` here.
        let (before, last) = slice.rsplit_once('-')?;
        let last = last.strip_prefix(POD)?;
        return before.contains("kubepods").then(|| uid(last))?;
    }
    part.strip_prefix(POD).and_then(uid)
}

/// Whether it is a hash as static Pods have, which no UID is.
#[must_use]
pub fn is_hash(text: &str) -> bool {
    text.len() == HASH_BYTES && uid(text).is_some_and(|plain| plain == text)
}

/// A UID in its usual form.
fn uid(text: &str) -> Option<String> {
    let plain = text.replace('_', "-").to_ascii_lowercase();
    let hex = |c: u8| c.is_ascii_hexdigit();
    let good = match plain.len() {
        HASH_BYTES => plain.bytes().all(hex),
        UID_BYTES => plain.bytes().enumerate().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => c == b'-',
            _ => hex(c),
        }),
        _ => false,
    };
    good.then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "1f0c2d3e-4a5b-6c7d-8e9f-a0b1c2d3e4f5";
    const HASH: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn all_runtimes_drivers_and_versions() {
        let slice = UID.replace('-', "_");
        for (what, text) in [
            (
                "v2, systemd, containerd",
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-ab12.scope\n"
                ),
            ),
            (
                "v2, systemd, CRI-O",
                format!("0::/kubepods.slice/kubepods-pod{slice}.slice/crio-ab12.scope\n"),
            ),
            (
                "v2, systemd, CRI-O's monitor",
                format!(
                    "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{slice}.slice/crio-conmon-ab12.scope\n"
                ),
            ),
            (
                "v2, systemd, kind",
                format!(
                    "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{slice}.slice/cri-containerd-ab12.scope\n"
                ),
            ),
            ("v2, cgroupfs", format!("0::/kubepods/besteffort/pod{UID}/ab12\n")),
            (
                "v2, kubelet with systemd, containerd without",
                format!(
                    "0::/system.slice/containerd.service/kubepods-burstable-pod{slice}.slice:cri-containerd:ab12\n"
                ),
            ),
            (
                "v1, cgroupfs",
                format!(
                    "12:pids:/kubepods/burstable/pod{UID}/ab12\n11:memory:/kubepods/burstable/pod{UID}/ab12\n1:name=systemd:/kubepods/burstable/pod{UID}/ab12\n"
                ),
            ),
            (
                "v1, systemd",
                format!(
                    "4:cpu,cpuacct:/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-ab12.scope\n0::/\n"
                ),
            ),
            ("v1, only some controllers", format!("13:misc:/\n12:pids:/kubepods/pod{UID}/ab12\n")),
            ("a kubelet with a root of its own", format!("0::/node-7/kubepods/pod{UID}/ab12\n")),
            (
                "a node within a Pod",
                format!("0::/kubepods/burstable/pod{HASH}/cd34/kubelet/kubepods/pod{UID}/ab12\n"),
            ),
            (
                "v1, cgroupfs, CRI-O",
                format!("8:pids:/kubepods/besteffort/pod{UID}/crio-ab12\n9:name=systemd:/\n0::/\n"),
            ),
            (
                "from a shim in a namespace of control groups of its own",
                format!("8:pids:/../../burstable/pod{UID}/ab12\n"),
            ),
            (
                "the same, systemd",
                format!(
                    "0::/../../kubepods-besteffort-pod{slice}.slice/crio-ab12.scope/container\n"
                ),
            ),
            (
                "the Pod's group itself, as of a moment",
                format!("0::/kubepods/burstable/pod{UID}\n"),
            ),
            ("capitals", format!("0::/kubepods/pod{}/x\n", UID.to_uppercase())),
        ] {
            assert_eq!(pod_uid(&text).as_deref(), Some(UID), "{what}");
        }
        let text = format!("0::/kubepods/burstable/pod{HASH}/ab12\n");
        assert_eq!(pod_uid(&text).as_deref(), Some(HASH));
        assert!(is_hash(HASH) && !is_hash(UID) && !is_hash(&HASH.to_uppercase()));
    }

    #[test]
    fn what_is_no_pod_has_none() {
        for text in [
            "",
            "0::/\n",
            "0::/init.scope\n",
            "0::/system.slice/kubelet.service\n",
            "0::/kubepods.slice/kubepods-besteffort.slice\n",
            "0::/kubepods/podman/ab12\n",
            "0::/user.slice/user-1000.slice/podman-pod1.slice\n",
            "0::/kubepods/pod1f0c2d3e-4a5b-6c7d-8e9f\n",
            "0::/kubepods/podzz0c2d3e-4a5b-6c7d-8e9f-a0b1c2d3e4f5\n",
            "no colons at all\n",
        ] {
            assert_eq!(pod_uid(text), None, "{text}");
        }
    }
}
